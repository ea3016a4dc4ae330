/* The tensors of a model by role, shape-checked. Immutable after weights_bind(); any thread. */
#ifndef RANKSCOPE_ENGINE_WEIGHTS_H
#define RANKSCOPE_ENGINE_WEIGHTS_H

#include "engine/gguf.h"
#include "engine/hparams.h"

/* A whole tensor: n_mats matrices of rows x k, rows packed. data NULL: the model has none. */
struct weight {
    const struct gguf_tensor *t; /* NULL for tensors made at load time */
    const char *name;
    uint32_t type;
    uint32_t k, rows, n_mats;
    size_t row_bytes, mat_bytes; /* from row to row, from matrix to matrix */
    const uint8_t *data;
    bool f32_only;               /* what computes with it reads nothing else */
};

enum layer_role {
    W_ATTN_NORM, W_Q_A, W_Q_A_NORM, W_Q_B, W_Q, W_KV_A, W_KV_A_NORM, W_K_B, W_V_B, W_KV_B, W_ATTN_OUT,
    W_INDEX_Q_B, W_INDEX_K, W_INDEX_K_NORM, W_INDEX_K_NORM_B, W_INDEX_PROJ,
    W_FFN_NORM, W_FFN_GATE, W_FFN_UP, W_FFN_DOWN,
    W_ROUTER, W_ROUTER_BIAS, W_GATE_EXPS, W_UP_EXPS, W_DOWN_EXPS, W_GATE_SHEXP, W_UP_SHEXP, W_DOWN_SHEXP,
    W_EH_PROJ, W_ENORM, W_HNORM, W_HEAD_NORM, W_EMBED, W_HEAD,
    W_LAYER_COUNT,
};

struct layer_weights {
    struct weight w[W_LAYER_COUNT];
    bool moe;
};

struct weights {
    struct weight embed, output_norm, output;
    bool tied;                    /* output is token_embd */
    uint32_t n_layers;            /* including NextN blocks */
    struct layer_weights *layers; /* owned */
    uint32_t n_owned;             /* tensors made at load time (legacy attn_kv_b taken apart) */
    void **owned;
    uint64_t owned_bytes;
    uint64_t n_params, file_bytes;
    bool *used;                   /* per tensor ordinal: bound to a role */
};

/* Find every tensor that hp asks for, check type and shape, name the first that is missing or off. hp->vocab is set from token_embd. Legacy
 * attn_kv_b is taken apart into an f32 k_b (transposed) and a v_b that points into the file. Errors: RS_EFORMAT, RS_EUNSUPPORTED, RS_ENOMEM. */
enum rs_result weights_bind(const struct gguf *g, struct hparams *hp, struct weights *out, struct rs_error *err);
void weights_free(struct weights *w);

/* Weights by number, from 0 to weights_count(): the global ones, then layer by layer; many have no data. */
uint32_t weights_count(const struct weights *w);
struct weight *weights_at(struct weights *w, uint32_t i);

#endif
