/* All-reduce between GPUs: every sum of a long series checked, and the time of one inside a graph beside NCCL's. Needs two GPUs or more. */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/type.h"
#include "tests/tap.h"

enum { MAX_WIDTH = 16384, HAMMER = 100000, PER_GRAPH = 157, REPLAYS = 100 };

struct worker {
    unsigned gpu, n;
    struct worker *all;
    pthread_barrier_t *barrier;
    ncclUniqueId *id;
    pthread_t thread;
    cudaStream_t stream;
    float *part, *x, *h, *w, *other;
    uint8_t *q8;
    uint4 *recv;
    uint16_t *payload;
    uint32_t *epoch, *epoch_host, *count, *fault;
    uint32_t next;
    double us[4];
    uint32_t wrong;
    cudaError_t failed;
};

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        cudaError_t e_ = (call);                                                                                                           \
        if (e_ != cudaSuccess && t->failed == cudaSuccess) {                                                                               \
            t->failed = e_;                                                                                                                \
            fprintf(stderr, "GPU %u, line %d: %s\n", t->gpu, __LINE__, cudaGetErrorString(e_));                                            \
        }                                                                                                                                  \
    } while (0)

static void nccl_failed(struct worker *t, const char *what)
{
    fprintf(stderr, "GPU %u: NCCL: %s: %s\n", t->gpu, what, ncclGetLastError(NULL));
    t->failed = cudaErrorUnknown;
}

static struct kcu_join reduce(struct worker *t, uint32_t width, uint32_t ordinal, bool bf16, bool fused)
{
    struct kcu_join j = {.n_local = 1,
                         .part = {t->part},
                         .part_pitch = width,
                         .n = 1,
                         .width = width,
                         .eps = 1e-5f,
                         .reduce = true,
                         .bf16 = bf16,
                         .n_ranks = t->n,
                         .rank0 = t->gpu,
                         .n_gpus = t->n,
                         .gpu = t->gpu,
                         .slot_packets = MAX_WIDTH / 2,
                         .epoch = t->epoch,
                         .ordinal = ordinal,
                         .fault = t->fault,
                         .timeout_ns = 10000000000ull,
                         .delay_rank = -1};
    for (unsigned i = 0; i < t->n; i++) {
        j.gpu_of[i] = (uint8_t)i;
        j.recv[i] = t->all[i].recv;
    }
    if (fused) {
        j.x[0] = t->x;
        j.h[0] = t->h;
        j.q8[0] = t->q8;
        j.w = t->w;
        j.x_pitch = j.h_pitch = width;
        j.q8_pitch = 2 * width;
    }
    return j;
}

static void set_epoch(struct worker *t, uint32_t slot)
{
    t->epoch_host[slot] = t->next;
    TRY(cudaMemcpyAsync(t->epoch, t->epoch_host + slot, sizeof *t->epoch, cudaMemcpyHostToDevice, t->stream));
}

/* Values change with every reduce; all of them are compared with a sum made on one GPU. */
static void hammer(struct worker *t)
{
    const struct kcu_launch l = {.stream = t->stream};
    enum { WIDTH = 3072 };
    for (uint32_t i = 0; i < HAMMER && t->failed == cudaSuccess; i++) {
        if (i % 1000 == 0) {
            set_epoch(t, 0);
            TRY(cudaStreamSynchronize(t->stream));
        }
        struct kcu_join j = reduce(t, WIDTH, i % 1000, false, false);
        TRY(kcu_random(&l, KRN_F32, WIDTH, 1, 1, 0, 1000ull * i * t->n + t->gpu * 7919, (uint8_t *)t->part));
        TRY(kcu_join(&l, &j));
        for (unsigned r = 0; r < t->n; r++) {
            TRY(kcu_random(&l, KRN_F32, WIDTH, 1, 1, 0, 1000ull * i * t->n + r * 7919, (uint8_t *)(r == 0 ? t->x : t->other)));
            if (r != 0)
                TRY(kcu_add(&l, t->other, t->x, WIDTH));
        }
        TRY(kcu_compare(&l, t->part, t->x, WIDTH, t->count));
        if (i % 1000 == 999) {
            TRY(cudaStreamSynchronize(t->stream));
            t->next += 1000;
            pthread_barrier_wait(t->barrier);
        }
    }
    TRY(cudaMemcpy(&t->wrong, t->count, sizeof t->wrong, cudaMemcpyDeviceToHost));
}

/* Microseconds of one reduce in a graph of PER_GRAPH. kind: 0 NCCL, 1 one-shot, 2 one-shot with residual and norm. */
static double in_graph(struct worker *t, ncclComm_t comm, uint32_t width, int kind, bool bf16)
{
    const struct kcu_launch l = {.stream = t->stream, .pdl = true};
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t e0 = NULL, e1 = NULL;
    float ms = 0;
    TRY(cudaEventCreate(&e0));
    TRY(cudaEventCreate(&e1));
    TRY(cudaMemset(t->part, 0, MAX_WIDTH * sizeof(float))); /* sums in place: zeros stay finite */
    TRY(cudaMemset(t->x, 0x3f, MAX_WIDTH * sizeof(float)));
    TRY(cudaDeviceSynchronize());
    if (kind == 0) { /* connections are made by the first call; that cannot be captured */
        if (ncclAllReduce(t->payload, t->payload, width, ncclBfloat16, ncclSum, comm, t->stream) != ncclSuccess)
            nccl_failed(t, "all-reduce");
        TRY(cudaStreamSynchronize(t->stream));
    }
    TRY(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < PER_GRAPH; i++) {
        if (kind == 0) {
            if (ncclAllReduce(t->payload, t->payload, width, ncclBfloat16, ncclSum, comm, t->stream) != ncclSuccess)
                nccl_failed(t, "all-reduce in a capture");
        } else {
            struct kcu_join j = reduce(t, width, i, bf16, kind == 2);
            struct kcu_launch first = l;
            first.pdl = i != 0;
            TRY(kcu_join(&first, &j));
        }
    }
    TRY(cudaStreamEndCapture(t->stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        pthread_barrier_wait(t->barrier);
        TRY(cudaEventRecord(e0, t->stream));
        for (uint32_t i = 0; i < REPLAYS && t->failed == cudaSuccess; i++) {
            set_epoch(t, i);
            TRY(cudaGraphLaunch(exec, t->stream));
            t->next += PER_GRAPH;
        }
        TRY(cudaEventRecord(e1, t->stream));
        TRY(cudaStreamSynchronize(t->stream));
        TRY(cudaEventElapsedTime(&ms, e0, e1));
    }
    pthread_barrier_wait(t->barrier);
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(e0);
    (void)cudaEventDestroy(e1);
    return (double)ms * 1e3 / REPLAYS / PER_GRAPH;
}

static void *run(void *arg)
{
    struct worker *t = arg;
    ncclComm_t comm = NULL;
    TRY(cudaSetDevice((int)t->gpu));
    for (unsigned i = 0; i < t->n; i++)
        if (i != t->gpu)
            TRY(cudaDeviceEnablePeerAccess((int)i, 0));
    TRY(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    const size_t recv = 2 * (size_t)t->n * MAX_WIDTH / 2 * sizeof(uint4);
    TRY(cudaMalloc((void **)&t->recv, recv));
    TRY(cudaMemset(t->recv, 0, recv));
    float **f[] = {&t->part, &t->x, &t->h, &t->w, &t->other};
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        TRY(cudaMalloc((void **)f[i], MAX_WIDTH * sizeof(float)));
        TRY(cudaMemset(*f[i], 0, MAX_WIDTH * sizeof(float)));
    }
    TRY(cudaMalloc((void **)&t->q8, 2 * MAX_WIDTH));
    TRY(cudaMalloc((void **)&t->payload, 2 * MAX_WIDTH));
    TRY(cudaMemset(t->payload, 0, 2 * MAX_WIDTH));
    TRY(cudaMalloc((void **)&t->epoch, 64));
    TRY(cudaMalloc((void **)&t->count, 64));
    TRY(cudaMemset(t->count, 0, 64));
    TRY(cudaHostAlloc((void **)&t->epoch_host, REPLAYS * sizeof(uint32_t), cudaHostAllocDefault));
    TRY(cudaHostAlloc((void **)&t->fault, 64, cudaHostAllocMapped));
    if (t->fault != NULL)
        *t->fault = 0;
    TRY(cudaDeviceSynchronize());
    t->next = 1;
    if (ncclCommInitRank(&comm, (int)t->n, *t->id, (int)t->gpu) != ncclSuccess)
        nccl_failed(t, "start");
    pthread_barrier_wait(t->barrier);
    hammer(t);
    pthread_barrier_wait(t->barrier);
    static const uint32_t widths[] = {2048, 6144, 8192, 16384};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        const uint32_t w = widths[i];
        t->us[0] = in_graph(t, comm, w, 0, true);
        t->us[1] = in_graph(t, comm, w, 1, true);
        t->us[2] = in_graph(t, comm, w, 1, false);
        t->us[3] = in_graph(t, comm, w, 2, true);
        if (t->gpu == 0)
            tap_diag("%6u B bf16, us in a graph: NCCL %.2f, one-shot %.2f, f32 payload %.2f, with residual, norm, int8 %.2f", 2 * w,
                     t->us[0], t->us[1], t->us[2], t->us[3]);
    }
    ncclCommDestroy(comm);
    return NULL;
}

int main(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2)
        tap_skip_all("needs two GPUs; there are %d", n);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    struct worker t[KCU_MAX_GPUS];
    ncclUniqueId id;
    pthread_barrier_t barrier;
    memset(t, 0, sizeof t);
    n = n < KCU_MAX_GPUS ? n : KCU_MAX_GPUS;
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    if (ncclGetUniqueId(&id) != ncclSuccess)
        tap_skip_all("NCCL does not start");
    for (int i = 0; i < n; i++) {
        t[i].gpu = (unsigned)i;
        t[i].n = (unsigned)n;
        t[i].all = t;
        t[i].barrier = &barrier;
        t[i].id = &id;
        pthread_create(&t[i].thread, NULL, run, &t[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        tap_ok(t[i].failed == cudaSuccess && *t[i].fault == 0, "GPU %d: all calls succeed, nobody stays away", i);
        tap_eq_int(t[i].wrong, 0, "GPU %d: every value of %d back-to-back sums", i, HAMMER);
    }
    return tap_done();
}
