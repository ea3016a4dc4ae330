/* What the device self-tests share: random matrices and activations on host and device, poisoned outputs, distances. Only files cuda_selftest*.c
 * include this. Memory lives until release(), which every check calls last; what fails is remembered in rc, and later calls do nothing. */
#ifndef RANKSCOPE_ENGINE_CUDA_CHECK_H
#define RANKSCOPE_ENGINE_CUDA_CHECK_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda.h"
#include "engine/cuda_selftest.h"
#include "engine/error.h"
#include "kernels/cpu/vec.h"
#include "kernels/quant.h"

struct check {
    struct kcu_launch l;
    void (*report)(void *, const struct cuda_check *);
    void *arg;
    struct rs_error *err;
    uint64_t seed;
    bool small; /* few and small shapes */
    bool made_up; /* weights are random codes, which is quick: where a check takes many of them */
    enum rs_result rc;
    void *dev[64], *host[64];
    unsigned n_dev, n_host;
};

static inline float rnd(struct check *t) /* roughly normal */
{
    float s = 0;
    for (int i = 0; i < 4; i++) {
        t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
        s += (float)(t->seed >> 40) * 0x1p-24f - 0.5f;
    }
    return s * 1.7f;
}

static inline void *host(struct check *t, size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL)
        abort(); /* a few megabytes in a test */
    return t->host[t->n_host++] = p;
}

static inline float *randoms(struct check *t, size_t n)
{
    float *x = host(t, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = rnd(t);
    return x;
}

static inline bool good(struct check *t, cudaError_t e, const char *what)
{
    if (e != cudaSuccess && t->rc == RS_OK)
        t->rc = error_set(t->err, RS_EENGINE, "self-test: %s: %s", what, cudaGetErrorString(e));
    return t->rc == RS_OK;
}

/* Device memory holding src, or NaN bits. */
static inline void *device(struct check *t, const void *src, size_t bytes)
{
    void *p = NULL;
    if (!good(t, cudaMalloc(&p, bytes), "memory"))
        return NULL;
    t->dev[t->n_dev++] = p;
    good(t, src != NULL ? cudaMemcpyAsync(p, src, bytes, cudaMemcpyHostToDevice, t->l.stream) : kcu_poison(&t->l, p, bytes), "copy");
    return p;
}

static inline void *fetch(struct check *t, const void *dev, size_t bytes)
{
    void *p = host(t, bytes);
    if (t->rc == RS_OK && good(t, cudaMemcpyAsync(p, dev, bytes, cudaMemcpyDeviceToHost, t->l.stream), "copy back"))
        good(t, cudaStreamSynchronize(t->l.stream), "run");
    return p;
}

static inline void release(struct check *t)
{
    while (t->n_dev > 0)
        (void)cudaFree(t->dev[--t->n_dev]);
    while (t->n_host > 0)
        free(t->host[--t->n_host]);
}

static inline void result(struct check *t, double error, double limit, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static inline void result(struct check *t, double error, double limit, const char *fmt, ...)
{
    struct cuda_check c = {.error = error, .limit = limit};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c.name, sizeof c.name, fmt, ap);
    va_end(ap);
    if (t->rc == RS_OK)
        t->report(t->arg, &c);
}

static inline double distance(const float *got, const double *want, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += (got[i] - want[i]) * (got[i] - want[i]);
        s += want[i] * want[i];
    }
    return sqrt(d / (s > 0 ? s : 1)); /* NaN stays NaN and fails every comparison */
}

struct made {
    struct kcu_mat m;
    float *w; /* dequantised, [mats * rows][k] */
};

static inline struct made matrix(struct check *t, uint32_t type, uint32_t rows, uint32_t k, uint32_t mats)
{
    const size_t n = (size_t)rows * mats, raw = krn_row_bytes(type, k), pitch = kcu_pitch(type, k);
    const bool encodes = krn_type_info(type)->encodes && !t->made_up;
    float *x = encodes ? randoms(t, n * k) : NULL;
    uint8_t *q = host(t, n * raw);
    struct made a = {.w = host(t, n * k * sizeof(float))};
    for (size_t i = 0; i < n; i++) {
        if (encodes)
            krn_quant_row(type, x + i * k, q + i * raw, k);
        else
            krn_quant_random(type, &t->seed, 1, q + i * raw, k);
        krn_dequant_row(type, q + i * raw, a.w + i * k, k);
    }
    uint8_t *src = device(t, q, n * raw), *dst = device(t, NULL, n * pitch);
    if (t->rc == RS_OK)
        good(t, kcu_repack(&t->l, type, k, n, src, raw, dst), "repack");
    a.m = (struct kcu_mat){.w = dst, .type = type, .rows = rows, .k = k, .n_mats = mats, .pitch = pitch, .mat_pitch = pitch * rows};
    return a;
}

struct acts {
    float *x; /* what the products see: as given, or what the int8 form stands for */
    struct kcu_rows_in in;
};

static inline struct acts activations(struct check *t, uint32_t n, uint32_t k, bool int8)
{
    struct acts a = {.x = randoms(t, (size_t)n * k)};
    a.in.x = device(t, a.x, (size_t)n * k * sizeof(float));
    a.in.pitch = k;
    if (!int8)
        return a;
    const size_t bytes = krn_q8_row_bytes(k);
    uint8_t *q8 = host(t, n * bytes), *dev = device(t, NULL, n * bytes);
    memset(q8, 0, n * bytes);
    a.in.q8_pitch = bytes;
    if (t->rc == RS_OK)
        good(t, kcu_quantise(&t->l, &a.in, n, k, dev), "quantise");
    for (uint32_t i = 0; i < n; i++) {
        krn_q8_quant_row(a.x + (size_t)i * k, q8 + i * bytes, k);
        krn_q8_dequant_row(q8 + i * bytes, a.x + (size_t)i * k, k);
    }
    const uint8_t *got = fetch(t, dev, n * bytes);
    size_t wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        wrong += memcmp(got + i * bytes, q8 + i * bytes, k) != 0;
        wrong += memcmp(got + i * bytes + krn_q8_blocks_offset(k), q8 + i * bytes + krn_q8_blocks_offset(k),
                        k / 32 * sizeof(struct krn_q8_block)) != 0;
    }
    if (wrong != 0) /* the int8 form must be the CPU's to the bit: reported once, where it fails */
        result(t, (double)wrong, 0, "quantise k=%u", k);
    a.in.q8 = dev;
    return a;
}

/* The f16 form of n rows of k values. */
static inline struct kcu_rows_in halved(struct check *t, const float *x, uint32_t n, uint32_t k)
{
    uint16_t *h = device(t, NULL, (size_t)n * k * 2);
    float *scale = device(t, NULL, n * sizeof *scale);
    struct kcu_rows_in in = {.x = x, .pitch = k, .h = h, .h_pitch = k, .h_scale = scale};
    if (t->rc == RS_OK)
        good(t, kcu_halve(&t->l, x, k, k, n, h, k, scale), "halve");
    return in;
}

/* Several sums side by side: one after the other they would wait for each other, and most of the test is this. */
static inline double dot(const float *w, const float *x, uint32_t k)
{
    enum { SIDE = 8 };
    double s[SIDE] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + SIDE <= k; i += SIDE)
        for (uint32_t j = 0; j < SIDE; j++)
            s[j] += (double)w[i + j] * (double)x[i + j];
    for (; i < k; i++)
        sum += (double)w[i] * (double)x[i];
    for (uint32_t j = 0; j < SIDE; j++)
        sum += s[j];
    return sum;
}

/* What experts make of gate and up, for the chosen ones that are here: choice is [row][2 * used], ids and then weights; act [row * used + i][ff] is
 * the device's. Writes both without gaps; returns how many values. */
static inline size_t gated(const struct made *gate, const struct made *up, const float *x, const int32_t *choice, uint32_t n, uint32_t used,
                           uint32_t first, const float *act, double *want, float *mine)
{
    const uint32_t ff = gate->m.rows, k = gate->m.k;
    size_t m = 0;
    for (uint32_t p = 0; p < n * used; p++) {
        const uint32_t e = (uint32_t)choice[p / used * 2 * used + p % used] - first;
        for (uint32_t r = 0; r < ff && e < gate->m.n_mats; r++, m++) {
            const double a = dot(gate->w + ((size_t)e * ff + r) * k, x + (size_t)(p / used) * k, k),
                         b = dot(up->w + ((size_t)e * ff + r) * k, x + (size_t)(p / used) * k, k);
            want[m] = a / (1 + exp(-a)) * b;
            mine[m] = act[(size_t)p * ff + r];
        }
    }
    return m;
}

struct routing {
    struct made gate;
    float *x, *bias;
    struct kcu_route a;
};

/* A router of random weights and n rows for it. The first row is zero and biases are few values: scores tie, and the lower index comes first. */
static inline struct routing routing(struct check *t, uint32_t n, uint32_t width, uint32_t experts, uint32_t used, uint32_t groups,
                                     uint32_t groups_used, bool sigmoid)
{
    struct routing r = {.gate = matrix(t, KRN_F32, experts, width, 1), .x = randoms(t, (size_t)n * width), .bias = randoms(t, experts)};
    for (uint32_t i = 0; r.x != NULL && i < width; i++)
        r.x[i] = 0;
    for (uint32_t e = 0; r.bias != NULL && e < experts; e++)
        r.bias[e] = rintf(r.bias[e] * 8) / 8;
    r.a = (struct kcu_route){.gate = r.gate.m,
                             .bias = device(t, r.bias, experts * 4),
                             .x = device(t, r.x, (size_t)n * width * 4),
                             .x_pitch = width,
                             .n = n,
                             .n_experts = experts,
                             .n_used = used,
                             .n_groups = groups,
                             .n_groups_used = groups_used,
                             .sigmoid = sigmoid,
                             .norm = true,
                             .scale = 2.5f,
                             .p = device(t, NULL, (size_t)n * experts * 4),
                             .p_pitch = experts,
                             .ids = device(t, NULL, (size_t)n * 2 * used * 4),
                             .pitch = 2 * used};
    r.a.weights = (float *)(void *)r.a.ids + used;
    return r;
}

/* Choices of all rows, as fetched, against the CPU's: how many are others, and how far off a weight is at most. */
static inline void routed(struct check *t, const struct routing *r, const int32_t *got, double *wrong, double *far)
{
    const uint32_t used = r->a.n_used, width = r->gate.m.k;
    int32_t ids[64];
    float weights[64], w, *logits = host(t, r->a.n_experts * 4);
    const struct krn_route c = {.logits = logits,
                                .bias = r->bias,
                                .n_experts = r->a.n_experts,
                                .n_used = used,
                                .n_groups = r->a.n_groups,
                                .n_groups_used = r->a.n_groups_used,
                                .sigmoid = r->a.sigmoid,
                                .norm = r->a.norm,
                                .scale = r->a.scale,
                                .p = host(t, r->a.n_experts * 4),
                                .ids = ids,
                                .weights = weights};
    *wrong = *far = 0;
    for (uint32_t i = 0; i < r->a.n; i++) {
        for (uint32_t e = 0; e < r->a.n_experts; e++)
            logits[e] = (float)dot(r->gate.w + (size_t)e * width, r->x + (size_t)i * width, width);
        krn_cpu_vec(KRN_ISA_PORTABLE)->route(&c);
        for (uint32_t j = 0; j < used; j++) {
            memcpy(&w, &got[i * 2 * used + used + j], 4);
            *wrong += got[i * 2 * used + j] != ids[j];
            const double d = fabs(w - weights[j]) / weights[j];
            *far = d <= *far ? *far : d; /* a NaN stays */
        }
    }
}

/* cuda_selftest_experts.c: experts with few rows each. */
void cuda_selftest_experts(struct check *t);
/* cuda_selftest_half.c: products of many rows whose weights become f16 first. */
void cuda_selftest_half(struct check *t);

/* cuda_selftest_many.c: kernels for many rows. */
void cuda_selftest_many(struct check *t);

/* cuda_selftest_row.c: kernels for one row. */
void cuda_selftest_row(struct check *t);

/* cuda_selftest_token.c: from logits to a token. */
void cuda_selftest_token(struct check *t);

#endif
