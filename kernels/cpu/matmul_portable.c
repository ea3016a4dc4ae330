/* The matmul in plain C: the reference for the others, and what runs where they cannot. */
#include "kernels/cpu/matmul_impl.h"

#include <math.h>

static void unpack(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel *p)
{
    struct krn_quant_form form = krn_quant_form(type);
    uint8_t q[CHUNK_K];
    float a[CHUNK_K / 16], b[CHUNK_K / 16];
    for (size_t r = 0; r < PANEL_ROWS; r++) {
        krn_quant_split(type, rows.w + r * rows.stride, n, q, a, b);
        for (size_t k = 0; k < n; k++)
            p->q[k / 4][r][k % 4] = q[k];
        for (size_t g = 0; g < n / form.group; g++) {
            p->a[g][r] = a[g];
            p->b[g][r] = form.minima ? b[g] : 0.0f;
        }
    }
}

/* One group of weights, which lies within 32 activations x, described by `block`; upper: the group is the second 16 of them. */
static void group_q8(struct krn_quant_form form, const struct krn_panel *p, size_t g, const int8_t *x, const struct krn_q8_block *block,
                     bool upper, float *sum)
{
    int32_t neg_sum = form.group == 32 ? block->neg_sum : upper ? block->neg_sum - block->neg_sum_low : block->neg_sum_low;
    int32_t dot[PANEL_ROWS];
    for (size_t r = 0; r < PANEL_ROWS; r++)
        dot[r] = form.minima ? 0 : neg_sum * (1 << form.zero_shift);
    for (size_t i = 0; i < form.group; i += 4) {
        const uint8_t(*q)[4] = p->q[(g * form.group + i) / 4];
        for (size_t r = 0; r < PANEL_ROWS; r++)
            dot[r] += q[r][0] * x[i] + q[r][1] * x[i + 1] + q[r][2] * x[i + 2] + q[r][3] * x[i + 3];
    }
    float s = form.group == 32 ? block->s : block->d * (float)-neg_sum;
    for (size_t r = 0; r < PANEL_ROWS; r++) {
        sum[r] = fmaf(p->a[g][r] * block->d, (float)dot[r], sum[r]);
        if (form.minima)
            sum[r] = fmaf(-p->b[g][r], s, sum[r]);
    }
}

static void tile_q8(struct krn_quant_form form, const struct krn_panel *p, size_t panels, size_t n, const uint8_t *const *x, size_t offset,
                    size_t blocks, size_t n_cols, struct krn_sums *sums)
{
    for (size_t j = 0; j < n_cols; j++) {
        const int8_t *q = (const int8_t *)x[j] + offset;
        const struct krn_q8_block *block = (const struct krn_q8_block *)(x[j] + blocks);
        for (size_t i = 0; i < panels; i++)
            for (size_t k = 0; k < n; k += form.group)
                group_q8(form, &p[i], k / form.group, q + k, &block[k / 32], k % 32 != 0, &sums->v[j][i * PANEL_ROWS]);
    }
}

static void unpack_f32(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel_f32 *p)
{
    float w[CHUNK_K];
    for (size_t r = 0; r < PANEL_ROWS; r++) {
        krn_dequant_row(type, rows.w + r * rows.stride, w, n);
        for (size_t k = 0; k < n; k++)
            p->w[k][r] = w[k];
    }
}

static void expand(struct krn_quant_form form, const struct krn_panel *p, size_t n, struct krn_panel_f32 *w)
{
    int zero = 1 << form.zero_shift;
    for (size_t k = 0; k < n; k++) {
        size_t g = k / form.group;
        for (size_t r = 0; r < PANEL_ROWS; r++) {
            uint8_t q = p->q[k / 4][r][k % 4];
            w->w[k][r] = form.minima ? p->a[g][r] * (float)q - p->b[g][r] : p->a[g][r] * (float)(q - zero);
        }
    }
}

static void tile_f32(const struct krn_panel_f32 *p, size_t n, const uint8_t *const *x, size_t offset, size_t n_cols, struct krn_sums *sums,
                     size_t row)
{
    for (size_t j = 0; j < n_cols; j++) {
        const float *f = (const float *)x[j] + offset;
        float chain[4][PANEL_ROWS] = {{0}};
        for (size_t k = 0; k < n; k++)
            for (size_t r = 0; r < PANEL_ROWS; r++)
                chain[k % 4][r] = fmaf(p->w[k][r], f[k], chain[k % 4][r]);
        for (size_t r = 0; r < PANEL_ROWS; r++)
            sums->v[j][row + r] += (chain[0][r] + chain[1][r]) + (chain[2][r] + chain[3][r]);
    }
}

static const struct krn_panel_ops ops = {
    .unpack = unpack,
    .tile_q8 = tile_q8,
    .unpack_f32 = unpack_f32,
    .expand = expand,
    .tile_f32 = tile_f32,
};

static void portable_q8(const struct krn_matmul *m)
{
    krn_matmul_drive_q8(m, &ops);
}

static void portable_f32(const struct krn_matmul *m)
{
    krn_matmul_drive_f32(m, &ops);
}

static const struct krn_cpu_matmul portable = {
    .name = "portable",
    .isa = KRN_ISA_PORTABLE,
    .quantise_row = krn_q8_quant_row,
    .q8 = portable_q8,
    .f32 = portable_f32,
    .dequant = krn_dequant_row,
};

const struct krn_cpu_matmul *krn_matmul_portable(void)
{
    return &portable;
}
