/* Attention of many rows on tensor cores: between attn.cu and flash.cu. */
#ifndef RANKSCOPE_KERNELS_CUDA_FLASH_CUH
#define RANKSCOPE_KERNELS_CUDA_FLASH_CUH

#include "kernels/cuda/cuda.h"

struct flash_args {
    struct kcu_batch b; /* rows of one sequence at ascending positions */
    const float *q;     /* [row][head][576] */
    const uint8_t *cache;
    float *out; /* [row][head][512] */
    uint32_t heads;
    float scale;
};

cudaError_t flash_run(const struct kcu_launch *l, const struct flash_args *a);

#endif
