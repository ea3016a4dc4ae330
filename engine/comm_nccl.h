/* NCCL as one implementation of the all-reduce op. Without HAVE_NCCL the functions exist and do nothing. */
#ifndef RANKSCOPE_ENGINE_COMM_NCCL_H
#define RANKSCOPE_ENGINE_COMM_NCCL_H

#include "engine/cuda.h"

struct comm_nccl;

/* Control thread, before the GPUs open theirs: loads the library if need be and makes the id that they share. how: index of an implementation of
 * the patch slot "nccl". RS_EUNSUPPORTED where NCCL is not there. */
enum rs_result comm_nccl_prepare(struct cuda *c, uint8_t how, struct rs_error *err);
/* On the GPU's thread, all GPUs at once. *out is NULL in a build without NCCL. */
enum rs_result comm_nccl_open(struct cuda *c, uint32_t gpu, struct comm_nccl **out, struct rs_error *err);
/* Graphs that captured it must be gone. NULL is allowed. */
void comm_nccl_close(struct comm_nccl *n);
/* Sum n values over all GPUs in place, f32 or bf16, on the stream. */
enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err);

#endif
