/* The matmul with AVX2: a lane is a row of weights, a panel is two vectors. Sums of products are 16 bits wide for as long as they fit. */
#include "kernels/cpu/matmul_avx2.h"

#include "kernels/cpu/matmul_simd.h"

enum { TILE_COLS = 4, VECTORS = PANEL_ROWS / LANES };

/* What a tile call is about; see krn_panel_ops. */
struct tile {
    const struct krn_panel *p;
    size_t n;
    const uint8_t *const *x;
    size_t offset, blocks;
    float (*sums)[BLOCK_ROWS];
    unsigned zero_shift;
};

INLINE vint four_activations(const struct tile *t, size_t col, size_t k)
{
    int32_t word;
    memcpy(&word, t->x[col] + t->offset + k, sizeof word);
    return v_words(word);
}

/* One panel times columns j..; cols, group, minima and code_bits (8, 6, or 5 for anything less) are constants. */
INLINE void tile_columns(const struct tile *t, size_t j, const int cols, const int group, const bool minima, const unsigned code_bits)
{
    const int run = v_pairs_run(code_bits);
    vflt sum[VECTORS][TILE_COLS];
    UNROLL(4) for (int c = 0; c < cols; c++)
        UNROLL(2) for (int v = 0; v < VECTORS; v++)
            sum[v][c] = f_load(&t->sums[j + (size_t)c][v * LANES]);
    for (size_t k = 0; k < t->n; k += (size_t)group) {
        vint dot[VECTORS][TILE_COLS];
        const int upper = group == 16 && k % 32 != 0;
        UNROLL(4) for (int c = 0; c < cols; c++) {
            const struct krn_q8_block *block = (const struct krn_q8_block *)(t->x[j + (size_t)c] + t->blocks) + k / 32;
            UNROLL(2) for (int v = 0; v < VECTORS; v++)
                dot[v][c] = minima || code_bits == 8 ? v_zero() : zero_points(block, group, upper, t->zero_shift);
        }
        UNROLL(8) for (int i = 0; i < group / 4; i += run) {
            vint pairs[VECTORS][TILE_COLS];
            UNROLL(4) for (int r = 0; r < run; r++) {
                const size_t at = k + 4 * (size_t)(i + r);
                UNROLL(4) for (int c = 0; c < cols; c++) {
                    vint x = four_activations(t, j + (size_t)c, at);
                    UNROLL(2) for (int v = 0; v < VECTORS; v++) {
                        vint p = v_pairs(v_load(t->p->q[at / 4][v * LANES]), x, code_bits);
                        pairs[v][c] = r == 0 ? p : v_add16(pairs[v][c], p);
                    }
                }
            }
            UNROLL(4) for (int c = 0; c < cols; c++)
                UNROLL(2) for (int v = 0; v < VECTORS; v++)
                    dot[v][c] = v_add32(dot[v][c], v_widen(pairs[v][c]));
        }
        UNROLL(4) for (int c = 0; c < cols; c++) {
            const struct krn_q8_block *block = (const struct krn_q8_block *)(t->x[j + (size_t)c] + t->blocks) + k / 32;
            UNROLL(2) for (int v = 0; v < VECTORS; v++) {
                vflt scale = f_mul(f_load(&t->p->a[k / (size_t)group][v * LANES]), f_all(block->d));
                sum[v][c] = f_fma(scale, v_float(dot[v][c]), sum[v][c]);
                if (minima)
                    sum[v][c] = f_fnma(f_load(&t->p->b[k / (size_t)group][v * LANES]), f_all(scaled_sum(block, group, upper)), sum[v][c]);
            }
        }
    }
    UNROLL(4) for (int c = 0; c < cols; c++)
        UNROLL(2) for (int v = 0; v < VECTORS; v++)
            f_store(&t->sums[j + (size_t)c][v * LANES], sum[v][c]);
}

INLINE void tile_all(const struct tile *t, size_t n_cols, const int group, const bool minima, const unsigned code_bits)
{
    const int most = code_bits == 8 ? 3 : 4; /* signed codes need more registers */
    size_t j = 0;
    for (; j + (size_t)most <= n_cols; j += (size_t)most)
        tile_columns(t, j, most, group, minima, code_bits);
    switch (n_cols - j) {
    case 3: tile_columns(t, j, 3, group, minima, code_bits); break;
    case 2: tile_columns(t, j, 2, group, minima, code_bits); break;
    case 1: tile_columns(t, j, 1, group, minima, code_bits); break;
    default: break;
    }
}

static void tile_q8(struct krn_quant_form form, const struct krn_panel *p, size_t panels, size_t n, const uint8_t *const *x, size_t offset,
                    size_t blocks, size_t n_cols, struct krn_sums *sums)
{
    for (size_t i = 0; i < panels; i++) {
        struct tile t = {.p = &p[i], .n = n, .x = x, .offset = offset, .blocks = blocks, .zero_shift = form.zero_shift};
        t.sums = (float(*)[BLOCK_ROWS]) & sums->v[0][i * PANEL_ROWS];
        if (form.minima && form.group == 32)
            tile_all(&t, n_cols, 32, true, 5);
        else if (form.minima)
            tile_all(&t, n_cols, 16, true, 5);
        else if (form.zero_shift == 7 && form.group == 32)
            tile_all(&t, n_cols, 32, false, 8);
        else if (form.zero_shift == 7)
            tile_all(&t, n_cols, 16, false, 8);
        else if (form.zero_shift == 5)
            tile_all(&t, n_cols, 16, false, 6);
        else if (form.group == 16)
            tile_all(&t, n_cols, 16, false, 5);
        else
            tile_all(&t, n_cols, 32, false, 5);
    }
}

static void quantise_row(const float *x, void *q8, size_t k)
{
    quantise_blocks(x, q8, (struct krn_q8_block *)((int8_t *)q8 + krn_q8_blocks_offset(k)), k);
}

/* ---- table ---- */

static const struct krn_panel_ops ops = {
    .unpack = unpack, .unpack_packed = unpack_packed, .tile_q8 = tile_q8, .unpack_f32 = unpack_f32, .expand = expand, .column_f32 = column_f32, .tile_f32 = tile_f32, .few_q8 = few_q8,
};

static void avx2_q8(const struct krn_matmul *m)
{
    krn_matmul_drive_q8(m, &ops);
}

static void avx2_f32(const struct krn_matmul *m)
{
    krn_matmul_drive_f32(m, &ops);
}

static const struct krn_cpu_matmul avx2 = {
    .name = "avx2",
    .isa = KRN_ISA_AVX2,
    .reads_packed = true,
    .quantise_row = quantise_row,
    .q8 = avx2_q8,
    .f32 = avx2_f32,
    .dequant = dequant,
};

const struct krn_cpu_matmul *krn_matmul_avx2(void)
{
    return &avx2;
}
