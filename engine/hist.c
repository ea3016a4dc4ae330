/* See hist.h. */
#include "engine/hist.h"

#include <math.h>
#include <string.h>

/* 1/16 us as the upper 15 bits of a double: sign, exponent, and the 3 bits that divide an octave in 8. */
enum { FIRST = (1023 - 4) << 3 };

/* Buckets follow the floating-point format, so that finding one takes no logarithm. */
static uint32_t bucket(double us)
{
    uint64_t bits;
    if (!(us >= 1.0 / 16))
        return 0;
    memcpy(&bits, &us, sizeof bits);
    uint64_t i = (bits >> 49) - FIRST + 1;
    return i < HIST_BUCKETS ? (uint32_t)i : HIST_BUCKETS - 1;
}

double hist_bound(uint32_t i)
{
    uint64_t bits = (uint64_t)(FIRST + i) << 49;
    double us;
    memcpy(&us, &bits, sizeof us);
    return i + 1 < HIST_BUCKETS ? us : INFINITY;
}

void hist_reset(struct hist *h)
{
    uint32_t window = h->window;
    memset(h, 0, sizeof *h);
    h->window = window;
    h->lo = HIST_BUCKETS;
}

static void widen(struct hist *h, uint32_t lo, uint32_t hi)
{
    if (h->n_now + h->n_before == 0) {
        h->lo = HIST_BUCKETS;
        h->hi = 0;
    }
    h->lo = lo < h->lo ? (uint16_t)lo : h->lo;
    h->hi = hi > h->hi ? (uint16_t)hi : h->hi;
}

void hist_add(struct hist *h, double us)
{
    uint32_t i = bucket(us);
    if (h->n_now >= h->window && h->window != 0) {
        memcpy(h->before, h->now, sizeof h->now);
        memset(h->now, 0, sizeof h->now);
        h->n_before = h->n_now;
        h->n_now = 0;
    }
    widen(h, i, i);
    h->now[i]++;
    h->n_now++;
}

uint32_t hist_count(const struct hist *h)
{
    return h->n_now + h->n_before;
}

uint32_t hist_at(const struct hist *h, uint32_t i)
{
    return h->now[i] + h->before[i];
}

void hist_merge(struct hist *h, const struct hist *o)
{
    if (hist_count(o) == 0)
        return;
    widen(h, o->lo, o->hi);
    for (uint32_t i = o->lo; i <= o->hi; i++)
        h->now[i] += hist_at(o, i);
    h->n_now += hist_count(o);
}

float hist_quantile(const struct hist *h, double q)
{
    uint32_t n = hist_count(h);
    double want = q * n, seen = 0;
    if (n == 0)
        return NAN;
    for (uint32_t i = h->lo; i <= h->hi; i++) {
        uint32_t k = hist_at(h, i);
        if (k != 0 && seen + k >= want) {
            if (i == 0)
                return 0;
            double a = hist_bound(i - 1), b = i + 1 < HIST_BUCKETS ? hist_bound(i) : a;
            return (float)(a + (b - a) * (want - seen) / k);
        }
        seen += k;
    }
    return (float)hist_bound(h->hi);
}
