/* See comm_nccl.h. The library is opened when it is first needed, so that the program runs where there is none. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/comm_nccl.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/comm.h"
#include "engine/error.h"
#include "engine/now.h"

#ifdef HAVE_NCCL
#include <nccl.h>

/* What is used of the library; never unloaded, since its threads and modules may outlive a communicator. */
struct nccl_lib {
    __typeof__(&ncclGetUniqueId) get_unique_id;
    __typeof__(&ncclCommInitRank) comm_init_rank;
    __typeof__(&ncclCommInitRankConfig) comm_init_rank_config;
    __typeof__(&ncclCommFinalize) comm_finalize;
    __typeof__(&ncclCommDestroy) comm_destroy;
    __typeof__(&ncclCommAbort) comm_abort;
    __typeof__(&ncclCommGetAsyncError) comm_async_error;
    __typeof__(&ncclAllReduce) all_reduce;
    __typeof__(&ncclGetErrorString) error_string;
    __typeof__(&ncclGetLastError) last_error;
    __typeof__(&ncclGetVersion) version;
    ncclUniqueId id;
};

static_assert(sizeof(ncclUniqueId) == COMM_NCCL_ID, "NCCL's id has another size");

struct comm_nccl {
    const struct nccl_lib *lib;
    const struct cuda *c;
    ncclComm_t comm;
    bool apart; /* its calls do not wait */
};

/* How long a communicator may take to come about, and to end in order. */
enum { OPEN_MS = 60000, CLOSE_MS = 3000, POLL_NS = 100000 };

/* Names that the loader is asked for: the system's, and where configure found it. */
static void *open_library(void)
{
    static const char *const NAMES[] = {"libnccl.so.2", NCCL_LIBRARY};
    void *h = NULL;
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0] && h == NULL; i++)
        h = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return h;
}

static bool bind(void *h, const char *name, void *fn)
{
    void *p = dlsym(h, name);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

static struct nccl_lib *load(char *why, size_t cap)
{
    void *h = open_library();
    if (h == NULL) {
        snprintf(why, cap, "%s", dlerror());
        return NULL;
    }
    struct nccl_lib *n = calloc(1, sizeof *n);
    if (n != NULL && bind(h, "ncclGetUniqueId", &n->get_unique_id) && bind(h, "ncclCommInitRank", &n->comm_init_rank) &&
        bind(h, "ncclCommInitRankConfig", &n->comm_init_rank_config) && bind(h, "ncclCommFinalize", &n->comm_finalize) &&
        bind(h, "ncclCommDestroy", &n->comm_destroy) && bind(h, "ncclCommAbort", &n->comm_abort) &&
        bind(h, "ncclCommGetAsyncError", &n->comm_async_error) && bind(h, "ncclAllReduce", &n->all_reduce) &&
        bind(h, "ncclGetErrorString", &n->error_string) && bind(h, "ncclGetLastError", &n->last_error) && bind(h, "ncclGetVersion", &n->version))
        return n;
    snprintf(why, cap, "%s", n == NULL ? "out of memory" : "it lacks functions that are used here");
    free(n);
    return NULL;
}

enum rs_result comm_nccl_prepare(struct cuda *c, uint8_t how, struct rs_error *err)
{
    /* In the order of the patch slot; NULL: NCCL's own choice. It reads these whenever a communicator is made. */
    static const char *const ALGO[] = {NULL, "Ring", "Ring", "Ring", "Tree", "Tree", "Tree"};
    static const char *const PROTO[] = {NULL, "LL", "LL128", "Simple", "LL", "LL128", "Simple"};
    char why[160];
    if (c->nccl == NULL && (c->nccl = load(why, sizeof why)) == NULL)
        return error_set(err, RS_EUNSUPPORTED, "allreduce=nccl: NCCL cannot be loaded: %s", why);
    struct nccl_lib *n = c->nccl;
    setenv("NCCL_NVLS_ENABLE", "0", 1); /* multicast has put whole hosts out of service */
    if (how != 0 && how < sizeof ALGO / sizeof ALGO[0]) {
        setenv("NCCL_ALGO", ALGO[how], 1);
        setenv("NCCL_PROTO", PROTO[how], 1);
    } else {
        unsetenv("NCCL_ALGO");
        unsetenv("NCCL_PROTO");
    }
    if (c->lim.span != NULL)
        setenv("NCCL_RUNTIME_CONNECT", "0", 1); /* what connects later does so in a call that may be part of a capture */
    ncclResult_t r = n->get_unique_id(&n->id);
    return r == ncclSuccess ? RS_OK : error_set(err, RS_EENGINE, "NCCL: %s", n->error_string(r));
}

int comm_nccl_facts(const struct cuda *c, uint8_t id[COMM_NCCL_ID])
{
    const struct nccl_lib *n = c->nccl;
    int version = 0;
    memcpy(id, &n->id, sizeof n->id);
    return n->version(&version) == ncclSuccess ? version : 0;
}

void comm_nccl_take_id(struct cuda *c, const uint8_t id[COMM_NCCL_ID])
{
    struct nccl_lib *n = c->nccl;
    memcpy(&n->id, id, sizeof n->id);
}

static enum rs_result failed(const struct comm_nccl *n, ncclResult_t r, const char *what, struct rs_error *err)
{
    const char *more = n->lib->last_error(NULL); /* its last warning, which may be of another call */
    return error_set(err, RS_EENGINE, "NCCL, %s: %s%s%.200s", what, n->lib->error_string(r), more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

/* A call that does not wait has said r: see it through. Whoever is in a communicator with other hosts may be told to stop. */
static enum rs_result settle(const struct comm_nccl *n, ncclResult_t r, const char *what, int timeout_ms, struct rs_error *err)
{
    const uint64_t until = now_us() + (uint64_t)timeout_ms * 1000;
    while (r == ncclInProgress) {
        if (cuda_span_stopped(n->c))
            return error_set(err, RS_EENGINE, "NCCL, %s: given up", what);
        if (now_us() > until)
            return error_set(err, RS_ETIMEOUT, "NCCL, %s: not done in %d s", what, timeout_ms / 1000);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        if (n->lib->comm_async_error(n->comm, &r) != ncclSuccess)
            r = ncclInternalError;
    }
    return r == ncclSuccess ? RS_OK : failed(n, r, what, err);
}

/* NCCL connects on first use, which cannot happen inside a capture: use it once in the sizes to come. */
static enum rs_result warm_up(struct cuda *c, uint32_t gpu, struct comm_nccl *n, struct rs_error *err)
{
    const struct cuda_gpu *g = &c->gpu[gpu];
    const size_t most = (size_t)c->lim.max_rows * c->hp->n_embd;
    float *p = NULL;
    enum rs_result rc = RS_OK;
    cudaError_t e = cudaMalloc((void **)&p, most * sizeof *p);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(p, 0, most * sizeof *p, g->stream);
    for (size_t count = c->hp->n_embd; e == cudaSuccess && rc == RS_OK && count <= most; count *= 4)
        for (int bf16 = 0; bf16 < 2 && rc == RS_OK; bf16++)
            rc = comm_nccl_sum(n, p, count, bf16 != 0, g->stream, err);
    if (e == cudaSuccess && rc == RS_OK)
        rc = cuda_span_wait(&c->gpu[gpu], n, NULL, err);
    if (rc == RS_OK) /* else a kernel may still wait for others, and freeing would wait for it */
        (void)cudaFree(p);
    return rc != RS_OK ? rc : e != cudaSuccess ? cuda_fail(err, e, "NCCL's first sums", g->device) : RS_OK;
}

static enum rs_result connect_hosts(struct comm_nccl *n, uint32_t gpu, struct rs_error *err)
{
    const struct backend_span *s = n->c->lim.span;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t r = n->lib->comm_init_rank_config(&n->comm, (int)s->n_ranks, n->lib->id, (int)(s->first[s->comm->host] + gpu), &config);
    return settle(n, r, "joining hosts", OPEN_MS, err);
}

enum rs_result comm_nccl_open(struct cuda *c, uint32_t gpu, struct comm_nccl **out, struct rs_error *err)
{
    const struct nccl_lib *lib = c->nccl;
    struct comm_nccl *n = calloc(1, sizeof *n);
    enum rs_result rc = RS_OK;
    *out = NULL;
    if (n == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for NCCL");
    n->lib = lib;
    n->c = c;
    n->apart = c->lim.span != NULL;
    if (n->apart) {
        rc = connect_hosts(n, gpu, err);
    } else {
        ncclResult_t r = lib->comm_init_rank(&n->comm, (int)c->n_gpus, lib->id, (int)gpu);
        if (r != ncclSuccess) {
            n->comm = NULL;
            rc = error_set(err, RS_EENGINE, "NCCL on GPU %d: %s", c->gpu[gpu].device, lib->error_string(r));
        }
    }
    if (rc != RS_OK) {
        comm_nccl_close(n, true);
        return rc;
    }
    *out = n;
    return warm_up(c, gpu, n, err);
}

void comm_nccl_close(struct comm_nccl *n, bool gone)
{
    if (n == NULL)
        return;
    if (n->comm != NULL && n->apart && !gone)
        gone = settle(n, n->lib->comm_finalize(n->comm), "leaving", CLOSE_MS, NULL) != RS_OK;
    if (n->comm != NULL)
        (void)(gone ? n->lib->comm_abort(n->comm) : n->lib->comm_destroy(n->comm));
    free(n);
}

enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err)
{
    ncclResult_t r = n->lib->all_reduce(data, data, count, bf16 ? ncclBfloat16 : ncclFloat32, ncclSum, n->comm, stream);
    if (n->apart && r == ncclInProgress)
        return settle(n, r, "all-reduce", OPEN_MS, err);
    return r == ncclSuccess ? RS_OK : failed(n, r, "all-reduce", err);
}

enum rs_result comm_nccl_look(struct comm_nccl *n, struct rs_error *err)
{
    ncclResult_t r = ncclSuccess;
    if (n->lib->comm_async_error(n->comm, &r) != ncclSuccess)
        r = ncclInternalError;
    return r == ncclSuccess || r == ncclInProgress ? RS_OK : failed(n, r, "in a step", err);
}

#else

enum rs_result comm_nccl_prepare(struct cuda *c, uint8_t how, struct rs_error *err)
{
    (void)c, (void)how;
    return error_set(err, RS_EUNSUPPORTED, "this build has no NCCL");
}

int comm_nccl_facts(const struct cuda *c, uint8_t id[COMM_NCCL_ID])
{
    (void)c;
    memset(id, 0, COMM_NCCL_ID);
    return 0;
}

void comm_nccl_take_id(struct cuda *c, const uint8_t id[COMM_NCCL_ID])
{
    (void)c, (void)id;
}

enum rs_result comm_nccl_open(struct cuda *c, uint32_t gpu, struct comm_nccl **out, struct rs_error *err)
{
    (void)c, (void)gpu, (void)err;
    *out = NULL;
    return RS_OK;
}

void comm_nccl_close(struct comm_nccl *n, bool gone)
{
    (void)n, (void)gone;
}

enum rs_result comm_nccl_look(struct comm_nccl *n, struct rs_error *err)
{
    (void)n, (void)err;
    return RS_OK;
}

enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err)
{
    (void)n, (void)data, (void)count, (void)bf16, (void)stream;
    return error_set(err, RS_EUNSUPPORTED, "this build has no NCCL");
}

#endif
