/* See engine_client.h. */
#include "tests/engine_client.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/elsewhere.h"
#include "tests/tap.h"

static _Noreturn void give_up(const char *what, const char *why)
{
    printf("Bail out! %s: %s\n", what, why);
    exit(1);
}

struct rs_engine *ec_open(void)
{
    struct rs_engine *e;
    struct rs_error err;
    struct rs_local_params p = {.workers = 2};
    if (rs_engine_local(&p, &e, &err) != RS_OK)
        give_up("engine", err.msg);
    return e;
}

json_t *ec_call(struct rs_engine *e, const char *method, const char *fmt, ...)
{
    char *args, *reply;
    struct rs_error err;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&args, fmt, ap) < 0)
        give_up(method, "out of memory");
    va_end(ap);
    args = elsewhere(method, args);
    if (rs_request(e, method, args, 120000, &reply, &err) != RS_OK)
        give_up(method, err.msg);
    free(args);
    json_t *o = json_loads(reply, 0, NULL);
    free(reply);
    return o;
}

enum rs_result ec_fails(struct rs_engine *e, char msg[512], const char *method, const char *fmt, ...)
{
    char *args;
    struct rs_error err = {.msg = ""};
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&args, fmt, ap) < 0)
        give_up(method, "out of memory");
    va_end(ap);
    enum rs_result rc = rs_request(e, method, args, 120000, NULL, &err);
    free(args);
    memcpy(msg, err.msg, 512);
    return rc;
}

json_t *ec_blob(struct rs_engine *e, const char *method, json_t *args, float **blob, size_t *n)
{
    struct rs_error err;
    char *text = json_dumps(args, 0), *reply;
    void *data;
    size_t len;
    json_decref(args);
    if (rs_request_blob(e, method, text, 120000, &reply, &data, &len, &err) != RS_OK)
        give_up(method, err.msg);
    free(text);
    json_t *o = json_loads(reply, 0, NULL);
    free(reply);
    *blob = data;
    *n = len / sizeof(float);
    return o;
}

void ec_answers(struct rs_engine *e, size_t n, json_t **args, struct ec_answer *out)
{
    uint32_t *stream = calloc(n, sizeof *stream);
    size_t left = n;
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        struct rs_error err;
        char *text = json_dumps(args[i], 0), *reply;
        json_decref(args[i]);
        if (rs_request(e, "submit", text, 60000, &reply, &err) != RS_OK)
            give_up("submit", err.msg);
        json_t *o = json_loads(reply, 0, NULL);
        stream[i] = (uint32_t)json_integer_value(json_object_get(o, "stream"));
        json_decref(o);
        free(reply);
        free(text);
    }
    while (left > 0) {
        struct rs_event ev;
        struct rs_error err;
        if (rs_next(e, 120000, &ev, &err) != RS_OK)
            give_up("rs_next", err.msg);
        if (ev.type == RS_EVENT_LOST)
            give_up("engine", "lost");
        for (size_t i = 0; i < n; i++) {
            if (ev.id != stream[i])
                continue;
            if (ev.type == RS_EVENT_TOKEN && ev.token >= 0 && out[i].n < 512)
                out[i].ids[out[i].n++] = ev.token;
            if (ev.type == RS_EVENT_DONE) {
                out[i].done = json_loads(ev.json, JSON_ALLOW_NUL, NULL);
                if (out[i].done == NULL)
                    give_up("DONE", ev.json);
                left--;
            }
        }
    }
    free(stream);
}

void ec_answers_free(size_t n, struct ec_answer *a)
{
    for (size_t i = 0; i < n; i++)
        json_decref(a[i].done);
}

double ec_rel(const float *x, json_t *want)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < json_array_size(want); i++) {
        double y = json_number_value(json_array_get(want, i));
        d += ((double)x[i] - y) * ((double)x[i] - y);
        s += y * y;
    }
    const double rel = sqrt(d / s);
    return isnan(rel) ? INFINITY : rel; /* fmax() would drop a NaN */
}

double ec_rel_f(const float *x, const float *want, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)x[i] - (double)want[i]) * ((double)x[i] - (double)want[i]);
        s += (double)want[i] * (double)want[i];
    }
    const double rel = sqrt(d / s);
    return isnan(rel) ? INFINITY : rel; /* fmax() would drop a NaN */
}
