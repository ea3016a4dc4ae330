/* CPU ops that multiply rows by a weight: plain, fused slots.
 *
 * int8: activations are quantised first. Few rows: every worker quantises all of them into its own scratch, which is cheaper than meeting at a
 * barrier. Many rows: a phase of its own, shared. Where each worker has rows of its own (CPU_BY_ROWS): some of those at a time, each for itself. The products
 * are the same bits whichever way. */
#include <string.h>

#include "engine/cpu.h"
#include "kernels/quant.h"
#include "kernels/type.h"

bool cpu_int8(const struct choice *ch, const struct op_view *v)
{
    return ch->matmul == MATMUL_INT8 && krn_type_info(v->type)->quantised && v->k % 32 == 0;
}

static bool any_int8(const struct cpu_call *k)
{
    for (uint32_t s = 0; s < k->op->n_w; s++) {
        const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[s]);
        if (v->rows != 0 && cpu_int8(k->choice, v))
            return true;
    }
    return false;
}

uint32_t cpu_linear_phases(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    const enum cpu_by by = cpu_by(c, op, bucket);
    if (by == CPU_BY_PAIRS && op->kind == OP_MOE_DOWN)
        return 2; /* the pairs, then their sums */
    return ch->matmul == MATMUL_INT8 && bucket > CPU_PRIVATE_ROWS && by != CPU_BY_ROWS ? 2 : 1;
}

const uint8_t *cpu_quantised(const struct cpu_call *k, bool int8, size_t width, size_t n, size_t *stride)
{
    const bool own = k->n_phases == 1;
    uint8_t *q8 = own ? k->c->scratch[k->worker] : k->c->rank[k->rank].q8;
    size_t from = 0, to = n;
    *stride = krn_q8_row_bytes(width);
    if (!own)
        cpu_cut(k, n, 1, &from, &to);
    if (int8 && width != 0 && (own || k->phase == 0))
        for (size_t i = from; i < to; i++)
            k->c->mm->quantise_row(cpu_at(k, &k->op->in[0], i), q8 + i * *stride, width);
    return own || k->phase == 1 ? q8 : NULL;
}

/* Rows [r0, r1) of one weight, for n rows of the batch from `row` on, to columns starting at `col` of the output. q8: those rows quantised. */
static void multiply(const struct cpu_call *k, uint32_t slot, size_t r0, size_t r1, size_t col, const uint8_t *q8, size_t q8_stride, size_t row, size_t n)
{
    if (r0 >= r1 || n == 0)
        return;
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[slot]);
    bool int8 = cpu_int8(k->choice, v);
    struct krn_matmul m = {
        .type = v->type, .w = v->data, .packed = cpu_packed(k, slot, 0), .w_stride = v->stride, .k = v->k, .row0 = r0, .row1 = r1,
        .x = int8 ? q8 : (const uint8_t *)cpu_at(k, &k->op->in[0], row),
        .x_stride = int8 ? q8_stride : k->prog->width[k->op->in[0].buf][k->rank] * sizeof(float),
        .n_cols = n, .y = cpu_at(k, &k->op->out[0], row) + col, .y_stride = k->prog->width[k->op->out[0].buf][k->rank], .accumulate = k->op->accumulate,
    };
    if (int8)
        k->c->mm->q8(&m);
    else
        k->c->mm->f32(&m);
}

/* This call's rows of the batch by whole weights, joined in the order of slot[]. */
static void multiply_rows(const struct cpu_call *k, const uint32_t *slot)
{
    const bool int8 = any_int8(k);
    const size_t width = plan_view(k->prog, k->rank, k->op->w[0])->k, stride = krn_q8_row_bytes(width);
    uint8_t *q8 = k->c->scratch[k->worker];
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t row = from; row < to; row += CPU_ROW_BLOCK) {
        const size_t n = to - row < CPU_ROW_BLOCK ? to - row : CPU_ROW_BLOCK;
        for (size_t i = 0; i < n && int8; i++)
            k->c->mm->quantise_row(cpu_at(k, &k->op->in[0], row + i), q8 + i * stride, width);
        for (size_t p = 0, col = 0; p < k->op->n_w; p++) {
            const size_t rows = plan_view(k->prog, k->rank, k->op->w[slot[p]])->rows;
            multiply(k, slot[p], 0, rows, col, q8, stride, row, n);
            col += rows;
        }
    }
}

/* An empty shard contributes zeros to a partial sum, nothing to a sharded one. */
static void fill_empty(const struct cpu_call *k)
{
    size_t from = 0, to = cpu_rows(k);
    if (k->by == CPU_BY_ROWS)
        cpu_cut(k, to, 1, &from, &to);
    else if (!cpu_alone(k))
        return;
    if (k->op->out[0].layout == OP_PARTIAL && !k->op->accumulate)
        for (size_t i = from; i < to; i++)
            memset(cpu_at(k, &k->op->out[0], i), 0, cpu_width(k, &k->op->out[0]) * sizeof(float));
}

static void run_linear(const struct cpu_call *k)
{
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[0]);
    uint32_t n = cpu_rows(k);
    if (v->rows != 0 && k->by == CPU_BY_ROWS) {
        multiply_rows(k, (const uint32_t[]){0});
        return;
    }
    if (v->rows == 0 && (k->n_phases == 1 || k->phase == 1)) {
        fill_empty(k);
        return;
    }
    size_t stride, from, to;
    const uint8_t *q8 = cpu_quantised(k, any_int8(k), v->k, n, &stride);
    if (q8 == NULL)
        return;
    cpu_cut(k, v->rows, CPU_ROW_UNIT, &from, &to);
    multiply(k, 0, from, to, 0, q8, stride, 0, n);
}

/* Slots side by side as one long list of rows. Joined by slot, or, as the story's bug does it, by the order in which the file holds them. */
static void run_slots(const struct cpu_call *k, bool file_order, bool apart)
{
    uint32_t n = cpu_rows(k), width = cpu_width(k, &k->op->in[0]);
    uint32_t slot[OP_MAX_W];
    size_t rows[OP_MAX_W], stride, base[OP_MAX_W], total = 0, from, to;
    for (uint32_t p = 0; p < k->op->n_w; p++)
        slot[p] = file_order ? k->op->file_slot[p] : p;
    if (k->by == CPU_BY_ROWS) {
        multiply_rows(k, slot);
        return;
    }
    const uint8_t *q8 = cpu_quantised(k, any_int8(k), width, n, &stride);
    if (q8 == NULL)
        return;
    for (uint32_t p = 0; p < k->op->n_w; p++) {
        rows[p] = plan_view(k->prog, k->rank, k->op->w[slot[p]])->rows;
        base[p] = total;
        total += rows[p];
    }
    const bool by_halves = k->local && k->op->kind == OP_GATE_UP; /* the activation then finds both with the worker that needs them */
    cpu_cut(k, total, CPU_ROW_UNIT, &from, &to);
    for (uint32_t p = 0; p < k->op->n_w; p++) {
        size_t a = base[p], z = a + rows[p];
        if (apart || by_halves) { /* every projection on its own, each shared out over the workers */
            size_t f, t;
            cpu_cut(k, rows[p], CPU_ROW_UNIT, &f, &t);
            multiply(k, slot[p], f, t, base[p], q8, stride, 0, n);
        } else if (from < z && to > a) {
            multiply(k, slot[p], from > a ? from - a : 0, (to < z ? to : z) - a, base[p], q8, stride, 0, n);
        }
    }
}

static void run_slots_fused(const struct cpu_call *k)
{
    run_slots(k, k->choice->file_order, false);
}

static void run_slots_apart(const struct cpu_call *k)
{
    run_slots(k, false, true);
}

size_t cpu_linear_scratch(const struct cpu *c)
{
    size_t most = 0;
    for (int which = 0; which < 2; which++) {
        const struct program *p = c->prog[which];
        for (uint32_t r = 0; p != NULL && r < p->n_ranks; r++)
            for (uint32_t i = 0; i < p->n_views; i++) {
                size_t k = krn_q8_row_bytes((plan_view(p, r, i)->k + 31) / 32 * 32);
                most = k > most ? k : most;
            }
    }
    uint32_t pairs = CPU_PRIVATE_ROWS * (c->hp->n_used > 1 ? c->hp->n_used : 1);
    return most * (pairs > CPU_ROW_BLOCK ? pairs : CPU_ROW_BLOCK);
}

const struct cpu_launch CPU_LINEAR = {cpu_linear_phases, run_linear}, CPU_QKV_FUSED = {cpu_linear_phases, run_slots_fused},
                        CPU_QKV_SPLIT = {cpu_linear_phases, run_slots_apart}, CPU_GATE_UP = {cpu_linear_phases, run_slots_fused};
