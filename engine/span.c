/* See span.h. */
#include "engine/span.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/hosts.h"
#include "engine/share.h"

enum { KEYS_STEP = 1024 }; /* sequences' keys are reserved in such steps, since asking every host takes longer than a step */

struct span {
    struct backend base;
    struct backend_ops ops; /* what base.ops points to: some are as the backend's of this process */
    struct hosts *hosts;
    struct share *own;
    const struct program *prog[2];
    uint32_t id, n_hosts, n_ranks, keys, max_keys, max_logits;
    const uint32_t *first;          /* own->span.first */
    uint64_t sent[2];               /* generation of the choices that the others have, by program */
    bool chosen[2];
    float *us[2];                   /* by program: [op][rank] of all */
    float *moved;                   /* [op] the shortest time that a host took to move data: nobody waited in that one */
    struct backend_reduce *reduces; /* [op][rank], or NULL where the backend has none */
    struct rs_rank_snapshot *seen;  /* [rank] */
    struct share_buf out;
    /* Logits that stay where they are: of the last step by row, whether all parts are here; and by host what it said, [max_logits], lists in `lists`. */
    bool *here;
    struct sample_row *says[COMM_MAX_HOSTS];
    struct share_buf lists[COMM_MAX_HOSTS];
    const struct batch *batch; /* of the last step */
};

static struct span *of(struct backend *b)
{
    return (struct span *)b;
}

static uint32_t host_of(const struct span *s, uint32_t rank)
{
    uint32_t h = 0;
    while (rank >= s->first[h + 1])
        h++;
    return h;
}

static enum rs_result check(struct span *s, struct rs_error *err)
{
    return hosts_look(s->hosts, err);
}

/* ---- steps ---- */

static void note_memory(struct backend *b, uint32_t rank, struct rs_rank_snapshot *o)
{
    *o = (struct rs_rank_snapshot){.gpu_util = NAN, .gpu_temp_c = NAN, .gpu_power_w = NAN, .mem_used = UINT64_MAX, .mem_total = UINT64_MAX};
    b->ops->memory(b, rank, &o->bytes_weights, &o->bytes_cache, &o->bytes_buffers);
    if (b->ops->device != NULL)
        b->ops->device(b, rank, o);
}

/* What one host's ranks say of a step: us[n_ops][n] of its own. */
static void take_report(struct span *s, uint32_t which, uint32_t host, const float *us, const float *move_us, const struct backend_reduce *reduces)
{
    const uint32_t first = s->first[host], n = s->first[host + 1] - first, n_ops = s->prog[which]->n_ops;
    for (uint32_t i = 0; i < n_ops; i++) {
        for (uint32_t r = 0; r < n; r++)
            s->us[which][(size_t)i * s->n_ranks + first + r] = us[(size_t)i * n + r];
        /* The first rank moved the data, and was clocked while it did. */
        float *mover = &s->us[which][(size_t)i * s->n_ranks + first];
        *mover = *mover > move_us[i] ? *mover - move_us[i] : 0;
        s->moved[i] = host == 0 || move_us[i] < s->moved[i] ? move_us[i] : s->moved[i];
        for (uint32_t r = 0; r < n && reduces != NULL && s->reduces != NULL && which == 0; r++)
            s->reduces[(size_t)i * s->n_ranks + first + r] = reduces[(size_t)i * n + r];
    }
}

/* Hosts have no common clock. A sum is complete everywhere at about the same time, so that moment stands for one; the ranks of a host keep the distances
 * that its own clocks have measured. */
static void align(struct span *s)
{
    for (uint32_t i = 0; s->reduces != NULL && i < s->prog[0]->n_ops; i++) {
        struct backend_reduce *r = s->reduces + (size_t)i * s->n_ranks;
        for (uint32_t h = 1; h < s->n_hosts; h++) {
            const double shift = r[0].ready - r[s->first[h]].ready;
            for (uint32_t k = s->first[h]; k < s->first[h + 1]; k++) {
                r[k].arrive += shift;
                r[k].ready = r[k].ready > 0 ? r[k].ready + shift : 0;
            }
        }
    }
}

static void own_report(struct span *s, uint32_t which)
{
    struct backend *b = s->own->backend;
    uint32_t n_ops;
    const float *us = which == 0 ? b->ops->op_us(b, &n_ops) : b->ops->next_us != NULL ? b->ops->next_us(b, &n_ops) : NULL;
    if (us != NULL)
        take_report(s, which, 0, us, s->own->span.move_us, b->ops->reduces != NULL ? b->ops->reduces(b) : NULL);
    for (uint32_t r = 0; r < s->own->n_ranks; r++)
        note_memory(b, r, &s->seen[r]);
}

/* What a host says of rows whose logits stay there. */
static bool take_rows(struct span *s, uint32_t host, const uint8_t *p, size_t len, uint32_t n)
{
    struct share_buf *t = &s->lists[host];
    struct share_row r;
    t->n = 0;
    if (!share_put(t, p, len)) /* all of it, headers too, so that it does not move any more */
        return false;
    for (size_t at = 0; n-- > 0;) {
        if (len - at < sizeof r)
            return false;
        memcpy(&r, t->p + at, sizeof r);
        at += sizeof r;
        if (r.row >= s->max_logits || r.says.n > (len - at) / sizeof *r.says.list)
            return false;
        r.says.list = (struct sample_item *)(void *)(t->p + at); /* headers and items are of 4 bytes and their multiples */
        s->says[host][r.row] = r.says;
        at += r.says.n * sizeof *r.says.list;
    }
    return true;
}

static enum rs_result far_report(struct span *s, uint32_t which, uint32_t host, const struct link_msg *m, struct rs_error *err)
{
    struct share_report h;
    const uint32_t n = s->first[host + 1] - s->first[host], n_ops = s->prog[which]->n_ops;
    const size_t us = (size_t)n_ops * n * sizeof(float), move = n_ops * sizeof(float), seen = n * sizeof *s->seen;
    memcpy(&h, m->data, m->len < sizeof h ? 0 : sizeof h);
    const size_t reduces = m->len >= sizeof h && h.with_reduces ? (size_t)n_ops * n * sizeof *s->reduces : 0;
    const size_t rows = sizeof h + us + move + seen + reduces;
    if (m->len < rows || h.n_ops != n_ops || h.n_ranks != n || !take_rows(s, host, m->data + rows, m->len - rows, h.n_rows))
        return error_set(err, RS_EINTERNAL, "host %s reports of another step", hosts_name(s->hosts, host));
    const uint8_t *p = m->data + sizeof h; /* frames lie at any address */
    struct share_buf *t = &s->out;
    t->n = 0;
    if (!share_put(t, p, us + move + seen + reduces))
        return error_set(err, RS_ENOMEM, "out of memory for a host's report");
    const uint8_t *q = t->p;
    take_report(s, which, host, (const float *)(const void *)q, (const float *)(const void *)(q + us),
                reduces != 0 ? (const struct backend_reduce *)(const void *)(q + us + move + seen) : NULL);
    memcpy(s->seen + s->first[host], q + us + move, seen);
    return RS_OK;
}

/* Others have ended this step, or never will. A failure on one side only leaves the hosts out of step with each other. */
static enum rs_result collect(struct span *s, uint32_t which, enum rs_result own, struct rs_error *err)
{
    enum rs_result rc = own;
    for (uint32_t h = 1; h < s->n_hosts; h++) {
        struct link_msg m;
        struct rs_error theirs;
        enum rs_result far = hosts_answer(s->hosts, h, &m, &theirs);
        if (far == RS_OK)
            far = own == RS_OK ? far_report(s, which, h, &m, &theirs) : RS_OK;
        if (far != RS_OK && rc == RS_OK) {
            rc = far;
            if (err != NULL)
                *err = theirs;
        }
        if ((far != RS_OK) != (own != RS_OK))
            hosts_lose(s->hosts, far != RS_OK ? &theirs : err);
    }
    return rc;
}

static enum rs_result span_step(struct backend *b, const struct backend_step *step, struct rs_error *err)
{
    struct span *s = of(b);
    const uint32_t which = step->prog == s->prog[0] ? 0 : 1;
    const bool choices = !s->chosen[which] || s->sent[which] != step->generation;
    struct rs_error e;
    enum rs_result rc = check(s, err);
    if (rc == RS_OK && choices)
        rc = share_choose(s->own, which, step->choices, err);
    if (rc == RS_OK)
        rc = share_pack_step(&s->out, s->own, which, step, choices, err);
    if (rc != RS_OK)
        return rc;
    rc = hosts_tell(s->hosts, 0, SHARE_STEP, s->id, s->out.p, s->out.n, err);
    if (rc != RS_OK)
        return rc;
    s->chosen[which] = true;
    s->sent[which] = step->generation;
    s->batch = step->batch;
    for (uint32_t i = 0; i < step->batch->n_logits; i++)
        s->here[i] = !share_away(s->own, step->batch, i);
    struct probe_set own = {.n_copies = step->probes != NULL ? step->probes->n_copies : 0, .copies = step->probes != NULL ? step->probes->copies : NULL};
    rc = share_step(s->own, which, step, own.n_copies != 0 ? &own : NULL, &e);
    if (hosts_comm(s->hosts)->failed)
        hosts_lose(s->hosts, &hosts_comm(s->hosts)->why);
    if (hosts_lost(s->hosts)) /* the message says who, and where its data was waited for if it was */
        return hosts_comm(s->hosts)->failed ? error_set(err, RS_EENGINE, "%s", hosts_comm(s->hosts)->why.msg) : check(s, err);
    if (rc == RS_OK)
        own_report(s, which);
    rc = collect(s, which, rc, &e);
    if (rc != RS_OK) {
        s->chosen[which] = false;
        if (err != NULL)
            *err = e;
        return hosts_lost(s->hosts) ? check(s, err) : rc;
    }
    for (uint32_t i = 0; i < s->prog[which]->n_ops; i++)
        for (uint32_t r = 0; r < s->n_ranks && s->moved[i] > 0; r++)
            s->us[which][(size_t)i * s->n_ranks + r] += s->moved[i];
    if (which == 0)
        align(s);
    return RS_OK;
}

static enum rs_result span_reserve(struct backend *b, uint32_t n_keys, struct rs_error *err)
{
    struct span *s = of(b);
    if (n_keys <= s->keys)
        return RS_OK;
    uint32_t want = (n_keys + KEYS_STEP - 1) / KEYS_STEP * KEYS_STEP;
    want = want < s->max_keys || n_keys > s->max_keys ? want : s->max_keys;
    enum rs_result rc = check(s, err);
    if (rc == RS_OK)
        rc = hosts_tell(s->hosts, 0, SHARE_RESERVE, s->id, &want, sizeof want, err);
    if (rc != RS_OK)
        return rc;
    struct rs_error mine;
    enum rs_result own = s->own->backend->ops->reserve(s->own->backend, want, &mine);
    rc = hosts_answers(s->hosts, err);
    if (own != RS_OK && rc == RS_OK && err != NULL)
        *err = mine;
    rc = rc != RS_OK ? rc : own;
    s->keys = rc == RS_OK ? want : s->keys;
    return rc;
}

static void span_retire(struct backend *b, uint64_t generation)
{
    struct span *s = of(b);
    s->own->backend->ops->retire(s->own->backend, generation);
    if (!hosts_lost(s->hosts) && hosts_tell(s->hosts, 0, SHARE_RETIRE, s->id, &generation, sizeof generation, NULL) == RS_OK)
        (void)hosts_answers(s->hosts, NULL); /* who does not answer is lost, and the next step says so */
}

static enum rs_result span_prepare(struct backend *b, const struct program *p, const struct choice *choices, struct rs_error *err)
{
    struct span *s = of(b);
    const uint32_t which = p == s->prog[0] ? 0 : 1;
    enum rs_result rc = check(s, err);
    if (rc == RS_OK)
        rc = share_choose(s->own, which, choices, err);
    s->chosen[which] = false; /* whatever comes of it, the others have others */
    struct backend *own = s->own->backend;
    if (rc != RS_OK || own->ops->prepare == NULL)
        return rc;
    rc = share_pack_choices(&s->out, s->own, which, err);
    if (rc == RS_OK)
        rc = hosts_tell(s->hosts, 0, SHARE_PREPARE, s->id, s->out.p, s->out.n, err);
    if (rc != RS_OK)
        return rc;
    struct rs_error mine, theirs;
    const enum rs_result done = own->ops->prepare(own, &s->own->prog[which], s->own->choices[which], &mine);
    if (hosts_comm(s->hosts)->failed)
        hosts_lose(s->hosts, &hosts_comm(s->hosts)->why);
    rc = hosts_answers(s->hosts, &theirs);
    if ((done != RS_OK) != (rc != RS_OK)) /* they agree on what to refuse; else they are out of step */
        hosts_lose(s->hosts, done != RS_OK ? &mine : &theirs);
    if ((done != RS_OK || rc != RS_OK) && err != NULL)
        *err = done != RS_OK ? mine : theirs;
    return done != RS_OK ? done : rc;
}

static bool span_replays(struct backend *b, const struct batch *batch)
{
    struct backend *own = of(b)->own->backend;
    return own->ops->replays == NULL || own->ops->replays(own, batch);
}

/* ---- looking into memory ---- */

/* Ask the host of a rank. at->rank: of all. out, if not NULL, gets out_bytes. */
static enum rs_result ask(struct span *s, struct share_at *at, const void *in, size_t in_bytes, void *out, size_t out_bytes, struct rs_error *err)
{
    const uint32_t host = host_of(s, at->rank);
    struct link_msg m;
    at->rank -= s->first[host];
    s->out.n = 0;
    enum rs_result rc = check(s, err);
    if (rc == RS_OK && (!share_put(&s->out, at, sizeof *at) || !share_put(&s->out, in, in_bytes)))
        rc = error_set(err, RS_ENOMEM, "out of memory for a question to host %s", hosts_name(s->hosts, host));
    if (rc == RS_OK)
        rc = hosts_tell(s->hosts, host, SHARE_AT, s->id, s->out.p, s->out.n, err);
    if (rc == RS_OK)
        rc = hosts_answer(s->hosts, host, &m, err);
    if (rc == RS_OK && m.len != out_bytes)
        rc = error_set(err, RS_EINTERNAL, "host %s sends %zu bytes, not %zu", hosts_name(s->hosts, host), m.len, out_bytes);
    if (rc == RS_OK && out_bytes != 0)
        memcpy(out, m.data, out_bytes);
    return rc;
}

static bool here(const struct span *s, uint32_t rank)
{
    return rank < s->first[1];
}

/* A row that stayed behind, on demand. If that fails a host is lost, and the next step says so. */
static const float *span_logits(struct backend *b, uint32_t i)
{
    struct span *s = of(b);
    struct backend *own = s->own->backend;
    const struct shard_range mine = share_part(s->own, 0);
    float *x = s->own->full + (size_t)i * s->own->vocab;
    if (s->batch == NULL || i >= s->batch->n_logits || s->here[i])
        return x;
    memcpy(x + mine.from, own->ops->logits(own, i) + mine.from, (mine.to - mine.from) * sizeof *x);
    for (uint32_t h = 1; h < s->n_hosts; h++) {
        const struct shard_range part = share_part(s->own, h);
        struct share_at at = {.what = SHARE_LOGITS, .rank = s->first[h], .row = i};
        (void)ask(s, &at, NULL, 0, x + part.from, (part.to - part.from) * sizeof *x, NULL);
    }
    s->here[i] = true;
    return x;
}

static bool span_likeliest(struct backend *b, uint32_t i, struct sample_row *out)
{
    struct span *s = of(b);
    struct backend *own = s->own->backend;
    if (s->batch == NULL || i >= s->batch->n_logits || !share_away(s->own, s->batch, i) || !own->ops->likeliest(own, i, out))
        return false;
    for (uint32_t h = 1; h < s->n_hosts; h++) {
        if (s->says[h][i].figures.nonfinite == UINT32_MAX)
            return false;
        sample_row_join(out, &s->says[h][i], s->batch->want[i].temp);
    }
    return true;
}

static enum rs_result span_read(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, float *dst, struct rs_error *err)
{
    struct span *s = of(b);
    struct share_at at = {.what = SHARE_READ, .rank = rank, .buf = buf, .row = row, .col = col, .n = n};
    if (rank >= s->n_ranks)
        return error_set(err, RS_EUSAGE, "no buffer %s on rank %u", op_buf_name(buf), rank);
    if (buf == BUF_FULL && row < s->max_logits && (uint64_t)col + n <= s->own->vocab) { /* only here is it whole */
        memcpy(dst, span_logits(b, row) + col, n * sizeof *dst);
        return RS_OK;
    }
    return here(s, rank) ? s->own->backend->ops->read(s->own->backend, rank, buf, row, col, n, dst, err)
                         : ask(s, &at, NULL, 0, dst, n * sizeof *dst, err);
}

static enum rs_result span_write(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, const float *src, struct rs_error *err)
{
    struct span *s = of(b);
    struct share_at at = {.what = SHARE_WRITE, .rank = rank, .buf = buf, .row = row, .col = col, .n = n};
    if (rank >= s->n_ranks)
        return error_set(err, RS_EUSAGE, "no buffer %s on rank %u", op_buf_name(buf), rank);
    return here(s, rank) ? s->own->backend->ops->write(s->own->backend, rank, buf, row, col, n, src, err)
                         : ask(s, &at, src, n * sizeof *src, NULL, 0, err);
}

static size_t block_floats(const struct span *s, bool index)
{
    const struct hparams *hp = s->prog[0]->hp;
    return (size_t)RUNTIME_BLOCK * (index ? hp->index_dim : hp->kv_lora + hp->rope);
}

static enum rs_result span_cache_get(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, float *dst, struct rs_error *err)
{
    struct span *s = of(b);
    struct share_at at = {.what = SHARE_CACHE_GET, .rank = rank, .layer = layer, .index = index, .block = block};
    if (rank >= s->n_ranks)
        return error_set(err, RS_EUSAGE, "no rank %u", rank);
    return here(s, rank) ? s->own->backend->ops->cache_get(s->own->backend, rank, layer, index, block, dst, err)
                         : ask(s, &at, NULL, 0, dst, block_floats(s, index) * sizeof *dst, err);
}

static enum rs_result span_cache_put(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, const float *src, struct rs_error *err)
{
    struct span *s = of(b);
    struct share_at at = {.what = SHARE_CACHE_PUT, .rank = rank, .layer = layer, .index = index, .block = block};
    if (rank >= s->n_ranks)
        return error_set(err, RS_EUSAGE, "no rank %u", rank);
    return here(s, rank) ? s->own->backend->ops->cache_put(s->own->backend, rank, layer, index, block, src, err)
                         : ask(s, &at, src, block_floats(s, index) * sizeof *src, NULL, 0, err);
}

static uint32_t span_pairs(struct backend *b, uint32_t rank)
{
    struct span *s = of(b);
    struct share_at at = {.what = SHARE_PAIRS, .rank = rank};
    uint32_t n = 0;
    if (here(s, rank))
        return s->own->backend->ops->pairs != NULL ? s->own->backend->ops->pairs(s->own->backend, rank) : 0;
    return ask(s, &at, NULL, 0, &n, sizeof n, NULL) == RS_OK ? n : 0;
}

/* ---- what is known of the last step ---- */

static const float *span_op_us(struct backend *b, uint32_t *n_ops)
{
    *n_ops = of(b)->prog[0]->n_ops;
    return of(b)->us[0];
}

static const float *span_next_us(struct backend *b, uint32_t *n_ops)
{
    struct span *s = of(b);
    *n_ops = s->prog[1] != NULL ? s->prog[1]->n_ops : 0;
    return s->own->backend->ops->next_us != NULL ? s->us[1] : NULL;
}

static const struct backend_reduce *span_reduces(struct backend *b)
{
    return of(b)->reduces;
}

static void span_memory(struct backend *b, uint32_t rank, uint64_t *weights, uint64_t *cache, uint64_t *buffers)
{
    const struct rs_rank_snapshot *o = &of(b)->seen[rank];
    *weights = o->bytes_weights;
    *cache = o->bytes_cache;
    *buffers = o->bytes_buffers;
}

static void span_device(struct backend *b, uint32_t rank, struct rs_rank_snapshot *out)
{
    const struct rs_rank_snapshot *o = &of(b)->seen[rank];
    out->gpu_util = o->gpu_util;
    out->gpu_temp_c = o->gpu_temp_c;
    out->gpu_power_w = o->gpu_power_w;
    out->mem_used = o->mem_used;
    out->mem_total = o->mem_total;
}

static bool span_dead(struct backend *b)
{
    struct backend *own = of(b)->own->backend;
    return hosts_lost(of(b)->hosts) || (own->ops->dead != NULL && own->ops->dead(own));
}

/* Those of this host stand for all: every host captures the same. */
static uint32_t span_graphs(struct backend *b, struct backend_graph *out, uint32_t cap)
{
    struct backend *own = of(b)->own->backend;
    return own->ops->graphs(own, out, cap);
}

/* ---- opening ---- */

static void span_close(struct backend *b)
{
    struct span *s = of(b);
    const bool told = s->id != 0 && !hosts_lost(s->hosts) && hosts_tell(s->hosts, 0, SHARE_CLOSE, s->id, NULL, 0, NULL) == RS_OK;
    share_close(s->own); /* at the same time as theirs: a communicator's end may wait for the others' */
    if (told)
        (void)hosts_answers(s->hosts, NULL);
    free(s->us[0]);
    free(s->us[1]);
    free(s->moved);
    free(s->reduces);
    free(s->seen);
    for (uint32_t h = 0; h < COMM_MAX_HOSTS; h++) {
        free(s->says[h]);
        free(s->lists[h].p);
    }
    free(s->here);
    free(s->out.p);
    free(s);
}

static const struct backend_ops SPAN_OPS = {
    .name = "hosts", .close = span_close, .step = span_step, .reserve = span_reserve, .logits = span_logits, .read = span_read, .write = span_write,
    .cache_get = span_cache_get, .cache_put = span_cache_put, .pairs = span_pairs, .op_us = span_op_us, .next_us = span_next_us, .reduces = span_reduces,
    .device = span_device, .dead = span_dead, .memory = span_memory, .prepare = span_prepare, .replays = span_replays, .retire = span_retire, .graphs = span_graphs,
};

static bool allocate(struct span *s, const struct program *nextn, bool reduces)
{
    const uint32_t n = s->prog[0]->n_ops, m = nextn != NULL ? nextn->n_ops : 0;
    s->us[0] = calloc((size_t)n * s->n_ranks, sizeof(float));
    s->us[1] = calloc((size_t)m * s->n_ranks + 1, sizeof(float));
    s->moved = calloc(n > m ? n : m, sizeof *s->moved);
    s->seen = calloc(s->n_ranks, sizeof *s->seen);
    s->here = calloc(s->max_logits, sizeof *s->here);
    bool ok = s->here != NULL;
    for (uint32_t h = 1; h < s->n_hosts && ok; h++)
        ok = (s->says[h] = calloc(s->max_logits, sizeof *s->says[h])) != NULL;
    s->reduces = reduces ? calloc((size_t)n * s->n_ranks, sizeof *s->reduces) : NULL;
    return ok && s->us[0] != NULL && s->us[1] != NULL && s->moved != NULL && s->seen != NULL && (!reduces || s->reduces != NULL);
}

/* All hosts load at the same time. */
static enum rs_result open_all(struct span *s, struct model *m, const struct runtime_config *cfg, const struct backend_limits *lim, const uint32_t *first,
                               struct pool *pool, enum krn_isa isa, struct rs_error *err)
{
    struct share_open_msg o = {.cfg = *cfg, .lim = *lim};
    memcpy(o.hash, m->hash, sizeof o.hash);
    memcpy(o.first, first, sizeof o.first);
    o.cfg.hosts = NULL;
    o.cfg.loading = o.lim.loading = NULL;
    o.lim.span = NULL;
    s->out.n = 0;
    s->id = hosts_new_id(s->hosts);
    enum rs_result rc = RS_OK;
    if (!share_put(&s->out, &o, sizeof o) || !share_put(&s->out, m->path, strlen(m->path) + 1))
        rc = error_set(err, RS_ENOMEM, "out of memory to tell other hosts of a model");
    if (rc == RS_OK)
        rc = check(s, err);
    if (rc == RS_OK)
        rc = hosts_tell(s->hosts, 0, SHARE_OPEN, s->id, s->out.p, s->out.n, err);
    if (rc != RS_OK)
        return rc;
    struct rs_error far;
    enum rs_result own = share_open(m, cfg, lim, hosts_comm(s->hosts), first, pool, isa, &s->own, err);
    rc = hosts_answers(s->hosts, &far);
    if (own == RS_OK && rc != RS_OK && err != NULL)
        *err = far;
    return own != RS_OK ? own : rc;
}

enum rs_result span_open(struct model *m, const struct runtime_config *cfg, const struct program *main_prog, const struct program *nextn,
                         const struct backend_limits *lim, struct pool *pool, enum krn_isa isa, struct backend **out, struct rs_error *err)
{
    const uint32_t n_hosts = hosts_count(cfg->hosts);
    uint32_t first[RS_MAX_RANKS + 1] = {0};
    if (m->made_up)
        return error_set(err, RS_EUNSUPPORTED, "a made-up model does not span hosts: write it to a file first (rankscope synth)");
    if (cfg->ranks < n_hosts)
        return error_set(err, RS_EUSAGE, "%u rank%s cannot be dealt to %u hosts: each needs one", cfg->ranks, cfg->ranks == 1 ? "" : "s", n_hosts);
    struct span *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for hosts");
    for (uint32_t h = 0; h < RS_MAX_RANKS + 1; h++)
        first[h] = h < n_hosts ? shard_deal(cfg->ranks, 1, n_hosts, h).from : cfg->ranks;
    s->ops = SPAN_OPS;
    s->base.ops = &s->ops;
    s->hosts = cfg->hosts;
    s->prog[0] = main_prog;
    s->prog[1] = nextn;
    s->n_hosts = n_hosts;
    s->n_ranks = cfg->ranks;
    s->max_keys = lim->max_keys;
    s->max_logits = lim->max_logits;
    hosts_ranks(cfg->hosts, first);
    enum rs_result rc = open_all(s, m, cfg, lim, first, pool, isa, err);
    if (rc == RS_OK) {
        s->first = s->own->span.first;
        s->ops.pads = s->own->backend->ops->pads;
        s->ops.likeliest = s->own->backend->ops->likeliest != NULL ? span_likeliest : NULL;
    }
    if (rc == RS_OK && !allocate(s, nextn, s->own->backend->ops->reduces != NULL))
        rc = error_set(err, RS_ENOMEM, "out of memory for hosts");
    if (rc != RS_OK) {
        span_close(&s->base);
        return rc;
    }
    for (uint32_t r = 0; r < s->own->n_ranks; r++)
        note_memory(s->own->backend, r, &s->seen[r]);
    *out = &s->base;
    return RS_OK;
}
