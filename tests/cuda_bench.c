/* Speed of the CUDA backend on models without files: cuda_bench NAME LAYERS RANKS GPUS ONLY_RANK [OPTION...]. LAYERS: a number, 0 all, or fit:GB, as
 * many as leave so many gigabytes of every GPU. ONLY_RANK -1: all ranks. Options: unfused nopdl f32 nccl bf16 invariant batch=N pos=N steps=N (0: no
 * decoding by itself), and
 *   ops      what each launch of a step takes, and at what rate it reads weights and cache; more than the memory can do
 *            where it begins to load while its predecessor still runs
 *   arms     every implementation of the all-reduce, eager and in graphs: a step, the share of all-reduces, when each GPU comes to them
 *   tops     logits are looked at on the device
 *   stamps   what the kernels' time stamps cost
 *   prefill  also steps of rows=N rows, prompts of segs=N tokens (one prompt), of them mixed=N rows generated ones at `pos` */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/error.h"
#include "engine/reads.h"
#include "tests/cuda_rig.h"

enum { MAX_STEPS = 200, PREFILLS = 5 };
static const double CARD_TBS = 4.26; /* what an H200's memory reads at best, measured */

/* What a rank does in the all-reduces of some steps: sums, in us. */
struct skew {
    double after, wait, whole; /* behind the first one to come; until the last one comes; until the sum is there */
    uint64_t n;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Adds what the last step's stamps say; skew has one entry per rank. */
static void count_reduces(struct rig *r, struct skew *skew)
{
    const uint32_t n = r->prog.n_ranks;
    const struct backend_reduce *x = r->backend->ops->reduces(r->backend);
    for (uint32_t i = 0; i < r->prog.n_ops; i++, x += n) {
        double first = INFINITY, last = 0;
        bool all = r->prog.ops[i].kind == OP_ALLREDUCE;
        for (uint32_t k = 0; k < n && all; k++) {
            all = x[k].ready > 0;
            first = fmin(first, x[k].arrive);
            last = k == 0 ? x[k].arrive : fmax(last, x[k].arrive);
        }
        for (uint32_t k = 0; k < n && all; k++) {
            skew[k].after += x[k].arrive - first;
            skew[k].wait += fmin(last, x[k].ready) - x[k].arrive;
            skew[k].whole += x[k].ready - x[k].arrive;
            skew[k].n++;
        }
    }
}

/* Median and spread of n steps of `seqs` sequences, from position pos on, in ms; skew: of all ranks, or NULL. */
static enum rs_result decode(struct rig *r, uint32_t seqs, uint32_t pos, bool graph, uint32_t n, double out[3], struct skew *skew, struct rs_error *err)
{
    int32_t ids[RIG_SEQS];
    double ms[MAX_STEPS];
    for (uint32_t i = 0; i < RIG_SEQS; i++)
        ids[i] = (int32_t)(i * 37 + 11);
    for (uint32_t i = 0; i < n + 5; i++) {
        enum rs_result rc = r->backend->ops->reserve(r->backend, pos + n + 5, err); /* GPUs' clocks are compared there now and then */
        double t0 = now_ms();
        rc = rc == RS_OK ? rig_decode(r, ids, seqs, pos + i, graph, err) : rc;
        if (rc != RS_OK)
            return rc;
        if (i >= 5)
            ms[i - 5] = now_ms() - t0;
        if (i >= 5 && skew != NULL)
            count_reduces(r, skew);
        for (uint32_t s = 0; s < seqs; s++)
            ids[s] = r->cfg.tops ? (ids[s] * 31 + 17) % 1000 : rig_argmax(rig_logits(r, s), 1000);
    }
    qsort(ms, n, sizeof *ms, by_size);
    out[0] = ms[n / 2];
    out[1] = ms[n / 10];
    out[2] = ms[n * 9 / 10];
    return RS_OK;
}

/* Of the last step's logits: two runs of the same options must agree, whatever was fused. */
static uint64_t hash_logits(struct rig *r, uint32_t seqs)
{
    uint64_t h = 14695981039346656037ull;
    for (uint32_t s = 0; s < seqs; s++) {
        const uint8_t *p = (const uint8_t *)rig_logits(r, s);
        for (size_t i = 0; i < r->hp.vocab * sizeof(float); i++)
            h = (h ^ p[i]) * 1099511628211ull;
    }
    return h;
}

/* A launch by the place of its op in a layer, with what was fused into it, summed over layers; on rank 0. */
struct launch {
    const char *what;  /* site without the layer */
    char with[200];    /* what else it computes */
    double us, bytes;
    uint32_t n;
};

static const char *place_of(const struct op *o)
{
    const char *p = o->layer >= 0 ? strchr(o->site, '.') : NULL;
    p = p != NULL ? strchr(p + 1, '.') : NULL;
    return p != NULL ? p + 1 : o->site;
}

static void by_launch(struct rig *r, uint32_t rows, uint32_t keys)
{
    enum { MAX = 64, MAX_OPS = 4096 };
    const struct reads_step step = {.rows = rows, .keys = (uint64_t)rows * keys, .elem_bytes = (uint32_t)krn_cache_elem_bytes(r->cfg.cache)};
    uint32_t n_ops, n = 0, last = 0;
    const float *t = r->backend->ops->op_us(r->backend, &n_ops);
    struct launch list[MAX], *of[MAX_OPS] = {NULL}, all = {.n = 0};
    for (uint32_t i = 0; i < n_ops && i < MAX_OPS; i++) {
        const char *what = place_of(&r->prog.ops[i]);
        uint32_t k = 0;
        while (k < n && strcmp(list[k].what, what) != 0)
            k++;
        if (t[(size_t)i * r->prog.n_ranks] <= 0 || k == MAX)
            continue;
        if (k == n)
            list[n++] = (struct launch){.what = what};
        list[k].us += (double)t[(size_t)i * r->prog.n_ranks];
        list[k].n++;
        of[i] = &list[k];
    }
    for (uint32_t i = 0; i < n_ops && i < MAX_OPS; i++) {
        const char *what = place_of(&r->prog.ops[i]);
        const bool own = of[i] != NULL;
        struct launch *l = of[own ? i : reads_carrier(&r->prog, t, 0, i, last)];
        last = own ? i : last;
        if (l == NULL)
            continue;
        l->bytes += reads_bytes(&r->prog, &r->prog.ops[i], 0, &step);
        if (!own && strstr(l->with, what) == NULL && strlen(l->with) + strlen(what) + 3 < sizeof l->with)
            sprintf(l->with + strlen(l->with), "%s%s", l->with[0] != '\0' ? ", " : "", what);
    }
    for (uint32_t k = 0; k < n; k++) {
        all.us += list[k].us;
        all.bytes += list[k].bytes;
    }
    printf("    by launch, rank 0: us and MB read each, share of the time, TB/s and share of %.2f TB/s; what else it computes\n", CARD_TBS);
    for (uint32_t k = 0; k < n; k++) {
        const double tbs = list[k].bytes / list[k].us * 1e-6;
        printf("      %-22s %4u x %7.2f us %5.1f %% %8.2f MB %5.2f TB/s %3.0f %%  %s\n", list[k].what, list[k].n, list[k].us / list[k].n,
               list[k].us / all.us * 100, list[k].bytes / list[k].n * 1e-6, tbs, tbs / CARD_TBS * 100, list[k].with);
    }
    printf("      all %.1f us, %.3f GB: %.2f TB/s, %.0f %% of the memory's; %.1f us at that\n", all.us, all.bytes * 1e-9,
           all.bytes / all.us * 1e-6, all.bytes / all.us * 1e-4 / CARD_TBS, all.bytes * 1e-6 / CARD_TBS);
}

static void say_logits(struct rig *r, uint32_t seqs)
{
    const float *x = rig_logits(r, 0);
    printf("  logits %016llx, the first %.5f %.5f %.5f %.5f\n", (unsigned long long)hash_logits(r, seqs), (double)x[0], (double)x[1], (double)x[2], (double)x[3]);
}

static void by_kind(struct rig *r)
{
    double us[OP_KIND_COUNT] = {0}, all = 0;
    uint32_t n, count[OP_KIND_COUNT] = {0};
    const float *t = r->backend->ops->op_us(r->backend, &n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < r->prog.n_ranks; k++)
            if (t[i * r->prog.n_ranks + k] > 0) {
                us[r->prog.ops[i].kind] += (double)t[i * r->prog.n_ranks + k];
                count[r->prog.ops[i].kind]++;
                all += (double)t[i * r->prog.n_ranks + k];
            }
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (count[k] != 0)
            printf("    %-14s %8.1f us %5.1f %%  %4u launches, %.2f us each\n", op_kind_name((enum op_kind)k), us[k], us[k] / all * 100,
                   count[k], us[k] / count[k]);
}

/* When each GPU came to the all-reduces of the steps before. */
static void print_skew(const struct rig *r, const struct skew *skew)
{
    for (uint32_t g = 0; g < r->cfg.gpus; g++) {
        const struct skew *k = &skew[shard_deal(r->prog.n_ranks, 1, r->cfg.gpus, g).from];
        if (k->n != 0)
            printf("      GPU %u: comes %.2f us after the first, waits %.2f us for the last, %.2f us in all\n", g, k->after / (double)k->n,
                   k->wait / (double)k->n, k->whole / (double)k->n);
    }
}

/* LAYERS of the command line. */
static enum rs_result layers_of(struct rig_config *c, const char *arg, struct rs_error *err)
{
    c->layers = (uint32_t)atoi(arg);
    if (strncmp(arg, "fit:", 4) != 0)
        return RS_OK;
    uint64_t memory = UINT64_MAX, spare = (uint64_t)(atof(arg + 4) * 1e9);
    for (uint32_t i = 0; i < c->gpus; i++) {
        const uint64_t m = backend_cuda_memory((int)i);
        memory = m < memory ? m : memory;
    }
    c->layers = 0;
    return rig_layers(c, memory > spare ? memory - spare : 0, &c->layers, err);
}

/* What is measured. */
struct bench {
    bool ops, prefill, arms, stamps;
    uint32_t batch, pos, steps, rows, segs, mixed;
};

static void read_options(int argc, char **argv, struct rig_config *c, struct bench *b)
{
    const struct {
        const char *name;
        bool *on;
    } flags[] = {{"unfused", &c->unfused}, {"nopdl", &c->no_pdl}, {"f32", &c->f32}, {"nccl", &c->nccl},        {"bf16", &c->bf16},
                 {"ops", &b->ops},         {"tops", &c->tops},    {"invariant", &c->invariant}, {"prefill", &b->prefill},
                 {"arms", &b->arms},       {"stamps", &b->stamps}};
    const struct {
        const char *name;
        uint32_t *n;
    } numbers[] = {{"batch=", &b->batch}, {"pos=", &b->pos}, {"steps=", &b->steps}, {"rows=", &b->rows}, {"segs=", &b->segs}, {"mixed=", &b->mixed}};
    for (int i = 6; i < argc; i++) {
        for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++)
            *flags[k].on |= strcmp(argv[i], flags[k].name) == 0;
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            if (strncmp(argv[i], numbers[k].name, strlen(numbers[k].name)) == 0)
                *numbers[k].n = (uint32_t)atoi(argv[i] + strlen(numbers[k].name));
    }
    b->batch = b->batch < 1 || b->batch > RIG_SEQS ? 1 : b->batch;
    b->steps = b->steps > MAX_STEPS ? MAX_STEPS : b->steps == 0 && b->arms ? 1 : b->steps;
    b->mixed = b->mixed > RIG_SEQS ? RIG_SEQS : b->mixed;
    b->rows = b->rows <= b->mixed ? b->mixed + 1 : b->rows;
    const uint32_t prompts = b->rows - b->mixed, least = (prompts + RIG_SEGS - RIG_SEQS - 1) / (RIG_SEGS - RIG_SEQS); /* of a prompt, so that all find room */
    b->segs = b->segs == 0 || b->segs > prompts ? prompts : b->segs < least ? least : b->segs;
    c->seqs = b->batch;
    c->max_rows = b->batch > 8 ? b->batch : 8;
    c->max_keys = 1024;
    if (!b->prefill)
        return;
    const uint32_t seqs = b->mixed + (prompts + b->segs - 1) / b->segs;
    c->seqs = seqs > b->batch ? seqs : b->batch;
    c->max_rows = b->rows > c->max_rows ? b->rows : c->max_rows;
    c->max_keys = b->segs > 512 ? 2 * b->segs : 1024;
}

static enum rs_result bench_decode(struct rig *r, const struct bench *b, struct rs_error *err)
{
    double ms[3];
    for (int graph = 1; graph >= 0; graph--) {
        enum rs_result rc = decode(r, b->batch, b->pos, graph != 0, b->steps, ms, NULL, err);
        if (rc != RS_OK)
            return rc;
        printf("  decode, batch %u, %-5s  %.3f ms (p10 %.3f, p90 %.3f), %.0f tokens/s, %u kernels\n", b->batch, graph ? "graph" : "eager",
               ms[0], ms[1], ms[2], b->batch * 1e3 / ms[0], backend_cuda_kernels(r->backend));
        say_logits(r, b->batch);
        if (b->ops && graph) {
            by_kind(r);
            by_launch(r, b->batch, b->pos + b->steps);
        }
    }
    return RS_OK;
}

/* One way to sum, in one mode: ms of a step, INFINITY where it is refused. The share of all-reduces is of the rank that spends most time in them. */
static double one_arm(struct rig *r, const struct bench *b, const char *impl, bool graph)
{
    struct skew skew[RS_MAX_RANKS] = {{0}};
    struct rs_error err = {.msg = ""};
    double ms[3], most = 0;
    enum rs_result rc = rig_allreduce(r, impl, &err);
    if (rc == RS_OK)
        rc = decode(r, b->batch, b->pos, graph, b->steps, ms, skew, &err);
    if (rc != RS_OK) {
        printf("  arm %-10s %s refused: %s\n", impl, graph ? "graph" : "eager", err.msg);
        return INFINITY;
    }
    for (uint32_t k = 0; k < r->prog.n_ranks; k++)
        most = fmax(most, skew[k].whole / b->steps / 1e3);
    printf("  arm %-10s %s %.3f ms (p10 %.3f, p90 %.3f) %.1f tokens/s %u kernels, all-reduces %.1f %% of a step\n", impl,
           graph ? "graph" : "eager", ms[0], ms[1], ms[2], b->batch * 1e3 / ms[0], backend_cuda_kernels(r->backend), most / ms[0] * 100);
    printf("  logits %016llx\n", (unsigned long long)hash_logits(r, b->batch));
    print_skew(r, skew);
    return ms[0];
}

/* All ways; with `ops` what the launches of the fastest one take. */
static void all_arms(struct rig *r, const struct bench *b)
{
    size_t n;
    const struct op_impl *impls = backend_cuda_impls(&n), *best = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < n; i++)
        for (int graph = 0; graph < 2 && impls[i].kind == OP_ALLREDUCE; graph++) {
            const double ms = one_arm(r, b, impls[i].name, graph != 0);
            if (graph != 0 && ms < least) {
                least = ms;
                best = &impls[i];
            }
        }
    if (best == NULL || !b->ops)
        return;
    printf("  the fastest again:\n");
    one_arm(r, b, best->name, true);
    by_launch(r, b->batch, b->pos + b->steps);
}

/* Eager: so long steps are in an engine. */
static enum rs_result bench_prefill(struct rig *r, const struct bench *b, const int32_t *ids, struct rs_error *err)
{
    const uint32_t prompts = b->rows - b->mixed;
    double ms[PREFILLS];
    for (int i = -1; i < PREFILLS; i++) {
        const double t0 = now_ms();
        enum rs_result rc = rig_mixed(r, ids, b->mixed, b->pos, prompts, b->segs, false, err);
        if (rc != RS_OK)
            return rc;
        if (i >= 0)
            ms[i] = now_ms() - t0;
    }
    qsort(ms, PREFILLS, sizeof *ms, by_size);
    printf("  %u rows, %u of prompts of %u, %u generated: %.2f ms (%.2f to %.2f), %.0f rows/s, %u kernels\n", b->rows, prompts, b->segs, b->mixed,
           ms[PREFILLS / 2], ms[0], ms[PREFILLS - 1], b->rows * 1e3 / ms[PREFILLS / 2], backend_cuda_kernels(r->backend));
    say_logits(r, 1);
    if (b->ops)
        by_kind(r);
    return RS_OK;
}

/* What stamps cost: steps in a graph with and without them, in turns, by two backends with the same weights in memory twice. */
static enum rs_result bench_stamps(struct rig *with, const struct bench *b, struct rs_error *err)
{
    enum { ROUNDS = 15 };
    struct rig without;
    struct rig_config c = with->cfg;
    c.no_stamps = true;
    enum rs_result rc = rig_open(&c, &without, err);
    if (rc != RS_OK)
        return rc;
    double a[ROUNDS], o[ROUNDS], cost[ROUNDS], ms[3];
    for (int i = 0; i < ROUNDS && rc == RS_OK; i++)
        for (int k = 0; k < 2 && rc == RS_OK; k++) {
            const bool stamped = (i + k) % 2 != 0;
            rc = decode(stamped ? with : &without, b->batch, b->pos, true, b->steps, ms, NULL, err);
            (stamped ? a : o)[i] = ms[0];
        }
    for (int i = 0; i < ROUNDS && rc == RS_OK; i++)
        cost[i] = a[i] / o[i] - 1;
    rig_close(&without);
    if (rc != RS_OK)
        return rc;
    qsort(a, ROUNDS, sizeof *a, by_size);
    qsort(o, ROUNDS, sizeof *o, by_size);
    qsort(cost, ROUNDS, sizeof *cost, by_size);
    printf("  a step %.3f ms with stamps, %.3f ms without: %.2f %% (quartiles %.2f and %.2f of %d pairs)\n", a[ROUNDS / 2], o[ROUNDS / 2],
           cost[ROUNDS / 2] * 100, cost[ROUNDS / 4] * 100, cost[ROUNDS * 3 / 4] * 100, ROUNDS);
    return RS_OK;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: cuda_bench NAME LAYERS RANKS GPUS ONLY_RANK [OPTION...]\n");
        return 2;
    }
    struct rig_config c = {.synthetic = argv[1],
                           .ranks = (uint32_t)atoi(argv[3]),
                           .gpus = (uint32_t)atoi(argv[4]),
                           .only_rank = atoi(argv[5]),
                           .cache = KRN_CACHE_F16};
    struct bench b = {.batch = 1, .pos = 100, .steps = 100, .rows = 2048};
    read_options(argc, argv, &c, &b);
    struct rs_error err = {.msg = ""};
    struct rig r;
    if (layers_of(&c, argv[2], &err) != RS_OK) {
        printf("failed: %s\n", err.msg);
        return 1;
    }
    double t0 = now_ms();
    printf("%s, %u layers, %u ranks on %u GPUs%s%s%s%s%s\n", argv[1], c.layers, c.ranks, c.gpus, c.unfused ? ", unfused" : "",
           c.no_pdl ? ", no programmatic launch" : "", c.f32 ? ", f32" : ", int8", c.nccl ? ", NCCL" : "", c.bf16 ? ", bf16 reduce" : "");
    if (rig_open(&c, &r, &err) != RS_OK) {
        printf("  failed: %s\n", err.msg);
        return 1;
    }
    uint64_t weights, cache, buffers;
    r.backend->ops->memory(r.backend, 0, &weights, &cache, &buffers);
    printf("  open %.1f s, weights %.2f GB, cache %.2f GB, buffers %.2f GB on a rank\n", (now_ms() - t0) / 1e3, (double)weights / 1e9,
           (double)cache / 1e9, (double)buffers / 1e9);
    if (b.arms)
        all_arms(&r, &b);
    int32_t *ids = calloc(b.rows, sizeof *ids);
    for (uint32_t i = 0; ids != NULL && i < b.rows; i++)
        ids[i] = (int32_t)((i * 7919 + 13) % 100000);
    enum rs_result rc = ids == NULL ? error_set(&err, RS_ENOMEM, "out of memory") : RS_OK;
    if (rc == RS_OK && b.steps != 0 && !b.arms)
        rc = bench_decode(&r, &b, &err);
    if (rc == RS_OK && b.stamps)
        rc = bench_stamps(&r, &b, &err);
    if (rc == RS_OK && b.prefill)
        rc = bench_prefill(&r, &b, ids, &err);
    if (rc != RS_OK)
        printf("  failed: %s\n", err.msg);
    free(ids);
    rig_close(&r);
    return rc != RS_OK;
}
