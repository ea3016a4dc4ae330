/* See comm_nccl.h. The library is opened when it is first needed, so that the program runs where there is none. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/comm_nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

#ifdef HAVE_NCCL
#include <nccl.h>

/* What is used of the library; never unloaded, since its threads and modules may outlive a communicator. */
struct nccl_lib {
    __typeof__(&ncclGetUniqueId) get_unique_id;
    __typeof__(&ncclCommInitRank) comm_init_rank;
    __typeof__(&ncclCommDestroy) comm_destroy;
    __typeof__(&ncclAllReduce) all_reduce;
    __typeof__(&ncclGetErrorString) error_string;
    ncclUniqueId id;
};

struct comm_nccl {
    const struct nccl_lib *lib;
    ncclComm_t comm;
};

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
        bind(h, "ncclCommDestroy", &n->comm_destroy) && bind(h, "ncclAllReduce", &n->all_reduce) &&
        bind(h, "ncclGetErrorString", &n->error_string))
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
    ncclResult_t r = n->get_unique_id(&n->id);
    return r == ncclSuccess ? RS_OK : error_set(err, RS_EENGINE, "NCCL: %s", n->error_string(r));
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
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(g->stream);
    (void)cudaFree(p);
    return rc != RS_OK ? rc : e != cudaSuccess ? cuda_fail(err, e, "NCCL's first sums", g->device) : RS_OK;
}

enum rs_result comm_nccl_open(struct cuda *c, uint32_t gpu, struct comm_nccl **out, struct rs_error *err)
{
    const struct nccl_lib *lib = c->nccl;
    struct comm_nccl *n = calloc(1, sizeof *n);
    *out = NULL;
    if (n == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for NCCL");
    n->lib = lib;
    ncclResult_t r = lib->comm_init_rank(&n->comm, (int)c->n_gpus, lib->id, (int)gpu);
    if (r != ncclSuccess) {
        free(n);
        return error_set(err, RS_EENGINE, "NCCL on GPU %d: %s", c->gpu[gpu].device, lib->error_string(r));
    }
    *out = n;
    return warm_up(c, gpu, n, err);
}

void comm_nccl_close(struct comm_nccl *n)
{
    if (n == NULL)
        return;
    n->lib->comm_destroy(n->comm);
    free(n);
}

enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err)
{
    ncclResult_t r = n->lib->all_reduce(data, data, count, bf16 ? ncclBfloat16 : ncclFloat32, ncclSum, n->comm, stream);
    return r == ncclSuccess ? RS_OK : error_set(err, RS_EENGINE, "NCCL all-reduce: %s", n->lib->error_string(r));
}

#else

enum rs_result comm_nccl_prepare(struct cuda *c, uint8_t how, struct rs_error *err)
{
    (void)c, (void)how;
    return error_set(err, RS_EUNSUPPORTED, "this build has no NCCL");
}

enum rs_result comm_nccl_open(struct cuda *c, uint32_t gpu, struct comm_nccl **out, struct rs_error *err)
{
    (void)c, (void)gpu, (void)err;
    *out = NULL;
    return RS_OK;
}

void comm_nccl_close(struct comm_nccl *n)
{
    (void)n;
}

enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err)
{
    (void)n, (void)data, (void)count, (void)bf16, (void)stream;
    return error_set(err, RS_EUNSUPPORTED, "this build has no NCCL");
}

#endif
