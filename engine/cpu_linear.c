/* CPU ops that multiply rows by a weight: plain, fused slots.
 *
 * int8: activations are quantised first. Few rows: every worker quantises all of them into its own scratch, which is cheaper than meeting at a
 * barrier. Many rows: a phase of its own, shared. The products are the same bits either way. */
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
    (void)c, (void)op;
    return ch->matmul == MATMUL_INT8 && bucket > CPU_PRIVATE_ROWS ? 2 : 1;
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

/* Rows [r0, r1) of one weight, for all rows of the batch, to columns starting at `col` of the output. */
static void multiply(const struct cpu_call *k, uint32_t slot, size_t r0, size_t r1, size_t col, const uint8_t *q8, size_t q8_stride, uint32_t n)
{
    if (r0 >= r1 || n == 0)
        return;
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[slot]);
    bool int8 = cpu_int8(k->choice, v);
    struct krn_matmul m = {
        .type = v->type, .w = v->data, .packed = cpu_packed(k, slot, 0), .w_stride = v->stride, .k = v->k, .row0 = r0, .row1 = r1,
        .x = int8 ? q8 : (const uint8_t *)cpu_at(k, &k->op->in[0], 0),
        .x_stride = int8 ? q8_stride : k->prog->width[k->op->in[0].buf][k->rank] * sizeof(float),
        .n_cols = n, .y = cpu_at(k, &k->op->out[0], 0) + col, .y_stride = k->prog->width[k->op->out[0].buf][k->rank], .accumulate = k->op->accumulate,
    };
    if (int8)
        k->c->mm->q8(&m);
    else
        k->c->mm->f32(&m);
}

static void run_linear(const struct cpu_call *k)
{
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[0]);
    uint32_t n = cpu_rows(k);
    size_t stride, from, to;
    const uint8_t *q8 = cpu_quantised(k, any_int8(k), v->k, n, &stride);
    if (q8 == NULL)
        return;
    if (v->rows == 0) { /* an empty shard contributes zeros to a partial sum, nothing to a sharded one */
        if (k->op->out[0].layout == OP_PARTIAL && !k->op->accumulate && cpu_alone(k))
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = 0; j < cpu_width(k, &k->op->out[0]); j++)
                    cpu_at(k, &k->op->out[0], i)[j] = 0;
        return;
    }
    cpu_cut(k, v->rows, CPU_ROW_UNIT, &from, &to);
    multiply(k, 0, from, to, 0, q8, stride, n);
}

/* Slots side by side as one long list of rows. Joined by slot, or, as the story's bug does it, by the order in which the file holds them. */
static void run_slots(const struct cpu_call *k, bool file_order, bool apart)
{
    uint32_t n = cpu_rows(k), width = cpu_width(k, &k->op->in[0]);
    uint32_t slot[OP_MAX_W];
    size_t rows[OP_MAX_W], stride, base[OP_MAX_W], total = 0, from, to;
    const uint8_t *q8 = cpu_quantised(k, any_int8(k), width, n, &stride);
    if (q8 == NULL)
        return;
    for (uint32_t p = 0; p < k->op->n_w; p++) {
        slot[p] = file_order ? k->op->file_slot[p] : p;
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
            multiply(k, slot[p], f, t, base[p], q8, stride, n);
        } else if (from < z && to > a) {
            multiply(k, slot[p], from > a ? from - a : 0, (to < z ? to : z) - a, base[p], q8, stride, n);
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
    return most * pairs;
}

const struct cpu_launch CPU_LINEAR = {cpu_linear_phases, run_linear}, CPU_QKV_FUSED = {cpu_linear_phases, run_slots_fused},
                        CPU_QKV_SPLIT = {cpu_linear_phases, run_slots_apart}, CPU_GATE_UP = {cpu_linear_phases, run_slots_fused};
