/* engine/spec.c: with drafts and without, the text is the same. What drafts save is printed; it depends on the machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "tests/engine_client.h"
#include "tests/tap.h"

enum { MAX_PROMPTS = 32 };

struct setup {
    struct rs_engine *e;
    json_t *golden, *prompt[MAX_PROMPTS];
    size_t n;
};

static struct ec_answer plain[MAX_PROMPTS], got[MAX_PROMPTS];

static void open_model(const struct setup *t, int ranks, const char *mode)
{
    json_decref(ec_call(t->e, "open", "{\"path\":\"%s\",\"ranks\":%d,\"mode\":\"%s\"}", tap_source("models/tiny-glm5-q4.gguf"), ranks, mode));
}

/* Through "off", so that figures start anew. */
static void set_drafts(const struct setup *t, int n)
{
    json_decref(ec_call(t->e, "set", "{\"spec\":0}"));
    json_decref(ec_call(t->e, "set", "{\"spec\":%d}", n));
}

static json_t *figures(const struct setup *t)
{
    json_t *o = ec_call(t->e, "stats", "{}"), *s = json_incref(json_object_get(o, "spec"));
    json_decref(o);
    return s;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void answer(const struct setup *t, size_t first, size_t n, const char *options, struct ec_answer *out)
{
    json_t *args[MAX_PROMPTS];
    for (size_t i = 0; i < n; i++) {
        args[i] = json_loads(options, 0, NULL);
        json_object_set(args[i], "ids", t->prompt[first + i]);
    }
    ec_answers_free(n, out);
    memset(out, 0, n * sizeof *out);
    ec_answers(t->e, n, args, out);
}

static int differences(const struct ec_answer *a, const struct ec_answer *b, size_t n)
{
    int d = 0;
    for (size_t i = 0; i < n; i++)
        d += a[i].n == 0 || a[i].n != b[i].n || memcmp(a[i].ids, b[i].ids, a[i].n * sizeof a[i].ids[0]) != 0;
    return d;
}

static const char GREEDY[] = "{\"temp\":0,\"max_tokens\":256}";

/* All prompts one after the other; returns tokens per second of decoding. */
static double one_by_one(const struct setup *t, struct ec_answer *out)
{
    double ms = 0, tokens = 0;
    for (size_t i = 0; i < t->n; i++) {
        answer(t, i, 1, GREEDY, &out[i]);
        ms += number(out[i].done, "decode_ms");
        tokens += number(out[i].done, "tokens") - 1;
    }
    return tokens / ms * 1e3;
}

/* The model stops at a token that is not delivered; the reference lists it. */
static void test_golden(const struct setup *t, int drafts)
{
    int wrong = 0;
    for (size_t i = 0; i < t->n; i++) {
        json_t *want = json_object_get(json_array_get(json_object_get(t->golden, "prompts"), i), "greedy_ids");
        bool same = json_array_size(want) == got[i].n + 1;
        for (uint32_t k = 0; k < got[i].n && same; k++)
            same = json_integer_value(json_array_get(want, k)) == got[i].ids[k];
        wrong += !same;
    }
    tap_eq_int(wrong, 0, "%d drafts: greedy text of all golden prompts", drafts);
}

static void test_same_text(const struct setup *t, int ranks, const char *mode)
{
    static const int counts[] = {1, 3, 8};
    open_model(t, ranks, mode);
    double base = one_by_one(t, plain);
    tap_diag("%d ranks, %s, no drafts: %.0f tokens/s", ranks, mode, base);
    for (int i = 0; i < 3; i++) {
        set_drafts(t, counts[i]);
        double rate = one_by_one(t, got);
        tap_eq_int(differences(plain, got, t->n), 0, "%d ranks, %s, %d drafts: the text without", ranks, mode, counts[i]);
        if (ranks == 1)
            test_golden(t, counts[i]);
        json_t *s = figures(t);
        tap_diag("%d drafts: %.0f tokens/s (%.2f times), acceptance %.3f, %.2f tokens a step, %.3f ms a target step, %.3f ms drafting", counts[i], rate,
                 rate / base, number(s, "acceptance"), number(s, "tokens_per_step"), number(s, "target_ms_per_step"), number(s, "draft_ms_per_step"));
        tap_ok(number(s, "accepted") > 0 && number(s, "tokens_per_step") > 1.3, "%d ranks, %s, %d drafts: some are right", ranks, mode, counts[i]);
        json_decref(s);
        answer(t, 0, t->n, GREEDY, got);
        tap_eq_int(differences(plain, got, t->n), 0, "%d ranks, %s, %d drafts: all prompts together", ranks, mode, counts[i]);
    }
}

static void test_sampling(const struct setup *t)
{
    const char *hot = "{\"temp\":1.5,\"repeat_penalty\":1.1,\"top_p\":0.9,\"seed\":7,\"max_tokens\":60}";
    int told = 0;
    open_model(t, 1, "graph");
    answer(t, 0, t->n, hot, plain);
    set_drafts(t, 2);
    answer(t, 0, t->n, hot, got);
    tap_eq_int(differences(plain, got, t->n), 0, "with a temperature the same seed gives the same text");
    for (size_t i = 0; i < t->n; i++)
        told += number(json_object_get(got[i].done, "spec"), "drafted") > 0;
    tap_eq_int(told, (int)t->n, "every answer tells its figures");
    answer(t, 0, 3, "{\"temp\":0,\"max_tokens\":5,\"ignore_eos\":true}", got);
    tap_ok(got[0].n == 5 && got[1].n == 5 && got[2].n == 5, "max_tokens counts tokens, not steps");
}

/* Token probabilities: the same with drafts and without; each token's own is the largest, for the choice is greedy. */
static void test_logprobs(const struct setup *t)
{
    const char *options = "{\"temp\":0,\"max_tokens\":40,\"logprobs\":3}";
    open_model(t, 1, "graph");
    answer(t, 0, t->n, options, plain);
    set_drafts(t, 3);
    answer(t, 0, t->n, options, got);
    int wrong = 0, tokens = 0;
    for (size_t i = 0; i < t->n; i++) {
        json_t *a = json_object_get(plain[i].done, "logprobs"), *b = json_object_get(got[i].done, "logprobs");
        wrong += !json_equal(a, b) || json_array_size(a) != plain[i].n;
        for (size_t k = 0; k < json_array_size(a); k++, tokens++) {
            const json_t *p = json_array_get(a, k), *top = json_object_get(p, "top"), *best = json_array_get(top, 0);
            double sum = 0;
            for (size_t j = 0; j < json_array_size(top); j++)
                sum += exp(number(json_array_get(top, j), "logprob"));
            wrong += json_array_size(top) != 3 || sum > 1 + 1e-5 || number(p, "logprob") > 0 || number(best, "logprob") != number(p, "logprob") ||
                     json_integer_value(json_object_get(best, "id")) != json_integer_value(json_object_get(p, "id")) ||
                     json_integer_value(json_object_get(p, "id")) != plain[i].ids[k];
        }
    }
    tap_ok(wrong == 0 && tokens > 4 * (int)t->n, "log-probabilities of %d tokens and of the three likeliest, with drafts and without", tokens);
    answer(t, 0, 1, GREEDY, got);
    tap_ok(json_is_null(json_object_get(got[0].done, "logprobs")), "none without being asked for");
}

/* A copy of the shipped model with nothing but zeros in one tensor. */
static const char *blank_copy(const char *tensor)
{
    static char path[512], buf[1 << 16];
    struct gguf *g;
    struct rs_error err;
    size_t n;
    snprintf(path, sizeof path, "%s", tap_scratch("blank.gguf"));
    FILE *in = fopen(tap_source("models/tiny-glm5-q4.gguf"), "rb"), *out = fopen(path, "wb");
    while ((n = fread(buf, 1, sizeof buf, in)) > 0)
        fwrite(buf, 1, n, out);
    fclose(in);
    fclose(out);
    if (gguf_open(path, &g, &err) != RS_OK)
        return "";
    const struct gguf_tensor *t = gguf_find_tensor(g, tensor);
    out = fopen(path, "r+b");
    fseek(out, (long)t->offset, SEEK_SET);
    for (uint64_t i = 0; i < t->bytes; i++)
        fputc(0, out);
    fclose(out);
    gguf_close(g);
    return path;
}

/* Both readings of the hidden state, and a NextN block that computes nonsense: the text stays, acceptance falls, the alarm rises. */
static void test_readings(const struct setup *t)
{
    double accepted[2];
    open_model(t, 1, "graph");
    one_by_one(t, plain);
    for (int raw = 0; raw < 2; raw++) {
        json_decref(ec_call(t->e, "patch.set", "{\"slot\":\"nextn.hidden\",\"impl\":\"%s\"}", raw ? "raw" : "normed"));
        set_drafts(t, 3);
        one_by_one(t, got);
        tap_eq_int(differences(plain, got, t->n), 0, "hidden state %s: the same text", raw ? "raw" : "normed");
        json_t *s = figures(t);
        accepted[raw] = number(s, "accepted");
        char *places = json_dumps(json_object_get(s, "acceptance_by_place"), JSON_REAL_PRECISION(3));
        tap_diag("hidden state %s: acceptance by place %s", raw ? "raw" : "normed", places);
        free(places);
        json_decref(s);
    }
    tap_ok(accepted[0] >= accepted[1], "the default reading accepts more");
    json_decref(ec_call(t->e, "patch.reset", "{}"));
    set_drafts(t, 1);
    one_by_one(t, got);
    json_t *s = figures(t);
    tap_ok(json_is_false(json_object_get(s, "alarm")), "no alarm while drafts are right");
    json_decref(s);
    json_decref(ec_call(t->e, "weights.load", "{\"tensors\":\"blk.6.nextn.eh_proj*\",\"path\":\"%s\"}", blank_copy("blk.6.nextn.eh_proj.weight")));
    one_by_one(t, got);
    tap_eq_int(differences(plain, got, t->n), 0, "wrong drafts change no text");
    for (size_t judged = 0; judged < 10; judged += t->n) /* the alarm looks back over some dozens of drafts */
        one_by_one(t, got);
    s = figures(t);
    tap_diag("with nothing left of the NextN block's projection: recent acceptance %.3f", number(s, "recent"));
    tap_ok(json_is_true(json_object_get(s, "alarm")), "the alarm when acceptance collapses");
    json_decref(s);
    json_decref(ec_call(t->e, "patch.reset", "{}"));
}

/* The cache runs short while drafts hold blocks: sequences give way and come back, the text stays. */
static void test_short_of_cache(const struct setup *t)
{
    for (int drafts = 0; drafts <= 3; drafts += 3) {
        json_decref(ec_call(t->e, "open", "{\"path\":\"%s\",\"ctx\":160,\"spec\":%d}", tap_source("models/tiny-glm5-q4.gguf"), drafts));
        answer(t, 0, t->n, "{\"temp\":0,\"max_tokens\":64,\"ignore_eos\":true}", drafts == 0 ? plain : got);
    }
    tap_eq_int(differences(plain, got, t->n), 0, "a cache of 160 tokens for all prompts: the same");
}

/* The block's ops are ops like any other: in the ledger with their times, to be tapped and watched; looking changes nothing. */
static void test_visible(const struct setup *t)
{
    open_model(t, 2, "graph");
    answer(t, 0, 2, GREEDY, plain);
    json_t *o = ec_call(t->e, "ledger", "{}");
    const json_t *ops = json_object_get(o, "nextn"), *first = json_array_get(ops, 0);
    tap_ok(json_array_size(ops) > 20 && strcmp(json_string_value(json_object_get(first, "site")), "nextn.hidden") == 0 &&
               json_is_null(json_array_get(json_object_get(first, "us"), 0)),
           "without drafts the ledger lists the block's ops, without times");
    json_decref(o);
    set_drafts(t, 2);
    o = ec_call(t->e, "probe.tap", "{\"site\":\"nextn.output.head\",\"what\":\"copy\"}");
    tap_eq_int((int)number(o, "sites"), 1, "a tap on the block's head");
    json_decref(o);
    json_decref(ec_call(t->e, "probe.tap", "{\"site\":\"blk.6.nextn.eh_proj\"}"));
    answer(t, 0, 2, GREEDY, got);
    tap_eq_int(differences(plain, got, 2), 0, "tapped: the same text");
    o = ec_call(t->e, "ledger", "{}");
    double us = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(o, "nextn")); i++)
        us += json_number_value(json_array_get(json_object_get(json_array_get(json_object_get(o, "nextn"), i), "us"), 1));
    tap_ok(us > 0 && number(o, "nextn_steps") > 0, "with drafts their times too (%.0f us on rank 1)", us);
    json_decref(o);
    o = ec_call(t->e, "probe.read", "{\"site\":\"blk.6.nextn.eh_proj\",\"steps\":8}");
    int seen = 0;
    const json_t *records = json_object_get(json_array_get(json_object_get(o, "sites"), 0), "records");
    for (size_t i = 0; i < json_array_size(records); i++)
        seen += number(json_object_get(json_array_get(records, i), "whole"), "rms") > 0;
    tap_ok(seen > 0, "%d of the last 8 steps have a record of eh_proj", seen);
    json_decref(o);
    float *x = NULL;
    size_t n = 0;
    o = ec_blob(t->e, "probe.read", json_pack("{s:s,s:s}", "site", "nextn.output.head", "what", "copy"), &x, &n);
    tap_ok(n > 0 && n % 2048 == 0 && isfinite(x[0]), "the drafts' logits, %zu values of both ranks together", n);
    free(x);
    json_decref(o);
    json_decref(ec_call(t->e, "probe.untap", "{}"));
}

static void test_refusal(const struct setup *t)
{
    char msg[512];
    json_decref(ec_call(t->e, "open", "{\"path\":\"%s\"}", tap_source("tests/golden/fixture-flash.gguf")));
    tap_ok(ec_fails(t->e, msg, "set", "{\"spec\":1}") == RS_ESTATE && strstr(msg, "NextN") != NULL, "a model without a NextN block refuses: %s", msg);
}

int main(void)
{
    struct setup t = {.e = ec_open(), .golden = json_load_file(tap_source("tests/golden/golden-tiny.json"), 0, NULL)};
    json_t *list = json_object_get(t.golden, "prompts");
    t.n = tap_short() ? 3 : json_array_size(list);
    for (size_t i = 0; i < t.n; i++)
        t.prompt[i] = json_object_get(json_array_get(list, i), "ids");
    test_same_text(&t, 1, "graph");
    test_same_text(&t, 1, "eager");
    test_same_text(&t, 3, "graph");
    test_sampling(&t);
    test_logprobs(&t);
    test_readings(&t);
    test_short_of_cache(&t);
    test_visible(&t);
    test_refusal(&t);
    ec_answers_free(t.n, plain);
    ec_answers_free(t.n, got);
    rs_engine_close(t.e);
    json_decref(t.golden);
    return tap_done();
}
