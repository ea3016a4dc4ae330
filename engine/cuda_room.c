/* Weights as f16 for products of many rows: where memory is plentiful all of them for good, beside what they are made from; else the
 * product at hand has them made in room that all share. */
#include "engine/cuda.h"
#include "engine/error.h"

enum { PLENTY = 4 /* of what is free after all else, the part that may go there */ };

/* The weights of op o that products of many rows may take: how many. */
static uint32_t weights_of(const struct op *o)
{
    return o->kind == OP_QKV_A || o->kind == OP_GATE_UP ? 2 : o->kind == OP_LINEAR ? 1 : 0;
}

/* The same weight of the main stack, which a NextN block may share; or NULL. */
static const struct kcu_mat *shared_with_main(const struct cuda *c, const struct cuda_rank *r, const struct kcu_mat *m)
{
    for (uint32_t i = 0; i < c->prog[0]->n_views; i++)
        if (r->mat[0][i].w == m->w)
            return &r->mat[0][i];
    return NULL;
}

/* Place those of a rank one behind the other, and make them; `to` NULL: only count. *n: how many values they are. */
static enum rs_result place(struct cuda_gpu *g, struct cuda_rank *r, uint16_t *to, size_t *n, struct rs_error *err)
{
    const struct cuda *c = g->c;
    const struct kcu_launch l = {.stream = g->stream};
    *n = 0;
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; c->prog[p] != NULL && i < c->prog[p]->n_ops; i++)
            for (uint32_t k = 0; k < weights_of(&c->prog[p]->ops[i]); k++) {
                struct kcu_mat *m = &r->mat[p][c->prog[p]->ops[i].w[k]];
                const struct kcu_mat *same = p == 1 && m->w != NULL ? shared_with_main(c, r, m) : NULL;
                const size_t values = m->w != NULL && same == NULL ? kcu_unpacked(c->lim.max_rows, m) : 0;
                if (same != NULL)
                    m->half = same->half;
                if (values == 0)
                    continue;
                if (to != NULL) {
                    cudaError_t e = kcu_unpack(&l, m, to + *n);
                    if (e != cudaSuccess)
                        return cuda_fail(err, e, "weights as f16", g->device);
                    m->half = to + *n;
                }
                *n += (values + 127) / 128 * 128;
            }
    return RS_OK;
}

/* Zeros, since rows are read in groups of 16 and those past the end are not made. */
static enum rs_result zeroed(struct cuda_gpu *g, uint16_t **p, size_t n, struct rs_error *err)
{
    cudaError_t e = cudaMalloc((void **)p, n * sizeof **p);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(*p, 0, n * sizeof **p, g->stream);
    return e != cudaSuccess ? cuda_fail(err, e, "weights as f16", g->device) : RS_OK;
}

static enum rs_result keep(struct cuda_gpu *g, struct rs_error *err)
{
    size_t all = 0, have = 0, total = 0, n = 0;
    enum rs_result rc = RS_OK;
    for (uint32_t i = 0; i < g->n_local && rc == RS_OK; i++) {
        rc = place(g, &g->local[i], NULL, &n, err);
        all += n * sizeof *g->room;
    }
    if (all == 0 || cudaMemGetInfo(&have, &total) != cudaSuccess || all > have / PLENTY)
        return RS_OK;
    for (uint32_t i = 0; i < g->n_local && rc == RS_OK; i++) {
        struct cuda_rank *r = &g->local[i];
        rc = place(g, r, NULL, &n, err);
        if (n == 0)
            continue;
        rc = zeroed(g, &r->kept, n, err);
        if (rc != RS_OK)
            break;
        r->bytes_weights += n * sizeof *r->kept;
        rc = place(g, r, r->kept, &n, err);
    }
    return rc;
}

enum rs_result cuda_room_open(struct cuda_gpu *g, struct rs_error *err)
{
    const struct cuda *c = g->c;
    enum rs_result rc = keep(g, err);
    if (rc != RS_OK)
        return rc;
    for (uint32_t j = 0; j < g->n_local; j++)
        for (int p = 0; p < 2; p++)
            for (uint32_t i = 0; c->prog[p] != NULL && i < c->prog[p]->n_ops; i++) {
                const struct op *o = &c->prog[p]->ops[i];
                uint32_t rows[2] = {0, 0}, k = 0;
                for (uint32_t a = 0; a < weights_of(o); a++) {
                    const struct kcu_mat *m = &g->local[j].mat[p][o->w[a]];
                    if (m->w == NULL || m->half != NULL || !kcu_gemm_takes(m))
                        continue;
                    rows[a] = m->rows;
                    k = m->k;
                }
                const size_t n = kcu_gemm_room(c->lim.max_rows, k, rows[0], rows[1]);
                g->n_room = n > g->n_room ? n : g->n_room;
            }
    if (g->n_room == 0)
        return RS_OK;
    g->local[0].bytes_buffers += g->n_room * sizeof *g->room;
    return zeroed(g, &g->room, g->n_room, err);
}
