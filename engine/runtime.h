/* A model laid out over ranks: shard plan, programs, backend with its caches, the resolved choices. Built whole and swapped whole, so that a
 * re-shard that fails leaves the old one running. The engine's control thread owns it. */
#ifndef RANKSCOPE_ENGINE_RUNTIME_H
#define RANKSCOPE_ENGINE_RUNTIME_H

#include "engine/backend.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/patch.h"

struct hosts;

enum { RUNTIME_MAX_GPUS = 8 };

struct runtime_config {
    enum backend_kind backend;
    uint32_t gpus;           /* CUDA: 0 as many as there are ranks and devices */
    uint32_t n_listed;       /* CUDA: devices named one by one; 0: the first ones */
    uint8_t device[RUNTIME_MAX_GPUS];
    uint32_t ranks;
    enum shard_split split;
    enum krn_cache_type cache;
    uint32_t ctx;            /* tokens of cache in all sequences together */
    uint32_t max_seqs, batch_tokens, max_logits;
    struct hosts *hosts;     /* that the ranks are dealt to; NULL: this process has all */
    struct loading *loading; /* while it opens, or NULL; not kept */
};

enum { RUNTIME_BLOCK = 16 }; /* tokens per cache block: fine enough to share prompts, large enough to walk in whole cache lines */

struct runtime {
    struct runtime_config cfg;
    struct shard_plan shard;
    struct program prog, nextn;
    bool has_nextn;
    struct backend *backend;
    struct kv kv;
    struct choice *choices;        /* of prog; replaced when the patch table changes */
    struct choice *nextn_choices;
    struct synth_memory made;      /* weights of a made-up model's slice */
};

/* May make a made-up model's weights, hence no const. */
enum rs_result runtime_open(struct model *m, const struct runtime_config *cfg, const struct patch_table *patches, struct pool *pool,
                            enum krn_isa isa, struct runtime **out, struct rs_error *err);
/* A backend in this process for a plan and its programs. */
enum rs_result runtime_backend(struct model *m, const struct runtime_config *cfg, const struct shard_plan *shard, const struct program *main_prog,
                               const struct program *nextn, const struct backend_limits *lim, struct pool *pool, enum krn_isa isa, struct backend **out,
                               struct rs_error *err);
/* The implementations that a backend has. */
const struct op_impl *runtime_impls(enum backend_kind backend, size_t *n);

void runtime_close(struct runtime *rt); /* NULL is allowed */

/* Resolve the choices again for a new table; on failure the old ones stay. */
enum rs_result runtime_resolve(struct runtime *rt, const struct patch_table *patches, struct rs_error *err);

/* Ops of the main stack, then those of the NextN block, by one number. */
static inline uint32_t runtime_n_ops(const struct runtime *rt)
{
    return rt->prog.n_ops + (rt->has_nextn ? rt->nextn.n_ops : 0);
}

static inline const struct program *runtime_prog(const struct runtime *rt, uint32_t op)
{
    return op < rt->prog.n_ops ? &rt->prog : &rt->nextn;
}

static inline const struct op *runtime_op(const struct runtime *rt, uint32_t op)
{
    return op < rt->prog.n_ops ? &rt->prog.ops[op] : &rt->nextn.ops[op - rt->prog.n_ops];
}

/* RS_ENOTFOUND: a pattern that matches none of the first n_ops sites, with the site that was most likely meant. */
enum rs_result runtime_no_site(const struct runtime *rt, uint32_t n_ops, const char *glob, struct rs_error *err);

#endif
