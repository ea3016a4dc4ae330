/* RANKSCOPE_TEST_BACKEND=cuda runs a test of the engine on GPUs, where there are some: models are opened there unless the test says
 * where, with the payload of all-reduces and the numerics that are the
 * default of the CPU. */
#ifndef RANKSCOPE_TESTS_ELSEWHERE_H
#define RANKSCOPE_TESTS_ELSEWHERE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether models are opened on GPUs. */
static inline bool elsewhere_cuda(void)
{
    const char *backend = getenv("RANKSCOPE_TEST_BACKEND");
    return backend != NULL && strcmp(backend, "cuda") == 0;
}

/* The arguments of a request, or others in their place; frees args then. */
static inline char *elsewhere(const char *method, char *args)
{
    const char *backend = getenv("RANKSCOPE_TEST_BACKEND");
    json_t *o = backend != NULL && strcmp(method, "open") == 0 ? json_loads(args, 0, NULL) : NULL;
    if (o == NULL || json_object_get(o, "backend") != NULL) {
        json_decref(o);
        return args;
    }
    json_object_set_new(o, "backend", json_string(backend));
    if (json_object_get(o, "numerics") == NULL)
        json_object_set_new(o, "numerics", json_string("invariant"));
    json_t *patches = json_object_get(o, "patches");
    if (patches == NULL)
        json_object_set_new(o, "patches", patches = json_object());
    if (json_object_get(patches, "allreduce.dtype") == NULL) /* the default of the CPU */
        json_object_set_new(patches, "allreduce.dtype", json_string("f32"));
    free(args);
    args = json_dumps(o, 0);
    json_decref(o);
    return args;
}

#endif
