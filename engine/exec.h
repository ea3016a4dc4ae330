/* The CPU walker: eager steps, captured graphs, ticks. One per cpu backend; the engine's control thread calls it. */
#ifndef RANKSCOPE_ENGINE_EXEC_H
#define RANKSCOPE_ENGINE_EXEC_H

#include "engine/cpu.h"

struct exec;

enum rs_result exec_open(struct cpu *c, struct exec **out, struct rs_error *err);
void exec_close(struct exec *x);

/* Run a step: eager walks the list op by op, waking the workers for each; graph captures the same walk once per key and replays it with the
 * workers running through the list on their own. Errors: RS_ESTATE (an op that cannot be captured, named), RS_ENOMEM (capture), RS_EFORMAT (a hosted patch
 * failed: the step is void, see patch_take_failed). more: times add to those of the call before, whose rows are of the same step. */
enum rs_result exec_step(struct exec *x, const struct backend_step *s, bool more, struct rs_error *err);

/* us[op * n_ranks + rank] of the last step of program `which`: 0 the main stack, 1 the NextN block. */
const float *exec_op_us(struct exec *x, int which, uint32_t *n_ops);

/* Forget graphs captured before `generation`. */
void exec_retire(struct exec *x, uint64_t generation);
/* See backend_ops.graphs. */
uint32_t exec_graphs(const struct exec *x, struct backend_graph *out, uint32_t cap);

#endif
