#include "config.h"

#include "console/con.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/daemon.h"
#include "console/fail.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/serving.h"
#include "console/sig.h"
#include "console/units.h"
#include "lua/scr_op.h"

void con_init(struct con *con, struct out *out)
{
    *con = (struct con){.out = out, .wait = con_wait_plain, .sampling = json_object()};
}

static void drop_template(struct con *con)
{
    scr_template_free(con->tmpl);
    con->tmpl = NULL;
}

void con_fini(struct con *con)
{
    serving_free(con->serving);
    con->serving = NULL;
    scr_script_close(con->script);
    con->script = NULL; /* events still come while the engine is asked to end */
    free(con->script_model);
    if (con->stop_engine && con->engine != NULL && !con->lost)
        daemon_stop(con, NULL);
    rs_engine_close(con->engine);
    drop_template(con);
    json_decref(con->info);
    json_decref(con->open_args);
    json_decref(con->slots);
    json_decref(con->sampling);
    json_decref(con->await_json);
    json_decref(con->stopped);
    free(con->await_blob);
    free(con->template_file);
    free(con->engine_name);
    conv_fini(&con->conv);
    chat_fini(&con->answer);
    *con = (struct con){0};
}

enum rs_result con_start_local(struct con *con, const struct rs_local_params *params, struct rs_error *err)
{
    struct rs_local_params p = params != NULL ? *params : (struct rs_local_params){0};
    p.host = scr_op_host();
    p.json_failures = js_failures;
    enum rs_result r = rs_engine_local(&p, &con->engine, err);
    return r == RS_OK ? con_hello(con, NULL, err) : r;
}

enum rs_result con_hello(struct con *con, json_t **reply, struct rs_error *err)
{
    json_t *args = json_pack("{s:i, s:s, s:b}", "protocol", RS_PROTOCOL, "client", "console", "control", 1);
    return con_request(con, "hello", args, reply, err);
}

void con_poll(struct con *con, struct pollfd *p, nfds_t n, nfds_t engine, int timeout_ms)
{
    const bool there = con->engine != NULL && !con->lost, pending = there && rs_pending(con->engine);
    const unsigned nap = there && !pending ? rs_nap_us(con->engine) : 0;
    const bool naps = nap != 0 && (timeout_ms < 0 || (unsigned)timeout_ms * 1000u > nap);
    struct timespec t = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};
    if (pending)
        t = (struct timespec){0};
    else if (naps)
        t = (struct timespec){.tv_nsec = (long)nap * 1000};
    p[engine] = (struct pollfd){.fd = there && !naps ? rs_fd(con->engine) : -1, .events = POLLIN};
    if (ppoll(p, n, timeout_ms < 0 && !pending && !naps ? NULL : &t, NULL) < 0)
        for (nfds_t i = 0; i < n; i++)
            p[i].revents = 0;
    if (pending || naps)
        p[engine].revents = POLLIN;
}

unsigned con_wait_plain(struct con *con, void *ctx, int timeout_ms)
{
    (void)ctx;
    struct pollfd p[2] = {{.fd = sig_fd(), .events = POLLIN}};
    con_poll(con, p, 2, 1, timeout_ms);
    unsigned wake = 0;
    if (p[1].revents != 0)
        wake |= CON_WAKE_ENGINE;
    if (p[0].revents != 0) {
        unsigned bits = sig_take();
        if (bits & SIG_BIT_INT)
            wake |= CON_WAKE_INTERRUPT;
        if (bits & (SIG_BIT_TERM | SIG_BIT_HUP)) {
            con->end_signal = bits & SIG_BIT_TERM ? SIGTERM : SIGHUP;
            wake |= CON_WAKE_END;
        }
        if (bits & SIG_BIT_TSTP)
            sig_stop();
    }
    return wake;
}

/* "loading 45 %, 1.2 of 2.6 GB, 3.1 GB/s, 4 s left" */
static void show_progress(struct con *con, const json_t *p)
{
    double done = js_num(p, "done", NAN), total = js_num(p, "total", NAN), rate = js_num(p, "bytes_per_s", NAN);
    double left = js_num(p, "seconds_left", NAN);
    struct buf b = {0};
    char *what = text_one_line(js_str(p, "what", "working"));
    buf_str(&b, what);
    if (total > 0)
        buf_printf(&b, " %.0f %%", 100 * done / total);
    if (rate > 0) {
        char got[32], all[32], per_s[32];
        buf_printf(&b, ", %s of %s, %s/s", units_bytes(got, done), units_bytes(all, total), units_bytes(per_s, rate));
    }
    if (left >= 1)
        buf_printf(&b, ", %.0f s left", left);
    con->out->progress(con->out, b.text);
    buf_fini(&b);
    free(what);
}

static void take_reply(struct con *con, const struct rs_event *ev, json_t *json)
{
    if (con->await_id == 0 || ev->id != con->await_id)
        return; /* an answer to a request that was given up */
    con->await_done = true;
    con->await_status = ev->status;
    con->await_json = json_incref(json);
    if (ev->blob_len > 0) {
        con->await_blob = xcalloc(ev->blob_len, 1);
        memcpy(con->await_blob, ev->blob, ev->blob_len);
        con->await_blob_len = ev->blob_len;
    }
}

static void take_state(struct con *con, json_t *state)
{
    if (json_is_null(json_object_get(state, "stopped"))) { /* somebody else may have let it run on */
        json_decref(con->stopped);
        con->stopped = NULL;
    }
    if (con->info != NULL && json_is_object(state))
        json_object_set(con->info, "state", state);
}

void con_say_control(struct con *con)
{
    if (con->only_looks)
        out_str(con->out, OUT_WARN, "another client is in control of this engine, this console only looks: until that one leaves, or /control take\n");
    else
        out_str(con->out, OUT_NOTE, "this console is in control of the engine now\n");
}

/* Control came here, or went. */
static void take_control(struct con *con, bool has)
{
    con->took_over = con->took_over || (con->only_looks && has);
    con->only_looks = !has;
    con_say_control(con);
}

static void take_log(struct con *con, const json_t *log)
{
    const json_t *has = json_object_get(log, "in_control");
    if (json_is_boolean(has)) {
        take_control(con, json_is_true(has));
        return;
    }
    if (con->watch_logs)
        return;
    const char *level = js_str(log, "level", "info");
    if (strcmp(level, "debug") == 0 || strcmp(level, "trace") == 0)
        return;
    char *line = text_one_line(js_str(log, "text", ""));
    bool bad = strcmp(level, "error") == 0 || strcmp(level, "warn") == 0;
    out_printf(con->out, bad ? OUT_WARN : OUT_NOTE, "engine: %s\n", line);
    free(line);
}

static void take_lost(struct con *con, const json_t *lost)
{
    if (con->lost)
        return;
    con->lost = true;
    bool answering = con->answer.running;
    chat_lost(con);
    const char *last = js_str(lost, "last", "");
    out_error(con->out, "the engine is gone: %s%s%s%s", js_str(lost, "reason", "it closed the connection"), *last != '\0' ? "; last: " : "",
              last, answering ? "; it was answering" : "");
    out_str(con->out, OUT_NOTE, "the conversation is kept here; /restart starts a new engine and goes on with it\n");
}

static void take_stopped(struct con *con, json_t *stopped)
{
    char *site = text_one_line(js_str(stopped, "site", "?")), *reason = text_one_line(js_str(stopped, "reason", "stopped"));
    json_decref(con->stopped);
    con->stopped = json_incref(stopped);
    chat_pause(con);
    out_printf(con->out, OUT_NOTE, "stopped %s %s, step %lld, position %lld: %s\n", js_str(stopped, "when", "at"), site, (long long)js_int(stopped, "step", 0),
               (long long)js_int(stopped, "pos", 0), reason);
    free(site);
    free(reason);
}

void con_take_event(struct con *con, const struct rs_event *ev)
{
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    if (con->watch != NULL)
        con->watch(con, con->watch_ctx, ev, json);
    if (con->script != NULL)
        scr_script_event(con->script, ev);
    switch (ev->type) {
    case RS_EVENT_REPLY: take_reply(con, ev, json); break;
    case RS_EVENT_TOKEN: chat_token(con, ev); break;
    case RS_EVENT_DONE: chat_done(con, ev->id, json); break;
    case RS_EVENT_PROGRESS: show_progress(con, json); break;
    case RS_EVENT_STATE: take_state(con, json); break;
    case RS_EVENT_LOG: take_log(con, json); break;
    case RS_EVENT_LOST: take_lost(con, json); break;
    case RS_EVENT_STOPPED: take_stopped(con, json); break;
    case RS_EVENT_COUNT: break;
    }
    json_decref(json);
}

int con_turn(struct con *con, int timeout_ms)
{
    double s = con->script != NULL && con->await_id == 0 ? scr_script_turn(con->script) : -1;
    if (s < 0 || (timeout_ms >= 0 && s * 1000 >= timeout_ms))
        return timeout_ms;
    return s > 1000 ? 1000000 : (int)(s * 1000 + 0.999);
}

unsigned con_pump(struct con *con, int timeout_ms)
{
    unsigned wake = con->wait(con, con->wait_ctx, con_turn(con, timeout_ms));
    if (!(wake & CON_WAKE_ENGINE))
        return wake;
    struct rs_event ev;
    struct rs_error err = {0};
    enum rs_result r;
    while ((r = rs_next(con->engine, 0, &ev, &err)) == RS_OK) {
        con_take_event(con, &ev);
        if (con->lost || (con->await_id != 0 && con->await_done))
            return wake; /* who waits must see its reply before what follows it: the first tokens of its stream */
    }
    if (r != RS_ETIMEOUT && !con->lost) {
        json_t *lost = json_pack("{s:s}", "reason", err.msg);
        take_lost(con, lost);
        json_decref(lost);
    }
    return wake;
}

/* The first Ctrl-C while a request is under way: what loads weights is asked to give that up, and then what was open stays open. */
static void give_up(struct con *con, const char *method)
{
    static const char *const loads[] = {"open", "set", "patch.set", "patch.revert", "patch.reset"};
    uint32_t id;
    for (size_t i = 0; i < sizeof loads / sizeof loads[0]; i++) {
        if (strcmp(loads[i], method) != 0 || rs_send(con->engine, "load.cancel", NULL, &id, NULL) != RS_OK)
            continue;
        out_str(con->out, OUT_NOTE, "asked the engine to give the loading up; Ctrl-C again stops waiting for it\n");
        return;
    }
    out_printf(con->out, OUT_NOTE, "the engine is busy with '%s'; Ctrl-C again stops waiting for it\n", method);
}

/* Pump until the reply to `id` is there. */
static enum rs_result await(struct con *con, const char *method, uint32_t id, struct rs_error *err)
{
    unsigned interrupts = 0;
    con->await_id = id;
    con->await_done = false;
    while (!con->await_done && !con->lost) {
        unsigned wake = con_pump(con, -1);
        if (wake & CON_WAKE_INTERRUPT && con->patient && interrupts++ == 0)
            give_up(con, method);
        else if (wake & (CON_WAKE_INTERRUPT | CON_WAKE_END))
            break;
    }
    con->await_id = 0;
    con->out->progress(con->out, NULL);
    if (con->await_done)
        return RS_OK;
    if (con->lost)
        return fail_set(err, RS_EENGINE, "the engine is gone");
    return fail_set(err, RS_ECANCELLED, "interrupted");
}

enum rs_result con_request_blob(struct con *con, const char *method, json_t *args, json_t **reply, void **blob, size_t *blob_len,
                                struct rs_error *err)
{
    assert(con->await_id == 0);
    uint32_t id = 0;
    enum rs_result r;
    if (con->engine == NULL || con->lost) {
        json_decref(args);
        return fail_set(err, RS_EENGINE, con->lost ? "the engine is gone; /restart starts a new one" : "no engine is running");
    }
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    r = rs_send(con->engine, method, text, &id, err);
    free(text);
    if (r == RS_OK)
        r = await(con, method, id, err);
    if (r != RS_OK)
        return r;
    json_t *json = con->await_json;
    con->await_json = NULL;
    if (con->await_status != RS_OK) {
        r = fail_set(err, con->await_status, "%s", js_str(json, "error.message", rs_result_name(con->await_status)));
        free(con->await_blob);
        json_decref(json);
    } else {
        if (blob != NULL) {
            *blob = con->await_blob;
            *blob_len = con->await_blob_len;
        } else {
            free(con->await_blob);
        }
        if (reply != NULL)
            *reply = json != NULL ? json : json_object();
        else
            json_decref(json);
    }
    con->await_blob = NULL;
    con->await_blob_len = 0;
    return r;
}

enum rs_result con_request(struct con *con, const char *method, json_t *args, json_t **reply, struct rs_error *err)
{
    return con_request_blob(con, method, args, reply, NULL, NULL, err);
}

void con_take_info(struct con *con, json_t *info)
{
    json_decref(con->info);
    con->info = info;
    json_decref(con->slots);
    con->slots = NULL;
    con->session = 0;
    drop_template(con);
}

enum rs_result con_open(struct con *con, json_t *args, struct rs_error *err)
{
    json_t *info = NULL;
    enum rs_result r = con_request(con, "open", json_incref(args), &info, err);
    if (r != RS_OK) {
        json_decref(args);
        return r;
    }
    con_take_info(con, info);
    json_decref(con->open_args);
    con->open_args = args;
    return RS_OK;
}

enum rs_result con_refresh(struct con *con, struct rs_error *err)
{
    json_t *info;
    enum rs_result r = con_request(con, "info", NULL, &info, err);
    if (r != RS_OK)
        return r;
    json_decref(con->info);
    con->info = info;
    take_state(con, json_object_get(info, "state"));
    return RS_OK;
}

char *con_state(const struct con *con, const char *name)
{
    const json_t *v = json_object_get(json_object_get(con->info, "state"), name);
    if (json_is_string(v))
        return xstrdup(json_string_value(v));
    if (json_is_boolean(v))
        return xstrdup(json_is_true(v) ? "on" : "off");
    if (json_is_number(v))
        return xasprintf("%.10g", json_number_value(v));
    return xstrdup("?");
}

int con_default_ranks(const char *model)
{
    return paths_is_shipped(model) ? 8 : 1;
}
