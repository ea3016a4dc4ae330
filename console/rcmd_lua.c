/* rcmd_lua.c: /lua CODE and =EXPR: Lua at the prompt, on the console's own engine. */
#include "config.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "console/rcmd_lua.h"
#include "console/table.h"
#include "console/tui_custom.h"
#include "console/tui_keymap.h"
#include "lua/scr_script.h"

static void print(void *ctx, const char *text, size_t len)
{
    struct con *con = ctx;
    out_write(con->out, OUT_TEXT, text, len);
}

static bool table(void *ctx, const char *heads, const char *const *cells, size_t n)
{
    struct con *con = ctx;
    size_t columns = 1;
    for (const char *p = heads; *p != '\0'; p++)
        columns += *p == '|';
    if (columns > TABLE_MAX_COLUMNS || *heads == '\0' || n % columns != 0)
        return false;
    struct table *t = table_new(heads);
    for (size_t i = 0; i < n; i++)
        table_cell(t, "%s", cells[i]);
    table_print(t, con->out);
    return true;
}

static bool interrupted(void *ctx)
{
    struct con *con = ctx;
    return con->wait != NULL && (con->wait(con, con->wait_ctx, 0) & (CON_WAKE_INTERRUPT | CON_WAKE_END)) != 0;
}

static struct rs_engine *engine(void *ctx)
{
    return ((struct con *)ctx)->engine;
}

static void event(void *ctx, const struct rs_event *ev)
{
    con_take_event(ctx, ev);
}

static bool reserved(void *ctx, const char *name)
{
    (void)ctx;
    return rcmd_exact(name) != NULL;
}

/* ---- keys and panels ------------------------------------------------------------------------------------------------------------------ */

static void pressed(struct con *con, void *ctx)
{
    char id[16];
    struct rs_error err = {0};
    snprintf(id, sizeof id, "%u", (unsigned)(uintptr_t)ctx);
    if (rcmd_lua_call(con, "key", id, &err) != RS_OK)
        out_error(con->out, "%s", err.msg);
}

static enum rs_result key(void *ctx, const char *name, const char *place, const char *action, unsigned id, const char *help, struct rs_error *err)
{
    (void)ctx;
    struct tui_bind b = {.key = name, .place = place, .action = action, .fn = action == NULL ? pressed : NULL, .ctx = (void *)(uintptr_t)id, .help = help};
    return tui_keymap_add(&b, NULL, err);
}

static enum rs_result unkey(void *ctx, const char *name, const char *place, struct rs_error *err)
{
    (void)ctx;
    return tui_keymap_remove(name, place, err);
}

static enum rs_result panel(void *ctx, const char *name, const char *title, struct rs_error *err)
{
    (void)ctx;
    struct tui_custom c = {.name = name, .title = title};
    return title != NULL ? tui_custom_add(&c, err) : tui_custom_remove(name, err);
}

static enum rs_result panel_text(void *ctx, const char *name, const char *text, size_t len, struct rs_error *err)
{
    (void)ctx;
    return tui_custom_text(name, text, len, err);
}

/* How a call into Lua ended: the traceback is shown here, the message by who asked. What a script did to the engine is asked for again, because it
 * has read the events that would have told. */
static enum rs_result finish(struct con *con, enum rs_result rc, char *trace)
{
    if (trace != NULL && rc != RS_ECANCELLED)
        out_printf(con->out, OUT_NOTE, "%s\n", trace);
    free(trace);
    if (con->engine != NULL && !con->lost && con->info != NULL)
        con_refresh(con, NULL);
    return rc;
}

/* The operator's own beginning: $XDG_CONFIG_HOME/rankscope/init.lua. What is wrong in it is shown and stops nothing. */
static void run_init(struct con *con)
{
    char *path = paths_config("init.lua"), *trace = NULL, *argv[1] = {NULL};
    struct rs_error err = {0};
    if (path != NULL && access(path, F_OK) == 0 && scr_script_file(con->script, path, 0, argv, &trace, &err) != RS_OK) {
        out_error(con->out, "%s", err.msg);
        if (trace != NULL)
            out_printf(con->out, OUT_NOTE, "%s\n", trace);
    }
    free(trace);
    free(path);
}

/* The state lives as long as the console, so that what one line defines the next one can use. */
static enum rs_result state_of(struct con *con, struct rs_error *err)
{
    if (con->script != NULL)
        return RS_OK;
    char *lua = paths_data("lua/rs.lua");
    free(con->script_model);
    con->script_model = paths_shipped_model();
    if (lua == NULL)
        return fail_set(err, RS_ENOTFOUND, "the Lua library is not installed (lua/rs.lua)");
    *strrchr(lua, '/') = '\0';
    struct scr_host host = {.ctx = con, .print = print, .table = table, .interrupted = interrupted, .engine = engine, .event = event, .reserved = reserved,
                            .key = key, .unkey = unkey, .panel = panel, .panel_text = panel_text, .turns = true, .default_model = con->script_model,
                            .json_failures = js_failures};
    enum rs_result rc = scr_script_open(&host, lua, &con->script, err);
    free(lua);
    if (rc == RS_OK)
        run_init(con);
    return rc;
}

static enum rs_result exec_lua(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    char *trace = NULL;
    if (args[0] == '\0')
        return rcmd_usage(self, err);
    enum rs_result rc = state_of(con, err);
    if (rc == RS_OK)
        rc = scr_script_code(con->script, args, "prompt", &trace, err);
    return finish(con, rc, trace);
}

const struct rcmd_entry rcmd_lua_entry = {
    .name = "lua",
    .group = RCMD_CONSOLE,
    .args = "CODE",
    .summary = "run Lua; a line that begins with = does the same",
    .help = "Values of an expression are printed. The module rs is there (docs/lua.md), on this console's engine. What is defined stays until the console ends. "
            "init.lua in the folder $XDG_CONFIG_HOME/rankscope runs first; scripts may add commands with rs.cmd.add.",
    .complete = RCMD_COMPLETE_LUA,
    .exec = exec_lua,
};

static enum rs_result exec_run(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    char *trace = NULL, *argv[1] = {NULL};
    if (args[0] == '\0')
        return rcmd_usage(self, err);
    size_t n = strlen(args);
    bool aside = n > 1 && args[n - 1] == '&' && args[n - 2] == ' ';
    char *word = xasprintf("%.*s", (int)(aside ? n - 2 : n), args), *path = paths_file(word);
    unsigned id;
    enum rs_result rc = state_of(con, err);
    if (rc == RS_OK && aside && (rc = scr_script_start(con->script, path, &id, err)) == RS_OK)
        out_printf(con->out, OUT_NOTE, "task %u: %s\n", id, word);
    else if (rc == RS_OK)
        rc = scr_script_file(con->script, path, 0, argv, &trace, err);
    free(path);
    free(word);
    return aside ? rc : finish(con, rc, trace);
}

const struct rcmd_entry rcmd_run_entry = {
    .name = "run",
    .group = RCMD_CONSOLE,
    .args = "FILE.lua [&]",
    .summary = "run a Lua script on this console's engine",
    .help = "With & it runs beside what you do: it and other scripts take turns wherever one of them waits. /lua rs.core.cancel(N) ends task N.",
    .complete = RCMD_COMPLETE_FILE,
    .exec = exec_run,
};

/* ---- what other files need ----------------------------------------------------------------------------------------------------------- */

void rcmd_lua_start(struct con *con)
{
    char *path = paths_config("init.lua");
    struct rs_error err = {0};
    if (path != NULL && access(path, F_OK) == 0 && state_of(con, &err) != RS_OK)
        out_error(con->out, "%s", err.msg);
    free(path);
}

enum rs_result rcmd_lua_eval(struct con *con, const char *code, struct rs_error *err)
{
    return exec_lua(&rcmd_lua_entry, con, code, err);
}

/* A place in the library is of no use to who typed a command. Lua shortens a long path to dots and its end. */
static void drop_place(struct rs_error *err)
{
    char *p = err->msg, *end = NULL;
    for (char *q = p; (q = strstr(q, ".lua:")) != NULL; q++) {
        char *digits = q + strlen(".lua:");
        size_t n = strspn(digits, "0123456789");
        if (n > 0 && strncmp(digits + n, ": ", 2) == 0)
            end = digits + n + 2;
    }
    if ((p[0] == '/' || p[0] == '.') && end != NULL)
        memmove(p, end, strlen(end) + 1);
}

enum rs_result rcmd_lua_call(struct con *con, const char *function, const char *args, struct rs_error *err)
{
    char *trace = NULL;
    bool added = strcmp(function, "added") == 0;
    enum rs_result rc = state_of(con, err);
    if (rc == RS_OK)
        rc = scr_script_call(con->script, "commands", function, args, added ? &trace : NULL, err);
    if (rc != RS_OK && !added)
        drop_place(err);
    return finish(con, rc, trace);
}

bool rcmd_lua_has(struct con *con, const char *name)
{
    return con->script != NULL && scr_script_has_command(con->script, name);
}

enum rs_result rcmd_lua_command(struct con *con, const char *name, const char *args, struct rs_error *err)
{
    char *line = xasprintf("%s %s", name, args);
    enum rs_result rc = rcmd_lua_call(con, "added", line, err);
    free(line);
    return rc;
}

void rcmd_lua_complete(struct con *con, const char *text, scr_word_fn each, void *ctx)
{
    struct rs_error err;
    if (state_of(con, &err) == RS_OK)
        scr_script_complete(con->script, text, each, ctx);
}
