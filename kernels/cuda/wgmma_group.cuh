/* What all asynchronous products of compute capability 9.0 share (wgmma.cuh, wgmma_wide.cuh): their groups, and how a tile lies in shared memory.
 * HAVE_WGMMA: the code is for 9.0a, the only one that has them. */
#ifndef RANKSCOPE_KERNELS_CUDA_WGMMA_GROUP_CUH
#define RANKSCOPE_KERNELS_CUDA_WGMMA_GROUP_CUH

#include "kernels/cuda/tensor.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAVE_WGMMA 1
#endif

/* Where piece c (eight f16) of a row lies in a tile. */
static __device__ __forceinline__ uint32_t wgmma_place(uint32_t row, uint32_t c)
{
    return row * 128 + ((c ^ row) & 7) * 16;
}

#ifdef HAVE_WGMMA
static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N groups are under way. */
template <int N> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* What this thread wrote to shared memory, its finished copies too, is there for wgmma after the next barrier. */
static __device__ __forceinline__ void wgmma_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#endif
