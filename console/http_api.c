#include "config.h"

#include "console/http_api.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/text.h"

void api_error_set(struct api_error *e, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    *e = (struct api_error){.status = status, .type = type, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param != NULL ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
}

char *api_error_json(const struct api_error *e)
{
    json_t *o = json_object();
    json_object_set_new(o, "message", js_text(e->message, strlen(e->message)));
    json_object_set_new(o, "type", json_string(e->type));
    json_object_set_new(o, "param", e->param[0] != '\0' ? js_text(e->param, strlen(e->param)) : json_null());
    json_object_set_new(o, "code", e->code != NULL ? json_string(e->code) : json_null());
    json_t *root = json_object();
    json_object_set_new(root, "error", o);
    char *text = js_dump(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

void api_error_engine(struct api_error *e, enum rs_result code, const char *message)
{
    switch (code) {
    case RS_EUSAGE: api_error_set(e, 400, "invalid_request_error", NULL, NULL, "%s", message); break;
    case RS_ENOTFOUND: api_error_set(e, 404, "not_found_error", NULL, NULL, "%s", message); break;
    case RS_ENOMEM:
    case RS_ESTATE: api_error_set(e, 503, "service_unavailable_error", NULL, NULL, "%s", message); break;
    default: api_error_set(e, 500, "server_error", NULL, NULL, "%s", message); break;
    }
}

/* ---- fields -------------------------------------------------------------------------------------------------------------------------------- */

/* One body being read: the first mistake sticks. */
struct reader {
    const json_t *body;
    struct api_error *e;
    bool bad;
};

static void wrong(struct reader *r, const char *param, const char *what)
{
    if (!r->bad)
        api_error_set(r->e, 400, "invalid_request_error", NULL, param, "'%s' %s", param, what);
    r->bad = true;
}

/* The member, or NULL when it is missing or null. */
static json_t *member(struct reader *r, const char *name)
{
    json_t *v = json_object_get(r->body, name);
    return json_is_null(v) ? NULL : v;
}

static bool read_bool(struct reader *r, const char *name, bool def)
{
    const json_t *v = member(r, name);
    if (v != NULL && !json_is_boolean(v))
        wrong(r, name, "must be true or false");
    return v != NULL ? json_is_true(v) : def;
}

static long read_int(struct reader *r, const char *name, long min, long max, long def)
{
    const json_t *v = member(r, name);
    char what[80];
    if (v == NULL)
        return def;
    if (json_is_integer(v) && json_integer_value(v) >= min && json_integer_value(v) <= max)
        return (long)json_integer_value(v);
    snprintf(what, sizeof what, "must be a whole number from %ld to %ld", min, max);
    wrong(r, name, what);
    return def;
}

/* A number that goes to the engine under its own name. */
static void pass_number(struct reader *r, json_t *to, const char *name, const char *as, double min, double max)
{
    const json_t *v = member(r, name);
    char what[80];
    if (v == NULL)
        return;
    if (json_is_number(v) && json_number_value(v) >= min && json_number_value(v) <= max) {
        json_object_set_new(to, as, json_real(json_number_value(v)));
        return;
    }
    snprintf(what, sizeof what, "must be a number from %g to %g", min, max);
    wrong(r, name, what);
}

static void read_stops(struct reader *r, json_t *to)
{
    json_t *v = member(r, "stop");
    if (v == NULL)
        return;
    json_t *list = json_is_string(v) ? json_pack("[O]", v) : json_incref(v);
    if (!json_is_array(list) || json_array_size(list) > API_MAX_STOPS)
        wrong(r, "stop", "must be a string or a list of at most 16 strings");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        if (!json_is_string(s) || json_string_length(s) == 0 || json_string_length(s) > 256)
            wrong(r, "stop", "holds something other than strings of 1 to 256 bytes");
    }
    if (json_array_size(list) > 0)
        json_object_set(to, "stop", list);
    json_decref(list);
}

static void read_bias(struct reader *r, json_t *to)
{
    json_t *v = member(r, "logit_bias"), *bias;
    const char *key;
    if (v == NULL)
        return;
    if (!json_is_object(v) || json_object_size(v) > 64) {
        wrong(r, "logit_bias", "must be an object of at most 64 token ids");
        return;
    }
    json_object_foreach(v, key, bias)
        if (key[0] == '\0' || key[strspn(key, "0123456789")] != '\0' || strlen(key) > 9 || !json_is_number(bias) || json_number_value(bias) < -100 ||
            json_number_value(bias) > 100)
            wrong(r, "logit_bias", "must map token ids to numbers from -100 to 100");
    json_object_set(to, "logit_bias", v);
}

/* Wishes that would change the answer and cannot be met are refused rather than passed over. */
static void refuse(struct reader *r)
{
    static const char *const absent[] = {"tools", "functions", "response_format", "guided_json", "guided_regex", "guided_grammar", "grammar", "audio",
                                         "prompt_logprobs", "suffix", NULL};
    for (int i = 0; absent[i] != NULL; i++) {
        const json_t *v = member(r, absent[i]);
        bool text = strcmp(absent[i], "response_format") == 0 && strcmp(js_str(v, "type", ""), "text") == 0;
        bool empty = json_is_array(v) && json_array_size(v) == 0;
        if (v != NULL && !text && !empty && !(json_is_string(v) && json_string_length(v) == 0))
            wrong(r, absent[i], "is not supported by this server");
    }
    if (read_int(r, "best_of", 1, API_MAX_CHOICES, 1) != 1)
        wrong(r, "best_of", "is not supported by this server");
    if (read_int(r, "min_tokens", 0, 1 << 24, 0) != 0)
        wrong(r, "min_tokens", "is not supported by this server; ignore_eos makes all max_tokens");
}

/* A chat says whether and how many in two fields, a completion in one. */
static void read_logprobs(struct reader *r, struct api_request *q)
{
    q->logprobs = -1;
    if (q->kind == API_CHAT) {
        bool on = read_bool(r, "logprobs", false);
        long top = read_int(r, "top_logprobs", 0, API_MAX_LOGPROBS, 0);
        if (top > 0 && !on)
            wrong(r, "top_logprobs", "needs logprobs to be true");
        q->logprobs = on ? (int)top : -1;
    } else {
        q->logprobs = (int)read_int(r, "logprobs", 0, API_MAX_LOGPROBS, -1);
        q->echo = read_bool(r, "echo", false);
        if (q->echo && q->logprobs >= 0)
            wrong(r, "echo", "cannot be had together with logprobs: there are none of the prompt");
    }
    if (q->logprobs >= 0)
        json_object_set_new(q->submit, "logprobs", json_integer(q->logprobs));
}

static void read_sampling(struct reader *r, struct api_request *q)
{
    json_t *to = q->submit = json_object();
    json_object_set_new(to, "temp", json_real(1));
    pass_number(r, to, "temperature", "temp", 0, 2);
    pass_number(r, to, "top_p", "top_p", 0, 1);
    pass_number(r, to, "min_p", "min_p", 0, 1);
    pass_number(r, to, "typical_p", "typical_p", 0, 1);
    pass_number(r, to, "frequency_penalty", "frequency_penalty", -2, 2);
    pass_number(r, to, "presence_penalty", "presence_penalty", -2, 2);
    pass_number(r, to, "repetition_penalty", "repeat_penalty", 0.01, 100);
    long top_k = read_int(r, "top_k", -1, 1 << 24, 0); /* -1 is what some clients send for all */
    json_object_set_new(to, "top_k", json_integer(top_k > 0 ? top_k : 0));
    const json_t *seed = member(r, "seed");
    if (seed != NULL && !json_is_integer(seed))
        wrong(r, "seed", "must be a whole number");
    q->seeded = seed != NULL;
    q->seed = json_integer_value(seed);
    long most = read_int(r, "max_tokens", 1, 1 << 24, 0);
    most = read_int(r, "max_completion_tokens", 1, 1 << 24, most);
    if (most > 0)
        json_object_set_new(to, "max_tokens", json_integer(most));
    json_object_set_new(to, "ignore_eos", json_boolean(read_bool(r, "ignore_eos", false)));
    read_stops(r, to);
    read_bias(r, to);
}

static void read_stream(struct reader *r, struct api_request *q)
{
    q->stream = read_bool(r, "stream", false);
    const json_t *o = member(r, "stream_options");
    if (o == NULL)
        return;
    if (!json_is_object(o)) {
        wrong(r, "stream_options", "must be an object");
        return;
    }
    struct reader in = {.body = o, .e = r->e};
    q->usage = read_bool(&in, "include_usage", false);
    q->usage_each = read_bool(&in, "continuous_usage_stats", false);
    r->bad |= in.bad;
}

/* ---- prompts ------------------------------------------------------------------------------------------------------------------------------- */

/* "content": a string, or a list of parts of type text. New reference, or NULL. */
static json_t *content_text(const json_t *v)
{
    struct buf b = {0};
    if (v == NULL || json_is_null(v))
        return json_string("");
    if (json_is_string(v))
        return json_incref((json_t *)(uintptr_t)v);
    bool good = json_is_array(v);
    for (size_t i = 0; good && i < json_array_size(v); i++) {
        const json_t *part = json_array_get(v, i), *text = json_object_get(part, "text");
        const char *type = js_str(part, "type", "text");
        good = json_is_string(text) && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0);
        if (good)
            buf_add(&b, json_string_value(text), json_string_length(text));
    }
    json_t *out = good ? js_text(b.text != NULL ? b.text : "", b.len) : NULL;
    buf_fini(&b);
    return out;
}

static void read_messages(struct reader *r, struct api_request *q)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool", NULL};
    const json_t *list = member(r, "messages");
    if (!json_is_array(list) || json_array_size(list) == 0) {
        wrong(r, "messages", "must be a list with at least one message");
        return;
    }
    q->messages = json_array();
    for (size_t i = 0; i < json_array_size(list) && !r->bad; i++) {
        const json_t *m = json_array_get(list, i), *thought = json_object_get(m, "reasoning_content");
        const char *role = js_str(m, "role", "");
        int k = 0;
        if (strcmp(role, "developer") == 0)
            role = "system";
        while (roles[k] != NULL && strcmp(role, roles[k]) != 0)
            k++;
        json_t *text = content_text(json_object_get(m, "content"));
        if (roles[k] == NULL)
            wrong(r, "messages", "holds a message whose role is none of system, developer, user, assistant, tool");
        else if (text == NULL)
            wrong(r, "messages", "holds a message whose content is neither a string nor a list of text parts");
        else
            json_array_append_new(q->messages, json_pack("{s:s, s:O}", "role", roles[k], "content", text));
        if (!r->bad && json_is_string(thought))
            json_object_set(json_array_get(q->messages, i), "thinking", (json_t *)(uintptr_t)thought);
        json_decref(text);
    }
}

/* Whether the model shall think: chat_template_kwargs.enable_thinking (or .thinking), else reasoning_effort. */
static void read_think(struct reader *r, struct api_request *q)
{
    const json_t *kw = member(r, "chat_template_kwargs"), *effort = member(r, "reasoning_effort");
    if (kw != NULL && !json_is_object(kw))
        wrong(r, "chat_template_kwargs", "must be an object");
    const json_t *on = json_object_get(kw, "enable_thinking");
    on = on != NULL ? on : json_object_get(kw, "thinking");
    if (on != NULL && !json_is_boolean(on) && !json_is_null(on))
        wrong(r, "chat_template_kwargs", "holds an enable_thinking that is neither true nor false");
    if (json_is_boolean(on))
        q->think = json_is_true(on) ? CON_THINK_ON : CON_THINK_OFF;
    else if (json_is_string(effort))
        q->think = strcmp(json_string_value(effort), "none") == 0 ? CON_THINK_OFF : CON_THINK_ON;
    else if (effort != NULL)
        wrong(r, "reasoning_effort", "must be a string");
}

static bool is_ids(const json_t *v)
{
    bool good = json_is_array(v) && json_array_size(v) > 0;
    for (size_t i = 0; good && i < json_array_size(v); i++)
        good = json_is_integer(json_array_get(v, i));
    return good;
}

static void read_prompts(struct reader *r, struct api_request *q)
{
    json_t *v = member(r, "prompt");
    bool one = json_is_string(v) || is_ids(v);
    if (!one && (!json_is_array(v) || json_array_size(v) == 0)) {
        wrong(r, "prompt", "must be a string, a list of token ids, or a list of those");
        return;
    }
    q->prompts = one ? json_pack("[O]", v) : json_incref(v);
    for (size_t i = 0; i < json_array_size(q->prompts); i++) {
        const json_t *p = json_array_get(q->prompts, i);
        if (!json_is_string(p) && !is_ids(p))
            wrong(r, "prompt", "must be a string, a list of token ids, or a list of those");
    }
}

static void read_generation(struct reader *r, struct api_request *q)
{
    q->n = read_int(r, "n", 1, API_MAX_CHOICES, 1);
    refuse(r);
    read_sampling(r, q);
    read_logprobs(r, q);
    read_stream(r, q);
    if (q->kind == API_CHAT) {
        read_messages(r, q);
        read_think(r, q);
        return;
    }
    read_prompts(r, q);
    if ((size_t)q->n * json_array_size(q->prompts) > API_MAX_CHOICES)
        wrong(r, "n", "times the number of prompts is more than 64");
}

static void read_tokenize(struct reader *r, struct api_request *q)
{
    const json_t *text = member(r, "prompt");
    text = text != NULL ? text : member(r, "content");
    if (!json_is_string(text))
        wrong(r, "prompt", "must be a string");
    else
        q->engine = json_pack("{s:O}", "text", text);
}

static void read_detokenize(struct reader *r, struct api_request *q)
{
    const json_t *ids = member(r, "tokens");
    if (!is_ids(ids) && !(json_is_array(ids) && json_array_size(ids) == 0))
        wrong(r, "tokens", "must be a list of token ids");
    else
        q->engine = json_pack("{s:O, s:b}", "ids", ids, "special", 1);
}

bool api_parse(enum api_kind kind, const char *body, size_t len, struct api_request *out, struct api_error *e)
{
    json_error_t je;
    json_t *root = json_loadb(body, len, 0, &je);
    struct reader r = {.body = root, .e = e};
    *out = (struct api_request){.kind = kind, .n = 1, .logprobs = -1};
    if (!json_is_object(root)) {
        char *what = text_one_line(root == NULL ? je.text : "it is not an object");
        api_error_set(e, 400, "invalid_request_error", NULL, NULL, "the body is no JSON object: %s", what);
        free(what);
        json_decref(root);
        return false;
    }
    const json_t *model = member(&r, "model");
    if (model != NULL && !json_is_string(model))
        wrong(&r, "model", "must be a string");
    else if (model != NULL)
        out->model = xstrdup(json_string_value(model));
    switch (kind) {
    case API_CHAT:
    case API_COMPLETION: read_generation(&r, out); break;
    case API_TOKENIZE: read_tokenize(&r, out); break;
    case API_DETOKENIZE: read_detokenize(&r, out); break;
    }
    json_decref(root);
    if (r.bad)
        api_free(out);
    return !r.bad;
}

void api_free(struct api_request *r)
{
    free(r->model);
    json_decref(r->submit);
    json_decref(r->messages);
    json_decref(r->prompts);
    json_decref(r->engine);
    *r = (struct api_request){0};
}
