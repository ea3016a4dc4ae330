/* Looking tokens up, in pieces of a row.
 *
 *     /patch load scripts/patches/embed-plain.c
 *     /patch set user=embed-plain */
#include "engine/patch_api.h"

enum { PIECE = 256 }; /* a multiple of every block size */

static void run(const struct rankscope_call *c)
{
    const struct rankscope_weight *w = &c->w[0];
    size_t from, to;
    rankscope_share(c, c->out[0].rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        float *y = c->out[0].data + i * c->out[0].stride;
        uint32_t row = (uint32_t)c->tokens[i] - c->first_token; /* huge where the token is before this rank's first */
        for (uint32_t k = 0; k < c->out[0].width; k += PIECE) {
            uint32_t n = c->out[0].width - k < PIECE ? c->out[0].width - k : PIECE;
            if (row < w->rows)
                w->dequant(w->type, w->data + row * w->stride + k / PIECE * w->bytes_per_256, y + k, n);
            else
                for (uint32_t j = 0; j < n; j++)
                    y[k + j] = 0;
        }
    }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "embed-plain", "embed", "rows of the table, dequantised", run};
