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

enum cuda_reduce cuda_reduce_how(const struct cuda *c, const struct choice *ch, uint32_t rows)
{
    const char *name = ch->impl->name;
    if (c->n_gpus == 1)
        return CUDA_REDUCE_FLAT;
    if (strcmp(name, "nccl") == 0)
        return CUDA_REDUCE_NCCL;
    const uint32_t from = c->sweep.from_rows[ch->bf16];
    return strcmp(name, "two-shot") == 0 || (strcmp(name, "auto") == 0 && from != 0 && rows >= from) ? CUDA_REDUCE_TWO_SHOT : CUDA_REDUCE_FLAT;
}

uint32_t cuda_reduce_epochs(const struct cuda *c, const struct choice *ch, uint32_t rows)
{
    switch (cuda_reduce_how(c, ch, rows)) {
    case CUDA_REDUCE_NCCL: return 0;
    case CUDA_REDUCE_TWO_SHOT: return (rows + CUDA_TWO_SHOT_ROWS - 1) / CUDA_TWO_SHOT_ROWS;
    default: return (rows + CUDA_RECV_ROWS - 1) / CUDA_RECV_ROWS;
    }
}

static uint64_t patience(const struct cuda *c)
{
    return (c->cfg.timeout_ms != 0 ? c->cfg.timeout_ms : CUDA_TIMEOUT_MS) * 1000000ull;
}

static enum rs_result two_shot_sum(struct cuda_walk *w, const struct op_ref *ref)
{
    const struct cuda *c = w->c;
    const uint32_t rows = cuda_op_rows_of(w, ref->buf), width = cuda_op_width_of(w, &w->g->local[0], ref);
    struct kcu_two_shot t = {.bf16 = w->ch->bf16,
                             .n_ranks = c->n_ranks,
                             .rank0 = w->g->rank0,
                             .n_local = w->g->n_local,
                             .n_gpus = c->n_gpus,
                             .gpu = w->g->index,
                             .room = c->two_shot_room,
                             .max_blocks = c->two_shot_blocks,
                             .epoch = (const uint32_t *)w->g->meta,
                             .fault = c->fault + w->g->index,
                             .timeout_ns = patience(c),
                             .delay_rank = w->ch->delay_rank,
                             .delay_ns = w->ch->delay_rank >= 0 ? (uint32_t)(w->ch->delay_us * 1000.0f) : 0,
                             .ready = c->cfg.no_stamps ? NULL : w->g->ready + w->op->index};
    memcpy(t.gpu_of, c->gpu_of, sizeof t.gpu_of);
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        const struct cuda_gpu *g = &c->gpu[k];
        t.rank_of[k] = (uint8_t)g->rank0;
        t.sent[k] = g->sent;
        t.flags[k] = g->flags;
    }
    for (uint32_t row = 0; row < rows; row += CUDA_TWO_SHOT_ROWS) {
        for (uint32_t r = 0; r < c->n_ranks; r++) {
            const struct cuda_gpu *g = &c->gpu[c->gpu_of[r]];
            t.part[r] = cuda_op_at(w, &g->local[r - g->rank0], ref) + (size_t)row * width;
        }
        t.n = (size_t)(rows - row < CUDA_TWO_SHOT_ROWS ? rows - row : CUDA_TWO_SHOT_ROWS) * width;
        t.ordinal = w->ordinal++;
        CUDA_OP_RUN(kcu_two_shot(&w->l, &t));
    }
    return RS_OK;
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
    j->timeout_ns = patience(c);
    j->delay_rank = w->ch->delay_rank;
    j->delay_ns = w->ch->delay_rank >= 0 ? (uint32_t)(w->ch->delay_us * 1000.0f) : 0;
    j->ready = w->c->cfg.no_stamps ? NULL : w->g->ready + w->op->index;
}

/* Where the norm leaves its result as f16 as well, for the products after it (behind a router, which takes it as it is). */
static uint16_t *halves_of(const struct cuda_walk *w, const struct cuda_rank *r, const struct op *norm, uint32_t rows, struct kcu_join *j)
{
    const uint32_t next = (uint32_t)norm->index + 1, at = next + (next < w->prog->n_ops && w->prog->ops[next].kind == OP_ROUTER);
    const struct op_ref *out = &norm->out[0];
    j->half_pitch = cuda_op_width_of(w, r, out);
    return out->col == 0 && out->width == 0 && at < w->prog->n_ops ? cuda_op_halves_for(w, r, out->buf, &w->prog->ops[at], rows, &j->half_scale) : NULL;
}

/* The norm n places on: of what the ops before it leave at `now`. In a step of one row the rows of the output are that row, so that its norm may take it from
 * where it is. *skip: a copy of rows that is left out for it. */
static const struct op *norm_ahead(const struct cuda_walk *w, uint32_t n, const struct op_ref *now, const struct op **skip)
{
    const struct op *op = cuda_op_ahead(w, n);
    *skip = NULL;
    if (cuda_op_next_is(w, n, OP_PICK_ROWS) && w->fuse && w->rows == 1 && w->n_logits == 1 && same_ref(&op->in[0], now) && !cuda_op_is_user(w, op) &&
        !cuda_op_observed(w, op)) {
        *skip = op;
        now = &op->out[0];
        op = cuda_op_ahead(w, ++n);
    }
    return (n == 0 || w->fuse) && cuda_op_next_is(w, n, OP_RMSNORM) && same_ref(&op->in[0], now) && !cuda_op_is_user(w, op) ? op : NULL;
}

bool cuda_op_join_begins(const struct cuda_walk *w)
{
    const struct op *op = w->op, *skip;
    return op->kind == OP_ALLREDUCE || op->kind == OP_ADD || (op->kind == OP_RMSNORM && op->in[0].buf != BUF_Z) ||
           (op->kind == OP_PICK_ROWS && norm_ahead(w, 0, &op->in[0], &skip) != NULL);
}

/* From the op at hand on: all-reduce, add and norm as far as they follow each other; without fusing only the first. */
enum rs_result cuda_op_join(struct cuda_walk *w)
{
    const struct op *reduce = w->op->kind == OP_ALLREDUCE ? w->op : NULL, *add = NULL, *norm = NULL, *skip = NULL;
    const struct op_ref *from = &w->op->in[0], *now = from;
    uint32_t n = reduce != NULL, gpus_apart = w->c->n_gpus > 1 || w->c->lim.peers > 1;
    if ((n == 0 || w->fuse) && cuda_op_next_is(w, n, OP_ADD) && same_ref(&cuda_op_ahead(w, n)->in[0], now) &&
        !cuda_op_is_user(w, cuda_op_ahead(w, n))) {
        add = cuda_op_ahead(w, n++);
        now = &add->out[0];
    }
    norm = norm_ahead(w, n, now, &skip);
    n += (norm != NULL) + (norm != NULL && skip != NULL);
    for (uint32_t i = 1; i < n; i++)
        w->done[w->op->index + i] = true;
    cuda_op_arm(w, &w->g->local[0]);
    const bool far = reduce != NULL && w->c->lim.span != NULL;
    const enum cuda_reduce how = reduce != NULL && !far ? cuda_reduce_how(w->c, w->ch, w->rows) : CUDA_REDUCE_FLAT;
    if (far || how != CUDA_REDUCE_FLAT) {
        enum rs_result rc = far ? cuda_op_span(w, from) : how == CUDA_REDUCE_NCCL ? cuda_op_nccl(w, &w->g->local[0], from) : two_shot_sum(w, from);
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
            j.half = reduce == NULL ? halves_of(w, r, norm, rows, &j) : NULL;
            if (j.half != NULL) {
                j.half += row * j.half_pitch;
                j.half_scale += row;
            }
            j.q8[i] = q8 && j.half == NULL ? r->q8[out->buf] + row * j.q8_pitch : NULL;
            cuda_op_set_q8(w, r, out->buf, j.q8[i] != NULL);
        }
        j.ordinal = w->ordinal;
        CUDA_OP_RUN(kcu_join(&w->l, &j));
        if (j.half != NULL)
            cuda_op_halves_made(w, &w->g->local[0], norm->out[0].buf);
        w->ordinal += reduce != NULL && gpus_apart;
    }
    return RS_OK;
}
