/* See args.h. */
#include "engine/args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

void args_begin(struct args *a, json_t *obj, struct rs_error *err)
{
    *a = (struct args){.obj = obj, .err = err};
}

static json_t *get(struct args *a, const char *key)
{
    if (a->n_seen < sizeof a->seen / sizeof a->seen[0])
        a->seen[a->n_seen++] = key;
    json_t *v = a->rc == RS_OK ? json_object_get(a->obj, key) : NULL;
    return json_is_null(v) ? NULL : v;
}

static bool wrong(struct args *a, const char *key, const char *want)
{
    a->rc = error_set(a->err, RS_EUSAGE, "%s must be %s", key, want);
    return false;
}

bool args_str(struct args *a, const char *key, const char **out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return wrong(a, key, "a string without NUL");
    *out = json_string_value(v);
    return true;
}

bool args_int(struct args *a, const char *key, long long min, long long max, long long *out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    long long n = json_is_integer(v) ? json_integer_value(v) : 0;
    if (!json_is_integer(v) || n < min || n > max) {
        a->rc = error_set(a->err, RS_EUSAGE, "%s must be an integer from %lld to %lld", key, min, max);
        return false;
    }
    *out = n;
    return true;
}

bool args_u32(struct args *a, const char *key, uint32_t min, uint32_t max, uint32_t *out)
{
    long long n;
    if (!args_int(a, key, min, max, &n))
        return false;
    *out = (uint32_t)n;
    return true;
}

bool args_f32(struct args *a, const char *key, double min, double max, float *out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= min && x <= max)) {
        a->rc = error_set(a->err, RS_EUSAGE, "%s must be a number from %g to %g", key, min, max);
        return false;
    }
    *out = (float)x;
    return true;
}

bool args_bool(struct args *a, const char *key, bool *out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    if (!json_is_boolean(v))
        return wrong(a, key, "true or false");
    *out = json_is_true(v);
    return true;
}

bool args_array(struct args *a, const char *key, json_t **out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    if (!json_is_array(v))
        return wrong(a, key, "an array");
    *out = v;
    return true;
}

bool args_object(struct args *a, const char *key, json_t **out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    if (!json_is_object(v))
        return wrong(a, key, "an object");
    *out = v;
    return true;
}

bool args_any(struct args *a, const char *key, json_t **out)
{
    json_t *v = get(a, key);
    if (v == NULL)
        return false;
    *out = v;
    return true;
}

bool args_ids(struct args *a, const char *key, uint32_t vocab, int32_t **ids, size_t *n)
{
    json_t *v;
    if (!args_array(a, key, &v))
        return false;
    size_t count = json_array_size(v);
    int32_t *out = malloc((count + 1) * sizeof *out);
    if (out == NULL) {
        a->rc = error_set(a->err, RS_ENOMEM, "out of memory for %zu ids", count);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        json_t *e = json_array_get(v, i);
        long long id = json_is_integer(e) ? json_integer_value(e) : -1;
        if (id < 0 || id >= (long long)vocab) {
            free(out);
            a->rc = error_set(a->err, RS_EUSAGE, "%s[%zu] must be a token id from 0 to %u", key, i, vocab - 1);
            return false;
        }
        out[i] = (int32_t)id;
    }
    *ids = out;
    *n = count;
    return true;
}

void args_need(struct args *a, bool have, const char *key)
{
    if (!have && a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "argument %s is missing", key);
}

enum rs_result args_end(struct args *a)
{
    const char *key;
    json_t *v;
    if (a->rc != RS_OK)
        return a->rc;
    json_object_foreach(a->obj, key, v) {
        bool known = false;
        for (unsigned i = 0; i < a->n_seen && !known; i++)
            known = strcmp(a->seen[i], key) == 0;
        if (!known)
            return a->rc = error_set(a->err, RS_EUSAGE, "unknown argument '%.40s'", key);
    }
    return RS_OK;
}
