/* Products of many rows on tensor cores: between gemm.cu and moe_gemm.cu. */
#ifndef RANKSCOPE_KERNELS_CUDA_GEMM_CUH
#define RANKSCOPE_KERNELS_CUDA_GEMM_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/cuda.h"

/* One weight, or the experts' weights of one kind. A tile is up to GEMM_SMALL_ROWS or GEMM_LARGE_ROWS rows of activations of one
 * matrix; results do not depend on which. */
struct gemm {
    struct kcu_mat m;
    const __half *h; /* activations as kcu_halve() leaves them */
    size_t h_pitch;
    const float *h_scale;
    float *y; /* output of activation row i, weight row r: y[i * y_pitch + r] */
    size_t y_pitch;
    uint32_t n;
    bool accumulate;
    const int32_t *tiles; /* grouped: [0] number of tiles; then per tile matrix, first entry, entries */
    const int32_t *from;  /* grouped: entry -> activation row */
    const int32_t *to;    /* grouped: entry -> output row */
    struct kcu_mat second; /* gemm_async_run(), gemm_wide_run(), gemm_half_run(): another weight of the same type and K, or w NULL */
    float *second_y;
    bool kept; /* gemm_half_run(): weights were there before the step */
    uint32_t share;
};

enum gemm_shape { GEMM_SMALL, GEMM_DEEP, GEMM_LARGE };
enum { GEMM_SMALL_ROWS = 32, GEMM_LARGE_ROWS = 128, GEMM_WIDE_ROWS = 192, GEMM_EXPERTS_ROWS = 96 };

/* per: rows of activations a block takes where there is no list of tiles, a multiple of 16, at most the shape's. */
cudaError_t gemm_run(const struct kcu_launch *l, const struct gemm *g, enum gemm_shape shape, uint32_t per, uint32_t tiles);

/* The same on devices that gemm_async_here() finds: forms for few rows or many. Where there are few blocks, the warpgroups of one (SHARED) or `share` blocks of
 * a cluster share K: only then does a row's result depend on how it is computed. per: rows of activations a block. */
enum gemm_form { FORM_FEW, FORM_FEW_WIDE, FORM_FEW_SHARED, FORM_SHARED, FORM_MANY };
struct gemm_how {
    enum gemm_form form;
    uint32_t per, share;
};
bool gemm_async_here(void);
bool gemm_async_takes(uint32_t n, const struct kcu_mat *m);
cudaError_t gemm_async_run(const struct kcu_launch *l, const struct gemm *g, const struct gemm_how *how, uint32_t tiles);
/* What n rows times m are best done in. Follows powers of two, as the buckets of captured steps do: eager and in a graph a step takes the same. */
struct gemm_how gemm_async_how(uint32_t n, const struct kcu_mat *m);

/* The same bits where gemm_wide_here() says so: tiles of up to GEMM_WIDE_ROWS rows, for products of many. rows(): of a tile, best for n
 * rows times m. */
bool gemm_wide_here(void);
uint32_t gemm_wide_rows(uint32_t n, const struct kcu_mat *m);
cudaError_t gemm_wide_run(const struct kcu_launch *l, const struct gemm *g, uint32_t per, uint32_t tiles);

/* The same where gemm_half_takes() says so, from weights that are there as f16 (kcu_unpack()): row r lies at gemm_half_row(r) of gemm_half_rows(), `k` values
 * each. Only where l->fixed is not set may a row's result depend on how it is computed. */
static inline __host__ __device__ uint32_t gemm_half_rows(uint32_t rows)
{
    return (rows + 15) / 16 * 16;
}
static inline __host__ __device__ uint32_t gemm_half_row(uint32_t r)
{
    return (r & ~15u) + (r & 15) / 4 * 2 + (r & 2) * 4 + r % 2;
}
bool gemm_half_takes(const struct gemm *g);
cudaError_t gemm_half_run(const struct kcu_launch *l, const struct gemm *g);

/* Grouped products of weights that takes() says: tiles of up to GEMM_EXPERTS_ROWS rows. act: or NULL; where g has a second weight, silu(first) * second of a
 * row; y may then be NULL. A row's bits do not depend on its tile, but they are not those of the others. */
bool gemm_experts_takes(const struct kcu_mat *m);
cudaError_t gemm_experts_run(const struct kcu_launch *l, const struct gemm *g, float *act, size_t act_pitch, uint32_t tiles);

#endif
