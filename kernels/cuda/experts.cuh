/* A lone row's experts where a GPU has a small slice of each, as one of many ranks: between moe.cu, down.cu and experts.cu. */
#ifndef RANKSCOPE_KERNELS_CUDA_EXPERTS_CUH
#define RANKSCOPE_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/cuda.h"

cudaError_t experts_gated(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared,
                          const struct kcu_route *choose);
cudaError_t experts_down(const struct kcu_launch *l, const struct kcu_down *a);

/* The experts of a few rows, with the shared one or without (NULL), where kcu_gated_few() and kcu_down_few() say so: experts_few.cu. Sums do not have the bits of other kernels. */
cudaError_t experts_few_gated(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared);
cudaError_t experts_few_down(const struct kcu_launch *l, const struct kcu_down *a);

#endif
