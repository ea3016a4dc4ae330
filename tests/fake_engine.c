/* fake_engine.c: the calls of rankscope.h, the queue of events, and the script. */
#include "config.h"

#include "tests/fake_engine.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/error.h"

uint64_t fake_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- the queue ----------------------------------------------------------------------------------------------------------------------- */

/* The timer runs out at once for what is due already. */
static void arm(struct rs_engine *e)
{
    struct itimerspec t = {0};
    if (e->queue != NULL) {
        t.it_value.tv_sec = (time_t)(e->queue->due_us / 1000000);
        t.it_value.tv_nsec = (long)(e->queue->due_us % 1000000) * 1000 + 1;
    }
    timerfd_settime(e->fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void insert(struct rs_engine *e, struct fake_event *f)
{
    /* Most come in order; a long answer is many. */
    struct fake_event **at = e->queue != NULL && e->last->due_us <= f->due_us ? &e->last->next : &e->queue;
    while (*at != NULL && (*at)->due_us <= f->due_us)
        at = &(*at)->next;
    f->next = *at;
    *at = f;
    if (f->next == NULL)
        e->last = f;
    if (e->queue == f)
        arm(e);
}

static struct fake_event *event(enum rs_event_type type, uint32_t id, enum rs_result status, uint64_t after_us)
{
    struct fake_event *f = calloc(1, sizeof *f);
    if (f == NULL)
        abort();
    f->due_us = fake_now_us() + after_us;
    f->ev = (struct rs_event){.type = type, .id = id, .status = status, .time_us = f->due_us};
    return f;
}

void fake_post(struct rs_engine *e, enum rs_event_type type, uint32_t id, enum rs_result status, uint64_t after_us, json_t *json,
               const void *blob, size_t blob_len)
{
    struct fake_event *f = event(type, id, status, after_us);
    f->ev.json = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (blob_len > 0) {
        f->ev.blob = memcpy(malloc(blob_len), blob, blob_len);
        f->ev.blob_len = blob_len;
    }
    insert(e, f);
}

void fake_post_token(struct rs_engine *e, uint32_t stream, uint64_t after_us, int32_t token, uint32_t flags, const char *text, size_t len)
{
    struct fake_event *f = event(RS_EVENT_TOKEN, stream, RS_OK, after_us);
    f->ev.token = token;
    f->ev.flags = flags;
    f->ev.text = strndup(text, len);
    f->ev.text_len = len;
    insert(e, f);
}

static void free_event(struct fake_event *f)
{
    if (f == NULL)
        return;
    free((char *)f->ev.text);
    free((char *)f->ev.json);
    free((void *)f->ev.blob);
    free(f);
}

static void drop(struct rs_engine *e, uint32_t id, enum rs_event_type a, enum rs_event_type b)
{
    for (struct fake_event **at = &e->queue; *at != NULL;) {
        struct fake_event *f = *at;
        if (f->ev.id == id && (f->ev.type == a || f->ev.type == b)) {
            *at = f->next;
            free_event(f);
        } else {
            e->last = f;
            at = &f->next;
        }
    }
    arm(e);
}

void fake_drop_stream(struct rs_engine *e, uint32_t stream)
{
    drop(e, stream, RS_EVENT_TOKEN, RS_EVENT_DONE);
}

void fake_drop_request(struct rs_engine *e, uint32_t id)
{
    drop(e, id, RS_EVENT_PROGRESS, RS_EVENT_REPLY);
}

/* ---- the script ---------------------------------------------------------------------------------------------------------------------- */

static void unescape(char *s)
{
    char *to = s;
    for (const char *p = s; *p != '\0'; p++) {
        unsigned x;
        if (*p != '\\' || p[1] == '\0') {
            *to++ = *p;
        } else if (p[1] == 'x' && sscanf(p + 2, "%2x", &x) == 1) {
            *to++ = (char)x;
            p += 3;
        } else {
            p++;
            *to++ = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
        }
    }
    *to = '\0';
}

static void bad_script(const char *line)
{
    fprintf(stderr, "fake engine: bad script line: %s\n", line);
    exit(99);
}

static json_t *script_json(const char *text, const char *line)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    if (v == NULL)
        bad_script(line);
    return v;
}

static void rank_value(struct rs_snapshot *s, const char *rest, const char *line)
{
    unsigned rank;
    char key[16];
    float x;
    if (sscanf(rest, "%u %15s %f", &rank, key, &x) != 3 || rank >= RS_MAX_RANKS)
        bad_script(line);
    struct rs_rank_snapshot *r = &s->rank[rank];
    if (strcmp(key, "mem") == 0)
        r->mem_used = (uint64_t)x;
    if (strcmp(key, "mem-total") == 0)
        r->mem_total = (uint64_t)x;
    float *const at[] = {&r->busy_us,   &r->ar_wait_us, &r->ar_transfer_us, &r->ar_p50_us,
                         &r->ar_p99_us, &r->gpu_util,   &r->gpu_temp_c,     &r->gpu_power_w};
    static const char *const keys[] = {"busy", "wait", "transfer", "p50", "p99", "util", "temp", "power"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i], key) == 0)
            *at[i] = x;
}

static void directive(struct rs_engine *e, char *line)
{
    char name[32], method[32], code[32], *copy = strdup(line);
    int n = 0, m = 0;
    if (sscanf(line, "%31s %n", name, &n) != 1 || n == 0)
        bad_script(line);
    char *rest = line + n;
    json_t *s = e->script;
    if (strcmp(name, "answer") == 0 || strcmp(name, "think") == 0 || strcmp(name, "print") == 0) {
        unescape(rest);
        json_t *text = json_stringn_nocheck(rest, strlen(rest)); /* a test may want bytes that are no UTF-8 */
        if (strcmp(name, "answer") == 0)
            json_array_append_new(json_object_get(s, "answers"), text);
        else
            json_object_set_new(s, name, text);
    } else if (strcmp(name, "token-us") == 0 || strcmp(name, "open-us") == 0) {
        json_object_set_new(s, name, json_integer(atol(rest)));
    } else if (strcmp(name, "done") == 0) {
        json_object_set_new(s, "done", script_json(rest, copy));
    } else if (strcmp(name, "model") == 0) {
        json_object_set_new(s, "model", script_json(rest, copy));
    } else if (strcmp(name, "reply") == 0 && sscanf(rest, "%31s %n", method, &m) == 1 && m > 0) {
        json_object_set_new(json_object_get(s, "replies"), method, script_json(rest + m, copy));
    } else if (strcmp(name, "first") == 0 && sscanf(rest, "%31s %31s %n", code, method, &m) == 2 && m > 0) {
        json_object_set_new(json_object_get(s, "firsts"), method, json_pack("[i, o]", atoi(code), script_json(rest + m, copy)));
    } else if (strcmp(name, "fail") == 0 && sscanf(rest, "%31s %31s %n", method, code, &m) == 2 && m > 0) {
        json_object_set_new(json_object_get(s, "fails"), method, json_pack("[s, s]", code, rest + m));
    } else if ((strcmp(name, "lost") == 0 || strcmp(name, "log") == 0) && sscanf(rest, "%31s %n", code, &m) == 1 && m > 0) {
        json_object_set_new(s, name, json_pack("[s, s]", code, rest + m));
    } else if (strcmp(name, "gate") == 0 && sscanf(rest, "%31s %n", code, &m) == 1 && m > 0) {
        json_array_append_new(json_object_get(s, "gates"), json_pack("[i, s]", atoi(code), rest + m));
    } else if (strcmp(name, "live") == 0) {
        e->live = atof(rest) / 100;
    } else if (strcmp(name, "rank") == 0) {
        rank_value(&e->snapshot, rest, copy);
    } else {
        bad_script(copy);
    }
    free(copy);
}

static void read_script(struct rs_engine *e)
{
    const char *path = getenv("RANKSCOPE_FAKE");
    e->script = json_pack("{s:[], s:[], s:{}, s:{}, s:{}}", "answers", "gates", "replies", "firsts", "fails");
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    if (path != NULL && f == NULL)
        bad_script(path);
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; f != NULL && (n = getline(&line, &cap, f)) > 0;) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        if (line[0] != '\0' && line[0] != '#')
            directive(e, line);
    }
    free(line);
    if (f != NULL)
        fclose(f);
}

/* ---- rankscope.h --------------------------------------------------------------------------------------------------------------------- */

enum rs_result rs_engine_local(const struct rs_local_params *params, struct rs_engine **out, struct rs_error *err)
{
    if (params != NULL && params->isa != NULL && strcmp(params->isa, "avx512") == 0)
        return error_set(err, RS_EUSAGE, "this CPU has no avx512");
    struct rs_engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return error_set(err, RS_ENOMEM, "out of memory");
    e->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    for (size_t i = 0; i < RS_MAX_RANKS; i++) {
        struct rs_rank_snapshot *r = &e->snapshot.rank[i];
        *r = (struct rs_rank_snapshot){.bytes_weights = 2000000 + i,
                                       .busy_us = 100 + (float)i,
                                       .ar_wait_us = 5,
                                       .ar_transfer_us = 3,
                                       .ar_p50_us = 1,
                                       .ar_p99_us = 2,
                                       .gpu_util = NAN,
                                       .gpu_temp_c = NAN,
                                       .gpu_power_w = NAN,
                                       .mem_used = UINT64_MAX,
                                       .mem_total = UINT64_MAX};
    }
    e->sessions = json_object();
    e->streams = json_object();
    e->slots = fake_canned("slots");
    e->journal = json_array();
    e->info = fake_canned("info");
    read_script(e);
    *out = e;
    return RS_OK;
}

enum rs_result rs_engine_connect(const char *name, struct rs_engine **out, struct rs_error *err)
{
    (void)out;
    return error_set(err, RS_ENOTFOUND, "no engine '%s' is running", name != NULL ? name : "");
}

enum rs_result rs_engine_serve(const char *name, const struct rs_local_params *params, int ready_fd, struct rs_error *err)
{
    (void)params;
    (void)ready_fd;
    return error_set(err, RS_EUNSUPPORTED, "the fake engine serves nobody (%s)", name);
}

enum rs_result rs_engine_follow(const char *at, const struct rs_local_params *params, struct rs_error *err)
{
    (void)params;
    return error_set(err, RS_EUNSUPPORTED, "the fake engine follows nobody (%s)", at);
}

enum rs_result rs_stage_cuda(const char *file, const char *include, const char *folder, double *worst, struct rs_error *err)
{
    (void)file, (void)include, (void)folder, (void)worst;
    err->code = RS_EUNSUPPORTED;
    snprintf(err->msg, sizeof err->msg, "a played engine compiles nothing");
    return RS_EUNSUPPORTED;
}

enum rs_result rs_stage_hosted(const struct rs_patch_host *host, const char *file, const char *name, double *worst, struct rs_error *err)
{
    (void)host, (void)worst;
    err->code = RS_EUNSUPPORTED;
    snprintf(err->msg, sizeof err->msg, "a played engine reads neither %s nor %s", file, name);
    return RS_EUNSUPPORTED;
}

enum rs_result rs_engine_list(char **json, struct rs_error *err)
{
    (void)err;
    *json = strdup("[]");
    return RS_OK;
}

void rs_engine_close(struct rs_engine *e)
{
    if (e == NULL)
        return;
    while (e->queue != NULL) {
        struct fake_event *f = e->queue;
        e->queue = f->next;
        free_event(f);
    }
    free_event(e->given);
    json_t *const all[] = {e->script, e->info, e->slots, e->journal, e->sessions, e->streams};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        json_decref(all[i]);
    close(e->fd);
    free(e);
}

static void log_request(const char *method, const char *args)
{
    const char *path = getenv("RANKSCOPE_FAKE_LOG");
    FILE *f = path != NULL ? fopen(path, "a") : NULL;
    if (f == NULL)
        return;
    fprintf(f, "%s %s\n", method, args != NULL ? args : "{}");
    fclose(f);
}

enum rs_result rs_send(struct rs_engine *e, const char *method, const char *args, uint32_t *id, struct rs_error *err)
{
    if (e->lost)
        return error_set(err, RS_EENGINE, "the engine is gone");
    log_request(method, args);
    json_t *o = args != NULL ? json_loads(args, 0, NULL) : json_object();
    *id = ++e->last_id;
    if (json_is_object(o))
        fake_method(e, *id, method, o);
    else
        fake_post(e, RS_EVENT_REPLY, *id, RS_EUSAGE, 0,
                  json_pack("{s:{s:s, s:s}}", "error", "code", "usage", "message", "args is no object"), NULL, 0);
    json_decref(o);
    return RS_OK;
}

static bool due(const struct rs_engine *e)
{
    return e->queue != NULL && e->queue->due_us <= fake_now_us();
}

static bool of_stream(const struct rs_engine *e, const struct fake_event *f)
{
    return f->ev.id == e->stream && (f->ev.type == RS_EVENT_TOKEN || f->ev.type == RS_EVENT_DONE);
}

static bool gate_is_shut(const struct rs_engine *e)
{
    size_t i;
    json_t *g;
    json_array_foreach(json_object_get(e->script, "gates"), i, g)
        if (json_integer_value(json_array_get(g, 0)) == e->given_tokens && access(json_string_value(json_array_get(g, 1)), F_OK) != 0)
            return true;
    return false;
}

/* At a gate that is shut all that is still to come of the stream is put off a little; then the file is looked for again. */
static void wait_at_gate(struct rs_engine *e)
{
    enum { AGAIN_US = 5000 };
    struct fake_event *held = NULL, **end = &held;
    if (!due(e) || e->stream == 0 || !of_stream(e, e->queue) || !gate_is_shut(e))
        return;
    uint64_t later = fake_now_us() + AGAIN_US - e->queue->due_us;
    for (struct fake_event **at = &e->queue; *at != NULL;) {
        struct fake_event *f = *at;
        if (of_stream(e, f)) {
            *at = f->next;
            f->next = NULL;
            *end = f;
            end = &f->next;
        } else {
            e->last = f;
            at = &f->next;
        }
    }
    while (held != NULL) {
        struct fake_event *f = held;
        held = f->next;
        f->due_us += later;
        insert(e, f);
    }
    arm(e);
}

enum rs_result rs_next(struct rs_engine *e, int timeout_ms, struct rs_event *out, struct rs_error *err)
{
    if (e->lost)
        return error_set(err, RS_EENGINE, "the engine is gone");
    struct pollfd p = {.fd = e->fd, .events = POLLIN};
    wait_at_gate(e);
    if (!due(e) && timeout_ms != 0)
        poll(&p, 1, timeout_ms);
    wait_at_gate(e);
    if (!due(e))
        return error_set(err, RS_ETIMEOUT, "nothing yet");
    free_event(e->given);
    e->given = e->queue;
    e->queue = e->queue->next;
    arm(e);
    *out = e->given->ev;
    if (out->type == RS_EVENT_DONE && out->id == e->stream)
        e->stream = 0;
    if (out->type == RS_EVENT_TOKEN) {
        e->given_tokens++;
        e->snapshot.step++;
        e->snapshot.tokens_total++;
    }
    e->lost = out->type == RS_EVENT_LOST;
    return RS_OK;
}

enum rs_result rs_request_blob(struct rs_engine *e, const char *method, const char *args, int timeout_ms, char **reply, void **blob,
                               size_t *blob_len, struct rs_error *err)
{
    uint32_t id;
    struct fake_event **at;
    enum rs_result r = rs_send(e, method, args, &id, err);
    (void)timeout_ms;
    if (r != RS_OK)
        return r;
    for (at = &e->queue; (*at)->ev.type != RS_EVENT_REPLY || (*at)->ev.id != id; at = &(*at)->next)
        ;
    struct fake_event *f = *at;
    *at = f->next;
    for (struct fake_event *g = e->queue; g != NULL; g = g->next)
        e->last = g;
    if (f->ev.status != RS_OK) {
        json_t *o = json_loads(f->ev.json, 0, NULL);
        r = error_set(err, f->ev.status, "%s", json_string_value(json_object_get(json_object_get(o, "error"), "message")));
        json_decref(o);
    } else {
        if (reply != NULL)
            *reply = strdup(f->ev.json);
        *blob = f->ev.blob_len > 0 ? memcpy(malloc(f->ev.blob_len), f->ev.blob, f->ev.blob_len) : NULL;
        *blob_len = f->ev.blob_len;
    }
    free_event(f);
    return r;
}

enum rs_result rs_request(struct rs_engine *e, const char *method, const char *args, int timeout_ms, char **reply, struct rs_error *err)
{
    void *blob = NULL;
    size_t len;
    enum rs_result r = rs_request_blob(e, method, args, timeout_ms, reply, &blob, &len, err);
    free(blob);
    return r;
}

int rs_fd(const struct rs_engine *e)
{
    return e->fd;
}

bool rs_pending(const struct rs_engine *e)
{
    return due(e);
}

unsigned rs_nap_us(const struct rs_engine *e)
{
    (void)e;
    return 0;
}

/* Times that vary from read to read, the same way in every run. */
static void vary(struct rs_engine *e)
{
    struct rs_snapshot *s = &e->snapshot;
    s->step += 3;
    e->reads++;
    for (uint32_t r = 0; r < RS_MAX_RANKS; r++) {
        double x = (double)((e->reads * 2654435761u + r * 40503u) % 1000) / 500 - 1, was = (double)((e->reads * 2654435761u - 2654435761u + r * 40503u) % 1000) / 500 - 1;
        if (e->reads == 1)
            was = 0;
        s->rank[r].ar_wait_us *= (float)((1 + e->live * x) / (1 + e->live * was));
    }
}

bool rs_snapshot_read(const struct rs_engine *e, struct rs_snapshot *out)
{
    if (e->live > 0)
        vary((struct rs_engine *)e);
    const json_t *state = json_object_get(e->info, "state");
    if (!json_is_object(json_object_get(e->info, "model")))
        return false;
    *out = e->snapshot;
    out->version = 1;
    out->n_ranks = (uint32_t)json_integer_value(json_object_get(state, "ranks"));
    out->mode = strcmp(json_string_value(json_object_get(state, "mode")), "graph") == 0;
    out->generation = (uint64_t)json_integer_value(json_object_get(state, "generation"));
    out->simulated = 1;
    out->time_us = fake_now_us();
    out->running = e->stream != 0 || e->live > 0;
    out->ops_per_step = 80;
    out->allreduces_per_step = 13;
    out->step_us = out->step_p50_us = 1200;
    out->step_p99_us = 1500;
    out->tok_per_s = 800;
    return true;
}
