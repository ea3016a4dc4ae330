/* NCCL as one implementation of the all-reduce op. Without HAVE_NCCL the functions exist and do nothing.
 *
 * On one host its calls wait for each other, as they may. Where ranks are on several hosts (see cuda_span.c) a call that waits for another host must be
 * able to end: communicators are then made so that their calls return at once, and whoever waits for one looks whether to go on. */
#ifndef RANKSCOPE_ENGINE_COMM_NCCL_H
#define RANKSCOPE_ENGINE_COMM_NCCL_H

#include "engine/cuda.h"

enum { COMM_NCCL_ID = 128 }; /* bytes of what the processes of a communicator must share */

struct comm_nccl;

/* Control thread, before the GPUs open theirs: loads the library if need be and makes the id that they share. how: index of an implementation of
 * the patch slot "nccl". RS_EUNSUPPORTED where NCCL is not there. */
enum rs_result comm_nccl_prepare(struct cuda *c, uint8_t how, struct rs_error *err);
/* After that, between hosts: the library's version (22809: 2.28.9) and the id, and the other way: the first process's id. */
int comm_nccl_facts(const struct cuda *c, uint8_t id[COMM_NCCL_ID]);
void comm_nccl_take_id(struct cuda *c, const uint8_t id[COMM_NCCL_ID]);
/* On the GPU's thread, all GPUs at once, those of other hosts too. *out is NULL in a build without NCCL. */
enum rs_result comm_nccl_open(struct cuda *c, uint32_t gpu, struct comm_nccl **out, struct rs_error *err);
/* Graphs that captured it must be gone. gone: others of the communicator may not be there any more, so nothing waits for them. NULL is allowed. */
void comm_nccl_close(struct comm_nccl *n, bool gone);
/* Sum n values over all GPUs in place, f32 or bf16, on the stream. */
enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err);
/* Has something failed since, such as a connection to another host? Does not wait. */
enum rs_result comm_nccl_look(struct comm_nccl *n, struct rs_error *err);

#endif
