/* The engine's inside: what the control thread owns. Only engine/ includes this. */
#ifndef RANKSCOPE_ENGINE_ENGINE_H
#define RANKSCOPE_ENGINE_ENGINE_H

#include <jansson.h>

#include "engine/backend.h"
#include "engine/baseline.h"
#include "engine/batch.h"
#include "engine/brk.h"
#include "engine/deliver.h"
#include "engine/model.h"
#include "engine/observe.h"
#include "engine/patch.h"
#include "engine/pool.h"
#include "engine/rankscope.h"
#include "engine/reads.h"
#include "engine/runtime.h"
#include "engine/seq.h"
#include "engine/snapshot.h"
#include "engine/spec.h"
#include "engine/loading.h"
#include "engine/timing.h"

struct comm;
struct hosts;

struct session {
    struct session *next;
    uint32_t id, stream; /* stream 0: none yet */
    char *data;          /* the client's JSON */
    int32_t *tok;        /* tokens and row kinds of its last sequence: a continuation keeps what each row was */
    uint8_t *kind;
    uint32_t n;
};

enum { ENGINE_KEEP_DONE = 64 };

/* The token of a wanted row. */
struct sample_pick {
    int32_t id;
    bool chosen;
    bool listed; /* by what the device said of the row; its logits are not here */
    float logit;
    struct sample_info info;
};

struct seq_queue {
    struct seq *first, *last;
    uint32_t n;
};

/* What the scheduler did since the model was opened. */
struct sched_counts {
    uint64_t submitted, preemptions;
    uint64_t prompt_rows, decode_rows, steps; /* rows of prompts (those computed again too), rows of generated tokens */
    uint64_t prompt_tokens, cached_tokens;    /* of sequences that began: their prompts, and what was found in the cache */
    double step_us;                           /* wall time of all steps */
};

struct engine {
    char name[64];
    char dead[512];             /* why the engine ends, if a device failed for good */
    unsigned workers;
    enum krn_isa isa;
    struct pool *pool;
    const struct rs_patch_host *host; /* or NULL */
    unsigned long (*json_failures)(void); /* or NULL: nobody counts */
    struct server *server;
    struct hosts *hosts;        /* whose processes run steps together with this one; NULL: none */

    struct model *model;        /* NULL: none open */
    struct runtime *rt;
    struct baseline baseline;   /* of the open model; empty: none is known */
    struct patch_store patches;
    bool graph, guard, fast;

    struct seq *seqs, *seqs_last; /* all of them, oldest first; done ones in place until pruned */
    struct seq **run;             /* [max_seqs] those that run, oldest first */
    struct seq_queue wait, done;  /* waiting, oldest first; done, in the order in which they ended */
    struct seq *starved;          /* running, and found no block in the last step: it is served first in the next */
    struct seq **in_batch;        /* [batch_tokens] those with rows in the batch */
    uint32_t n_run, cap_run, n_in_batch, next_stream;
    struct sched_counts counts;
    struct session *sessions;
    uint32_t next_session;
    struct batch batch;         /* arrays of the runtime's limits */
    struct seq **row_seq;       /* [max_logits] sequence of each wanted row */
    struct sample_scratch *scratch; /* [n_scratch] one for each worker */
    struct sample_pick *picks;  /* [max_logits] tokens that were chosen before their sequences' turn */
    unsigned n_scratch;
    struct deliver_late *late;  /* [max_logits] tokens that are delivered while the next step runs */
    uint32_t n_late;
    struct spec spec;

    struct observe observe;     /* taps and watchpoints */
    struct brk_state brk;

    struct loading loading;     /* of the load that the control thread is in */
    struct {
        int slot;
        uint32_t id;            /* the request that is being carried out */
        uint64_t began_us, told_us;
    } asked;

    struct stage *stage;        /* a patch that is being compiled and tested, or NULL */
    struct shadow *shadow;      /* the live shadow run, or the last one; NULL: there was none */
    struct timing *timing;
    struct snapshot_page *page;
    int page_fd;
    uint64_t steps, tokens;
    double last_us;             /* wall time of the last step */
    struct reads_step last_read; /* what the last step had to read for */
    /* tokens per second over the last second of work on steps that generate */
    double rate_us, rate_tokens, rate;
};

/* listen_fd, first: see server.h. comm: of processes that an MPI launcher has started, taken over; or NULL. */
enum rs_result engine_open(const struct rs_local_params *params, const char *name, int listen_fd, int first, struct comm *comm, struct engine **out,
                           struct rs_error *err);
void engine_close(struct engine *e);
/* The control thread: serve and step until told to stop. */
void engine_run(struct engine *e);
const struct snapshot_page *engine_page(const struct engine *e);

/* Put a model in place of what is there; on failure the old one stays. m belongs to the engine, also on failure. */
enum rs_result engine_load(struct engine *e, struct model *m, const struct runtime_config *cfg, struct rs_error *err);
void engine_unload(struct engine *e);
/* A new layout of the loaded model; sequences are computed again. On failure the old one stays. */
enum rs_result engine_relayout(struct engine *e, const struct runtime_config *cfg, const struct patch_table *patches, struct rs_error *err);
/* Choices and graphs for a new patch table. */
enum rs_result engine_repatch(struct engine *e, const struct patch_table *next, struct rs_error *err);

/* After a step or a capture that failed: hosted patches that failed in it are taken out of the table, which is journalled and told to all. false: there
 * were none in the table. */
bool engine_drop_failed(struct engine *e);

/* moe.split and cache are patches, but they shape the layout: what a table says about it, into cfg. */
void engine_layout(const struct patch_table *t, struct runtime_config *cfg);
/* Do the ranks share CPUs, so that their clocks are virtual? */
bool engine_simulated(const struct engine *e);
struct runtime_config engine_default_config(const struct model *m);

/* sched.c */
/* Put the next rows into e->batch. false: nothing to do. Allocates nothing. */
bool sched_build(struct engine *e);
/* Do those who wait fill a step of a device that leaves the control thread free? Then it had better begin, and more can be taken in meanwhile. */
bool sched_plenty(const struct engine *e);
/* The step is done: rows of known tokens count as cached, full blocks are published. */
void sched_commit(struct engine *e);
/* Drafts up to position n - 1 were right: their rows count too. */
void sched_accept(struct engine *e, struct seq *s, uint32_t n);
/* Cache blocks for positions below n, taken only from what is free. */
bool sched_room(struct engine *e, struct seq *s, uint32_t n);
/* Why it had no rows in the last step, or will have none in the next; "" when it had. */
void sched_why(const struct engine *e, const struct seq *s, char *buf, size_t size);
void sched_add(struct engine *e, struct seq *s);     /* a new sequence, at the end of the queue; the engine owns it from now on */
void sched_end(struct engine *e, struct seq *s);     /* it is done: blocks go back, later turns pass it over */
void sched_forget(struct engine *e, struct seq *s);  /* free one that is done */
void sched_rewind(struct engine *e);                 /* every running sequence gives its blocks back and starts over */
void sched_restart(struct engine *e);                /* caches are void: every running sequence starts over */
/* Buffers for the runtime's limits. On failure the old ones stay. */
enum rs_result sched_arrays(struct engine *e, struct rs_error *err);
void sched_free_arrays(struct engine *e);

/* step.c */
/* Run one step over e->batch, sample, emit. A step that fails ends the sequences in it. */
void step_run(struct engine *e);
void step_idle(struct engine *e); /* nothing runs: bring the snapshot up to date */
void step_finish(struct engine *e, struct seq *s, enum seq_stop why);
/* A device failed for good, or a host is gone. By NVIDIA's rule the process ends with the one, and by ours with the other; who is connected learns why. */
void step_die(struct engine *e, const char *why);
void step_cancel(struct engine *e, struct seq *s); /* now, or at the end of the step that is held */
/* One step over e->batch. copies: single rows to be copied on the way (such steps run eager), or NULL. of_streams: breakpoints apply. */
enum rs_result step_batch(struct engine *e, const struct probe_set *copies, bool of_streams, double *wall_us, struct rs_error *err);

/* Run a step of the loaded model under the present choices. If a hosted patch fails it is computed again without it: until a step has ended nobody uses
 * what it made. */
enum rs_result step_compute(struct engine *e, struct backend_step *st, struct rs_error *err);

/* forward.c */
/* Run ids through the model in a sequence of its own; see method "forward". */
struct forward_out {
    int32_t *argmax;   /* [n] or NULL */
    float *logits;     /* [rows][vocab] or NULL */
    bool all_logits;
    float *layers;     /* [n_layers + 1][n_embd] or NULL */
    double nll;        /* mean over tokens 1 .. n-1 */
};
enum rs_result forward_run(struct engine *e, const int32_t *ids, uint32_t n, struct forward_out *out, struct rs_error *err);

/* A LOG event to all. */
void engine_log(struct engine *e, const char *level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
json_t *engine_state_json(const struct engine *e);
/* How often the JSON library has failed for want of memory; it does not say of what it makes then that something is missing. */
unsigned long engine_json_failures(const struct engine *e);
/* The text of o, which was begun when there had been so many failures; NULL if there was one since. Caller frees. */
char *engine_json_text(const struct engine *e, const json_t *o, unsigned long failures);
void engine_announce(struct engine *e); /* STATE event to all */
uint32_t engine_ctx_used(const struct engine *e);

#endif
