/* Levels of concurrency one after the other, at each of them every way of running in turns: eager and graph, invariant and fast; all of it in as many
 * rounds as wanted. Every answer is compared with the answer to the same prompt alone, every speed with that of a prompt that is read alone. */
#include "config.h"

#include "console/bench_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/load.h"
#include "console/load_plot.h"
#include "console/oneshot.h"
#include "console/table.h"
#include "console/units.h"

const struct opt bench_load_table[] = {
    {.name = "concurrency",
     .letter = 'c',
     .type = OPT_STRING,
     .arg = "LIST",
     .help = "measure many requests at once: how many, level by level, such as 1,2,4,8; each answer is compared with the same prompt alone"},
    {.name = "input", .type = OPT_INT, .arg = "N", .min = 1, .max = 1e6, .help = "with --concurrency: tokens of a prompt; without it 64"},
    {.name = "output", .type = OPT_INT, .arg = "N", .min = 1, .max = 1e6, .help = "with --concurrency: tokens to generate; without it 64"},
    {.name = "prompts",
     .type = OPT_FILE,
     .arg = "FILE",
     .help = "with --concurrency: take prompts from the lines of a file (and find their beginnings in the cache) instead of random tokens"},
    {.name = "requests",
     .type = OPT_INT,
     .arg = "N",
     .min = 1,
     .max = 1e6,
     .help = "with --concurrency: requests of a level; without it as many as the level, at least 8"},
    {.name = "distinct",
     .type = OPT_INT,
     .arg = "N",
     .min = 1,
     .max = 1e6,
     .help = "with --concurrency: how many different random prompts there are; without it 128"},
    {.name = "batch-tokens",
     .type = OPT_INT,
     .arg = "N",
     .min = 1,
     .max = 1 << 16,
     .help = "with --concurrency: rows of a step at most; without it as many as the largest level and 512 rows of prompts, on GPUs at least 16384"},
    {.name = "rate",
     .type = OPT_FLOAT,
     .arg = "R",
     .min = 1e-6,
     .max = 1e6,
     .help = "with --concurrency: requests arrive at random, R a second on average; without it the next one starts when one ends"},
    {.name = "numerics",
     .type = OPT_CHOICE,
     .choices = "invariant|fast|both",
     .help = "with --concurrency: how rows are computed; without it both ways, to see the price of certainty"},
    {.name = "svg", .type = OPT_FILE, .arg = "FILE", .help = "with --concurrency: write the curve as a picture"},
    {0},
};

enum { MAX_LEVELS = 32, MAX_WAYS = 4, GPU_ROWS = 16384 };

/* One number of each round. */
struct rounds {
    double *v;
    size_t n;
};

struct way {
    const char *mode, *numerics;
    char name[32];
    struct rounds speed[MAX_LEVELS];      /* output tokens per second */
    struct rounds proportion[MAX_LEVELS]; /* how fast tokens are generated, in parts of how fast a prompt is read right before and after */
    double typical[MAX_LEVELS];           /* medians of speed, once all is measured */
};

struct bench {
    struct con *con;
    size_t level[MAX_LEVELS], n_levels, n_ways;
    double x[MAX_LEVELS];
    struct way way[MAX_WAYS];
    struct load_spec spec;
    long requests, rounds;
    bool json;
    struct rounds prompt_rate; /* tokens per second of one long prompt alone */
    size_t compared, identical, failed, held;
    size_t invariant_differs;
    struct table *speed, *times;
    json_t *results, *graphs;
};

static void keep(struct rounds *r, double v)
{
    r->v = xreallocarray(r->v, r->n + 1, sizeof *r->v);
    r->v[r->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NAN without numbers. */
static double median(const struct rounds *r)
{
    double *v = xcalloc(r->n + 1, sizeof *v), m;
    memcpy(v, r->v, r->n * sizeof *v);
    qsort(v, r->n, sizeof *v, by_value);
    m = r->n == 0 ? NAN : r->n % 2 != 0 ? v[r->n / 2] : (v[r->n / 2 - 1] + v[r->n / 2]) / 2;
    free(v);
    return m;
}

static bool parse_levels(const char *text, struct bench *b)
{
    while (*text != '\0') {
        char *end;
        long n = strtol(text, &end, 10);
        if (end == text || n < 1 || n > 4096 || (*end != ',' && *end != '\0') || b->n_levels == MAX_LEVELS ||
            (b->n_levels > 0 && (size_t)n <= b->level[b->n_levels - 1]))
            return false;
        b->x[b->n_levels] = (double)n;
        b->level[b->n_levels++] = (size_t)n;
        text = *end == ',' ? end + 1 : end;
    }
    return b->n_levels > 0;
}

static void choose_ways(struct bench *b, const struct opt_values *v)
{
    static const char *const modes[] = {"graph", "eager"}, *const numerics[] = {"invariant", "fast"};
    const char *mode = opt_string(v, "mode", "both"), *how = opt_string(v, "numerics", "both");
    for (int n = 0; n < 2; n++)
        for (int m = 0; m < 2; m++) {
            if ((strcmp(mode, "both") != 0 && strcmp(mode, modes[m]) != 0) || (strcmp(how, "both") != 0 && strcmp(how, numerics[n]) != 0))
                continue;
            struct way *w = &b->way[b->n_ways++];
            w->mode = modes[m];
            w->numerics = numerics[n];
            snprintf(w->name, sizeof w->name, "%s %s", w->mode, w->numerics);
        }
}

/* ---- one level ---------------------------------------------------------------------------------------------------------------------------- */

static void three(struct table *t, const struct load_stat *s)
{
    const double v[] = {s->mean, s->p50, s->p99};
    for (int i = 0; i < 3; i++)
        isfinite(v[i]) ? table_cell(t, v[i] < 100 ? "%.2f" : "%.0f", v[i]) : table_cell(t, "n/a");
}

static void add_rows(struct bench *b, const struct way *w, const struct load_result *r, const struct load_summary *s)
{
    struct table *t = b->speed;
    table_cell(t, "%zu", r->concurrency);
    table_cell(t, "%s", w->name);
    table_cell(t, "%.1f", s->output_rate);
    isfinite(s->steady_rate) ? table_cell(t, "%.1f", s->steady_rate) : table_cell(t, "n/a");
    table_cell(t, "%.2f", s->user_rate);
    table_cell(t, "%.2f", s->step_ms);
    table_cell(t, "%.1f", s->batch);
    table_cell(t, "%zu", r->peak_running);
    table_cell(t, "%.0f %%", 100 * r->peak_cache);
    table_cell(t, "%.0f %%", r->input_tokens > 0 ? 100.0 * (double)r->cached_tokens / (double)r->input_tokens : 0);
    table_cell(t, "%.0f", r->preemptions);
    table_cell(t, "%zu", r->failed);
    table_cell(t, "%zu of %zu", r->identical, r->compared);
    t = b->times;
    table_cell(t, "%zu", r->concurrency);
    table_cell(t, "%s", w->name);
    three(t, &s->ttft);
    three(t, &s->tpot);
    three(t, &s->itl);
    three(t, &s->e2el);
}

/* The first answers that came out otherwise than alone. */
static void show_differences(struct bench *b, const struct way *w, const struct load_result *r)
{
    size_t shown = 0;
    for (size_t i = 0; i < r->n && shown < 3; i++) {
        const struct load_request *q = &r->requests[i];
        const struct load_prompt *p = &b->spec.prompts[i % b->spec.n_prompts];
        size_t at = q->differs_at;
        if (!q->compared || q->identical)
            continue;
        shown++;
        out_printf(b->con->out, OUT_WARN, "%zu at once, %s: request %zu differs from token %zu on: %d, alone %d\n", r->concurrency, w->name, i + 1, at + 1,
                   at < q->n_tokens ? (int)q->tokens[at] : -1, at < p->n_alone ? (int)p->alone[at] : -1);
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->requests[i].error != NULL) {
            out_printf(b->con->out, OUT_WARN, "%zu at once, %s: request %zu failed: %s\n", r->concurrency, w->name, i + 1, r->requests[i].error);
            break;
        }
}

static enum rs_result set_way(struct bench *b, const struct way *w, struct rs_error *err)
{
    enum rs_result r = con_request(b->con, "set", json_pack("{s:s, s:s}", "mode", w->mode, "numerics", w->numerics), NULL, err);
    return r == RS_OK ? con_refresh(b->con, err) : r;
}

/* How fast a long prompt is read by itself: tokens per second. */
static enum rs_result measure_prompt(struct bench *b, double *rate, struct rs_error *err)
{
    json_int_t n = js_int(b->con->info, "model.context", 2048) / 2, ctx = js_int(b->con->info, "state.ctx_total", n) / 2;
    n = n < ctx ? n : ctx;
    n = n > 512 ? 512 : n;
    struct load_prompt *p = load_random_prompts(b->con, 3, (size_t)n);
    struct load_spec spec = {.prompts = p, .n_prompts = 3, .n_requests = 3, .concurrency = 1, .output = 1, .label = "prompts alone"};
    struct load_result r;
    struct load_summary s;
    enum rs_result rc = load_run(b->con, &spec, &r, err);
    if (rc == RS_OK) {
        load_summarise(&r, &s);
        *rate = (double)n * 1e3 / s.ttft.p50;
        keep(&b->prompt_rate, *rate);
        load_result_fini(&r);
    }
    load_prompts_free(p, 3);
    return rc;
}

/* A level, and prompts alone before and after it: whatever slows the machine down for a while slows both. */
static enum rs_result run_level(struct bench *b, size_t level, struct way *w, struct rs_error *err)
{
    double before = NAN, after = NAN;
    struct load_result r;
    struct load_summary s;
    char label[64];
    snprintf(label, sizeof label, "%zu at once, %s", b->level[level], w->name);
    b->spec.concurrency = b->level[level];
    b->spec.n_requests = b->requests > 0 ? (size_t)b->requests : b->level[level] > 8 ? b->level[level] : 8;
    b->spec.label = label;
    enum rs_result rc = measure_prompt(b, &before, err);
    if (rc == RS_OK)
        rc = load_run(b->con, &b->spec, &r, err);
    if (rc != RS_OK)
        return rc;
    rc = measure_prompt(b, &after, err);
    load_summarise(&r, &s);
    double rate = (before + after) / 2, part = (double)r.peak_running * 1e3 / s.itl.p50 / rate; /* rows of a step over the time between two tokens */
    keep(&w->speed[level], s.output_rate);
    keep(&w->proportion[level], part);
    b->compared += r.compared;
    b->identical += r.identical;
    b->failed += r.failed;
    b->held += r.held_after;
    if (strcmp(w->numerics, "invariant") == 0)
        b->invariant_differs += r.compared - r.identical;
    add_rows(b, w, &r, &s);
    show_differences(b, w, &r);
    if (b->json) {
        json_t *o = load_json(b->con, &b->spec, &r, &s);
        json_object_set_new(o, "prompt_tokens_per_second", js_real(rate));
        json_object_set_new(o, "of_prompt_speed", js_real(part));
        json_array_append_new(b->results, o);
    }
    load_result_fini(&r);
    return rc;
}

static enum rs_result run_all(struct bench *b, struct rs_error *err)
{
    enum rs_result r = RS_OK;
    /* Answers alone are taken once for each numerics: the first way that has it. With both, levels are run twice, once against each. */
    for (size_t from = 0, to; from < b->n_ways && r == RS_OK; from = to) {
        for (to = from; to < b->n_ways && strcmp(b->way[to].numerics, b->way[from].numerics) == 0; to++)
            ;
        r = set_way(b, &b->way[from], err);
        if (r == RS_OK)
            r = load_alone(b->con, &b->spec, err);
        for (long i = 0; i < b->rounds; i++)
            for (size_t l = 0; l < b->n_levels && r == RS_OK; l++)
                for (size_t w = from; w < to && r == RS_OK; w++) {
                    r = set_way(b, &b->way[w], err);
                    if (r == RS_OK)
                        r = run_level(b, l, &b->way[w], err);
                }
    }
    for (size_t w = 0; w < b->n_ways; w++)
        for (size_t l = 0; l < b->n_levels; l++)
            b->way[w].typical[l] = median(&b->way[w].speed[l]);
    return r;
}

/* ---- what it says in the end ---------------------------------------------------------------------------------------------------------------- */

/* "0.71 (0.66 to 0.75)": the range where there were rounds enough to have one. */
static void print_proportion(struct bench *b, const struct rounds *r)
{
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < r->n; i++) {
        low = fmin(low, r->v[i]);
        high = fmax(high, r->v[i]);
    }
    out_printf(b->con->out, OUT_TEXT, "%.2f", median(r));
    if (r->n > 1)
        out_printf(b->con->out, OUT_TEXT, " (%.2f to %.2f)", low, high);
}

/* The smallest level that gives nine tenths of the most. */
static size_t knee_of(const struct bench *b, const struct way *w, double *best, double *last)
{
    size_t knee = 0;
    *best = 0;
    for (size_t l = 0; l < b->n_levels; l++)
        *best = w->typical[l] > *best ? w->typical[l] : *best;
    while (w->typical[knee] < 0.9 * *best)
        knee++;
    *last = w->typical[b->n_levels - 1];
    return b->level[knee];
}

static int by_size(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* "graphs: 12, for batches of up to 1, 2, 4 ... rows, 1.3 MB" */
static void print_graphs(const struct bench *b)
{
    size_t n = json_array_size(b->graphs), *rows = xcalloc(n + 1, sizeof *rows);
    double bytes = 0;
    char text[32];
    struct buf list = {0};
    for (size_t i = 0; i < n; i++) {
        rows[i] = (size_t)js_int(json_array_get(b->graphs, i), "rows", 0);
        bytes += js_num(json_array_get(b->graphs, i), "bytes", 0);
    }
    qsort(rows, n, sizeof *rows, by_size);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || rows[i] != rows[i - 1])
            buf_printf(&list, "%s%zu", i > 0 ? ", " : "", rows[i]);
    if (n > 0)
        out_printf(b->con->out, OUT_TEXT, "graphs: %zu, for batches of up to %s rows, %s\n", n, list.text, units_bytes(text, bytes));
    buf_fini(&list);
    free(rows);
}

static void print_end(struct bench *b)
{
    struct out *o = b->con->out;
    struct load_plot p = {.title = "output tokens per second", .x_name = "requests at once", .y_name = "tokens/s", .n = b->n_levels, .x = b->x};
    for (size_t i = 0; i < b->n_ways; i++) {
        p.name[p.n_series] = b->way[i].name;
        p.y[p.n_series++] = b->way[i].typical;
    }
    out_str(o, OUT_HEADING, "speed\n");
    table_print(b->speed, o);
    out_str(o, OUT_HEADING, "\nmilliseconds: mean, p50, p99\n");
    table_print(b->times, o);
    b->speed = b->times = NULL;
    out_str(o, OUT_TEXT, "\n");
    load_plot_text(&p, o);
    for (size_t i = 0; i < b->n_ways; i++) {
        double best, last;
        size_t knee = knee_of(b, &b->way[i], &best, &last);
        out_printf(o, OUT_TEXT, "%s: knee at %zu, most %.1f tokens/s, at %zu still %.0f %% of it\n", b->way[i].name, knee, best, b->level[b->n_levels - 1],
                   100 * last / best);
        for (size_t l = 0; l < b->n_levels; l++) {
            out_printf(o, OUT_TEXT, "%s%zu: ", l == 0 ? "  generating, in parts of the speed at which a prompt is read: " : ", ", b->level[l]);
            print_proportion(b, &b->way[i].proportion[l]);
        }
        out_str(o, OUT_TEXT, "\n");
    }
    out_printf(o, OUT_TEXT, "a prompt by itself is read at %.1f tokens/s\n", median(&b->prompt_rate));
    print_graphs(b);
    out_printf(o, b->identical == b->compared ? OUT_GOOD : OUT_BAD, "%zu of %zu answers identical to the same prompt alone\n", b->identical, b->compared);
}

static void print_json(struct bench *b)
{
    json_t *o = json_pack("{s:o, s:f, s:I, s:I, s:I}", "results", json_incref(b->results), "prompt_tokens_per_second", median(&b->prompt_rate), "compared",
                          (json_int_t)b->compared, "identical", (json_int_t)b->identical, "failed", (json_int_t)b->failed);
    for (size_t i = 0; i < b->n_ways; i++) {
        double best, last;
        json_int_t knee = (json_int_t)knee_of(b, &b->way[i], &best, &last);
        json_t *k = json_object_get(o, "knee");
        if (k == NULL)
            json_object_set_new(o, "knee", k = json_object());
        json_t *parts = json_array();
        for (size_t l = 0; l < b->n_levels; l++)
            json_array_append_new(parts, js_real(median(&b->way[i].proportion[l])));
        json_object_set_new(k, b->way[i].name, json_pack("{s:I, s:f, s:f, s:o}", "concurrency", knee, "most", best, "last", last, "of_prompt_speed", parts));
    }
    json_object_set(o, "graphs", b->graphs);
    char *text = js_dump(o, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(o);
}

static enum rs_result write_svg(struct bench *b, const char *path, struct rs_error *err)
{
    struct load_plot p = {.title = "output tokens per second", .x_name = "requests at once", .y_name = "tokens/s", .n = b->n_levels, .x = b->x};
    for (size_t i = 0; i < b->n_ways; i++) {
        p.name[p.n_series] = b->way[i].name;
        p.y[p.n_series++] = b->way[i].typical;
    }
    return load_plot_svg(&p, path, err);
}

/* Rows of a step: prompts go on beside a full batch. A GPU is busy with no fewer than some thousand. */
static long batch_tokens(const struct opt_values *v, size_t most, bool gpus)
{
    long n = (long)most + 512;
    return opt_int(v, "batch-tokens", gpus && n < GPU_ROWS ? GPU_ROWS : n);
}

/* Open the model with room for the largest level: all its tokens, as far as a few gigabytes of cache go. */
static enum rs_result open_model(struct bench *b, const struct opt_values *v, size_t tokens, struct rs_error *err)
{
    json_t *args;
    size_t most = b->level[b->n_levels - 1];
    enum rs_result r = oneshot_open_args(v, NULL, &args, err);
    if (r != RS_OK)
        return r;
    const bool gpus = strcmp(opt_string(v, "backend", "cpu"), "cuda") == 0;
    size_t room = most * ((tokens + 31) / 16 * 16) + 1024, limit = gpus ? 1u << 19 : 1u << 18;
    if (!opt_set(v, "ctx"))
        json_object_set_new(args, "ctx", json_integer((json_int_t)(room < limit ? room : limit)));
    json_object_set_new(args, "max_seqs", json_integer((json_int_t)most));
    json_object_set_new(args, "batch_tokens", json_integer(batch_tokens(v, most, gpus)));
    return con_open(b->con, args, err);
}

static enum rs_result get_prompts(struct bench *b, const struct opt_values *v, struct rs_error *err)
{
    size_t most = b->requests > 0 ? (size_t)b->requests : b->level[b->n_levels - 1], distinct = (size_t)opt_int(v, "distinct", 128);
    b->spec.reuse = opt_set(v, "prompts");
    if (opt_set(v, "prompts"))
        return load_file_prompts(b->con, opt_string(v, "prompts", "-"), &b->spec.prompts, &b->spec.n_prompts, err);
    most = most > 8 ? most : 8;
    b->spec.n_prompts = distinct < most ? distinct : most;
    b->spec.prompts = load_random_prompts(b->con, b->spec.n_prompts, (size_t)opt_int(v, "input", 64));
    return RS_OK;
}

/* What the runs have captured, while it is there. */
static enum rs_result get_graphs(struct bench *b, struct rs_error *err)
{
    json_t *load;
    enum rs_result r = con_request(b->con, "load", NULL, &load, err);
    if (r == RS_OK) {
        b->graphs = json_incref(json_object_get(load, "graphs"));
        json_decref(load);
    }
    return r;
}

static enum rs_result bench(struct bench *b, const struct opt_values *v, struct rs_error *err)
{
    long input = opt_int(v, "input", opt_set(v, "prompts") ? 256 : 64);
    enum rs_result r = open_model(b, v, (size_t)(input + b->spec.output), err);
    if (r == RS_OK)
        r = get_prompts(b, v, err);
    if (r == RS_OK)
        r = run_all(b, err);
    if (r == RS_OK)
        r = get_graphs(b, err);
    if (r == RS_OK)
        b->json ? print_json(b) : print_end(b);
    if (r == RS_OK && opt_set(v, "svg"))
        r = write_svg(b, opt_string(v, "svg", ""), err);
    return r;
}

static void free_rounds(struct bench *b)
{
    free(b->prompt_rate.v);
    for (size_t w = 0; w < b->n_ways; w++)
        for (size_t l = 0; l < b->n_levels; l++) {
            free(b->way[w].speed[l].v);
            free(b->way[w].proportion[l].v);
        }
}

enum exit_status bench_load_run(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    struct bench b = {.con = &s.con, .requests = opt_int(v, "requests", 0), .rounds = opt_int(v, "repeats", 1), .json = opt_set(v, "json")};
    b.spec.output = opt_int(v, "output", 64);
    b.spec.rate = opt_float(v, "rate", 0);
    if (!parse_levels(opt_string(v, "concurrency", ""), &b))
        return cmd_usage(self, "--concurrency wants numbers from 1 to 4096, rising, at most %d of them, such as 1,2,4,8", MAX_LEVELS);
    choose_ways(&b, v);
    enum exit_status status = oneshot_start_bare(&s, self, v);
    if (status != EXIT_OK)
        return status;
    b.results = json_array();
    b.speed = table_new(">at once|how|>tokens/s|>steady|>per user|>ms/step|>batch|>running|>cache|>found|>pre-empted|>failed|>identical");
    b.times = table_new(">at once|how|>TTFT|>p50|>p99|>TPOT|>p50|>p99|>ITL|>p50|>p99|>E2EL|>p50|>p99");
    table_fold(b.speed, 2);
    table_fold(b.times, 2);
    enum rs_result r = bench(&b, v, &err);
    load_prompts_free(b.spec.prompts, b.spec.n_prompts);
    json_decref(b.results);
    json_decref(b.graphs);
    table_free(b.speed);
    table_free(b.times);
    free_rounds(&b);
    if (r != RS_OK)
        return oneshot_fail(&s, &err);
    if (b.held != 0)
        out_error(s.con.out, "%zu cache blocks were still held after all requests had ended", b.held);
    bool wrong = b.invariant_differs != 0 || b.failed != 0 || b.held != 0;
    return oneshot_end(&s, wrong ? EXIT_COMPARISON : EXIT_OK);
}
