/* What a patch in CUDA C is: one file, compiled at run time by NVRTC for the GPUs that are there, which begins
 *
 *     #include "engine/patch_cuda.h"
 *     RANKSCOPE_CUDA_PATCH("name", "kind", "one line of help")
 *
 * and defines the kernel rankscope_run. Needs nothing else but patch_values.cuh. scripts/patches has examples.
 *
 * One block of 256 threads per row: blockIdx.x is the row. RANKSCOPE_CUDA_SHAPE(threads, rows, columns) after the line above cuts otherwise: blocks of so
 * many threads, blockIdx.x is a group of so many rows, blockIdx.y one of so many columns of `out` (0: all; RANKSCOPE_HEAD: those of one of n_heads). Several
 * ranks on one GPU are launched one after the other. The kernel may keep no state; what it writes outside of its `out` (and what else a kind lets it write) breaks something else.
 *
 * Kinds. Rows are those of the batch unless said otherwise; what they compute is what patch_api.h says of the kinds of the same names:
 *   rmsnorm       out = in / sqrt(mean(in^2) + eps) * w
 *   add           out += in
 *   silu_mul      out = silu(in[0 .. width)) * in[width .. 2 width)
 *   moe_silu_mul  the same; rows are pairs, of which those of other ranks' experts hold anything at all and are not looked at
 *   linear        out = m[0] in; added to out if accumulate
 *   qkv_a, gate_up  out = [m[0] in | m[1] in]; m[1] may have no rows
 *   moe_gate_up   the same for every pair: in has a row for each row of the batch, out one for each pair; matrices by expert. Pairs of other ranks' experts
 *                 are left alone, or written with anything
 *   moe_down      in has a row for each pair; out, a row of the batch, is the sum over its pairs of weight * m[0] in, experts ascending; zeros where none
 *                 of them is this rank's. Rows of `in` of other ranks' experts hold anything at all
 *   router        out = the gating function of m[0] in, n_experts values, then n_used experts to ids and what they count to weights; w2 (or NULL) is added
 *                 for the choice alone. How: struct rankscope_router in patch_api.h
 *   embed         out = the row of m[0] of each token: tokens[row] - first_token, zeros where this rank has no such row. No in
 *   rope          in place (in is out): n_heads heads of head_dim values, the last rope_dim of each rotated
 *   kv_store      in place: [latent: kv_lora | key: rope_dim], the latent normed by w, the key rotated; then the row goes to the cache
 *   mla           in = queries, n_heads of head_dim values -> out, n_heads of v_head values; m[0] and m[1] are k_b and v_b, matrix by head. sel: or NULL
 *   index_q       in place: the indexer's n_heads heads of head_dim values, the first rope_dim of each rotated; interleaved or by halves
 *   index_store   in place: the indexer's key of head_dim values: LayerNorm with w and w2 (or NULL), rotated as index_q does; then it goes to the cache
 *   index_scores  in = queries, in2 = weights of the heads -> out[p] for positions p of 0 .. pos[row]; rows of up to top_k positions need none
 *   index_topk    in = scores -> out as int: top_k and the positions of the largest scores, ascending; -1 for a row of up to top_k positions
 *   gather        in = this rank's logits -> out, its part of the joined row (host memory, written over the bus); rows that want logits
 *
 * A pair is a row and one of the n_used experts that were chosen for it: pair p is of row p / n_used and of expert ids[row * ids_stride + p % n_used], which
 * counts weights[the same]. Here it is matrix rankscope_expert(c, p), or it is another rank's: -1.
 *
 * Matrices lie in the form that the engine keeps them in. rankscope_values() takes 32 weights out of any of the types that it knows (F32, F16, BF16, Q4_0,
 * Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS), rankscope_dot() multiplies a row of weights by a vector; an op whose weights are of another type
 * is not given to a patch. Cached rows: rankscope_cached(), and rankscope_cache() to write the row's own. In captured steps there are more rows than those
 * of the batch, up to a power of two: they compute something, in memory that is theirs. */
#ifndef RANKSCOPE_ENGINE_PATCH_CUDA_H
#define RANKSCOPE_ENGINE_PATCH_CUDA_H

#define RANKSCOPE_HEAD 0xffffffffu

/* n matrices of rows x k weights, one after the other. data NULL, rows 0: this rank has no part of it. */
struct rankscope_cuda_matrix {
    const unsigned char *data;
    unsigned type;                /* of the file's format: 0 f32, 1 f16, 8 Q8_0, 12 Q4_K ... */
    unsigned rows, k, n;
    unsigned long long stride, mat_stride; /* bytes from row to row, from matrix to matrix */
};

struct rankscope_cuda_call {
    const float *in;
    unsigned long long in_stride; /* floats from row to row */
    float *out;
    unsigned long long out_stride;
    const float *w;               /* rmsnorm: [width]; kv_store, index_store */
    unsigned rows, width;         /* width: of the output; index_scores: no row has more positions */
    float eps;
    int layer;                    /* -1: outside the layers */
    unsigned in_width;
    int accumulate;
    const float *in2;
    unsigned long long in2_stride;
    const float *w2;
    struct rankscope_cuda_matrix m[2];
    /* pairs; router: its choice */
    int *ids;                     /* [rows][ids_stride] numbers of experts over all ranks */
    float *weights;               /* [rows][ids_stride] */
    unsigned long long ids_stride;
    unsigned n_used, first_expert; /* first_expert: the number of matrix 0 */
    /* router */
    unsigned n_experts, n_groups, n_groups_used;
    int sigmoid, normalise;
    /* embed */
    const int *tokens;            /* [rows] */
    unsigned first_token;
    /* positions and caches. cos, sin: [position][rope_dim / 2] */
    const int *pos;               /* [rows] */
    const float *cos, *sin;
    unsigned head_dim, rope_dim, n_heads, kv_lora, v_head;
    float scale;                  /* mla, index_scores: of scores; router: of weights */
    unsigned char *cache;
    unsigned cache_type, cache_width, cache_block; /* 0 f32, 1 f16, 2 bf16; values of a row; positions of a block */
    const int *table, *tables;    /* block p / cache_block of a row is tables[table[row] + p / cache_block] */
    const int *sel;               /* mla: [rows][sel_stride]: how many, then so many positions; -1: all. NULL: all, for every row */
    unsigned long long sel_stride;
    unsigned top_k;
    int interleaved;
};

#ifdef __CUDACC__
#include "engine/patch_values.cuh"

#define RANKSCOPE_CUDA_PATCH(name, kind, help)                                                                                             \
    extern "C" __device__ char rankscope_name[32] = name;                                                                                  \
    extern "C" __device__ char rankscope_kind[32] = kind;                                                                                  \
    extern "C" __device__ char rankscope_help[128] = help;
#define RANKSCOPE_CUDA_SHAPE(threads, rows, columns) extern "C" __device__ unsigned rankscope_shape[3] = {threads, rows, columns};

/* The matrix of pair p's expert, or -1. */
static __device__ inline int rankscope_expert(const rankscope_cuda_call &c, unsigned p)
{
    const unsigned e = (unsigned)c.ids[p / c.n_used * c.ids_stride + p % c.n_used] - c.first_expert;
    return e < c.m[0].n ? (int)e : -1;
}

/* Value i of what the cache holds for position `pos` of a row's sequence. */
static __device__ inline float rankscope_cached(const rankscope_cuda_call &c, unsigned row, unsigned pos, unsigned i)
{
    const unsigned long long at =
        ((unsigned long long)c.tables[c.table[row] + pos / c.cache_block] * c.cache_block + pos % c.cache_block) * c.cache_width + i;
    return c.cache_type == 0   ? ((const float *)c.cache)[at]
           : c.cache_type == 1 ? rankscope_f16(((const unsigned short *)c.cache)[at])
                               : rankscope_bf16(((const unsigned short *)c.cache)[at]);
}

/* Write value i of the cache at the row's own position. */
static __device__ inline void rankscope_cache(const rankscope_cuda_call &c, unsigned row, unsigned i, float x)
{
    const unsigned pos = (unsigned)c.pos[row];
    const unsigned long long at =
        ((unsigned long long)c.tables[c.table[row] + pos / c.cache_block] * c.cache_block + pos % c.cache_block) * c.cache_width + i;
    unsigned short h;
    if (c.cache_type == 1)
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    else
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    if (c.cache_type == 0)
        ((float *)c.cache)[at] = x;
    else
        ((unsigned short *)c.cache)[at] = h;
}
#endif

#endif
