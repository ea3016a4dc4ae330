/* The self-test of a patch: its op on small made-up tensors against plain loops in double. It runs in a process of its own before the engine loads
 * anything, compiled together with a patch in C (scripts/patches/selftest.c) or inside the program for a hosted one; so patch_test*.c use nothing of
 * the engine but their headers and patch_api.h. */
#ifndef RANKSCOPE_ENGINE_PATCH_TEST_H
#define RANKSCOPE_ENGINE_PATCH_TEST_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/patch_api.h"

/* Computes a call; false with a line in say: it failed. */
typedef bool (*patch_test_fn)(void *arg, const struct rankscope_call *call, char *say, size_t cap);

/* Sizes of a test, and what its matrices are made of: a type of the file's format. Width up to 1536, out to 320, experts to 160. */
struct patch_test_form {
    const char *name;
    uint32_t type;
    uint32_t width; /* of rows; of quantised forms a multiple of 256 */
    uint32_t out;   /* of products */
    uint32_t experts;
};

/* The functions are kernels/quant.h's and kernels/type.h's; a list of f32 alone needs none. */
struct patch_test_forms {
    uint32_t n;
    const struct patch_test_form *form;
    void (*encode)(uint32_t type, const float *src, void *dst, size_t n);
    void (*decode)(uint32_t type, const void *src, float *dst, size_t n);
    size_t (*row_bytes)(uint32_t type, size_t n);
};

/* shares: also with the work cut in several shares, in any order. forms: all of them; NULL: one of f32. true: it is right, *worst is its largest relative
 * error (L2). false: say has one line that tells what is wrong. */
bool patch_test(const struct rankscope_patch_v1 *patch, patch_test_fn run, void *arg, bool shares, const struct patch_test_forms *forms, double *worst,
                char *say, size_t cap);

#endif
