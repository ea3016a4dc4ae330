/* Launching the end of a sub-layer: reduce, residual, norm. */
#include <string.h>

#include "engine/comm_nccl.h"
#include "engine/cuda_op.h"

static bool same_ref(const struct op_ref *a, const struct op_ref *b)
{
    return a->buf == b->buf && a->col == b->col;
}

enum rs_result cuda_op_nccl(struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref)
{
    const bool bf16 = w->ch->bf16;
    const size_t n = (size_t)w->rows * cuda_op_width_of(w, r, ref);
    if (bf16)
        CUDA_OP_RUN(kcu_to_bf16(&w->l, cuda_op_at(w, r, ref), w->g->payload, n));
    else if (w->l.stamp != NULL)
        CUDA_OP_RUN(kcu_stamp(&w->l));
    enum rs_result rc =
        comm_nccl_sum(w->g->nccl, bf16 ? (void *)w->g->payload : (void *)cuda_op_at(w, r, ref), n, bf16, w->l.stream, w->err);
    if (rc != RS_OK)
        return rc;
    w->l.pdl = false; /* what follows depends on NCCL's kernel, which does not take part */
    w->g->n_kernels++;
    w->l.stamp = w->c->cfg.no_stamps ? NULL : w->g->ready + w->op->index; /* when NCCL is through */
    cudaError_t e = cudaSuccess;
    if (bf16)
        e = kcu_from_bf16(&w->l, w->g->payload, cuda_op_at(w, r, ref), n);
    else if (w->l.stamp != NULL)
        e = kcu_stamp(&w->l);
    w->l.stamp = NULL; /* it is no op's beginning */
    return cuda_op_after(w, e, 1);
}

static void fill_reduce(struct cuda_walk *w, struct kcu_join *j)
{
    const struct cuda *c = w->c;
    j->reduce = true;
    j->bf16 = w->ch->bf16;
    j->tree = w->ch->tree;
    j->n_ranks = c->n_ranks;
    j->rank0 = w->g->rank0;
    j->n_gpus = c->n_gpus;
    j->gpu = w->g->index;
    memcpy(j->gpu_of, c->gpu_of, sizeof c->gpu_of);
    for (uint32_t i = 0; i < c->n_gpus; i++)
        j->recv[i] = c->gpu[i].recv;
    if (c->lim.peers > 1) {
        j->stand_in = true;
        j->n_ranks = j->n_gpus = c->lim.peers;
        j->rank0 = c->lim.peer;
        memset(j->gpu_of, 255, sizeof j->gpu_of); /* everybody else is somewhere else */
        j->gpu_of[j->rank0] = 0;
    }
    j->slot_packets = c->slot_packets;
    j->epoch = (const uint32_t *)w->g->meta;
    j->fault = c->fault + w->g->index;
    j->timeout_ns = (c->cfg.timeout_ms != 0 ? c->cfg.timeout_ms : CUDA_TIMEOUT_MS) * 1000000ull;
    j->delay_rank = w->ch->delay_rank;
    j->delay_ns = w->ch->delay_rank >= 0 ? (uint32_t)(w->ch->delay_us * 1000.0f) : 0;
    j->ready = w->c->cfg.no_stamps ? NULL : w->g->ready + w->op->index;
}

/* From the op at hand on: all-reduce, add and norm as far as they follow each other; without fusing only the first. */
enum rs_result cuda_op_join(struct cuda_walk *w)
{
    const struct op *reduce = w->op->kind == OP_ALLREDUCE ? w->op : NULL, *add = NULL, *norm = NULL;
    const struct op_ref *from = &w->op->in[0], *now = from;
    uint32_t n = reduce != NULL, gpus_apart = w->c->n_gpus > 1 || w->c->lim.peers > 1;
    if ((n == 0 || w->fuse) && cuda_op_next_is(w, n, OP_ADD) && same_ref(&cuda_op_ahead(w, n)->in[0], now) &&
        !cuda_op_is_user(w, cuda_op_ahead(w, n))) {
        add = cuda_op_ahead(w, n++);
        now = &add->out[0];
    }
    if ((n == 0 || w->fuse) && cuda_op_next_is(w, n, OP_RMSNORM) && same_ref(&cuda_op_ahead(w, n)->in[0], now) &&
        !cuda_op_is_user(w, cuda_op_ahead(w, n)))
        norm = cuda_op_ahead(w, n++);
    for (uint32_t i = 1; i < n; i++)
        w->done[w->op->index + i] = true;
    cuda_op_arm(w, &w->g->local[0]);
    const bool far = w->c->lim.span != NULL;
    if (reduce != NULL && (far || (strcmp(w->ch->impl->name, "nccl") == 0 && w->c->n_gpus > 1))) {
        enum rs_result rc = far ? cuda_op_span(w, from) : cuda_op_nccl(w, &w->g->local[0], from);
        if (rc != RS_OK)
            return rc;
        reduce = NULL;
    } else if (reduce != NULL && w->c->n_ranks == 1 && w->c->lim.peers < 2 && w->ch->delay_rank != 0) {
        reduce = NULL;
    }
    if (reduce == NULL && add == NULL && norm == NULL)
        return RS_OK;
    const uint32_t rows = cuda_op_rows_of(w, from->buf), step = reduce != NULL && gpus_apart ? CUDA_RECV_ROWS : rows;
    struct kcu_join j = {.n_local = w->g->n_local,
                         .eps = w->c->hp->eps,
                         .width = cuda_op_width_of(w, &w->g->local[0], norm != NULL ? &norm->in[0] : from),
                         .n_ranks = 1,
                         .n_gpus = 1};
    if (reduce != NULL)
        fill_reduce(w, &j);
    if (norm != NULL)
        j.w = cuda_op_vec(w, &w->g->local[0], norm, 0);
    for (uint32_t row = 0; row < rows; row += step) {
        j.n = rows - row < step ? rows - row : step;
        for (uint32_t i = 0; i < w->g->n_local; i++) {
            struct cuda_rank *r = &w->g->local[i];
            j.part_pitch = cuda_op_pitch_of(w, r, from->buf);
            j.part[i] = cuda_op_at(w, r, from) + row * j.part_pitch;
            if (add != NULL) {
                j.x_pitch = cuda_op_pitch_of(w, r, add->out[0].buf);
                j.x[i] = cuda_op_at(w, r, &add->out[0]) + row * j.x_pitch;
            }
            if (norm == NULL)
                continue;
            const struct op_ref *out = &norm->out[0];
            const bool q8 = r->q8[out->buf] != NULL && out->width == 0 && j.width % 32 == 0;
            j.h_pitch = cuda_op_pitch_of(w, r, out->buf);
            j.h[i] = cuda_op_at(w, r, out) + row * j.h_pitch;
            j.q8_pitch = krn_q8_row_bytes((j.width + 31) / 32 * 32);
            j.q8[i] = q8 ? r->q8[out->buf] + row * j.q8_pitch : NULL;
            cuda_op_set_q8(w, r, out->buf, q8);
        }
        j.ordinal = w->ordinal;
        CUDA_OP_RUN(kcu_join(&w->l, &j));
        w->ordinal += reduce != NULL && gpus_apart;
    }
    return RS_OK;
}
