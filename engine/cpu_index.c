/* CPU: the DSA lightning indexer. Which earlier positions a row may attend to: score every cached key with a few small heads, keep the top_k.
 * Rows with no more keys than top_k attend to all of them, so their scores are not computed. */
#include "engine/cpu.h"

static uint32_t one_phase(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    (void)c, (void)op, (void)ch, (void)bucket;
    return 1;
}

static void rotate(const struct cpu_call *k, float *x, size_t row)
{
    const struct hparams *hp = k->c->hp;
    size_t at = (size_t)k->b->pos[row] * (hp->rope / 2);
    k->c->vec->rope(x, k->c->rope_cos + at, k->c->rope_sin + at, hp->rope / 2, hp->index_interleaved);
}

/* Unlike the attention's, an indexer head holds its rotated part first. */
static void run_index_q(const struct cpu_call *k)
{
    const struct hparams *hp = k->c->hp;
    size_t from, to;
    cpu_cut(k, (size_t)k->b->n_rows * hp->index_heads, 1, &from, &to);
    for (size_t i = from; i < to; i++)
        rotate(k, cpu_at(k, &k->op->in[0], i / hp->index_heads) + i % hp->index_heads * hp->index_dim, i / hp->index_heads);
}

static void run_index_store(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const struct op_view *w = plan_view(k->prog, k->rank, k->op->w[0]), *b = plan_view(k->prog, k->rank, k->op->w[1]);
    const float LAYERNORM_EPS = 1e-6f; /* the models' own; no key carries it */
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        float *x = cpu_at(k, &k->op->in[0], i);
        uint32_t pos = (uint32_t)k->b->pos[i];
        int32_t block = k->b->segs[k->b->seg[i]].table[pos / c->lim.block];
        c->vec->layernorm(x, (const float *)(const void *)w->data, b->rows != 0 ? (const float *)(const void *)b->data : NULL, LAYERNORM_EPS, x, c->hp->index_dim);
        rotate(k, x, i);
        c->vec->store(c->lim.cache, x, c->rank[k->rank].ik[k->op->layer] + ((size_t)block * c->lim.block + pos % c->lim.block) * c->ik_row_bytes, c->hp->index_dim);
    }
}

static void run_index_scores(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const struct hparams *hp = c->hp;
    const float scale = 1.0f / __builtin_sqrtf((float)hp->index_heads * (float)hp->index_dim);
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        uint32_t n = (uint32_t)k->b->pos[i] + 1;
        if (n <= hp->index_topk)
            continue;
        struct krn_pages p = {.base = c->rank[k->rank].ik[k->op->layer], .table = k->b->segs[k->b->seg[i]].table,
                              .block_stride = c->lim.block * c->ik_row_bytes, .row_bytes = c->ik_row_bytes, .block = c->lim.block, .type = c->lim.cache};
        c->vec->index_scores(&p, cpu_at(k, &k->op->in[0], i), cpu_at(k, &k->op->in[1], i), hp->index_heads, hp->index_dim, n, scale,
                             cpu_at(k, &k->op->out[0], i));
    }
}

/* Row of BUF_ISEL: the count, then the positions ascending; count -1 for "all". */
static void run_index_topk(const struct cpu_call *k)
{
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        int32_t *sel = (int32_t *)(void *)cpu_at(k, &k->op->out[0], i);
        uint32_t n = (uint32_t)k->b->pos[i] + 1;
        sel[0] = n <= k->c->hp->index_topk ? -1 : (int32_t)krn_select_topk(cpu_at(k, &k->op->in[0], i), n, k->c->hp->index_topk, sel + 1);
    }
}

const struct cpu_launch CPU_INDEX_Q = {one_phase, run_index_q}, CPU_INDEX_STORE = {one_phase, run_index_store},
                        CPU_INDEX_SCORES = {one_phase, run_index_scores}, CPU_INDEX_TOPK = {one_phase, run_index_topk};
