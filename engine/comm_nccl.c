/* See comm_nccl.h. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "engine/comm_nccl.h"

#include <stdlib.h>

#include "engine/error.h"

#ifdef HAVE_NCCL
#include <nccl.h>

struct comm_nccl {
    ncclComm_t comm;
};

enum rs_result comm_nccl_prepare(struct cuda *c, struct rs_error *err)
{
    setenv("NCCL_NVLS_ENABLE", "0", 1); /* multicast has put whole hosts out of service */
    ncclUniqueId *id = malloc(sizeof *id);
    if (id == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for NCCL");
    ncclResult_t r = ncclGetUniqueId(id);
    if (r != ncclSuccess) {
        free(id);
        return error_set(err, RS_EENGINE, "NCCL: %s", ncclGetErrorString(r));
    }
    c->nccl_id = id;
    return RS_OK;
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
    struct comm_nccl *n = calloc(1, sizeof *n);
    if (n == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for NCCL");
    ncclResult_t r = ncclCommInitRank(&n->comm, (int)c->n_gpus, *(ncclUniqueId *)c->nccl_id, (int)gpu);
    if (r != ncclSuccess) {
        free(n);
        return error_set(err, RS_EENGINE, "NCCL on GPU %u: %s", gpu, ncclGetErrorString(r));
    }
    *out = n;
    return warm_up(c, gpu, n, err);
}

void comm_nccl_close(struct comm_nccl *n)
{
    if (n == NULL)
        return;
    ncclCommDestroy(n->comm);
    free(n);
}

enum rs_result comm_nccl_sum(struct comm_nccl *n, void *data, size_t count, bool bf16, cudaStream_t stream, struct rs_error *err)
{
    ncclResult_t r = ncclAllReduce(data, data, count, bf16 ? ncclBfloat16 : ncclFloat32, ncclSum, n->comm, stream);
    return r == ncclSuccess ? RS_OK : error_set(err, RS_EENGINE, "NCCL all-reduce: %s", ncclGetErrorString(r));
}

#else

enum rs_result comm_nccl_prepare(struct cuda *c, struct rs_error *err)
{
    (void)c, (void)err;
    return RS_OK;
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
