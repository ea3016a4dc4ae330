/* The matmul with AVX-512 VNNI: a lane is a row of weights. A tile is 2 panels x 4 columns of integer and of float sums: 16 of the 32 registers. */
#include "kernels/cpu/matmul_avx512.h"

#include "kernels/cpu/matmul_simd.h"

enum { TILE_COLS = 4 };

/* What a tile call is about; see krn_panel_ops. */
struct tile {
    const struct krn_panel *p;
    size_t n;
    const uint8_t *const *x;
    size_t offset, blocks;
    struct krn_sums *sums;
    unsigned zero_shift;
};

INLINE int32_t word_at(const uint8_t *p)
{
    int32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Columns j.. of a tile call; panels, cols, group and minima are constants. */
INLINE void tile_columns(const struct tile *t, size_t j, const int panels, const int cols, const int group, const bool minima)
{
    __m512 sum[BLOCK_PANELS][TILE_COLS];
    UNROLL(4) for (int c = 0; c < cols; c++)
        UNROLL(2) for (int p = 0; p < panels; p++)
            sum[p][c] = _mm512_load_ps(&t->sums->v[j + (size_t)c][p * PANEL_ROWS]);
    for (size_t k = 0; k < t->n; k += (size_t)group) {
        __m512i dot[BLOCK_PANELS][TILE_COLS];
        const struct krn_q8_block *block[TILE_COLS];
        const int upper = group == 16 && k % 32 != 0;
        UNROLL(4) for (int c = 0; c < cols; c++) {
            block[c] = (const struct krn_q8_block *)(t->x[j + (size_t)c] + t->blocks) + k / 32;
            UNROLL(2) for (int p = 0; p < panels; p++)
                dot[p][c] = minima ? v_zero() : zero_points(block[c], group, upper, t->zero_shift);
        }
        UNROLL(8) for (int i = 0; i < group / 4; i++)
            UNROLL(4) for (int c = 0; c < cols; c++) {
                __m512i x = _mm512_set1_epi32(word_at(t->x[j + (size_t)c] + t->offset + k + 4 * (size_t)i));
                UNROLL(2) for (int p = 0; p < panels; p++)
                    dot[p][c] = _mm512_dpbusd_epi32(dot[p][c], _mm512_load_si512(t->p[p].q[k / 4 + (size_t)i]), x);
            }
        UNROLL(4) for (int c = 0; c < cols; c++)
            UNROLL(2) for (int p = 0; p < panels; p++) {
                __m512 scale = _mm512_mul_ps(_mm512_load_ps(t->p[p].a[k / (size_t)group]), _mm512_set1_ps(block[c]->d));
                sum[p][c] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[p][c]), sum[p][c]);
                if (minima)
                    sum[p][c] = _mm512_fnmadd_ps(_mm512_load_ps(t->p[p].b[k / (size_t)group]),
                                                 _mm512_set1_ps(scaled_sum(block[c], group, upper)), sum[p][c]);
            }
    }
    UNROLL(4) for (int c = 0; c < cols; c++)
        UNROLL(2) for (int p = 0; p < panels; p++)
            _mm512_store_ps(&t->sums->v[j + (size_t)c][p * PANEL_ROWS], sum[p][c]);
}

INLINE void tile_all(const struct tile *t, size_t n_cols, const int panels, const int group, const bool minima)
{
    size_t j = 0;
    for (; j + TILE_COLS <= n_cols; j += TILE_COLS)
        tile_columns(t, j, panels, TILE_COLS, group, minima);
    switch (n_cols - j) {
    case 3: tile_columns(t, j, panels, 3, group, minima); break;
    case 2: tile_columns(t, j, panels, 2, group, minima); break;
    case 1: tile_columns(t, j, panels, 1, group, minima); break;
    default: break;
    }
}

#define TILE_VARIANT(panels, group, minima)                                                                                                \
    static void tile_##panels##_##group##_##minima(const struct tile *t, size_t n_cols)                                                    \
    {                                                                                                                                      \
        tile_all(t, n_cols, panels, group, minima);                                                                                        \
    }
TILE_VARIANT(1, 16, 0)
TILE_VARIANT(1, 16, 1)
TILE_VARIANT(1, 32, 0)
TILE_VARIANT(1, 32, 1)
TILE_VARIANT(2, 16, 0)
TILE_VARIANT(2, 16, 1)
TILE_VARIANT(2, 32, 0)
TILE_VARIANT(2, 32, 1)

static void (*const tile_variants[2][2][2])(const struct tile *t, size_t n_cols) = {
    {{tile_1_16_0, tile_1_16_1}, {tile_1_32_0, tile_1_32_1}},
    {{tile_2_16_0, tile_2_16_1}, {tile_2_32_0, tile_2_32_1}},
};

static void tile_q8(struct krn_quant_form form, const struct krn_panel *p, size_t panels, size_t n, const uint8_t *const *x, size_t offset,
                    size_t blocks, size_t n_cols, struct krn_sums *sums)
{
    struct tile t = {.p = p, .n = n, .x = x, .offset = offset, .blocks = blocks, .sums = sums, .zero_shift = form.zero_shift};
    tile_variants[panels - 1][form.group == 32][form.minima](&t, n_cols);
}

static void quantise_row(const float *x, void *q8, size_t k)
{
    int8_t *q = q8;
    struct krn_q8_block *blocks = (struct krn_q8_block *)(q + krn_q8_blocks_offset(k));
    size_t i = 0;
    for (; i + 128 <= k; i += 128)
        if (!q8_four(x + i, q + i, &blocks[i / 32]))
            quantise_blocks(x + i, q + i, &blocks[i / 32], 128);
    quantise_blocks(x + i, q + i, &blocks[i / 32], k - i);
}

/* ---- table ---- */

static const struct krn_panel_ops ops = {
    .unpack = unpack, .unpack_packed = unpack_packed, .tile_q8 = tile_q8, .unpack_f32 = unpack_f32, .expand = expand, .column_f32 = column_f32, .tile_f32 = tile_f32, .few_q8 = few_q8,
};

static void avx512_q8(const struct krn_matmul *m)
{
    krn_matmul_drive_q8(m, &ops);
}

static void avx512_f32(const struct krn_matmul *m)
{
    krn_matmul_drive_f32(m, &ops);
}

static const struct krn_cpu_matmul avx512 = {
    .name = "avx512",
    .isa = KRN_ISA_AVX512,
    .reads_packed = true,
    .quantise_row = quantise_row,
    .q8 = avx512_q8,
    .f32 = avx512_f32,
    .dequant = dequant,
};

const struct krn_cpu_matmul *krn_matmul_avx512(void)
{
    return &avx512;
}
