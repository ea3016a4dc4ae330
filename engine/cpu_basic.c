/* CPU ops that are one simple loop over rows. */
#include <string.h>

#include "engine/cpu.h"

static uint32_t one_phase(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    (void)c, (void)op, (void)ch, (void)bucket;
    return 1;
}

static void run_rmsnorm(const struct cpu_call *k)
{
    const struct op_view *w = plan_view(k->prog, k->rank, k->op->w[0]);
    uint32_t n = cpu_width(k, &k->op->in[0]);
    size_t from, to;
    cpu_cut_rows(k, cpu_rows(k), &from, &to);
    for (size_t i = from; i < to; i++)
        k->c->vec->rmsnorm(cpu_at(k, &k->op->in[0], i), (const float *)(const void *)w->data, k->c->hp->eps, cpu_at(k, &k->op->out[0], i), n);
    cpu_publish(k, &k->op->out[0], cpu_rows(k));
}

/* Only the values that this worker made: those of its rows of the projection. Its cut is even, so it leaves no pair apart. */
static void rope_own(const struct cpu_call *k, uint32_t heads, uint32_t half)
{
    const struct hparams *hp = k->c->hp;
    size_t from, to;
    cpu_cut(k, (size_t)heads * hp->k_mla, CPU_ROW_UNIT, &from, &to);
    for (size_t row = 0; row < k->b->n_rows; row++)
        for (size_t h = from / hp->k_mla; h * hp->k_mla < to; h++) {
            size_t a = h * hp->k_mla + hp->nope, z = (h + 1) * hp->k_mla;
            a = a > from ? a : from;
            z = z < to ? z : to;
            if (a >= z)
                continue;
            size_t pair = (a - h * hp->k_mla - hp->nope) / 2, angle = (size_t)k->b->pos[row] * half + pair;
            k->c->vec->rope(cpu_at(k, &k->op->in[0], row) + a, k->c->rope_cos + angle, k->c->rope_sin + angle, (z - a) / 2, true);
        }
}

static void run_rope_q(const struct cpu_call *k)
{
    const struct hparams *hp = k->c->hp;
    const struct shard_layer *s = shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank);
    uint32_t heads = s->heads.to - s->heads.from, half = hp->rope / 2;
    size_t from, to;
    if (k->local) {
        rope_own(k, heads, half);
        return;
    }
    const uint32_t each = k->by == CPU_BY_ROWS ? heads : 1; /* heads that are cut together */
    if (heads == 0)
        return;
    cpu_cut(k, (size_t)k->b->n_rows * heads / each, 1, &from, &to);
    for (size_t i = from * each; i < to * each; i++) {
        size_t row = i / heads, h = i % heads;
        const size_t angle = (size_t)k->b->pos[row] * half;
        k->c->vec->rope(cpu_at(k, &k->op->in[0], row) + h * hp->k_mla + hp->nope, k->c->rope_cos + angle, k->c->rope_sin + angle, half, true);
    }
}

static void run_add(const struct cpu_call *k)
{
    size_t from, to, n = cpu_width(k, &k->op->in[0]);
    if (k->local) { /* the columns that this worker made */
        cpu_cut(k, n, CPU_ROW_UNIT, &from, &to);
        for (size_t i = 0; i < k->b->n_rows && from < to; i++)
            k->c->vec->add(cpu_at(k, &k->op->in[0], i) + from, cpu_at(k, &k->op->out[0], i) + from, to - from);
        return;
    }
    cpu_cut(k, k->b->n_rows, 1, &from, &to); /* both buffers are whole rows, so this share is one long vector */
    if (from < to)
        k->c->vec->add(cpu_at(k, &k->op->in[0], from), cpu_at(k, &k->op->out[0], from), (to - from) * n);
}

static void silu_span(const struct cpu_call *k, size_t from, size_t to, uint32_t half)
{
    for (size_t i = from; i < to; i++) {
        const float *g = cpu_at(k, &k->op->in[0], i);
        k->c->vec->silu_mul(g, g + half, cpu_at(k, &k->op->out[0], i), half);
    }
}

/* [gate | up] of `half` columns each, per row, to act. */
static void silu_rows(const struct cpu_call *k, size_t rows, uint32_t half)
{
    size_t from, to;
    if (half == 0)
        return;
    if (k->local) {
        size_t a, z;
        cpu_cut(k, half, CPU_ROW_UNIT, &a, &z);
        for (size_t row = 0; row < rows && a < z; row++) {
            const float *g = cpu_at(k, &k->op->in[0], row) + a;
            k->c->vec->silu_mul(g, g + half, cpu_at(k, &k->op->out[0], row) + a, z - a);
        }
        return;
    }
    cpu_cut(k, rows, 1, &from, &to);
    silu_span(k, from, to, half);
}

static void run_silu_mul(const struct cpu_call *k)
{
    const struct shard_layer *s = shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank);
    bool moe = k->c->w->layers[k->op->layer].moe;
    silu_rows(k, k->b->n_rows, moe ? s->shared.to - s->shared.from : s->ff.to - s->ff.from);
}

static void run_moe_silu_mul(const struct cpu_call *k)
{
    const struct shard_layer *s = shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank);
    const uint32_t half = s->ff_exp.to - s->ff_exp.from;
    if (k->by != CPU_BY_ROWS) {
        silu_rows(k, cpu_routing(k)->n_pairs, half);
        return;
    }
    for (uint32_t e = 0; e < s->experts.to - s->experts.from && half != 0; e++) {
        int32_t from, to;
        cpu_own_pairs(k, e, &from, &to);
        silu_span(k, (size_t)from, (size_t)to, half);
    }
}

static void run_pick_rows(const struct cpu_call *k)
{
    size_t from, to, n = cpu_width(k, &k->op->in[0]);
    cpu_cut_rows(k, k->b->n_logits, &from, &to);
    for (size_t i = from; i < to; i++)
        memcpy(cpu_at(k, &k->op->out[0], i), cpu_at(k, &k->op->in[0], (size_t)k->b->logit_row[i]), n * sizeof(float));
    cpu_publish(k, &k->op->out[0], k->b->n_logits);
}

/* The step before was the main stack (weight 0 is its last norm) or, for drafts after the first, this block (weight 1). */
static void hidden(const struct cpu_call *k, bool normed)
{
    const struct op_view *w = plan_view(k->prog, k->rank, k->op->w[k->b->chained ? 1 : 0]);
    size_t from, to, n = cpu_width(k, &k->op->in[0]);
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        const float *x = cpu_at(k, &k->op->in[0], (size_t)k->b->from[i]);
        if (normed)
            k->c->vec->rmsnorm(x, (const float *)(const void *)w->data, k->c->hp->eps, cpu_at(k, &k->op->out[0], i), n);
        else
            memcpy(cpu_at(k, &k->op->out[0], i), x, n * sizeof *x);
    }
}

static void run_hidden_normed(const struct cpu_call *k) { hidden(k, true); }
static void run_hidden_raw(const struct cpu_call *k) { hidden(k, false); }

/* Every rank's part of the vocabulary into one row; BUF_FULL is one buffer that all ranks share. */
static void run_gather(const struct cpu_call *k)
{
    size_t from, to, n = k->prog->width[BUF_LOGITS][k->rank];
    if (k->local) { /* the columns that this worker made */
        cpu_cut(k, n, CPU_ROW_UNIT, &from, &to);
        for (size_t i = 0; i < k->b->n_logits && from < to; i++)
            memcpy(cpu_at(k, &k->op->out[0], i) + k->c->shard->vocab[k->rank].from + from, cpu_at(k, &k->op->in[0], i) + from, (to - from) * sizeof(float));
        return;
    }
    cpu_cut(k, k->b->n_logits, 1, &from, &to);
    for (size_t i = from; i < to; i++)
        memcpy(cpu_at(k, &k->op->out[0], i) + k->c->shard->vocab[k->rank].from, cpu_at(k, &k->op->in[0], i), n * sizeof(float));
}

static void run_embed(const struct cpu_call *k)
{
    const struct op_view *w = plan_view(k->prog, k->rank, k->op->w[0]);
    uint32_t n = cpu_width(k, &k->op->out[0]);
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        uint32_t id = (uint32_t)k->b->token[i];
        float *y = cpu_at(k, &k->op->out[0], i);
        if (id >= w->row0 && id - w->row0 < w->rows)
            k->c->mm->dequant(w->type, w->data + (size_t)(id - w->row0) * w->stride, y, n);
        else
            memset(y, 0, n * sizeof *y);
    }
}

const struct cpu_launch CPU_RMSNORM = {one_phase, run_rmsnorm}, CPU_ROPE_Q = {one_phase, run_rope_q}, CPU_ADD = {one_phase, run_add},
                        CPU_SILU_MUL = {one_phase, run_silu_mul}, CPU_MOE_SILU_MUL = {one_phase, run_moe_silu_mul},
                        CPU_PICK_ROWS = {one_phase, run_pick_rows}, CPU_GATHER = {one_phase, run_gather}, CPU_EMBED = {one_phase, run_embed},
                        CPU_HIDDEN_NORMED = {one_phase, run_hidden_normed}, CPU_HIDDEN_RAW = {one_phase, run_hidden_raw};
