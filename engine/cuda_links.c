/* What GPUs there are, and whether the links between them carry what is put on them. No model is needed. */
#include "engine/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda.h"
#include "engine/cuda_nvml.h"
#include "engine/error.h"

enum { PATTERN_ROWS = 1024, PATTERN_WIDTH = 16384, FLOATS = PATTERN_ROWS * PATTERN_WIDTH, COPIES = 8, PINGS = 64 }; /* 64 MiB */

/* A pair under test: device a sends, device b receives. */
struct link {
    int device[2];
    cudaStream_t stream[2];
    float *buf[2];
    uint32_t *wrong;  /* on b */
    int32_t *rows;    /* on a: all rows in order */
    uint64_t *ping[2], *pinged[2];
    float *host;
};

bool backend_cuda_describe(int i, struct cuda_device *out)
{
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess)
        return false;
    const struct cuda_nvml_figures f = cuda_nvml_ask(i);
    *out = (struct cuda_device){.major = p.major, .minor = p.minor, .sms = p.multiProcessorCount, .memory = p.totalGlobalMem, .util = f.util,
                                .temp_c = f.temp_c, .power_w = f.power_w, .mem_used = f.mem_used};
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    (void)cudaDeviceGetPCIBusId(out->pci, sizeof out->pci, i);
    return true;
}

static void close_link(struct link *l)
{
    for (int k = 0; k < 2; k++) {
        (void)cudaSetDevice(l->device[k]);
        (void)cudaFree(l->buf[k]);
        (void)cudaFree(l->ping[k]);
        (void)cudaFreeHost(l->pinged[k]);
        if (l->stream[k] != NULL)
            (void)cudaStreamDestroy(l->stream[k]);
    }
    (void)cudaFree(l->rows);
    (void)cudaSetDevice(l->device[1]);
    (void)cudaFree(l->wrong);
    (void)cudaFreeHost(l->host);
}

static cudaError_t open_side(struct link *l, int k, bool peer)
{
    cudaError_t e = cudaSetDevice(l->device[k]);
    if (e == cudaSuccess && peer) {
        e = cudaDeviceEnablePeerAccess(l->device[1 - k], 0);
        if (e == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
            e = cudaSuccess;
        }
    }
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&l->stream[k], cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&l->buf[k], (size_t)FLOATS * sizeof(float));
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&l->ping[k], sizeof(uint64_t));
    if (e == cudaSuccess)
        e = cudaMemset(l->ping[k], 0, sizeof(uint64_t));
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&l->pinged[k], (2 * PINGS + 2) * sizeof(uint64_t), cudaHostAllocMapped);
    return e;
}

/* Words that no stuck or crossed line leaves as they are: every bit changes with the place. */
static void make_pattern(float *host, uint32_t seed)
{
    uint32_t *u = (uint32_t *)(void *)host;
    for (uint32_t i = 0; i < FLOATS; i++) {
        uint32_t x = i * 0x9e3779b9u + seed;
        x ^= x >> 16;
        x *= 0x85ebca6bu;
        x ^= x >> 13;
        u[i] = x;
    }
}

static cudaError_t open_pair(struct link *l, bool peer)
{
    cudaError_t e = open_side(l, 0, peer);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&l->host, (size_t)FLOATS * sizeof(float), cudaHostAllocDefault);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&l->rows, PATTERN_ROWS * sizeof *l->rows);
    if (e == cudaSuccess) {
        for (int32_t i = 0; i < PATTERN_ROWS; i++)
            ((int32_t *)(void *)l->host)[i] = i;
        e = cudaMemcpy(l->rows, l->host, PATTERN_ROWS * sizeof *l->rows, cudaMemcpyHostToDevice);
    }
    if (e == cudaSuccess)
        e = open_side(l, 1, peer);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&l->wrong, sizeof *l->wrong);
    return e;
}

/* b holds what arrived: read it back by the host. */
static cudaError_t verify(struct link *l, uint32_t seed, uint64_t *wrong)
{
    uint32_t *got = malloc((size_t)FLOATS * sizeof *got);
    if (got == NULL)
        return cudaErrorMemoryAllocation;
    cudaError_t e = cudaSetDevice(l->device[1]);
    if (e == cudaSuccess)
        e = cudaMemcpy(got, l->buf[1], (size_t)FLOATS * sizeof *got, cudaMemcpyDeviceToHost);
    make_pattern(l->host, seed);
    for (uint32_t i = 0; i < FLOATS && e == cudaSuccess; i++)
        *wrong += got[i] != ((uint32_t *)(void *)l->host)[i];
    free(got);
    return e;
}

/* Three ways over the link: the copy engine, stores of a kernel on a, loads of a kernel on b. */
static cudaError_t send_pattern(struct link *l, bool peer, uint32_t seed, uint64_t *wrong)
{
    const size_t bytes = (size_t)FLOATS * sizeof(float);
    const struct kcu_launch la = {.stream = l->stream[0]}, lb = {.stream = l->stream[1]};
    make_pattern(l->host, seed);
    cudaError_t e = cudaSetDevice(l->device[0]);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(l->buf[0], l->host, bytes, cudaMemcpyHostToDevice, l->stream[0]);
    if (e == cudaSuccess)
        e = cudaMemcpyPeerAsync(l->buf[1], l->device[1], l->buf[0], l->device[0], bytes, l->stream[0]);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(l->stream[0]);
    if (e == cudaSuccess)
        e = verify(l, seed, wrong);
    if (e != cudaSuccess || !peer)
        return e;
    e = cudaSetDevice(l->device[1]);
    if (e == cudaSuccess)
        e = cudaMemset(l->buf[1], 0xff, bytes);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize();
    if (e == cudaSuccess)
        e = cudaSetDevice(l->device[0]);
    if (e == cudaSuccess)
        e = kcu_pick(&la, l->buf[0], PATTERN_WIDTH, l->rows, PATTERN_ROWS, PATTERN_WIDTH, l->buf[1], PATTERN_WIDTH);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(l->stream[0]);
    if (e == cudaSuccess)
        e = verify(l, seed, wrong);
    uint32_t n = 0;
    if (e == cudaSuccess)
        e = cudaMemset(l->wrong, 0, sizeof n);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize();
    if (e == cudaSuccess)
        e = kcu_compare(&lb, l->buf[1], l->buf[0], FLOATS, l->wrong);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(l->stream[1]);
    if (e == cudaSuccess)
        e = cudaMemcpy(&n, l->wrong, sizeof n, cudaMemcpyDeviceToHost);
    *wrong += n;
    return e;
}

static cudaError_t bandwidth(struct link *l, double *gbs)
{
    cudaEvent_t t[2] = {NULL, NULL};
    float ms = 0;
    const size_t bytes = (size_t)FLOATS * sizeof(float);
    cudaError_t e = cudaSetDevice(l->device[0]);
    for (int i = 0; i < 2 && e == cudaSuccess; i++)
        e = cudaEventCreate(&t[i]);
    if (e == cudaSuccess)
        e = cudaEventRecord(t[0], l->stream[0]);
    for (int i = 0; i < COPIES && e == cudaSuccess; i++)
        e = cudaMemcpyPeerAsync(l->buf[1], l->device[1], l->buf[0], l->device[0], bytes, l->stream[0]);
    if (e == cudaSuccess)
        e = cudaEventRecord(t[1], l->stream[0]);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(l->stream[0]);
    if (e == cudaSuccess)
        e = cudaEventElapsedTime(&ms, t[0], t[1]);
    *gbs = ms > 0 ? (double)bytes * COPIES / 1e6 / (double)ms : 0;
    for (int i = 0; i < 2; i++)
        if (t[i] != NULL)
            (void)cudaEventDestroy(t[i]);
    return e;
}

/* Half of the shortest round trip of a word. */
static cudaError_t latency(struct link *l, double *us)
{
    cudaError_t e = cudaSuccess;
    for (int k = 0; k < 2 && e == cudaSuccess; k++) {
        const struct kcu_launch at = {.stream = l->stream[k]};
        const struct kcu_ping p = {.mine = l->ping[k],
                                   .theirs = l->ping[1 - k],
                                   .n = PINGS,
                                   .asks = k == 0,
                                   .timeout_ns = 500ull * 1000 * 1000,
                                   .sent = l->pinged[k],
                                   .seen = l->pinged[k] + PINGS + 1};
        l->pinged[k][PINGS] = 0;
        e = cudaSetDevice(l->device[k]);
        if (e == cudaSuccess)
            e = kcu_ping(&at, &p);
    }
    for (int k = 0; k < 2 && e == cudaSuccess; k++)
        e = cudaStreamSynchronize(l->stream[k]);
    uint64_t best = UINT64_MAX;
    for (int i = 1; i < PINGS; i++) {
        const uint64_t t = l->pinged[0][PINGS + 1 + i] - l->pinged[0][i];
        best = t < best ? t : best;
    }
    *us = e == cudaSuccess && l->pinged[0][PINGS] == 0 ? (double)best / 2e3 : -1;
    return e;
}

static cudaError_t check_pair(int a, int b, struct cuda_link *out)
{
    struct link l = {.device = {a, b}};
    int can = 0;
    *out = (struct cuda_link){.from = a, .to = b, .us = -1};
    cudaError_t e = cudaDeviceCanAccessPeer(&can, a, b);
    out->peer = can != 0;
    if (e == cudaSuccess)
        e = open_pair(&l, out->peer);
    for (uint32_t seed = 1; seed <= 2 && e == cudaSuccess; seed++) {
        e = send_pattern(&l, out->peer, seed * 0x01234567u, &out->wrong);
        out->words += (uint64_t)FLOATS * (out->peer ? 3 : 1);
    }
    if (e == cudaSuccess)
        e = bandwidth(&l, &out->gbs);
    if (e == cudaSuccess && out->peer)
        e = latency(&l, &out->us);
    close_link(&l);
    return e;
}

enum rs_result backend_cuda_check(void (*report)(void *arg, const struct cuda_link *l), void *arg, struct rs_error *err)
{
    const char *why;
    const int n = backend_cuda_devices(&why);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            struct cuda_link l;
            if (a == b)
                continue;
            cudaError_t e = check_pair(a, b, &l);
            if (e != cudaSuccess)
                return error_set(err, RS_EENGINE, "from GPU %d to GPU %d: %s", a, b, cudaGetErrorString(e));
            report(arg, &l);
        }
    return RS_OK;
}
