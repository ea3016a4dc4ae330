/* Which rows go into the next step.
 *
 * Every running sequence that has its prompt behind it gets one row; what is left of the token budget goes to prompts, oldest first, in chunks.
 * A sequence takes cache blocks as it grows; when none is left, the youngest running sequence gives its blocks back and waits (its tokens are
 * kept and computed again later: a row is the same kind of row every time). */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/server.h"

void sched_free_arrays(struct engine *e)
{
    struct batch *b = &e->batch;
    free(b->token);
    free(b->pos);
    free(b->seg);
    free(b->segs);
    free(b->logit_row);
    free(e->row_seq);
    spec_free_arrays(&e->spec);
    free(e->scratch.logits);
    free(e->scratch.items);
    memset(b, 0, sizeof *b);
    e->row_seq = NULL;
    e->scratch = (struct sample_scratch){0};
}

enum rs_result sched_arrays(struct engine *e, struct rs_error *err)
{
    const struct runtime_config *c = &e->rt->cfg;
    sched_free_arrays(e);
    struct batch *b = &e->batch;
    b->cap = b->cap_segs = c->batch_tokens;
    b->cap_logits = c->max_logits;
    b->token = calloc(b->cap, sizeof *b->token);
    b->pos = calloc(b->cap, sizeof *b->pos);
    b->seg = calloc(b->cap, sizeof *b->seg);
    b->segs = calloc(b->cap_segs, sizeof *b->segs);
    b->logit_row = calloc(b->cap_logits, sizeof *b->logit_row);
    e->row_seq = calloc(b->cap_logits, sizeof(struct seq *));
    e->scratch.logits = calloc(e->model->hp.vocab, sizeof *e->scratch.logits);
    e->scratch.items = calloc(e->model->hp.vocab, sizeof *e->scratch.items);
    if (b->token != NULL && b->pos != NULL && b->seg != NULL && b->segs != NULL && b->logit_row != NULL && e->row_seq != NULL &&
        e->scratch.logits != NULL && e->scratch.items != NULL && spec_arrays(&e->spec, c))
        return RS_OK;
    sched_free_arrays(e);
    return error_set(err, RS_ENOMEM, "out of memory for the batch");
}

void sched_release(struct engine *e, struct seq *s)
{
    for (uint32_t i = 0; i < s->n_table; i++)
        kv_drop(&e->rt->kv, s->table[i]);
    s->n_table = s->n_hashed = s->n_cached = s->n_draft = 0;
    s->hash = 0;
}

void sched_restart(struct engine *e)
{
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        if (s->state == SEQ_RUNNING) {
            s->state = SEQ_WAITING;
            s->n_table = s->n_hashed = s->n_cached = s->n_draft = 0; /* the old pool is gone with its blocks */
            s->hash = 0;
        }
}

/* Take references on published blocks that hold the beginning of this sequence. The last token is always computed: its logits are wanted. */
static void find_prefix(struct engine *e, struct seq *s)
{
    struct kv *kv = &e->rt->kv;
    uint64_t h = 0;
    uint32_t at = 0;
    while (at + kv->block < s->n) {
        h = kv_hash(h, s->tok + at, s->kind + at, kv->block);
        int32_t b = kv_find(kv, h);
        if (b < 0)
            break;
        s->table[s->n_table++] = b;
        s->n_hashed++;
        s->hash = h;
        at += kv->block;
    }
    s->n_cached = at;
    kv->queries += s->n;
    kv->hits += at;
    if (s->n_out == 0)
        s->n_reused = at;
}

static struct seq *youngest_running(struct engine *e)
{
    struct seq *found = NULL;
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        if (s->state == SEQ_RUNNING)
            found = s;
    return found;
}

/* Blocks for rows up to position n - 1. Pre-empts younger sequences that are not yet in this batch; false: this one must wait. */
static bool grow(struct engine *e, struct seq *s, uint32_t n)
{
    uint32_t need = (n + e->rt->kv.block - 1) / e->rt->kv.block;
    while (s->n_table < need) {
        int32_t b = kv_alloc(&e->rt->kv);
        if (b >= 0) {
            s->table[s->n_table++] = b;
            continue;
        }
        struct seq *y = youngest_running(e);
        if (y == NULL || y == s || y->grew)
            return false;
        sched_release(e, y);
        y->state = SEQ_WAITING;
        y->preempted++;
    }
    return true;
}

bool sched_room(struct engine *e, struct seq *s, uint32_t n)
{
    uint32_t need = (n + e->rt->kv.block - 1) / e->rt->kv.block;
    while (s->n_table < need) {
        int32_t b = kv_alloc(&e->rt->kv);
        if (b < 0)
            return false;
        s->table[s->n_table++] = b;
    }
    return true;
}

static void add_rows(struct engine *e, struct seq *s, uint32_t n)
{
    struct batch *b = &e->batch;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = s->n_cached + i, row = b->n_rows;
        struct batch_seg *g = b->n_segs > 0 ? &b->segs[b->n_segs - 1] : NULL;
        bool continues = g != NULL && g->table == s->table && g->kind == (enum batch_kind)s->kind[at] && g->pos0 + g->n_rows == at;
        if (!continues) {
            g = &b->segs[b->n_segs++];
            *g = (struct batch_seg){.row0 = row, .pos0 = at, .kind = (enum batch_kind)s->kind[at], .table = s->table};
        }
        g->n_rows++;
        b->token[row] = s->tok[at];
        b->pos[row] = (int32_t)at;
        b->seg[row] = (int32_t)(b->n_segs - 1);
        b->n_rows++;
    }
    uint32_t last = s->n_cached + n;
    b->max_keys = last > b->max_keys ? last : b->max_keys;
    s->grew = true;
    for (uint32_t at = s->n; at <= last; at++) { /* the row at position at - 1 tells the token at `at`: the next one, or whether a draft is right */
        e->row_seq[b->n_logits] = s;
        b->logit_row[b->n_logits++] = (int32_t)(b->n_rows - 1 - (last - at));
    }
}

static uint32_t bucket(uint32_t n, uint32_t cap)
{
    uint32_t b = 1;
    while (b < n)
        b *= 2;
    return b < cap ? b : cap;
}

/* Rows for one sequence within what is left of the budget. */
static void serve(struct engine *e, struct seq *s)
{
    struct batch *b = &e->batch;
    uint32_t left = b->cap - b->n_rows, logits = b->cap_logits - b->n_logits, known = s->n - s->n_cached, want = known + s->n_draft;
    if (want > left || s->n_draft >= logits) /* drafts go first */
        want = known;
    uint32_t n = want < left ? want : left;
    if (n == 0 || (n >= known && logits == 0) || !grow(e, s, s->n_cached + n))
        return;
    s->n_draft = n > known ? n - known : 0;
    add_rows(e, s, n);
}

bool sched_build(struct engine *e)
{
    struct batch *b = &e->batch;
    if (e->model == NULL)
        return false;
    b->n_rows = b->n_segs = b->n_logits = b->max_keys = 0;
    uint32_t running = 0;
    for (struct seq *s = e->seqs; s != NULL; s = s->next) {
        s->grew = false;
        running += s->state == SEQ_RUNNING;
    }
    for (struct seq *s = e->seqs; s != NULL; s = s->next) /* those that wait for one token, drafts or not */
        if (s->state == SEQ_RUNNING && s->n - s->n_cached == 1)
            serve(e, s);
    for (struct seq *s = e->seqs; s != NULL && b->n_rows < b->cap; s = s->next) { /* prompts, oldest first */
        if (s->state == SEQ_RUNNING && !s->grew)
            serve(e, s);
        if (s->state != SEQ_WAITING || running >= e->rt->cfg.max_seqs)
            continue;
        uint32_t first = (s->n < b->cap ? s->n : b->cap) / e->rt->kv.block + 1;
        if (kv_available(&e->rt->kv) < first && running > 0)
            break; /* later ones must not overtake */
        s->state = SEQ_RUNNING;
        running++;
        if (s->t_start == 0)
            s->t_start = server_now_us();
        find_prefix(e, s);
        serve(e, s);
    }
    b->bucket = bucket(b->n_rows, b->cap);
    return b->n_rows != 0;
}

static void publish(struct kv *kv, struct seq *s)
{
    while ((s->n_hashed + 1) * kv->block <= s->n_cached) {
        uint32_t at = s->n_hashed * kv->block;
        s->hash = kv_hash(s->hash, s->tok + at, s->kind + at, kv->block);
        kv_publish(kv, s->table[s->n_hashed], s->hash);
        s->n_hashed++;
    }
}

void sched_accept(struct engine *e, struct seq *s, uint32_t n)
{
    s->n_cached = n;
    publish(&e->rt->kv, s);
}

void sched_commit(struct engine *e)
{
    struct batch *b = &e->batch;
    for (struct seq *s = e->seqs; s != NULL; s = s->next) {
        if (!s->grew)
            continue;
        for (uint32_t g = 0; g < b->n_segs; g++)
            if (b->segs[g].table == s->table && b->segs[g].pos0 + b->segs[g].n_rows > s->n_cached)
                s->n_cached = b->segs[g].pos0 + b->segs[g].n_rows;
        if (s->n_cached > s->n) /* drafts count once they are known to be right */
            s->n_cached = s->n;
        publish(&e->rt->kv, s);
    }
}
