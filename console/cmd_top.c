/* cmd_top.c: rankscope top: the figures of an engine that somebody else may be using. */
#include "config.h"

#include "console/cmd_list.h"
#include "console/desk.h"
#include "console/oneshot.h"
#include "console/tui.h"

static const struct opt s_options[] = {
    {.name = "once", .type = OPT_FLAG, .help = "print the panels as text and end"},
    {0},
};

/* Connect as a client that leaves control to others. */
static enum rs_result watch(struct con *con, const char *name, struct rs_error *err)
{
    enum rs_result r = rs_engine_connect(name, &con->engine, err);
    con->remote = true;
    if (r == RS_OK)
        r = con_request(con, "hello", json_pack("{s:i, s:s, s:b}", "protocol", RS_PROTOCOL, "client", "top", "control", 0), NULL, err);
    return r == RS_OK ? con_refresh(con, err) : r;
}

static enum exit_status exec_top(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s = {.entry = self};
    const char *wrong = desk_check(v);
    bool screen = opt_set(v, "screen");
    if (wrong != NULL)
        return cmd_usage(self, "%s", wrong);
    out_stdio_init(&s.out, stdout, stderr);
    con_init(&s.con, &s.out.out);
    enum rs_result r = watch(&s.con, v->n_args > 0 ? v->args[0] : NULL, &err);
    if (r != RS_OK) {
        enum exit_status status = oneshot_fail(&s, &err);
        return err.code == RS_ENOTFOUND ? EXIT_COMMAND : status;
    }
    if (!screen && (opt_set(v, "once") || !desk_terminal())) {
        r = tui_snapshot(&s.con, "/dev/stdout", &err);
        return r == RS_OK ? oneshot_end(&s, EXIT_OK) : oneshot_fail(&s, &err);
    }
    return oneshot_end(&s, desk_run(&s.con, 0, true, v));
}

const struct cmd_entry cmd_top_entry = {
    .name = "top",
    .args = "[NAME]",
    .summary = "watch an engine that runs, without touching it",
    .help = "Shows the panels of the engine NAME, or of the only one that runs: ranks, all-reduces, steps, ops. It takes no control and "
            "changes nothing, so it can stand beside the console that does; q or Ctrl-C leaves it. Where output is no terminal it prints the panels once.",
    .tables = {s_options, tui_table},
    .max_args = 1,
    .exec = exec_top,
};
