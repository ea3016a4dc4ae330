/* What a patch in CUDA C is: one file, compiled at run time by NVRTC for the GPUs that are there, which begins
 *
 *     #include "engine/patch_cuda.h"
 *     RANKSCOPE_CUDA_PATCH("name", "kind", "one line of help")
 *
 * and defines the kernel rankscope_run. This header stands alone. scripts/patches has examples.
 *
 * One block of 256 threads per row: blockIdx.x is the row. Several ranks on one GPU are launched one after the other. The kernel may keep no state; what
 * it writes outside of its row of `out` breaks something else.
 *
 * Kinds:
 *   rmsnorm       out = in / sqrt(mean(in^2) + eps) * w
 *   add           out += in
 *   silu_mul      out = silu(in[0 .. width)) * in[width .. 2 width)
 *   moe_silu_mul  the same; rows are (row, expert) pairs, of which those of other ranks' experts hold anything at all and are not looked at */
#ifndef RANKSCOPE_ENGINE_PATCH_CUDA_H
#define RANKSCOPE_ENGINE_PATCH_CUDA_H

struct rankscope_cuda_call {
    const float *in;
    unsigned long long in_stride; /* floats from row to row */
    float *out;
    unsigned long long out_stride;
    const float *w;               /* rmsnorm: [width] */
    unsigned rows, width;         /* width: of the output */
    float eps;
    int layer;                    /* -1: outside the layers */
};

#ifdef __CUDACC__
#define RANKSCOPE_CUDA_PATCH(name, kind, help)                                                                                             \
    extern "C" __device__ char rankscope_name[32] = name;                                                                                  \
    extern "C" __device__ char rankscope_kind[32] = kind;                                                                                  \
    extern "C" __device__ char rankscope_help[128] = help;
#endif

#endif
