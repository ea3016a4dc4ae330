/* What the all-reduces share: rounding of summands. */
#ifndef RANKSCOPE_KERNELS_CUDA_REDUCE_CUH
#define RANKSCOPE_KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ uint32_t bf16_bits(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
static __device__ __forceinline__ float bf16_round(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}
static __device__ __forceinline__ float4 bf16_round(float4 v)
{
    return make_float4(bf16_round(v.x), bf16_round(v.y), bf16_round(v.z), bf16_round(v.w));
}
static __device__ __forceinline__ float4 operator+(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#endif
