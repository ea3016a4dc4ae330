/* fake_methods.c: the methods of docs/protocol.md, as far as a console can tell. */
#include "config.h"

#include "tests/fake_engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Methods and the arguments that they know. */
static const struct {
    const char *name, *args;
} s_methods[] = {
    {"hello", " protocol client control take serve "},
    {"open", " path ranks mode ctx max_seqs batch_tokens numerics patches graph_guard spec "},
    {"close", ""},
    {"load.cancel", ""},
    {"info", ""},
    {"set", " mode ranks numerics graph_guard spec "},
    {"audit", " ranks split path "},
    {"patch.list", ""},
    {"patch.set", " slot impl site dry "},
    {"patch.revert", " to "},
    {"patch.reset", ""},
    {"submit",
     " segments ids session temp top_k top_p min_p typical_p repeat_penalty frequency_penalty presence_penalty penalty_last_n logit_bias "
     "seed max_tokens stop special thinking ignore_eos logprobs "},
    {"cancel", " stream "},
    {"stream.get", " stream follow "},
    {"encode", " text segments special "},
    {"decode", " ids special "},
    {"forward", " ids logits layers "},
    {"session.new", " data "},
    {"session.put", " session data "},
    {"session.get", " session "},
    {"session.list", ""},
    {"session.drop", " session "},
    {"stats", " reset "},
    {"allreduce", ""},
    {"ledger", " limit "},
    {"requests", " limit "},
    {"program", " site "},
    {"health", " stream "},
    {"stop", ""},
    {"ping", ""},
};

static void fail(struct rs_engine *e, uint32_t id, enum rs_result code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static void fail(struct rs_engine *e, uint32_t id, enum rs_result code, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fake_post(e, RS_EVENT_REPLY, id, code, 0, json_pack("{s:{s:s, s:s}}", "error", "code", rs_result_name(code), "message", text), NULL, 0);
}

static void reply(struct rs_engine *e, uint32_t id, json_t *json)
{
    fake_post(e, RS_EVENT_REPLY, id, RS_OK, 0, json, NULL, 0);
}

static const char *str(const json_t *o, const char *key, const char *def)
{
    const json_t *v = json_object_get(o, key);
    return json_is_string(v) ? json_string_value(v) : def;
}

static json_t *state(struct rs_engine *e)
{
    return json_object_get(e->info, "state");
}

/* A key in a table by number. */
static const char *number(char *buf, size_t size, json_int_t n)
{
    snprintf(buf, size, "%lld", (long long)n);
    return buf;
}

/* ---- model --------------------------------------------------------------------------------------------------------------------------- */

static void do_open(struct rs_engine *e, uint32_t id, const json_t *args)
{
    const char *path = str(args, "path", "");
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail(e, id, RS_EIO, "%s: cannot open", path);
        return;
    }
    char magic[4] = "";
    size_t n = fread(magic, 1, 4, f);
    fclose(f);
    if (n != 4 || memcmp(magic, "GGUF", 4) != 0) {
        fail(e, id, RS_EFORMAT, "%s: offset 0: not a GGUF file", path);
        return;
    }
    json_t *patches = json_object_get(args, "patches");
    if (strcmp(str(patches, "mla", ""), "direct") == 0 && strcmp(str(args, "mode", "graph"), "graph") == 0 &&
        !json_is_false(json_object_get(args, "graph_guard"))) {
        fail(e, id, RS_ESTATE, "blk.0.attn.mla: %s cannot be captured in a graph", "mla=direct");
        return;
    }
    json_t *model = fake_canned("model");
    json_object_set_new(model, "path", json_string(path));
    json_object_update(model, json_object_get(e->script, "model"));
    json_object_set_new(e->info, "model", model);
    json_t *s = fake_canned("state");
    static const char *const keys[] = {"ranks", "mode", "numerics", "graph_guard", "spec", "patches"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_object_get(args, keys[i]) != NULL)
            json_object_set(s, keys[i], json_object_get(args, keys[i]));
    json_object_set_new(e->info, "state", s);
    uint64_t us = (uint64_t)json_integer_value(json_object_get(e->script, "open-us"));
    for (int i = 1; us > 0 && i <= 4; i++)
        fake_post(e, RS_EVENT_PROGRESS, id, RS_OK, us * (uint64_t)i / 5,
                  json_pack("{s:s, s:i, s:i, s:f, s:f}", "what", "loading", "done", i * 250000, "total", 1000000, "bytes_per_s", 5e6,
                            "seconds_left", 1.0 * (4 - i)),
                  NULL, 0);
    e->opening = id;
    fake_post(e, RS_EVENT_REPLY, id, RS_OK, us, json_deep_copy(e->info), NULL, 0);
}

/* The reply of a load that is under way becomes another one. */
static void do_load_cancel(struct rs_engine *e, uint32_t id)
{
    bool found = false;
    for (struct fake_event *x = e->queue; x != NULL && e->opening != 0; x = x->next)
        found = found || (x->ev.type == RS_EVENT_REPLY && x->ev.id == e->opening && x->due_us > fake_now_us());
    if (found) {
        uint32_t opening = e->opening;
        fake_drop_request(e, opening);
        fail(e, opening, RS_ECANCELLED, "loading was cancelled; what was open is as it was%s", "");
    }
    e->opening = 0;
    reply(e, id, json_pack("{s:b}", "cancelled", found));
}

static void do_set(struct rs_engine *e, uint32_t id, const json_t *args)
{
    if (strcmp(str(args, "mode", ""), "graph") == 0 && strcmp(str(json_object_get(state(e), "patches"), "mla", ""), "direct") == 0 &&
        !json_is_false(json_object_get(state(e), "graph_guard"))) {
        fail(e, id, RS_ESTATE, "blk.0.attn.mla: %s cannot be captured in a graph", "mla=direct");
        return;
    }
    json_object_update(state(e), (json_t *)args);
    json_t *o = json_copy(state(e));
    json_object_set_new(o, "took_ms", json_real(1.5));
    reply(e, id, o);
}

/* ---- patches ------------------------------------------------------------------------------------------------------------------------- */

static json_t *find_slot(struct rs_engine *e, const char *name)
{
    size_t i;
    json_t *s;
    json_array_foreach(e->slots, i, s) if (strcmp(str(s, "slot", ""), name) == 0) return s;
    return NULL;
}

static bool has_impl(const json_t *slot, const char *impl)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(slot, "impls"), i, v) if (strcmp(str(v, "name", ""), impl) == 0) return true;
    return false;
}

static json_int_t generation(struct rs_engine *e, json_int_t add)
{
    json_int_t g = json_integer_value(json_object_get(state(e), "generation")) + add;
    json_object_set_new(state(e), "generation", json_integer(g));
    return g;
}

static void put_patch(struct rs_engine *e, const char *slot, const char *impl, const char *site)
{
    json_t *s = find_slot(e, slot), *patches = json_object_get(state(e), "patches");
    json_array_append_new(e->journal,
                          json_pack("{s:I, s:s, s:s, s:s, s:s, s:i, s:s, s:f}", "generation", generation(e, 0), "slot", slot, "glob", site,
                                    "from", str(s, "current", "?"), "to", impl, "time_us", 0, "by", "console", "took_ms", 0.2));
    if (strcmp(site, "*") != 0) {
        json_array_append_new(json_object_get(s, "sites"), json_pack("{s:s, s:s}", "glob", site, "impl", impl));
        return;
    }
    json_object_set_new(s, "current", json_string(impl));
    if (strcmp(impl, str(s, "default", "")) == 0)
        json_object_del(patches, slot);
    else
        json_object_set_new(patches, slot, json_string(impl));
}

static void do_patch_set(struct rs_engine *e, uint32_t id, const json_t *args)
{
    const char *slot = str(args, "slot", ""), *impl = str(args, "impl", ""), *site = str(args, "site", "*");
    json_t *s = find_slot(e, slot);
    bool preset = strcmp(slot, "mla") == 0 && strcmp(impl, "off") == 0;
    if (s == NULL) {
        fail(e, id, RS_ENOTFOUND, "there is no slot '%s'", slot);
        return;
    }
    if (!preset && !has_impl(s, impl)) {
        fail(e, id, RS_ENOTFOUND, "there is no implementation '%s'", impl);
        return;
    }
    if (strcmp(impl, "direct") == 0 && strcmp(str(state(e), "mode", ""), "graph") == 0 &&
        !json_is_false(json_object_get(state(e), "graph_guard"))) {
        fail(e, id, RS_ESTATE, "blk.0.attn.mla: %s cannot be captured in a graph", "mla=direct");
        return;
    }
    if (!json_is_true(json_object_get(args, "dry"))) {
        generation(e, 1);
        put_patch(e, slot, preset ? "expanded" : impl, site);
        if (preset)
            put_patch(e, "qkv_a", "split", site);
    }
    reply(e, id, json_pack("{s:I, s:s, s:f}", "generation", generation(e, 0), "cost", str(s, "cost", "swap"), "took_ms", 0.3));
}

static void do_patch_undo(struct rs_engine *e, uint32_t id)
{
    size_t i;
    json_t *s;
    generation(e, 1);
    json_array_foreach(e->slots, i, s)
    {
        char *def = strdup(str(s, "default", ""));
        if (strcmp(str(s, "current", ""), def) != 0)
            put_patch(e, str(s, "slot", ""), def, "*");
        json_array_clear(json_object_get(s, "sites"));
        free(def);
    }
    reply(e, id, json_pack("{s:I, s:s, s:f}", "generation", generation(e, 0), "cost", "swap", "took_ms", 0.3));
}

/* ---- generation ---------------------------------------------------------------------------------------------------------------------- */

/* The message: the last segment that is not special, or all of it for raw text. */
static const char *message(const json_t *args)
{
    const json_t *segments = json_object_get(args, "segments");
    size_t n = json_array_size(segments);
    for (size_t i = n; i > 0; i--) {
        const json_t *s = json_array_get(segments, i - 1);
        if (!json_is_true(json_object_get(s, "special")))
            return str(s, "text", "");
    }
    return n > 0 ? str(json_array_get(segments, 0), "text", "") : "";
}

/* Post a text as tokens of one word each. Returns how many; *n counts all of the stream, and ends at max. */
static void post_words(struct rs_engine *e, uint32_t stream, const char *text, size_t len, uint32_t flags, long *n, long max)
{
    uint64_t us = (uint64_t)json_integer_value(json_object_get(e->script, "token-us"));
    const json_t *lost = json_object_get(e->script, "lost");
    for (size_t i = 0; i < len && *n < max;) {
        size_t k = i + 1;
        while (k < len && text[k] != ' ')
            k++;
        if (lost != NULL && *n == atol(json_string_value(json_array_get(lost, 0))))
            fake_post(e, RS_EVENT_LOST, 0, RS_EENGINE, us * (uint64_t)(*n + 1),
                      json_pack("{s:O, s:s}", "reason", json_array_get(lost, 1), "last", "blk.1.attn.mla"), NULL, 0);
        fake_post_token(e, stream, us * (uint64_t)(*n + 1), (int32_t)(100 + *n), flags, text + i, k - i);
        ++*n;
        i = k;
    }
}

static json_t *done_object(struct rs_engine *e, const char *stop, long tokens, long prompt)
{
    json_t *o = fake_canned("done");
    static const char *const keys[] = {"mode", "ranks", "patches"};
    json_object_set_new(o, "stop", json_string(stop));
    json_object_set_new(o, "tokens", json_integer(tokens));
    json_object_set_new(o, "prompt_tokens", json_integer(prompt));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set_new(o, keys[i], json_deep_copy(json_object_get(state(e), keys[i])));
    json_object_update(o, json_object_get(e->script, "done"));
    return o;
}

static void do_submit(struct rs_engine *e, uint32_t id, const json_t *args)
{
    json_t *answers = json_object_get(e->script, "answers"), *answer = json_incref(json_array_get(answers, 0)),
           *max = json_object_get(args, "max_tokens");
    bool thinking = json_is_true(json_object_get(args, "thinking"));
    const char *think = str(e->script, "think", "Let me see.");
    char text[1024], key[32];
    uint32_t stream = id + 1000;
    long n = 0, limit = json_is_integer(max) ? (long)json_integer_value(max) : 1000000;
    if (e->stream != 0) {
        fail(e, id, RS_ESTATE, "stream %s is still running", number(key, sizeof key, e->stream));
        json_decref(answer);
        return;
    }
    snprintf(text, sizeof text, "You said: %s", message(args));
    size_t len = answer != NULL ? json_string_length(answer) : strlen(text);
    const char *words = answer != NULL ? json_string_value(answer) : text;
    json_array_remove(answers, 0);
    reply(e, id, json_pack("{s:i, s:i, s:i}", "stream", stream, "prompt_tokens", 14, "cached_tokens", 0));
    if (json_object_get(e->script, "print") != NULL)
        fputs(json_string_value(json_object_get(e->script, "print")), stderr);
    const json_t *log = json_object_get(e->script, "log");
    if (log != NULL)
        fake_post(e, RS_EVENT_LOG, 0, RS_OK, 0,
                  json_pack("{s:O, s:O, s:i}", "level", json_array_get(log, 0), "text", json_array_get(log, 1), "time_us", 0), NULL, 0);
    if (thinking)
        post_words(e, stream, think, strlen(think), RS_TOKEN_THINKING, &n, limit);
    post_words(e, stream, words, len, 0, &n, limit);
    json_t *done = done_object(e, n == limit ? "length" : "eos", n, 14);
    if (json_object_get(done, "text") == NULL && n < limit)
        json_object_set_new(done, "text", json_stringn(words, len));
    json_object_set_new(done, "thinking", json_string(thinking ? think : ""));
    e->stream = stream;
    e->given_tokens = 0;
    uint64_t us = (uint64_t)json_integer_value(json_object_get(e->script, "token-us"));
    json_object_set_new(e->streams, number(key, sizeof key, stream),
                        json_pack("{s:O, s:O, s:O}", "text",
                                  json_object_get(done, "text") != NULL ? json_object_get(done, "text") : json_null(), "thinking",
                                  json_object_get(done, "thinking"), "done", done));
    json_t *session = json_object_get(e->sessions, number(key, sizeof key, json_integer_value(json_object_get(args, "session"))));
    if (session != NULL)
        json_object_set_new(session, "stream", json_integer(stream));
    fake_post(e, RS_EVENT_DONE, stream, RS_OK, us * (uint64_t)(n + 1), done, NULL, 0);
    json_decref(answer);
}

static void do_cancel(struct rs_engine *e, uint32_t id, const json_t *args)
{
    uint32_t stream = (uint32_t)json_integer_value(json_object_get(args, "stream"));
    reply(e, id, json_object());
    if (stream != e->stream)
        return;
    fake_drop_stream(e, stream);
    e->given_tokens = UINT32_MAX; /* behind every gate */
    fake_post(e, RS_EVENT_DONE, stream, RS_OK, 0, done_object(e, "cancelled", 2, 14), NULL, 0);
}

/* One token for each character; its id is the code point. */
static void do_encode(struct rs_engine *e, uint32_t id, const json_t *args)
{
    json_t *ids = json_array(), *pieces = json_array();
    const char *text = str(args, "text", "");
    for (const char *p = text; *p != '\0';) {
        int len = (unsigned char)*p < 0x80 ? 1 : (unsigned char)*p < 0xe0 ? 2 : (unsigned char)*p < 0xf0 ? 3 : 4;
        json_int_t cp = len == 1 ? *p : (unsigned char)*p & (0x7f >> len);
        for (int i = 1; i < len; i++)
            cp = cp << 6 | (p[i] & 0x3f);
        json_array_append_new(ids, json_integer(cp));
        json_array_append_new(pieces, json_stringn(p, (size_t)len));
        p += len;
    }
    reply(e, id, json_pack("{s:o, s:o}", "ids", ids, "pieces", pieces));
}

static void do_decode(struct rs_engine *e, uint32_t id, const json_t *args)
{
    char text[4096];
    size_t n = 0, i;
    json_t *v;
    json_array_foreach(json_object_get(args, "ids"), i, v)
    {
        unsigned c = (unsigned)json_integer_value(v);
        if (c >= 0x800 || n + 3 > sizeof text) {
            fail(e, id, RS_EUSAGE, "%s is no token", "an id");
            return;
        }
        if (c >= 0x80)
            text[n++] = (char)(0xc0 | c >> 6);
        text[n++] = (char)(c < 0x80 ? c : 0x80 | (c & 0x3f));
    }
    reply(e, id, json_pack("{s:o}", "text", json_stringn(text, n)));
}

/* Eight words of vocabulary, three layer states of width four; logit k after token t is ((t * 7 + k * 3) % 11) / 4. */
static void do_forward(struct rs_engine *e, uint32_t id, const json_t *args)
{
    const json_t *ids = json_object_get(args, "ids");
    size_t n = json_array_size(ids),
           rows = strcmp(str(args, "logits", "last"), "all") == 0 ? n : strcmp(str(args, "logits", "last"), "last") == 0;
    float *blob = calloc(rows * 8 + 12, sizeof *blob);
    json_t *argmax = json_array();
    for (size_t i = 0; i < n; i++) {
        json_int_t t = json_integer_value(json_array_get(ids, i)), best = 0;
        for (json_int_t k = 0; k < 8; k++) {
            if ((t * 7 + k * 3) % 11 > (t * 7 + best * 3) % 11)
                best = k;
            if (rows + i >= n)
                blob[(rows + i - n) * 8 + (size_t)k] = (float)((t * 7 + k * 3) % 11) / 4;
        }
        json_array_append_new(argmax, json_integer(best));
    }
    for (size_t i = 0; i < 12; i++)
        blob[rows * 8 + i] = (float)i / 10;
    json_t *o = json_pack("{s:o, s:i, s:i, s:{s:i, s:i}, s:f}", "argmax_each", argmax, "n", (int)n, "vocab", 8, "logits", "rows", (int)rows,
                          "offset", 0, "nll", 2.0);
    if (json_is_true(json_object_get(args, "layers")))
        json_object_set_new(o, "layers", json_pack("{s:i, s:i, s:i}", "rows", 3, "width", 4, "offset", (int)rows * 8));
    fake_post(e, RS_EVENT_REPLY, id, RS_OK, 0, o, blob, (rows * 8 + 12) * sizeof *blob);
    free(blob);
}

/* ---- sessions ------------------------------------------------------------------------------------------------------------------------ */

static void do_session(struct rs_engine *e, uint32_t id, const char *what, const json_t *args)
{
    char key[32];
    json_int_t n = json_integer_value(json_object_get(args, "session"));
    if (strcmp(what, "new") == 0) {
        n = (json_int_t)json_object_size(e->sessions) + 1;
        json_object_set_new(e->sessions, number(key, sizeof key, n),
                            json_pack("{s:O?, s:n}", "data", json_object_get(args, "data"), "stream"));
        reply(e, id, json_pack("{s:I}", "session", n));
        return;
    }
    json_t *s = json_object_get(e->sessions, number(key, sizeof key, n));
    if (s == NULL) {
        fail(e, id, RS_ENOTFOUND, "there is no session %s", key);
    } else if (strcmp(what, "put") == 0) {
        json_object_set(s, "data", json_object_get(args, "data"));
        reply(e, id, json_object());
    } else if (strcmp(what, "drop") == 0) {
        json_object_del(e->sessions, key);
        reply(e, id, json_object());
    } else {
        json_t *o = json_copy(s);
        json_object_set_new(o, "session", json_integer(n));
        reply(e, id, o);
    }
}

/* ---- dispatch ------------------------------------------------------------------------------------------------------------------------ */

static bool check(struct rs_engine *e, uint32_t id, const char *method, const json_t *args)
{
    for (size_t i = 0; i < sizeof s_methods / sizeof s_methods[0]; i++) {
        if (strcmp(s_methods[i].name, method) != 0)
            continue;
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)args, key, v)
        {
            char padded[64];
            snprintf(padded, sizeof padded, " %s ", key);
            if (strstr(s_methods[i].args, padded) == NULL) {
                fail(e, id, RS_EUSAGE, "unknown argument '%s'", key);
                return false;
            }
        }
        return true;
    }
    fail(e, id, RS_EUSAGE, "there is no method '%s'", method);
    return false;
}

/* What the script says about this method goes before everything else. */
static bool scripted(struct rs_engine *e, uint32_t id, const char *method)
{
    json_t *first = json_object_get(json_object_get(e->script, "firsts"), method), *left = json_array_get(first, 0);
    if (json_integer_value(left) > 0) {
        json_integer_set(left, json_integer_value(left) - 1);
        reply(e, id, json_deep_copy(json_array_get(first, 1)));
        return true;
    }
    json_t *r = json_object_get(json_object_get(e->script, "replies"), method),
           *f = json_object_get(json_object_get(e->script, "fails"), method);
    if (r != NULL)
        reply(e, id, json_deep_copy(r));
    if (r == NULL && f != NULL) {
        enum rs_result code = RS_EINTERNAL;
        for (int c = RS_EINTERNAL; c < RS_OK; c++) {
            char name[32];
            snprintf(name, sizeof name, "%s", rs_result_name((enum rs_result)c));
            for (char *p = name; *p != '\0'; p++)
                *p = *p == ' ' ? '-' : *p;
            if (strcmp(name, json_string_value(json_array_get(f, 0))) == 0)
                code = (enum rs_result)c;
        }
        fail(e, id, code, "%s", json_string_value(json_array_get(f, 1)));
    }
    return r != NULL || f != NULL;
}

void fake_method(struct rs_engine *e, uint32_t id, const char *method, const json_t *args)
{
    if (!check(e, id, method, args) || scripted(e, id, method))
        return;
    json_t *canned = fake_canned(method);
    if (strcmp(method, "open") == 0)
        do_open(e, id, args);
    else if (strcmp(method, "info") == 0)
        reply(e, id, json_deep_copy(e->info));
    else if (strcmp(method, "load.cancel") == 0)
        do_load_cancel(e, id);
    else if (strcmp(method, "set") == 0)
        do_set(e, id, args);
    else if (strcmp(method, "patch.list") == 0)
        reply(e, id, json_pack("{s:O, s:I, s:O}", "slots", e->slots, "generation", generation(e, 0), "journal", e->journal));
    else if (strcmp(method, "patch.set") == 0)
        do_patch_set(e, id, args);
    else if (strcmp(method, "patch.revert") == 0 || strcmp(method, "patch.reset") == 0)
        do_patch_undo(e, id);
    else if (strcmp(method, "submit") == 0)
        do_submit(e, id, args);
    else if (strcmp(method, "cancel") == 0)
        do_cancel(e, id, args);
    else if (strcmp(method, "encode") == 0)
        do_encode(e, id, args);
    else if (strcmp(method, "decode") == 0)
        do_decode(e, id, args);
    else if (strcmp(method, "forward") == 0)
        do_forward(e, id, args);
    else if (strncmp(method, "session.", 8) == 0)
        do_session(e, id, method + 8, args);
    else
        reply(e, id, canned != NULL ? json_incref(canned) : json_object());
    json_decref(canned);
}
