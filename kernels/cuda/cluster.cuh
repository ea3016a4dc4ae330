/* Data from block to block of a cluster: values are sent into the receiver's shared memory and counted by a barrier there, so that one way is all that
 * anybody waits for; no fence, no barrier of the whole cluster.
 *
 * Who has received everything that is sent to it may leave. Clusters exist from compute capability 9 on; below, code that uses them merely compiles. */
#ifndef RANKSCOPE_KERNELS_CUDA_CLUSTER_CUH
#define RANKSCOPE_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* One thread: a barrier; and that it opens after so many bytes. Both before cluster_arrive(). */
static __device__ __forceinline__ void inbox_make(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    (void)barrier;
    __trap();
#endif
}
static __device__ __forceinline__ void inbox_expect(uint64_t *barrier, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(shared_at(barrier)), "r"(bytes)
                 : "memory");
#else
    (void)barrier, (void)bytes;
    __trap();
#endif
}
static __device__ __forceinline__ void inbox_init(uint64_t *barrier, uint32_t bytes)
{
    inbox_make(barrier);
    inbox_expect(barrier, bytes);
}

/* All threads: this block has begun; and wait until all have, before anything is sent. */
static __device__ __forceinline__ void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* All threads of all blocks: what they wrote to shared memory is there for the others. */
static __device__ __forceinline__ void cluster_meet()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Where this block's p lies in another block. */
static __device__ __forceinline__ uint32_t at_block(const void *p, uint32_t block)
{
    uint32_t at = shared_at(p);
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_at(p)), "r"(block));
#endif
    return at;
}

/* What lies there. */
static __device__ __forceinline__ float fetch_from(uint32_t at)
{
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
#endif
    return v;
}

static __device__ __forceinline__ float4 fetch_four_from(uint32_t at)
{
    float4 v = make_float4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
#endif
    return v;
}

static __device__ __forceinline__ void send(uint32_t to, float v, uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(__float_as_uint(v)),
                 "r"(barrier)
                 : "memory");
#else
    (void)to, (void)v, (void)barrier;
#endif
}
/* Four values at once, 16-byte aligned: every sending is counted, so few large ones are cheaper. */
static __device__ __forceinline__ void send(uint32_t to, float4 v, uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)), "r"(barrier)
                 : "memory");
#else
    (void)to, (void)v, (void)barrier;
#endif
}

/* Wait at a barrier of this block; all threads that need what is counted there. */
static __device__ __forceinline__ void receive(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (done == 0)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_at(barrier))
                     : "memory");
#else
    (void)barrier;
#endif
}

/* Between initialising a barrier and the first bulk copy that it counts. */
static __device__ __forceinline__ void fence_async()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* From memory to shared memory, counted by a barrier that the calling thread has initialised. Addresses and numbers are multiples of 16. */
static __device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_at(barrier))
                 : "memory");
#else
    (void)to, (void)from, (void)bytes, (void)barrier;
#endif
}

#endif
