/* The indexer's scores: which positions sparse attention will look at, sums in double.
 *
 *     /patch load scripts/patches/index_scores-plain.c
 *     /patch set user=index_scores-plain */
#include "engine/patch_api.h"

enum { MOST = 512 }; /* values of a key */

static double dot(const float *a, const float *b, uint32_t n)
{
    double s = 0;
    for (uint32_t i = 0; i < n; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

/* The share is of the positions of each row: a key is read once, for all heads. */
static void run(const struct rankscope_call *c)
{
    float key[MOST];
    for (uint32_t row = 0; row < c->in[0].rows; row++) {
        const float *q = c->in[0].data + row * c->in[0].stride, *weight = c->in[1].data + row * c->in[1].stride;
        size_t from, to, n = (size_t)c->pos[row] + 1;
        if (n <= c->top_k || c->head_dim > MOST) /* all positions are looked at */
            continue;
        rankscope_share(c, n, 1, &from, &to);
        for (size_t pos = from; pos < to; pos++) {
            double sum = 0;
            c->cache_get(c, row, (uint32_t)pos, key);
            for (uint32_t h = 0; h < c->n_heads; h++) {
                double d = dot(q + h * c->head_dim, key, c->head_dim);
                sum += (double)weight[h] * (d > 0 ? d : 0);
            }
            c->out[0].data[row * c->out[0].stride + pos] = (float)((double)c->scale * sum);
        }
    }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "index_scores-plain", "index_scores", "sums in double", run};
