/* Attention over the latent cache on a GPU: queries brought into the latent space, one pass over the keys with a running maximum.
 *
 *     /patch load scripts/patches/mla-plain.cu
 *     /patch set user=mla-plain@blk.3.* */
#include "engine/patch_cuda.h"

RANKSCOPE_CUDA_PATCH("mla-plain", "mla", "a block per row and head, a warp per key, sums in f32")
enum { WARPS = 8, MOST = 512, EACH = MOST / 32 }; /* values of a latent row, of them a lane's */
RANKSCOPE_CUDA_SHAPE(32 * WARPS, 1, RANKSCOPE_HEAD)

#define NONE -3e38f /* below any score */

struct part {
    float top, sum, mix[EACH]; /* of exp(score - top): the sum, and the latent rows times that */
};

/* Take a key with its score in. Its latent row is this lane's `x`. */
static __device__ void take(part &p, float score, const float x[EACH])
{
    const float top = fmaxf(p.top, score), old = expf(p.top - top), now = expf(score - top);
    p.sum = p.sum * old + now;
    for (int i = 0; i < EACH; i++)
        p.mix[i] = p.mix[i] * old + now * x[i];
    p.top = top;
}

extern "C" __global__ void rankscope_run(rankscope_cuda_call c)
{
    __shared__ __align__(16) float query[MOST], mix[MOST], top[WARPS], sum[WARPS];
    const unsigned row = blockIdx.x, h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, nope = c.head_dim - c.rope_dim;
    const int *sel = c.sel != nullptr && c.sel[row * c.sel_stride] >= 0 ? c.sel + row * c.sel_stride : nullptr;
    const unsigned n = sel != nullptr ? (unsigned)sel[0] : (unsigned)c.pos[row] + 1;
    const float *q = c.in + row * c.in_stride + h * c.head_dim;
    part p = {NONE, 0, {0}};
    if (c.kv_lora > MOST)
        return;
    for (unsigned l = warp; l < c.kv_lora; l += WARPS) {
        const float v = rankscope_dot(c.m[0], h, l, q);
        if (lane == 0)
            query[l] = v;
    }
    __syncthreads();
    for (unsigned k = warp; k < n; k += WARPS) {
        const unsigned pos = sel != nullptr ? (unsigned)sel[1 + k] : k;
        float x[EACH], score = 0;
        for (unsigned i = 0; i < EACH; i++) {
            const unsigned l = lane + 32 * i;
            x[i] = l < c.kv_lora ? rankscope_cached(c, row, pos, l) : 0;
            score += l < c.kv_lora ? query[l] * x[i] : 0;
        }
        for (unsigned j = lane; j < c.rope_dim; j += 32)
            score += q[nope + j] * rankscope_cached(c, row, pos, c.kv_lora + j);
        for (unsigned o = 16; o > 0; o /= 2)
            score += __shfl_xor_sync(0xffffffffu, score, o);
        take(p, c.scale * score, x);
    }
    if (lane == 0)
        top[warp] = p.top, sum[warp] = p.sum;
    for (unsigned l = threadIdx.x; l < MOST; l += 32 * WARPS)
        mix[l] = 0;
    __syncthreads();
    float all = NONE, z = 0;
    for (int w = 0; w < WARPS; w++)
        all = fmaxf(all, top[w]);
    for (int w = 0; w < WARPS; w++)
        z += sum[w] * expf(top[w] - all);
    for (unsigned w = 0; w < WARPS; w++) { /* one warp after the other, so that the sum has one order */
        for (unsigned i = 0; i < EACH && w == warp; i++)
            mix[lane + 32 * i] += p.mix[i] * expf(p.top - all) / z;
        __syncthreads();
    }
    for (unsigned v = warp; v < c.v_head; v += WARPS) {
        const float y = rankscope_dot(c.m[1], h, v, mix);
        if (lane == 0)
            c.out[row * c.out_stride + h * c.v_head + v] = y;
    }
}
