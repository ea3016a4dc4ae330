/* cmd_repl.c: the console: what runs when no subcommand is named. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/daemon.h"
#include "console/desk.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/rcmd_lua.h"
#include "console/sampling.h"
#include "console/tui.h"
#include "console/units.h"

static const struct opt s_options[] = {
    {.name = "system", .letter = 's', .type = OPT_STRING, .arg = "TEXT", .help = "system message"},
    {.name = "think", .type = OPT_FLAG, .help = "let the model think first; without --think and --no-think its template decides"},
    {.name = "no-think", .type = OPT_FLAG, .help = "have it answer at once"},
    {.name = "chat-template", .type = OPT_FILE, .arg = "FILE.lua", .help = "use this template instead of the one that fits the model"},
    {.name = "local", .type = OPT_FLAG, .help = "run the engine inside this process; it then ends with the console, however that ends"},
    {0},
};

static void banner(struct con *con)
{
    char params[32], *ranks = con_state(con, "ranks"), *mode = con_state(con, "mode");
    const json_t *m = json_object_get(con->info, "model");
    char *name = text_one_line(js_str(m, "name", "unnamed"));
    out_printf(con->out, OUT_NOTE, "rankscope %s: %s (%s, %s parameters), %s rank%s%s, %s mode. /help lists the commands.\n",
               PACKAGE_VERSION, name, js_str(m, "arch", "n/a"), units_count(params, js_num(m, "params", NAN)), ranks,
               strcmp(ranks, "1") == 0 ? "" : "s", js_bool(con->info, "simulated", false) ? " (simulated)" : "", mode);
    if (con->others[0] != '\0')
        out_printf(con->out, OUT_NOTE, "%s\n", con->others);
    free(ranks);
    free(mode);
    free(name);
}

/* Engines that a console left running, or that another one has, hold memory: who starts one more should know. */
static void look_for_others(struct con *con)
{
    json_t *list;
    struct buf names = {0};
    size_t n = 0;
    if (daemon_list(&list, NULL) != RS_OK)
        return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = js_str(json_array_get(list, i), "name", "");
        if (con->engine_name == NULL || strcmp(name, con->engine_name) != 0)
            buf_printf(&names, "%s%s", n++ > 0 ? ", " : "", name);
    }
    if (n > 0)
        snprintf(con->others, sizeof con->others, "engine%s %.40s run%s too (rankscope ps; attach, stop)", n == 1 ? "" : "s", names.text, n == 1 ? "s" : "");
    buf_fini(&names);
    json_decref(list);
}

static enum rs_result take_options(struct con *con, const struct opt_values *v, struct rs_error *err)
{
    const char *system = opt_string(v, "system", NULL), *file = opt_string(v, "chat-template", NULL);
    size_t bad;
    if (system != NULL && !text_valid(system, strlen(system), &bad))
        return fail_set(err, RS_EUSAGE, "the system message is not UTF-8 text");
    con->conv.system = system != NULL ? xstrdup(system) : NULL;
    con->template_file = file != NULL ? xstrdup(file) : NULL;
    con->think = opt_set(v, "think") ? CON_THINK_ON : opt_set(v, "no-think") ? CON_THINK_OFF : CON_THINK_DEFAULT;
    return sampling_from_options(con->sampling, v, err);
}

static enum exit_status exec_repl(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    bool terminal = desk_terminal() || opt_set(v, "screen");
    if (opt_set(v, "think") && opt_set(v, "no-think"))
        return cmd_usage(self, "--think and --no-think exclude each other");
    if (v->n_args > 0 && opt_set(v, "model"))
        return cmd_usage(self, "name the model once");
    size_t len = v->n_args > 0 ? strlen(v->args[0]) : 0;
    if (len > 4 && strcmp(v->args[0] + len - 4, ".lua") == 0)
        return cmd_usage(self, "%s is a script, which comes first and opens its model itself: rankscope %s ARGUMENTS", v->args[0], v->args[0]);
    const char *wrong = desk_check(v);
    if (wrong != NULL)
        return cmd_usage(self, "%s", wrong);
    const char *path = v->n_args > 0 ? v->args[0] : NULL;
    bool apart = terminal && !opt_set(v, "local") && !opt_set(v, "screen");
    enum exit_status status = apart ? oneshot_start_apart(&s, self, v, path) : oneshot_start(&s, self, v, path);
    if (status != EXIT_OK)
        return status;
    if (take_options(&s.con, v, &err) != RS_OK)
        return oneshot_fail(&s, &err);
    out_stdio_init(&s.out, stdout, terminal ? stdout : stderr);
    s.out.notes_on_data = !terminal;
    if (apart)
        look_for_others(&s.con);
    if (terminal && !opt_set(v, "screen"))
        banner(&s.con);
    rcmd_lua_start(&s.con);
    return oneshot_end(&s, desk_run(&s.con, 0, false, v));
}

const struct cmd_entry cmd_repl_entry = {
    .name = "repl",
    .args = "[MODEL.gguf]",
    .summary = "the console",
    .help =
        "Starts the console on MODEL.gguf, or on the model that comes with the program. What you type is said to the model; a line "
        "that begins with a slash is a command, and /help lists the commands. Ctrl-C stops an answer, Ctrl-D quits. At a terminal it shows "
        "panels, "
        "F1 lists their keys; F12, --plain or a terminal that can show nothing else give a console of lines.\n\n"
        "The engine runs as a process of its own: when the terminal is lost or the console killed, rankscope attach goes on where it was. "
        "Quitting ends the engine, /detach leaves it running.\n\n"
        "When standard input or output is no terminal there are no prompts and no colours: each line of standard input is a message or a "
        "command, answers come without the model's thoughts, the engine runs inside the process, and the first command that fails ends "
        "the run with status 1.",
    .tables = {s_options, sampling_table, oneshot_table, tui_table},
    .max_args = 1,
    .exec = exec_repl,
};
