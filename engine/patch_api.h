/* What a patch in C is: one file, compiled with the system's compiler to a shared object, exporting one constant of this type under the name
 * rankscope_patch. scripts/patches/ has examples. This header stands alone.
 *
 * The engine calls run() once per worker, rank and step, from several threads at once, each with its share of the work: [lo, hi) of `of`. Which
 * items those are is the patch's business (rankscope_share cuts them evenly), but a value must be computed by one call, in an order that does not
 * depend on the share: results must not change with the number of workers. run() must not allocate, lock or keep state.
 *
 * Kinds and their tensors (rows are those of the batch unless said otherwise):
 *   rmsnorm       in[0] -> out[0], weight w[0] (one row of f32); eps
 *   linear        in[0] -> out[0] = in[0] w[0]^T; added to out[0] if accumulate
 *   qkv_a         in[0] -> out[0], slots w[0], w[1] side by side (w[1] has no rows where the model has one slot)
 *   gate_up       the same
 *   silu_mul      in[0] = [gate | up] -> out[0] = silu(gate) * up
 *   moe_silu_mul  the same; rows are (row, expert) pairs
 *   add           out[0] += in[0]
 *   rope          in[0] in place: heads of head_dim values, the last rope_dim of each rotated by cos, sin (rope_dim / 2 per row), interleaved */
#ifndef RANKSCOPE_ENGINE_PATCH_API_H
#define RANKSCOPE_ENGINE_PATCH_API_H

#include <stddef.h>
#include <stdint.h>

#define RANKSCOPE_PATCH_ABI 1u

struct rankscope_tensor {
    float *data;
    size_t stride;         /* floats from row to row */
    uint32_t rows, width;
};

struct rankscope_weight {
    uint32_t type;         /* of the file's format: 0 f32, 1 f16, 8 Q8_0, 12 Q4_K ... */
    uint32_t rows, k;
    const uint8_t *data;
    size_t stride;         /* bytes from row to row */
    size_t bytes_per_256;  /* bytes of 256 consecutive values of a row */
    void (*dequant)(uint32_t type, const void *src, float *dst, size_t n); /* n values, whole blocks; any thread */
};

struct rankscope_call {
    uint32_t size;         /* of this struct: grows at its end */
    int32_t layer;         /* -1: outside the layers */
    const char *site;
    uint32_t rank, n_ranks;
    uint32_t lo, hi, of;   /* this call's share */
    int32_t accumulate;
    float eps;
    uint32_t head_dim, rope_dim;
    const float *cos, *sin; /* rope: [rows][rope_dim / 2] by position: see pos */
    const int32_t *pos;     /* [rows] positions; cos and sin are indexed by position */
    struct rankscope_tensor in[2], out[1];
    struct rankscope_weight w[2];
};

struct rankscope_patch_v1 {
    uint32_t abi;          /* RANKSCOPE_PATCH_ABI */
    uint32_t size;         /* sizeof(struct rankscope_patch_v1) */
    uint32_t call_size;    /* sizeof(struct rankscope_call) */
    const char *name;      /* letters, digits, '-', '_'; up to 31 */
    const char *kind;
    const char *help;      /* one line */
    void (*run)(const struct rankscope_call *call);
};

/* Items [*from, *to) of n, in steps of `unit`, are this call's. */
static inline void rankscope_share(const struct rankscope_call *c, size_t n, size_t unit, size_t *from, size_t *to)
{
    size_t u = (n + unit - 1) / unit, a = u * c->lo / c->of * unit, z = u * c->hi / c->of * unit;
    *from = a < n ? a : n;
    *to = z < n ? z : n;
}

#endif
