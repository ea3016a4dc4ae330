/* engine/vocab_pre.c against tests/golden/pretokenizer.json: where the published expressions cut a corpus of awkward texts.
 * With --serve it is the other half of tests/pretok.t: texts in, cuts out, both as JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/vocab_int.h"
#include "tests/tap.h"

static json_t *split(const char *pre, const json_t *text)
{
    size_t *ends, n;
    struct rs_error err = {0};
    if (vocab_pre_split(pre, json_string_value(text), json_string_length(text), &ends, &n, &err) != RS_OK)
        return json_string(err.msg);
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_integer((json_int_t)ends[i]));
    free(ends);
    return out;
}

static int serve(void)
{
    json_error_t e;
    json_t *jobs = json_loadf(stdin, JSON_ALLOW_NUL, &e), *out = json_array(), *job;
    size_t i;
    json_array_foreach(jobs, i, job) json_array_append_new(out, split(json_string_value(json_array_get(job, 0)), json_array_get(job, 1)));
    json_dumpf(out, stdout, JSON_COMPACT);
    json_decref(out);
    json_decref(jobs);
    return 0;
}

static void test_corpus(void)
{
    static const char *const names[] = {"glm4", "chatglm-bpe", "deepseek-v3", "deepseek-llm", "kimi-k2"};
    json_error_t e;
    json_t *all = json_load_file(tap_source("tests/golden/pretokenizer.json"), JSON_ALLOW_NUL, &e), *row;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        json_t *rows = json_object_get(all, k == 1 ? "glm4" : names[k]);
        size_t i, good = 0;
        json_array_foreach(rows, i, row)
        {
            json_t *got = split(names[k], json_array_get(row, 0));
            if (json_equal(got, json_array_get(row, 1))) {
                good++;
            } else {
                char *g = json_dumps(got, JSON_ENCODE_ANY), *w = json_dumps(row, JSON_ENCODE_ANY);
                tap_diag("%s: got %s, want %s", names[k], g, w);
                free(g);
                free(w);
            }
            json_decref(got);
        }
        tap_ok(i > 100 && good == i, "%s: %zu of %zu texts are cut as published", names[k], good, i);
    }
    json_decref(all);
}

static void test_unknown(void)
{
    size_t *ends, n;
    struct rs_error err = {0};
    tap_eq_int(vocab_pre_split("llama-bpe", "x", 1, &ends, &n, &err), RS_EUNSUPPORTED, "an unknown pre-tokenizer is refused");
    tap_ok(strstr(err.msg, "llama-bpe") && strstr(err.msg, "glm4") && strstr(err.msg, "deepseek-v3") && strstr(err.msg, "deepseek-llm") &&
               strstr(err.msg, "kimi-k2"),
           "and the known ones are named");
}

/* Bytes that are not UTF-8 become pieces of their own and do not disturb what is around them. */
static void test_bad_bytes(void)
{
    static const char text[] = "ab \xFF\xFE cd\xE4\xBD"
                               "7";
    static const size_t want[] = {2, 3, 5, 8, 10, 11};
    size_t *ends = NULL, n = 0;
    struct rs_error err = {0};
    vocab_pre_split("glm4", text, sizeof text - 1, &ends, &n, &err);
    tap_ok(n == 6 && memcmp(ends, want, sizeof want) == 0, "bad bytes are pieces of their own");
    free(ends);
}

/* A text that makes each expression start, scan far and fail must still be cut in linear time. */
static void test_long(void)
{
    static const char *const names[] = {"glm4", "deepseek-v3", "deepseek-llm", "kimi-k2"};
    static const char *const units[] = {"a", "A", " ", "7", "\n", "\t ", "!", "\x01", "\xE4\xBD\xA0", "\xCC\x81", "Aa", " \n", "' "};
    enum { MB = 1 << 20 };
    char *text = malloc(MB + 1);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct timespec t0, t1;
        size_t bad = 0;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t unit = strlen(units[u]), len = MB / unit * unit, *ends = NULL, n = 0;
            struct rs_error err = {0};
            for (size_t i = 0; i < len; i++)
                text[i] = units[u][i % unit];
            text[len++] = 'x'; /* so that a run of white space does not end the text */
            if (vocab_pre_split(names[k], text, len, &ends, &n, &err) != RS_OK || n == 0 || ends[n - 1] != len) {
                tap_diag("%s on a run of \"%s\": %s", names[k], units[u], err.msg);
                bad++;
            }
            free(ends);
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
        double sec = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
        tap_ok(bad == 0 && sec < 60, "%s: runs of 1 MiB", names[k]);
        tap_diag("%.2f s", sec);
    }
    free(text);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--serve") == 0)
        return serve();
    test_corpus();
    test_unknown();
    test_bad_bytes();
    test_long();
    return tap_done();
}
