/* cmd_bench.c: tokens per second, prompt and generation, in both modes.
 *
 * Everything goes through the engine's public API, as an answer in the console does. The times are the engine's own (DONE); events are fetched in
 * batches, so that this program does not take a core from the workers for every token. Modes and repeats are interleaved: a machine that slows
 * down for a second slows them all. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "console/bench_load.h"
#include "console/chat.h"
#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/table.h"

enum { FETCH_MS = 2 };

static const struct opt s_options[] = {
    {.name = "prompt", .letter = 'p', .type = OPT_INT, .arg = "N", .min = 0, .max = 1e6, .help = "tokens of the prompt test; without it 512, 0 leaves it out"},
    {.name = "gen", .letter = 'n', .type = OPT_INT, .arg = "N", .min = 0, .max = 1e6, .help = "tokens of the generation test; without it 128, 0 leaves it out"},
    {.name = "depth", .letter = 'd', .type = OPT_INT, .arg = "N", .min = 1, .max = 1e6, .help = "tokens in the cache before the generation test; without it 1"},
    {.name = "repeats", .letter = 'r', .type = OPT_INT, .arg = "N", .min = 1, .max = 1000, .help = "how often each test is done; without it 5, with --concurrency once"},
    {.name = "mode", .type = OPT_CHOICE, .choices = "both|graph|eager", .help = "in which mode to measure; without it both, in turns"},
    {.name = "json", .type = OPT_FLAG, .help = "print one JSON object: graph and eager, in each pp and tg, in each mean, stddev and samples (tokens per second)"},
    {0},
};

enum { MODES = 2, TESTS = 2 };
static const char *const s_modes[MODES] = {"graph", "eager"};
static const char *const s_tests[TESTS] = {"pp", "tg"};

struct samples {
    double *v; /* tokens per second */
    size_t n;
};

struct bench {
    struct con *con;
    long prompt, gen, depth, repeats;
    bool mode[MODES]; /* which of them to measure */
    uint32_t random;
    struct samples s[MODES][TESTS];
};

/* Token ids that no earlier prompt began with, so that nothing is found in the cache. */
static json_t *make_ids(struct bench *b, long n)
{
    json_int_t vocab = js_int(b->con->info, "model.vocab", 1);
    json_t *ids = json_array();
    for (long i = 0; i < n; i++) {
        b->random = b->random * 1664525u + 1013904223u;
        json_array_append_new(ids, json_integer((json_int_t)(b->random >> 8) % vocab));
    }
    return ids;
}

static enum rs_result wait_done(struct con *con, struct rs_error *err)
{
    const struct timespec pause = {.tv_nsec = FETCH_MS * 1000000L};
    while (con->answer.running) {
        nanosleep(&pause, NULL);
        if (con_pump(con, 0) & (CON_WAKE_INTERRUPT | CON_WAKE_END))
            return fail_set(err, RS_ECANCELLED, "interrupted");
    }
    const char *why = js_str(con->answer.done, "error", NULL);
    return why != NULL ? fail_set(err, RS_EENGINE, "%s", why) : RS_OK;
}

/* Run a prompt of n tokens and generate `gen`. */
static enum rs_result run(struct bench *b, long n, long gen, struct rs_error *err)
{
    struct con_answer *a = &b->con->answer;
    json_t *reply, *args = json_pack("{s:o, s:I, s:b, s:f}", "ids", make_ids(b, n), "max_tokens", (json_int_t)gen, "ignore_eos", 1, "temp", 0.0);
    enum rs_result r = con_request(b->con, "submit", args, &reply, err);
    if (r != RS_OK)
        return r;
    chat_fini(a);
    *a = (struct con_answer){.stream = (uint32_t)js_int(reply, "stream", 0), .running = true, .raw = true};
    json_decref(reply);
    r = wait_done(b->con, err);
    const long long got = (long long)js_int(a->done, "tokens", 0);
    const char *stop = js_str(a->done, "stop", "nothing said why");
    if (r == RS_OK && got != gen && strcmp(stop, "length") == 0)
        r = fail_set(err, RS_ESTATE, "%ld tokens do not fit: the context ended after %lld", n + gen, got);
    else if (r == RS_OK && got != gen)
        r = fail_set(err, RS_EENGINE, "the answer ended after %lld of %ld tokens (%s)", got, gen, stop);
    return r;
}

static void keep(struct samples *s, double tokens, double ms)
{
    s->v = xreallocarray(s->v, s->n + 1, sizeof *s->v);
    s->v[s->n++] = tokens * 1e3 / ms;
}

/* Both tests once in one mode; a warm-up is not kept. */
static enum rs_result run_mode(struct bench *b, int mode, bool warm_up, struct rs_error *err)
{
    enum rs_result r = con_request(b->con, "set", json_pack("{s:s}", "mode", s_modes[mode]), NULL, err);
    if (r == RS_OK && b->prompt > 0) {
        r = run(b, b->prompt, 1, err);
        if (r == RS_OK && !warm_up)
            keep(&b->s[mode][0], (double)b->prompt, js_num(b->con->answer.done, "prompt_ms", NAN));
    }
    if (r == RS_OK && b->gen > 0) { /* the first token belongs to the prompt */
        r = run(b, b->depth, b->gen + 1, err);
        if (r == RS_OK && !warm_up)
            keep(&b->s[mode][1], (double)b->gen, js_num(b->con->answer.done, "decode_ms", NAN));
    }
    return r;
}

static enum rs_result measure(struct bench *b, struct rs_error *err)
{
    for (long i = -1; i < b->repeats; i++)
        for (int m = 0; m < MODES; m++) {
            enum rs_result r = b->mode[m] ? run_mode(b, m, i < 0, err) : RS_OK;
            if (r != RS_OK)
                return r;
        }
    return RS_OK;
}

static double mean_of(const struct samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    return sum / (double)s->n;
}

/* Of the sample (n - 1); 0 for a single one. */
static double stddev_of(const struct samples *s)
{
    double mean = mean_of(s), sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += (s->v[i] - mean) * (s->v[i] - mean);
    return s->n > 1 ? sqrt(sum / (double)(s->n - 1)) : 0;
}

static void print_json(const struct bench *b)
{
    const json_t *info = b->con->info;
    json_t *o = json_object();
    json_object_set_new(o, "model", js_or_null(info, "model.name"));
    json_object_set_new(o, "ranks", js_or_null(info, "state.ranks"));
    json_object_set_new(o, "workers", js_or_null(info, "workers"));
    json_object_set_new(o, "isa", js_or_null(info, "isa"));
    json_object_set_new(o, "prompt", json_integer(b->prompt));
    json_object_set_new(o, "gen", json_integer(b->gen));
    json_object_set_new(o, "depth", json_integer(b->depth));
    json_object_set_new(o, "repeats", json_integer(b->repeats));
    for (int m = 0; m < MODES; m++) {
        json_t *tests = json_object();
        for (int t = 0; t < TESTS; t++) {
            const struct samples *s = &b->s[m][t];
            json_t *list = json_array();
            for (size_t i = 0; i < s->n; i++)
                json_array_append_new(list, json_real(s->v[i]));
            if (s->n > 0)
                json_object_set_new(tests, s_tests[t], json_pack("{s:f, s:f, s:O}", "mean", mean_of(s), "stddev", stddev_of(s), "samples", list));
            json_decref(list);
        }
        if (b->mode[m])
            json_object_set(o, s_modes[m], tests);
        json_decref(tests);
    }
    char *text = js_dump(o, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(o);
}

static void print_table(const struct bench *b)
{
    struct table *t = table_new("~1model|>3ranks|>4workers|2isa|mode|test|>tokens/s|>+-");
    for (int m = 0; m < MODES; m++)
        for (int k = 0; k < TESTS; k++) {
            const struct samples *s = &b->s[m][k];
            if (s->n == 0)
                continue;
            table_cell(t, "%s", js_str(b->con->info, "model.name", "?"));
            table_cell(t, "%lld", (long long)js_int(b->con->info, "state.ranks", 0));
            table_cell(t, "%lld", (long long)js_int(b->con->info, "workers", 0));
            table_cell(t, "%s", js_str(b->con->info, "isa", "?"));
            table_cell(t, "%s", s_modes[m]);
            if (k == 1 && b->depth > 1)
                table_cell(t, "%s%ld @ %ld", s_tests[k], b->gen, b->depth);
            else
                table_cell(t, "%s%ld", s_tests[k], k == 0 ? b->prompt : b->gen);
            table_cell(t, "%.1f", mean_of(s));
            table_cell(t, "%.1f", stddev_of(s));
        }
    table_print(t, b->con->out);
}

static enum exit_status exec_bench(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    if (opt_set(v, "concurrency"))
        return bench_load_run(self, v);
    struct bench b = {.con = &s.con, .prompt = opt_int(v, "prompt", 512), .gen = opt_int(v, "gen", 128), .depth = opt_int(v, "depth", 1),
                      .repeats = opt_int(v, "repeats", 5), .random = 1};
    const char *mode = opt_string(v, "mode", "both");
    for (int m = 0; m < MODES; m++)
        b.mode[m] = strcmp(mode, "both") == 0 || strcmp(mode, s_modes[m]) == 0;
    if (b.prompt == 0 && b.gen == 0)
        return cmd_usage(self, "--prompt 0 and --gen 0 leave nothing to measure");
    enum exit_status status = oneshot_start(&s, self, v, NULL);
    if (status != EXIT_OK)
        return status;
    enum rs_result r = measure(&b, &err);
    if (r == RS_OK)
        opt_set(v, "json") ? print_json(&b) : print_table(&b);
    for (int i = 0; i < MODES * TESTS; i++)
        free(b.s[i / TESTS][i % TESTS].v);
    return r == RS_OK ? oneshot_end(&s, EXIT_OK) : oneshot_fail(&s, &err);
}

const struct cmd_entry cmd_bench_entry = {
    .name = "bench",
    .args = "",
    .summary = "measure tokens per second",
    .help = "Measures how fast prompts are read (pp: one prompt of --prompt tokens) and how fast tokens are generated (tg: --gen tokens, one at a "
            "time, after --depth tokens). Both are done --repeats times in graph and in eager mode (--mode: in one of them), in turns, after "
            "a round that does not count. Prompts are random tokens, never the same twice, so that nothing comes from the cache. Printed are "
            "the mean and the standard deviation over the repeats."
            "\n\n"
            "With --concurrency it measures many requests at once, level by level, in every mode and both kinds of numerics in turns: output tokens "
            "per second in all, prompts included, and while all generate (steady), and per user, time to the first token (TTFT), per further token (TPOT), "
            "between tokens (ITL) and to the end (E2EL), "
            "the steps, the cache, and the level at which more requests hardly bring more (the knee). Before and after each level a prompt of 512 tokens is "
            "read alone: the proportion of both speeds does not depend on how fast the machine happens to be. With --repeats the levels are gone through several "
            "times; speeds and proportions are then medians. Each answer is compared with the answer to "
            "the same prompt alone; under numerics=invariant all must be identical, or the exit status is 4. With --json each level is an object "
            "with the keys of `vllm bench serve`.",
    .tables = {s_options, bench_load_table, oneshot_table},
    .max_args = 0,
    .exec = exec_bench,
};
