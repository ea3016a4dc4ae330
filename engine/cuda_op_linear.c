/* Launching products of one or two weights. */
#include "engine/cuda_op.h"

enum rs_result cuda_op_linear(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct op *op = w->op;
    const struct kcu_mat *m = cuda_op_mat(w, r, op, 0);
    const struct op_ref *out = &op->out[0];
    struct kcu_linear a = {.n_mats = 1,
                           .n = cuda_op_rows_of(w, out->buf),
                           .y = cuda_op_at(w, r, out),
                           .y_pitch = cuda_op_pitch_of(w, r, out->buf),
                           .accumulate = op->accumulate};
    if (m->w == NULL) {
        if (out->layout == OP_PARTIAL && !op->accumulate)
            CUDA_OP_RUN(kcu_zero(&w->l, a.y, a.y_pitch, cuda_op_width_of(w, r, out), a.n));
        return RS_OK;
    }
    a.m[0] = *m;
    enum rs_result rc = cuda_op_input(w, r, &op->in[0], m->k, w->ch->matmul == MATMUL_INT8 && cuda_op_quantised(m), a.n, &a.in);
    if (rc != RS_OK)
        return rc;
    if (cuda_op_many(w, a.n, a.in.q8, m, NULL))
        CUDA_OP_RUN(kcu_gemm(&w->l, &a));
    else
        CUDA_OP_RUN(kcu_linear(&w->l, &a));
    return RS_OK;
}

/* Two slots side by side, joined by slot or by file order; apart: as two launches. */
enum rs_result cuda_op_slots(struct cuda_walk *w, struct cuda_rank *r, bool apart)
{
    const struct op *op = w->op;
    const struct kcu_mat *a0 = cuda_op_mat(w, r, op, 0), *a1 = cuda_op_mat(w, r, op, 1);
    struct kcu_linear a = {
        .n_mats = 2, .n = w->rows, .y = cuda_op_at(w, r, &op->out[0]), .y_pitch = cuda_op_pitch_of(w, r, op->out[0].buf)};
    uint32_t k = a0->w != NULL ? a0->k : a1->k, col = 0;
    if (a0->w == NULL && a1->w == NULL)
        return RS_OK;
    enum rs_result rc =
        cuda_op_input(w, r, &op->in[0], k, w->ch->matmul == MATMUL_INT8 && (cuda_op_quantised(a0) || cuda_op_quantised(a1)), a.n, &a.in);
    if (rc != RS_OK)
        return rc;
    for (uint32_t p = 0; p < 2; p++) {
        a.m[p] = *cuda_op_mat(w, r, op, w->ch->file_order && !apart ? op->file_slot[p] : p);
        a.col[p] = col;
        col += a.m[p].rows;
    }
    if (cuda_op_many(w, a.n, a.in.q8, &a.m[0], &a.m[1]))
        return cuda_op_after(w, kcu_gemm(&w->l, &a), 2);
    if (!apart) {
        CUDA_OP_RUN(kcu_linear(&w->l, &a));
        return RS_OK;
    }
    for (uint32_t p = 0; p < 2; p++) {
        struct kcu_linear one = a;
        one.n_mats = 1;
        one.m[0] = a.m[p];
        one.col[0] = a.col[p];
        if (one.m[0].w != NULL)
            CUDA_OP_RUN(kcu_linear(&w->l, &one));
    }
    return RS_OK;
}
