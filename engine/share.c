/* See share.h. */
#include "engine/share.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

uint32_t share_sizes(void)
{
    const size_t t[] = {sizeof(struct share_welcome), sizeof(struct share_open_msg), sizeof(struct share_at), sizeof(struct choice),
                        sizeof(struct rs_rank_snapshot), sizeof(struct backend_reduce), sizeof(struct share_row), SLOT_COUNT, OP_KIND_COUNT, BUF_COUNT};
    uint32_t h = RS_PROTOCOL;
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
        h = h * 31 + (uint32_t)t[i];
    return h;
}

static enum rs_result plan(struct share *s, struct model *m, const struct runtime_config *cfg, const struct backend_limits *lim, struct rs_error *err)
{
    const uint32_t me = s->span.comm->host;
    enum rs_result rc = shard_make(&m->hp, &m->w, cfg->ranks, cfg->split, &s->shard, err);
    if (rc != RS_OK)
        return rc;
    shard_block(&s->shard, s->span.first[me], s->span.first[me + 1]);
    s->n_ranks = s->shard.n_ranks;
    rc = plan_build(&m->hp, &m->w, &s->shard, PLAN_MAIN, lim->max_keys, &s->prog[0], err);
    if (rc == RS_OK && s->has_nextn)
        rc = plan_build(&m->hp, &m->w, &s->shard, PLAN_NEXTN, lim->max_keys, &s->prog[1], err);
    return rc;
}

static bool allocate(struct share *s, const struct backend_limits *lim)
{
    const uint32_t most = s->prog[0].n_ops > s->prog[1].n_ops ? s->prog[0].n_ops : s->prog[1].n_ops;
    const uint32_t hosts = s->span.comm->n_hosts;
    s->span.move_us = calloc(most, sizeof *s->span.move_us);
    s->moves = calloc((size_t)lim->max_logits * hosts, sizeof *s->moves);
    bool ok = s->span.move_us != NULL && s->moves != NULL;
    for (int i = 0; i < (s->has_nextn ? 2 : 1) && ok; i++)
        ok = (s->choices[i] = calloc(s->prog[i].n_ops, sizeof *s->choices[i])) != NULL;
    if (ok && s->span.comm->host == 0)
        ok = (s->full = malloc((size_t)lim->max_logits * s->vocab * sizeof *s->full)) != NULL;
    return ok;
}

enum rs_result share_open(struct model *m, const struct runtime_config *cfg, const struct backend_limits *lim, struct comm *comm, const uint32_t *first,
                          struct pool *pool, enum krn_isa isa, struct share **out, struct rs_error *err)
{
    struct share *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for this host's part");
    s->span = (struct backend_span){.comm = comm, .n_ranks = cfg->ranks};
    memcpy(s->span.first, first, sizeof s->span.first);
    s->has_nextn = m->hp.n_nextn != 0;
    s->vocab = m->hp.vocab;
    s->impls = runtime_impls(cfg->backend, &s->n_impls);
    struct backend_limits own = *lim;
    own.span = &s->span;
    enum rs_result rc = plan(s, m, cfg, lim, err);
    if (rc == RS_OK && !allocate(s, lim))
        rc = error_set(err, RS_ENOMEM, "out of memory for this host's part");
    if (rc == RS_OK)
        rc = runtime_backend(m, cfg, &s->shard, &s->prog[0], s->has_nextn ? &s->prog[1] : NULL, &own, pool, isa, &s->backend, err);
    if (rc == RS_OK && s->backend->ops->likeliest != NULL && comm->host != 0 && (s->list = malloc(s->vocab * sizeof *s->list)) == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for candidates");
    if (rc != RS_OK) {
        share_close(s);
        return rc;
    }
    *out = s;
    return RS_OK;
}

void share_close(struct share *s)
{
    if (s == NULL)
        return;
    if (s->backend != NULL)
        s->backend->ops->close(s->backend);
    plan_free(&s->prog[0]);
    plan_free(&s->prog[1]);
    shard_free(&s->shard);
    free(s->choices[0]);
    free(s->choices[1]);
    free(s->span.move_us);
    free(s->moves);
    free(s->full);
    free(s->list);
    free(s);
}

/* ---- running ---- */

bool share_away(const struct share *s, const struct batch *b, uint32_t i)
{
    return s->backend->ops->likeliest != NULL && b->wants && !b->want[i].whole;
}

struct shard_range share_part(const struct share *s, uint32_t host)
{
    const uint32_t n = s->span.n_ranks, *first = s->span.first;
    return (struct shard_range){shard_deal(s->vocab, 1, n, first[host]).from, shard_deal(s->vocab, 1, n, first[host + 1] - 1).to};
}

/* The ranks' parts of the vocabulary are joined on each host by the program; only the first process reads them, so the hosts' parts go to it alone. */
static bool bring_logits(struct share *s, const struct batch *batch)
{
    struct comm *c = s->span.comm;
    struct backend *b = s->backend;
    uint32_t n = 0;
    for (uint32_t i = 0; i < batch->n_logits; i++) {
        if (share_away(s, batch, i))
            continue;
        const struct shard_range own = share_part(s, c->host);
        const float *x = b->ops->logits(b, i) + own.from;
        for (uint32_t h = 1; h < c->n_hosts && c->host == 0; h++) {
            const struct shard_range r = share_part(s, h);
            s->moves[n++] = (struct comm_move){.host = h, .data = s->full + (size_t)i * s->vocab + r.from, .bytes = (r.to - r.from) * sizeof *s->full};
        }
        if (c->host == 0)
            memcpy(s->full + (size_t)i * s->vocab + own.from, x, (own.to - own.from) * sizeof *x);
        else
            s->moves[n++] = (struct comm_move){.host = 0, .send = true, .data = (void *)(uintptr_t)x, .bytes = (own.to - own.from) * sizeof *x};
    }
    return n == 0 || comm_run(c, s->moves, n);
}

enum rs_result share_step(struct share *s, uint32_t which, const struct backend_step *step, const struct probe_set *probes, struct rs_error *err)
{
    struct backend_step st = *step;
    struct batch whole = *step->batch;
    struct comm *c = s->span.comm;
    whole.wants &= s->backend->ops->likeliest != NULL;
    memset(s->span.move_us, 0, s->prog[which].n_ops * sizeof *s->span.move_us);
    st.batch = &whole;
    st.prog = &s->prog[which];
    st.choices = s->choices[which];
    st.probes = probes;
    st.hook = NULL;
    enum rs_result rc = s->backend->ops->step(s->backend, &st, err);
    if (rc == RS_OK && (c->failed || !bring_logits(s, step->batch)))
        rc = error_set(err, c->why.code, "%s", c->why.msg);
    return rc;
}

const float *share_logits(const struct share *s, uint32_t i)
{
    return s->full + (size_t)i * s->vocab;
}

/* ---- describing a step ---- */

struct step_head {
    uint32_t which, has_choices, has_from;
    uint64_t generation;
    uint32_t graph, guard, fast, chained;
    uint32_t n_rows, bucket, n_segs, n_logits, max_keys, wants;
};

struct step_seg {
    uint32_t row0, n_rows, pos0, kind, n_blocks;
};

struct step_choice {
    uint32_t impl;
    struct choice c; /* without its pointer */
};

bool share_put(struct share_buf *b, const void *data, size_t n)
{
    if (n > b->cap - b->n) {
        size_t cap = (b->n + n) * 2;
        uint8_t *p = realloc(b->p, cap);
        if (p == NULL)
            return false;
        b->p = p;
        b->cap = cap;
    }
    if (n != 0)
        memcpy(b->p + b->n, data, n);
    b->n += n;
    return true;
}

static size_t find_impl(const struct share *s, const struct op_impl *impl)
{
    size_t i = 0;
    while (i < s->n_impls && &s->impls[i] != impl)
        i++;
    return i;
}

enum rs_result share_choose(struct share *s, uint32_t which, const struct choice *choices, struct rs_error *err)
{
    for (uint32_t i = 0; i < s->prog[which].n_ops; i++)
        if (find_impl(s, choices[i].impl) == s->n_impls)
            return error_set(err, RS_EUNSUPPORTED, "%s: %s was loaded here, and other hosts do not have it", s->prog[which].ops[i].site, choices[i].impl->name);
    memcpy(s->choices[which], choices, s->prog[which].n_ops * sizeof *choices);
    return RS_OK;
}

static bool put_choices(struct share_buf *out, const struct share *s, const struct choice *choices, uint32_t n)
{
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++) {
        struct step_choice c = {.impl = (uint32_t)find_impl(s, choices[i].impl), .c = choices[i]};
        c.c.impl = NULL;
        ok = share_put(out, &c, sizeof c);
    }
    return ok;
}

enum rs_result share_pack_step(struct share_buf *out, const struct share *s, uint32_t which, const struct backend_step *step, bool choices, struct rs_error *err)
{
    const struct batch *b = step->batch;
    const struct step_head h = {.which = which, .has_choices = choices, .has_from = b->from != NULL, .generation = step->generation, .graph = step->graph,
                                .guard = step->graph_guard, .fast = step->fast, .chained = b->chained, .n_rows = b->n_rows, .bucket = b->bucket,
                                .n_segs = b->n_segs, .n_logits = b->n_logits, .max_keys = b->max_keys, .wants = b->wants};
    out->n = 0;
    bool ok = share_put(out, &h, sizeof h) && share_put(out, b->token, b->n_rows * sizeof *b->token) && share_put(out, b->pos, b->n_rows * sizeof *b->pos) &&
              share_put(out, b->seg, b->n_rows * sizeof *b->seg) && share_put(out, b->logit_row, b->n_logits * sizeof *b->logit_row) &&
              (b->from == NULL || share_put(out, b->from, b->n_rows * sizeof *b->from)) && (!b->wants || share_put(out, b->want, b->n_logits * sizeof *b->want));
    for (uint32_t i = 0; i < b->n_segs && ok; i++) {
        const struct batch_seg *g = &b->segs[i];
        const struct step_seg w = {g->row0, g->n_rows, g->pos0, (uint32_t)g->kind, (g->pos0 + g->n_rows + RUNTIME_BLOCK - 1) / RUNTIME_BLOCK};
        ok = share_put(out, &w, sizeof w) && share_put(out, g->table, w.n_blocks * sizeof *g->table);
    }
    if (ok && choices)
        ok = put_choices(out, s, s->choices[which], s->prog[which].n_ops);
    return ok ? RS_OK : error_set(err, RS_ENOMEM, "out of memory to tell other hosts of a step");
}

enum rs_result share_pack_choices(struct share_buf *out, const struct share *s, uint32_t which, struct rs_error *err)
{
    out->n = 0;
    bool ok = share_put(out, &which, sizeof which) && put_choices(out, s, s->choices[which], s->prog[which].n_ops);
    return ok ? RS_OK : error_set(err, RS_ENOMEM, "out of memory to tell other hosts of choices");
}

struct reader {
    const uint8_t *p;
    size_t left;
    bool bad;
};

static const uint8_t *take(struct reader *r, size_t n)
{
    const uint8_t *p = r->p;
    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return p;
}

static void take_into(struct reader *r, void *to, size_t n)
{
    const uint8_t *p = take(r, n);
    if (p != NULL && n != 0)
        memcpy(to, p, n);
}

/* Segments, whose tables may move while they grow: offsets first, pointers afterwards. */
static bool take_segs(struct reader *r, struct batch *b, struct share_tables *t)
{
    size_t at = 0;
    const struct reader again = *r;
    for (uint32_t i = 0; i < b->n_segs && !r->bad; i++) {
        struct step_seg w = {0};
        take_into(r, &w, sizeof w);
        take(r, w.n_blocks * sizeof *t->p);
        at += w.n_blocks;
    }
    if (r->bad)
        return true;
    if (at > t->cap) {
        int32_t *p = realloc(t->p, 2 * at * sizeof *p);
        if (p == NULL)
            return false;
        t->p = p;
        t->cap = 2 * at;
    }
    *r = again;
    at = 0;
    for (uint32_t i = 0; i < b->n_segs; i++) {
        struct step_seg w = {0};
        take_into(r, &w, sizeof w);
        take_into(r, t->p + at, w.n_blocks * sizeof *t->p);
        b->segs[i] = (struct batch_seg){.row0 = w.row0, .n_rows = w.n_rows, .pos0 = w.pos0, .kind = (enum batch_kind)w.kind, .table = t->p + at};
        at += w.n_blocks;
    }
    return true;
}

static void take_choices(struct reader *r, struct share *s, uint32_t which)
{
    for (uint32_t i = 0; i < s->prog[which].n_ops && !r->bad; i++) {
        struct step_choice c = {0};
        take_into(r, &c, sizeof c);
        if (c.impl >= s->n_impls) {
            r->bad = true;
            return;
        }
        s->choices[which][i] = c.c;
        s->choices[which][i].impl = &s->impls[c.impl];
    }
}

enum rs_result share_unpack_step(struct share *s, const uint8_t *data, size_t len, struct batch *b, struct share_tables *tables, uint32_t *which,
                                 struct backend_step *step, struct rs_error *err)
{
    struct reader r = {.p = data, .left = len};
    struct step_head h = {0};
    take_into(&r, &h, sizeof h);
    if (r.bad || h.which > (s->has_nextn ? 1u : 0u) || h.n_rows > b->cap || h.n_segs > b->cap_segs || h.n_logits > b->cap_logits)
        return error_set(err, RS_EINTERNAL, "a step that does not fit arrived from the first host");
    b->n_rows = h.n_rows;
    b->bucket = h.bucket;
    b->n_segs = h.n_segs;
    b->n_logits = h.n_logits;
    b->max_keys = h.max_keys;
    b->chained = h.chained != 0;
    take_into(&r, b->token, h.n_rows * sizeof *b->token);
    take_into(&r, b->pos, h.n_rows * sizeof *b->pos);
    take_into(&r, b->seg, h.n_rows * sizeof *b->seg);
    take_into(&r, b->logit_row, h.n_logits * sizeof *b->logit_row);
    b->from = h.has_from ? tables->from : NULL;
    if (h.has_from)
        take_into(&r, b->from, h.n_rows * sizeof *b->from);
    b->wants = h.wants != 0;
    if (b->wants)
        take_into(&r, b->want, h.n_logits * sizeof *b->want);
    if (!take_segs(&r, b, tables))
        return error_set(err, RS_ENOMEM, "out of memory for block tables");
    if (h.has_choices)
        take_choices(&r, s, h.which);
    if (r.bad || r.left != 0)
        return error_set(err, RS_EINTERNAL, "a step that is cut short arrived from the first host");
    *which = h.which;
    *step = (struct backend_step){.batch = b, .generation = h.generation, .graph = h.graph != 0, .graph_guard = h.guard != 0, .fast = h.fast != 0};
    return RS_OK;
}

enum rs_result share_unpack_choices(struct share *s, const uint8_t *data, size_t len, uint32_t *which, struct rs_error *err)
{
    struct reader r = {.p = data, .left = len};
    take_into(&r, which, sizeof *which);
    if (!r.bad && *which <= (s->has_nextn ? 1u : 0u))
        take_choices(&r, s, *which);
    else
        r.bad = true;
    return !r.bad && r.left == 0 ? RS_OK : error_set(err, RS_EINTERNAL, "choices that are cut short arrived from the first host");
}
