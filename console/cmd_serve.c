/* cmd_serve.c: the model behind HTTP, in the form that OpenAI's clients speak. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "console/chat.h"
#include "console/cmd_list.h"
#include "console/http.h"
#include "console/js.h"
#include "console/oneshot.h"

static const struct opt s_options[] = {
    {.name = "host", .type = OPT_STRING, .arg = "NAME", .help = "address to listen on; without it 127.0.0.1. Any that others can reach needs a key"},
    {.name = "port", .type = OPT_INT, .arg = "N", .min = 0, .max = 65535, .help = "port; without it 8080, 0 takes a free one"},
    {.name = "api-key-file", .type = OPT_FILE, .arg = "FILE", .help = "a file whose first line clients must give as Authorization: Bearer"},
    {.name = "alias", .type = OPT_STRING, .arg = "NAME", .help = "what clients call the model; without it the name that the file gives"},
    {.name = "max-seqs", .type = OPT_INT, .arg = "N", .min = 1, .max = 4096, .help = "sequences that run at once; without it 256"},
    {.name = "max-queue", .type = OPT_INT, .arg = "N", .min = 1, .max = 100000, .help = "requests that run or wait; more are turned away (429); without it 2048"},
    {.name = "max-body", .type = OPT_INT, .arg = "BYTES", .min = 1, .max = 1 << 26, .help = "longest request; without it 1048576"},
    {.name = "read-timeout", .type = OPT_INT, .arg = "S", .min = 1, .max = 3600, .help = "seconds in which a request must have come in; without it 30"},
    {.name = "idle-timeout", .type = OPT_INT, .arg = "S", .min = 1, .max = 3600, .help = "seconds after which a silent connection is closed; without it 75"},
    {.name = "drain", .type = OPT_INT, .arg = "S", .min = 0, .max = 3600, .help = "seconds that running requests get to finish at the end; without it 30"},
    {0},
};

enum { UNREAD_MAX = 1 << 20 };

/* The first line of the file, without what others could read unnoticed. */
static enum rs_result read_key(const char *path, char **key, struct rs_error *err)
{
    char line[512];
    struct stat st;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return fail_set(err, RS_EIO, "cannot read %s: %s", path, strerror(errno));
    bool good = fstat(fileno(f), &st) == 0 && fgets(line, sizeof line, f) != NULL;
    fclose(f);
    size_t n = good ? strcspn(line, "\r\n") : 0;
    if (n < 8 || n >= sizeof line - 1)
        return fail_set(err, RS_EFORMAT, "%s: the first line must be a key of 8 to %zu characters", path, sizeof line - 2);
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return fail_set(err, RS_EFORMAT, "%s can be read by others: chmod 600", path);
    line[n] = '\0';
    *key = xstrdup(line);
    return RS_OK;
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 || strncmp(host, "127.", 4) == 0;
}

/* As many descriptors as allowed; how many connections that makes. */
static size_t raise_descriptors(void)
{
    struct rlimit lim = {1024, 1024};
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max < 65536 ? lim.rlim_max : 65536;
        setrlimit(RLIMIT_NOFILE, &lim);
        getrlimit(RLIMIT_NOFILE, &lim);
    }
    size_t n = lim.rlim_cur > 128 ? (size_t)lim.rlim_cur - 64 : 64;
    return n < 8192 ? n : 8192;
}

static void init(struct http *h, struct con *con, const struct opt_values *v)
{
    h->limits = (struct http_limits){
        .body = (size_t)opt_int(v, "max-body", 1 << 20),
        .calls = (size_t)opt_int(v, "max-queue", 2048),
        .connections = raise_descriptors(),
        .unread = UNREAD_MAX,
        .read_s = (unsigned)opt_int(v, "read-timeout", 30),
        .idle_s = (unsigned)opt_int(v, "idle-timeout", 75),
    };
    h->con = con;
    h->started = (long)time(NULL);
    h->inbox_last = &h->inbox;
    h->pending_last = &h->pending;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&h->lock, NULL);
    metrics_init(&h->metrics);
}

static void fini(struct http *h)
{
    if (h->daemon != NULL)
        http_stop(h);
    close(h->wake_fd);
    pthread_mutex_destroy(&h->lock);
    http_pieces_close(&h->pieces);
    free(h->key);
    free(h->model);
    free(h->path);
}

/* Listen, open the model while /health says 503, serve. args is consumed. */
static enum rs_result serve(struct http *h, const struct opt_values *v, json_t *args, struct rs_error *err)
{
    unsigned bound = 0;
    const char *host = opt_string(v, "host", "127.0.0.1"), *path = js_str(args, "path", js_str(args, "synthetic", ""));
    const char *slash = strrchr(path, '/');
    h->path = xstrdup(path);
    h->model = xstrdup(opt_string(v, "alias", slash != NULL ? slash + 1 : path));
    enum rs_result r = http_start(h, host, (unsigned)opt_int(v, "port", 8080), &bound, err);
    if (r != RS_OK) {
        json_decref(args);
        return r;
    }
    out_printf(h->con->out, OUT_NOTE, "listening on http://%s%s%s:%u\n", strchr(host, ':') != NULL ? "[" : "", host, strchr(host, ':') != NULL ? "]" : "",
               bound);
    r = con_open(h->con, args, err);
    if (r != RS_OK)
        return r;
    json_int_t context = js_int(h->con->info, "model.context", 0), room = js_int(h->con->info, "state.ctx_total", context);
    atomic_store(&h->context, (long)(context < room ? context : room));
    r = chat_need_template(h->con, err);
    if (r == RS_ENOTFOUND) {
        out_printf(h->con->out, OUT_WARN, "no chat template fits this model; /v1/chat/completions will fail: %s\n", err->msg);
        r = RS_OK;
    }
    if (r == RS_OK)
        r = http_pieces_open(h->con, &h->pieces, err);
    if (r != RS_OK)
        return r;
    atomic_store(&h->phase, HTTP_READY);
    char *ranks = con_state(h->con, "ranks"), *mode = con_state(h->con, "mode");
    out_printf(h->con->out, OUT_NOTE, "ready: %s, %s ranks, %s\n", h->model, ranks, mode);
    free(ranks);
    free(mode);
    return http_bridge(h, (unsigned)opt_int(v, "drain", 30), err);
}

static enum rs_result open_args(const struct opt_values *v, json_t **args, struct rs_error *err)
{
    enum rs_result r = oneshot_open_args(v, NULL, args, err);
    long seqs = opt_int(v, "max-seqs", 256);
    if (r != RS_OK)
        return r;
    json_object_set_new(*args, "max_seqs", json_integer(seqs));
    json_object_set_new(*args, "batch_tokens", json_integer(seqs > 512 ? seqs : 512));
    if (!opt_set(v, "ctx"))
        json_object_set_new(*args, "ctx", json_integer(32768));
    return RS_OK;
}

static enum exit_status exec_serve(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    struct http h = {0};
    json_t *args = NULL;
    const char *host = opt_string(v, "host", "127.0.0.1");
    if (!is_loopback(host) && !opt_set(v, "api-key-file"))
        return cmd_usage(self, "others can reach %s: give a key with --api-key-file FILE", host);
    if (opt_set(v, "api-key-file") && read_key(opt_string(v, "api-key-file", ""), &h.key, &err) != RS_OK)
        return cmd_fail(self, &err);
    if (open_args(v, &args, &err) != RS_OK) {
        free(h.key);
        return cmd_fail(self, &err);
    }
    enum exit_status status = oneshot_start_bare(&s, self, v);
    if (status != EXIT_OK) {
        free(h.key);
        json_decref(args);
        return status;
    }
    init(&h, &s.con, v);
    enum rs_result r = serve(&h, v, args, &err);
    fini(&h);
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
    .tables = {s_options, oneshot_table},
    .max_args = 0,
    .exec = exec_serve,
};
