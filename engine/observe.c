/* See observe.h. */
#include "engine/observe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/now.h"
#include "engine/server.h"

enum { DRIFT_NEEDS = 4 };                        /* recorded steps of the same kind before drift means anything */
static const uint64_t MAX_BYTES = 1ull << 30;    /* of recorder and copies together */

/* The observers of one runtime under construction, one per (op, output). */
struct plan {
    struct probe_obs *obs;
    uint32_t n;
    struct observe_bind *binds;
    uint32_t n_binds;
    uint64_t bytes;
};

const char *observe_cond_name(enum observe_cond c)
{
    static const char *const NAMES[] = {"", "nan", "inf", "allzero", "constant", "absmax", "drift", "rankdiff"};
    return NAMES[c];
}

bool observe_matches(const struct observe_spec *s, const struct op *o)
{
    if (s->index >= OP_MAX_OUT || o->out[s->index].buf == BUF_NONE || !plan_glob(s->glob, o->site))
        return false;
    return s->cond != OBSERVE_RANKDIFF || (o->out[s->index].layout == OP_REPLICATED && o->out[s->index].buf != BUF_FULL);
}

bool observe_may_stop(const struct engine *e)
{
    for (uint32_t i = 0; i < e->observe.n_binds; i++)
        if (e->observe.binds[i].spec->stop)
            return true;
    return false;
}

static void free_obs(struct probe_obs *obs, uint32_t n, uint32_t n_ranks)
{
    for (uint32_t i = 0; i < n; i++) {
        free(obs[i].ring);
        free(obs[i].values);
        for (uint32_t r = 0; obs[i].copied != NULL && r < n_ranks; r++)
            free(obs[i].copied[r].data);
        free(obs[i].copied);
    }
    free(obs);
}

static uint64_t all_ranks(uint32_t n)
{
    return n == 64 ? UINT64_MAX : (1ull << n) - 1;
}

/* The largest number of rows an output may have. */
static uint64_t most_rows(const struct runtime *rt, enum op_buf b)
{
    if (b == BUF_Y || b == BUF_LOGITS || b == BUF_FULL)
        return rt->cfg.max_logits;
    return b == BUF_MGU || b == BUF_MACT ? (uint64_t)rt->cfg.batch_tokens * rt->prog.hp->n_used : rt->cfg.batch_tokens;
}

static bool allocate(const struct runtime *rt, struct probe_obs *o, uint64_t *bytes)
{
    uint32_t n = rt->cfg.ranks;
    const struct op *op = runtime_op(rt, o->op);
    o->ring = calloc((size_t)PROBE_STEPS * n, sizeof *o->ring);
    *bytes += (uint64_t)PROBE_STEPS * n * (sizeof *o->ring + o->n_values * sizeof(float));
    if (o->bits & PROBE_VALUES)
        o->values = calloc((size_t)PROBE_STEPS * n * o->n_values, sizeof *o->values);
    if (o->ring == NULL || ((o->bits & PROBE_VALUES) && o->values == NULL))
        return false;
    if ((o->bits & PROBE_COPY) == 0)
        return true;
    o->copied = calloc(n, sizeof *o->copied);
    for (uint32_t r = 0; o->copied != NULL && r < n; r++) {
        if ((o->ranks >> r & 1) == 0)
            continue;
        struct probe_copied *c = &o->copied[r];
        c->cap = (size_t)(most_rows(rt, op->out[o->index].buf) * plan_ref_width(runtime_prog(rt, o->op), op, &op->out[o->index], r));
        *bytes += c->cap * sizeof(float);
        if (*bytes > MAX_BYTES)
            return true; /* the caller refuses */
        c->data = malloc((c->cap + 1) * sizeof(float));
        if (c->data == NULL)
            return false;
    }
    return o->copied != NULL;
}

/* What every op's outputs are looked at for, all specifications together. */
static void merge_specs(const struct engine *e, struct plan *pl)
{
    const struct observe *ob = &e->observe;
    const uint32_t n_ranks = e->rt->cfg.ranks;
    for (uint32_t i = 0; i < observe_n_ops(e); i++)
        for (uint8_t k = 0; k < OP_MAX_OUT; k++) {
            struct probe_obs o = {.op = (uint16_t)i, .index = k};
            for (const struct observe_spec *s = ob->specs; s != NULL; s = s->next) {
                if (s->index != k || !observe_matches(s, runtime_op(e->rt, i)))
                    continue;
                o.bits |= s->bits | PROBE_STATS;
                o.n_values = s->n_values > o.n_values ? s->n_values : o.n_values;
                o.ranks |= s->rank < 0 ? all_ranks(n_ranks) : (uint32_t)s->rank < n_ranks ? 1ull << s->rank : 0;
                if (s->cond != OBSERVE_NONE)
                    pl->binds[pl->n_binds++] = (struct observe_bind){.spec = (struct observe_spec *)s, .obs = &pl->obs[pl->n]};
            }
            if (o.bits == 0)
                continue;
            if (runtime_op(e->rt, i)->out[k].buf == BUF_FULL)
                o.ranks &= 1; /* one buffer for all */
            pl->obs[pl->n++] = o;
        }
}

static enum rs_result build(struct engine *e, struct plan *pl, struct rs_error *err)
{
    const struct observe *ob = &e->observe;
    uint32_t n_specs = 0;
    for (const struct observe_spec *s = ob->specs; s != NULL; s = s->next)
        n_specs++;
    *pl = (struct plan){.obs = calloc((size_t)observe_n_ops(e) * OP_MAX_OUT + 1, sizeof *pl->obs), .binds = calloc((size_t)observe_n_ops(e) * n_specs + 1, sizeof *pl->binds)};
    bool ok = pl->obs != NULL && pl->binds != NULL;
    if (ok)
        merge_specs(e, pl);
    for (uint32_t i = 0; i < pl->n && ok && pl->bytes <= MAX_BYTES; i++)
        ok = allocate(e->rt, &pl->obs[i], &pl->bytes);
    if (ok && pl->bytes <= MAX_BYTES)
        return RS_OK;
    free_obs(pl->obs, pl->n, e->rt->cfg.ranks);
    free(pl->binds);
    return ok ? error_set(err, RS_EUSAGE, "these taps would take more than %llu MiB; name fewer sites or ask for stats", (unsigned long long)(MAX_BYTES >> 20))
              : error_set(err, RS_ENOMEM, "out of memory for taps");
}

static struct probe_obs *find_obs(const struct observe *ob, uint16_t op, uint8_t index)
{
    for (uint32_t i = 0; i < ob->set.n_obs; i++)
        if (ob->obs[i].op == op && ob->obs[i].index == index)
            return &ob->obs[i];
    return NULL;
}

/* Put a plan in force: graphs of older generations go first, since their nodes point at the old observers. What was recorded is kept. */
static void adopt(struct engine *e, struct plan *pl, bool same_runtime)
{
    struct observe *ob = &e->observe;
    e->patches.now.generation++;
    e->rt->backend->ops->retire(e->rt->backend, e->patches.now.generation);
    for (uint32_t i = 0; i < pl->n && same_runtime; i++) {
        struct probe_obs *old = find_obs(ob, pl->obs[i].op, pl->obs[i].index);
        if (old == NULL)
            continue;
        struct probe_stats *ring = old->ring;
        old->ring = pl->obs[i].ring;
        pl->obs[i].ring = ring;
        if (old->n_values == pl->obs[i].n_values) {
            float *v = old->values;
            old->values = pl->obs[i].values;
            pl->obs[i].values = v;
        }
    }
    free_obs(ob->obs, ob->set.n_obs, ob->n_ranks);
    free(ob->binds);
    ob->obs = pl->obs;
    ob->binds = pl->binds;
    ob->n_binds = pl->n_binds;
    ob->bytes = pl->bytes;
    ob->n_ranks = e->rt->cfg.ranks;
    uint32_t n_main = 0;
    while (n_main < pl->n && pl->obs[n_main].op < e->rt->prog.n_ops)
        n_main++;
    ob->set = (struct probe_set){.n_obs = pl->n, .obs = pl->obs, .slot = ob->set.slot};
    ob->main_set = (struct probe_set){.n_obs = n_main, .obs = pl->obs};
    ob->next_set = (struct probe_set){.n_obs = pl->n - n_main, .obs = pl->obs + n_main, .base = e->rt->prog.n_ops};
}

static void drop_observers(struct observe *ob)
{
    free_obs(ob->obs, ob->set.n_obs, ob->n_ranks);
    free(ob->binds);
    ob->obs = NULL;
    ob->binds = NULL;
    ob->n_binds = 0;
    ob->bytes = 0;
    ob->set = ob->main_set = ob->next_set = (struct probe_set){.n_obs = 0};
    memset(ob->steps, 0, sizeof ob->steps);
}

enum rs_result observe_add(struct engine *e, const struct observe_spec *spec, uint32_t *id, uint32_t *n_sites, struct rs_error *err)
{
    struct observe *ob = &e->observe;
    if (!e->rt->backend->ops->inspects)
        return error_set(err, RS_EUNSUPPORTED, "the %s backend has no taps", e->rt->backend->ops->name);
    struct observe_spec *s = malloc(sizeof *s), **at = &ob->specs;
    uint32_t sites = 0, named = 0;
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a tap");
    *s = *spec;
    s->next = NULL;
    for (uint32_t i = 0; i < observe_n_ops(e); i++) {
        named += plan_glob(s->glob, runtime_op(e->rt, i)->site);
        sites += observe_matches(s, runtime_op(e->rt, i));
    }
    if (sites == 0) {
        enum rs_result rc = named == 0 ? runtime_no_site(e->rt, observe_n_ops(e), s->glob, err)
                            : s->cond == OBSERVE_RANKDIFF
                                ? error_set(err, RS_EUSAGE, "rankdiff compares tensors that every rank holds alike; what '%s' writes is not", s->glob)
                                : error_set(err, RS_EUSAGE, "what '%s' names has no output %u", s->glob, s->index);
        free(s);
        return rc;
    }
    s->id = ob->next_id + 1;
    while (*at != NULL)
        at = &(*at)->next;
    *at = s;
    struct plan pl;
    enum rs_result rc = build(e, &pl, err);
    if (rc != RS_OK) {
        *at = NULL;
        free(s);
        return rc;
    }
    adopt(e, &pl, true);
    *id = ++ob->next_id;
    *n_sites = sites;
    return RS_OK;
}

/* Free what is gone and arm the rest anew. */
static void prune(struct engine *e)
{
    struct observe_spec **at = &e->observe.specs;
    while (*at != NULL) {
        struct observe_spec *s = *at;
        if (!s->gone) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s);
    }
    e->observe.any_gone = false;
    struct plan pl;
    struct rs_error err;
    if (e->rt == NULL)
        return;
    if (build(e, &pl, &err) == RS_OK)
        adopt(e, &pl, true);
    else { /* no memory even for fewer: better none than observers whose specification is gone */
        e->patches.now.generation++;
        e->rt->backend->ops->retire(e->rt->backend, e->patches.now.generation);
        drop_observers(&e->observe);
    }
}

uint32_t observe_remove(struct engine *e, bool watches, uint32_t id, const char *glob)
{
    uint32_t n = 0;
    for (struct observe_spec *s = e->observe.specs; s != NULL; s = s->next) {
        bool mine = (s->cond != OBSERVE_NONE) == watches && (id != 0 ? s->id == id : glob == NULL || strcmp(s->glob, glob) == 0);
        if (!mine || s->gone)
            continue;
        s->gone = true;
        n++;
    }
    e->observe.any_gone |= n != 0;
    if (n != 0 && !brk_holding(e))
        prune(e);
    return n;
}

void observe_rebind(struct engine *e)
{
    struct plan pl;
    struct rs_error err;
    drop_observers(&e->observe);
    if (e->rt != NULL && e->brk.list != NULL && brk_room(e, &err) != RS_OK)
        brk_close(e);
    if (e->rt != NULL && e->rt->backend->ops->inspects && e->observe.specs != NULL && build(e, &pl, &err) == RS_OK)
        adopt(e, &pl, false);
}

void observe_close(struct engine *e)
{
    drop_observers(&e->observe);
    while (e->observe.specs != NULL) {
        struct observe_spec *s = e->observe.specs;
        e->observe.specs = s->next;
        free(s);
    }
}

struct probe_set *observe_begin(struct engine *e, bool prompt)
{
    struct observe *ob = &e->observe;
    if (ob->any_gone)
        prune(e);
    if (ob->set.n_obs == 0)
        return NULL;
    uint64_t step = e->steps + 1;
    ob->set.slot = (uint32_t)(step % PROBE_STEPS);
    ob->steps[ob->set.slot] = (struct observe_step){.step = step, .rows = e->batch.n_rows, .pos = (uint32_t)e->batch.pos[e->batch.n_rows - 1], .prompt = prompt};
    for (uint32_t i = 0; i < ob->next_set.n_obs; i++) /* whether the NextN block runs after this step is not known yet */
        memset(&ob->next_set.obs[i].ring[(size_t)ob->set.slot * ob->n_ranks], 0, ob->n_ranks * sizeof *ob->next_set.obs[i].ring);
    ob->main_set.slot = ob->next_set.slot = ob->set.slot;
    return &ob->main_set;
}

const struct probe_set *observe_next(struct engine *e)
{
    return e->observe.next_set.n_obs != 0 ? &e->observe.next_set : NULL;
}

uint32_t observe_n_ops(const struct engine *e)
{
    return e->rt->backend->ops->inspects_next ? runtime_n_ops(e->rt) : e->rt->prog.n_ops;
}

/* Mean rms over the other recorded steps of the same kind, or NAN. */
static double usual_rms(const struct observe *ob, const struct probe_obs *o, uint32_t rank)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < PROBE_STEPS; i++) {
        const struct probe_stats *s = &o->ring[(size_t)i * ob->n_ranks + rank];
        if (i == ob->set.slot || ob->steps[i].step == 0 || ob->steps[i].prompt != ob->steps[ob->set.slot].prompt || s->n == 0)
            continue;
        sum += probe_rms(s);
        n++;
    }
    return n >= DRIFT_NEEDS ? sum / n : NAN;
}

static bool holds(const struct observe *ob, const struct observe_bind *b, uint32_t rank, double *value)
{
    const struct probe_stats *s = &b->obs->ring[(size_t)ob->set.slot * ob->n_ranks + rank];
    double usual;
    *value = 0;
    if (s->n == 0)
        return false;
    switch (b->spec->cond) {
    case OBSERVE_NAN: return s->nan != 0;
    case OBSERVE_INF: return s->inf != 0;
    case OBSERVE_ALLZERO: return s->zeros == s->n;
    case OBSERVE_CONSTANT: return s->n > 1 && s->nan + s->inf == 0 && s->min == s->max;
    case OBSERVE_ABSMAX: *value = (double)s->absmax; return *value > b->spec->limit || s->nan + s->inf != 0;
    case OBSERVE_DRIFT:
        usual = usual_rms(ob, b->obs, rank);
        *value = fabs(probe_rms(s) / usual - 1);
        return isfinite(usual) && (*value > b->spec->limit || s->nan + s->inf != 0);
    case OBSERVE_RANKDIFF: return rank > 0 && s->hash != b->obs->ring[(size_t)ob->set.slot * ob->n_ranks].hash;
    case OBSERVE_NONE: break;
    }
    return false;
}

static void log_hit(struct engine *e, const struct observe_spec *s, uint32_t rank, const char *site, double value)
{
    char number[40] = "";
    if (s->cond == OBSERVE_ABSMAX || s->cond == OBSERVE_DRIFT)
        snprintf(number, sizeof number, " %.4g", value);
    engine_log(e, "warn", "watch %u: %s%s at %s, rank %u, step %llu", s->id, observe_cond_name(s->cond), number, site, rank, (unsigned long long)e->steps + 1);
}

struct observe_spec *observe_check(struct engine *e, uint32_t from, uint32_t to)
{
    struct observe *ob = &e->observe;
    struct observe_spec *stop = NULL;
    double value;
    for (uint32_t i = 0; i < ob->n_binds; i++) {
        const struct observe_bind *b = &ob->binds[i];
        if (b->obs->op < from || b->obs->op >= to)
            continue;
        for (uint32_t r = 0; r < ob->n_ranks; r++) {
            struct observe_spec *s = b->spec;
            if (s->gone || (b->obs->ranks >> r & 1) == 0 || (s->rank >= 0 && (uint32_t)s->rank != r) || !holds(ob, b, r, &value))
                continue;
            const char *site = runtime_op(e->rt, b->obs->op)->site;
            if (s->hit.count++ == 0) {
                s->hit = (struct observe_hit){.step = ob->steps[ob->set.slot].step, .count = 1, .op = b->obs->op, .rank = (uint16_t)r, .value = value,
                                              .stats = b->obs->ring[(size_t)ob->set.slot * ob->n_ranks + r]};
                snprintf(s->hit.site, sizeof s->hit.site, "%s", site);
            }
            if (s->stop && stop == NULL) {
                stop = s;
                ob->found = (struct observe_hit){.step = ob->steps[ob->set.slot].step, .op = b->obs->op, .rank = (uint16_t)r, .value = value};
                snprintf(ob->found.site, sizeof ob->found.site, "%s", site);
            }
            if (!s->stop && (s->hit.count & (s->hit.count - 1)) == 0) /* the 1st, 2nd, 4th ...: a flood says nothing more */
                log_hit(e, s, r, site, value);
        }
    }
    return stop;
}

json_t *observe_stats_json(const struct probe_stats *s)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s->hash);
    return json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:s}", "n", (json_int_t)s->n, "min", (double)s->min, "max", (double)s->max, "absmax",
                     (double)s->absmax, "mean", probe_mean(s), "rms", probe_rms(s), "zeros", (json_int_t)s->zeros, "nan", (json_int_t)s->nan, "inf",
                     (json_int_t)s->inf, "hash", hash);
}

json_t *observe_hit_json(const struct observe_spec *s)
{
    if (s->hit.count == 0)
        return json_null();
    return json_pack("{s:I,s:I,s:i,s:s,s:i,s:f,s:o}", "step", (json_int_t)s->hit.step, "count", (json_int_t)s->hit.count, "op", (int)s->hit.op, "site", s->hit.site,
                     "rank", (int)s->hit.rank, "value", s->hit.value, "stats", observe_stats_json(&s->hit.stats));
}

struct bad {
    uint64_t step;
    uint32_t op, rank;
    const char *reason, *site;
    const struct probe_stats *stats;
};

static void earlier(struct bad *best, struct bad b)
{
    if (best->reason == NULL || b.step < best->step || (b.step == best->step && b.op < best->op))
        *best = b;
}

json_t *observe_first_bad(const struct engine *e)
{
    const struct observe *ob = &e->observe;
    struct bad best = {.reason = NULL};
    for (uint32_t i = 0; i < ob->set.n_obs && e->rt != NULL; i++)
        for (uint32_t k = 0; k < PROBE_STEPS * ob->n_ranks; k++) {
            const struct probe_stats *s = &ob->obs[i].ring[k];
            uint64_t step = ob->steps[k / ob->n_ranks].step;
            const char *why = s->nan != 0 ? "nan" : s->inf != 0 ? "inf" : s->n != 0 && s->zeros == s->n ? "allzero" : NULL;
            const struct op *op = runtime_op(e->rt, ob->obs[i].op);
            if (step != 0 && why != NULL && !(why[0] == 'a' && op->out[ob->obs[i].index].layout != OP_REPLICATED)) /* a rank's part may well be zero */
                earlier(&best, (struct bad){step, ob->obs[i].op, k % ob->n_ranks, why, op->site, s});
        }
    for (const struct observe_spec *s = ob->specs; s != NULL; s = s->next)
        if (s->hit.count != 0)
            earlier(&best, (struct bad){s->hit.step, s->hit.op, s->hit.rank, observe_cond_name(s->cond), s->hit.site, &s->hit.stats});
    if (best.reason == NULL)
        return json_null();
    return json_pack("{s:I,s:i,s:s,s:i,s:s,s:o}", "step", (json_int_t)best.step, "op", (int)best.op, "site", best.site, "rank", (int)best.rank, "reason",
                     best.reason, "stats", observe_stats_json(best.stats));
}
