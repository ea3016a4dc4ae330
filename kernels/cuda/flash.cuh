/* Attention of many rows on tensor cores: between attn.cu, flash.cu and heads.cu. Operands are f16, sums f32. */
#ifndef RANKSCOPE_KERNELS_CUDA_FLASH_CUH
#define RANKSCOPE_KERNELS_CUDA_FLASH_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/cuda.h"

enum { FLASH_D = 576, FLASH_L = 512, FLASH_KEYS = 64 /* keys of a tile */ };

/* Products of every head's own small matrix with many rows: y[row][head] = scale * m[head] . x[row][head]. Sums run along K in one order,
 * whatever the number of rows. Pitches in elements. */
struct heads_gemm {
    struct kcu_mat m; /* n_mats: heads; k a multiple of 32, rows even */
    const void *x;
    bool x_half; /* f16, else f32 */
    size_t x_pitch, x_head;
    void *y;
    bool y_half;
    size_t y_pitch, y_head;
    float scale;
    uint32_t n; /* rows */
    bool order;     /* heads_async_run(): y in the order of kcu_halve() */
    float *factors; /* and 1 / scale of every row to here, or NULL */
    uint8_t *q8;    /* heads_run(): where y is f32 and heads_few_takes() it also its int8 form, n_mats * rows values a row; or NULL */
    size_t q8_pitch;
};

/* The part of absorbed queries that the latents do not see, rotated first where rotate says so (and written back): y[row][head] = scale * x. */
struct heads_pe {
    struct kcu_batch b;
    struct kcu_rope rope;
    bool rotate;
    float *q;
    size_t q_pitch, q_head;
    __half *y;
    size_t y_pitch, y_head;
    uint32_t heads;
    float scale;
};
cudaError_t heads_run(const struct kcu_launch *l, const struct heads_gemm *g, const struct heads_pe *pe);

/* Absorbed queries (scaled, and by log2 e) against cached rows. Rows of a step are of two sorts, listed in b.lists. Prompt rows: tiles of
 * neighbouring rows of one sequence, all keys in one go. Generated rows: one row a tile, keys cut into splits whose parts flash_join() adds
 * up. */
struct flash_args {
    struct kcu_batch b;
    const __half *q; /* [row][head][576] */
    const uint8_t *cache;
    __half *mix; /* [row][head][512]: normalised mixtures of latents */
    float *part; /* [row][head][split][512], and behind all of them [row][head][split][2]: maximum, sum. Rows from row0 on */
    uint32_t heads, splits;
    uint32_t split_keys; /* keys of a split, a multiple of FLASH_KEYS; 0: by flash_split_length() of the row's own keys */
    const int32_t *sel;  /* as in kcu_mla; then every row is a tile of its own */
    size_t sel_pitch;
    uint32_t top_k;
    uint32_t row0, rows; /* generated rows: entries of the list; with sel: rows */
    bool halves; /* mixtures leave in the order of kcu_halve() */
};

/* Rows of a prompt that share a tile. */
static inline uint32_t flash_rows(uint32_t heads)
{
    return heads >= 64 ? 1 : 64 / heads;
}

/* Where a pair of neighbouring columns of the mixtures lies. */
static __host__ __device__ inline uint32_t flash_place(uint32_t col, bool halves)
{
    return !halves ? col : (col & ~15u) + (col & 15) / 4 * 2 + (col & 2) * 4;
}

/* Keys of a split where the batch must not matter: 512, or more, so that there are at most 16 splits. */
static __host__ __device__ inline uint32_t flash_split_length(uint32_t keys)
{
    uint32_t n = 512;
    while (keys > n * 16)
        n *= 2;
    return n;
}

cudaError_t flash_prompt(const struct kcu_launch *l, const struct flash_args *a, uint32_t tiles);
cudaError_t flash_generated(const struct kcu_launch *l, const struct flash_args *a);

/* heads_run() by asynchronous tensor cores, for matrices that takes(): x is f16 in the order of kcu_halve(), y and its pitches multiples of eight values. heads_split() brings queries
 * there (x to y, f16) and does the part of pe as well. */
bool heads_async_takes(const struct kcu_mat *m);
cudaError_t heads_async_run(const struct kcu_launch *l, const struct heads_gemm *g);
cudaError_t heads_split(const struct kcu_launch *l, const float *x, size_t x_pitch, size_t x_head, uint32_t width, uint32_t n, __half *y, const struct heads_pe *pe);

/* flash_prompt() by asynchronous tensor cores, where heads_async_takes() finds them. */
cudaError_t flash_async_prompt(const struct kcu_launch *l, const struct flash_args *a, uint32_t tiles);

/* Generated rows by asynchronous tensor cores, splits not yet joined, where takes() and heads_async_takes() find them. */
bool flash_decode_takes(const struct flash_args *a);
cudaError_t flash_decode(const struct kcu_launch *l, const struct flash_args *a);

/* All of kcu_mla() this way. takes(): the shapes, types and options that it serves. */
bool mla_batch_takes(const struct kcu_mla *a);
size_t mla_batch_scratch(uint32_t rows, uint32_t heads, uint32_t max_keys);
cudaError_t mla_batch(const struct kcu_launch *l, const struct kcu_mla *a);

#endif
