/* One call, from the client's wish to submits, and from the engine's events to text. The bridge's thread. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "console/chat.h"
#include "console/fail.h"
#include "console/http.h"
#include "console/js.h"

static const char *const s_metrics_methods[] = {"load", "allreduce", "info"};

/* ---- streams ------------------------------------------------------------------------------------------------------------------------------- */

static struct http_choice **slot(struct http *h, uint32_t stream)
{
    return &h->streams[stream % (sizeof h->streams / sizeof h->streams[0])];
}

static struct http_choice *find(struct http *h, uint32_t stream)
{
    struct http_choice *c = *slot(h, stream);
    while (c != NULL && c->stream != stream)
        c = c->next;
    return c;
}

static void forget(struct http *h, struct http_choice *c)
{
    struct http_choice **at = slot(h, c->stream);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
}

/* ---- answers ------------------------------------------------------------------------------------------------------------------------------- */

/* Add to what the client is to read; b is emptied. The connection goes on. */
static void add_out(struct http *h, struct http_call *q, struct buf *b, bool last)
{
    pthread_mutex_lock(&h->lock);
    if (b->len > 0)
        buf_add(&q->out, b->text, b->len);
    q->finished |= last;
    if (q->out.len - q->out_at > h->limits.unread && !q->finished) {
        q->gone = true; /* it does not read: the stream ends for it, and its sequence with it */
        q->finished = true;
        buf_fini(&q->out);
        q->out_at = 0;
    }
    http_resume(h, q);
    pthread_mutex_unlock(&h->lock);
    buf_fini(b);
}

/* The whole answer; text is taken. */
static void answer(struct http *h, struct http_call *q, int status, char *text)
{
    struct buf b = {0};
    buf_str(&b, text);
    free(text);
    pthread_mutex_lock(&h->lock);
    q->answered = true;
    q->status = status;
    pthread_mutex_unlock(&h->lock);
    add_out(h, q, &b, true);
}

void http_call_note(struct http *h, struct http_call *q, const char *text)
{
    struct buf b = {0};
    if (!q->sse || q->finished)
        return;
    buf_printf(&b, ": %s\n\n", text);
    add_out(h, q, &b, false);
}

void http_call_fail(struct http *h, struct http_call *q)
{
    char *text = api_error_json(&q->error);
    if (!q->answered) {
        answer(h, q, q->error.status, text);
        return;
    }
    struct buf b = {0};
    if (!q->finished) {
        buf_printf(&b, "data: %s\n\ndata: [DONE]\n\n", text);
        add_out(h, q, &b, true);
    }
    free(text);
}

static void begin_stream(struct http *h, struct http_call *q)
{
    struct buf b = {0};
    for (size_t i = 0; i < q->n_choices; i++) {
        struct buf *echo = &q->choices[i].echo;
        if (q->route == HTTP_CHAT || echo->len > 0)
            http_reply_delta(h, q, i, echo->len > 0 ? echo->text : "", echo->len, false, true, &b);
    }
    pthread_mutex_lock(&h->lock);
    q->answered = q->sse = true;
    q->status = 200;
    pthread_mutex_unlock(&h->lock);
    add_out(h, q, &b, false);
}

/* ---- to the engine -------------------------------------------------------------------------------------------------------------------------- */

enum rs_result http_send(struct http *h, const char *method, const char *args, struct http_call *q, size_t part, struct rs_error *err)
{
    struct http_pending *p = xcalloc(1, sizeof *p);
    enum rs_result r = rs_send(h->con->engine, method, args, &p->id, err);
    if (r != RS_OK) {
        free(p);
        return r;
    }
    p->call = q;
    p->part = part;
    *h->pending_last = p;
    h->pending_last = &p->next;
    if (q != NULL)
        q->n_replies++;
    return RS_OK;
}

static json_t *segment(const char *text, size_t len, bool special)
{
    return json_pack("{s:o, s:b}", "text", js_text(text, len), "special", (int)special);
}

/* The conversation as the model was trained to read it. Only the template's own marks may become control tokens. */
static enum rs_result render(struct http *h, const struct http_call *q, json_t **segments, bool *thinking, struct rs_error *err)
{
    static const enum scr_think think[] = {SCR_THINK_DEFAULT, SCR_THINK_ON, SCR_THINK_OFF};
    struct scr_rendered out;
    enum rs_result r = chat_need_template(h->con, err);
    if (r != RS_OK)
        return r;
    size_t n = json_array_size(q->api.messages);
    struct scr_message *m = xcalloc(n, sizeof *m);
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(q->api.messages, i);
        m[i] = (struct scr_message){.role = js_str(o, "role", ""), .content = js_str(o, "content", ""), .thinking = js_str(o, "thinking", NULL)};
    }
    r = scr_template_render(h->con->tmpl, m, n, think[q->api.think], &out, err);
    free(m);
    if (r != RS_OK)
        return r;
    *segments = json_array();
    for (size_t i = 0; i < out.n; i++)
        json_array_append_new(*segments, segment(out.segments[i].text, out.segments[i].len, out.segments[i].special));
    *thinking = out.thinking;
    scr_rendered_fini(&out);
    return RS_OK;
}

/* Arguments of choice i's submit. */
static enum rs_result submit_args(struct http *h, struct http_call *q, size_t i, json_t *rendered, bool thinking, char **text)
{
    json_t *args = json_deep_copy(q->api.submit);
    const json_t *prompt = json_array_get(q->api.prompts, i / (size_t)q->api.n);
    (void)h;
    if (rendered != NULL)
        json_object_set(args, "segments", rendered);
    else if (json_is_string(prompt))
        json_object_set_new(args, "segments", json_pack("[o]", segment(json_string_value(prompt), json_string_length(prompt), false)));
    else
        json_object_set(args, "ids", (json_t *)(uintptr_t)prompt);
    if (thinking)
        json_object_set_new(args, "thinking", json_true());
    if (q->api.seeded) /* answers to one prompt differ, and are the same each time */
        json_object_set_new(args, "seed", json_integer((json_int_t)((uint64_t)q->api.seed + i % (size_t)q->api.n)));
    *text = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    return *text != NULL ? RS_OK : RS_ENOMEM;
}

static void put_prompt(const struct http *h, const json_t *prompt, struct buf *to)
{
    if (json_is_string(prompt)) {
        buf_add(to, json_string_value(prompt), json_string_length(prompt));
        return;
    }
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        size_t len;
        const char *text = http_piece(&h->pieces, json_integer_value(json_array_get(prompt, i)), &len);
        buf_add(to, text, len);
    }
}

static enum rs_result begin_generation(struct http *h, struct http_call *q, struct rs_error *err)
{
    json_t *rendered = NULL;
    bool thinking = false;
    enum rs_result r = q->route == HTTP_CHAT ? render(h, q, &rendered, &thinking, err) : RS_OK;
    size_t prompts = q->route == HTTP_CHAT ? 1 : json_array_size(q->api.prompts);
    q->n_choices = r == RS_OK ? prompts * (size_t)q->api.n : 0;
    q->choices = xcalloc(q->n_choices + 1, sizeof *q->choices);
    for (size_t i = 0; i < q->n_choices && r == RS_OK; i++) {
        char *args = NULL;
        q->choices[i].call = q;
        if (q->api.echo)
            put_prompt(h, json_array_get(q->api.prompts, i / (size_t)q->api.n), &q->choices[i].echo);
        r = submit_args(h, q, i, rendered, thinking, &args);
        if (r == RS_OK)
            r = http_send(h, "submit", args, q, i, err);
        free(args);
        if (r != RS_OK)
            q->n_choices = i;
    }
    json_decref(rendered);
    return r;
}

static enum rs_result begin_metrics(struct http *h, struct http_call *q, struct rs_error *err)
{
    enum rs_result r = RS_OK;
    for (size_t i = 0; i < 3 && r == RS_OK; i++)
        r = http_send(h, s_metrics_methods[i], NULL, q, i, err);
    return r;
}

static enum rs_result begin_tokens(struct http *h, struct http_call *q, struct rs_error *err)
{
    char *args = json_dumps(q->api.engine, JSON_COMPACT);
    enum rs_result r = args == NULL ? RS_ENOMEM : http_send(h, q->route == HTTP_TOKENIZE ? "encode" : "decode", args, q, 0, err);
    free(args);
    return r;
}

bool http_call_begin(struct http *h, struct http_call *q, struct rs_error *err)
{
    static const char *const prefix[] = {"chatcmpl", "cmpl", "tok", "tok", "met"};
    static unsigned long s_count;
    enum rs_result r = RS_OK;
    snprintf(q->id, sizeof q->id, "%s-%lx%08lx", prefix[q->route], (unsigned long)h->started, ++s_count);
    q->created = (long)time(NULL);
    switch (q->route) {
    case HTTP_CHAT:
    case HTTP_COMPLETION: r = begin_generation(h, q, err); break;
    case HTTP_TOKENIZE:
    case HTTP_DETOKENIZE: r = begin_tokens(h, q, err); break;
    case HTTP_METRICS: r = begin_metrics(h, q, err); break;
    }
    if (r != RS_OK)
        api_error_engine(&q->error, r, err->msg);
    return r == RS_OK;
}

bool http_call_over(const struct http_call *q)
{
    return q->n_replies == 0 && q->n_done == q->n_choices;
}

/* ---- from the engine ------------------------------------------------------------------------------------------------------------------------ */

static void cancel_stream(struct http *h, struct http_choice *c)
{
    char args[48];
    struct rs_error err;
    snprintf(args, sizeof args, "{\"stream\":%u}", c->stream);
    http_send(h, "cancel", args, NULL, HTTP_OWN_NONE, &err); /* when the engine is gone, the loop finds out */
}

void http_call_cancel(struct http *h, struct http_call *q)
{
    if (q->cancelled)
        return;
    q->cancelled = true;
    for (size_t i = 0; i < q->n_choices; i++)
        if (q->choices[i].stream != 0 && !q->choices[i].done)
            cancel_stream(h, &q->choices[i]);
}

/* An answer to submit. When one of several is refused, the others end too. */
static void on_submitted(struct http *h, struct http_call *q, size_t i, const struct rs_event *ev, const json_t *json)
{
    struct http_choice *c = &q->choices[i];
    if (ev->status != RS_OK) {
        c->done = true;
        q->n_done++;
        if (q->error.status == 0)
            api_error_engine(&q->error, ev->status, js_str(json, "error.message", rs_result_name(ev->status)));
        http_call_cancel(h, q);
    } else {
        c->stream = (uint32_t)js_int(json, "stream", 0);
        q->prompt_tokens += i % (size_t)q->api.n == 0 ? (unsigned)js_int(json, "prompt_tokens", 0) : 0;
        c->next = *slot(h, c->stream);
        *slot(h, c->stream) = c;
        if (q->cancelled)
            cancel_stream(h, c);
        else if (q->api.stream && !q->answered)
            begin_stream(h, q);
    }
    if (q->n_replies == 0 && q->error.status != 0)
        http_call_fail(h, q);
}

static char *tokens_answer(const struct http *h, const struct http_call *q, const json_t *json)
{
    json_t *o = json_object();
    if (q->route == HTTP_TOKENIZE) {
        json_t *ids = json_object_get(json, "ids");
        json_object_set_new(o, "count", json_integer((json_int_t)json_array_size(ids)));
        json_object_set_new(o, "max_model_len", json_integer(atomic_load(&h->context)));
        json_object_set(o, "tokens", ids);
    } else {
        json_object_set_new(o, "prompt", js_or_null(json, "text"));
        json_object_set_new(o, "content", js_or_null(json, "text"));
    }
    char *text = js_dump(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static void answer_metrics(struct http *h, struct http_call *q)
{
    json_t *part[3];
    struct rs_snapshot snapshot;
    uint64_t refused[5];
    size_t held = 0;
    for (int i = 0; i < 3; i++)
        part[i] = q->parts[i] != NULL ? js_parse(q->parts[i]) : NULL;
    pthread_mutex_lock(&h->lock);
    memcpy(refused, h->refused, sizeof refused);
    for (const struct http_call *w = h->inbox; w != NULL; w = w->inbox_next)
        held++;
    pthread_mutex_unlock(&h->lock);
    struct metrics_input in = {.model = h->model, .load = part[0], .allreduce = part[1], .info = part[2], .refused = refused, .waiting_here = held};
    in.snapshot = rs_snapshot_read(h->con->engine, &snapshot) ? &snapshot : NULL;
    answer(h, q, 200, metrics_text(&h->metrics, &in));
    for (int i = 0; i < 3; i++)
        json_decref(part[i]);
}

void http_call_reply(struct http *h, const struct http_pending *p, const struct rs_event *ev)
{
    struct http_call *q = p->call;
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    q->n_replies--;
    switch (q->route) {
    case HTTP_CHAT:
    case HTTP_COMPLETION: on_submitted(h, q, p->part, ev, json); break;
    case HTTP_METRICS:
        q->parts[p->part] = ev->status == RS_OK && ev->json != NULL ? xstrdup(ev->json) : NULL;
        if (q->n_replies == 0)
            answer_metrics(h, q);
        break;
    case HTTP_TOKENIZE:
    case HTTP_DETOKENIZE:
        if (ev->status != RS_OK) {
            api_error_engine(&q->error, ev->status, js_str(json, "error.message", rs_result_name(ev->status)));
            http_call_fail(h, q);
        } else {
            answer(h, q, 200, tokens_answer(h, q, json));
        }
        break;
    }
    json_decref(json);
}

void http_call_token(struct http *h, const struct rs_event *ev)
{
    struct http_choice *c = find(h, ev->id);
    if (c == NULL || c->done)
        return;
    struct http_call *q = c->call;
    struct buf b = {0};
    if (q->api.logprobs >= 0)
        http_logprobs_add(&c->logprobs, q->api.logprobs, ev);
    if (ev->token >= 0) {
        c->tokens++;
        q->out_tokens++;
        if (c->first_us == 0)
            c->first_us = ev->time_us;
        else
            histogram_add(&h->metrics.itl, (double)(ev->time_us - c->last_us) / 1e6);
        c->last_us = ev->time_us;
    }
    if (!q->api.stream || q->cancelled || !q->answered || (ev->text_len == 0 && !q->api.usage_each))
        return;
    http_reply_delta(h, q, (size_t)(c - q->choices), ev->text, ev->text_len, ev->flags & RS_TOKEN_THINKING, false, &b);
    add_out(h, q, &b, false);
}

static void count(struct http *h, const struct http_call *q, const struct http_choice *c, const json_t *done, uint64_t now)
{
    double ttft = c->first_us != 0 ? (double)(c->first_us - q->submit_us) / 1e6 : NAN;
    metrics_done(&h->metrics, done, ttft, (double)(now - q->submit_us) / 1e6, (long)js_int(q->api.submit, "max_tokens", 0));
}

void http_call_done(struct http *h, const struct rs_event *ev)
{
    struct http_choice *c = find(h, ev->id);
    if (c == NULL)
        return;
    struct http_call *q = c->call;
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    const char *stop = js_str(json, "stop", "error");
    count(h, q, c, json, ev->time_us);
    forget(h, c);
    c->done = true;
    q->n_done++;
    snprintf(c->stop, sizeof c->stop, "%s", stop);
    c->finish = strcmp(stop, "length") == 0 ? "length" : "stop";
    c->text = json_incref(js_at(json, "text"));
    c->thinking = json_incref(js_at(json, "thinking"));
    q->cached_tokens += c == q->choices ? (unsigned)js_int(json, "cached_tokens", 0) : 0;
    if (strcmp(stop, "error") == 0 || strcmp(stop, "cancelled") == 0) {
        const char *why = js_str(json, "error", strcmp(stop, "error") == 0 ? "the engine failed" : "the request was stopped");
        if (q->error.status == 0 && !q->cancelled)
            api_error_set(&q->error, strcmp(stop, "error") == 0 ? 500 : 503, "server_error", stop, NULL, "%s", why);
        if (!q->cancelled)
            http_call_cancel(h, q);
    }
    json_decref(json);
    struct buf b = {0};
    if (q->error.status == 0 && q->api.stream && q->answered && !q->cancelled) {
        http_reply_finish(h, q, (size_t)(c - q->choices), &b);
        if (q->n_done == q->n_choices)
            http_reply_end(h, q, &b);
        add_out(h, q, &b, q->n_done == q->n_choices);
    }
    if (q->n_done != q->n_choices || q->n_replies != 0)
        return;
    if (q->error.status != 0)
        http_call_fail(h, q);
    else if (!q->api.stream && !q->cancelled)
        answer(h, q, 200, http_reply_whole(h, q));
}
