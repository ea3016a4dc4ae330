/* The network's side of the HTTP server: one thread of libmicrohttpd. Everything here returns at once; a request that needs the engine is handed to
 * the bridge and its connection suspended until there is something to send. */
#include "config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "console/fail.h"
#include "console/http.h"
#include "console/js.h"

enum { DISCARD = 64 }; /* a body that is longer than allowed is read to its end, up to this many times the limit */

/* A connection: what the sweep needs to end it. In the list of h->conns, under the lock. */
struct http_conn {
    struct http_conn *next, *prev;
    int fd;
    uint64_t deadline_us; /* 0: none */
};

/* A request on its way in. The network thread's alone. */
struct incoming {
    const struct route *route; /* NULL: none of that path */
    struct buf body;
    bool bad;                  /* error is what will be answered, the body is not kept */
    struct api_error error;
    struct http_call *call;    /* once it was handed over */
};

struct route {
    const char *path;
    bool post;
    enum { R_CALL, R_MODELS, R_HEALTH, R_VERSION } what;
    enum http_route call;
    enum api_kind api;
    bool open; /* needs no key */
};

static const struct route s_routes[] = {
    {"/v1/chat/completions", true, R_CALL, HTTP_CHAT, API_CHAT, false},
    {"/v1/completions", true, R_CALL, HTTP_COMPLETION, API_COMPLETION, false},
    {"/tokenize", true, R_CALL, HTTP_TOKENIZE, API_TOKENIZE, false},
    {"/detokenize", true, R_CALL, HTTP_DETOKENIZE, API_DETOKENIZE, false},
    {"/metrics", false, R_CALL, HTTP_METRICS, API_CHAT, false},
    {"/v1/models", false, R_MODELS, HTTP_CHAT, API_CHAT, false},
    {"/health", false, R_HEALTH, HTTP_CHAT, API_CHAT, true},
    {"/version", false, R_VERSION, HTTP_CHAT, API_CHAT, false},
    {0},
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void wake(struct http *h)
{
    uint64_t one = 1;
    if (write(h->wake_fd, &one, sizeof one) < 0)
        return; /* full: it is awake */
}

/* ---- calls, under the lock ---------------------------------------------------------------------------------------------------------------- */

void http_resume(struct http *h, struct http_call *q)
{
    (void)h;
    if (!q->suspended || q->conn == NULL)
        return;
    q->suspended = false;
    MHD_resume_connection(q->conn);
}

void http_unref(struct http *h, struct http_call *q)
{
    (void)h;
    if (--q->refs != 0)
        return;
    for (size_t i = 0; i < q->n_choices; i++) {
        json_decref(q->choices[i].text);
        json_decref(q->choices[i].thinking);
        buf_fini(&q->choices[i].echo);
        http_logprobs_fini(&q->choices[i].logprobs);
    }
    for (size_t i = 0; i < sizeof q->parts / sizeof q->parts[0]; i++)
        free(q->parts[i]);
    free(q->choices);
    buf_fini(&q->head);
    buf_fini(&q->out);
    api_free(&q->api);
    free(q);
}

static void suspend(struct http_call *q)
{
    q->suspended = true;
    MHD_suspend_connection(q->conn);
}

/* ---- answers ------------------------------------------------------------------------------------------------------------------------------- */

/* text becomes libmicrohttpd's. */
static enum MHD_Result answer(struct MHD_Connection *conn, int status, const char *type, char *text)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (r == NULL) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == 401)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 429 || status == 503)
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    enum MHD_Result rc = MHD_queue_response(conn, (unsigned)status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result answer_error(struct http *h, struct MHD_Connection *conn, const struct api_error *e)
{
    static const int counted[] = {400, 401, 404, 429, 503};
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++)
        h->refused[i] += e->status == counted[i];
    pthread_mutex_unlock(&h->lock);
    return answer(conn, e->status, "application/json", api_error_json(e));
}

/* libmicrohttpd asks for more of a stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    struct http_call *q = cls;
    struct http *h = q->http;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&h->lock);
    if (q->out_at < q->out.len) {
        size_t left = q->out.len - q->out_at;
        n = (ssize_t)(left < max ? left : max);
        memcpy(to, q->out.text + q->out_at, (size_t)n);
        q->out_at += (size_t)n;
        if (q->out_at == q->out.len) {
            buf_clear(&q->out);
            q->out_at = 0;
        }
    } else if (q->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (q->finished) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(q);
    }
    pthread_mutex_unlock(&h->lock);
    return n;
}

static enum MHD_Result answer_stream(struct MHD_Connection *conn, struct http_call *q)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, q, NULL);
    if (r == NULL)
        return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    enum MHD_Result rc = MHD_queue_response(conn, 200, r);
    MHD_destroy_response(r);
    return rc;
}

/* A suspended connection goes on: the bridge has answered. */
static enum MHD_Result answer_call(struct http *h, struct MHD_Connection *conn, struct http_call *q)
{
    char *text = NULL;
    pthread_mutex_lock(&h->lock);
    bool gone = q->gone, sse = q->sse, ready = q->answered;
    int status = q->status;
    if (!gone && !ready)
        suspend(q); /* woken for nothing */
    if (!gone && ready && !sse)
        text = buf_take(&q->out);
    pthread_mutex_unlock(&h->lock);
    if (gone)
        return MHD_NO;
    if (!ready)
        return MHD_YES;
    if (sse)
        return answer_stream(conn, q);
    return answer(conn, status, q->route == HTTP_METRICS && status == 200 ? "text/plain; version=0.0.4; charset=utf-8" : "application/json", text);
}

/* ---- requests ------------------------------------------------------------------------------------------------------------------------------ */

static void refuse(struct incoming *in, int status, const char *type, const char *code, const char *message)
{
    if (!in->bad)
        api_error_set(&in->error, status, type, code, NULL, "%s", message);
    in->bad = true;
}

/* Takes as long for a wrong key as for a right one. */
static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned differs = n != m;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned)(a[i] ^ b[m != 0 ? i % m : 0]);
    return differs == 0;
}

static bool has_key(struct http *h, struct MHD_Connection *conn)
{
    const char *auth = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    return h->key == NULL || (auth != NULL && strncasecmp(auth, "Bearer ", 7) == 0 && same_key(auth + 7, h->key));
}

/* "http://localhost:8080", "127.0.0.1:80", "[::1]": names that only this machine answers to. */
static bool is_local(const char *name)
{
    const char *host = strstr(name, "://") != NULL ? strstr(name, "://") + 3 : name;
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    return (n == 9 && strncasecmp(host, "localhost", 9) == 0) || (n >= 7 && n <= 15 && strncmp(host, "127.", 4) == 0) ||
           (n == 5 && strncmp(host, "[::1]", 5) == 0);
}

/* Without a key, a page in somebody's browser must not be able to use the server through its visitor. */
static bool from_elsewhere(struct http *h, struct MHD_Connection *conn)
{
    const char *origin = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    const char *host = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    return h->key == NULL && ((origin != NULL && !is_local(origin)) || (host != NULL && !is_local(host)));
}

/* An address that is none is answered with those that there are. */
static void refuse_address(struct incoming *in, const char *method, const char *url)
{
    struct buf have = {0};
    for (const struct route *r = s_routes; r->path != NULL; r++)
        buf_printf(&have, "%s%s %s", have.len > 0 ? ", " : "", r->post ? "POST" : "GET", r->path);
    char *text = xasprintf("there is nothing at %.8s %.120s; there is %s", method, url, have.text);
    refuse(in, 404, "not_found_error", NULL, text);
    free(text);
    buf_fini(&have);
}

static void check_head(struct http *h, struct MHD_Connection *conn, const char *url, const char *method, struct incoming *in)
{
    const struct route *r = s_routes;
    while (r->path != NULL && strcmp(r->path, url) != 0)
        r++;
    in->route = r->path != NULL ? r : NULL;
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (from_elsewhere(h, conn))
        refuse(in, 403, "permission_error", NULL, "this server answers to programs of its own machine; start it with a key for others");
    else if ((in->route == NULL || !in->route->open) && !has_key(h, conn))
        refuse(in, 401, "authentication_error", "invalid_api_key", "the key is missing or wrong: Authorization: Bearer KEY");
    else if (in->route == NULL)
        refuse_address(in, method, url);
    else if (in->route->post ? strcmp(method, "POST") != 0 : !get)
        refuse(in, 405, "invalid_request_error", NULL, in->route->post ? "this address takes POST" : "this address takes GET");
}

/* What is still to come of the body is read and thrown away: a client that is cut off while it sends does not see why. */
static void too_long(struct http *h, struct incoming *in)
{
    buf_fini(&in->body);
    api_error_set(&in->error, 413, "invalid_request_error", NULL, NULL, "the body is longer than %zu bytes", h->limits.body);
    in->bad = true;
}

static void keep_body(struct http *h, struct incoming *in, const char *data, size_t n)
{
    if (in->bad)
        return;
    if (in->body.len + n > h->limits.body)
        too_long(h, in);
    else
        buf_add(&in->body, data, n);
}

/* Refuse a request for a model that is not the one here. */
static void check_model(struct http *h, struct incoming *in, const char *name)
{
    pthread_mutex_lock(&h->lock);
    const char *slash = strrchr(h->path, '/');
    bool known = name == NULL || strcmp(name, h->model) == 0 || strcmp(name, h->path) == 0 || (slash != NULL && strcmp(name, slash + 1) == 0);
    if (!known) {
        char *text = xasprintf("there is no such model here; there is %.200s", h->model);
        refuse(in, 404, "invalid_request_error", "model_not_found", text);
        free(text);
    }
    pthread_mutex_unlock(&h->lock);
}

/* The body is here: check it and hand the call over. */
static enum MHD_Result take_call(struct http *h, struct MHD_Connection *conn, struct incoming *in)
{
    struct http_call *q = xcalloc(1, sizeof *q);
    int phase = atomic_load(&h->phase);
    q->http = h;
    q->route = in->route->call;
    q->refs = 1;
    if (phase != HTTP_READY)
        refuse(in, 503, "service_unavailable_error", NULL, phase == HTTP_LOADING ? "the model is being loaded" : "the server is shutting down");
    else if (q->route != HTTP_METRICS)
        in->bad = !api_parse(in->route->api, in->body.text != NULL ? in->body.text : "", in->body.len, &q->api, &in->error);
    if (!in->bad)
        check_model(h, in, q->api.model);
    buf_fini(&in->body);
    pthread_mutex_lock(&h->lock);
    if (!in->bad && h->n_calls >= h->limits.calls)
        refuse(in, 429, "rate_limit_error", "queue_full", "as many requests as allowed are running and waiting; try again later");
    if (in->bad) {
        http_unref(h, q);
        pthread_mutex_unlock(&h->lock);
        return answer_error(h, conn, &in->error);
    }
    q->refs = 2; /* this connection's and the bridge's */
    q->conn = conn;
    q->fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    q->submit_us = now_us();
    h->n_calls++;
    h->n_open++;
    in->call = q;
    *h->inbox_last = q;
    h->inbox_last = &q->inbox_next;
    suspend(q);
    pthread_mutex_unlock(&h->lock);
    wake(h);
    return MHD_YES;
}

/* An engine that an operator has stopped is in health, but requests wait: say for what. Caller frees. */
static char *health(struct http *h, int phase)
{
    json_t *o = json_pack("{s:s}", "status", phase == HTTP_READY ? "ok" : phase == HTTP_LOADING ? "loading" : "draining");
    pthread_mutex_lock(&h->lock);
    if (h->held != NULL)
        json_object_set_new(o, "waiting", js_text(h->held, strlen(h->held)));
    pthread_mutex_unlock(&h->lock);
    char *text = js_dump(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static enum MHD_Result take_request(struct http *h, struct MHD_Connection *conn, struct incoming *in)
{
    int phase = atomic_load(&h->phase);
    char *text;
    if (in->bad)
        return answer_error(h, conn, &in->error);
    switch (in->route->what) {
    case R_MODELS:
        pthread_mutex_lock(&h->lock);
        text = http_reply_models(h);
        pthread_mutex_unlock(&h->lock);
        return answer(conn, 200, "application/json", text);
    case R_VERSION: return answer(conn, 200, "application/json", xstrdup("{\"version\":\"" PACKAGE_VERSION "\"}"));
    case R_HEALTH: return answer(conn, phase == HTTP_READY ? 200 : 503, "application/json", health(h, phase));
    case R_CALL: break;
    }
    return take_call(h, conn, in);
}

static void set_deadline(struct http *h, struct MHD_Connection *conn, unsigned seconds)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_conn *c = info != NULL ? info->socket_context : NULL;
    pthread_mutex_lock(&h->lock);
    if (c != NULL)
        c->deadline_us = seconds != 0 ? now_us() + seconds * 1000000ull : 0;
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *conn, const char *url, const char *method, const char *version, const char *data,
                                  size_t *n, void **context)
{
    struct http *h = cls;
    struct incoming *in = *context;
    (void)version;
    if (in == NULL) {
        in = *context = xcalloc(1, sizeof *in);
        check_head(h, conn, url, method, in);
        const char *length = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
        unsigned long long n_body = length != NULL ? strtoull(length, NULL, 10) : 0;
        if (!in->bad && n_body > h->limits.body)
            too_long(h, in);
        if (in->bad && n_body / DISCARD > h->limits.body)
            return answer_error(h, conn, &in->error); /* too much to read only to be polite */
        return MHD_YES;
    }
    if (*n > 0) {
        keep_body(h, in, data, *n);
        *n = 0;
        return MHD_YES;
    }
    if (in->call != NULL)
        return answer_call(h, conn, in->call);
    set_deadline(h, conn, 0);
    return take_request(h, conn, in);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **context, enum MHD_RequestTerminationCode why)
{
    struct http *h = cls;
    struct incoming *in = *context;
    set_deadline(h, conn, h->limits.idle_s + h->limits.read_s);
    if (in == NULL)
        return;
    if (in->call != NULL) {
        pthread_mutex_lock(&h->lock);
        in->call->conn = NULL;
        h->n_open--;
        in->call->gone |= why != MHD_REQUEST_TERMINATED_COMPLETED_OK;
        http_unref(h, in->call);
        pthread_mutex_unlock(&h->lock);
        wake(h);
    }
    buf_fini(&in->body);
    free(in);
    *context = NULL;
}

/* ---- connections --------------------------------------------------------------------------------------------------------------------------- */

static void on_connection(void *cls, struct MHD_Connection *conn, void **socket_context, enum MHD_ConnectionNotificationCode what)
{
    struct http *h = cls;
    struct http_conn *c = *socket_context;
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        c = *socket_context = xcalloc(1, sizeof *c);
        c->fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        c->deadline_us = now_us() + h->limits.read_s * 1000000ull;
        c->next = h->conns;
        if (c->next != NULL)
            c->next->prev = c;
        h->conns = c;
    } else if (c != NULL) {
        *(c->prev != NULL ? &c->prev->next : &h->conns) = c->next;
        if (c->next != NULL)
            c->next->prev = c->prev;
        free(c);
        *socket_context = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}

void http_sweep(struct http *h)
{
    uint64_t now = now_us();
    pthread_mutex_lock(&h->lock);
    for (struct http_conn *c = h->conns; c != NULL; c = c->next)
        if (c->deadline_us != 0 && now > c->deadline_us) {
            shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees the end and closes */
            c->deadline_us = 0;
        }
    pthread_mutex_unlock(&h->lock);
}

static void no_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls, (void)fmt, (void)ap; /* what clients do wrong is theirs to know */
}

static enum rs_result find_address(const char *host, unsigned port, struct addrinfo **out, struct rs_error *err)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, out);
    return rc == 0 ? RS_OK : fail_set(err, RS_EIO, "no address for %s: %s", host, gai_strerror(rc));
}

enum rs_result http_start(struct http *h, const char *host, unsigned port, char **address, struct rs_error *err)
{
    struct addrinfo *a;
    enum rs_result r = find_address(host, port, &a, err);
    if (r != RS_OK)
        return r;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | (a->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    errno = 0;
    h->daemon = MHD_start_daemon(flags, (uint16_t)port, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL, MHD_OPTION_SOCK_ADDR, a->ai_addr,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->limits.connections, MHD_OPTION_CONNECTION_TIMEOUT, h->limits.idle_s,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                                 MHD_OPTION_LISTEN_BACKLOG_SIZE, 1024u, MHD_OPTION_END);
    freeaddrinfo(a);
    if (h->daemon == NULL)
        return fail_set(err, RS_EIO, "cannot listen on %s port %u: %s", host, port, errno != 0 ? strerror(errno) : "libmicrohttpd does not say why");
    unsigned bound = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    bool colon = strchr(host, ':') != NULL;
    *address = xasprintf("http://%s%s%s:%u", colon ? "[" : "", host, colon ? "]" : "", bound);
    return RS_OK;
}

void http_stop(struct http *h)
{
    MHD_stop_daemon(h->daemon);
    h->daemon = NULL;
}
