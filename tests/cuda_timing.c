/* What the kernels' stamps say about all-reduces, against causes that are known and against the host's clock, on two GPUs. Figures are printed: they
 * go to docs/measurements.md. Skipped where there are no two GPUs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda_rig.h"
#include "tests/tap.h"

enum { STEPS = 300, ROUNDS = 31 };
static const double LATE_US = 100;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Means over decode steps, in us. */
struct figures {
    double wall;        /* of a step; median */
    double whole[2];    /* of a rank: arrival to sum, all of a step's reduces together */
    double wait[2];     /* of that, before the last rank arrived */
    uint32_t n_reduces;
};

static bool run(struct rig *r, bool graph, struct figures *f)
{
    static double wall[STEPS];
    struct rs_error err;
    memset(f, 0, sizeof *f);
    for (int i = 0; i < STEPS; i++) {
        int32_t id = 100 + i;
        double t0 = now_us();
        if (r->backend->ops->reserve(r->backend, 200, &err) != RS_OK || (t0 = now_us(), rig_decode(r, &id, 1, 100, graph, &err) != RS_OK)) {
            tap_diag("%s", err.msg);
            return false;
        }
        wall[i] = now_us() - t0;
        const struct backend_reduce *x = r->backend->ops->reduces(r->backend);
        f->n_reduces = 0;
        for (uint32_t k = 0; k < r->prog.n_ops; k++, x += 2) {
            if (r->prog.ops[k].kind != OP_ALLREDUCE || x[0].ready <= 0 || x[1].ready <= 0)
                continue;
            const double last = fmax(x[0].arrive, x[1].arrive);
            f->n_reduces++;
            for (int j = 0; j < 2; j++) {
                f->whole[j] += (x[j].ready - x[j].arrive) / STEPS;
                f->wait[j] += fmin(last - x[j].arrive, x[j].ready - x[j].arrive) / STEPS;
            }
        }
    }
    qsort(wall, STEPS, sizeof *wall, by_value);
    f->wall = wall[STEPS / 2];
    return true;
}

/* Rank 1 is late on purpose: rank 0 waits for as long, the step takes as much longer by the host's clock, and the sum itself costs what it did. */
static void late(struct rig *r, bool graph, const char *what)
{
    struct figures f, g;
    for (uint32_t i = 0; i < r->prog.n_ops; i++)
        r->choices[i].delay_rank = -1;
    rig_generation(r);
    if (!tap_ok(run(r, graph, &f), "%s: runs", what))
        return;
    const double n = f.n_reduces;
    tap_diag("%s: %.0f reduces a step of %.1f us; rank 0 %.2f us each (wait %.2f), rank 1 %.2f us (wait %.2f)", what, n, f.wall, f.whole[0] / n,
             f.wait[0] / n, f.whole[1] / n, f.wait[1] / n);
    for (uint32_t i = 0; i < r->prog.n_ops; i++)
        r->choices[i].delay_rank = 1, r->choices[i].delay_us = (float)LATE_US;
    rig_generation(r);
    if (!tap_ok(run(r, graph, &g), "%s: runs with a late rank", what))
        return;
    tap_diag("%s, late: step %.1f us; rank 0 %.2f us each (wait %.2f), rank 1 %.2f us (wait %.2f)", what, g.wall, g.whole[0] / n, g.wait[0] / n,
             g.whole[1] / n, g.wait[1] / n);
    const double added = (g.wall - f.wall) / n, seen = (g.whole[0] - f.whole[0]) / n;
    tap_near(g.wait[0] / n, LATE_US, LATE_US * 0.1, "%s: rank 0 waits for what rank 1 is late by", what);
    tap_ok(g.wait[1] / n < 5, "%s: rank 1 hardly waits", what);
    tap_near(seen, added, added * 0.1, "%s: stamps and the host's clock agree on what that adds to a reduce", what);
}

/* One rank stays away from one reduce for longer than anybody waits: the step ends with its name, the op's and the time, and the next one is as ever. */
static void away(const struct rig_config *base)
{
    enum { WHICH = 5, WAIT_MS = 200 };
    struct rig r;
    struct rig_config c = *base;
    struct rs_error err = {.msg = ""};
    const int32_t id = 100;
    int32_t right;
    uint32_t op = 0, n = 0;
    char want[100];
    c.timeout_ms = WAIT_MS;
    if (!tap_ok(rig_open(&c, &r, &err) == RS_OK, "opens %s", err.msg))
        return;
    while (n < WHICH)
        n += r.prog.ops[++op].kind == OP_ALLREDUCE;
    for (int graph = 0; graph < 2; graph++)
        for (int late = 0; late < 2; late++) {
            if (rig_decode(&r, &id, 1, 100, graph != 0, &err) != RS_OK)
                tap_diag("%s", err.msg);
            right = rig_argmax(rig_logits(&r, 0), r.hp.vocab);
            r.choices[op].delay_rank = (int16_t)late;
            r.choices[op].delay_us = 3e3f * WAIT_MS;
            rig_generation(&r);
            err.msg[0] = '\0';
            const double t0 = now_us();
            const enum rs_result rc = rig_decode(&r, &id, 1, 100, graph != 0, &err);
            const double took = now_us() - t0;
            snprintf(want, sizeof want, "rank %d did not arrive at %s: GPU %d (rank %d) waited 0.2 s", late, r.prog.ops[op].site, !late, !late);
            tap_ok(rc == RS_EENGINE && strstr(err.msg, want) != NULL, "a rank that stays away, %s: %s", graph ? "graph" : "eager", err.msg);
            tap_ok(took > 1e3 * WAIT_MS && took < 2e4 * WAIT_MS, "after %.0f ms", took / 1e3);
            r.choices[op].delay_rank = -1;
            rig_generation(&r);
            tap_ok(rig_decode(&r, &id, 1, 100, graph != 0, &err) == RS_OK && rig_argmax(rig_logits(&r, 0), r.hp.vocab) == right, "and the next step is as ever");
        }
    rig_close(&r);
}

/* The same steps with and without stamps, in turns; the median of all pairs. */
static void overhead(const struct rig_config *base)
{
    struct rig with, without;
    struct rig_config c = *base;
    struct rs_error err = {.msg = ""};
    double a[ROUNDS], b[ROUNDS], cost[ROUNDS];
    struct figures f;
    c.no_stamps = true;
    if (!tap_ok(rig_open(base, &with, &err) == RS_OK && rig_open(&c, &without, &err) == RS_OK, "two backends side by side %s", err.msg))
        return;
    bool ok = run(&with, true, &f) && run(&without, true, &f);
    for (int i = 0; i < ROUNDS && ok; i++) {
        struct rig *first = i % 2 ? &with : &without, *second = i % 2 ? &without : &with;
        double *x = i % 2 ? a : b, *y = i % 2 ? b : a;
        ok = run(first, true, &f);
        x[i] = f.wall;
        ok = ok && run(second, true, &f);
        y[i] = f.wall;
        cost[i] = a[i] / b[i] - 1;
    }
    if (tap_ok(ok, "runs in turns")) {
        qsort(a, ROUNDS, sizeof *a, by_value);
        qsort(b, ROUNDS, sizeof *b, by_value);
        qsort(cost, ROUNDS, sizeof *cost, by_value);
        tap_diag("a step %.1f us with stamps, %.1f us without: %.2f %% (quartiles %.2f and %.2f)", a[ROUNDS / 2], b[ROUNDS / 2], cost[ROUNDS / 2] * 100,
                 cost[ROUNDS / 4] * 100, cost[ROUNDS * 3 / 4] * 100);
    }
    rig_close(&with);
    rig_close(&without);
}

int main(void)
{
    const char *why;
    if (backend_cuda_devices(&why) < 2)
        tap_skip_all("no two GPUs");
    char path[600];
    struct rs_error err = {.msg = ""};
    struct rig r;
    snprintf(path, sizeof path, "%s", tap_source("models/tiny-glm5-q4.gguf"));
    struct rig_config c = {.path = path, .ranks = 2, .gpus = 2, .only_rank = -1, .max_rows = 8, .max_keys = 512, .cache = KRN_CACHE_F16, .bf16 = true};
    if (tap_ok(rig_open(&c, &r, &err) == RS_OK, "opens %s", err.msg)) {
        late(&r, true, "one-shot, graph");
        late(&r, false, "one-shot, eager");
        rig_close(&r);
    }
    c.nccl = true;
    if (tap_ok(rig_open(&c, &r, &err) == RS_OK, "opens %s", err.msg)) {
        struct figures f;
        if (tap_ok(run(&r, true, &f) && f.n_reduces == r.prog.n_allreduces, "NCCL: every reduce of a graph has its times"))
            tap_diag("NCCL, graph: step %.1f us; rank 0 %.2f us each (wait %.2f), rank 1 %.2f us (wait %.2f)", f.wall, f.whole[0] / f.n_reduces,
                     f.wait[0] / f.n_reduces, f.whole[1] / f.n_reduces, f.wait[1] / f.n_reduces);
        rig_close(&r);
    }
    c.nccl = false;
    away(&c);
    overhead(&c);
    return tap_done();
}
