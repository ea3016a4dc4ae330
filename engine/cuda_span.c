/* GPUs of several hosts: each process has its own, and NCCL joins them all; where it cannot, sums go through host memory (cuda_op_span.c).
 *
 * What all processes must agree on before any of them waits for the others (can each of them, with which library, which GPUs) is exchanged first, so
 * that a refusal is the same everywhere and leaves everything as it was. From then on a process that stays away is noticed by whoever waits: the control
 * thread looks after the other hosts while the GPUs' threads wait for their streams, and tells them to give up; a GPU's thread looks after NCCL and
 * after the clock. Whoever gives up aborts its communicator, which ends the kernels that wait; nothing can be computed together after that. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/comm.h"
#include "engine/comm_nccl.h"
#include "engine/cuda.h"
#include "engine/error.h"
#include "engine/now.h"

/* JOIN_MS: for a sum outside of steps. A wait spins for SPIN_US and looks around every LOOK_US. */
enum { JOIN_MS = 60000, SPIN_US = 200, LOOK_US = 1000, ASK_TIMES = 10 };

bool cuda_span_stopped(const struct cuda *c)
{
    return __atomic_load_n(&c->span.stop, __ATOMIC_ACQUIRE) != 0;
}

static void stop(struct cuda *c)
{
    __atomic_store_n(&c->span.stop, 1, __ATOMIC_RELEASE);
}

enum rs_result cuda_span_open(struct cuda *c, struct rs_error *err)
{
    for (int p = 0; p < 2 && c->lim.span != NULL; p++) {
        c->span.call[p] = calloc(c->cap_ops, sizeof *c->span.call[p]);
        if (c->span.call[p] == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for sums over hosts");
        for (uint32_t i = 0; i < c->cap_ops; i++)
            c->span.call[p][i] = (struct cuda_span_call){.c = c, .op = i};
    }
    return RS_OK;
}

void cuda_span_close(struct cuda *c)
{
    (void)cudaFreeHost(c->span.parts);
    free(c->span.call[0]);
    free(c->span.call[1]);
}

/* ---- agreeing ---- */

/* What every process tells every other one. */
struct facts {
    int32_t rc; /* of what it did for itself, and why that failed */
    char why[240];
    int32_t version;
    uint32_t n_gpus;
    uint8_t gpu[KCU_MAX_GPUS][16];
    char host_id[64]; /* by which NCCL tells machines from each other, where somebody has set it */
    uint8_t id[COMM_NCCL_ID];
};

/* "host b (ranks 2 to 3)" */
static const char *who(const struct cuda *c, uint32_t host, char buf[LINK_ADDRESS + 48])
{
    const struct backend_span *s = c->lim.span;
    const uint32_t from = s->first[host], to = s->first[host + 1];
    if (to == from + 1)
        snprintf(buf, LINK_ADDRESS + 48, "host %s (rank %u)", s->comm->name[host], from);
    else
        snprintf(buf, LINK_ADDRESS + 48, "host %s (ranks %u to %u)", s->comm->name[host], from, to - 1);
    return buf;
}

/* Room for the summands of all ranks and their sum. */
static enum rs_result make_room(struct cuda *c, struct rs_error *err)
{
    if (c->n_gpus != 1)
        return error_set(err, RS_EUNSUPPORTED, "allreduce=flat between hosts takes one GPU on each, and there are %u here: use nccl", c->n_gpus);
    if (c->span.parts != NULL)
        return RS_OK;
    c->span.rows = c->lim.max_rows < CUDA_SPAN_ROWS ? c->lim.max_rows : CUDA_SPAN_ROWS;
    c->span.each = (size_t)c->span.rows * c->hp->n_embd;
    cudaError_t e = cudaSetDevice(c->gpu[0].device);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&c->span.parts, (c->lim.span->n_ranks + 1) * c->span.each * sizeof(float), cudaHostAllocPortable);
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "pinned memory for sums over hosts", c->gpu[0].device);
}

/* What this process can do for itself, and has. */
static void gather(struct cuda *c, const struct choice *nccl, struct facts *f)
{
    struct rs_error e = {.msg = ""};
    const char *id = getenv("NCCL_HOSTID");
    *f = (struct facts){.n_gpus = c->n_gpus};
    snprintf(f->host_id, sizeof f->host_id, "%s", id != NULL ? id : "");
    enum rs_result rc = RS_OK;
    if (nccl == NULL)
        rc = make_room(c, &e);
    else if (c->n_gpus != c->n_ranks)
        rc = error_set(&e, RS_EUNSUPPORTED, "allreduce=nccl takes one rank per GPU, and there are %u ranks on %u", c->n_ranks, c->n_gpus);
    else if ((rc = comm_nccl_prepare(c, nccl->nccl, &e)) == RS_OK)
        f->version = comm_nccl_facts(c, f->id);
    for (uint32_t i = 0; i < c->n_gpus && rc == RS_OK; i++) {
        struct cudaDeviceProp prop;
        cudaError_t failed = cudaGetDeviceProperties(&prop, c->gpu[i].device);
        if (failed != cudaSuccess)
            rc = cuda_fail(&e, failed, "asking what it is", c->gpu[i].device);
        else
            memcpy(f->gpu[i], prop.uuid.bytes, sizeof f->gpu[i]);
    }
    f->rc = rc;
    snprintf(f->why, sizeof f->why, "%.*s", (int)sizeof f->why - 1, e.msg);
}

static bool shared(const struct facts *a, const struct facts *b)
{
    for (uint32_t i = 0; i < a->n_gpus; i++)
        for (uint32_t k = 0; k < b->n_gpus; k++)
            if (memcmp(a->gpu[i], b->gpu[k], sizeof a->gpu[i]) == 0 && strcmp(a->host_id, b->host_id) == 0)
                return true;
    return false;
}

/* The same on every host. */
static enum rs_result judge(const struct cuda *c, const struct facts *f, bool nccl, struct rs_error *err)
{
    const uint32_t n = c->lim.span->comm->n_hosts;
    char a[LINK_ADDRESS + 48], b[LINK_ADDRESS + 48];
    for (uint32_t h = 0; h < n; h++)
        if (f[h].rc != RS_OK)
            return error_set(err, (enum rs_result)f[h].rc, "%s: %s", who(c, h, a), f[h].why);
    for (uint32_t h = 1; h < n && nccl; h++)
        if (f[h].version != f[0].version)
            return error_set(err, RS_EUNSUPPORTED, "%s has NCCL %d, %s has %d: all hosts need the same", who(c, h, a), f[h].version, who(c, 0, b), f[0].version);
    for (uint32_t h = 1; h < n && nccl; h++)
        for (uint32_t k = 0; k < h; k++)
            if (shared(&f[h], &f[k]))
                return error_set(err, RS_EUNSUPPORTED, "%s and %s have the same GPU, which NCCL does not take: use other ones, or allreduce=flat",
                                 who(c, k, a), who(c, h, b));
    return RS_OK;
}

/* Everybody's facts to everybody. */
static enum rs_result exchange(const struct cuda *c, struct facts *f, struct rs_error *err)
{
    struct comm *m = c->lim.span->comm;
    struct comm_move moves[2 * COMM_MAX_HOSTS];
    uint32_t n = 0;
    for (uint32_t h = 0; h < m->n_hosts; h++)
        if (h != m->host) {
            moves[n++] = (struct comm_move){.host = h, .send = true, .data = &f[m->host], .bytes = sizeof *f};
            moves[n++] = (struct comm_move){.host = h, .data = &f[h], .bytes = sizeof *f};
        }
    return comm_run(m, moves, n) ? RS_OK : error_set(err, m->why.code, "%s", m->why.msg);
}

static enum rs_result agree(struct cuda *c, const struct choice *nccl, struct rs_error *err)
{
    struct facts *f = calloc(c->lim.span->comm->n_hosts, sizeof *f);
    if (f == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for what other hosts say");
    gather(c, nccl, &f[c->lim.span->comm->host]);
    enum rs_result rc = exchange(c, f, err);
    if (rc == RS_OK)
        rc = judge(c, f, nccl != NULL, err);
    if (rc == RS_OK && nccl != NULL)
        comm_nccl_take_id(c, f[0].id);
    free(f);
    return rc;
}

enum rs_result cuda_span_prepare(struct cuda *c, const struct program *p, const struct choice *choices, struct rs_error *err)
{
    const struct choice *nccl = NULL, *flat = NULL;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const char *name = choices[i].impl->name;
        if (p->ops[i].kind == OP_ALLREDUCE && (strcmp(name, "two-shot") == 0 || strcmp(name, "auto") == 0))
            return error_set(err, RS_EUNSUPPORTED, "op %s: allreduce=%s takes GPUs of one process; between hosts use nccl or flat", p->ops[i].site, name);
        if (p->ops[i].kind == OP_ALLREDUCE)
            *(strcmp(name, "nccl") == 0 ? &nccl : &flat) = &choices[i];
    }
    if (nccl != NULL && flat != NULL)
        return error_set(err, RS_EUNSUPPORTED, "allreduce: between hosts all sites take the same one, nccl or flat");
    if (nccl == NULL ? flat == NULL || c->span.parts != NULL : c->nccl_open && c->nccl_how == nccl->nccl)
        return RS_OK;
    enum rs_result rc = agree(c, nccl, err);
    if (rc != RS_OK || nccl == NULL)
        return rc;
    c->span.waits = true;
    rc = cuda_open_nccl(c, nccl->nccl, err);
    return cuda_span_end(c, NULL, rc, err);
}

/* ---- waiting ---- */

void cuda_span_begin(struct cuda *c, const struct backend_step *s)
{
    c->span.waits = false;
    c->span.row = 0;
    for (uint32_t i = 0; i < c->n_gpus; i++)
        c->gpu[i].left_in = UINT32_MAX;
    for (uint32_t i = 0; i < s->prog->n_ops && c->lim.span != NULL && !c->span.waits; i++)
        c->span.waits = s->prog->ops[i].kind == OP_ALLREDUCE && strcmp(s->choices[i].impl->name, "nccl") == 0;
}

void cuda_span_look(struct cuda *c)
{
    const struct comm *m = c->lim.span->comm;
    if (!cuda_span_stopped(c) && m->look != NULL && m->look(m->look_arg, &c->span.why) != RS_OK)
        stop(c);
}

/* Nobody will come any more. Graphs go first: a communicator waits for those that captured it, and they for its kernels, which the abort ends. */
void cuda_span_leave(struct cuda_gpu *g)
{
    stop(g->c);
    cuda_exec_close(g);
    comm_nccl_close(g->nccl, true);
    g->nccl = NULL;
}

static enum rs_result look_around(struct cuda_gpu *g, struct comm_nccl *n, const struct program *p, uint64_t waited_us, uint32_t op, struct rs_error *err)
{
    const struct cuda *c = g->c;
    const uint32_t limit_ms = p == NULL ? JOIN_MS : c->cfg.timeout_ms != 0 ? c->cfg.timeout_ms : CUDA_TIMEOUT_MS;
    if (cuda_span_stopped(c))
        return error_set(err, RS_EENGINE, "GPU %d: given up", g->device);
    if (waited_us < limit_ms * 1000ull || (p != NULL && (op >= p->n_ops || p->ops[op].kind != OP_ALLREDUCE)))
        return comm_nccl_look(n, err);
    return error_set(err, RS_EENGINE, "rank %u (GPU %d) waited %.1f s in %s for ranks on other hosts", c->lim.span->first[c->lim.span->comm->host] + g->rank0,
                     g->device, limit_ms / 1e3, p != NULL ? p->ops[op].site : "NCCL's first sums");
}

enum rs_result cuda_span_wait(struct cuda_gpu *g, struct comm_nccl *n, const struct program *p, struct rs_error *err)
{
    if (g->c->lim.span == NULL || n == NULL) {
        cudaError_t e = cudaStreamSynchronize(g->stream);
        return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "step", g->device);
    }
    const uint64_t t0 = now_us();
    uint64_t since = t0, looked = t0;
    uint32_t at = UINT32_MAX, i;
    cudaError_t e;
    while ((e = cudaStreamQuery(g->stream)) == cudaErrorNotReady) {
        const uint64_t now = now_us();
        if (now - t0 > SPIN_US)
            sched_yield();
        if (now - looked < LOOK_US)
            continue;
        const uint32_t op = cuda_fault_last(g, &i);
        looked = now;
        since = p != NULL && op != at ? now : since;
        at = op;
        enum rs_result rc = look_around(g, n, p, now - since, op, err);
        if (rc != RS_OK) {
            g->left_in = op; /* what the abort ends runs on, and leaves more stamps */
            cuda_span_leave(g);
            return rc;
        }
    }
    (void)cudaGetLastError(); /* "not ready" is no error, but counts as the last one */
    return e == cudaSuccess ? RS_OK : cuda_fail(err, e, "step", g->device);
}

enum rs_result cuda_span_end(struct cuda *c, const struct program *p, enum rs_result rc, struct rs_error *err)
{
    struct rs_error what, *why = &c->span.why;
    if (!c->span.waits)
        return rc;
    c->span.waits = false;
    if (rc == RS_OK)
        return rc;
    struct comm *m = c->lim.span->comm;
    what = err != NULL ? *err : (struct rs_error){.msg = ""};
    /* NCCL knows only that somebody hung up; the links may know who, a moment later. */
    for (int i = 0; i < ASK_TIMES && why->msg[0] == '\0' && !c->dead && m->look != NULL && m->look(m->look_arg, why) == RS_OK; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = COMM_LOOK_MS * 1000000 / ASK_TIMES}, NULL);
    stop(c);
    if (why->msg[0] != '\0') {
        const uint32_t op = c->gpu[0].left_in;
        const bool in_step = p != NULL && op < p->n_ops;
        snprintf(what.msg, sizeof what.msg, "%.300s%s%s", why->msg, in_step ? ", in " : "", in_step ? p->ops[op].site : "");
    }
    what.code = RS_EENGINE;
    if (!m->failed) {
        m->failed = true;
        m->why = what;
    }
    return error_set(err, RS_EENGINE, "%s", what.msg);
}
