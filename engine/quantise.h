/* Writing a model file anew with other weight types. */
#ifndef RANKSCOPE_ENGINE_QUANTISE_H
#define RANKSCOPE_ENGINE_QUANTISE_H

#include "engine/gguf.h"
#include "engine/pool.h"
#include "engine/recipe.h"

struct quantise_report {
    uint64_t tensors, changed, bytes_in, bytes_out;
};

/* Called between pieces of work: bytes of the input done, of all. */
typedef void (*quantise_progress)(void *arg, uint64_t done, uint64_t total);

/* in: an open model; its keys are kept, tensors keep their order. The workers of pool share the rows. Errors: RS_EIO, RS_ENOMEM, RS_EFORMAT (weights
 * that are not finite, named). */
enum rs_result quantise_file(const struct gguf *in, const char *path, const struct recipe *r, struct pool *pool, quantise_progress progress, void *arg,
                             struct quantise_report *out, struct rs_error *err);

#endif
