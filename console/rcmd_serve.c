/* rcmd_serve.c: /serve: HTTP clients beside the conversation. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/http.h"
#include "console/rcmd_list.h"
#include "console/serving.h"

enum { MAX_WORDS = 32 };

static enum rs_result start(struct con *con, const char *args, struct rs_error *err)
{
    const struct opt *const tables[] = {http_table, NULL};
    char *text = xstrdup(args), *save = NULL, *argv[MAX_WORDS + 2] = {text}, msg[256];
    struct opt_values v;
    int argc = 1;
    enum rs_result r = RS_OK;
    for (char *w = strtok_r(text, " \t", &save); w != NULL && argc <= MAX_WORDS; w = strtok_r(NULL, " \t", &save))
        argv[argc++] = w;
    if (!opt_parse(tables, argc, argv, false, &v, msg, sizeof msg)) {
        free(text);
        return fail_set(err, RS_EUSAGE, "%s", msg);
    }
    if (v.n_args > 0)
        r = fail_set(err, RS_EUSAGE, "usage: /serve [--port N] [--host NAME --api-key-file FILE], /serve off");
    if (r == RS_OK)
        r = serving_start(con, &v, &con->serving, err);
    opt_fini(&v);
    free(text);
    if (r == RS_OK)
        out_printf(con->out, OUT_NOTE, "listening on %s; /serve off ends it\n", serving_address(con->serving));
    return r;
}

static enum rs_result exec_serve(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    struct rs_error why = {0};
    bool off = strcmp(args, "off") == 0;
    (void)self;
    if (con->serving != NULL && serving_over(con->serving, &why)) {
        if (why.code != RS_OK)
            out_printf(con->out, OUT_WARN, "the HTTP server has ended: %s\n", why.msg);
        serving_free(con->serving);
        con->serving = NULL;
    }
    if (con->serving == NULL)
        return off ? fail_set(err, RS_ESTATE, "no HTTP server is running") : start(con, args, err);
    if (off) {
        serving_end(con->serving);
        out_printf(con->out, OUT_NOTE, "the HTTP server takes nothing more and ends when what runs has finished\n");
        return RS_OK;
    }
    if (*args != '\0')
        return fail_set(err, RS_ESTATE, "already listening on %s; /serve off ends it", serving_address(con->serving));
    out_printf(con->out, OUT_TEXT, "listening on %s\n", serving_address(con->serving));
    return RS_OK;
}

const struct rcmd_entry rcmd_serve_entry = {
    .name = "serve",
    .group = RCMD_CONSOLE,
    .args = "[--port N|off]",
    .summary = "answer HTTP clients as OpenAI's do, beside the conversation",
    .help = "Listens on this machine's port 8080, or on --port N, and answers as \"rankscope serve\" does; it takes the same options. Requests run beside "
            "the conversation, see every change that is made to the engine, and wait while it is stopped. Again without arguments it says where it "
            "listens; off lets running requests finish and ends it. The console's end is its end.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "off|--port",
    .exec = exec_serve,
};
