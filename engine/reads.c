/* See reads.h. */
#include "engine/reads.h"

#include <math.h>

#include "kernels/type.h"

/* Distinct experts that the rows of a step choose of those on this rank. */
static double experts_read(const struct hparams *hp, uint32_t here, uint32_t rows)
{
    return here * (1 - pow(1 - (double)hp->n_used / hp->n_experts, rows));
}

double reads_bytes(const struct program *p, const struct op *o, uint32_t rank, const struct reads_step *s)
{
    const struct hparams *hp = p->hp;
    double sum = 0;
    for (int i = 0; i < o->n_w; i++) {
        const struct op_view *v = plan_view(p, rank, o->w[i]);
        const double row = v->rows != 0 ? (double)krn_row_bytes(v->type, v->k) : 0;
        if (o->kind == OP_EMBED)
            sum += row * s->rows;
        else if (o->kind == OP_MOE_GATE_UP || o->kind == OP_MOE_DOWN)
            sum += row * v->rows * experts_read(hp, v->n_mats, s->rows);
        else
            sum += row * v->rows * v->n_mats;
    }
    if (o->kind == OP_MLA)
        sum += (double)s->keys * (hp->kv_lora + hp->rope) * s->elem_bytes;
    return sum;
}

uint32_t reads_carrier(const struct program *p, const float *us, uint32_t rank, uint32_t i, uint32_t last)
{
    const struct op *o = &p->ops[i];
    const bool after_product = p->ops[last].kind == OP_LINEAR || p->ops[last].kind == OP_MOE_DOWN;
    /* the shared expert's ops stand three behind those of the experts, with which they go */
    const uint32_t with = o->kind == OP_GATE_UP || (o->kind == OP_LINEAR && o->accumulate) ? i - 3 : o->kind == OP_SILU_MUL ? i - 4 : i;
    if (with < i && (p->ops[with].kind == OP_MOE_GATE_UP || p->ops[with].kind == OP_MOE_DOWN) && us[(size_t)with * p->n_ranks + rank] > 0)
        return with;
    for (uint32_t k = i + 1; o->kind == OP_RMSNORM && after_product && k < p->n_ops; k++) /* a norm goes with the product behind it, unless a sum did it */
        if (us[(size_t)k * p->n_ranks + rank] > 0)
            return k;
    return last;
}
