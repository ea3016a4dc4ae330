/* cmd_serve.c: the model behind HTTP, in the form that OpenAI's clients speak. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/http.h"
#include "console/js.h"
#include "console/oneshot.h"

static const struct opt s_options[] = {
    {.name = "max-seqs", .type = OPT_INT, .arg = "N", .min = 1, .max = 4096, .help = "sequences that run at once; without it 256"},
    {0},
};

/* Listen, open the model while /health says 503, serve. args is consumed. */
static enum rs_result serve(struct http *h, const struct opt_values *v, json_t *args, struct rs_error *err)
{
    char *address = NULL;
    http_name(h, js_str(args, "path", js_str(args, "synthetic", "?")));
    enum rs_result r = http_start(h, opt_string(v, "host", "127.0.0.1"), (unsigned)opt_int(v, "port", 8080), &address, err);
    if (r != RS_OK) {
        json_decref(args);
        return r;
    }
    out_printf(h->con->out, OUT_NOTE, "listening on %s\n", address);
    free(address);
    r = con_open(h->con, args, err);
    if (r == RS_OK)
        r = http_model(h, err);
    if (r == RS_OK)
        r = http_pieces_open(h->con, &h->pieces, err);
    if (r != RS_OK)
        return r;
    http_phase(h, HTTP_READY);
    char *ranks = con_state(h->con, "ranks"), *mode = con_state(h->con, "mode");
    out_printf(h->con->out, OUT_NOTE, "ready: %s, %s ranks, %s\n", h->model, ranks, mode);
    free(ranks);
    free(mode);
    return http_bridge(h, err);
}

static enum rs_result open_args(const struct opt_values *v, json_t **args, struct rs_error *err)
{
    enum rs_result r = oneshot_open_args(v, NULL, args, err);
    long seqs = opt_int(v, "max-seqs", 256);
    if (r != RS_OK)
        return r;
    json_object_set_new(*args, "max_seqs", json_integer(seqs));
    if (seqs > (strcmp(opt_string(v, "backend", "cpu"), "cuda") == 0 ? 2048 : 512)) /* else what the engine takes by itself */
        json_object_set_new(*args, "batch_tokens", json_integer(seqs));
    if (!opt_set(v, "ctx"))
        json_object_set_new(*args, "ctx", json_integer(32768));
    return RS_OK;
}

static enum exit_status exec_serve(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    struct http h;
    json_t *args = NULL;
    enum rs_result r = http_init(&h, &s.con, v, &err);
    if (r == RS_EUSAGE)
        return cmd_usage(self, "%s", err.msg);
    if (r != RS_OK)
        return cmd_fail(self, &err);
    if (open_args(v, &args, &err) != RS_OK) {
        http_fini(&h);
        return cmd_fail(self, &err);
    }
    enum exit_status status = oneshot_start_bare(&s, self, v);
    if (status != EXIT_OK) {
        http_fini(&h);
        json_decref(args);
        return status;
    }
    r = serve(&h, v, args, &err);
    http_fini(&h);
    return r == RS_OK ? oneshot_end(&s, EXIT_OK) : oneshot_fail(&s, &err);
}

const struct cmd_entry cmd_serve_entry = {
    .name = "serve",
    .args = "",
    .summary = "answer HTTP clients as OpenAI's do",
    .help = "Opens the model and answers POST /v1/chat/completions and /v1/completions (stream or whole), /tokenize, /detokenize, and GET /v1/models, "
            "/health, /version and /metrics (Prometheus). Many requests run at once; one whose client leaves is stopped. What clients send is "
            "text to the model and nothing else: no control tokens, no commands, no scripts."
            "\n\n"
            "It listens on this machine only, unless --host says otherwise, and then wants a key. SIGTERM and Ctrl-C let running requests finish "
            "(--drain) and end it with status 0; a second one ends it at once.",
    .tables = {http_table, s_options, oneshot_table},
    .max_args = 0,
    .exec = exec_serve,
};
