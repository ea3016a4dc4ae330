/* Verdicts: what each sign gives on made-up answers, and the shipped model, healthy and with the bug of the story. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/verdict.h"
#include "tests/engine_client.h"
#include "tests/tap.h"

enum { QUESTIONS = 200 };

static const struct baseline s_baseline = {.there = true, .answers = 100, .entropy_p95 = 0.4, .entropy_high = 0.7, .gap_low = 7};
static const struct baseline s_none = {.there = false};

/* n tokens of one distribution; tok gives their ids, or NULL for all different. */
static void feed(struct health *h, uint32_t n, const int32_t *tok, float entropy, float gap)
{
    int32_t all[512];
    struct sample_info info = {.entropy = entropy, .varentropy = entropy, .logprob = -entropy, .top_gap = gap};
    health_reset(h);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = tok != NULL ? tok[i] : (int32_t)i;
        health_token(h, all[i], all, i, i, &info, true);
    }
}

static void expect(const struct health *h, const struct baseline *b, enum verdict want, const char *word, const char *name)
{
    char reason[256];
    enum verdict got = verdict_of(h, h->n, b, 2048, reason);
    if (!tap_ok(got == want && strstr(reason, word) != NULL, "%s", name))
        tap_diag("%s: %s", got != VERDICT_NONE ? verdict_name(got) : "none", reason);
}

static void signs(void)
{
    struct health h;
    struct sample_info nan = {.nonfinite = 3}, constant = {.constant = 1, .top_gap = 0}, rare = {.entropy = 0.1f, .varentropy = 0.5f, .logprob = -4, .top_gap = 12};
    int32_t tok[512];
    health_reset(&h);
    expect(&h, &s_baseline, VERDICT_NONE, "", "no tokens: no verdict");
    feed(&h, 20, NULL, 0.1f, 12);
    expect(&h, &s_baseline, VERDICT_OK, "", "sure of itself: ok");
    expect(&h, &s_none, VERDICT_OK, "no baseline", "ok without a baseline says so");
    feed(&h, 20, NULL, 1.5f, 4);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "entropy 1.50 nats", "unsure: garbage");
    expect(&h, &s_none, VERDICT_OK, "no baseline", "the same without a baseline: not judged");
    feed(&h, 7, NULL, 1.5f, 4);
    expect(&h, &s_baseline, VERDICT_SUSPECT, "entropy", "seven tokens are too few for garbage");
    feed(&h, 20, NULL, 0.95f, 8);
    expect(&h, &s_baseline, VERDICT_SUSPECT, "entropy", "somewhat unsure: suspect");
    feed(&h, 20, NULL, 6, 0.2f);
    expect(&h, &s_none, VERDICT_GARBAGE, "general rule", "pure chance is garbage without a baseline too");
    feed(&h, 20, NULL, 0.1f, 12);
    health_token(&h, 1, tok, 0, 0, &nan, true);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "not finite", "logits that are not finite");
    feed(&h, 20, NULL, 0.1f, 12);
    health_token(&h, 1, tok, 0, 0, &constant, true);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "equal", "logits that are all equal");

    for (int i = 0; i < 100; i++)
        tok[i] = i < 20 ? i : 7;
    feed(&h, 100, tok, 0.1f, 12);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "the same token 80 times", "one token 80 times");
    feed(&h, 45, tok, 0.1f, 12);
    expect(&h, &s_baseline, VERDICT_SUSPECT, "the same token 25 times", "one token 25 times");
    feed(&h, 30, tok, 0.1f, 12);
    expect(&h, &s_baseline, VERDICT_OK, "", "one token 10 times");
    for (int i = 0; i < 200; i++)
        tok[i] = i < 50 ? i : i % 13;
    feed(&h, 200, tok, 0.1f, 12);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "the same 13 tokens over and over", "13 tokens over and over");
    feed(&h, 50 + 3 * 13, tok, 0.1f, 12);
    expect(&h, &s_baseline, VERDICT_OK, "", "13 tokens three times");

    feed(&h, 20, NULL, 0.1f, 12);
    for (int i = 0; i < 10; i++)
        health_text(&h, " \n", 2);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "white space", "white space only");
    health_text(&h, "The capital of France is Paris.", 31);
    expect(&h, &s_baseline, VERDICT_OK, "", "text after white space");
    health_text(&h, "\xEF\xBF", 2);
    health_text(&h, "\xBD", 1);
    expect(&h, &s_baseline, VERDICT_SUSPECT, "no UTF-8: 1 in", "one bad byte, its U+FFFD in two pieces");
    for (int i = 0; i < 5; i++)
        health_text(&h, "\xEF\xBF\xBD", 3);
    expect(&h, &s_baseline, VERDICT_GARBAGE, "no UTF-8: 6 in", "many bad bytes");

    feed(&h, 20, NULL, 0.1f, 12);
    for (int i = 0; i < 20; i++)
        health_token(&h, 100 + i, tok, 0, 0, &rare, true);
    expect(&h, &s_baseline, VERDICT_SUSPECT, "too unlikely", "a sampler that takes what is unlikely");
    health_token(&h, 1, tok, 0, 0, &rare, false);
    expect(&h, &s_baseline, VERDICT_OK, "", "penalties and biases are allowed to");
}

static char *s_question[QUESTIONS];

static bool read_questions(void)
{
    FILE *f = fopen(tap_source("tests/health_questions.txt"), "re");
    char line[512];
    int n = 0;
    while (f != NULL && n < QUESTIONS && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        s_question[n++] = strdup(line);
    }
    if (f != NULL)
        fclose(f);
    return n == QUESTIONS;
}

/* How often each verdict came for answers of all lengths and for those of 8 tokens and more. */
struct tally {
    int all[4], long_ones[4], n_long;
};

static int verdict_number(const json_t *done)
{
    const char *s = json_string_value(json_object_get(done, "verdict"));
    for (int v = VERDICT_OK; s != NULL && v <= VERDICT_GARBAGE; v++)
        if (strcmp(s, verdict_name((enum verdict)v)) == 0)
            return v;
    return VERDICT_NONE;
}

static struct tally ask(struct rs_engine *e, bool think, double temp, enum verdict unusual, int n_show)
{
    static struct ec_answer a[QUESTIONS];
    json_t *args[QUESTIONS];
    struct tally t = {.n_long = 0};
    for (int i = 0; i < QUESTIONS; i++)
        args[i] = json_pack("{s:[{s:s,s:b},{s:s},{s:s,s:b}],s:b,s:f,s:i,s:i}", "segments", "text", "[gMASK]<sop><|user|>", "special", 1, "text", s_question[i],
                            "text", think ? "<|assistant|><think>" : "<|assistant|></think>", "special", 1, "thinking", think, "temp", temp, "seed", i,
                            "max_tokens", 64);
    ec_answers(e, QUESTIONS, args, a);
    for (int i = 0; i < QUESTIONS; i++) {
        int v = verdict_number(a[i].done);
        t.all[v]++;
        if (json_integer_value(json_object_get(a[i].done, "tokens")) >= VERDICT_SHORT) {
            t.long_ones[v]++;
            t.n_long++;
        }
        if (v == (int)unusual && n_show-- > 0)
            tap_diag("%s -> %s: %s", s_question[i], json_string_value(json_object_get(a[i].done, "text")), json_string_value(json_object_get(a[i].done, "reason")));
    }
    ec_answers_free(QUESTIONS, a);
    return t;
}

static void healthy(struct rs_engine *e, bool think, double temp)
{
    struct tally t = ask(e, think, temp, VERDICT_SUSPECT, 3);
    tap_diag("healthy: %d ok, %d suspect, %d garbage, %d none", t.all[VERDICT_OK], t.all[VERDICT_SUSPECT], t.all[VERDICT_GARBAGE], t.all[VERDICT_NONE]);
    tap_ok(QUESTIONS - t.all[VERDICT_OK] <= 2, "healthy, temperature %.0f%s: at most 2 of 200 are not ok", temp, think ? ", thinking" : "");
}

static void broken(struct rs_engine *e, bool think, double temp, int *n_long, int *n_garbage)
{
    struct tally t = ask(e, think, temp, VERDICT_OK, 3);
    tap_diag("broken: %d ok, %d suspect, %d garbage; of 8 tokens or more %d, garbage %d", t.all[VERDICT_OK], t.all[VERDICT_SUSPECT], t.all[VERDICT_GARBAGE],
             t.n_long, t.long_ones[VERDICT_GARBAGE]);
    tap_eq_int(t.all[VERDICT_SUSPECT] + t.all[VERDICT_GARBAGE], QUESTIONS, "slot_order=file, temperature %.0f%s: none of 200 is ok", temp, think ? ", thinking" : "");
    *n_long += t.n_long;
    *n_garbage += t.long_ones[VERDICT_GARBAGE];
}

static void baselines(struct rs_engine *e, const char *hash)
{
    char msg[512];
    tap_eq_int(ec_fails(e, msg, "health.baseline", "{\"baseline\":{\"version\":1}}"), RS_EFORMAT, "a baseline without figures is refused");
    tap_eq_int(ec_fails(e, msg, "health.baseline",
                        "{\"baseline\":{\"version\":1,\"answers\":9,\"model\":{\"hash\":\"x\"},\"entropy_mean\":{\"p95\":1,\"p99.5\":2},\"gap_mean\":{\"p0.5\":3}}}"),
               RS_ESTATE, "a baseline of another model is refused");
    json_t *o = ec_call(e, "health.baseline",
                        "{\"baseline\":{\"version\":1,\"answers\":9,\"model\":{\"hash\":\"%s\"},\"entropy_mean\":{\"p95\":1,\"p99.5\":2},\"gap_mean\":{\"p0.5\":3}}}", hash);
    tap_near(json_number_value(json_object_get(json_object_get(o, "baseline"), "gap_low")), 3, 0, "a baseline of this model is taken");
    json_decref(o);
}

int main(void)
{
    int n_long = 0, n_garbage = 0;
    signs();
    if (!tap_ok(read_questions(), "200 questions"))
        return tap_done();
    struct rs_engine *e = ec_open();
    json_t *info = ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":2}", tap_source("models/tiny-glm5-q4.gguf"));
    healthy(e, false, 0);
    healthy(e, false, 1);
    if (getenv("RANKSCOPE_LONG") != NULL) {
        healthy(e, true, 0);
        healthy(e, true, 1);
    }
    json_decref(ec_call(e, "patch.set", "{\"slot\":\"slot_order\",\"impl\":\"file\"}"));
    broken(e, false, 0, &n_long, &n_garbage);
    broken(e, false, 1, &n_long, &n_garbage);
    if (getenv("RANKSCOPE_LONG") != NULL) {
        broken(e, true, 0, &n_long, &n_garbage);
        broken(e, true, 1, &n_long, &n_garbage);
    }
    tap_ok(n_long >= 100 && n_garbage * 100 >= n_long * 95, "slot_order=file: %d of %d answers of 8 tokens or more are garbage", n_garbage, n_long);

    json_t *o = ec_call(e, "info", "{}"), *h = ec_call(e, "health", "{}");
    tap_ok(json_is_string(json_object_get(json_object_get(o, "state"), "verdict")), "the state has the last verdict");
    tap_ok(json_number_value(json_object_get(json_object_get(h, "health"), "entropy_mean")) > 0.5, "health has the numbers");
    json_decref(o);
    json_decref(h);
    baselines(e, json_string_value(json_object_get(json_object_get(info, "model"), "hash")));
    json_decref(info);
    rs_engine_close(e);
    for (int i = 0; i < QUESTIONS; i++)
        free(s_question[i]);
    return tap_done();
}
