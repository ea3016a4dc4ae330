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
#include "console/js.h"
#include "console/sig.h"
#include "console/text.h"

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

void http_held(struct http *h, const char *why)
{
    pthread_mutex_lock(&h->lock);
    bool news = why != NULL && h->held == NULL;
    free(h->held);
    h->held = why != NULL ? xstrdup(why) : NULL;
    pthread_mutex_unlock(&h->lock);
    for (struct http_call *q = h->calls; news && q != NULL; q = q->next)
        http_call_note(h, q, why);
}

static void on_stopped(struct http *h, const char *text)
{
    json_t *json = text != NULL ? js_parse(text) : NULL;
    char *reason = text_one_line(js_str(json, "reason", "?")), *site = text_one_line(js_str(json, "site", ""));
    char *why = xasprintf("the engine is stopped (%s)%s%s", reason, *site != '\0' ? " at " : "", site);
    http_held(h, why);
    free(why);
    free(site);
    free(reason);
    json_decref(json);
}

/* It goes on, or another model is open, or something that does not matter here. */
static void on_state(struct http *h, const struct rs_event *ev)
{
    struct rs_error err;
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    if (json_is_null(json_object_get(json, "stopped")))
        http_held(h, NULL);
    json_decref(json);
    if (!h->asking)
        h->asking = http_send(h, "info", NULL, NULL, HTTP_OWN_INFO, &err) == RS_OK;
}

static void on_info(struct http *h, json_t *info)
{
    struct rs_error err = {0};
    const json_t *was = h->con->info;
    h->asking = false;
    if (json_is_null(json_object_get(info, "model"))) {
        http_phase(h, HTTP_LOADING);
        return;
    }
    bool same = strcmp(js_str(was, "model.path", ""), js_str(info, "model.path", "")) == 0 && strcmp(js_str(was, "model.hash", ""), js_str(info, "model.hash", "")) == 0;
    if (same && h->pieces.n != 0) {
        http_phase(h, HTTP_READY);
        return;
    }
    http_phase(h, HTTP_LOADING);
    con_take_info(h->con, json_incref(info));
    http_pieces_close(&h->pieces);
    if (http_model(h, &err) == RS_OK)
        http_send(h, "pieces", NULL, NULL, HTTP_OWN_PIECES, &err);
}

/* A reply that no client waits for. */
static void on_own_reply(struct http *h, const struct http_pending *p, const struct rs_event *ev)
{
    json_t *json = ev->json != NULL ? js_parse(ev->json) : NULL;
    if (p->part == HTTP_OWN_INFO && ev->status == RS_OK)
        on_info(h, json);
    else if (p->part == HTTP_OWN_INFO)
        h->asking = false;
    if (p->part == HTTP_OWN_PIECES && ev->status == RS_OK && http_pieces_copy(&h->pieces, (size_t)js_int(json, "n", 0), ev->blob, ev->blob_len))
        http_phase(h, HTTP_READY);
    json_decref(json);
}

static void on_reply(struct http *h, const struct rs_event *ev)
{
    struct http_pending *p = h->pending; /* replies come in the order of the requests */
    if (p == NULL || p->id != ev->id)
        return;
    h->pending = p->next;
    if (h->pending == NULL)
        h->pending_last = &h->pending;
    if (p->call != NULL)
        http_call_reply(h, p, ev);
    else
        on_own_reply(h, p, ev);
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
        case RS_EVENT_STATE: on_state(h, &ev); break;
        case RS_EVENT_STOPPED: on_stopped(h, ev.json); break;
        case RS_EVENT_PROGRESS:
        case RS_EVENT_LOG:
        case RS_EVENT_COUNT: break;
        }
    return r == RS_ETIMEOUT ? RS_OK : r;
}

/* Whether it is time to end; a second time means at once. */
static bool ends(const struct http *h)
{
    uint64_t count;
    if (h->end_fd >= 0)
        return read(h->end_fd, &count, sizeof count) == (ssize_t)sizeof count;
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

enum rs_result http_bridge(struct http *h, struct rs_error *err)
{
    struct pollfd p[3] = {{.fd = h->wake_fd, .events = POLLIN}, {.fd = rs_fd(h->con->engine), .events = POLLIN}, {.fd = h->end_fd >= 0 ? h->end_fd : sig_fd(), .events = POLLIN}};
    uint64_t swept = now_ms(), deadline = 0;
    unsigned asked = 0;
    enum rs_result r = RS_OK;
    while (r == RS_OK) {
        uint64_t count;
        poll(p, 3, rs_pending(h->con->engine) ? 0 : SWEEP_MS);
        if (p[2].revents != 0 && ends(h) && asked++ == 0) {
            atomic_store(&h->phase, HTTP_DRAINING);
            deadline = now_ms() + h->limits.drain_s * 1000ull;
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
