/* See arith.h. */
#include "engine/arith.h"

#include "kernels/type.h"

static bool has_products(enum op_kind k)
{
    return k == OP_QKV_A || k == OP_LINEAR || k == OP_MLA || k == OP_GATE_UP || k == OP_ROUTER || k == OP_MOE_GATE_UP || k == OP_MOE_DOWN;
}

enum op_arith arith_wanted(const struct program *p, const struct op *o, const struct choice *ch, uint32_t rank)
{
    if (!has_products(o->kind))
        return ARITH_NONE;
    for (uint32_t s = 0; s < o->n_w && ch->matmul == MATMUL_INT8 && o->kind != OP_ROUTER; s++) {
        const struct op_view *v = plan_view(p, rank, o->w[s]);
        if (v->rows != 0 && krn_type_info(v->type)->quantised && v->k % 32 == 0)
            return ARITH_INT8;
    }
    return ARITH_F32;
}

enum op_arith arith_used(struct backend *b, const struct program *p, const struct op *o, const struct choice *choices, uint32_t rank)
{
    return b->ops->arith != NULL ? b->ops->arith(b, p, o->index, rank) : arith_wanted(p, o, &choices[o->index], rank);
}

const char *arith_name(enum op_arith a)
{
    static const char *const NAMES[] = {NULL, "f32", "f16", "int8", "int8 as f16"};
    return NAMES[a];
}
