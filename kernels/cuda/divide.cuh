/* How a multiprocessor divides its memory into cache and shared memory. It can change that only while it is empty, and kernels of a step overlap: where each
 * of a chain asks for a division of its own, blocks that could begin early wait until the multiprocessor has emptied. */
#ifndef RANKSCOPE_KERNELS_CUDA_DIVIDE_CUH
#define RANKSCOPE_KERNELS_CUDA_DIVIDE_CUH

#include <cuda_runtime.h>

/* The kernels of a lone row's layer on one of many ranks ask for the same: so much shared memory that a block of the experts' (experts.cu) finds room, so
 * that what is loaded into registers still finds cache. A hint: where it cannot be had nothing is lost. */
template <class K> static inline void divide_alike(K *kernel)
{
    enum { PERCENT = 72 };
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, PERCENT) != cudaSuccess)
        (void)cudaGetLastError();
}

#endif
