/* The CUDA backend's inside: GPUs, ranks, buffers, how a step is launched. Only files cuda*.c and comm_nccl.c include this.
 *
 * A GPU has one host thread (which a lone one hardly needs), one stream and one or more ranks. Ranks of one GPU are launched one after the other, op by op, so
 * that more ranks than GPUs never wait for each other; between GPUs ranks wait inside the all-reduce kernels. Everything a step reads that changes from step to
 * step (tokens, positions, block tables) lies in one block of memory at a fixed place, copied before the step, so a captured graph stays valid. */
#ifndef RANKSCOPE_ENGINE_CUDA_H
#define RANKSCOPE_ENGINE_CUDA_H

#include <pthread.h>

#include "engine/backend.h"
#include "engine/cuda_backend.h"
#include "engine/weights.h"
#include "kernels/cuda/cuda.h"

struct comm_nccl;

struct cuda_rank {
    uint32_t rank;
    float *buf[BUF_COUNT];
    uint8_t *q8[BUF_COUNT]; /* int8 form of a buffer; NULL where none is used */
    struct kcu_mat *mat[2]; /* [program][view] */
    uint8_t **kv, **ik;     /* [layers] */
    uint32_t *arrived;      /* router: zeros between steps */
    uint64_t *words;        /* router, one row: see kcu_route */
    int32_t *plan;          /* experts of many rows: pairs sorted by expert */
    struct kcu_top *top_parts; /* [max_logits] chunks of a row of logits */
    uint32_t *top_arrived;  /* [max_logits] zeros between steps */
    uint8_t *weights;       /* one allocation for all */
    uint16_t *kept;         /* one for those that are there as f16 too; or NULL */
    uint64_t bytes_weights, bytes_cache, bytes_buffers;
    uint8_t *arith[2];      /* [program][op] enum op_arith of the last step; by the GPU's thread within a step, the control thread's between */
};

/* What a step does with the logits of its wanted rows: bring them; look for the largest; and make lists for those rows that ask for one. */
enum cuda_looks { CUDA_GATHER, CUDA_TOP, CUDA_LIST };

/* Where the logits of a wanted row are: on the GPUs only; also here; here, and what counts is what is here. */
enum cuda_row { CUDA_ROW_AWAY, CUDA_ROW_FETCHED, CUDA_ROW_HERE };

/* The source line of a launch. */
struct cuda_where {
    const char *file;
    int line;
};

/* A captured step of one GPU. */
struct cuda_graph {
    const struct program *prog;
    uint64_t generation;
    uint32_t bucket, n_logits, keys, sorts;
    enum cuda_looks looks;
    bool chained, fast;
    cudaGraphExec_t exec;
    uint32_t n_launched, kernels, reduces;
    uint64_t bytes; /* by which the device's free memory fell when it was made */
    uint32_t *launched;        /* stamps in order of launch */
    struct cuda_where *where;  /* and the lines */
    uint8_t *arith;            /* [rank of the GPU][op] */
    struct probe_copy *copies; /* its own, with where each lies in the bounce buffer */
    uint32_t n_copies;
};

enum { CUDA_MANY_ROWS = 17 }; /* from here on tensor cores */

enum { CUDA_EAGER_ROWS = 64, CUDA_WANTED = 8 }; /* steps of more rows are captured if no prompt is among them, once there have been so many of that size */

enum { CUDA_TIMEOUT_MS = 10000 }; /* without a configured one */

enum { CUDA_MAX_GRAPHS = 128, CUDA_RECV_ROWS = 64, CUDA_TWO_SHOT_ROWS = 2048 /* of one launch */ };

struct cuda_gpu {
    struct cuda *c;
    int device;
    uint32_t index, rank0, n_local;
    struct cuda_rank *local; /* [n_local] */
    cudaStream_t stream;
    cudaStream_t aside; /* for what acts at once while a graph is captured */
    /* the step's variable part: host side pinned */
    int32_t *meta_host, *meta;
    float *rope_cos, *rope_sin;
    void *scratch;                                        /* attention */
    float *pairs;                                         /* experts of many rows: what each adds */
    uint16_t *half[2];                                    /* activations of products of many rows as f16: of rows, and of (row, expert) pairs */
    float *half_scale[2];
    uint16_t *room;                                       /* weights of such a product as f16, for a while; or NULL */
    size_t n_room;
    uint4 *recv;                                          /* packets of all-reduces */
    void *sent;                                           /* summands of all-reduces in two shots: [n_ranks][two_shot_room] */
    uint32_t *flags;                                      /* where their blocks meet */
    cudaGraphExec_t sweep_exec;                           /* of reduces that are being measured */
    double sweep_us;                                      /* what one takes */
    uint16_t *payload;                                    /* bf16 copy for NCCL */
    uint64_t *stamp, *ready, *done;                       /* pinned; [op][rank] and [op] */
    uint32_t *launched, n_launched, n_kernels, n_reduces; /* of the last walk */
    struct kcu_seen *probe_parts;                         /* scratch of observers' kernels */
    size_t probe_chunks;
    uint32_t *probe_arrived;
    struct cuda_walk *walk;                               /* of a step that is held between ops */
    float *bounce;                                        /* pinned, for probes */
    size_t bounce_floats;
    struct cuda_graph graph[CUDA_MAX_GRAPHS];
    uint32_t n_graphs;
    struct cuda_where *where;                             /* [as launched] the line that launched it */
    struct comm_nccl *nccl;
    uint32_t left_in; /* the op in which it gave up waiting for other hosts */
    /* this GPU's clock against that of GPU 0: cuda_clock.c */
    uint64_t *ping, *pinged, clock_at;
    int64_t clock_offset; /* ns to add at clock_at */
    double clock_rate;    /* ns to add per ns since then */
    uint32_t clock_error_ns;
    /* what its thread is to do */
    pthread_t thread;
    bool has_thread;
    enum rs_result rc;
    struct rs_error err;
};

/* What a stream's call of the host needs to know: of one op. */
struct cuda_span_call {
    struct cuda *c;
    uint32_t op, width;
};

enum { CUDA_SPAN_ROWS = 64 }; /* that go through host memory at a time */

struct cuda {
    struct backend base;
    struct cuda_config cfg;
    const struct hparams *hp;
    const struct weights *w;
    const struct shard_plan *shard;
    bool (*meanwhile)(void *arg); /* of the step that runs: what its thread does while GPUs compute, or NULL */
    void *meanwhile_arg;
    uint8_t wanted[32][8]; /* steps of more than CUDA_EAGER_ROWS rows by size: power of two, eighth of the way to the next */
    const struct program *prog[2];
    struct backend_limits lim;
    uint32_t n_gpus, n_ranks;
    uint8_t gpu_of[RS_MAX_RANKS];
    struct cuda_gpu gpu[KCU_MAX_GPUS];
    size_t kv_row_bytes, ik_row_bytes, slot_packets;
    size_t two_shot_room;     /* units of four values; 0: there is nothing that two shots would be for */
    uint32_t two_shot_blocks;
    struct backend_sweep sweep;
    const struct sweep *sweeping; /* cuda_sweep.c */
    uint32_t cap_tables, n_tables, cap_ops;
    uint32_t tile_rows; /* prompt rows that attention takes at a time */
    struct cuda_probes *probes[2]; /* armed observers of either program, or NULL: cuda_probe.c */
    /* cuda_logits.c: joined logits [max_logits][vocab]; what ranks say of their parts instead, [n_ranks][max_logits] and lists of KCU_LIST; all pinned */
    float *full;
    struct kcu_top *top;
    struct kcu_likely *likely;
    uint8_t *row_state; /* [max_logits] enum cuda_row, of the last step */
    bool gathered;      /* the last step brought all of its logits */
    const struct batch_want *want; /* of its batch */
    float *us[2]; /* of either program: [op][rank] */
    struct backend_reduce *reduces; /* [op][rank] */
    struct {
        double at_us;  /* of the last calibration, host time */
        uint64_t base; /* words exchanged so far */
        uint32_t with;
    } clock;
    uint32_t last_ops[2];
    uint32_t *fault; /* pinned, one word per GPU */
    uint32_t steps;  /* since words were zeros */
    uint32_t epoch;  /* of the next reduce; starts at 1, since receive buffers start as zeros */
    void *nccl;      /* the library and the id of the communicators, owned; NULL: not loaded yet */
    uint8_t nccl_how;     /* what the open communicators are for; index of the patch slot's implementation */
    bool nccl_open;
    uint32_t held_op;     /* of a step that may be held */
    uint32_t n_rows;      /* of the last step */
    uint32_t ran_rows[2]; /* of the last step of either program, with padding */
    const struct program *last; /* which ran in it */
    uint32_t *pair, n_pairs, pair_rank; /* what cuda_look_pairs() found last */
    struct cuda_nvml *nvml; /* or NULL */
    bool dead;            /* a device failed for good */
    uint64_t prepared;    /* generation of the choices that were looked at last */
    uint64_t capturable[2]; /* by program: the last one all of whose choices can be captured */
    const struct backend_step *step;
    struct {
        bool asks;               /* the job at hand is a step that somebody may give up */
        uint32_t at[KCU_MAX_GPUS]; /* what each GPU had begun when it was looked at last */
        double since_us, told_us;
        char where[160];         /* as it was told last */
    } stuck;
    /* ranks on several hosts (lim.span): cuda_span.c */
    struct {
        uint32_t stop;       /* atomic: others will not come any more */
        struct rs_error why; /* the control thread's: who */
        bool waits;          /* the job at hand waits for other hosts in NCCL: the control thread looks after them */
        /* sums through host memory: pinned, `each` values of every rank and of the sum; the row that a reduce has come to, by its stream */
        float *parts;
        size_t each;
        uint32_t rows, row;
        struct cuda_span_call *call[2]; /* [program][op] */
    } span;
    /* jobs for the GPUs' threads */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t job;
    uint32_t running;
    bool quit;
    void (*work)(struct cuda_gpu *);
};

/* Offsets in the step's variable part, in words. The first is the epoch. */
enum { CUDA_META_ROWS = 1 /* rows that are not padding */, CUDA_META_STEP = 2 /* the step's number times CUDA_STEP_TAGS */ };
enum { CUDA_STEP_TAGS = 2048 /* no program has more ops */ };

static inline size_t cuda_meta_token(void)
{
    return 16;
}
static inline size_t cuda_meta_pos(const struct cuda *c)
{
    return 16 + (size_t)c->lim.max_rows;
}
static inline size_t cuda_meta_table(const struct cuda *c)
{
    return 16 + 2 * (size_t)c->lim.max_rows;
}
static inline size_t cuda_meta_logit(const struct cuda *c)
{
    return 16 + 3 * (size_t)c->lim.max_rows;
}
static inline size_t cuda_meta_from(const struct cuda *c)
{
    return 16 + 3 * (size_t)c->lim.max_rows + c->lim.max_logits;
}
/* Temperatures (as floats) and lengths of lists of the wanted rows. */
static inline size_t cuda_meta_want(const struct cuda *c)
{
    return 16 + 4 * (size_t)c->lim.max_rows + c->lim.max_logits;
}
static inline size_t cuda_meta_tables(const struct cuda *c)
{
    return 16 + 4 * (size_t)c->lim.max_rows + 3 * (size_t)c->lim.max_logits;
}

/* cuda_lists.c: rows by sort, for attention of many rows (see kcu_batch). Sorts that a batch has: bits CUDA_PROMPT and CUDA_GENERATED. fill writes the
 * four words of the header and the lists behind the block tables, from `at` on, at most CUDA_LIST_WORDS a row; returns the end. */
enum { CUDA_PROMPT = 1, CUDA_GENERATED = 2, CUDA_META_LISTS = 4 /* where the header lies in the step's variable part */, CUDA_LIST_WORDS = 2 };
uint32_t cuda_lists_sorts(const struct batch *b);
/* Logits that a step computes. A graph serves several numbers of them: up to its rows where all are generated, else up to a power of two. */
uint32_t cuda_lists_logits(const struct cuda *c, const struct backend_step *s);
uint32_t cuda_lists_tile_rows(const struct cuda *c);
uint32_t cuda_lists_fill(const struct cuda *c, const struct batch *b, uint32_t rows, int32_t *header, int32_t *tables, uint32_t at);

/* cuda_logits.c. fill: what is wanted of each row, into the step's variable part. begin: on the control thread, before the step. follow: behind the
 * step's list, the rows that are wanted whole. row, change: joined logits of a row of the last step, on the control thread; change: to be written to. */
enum cuda_looks cuda_logits_looks(const struct backend_step *s);
enum rs_result cuda_logits_open(struct cuda *c, struct rs_error *err);
void cuda_logits_close(struct cuda *c);
void cuda_logits_fill(const struct cuda *c, const struct backend_step *s, int32_t *words);
void cuda_logits_begin(struct cuda *c, const struct backend_step *s);
cudaError_t cuda_logits_follow(struct cuda_gpu *g, const struct backend_step *s);
const float *cuda_logits_row(struct cuda *c, uint32_t row);
float *cuda_logits_change(struct cuda *c, uint32_t row);
bool cuda_logits_likeliest(struct backend *b, uint32_t row, struct sample_row *out); /* see backend_ops */

/* cuda_room.c, once weights are there: those of products of many rows as f16, for good or in turns. */
enum rs_result cuda_room_open(struct cuda_gpu *g, struct rs_error *err);

/* Rows that a buffer can hold. */
size_t cuda_buf_rows(const struct cuda *c, enum op_buf b);
uint32_t cuda_buf_width(const struct cuda *c, enum op_buf b, uint32_t rank);

/* Record a failure of a CUDA call in err: RS_ENOMEM or RS_EENGINE. */
enum rs_result cuda_fail(struct rs_error *err, cudaError_t e, const char *what, int device);

/* One GPU whose work the control thread does itself: nobody has to be woken, which takes as long as several layers. Not while weights are loaded or other hosts
 * are waited for, since the control thread looks around then. */
static inline bool cuda_alone(const struct cuda *c)
{
    return c->n_gpus == 1 && c->lim.loading == NULL && !c->span.waits;
}

/* Run work on every GPU's thread (alone: on this one) and wait; the first error wins. */
enum rs_result cuda_all(struct cuda *c, void (*work)(struct cuda_gpu *), struct rs_error *err);

/* cuda_load.c: allocate and fill the weights of a GPU's ranks; the calling thread has that GPU current. */
enum rs_result cuda_load(struct cuda_gpu *g, struct rs_error *err);

/* cuda_op.c and its kin: launch one step's list on the GPU's stream. */
/* The same in pieces, for steps that may be held between ops: one op at a time, nothing fused. */
enum rs_result cuda_launch_begin(struct cuda_gpu *g, const struct backend_step *s, uint32_t rows, uint32_t keys, struct rs_error *err);
enum rs_result cuda_launch_op(struct cuda_gpu *g, uint32_t op);
enum rs_result cuda_launch_end(struct cuda_gpu *g);
enum rs_result cuda_launch_step(struct cuda_gpu *g, const struct backend_step *s, uint32_t rows, uint32_t keys, struct rs_error *err);

/* Which of the two programs is it? */
static inline int cuda_prog(const struct cuda *c, const struct program *p)
{
    return p == c->prog[1];
}

/* cuda.c: make what these choices need (communicators), or say why it cannot be had. open_nccl: between all GPUs, with the id that is there. */
enum rs_result cuda_prepare(struct cuda *c, const struct program *p, const struct choice *choices, struct rs_error *err);
enum rs_result cuda_open_nccl(struct cuda *c, uint8_t how, struct rs_error *err);

/* cuda_span.c. prepare: as cuda_prepare(), by all hosts at once. begin, end: around a step, on the control thread; end says more of what went wrong while
 * others were waited for, after which nothing can be computed together any more. look: on the control thread, while the GPUs' threads wait. wait: until
 * the GPU's stream is through, on its thread; p: the step's program, NULL outside of steps; n NULL, or one host: just waits. leave: end what the GPU
 * waits for in NCCL, on its thread or when that has ended. */
enum rs_result cuda_span_open(struct cuda *c, struct rs_error *err);
void cuda_span_close(struct cuda *c);
enum rs_result cuda_span_prepare(struct cuda *c, const struct program *p, const struct choice *choices, struct rs_error *err);
void cuda_span_begin(struct cuda *c, const struct backend_step *s);
enum rs_result cuda_span_end(struct cuda *c, const struct program *p, enum rs_result rc, struct rs_error *err);
void cuda_span_look(struct cuda *c);
enum rs_result cuda_span_wait(struct cuda_gpu *g, struct comm_nccl *n, const struct program *p, struct rs_error *err);
bool cuda_span_stopped(const struct cuda *c);
void cuda_span_leave(struct cuda_gpu *g);

/* cuda_sweep.c: time reduces of several sizes, flat and in two shots, and decide from how many rows on auto takes two. When everything is open. */
enum rs_result cuda_sweep(struct cuda *c, struct rs_error *err);

/* cuda_op_join.c: how an all-reduce of so many rows is done by a choice, and how many epochs it takes. */
enum cuda_reduce { CUDA_REDUCE_FLAT, CUDA_REDUCE_TWO_SHOT, CUDA_REDUCE_NCCL };
enum cuda_reduce cuda_reduce_how(const struct cuda *c, const struct choice *ch, uint32_t rows);
uint32_t cuda_reduce_epochs(const struct cuda *c, const struct choice *ch, uint32_t rows);

/* Of a GPU's receive buffers and of its flags for sums in two shots. */
static inline size_t cuda_recv_bytes(const struct cuda *c)
{
    return 2 * (size_t)(c->lim.peers > c->n_ranks ? c->lim.peers : c->n_ranks) * c->slot_packets * sizeof(uint4);
}
/* Of a rank: see kcu_route. */
static inline size_t cuda_words_bytes(const struct cuda *c)
{
    return ((size_t)c->hp->n_experts + 2 * c->hp->n_used) * sizeof(uint64_t);
}
static inline size_t cuda_flags_bytes(void)
{
    return 2 * KCU_TWO_SHOT_BLOCKS * KCU_MAX_GPUS * sizeof(uint32_t);
}

/* cuda_clock.c. align: between steps; does nothing while the last calibration is young. us: a GPU's stamp on the clock of GPU 0, since its `zero`. */
enum rs_result cuda_clock_open(struct cuda_gpu *g, struct rs_error *err);
void cuda_clock_close(struct cuda_gpu *g);
enum rs_result cuda_clock_align(struct cuda *c, struct rs_error *err);
double cuda_clock_us(const struct cuda_gpu *g, uint64_t ns, uint64_t zero);

/* cuda_probe.c, on the control thread. arm: before a step, make room for its observers. begin: forget what was seen. take: bring what observers
 * behind ops [from, to] have seen to where its owners look; -1: those before the first. keys: columns that were copied of scores. */
enum rs_result cuda_probe_arm(struct cuda *c, const struct backend_step *s, struct rs_error *err);
void cuda_probe_begin(struct cuda *c, const struct backend_step *s);
void cuda_probe_take(struct cuda *c, const struct backend_step *s, int from, int to, uint32_t keys);
/* This rank's (row, expert) pairs of a layer, grouped by expert, rows ascending; returns how many. ids: [rows][n_used]. */
uint32_t cuda_probe_pairs(const struct cuda *c, const int32_t *ids, uint32_t rows, uint32_t layer, uint32_t rank, uint32_t *pair);
void cuda_probe_close(struct cuda *c);

/* The backend's calls that look into memory, on the control thread between steps or while one is held: cuda_look.c. */
struct cuda_rank *cuda_find_rank(struct cuda *c, uint32_t rank, struct cuda_gpu **gpu);
enum rs_result cuda_look_read(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, float *dst,
                              struct rs_error *err);
enum rs_result cuda_look_write(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, const float *src,
                               struct rs_error *err);
enum rs_result cuda_look_copy_block(struct backend *b, int32_t from, int32_t to, struct rs_error *err);
enum rs_result cuda_look_cache_get(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, float *dst,
                                   struct rs_error *err);
enum rs_result cuda_look_cache_put(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, const float *src,
                                   struct rs_error *err);
uint32_t cuda_look_pairs(struct backend *b, uint32_t rank);

/* cuda_fault.c. room: does what the model needs fit on the GPUs? RS_ENOMEM says how much is missing on which and what would fit. step: what went
 * wrong in a step that a device ended; fills in rank, op and the line that launched it, and notes whether the device is lost. waiting: RS_EENGINE if a
 * rank gave up waiting for another one. */
enum rs_result cuda_fault_room(struct cuda *c, struct rs_error *err);
enum rs_result cuda_fault_step(struct cuda *c, struct rs_error *err);
/* The op that was the last to begin on a GPU; *at: which of its launches. 0 where kernels leave no stamps. */
uint32_t cuda_fault_last(const struct cuda_gpu *g, uint32_t *at);
/* Has nothing moved for a second while a step runs? Then ask whether to give it up. On the control thread. */
void cuda_fault_look(struct cuda *c);
enum rs_result cuda_fault_waiting(struct cuda *c, const struct program *p, uint32_t rows, struct rs_error *err);
/* cuda_load.c: bytes of a rank's weights. */
size_t cuda_load_bytes(const struct cuda *c, uint32_t rank);

/* cuda_exec.c */
enum rs_result cuda_exec_step(struct cuda *c, const struct backend_step *s, struct rs_error *err);
void cuda_exec_retire(struct cuda *c, uint64_t generation);
/* See backend_ops.graphs. */
uint32_t cuda_exec_graphs(const struct cuda *c, struct backend_graph *out, uint32_t cap);
void cuda_exec_close(struct cuda_gpu *g);

extern const struct op_impl CUDA_IMPLS[];
extern const size_t CUDA_N_IMPLS;

#endif
