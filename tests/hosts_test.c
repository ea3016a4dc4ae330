/* Ranks on several hosts, all of them this machine: the same bits as in one process, whatever is switched on the way; what cannot be is refused by
 * name; a host that fails is named, and nothing hangs or stays behind. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/share.h"
#include "tests/engine_client.h"
#include "tests/hosts_rig.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define IDS "\"ids\":[1,5,9,33,7,100,12,45,3,99,201,77,5,5,61,8,19,250,31,44]"

static struct rs_engine *must_open(const char *hosts)
{
    struct rs_engine *e;
    struct rs_error err;
    if (hosts_try(hosts, hosts_launcher(""), 0, &e, &err) == RS_OK)
        return e;
    printf("Bail out! %s: %s\n", hosts, err.msg);
    exit(1);
}

static void load(struct rs_engine *e, int ranks, const char *more)
{
    json_decref(ec_call(e, "patch.reset", "{}"));
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":%d,\"ctx\":2048%s}", tap_source(MODEL), ranks, more));
}

/* Logits of all positions and the states between layers. */
static float *forward(struct rs_engine *e, size_t *n)
{
    float *x;
    json_decref(ec_blob(e, "forward", json_loads("{" IDS ",\"logits\":\"all\",\"layers\":true}", 0, NULL), &x, n));
    return x;
}

static bool same_forward(struct rs_engine *a, struct rs_engine *b)
{
    size_t n, m;
    float *x = forward(a, &n), *y = forward(b, &m);
    bool same = n == m && n > 1000 && memcmp(x, y, n * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

enum { STREAMS = 3 };

/* Several answers at once, some of them sampled. */
static bool same_answers(struct rs_engine *a, struct rs_engine *b)
{
    struct ec_answer x[2][STREAMS];
    struct rs_engine *const both[2] = {a, b};
    bool same = true;
    for (int k = 0; k < 2; k++) {
        json_t *args[STREAMS];
        for (int i = 0; i < STREAMS; i++)
            args[i] = json_pack("{s:[i,i,i,i,i],s:f,s:i,s:i,s:b}", "ids", 1, 40 + i, 9, 17 * i, 5, "temp", i == 0 ? 0.0 : 0.8, "seed", 7 + i, "max_tokens",
                                30 + 10 * i, "ignore_eos", 1);
        ec_answers(both[k], STREAMS, args, x[k]);
    }
    for (int i = 0; i < STREAMS; i++)
        same &= x[0][i].n > 20 && x[0][i].n == x[1][i].n && memcmp(x[0][i].ids, x[1][i].ids, x[0][i].n * sizeof x[0][i].ids[0]) == 0;
    ec_answers_free(STREAMS, x[0]);
    ec_answers_free(STREAMS, x[1]);
    return same;
}

/* The same change on both. */
static void both(struct rs_engine *a, struct rs_engine *b, const char *method, const char *args)
{
    json_decref(ec_call(a, method, "%s", args));
    json_decref(ec_call(b, method, "%s", args));
}

static void same_bits(struct rs_engine *one)
{
    static const struct { const char *hosts; int ranks; const char *more; } T[] = {
        {"localhost,localhost", 2, ""},
        {"localhost,localhost", 5, ",\"mode\":\"eager\""},
        {"localhost,localhost,localhost", 8, ",\"spec\":0,\"patches\":{\"allreduce\":\"tree\"}"},
        {"localhost,localhost,localhost", 3, ",\"patches\":{\"allreduce.dtype\":\"bf16\",\"moe.split\":\"ep\"}"},
    };
    for (size_t i = 0; i < sizeof T / sizeof T[0]; i++) {
        struct rs_engine *many = must_open(T[i].hosts);
        load(one, T[i].ranks, T[i].more);
        load(many, T[i].ranks, T[i].more);
        tap_ok(same_forward(one, many), "%d ranks on %s%s: the bits of one process", T[i].ranks, T[i].hosts, T[i].more);
        tap_ok(same_answers(one, many), "%d ranks on %s%s: the answers of one process", T[i].ranks, T[i].hosts, T[i].more);
        rs_engine_close(many);
    }
}

/* Times of ranks on all hosts, with their hosts; all memory is counted. */
static void observed(struct rs_engine *e, size_t n_ranks)
{
    json_t *ar = ec_call(e, "allreduce", "{}"), *ranks = json_object_get(ar, "ranks"), *info = ec_call(e, "info", "{}"), *hosts = json_object_get(info, "hosts");
    bool counted = json_array_size(ranks) == n_ranks, placed = counted;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        json_t *x = json_array_get(ranks, r), *host = json_object_get(x, "host");
        counted &= json_integer_value(json_object_get(x, "count")) > 0 && json_number_value(json_object_get(x, "mean_us")) > 0;
        placed &= host != NULL && strcmp(json_string_value(host), "localhost") == 0;
    }
    tap_ok(counted && placed, "all-reduces of every rank are timed, and each has its host");
    json_t *a = json_array_get(hosts, 0), *b = json_array_get(hosts, 1);
    tap_ok(json_array_size(hosts) == 2 && json_integer_value(json_object_get(a, "pid")) == getpid() &&
               json_integer_value(json_object_get(b, "pid")) != getpid() &&
               json_integer_value(json_array_get(json_object_get(b, "ranks"), 1)) == (json_int_t)n_ranks,
           "info lists hosts, processes and ranks");
    struct rs_snapshot s;
    bool weighed = rs_snapshot_read(e, &s) && s.n_ranks == n_ranks;
    for (size_t r = 0; r < n_ranks && weighed; r++)
        weighed = s.rank[r].bytes_weights > 0 && s.rank[r].bytes_cache > 0 && s.rank[r].busy_us > 0;
    tap_ok(weighed, "the snapshot has memory and times of every rank");
    json_decref(ar);
    json_decref(info);
}

/* A conversation that is taken back and goes on otherwise. */
static json_t *rewound(struct rs_engine *e)
{
    json_t *session = ec_call(e, "session.new", "{}");
    struct ec_answer a;
    json_t *args = json_pack("{s:[i,i,i,i,i],s:O,s:i,s:b}", "ids", 1, 41, 9, 17, 5, "session", json_object_get(session, "session"), "max_tokens", 40, "ignore_eos", 1);
    ec_answers(e, 1, &args, &a);
    ec_answers_free(1, &a);
    json_t *back = ec_call(e, "rewind", "{\"session\":%d,\"n\":21}", (int)json_integer_value(json_object_get(session, "session")));
    json_t *ids = json_copy(json_object_get(back, "ids"));
    json_array_append_new(ids, json_integer(88));
    args = json_pack("{s:o,s:O,s:i,s:b}", "ids", ids, "session", json_object_get(session, "session"), "max_tokens", 30, "ignore_eos", 1);
    ec_answers(e, 1, &args, &a);
    json_t *out = json_pack("{s:s,s:O}", "text", json_string_value(json_object_get(a.done, "text")), "cached", json_object_get(a.done, "cached_tokens"));
    ec_answers_free(1, &a);
    json_decref(back);
    json_decref(session);
    return out;
}

static void switches(struct rs_engine *one)
{
    static const struct { const char *method, *args, *what; } T[] = {
        {"set", "{\"mode\":\"eager\"}", "eager"},
        {"patch.set", "{\"slot\":\"mla\",\"impl\":\"absorbed\"}", "a patch"},
        {"patch.set", "{\"slot\":\"matmul\",\"impl\":\"f32\",\"site\":\"blk.1.*\"}", "a patch at some sites"},
        {"set", "{\"mode\":\"graph\"}", "graphs"},
        {"set", "{\"ranks\":6}", "more ranks"},
        {"set", "{\"spec\":3}", "speculation"},
        {"patch.set", "{\"slot\":\"delay\",\"impl\":\"4:300\"}", "a rank elsewhere that is late"},
        {"patch.revert", "{}", "its end"},
        {"patch.revert", "{}", "one generation back"},
        {"patch.set", "{\"slot\":\"cache\",\"impl\":\"f32\"}", "another cache"},
        {"set", "{\"numerics\":\"fast\",\"spec\":0}", "fast numerics"},
    };
    struct rs_engine *many = must_open("localhost,localhost");
    load(one, 4, "");
    load(many, 4, "");
    for (size_t i = 0; i < sizeof T / sizeof T[0]; i++) {
        both(one, many, T[i].method, T[i].args);
        tap_ok(same_forward(one, many) && same_answers(one, many), "the same after %s", T[i].what);
    }
    observed(many, 6);
    json_decref(ec_call(one, "set", "{\"numerics\":\"invariant\"}"));
    json_decref(ec_call(many, "set", "{\"numerics\":\"invariant\"}"));
    json_t *x = rewound(one), *y = rewound(many);
    tap_ok(json_equal(x, y) && json_integer_value(json_object_get(x, "cached")) > 0, "the same after a rewind, from the cache");
    json_decref(x);
    json_decref(y);
    rs_engine_close(many);
}

static void refusals(void)
{
    static const struct { const char *method, *args; } T[] = {
        {"probe.tap", "{\"site\":\"*.mla\"}"}, {"break.add", "{\"site\":\"*.mla\"}"}, {"diff", "{\"a\":{},\"b\":{}," IDS "}"},
        {"patch.load", "{\"path\":\"x.c\"}"},   {"patch.live", "{\"impl\":\"x\"}"}, {"weights.load", "{\"tensors\":\"*\",\"path\":\"x\"}"},
    };
    struct rs_engine *e = must_open("localhost,localhost");
    char msg[512];
    load(e, 2, "");
    for (size_t i = 0; i < sizeof T / sizeof T[0]; i++) {
        enum rs_result rc = ec_fails(e, msg, T[i].method, "%s", T[i].args);
        tap_ok(rc == RS_EUNSUPPORTED && strstr(msg, "several hosts") != NULL, "%s is refused, with the reason (%s)", T[i].method, msg);
    }
    enum rs_result rc = ec_fails(e, msg, "set", "{\"ranks\":1}");
    tap_ok(rc == RS_EUSAGE && strstr(msg, "2 hosts") != NULL, "fewer ranks than hosts are refused (%s)", msg);
    rc = ec_fails(e, msg, "open", "{\"path\":\"/nowhere/at/all.gguf\"}");
    tap_ok(rc == RS_EIO || rc == RS_ENOTFOUND, "a file that is not there is an error (%s)", msg);
    size_t n;
    float *x = forward(e, &n);
    tap_ok(n > 1000, "and what was open still runs");
    free(x);
    rs_engine_close(e);
}

/* ---- failures ---- */

static void bad_start(const char *hosts, const char *launch, const char *part, const char *what)
{
    struct rs_engine *e;
    struct rs_error err = {.msg = ""};
    enum rs_result rc = hosts_try(hosts, launch, 0, &e, &err);
    tap_ok(rc != RS_OK && strstr(err.msg, part) != NULL, "%s (%s)", what, err.msg);
    if (rc == RS_OK)
        rs_engine_close(e);
}

/* As another host's process of another version would: knock, and say what the answer was. */
static int knock(char **argv)
{
    struct share_hello hello = {.version = "0.0.1", .sizes = share_sizes(), .index = 1, .isa = UINT32_MAX};
    const char *where = NULL;
    char host[LINK_ADDRESS], hex[2 * LINK_SECRET + 2];
    unsigned index, port;
    int fd;
    struct link l;
    struct link_msg m;
    for (char **a = argv; *a != NULL; a++)
        where = strcmp(*a, "--follow") == 0 ? a[1] : where;
    if (where == NULL || sscanf(where, "%u@%100[^:]:%u", &index, host, &port) != 3 || fgets(hex, sizeof hex, stdin) == NULL)
        return 2;
    for (size_t i = 0; i < LINK_SECRET; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        hello.secret[i] = (char)strtoul(digits, NULL, 16);
    }
    if (link_connect(host, (uint16_t)port, 5000, &fd, NULL) != RS_OK || link_open(&l, fd, NULL) != RS_OK ||
        link_send(&l, SHARE_HELLO, 0, RS_OK, &hello, sizeof hello, NULL) != RS_OK || link_next(&l, 5000, &m, NULL) != RS_OK)
        return 3;
    return m.type == SHARE_ANSWER && m.status == RS_ESTATE ? 0 : 4;
}

static void starts(void)
{
    char words[4400];
    snprintf(words, sizeof words, "%s/tests/hosts_test knock {args}", getenv("abs_builddir") != NULL ? getenv("abs_builddir") : ".");
    bad_start("localhost,localhost", words, "host localhost runs rankscope 0.0.1", "a process of another version");
    bad_start("localhost,hostb", "false {host} {command}", "hostb", "a launcher that fails");
    bad_start("localhost,hostb", "/no/such/launcher {host} {command}", "hostb", "a launcher that is not there");
    bad_start("localhost,hostb", "sh -c false", "{command}", "a launcher without a command");
    bad_start("localhost", hosts_launcher(""), "two or more", "one host");
    bad_start("localhost,-oProxyCommand=x", hosts_launcher(""), "no list of host names", "a host that would be an option");
    bad_start("192.0.2.1,localhost", hosts_launcher(""), "not this machine", "a first host that is another machine");
    tap_eq_int(hosts_left(), 0, "nothing is left of them");
}

static void idle_loss(void)
{
    struct rs_engine *e = must_open("localhost,localhost");
    struct rs_event ev;
    pid_t pid[8] = {0};
    bool told = false, over = false;
    load(e, 2, "");
    if (hosts_followers(pid) == 1)
        kill(pid[0], SIGKILL);
    while (!over && rs_next(e, 20000, &ev, NULL) == RS_OK) {
        told |= ev.type == RS_EVENT_LOG && strstr(ev.json, "(rank 1) is gone") != NULL;
        over = ev.type == RS_EVENT_LOST;
    }
    tap_ok(told && over, "a host that dies while nothing runs is noticed");
    rs_engine_close(e);
}

static void other_model(void)
{
    char path[2][4200], dir[4096], more[4200], msg[512], here[4096];
    struct rs_engine *e;
    struct rs_error err;
    snprintf(dir, sizeof dir, "%s", tap_scratch("b"));
    mkdir(dir, 0700);
    snprintf(path[0], sizeof path[0], "%s", tap_scratch("model.gguf"));
    snprintf(path[1], sizeof path[1], "%s/model.gguf", dir);
    snprintf(more, sizeof more, "-C %s", dir);
    if (getcwd(here, sizeof here) == NULL || symlink(tap_source(MODEL), path[0]) != 0)
        return;
    *strrchr(path[0], '/') = '\0';
    if (chdir(path[0]) != 0 || hosts_try("localhost,localhost", hosts_launcher(more), 0, &e, &err) != RS_OK)
        return;
    enum rs_result rc = ec_fails(e, msg, "open", "{\"path\":\"model.gguf\",\"ranks\":2}");
    tap_ok(rc != RS_OK && strstr(msg, "host localhost (rank 1)") != NULL, "a model that another host does not have (%s)", msg);
    if (symlink(tap_source("tests/golden/fixture-flash.gguf"), path[1]) == 0) {
        rc = ec_fails(e, msg, "open", "{\"path\":\"model.gguf\",\"ranks\":2}");
        tap_ok(rc == RS_EFORMAT && strstr(msg, "another model") != NULL, "another model on another host (%s)", msg);
        unlink(path[1]);
    }
    if (symlink(tap_source(MODEL), path[1]) == 0) {
        json_decref(ec_call(e, "open", "{\"path\":\"model.gguf\",\"ranks\":2}"));
        tap_ok(true, "and then the right one");
    }
    rs_engine_close(e);
    if (chdir(here) != 0)
        tap_diag("cannot go back to %s", here);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "knock") == 0)
        return knock(argv);
    struct rs_engine *one = ec_open();
    same_bits(one);
    switches(one);
    rs_engine_close(one);
    refusals();
    starts();
    other_model();
    hosts_signalled(&(struct hosts_loss){SIGKILL, "killed", "is gone", "localhost,localhost,localhost", MODEL, ",\"ranks\":6", NULL});
    hosts_signalled(&(struct hosts_loss){SIGSTOP, "stopped", "silent", "localhost,localhost,localhost", MODEL, ",\"ranks\":6", NULL});
    idle_loss();
    tap_eq_int(hosts_left(), 0, "no process is left");
    return tap_done();
}
