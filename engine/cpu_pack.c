/* CPU: packed copies of weights. A small model's weights stay in the processor's caches, and there reading sixteen rows of a mapped file side by
 * side costs more than the bytes do; a copy in the order of consumption, on huge pages, does not. A large model's weights come from memory once
 * a token whatever their order, and a copy would double what it needs: those are used in place. */
#include <stdlib.h>

#include "engine/cpu.h"
#include "engine/error.h"

static const size_t MOST_BYTES = (size_t)256 << 20; /* of all copies together: several times the largest cache that is common */

/* Ops that multiply by their weights in int8. */
static bool multiplies(enum op_kind k)
{
    return k == OP_LINEAR || k == OP_QKV_A || k == OP_GATE_UP || k == OP_MOE_GATE_UP || k == OP_MOE_DOWN || k == OP_MLA;
}

static size_t matrix_bytes(const struct op_view *v)
{
    return v->rows != 0 && v->k % 32 == 0 ? krn_packed_bytes(v->type, v->rows, v->k) : 0;
}

/* Replicated weights are the same slice on every rank: rank 0's copy serves all. */
static bool is_rank0s(const struct op_view *v, const struct op_view *first)
{
    return v->data == first->data && v->rows == first->rows && v->k == first->k && v->n_mats == first->n_mats;
}

/* Go through the copies to be made: count their bytes, or, with memory at `to`, make them. */
static size_t walk(struct cpu *c, uint8_t *to)
{
    size_t at = 0;
    for (int which = 0; which < 2 && c->prog[which] != NULL; which++) {
        const struct program *p = c->prog[which];
        for (uint32_t i = 0; i < p->n_ops; i++)
            for (uint32_t s = 0; s < p->ops[i].n_w && multiplies(p->ops[i].kind); s++)
                for (uint32_t r = 0; r < p->n_ranks; r++) {
                    uint16_t w = p->ops[i].w[s];
                    const struct op_view *v = plan_view(p, r, w);
                    struct cpu_packed *out = &c->packed[which][(size_t)r * p->n_views + w];
                    size_t bytes = matrix_bytes(v);
                    if (r > 0 && is_rank0s(v, plan_view(p, 0, w))) {
                        *out = c->packed[which][w];
                        continue;
                    }
                    for (uint32_t m = 0; to != NULL && m < v->n_mats && bytes != 0; m++)
                        krn_pack(v->type, v->data + m * v->mat_stride, v->stride, v->rows, v->k, to + at + m * bytes);
                    if (to != NULL && bytes != 0)
                        *out = (struct cpu_packed){.data = to + at, .mat_bytes = bytes};
                    at += bytes * v->n_mats;
                }
    }
    return at;
}

enum rs_result cpu_pack(struct cpu *c, struct rs_error *err)
{
    if (!c->mm->reads_packed)
        return RS_OK;
    for (int which = 0; which < 2 && c->prog[which] != NULL; which++) {
        c->packed[which] = calloc((size_t)c->prog[which]->n_views * c->n_ranks, sizeof *c->packed[which]);
        if (c->packed[which] == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for packed weights");
    }
    size_t bytes = walk(c, NULL);
    if (bytes == 0 || bytes > MOST_BYTES)
        return RS_OK;
    c->packed_store = cpu_big_alloc(bytes);
    if (c->packed_store == NULL)
        return RS_OK; /* it works without */
    walk(c, c->packed_store);
    c->bytes_packed = bytes;
    return RS_OK;
}

static bool is_multiplied(const struct program *p, uint32_t view)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t s = 0; s < p->ops[i].n_w; s++)
            if (p->ops[i].w[s] == view)
                return multiplies(p->ops[i].kind);
    return false;
}

static void drop_own(struct cpu *c, struct cpu_packed *k)
{
    c->bytes_packed -= k->own_bytes;
    free(k->own);
    *k = (struct cpu_packed){.data = NULL};
}

void cpu_repack(struct cpu *c, const struct program *p, uint32_t view)
{
    struct cpu_packed *table = c->packed[p == c->prog[0] ? 0 : 1];
    for (uint32_t r = 0; r < c->n_ranks && table != NULL; r++) {
        struct cpu_packed *k = &table[(size_t)r * p->n_views + view];
        const struct op_view *v = plan_view(p, r, view);
        size_t bytes = matrix_bytes(v);
        drop_own(c, k);
        if (c->packed_store == NULL || bytes == 0 || !is_multiplied(p, view))
            continue;
        if (r > 0 && is_rank0s(v, plan_view(p, 0, view))) {
            *k = (struct cpu_packed){.data = table[view].data, .mat_bytes = table[view].mat_bytes};
            continue;
        }
        k->own = cpu_big_alloc(bytes * v->n_mats);
        if (k->own == NULL)
            continue; /* it works without */
        for (uint32_t m = 0; m < v->n_mats; m++)
            krn_pack(v->type, v->data + m * v->mat_stride, v->stride, v->rows, v->k, k->own + m * bytes);
        k->data = k->own;
        k->mat_bytes = bytes;
        k->own_bytes = bytes * v->n_mats;
        c->bytes_packed += k->own_bytes;
    }
}

void cpu_pack_free(struct cpu *c)
{
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; c->packed[which] != NULL && i < (size_t)c->prog[which]->n_views * c->n_ranks; i++)
            free(c->packed[which][i].own);
    free(c->packed[0]);
    free(c->packed[1]);
    free(c->packed_store);
}
