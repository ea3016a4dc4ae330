/* The gate and up projections of the experts that were chosen, sums in double.
 *
 *     /patch load scripts/patches/moe_gate_up-plain.c
 *     /patch set user=moe_gate_up-plain@blk.3.* */
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

/* The share is of the columns of out[0]: each is a row of every expert's matrix. */
static void run(const struct rankscope_call *c)
{
    const struct rankscope_experts *x = &c->experts;
    size_t from, to, half = c->w[0].rows;
    rankscope_share(c, c->out[0].width, 1, &from, &to);
    for (uint32_t e = 0; e < x->n; e++)
        for (int32_t p = x->group[e]; p < x->group[e + 1]; p++)
            for (size_t j = from; j < to; j++)
                c->out[0].data[(size_t)p * c->out[0].stride + j] =
                    (float)dot(&c->w[j < half ? 0 : 1], e, (uint32_t)(j < half ? j : j - half), c->in[0].data + (size_t)x->row[p] * c->in[0].stride);
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "moe_gate_up-plain", "moe_gate_up", "dequantised weights, sums in double", run};
