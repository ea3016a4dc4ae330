#include "config.h"

#include "console/http_metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"

static const double s_fast[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 0};
static const double s_slow[] = {0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 0};
static const double s_tokens[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 0};
static const char *const s_finish[] = {"stop", "length", "abort", "error"};
static const char *const s_verdict[] = {"ok", "suspect", "garbage", "unknown"};

void metrics_init(struct metrics *m)
{
    *m = (struct metrics){0};
    m->ttft.bounds = m->itl.bounds = s_fast;
    m->e2e.bounds = m->queue.bounds = m->prefill.bounds = m->decode.bounds = m->inference.bounds = s_slow;
    m->prompt.bounds = m->generated.bounds = m->asked.bounds = s_tokens;
}

void histogram_add(struct histogram *h, double v)
{
    if (!isfinite(v))
        return;
    for (size_t i = 0; h->bounds[i] != 0; i++)
        h->count[i] += v <= h->bounds[i];
    h->n++;
    h->sum += v;
}

static size_t index_of(const char *word, const char *const *words, size_t n)
{
    size_t i = 0;
    while (i + 1 < n && strcmp(word, words[i]) != 0)
        i++;
    return i;
}

void metrics_done(struct metrics *m, const json_t *done, double ttft, double e2e, long asked)
{
    const char *stop = js_str(done, "stop", "error");
    double prompt_s = js_num(done, "prompt_ms", NAN) / 1e3, decode_s = js_num(done, "decode_ms", NAN) / 1e3;
    uint64_t prompt = (uint64_t)js_int(done, "prompt_tokens", 0), tokens = (uint64_t)js_int(done, "tokens", 0);
    m->success[strcmp(stop, "eos") == 0 || strcmp(stop, "stop") == 0 ? 0 : strcmp(stop, "length") == 0 ? 1 : strcmp(stop, "cancelled") == 0 ? 2 : 3]++;
    m->verdicts[index_of(js_str(done, "verdict", "unknown"), s_verdict, 4)]++;
    m->nonfinite += (uint64_t)js_int(done, "health.nonfinite", 0);
    m->prompt_tokens += prompt;
    m->generated_tokens += tokens;
    m->cached_tokens += (uint64_t)js_int(done, "cached_tokens", 0);
    m->prompt_seconds += isfinite(prompt_s) ? prompt_s : 0;
    m->decode_seconds += isfinite(decode_s) ? decode_s : 0;
    m->longest = prompt + tokens > m->longest ? (unsigned)(prompt + tokens) : m->longest;
    histogram_add(&m->ttft, ttft);
    histogram_add(&m->e2e, e2e);
    histogram_add(&m->queue, js_num(done, "queue_ms", NAN) / 1e3);
    histogram_add(&m->prefill, prompt_s);
    histogram_add(&m->decode, decode_s);
    histogram_add(&m->inference, prompt_s + decode_s);
    histogram_add(&m->prompt, (double)prompt);
    histogram_add(&m->generated, (double)tokens);
    if (asked > 0)
        histogram_add(&m->asked, (double)asked);
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------------------ */

struct writer {
    struct buf b;
    char *model; /* escaped for a label */
};

static char *label_text(const char *s)
{
    struct buf b = {0};
    for (; *s != '\0'; s++) {
        if (*s == '\\' || *s == '"')
            buf_char(&b, '\\');
        if (*s == '\n')
            buf_str(&b, "\\n");
        else
            buf_char(&b, *s);
    }
    return buf_take(&b);
}

static void head(struct writer *w, const char *name, const char *type, const char *help)
{
    buf_printf(&w->b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(struct writer *w, double v)
{
    buf_printf(&w->b, isfinite(v) ? "%.15g\n" : "NaN\n", v);
}

/* A value with vLLM's label; absent when it is not known. */
static void vllm(struct writer *w, const char *name, const char *type, double v, const char *help)
{
    if (!isfinite(v))
        return;
    head(w, name, type, help);
    buf_printf(&w->b, "%s{model_name=\"%s\"} ", name, w->model);
    number(w, v);
}

static void plain(struct writer *w, const char *name, const char *type, double v, const char *help)
{
    if (!isfinite(v))
        return;
    head(w, name, type, help);
    buf_printf(&w->b, "%s ", name);
    number(w, v);
}

static void histogram(struct writer *w, const char *name, const struct histogram *h, const char *help)
{
    head(w, name, "histogram", help);
    for (size_t i = 0; h->bounds[i] != 0; i++)
        buf_printf(&w->b, "%s_bucket{model_name=\"%s\",le=\"%g\"} %llu\n", name, w->model, h->bounds[i], (unsigned long long)h->count[i]);
    buf_printf(&w->b, "%s_bucket{model_name=\"%s\",le=\"+Inf\"} %llu\n", name, w->model, (unsigned long long)h->n);
    buf_printf(&w->b, "%s_sum{model_name=\"%s\"} %.9g\n%s_count{model_name=\"%s\"} %llu\n", name, w->model, h->sum, name, w->model,
               (unsigned long long)h->n);
}

static void vllm_part(struct writer *w, const struct metrics *m, const struct metrics_input *in)
{
    double blocks = js_num(in->load, "cache.blocks", NAN);
    vllm(w, "vllm:num_requests_running", "gauge", js_num(in->load, "running", NAN), "Sequences that run.");
    vllm(w, "vllm:num_requests_waiting", "gauge", js_num(in->load, "waiting", NAN) + (double)in->waiting_here, "Sequences that wait.");
    vllm(w, "vllm:kv_cache_usage_perc", "gauge", js_num(in->load, "cache.held", NAN) / blocks, "Cache blocks in use, 1 is all.");
    vllm(w, "vllm:prefix_cache_queries_total", "counter", js_num(in->load, "cache.queried", NAN), "Tokens looked for in the cache.");
    vllm(w, "vllm:prefix_cache_hits_total", "counter", js_num(in->load, "cache.found", NAN), "Tokens found in the cache.");
    vllm(w, "vllm:num_preemptions_total", "counter", js_num(in->load, "preemptions", NAN), "Sequences that gave their blocks back for a while.");
    vllm(w, "vllm:prompt_tokens_total", "counter", (double)m->prompt_tokens, "Prompt tokens of requests that ended.");
    vllm(w, "vllm:generation_tokens_total", "counter", js_num(in->load, "tokens", NAN), "Generated tokens.");
    head(w, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (int i = 0; i < 4; i++)
        buf_printf(&w->b, "vllm:request_success_total{model_name=\"%s\",finished_reason=\"%s\"} %llu\n", w->model, s_finish[i], (unsigned long long)m->success[i]);
    vllm(w, "vllm:corrupted_requests_total", "counter", (double)m->verdicts[2], "Requests whose answer was judged garbage.");
    histogram(w, "vllm:time_to_first_token_seconds", &m->ttft, "From the request to its first token.");
    histogram(w, "vllm:inter_token_latency_seconds", &m->itl, "Between two tokens of an answer.");
    histogram(w, "vllm:e2e_request_latency_seconds", &m->e2e, "From the request to its last token.");
    histogram(w, "vllm:request_queue_time_seconds", &m->queue, "From the request to its start.");
    histogram(w, "vllm:request_prefill_time_seconds", &m->prefill, "From the start to the first token.");
    histogram(w, "vllm:request_decode_time_seconds", &m->decode, "From the first token to the last.");
    histogram(w, "vllm:request_inference_time_seconds", &m->inference, "From the start to the last token.");
    histogram(w, "vllm:request_prompt_tokens", &m->prompt, "Prompt tokens of a request.");
    histogram(w, "vllm:request_generation_tokens", &m->generated, "Generated tokens of a request.");
    histogram(w, "vllm:request_max_num_generation_tokens", &m->asked, "Tokens that a request allowed.");
}

static void llama_part(struct writer *w, const struct metrics *m, const struct metrics_input *in)
{
    double steps = js_num(in->load, "steps", NAN), rows = js_num(in->load, "decode_rows", NAN);
    plain(w, "llamacpp:prompt_tokens_total", "counter", (double)m->prompt_tokens, "Prompt tokens of requests that ended.");
    plain(w, "llamacpp:prompt_seconds_total", "counter", m->prompt_seconds, "Time that prompts took.");
    plain(w, "llamacpp:prompt_tokens_cached_total", "counter", (double)m->cached_tokens, "Prompt tokens that were found in the cache.");
    plain(w, "llamacpp:tokens_predicted_total", "counter", (double)m->generated_tokens, "Generated tokens of requests that ended.");
    plain(w, "llamacpp:tokens_predicted_seconds_total", "counter", m->decode_seconds, "Time that generating took.");
    plain(w, "llamacpp:n_decode_total", "counter", steps, "Steps.");
    plain(w, "llamacpp:n_tokens_max", "gauge", (double)m->longest, "Tokens of the longest sequence.");
    plain(w, "llamacpp:n_busy_slots_per_decode", "gauge", steps > 0 ? rows / steps : 0, "Generated tokens per step.");
    plain(w, "llamacpp:prompt_tokens_seconds", "gauge", m->prompt_seconds > 0 ? (double)m->prompt_tokens / m->prompt_seconds : 0, "Prompt tokens per second.");
    plain(w, "llamacpp:predicted_tokens_seconds", "gauge", js_num(in->load, "tok_per_s", NAN), "Generated tokens per second.");
    plain(w, "llamacpp:requests_processing", "gauge", js_num(in->load, "running", NAN), "Sequences that run.");
    plain(w, "llamacpp:requests_deferred", "gauge", js_num(in->load, "waiting", NAN), "Sequences that wait.");
}

/* One line of a rank's summary; what is not known has none. */
static void rank_line(struct writer *w, const char *suffix, size_t rank, const char *algo, const char *part, const char *quantile, double v)
{
    if (!isfinite(v))
        return;
    buf_printf(&w->b, "rankscope_allreduce_seconds%s{rank=\"%zu\",algo=\"%s\",part=\"%s\"", suffix, rank, algo, part);
    if (quantile != NULL)
        buf_printf(&w->b, ",quantile=\"%s\"", quantile);
    buf_str(&w->b, "} ");
    number(w, v);
}

/* Per rank: all of an all-reduce, and of it waiting and moving data. The quantiles are of the recent window that the engine keeps; sums are its
 * means times its counts. */
static void allreduce_part(struct writer *w, const struct metrics_input *in)
{
    static const struct { const char *part, *mean, *p50, *p99; } parts[] = {{"all", "mean_us", "p50_us", "p99_us"},
                                                                           {"wait", "wait_mean_us", "wait_p50_us", "wait_p99_us"},
                                                                           {"transfer", "transfer_mean_us", NULL, NULL}};
    const json_t *ranks = js_at(in->allreduce, "ranks");
    char *algo = label_text(js_str(js_at(in->info, "state.patches"), "allreduce", "default"));
    head(w, "rankscope_allreduce_seconds", "summary", "All-reduces by rank and algorithm: waiting for the slowest rank, moving data, both.");
    for (size_t r = 0; r < json_array_size(ranks); r++)
        for (int k = 0; k < 3; k++) {
            const json_t *o = json_array_get(ranks, r);
            double n = js_num(o, "count", NAN);
            if (parts[k].p50 != NULL) {
                rank_line(w, "", r, algo, parts[k].part, "0.5", js_num(o, parts[k].p50, NAN) / 1e6);
                rank_line(w, "", r, algo, parts[k].part, "0.99", js_num(o, parts[k].p99, NAN) / 1e6);
            }
            rank_line(w, "_sum", r, algo, parts[k].part, NULL, n * js_num(o, parts[k].mean, NAN) / 1e6);
            rank_line(w, "_count", r, algo, parts[k].part, NULL, n);
        }
    free(algo);
}

/* Whoever waits longest has arrived first. */
static void skew_part(struct writer *w, const struct metrics_input *in)
{
    const json_t *ranks = js_at(in->allreduce, "ranks");
    double longest = NAN;
    for (size_t r = 0; r < json_array_size(ranks); r++)
        longest = fmax(longest, js_num(json_array_get(ranks, r), "wait_mean_us", NAN));
    head(w, "rankscope_allreduce_skew_seconds", "gauge", "How much later a rank arrives on average than the one that arrives earliest.");
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        double v = longest - js_num(json_array_get(ranks, r), "wait_mean_us", NAN);
        if (!isfinite(v))
            continue;
        buf_printf(&w->b, "rankscope_allreduce_skew_seconds{rank=\"%zu\"} ", r);
        number(w, v / 1e6);
    }
}

static void own_part(struct writer *w, const struct metrics *m, const struct metrics_input *in)
{
    static const char *const codes[] = {"400", "401", "404", "429", "503"};
    const json_t *patches = js_at(in->info, "state.patches");
    const char *key;
    json_t *impl;
    allreduce_part(w, in);
    skew_part(w, in);
    plain(w, "rankscope_graph_coverage_ratio", "gauge", js_num(in->load, "graph_coverage", NAN), "Share of the ops that run from a graph.");
    double bytes = 0;
    const json_t *graphs = js_at(in->load, "graphs");
    for (size_t i = 0; i < json_array_size(graphs); i++)
        bytes += js_num(json_array_get(graphs, i), "bytes", 0);
    plain(w, "rankscope_graphs", "gauge", (double)json_array_size(graphs), "Graphs that are kept, one for each batch size that was needed.");
    plain(w, "rankscope_graph_bytes", "gauge", bytes, "Memory that they take.");
    plain(w, "rankscope_generation", "gauge", js_num(in->info, "state.generation", NAN), "Changes made to the running engine.");
    head(w, "rankscope_patch_active", "gauge", "Implementations in use that are not the default.");
    json_object_foreach((json_t *)(uintptr_t)patches, key, impl) {
        char *k = label_text(key), *v = label_text(json_is_string(impl) ? json_string_value(impl) : "?");
        buf_printf(&w->b, "rankscope_patch_active{op=\"%s\",impl=\"%s\"} 1\n", k, v);
        free(k);
        free(v);
    }
    plain(w, "rankscope_nonfinite_total", "counter", (double)m->nonfinite, "Logits that were not finite.");
    head(w, "rankscope_verdict_total", "counter", "Answers by health verdict.");
    for (int i = 0; i < 4; i++)
        buf_printf(&w->b, "rankscope_verdict_total{verdict=\"%s\"} %llu\n", s_verdict[i], (unsigned long long)m->verdicts[i]);
    head(w, "rankscope_refused_total", "counter", "Requests that were refused, by HTTP status.");
    for (int i = 0; i < 5; i++)
        buf_printf(&w->b, "rankscope_refused_total{status=\"%s\"} %llu\n", codes[i], (unsigned long long)in->refused[i]);
    plain(w, "rankscope_cache_blocks_held", "gauge", js_num(in->load, "cache.held", NAN), "Cache blocks that sequences hold.");
    plain(w, "rankscope_cache_blocks_idle", "gauge", js_num(in->load, "cache.idle", NAN), "Cache blocks that nobody holds but that keep beginnings of texts.");
    plain(w, "rankscope_cache_blocks", "gauge", js_num(in->load, "cache.blocks", NAN), "Cache blocks there are.");
    plain(w, "rankscope_step_seconds_total", "counter", js_num(in->load, "step_ms", NAN) / 1e3, "Time spent in steps.");
    if (in->snapshot == NULL)
        return;
    plain(w, "rankscope_step_seconds", "gauge", (double)in->snapshot->step_us / 1e6, "The last step.");
    plain(w, "rankscope_allreduces_per_step", "gauge", in->snapshot->allreduces_per_step, "All-reduces of a step.");
    head(w, "rankscope_rank_busy_seconds", "gauge", "A rank's own work in the last step.");
    for (uint32_t r = 0; r < in->snapshot->n_ranks && r < RS_MAX_RANKS; r++) {
        buf_printf(&w->b, "rankscope_rank_busy_seconds{rank=\"%u\"} ", r);
        number(w, (double)in->snapshot->rank[r].busy_us / 1e6);
    }
}

char *metrics_text(const struct metrics *m, const struct metrics_input *in)
{
    struct writer w = {.model = label_text(in->model)};
    vllm_part(&w, m, in);
    llama_part(&w, m, in);
    own_part(&w, m, in);
    free(w.model);
    return buf_take(&w.b);
}
