/* The patch table. PATCH_SLOTS is the documentation: /patch list, completion and the manual are printed from it. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/patch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/error.h"
#include "engine/patch_host.h"
#include "engine/rankscope.h"

#define K(kind) (1u << OP_##kind)
#define PATCHABLE \
    (K(EMBED) | K(RMSNORM) | K(LINEAR) | K(QKV_A) | K(GATE_UP) | K(SILU_MUL) | K(MOE_GATE_UP) | K(MOE_SILU_MUL) | K(MOE_DOWN) | K(ADD) | K(ROPE_Q) | K(KV_STORE) | \
     K(MLA) | K(ROUTER) | K(ALLREDUCE) | K(INDEX_Q) | K(INDEX_STORE) | K(INDEX_SCORES) | K(INDEX_TOPK) | K(GATHER))
#define NOT_ON_GPUS K(ALLREDUCE) /* a kernel of one GPU cannot wait for another's */
#define ALL_LINEAR (K(LINEAR) | K(QKV_A) | K(GATE_UP) | K(MOE_GATE_UP) | K(MOE_DOWN) | K(MLA))

/* Between hosts NCCL is many times faster than what goes through host memory. */
#ifdef HAVE_NCCL
#define GPU_HOSTS_REDUCE "nccl"
#else
#define GPU_HOSTS_REDUCE "flat"
#endif

static const struct patch_slot PATCH_SLOTS[SLOT_COUNT] = {
    [SLOT_SLOT_ORDER] = {"slot_order", PATCH_RECAPTURE, K(QKV_A) | K(GATE_UP) | K(MOE_GATE_UP), true, "how fused projections join their slots",
                         {{"slot", "in the order in which the model consumes the columns"},
                          {"file", "in the order in which the file holds the tensors: the bug of the story, kept so that it can be recognised"}}},
    [SLOT_QKV_A] = {"qkv_a", PATCH_RECAPTURE, K(QKV_A), true, "the two down projections of attention",
                    {{"fused", "one pass over both slots"}, {"split", "two projections: no slots to mix up"}}},
    [SLOT_MLA] = {"mla", PATCH_RECAPTURE, K(MLA), true, "attention over the latent cache",
                  {{"auto", "prompt rows expanded, generated rows absorbed"},
                   {"absorbed", "scores in the latent space"},
                   {"expanded", "keys and values made from the latents"},
                   {"direct", "computes on the spot, outside the recorder: right in eager mode, stale in a graph"},
                   {"off", "preset: mla=expanded and qkv_a=split, the switch that the story's engine called MLA disable"}}},
    [SLOT_ALLREDUCE] = {"allreduce", PATCH_RECAPTURE, K(ALLREDUCE), true, "how partial sums of the ranks are added",
                        {{"flat", "rank 0 + rank 1 + ..., in order"}, {"tree", "pairs, then pairs of pairs: another rounding"}, {"nccl", "NCCL, as it sees fit (GPUs)"},
                         {"two-shot", "every GPU sums a part, then hands it to all: the bits of flat (GPUs)"},
                         {"auto", "flat or two-shot, by size, as measured when the model was opened (GPUs)"}}, "auto", GPU_HOSTS_REDUCE},
    [SLOT_AR_DTYPE] = {"allreduce.dtype", PATCH_RECAPTURE, K(ALLREDUCE), true, "payload of the all-reduce",
                       {{"f32", "exact"}, {"bf16", "half the bytes, each summand rounded to 8 bits of mantissa"}}, "bf16"},
    [SLOT_NCCL] = {"nccl", PATCH_RECAPTURE, K(ALLREDUCE), false, "how NCCL sums where allreduce=nccl; its communicators are made anew",
                   {{"auto", "as NCCL sees fit"},
                    {"ring-ll", "ring, 8-byte packets with flags"},
                    {"ring-ll128", "ring, 128-byte packets with flags"},
                    {"ring-simple", "ring, plain copies behind barriers"},
                    {"tree-ll", "tree, 8-byte packets with flags"},
                    {"tree-ll128", "tree, 128-byte packets with flags"},
                    {"tree-simple", "tree, plain copies behind barriers"}}},
    [SLOT_MOE_SPLIT] = {"moe.split", PATCH_RESHARD, 0, false, "how routed experts are divided over ranks",
                        {{"auto", "inside each expert where whole blocks allow it, else whole experts"},
                         {"tp", "inside each expert: every rank reads a part of every chosen expert"},
                         {"ep", "whole experts: a rank reads only its own"}}},
    [SLOT_MATMUL] = {"matmul", PATCH_RECAPTURE, ALL_LINEAR, true, "activations of quantised products",
                     {{"int8", "quantised per 32 values"}, {"f32", "exact: weights are dequantised"}}},
    [SLOT_CACHE] = {"cache", PATCH_RESHARD, 0, false, "type of the latent cache", {{"f16", "default"}, {"f32", "exact"}, {"bf16", "8 bits of mantissa: measurably worse"}}},
    [SLOT_ATTENTION] = {"attention", PATCH_RECAPTURE, K(MLA), true, "where an indexer selects keys",
                        {{"sparse", "attend to the selected positions"}, {"dense", "attend to all"}}},
    [SLOT_DELAY] = {"delay", PATCH_RECAPTURE, K(ALLREDUCE), true, "make one rank late at every all-reduce: delay=RANK:us",
                    {{"off", "nobody is late on purpose"}}},
    [SLOT_HIDDEN] = {"nextn.hidden", PATCH_RECAPTURE, K(HIDDEN), false, "the hidden state that the NextN block drafts from",
                     {{"normed", "after the last norm"}, {"raw", "the residual stream itself: how DeepSeek's paper reads"}}},
    [SLOT_USER] = {"user", PATCH_RECAPTURE, PATCHABLE, true, "implementations loaded from files: each takes over ops of its own kind",
                   {{"off", "none"}}},
    [SLOT_WEIGHTS] = {"weights", PATCH_RELOAD, 0, true, "tensors taken from other model files, by patterns of their names",
                      {{"file", "as they stand in the model's own file"}}},
};

static bool replaceable(enum op_kind k, bool gpus)
{
    return ((gpus ? PATCHABLE & ~NOT_ON_GPUS : PATCHABLE) >> k & 1) != 0;
}

bool patch_kind(const char *name, bool gpus, enum op_kind *out)
{
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (replaceable((enum op_kind)k, gpus) && strcmp(op_kind_name((enum op_kind)k), name) == 0) {
            *out = (enum op_kind)k;
            return true;
        }
    return false;
}

const char *patch_kinds(bool gpus, char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int k = 0; k < OP_KIND_COUNT && at < cap; k++)
        if (replaceable((enum op_kind)k, gpus))
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at != 0 ? ", " : "", op_kind_name((enum op_kind)k));
    return buf;
}

bool patch_has_matrices(enum op_kind kind)
{
    return ((ALL_LINEAR | K(EMBED) | K(ROUTER)) >> kind & 1) != 0;
}

const struct patch_user *patch_find_user(const struct patch_registry *r, const char *name)
{
    for (uint32_t i = 0; r != NULL && i < r->n; i++)
        if (strcmp(r->user[i].name, name) == 0)
            return &r->user[i];
    return NULL;
}

uint32_t patch_take_failed(struct patch_store *s, struct patch_table *t, char name[40], char why[480])
{
    const struct patch_registry *r = s->registry;
    uint32_t lost = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const struct patch_user *u = &r->user[i];
        if (u->fault == NULL || atomic_load_explicit(&u->fault->state, memory_order_acquire) != PATCH_FAILED)
            continue;
        uint32_t n = 0;
        for (uint32_t k = 0; k < t->n; k++)
            if (t->entry[k].slot != SLOT_USER || strcmp(t->entry[k].impl, u->name) != 0)
                t->entry[n++] = t->entry[k];
        if (t->n != n && lost == 0) {
            snprintf(name, 40, "%s", u->name);
            snprintf(why, 480, "%s", u->fault->why);
        }
        lost += t->n - n;
        t->n = n;
        atomic_store_explicit(&u->fault->state, PATCH_SOUND, memory_order_relaxed);
    }
    return lost;
}

const char *patch_find_donor(const struct patch_registry *r, const char *name)
{
    for (uint32_t i = 0; r != NULL && i < r->n_donors; i++)
        if (strcmp(r->donor[i], name) == 0)
            return r->donor[i];
    return NULL;
}

bool patch_is_user(const struct patch_registry *r, const struct op_impl *impl)
{
    for (uint32_t i = 0; r != NULL && i < r->n; i++)
        if (&r->user[i].impl == impl)
            return true;
    return false;
}

const struct patch_user *patch_misfit(const struct patch_table *t, bool gpus)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const struct patch_user *u = t->entry[i].slot == SLOT_USER ? patch_find_user(t->reg, t->entry[i].impl) : NULL;
        if (u != NULL && u->gpus != gpus)
            return u;
    }
    return NULL;
}

const struct patch_slot *patch_slot(uint32_t i)
{
    return i < SLOT_COUNT ? &PATCH_SLOTS[i] : NULL;
}

const struct patch_slot *patch_find(const char *name, uint32_t *id)
{
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        if (strcmp(PATCH_SLOTS[i].name, name) == 0) {
            *id = i;
            return &PATCH_SLOTS[i];
        }
    return NULL;
}

enum rs_result patch_open(struct patch_store *s, struct rs_error *err)
{
    memset(s, 0, sizeof *s);
    s->now.generation = 1;
    s->registry = calloc(1, sizeof *s->registry);
    s->now.reg = s->registry;
    s->history = calloc(PATCH_MAX_HISTORY, sizeof *s->history);
    s->journal = calloc(PATCH_MAX_HISTORY, sizeof *s->journal);
    if (s->history != NULL && s->journal != NULL && s->registry != NULL)
        return RS_OK;
    patch_close(s);
    return error_set(err, RS_ENOMEM, "out of memory for the patch journal");
}

void patch_close(struct patch_store *s)
{
    for (uint32_t i = 0; s->registry != NULL && i < s->registry->n; i++) {
        struct patch_user *u = &s->registry->user[i];
        if (u->host != NULL)
            u->host->close(u->hosted);
        free(u->fault);
    }
    free(s->history);
    free(s->journal);
    free(s->registry);
    memset(s, 0, sizeof *s);
}

static bool parse_delay(const char *s, int16_t *rank, float *us)
{
    unsigned r;
    float u;
    char tail;
    if (sscanf(s, "%u:%f%c", &r, &u, &tail) != 2 || r >= RS_MAX_RANKS || !(u >= 0 && u <= 4e6f)) /* in ns it must fit 32 bits */
        return false;
    *rank = (int16_t)r;
    *us = u;
    return true;
}

static const struct patch_impl *find_impl(const struct patch_slot *s, const char *name)
{
    for (int i = 0; i < PATCH_MAX_IMPLS && s->impls[i].name != NULL; i++)
        if (strcmp(s->impls[i].name, name) == 0)
            return &s->impls[i];
    return NULL;
}

/* One of the names that would have been right, for a message. */
static void add_name(struct rs_near *near, char *list, size_t size, const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n > 0 ? ", " : "", name);
    rs_near_try(near, name);
}

static enum rs_result unknown_impl(const struct patch_slot *s, const struct patch_registry *reg, const char *impl, struct rs_error *err)
{
    char list[400] = "", hint[80];
    struct rs_near near;
    rs_near_init(&near, impl, strlen(impl));
    for (int i = 0; i < PATCH_MAX_IMPLS && s->impls[i].name != NULL; i++)
        add_name(&near, list, sizeof list, s->impls[i].name);
    for (uint32_t i = 0; strcmp(s->name, "user") == 0 && reg != NULL && i < reg->n; i++)
        add_name(&near, list, sizeof list, reg->user[i].name);
    return error_set(err, RS_ENOTFOUND, "slot %s has no implementation '%.30s'%s; it has: %s%s", s->name, impl, rs_near_hint(&near, "", hint, sizeof hint), list,
                     strcmp(s->name, "delay") == 0 ? ", RANK:MICROSECONDS" : "");
}

static enum rs_result unknown_slot(const char *slot, struct rs_error *err)
{
    char list[300] = "", hint[80];
    struct rs_near near;
    rs_near_init(&near, slot, strlen(slot));
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        add_name(&near, list, sizeof list, PATCH_SLOTS[i].name);
    return error_set(err, RS_ENOTFOUND, "no slot '%.30s'%s; there are: %s", slot, rs_near_hint(&near, "", hint, sizeof hint), list);
}

/* Loaded implementations of different kinds do not replace each other; "off" replaces all. */
static bool other_kind(const struct patch_table *t, const char *old, const char *new)
{
    const struct patch_user *a = patch_find_user(t->reg, old), *b = patch_find_user(t->reg, new);
    return a != NULL && b != NULL && a->impl.kind != b->impl.kind;
}

static enum rs_result put(struct patch_table *t, uint32_t slot, const char *impl, const char *glob, bool preset, struct rs_error *err)
{
    if (strcmp(glob, "*") == 0) { /* a setting for all sites replaces every older one */
        uint32_t n = 0;
        for (uint32_t i = 0; i < t->n; i++)
            if (t->entry[i].slot != slot || (slot == SLOT_USER && other_kind(t, t->entry[i].impl, impl)))
                t->entry[n++] = t->entry[i];
        t->n = n;
        if (!preset && strcmp(impl, patch_default(t, slot)) == 0)
            return RS_OK;
    }
    if (t->n == PATCH_MAX_ENTRIES)
        return error_set(err, RS_EUSAGE, "more than %d patch entries; set a slot for all sites to clear it", PATCH_MAX_ENTRIES);
    struct patch_entry *e = &t->entry[t->n++];
    *e = (struct patch_entry){.slot = (uint16_t)slot, .preset = preset};
    snprintf(e->glob, sizeof e->glob, "%s", glob);
    snprintf(e->impl, sizeof e->impl, "%s", impl);
    return RS_OK;
}

enum rs_result patch_plan(const struct patch_store *s, const char *slot, const char *impl, const char *glob, struct patch_table *out,
                          enum patch_cost *cost, struct rs_error *err)
{
    uint32_t id;
    int16_t rank;
    float us;
    const struct patch_slot *p = patch_find(slot, &id);
    if (p == NULL)
        return unknown_slot(slot, err);
    if (glob == NULL || glob[0] == '\0')
        glob = "*";
    if (strlen(glob) >= OP_SITE_MAX)
        return error_set(err, RS_EUSAGE, "site pattern is longer than %d characters", OP_SITE_MAX - 1);
    if (!p->per_site && strcmp(glob, "*") != 0)
        return error_set(err, RS_EUSAGE, "slot %s concerns the whole model; it takes no site", slot);
    if (find_impl(p, impl) == NULL && !(id == SLOT_DELAY && parse_delay(impl, &rank, &us)) &&
        !(id == SLOT_USER && patch_find_user(s->now.reg, impl) != NULL) && !(id == SLOT_WEIGHTS && patch_find_donor(s->now.reg, impl) != NULL))
        return unknown_impl(p, s->now.reg, impl, err);
    *out = s->now;
    enum rs_result rc;
    if (id == SLOT_MLA && strcmp(impl, "off") == 0) {
        rc = put(out, SLOT_MLA, "expanded", glob, true, err);
        if (rc == RS_OK)
            rc = put(out, SLOT_QKV_A, "split", glob, true, err);
    } else {
        rc = put(out, id, impl, glob, false, err);
    }
    *cost = patch_difference(&s->now, out);
    return rc;
}

static uint64_t wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void patch_commit(struct patch_store *s, const struct patch_table *next, const char *slot, const char *glob, const char *to, const char *by, float took_ms)
{
    if (s->n_history == PATCH_MAX_HISTORY) {
        memmove(s->history, s->history + 1, (PATCH_MAX_HISTORY - 1) * sizeof *s->history);
        s->n_history--;
    }
    s->history[s->n_history++] = s->now;
    struct patch_journal *j = &s->journal[s->n_journal++ % PATCH_MAX_HISTORY];
    uint32_t id;
    *j = (struct patch_journal){.generation = s->now.generation + 1, .time_us = wall_us(), .took_ms = took_ms};
    snprintf(j->slot, sizeof j->slot, "%s", slot);
    snprintf(j->glob, sizeof j->glob, "%s", glob != NULL && glob[0] != '\0' ? glob : "*");
    snprintf(j->from, sizeof j->from, "%s", patch_find(slot, &id) != NULL ? patch_current(&s->now, id) : "-");
    snprintf(j->to, sizeof j->to, "%s", to);
    snprintf(j->by, sizeof j->by, "%s", by);
    uint64_t g = s->now.generation + 1;
    s->now = *next;
    s->now.generation = g;
    s->now.reg = s->registry;
}

enum rs_result patch_past(const struct patch_store *s, uint64_t to, struct patch_table *out, struct rs_error *err)
{
    for (uint32_t i = s->n_history; i-- > 0;)
        if (to == 0 || s->history[i].generation == to) {
            *out = s->history[i];
            out->gpus = s->now.gpus;
            out->hosts = s->now.hosts;
            return RS_OK;
        }
    return error_set(err, RS_ENOTFOUND, to == 0 ? "nothing to revert: no patch was set" : "generation %llu is not in the history", (unsigned long long)to);
}

const char *patch_current(const struct patch_table *t, uint32_t slot)
{
    for (uint32_t i = t->n; i-- > 0;)
        if (t->entry[i].slot == slot && strcmp(t->entry[i].glob, "*") == 0)
            return t->entry[i].impl;
    return patch_default(t, slot);
}

const char *patch_default(const struct patch_table *t, uint32_t slot)
{
    const struct patch_slot *s = &PATCH_SLOTS[slot];
    return t->gpus && t->hosts && s->on_gpu_hosts != NULL ? s->on_gpu_hosts : t->gpus && s->on_gpus != NULL ? s->on_gpus : s->impls[0].name;
}

bool patch_same(const struct patch_table *a, const struct patch_table *b, uint32_t slot)
{
    uint32_t i = 0, j = 0;
    for (;;) {
        while (i < a->n && a->entry[i].slot != slot)
            i++;
        while (j < b->n && b->entry[j].slot != slot)
            j++;
        if (i == a->n || j == b->n)
            return i == a->n && j == b->n;
        if (strcmp(a->entry[i].glob, b->entry[j].glob) != 0 || strcmp(a->entry[i].impl, b->entry[j].impl) != 0)
            return false;
        i++;
        j++;
    }
}

enum patch_cost patch_difference(const struct patch_table *a, const struct patch_table *b)
{
    enum patch_cost c = PATCH_SWAP;
    for (uint32_t s = 0; s < SLOT_COUNT; s++)
        if (!patch_same(a, b, s) && PATCH_SLOTS[s].cost > c)
            c = PATCH_SLOTS[s].cost;
    return c;
}

bool patch_drop(struct patch_table *t, uint32_t slot)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->entry[i].slot != slot)
            t->entry[n++] = t->entry[i];
    bool any = n != t->n;
    t->n = n;
    return any;
}

bool patch_changes_values(const struct patch_table *a, const struct patch_table *b)
{
    for (uint32_t s = 0; s < SLOT_COUNT; s++)
        if (s != SLOT_DELAY && !patch_same(a, b, s))
            return true;
    return false;
}

const char *patch_cost_name(enum patch_cost c)
{
    return c == PATCH_SWAP ? "swap" : c == PATCH_RECAPTURE ? "recapture" : c == PATCH_RELOAD ? "reload" : "reshard";
}

/* The entry that rules (slot, op): the last that matches, or NULL. */
static const struct patch_entry *ruling(const struct patch_table *t, uint32_t slot, const struct op *op)
{
    for (uint32_t i = t->n; i-- > 0;)
        if (t->entry[i].slot == slot && plan_glob(t->entry[i].glob, op->site))
            return &t->entry[i];
    return NULL;
}

static const struct op_impl *backend_impl(const struct op_impl *impls, size_t n, enum op_kind kind, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (impls[i].kind == kind && (name == NULL || strcmp(impls[i].name, name) == 0))
            return &impls[i];
    return NULL;
}

static void apply(struct choice *c, uint32_t slot, const char *impl)
{
    switch (slot) {
    case SLOT_SLOT_ORDER: c->file_order = strcmp(impl, "file") == 0; break;
    case SLOT_ALLREDUCE: c->tree = strcmp(impl, "tree") == 0; break;
    case SLOT_AR_DTYPE: c->bf16 = strcmp(impl, "bf16") == 0; break;
    case SLOT_NCCL:
        for (c->nccl = 0; strcmp(PATCH_SLOTS[SLOT_NCCL].impls[c->nccl].name, impl) != 0;)
            c->nccl++;
        break;
    case SLOT_MATMUL: c->matmul = strcmp(impl, "f32") == 0 ? MATMUL_F32 : MATMUL_INT8; break;
    case SLOT_ATTENTION: c->dense = strcmp(impl, "dense") == 0; break;
    case SLOT_DELAY:
        if (!parse_delay(impl, &c->delay_rank, &c->delay_us))
            c->delay_rank = -1;
        break;
    default: break;
    }
}

/* Slots that name the implementation of their op kind; the others are settings of whatever implementation runs. */
static bool names_impl(uint32_t slot)
{
    return slot == SLOT_QKV_A || slot == SLOT_MLA || slot == SLOT_ALLREDUCE || slot == SLOT_HIDDEN;
}

/* The last entry of slot "user" that matches the site and whose implementation is for this kind of op. */
static void choose_user(const struct patch_table *t, const struct op *op, struct choice *c)
{
    for (uint32_t i = t->n; i-- > 0;) {
        const struct patch_entry *e = &t->entry[i];
        if (e->slot != SLOT_USER || !plan_glob(e->glob, op->site))
            continue;
        const struct patch_user *u = patch_find_user(t->reg, e->impl);
        if (u == NULL)
            return; /* off */
        if (u->impl.kind != op->kind)
            continue;
        c->impl = &u->impl;
        c->why = strcmp(e->glob, "*") == 0 ? WHY_PATCH : WHY_SITE;
        return;
    }
}

static enum rs_result no_such(const struct op *op, const char *name, const struct op_impl *impls, size_t n, struct rs_error *err)
{
    char has[160] = "none";
    size_t at = 0;
    for (size_t i = 0; i < n && at < sizeof has; i++)
        if (impls[i].kind == op->kind)
            at += (size_t)snprintf(has + at, sizeof has - at, "%s%s", at != 0 ? ", " : "", impls[i].name);
    return error_set(err, RS_ENOTFOUND, "op %s (%s): this backend has no implementation '%s' (it has %s)", op->site, op_kind_name(op->kind), name != NULL ? name : "any", has);
}

enum rs_result patch_resolve(const struct patch_table *t, const struct program *p, const struct op_impl *impls, size_t n_impls, struct choice *choices,
                             struct rs_error *err)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        struct choice c = {.delay_rank = -1, .why = WHY_DEFAULT};
        const char *name = NULL;
        for (uint32_t s = 0; s < SLOT_COUNT; s++) {
            if ((PATCH_SLOTS[s].kinds >> op->kind & 1) == 0 || s == SLOT_USER)
                continue;
            const struct patch_entry *e = ruling(t, s, op);
            const char *impl = e != NULL ? e->impl : patch_default(t, s);
            apply(&c, s, impl);
            if (names_impl(s))
                name = impl;
            if (e != NULL)
                c.why = e->preset ? WHY_PRESET : strcmp(e->glob, "*") == 0 ? WHY_PATCH : WHY_SITE;
        }
        c.impl = backend_impl(impls, n_impls, op->kind, name);
        choose_user(t, op, &c);
        if (c.impl == NULL)
            return no_such(op, name, impls, n_impls, err);
        choices[i] = c;
    }
    return RS_OK;
}
