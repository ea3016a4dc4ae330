/* Boxes of matrices in memory, brought to shared memory by bulk tensor copies of compute capability 9.0: how they are described, and asked
 * for by one thread. */
#ifndef RANKSCOPE_KERNELS_CUDA_BOXES_CUH
#define RANKSCOPE_KERNELS_CUDA_BOXES_CUH

#include <cudaTypedefs.h>

#include "kernels/cuda/barrier.cuh"

/* The driver's function that describes boxes. */
static inline cudaError_t box_maker(PFN_cuTensorMapEncodeTiled_v12000 *f)
{
    enum cudaDriverEntryPointQueryResult found;
    void *p = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found);
#else
    cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &p, cudaEnableDefault, &found);
#endif
    *f = (PFN_cuTensorMapEncodeTiled_v12000)p;
    return e != cudaSuccess ? e : found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorNotSupported;
}

#ifdef HAVE_WGMMA
/* This thread arrives, and so many bytes are still to come. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_of(b)), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void bring_box(void *to, const CUtensorMap *map, uint32_t col, uint32_t row, uint64_t *b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(smem_of(to)),
                 "l"(map), "r"(col), "r"(row), "r"(smem_of(b))
                 : "memory");
}

/* Of several such matrices, one behind the other. */
static __device__ __forceinline__ void bring_box(void *to, const CUtensorMap *map, uint32_t col, uint32_t row, uint32_t mat, uint64_t *b)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(smem_of(to)),
                 "l"(map), "r"(col), "r"(row), "r"(mat), "r"(smem_of(b))
                 : "memory");
}
#endif

#endif
