#include "config.h"

#include "console/serving.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "console/fail.h"
#include "console/http.h"
#include "console/js.h"

enum { PORT = 8080 };

struct serving {
    struct out out;        /* says nothing: the terminal is the console's */
    struct con con;        /* the starter's until the thread runs, then its own */
    struct http http;
    char *address;
    pthread_t thread;
    bool running;          /* the thread is to be joined */
    struct rs_error err;   /* written before over */
    enum rs_result result;
    atomic_bool over;
};

static void say_nothing(struct out *o, enum out_role role, const char *text, size_t len)
{
    (void)o, (void)role, (void)text, (void)len;
}

static void show_nothing(struct out *o, const char *line)
{
    (void)o, (void)line;
}

/* con_wait_fn: signals are not for this session. */
static unsigned wait_engine(struct con *con, void *ctx, int timeout_ms)
{
    struct pollfd p = {.fd = rs_fd(con->engine), .events = POLLIN};
    (void)ctx;
    int n = rs_pending(con->engine) ? 1 : poll(&p, 1, timeout_ms);
    return n > 0 ? CON_WAKE_ENGINE : 0;
}

static void *serve(void *arg)
{
    struct serving *s = arg;
    s->result = http_bridge(&s->http, &s->err);
    http_stop(&s->http);
    atomic_store(&s->over, true);
    return NULL;
}

/* Reach the engine as a client that serves others, and take over what it has open. */
static enum rs_result prepare(struct serving *s, const struct con *con, struct rs_error *err)
{
    s->con.template_file = con->template_file != NULL ? xstrdup(con->template_file) : NULL;
    enum rs_result r = rs_engine_connect(con->engine_name, &s->con.engine, err);
    if (r == RS_OK)
        r = con_request(&s->con, "hello", json_pack("{s:i, s:s, s:b}", "protocol", RS_PROTOCOL, "client", "http", "serve", 1), NULL, err);
    if (r == RS_OK)
        r = con_refresh(&s->con, err);
    if (r == RS_OK && json_is_null(json_object_get(s->con.info, "model")))
        r = fail_set(err, RS_ESTATE, "no model is open");
    if (r == RS_OK)
        r = http_model(&s->http, err);
    if (r == RS_OK)
        r = http_pieces_open(&s->con, &s->http.pieces, err);
    if (r == RS_OK && js_at(s->con.info, "state.stopped.reason") != NULL)
        http_held(&s->http, "the engine is stopped");
    return r;
}

enum rs_result serving_start(const struct con *con, const struct opt_values *v, struct serving **out, struct rs_error *err)
{
    if (!con->remote || con->lost || con->engine == NULL)
        return fail_set(err, RS_ESTATE, "the engine is part of this console; only one in a process of its own can be served");
    struct serving *s = xcalloc(1, sizeof *s);
    s->out = (struct out){.write = say_nothing, .progress = show_nothing};
    con_init(&s->con, &s->out);
    s->con.wait = wait_engine;
    enum rs_result r = http_init(&s->http, &s->con, v, err);
    if (r != RS_OK) {
        con_fini(&s->con);
        free(s);
        return r;
    }
    s->http.end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = prepare(s, con, err);
    if (r == RS_OK)
        r = http_start(&s->http, opt_string(v, "host", "127.0.0.1"), (unsigned)opt_int(v, "port", PORT), &s->address, err);
    if (r == RS_OK) {
        http_phase(&s->http, HTTP_READY);
        int rc = pthread_create(&s->thread, NULL, serve, s);
        s->running = rc == 0;
        r = rc == 0 ? RS_OK : fail_set(err, RS_EIO, "no thread for the server: %s", strerror(rc));
    }
    if (r != RS_OK) {
        serving_free(s);
        return r;
    }
    *out = s;
    return RS_OK;
}

const char *serving_address(const struct serving *s)
{
    return s->address;
}

void serving_end(struct serving *s)
{
    uint64_t one = 1;
    if (write(s->http.end_fd, &one, sizeof one) < 0)
        return; /* it has not even taken the last one: it ends */
}

bool serving_over(const struct serving *s, struct rs_error *err)
{
    if (!atomic_load(&s->over))
        return false;
    *err = s->err;
    err->code = s->result;
    return true;
}

/* The bridge counts how often it is told to end, and one read of the descriptor takes all that was written to it: write until it has ended. */
static void end_now(struct serving *s)
{
    while (!atomic_load(&s->over)) {
        serving_end(s);
        poll(NULL, 0, 5);
    }
    pthread_join(s->thread, NULL);
}

void serving_free(struct serving *s)
{
    if (s == NULL)
        return;
    if (s->running)
        end_now(s);
    int fd = s->http.end_fd;
    http_fini(&s->http);
    close(fd);
    con_fini(&s->con);
    free(s->address);
    free(s);
}
