/* Launching attention: norms and cache rows, its forms, the indexer. */
#include <string.h>

#include "engine/cuda_op.h"

static struct kcu_mla mla_of(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op)
{
    const struct hparams *hp = w->c->hp;
    const struct choice *ch = &w->s->choices[op->index];
    const struct shard_layer *s = shard_of(w->c->shard, (uint32_t)op->layer, r->rank);
    struct kcu_mla a = {.b = cuda_op_batch_of(w),
                        .rope = cuda_op_rope_of(w),
                        .rotate = w->rotate,
                        .q = cuda_op_at(w, r, &op->in[0]),
                        .q_pitch = cuda_op_pitch_of(w, r, BUF_Q),
                        .heads = s->heads.to - s->heads.from,
                        .nope = hp->nope,
                        .l = hp->kv_lora,
                        .r = hp->rope,
                        .v = hp->v_head,
                        .k_b = *cuda_op_mat(w, r, op, 0),
                        .v_b = *cuda_op_mat(w, r, op, 1),
                        .cache = r->kv[op->layer],
                        .cache_type = cuda_op_cache_of(w),
                        .scale = hp->kq_scale,
                        .top_k = hp->index_topk,
                        .o = cuda_op_at(w, r, &op->out[0]),
                        .o_pitch = cuda_op_pitch_of(w, r, BUF_O),
                        .scratch = w->g->scratch,
                        .many = ch->matmul == MATMUL_INT8,
                        .fixed = !w->s->fast,
                        .apart = !w->fuse};
    if (op->in[1].buf == BUF_ISEL && !ch->dense) {
        a.sel = (const int32_t *)(const void *)r->buf[BUF_ISEL];
        a.sel_pitch = cuda_op_pitch_of(w, r, BUF_ISEL);
    }
    if (hp->v_head % 32 == 0) {
        a.q8 = r->q8[BUF_O];
        a.q8_pitch = krn_q8_row_bytes(a.heads * hp->v_head);
    }
    return a;
}

/* May the attention make a lone row's query and newest key itself? Then nobody sees z's latent part normed. */
static bool leave_query(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *q, const struct kcu_latent *z, const struct kcu_mat *m)
{
    static const enum op_kind kinds[] = {OP_RMSNORM, OP_LINEAR, OP_ROPE_Q, OP_KV_STORE, OP_MLA};
    enum { N = sizeof kinds / sizeof kinds[0] };
    if (!w->fuse || !w->s->fast || w->rows != 1 || w->g->n_local != 1 || q->index + N > (int)w->prog->n_ops)
        return false;
    for (int i = 0; i < N; i++)
        if (q[i].kind != kinds[i] || cuda_op_is_user(w, &q[i]) || cuda_op_observed(w, &q[i]))
            return false;
    if (strcmp(w->s->choices[q[N - 1].index].impl->name, "expanded") == 0 || cuda_op_aside(w, &q[N - 1]))
        return false;
    struct kcu_mla a = mla_of(w, r, &q[N - 1]);
    a.rotate = true;
    return kcu_mla_query_takes(&a, z, m);
}

enum rs_result cuda_op_latent(struct cuda_walk *w, struct cuda_rank *r, const struct op *q, const struct op *kv)
{
    const struct hparams *hp = w->c->hp;
    struct kcu_latent a = {.b = cuda_op_batch_of(w),
                           .rope = cuda_op_rope_of(w),
                           .z = r->buf[BUF_Z],
                           .z_pitch = cuda_op_pitch_of(w, r, BUF_Z),
                           .eps = hp->eps,
                           .l = hp->kv_lora,
                           .r = hp->rope,
                           .cache_type = cuda_op_cache_of(w)};
    if (q != NULL) {
        a.q_col = q->in[0].col;
        a.q_width = q->in[0].width;
        a.q_norm = cuda_op_vec(w, r, q, 0);
        a.qr = r->buf[BUF_QR];
        a.qr_pitch = cuda_op_pitch_of(w, r, BUF_QR);
        a.half = a.q_width <= KCU_LATENT_HALVES ? cuda_op_halves_for(w, r, BUF_QR, &w->prog->ops[q->index + 1], w->rows, &a.half_scale) : NULL;
        a.half_pitch = a.q_width;
        a.q8 = a.q_width % 32 == 0 && a.half == NULL ? r->q8[BUF_QR] : NULL;
        a.q8_pitch = krn_q8_row_bytes((a.q_width + 31) / 32 * 32);
        cuda_op_set_q8(w, r, BUF_QR, a.q8 != NULL);
    }
    if (kv != NULL) {
        a.store = true;
        a.kv_col = kv->in[0].col;
        a.kv_norm = cuda_op_vec(w, r, kv, 0);
        a.cache = r->kv[kv->layer];
    }
    const struct op *next = q != NULL ? &w->prog->ops[q->index + 1] : NULL;
    const struct kcu_mat *m = next != NULL && kv != NULL && next->kind == OP_LINEAR && !cuda_op_is_user(w, next) ? cuda_op_mat(w, r, next, 0) : NULL;
    if (m != NULL && w->s->choices[next->index].matmul == MATMUL_INT8 && kcu_latent_linear_takes(&a, m) &&
        !cuda_op_many(w, w->rows, &next->in[0], true, m, NULL)) { /* where numbers of rows must not matter one row takes the kernel for many */
        cuda_op_note(w, r, next, false, true);
        if (leave_query(w, r, q, &a, m)) {
            w->latent = a;
            w->query = m;
            w->done[next->index] = true;
            return RS_OK;
        }
        CUDA_OP_RUN(kcu_latent_linear(&w->l, &a, m, cuda_op_at(w, r, &next->out[0])));
        w->done[next->index] = true;
        return RS_OK;
    }
    CUDA_OP_RUN(kcu_latent(&w->l, &a));
    if (a.half != NULL)
        cuda_op_halves_made(w, r, BUF_QR);
    return RS_OK;
}

bool cuda_op_aside(const struct cuda_walk *w, const struct op *op)
{
    return w->s->graph && w->s->choices[op->index].impl->not_capturable;
}

/* The fault of the story: the launch goes past the graph that is being captured, acts now, on whatever its inputs and the step's variable part hold, and is
 * missing from the graph. Those may be a longer step's: bounds are the engine's, and kernels whose memory is cut for this launch alone are left out. */
static enum rs_result mla_aside(struct cuda_walk *w, struct kcu_mla *a)
{
    const struct kcu_launch aside = {.stream = w->g->aside};
    a->b.max_keys = w->c->lim.max_keys;
    a->b.lists = NULL;
    a->many = false;
    a->apart = true;
    w->l.stamp = NULL;
    w->where = (struct cuda_where){__FILE__, __LINE__};
    return cuda_op_after(w, kcu_mla(&aside, a), 0);
}

enum rs_result cuda_op_mla(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    struct kcu_mla a = mla_of(w, r, op);
    const struct kcu_mat *query = w->query;
    if (a.heads == 0)
        return RS_OK;
    const bool expanded = strcmp(w->ch->impl->name, "expanded") == 0, aside = cuda_op_aside(w, op),
               many = !expanded && !aside && kcu_mla_on_cores(&a);
    cuda_op_set_q8(w, r, BUF_O, a.q8 != NULL && (!many || kcu_mla_leaves_int8(&a)));
    cuda_op_note(w, r, op, many, false); /* what it has computed itself it multiplies as it is, or in f16 */
    if (aside)
        return mla_aside(w, &a);
    w->query = NULL;
    w->where = (struct cuda_where){__FILE__, __LINE__};
    if (expanded)
        return cuda_op_after(w, kcu_mla_expanded(&w->l, &a), kcu_mla_expanded_kernels(&a));
    if (query != NULL)
        return cuda_op_after(w, kcu_mla_query(&w->l, &a, &w->latent, query), kcu_mla_kernels(&a));
    if (many && !cuda_op_observed(w, op) && kcu_mla_leaves_halves(&a)) {
        a.half = cuda_op_halves_for(w, r, BUF_O, cuda_op_ahead(w, 1), w->rows, &a.half_scale);
        a.half_pitch = (size_t)a.heads * a.v;
    }
    if (a.half != NULL)
        cuda_op_halves_made(w, r, BUF_O);
    return cuda_op_after(w, kcu_mla(&w->l, &a), kcu_mla_kernels(&a));
}

enum rs_result cuda_op_index(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct hparams *hp = w->c->hp;
    const struct op *op = w->op;
    const struct kcu_batch b = cuda_op_batch_of(w);
    const struct kcu_rope rope = cuda_op_rope_of(w);
    if (op->kind == OP_INDEX_Q) {
        CUDA_OP_RUN(kcu_rope_q(&w->l, &b, &rope, cuda_op_at(w, r, &op->in[0]), cuda_op_pitch_of(w, r, BUF_IQ), hp->index_heads,
                               hp->index_dim, 0, hp->index_interleaved));
        return RS_OK;
    }
    if (op->kind == OP_INDEX_STORE) {
        struct kcu_index_store a = {.b = b,
                                    .rope = rope,
                                    .x = cuda_op_at(w, r, &op->in[0]),
                                    .pitch = cuda_op_pitch_of(w, r, BUF_IK),
                                    .dim = hp->index_dim,
                                    .w = cuda_op_vec(w, r, op, 0),
                                    .bias = cuda_op_vec(w, r, op, 1),
                                    .interleaved = hp->index_interleaved,
                                    .cache = r->ik[op->layer],
                                    .cache_type = cuda_op_cache_of(w)};
        CUDA_OP_RUN(kcu_index_store(&w->l, &a));
        return RS_OK;
    }
    struct kcu_index a = {.b = b,
                          .q = r->buf[BUF_IQ],
                          .q_pitch = cuda_op_pitch_of(w, r, BUF_IQ),
                          .w = r->buf[BUF_IW],
                          .w_pitch = cuda_op_pitch_of(w, r, BUF_IW),
                          .heads = hp->index_heads,
                          .dim = hp->index_dim,
                          .top_k = hp->index_topk,
                          .cache = r->ik[op->layer],
                          .cache_type = cuda_op_cache_of(w),
                          .score = r->buf[BUF_ISCORE],
                          .score_pitch = cuda_op_pitch_of(w, r, BUF_ISCORE),
                          .sel = (int32_t *)(void *)r->buf[BUF_ISEL],
                          .sel_pitch = cuda_op_pitch_of(w, r, BUF_ISEL)};
    if (op->kind == OP_INDEX_SCORES)
        CUDA_OP_RUN(kcu_index_scores(&w->l, &a));
    else
        CUDA_OP_RUN(kcu_index_topk(&w->l, &a));
    return RS_OK;
}
