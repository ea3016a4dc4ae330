/* Methods about taps and watchpoints: probe.tap, probe.untap, probe.list, probe.read, probe.watch, probe.unwatch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/tensor.h"

enum { MAX_VALUES = 4096 };

/* "rank": a number, or "all". */
bool msg_read_rank(struct engine *e, struct args *a, int *rank)
{
    json_t *v;
    *rank = -1;
    if (!args_any(a, "rank", &v) || (json_is_string(v) && strcmp(json_string_value(v), "all") == 0))
        return a->rc == RS_OK;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < e->rt->cfg.ranks) {
        *rank = (int)json_integer_value(v);
        return true;
    }
    if (a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "rank must be \"all\" or 0 to %u", e->rt->cfg.ranks - 1);
    return false;
}

bool msg_read_site(struct args *a, bool needed, const char *preset, char out[OP_SITE_MAX])
{
    const char *s = preset;
    bool given = args_str(a, "site", &s);
    if (needed)
        args_need(a, given, "site");
    if (s != NULL && strlen(s) >= OP_SITE_MAX && a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "a site pattern has at most %d characters", OP_SITE_MAX - 1);
    if (a->rc == RS_OK && s != NULL)
        snprintf(out, OP_SITE_MAX, "%s", s);
    return given;
}

static uint8_t bits_of(struct args *a, const char *what)
{
    static const struct { const char *name; uint8_t bits; } KINDS[] = {
        {"stats", PROBE_STATS}, {"hash", PROBE_STATS}, {"values", PROBE_STATS | PROBE_VALUES}, {"copy", PROBE_STATS | PROBE_COPY},
    };
    for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++)
        if (strcmp(KINDS[i].name, what) == 0)
            return KINDS[i].bits;
    if (a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "'what' must be stats, hash, values or copy, not '%.20s'", what);
    return 0;
}

static enum rs_result armed(struct engine *e, struct msg *m, uint32_t id, uint32_t sites)
{
    json_object_set_new(m->reply, "id", json_integer(id));
    json_object_set_new(m->reply, "sites", json_integer(sites));
    json_object_set_new(m->reply, "generation", json_integer((json_int_t)e->patches.now.generation));
    json_object_set_new(m->reply, "bytes", json_integer((json_int_t)e->observe.bytes));
    engine_announce(e);
    return RS_OK;
}

static enum rs_result msg_tap(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct observe_spec s = {.cond = OBSERVE_NONE};
    const char *what = "stats";
    uint32_t out = 0, n = 8, id, sites;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    msg_read_site(a, true, NULL, s.glob);
    args_str(a, "what", &what);
    args_u32(a, "n", 1, MAX_VALUES, &n);
    args_u32(a, "out", 0, OP_MAX_OUT - 1, &out);
    msg_read_rank(e, a, &s.rank);
    s.bits = bits_of(a, what);
    s.n_values = s.bits & PROBE_VALUES ? n : 0;
    s.index = (uint8_t)out;
    rc = args_end(a);
    if (rc == RS_OK)
        rc = observe_add(e, &s, &id, &sites, err);
    return rc == RS_OK ? armed(e, m, id, sites) : rc;
}

static enum rs_result parse_cond(const char *text, struct observe_spec *s, struct rs_error *err)
{
    static const struct { const char *name; enum observe_cond cond; bool limit; } CONDS[] = {
        {"nan", OBSERVE_NAN, false}, {"inf", OBSERVE_INF, false}, {"allzero", OBSERVE_ALLZERO, false}, {"constant", OBSERVE_CONSTANT, false},
        {"rankdiff", OBSERVE_RANKDIFF, false}, {"absmax", OBSERVE_ABSMAX, true}, {"drift", OBSERVE_DRIFT, true},
    };
    for (size_t i = 0; i < sizeof CONDS / sizeof CONDS[0]; i++) {
        size_t n = strlen(CONDS[i].name);
        if (strncmp(text, CONDS[i].name, n) != 0)
            continue;
        const char *rest = text + n + strspn(text + n, " ");
        char *end = NULL;
        s->cond = CONDS[i].cond;
        if (!CONDS[i].limit && *rest == '\0')
            return RS_OK;
        if (CONDS[i].limit && *rest == '>') {
            s->limit = strtod(rest + 1, &end);
            if (end != rest + 1 && end[strspn(end, " ")] == '\0' && s->limit >= 0)
                return RS_OK;
        }
    }
    return error_set(err, RS_EUSAGE, "the condition must be nan, inf, allzero, constant, rankdiff, absmax>X or drift>X, not '%.40s'", text);
}

static enum rs_result msg_watch(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct observe_spec s = {.bits = PROBE_STATS};
    const char *cond = NULL, *action = "log";
    uint32_t out = 0, id, sites;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    msg_read_site(a, false, "*", s.glob);
    args_need(a, args_str(a, "cond", &cond), "cond");
    args_str(a, "action", &action);
    args_u32(a, "out", 0, OP_MAX_OUT - 1, &out);
    msg_read_rank(e, a, &s.rank);
    s.index = (uint8_t)out;
    rc = args_end(a);
    if (rc == RS_OK && strcmp(action, "stop") != 0 && strcmp(action, "log") != 0)
        rc = error_set(err, RS_EUSAGE, "action must be stop or log, not '%.20s'", action);
    s.stop = action[0] == 's';
    if (rc == RS_OK)
        rc = parse_cond(cond, &s, err);
    if (rc == RS_OK)
        rc = observe_add(e, &s, &id, &sites, err);
    return rc == RS_OK ? armed(e, m, id, sites) : rc;
}

static enum rs_result disarm(struct engine *e, struct msg *m, struct args *a, bool watches, struct rs_error *err)
{
    uint32_t id = 0;
    char glob[OP_SITE_MAX] = "";
    bool by_id = args_u32(a, "id", 1, UINT32_MAX, &id), by_site = msg_read_site(a, false, NULL, glob);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    uint32_t n = observe_remove(e, watches, id, by_site ? glob : NULL);
    if (n == 0 && by_id)
        return error_set(err, RS_ENOTFOUND, "there is no %s %u", watches ? "watchpoint" : "tap", id);
    if (n == 0 && by_site)
        return error_set(err, RS_ENOTFOUND, "no %s is at '%.60s'", watches ? "watchpoint" : "tap", glob);
    json_object_set_new(m->reply, "removed", json_integer(n));
    json_object_set_new(m->reply, "generation", json_integer((json_int_t)e->patches.now.generation));
    engine_announce(e);
    return RS_OK;
}

static enum rs_result msg_untap(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    return disarm(e, m, a, false, err);
}

static enum rs_result msg_unwatch(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    return disarm(e, m, a, true, err);
}

static json_t *spec_json(const struct engine *e, const struct observe_spec *s)
{
    uint32_t sites = 0;
    for (uint32_t i = 0; e->rt != NULL && i < observe_n_ops(e); i++)
        sites += observe_matches(s, runtime_op(e->rt, i));
    json_t *o = json_pack("{s:i,s:s,s:i,s:i}", "id", (int)s->id, "site", s->glob, "out", (int)s->index, "sites", (int)sites);
    json_object_set_new(o, "rank", s->rank < 0 ? json_string("all") : json_integer(s->rank));
    if (s->cond == OBSERVE_NONE) {
        json_object_set_new(o, "what", json_string(s->bits & PROBE_COPY ? "copy" : s->bits & PROBE_VALUES ? "values" : "stats"));
        json_object_set_new(o, "n", json_integer(s->n_values));
        return o;
    }
    char cond[60];
    if (s->cond == OBSERVE_ABSMAX || s->cond == OBSERVE_DRIFT)
        snprintf(cond, sizeof cond, "%s>%g", observe_cond_name(s->cond), s->limit);
    else
        snprintf(cond, sizeof cond, "%s", observe_cond_name(s->cond));
    json_object_set_new(o, "cond", json_string(cond));
    json_object_set_new(o, "action", json_string(s->stop ? "stop" : "log"));
    json_object_set_new(o, "hits", json_integer((json_int_t)s->hit.count));
    json_object_set_new(o, "first", observe_hit_json(s));
    return o;
}

static enum rs_result msg_list(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_t *taps = json_array(), *watches = json_array();
    for (const struct observe_spec *s = e->observe.specs; s != NULL; s = s->next)
        if (!s->gone)
            json_array_append_new(s->cond == OBSERVE_NONE ? taps : watches, spec_json(e, s));
    json_object_set_new(m->reply, "taps", taps);
    json_object_set_new(m->reply, "watches", watches);
    json_object_set_new(m->reply, "observers", json_integer(e->observe.set.n_obs));
    json_object_set_new(m->reply, "bytes", json_integer((json_int_t)e->observe.bytes));
    json_object_set_new(m->reply, "first_bad", observe_first_bad(e));
    return rc;
}

static const char *layout_name(uint8_t l)
{
    static const char *const NAMES[] = {"replicated", "sharded", "partial"};
    return NAMES[l];
}

/* All ranks as one: rank 0's numbers where all hold the same, the parts' numbers together where each holds a part. A sum of partial tensors cannot be
 * had from statistics of the summands: null, see what=copy. */
static json_t *whole_json(const struct engine *e, const struct probe_obs *o, const struct op_ref *r, uint32_t slot)
{
    const struct probe_stats *s = &o->ring[(size_t)slot * e->rt->cfg.ranks];
    struct probe_stats t = {0};
    if (r->layout == OP_REPLICATED || e->rt->cfg.ranks == 1)
        return s->n != 0 ? observe_stats_json(s) : json_null();
    if (r->layout == OP_PARTIAL)
        return json_null();
    for (uint32_t k = 0; k < e->rt->cfg.ranks; k++)
        probe_merge(&t, &s[k]);
    return observe_stats_json(&t);
}

static json_t *record_json(const struct engine *e, const struct probe_obs *o, const struct op_ref *r, uint32_t slot)
{
    const struct observe_step *st = &e->observe.steps[slot];
    uint32_t n = e->rt->cfg.ranks, seen = 0;
    json_t *ranks = json_array();
    bool agree = true;
    const struct probe_stats *first = NULL;
    for (uint32_t k = 0; k < n; k++) {
        const struct probe_stats *s = &o->ring[(size_t)slot * n + k];
        if (s->n == 0)
            continue;
        json_t *x = observe_stats_json(s);
        json_object_set_new(x, "rank", json_integer(k));
        if (o->values != NULL) {
            json_t *v = json_array();
            for (uint32_t j = 0; j < o->n_values; j++) {
                float f = o->values[((size_t)slot * n + k) * o->n_values + j];
                json_array_append_new(v, isfinite(f) ? json_real((double)f) : json_null());
            }
            json_object_set_new(x, "values", v);
        }
        json_array_append_new(ranks, x);
        first = first == NULL ? s : first;
        agree &= s->hash == first->hash;
        seen++;
    }
    json_t *rec = json_pack("{s:I,s:i,s:i,s:b,s:o,s:o}", "step", (json_int_t)st->step, "rows", (int)st->rows, "pos", (int)st->pos, "prompt", st->prompt, "ranks", ranks,
                            "whole", whole_json(e, o, r, slot));
    json_object_set_new(rec, "ranks_agree", r->layout == OP_REPLICATED && seen > 1 ? json_boolean(agree) : json_null());
    return rec;
}

/* Recorded slots of the last n steps, oldest first. */
static uint32_t last_steps(const struct observe *ob, uint32_t n, uint32_t slots[PROBE_STEPS])
{
    uint64_t newest = 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < PROBE_STEPS; i++)
        newest = ob->steps[i].step > newest ? ob->steps[i].step : newest;
    for (uint64_t s = newest >= n ? newest - n + 1 : 1; s <= newest; s++)
        if (ob->steps[s % PROBE_STEPS].step == s)
            slots[found++] = (uint32_t)(s % PROBE_STEPS);
    return found;
}

static enum rs_result read_copy(struct engine *e, struct msg *m, const char *glob, int rank, struct rs_error *err)
{
    const struct observe *ob = &e->observe;
    const struct probe_obs *o = NULL;
    for (uint32_t i = 0; i < ob->set.n_obs; i++)
        if (ob->obs[i].copied != NULL && plan_glob(glob, runtime_op(e->rt, ob->obs[i].op)->site)) {
            if (o != NULL)
                return error_set(err, RS_EUSAGE, "'%s' names several copies; name one site", glob);
            o = &ob->obs[i];
        }
    if (o == NULL)
        return error_set(err, RS_ENOTFOUND, "no copy of '%s' is armed: tap it with what=copy", glob);
    const struct op *op = runtime_op(e->rt, o->op);
    const struct op_ref *r = &op->out[o->index];
    struct tensor part[RS_MAX_RANKS] = {{.data = NULL}}, t = {.data = NULL};
    enum rs_result rc = RS_OK;
    for (uint32_t k = 0; k < e->rt->cfg.ranks && rc == RS_OK; k++)
        if ((o->ranks >> k & 1) && (rank < 0 || (uint32_t)rank == k))
            rc = tensor_copied((enum op_buf)r->buf, &o->copied[k], &part[k], err);
    if (rc == RS_OK && rank < 0)
        rc = tensor_join(runtime_prog(e->rt, o->op), op, r, part, &t, err);
    else if (rc == RS_OK) {
        t = part[rank];
        part[rank].data = NULL;
    }
    for (uint32_t k = 0; k < e->rt->cfg.ranks; k++)
        tensor_free(&part[k]);
    if (rc != RS_OK)
        return rc;
    struct probe_stats s = tensor_stats_of(&t);
    json_object_set_new(m->reply, "site", json_string(op->site));
    json_object_set_new(m->reply, "layout", json_string(layout_name(r->layout)));
    json_object_set_new(m->reply, "rows", json_integer(t.rows));
    json_object_set_new(m->reply, "width", json_integer(t.width));
    json_object_set_new(m->reply, "stats", observe_stats_json(&s));
    json_object_set_new(m->reply, "step", json_integer((json_int_t)ob->steps[ob->set.slot].step));
    m->out = t.data;
    m->out_len = (size_t)t.rows * t.width * sizeof(float);
    return RS_OK;
}

static enum rs_result msg_read(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    char glob[OP_SITE_MAX];
    const char *what = "stats";
    uint32_t steps = 1, slots[PROBE_STEPS];
    int rank = -1;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    msg_read_site(a, false, "*", glob);
    args_str(a, "what", &what);
    args_u32(a, "steps", 1, PROBE_STEPS, &steps);
    msg_read_rank(e, a, &rank);
    bits_of(a, what);
    rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    if (strcmp(what, "copy") == 0)
        return read_copy(e, m, glob, rank, err);
    const struct observe *ob = &e->observe;
    uint32_t n = last_steps(ob, steps, slots);
    json_t *sites = json_array();
    for (uint32_t i = 0; i < ob->set.n_obs; i++) {
        const struct op *op = runtime_op(e->rt, ob->obs[i].op);
        const struct op_ref *r = &op->out[ob->obs[i].index];
        if (!plan_glob(glob, op->site))
            continue;
        json_t *records = json_array();
        for (uint32_t k = 0; k < n; k++)
            json_array_append_new(records, record_json(e, &ob->obs[i], r, slots[k]));
        json_array_append_new(sites, json_pack("{s:s,s:i,s:s,s:s,s:i,s:o}", "site", op->site, "op", (int)op->index, "kind", op_kind_name(op->kind), "layout",
                                               layout_name(r->layout), "out", (int)ob->obs[i].index, "records", records));
    }
    if (json_array_size(sites) == 0) {
        json_decref(sites);
        return error_set(err, RS_ENOTFOUND, "no armed site matches '%s'", glob);
    }
    json_object_set_new(m->reply, "sites", sites);
    return RS_OK;
}

const struct msg_method MSG_PROBE[] = {
    {"probe.tap", true, msg_tap},   {"probe.untap", true, msg_untap},     {"probe.list", false, msg_list}, {"probe.read", false, msg_read},
    {"probe.watch", true, msg_watch}, {"probe.unwatch", true, msg_unwatch}, {NULL, false, NULL},
};
