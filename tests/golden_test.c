/* The shipped model and the fixtures against the references in tests/golden, through the public calls: ranks, modes, number formats. The tolerances
 * are those of docs/design.md section 7. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine_client.h"
#include "tests/tap.h"

static const int RANKS[] = {2, 8, 1, 3, 4};

static int n_ranks(void)
{
    return tap_short() ? 2 : 5;
}

static json_t *load(const char *name)
{
    json_t *o = json_load_file(tap_source(name), 0, NULL);
    if (o == NULL)
        tap_diag("cannot read %s", name);
    return o;
}

static void open_model(struct rs_engine *e, const char *file, int ranks, const char *mode, const char *patches)
{
    json_decref(ec_call(e, "patch.reset", "{}")); /* what "open" is given comes on top of what is set */
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":%d,\"mode\":\"%s\",\"ctx\":2048,\"patches\":%s}", tap_source(file), ranks, mode, patches));
}

static json_t *forward_args(json_t *ids, const char *logits, bool layers)
{
    return json_pack("{s:O,s:s,s:b}", "ids", ids, "logits", logits, "layers", layers);
}

/* Greedy answers of all prompts at once; how many equal the reference, token by token. */
static size_t right_answers(struct rs_engine *e, json_t *prompts)
{
    size_t n = json_array_size(prompts), right = 0;
    json_t *args[32];
    struct ec_answer a[32];
    for (size_t i = 0; i < n; i++)
        args[i] = json_pack("{s:O,s:f,s:i}", "ids", json_object_get(json_array_get(prompts, i), "ids"), "temp", 0.0, "max_tokens", 100);
    ec_answers(e, n, args, a);
    for (size_t i = 0; i < n; i++) {
        json_t *want = json_object_get(json_array_get(prompts, i), "greedy_ids");
        size_t m = json_array_size(want) - 1; /* the last is the stop token, which is not part of an answer */
        bool same = a[i].n == m && strcmp(json_string_value(json_object_get(a[i].done, "stop")), "eos") == 0;
        for (size_t k = 0; k < m && same; k++)
            same = a[i].ids[k] == json_integer_value(json_array_get(want, k));
        if (!same)
            tap_diag("prompt %zu: got \"%s\"", i, json_string_value(json_object_get(a[i].done, "text")));
        right += same;
    }
    ec_answers_free(n, a);
    return right;
}

static void greedy(struct rs_engine *e, json_t *gold)
{
    static const char *const FORMS[] = {"{\"matmul\":\"int8\"}", "{\"matmul\":\"f32\"}"};
    json_t *prompts = json_object_get(gold, "prompts");
    long long n = (long long)json_array_size(prompts);
    for (int f = 0; f < 2; f++)
        for (int r = 0; r < n_ranks(); r++) {
            open_model(e, "models/tiny-glm5-q4.gguf", RANKS[r], "graph", FORMS[f]);
            for (int m = 0; m < 2; m++) {
                json_decref(ec_call(e, "set", "{\"mode\":\"%s\"}", m == 0 ? "graph" : "eager"));
                tap_eq_int((long long)right_answers(e, prompts), n, "greedy text: %d ranks, %s, %s", RANKS[r], m == 0 ? "graph" : "eager", f == 0 ? "int8" : "f32");
            }
        }
}

/* Worst relative L2 of logits and states over all prompts. */
static void distances(struct rs_engine *e, json_t *prompts, double *logits, double *layers)
{
    *logits = *layers = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        json_t *p = json_array_get(prompts, i), *states = json_object_get(p, "layer_last");
        float *x;
        size_t n;
        json_t *o = ec_blob(e, "forward", forward_args(json_object_get(p, "ids"), "last", true), &x, &n);
        const float *l = x + json_integer_value(json_object_get(json_object_get(o, "layers"), "offset"));
        long long width = json_integer_value(json_object_get(json_object_get(o, "layers"), "width"));
        *logits = fmax(*logits, ec_rel(x, json_object_get(p, "last_logits")));
        for (size_t k = 0; k < json_array_size(states); k++)
            *layers = fmax(*layers, ec_rel(l + (long long)k * width, json_array_get(states, k)));
        json_decref(o);
        free(x);
    }
}

static void tolerances(struct rs_engine *e, json_t *gold)
{
    static const struct { const char *name, *patches; double limit; } T[] = {
        {"f32 everything", "{\"matmul\":\"f32\",\"cache\":\"f32\"}", 1e-4},
        {"f16 cache", "{\"matmul\":\"f32\",\"cache\":\"f16\"}", 1e-3},
        {"int8", "{\"matmul\":\"int8\",\"cache\":\"f16\"}", 6e-2},
    };
    json_t *prompts = json_object_get(gold, "prompts"), *ids = json_object_get(gold, "long_ids");
    double want = json_number_value(json_object_get(gold, "long_nll"));
    for (int t = 0; t < 3; t++)
        for (int r = 0; r < 2; r++) {
            double logits, layers;
            open_model(e, "models/tiny-glm5-q4.gguf", r == 0 ? 1 : 8, "graph", T[t].patches);
            distances(e, prompts, &logits, &layers);
            tap_ok(logits <= T[t].limit, "%s, %d ranks: logits within %g (%.2e)", T[t].name, r == 0 ? 1 : 8, T[t].limit, logits);
            if (t < 2) /* quantised activations move single states by more than they move logits */
                tap_ok(layers <= T[t].limit, "%s, %d ranks: states within %g (%.2e)", T[t].name, r == 0 ? 1 : 8, T[t].limit, layers);
            float *x;
            size_t n;
            json_t *o = ec_blob(e, "forward", forward_args(ids, "none", false), &x, &n);
            double nll = json_number_value(json_object_get(o, "nll"));
            tap_ok(fabs(nll / want - 1) <= 1e-3, "%s, %d ranks: long text within 0.1 %% (%.5f, reference %.5f)", T[t].name, r == 0 ? 1 : 8, nll, want);
            json_decref(o);
            free(x);
        }
}

/* A fixture: logits rows 0, 24 and 47, states, next tokens where the reference is sure. */
static void fixture(struct rs_engine *e, const char *file, json_t *gold, const char *name, const char *split)
{
    char patches[128];
    snprintf(patches, sizeof patches, "{\"matmul\":\"f32\",\"cache\":\"f32\",\"moe.split\":\"%s\"}", split);
    for (int r = 0; r < n_ranks(); r++)
        for (int m = 0; m < 2; m++) {
            float *x;
            size_t n;
            double worst = 0;
            json_t *row;
            const char *key;
            open_model(e, file, RANKS[r], m == 0 ? "graph" : "eager", patches);
            json_t *o = ec_blob(e, "forward", forward_args(json_object_get(gold, "ids"), "all", true), &x, &n), *states = json_object_get(gold, "layer_last");
            long long vocab = json_integer_value(json_object_get(o, "vocab")), width = json_integer_value(json_object_get(json_object_get(o, "layers"), "width"));
            const float *l = x + json_integer_value(json_object_get(json_object_get(o, "layers"), "offset"));
            json_object_foreach(json_object_get(gold, "logits"), key, row)
                worst = fmax(worst, ec_rel(x + atoi(key) * vocab, row));
            for (size_t k = 0; k < json_array_size(states); k++)
                worst = fmax(worst, ec_rel(l + (long long)k * width, json_array_get(states, k)));
            tap_ok(worst <= 1e-4, "%s, %d ranks, %s, split %s: within 1e-4 (%.2e)", name, RANKS[r], m == 0 ? "graph" : "eager", split, worst);
            json_decref(o);
            free(x);
        }
}

static void fixtures(struct rs_engine *e)
{
    static const char *const NAMES[] = {"flash", "v3", "v2lite"};
    json_t *gold = load("tests/golden/golden-variants.json"), *kq = load("tests/golden/golden-kquant.json");
    for (int i = 0; i < 3; i++) {
        char file[64];
        snprintf(file, sizeof file, "tests/golden/fixture-%s.gguf", NAMES[i]);
        fixture(e, file, json_object_get(gold, NAMES[i]), NAMES[i], "auto");
    }
    fixture(e, "tests/golden/fixture-kquant.gguf", json_object_get(kq, "kquant"), "kquant", "tp");
    fixture(e, "tests/golden/fixture-kquant.gguf", json_object_get(kq, "kquant"), "kquant", "ep");
    json_decref(gold);
    json_decref(kq);
}

/* Eager and graph: the same bits, in every number format. */
static void same_bits(struct rs_engine *e, json_t *gold)
{
    const char *const FORMS[] = {"{\"matmul\":\"int8\"}", "{\"matmul\":\"f32\"}",
        "{\"mla\":\"absorbed\",\"allreduce\":\"tree\",\"allreduce.dtype\":\"bf16\"}"};
    json_t *prompts = json_object_get(gold, "prompts");
    json_t *ids = json_object_get(json_array_get(prompts, json_array_size(prompts) - 1), "ids");
    for (int f = 0; f < 3; f++)
        for (int r = 0; r < n_ranks(); r++) {
            float *a, *b;
            size_t n, m;
            open_model(e, "models/tiny-glm5-q4.gguf", RANKS[r], "graph", FORMS[f]);
            json_decref(ec_blob(e, "forward", forward_args(ids, "all", false), &a, &n));
            json_decref(ec_call(e, "set", "{\"mode\":\"eager\"}"));
            json_decref(ec_blob(e, "forward", forward_args(ids, "all", false), &b, &m));
            tap_ok(n == m && memcmp(a, b, n * sizeof *a) == 0, "graph equals eager to the bit: %d ranks, %s", RANKS[r], FORMS[f]);
            free(a);
            free(b);
        }
}

int main(void)
{
    struct rs_engine *e = ec_open();
    json_t *gold = load("tests/golden/golden-tiny.json"), *prompts = json_object_get(gold, "prompts");
    while (tap_short() && json_array_size(prompts) > 3)
        json_array_remove(prompts, 0);
    greedy(e, gold);
    tolerances(e, gold);
    same_bits(e, gold);
    fixtures(e);
    json_decref(gold);
    rs_engine_close(e);
    return tap_done();
}
