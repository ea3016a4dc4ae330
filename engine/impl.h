/* Implementations of ops and what patches choose among them.
 *
 * An op_impl is one way to compute an op kind on one backend; tables of them are constant. A choice is what the patch table says for one op:
 * the implementation and the settings of the slots that modify it. Choices are resolved once per generation and are immutable while a step or a
 * graph uses them. */
#ifndef RANKSCOPE_ENGINE_IMPL_H
#define RANKSCOPE_ENGINE_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/op.h"

struct op_impl {
    enum op_kind kind;
    const char *name;
    bool not_capturable;  /* acts at once instead of being recorded: stale in a graph */
    const void *launch;   /* backend's own: struct cpu_launch on the CPU */
    const char *help;
};

enum choice_matmul { MATMUL_INT8, MATMUL_F32 };
/* What an op's products with weights were made in, from the most to the least exact. A choice is what is wanted; this is what was done. */
enum op_arith {
    ARITH_NONE, /* it has none, or has not run */
    ARITH_F32,
    ARITH_F16,  /* both operands rounded to f16, sums in f32 */
    ARITH_INT8, /* activations rounded to int8 where the weights are quantised, as krn_q8_quant_row() does */
    ARITH_INT8_F16, /* the same, and what comes of it and the weights to f16 */
};
enum choice_why { WHY_DEFAULT, WHY_PATCH, WHY_SITE, WHY_PRESET, WHY_FALLBACK };

struct choice {
    const struct op_impl *impl;
    enum choice_why why;
    uint8_t matmul;        /* enum choice_matmul */
    bool file_order;       /* fused projections: join by file order (the bug of the story) */
    bool tree;             /* all-reduce */
    bool bf16;             /* all-reduce payload */
    uint8_t nccl;          /* all-reduce by NCCL: index of the slot's implementation */
    bool dense;            /* attention over all keys even where an indexer selects */
    int16_t delay_rank;    /* all-reduce: this rank arrives late; -1 none */
    float delay_us;
};

#endif
