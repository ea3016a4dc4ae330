/* The CUDA backend as the rest of the engine sees it: beside backend.h, what only GPUs have. Without HAVE_CUDA nothing here exists. */
#ifndef RANKSCOPE_ENGINE_CUDA_BACKEND_H
#define RANKSCOPE_ENGINE_CUDA_BACKEND_H

#include "engine/backend.h"
#include "kernels/cuda/cuda.h"

struct cuda_config {
    uint32_t n_gpus;   /* 0: as many as there are, at most one per rank */
    uint32_t n_listed; /* devices named one by one; 0: the first n_gpus */
    int device[KCU_MAX_GPUS];
    bool fuse;     /* join neighbouring ops into one kernel */
    bool pdl;      /* programmatic dependent launch */
    uint32_t timeout_ms; /* how long a rank waits for another one; 0: 10 s */
    bool no_stamps; /* kernels do not note when they start: to measure what that costs */
    uint32_t epoch; /* the first step's, as if so many reduces had been before; 0: no such thing. For tests */
};

/* GPUs that this process could use; 0 with *why set (static) when there is none. */
int backend_cuda_devices(const char **why);

/* What there is, and what NVML knows of it (NAN, UINT64_MAX: not known). */
struct cuda_device {
    char name[64], pci[32];
    int major, minor, sms;
    uint64_t memory, mem_used;
    float util, temp_c, power_w;
};
bool backend_cuda_describe(int i, struct cuda_device *out);

/* One direction between two GPUs: a pattern was sent over it in several ways; `wrong` of `words` did not arrive as they were sent. */
struct cuda_link {
    int from, to;
    bool peer;  /* kernels reach the other's memory */
    uint64_t words, wrong;
    double gbs; /* of the copy engine */
    double us;  /* one way, of a word that a kernel writes and another one sees; -1: not to be had */
};
/* Every ordered pair, in turn. Errors: RS_EENGINE (a call failed). */
enum rs_result backend_cuda_check(void (*report)(void *arg, const struct cuda_link *l), void *arg, struct rs_error *err);

/* Bytes of memory that GPU i has in all; 0: it cannot be asked. */
uint64_t backend_cuda_memory(int i);

const struct op_impl *backend_cuda_impls(size_t *n);

/* hp, w, shard and the programs must outlive the backend. Errors: RS_EENGINE (no device, device failure), RS_ENOMEM (says how much is missing). */
enum rs_result backend_cuda_open(const struct hparams *hp, const struct weights *w, const struct shard_plan *shard,
                                 const struct program *main_prog, const struct program *nextn, const struct backend_limits *lim,
                                 const struct cuda_config *cfg, struct backend **out, struct rs_error *err);

/* Kernels (graph nodes) that the last step launched on GPU 0. */
uint32_t backend_cuda_kernels(const struct backend *b);

#endif
