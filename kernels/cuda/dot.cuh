/* One lane's share of weight-row times activations: units sub, sub + lpr, ... of the row. The first loads are issued before the predecessor has
 * been waited for, since weights depend on nobody. */
#ifndef RANKSCOPE_KERNELS_CUDA_DOT_CUH
#define RANKSCOPE_KERNELS_CUDA_DOT_CUH

#include "kernels/cuda/formats.cuh"

static __device__ __forceinline__ int dp4(int a, int b, int c)
{
    return __dp4a(a, b, c);
}

/* One unit of int8 activations: acc += sum over groups of a * d * dot - b * s. */
template <class F>
static __device__ __forceinline__ float unit_q8(const int q[F::W / 4], const float a[F::NS], const float b[F::NS], const uint8_t *x,
                                                const uint8_t *blocks, float acc)
{
#pragma unroll
    for (int s = 0; s < F::W / 32; s++) {
        const int4 x0 = *(const int4 *)(x + 32 * s), x1 = *(const int4 *)(x + 32 * s + 16);
        const float4 blk = *(const float4 *)(blocks + 16 * s); /* d, s, -sum, -sum of the first half */
        int lo = 0, hi = 0;
        lo = dp4(q[8 * s + 0], x0.x, lo), lo = dp4(q[8 * s + 1], x0.y, lo), lo = dp4(q[8 * s + 2], x0.z, lo),
        lo = dp4(q[8 * s + 3], x0.w, lo);
        hi = dp4(q[8 * s + 4], x1.x, hi), hi = dp4(q[8 * s + 5], x1.y, hi), hi = dp4(q[8 * s + 6], x1.z, hi),
        hi = dp4(q[8 * s + 7], x1.w, hi);
        const int all = __float_as_int(blk.z), low = __float_as_int(blk.w);
        if (F::W / F::NS == 32) {
            acc = fmaf(a[s] * blk.x, (float)(lo + hi + F::ZERO * all), acc);
            if (F::MIN)
                acc = fmaf(-b[s], blk.y, acc);
        } else {
            acc = fmaf(a[0] * blk.x, (float)(lo + F::ZERO * low), acc);
            acc = fmaf(a[F::NS - 1] * blk.x, (float)(hi + F::ZERO * (all - low)), acc);
            if (F::MIN) {
                acc = fmaf(-b[0], blk.x * (float)-low, acc);
                acc = fmaf(-b[F::NS - 1], blk.x * (float)(low - all), acc);
            }
        }
    }
    return acc;
}

template <class F, int NC>
static __device__ __forceinline__ void dot_q8(const uint8_t *row, bool on, uint32_t k, uint32_t sub, uint32_t lpr, const uint8_t *x,
                                              size_t pitch, uint32_t nc, float acc[NC])
{
    enum { UNR = in_flight<F>::N };
    const uint32_t n = on ? k / F::W : 0;
    const uint8_t *blocks = x + q8_offset(k);
    typename F::raw r[UNR];
    uint32_t u0 = sub;
#pragma unroll
    for (int i = 0; i < UNR; i++)
        if (u0 + i * lpr < n)
            F::template fetch<EARLY>(row, k, u0 + i * lpr, r[i]);
    pdl_wait();
    while (u0 < n) {
#pragma unroll
        for (int i = 0; i < UNR; i++) {
            const uint32_t u = u0 + i * lpr;
            if (u >= n)
                continue;
            int q[F::W / 4];
            float a[F::NS], b[F::NS];
            F::unpack(r[i], u, q, a, b);
#pragma unroll
            for (int c = 0; c < NC; c++)
                if (NC == 1 || c < (int)nc)
                    acc[c] = unit_q8<F>(q, a, b, x + c * pitch + (size_t)u * F::W, blocks + c * pitch + (size_t)u * (F::W / 2), acc[c]);
        }
        u0 += UNR * lpr;
#pragma unroll
        for (int i = 0; i < UNR; i++)
            if (u0 + i * lpr < n)
                F::fetch(row, k, u0 + i * lpr, r[i]);
    }
}

/* The same with f32 activations. V is a format with values(). */
template <class V, int NC>
static __device__ __forceinline__ void dot_f32(const uint8_t *row, bool on, uint32_t k, uint32_t sub, uint32_t lpr, const float *x,
                                               size_t pitch, uint32_t nc, float acc[NC])
{
    enum { UNR = V::W == 8 ? 4 : 1 };
    const uint32_t n = on ? k / V::W : 0;
    const bool aligned = (((size_t)x | pitch * 4) & 15) == 0; /* odd widths exist in small models */
    typename V::raw r[UNR];
    uint32_t u0 = sub;
#pragma unroll
    for (int i = 0; i < UNR; i++)
        if (u0 + i * lpr < n)
            V::template fetch<EARLY>(row, k, u0 + i * lpr, r[i]);
    pdl_wait();
    if (V::W == 8 && k % 8 != 0 && on)
        for (uint32_t j = k / 8 * 8 + sub; j < k; j += lpr)
            for (int c = 0; c < NC; c++)
                if (NC == 1 || c < (int)nc)
                    acc[c] = fmaf(tail_value<V>(row, j), x[c * pitch + j], acc[c]);
    while (u0 < n) {
#pragma unroll
        for (int i = 0; i < UNR; i++) {
            const uint32_t u = u0 + i * lpr;
            if (u >= n)
                continue;
            float w[V::W];
            V::values(r[i], u, w);
#pragma unroll
            for (int c = 0; c < NC; c++)
                if (NC == 1 || c < (int)nc) {
                    const float *xc = x + c * pitch + (size_t)u * V::W;
#pragma unroll
                    for (int j = 0; j < V::W; j += 4) {
                        const float4 v =
                            V::W != 8 || aligned ? *(const float4 *)(xc + j) : make_float4(xc[j], xc[j + 1], xc[j + 2], xc[j + 3]);
                        acc[c] = fmaf(w[j], v.x, acc[c]), acc[c] = fmaf(w[j + 1], v.y, acc[c]);
                        acc[c] = fmaf(w[j + 2], v.z, acc[c]), acc[c] = fmaf(w[j + 3], v.w, acc[c]);
                    }
                }
        }
        u0 += UNR * lpr;
#pragma unroll
        for (int i = 0; i < UNR; i++)
            if (u0 + i * lpr < n)
                V::fetch(row, k, u0 + i * lpr, r[i]);
    }
}

/* ---- one row of activations in shared memory ----
 *
 * In chunks of one unit each, padded so that eight lanes that read 16 bytes of neighbouring units meet no bank twice. */

template <class F> struct staged { /* int8: codes, then blocks */
    enum { STRIDE = F::W == 64 ? 112 : 48, PIECES = F::W / 16 + F::W / 32 };
    static __device__ __forceinline__ void load(const uint8_t *q8, uint32_t k, uint8_t *to, uint32_t thread, uint32_t threads)
    {
        const uint8_t *blocks = q8 + q8_offset(k);
        for (uint32_t i = thread; i < k / F::W * PIECES; i += threads) {
            const uint32_t c = i / PIECES, j = i % PIECES;
            const uint8_t *from = j < F::W / 16 ? q8 + (size_t)c * F::W + 16 * j : blocks + (size_t)c * (F::W / 2) + 16 * (j - F::W / 16);
            *(uint4 *)(to + c * STRIDE + 16 * j) = *(const uint4 *)from;
        }
    }
};

/* Units in flight per lane. */
template <class F> struct depth {
    enum { N = F::W == 64 ? 2 : 4 };
};

static inline size_t staged_bytes(uint32_t type, uint32_t k)
{
    return unit_of(type) == 64 ? (size_t)k / 64 * 112 : (size_t)k / 32 * 48;
}

/* As dot_q8 for one row of activations that `ready` (wait for the predecessor, fill xs, synchronise) makes available: weights are on their way
 * meanwhile. Every thread of the block calls. */
template <class F, int UNR, class R>
static __device__ __forceinline__ float dot_staged(const uint8_t *row, bool on, uint32_t k, uint32_t sub, uint32_t lpr, const uint8_t *xs,
                                                   R ready)
{
    const uint32_t n = on ? k / F::W : 0;
    typename F::raw r[UNR];
    uint32_t u0 = sub;
    float acc = 0;
#pragma unroll
    for (int i = 0; i < UNR; i++)
        if (u0 + i * lpr < n)
            F::template fetch<EARLY>(row, k, u0 + i * lpr, r[i]);
    ready();
    while (u0 < n) {
#pragma unroll
        for (int i = 0; i < UNR; i++) {
            const uint32_t u = u0 + i * lpr;
            if (u >= n)
                continue;
            int q[F::W / 4];
            float a[F::NS], b[F::NS];
            F::unpack(r[i], u, q, a, b);
            if (u + UNR * lpr < n)
                F::fetch(row, k, u + UNR * lpr, r[i]);
            const uint8_t *x = xs + u * staged<F>::STRIDE;
            acc = unit_q8<F>(q, a, b, x, x + F::W, acc);
        }
        u0 += UNR * lpr;
    }
    return acc;
}

/* f32 activations of formats with 32 weights a unit: chunks of 32 floats, 36 apart. */
enum { F32_STRIDE = 36 };

/* Unit u of a row that was fetched before; x: the whole row of activations in chunks. */
template <int T> static __device__ __forceinline__ float unit_values(const typename fmt<T>::raw &r, uint32_t u, const float *xs, float acc)
{
    float w[32];
    as_values<T>::values(r, u, w);
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
        const float4 v = *(const float4 *)(xs + u * F32_STRIDE + j);
        acc = fmaf(w[j], v.x, acc), acc = fmaf(w[j + 1], v.y, acc), acc = fmaf(w[j + 2], v.z, acc), acc = fmaf(w[j + 3], v.w, acc);
    }
    return acc;
}

template <int T, int UNR, class R>
static __device__ __forceinline__ float dot_values(const uint8_t *row, bool on, uint32_t k, uint32_t sub, uint32_t lpr, const float *xs,
                                                   R ready)
{
    static_assert(fmt<T>::W == 32, "units of 32");
    const uint32_t n = on ? k / 32 : 0;
    typename fmt<T>::raw r[UNR];
    uint32_t u0 = sub;
    float acc = 0;
#pragma unroll
    for (int i = 0; i < UNR; i++)
        if (u0 + i * lpr < n)
            fmt<T>::template fetch<EARLY>(row, k, u0 + i * lpr, r[i]);
    ready();
    for (; u0 < n; u0 += UNR * lpr) {
#pragma unroll
        for (int i = 0; i < UNR; i++) {
            const uint32_t u = u0 + i * lpr;
            if (u >= n)
                continue;
            acc = unit_values<T>(r[i], u, xs, acc);
            if (u + UNR * lpr < n)
                fmt<T>::fetch(row, k, u + UNR * lpr, r[i]);
        }
    }
    return acc;
}

/* Whichever the type and the activations ask for. q8 NULL: f32. */
template <int NC>
static __device__ __forceinline__ void dot_any(uint32_t type, const uint8_t *row, bool on, uint32_t k, uint32_t sub, uint32_t lpr,
                                               const float *x, size_t pitch, const uint8_t *q8, size_t q8_pitch, uint32_t nc, float acc[NC])
{
    if (q8 != nullptr && is_quant(type)) {
        switch (type) {
#define X(T)                                                                                                                               \
    case T: dot_q8<fmt<T>, NC>(row, on, k, sub, lpr, q8, q8_pitch, nc, acc); break;
            KCU_EACH_QUANT(X)
#undef X
        default: break;
        }
        return;
    }
    switch (type) {
    case KRN_F32: dot_f32<plain_f32, NC>(row, on, k, sub, lpr, x, pitch, nc, acc); break;
    case KRN_F16: dot_f32<plain_16<false>, NC>(row, on, k, sub, lpr, x, pitch, nc, acc); break;
    case KRN_BF16: dot_f32<plain_16<true>, NC>(row, on, k, sub, lpr, x, pitch, nc, acc); break;
#define X(T)                                                                                                                               \
    case T: dot_f32<as_values<T>, NC>(row, on, k, sub, lpr, x, pitch, nc, acc); break;
        KCU_EACH_QUANT(X)
#undef X
    default: break;
    }
}

/* The same for a type that is known when compiling: T with int8 activations (Q8), or as values; T < 0: any. Small code, few registers. */
template <int T, bool Q8, int NC>
static __device__ __forceinline__ void dot_type(uint32_t type, const uint8_t *row, bool on, uint32_t k, uint32_t sub, uint32_t lpr,
                                                const float *x, size_t pitch, const uint8_t *q8, size_t q8_pitch, uint32_t nc,
                                                float acc[NC])
{
    if constexpr (T < 0)
        dot_any<NC>(type, row, on, k, sub, lpr, x, pitch, q8, q8_pitch, nc, acc);
    else if constexpr (Q8)
        dot_q8<fmt<T>, NC>(row, on, k, sub, lpr, q8, q8_pitch, nc, acc);
    else if constexpr (T == KRN_F32)
        dot_f32<plain_f32, NC>(row, on, k, sub, lpr, x, pitch, nc, acc);
    else
        dot_f32<as_values<T>, NC>(row, on, k, sub, lpr, x, pitch, nc, acc);
}

enum { ANY_TYPE = -1 };

/* The first thread of the first block notes the time as soon as the predecessor is through; it alone gives up loading early. */
static __device__ __forceinline__ void stamp_early(uint64_t *at)
{
    if (at != nullptr && (threadIdx.x | threadIdx.y | blockIdx.x | blockIdx.y | blockIdx.z) == 0) {
        pdl_wait();
        stamp(at);
    }
}

/* Lanes per row such that a row's first loads cover most of it. */
static inline uint32_t lanes_for(uint32_t type, uint32_t k, bool q8)
{
    uint32_t w = unit_of(type), per = !is_quant(type) ? 4 : !q8 || is_compact(type) ? 1 : w == 64 ? 2 : 4, want = (k / w + per - 1) / per, lpr = 4;
    while (lpr < want && lpr < 32)
        lpr *= 2;
    return lpr;
}

#endif
