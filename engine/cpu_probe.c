/* CPU: observers. One node per observer; the workers share out its ranks. */
#include <string.h>

#include "engine/cpu.h"

struct span {
    const float *base;
    size_t stride;
    uint32_t rows, width;
    enum op_buf buf;
};

static struct span span_of(const struct cpu *c, const struct backend_step *s, const struct probe_obs *o, uint32_t rank)
{
    const struct op *op = &s->prog->ops[o->op - s->probes->base];
    const struct op_ref *r = probe_ref(op, o->before, o->index);
    struct span v = {.base = c->rank[rank].buf[r->buf], .stride = s->prog->width[r->buf][rank], .width = plan_ref_width(s->prog, op, r, rank),
                     .rows = s->batch->n_rows, .buf = (enum op_buf)r->buf};
    if (v.base == NULL || v.width == 0)
        return (struct span){.rows = 0};
    v.base += r->col;
    if (r->buf == BUF_Y || r->buf == BUF_LOGITS || r->buf == BUF_FULL)
        v.rows = s->batch->n_logits;
    else if (r->buf == BUF_MGU || r->buf == BUF_MACT)
        v.rows = c->rank[rank].routing.n_pairs;
    return v;
}

static void observe_rank(const struct cpu *c, const struct backend_step *s, const struct probe_obs *o, uint32_t rank)
{
    struct span v = span_of(c, s, o, rank);
    size_t at = (size_t)s->probes->slot * c->n_ranks + rank;
    bool by_key = v.buf == BUF_ISCORE;
    if (o->bits & PROBE_STATS) {
        struct probe_stats st = {0};
        for (uint32_t i = 0; i < v.rows; i++)
            probe_fold_row(&st, v.buf, v.base + i * v.stride, v.width, by_key ? (uint32_t)s->batch->pos[i] + 1 : 0, c->hp->index_topk);
        o->ring[at] = st;
    }
    if (o->bits & PROBE_VALUES) {
        float *dst = o->values + at * o->n_values;
        uint32_t n = v.rows != 0 && v.width < o->n_values ? v.width : v.rows != 0 ? o->n_values : 0;
        for (uint32_t j = 0; j < o->n_values; j++)
            dst[j] = j < n ? probe_value(v.buf, v.base + (size_t)(v.rows - 1) * v.stride, v.width, j) : 0;
    }
    if (o->bits & PROBE_COPY) {
        struct probe_copied *p = &o->copied[rank];
        p->width = v.rows == 0 ? 0 : by_key && s->batch->max_keys < v.width ? s->batch->max_keys : v.width;
        p->rows = p->width == 0 ? 0 : p->cap / p->width < v.rows ? (uint32_t)(p->cap / p->width) : v.rows;
        for (uint32_t i = 0; i < p->rows; i++)
            memcpy(p->data + (size_t)i * p->width, v.base + i * v.stride, p->width * sizeof *p->data);
    }
}

void cpu_probe_run(const struct cpu *c, const struct backend_step *s, const struct probe_obs *o, uint32_t worker)
{
    for (uint32_t r = worker; r < c->n_ranks; r += c->n_workers)
        if (o->ranks >> r & 1)
            observe_rank(c, s, o, r);
}
