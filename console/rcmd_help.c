/* rcmd_help.c: /help and /quit. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/rcmd_list.h"
#include "console/table.h"
#include "console/text.h"

#define ROOMY 110 /* columns from which on the table of groups has three */

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

static void add_row(struct table *t, const struct rcmd_entry *e)
{
    table_cell(t, "/%s", e->name);
    table_cell(t, "%s", e->summary);
    table_cell(t, "%s", e->args);
}

static struct table *new_list(void)
{
    return table_new("command|+what it does|+1arguments");
}

static void list_added(struct con *con)
{
    struct table *t = table_new("command|+what it does");
    if (con->script != NULL)
        scr_script_commands(con->script, take_added, t);
    table_print(t, con->out);
}

static void list_group(struct con *con, const struct rcmd_group *g)
{
    struct table *t = new_list();
    out_printf(con->out, OUT_HEADING, "%s: %s\n", g->name, g->summary);
    for (size_t i = 0; rcmd_table[i] != NULL; i++)
        if (rcmd_table[i]->group == g->about)
            add_row(t, rcmd_table[i]);
    table_print(t, con->out);
}

static void list_all(struct con *con)
{
    for (const struct rcmd_group *g = rcmd_groups; g->name != NULL; g++)
        list_group(con, g);
    list_added(con);
}

/* The groups with all their commands; where there is no room beside what a group is about, below that. */
static void list_groups(struct con *con)
{
    size_t columns = out_columns(con->out);
    bool apart = columns == 0 || columns >= ROOMY;
    struct table *t = table_new(apart ? "group|what it is about|+commands" : "group|+what it is about, and its commands");
    for (const struct rcmd_group *g = rcmd_groups; g->name != NULL; g++) {
        struct buf names = {0};
        for (size_t i = 0; rcmd_table[i] != NULL; i++)
            if (rcmd_table[i]->group == g->about)
                buf_printf(&names, "%s/%s", names.len > 0 ? " " : "", rcmd_table[i]->name);
        table_cell(t, "%s", g->name);
        if (apart)
            table_cell(t, "%s", g->summary);
        table_cell(t, "%s%s%s", apart ? "" : g->summary, apart ? "" : ": ", names.text);
        buf_fini(&names);
    }
    table_print(t, con->out);
    list_added(con);
    out_str(con->out, OUT_TEXT, "/help GROUP lists its commands, /help COMMAND explains one, /help all lists all; Tab completes.\n"
                                "Anything else is said to the model (// begins a text with a slash); = begins Lua. Ctrl-C stops an answer, Ctrl-D quits.\n");
}

static void explain(struct con *con, const struct rcmd_entry *e)
{
    out_printf(con->out, OUT_HEADING, "/%s%s%s\n", e->name, *e->args ? " " : "", e->args);
    out_printf(con->out, OUT_TEXT, "%s\n", e->help != NULL ? e->help : e->summary);
    if (e->also != NULL)
        out_printf(con->out, OUT_NOTE, "short: %s\n", e->also);
}

/* A name in full counts before one cut short, and a slash says that a command is meant. */
static enum rs_result exec_help(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    bool slash = args[0] == '/';
    const char *name = args + slash;
    if (*args == '\0') {
        list_groups(con);
        return RS_OK;
    }
    if (explain_added(con, name))
        return RS_OK;
    const struct rcmd_entry *e = rcmd_exact(name);
    const struct rcmd_group *g = slash || e != NULL ? NULL : rcmd_group_find(name);
    if (e == NULL && !slash && strcmp(name, "all") == 0)
        list_all(con);
    else if (g != NULL)
        list_group(con, g);
    else if (e != NULL || (e = rcmd_find(name, err)) != NULL)
        explain(con, e);
    else
        return err->code;
    return RS_OK;
}

const struct rcmd_entry rcmd_help_entry = {
    .name = "help",
    .group = RCMD_CONSOLE,
    .lists = true,
    .args = "[GROUP | COMMAND | all]",
    .summary = "the groups of commands; the commands of a group; one command",
    .help = "Without a name: what groups of commands there are. With the name of a group: its commands. With the name of a command: what it does. all lists all commands.",
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
    .group = RCMD_CONSOLE,
    .args = "",
    .summary = "leave the console",
    .help = "Leaves the console. An engine that it started ends with it; /detach leaves that running.",
    .exec = exec_quit,
};
