/* The tensor cores' asynchronous products of compute capability 9.0 with few columns: c += a b, 64 x 16 times 16 x N, by the four warps of a warpgroup;
 * without `add` the product alone. Both operands in shared memory: b as for wgmma.cuh, a 64 rows laid out as b's (wgmma_few()), or across, its rows side
 * by side as wgmma_tile_across() has columns (wgmma_few_across()). */
#ifndef RANKSCOPE_KERNELS_CUDA_WGMMA_FEW_CUH
#define RANKSCOPE_KERNELS_CUDA_WGMMA_FEW_CUH

#include "kernels/cuda/wgmma_group.cuh"

#ifdef HAVE_WGMMA
template <int N> static __device__ __forceinline__ void wgmma_few(float *c, uint64_t a, uint64_t b, uint32_t add);
template <int N> static __device__ __forceinline__ void wgmma_few_across(float *c, uint64_t a, uint64_t b, uint32_t add);

/* Both for N columns: the sums' operands, and the places of a, b and `add` behind them. */
#define QUAD(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define FORM(NAME, ACROSS, N, SUMS, A, B, ADD, ...)                                                                                                  \
    template <> __device__ __forceinline__ void NAME<N>(float *c, uint64_t a, uint64_t b, uint32_t add)                                              \
    {                                                                                                                                                \
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" SUMS "}, %" #A ", %" #B \
                     ", p, 1, 1, " #ACROSS ", 0; }"                                                                                                  \
                     : __VA_ARGS__                                                                                                                   \
                     : "l"(a), "l"(b), "r"(add));                                                                                                    \
    }
#define BOTH(...) FORM(wgmma_few, 0, __VA_ARGS__) FORM(wgmma_few_across, 1, __VA_ARGS__)
BOTH(8, "%0,%1,%2,%3", 4, 5, 6, QUAD(0))
BOTH(16, "%0,%1,%2,%3,%4,%5,%6,%7", 8, 9, 10, QUAD(0), QUAD(4))
BOTH(24, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", 12, 13, 14, QUAD(0), QUAD(4), QUAD(8))
BOTH(32, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", 16, 17, 18, QUAD(0), QUAD(4), QUAD(8), QUAD(12))
#undef BOTH
#undef FORM
#undef QUAD
#endif

#endif
