/* numerics=invariant: what a row computes depends on the row alone. A prompt alone, in chunks, in a batch with others, and on other numbers of
 * workers gives the same bits; a generated row too. Works on the engine's inside, where batches can be made by hand. */
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/drill.h"
#include "engine/model.h"
#include "engine/now.h"
#include "engine/pace.h"
#include "engine/patch.h"
#include "engine/pool.h"
#include "engine/runtime.h"
#include "tests/tap.h"

enum { CAP = 1024, BLOCKS = 16 };

/* This test decides how many threads carry the workers: these stand in for engine/pace.c. */
static unsigned s_threads;

unsigned pace_threads(struct pace *p, unsigned most)
{
    (void)p;
    return s_threads != 0 && s_threads < most ? s_threads : most;
}

void pace_note(struct pace *p, unsigned most, double us, double waited_us)
{
    (void)p, (void)most, (void)us, (void)waited_us;
}

/* A worker that comes late to everything, -1 for none: whoever needed its results and did not wait for them reads those of the step before. */
static int s_late = -1;

void drill_run(const struct cpu_launch *l, const struct cpu_call *k, bool graph)
{
    enum { LATE_NS = 40000 };
    if (graph && (int)k->worker == s_late)
        for (uint64_t end = now_ns() + LATE_NS; now_ns() < end;)
            ;
    l->run(k);
}

void drill_step(struct cpu *c, const struct backend_step *s)
{
    (void)c, (void)s;
}

struct rig {
    struct model *m;
    struct runtime *rt;
    struct pool *pool;
    struct patch_store patches;
    struct batch b;
    int32_t token[CAP], pos[CAP], seg[CAP], logit_row[CAP];
    struct batch_seg segs[CAP];
    int32_t table[16][BLOCKS];
};

static bool rig_open(struct rig *g, uint32_t ranks, unsigned workers)
{
    struct rs_error err;
    struct runtime_config cfg;
    memset(g, 0, sizeof *g);
    bool ok = model_open(tap_source("models/tiny-glm5-q4.gguf"), &g->m, &err) == RS_OK && pool_open(workers, &g->pool, &err) == RS_OK &&
              patch_open(&g->patches, &err) == RS_OK;
    if (!ok) {
        tap_diag("%s", err.msg);
        return false;
    }
    cfg = (struct runtime_config){.ranks = ranks, .cache = KRN_CACHE_F16, .ctx = 16 * BLOCKS * RUNTIME_BLOCK, .max_seqs = 16, .batch_tokens = CAP, .max_logits = 64};
    ok = runtime_open(g->m, &cfg, &g->patches.now, g->pool, krn_cpu_best(), &g->rt, &err) == RS_OK;
    g->b = (struct batch){.token = g->token, .pos = g->pos, .seg = g->seg, .segs = g->segs, .logit_row = g->logit_row, .cap = CAP, .cap_segs = CAP, .cap_logits = CAP};
    for (int s = 0; s < 16; s++)
        for (int i = 0; i < BLOCKS; i++)
            g->table[s][i] = 1 + s * BLOCKS + i;
    return ok;
}

static void rig_close(struct rig *g)
{
    runtime_close(g->rt);
    pool_close(g->pool);
    patch_close(&g->patches);
    model_close(g->m);
}

static void clear(struct rig *g)
{
    g->b.n_rows = g->b.n_segs = g->b.n_logits = g->b.max_keys = 0;
}

/* Rows of sequence s: n tokens from position pos on; logits of the last if wanted. */
static void add(struct rig *g, int s, uint32_t pos, uint32_t n, enum batch_kind kind, bool logits)
{
    struct batch *b = &g->b;
    b->segs[b->n_segs] = (struct batch_seg){.row0 = b->n_rows, .n_rows = n, .pos0 = pos, .kind = kind, .table = g->table[s]};
    for (uint32_t i = 0; i < n; i++) {
        b->token[b->n_rows] = (int32_t)((pos + i) * 37 + (uint32_t)s * 101 + 20) % 1900;
        b->pos[b->n_rows] = (int32_t)(pos + i);
        b->seg[b->n_rows++] = (int32_t)b->n_segs;
    }
    b->n_segs++;
    if (logits)
        b->logit_row[b->n_logits++] = (int32_t)b->n_rows - 1;
    b->max_keys = pos + n > b->max_keys ? pos + n : b->max_keys;
}

static void run(struct rig *g, bool graph)
{
    struct rs_error err;
    struct backend *k = g->rt->backend;
    for (g->b.bucket = 1; g->b.bucket < g->b.n_rows; g->b.bucket *= 2)
        ;
    struct backend_step st = {.prog = &g->rt->prog, .choices = g->rt->choices, .batch = &g->b, .generation = 1, .graph = graph, .graph_guard = true};
    if (k->ops->reserve(k, 256, &err) != RS_OK || k->ops->step(k, &st, &err) != RS_OK)
        tap_ok(false, "step: %s", err.msg);
}

static void keep(struct rig *g, uint32_t i, float *out)
{
    memcpy(out, g->rt->backend->ops->logits(g->rt->backend, i), g->m->hp.vocab * sizeof *out);
}

/* Logits after a prompt of 45 tokens and after three generated tokens, sequence 0 alone. */
static void alone(struct rig *g, float *prompt, float *gen)
{
    clear(g);
    add(g, 0, 0, 45, BATCH_PROMPT, true);
    run(g, false);
    keep(g, 0, prompt);
    for (uint32_t i = 0; i < 3; i++) {
        clear(g);
        add(g, 0, 45 + i, 1, BATCH_GENERATED, true);
        run(g, true);
    }
    keep(g, 0, gen);
}

/* The same among others. */
static void together(struct rig *g, float *prompt, float *gen)
{
    clear(g);
    for (int s = 1; s <= 4; s++)
        add(g, s, 0, 7 + 9 * (uint32_t)s, BATCH_PROMPT, false);
    add(g, 0, 0, 45, BATCH_PROMPT, true);
    for (int s = 5; s <= 8; s++)
        add(g, s, 0, 3 + (uint32_t)s, BATCH_PROMPT, true);
    run(g, true);
    keep(g, 0, prompt);
    for (uint32_t i = 0; i < 3; i++) {
        clear(g);
        for (int s = 1; s <= 4; s++)
            add(g, s, 7 + 9 * (uint32_t)s + i, 1, BATCH_GENERATED, true);
        add(g, 0, 45 + i, 1, BATCH_GENERATED, true);
        add(g, 9, i * 20, 20, BATCH_PROMPT, false);
        run(g, i % 2 == 0);
    }
    keep(g, 4, gen);
}

/* The same in steps of so many rows that they are taken in pieces: the prompt lies across a border, the generated row behind it. */
static void crowded(struct rig *g, float *prompt, float *gen)
{
    clear(g);
    for (int s = 1; s <= 10; s++)
        add(g, s, 0, 49, BATCH_PROMPT, s % 3 == 0);
    add(g, 0, 0, 45, BATCH_PROMPT, true);
    for (int s = 11; s <= 15; s++)
        add(g, s, 0, 30, BATCH_PROMPT, true);
    run(g, true);
    keep(g, 3, prompt);
    for (uint32_t i = 0; i < 3; i++) {
        clear(g);
        for (int s = 1; s <= 11; s++)
            add(g, s, 0, 50, BATCH_PROMPT, s % 5 == 0);
        add(g, 0, 45 + i, 1, BATCH_GENERATED, true);
        add(g, 15, 30 + i, 1, BATCH_GENERATED, true);
        run(g, i % 2 == 0);
    }
    keep(g, 2, gen);
}

/* Sixteen sequences generate at once: rows enough for two workers to have some each to themselves. */
static void generate_many(struct rig *g, float *gen)
{
    clear(g);
    add(g, 0, 0, 45, BATCH_PROMPT, false);
    for (int s = 1; s < 16; s++)
        add(g, s, 0, 12 + (uint32_t)s, BATCH_PROMPT, s == 1);
    run(g, true);
    for (uint32_t i = 0; i < 3; i++) {
        clear(g);
        for (int s = 15; s > 0; s--)
            add(g, s, 12 + (uint32_t)s + i, 1, BATCH_GENERATED, s % 2 == 0);
        add(g, 0, 45 + i, 1, BATCH_GENERATED, true);
        run(g, i % 2 == 0);
    }
    keep(g, 7, gen);
}

static void check(uint32_t ranks)
{
    static struct rig g, h;
    if (!tap_ok(rig_open(&g, ranks, 2) && rig_open(&h, ranks, 3), "%u ranks: opened", ranks))
        return;
    size_t bytes = g.m->hp.vocab * sizeof(float);
    float *prompt = malloc(bytes), *gen = malloc(bytes), *x = malloc(bytes), *y = malloc(bytes);
    alone(&g, prompt, gen);

    alone(&h, x, y);
    tap_ok(memcmp(x, prompt, bytes) == 0 && memcmp(y, gen, bytes) == 0, "%u ranks: 3 workers give the bits of 2", ranks);
    for (s_threads = 1; s_threads <= 2; s_threads++) {
        alone(&h, x, y);
        tap_ok(memcmp(x, prompt, bytes) == 0 && memcmp(y, gen, bytes) == 0, "%u ranks: so do 3 workers on %u threads", ranks, s_threads);
    }
    s_threads = 0;

    together(&g, x, y);
    tap_ok(memcmp(x, prompt, bytes) == 0, "%u ranks: a prompt among 8 others", ranks);
    tap_ok(memcmp(y, gen, bytes) == 0, "%u ranks: a generated row among others and a prompt", ranks);
    crowded(&g, x, y);
    tap_ok(memcmp(x, prompt, bytes) == 0 && memcmp(y, gen, bytes) == 0, "%u ranks: both in steps of more than 512 rows", ranks);
    generate_many(&h, y);
    tap_ok(memcmp(y, gen, bytes) == 0, "%u ranks: a generated row among 15 of other sequences, 3 workers", ranks);
    for (s_late = -1; s_late < 2; s_late++) {
        generate_many(&g, y);
        tap_ok(memcmp(y, gen, bytes) == 0, "%u ranks: the same with 2 workers%s", ranks, s_late < 0 ? "" : s_late == 0 ? ", the first late" : ", the second late");
    }
    for (s_late = 0; s_late < 3; s_late++) {
        together(&h, x, y);
        tap_ok(memcmp(x, prompt, bytes) == 0 && memcmp(y, gen, bytes) == 0, "%u ranks: both with 3 workers of which worker %d is late", ranks, s_late);
    }
    s_late = -1;

    static const uint32_t CHUNKS[] = {1, 5, 16, 31};
    for (size_t c = 0; c < sizeof CHUNKS / sizeof CHUNKS[0]; c++) {
        for (uint32_t at = 0; at < 45; at += CHUNKS[c]) {
            clear(&g);
            add(&g, 0, at, 45 - at < CHUNKS[c] ? 45 - at : CHUNKS[c], BATCH_PROMPT, true);
            run(&g, c % 2 == 0);
        }
        keep(&g, 0, x);
        tap_ok(memcmp(x, prompt, bytes) == 0, "%u ranks: the prompt in chunks of %u", ranks, CHUNKS[c]);
    }
    free(prompt);
    free(gen);
    free(x);
    free(y);
    rig_close(&g);
    rig_close(&h);
}

int main(void)
{
    check(1);
    check(3);
    check(8);
    return tap_done();
}
