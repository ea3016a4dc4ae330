/* The embedding on a GPU: the place to put a vector of one's own in the place of a token's.
 *
 *     /patch load scripts/patches/embed-plain.cu
 *     /patch set user=embed-plain */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("embed-plain", "embed", "the rows of the table, decoded")

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const unsigned row = blockIdx.x, r = (unsigned)c.tokens[row] - c.first_token; /* tokens before it wrap around */
    float v[32];
    for (unsigned at = threadIdx.x * 32; at < c.width; at += blockDim.x * 32) {
        if (r < c.m[0].rows)
            rankscope_values(c.m[0], 0, r, at, v);
        for (unsigned i = 0; i < 32 && at + i < c.width; i++)
            c.out[row * c.out_stride + at + i] = r < c.m[0].rows ? v[i] : 0; /* zeros: another rank has it */
    }
}
