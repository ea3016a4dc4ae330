/* Looking into the memory of GPUs: buffers, caches, which rows of the experts' buffers mean something. The control thread calls it when nothing
 * runs. */
#include "engine/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

struct cuda_rank *cuda_find_rank(struct cuda *c, uint32_t rank, struct cuda_gpu **gpu)
{
    for (uint32_t i = 0; i < c->n_gpus; i++)
        for (uint32_t j = 0; j < c->gpu[i].n_local; j++)
            if (c->gpu[i].local[j].rank == rank) {
                *gpu = &c->gpu[i];
                return &c->gpu[i].local[j];
            }
    return NULL;
}

/* The expert of each pair of the last step's router, [rows][n_used] in c->pair's second half; false: there is none. */
static bool fetch_choice(struct cuda *c, uint32_t rank, uint32_t *layer)
{
    struct cuda_gpu *g = NULL;
    const struct cuda_rank *r = cuda_find_rank(c, rank, &g);
    const uint32_t used = c->hp->n_used, most = c->lim.max_rows * used;
    int op = c->last != NULL ? (int)c->held_op : -1;
    while (op >= 0 && c->last->ops[op].kind != OP_ROUTER)
        op--;
    if (op < 0 || r == NULL || r->buf[BUF_CHOICE] == NULL)
        return false;
    if (c->pair == NULL && (c->pair = malloc(2 * (size_t)most * sizeof *c->pair)) == NULL)
        return false;
    *layer = (uint32_t)c->last->ops[op].layer;
    const size_t row = used * sizeof(int32_t);
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess)
        e = cudaMemcpy2DAsync(c->pair + most, row, r->buf[BUF_CHOICE], c->last->width[BUF_CHOICE][rank] * sizeof(float), row, c->n_rows,
                              cudaMemcpyDeviceToHost, g->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->stream);
    return e == cudaSuccess;
}

uint32_t cuda_look_pairs(struct backend *b, uint32_t rank)
{
    struct cuda *c = (struct cuda *)b;
    uint32_t layer;
    c->n_pairs = 0;
    c->pair_rank = rank;
    if (fetch_choice(c, rank, &layer))
        c->n_pairs = cuda_probe_pairs(c, (const int32_t *)c->pair + (size_t)c->lim.max_rows * c->hp->n_used, c->n_rows, layer, rank, c->pair);
    return c->n_pairs;
}

/* Rows of the experts' buffers are numbered as cuda_look_pairs() counts them; in memory a pair lies where its row and slot say. */
static bool place_row(struct cuda *c, uint32_t rank, enum op_buf buf, uint32_t *row)
{
    if (buf != BUF_MGU && buf != BUF_MACT)
        return true;
    if (c->pair_rank != rank || c->n_pairs == 0)
        cuda_look_pairs(&c->base, rank);
    if (*row >= c->n_pairs)
        return false;
    *row = c->pair[*row];
    return true;
}

static enum rs_result copy_span(struct cuda *c, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, float *dst,
                                const float *src, struct rs_error *err)
{
    struct cuda_gpu *g = NULL;
    struct cuda_rank *r = cuda_find_rank(c, rank, &g);
    if (buf == BUF_FULL && row < c->lim.max_logits && (uint64_t)col + n <= c->hp->vocab) {
        if (dst != NULL)
            memcpy(dst, cuda_logits_row(c, row) + col, n * sizeof *dst);
        else
            memcpy(cuda_logits_change(c, row) + col, src, n * sizeof *src);
        return RS_OK;
    }
    if (r == NULL || buf <= BUF_NONE || buf >= BUF_COUNT || r->buf[buf] == NULL)
        return error_set(err, RS_EUSAGE, "no buffer %s on rank %u", op_buf_name(buf), rank);
    const uint32_t width = (c->last != NULL ? c->last : c->prog[0])->width[buf][rank];
    if (!place_row(c, rank, buf, &row) || row >= cuda_buf_rows(c, buf) || (uint64_t)col + n > width)
        return error_set(err, RS_EUSAGE, "row %u, columns %u to %u are outside of buffer %s", row, col, col + n, op_buf_name(buf));
    float *at = r->buf[buf] + (size_t)row * width + col;
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess)
        e = dst != NULL ? cudaMemcpyAsync(dst, at, n * sizeof *dst, cudaMemcpyDeviceToHost, g->stream)
                        : cudaMemcpyAsync(at, src, n * sizeof *src, cudaMemcpyHostToDevice, g->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->stream);
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "copying a buffer", g->device);
}

enum rs_result cuda_look_read(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, float *dst,
                              struct rs_error *err)
{
    return copy_span((struct cuda *)b, rank, buf, row, col, n, dst, NULL, err);
}

enum rs_result cuda_look_write(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, const float *src,
                               struct rs_error *err)
{
    return copy_span((struct cuda *)b, rank, buf, row, col, n, NULL, src, err);
}

enum rs_result cuda_look_copy_block(struct backend *b, int32_t from, int32_t to, struct rs_error *err)
{
    struct cuda *c = (struct cuda *)b;
    const size_t n = c->lim.block * c->kv_row_bytes, m = c->lim.block * c->ik_row_bytes;
    for (uint32_t i = 0; i < c->n_gpus; i++) {
        struct cuda_gpu *g = &c->gpu[i];
        cudaError_t e = cudaSetDevice(g->device);
        for (uint32_t j = 0; j < g->n_local; j++)
            for (uint32_t l = 0; l < c->hp->n_layers + c->hp->n_nextn && e == cudaSuccess; l++) {
                struct cuda_rank *r = &g->local[j];
                e = cudaMemcpyAsync(r->kv[l] + (size_t)to * n, r->kv[l] + (size_t)from * n, n, cudaMemcpyDeviceToDevice, g->stream);
                if (e == cudaSuccess && r->ik[l] != NULL)
                    e = cudaMemcpyAsync(r->ik[l] + (size_t)to * m, r->ik[l] + (size_t)from * m, m, cudaMemcpyDeviceToDevice, g->stream);
            }
        if (e != cudaSuccess)
            return cuda_fail(err, e, "copying a cache block", g->device);
    }
    return RS_OK;
}

/* A block of a layer's cache between device and host form. Exactly one of dst and src is given. */
static enum rs_result cache_block(struct cuda *c, uint32_t rank, uint32_t layer, bool index, int32_t block, float *dst, const float *src,
                                  struct rs_error *err)
{
    struct cuda_gpu *g = NULL;
    const struct cuda_rank *r = cuda_find_rank(c, rank, &g);
    const bool there = r != NULL && layer < c->hp->n_layers + c->hp->n_nextn && block >= 0 && (uint32_t)block < c->lim.n_blocks;
    uint8_t *base = !there ? NULL : index ? r->ik[layer] : r->kv[layer];
    const size_t bytes = c->lim.block * (index ? c->ik_row_bytes : c->kv_row_bytes), n = bytes / krn_cache_elem_bytes(c->lim.cache);
    const struct krn_cpu_vec *vec = krn_cpu_vec(KRN_ISA_PORTABLE);
    if (base == NULL)
        return error_set(err, RS_EUSAGE, "no block %d of layer %u in the %s of rank %u", block, layer, index ? "indexer's cache" : "cache", rank);
    uint8_t *host = malloc(bytes);
    if (host == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a cache block");
    if (src != NULL)
        vec->store(c->lim.cache, src, host, n);
    uint8_t *at = base + (size_t)block * bytes;
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess)
        e = src != NULL ? cudaMemcpyAsync(at, host, bytes, cudaMemcpyHostToDevice, g->stream)
                        : cudaMemcpyAsync(host, at, bytes, cudaMemcpyDeviceToHost, g->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->stream);
    if (e == cudaSuccess && dst != NULL)
        vec->load(c->lim.cache, host, dst, n);
    free(host);
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "copying a cache block", g->device);
}

enum rs_result cuda_look_cache_get(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, float *dst,
                                   struct rs_error *err)
{
    return cache_block((struct cuda *)b, rank, layer, index, block, dst, NULL, err);
}

enum rs_result cuda_look_cache_put(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, const float *src,
                                   struct rs_error *err)
{
    return cache_block((struct cuda *)b, rank, layer, index, block, NULL, src, err);
}
