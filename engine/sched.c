/* Which rows go into the next step.
 *
 * Every running sequence that has its prompt behind it gets one row; what is left of the token budget goes to prompts, oldest first, in chunks.
 * A sequence takes cache blocks as it grows; when none is left, the youngest running sequence gives its blocks back and waits (its tokens are
 * kept and computed again later: a row is the same kind of row every time). Nobody overtakes: sequences start in the order in which they came,
 * and the oldest one always finds its blocks, so everything ends. Nothing here allocates but sched_arrays(). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/now.h"
#include "engine/server.h"

/* ---- queues ------------------------------------------------------------------------------------------------------------------------------ */

/* Before the first one that is younger: a sequence that was pre-empted goes back to where it came from. */
static void queue_put(struct seq_queue *q, struct seq *s, bool by_age)
{
    struct seq *after = q->last;
    while (by_age && after != NULL && after->id > s->id)
        after = after->q_prev;
    s->q_prev = after;
    s->q_next = after != NULL ? after->q_next : q->first;
    *(s->q_prev != NULL ? &s->q_prev->q_next : &q->first) = s;
    *(s->q_next != NULL ? &s->q_next->q_prev : &q->last) = s;
    q->n++;
}

static void queue_take(struct seq_queue *q, struct seq *s)
{
    *(s->q_prev != NULL ? &s->q_prev->q_next : &q->first) = s->q_next;
    *(s->q_next != NULL ? &s->q_next->q_prev : &q->last) = s->q_prev;
    s->q_next = s->q_prev = NULL;
    q->n--;
}

static void run_put(struct engine *e, struct seq *s)
{
    uint32_t i = e->n_run++;
    assert(i < e->cap_run);
    for (; i > 0 && e->run[i - 1]->id > s->id; i--)
        e->run[i] = e->run[i - 1];
    e->run[i] = s;
    s->state = SEQ_RUNNING;
}

static void run_take(struct engine *e, struct seq *s)
{
    uint32_t i = 0;
    while (e->run[i] != s)
        i++;
    memmove(e->run + i, e->run + i + 1, (e->n_run - i - 1) * sizeof *e->run);
    e->n_run--;
    if (e->starved == s)
        e->starved = NULL;
}

void sched_add(struct engine *e, struct seq *s)
{
    s->state = SEQ_WAITING;
    s->prev = e->seqs_last;
    s->next = NULL;
    *(e->seqs_last != NULL ? &e->seqs_last->next : &e->seqs) = s;
    e->seqs_last = s;
    queue_put(&e->wait, s, true);
    e->counts.submitted++;
}

/* Give its blocks back, the last one first: of a beginning that may be wanted again the end is the first to be overwritten. */
static void release(struct engine *e, struct seq *s)
{
    for (uint32_t i = s->n_table; i-- > 0;)
        kv_drop(&e->rt->kv, s->table[i]);
    s->n_table = s->n_hashed = s->n_cached = s->n_draft = 0;
    s->hash = 0;
}

void sched_end(struct engine *e, struct seq *s)
{
    assert(s->state != SEQ_DONE);
    if (s->state == SEQ_RUNNING)
        run_take(e, s);
    else
        queue_take(&e->wait, s);
    release(e, s);
    s->state = SEQ_DONE;
    queue_put(&e->done, s, false);
}

void sched_forget(struct engine *e, struct seq *s)
{
    assert(s->state == SEQ_DONE && s->n_table == 0);
    queue_take(&e->done, s);
    *(s->prev != NULL ? &s->prev->next : &e->seqs) = s->next;
    *(s->next != NULL ? &s->next->prev : &e->seqs_last) = s->prev;
    seq_free(s);
}

void sched_restart(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_run; i++) {
        struct seq *s = e->run[i];
        s->n_table = s->n_hashed = s->n_cached = s->n_draft = 0; /* the old pool is gone with its blocks */
        s->hash = 0;
        s->state = SEQ_WAITING;
        queue_put(&e->wait, s, true);
    }
    e->n_run = 0;
    e->starved = NULL;
}

void sched_rewind(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_run; i++)
        release(e, e->run[i]);
    sched_restart(e);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------------------------------- */

static void free_scratch(struct sample_scratch *s, unsigned n)
{
    for (unsigned i = 0; s != NULL && i < n; i++) {
        free(s[i].logits);
        free(s[i].items);
        free(s[i].list);
    }
    free(s);
}

static struct sample_scratch *make_scratch(unsigned n, uint32_t vocab, const struct krn_cpu_vec *vec)
{
    struct sample_scratch *s = calloc(n, sizeof *s);
    for (unsigned i = 0; s != NULL && i < n; i++) {
        s[i].vec = vec;
        s[i].logits = calloc(vocab, sizeof *s[i].logits);
        s[i].items = calloc(vocab, sizeof *s[i].items);
        s[i].list = calloc(vocab, sizeof *s[i].list);
        if (s[i].logits == NULL || s[i].items == NULL || s[i].list == NULL) {
            free_scratch(s, n);
            return NULL;
        }
    }
    return s;
}

void sched_free_arrays(struct engine *e)
{
    batch_free(&e->batch);
    free(e->row_seq);
    free(e->run);
    free(e->in_batch);
    free_scratch(e->scratch, e->n_scratch);
    free(e->picks);
    free(e->late);
    e->picks = NULL;
    e->late = NULL;
    e->n_late = 0;
    e->scratch = NULL;
    e->n_scratch = 0;
    e->row_seq = e->run = e->in_batch = NULL;
    e->n_run = e->cap_run = e->n_in_batch = 0;
    spec_free_arrays(&e->spec);
}

enum rs_result sched_arrays(struct engine *e, struct rs_error *err)
{
    const struct runtime_config *c = &e->rt->cfg;
    struct batch b;
    const bool got = batch_alloc(&b, c->batch_tokens, c->max_logits, BATCH_ALSO_WANT);
    uint32_t cap_run = c->max_seqs > e->n_run ? c->max_seqs : e->n_run;
    struct seq **row_seq = calloc(c->max_logits, sizeof(struct seq *)), **run = calloc(cap_run, sizeof(struct seq *));
    struct seq **in_batch = calloc(c->batch_tokens, sizeof(struct seq *));
    unsigned n_scratch = e->pool != NULL ? pool_size(e->pool) : 1;
    struct sample_scratch *scratch = make_scratch(n_scratch, e->model->hp.vocab, krn_cpu_vec(e->isa));
    struct sample_pick *picks = calloc(c->max_logits, sizeof *picks);
    struct deliver_late *late = calloc(c->max_logits, sizeof *late);
    struct spec spec = {0};
    if (!spec_arrays(&spec, c) || !got || row_seq == NULL || run == NULL || in_batch == NULL || scratch == NULL || picks == NULL || late == NULL) {
        spec_free_arrays(&spec);
        batch_free(&b);
        free(row_seq);
        free(run);
        free(in_batch);
        free_scratch(scratch, n_scratch);
        free(picks);
        free(late);
        return error_set(err, RS_ENOMEM, "out of memory for the batch");
    }
    uint32_t n_run = e->n_run;
    if (n_run != 0)
        memcpy(run, e->run, n_run * sizeof(struct seq *));
    sched_free_arrays(e);
    e->spec.batch = spec.batch;
    e->spec.seq = spec.seq;
    e->batch = b;
    e->row_seq = row_seq;
    e->run = run;
    e->n_run = n_run;
    e->cap_run = cap_run;
    e->in_batch = in_batch;
    e->scratch = scratch;
    e->n_scratch = n_scratch;
    e->picks = picks;
    e->late = late;
    return RS_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------------------------------------ */

/* Take references on published blocks that hold the beginning of this sequence. The last token is always computed: its logits are wanted. */
static void find_prefix(struct engine *e, struct seq *s)
{
    struct kv *kv = &e->rt->kv;
    uint64_t h = kv->era;
    uint32_t at = 0;
    s->hash = h;
    while (s->reuse && at + kv->block < s->n) {
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
    kv->queries += s->reuse ? s->n : 0;
    kv->hits += at;
    if (s->n_out == 0 && s->preempted == 0) {
        s->n_reused = at;
        e->counts.prompt_tokens += s->n;
        e->counts.cached_tokens += at;
    }
}

static void preempt(struct engine *e, struct seq *s)
{
    release(e, s);
    run_take(e, s);
    s->state = SEQ_WAITING;
    s->preempted++;
    queue_put(&e->wait, s, true);
    e->counts.preemptions++;
}

/* The youngest one that runs, is younger than s and is not yet in this batch. */
static struct seq *victim(struct engine *e, const struct seq *s)
{
    for (uint32_t i = e->n_run; i-- > 0 && e->run[i]->id > s->id;)
        if (!e->run[i]->grew)
            return e->run[i];
    return NULL;
}

/* Blocks for rows up to position n - 1, at the cost of younger sequences if need be; false: this one must wait for the next step. */
static bool grow(struct engine *e, struct seq *s, uint32_t n)
{
    uint32_t need = (n + e->rt->kv.block - 1) / e->rt->kv.block;
    while (s->n_table < need) {
        int32_t b = kv_alloc(&e->rt->kv);
        if (b >= 0) {
            s->table[s->n_table++] = b;
            continue;
        }
        struct seq *y = victim(e, s);
        if (y == NULL) {
            if (e->starved == NULL || e->starved->id > s->id)
                e->starved = s;
            return false;
        }
        preempt(e, y);
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

/* What the next token of a sequence depends on. */
static struct batch_want wanted(const struct seq *s)
{
    struct batch_want w = {.temp = s->sp.temp > 0 ? s->sp.temp : 0};
    w.whole = !sample_lists(&s->sp, &w.list);
    if (w.list + 1 < s->n_logprobs)
        w.list = s->n_logprobs - 1;
    return w;
}

static void add_rows(struct engine *e, struct seq *s, uint32_t n)
{
    struct batch *b = &e->batch;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = s->n_cached + i, row = b->n_rows;
        struct batch_seg *g = i > 0 ? &b->segs[b->n_segs - 1] : NULL;
        if (g == NULL || g->kind != (enum batch_kind)s->kind[at]) {
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
    s->n_batch = n;
    e->in_batch[e->n_in_batch++] = s;
    for (uint32_t at = s->n; at <= last; at++) { /* the row at position at - 1 tells the token at `at`: the next one, or whether a draft is right */
        e->row_seq[b->n_logits] = s;
        b->want[b->n_logits] = wanted(s);
        b->logit_row[b->n_logits++] = (int32_t)(b->n_rows - 1 - (last - at));
    }
}

/* Powers of two; where padding is computed too, from 64 on quarters of the way to the next. */
static uint32_t bucket(uint32_t n, uint32_t cap, bool close)
{
    uint32_t b = 1;
    while (b < n)
        b *= 2;
    if (b > 64 && close)
        b = (n + b / 8 - 1) / (b / 8) * (b / 8);
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

/* A sequence may start when the cache has room for all tokens that it has by now and for those that run to go on for a while: starting on less
 * would only mean giving the blocks back soon. Alone it may always start. */
static uint32_t wanted_blocks(const struct engine *e, const struct seq *s)
{
    uint32_t need = s->n / e->rt->kv.block + 1, reserve = e->n_run / 8 + 1;
    return need + reserve;
}

static bool may_start(const struct engine *e, const struct seq *s)
{
    return e->n_run == 0 || (e->n_run < e->rt->cfg.max_seqs && kv_available(&e->rt->kv) >= wanted_blocks(e, s));
}

void sched_why(const struct engine *e, const struct seq *s, char *buf, size_t size)
{
    const struct kv *kv = &e->rt->kv;
    buf[0] = '\0';
    if (s->state == SEQ_DONE)
        return;
    if (brk_holding(e))
        snprintf(buf, size, "the engine is stopped (%s)", e->brk.reason);
    else if (s->state == SEQ_RUNNING)
        snprintf(buf, size, "%s", s->grew ? "" : s == e->starved ? "no cache block is free; it comes first in the next step"
                                                                 : "the rows of the last step went to others");
    else if (s != e->wait.first)
        snprintf(buf, size, "behind stream %u, which came earlier", s->q_prev->id);
    else if (e->n_run >= e->rt->cfg.max_seqs)
        snprintf(buf, size, "%u sequences run, as many as allowed", e->n_run);
    else if (!may_start(e, s))
        snprintf(buf, size, "the cache is full: %u blocks wanted, %u free", wanted_blocks(e, s), kv_available(kv));
    else
        snprintf(buf, size, "its turn comes in one of the next steps");
}

static void start_waiting(struct engine *e)
{
    struct batch *b = &e->batch;
    uint64_t preemptions = e->counts.preemptions; /* once blocks had to be taken from someone, nobody starts in that step */
    while (e->wait.first != NULL && b->n_rows < b->cap && b->n_logits < b->cap_logits && may_start(e, e->wait.first)) {
        struct seq *s = e->wait.first;
        queue_take(&e->wait, s);
        run_put(e, s);
        s->grew = false;
        if (s->t_start == 0)
            s->t_start = now_us();
        find_prefix(e, s);
        serve(e, s);
        if (e->counts.preemptions != preemptions)
            break;
    }
}

bool sched_build(struct engine *e)
{
    struct batch *b = &e->batch;
    if (e->model == NULL)
        return false;
    b->n_rows = b->n_segs = b->n_logits = b->max_keys = e->n_in_batch = 0;
    b->wants = true;
    for (uint32_t i = 0; i < e->n_run; i++)
        e->run[i]->grew = false;
    struct seq *first = e->starved;
    e->starved = NULL;
    uint64_t preemptions = e->counts.preemptions;
    if (first != NULL)
        serve(e, first);
    for (uint32_t i = 0; i < e->n_run; i++) /* those that wait for one token, drafts or not; pre-emption takes from the end, so i stays right */
        if (!e->run[i]->grew && e->run[i]->n - e->run[i]->n_cached == 1)
            serve(e, e->run[i]);
    for (uint32_t i = 0; i < e->n_run && b->n_rows < b->cap; i++) /* prompts that are under way */
        if (!e->run[i]->grew)
            serve(e, e->run[i]);
    if (e->counts.preemptions == preemptions)
        start_waiting(e);
    b->bucket = bucket(b->n_rows, b->cap, e->rt->backend != NULL && e->rt->backend->ops->pads);
    return b->n_rows != 0;
}

bool sched_plenty(const struct engine *e)
{
    uint64_t rows = 0;
    if (e->rt == NULL || !e->rt->backend->ops->overlaps)
        return false;
    for (const struct seq *s = e->wait.first; s != NULL && rows < e->batch.cap; s = s->q_next)
        rows += s->n;
    return rows >= e->batch.cap;
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
    for (uint32_t i = 0; i < e->n_in_batch; i++) {
        struct seq *s = e->in_batch[i];
        s->n_cached += s->n_batch;
        if (s->n_cached > s->n) /* drafts count once they are known to be right */
            s->n_cached = s->n;
        publish(&e->rt->kv, s);
    }
}
