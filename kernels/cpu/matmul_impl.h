/* What the versions of the CPU matmul share. Only kernels/cpu/matmul*.c may include this.
 *
 * Weights are taken 16 rows at a time, a *panel*, and 256 columns of K at a time, a *chunk*. A chunk of a panel is first unpacked: four
 * consecutive codes of one row become one 32-bit lane, 16 rows fill a vector. Then a dot product of 16 rows with one column is a sequence of
 * "four bytes times the same four activation bytes" without any horizontal sum, and a row's lane adds its groups in K order, whatever else is
 * being computed. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_IMPL_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_IMPL_H

#include "kernels/cpu/matmul.h"
#include "kernels/quant.h"

enum {
    PANEL_ROWS = 16,
    CHUNK_K = 256,
    BLOCK_PANELS = 2, /* panels that are multiplied together, so that loads of activations are shared */
    BLOCK_ROWS = BLOCK_PANELS * PANEL_ROWS,
    BLOCK_COLS = 64, /* columns between two readings of the weights */
};

/* A chunk of a panel, unpacked. */
struct krn_panel {
    _Alignas(64) uint8_t q[CHUNK_K / 4][PANEL_ROWS][4];
    float a[CHUNK_K / 16][PANEL_ROWS]; /* by group */
    float b[CHUNK_K / 16][PANEL_ROWS];
};

/* The same as floats. */
struct krn_panel_f32 {
    _Alignas(64) float w[CHUNK_K][PANEL_ROWS];
};

/* Sums of a block of rows and columns between two chunks. */
struct krn_sums {
    _Alignas(64) float v[BLOCK_COLS][BLOCK_ROWS];
};

/* PANEL_ROWS rows of a chunk as they lie in memory: row r at w + r * stride; or a packed chunk, of which `lane` says the first row at hand. */
struct krn_rows {
    const uint8_t *w;
    size_t stride;
    bool packed;
    size_t lane;
};

enum { KRN_FEW = 4 };

/* A few columns: y[c][row] = scale[c] * sum, or +=. */
struct krn_few {
    int n;
    const uint8_t *x[KRN_FEW];
    float *y[KRN_FEW], scale[KRN_FEW];
};

/* One ISA's operations on n weights of K: a multiple of 32 where q8 activations or quantised weights are concerned, else anything up to 256. */
struct krn_panel_ops {
    void (*unpack)(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel *p);
    /* The same from a packed chunk. NULL: this version has no use for packed weights. */
    void (*unpack_packed)(uint32_t type, const uint8_t *w, size_t n, struct krn_panel *p);
    /* Multiply `panels` panels by n_cols columns and add to sums. x points at the starts of q8 rows, where the chunk's first value lies
     * `offset` bytes on and its first krn_q8_block `blocks` bytes on. */
    void (*tile_q8)(struct krn_quant_form form, const struct krn_panel *p, size_t panels, size_t n, const uint8_t *const *x, size_t offset,
                    size_t blocks, size_t n_cols, struct krn_sums *sums);
    /* F32, F16, BF16 weights. */
    void (*unpack_f32)(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel_f32 *p);
    /* Quantised weights, already unpacked. */
    void (*expand)(struct krn_quant_form form, const struct krn_panel *p, size_t n, struct krn_panel_f32 *w);
    /* expand and tile_f32 for one column. NULL: there is nothing faster than these. */
    void (*column_f32)(struct krn_quant_form form, const struct krn_panel *p, size_t n, const float *x, float *sums);
    /* Multiply one panel by n_cols columns and add to the sums from row on. x points at starts of f32 rows, offset is the chunk's first k. */
    void (*tile_f32)(const struct krn_panel_f32 *p, size_t n, const uint8_t *const *x, size_t offset, size_t n_cols, struct krn_sums *sums,
                     size_t row);
    /* Rows row..end-1, a whole number of panels, times few columns, without a panel in between. false, and nothing done: tiles are as good. NULL: always. */
    bool (*few_q8)(const struct krn_matmul *m, size_t row, size_t end, const struct krn_few *f);
};

/* Bytes of a packed panel's chunk of n weights of K. */
size_t krn_packed_chunk_bytes(uint32_t type, size_t n);

/* The packed panel that holds `row`. */
static inline const uint8_t *krn_packed_panel(const struct krn_matmul *m, size_t row, size_t panel_bytes)
{
    return m->packed + row / PANEL_ROWS * panel_bytes;
}

void krn_matmul_drive_q8(const struct krn_matmul *m, const struct krn_panel_ops *ops);
void krn_matmul_drive_f32(const struct krn_matmul *m, const struct krn_panel_ops *ops);

const struct krn_cpu_matmul *krn_matmul_portable(void);
const struct krn_cpu_matmul *krn_matmul_avx2(void);
const struct krn_cpu_matmul *krn_matmul_avx512(void);

#endif
