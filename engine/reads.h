/* What the ops of a step read from memory, and which launch computes those that have no time of their own: together, how near a device comes to what
 * its memory can do. Pure; any thread. */
#ifndef RANKSCOPE_ENGINE_READS_H
#define RANKSCOPE_ENGINE_READS_H

#include "engine/plan.h"

struct reads_step {
    uint32_t rows;
    uint64_t keys;       /* rows of cache that its sequences look back at, all together */
    uint32_t elem_bytes; /* of a cached value */
};

/* Bytes of weights and cache that an op has to read once on a rank. Of routed experts as many as that many rows choose when choices are even: what
 * one row reads is exact where every rank has a part of every expert. */
double reads_bytes(const struct program *p, const struct op *o, uint32_t rank, const struct reads_step *s);

/* The op whose launch computes op i, where us (as backend_ops.op_us) has no time for i on that rank: fused neighbours count for the one that launched.
 * last: the nearest op before i that has a time, or 0. */
uint32_t reads_carrier(const struct program *p, const float *us, uint32_t rank, uint32_t i, uint32_t last);

#endif
