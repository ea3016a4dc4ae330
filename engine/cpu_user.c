/* CPU: implementations loaded from C files. What a call says about an op, in the words of patch_api.h. */
#include "engine/cpu.h"
#include "engine/patch.h"
#include "engine/patch_api.h"
#include "kernels/quant.h"
#include "kernels/type.h"

static uint32_t one_phase(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    (void)c, (void)op, (void)ch, (void)bucket;
    return 1;
}

static struct rankscope_tensor tensor(const struct cpu_call *k, const struct op_ref *r, uint32_t rows)
{
    if (r->buf == BUF_NONE)
        return (struct rankscope_tensor){.data = NULL};
    return (struct rankscope_tensor){.data = cpu_at(k, r, 0), .stride = k->prog->width[r->buf][k->rank], .rows = rows,
                                     .width = plan_ref_width(k->prog, k->op, r, k->rank)};
}

struct rankscope_weight cpu_user_weight(const struct op_view *v)
{
    if (v->rows == 0)
        return (struct rankscope_weight){.rows = 0};
    return (struct rankscope_weight){.type = v->type, .rows = v->rows, .k = v->k, .data = v->data, .stride = v->stride,
                                     .bytes_per_256 = krn_row_bytes(v->type, 256), .dequant = krn_dequant_row};
}

/* An empty shard: nothing is called; a partial sum still needs its zeros. */
static bool empty(const struct cpu_call *k, const struct rankscope_call *c)
{
    if (c->out[0].width != 0 && c->in[0].width != 0 && (k->op->n_w == 0 || c->w[0].rows + c->w[1].rows != 0))
        return false;
    if (k->op->out[0].layout == OP_PARTIAL && !k->op->accumulate && cpu_alone(k))
        for (uint32_t i = 0; i < c->out[0].rows; i++)
            for (uint32_t j = 0; j < c->out[0].width; j++)
                c->out[0].data[i * c->out[0].stride + j] = 0;
    return true;
}

static void run_user(const struct cpu_call *k)
{
    const struct patch_user *u = (const struct patch_user *)k->choice->impl; /* impl is its first member */
    const struct hparams *hp = k->c->hp;
    bool own = k->local && k->c->local[k->worker].buf[k->op->out[0].buf] != NULL; /* every worker needs all of it */
    uint32_t rows = k->op->per_pair ? cpu_routing(k)->n_pairs : cpu_rows(k);
    struct rankscope_call c = {.size = sizeof c, .layer = k->op->layer, .site = k->op->site, .rank = k->rank, .n_ranks = k->c->n_ranks, .lo = own ? 0 : k->lo,
                               .hi = own ? 1 : k->hi, .of = own ? 1 : k->of, .accumulate = k->op->accumulate, .eps = hp->eps, .head_dim = hp->k_mla,
                               .rope_dim = hp->rope, .cos = k->c->rope_cos, .sin = k->c->rope_sin, .pos = k->b->pos};
    for (int i = 0; i < 2; i++)
        c.in[i] = tensor(k, &k->op->in[i], rows);
    c.out[0] = tensor(k, &k->op->out[0], rows);
    for (uint32_t s = 0; s < 2 && s < k->op->n_w; s++)
        c.w[s] = cpu_user_weight(plan_view(k->prog, k->rank, k->op->w[s]));
    if (k->op->kind == OP_QKV_A && c.w[0].rows == 0) { /* one slot: it is the first */
        c.w[0] = c.w[1];
        c.w[1] = (struct rankscope_weight){.rows = 0};
    }
    if (c.lo == c.hi || rows == 0 || empty(k, &c))
        return;
    u->api->run(&c);
    cpu_publish(k, &k->op->out[0], rows);
}

const struct cpu_launch CPU_USER = {one_phase, run_user};
