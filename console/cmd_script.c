/* cmd_script.c: rankscope SCRIPT.lua [args], rankscope -e CODE: scripts outside of the console. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/paths.h"
#include "console/sig.h"
#include "console/script.h"
#include "lua/scr_script.h"

static bool interrupted(void *ctx)
{
    bool *seen = ctx;
    if (sig_take() & (SIG_BIT_INT | SIG_BIT_TERM | SIG_BIT_HUP))
        *seen = true;
    return *seen;
}

/* What a status means to the shell. */
static enum exit_status finish(enum rs_result rc, const char *trace, const struct rs_error *err)
{
    fflush(stdout);
    if (rc == RS_OK)
        return EXIT_OK;
    fprintf(stderr, "rankscope: %s\n", err->msg);
    if (trace != NULL && rc != RS_ECANCELLED)
        fprintf(stderr, "%s\n", trace);
    return rc == RS_ECANCELLED ? EXIT_INTERRUPT : EXIT_COMMAND;
}

enum exit_status script_run(const char *file, const char *code, int argc, char **argv)
{
    char *lua = paths_data("lua/rs.lua"), *model = paths_shipped_model(), *path = file != NULL ? paths_file(file) : NULL, *trace = NULL;
    bool seen = false;
    struct scr_script *s = NULL;
    struct rs_error err;
    struct scr_host host = {.ctx = &seen, .interrupted = interrupted, .default_model = model, .json_failures = js_failures};
    enum rs_result rc = RS_ENOTFOUND;
    if (lua == NULL) {
        fputs("rankscope: the Lua library is not installed (lua/rs.lua)\n", stderr);
        free(model);
        free(path);
        return EXIT_COMMAND;
    }
    *strrchr(lua, '/') = '\0';
    rc = scr_script_open(&host, lua, &s, &err);
    if (rc == RS_OK)
        rc = path != NULL ? scr_script_file(s, path, argc, argv, &trace, &err) : scr_script_code(s, code, "-e", &trace, &err);
    enum exit_status st = finish(rc, trace, &err);
    scr_script_close(s);
    free(trace);
    free(lua);
    free(model);
    free(path);
    return st;
}
