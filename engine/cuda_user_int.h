/* Between cuda_user.c and cuda_stage.c, which alone include this: a module, and how it is launched. Needs CUDA 12.8. */
#ifndef RANKSCOPE_ENGINE_CUDA_USER_INT_H
#define RANKSCOPE_ENGINE_CUDA_USER_INT_H

#include <cuda_runtime_api.h>

#include "engine/cuda_user.h"
#include "engine/patch_cuda.h"

struct cuda_user {
    cudaLibrary_t lib;
    cudaKernel_t kernel;
    enum op_kind kind;
    uint32_t shape[3]; /* threads of a block; rows and columns (0: all) that it has */
};

/* A whole file with a zero behind it; free() it. NULL: it cannot be read. */
void *cuda_user_slurp(const char *path, size_t *n);

/* Load a compiled patch. Errors: RS_EFORMAT. */
enum rs_result cuda_user_open(const void *image, struct cuda_user *u, struct cuda_user_info *info, struct rs_error *err);

cudaError_t cuda_user_launch(const struct cuda_user *u, const struct rankscope_cuda_call *c, cudaStream_t stream);

#endif
