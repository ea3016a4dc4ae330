/* See cuda_rig.h. */
#include "tests/cuda_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/patch.h"
#include "engine/synth.h"

enum { BLOCK = 16 };

static enum rs_result open_model(struct rig *r, struct rs_error *err)
{
    const struct synth_spec made = {.shape = r->cfg.path == NULL ? shape_find(r->cfg.synthetic) : NULL, .options = {.layers = r->cfg.layers, .seed = 1}};
    if (r->cfg.path == NULL && made.shape == NULL)
        return error_set(err, RS_ENOTFOUND, "no shape %s", r->cfg.synthetic);
    enum rs_result rc = made.shape != NULL ? synth_open(&made, &r->gguf, err) : gguf_open(r->cfg.path, &r->gguf, err);
    if (rc == RS_OK)
        rc = hparams_read(r->gguf, &r->hp, err);
    return rc == RS_OK ? weights_bind(r->gguf, &r->hp, &r->w, err) : rc;
}

/* allreduce: an implementation's name, or NULL for the usual one. */
static enum rs_result resolve(struct rig *r, const char *allreduce, struct rs_error *err)
{
    struct patch_store store;
    size_t n;
    const struct op_impl *impls = backend_cuda_impls(&n);
    enum rs_result rc = patch_open(&store, err);
    if (rc != RS_OK)
        return rc;
    struct patch_table t = store.now;
    if (r->choices == NULL)
        r->choices = calloc(r->prog.n_ops, sizeof *r->choices);
    if (allreduce != NULL) {
        t.n = 1;
        t.entry[0] = (struct patch_entry){.slot = SLOT_ALLREDUCE, .glob = "*"};
        snprintf(t.entry[0].impl, sizeof t.entry[0].impl, "%s", allreduce);
    }
    rc = patch_resolve(&t, &r->prog, impls, n, r->choices, err);
    for (uint32_t i = 0; i < r->prog.n_ops && rc == RS_OK; i++) {
        r->choices[i].matmul = r->cfg.f32 ? MATMUL_F32 : MATMUL_INT8;
        r->choices[i].bf16 = r->cfg.bf16;
    }
    patch_close(&store);
    return rc;
}

enum rs_result rig_open(const struct rig_config *cfg, struct rig *r, struct rs_error *err)
{
    memset(r, 0, sizeof *r);
    r->cfg = *cfg;
    r->generation = 1;
    const uint32_t keys = cfg->max_keys, rows = cfg->max_rows;
    r->blocks = (keys + BLOCK - 1) / BLOCK;
    r->table = calloc((size_t)RIG_SEGS * r->blocks, sizeof *r->table);
    r->batch = (struct batch){.cap = rows,
                              .cap_segs = RIG_SEGS,
                              .cap_logits = rows,
                              .segs = r->seg,
                              .token = calloc(rows, 4),
                              .pos = calloc(rows, 4),
                              .seg = calloc(rows, 4),
                              .logit_row = calloc(rows, 4),
                              .want = calloc(rows, sizeof(struct batch_want)),
                              .wants = cfg->tops};
    const uint32_t wanted = cfg->seqs != 0 ? cfg->seqs : 64, seqs = rows < wanted ? rows : wanted;
    for (uint32_t s = 0; s < seqs; s++) /* scattered on purpose: neighbours in a sequence are not neighbours in the cache */
        for (uint32_t b = 0; b < r->blocks; b++)
            r->table[s * r->blocks + b] = (int32_t)(1 + (r->blocks - 1 - b) * seqs + s);
    enum rs_result rc = open_model(r, err);
    if (rc == RS_OK)
        rc = shard_make(&r->hp, &r->w, cfg->ranks, SHARD_AUTO, &r->shard, err);
    if (rc == RS_OK && cfg->only_rank >= 0)
        shard_block(&r->shard, (uint32_t)cfg->only_rank, (uint32_t)cfg->only_rank + 1);
    if (rc == RS_OK)
        rc = plan_build(&r->hp, &r->w, &r->shard, PLAN_MAIN, keys, &r->prog, err);
    if (rc == RS_OK)
        rc = resolve(r, cfg->nccl ? "nccl" : NULL, err);
    const struct backend_limits lim = {.max_rows = rows,
                                       .max_logits = cfg->path != NULL || rows < seqs ? rows : seqs,
                                       .max_keys = keys,
                                       .block = BLOCK,
                                       .n_blocks = 1 + seqs * r->blocks,
                                       .cache = cfg->cache,
                                       .peers = cfg->only_rank >= 0 ? cfg->ranks : 0,
                                       .peer = cfg->only_rank >= 0 ? (uint32_t)cfg->only_rank : 0,
                                       .made_up = cfg->path == NULL};
    const struct cuda_config cc = {.n_gpus = cfg->gpus, .fuse = !cfg->unfused, .pdl = !cfg->no_pdl, .no_stamps = cfg->no_stamps,
                                   .timeout_ms = cfg->timeout_ms, .epoch = cfg->epoch};
    if (rc == RS_OK)
        rc = backend_cuda_open(&r->hp, &r->w, &r->shard, &r->prog, NULL, &lim, &cc, &r->backend, err);
    if (rc != RS_OK)
        rig_close(r);
    return rc;
}

void rig_close(struct rig *r)
{
    if (r->backend != NULL)
        r->backend->ops->close(r->backend);
    plan_free(&r->prog);
    shard_free(&r->shard);
    weights_free(&r->w);
    gguf_close(r->gguf);
    free(r->choices);
    free(r->table);
    free(r->batch.token);
    free(r->batch.pos);
    free(r->batch.seg);
    free(r->batch.logit_row);
    free(r->batch.want);
    memset(r, 0, sizeof *r);
}

void rig_generation(struct rig *r)
{
    r->backend->ops->retire(r->backend, ++r->generation);
}

enum rs_result rig_allreduce(struct rig *r, const char *impl, struct rs_error *err)
{
    enum rs_result rc = resolve(r, impl, err);
    rig_generation(r);
    return rc == RS_OK ? r->backend->ops->prepare(r->backend, &r->prog, r->choices, err) : rc;
}

/* Weights on the GPU that has most of them, of the layers up to and with `last`. */
static uint64_t weights_on_gpu(const struct rig *r, uint32_t gpus, int last)
{
    uint64_t most = 0;
    for (uint32_t g = 0; g < gpus; g++) {
        const struct shard_range ranks = shard_deal(r->prog.n_ranks, 1, gpus, g);
        uint64_t sum = 0;
        for (uint32_t k = ranks.from; k < ranks.to; k++)
            for (uint32_t i = 0; i < r->prog.n_ops; i++)
                for (int s = 0; s < r->prog.ops[i].n_w && r->prog.ops[i].layer <= last; s++) {
                    const struct op_view *v = plan_view(&r->prog, k, r->prog.ops[i].w[s]);
                    sum += (uint64_t)v->rows * v->n_mats * kcu_pitch(v->type, v->k);
                }
        most = sum > most ? sum : most;
    }
    return most;
}

enum rs_result rig_layers(const struct rig_config *cfg, uint64_t bytes, uint32_t *layers, struct rs_error *err)
{
    struct rig r = {.cfg = *cfg};
    enum rs_result rc = open_model(&r, err);
    if (rc == RS_OK)
        rc = shard_make(&r.hp, &r.w, cfg->ranks, SHARD_AUTO, &r.shard, err);
    if (rc == RS_OK)
        rc = plan_build(&r.hp, &r.w, &r.shard, PLAN_MAIN, cfg->max_keys, &r.prog, err);
    for (*layers = 0; rc == RS_OK && *layers < r.hp.n_layers && weights_on_gpu(&r, cfg->gpus, (int)*layers) <= bytes;)
        ++*layers;
    if (rc == RS_OK && *layers == 0)
        rc = error_set(err, RS_ENOMEM, "not one layer of %s fits into %.1f GB on each of %u GPUs", cfg->synthetic, (double)bytes / 1e9, cfg->gpus);
    rig_close(&r);
    return rc;
}

static enum rs_result run(struct rig *r, bool graph, struct rs_error *err)
{
    const struct backend_step s = {
        .prog = &r->prog, .choices = r->choices, .batch = &r->batch, .generation = r->generation, .graph = graph, .graph_guard = true,
        .fast = !r->cfg.invariant};
    return r->backend->ops->step(r->backend, &s, err);
}

enum rs_result rig_step(struct rig *r, uint32_t seq, const int32_t *ids, uint32_t n, uint32_t pos, bool all_logits, bool graph,
                        struct rs_error *err)
{
    struct batch *b = &r->batch;
    b->n_rows = b->bucket = n;
    b->n_segs = 1;
    b->max_keys = pos + n;
    b->n_logits = all_logits ? n : 1;
    r->seg[0] = (struct batch_seg){
        .row0 = 0, .n_rows = n, .pos0 = pos, .kind = n > 1 ? BATCH_PROMPT : BATCH_GENERATED, .table = r->table + (size_t)seq * r->blocks};
    for (uint32_t i = 0; i < n; i++) {
        b->token[i] = ids[i];
        b->pos[i] = (int32_t)(pos + i);
        b->seg[i] = 0;
        b->logit_row[i] = (int32_t)i;
    }
    if (!all_logits)
        b->logit_row[0] = (int32_t)n - 1;
    return run(r, graph, err);
}

static void add_seg(struct rig *r, uint32_t seq, enum batch_kind kind, const int32_t *ids, uint32_t n, uint32_t pos)
{
    struct batch *b = &r->batch;
    r->seg[b->n_segs] = (struct batch_seg){.row0 = b->n_rows, .n_rows = n, .pos0 = pos, .kind = kind, .table = r->table + (size_t)seq * r->blocks};
    for (uint32_t i = 0; i < n; i++) {
        b->token[b->n_rows] = ids[i];
        b->pos[b->n_rows] = (int32_t)(pos + i);
        b->seg[b->n_rows++] = (int32_t)b->n_segs;
    }
    b->logit_row[b->n_segs++] = (int32_t)b->n_rows - 1;
    b->n_logits = b->n_segs;
    b->max_keys = pos + n > b->max_keys ? pos + n : b->max_keys;
}

enum rs_result rig_mixed(struct rig *r, const int32_t *ids, uint32_t n_seqs, uint32_t pos, uint32_t rows, uint32_t each, bool graph, struct rs_error *err)
{
    struct batch *b = &r->batch;
    b->n_rows = b->n_segs = b->max_keys = 0;
    for (uint32_t i = 0; i < n_seqs; i++)
        add_seg(r, i, BATCH_GENERATED, ids + i, 1, pos);
    for (uint32_t i = 0; i < rows; i += each)
        add_seg(r, b->n_segs, BATCH_PROMPT, ids + i, rows - i < each ? rows - i : each, 0);
    b->bucket = 1;
    while (b->bucket < b->n_rows)
        b->bucket *= 2;
    if (rows != 0) /* as the engine does it where padding is computed too */
        b->bucket = b->bucket > 64 ? (b->n_rows + b->bucket / 8 - 1) / (b->bucket / 8) * (b->bucket / 8) : b->bucket;
    b->bucket = b->bucket < b->cap ? b->bucket : b->cap;
    return run(r, graph, err);
}

enum rs_result rig_decode(struct rig *r, const int32_t *ids, uint32_t n, uint32_t pos, bool graph, struct rs_error *err)
{
    return rig_mixed(r, ids, n, pos, 0, 1, graph, err);
}

int32_t rig_argmax(const float *x, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[at])
            at = i;
    return (int32_t)at;
}
