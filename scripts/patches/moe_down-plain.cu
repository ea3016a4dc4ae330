/* The down projections of the experts on a GPU, added up by row.
 *
 *     /patch load scripts/patches/moe_down-plain.cu
 *     /patch set user=moe_down-plain@blk.3.* */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("moe_down-plain", "moe_down", "a warp per column, a row's experts one after the other, ascending")
enum { WARPS = 8 };
RANKSCOPE_CUDA_SHAPE(32 * WARPS, 1, WARPS) /* blockIdx.x: the row, blockIdx.y: a column for each warp */

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const unsigned row = blockIdx.x, col = blockIdx.y * WARPS + threadIdx.x / 32, first = row * c.n_used;
    float y = 0;
    if (col >= c.width)
        return;
    for (int last = -1;;) { /* the next expert of this rank that was chosen, so that the sum has one order */
        unsigned pair = 0;
        int next = -1;
        for (unsigned p = first; p < first + c.n_used; p++) {
            const int e = rankscope_expert(c, p);
            if (e > last && (next < 0 || e < next))
                next = e, pair = p;
        }
        if (next < 0)
            break;
        y += c.weights[row * c.ids_stride + pair % c.n_used] * rankscope_dot(c.m[0], next, col, c.in + pair * c.in_stride);
        last = next;
    }
    if (threadIdx.x % 32 == 0)
        c.out[row * c.out_stride + col] = y;
}
