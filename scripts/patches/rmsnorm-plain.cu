/* RMSNorm on a GPU, written down plainly: a patch to compare with, or to start from.
 *
 *     /patch load scripts/patches/rmsnorm-plain.cu
 *     /patch set user=rmsnorm-plain@blk.*.attn.norm */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("rmsnorm-plain", "rmsnorm", "sums in double")

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    __shared__ double part[256];
    const float *x = c.in + blockIdx.x * c.in_stride;
    float *y = c.out + blockIdx.x * c.out_stride;
    double sum = 0;
    for (unsigned j = threadIdx.x; j < c.width; j += 256)
        sum += (double)x[j] * x[j];
    part[threadIdx.x] = sum;
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    __syncthreads();
    const float f = (float)(1 / sqrt(part[0] / c.width + (double)c.eps));
    for (unsigned j = threadIdx.x; j < c.width; j += 256)
        y[j] = x[j] * f * c.w[j];
}
