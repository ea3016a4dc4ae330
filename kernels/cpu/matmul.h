/* Weights times activations on the CPU.
 *
 * y[col][row] = sum over k of W[row][k] * x[col][k]. Pure functions over the caller's memory: any thread, no allocation, no state. A caller
 * that wants several threads gives each of them its own range of rows, best a multiple of 32.
 *
 * Numerics. The value of one (row, column) does not depend on how many rows or columns a call holds, nor on where they lie. It does not
 * depend on the instruction set either: every version computes the same expression tree, which is
 *   q8:  acc = 0; for each group of weights (16 or 32, see quant.h) in K order:
 *            acc = fma(a * d, (float)dot, acc), then with minima acc = fma(-b, s, acc)
 *        where dot is the exact integer sum over the group of (q - zero point) * activation, d the scale of the activations there, and s is
 *        d * (sum of those activations);
 *   f32: for each 256 weights in K order: acc += (c0 + c1) + (c2 + c3), where ci is the fma chain over the k with k % 4 == i in it. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum krn_isa { KRN_ISA_PORTABLE, KRN_ISA_AVX2, KRN_ISA_AVX512, KRN_ISA_COUNT };

struct krn_matmul {
    uint32_t type;          /* of the weights; one that computes */
    const uint8_t *w;       /* row 0; no alignment needed */
    const uint8_t *packed;  /* NULL, or the same weights as krn_pack() writes them: q8 may read these instead, where row0 is a multiple of 16 */
    size_t w_stride;        /* bytes from one row to the next; more than a packed row where w is a slice of columns */
    size_t k;               /* inputs; a multiple of the type's block (and of 32 for q8) */
    size_t row0, row1;      /* rows to compute: row0 <= row < row1. Other rows are not read */
    const uint8_t *x;       /* activations: f32 rows, or rows made by quantise_row */
    size_t x_stride;        /* bytes between activation rows; for q8 a multiple of 64, and x aligned to 64 */
    const int32_t *x_index; /* column j reads activation row x_index[j]; NULL: row j */
    size_t n_cols;
    float *y;
    size_t y_stride;        /* floats between outputs of columns */
    const int32_t *y_index; /* column j writes y + y_index[j] * y_stride + row; NULL: j. Columns that meet are written in order of j */
    bool accumulate;        /* add to y instead of replacing it */
    const float *col_scale; /* NULL, or n_cols factors: column j's sum is multiplied by col_scale[j] before it is stored or added */
};

struct krn_cpu_matmul {
    const char *name;
    enum krn_isa isa;
    bool reads_packed;
    void (*quantise_row)(const float *x, void *q8, size_t k);              /* as krn_q8_quant_row */
    void (*q8)(const struct krn_matmul *m);                                /* int8 activations; every quantised type that computes */
    void (*f32)(const struct krn_matmul *m);                               /* f32 activations; every type that computes */
    void (*dequant)(uint32_t type, const void *src, float *dst, size_t n); /* as krn_dequant_row */
};

/* A second form of a quantised matrix: what stands in 16 rows at the same place lies side by side, so that a vector unit reads one stream and has
 * nothing to turn. As large as the file's form but for padding, and faster where weights come from a cache. The results are the same bits.
 * Bytes of that form, a multiple of 64; 0: the type has none. */
size_t krn_packed_bytes(uint32_t type, size_t rows, size_t k);

/* Write it. out is aligned to 64. */
void krn_pack(uint32_t type, const uint8_t *w, size_t w_stride, size_t rows, size_t k, uint8_t *out);

/* NULL if this build or this processor lacks it. */
const struct krn_cpu_matmul *krn_cpu_matmul(enum krn_isa isa);

/* The last ISA that krn_cpu_matmul has. */
enum krn_isa krn_cpu_best(void);

#endif
