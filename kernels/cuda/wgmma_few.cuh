/* The tensor cores' asynchronous products of compute capability 9.0 with few columns: c += a b, 64 x 16 times 16 x N, by the four warps of a warpgroup;
 * without `add` the product alone. Both operands in shared memory: b as for wgmma.cuh, a 64 rows laid out as b's (wgmma_few()), or across, its rows side
 * by side as wgmma_tile_across() has columns (wgmma_few_across()). */
#ifndef RANKSCOPE_KERNELS_CUDA_WGMMA_FEW_CUH
#define RANKSCOPE_KERNELS_CUDA_WGMMA_FEW_CUH

#include "kernels/cuda/wgmma_group.cuh"

#ifdef HAVE_WGMMA
template <int N> static __device__ __forceinline__ void wgmma_few(float *c, uint64_t a, uint64_t b, uint32_t add);
template <int N> static __device__ __forceinline__ void wgmma_few_across(float *c, uint64_t a, uint64_t b, uint32_t add);

#define QUAD(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
template <> __device__ __forceinline__ void wgmma_few<8>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                 "%0,%1,%2,%3"
                 "}, %4, %5, p, 1, 1, 0, 0; }"
                 : QUAD(0)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few_across<8>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                 "%0,%1,%2,%3"
                 "}, %4, %5, p, 1, 1, 1, 0; }"
                 : QUAD(0)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few<16>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7"
                 "}, %8, %9, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few_across<16>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7"
                 "}, %8, %9, p, 1, 1, 1, 0; }"
                 : QUAD(0), QUAD(4)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few<24>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11"
                 "}, %12, %13, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few_across<24>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11"
                 "}, %12, %13, p, 1, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few<32>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_few_across<32>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12)
                 : "l"(a), "l"(b), "r"(add));
}

#undef QUAD
#endif

#endif
