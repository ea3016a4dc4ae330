/* Speed of the CUDA backend on models without files: cuda_bench NAME LAYERS RANKS GPUS ONLY_RANK [unfused] [nopdl] [f32] [nccl] [bf16] [ops] [prefill] [batch=N] [pos=N] [steps=N] [invariant] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda_rig.h"

enum { MAX_STEPS = 200 };

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
            ids[s] = rig_argmax(rig_logits(r, s), 1000);
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
                           .max_rows = 8,
                           .max_keys = 1024,
                           .cache = KRN_CACHE_F16};
    bool ops = false, prefill = false;
    uint32_t batch = 1, pos = 100, steps = 100;
    for (int i = 6; i < argc; i++) {
        c.unfused |= strcmp(argv[i], "unfused") == 0;
        c.no_pdl |= strcmp(argv[i], "nopdl") == 0;
        c.f32 |= strcmp(argv[i], "f32") == 0;
        c.nccl |= strcmp(argv[i], "nccl") == 0;
        c.bf16 |= strcmp(argv[i], "bf16") == 0;
        ops |= strcmp(argv[i], "ops") == 0;
        prefill |= strcmp(argv[i], "prefill") == 0;
        if (strncmp(argv[i], "batch=", 6) == 0)
            batch = (uint32_t)atoi(argv[i] + 6);
        if (strncmp(argv[i], "steps=", 6) == 0)
            steps = (uint32_t)atoi(argv[i] + 6);
        if (strncmp(argv[i], "pos=", 4) == 0)
            pos = (uint32_t)atoi(argv[i] + 4);
        c.invariant |= strcmp(argv[i], "invariant") == 0;
    }
    if (batch < 1 || batch > RIG_SEQS)
        batch = 1;
    if (steps < 1 || steps > MAX_STEPS)
        steps = MAX_STEPS;
    c.seqs = batch;
    if (batch > c.max_rows)
        c.max_rows = batch;
    if (prefill) {
        c.max_rows = 2048;
        c.max_keys = 4096;
    }
    struct rs_error err = {.msg = ""};
    struct rig r;
    double t0 = now_ms(), ms[3];
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
    for (int graph = 1; graph >= 0; graph--) {
        if (decode(&r, batch, pos, graph != 0, steps, ms, &err) != RS_OK) {
            printf("  failed: %s\n", err.msg);
            break;
        }
        printf("  decode, batch %u, %-5s  %.3f ms (p10 %.3f, p90 %.3f), %.0f tokens/s, %u kernels\n", batch, graph ? "graph" : "eager",
               ms[0], ms[1], ms[2], batch * 1e3 / ms[0], backend_cuda_kernels(r.backend));
        printf("  logits %016llx\n", (unsigned long long)hash_logits(&r, batch));
        if (ops && graph)
            by_kind(&r);
    }
    if (prefill) {
        int32_t *ids = calloc(2048, sizeof *ids);
        for (int i = 0; i < 2048; i++)
            ids[i] = (i * 7919 + 13) % 100000;
        for (int i = 0; i < 3; i++) {
            t0 = now_ms();
            if (rig_step(&r, 0, ids, 2048, 0, false, false, &err) != RS_OK) {
                printf("  failed: %s\n", err.msg);
                break;
            }
            printf("  prefill of 2048: %.1f ms, %.0f tokens/s\n", now_ms() - t0, 2048e3 / (now_ms() - t0));
        }
        if (ops)
            by_kind(&r);
        free(ids);
    }
    rig_close(&r);
    return 0;
}
