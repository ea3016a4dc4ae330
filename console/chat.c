#include "config.h"

#include "console/chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/sampling.h"
#include "console/units.h"

void chat_fini(struct con_answer *a)
{
    buf_fini(&a->text);
    buf_fini(&a->thinking);
    json_decref(a->done);
    *a = (struct con_answer){0};
}

/* ---- submitting ---------------------------------------------------------------------------------------------------------------------- */

enum rs_result chat_need_template(struct con *con, struct rs_error *err)
{
    if (con->tmpl != NULL)
        return RS_OK;
    char *folder = paths_data("lua");
    if (folder == NULL)
        return fail_set(err, RS_EIO, "the chat templates are not installed (RANKSCOPE_DATADIR can name their folder)");
    const json_t *model = json_object_get(con->info, "model");
    struct scr_template_hint hint = {
        .source = js_str(model, "template", NULL),
        .arch = js_str(model, "arch", NULL),
        .pre = js_str(model, "pre", NULL),
        .context = (long)js_int(model, "context", 0),
    };
    enum rs_result r = con->template_file != NULL ? scr_template_load(folder, con->template_file, &hint, &con->tmpl, err)
                                                  : scr_template_choose(folder, &hint, &con->tmpl, err);
    free(folder);
    return r;
}

static enum rs_result render(struct con *con, struct scr_rendered *out, struct rs_error *err)
{
    enum rs_result r = chat_need_template(con, err);
    if (r != RS_OK)
        return r;
    static const enum scr_think think[] = {SCR_THINK_DEFAULT, SCR_THINK_ON, SCR_THINK_OFF};
    struct scr_message *messages = xcalloc(con->conv.n + 1, sizeof *messages);
    size_t n = 0;
    if (con->conv.system != NULL)
        messages[n++] = (struct scr_message){.role = "system", .content = con->conv.system};
    for (size_t i = 0; i < con->conv.n; i++) {
        const struct conv_message *m = &con->conv.messages[i];
        messages[n++] = (struct scr_message){
            .role = m->role == CONV_USER ? "user" : "assistant",
            .content = m->text,
            .thinking = m->thinking,
        };
    }
    r = scr_template_render(con->tmpl, messages, n, think[con->think], out, err);
    free(messages);
    return r;
}

/* Forget the last answer's text and number, keep how answers are shown. */
static void reset_answer(struct con_answer *a)
{
    buf_clear(&a->text);
    buf_clear(&a->thinking);
    json_decref(a->done);
    a->done = NULL;
    a->filter = (struct text_filter){0};
    a->in_thinking = a->line_open = a->raw = a->running = false;
    a->stream = 0;
    a->tokens = 0;
}

/* Submit segments, or ids (what); the other is NULL. */
static enum rs_result submit(struct con *con, const char *key, json_t *what, bool thinking, bool raw, struct rs_error *err)
{
    json_t *args = json_deep_copy(con->sampling), *reply;
    json_object_set_new(args, key, what);
    if (thinking)
        json_object_set_new(args, "thinking", json_true());
    if (con->session != 0)
        json_object_set_new(args, "session", json_integer(con->session));
    reset_answer(&con->answer);
    enum rs_result r = con_request(con, "submit", args, &reply, err);
    if (r != RS_OK)
        return r;
    con->answer.stream = (uint32_t)js_int(reply, "stream", 0);
    con->answer.prompt = js_int(reply, "prompt_tokens", 0);
    con->answer.raw = raw;
    con->answer.running = true;
    json_decref(reply);
    return RS_OK;
}

static json_t *segment(const char *text, size_t len, bool special)
{
    return json_pack("{s:o, s:b}", "text", js_text(text, len), "special", (int)special);
}

enum rs_result chat_start(struct con *con, struct rs_error *err)
{
    struct scr_rendered r;
    enum rs_result res = render(con, &r, err);
    if (res != RS_OK)
        return res;
    json_t *segments = json_array();
    for (size_t i = 0; i < r.n; i++)
        json_array_append_new(segments, segment(r.segments[i].text, r.segments[i].len, r.segments[i].special));
    bool thinking = r.thinking;
    scr_rendered_fini(&r);
    return submit(con, "segments", segments, thinking, false, err);
}

enum rs_result chat_start_raw(struct con *con, const char *text, struct rs_error *err)
{
    json_t *segments = json_array();
    json_array_append_new(segments, segment(text, strlen(text), true));
    return submit(con, "segments", segments, false, true, err);
}

/* ---- the stream ---------------------------------------------------------------------------------------------------------------------- */

static void show(struct con *con, const char *text, size_t len)
{
    struct con_answer *a = &con->answer;
    bool visible = a->show && (!a->in_thinking || a->show_thinking || a->raw);
    if (!visible || len == 0)
        return;
    out_write(con->out, a->in_thinking && !a->raw ? OUT_THINKING : OUT_ANSWER, text, len);
    a->line_open = text[len - 1] != '\n';
}

/* The thought begins or ends: words say so as well, because not every terminal has colours. */
static void switch_part(struct con *con, bool thinking)
{
    struct con_answer *a = &con->answer;
    struct buf rest = {0};
    text_clean_end(&a->filter, &rest);
    show(con, rest.text, rest.len);
    buf_fini(&rest);
    a->in_thinking = thinking;
    if (a->raw || !a->show || !a->show_thinking)
        return;
    if (a->line_open)
        out_str(con->out, OUT_THINKING, "\n");
    a->line_open = false;
    out_str(con->out, OUT_THINKING, thinking ? "(thinking)\n" : "(answer)\n");
}

static void add_text(struct con *con, const char *text, size_t len, bool thinking)
{
    struct con_answer *a = &con->answer;
    if (len == 0)
        return;
    if (thinking != a->in_thinking)
        switch_part(con, thinking);
    buf_add(thinking && !a->raw ? &a->thinking : &a->text, text, len);
    struct buf clean = {0};
    text_clean(&a->filter, text, len, &clean);
    show(con, clean.text, clean.len);
    buf_fini(&clean);
}

void chat_token(struct con *con, const struct rs_event *ev)
{
    if (!con->answer.running || ev->id != con->answer.stream)
        return;
    con->answer.tokens += ev->token >= 0;
    add_text(con, ev->text, ev->text_len, ev->flags & RS_TOKEN_THINKING);
}

void chat_done(struct con *con, uint32_t stream, json_t *done)
{
    struct con_answer *a = &con->answer;
    if (!a->running || stream != a->stream)
        return;
    struct buf rest = {0};
    text_clean_end(&a->filter, &rest);
    show(con, rest.text, rest.len);
    buf_fini(&rest);
    if (a->line_open)
        out_str(con->out, OUT_ANSWER, "\n");
    a->line_open = false;
    a->running = false;
    a->done = json_is_object(done) ? json_incref(done) : json_pack("{s:s, s:s}", "stop", "error", "error", "what the engine says of the answer cannot be read");
}

void chat_pause(struct con *con)
{
    if (con->answer.line_open)
        out_str(con->out, OUT_ANSWER, "\n");
    con->answer.line_open = false;
}

void chat_lost(struct con *con)
{
    struct con_answer *a = &con->answer;
    if (!a->running)
        return;
    json_t *done = json_pack("{s:s, s:s}", "stop", "error", "error", "the engine is gone");
    chat_done(con, a->stream, done);
    json_decref(done);
}

/* Ask for the end of the answer, and do not wait. */
static enum rs_result cancel(struct con *con, struct rs_error *err)
{
    uint32_t id;
    json_t *args = json_pack("{s:I}", "stream", (json_int_t)con->answer.stream);
    char *text = json_dumps(args, JSON_COMPACT);
    json_decref(args);
    enum rs_result r = rs_send(con->engine, "cancel", text, &id, err);
    free(text);
    return r;
}

/* hold: a breakpoint ends the wait, the answer goes on when the engine does. */
static enum rs_result wait_answer(struct con *con, bool hold, struct rs_error *err)
{
    struct con_answer *a = &con->answer;
    bool cancelled = false;
    while (a->running) {
        if (hold && con->stopped != NULL)
            return RS_OK;
        unsigned wake = con_pump(con, -1);
        if (wake & CON_WAKE_END)
            return fail_set(err, RS_ECANCELLED, "ended by a signal");
        if (!(wake & CON_WAKE_INTERRUPT) || !a->running)
            continue;
        if (cancelled) {
            a->running = false;
            return fail_set(err, RS_ECANCELLED, "interrupted; the engine has not stopped yet");
        }
        cancelled = true;
        enum rs_result r = cancel(con, err);
        if (r != RS_OK)
            return r;
    }
    const char *stop = js_str(a->done, "stop", "");
    if (strcmp(stop, "error") == 0)
        return fail_set(err, RS_EENGINE, "%s", js_str(a->done, "error", "the engine failed while answering"));
    return RS_OK;
}

enum rs_result chat_wait(struct con *con, struct rs_error *err)
{
    return wait_answer(con, false, err);
}

/* ---- conversations ------------------------------------------------------------------------------------------------------------------- */

static const char *const think_words[] = {"default", "on", "off"};

json_t *chat_to_json(const struct con *con)
{
    static const char *const keys[] = {"name", "arch", "hash"};
    json_t *root = conv_to_json(&con->conv), *model = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set_new(model, keys[i], js_or_null(json_object_get(con->info, "model"), keys[i]));
    json_object_set_new(root, "model", model);
    json_object_set(root, "sampling", con->sampling);
    json_object_set_new(root, "think", json_string(think_words[con->think]));
    return root;
}

enum rs_result chat_restore(struct con *con, const json_t *root, struct rs_error *err)
{
    struct conv conv = {0};
    enum rs_result r = conv_from_json(root, &conv, err);
    if (r != RS_OK)
        return r;
    json_t *sampling = json_object();
    r = sampling_from_json(sampling, json_object_get(root, "sampling"), err);
    if (r != RS_OK) {
        json_decref(sampling);
        conv_fini(&conv);
        return r;
    }
    conv_fini(&con->conv);
    con->conv = conv;
    json_decref(con->sampling);
    con->sampling = sampling;
    const char *think = js_str(root, "think", "default");
    con->think = strcmp(think, "on") == 0 ? CON_THINK_ON : strcmp(think, "off") == 0 ? CON_THINK_OFF : CON_THINK_DEFAULT;
    chat_forget(con);
    return RS_OK;
}

enum rs_result chat_keep(struct con *con, struct rs_error *err)
{
    json_t *args = json_pack("{s:o}", "data", chat_to_json(con)), *reply;
    if (con->session != 0) {
        json_object_set_new(args, "session", json_integer(con->session));
        return con_request(con, "session.put", args, NULL, err);
    }
    enum rs_result r = con_request(con, "session.new", args, &reply, err);
    if (r != RS_OK)
        return r;
    con->session = js_int(reply, "session", 0);
    json_decref(reply);
    return RS_OK;
}

void chat_forget(struct con *con)
{
    if (con->session != 0)
        con_request(con, "session.drop", json_pack("{s:I}", "session", con->session), NULL, NULL);
    con->session = 0;
}

/* An answer whose thinking never ended would look empty where thinking is not shown: show how it begins. */
static void show_hidden(struct con *con)
{
    enum { BEGINNING = 60 };
    struct con_answer *a = &con->answer;
    const char *text = a->text.text != NULL ? a->text.text : "", *thought = a->thinking.text;
    if (!a->show || a->show_thinking || thought == NULL || text[strspn(text, " \t\r\n")] != '\0')
        return;
    char *line = text_one_line(thought);
    size_t n = strlen(line);
    size_t cut = n > BEGINNING ? BEGINNING : n;
    while (cut < n && ((unsigned char)line[cut] & 0xC0) == 0x80)
        cut--; /* not within a character */
    out_printf(con->out, OUT_NOTE, "(thinking only, %zu bytes: %.*s%s)\n", a->thinking.len, (int)cut, line, cut < n ? "..." : "");
    free(line);
}

void chat_outcome(struct con *con)
{
    const json_t *done = con->answer.done;
    const char *stop = js_str(done, "stop", ""), *verdict = js_str(done, "verdict", NULL);
    show_hidden(con);
    if (strcmp(stop, "cancelled") == 0)
        out_str(con->out, OUT_NOTE, "(stopped)\n");
    else if (strcmp(stop, "length") == 0)
        out_printf(con->out, OUT_NOTE, "(cut after %lld tokens)\n", (long long)js_int(done, "tokens", 0));
    if (verdict != NULL && strcmp(verdict, "ok") != 0) {
        char *reason = text_one_line(js_str(done, "reason", "no reason given"));
        out_printf(con->out, OUT_WARN, "verdict %s: %s\n", verdict, reason);
        free(reason);
    }
}

static void add_answer(struct con *con)
{
    const struct con_answer *a = &con->answer;
    bool cut = strcmp(js_str(a->done, "stop", "error"), "eos") != 0 && strcmp(js_str(a->done, "stop", ""), "stop") != 0;
    conv_add(&con->conv, CONV_ASSISTANT, a->text.text != NULL ? a->text.text : "", a->thinking.text, cut);
}

/* Wait for the end of the answer and keep it; a breakpoint may come first. */
static enum rs_result finish(struct con *con, struct rs_error *err)
{
    enum rs_result r = wait_answer(con, true, err);
    if (r != RS_OK || con->answer.running)
        return r;
    chat_outcome(con);
    add_answer(con);
    return chat_keep(con, err);
}

/* Answer the last message, which is the person's. */
static enum rs_result answer(struct con *con, struct rs_error *err)
{
    enum rs_result r = chat_keep(con, err);
    if (r == RS_OK)
        r = chat_start(con, err);
    return r == RS_OK ? finish(con, err) : r;
}

enum rs_result chat_go_on(struct con *con, const char *method, json_t *args, struct rs_error *err)
{
    if (con->stopped == NULL) {
        json_decref(args);
        return fail_set(err, RS_ESTATE, "the engine is not stopped");
    }
    json_t *was = con->stopped;
    con->stopped = NULL; /* the next stop may come before the reply */
    enum rs_result r = con_request(con, method, args, NULL, err);
    if (r != RS_OK && con->stopped == NULL)
        con->stopped = json_incref(was);
    json_decref(was);
    return r == RS_OK && con->answer.running ? finish(con, err) : r;
}

void chat_interrupted(struct con *con)
{
    if (con->stopped == NULL || con->lost)
        return;
    char *site = text_one_line(js_str(con->stopped, "site", "a step's end"));
    if (con->answer.running && cancel(con, NULL) == RS_OK)
        out_printf(con->out, OUT_NOTE, "the engine is stopped at %s; the answer ends when it runs on: /continue\n", site);
    else
        out_printf(con->out, OUT_NOTE, "the engine is stopped at %s: /continue lets it run on\n", site);
    free(site);
}

enum rs_result chat_turn(struct con *con, const char *text, struct rs_error *err)
{
    if (con->stopped != NULL)
        return fail_set(err, RS_ESTATE, "the engine is stopped: /continue, /step or /next first");
    if (con->answer.running) { /* somebody else let it run on */
        enum rs_result left = finish(con, err);
        if (left != RS_OK)
            return left;
    }
    chat_catch_up(con);
    conv_add(&con->conv, CONV_USER, text, NULL, false);
    size_t n = con->conv.n;
    enum rs_result r = answer(con, err);
    /* When the engine died or the person gave up waiting, the question stays: it can be asked again. */
    if (r != RS_OK && con->conv.n == n && !con->lost && r != RS_ECANCELLED)
        conv_drop_last(&con->conv);
    return r;
}

enum rs_result chat_again(struct con *con, struct rs_error *err)
{
    struct conv *c = &con->conv;
    if (c->n > 0 && c->messages[c->n - 1].role == CONV_ASSISTANT)
        conv_drop_last(c);
    if (c->n == 0)
        return fail_set(err, RS_ESTATE, "nothing to answer yet");
    return answer(con, err);
}

/* The answer's tokens, without those of its prompt. */
static enum rs_result answer_ids(struct con *con, json_t **out, struct rs_error *err)
{
    json_t *reply;
    const struct conv *c = &con->conv;
    if (con->session == 0 || con->answer.running || con->answer.prompt == 0 || c->n == 0 || c->messages[c->n - 1].role != CONV_ASSISTANT)
        return fail_set(err, RS_ESTATE, "there is no answer of this console to go back in");
    enum rs_result r = con_request(con, "rewind", json_pack("{s:I, s:i}", "session", con->session, "n", 0), &reply, err);
    if (r != RS_OK)
        return r;
    json_t *ids = json_incref(json_object_get(reply, "ids"));
    json_decref(reply);
    for (json_int_t i = 0; i < con->answer.prompt && json_array_size(ids) > 0; i++)
        json_array_remove(ids, 0);
    *out = ids;
    return RS_OK;
}

/* Show what stays of the answer as if it had just come: its thought, then its text. Returns whether it ends inside the thought. */
static bool show_kept(struct con *con, const char *kept, bool thought)
{
    static const char OPEN[] = "<think>", CLOSE[] = "</think>";
    const char *close = strstr(kept, CLOSE);
    if (strncmp(kept, OPEN, sizeof OPEN - 1) == 0) {
        kept += sizeof OPEN - 1;
        thought = true;
    }
    if (close != NULL) {
        add_text(con, kept, (size_t)(close - kept), true);
        kept = close + sizeof CLOSE - 1;
        thought = false;
    }
    add_text(con, kept, strlen(kept), thought);
    return thought;
}

/* Have the session's kept tokens go on; on success the answer that was the last message is the one that grows now. */
static enum rs_result go_on_from(struct con *con, json_t *ids, const char *kept, struct rs_error *err)
{
    const json_int_t prompt = con->answer.prompt;
    const bool began = con->answer.thinking.len > 0, inside = began && strstr(kept, "</think>") == NULL;
    enum rs_result r = submit(con, "ids", json_incref(ids), inside || strncmp(kept, "<think>", 7) == 0, false, err);
    if (r != RS_OK)
        return r;
    con->answer.prompt = prompt;
    conv_drop_last(&con->conv);
    show_kept(con, kept, began);
    return finish(con, err);
}

enum rs_result chat_rewind(struct con *con, json_int_t n, bool fork, struct rs_error *err)
{
    json_t *own = NULL, *reply, *text;
    enum rs_result r = answer_ids(con, &own, err);
    if (r != RS_OK)
        return r;
    json_int_t have = (json_int_t)json_array_size(own);
    json_decref(own);
    if (n < 0 || n > have)
        return fail_set(err, RS_EUSAGE, "the answer has %lld tokens", (long long)have);
    const json_int_t was = con->session;
    r = con_request(con, fork ? "fork" : "rewind", json_pack("{s:I, s:I}", "session", con->session, "n", n), &reply, err);
    if (r != RS_OK)
        return r;
    json_t *ids = json_incref(json_object_get(reply, "ids")), *kept = json_array();
    con->session = js_int(reply, "session", con->session);
    json_decref(reply);
    for (size_t i = (size_t)con->answer.prompt; i < json_array_size(ids); i++)
        json_array_append(kept, json_array_get(ids, i));
    r = con_request(con, "decode", json_pack("{s:o, s:b}", "ids", kept, "special", 1), &text, err);
    if (r == RS_OK) {
        out_printf(con->out, OUT_NOTE, "%lld of %lld tokens of the answer stay\n", (long long)(have - n), (long long)have);
        if (fork)
            out_printf(con->out, OUT_NOTE, "this is conversation %lld now; /branch %lld is the one that was left\n", (long long)con->session, (long long)was);
        r = go_on_from(con, ids, js_str(text, "text", ""), err);
        json_decref(text);
    }
    json_decref(ids);
    return r;
}

enum rs_result chat_follow(struct con *con, uint32_t stream, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = con_request(con, "stream.get", json_pack("{s:I, s:b}", "stream", (json_int_t)stream, "follow", 1), &reply, err);
    if (r != RS_OK)
        return r;
    reset_answer(&con->answer);
    con->answer.stream = stream;
    con->answer.running = true;
    const char *thinking = js_str(reply, "thinking", ""), *text = js_str(reply, "text", "");
    add_text(con, thinking, strlen(thinking), true);
    add_text(con, text, strlen(text), false);
    json_t *done = js_at(reply, "done");
    if (json_is_object(done))
        chat_done(con, stream, done);
    json_decref(reply);
    return finish(con, err);
}

/* ---- results ------------------------------------------------------------------------------------------------------------------------- */

json_t *chat_result(const struct con *con)
{
    static const char *const copied[] = {"stop",  "prompt_tokens", "tokens",  "prompt_ms", "decode_ms",     "tok_per_s", "mode",
                                         "ranks", "patches",       "verdict", "reason",    "cached_tokens", "health"};
    const struct con_answer *a = &con->answer;
    json_t *o = json_object();
    const json_t *text = js_at(a->done, "text"), *thinking = js_at(a->done, "thinking");
    /* Raw text was never split into thought and answer by a template: it is all text. */
    json_object_set_new(o, "text", json_is_string(text) && !a->raw ? json_copy((json_t *)(uintptr_t)text) : js_text(a->text.text, a->text.len));
    json_object_set_new(o, "thinking", json_is_string(thinking) && !a->raw ? json_copy((json_t *)(uintptr_t)thinking)
                                                                           : js_text(a->thinking.text, a->raw ? 0 : a->thinking.len));
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
        json_object_set_new(o, copied[i], js_or_null(a->done, copied[i]));
    json_t *ar = json_object();
    static const char *const ar_keys[] = {"per_step", "mean_us", "p99_us", "share", "simulated"};
    for (size_t i = 0; i < sizeof ar_keys / sizeof ar_keys[0]; i++)
        json_object_set_new(ar, ar_keys[i], js_or_null(json_object_get(a->done, "allreduce"), ar_keys[i]));
    json_object_set_new(o, "allreduce", ar);
    return o;
}

char *chat_numbers(const struct con *con)
{
    const json_t *d = con->answer.done;
    struct buf b = {0};
    char t1[32], t2[32], t3[32];
    double prompt = js_num(d, "prompt_tokens", NAN), ms = js_num(d, "prompt_ms", NAN);
    buf_printf(&b, "prompt %s tokens in %s", units_num(t1, prompt, 0), units_us(t2, ms * 1e3));
    if (js_int(d, "cached_tokens", 0) > 0)
        buf_printf(&b, " (%lld cached)", (long long)js_int(d, "cached_tokens", 0));
    buf_printf(&b, "; %s tokens in %s, %s tokens/s", units_num(t1, js_num(d, "tokens", NAN), 0),
               units_us(t2, js_num(d, "decode_ms", NAN) * 1e3), units_num(t3, js_num(d, "tok_per_s", NAN), 1));
    buf_printf(&b, "; %s rank%s, %s", units_num(t1, js_num(d, "ranks", NAN), 0), js_int(d, "ranks", 0) == 1 ? "" : "s",
               js_str(d, "mode", "n/a"));
    if (js_at(d, "allreduce") != NULL) {
        buf_printf(&b, "; all-reduce %s a step, mean %s, p99 %s", units_num(t1, js_num(d, "allreduce.per_step", NAN), 0),
                   units_us(t2, js_num(d, "allreduce.mean_us", NAN)), units_us(t3, js_num(d, "allreduce.p99_us", NAN)));
        buf_printf(&b, ", %s of the time%s", units_percent(t1, js_num(d, "allreduce.share", NAN)),
                   js_bool(d, "allreduce.simulated", false) ? " (simulated)" : "");
    }
    return buf_take(&b);
}
