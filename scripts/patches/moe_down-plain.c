/* The down projections of the experts that were chosen, added up by row in double.
 *
 *     /patch load scripts/patches/moe_down-plain.c
 *     /patch set user=moe_down-plain */
#include "engine/patch_api.h"

enum { PIECE = 256 }; /* a multiple of every block size */

/* Row `row` of matrix `mat`, times x, in double. */
static double dot(const struct rankscope_weight *w, uint32_t mat, uint32_t row, const float *x)
{
    float v[PIECE];
    double s = 0;
    for (uint32_t k = 0; k < w->k; k += PIECE) {
        uint32_t n = w->k - k < PIECE ? w->k - k : PIECE;
        w->dequant(w->type, w->data + mat * w->mat_stride + row * w->stride + k / PIECE * w->bytes_per_256, v, n);
        for (uint32_t j = 0; j < n; j++)
            s += (double)v[j] * (double)x[k + j];
    }
    return s;
}

static void run(const struct rankscope_call *c)
{
    const struct rankscope_experts *x = &c->experts;
    size_t from, to;
    rankscope_share(c, c->out[0].width, 1, &from, &to);
    for (uint32_t i = 0; i < c->out[0].rows; i++)
        for (size_t j = from; j < to; j++) {
            double s = 0;
            for (uint32_t e = 0; e < x->n; e++) /* ascending: the sum has one order */
                for (int32_t p = x->group[e]; p < x->group[e + 1]; p++)
                    if (x->row[p] == (int32_t)i)
                        s += (double)x->weight[p] * dot(&c->w[0], e, (uint32_t)j, c->in[0].data + (size_t)p * c->in[0].stride);
            c->out[0].data[i * c->out[0].stride + j] = (float)s;
        }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "moe_down-plain", "moe_down", "dequantised weights, a row's sum in double", run};
