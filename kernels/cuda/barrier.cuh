/* Barriers in shared memory of compute capability 9.0 that copies arrive at by themselves, and those of some threads of a block. Where HAVE_WGMMA. */
#ifndef RANKSCOPE_KERNELS_CUDA_BARRIER_CUH
#define RANKSCOPE_KERNELS_CUDA_BARRIER_CUH

#include "kernels/cuda/wgmma_group.cuh"

#ifdef HAVE_WGMMA
static __device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_of(b)), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_of(b)) : "memory");
}

/* Once all copies that this thread has started so far are done. */
static __device__ __forceinline__ void barrier_arrive_copied(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_of(b)) : "memory");
}

/* Until the round of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra WAIT; }" ::"r"(smem_of(b)), "r"(parity) : "memory");
}

/* Barrier ID among N threads of a block. */
template <int ID, int N> static __device__ __forceinline__ void group_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(N) : "memory");
}
#endif

#endif
