/* Frames between the engine processes of several hosts, over TCP: what the first one tells the others to do and what they answer. Data of collectives
 * goes another way (comm.h).
 *
 * Both ends are of one build and one byte order, which the handshake checks (hosts.c), so a frame is a struct and bytes. Sending is open to two
 * threads of a process; everything else belongs to one. Nothing waits without a bound. */
#ifndef RANKSCOPE_ENGINE_LINK_H
#define RANKSCOPE_ENGINE_LINK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/rankscope.h"

#define LINK_MAGIC 0x72736c31u

enum { LINK_SECRET = 32, LINK_ADDRESS = 128, LINK_BEAT = 1 }; /* LINK_BEAT: a frame that only says "still here" */

struct link_head {
    uint32_t magic;
    uint16_t type;
    int16_t status;  /* enum rs_result, in answers */
    uint32_t id;     /* which runtime it is about */
    uint32_t pad;
    uint64_t len;    /* bytes that follow */
};

struct link {
    int fd;                /* -1: closed */
    uint64_t heard_us;     /* when anything last came */
    pthread_mutex_t lock;  /* of sending */
    uint8_t *in;
    size_t n_in, cap_in, taken; /* taken: bytes of the frame that was handed out last */
};

struct link_msg {
    uint16_t type;
    enum rs_result status;
    uint32_t id;
    const uint8_t *data; /* [len], until the next call */
    size_t len;
};

/* Listen on a free port: on this machine alone if `local`, else on all of its addresses. */
enum rs_result link_listen(bool local, int *fd, uint16_t *port, struct rs_error *err);
/* Is `name` an address of this machine? */
bool link_is_here(const char *name);
enum rs_result link_connect(const char *host, uint16_t port, int timeout_ms, int *fd, struct rs_error *err);
/* Low latency, and an end to connections whose other machine has gone silently. */
void link_tune(int fd);
/* Exactly n bytes. RS_ETIMEOUT, RS_EIO when the other end is gone. */
enum rs_result link_read(int fd, void *to, size_t n, int timeout_ms, struct rs_error *err);
enum rs_result link_write(int fd, const void *from, size_t n, int timeout_ms, struct rs_error *err);

enum rs_result link_open(struct link *l, int fd, struct rs_error *err);
void link_close(struct link *l);
enum rs_result link_send(struct link *l, uint16_t type, uint32_t id, enum rs_result status, const void *data, size_t len, struct rs_error *err);
/* The next frame that is no beat; timeout_ms -1: wait for ever. RS_ETIMEOUT when there is none in time, RS_EIO when the other end is gone. */
enum rs_result link_next(struct link *l, int timeout_ms, struct link_msg *out, struct rs_error *err);
/* What link_next() handed out last comes again. */
void link_unread(struct link *l);

#endif
