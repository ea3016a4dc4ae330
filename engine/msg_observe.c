/* Methods that look: stats, allreduce, ledger, program, health. */
#include <stdlib.h>
#include <string.h>

#include "engine/arith.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/hosts.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/reads.h"

static enum rs_result msg_stats(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    bool reset = false;
    args_bool(a, "reset", &reset);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    json_t *o = timing_stats_json(e->timing);
    json_object_update(m->reply, o);
    json_decref(o);
    json_object_set_new(m->reply, "steps", json_integer((json_int_t)e->steps));
    json_object_set_new(m->reply, "tokens", json_integer((json_int_t)e->tokens));
    json_object_set_new(m->reply, "tok_per_s", json_real(e->rate));
    json_object_set_new(m->reply, "spec", spec_stats_json(e));
    if (reset)
        timing_reset(e->timing);
    return RS_OK;
}

/* What allreduce=auto goes by; null where there is nothing to choose. */
static json_t *sweep_json(const struct engine *e)
{
    struct backend *b = e->rt->backend;
    const struct backend_sweep *s = b->ops->sweep != NULL ? b->ops->sweep(b) : NULL;
    if (s == NULL || s->n == 0)
        return json_null();
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n; i++)
        json_array_append_new(list, json_pack("{s:i,s:I,s:s,s:f,s:f}", "rows", (int)s->at[i].rows, "bytes", (json_int_t)s->at[i].bytes, "dtype",
                                              s->at[i].bf16 ? "bf16" : "f32", "flat_us", s->at[i].flat_us, "two_shot_us", s->at[i].two_shot_us));
    return json_pack("{s:{s:i,s:i},s:f,s:o}", "two_shot_from_rows", "f32", (int)s->from_rows[0], "bf16", (int)s->from_rows[1], "took_ms", s->took_ms,
                     "sweep", list);
}

static enum rs_result msg_allreduce(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *mode = NULL;
    args_str(a, "mode", &mode);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc == RS_OK && mode != NULL && strcmp(mode, "graph") != 0 && strcmp(mode, "eager") != 0)
        rc = error_set(err, RS_EUSAGE, "mode must be graph or eager, not '%.20s'", mode);
    if (rc != RS_OK)
        return rc;
    json_t *o = timing_allreduce_json(e->timing, mode != NULL ? mode[0] == 'g' : timing_mode(e->timing));
    json_object_update(m->reply, o);
    json_decref(o);
    json_object_set_new(m->reply, "simulated", json_boolean(engine_simulated(e)));
    json_t *ranks = json_object_get(m->reply, "ranks");
    for (uint32_t r = 0; r < json_array_size(ranks) && e->hosts != NULL; r++)
        json_object_set_new(json_array_get(ranks, r), "host", json_string(hosts_name(e->hosts, hosts_of_rank(e->hosts, r))));
    json_object_set_new(m->reply, "auto", sweep_json(e));
    return RS_OK;
}

static const char *why_name(enum choice_why w)
{
    static const char *const NAMES[] = {"default", "patch", "site", "preset", "fallback"};
    return NAMES[w];
}

/* What an op's products were made in, on the rank where that was least exact; null: it has none, or no step has run. */
static json_t *arith_json(const struct engine *e, const struct program *p, const struct op *o, const struct choice *choices)
{
    enum op_arith most = ARITH_NONE;
    for (uint32_t r = 0; r < p->n_ranks && e->steps > 0; r++) {
        const enum op_arith a = arith_used(e->rt->backend, p, o, choices, r);
        most = a > most ? a : most;
    }
    return arith_name(most) != NULL ? json_string(arith_name(most)) : json_null();
}

/* What ran for each op of a program and how long it took. us NULL: not timed here. base: number of its first op. */
static json_t *ledger_json(const struct engine *e, const struct program *p, const struct choice *choices, const float *us, bool graph, uint32_t base,
                           uint32_t limit)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_ops && base + i < limit; i++) {
        const struct choice *c = &choices[i];
        const struct backend_ops *ops = e->rt->backend->ops;
        const char *ran_as = ops->ran_as != NULL ? ops->ran_as(e->rt->backend, p, c) : c->impl->name;
        json_t *per = json_array();
        for (uint32_t r = 0; r < p->n_ranks; r++)
            json_array_append_new(per, us != NULL ? json_real((double)us[(size_t)i * p->n_ranks + r]) : json_null());
        json_array_append_new(list, json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:o,s:b,s:b,s:o,s:[]}", "op", (int)(base + i), "site", p->ops[i].site, "kind",
                                              op_kind_name(p->ops[i].kind), "impl", c->impl->name, "ran_as", ran_as, "why", why_name(c->why), "arith",
                                              arith_json(e, p, &p->ops[i], choices), "capturable", !c->impl->not_capturable, "in_graph",
                                              graph && !c->impl->not_capturable, "us", per, "absorbed"));
    }
    return list;
}

/* What each op of the main stack's last step read on every rank; ops that a neighbour's launch computed count there, and are named. */
static void ledger_add_reads(const struct engine *e, json_t *ops, const float *us)
{
    const struct program *p = &e->rt->prog;
    double *sum = calloc((size_t)p->n_ops * p->n_ranks, sizeof *sum);
    for (uint32_t r = 0; r < p->n_ranks && sum != NULL; r++)
        for (uint32_t i = 0, last = 0; i < p->n_ops; i++) {
            const bool own = engine_simulated(e) || us[(size_t)i * p->n_ranks + r] > 0;
            const uint32_t at = own ? i : reads_carrier(p, us, r, i, last);
            json_t *list = r == 0 && !own && at < json_array_size(ops) ? json_object_get(json_array_get(ops, at), "absorbed") : NULL;
            last = own ? i : last;
            sum[(size_t)at * p->n_ranks + r] += reads_bytes(p, &p->ops[i], r, &e->last_read);
            if (list != NULL && at != i)
                json_array_append_new(list, json_string(p->ops[i].site));
        }
    for (uint32_t i = 0; i < json_array_size(ops) && sum != NULL; i++) {
        json_t *bytes = json_array();
        for (uint32_t r = 0; r < p->n_ranks; r++)
            json_array_append_new(bytes, json_integer((json_int_t)sum[(size_t)i * p->n_ranks + r]));
        json_object_set_new(json_array_get(ops, i), "bytes", bytes);
    }
    free(sum);
}

/* The NextN block's, null where there is none; its last step followed the step of the others. */
static json_t *next_ledger_json(const struct engine *e, bool graph, uint32_t limit)
{
    const struct backend *b = e->rt->backend;
    uint32_t n;
    if (!e->rt->has_nextn)
        return json_null();
    const float *us = b->ops->next_us != NULL && e->spec.draft_steps != 0 ? b->ops->next_us((struct backend *)(uintptr_t)b, &n) : NULL;
    return ledger_json(e, &e->rt->nextn, e->rt->nextn_choices, us, graph, e->rt->prog.n_ops, limit);
}

static enum rs_result msg_ledger(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t limit = UINT32_MAX, n_ops;
    args_u32(a, "limit", 1, UINT32_MAX, &limit);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    const struct program *p = &e->rt->prog;
    const float *us = e->rt->backend->ops->op_us(e->rt->backend, &n_ops);
    bool graph = e->steps > 0 ? timing_was_graph(e->timing) : e->graph;
    json_t *ops = ledger_json(e, p, e->rt->choices, n_ops == p->n_ops ? us : NULL, graph, 0, limit);
    if (n_ops == p->n_ops && e->steps > 0)
        ledger_add_reads(e, ops, us);
    json_object_set_new(m->reply, "ops", ops);
    json_object_set_new(m->reply, "nextn", next_ledger_json(e, graph, limit));
    json_object_set_new(m->reply, "nextn_steps", json_integer((json_int_t)e->spec.draft_steps));
    json_object_set_new(m->reply, "step", json_integer((json_int_t)e->steps));
    json_object_set_new(m->reply, "mode", json_string(graph ? "graph" : "eager"));
    return RS_OK;
}

static json_t *ref_json(const struct program *p, const struct op_ref *r)
{
    static const char *const LAYOUTS[] = {"replicated", "sharded", "partial"};
    json_t *w = json_array();
    for (uint32_t k = 0; k < p->n_ranks; k++)
        json_array_append_new(w, json_integer(r->width != 0 ? r->width : p->width[r->buf][k]));
    return json_pack("{s:s,s:s,s:i,s:o}", "buffer", op_buf_name((enum op_buf)r->buf), "layout", LAYOUTS[r->layout], "col", (int)r->col, "width", w);
}

static enum rs_result msg_program(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *site = "*";
    args_str(a, "site", &site);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    const struct program *p = &e->rt->prog;
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *o = &p->ops[i];
        if (!plan_glob(site, o->site))
            continue;
        json_t *in = json_array(), *out = json_array(), *w = json_array();
        for (int k = 0; k < OP_MAX_IN; k++)
            if (o->in[k].buf != BUF_NONE)
                json_array_append_new(in, ref_json(p, &o->in[k]));
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (o->out[k].buf != BUF_NONE)
                json_array_append_new(out, ref_json(p, &o->out[k]));
        for (uint32_t k = 0; k < o->n_w; k++)
            if (plan_view(p, 0, o->w[k])->tensor != NULL)
                json_array_append_new(w, json_string(plan_view(p, 0, o->w[k])->tensor));
        json_array_append_new(list, json_pack("{s:i,s:s,s:s,s:i,s:s,s:o,s:o,s:o}", "op", (int)i, "site", o->site, "kind", op_kind_name(o->kind), "layer", (int)o->layer,
                                              "impl", e->rt->choices[i].impl->name, "in", in, "out", out, "weights", w));
    }
    json_object_set_new(m->reply, "ops", list);
    json_object_set_new(m->reply, "ranks", json_integer(p->n_ranks));
    json_object_set_new(m->reply, "allreduces", json_integer(p->n_allreduces));
    return RS_OK;
}

const struct msg_method MSG_OBSERVE[] = {
    {"stats", false, msg_stats}, {"allreduce", false, msg_allreduce}, {"ledger", false, msg_ledger},
    {"program", false, msg_program}, {NULL, false, NULL},
};
