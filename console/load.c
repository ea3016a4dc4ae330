#include "config.h"

#include "console/load.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "console/cmd.h"
#include "console/fail.h"
#include "console/js.h"

enum { FETCH_US = 1000, PROGRESS_US = 200000 };

/* A run under way. */
struct run {
    struct con *con;
    const struct load_spec *spec;
    struct load_result *r;
    size_t sent, ended, in_flight;
    uint32_t first_id;        /* request ids of the submits are consecutive from here */
    uint32_t first_stream;    /* streams count up too; 0: none known */
    size_t *of_stream;        /* [stream - first_stream] request + 1, or 0 */
    size_t n_streams;
    uint64_t start_us, next_us, shown_us;
    uint64_t random;
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------------------------------- */

struct load_prompt *load_random_prompts(struct con *con, size_t n, size_t tokens)
{
    uint64_t random = 0x243f6a8885a308d3u, vocab = (uint64_t)js_int(con->info, "model.vocab", 1);
    struct load_prompt *p = xcalloc(n, sizeof *p);
    for (size_t i = 0; i < n; i++) {
        struct buf b = {0};
        for (size_t k = 0; k < tokens; k++)
            buf_printf(&b, "%c%llu", k == 0 ? '[' : ',', (unsigned long long)((rnd(&random) >> 20) % vocab));
        buf_char(&b, ']');
        p[i] = (struct load_prompt){.ids = buf_take(&b), .n = tokens};
    }
    return p;
}

enum rs_result load_file_prompts(struct con *con, const char *path, struct load_prompt **out, size_t *n, struct rs_error *err)
{
    char *text;
    enum rs_result r = cmd_read_text(path, &text, err);
    if (r != RS_OK)
        return r;
    struct load_prompt *p = NULL;
    size_t count = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\r\n", &save); line != NULL && r == RS_OK; line = strtok_r(NULL, "\r\n", &save)) {
        json_t *reply;
        r = con_request(con, "encode", json_pack("{s:s}", "text", line), &reply, err);
        if (r != RS_OK)
            break;
        json_t *ids = json_object_get(reply, "ids");
        p = xreallocarray(p, count + 1, sizeof *p);
        p[count++] = (struct load_prompt){.ids = js_dump(ids, JSON_COMPACT), .n = json_array_size(ids)};
        json_decref(reply);
    }
    free(text);
    if (r == RS_OK && count == 0)
        r = fail_set(err, RS_EFORMAT, "%s holds no prompt: one is expected on each line", path);
    if (r != RS_OK) {
        load_prompts_free(p, count);
        return r;
    }
    *out = p;
    *n = count;
    return RS_OK;
}

void load_prompts_free(struct load_prompt *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(p[i].ids);
        free(p[i].alone);
    }
    free(p);
}

void load_result_fini(struct load_result *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->requests[i].token_us);
        free(r->requests[i].tokens);
        free(r->requests[i].text);
        free(r->requests[i].error);
    }
    free(r->requests);
    *r = (struct load_result){0};
}

/* ---- events ------------------------------------------------------------------------------------------------------------------------------ */

static void end_request(struct run *x, struct load_request *q, uint64_t when, const char *error)
{
    if (q->done)
        return;
    q->done = true;
    q->done_us = when;
    q->error = error != NULL ? xstrdup(error) : NULL;
    x->ended++;
    x->in_flight--;
}

static struct load_request *by_stream(struct run *x, uint32_t stream)
{
    size_t i = stream - x->first_stream;
    bool known = x->first_stream != 0 && stream >= x->first_stream && i < x->n_streams && x->of_stream[i] != 0;
    return known ? &x->r->requests[x->of_stream[i] - 1] : NULL;
}

static void on_reply(struct run *x, const struct rs_event *ev)
{
    size_t i = ev->id - x->first_id;
    if (x->sent == 0 || i >= x->sent)
        return;
    struct load_request *q = &x->r->requests[i];
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    if (ev->status != RS_OK) {
        end_request(x, q, ev->time_us, js_str(json, "error.message", rs_result_name(ev->status)));
        json_decref(json);
        return;
    }
    q->stream = (uint32_t)js_int(json, "stream", 0);
    json_decref(json);
    if (x->first_stream == 0)
        x->first_stream = q->stream;
    size_t at = q->stream - x->first_stream, had = x->n_streams;
    if (at >= had) {
        x->n_streams = at + 1024;
        x->of_stream = xreallocarray(x->of_stream, x->n_streams, sizeof *x->of_stream);
        memset(x->of_stream + had, 0, (x->n_streams - had) * sizeof *x->of_stream);
    }
    x->of_stream[at] = i + 1;
}

static void on_token(struct run *x, const struct rs_event *ev)
{
    struct load_request *q = by_stream(x, ev->id);
    if (q == NULL || ev->token < 0)
        return;
    if (q->n_tokens == q->cap) {
        q->cap = q->cap == 0 ? (size_t)x->spec->output : q->cap * 2;
        q->tokens = xreallocarray(q->tokens, q->cap, sizeof *q->tokens);
        q->token_us = xreallocarray(q->token_us, q->cap, sizeof *q->token_us);
    }
    q->first_us = q->n_tokens == 0 ? ev->time_us : q->first_us;
    q->last_us = ev->time_us;
    q->token_us[q->n_tokens] = ev->time_us;
    q->tokens[q->n_tokens++] = ev->token;
}

static void on_done(struct run *x, const struct rs_event *ev)
{
    struct load_request *q = by_stream(x, ev->id);
    if (q == NULL)
        return;
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    const char *stop = js_str(json, "stop", "?");
    q->preempted = (uint32_t)js_int(json, "preempted", 0);
    q->cached = (uint32_t)js_int(json, "cached_tokens", 0);
    q->text = xasprintf("%s%s", js_str(json, "thinking", ""), js_str(json, "text", ""));
    if (strcmp(stop, "length") == 0 || strcmp(stop, "eos") == 0)
        end_request(x, q, ev->time_us, NULL);
    else
        end_request(x, q, ev->time_us, js_str(json, "error", stop));
    json_decref(json);
}

static enum rs_result drain(struct run *x, struct rs_error *err)
{
    struct rs_event ev;
    enum rs_result r;
    while ((r = rs_next(x->con->engine, 0, &ev, err)) == RS_OK)
        switch (ev.type) {
        case RS_EVENT_REPLY: on_reply(x, &ev); break;
        case RS_EVENT_TOKEN: on_token(x, &ev); break;
        case RS_EVENT_DONE: on_done(x, &ev); break;
        case RS_EVENT_LOST: return fail_set(err, RS_EENGINE, "the engine is gone");
        case RS_EVENT_PROGRESS:
        case RS_EVENT_STATE:
        case RS_EVENT_STOPPED:
        case RS_EVENT_LOG:
        case RS_EVENT_COUNT: break;
        }
    return r == RS_ETIMEOUT ? RS_OK : r;
}

/* ---- the run ----------------------------------------------------------------------------------------------------------------------------- */

static enum rs_result send_one(struct run *x, struct rs_error *err)
{
    const struct load_prompt *p = &x->spec->prompts[x->sent % x->spec->n_prompts];
    char *args = xasprintf("{\"ids\":%s,\"max_tokens\":%ld,\"ignore_eos\":true,\"temp\":0,\"reuse\":%s}", p->ids, x->spec->output,
                           x->spec->reuse ? "true" : "false");
    uint32_t id;
    x->r->requests[x->sent].submit_us = now_us();
    enum rs_result r = rs_send(x->con->engine, "submit", args, &id, err);
    free(args);
    if (r != RS_OK)
        return r;
    if (x->sent == 0)
        x->first_id = id;
    x->sent++;
    x->in_flight++;
    if (x->in_flight > x->r->peak_in_flight)
        x->r->peak_in_flight = x->in_flight;
    return RS_OK;
}

/* Exponential intervals: arrivals as of many people who know nothing of each other. */
static void next_arrival(struct run *x)
{
    double u = (double)(rnd(&x->random) >> 11) * 0x1p-53;
    x->next_us += (uint64_t)(-log(1 - u) / x->spec->rate * 1e6);
}

static enum rs_result send_due(struct run *x, struct rs_error *err)
{
    enum rs_result r = RS_OK;
    while (r == RS_OK && x->sent < x->spec->n_requests && x->in_flight < x->spec->concurrency) {
        if (x->spec->rate > 0 && now_us() < x->next_us)
            break;
        r = send_one(x, err);
        if (x->spec->rate > 0)
            next_arrival(x);
    }
    return r;
}

static void show(struct run *x)
{
    uint64_t now = now_us();
    struct rs_snapshot s;
    if (rs_snapshot_read(x->con->engine, &s)) {
        double share = s.cache_blocks_total > 0 ? (double)s.cache_blocks_used / s.cache_blocks_total : 0;
        x->r->peak_cache = share > x->r->peak_cache ? share : x->r->peak_cache;
        x->r->peak_running = s.running > x->r->peak_running ? s.running : x->r->peak_running;
    }
    if (!x->con->out->terminal || now - x->shown_us < PROGRESS_US)
        return;
    x->shown_us = now;
    int filled = (int)(24 * x->ended / x->spec->n_requests);
    char *line = xasprintf("%s  [%.*s%.*s] %zu of %zu requests, %.1f s", x->spec->label, filled, "########################", 24 - filled,
                           "........................", x->ended, x->spec->n_requests, (double)(now - x->start_us) / 1e6);
    x->con->out->progress(x->con->out, line);
    free(line);
}

static enum rs_result loop(struct run *x, struct rs_error *err)
{
    const struct timespec pause = {.tv_nsec = FETCH_US * 1000L};
    while (x->ended < x->spec->n_requests) {
        enum rs_result r = send_due(x, err);
        if (r == RS_OK) {
            if (con_wait_plain(x->con, NULL, 20) & (CON_WAKE_INTERRUPT | CON_WAKE_END))
                return fail_set(err, RS_ECANCELLED, "interrupted");
            nanosleep(&pause, NULL); /* the rest of a step's tokens come right behind the first one */
            r = drain(x, err);
        }
        if (r != RS_OK)
            return r;
        show(x);
    }
    return RS_OK;
}

static void compare(struct load_request *q, const struct load_prompt *p)
{
    if (p->alone == NULL || q->error != NULL)
        return;
    size_t i = 0;
    while (i < q->n_tokens && i < p->n_alone && q->tokens[i] == p->alone[i])
        i++;
    q->compared = true;
    q->differs_at = i;
    q->identical = i == q->n_tokens && i == p->n_alone;
}

static void count_up(const struct load_spec *spec, struct load_result *r)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (size_t i = 0; i < r->n; i++) {
        struct load_request *q = &r->requests[i];
        const struct load_prompt *p = &spec->prompts[i % spec->n_prompts];
        compare(q, p);
        first = q->submit_us < first ? q->submit_us : first;
        last = q->done_us > last ? q->done_us : last;
        if (q->error != NULL) {
            r->failed++;
            continue;
        }
        r->completed++;
        r->input_tokens += p->n;
        r->output_tokens += q->n_tokens;
        r->cached_tokens += q->cached;
        r->compared += q->compared;
        r->identical += q->identical;
    }
    r->seconds = r->n > 0 ? (double)(last - first) / 1e6 : 0;
}

static void add_counters(struct load_result *r, const json_t *c, double sign)
{
    r->steps += sign * js_num(c, "steps", NAN);
    r->step_ms += sign * js_num(c, "step_ms", NAN);
    r->decode_rows += sign * js_num(c, "decode_rows", NAN);
    r->prompt_rows += sign * js_num(c, "prompt_rows", NAN);
    r->preemptions += sign * js_num(c, "preemptions", NAN);
    r->held_after = (size_t)js_int(c, "cache.held", 0);
}

static enum rs_result counters(struct con *con, struct load_result *r, double sign, struct rs_error *err)
{
    json_t *c;
    enum rs_result rc = con_request(con, "load", NULL, &c, err);
    if (rc == RS_OK) {
        add_counters(r, c, sign);
        json_decref(c);
    }
    return rc;
}

enum rs_result load_run(struct con *con, const struct load_spec *spec, struct load_result *out, struct rs_error *err)
{
    struct load_result r = {.n = spec->n_requests, .concurrency = spec->concurrency, .requests = xcalloc(spec->n_requests, sizeof *r.requests)};
    struct run x = {.con = con, .spec = spec, .r = &r, .random = 0x9e3779b97f4a7c15u};
    enum rs_result rc = counters(con, &r, -1, err);
    x.start_us = x.next_us = now_us();
    if (rc == RS_OK)
        rc = loop(&x, err);
    if (rc == RS_OK)
        rc = counters(con, &r, 1, err);
    con->out->progress(con->out, NULL);
    free(x.of_stream);
    if (rc != RS_OK) {
        load_result_fini(&r);
        return rc;
    }
    count_up(spec, &r);
    *out = r;
    return RS_OK;
}

enum rs_result load_alone(struct con *con, struct load_spec *spec, struct rs_error *err)
{
    struct load_spec one = *spec;
    struct load_result r;
    one.concurrency = 1;
    one.n_requests = spec->n_prompts;
    one.rate = 0;
    one.label = "each prompt alone";
    for (size_t i = 0; i < spec->n_prompts; i++) {
        free(spec->prompts[i].alone);
        spec->prompts[i].alone = NULL;
    }
    enum rs_result rc = load_run(con, &one, &r, err);
    if (rc != RS_OK)
        return rc;
    for (size_t i = 0; i < r.n && rc == RS_OK; i++) {
        struct load_request *q = &r.requests[i];
        if (q->error != NULL) {
            rc = fail_set(err, RS_EENGINE, "a prompt alone: %s", q->error);
            break;
        }
        spec->prompts[i].alone = q->tokens;
        spec->prompts[i].n_alone = q->n_tokens;
        q->tokens = NULL;
    }
    load_result_fini(&r);
    return rc;
}
