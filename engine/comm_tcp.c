/* See comm.h: one TCP connection for every pair of processes. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine/comm.h"
#include "engine/error.h"
#include "engine/now.h"

struct tcp {
    struct comm base;
    int fd[COMM_MAX_HOSTS]; /* -1: none, as for this process itself */
};

/* How a connection for data begins. */
struct hello {
    uint32_t magic, host;
    char secret[LINK_SECRET];
};

/* One direction to or from one host: the moves of the list from `at` on, `done` bytes of that one are through. */
struct lane {
    uint32_t at;
    size_t done;
};

static bool find(const struct comm_move *m, uint32_t n, uint32_t host, bool send, struct lane *l)
{
    while (l->at < n && (m[l->at].host != host || m[l->at].send != send || l->done == m[l->at].bytes)) {
        l->at++;
        l->done = 0;
    }
    return l->at < n;
}

/* As much as the socket takes or has. Returns 1 when the lane is through, 0 when the socket is not ready, -1 on failure (errno; 0: closed). */
static int drive(int fd, const struct comm_move *m, uint32_t n, uint32_t host, bool send_side, struct lane *l)
{
    while (find(m, n, host, send_side, l)) {
        char *at = (char *)m[l->at].data + l->done;
        size_t left = m[l->at].bytes - l->done;
        ssize_t k = send_side ? send(fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, at, left, MSG_DONTWAIT);
        if (k > 0) {
            l->done += (size_t)k;
            continue;
        }
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        errno = k == 0 ? 0 : errno;
        return -1;
    }
    return 1;
}

static enum rs_result lost(const struct comm *c, uint32_t host, struct rs_error *err)
{
    const int e = errno;
    /* Who looks may know more: a process that gave up has said why, and of one that died not all connections close at the same moment. */
    for (int i = 0; i < 10 && c->look != NULL; i++) {
        enum rs_result rc = c->look(c->look_arg, err);
        if (rc != RS_OK)
            return rc;
        poll(NULL, 0, COMM_LOOK_MS / 10);
    }
    return error_set(err, RS_EENGINE, "host %s is gone in the middle of a step%s%s", c->name[host], e != 0 ? ": " : "", e != 0 ? strerror(e) : "");
}

static enum rs_result tcp_move(struct comm *c, struct comm_move *m, uint32_t n, struct rs_error *err)
{
    const struct tcp *t = (const struct tcp *)c;
    struct lane lane[COMM_MAX_HOSTS][2] = {0};
    for (;;) {
        struct pollfd p[COMM_MAX_HOSTS];
        nfds_t waits = 0;
        for (uint32_t h = 0; h < c->n_hosts; h++) {
            if (h == c->host)
                continue;
            int out = drive(t->fd[h], m, n, h, true, &lane[h][1]), in = out < 0 ? -1 : drive(t->fd[h], m, n, h, false, &lane[h][0]);
            if (in < 0)
                return lost(c, h, err);
            if (!in || !out)
                p[waits++] = (struct pollfd){.fd = t->fd[h], .events = (short)((in ? 0 : POLLIN) | (out ? 0 : POLLOUT))};
        }
        if (waits == 0)
            return RS_OK;
        if (poll(p, waits, COMM_LOOK_MS) == 0 && c->look != NULL) {
            enum rs_result rc = c->look(c->look_arg, err);
            if (rc != RS_OK)
                return rc;
        }
    }
}

static void tcp_close(struct comm *c)
{
    struct tcp *t = (struct tcp *)c;
    for (uint32_t h = 0; h < COMM_MAX_HOSTS; h++)
        if (t->fd[h] >= 0)
            close(t->fd[h]);
    free(t);
}

static const struct comm_ops TCP_OPS = {"tcp", tcp_move, tcp_close};

/* Strangers may knock too: whoever does not know the secret is turned away. */
static enum rs_result take_one(struct tcp *t, int listen_fd, const char *secret, uint64_t deadline, struct rs_error *err)
{
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};
    uint64_t now = now_us();
    if (now >= deadline || (poll(&p, 1, (int)((deadline - now) / 1000 + 1)) == 0 && now_us() >= deadline))
        return error_set(err, RS_ETIMEOUT, "not all hosts have joined each other in time");
    int s = accept(listen_fd, NULL, NULL);
    if (s < 0)
        return RS_OK;
    struct hello h;
    link_tune(s);
    if (link_read(s, &h, sizeof h, 2000, NULL) != RS_OK || h.magic != LINK_MAGIC || memcmp(h.secret, secret, LINK_SECRET) != 0 ||
        h.host >= t->base.n_hosts || h.host <= t->base.host || t->fd[h.host] >= 0) {
        close(s);
        return RS_OK;
    }
    t->fd[h.host] = s;
    return RS_OK;
}

static bool complete(const struct tcp *t)
{
    for (uint32_t h = 0; h < t->base.n_hosts; h++)
        if (h != t->base.host && t->fd[h] < 0)
            return false;
    return true;
}

enum rs_result comm_tcp_open(uint32_t n_hosts, uint32_t host, const struct comm_tcp_peers *peers, int listen_fd, const char secret[LINK_SECRET],
                             int timeout_ms, struct comm **out, struct rs_error *err)
{
    const uint64_t deadline = now_us() + (uint64_t)timeout_ms * 1000;
    struct tcp *t = calloc(1, sizeof *t);
    enum rs_result rc = RS_OK;
    if (t == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for connections to other hosts");
    t->base = (struct comm){.ops = &TCP_OPS, .n_hosts = n_hosts, .host = host};
    for (uint32_t h = 0; h < COMM_MAX_HOSTS; h++)
        t->fd[h] = -1;
    for (uint32_t h = 0; h < host && rc == RS_OK; h++) {
        struct hello hello = {.magic = LINK_MAGIC, .host = host};
        memcpy(hello.secret, secret, LINK_SECRET);
        rc = link_connect(peers->address[h], peers->port[h], timeout_ms, &t->fd[h], err);
        if (rc == RS_OK)
            rc = link_write(t->fd[h], &hello, sizeof hello, timeout_ms, err);
    }
    while (rc == RS_OK && !complete(t))
        rc = take_one(t, listen_fd, secret, deadline, err);
    if (rc != RS_OK) {
        tcp_close(&t->base);
        return rc;
    }
    *out = &t->base;
    return RS_OK;
}
