/* Launching sums over several hosts: by NCCL among all of their GPUs, or through host memory.
 *
 * The second way is for what NCCL does not take, such as two processes on one GPU. Like the CPU's, it sends summands, not sums, and adds those of all
 * ranks in the order of one process. What moves them is a function of the host's that the stream calls in its turn, so a graph captures it as well. It
 * runs on a thread of the driver's, while the control thread waits for the stream and touches neither the links nor what is used here. */
#include <string.h>

#include "engine/comm.h"
#include "engine/comm_nccl.h"
#include "engine/cuda_op.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/vec.h"

static uint32_t first_rank(const struct cuda *c)
{
    return c->lim.span->first[c->lim.span->comm->host];
}

static float *part(const struct cuda *c, uint32_t rank)
{
    return c->span.parts + rank * c->span.each;
}

/* ---- what the stream calls ---- */

static void CUDART_CB late(void *arg)
{
    const struct cuda_span_call *k = arg;
    comm_be_late(k->c->step->choices[k->op].delay_us);
}

/* The next rows of a reduce: own summands are there; fetch the others' and add. A failure stays in comm, where whoever runs the step sees it. */
static void CUDART_CB fetch_and_add(void *arg)
{
    const struct cuda_span_call *k = arg;
    struct cuda *c = k->c;
    const struct backend_step *s = c->step;
    const struct backend_span *span = c->lim.span;
    struct comm *m = span->comm;
    const uint32_t all = s->graph ? s->batch->bucket : s->batch->n_rows, left = all - c->span.row, n = left < c->span.rows ? left : c->span.rows;
    const size_t count = (size_t)n * k->width;
    struct comm_move moves[2 * RS_MAX_RANKS];
    const float *src[RS_MAX_RANKS];
    float *dst = part(c, span->n_ranks);
    uint32_t n_moves = 0;
    c->span.row = n == left ? 0 : c->span.row + n;
    for (uint32_t h = 0; h < m->n_hosts; h++) {
        for (uint32_t r = 0; r < c->n_ranks && h != m->host; r++)
            moves[n_moves++] = (struct comm_move){.host = h, .send = true, .data = part(c, first_rank(c) + r), .bytes = count * sizeof(float)};
        for (uint32_t r = span->first[h]; r < span->first[h + 1] && h != m->host; r++)
            moves[n_moves++] = (struct comm_move){.host = h, .data = part(c, r), .bytes = count * sizeof(float)};
    }
    m->where = s->prog->ops[k->op].site;
    const bool moved = comm_run(m, moves, n_moves);
    m->where = NULL;
    for (uint32_t r = 0; r < span->n_ranks; r++)
        src[r] = part(c, r);
    if (moved)
        krn_cpu_vec(krn_cpu_best())->reduce(src, &dst, span->n_ranks, 1, 0, count, s->choices[k->op].tree, s->choices[k->op].bf16);
}

/* ---- launching ---- */

static struct cuda_span_call *call_of(const struct cuda_walk *w)
{
    return &w->c->span.call[w->p][w->op->index];
}

/* The patch delay, if it is for a rank that is here. */
static enum rs_result be_late(struct cuda_walk *w)
{
    const int first = (int)first_rank(w->c);
    if (w->ch->delay_rank < first || w->ch->delay_rank >= first + (int)w->c->n_ranks)
        return RS_OK;
    w->where = (struct cuda_where){__FILE__, __LINE__};
    uint64_t *stamp = w->l.stamp; /* it arrives after that */
    w->l.stamp = NULL;
    enum rs_result rc = cuda_op_after(w, cudaLaunchHostFunc(w->l.stream, late, call_of(w)), 0);
    w->l.stamp = stamp;
    w->l.pdl = false;
    return rc;
}

static cudaError_t copy_rows(const struct cuda_walk *w, struct cuda_rank *r, const struct op_ref *ref, uint32_t row, uint32_t n, float *host, bool out)
{
    const size_t pitch = cuda_op_pitch_of(w, r, ref->buf), width = cuda_op_width_of(w, r, ref);
    float *at = cuda_op_at(w, r, ref) + row * pitch;
    return out ? cudaMemcpy2DAsync(host, width * sizeof(float), at, pitch * sizeof(float), width * sizeof(float), n, cudaMemcpyDeviceToHost, w->l.stream)
               : cudaMemcpy2DAsync(at, pitch * sizeof(float), host, width * sizeof(float), width * sizeof(float), n, cudaMemcpyHostToDevice, w->l.stream);
}

static enum rs_result through_host(struct cuda_walk *w, const struct op_ref *ref)
{
    const struct cuda *c = w->c;
    struct cuda_gpu *g = w->g;
    call_of(w)->width = cuda_op_width_of(w, &g->local[0], ref);
    if (w->l.stamp != NULL)
        CUDA_OP_RUN(kcu_stamp(&w->l));
    w->l.pdl = false;
    for (uint32_t row = 0; row < w->rows; row += c->span.rows) {
        const uint32_t n = w->rows - row < c->span.rows ? w->rows - row : c->span.rows;
        cudaError_t e = cudaSuccess;
        for (uint32_t i = 0; i < g->n_local && e == cudaSuccess; i++)
            e = copy_rows(w, &g->local[i], ref, row, n, part(c, first_rank(c) + g->local[i].rank), true);
        if (e == cudaSuccess)
            e = cudaLaunchHostFunc(w->l.stream, fetch_and_add, call_of(w));
        for (uint32_t i = 0; i < g->n_local && e == cudaSuccess; i++)
            e = copy_rows(w, &g->local[i], ref, row, n, part(c, c->lim.span->n_ranks), false);
        w->where = (struct cuda_where){__FILE__, __LINE__};
        enum rs_result rc = cuda_op_after(w, e, 0);
        if (rc != RS_OK)
            return rc;
        w->l.pdl = false;
    }
    cudaError_t e = cudaSuccess;
    w->l.stamp = c->cfg.no_stamps ? NULL : g->ready + w->op->index;
    if (w->l.stamp != NULL)
        e = kcu_stamp(&w->l);
    w->l.stamp = NULL; /* it is no op's beginning */
    return cuda_op_after(w, e, 1);
}

enum rs_result cuda_op_span(struct cuda_walk *w, const struct op_ref *ref)
{
    enum rs_result rc = be_late(w);
    if (rc != RS_OK)
        return rc;
    return strcmp(w->ch->impl->name, "nccl") == 0 ? cuda_op_nccl(w, &w->g->local[0], ref) : through_host(w, ref);
}
