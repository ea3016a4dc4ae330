/* kcu_linear() for a few rows, where they need not have the bits of a row alone: between linear.cu and linear_few.cu. */
#ifndef RANKSCOPE_KERNELS_CUDA_LINEAR_FEW_CUH
#define RANKSCOPE_KERNELS_CUDA_LINEAR_FEW_CUH

#include "kernels/cuda/cuda.h"

cudaError_t linear_few(const struct kcu_launch *l, const struct kcu_linear *a);

#endif
