/* A projection on a GPU: a warp for every column of the result.
 *
 *     /patch load scripts/patches/linear-plain.cu
 *     /patch set user=linear-plain@blk.*.attn.out */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("linear-plain", "linear", "a warp per column, weights decoded as it goes, sums in f32")
enum { WARPS = 8 };
RANKSCOPE_CUDA_SHAPE(32 * WARPS, 1, WARPS)

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const unsigned row = blockIdx.x, col = blockIdx.y * WARPS + threadIdx.x / 32;
    if (col >= c.width)
        return;
    const float y = rankscope_dot(c.m[0], 0, col, c.in + row * c.in_stride);
    float *to = c.out + row * c.out_stride + col;
    if (threadIdx.x % 32 == 0)
        *to = c.accumulate ? *to + y : y;
}
