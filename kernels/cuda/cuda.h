/* Kernels for NVIDIA GPUs: what the engine launches. C on this side, CUDA C++ behind it.
 *
 * Every function enqueues one kernel on the stream of its kcu_launch and returns a cudaError_t; nothing here allocates, waits or reads results. All
 * pointers are device memory of the GPU that is current, unless a comment says otherwise. Any thread, one stream at a time.
 *
 * Every kernel may be launched with programmatic dependent launch: before it has waited for its predecessor it reads at most weights, positions and
 * block tables (kcu_batch) and what earlier steps left in the cache; none of these may come from a kernel of the same step. Sums run in f32 in an
 * order that depends on the element alone, never on the number of rows in a launch. */
#ifndef RANKSCOPE_KERNELS_CUDA_CUDA_H
#define RANKSCOPE_KERNELS_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KCU_MAX_RANKS 64
#define KCU_MAX_GPUS 8
#define KCU_MAX_LOCAL 16
#define KCU_MAX_COLS 8 /* rows of activations that one pass over a weight serves */

struct kcu_launch {
    cudaStream_t stream;
    bool pdl;        /* programmatic dependent launch */
    uint64_t *stamp; /* where the kernel's first thread notes the GPU's clock (ns), or NULL; host memory mapped for the device is fine */
    bool fixed;      /* a row's result must not depend on the number of rows */
};

/* ---- weights ---- */

/* A weight as it lies on the device. Q8_0 and Q6_K are taken apart into planes per row so that 16-byte loads are aligned; the other formats keep
 * their blocks. `pitch` is kcu_pitch(type, k). */
struct kcu_mat {
    const uint8_t *w; /* NULL: this rank has no part of it */
    uint32_t type;    /* enum krn_type */
    uint32_t rows, k, n_mats;
    size_t pitch, mat_pitch;
    const uint16_t *half; /* the same as f16, for kcu_gemm(): kcu_unpack(); or NULL */
};

/* Do these kernels compute with a type? */
bool kcu_takes_type(uint32_t type);

/* Bytes from row to row in device form; a multiple of 16. */
size_t kcu_pitch(uint32_t type, uint32_t k);

/* Bring n rows of k weights from file form (rows raw_stride bytes apart) to device form. src 4-byte aligned. */
cudaError_t kcu_repack(const struct kcu_launch *l, uint32_t type, uint32_t k, size_t n, const uint8_t *src, size_t raw_stride,
                       uint8_t *dst);

/* Fill n rows with random weights of a type, in device form: values of a standard deviation near `sigma`. For models without a file. */
cudaError_t kcu_random(const struct kcu_launch *l, uint32_t type, uint32_t k, size_t n, float sigma, float mean, uint64_t seed,
                       uint8_t *dst);

/* Rows of m (matrix 0) as f32: row ids[i] - first to y + i * y_pitch, zeros where the row is outside of the matrix. */
cudaError_t kcu_rows(const struct kcu_launch *l, const struct kcu_mat *m, const int32_t *ids, uint32_t n, uint32_t first, float *y,
                     size_t y_pitch, uint32_t width);

/* ---- products ---- */

/* Activations: f32 rows, and the same rows in the int8 form of kernels/quant.h (NULL: not there) or as f16 with a factor per row (kcu_halve(); NULL: not
 * there). Pitches in floats, bytes and f16. */
struct kcu_rows_in {
    const float *x;
    size_t pitch;
    const uint8_t *q8;
    size_t q8_pitch;
    const uint16_t *h;
    size_t h_pitch;
    const float *h_scale;
};

/* The norm of one row as the beginning of the product that reads it: h = norm(x) * w and its int8 form, n columns, are also written to where the norm
 * alone would leave them. */
struct kcu_norm {
    const float *x; /* NULL: none */
    const float *w;
    float *h;
    uint8_t *q8;
    uint32_t n;
    float eps;
};

/* y[row][col + r] = m[r] . x[row] for up to two matrices side by side. Uses q8 where it is given and the type is quantised. */
struct kcu_linear {
    uint32_t n_mats;
    struct kcu_mat m[2];
    uint32_t col[2];
    struct kcu_rows_in in;
    uint32_t n; /* rows */
    float *y;
    size_t y_pitch;
    bool accumulate;
    float *x; /* or NULL: residual stream, x += y for the first matrix */
    size_t x_pitch;
    struct kcu_norm pre; /* of the input, where kcu_norm_linear_takes() it: one row */
    uint16_t *room; /* kcu_gemm() may use it as it likes, so many f16; or NULL */
    size_t n_room;
};
bool kcu_norm_linear_takes(const struct kcu_linear *a);
/* Does a kernel of few rows take it, which makes f16 of q8 and of the weights? */
bool kcu_linear_few(const struct kcu_launch *l, const struct kcu_linear *a);
cudaError_t kcu_linear(const struct kcu_launch *l, const struct kcu_linear *a);

/* Zeros: an empty part of a partial sum. */
cudaError_t kcu_zero(const struct kcu_launch *l, float *y, size_t pitch, uint32_t width, uint32_t n);

/* The same on tensor cores, for many rows. Needs activations as f16 and matrices that kcu_gemm_takes(). One launch or several: see kernels. room: how
 * much it can use for up to n rows times one or two weights of so many rows, where these are not there as f16; it changes speed, not results. */
size_t kcu_gemm_room(uint32_t n, uint32_t k, uint32_t rows, uint32_t second);
bool kcu_gemm_takes(const struct kcu_mat *m);
uint32_t kcu_gemm_kernels(const struct kcu_launch *l, const struct kcu_linear *a);
cudaError_t kcu_gemm(const struct kcu_launch *l, const struct kcu_linear *a);

/* A weight as f16 for kcu_gemm() of up to n rows: how many values that takes, 0 where it is of no use; and made so, once. */
size_t kcu_unpacked(uint32_t n, const struct kcu_mat *m);
cudaError_t kcu_unpack(const struct kcu_launch *l, const struct kcu_mat *m, uint16_t *to);

/* n rows of `width` values (a multiple of 16) as f16: value = h * scale[row], in the order that kcu_gemm() takes. */
cudaError_t kcu_halve(const struct kcu_launch *l, const float *x, size_t pitch, uint32_t width, uint32_t n, uint16_t *h, size_t h_pitch, float *scale);

/* Experts for many rows. kcu_group() sorts the pairs (row, slot) by expert into plan (kcu_group_words() words); kcu_gemm_grouped() multiplies every
 * pair's activations (of its row, or its own: per_pair) by its expert of one or two weights and writes y[pair]; kcu_act() is the activation y = silu(gu) *
 * gu[half..] of n rows with its f16 form (y may be NULL); kcu_combine() adds a row's experts (down.down, y, ids, weights and width of d are used).
 * boxes: kcu_grouped_boxes() takes all products by this plan. Two of them that kcu_grouped_acts() takes write the activation to act as well, unless that
 * is NULL; y may then be NULL. */
size_t kcu_group_words(uint32_t n, uint32_t n_used, uint32_t n_experts);
cudaError_t kcu_group(const struct kcu_launch *l, const int32_t *ids, size_t ids_pitch, uint32_t n, uint32_t n_used, uint32_t expert0,
                      uint32_t n_experts, bool boxes, int32_t *plan);
struct kcu_grouped {
    uint32_t n_mats; /* with as many experts each */
    struct kcu_mat m[2];
    uint32_t col[2];
    struct kcu_rows_in in;
    bool per_pair, boxes;
    uint32_t n, n_used;
    int32_t *plan;
    float *y;
    size_t y_pitch;
    float *act;
    size_t act_pitch;
};
bool kcu_grouped_boxes(const struct kcu_launch *l, const struct kcu_mat *m, uint32_t n, uint32_t n_used);
bool kcu_grouped_acts(const struct kcu_grouped *a);
uint32_t kcu_gemm_grouped_kernels(const struct kcu_launch *l, const struct kcu_grouped *a);
cudaError_t kcu_gemm_grouped(const struct kcu_launch *l, const struct kcu_grouped *a);
cudaError_t kcu_act(const struct kcu_launch *l, const float *gu, size_t gu_pitch, uint32_t half, uint32_t n, float *y, size_t y_pitch,
                    uint16_t *h, size_t h_pitch, float *scale);
struct kcu_down;
cudaError_t kcu_combine(const struct kcu_launch *l, const float *part, size_t part_pitch, const struct kcu_down *d);

/* Words that pass from kernel to kernel within a step, each of 8 bytes: a value, and a tag that is *step + tag, never 0 and never the same again. Zeros at
 * first. */
struct kcu_words {
    uint64_t *at;
    const uint32_t *step; /* grows by more than there are ops in a step */
    uint32_t tag;
};

/* ---- router ---- */

struct kcu_route {
    struct kcu_mat gate; /* n_experts x n_embd */
    const float *bias;   /* or NULL */
    const float *x;
    size_t x_pitch;
    uint32_t n, n_experts, n_used, n_groups, n_groups_used;
    bool sigmoid, norm;
    float scale;
    float *p; /* [n][p_pitch] */
    size_t p_pitch;
    int32_t *ids; /* [n][pitch]: n_used ids, then n_used weights as f32 */
    float *weights;
    size_t pitch;
    bool fixed;        /* a row's result must not depend on how many there are */
    uint32_t *arrived; /* [n] zeros, and left as zeros */
    struct kcu_words words; /* kcu_logits(): [n_experts + 2 n_used] logits for those who choose, then ids and weights for those who wait for the choice */
    struct kcu_norm pre; /* of x; or none */
};
cudaError_t kcu_route(const struct kcu_launch *l, const struct kcu_route *a);

/* The same for many rows, in one launch or two: an f32 gate, without a norm. */
bool kcu_route_many_takes(const struct kcu_route *a);
uint32_t kcu_route_many_kernels(const struct kcu_route *a);
cudaError_t kcu_route_many(const struct kcu_launch *l, const struct kcu_route *a);

/* One row, in two halves: logits, with a norm before them or of x; and the choice. kcu_gated() can make the choice on its way. */
bool kcu_logits_takes(const struct kcu_route *a);
cudaError_t kcu_logits(const struct kcu_launch *l, const struct kcu_route *a);
cudaError_t kcu_choose(const struct kcu_launch *l, const struct kcu_route *a);

/* One gated projection of experts or of a dense FFN: gu = [gate x | up x], act = silu(gate x) * (up x), and act in int8 form where q8 is given.
 * Experts: pair p is row p / n_used, expert ids[row][p % n_used]; pairs outside of [expert0, expert0 + n_mats) are skipped. */
struct kcu_gated {
    struct kcu_mat gate, up;
    struct kcu_rows_in in;
    uint32_t n;         /* rows */
    uint32_t n_used;    /* pairs per row; 1 with ids NULL: no experts, one pair per row */
    const int32_t *ids; /* [n][ids_pitch] */
    size_t ids_pitch;
    uint32_t expert0;
    bool swapped; /* join by file order: up first */
    float *gu;    /* [pair][gu_pitch] */
    size_t gu_pitch;
    float *act; /* [pair][act_pitch] */
    size_t act_pitch;
    uint8_t *q8; /* [pair][q8_pitch] or NULL */
    size_t q8_pitch;
};
/* Experts and the shared expert in one launch; either may be NULL. choose: make the choice of experts from its logits first; or NULL.
 * leaves_int8: with q8 NULL a faster kernel for a lone row takes them; the int8 form is then left to a kcu_down() that makes it. */
bool kcu_gated_leaves_int8(const struct kcu_gated *experts, const struct kcu_gated *shared, const struct kcu_route *choose);
cudaError_t kcu_gated(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared,
                      const struct kcu_route *choose);
/* As kcu_linear_few(), of experts and the shared one or NULL, without a choice to make. */
bool kcu_gated_few(const struct kcu_launch *l, const struct kcu_gated *experts, const struct kcu_gated *shared);

/* y[row] = sum over a row's experts, in ascending order of expert, of weight * (down_e . act[pair]); then + down_s . shared act. */
struct kcu_down {
    struct kcu_mat down;    /* experts; w NULL: none here */
    struct kcu_rows_in act; /* per pair */
    struct kcu_mat shared;  /* w NULL: none */
    struct kcu_rows_in shared_act;
    uint32_t n, n_used, expert0;
    const int32_t *ids;
    const float *weights;
    size_t ids_pitch; /* of both ids and weights */
    float *y;
    size_t y_pitch;
    uint32_t width;
    float *x;         /* or NULL: residual stream, x += y */
    size_t x_pitch;
    uint32_t n_experts;             /* of all ranks; 0: as many as there are here */
    const struct kcu_route *choose; /* host memory: kcu_gated() right before makes this choice, which is looked for before it has ended; or NULL */
    bool makes_int8;                /* of act and shared_act (x alone is given), where kcu_down_makes_int8() says that it can */
};
bool kcu_down_makes_int8(const struct kcu_down *a);
cudaError_t kcu_down(const struct kcu_launch *l, const struct kcu_down *a);
bool kcu_down_few(const struct kcu_launch *l, const struct kcu_down *a);

/* ---- rows: join, norm, quantise ---- */

/* A partial sum on its way through an all-reduce, the residual and a norm; every stage may be missing.
 *   v = reduce ? sum over ranks of part : part;   part = v if reduce;   v = x += v if x;   h = norm(v) * w if w;   q8 = int8(h) */
struct kcu_join {
    uint32_t n_local; /* ranks on this GPU; each has its own buffers */
    float *part[KCU_MAX_LOCAL];
    float *x[KCU_MAX_LOCAL];
    float *h[KCU_MAX_LOCAL];
    uint8_t *q8[KCU_MAX_LOCAL];
    size_t part_pitch, x_pitch, h_pitch, q8_pitch;
    const float *w;
    uint32_t n, width; /* rows, columns (a multiple of 4, at most 16,384) */
    float eps;
    bool reduce, bf16, tree; /* tree: pairs of ranks, then pairs of pairs, instead of one after the other */
    /* other GPUs: packets of 16 bytes {data, epoch, data, epoch} are pushed into their receive buffers */
    uint32_t n_ranks, rank0; /* of all; first of this GPU */
    uint32_t n_gpus, gpu;
    uint8_t gpu_of[KCU_MAX_RANKS];
    uint4 *recv[KCU_MAX_GPUS]; /* as this GPU sees them; [2][n_ranks][slot_packets] */
    size_t slot_packets;
    bool stand_in;         /* peers are not there: packets come back to this GPU as if from them */
    const uint32_t *epoch; /* of the step; the same on all GPUs, grows by more than the reduces of a step */
    uint32_t ordinal;      /* of this reduce within its step */
    uint32_t *fault;       /* host memory: set to 1 + ordinal (24 bits) and the rank (above) that does not arrive within timeout_ns; once set, nobody waits */
    uint64_t timeout_ns;
    int32_t delay_rank; /* -1: none */
    uint32_t delay_ns;
    uint64_t *ready, *done; /* further stamps, or NULL */
    uint16_t *half; /* without a reduce, n_local 1, widths that are multiples of 16: h also as kcu_halve() makes it; or NULL */
    size_t half_pitch;
    float *half_scale;
};
cudaError_t kcu_join(const struct kcu_launch *l, const struct kcu_join *a);

#define KCU_TWO_SHOT_BLOCKS 128

/* The sum alone, over ranks on several GPUs, for long messages: the bits of kcu_join() without tree. n values a rank, a multiple of 4, one after the other;
 * every GPU's are written by all. */
struct kcu_two_shot {
    float *part[KCU_MAX_RANKS]; /* of every rank, as this GPU sees them */
    size_t n;
    bool bf16;
    uint32_t n_ranks, rank0, n_local; /* this GPU's ranks */
    uint32_t n_gpus, gpu;
    uint8_t gpu_of[KCU_MAX_RANKS], rank_of[KCU_MAX_GPUS]; /* rank_of: the first rank of a GPU */
    void *sent[KCU_MAX_GPUS];      /* [n_ranks][room] summands in units of four values (f32, or bf16) that a GPU gets */
    size_t room;                   /* at least a GPU's part of the values */
    uint32_t *flags[KCU_MAX_GPUS]; /* [2][KCU_TWO_SHOT_BLOCKS][KCU_MAX_GPUS], zeros at first */
    uint32_t max_blocks;           /* at most KCU_TWO_SHOT_BLOCKS, and no more than any GPU has multiprocessors; the same everywhere */
    const uint32_t *epoch;         /* these as in kcu_join */
    uint32_t ordinal;
    uint32_t *fault;
    uint64_t timeout_ns;
    int32_t delay_rank;
    uint32_t delay_ns;
    uint64_t *ready;
};
cudaError_t kcu_two_shot(const struct kcu_launch *l, const struct kcu_two_shot *a);

cudaError_t kcu_quantise(const struct kcu_launch *l, const struct kcu_rows_in *in, uint32_t n, uint32_t width, uint8_t *q8);
cudaError_t kcu_add(const struct kcu_launch *l, const float *x, float *y, size_t n);
cudaError_t kcu_pick(const struct kcu_launch *l, const float *x, size_t x_pitch, const int32_t *rows, uint32_t n, uint32_t width, float *y,
                     size_t y_pitch);
cudaError_t kcu_silu(const struct kcu_launch *l, const float *gu, size_t gu_pitch, uint32_t half, uint32_t n, float *y, size_t y_pitch);
cudaError_t kcu_to_bf16(const struct kcu_launch *l, const float *x, uint16_t *y, size_t n);
cudaError_t kcu_from_bf16(const struct kcu_launch *l, const uint16_t *x, float *y, size_t n);
/* Count values whose bits differ, added to *count. */
cudaError_t kcu_compare(const struct kcu_launch *l, const float *a, const float *b, size_t n, uint32_t *count);
cudaError_t kcu_stamp(const struct kcu_launch *l); /* an empty kernel that only stamps */
/* One of two GPUs that compare clocks, both launched at the same time: n words go there and back. When a word was sent and when the other's was seen,
 * by this GPU's clock; sent[n] becomes 1 if the other stays away. mine and theirs: words that grow by n from one comparison to the next. */
struct kcu_ping {
    uint64_t *mine, *theirs;
    uint64_t base;
    uint32_t n;
    bool asks;
    uint64_t timeout_ns;
    uint64_t *sent; /* [n + 1], host memory mapped for the device */
    uint64_t *seen; /* [n] */
};
cudaError_t kcu_ping(const struct kcu_launch *l, const struct kcu_ping *a);
cudaError_t kcu_poison(const struct kcu_launch *l, void *p, size_t bytes);

/* ---- attention ---- */

enum kcu_cache { KCU_CACHE_F32, KCU_CACHE_F16, KCU_CACHE_BF16 };

/* The rows of a step and where their sequences' caches lie. */
struct kcu_batch {
    const int32_t *pos;   /* [rows] */
    const int32_t *table; /* [rows] offset of the row's block table in `tables` */
    const int32_t *tables;
    uint32_t n;        /* rows */
    uint32_t max_keys; /* bound on pos + 1 in this launch */
    uint32_t block;    /* tokens per cache block */
    /* Rows by sort, for attention of many rows; NULL: not known. lists: number and place in `tables` of the prompt tiles (pairs: first row, rows; of one
     * sequence at neighbouring positions, at most kcu_mla_tile_rows()), number and place of the other rows. Bounds of both numbers beside it. */
    const int32_t *lists;
    uint32_t prompt_tiles, generated;
};

struct kcu_rope {
    const float *cos, *sin; /* [position][half] */
    uint32_t half;
};

#define KCU_LATENT_HALVES 2048

/* z = [q | latent | k_pe] per row. q part: norm to qr and its int8 form. Latent: norm in place, rotate k_pe in place, write the row to the cache. */
struct kcu_latent {
    struct kcu_batch b;
    struct kcu_rope rope;
    float *z;
    size_t z_pitch;
    uint32_t q_col, q_width; /* q_width 0: no q part */
    const float *q_norm;
    float *qr;
    size_t qr_pitch;
    uint8_t *q8;
    size_t q8_pitch;
    uint16_t *half; /* qr also as kcu_halve() makes it, q_width up to KCU_LATENT_HALVES and a multiple of 16; or NULL */
    size_t half_pitch;
    float *half_scale;
    bool store; /* do the latent part */
    uint32_t kv_col, l, r;
    const float *kv_norm;
    float eps;
    uint8_t *cache;
    enum kcu_cache cache_type;
};
cudaError_t kcu_latent(const struct kcu_launch *l, const struct kcu_latent *a);

/* All of it and the projection of the normed q (y = m . qr) in one launch, where takes() says so: one row, f16 cache, Q8_0. */
bool kcu_latent_linear_takes(const struct kcu_latent *a, const struct kcu_mat *m);
cudaError_t kcu_latent_linear(const struct kcu_launch *l, const struct kcu_latent *a, const struct kcu_mat *m, float *y);

cudaError_t kcu_rope_q(const struct kcu_launch *l, const struct kcu_batch *b, const struct kcu_rope *rope, float *q, size_t pitch,
                       uint32_t heads, uint32_t head_dim, uint32_t offset, bool interleaved);

/* Absorbed attention: three launches (absorb, attend, carry out), or one for few rows with few keys. scratch holds kcu_mla_scratch() bytes. */
struct kcu_mla {
    struct kcu_batch b;
    struct kcu_rope rope;
    bool rotate; /* q's last r values per head are not rotated yet: do it, in place */
    float *q;
    size_t q_pitch;
    uint32_t heads, nope, l, r, v;
    struct kcu_mat k_b, v_b; /* per local head: l x nope, v x l */
    const uint8_t *cache;
    enum kcu_cache cache_type;
    float scale;
    const int32_t *sel; /* [rows][sel_pitch]: count (-1: all), then positions; NULL: all keys */
    size_t sel_pitch;
    uint32_t top_k;
    float *o;
    size_t o_pitch;
    uint8_t *q8;
    size_t q8_pitch;
    void *scratch;
    bool many;  /* f16 operands are good enough: tensor cores may be used */
    bool fixed; /* a row's result must not depend on what else is in the batch */
    bool apart; /* never in one launch */
    uint16_t *half; /* where kcu_mla_leaves_halves(): instead of o the f16 form that products of many rows take, all rows with one factor; or NULL */
    size_t half_pitch;
    float *half_scale;
};
bool kcu_mla_leaves_halves(const struct kcu_mla *a);
/* Is it one for tensor cores? Of many rows they leave o alone, without its int8 form. */
bool kcu_mla_on_cores(const struct kcu_mla *a);
bool kcu_mla_leaves_int8(const struct kcu_mla *a);
/* Rows of a prompt that attention takes at a time. */
uint32_t kcu_mla_tile_rows(uint32_t heads);
/* Enough for any launch of up to so many rows. */
size_t kcu_mla_scratch(uint32_t rows, uint32_t heads, uint32_t l, uint32_t r, uint32_t max_keys);
cudaError_t kcu_mla(const struct kcu_launch *l, const struct kcu_mla *a);
uint32_t kcu_mla_kernels(const struct kcu_mla *a); /* launches that it makes */

/* The same expanded: keys and values made from the latents, in f32. Its own scratch; many, fixed and apart do not matter. expands(): the shapes it takes. */
bool kcu_mla_expands(uint32_t nope, uint32_t l, uint32_t r, uint32_t v);
size_t kcu_mla_expanded_scratch(uint32_t rows, uint32_t heads, uint32_t nope, uint32_t l, uint32_t v, uint32_t max_keys);
cudaError_t kcu_mla_expanded(const struct kcu_launch *l, const struct kcu_mla *a);
uint32_t kcu_mla_expanded_kernels(const struct kcu_mla *a);

/* A lone row's attention with what kcu_latent_linear() and the rotation do before it, in one launch. z keeps its latent part as it is, without norm and
 * rotation; all other results are those of the launches apart, to the bit. */
bool kcu_mla_query_takes(const struct kcu_mla *a, const struct kcu_latent *z, const struct kcu_mat *q_b);
cudaError_t kcu_mla_query(const struct kcu_launch *l, const struct kcu_mla *a, const struct kcu_latent *z, const struct kcu_mat *q_b);

/* ---- observers ---- */

#define KCU_PROBE_CHUNK 4096 /* values that are folded together, whatever the launch */

/* As struct probe_stats of the engine. min, max, absmax and the sums are over finite values; 0 where there are none. */
struct kcu_seen {
    uint64_t n, zeros, nan, inf, hash;
    double sum, sum_sq;
    float min, max, absmax;
};

enum kcu_probe_kind {
    KCU_PROBE_PLAIN,
    KCU_PROBE_SELECTION, /* a count, then so many positions, all int32 */
    KCU_PROBE_CHOICE,    /* the first half of a row is int32 */
    KCU_PROBE_SCORES,    /* as many as there are keys, where these are more than top_k */
    KCU_PROBE_PAIRS,     /* rows are (row, expert) pairs; those of other ranks' experts mean nothing */
};

struct kcu_probe {
    const float *x;
    size_t pitch;
    uint32_t width, max_rows;
    const uint32_t *rows; /* how many there are at present, times rows_each; NULL: max_rows */
    uint32_t rows_each;
    enum kcu_probe_kind kind;
    const int32_t *pos; /* KCU_PROBE_SCORES */
    uint32_t top_k;
    const int32_t *ids; /* KCU_PROBE_PAIRS */
    size_t ids_pitch;
    uint32_t n_used, expert0, n_experts;
    struct kcu_seen *out; /* NULL: no statistics. Host memory mapped for the device is fine, as for values */
    uint32_t n_values;    /* the first ones of the last row */
    float *values;
    struct kcu_seen *parts; /* [kcu_probe_parts(max_rows * width)] */
    uint32_t *arrived;      /* zero, and left as zero */
};
size_t kcu_probe_parts(size_t values);
cudaError_t kcu_probe(const struct kcu_launch *l, const struct kcu_probe *a);

/* ---- from logits to a token ---- */

#define KCU_LIKELIEST_CHUNK 4096 /* logits that are folded together */
#define KCU_LIST 1024            /* the longest list of candidates */

/* What there is to say of a row of logits, or of a part of it, over its finite values. See krn_logits: the sums are of e = exp(x - top) over those that
 * are not the largest themselves. */
struct kcu_top {
    float top, second, low;
    int32_t at; /* the first with the value of top; -1: none is finite */
    uint32_t tops, nonfinite;
    float z, w, w2;
    float zt;    /* sum of exp((x - top) / temp) over all; 0 without a temperature */
    float floor; /* what is not below it is in the list: -INFINITY says all of it, INFINITY nothing */
    uint32_t n;  /* length of the list */
};

struct kcu_likely {
    float x;
    int32_t id;
};

/* The largest of each row, and lists of its likeliest in no order. Where a row holds what is no number, or so many have the same value that a list would
 * pass KCU_LIST, the list is shorter than was asked for, or empty. */
struct kcu_likeliest {
    const float *x;
    size_t pitch;
    uint32_t width, n; /* columns, rows */
    int32_t id0;       /* of the first column */
    const float *temp; /* [n] 0: none */
    const uint32_t *list;   /* [n] how many to list at least, as far as they lie within reach of a draw; 0: none. NULL: no row has a list */
    struct kcu_top *parts;  /* [n][kcu_likeliest_parts()], scratch */
    uint32_t *arrived;      /* [n] zeros, and left as zeros */
    struct kcu_top *out;    /* [n]; host memory mapped for the device is fine */
    struct kcu_likely *likely; /* [n][KCU_LIST]; the same */
};
size_t kcu_likeliest_parts(uint32_t width);
cudaError_t kcu_likeliest(const struct kcu_launch *l, const struct kcu_likeliest *a); /* one launch, two with lists */

/* ---- DSA indexer ---- */

struct kcu_index_store {
    struct kcu_batch b;
    struct kcu_rope rope;
    float *x; /* in place */
    size_t pitch;
    uint32_t dim;
    const float *w, *bias;
    bool interleaved;
    uint8_t *cache;
    enum kcu_cache cache_type;
};
cudaError_t kcu_index_store(const struct kcu_launch *l, const struct kcu_index_store *a);

struct kcu_index {
    struct kcu_batch b;
    const float *q, *w; /* per row: heads x dim, heads */
    size_t q_pitch, w_pitch;
    uint32_t heads, dim, top_k;
    const uint8_t *cache;
    enum kcu_cache cache_type;
    float *score;
    size_t score_pitch;
    int32_t *sel;
    size_t sel_pitch;
};
cudaError_t kcu_index_scores(const struct kcu_launch *l, const struct kcu_index *a);
cudaError_t kcu_index_topk(const struct kcu_launch *l, const struct kcu_index *a);

#ifdef __cplusplus
}
#endif
#endif
