/* Rows of activations as f16, as kcu_halve() leaves them, for kernels that make them on their way. */
#ifndef RANKSCOPE_KERNELS_CUDA_HALVE_CUH
#define RANKSCOPE_KERNELS_CUDA_HALVE_CUH

#include "kernels/cuda/common.cuh"

/* What a row is multiplied by, from the bits of its largest magnitude. */
static __device__ __forceinline__ float factor_of(uint32_t max_bits)
{
    int e = (int)(max_bits >> 23) - 127;
    e = max_bits == 0 || e > 127 ? 10 : e < -90 ? -90 : e > 90 ? 90 : e; /* zeros and infinities stay what they are */
    return __uint_as_float((uint32_t)(127 + 10 - e) << 23);
}

/* Over all threads of a block. */
static __device__ __forceinline__ uint32_t block_max(uint32_t v)
{
    __shared__ uint32_t part[32];
    for (int o = 16; o > 0; o /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, o));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (uint32_t i = 1; i < blockDim.x / 32; i++)
        v = max(v, part[i]);
    return v;
}

static __device__ __forceinline__ uint32_t largest(const float4 &v, uint32_t m)
{
    m = max(m, __float_as_uint(v.x) & 0x7fffffffu);
    m = max(m, __float_as_uint(v.y) & 0x7fffffffu);
    m = max(m, __float_as_uint(v.z) & 0x7fffffffu);
    return max(m, __float_as_uint(v.w) & 0x7fffffffu);
}

/* Four neighbours from column col on to their places. */
static __device__ __forceinline__ void put_halves(const float4 &v, float f, __half *row, uint32_t col)
{
    __half *to = row + (col & ~15u) + (col & 15) / 2;
    *(__half2 *)to = __floats2half2_rn(v.x * f, v.y * f);
    *(__half2 *)(to + 8) = __floats2half2_rn(v.z * f, v.w * f);
}

#endif
