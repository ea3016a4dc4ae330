/* Every allocation that starting an engine, opening a model and answering make fails once, one after the other. Each time there must be one clear line
 * that says so, nothing may leak or crash, and the engine must go on. The client's own do not count while a request is carried out. The JSON library
 * does not tell of all its failures, so they are counted here as the program does it: no reply and no account of an answer may lack a member that it
 * has otherwise. RANKSCOPE_LONG fails every one; else, of opening a model, the first 60 and then one in 13. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine_client.h"
#include "tests/tap.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t a, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t a, size_t n);
char *__wrap_strdup(const char *s);
int __real_vasprintf(char **out, const char *fmt, va_list ap);
int __wrap_vasprintf(char **out, const char *fmt, va_list ap);
void __wrap_free(void *p);

static _Thread_local bool s_client;  /* this thread is the test's own */
static bool s_count_client;          /* and counts all the same */
static atomic_long s_left = -1;      /* allocations until the one that fails; negative: none fails */
static atomic_long s_live, s_seen;
static atomic_bool s_failed;

static atomic_bool s_json;           /* those of the JSON library fail, instead of the engine's */
static atomic_ulong s_json_failed;

static bool fails(bool json)
{
    if ((s_client && !s_count_client) || json != atomic_load(&s_json))
        return false;
    atomic_fetch_add(&s_seen, 1);
    if (atomic_load(&s_left) < 0 || atomic_fetch_sub(&s_left, 1) != 0)
        return false;
    atomic_store(&s_failed, true);
    return true;
}

static void *born(void *p)
{
    if (p != NULL)
        atomic_fetch_add(&s_live, 1);
    return p;
}

void *__wrap_malloc(size_t n)
{
    return fails(false) ? NULL : born(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails(false) ? NULL : born(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    if (fails(false))
        return NULL;
    void *q = __real_realloc(p, n);
    return p == NULL ? born(q) : q;
}

void *__wrap_aligned_alloc(size_t a, size_t n)
{
    return fails(false) ? NULL : born(__real_aligned_alloc(a, n));
}

char *__wrap_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = __wrap_malloc(n);
    return p != NULL ? memcpy(p, s, n) : NULL;
}

int __wrap_vasprintf(char **out, const char *fmt, va_list ap)
{
    int n = __real_vasprintf(out, fmt, ap);
    if (n >= 0)
        born(*out);
    return n;
}

void __wrap_free(void *p)
{
    if (p != NULL)
        atomic_fetch_sub(&s_live, 1);
    __real_free(p);
}

static void *json_alloc(size_t n)
{
    if (!fails(true))
        return born(__real_malloc(n));
    atomic_fetch_add(&s_json_failed, 1);
    return NULL;
}

static unsigned long json_failures(void)
{
    return atomic_load(&s_json_failed);
}

/* Fail the n-th allocation from now on; 0: none. */
static void arm(long n)
{
    atomic_store(&s_failed, false);
    atomic_store(&s_seen, 0);
    atomic_store(&s_left, n - 1);
}

static bool clear_line(enum rs_result rc, const struct rs_error *err)
{
    return rc == RS_ENOMEM && err->msg[0] != '\0' && strchr(err->msg, '\n') == NULL;
}

static bool next(long *n)
{
    *n += *n <= 60 || getenv("RANKSCOPE_LONG") != NULL ? 1 : 13;
    return *n < 100000;
}

/* Failures with a message that is not about memory, for the reader. */
static void tell(int *told, long n, enum rs_result rc, const char *msg)
{
    if ((*told)++ < 5)
        tap_diag("allocation %ld: %s: %s", n, rs_result_name(rc), msg);
}

/* Does a hold every member that b has, and those of its members, and as many elements? Numbers and texts may differ. */
static bool as_whole(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    bool ok = json_typeof(a) == json_typeof(b) || json_is_null(a) || json_is_null(b) || (json_is_number(a) && json_is_number(b)) ||
              (json_is_boolean(a) && json_is_boolean(b));
    if (json_is_array(a) && json_is_array(b))
        ok = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; ok && json_is_array(b) && i < json_array_size(b); i++)
        ok = as_whole(json_array_get(a, i), json_array_get(b, i));
    if (ok && json_is_object(a) && json_is_object(b))
        json_object_foreach((json_t *)b, key, v) ok = ok && json_object_get(a, key) != NULL && as_whole(json_object_get(a, key), v);
    return ok;
}

/* What looks, without a change: every failure of the JSON library is an error, or nothing is missing. */
static void looking(struct rs_engine *e, const char *method, const char *args)
{
    int failed = 0, unclear = 0, halves = 0, told = 0;
    bool through = false;
    struct rs_error err;
    json_t *whole = ec_call(e, method, "%s", args);
    for (long n = 1; !through; next(&n)) {
        char *reply = NULL;
        arm(n);
        enum rs_result rc = rs_request(e, method, args, 60000, &reply, &err);
        atomic_store(&s_left, -1);
        through = !atomic_load(&s_failed);
        failed += !through;
        json_t *o = rc == RS_OK ? json_loads(reply, 0, NULL) : NULL;
        if (rc != RS_OK && !clear_line(rc, &err)) {
            unclear++;
            tell(&told, n, rc, err.msg);
        }
        if (rc == RS_OK && (o == NULL || !as_whole(o, whole))) {
            halves++;
            tell(&told, n, rc, reply);
        }
        json_decref(o);
        free(reply);
    }
    json_decref(whole);
    tap_ok(failed >= 10 && unclear == 0 && halves == 0, "%s: %d failures of the JSON library, each is told and no half of a reply comes", method, failed);
}

static void starting(void)
{
    const struct rs_local_params p = {.workers = 2, .json_failures = json_failures};
    int failed = 0, unclear = 0, told = 0;
    long leaked = 0;
    s_count_client = true;
    for (long n = 1; n < 10000; n++) {
        struct rs_engine *e = NULL;
        struct rs_error err = {.msg = ""};
        long live = atomic_load(&s_live);
        arm(n);
        enum rs_result rc = rs_engine_local(&p, &e, &err);
        atomic_store(&s_left, -1);
        bool hit = atomic_load(&s_failed);
        if (rc == RS_OK)
            rs_engine_close(e);
        leaked += atomic_load(&s_live) - live;
        if (!hit)
            break;
        failed++;
        if (rc != RS_OK && !clear_line(rc, &err)) {
            unclear++;
            tell(&told, n, rc, err.msg);
        }
    }
    s_count_client = false;
    tap_ok(failed >= 8 && unclear == 0, "starting an engine: %d failures, each said in one line", failed);
    tap_eq_int(leaked, 0, "starting an engine: nothing leaks");
}

/* Let a request fail at every allocation in turn, until it is through without. Between two failures the engine must answer. */
static void request(struct rs_engine *e, const char *method, const char *args, const char *undo, int at_least)
{
    int failed = 0, unclear = 0, dead = 0, told = 0;
    bool through = false;
    for (long n = 1; !through; next(&n)) {
        struct rs_error err = {.msg = ""};
        char *reply = NULL;
        arm(n);
        enum rs_result rc = rs_request(e, method, args, 60000, &reply, &err);
        atomic_store(&s_left, -1);
        through = !atomic_load(&s_failed);
        free(reply);
        failed += !through;
        if (rc != RS_OK && !clear_line(rc, &err)) {
            unclear++;
            tell(&told, n, rc, err.msg);
        }
        if (rc == RS_EENGINE || rs_request(e, "ping", NULL, 60000, NULL, &err) != RS_OK) {
            dead++;
            break;
        }
        if (rc == RS_OK && undo != NULL)
            rs_request(e, undo, NULL, 60000, NULL, &err);
    }
    const char *whose = s_json ? ", JSON" : "";
    tap_ok(failed >= at_least && unclear == 0, "%s%s: %d failures, each said in one line", method, whose, failed);
    tap_ok(dead == 0 && failed >= at_least, "%s%s: %d failures, the engine goes on", method, whose, failed);
}

/* Does a DONE event say all, or that something went wrong? An event without any text says at least that. */
static bool done_whole(const struct rs_event *ev)
{
    json_t *o = ev->json != NULL ? json_loads(ev->json, 0, NULL) : NULL;
    const char *stop = json_string_value(json_object_get(o, "stop"));
    bool ok = o == NULL || (stop != NULL && strcmp(stop, "error") == 0) ||
              (json_is_string(json_object_get(o, "text")) && json_is_object(json_object_get(o, "health")) && json_is_object(json_object_get(o, "allreduce")) &&
               json_integer_value(json_object_get(o, "tokens")) == 6);
    json_decref(o);
    return ok;
}

/* An answer, with failures at every allocation of the engine on the way: the stream ends, with what it has or with an error. */
static void answering(struct rs_engine *e)
{
    int failed = 0, bad = 0, told = 0;
    for (long n = 1; n < 3000; n++) {
        struct rs_error err = {.msg = ""};
        struct rs_event ev = {.type = RS_EVENT_LOG};
        uint32_t id;
        bool replied = false, done = false, whole = true;
        arm(n);
        enum rs_result rc = rs_send(e, "submit", "{\"ids\":[100,200,300,400],\"max_tokens\":6,\"ignore_eos\":true,\"stop\":[\"never seen\"]}", &id, &err);
        while (rc == RS_OK && !done) {
            rc = rs_next(e, 20000, &ev, &err);
            if (rc != RS_OK || ev.type == RS_EVENT_LOST)
                break;
            if (ev.type == RS_EVENT_REPLY && ev.id == id) {
                replied = true;
                done = ev.status != RS_OK;
            }
            if (ev.type == RS_EVENT_DONE) {
                done = true;
                whole = done_whole(&ev);
            }
        }
        bool hit = atomic_load(&s_failed);
        atomic_store(&s_left, -1);
        if (!hit)
            break;
        failed++;
        if (rc != RS_OK || !done || !whole || (!replied && !s_json)) {
            bad++;
            tell(&told, n, rc, err.msg);
        }
        if (rs_request(e, "ping", NULL, 20000, NULL, &err) != RS_OK) {
            tap_diag("allocation %ld: %s", n, err.msg);
            bad++;
            break;
        }
    }
    tap_ok(failed >= 10 && bad == 0, "answering%s: %d failures, each stream ends and the engine goes on", s_json ? ", JSON" : "", failed);
}

int main(void)
{
    char args[4096], *reply = NULL;
    struct rs_error err;
    long live = atomic_load(&s_live);
    s_client = true;
    json_set_alloc_funcs(json_alloc, __wrap_free);
    starting();
    struct rs_engine *e;
    const struct rs_local_params params = {.workers = 2, .json_failures = json_failures};
    if (rs_engine_local(&params, &e, &err) != RS_OK) {
        tap_ok(false, "engine: %s", err.msg);
        return tap_done();
    }
    snprintf(args, sizeof args, "{\"path\":\"%s\",\"ranks\":2}", tap_source("models/tiny-glm5-q4.gguf"));
    request(e, "open", args, "close", 40);

    /* With a model open, a failing open leaves that one open. */
    json_decref(ec_call(e, "open", "%s", args));
    arm(30);
    enum rs_result rc = rs_request(e, "open", args, 60000, NULL, &err);
    atomic_store(&s_left, -1);
    tap_ok(clear_line(rc, &err), "open over an open model: %s", err.msg);
    tap_ok(rs_request(e, "info", NULL, 60000, &reply, &err) == RS_OK && strstr(reply, "\"Tiny GLM-5\"") != NULL, "the model that was open is still open");
    free(reply);
    for (int json = 0; json < 2; json++) {
        s_json = json;
        request(e, "set", "{\"ranks\":4}", NULL, 1);
        answering(e);
        static const char *const LOOKS[][2] = {{"info", "{}"}, {"stats", "{}"}, {"load", "{}"}, {"ledger", "{}"}, {"allreduce", "{}"}, {"patch.list", "{}"},
                                               {"program", "{\"site\":\"blk.1.*\"}"}, {"health", "{}"}, {"hparams.check", "{}"}, {"audit", "{}"},
                                               {"probe.list", "{}"}, {"encode", "{\"text\":\"Once upon a time\"}"}, {"lens", "{\"text\":\"Once\"}"}};
        for (size_t i = 0; json && i < sizeof LOOKS / sizeof LOOKS[0]; i++)
            looking(e, LOOKS[i][0], LOOKS[i][1]);
        if (json)
            request(e, "open", args, "close", 40);
    }
    s_json = false;
    json_decref(ec_call(e, "open", "%s", args));

    struct ec_answer a[2];
    json_t *ask[2];
    for (int i = 0; i < 2; i++)
        ask[i] = json_pack("{s:s,s:b,s:i}", "text", "[gMASK]<sop><|user|>What is the capital of France?<|assistant|></think>", "special", 1, "max_tokens", 20);
    ec_answers(e, 2, ask, a);
    tap_eq_str(json_string_value(json_object_get(a[1].done, "text")), "The capital of France is Paris.", "after all that the answer is right");
    ec_answers_free(2, a);
    rs_engine_close(e);
    tap_eq_int(atomic_load(&s_live) - live, 0, "after closing nothing is left allocated");
    return tap_done();
}
