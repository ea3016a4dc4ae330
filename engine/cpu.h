/* The CPU backend's inside: buffers, caches, and how an op is called. Only files cpu*.c include this.
 *
 * On the CPU a rank is data, not a thread. Every worker executes a share of every rank's part of each op: with W workers, rank r's work is the
 * interval [r, r+1) of a line of length R that is cut into W equal pieces. A call tells a kernel which fraction [lo, hi) of `of` of its rank's
 * items it is to do; kernels cut their own items, so results never depend on W. */
#ifndef RANKSCOPE_ENGINE_CPU_H
#define RANKSCOPE_ENGINE_CPU_H

#include <stdatomic.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/batch.h"
#include "engine/impl.h"
#include "engine/patch_api.h"
#include "engine/plan.h"
#include "engine/pool.h"
#include "engine/weights.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/vec.h"

/* (row, expert) pairs of a step grouped by local expert: made by the router, read by the expert ops. */
struct cpu_routing {
    int32_t *group;       /* [n_experts + 1] first pair of each local expert */
    int32_t *pair_row;    /* [rows * n_used] */
    float *pair_weight;
    uint32_t n_pairs;
};

struct cpu_rank {
    float *buf[BUF_COUNT];
    uint8_t *q8;          /* quantised activations of the op that is running (batches too large for private copies) */
    float *pair_out;      /* [CPU_PAIR_ROWS * n_used][n_embd] what pairs add to their rows, where experts go by pairs */
    struct cpu_routing routing;
    uint64_t bytes_weights; /* of the main program's views */
    uint8_t **kv;         /* [layers] pool of latent rows; owned */
    uint8_t **ik;         /* [layers] pool of indexer keys; NULL where the layer has none */
};

/* A packed copy of a view's matrices. */
struct cpu_packed {
    const uint8_t *data; /* NULL: there is none */
    size_t mat_bytes;
    uint8_t *own;        /* not in packed_store: made later, and to be freed */
    size_t own_bytes;
};

/* What a worker keeps for itself while steps are shared out in the local way (cpu_join.c). */
struct cpu_local {
    float *buf[BUF_COUNT]; /* NULL: not private */
    struct cpu_routing routing;
};

struct cpu {
    struct backend base;
    const struct hparams *hp;
    const struct weights *w;
    const struct shard_plan *shard;
    const struct program *prog[2];
    struct pool *pool;
    bool own_pool;
    const struct krn_cpu_matmul *mm;
    const struct krn_cpu_vec *vec;
    struct backend_limits lim;
    size_t kv_row_bytes, ik_row_bytes;
    uint32_t n_ranks, n_workers;
    struct cpu_rank *rank;      /* [n_ranks] */
    struct cpu_local *local;    /* [n_workers], or NULL where workers are no multiple of ranks */
    uint8_t **scratch;          /* [n_workers] */
    size_t scratch_bytes;
    uint32_t keys_reserved;     /* scratch suffices for sequences of this many keys */
    float *rope_cos, *rope_sin; /* [lim.max_keys][rope / 2] */
    struct cpu_packed *packed[2]; /* by program: [rank][view] */
    uint8_t *packed_store;        /* where they lie */
    uint64_t bytes_cache, bytes_buffers, bytes_packed;
    float *stand_in;              /* peers that are not there: what they send, then what they would get; [2][peers - 1][stand_in_rows][n_embd] */
    uint32_t stand_in_rows;
    atomic_uint *arrived;         /* [peers][16] */
    _Atomic(const struct patch_user *) failed; /* a hosted patch that failed in the step that runs: any worker sets it, exec_step takes it */
    float **part;                 /* ranks on other hosts: [span->n_ranks] where the summands of each lie; NULL: all ranks are here */
    float *far;                   /* [ranks elsewhere][max_rows][n_embd] */
    struct batch piece;           /* rows of a step that is taken in pieces */
    struct exec *exec;          /* the walker (exec.c): graphs, ticks */
};

/* How an op with weights is shared out over the workers of a rank. By weights: each has some of their rows, for the whole batch. By rows: each has rows of
 * the batch and all weights, so that what it reads is what it wrote itself, in its own caches; but it reads all weights, so there must be rows enough, and
 * more of them if weights come from memory. By pairs, experts only: each has some of the (row, expert) pairs, which are sorted by expert, so most weights
 * are read by one worker; what a pair adds to its row is kept apart until all are there. */
enum cpu_by { CPU_BY_WEIGHTS, CPU_BY_ROWS, CPU_BY_PAIRS };

struct cpu_call {
    struct cpu *c;
    const struct op *op;
    const struct choice *choice;
    const struct batch *b;
    const struct program *prog;
    uint32_t rank, phase, n_phases, worker;
    uint32_t lo, hi, of;
    bool local; /* private buffers are in use */
    enum cpu_by by; /* of an op with weights: how it is shared out */
};

/* The backend's part of an op_impl. phases says how many barrier-separated phases a launch has for a bucket; 0: nothing to do. */
struct cpu_launch {
    uint32_t (*phases)(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket);
    void (*run)(const struct cpu_call *call);
};

/* Cut n items, in steps of `unit`: this call does [*from, *to). */
static inline void cpu_cut(const struct cpu_call *k, size_t n, size_t unit, size_t *from, size_t *to)
{
    size_t u = (n + unit - 1) / unit, a = u * k->lo / k->of * unit, z = u * k->hi / k->of * unit;
    *from = a < n ? a : n;
    *to = z < n ? z : n;
}

/* Ops that one worker does alone for its rank: true for exactly one of the calls. */
static inline bool cpu_alone(const struct cpu_call *k)
{
    return k->lo == 0;
}

static inline float *cpu_at(const struct cpu_call *k, const struct op_ref *r, size_t row)
{
    float *own = k->local ? k->c->local[k->worker].buf[r->buf] : NULL;
    return (own != NULL ? own : k->c->rank[k->rank].buf[r->buf]) + row * k->prog->width[r->buf][k->rank] + r->col;
}

/* The rows of an op that all workers do for themselves when its output is private; else this call's share. */
static inline void cpu_cut_rows(const struct cpu_call *k, size_t n, size_t *from, size_t *to)
{
    cpu_cut(k, n, 1, from, to);
    if (k->local && k->c->local[k->worker].buf[k->op->out[0].buf] != NULL) {
        *from = 0;
        *to = n;
    }
}

/* Write the private rows [0, n) of an output also where the next reader outside of the graph looks: one worker of the rank does. */
static inline void cpu_publish(const struct cpu_call *k, const struct op_ref *r, size_t n)
{
    if (!k->local || k->c->local[k->worker].buf[r->buf] == NULL || !cpu_alone(k))
        return;
    size_t width = k->prog->width[r->buf][k->rank];
    memcpy(k->c->rank[k->rank].buf[r->buf], k->c->local[k->worker].buf[r->buf], n * width * sizeof(float));
}

static inline uint32_t cpu_width(const struct cpu_call *k, const struct op_ref *r)
{
    return r->width != 0 ? r->width : k->prog->width[r->buf][k->rank];
}

/* Rows of a weight are cut in steps of this: panels of the kernels. Ops that go by the cut of the one before use the same. */
enum { CPU_ROW_UNIT = 16 };

/* Is the router shared out over the workers in phases of its own? */
bool cpu_router_is_large(const struct cpu *c, uint32_t bucket);

static inline struct cpu_routing *cpu_routing(const struct cpu_call *k)
{
    return k->local && !cpu_router_is_large(k->c, k->b->bucket) ? &k->c->local[k->worker].routing : &k->c->rank[k->rank].routing;
}

/* Rows that an op works on in this batch: all, or those that want logits. */
static inline uint32_t cpu_rows(const struct cpu_call *k)
{
    uint8_t b = k->op->out[0].buf;
    return b == BUF_Y || b == BUF_LOGITS || b == BUF_FULL ? k->b->n_logits : k->b->n_rows;
}

/* The packed form of matrix `mat` of the op's weight `slot`, or NULL. */
static inline const uint8_t *cpu_packed(const struct cpu_call *k, uint32_t slot, uint32_t mat)
{
    const struct cpu_packed *t = k->c->packed[k->prog == k->c->prog[0] ? 0 : 1];
    if (t == NULL)
        return NULL;
    t += (size_t)k->rank * k->prog->n_views + k->op->w[slot];
    return t->data != NULL ? t->data + mat * t->mat_bytes : NULL;
}

/* Does this weight take quantised activations? */
bool cpu_int8(const struct choice *ch, const struct op_view *v);

/* How this op is shared out. */
enum cpu_by cpu_by(const struct cpu *c, const struct op *op, uint32_t bucket);

/* The pairs of expert e (of the rank's own) that this call has: by rows those of its rows, by pairs those within its part of all pairs, else all. They lie
 * side by side. */
void cpu_own_pairs(const struct cpu_call *k, uint32_t e, int32_t *from, int32_t *to);

/* Of ops that multiply by a weight: 2 where the activations are quantised by all workers together first. */
uint32_t cpu_linear_phases(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket);

/* Rows [0, n) of the op's first input, quantised if int8: all of them made here and now for this worker alone, or shared out in phase 0. NULL: this
 * call has nothing more to do than having quantised its share. */
const uint8_t *cpu_quantised(const struct cpu_call *k, bool int8, size_t width, size_t n, size_t *stride);

/* At most this many activation rows are quantised by every worker for itself; more are shared through cpu_rank.q8 in a phase of their own. */
enum { CPU_PRIVATE_ROWS = 4 };

/* Experts of at most so many rows go by pairs. */
enum { CPU_PAIR_ROWS = 256 };

/* Rows that a worker quantises and multiplies before it takes the next ones, where an op goes by rows. */
enum { CPU_ROW_BLOCK = 64 };

extern const struct op_impl CPU_IMPLS[];
extern const size_t CPU_N_IMPLS;

extern const struct cpu_launch CPU_LINEAR, CPU_QKV_FUSED, CPU_QKV_SPLIT, CPU_GATE_UP, CPU_MOE_GATE_UP, CPU_MOE_DOWN;        /* cpu_linear.c, cpu_moe.c */
extern const struct cpu_launch CPU_RMSNORM, CPU_ROPE_Q, CPU_ADD, CPU_SILU_MUL, CPU_MOE_SILU_MUL, CPU_PICK_ROWS, CPU_GATHER, CPU_EMBED,
                        CPU_HIDDEN_NORMED, CPU_HIDDEN_RAW;                                                                /* cpu_basic.c */
extern const struct cpu_launch CPU_ROUTER;
extern const struct cpu_launch CPU_KV_STORE, CPU_MLA_AUTO, CPU_MLA_ABSORBED, CPU_MLA_EXPANDED;                              /* cpu_attn.c */
extern const struct cpu_launch CPU_INDEX_Q, CPU_INDEX_STORE, CPU_INDEX_SCORES, CPU_INDEX_TOPK;                              /* cpu_index.c */
extern const struct cpu_launch CPU_USER;                                                                                  /* cpu_user.c */
extern const struct cpu_launch CPU_ALLREDUCE;                                                                             /* cpu_comm.c */

/* This worker's ranks of an observer (cpu_probe.c). */
void cpu_probe_run(const struct cpu *c, const struct backend_step *s, const struct probe_obs *o, uint32_t worker);

/* Zeroed, aligned to 64, on huge pages where the kernel has them; free() it. */
void *cpu_big_alloc(size_t bytes);

/* Zeroed too, but not touched: a page takes memory from when something is written to it, by the worker that writes. For what is as large as the most
 * that may run at once. Freed by cpu_lazy_free() alone. */
void *cpu_lazy_alloc(size_t bytes);
void cpu_lazy_free(void *p);

/* How a step's work is shared out; see cpu_join.c. */
enum cpu_sharing { CPU_SHARE_CUT, CPU_SHARE_WHOLE, CPU_SHARE_LOCAL };
enum cpu_sharing cpu_sharing(const struct cpu *c, uint32_t bucket);

/* What the ops since the last barrier did; starts zeroed. */
struct cpu_join {
    uint64_t written; /* by buffer: workers wrote parts of it */
    bool reduced;     /* the op before was a collective */
    bool alone;       /* the op before left tables that one worker made */
    bool rope;        /* the op before rotated queries */
    uint8_t rows;     /* which rows the phase before went by, worker for worker: 0 for none */
};

/* Does this phase need a barrier before it? To be called for every node in order; a barrier made for another reason zeroes *j. */
bool cpu_join_before(struct cpu_join *j, enum cpu_sharing how, const struct op *op, uint32_t phase, uint32_t n_phases, enum cpu_by by);

enum rs_result cpu_local_open(struct cpu *c, struct rs_error *err);
void cpu_local_close(struct cpu *c);

bool cpu_routing_alloc(struct cpu_routing *r, uint32_t n_experts, size_t pairs);
void cpu_routing_free(struct cpu_routing *r);

/* A call of a loaded implementation, and what its functions for the cache look at. */
struct cpu_user_call {
    struct rankscope_call call;
    const struct cpu *c;
    const struct op *op;
    const struct batch *b;
    uint32_t rank;
    const float *sel;  /* attention: rows of selections, or NULL: all positions */
    size_t sel_stride;
    float *put;        /* [rows][rankscope_cache_width()]: rows for the cache go here; NULL: into the cache */
};

/* Fill in what does not depend on where tensors lie; the share is everything. u must stay where it is. */
void cpu_user_begin(struct cpu_user_call *u, const struct cpu *c, const struct program *p, const struct op *op, const struct batch *b, uint32_t rank);
/* For ops on (row, expert) pairs: which pairs there are. r is borrowed. */
void cpu_user_experts(struct cpu_user_call *u, const struct cpu_routing *r);
/* For the joining of logits: the call's output becomes this rank's part of the row that it is. */
void cpu_user_gather(struct cpu_user_call *u);
/* Is there nothing to call for, because the rank's part is empty? */
bool cpu_user_empty(const struct op *op, const struct rankscope_call *c);

/* Group this rank's (row, expert) pairs by expert, from the router's choices. */
void cpu_group_pairs(const struct cpu_call *k);
/* The same of a table of choices (rows as in BUF_CHOICE): the pairs of experts `ex`. */
void cpu_group_rows(const float *choice, size_t stride, uint32_t n_rows, uint32_t n_used, struct shard_range ex, struct cpu_routing *r);
/* The patch delay=RANK:us, for one of the calls of a rank. */
void cpu_delay(const struct cpu_call *k);

/* Make packed copies of the weights if that pays. */
enum rs_result cpu_pack(struct cpu *c, struct rs_error *err);
/* Pack a view again, whose weights are others now. */
void cpu_repack(struct cpu *c, const struct program *p, uint32_t view);
void cpu_pack_free(struct cpu *c);

/* cpu_comm.c: memory of the stand-in for peers, if there are to be any. */
enum rs_result cpu_stand_in_open(struct cpu *c, struct rs_error *err);
void cpu_stand_in_close(struct cpu *c);

/* The same for summands that come from other hosts. */
enum rs_result cpu_far_open(struct cpu *c, struct rs_error *err);
void cpu_far_close(struct cpu *c);

/* Bytes of worker scratch that attention needs for sequences of n_keys. */
size_t cpu_attn_scratch(const struct cpu *c, uint32_t n_keys, bool expanded);
/* Bytes of worker scratch that private quantisation needs. */
size_t cpu_linear_scratch(const struct cpu *c);

#endif
