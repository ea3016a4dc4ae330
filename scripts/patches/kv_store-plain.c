/* What goes to the cache: the latent normed, the key rotated, in double. Rows that are wrong here are wrong for every later token.
 *
 *     /patch load scripts/patches/kv_store-plain.c
 *     /patch set user=kv_store-plain */
#include <math.h>

#include "engine/patch_api.h"

static void norm(float *x, const float *w, uint32_t n, double eps)
{
    double sq = 0;
    for (uint32_t i = 0; i < n; i++)
        sq += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / sqrt(sq / n + eps) * (double)w[i]);
}

static void rotate(float *x, const float *cos, const float *sin, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        double a = (double)x[2 * i], b = (double)x[2 * i + 1], c = (double)cos[i], s = (double)sin[i];
        x[2 * i] = (float)(a * c - b * s);
        x[2 * i + 1] = (float)(b * c + a * s);
    }
}

static void run(const struct rankscope_call *c)
{
    const uint32_t half = c->rope_dim / 2;
    size_t from, to;
    rankscope_share(c, c->in[0].rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        float *x = c->in[0].data + i * c->in[0].stride;
        norm(x, (const float *)(const void *)c->w[0].data, c->kv_lora, (double)c->eps);
        rotate(x + c->kv_lora, c->cos + (size_t)c->pos[i] * half, c->sin + (size_t)c->pos[i] * half, half);
        c->cache_put(c, (uint32_t)i, x);
    }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "kv_store-plain", "kv_store", "norm and rotation in double", run};
