/* What an audit reads of the weights themselves. */
#ifndef RANKSCOPE_ENGINE_AUDIT_CHECK_H
#define RANKSCOPE_ENGINE_AUDIT_CHECK_H

#include "engine/gguf.h"
#include "engine/plan.h"

/* Hash of a rank's slice: all rows, or with `sample` 16 of them, spread evenly. 0: the rank has no part. */
uint64_t audit_hash(const struct op_view *v, bool sample);

/* Two ranks whose slices of a sharded tensor are equal; false: none. Equal slices are a sign that the same part was dealt out twice, or that the
 * file holds the same rows twice. hash: one per rank. */
bool audit_same(const struct program *p, uint32_t view, const uint64_t *hash, uint32_t *a, uint32_t *b);

/* Blocks of a tensor whose scale or minimum is not finite (unquantised: weights); *first becomes the first one's number. Reads all of it. */
uint64_t audit_broken(const struct gguf_tensor *t, uint64_t *first);

#endif
