/* The output head of a lone row: the longest product of a step, and its last kernel. As cuda.h. */
#ifndef RANKSCOPE_KERNELS_CUDA_HEAD_H
#define RANKSCOPE_KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kcu_linear() of one row and one matrix, the same bits, for matrices of so many rows that they are cut into equal shares of whole rows, and weights come without a
 * break. host: memory mapped for the device, where the result goes as well; or NULL. fits(): the shapes that it takes; takes(): and it is worth it. */
bool kcu_head_fits(const struct kcu_linear *a);
bool kcu_head_takes(const struct kcu_linear *a);
cudaError_t kcu_head(const struct kcu_launch *l, const struct kcu_linear *a, float *host);

#ifdef __cplusplus
}
#endif
#endif
