/* Many requests as an operator sees them: what runs, what waits and why, stopping one, a second client that hands in requests for others. */
#include "config.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define NAME "requests"
#define LONG "'text':'Once upon a time','max_tokens':1900,'ignore_eos':true,'temp':0"

static uint32_t submit(struct rs_engine *e)
{
    json_t *r = talk(e, "submit", "{" LONG "}");
    uint32_t id = (uint32_t)talk_num(r, "stream");
    json_decref(r);
    return id;
}

static _Noreturn void bail(const char *what)
{
    tap_ok(false, "%s", what);
    exit(1);
}

/* The entry of a stream in "requests"; borrowed from *all, or NULL. */
static json_t *entry(struct rs_engine *e, uint32_t stream, json_t **all)
{
    *all = talk(e, "requests", "{}");
    size_t i;
    json_t *q;
    json_array_foreach(talk_at(*all, "requests"), i, q)
        if (talk_num(q, "stream") == stream)
            return q;
    return NULL;
}

static bool is(struct rs_engine *e, uint32_t stream, const char *phase, const char *why)
{
    json_t *all, *q = entry(e, stream, &all);
    bool good = q != NULL && strcmp(talk_str(q, "phase"), phase) == 0 && strcmp(talk_str(q, "why"), why) == 0;
    if (!good) {
        char *text = json_dumps(all, JSON_COMPACT);
        tap_diag("%u: %s", stream, text);
        free(text);
    }
    json_decref(all);
    return good;
}

static void wait_token(struct rs_engine *e, uint32_t stream)
{
    struct rs_event ev;
    struct rs_error err;
    while (rs_next(e, 60000, &ev, &err) == RS_OK)
        if (ev.type == RS_EVENT_TOKEN && ev.id == stream)
            return;
}

/* How a stream ended. */
static void ended(struct rs_engine *e, uint32_t stream, const char *stop, const char *name)
{
    struct rs_event ev;
    struct rs_error err;
    char got[32] = "never";
    while (rs_next(e, 60000, &ev, &err) == RS_OK)
        if (ev.type == RS_EVENT_DONE && ev.id == stream) {
            json_t *o = json_loads(ev.json, 0, NULL);
            snprintf(got, sizeof got, "%s", talk_str(o, "stop"));
            json_decref(o);
            break;
        }
    tap_eq_str(got, stop, "%s", name);
}

static double held(struct rs_engine *e)
{
    json_t *l = talk(e, "load", "{}");
    double n = talk_num(l, "cache.held");
    json_decref(l);
    return n;
}

static void test_waiting(struct rs_engine *e)
{
    char behind[64];
    uint32_t a = submit(e), b = submit(e), c = submit(e), d = submit(e);
    wait_token(e, b);
    json_t *all, *q = entry(e, a, &all);
    tap_ok(q != NULL && strcmp(talk_str(q, "phase"), "decode") == 0 && json_is_null(talk_at(q, "why")) && talk_num(q, "tokens") >= 1,
           "one that runs: phase, tokens, nothing that it waits for");
    tap_eq_str(talk_str(q, "client"), "test", "and whose it is");
    tap_ok(talk_num(all, "running") == 2 && talk_num(all, "waiting") == 2, "as many run as may, the others wait");
    json_decref(all);
    tap_ok(is(e, c, "waiting", "2 sequences run, as many as allowed"), "the first that waits says for what");
    snprintf(behind, sizeof behind, "behind stream %u, which came earlier", c);
    tap_ok(is(e, d, "waiting", behind), "the next one says behind whom");
    json_decref(talk(e, "cancel", "{'stream':%u}", c));
    ended(e, c, "cancelled", "one that waits can be stopped");
    json_decref(talk(e, "cancel", "{'stream':%u}", a));
    ended(e, a, "cancelled", "and one that runs");
    wait_token(e, d);
    tap_ok(is(e, d, "decode", ""), "the next one takes its place");
    json_decref(talk(e, "cancel", "{'stream':%u}", b));
    json_decref(talk(e, "cancel", "{'stream':%u}", d));
    ended(e, d, "cancelled", "the others too");
    tap_eq_int((long long)held(e), 0, "and no block is held");
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_held(struct rs_engine *e)
{
    json_decref(talk(e, "stats", "{'reset':true}"));
    json_t *r = talk(e, "break.add", "{'site':'blk.2.attn.mla'}");
    const double begin = seconds();
    uint32_t id = (uint32_t)talk_num(r, "id"), a = submit(e);
    char why[64];
    json_decref(r);
    r = talk_wait(e, RS_EVENT_STOPPED);
    tap_ok(r != NULL, "a breakpoint holds the step");
    json_decref(r);
    const double stood = seconds();
    usleep(500000);
    snprintf(why, sizeof why, "the engine is stopped (break %u)", id);
    tap_ok(is(e, a, "prompt", why), "the request says why it waits");
    tap_ok(held(e) > 0, "the counters can be read");
    json_decref(talk(e, "cancel", "{'stream':%u}", a));
    tap_ok(is(e, a, "prompt", why), "it can be stopped, but stays in its step");
    json_decref(talk(e, "break.del", "{}"));
    const double held_s = seconds() - stood;
    json_decref(talk(e, "continue", "{}"));
    ended(e, a, "cancelled", "and ends with it");
    const double rest = seconds() - begin - held_s; /* what can have been computing; percentiles are rounded up by an eighth */
    r = talk(e, "stats", "{}");
    tap_ok(talk_num(r, "prompt.eager.steps") == 1 && talk_num(r, "prompt.eager.p99_us") <= 1.2e6 * rest, "what a person waited is no time of the step: %.0f us, held for %.0f",
           talk_num(r, "prompt.eager.p99_us"), held_s * 1e6);
    json_decref(r);
    tap_eq_int((long long)held(e), 0, "no block is held");
}

/* ---- a second client ---------------------------------------------------------------------------------------------------------------------- */

static void *engine_main(void *arg)
{
    const struct rs_local_params p = {.workers = 1};
    struct rs_error err;
    rs_engine_serve(NAME, &p, *(int *)arg, &err);
    return NULL;
}

static struct rs_engine *reach(const char *hello)
{
    struct rs_engine *e = NULL;
    struct rs_error err;
    if (rs_engine_connect(NAME, &e, &err) != RS_OK)
        bail(err.msg);
    json_decref(talk(e, "hello", "{'protocol':%d,%s}", RS_PROTOCOL, hello));
    return e;
}

static void test_serving(struct rs_engine *e)
{
    const char *msg;
    struct rs_engine *looks = reach("'client':'looks'"), *serves = reach("'client':'serves','serve':true");
    tap_eq_int(talk_error(looks, &msg, "submit", "{" LONG "}"), RS_ESTATE, "a client that is not in control cannot submit");
    uint32_t mine = submit(e), theirs = submit(serves);
    wait_token(serves, theirs);
    tap_ok(true, "unless it said that it serves others");
    json_t *all, *q = entry(e, theirs, &all);
    tap_eq_str(talk_str(q, "client"), "serves", "whose requests are marked");
    json_decref(all);
    tap_eq_int(talk_error(serves, &msg, "set", "{'mode':'eager'}"), RS_ESTATE, "more than that it may not");
    tap_eq_int(talk_error(serves, &msg, "cancel", "{'stream':%u}", mine), RS_ESTATE, "nor stop what is another's");
    json_decref(talk(serves, "cancel", "{'stream':%u}", theirs));
    ended(serves, theirs, "cancelled", "but its own");
    json_decref(talk(e, "break.add", "{'site':'blk.2.attn.mla'}"));
    json_decref(talk_wait(e, RS_EVENT_STOPPED));
    tap_eq_int(talk_error(e, &msg, "submit", "{" LONG "}"), RS_ESTATE, "whoever holds the engine is told that it stands");
    theirs = submit(serves);
    tap_ok(is(serves, theirs, "waiting", "the engine is stopped (break 1)"), "requests of others wait, and say for what");
    json_decref(talk(e, "break.del", "{}"));
    json_decref(talk(e, "continue", "{}"));
    wait_token(serves, theirs);
    tap_ok(is(serves, theirs, "decode", ""), "then they run");
    rs_engine_close(serves);
    while (q != NULL) {
        q = entry(e, theirs, &all);
        json_decref(all);
    }
    tap_ok(is(e, mine, "decode", ""), "when such a client leaves, its requests end, and only those");
    json_decref(talk(e, "cancel", "{'stream':%u}", mine));
    rs_engine_close(looks);
}

/* Wait until a client is told of control: 1 it has it, 0 it lost it, -1 nothing came. */
static int told(struct rs_engine *e)
{
    int has = -1;
    for (json_t *o; has < 0 && (o = talk_wait(e, RS_EVENT_LOG)) != NULL; json_decref(o))
        if (json_is_boolean(talk_at(o, "in_control")))
            has = json_is_true(talk_at(o, "in_control"));
    return has;
}

/* Who has control according to a client: its own answer first. */
static bool control(struct rs_engine *e, const char *args, bool mine, const char *who, int waiting)
{
    json_t *r = talk(e, "control", "%s", args);
    bool good = json_is_true(talk_at(r, "in_control")) == mine && strcmp(talk_str(r, "client"), who) == 0 && talk_num(r, "waiting") == waiting;
    if (!good) {
        char *text = json_dumps(r, JSON_COMPACT);
        tap_diag("%s", text);
        free(text);
    }
    json_decref(r);
    return good;
}

/* Control goes to who has waited longest, also while a step is held, and who gets or loses it is told. */
static void test_control(struct rs_engine *a)
{
    const char *msg;
    struct rs_engine *b = reach("'client':'b','control':true"), *c = reach("'client':'c','control':true"), *looks = reach("'client':'looks'");
    tap_ok(control(b, "{}", false, "test", 2), "control: two wait");
    tap_eq_int(talk_error(b, &msg, "set", "{'mode':'eager'}"), RS_ESTATE, "who waits may not change anything");
    tap_ok(strstr(msg, "another client (test) is in control") != NULL, "and is told who may: %s", msg);
    tap_ok(control(a, "{'give':true}", false, "b", 1) && told(b) == 1, "given up, it goes to who waited longest, who is told");
    tap_eq_int(talk_error(a, &msg, "set", "{'mode':'eager'}"), RS_ESTATE, "who gave it up has it no more");
    json_decref(talk(b, "break.add", "{'site':'blk.2.attn.mla'}"));
    uint32_t stream = submit(b);
    json_decref(talk_wait(b, RS_EVENT_STOPPED));
    rs_engine_close(b);
    tap_eq_int(told(c), 1, "the next one has it when that one leaves while it holds a step");
    json_decref(talk(c, "break.del", "{}"));
    json_decref(talk(c, "continue", "{}"));
    json_decref(talk(c, "cancel", "{'stream':%u}", stream));
    tap_ok(control(c, "{}", true, "c", 0), "and can let the step go on");
    tap_ok(control(a, "{'take':true}", true, "test", 1) && told(c) == 0, "taken, it is lost by who had it, who is told and waits");
    tap_eq_int(talk_error(a, &msg, "control", "{'take':true,'give':true}"), RS_EUSAGE, "one or the other");
    rs_engine_close(c);
    int waiting = 1;
    for (int i = 0; i < 1000 && waiting > 0; i++) { /* the engine learns of it when it looks at its sockets next */
        json_t *r = talk(looks, "control", "{}");
        waiting = (int)talk_num(r, "waiting");
        json_decref(r);
    }
    tap_eq_int(waiting, 0, "who left waits no more");
    tap_ok(control(a, "{'give':true}", false, "", 0), "who only looks does not get it");
    json_decref(talk(looks, "set", "{'mode':'eager'}"));
    tap_ok(control(a, "{'take':true}", true, "test", 0), "control that nobody has can be taken");
    rs_engine_close(looks);
}

/* Megabytes. */
static long resident(void)
{
    long all = 0, here = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%ld %ld", &all, &here) != 2)
        here = 0;
    if (f != NULL)
        fclose(f);
    return here * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

/* 200,000 tokens of 8,064 bytes are 1.6 GB. */
static void test_memory(void)
{
    int32_t tok[8];
    size_t n;
    const long before = resident();
    struct rs_engine *e = talk_open(MODEL, "'ranks':1,'max_seqs':256,'ctx':200000");
    json_decref(talk_generate(e, "'text':'Hello'", 8, tok, 8, &n));
    const long after = resident();
#ifdef RS_SANITIZER
    tap_skip(1, "memory as it is used: a sanitizer touches all of it (%ld MB, then %ld)", before, after);
#else
    tap_ok(before > 0 && after - before < 400, "a cache takes memory as it is used: %ld MB, then %ld with room for 1,613 more", before, after);
#endif
    rs_engine_close(e);
}

int main(void)
{
    int fd[2];
    char byte;
    pthread_t thread;
    struct rs_engine *e = talk_open(MODEL, "'ranks':1,'max_seqs':2");
    test_waiting(e);
    test_held(e);
    rs_engine_close(e);
    test_memory();
    if (pipe(fd) != 0 || pthread_create(&thread, NULL, engine_main, &fd[1]) != 0)
        bail("no thread");
    if (read(fd[0], &byte, 1) != 1)
        bail("no engine");
    e = reach("'client':'test','control':true");
    json_decref(talk(e, "open", "{'path':'%s','ranks':1}", tap_source(MODEL)));
    test_serving(e);
    test_control(e);
    json_decref(talk(e, "stop", "{}"));
    rs_engine_close(e);
    pthread_join(thread, NULL);
    close(fd[0]);
    return tap_done();
}
