/* See runtime.h. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_user.h"
#include "engine/error.h"
#include "engine/rankscope.h"
#include "engine/span.h"
#ifdef HAVE_CUDA
#include "engine/cuda_backend.h"
#endif

#ifndef HAVE_CUDA
static enum rs_result no_cuda(struct rs_error *err)
{
    return error_set(err, RS_EUNSUPPORTED, "this build has no CUDA: configure it --with-cuda");
}
#endif

const struct op_impl *runtime_impls(enum backend_kind backend, size_t *n)
{
#ifdef HAVE_CUDA
    if (backend == BACKEND_CUDA)
        return backend_cuda_impls(n);
#endif
    (void)backend;
    return backend_cpu_impls(n);
}

/* The CPU computes with weights in memory, so those of a made-up model are made when it first asks. */
static enum rs_result make_weights(struct runtime *rt, struct model *m, struct loading *loading, struct pool *pool, struct rs_error *err)
{
    if (m->slice_of != 0)
        return synth_fill_slice(m->gguf, &rt->prog, rt->has_nextn ? &rt->nextn : NULL, pool, loading, &rt->made, err);
    enum rs_result rc = m->filled ? RS_OK : synth_fill(m->gguf, pool, loading, err);
    m->filled = rc == RS_OK;
    return rc;
}

enum rs_result runtime_backend(struct model *m, const struct runtime_config *cfg, const struct shard_plan *shard, const struct program *main_prog,
                               const struct program *nextn, const struct backend_limits *lim, struct pool *pool, enum krn_isa isa, struct backend **out,
                               struct rs_error *err)
{
    if (cfg->backend != BACKEND_CUDA)
        return backend_cpu_open(&m->hp, &m->w, shard, main_prog, nextn, lim, pool, isa, out, err);
#ifdef HAVE_CUDA
    struct cuda_config cc = {.n_gpus = cfg->gpus, .n_listed = cfg->n_listed, .fuse = true, .pdl = true};
    for (uint32_t i = 0; i < cc.n_listed; i++)
        cc.device[i] = cfg->device[i];
    return backend_cuda_open(&m->hp, &m->w, shard, main_prog, nextn, lim, &cc, out, err);
#else
    return no_cuda(err);
#endif
}

static enum rs_result open_backend(struct runtime *rt, struct model *m, const struct backend_limits *lim, struct pool *pool, enum krn_isa isa,
                                   struct rs_error *err)
{
    const struct program *nextn = rt->has_nextn ? &rt->nextn : NULL;
    if (rt->cfg.hosts != NULL)
        return span_open(m, &rt->cfg, &rt->prog, nextn, lim, pool, isa, &rt->backend, err);
    enum rs_result rc = m->made_up && rt->cfg.backend == BACKEND_CPU ? make_weights(rt, m, lim->loading, pool, err) : RS_OK;
    if (rc != RS_OK)
        return rc;
    return runtime_backend(m, &rt->cfg, &rt->shard, &rt->prog, nextn, lim, pool, isa, &rt->backend, err);
}

enum rs_result runtime_resolve(struct runtime *rt, const struct patch_table *patches, struct rs_error *err)
{
    size_t n;
#ifndef HAVE_CUDA
    if (rt->cfg.backend == BACKEND_CUDA) /* before its ops are looked for among the CPU's */
        return no_cuda(err);
#endif
    const struct op_impl *impls = runtime_impls(rt->cfg.backend, &n);
    const struct patch_user *misfit = patch_misfit(patches, rt->cfg.backend == BACKEND_CUDA);
    if (misfit != NULL)
        return error_set(err, RS_EUNSUPPORTED, "%s was loaded from %s, which is for the %s backend", misfit->name, misfit->file,
                         misfit->gpus ? "CUDA" : "CPU");
    struct choice *main_new = calloc(rt->prog.n_ops, sizeof *main_new), *next_new = NULL;
    enum rs_result rc = main_new == NULL ? error_set(err, RS_ENOMEM, "out of memory for op choices") : patch_resolve(patches, &rt->prog, impls, n, main_new, err);
    if (rc == RS_OK && rt->has_nextn) {
        next_new = calloc(rt->nextn.n_ops, sizeof *next_new);
        rc = next_new == NULL ? error_set(err, RS_ENOMEM, "out of memory for op choices") : patch_resolve(patches, &rt->nextn, impls, n, next_new, err);
    }
    if (rc == RS_OK && rt->cfg.backend == BACKEND_CUDA)
        rc = cuda_user_check(&rt->prog, main_new, err);
    if (rc == RS_OK && rt->cfg.backend == BACKEND_CUDA && rt->has_nextn)
        rc = cuda_user_check(&rt->nextn, next_new, err);
    if (rc != RS_OK) {
        free(main_new);
        free(next_new);
        return rc;
    }
    if (rt->backend != NULL && rt->backend->ops->prepare != NULL)
        rc = rt->backend->ops->prepare(rt->backend, &rt->prog, main_new, err);
    if (rc != RS_OK) {
        free(main_new);
        free(next_new);
        return rc;
    }
    free(rt->choices);
    free(rt->nextn_choices);
    rt->choices = main_new;
    rt->nextn_choices = next_new;
    return RS_OK;
}

enum rs_result runtime_open(struct model *m, const struct runtime_config *cfg, const struct patch_table *patches, struct pool *pool,
                            enum krn_isa isa, struct runtime **out, struct rs_error *err)
{
    struct runtime *rt = calloc(1, sizeof *rt);
    if (rt == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the runtime");
    if (m->slice_of != 0 && cfg->ranks != 1) {
        free(rt);
        return error_set(err, RS_EUSAGE, "rank %u of %u is open alone: it cannot be dealt to %u ranks", m->slice, m->slice_of, cfg->ranks);
    }
    rt->cfg = *cfg;
    rt->has_nextn = m->hp.n_nextn != 0;
    uint32_t blocks = (cfg->ctx + RUNTIME_BLOCK - 1) / RUNTIME_BLOCK;
    uint32_t keys = m->hp.context < blocks * RUNTIME_BLOCK ? m->hp.context : blocks * RUNTIME_BLOCK;
    struct backend_limits lim = {.max_rows = cfg->batch_tokens, .max_logits = cfg->max_logits, .max_keys = keys, .block = RUNTIME_BLOCK,
                                 .n_blocks = blocks + 1, .cache = cfg->cache, .peers = m->slice_of, .peer = m->slice, .made_up = m->made_up, .loading = cfg->loading};
    rt->cfg.loading = NULL;
    enum rs_result rc = shard_make(&m->hp, &m->w, m->slice_of != 0 ? m->slice_of : cfg->ranks, cfg->split, &rt->shard, err);
    if (rc == RS_OK && m->slice_of != 0)
        shard_block(&rt->shard, m->slice, m->slice + 1);
    if (rc == RS_OK)
        rc = plan_build(&m->hp, &m->w, &rt->shard, PLAN_MAIN, keys, &rt->prog, err);
    if (rc == RS_OK && rt->has_nextn)
        rc = plan_build(&m->hp, &m->w, &rt->shard, PLAN_NEXTN, keys, &rt->nextn, err);
    if (rc == RS_OK)
        rc = kv_open(&rt->kv, lim.n_blocks, lim.block, err);
    if (rc == RS_OK)
        rc = runtime_resolve(rt, patches, err);
    if (rc == RS_OK)
        rc = open_backend(rt, m, &lim, pool, isa, err);
    if (rc == RS_OK && rt->backend->ops->prepare != NULL)
        rc = rt->backend->ops->prepare(rt->backend, &rt->prog, rt->choices, err);
    if (rc != RS_OK) {
        runtime_close(rt);
        return rc;
    }
    *out = rt;
    return RS_OK;
}

void runtime_close(struct runtime *rt)
{
    if (rt == NULL)
        return;
    if (rt->backend != NULL)
        rt->backend->ops->close(rt->backend);
    synth_free(&rt->made);
    kv_close(&rt->kv);
    plan_free(&rt->prog);
    plan_free(&rt->nextn);
    shard_free(&rt->shard);
    free(rt->choices);
    free(rt->nextn_choices);
    free(rt);
}

/* How like a site is to a pattern: by its last word, or by its kind of op as in "blk.3.moe_down"; then by the block. */
static unsigned likeness(const char *glob, const struct op *op)
{
    const char *dot = strrchr(glob, '.'), *last = dot != NULL ? dot + 1 : glob, *site = strrchr(op->site, '.');
    int layer;
    site = site != NULL ? site + 1 : op->site;
    if (strcmp(last, site) != 0 && strcmp(last, op_kind_name(op->kind)) != 0)
        return 0;
    return 1 + (sscanf(glob, "blk.%d", &layer) == 1 && layer == op->layer);
}

/* The sites that a name without stars may stand for: all of that last name ("allreduce"), or all below it ("blk.2"). */
static uint32_t pattern_of(const struct runtime *rt, uint32_t n_ops, const char *name, char *pattern, size_t size)
{
    static const char *const AROUND[][2] = {{"*.", ""}, {"", ".*"}};
    for (size_t k = 0; k < 2 && strpbrk(name, "*?") == NULL; k++) {
        uint32_t n = 0;
        snprintf(pattern, size, "%s%.60s%s", AROUND[k][0], name, AROUND[k][1]);
        for (uint32_t i = 0; i < n_ops; i++)
            n += plan_glob(pattern, runtime_op(rt, i)->site);
        if (n > 1)
            return n;
    }
    return 0;
}

/* The pattern with its last word mended by the nearest one that a site has, if some site is like that; else a whole site that is near. */
static bool mended(const struct runtime *rt, uint32_t n_ops, const char *glob, char *pattern, size_t size)
{
    const char *dot = strrchr(glob, '.'), *last = dot != NULL ? dot + 1 : glob;
    struct rs_near word, site;
    rs_near_init(&word, last, strlen(last));
    rs_near_init(&site, glob, strlen(glob));
    for (uint32_t i = 0; i < n_ops; i++) {
        const char *name = runtime_op(rt, i)->site, *end = strrchr(name, '.');
        rs_near_try(&site, name);
        rs_near_try(&word, end != NULL ? end + 1 : name);
    }
    if (word.best != NULL)
        snprintf(pattern, size, "%.*s%s", dot != NULL ? (int)(dot + 1 - glob) : 2, dot != NULL ? glob : "*.", word.best);
    for (uint32_t i = 0; i < n_ops && word.best != NULL; i++)
        if (plan_glob(pattern, runtime_op(rt, i)->site))
            return true;
    if (site.best != NULL)
        snprintf(pattern, size, "%s", site.best);
    return site.best != NULL;
}

enum rs_result runtime_no_site(const struct runtime *rt, uint32_t n_ops, const char *glob, struct rs_error *err)
{
    const char *best = NULL;
    char pattern[2 * OP_SITE_MAX];
    unsigned most = 0;
    uint32_t n = pattern_of(rt, n_ops, glob, pattern, sizeof pattern);
    if (n > 1)
        return error_set(err, RS_ENOTFOUND, "no site is called '%.60s' (did you mean %s, which is %u sites?)", glob, pattern, n);
    for (uint32_t i = 0; i < n_ops; i++) {
        unsigned like = likeness(glob, runtime_op(rt, i));
        if (like > most) {
            most = like;
            best = runtime_op(rt, i)->site;
        }
    }
    if (best == NULL && strlen(glob) < sizeof pattern - OP_SITE_MAX && mended(rt, n_ops, glob, pattern, sizeof pattern))
        best = pattern;
    return best != NULL ? error_set(err, RS_ENOTFOUND, "no site matches '%.60s' (did you mean %s?)", glob, best)
                        : error_set(err, RS_ENOTFOUND, "no site matches '%.60s'; the ledger lists them (blk.0.attn.norm, say, or the pattern *.allreduce)", glob);
}
