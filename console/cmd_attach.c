/* cmd_attach.c: a console on an engine that runs already. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/cmd_list.h"
#include "console/daemon.h"
#include "console/desk.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/tui.h"

static const struct opt s_options[] = {
    {.name = "session",
     .type = OPT_INT,
     .arg = "N",
     .min = 1,
     .max = 1e15,
     .help = "the conversation to go on with; without it the newest one"},
    {.name = "new", .type = OPT_FLAG, .help = "begin a conversation of one's own"},
    {.name = "take", .type = OPT_FLAG, .help = "take control from the console that has it"},
    {0},
};

/* The conversation to go on with: the one that runs, else the newest; 0 when there is none. */
static enum rs_result pick_session(struct con *con, json_int_t *out, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = con_request(con, "session.list", NULL, &reply, err);
    if (r != RS_OK)
        return r;
    const json_t *list = json_object_get(reply, "sessions");
    json_int_t newest = 0, running = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        json_int_t id = js_int(s, "session", 0);
        newest = id > newest ? id : newest;
        if (js_bool(s, "running", false) && id > running)
            running = id;
    }
    json_decref(reply);
    *out = running != 0 ? running : newest;
    return RS_OK;
}

static enum exit_status exec_attach(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s = {.entry = self};
    bool terminal = desk_terminal() || opt_set(v, "screen"), in_control = true;
    const char *wrong = desk_check(v);
    if (wrong != NULL)
        return cmd_usage(self, "%s", wrong);
    json_int_t session = opt_int(v, "session", 0);
    out_stdio_init(&s.out, stdout, terminal ? stdout : stderr);
    s.out.notes_on_data = !terminal;
    con_init(&s.con, &s.out.out);
    json_object_set_new(s.con.sampling, "temp", json_real(0));
    enum rs_result r = daemon_connect(&s.con, v->n_args > 0 ? v->args[0] : NULL, &in_control, &err);
    if (r == RS_OK)
        r = con_refresh(&s.con, &err);
    if (r == RS_OK && session == 0 && !opt_set(v, "new"))
        r = pick_session(&s.con, &session, &err);
    if (r != RS_OK) {
        enum exit_status status = oneshot_fail(&s, &err);
        return err.code == RS_ENOTFOUND ? EXIT_COMMAND : status;
    }
    s.con.only_looks = !in_control;
    if (!in_control && opt_set(v, "take")) {
        r = con_request(&s.con, "control", json_pack("{s:b}", "take", 1), NULL, &err);
        if (r != RS_OK)
            return oneshot_fail(&s, &err);
        s.con.only_looks = false;
        in_control = true;
    }
    if (terminal && !opt_set(v, "screen"))
        out_printf(s.con.out, OUT_NOTE, "engine %s: %s%s\n", s.con.engine_name, js_str(s.con.info, "model.name", "no model"),
                   in_control ? "" : "; another client is in control, this console can only look");
    return oneshot_end(&s, desk_run(&s.con, session, false, v));
}

const struct cmd_entry cmd_attach_entry = {
    .name = "attach",
    .args = "[NAME]",
    .summary = "go on with an engine that runs",
    .help = "Starts the console on the engine NAME, or on the only one that runs, and goes on with its newest conversation: what was said "
            "is shown, an "
            "answer that runs is followed. Leaving the console leaves the engine running. While another console is in control this one looks; when that one leaves, "
            "or with --take or /control take, this one is.",
    .tables = {s_options, tui_table},
    .max_args = 1,
    .exec = exec_attach,
};
