#include "config.h"

#include "console/http_logprobs.h"

#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/text.h"

bool http_pieces_copy(struct http_pieces *out, size_t n, const void *blob, size_t len)
{
    size_t head = (n + 1) * sizeof *out->start;
    if (n == 0 || len < head)
        return false;
    uint32_t *start = xcalloc(1, len);
    memcpy(start, blob, len);
    bool good = len - head >= start[n];
    for (size_t i = 0; i < n; i++)
        good = good && start[i] <= start[i + 1];
    if (good)
        *out = (struct http_pieces){.start = start, .bytes = (const char *)(start + n + 1), .n = n};
    else
        free(start);
    return good;
}

enum rs_result http_pieces_open(struct con *con, struct http_pieces *out, struct rs_error *err)
{
    json_t *reply;
    void *blob = NULL;
    size_t len = 0;
    enum rs_result r = con_request_blob(con, "pieces", NULL, &reply, &blob, &len, err);
    if (r != RS_OK)
        return r;
    size_t n = (size_t)js_int(reply, "n", 0);
    json_decref(reply);
    bool good = http_pieces_copy(out, n, blob, len);
    free(blob);
    return good ? RS_OK : fail_set(err, RS_EINTERNAL, "the engine sent a vocabulary of %zu tokens in %zu bytes", n, len);
}

void http_pieces_close(struct http_pieces *p)
{
    free(p->start);
    *p = (struct http_pieces){0};
}

const char *http_piece(const struct http_pieces *p, long long id, size_t *len)
{
    bool known = id >= 0 && (size_t)id < p->n;
    *len = known ? p->start[id + 1] - p->start[id] : 0;
    return known ? p->bytes + p->start[id] : "";
}

void http_logprobs_add(struct http_logprobs *l, int top, const struct rs_event *ev)
{
    size_t each = (size_t)top + 1;
    if (ev->flags & RS_TOKEN_THINKING || !(ev->flags & RS_TOKEN_SPECIAL)) { /* control tokens are no part of a text */
        struct http_logprob_list *s = ev->flags & RS_TOKEN_THINKING ? &l->thought : &l->text;
        if (ev->token >= 0 && ev->blob_len == each * sizeof *s->v) {
            if (s->n == s->cap) {
                s->cap = s->cap == 0 ? 64 : s->cap * 2;
                s->v = xreallocarray(s->v, s->cap * each, sizeof *s->v);
            }
            memcpy(s->v + s->n++ * each, ev->blob, ev->blob_len);
        }
    }
    l->shown += ev->flags & RS_TOKEN_THINKING ? 0 : ev->text_len;
}

void http_logprobs_fini(struct http_logprobs *l)
{
    free(l->text.v);
    free(l->thought.v);
    *l = (struct http_logprobs){0};
}

/* The next entry that may go out, or NULL. `chars`: characters of the text before it. */
static const struct http_logprob *take(struct http_logprob_list *s, int top, const struct http_pieces *p, size_t limit, size_t *chars)
{
    if (s->next == s->n || s->start >= limit)
        return NULL;
    const struct http_logprob *e = s->v + s->next++ * ((size_t)top + 1);
    size_t len;
    const char *text = http_piece(p, e->id, &len);
    *chars = s->chars;
    s->start += len;
    for (size_t i = 0; i < len; i++)
        s->chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    return e;
}

/* ---- chat ---------------------------------------------------------------------------------------------------------------------------------- */

static json_t *chat_token(const struct http_logprob *e, const struct http_pieces *p)
{
    size_t len;
    const char *text = http_piece(p, e->id, &len);
    json_t *bytes = json_array();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    return json_pack("{s:o, s:f, s:o}", "token", js_text(text, len), "logprob", (double)e->logprob, "bytes", bytes);
}

static json_t *chat_list(struct http_logprob_list *s, int top, const struct http_pieces *p, size_t limit)
{
    const struct http_logprob *e;
    json_t *list = json_array();
    size_t chars;
    while ((e = take(s, top, p, limit, &chars)) != NULL) {
        json_t *o = chat_token(e, p), *likeliest = json_array();
        for (int k = 1; k <= top && e[k].id >= 0; k++)
            json_array_append_new(likeliest, chat_token(&e[k], p));
        json_object_set_new(o, "top_logprobs", likeliest);
        json_array_append_new(list, o);
    }
    return list;
}

json_t *http_logprobs_chat(struct http_logprobs *l, int top, const struct http_pieces *p, bool last, size_t limit)
{
    json_t *content = chat_list(&l->text, top, p, last ? limit : l->shown), *thought = chat_list(&l->thought, top, p, SIZE_MAX);
    json_t *o = json_object();
    if (json_array_size(content) + json_array_size(thought) == 0 && !last) {
        json_decref(content);
        json_decref(thought);
        json_decref(o);
        return json_null();
    }
    json_object_set_new(o, "content", content);
    json_object_set_new(o, "refusal", json_null());
    if (json_array_size(thought) > 0)
        json_object_set(o, "reasoning_content", thought);
    json_decref(thought);
    return o;
}

/* ---- completions --------------------------------------------------------------------------------------------------------------------------- */

/* Half characters have no text of their own: "bytes:\xe2\x80". Caller frees. */
static char *completion_token(int32_t id, const struct http_pieces *p)
{
    size_t len, bad;
    const char *text = http_piece(p, id, &len);
    if (text_valid(text, len, &bad))
        return xstrndup(text, len);
    struct buf b = {0};
    buf_str(&b, "bytes:");
    for (size_t i = 0; i < len; i++)
        buf_printf(&b, "\\x%02x", (unsigned char)text[i]);
    return buf_take(&b);
}

json_t *http_logprobs_completion(struct http_logprobs *l, int top, const struct http_pieces *p, bool last, size_t limit)
{
    json_t *tokens = json_array(), *own = json_array(), *likeliest = json_array(), *offset = json_array();
    const struct http_logprob *e;
    size_t chars;
    while ((e = take(&l->text, top, p, last ? limit : l->shown, &chars)) != NULL) {
        json_t *o = json_object();
        for (int k = 0; k <= top && e[k].id >= 0; k++) { /* the token itself is among them, whether it is likely or not */
            char *text = completion_token(e[k].id, p);
            json_object_set_new(o, text, json_real((double)e[k].logprob));
            if (k == 0)
                json_array_append_new(tokens, json_string(text));
            free(text);
        }
        json_array_append_new(own, json_real((double)e->logprob));
        json_array_append_new(likeliest, o);
        json_array_append_new(offset, json_integer((json_int_t)chars));
    }
    if (json_array_size(tokens) == 0 && !last) {
        json_decref(tokens);
        json_decref(own);
        json_decref(likeliest);
        json_decref(offset);
        return json_null();
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", own, "top_logprobs", likeliest, "text_offset", offset);
}
