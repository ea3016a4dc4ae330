/* Logits of wanted rows: looked at where they lie, fetched when somebody wants to see them.
 *
 * A batch says what its rows' logits are for (batch_want). Where nobody looks at the joined logits themselves, a step ends with figures and candidates
 * per row and rank, which kernels write into host memory; rows that are wanted whole follow, and others are fetched one by one on demand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda_op.h"
#include "engine/error.h"

/* Does anybody look at the joined logits, so that all of them must come? Who holds the step may even change them. */
static bool looked_at(const struct backend_step *s)
{
    const struct probe_set *ps = s->probes;
    if (s->hook != NULL)
        return true;
    uint32_t at = s->prog->n_ops - 1; /* the joining is the last op, or near it */
    while (at > 0 && s->prog->ops[at].kind != OP_GATHER)
        at--;
    if (s->prog->ops[at].kind == OP_GATHER && s->choices[at].impl->launch != NULL) /* by a patch */
        return true;
    for (uint32_t i = 0; ps != NULL && i < ps->n_obs; i++)
        if (probe_ref(&s->prog->ops[ps->obs[i].op], ps->obs[i].before, ps->obs[i].index)->buf == BUF_FULL)
            return true;
    for (uint32_t i = 0; ps != NULL && i < ps->n_copies; i++)
        if (s->prog->ops[ps->copies[i].op].out[0].buf == BUF_FULL)
            return true;
    return false;
}

enum cuda_looks cuda_logits_looks(const struct backend_step *s)
{
    const struct batch *b = s->batch;
    if (!b->wants || looked_at(s))
        return CUDA_GATHER;
    for (uint32_t i = 0; i < b->n_logits; i++)
        if (b->want[i].list != 0 && !b->want[i].whole)
            return CUDA_LIST;
    return CUDA_TOP;
}

enum rs_result cuda_logits_open(struct cuda *c, struct rs_error *err)
{
    const size_t rows = (size_t)c->n_ranks * c->lim.max_logits;
    const unsigned how = cudaHostAllocPortable | cudaHostAllocMapped;
    cudaError_t e = cudaHostAlloc((void **)&c->full, (size_t)c->lim.max_logits * c->hp->vocab * sizeof(float), how);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&c->top, rows * sizeof *c->top, how);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&c->likely, rows * KCU_LIST * sizeof *c->likely, how);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "pinned memory for logits", c->gpu[0].device);
    memset(c->full, 0, (size_t)c->lim.max_logits * c->hp->vocab * sizeof(float)); /* one rank alone writes its part */
    c->row_state = calloc(c->lim.max_logits, sizeof *c->row_state);
    return c->row_state != NULL ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for logits");
}

void cuda_logits_close(struct cuda *c)
{
    (void)cudaFreeHost(c->full);
    (void)cudaFreeHost(c->top);
    (void)cudaFreeHost(c->likely);
    free(c->row_state);
}

void cuda_logits_fill(const struct cuda *c, const struct backend_step *s, int32_t *words)
{
    const struct batch *b = s->batch;
    const uint32_t n = cuda_lists_logits(c, s);
    float *temp = (float *)(void *)words;
    if (!b->wants)
        return;
    for (uint32_t i = 0; i < n; i++) {
        const bool list = i < b->n_logits && !b->want[i].whole;
        temp[i] = list ? b->want[i].temp : 0;
        words[c->lim.max_logits + i] = list ? (int32_t)b->want[i].list : 0;
    }
}

void cuda_logits_begin(struct cuda *c, const struct backend_step *s)
{
    c->gathered = cuda_logits_looks(s) == CUDA_GATHER;
    c->want = s->batch->want;
    for (uint32_t i = 0; i < s->batch->n_logits; i++)
        c->row_state[i] = c->gathered || s->batch->want[i].whole ? CUDA_ROW_HERE : CUDA_ROW_AWAY;
}

static cudaError_t copy_part(const struct cuda *c, const struct cuda_gpu *g, const struct cuda_rank *r, const struct program *p, uint32_t row, uint32_t n)
{
    const struct shard_range v = c->shard->vocab[r->rank];
    const size_t pitch = p->width[BUF_LOGITS][r->rank];
    if (v.to == v.from || n == 0)
        return cudaSuccess;
    return cudaMemcpy2DAsync(c->full + (size_t)row * c->hp->vocab + v.from, c->hp->vocab * sizeof(float), r->buf[BUF_LOGITS] + row * pitch,
                             pitch * sizeof(float), (v.to - v.from) * sizeof(float), n, cudaMemcpyDeviceToHost, g->stream);
}

/* A lone row's logits of a kernel that can write them to host memory while it makes them: where they go, and the op that would copy them is done; NULL if they
 * stay. */
float *cuda_logits_beside(struct cuda_walk *w, const struct cuda_rank *r)
{
    const struct op *next = cuda_op_ahead(w, 1);
    const struct shard_range v = w->c->shard->vocab[r->rank];
    if (!w->fuse || w->n_logits != 1 || w->g->n_local != 1 || next == NULL || next->kind != OP_GATHER || next->in[0].buf != w->op->out[0].buf ||
        cuda_op_is_user(w, next) || cuda_logits_looks(w->s) != CUDA_GATHER)
        return NULL;
    w->done[next->index] = true;
    return w->c->full + v.from;
}

enum rs_result cuda_logits_gather(struct cuda_walk *w, struct cuda_rank *r)
{
    const struct cuda *c = w->c;
    const struct shard_range v = c->shard->vocab[r->rank];
    const enum cuda_looks looks = cuda_logits_looks(w->s);
    if (v.to == v.from || w->n_logits == 0)
        return RS_OK;
    if (looks == CUDA_GATHER) {
        cudaError_t e = copy_part(c, w->g, r, w->prog, 0, w->n_logits);
        w->l.pdl = false;
        return e == cudaSuccess ? RS_OK : error_set(w->err, RS_EENGINE, "GPU %d, op %s: %s", w->g->device, w->op->site, cudaGetErrorString(e));
    }
    const int32_t *words = w->g->meta + cuda_meta_want(c);
    const size_t row0 = (size_t)r->rank * c->lim.max_logits;
    const struct kcu_likeliest a = {.x = cuda_op_at(w, r, &w->op->in[0]),
                                    .pitch = cuda_op_pitch_of(w, r, BUF_LOGITS),
                                    .width = v.to - v.from,
                                    .n = w->n_logits,
                                    .id0 = (int32_t)v.from,
                                    .temp = (const float *)(const void *)words,
                                    .list = looks == CUDA_LIST ? (const uint32_t *)(const void *)(words + c->lim.max_logits) : NULL,
                                    .parts = r->top_parts,
                                    .arrived = r->top_arrived,
                                    .out = c->top + row0,
                                    .likely = c->likely + row0 * KCU_LIST};
    w->where = (struct cuda_where){__FILE__, __LINE__};
    return cuda_op_after(w, kcu_likeliest(&w->l, &a), looks == CUDA_LIST ? 2 : 1);
}

cudaError_t cuda_logits_follow(struct cuda_gpu *g, const struct backend_step *s)
{
    const struct batch *b = s->batch;
    cudaError_t e = cudaSuccess;
    if (g->c->gathered)
        return e;
    for (uint32_t i = 0, n; i < b->n_logits; i += n) { /* rows that lie together go together */
        n = 1;
        while (i + n < b->n_logits && b->want[i + n].whole == b->want[i].whole)
            n++;
        for (uint32_t k = 0; k < g->n_local && b->want[i].whole && e == cudaSuccess; k++)
            e = copy_part(g->c, g, &g->local[k], s->prog, i, n);
    }
    return e;
}

/* A row that stayed behind, on demand. If that fails the device is lost, and the next step says so. */
const float *cuda_logits_row(struct cuda *c, uint32_t row)
{
    cudaError_t e = cudaSuccess;
    if (c->row_state[row] == CUDA_ROW_AWAY && c->last != NULL) {
        for (uint32_t k = 0; k < c->n_gpus && e == cudaSuccess; k++) {
            const struct cuda_gpu *g = &c->gpu[k];
            e = cudaSetDevice(g->device);
            for (uint32_t i = 0; i < g->n_local && e == cudaSuccess; i++)
                e = copy_part(c, g, &g->local[i], c->last, row, 1);
            if (e == cudaSuccess)
                e = cudaStreamSynchronize(g->stream);
        }
        c->row_state[row] = CUDA_ROW_FETCHED;
    }
    return c->full + (size_t)row * c->hp->vocab;
}

float *cuda_logits_change(struct cuda *c, uint32_t row)
{
    (void)cuda_logits_row(c, row);
    c->row_state[row] = CUDA_ROW_HERE;
    return c->full + (size_t)row * c->hp->vocab;
}

/* ---- what the ranks say, put together ---- */

/* Sums relative to `top`, which none of a rank's values exceeds. */
static void add_sums(const struct kcu_top *t, double top, double temp, double sum[4])
{
    const double d = (double)t->top - top, s = exp(d), all = (double)t->z + (d < 0 ? (double)t->tops : 0);
    sum[0] += s * all;
    sum[1] += s * ((double)t->w + d * all);
    sum[2] += s * ((double)t->w2 + 2 * d * (double)t->w + d * d * all);
    sum[3] += temp > 0 ? (double)t->zt * exp(d / temp) : 0;
}

static void join_tops(const struct cuda *c, uint32_t row, double temp, struct sample_row *out)
{
    struct krn_logits *f = &out->figures;
    double sum[4] = {0};
    *f = (struct krn_logits){.top = -INFINITY, .second = -INFINITY, .low = INFINITY};
    out->likeliest = 0;
    out->floor = -INFINITY;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const struct kcu_top *t = &c->top[(size_t)r * c->lim.max_logits + row];
        if (c->shard->vocab[r].to == c->shard->vocab[r].from)
            continue;
        f->nonfinite += t->nonfinite;
        out->floor = t->floor > out->floor ? t->floor : out->floor;
        if (t->at < 0)
            continue;
        out->likeliest = t->top > f->top ? t->at : out->likeliest; /* of equals the first rank has the lowest ids */
        f->second = fmaxf(fminf(f->top, t->top), fmaxf(f->second, t->second));
        f->tops = t->top > f->top ? t->tops : t->top == f->top ? f->tops + t->tops : f->tops;
        f->top = fmaxf(f->top, t->top);
        f->low = fminf(f->low, t->low);
    }
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const struct kcu_top *t = &c->top[(size_t)r * c->lim.max_logits + row];
        if (c->shard->vocab[r].to != c->shard->vocab[r].from && t->at >= 0)
            add_sums(t, (double)f->top, temp, sum);
    }
    f->z = (float)sum[0];
    f->w = (float)sum[1];
    f->w2 = (float)sum[2];
    out->z_temp = (float)sum[3];
}

bool cuda_logits_likeliest(struct backend *b, uint32_t row, struct sample_row *out)
{
    struct cuda *c = (struct cuda *)b;
    if (c->gathered || c->row_state[row] == CUDA_ROW_HERE)
        return false;
    const struct batch_want *want = &c->want[row];
    join_tops(c, row, (double)want->temp, out);
    out->n = 0;
    for (uint32_t r = 0; r < c->n_ranks && want->list != 0; r++) {
        const size_t at = (size_t)r * c->lim.max_logits + row;
        const struct kcu_likely *l = c->likely + at * KCU_LIST;
        for (uint32_t i = 0; i < c->top[at].n; i++)
            if (l[i].x >= out->floor)
                out->list[out->n++] = (struct sample_item){.logit = l[i].x, .id = l[i].id};
    }
    return true;
}
