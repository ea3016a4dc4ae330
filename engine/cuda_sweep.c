/* Which all-reduce for which size: measured in place when a model has been opened, on its own buffers and with what is fused into it, inside a
 * graph as in a step. Only the time is at stake: one shot and two give the same bits. */
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_op.h"
#include "engine/error.h"
#include "engine/now.h"

enum { REPEATS = 3 /* the first warms up */, IN_A_ROW = 16, FEW = 4 /* of many rows */, MANY_ROWS = 256 };

/* What all GPUs do together, and what of it each has found. */
struct sweep {
    struct backend_step step;
    struct choice *choices; /* one per op */
    const struct op *op;
    uint32_t rows;
};

static int in_a_row(const struct sweep *s)
{
    return s->rows < MANY_ROWS ? IN_A_ROW : FEW;
}

static const struct op_impl *first_impl(enum op_kind kind, const char *name)
{
    for (size_t i = 0; i < CUDA_N_IMPLS; i++)
        if (CUDA_IMPLS[i].kind == kind && (name == NULL || strcmp(CUDA_IMPLS[i].name, name) == 0))
            return &CUDA_IMPLS[i];
    return NULL;
}

/* One reduce, so that the GPUs are in step, then several between two stamps. */
static enum rs_result launch_series(struct cuda_gpu *g, const struct sweep *s)
{
    struct cuda_walk w = {.g = g,
                          .c = g->c,
                          .s = &s->step,
                          .prog = s->step.prog,
                          .rows = s->rows,
                          .l = {.stream = g->stream},
                          .fuse = g->c->cfg.fuse,
                          .op = s->op,
                          .ch = &s->choices[s->op->index],
                          .rotate_op = -1,
                          .err = &g->err};
    enum rs_result rc = RS_OK;
    for (int i = 0; i <= in_a_row(s) && rc == RS_OK; i++) {
        g->n_launched = 0;
        rc = cuda_op_join(&w);
        if (rc != RS_OK || (i != 0 && i != in_a_row(s)))
            continue;
        w.l.stamp = &g->done[i != 0];
        g->n_launched = 0;
        rc = cuda_op_after(&w, kcu_stamp(&w.l), 1);
    }
    g->n_reduces = w.ordinal;
    return rc;
}

static void job_time(struct cuda_gpu *g)
{
    uint32_t epoch = g->c->epoch;
    for (int i = 0; i < REPEATS && g->rc == RS_OK; i++, epoch += g->n_reduces) {
        g->meta_host[0] = (int32_t)epoch;
        cudaError_t e = cudaMemcpyAsync(g->meta, g->meta_host, sizeof *g->meta, cudaMemcpyHostToDevice, g->stream);
        if (e == cudaSuccess)
            e = cudaGraphLaunch(g->sweep_exec, g->stream);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(g->stream);
        if (e != cudaSuccess)
            g->rc = cuda_fail(&g->err, e, "measuring all-reduces", g->device);
        const double us = (double)(g->done[1] - g->done[0]) * 1e-3 / in_a_row(g->c->sweeping);
        if (i == 1 || (i > 1 && us < g->sweep_us))
            g->sweep_us = us;
    }
}

static void job_series(struct cuda_gpu *g)
{
    const struct sweep *s = g->c->sweeping;
    cudaGraph_t graph = NULL;
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess)
        e = cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) {
        g->rc = cuda_fail(&g->err, e, "measuring all-reduces", g->device);
        return;
    }
    g->rc = launch_series(g, s);
    e = cudaStreamEndCapture(g->stream, &graph);
    if (g->rc == RS_OK && e == cudaSuccess)
        e = cudaGraphInstantiate(&g->sweep_exec, graph, 0);
    if (g->rc == RS_OK && e != cudaSuccess)
        g->rc = cuda_fail(&g->err, e, "measuring all-reduces", g->device);
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
}

static void job_drop(struct cuda_gpu *g)
{
    if (g->sweep_exec != NULL)
        (void)cudaGraphExecDestroy(g->sweep_exec);
    g->sweep_exec = NULL;
}

/* Microseconds of a reduce where it takes longest. */
static enum rs_result measure(struct cuda *c, struct sweep *s, const char *name, bool bf16, double *us, struct rs_error *err)
{
    s->choices[s->op->index].impl = first_impl(OP_ALLREDUCE, name);
    s->choices[s->op->index].bf16 = bf16;
    c->sweeping = s;
    enum rs_result rc = cuda_all(c, job_series, err);
    if (rc == RS_OK)
        rc = cuda_all(c, job_time, err);
    (void)cuda_all(c, job_drop, NULL);
    c->epoch += REPEATS * c->gpu[0].n_reduces;
    *us = 0;
    for (uint32_t k = 0; k < c->n_gpus && rc == RS_OK; k++) {
        *us = c->gpu[k].sweep_us > *us ? c->gpu[k].sweep_us : *us;
        if (c->fault[k] != 0)
            rc = error_set(err, RS_EENGINE, "GPU %d waited for rank %u, which did not come, while all-reduces were measured", c->gpu[k].device,
                           c->fault[k] >> 24);
    }
    return rc;
}

/* From the smallest size on from which two shots are always the faster way. */
static uint32_t decide(const struct cuda *c, bool bf16)
{
    uint32_t from = 0;
    for (uint32_t i = c->sweep.n; i-- > 0;) {
        if (c->sweep.at[i].bf16 != bf16)
            continue;
        if (c->sweep.at[i].two_shot_us >= c->sweep.at[i].flat_us)
            break;
        from = c->sweep.at[i].rows;
    }
    return from;
}

/* The reduce of a layer, with the residual behind it. */
static const struct op *typical(const struct program *p)
{
    const struct op *found = NULL;
    for (uint32_t i = 0; i + 1 < p->n_ops; i++)
        if (p->ops[i].kind == OP_ALLREDUCE && (found == NULL || p->ops[i + 1].kind == OP_ADD)) {
            found = &p->ops[i];
            if (p->ops[i + 1].kind == OP_ADD)
                break;
        }
    return found;
}

/* One payload, from one row to as many as a step or a launch has. */
static enum rs_result sweep_rows(struct cuda *c, struct sweep *s, bool bf16, struct rs_error *err)
{
    const uint32_t most = c->lim.max_rows < CUDA_TWO_SHOT_ROWS ? c->lim.max_rows : CUDA_TWO_SHOT_ROWS;
    enum rs_result rc = RS_OK;
    for (s->rows = 1; rc == RS_OK && c->sweep.n < BACKEND_MAX_SWEEP; s->rows = s->rows * 4 < most ? s->rows * 4 : most) {
        double flat = 0, two = 0;
        rc = measure(c, s, "flat", bf16, &flat, err);
        if (rc == RS_OK)
            rc = measure(c, s, "two-shot", bf16, &two, err);
        if (rc != RS_OK)
            return rc;
        const uint32_t i = c->sweep.n++;
        c->sweep.at[i].rows = s->rows;
        c->sweep.at[i].bytes = (uint64_t)s->rows * c->hp->n_embd * (bf16 ? 2 : 4);
        c->sweep.at[i].bf16 = bf16;
        c->sweep.at[i].flat_us = flat;
        c->sweep.at[i].two_shot_us = two;
        if (s->rows == most)
            break;
    }
    c->sweep.from_rows[bf16] = decide(c, bf16);
    return rc;
}

enum rs_result cuda_sweep(struct cuda *c, struct rs_error *err)
{
    const struct program *p = c->prog[0];
    struct sweep s = {.op = typical(p), .step = {.prog = p, .graph = true, .graph_guard = true, .fast = true}};
    const uint64_t t0 = now_us();
    if (c->two_shot_room == 0 || s.op == NULL)
        return RS_OK;
    s.choices = calloc(p->n_ops, sizeof *s.choices);
    if (s.choices == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for measuring all-reduces");
    for (uint32_t i = 0; i < p->n_ops; i++)
        s.choices[i] = (struct choice){.impl = first_impl(p->ops[i].kind, NULL), .delay_rank = -1};
    s.step.choices = s.choices;
    enum rs_result rc = sweep_rows(c, &s, false, err);
    if (rc == RS_OK)
        rc = sweep_rows(c, &s, true, err);
    c->sweeping = NULL;
    free(s.choices);
    c->sweep.took_ms = (double)(now_us() - t0) * 1e-3;
    return rc;
}
