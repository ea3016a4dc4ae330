/* rcmd_process.c: /detach, /restart, /control: the engine's process, and who controls it. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/daemon.h"
#include "console/fail.h"
#include "console/js.h"
#include "console/rcmd_list.h"
#include "console/rcmd_lua.h"
#include "console/units.h"

static enum rs_result exec_detach(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    if (!con->remote || con->lost)
        return fail_set(err, RS_ESTATE, "the engine is part of this console and ends with it");
    out_printf(con->out, OUT_NOTE, "engine %s goes on; rankscope attach %s comes back to it\n", con->engine_name, con->engine_name);
    con->stop_engine = false;
    con->quit = true;
    return RS_OK;
}

const struct rcmd_entry rcmd_detach_entry = {
    .name = "detach",
    .group = RCMD_CONSOLE,
    .args = "",
    .summary = "leave the console and the engine running",
    .exec = exec_detach,
};

/* Patches that stand for what was loaded from files: the engine that had them is gone. */
static void drop_loaded(const struct con *con, json_t *patches)
{
    const char *key;
    void *next;
    json_t *v;
    json_object_foreach_safe(patches, next, key, v) {
        const size_t n = strcspn(key, "@");
        if (!(n == 4 && memcmp(key, "user", n) == 0) && !(n == 7 && memcmp(key, "weights", n) == 0))
            continue;
        out_printf(con->out, OUT_NOTE, "%s=%s went with the old engine; load it again\n", key, json_string_value(v));
        json_object_del(patches, key);
    }
}

/* Open the model as it was opened first, with what was changed since. */
static json_t *open_args_now(const struct con *con)
{
    static const char *const keys[] = {"ranks", "mode", "numerics", "graph_guard", "spec", "patches"};
    json_t *args = con->open_args != NULL ? json_deep_copy(con->open_args) : json_object();
    if (con->open_args == NULL)
        json_object_set(args, "path", js_at(con->info, "model.path"));
    const json_t *state = json_object_get(con->info, "state");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *v = json_object_get(state, keys[i]);
        if (v != NULL && !json_is_null(v))
            json_object_set_new(args, keys[i], json_deep_copy(v));
    }
    drop_loaded(con, json_object_get(args, "patches"));
    return args;
}

static enum rs_result exec_restart(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    if (js_str(con->info, "model.path", NULL) == NULL)
        return fail_set(err, RS_ESTATE, "no model was open");
    json_t *open = open_args_now(con);
    bool remote = con->remote;
    double start = rcmd_ms();
    if (!con->lost && remote)
        daemon_stop(con, NULL);
    if (con->script != NULL)
        scr_script_part(con->script);
    rs_engine_close(con->engine);
    con->engine = NULL;
    con->lost = false;
    con->session = 0;
    char took[32], name[DAEMON_NAME_MAX];
    enum rs_result r = remote ? daemon_start(con, &con->params, name, err) : con_start_local(con, &con->params, err);
    if (r == RS_OK)
        r = con_open(con, open, err);
    else
        json_decref(open);
    if (r != RS_OK) {
        con->lost = true;
        return r;
    }
    con->stop_engine = remote;
    if (con->script != NULL && (r = rcmd_lua_call(con, "restarted", "", err)) != RS_OK)
        return r;
    out_printf(con->out, OUT_NOTE, "engine: started anew (%s)\n", units_us(took, (rcmd_ms() - start) * 1e3));
    /* A question that the old engine took with it is asked again. */
    if (con->conv.n > 0 && con->conv.messages[con->conv.n - 1].role == CONV_USER)
        return chat_again(con, err);
    return con->conv.n > 0 ? chat_keep(con, err) : RS_OK;
}

const struct rcmd_entry rcmd_restart_entry = {
    .name = "restart",
    .group = RCMD_CONSOLE,
    .args = "",
    .summary = "start the engine anew and go on with the conversation",
    .help = "Ends the engine if it still runs, starts a new one with the same model, ranks, mode and patches, and goes on with this "
            "conversation. A "
            "question that had no answer yet is asked again.",
    .exec = exec_restart,
};

static enum rs_result exec_control(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    bool take = strcmp(args, "take") == 0, give = strcmp(args, "give") == 0;
    json_t *reply;
    if (*args != '\0' && !take && !give)
        return rcmd_usage(self, err);
    enum rs_result r = con_request(con, "control", json_pack("{s:b, s:b}", "take", take, "give", give), &reply, err);
    if (r != RS_OK)
        return r;
    bool mine = js_bool(reply, "in_control", false);
    const char *who = js_str(reply, "client", NULL);
    long long waiting = (long long)js_int(reply, "waiting", 0);
    con->took_over = con->took_over || (con->only_looks && mine);
    con->only_looks = !mine && who != NULL;
    out_printf(con->out, OUT_NOTE, "control: %s%s", mine ? "this console" : who != NULL ? "another client, " : "nobody, so that whoever does something may",
               !mine && who != NULL ? who : "");
    if (waiting > 0)
        out_printf(con->out, OUT_NOTE, "; %lld wait%s for it", waiting, waiting == 1 ? "s" : "");
    out_str(con->out, OUT_NOTE, "\n");
    json_decref(reply);
    return RS_OK;
}

const struct rcmd_entry rcmd_control_entry = {
    .name = "control",
    .group = RCMD_CONSOLE,
    .args = "[take | give]",
    .summary = "who is in control of the engine; take it, or give it up",
    .help = "Of several clients of one engine (rankscope attach) one is in control; the others look. When it leaves, the console that has waited longest is in control and "
            "reads what was said meanwhile. take does not wait for that; give gives it up.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "take|give",
    .exec = exec_control,
};
