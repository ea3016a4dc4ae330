/* Speed of the CUDA backend on models without files: cuda_bench NAME LAYERS RANKS GPUS ONLY_RANK [unfused] [nopdl] [f32] [nccl] [bf16] [ops] [batch=N] [pos=N] [steps=N]
 * [invariant] [tops] [prefill] [rows=N] [segs=N] [mixed=N]. tops: logits are looked at on the device. prefill: also steps of `rows` rows, prompts of `segs` tokens
 * (one prompt), of them `mixed` rows generated ones at `pos`. steps=0: no decoding by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/error.h"
#include "tests/cuda_rig.h"

enum { MAX_STEPS = 200, PREFILLS = 5 };

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

/* Median and spread of n steps of `seqs` sequences, from position pos on. */
static enum rs_result decode(struct rig *r, uint32_t seqs, uint32_t pos, bool graph, uint32_t n, double out[3], struct rs_error *err)
{
    int32_t ids[RIG_SEQS];
    double ms[MAX_STEPS];
    for (uint32_t i = 0; i < RIG_SEQS; i++)
        ids[i] = (int32_t)(i * 37 + 11);
    for (uint32_t i = 0; i < n + 5; i++) {
        double t0 = now_ms();
        enum rs_result rc = rig_decode(r, ids, seqs, pos + i, graph, err);
        if (rc != RS_OK)
            return rc;
        if (i >= 5)
            ms[i - 5] = now_ms() - t0;
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
    uint32_t lo = r->hp.n_layers / 2;
    for (uint32_t i = 0; i < n; i++)
        if (r->prog.ops[i].layer == (int)lo && t[i * r->prog.n_ranks] > 0)
            printf("      %-28s %7.2f us\n", r->prog.ops[i].site, (double)t[i * r->prog.n_ranks]);
}

/* What is measured. */
struct bench {
    bool ops, prefill;
    uint32_t batch, pos, steps, rows, segs, mixed;
};

static void read_options(int argc, char **argv, struct rig_config *c, struct bench *b)
{
    const struct {
        const char *name;
        bool *on;
    } flags[] = {{"unfused", &c->unfused}, {"nopdl", &c->no_pdl}, {"f32", &c->f32}, {"nccl", &c->nccl},        {"bf16", &c->bf16},
                 {"ops", &b->ops},         {"tops", &c->tops},    {"invariant", &c->invariant}, {"prefill", &b->prefill}};
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
    b->steps = b->steps > MAX_STEPS ? MAX_STEPS : b->steps;
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
        enum rs_result rc = decode(r, b->batch, b->pos, graph != 0, b->steps, ms, err);
        if (rc != RS_OK)
            return rc;
        printf("  decode, batch %u, %-5s  %.3f ms (p10 %.3f, p90 %.3f), %.0f tokens/s, %u kernels\n", b->batch, graph ? "graph" : "eager",
               ms[0], ms[1], ms[2], b->batch * 1e3 / ms[0], backend_cuda_kernels(r->backend));
        printf("  logits %016llx\n", (unsigned long long)hash_logits(r, b->batch));
        if (b->ops && graph)
            by_kind(r);
    }
    return RS_OK;
}

static enum rs_result bench_prefill(struct rig *r, const struct bench *b, const int32_t *ids, struct rs_error *err)
{
    const uint32_t prompts = b->rows - b->mixed;
    for (int graph = 0; graph < 2; graph++) {
        double ms[PREFILLS];
        for (int i = -1; i < PREFILLS; i++) {
            const double t0 = now_ms();
            enum rs_result rc = rig_mixed(r, ids, b->mixed, b->pos, prompts, b->segs, graph != 0, err);
            if (rc != RS_OK)
                return rc;
            if (i >= 0)
                ms[i] = now_ms() - t0;
        }
        qsort(ms, PREFILLS, sizeof *ms, by_size);
        printf("  %u rows, %u of prompts of %u, %u generated, %-5s  %.2f ms (%.2f to %.2f), %.0f rows/s, %u kernels\n", b->rows, prompts, b->segs, b->mixed,
               graph ? "graph" : "eager", ms[PREFILLS / 2], ms[0], ms[PREFILLS - 1], b->rows * 1e3 / ms[PREFILLS / 2], backend_cuda_kernels(r->backend));
        printf("  logits %016llx\n", (unsigned long long)hash_logits(r, 1));
        if (b->ops && graph)
            by_kind(r);
    }
    return RS_OK;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: cuda_bench NAME LAYERS RANKS GPUS ONLY_RANK [OPTION...]\n");
        return 2;
    }
    struct rig_config c = {.synthetic = argv[1],
                           .layers = (uint32_t)atoi(argv[2]),
                           .ranks = (uint32_t)atoi(argv[3]),
                           .gpus = (uint32_t)atoi(argv[4]),
                           .only_rank = atoi(argv[5]),
                           .cache = KRN_CACHE_F16};
    struct bench b = {.batch = 1, .pos = 100, .steps = 100, .rows = 2048};
    read_options(argc, argv, &c, &b);
    struct rs_error err = {.msg = ""};
    struct rig r;
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
    int32_t *ids = calloc(b.rows, sizeof *ids);
    for (uint32_t i = 0; ids != NULL && i < b.rows; i++)
        ids[i] = (int32_t)((i * 7919 + 13) % 100000);
    enum rs_result rc = ids == NULL ? error_set(&err, RS_ENOMEM, "out of memory") : RS_OK;
    if (rc == RS_OK && b.steps != 0)
        rc = bench_decode(&r, &b, &err);
    if (rc == RS_OK && b.prefill)
        rc = bench_prefill(&r, &b, ids, &err);
    if (rc != RS_OK)
        printf("  failed: %s\n", err.msg);
    free(ids);
    rig_close(&r);
    return rc != RS_OK;
}
