/* Faults for drills. Each tampers with a single call of a kernel: other arguments, another kernel, a changed result. Patch table, journal, ledger,
 * shard plan, hyper-parameters and weight names stay what they are, so only the numbers tell. Test code: state of the process is static here. */
#include "tests/drills/drill.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/drill.h"
#include "kernels/quant.h"

enum fault {
    NONE = -1, SLOT_ORDER, SWAPPED, SLICE_0, NO_SCALE, SOFTMAX, ROPE_HALVES, NO_BARRIER, NAN_EXPERT, STALE, BLOCK_OFF, TOP_K, EPSILON, DROPPED, DUPLICATED,
    K_B, WRONG_POSITION, KQ_SCALE, OVERWRITES, INDEX_ROPE, NO_NORM,
};

const struct drill_fault DRILLS[] = {
    [SLOT_ORDER] = {"slot-order", "attn.qkv_a", "fused q_a and kv_a joined in file order", ""},
    [SWAPPED] = {"swapped", "attn.out", "two layers' attn_output exchanged", ""},
    [SLICE_0] = {"slice-0", "attn.q_b", "every rank computes with rank 0's slice of q_b", "ranks"},
    [NO_SCALE] = {"no-scale", "ffn.router", "routed experts are not scaled", ""},
    [SOFTMAX] = {"softmax", "ffn.router", "routing by softmax instead of sigmoid", ""},
    [ROPE_HALVES] = {"rope-halves", "attn.q_rope", "RoPE rotates halves instead of neighbours", ""},
    [NO_BARRIER] = {"no-barrier", "attn.allreduce", "a rank reads the reduced vector before all of it is there", "ranks"},
    [NAN_EXPERT] = {"nan-expert", "ffn.exps.gate_up", "one expert gives NaN", ""},
    [STALE] = {"stale", "attn.q_norm", "a replayed graph leaves out one op, whose buffer keeps old values", "graph"},
    [BLOCK_OFF] = {"block-off", "attn.kv_store", "the first row of a cache block goes to the block before", ""},
    [TOP_K] = {"top-k", "ffn.router", "one expert too few", ""},
    [EPSILON] = {"epsilon", "norm", "every RMSNorm adds a tenth of its epsilon", ""},
    [DROPPED] = {"dropped", "ffn.allreduce", "the last rank's contribution is left out", "ranks"},
    [DUPLICATED] = {"duplicated", "ffn.allreduce", "rank 0's contribution counts for rank 1 too", "ranks"},
    [K_B] = {"k-b", "attn.mla", "k_b is read the other way round", ""},
    [WRONG_POSITION] = {"wrong-position", "cache", "rows behind a reused prefix are one position early", "reuse"},
    [KQ_SCALE] = {"kq-scale", "attn.mla", "attention is scaled by the head's part without RoPE", ""},
    [OVERWRITES] = {"overwrites", "ffn.shexp.down", "the shared expert replaces the routed ones instead of being added", ""},
    [INDEX_ROPE] = {"index-rope", "attn.index", "the indexer rotates the other kind of pairs", "dsa"},
    [NO_NORM] = {"no-norm", "ffn.router", "weights of the chosen experts are not normalised", ""},
};
const size_t DRILL_COUNT = sizeof DRILLS / sizeof DRILLS[0];

static struct program s_program;       /* of the present step with other views */
static const struct program *s_of;
static enum fault s_for = NONE;
static struct op_view *s_original;     /* the views that those were made from */

static enum fault planted(void)
{
    const char *name = getenv("RANKSCOPE_DRILL");
    for (size_t i = 0; name != NULL && i < DRILL_COUNT; i++)
        if (strcmp(DRILLS[i].name, name) == 0)
            return (enum fault)i;
    return NONE;
}

static bool at(const struct op *o, const char *site)
{
    const char *p = strstr(o->site, site);
    return p != NULL && p[strlen(site)] == '\0';
}

/* ---- kernels of the wrong kind ---- */

static void halves(float *x, const float *c, const float *s, size_t n, bool interleaved)
{
    (void)interleaved;
    krn_cpu_vec(KRN_ISA_PORTABLE)->rope(x, c, s, n, false);
}

static void one_less(const struct krn_route *a)
{
    struct krn_route b = *a;
    b.n_used--;
    krn_cpu_vec(KRN_ISA_PORTABLE)->route(&b);
    int32_t id = 0;
    for (uint32_t k = 0; k < b.n_used; k++)
        if (a->ids[k] == id) {
            id++;
            k = UINT32_MAX; /* look at all again */
        }
    a->ids[a->n_used - 1] = id;
    a->weights[a->n_used - 1] = 0;
}

static void without_last(const float *const *src, float *const *dst, size_t n_src, size_t n_dst, size_t from, size_t to, bool tree, bool bf16)
{
    krn_cpu_vec(KRN_ISA_PORTABLE)->reduce(src, dst, n_src > 1 ? n_src - 1 : 1, n_dst, from, to, tree, bf16);
}

static void first_twice(const float *const *src, float *const *dst, size_t n_src, size_t n_dst, size_t from, size_t to, bool tree, bool bf16)
{
    const float *s[RS_MAX_RANKS];
    memcpy(s, src, n_src * sizeof *s);
    if (n_src > 1)
        s[1] = s[0];
    krn_cpu_vec(KRN_ISA_PORTABLE)->reduce(s, dst, n_src, n_dst, from, to, tree, bf16);
}

/* ---- before a step ---- */

/* Matrices that turn() made; at most one of each layer and rank. */
static uint8_t *s_turned[64 * RS_MAX_RANKS];
static size_t s_n_turned;

/* k_b of every head as if its rows were columns. */
static void turn(struct op_view *v)
{
    size_t n = (size_t)v->rows * v->k;
    float *w = malloc(n * v->n_mats * sizeof *w), *row = malloc(v->k * sizeof *row);
    for (uint32_t m = 0; m < v->n_mats; m++)
        for (uint32_t r = 0; r < v->rows; r++) {
            krn_dequant_row(v->type, v->data + m * v->mat_stride + r * v->stride, row, v->k);
            for (uint32_t k = 0; k < v->k; k++) { /* element (r, k) is taken from flat position k * rows + r of what was read as a list */
                size_t from = (size_t)r * v->k + k, to = from % v->rows * v->k + from / v->rows;
                w[m * n + to] = row[k];
            }
        }
    free(row);
    v->data = s_turned[s_n_turned++] = (uint8_t *)w;
    v->type = KRN_F32;
    v->stride = v->k * sizeof *w;
    v->mat_stride = n * sizeof *w;
}

static void change_views(const struct program *p, enum fault f)
{
    size_t bytes = (size_t)p->n_views * p->n_ranks * sizeof *p->views;
    struct op_view *views = s_program.views;
    if (s_for == f && s_of == p && views != NULL && s_program.n_views == p->n_views && memcmp(s_original, p->views, bytes) == 0) {
        /* An address alone may be another program's by now: that of an engine opened since, even with all its weights where they were. */
        s_program = *p;
        s_program.views = views;
        return;
    }
    while (s_n_turned > 0)
        free(s_turned[--s_n_turned]);
    free(views);
    free(s_original);
    s_original = malloc(bytes);
    memcpy(s_original, p->views, bytes);
    s_of = p;
    s_for = f;
    s_program = *p;
    s_program.views = malloc(bytes);
    memcpy(s_program.views, p->views, bytes);
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t r = 0; r < p->n_ranks; r++) {
            struct op_view *v = &s_program.views[(size_t)r * p->n_views + p->ops[i].w[0]];
            if (f == SLICE_0 && at(&p->ops[i], "attn.q_b"))
                v->data = plan_view(p, 0, p->ops[i].w[0])->data;
            if (f == K_B && p->ops[i].kind == OP_MLA && v->rows != 0)
                turn(v);
        }
}

void drill_step(struct cpu *c, const struct backend_step *s)
{
    enum fault f = planted();
    (void)c;
    if (f == SLICE_0 || f == K_B)
        change_views(s->prog, f);
    for (uint32_t g = 0; g < s->batch->n_segs && f == WRONG_POSITION; g++) {
        struct batch_seg *x = &s->batch->segs[g];
        if (x->n_rows == 1 || x->pos0 == 0 || x->pos0 % 16 != 0)
            continue; /* not the rest of a sequence whose first blocks were found */
        x->pos0--;
        for (uint32_t i = 0; i < x->n_rows; i++)
            s->batch->pos[x->row0 + i]--;
    }
}

/* ---- a call ---- */

static void run_block_off(const struct cpu_launch *l, const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    size_t from, to, bytes = c->lim.block * c->kv_row_bytes;
    l->run(k);
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        uint32_t pos = (uint32_t)k->b->pos[i];
        const int32_t *table = k->b->segs[k->b->seg[i]].table;
        if (pos == 0 || pos % c->lim.block != 0)
            continue;
        uint8_t *pool = c->rank[k->rank].kv[k->op->layer];
        memcpy(pool + (size_t)table[pos / c->lim.block - 1] * bytes, pool + (size_t)table[pos / c->lim.block] * bytes, c->kv_row_bytes);
        memset(pool + (size_t)table[pos / c->lim.block] * bytes, 0, c->kv_row_bytes);
    }
}

/* The last rank's copy of some values of rank 0's part stays what it was: its own summand. */
static void run_no_barrier(const struct cpu_launch *l, const struct cpu_call *k)
{
    float *x = k->c->rank[k->c->n_ranks - 1].buf[BUF_A], old[8];
    bool mine = k->rank == 0 && cpu_alone(k) && k->phase + 1 == k->n_phases && k->c->n_ranks > 1;
    if (mine)
        memcpy(old, x, sizeof old);
    l->run(k);
    if (mine)
        memcpy(x, old, sizeof old);
}

static void run_nan(const struct cpu_launch *l, const struct cpu_call *k)
{
    const struct cpu_routing *r = cpu_routing(k);
    const struct shard_range ex = shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank)->experts;
    enum { EXPERT = 5 };
    l->run(k);
    if (cpu_alone(k) && k->phase + 1 == k->n_phases && ex.from <= EXPERT && EXPERT < ex.to && r->group[EXPERT - ex.from + 1] > r->group[EXPERT - ex.from])
        *cpu_at(k, &k->op->out[0], (size_t)r->group[EXPERT - ex.from]) = NAN;
}

/* The same op of the layer after, or before. */
static const struct op *other_layer(const struct cpu_call *k)
{
    for (uint32_t i = 0; i < k->prog->n_ops; i++) {
        const struct op *o = &k->prog->ops[i];
        if (o->kind == k->op->kind && at(o, "attn.out") && o->layer == (k->op->layer ^ 1))
            return o;
    }
    return k->op;
}

void drill_run(const struct cpu_launch *l, const struct cpu_call *call, bool graph)
{
    struct cpu_call k = *call;
    struct cpu c = *call->c;
    struct hparams hp = *c.hp;
    struct krn_cpu_vec vec = *c.vec;
    struct choice ch = *call->choice;
    struct op o = *call->op;
    enum fault f = planted();
    k.c = &c;
    c.hp = &hp;
    c.vec = &vec;
    k.choice = &ch;
    k.op = &o;
    switch (f) {
    case SLOT_ORDER: ch.file_order |= o.kind == OP_QKV_A; break;
    case SWAPPED:
        if (at(&o, "attn.out") && o.layer < 2)
            o.w[0] = other_layer(call)->w[0];
        break;
    case SLICE_0: case K_B:
        if (f == SLICE_0 ? at(&o, "attn.q_b") : o.kind == OP_MLA) {
            k.prog = &s_program;
            c.packed[0] = c.packed[1] = NULL;
        }
        break;
    case NO_SCALE: hp.expert_scale = 1; break;
    case SOFTMAX: hp.gating = HP_GATING_SOFTMAX; break;
    case ROPE_HALVES: vec.rope = o.kind == OP_ROPE_Q || o.kind == OP_KV_STORE ? halves : vec.rope; break;
    case TOP_K: vec.route = one_less; break;
    case EPSILON: hp.eps /= 10; break;
    case DROPPED: vec.reduce = at(&o, "ffn.allreduce") ? without_last : vec.reduce; break;
    case DUPLICATED: vec.reduce = at(&o, "ffn.allreduce") ? first_twice : vec.reduce; break;
    case KQ_SCALE: hp.kq_scale = 1 / sqrtf((float)hp.nope); break;
    case OVERWRITES: o.accumulate &= !at(&o, "ffn.shexp.down"); break;
    case INDEX_ROPE: hp.index_interleaved = !hp.index_interleaved; break;
    case NO_NORM: hp.expert_norm = false; break;
    case STALE:
        if (graph && at(&o, "attn.q_norm") && k.b->pos[0] != 0)
            return;
        break;
    case BLOCK_OFF: if (o.kind == OP_KV_STORE) { run_block_off(l, &k); return; } break;
    case NO_BARRIER: if (at(&o, "attn.allreduce")) { run_no_barrier(l, &k); return; } break;
    case NAN_EXPERT: if (o.kind == OP_MOE_GATE_UP) { run_nan(l, &k); return; } break;
    case WRONG_POSITION: case NONE: break;
    }
    l->run(&k);
}
