/* cache.check: do the blocks of a conversation that a continuation would reuse hold what its tokens give? See docs/protocol.md.
 *
 * Where numerics are invariant a row has one value, and bits are compared. Where they are fast, kernels go by the number of rows in a step, and the same
 * row has several values, all of them right: products of int8 or f16 operands, sums in other orders. Those lie less than 1 % apart, but a router whose
 * experts were nearly even may choose another one, and from that layer on that row alone is 3 to 8 % off (250 tokens of the shipped model, int8 against
 * f32: median 0.5 %, 99 of 100 rows below 2.2 %, the worst 5.9 %). So a row that does not agree with its recomputation beside the others of its run is
 * computed once more as generation does it, alone; what agrees with neither is wrong. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "engine/arith.h"
#include "engine/capture.h"
#include "engine/delta.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"

/* However a row came about, it is no further from another computation of it than this: an expert of k that is swapped where two are even moves what the
 * routed ones add by sqrt(2 / k) of its norm, half of it for 8, and they are a part of what their layer adds, and that of the residual stream. */
static const double SWAPPED = 0.3;

struct check {
    struct engine *e;
    const struct session *x;
    int32_t *blocks; /* [n] of the conversation */
    uint32_t n;
    double tolerance;
    float *off;      /* [rows] how far a row is from the nearest computation of it */
    uint64_t rows, bad, alone;
    double worst;
    uint32_t layer, pos, rank; /* the first bad row: lowest layer, then position */
    bool found, index;
};

/* Published blocks that hold the beginning of a conversation, without taking references: nothing runs meanwhile. */
static uint32_t cached_blocks(struct engine *e, const struct session *x, int32_t *blocks)
{
    struct kv *kv = &e->rt->kv;
    uint64_t h = kv->era;
    uint32_t n = 0;
    while ((n + 1) * kv->block <= x->n) {
        h = kv_hash(h, x->tok + n * kv->block, x->kind + n * kv->block, kv->block);
        int32_t b = kv_find(kv, h);
        if (b < 0)
            break;
        kv_drop(kv, b);
        blocks[n++] = b;
    }
    return n;
}

/* A step per run of one kind; alone: each generated row in a step of its own. */
static enum rs_result recompute(struct capture *c, const struct session *x, uint32_t n, bool alone, struct rs_error *err)
{
    uint32_t chunk = capture_chunk(c->e);
    enum rs_result rc = RS_OK;
    for (uint32_t at = 0, to; at < n && rc == RS_OK; at = to) {
        const uint32_t most = alone && x->kind[at] == BATCH_GENERATED ? 1 : chunk;
        for (to = at + 1; to < n && x->kind[to] == x->kind[at] && to - at < most; to++)
            ;
        rc = capture_step(c, x->tok, at, to, (enum batch_kind)x->kind[at], false, err);
    }
    return rc;
}

static uint32_t kinds_of(const struct hparams *hp, uint32_t layer)
{
    return hp->index_heads != 0 && hp->index_full[layer] ? 2 : 1;
}

static uint64_t count_rows(const struct check *f)
{
    uint64_t n = 0;
    for (uint32_t layer = 0; layer < f->e->model->hp.n_layers; layer++)
        n += (uint64_t)f->n * kinds_of(&f->e->model->hp, layer) * f->e->rt->cfg.ranks * RUNTIME_BLOCK;
    return n;
}

/* How far apart the rows of the conversation and those of a capture are, to f->off; again: where they agreed with an earlier one they stay. */
static enum rs_result compare(struct check *f, const struct capture *c, bool again, struct rs_error *err)
{
    const struct hparams *hp = &f->e->model->hp;
    struct backend *b = f->e->rt->backend;
    size_t widest = hp->kv_lora + hp->rope > hp->index_dim ? hp->kv_lora + hp->rope : hp->index_dim;
    float *x = malloc(2 * widest * RUNTIME_BLOCK * sizeof *x), *y = x + widest * RUNTIME_BLOCK, *off = f->off;
    enum rs_result rc = x == NULL ? error_set(err, RS_ENOMEM, "out of memory for cache rows") : RS_OK;
    for (uint32_t layer = 0; layer < hp->n_layers; layer++)
        for (uint32_t i = 0; i < f->n * kinds_of(hp, layer); i++)
            for (uint32_t r = 0; r < f->e->rt->cfg.ranks && rc == RS_OK; r++) {
                const bool index = i >= f->n;
                const size_t width = index ? hp->index_dim : hp->kv_lora + hp->rope;
                rc = b->ops->cache_get(b, r, layer, index, f->blocks[i % f->n], x, err);
                if (rc == RS_OK)
                    rc = b->ops->cache_get(b, r, layer, index, c->table[i % f->n], y, err);
                for (uint32_t k = 0; k < RUNTIME_BLOCK && rc == RS_OK; k++, off++) {
                    struct tensor p = {1, (uint32_t)width, x + k * width}, q = {1, (uint32_t)width, y + k * width};
                    struct delta d;
                    delta_compare(&p, &q, 0, NULL, NULL, &d);
                    const float rel = d.different != 0 ? fmaxf((float)d.rel, FLT_MIN) : 0, now = delta_within(&d, INFINITY) ? rel : INFINITY;
                    *off = !again || ((double)*off > f->tolerance && (double)*off <= SWAPPED && now < *off) ? now : *off;
                }
            }
    free(x);
    return rc;
}

static enum rs_result compute_and_compare(struct check *f, bool alone, struct rs_error *err)
{
    struct capture_config cfg;
    struct capture c;
    enum rs_result rc = capture_config(f->e, NULL, &cfg, err);
    if (rc == RS_OK)
        rc = capture_open(f->e, &cfg, NULL, 0, f->n * RUNTIME_BLOCK, 1, &c, err);
    if (rc != RS_OK)
        return rc;
    rc = recompute(&c, f->x, f->n * RUNTIME_BLOCK, alone, err);
    if (rc == RS_OK)
        rc = compare(f, &c, alone, err);
    capture_close(&c);
    return rc;
}

/* Counts, the worst and the first that is bad. Returns how many are. */
static uint64_t judge(struct check *f)
{
    const struct hparams *hp = &f->e->model->hp;
    const float *off = f->off;
    f->bad = 0;
    f->worst = 0;
    f->found = false;
    for (uint32_t layer = 0; layer < hp->n_layers; layer++)
        for (uint32_t i = 0; i < f->n * kinds_of(hp, layer); i++)
            for (uint32_t r = 0; r < f->e->rt->cfg.ranks; r++)
                for (uint32_t k = 0; k < RUNTIME_BLOCK; k++, off++) {
                    f->worst = fmax(f->worst, (double)*off);
                    if ((double)*off <= f->tolerance)
                        continue;
                    f->bad++;
                    if (!f->found) {
                        f->layer = layer;
                        f->pos = i % f->n * RUNTIME_BLOCK + k;
                        f->rank = r;
                        f->index = i >= f->n;
                        f->found = true;
                    }
                }
    return f->bad;
}

static enum rs_result run(struct check *f, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    f->rows = count_rows(f);
    f->off = calloc(f->rows + 1, sizeof *f->off);
    if (f->off == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the distances of cache rows");
    for (uint32_t i = 0; i < f->n; i++) /* the recomputation allocates blocks: these must not be taken for it */
        kv_hold(&f->e->rt->kv, f->blocks[i]);
    if (f->n != 0)
        rc = compute_and_compare(f, false, err);
    const uint64_t bad = rc == RS_OK ? judge(f) : 0;
    if (bad != 0 && f->e->fast) {
        rc = compute_and_compare(f, true, err);
        f->alone = rc == RS_OK ? bad - judge(f) : 0;
    }
    for (uint32_t i = 0; i < f->n; i++)
        kv_drop(&f->e->rt->kv, f->blocks[i]);
    return rc;
}

/* By how much two right values of a row may differ where numerics are fast: what int8 operands, another order of sums or the cache's own type do from end
 * to end (docs/design.md, section 7). */
static double fast_tolerance(const struct engine *e)
{
    const struct program *p = &e->rt->prog;
    double most = e->rt->cfg.cache == KRN_CACHE_BF16 ? 1.4e-1 : 1e-3;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct choice *ch = &e->rt->choices[i];
        for (uint32_t r = 0; r < p->n_ranks; r++)
            if (arith_wanted(p, &p->ops[i], ch, r) == ARITH_INT8)
                most = fmax(most, 6e-2);
        if ((p->ops[i].kind == OP_ALLREDUCE && ch->bf16) || patch_is_user(e->patches.now.reg, ch->impl))
            most = fmax(most, 1e-2);
    }
    return most;
}

static enum rs_result msg_cache(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t id = 0;
    float asked;
    struct check f = {.e = e, .tolerance = NAN};
    args_need(a, args_u32(a, "session", 1, UINT32_MAX, &id), "session");
    if (args_f32(a, "tolerance", 0, 1, &asked))
        f.tolerance = (double)asked;
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    if (isnan(f.tolerance))
        f.tolerance = e->fast ? fast_tolerance(e) : 0;
    f.x = e->sessions;
    while (f.x != NULL && f.x->id != id)
        f.x = f.x->next;
    if (f.x == NULL)
        return error_set(err, RS_ENOTFOUND, "there is no session %u", id);
    f.blocks = calloc(f.x->n / RUNTIME_BLOCK + 1, sizeof *f.blocks);
    if (f.blocks == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a list of blocks");
    f.n = cached_blocks(e, f.x, f.blocks);
    rc = run(&f, err);
    free(f.blocks);
    free(f.off);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "tokens", json_integer(f.n * RUNTIME_BLOCK));
    json_object_set_new(m->reply, "of", json_integer(f.x->n));
    json_object_set_new(m->reply, "rows", json_integer((json_int_t)f.rows));
    json_object_set_new(m->reply, "bad", json_integer((json_int_t)f.bad));
    json_object_set_new(m->reply, "alone", json_integer((json_int_t)f.alone));
    json_object_set_new(m->reply, "worst", isfinite(f.worst) ? json_real(f.worst) : json_null());
    json_object_set_new(m->reply, "tolerance", json_real(f.tolerance));
    json_object_set_new(m->reply, "first", f.found ? json_pack("{s:i,s:i,s:i,s:s}", "layer", (int)f.layer, "pos", (int)f.pos, "rank", (int)f.rank, "cache",
                                                               f.index ? "indexer" : "latent") : json_null());
    return RS_OK;
}

const struct msg_method MSG_CACHE[] = {
    {"cache.check", true, msg_cache}, {NULL, false, NULL},
};
