/* Products of up to eight rows of activations by mma.sync: a warp has 16 weight rows, and every weight is brought and unpacked once. Of each step of K, four
 * units, the lanes of a quad have one each: as operands are made of codes and scales together, the columns that meet in an instruction need not be neighbours,
 * and no lane needs another one's scales. */
#ifndef RANKSCOPE_KERNELS_CUDA_FEW_CUH
#define RANKSCOPE_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/steps.cuh"

enum { FEW_ROWS = 16 /* weight rows of a warp */, FEW_COLS = 8 /* rows of activations */ };

/* A lane's activations of a unit: of the column lane / 4. */
template <class F> struct few_in {
    uint4 q[F::W / 16];
    float d[F::W / 32];
};

template <class F> static __device__ __forceinline__ void few_fetch_in(const uint8_t *q8, uint32_t k, uint32_t u, few_in<F> &x)
{
#pragma unroll
    for (int i = 0; i < F::W / 16; i++)
        x.q[i] = *(const uint4 *)(q8 + u * F::W + 16 * i);
#pragma unroll
    for (int i = 0; i < F::W / 32; i++)
        x.d[i] = *(const float *)(q8 + q8_offset(k) + (u * (F::W / 32) + i) * sizeof(krn_q8_block));
}

/* Powers of two that bring columns' scales below 1, into shared memory: the columns that q8_of() gives are dealt to warps, four at a time. All lanes of a warp call. */
template <class A>
static __device__ __forceinline__ void few_find_ups(float *up, uint32_t n, uint32_t k, uint32_t warp, uint32_t warps, A q8_of)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t c = warp; c < n; c += 4 * warps) {
        const uint8_t *from[4];
        float d[4] = {};
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            from[j] = q8_of(c + j * warps < n ? c + j * warps : c) + q8_offset(k);
#pragma unroll 2
        for (uint32_t i = lane; i < k / 32; i += 32)
#pragma unroll
            for (int j = 0; j < 4; j++)
                d[j] = fmaxf(d[j], *(const float *)(from[j] + i * sizeof(krn_q8_block)));
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const float most = warp_max(d[j], 32);
            if (lane == 0 && c + j * warps < n)
                up[c + j * warps] = __uint_as_float((253 - (__float_as_uint(most) >> 23)) << 23);
        }
    }
}

/* What takes such a power of two off again, and UP. */
static __device__ __forceinline__ float few_down(float up)
{
    return __uint_as_float(0x7f000000u - __float_as_uint(up)) * (1.0f / UP);
}

/* Four codes as f16 times d, d. */
static __device__ __forceinline__ void few_halves(uint32_t q, uint32_t d, uint32_t sixes, uint32_t h[2])
{
    q ^= 0x80808080u;
    h[0] = mul2(sub2(spread(q, 0, sixes), 0x64806480u), d);
    h[1] = mul2(sub2(spread(q, 1, sixes), 0x64806480u), d);
}

static __device__ __forceinline__ uint32_t few_twice(float d)
{
    const __half2 h = __float2half2_rn(d);
    return *(const uint32_t *)&h;
}

static __device__ __forceinline__ uint32_t word_of(const uint4 *v, int i)
{
    const uint4 &x = v[i / 4];
    return i % 4 == 0 ? x.x : i % 4 == 1 ? x.y : i % 4 == 2 ? x.z : x.w;
}

/* A unit of M matrices' rows lane / 4 and lane / 4 + 8 times C groups of columns. Weights are UP times what they are. */
template <int T, int M, int C>
static __device__ __forceinline__ void few_unit(const typename fmt<T>::raw (&r)[M][2], const few_in<fmt<T>> (&x)[C], uint32_t t,
                                                const float (&up)[C], uint32_t sixes, float acc[C][M][4])
{
    enum { GROUPS = fmt<T>::W / 32 }; /* that have a scale of their own */
    uint32_t d[C][GROUPS];
    uint2 s[M][2];
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            d[c][i] = few_twice(x[c].d[i] * up[c]);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if constexpr (T == KRN_Q8_0)
                s[m][i].x = few_twice(half_of(r[m][i].d) * UP);
            else
                s[m][i] = scales_of<T>(r[m][i].h, t);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t b[C][GROUPS][2];
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                few_halves(word_of(x[c].q, 8 * g + i), d[c][g], sixes, b[c][g]);
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t h[2][GROUPS][2];
#pragma unroll
            for (int j = 0; j < 2; j++)
                if constexpr (T == KRN_Q8_0)
                    few_halves(word_of(r[m][j].v, i), s[m][j].x, sixes, h[j][0]);
                else if constexpr (T == KRN_Q5_K)
                    operands<T>(word_of(r[m][j].v, i), fifths(word_of(r[m][j].hi, i), t), s[m][j], sixes, h[j]);
                else
                    operands<T>(word_of(r[m][j].v, i), 0, s[m][j], sixes, h[j]);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const uint32_t w[4] = {h[0][g][0], h[1][g][0], h[0][g][1], h[1][g][1]};
#pragma unroll
                for (int c = 0; c < C; c++)
                    mma_f16(acc[c][m], w, b[c][g][0], b[c][g][1]);
            }
        }
    }
}

/* The unit of a step that is this lane's, and whether there is one: else it has the last one, times nothing. */
static __device__ __forceinline__ uint32_t few_own(uint32_t step, uint32_t units, bool *on)
{
    const uint32_t u = 4 * step + threadIdx.x % 4;
    *on = u < units;
    return *on ? u : units - 1;
}

#endif
