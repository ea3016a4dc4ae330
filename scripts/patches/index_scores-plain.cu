/* The indexer's scores on a GPU: which positions sparse attention will look at. As good a place as any to try another measure of a key.
 *
 *     /patch load scripts/patches/index_scores-plain.cu
 *     /patch set user=index_scores-plain */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("index_scores-plain", "index_scores", "a thread per position, sums in f32")
RANKSCOPE_CUDA_SHAPE(128, 1, 128)

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    const unsigned row = blockIdx.x, pos = blockIdx.y * 128 + threadIdx.x, last = (unsigned)c.pos[row];
    if (last < c.top_k || pos > last) /* all positions are looked at; there is no such one */
        return;
    float sum = 0;
    for (unsigned h = 0; h < c.n_heads; h++) {
        const float *q = c.in + row * c.in_stride + h * c.head_dim;
        float dot = 0;
        for (unsigned i = 0; i < c.head_dim; i++)
            dot += q[i] * rankscope_cached(c, row, pos, i);
        sum += c.in2[row * c.in2_stride + h] * (dot > 0 ? dot : 0);
    }
    c.out[row * c.out_stride + pos] = c.scale * sum;
}
