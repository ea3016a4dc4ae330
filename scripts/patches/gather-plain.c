/* Joining the logits: the place to forbid a token, or to lean towards one.
 *
 *     /patch load scripts/patches/gather-plain.c
 *     /patch set user=gather-plain */
#include <string.h>

#include "engine/patch_api.h"

/* The share is of the columns: out[0] is this rank's part of the joined row. */
static void run(const struct rankscope_call *c)
{
    size_t from, to;
    rankscope_share(c, c->out[0].width, 16, &from, &to);
    for (uint32_t i = 0; i < c->out[0].rows; i++)
        memcpy(c->out[0].data + i * c->out[0].stride + from, c->in[0].data + i * c->in[0].stride + from, (to - from) * sizeof(float));
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "gather-plain", "gather", "each rank's logits to their place", run};
