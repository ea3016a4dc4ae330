/* The sum over all ranks in double, rounded once: does the order of the sum matter?
 *
 *     /patch load scripts/patches/allreduce-exact.c
 *     /patch set user=allreduce-exact@blk.0.* */
#include "engine/patch_api.h"

static void run(const struct rankscope_call *c)
{
    const struct rankscope_tensor *t = &c->out[0];
    size_t from, to;
    rankscope_share(c, (size_t)t->rows * t->width, 16, &from, &to);
    for (size_t i = from; i < to; i++) {
        const size_t at = i / t->width * t->stride + i % t->width;
        double s = 0;
        for (uint32_t r = 0; r < c->n_ranks; r++)
            s += (double)c->ranks[r][at];
        for (uint32_t r = 0; r < c->n_ranks; r++)
            c->ranks[r][at] = (float)s;
    }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "allreduce-exact", "allreduce", "summed in double, rounded once", run};
