/* A projection row by row: dequantise, multiply, add in double. Slow and exact: tells whether a fast kernel is to blame.
 *
 *     /patch load scripts/patches/linear-plain.c
 *     /patch set user=linear-plain@*.attn.out */
#include "engine/patch_api.h"

enum { PIECE = 256 }; /* a multiple of every block size */

static double dot(const struct rankscope_weight *w, uint32_t row, const float *x)
{
    float v[PIECE];
    double s = 0;
    for (uint32_t k = 0; k < w->k; k += PIECE) {
        uint32_t n = w->k - k < PIECE ? w->k - k : PIECE;
        w->dequant(w->type, w->data + row * w->stride + k / PIECE * w->bytes_per_256, v, n);
        for (uint32_t j = 0; j < n; j++)
            s += (double)v[j] * (double)x[k + j];
    }
    return s;
}

static void run(const struct rankscope_call *c)
{
    const struct rankscope_weight *w = &c->w[0];
    size_t from, to;
    rankscope_share(c, w->rows, 1, &from, &to);
    for (size_t r = from; r < to; r++)
        for (uint32_t i = 0; i < c->in[0].rows; i++) {
            float *y = c->out[0].data + i * c->out[0].stride + r;
            double s = dot(w, (uint32_t)r, c->in[0].data + i * c->in[0].stride);
            *y = (float)(c->accumulate ? (double)*y + s : s);
        }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "linear-plain", "linear", "dequantised weights, sums in double", run};
