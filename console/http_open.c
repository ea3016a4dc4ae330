/* Before an HTTP server listens: its options, its key, its limits; and what it takes from a model that has been opened. */
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
#include "console/fail.h"
#include "console/http.h"
#include "console/js.h"

const struct opt http_table[] = {
    {.name = "host", .type = OPT_STRING, .arg = "NAME", .help = "address to listen on; without it 127.0.0.1. Any that others can reach needs a key"},
    {.name = "port", .type = OPT_INT, .arg = "N", .min = 0, .max = 65535, .help = "port; without it 8080, 0 takes a free one"},
    {.name = "api-key-file", .type = OPT_FILE, .arg = "FILE", .help = "a file whose first line clients must give as Authorization: Bearer"},
    {.name = "alias", .type = OPT_STRING, .arg = "NAME", .help = "what clients call the model; without it the name that the file gives"},
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

enum rs_result http_init(struct http *h, struct con *con, const struct opt_values *v, struct rs_error *err)
{
    const char *host = opt_string(v, "host", "127.0.0.1");
    char *key = NULL;
    if (!is_loopback(host) && !opt_set(v, "api-key-file"))
        return fail_set(err, RS_EUSAGE, "others can reach %s: give a key with --api-key-file FILE", host);
    enum rs_result r = opt_set(v, "api-key-file") ? read_key(opt_string(v, "api-key-file", ""), &key, err) : RS_OK;
    if (r != RS_OK)
        return r;
    *h = (struct http){.con = con, .key = key, .started = (long)time(NULL), .end_fd = -1};
    h->limits = (struct http_limits){
        .body = (size_t)opt_int(v, "max-body", 1 << 20),
        .calls = (size_t)opt_int(v, "max-queue", 2048),
        .connections = raise_descriptors(),
        .unread = UNREAD_MAX,
        .read_s = (unsigned)opt_int(v, "read-timeout", 30),
        .idle_s = (unsigned)opt_int(v, "idle-timeout", 75),
        .drain_s = (unsigned)opt_int(v, "drain", 30),
    };
    h->alias = opt_set(v, "alias") ? xstrdup(opt_string(v, "alias", "")) : NULL;
    h->model = xstrdup(h->alias != NULL ? h->alias : "");
    h->path = xstrdup("");
    h->inbox_last = &h->inbox;
    h->pending_last = &h->pending;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&h->lock, NULL);
    metrics_init(&h->metrics);
    return RS_OK;
}

void http_fini(struct http *h)
{
    if (h->daemon != NULL)
        http_stop(h);
    close(h->wake_fd);
    pthread_mutex_destroy(&h->lock);
    http_pieces_close(&h->pieces);
    free(h->key);
    free(h->alias);
    free(h->model);
    free(h->path);
    free(h->held);
    *h = (struct http){.end_fd = -1};
}

void http_name(struct http *h, const char *path)
{
    const char *slash = strrchr(path, '/');
    pthread_mutex_lock(&h->lock);
    free(h->path);
    free(h->model);
    h->path = xstrdup(path);
    h->model = xstrdup(h->alias != NULL ? h->alias : slash != NULL ? slash + 1 : path);
    pthread_mutex_unlock(&h->lock);
}

void http_phase(struct http *h, enum http_phase phase)
{
    if (atomic_load(&h->phase) != HTTP_DRAINING)
        atomic_store(&h->phase, phase);
}

enum rs_result http_model(struct http *h, struct rs_error *err)
{
    const json_t *info = h->con->info;
    json_int_t context = js_int(info, "model.context", 0), room = js_int(info, "state.ctx_total", context);
    atomic_store(&h->context, (long)(context < room ? context : room));
    http_name(h, js_str(info, "model.path", ""));
    enum rs_result r = chat_need_template(h->con, err);
    if (r == RS_ENOTFOUND) {
        out_printf(h->con->out, OUT_WARN, "no chat template fits this model; /v1/chat/completions will fail: %s\n", err->msg);
        r = RS_OK;
    }
    return r;
}
