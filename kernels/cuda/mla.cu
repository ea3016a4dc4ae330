/* Absorbed attention of few rows with few keys in one launch: a cluster of eight blocks per head and row.
 *
 * A block has an eighth of the latent (and of the rotated part). It carries the query into its eighth, scores all keys by it, and sends these parts of
 * the scores to the others; it weighs its eighth of all keys by the whole scores and sends that eighth of the mixture to the others; it carries the
 * mixture out into its eighth of the outputs. So little travels, twice. What does not depend on the predecessor - this block's part of the weights and
 * of all keys but a lone row's newest - is on its way before the predecessor has ended.
 *
 * A lone row may begin with what makes its query and its newest key: every block norms the row of q_a for itself, makes an eighth of its head's query and
 * sends that to the others, and norms its eighth of the new key. One exchange more within the cluster instead of a launch. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/norm.cuh"

enum { BLOCKS = 8, THREADS = 256, L = 512, R = 64, D = L + R, NEAR_KEYS = 512, NEAR_ROWS = 8, MAX_NOPE = 256, MAX_V = 32 * BLOCKS };
enum { PART = L / BLOCKS, TURN = R / BLOCKS, SLICE = PART + TURN /* halves of a key; odd in units of 16 bytes: no bank conflicts */ };

struct room {
    uint64_t scores, mixture; /* barriers: what other blocks send has come */
    __align__(16) float q[SLICE];
    __align__(16) float nope[MAX_NOPE / 32 * F32_STRIDE];
    __align__(16) float mixed[L / 32 * F32_STRIDE];
    __align__(16) float sum[THREADS / 32][PART]; /* every warp's part of the mixture */
    float max_of[THREADS / 32], sum_of[THREADS / 32], result[32];
};

/* After the room, for `cap` keys (a multiple of 32): slices of keys, in which rows of the cache they lie, parts of scores by block, probabilities. */
struct lists {
    __half *key;
    uint32_t *at;
    float *part, *prob;
    uint32_t cap;
};

enum { KEY_BYTES = SLICE * (int)sizeof(__half) + (int)sizeof(uint32_t), SCORE_BYTES = (BLOCKS + 1) * (int)sizeof(float) }; /* of a key */

static size_t bytes_for(uint32_t cap)
{
    return sizeof(room) + cap * (KEY_BYTES + SCORE_BYTES);
}

/* keys, scores: where they lie in shared memory. */
static __device__ __forceinline__ lists lists_of(uint8_t *keys, uint8_t *scores, uint32_t cap)
{
    lists n;
    n.cap = cap;
    n.key = (__half *)keys;
    n.at = (uint32_t *)(n.key + (size_t)cap * SLICE);
    n.part = (float *)scores;
    n.prob = n.part + BLOCKS * cap;
    return n;
}

/* Start the copies of this block's slices of the keys, of 16 bytes each: eight of the latent, one of the rotated part. */
static __device__ __forceinline__ void copy_slice(const lists &n, const struct kcu_mla &a, uint32_t k, uint32_t c)
{
    const __half *from = (const __half *)a.cache + (size_t)n.at[k] * D + (c < PART / 8 ? blockIdx.x * PART + 8 * c : L + blockIdx.x * TURN);
    copy_async<16>(n.key + k * SLICE + 8 * c, from);
}

static __device__ __forceinline__ void copy_keys(const lists &n, const struct kcu_mla &a, uint32_t row, uint32_t keys, uint32_t skip)
{
    for (uint32_t k = threadIdx.x; k < keys; k += THREADS)
        n.at[k] = (uint32_t)page_row(a.b, row, k);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < keys * (SLICE / 8); i += THREADS)
        if (i / (SLICE / 8) != skip)
            copy_slice(n, a, i / (SLICE / 8), i % (SLICE / 8));
}

/* This block's part of a key's score. */
static __device__ __forceinline__ float score(const room &s, const __half *key)
{
    float v = 0;
#pragma unroll
    for (int i = 0; i < SLICE; i += 8) {
        const uint4 w = *(const uint4 *)(key + i);
        const uint32_t h[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 k = __half22float2(*(const __half2 *)&h[j]), q = *(const float2 *)(s.q + i + 2 * j);
            v = fmaf(k.y, q.y, fmaf(k.x, q.x, v));
        }
    }
    return v;
}

/* Scores by this block's slice, to every block. Four neighbouring lanes send four keys' together, each of them to two blocks. */
static __device__ __forceinline__ void send_scores(room &s, const lists &n, uint32_t keys)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t k = threadIdx.x; k < (keys + 31) / 32 * 32; k += THREADS) {
        const float v = k < keys ? score(s, n.key + k * SLICE) : 0;
        float four[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            four[j] = __shfl_sync(0xffffffffu, v, (lane & ~3u) + j);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t block = lane % 4 + 4 * j;
            send(at_block(n.part + blockIdx.x * n.cap + (k & ~3u), block), make_float4(four[0], four[1], four[2], four[3]),
                 at_block(&s.scores, block));
        }
    }
}

/* Whole scores to probabilities, not yet divided by their sum, which is returned. */
static __device__ __forceinline__ float weigh(room &s, const lists &n, uint32_t keys)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float v[NEAR_KEYS / THREADS], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < NEAR_KEYS / THREADS; i++) {
        const uint32_t k = threadIdx.x + i * THREADS;
        v[i] = k < keys ? n.part[k] : -INFINITY;
        for (int b = 1; b < BLOCKS && k < keys; b++)
            v[i] += n.part[b * n.cap + k];
        top = fmaxf(top, v[i]);
    }
    top = warp_max(top, 32);
    if (lane == 0)
        s.max_of[warp] = top;
    __syncthreads();
    top = warp_max(s.max_of[lane % (THREADS / 32)], 32);
#pragma unroll
    for (int i = 0; i < NEAR_KEYS / THREADS; i++) {
        const float e = expf(v[i] - top);
        if (threadIdx.x + i * THREADS < keys)
            n.prob[threadIdx.x + i * THREADS] = e;
        sum += e;
    }
    sum = warp_sum(sum, 32);
    if (lane == 0)
        s.sum_of[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < THREADS / 32; i++)
        sum += s.sum_of[i];
    return sum;
}

/* This block's eighth of the mixture, to every block: every eighth key a warp, then the warps' parts together. */
static __device__ __forceinline__ void send_mixture(room &s, const lists &n, uint32_t keys, float inverse)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x = 0, y = 0;
#pragma unroll 4
    for (uint32_t k = warp; k < keys; k += THREADS / 32) {
        const float2 v = pair_of(n.key + k * SLICE + 2 * lane);
        x = fmaf(n.prob[k], v.x, x);
        y = fmaf(n.prob[k], v.y, y);
    }
    *(float2 *)(s.sum[warp] + 2 * lane) = make_float2(x, y);
    __syncthreads();
    if (threadIdx.x >= PART / 4 * BLOCKS)
        return;
    const uint32_t c = threadIdx.x / BLOCKS * 4, block = threadIdx.x % BLOCKS, i = blockIdx.x * PART + c;
    float4 m = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) {
        const float4 v = *(const float4 *)(s.sum[w] + c);
        m.x += v.x, m.y += v.y, m.z += v.z, m.w += v.w;
    }
    m.x *= inverse, m.y *= inverse, m.z *= inverse, m.w *= inverse;
    send(at_block(s.mixed + i / 32 * F32_STRIDE + i % 32, block), m, at_block(&s.mixture, block));
}

/* What comes before, of a lone row: projection of the normed q_a, norm and rotation of the latent. */
enum { MAX_QUERY = 2048 };

struct near_query {
    struct kcu_latent z;
    struct kcu_mat m;
    uint32_t lpr, at; /* where its weights lie in shared memory: rows of the part without rotation, then of the rotated part */
};

struct query_room {
    uint64_t weights, nope; /* barriers */
    float unit[MAX_QUERY / 32], unit_kv[L / 32];
    __align__(16) float q[MAX_NOPE / BLOCKS + TURN];
    __align__(16) uint8_t xs[MAX_QUERY / 32 * 48];
};

typedef norm_row<MAX_QUERY / 4 / THREADS, THREADS> query_norm;

static __device__ __forceinline__ struct kcu_norm norm_of(const struct kcu_latent &z)
{
    return {z.z + z.q_col, z.q_norm, z.qr, z.q8, z.q_width, z.eps};
}

/* One thread, before the cluster arrives. */
static __device__ __forceinline__ void bring_query(query_room &r, const near_query &p, const struct kcu_mla &a, uint8_t *to)
{
    const uint32_t pitch = (uint32_t)p.m.pitch, some = a.nope / BLOCKS;
    const uint8_t *from = p.m.w + (size_t)blockIdx.y * (a.nope + R) * pitch;
    inbox_init(&r.nope, a.nope * sizeof(float));
    inbox_init(&r.weights, (some + TURN) * pitch);
    fence_async();
    bulk_copy(to, from + (size_t)blockIdx.x * some * pitch, some * pitch, &r.weights);
    bulk_copy(to + some * pitch, from + (size_t)(a.nope + blockIdx.x * TURN) * pitch, TURN * pitch, &r.weights);
}

/* This block's eighth of the newest key, after unit_kv has its sums. latent: of 4 t, by the threads that there are for it; norm: its norm's weights. */
static __device__ __forceinline__ void newest_key(const query_room &r, const near_query &p, const lists &n, __half *cache, uint32_t pos, float4 latent,
                                                  float4 norm, float co, float si)
{
    const uint32_t t = threadIdx.x, pair = t - L / 4;
    const float f = query_norm::norm_factor(r.unit_kv, L, p.z.eps), *pe = p.z.z + p.z.kv_col + L + blockIdx.x * TURN + 2 * pair;
    __half *row = cache + (size_t)n.at[pos] * D, *key = n.key + pos * SLICE;
    if (t / (PART / 4) == blockIdx.x) {
        const __half2 v[2] = {__floats2half2_rn(latent.x * f * norm.x, latent.y * f * norm.y),
                              __floats2half2_rn(latent.z * f * norm.z, latent.w * f * norm.w)};
        *(uint2 *)(key + 4 * t % PART) = *(const uint2 *)v;
        if (blockIdx.y == 0)
            *(uint2 *)(row + 4 * t) = *(const uint2 *)v;
    } else if (t >= L / 4 && pair < TURN / 2) {
        float x = pe[0], y = pe[1];
        rotate(&x, &y, co, si);
        const __half2 v = __floats2half2_rn(x, y);
        *(__half2 *)(key + PART + 2 * pair) = v;
        if (blockIdx.y == 0)
            *(__half2 *)(row + L + blockIdx.x * TURN + 2 * pair) = v;
    }
}

/* This block's eighth of the head's query: unrotated to r.q; what is not to be rotated also to every block's s.nope. */
static __device__ __forceinline__ void make_query(room &s, query_room &r, const near_query &p, const struct kcu_mla &a, const uint8_t *w)
{
    typedef fmt<KRN_Q8_0> F;
    const uint32_t t = threadIdx.x, some = a.nope / BLOCKS, rows = some + TURN, groups = THREADS / p.lpr, sub = t % p.lpr;
    receive(&r.weights);
    for (uint32_t base = 0; base < rows; base += groups) {
        const uint32_t i = base + t / p.lpr;
        float acc = 0;
        for (uint32_t u = sub; i < rows && u < p.m.k / F::W; u += p.lpr)
            acc = unit_shared<F>(w + i * p.m.pitch, p.m.k, u, r.xs, acc);
        acc = warp_sum(acc, p.lpr);
        if (sub == 0 && i < rows)
            r.q[i] = acc;
    }
    __syncthreads();
    cluster_wait();
    if (t < some / 4 * BLOCKS) {
        const uint32_t quad = t / BLOCKS, block = t % BLOCKS, i = blockIdx.x * some + 4 * quad;
        send(at_block(s.nope + i / 32 * F32_STRIDE + i % 32, block), *(const float4 *)(r.q + 4 * quad), at_block(&r.nope, block));
    }
    if (t < some)
        a.q[(size_t)blockIdx.y * (a.nope + R) + blockIdx.x * some + t] = r.q[t];
}

template <bool QUERY>
static __global__ void __launch_bounds__(THREADS, QUERY ? 2 : 3)
    near_kernel(const __grid_constant__ struct kcu_mla a, const __grid_constant__ near_query p, uint32_t cap, uint64_t *at)
{
    typedef fmt<KRN_Q8_0> F;
    extern __shared__ __align__(16) uint8_t shared[];
    room &s = *(room *)shared;
    query_room &r = *(query_room *)(shared + sizeof(room));
    uint8_t *const keys_at = shared + sizeof(room) + (QUERY ? sizeof(query_room) : 0);
    const lists n = lists_of(keys_at, QUERY ? shared + p.at : keys_at + cap * KEY_BYTES, cap);
    const uint32_t self = blockIdx.x, h = blockIdx.y, row = blockIdx.z, t = threadIdx.x, sub = t % 8, line = t / 8;
    if (QUERY)
        pdl_release();
    F::raw kb[2], vb[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (sub < a.nope / 32)
            F::fetch<EARLY>(a.k_b.w + h * a.k_b.mat_pitch + (size_t)(self * PART + 2 * line + i) * a.k_b.pitch, a.nope, sub, kb[i]);
    const uint32_t out = self * 32 + line;
    const bool carries = out < a.v; /* the whole block or none */
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (carries)
            F::fetch<EARLY>(a.v_b.w + h * a.v_b.mat_pitch + (size_t)out * a.v_b.pitch, L, sub + 8 * i, vb[i]);
    const uint32_t pos = (uint32_t)a.b.pos[row], keys = pos + 1;
    if (t == 0) {
        inbox_init(&s.scores, BLOCKS * ((keys + 31) / 32 * 32) * sizeof(float));
        inbox_init(&s.mixture, L * sizeof(float));
        if (QUERY)
            bring_query(r, p, a, shared + p.at);
    }
    cluster_arrive();
    const bool alone = a.b.n == 1;
    const uint32_t pair = self * (TURN / 2) + t; /* of the rotated part: this block's, for its first threads */
    float co = 1, si = 0;
    if (a.rotate && t < TURN / 2) {
        co = a.rope.cos[(size_t)pos * (R / 2) + pair];
        si = a.rope.sin[(size_t)pos * (R / 2) + pair];
    }
    query_norm norm;
    float4 latent = make_float4(0, 0, 0, 0), latent_norm = latent;
    float key_co = 1, key_si = 0;
    if (QUERY) {
        norm.start(norm_of(p.z));
        if (t < L / 4) {
            latent_norm = ld16f((const float4 *)p.z.kv_norm + t);
        } else if (t < L / 4 + TURN / 2) {
            key_co = p.z.rope.cos[(size_t)pos * (R / 2) + pair - L / 4];
            key_si = p.z.rope.sin[(size_t)pos * (R / 2) + pair - L / 4];
        }
    }
    if (alone)
        copy_keys(n, a, row, keys, pos);
    pdl_wait();
    stamp(at);
    if (QUERY) {
        if (t < L / 4)
            latent = *((const float4 *)(p.z.z + p.z.kv_col) + t);
        float sq = square_of(latent);
        for (int o = 1; o < 8; o *= 2)
            sq += __shfl_xor_sync(0xffffffffu, sq, o);
        if (t % 8 == 0 && t < L / 4)
            r.unit_kv[t / 8] = sq;
        norm.template stage<F>(norm_of(p.z), norm.factor(norm_of(p.z), r.unit), r.xs, h == 0 && self == 0);
        newest_key(r, p, n, (__half *)a.cache, pos, latent, latent_norm, key_co, key_si);
        __syncthreads();
        make_query(s, r, p, a, shared + p.at);
    } else if (!alone)
        copy_keys(n, a, row, keys, UINT32_MAX);
    else if (t < SLICE / 8)
        copy_slice(n, a, pos, t);
    float *q = a.q + row * a.q_pitch + (size_t)h * (a.nope + R), *pe = q + a.nope + 2 * pair;
    if (!QUERY && t < a.nope)
        s.nope[t / 32 * F32_STRIDE + t % 32] = q[t];
    if (t < TURN / 2) {
        const float *from = QUERY ? r.q + a.nope / BLOCKS + 2 * t : pe;
        float x = from[0], y = from[1];
        if (a.rotate) {
            rotate(&x, &y, co, si);
            pe[0] = x, pe[1] = y; /* in place; nobody else reads this pair */
        }
        s.q[PART + 2 * t] = x * a.scale;
        s.q[PART + 2 * t + 1] = y * a.scale;
    }
    __syncthreads();
    if (QUERY)
        receive(&r.nope);
    float absorbed[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        absorbed[i] = warp_sum(sub < a.nope / 32 ? unit_values<KRN_Q8_0>(kb[i], sub, s.nope, 0.0f) : 0.0f, 8) * a.scale;
    if (sub == 0)
        *(float2 *)(s.q + 2 * line) = make_float2(absorbed[0], absorbed[1]);
    copies_wait_all();
    __syncthreads();
    if (!QUERY) {
        pdl_release(); /* not before: the weights of the projection that follows would be in the way of what this kernel waits for */
        cluster_wait();
    }
    send_scores(s, n, keys);
    receive(&s.scores);
    const float sum = weigh(s, n, keys);
    send_mixture(s, n, keys, 1.0f / sum);
    receive(&s.mixture); /* those without outputs too: they may not leave before */
    if (!carries)
        return;
    float acc = unit_values<KRN_Q8_0>(vb[0], sub, s.mixed, 0.0f);
    acc = warp_sum(unit_values<KRN_Q8_0>(vb[1], sub + 8, s.mixed, acc), 8);
    if (sub == 0) {
        s.result[line] = acc;
        a.o[row * a.o_pitch + (size_t)h * a.v + out] = acc;
    }
    __syncthreads();
    if (a.q8 != nullptr && t < 32)
        q8_block32(s.result[t], a.q8 + row * a.q8_pitch, a.heads * a.v, h * a.v + self * 32, t);
}

bool mla_near_takes(const struct kcu_mla *a)
{
    int device, major = 0; /* clusters exist from compute capability 9 on */
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9 && !a->apart && a->b.n <= NEAR_ROWS && a->b.max_keys <= NEAR_KEYS && a->l == L && a->r == R &&
           a->cache_type == KCU_CACHE_F16 && (a->sel == NULL || a->b.max_keys <= a->top_k) && a->k_b.type == KRN_Q8_0 &&
           a->v_b.type == KRN_Q8_0 && a->nope % 32 == 0 && a->nope <= MAX_NOPE && a->v % 32 == 0 && a->v <= MAX_V;
}

cudaError_t mla_near(const struct kcu_launch *l, const struct kcu_mla *a)
{
    const uint32_t cap = (a->b.max_keys + 31) / 32 * 32;
    const near_query none = {};
    cudaError_t e = cudaFuncSetAttribute(near_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes_for(NEAR_KEYS));
    if (e != cudaSuccess)
        return e;
    divide_alike(near_kernel<false>);
    return launch(l, near_kernel<false>, dim3(BLOCKS, a->heads, a->b.n), dim3(THREADS), bytes_for(cap), BLOCKS, *a, none, cap, l->stamp);
}

/* More weights than these in a block are faster in a launch of their own, spread over all multiprocessors. */
enum { MAX_QUERY_BYTES = 40 * 1024 };

static size_t query_weights(const struct kcu_mla *a, const struct kcu_mat *q_b)
{
    return (a->nope / BLOCKS + TURN) * q_b->pitch;
}

/* Where the weights of the query lie. Scores take their place, so that two blocks are resident together with all keys that there may be: nobody sends any
 * before it has every block's part of the query, for which that block has read its weights. */
static size_t query_at(uint32_t cap)
{
    return sizeof(room) + sizeof(query_room) + cap * KEY_BYTES;
}

static size_t query_bytes(uint32_t cap, size_t weights)
{
    return query_at(cap) + (weights > cap * SCORE_BYTES ? weights : cap * SCORE_BYTES);
}

extern "C" bool kcu_mla_query_takes(const struct kcu_mla *a, const struct kcu_latent *z, const struct kcu_mat *q_b)
{
    return a->b.n == 1 && a->heads > 0 && a->rotate && !kcu_mla_on_cores(a) && mla_near_takes(a) && kcu_latent_linear_takes(z, q_b) &&
           q_b->rows == a->heads * (a->nope + R) && z->q_width <= MAX_QUERY && z->l == L && z->r == R && z->kv_col % 4 == 0 && z->q_col % 4 == 0 &&
           sizeof(query_room) + query_weights(a, q_b) <= MAX_QUERY_BYTES;
}

extern "C" cudaError_t kcu_mla_query(const struct kcu_launch *l, const struct kcu_mla *a, const struct kcu_latent *z, const struct kcu_mat *q_b)
{
    const uint32_t cap = (a->b.max_keys + 31) / 32 * 32;
    const near_query p = {*z, *q_b, lanes_for(q_b->type, q_b->k, true), (uint32_t)query_at(cap)};
    const size_t weights = query_weights(a, q_b);
    cudaError_t e = cudaFuncSetAttribute(near_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)query_bytes(NEAR_KEYS, weights));
    if (e != cudaSuccess)
        return e;
    return launch(l, near_kernel<true>, dim3(BLOCKS, a->heads), dim3(THREADS), query_bytes(cap, weights), BLOCKS, *a, p, cap, l->stamp);
}
