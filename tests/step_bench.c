/* What a step of the shipped model costs by its rows, and by kind of op; not a test. step_bench [WORKERS [STEPS [SEQUENCES]]].
 *
 * Without SEQUENCES rows are one sequence's: a token and drafts behind it. With it: a prompt of 512, one token each of 32 sequences, and one each of
 * SEQUENCES. Steps of every size take turns, so that a machine that slows down slows them all; of each op and of the whole step the least and the
 * median count, and of two speeds the median of their proportion within a turn. op times are sums over workers, a step is wall time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/backend.h"
#include "engine/model.h"
#include "engine/patch.h"
#include "engine/pool.h"
#include "engine/runtime.h"

enum { CAP = 64, SIZES = 4, POS = 100, SHAPES = SIZES + 2 };
enum { PROMPT = 512, MOST = 4096, MANY = 3, SEQ_BLOCKS = POS / RUNTIME_BLOCK + 1 };

static const uint32_t rows_of[SHAPES] = {1, 2, 4, 8, 1, 2}; /* the last two: of the NextN block */

struct rig {
    struct model *m;
    struct runtime *rt;
    struct pool *pool;
    struct patch_store patches;
    struct batch b;
    int32_t token[MOST], pos[MOST], seg[MOST], logit_row[MOST], from[MOST], table[MOST * SEQ_BLOCKS];
    struct batch_seg segs[MOST];
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(enum rs_result rc, const struct rs_error *err)
{
    if (rc == RS_OK)
        return;
    fprintf(stderr, "step_bench: %s\n", err->msg);
    exit(1);
}

static double run(struct rig *g, bool nextn)
{
    struct rs_error err;
    const struct backend_step st = {.prog = nextn ? &g->rt->nextn : &g->rt->prog, .choices = nextn ? g->rt->nextn_choices : g->rt->choices, .batch = &g->b,
                                    .generation = 1, .graph = true, .graph_guard = true};
    double t0 = now_us();
    must(g->rt->backend->ops->step(g->rt->backend, &st, &err), &err);
    return now_us() - t0;
}

/* One step; a prompt when it begins at 0. Returns microseconds. */
static double step(struct rig *g, bool nextn, uint32_t pos, uint32_t n)
{
    struct batch *b = &g->b;
    b->n_rows = n;
    b->n_segs = 1;
    b->n_logits = pos == 0 || nextn ? 1 : n;
    b->max_keys = pos + n;
    for (b->bucket = 1; b->bucket < n; b->bucket *= 2)
        ;
    g->segs[0] = (struct batch_seg){.n_rows = n, .pos0 = pos, .kind = pos == 0 ? BATCH_PROMPT : BATCH_GENERATED, .table = g->table};
    for (uint32_t i = 0; i < n; i++) {
        g->token[i] = (int32_t)((pos + i) * 37 + 20) % 1900;
        g->pos[i] = (int32_t)(pos + i);
        g->from[i] = (int32_t)i;
        g->logit_row[i] = (int32_t)(b->n_logits == 1 ? n - 1 : i);
        g->seg[i] = 0;
    }
    return run(g, nextn);
}

/* One token each of n sequences. */
static double step_many(struct rig *g, uint32_t n)
{
    struct batch *b = &g->b;
    b->n_rows = b->n_segs = b->n_logits = n;
    b->max_keys = POS + 1;
    for (b->bucket = 1; b->bucket < n; b->bucket *= 2)
        ;
    for (uint32_t i = 0; i < n; i++) {
        g->segs[i] = (struct batch_seg){.row0 = i, .n_rows = 1, .pos0 = POS, .kind = BATCH_GENERATED, .table = g->table + (size_t)i * SEQ_BLOCKS};
        g->token[i] = (int32_t)(i * 101 + 20) % 1900;
        g->pos[i] = POS;
        g->seg[i] = g->logit_row[i] = (int32_t)i;
    }
    return run(g, false);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const struct rig *g, double *const wall[SHAPES], size_t steps, double (*best)[OP_KIND_COUNT])
{
    printf("%-16s", "rows");
    for (int s = 0; s < SHAPES; s++)
        printf("%s%6u%s", s == SIZES ? "  |" : "", rows_of[s], s >= SIZES ? " nextn" : "");
    printf("\n%-16s", "least, us");
    for (int s = 0; s < SHAPES; s++) {
        qsort(wall[s], steps, sizeof **wall, by_size);
        printf("%s%6.0f%s", s == SIZES ? "  |" : "", wall[s][0], s >= SIZES ? "      " : "");
    }
    printf("\n%-16s", "median, us");
    for (int s = 0; s < SHAPES; s++)
        printf("%s%6.0f%s", s == SIZES ? "  |" : "", wall[s][steps / 2], s >= SIZES ? "      " : "");
    printf("\n");
    for (int k = 0; k < OP_KIND_COUNT; k++) {
        if (best[0][k] >= 1e9)
            continue;
        printf("  %-14s", op_kind_name((enum op_kind)k));
        for (int s = 0; s < SIZES; s++)
            printf("%6.0f", best[s][k]);
        printf("\n");
    }
    (void)g;
}

static void keep_kinds(const struct rig *g, double best[OP_KIND_COUNT])
{
    double sum[OP_KIND_COUNT] = {0};
    uint32_t n;
    const float *us = g->rt->backend->ops->op_us(g->rt->backend, &n);
    for (uint32_t i = 0; i < n; i++)
        sum[g->rt->prog.ops[i].kind] += (double)us[i];
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (sum[k] > 0 && sum[k] < best[k])
            best[k] = sum[k];
}

/* A token and drafts behind it. */
static void bench_few(struct rig *g, size_t steps)
{
    static double best[SHAPES][OP_KIND_COUNT];
    double *wall[SHAPES];
    step(g, false, 0, CAP);
    for (int s = 0; s < SHAPES; s++) {
        wall[s] = calloc(steps, sizeof **wall);
        for (int k = 0; k < OP_KIND_COUNT; k++)
            best[s][k] = 1e9;
    }
    for (size_t i = 0; i < steps; i++)
        for (int s = 0; s < SHAPES && wall[s] != NULL; s++) {
            wall[s][i] = step(g, s >= SIZES, POS, rows_of[s]);
            if (s < SIZES)
                keep_kinds(g, best[s]);
        }
    report(g, wall, steps, best);
    for (int s = 0; s < SHAPES; s++)
        free(wall[s]);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return n > 0 ? v[n / 2] : 0;
}

static void report_many(const uint32_t rows[MANY], double *const wall[MANY], double *const part[MANY], size_t turns, double (*best)[OP_KIND_COUNT])
{
    printf("us per row      prompt of %u   %u sequences   %u sequences\n", rows[0], rows[1], rows[2]);
    printf("%-16s", "least, wall");
    for (int s = 0; s < MANY; s++) {
        qsort(wall[s], turns, sizeof **wall, by_size);
        printf("%14.2f", wall[s][0] / rows[s]);
    }
    printf("\n%-16s", "median, wall");
    for (int s = 0; s < MANY; s++)
        printf("%14.2f", wall[s][turns / 2] / rows[s]);
    printf("\n%-16s", "of the prompt's");
    for (int s = 0; s < MANY; s++)
        printf("%14.2f", median(part[s], turns));
    printf("\n");
    for (int k = 0; k < OP_KIND_COUNT; k++) {
        if (best[0][k] >= 1e9)
            continue;
        printf("  %-14s", op_kind_name((enum op_kind)k));
        for (int s = 0; s < MANY; s++)
            printf("%14.2f", best[s][k] / rows[s]);
        printf("\n");
    }
}

/* A prompt, and tokens of many sequences. */
static void bench_many(struct rig *g, size_t turns, uint32_t sequences)
{
    static double best[MANY][OP_KIND_COUNT];
    const uint32_t rows[MANY] = {PROMPT, 32, sequences};
    double *wall[MANY], *part[MANY];
    for (int s = 0; s < MANY; s++) {
        wall[s] = calloc(turns + 1, sizeof **wall);
        part[s] = calloc(turns + 1, sizeof **part);
        for (int k = 0; k < OP_KIND_COUNT; k++)
            best[s][k] = 1e9;
    }
    for (size_t i = 0; i <= turns; i++) /* the first turn captures, and does not count */
        for (int s = 0; s < MANY && part[MANY - 1] != NULL; s++) {
            size_t at = i > 0 ? i - 1 : 0;
            wall[s][at] = s == 0 ? step(g, false, 0, PROMPT) : step_many(g, rows[s]);
            part[s][at] = wall[0][at] / rows[0] / (wall[s][at] / rows[s]);
            keep_kinds(g, best[s]);
        }
    report_many(rows, wall, part, turns, best);
    for (int s = 0; s < MANY; s++) {
        free(wall[s]);
        free(part[s]);
    }
}

int main(int argc, char **argv)
{
    static struct rig g;
    struct rs_error err;
    const char *data = getenv("RANKSCOPE_DATADIR");
    const unsigned workers = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
    const size_t steps = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
    const uint32_t sequences = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0, cap = sequences == 0 ? CAP : sequences > PROMPT ? sequences : PROMPT;
    const uint32_t blocks = sequences * SEQ_BLOCKS > PROMPT / RUNTIME_BLOCK ? sequences * SEQ_BLOCKS : PROMPT / RUNTIME_BLOCK;
    char path[4096];
    if (steps == 0 || sequences > MOST) {
        fprintf(stderr, "usage: step_bench [WORKERS [STEPS [SEQUENCES]]]; at most %d sequences\n", MOST);
        return 2;
    }
    snprintf(path, sizeof path, "%s/models/tiny-glm5-q4.gguf", data != NULL ? data : ".");
    must(model_open(path, &g.m, &err), &err);
    must(pool_open(workers, &g.pool, &err), &err);
    must(patch_open(&g.patches, &err), &err);
    const struct runtime_config cfg = {.ranks = 1, .cache = KRN_CACHE_F16, .ctx = blocks * RUNTIME_BLOCK, .max_seqs = 1, .batch_tokens = cap, .max_logits = cap};
    must(runtime_open(g.m, &cfg, &g.patches.now, g.pool, krn_cpu_best(), &g.rt, &err), &err);
    g.b = (struct batch){.token = g.token, .pos = g.pos, .seg = g.seg, .segs = g.segs, .logit_row = g.logit_row, .from = g.from, .cap = cap, .cap_segs = cap, .cap_logits = cap};
    for (uint32_t i = 0; i < blocks; i++)
        g.table[i] = (int32_t)(1 + i);
    must(g.rt->backend->ops->reserve(g.rt->backend, PROMPT, &err), &err);
    if (sequences == 0)
        bench_few(&g, steps);
    else
        bench_many(&g, steps, sequences);
    runtime_close(g.rt);
    pool_close(g.pool);
    patch_close(&g.patches);
    model_close(g.m);
    return 0;
}
