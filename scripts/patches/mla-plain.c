/* Attention over the latent cache, one head of one row at a time, in double, keys taken one by one (the sum is rescaled when a larger score comes).
 *
 *     /patch load scripts/patches/mla-plain.c
 *     /patch set user=mla-plain@blk.3.* */
#include <math.h>

#include "engine/patch_api.h"

enum { LONGEST = 1024 }; /* latent, head and cached row: 512, 256 and 576 in the largest models there are */

static void matrix_row(const struct rankscope_weight *w, uint32_t head, uint32_t row, float *to)
{
    w->dequant(w->type, w->data + head * w->mat_stride + row * w->stride, to, w->k);
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double s = 0;
    for (uint32_t i = 0; i < n; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

static void attend(const struct rankscope_call *c, uint32_t row, uint32_t head)
{
    const uint32_t l = c->kv_lora, nope = c->head_dim - c->rope_dim;
    const float *q = c->in[0].data + row * c->in[0].stride + head * c->head_dim;
    float *y = c->out[0].data + row * c->out[0].stride + head * c->v_head;
    float key[LONGEST], carried[LONGEST], mix_f[LONGEST];
    double mix[LONGEST] = {0}, top = -INFINITY, sum = 0;
    uint32_t n = (uint32_t)c->pos[row] + 1;
    const int32_t *sel = c->selected(c, row, &n);
    for (uint32_t i = 0; i < l; i++) { /* the query in latent space */
        matrix_row(&c->w[0], head, i, key);
        carried[i] = (float)dot(q, key, nope);
    }
    for (uint32_t k = 0; k < n; k++) {
        c->cache_get(c, row, sel != NULL ? (uint32_t)sel[k] : k, key);
        double score = (dot(carried, key, l) + dot(q + nope, key + l, c->rope_dim)) * (double)c->scale;
        if (score > top) {
            double f = exp(top - score);
            sum *= f;
            for (uint32_t i = 0; i < l; i++)
                mix[i] *= f;
            top = score;
        }
        double p = exp(score - top);
        sum += p;
        for (uint32_t i = 0; i < l; i++)
            mix[i] += p * (double)key[i];
    }
    for (uint32_t i = 0; i < l; i++)
        mix_f[i] = (float)(mix[i] / sum);
    for (uint32_t v = 0; v < c->v_head; v++) { /* the mixture of latents, carried out again */
        matrix_row(&c->w[1], head, v, key);
        y[v] = (float)dot(mix_f, key, l);
    }
}

static void run(const struct rankscope_call *c)
{
    size_t from, to;
    if (c->kv_lora + c->rope_dim > LONGEST || c->head_dim > LONGEST)
        return;
    rankscope_share(c, (size_t)c->in[0].rows * c->n_heads, 1, &from, &to);
    for (size_t i = from; i < to; i++)
        attend(c, (uint32_t)(i / c->n_heads), (uint32_t)(i % c->n_heads));
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "mla-plain", "mla", "absorbed, key by key, sums in double", run};
