/* Observers on ops: taps, watchpoints, captures.
 *
 * An observer looks at one input or output of one op, on the ranks of a mask, where it stands: in graph mode it is a node of the graph, so what it
 * sees is what the next op reads, and nothing else about the step changes. Results go into memory that was allocated when the observer was armed.
 * A backend runs observers and knows nothing of what they are for; the control thread reads their results between steps. */
#ifndef RANKSCOPE_ENGINE_PROBE_H
#define RANKSCOPE_ENGINE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/op.h"

/* -DRS_NO_PROBES leaves the hooks out of the walk and of the step: the build that scripts/bench-probes holds the ordinary one against. */
#ifdef RS_NO_PROBES
enum { PROBE_BUILT = 0 };
#else
enum { PROBE_BUILT = 1 };
#endif

/* A copy of a single row of an op's first output: after op `op`, `width` values on `rank` go to dst. */
struct probe_copy {
    uint16_t op;
    uint16_t rank;
    uint32_t row;      /* row of the batch; UINT32_MAX: the last one */
    float *dst;        /* width floats, owned by whoever armed it */
    uint32_t width;
};

/* Statistics of a tensor's part on one rank. min, max, absmax and the sums are over the finite values. */
struct probe_stats {
    uint64_t n, zeros, nan, inf;
    uint64_t hash;            /* of all bits and their places, in no particular order of adding */
    double sum, sum_sq;
    float min, max, absmax;   /* 0 when nothing is finite */
};

enum probe_bits {
    PROBE_STATS = 1,
    PROBE_VALUES = 2, /* the first n_values of the last row, of every recorded step */
    PROBE_COPY = 4,   /* all rows, of the last step alone */
};

enum { PROBE_STEPS = 64 }; /* depth of the flight recorder */

/* What was copied from one rank. Rows that hold integers (index selection, expert choice) keep their bits. */
struct probe_copied {
    float *data;        /* [cap] */
    size_t cap;         /* floats */
    uint32_t rows, width; /* of the last step; what did not fit is missing from the end: rows * width <= cap */
};

struct probe_obs {
    uint16_t op;
    bool before;         /* look at in[index] before the op runs (out[index - OP_MAX_IN] from OP_MAX_IN on), else at out[index] after it */
    uint8_t index;
    uint8_t bits;
    uint64_t ranks;      /* bit per rank */
    uint32_t n_values;
    struct probe_stats *ring;    /* [PROBE_STEPS][n_ranks]; PROBE_STATS */
    float *values;               /* [PROBE_STEPS][n_ranks][n_values]; PROBE_VALUES */
    struct probe_copied *copied; /* [n_ranks]; PROBE_COPY */
};

struct probe_set {
    uint32_t n_copies;
    const struct probe_copy *copies; /* sorted by op */
    uint32_t base;                   /* number of the program's first op in obs: those of the NextN block count on from the main stack's */
    uint32_t n_obs;
    const struct probe_obs *obs;     /* sorted by op; those before an op stand before those after it */
    uint32_t slot;                   /* of the rings, for the step that runs: the control thread sets it before the step */
};

/* What an observer looks at. */
static inline const struct op_ref *probe_ref(const struct op *o, bool before, uint32_t index)
{
    return !before ? &o->out[index] : index < OP_MAX_IN ? &o->in[index] : &o->out[index - OP_MAX_IN];
}

/* What a value adds to the hash, by its bits and its place among the values: the same here and on devices. */
static inline uint64_t probe_mix(uint64_t index, uint32_t bits)
{
    uint64_t z = index * 0x9e3779b97f4a7c15u ^ bits;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Fold one value into statistics; n, zeros, hash included. */
static inline void probe_fold(struct probe_stats *s, float x)
{
    union { float f; uint32_t u; } b = {.f = x};
    uint32_t mag = b.u & 0x7fffffffu;
    s->hash += probe_mix(s->n, b.u);
    s->n++;
    if (mag >= 0x7f800000u) {
        if (mag > 0x7f800000u)
            s->nan++;
        else
            s->inf++;
        return;
    }
    float a = x < 0 ? -x : x;
    if (s->n - s->nan - s->inf == 1)
        s->min = s->max = x;
    s->min = x < s->min ? x : s->min;
    s->max = x > s->max ? x : s->max;
    s->absmax = a > s->absmax ? a : s->absmax;
    s->zeros += mag == 0;
    s->sum += (double)x;
    s->sum_sq += (double)x * (double)x;
}

/* Rows of the indexer's and the router's buffers are not simply `width` floats: scores reach as far as there are keys (and are computed only where
 * there are more than top_k), selections begin with their count. Which values of a row mean something: [*from, *from + result). keys: the row's
 * position + 1. */
uint32_t probe_extent(enum op_buf buf, const float *row, uint32_t width, uint32_t keys, uint32_t topk, uint32_t *from);
/* Value j of a row as a number; selections and the first half of choices are integers. */
float probe_value(enum op_buf buf, const float *row, uint32_t width, uint32_t j);
/* Fold what means something of a row. */
void probe_fold_row(struct probe_stats *s, enum op_buf buf, const float *row, uint32_t width, uint32_t keys, uint32_t topk);

/* Statistics of two parts as one; the hash is of the parts' hashes. */
void probe_merge(struct probe_stats *into, const struct probe_stats *part);
double probe_mean(const struct probe_stats *s);
double probe_rms(const struct probe_stats *s);

#endif
