/* A norm that every block of a product does for itself: no launch of its own, and its result stays in shared memory. The order of all sums is that of
 * join.cu, so the bits are the same. */
#ifndef RANKSCOPE_KERNELS_CUDA_NORM_CUH
#define RANKSCOPE_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/dot.cuh"

/* A row in registers: thread t of T has its quads t, t + T, ... */
template <int Q, int T> struct norm_row {
    enum { MAX_UNITS = (Q * T + 7) / 8, KEEPS = Q <= 2 };
    float4 v[Q], w[KEEPS ? Q : 1];
    uint32_t quads;

    /* Before the wait: the norm's weights. */
    __device__ __forceinline__ void start(const struct kcu_norm &a)
    {
        quads = a.n / 4;
#pragma unroll
        for (int i = 0; i < Q && KEEPS; i++)
            w[KEEPS ? i : 0] = threadIdx.x + i * T < quads ? ld16f((const float4 *)a.w + threadIdx.x + i * T) : make_float4(0, 0, 0, 0);
    }

    /* After the wait: the row, and its factor. unit: MAX_UNITS floats. Synchronises the block. */
    __device__ __forceinline__ float factor(const struct kcu_norm &a, float *unit)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < Q; i++)
            v[i] = threadIdx.x + i * T < quads ? *((const float4 *)a.x + threadIdx.x + i * T) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < Q; i++) {
            float sq = square_of(v[i]);
            for (int o = 1; o < 8; o *= 2)
                sq += __shfl_xor_sync(0xffffffffu, sq, o);
            if (lane % 8 == 0)
                unit[(threadIdx.x + i * T) / 8] = sq;
        }
        __syncthreads();
        return norm_factor(unit, a.n, a.eps);
    }

    /* The int8 form into chunks of format F in shared memory; `writes`: also the row and its int8 form to where the op alone would leave them. */
    template <class F> __device__ __forceinline__ void stage(const struct kcu_norm &a, float t, uint8_t *xs, bool writes)
    {
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const uint32_t quad = threadIdx.x + i * T, col = 4 * quad;
            const bool on = quad < quads;
            const float4 u = KEEPS ? w[KEEPS ? i : 0] : on ? __ldg((const float4 *)a.w + quad) : make_float4(0, 0, 0, 0);
            const float h[4] = {v[i].x * t * u.x, v[i].y * t * u.y, v[i].z * t * u.z, v[i].w * t * u.w};
            uint8_t *chunk = xs + (on ? col / F::W : 0) * staged<F>::STRIDE;
            q8_block8_to(h, (uint32_t *)(chunk + col % F::W), (krn_q8_block *)(chunk + F::W) + col % F::W / 32, on);
            if (!writes)
                continue;
            if (on)
                *(float4 *)(a.h + col) = make_float4(h[0], h[1], h[2], h[3]);
            q8_block8(h, a.q8, a.n, col, on);
        }
    }

    static __device__ __forceinline__ float norm_factor(const float *unit, uint32_t n, float eps)
    {
        float s = 0; /* every warp adds all units, in one order */
        for (uint32_t u = threadIdx.x % 32; u < (n / 4 + 7) / 8; u += 32)
            s += unit[u];
        return 1.0f / sqrtf(warp_sum(s, 32) / (float)n + eps);
    }
};

#endif
