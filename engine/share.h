/* One process's share of a runtime that spans several hosts: the programs of its own ranks and a backend that runs them; and the messages by which the
 * first process tells the others what to run. The first process's share is inside of the backend that its engine sees (span.c), the others' belong to
 * their loop (follow.c). The thread that runs steps owns a share. */
#ifndef RANKSCOPE_ENGINE_SHARE_H
#define RANKSCOPE_ENGINE_SHARE_H

#include "engine/backend.h"
#include "engine/comm.h"
#include "engine/model.h"
#include "engine/runtime.h"
#include "engine/sample.h"

enum share_msg {
    SHARE_HELLO = 16, /* a process joins: struct share_hello */
    SHARE_WELCOME,    /* struct share_welcome */
    SHARE_READY,
    SHARE_OPEN,       /* struct share_open_msg, then the path with its NUL */
    SHARE_CLOSE,
    SHARE_STEP,       /* see share_pack_step() */
    SHARE_PREPARE,    /* see share_pack_choices() */
    SHARE_RESERVE,    /* u32: keys */
    SHARE_RETIRE,     /* u64: generation */
    SHARE_AT,         /* struct share_at, then floats if it writes */
    SHARE_BYE,
    SHARE_ANSWER,     /* to each of those between OPEN and AT, in order; on failure: the message */
};

struct share_hello {
    char version[64];
    char secret[LINK_SECRET];
    uint32_t sizes;     /* of what is sent as it lies in memory */
    uint32_t index, pid, isa, port;
};

struct share_welcome {
    uint32_t n_hosts, isa, mpi;
    struct comm_tcp_peers peers;
};

/* Where the first process is to be found; broadcast by MPI. */
struct share_call {
    char address[LINK_ADDRESS];
    char secret[LINK_SECRET];
    uint32_t port;
};

struct share_open_msg {
    char hash[17];
    struct runtime_config cfg;
    struct backend_limits lim;
    uint32_t first[RS_MAX_RANKS + 1];
};

/* One of a backend's calls that look into the memory of a rank. rank: of this process. */
struct share_at {
    enum { SHARE_READ, SHARE_WRITE, SHARE_CACHE_GET, SHARE_CACHE_PUT, SHARE_PAIRS, SHARE_LOGITS } what;
    uint32_t rank, buf, row, col, n;
    uint32_t layer, index;
    int32_t block;
};

/* How a step went on a host: then us[n_ops][ranks], move_us[n_ops], a snapshot per rank, and with_reduces: reduces[n_ops][ranks]; then, of each wanted
 * row whose logits stayed where they are, a struct share_row and its list. */
struct share_report {
    uint32_t n_ops, n_ranks, with_reduces, n_rows;
};

/* What a host's devices say of their part of a row. */
struct share_row {
    uint32_t row;
    struct sample_row says; /* list: not it */
};

struct share {
    struct shard_plan shard;
    struct program prog[2];
    bool has_nextn;
    struct backend *backend;
    struct backend_span span;
    uint32_t n_ranks, vocab;
    struct choice *choices[2];  /* by program: [op] */
    uint64_t generation[2];     /* that they are of; 0: none yet */
    const struct op_impl *impls;
    size_t n_impls;
    struct comm_move *moves;    /* of logits */
    float *full;                /* first process: [max_logits][vocab] */
    struct sample_item *list;   /* other processes, where devices look at logits: room for one row's */
};

/* first: see backend_span. m, pool and comm outlive it. cfg->ranks is the number on all hosts. */
enum rs_result share_open(struct model *m, const struct runtime_config *cfg, const struct backend_limits *lim, struct comm *comm, const uint32_t *first,
                          struct pool *pool, enum krn_isa isa, struct share **out, struct rs_error *err);
void share_close(struct share *s); /* NULL is allowed */

/* Run a step of program `which` on this process's ranks, with all others doing the same, and bring the logits to the first process. probes: rows of
 * ranks of this process, or NULL. */
enum rs_result share_step(struct share *s, uint32_t which, const struct backend_step *step, const struct probe_set *probes, struct rs_error *err);
/* Did the logits of this row of a step stay with those who have them? */
bool share_away(const struct share *s, const struct batch *b, uint32_t i);
/* Where the parts of a vocabulary of a host's ranks lie. */
struct shard_range share_part(const struct share *s, uint32_t host);
/* Logits of the i-th wanted row; first process only. */
const float *share_logits(const struct share *s, uint32_t i);

/* A buffer that only grows. */
struct share_buf {
    uint8_t *p;
    size_t n, cap;
};
bool share_put(struct share_buf *b, const void *data, size_t n); /* false: out of memory */

/* Describe a step for the others; choices: may they have others than the last time? RS_EUNSUPPORTED: an implementation that they do not have. */
enum rs_result share_pack_step(struct share_buf *b, const struct share *s, uint32_t which, const struct backend_step *step, bool choices, struct rs_error *err);

/* Choices alone, of which something is to be made before a step uses them, and the other way. */
enum rs_result share_pack_choices(struct share_buf *b, const struct share *s, uint32_t which, struct rs_error *err);
enum rs_result share_unpack_choices(struct share *s, const uint8_t *data, size_t len, uint32_t *which, struct rs_error *err);

/* The other way: batch and choices from what came. The batch's arrays have the capacities of the limits; tables: what its segments point into, and
 * `from` where a step has one. */
struct share_tables {
    int32_t *p, *from;
    size_t cap;
};
enum rs_result share_unpack_step(struct share *s, const uint8_t *data, size_t len, struct batch *b, struct share_tables *tables, uint32_t *which,
                                 struct backend_step *step, struct rs_error *err);

/* Copy choices into a share; other implementations than the backend's own are refused. */
enum rs_result share_choose(struct share *s, uint32_t which, const struct choice *choices, struct rs_error *err);

/* What changes when the programs of two hosts would not understand each other. */
uint32_t share_sizes(void);

#endif
