/* What can go wrong with GPUs, said so that an operator knows which, where and what to do: memory that is missing, ranks that do not arrive, devices
 * that fail for good. */
#include "engine/cuda.h"

#include <stdio.h>
#include <string.h>

#include "engine/error.h"
#include "kernels/quant.h"

struct need {
    double weights, cache, rest;
};

static struct need of_rank(const struct cuda *c, uint32_t rank)
{
    struct need n = {.weights = (double)cuda_load_bytes(c, rank)};
    const double cells = (double)c->lim.n_blocks * c->lim.block;
    for (uint32_t l = 0; l < c->hp->n_layers + c->hp->n_nextn; l++)
        n.cache += cells * (double)(c->kv_row_bytes + (c->ik_row_bytes != 0 && c->hp->index_full[l] ? c->ik_row_bytes : 0));
    for (int b = 1; b < BUF_COUNT; b++) {
        const double width = cuda_buf_width(c, (enum op_buf)b, rank);
        n.rest += (double)cuda_buf_rows(c, (enum op_buf)b) * width * (sizeof(float) + 1.125); /* most have an int8 form beside them */
    }
    return n;
}

/* What else would do, in an operator's words. */
static void advise(const struct cuda *c, const struct need *n, double have, double all_weights, uint32_t ranks, char *out, size_t cap)
{
    const double missing = n->weights + n->cache + n->rest - have;
    const uint32_t ctx = (c->lim.n_blocks - 1) * c->lim.block, fits = (uint32_t)(ctx * (1 - missing / n->cache)) / c->lim.block * c->lim.block;
    const double room = have - (n->cache + n->rest) / ranks; /* for the weights of one rank on a GPU of its own */
    size_t at = 0;
    out[0] = '\0';
    if (missing < n->cache && fits >= c->lim.block)
        at += (size_t)snprintf(out + at, cap - at, "; --ctx %u would fit", fits);
    if (room > 0 && all_weights / room <= 64)
        at += (size_t)snprintf(out + at, cap - at, "%s %u ranks, each on a GPU of its own%s", at != 0 ? ", or" : ";",
                               (uint32_t)(all_weights / room) + 1, at != 0 ? "" : ", would fit");
    if (n->weights > missing)
        snprintf(out + at, cap - at, "%s weights of %.0f %% of this size%s", at != 0 ? ", or" : ";", 100 * (1 - missing / n->weights),
                 at != 0 ? "" : " would fit");
}

enum rs_result cuda_fault_room(struct cuda *c, struct rs_error *err)
{
    double all_weights = 0;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        all_weights += (double)cuda_load_bytes(c, r);
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        struct cuda_gpu *g = &c->gpu[k];
        struct need n = {0};
        size_t have = 0, total = 0;
        char advice[240];
        for (uint32_t i = 0; i < g->n_local; i++) {
            const struct need one = of_rank(c, g->local[i].rank);
            n.weights += one.weights;
            n.cache += one.cache;
            n.rest += one.rest;
        }
        cudaError_t e = cudaSetDevice(g->device);
        if (e == cudaSuccess)
            e = cudaMemGetInfo(&have, &total);
        if (e != cudaSuccess)
            return cuda_fail(err, e, "asking for free memory", g->device);
        const double need = n.weights + n.cache + n.rest;
        if (need <= (double)have)
            continue;
        advise(c, &n, (double)have, all_weights, g->n_local, advice, sizeof advice);
        return error_set(err, RS_ENOMEM, "GPU %d: %u rank%s need %.2f GB (weights %.2f, cache %.2f, buffers %.2f), %.2f of %.2f GB are free: %.2f GB "
                         "are missing%s", g->device, g->n_local, g->n_local == 1 ? "" : "s", need / 1e9, n.weights / 1e9, n.cache / 1e9, n.rest / 1e9,
                         (double)have / 1e9, (double)total / 1e9, (need - (double)have) / 1e9, advice);
    }
    return RS_OK;
}

/* The op whose kernels were the last to begin: the failure is its own, or that of one that was launched with it. */
static uint32_t last_begun(const struct cuda_gpu *g, uint32_t *at)
{
    *at = 0;
    for (uint32_t i = 0; i < g->n_launched; i++)
        if (g->stamp[g->launched[i]] != 0)
            *at = i;
    return g->n_launched != 0 ? g->launched[*at] / g->c->n_ranks : 0;
}

enum rs_result cuda_fault_step(struct cuda *c, struct rs_error *err)
{
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        struct cuda_gpu *g = &c->gpu[k];
        uint32_t at;
        (void)cudaSetDevice(g->device);
        const cudaError_t e = cudaDeviceSynchronize();
        if (e == cudaSuccess)
            continue;
        c->dead = true;
        const uint32_t op = last_begun(g, &at);
        const struct program *p = c->last;
        return error_set(err, RS_EENGINE, "GPU %d (rank %u) failed for good in op %s, launched at %s:%d: %s; the engine ends", g->device,
                         g->n_launched != 0 ? g->launched[at] % c->n_ranks : g->rank0, p != NULL && op < p->n_ops ? p->ops[op].site : "?",
                         g->n_launched != 0 && g->where[at].file != NULL ? g->where[at].file : "?", g->n_launched != 0 ? g->where[at].line : 0,
                         cudaGetErrorString(e));
    }
    return RS_EENGINE;
}

enum rs_result cuda_fault_waiting(struct cuda *c, const struct program *p, uint32_t rows, struct rs_error *err)
{
    const uint32_t chunks = (rows + CUDA_RECV_ROWS - 1) / CUDA_RECV_ROWS;
    enum rs_result rc = RS_OK;
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        const uint32_t word = c->fault[k];
        uint32_t n = (word & 0xffffff) - 1, i = 0;
        c->fault[k] = 0;
        if (word == 0 || rc != RS_OK)
            continue;
        for (; i < p->n_ops; i++) {
            if (p->ops[i].kind == OP_ALLREDUCE && n < chunks)
                break;
            n -= p->ops[i].kind == OP_ALLREDUCE ? chunks : 0;
        }
        rc = error_set(err, RS_EENGINE, "rank %u did not arrive at %s: GPU %d (rank %u) waited %.1f s for it", word >> 24,
                       i < p->n_ops ? p->ops[i].site : "an all-reduce", c->gpu[k].device, c->gpu[k].rank0,
                       (c->cfg.timeout_ms != 0 ? c->cfg.timeout_ms : CUDA_TIMEOUT_MS) / 1e3);
    }
    return rc;
}
