/* Moving the data of collectives between the engine processes of several hosts: over TCP (comm_tcp.c), or by MPI where the processes were started by
 * an MPI launcher (comm_mpi.c). GPUs are joined by NCCL (comm_nccl.c); where it cannot, their sums go this way too.
 *
 * The one operation is a list of moves that all take place together. What is added to what, and in which order, is the business of who asks, so a
 * transport cannot change a bit of a result. One thread at a time; a step's collectives come from whichever worker runs them. */
#ifndef RANKSCOPE_ENGINE_COMM_H
#define RANKSCOPE_ENGINE_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/link.h"
#include "engine/rankscope.h"

enum { COMM_MAX_HOSTS = RS_MAX_RANKS, COMM_LOOK_MS = 200 };

/* Moves of one direction between two hosts take place in the order of the list; the other host's list must match. */
struct comm_move {
    uint32_t host;
    bool send;
    void *data;
    size_t bytes;
};

struct comm;

struct comm_ops {
    const char *name;
    enum rs_result (*move)(struct comm *, struct comm_move *m, uint32_t n, struct rs_error *);
    void (*close)(struct comm *);
};

struct comm {
    const struct comm_ops *ops;
    uint32_t n_hosts, host; /* host: this process's place among them */
    char name[COMM_MAX_HOSTS][LINK_ADDRESS]; /* what the hosts are called */
    /* Asked every COMM_LOOK_MS of waiting; anything but RS_OK ends the wait. Same thread as the move. */
    enum rs_result (*look)(void *arg, struct rs_error *);
    void *look_arg;
    const char *where; /* what the data at hand is for, said with a failure; NULL: nothing is said */
    /* The first failure stays: streams are out of step after it, and every later move fails at once. */
    bool failed;
    struct rs_error why;
};

/* Allocates nothing over TCP. */
bool comm_run(struct comm *c, struct comm_move *m, uint32_t n);
/* The patch delay=RANK:us: the calling thread is late by so much. */
void comm_be_late(float us);
void comm_close(struct comm *c); /* NULL is allowed */

/* Join all processes with each other: to those before `host` by their address and port, from those after it at listen_fd. Takes nothing over. */
struct comm_tcp_peers {
    char address[COMM_MAX_HOSTS][LINK_ADDRESS];
    uint16_t port[COMM_MAX_HOSTS];
};
enum rs_result comm_tcp_open(uint32_t n_hosts, uint32_t host, const struct comm_tcp_peers *peers, int listen_fd, const char secret[LINK_SECRET],
                             int timeout_ms, struct comm **out, struct rs_error *err);

/* The processes that an MPI launcher started with this one. RS_EUNSUPPORTED in a build without MPI, or where it cannot be loaded. */
enum rs_result comm_mpi_open(struct comm **out, struct rs_error *err);
/* Everybody gets what the first process has. */
enum rs_result comm_mpi_share(struct comm *c, void *data, size_t bytes, struct rs_error *err);

#endif
