/* Steps on GPUs: the variable part is copied, then the list is launched (eager) or a captured walk of the same list replayed (graph). */
#include "engine/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/now.h"

/* A graph serves all steps with at most so many keys: a power of two, so that few graphs are captured while a sequence grows. Attention of few rows holds
 * few keys in shared memory, cut for the bound; the less that is, the more of the next kernel is resident beside it, so there the bounds lie closer. */
static uint32_t keys_bucket(const struct cuda *c, const struct batch *b)
{
    enum { FEW_ROWS = 8, FEW_KEYS = 512, CLOSER = 64 };
    uint32_t k = 256;
    if (b->bucket <= FEW_ROWS && b->max_keys > k && b->max_keys <= FEW_KEYS)
        k = (b->max_keys + CLOSER - 1) / CLOSER * CLOSER;
    while (k < b->max_keys)
        k *= 2;
    return k < c->lim.max_keys ? k : c->lim.max_keys;
}

/* A rank that is alone with a stand-in for its peers has its own rows of the embedding and nobody who sends it the others: a token of theirs counts as
 * one of its own. Of zeros it would make zeros all the way, and no two logits that differ. */
static void own_tokens(const struct cuda *c, int32_t *token, uint32_t n)
{
    const struct shard_range v = c->shard->vocab[0];
    for (uint32_t i = 0; i < n && v.to > v.from; i++)
        if ((uint32_t)token[i] < v.from || (uint32_t)token[i] >= v.to)
            token[i] = (int32_t)(v.from + (uint32_t)token[i] % (v.to - v.from));
}

/* Tokens, positions, block tables into the pinned block; the same words for every GPU. Padded rows are token 0 at position 0 of a sequence whose
 * only block is block 0, which nobody owns. */
static enum rs_result fill_meta(struct cuda *c, const struct backend_step *s, uint32_t rows, struct rs_error *err)
{
    const struct batch *b = s->batch;
    int32_t *m = c->gpu[0].meta_host;
    if (rows > c->lim.max_rows || b->n_logits > c->lim.max_logits)
        return error_set(err, RS_EUSAGE, "%u rows and %u logits; room was made for %u and %u", rows, b->n_logits, c->lim.max_rows,
                         c->lim.max_logits);
    int32_t *tables = m + cuda_meta_tables(c), *offset = m + cuda_meta_table(c);
    uint32_t at = 1;
    m[0] = (int32_t)c->epoch;
    m[CUDA_META_ROWS] = (int32_t)b->n_rows;
    m[CUDA_META_STEP] = (int32_t)(++c->steps * CUDA_STEP_TAGS);
    tables[0] = 0;
    for (uint32_t g = 0; g < b->n_segs; g++) {
        const struct batch_seg *seg = &b->segs[g];
        uint32_t n = (seg->pos0 + seg->n_rows + c->lim.block - 1) / c->lim.block;
        if (at + n > c->cap_tables)
            return error_set(err, RS_EUSAGE, "block tables of %u sequences do not fit", b->n_segs);
        memcpy(tables + at, seg->table, n * sizeof *tables);
        for (uint32_t i = seg->row0; i < seg->row0 + seg->n_rows; i++)
            offset[i] = (int32_t)at;
        at += n;
    }
    memcpy(m + cuda_meta_token(), b->token, b->n_rows * sizeof *m);
    if (c->lim.peers > 1)
        own_tokens(c, m + cuda_meta_token(), b->n_rows);
    memcpy(m + cuda_meta_pos(c), b->pos, b->n_rows * sizeof *m);
    memcpy(m + cuda_meta_logit(c), b->logit_row, b->n_logits * sizeof *m);
    for (uint32_t i = b->n_logits; i < cuda_lists_logits(c, s); i++)
        m[cuda_meta_logit(c) + i] = 0;
    cuda_logits_fill(c, s, m + cuda_meta_want(c));
    int32_t *from = m + cuda_meta_from(c);
    for (uint32_t i = 0; i < rows; i++)
        from[i] = b->from != NULL && i < b->n_rows ? b->from[i] : 0;
    for (uint32_t i = b->n_rows; i < rows; i++)
        m[cuda_meta_token() + i] = m[cuda_meta_pos(c) + i] = offset[i] = 0;
    if (at + CUDA_LIST_WORDS * rows > c->cap_tables)
        return error_set(err, RS_EUSAGE, "block tables of %u sequences do not fit", b->n_segs);
    c->n_tables = at = cuda_lists_fill(c, b, rows, m + CUDA_META_LISTS, tables, at);
    for (uint32_t g = 1; g < c->n_gpus; g++)
        memcpy(c->gpu[g].meta_host, m, (cuda_meta_tables(c) + at) * sizeof *m);
    return RS_OK;
}

static void drop_graph(struct cuda_gpu *g, uint32_t i)
{
    (void)cudaGraphExecDestroy(g->graph[i].exec);
    free(g->graph[i].launched);
    free(g->graph[i].where);
    free(g->graph[i].arith);
    free(g->graph[i].copies);
    g->graph[i] = g->graph[--g->n_graphs];
}

void cuda_exec_close(struct cuda_gpu *g)
{
    while (g->n_graphs > 0)
        drop_graph(g, 0);
}

void cuda_exec_retire(struct cuda *c, uint64_t generation)
{
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        (void)cudaSetDevice(c->gpu[k].device);
        for (uint32_t i = c->gpu[k].n_graphs; i-- > 0;)
            if (c->gpu[k].graph[i].generation < generation)
                drop_graph(&c->gpu[k], i);
    }
}

uint32_t cuda_exec_graphs(const struct cuda *c, struct backend_graph *out, uint32_t cap)
{
    for (uint32_t i = 0; i < c->gpu[0].n_graphs && i < cap; i++) { /* every device has captured the same steps */
        out[i] = (struct backend_graph){.rows = c->gpu[0].graph[i].bucket};
        for (uint32_t k = 0; k < c->n_gpus; k++)
            out[i].bytes += i < c->gpu[k].n_graphs ? c->gpu[k].graph[i].bytes : 0;
    }
    return c->gpu[0].n_graphs;
}

static struct cuda_graph *find_graph(struct cuda_gpu *g, const struct backend_step *s, uint32_t keys)
{
    const uint32_t sorts = cuda_lists_sorts(s->batch), n_logits = cuda_lists_logits(g->c, s);
    const enum cuda_looks looks = cuda_logits_looks(s);
    for (uint32_t i = 0; i < g->n_graphs; i++) {
        struct cuda_graph *x = &g->graph[i];
        if (x->prog == s->prog && x->generation == s->generation && x->bucket == s->batch->bucket && x->n_logits == n_logits &&
            x->keys == keys && x->chained == s->batch->chained && x->sorts == sorts && x->looks == looks && x->fast == s->fast)
            return x;
    }
    return NULL;
}

/* Room for what observers copy, before anything is captured. */
static enum rs_result make_bounce(struct cuda_gpu *g, const struct backend_step *s)
{
    size_t n = 0;
    for (uint32_t i = 0; s->probes != NULL && i < s->probes->n_copies; i++)
        n += s->probes->copies[i].width;
    if (n <= g->bounce_floats)
        return RS_OK;
    while (g->n_graphs > 0) /* they copy into the old one */
        drop_graph(g, 0);
    (void)cudaFreeHost(g->bounce);
    g->bounce = NULL;
    g->bounce_floats = 0;
    cudaError_t e = cudaHostAlloc((void **)&g->bounce, n * sizeof(float), cudaHostAllocPortable);
    if (e != cudaSuccess)
        return cuda_fail(&g->err, e, "pinned memory for observers", g->device);
    g->bounce_floats = n;
    return RS_OK;
}

static enum rs_result make_payload(struct cuda_gpu *g)
{
    if (g->payload != NULL || g->nccl == NULL)
        return RS_OK;
    cudaError_t e = cudaMalloc((void **)&g->payload, (size_t)g->c->lim.max_rows * g->c->hp->n_embd * sizeof *g->payload);
    return e == cudaSuccess ? RS_OK : cuda_fail(&g->err, e, "NCCL payload", g->device);
}

static enum rs_result capture(struct cuda_gpu *g, const struct backend_step *s, uint32_t keys, struct cuda_graph **out)
{
    cudaGraph_t graph = NULL;
    if (g->n_graphs == CUDA_MAX_GRAPHS)
        drop_graph(g, 0);
    struct cuda_graph *x = &g->graph[g->n_graphs];
    *x = (struct cuda_graph){
        .prog = s->prog, .generation = s->generation, .bucket = s->batch->bucket, .n_logits = cuda_lists_logits(g->c, s), .keys = keys,
        .chained = s->batch->chained, .sorts = cuda_lists_sorts(s->batch), .looks = cuda_logits_looks(s), .fast = s->fast};
    cudaError_t e = cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess)
        return cuda_fail(&g->err, e, "begin of capture", g->device);
    enum rs_result rc = cuda_launch_step(g, s, s->batch->bucket, keys, &g->err);
    e = cudaStreamEndCapture(g->stream, &graph);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->aside); /* what acted meanwhile is over before the graph runs */
    if (rc == RS_OK && e != cudaSuccess)
        rc = cuda_fail(&g->err, e, "end of capture", g->device);
    size_t before = 0, after = 0, total;
    if (rc == RS_OK) {
        (void)cudaMemGetInfo(&before, &total);
        e = cudaGraphInstantiate(&x->exec, graph, 0);
        (void)cudaMemGetInfo(&after, &total);
        x->bytes = before > after ? before - after : 0;
        rc = e == cudaSuccess ? RS_OK : cuda_fail(&g->err, e, "making a graph", g->device);
    }
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    if (rc != RS_OK)
        return rc;
    x->launched = malloc(g->n_launched * sizeof *x->launched);
    x->where = malloc(g->n_launched * sizeof *x->where);
    x->arith = malloc((size_t)g->n_local * s->prog->n_ops);
    if (x->launched == NULL || x->where == NULL || x->arith == NULL) {
        free(x->launched);
        free(x->where);
        free(x->arith);
        (void)cudaGraphExecDestroy(x->exec);
        return error_set(&g->err, RS_ENOMEM, "out of memory for a graph's timings");
    }
    memcpy(x->launched, g->launched, g->n_launched * sizeof *x->launched);
    memcpy(x->where, g->where, g->n_launched * sizeof *x->where);
    for (uint32_t i = 0; i < g->n_local; i++)
        memcpy(x->arith + (size_t)i * s->prog->n_ops, g->local[i].arith[cuda_prog(g->c, s->prog)], s->prog->n_ops);
    x->n_launched = g->n_launched;
    x->kernels = g->n_kernels;
    x->reduces = g->n_reduces;
    g->n_graphs++;
    *out = x;
    return RS_OK;
}

static enum rs_result run_gpu(struct cuda_gpu *g)
{
    struct cuda *c = g->c;
    const struct backend_step *s = c->step;
    cudaError_t e = cudaSetDevice(g->device);
    if (e != cudaSuccess)
        return cuda_fail(&g->err, e, "step", g->device);
    enum rs_result rc = make_bounce(g, s);
    if (rc == RS_OK)
        rc = make_payload(g);
    if (rc != RS_OK)
        return rc;
    struct cuda_graph *x = NULL;
    const uint32_t keys = s->graph ? keys_bucket(c, s->batch) : s->batch->max_keys;
    if (s->graph) {
        x = find_graph(g, s, keys);
        rc = x == NULL ? capture(g, s, keys, &x) : RS_OK;
        if (rc != RS_OK)
            return rc;
    }
    e = cudaMemcpyAsync(g->meta, g->meta_host, (cuda_meta_tables(c) + c->n_tables) * sizeof *g->meta, cudaMemcpyHostToDevice, g->stream);
    if (e == cudaSuccess && x != NULL) {
        e = cudaGraphLaunch(x->exec, g->stream);
        memcpy(g->launched, x->launched, x->n_launched * sizeof *x->launched);
        memcpy(g->where, x->where, x->n_launched * sizeof *x->where);
        for (uint32_t i = 0; i < g->n_local; i++)
            memcpy(g->local[i].arith[cuda_prog(c, s->prog)], x->arith + (size_t)i * s->prog->n_ops, s->prog->n_ops);
        g->n_launched = x->n_launched;
        g->n_kernels = x->kernels;
        g->n_reduces = x->reduces;
    }
    if (e == cudaSuccess && x == NULL)
        rc = cuda_launch_step(g, s, s->batch->n_rows, keys, &g->err);
    if (e == cudaSuccess && rc == RS_OK)
        e = cuda_logits_follow(g, s);
    if (e != cudaSuccess && rc == RS_OK)
        rc = cuda_fail(&g->err, e, "step", g->device);
    return rc == RS_OK && !cuda_alone(c) ? cuda_span_wait(g, c->span.waits ? g->nccl : NULL, s->prog, &g->err) : rc;
}

static void job_step(struct cuda_gpu *g)
{
    g->rc = run_gpu(g);
    if (g->rc != RS_OK && g->c->span.waits)
        cuda_span_leave(g); /* its sums will not come: who waits for them in NCCL need not */
}

/* On a lone GPU: what there is to do meanwhile is done when all is launched. */
static enum rs_result walk_alone(struct cuda *c, struct rs_error *err)
{
    const struct cuda_gpu *g = &c->gpu[0];
    enum rs_result rc = cuda_all(c, job_step, err);
    if (rc != RS_OK)
        return rc;
    for (bool more = c->meanwhile != NULL; more && cudaStreamQuery(g->stream) == cudaErrorNotReady;) {
        (void)cudaGetLastError(); /* "not ready" is no error, but counts as the last one */
        more = c->meanwhile(c->meanwhile_arg);
    }
    cudaError_t e = cudaStreamSynchronize(g->stream);
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "step", g->device);
}

/* An op lasts from its first kernel's start to the start of the next op that launched one; of a reduce that took the residual along, up to where its
 * sum was there, and the rest belongs to the residual. Whatever else was fused into a neighbour shows as 0. */
static void sum_times(struct cuda *c, const struct program *p)
{
    const int which = cuda_prog(c, p);
    float *us = c->us[which];
    memset(us, 0, (size_t)p->n_ops * c->n_ranks * sizeof *us);
    if (which == 0)
        memset(c->reduces, 0, (size_t)p->n_ops * c->n_ranks * sizeof *c->reduces);
    c->last_ops[which] = p->n_ops;
    const uint64_t zero = c->gpu[0].n_launched != 0 ? c->gpu[0].stamp[c->gpu[0].launched[0]] : 0;
    for (uint32_t k = 0; k < c->n_gpus; k++) {
        const struct cuda_gpu *g = &c->gpu[k];
        uint64_t next = g->stamp[(size_t)c->cap_ops * c->n_ranks];
        for (uint32_t i = g->n_launched; i-- > 0;) {
            const uint32_t at = g->launched[i], op = at / c->n_ranks;
            const uint64_t t = g->stamp[at], ready = g->ready[op];
            if (t == 0 || t > next)
                continue;
            us[at] = (float)(next - t) * 1e-3f;
            if (ready >= t && ready <= next && p->ops[op].kind == OP_ALLREDUCE) { /* one launch for all ranks of the GPU */
                const bool more = op + 1 < p->n_ops && (p->ops[op + 1].kind == OP_ADD || p->ops[op + 1].kind == OP_RMSNORM);
                const struct backend_reduce r = {cuda_clock_us(g, t, zero), cuda_clock_us(g, ready, zero)};
                for (uint32_t j = 0; j < g->n_local; j++) {
                    if (which == 0)
                        c->reduces[at + j] = r;
                    us[at + j] = more ? (float)(ready - t) * 1e-3f : us[at];
                    if (more)
                        us[at + c->n_ranks + j] = (float)(next - ready) * 1e-3f;
                }
            }
            next = t;
        }
    }
}

/* ---- steps that may be held between ops ---- */

static void job_begin(struct cuda_gpu *g)
{
    const struct cuda *c = g->c;
    const struct backend_step *s = c->step;
    cudaError_t e = cudaSetDevice(g->device);
    g->rc = e == cudaSuccess ? make_bounce(g, s) : cuda_fail(&g->err, e, "step", g->device);
    if (g->rc == RS_OK)
        g->rc = make_payload(g);
    if (g->rc != RS_OK)
        return;
    e = cudaMemcpyAsync(g->meta, g->meta_host, (cuda_meta_tables(c) + c->n_tables) * sizeof *g->meta, cudaMemcpyHostToDevice, g->stream);
    g->rc = e == cudaSuccess ? cuda_launch_begin(g, s, s->batch->n_rows, s->batch->max_keys, &g->err)
                             : cuda_fail(&g->err, e, "step", g->device);
}

static void job_op(struct cuda_gpu *g)
{
    g->rc = cuda_launch_op(g, g->c->held_op);
    cudaError_t e = g->rc == RS_OK ? cudaStreamSynchronize(g->stream) : cudaSuccess;
    if (e != cudaSuccess)
        g->rc = cuda_fail(&g->err, e, g->c->step->prog->ops[g->c->held_op].site, g->device);
}

static void job_end(struct cuda_gpu *g)
{
    g->rc = cuda_launch_end(g);
    cudaError_t e = g->rc == RS_OK ? cudaStreamSynchronize(g->stream) : cudaSuccess;
    if (e != cudaSuccess)
        g->rc = cuda_fail(&g->err, e, "step", g->device);
}

/* Op by op, all GPUs together, with the hook in between. What observers have seen is brought over after each op, for whoever holds the step. */
static enum rs_result walk_held(struct cuda *c, const struct backend_step *s, struct rs_error *err)
{
    enum rs_result rc = cuda_all(c, job_begin, err);
    cuda_probe_take(c, s, -1, -1, s->batch->max_keys);
    for (uint32_t i = 0; i < s->prog->n_ops && rc == RS_OK; i++) {
        s->hook(s->hook_arg, &s->prog->ops[i], false);
        c->held_op = i;
        c->n_pairs = 0;
        rc = cuda_all(c, job_op, err);
        if (rc != RS_OK)
            break;
        cuda_probe_take(c, s, (int)i, (int)i, s->batch->max_keys);
        s->hook(s->hook_arg, &s->prog->ops[i], true);
    }
    return rc == RS_OK ? cuda_all(c, job_end, err) : rc;
}

static void job_renew(struct cuda_gpu *g)
{
    cudaError_t e = cudaSetDevice(g->device);
    if (e == cudaSuccess && g->recv != NULL)
        e = cudaMemsetAsync(g->recv, 0, cuda_recv_bytes(g->c), g->stream);
    if (e == cudaSuccess && g->flags != NULL)
        e = cudaMemsetAsync(g->flags, 0, cuda_flags_bytes(), g->stream);
    for (uint32_t i = 0; i < g->n_local && e == cudaSuccess; i++)
        if (g->local[i].words != NULL)
            e = cudaMemsetAsync(g->local[i].words, 0, cuda_words_bytes(g->c), g->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->stream);
    g->rc = e == cudaSuccess ? RS_OK : cuda_fail(&g->err, e, "buffers of all-reduces", g->device);
}

/* Between steps. Epochs are compared by their differences, in 32 bits: long before they come round everything that holds one begins anew, and so it is with
 * the tags of words. */
static enum rs_result renew_epochs(struct cuda *c, struct rs_error *err)
{
    enum { LAST = 1 << 30 }; /* a flag that no reduce has touched since the beginning must not seem to be ahead */
    if (c->epoch < LAST && c->steps < LAST / CUDA_STEP_TAGS)
        return RS_OK;
    enum rs_result rc = cuda_all(c, job_renew, err);
    if (rc == RS_OK)
        c->epoch = 1, c->steps = 0;
    return rc;
}

/* Looked at once for every generation of choices. */
static enum rs_result check_capturable(struct cuda *c, const struct backend_step *s, struct rs_error *err)
{
    const struct program *p = s->prog;
    uint64_t *good = &c->capturable[cuda_prog(c, p)];
    if (*good == s->generation)
        return RS_OK;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (s->choices[i].impl->not_capturable)
            return error_set(err, RS_ESTATE,
                             "cannot capture a graph: op %s uses %s=%s, which is not capturable (use eager mode, another implementation, "
                             "or graph.guard=off)",
                             p->ops[i].site, op_kind_name(p->ops[i].kind), s->choices[i].impl->name);
    *good = s->generation;
    return RS_OK;
}

enum rs_result cuda_exec_step(struct cuda *c, const struct backend_step *s, struct rs_error *err)
{
    const struct program *p = s->prog;
    enum rs_result rc = s->graph && s->graph_guard ? check_capturable(c, s, err) : RS_OK;
    if (rc == RS_OK)
        rc = renew_epochs(c, err);
    if (rc == RS_OK)
        rc = fill_meta(c, s, s->graph ? s->batch->bucket : s->batch->n_rows, err);
    if (rc == RS_OK && c->lim.span != NULL) /* reserve() is not called before every step there */
        rc = cuda_clock_align(c, err);
    if (rc != RS_OK)
        return rc;
    if (c->prepared != s->generation) {
        rc = cuda_prepare(c, p, s->choices, err);
        if (rc != RS_OK)
            return rc;
        c->prepared = s->generation;
    }
    c->step = s;
    cuda_logits_begin(c, s);
    for (uint32_t k = 0; k < c->n_gpus; k++)
        memset(c->gpu[k].stamp, 0, ((size_t)c->cap_ops * c->n_ranks + 1) * sizeof(uint64_t)),
            memset(c->gpu[k].ready, 0, c->cap_ops * sizeof(uint64_t));
    c->n_rows = s->batch->n_rows;
    c->ran_rows[cuda_prog(c, p)] = s->graph ? s->batch->bucket : s->batch->n_rows;
    c->last = p;
    c->n_pairs = 0;
    c->held_op = p->n_ops - 1;
    rc = cuda_probe_arm(c, s, err);
    if (rc != RS_OK)
        return rc;
    cuda_probe_begin(c, s);
    c->stuck.asks = s->stuck != NULL && s->hook == NULL && c->n_gpus > 1 && c->lim.span == NULL;
    c->stuck.since_us = c->stuck.told_us = (double)now_us();
    cuda_span_begin(c, s);
    c->meanwhile = c->lim.span == NULL && s->hook == NULL ? s->meanwhile : NULL;
    c->meanwhile_arg = s->meanwhile_arg;
    rc = s->hook != NULL ? walk_held(c, s, err) : cuda_alone(c) ? walk_alone(c, err) : cuda_all(c, job_step, err);
    c->meanwhile = NULL;
    c->stuck.asks = false;
    c->epoch += c->gpu[0].n_reduces;
    if (rc == RS_OK)
        rc = cuda_fault_waiting(c, p, c->ran_rows[cuda_prog(c, p)], err);
    else if (rc == RS_EENGINE)
        rc = cuda_fault_step(c, err);
    rc = cuda_span_end(c, p, rc, err);
    if (rc != RS_OK)
        return rc;
    sum_times(c, p);
    if (s->hook == NULL)
        cuda_probe_take(c, s, -1, (int)p->n_ops - 1, s->graph ? keys_bucket(c, s->batch) : s->batch->max_keys);
    size_t at = 0;
    for (uint32_t i = 0; s->probes != NULL && i < s->probes->n_copies; i++) {
        const struct probe_copy *q = &s->probes->copies[i];
        for (uint32_t k = 0; k < c->n_gpus; k++)
            if (q->rank >= c->gpu[k].rank0 && q->rank < c->gpu[k].rank0 + c->gpu[k].n_local)
                memcpy(q->dst, c->gpu[k].bounce + at, q->width * sizeof(float));
        at += q->width;
    }
    return RS_OK;
}
