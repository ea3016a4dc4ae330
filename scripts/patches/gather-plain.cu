/* Joining the logits on a GPU: the place to forbid a token, or to lean towards one.
 *
 *     /patch load scripts/patches/gather-plain.cu
 *     /patch set user=gather-plain */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("gather-plain", "gather", "this rank's logits to their place in the joined row")

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    for (unsigned j = threadIdx.x; j < c.width; j += blockDim.x)
        c.out[blockIdx.x * c.out_stride + j] = c.in[blockIdx.x * c.in_stride + j];
}
