/* Reading the JSON arguments of a request: typed, range-checked, unknown keys refused. The first failure sticks; a method reads everything, then
 * asks args_end() once. */
#ifndef RANKSCOPE_ENGINE_ARGS_H
#define RANKSCOPE_ENGINE_ARGS_H

#include <jansson.h>

#include "engine/rankscope.h"

struct args {
    json_t *obj;         /* borrowed */
    struct rs_error *err;
    enum rs_result rc;
    const char *seen[48]; /* keys that were asked for */
    unsigned n_seen;
};

void args_begin(struct args *a, json_t *obj, struct rs_error *err);
/* Every getter returns true if the key is there and good; *out is untouched otherwise. */
bool args_str(struct args *a, const char *key, const char **out);
bool args_int(struct args *a, const char *key, long long min, long long max, long long *out);
bool args_u32(struct args *a, const char *key, uint32_t min, uint32_t max, uint32_t *out);
bool args_f32(struct args *a, const char *key, double min, double max, float *out);
bool args_bool(struct args *a, const char *key, bool *out);
bool args_array(struct args *a, const char *key, json_t **out);
bool args_object(struct args *a, const char *key, json_t **out);
bool args_any(struct args *a, const char *key, json_t **out);
/* An array of token ids below vocab; caller frees. */
bool args_ids(struct args *a, const char *key, uint32_t vocab, int32_t **ids, size_t *n);
/* Fail unless the key was given. */
void args_need(struct args *a, bool have, const char *key);
/* RS_OK, or what went wrong first; a key that nobody asked for is RS_EUSAGE. */
enum rs_result args_end(struct args *a);

#endif
