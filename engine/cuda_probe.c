/* Observers on GPUs. Statistics and first values are made by a kernel where the tensor stands, whole tensors are copied; both are launches like any
 * other, so in a graph they are nodes of it and what the next op reads is the same. Results lie in pinned memory until the step is over; then the
 * control thread brings them into the form that every backend's observers have.
 *
 * What an op reads is what the last op before it has written, so an observer before an op stands after that one: then no launch that takes several
 * ops together has to be taken apart, as long as each of their results survives it. Launches of which that is not true ask cuda_op_observed(). */
#include "engine/cuda_op.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

/* Where the results of one observer on one rank lie in the pinned memory. */
struct place {
    size_t values, copy, ids; /* in floats */
};

struct cuda_probes {
    const struct probe_obs *obs;
    uint32_t n;
    uint64_t generation;
    const struct program *prog;
    uint32_t base;          /* number of its first op in obs */
    uint32_t *first;        /* [n_ops + 2] of the observers that stand after op i - 1 */
    uint32_t *order;        /* [n] observers by where they stand */
    struct place *place;    /* [n][n_ranks] */
    struct kcu_seen *seen;  /* [n][n_ranks], pinned */
    float *host;            /* pinned */
};

static bool per_logit(uint8_t buf)
{
    return buf == BUF_Y || buf == BUF_LOGITS || buf == BUF_FULL;
}

static bool per_pair(uint8_t buf)
{
    return buf == BUF_MGU || buf == BUF_MACT;
}

static bool overlap(const struct op_ref *a, const struct op_ref *b)
{
    if (a->buf != b->buf)
        return false;
    return a->width == 0 || b->width == 0 || (a->col < b->col + b->width && b->col < a->col + a->width);
}

static const struct op *op_of(const struct cuda_probes *x, const struct probe_obs *o)
{
    return &x->prog->ops[o->op - x->base];
}

static const struct op_ref *ref_of(const struct cuda_probes *x, const struct probe_obs *o)
{
    return probe_ref(op_of(x, o), o->before, o->index);
}

/* The op after which an observer stands; -1: before the first. */
static int stands_after(const struct cuda_probes *x, const struct probe_obs *o)
{
    const struct program *p = x->prog;
    const struct op_ref *ref = ref_of(x, o);
    if (!o->before)
        return op_of(x, o)->index;
    for (int i = (int)op_of(x, o)->index - 1; i >= 0; i--)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (p->ops[i].out[k].buf != BUF_NONE && overlap(&p->ops[i].out[k], ref))
                return i;
    return -1;
}

/* Rows that a buffer may have in any step. */
static uint32_t most_rows(const struct cuda *c, uint8_t buf)
{
    return (uint32_t)cuda_buf_rows(c, buf == BUF_FULL ? BUF_LOGITS : (enum op_buf)buf);
}

static void free_probes(struct cuda_probes *x)
{
    if (x == NULL)
        return;
    (void)cudaFreeHost(x->seen);
    (void)cudaFreeHost(x->host);
    free(x->first);
    free(x->order);
    free(x->place);
    free(x);
}

void cuda_probe_close(struct cuda *c)
{
    for (int p = 0; p < 2; p++) {
        free_probes(c->probes[p]);
        c->probes[p] = NULL;
    }
}

/* Where everything goes; returns the floats of pinned memory that it takes. */
static size_t lay_out(const struct cuda *c, struct cuda_probes *x, size_t *chunks)
{
    size_t at = 0;
    *chunks = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        const struct probe_obs *o = &x->obs[i];
        const struct op_ref *ref = ref_of(x, o);
        for (uint32_t r = 0; r < c->n_ranks; r++) {
            struct place *p = &x->place[(size_t)i * c->n_ranks + r];
            const uint32_t width = plan_ref_width(x->prog, op_of(x, o), ref, r);
            const size_t n = kcu_probe_parts((size_t)most_rows(c, ref->buf) * width);
            if ((o->ranks >> r & 1) == 0 || ref->buf == BUF_FULL)
                continue;
            *chunks = n > *chunks ? n : *chunks;
            p->values = at;
            at += o->bits & PROBE_VALUES ? o->n_values : 0;
            p->copy = at;
            at += o->bits & PROBE_COPY ? (size_t)most_rows(c, ref->buf) * width : 0;
            p->ids = at;
            at += (o->bits & PROBE_COPY) && per_pair(ref->buf) ? (size_t)c->lim.max_rows * c->hp->n_used : 0;
        }
    }
    return at;
}

static enum rs_result scratch(struct cuda *c, size_t chunks, struct rs_error *err)
{
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        struct cuda_gpu *g = &c->gpu[k];
        cudaError_t e = cudaSetDevice(g->device);
        if (e == cudaSuccess && chunks > g->probe_chunks) {
            (void)cudaFree(g->probe_parts);
            g->probe_parts = NULL;
            g->probe_chunks = 0;
            e = cudaMalloc((void **)&g->probe_parts, chunks * sizeof *g->probe_parts);
            g->probe_chunks = e == cudaSuccess ? chunks : 0;
        }
        if (e == cudaSuccess && g->probe_arrived == NULL) {
            e = cudaMalloc((void **)&g->probe_arrived, sizeof *g->probe_arrived);
            if (e == cudaSuccess)
                e = cudaMemset(g->probe_arrived, 0, sizeof *g->probe_arrived);
        }
        if (e != cudaSuccess)
            return cuda_fail(err, e, "memory for observers", g->device);
    }
    return RS_OK;
}

/* Sort observers by where they stand. */
static void sort(struct cuda_probes *x)
{
    const uint32_t n_ops = x->prog->n_ops;
    for (uint32_t i = 0; i < x->n; i++)
        x->first[stands_after(x, &x->obs[i]) + 2]++;
    for (uint32_t i = 1; i < n_ops + 2; i++)
        x->first[i] += x->first[i - 1];
    for (uint32_t i = 0; i < x->n; i++) { /* first[k] moves up and becomes the end of k, which is the beginning of k + 1 */
        uint32_t *at = &x->first[stands_after(x, &x->obs[i]) + 1];
        x->order[(*at)++] = i;
    }
    for (uint32_t i = n_ops + 1; i > 0; i--)
        x->first[i] = x->first[i - 1];
    x->first[0] = 0;
}

enum rs_result cuda_probe_arm(struct cuda *c, const struct backend_step *s, struct rs_error *err)
{
    const struct probe_set *ps = s->probes;
    struct cuda_probes **mine = &c->probes[cuda_prog(c, s->prog)], *x = *mine;
    if (ps == NULL || ps->n_obs == 0)
        return RS_OK;
    if (x != NULL && x->obs == ps->obs && x->n == ps->n_obs && x->generation == s->generation && x->prog == s->prog)
        return RS_OK;
    for (uint32_t k = 0; k < c->n_gpus; k++) { /* they write into the memory of the old observers */
        (void)cudaSetDevice(c->gpu[k].device);
        cuda_exec_close(&c->gpu[k]);
    }
    free_probes(x);
    *mine = NULL;
    x = calloc(1, sizeof *x);
    if (x == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for observers");
    *x = (struct cuda_probes){.obs = ps->obs, .n = ps->n_obs, .generation = s->generation, .prog = s->prog, .base = ps->base};
    x->first = calloc(s->prog->n_ops + 3, sizeof *x->first);
    x->order = calloc(x->n, sizeof *x->order);
    x->place = calloc((size_t)x->n * c->n_ranks, sizeof *x->place);
    enum rs_result rc = RS_OK;
    if (x->first == NULL || x->order == NULL || x->place == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for observers");
    if (rc == RS_OK) {
        size_t chunks, floats = lay_out(c, x, &chunks);
        const unsigned how = cudaHostAllocPortable | cudaHostAllocMapped;
        sort(x);
        cudaError_t e = cudaSetDevice(c->gpu[0].device);
        if (e == cudaSuccess)
            e = cudaHostAlloc((void **)&x->seen, (size_t)x->n * c->n_ranks * sizeof *x->seen, how);
        if (e == cudaSuccess)
            e = cudaHostAlloc((void **)&x->host, (floats + 1) * sizeof *x->host, how);
        rc = e != cudaSuccess ? cuda_fail(err, e, "pinned memory for observers", c->gpu[0].device) : scratch(c, chunks, err);
    }
    if (rc != RS_OK) {
        free_probes(x);
        return rc;
    }
    *mine = x;
    return RS_OK;
}

/* ---- launching ---- */

static const int32_t *choice_of(const struct cuda_rank *r)
{
    return (const int32_t *)(const void *)r->buf[BUF_CHOICE];
}

static struct kcu_probe look(const struct cuda_walk *w, const struct cuda_probes *x, const struct cuda_rank *r, const struct probe_obs *o,
                             const struct op_ref *ref)
{
    const struct cuda *c = w->c;
    const uint32_t *meta = (const uint32_t *)w->g->meta;
    struct kcu_probe a = {.x = r->buf[ref->buf] + ref->col,
                          .pitch = w->prog->width[ref->buf][r->rank],
                          .width = plan_ref_width(w->prog, op_of(x, o), ref, r->rank),
                          .max_rows = per_logit(ref->buf) ? w->s->batch->n_logits : w->rows,
                          .rows = per_logit(ref->buf) ? NULL : meta + CUDA_META_ROWS,
                          .rows_each = 1,
                          .parts = w->g->probe_parts,
                          .arrived = w->g->probe_arrived};
    if (ref->buf == BUF_ISEL)
        a.kind = KCU_PROBE_SELECTION;
    else if (ref->buf == BUF_CHOICE)
        a.kind = KCU_PROBE_CHOICE;
    else if (ref->buf == BUF_ISCORE) {
        a.kind = KCU_PROBE_SCORES;
        a.pos = w->g->meta + cuda_meta_pos(c);
        a.top_k = c->hp->index_topk;
    } else if (per_pair(ref->buf)) {
        const struct shard_range e = shard_of(c->shard, (uint32_t)op_of(x, o)->layer, r->rank)->experts;
        a.kind = KCU_PROBE_PAIRS;
        a.ids = choice_of(r);
        a.ids_pitch = w->prog->width[BUF_CHOICE][r->rank];
        a.n_used = a.rows_each = c->hp->n_used;
        a.max_rows *= c->hp->n_used;
        a.expert0 = e.from;
        a.n_experts = e.to - e.from;
    }
    return a;
}

static cudaError_t copy_rows(struct cuda_walk *w, const struct kcu_probe *a, const struct place *p, float *host)
{
    const size_t width = a->kind == KCU_PROBE_SCORES && w->keys < a->width ? w->keys : a->width;
    cudaError_t e = cudaMemcpy2DAsync(host + p->copy, width * sizeof *host, a->x, a->pitch * sizeof *host, width * sizeof *host, a->max_rows,
                                      cudaMemcpyDeviceToHost, w->l.stream);
    if (e == cudaSuccess && a->kind == KCU_PROBE_PAIRS)
        e = cudaMemcpy2DAsync(host + p->ids, a->n_used * sizeof *host, a->ids, a->ids_pitch * sizeof *host, a->n_used * sizeof *host,
                              a->max_rows / a->n_used, cudaMemcpyDeviceToHost, w->l.stream);
    w->l.pdl = false; /* what follows waits for the copies, which do not take part */
    return e;
}

static enum rs_result observe(struct cuda_walk *w, uint32_t i)
{
    struct cuda_probes *x = w->c->probes[w->p];
    const struct probe_obs *o = &x->obs[i];
    const struct op_ref *ref = ref_of(x, o);
    for (uint32_t k = 0; k < w->g->n_local && ref->buf != BUF_FULL; k++) {
        const struct cuda_rank *r = &w->g->local[k];
        const struct place *p = &x->place[(size_t)i * w->c->n_ranks + r->rank];
        struct kcu_probe a = look(w, x, r, o, ref);
        cudaError_t e = cudaSuccess;
        if ((o->ranks >> r->rank & 1) == 0 || r->buf[ref->buf] == NULL || a.width == 0 || a.max_rows == 0)
            continue;
        a.out = o->bits & PROBE_STATS ? &x->seen[(size_t)i * w->c->n_ranks + r->rank] : NULL;
        a.n_values = o->bits & PROBE_VALUES ? o->n_values : 0;
        a.values = x->host + p->values;
        if (a.out != NULL || a.n_values != 0) {
            e = kcu_probe(&w->l, &a);
            w->l.pdl = w->c->cfg.pdl;
            w->g->n_kernels++;
        }
        if (e == cudaSuccess && (o->bits & PROBE_COPY))
            e = copy_rows(w, &a, p, x->host);
        if (e != cudaSuccess)
            return error_set(w->err, RS_EENGINE, "GPU %d, observing %s: %s", w->g->device, op_of(x, o)->site, cudaGetErrorString(e));
    }
    return RS_OK;
}

enum rs_result cuda_probe_at(struct cuda_walk *w, int op)
{
    const struct cuda_probes *x = w->c->probes[w->p];
    enum rs_result rc = RS_OK;
    if (w->s->probes == NULL || w->s->probes->n_obs == 0)
        return RS_OK;
    for (uint32_t i = x->first[op + 1]; i < x->first[op + 2] && rc == RS_OK; i++)
        rc = observe(w, x->order[i]);
    return rc;
}

/* ---- results ---- */

static struct probe_stats as_stats(const struct kcu_seen *s)
{
    return (struct probe_stats){.n = s->n,
                                .zeros = s->zeros,
                                .nan = s->nan,
                                .inf = s->inf,
                                .hash = s->hash,
                                .sum = s->sum,
                                .sum_sq = s->sum_sq,
                                .min = s->min,
                                .max = s->max,
                                .absmax = s->absmax};
}

uint32_t cuda_probe_pairs(const struct cuda *c, const int32_t *ids, uint32_t rows, uint32_t layer, uint32_t rank, uint32_t *pair)
{
    const struct shard_range ex = shard_of(c->shard, layer, rank)->experts;
    uint32_t n = 0;
    for (uint32_t e = ex.from; e < ex.to; e++)
        for (uint32_t p = 0; p < rows * c->hp->n_used; p++)
            if (ids[p] == (int32_t)e)
                pair[n++] = p;
    return n;
}

/* Pairs in the order that they have elsewhere: by expert, rows ascending within one. */
static void take_pairs(const struct cuda *c, const struct cuda_probes *x, const struct probe_obs *o, const struct place *p, uint32_t rank,
                       uint32_t width, struct probe_copied *to)
{
    const uint32_t rows = c->step->batch->n_rows;
    uint32_t *pair = malloc(((size_t)rows * c->hp->n_used + 1) * sizeof *pair), n;
    if (pair == NULL) {
        to->rows = 0; /* as if nothing had been seen */
        return;
    }
    n = cuda_probe_pairs(c, (const int32_t *)(const void *)(x->host + p->ids), rows, (uint32_t)op_of(x, o)->layer, rank, pair);
    to->width = n == 0 ? 0 : width;
    to->rows = width == 0 ? 0 : to->cap / width < n ? (uint32_t)(to->cap / width) : n;
    for (uint32_t i = 0; i < to->rows; i++)
        memcpy(to->data + (size_t)i * width, x->host + p->copy + (size_t)pair[i] * width, width * sizeof(float));
    free(pair);
}

static void take_copy(const struct cuda *c, const struct cuda_probes *x, const struct probe_obs *o, const struct op_ref *ref,
                      const struct place *p, uint32_t rank, uint32_t keys)
{
    struct probe_copied *to = &o->copied[rank];
    const struct batch *b = c->step->batch;
    const uint32_t width = plan_ref_width(x->prog, op_of(x, o), ref, rank), rows = per_logit(ref->buf) ? b->n_logits : b->n_rows;
    const uint32_t pitch = ref->buf == BUF_ISCORE && keys < width ? keys : width,
                   used = ref->buf == BUF_ISCORE && b->max_keys < width ? b->max_keys : width;
    if (per_pair(ref->buf)) {
        take_pairs(c, x, o, p, rank, width, to);
        return;
    }
    const float *src = ref->buf == BUF_FULL ? c->full + ref->col : x->host + p->copy;
    to->width = rows == 0 ? 0 : used;
    to->rows = used == 0 ? 0 : to->cap / used < rows ? (uint32_t)(to->cap / used) : rows;
    for (uint32_t i = 0; i < to->rows; i++)
        memcpy(to->data + (size_t)i * used, src + (size_t)i * (ref->buf == BUF_FULL ? c->hp->vocab : pitch), used * sizeof(float));
}

/* The joined logits are in host memory. */
static void see_full(const struct cuda *c, const struct probe_obs *o, uint32_t slot)
{
    struct probe_stats st = {0};
    const uint32_t n = c->step->batch->n_logits, vocab = c->hp->vocab;
    for (uint32_t i = 0; i < n; i++)
        probe_fold_row(&st, BUF_FULL, c->full + (size_t)i * vocab, vocab, 0, 0);
    if (o->bits & PROBE_STATS)
        o->ring[(size_t)slot * c->n_ranks] = st;
    if (o->bits & PROBE_VALUES)
        for (uint32_t j = 0; j < o->n_values; j++)
            o->values[(size_t)slot * c->n_ranks * o->n_values + j] = n != 0 && j < vocab ? c->full[(size_t)(n - 1) * vocab + j] : 0;
}

static void take(const struct cuda *c, const struct cuda_probes *x, uint32_t i, uint32_t slot, uint32_t keys)
{
    const struct probe_obs *o = &x->obs[i];
    const struct op_ref *ref = ref_of(x, o);
    if (ref->buf == BUF_FULL)
        see_full(c, o, slot);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        const struct place *p = &x->place[(size_t)i * c->n_ranks + r];
        const size_t at = (size_t)slot * c->n_ranks + r;
        if ((o->ranks >> r & 1) == 0)
            continue;
        if (o->bits & PROBE_COPY)
            take_copy(c, x, o, ref, p, r, keys);
        if (ref->buf == BUF_FULL)
            continue;
        if (o->bits & PROBE_STATS)
            o->ring[at] = as_stats(&x->seen[(size_t)i * c->n_ranks + r]);
        if (o->bits & PROBE_VALUES)
            memcpy(o->values + at * o->n_values, x->host + p->values, o->n_values * sizeof(float));
    }
}

void cuda_probe_begin(struct cuda *c, const struct backend_step *s)
{
    const struct cuda_probes *x = c->probes[cuda_prog(c, s->prog)];
    if (s->probes != NULL && s->probes->n_obs != 0) /* where nothing is launched (an empty part) nothing is seen */
        memset(x->seen, 0, (size_t)x->n * c->n_ranks * sizeof *x->seen);
}

void cuda_probe_take(struct cuda *c, const struct backend_step *s, int from, int to, uint32_t keys)
{
    const struct cuda_probes *x = c->probes[cuda_prog(c, s->prog)];
    if (s->probes == NULL || s->probes->n_obs == 0)
        return;
    for (uint32_t i = x->first[from + 1]; i < x->first[to + 2]; i++)
        take(c, x, x->order[i], s->probes->slot, keys);
}
