/* The engine on GPUs where it differs from one on the CPU: loads that are given up, one rank of a model alone, types that few files have, ways to
 * reduce, a rank that stays away. Skipped where there is no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_backend.h"
#include "tests/engine_client.h"
#include "tests/tap.h"

static const char IDS[] = "[5,80,7,200,31,64]";

static float *forward(struct rs_engine *e, size_t *n)
{
    float *x;
    json_decref(ec_blob(e, "forward", json_pack("{s:o,s:s}", "ids", json_loads(IDS, 0, NULL), "logits", "all"), &x, n));
    return x;
}

/* The next event of a type, or of any if that is RS_EVENT_COUNT; false after a minute without one. */
static bool next_event(struct rs_engine *e, enum rs_event_type type, struct rs_event *ev)
{
    struct rs_error err;
    while (rs_next(e, 60000, ev, &err) == RS_OK)
        if (ev->type == type || type == RS_EVENT_COUNT)
            return true;
    return false;
}

static void test_cancel(struct rs_engine *e)
{
    struct rs_error err;
    struct rs_event ev;
    uint32_t load, cancel;
    size_t n, m;
    json_decref(ec_call(e, "open", "{\"backend\":\"cuda\",\"path\":\"%s\",\"ranks\":2,\"gpus\":1}", tap_source("models/tiny-glm5-q4.gguf")));
    float *before = forward(e, &n);
    rs_send(e, "open", "{\"backend\":\"cuda\",\"synthetic\":\"glm-4.7-flash\",\"layers\":8}", &load, &err);
    rs_send(e, "load.cancel", NULL, &cancel, &err);
    enum rs_result loaded = RS_OK, cancelled = RS_EINTERNAL;
    char why[200] = "";
    while (cancelled == RS_EINTERNAL && next_event(e, RS_EVENT_REPLY, &ev)) {
        if (ev.id == load) {
            loaded = ev.status;
            snprintf(why, sizeof why, "%s", ev.json);
        }
        if (ev.id == cancel)
            cancelled = ev.status;
    }
    tap_eq_int(loaded, RS_ECANCELLED, "a load onto a GPU is given up: %s", why);
    tap_eq_int(cancelled, RS_OK, "and the wish for that answered");
    float *after = forward(e, &m);
    tap_ok(n == m && memcmp(before, after, n * sizeof *after) == 0, "what was open computes the same as before");
    free(before);
    free(after);
}

/* One rank of several, alone: prompts and answers in both modes come to their end, also where none of the prompt's tokens is in the rank's part. */
static void test_rank(struct rs_engine *e)
{
    static const char *const WHAT[] = {"\"glm-5\",\"layers\":4,\"rank\":\"3/8\"", "\"glm-4.7-flash\",\"layers\":6,\"rank\":\"0/4\"", "\"deepseek-v2-lite\",\"rank\":\"1/4\""};
    enum { PROMPT = 300, ANSWER = 8 };
    for (size_t i = 0; i < sizeof WHAT / sizeof WHAT[0]; i++) {
        json_decref(ec_call(e, "open", "{\"backend\":\"cuda\",\"synthetic\":%s}", WHAT[i]));
        for (int graph = 1; graph >= 0; graph--) {
            json_t *args = json_pack("{s:[],s:i,s:b,s:f}", "ids", "max_tokens", ANSWER, "ignore_eos", 1, "temp", 0.0);
            struct ec_answer a = {.n = 0};
            for (int k = 0; k < PROMPT; k++)
                json_array_append_new(json_object_get(args, "ids"), json_integer(k * 31 % 500 + 7 * graph));
            json_decref(ec_call(e, "set", "{\"mode\":\"%s\"}", graph ? "graph" : "eager"));
            ec_answers(e, 1, &args, &a);
            tap_ok(a.n == ANSWER && strcmp(json_string_value(json_object_get(a.done, "stop")), "length") == 0, "%s, %s: %u tokens after %d", WHAT[i],
                   graph ? "graph" : "eager", a.n, PROMPT);
            tap_eq_int(json_integer_value(json_object_get(json_object_get(a.done, "health"), "constant_steps")), 0, "and it says something of each");
            ec_answers_free(1, &a);
        }
    }
}

/* Files with experts of each of these types, on the CPU and on a GPU. */
static void test_types(struct rs_engine *e)
{
    static const char *const TYPES[] = {"IQ2_XXS", "IQ3_S", "IQ1_M", "TQ1_0", "MXFP4", "Q5_0"};
    char path[600];
    snprintf(path, sizeof path, "%s", tap_scratch("types.gguf"));
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        float *x[2];
        size_t n[2];
        json_decref(ec_call(e, "synth", "{\"arch\":\"deepseek-v2-lite\",\"layers\":2,\"experts\":6,\"vocab\":512,\"out\":\"%s\",\"recipe\":\"*exps* %s\"}", path, TYPES[i]));
        for (int gpu = 0; gpu < 2; gpu++) {
            json_decref(ec_call(e, "open", "{\"backend\":\"%s\",\"path\":\"%s\",\"patches\":{\"matmul\":\"f32\",\"cache\":\"f32\"}}", gpu ? "cuda" : "cpu", path));
            x[gpu] = forward(e, &n[gpu]);
        }
        const double far = n[0] == n[1] ? ec_rel_f(x[1], x[0], n[0]) : INFINITY;
        tap_ok(far <= 1e-3, "experts of %s: %.1e from the CPU's logits", TYPES[i], far);
        free(x[0]);
        free(x[1]);
    }
    remove(path);
}

static void forward_rows(struct rs_engine *e, int rows, float **x, size_t *n)
{
    json_t *ids = json_array();
    for (int i = 0; i < rows; i++)
        json_array_append_new(ids, json_integer(5 + i * 37 % 900));
    json_decref(ec_blob(e, "forward", json_pack("{s:o,s:s}", "ids", ids, "logits", "all"), x, n));
}

static bool same(const float *x, size_t n, const float *y, size_t m)
{
    return n == m && n != 0 && memcmp(x, y, n * sizeof *x) == 0;
}

/* One payload and length: every way in both modes. One shot and two give the same bits, and so does what was chosen by measuring. Pairs of pairs round
 * otherwise, but for a bf16 payload, whose sums of a few ranks are exact in f32 as good as always. */
static void test_ways(struct rs_engine *e, bool bf16, int rows)
{
    static const char *const WAYS[] = {"flat", "two-shot", "auto", "tree"};
    float *x[4], *graph;
    size_t n[4], m;
    char name[80];
    snprintf(name, sizeof name, "%d rows, payload %s", rows, bf16 ? "bf16" : "f32");
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"allreduce.dtype\",\"impl\":\"%s\"}", bf16 ? "bf16" : "f32"));
    for (int i = 0; i < 4; i++) {
        json_decref(ec_call(e, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"%s\"}", WAYS[i]));
        json_decref(ec_call(e, "set", "{\"mode\":\"eager\"}"));
        forward_rows(e, rows, &x[i], &n[i]);
        json_decref(ec_call(e, "set", "{\"mode\":\"graph\"}"));
        for (int again = 0; again < 2; again++) { /* captured, and replayed */
            forward_rows(e, rows, &graph, &m);
            tap_ok(same(x[i], n[i], graph, m), "%s: %s, graph as eager, %s", name, WAYS[i], again ? "again" : "at first");
            free(graph);
        }
        if (i == 1 || i == 2)
            tap_ok(same(x[i], n[i], x[0], n[0]), "%s: %s has the bits of flat", name, WAYS[i]);
    }
    const double far = n[3] == n[0] ? ec_rel_f(x[3], x[0], n[0]) : INFINITY;
    tap_ok((bf16 || far > 0) && far <= 6e-2, "%s: tree rounds otherwise, %.1e away", name, far);
    for (int i = 0; i < 4; i++)
        free(x[i]);
}

/* Four answers at once, over thousands of reduces that follow each other as in use: the same words in one shot and in two. */
static void test_answers(struct rs_engine *e)
{
    enum { AT_ONCE = 4, TOKENS = 400 };
    static struct ec_answer got[2][AT_ONCE];
    json_decref(ec_call(e, "set", "{\"mode\":\"graph\"}"));
    for (int way = 0; way < 2; way++) {
        json_t *args[AT_ONCE];
        json_decref(ec_call(e, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"%s\"}", way == 0 ? "flat" : "two-shot"));
        for (int i = 0; i < AT_ONCE; i++)
            args[i] = json_pack("{s:[i,i,i,i],s:i,s:f,s:b}", "ids", 5, 80 + 7 * i, 200, 31 + i, "max_tokens", TOKENS, "temp", 0.0, "ignore_eos", 1);
        ec_answers(e, AT_ONCE, args, got[way]);
    }
    for (int i = 0; i < AT_ONCE; i++)
        tap_ok(got[0][i].n == TOKENS && got[1][i].n == TOKENS && memcmp(got[0][i].ids, got[1][i].ids, TOKENS * sizeof got[0][i].ids[0]) == 0,
               "answer %d: %u tokens in two shots as in one", i, got[1][i].n);
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"flat\"}"));
    ec_answers_free(AT_ONCE, got[0]);
    ec_answers_free(AT_ONCE, got[1]);
}

/* 130 rows are three launches in one shot. */
static void test_reduces(struct rs_engine *e)
{
    json_decref(ec_call(e, "open", "{\"backend\":\"cuda\",\"path\":\"%s\",\"ranks\":4,\"gpus\":2,\"numerics\":\"invariant\",\"batch_tokens\":256}",
                        tap_source("models/tiny-glm5-q4.gguf")));
    for (int i = 0; i < 4; i++)
        test_ways(e, i % 2 != 0, i / 2 != 0 ? 130 : 3);
    test_answers(e);
    json_t *a = ec_call(e, "allreduce", "{}"), *choice = json_object_get(a, "auto"), *sweep = json_object_get(choice, "sweep");
    size_t good = 0;
    for (size_t i = 0; i < json_array_size(sweep); i++) {
        const json_t *s = json_array_get(sweep, i);
        good += json_number_value(json_object_get(s, "flat_us")) > 0 && json_number_value(json_object_get(s, "two_shot_us")) > 0;
        tap_diag("%s, %d rows: flat %.1f us, two-shot %.1f us", json_string_value(json_object_get(s, "dtype")), (int)json_integer_value(json_object_get(s, "rows")),
                 json_number_value(json_object_get(s, "flat_us")), json_number_value(json_object_get(s, "two_shot_us")));
    }
    tap_ok(good >= 8 && good == json_array_size(sweep), "%zu sizes were measured when the model was opened", good);
    tap_diag("that took %.1f ms", json_number_value(json_object_get(choice, "took_ms")));
    json_decref(a);
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"two-shot\",\"site\":\"blk.1.*\"}"));
    json_t *l = ec_call(e, "ledger", "{}"), *op;
    size_t i, sites = 0, two = 0;
    json_array_foreach(json_object_get(l, "ops"), i, op) {
        sites += strcmp(json_string_value(json_object_get(op, "kind")), "allreduce") == 0;
        two += strcmp(json_string_value(json_object_get(op, "ran_as")), "two-shot") == 0;
    }
    tap_ok(sites > 2 && two == 2, "the ledger says which of %zu reduces go in two shots: %zu", sites, two);
    json_decref(l);
    json_decref(ec_call(e, "patch.reset", "{}"));
}

/* On one GPU there is nothing to choose, and two shots are nothing. */
static void test_alone(struct rs_engine *e)
{
    char msg[512];
    json_decref(ec_call(e, "open", "{\"backend\":\"cuda\",\"path\":\"%s\",\"ranks\":2,\"gpus\":1}", tap_source("models/tiny-glm5-q4.gguf")));
    const enum rs_result rc = ec_fails(e, msg, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"two-shot\"}");
    tap_ok(rc == RS_EUNSUPPORTED && strstr(msg, "takes several GPUs") != NULL, "one GPU: %s", msg);
    json_t *a = ec_call(e, "allreduce", "{}"), *l;
    tap_ok(json_is_null(json_object_get(a, "auto")), "and nothing is measured");
    json_decref(a);
    float *x;
    size_t n;
    forward_rows(e, 3, &x, &n);
    free(x);
    l = ec_call(e, "ledger", "{\"limit\":2}");
    json_t *op = json_array_get(json_object_get(l, "ops"), 1);
    tap_ok(strcmp(json_string_value(json_object_get(op, "impl")), "auto") == 0 && strcmp(json_string_value(json_object_get(op, "ran_as")), "flat") == 0,
           "%s: auto, which is flat", json_string_value(json_object_get(op, "site")));
    json_decref(l);
}

/* A rank that stays away: the engine says where, and a cancelled answer ends the wait long before the ranks give up. */
static void test_stuck(struct rs_engine *e, const char *way)
{
    struct rs_error err;
    struct rs_event ev;
    uint32_t id;
    char where[300] = "", cancel[60], why[300] = "";
    json_t *ids = json_loads(IDS, 0, NULL), *args = json_pack("{s:O,s:i,s:f}", "ids", ids, "max_tokens", 4, "temp", 0.0);
    struct ec_answer before = {.n = 0}, after = {.n = 0};
    json_decref(ec_call(e, "open", "{\"backend\":\"cuda\",\"path\":\"%s\",\"ranks\":2,\"gpus\":2,\"numerics\":\"invariant\"}", tap_source("models/tiny-glm5-q4.gguf")));
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"allreduce\",\"impl\":\"%s\"}", way));
    ec_answers(e, 1, &args, &before);
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"delay\",\"impl\":\"1:3000000\",\"site\":\"blk.2.attn.allreduce\"}"));
    json_t *s = ec_call(e, "submit", "{\"ids\":%s,\"max_tokens\":4,\"temp\":0}", IDS);
    snprintf(cancel, sizeof cancel, "{\"stream\":%d}", (int)json_integer_value(json_object_get(s, "stream")));
    json_decref(s);
    bool sent = false;
    while (why[0] == '\0' && next_event(e, RS_EVENT_COUNT, &ev)) {
        if (ev.type == RS_EVENT_LOG && strstr(ev.json, "waits in") != NULL && !sent) {
            snprintf(where, sizeof where, "%s", ev.json);
            sent = rs_send(e, "cancel", cancel, &id, &err) == RS_OK;
        }
        if (ev.type == RS_EVENT_DONE)
            snprintf(why, sizeof why, "%s", strstr(ev.json, "\"error\":") != NULL ? strstr(ev.json, "\"error\":") : "no error");
    }
    tap_ok(strstr(where, "rank 0 (GPU 0) waits in blk.2.attn.allreduce for rank 1 (GPU 1), which has not left blk.2.attn.out for 1 s") != NULL, "%s: it is told: %s", way, where);
    tap_ok(strstr(why, "the step was given up") != NULL && strstr(why, "blk.2.attn.allreduce") != NULL, "and given up: %s", why);
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"delay\",\"impl\":\"off\",\"site\":\"blk.2.attn.allreduce\"}"));
    args = json_pack("{s:o,s:i,s:f}", "ids", ids, "max_tokens", 4, "temp", 0.0);
    ec_answers(e, 1, &args, &after);
    tap_ok(after.n == 4 && memcmp(before.ids, after.ids, 4 * sizeof before.ids[0]) == 0, "the next answer is as ever");
    json_decref(ec_call(e, "patch.reset", "{}"));
    ec_answers_free(1, &before);
    ec_answers_free(1, &after);
}

int main(void)
{
    const char *why;
    const int gpus = backend_cuda_devices(&why);
    if (gpus == 0)
        tap_skip_all("no GPU: %s", why);
    struct rs_engine *e = ec_open();
    test_cancel(e);
    test_rank(e);
    test_types(e);
    test_alone(e);
    if (gpus < 2) {
        tap_skip(56, "one GPU: nobody waits for another one");
    } else {
        test_reduces(e);
        test_stuck(e, "flat");
        test_stuck(e, "two-shot");
    }
    rs_engine_close(e);
    return tap_done();
}
