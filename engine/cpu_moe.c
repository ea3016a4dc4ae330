/* CPU: router and experts. Pairs (row, expert) are grouped by expert, so that a weight is read once for all rows that chose it; a row's experts
 * are always added in ascending order of expert, whatever the batch, so the sum has one order. */
#include <string.h>

#include "engine/cpu.h"
#include "kernels/quant.h"

bool cpu_router_is_large(const struct cpu *c, uint32_t bucket)
{
    return (uint64_t)c->hp->n_experts * c->hp->n_embd * bucket > 32768;
}

/* One: a worker alone. Two: rows shared out, which needs rows for everyone and weights that stay in every worker's cache; then the grouping. Three:
 * the experts are shared out first, then the rows. */
static uint32_t router_phases(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    enum { SMALL = 1 << 16, EACH = 4 }; /* weights; rows of a worker */
    (void)op, (void)ch;
    if (!cpu_router_is_large(c, bucket))
        return 1;
    return (uint64_t)c->hp->n_experts * c->hp->n_embd <= SMALL && bucket >= EACH * c->n_workers ? 2 : 3;
}

/* Experts [e0, e1) of rows [from, to). */
static void router_logits(const struct cpu_call *k, size_t e0, size_t e1, size_t from, size_t to)
{
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[0]);
    if (e0 >= e1 || from >= to)
        return;
    struct krn_matmul m = {.type = v->type, .w = v->data, .w_stride = v->stride, .k = v->k, .row0 = e0, .row1 = e1,
                           .x = (const uint8_t *)cpu_at(k, &k->op->in[0], from), .x_stride = k->prog->width[BUF_H][k->rank] * sizeof(float),
                           .n_cols = to - from, .y = cpu_at(k, &k->op->out[0], from), .y_stride = k->c->hp->n_experts};
    k->c->mm->f32(&m);
}

static void router_choose(const struct cpu_call *k, size_t from, size_t to)
{
    const struct hparams *hp = k->c->hp;
    const struct op_view *bias = plan_view(k->prog, k->rank, k->op->w[1]);
    for (size_t i = from; i < to; i++) {
        float *score = cpu_at(k, &k->op->out[0], i), logits[HP_MAX_EXPERTS];
        float *choice = cpu_at(k, &k->op->out[1], i);
        memcpy(logits, score, hp->n_experts * sizeof *score);
        struct krn_route a = {.logits = logits, .bias = bias->rows != 0 ? (const float *)(const void *)bias->data : NULL, .n_experts = hp->n_experts,
                              .n_used = hp->n_used, .n_groups = hp->n_groups, .n_groups_used = hp->n_groups_used,
                              .sigmoid = hp->gating == HP_GATING_SIGMOID, .norm = hp->expert_norm, .scale = hp->expert_scale, .p = score,
                              .ids = (int32_t *)(void *)choice, .weights = choice + hp->n_used};
        k->c->vec->route(&a);
    }
}

/* Counting sort by expert; rows ascend within an expert. */
void cpu_group_rows(const float *choice, size_t stride, uint32_t n_rows, uint32_t n_used, struct shard_range ex, struct cpu_routing *r)
{
    uint32_t n = ex.to - ex.from;
    int32_t at[HP_MAX_EXPERTS + 1];
    memset(r->group, 0, (n + 1) * sizeof *r->group);
    for (uint32_t i = 0; i < n_rows; i++) {
        const int32_t *ids = (const int32_t *)(const void *)(choice + i * stride);
        for (uint32_t j = 0; j < n_used; j++)
            if ((uint32_t)ids[j] >= ex.from && (uint32_t)ids[j] < ex.to)
                r->group[(uint32_t)ids[j] - ex.from + 1]++;
    }
    for (uint32_t e = 0; e < n; e++)
        r->group[e + 1] += r->group[e];
    memcpy(at, r->group, (n + 1) * sizeof *at);
    for (uint32_t i = 0; i < n_rows; i++) {
        const float *row = choice + i * stride;
        const int32_t *ids = (const int32_t *)(const void *)row;
        for (uint32_t j = 0; j < n_used; j++) {
            uint32_t e = (uint32_t)ids[j];
            if (e < ex.from || e >= ex.to)
                continue;
            int32_t p = at[e - ex.from]++;
            r->pair_row[p] = (int32_t)i;
            r->pair_weight[p] = row[n_used + j];
        }
    }
    r->n_pairs = (uint32_t)r->group[n];
}

void cpu_group_pairs(const struct cpu_call *k)
{
    struct cpu_routing *r = cpu_routing(k);
    cpu_group_rows(cpu_at(k, &k->op->out[1], 0), k->prog->width[k->op->out[1].buf][k->rank], k->b->n_rows, k->c->hp->n_used,
                   shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank)->experts, r);
    if (k->local && cpu_alone(k))
        k->c->rank[k->rank].routing.n_pairs = r->n_pairs; /* observers ask for it */
}

static void run_router(const struct cpu_call *k)
{
    size_t from, to;
    if (k->n_phases == 1) {
        if (!k->local && !cpu_alone(k))
            return;
        router_logits(k, 0, k->c->hp->n_experts, 0, k->b->n_rows);
        router_choose(k, 0, k->b->n_rows);
        cpu_group_pairs(k);
        cpu_publish(k, &k->op->out[0], k->b->n_rows);
        cpu_publish(k, &k->op->out[1], k->b->n_rows);
    } else if (k->phase == 0 && k->n_phases == 2) {
        cpu_cut(k, k->b->n_rows, 1, &from, &to);
        router_logits(k, 0, k->c->hp->n_experts, from, to);
        router_choose(k, from, to);
    } else if (k->phase == 0) {
        cpu_cut(k, k->c->hp->n_experts, CPU_ROW_UNIT, &from, &to);
        router_logits(k, from, to, 0, k->b->n_rows);
    } else if (k->phase == 1 && k->n_phases == 3) {
        cpu_cut(k, k->b->n_rows, 1, &from, &to);
        router_choose(k, from, to);
    } else if (cpu_alone(k)) {
        cpu_group_pairs(k);
    }
}

void cpu_own_pairs(const struct cpu_call *k, uint32_t e, int32_t *from, int32_t *to)
{
    const struct cpu_routing *r = cpu_routing(k);
    size_t row0, row1;
    *from = r->group[e];
    *to = r->group[e + 1];
    if (k->by == CPU_BY_WEIGHTS)
        return;
    if (k->by == CPU_BY_PAIRS) {
        cpu_cut(k, r->n_pairs, 1, &row0, &row1);
        *from = *from > (int32_t)row0 ? *from : (int32_t)row0;
        *to = *to < (int32_t)row1 ? *to : (int32_t)row1;
        return;
    }
    cpu_cut(k, k->b->n_rows, 1, &row0, &row1);
    while (*from < *to && (size_t)r->pair_row[*from] < row0)
        ++*from;
    while (*to > *from && (size_t)r->pair_row[*to - 1] >= row1)
        --*to;
}

/* The batch's rows quantised for the experts; NULL: this call has nothing more to do. By rows those of this call, where its pairs will look for them. */
static const uint8_t *quantised_rows(const struct cpu_call *k, bool int8, size_t *stride)
{
    const size_t width = k->c->hp->n_embd;
    uint8_t *q8 = k->c->rank[k->rank].q8;
    size_t from, to;
    if (k->by != CPU_BY_ROWS)
        return cpu_quantised(k, int8, width, k->b->n_rows, stride);
    *stride = krn_q8_row_bytes(width);
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to && int8; i++)
        k->c->mm->quantise_row(cpu_at(k, &k->op->in[0], i), q8 + i * *stride, width);
    return q8;
}

static void run_moe_gate_up(const struct cpu_call *k)
{
    const struct cpu_routing *r = cpu_routing(k);
    const struct op_view *gate = plan_view(k->prog, k->rank, k->op->w[0]), *up = plan_view(k->prog, k->rank, k->op->w[1]);
    bool int8 = gate->rows != 0 && (cpu_int8(k->choice, gate) || cpu_int8(k->choice, up));
    size_t stride, from, to, half = gate->rows;
    const uint8_t *q8 = quantised_rows(k, int8, &stride);
    if (q8 == NULL || half == 0)
        return;
    const bool swapped = k->choice->file_order && k->op->file_slot[0] == 1;
    cpu_cut(k, k->local ? half : 2 * half, CPU_ROW_UNIT, &from, &to); /* local: the same rows of gate and up, for the activation */
    for (uint32_t e = 0; e < gate->n_mats; e++) {
        int32_t p0, p1;
        cpu_own_pairs(k, e, &p0, &p1);
        for (uint32_t s = 0; s < 2 && p0 < p1; s++) {
            uint32_t slot = swapped ? 1 - s : s;
            const struct op_view *v = slot == 0 ? gate : up;
            size_t a = s * half, r0 = from > a ? from - a : 0, r1 = to > a ? (to - a < half ? to - a : half) : 0;
            if (k->local || k->by != CPU_BY_WEIGHTS) {
                r0 = k->local ? from : 0;
                r1 = k->local ? to : half;
            }
            bool i8 = cpu_int8(k->choice, v);
            if (r0 >= r1)
                continue;
            struct krn_matmul m = {.type = v->type, .w = v->data + e * v->mat_stride, .packed = cpu_packed(k, slot, e),
                                   .w_stride = v->stride, .k = v->k, .row0 = r0, .row1 = r1, .x = i8 ? q8 : (const uint8_t *)cpu_at(k, &k->op->in[0], 0),
                                   .x_stride = i8 ? stride : k->prog->width[BUF_H][k->rank] * sizeof(float), .x_index = r->pair_row + p0,
                                   .n_cols = (size_t)(p1 - p0), .y = cpu_at(k, &k->op->out[0], (size_t)p0) + a, .y_stride = k->prog->width[BUF_MGU][k->rank]};
            if (i8)
                k->c->mm->q8(&m);
            else
                k->c->mm->f32(&m);
        }
    }
}

/* Pairs [p0, p1) of expert e by rows [from, to) of its weights, into their rows' sums or, by pairs, apart. q8: those pairs' activations, if int8. */
static void down_pairs(const struct cpu_call *k, uint32_t e, int32_t p0, int32_t p1, size_t from, size_t to, bool int8, const uint8_t *q8, size_t stride)
{
    const struct cpu_routing *r = cpu_routing(k);
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[0]);
    struct krn_matmul m = {.type = v->type, .w = v->data + e * v->mat_stride, .packed = cpu_packed(k, 0, e), .w_stride = v->stride, .k = v->k, .row0 = from,
                           .row1 = to, .x = int8 ? q8 : (const uint8_t *)cpu_at(k, &k->op->in[0], (size_t)p0),
                           .x_stride = int8 ? stride : k->prog->width[BUF_MACT][k->rank] * sizeof(float), .n_cols = (size_t)(p1 - p0),
                           .y = cpu_at(k, &k->op->out[0], 0), .y_stride = k->prog->width[BUF_A][k->rank], .y_index = r->pair_row + p0, .accumulate = true,
                           .col_scale = r->pair_weight + p0};
    if (k->by == CPU_BY_PAIRS) {
        m.y = k->c->rank[k->rank].pair_out + (size_t)p0 * m.y_stride;
        m.y_index = NULL;
        m.accumulate = false;
    }
    if (int8)
        k->c->mm->q8(&m);
    else
        k->c->mm->f32(&m);
}

/* All of this call's pairs, some of an expert at a time. */
static void down_own(const struct cpu_call *k, const struct op_view *v, bool int8)
{
    const size_t out = k->prog->width[BUF_A][k->rank], stride = krn_q8_row_bytes(v->k);
    uint8_t *q8 = k->c->scratch[k->worker];
    for (uint32_t e = 0; v->rows != 0 && e < v->n_mats; e++) {
        int32_t p0, p1;
        cpu_own_pairs(k, e, &p0, &p1);
        for (; p0 < p1; p0 += CPU_ROW_BLOCK) {
            const int32_t end = p1 - p0 < CPU_ROW_BLOCK ? p1 : p0 + CPU_ROW_BLOCK;
            for (int32_t p = p0; p < end && int8; p++)
                k->c->mm->quantise_row(cpu_at(k, &k->op->in[0], (size_t)p), q8 + (size_t)(p - p0) * stride, v->k);
            down_pairs(k, e, p0, end, 0, out, int8, q8, stride);
        }
    }
}

static void clear_rows(const struct cpu_call *k)
{
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++)
        memset(cpu_at(k, &k->op->out[0], i), 0, k->prog->width[BUF_A][k->rank] * sizeof(float));
}

/* What this call's rows get from their pairs, which come in ascending order of expert. */
static void add_pairs(const struct cpu_call *k)
{
    const struct cpu_routing *r = cpu_routing(k);
    const size_t out = k->prog->width[BUF_A][k->rank];
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (uint32_t p = 0; p < r->n_pairs; p++)
        if ((size_t)r->pair_row[p] >= from && (size_t)r->pair_row[p] < to)
            k->c->vec->add(k->c->rank[k->rank].pair_out + p * out, cpu_at(k, &k->op->out[0], (size_t)r->pair_row[p]), out);
}

static void run_moe_down(const struct cpu_call *k)
{
    const struct cpu_routing *r = cpu_routing(k);
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[0]);
    bool int8 = v->rows != 0 && cpu_int8(k->choice, v);
    size_t stride, from, to, out = k->prog->width[BUF_A][k->rank];
    if (k->by == CPU_BY_PAIRS ? k->phase == 1 : k->by == CPU_BY_ROWS)
        clear_rows(k);
    if (k->by == CPU_BY_PAIRS && k->phase == 1) {
        if (v->rows != 0)
            add_pairs(k);
        return;
    }
    if (k->by != CPU_BY_WEIGHTS) {
        down_own(k, v, int8);
        return;
    }
    const uint8_t *q8 = cpu_quantised(k, int8, v->k, r->n_pairs, &stride);
    if (q8 == NULL)
        return;
    cpu_cut(k, out, CPU_ROW_UNIT, &from, &to);
    for (uint32_t i = 0; i < k->b->n_rows && from < to; i++)
        memset(cpu_at(k, &k->op->out[0], i) + from, 0, (to - from) * sizeof(float));
    for (uint32_t e = 0; v->rows != 0 && e < v->n_mats && from < to; e++)
        if (r->group[e] < r->group[e + 1])
            down_pairs(k, e, r->group[e], r->group[e + 1], from, to, int8, q8 + (size_t)r->group[e] * stride, stride);
}

const struct cpu_launch CPU_ROUTER = {router_phases, run_router}, CPU_MOE_GATE_UP = {cpu_linear_phases, run_moe_gate_up}, CPU_MOE_DOWN = {cpu_linear_phases, run_moe_down};
