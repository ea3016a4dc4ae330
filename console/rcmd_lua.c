/* rcmd_lua.c: /lua CODE and =EXPR: Lua at the prompt, on the console's own engine. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "lua/scr_script.h"

static void print(void *ctx, const char *text, size_t len)
{
    struct con *con = ctx;
    out_write(con->out, OUT_TEXT, text, len);
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

/* The state lives as long as the console, so that what one line defines the next one can use. */
static enum rs_result state_of(struct con *con, struct rs_error *err)
{
    if (con->script != NULL)
        return RS_OK;
    char *lua = paths_data("lua/rs.lua");
    con->script_model = paths_shipped_model();
    if (lua == NULL)
        return fail_set(err, RS_ENOTFOUND, "the Lua library is not installed (lua/rs.lua)");
    *strrchr(lua, '/') = '\0';
    struct scr_host host = {.ctx = con, .print = print, .interrupted = interrupted, .engine = engine, .default_model = con->script_model};
    enum rs_result rc = scr_script_open(&host, lua, &con->script, err);
    free(lua);
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
    if (trace != NULL)
        out_printf(con->out, OUT_NOTE, "%s\n", trace);
    free(trace);
    return rc;
}

const struct rcmd_entry rcmd_lua_entry = {
    .name = "lua",
    .args = "CODE",
    .summary = "run Lua; = EXPR prints values",
    .help = "The module rs is there (docs/lua.md), on this console's engine. What is defined stays until the console ends.",
    .exec = exec_lua,
};

static enum rs_result exec_run(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    char *trace = NULL, *argv[1] = {NULL};
    if (args[0] == '\0')
        return rcmd_usage(self, err);
    char *path = paths_expand(args);
    enum rs_result rc = state_of(con, err);
    if (rc == RS_OK)
        rc = scr_script_file(con->script, path, 0, argv, &trace, err);
    if (trace != NULL)
        out_printf(con->out, OUT_NOTE, "%s\n", trace);
    free(trace);
    free(path);
    return rc;
}

const struct rcmd_entry rcmd_run_entry = {
    .name = "run",
    .args = "FILE.lua",
    .summary = "run a Lua script on this console's engine",
    .complete = RCMD_COMPLETE_FILE,
    .exec = exec_run,
};
