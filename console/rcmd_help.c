/* rcmd_help.c: /help and /quit. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/rcmd_list.h"
#include "console/table.h"
#include "console/text.h"

static void take_added(void *ctx, const char *name, const char *help)
{
    char *text = text_one_line(help);
    table_cell(ctx, "/%s", name);
    table_cell(ctx, "%s", text);
    free(text);
}

struct wanted {
    const char *name;
    char *help; /* NULL: not found */
};

static void look_for(void *ctx, const char *name, const char *help)
{
    struct wanted *w = ctx;
    if (strcmp(name, w->name) == 0)
        w->help = text_one_line(help);
}

/* Explain a command that a script has added; false: there is none of that name. */
static bool explain_added(struct con *con, const char *name)
{
    struct wanted w = {.name = name};
    if (con->script != NULL)
        scr_script_commands(con->script, look_for, &w);
    if (w.help == NULL)
        return false;
    out_printf(con->out, OUT_HEADING, "/%s\n", name);
    out_printf(con->out, OUT_TEXT, "%s\n", *w.help != '\0' ? w.help : "added by a script");
    free(w.help);
    return true;
}

static enum rs_result exec_help(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    if (*args != '\0') {
        const char *name = args[0] == '/' ? args + 1 : args;
        if (explain_added(con, name))
            return RS_OK;
        const struct rcmd_entry *e = rcmd_find(name, err);
        if (e == NULL)
            return err->code;
        out_printf(con->out, OUT_HEADING, "/%s%s%s\n", e->name, *e->args ? " " : "", e->args);
        out_printf(con->out, OUT_TEXT, "%s\n", e->help != NULL ? e->help : e->summary);
        return RS_OK;
    }
    struct table *t = table_new("command|what it does");
    for (size_t i = 0; rcmd_table[i] != NULL; i++) {
        const struct rcmd_entry *e = rcmd_table[i];
        table_cell(t, "/%s%s%s", e->name, *e->args ? " " : "", e->args);
        table_cell(t, "%s", e->summary);
    }
    if (con->script != NULL)
        scr_script_commands(con->script, take_added, t);
    table_print(t, con->out);
    out_str(con->out, OUT_TEXT,
            "Anything else is said to the model (// begins a text with a slash); = begins Lua. Ctrl-C stops an answer, Ctrl-D quits.\n");
    return RS_OK;
}

const struct rcmd_entry rcmd_help_entry = {
    .name = "help",
    .args = "[COMMAND]",
    .summary = "list the commands, or explain one",
    .complete = RCMD_COMPLETE_COMMAND,
    .exec = exec_help,
};

static enum rs_result exec_quit(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    (void)err;
    con->quit = true;
    return RS_OK;
}

const struct rcmd_entry rcmd_quit_entry = {
    .name = "quit",
    .args = "",
    .summary = "leave the console",
    .help = "Leaves the console. An engine that it started ends with it; /detach leaves that running.",
    .exec = exec_quit,
};
