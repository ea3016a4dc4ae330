/* What can go wrong with GPUs, said so that an operator knows which, where and what to do: memory that is missing, ranks that do not arrive, devices
 * that fail for good. */
#include "engine/cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/error.h"
#include "engine/now.h"
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

/* What a GPU needs for all-reduces. */
static double of_reduces(const struct cuda *c)
{
    return c->n_gpus > 1 || c->lim.peers > 1 ? (double)cuda_recv_bytes(c) + (double)c->n_ranks * (double)c->two_shot_room * 4 * sizeof(float) : 0;
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
        struct need n = {.rest = of_reduces(c)};
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
uint32_t cuda_fault_last(const struct cuda_gpu *g, uint32_t *at)
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
        const uint32_t op = cuda_fault_last(g, &at);
        const struct program *p = c->last;
        return error_set(err, RS_EENGINE, "GPU %d (rank %u) failed for good in op %s, launched at %s:%d: %s; the engine ends", g->device,
                         g->n_launched != 0 ? g->launched[at] % c->n_ranks : g->rank0, p != NULL && op < p->n_ops ? p->ops[op].site : "?",
                         g->n_launched != 0 && g->where[at].file != NULL ? g->where[at].file : "?", g->n_launched != 0 ? g->where[at].line : 0,
                         cudaGetErrorString(e));
    }
    return RS_EENGINE;
}

enum { GIVEN_UP = 0xffffff }; /* a fault word of ours, which the kernels take for one of theirs */

void cuda_fault_look(struct cuda *c)
{
    const double now = (double)now_us();
    const struct program *p = c->step->prog;
    uint32_t behind = 0, waits = 0;
    bool moved = false;
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        uint32_t i;
        const uint32_t op = cuda_fault_last(&c->gpu[k], &i);
        moved |= op != c->stuck.at[k];
        c->stuck.at[k] = op;
        behind = op < c->stuck.at[behind] ? k : behind;
        waits = op > c->stuck.at[waits] ? k : waits;
    }
    if (moved)
        c->stuck.since_us = c->stuck.told_us = now;
    if (now - c->stuck.told_us < 1e6)
        return;
    c->stuck.told_us = now;
    const uint32_t at = c->stuck.at[waits], has = c->stuck.at[behind];
    if (at >= p->n_ops || p->ops[at].kind != OP_ALLREDUCE) /* a long op, in which nobody waits */
        return;
    snprintf(c->stuck.where, sizeof c->stuck.where, "rank %u (GPU %d) waits in %s for rank %u (GPU %d), which has not left %s", c->gpu[waits].rank0, c->gpu[waits].device,
             p->ops[at].site, c->gpu[behind].rank0, c->gpu[behind].device, p->ops[has].site);
    if (c->step->stuck(c->step->stuck_arg, (now - c->stuck.since_us) * 1e-6, c->stuck.where))
        for (uint32_t k = 0; k < c->n_gpus; k++)
            __atomic_store_n(&c->fault[k], GIVEN_UP, __ATOMIC_RELAXED);
}

/* The all-reduce that a GPU gave up in; fault words count epochs, of which a reduce of many rows may have several. */
static uint32_t gave_up_in(const struct cuda *c, const struct program *p, uint32_t word, uint32_t rows)
{
    uint32_t n = (word & 0xffffff) - 1, i = 0;
    for (; i < p->n_ops; i++) {
        const uint32_t epochs = p->ops[i].kind == OP_ALLREDUCE ? cuda_reduce_epochs(c, &c->step->choices[i], rows) : 0;
        if (n < epochs)
            break;
        n -= epochs;
    }
    return i;
}

/* Who is late finds that the others have gone on without it, and gives up as well: the one that came first is right. */
enum rs_result cuda_fault_waiting(struct cuda *c, const struct program *p, uint32_t rows, struct rs_error *err)
{
    const uint64_t zero = c->gpu[0].n_launched != 0 ? c->gpu[0].stamp[c->gpu[0].launched[0]] : 0;
    enum rs_result rc = RS_OK;
    double first = INFINITY;
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        const struct cuda_gpu *g = &c->gpu[k];
        const uint32_t word = c->fault[k], i = word != 0 ? gave_up_in(c, p, word, rows) : 0;
        c->fault[k] = 0;
        if (word == GIVEN_UP) {
            memset(c->fault, 0, KCU_MAX_GPUS * sizeof *c->fault);
            return error_set(err, RS_ECANCELLED, "the step was given up: %s", c->stuck.where);
        }
        if (word == 0)
            continue;
        const uint64_t came = i < p->n_ops ? g->stamp[(size_t)i * c->n_ranks + g->rank0] : 0;
        const double at = came != 0 ? cuda_clock_us(g, came, zero) : INFINITY;
        if (rc != RS_OK && at >= first)
            continue;
        first = at;
        rc = error_set(err, RS_EENGINE, "rank %u did not arrive at %s: GPU %d (rank %u) waited %.1f s for it", word >> 24,
                       i < p->n_ops ? p->ops[i].site : "an all-reduce", g->device, g->rank0,
                       (c->cfg.timeout_ms != 0 ? c->cfg.timeout_ms : CUDA_TIMEOUT_MS) / 1e3);
    }
    return rc;
}
