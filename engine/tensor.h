/* Looking at buffers between ops and between steps, and at captured copies, the way their layout says: replicated from one rank, sharded put
 * together, partial summed. Control thread. */
#ifndef RANKSCOPE_ENGINE_TENSOR_H
#define RANKSCOPE_ENGINE_TENSOR_H

#include "engine/probe.h"
#include "engine/rankscope.h"
#include "engine/runtime.h"

/* A tensor as rows of floats. Owned by whoever asked: tensor_free(). Integers (selections, choices) have become floats. */
struct tensor {
    uint32_t rows, width;
    float *data; /* [rows][width] */
};

void tensor_free(struct tensor *t);

/* Rows of a buffer that the present batch uses on a rank. */
uint32_t tensor_rows(const struct runtime *rt, const struct batch *b, enum op_buf buf, uint32_t rank);

/* Statistics of an op's tensor on a rank as it stands in its buffer. row: scratch of the buffer's width. Allocates nothing. */
void tensor_stats(const struct runtime *rt, const struct batch *b, const struct op *o, const struct op_ref *r, uint32_t rank, float *row, struct probe_stats *out);
struct probe_stats tensor_stats_of(const struct tensor *t);

/* What one rank holds now. Errors: RS_ENOMEM, RS_EUSAGE. */
enum rs_result tensor_read(const struct runtime *rt, const struct batch *b, const struct op *o, const struct op_ref *r, uint32_t rank, struct tensor *out,
                           struct rs_error *err);

/* The whole tensor from what each rank holds, part[n_ranks]. rank 0's for replicated tensors; [gate | up] halves are put together half by half;
 * (row, expert) pairs of whole experts one rank after the other. Errors: RS_ENOMEM, RS_EINTERNAL (parts that do not fit). */
enum rs_result tensor_join(const struct program *p, const struct op *o, const struct op_ref *r, const struct tensor *part, struct tensor *out, struct rs_error *err);

/* Where column c of the whole tensor lies: on which rank, in which column there. For sharded tensors whose ranks hold the same rows. */
void tensor_place(const struct program *p, const struct op *o, const struct op_ref *r, uint32_t c, uint32_t *rank, uint32_t *col);

/* A copied part as floats. */
enum rs_result tensor_copied(enum op_buf buf, const struct probe_copied *c, struct tensor *out, struct rs_error *err);

/* The op that wrote `buf` last among ops [0, before). NULL: none. */
const struct op *tensor_writer(const struct program *p, enum op_buf buf, uint32_t before);

#endif
