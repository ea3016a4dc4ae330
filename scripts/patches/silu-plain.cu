/* The gate of a dense FFN or the shared expert on a GPU: silu(gate) * up, by the exact exponential.
 *
 *     /patch load scripts/patches/silu-plain.cu
 *     /patch set user=silu-plain */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("silu-plain", "silu_mul", "exact exponential")

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const float *gate = c.in + blockIdx.x * c.in_stride, *up = gate + c.width;
    float *y = c.out + blockIdx.x * c.out_stride;
    for (unsigned j = threadIdx.x; j < c.width; j += 256)
        y[j] = gate[j] / (1 + expf(-gate[j])) * up[j];
}
