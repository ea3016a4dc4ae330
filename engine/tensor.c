/* See tensor.h. */
#include "engine/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

void tensor_free(struct tensor *t)
{
    free(t->data);
    *t = (struct tensor){.data = NULL};
}

static enum rs_result make(uint32_t rows, uint32_t width, struct tensor *out, struct rs_error *err)
{
    *out = (struct tensor){.rows = rows, .width = width, .data = calloc((size_t)rows * width + 1, sizeof(float))};
    return out->data != NULL ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for a tensor of %u x %u", rows, width);
}

uint32_t tensor_rows(const struct runtime *rt, const struct batch *b, enum op_buf buf, uint32_t rank)
{
    switch (buf) {
    case BUF_Y: case BUF_LOGITS: case BUF_FULL: return b->n_logits;
    case BUF_MGU: case BUF_MACT: return rt->backend->ops->pairs != NULL ? rt->backend->ops->pairs(rt->backend, rank) : 0;
    default: return b->n_rows;
    }
}

void tensor_stats(const struct runtime *rt, const struct batch *b, const struct op *o, const struct op_ref *r, uint32_t rank, float *row, struct probe_stats *out)
{
    uint32_t rows = tensor_rows(rt, b, (enum op_buf)r->buf, rank), width = plan_ref_width(&rt->prog, o, r, rank);
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < rows && width != 0; i++)
        if (rt->backend->ops->read(rt->backend, rank, (enum op_buf)r->buf, i, r->col, width, row, NULL) == RS_OK)
            probe_fold_row(out, (enum op_buf)r->buf, row, width, i < b->n_rows ? (uint32_t)b->pos[i] + 1 : 0, rt->prog.hp->index_topk);
}

struct probe_stats tensor_stats_of(const struct tensor *t)
{
    struct probe_stats s = {0};
    for (size_t i = 0; i < (size_t)t->rows * t->width; i++)
        probe_fold(&s, t->data[i]);
    return s;
}

static void to_numbers(enum op_buf buf, struct tensor *t)
{
    if (buf != BUF_ISEL && buf != BUF_CHOICE)
        return;
    for (uint32_t i = 0; i < t->rows; i++)
        for (uint32_t j = 0; j < t->width; j++)
            t->data[(size_t)i * t->width + j] = probe_value(buf, t->data + (size_t)i * t->width, t->width, j);
}

enum rs_result tensor_read(const struct runtime *rt, const struct batch *b, const struct op *o, const struct op_ref *r, uint32_t rank, struct tensor *out,
                           struct rs_error *err)
{
    struct tensor t;
    enum rs_result rc = make(tensor_rows(rt, b, (enum op_buf)r->buf, rank), plan_ref_width(&rt->prog, o, r, rank), &t, err);
    for (uint32_t i = 0; i < t.rows && t.width != 0 && rc == RS_OK; i++)
        rc = rt->backend->ops->read(rt->backend, rank, (enum op_buf)r->buf, i, r->col, t.width, t.data + (size_t)i * t.width, err);
    if (rc != RS_OK) {
        tensor_free(&t);
        return rc;
    }
    to_numbers((enum op_buf)r->buf, &t);
    *out = t;
    return RS_OK;
}

enum rs_result tensor_copied(enum op_buf buf, const struct probe_copied *c, struct tensor *out, struct rs_error *err)
{
    struct tensor t;
    enum rs_result rc = make(c->rows, c->width, &t, err);
    if (rc != RS_OK)
        return rc;
    if (c->rows != 0)
        memcpy(t.data, c->data, (size_t)c->rows * c->width * sizeof *t.data);
    to_numbers(buf, &t);
    *out = t;
    return RS_OK;
}

static bool halves(const struct op_ref *r)
{
    return r->buf == BUF_GU || r->buf == BUF_MGU;
}

/* Do ranks hold whole experts, so that their pairs are different rows? */
static bool by_rows(const struct program *p, const struct op *o, const struct op_ref *r)
{
    return (r->buf == BUF_MGU || r->buf == BUF_MACT) && p->shard->split[o->layer] == SHARD_EP;
}

static enum rs_result stack_rows(const struct program *p, const struct tensor *part, struct tensor *out, struct rs_error *err)
{
    uint32_t rows = 0, width = 0, at = 0;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        rows += part[r].rows;
        width = part[r].width > width ? part[r].width : width;
    }
    enum rs_result rc = make(rows, width, out, err);
    for (uint32_t r = 0; r < p->n_ranks && rc == RS_OK; r++) {
        if (part[r].rows == 0)
            continue;
        memcpy(out->data + (size_t)at * width, part[r].data, (size_t)part[r].rows * width * sizeof(float));
        at += part[r].rows;
    }
    return rc;
}

static enum rs_result sum_parts(const struct program *p, const struct tensor *part, struct tensor *out, struct rs_error *err)
{
    enum rs_result rc = make(part[0].rows, part[0].width, out, err);
    for (size_t i = 0; rc == RS_OK && i < (size_t)out->rows * out->width; i++) {
        double s = 0;
        for (uint32_t r = 0; r < p->n_ranks; r++)
            s += (double)part[r].data[i];
        out->data[i] = (float)s;
    }
    return rc;
}

static enum rs_result join_columns(const struct program *p, const struct op_ref *r, const struct tensor *part, struct tensor *out, struct rs_error *err)
{
    uint32_t width = 0, rows = 0, n_halves = halves(r) ? 2 : 1;
    for (uint32_t k = 0; k < p->n_ranks; k++) {
        width += part[k].width;
        rows = part[k].rows > rows ? part[k].rows : rows; /* a rank without columns has no rows either */
    }
    enum rs_result rc = make(rows, width, out, err);
    for (uint32_t h = 0, at = 0; h < n_halves && rc == RS_OK; h++)
        for (uint32_t k = 0; k < p->n_ranks; k++) {
            uint32_t w = part[k].width / n_halves;
            for (uint32_t i = 0; i < part[k].rows; i++)
                memcpy(out->data + (size_t)i * width + at, part[k].data + (size_t)i * part[k].width + (size_t)h * w, w * sizeof(float));
            at += w;
        }
    return rc;
}

enum rs_result tensor_join(const struct program *p, const struct op *o, const struct op_ref *r, const struct tensor *part, struct tensor *out, struct rs_error *err)
{
    if (p->n_ranks == 1 || r->layout == OP_REPLICATED || r->buf == BUF_FULL) {
        enum rs_result rc = make(part[0].rows, part[0].width, out, err);
        if (rc == RS_OK && part[0].rows != 0)
            memcpy(out->data, part[0].data, (size_t)out->rows * out->width * sizeof(float));
        return rc;
    }
    bool stacked = r->layout == OP_SHARDED && by_rows(p, o, r);
    for (uint32_t k = 1; k < p->n_ranks && !stacked; k++)
        if (part[k].width != 0 && part[0].width != 0 && part[k].rows != part[0].rows)
            return error_set(err, RS_EINTERNAL, "%s: rank %u holds %u rows, rank 0 %u", o->site, k, part[k].rows, part[0].rows);
    return r->layout == OP_PARTIAL ? sum_parts(p, part, out, err) : stacked ? stack_rows(p, part, out, err) : join_columns(p, r, part, out, err);
}

void tensor_place(const struct program *p, const struct op *o, const struct op_ref *r, uint32_t c, uint32_t *rank, uint32_t *col)
{
    uint32_t n_halves = halves(r) ? 2 : 1, total = 0;
    for (uint32_t k = 0; k < p->n_ranks; k++)
        total += plan_ref_width(p, o, r, k);
    uint32_t half = n_halves == 2 && c >= total / 2, left = half ? c - total / 2 : c;
    for (uint32_t k = 0; k < p->n_ranks; k++) {
        uint32_t w = plan_ref_width(p, o, r, k) / n_halves;
        if (left < w) {
            *rank = k;
            *col = half * w + left;
            return;
        }
        left -= w;
    }
    *rank = *col = 0;
}

const struct op *tensor_writer(const struct program *p, enum op_buf buf, uint32_t before)
{
    for (uint32_t i = before < p->n_ops ? before : p->n_ops; i-- > 0;)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (p->ops[i].out[k].buf == buf)
                return &p->ops[i];
    return NULL;
}
