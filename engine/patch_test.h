/* The self-test of a patch: its op on small made-up tensors against plain loops in double. It runs in a process of its own before the engine loads
 * anything, compiled together with a patch in C (scripts/patches/selftest.c) or inside the program for a hosted one; so patch_test.c uses nothing of
 * the engine but this header and patch_api.h. */
#ifndef RANKSCOPE_ENGINE_PATCH_TEST_H
#define RANKSCOPE_ENGINE_PATCH_TEST_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/patch_api.h"

/* Computes a call; false with a line in say: it failed. */
typedef bool (*patch_test_fn)(void *arg, const struct rankscope_call *call, char *say, size_t cap);

/* shares: also with the work cut in several shares, in any order. true: it is right, *worst is its largest relative error (L2). false: say has one line
 * that tells what is wrong. */
bool patch_test(const struct rankscope_patch_v1 *patch, patch_test_fn run, void *arg, bool shares, double *worst, char *say, size_t cap);

#endif
