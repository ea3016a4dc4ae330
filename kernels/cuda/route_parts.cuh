/* The router of up to some hundred rows in one launch, route_parts.cu, for route_many.cu: where a row's result may depend on the number of rows. */
#ifndef RANKSCOPE_KERNELS_CUDA_ROUTE_PARTS_CUH
#define RANKSCOPE_KERNELS_CUDA_ROUTE_PARTS_CUH

#include "kernels/cuda/cuda.h"

/* Of every 256 values of K this many neighbours make one sum, which runs over all of K; logits are these sums added in their order. */
enum { ROUTE_PART = 32, ROUTE_PARTS = 8 };

bool route_parts_takes(const struct kcu_route *a);
cudaError_t route_parts(const struct kcu_launch *l, const struct kcu_route *a);

#endif
