/* Launching the list of ops: which kernel an op becomes, and which neighbours become one. The ledger of fusion:
 *
 *   allreduce, residual, norm            one join
 *   q_norm, kv_store, q_b                one launch (q_b for one row); kv_store is done early, which nobody notices: its input is ready
 *   q_rope                               inside the attention's first kernel, written back in place
 *   gate_up, act (and the shared expert) one launch
 *   exps.down, shexp.down                one launch
 *
 * Every fused kernel writes the buffers of all ops that it absorbs, so an observer sees them as if nothing were fused. */
#include <string.h>

#include "engine/comm_nccl.h"
#include "engine/cuda.h"
#include "engine/error.h"
#include "kernels/quant.h"

struct walk {
    struct cuda_gpu *g;
    const struct cuda *c;
    const struct backend_step *s;
    const struct program *prog;
    int p; /* which program */
    uint32_t rows, keys;
    struct kcu_launch l;
    uint32_t slot;                 /* of the stamp in l */
    uint32_t ordinal;              /* of the next reduce */
    bool rotate;                   /* q_rope waits for the attention */
    bool done[2048];               /* ops that were computed with an earlier one */
    uint64_t q8_ok[KCU_MAX_LOCAL]; /* bit per buffer: its int8 form is current */
    uint32_t next_copy;
    size_t bounce_at;
    const struct op *op;
    const struct choice *ch;
    struct rs_error *err;
};

static enum rs_result after(struct walk *w, cudaError_t e, uint32_t kernels)
{
    if (e != cudaSuccess)
        return error_set(w->err, RS_EENGINE, "GPU %d, op %s: %s", w->g->device, w->op->site, cudaGetErrorString(e));
    if (w->l.stamp != NULL)
        w->g->launched[w->g->n_launched++] = w->slot;
    w->l.stamp = NULL;
    w->l.pdl = w->c->cfg.pdl;
    w->g->n_kernels += kernels;
    return RS_OK;
}

#define RUN(call)                                                                                                                          \
    do {                                                                                                                                   \
        enum rs_result rc_ = after(w, (call), 1);                                                                                          \
        if (rc_ != RS_OK)                                                                                                                  \
            return rc_;                                                                                                                    \
    } while (0)

static void arm(struct walk *w, const struct cuda_rank *r)
{
    w->slot = w->op->index * w->c->n_ranks + r->rank;
    w->l.stamp = w->g->stamp + w->slot;
}

static uint32_t rows_of(const struct walk *w, uint8_t buf)
{
    return buf == BUF_Y || buf == BUF_LOGITS || buf == BUF_FULL ? w->s->batch->n_logits : w->rows;
}

static size_t pitch_of(const struct walk *w, const struct cuda_rank *r, uint8_t buf)
{
    return w->prog->width[buf][r->rank];
}

static float *at(const struct walk *w, const struct cuda_rank *r, const struct op_ref *ref)
{
    (void)w;
    return r->buf[ref->buf] + ref->col;
}

static uint32_t width_of(const struct walk *w, const struct cuda_rank *r, const struct op_ref *ref)
{
    return ref->width != 0 ? ref->width : w->prog->width[ref->buf][r->rank];
}

static const struct kcu_mat *mat(const struct walk *w, const struct cuda_rank *r, const struct op *op, uint32_t i)
{
    return &r->mat[w->p][op->w[i]];
}

static const float *vec(const struct walk *w, const struct cuda_rank *r, const struct op *op, uint32_t i)
{
    return (const float *)(const void *)mat(w, r, op, i)->w;
}

static uint64_t *ok_of(struct walk *w, const struct cuda_rank *r)
{
    return &w->q8_ok[r - w->g->local];
}

static bool quantised(const struct kcu_mat *m)
{
    return m->w != NULL && m->type != KRN_F32 && m->type != KRN_F16 && m->type != KRN_BF16;
}

/* The op's input of width k, with its int8 form where a matrix can use it; made now if no kernel has made it. */
static enum rs_result input(struct walk *w, struct cuda_rank *r, const struct op_ref *ref, uint32_t k, bool int8, uint32_t n,
                            struct kcu_rows_in *in)
{
    *in = (struct kcu_rows_in){.x = at(w, r, ref), .pitch = pitch_of(w, r, ref->buf)};
    if (!int8 || r->q8[ref->buf] == NULL || ref->col != 0 || k % 32 != 0)
        return RS_OK;
    in->q8 = r->q8[ref->buf];
    in->q8_pitch = krn_q8_row_bytes(k);
    if ((*ok_of(w, r) >> ref->buf & 1) == 0) {
        RUN(kcu_quantise(&w->l, in, n, k, r->q8[ref->buf]));
        *ok_of(w, r) |= 1ull << ref->buf;
    }
    return RS_OK;
}

static void set_q8(struct walk *w, const struct cuda_rank *r, uint8_t buf, bool ok)
{
    *ok_of(w, r) = (*ok_of(w, r) & ~(1ull << buf)) | (uint64_t)ok << buf;
}

static struct kcu_batch batch_of(const struct walk *w)
{
    const int32_t *m = w->g->meta;
    return (struct kcu_batch){.pos = m + cuda_meta_pos(w->c),
                              .table = m + cuda_meta_table(w->c),
                              .tables = m + cuda_meta_tables(w->c),
                              .n = w->rows,
                              .max_keys = w->keys,
                              .block = w->c->lim.block};
}

static struct kcu_rope rope_of(const struct walk *w)
{
    return (struct kcu_rope){.cos = w->g->rope_cos, .sin = w->g->rope_sin, .half = w->c->hp->rope / 2};
}

static enum kcu_cache cache_of(const struct walk *w)
{
    return w->c->lim.cache == KRN_CACHE_F32 ? KCU_CACHE_F32 : w->c->lim.cache == KRN_CACHE_F16 ? KCU_CACHE_F16 : KCU_CACHE_BF16;
}

static const struct op *ahead(const struct walk *w, uint32_t n)
{
    uint32_t i = w->op->index + n;
    return i < w->prog->n_ops ? &w->prog->ops[i] : NULL;
}

static bool next_is(const struct walk *w, uint32_t n, enum op_kind kind)
{
    const struct op *o = ahead(w, n);
    return o != NULL && o->kind == kind;
}

/* ---- reduce, residual, norm ---- */

static bool same_ref(const struct op_ref *a, const struct op_ref *b)
{
    return a->buf == b->buf && a->col == b->col;
}

static enum rs_result nccl_sum(struct walk *w, struct cuda_rank *r, const struct op_ref *ref, bool bf16)
{
    const size_t n = (size_t)w->rows * width_of(w, r, ref);
    if (w->g->n_local != 1)
        return error_set(w->err, RS_EUNSUPPORTED, "op %s: allreduce=nccl takes one rank per GPU; use flat", w->op->site);
    if (bf16)
        RUN(kcu_to_bf16(&w->l, at(w, r, ref), w->g->payload, n));
    enum rs_result rc = comm_nccl_sum(w->g->nccl, bf16 ? (void *)w->g->payload : (void *)at(w, r, ref), n, bf16, w->l.stream, w->err);
    if (rc != RS_OK)
        return rc;
    w->l.pdl = false; /* what follows depends on NCCL's kernel, which does not take part */
    w->g->n_kernels++;
    if (bf16)
        RUN(kcu_from_bf16(&w->l, w->g->payload, at(w, r, ref), n));
    return RS_OK;
}

static void fill_reduce(struct walk *w, struct kcu_join *j)
{
    const struct cuda *c = w->c;
    j->reduce = true;
    j->bf16 = w->ch->bf16;
    j->n_ranks = c->n_ranks;
    j->rank0 = w->g->rank0;
    j->n_gpus = c->n_gpus;
    j->gpu = w->g->index;
    memcpy(j->gpu_of, c->gpu_of, sizeof c->gpu_of);
    for (uint32_t i = 0; i < c->n_gpus; i++)
        j->recv[i] = c->gpu[i].recv;
    if (c->cfg.only_rank >= 0) {
        j->stand_in = true;
        j->n_gpus = c->n_ranks;
    }
    j->slot_packets = c->slot_packets;
    j->epoch = (const uint32_t *)w->g->meta;
    j->fault = c->fault + w->g->index;
    j->timeout_ns = 10ull * 1000 * 1000 * 1000;
    j->delay_rank = w->ch->delay_rank;
    j->delay_ns = w->ch->delay_rank >= 0 ? (uint32_t)(w->ch->delay_us * 1000.0f) : 0;
    j->ready = w->g->ready + w->op->index;
    j->done = w->g->done + w->op->index;
}

/* From the op at hand on: all-reduce, add and norm as far as they follow each other; without fusing only the first. */
static enum rs_result run_join(struct walk *w)
{
    const struct op *reduce = w->op->kind == OP_ALLREDUCE ? w->op : NULL, *add = NULL, *norm = NULL;
    const struct op_ref *from = &w->op->in[0], *now = from;
    uint32_t n = reduce != NULL, gpus_apart = w->c->n_gpus > 1 || w->c->cfg.only_rank >= 0;
    if ((n == 0 || w->c->cfg.fuse) && next_is(w, n, OP_ADD) && same_ref(&ahead(w, n)->in[0], now)) {
        add = ahead(w, n++);
        now = &add->out[0];
    }
    if ((n == 0 || w->c->cfg.fuse) && next_is(w, n, OP_RMSNORM) && same_ref(&ahead(w, n)->in[0], now))
        norm = ahead(w, n++);
    for (uint32_t i = 1; i < n; i++)
        w->done[w->op->index + i] = true;
    arm(w, &w->g->local[0]);
    if (reduce != NULL && strcmp(w->ch->impl->name, "nccl") == 0 && w->c->n_gpus > 1) {
        enum rs_result rc = nccl_sum(w, &w->g->local[0], from, w->ch->bf16);
        if (rc != RS_OK)
            return rc;
        reduce = NULL;
    } else if (reduce != NULL && w->c->n_ranks == 1 && w->ch->delay_rank != 0) {
        reduce = NULL;
    }
    if (reduce == NULL && add == NULL && norm == NULL)
        return RS_OK;
    const uint32_t rows = rows_of(w, from->buf), step = reduce != NULL && gpus_apart ? CUDA_RECV_ROWS : rows;
    struct kcu_join j = {.n_local = w->g->n_local,
                         .eps = w->c->hp->eps,
                         .width = width_of(w, &w->g->local[0], norm != NULL ? &norm->in[0] : from),
                         .n_ranks = 1,
                         .n_gpus = 1};
    if (reduce != NULL)
        fill_reduce(w, &j);
    if (norm != NULL)
        j.w = vec(w, &w->g->local[0], norm, 0);
    for (uint32_t row = 0; row < rows; row += step) {
        j.n = rows - row < step ? rows - row : step;
        for (uint32_t i = 0; i < w->g->n_local; i++) {
            struct cuda_rank *r = &w->g->local[i];
            j.part_pitch = pitch_of(w, r, from->buf);
            j.part[i] = at(w, r, from) + row * j.part_pitch;
            if (add != NULL) {
                j.x_pitch = pitch_of(w, r, add->out[0].buf);
                j.x[i] = at(w, r, &add->out[0]) + row * j.x_pitch;
            }
            if (norm == NULL)
                continue;
            const struct op_ref *out = &norm->out[0];
            const bool q8 = r->q8[out->buf] != NULL && out->width == 0 && j.width % 32 == 0;
            j.h_pitch = pitch_of(w, r, out->buf);
            j.h[i] = at(w, r, out) + row * j.h_pitch;
            j.q8_pitch = krn_q8_row_bytes((j.width + 31) / 32 * 32);
            j.q8[i] = q8 ? r->q8[out->buf] + row * j.q8_pitch : NULL;
            set_q8(w, r, out->buf, q8);
        }
        j.ordinal = w->ordinal;
        RUN(kcu_join(&w->l, &j));
        w->ordinal += reduce != NULL && gpus_apart;
    }
    return RS_OK;
}

/* ---- products ---- */

/* Enough rows and an int8 form that the tensor cores' kernel takes? */
static bool many(uint32_t n, const uint8_t *q8, const struct kcu_mat *a, const struct kcu_mat *b)
{
    return n >= CUDA_MANY_ROWS && q8 != NULL && (a->w == NULL || kcu_gemm_takes(a)) && (b == NULL || b->w == NULL || kcu_gemm_takes(b));
}

static enum rs_result run_linear(struct walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct kcu_mat *m = mat(w, r, op, 0);
    const struct op_ref *out = &op->out[0];
    struct kcu_linear a = {
        .n_mats = 1, .n = rows_of(w, out->buf), .y = at(w, r, out), .y_pitch = pitch_of(w, r, out->buf), .accumulate = op->accumulate};
    if (m->w == NULL) {
        if (out->layout == OP_PARTIAL && !op->accumulate)
            RUN(kcu_zero(&w->l, a.y, a.y_pitch, width_of(w, r, out), a.n));
        return RS_OK;
    }
    a.m[0] = *m;
    enum rs_result rc = input(w, r, &op->in[0], m->k, w->ch->matmul == MATMUL_INT8 && quantised(m), a.n, &a.in);
    if (rc != RS_OK)
        return rc;
    if (many(a.n, a.in.q8, m, NULL))
        RUN(kcu_gemm(&w->l, &a));
    else
        RUN(kcu_linear(&w->l, &a));
    return RS_OK;
}

/* Two slots side by side, joined by slot or by file order; apart: as two launches. */
static enum rs_result run_slots(struct walk *w, struct cuda_rank *r, bool apart)
{
    const struct op *op = w->op;
    const struct kcu_mat *a0 = mat(w, r, op, 0), *a1 = mat(w, r, op, 1);
    struct kcu_linear a = {.n_mats = 2, .n = w->rows, .y = at(w, r, &op->out[0]), .y_pitch = pitch_of(w, r, op->out[0].buf)};
    uint32_t k = a0->w != NULL ? a0->k : a1->k, col = 0;
    if (a0->w == NULL && a1->w == NULL)
        return RS_OK;
    enum rs_result rc = input(w, r, &op->in[0], k, w->ch->matmul == MATMUL_INT8 && (quantised(a0) || quantised(a1)), a.n, &a.in);
    if (rc != RS_OK)
        return rc;
    for (uint32_t p = 0; p < 2; p++) {
        a.m[p] = *mat(w, r, op, w->ch->file_order && !apart ? op->file_slot[p] : p);
        a.col[p] = col;
        col += a.m[p].rows;
    }
    if (many(a.n, a.in.q8, &a.m[0], &a.m[1]))
        return after(w, kcu_gemm(&w->l, &a), 2);
    if (!apart) {
        RUN(kcu_linear(&w->l, &a));
        return RS_OK;
    }
    for (uint32_t p = 0; p < 2; p++) {
        struct kcu_linear one = a;
        one.n_mats = 1;
        one.m[0] = a.m[p];
        one.col[0] = a.col[p];
        if (one.m[0].w != NULL)
            RUN(kcu_linear(&w->l, &one));
    }
    return RS_OK;
}

/* The gated projection of op i with its activation op i + 1. */
static enum rs_result fill_gated(struct walk *w, struct cuda_rank *r, const struct op *op, const struct choice *ch, struct kcu_gated *a)
{
    const struct kcu_mat *gate = mat(w, r, op, 0), *up = mat(w, r, op, 1);
    const struct op *act = &w->prog->ops[op->index + 1];
    const uint8_t gu = op->out[0].buf, to = act->out[0].buf;
    *a = (struct kcu_gated){.gate = *gate,
                            .up = *up,
                            .n = w->rows,
                            .n_used = 1,
                            .swapped = ch->file_order && op->file_slot[0] == 1,
                            .gu = at(w, r, &op->out[0]),
                            .gu_pitch = pitch_of(w, r, gu),
                            .act = at(w, r, &act->out[0]),
                            .act_pitch = pitch_of(w, r, to)};
    if (op->per_pair) {
        const float *choice = r->buf[BUF_CHOICE];
        a->n_used = w->c->hp->n_used;
        a->ids = (const int32_t *)(const void *)choice;
        a->ids_pitch = w->prog->width[BUF_CHOICE][r->rank];
        a->expert0 = shard_of(w->c->shard, (uint32_t)op->layer, r->rank)->experts.from;
    }
    if (gate->w == NULL)
        return RS_OK;
    if (gate->rows % 32 == 0 && r->q8[to] != NULL) {
        a->q8 = r->q8[to];
        a->q8_pitch = krn_q8_row_bytes(gate->rows);
    }
    set_q8(w, r, to, a->q8 != NULL);
    return input(w, r, &op->in[0], gate->k, ch->matmul == MATMUL_INT8 && (quantised(gate) || quantised(up)), w->rows, &a->in);
}

static bool probed(const struct walk *w, const struct op *op)
{
    for (uint32_t i = 0; w->s->probes != NULL && i < w->s->probes->n_copies; i++)
        if (w->s->probes->copies[i].op == op->index)
            return true;
    return false;
}

/* Gate and up as two products of many rows, then the activation. */
static enum rs_result gated_many(struct walk *w, struct cuda_rank *r, const struct kcu_gated *a)
{
    const uint32_t pairs = a->n * a->n_used;
    struct kcu_linear l = {.n_mats = 2,
                           .m = {a->gate, a->up},
                           .col = {a->swapped ? a->gate.rows : 0, a->swapped ? 0 : a->gate.rows},
                           .in = a->in,
                           .n = a->n,
                           .y = a->gu,
                           .y_pitch = a->gu_pitch};
    enum rs_result rc;
    if (a->ids == NULL) {
        rc = after(w, kcu_gemm(&w->l, &l), 2);
    } else {
        RUN(kcu_group(&w->l, a->ids, a->ids_pitch, a->n, a->n_used, a->expert0, a->gate.n_mats, r->plan));
        for (int i = 0; i < 2; i++)
            RUN(kcu_gemm_grouped(&w->l, &l.m[i], a->in.q8, a->in.q8_pitch, false, a->n, a->n_used, r->plan, a->gu + l.col[i], a->gu_pitch));
        rc = RS_OK;
    }
    if (rc == RS_OK)
        RUN(kcu_act(&w->l, a->gu, a->gu_pitch, a->gate.rows, pairs, a->act, a->act_pitch, a->q8, a->q8_pitch));
    return rc;
}

/* Dense FFN, or the shared expert when it was not taken along with the experts. */
static enum rs_result run_gate_up(struct walk *w, struct cuda_rank *r)
{
    struct kcu_gated a;
    enum rs_result rc = fill_gated(w, r, w->op, w->ch, &a);
    w->done[w->op->index + 1] = true;
    if (rc != RS_OK || a.gate.w == NULL)
        return rc;
    if (a.q8 != NULL && many(a.n, a.in.q8, &a.gate, &a.up))
        return gated_many(w, r, &a);
    RUN(kcu_gated(&w->l, NULL, &a));
    return RS_OK;
}

static enum rs_result run_moe_gate_up(struct walk *w, struct cuda_rank *r)
{
    struct kcu_gated a, b = {.n = 0};
    const bool shared = w->c->cfg.fuse && next_is(w, 3, OP_GATE_UP) && ahead(w, 3)->layer == w->op->layer && w->rows < CUDA_MANY_ROWS;
    enum rs_result rc = fill_gated(w, r, w->op, w->ch, &a);
    if (rc == RS_OK && a.gate.w != NULL && a.q8 != NULL && many(a.n, a.in.q8, &a.gate, &a.up)) {
        w->done[w->op->index + 1] = true;
        return gated_many(w, r, &a);
    }
    if (rc == RS_OK && shared)
        rc = fill_gated(w, r, ahead(w, 3), &w->s->choices[w->op->index + 3], &b);
    if (rc != RS_OK)
        return rc;
    RUN(kcu_gated(&w->l, &a, shared ? &b : NULL));
    w->done[w->op->index + 1] = true;
    if (shared)
        w->done[w->op->index + 3] = w->done[w->op->index + 4] = true;
    return RS_OK;
}

/* Has this layer's gate and up left a plan, that is, were they products of many rows too? */
static bool grouped(const struct walk *w, const struct cuda_rank *r, const struct op *down)
{
    const struct op *gu = &w->prog->ops[down->index - 2];
    const struct kcu_mat *gate = mat(w, r, gu, 0), *up = mat(w, r, gu, 1);
    return w->s->choices[gu->index].matmul == MATMUL_INT8 && gate->rows % 32 == 0 && kcu_gemm_takes(gate) && kcu_gemm_takes(up);
}

static enum rs_result run_moe_down(struct walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op, *shexp = ahead(w, 3);
    const struct kcu_mat *m = mat(w, r, op, 0);
    const uint32_t n_used = w->c->hp->n_used;
    const float *choice = r->buf[BUF_CHOICE];
    struct kcu_down a = {.down = *m,
                         .n = w->rows,
                         .n_used = n_used,
                         .expert0 = shard_of(w->c->shard, (uint32_t)op->layer, r->rank)->experts.from,
                         .ids = (const int32_t *)(const void *)choice,
                         .weights = choice + n_used,
                         .ids_pitch = w->prog->width[BUF_CHOICE][r->rank],
                         .y = at(w, r, &op->out[0]),
                         .y_pitch = pitch_of(w, r, op->out[0].buf),
                         .width = width_of(w, r, &op->out[0])};
    enum rs_result rc = RS_OK;
    if (m->w != NULL)
        rc = input(w, r, &op->in[0], m->k, w->ch->matmul == MATMUL_INT8 && quantised(m), w->rows * n_used, &a.act);
    if (rc == RS_OK && m->w != NULL && many(w->rows, a.act.q8, m, NULL)) {
        if (w->rows != 0 && !grouped(w, r, op))
            RUN(kcu_group(&w->l, a.ids, a.ids_pitch, a.n, n_used, a.expert0, m->n_mats, r->plan));
        RUN(kcu_gemm_grouped(&w->l, m, a.act.q8, a.act.q8_pitch, true, a.n, n_used, r->plan, w->g->pairs, a.width));
        RUN(kcu_combine(&w->l, w->g->pairs, a.width, &a));
        return RS_OK;
    }
    if (rc == RS_OK && w->c->cfg.fuse && w->done[op->index + 1] && shexp != NULL && shexp->kind == OP_LINEAR && shexp->accumulate &&
        !probed(w, op)) {
        const struct choice *ch = &w->s->choices[shexp->index];
        a.shared = *mat(w, r, shexp, 0);
        if (a.shared.w != NULL)
            rc = input(w, r, &shexp->in[0], a.shared.k, ch->matmul == MATMUL_INT8 && quantised(&a.shared), w->rows, &a.shared_act);
        w->done[shexp->index] = true;
    }
    if (rc == RS_OK)
        RUN(kcu_down(&w->l, &a));
    return rc;
}

static enum rs_result run_router(struct walk *w, struct cuda_rank *r)
{
    const struct hparams *hp = w->c->hp;
    const struct op *op = w->op;
    float *choice = at(w, r, &op->out[1]);
    struct kcu_route a = {.gate = *mat(w, r, op, 0),
                          .bias = vec(w, r, op, 1),
                          .x = at(w, r, &op->in[0]),
                          .x_pitch = pitch_of(w, r, op->in[0].buf),
                          .n = w->rows,
                          .n_experts = hp->n_experts,
                          .n_used = hp->n_used,
                          .n_groups = hp->n_groups,
                          .n_groups_used = hp->n_groups_used,
                          .sigmoid = hp->gating == HP_GATING_SIGMOID,
                          .norm = hp->expert_norm,
                          .scale = hp->expert_scale,
                          .p = at(w, r, &op->out[0]),
                          .p_pitch = pitch_of(w, r, op->out[0].buf),
                          .ids = (int32_t *)(void *)choice,
                          .weights = choice + hp->n_used,
                          .pitch = pitch_of(w, r, op->out[1].buf),
                          .arrived = r->arrived};
    RUN(kcu_route(&w->l, &a));
    return RS_OK;
}

/* ---- attention ---- */

static enum rs_result run_latent(struct walk *w, struct cuda_rank *r, const struct op *q, const struct op *kv)
{
    const struct hparams *hp = w->c->hp;
    struct kcu_latent a = {.b = batch_of(w),
                           .rope = rope_of(w),
                           .z = r->buf[BUF_Z],
                           .z_pitch = pitch_of(w, r, BUF_Z),
                           .eps = hp->eps,
                           .l = hp->kv_lora,
                           .r = hp->rope,
                           .cache_type = cache_of(w)};
    if (q != NULL) {
        a.q_col = q->in[0].col;
        a.q_width = q->in[0].width;
        a.q_norm = vec(w, r, q, 0);
        a.qr = r->buf[BUF_QR];
        a.qr_pitch = pitch_of(w, r, BUF_QR);
        a.q8 = a.q_width % 32 == 0 ? r->q8[BUF_QR] : NULL;
        a.q8_pitch = krn_q8_row_bytes((a.q_width + 31) / 32 * 32);
        set_q8(w, r, BUF_QR, a.q8 != NULL);
    }
    if (kv != NULL) {
        a.store = true;
        a.kv_col = kv->in[0].col;
        a.kv_norm = vec(w, r, kv, 0);
        a.cache = r->kv[kv->layer];
    }
    const struct op *next = q != NULL ? &w->prog->ops[q->index + 1] : NULL;
    const struct kcu_mat *m = next != NULL && kv != NULL && next->kind == OP_LINEAR ? mat(w, r, next, 0) : NULL;
    if (m != NULL && w->s->choices[next->index].matmul == MATMUL_INT8 && kcu_latent_linear_takes(&a, m)) {
        RUN(kcu_latent_linear(&w->l, &a, m, at(w, r, &next->out[0])));
        w->done[next->index] = true;
        return RS_OK;
    }
    RUN(kcu_latent(&w->l, &a));
    return RS_OK;
}

static enum rs_result run_mla(struct walk *w, struct cuda_rank *r)
{
    const struct hparams *hp = w->c->hp;
    const struct op *op = w->op;
    const struct shard_layer *s = shard_of(w->c->shard, (uint32_t)op->layer, r->rank);
    struct kcu_mla a = {.b = batch_of(w),
                        .rope = rope_of(w),
                        .rotate = w->rotate,
                        .q = at(w, r, &op->in[0]),
                        .q_pitch = pitch_of(w, r, BUF_Q),
                        .heads = s->heads.to - s->heads.from,
                        .nope = hp->nope,
                        .l = hp->kv_lora,
                        .r = hp->rope,
                        .v = hp->v_head,
                        .k_b = *mat(w, r, op, 0),
                        .v_b = *mat(w, r, op, 1),
                        .cache = r->kv[op->layer],
                        .cache_type = cache_of(w),
                        .scale = hp->kq_scale,
                        .top_k = hp->index_topk,
                        .o = at(w, r, &op->out[0]),
                        .o_pitch = pitch_of(w, r, BUF_O),
                        .scratch = w->g->scratch,
                        .many = w->ch->matmul == MATMUL_INT8 && w->s->batch->n_segs == 1 && w->rows == w->s->batch->n_rows};
    if (op->in[1].buf == BUF_ISEL && !w->ch->dense) {
        a.sel = (const int32_t *)(const void *)r->buf[BUF_ISEL];
        a.sel_pitch = pitch_of(w, r, BUF_ISEL);
    }
    if (a.heads == 0)
        return RS_OK;
    if (hp->v_head % 32 == 0) {
        a.q8 = r->q8[BUF_O];
        a.q8_pitch = krn_q8_row_bytes(a.heads * hp->v_head);
    }
    set_q8(w, r, BUF_O, a.q8 != NULL);
    return after(w, kcu_mla(&w->l, &a), 3 * ((w->rows + 31) / 32));
}

static enum rs_result run_index(struct walk *w, struct cuda_rank *r)
{
    const struct hparams *hp = w->c->hp;
    const struct op *op = w->op;
    const struct kcu_batch b = batch_of(w);
    const struct kcu_rope rope = rope_of(w);
    if (op->kind == OP_INDEX_Q) {
        RUN(kcu_rope_q(&w->l, &b, &rope, at(w, r, &op->in[0]), pitch_of(w, r, BUF_IQ), hp->index_heads, hp->index_dim, 0,
                       hp->index_interleaved));
        return RS_OK;
    }
    if (op->kind == OP_INDEX_STORE) {
        struct kcu_index_store a = {.b = b,
                                    .rope = rope,
                                    .x = at(w, r, &op->in[0]),
                                    .pitch = pitch_of(w, r, BUF_IK),
                                    .dim = hp->index_dim,
                                    .w = vec(w, r, op, 0),
                                    .bias = vec(w, r, op, 1),
                                    .interleaved = hp->index_interleaved,
                                    .cache = r->ik[op->layer],
                                    .cache_type = cache_of(w)};
        RUN(kcu_index_store(&w->l, &a));
        return RS_OK;
    }
    struct kcu_index a = {.b = b,
                          .q = r->buf[BUF_IQ],
                          .q_pitch = pitch_of(w, r, BUF_IQ),
                          .w = r->buf[BUF_IW],
                          .w_pitch = pitch_of(w, r, BUF_IW),
                          .heads = hp->index_heads,
                          .dim = hp->index_dim,
                          .top_k = hp->index_topk,
                          .cache = r->ik[op->layer],
                          .cache_type = cache_of(w),
                          .score = r->buf[BUF_ISCORE],
                          .score_pitch = pitch_of(w, r, BUF_ISCORE),
                          .sel = (int32_t *)(void *)r->buf[BUF_ISEL],
                          .sel_pitch = pitch_of(w, r, BUF_ISEL)};
    if (op->kind == OP_INDEX_SCORES)
        RUN(kcu_index_scores(&w->l, &a));
    else
        RUN(kcu_index_topk(&w->l, &a));
    return RS_OK;
}

/* ---- the rest ---- */

static enum rs_result run_gather(struct walk *w, struct cuda_rank *r)
{
    const struct cuda *c = w->c;
    const struct shard_range v = c->shard->vocab[r->rank];
    if (v.to == v.from || w->s->batch->n_logits == 0)
        return RS_OK;
    const size_t n = (v.to - v.from) * sizeof(float);
    cudaError_t e =
        cudaMemcpy2DAsync(c->full + v.from, c->hp->vocab * sizeof(float), at(w, r, &w->op->in[0]),
                          pitch_of(w, r, BUF_LOGITS) * sizeof(float), n, w->s->batch->n_logits, cudaMemcpyDeviceToHost, w->l.stream);
    w->l.pdl = false;
    return e == cudaSuccess ? RS_OK : error_set(w->err, RS_EENGINE, "GPU %d, op %s: %s", w->g->device, w->op->site, cudaGetErrorString(e));
}

static enum rs_result run_one(struct walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct hparams *hp = w->c->hp;
    const int32_t *meta = w->g->meta;
    const struct op_ref *out = &op->out[0];
    arm(w, r);
    switch (op->kind) {
    case OP_EMBED:
        RUN(kcu_rows(&w->l, mat(w, r, op, 0), meta + cuda_meta_token(), w->rows, plan_view(w->prog, r->rank, op->w[0])->row0, at(w, r, out),
                     pitch_of(w, r, out->buf), width_of(w, r, out)));
        return RS_OK;
    case OP_QKV_A: return run_slots(w, r, strcmp(w->ch->impl->name, "split") == 0);
    case OP_LINEAR: return run_linear(w, r);
    case OP_ROPE_Q: {
        const struct shard_layer *s = shard_of(w->c->shard, (uint32_t)op->layer, r->rank);
        const struct kcu_batch b = batch_of(w);
        const struct kcu_rope rope = rope_of(w);
        if (s->heads.to > s->heads.from)
            RUN(kcu_rope_q(&w->l, &b, &rope, at(w, r, out), pitch_of(w, r, BUF_Q), s->heads.to - s->heads.from, hp->k_mla, hp->nope, true));
        return RS_OK;
    }
    case OP_KV_STORE: return run_latent(w, r, NULL, op);
    case OP_MLA: return run_mla(w, r);
    case OP_INDEX_Q:
    case OP_INDEX_STORE:
    case OP_INDEX_SCORES:
    case OP_INDEX_TOPK: return run_index(w, r);
    case OP_GATE_UP: return run_gate_up(w, r);
    case OP_ROUTER: return run_router(w, r);
    case OP_MOE_GATE_UP: return run_moe_gate_up(w, r);
    case OP_MOE_DOWN: return run_moe_down(w, r);
    case OP_PICK_ROWS:
        RUN(kcu_pick(&w->l, at(w, r, &op->in[0]), pitch_of(w, r, op->in[0].buf), meta + cuda_meta_logit(w->c), w->s->batch->n_logits,
                     width_of(w, r, out), at(w, r, out), pitch_of(w, r, out->buf)));
        return RS_OK;
    case OP_GATHER: return run_gather(w, r);
    default: return error_set(w->err, RS_EINTERNAL, "op %s has no CUDA kernel", op->site);
    }
}

/* Observers of all ops up to the one at hand, unless one of them is not complete yet. */
static enum rs_result run_probes(struct walk *w)
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
        const uint32_t n = rows_of(w, ref->buf), row = p->row == UINT32_MAX ? w->s->batch->n_rows - 1 : p->row;
        const float *from = ref->buf == BUF_FULL ? w->c->full + (size_t)(row < n ? row : 0) * w->c->hp->vocab
                                                 : at(w, r, ref) + (size_t)row * pitch_of(w, r, ref->buf);
        cudaError_t e = cudaMemcpyAsync(to, from, p->width * sizeof *to, cudaMemcpyDefault, w->l.stream);
        w->l.pdl = false;
        if (e != cudaSuccess)
            return error_set(w->err, RS_EENGINE, "GPU %d, observing %s: %s", w->g->device, w->prog->ops[p->op].site, cudaGetErrorString(e));
    }
    return RS_OK;
}

static enum rs_result run_op(struct walk *w)
{
    const bool fuse = w->c->cfg.fuse;
    const struct op *op = w->op;
    if (w->done[op->index])
        return RS_OK;
    if (op->kind == OP_ROPE_Q && fuse) {
        w->rotate = true; /* the attention of this layer does it */
        return RS_OK;
    }
    if (op->kind == OP_ALLREDUCE || op->kind == OP_ADD || (op->kind == OP_RMSNORM && op->in[0].buf != BUF_Z))
        return run_join(w);
    const bool with_kv = op->kind == OP_RMSNORM && fuse && next_is(w, 3, OP_KV_STORE);
    if (op->kind == OP_RMSNORM) {
        for (uint32_t i = 0; i < w->g->n_local; i++) {
            arm(w, &w->g->local[i]);
            enum rs_result rc = run_latent(w, &w->g->local[i], op, with_kv ? ahead(w, 3) : NULL);
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
                set_q8(w, r, op->out[o].buf, false);
        enum rs_result rc = run_one(w, r);
        if (rc != RS_OK)
            return rc;
    }
    if (op->kind == OP_MLA)
        w->rotate = false;
    return RS_OK;
}

enum rs_result cuda_launch_step(struct cuda_gpu *g, const struct backend_step *s, uint32_t rows, uint32_t keys, struct rs_error *err)
{
    struct walk w = {.g = g,
                     .c = g->c,
                     .s = s,
                     .prog = s->prog,
                     .p = s->prog == g->c->prog[1],
                     .rows = rows,
                     .keys = keys,
                     .l = {.stream = g->stream},
                     .err = err};
    if (s->prog->n_ops > sizeof w.done / sizeof w.done[0])
        return error_set(err, RS_EUNSUPPORTED, "a program of %u ops; the CUDA backend takes %zu", s->prog->n_ops,
                         sizeof w.done / sizeof w.done[0]);
    g->n_launched = g->n_kernels = 0;
    for (uint32_t i = 0; i < s->prog->n_ops; i++) {
        w.op = &s->prog->ops[i];
        w.ch = &s->choices[i];
        enum rs_result rc = run_op(&w);
        if (rc == RS_OK)
            rc = run_probes(&w);
        if (rc != RS_OK)
            return rc;
    }
    w.l.stamp = g->stamp + (size_t)g->c->cap_ops * g->c->n_ranks;
    g->n_reduces = w.ordinal;
    cudaError_t e = kcu_stamp(&w.l);
    g->n_kernels++;
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "end of step", g->device);
}
