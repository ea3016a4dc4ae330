/* Launching the list of ops: which kernel an op becomes, and which neighbours become one. The ledger of fusion:
 *
 *   allreduce, residual, norm            one join; for one row also over the copy of rows before the last norm
 *   q_norm, kv_store, q_b                one launch (q_b for one row); kv_store is done early, which nobody notices: its input is ready
 *   q_rope                               inside the attention's first kernel, written back in place
 *   q_norm, q_b, q_rope, kv_store, mla   one launch, for one row on one rank of a GPU where q_b is small; z stays without norm and rotation
 *   gate_up, act (and the shared expert) one launch
 *   exps.down, shexp.down                one launch
 *   head, gather                         one launch, for one row on one rank of a GPU: logits go to the host while they are made
 *
 * One row on one rank, where a reduce has nothing to sum:
 *
 *   out or down, allreduce, residual     the product adds itself to the residual stream
 *   norm, qkv_a                          every block of the projection norms the row for itself
 *   norm, router                         the same; the choice of experts is then made by every block of gate_up and of exps.down for itself
 *                                        (the choice also after a norm that was part of a join)
 *
 * Every fused kernel writes the buffers of all ops that it absorbs, so an observer sees them as if nothing were fused; where one does not (z above), it
 * is not taken while anybody looks. */
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_op.h"
#include "engine/error.h"

enum rs_result cuda_op_after(struct cuda_walk *w, cudaError_t e, uint32_t kernels)
{
    if (e != cudaSuccess)
        return error_set(w->err, RS_EENGINE, "GPU %d, op %s (%s:%d): %s", w->g->device, w->op->site, w->where.file, w->where.line,
                         cudaGetErrorString(e));
    if (w->l.stamp != NULL) {
        w->g->where[w->g->n_launched] = w->where;
        w->g->launched[w->g->n_launched++] = w->slot;
    }
    w->l.stamp = NULL;
    w->l.pdl = w->c->cfg.pdl;
    w->g->n_kernels += kernels;
    return RS_OK;
}

void cuda_op_arm(struct cuda_walk *w, const struct cuda_rank *r)
{
    w->slot = w->op->index * w->c->n_ranks + r->rank;
    w->l.stamp = w->c->cfg.no_stamps ? NULL : w->g->stamp + w->slot;
}

static uint64_t *ok_of(struct cuda_walk *w, const struct cuda_rank *r)
{
    return &w->q8_ok[r - w->g->local];
}

enum rs_result cuda_op_input(struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref, uint32_t k, bool int8, uint32_t n,
                             struct kcu_rows_in *in)
{
    *in = (struct kcu_rows_in){.x = cuda_op_at(w, r, ref), .pitch = cuda_op_pitch_of(w, r, ref->buf)};
    if (!int8 || r->q8[ref->buf] == NULL || ref->col != 0 || k % 32 != 0)
        return RS_OK;
    in->q8 = r->q8[ref->buf];
    in->q8_pitch = krn_q8_row_bytes(k);
    if ((*ok_of(w, r) >> ref->buf & 1) == 0) {
        CUDA_OP_RUN(kcu_quantise(&w->l, in, n, k, r->q8[ref->buf]));
        *ok_of(w, r) |= 1ull << ref->buf;
    }
    return RS_OK;
}

void cuda_op_set_q8(struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf, bool ok)
{
    *ok_of(w, r) = (*ok_of(w, r) & ~(1ull << buf)) | (uint64_t)ok << buf;
    if (w->half_of[cuda_op_half_place(buf)] == cuda_op_half_owner(w, r, buf))
        w->half_of[cuda_op_half_place(buf)] = 0;
}

enum rs_result cuda_op_halves(struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref, uint32_t k, uint32_t n, struct kcu_rows_in *in)
{
    const int place = cuda_op_half_place(ref->buf);
    *in = (struct kcu_rows_in){.x = cuda_op_at(w, r, ref),
                               .pitch = cuda_op_pitch_of(w, r, ref->buf),
                               .h = w->g->half[place],
                               .h_pitch = k,
                               .h_scale = w->g->half_scale[place]};
    if (w->half_of[place] != cuda_op_half_owner(w, r, ref->buf)) {
        CUDA_OP_RUN(kcu_halve(&w->l, in->x, in->pitch, k, n, w->g->half[place], k, w->g->half_scale[place]));
        cuda_op_halves_made(w, r, ref->buf);
    }
    return RS_OK;
}

bool cuda_op_takes_halves(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, uint32_t n)
{
    const bool two = op->kind == OP_QKV_A || op->kind == OP_GATE_UP || op->kind == OP_MOE_GATE_UP;
    if ((!two && op->kind != OP_LINEAR) || cuda_op_is_user(w, op))
        return false;
    const struct kcu_mat *a = cuda_op_mat(w, r, op, 0), *b = two ? cuda_op_mat(w, r, op, 1) : NULL;
    const bool int8 = w->s->choices[op->index].matmul == MATMUL_INT8 && (cuda_op_quantised(a) || (two && cuda_op_quantised(b)));
    return cuda_op_many(w, n, &op->in[0], int8, a, b);
}

uint16_t *cuda_op_halves_for(const struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf, const struct op *op, uint32_t n, float **scale)
{
    const int place = cuda_op_half_place(buf);
    if (!w->fuse || w->g->n_local != 1 || op == NULL || op->in[0].buf != buf || w->prog->width[buf][r->rank] % 16 != 0 || !cuda_op_takes_halves(w, r, op, n))
        return NULL;
    *scale = w->g->half_scale[place];
    return w->g->half[place];
}

void cuda_op_halves_made(struct cuda_walk *w, const struct cuda_rank *r, uint8_t buf)
{
    w->half_of[cuda_op_half_place(buf)] = cuda_op_half_owner(w, r, buf);
}

struct kcu_batch cuda_op_batch_of(const struct cuda_walk *w)
{
    const int32_t *m = w->g->meta, *here = w->g->meta_host + CUDA_META_LISTS;
    const uint32_t sorts = cuda_lists_sorts(w->s->batch); /* a graph serves all batches of these sorts: bounds, not numbers */
    return (struct kcu_batch){.pos = m + cuda_meta_pos(w->c),
                              .table = m + cuda_meta_table(w->c),
                              .tables = m + cuda_meta_tables(w->c),
                              .n = w->rows,
                              .max_keys = w->keys,
                              .block = w->c->lim.block,
                              .lists = m + CUDA_META_LISTS,
                              .prompt_tiles = (sorts & CUDA_PROMPT) == 0 ? 0
                                              : w->s->graph              ? w->rows
                                                                         : (uint32_t)here[0],
                              .generated = (sorts & CUDA_GENERATED) == 0 ? 0
                                           : w->s->graph                 ? w->rows
                                                                         : (uint32_t)here[2]};
}

struct kcu_rope cuda_op_rope_of(const struct cuda_walk *w)
{
    return (struct kcu_rope){.cos = w->g->rope_cos, .sin = w->g->rope_sin, .half = w->c->hp->rope / 2};
}

enum kcu_cache cuda_op_cache_of(const struct cuda_walk *w)
{
    return w->c->lim.cache == KRN_CACHE_F32 ? KCU_CACHE_F32 : w->c->lim.cache == KRN_CACHE_F16 ? KCU_CACHE_F16 : KCU_CACHE_BF16;
}

const struct op *cuda_op_ahead(const struct cuda_walk *w, uint32_t n)
{
    uint32_t i = w->op->index + n;
    return i < w->prog->n_ops ? &w->prog->ops[i] : NULL;
}

bool cuda_op_next_is(const struct cuda_walk *w, uint32_t n, enum op_kind kind)
{
    const struct op *o = cuda_op_ahead(w, n);
    return o != NULL && o->kind == kind;
}

bool cuda_op_many(const struct cuda_walk *w, uint32_t n, const struct op_ref *in, bool int8, const struct kcu_mat *a, const struct kcu_mat *b)
{
    return (n >= CUDA_MANY_ROWS || !w->s->fast) && int8 && in->col == 0 && (a->w == NULL || kcu_gemm_takes(a)) &&
           (b == NULL || b->w == NULL || kcu_gemm_takes(b));
}

bool cuda_op_observed(const struct cuda_walk *w, const struct op *op)
{
    const struct probe_set *ps = w->s->probes;
    for (uint32_t i = 0; ps != NULL && i < ps->n_copies; i++)
        if (ps->copies[i].op == op->index)
            return true;
    return ps != NULL && ps->n_obs != 0;
}

struct cuda_residual cuda_op_residual(struct cuda_walk *w, const struct cuda_rank *r, uint32_t n)
{
    const struct op *reduce = cuda_op_ahead(w, n), *add = cuda_op_ahead(w, n + 1);
    const uint8_t buf = w->op->out[0].buf;
    if (!w->fuse || w->c->n_ranks != 1 || w->c->lim.peers > 1 || w->c->lim.span != NULL || add == NULL || reduce->kind != OP_ALLREDUCE ||
        add->kind != OP_ADD || reduce->in[0].buf != buf || add->in[0].buf != buf || w->s->choices[reduce->index].delay_rank == 0 || cuda_op_is_user(w, add) || cuda_op_observed(w, w->op))
        return (struct cuda_residual){NULL, 0};
    w->done[reduce->index] = w->done[add->index] = true;
    return (struct cuda_residual){cuda_op_at(w, r, &add->out[0]), cuda_op_pitch_of(w, r, add->out[0].buf)};
}

struct kcu_norm cuda_op_norm(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *norm)
{
    if (norm == NULL)
        return (struct kcu_norm){.x = NULL};
    return (struct kcu_norm){.x = cuda_op_at(w, r, &norm->in[0]),
                             .w = cuda_op_vec(w, r, norm, 0),
                             .h = cuda_op_at(w, r, &norm->out[0]),
                             .q8 = r->q8[norm->out[0].buf],
                             .n = cuda_op_width_of(w, r, &norm->in[0]),
                             .eps = w->c->hp->eps};
}

void cuda_op_normed(struct cuda_walk *w, const struct cuda_rank *r)
{
    if (w->norm != NULL)
        cuda_op_set_q8(w, r, w->norm->out[0].buf, true);
    w->norm = NULL;
}

/* Leave the norm at hand to the op after it? */
static bool leave_norm(struct cuda_walk *w)
{
    const struct op *next = cuda_op_ahead(w, 1);
    struct cuda_rank *r = &w->g->local[0];
    if (!w->fuse || !w->s->fast || w->rows != 1 || w->g->n_local != 1 || next == NULL || w->op->in[0].buf != BUF_X ||
        next->in[0].buf != w->op->out[0].buf || cuda_op_is_user(w, next) || cuda_op_observed(w, w->op))
        return false;
    return next->kind == OP_QKV_A    ? cuda_op_slots_takes_norm(w, r, next, w->op)
           : next->kind == OP_ROUTER ? cuda_op_router_takes_norm(w, r, next, w->op)
                                     : false;
}

/* NextN: rows of the step before, through that step's last norm or as they are. */
static enum rs_result run_hidden(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op_ref *in = &w->op->in[0], *out = &w->op->out[0];
    const uint32_t width = cuda_op_width_of(w, r, out);
    struct kcu_join j = {.n_local = 1,
                         .part = {cuda_op_at(w, r, out)},
                         .h = {cuda_op_at(w, r, out)},
                         .part_pitch = cuda_op_pitch_of(w, r, out->buf),
                         .h_pitch = cuda_op_pitch_of(w, r, out->buf),
                         .w = cuda_op_vec(w, r, w->op, w->s->batch->chained ? 1 : 0),
                         .n = w->rows,
                         .width = width,
                         .eps = w->c->hp->eps,
                         .n_ranks = 1,
                         .n_gpus = 1};
    CUDA_OP_RUN(kcu_pick(&w->l, cuda_op_at(w, r, in), cuda_op_pitch_of(w, r, in->buf), w->g->meta + cuda_meta_from(w->c), w->rows, width,
                         j.part[0], j.part_pitch));
    if (strcmp(w->ch->impl->name, "raw") != 0)
        CUDA_OP_RUN(kcu_join(&w->l, &j));
    return RS_OK;
}

static enum rs_result run_one(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct hparams *hp = w->c->hp;
    const int32_t *meta = w->g->meta;
    const struct op_ref *out = &op->out[0];
    cuda_op_arm(w, r);
    switch (op->kind) {
    case OP_EMBED:
        CUDA_OP_RUN(kcu_rows(&w->l, cuda_op_mat(w, r, op, 0), meta + cuda_meta_token(), w->rows,
                             plan_view(w->prog, r->rank, op->w[0])->row0, cuda_op_at(w, r, out), cuda_op_pitch_of(w, r, out->buf),
                             cuda_op_width_of(w, r, out)));
        return RS_OK;
    case OP_QKV_A: return cuda_op_slots(w, r);
    case OP_LINEAR: return cuda_op_linear(w, r);
    case OP_ROPE_Q: {
        const struct shard_layer *s = shard_of(w->c->shard, (uint32_t)op->layer, r->rank);
        const struct kcu_batch b = cuda_op_batch_of(w);
        const struct kcu_rope rope = cuda_op_rope_of(w);
        if (s->heads.to > s->heads.from)
            CUDA_OP_RUN(kcu_rope_q(&w->l, &b, &rope, cuda_op_at(w, r, out), cuda_op_pitch_of(w, r, BUF_Q), s->heads.to - s->heads.from,
                                   hp->k_mla, hp->nope, true));
        return RS_OK;
    }
    case OP_KV_STORE: return cuda_op_latent(w, r, NULL, op);
    case OP_MLA: return cuda_op_mla(w, r);
    case OP_INDEX_Q:
    case OP_INDEX_STORE:
    case OP_INDEX_SCORES:
    case OP_INDEX_TOPK: return cuda_op_index(w, r);
    case OP_GATE_UP: return cuda_op_gate_up(w, r);
    case OP_ROUTER: return cuda_op_router(w, r);
    case OP_MOE_GATE_UP: return cuda_op_moe_gate_up(w, r);
    case OP_MOE_DOWN: return cuda_op_moe_down(w, r);
    case OP_SILU_MUL:
    case OP_MOE_SILU_MUL: return cuda_op_silu(w, r);
    case OP_PICK_ROWS:
        CUDA_OP_RUN(kcu_pick(&w->l, cuda_op_at(w, r, &op->in[0]), cuda_op_pitch_of(w, r, op->in[0].buf), meta + cuda_meta_logit(w->c),
                             w->n_logits, cuda_op_width_of(w, r, out), cuda_op_at(w, r, out), cuda_op_pitch_of(w, r, out->buf)));
        return RS_OK;
    case OP_GATHER: return cuda_logits_gather(w, r);
    case OP_HIDDEN: return run_hidden(w, r);
    default: return error_set(w->err, RS_EINTERNAL, "op %s has no CUDA kernel", op->site);
    }
}

/* Observers of all ops up to the one at hand, unless one of them is not complete yet. */
static enum rs_result run_probes(struct cuda_walk *w)
{
    const struct probe_set *ps = w->s->probes;
    while (ps != NULL && w->next_copy < ps->n_copies && ps->copies[w->next_copy].op <= w->op->index && !w->rotate) {
        const struct probe_copy *p = &ps->copies[w->next_copy++];
        const struct op_ref *ref = &w->prog->ops[p->op].out[0];
        float *to = w->g->bounce + w->bounce_at;
        w->bounce_at += p->width;
        if (p->rank < w->g->rank0 || p->rank >= w->g->rank0 + w->g->n_local)
            continue;
        struct cuda_rank *r = &w->g->local[p->rank - w->g->rank0];
        const uint32_t n = cuda_op_rows_of(w, ref->buf), row = p->row == UINT32_MAX ? w->s->batch->n_rows - 1 : p->row;
        const float *from = ref->buf == BUF_FULL ? w->c->full + (size_t)(row < n ? row : 0) * w->c->hp->vocab
                                                 : cuda_op_at(w, r, ref) + (size_t)row * cuda_op_pitch_of(w, r, ref->buf);
        cudaError_t e = cudaMemcpyAsync(to, from, p->width * sizeof *to, cudaMemcpyDefault, w->l.stream);
        w->l.pdl = false;
        if (e != cudaSuccess)
            return error_set(w->err, RS_EENGINE, "GPU %d, observing %s: %s", w->g->device, w->prog->ops[p->op].site, cudaGetErrorString(e));
    }
    return RS_OK;
}

/* Is the attention that the rotation at hand is for going to be missing from the graph, or somebody else's? */
static bool leaves_alone(const struct cuda_walk *w)
{
    uint32_t n = 1;
    while (cuda_op_ahead(w, n) != NULL && !cuda_op_next_is(w, n, OP_MLA))
        n++;
    const struct op *mla = cuda_op_ahead(w, n);
    return mla != NULL && (cuda_op_aside(w, mla) || cuda_op_is_user(w, mla));
}

static enum rs_result run_op(struct cuda_walk *w)
{
    const bool fuse = w->fuse;
    const struct op *op = w->op;
    if (w->done[op->index])
        return RS_OK;
    if (cuda_op_is_user(w, op)) {
        enum rs_result rc = RS_OK;
        for (uint32_t i = 0; i < w->g->n_local && rc == RS_OK; i++) {
            cuda_op_arm(w, &w->g->local[i]);
            rc = cuda_op_user(w, &w->g->local[i]);
        }
        return rc;
    }
    if (op->kind == OP_ROPE_Q && fuse && !leaves_alone(w)) {
        w->rotate = true; /* the attention of this layer does it */
        w->rotate_op = op->index;
        return RS_OK;
    }
    if (op->kind == OP_RMSNORM && leave_norm(w)) {
        w->norm = op;
        return RS_OK;
    }
    if (cuda_op_join_begins(w))
        return cuda_op_join(w);
    const bool with_kv = op->kind == OP_RMSNORM && fuse && cuda_op_next_is(w, 3, OP_KV_STORE) && !cuda_op_is_user(w, op + 3);
    if (op->kind == OP_RMSNORM) {
        for (uint32_t i = 0; i < w->g->n_local; i++) {
            cuda_op_arm(w, &w->g->local[i]);
            enum rs_result rc = cuda_op_latent(w, &w->g->local[i], op, with_kv ? cuda_op_ahead(w, 3) : NULL);
            if (rc != RS_OK)
                return rc;
        }
        w->done[op->index + 3] |= with_kv;
        return RS_OK;
    }
    for (uint32_t i = 0; i < w->g->n_local; i++) {
        struct cuda_rank *r = &w->g->local[i];
        for (uint32_t o = 0; o < OP_MAX_OUT; o++)
            if (op->out[o].buf != BUF_NONE)
                cuda_op_set_q8(w, r, op->out[o].buf, false);
        enum rs_result rc = run_one(w, r);
        if (rc != RS_OK)
            return rc;
    }
    if (op->kind == OP_MLA)
        w->rotate = false;
    return RS_OK;
}

/* Must a row's result not depend on the number of rows? Where short prompts are kernels for few rows, which round weights to f16, are left out as well. */
static bool fixed_rows(const struct backend_step *s, uint32_t rows)
{
    return !s->fast || (rows < CUDA_MANY_ROWS && (cuda_lists_sorts(s->batch) & CUDA_PROMPT) != 0);
}

static void begin(struct cuda_walk *w, struct cuda_gpu *g, const struct backend_step *s, uint32_t rows, uint32_t keys, struct rs_error *err)
{
    *w = (struct cuda_walk){.g = g,
                            .c = g->c,
                            .s = s,
                            .prog = s->prog,
                            .p = cuda_prog(g->c, s->prog),
                            .rows = rows,
                            .keys = keys,
                            .n_logits = cuda_lists_logits(g->c, s),
                            .l = {.stream = g->stream, .fixed = fixed_rows(s, rows)},
                            .fuse = g->c->cfg.fuse,
                            .err = err};
    g->n_launched = g->n_kernels = 0;
    for (uint32_t i = 0; i < g->n_local; i++)
        memset(g->local[i].arith[w->p], ARITH_NONE, s->prog->n_ops);
}

static enum rs_result walk_op(struct cuda_walk *w, uint32_t i)
{
    w->op = &w->prog->ops[i];
    w->ch = &w->s->choices[i];
    enum rs_result rc = run_op(w);
    if (rc == RS_OK && w->op->kind == OP_MLA && w->rotate_op >= 0) { /* q_rope has been done by now */
        const int rotated = w->rotate_op;
        w->rotate_op = -1;
        rc = cuda_probe_at(w, rotated);
    }
    if (rc == RS_OK && !(w->op->kind == OP_ROPE_Q && w->rotate))
        rc = cuda_probe_at(w, (int)i);
    return rc == RS_OK ? run_probes(w) : rc;
}

static enum rs_result end(struct cuda_walk *w)
{
    struct cuda_gpu *g = w->g;
    w->l.stamp = g->stamp + (size_t)g->c->cap_ops * g->c->n_ranks;
    g->n_reduces = w->ordinal;
    cudaError_t e = kcu_stamp(&w->l);
    g->n_kernels++;
    return e == cudaSuccess ? RS_OK : cuda_fail(w->err, e, "end of step", g->device);
}

enum rs_result cuda_launch_step(struct cuda_gpu *g, const struct backend_step *s, uint32_t rows, uint32_t keys, struct rs_error *err)
{
    struct cuda_walk w;
    begin(&w, g, s, rows, keys, err);
    if (s->prog->n_ops > sizeof w.done / sizeof w.done[0])
        return error_set(err, RS_EUNSUPPORTED, "a program of %u ops; the CUDA backend takes %zu", s->prog->n_ops,
                         sizeof w.done / sizeof w.done[0]);
    w.rotate_op = -1;
    enum rs_result rc = cuda_probe_at(&w, -1);
    for (uint32_t i = 0; i < s->prog->n_ops && rc == RS_OK; i++)
        rc = walk_op(&w, i);
    return rc == RS_OK ? end(&w) : rc;
}

enum rs_result cuda_launch_begin(struct cuda_gpu *g, const struct backend_step *s, uint32_t rows, uint32_t keys, struct rs_error *err)
{
    if (g->walk == NULL && (g->walk = malloc(sizeof *g->walk)) == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a step");
    begin(g->walk, g, s, rows, keys, err);
    g->walk->fuse = false;
    g->walk->rotate_op = -1;
    return cuda_probe_at(g->walk, -1);
}

enum rs_result cuda_launch_op(struct cuda_gpu *g, uint32_t op)
{
    memset(g->walk->q8_ok, 0, sizeof g->walk->q8_ok); /* somebody may have written to what the int8 and f16 forms are of */
    memset(g->walk->half_of, 0, sizeof g->walk->half_of);
    g->walk->l.pdl = false;
    return walk_op(g->walk, op);
}

enum rs_result cuda_launch_end(struct cuda_gpu *g)
{
    return end(g->walk);
}
