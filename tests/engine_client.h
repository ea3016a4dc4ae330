/* What tests of the running engine share: opening, requests from literals, answers, numbers. Failures that make going on pointless end the test. */
#ifndef RANKSCOPE_TESTS_ENGINE_CLIENT_H
#define RANKSCOPE_TESTS_ENGINE_CLIENT_H

#include <jansson.h>

#include "engine/rankscope.h"

/* A local engine with 2 workers. */
struct rs_engine *ec_open(void);
/* Send a request with printf-formatted arguments; returns the reply (json_decref it), or ends the program. */
json_t *ec_call(struct rs_engine *e, const char *method, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same, expecting failure: returns the code and writes the message. */
enum rs_result ec_fails(struct rs_engine *e, char msg[512], const char *method, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Send args (taken), with a blob back. */
json_t *ec_blob(struct rs_engine *e, const char *method, json_t *args, float **blob, size_t *n_floats);

struct ec_answer {
    int32_t ids[512];
    uint32_t n;
    json_t *done; /* DONE object */
};

/* Submit n prompts at once and wait for all. args: one object each (taken). */
void ec_answers(struct rs_engine *e, size_t n, json_t **args, struct ec_answer *out);
void ec_answers_free(size_t n, struct ec_answer *a);

/* Relative L2 distance of n floats from a JSON array. */
double ec_rel(const float *x, json_t *want);
double ec_rel_f(const float *x, const float *want, size_t n);

#endif
