/* Shapes of the models of the family, as published: for models made up for load, shape and speed work. Immutable tables; any thread. */
#ifndef RANKSCOPE_ENGINE_SHAPE_H
#define RANKSCOPE_ENGINE_SHAPE_H

#include "engine/gguf_write.h"
#include "engine/hparams.h"
#include "engine/recipe.h"

struct shape {
    const char *name; /* "glm-5" */
    enum hp_arch arch;
    uint32_t layers, nextn, context, embd, ff, heads, q_lora, nope, v_head, vocab, dense;
    uint32_t experts, used, shared, ff_exp, groups, groups_used;
    uint32_t index_heads; /* of 128 values, top_k 2048; 0: no indexer */
    float rope_base, yarn_log_mul, eps, expert_scale;
    bool sigmoid, norm;
};

enum { SHAPE_KV_LORA = 512, SHAPE_ROPE = 64, SHAPE_INDEX_DIM = 128, SHAPE_TOP_K = 2048 };

const struct shape *shape_find(const char *name);       /* NULL: there is none */
const char *shape_name(size_t i);                       /* NULL past the end */

/* What a made-up model has of a shape. */
struct shape_options {
    uint32_t layers;  /* 0: all, with the NextN block; else the first so many, without */
    uint32_t experts; /* 0: all; else so few */
    uint32_t vocab;   /* 0: all of it; else so few tokens, 512 at least */
    const struct recipe *recipe; /* types; NULL: experts Q4_K with Q5_K down, other matrices Q8_0 */
    uint64_t seed;
};

/* What the weights of a tensor are, by its name: norms one, biases zero, everything else random. */
enum shape_fill { SHAPE_RANDOM, SHAPE_ONES, SHAPE_ZEROS };
enum shape_fill shape_fill_of(const char *tensor);

typedef void (*shape_progress)(void *arg, uint64_t done, uint64_t total);

/* Write a model file of random weights whose activations stay within bounds: matrices of deviation 1 / sqrt(inputs), norms of one. Its vocabulary is
 * the bytes and the family's control tokens, padded to size. Deterministic in the options. Errors: RS_EUSAGE, RS_EIO, RS_ENOMEM. */
enum rs_result shape_write(const struct shape *s, const struct shape_options *o, const char *path, shape_progress progress, void *arg, struct rs_error *err);
/* The same as an open file that is nowhere: names, shapes, keys and vocabulary; all weights read as zero until somebody writes them (the tensors'
 * data may be written). Errors: RS_EUSAGE, RS_ENOMEM. */
enum rs_result shape_open(const struct shape *s, const struct shape_options *o, struct gguf **out, struct rs_error *err);

#endif
