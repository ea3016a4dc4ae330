/* Every kernel family on random data against the CPU's f32 reference, with poisoned outputs. For tests and `selftest --backend cuda`. */
#ifndef RANKSCOPE_ENGINE_CUDA_SELFTEST_H
#define RANKSCOPE_ENGINE_CUDA_SELFTEST_H

#include <stdbool.h>

#include "engine/rankscope.h"

struct cuda_check {
    char name[64];
    double error, limit; /* relative L2, or a count of wrong values where the limit is 0 */
};

/* Runs all checks on one GPU and hands every result to report. small: every kernel, but few and small shapes, for tools that make kernels a hundred times
 * slower. Errors: RS_EENGINE (no device, or a launch failed), RS_ENOMEM. */
enum rs_result cuda_selftest(int device, bool small, void (*report)(void *arg, const struct cuda_check *c), void *arg, struct rs_error *err);

#endif
