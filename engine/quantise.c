/* See quantise.h. */
#include "engine/quantise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/gguf_write.h"
#include "kernels/quant.h"

/* A run of rows of one tensor, shared out over the workers. */
struct piece {
    uint32_t from_type, to_type, workers;
    size_t k, rows;
    const uint8_t *src;
    uint8_t *dst;
    float *row;       /* [workers][k] */
    uint8_t *broken;  /* [workers] met a weight that is not finite */
};

enum { PIECE_BYTES = 32 << 20 };

static void convert(void *arg, unsigned worker)
{
    struct piece *p = arg;
    size_t first = p->rows * worker / p->workers, last = p->rows * (worker + 1) / p->workers;
    size_t in = krn_row_bytes(p->from_type, p->k), out = krn_row_bytes(p->to_type, p->k);
    float *x = p->row + worker * p->k;
    for (size_t r = first; r < last; r++) {
        krn_dequant_row(p->from_type, p->src + r * in, x, p->k);
        for (size_t i = 0; i < p->k; i++)
            p->broken[worker] |= !isfinite(x[i]);
        krn_quant_row(p->to_type, x, p->dst + r * out, p->k);
    }
}

struct job {
    struct gguf_writer *w;
    struct pool *pool;
    quantise_progress progress;
    void *arg;
    uint64_t done, total;
};

static enum rs_result copy_tensor(struct job *j, const struct gguf_tensor *t, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    for (uint64_t at = 0; at < t->bytes && rc == RS_OK; at += PIECE_BYTES) {
        size_t n = t->bytes - at < PIECE_BYTES ? (size_t)(t->bytes - at) : PIECE_BYTES;
        rc = gguf_write_data(j->w, t->data + at, n, err);
        j->done += n;
        j->progress(j->arg, j->done, j->total);
    }
    return rc;
}

static enum rs_result convert_tensor(struct job *j, const struct gguf_tensor *t, uint32_t type, struct rs_error *err)
{
    struct piece p = {.from_type = t->type, .to_type = type, .workers = pool_size(j->pool), .k = (size_t)t->ne[0]};
    size_t in = krn_row_bytes(t->type, p.k), out = krn_row_bytes(type, p.k), rows = (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
    size_t most = PIECE_BYTES / in > p.workers ? PIECE_BYTES / in : p.workers;
    enum rs_result rc = RS_OK;
    most = most < rows ? most : rows;
    p.dst = malloc(most * out);
    p.row = malloc(p.workers * p.k * sizeof *p.row);
    p.broken = calloc(p.workers, 1);
    if (p.dst == NULL || p.row == NULL || p.broken == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for rows of %s", t->name);
    for (size_t r = 0; r < rows && rc == RS_OK; r += p.rows) {
        p.rows = rows - r < most ? rows - r : most;
        p.src = t->data + r * in;
        pool_run(j->pool, convert, &p);
        for (uint32_t i = 0; i < p.workers && rc == RS_OK; i++)
            if (p.broken[i])
                rc = error_set(err, RS_EFORMAT, "tensor %s holds weights that are not finite", t->name);
        if (rc == RS_OK)
            rc = gguf_write_data(j->w, p.dst, p.rows * out, err);
        j->done += p.rows * in;
        j->progress(j->arg, j->done, j->total);
    }
    free(p.dst);
    free(p.row);
    free(p.broken);
    return rc;
}

/* Keys that describe how the input was cut into files, aligned and quantised. */
static bool is_stale(const char *key)
{
    return strncmp(key, "split.", 6) == 0 || strcmp(key, "general.alignment") == 0 || strcmp(key, "general.file_type") == 0;
}

enum rs_result quantise_file(const struct gguf *in, const char *path, const struct recipe *r, struct pool *pool, quantise_progress progress, void *arg,
                             struct quantise_report *out, struct rs_error *err)
{
    struct job j = {.pool = pool, .progress = progress, .arg = arg};
    enum rs_result rc = gguf_write_open(path, &j.w, err);
    *out = (struct quantise_report){.tensors = gguf_n_tensors(in)};
    if (rc != RS_OK)
        return rc;
    for (size_t i = 0; i < gguf_n_kv(in); i++) {
        struct gguf_kv kv = gguf_kv_at(in, i);
        if (!is_stale(kv.key))
            gguf_write_kv(j.w, &kv);
    }
    for (size_t i = 0; i < out->tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(in, i);
        uint32_t type = recipe_type(r, t->name, t->n_dims, t->ne, t->type);
        gguf_write_tensor(j.w, t->name, type, t->n_dims, t->ne);
        j.total += t->bytes;
        out->changed += type != t->type;
        out->bytes_in += t->bytes;
        out->bytes_out += krn_row_bytes(type, t->ne[0]) * t->ne[1] * t->ne[2] * t->ne[3];
    }
    for (size_t i = 0; i < out->tensors && rc == RS_OK; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(in, i);
        uint32_t type = recipe_type(r, t->name, t->n_dims, t->ne, t->type);
        rc = type == t->type ? copy_tensor(&j, t, err) : convert_tensor(&j, t, type, err);
    }
    if (rc == RS_OK)
        return gguf_write_finish(j.w, err);
    gguf_write_abort(j.w);
    return rc;
}
