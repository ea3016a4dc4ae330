/* The engine's side of the HTTP server: the thread that has the handle. It takes calls from the inbox, sends what they need, hands events to them, and
 * wakes up for signals. Nothing here waits for a client. */
#include "config.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "console/fail.h"
#include "console/http.h"
#include "console/sig.h"

enum { SWEEP_MS = 200 };

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static void link_call(struct http *h, struct http_call *q)
{
    q->next = h->calls;
    q->prev = NULL;
    if (q->next != NULL)
        q->next->prev = q;
    h->calls = q;
}

static void drop_call(struct http *h, struct http_call *q)
{
    *(q->prev != NULL ? &q->prev->next : &h->calls) = q->next;
    if (q->next != NULL)
        q->next->prev = q->prev;
    pthread_mutex_lock(&h->lock);
    h->n_calls--;
    q->finished = true;
    http_resume(h, q);
    http_unref(h, q);
    pthread_mutex_unlock(&h->lock);
}

static struct http_call *take_inbox(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    struct http_call *q = h->inbox;
    if (q != NULL) {
        h->inbox = q->inbox_next;
        if (h->inbox == NULL)
            h->inbox_last = &h->inbox;
        q->inbox_next = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    return q;
}

static void begin_calls(struct http *h)
{
    struct http_call *q;
    while ((q = take_inbox(h)) != NULL) {
        struct rs_error err = {0};
        link_call(h, q);
        if (http_call_begin(h, q, &err))
            continue;
        http_call_cancel(h, q); /* what was sent before it failed */
        http_call_fail(h, q);
    }
}

/* Calls that nobody waits for any more, and calls that are over. */
static void tidy(struct http *h)
{
    for (struct http_call *q = h->calls, *next; q != NULL; q = next) {
        next = q->next;
        pthread_mutex_lock(&h->lock);
        bool gone = q->gone;
        pthread_mutex_unlock(&h->lock);
        if (gone)
            http_call_cancel(h, q);
        if (http_call_over(q))
            drop_call(h, q);
    }
}

/* A suspended connection is not watched by libmicrohttpd: a client that left shows here. */
static void find_gone(struct http *h)
{
    size_t n = 0, cap = 0;
    struct pollfd *p = NULL;
    struct http_call **of = NULL;
    pthread_mutex_lock(&h->lock);
    for (struct http_call *q = h->calls; q != NULL; q = q->next) {
        if (q->conn == NULL || q->gone)
            continue;
        if (n == cap) {
            cap = cap == 0 ? 64 : cap * 2;
            p = xreallocarray(p, cap, sizeof *p);
            of = xreallocarray(of, cap, sizeof *of);
        }
        of[n] = q;
        p[n++] = (struct pollfd){.fd = q->fd, .events = POLLRDHUP};
    }
    if (n > 0 && poll(p, n, 0) > 0)
        for (size_t i = 0; i < n; i++)
            if (p[i].revents != 0) {
                of[i]->gone = true;
                http_resume(h, of[i]);
            }
    pthread_mutex_unlock(&h->lock);
    free(p);
    free(of);
}

static void on_reply(struct http *h, const struct rs_event *ev)
{
    struct http_pending *p = h->pending; /* replies come in the order of the requests */
    if (p == NULL || p->id != ev->id)
        return;
    h->pending = p->next;
    if (h->pending == NULL)
        h->pending_last = &h->pending;
    http_call_reply(h, p, ev);
    free(p);
}

static enum rs_result take_events(struct http *h, struct rs_error *err)
{
    struct rs_event ev;
    enum rs_result r;
    while ((r = rs_next(h->con->engine, 0, &ev, err)) == RS_OK)
        switch (ev.type) {
        case RS_EVENT_REPLY: on_reply(h, &ev); break;
        case RS_EVENT_TOKEN: http_call_token(h, &ev); break;
        case RS_EVENT_DONE: http_call_done(h, &ev); break;
        case RS_EVENT_LOST: return fail_set(err, RS_EENGINE, "the engine is gone");
        case RS_EVENT_PROGRESS:
        case RS_EVENT_STATE:
        case RS_EVENT_STOPPED:
        case RS_EVENT_LOG:
        case RS_EVENT_COUNT: break;
        }
    return r == RS_ETIMEOUT ? RS_OK : r;
}

/* The signals that came: 0, or that it is time to end; a second one ends at once. */
static bool ends(void)
{
    unsigned bits = sig_take();
    if (bits & SIG_BIT_TSTP)
        sig_stop();
    return bits & (SIG_BIT_INT | SIG_BIT_TERM | SIG_BIT_HUP);
}

static void end_all(struct http *h)
{
    for (struct http_call *q = h->calls; q != NULL; q = q->next) {
        pthread_mutex_lock(&h->lock);
        q->gone = true;
        http_resume(h, q);
        pthread_mutex_unlock(&h->lock);
    }
}

static bool unread_left(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    bool busy = h->inbox != NULL || h->n_open != 0;
    pthread_mutex_unlock(&h->lock);
    return busy;
}

enum rs_result http_bridge(struct http *h, unsigned drain_s, struct rs_error *err)
{
    struct pollfd p[3] = {{.fd = h->wake_fd, .events = POLLIN}, {.fd = rs_fd(h->con->engine), .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}};
    uint64_t swept = now_ms(), deadline = 0;
    unsigned asked = 0;
    enum rs_result r = RS_OK;
    while (r == RS_OK) {
        uint64_t count;
        poll(p, 3, rs_pending(h->con->engine) ? 0 : SWEEP_MS);
        if (p[2].revents != 0 && ends() && asked++ == 0) {
            atomic_store(&h->phase, HTTP_DRAINING);
            deadline = now_ms() + drain_s * 1000ull;
        }
        if (p[0].revents != 0 && read(h->wake_fd, &count, sizeof count) < 0)
            count = 0;
        begin_calls(h);
        r = take_events(h, err);
        if (now_ms() - swept >= SWEEP_MS) {
            swept = now_ms();
            http_sweep(h);
            find_gone(h);
        }
        tidy(h);
        if (asked > 1 || (asked == 1 && now_ms() > deadline))
            end_all(h);
        if (asked > 0 && h->calls == NULL && (asked > 1 || now_ms() > deadline || !unread_left(h)))
            break;
    }
    if (r != RS_OK)
        while (h->calls != NULL) { /* the engine is gone: tell everybody */
            struct http_call *q = h->calls;
            api_error_set(&q->error, 503, "service_unavailable_error", NULL, NULL, "%s", err->msg);
            http_call_fail(h, q);
            drop_call(h, q);
        }
    while (h->pending != NULL) {
        struct http_pending *x = h->pending;
        h->pending = x->next;
        free(x);
    }
    return r;
}
