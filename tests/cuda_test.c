/* The CUDA backend against the reference results: kernels, the shipped model, the fixtures, ranks, graphs. Needs a device; skips where there is none. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_selftest.h"
#include "tests/cuda_rig.h"
#include "tests/tap.h"

enum { BRIEF = 4 }; /* tokens */

static void kernel_result(void *arg, const struct cuda_check *c)
{
    (void)arg;
    tap_ok(c->limit > 0 ? c->error <= c->limit : c->error == 0, "kernel: %s: %.2g (limit %.2g)", c->name, c->error, c->limit);
}

static double distance(const float *got, const json_t *want)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < json_array_size(want); i++) {
        double w = json_number_value(json_array_get(want, i));
        d += (got[i] - w) * (got[i] - w);
        s += w * w;
    }
    const double rel = sqrt(d / s);
    return isnan(rel) ? INFINITY : rel; /* fmax() would drop a NaN */
}

static uint32_t read_ids(const json_t *a, int32_t *out)
{
    for (size_t i = 0; i < json_array_size(a); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return (uint32_t)json_array_size(a);
}

static json_t *load(const char *name)
{
    json_error_t e;
    char path[600];
    snprintf(path, sizeof path, "%s", tap_source(name));
    json_t *j = json_load_file(path, 0, &e);
    if (j == NULL)
        tap_ok(false, "%s: %s", path, e.text);
    return j;
}

/* All prompts: logits after the prompt, then the greedy answer in graph mode. brief: one prompt and the beginning of its answer. */
static void answers(const struct rig_config *base, const char *what, double limit, bool brief)
{
    struct rs_error err = {.msg = ""};
    struct rig r;
    struct rig_config cfg = *base;
    char path[600];
    snprintf(path, sizeof path, "%s", tap_source("models/tiny-glm5-q4.gguf"));
    cfg.path = path;
    cfg.max_rows = 128;
    cfg.max_keys = 512;
    if (!tap_ok(rig_open(&cfg, &r, &err) == RS_OK, "%s: opens%s%s", what, err.msg[0] ? ": " : "", err.msg))
        return;
    json_t *golden = load("tests/golden/golden-tiny.json"), *prompts = json_object_get(golden, "prompts"), *p;
    double worst = 0;
    unsigned texts = 0, n_prompts = (unsigned)json_array_size(prompts), differ = 0;
    enum rs_result rc = RS_OK;
    size_t i;
    float *kept = malloc(r.hp.vocab * sizeof *kept);
    json_array_foreach(prompts, i, p)
    {
        int32_t ids[512], want[512];
        uint32_t n = read_ids(json_object_get(p, "ids"), ids), m = read_ids(json_object_get(p, "greedy_ids"), want), ok = 0;
        rc = rig_step(&r, 0, ids, n, 0, false, false, &err);
        if (rc != RS_OK)
            break;
        worst = fmax(worst, distance(rig_logits(&r, 0), json_object_get(p, "last_logits")));
        m = brief && m > BRIEF ? BRIEF : m;
        for (; ok < m && n + ok < 511; ok++) {
            int32_t t = rig_argmax(rig_logits(&r, 0), r.hp.vocab);
            if (t != want[ok])
                break;
            if (ok + 1 == m)
                continue;
            if (ok < 3) { /* the same step eager and as a graph: the same bits */
                rc = rig_step(&r, 0, &t, 1, n + ok, false, false, &err);
                memcpy(kept, rig_logits(&r, 0), r.hp.vocab * sizeof *kept);
            }
            rc = rc == RS_OK ? rig_step(&r, 0, &t, 1, n + ok, false, true, &err) : rc;
            if (rc != RS_OK)
                break;
            differ += ok < 3 && memcmp(kept, rig_logits(&r, 0), r.hp.vocab * sizeof *kept) != 0;
        }
        texts += ok == m;
        if (brief)
            break;
    }
    n_prompts = brief ? 1 : n_prompts;
    free(kept);
    tap_ok(rc == RS_OK, "%s: runs%s%s", what, err.msg[0] ? ": " : "", err.msg);
    tap_ok(worst <= limit, "%s: logits within %.1e of the reference: %.2e", what, limit, worst);
    tap_ok(texts == n_prompts, "%s: greedy answers as the reference: %u of %u", what, texts, n_prompts);
    tap_ok(differ == 0, "%s: eager and graph give the same bits (%u differ)", what, differ);
    json_decref(golden);
    rig_close(&r);
}

static void shipped(const struct rig_config *base, const char *what, double limit)
{
    answers(base, what, limit, false);
}

/* Random models: logits of three rows of one prompt. */
static void fixture(const char *file, const char *name, const struct rig_config *base, const char *what, double limit)
{
    struct rs_error err = {.msg = ""};
    struct rig r;
    struct rig_config cfg = *base;
    char path[600], where[64];
    snprintf(where, sizeof where, "tests/golden/fixture-%s.gguf", name);
    snprintf(path, sizeof path, "%s", tap_source(where));
    cfg.path = path;
    cfg.max_rows = cfg.max_keys = 64;
    json_t *golden = load(file), *g = json_object_get(golden, name);
    int32_t ids[64];
    uint32_t n = read_ids(json_object_get(g, "ids"), ids);
    enum rs_result rc = rig_open(&cfg, &r, &err);
    if (rc == RS_OK) {
        double worst = 0;
        const char *row;
        json_t *v;
        rc = rig_step(&r, 0, ids, n, 0, true, false, &err);
        if (rc == RS_OK)
            json_object_foreach(json_object_get(g, "logits"), row, v) worst = fmax(worst, distance(rig_logits(&r, (uint32_t)atoi(row)), v));
        tap_ok(rc == RS_OK && worst <= limit, "%s, %s: logits within %.1e of the reference: %.2e%s%s", name, what, limit, worst,
               err.msg[0] ? ": " : "", err.msg);
        rig_close(&r);
    } else {
        tap_ok(false, "%s, %s: %s", name, what, err.msg);
    }
    json_decref(golden);
}

static void all_fixtures(const struct rig_config *c, const char *what, double limit)
{
    const char *names[] = {"dsa", "dsa-shared", "v3", "v32", "flash", "v2lite"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fixture("tests/golden/golden-variants.json", names[i], c, what, limit);
    fixture("tests/golden/golden-kquant.json", "kquant", c, what, limit);
}

/* Ranks that have so many GPUs to themselves, and that share them; sums of one rank per GPU by NCCL too. */
static void several(const struct rig_config *exact, uint32_t gpus)
{
    struct rig_config c = *exact;
    char what[60];
    c.gpus = gpus;
    for (c.ranks = gpus; c.ranks <= 8; c.ranks *= 2) {
        snprintf(what, sizeof what, "f32, %u ranks on %u GPUs", c.ranks, gpus);
        shipped(&c, what, 1e-3);
        all_fixtures(&c, what, 1e-3);
    }
    c.ranks = gpus;
    c.nccl = true;
    snprintf(what, sizeof what, "f32, NCCL, %u GPUs", gpus);
    shipped(&c, what, 1e-3);
    c.nccl = false;
    c.f32 = false;
    c.cache = KRN_CACHE_F16;
    c.bf16 = true;
    snprintf(what, sizeof what, "int8, f16 cache, bf16 reduce, %u GPUs", gpus);
    shipped(&c, what, 6e-2);
}

/* Summands of a rank that is late are waited for after two thousand million reduces too, in blocks of a sum that the last short ones did not have. */
static void very_many(const struct rig_config *exact, const char *way)
{
    enum { ROWS = 100, BEFORE = 3 };
    char path[600];
    struct rs_error err = {.msg = ""};
    float *want = NULL;
    snprintf(path, sizeof path, "%s", tap_source("models/tiny-glm5-q4.gguf"));
    for (uint32_t many = 0; many < 2; many++) {
        struct rig_config c = *exact;
        struct rig r;
        int32_t ids[ROWS];
        for (int i = 0; i < ROWS; i++)
            ids[i] = 5 + i * 37 % 900;
        c.path = path;
        c.ranks = c.gpus = 2;
        c.max_rows = 128;
        c.max_keys = 512;
        c.epoch = many != 0 ? 0x80001000u : 0;
        bool ok = rig_open(&c, &r, &err) == RS_OK && rig_allreduce(&r, way, &err) == RS_OK && rig_step(&r, 0, ids, BEFORE, 0, false, false, &err) == RS_OK;
        for (uint32_t i = 0; ok && i < r.prog.n_ops; i++)
            r.choices[i].delay_rank = 1, r.choices[i].delay_us = 300;
        if (ok)
            rig_generation(&r);
        ok = ok && rig_step(&r, 0, ids + BEFORE, ROWS - BEFORE, BEFORE, false, false, &err) == RS_OK;
        const float *got = ok ? rig_logits(&r, 0) : NULL;
        if (many == 0 && ok && (want = malloc(r.hp.vocab * sizeof *want)) != NULL)
            memcpy(want, got, r.hp.vocab * sizeof *want);
        else
            tap_ok(ok && want != NULL && memcmp(want, got, r.hp.vocab * sizeof *want) == 0, "%s: after very many reduces as after few%s%s", way,
                   err.msg[0] ? ": " : "", err.msg);
        if (r.backend != NULL)
            rig_close(&r);
    }
    free(want);
}

/* Whole steps, few of them, for tools that make kernels a hundred times slower: what is fused, and how buffers of a real model lie. On one GPU, as ranks on
 * several wait for each other. */
static void steps(const struct rig_config *exact)
{
    struct rig_config c = *exact;
    answers(&c, "f32", 1e-3, true);
    all_fixtures(&c, "f32", 1e-3);
    c.f32 = false;
    c.cache = KRN_CACHE_F16;
    answers(&c, "int8", 6e-2, true);
    c.ranks = 2;
    answers(&c, "int8, 2 ranks on one GPU", 6e-2, true);
}

int main(void)
{
    const char *why;
    int gpus = backend_cuda_devices(&why);
    if (gpus == 0)
        tap_skip_all("no GPU: %s", why);
    struct rs_error err = {.msg = ""};
    const char *only = getenv("CUDA_TEST"); /* "kernels", "small" (of them), "models", "steps" (few of them), "reduces" (very many) or nothing: all */
    struct rig_config exact = {.ranks = 1, .gpus = 1, .only_rank = -1, .cache = KRN_CACHE_F32, .f32 = true}, c;
    if (only != NULL && strcmp(only, "steps") == 0) {
        steps(&exact);
        return tap_done();
    }
    if (gpus >= 2 && (only == NULL || strcmp(only, "reduces") == 0)) {
        very_many(&exact, "flat");
        very_many(&exact, "two-shot");
    }
    if (only != NULL && strcmp(only, "reduces") == 0)
        return tap_done();
    if (only == NULL || strcmp(only, "models") != 0)
        tap_ok(cuda_selftest(0, only != NULL && strcmp(only, "small") == 0, kernel_result, NULL, &err) == RS_OK, "kernels: all ran%s%s", err.msg[0] ? ": " : "", err.msg);
    if (only != NULL && strcmp(only, "models") != 0)
        return tap_done();
    c = exact;
    c.unfused = c.no_pdl = true;
    shipped(&c, "f32, nothing fused", 1e-3);
    shipped(&exact, "f32", 1e-3);
    all_fixtures(&exact, "f32", 1e-3);
    c = exact;
    c.cache = KRN_CACHE_F16;
    shipped(&c, "f16 cache", 1e-3);
    c.f32 = false;
    shipped(&c, "int8", 6e-2);
    c = exact;
    for (c.ranks = 2; c.ranks <= 8; c.ranks *= 2) {
        char what[40];
        snprintf(what, sizeof what, "f32, %u ranks on one GPU", c.ranks);
        shipped(&c, what, 1e-3);
        all_fixtures(&c, what, 1e-3);
    }
    if (gpus < 2) {
        tap_skip(1, "one GPU: nothing to reduce between GPUs");
        return tap_done();
    }
    several(&exact, 2);
    if (gpus > 2)
        several(&exact, gpus > 8 ? 8 : (uint32_t)gpus);
    return tap_done();
}
