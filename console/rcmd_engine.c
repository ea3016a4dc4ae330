/* rcmd_engine.c: /info, /load, /mode, /ranks, /set: what is loaded and how steps run. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/fail.h"
#include "console/js.h"
#include "console/opt.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "console/setting.h"
#include "console/tui.h"
#include "console/view.h"

static enum rs_result exec_info(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    enum rs_result r = con_refresh(con, err);
    if (r == RS_OK)
        view_info(con->out, con->info);
    return r;
}

const struct rcmd_entry rcmd_info_entry = {
    .name = "info",
    .group = RCMD_MODEL,
    .lists = true,
    .args = "",
    .summary = "what is loaded and how it runs",
    .exec = exec_info,
};

static enum rs_result exec_load(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0')
        return rcmd_usage(self, err);
    char *path = paths_file(args), *was = xstrdup(js_str(con->info, "model.path", "none"));
    json_t *o = json_object();
    json_object_set_new(o, "path", js_text(path, strlen(path)));
    json_object_set_new(o, "ranks", json_integer(con_default_ranks(path)));
    json_object_set_new(o, "mode", json_string(js_str(con->info, "state.mode", "graph")));
    json_object_set_new(o, "numerics", json_string(js_str(con->info, "state.numerics", "invariant")));
    double start = rcmd_ms();
    enum rs_result r = con_open(con, o, err);
    if (r == RS_OK) {
        char *ranks = con_state(con, "ranks"), *mode = con_state(con, "mode");
        rcmd_changed(con, "model", was, args, rcmd_ms() - start);
        out_printf(con->out, OUT_NOTE, "%s rank%s, %s mode, no patches; the conversation is kept\n", ranks,
                   strcmp(ranks, "1") == 0 ? "" : "s", mode);
        free(ranks);
        free(mode);
    }
    free(path);
    free(was);
    return r;
}

const struct rcmd_entry rcmd_load_entry = {
    .name = "load",
    .group = RCMD_MODEL,
    .args = "FILE",
    .summary = "open another model",
    .help = "Opens another model in place of this one. Mode and numerics stay as they are, patches go back to their defaults, and the "
            "number of ranks "
            "is what the model gets by itself. When the file is no good the present model stays open.",
    .complete = RCMD_COMPLETE_FILE,
    .exec = exec_load,
};

/* What the state says of an option, in the option's own words. */
static char *now(const struct con *con, const char *what, const char *state)
{
    const struct setting *s = setting_find(what);
    return s != NULL ? setting_word(s, json_object_get(json_object_get(con->info, "state"), state)) : con_state(con, state);
}

/* Send "set" with one member and tell what changed. args is consumed. */
static enum rs_result change(struct con *con, const char *what, const char *state, json_t *args, struct rs_error *err)
{
    char *from = now(con, what, state);
    json_t *reply;
    double start = rcmd_ms();
    enum rs_result r = con_request(con, "set", args, &reply, err);
    if (r != RS_OK) {
        free(from);
        return r;
    }
    double ms = js_num(reply, "took_ms", rcmd_ms() - start);
    if (con->info != NULL) {
        json_object_del(reply, "took_ms");
        json_object_set(con->info, "state", reply);
    }
    json_decref(reply);
    char *to = now(con, what, state);
    rcmd_changed(con, what, from, to, ms);
    free(from);
    free(to);
    return RS_OK;
}

static enum rs_result exec_mode(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0') {
        char *mode = con_state(con, "mode");
        out_printf(con->out, OUT_TEXT, "mode: %s\n", mode);
        free(mode);
        return RS_OK;
    }
    if (!opt_is_choice(self->words, args))
        return rcmd_usage(self, err);
    return change(con, "mode", "mode", json_pack("{s:s}", "mode", args), err);
}

const struct rcmd_entry rcmd_mode_entry = {
    .name = "mode",
    .group = RCMD_MODEL,
    .args = "[eager|graph]",
    .summary = "show or switch how steps run",
    .help = "In eager mode every op is launched by itself, in graph mode a step is captured once and replayed. The switch takes effect "
            "between two steps.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "eager|graph",
    .exec = exec_mode,
};

static enum rs_result exec_ranks(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0') {
        char *ranks = con_state(con, "ranks");
        out_printf(con->out, OUT_TEXT, "ranks: %s%s\n", ranks, js_bool(con->info, "simulated", false) ? " (simulated)" : "");
        free(ranks);
        return RS_OK;
    }
    char *end;
    errno = 0;
    long n = strtol(args, &end, 10);
    if (errno != 0 || *end != '\0' || n < 1 || n > RS_MAX_RANKS)
        return fail_set(err, RS_EUSAGE, "ranks go from 1 to %d, not '%s'", RS_MAX_RANKS, args);
    (void)self;
    return change(con, "ranks", "ranks", json_pack("{s:i}", "ranks", (int)n), err);
}

const struct rcmd_entry rcmd_ranks_entry = {
    .name = "ranks",
    .group = RCMD_MODEL,
    .args = "[N]",
    .summary = "show the ranks or deal the loaded model to N of them",
    .exec = exec_ranks,
};

/* "mouse", "mouse=on" or "mouse on": of this console, not of the engine. */
static enum rs_result set_mouse(struct con *con, const char *value, struct rs_error *err)
{
    value += strspn(value, "= \t");
    if (con->tui == NULL)
        return fail_set(err, RS_ESTATE, "there are no panels here");
    const char *was = con->tui->mouse ? "on" : "off";
    if (*value == '\0') {
        out_printf(con->out, OUT_TEXT, "mouse: %s (on|off)\n", was);
        return RS_OK;
    }
    if (!opt_is_choice("on|off", value))
        return fail_set(err, RS_EUSAGE, "mouse is one of on|off, not '%s'", value);
    rcmd_changed(con, "mouse", was, value, NAN);
    tui_set_mouse(con->tui, strcmp(value, "on") == 0);
    return RS_OK;
}

static void show_setting(struct con *con, const struct setting *s)
{
    char *value = now(con, s->name, s->key);
    out_printf(con->out, OUT_TEXT, "%s: %s (%s)\n  %s\n", s->name, value, s->choices, s->help);
    free(value);
}

static enum rs_result exec_set(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    if (strncmp(args, "mouse", 5) == 0 && strchr("= \t", args[5]) != NULL)
        return set_mouse(con, args + 5, err);
    if (*args == '\0' || setting_find(args) != NULL) {
        for (const struct setting *s = setting_table; s->name != NULL; s++)
            if (*args == '\0' || strcmp(s->name, args) == 0)
                show_setting(con, s);
        if (*args == '\0' && con->tui != NULL)
            out_printf(con->out, OUT_TEXT, "mouse: %s (on|off)\n  on: clicks select and the wheel scrolls panels; off: the terminal's own selection\n",
                       con->tui->mouse ? "on" : "off");
        return RS_OK;
    }
    json_t *o = json_object();
    enum rs_result r = setting_add(o, args, err);
    if (r != RS_OK) {
        json_decref(o);
        return r;
    }
    char *name = xstrndup(args, strcspn(args, "="));
    r = change(con, name, setting_find(name)->key, o, err);
    free(name);
    return r;
}

const struct rcmd_entry rcmd_set_entry = {
    .name = "set",
    .group = RCMD_MODEL,
    .lists = true,
    .args = "[NAME | NAME=VALUE]",
    .summary = "show or change the options of the engine, and mouse=on|off",
    .complete = RCMD_COMPLETE_SETTING,
    .exec = exec_set,
};
