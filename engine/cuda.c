/* The CUDA backend: GPUs and their threads, buffers, caches, reading and writing. See cuda.h. */
#include "engine/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/comm_nccl.h"
#include "engine/cuda_nvml.h"
#include "engine/error.h"
#include "engine/loading.h"
#include "kernels/quant.h"

#define TRY(call, what)                                                                                                                    \
    do {                                                                                                                                   \
        cudaError_t e_ = (call);                                                                                                           \
        if (e_ != cudaSuccess)                                                                                                             \
            return cuda_fail(err, e_, what, g->device);                                                                                    \
    } while (0)

enum rs_result cuda_fail(struct rs_error *err, cudaError_t e, const char *what, int device)
{
    return error_set(err, e == cudaErrorMemoryAllocation ? RS_ENOMEM : RS_EENGINE, "GPU %d: %s: %s", device, what, cudaGetErrorString(e));
}

int backend_cuda_devices(const char **why)
{
    int n = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* a kernel that loads lazily would do so while other GPUs wait in an all-reduce */
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        n = 0;
    }
    if (why != NULL)
        *why = e != cudaSuccess ? cudaGetErrorString(e) : n == 0 ? "no CUDA device" : NULL;
    return n;
}

uint64_t backend_cuda_memory(int i)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, i) == cudaSuccess)
        return prop.totalGlobalMem;
    (void)cudaGetLastError();
    return 0;
}

size_t cuda_buf_rows(const struct cuda *c, enum op_buf b)
{
    switch (b) {
    case BUF_Y:
    case BUF_LOGITS: return c->lim.max_logits;
    case BUF_MGU:
    case BUF_MACT: return (size_t)c->lim.max_rows * (c->hp->n_used ? c->hp->n_used : 1);
    case BUF_FULL: return 0; /* in host memory: the gather is for the host */
    default: return c->lim.max_rows;
    }
}

uint32_t cuda_buf_width(const struct cuda *c, enum op_buf b, uint32_t rank)
{
    uint32_t w = 0;
    for (int i = 0; i < 2; i++)
        if (c->prog[i] != NULL && c->prog[i]->width[b][rank] > w)
            w = c->prog[i]->width[b][rank];
    return w;
}

static bool wants_q8(enum op_buf b)
{
    return b == BUF_H || b == BUF_QR || b == BUF_O || b == BUF_ACT || b == BUF_MACT || b == BUF_Y || b == BUF_CAT;
}

static enum rs_result zeroed(struct cuda_gpu *g, void *out, size_t bytes, const char *what, struct rs_error *err)
{
    void **p = out;
    cudaError_t e = cudaMalloc(p, bytes);
    if (e != cudaSuccess) {
        size_t have = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&have, &total);
        return error_set(err, RS_ENOMEM,
                         "GPU %d: %.2f GB for %s, but only %.2f of %.2f GB are free: %.2f GB are missing (a smaller context, smaller "
                         "weights or more ranks would fit)",
                         g->device, (double)bytes / 1e9, what, (double)have / 1e9, (double)total / 1e9,
                         ((double)bytes - (double)have) / 1e9);
    }
    TRY(cudaMemsetAsync(*p, 0, bytes, g->stream), what);
    return RS_OK;
}

static enum rs_result alloc_rank(struct cuda_gpu *g, struct cuda_rank *r, struct rs_error *err)
{
    const struct cuda *c = g->c;
    const uint32_t layers = c->hp->n_layers + c->hp->n_nextn;
    const size_t cells = (size_t)c->lim.n_blocks * c->lim.block;
    enum rs_result rc = RS_OK;
    for (int b = 1; b < BUF_COUNT && rc == RS_OK; b++) {
        const size_t rows = cuda_buf_rows(c, (enum op_buf)b), width = cuda_buf_width(c, (enum op_buf)b, r->rank);
        if (rows * width == 0)
            continue;
        rc = zeroed(g, &r->buf[b], rows * width * sizeof(float), "activations", err);
        r->bytes_buffers += rows * width * sizeof(float);
        if (rc == RS_OK && wants_q8((enum op_buf)b)) {
            rc = zeroed(g, &r->q8[b], rows * krn_q8_row_bytes((width + 31) / 32 * 32), "activations", err);
            r->bytes_buffers += rows * krn_q8_row_bytes((width + 31) / 32 * 32);
        }
    }
    r->kv = calloc(layers, sizeof *r->kv);
    r->ik = calloc(layers, sizeof *r->ik);
    if (r->kv == NULL || r->ik == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for cache tables");
    for (int p = 0; p < 2; p++)
        if ((r->arith[p] = calloc(c->cap_ops, sizeof *r->arith[p])) == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for what ops were computed in");
    for (uint32_t i = 0; i < layers && rc == RS_OK; i++) {
        rc = zeroed(g, &r->kv[i], cells * c->kv_row_bytes, "the cache", err);
        r->bytes_cache += cells * c->kv_row_bytes;
        if (rc == RS_OK && c->ik_row_bytes != 0 && c->hp->index_full[i]) {
            rc = zeroed(g, &r->ik[i], cells * c->ik_row_bytes, "the indexer's cache", err);
            r->bytes_cache += cells * c->ik_row_bytes;
        }
    }
    if (rc == RS_OK)
        rc = zeroed(g, &r->arrived, c->lim.max_rows * sizeof(uint32_t), "counters", err);
    const size_t chunks = kcu_likeliest_parts(cuda_buf_width(c, BUF_LOGITS, r->rank));
    if (rc == RS_OK && chunks != 0)
        rc = zeroed(g, &r->top_parts, c->lim.max_logits * chunks * sizeof *r->top_parts, "figures of logits", err);
    if (rc == RS_OK)
        rc = zeroed(g, &r->top_arrived, c->lim.max_logits * sizeof *r->top_arrived, "counters", err);
    if (rc == RS_OK && c->hp->n_used != 0)
        rc = zeroed(g, &r->words, cuda_words_bytes(c), "words of the router", err);
    if (rc == RS_OK && c->hp->n_used != 0)
        rc = zeroed(g, &r->plan, kcu_group_words(c->lim.max_rows, c->hp->n_used, c->hp->n_experts) * sizeof(int32_t), "expert lists", err);
    return rc;
}

static enum rs_result fill_rope(struct cuda_gpu *g, struct rs_error *err)
{
    const struct cuda *c = g->c;
    const uint32_t half = c->hp->rope / 2;
    const size_t n = (size_t)c->lim.max_keys * half;
    float *t = malloc(2 * n * sizeof *t);
    if (t == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for rotation tables");
    for (uint32_t i = 0; i < half; i++) {
        double f = hparams_rope_freq(c->hp, i);
        for (size_t p = 0; p < c->lim.max_keys; p++) {
            t[p * half + i] = (float)(cos((double)p * f) * (double)c->hp->rope_mag);
            t[n + p * half + i] = (float)(sin((double)p * f) * (double)c->hp->rope_mag);
        }
    }
    enum rs_result rc = zeroed(g, &g->rope_cos, 2 * n * sizeof(float), "rotation tables", err);
    if (rc == RS_OK) {
        cudaError_t e = cudaStreamSynchronize(g->stream);
        if (e == cudaSuccess)
            e = cudaMemcpy(g->rope_cos, t, 2 * n * sizeof(float), cudaMemcpyHostToDevice);
        if (e != cudaSuccess)
            rc = cuda_fail(err, e, "copying rotation tables", g->device);
        g->rope_sin = g->rope_cos + n;
    }
    free(t);
    return rc;
}

/* Room for the f16 form of any input of a product. */
static enum rs_result alloc_halves(struct cuda_gpu *g, struct rs_error *err)
{
    const struct cuda *c = g->c;
    size_t width[2] = {0}, rows[2] = {0};
    for (int b = 1; b < BUF_COUNT; b++)
        for (uint32_t i = 0; i < g->n_local && wants_q8((enum op_buf)b); i++) {
            const size_t w = cuda_buf_width(c, (enum op_buf)b, g->rank0 + i), n = cuda_buf_rows(c, (enum op_buf)b);
            const int k = b == BUF_MACT;
            width[k] = w > width[k] ? w : width[k];
            rows[k] = n > rows[k] ? n : rows[k];
        }
    enum rs_result rc = RS_OK;
    for (int k = 0; k < 2 && rc == RS_OK; k++) {
        if (width[k] * rows[k] == 0)
            continue;
        rc = zeroed(g, &g->half[k], rows[k] * width[k] * sizeof *g->half[k], "activations", err);
        if (rc == RS_OK)
            rc = zeroed(g, &g->half_scale[k], rows[k] * sizeof *g->half_scale[k], "activations", err);
    }
    return rc;
}

static enum rs_result alloc_gpu(struct cuda_gpu *g, struct rs_error *err)
{
    const struct cuda *c = g->c;
    const size_t meta = (cuda_meta_tables(c) + c->cap_tables) * sizeof(int32_t);
    uint32_t heads = 1;
    TRY(cudaHostAlloc((void **)&g->meta_host, meta, cudaHostAllocDefault), "pinned memory");
    memset(g->meta_host, 0, meta);
    TRY(cudaHostAlloc((void **)&g->stamp, (size_t)(c->cap_ops * c->n_ranks + 1) * sizeof(uint64_t), cudaHostAllocMapped), "pinned memory");
    TRY(cudaHostAlloc((void **)&g->ready, (size_t)c->cap_ops * 2 * sizeof(uint64_t), cudaHostAllocMapped), "pinned memory");
    g->done = g->ready + c->cap_ops;
    g->launched = calloc((size_t)c->cap_ops * c->n_ranks, sizeof *g->launched);
    g->where = calloc((size_t)c->cap_ops * c->n_ranks, sizeof *g->where);
    if (g->launched == NULL || g->where == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for op timings");
    enum rs_result rc = zeroed(g, &g->meta, meta, "block tables", err);
    for (uint32_t i = 0; i < g->n_local; i++)
        for (uint32_t l = 0; l < c->shard->n_layers; l++) {
            const struct shard_layer *s = shard_of(c->shard, l, g->local[i].rank);
            heads = s->heads.to - s->heads.from > heads ? s->heads.to - s->heads.from : heads;
        }
    const size_t absorbed = kcu_mla_scratch(c->lim.max_rows, heads, c->hp->kv_lora, c->hp->rope, c->lim.max_keys),
                 expanded = kcu_mla_expanded_scratch(c->lim.max_rows, heads, c->hp->nope, c->hp->kv_lora, c->hp->v_head, c->lim.max_keys);
    if (rc == RS_OK)
        rc = zeroed(g, &g->scratch, absorbed > expanded ? absorbed : expanded, "attention scratch", err);
    if (rc == RS_OK && c->hp->n_used != 0)
        rc = zeroed(g, &g->pairs, (size_t)c->lim.max_rows * c->hp->n_used * c->hp->n_embd * sizeof(float), "expert outputs", err);
    if (rc == RS_OK && (c->n_gpus > 1 || c->lim.peers > 1))
        rc = zeroed(g, &g->recv, cuda_recv_bytes(c), "receive buffers", err);
    if (rc == RS_OK && c->two_shot_room != 0)
        rc = zeroed(g, &g->sent, c->n_ranks * c->two_shot_room * 4 * sizeof(float), "summands of all-reduces", err);
    if (rc == RS_OK && c->two_shot_room != 0)
        rc = zeroed(g, &g->flags, cuda_flags_bytes(), "flags of all-reduces", err);
    if (rc == RS_OK && c->n_gpus > 1)
        rc = cuda_clock_open(g, err);
    if (rc == RS_OK)
        rc = alloc_halves(g, err);
    if (rc == RS_OK)
        rc = fill_rope(g, err);
    return rc;
}

static void open_gpu(struct cuda_gpu *g)
{
    struct rs_error *err = &g->err;
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&g->aside, cudaStreamNonBlocking);
    for (uint32_t i = 0; i < g->c->n_gpus && e == cudaSuccess; i++) {
        if (i == g->index)
            continue;
        int can = 0;
        e = cudaDeviceCanAccessPeer(&can, g->device, g->c->gpu[i].device);
        if (e == cudaSuccess && can == 0) {
            g->rc = error_set(err, RS_EENGINE, "GPU %d cannot reach the memory of GPU %d", g->device, g->c->gpu[i].device);
            return;
        }
        if (e == cudaSuccess)
            e = cudaDeviceEnablePeerAccess(g->c->gpu[i].device, 0);
        if (e == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
            e = cudaSuccess;
        }
    }
    if (e != cudaSuccess) {
        g->rc = cuda_fail(err, e, "start", g->device);
        return;
    }
    g->rc = alloc_gpu(g, err);
    for (uint32_t i = 0; i < g->n_local && g->rc == RS_OK; i++)
        g->rc = alloc_rank(g, &g->local[i], err);
    if (g->rc == RS_OK)
        g->rc = cuda_load(g, err);
    if (g->rc == RS_OK)
        g->rc = cuda_room_open(g, err);
    if (g->rc == RS_OK) {
        e = cudaStreamSynchronize(g->stream);
        if (e != cudaSuccess)
            g->rc = cuda_fail(err, e, "load", g->device);
    }
}

static void close_gpu(struct cuda_gpu *g)
{
    const uint32_t layers = g->c->hp->n_layers + g->c->hp->n_nextn;
    (void)cudaSetDevice(g->device);
    if (cuda_span_stopped(g->c))
        cuda_span_leave(g);
    if (g->stream != NULL)
        (void)cudaStreamSynchronize(g->stream);
    cuda_exec_close(g); /* graphs before the communicator that they captured: its destruction waits for them */
    comm_nccl_close(g->nccl, false);
    for (uint32_t i = 0; i < g->n_local && g->local != NULL; i++) {
        struct cuda_rank *r = &g->local[i];
        for (int b = 0; b < BUF_COUNT; b++) {
            (void)cudaFree(r->buf[b]);
            (void)cudaFree(r->q8[b]);
        }
        for (uint32_t l = 0; l < layers; l++) {
            if (r->kv != NULL)
                (void)cudaFree(r->kv[l]);
            if (r->ik != NULL)
                (void)cudaFree(r->ik[l]);
        }
        free(r->kv);
        free(r->ik);
        free(r->mat[0]);
        free(r->mat[1]);
        free(r->arith[0]);
        free(r->arith[1]);
        (void)cudaFree(r->arrived);
        (void)cudaFree(r->words);
        (void)cudaFree(r->plan);
        (void)cudaFree(r->top_parts);
        (void)cudaFree(r->top_arrived);
        (void)cudaFree(r->weights);
        (void)cudaFree(r->kept);
    }
    free(g->local);
    free(g->launched);
    free(g->where);
    (void)cudaFree(g->meta);
    (void)cudaFree(g->rope_cos);
    (void)cudaFree(g->scratch);
    (void)cudaFree(g->pairs);
    (void)cudaFree(g->room);
    for (int k = 0; k < 2; k++) {
        (void)cudaFree(g->half[k]);
        (void)cudaFree(g->half_scale[k]);
    }
    (void)cudaFree(g->recv);
    (void)cudaFree(g->sent);
    (void)cudaFree(g->flags);
    (void)cudaFree(g->payload);
    (void)cudaFree(g->probe_parts);
    (void)cudaFree(g->probe_arrived);
    free(g->walk);
    cuda_clock_close(g);
    (void)cudaFreeHost(g->meta_host);
    (void)cudaFreeHost(g->stamp);
    (void)cudaFreeHost(g->ready);
    (void)cudaFreeHost(g->bounce);
    if (g->stream != NULL)
        (void)cudaStreamDestroy(g->stream);
    if (g->aside != NULL)
        (void)cudaStreamDestroy(g->aside);
}

/* ---- threads ---- */

static void *gpu_main(void *arg)
{
    struct cuda_gpu *g = arg;
    struct cuda *c = g->c;
    uint64_t seen = 0;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->job == seen && !c->quit)
            pthread_cond_wait(&c->wake, &c->lock);
        if (c->quit)
            break;
        seen = c->job;
        void (*work)(struct cuda_gpu *) = c->work;
        pthread_mutex_unlock(&c->lock);
        work(g);
        pthread_mutex_lock(&c->lock);
        if (--c->running == 0)
            pthread_cond_signal(&c->idle);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum rs_result cuda_all(struct cuda *c, void (*work)(struct cuda_gpu *), struct rs_error *err)
{
    for (uint32_t i = 0; i < c->n_gpus; i++)
        c->gpu[i].rc = RS_OK;
    if (cuda_alone(c)) {
        work(&c->gpu[0]);
        if (c->gpu[0].rc != RS_OK && err != NULL)
            *err = c->gpu[0].err;
        return c->gpu[0].rc;
    }
    pthread_mutex_lock(&c->lock);
    c->work = work;
    c->running = c->n_gpus;
    c->job++;
    pthread_cond_broadcast(&c->wake);
    if (c->lim.loading != NULL) { /* also before a load that is soon over */
        pthread_mutex_unlock(&c->lock);
        loading_look(c->lim.loading);
        pthread_mutex_lock(&c->lock);
    }
    for (bool more = c->meanwhile != NULL; more && c->running != 0;) {
        pthread_mutex_unlock(&c->lock);
        more = c->meanwhile(c->meanwhile_arg);
        pthread_mutex_lock(&c->lock);
    }
    while (c->running != 0 && c->lim.loading == NULL && !c->stuck.asks && !c->span.waits)
        pthread_cond_wait(&c->idle, &c->lock);
    while (c->running != 0) { /* while weights are loaded, and in a step: who waits is told, and may stop it */
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&c->idle, &c->lock, &until) == 0)
            continue; /* all are through, most likely */
        pthread_mutex_unlock(&c->lock);
        loading_look(c->lim.loading);
        if (c->stuck.asks)
            cuda_fault_look(c);
        if (c->span.waits)
            cuda_span_look(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_gpus; i++)
        if (c->gpu[i].rc != RS_OK) {
            if (err != NULL)
                *err = c->gpu[i].err;
            return c->gpu[i].rc;
        }
    return RS_OK;
}

static enum rs_result start_threads(struct cuda *c, struct rs_error *err)
{
    for (uint32_t i = 0; i < c->n_gpus; i++) {
        if (pthread_create(&c->gpu[i].thread, NULL, gpu_main, &c->gpu[i]) != 0)
            return error_set(err, RS_EIO, "cannot start a thread for GPU %d", c->gpu[i].device);
        c->gpu[i].has_thread = true;
    }
    return RS_OK;
}

static void cuda_close(struct backend *b)
{
    struct cuda *c = (struct cuda *)b;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_gpus; i++)
        if (c->gpu[i].has_thread)
            pthread_join(c->gpu[i].thread, NULL);
    for (uint32_t i = 0; i < c->n_gpus; i++)
        close_gpu(&c->gpu[i]);
    cuda_probe_close(c);
    cuda_logits_close(c);
    cuda_span_close(c);
    (void)cudaFreeHost(c->fault);
    free(c->us[0]);
    free(c->us[1]);
    free(c->reduces);
    free(c->pair);
    cuda_nvml_close(c->nvml);
    free(c->nccl);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->idle);
    free(c);
}

/* ---- the backend's calls ---- */

static enum rs_result cuda_step(struct backend *b, const struct backend_step *s, struct rs_error *err)
{
    return cuda_exec_step((struct cuda *)b, s, err);
}

static enum rs_result cuda_reserve(struct backend *b, uint32_t n_keys, struct rs_error *err)
{
    struct cuda *c = (struct cuda *)b;
    return n_keys <= c->lim.max_keys
               ? cuda_clock_align(c, err)
               : error_set(err, RS_EUSAGE, "a sequence of %u tokens, but room was made for %u", n_keys, c->lim.max_keys);
}

static const float *cuda_logits(struct backend *b, uint32_t i)
{
    return cuda_logits_row((struct cuda *)b, i);
}

/* Launches hide behind the kernels of so many rows, and a mixture of prompts hardly comes twice. A graph takes as long to be made as it saves in a dozen such steps, and
 * while many sequences end one after the other a size comes once or twice: it is made for sizes that come again. */
static bool cuda_replays(struct backend *b, const struct batch *batch)
{
    struct cuda *c = (struct cuda *)b;
    if (batch->n_rows <= CUDA_EAGER_ROWS)
        return true;
    if ((cuda_lists_sorts(batch) & CUDA_PROMPT) != 0)
        return false;
    const unsigned octave = 31 - (unsigned)__builtin_clz(batch->bucket);
    uint8_t *wanted = &c->wanted[octave][batch->bucket >> (octave - 3) & 7];
    *wanted += *wanted < CUDA_WANTED;
    return *wanted == CUDA_WANTED;
}

static const float *cuda_op_us(struct backend *b, uint32_t *n_ops)
{
    struct cuda *c = (struct cuda *)b;
    *n_ops = c->last_ops[0];
    return c->us[0];
}

static const float *cuda_next_us(struct backend *b, uint32_t *n_ops)
{
    struct cuda *c = (struct cuda *)b;
    *n_ops = c->last_ops[1];
    return c->us[1];
}

static enum op_arith cuda_arith(struct backend *b, const struct program *p, uint32_t op, uint32_t rank)
{
    struct cuda *c = (struct cuda *)b;
    struct cuda_gpu *g;
    const struct cuda_rank *r = cuda_find_rank(c, rank, &g);
    return r != NULL ? (enum op_arith)r->arith[cuda_prog(c, p)][op] : ARITH_NONE;
}

static const struct backend_reduce *cuda_reduces(struct backend *b)
{
    return ((struct cuda *)b)->reduces;
}

static void cuda_device_figures(struct backend *b, uint32_t rank, struct rs_rank_snapshot *out)
{
    const struct cuda *c = (const struct cuda *)b;
    const struct cuda_nvml_figures f = cuda_nvml_get(c->nvml, c->gpu_of[rank]);
    out->gpu_util = f.util;
    out->gpu_temp_c = f.temp_c;
    out->gpu_power_w = f.power_w;
    out->mem_used = f.mem_used;
    out->mem_total = f.mem_total;
}

static bool cuda_dead(struct backend *b)
{
    return ((const struct cuda *)b)->dead;
}

static void cuda_memory(struct backend *b, uint32_t rank, uint64_t *weights, uint64_t *cache, uint64_t *buffers)
{
    struct cuda_gpu *g;
    const struct cuda_rank *r = cuda_find_rank((struct cuda *)b, rank, &g);
    *weights = r != NULL ? r->bytes_weights : 0;
    *cache = r != NULL ? r->bytes_cache : 0;
    *buffers = r != NULL ? r->bytes_buffers : 0;
}

static uint32_t cuda_graphs(struct backend *b, struct backend_graph *out, uint32_t cap)
{
    return cuda_exec_graphs((struct cuda *)b, out, cap);
}

static const struct backend_sweep *cuda_sweep_of(struct backend *b)
{
    return &((const struct cuda *)b)->sweep;
}

/* What an all-reduce of the last step was: a name of CUDA_IMPLS. */
static const char *cuda_ran_as(struct backend *b, const struct program *p, const struct choice *ch)
{
    const struct cuda *c = (const struct cuda *)b;
    const uint32_t rows = c->ran_rows[cuda_prog(c, p)];
    if (ch->impl->kind != OP_ALLREDUCE || strcmp(ch->impl->name, "auto") != 0 || rows == 0)
        return ch->impl->name;
    return cuda_reduce_how(c, ch, rows) == CUDA_REDUCE_TWO_SHOT ? "two-shot" : "flat";
}

static void cuda_retire(struct backend *b, uint64_t generation)
{
    cuda_exec_retire((struct cuda *)b, generation);
}

static void job_nccl(struct cuda_gpu *g)
{
    (void)cudaSetDevice(g->device);
    (void)cudaStreamSynchronize(g->stream);
    cuda_exec_close(g); /* graphs before the communicator that they captured: its destruction waits for them */
    comm_nccl_close(g->nccl, false);
    g->nccl = NULL;
    g->rc = comm_nccl_open(g->c, g->index, &g->nccl, &g->err);
    if (g->rc != RS_OK && g->c->span.waits)
        cuda_span_leave(g);
}

enum rs_result cuda_open_nccl(struct cuda *c, uint8_t how, struct rs_error *err)
{
    enum rs_result rc = cuda_all(c, job_nccl, err);
    c->nccl_open = rc == RS_OK;
    c->nccl_how = how;
    return rc;
}

enum rs_result cuda_prepare(struct cuda *c, const struct program *p, const struct choice *choices, struct rs_error *err)
{
    const struct choice *ch = NULL;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_MLA && strcmp(choices[i].impl->name, "expanded") == 0 &&
            !kcu_mla_expands(c->hp->nope, c->hp->kv_lora, c->hp->rope, c->hp->v_head))
            return error_set(err, RS_EUNSUPPORTED, "op %s: mla=expanded takes heads of up to 256 values on GPUs, 512 together with their keys; "
                             "this model has %u and %u (use absorbed)", p->ops[i].site, c->hp->v_head, c->hp->nope + c->hp->v_head);
    if (c->lim.span != NULL) {
        enum rs_result joined = cuda_span_prepare(c, p, choices, err);
        c->prepared = joined == RS_OK ? c->prepared : 0;
        return joined;
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (c->n_gpus == 1 && p->ops[i].kind == OP_ALLREDUCE && strcmp(choices[i].impl->name, "two-shot") == 0)
            return error_set(err, RS_EUNSUPPORTED, "op %s: allreduce=two-shot takes several GPUs; this model is on one (use flat, or auto)", p->ops[i].site);
    for (uint32_t i = 0; i < p->n_ops && ch == NULL; i++)
        if (p->ops[i].kind == OP_ALLREDUCE && strcmp(choices[i].impl->name, "nccl") == 0)
            ch = &choices[i];
    if (ch == NULL || (c->nccl_open && c->nccl_how == ch->nccl))
        return RS_OK;
    if (c->n_gpus == 1 || c->n_gpus != c->n_ranks)
        return error_set(err, RS_EUNSUPPORTED, "allreduce=nccl takes one rank per GPU and several GPUs; there are %u ranks on %u (use flat)",
                         c->n_ranks, c->n_gpus);
    enum rs_result rc = comm_nccl_prepare(c, ch->nccl, err);
    c->nccl_open &= rc == RS_OK;
    if (rc == RS_OK)
        rc = cuda_open_nccl(c, ch->nccl, err);
    if (rc != RS_OK)
        c->prepared = 0; /* the next step makes what its choices need */
    return rc;
}

static enum rs_result cuda_prepare_choices(struct backend *b, const struct program *p, const struct choice *choices, struct rs_error *err)
{
    return cuda_prepare((struct cuda *)b, p, choices, err);
}

static const struct backend_ops CUDA_OPS = {
    .name = "cuda",
    .close = cuda_close,
    .step = cuda_step,
    .reserve = cuda_reserve,
    .logits = cuda_logits,
    .likeliest = cuda_logits_likeliest,
    .replays = cuda_replays,
    .pads = true,
    .overlaps = true,
    .inspects = true,
    .inspects_next = true,
    .read = cuda_look_read,
    .write = cuda_look_write,
    .copy_block = cuda_look_copy_block,
    .cache_get = cuda_look_cache_get,
    .cache_put = cuda_look_cache_put,
    .pairs = cuda_look_pairs,
    .op_us = cuda_op_us,
    .next_us = cuda_next_us,
    .arith = cuda_arith,
    .reduces = cuda_reduces,
    .device = cuda_device_figures,
    .dead = cuda_dead,
    .memory = cuda_memory,
    .retire = cuda_retire,
    .graphs = cuda_graphs,
    .sweep = cuda_sweep_of,
    .ran_as = cuda_ran_as,
    .prepare = cuda_prepare_choices,
};

/* ---- opening ---- */

/* What the kernels take for granted about shapes. */
static enum rs_result check_shapes(const struct hparams *hp, struct rs_error *err)
{
    if (hp->n_embd % 4 != 0 || hp->q_lora % 4 != 0 || hp->kv_lora % 4 != 0 || hp->rope % 2 != 0 || hp->nope % 4 != 0 ||
        hp->v_head % 4 != 0 || hp->kv_lora > 512 || hp->n_used > 15)
        return error_set(
            err, RS_EUNSUPPORTED,
            "the CUDA backend takes widths that are multiples of 4, latents of at most 512 values and at most 15 experts per token");
    return RS_OK;
}

static void deal_ranks(struct cuda *c)
{
    for (uint32_t i = 0; i < c->n_gpus; i++) {
        struct cuda_gpu *g = &c->gpu[i];
        struct shard_range r = shard_deal(c->n_ranks, 1, c->n_gpus, i);
        g->c = c;
        g->index = i;
        g->device = c->cfg.n_listed != 0 ? c->cfg.device[i] : (int)i;
        g->rank0 = r.from;
        g->n_local = r.to - r.from;
        for (uint32_t k = g->rank0; k < g->rank0 + g->n_local; k++)
            c->gpu_of[k] = (uint8_t)i;
    }
}

static enum rs_result open_all(struct cuda *c, struct rs_error *err)
{
    cudaError_t e = cudaSetDevice(c->gpu[0].device);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&c->fault, KCU_MAX_GPUS * sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "pinned memory", c->gpu[0].device);
    memset(c->fault, 0, KCU_MAX_GPUS * sizeof(uint32_t));
    c->us[0] = calloc((size_t)c->cap_ops * c->n_ranks, sizeof *c->us[0]);
    c->us[1] = calloc((size_t)c->cap_ops * c->n_ranks, sizeof *c->us[1]);
    c->reduces = calloc((size_t)c->cap_ops * c->n_ranks, sizeof *c->reduces);
    if (c->us[0] == NULL || c->us[1] == NULL || c->reduces == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for op timings");
    for (uint32_t i = 0; i < c->n_gpus; i++) {
        struct cuda_gpu *g = &c->gpu[i];
        g->local = calloc(g->n_local ? g->n_local : 1, sizeof *g->local);
        if (g->local == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for ranks");
        for (uint32_t j = 0; j < g->n_local; j++)
            g->local[j].rank = g->rank0 + j;
    }
    int device[KCU_MAX_GPUS], sms = 0;
    c->two_shot_blocks = KCU_TWO_SHOT_BLOCKS;
    for (uint32_t i = 0; i < c->n_gpus; i++) {
        device[i] = c->gpu[i].device;
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device[i]);
        if (e != cudaSuccess)
            return cuda_fail(err, e, "asking for multiprocessors", device[i]);
        c->two_shot_blocks = (uint32_t)sms < c->two_shot_blocks ? (uint32_t)sms : c->two_shot_blocks;
    }
    c->nvml = cuda_nvml_watch(device, c->n_gpus);
    enum rs_result rc = cuda_fault_room(c, err);
    if (rc == RS_OK)
        rc = cuda_logits_open(c, err);
    if (rc == RS_OK)
        rc = cuda_span_open(c, err);
    if (rc == RS_OK)
        rc = start_threads(c, err);
    return rc == RS_OK ? cuda_all(c, open_gpu, err) : rc;
}

enum rs_result backend_cuda_open(const struct hparams *hp, const struct weights *w, const struct shard_plan *shard,
                                 const struct program *main_prog, const struct program *nextn, const struct backend_limits *lim,
                                 const struct cuda_config *cfg, struct backend **out, struct rs_error *err)
{
    const char *why;
    uint32_t have = (uint32_t)backend_cuda_devices(&why), asked = cfg->n_listed != 0 ? cfg->n_listed : cfg->n_gpus;
    if (have == 0)
        return error_set(err, RS_EENGINE, "no GPU to run on: %s", why);
    for (uint32_t i = 0; i < cfg->n_listed; i++)
        if (cfg->device[i] < 0 || (uint32_t)cfg->device[i] >= have)
            return error_set(err, RS_EUSAGE, "GPU %d is not there; there are %u, from 0 on", cfg->device[i], have);
    enum rs_result rc = check_shapes(hp, err);
    if (rc != RS_OK)
        return rc;
    struct cuda *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the CUDA backend");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    pthread_cond_init(&c->idle, NULL);
    c->base.ops = &CUDA_OPS;
    c->cfg = *cfg;
    c->hp = hp;
    c->w = w;
    c->shard = shard;
    c->prog[0] = main_prog;
    c->prog[1] = nextn;
    c->lim = *lim;
    c->n_ranks = shard->n_ranks;
    c->n_gpus = asked != 0 ? asked : have < c->n_ranks ? have : c->n_ranks;
    if (c->n_gpus > have || c->n_gpus > KCU_MAX_GPUS || c->n_gpus > c->n_ranks) {
        rc =
            error_set(err, RS_EUSAGE, "%u GPUs asked for; there are %u, at most one per rank and %d in all", c->n_gpus, have, KCU_MAX_GPUS);
        c->n_gpus = 0;
        cuda_close(&c->base);
        return rc;
    }
    c->kv_row_bytes = (hp->kv_lora + hp->rope) * krn_cache_elem_bytes(lim->cache);
    c->ik_row_bytes = hp->index_heads != 0 ? hp->index_dim * krn_cache_elem_bytes(lim->cache) : 0;
    c->slot_packets = (size_t)(lim->max_rows < CUDA_RECV_ROWS ? lim->max_rows : CUDA_RECV_ROWS) * hp->n_embd / 2;
    if (c->n_gpus > 1 && lim->span == NULL)
        c->two_shot_room = ((size_t)(lim->max_rows < CUDA_TWO_SHOT_ROWS ? lim->max_rows : CUDA_TWO_SHOT_ROWS) * hp->n_embd / 4 + c->n_gpus - 1) / c->n_gpus;
    uint64_t tables = (uint64_t)lim->max_rows * (lim->max_keys / lim->block + 2 + CUDA_LIST_WORDS) + 16;
    c->cap_tables = (uint32_t)(tables < 4u << 20 ? tables : 4u << 20);
    for (int i = 0; i < 2; i++)
        if (c->prog[i] != NULL && c->prog[i]->n_ops > c->cap_ops)
            c->cap_ops = c->prog[i]->n_ops;
    c->epoch = 1;
    c->tile_rows = cuda_lists_tile_rows(c);
    deal_ranks(c);
    for (uint32_t i = 0; i < c->n_gpus && rc == RS_OK; i++)
        if (c->gpu[i].n_local > KCU_MAX_LOCAL)
            rc = error_set(err, RS_EUSAGE, "%u ranks on one GPU; at most %d", c->gpu[i].n_local, KCU_MAX_LOCAL);
    if (rc == RS_OK)
        rc = open_all(c, err);
    if (rc == RS_OK)
        rc = cuda_sweep(c, err);
    if (rc != RS_OK) {
        cuda_close(&c->base);
        return rc;
    }
    if (cfg->epoch != 0)
        c->epoch = cfg->epoch;
    c->lim.loading = NULL;
    *out = &c->base;
    return RS_OK;
}

uint32_t backend_cuda_kernels(const struct backend *b)
{
    return ((const struct cuda *)b)->gpu[0].n_kernels;
}
