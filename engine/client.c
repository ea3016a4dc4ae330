/* The client's end: the rs_* calls of rankscope.h over one socket. A local engine is a thread at the other end of a socket pair, so that nothing
 * above knows the difference. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/client.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/now.h"
#include "engine/server.h"
#include "engine/snapshot.h"
#include "engine/wire.h"

/* Waking a client for every token of a fast model costs the engine's cores more than sending it. While tokens come faster than FAST_US the client sleeps
 * by the clock instead of at the socket, so that the engine's send wakes nobody, and looks every NAP_US: text is shown within a millisecond. */
enum { FAST_US = 1500, NAP_US = 700, NAPS = 3 };

/* The kernel's struct sched_attr in its first size: not every C library declares it. */
struct slice_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

struct kept {
    struct kept *next;
    struct wire_head head;
    uint8_t body[];
};

struct rs_engine {
    int fd;
    uint32_t next_id;
    bool lost;
    char reason[200];
    uint8_t *in;
    size_t n_in, at, cap_in;      /* unread bytes: in[at .. n_in) */
    struct kept *first, **last;   /* events kept while waiting for a reply */
    struct kept *current;         /* what the last rs_next() pointed into */
    uint32_t token_stream;        /* of the last token */
    uint64_t token_us;
    unsigned naps;                /* looks without result before it waits at the socket again */
    bool brisk;                   /* the reading thread has asked for short slices */
    char *current_text;
    /* local engines */
    bool local;
    pthread_t thread;
    struct engine *engine;
    const struct snapshot_page *page;
};

struct rs_engine *client_new(int fd)
{
    struct rs_engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return NULL;
    e->fd = fd;
    e->next_id = 1;
    e->last = &e->first;
    return e;
}

void client_set_page(struct rs_engine *e, const struct snapshot_page *page)
{
    e->page = page;
}

static void *engine_thread(void *arg)
{
    engine_run(arg);
    return NULL;
}

enum rs_result rs_engine_local(const struct rs_local_params *params, struct rs_engine **out, struct rs_error *err)
{
    int sv[2];
    struct engine *in = NULL;
    enum rs_result rc;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) != 0)
        return error_set(err, RS_EIO, "cannot make a socket pair: %s", strerror(errno));
    struct rs_engine *e = client_new(sv[0]);
    if (e == NULL) {
        rc = error_set(err, RS_ENOMEM, "out of memory for an engine handle");
        goto close_both;
    }
    rc = engine_open(params, "local", -1, sv[1], NULL, &in, err);
    if (rc != RS_OK)
        goto free_handle;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's own threads */
    int failed = pthread_create(&e->thread, NULL, engine_thread, in);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed != 0) {
        engine_close(in);
        sv[1] = -1;
        rc = error_set(err, RS_EIO, "cannot start the engine thread: %s", strerror(failed));
        goto free_handle;
    }
    e->local = true;
    e->engine = in;
    e->page = engine_page(in);
    *out = e;
    return RS_OK;
free_handle:
    free(e);
close_both:
    close(sv[0]);
    if (sv[1] >= 0)
        close(sv[1]);
    return rc;
}

void rs_engine_close(struct rs_engine *e)
{
    if (e == NULL)
        return;
    close(e->fd);
    if (e->local) {
        pthread_join(e->thread, NULL);
        engine_close(e->engine);
    } else if (e->page != NULL) {
        snapshot_unmap(e->page);
    }
    while (e->first != NULL) {
        struct kept *k = e->first;
        e->first = k->next;
        free(k);
    }
    free(e->current);
    free(e->in);
    free(e);
}

static enum rs_result gone(struct rs_engine *e, const char *why, struct rs_error *err)
{
    if (!e->lost)
        strncpy(e->reason, why, sizeof e->reason - 1);
    e->lost = true;
    return error_set(err, RS_EENGINE, "the engine is gone: %s", e->reason);
}

static enum rs_result send_all(struct rs_engine *e, const void *data, size_t n, struct rs_error *err)
{
    const uint8_t *p = data;
    while (n > 0) {
        ssize_t k = send(e->fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return gone(e, k < 0 ? strerror(errno) : "closed", err);
        p += k;
        n -= (size_t)k;
    }
    return RS_OK;
}

enum rs_result rs_send(struct rs_engine *e, const char *method, const char *args, uint32_t *id, struct rs_error *err)
{
    size_t m = strlen(method) + 1, n = args != NULL ? strlen(args) : 0;
    struct wire_head h = {.magic = WIRE_MAGIC, .type = WIRE_REQUEST, .id = e->next_id++, .text_len = (uint32_t)(m + n)};
    if (e->lost)
        return gone(e, "", err);
    if (m + n > WIRE_MAX_TEXT)
        return error_set(err, RS_EUSAGE, "%s: arguments of %zu bytes are too long", method, n);
    enum rs_result rc = send_all(e, &h, sizeof h, err);
    if (rc == RS_OK)
        rc = send_all(e, method, m, err);
    if (rc == RS_OK)
        rc = send_all(e, args, n, err);
    if (rc == RS_OK)
        *id = h.id;
    return rc;
}

static bool reserve_in(struct rs_engine *e, size_t want)
{
    if (e->at > 0) {
        memmove(e->in, e->in + e->at, e->n_in - e->at);
        e->n_in -= e->at;
        e->at = 0;
    }
    if (e->cap_in >= want)
        return true;
    size_t cap = want < 65536 ? 65536 : want;
    uint8_t *p = realloc(e->in, cap);
    if (p == NULL)
        return false;
    e->in = p;
    e->cap_in = cap;
    return true;
}

/* Is a whole frame in the buffer? Then *h is its head. */
static bool whole_frame(const struct rs_engine *e, struct wire_head *h)
{
    if (e->n_in - e->at < sizeof *h)
        return false;
    memcpy(h, e->in + e->at, sizeof *h);
    return e->n_in - e->at >= sizeof *h + h->text_len + h->blob_len;
}

/* A reader of a fast stream needs 30 us at a time, but soon: where the engine's workers fill every core, a slice of 0.1 ms brings it in before theirs of
 * 2 ms have ended (Linux 6.12 and later take a slice for ordinary threads; elsewhere nothing happens). Same policy, same niceness, no more time in all. */
static void short_slice(struct rs_engine *e)
{
    struct slice_attr a = {.size = sizeof a};
    e->brisk = true;
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != 0)
        return;
    a.runtime_ns = 100000;
    syscall(SYS_sched_setattr, 0, &a, 0);
}

/* Nothing is there: sleep or wait. RS_OK: look again. */
static enum rs_result wait_more(struct rs_engine *e, uint64_t deadline_us, struct rs_error *err)
{
    uint64_t now = deadline_us != UINT64_MAX ? now_us() : 0;
    bool nap = e->naps > 0;
    int r;
    e->naps -= nap;
    if (deadline_us != UINT64_MAX && now >= deadline_us)
        return error_set(err, RS_ETIMEOUT, "nothing within the time given");
    if (nap && (deadline_us == UINT64_MAX || deadline_us - now > NAP_US)) {
        r = nanosleep(&(struct timespec){.tv_nsec = NAP_US * 1000}, NULL);
    } else {
        struct pollfd p = {.fd = e->fd, .events = POLLIN};
        r = poll(&p, 1, deadline_us == UINT64_MAX ? -1 : (int)((deadline_us - now + 999) / 1000));
    }
    return r < 0 && errno == EINTR ? error_set(err, RS_ETIMEOUT, "interrupted") : RS_OK;
}

/* Read until a whole frame is there or the deadline passes. */
static enum rs_result fill(struct rs_engine *e, uint64_t deadline_us, struct wire_head *h, struct rs_error *err)
{
    while (!whole_frame(e, h)) {
        size_t want = 4096;
        if (e->n_in - e->at >= sizeof *h) {
            memcpy(h, e->in + e->at, sizeof *h);
            if (h->magic != WIRE_MAGIC || h->text_len > WIRE_MAX_BLOB || h->blob_len > WIRE_MAX_BLOB)
                return gone(e, "it sent something that is not a frame", err);
            want = sizeof *h + h->text_len + h->blob_len;
        }
        if (!reserve_in(e, want + 4096))
            return error_set(err, RS_ENOMEM, "out of memory for a frame of %zu bytes", want);
        ssize_t k = recv(e->fd, e->in + e->n_in, e->cap_in - e->n_in, MSG_DONTWAIT);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            enum rs_result rc = wait_more(e, deadline_us, err);
            if (rc != RS_OK)
                return rc;
            continue;
        }
        if (k <= 0)
            return gone(e, k == 0 ? "the connection was closed" : strerror(errno), err);
        e->n_in += (size_t)k;
    }
    return RS_OK;
}

/* Take the frame at the front of the buffer as an owned copy, NUL after the text. */
static struct kept *take_frame(struct rs_engine *e, const struct wire_head *h)
{
    struct kept *k = malloc(sizeof *k + h->text_len + 1 + h->blob_len);
    if (k == NULL)
        return NULL;
    k->next = NULL;
    k->head = *h;
    memcpy(k->body, e->in + e->at + sizeof *h, h->text_len);
    k->body[h->text_len] = '\0';
    memcpy(k->body + h->text_len + 1, e->in + e->at + sizeof *h + h->text_len, h->blob_len);
    e->at += sizeof *h + h->text_len + h->blob_len;
    if (h->type == RS_EVENT_TOKEN) {
        e->naps = h->id == e->token_stream && h->time_us - e->token_us < FAST_US ? NAPS : 0;
        if (e->naps > 0 && !e->brisk)
            short_slice(e);
        e->token_stream = h->id;
        e->token_us = h->time_us;
    }
    return k;
}

static uint64_t deadline(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : now_us() + (uint64_t)timeout_ms * 1000;
}

static void describe(const struct kept *k, struct rs_event *ev)
{
    const struct wire_head *h = &k->head;
    *ev = (struct rs_event){.type = (enum rs_event_type)h->type, .id = h->id, .status = (enum rs_result)h->status, .token = h->token, .flags = h->flags,
                            .time_us = h->time_us};
    if (h->type == RS_EVENT_TOKEN) {
        ev->text = (const char *)k->body;
        ev->text_len = h->text_len;
    } else if (h->text_len != 0) {
        ev->json = (const char *)k->body;
    }
    if (h->blob_len != 0) {
        ev->blob = k->body + h->text_len + 1;
        ev->blob_len = h->blob_len;
    }
}

enum rs_result rs_next(struct rs_engine *e, int timeout_ms, struct rs_event *ev, struct rs_error *err)
{
    struct wire_head h;
    struct kept *k = e->first;
    if (k != NULL) {
        e->first = k->next;
        if (e->first == NULL)
            e->last = &e->first;
    } else {
        if (e->lost)
            return gone(e, "", err);
        enum rs_result rc = fill(e, deadline(timeout_ms), &h, err);
        if (rc == RS_EENGINE) { /* told once as an event, from then on as an error */
            *ev = (struct rs_event){.type = RS_EVENT_LOST, .status = RS_EENGINE, .text = e->reason, .text_len = strlen(e->reason), .time_us = now_us()};
            return RS_OK;
        }
        if (rc != RS_OK)
            return rc;
        k = take_frame(e, &h);
        if (k == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for an event");
    }
    free(e->current);
    e->current = k;
    describe(k, ev);
    return RS_OK;
}

static enum rs_result engine_error(const struct kept *k, struct rs_error *err)
{
    json_t *o = json_loads((const char *)k->body, 0, NULL);
    const char *msg = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    enum rs_result rc = error_set(err, (enum rs_result)k->head.status, "%s", msg != NULL ? msg : rs_result_name((enum rs_result)k->head.status));
    json_decref(o);
    return rc;
}

enum rs_result rs_request_blob(struct rs_engine *e, const char *method, const char *args, int timeout_ms, char **reply, void **blob, size_t *blob_len,
                               struct rs_error *err)
{
    uint32_t id;
    uint64_t until = deadline(timeout_ms);
    struct wire_head h;
    enum rs_result rc = rs_send(e, method, args, &id, err);
    while (rc == RS_OK) {
        rc = fill(e, until, &h, err);
        if (rc != RS_OK)
            break;
        struct kept *k = take_frame(e, &h);
        if (k == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for a reply");
        if (h.type != RS_EVENT_REPLY || h.id != id) {
            *e->last = k;
            e->last = &k->next;
            continue;
        }
        if (h.status != RS_OK) {
            rc = engine_error(k, err);
            free(k);
            return rc;
        }
        char *text = reply != NULL ? strdup((const char *)k->body) : NULL;
        void *copy = blob != NULL && h.blob_len != 0 ? malloc(h.blob_len) : NULL;
        bool short_of = (reply != NULL && text == NULL) || (blob != NULL && h.blob_len != 0 && copy == NULL);
        if (short_of) {
            free(text);
            free(copy);
            free(k);
            return error_set(err, RS_ENOMEM, "out of memory for a reply");
        }
        if (copy != NULL)
            memcpy(copy, k->body + h.text_len + 1, h.blob_len);
        free(k);
        if (reply != NULL)
            *reply = text;
        if (blob != NULL) {
            *blob = copy;
            *blob_len = h.blob_len;
        }
        return RS_OK;
    }
    return rc;
}

enum rs_result rs_request(struct rs_engine *e, const char *method, const char *args, int timeout_ms, char **reply, struct rs_error *err)
{
    return rs_request_blob(e, method, args, timeout_ms, reply, NULL, NULL, err);
}

int rs_fd(const struct rs_engine *e)
{
    return e->fd;
}

bool rs_pending(const struct rs_engine *e)
{
    struct wire_head h;
    return e->first != NULL || whole_frame(e, &h);
}

unsigned rs_nap_us(const struct rs_engine *e)
{
    return e->naps > 0 ? NAP_US : 0;
}

bool rs_snapshot_read(const struct rs_engine *e, struct rs_snapshot *out)
{
    return e->page != NULL && snapshot_read(e->page, out);
}
