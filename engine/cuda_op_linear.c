/* Launching products of one or two weights. */
#include <string.h>

#include "engine/cuda_op.h"
#include "kernels/cuda/head.h"

enum rs_result cuda_op_linear(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct kcu_mat *m = cuda_op_mat(w, r, op, 0);
    const struct op_ref *out = &op->out[0];
    struct kcu_linear a = {.n_mats = 1,
                           .n = cuda_op_rows_of(w, out->buf),
                           .y = cuda_op_at(w, r, out),
                           .y_pitch = cuda_op_pitch_of(w, r, out->buf),
                           .accumulate = op->accumulate,
                           .room = w->g->room,
                           .n_room = w->g->n_room};
    if (m->w == NULL) {
        if (out->layout == OP_PARTIAL && !op->accumulate)
            CUDA_OP_RUN(kcu_zero(&w->l, a.y, a.y_pitch, cuda_op_width_of(w, r, out), a.n));
        return RS_OK;
    }
    a.m[0] = *m;
    const bool int8 = w->ch->matmul == MATMUL_INT8 && cuda_op_quantised(m), many = cuda_op_many(w, a.n, &op->in[0], int8, m, NULL);
    enum rs_result rc = many ? cuda_op_halves(w, r, &op->in[0], m->k, a.n, &a.in) : cuda_op_input(w, r, &op->in[0], m->k, int8, a.n, &a.in);
    if (rc != RS_OK)
        return rc;
    cuda_op_note(w, r, op, many, a.in.q8 != NULL);
    if (many) {
        w->where = (struct cuda_where){__FILE__, __LINE__};
        return cuda_op_after(w, kcu_gemm(&w->l, &a), kcu_gemm_kernels(&w->l, &a));
    }
    if (cuda_op_next_is(w, 1, OP_GATHER) && kcu_head_takes(&a)) {
        CUDA_OP_RUN(kcu_head(&w->l, &a, cuda_logits_beside(w, r)));
        return RS_OK;
    }
    const struct cuda_residual to = cuda_op_residual(w, r, 1);
    a.x = to.x;
    a.x_pitch = to.pitch;
    cuda_op_note_few(w, r, op, kcu_linear_few(&w->l, &a));
    CUDA_OP_RUN(kcu_linear(&w->l, &a));
    return RS_OK;
}

static bool is_apart(const struct choice *ch)
{
    return strcmp(ch->impl->name, "split") == 0;
}

/* All but the input. */
static struct kcu_linear slots_of(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *op, const struct choice *ch)
{
    struct kcu_linear a = {
        .n_mats = 2, .n = w->rows, .y = cuda_op_at(w, r, &op->out[0]), .y_pitch = cuda_op_pitch_of(w, r, op->out[0].buf),
        .room = w->g->room, .n_room = w->g->n_room};
    uint32_t col = 0;
    for (uint32_t p = 0; p < 2; p++) {
        a.m[p] = *cuda_op_mat(w, r, op, ch->file_order && !is_apart(ch) ? op->file_slot[p] : p);
        a.col[p] = col;
        col += a.m[p].rows;
    }
    return a;
}

bool cuda_op_slots_takes_norm(struct cuda_walk *w, struct cuda_rank *r, const struct op *op, const struct op *norm)
{
    const struct choice *ch = &w->s->choices[op->index];
    struct kcu_linear a = slots_of(w, r, op, ch);
    a.pre = cuda_op_norm(w, r, norm);
    return ch->matmul == MATMUL_INT8 && !is_apart(ch) && kcu_norm_linear_takes(&a);
}

/* Two slots side by side, joined by slot or by file order; apart: as two launches. */
enum rs_result cuda_op_slots(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    struct kcu_linear a = slots_of(w, r, op, w->ch);
    const uint32_t k = a.m[0].w != NULL ? a.m[0].k : a.m[1].k;
    enum rs_result rc = RS_OK;
    if (a.m[0].w == NULL && a.m[1].w == NULL)
        return RS_OK;
    if (w->norm != NULL) {
        a.pre = cuda_op_norm(w, r, w->norm);
        cuda_op_note(w, r, op, false, true);
        CUDA_OP_RUN(kcu_linear(&w->l, &a));
        cuda_op_normed(w, r);
        return RS_OK;
    }
    const bool int8 = w->ch->matmul == MATMUL_INT8 && (cuda_op_quantised(&a.m[0]) || cuda_op_quantised(&a.m[1])),
               many = cuda_op_many(w, a.n, &op->in[0], int8, &a.m[0], &a.m[1]);
    rc = many ? cuda_op_halves(w, r, &op->in[0], k, a.n, &a.in) : cuda_op_input(w, r, &op->in[0], k, int8, a.n, &a.in);
    if (rc != RS_OK)
        return rc;
    cuda_op_note(w, r, op, many, a.in.q8 != NULL);
    if (many)
        return cuda_op_after(w, kcu_gemm(&w->l, &a), kcu_gemm_kernels(&w->l, &a));
    if (!is_apart(w->ch)) {
        cuda_op_note_few(w, r, op, kcu_linear_few(&w->l, &a));
        CUDA_OP_RUN(kcu_linear(&w->l, &a));
        return RS_OK;
    }
    for (uint32_t p = 0; p < 2; p++) {
        struct kcu_linear one = a;
        one.n_mats = 1;
        one.m[0] = a.m[p];
        one.col[0] = a.col[p];
        cuda_op_note_few(w, r, op, kcu_linear_few(&w->l, &one));
        if (one.m[0].w != NULL)
            CUDA_OP_RUN(kcu_linear(&w->l, &one));
    }
    return RS_OK;
}
