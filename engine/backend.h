/* What a backend does for the engine: hold buffers and caches of all ranks, and run steps. One backend serves one (model, shard plan); a new shard
 * plan means a new backend over the same weights. The engine's control thread calls everything here. */
#ifndef RANKSCOPE_ENGINE_BACKEND_H
#define RANKSCOPE_ENGINE_BACKEND_H

#include "engine/batch.h"
#include "engine/impl.h"
#include "engine/plan.h"
#include "engine/probe.h"
#include "engine/rankscope.h"
#include "engine/sample.h"
#include "kernels/cpu/vec.h"

struct backend;
struct pool;

enum backend_kind { BACKEND_CPU, BACKEND_CUDA };

struct comm;
struct loading;

/* The ranks are on several hosts, and a backend has those of one. The programs that it runs are of its own ranks, numbered from 0. */
struct backend_span {
    struct comm *comm;
    uint32_t n_ranks;            /* on all hosts together */
    uint32_t first[RS_MAX_RANKS + 1]; /* host h has ranks [first[h], first[h + 1]) */
    float *move_us;              /* [op] of the step that runs: moving data to and from other hosts, with waiting for them; the backend adds to it */
};

struct backend_limits {
    uint32_t max_rows;      /* rows of one step */
    uint32_t max_logits;    /* rows that may want logits */
    uint32_t max_keys;      /* longest sequence */
    uint32_t block;         /* tokens per cache block */
    uint32_t n_blocks;      /* per rank, block 0 included */
    enum krn_cache_type cache;
    /* peers > 1: the program is rank `peer`'s of so many, alone. Its collectives move the bytes that they would move, to and from a stand-in. */
    uint32_t peers, peer;
    bool made_up;           /* the weights have no data: a backend with memory of its own makes some */
    struct loading *loading; /* while it opens: who is told, and may stop it; or NULL. Not kept */
    struct backend_span *span; /* or NULL: all ranks are here. Outlives the backend */
};

/* One step. choices has one entry per op of the program; all pointers stay valid until the step has ended. */
struct backend_step {
    const struct program *prog;
    const struct choice *choices;
    const struct batch *batch;
    const struct probe_set *probes; /* armed observers, or NULL */
    uint64_t generation;            /* of choices and probes: part of the graph key */
    bool graph, graph_guard, fast;
    bool whole; /* buffers are read after the step: they must hold all its rows */
    /* Eager only, NULL for none: called on the control thread before and after every op, and may keep it for as long as it likes. */
    void (*hook)(void *arg, const struct op *op, bool after);
    void *hook_arg;
    /* Where ranks wait for each other on devices: called on the control thread about once a second while nothing moves, with how long that has been and
     * who waits where for whom. True: give the step up (RS_ECANCELLED). NULL: nobody asks. */
    bool (*stuck)(void *arg, double seconds, const char *where);
    void *stuck_arg;
    /* Where backend_ops.overlaps: called on the control thread while devices compute, again and again as long as it says that more is to be done. It may not
     * change what the step reads. NULL: there is nothing. */
    bool (*meanwhile)(void *arg);
    void *meanwhile_arg;
};

/* When a rank came to a collective of the last step and when it had the sum, in us on a clock that all ranks share. ready 0: it did not run. */
struct backend_reduce {
    double arrive, ready;
};

/* Ticks of one op of the last step, per rank, in microseconds of that rank's own work. */
/* A captured step. */
struct backend_graph {
    uint32_t rows;   /* for batches of up to so many */
    uint64_t bytes;  /* on all ranks together */
};

/* All-reduces of several sizes, timed when the backend was opened: what allreduce=auto goes by. */
#define BACKEND_MAX_SWEEP 24
struct backend_sweep {
    uint32_t n; /* 0: there is nothing to choose */
    struct {
        uint32_t rows;
        uint64_t bytes; /* of a rank's payload */
        bool bf16;
        double flat_us, two_shot_us;
    } at[BACKEND_MAX_SWEEP];
    uint32_t from_rows[2]; /* two shots from so many rows on, payload f32 and bf16; 0: never */
    double took_ms;
};

struct backend_ops {
    const char *name;
    bool inspects_next; /* runs observers in steps of the NextN block too */
    bool pads;     /* graphs compute the rows between a batch and its bucket too, so buckets lie close together */
    bool overlaps; /* the control thread is free during a step */
    bool inspects; /* runs observers and hooks, and has cache_get, cache_put and pairs */
    void (*close)(struct backend *);
    /* Runs the whole step. Errors: RS_ESTATE (an op cannot be captured; err names it), RS_EENGINE (device). */
    enum rs_result (*step)(struct backend *, const struct backend_step *, struct rs_error *);
    /* Make room for sequences of n_keys (scratch); outside of steps only. RS_ENOMEM leaves everything as it was. */
    enum rs_result (*reserve)(struct backend *, uint32_t n_keys, struct rs_error *);
    /* Logits of the i-th wanted row of the last step: vocab floats, host memory, valid until the next step. A device may fetch them only now, so other
     * threads than the control thread ask only for rows that the batch wanted whole. */
    const float *(*logits)(struct backend *, uint32_t i);
    /* What a device found out about that row, as its batch_want asked; out->list is room for a vocabulary. Any thread. false, or NULL: there are only
     * its logits. */
    bool (*likeliest)(struct backend *, uint32_t i, struct sample_row *out);
    /* Will a graph of this batch be of use again? Where it will not, the list is launched op by op in graph mode too. NULL: always. */
    bool (*replays)(struct backend *, const struct batch *);
    /* Copy n floats of a buffer's row on a rank, from column col. Outside of steps only. */
    enum rs_result (*read)(struct backend *, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, float *dst, struct rs_error *);
    enum rs_result (*write)(struct backend *, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, const float *src, struct rs_error *);
    /* Copy a cache block on every rank and layer (a shared, partly filled block that is about to be written). */
    enum rs_result (*copy_block)(struct backend *, int32_t from, int32_t to, struct rs_error *);
    /* Rows of a cache block as floats, [block][width]: a layer's latents (kv_lora + rope) or indexer keys. RS_EUSAGE where there are none. */
    enum rs_result (*cache_get)(struct backend *, uint32_t rank, uint32_t layer, bool index, int32_t block, float *dst, struct rs_error *);
    enum rs_result (*cache_put)(struct backend *, uint32_t rank, uint32_t layer, bool index, int32_t block, const float *src, struct rs_error *);
    /* (row, expert) pairs of a rank in the experts' buffers. */
    uint32_t (*pairs)(struct backend *, uint32_t rank);
    /* Own work of each (op, rank) in the last step: us[op * n_ranks + rank]; wait and transfer of collectives are derived from it by timing.c.
     * Returns the number of ops. in_graph: whether that step was a replay. */
    const float *(*op_us)(struct backend *, uint32_t *n_ops);
    /* The same for the last step of the NextN block; NULL where that is not timed. */
    const float *(*next_us)(struct backend *, uint32_t *n_ops);
    /* What the products of an op on a rank were made in, in the last step of this program. NULL: as arith_wanted() says. */
    enum op_arith (*arith)(struct backend *, const struct program *, uint32_t op, uint32_t rank);
    /* Collectives of the last step: [op * n_ranks + rank]. NULL where ranks have no clocks of their own. */
    const struct backend_reduce *(*reduces)(struct backend *);
    /* What the device of a rank says of itself: gpu_*, mem_*. NULL where ranks have no devices. Never waits. */
    void (*device)(struct backend *, uint32_t rank, struct rs_rank_snapshot *out);
    /* Has a device failed for good, so that nothing but ending the process helps? NULL: that cannot be. */
    bool (*dead)(struct backend *);
    /* Bytes on a rank. */
    void (*memory)(struct backend *, uint32_t rank, uint64_t *weights, uint64_t *cache, uint64_t *buffers);
    /* Make what new choices need, outside of steps; what is refused leaves everything usable. NULL: nothing to make. */
    enum rs_result (*prepare)(struct backend *, const struct program *, const struct choice *, struct rs_error *);
    /* A view of a program points at other weights of the same shape: bring copies of them up to date. Cannot fail; outside of steps only. NULL: the
     * backend must be opened anew. */
    void (*reweigh)(struct backend *, const struct program *, uint32_t view);
    /* Forget graphs of generations before `generation`. */
    void (*retire)(struct backend *, uint64_t generation);
    /* The graphs that are kept, oldest first: fills in up to cap, returns how many there are. */
    uint32_t (*graphs)(struct backend *, struct backend_graph *out, uint32_t cap);
    /* NULL: this backend does not choose by size. */
    const struct backend_sweep *(*sweep)(struct backend *);
    /* The implementation that a choice came down to in the last step, where it leaves that open. NULL: it does what it is called. */
    const char *(*ran_as)(struct backend *, const struct program *, const struct choice *);
};

struct backend {
    const struct backend_ops *ops;
};

/* All implementations that a backend has for its op kinds. */
const struct op_impl *backend_cpu_impls(size_t *n);

enum rs_result backend_cpu_open(const struct hparams *hp, const struct weights *w, const struct shard_plan *shard, const struct program *main_prog,
                                const struct program *nextn, const struct backend_limits *lim, struct pool *pool, enum krn_isa isa,
                                struct backend **out, struct rs_error *err);

#endif
