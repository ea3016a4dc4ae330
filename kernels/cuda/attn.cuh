/* What the ways to attend share: how a row's keys are cut, which they are, rotation. */
#ifndef RANKSCOPE_KERNELS_CUDA_ATTN_CUH
#define RANKSCOPE_KERNELS_CUDA_ATTN_CUH

#include "kernels/cuda/dot.cuh"

enum { TILE = 32 /* keys that are weighed together */, MAX_SPLITS = 64 };

static __device__ __forceinline__ void rotate(float *x, float *y, float co, float si)
{
    const float u = *x, v = *y;
    *x = __fsub_rn(__fmul_rn(u, co), __fmul_rn(v, si));
    *y = __fadd_rn(__fmul_rn(u, si), __fmul_rn(v, co));
}

static __host__ __device__ inline uint32_t split_length(uint32_t keys)
{
    uint32_t n = TILE;
    while (keys > n * MAX_SPLITS)
        n *= 2;
    return n;
}

/* Scratch of a launch: absorbed queries [row][head][l + r], per split of a head's keys the unnormalised mixtures and (maximum, sum). */
struct parts {
    float *q, *o, *ml;
    uint32_t row0, splits;
};

static __device__ __forceinline__ uint32_t keys_of(const struct kcu_mla &a, uint32_t row, const int32_t **sel)
{
    const uint32_t keys = (uint32_t)a.b.pos[row] + 1;
    *sel = nullptr;
    if (a.sel == nullptr || keys <= a.top_k || a.sel[row * a.sel_pitch] <= 0)
        return keys;
    *sel = a.sel + row * a.sel_pitch + 1;
    return (uint32_t)a.sel[row * a.sel_pitch];
}

/* latent_many.cu: kcu_latent() of many rows, the same bits. */
bool latent_many_takes(const struct kcu_latent *a);
cudaError_t latent_many(const struct kcu_launch *l, const struct kcu_latent *a);

/* mla.cu: everything in one launch, for few rows with few keys. Whether it is taken depends on nothing that differs between a step eager and in a graph,
 * whose bound on the keys passes NEAR_KEYS only if they do. */
bool mla_near_takes(const struct kcu_mla *a);
cudaError_t mla_near(const struct kcu_launch *l, const struct kcu_mla *a);

/* attn.cu: where a lone row's queries in the latent space lie, and what follows once they are there. */
static __host__ __device__ inline float *mla_absorbed(const struct kcu_mla &a)
{
    return (float *)a.scratch;
}
cudaError_t mla_attend(const struct kcu_launch *l, const struct kcu_mla *a);

/* mla.cu: join the splits of a lone row and carry the mixtures out, where that may round otherwise than among many rows. */
bool mla_join_takes(const struct kcu_mla *a);
cudaError_t mla_join(const struct kcu_launch *l, const struct kcu_mla *a, const struct parts &p);
/* mla_lone.cu: the splits before it, of a row that mla_join() takes, all of whose keys count. */
cudaError_t mla_lone(const struct kcu_launch *l, const struct kcu_mla *a, const struct parts &p);

#endif
