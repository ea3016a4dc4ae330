/* What ops are said to read, against the shipped model's own sizes, and whose launch computes what was fused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "engine/reads.h"
#include "engine/weights.h"
#include "kernels/type.h"
#include "tests/tap.h"

struct made {
    struct gguf *gguf;
    struct hparams hp;
    struct weights w;
    struct shard_plan shard;
    struct program prog;
};

static bool make(struct made *m, uint32_t ranks)
{
    struct rs_error err = {.msg = ""};
    memset(m, 0, sizeof *m);
    return tap_ok(gguf_open(tap_source("models/tiny-glm5-q4.gguf"), &m->gguf, &err) == RS_OK && hparams_read(m->gguf, &m->hp, &err) == RS_OK &&
                      weights_bind(m->gguf, &m->hp, &m->w, &err) == RS_OK && shard_make(&m->hp, &m->w, ranks, SHARD_TP, &m->shard, &err) == RS_OK &&
                      plan_build(&m->hp, &m->w, &m->shard, PLAN_MAIN, 256, &m->prog, &err) == RS_OK,
                  "the shipped model on %u ranks %s", ranks, err.msg);
}

static void unmake(struct made *m)
{
    plan_free(&m->prog);
    shard_free(&m->shard);
    weights_free(&m->w);
    gguf_close(m->gguf);
}

/* A view's bytes, all matrices of it. */
static double whole(const struct made *m, uint32_t rank, const struct op *o)
{
    double sum = 0;
    for (int i = 0; i < o->n_w; i++) {
        const struct op_view *v = plan_view(&m->prog, rank, o->w[i]);
        if (v->rows != 0)
            sum += (double)v->rows * v->n_mats * (double)krn_row_bytes(v->type, v->k);
    }
    return sum;
}

static bool routed(const struct op *o)
{
    return o->kind == OP_MOE_GATE_UP || o->kind == OP_MOE_DOWN;
}

/* One row reads n_used of n_experts, very many rows read all, and ranks share what one reads. */
static void test_bytes(void)
{
    struct made one, four;
    if (!make(&one, 1) || !make(&four, 4))
        return;
    const struct reads_step row = {.rows = 1, .keys = 100, .elem_bytes = 2}, many = {.rows = 100000, .keys = 100, .elem_bytes = 2};
    const double share = (double)one.hp.n_used / one.hp.n_experts, cache = 100.0 * (one.hp.kv_lora + one.hp.rope) * 2;
    double off = 0, off_many = 0, of_one = 0, of_four = 0;
    for (uint32_t i = 0; i < one.prog.n_ops; i++) {
        const struct op *o = &one.prog.ops[i];
        const double all = whole(&one, 0, o), looked = o->kind == OP_MLA ? cache : 0;
        if (o->kind == OP_EMBED)
            continue;
        off = fmax(off, fabs(reads_bytes(&one.prog, o, 0, &row) - looked - (routed(o) ? share : 1) * all));
        off_many = fmax(off_many, fabs(reads_bytes(&one.prog, o, 0, &many) - looked - all));
        if (!routed(o))
            continue;
        of_one += reads_bytes(&one.prog, o, 0, &row);
        for (uint32_t r = 0; r < 4; r++)
            of_four += reads_bytes(&four.prog, &four.prog.ops[i], r, &row);
    }
    tap_ok(off < 1e-3, "one row: whole matrices, n_used of the experts, the cache (%g bytes off)", off);
    tap_ok(off_many < 1, "very many rows: all experts (%g bytes off)", off_many);
    tap_near(of_four, of_one, 1e-3, "experts on four ranks read as much as on one");
    unmake(&one);
    unmake(&four);
}

static uint32_t index_of(const struct made *m, const char *site)
{
    const struct op *o = plan_find(&m->prog, site);
    return o != NULL ? o->index : UINT32_MAX;
}

static void carried(const struct made *m, const float *us, const char *site, const char *last, const char *by)
{
    tap_eq_str(m->prog.ops[reads_carrier(&m->prog, us, 0, index_of(m, site), index_of(m, last))].site, by, "%s is computed by %s", site, by);
}

/* Times as a GPU leaves them where neighbours were fused. */
static void test_carrier(void)
{
    struct made m;
    if (!make(&m, 1))
        return;
    static const char *const LAUNCHED[] = {"blk.2.attn.qkv_a", "blk.2.attn.q_norm", "blk.2.attn.mla", "blk.2.attn.out", "blk.2.ffn.router", "blk.2.ffn.exps.gate_up",
                                           "blk.2.ffn.exps.down"};
    float *us = calloc(m.prog.n_ops, sizeof *us);
    for (size_t i = 0; i < sizeof LAUNCHED / sizeof LAUNCHED[0]; i++)
        us[index_of(&m, LAUNCHED[i])] = 1;
    carried(&m, us, "blk.2.attn.q_b", "blk.2.attn.q_norm", "blk.2.attn.q_norm");
    carried(&m, us, "blk.2.attn.residual", "blk.2.attn.out", "blk.2.attn.out");
    carried(&m, us, "blk.2.ffn.norm", "blk.2.attn.out", "blk.2.ffn.router");
    carried(&m, us, "blk.2.ffn.shexp.gate_up", "blk.2.ffn.exps.down", "blk.2.ffn.exps.gate_up");
    carried(&m, us, "blk.2.ffn.shexp.act", "blk.2.ffn.exps.down", "blk.2.ffn.exps.gate_up");
    carried(&m, us, "blk.2.ffn.shexp.down", "blk.2.ffn.exps.down", "blk.2.ffn.exps.down");
    us[index_of(&m, "blk.2.attn.allreduce")] = 1; /* a sum that takes the residual and the norm along */
    carried(&m, us, "blk.2.ffn.norm", "blk.2.attn.allreduce", "blk.2.attn.allreduce");
    free(us);
    unmake(&m);
}

int main(void)
{
    test_bytes();
    test_carrier();
    return tap_done();
}
