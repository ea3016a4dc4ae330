/* f32 kernels of the CPU: everything that ops do besides multiplying by weights.
 *
 * One source (vec_body.h), compiled once per instruction set; a table of functions per set. All functions are pure over the caller's memory:
 * any thread, no allocation. Unless a comment says otherwise the order of every sum is fixed and depends only on the element, never on how
 * work was split: results are the same bits for one row alone, in a batch, in a graph. */
#ifndef RANKSCOPE_KERNELS_CPU_VEC_H
#define RANKSCOPE_KERNELS_CPU_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/matmul.h"

enum krn_cache_type { KRN_CACHE_F32, KRN_CACHE_F16, KRN_CACHE_BF16 };

static inline size_t krn_cache_elem_bytes(enum krn_cache_type t)
{
    return t == KRN_CACHE_F32 ? 4 : 2;
}

/* Rows of a paged cache: row of position p is base + table[p / block] * block_stride + (p % block) * row_bytes. */
struct krn_pages {
    const uint8_t *base;
    const int32_t *table;
    size_t block_stride, row_bytes;
    uint32_t block;
    enum krn_cache_type type;
};

/* Absorbed attention of one query row over n_keys cached rows [c (l values) | k_pe (r values)]. q holds n_heads x (l + r) values, [q_abs | q_pe]
 * per head; out n_heads x l latent mixtures. sel lists n_sel key positions in ascending order, or is NULL for all. scores is scratch of
 * 4 x n (keys looked at), rounded up to 16 each; row is scratch of l + r floats. */
struct krn_attn_absorbed {
    struct krn_pages kv;
    uint32_t l, r, n_heads, n_keys;
    const int32_t *sel;
    uint32_t n_sel;
    float scale;
    const float *q;
    float *out;
    float *scores;
    struct krn_pages next; /* rows that the caller will look at next, fetched meanwhile: n_next of them, 0 for none; */
    uint32_t n_next;
    uint32_t part, parts;  /* of each of them the part'th of so many pieces, for calls that share one `next` */
};

/* attn_absorbed_i16: at most so many heads in a call, l and r multiples of KRN_I16_UNIT, an f16 cache; scores is then scratch of
 * krn_attn_i16_bytes(l + r), on a border of 64 bytes. A head's result does not depend on the heads beside it. */
enum { KRN_I16_HEADS = 8, KRN_I16_UNIT = 32, KRN_I16_KEYS = 64 };

static inline size_t krn_attn_i16_bytes(size_t d)
{
    return (KRN_I16_KEYS + 1 + KRN_I16_HEADS) * d * sizeof(int16_t) + KRN_I16_HEADS * KRN_I16_KEYS * sizeof(int16_t) +
           (2 + KRN_I16_HEADS) * KRN_I16_KEYS * sizeof(float);
}

/* Expanded keys and values of one head: keys in tiles of KRN_KEY_TILE, transposed ([tile][dim][KRN_KEY_TILE]), values row by row. */
#define KRN_KEY_TILE 16

struct krn_attn_expand {
    struct krn_pages kv;
    uint32_t l, r, nope, v;
    uint32_t key0, key1;   /* positions to expand; key0 a multiple of KRN_KEY_TILE */
    const float *b;        /* [l][nope + v]: the head's k_b and v_b, latent-major */
    float *keys;           /* whole tiles up to key1 rounded up; padding is written as zero */
    float *values;         /* [key][v] */
    float *tmp;            /* scratch: KRN_KEY_TILE x (l + r + nope + v) floats */
};

/* Expanded attention of n_rows query rows of one head, row i at position pos0 + i, over keys 0..pos. */
struct krn_attn_expanded {
    const float *keys, *values;
    uint32_t dim, v;       /* dim = nope + rope */
    uint32_t n_rows, pos0;
    const float *q; size_t q_stride;
    float *out; size_t out_stride;
    float scale;
    const int32_t *const *sel; /* NULL, or per row its selected positions (ascending) */
    const uint32_t *n_sel;
    float *scores;         /* scratch: 8 x (keys rounded up to KRN_KEY_TILE) */
};

/* Router: scores -> chosen experts. p: gating function's output (kept for weights); bias may be NULL. */
struct krn_route {
    const float *logits;
    const float *bias;
    uint32_t n_experts, n_used, n_groups, n_groups_used;
    bool sigmoid, norm;
    float scale;
    float *p;      /* out, n_experts */
    int32_t *ids;  /* out, n_used, in order of selection; ties go to the lower index */
    float *weights;/* out, n_used */
};

/* A row of logits in numbers, over its finite values. The sums are of e = exp(x - top) over those that are not the largest themselves. */
struct krn_logits {
    float top, second, low; /* second: another with the value of top, if there is one; -INFINITY without two finite values */
    uint32_t tops;          /* values equal to top */
    uint32_t nonfinite;
    float z, w, w2;         /* sums of e, e (x - top), e (x - top)^2 */
};

struct krn_cpu_vec {
    enum krn_isa isa;
    /* y_i = x_i / sqrt(mean(x^2) + eps) * w_i. x and y may be the same. */
    void (*rmsnorm)(const float *x, const float *w, float eps, float *y, size_t n);
    /* y = (x - mean) / sqrt(var + eps) * w + b */
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, float *y, size_t n);
    /* Rotate n_pairs pairs in place by (cos, sin); interleaved: (x0,x1),(x2,x3)..., else half-split: (x_i, x_{i+n_pairs}). */
    void (*rope)(float *x, const float *cos, const float *sin, size_t n_pairs, bool interleaved);
    void (*silu_mul)(const float *gate, const float *up, float *y, size_t n);
    void (*add)(const float *x, float *y, size_t n); /* y += x */
    void (*store)(enum krn_cache_type t, const float *x, void *dst, size_t n);
    void (*load)(enum krn_cache_type t, const void *src, float *y, size_t n);
    /* Sum of n_src sources over [from, to), in the order of src (flat) or by halving (tree); the sum is written to every dst. bf16: each
     * source is rounded to bf16 first, as a 16-bit payload would. */
    void (*reduce)(const float *const *src, float *const *dst, size_t n_src, size_t n_dst, size_t from, size_t to, bool tree, bool bf16);
    void (*attn_absorbed)(const struct krn_attn_absorbed *);
    void (*attn_absorbed_i16)(const struct krn_attn_absorbed *); /* the same in integers of 16 bits (vec_attn_i16.h); NULL where that is no faster */
    void (*attn_expand)(const struct krn_attn_expand *);
    void (*attn_expanded)(const struct krn_attn_expanded *);
    /* scores[t] = sum_j w_j * relu(q_j . k_t) * scale for t < n_keys; q: n_heads x dim */
    void (*index_scores)(const struct krn_pages *k, const float *q, const float *w, uint32_t n_heads, uint32_t dim, uint32_t n_keys, float scale, float *scores);
    void (*route)(const struct krn_route *);
    void (*describe)(const float *logits, size_t n, struct krn_logits *out);
};

/* NULL if this build or CPU lacks it. */
const struct krn_cpu_vec *krn_cpu_vec(enum krn_isa isa);

/* Positions of the k largest of n scores, ascending positions; ties go to the lower index. Returns the count, min(n, k). heap is scratch of k int32. */
uint32_t krn_select_topk(const float *scores, uint32_t n, uint32_t k, int32_t *out);

#endif
