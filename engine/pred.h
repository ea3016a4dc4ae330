/* Predicates: conditions of breakpoints, evaluated in the engine. Numbers, variables, + - * /, comparisons, && || !, parentheses, abs(x). All values are
 * doubles; 0 is false. Division by zero gives inf or nan, comparisons with nan are false except !=. Pure; any thread. */
#ifndef RANKSCOPE_ENGINE_PRED_H
#define RANKSCOPE_ENGINE_PRED_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/rankscope.h"

enum pred_var {
    PRED_STEP, PRED_POS, PRED_POS0, PRED_TOKEN, PRED_ROWS, PRED_PROMPT, PRED_LAYER, PRED_OP, PRED_RANK, /* known without looking at a tensor */
    PRED_MIN, PRED_MAX, PRED_ABSMAX, PRED_MEAN, PRED_RMS, PRED_ZEROS, PRED_NAN, PRED_INF, PRED_N,       /* statistics of the op's tensor on a rank */
    PRED_VAR_COUNT,
};

enum { PRED_MAX_CODE = 64, PRED_MAX_STACK = 16 };

struct pred {
    uint32_t n, uses;  /* uses: bit per enum pred_var */
    struct { uint8_t op, var; double number; } code[PRED_MAX_CODE]; /* postfix */
};

/* Errors: RS_EUSAGE, pointing at the character. An empty text is always true. */
enum rs_result pred_compile(const char *text, struct pred *out, struct rs_error *err);
double pred_eval(const struct pred *p, const double var[PRED_VAR_COUNT]);
static inline bool pred_needs_stats(const struct pred *p) { return p->uses >> PRED_MIN != 0; }

#endif
