/* The patch table: which implementation each op uses, changed while the model is loaded.
 *
 * Slots are data (PATCH_SLOTS in patch.c). A table of one generation is an ordered list of (slot, site glob, implementation), last match wins; it
 * is never changed, only replaced by a new generation, so that a step or a graph that was made under one keeps it. The engine's control thread
 * owns the store; nothing here is called during a step. */
#ifndef RANKSCOPE_ENGINE_PATCH_H
#define RANKSCOPE_ENGINE_PATCH_H

#include <stdatomic.h>

#include "engine/impl.h"
#include "engine/plan.h"
#include "engine/rankscope.h"

enum patch_cost {
    PATCH_SWAP,      /* a pointer store */
    PATCH_RECAPTURE, /* graphs are captured again (every swap does this in graph mode) */
    PATCH_RELOAD,    /* some weights are read from another file; sequences keep what they have in the cache */
    PATCH_RESHARD,   /* weights move between ranks, or caches change form: sequences are computed again */
};

enum patch_slot_id {
    SLOT_SLOT_ORDER, SLOT_QKV_A, SLOT_MLA, SLOT_ALLREDUCE, SLOT_AR_DTYPE, SLOT_NCCL, SLOT_MOE_SPLIT, SLOT_MATMUL, SLOT_CACHE, SLOT_ATTENTION, SLOT_DELAY, SLOT_HIDDEN, SLOT_USER, SLOT_WEIGHTS,
    SLOT_COUNT,
};

struct patch_impl {
    const char *name;
    const char *help;
};

#define PATCH_MAX_IMPLS 8

struct patch_slot {
    const char *name;
    enum patch_cost cost;
    uint32_t kinds;  /* bit set of op kinds that it concerns; 0: not per op (split, cache) */
    bool per_site;   /* a site glob makes sense */
    const char *help;
    struct patch_impl impls[PATCH_MAX_IMPLS]; /* the first is the default */
    const char *on_gpus;                      /* the default of the CUDA backend where it is another; else NULL */
    const char *on_gpu_hosts;                 /* and of GPUs of several hosts */
};

struct patch_entry {
    uint16_t slot;
    char glob[OP_SITE_MAX];
    char impl[32];
    bool preset; /* came from a preset such as mla=off */
};

#define PATCH_MAX_ENTRIES 64
#define PATCH_MAX_USER 64
#define PATCH_MAX_DONORS 16
#define PATCH_DONOR_NAME 32

/* A hosted patch that failed in a step. The worker that it failed on sets it, the control thread reads and clears it between steps. */
enum patch_state { PATCH_SOUND, PATCH_FAILING, PATCH_FAILED };

struct patch_fault {
    atomic_int state; /* enum patch_state; FAILED: why is written */
    char why[480];    /* one line: patch, site, rank, file and line */
};

/* An implementation that was loaded while the engine runs. impl is its first member: a launch finds the rest from there. */
struct patch_user {
    struct op_impl impl;
    const struct rankscope_patch_v1 *api; /* from a C file: in a shared object that is never unloaded; else NULL */
    bool gpus;                            /* from a file in CUDA C: impl.launch is a struct cuda_user */
    const struct rs_patch_host *host;     /* from a file in its language; else NULL */
    void *hosted;                         /* the host's; closed with the registry */
    struct patch_fault *fault;            /* hosted: owned */
    char name[40], file[256], help[128];
};

/* All that were ever loaded; append-only, so that tables and graphs of any generation may refer to it. Donors, by contrast, go with their model. */
struct patch_registry {
    uint32_t n;
    struct patch_user user[PATCH_MAX_USER];
    uint32_t n_donors;
    char donor[PATCH_MAX_DONORS][PATCH_DONOR_NAME]; /* what the names of slot "weights" mean: see donor.h */
};

struct patch_table {
    uint64_t generation;
    const struct patch_registry *reg; /* what the names of slot "user" mean */
    bool gpus;                        /* defaults are those of the CUDA backend */
    bool hosts;                       /* whose ranks are on several hosts */
    uint32_t n;
    struct patch_entry entry[PATCH_MAX_ENTRIES];
};

struct patch_journal {
    uint64_t generation, time_us;
    char slot[32], glob[OP_SITE_MAX], from[32], to[32], by[32];
    float took_ms;
};

#define PATCH_MAX_HISTORY 256

struct patch_store {
    struct patch_registry *registry;                 /* owned */
    struct patch_table now;
    uint32_t n_history;                              /* tables before now, newest last; the oldest fall off */
    struct patch_table *history;                     /* [PATCH_MAX_HISTORY], owned */
    uint32_t n_journal;
    struct patch_journal *journal;                   /* [PATCH_MAX_HISTORY] ring, owned */
};

/* Op kinds that a file can replace, by name; gpus: a file in CUDA C. kinds() lists them in buf. has_matrices(): is any weight of the kind one? */
bool patch_kind(const char *name, bool gpus, enum op_kind *out);
const char *patch_kinds(bool gpus, char *buf, size_t cap);
bool patch_has_matrices(enum op_kind kind);

const struct patch_user *patch_find_user(const struct patch_registry *r, const char *name); /* NULL: none of that name */
bool patch_is_user(const struct patch_registry *r, const struct op_impl *impl);
/* Has a hosted patch failed? Takes all that have, clears their faults, and returns how many entries of slot "user" *t loses with them (the first one's
 * name and reason into name and why). Between steps; control thread. */
uint32_t patch_take_failed(struct patch_store *s, struct patch_table *t, char name[40], char why[480]);
const char *patch_find_donor(const struct patch_registry *r, const char *name); /* NULL: none of that name */
/* The first loaded implementation under this table that the backend cannot run, or NULL. */
const struct patch_user *patch_misfit(const struct patch_table *t, bool gpus);

const struct patch_slot *patch_slot(uint32_t i); /* NULL past the end */
const struct patch_slot *patch_find(const char *name, uint32_t *id);

enum rs_result patch_open(struct patch_store *s, struct rs_error *err);
void patch_close(struct patch_store *s);

/* Work out the table after slot=impl at glob (NULL: "*") without changing the store. A preset expands to several entries. Setting a slot at "*"
 * removes its older entries. *cost is the dearest of what changes. Errors: RS_NOTFOUND for an unknown slot or impl (the message lists what there
 * is), RS_EUSAGE. */
enum rs_result patch_plan(const struct patch_store *s, const char *slot, const char *impl, const char *glob, struct patch_table *out,
                          enum patch_cost *cost, struct rs_error *err);

/* Make `next` current under a new generation; what was current goes to the history and `what` (its slot, glob, to, by) to the journal. */
void patch_commit(struct patch_store *s, const struct patch_table *next, const char *slot, const char *glob, const char *to, const char *by,
                  float took_ms);

/* The table that was current at generation `to` (0: the one before now). Errors: RS_ENOTFOUND. */
enum rs_result patch_past(const struct patch_store *s, uint64_t to, struct patch_table *out, struct rs_error *err);

/* The impl of a slot at "*" in a table: the last entry whose glob matches everything, or the default. */
const char *patch_current(const struct patch_table *t, uint32_t slot);

/* What a slot is when nothing was set. */
const char *patch_default(const struct patch_table *t, uint32_t slot);

enum patch_cost patch_difference(const struct patch_table *a, const struct patch_table *b);
/* Do both say the same of a slot? */
bool patch_same(const struct patch_table *a, const struct patch_table *b, uint32_t slot);
/* Take a slot's entries out of a table (not of the store). false: there were none. */
bool patch_drop(struct patch_table *t, uint32_t slot);
/* Could an op compute other values under b than under a? */
bool patch_changes_values(const struct patch_table *a, const struct patch_table *b);
const char *patch_cost_name(enum patch_cost c);

/* Resolve every op of a program: choices[op.index]. impls is the backend's table. Errors: RS_ENOTFOUND if the backend lacks an implementation. */
enum rs_result patch_resolve(const struct patch_table *t, const struct program *p, const struct op_impl *impls, size_t n_impls,
                             struct choice *choices, struct rs_error *err);

#endif
