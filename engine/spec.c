/* Speculation. See spec.h. */
#include "engine/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/guard.h"
#include "engine/now.h"

enum {
    MAX_ROWS = 64,   /* of one verifying step in all sequences together: beyond, a step takes longer than guesses save */
    WATCH = 64,      /* first drafts that the alarm looks back at */
};

bool spec_arrays(struct spec *p, const struct runtime_config *c)
{
    if (!batch_alloc(&p->batch, c->batch_tokens, c->max_logits, BATCH_ALSO_WANT | BATCH_ALSO_FROM))
        return false;
    p->batch.wants = true; /* of every row the largest, no more */
    p->seq = calloc(c->max_logits, sizeof(struct seq *));
    return p->seq != NULL;
}

void spec_free_arrays(struct spec *p)
{
    batch_free(&p->batch);
    free(p->seq);
    p->seq = NULL;
}

static void clear_figures(struct spec *p)
{
    p->steps = p->tokens = p->target_steps = p->draft_steps = p->watched = 0;
    p->target_us = p->draft_us = p->recent = p->best = 0;
    p->alarm = p->told = p->crowded = false;
    memset(p->drafted, 0, sizeof p->drafted);
    memset(p->accepted, 0, sizeof p->accepted);
}

void spec_reset(struct engine *e)
{
    clear_figures(&e->spec);
    if (e->rt == NULL || !e->rt->has_nextn)
        e->spec.n = 0;
}

enum rs_result spec_set(struct engine *e, uint32_t n, struct rs_error *err)
{
    struct spec *p = &e->spec;
    if (n != 0 && e->rt == NULL)
        return error_set(err, RS_ESTATE, "spec: no model is open");
    if (n != 0 && !e->rt->has_nextn)
        return error_set(err, RS_ESTATE, "spec: this model has no NextN block to draft with");
    if (p->n == 0 && n != 0) {
        clear_figures(p);
        sched_rewind(e);
        kv_forget(&e->rt->kv);
    }
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        s->n_draft = s->n_draft < n ? s->n_draft : n;
    p->n = n;
    return RS_OK;
}

void spec_want(struct engine *e, uint32_t n)
{
    struct rs_error err;
    if (spec_set(e, n, &err) != RS_OK)
        engine_log(e, "warn", "%s", err.msg);
}

/* One more first draft was judged. The alarm compares with the best that this model has shown and ends when about half of that is back. */
static void watch(struct spec *p, bool right)
{
    p->watched++;
    p->recent += ((right ? 1 : 0) - p->recent) / (double)(p->watched < WATCH ? p->watched : WATCH);
    if (p->watched < WATCH)
        return;
    if (p->recent > p->best)
        p->best = p->recent;
    p->alarm = p->recent < p->best * 0.55 || p->recent < 0.05;
}

void spec_target(struct engine *e, double us)
{
    struct spec *p = &e->spec;
    bool decode = p->n != 0;
    for (uint32_t g = 0; g < e->batch.n_segs && decode; g++)
        decode = e->batch.segs[g].kind == BATCH_GENERATED;
    if (!decode)
        return;
    p->target_us += us;
    p->target_steps++;
}

void spec_verified(struct engine *e, struct seq *s, uint32_t drafts, uint32_t right)
{
    struct spec *p = &e->spec;
    s->spec_steps++;
    s->spec_drafted += drafts;
    s->spec_accepted += right;
    p->steps++;
    p->tokens += right + 1;
    for (uint32_t i = 0; i < drafts && i < SPEC_MAX; i++) {
        p->drafted[i]++;
        p->accepted[i] += i < right;
    }
    watch(p, right > 0);
}

/* ---- NextN steps ---- */

static void put_row(struct batch *b, int32_t token, uint32_t pos, uint32_t from)
{
    b->token[b->n_rows] = token;
    b->pos[b->n_rows] = (int32_t)pos;
    b->seg[b->n_rows] = (int32_t)b->n_segs - 1;
    b->from[b->n_rows++] = (int32_t)from;
    b->max_keys = pos + 1 > b->max_keys ? pos + 1 : b->max_keys;
}

static void want_logits(struct spec *p, struct seq *s)
{
    p->seq[p->batch.n_logits] = s;
    p->batch.logit_row[p->batch.n_logits++] = (int32_t)p->batch.n_rows - 1;
}

/* How many drafts s may get: there must be room for them in its arrays and in the cache, and in the next step. */
static uint32_t allowance(struct engine *e, struct seq *s, uint32_t each)
{
    uint32_t n = e->spec.n < each ? e->spec.n : each;
    if (s->n_out == 0 && s->n_cached + 1 != s->n)
        return 0;
    if (n > s->cap - s->n)
        n = s->cap - s->n;
    if (n > s->max_out - s->n_out) /* a draft behind the last token is never used */
        n = s->max_out - s->n_out;
    while (n > 0 && !sched_room(e, s, s->n + n))
        n--;
    return n;
}

/* Rows of the step that has just ended whose next token is known by now. */
static void follow(struct engine *e, struct seq *s, uint32_t each)
{
    struct batch *b = &e->spec.batch;
    uint32_t before = b->n_rows;
    for (uint32_t g = 0; g < e->batch.n_segs; g++) {
        const struct batch_seg *seg = &e->batch.segs[g];
        if (seg->table != s->table || seg->pos0 + 1 >= s->n)
            continue;
        uint32_t known = s->n - 1 - seg->pos0, n = seg->n_rows < known ? seg->n_rows : known;
        b->segs[b->n_segs++] = (struct batch_seg){.row0 = b->n_rows, .n_rows = n, .pos0 = seg->pos0, .kind = seg->kind, .table = s->table};
        for (uint32_t i = 0; i < n; i++)
            put_row(b, s->tok[seg->pos0 + i + 1], seg->pos0 + i, seg->row0 + i);
    }
    s->n_draft = 0;
    if (b->n_rows > before && s->n_cached + 1 == s->n && allowance(e, s, each) > 0)
        want_logits(&e->spec, s);
}

static bool run(struct engine *e)
{
    struct spec *p = &e->spec;
    struct backend *bk = e->rt->backend;
    struct batch *b = &p->batch;
    struct rs_error err;
    for (b->bucket = 1; b->bucket < b->n_rows; b->bucket *= 2)
        ;
    b->bucket = b->bucket < b->cap ? b->bucket : b->cap;
    struct backend_step st = {.prog = &e->rt->nextn, .choices = e->rt->nextn_choices, .batch = b, .generation = e->patches.now.generation,
                              .probes = PROBE_BUILT ? observe_next(e) : NULL, .graph = e->graph, .graph_guard = e->guard, .fast = e->fast};
    enum rs_result rc = bk->ops->reserve(bk, b->max_keys, &err);
    if (rc == RS_OK)
        rc = step_compute(e, &st, &err);
    if (rc == RS_OK) {
        p->draft_steps++;
        return true;
    }
    p->n = 0;
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        s->n_draft = 0;
    engine_log(e, "warn", "speculation is off: %s", err.msg);
    return false;
}

static int32_t largest(const float *x, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return (int32_t)at;
}

static int32_t best_of(struct engine *e, uint32_t row)
{
    struct backend *b = e->rt->backend;
    struct sample_row r = {.list = e->scratch[0].list};
    if (b->ops->likeliest != NULL && b->ops->likeliest(b, row, &r) && r.figures.nonfinite == 0)
        return r.likeliest;
    return largest(b->ops->logits(b, row), vocab_size(e->model->vocab));
}

/* Each wanted row's best token becomes a draft. Sequences that may have another get a row for it in the next NextN step. */
static void take_drafts(struct engine *e, uint32_t each)
{
    struct spec *p = &e->spec;
    struct batch *b = &p->batch;
    uint32_t n = b->n_logits;
    for (uint32_t i = 0; i < n; i++) {
        struct seq *s = p->seq[i];
        s->tok[s->n + s->n_draft] = best_of(e, i);
        s->kind[s->n + s->n_draft++] = BATCH_GENERATED;
    }
    b->n_rows = b->n_segs = b->n_logits = b->max_keys = 0;
    b->chained = true;
    for (uint32_t i = 0; i < n; i++) {
        struct seq *s = p->seq[i]; /* entries before i are rewritten, later ones are still to be read */
        uint32_t pos = s->n + s->n_draft - 2, from = (uint32_t)b->logit_row[i];
        if (s->n_draft >= allowance(e, s, each))
            continue;
        b->segs[b->n_segs++] = (struct batch_seg){.row0 = b->n_rows, .n_rows = 1, .pos0 = pos, .kind = BATCH_GENERATED, .table = s->table};
        put_row(b, s->tok[s->n + s->n_draft - 1], pos, from);
        want_logits(p, s);
    }
}

/* A step of many sequences takes longer with drafts than they save, so there are none; clients are told the 1st, 2nd, 4th ... time. */
static void tell_crowded(struct engine *e, uint32_t running, uint32_t each)
{
    struct spec *p = &e->spec;
    bool now = running != 0 && each == 0;
    if (now && !p->crowded) {
        p->times_crowded++;
        if ((p->times_crowded & (p->times_crowded - 1)) == 0)
            engine_log(e, "info", "no drafts while %u sequences run together; they come back when fewer do", running);
    }
    p->crowded = now;
}

void spec_draft(struct engine *e)
{
    struct spec *p = &e->spec;
    struct batch *b = &p->batch;
    uint32_t running = 0, rows;
    if (p->n == 0)
        return;
    if (p->alarm && !p->told)
        engine_log(e, "warn", "the acceptance of drafts fell to %.0f %% (it was up to %.0f %%): something may compute wrongly", p->recent * 100, p->best * 100);
    p->told = p->alarm;
    uint64_t t0 = now_us();
    b->n_rows = b->n_segs = b->n_logits = b->max_keys = 0;
    b->chained = false;
    for (uint32_t i = 0; i < e->n_run; i++)
        running += e->run[i]->grew;
    rows = MAX_ROWS < e->batch.cap ? MAX_ROWS : e->batch.cap;
    rows = rows < e->batch.cap_logits ? rows : e->batch.cap_logits;
    uint32_t each = running == 0 || rows < 2 * running ? 0 : rows / running - 1;
    tell_crowded(e, running, each);
    guard_enter();
    for (uint32_t i = 0; i < e->n_run; i++)
        if (e->run[i]->grew)
            follow(e, e->run[i], each);
    guard_leave();
    while (b->n_rows > 0 && run(e)) {
        guard_enter();
        take_drafts(e, each);
        guard_leave();
    }
    if (PROBE_BUILT && e->observe.n_binds != 0) /* a watchpoint of the block says so; it stops nothing, for there is no step to hold */
        observe_check(e, e->rt->prog.n_ops, observe_n_ops(e));
    double us = (double)(now_us() - t0);
    p->draft_us += us;
    for (uint32_t i = 0; i < e->n_run; i++)
        if (e->run[i]->grew)
            e->run[i]->draft_us += us / running;
}

/* ---- figures ---- */

static json_t *ratio(double a, double b)
{
    return b > 0 && isfinite(a / b) ? json_real(a / b) : json_null();
}

json_t *spec_seq_json(const struct engine *e, const struct seq *s)
{
    (void)e;
    if (s->spec_steps == 0)
        return json_null();
    json_t *o = json_object();
    json_object_set_new(o, "steps", json_integer(s->spec_steps));
    json_object_set_new(o, "drafted", json_integer(s->spec_drafted));
    json_object_set_new(o, "accepted", json_integer(s->spec_accepted));
    json_object_set_new(o, "acceptance", ratio(s->spec_accepted, s->spec_drafted));
    json_object_set_new(o, "accepted_per_step", ratio(s->spec_accepted, s->spec_steps));
    json_object_set_new(o, "target_ms_per_step", ratio(s->step_us / 1e3, s->steps));
    json_object_set_new(o, "draft_ms_per_step", ratio(s->draft_us / 1e3, s->steps));
    return o;
}

json_t *spec_stats_json(const struct engine *e)
{
    const struct spec *p = &e->spec;
    json_t *o = json_object(), *places = json_array();
    uint64_t drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < SPEC_MAX && p->drafted[i] != 0; i++) {
        drafted += p->drafted[i];
        accepted += p->accepted[i];
        json_array_append_new(places, ratio((double)p->accepted[i], (double)p->drafted[i]));
    }
    json_object_set_new(o, "drafts", json_integer(p->n));
    json_object_set_new(o, "steps", json_integer((json_int_t)p->steps));
    json_object_set_new(o, "drafted", json_integer((json_int_t)drafted));
    json_object_set_new(o, "accepted", json_integer((json_int_t)accepted));
    json_object_set_new(o, "acceptance", ratio((double)accepted, (double)drafted));
    json_object_set_new(o, "acceptance_by_place", places);
    json_object_set_new(o, "tokens_per_step", ratio((double)p->tokens, (double)p->steps));
    json_object_set_new(o, "target_ms_per_step", ratio(p->target_us / 1e3, (double)p->target_steps));
    json_object_set_new(o, "draft_ms_per_step", ratio(p->draft_us / 1e3, (double)p->target_steps));
    json_object_set_new(o, "recent", p->watched != 0 ? json_real(p->recent) : json_null());
    json_object_set_new(o, "best", p->watched >= WATCH ? json_real(p->best) : json_null());
    json_object_set_new(o, "alarm", json_boolean(p->alarm));
    json_object_set_new(o, "crowded", json_boolean(p->crowded));
    return o;
}
