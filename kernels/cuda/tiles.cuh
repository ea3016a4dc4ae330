/* Weights of Q8_0 as f16 tiles in shared memory, for products whose operands both lie there: activations in the order of kcu_halve(), 64 columns of a
 * row swizzled (wgmma_place()). */
#ifndef RANKSCOPE_KERNELS_CUDA_TILES_CUH
#define RANKSCOPE_KERNELS_CUDA_TILES_CUH

#include "kernels/cuda/steps.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

/* Of a tile's row `at` and columns 16 u to 16 u + 15, from their codes and their scale (f16 bits), times UP. */
static __device__ __forceinline__ void tile_weights(uint8_t *tile, uint32_t at, uint32_t u, uint4 codes, uint32_t d)
{
    const uint32_t scale = pack(UP * half_of(d), UP * half_of(d)), c[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t h[4][2];
#pragma unroll
    for (int q = 0; q < 4; q++)
        pair_up<false>(c[q] ^ 0x80808080u, 0x64806480u, scale, 0, h[q]);
    *(uint4 *)(tile + wgmma_place(at, 2 * u)) = make_uint4(h[0][0], h[1][0], h[2][0], h[3][0]);
    *(uint4 *)(tile + wgmma_place(at, 2 * u + 1)) = make_uint4(h[0][1], h[1][1], h[2][1], h[3][1]);
}

/* A lane of a warp holds pairs of neighbouring results of every eight columns: this weight row for row `at` of a tile gives it eight neighbours of every 32, those from
 * 8 * (lane % 4) on. */
static __device__ __forceinline__ uint32_t tile_row(uint32_t at)
{
    return (at & ~31u) + at % 8 / 2 * 8 + at % 32 / 8 * 2 + at % 2;
}

#endif
