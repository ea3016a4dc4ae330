/* RMSNorm, written down plainly: a patch to compare with, or to start from.
 *
 *     /patch load scripts/patches/rmsnorm-plain.c
 *     /patch set user=rmsnorm-plain@blk.*.attn.norm */
#include <math.h>

#include "engine/patch_api.h"

static void run(const struct rankscope_call *c)
{
    const float *w = (const float *)(const void *)c->w[0].data;
    size_t from, to;
    rankscope_share(c, c->in[0].rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        const float *x = c->in[0].data + i * c->in[0].stride;
        float *y = c->out[0].data + i * c->out[0].stride;
        double sum = 0;
        for (uint32_t j = 0; j < c->in[0].width; j++)
            sum += (double)x[j] * (double)x[j];
        float f = (float)(1 / sqrt(sum / c->in[0].width + (double)c->eps));
        for (uint32_t j = 0; j < c->in[0].width; j++)
            y[j] = x[j] * f * w[j];
    }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "rmsnorm-plain", "rmsnorm", "sums in double", run};
