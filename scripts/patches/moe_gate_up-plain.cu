/* The gate and up projections of the experts on a GPU, which reads the chosen experts alone.
 *
 *     /patch load scripts/patches/moe_gate_up-plain.cu
 *     /patch set user=moe_gate_up-plain@blk.3.* */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("moe_gate_up-plain", "moe_gate_up", "a warp per column, weights decoded as it goes, sums in f32")
enum { WARPS = 8 };
RANKSCOPE_CUDA_SHAPE(32 * WARPS, 1, WARPS) /* blockIdx.x: the pair, blockIdx.y: a column for each warp */

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const unsigned pair = blockIdx.x, col = blockIdx.y * WARPS + threadIdx.x / 32, gates = c.m[0].rows;
    const int expert = rankscope_expert(c, pair);
    if (expert < 0 || col >= c.width)
        return;
    const float y = rankscope_dot(c.m[col < gates ? 0 : 1], expert, col < gates ? col : col - gates, c.in + pair / c.n_used * c.in_stride);
    if (threadIdx.x % 32 == 0)
        c.out[pair * c.out_stride + col] = y;
}
