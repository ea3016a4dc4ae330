/* What kernels that bring queries into the latent space do beside: between heads.cu and heads_few.cu. */
#ifndef RANKSCOPE_KERNELS_CUDA_HEADS_CUH
#define RANKSCOPE_KERNELS_CUDA_HEADS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/flash.cuh"

/* The part of n rows' queries of head h that the latents do not see. All threads of a block call. */
static __device__ __forceinline__ void rotated(const heads_pe &p, uint32_t h, uint32_t row0, uint32_t n, uint32_t threads)
{
    const uint32_t half = p.rope.half;
    for (uint32_t i = threadIdx.x; i < n * half; i += threads) {
        const uint32_t row = row0 + i / half, j = i % half;
        float2 *q = (float2 *)(p.q + row * p.q_pitch + h * p.q_head + 2 * j), v = *q;
        if (p.rotate) {
            const size_t angle = (size_t)p.b.pos[row] * half + j;
            const float co = p.rope.cos[angle], si = p.rope.sin[angle];
            v = make_float2(__fsub_rn(__fmul_rn(v.x, co), __fmul_rn(v.y, si)), __fadd_rn(__fmul_rn(v.x, si), __fmul_rn(v.y, co)));
            *q = v;
        }
        *(__half2 *)(p.y + row * p.y_pitch + h * p.y_head + 2 * j) = __floats2half2_rn(v.x * p.scale, v.y * p.scale);
    }
}

/* heads_run() of at most HEADS_FEW_ROWS rows, where these need not have the bits that they have in a larger company. */
enum { HEADS_FEW_ROWS = 16 };
bool heads_few_takes(const struct kcu_launch *l, const struct heads_gemm *g);
cudaError_t heads_few(const struct kcu_launch *l, const struct heads_gemm *g, const struct heads_pe *pe);

#endif
