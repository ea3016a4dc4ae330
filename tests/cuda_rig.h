/* A model on the CUDA backend without an engine around it: for the device test and its benchmark. */
#ifndef RANKSCOPE_TESTS_CUDA_RIG_H
#define RANKSCOPE_TESTS_CUDA_RIG_H

#include "engine/backend.h"
#include "engine/cuda_backend.h"
#include "engine/gguf.h"
#include "engine/weights.h"

enum { RIG_SEQS = 1024, RIG_SEGS = RIG_SEQS + 64 /* of a step */ };

struct rig_config {
    const char *path; /* a GGUF file, or NULL: synthetic */
    const char *synthetic;
    uint32_t layers; /* synthetic: 0 all */
    uint32_t ranks, gpus, max_rows, max_keys, seqs; /* seqs: sequences that there is room for; 0: 64 */
    bool tops; /* steps look at logits where they lie, as for the likeliest token; they do not come to the host */
    int only_rank; /* -1: all */
    enum krn_cache_type cache;
    uint32_t timeout_ms, epoch; /* see cuda_config */
    bool f32, bf16, unfused, no_pdl, nccl, no_stamps, invariant;
};

struct rig {
    struct rig_config cfg;
    struct gguf *gguf;
    struct hparams hp;
    struct weights w;
    struct shard_plan shard;
    struct program prog;
    struct choice *choices;
    struct backend *backend;
    struct batch batch;
    struct batch_seg seg[RIG_SEGS];
    int32_t *table; /* [RIG_SEGS][blocks] */
    uint32_t blocks;
    uint64_t generation; /* of the choices */
};

enum rs_result rig_open(const struct rig_config *cfg, struct rig *out, struct rs_error *err);
void rig_close(struct rig *r);

/* One sequence (seq): n tokens from position pos on; logits of the last row, or of all rows. */
enum rs_result rig_step(struct rig *r, uint32_t seq, const int32_t *ids, uint32_t n, uint32_t pos, bool all_logits, bool graph,
                        struct rs_error *err);
/* One generated token each of n_seqs sequences, all at position pos. */
enum rs_result rig_decode(struct rig *r, const int32_t *ids, uint32_t n_seqs, uint32_t pos, bool graph, struct rs_error *err);
/* As an engine's step under load: a generated token each of n_seqs sequences, all at position pos, and behind them `rows` rows of prompts of `each` tokens, sequences of
 * their own, from position 0. One row of logits of each sequence. */
enum rs_result rig_mixed(struct rig *r, const int32_t *ids, uint32_t n_seqs, uint32_t pos, uint32_t rows, uint32_t each, bool graph, struct rs_error *err);

/* How many of a synthetic model's first layers have weights of at most so many bytes on every GPU; cfg->layers counts as all. RS_ENOMEM: not one. */
enum rs_result rig_layers(const struct rig_config *cfg, uint64_t bytes, uint32_t *layers, struct rs_error *err);

/* All-reduces by another implementation, NULL for the usual one. Errors: RS_ENOTFOUND, or that of the backend, which says why it cannot. */
enum rs_result rig_allreduce(struct rig *r, const char *impl, struct rs_error *err);
/* The choices were changed: graphs are captured again. */
void rig_generation(struct rig *r);

static inline const float *rig_logits(struct rig *r, uint32_t i)
{
    return r->backend->ops->logits(r->backend, i);
}
int32_t rig_argmax(const float *x, uint32_t n);

#endif
