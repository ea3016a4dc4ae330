#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "console/js.h"
#include "console/load.h"

/* Values in milliseconds, grown as needed. */
struct values {
    double *v;
    size_t n, cap;
};

static void add(struct values *s, double ms)
{
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? 1024 : s->cap * 2;
        s->v = xreallocarray(s->v, s->cap, sizeof *s->v);
    }
    s->v[s->n++] = ms;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between the two neighbours, in proportion. */
static double percentile(const struct values *s, double p)
{
    double at = p * (double)(s->n - 1);
    size_t i = (size_t)at;
    return i + 1 < s->n ? s->v[i] + (at - (double)i) * (s->v[i + 1] - s->v[i]) : s->v[i];
}

static struct load_stat take(struct values *s)
{
    struct load_stat out = {NAN, NAN, NAN, NAN};
    double sum = 0, square = 0;
    if (s->n > 0) {
        qsort(s->v, s->n, sizeof *s->v, by_value);
        for (size_t i = 0; i < s->n; i++)
            sum += s->v[i];
        out.mean = sum / (double)s->n;
        for (size_t i = 0; i < s->n; i++)
            square += (s->v[i] - out.mean) * (s->v[i] - out.mean);
        out.std = sqrt(square / (double)s->n);
        out.p50 = percentile(s, 0.5);
        out.p99 = percentile(s, 0.99);
    }
    free(s->v);
    return out;
}

static double ms(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e3 : 0;
}

/* Most tokens within one second of the run. */
static double peak_rate(const struct load_result *r)
{
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < r->n; i++)
        first = r->requests[i].submit_us < first ? r->requests[i].submit_us : first;
    size_t seconds = (size_t)r->seconds + 2, *count = xcalloc(seconds, sizeof *count), most = 0;
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->requests[i].n_tokens; k++) {
            size_t at = (size_t)((r->requests[i].token_us[k] - first) / 1000000u);
            if (at < seconds && ++count[at] > most)
                most = count[at];
        }
    free(count);
    return (double)most;
}

/* A time at which so many more generate. */
struct edge {
    uint64_t us;
    int more;
};

static int by_time(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    return x->us != y->us ? (x->us > y->us) - (x->us < y->us) : x->more - y->more; /* who ends goes first */
}

static size_t tokens_between(const struct load_result *r, uint64_t from, uint64_t to)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->requests[i].n_tokens; k++)
            n += r->requests[i].token_us[k] > from && r->requests[i].token_us[k] <= to;
    return n;
}

static double steady_rate(const struct load_result *r)
{
    struct edge *e = xcalloc(2 * r->n + 1, sizeof *e);
    size_t n = 0, tokens = 0;
    int now = 0, most = 0;
    uint64_t us = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->requests[i].n_tokens > 1) {
            e[n++] = (struct edge){r->requests[i].first_us, 1};
            e[n++] = (struct edge){r->requests[i].last_us, -1};
        }
    qsort(e, n, sizeof *e, by_time);
    for (size_t i = 0; i < n; i++) {
        now += e[i].more;
        most = now > most ? now : most;
    }
    for (size_t i = 0; i + 1 < n; i++) {
        now += e[i].more;
        if (now < most || e[i + 1].us == e[i].us)
            continue;
        us += e[i + 1].us - e[i].us;
        tokens += tokens_between(r, e[i].us, e[i + 1].us);
    }
    free(e);
    if (us == 0 || tokens < 2 * (size_t)most) /* where all meet for a moment only, the moment is no speed */
        return NAN;
    return (double)tokens * 1e6 / (double)us;
}

void load_summarise(const struct load_result *r, struct load_summary *s)
{
    struct values ttft = {0}, tpot = {0}, itl = {0}, e2el = {0}, user = {0};
    *s = (struct load_summary){0};
    for (size_t i = 0; i < r->n; i++) {
        const struct load_request *q = &r->requests[i];
        if (q->error != NULL || q->n_tokens == 0)
            continue;
        add(&ttft, ms(q->submit_us, q->first_us));
        add(&e2el, ms(q->submit_us, q->last_us));
        for (size_t k = 1; k < q->n_tokens; k++)
            add(&itl, ms(q->token_us[k - 1], q->token_us[k]));
        if (q->n_tokens < 2)
            continue;
        double each = ms(q->first_us, q->last_us) / (double)(q->n_tokens - 1);
        add(&tpot, each);
        if (each > 0)
            add(&user, 1e3 / each);
    }
    s->ttft = take(&ttft);
    s->tpot = take(&tpot);
    s->itl = take(&itl);
    s->e2el = take(&e2el);
    s->user_rate = take(&user).mean;
    s->output_rate = (double)r->output_tokens / r->seconds;
    s->total_rate = (double)(r->output_tokens + r->input_tokens) / r->seconds;
    s->request_rate = (double)r->completed / r->seconds;
    s->peak_rate = peak_rate(r);
    s->steady_rate = steady_rate(r);
    s->step_ms = r->step_ms / r->steps;
    s->batch = r->decode_rows / r->steps;
}

static void put_stat(json_t *o, const char *name, const struct load_stat *s)
{
    const char *const what[] = {"mean", "median", "std", "p99"};
    const double v[] = {s->mean, s->p50, s->std, s->p99};
    for (int i = 0; i < 4; i++) {
        char *key = xasprintf("%s_%s_ms", what[i], name);
        json_object_set_new(o, key, js_real(v[i]));
        free(key);
    }
}

/* One value per request, in the order of submission; times in seconds. */
static void put_arrays(json_t *o, const struct load_spec *spec, const struct load_result *r)
{
    json_t *in = json_array(), *out = json_array(), *ttft = json_array(), *itl = json_array(), *e2e = json_array(), *start = json_array();
    json_t *text = json_array(), *error = json_array();
    for (size_t i = 0; i < r->n; i++) {
        const struct load_request *q = &r->requests[i];
        json_t *gaps = json_array();
        for (size_t k = 1; k < q->n_tokens; k++)
            json_array_append_new(gaps, json_real(ms(q->token_us[k - 1], q->token_us[k]) / 1e3));
        json_array_append_new(in, json_integer((json_int_t)spec->prompts[i % spec->n_prompts].n));
        json_array_append_new(out, json_integer((json_int_t)q->n_tokens));
        json_array_append_new(ttft, json_real(ms(q->submit_us, q->first_us) / 1e3));
        json_array_append_new(itl, gaps);
        json_array_append_new(e2e, json_real(ms(q->submit_us, q->last_us) / 1e3));
        json_array_append_new(start, json_real((double)q->submit_us / 1e6));
        json_array_append_new(text, js_text(q->text != NULL ? q->text : "", q->text != NULL ? strlen(q->text) : 0));
        json_array_append_new(error, json_string(q->error != NULL ? q->error : ""));
    }
    json_object_set_new(o, "input_lens", in);
    json_object_set_new(o, "output_lens", out);
    json_object_set_new(o, "ttfts", ttft);
    json_object_set_new(o, "itls", itl);
    json_object_set_new(o, "latencies", e2e);
    json_object_set_new(o, "start_times", start);
    json_object_set_new(o, "generated_texts", text);
    json_object_set_new(o, "errors", error);
}

json_t *load_json(const struct con *con, const struct load_spec *spec, const struct load_result *r, const struct load_summary *s)
{
    json_t *o = json_object();
    char date[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
    json_object_set_new(o, "date", json_string(date));
    json_object_set_new(o, "backend", json_string("rankscope"));
    json_object_set_new(o, "model_id", js_or_null(con->info, "model.name"));
    json_object_set_new(o, "tokenizer_id", js_or_null(con->info, "model.name"));
    json_object_set_new(o, "num_prompts", json_integer((json_int_t)r->n));
    json_object_set_new(o, "request_rate", spec->rate > 0 ? json_real(spec->rate) : json_string("inf"));
    json_object_set_new(o, "burstiness", json_real(1.0));
    json_object_set_new(o, "max_concurrency", json_integer((json_int_t)r->concurrency));
    json_object_set_new(o, "duration", js_real(r->seconds));
    json_object_set_new(o, "completed", json_integer((json_int_t)r->completed));
    json_object_set_new(o, "failed", json_integer((json_int_t)r->failed));
    json_object_set_new(o, "total_input_tokens", json_integer((json_int_t)r->input_tokens));
    json_object_set_new(o, "total_output_tokens", json_integer((json_int_t)r->output_tokens));
    json_object_set_new(o, "request_throughput", js_real(s->request_rate));
    json_object_set_new(o, "request_goodput", json_null());
    json_object_set_new(o, "output_throughput", js_real(s->output_rate));
    json_object_set_new(o, "total_token_throughput", js_real(s->total_rate));
    json_object_set_new(o, "max_output_tokens_per_s", js_real(s->peak_rate));
    json_object_set_new(o, "max_concurrent_requests", json_integer((json_int_t)r->peak_in_flight));
    put_stat(o, "ttft", &s->ttft);
    put_stat(o, "tpot", &s->tpot);
    put_stat(o, "itl", &s->itl);
    put_stat(o, "e2el", &s->e2el);
    put_arrays(o, spec, r);
    json_object_set_new(o, "output_throughput_steady", js_real(s->steady_rate));
    json_object_set_new(o, "output_throughput_per_user", js_real(s->user_rate));
    json_object_set_new(o, "mode", js_or_null(con->info, "state.mode"));
    json_object_set_new(o, "numerics", js_or_null(con->info, "state.numerics"));
    json_object_set_new(o, "ranks", js_or_null(con->info, "state.ranks"));
    json_object_set_new(o, "ms_per_step", js_real(s->step_ms));
    json_object_set_new(o, "rows_per_step", js_real(s->batch));
    json_object_set_new(o, "max_running", json_integer((json_int_t)r->peak_running));
    json_object_set_new(o, "cache_use", js_real(r->peak_cache));
    json_object_set_new(o, "cached_tokens", json_integer((json_int_t)r->cached_tokens));
    json_object_set_new(o, "preemptions", js_real(r->preemptions));
    json_object_set_new(o, "blocks_held_after", json_integer((json_int_t)r->held_after));
    json_object_set_new(o, "compared", json_integer((json_int_t)r->compared));
    json_object_set_new(o, "identical", json_integer((json_int_t)r->identical));
    return o;
}
