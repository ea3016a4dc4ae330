/* See server.h. */
#include "engine/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/connect.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/now.h"

/* Bytes of what a client sends, until it sends a longer request. */
enum { IN_START = 1 << 16 };

/* Bytes of a client's queue: at first, what tokens alone may make it, and with a single large reply. */
enum { QUEUE_START = 1 << 20, QUEUE_TOKENS = 1 << 26, QUEUE_MAX = 1 << 30 };

struct client {
    int fd;               /* -1: free slot */
    bool drop;            /* to be closed at the next safe moment */
    bool serves;          /* hands in requests for others */
    uint64_t wants;       /* when it asked to be in control, counted; 0: it did not, or gave it up */
    char name[24];        /* as it called itself */
    uint8_t *in;
    size_t n_in, cap_in;
    size_t taken;         /* of `in`: the request that is being carried out ends here */
    uint8_t *out;         /* [cap_out], bytes from out_at to out_end wait */
    size_t out_at, out_end, cap_out;
};

struct server {
    struct engine *e;
    int listen_fd;
    bool stopping;
    int control;    /* slot, or -1 */
    uint64_t asked; /* requests for control so far */
    struct client c[SERVER_MAX_CLIENTS];
};

static bool add_client(struct server *s, int fd)
{
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        struct client *c = &s->c[i];
        if (c->fd >= 0)
            continue;
        *c = (struct client){.fd = fd, .out = malloc(QUEUE_START), .cap_out = QUEUE_START, .in = malloc(IN_START), .cap_in = IN_START};
        if (c->out == NULL || c->in == NULL || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
            free(c->out);
            free(c->in);
            *c = (struct client){.fd = -1};
            return false;
        }
        return true;
    }
    return false;
}

static void say_control(struct server *s, int slot, bool has, const char *text)
{
    json_t *o = json_pack("{s:s,s:s,s:I,s:b}", "level", "info", "text", text, "time_us", (json_int_t)now_us(), "in_control", has);
    char *line = json_dumps(o, JSON_COMPACT);
    server_event(s, slot, RS_EVENT_LOG, RS_OK, 0, line, NULL, 0);
    free(line);
    json_decref(o);
}

/* Nobody is in control any more: who has waited longest for it is. */
static void hand_over(struct server *s)
{
    s->control = -1;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (s->c[i].fd >= 0 && !s->c[i].drop && s->c[i].wants != 0 && (s->control < 0 || s->c[i].wants < s->c[s->control].wants))
            s->control = i;
    if (s->control >= 0)
        say_control(s, s->control, true, "this client is in control now: the one before has left or given it up");
}

static void remove_client(struct server *s, int i)
{
    struct client *c = &s->c[i];
    bool served = c->serves;
    close(c->fd);
    free(c->in);
    free(c->out);
    *c = (struct client){.fd = -1};
    if (s->control == i)
        hand_over(s);
    msg_client_gone(s->e, i, served);
}

enum rs_result server_open(struct engine *e, int listen_fd, int first, struct server **out, struct rs_error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the server");
    s->e = e;
    s->listen_fd = listen_fd;
    s->control = -1;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        s->c[i].fd = -1;
    if (first >= 0 && !add_client(s, first)) {
        free(s);
        return error_set(err, RS_ENOMEM, "out of memory for the first client");
    }
    *out = s;
    return RS_OK;
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (s->c[i].fd >= 0) {
            close(s->c[i].fd);
            free(s->c[i].in);
            free(s->c[i].out);
        }
    free(s);
}

static size_t queued(const struct client *c)
{
    return c->out_end - c->out_at;
}

/* Make room for n more bytes; grows only if `may_grow`. */
static bool room(struct client *c, size_t n, bool may_grow)
{
    if (c->cap_out - c->out_end >= n)
        return true;
    if (c->out_at > 0) {
        memmove(c->out, c->out + c->out_at, queued(c));
        c->out_end -= c->out_at;
        c->out_at = 0;
    }
    if (c->cap_out - c->out_end >= n)
        return true;
    if (!may_grow || n > QUEUE_MAX || c->out_end + n > QUEUE_MAX)
        return false;
    uint8_t *p = realloc(c->out, c->out_end + n);
    if (p == NULL)
        return false;
    c->out = p;
    c->cap_out = c->out_end + n;
    return true;
}

static void put(struct client *c, const void *data, size_t n)
{
    if (n == 0 || data == NULL)
        return;
    memcpy(c->out + c->out_end, data, n);
    c->out_end += n;
}

/* text may be NULL when the head says that there is none. */
static void push(struct client *c, const struct wire_head *h, const void *text, const void *blob, bool may_grow)
{
    if (c->fd < 0 || c->drop)
        return;
    if (!room(c, sizeof *h + h->text_len + h->blob_len, may_grow)) {
        c->drop = true; /* it does not read */
        return;
    }
    put(c, h, sizeof *h);
    put(c, text, h->text_len);
    put(c, blob, h->blob_len);
}

void server_token(struct server *s, uint32_t subscribers, uint32_t stream, int32_t token, uint32_t flags, const char *text, size_t len,
                  const void *blob, size_t blob_len)
{
    struct wire_head h = {.magic = WIRE_MAGIC, .type = RS_EVENT_TOKEN, .id = stream, .text_len = (uint32_t)len, .blob_len = (uint32_t)blob_len, .token = token, .flags = flags,
                          .time_us = now_us()};
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (subscribers >> i & 1)
            push(&s->c[i], &h, text, blob, false);
}

static struct wire_head event_head(enum rs_event_type type, enum rs_result status, uint32_t id, const char *json, size_t blob_len)
{
    return (struct wire_head){.magic = WIRE_MAGIC, .type = (uint16_t)type, .status = (int16_t)status, .id = id,
                              .text_len = json != NULL ? (uint32_t)strlen(json) : 0, .blob_len = (uint32_t)blob_len, .time_us = now_us()};
}

void server_event(struct server *s, int slot, enum rs_event_type type, enum rs_result status, uint32_t id, const char *json, const void *blob, size_t blob_len)
{
    struct wire_head h = event_head(type, status, id, json, blob_len);
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (slot < 0 || slot == i)
            push(&s->c[i], &h, json, blob, true);
}

void server_event_mask(struct server *s, uint32_t mask, enum rs_event_type type, uint32_t id, const char *json)
{
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (mask >> i & 1)
            server_event(s, i, type, RS_OK, id, json, NULL, 0);
}

void server_flush(struct server *s)
{
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        struct client *c = &s->c[i];
        while (c->fd >= 0 && !c->drop && queued(c) > 0) {
            ssize_t n = send(c->fd, c->out + c->out_at, queued(c), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n > 0)
                c->out_at += (size_t)n;
            else if (n < 0 && errno == EINTR)
                continue;
            else {
                if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
                    c->drop = true;
                break;
            }
        }
        if (queued(c) == 0)
            c->out_at = c->out_end = 0;
    }
}

/* Carry out the complete requests in c->in; submits: up to one that is something else. */
static void take_requests(struct server *s, int i, bool submits)
{
    static const char SUBMIT[] = "submit";
    struct client *c = &s->c[i];
    size_t at = 0;
    while (!c->drop && c->n_in - at >= sizeof(struct wire_head)) {
        struct wire_head h;
        memcpy(&h, c->in + at, sizeof h);
        if (h.magic != WIRE_MAGIC || h.type != WIRE_REQUEST || h.text_len > WIRE_MAX_TEXT || h.blob_len > WIRE_MAX_TEXT) {
            c->drop = true; /* not one of ours */
            break;
        }
        size_t whole = sizeof h + h.text_len + h.blob_len;
        if (c->n_in - at < whole) {
            if (whole > c->cap_in) {
                uint8_t *p = realloc(c->in, whole);
                if (p == NULL) {
                    c->drop = true;
                    break;
                }
                c->in = p;
                c->cap_in = whole;
            }
            break;
        }
        if (submits && (h.text_len < sizeof SUBMIT || memcmp(c->in + at + sizeof h, SUBMIT, sizeof SUBMIT) != 0))
            break;
        c->taken = at + whole;
        deliver_pending(s->e);
        msg_handle(s->e, i, h.id, (const char *)c->in + at + sizeof h, h.text_len, c->in + at + sizeof h + h.text_len, h.blob_len);
        at += whole;
    }
    memmove(c->in, c->in + at, c->n_in - at);
    c->n_in -= at;
    c->taken = 0;
}

/* Whether one of these requests is of that method; the last may be cut short. */
static bool holds(const uint8_t *bytes, size_t n, const char *method)
{
    size_t len = strlen(method) + 1;
    for (size_t at = 0; at + sizeof(struct wire_head) + len <= n;) {
        struct wire_head h;
        memcpy(&h, bytes + at, sizeof h);
        if (h.magic != WIRE_MAGIC)
            return false;
        if (h.text_len >= len && memcmp(bytes + at + sizeof h, method, len) == 0)
            return true;
        at += sizeof h + h.text_len + h.blob_len;
    }
    return false;
}

bool server_foresees(const struct server *s, int slot, const char *method)
{
    const struct client *c = &s->c[slot];
    uint8_t bytes[4096];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    return holds(c->in + c->taken, c->n_in - c->taken, method) || (n > 0 && holds(bytes, (size_t)n, method));
}

bool server_foresees_any(const struct server *s, const char *method)
{
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (s->c[i].fd >= 0 && server_foresees(s, i, method))
            return true;
    return false;
}

static void read_client(struct server *s, int i)
{
    struct client *c = &s->c[i];
    for (;;) {
        if (c->n_in == c->cap_in) {
            size_t had = c->n_in;
            take_requests(s, i, false);
            if (c->drop || (c->n_in == had && c->n_in == c->cap_in))
                return;
        }
        ssize_t n = recv(c->fd, c->in + c->n_in, c->cap_in - c->n_in, MSG_DONTWAIT);
        if (n > 0) {
            c->n_in += (size_t)n;
            take_requests(s, i, false);
            if (c->drop || s->stopping || sched_plenty(s->e))
                return;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            c->drop = true;
        return;
    }
}

/* Whether something was read or carried out. */
static bool admit(struct server *s, int i)
{
    struct client *c = &s->c[i];
    const ssize_t n = c->n_in < c->cap_in ? recv(c->fd, c->in + c->n_in, c->cap_in - c->n_in, MSG_DONTWAIT) : -1;
    if (n > 0) /* that it has left is seen at the end of the step, behind what it has asked for */
        c->n_in += (size_t)n;
    const size_t had = c->n_in;
    take_requests(s, i, true);
    return !c->drop && (n > 0 || c->n_in != had);
}

bool server_admit(struct server *s)
{
    bool more = false;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (s->c[i].fd >= 0 && !s->c[i].drop)
            more |= admit(s, i);
    return more;
}

static void accept_clients(struct server *s)
{
    for (;;) {
        int fd = accept(s->listen_fd, NULL, NULL);
        if (fd < 0)
            return;
        if (!connect_send_page(fd, s->e->page_fd) || !add_client(s, fd))
            close(fd);
    }
}

/* Between two steps: a queue that is half full gets room for the tokens of the next ones, which cannot allocate. A client that serves a thousand
 * streams may well be late by a dozen steps. */
static void make_room(struct client *c)
{
    if (c->fd < 0 || c->drop || queued(c) < c->cap_out / 2 || c->cap_out >= QUEUE_TOKENS)
        return;
    uint8_t *p = realloc(c->out, c->cap_out * 2);
    if (p != NULL) {
        c->out = p;
        c->cap_out *= 2;
    }
}

void server_poll(struct server *s, int timeout_ms)
{
    struct pollfd p[SERVER_MAX_CLIENTS + 1];
    int slot[SERVER_MAX_CLIENTS + 1], n = 0;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++) { /* what was read during a step, and is of another kind */
        const size_t had = s->c[i].n_in;
        if (s->c[i].fd >= 0 && had != 0)
            take_requests(s, i, false);
        if (s->c[i].n_in != had)
            timeout_ms = 0;
    }
    if (s->listen_fd >= 0) {
        p[n] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
        slot[n++] = -1;
    }
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (s->c[i].fd >= 0) {
            p[n] = (struct pollfd){.fd = s->c[i].fd, .events = (short)(POLLIN | (queued(&s->c[i]) > 0 ? POLLOUT : 0))};
            slot[n++] = i;
        }
    if (poll(p, (nfds_t)n, timeout_ms) > 0)
        for (int k = 0; k < n; k++) {
            if (p[k].revents == 0)
                continue;
            if (slot[k] < 0)
                accept_clients(s);
            else if (p[k].revents & (POLLIN | POLLHUP | POLLERR))
                read_client(s, slot[k]);
        }
    server_flush(s);
    int left = 0;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        make_room(&s->c[i]);
        if (s->c[i].fd >= 0 && s->c[i].drop)
            remove_client(s, i);
        left += s->c[i].fd >= 0;
    }
    if (s->listen_fd < 0 && left == 0)
        s->stopping = true;
}

void server_introduce(struct server *s, int slot, const char *name, bool serves)
{
    snprintf(s->c[slot].name, sizeof s->c[slot].name, "%s", name);
    s->c[slot].serves = serves;
}

const char *server_client_name(const struct server *s, int slot)
{
    return s->c[slot].name;
}

bool server_serves(const struct server *s, int slot)
{
    return s->c[slot].serves;
}

bool server_in_control(const struct server *s, int slot)
{
    return s->control == slot || s->control < 0;
}

bool server_take_control(struct server *s, int slot, bool take)
{
    int before = s->control;
    s->c[slot].wants = s->c[slot].wants != 0 ? s->c[slot].wants : ++s->asked;
    if (take || s->control < 0)
        s->control = slot;
    if (before >= 0 && before != s->control)
        say_control(s, before, false, "another client has taken control");
    return s->control == slot;
}

void server_give_control(struct server *s, int slot)
{
    s->c[slot].wants = 0;
    if (s->control == slot)
        hand_over(s);
}

int server_control(const struct server *s, int *waiting)
{
    *waiting = 0;
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        *waiting += s->c[i].fd >= 0 && s->c[i].wants != 0 && i != s->control;
    return s->control;
}

void server_hang_up(struct server *s)
{
    for (int i = 0; i < SERVER_MAX_CLIENTS; i++)
        if (s->c[i].fd >= 0)
            shutdown(s->c[i].fd, SHUT_RDWR);
}

void server_stop(struct server *s)
{
    s->stopping = true;
}

bool server_stopping(const struct server *s)
{
    return s->stopping;
}
