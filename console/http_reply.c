/* What clients read: chunks of a stream, whole answers, the list of models. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/http.h"
#include "console/js.h"

static const char *object_name(const struct http_call *q, bool chunk)
{
    if (q->route == HTTP_CHAT)
        return chunk ? "chat.completion.chunk" : "chat.completion";
    return "text_completion";
}

static json_t *usage(const struct http_call *q)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", (int)q->prompt_tokens, "completion_tokens", (int)q->out_tokens, "total_tokens",
                     (int)(q->prompt_tokens + q->out_tokens), "prompt_tokens_details", "cached_tokens", (int)q->cached_tokens);
}

static json_t *frame(const struct http *h, const struct http_call *q, bool chunk, json_t *choices)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", json_string(q->id));
    json_object_set_new(o, "object", json_string(object_name(q, chunk)));
    json_object_set_new(o, "created", json_integer(q->created));
    json_object_set_new(o, "model", js_text(h->model, strlen(h->model)));
    json_object_set_new(o, "choices", choices);
    return o;
}

/* What is due of a choice's log-probabilities; last: the answer has ended. */
static json_t *logprobs(const struct http *h, struct http_call *q, size_t choice, bool last)
{
    struct http_choice *c = &q->choices[choice];
    size_t limit = last && strcmp(c->stop, "stop") == 0 ? json_string_length(c->text) : SIZE_MAX; /* a stop string took its tokens with it */
    if (q->api.logprobs < 0)
        return json_null();
    return q->route == HTTP_CHAT ? http_logprobs_chat(&c->logprobs, q->api.logprobs, &h->pieces, last, limit)
                                 : http_logprobs_completion(&c->logprobs, q->api.logprobs, &h->pieces, last, limit);
}

static void put_event(json_t *o, struct buf *out)
{
    char *text = js_dump(o, JSON_COMPACT);
    buf_str(out, "data: ");
    buf_str(out, text);
    buf_str(out, "\n\n");
    free(text);
    json_decref(o);
}

static json_t *chunk(const struct http *h, const struct http_call *q, json_t *choice)
{
    json_t *o = frame(h, q, true, json_pack("[o]", choice));
    if (q->api.usage_each)
        json_object_set_new(o, "usage", usage(q));
    return o;
}

/* A JSON value as text; o is consumed. */
static void put_json(json_t *o, struct buf *out)
{
    char *text = js_dump(o, JSON_COMPACT | JSON_ENCODE_ANY);
    buf_str(out, text);
    free(text);
    json_decref(o);
}

/* What all chunks of a call begin with. */
static void put_head(const struct http *h, struct http_call *q, struct buf *out)
{
    if (q->head.len == 0) {
        buf_printf(&q->head, "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%ld,\"model\":", q->id, object_name(q, true), q->created);
        put_json(js_text(h->model, strlen(h->model)), &q->head);
        buf_str(&q->head, ",\"choices\":[{\"index\":");
    }
    buf_add(out, q->head.text, q->head.len);
}

/* Written piece by piece: there is one for every token of every stream. */
void http_reply_delta(const struct http *h, struct http_call *q, size_t choice, const char *text, size_t len, bool thinking, bool first,
                      struct buf *out)
{
    put_head(h, q, out);
    buf_printf(out, "%zu,\"finish_reason\":null,", choice);
    if (q->route == HTTP_CHAT)
        buf_printf(out, "\"delta\":{%s\"%s\":", first ? "\"role\":\"assistant\"," : "", thinking ? "reasoning_content" : "content");
    else
        buf_str(out, "\"text\":");
    put_json(js_text(text, len), out);
    buf_str(out, q->route == HTTP_CHAT ? "},\"logprobs\":" : ",\"logprobs\":");
    put_json(first ? json_null() : logprobs(h, q, choice, false), out);
    buf_str(out, "}]");
    if (q->api.usage_each) {
        buf_str(out, ",\"usage\":");
        put_json(usage(q), out);
    }
    buf_str(out, "}\n\n");
}

void http_reply_finish(const struct http *h, struct http_call *q, size_t choice, struct buf *out)
{
    struct http_choice *x = &q->choices[choice];
    bool more = x->logprobs.text.next < x->logprobs.text.n || x->logprobs.thought.next < x->logprobs.thought.n;
    json_t *c = json_pack("{s:I, s:s, s:o}", "index", (json_int_t)choice, "finish_reason", x->finish, "logprobs",
                          more ? logprobs(h, q, choice, true) : json_null());
    if (q->route == HTTP_CHAT)
        json_object_set_new(c, "delta", json_object());
    else
        json_object_set_new(c, "text", json_string(""));
    put_event(chunk(h, q, c), out);
}

void http_reply_end(const struct http *h, const struct http_call *q, struct buf *out)
{
    if (q->api.usage) {
        json_t *o = frame(h, q, true, json_array());
        json_object_set_new(o, "usage", usage(q));
        put_event(o, out);
    }
    buf_str(out, "data: [DONE]\n\n");
}

static json_t *whole_choice(const struct http *h, struct http_call *q, size_t i)
{
    struct http_choice *c = &q->choices[i];
    json_t *o = json_pack("{s:I, s:s, s:o}", "index", (json_int_t)i, "finish_reason", c->finish, "logprobs", logprobs(h, q, i, true));
    if (q->route == HTTP_COMPLETION) {
        buf_add(&c->echo, json_string_value(c->text), json_string_length(c->text));
        json_object_set_new(o, "text", js_text(c->echo.text, c->echo.len));
        return o;
    }
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string("assistant"));
    json_object_set(m, "content", c->text);
    if (json_string_length(c->thinking) != 0)
        json_object_set(m, "reasoning_content", c->thinking);
    json_object_set_new(o, "message", m);
    return o;
}

char *http_reply_whole(const struct http *h, struct http_call *q)
{
    json_t *choices = json_array();
    for (size_t i = 0; i < q->n_choices; i++)
        json_array_append_new(choices, whole_choice(h, q, i));
    json_t *o = frame(h, q, false, choices);
    json_object_set_new(o, "usage", usage(q));
    char *text = js_dump(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

char *http_reply_models(const struct http *h)
{
    json_t *m = json_object();
    json_object_set_new(m, "id", js_text(h->model, strlen(h->model)));
    json_object_set_new(m, "object", json_string("model"));
    json_object_set_new(m, "created", json_integer(h->started));
    json_object_set_new(m, "owned_by", json_string("rankscope"));
    json_object_set_new(m, "max_model_len", json_integer(atomic_load(&h->context)));
    json_t *o = json_pack("{s:s, s:[o]}", "object", "list", "data", m);
    char *text = js_dump(o, JSON_COMPACT);
    json_decref(o);
    return text;
}
