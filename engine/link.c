/* See link.h. */
#include "engine/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/error.h"
#include "engine/now.h"

/* A frame may take so long to be taken by a process that is busy; keepalive ends a connection whose machine is gone within half a minute. */
enum { SEND_MS = 60000, IDLE_S = 15, BETWEEN_S = 5, PROBES = 3, BACKLOG = 128 };
#define MAX_FRAME ((uint64_t)1 << 32)

void link_tune(int fd)
{
    const int on = 1, idle = IDLE_S, between = BETWEEN_S, probes = PROBES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

enum rs_result link_listen(bool local, int *fd, uint16_t *port, struct rs_error *err)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY)};
    struct sockaddr_storage got;
    socklen_t len = sizeof got;
    const int off = 0;
    int s = local ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = s >= 0 && setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 && bind(s, (struct sockaddr *)&any, sizeof any) == 0;
    if (!ok) { /* for this machine alone, or no IPv6 */
        if (s >= 0)
            close(s);
        s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ok = s >= 0 && bind(s, (struct sockaddr *)&four, sizeof four) == 0;
    }
    if (!ok || listen(s, BACKLOG) != 0 || getsockname(s, (struct sockaddr *)&got, &len) != 0) {
        enum rs_result rc = error_set(err, RS_EIO, "cannot listen for other hosts: %s", strerror(errno));
        if (s >= 0)
            close(s);
        return rc;
    }
    *port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port : ((struct sockaddr_in *)&got)->sin_port);
    *fd = s;
    return RS_OK;
}

static struct addrinfo *resolve(const char *host, uint16_t port, int *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    *why = getaddrinfo(host, service, &hints, &list);
    return *why == 0 ? list : NULL;
}

bool link_is_here(const char *name)
{
    int why;
    bool here = false;
    struct addrinfo *list = resolve(name, 0, &why);
    for (const struct addrinfo *a = list; a != NULL && !here; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        here = s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0;
        if (s >= 0)
            close(s);
    }
    if (list != NULL)
        freeaddrinfo(list);
    return here;
}

static int left_ms(uint64_t deadline)
{
    uint64_t now = now_us();
    return now >= deadline ? 0 : (int)((deadline - now + 999) / 1000);
}

static int try_address(const struct addrinfo *a, uint64_t deadline)
{
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), e = 0;
    socklen_t len = sizeof e;
    if (s < 0)
        return -1;
    if (connect(s, a->ai_addr, a->ai_addrlen) == 0)
        return s;
    struct pollfd p = {.fd = s, .events = POLLOUT};
    if (errno == EINPROGRESS && poll(&p, 1, left_ms(deadline)) == 1 && getsockopt(s, SOL_SOCKET, SO_ERROR, &e, &len) == 0 && e == 0)
        return s;
    e = e != 0 ? e : errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(s);
    errno = e;
    return -1;
}

enum rs_result link_connect(const char *host, uint16_t port, int timeout_ms, int *fd, struct rs_error *err)
{
    const uint64_t deadline = now_us() + (uint64_t)timeout_ms * 1000;
    int why, s = -1;
    struct addrinfo *list = resolve(host, port, &why);
    if (list == NULL)
        return error_set(err, RS_EIO, "host %s: %s", host, gai_strerror(why));
    for (const struct addrinfo *a = list; a != NULL && s < 0; a = a->ai_next)
        s = try_address(a, deadline);
    int e = errno;
    freeaddrinfo(list);
    if (s < 0)
        return error_set(err, RS_EIO, "cannot connect to %s, port %u: %s", host, port, strerror(e));
    link_tune(s);
    *fd = s;
    return RS_OK;
}

static enum rs_result gone(struct rs_error *err, int e)
{
    return error_set(err, RS_EIO, "the connection is closed%s%s", e != 0 ? ": " : "", e != 0 ? strerror(e) : "");
}

enum rs_result link_read(int fd, void *to, size_t n, int timeout_ms, struct rs_error *err)
{
    const uint64_t deadline = now_us() + (uint64_t)timeout_ms * 1000;
    for (size_t at = 0; at < n;) {
        ssize_t k = recv(fd, (char *)to + at, n - at, MSG_DONTWAIT);
        if (k > 0) {
            at += (size_t)k;
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return gone(err, k == 0 ? 0 : errno);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, left_ms(deadline)) == 0)
            return error_set(err, RS_ETIMEOUT, "no answer for %d ms", timeout_ms);
    }
    return RS_OK;
}

enum rs_result link_write(int fd, const void *from, size_t n, int timeout_ms, struct rs_error *err)
{
    const uint64_t deadline = now_us() + (uint64_t)timeout_ms * 1000;
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, (const char *)from + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k >= 0) {
            at += (size_t)k;
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return gone(err, errno);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, left_ms(deadline)) == 0)
            return error_set(err, RS_ETIMEOUT, "nothing was taken for %d ms", timeout_ms);
    }
    return RS_OK;
}

enum rs_result link_open(struct link *l, int fd, struct rs_error *err)
{
    *l = (struct link){.fd = fd, .heard_us = now_us(), .cap_in = 1 << 16};
    l->in = malloc(l->cap_in);
    if (l->in == NULL) {
        l->fd = -1;
        return error_set(err, RS_ENOMEM, "out of memory for a connection");
    }
    pthread_mutex_init(&l->lock, NULL);
    return RS_OK;
}

void link_close(struct link *l)
{
    if (l->fd < 0)
        return;
    close(l->fd);
    free(l->in);
    pthread_mutex_destroy(&l->lock);
    *l = (struct link){.fd = -1};
}

enum rs_result link_send(struct link *l, uint16_t type, uint32_t id, enum rs_result status, const void *data, size_t len, struct rs_error *err)
{
    const struct link_head h = {.magic = LINK_MAGIC, .type = type, .status = (int16_t)status, .id = id, .len = len};
    pthread_mutex_lock(&l->lock);
    enum rs_result rc = link_write(l->fd, &h, sizeof h, SEND_MS, err);
    if (rc == RS_OK && len != 0)
        rc = link_write(l->fd, data, len, SEND_MS, err);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* Make room for `whole` bytes from the beginning. */
static enum rs_result room(struct link *l, size_t whole, struct rs_error *err)
{
    if (whole <= l->cap_in)
        return RS_OK;
    uint8_t *p = realloc(l->in, whole);
    if (p == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a message of %zu bytes", whole);
    l->in = p;
    l->cap_in = whole;
    return RS_OK;
}

/* A whole frame at the beginning of what was read? *whole: its bytes, as far as they are known. */
static enum rs_result framed(struct link *l, size_t *whole, struct link_head *h, struct rs_error *err)
{
    *whole = sizeof *h;
    if (l->n_in < sizeof *h)
        return RS_OK;
    memcpy(h, l->in, sizeof *h);
    if (h->magic != LINK_MAGIC || h->len > MAX_FRAME)
        return error_set(err, RS_EIO, "what arrives is not from an engine of this version");
    *whole += h->len;
    return room(l, *whole, err);
}

enum rs_result link_next(struct link *l, int timeout_ms, struct link_msg *out, struct rs_error *err)
{
    const uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : now_us() + (uint64_t)timeout_ms * 1000;
    memmove(l->in, l->in + l->taken, l->n_in - l->taken);
    l->n_in -= l->taken;
    l->taken = 0;
    for (;;) {
        struct link_head h;
        size_t whole;
        enum rs_result rc = framed(l, &whole, &h, err);
        if (rc != RS_OK)
            return rc;
        if (l->n_in >= whole && h.type == LINK_BEAT) {
            memmove(l->in, l->in + whole, l->n_in - whole);
            l->n_in -= whole;
            continue;
        }
        if (l->n_in >= whole) {
            *out = (struct link_msg){.type = h.type, .status = h.status, .id = h.id, .data = l->in + sizeof h, .len = h.len};
            l->taken = whole;
            return RS_OK;
        }
        ssize_t k = recv(l->fd, l->in + l->n_in, l->cap_in - l->n_in, MSG_DONTWAIT);
        if (k > 0) {
            l->n_in += (size_t)k;
            l->heard_us = now_us();
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return gone(err, k == 0 ? 0 : errno);
        struct pollfd p = {.fd = l->fd, .events = POLLIN};
        if (poll(&p, 1, timeout_ms < 0 ? -1 : left_ms(deadline)) == 0)
            return error_set(err, RS_ETIMEOUT, "no answer for %d ms", timeout_ms);
    }
}

void link_unread(struct link *l)
{
    l->taken = 0;
}
