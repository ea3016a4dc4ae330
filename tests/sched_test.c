/* The scheduler without a model: rows "compute" a hash of all tokens up to their own into the cache, so that a row whose earlier rows are not its
 * own sequence's shows at once. Sequences come, end, are cancelled and lose their blocks at random. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/tap.h"

enum { VOCAB = 50 };

struct world {
    struct engine e;
    struct model model;
    struct runtime rt;
    uint64_t *content;   /* [blocks * block]: what was computed into each cache row */
    uint32_t turn, ended, cancelled;
    const char *broken;  /* what went wrong first */
    uint64_t rng;
};

static uint32_t rnd(struct world *w, uint32_t n)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return (uint32_t)(w->rng >> 33) % n;
}

static bool open_world(struct world *w, uint32_t ctx, uint32_t max_seqs, uint32_t batch, uint64_t seed)
{
    struct rs_error err;
    memset(w, 0, sizeof *w);
    w->rng = seed;
    w->model.hp.vocab = VOCAB;
    w->model.hp.context = ctx;
    w->rt.cfg = (struct runtime_config){.ranks = 1, .ctx = ctx, .max_seqs = max_seqs, .batch_tokens = batch, .max_logits = max_seqs};
    w->e.model = &w->model;
    w->e.rt = &w->rt;
    w->e.next_stream = 1;
    uint32_t blocks = ctx / RUNTIME_BLOCK + 1;
    w->content = calloc(blocks * RUNTIME_BLOCK, sizeof *w->content);
    return w->content != NULL && kv_open(&w->rt.kv, blocks, RUNTIME_BLOCK, &err) == RS_OK && sched_arrays(&w->e, &err) == RS_OK;
}

static void close_world(struct world *w)
{
    while (w->e.done.first != NULL)
        sched_forget(&w->e, w->e.done.first);
    sched_free_arrays(&w->e);
    kv_close(&w->rt.kv);
    free(w->content);
}

/* Prompts share beginnings: one of four stems. */
static struct seq *submit(struct world *w, uint32_t n, uint32_t out)
{
    struct seq *s = calloc(1, sizeof *s);
    s->id = w->e.next_stream++;
    s->cap = n + out;
    s->n = s->n_prompt = n;
    s->max_out = out;
    s->reuse = true;
    s->tok = malloc(s->cap * sizeof *s->tok);
    s->kind = calloc(s->cap, 1);
    s->table = calloc(s->cap / RUNTIME_BLOCK + 2, sizeof *s->table);
    uint32_t stem = rnd(w, 4), common = rnd(w, n + 1);
    for (uint32_t i = 0; i < n; i++)
        s->tok[i] = (int32_t)(i < common ? (stem * 7 + i) % VOCAB : rnd(w, VOCAB));
    sched_add(&w->e, s);
    return s;
}

static void broken(struct world *w, const char *what)
{
    if (w->broken == NULL)
        w->broken = what;
}

static uint64_t *row_at(struct world *w, const int32_t *table, uint32_t pos)
{
    return &w->content[(uint32_t)table[pos / RUNTIME_BLOCK] * RUNTIME_BLOCK + pos % RUNTIME_BLOCK];
}

/* Hash of a sequence's tokens and kinds up to and including pos. */
static uint64_t prefix_hash(const struct seq *s, uint32_t pos)
{
    return kv_hash(77, s->tok, s->kind, pos + 1);
}

static void check_refs(struct world *w)
{
    struct kv *kv = &w->rt.kv;
    uint32_t *refs = calloc(kv->n_blocks, sizeof *refs), held = 0;
    for (const struct seq *s = w->e.seqs; s != NULL; s = s->next) {
        if (s->state != SEQ_RUNNING && s->n_table != 0)
            broken(w, "a sequence that does not run holds blocks");
        for (uint32_t i = 0; i < s->n_table; i++)
            refs[s->table[i]]++;
    }
    for (uint32_t i = 1; i < kv->n_blocks; i++) {
        held += refs[i] != 0;
        if (refs[i] != kv->b[i].refs)
            broken(w, "a block's references are not the tables that name it");
    }
    if (held != kv->n_held || refs[0] != 0)
        broken(w, "blocks are held by nobody, or block 0 by someone");
    free(refs);
}

static void check_batch(struct world *w)
{
    struct batch *b = &w->e.batch;
    if (b->n_rows > b->cap || b->n_logits > b->cap_logits || b->bucket < b->n_rows || w->e.n_run > w->rt.cfg.max_seqs)
        broken(w, "a limit was passed");
    for (uint32_t i = 0; i + 1 < w->e.n_run; i++)
        if (w->e.run[i]->id >= w->e.run[i + 1]->id)
            broken(w, "running sequences are not in order of age");
    uint32_t rows = 0;
    for (uint32_t g = 0; g < b->n_segs; g++)
        for (uint32_t i = 0; i < b->segs[g].n_rows; i++, rows++)
            if (b->segs[g].row0 + i != rows || b->seg[rows] != (int32_t)g || b->pos[rows] != (int32_t)(b->segs[g].pos0 + i))
                broken(w, "rows and segments disagree");
    if (rows != b->n_rows)
        broken(w, "segments do not cover the rows");
}

/* "Compute" the batch, checking that each row's past is there. */
static void compute(struct world *w)
{
    for (uint32_t i = 0; i < w->e.n_in_batch; i++) {
        struct seq *s = w->e.in_batch[i];
        for (uint32_t p = s->n_cached; p < s->n_cached + s->n_batch; p++) {
            if (w->rt.kv.b[s->table[p / RUNTIME_BLOCK]].refs != 1 || w->rt.kv.b[s->table[p / RUNTIME_BLOCK]].hash != 0)
                broken(w, "a row was written into a block that others may read");
            *row_at(w, s->table, p) = prefix_hash(s, p);
        }
    }
    for (uint32_t i = 0; i < w->e.n_in_batch; i++) {
        struct seq *s = w->e.in_batch[i];
        for (uint32_t p = 0; p < s->n_cached + s->n_batch; p += p + 1 == s->n_cached + s->n_batch ? 1 : 1 + rnd(w, 5))
            if (*row_at(w, s->table, p) != prefix_hash(s, p))
                broken(w, "a cache row is not of this sequence's beginning");
    }
}

static void finish(struct world *w, struct seq *s)
{
    sched_end(&w->e, s);
    w->ended++;
    while (w->e.done.n > 8)
        sched_forget(&w->e, w->e.done.first);
}

static bool turn(struct world *w)
{
    struct mallinfo2 before = mallinfo2();
    bool work = sched_build(&w->e);
    struct mallinfo2 after = mallinfo2();
    if (before.uordblks != after.uordblks)
        broken(w, "building a batch allocates");
    if (!work && (w->e.n_run != 0 || w->e.wait.n != 0))
        broken(w, "there are sequences and no rows");
    check_batch(w);
    compute(w);
    uint32_t n = w->e.batch.n_logits;
    sched_commit(&w->e);
    for (uint32_t i = 0; i < n; i++) {
        struct seq *s = w->e.row_seq[i];
        if (s->n_cached != s->n)
            broken(w, "logits of a sequence whose rows are not all computed");
        s->tok[s->n] = (int32_t)rnd(w, VOCAB);
        s->kind[s->n++] = BATCH_GENERATED;
        s->n_out++;
    }
    check_refs(w);
    for (uint32_t i = 0; i < n; i++)
        if (w->e.row_seq[i]->n_out == w->e.row_seq[i]->max_out)
            finish(w, w->e.row_seq[i]);
    w->turn++;
    return work;
}

static void cancel_some(struct world *w)
{
    uint32_t k = w->e.n_run + w->e.wait.n;
    if (k == 0)
        return;
    k = rnd(w, k);
    struct seq *s = k < w->e.n_run ? w->e.run[k] : w->e.wait.first;
    w->cancelled++;
    finish(w, s);
}

static void test_random(uint32_t ctx, uint32_t max_seqs, uint32_t batch, uint32_t requests, uint32_t longest, bool cancel)
{
    struct world w;
    uint32_t sent = 0, bound = 0;
    bool opened = open_world(&w, ctx, max_seqs, batch, ctx * 2654435761u + batch);
    while (opened && (sent < requests || w.e.n_run + w.e.wait.n > 0) && w.broken == NULL && bound++ < 400000) {
        for (uint32_t k = rnd(&w, 4); k > 0 && sent < requests; k--, sent++) {
            uint32_t n = 1 + rnd(&w, longest);
            submit(&w, n, 1 + rnd(&w, (ctx < longest * 2 ? ctx : longest * 2) - n));
        }
        turn(&w);
        if (cancel && rnd(&w, 6) == 0)
            cancel_some(&w);
        if (cancel && rnd(&w, 400) == 0) { /* a new layout: caches are void */
            for (uint32_t i = 0; i < w.e.n_run; i++)
                for (uint32_t t = 0; t < w.e.run[i]->n_table; t++)
                    kv_drop(&w.rt.kv, w.e.run[i]->table[t]);
            sched_restart(&w.e);
            kv_forget(&w.rt.kv);
        }
    }
    tap_ok(opened && w.broken == NULL, "%u sequences, room for %u tokens, %u at a time, %u rows a step%s: %s", requests, ctx, max_seqs, batch,
           cancel ? ", some cancelled" : "", w.broken != NULL ? w.broken : "every row finds its own past");
    tap_eq_int(w.ended, requests, "all of them end (%u turns, %u pre-emptions, %u tokens found in the cache)", w.turn, (unsigned)w.e.counts.preemptions,
               (unsigned)w.rt.kv.hits);
    tap_eq_int(w.rt.kv.n_held, 0, "and no block is held");
    close_world(&w);
}

static void test_order(void)
{
    struct world w;
    open_world(&w, 64 * 16, 4, 64, 5);
    struct seq *s[8];
    for (int i = 0; i < 8; i++)
        s[i] = submit(&w, 20, 3);
    turn(&w);
    tap_ok(s[0]->state == SEQ_RUNNING && s[3]->state == SEQ_RUNNING && s[4]->state == SEQ_WAITING, "sequences start in the order in which they came");
    while (turn(&w))
        for (int i = 4; i < 8; i++)
            if (w.e.done.n < (uint32_t)i - 3 && s[i]->state != SEQ_WAITING)
                broken(&w, "more run than may");
    tap_ok(w.broken == NULL && w.ended == 8, "and more only start when others have ended");
    close_world(&w);
}

static void test_prefix(void)
{
    struct world w;
    open_world(&w, 4096, 8, 512, 9);
    struct seq *a = submit(&w, 100, 2), *b = submit(&w, 100, 2);
    memcpy(b->tok, a->tok, 100 * sizeof *a->tok);
    while (a->n_out < 1 && turn(&w))
        ;
    struct seq *c = submit(&w, 100, 2);
    memcpy(c->tok, a->tok, 100 * sizeof *a->tok);
    turn(&w);
    tap_eq_int(c->n_reused, 96, "a prompt that was computed before is found, but for the block of its last token");
    tap_ok(c->n_out == 1, "and its first token comes in the same step");
    while (turn(&w))
        ;
    close_world(&w);
}

int main(void)
{
    tap_plan(4 + 3 * 6);
    test_order();
    test_prefix();
    test_random(4096, 64, 128, 400, 60, false);
    test_random(512, 64, 64, 300, 100, false); /* short of blocks: pre-emption is the rule */
    test_random(512, 64, 64, 300, 100, true);
    test_random(160, 16, 7, 200, 70, true);
    test_random(16 * 2048, 1024, 1024, 3000, 20, true);
    test_random(64, 8, 16, 100, 60, true); /* one sequence may take everything */
    return tap_done();
}
