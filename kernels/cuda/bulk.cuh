/* Products of one row with weights that are brought to shared memory by bulk copies: a thread asks for all rows of its warp at once, no registers are
 * held meanwhile, and where all blocks of a launch are resident every weight is on its way at the same time. */
#ifndef RANKSCOPE_KERNELS_CUDA_BULK_CUH
#define RANKSCOPE_KERNELS_CUDA_BULK_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/tensor.cuh"

/* Shared memory that a block has besides: static, and what the system keeps. */
enum { BULK_RESERVED = 12 * 1024 };

struct bulk_device {
    uint32_t sms;
    size_t shared; /* bytes of a multiprocessor; 0: bulk copies are not there */
};

static inline bulk_device bulk_device_here()
{
    int device, major = 0, bytes = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major < 9)
        return {0, 0};
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    return {multiprocessors(), (size_t)bytes};
}

template <class K, class... A>
static cudaError_t bulk_launch(const struct kcu_launch *l, K kernel, dim3 grid, dim3 block, size_t bytes, const A &...a)
{
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e == cudaSuccess ? launch(l, kernel, grid, block, bytes, 0, a...) : e;
}

/* One thread, before a barrier of the block: bytes from a, and as many from b behind them unless that is NULL. All who need them receive(barrier). */
static __device__ __forceinline__ void bring(uint8_t *to, const uint8_t *a, const uint8_t *b, uint32_t bytes, uint64_t *barrier)
{
    inbox_init(barrier, bytes * (b != nullptr ? 2 : 1));
    fence_async();
    bulk_copy(to, a, bytes, barrier);
    if (b != nullptr)
        bulk_copy(to + bytes, b, bytes, barrier);
}

/* One row of activations in the int8 form on its way to where format F wants it. The block calls, each thread waits for its copies. */
template <class F> static __device__ __forceinline__ void stage_async(const uint8_t *q8, uint32_t k, uint8_t *xs, uint32_t threads)
{
    const uint8_t *blocks = q8 + q8_offset(k);
    for (uint32_t i = threadIdx.x; i < k / F::W * staged<F>::PIECES; i += threads) {
        const uint32_t c = i / staged<F>::PIECES, j = i % staged<F>::PIECES;
        copy_async<16>(xs + c * staged<F>::STRIDE + 16 * j,
               j < F::W / 16 ? q8 + (size_t)c * F::W + 16 * j : blocks + (size_t)c * (F::W / 2) + 16 * (j - F::W / 16));
    }
}

/* A unit of weights and its activations, both in shared memory. */
template <class F> static __device__ __forceinline__ float unit_shared(const uint8_t *row, uint32_t k, uint32_t u, const uint8_t *xs, float acc)
{
    typename F::raw r;
    int q[F::W / 4];
    float a[F::NS], b[F::NS];
    F::template fetch<STAGED>(row, k, u, r);
    F::unpack(r, u, q, a, b);
    const uint8_t *x = xs + u * staged<F>::STRIDE;
    return unit_q8<F>(q, a, b, x, x + F::W, acc);
}

#endif
