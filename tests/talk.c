#include "tests/talk.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/elsewhere.h"
#include "tests/tap.h"

enum { TIMEOUT_MS = 120000 };

static char *format(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

static char *format(const char *fmt, va_list ap)
{
    char *s = NULL;
    if (vasprintf(&s, fmt, ap) < 0)
        abort();
    for (char *p = s; *p != '\0'; p++)
        *p = *p == '\'' ? '"' : *p;
    return s;
}

static json_t *parse(const char *text)
{
    json_t *o = text != NULL ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    return o != NULL ? o : json_object();
}

json_t *talk_blob(struct rs_engine *e, void **blob, size_t *len, const char *method, const char *fmt, ...)
{
    va_list ap;
    struct rs_error err = {.msg = ""};
    char *reply = NULL;
    va_start(ap, fmt);
    char *args = format(fmt, ap);
    va_end(ap);
    *blob = NULL;
    enum rs_result rc = rs_request_blob(e, method, args, TIMEOUT_MS, &reply, blob, len, &err);
    if (rc != RS_OK)
        tap_ok(false, "%s %s: %s", method, args, err.msg);
    json_t *o = parse(reply);
    free(reply);
    free(args);
    return o;
}

json_t *talk(struct rs_engine *e, const char *method, const char *fmt, ...)
{
    va_list ap;
    struct rs_error err = {.msg = ""};
    char *reply = NULL;
    va_start(ap, fmt);
    char *args = elsewhere(method, format(fmt, ap));
    va_end(ap);
    enum rs_result rc = rs_request(e, method, args, TIMEOUT_MS, &reply, &err);
    if (rc != RS_OK)
        tap_ok(false, "%s %s: %s", method, args, err.msg);
    json_t *o = parse(reply);
    free(reply);
    free(args);
    return o;
}

enum rs_result talk_error(struct rs_engine *e, const char **msg, const char *method, const char *fmt, ...)
{
    static char text[512];
    va_list ap;
    struct rs_error err = {.msg = ""};
    char *reply = NULL;
    va_start(ap, fmt);
    char *args = format(fmt, ap);
    va_end(ap);
    enum rs_result rc = rs_request(e, method, args, TIMEOUT_MS, &reply, &err);
    snprintf(text, sizeof text, "%s", err.msg);
    if (msg != NULL)
        *msg = text;
    free(reply);
    free(args);
    return rc;
}

struct rs_engine *talk_open(const char *model, const char *extra)
{
    return talk_open_hosted(model, extra, NULL);
}

const char *talk_file(const char *name, const char *text)
{
    static char path[512];
    snprintf(path, sizeof path, "%s", tap_scratch(name));
    FILE *f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        abort();
    return path;
}

struct rs_engine *talk_open_hosted(const char *model, const char *extra, const struct rs_patch_host *host)
{
    struct rs_engine *e = NULL;
    struct rs_error err;
    const struct rs_local_params p = {.workers = 2, .host = host};
    const char *build = getenv("abs_builddir");
    char program[512];
    if (host != NULL && build != NULL) {
        snprintf(program, sizeof program, "%s/rankscope", build);
        setenv("RANKSCOPE_PROGRAM", program, 0);
    }
    if (rs_engine_local(&p, &e, &err) != RS_OK)
        tap_skip_all("no engine: %s", err.msg);
    json_t *o = talk(e, "hello", "{'protocol':%d,'client':'test','control':true}", RS_PROTOCOL);
    json_decref(o);
    o = talk(e, "open", "{'path':'%s'%s%s}", tap_source(model), extra != NULL && *extra != '\0' ? "," : "", extra != NULL ? extra : "");
    if (json_object_size(o) == 0)
        exit(1); /* without a plan: the harness counts an error */
    json_decref(o);
    return e;
}

json_t *talk_wait(struct rs_engine *e, enum rs_event_type type)
{
    struct rs_event ev;
    struct rs_error err;
    while (rs_next(e, 10000, &ev, &err) == RS_OK)
        if (ev.type == type)
            return parse(ev.json);
    return NULL;
}

json_t *talk_generate(struct rs_engine *e, const char *prompt, int max_tokens, int32_t *tok, size_t cap, size_t *n)
{
    struct rs_event ev;
    struct rs_error err;
    json_t *o = talk(e, "submit", "{%s,'temp':0,'max_tokens':%d,'ignore_eos':true}", prompt, max_tokens);
    uint32_t stream = (uint32_t)talk_num(o, "stream");
    json_decref(o);
    *n = 0;
    while (rs_next(e, TIMEOUT_MS, &ev, &err) == RS_OK) {
        if (ev.type == RS_EVENT_TOKEN && ev.id == stream && ev.token >= 0 && *n < cap)
            tok[(*n)++] = ev.token;
        if (ev.type == RS_EVENT_DONE && ev.id == stream)
            return parse(ev.json);
    }
    tap_ok(false, "stream %u ended", stream);
    return json_object();
}

json_t *talk_at(json_t *o, const char *path)
{
    while (o != NULL && *path != '\0') {
        char key[64];
        size_t n = strcspn(path, ".");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(key)) : json_object_get(o, key);
        path += n + (path[n] == '.');
    }
    return o;
}

double talk_num(json_t *o, const char *path)
{
    json_t *v = talk_at(o, path);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

const char *talk_str(json_t *o, const char *path)
{
    const char *s = json_string_value(talk_at(o, path));
    return s != NULL ? s : "";
}
