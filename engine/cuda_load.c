/* Weights to the GPU: every rank's slices straight from the mapped file through two pinned buffers, into one allocation per rank. */
#include "engine/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/loading.h"
#include "kernels/type.h"

enum { ALIGN = 256 };
static const size_t STAGE = (size_t)32 << 20;

struct stage {
    uint8_t *host[2], *dev[2];
    cudaEvent_t free_again[2];
    unsigned next;
};

static size_t view_bytes(const struct op_view *v)
{
    return v->rows == 0 ? 0 : (kcu_pitch(v->type, v->k) * v->rows * v->n_mats + ALIGN - 1) / ALIGN * ALIGN;
}

/* A NextN block may share the embedding or the head with the main stack: the same slice is uploaded once. */
static const struct kcu_mat *shared_with_main(const struct cuda *c, const struct cuda_rank *r, const struct op_view *v)
{
    for (uint32_t i = 0; i < c->prog[0]->n_views; i++) {
        const struct op_view *m = plan_view(c->prog[0], r->rank, i);
        if (m->data == v->data && m->rows == v->rows && m->k == v->k && m->n_mats == v->n_mats && m->type == v->type)
            return &r->mat[0][i];
    }
    return NULL;
}

/* Place every view in the rank's allocation; returns its size. Views that are shared keep the place of the first. */
static size_t place(const struct cuda *c, struct cuda_rank *r)
{
    size_t at = 0;
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; c->prog[p] != NULL && i < c->prog[p]->n_views; i++) {
            const struct op_view *v = plan_view(c->prog[p], r->rank, i);
            struct kcu_mat *m = &r->mat[p][i];
            if (v->rows == 0)
                continue;
            if (p == 1) {
                const struct kcu_mat *same = shared_with_main(c, r, v);
                if (same != NULL) {
                    *m = *same;
                    continue;
                }
            }
            size_t pitch = kcu_pitch(v->type, v->k);
            *m = (struct kcu_mat){.w = r->weights != NULL ? r->weights + at : NULL,
                                  .type = v->type,
                                  .rows = v->rows,
                                  .k = v->k,
                                  .n_mats = v->n_mats,
                                  .pitch = pitch,
                                  .mat_pitch = pitch * v->rows};
            at += view_bytes(v);
        }
    return at;
}

size_t cuda_load_bytes(const struct cuda *c, uint32_t rank)
{
    size_t n = 0;
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; c->prog[p] != NULL && i < c->prog[p]->n_views; i++) {
            const struct op_view *v = plan_view(c->prog[p], rank, i);
            bool twice = false;
            for (uint32_t k = 0; p == 1 && k < c->prog[0]->n_views && !twice; k++)
                twice = plan_view(c->prog[0], rank, k)->data == v->data && plan_view(c->prog[0], rank, k)->rows == v->rows;
            n += twice ? 0 : view_bytes(v);
        }
    return n;
}

/* Rows [from, from + n) of the view, counted over all matrices, packed into dst. */
static void gather_rows(const struct op_view *v, size_t row_bytes, size_t from, size_t n, uint8_t *dst)
{
    while (n > 0) {
        size_t mat = from / v->rows, row = from % v->rows, m = v->rows - row < n ? v->rows - row : n;
        const uint8_t *src = v->data + mat * v->mat_stride + row * v->stride;
        if (v->stride == row_bytes) {
            memcpy(dst, src, m * row_bytes);
        } else {
            for (size_t i = 0; i < m; i++)
                memcpy(dst + i * row_bytes, src + i * v->stride, row_bytes);
        }
        dst += m * row_bytes;
        from += m;
        n -= m;
    }
}

static cudaError_t upload(struct cuda_gpu *g, struct stage *s, const struct op_view *v, const struct kcu_mat *m)
{
    const struct kcu_launch l = {.stream = g->stream};
    const size_t row_bytes = krn_row_bytes(v->type, v->k), total = (size_t)v->rows * v->n_mats,
                 per = STAGE / row_bytes > 0 ? STAGE / row_bytes : 1;
    for (size_t at = 0; at < total; at += per) {
        const size_t n = total - at < per ? total - at : per;
        const unsigned i = s->next++ & 1;
        cudaError_t e = cudaEventSynchronize(s->free_again[i]);
        if (e != cudaSuccess)
            return e;
        gather_rows(v, row_bytes, at, n, s->host[i]);
        e = cudaMemcpyAsync(s->dev[i], s->host[i], n * row_bytes, cudaMemcpyHostToDevice, g->stream);
        if (e == cudaSuccess)
            e = kcu_repack(&l, v->type, v->k, n, s->dev[i], row_bytes, (uint8_t *)(uintptr_t)m->w + at * m->pitch);
        if (e == cudaSuccess)
            e = cudaEventRecord(s->free_again[i], g->stream);
        if (e != cudaSuccess)
            return e;
        if (!loading_add(g->c->lim.loading, n * row_bytes))
            return cudaSuccess; /* load_rank() says why */
    }
    return cudaSuccess;
}

/* Random weights: matrices that keep activations near one in size, norms near one. */
static cudaError_t invent(struct cuda_gpu *g, const struct op_view *v, const struct kcu_mat *m)
{
    const struct kcu_launch l = {.stream = g->stream};
    const bool norm = v->rows == 1;
    const float sigma = norm ? 0.1f : 1.0f / __builtin_sqrtf((float)v->k);
    return kcu_random(&l, v->type, v->k, (size_t)v->rows * v->n_mats, sigma, norm ? 1.0f : 0.0f,
                      (uint64_t)(uintptr_t)v->data * 0x9e3779b97f4a7c15u, (uint8_t *)(uintptr_t)m->w);
}

static enum rs_result load_rank(struct cuda_gpu *g, struct cuda_rank *r, struct stage *s, struct rs_error *err)
{
    struct cuda *c = g->c;
    for (int p = 0; p < 2; p++) {
        if (c->prog[p] == NULL)
            continue;
        r->mat[p] = calloc(c->prog[p]->n_views, sizeof *r->mat[p]);
        if (r->mat[p] == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for weight tables");
    }
    r->bytes_weights = place(c, r);
    cudaError_t e = cudaMalloc((void **)&r->weights, r->bytes_weights + ALIGN);
    if (e != cudaSuccess) {
        size_t have = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&have, &total);
        return error_set(err, RS_ENOMEM,
                         "GPU %d: rank %u's weights take %.2f GB, but only %.2f of %.2f GB are free: %.2f GB are missing (more ranks or "
                         "smaller weights would fit)",
                         g->device, r->rank, (double)r->bytes_weights / 1e9, (double)have / 1e9, (double)total / 1e9,
                         ((double)r->bytes_weights - (double)have) / 1e9);
    }
    place(c, r);
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; c->prog[p] != NULL && i < c->prog[p]->n_views; i++) {
            const struct op_view *v = plan_view(c->prog[p], r->rank, i);
            if (v->rows == 0 || (p == 1 && shared_with_main(c, r, v) != NULL))
                continue;
            e = c->lim.made_up ? invent(g, v, &r->mat[p][i]) : upload(g, s, v, &r->mat[p][i]);
            if (e != cudaSuccess)
                return cuda_fail(err, e, v->tensor, g->device);
            enum rs_result stopped = loading_stopped(c->lim.loading, err);
            if (stopped != RS_OK)
                return stopped;
        }
    return RS_OK;
}

/* Types that the CPU computes with and these kernels do not are refused by name. */
static enum rs_result check_types(const struct cuda_gpu *g, struct rs_error *err)
{
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; g->n_local != 0 && g->c->prog[p] != NULL && i < g->c->prog[p]->n_views; i++) {
            const struct op_view *v = plan_view(g->c->prog[p], g->rank0, i);
            if (v->rows != 0 && !kcu_takes_type(v->type))
                return error_set(err, RS_EUNSUPPORTED, "%s is %s, which has no CUDA kernel yet", v->tensor, krn_type_info(v->type)->name);
        }
    return RS_OK;
}

enum rs_result cuda_load(struct cuda_gpu *g, struct rs_error *err)
{
    enum rs_result types = check_types(g, err);
    if (types != RS_OK)
        return types;
    struct stage s = {.next = 0};
    uint64_t total = 0;
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < g->n_local; i++)
        for (uint32_t v = 0; v < g->c->prog[0]->n_views; v++) {
            const struct op_view *w = plan_view(g->c->prog[0], g->local[i].rank, v);
            if (w->rows != 0)
                total += (uint64_t)krn_row_bytes(w->type, w->k) * w->rows * w->n_mats;
        }
    loading_expect(g->c->lim.made_up ? NULL : g->c->lim.loading, total);
    for (int i = 0; i < 2 && e == cudaSuccess && !g->c->lim.made_up; i++) {
        e = cudaHostAlloc((void **)&s.host[i], STAGE, cudaHostAllocDefault);
        if (e == cudaSuccess)
            e = cudaMalloc((void **)&s.dev[i], STAGE);
        if (e == cudaSuccess)
            e = cudaEventCreateWithFlags(&s.free_again[i], cudaEventDisableTiming);
    }
    enum rs_result rc = e != cudaSuccess ? cuda_fail(err, e, "staging buffers", g->device) : RS_OK;
    for (uint32_t i = 0; i < g->n_local && rc == RS_OK; i++)
        rc = load_rank(g, &g->local[i], &s, err);
    (void)cudaStreamSynchronize(g->stream);
    for (int i = 0; i < 2; i++) {
        (void)cudaFreeHost(s.host[i]);
        (void)cudaFree(s.dev[i]);
        if (s.free_again[i] != NULL)
            (void)cudaEventDestroy(s.free_again[i]);
    }
    return rc;
}
