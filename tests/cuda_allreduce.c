/* All-reduce between GPUs: every value of long series of sums checked, then the time of one by size, in graphs and launched one by one, beside
 * NCCL's.
 *
 *   cuda_allreduce [--gpus N] [--sums N] [--no-table]
 *
 * Without --gpus all GPUs take part. N may be more than there are: then streams of one stand for several, without NCCL and without launches
 * ahead of time; kernels are the same, and small enough to be resident together. A lone GPU stands for three, so that parts are uneven. */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/type.h"
#include "tests/tap.h"

enum {
    LONGEST = 8 << 20,        /* values of a sum: 16 MB of bf16 */
    HAMMERED = 1 << 18,       /* the most of those whose values are compared */
    WIDTH = 8192, ROWS = 64,  /* of a launch in one shot, at most */
    LOCAL = 2,                /* ranks of a worker in some of the sums */
    BATCH = 1000,             /* sums between two looks at what was wrong */
    GRAPHS = 4, PER_GRAPH = 50, /* sums that are compared */
    STACK = 5                 /* sums of 2^k ranks under way, in a tree of up to KCU_MAX_GPUS * LOCAL */
};

enum kind { NCCL, ONE_SHOT, TREE, TWO_SHOT, FUSED, KINDS };
static const char *const KIND[] = {"NCCL", "one-shot", "tree", "two-shot", "one-shot + residual, norm, int8"};

struct worker {
    unsigned gpu, n;
    int device;
    bool shared;     /* several workers have this device */
    unsigned blocks; /* of a sum in two shots */
    uint32_t sums;
    bool table;
    struct worker *all;
    pthread_barrier_t *barrier;
    ncclUniqueId *id;
    pthread_t thread;
    cudaStream_t stream;
    ncclComm_t comm;
    float *part[LOCAL], *sum[STACK], *x, *h, *w;
    uint8_t *q8;
    uint4 *recv;
    void *sent;
    uint32_t *flags;
    uint16_t *payload;
    uint32_t *epoch, *epoch_host, *count, *count_host, *fault;
    uint32_t next;
    double us[KINDS][2];
    uint32_t wrong[3]; /* sums, of every series */
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

/* One sum: how, of how many values, by how many ranks of every worker, and whether one of them is late on purpose. */
struct sum {
    enum kind kind;
    uint32_t n, each;
    bool bf16;
    int32_t late;
};

/* ---- one sum ---- */

static struct kcu_join one_shot(struct worker *t, const struct sum *s)
{
    const uint32_t width = s->n < WIDTH ? s->n : WIDTH;
    struct kcu_join j = {.n_local = s->each, .part_pitch = width, .width = width, .eps = 1e-5f, .reduce = true, .bf16 = s->bf16, .tree = s->kind == TREE,
                         .n_ranks = t->n * s->each, .rank0 = t->gpu * s->each, .n_gpus = t->n, .gpu = t->gpu, .slot_packets = ROWS * WIDTH / 2,
                         .epoch = t->epoch, .fault = t->fault, .timeout_ns = 10000000000ull, .delay_rank = s->late, .delay_ns = s->late >= 0 ? 30000 : 0};
    for (unsigned i = 0; i < t->n; i++) {
        for (unsigned k = 0; k < s->each; k++)
            j.gpu_of[i * s->each + k] = (uint8_t)i;
        j.recv[i] = t->all[i].recv;
    }
    if (s->kind == FUSED) {
        j.w = t->w;
        j.x_pitch = j.h_pitch = width;
        j.q8_pitch = 2 * width;
    }
    return j;
}

static struct kcu_two_shot two_shot(struct worker *t, const struct sum *s, uint32_t ordinal)
{
    struct kcu_two_shot a = {.n = s->n, .bf16 = s->bf16, .n_ranks = t->n * s->each, .rank0 = t->gpu * s->each, .n_local = s->each, .n_gpus = t->n,
                             .gpu = t->gpu, .room = (LONGEST / 4 + t->n - 1) / t->n, .max_blocks = t->blocks, .epoch = t->epoch, .ordinal = ordinal,
                             .fault = t->fault, .timeout_ns = 10000000000ull, .delay_rank = s->late, .delay_ns = s->late >= 0 ? 30000 : 0};
    for (unsigned i = 0; i < t->n; i++) {
        a.rank_of[i] = (uint8_t)(i * s->each);
        a.sent[i] = t->all[i].sent;
        a.flags[i] = t->all[i].flags;
        for (unsigned k = 0; k < s->each; k++) {
            a.gpu_of[i * s->each + k] = (uint8_t)i;
            a.part[i * s->each + k] = t->all[i].part[k];
        }
    }
    return a;
}

/* Launch the sum over t->part; *ordinal grows by the epochs that it takes. */
static void launch_sum(struct worker *t, const struct kcu_launch *first, const struct sum *s, uint32_t *ordinal)
{
    struct kcu_launch l = *first;
    if (s->kind == NCCL) {
        if (ncclAllReduce(t->payload, t->payload, s->n, ncclBfloat16, ncclSum, t->comm, t->stream) != ncclSuccess) {
            fprintf(stderr, "GPU %u: NCCL: %s\n", t->gpu, ncclGetLastError(NULL));
            t->failed = cudaErrorUnknown;
        }
        return;
    }
    if (s->kind == TWO_SHOT) {
        struct kcu_two_shot a = two_shot(t, s, (*ordinal)++);
        TRY(kcu_two_shot(&l, &a));
        return;
    }
    struct kcu_join j = one_shot(t, s);
    for (uint32_t row = 0; row < s->n / j.width; row += ROWS) {
        j.n = s->n / j.width - row < ROWS ? s->n / j.width - row : ROWS;
        j.ordinal = (*ordinal)++;
        for (unsigned k = 0; k < s->each; k++)
            j.part[k] = t->part[k] + (size_t)row * j.width;
        if (s->kind == FUSED) {
            j.x[0] = t->x + (size_t)row * j.width;
            j.h[0] = t->h + (size_t)row * j.width;
            j.q8[0] = t->q8 + (size_t)row * j.q8_pitch;
        }
        TRY(kcu_join(&l, &j));
        l.pdl = !t->shared;
    }
}

static void set_epoch(struct worker *t, uint32_t slot)
{
    t->epoch_host[slot] = t->next;
    TRY(cudaMemcpyAsync(t->epoch, t->epoch_host + slot, sizeof *t->epoch, cudaMemcpyHostToDevice, t->stream));
}

/* ---- what it must be ---- */

static void summand(struct worker *t, uint32_t seed, unsigned rank, size_t n, float *to)
{
    const struct kcu_launch l = {.stream = t->stream};
    TRY(kcu_random(&l, KRN_F32, (uint32_t)n, 1, 1, 0, (1000ull * seed + rank) * 7919, (uint8_t *)to));
}

/* As the payload brings it. */
static void round_off(struct worker *t, const struct sum *s, float *x)
{
    const struct kcu_launch l = {.stream = t->stream};
    if (s->bf16) {
        TRY(kcu_to_bf16(&l, x, t->payload, s->n));
        TRY(kcu_from_bf16(&l, t->payload, x, s->n));
    }
}

/* The sum of all ranks on this GPU alone, in t->sum[0]: seed's summands, or, where they have been summed before, as many times what is there. */
static void expect(struct worker *t, const struct sum *s, uint32_t seed, bool again)
{
    const struct kcu_launch l = {.stream = t->stream};
    const uint32_t ranks = t->n * s->each;
    unsigned depth = 0;
    if (again)
        TRY(cudaMemcpyAsync(t->h, t->sum[0], s->n * sizeof(float), cudaMemcpyDeviceToDevice, t->stream));
    for (unsigned r = 0; r < ranks; r++) {
        float *to = t->sum[depth++];
        if (again)
            TRY(cudaMemcpyAsync(to, t->h, s->n * sizeof(float), cudaMemcpyDeviceToDevice, t->stream));
        else
            summand(t, seed, r, s->n, to);
        round_off(t, s, to);
        for (unsigned i = r; s->kind == TREE ? (i & 1) != 0 : r > 0 && depth > 1; i /= 2, depth--)
            TRY(kcu_add(&l, t->sum[depth - 1], t->sum[depth - 2], s->n));
    }
    for (; depth > 1; depth--)
        TRY(kcu_add(&l, t->sum[depth - 1], t->sum[depth - 2], s->n));
}

/* ---- series ---- */

/* Sum i of a series: lengths, payloads, ranks and ways follow each other in every order. */
static struct sum plan(const struct worker *t, uint32_t i, bool two)
{
    static const uint32_t SIZES[] = {3072, 4, 20, 6144, 2052, 40000, 12288, 1000};
    struct sum s = {.kind = i % 4 == 3 ? TREE : ONE_SHOT, .n = 3072, .each = i % 7 == 3 ? LOCAL : 1, .bf16 = i % 3 == 1, .late = -1};
    if (two && i % 5 != 4)
        s = (struct sum){.kind = TWO_SHOT, .n = i % 1000 == 7 ? HAMMERED : SIZES[i % 8], .each = s.each, .bf16 = s.bf16, .late = -1};
    if (i % 61 == 0)
        s.late = (int32_t)(i / 61 % (t->n * s.each));
    return s;
}

/* What was wrong in sums [from, from + n), by their counters. */
static uint32_t look(struct worker *t, const char *series, uint32_t from, uint32_t n, bool two, uint32_t told)
{
    uint32_t wrong = 0;
    TRY(cudaMemcpyAsync(t->count_host, t->count, n * sizeof *t->count, cudaMemcpyDeviceToHost, t->stream));
    TRY(cudaMemsetAsync(t->count, 0, n * sizeof *t->count, t->stream));
    TRY(cudaStreamSynchronize(t->stream));
    for (uint32_t i = 0; i < n; i++) {
        const struct sum s = plan(t, from + i, two);
        if (t->count_host[i] != 0 && told + wrong++ < 8)
            fprintf(stderr, "GPU %u: %s: sum %u (%s, %u values, %u ranks each, %s): %u values are wrong\n", t->gpu, series, from + i, KIND[s.kind], s.n, s.each,
                    s.bf16 ? "bf16" : "f32", t->count_host[i]);
    }
    return wrong;
}

/* Launched one by one. */
static uint32_t hammer(struct worker *t, const char *series, bool two)
{
    const struct kcu_launch l = {.stream = t->stream};
    uint32_t wrong = 0;
    for (uint32_t from = 0; from < t->sums; from += BATCH) { /* who has failed only meets the others */
        uint32_t ordinal = 0;
        pthread_barrier_wait(t->barrier);
        set_epoch(t, 0);
        for (uint32_t i = from; i < from + BATCH && t->failed == cudaSuccess; i++) {
            const struct sum s = plan(t, i, two);
            for (unsigned k = 0; k < s.each; k++)
                summand(t, i, t->gpu * s.each + k, s.n, t->part[k]);
            launch_sum(t, &l, &s, &ordinal);
            expect(t, &s, i, false);
            for (unsigned k = 0; k < s.each; k++)
                TRY(kcu_compare(&l, t->part[k], t->sum[0], s.n, t->count + i - from));
        }
        wrong += look(t, series, from, BATCH, two, wrong);
        t->next += ordinal;
    }
    return wrong;
}

/* A graph of PER_GRAPH sums, each of them summed once more right behind, without anything between: kernels begin before their predecessors have
 * ended. */
static cudaGraphExec_t make_graph(struct worker *t, uint32_t from, uint32_t *ordinal)
{
    struct kcu_launch l = {.stream = t->stream};
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    *ordinal = 0;
    TRY(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = from; i < from + PER_GRAPH; i++) {
        const struct sum s = plan(t, i, true);
        for (unsigned k = 0; k < s.each; k++)
            summand(t, i, t->gpu * s.each + k, s.n, t->part[k]);
        launch_sum(t, &l, &s, ordinal);
        l.pdl = !t->shared;
        launch_sum(t, &l, &s, ordinal);
        l.pdl = false;
        expect(t, &s, i, false);
        expect(t, &s, i, true);
        for (unsigned k = 0; k < s.each; k++)
            TRY(kcu_compare(&l, t->part[k], t->sum[0], s.n, t->count + i));
    }
    TRY(cudaStreamEndCapture(t->stream, &graph));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    (void)cudaGraphDestroy(graph);
    return exec;
}

static uint32_t hammer_graphs(struct worker *t)
{
    cudaGraphExec_t exec[GRAPHS] = {NULL};
    uint32_t ordinals[GRAPHS], wrong = 0;
    for (uint32_t g = 0; g < GRAPHS; g++) /* graph 0 has the longest sum */
        exec[g] = make_graph(t, g * PER_GRAPH, &ordinals[g]);
    pthread_barrier_wait(t->barrier);
    for (uint32_t i = 0; i < t->sums / PER_GRAPH && t->failed == cudaSuccess; i++) {
        const uint32_t g = i * 7 / 3 % GRAPHS;
        set_epoch(t, i % 8);
        TRY(cudaGraphLaunch(exec[g], t->stream));
        t->next += ordinals[g];
        if (i % 8 == 7)
            wrong += look(t, "in graphs", 0, GRAPHS * PER_GRAPH, true, wrong);
    }
    wrong += look(t, "in graphs", 0, GRAPHS * PER_GRAPH, true, wrong);
    pthread_barrier_wait(t->barrier);
    for (uint32_t g = 0; g < GRAPHS; g++)
        (void)cudaGraphExecDestroy(exec[g]);
    return wrong;
}

/* ---- times ---- */

static void launch_row(struct worker *t, const struct sum *s, uint32_t n, uint32_t *ordinals)
{
    struct kcu_launch l = {.stream = t->stream};
    *ordinals = 0;
    for (uint32_t i = 0; i < n; i++, l.pdl = !t->shared)
        launch_sum(t, &l, s, ordinals);
}

/* Microseconds of one sum, in a graph of several or launched one by one. */
static double time_of(struct worker *t, const struct sum *s, bool in_graph)
{
    const uint32_t in_a_row = s->n < LONGEST / 256 ? 100 : 12, replays = s->n < LONGEST / 256 ? 20 : 4;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t e0 = NULL, e1 = NULL;
    float ms = 0;
    uint32_t ordinal = 0;
    TRY(cudaEventCreate(&e0));
    TRY(cudaEventCreate(&e1));
    TRY(cudaMemsetAsync(t->part[0], 0, (size_t)s->n * sizeof(float), t->stream)); /* sums in place: zeros stay finite */
    TRY(cudaMemsetAsync(t->x, 0, (size_t)s->n * sizeof(float), t->stream));
    if (s->kind == NCCL) /* connections are made by the first call; that cannot be captured */
        launch_sum(t, &(struct kcu_launch){.stream = t->stream}, s, &ordinal);
    TRY(cudaStreamSynchronize(t->stream));
    if (in_graph) {
        TRY(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
        launch_row(t, s, in_a_row, &ordinal);
        TRY(cudaStreamEndCapture(t->stream, &graph));
        TRY(cudaGraphInstantiate(&exec, graph, 0));
    }
    for (int round = 0; round < 2; round++) {
        pthread_barrier_wait(t->barrier);
        TRY(cudaEventRecord(e0, t->stream));
        for (uint32_t i = 0; i < replays && t->failed == cudaSuccess; i++) {
            set_epoch(t, i);
            if (in_graph)
                TRY(cudaGraphLaunch(exec, t->stream));
            else
                launch_row(t, s, in_a_row, &ordinal);
            t->next += ordinal;
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
    return (double)ms * 1e3 / replays / in_a_row;
}

/* Payload bf16, of two shots f32 as well. busbw: what every GPU must send at least, by the time of a graph. */
static void table(struct worker *t)
{
    static const uint32_t BYTES[] = {4096, 12288 /* GLM-5's hidden state */, 16384, 65536, 1 << 18, 1 << 20, 1 << 22, 2 * LONGEST};
    for (size_t i = 0; i < sizeof BYTES / sizeof BYTES[0]; i++) {
        const uint32_t bytes = BYTES[i];
        if (t->shared && bytes > 65536) /* on one GPU all must be resident together */
            break;
        char line[400];
        int at = 0;
        for (int k = 0; k < KINDS; k++)
            for (int graph = 0; graph < 2 && (k != NCCL || t->comm != NULL); graph++)
                t->us[k][graph] = time_of(t, &(struct sum){.kind = (enum kind)k, .n = bytes / 2, .each = 1, .bf16 = true, .late = -1}, graph != 0);
        for (int k = 0; k < KINDS; k++)
            if (t->us[k][1] > 0)
                at += snprintf(line + at, sizeof line - (size_t)at, "%s%s %.1f (%.1f eager, busbw %.1f GB/s)", at > 0 ? "; " : "", KIND[k], t->us[k][1], t->us[k][0],
                               2.0 * (t->n - 1) / t->n * bytes / t->us[k][1] * 1e-3);
        if (t->gpu == 0)
            tap_diag("%8u bytes of bf16, us in a graph: %s", bytes, line);
    }
}

/* ---- workers ---- */

static void *room(struct worker *t, size_t bytes)
{
    void *p = NULL;
    TRY(cudaMalloc(&p, bytes));
    if (p != NULL)
        TRY(cudaMemset(p, 0, bytes));
    return p;
}

static void start(struct worker *t)
{
    TRY(cudaSetDevice(t->device));
    for (unsigned i = 0; i < t->n; i++) {
        cudaError_t e = t->all[i].device != t->device ? cudaDeviceEnablePeerAccess(t->all[i].device, 0) : cudaSuccess;
        if (e == cudaErrorPeerAccessAlreadyEnabled)
            e = cudaSuccess;
        TRY(e);
    }
    (void)cudaGetLastError();
    TRY(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    t->recv = room(t, 2 * (size_t)t->n * LOCAL * ROWS * WIDTH / 2 * sizeof(uint4));
    t->sent = room(t, (size_t)t->n * LOCAL * ((LONGEST / 4 + t->n - 1) / t->n) * sizeof(uint4));
    t->flags = room(t, 2 * KCU_TWO_SHOT_BLOCKS * KCU_MAX_GPUS * sizeof *t->flags);
    for (int k = 0; k < LOCAL; k++)
        t->part[k] = room(t, LONGEST * sizeof(float));
    for (int k = 0; k < STACK; k++)
        t->sum[k] = room(t, HAMMERED * sizeof(float));
    t->x = room(t, LONGEST * sizeof(float));
    t->h = room(t, LONGEST * sizeof(float));
    t->w = room(t, WIDTH * sizeof(float));
    t->q8 = room(t, 2 * LONGEST);
    t->payload = room(t, 2 * LONGEST);
    t->epoch = room(t, 64);
    t->count = room(t, BATCH * sizeof *t->count);
    TRY(cudaHostAlloc((void **)&t->epoch_host, 64 * sizeof(uint32_t), cudaHostAllocDefault));
    TRY(cudaHostAlloc((void **)&t->count_host, BATCH * sizeof(uint32_t), cudaHostAllocDefault));
    TRY(cudaDeviceSynchronize());
    t->next = 1;
    if (t->id != NULL && ncclCommInitRank(&t->comm, (int)t->n, *t->id, (int)t->gpu) != ncclSuccess) {
        fprintf(stderr, "GPU %u: NCCL: start: %s\n", t->gpu, ncclGetLastError(NULL));
        t->failed = cudaErrorUnknown;
    }
}

/* From the first barrier on nobody waits for a whole device: another worker's sums may be on it, which wait for this one. */
static void *run(void *arg)
{
    struct worker *t = arg;
    start(t);
    pthread_barrier_wait(t->barrier);
    t->wrong[0] = hammer(t, "one shot", false);
    pthread_barrier_wait(t->barrier);
    t->wrong[1] = hammer(t, "two shots", true);
    pthread_barrier_wait(t->barrier);
    t->wrong[2] = hammer_graphs(t);
    pthread_barrier_wait(t->barrier);
    if (t->table)
        table(t);
    if (t->comm != NULL)
        ncclCommDestroy(t->comm);
    return NULL;
}

static void report(const struct worker *t)
{
    tap_ok(t->failed == cudaSuccess && *t->fault == 0, "GPU %u: all calls succeed, nobody stays away", t->gpu);
    tap_eq_int(t->wrong[0], 0, "GPU %u: %u sums back to back in one shot, flat and tree, every value", t->gpu, t->sums);
    tap_eq_int(t->wrong[1], 0, "GPU %u: %u sums back to back in two shots, among them some in one, every value", t->gpu, t->sums);
    tap_eq_int(t->wrong[2], 0, "GPU %u: %u of them in graphs, each summed twice", t->gpu, t->sums);
}

int main(int argc, char **argv)
{
    int have = 0, sms = 0, n = 0;
    uint32_t sums = 100000;
    bool table = true;
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* loading waits for a GPU's kernels, which may wait for each other; before the first call */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--gpus") == 0 && i + 1 < argc)
            n = atoi(argv[++i]);
        else if (strcmp(argv[i], "--sums") == 0 && i + 1 < argc)
            sums = (uint32_t)strtoul(argv[++i], NULL, 10) / BATCH * BATCH;
        else if (strcmp(argv[i], "--no-table") == 0)
            table = false;
        else
            tap_skip_all("usage: cuda_allreduce [--gpus N] [--sums N] [--no-table]");
    }
    if (cudaGetDeviceCount(&have) != cudaSuccess || have < 1 || cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess)
        tap_skip_all("needs a GPU");
    n = n > 0 ? n : have == 1 ? 3 : have;
    n = n < 2 ? 2 : n > KCU_MAX_GPUS ? KCU_MAX_GPUS : n;
    struct worker t[KCU_MAX_GPUS];
    ncclUniqueId id;
    pthread_barrier_t barrier;
    memset(t, 0, sizeof t);
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    const int on_one = (n + have - 1) / have;
    if (on_one == 1 && ncclGetUniqueId(&id) != ncclSuccess)
        tap_skip_all("NCCL does not start");
    if (on_one > 1)
        tap_diag("%d GPUs: up to %d streams of one stand for GPUs, times are not those between GPUs", have, on_one);
    for (int i = 0; i < n; i++) {
        const unsigned blocks = (unsigned)(sms / on_one);
        t[i] = (struct worker){.gpu = (unsigned)i, .n = (unsigned)n, .device = i % have, .shared = on_one > 1, .sums = sums, .table = table, .all = t,
                               .blocks = blocks < KCU_TWO_SHOT_BLOCKS ? blocks : KCU_TWO_SHOT_BLOCKS, .barrier = &barrier, .id = on_one == 1 ? &id : NULL};
        if (cudaHostAlloc((void **)&t[i].fault, 64, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess)
            tap_skip_all("no pinned memory");
        *t[i].fault = 0;
    }
    for (int i = 0; i < n; i++)
        pthread_create(&t[i].thread, NULL, run, &t[i]);
    for (int i = 0; i < n; i++)
        pthread_join(t[i].thread, NULL);
    for (int i = 0; i < n; i++)
        report(&t[i]);
    return tap_done();
}
