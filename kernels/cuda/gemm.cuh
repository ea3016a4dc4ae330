/* Products of many rows on tensor cores: between gemm.cu and moe_gemm.cu. */
#ifndef RANKSCOPE_KERNELS_CUDA_GEMM_CUH
#define RANKSCOPE_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/cuda.h"

/* One weight, or the experts' weights of one kind. A tile is up to gemm_tile() rows of activations of one matrix. */
struct gemm {
    struct kcu_mat m;
    const uint8_t *q8;
    size_t q8_pitch;
    float *y; /* output of activation row i, weight row r: y[i * y_pitch + r] */
    size_t y_pitch;
    uint32_t n;
    bool accumulate;
    const int32_t *tiles; /* grouped: [0] number of tiles; then per tile matrix, first entry, entries */
    const int32_t *from;  /* grouped: entry -> activation row */
    const int32_t *to;    /* grouped: entry -> output row */
};

enum { GEMM_SMALL = 32, GEMM_LARGE = 128 };

/* Rows of activations per tile where a matrix meets about n of them; weight_rows: of all matrices that are multiplied. Results do not depend on it. */
uint32_t gemm_tile(uint32_t n, uint32_t weight_rows);

/* tile: GEMM_SMALL or GEMM_LARGE; per: rows of activations a block takes where there is no list of tiles, a multiple of 16, at most tile. */
cudaError_t gemm_run(const struct kcu_launch *l, const struct gemm *g, uint32_t tile, uint32_t per, uint32_t tiles);

#endif
