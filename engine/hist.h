/* A histogram of durations on a logarithmic scale that forgets: two generations of up to `window` values each, so that percentiles are over the
 * last `window` to 2 x `window` values. Adding and asking allocate nothing. One thread. */
#ifndef RANKSCOPE_ENGINE_HIST_H
#define RANKSCOPE_ENGINE_HIST_H

#include <stdint.h>

/* Buckets: 8 an octave (6 to 12 % wide) from 1/16 us on; bucket 0 holds everything below and counts as 0, the last everything above 16 s. */
enum { HIST_PER_OCTAVE = 8, HIST_BUCKETS = 28 * HIST_PER_OCTAVE + 1 };

struct hist {
    uint32_t now[HIST_BUCKETS], before[HIST_BUCKETS];
    uint32_t n_now, n_before, window; /* window: set by the owner before the first value */
    uint16_t lo, hi;                  /* buckets that may be non-empty; hi < lo: none */
};

void hist_reset(struct hist *h); /* keeps the window */
void hist_add(struct hist *h, double us);
uint32_t hist_count(const struct hist *h);
/* Values in bucket i, both generations. */
uint32_t hist_at(const struct hist *h, uint32_t i);
/* Put o's values into h, into the present generation. */
void hist_merge(struct hist *h, const struct hist *o);
/* The q-quantile in microseconds, within 12 %; NAN without values. */
float hist_quantile(const struct hist *h, double q);
/* Upper bound of bucket i in microseconds; infinite for the last. */
double hist_bound(uint32_t i);

#endif
