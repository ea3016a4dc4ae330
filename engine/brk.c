/* See brk.h. */
#include "engine/brk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/guard.h"
#include "engine/now.h"
#include "engine/server.h"
#include "engine/tensor.h"

void brk_close(struct engine *e)
{
    while (e->brk.list != NULL) {
        struct brk *b = e->brk.list;
        e->brk.list = b->next;
        free(b);
    }
    free(e->brk.row);
    e->brk.row = NULL;
}

enum rs_result brk_room(struct engine *e, struct rs_error *err)
{
    size_t widest = 1;
    for (int b = 0; b < BUF_COUNT; b++)
        for (uint32_t r = 0; r < e->rt->cfg.ranks; r++)
            widest = e->rt->prog.width[b][r] > widest ? e->rt->prog.width[b][r] : widest;
    float *p = realloc(e->brk.row, widest * sizeof *p);
    if (p == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for breakpoints");
    e->brk.row = p;
    return RS_OK;
}

bool brk_armed(const struct engine *e)
{
    return e->brk.list != NULL || e->brk.go != BRK_RUN;
}

bool brk_holding(const struct engine *e)
{
    return e->brk.reason[0] != '\0';
}

bool brk_allows(const char *method)
{
    static const char *const FINE[] = {
        "hello", "control", "info", "ping", "stop", "stats", "allreduce", "ledger", "program", "health", "audit", "patch.list", "probe.list", "probe.read", "watch.list",
        "probe.untap", "probe.unwatch", "break.add", "break.del", "break.list", "where", "step", "next", "continue", "tensor.read", "tensor.write", "cancel", "stream.get", "encode",
        "decode", "pieces", "session.new", "session.put", "session.get", "session.list", "hparams.check", "load", "requests",
    };
    for (size_t i = 0; i < sizeof FINE / sizeof FINE[0]; i++)
        if (strcmp(FINE[i], method) == 0)
            return true;
    return false;
}

json_t *brk_where_json(const struct engine *e)
{
    const struct brk_state *s = &e->brk;
    if (!brk_holding(e))
        return json_null();
    json_t *streams = json_array();
    for (const struct seq *q = e->seqs; q != NULL; q = q->next)
        if (q->grew && q->state == SEQ_RUNNING)
            json_array_append_new(streams, json_integer(q->id));
    const struct batch *b = &e->batch;
    json_t *o = json_pack("{s:s,s:I,s:i,s:i,s:i,s:i,s:o,s:b}", "reason", s->reason, "step", (json_int_t)e->steps + (s->op != NULL ? 1 : 0), "rank", (int)s->rank, "rows",
                          (int)b->n_rows, "pos", b->n_rows != 0 ? b->pos[b->n_rows - 1] : -1, "token", b->n_rows != 0 ? b->token[b->n_rows - 1] : -1, "streams",
                          streams, "in_step", s->in_walk);
    json_object_set_new(o, "site", s->op != NULL ? json_string(s->op->site) : json_null());
    json_object_set_new(o, "op", s->op != NULL ? json_integer(s->op->index) : json_null());
    json_object_set_new(o, "when", s->op != NULL ? json_string(s->after ? "after" : "before") : json_null());
    return o;
}

/* Serve messages until told to go on. */
static void hold(struct engine *e)
{
    const unsigned long failures = engine_json_failures(e);
    json_t *o = brk_where_json(e);
    char *text = engine_json_text(e, o, failures);
    server_event(e->server, -1, RS_EVENT_STOPPED, RS_OK, 0, text, NULL, 0);
    free(text);
    json_decref(o);
    engine_announce(e);
    e->brk.go = BRK_HOLD;
    while (e->brk.go == BRK_HOLD && !server_stopping(e->server))
        server_poll(e->server, -1);
    if (e->brk.go == BRK_HOLD)
        e->brk.go = BRK_RUN;
    e->brk.next_from = e->brk.op != NULL ? e->brk.op->layer : -1;
    e->brk.reason[0] = '\0';
    engine_announce(e);
}

static void hold_at(struct engine *e, const struct op *op, bool after, uint32_t rank)
{
    e->brk.op = op;
    e->brk.after = after;
    e->brk.in_walk = true;
    e->brk.rank = rank;
    guard_leave(); /* whoever holds the engine has no step time to lose */
    const uint64_t t0 = now_us();
    hold(e);
    e->brk.held_us += now_us() - t0;
    guard_enter();
    e->brk.op = NULL;
    e->brk.in_walk = false;
}

static void fill_vars(const struct engine *e, const struct op *op, double v[PRED_VAR_COUNT])
{
    const struct batch *b = &e->batch;
    bool prompt = false;
    for (uint32_t g = 0; g < b->n_segs; g++)
        prompt |= b->segs[g].kind == BATCH_PROMPT;
    v[PRED_STEP] = (double)e->steps + 1;
    v[PRED_POS] = b->pos[b->n_rows - 1];
    v[PRED_POS0] = b->pos[0];
    v[PRED_TOKEN] = b->token[b->n_rows - 1];
    v[PRED_ROWS] = b->n_rows;
    v[PRED_PROMPT] = prompt;
    v[PRED_LAYER] = op->layer;
    v[PRED_OP] = op->index;
}

/* Does the condition hold, on which rank? Before an op the tensor is its first input, after it its first output. */
static bool condition(struct engine *e, const struct brk *b, const struct op *op, uint32_t *rank)
{
    double v[PRED_VAR_COUNT] = {0};
    const struct op_ref *r = b->after ? &op->out[0] : &op->in[0];
    uint32_t first = b->rank < 0 ? 0 : (uint32_t)b->rank, last = b->rank < 0 ? e->rt->cfg.ranks - 1 : (uint32_t)b->rank;
    fill_vars(e, op, v);
    for (uint32_t k = first; k <= last && k < e->rt->cfg.ranks; k++) {
        v[PRED_RANK] = k;
        if (pred_needs_stats(&b->cond) && r->buf != BUF_NONE) {
            struct probe_stats s;
            tensor_stats(e->rt, &e->batch, op, r, k, e->brk.row, &s);
            const double x[] = {(double)s.min, (double)s.max, (double)s.absmax, probe_mean(&s), probe_rms(&s), (double)s.zeros, (double)s.nan, (double)s.inf, (double)s.n};
            memcpy(v + PRED_MIN, x, sizeof x);
        }
        *rank = k;
        if (pred_eval(&b->cond, v) != 0)
            return true;
    }
    return false;
}

static bool stepped(struct engine *e, const struct op *op, bool after)
{
    struct brk_state *s = &e->brk;
    if (s->go == BRK_STEP && after && --s->steps_left == 0) {
        snprintf(s->reason, sizeof s->reason, "step");
        return true;
    }
    if (s->go == BRK_NEXT && !after && op->layer != s->next_from) {
        snprintf(s->reason, sizeof s->reason, "next");
        return true;
    }
    return false;
}

void brk_hook(void *arg, const struct op *op, bool after)
{
    struct engine *e = arg;
    uint32_t rank = 0;
    bool stop = stepped(e, op, after);
    for (struct brk *b = e->brk.list; b != NULL; b = b->next)
        if (b->after == after && plan_glob(b->glob, op->site) && condition(e, b, op, &rank)) {
            b->hits++;
            snprintf(e->brk.reason, sizeof e->brk.reason, "break %u", b->id);
            stop = true;
        }
    const struct observe_spec *w = after && e->observe.n_binds != 0 ? observe_check(e, op->index, op->index + 1u) : NULL;
    if (w != NULL) {
        snprintf(e->brk.reason, sizeof e->brk.reason, "watch %u: %s", w->id, observe_cond_name(w->cond));
        rank = e->observe.found.rank;
        stop = true;
    }
    if (stop)
        hold_at(e, op, after, rank);
}

void brk_hold_after_step(struct engine *e, const struct observe_spec *w)
{
    const struct observe_hit *f = &e->observe.found;
    snprintf(e->brk.reason, sizeof e->brk.reason, "watch %u: %s at %s, rank %u, step %llu", w->id, observe_cond_name(w->cond), f->site, f->rank,
             (unsigned long long)f->step);
    e->brk.op = plan_find(&e->rt->prog, f->site);
    e->brk.after = true;
    e->brk.rank = f->rank;
    hold(e);
    e->brk.op = NULL;
}
