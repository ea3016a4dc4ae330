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
 *   rope          in[0] in place: heads of head_dim values, the last rope_dim of each rotated by cos, sin (rope_dim / 2 per row), interleaved
 *   kv_store      in[0] = [latent: kv_lora | key: rope_dim] in place: the latent normed by w[0] (one row of f32; eps), the key rotated as rope does;
 *                 then the row goes to the cache by cache_put
 *   mla           in[0] = queries, n_heads of head_dim values [nope | rope_dim] -> out[0], n_heads of v_head values. Cached rows come by cache_get,
 *                 [latent | key]; row i attends to positions 0 .. pos[i], or to those that selected() lists. A head's key is [k_b^T latent | key], its
 *                 value v_b latent, scores are multiplied by `scale`; w[0] = k_b (matrix by head: kv_lora rows of nope), w[1] = v_b (v_head rows of
 *                 kv_lora)
 *   index_q       in[0] in place: n_heads heads of head_dim values, here those of the indexer, the first rope_dim of each rotated by cos, sin; interleaved:
 *                 pairs of neighbours, else of values that are rope_dim / 2 apart
 *   index_store   in[0] = the indexer's key, head_dim values, in place: (x - mean) / sqrt(variance + eps) * w[0] + w[1] (one row of f32 each; w[1] may have
 *                 no rows), rotated as index_q does; then the row goes to the indexer's cache by cache_put
 *   index_scores  in[0] = queries, n_heads of head_dim values, in[1] = n_heads weights -> out[0], for each position p of 0 .. pos[i]: scale times the sum
 *                 over heads of weight * max(0, query . key p). Keys come by cache_get. Rows of up to top_k positions need none; what stands beyond pos[i]
 *                 is never looked at
 *   index_topk    in[0] = scores of positions 0 .. pos[i] -> out[0] as int32_t: top_k, then the positions of the top_k largest scores, ascending, of equal
 *                 ones the first; -1 and nothing else for a row of up to top_k positions
 *   embed         out[0] = the row of w[0] of each token: tokens[row] - first_token, zeros where this rank has no such row
 *   moe_gate_up   for each (row, expert) pair of the batch: in[0] at the pair's row -> out[0] at the pair, slots w[0], w[1] side by side, matrix by expert.
 *                 See struct rankscope_experts
 *   moe_down      in[0] at each pair, times w[0] (matrix by expert) -> out[0] = a row's sum over its pairs, each times its weight, experts ascending;
 *                 zeros for a row that has none here
 *   router        in[0] -> out[0] = gating function of in[0] w[0]^T, n_experts values; then n_used experts to ids and what they count to weights.
 *                 w[1]: one row that is added for the choice alone, or no rows. See struct rankscope_router
 *   gather        in[0] = this rank's logits -> out[0], its part of the row of all logits; rows are those that want logits
 *   allreduce     out[0] of every rank, ranks[0 .. n_ranks - 1] (rows and stride of out[0]), becomes the sum over all ranks. The share is of all that
 *                 there is to add: what this call adds up it writes to all ranks */
#ifndef RANKSCOPE_ENGINE_PATCH_API_H
#define RANKSCOPE_ENGINE_PATCH_API_H

#include <stddef.h>
#include <stdint.h>

#define RANKSCOPE_PATCH_ABI 2u

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
    uint32_t n_mats;       /* matrices of so many rows, one after the other: mla, one per head; experts */
    size_t mat_stride;     /* bytes from matrix to matrix */
};

/* How experts are chosen. With groups (of n_experts / n_groups neighbours): only those of the n_groups_used groups whose two best sum highest may be.
 * Chosen are the largest of score + w[1], equal ones by the lower index; an expert counts with its score, divided by the sum over the chosen ones if
 * `normalise`, times `scale`. */
struct rankscope_router {
    uint32_t n_experts, n_used, n_groups, n_groups_used;
    int32_t sigmoid;       /* gating function: sigmoid, else softmax */
    int32_t normalise;
    float scale;
    int32_t *ids;          /* [rows][stride] numbers of experts from 0 */
    float *weights;        /* [rows][stride] */
    size_t stride;         /* values from row to row of both */
};

/* The pairs (row, expert) that the router made of the batch, those of this rank's experts alone, by expert: pairs group[e] .. group[e + 1] - 1 are of expert
 * e of 0 .. n - 1, which is matrix e of the weights. Rows ascend within an expert. */
struct rankscope_experts {
    uint32_t n, n_pairs;
    const int32_t *group;  /* [n + 1] */
    const int32_t *row;    /* [n_pairs] row of the batch */
    const float *weight;   /* [n_pairs] what the expert counts with for that row */
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
    uint32_t kv_lora, v_head, n_heads; /* n_heads: of this rank */
    float scale;
    const void *cache;                 /* for the next three; a row has rankscope_cache_width() values */
    void (*cache_get)(const struct rankscope_call *call, uint32_t row, uint32_t pos, float *to); /* position pos of row's sequence, pos <= pos[row] */
    void (*cache_put)(const struct rankscope_call *call, uint32_t row, const float *from);       /* at the row's own position */
    const int32_t *(*selected)(const struct rankscope_call *call, uint32_t row, uint32_t *n);    /* n positions, ascending; NULL: all */
    struct rankscope_router router;
    float *const *ranks;
    struct rankscope_experts experts;  /* moe_gate_up, moe_down */
    const int32_t *tokens;             /* embed: [rows] */
    uint32_t first_token;              /* embed: the token of the first row of w[0] */
    int32_t interleaved;               /* index_q, index_store */
    uint32_t top_k;                    /* index_scores, index_topk */
};

struct rankscope_patch_v1 {
    uint32_t abi;          /* RANKSCOPE_PATCH_ABI */
    uint32_t size;         /* sizeof(struct rankscope_patch_v1) */
    uint32_t call_size;    /* sizeof(struct rankscope_call) */
    const char *name;      /* letters, digits, '-', '_'; up to 27 */
    const char *kind;
    const char *help;      /* one line */
    void (*run)(const struct rankscope_call *call);
};

/* Values of a cached row. kv_lora is 0 where the indexer's cache is meant. */
static inline uint32_t rankscope_cache_width(const struct rankscope_call *c)
{
    return c->kv_lora != 0 ? c->kv_lora + c->rope_dim : c->head_dim;
}

/* Items [*from, *to) of n, in steps of `unit`, are this call's. */
static inline void rankscope_share(const struct rankscope_call *c, size_t n, size_t unit, size_t *from, size_t *to)
{
    size_t u = (n + unit - 1) / unit, a = u * c->lo / c->of * unit, z = u * c->hi / c->of * unit;
    *from = a < n ? a : n;
    *to = z < n ? z : n;
}

#endif
