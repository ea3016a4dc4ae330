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

/* What a thread needs of the newest key: of the latent four values with the weights of their norm, or a pair's angle. */
struct newest {
    float4 latent, norm;
    float co, si;

    __device__ __forceinline__ void start(const struct kcu_latent &z, uint32_t pos)
    {
        const uint32_t t = threadIdx.x, pair = blockIdx.x * (TURN / 2) + t - L / 4;
        latent = norm = make_float4(0, 0, 0, 0);
        co = 1, si = 0;
        if (t < L / 4) {
            norm = ld16f((const float4 *)z.kv_norm + t);
        } else if (t < L / 4 + TURN / 2) {
            co = z.rope.cos[(size_t)pos * (R / 2) + pair];
            si = z.rope.sin[(size_t)pos * (R / 2) + pair];
        }
    }

    /* After the predecessor; its sums are there after a barrier. */
    __device__ __forceinline__ void take(const struct kcu_latent &z, float *unit)
    {
        const uint32_t t = threadIdx.x;
        if (t < L / 4)
            latent = *((const float4 *)(z.z + z.kv_col) + t);
        float sq = square_of(latent);
        for (int o = 1; o < 8; o *= 2)
            sq += __shfl_xor_sync(0xffffffffu, sq, o);
        if (t % 8 == 0 && t < L / 4)
            unit[t / 8] = sq;
    }

    /* This block's eighth, to its slice in shared memory (unless NULL), and by the first head's blocks to the row of the cache. */
    __device__ __forceinline__ void put(const struct kcu_latent &z, const float *unit, __half *slice, __half *row) const
    {
        const uint32_t t = threadIdx.x, pair = t - L / 4;
        const float f = query_norm::norm_factor(unit, L, z.eps), *pe = z.z + z.kv_col + L + blockIdx.x * TURN + 2 * pair;
        if (t / (PART / 4) == blockIdx.x) {
            const __half2 v[2] = {__floats2half2_rn(latent.x * f * norm.x, latent.y * f * norm.y),
                                  __floats2half2_rn(latent.z * f * norm.z, latent.w * f * norm.w)};
            if (slice != nullptr)
                *(uint2 *)(slice + 4 * t % PART) = *(const uint2 *)v;
            if (blockIdx.y == 0)
                *(uint2 *)(row + 4 * t) = *(const uint2 *)v;
        } else if (t >= L / 4 && pair < TURN / 2) {
            float x = pe[0], y = pe[1];
            rotate(&x, &y, co, si);
            const __half2 v = __floats2half2_rn(x, y);
            if (slice != nullptr)
                *(__half2 *)(slice + PART + 2 * pair) = v;
            if (blockIdx.y == 0)
                *(__half2 *)(row + L + blockIdx.x * TURN + 2 * pair) = v;
        }
    }
};

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
    newest key;
    if (QUERY) {
        norm.start(norm_of(p.z));
        key.start(p.z, pos);
    }
    if (alone)
        copy_keys(n, a, row, keys, pos);
    pdl_wait();
    stamp(at);
    if (QUERY) {
        key.take(p.z, r.unit_kv);
        norm.template stage<F>(norm_of(p.z), norm.factor(norm_of(p.z), r.unit), r.xs, h == 0 && self == 0);
        key.put(p.z, r.unit_kv, n.key + pos * SLICE, (__half *)a.cache + (size_t)n.at[pos] * D);
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

/* With more keys: what comes before of a lone row, its query in the latent space, and its newest key; the launches for any number of keys follow. */
static __global__ void __launch_bounds__(THREADS, 2) absorbed_kernel(const __grid_constant__ struct kcu_mla a, const __grid_constant__ near_query p, uint64_t *at)
{
    typedef fmt<KRN_Q8_0> F;
    extern __shared__ __align__(16) uint8_t shared[];
    room &s = *(room *)shared;
    query_room &r = *(query_room *)(shared + sizeof(room));
    const uint32_t self = blockIdx.x, h = blockIdx.y, t = threadIdx.x, sub = t % 8, line = t / 8;
    pdl_release();
    F::raw kb[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (sub < a.nope / 32)
            F::fetch<EARLY>(a.k_b.w + h * a.k_b.mat_pitch + (size_t)(self * PART + 2 * line + i) * a.k_b.pitch, a.nope, sub, kb[i]);
    const uint32_t pos = (uint32_t)a.b.pos[0], pair = self * (TURN / 2) + t;
    if (t == 0)
        bring_query(r, p, a, shared + p.at);
    cluster_arrive();
    float co = 1, si = 0;
    if (t < TURN / 2) {
        co = a.rope.cos[(size_t)pos * (R / 2) + pair];
        si = a.rope.sin[(size_t)pos * (R / 2) + pair];
    }
    query_norm norm;
    newest key;
    norm.start(norm_of(p.z));
    key.start(p.z, pos);
    __half *const row = (__half *)a.cache + page_row(a.b, 0, pos) * D;
    pdl_wait();
    stamp(at);
    key.take(p.z, r.unit_kv);
    norm.template stage<F>(norm_of(p.z), norm.factor(norm_of(p.z), r.unit), r.xs, h == 0 && self == 0);
    key.put(p.z, r.unit_kv, nullptr, row);
    __syncthreads();
    make_query(s, r, p, a, shared + p.at);
    float *const out = mla_absorbed(a) + (size_t)h * D;
    if (t < TURN / 2) {
        float x = r.q[a.nope / BLOCKS + 2 * t], y = r.q[a.nope / BLOCKS + 2 * t + 1];
        rotate(&x, &y, co, si);
        *(float2 *)(a.q + (size_t)h * (a.nope + R) + a.nope + 2 * pair) = *(float2 *)(out + L + 2 * pair) = make_float2(x, y);
    }
    receive(&r.nope);
    float v[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        v[i] = warp_sum(sub < a.nope / 32 ? unit_values<KRN_Q8_0>(kb[i], sub, s.nope, 0.0f) : 0.0f, 8);
    if (sub == 0)
        *(float2 *)(out + self * PART + 2 * line) = make_float2(v[0], v[1]);
}

/* The end of that: the splits of one head's keys are joined, an eighth of the latent by each block of a cluster, sent to all of them and carried out, 32
 * outputs by each. */
struct join_room {
    uint64_t mixture; /* barrier */
    __align__(16) float mixed[L / 32 * F32_STRIDE];
    __align__(16) float sum[THREADS * 4];
    float weight[MAX_SPLITS], result[32];
};

static __device__ __forceinline__ void add_weighed(float4 &v, float w, float4 x)
{
    v.x = fmaf(w, x.x, v.x), v.y = fmaf(w, x.y, v.y), v.z = fmaf(w, x.z, v.z), v.w = fmaf(w, x.w, v.w);
}

static __global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ struct kcu_mla a, const struct parts p)
{
    enum { FIRST = 4 }; /* splits that are on their way while the weights are made */
    typedef fmt<KRN_Q8_0> F;
    __shared__ join_room s;
    const uint32_t self = blockIdx.x, blocks = gridDim.x, h = blockIdx.y, t = threadIdx.x, sub = t % 8, out = self * 32 + t / 8;
    const uint32_t quads = L / 4 / blocks, groups = THREADS / quads, quad = t % quads, group = t / quads;
    pdl_release();
    F::raw vb[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        F::fetch<EARLY>(a.v_b.w + h * a.v_b.mat_pitch + (size_t)out * a.v_b.pitch, L, sub + 8 * i, vb[i]);
    if (t == 0)
        inbox_make(&s.mixture);
    __syncwarp(); /* as in route_parts.cu */
    if (t == 0)
        inbox_expect(&s.mixture, L * sizeof(float));
    cluster_arrive();
    pdl_wait();
    const int32_t *sel;
    const uint32_t keys = keys_of(a, 0, &sel), len = split_length(keys), n = (keys + len - 1) / len;
    const float *ml = p.ml + 2 * (size_t)h * p.splits, *o = p.o + (size_t)h * p.splits * L + self * (L / blocks) + 4 * quad;
    float4 first[FIRST];
#pragma unroll
    for (int j = 0; j < FIRST; j++)
        first[j] = group + j * groups < n ? *(const float4 *)(o + (size_t)(group + j * groups) * L) : make_float4(0, 0, 0, 0);
    if (t < 32) {
        float m = -INFINITY, z = 0;
        for (uint32_t i = t; i < n; i += 32)
            m = fmaxf(m, ml[2 * i]);
        m = warp_max(m, 32);
        for (uint32_t i = t; i < n; i += 32) {
            s.weight[i] = expf(ml[2 * i] - m);
            z += s.weight[i] * ml[2 * i + 1];
        }
        z = 1.0f / warp_sum(z, 32);
        for (uint32_t i = t; i < n; i += 32)
            s.weight[i] *= z;
    }
    __syncthreads();
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < FIRST; j++)
        add_weighed(v, group + j * groups < n ? s.weight[group + j * groups] : 0, first[j]);
#pragma unroll 4
    for (uint32_t i = group + FIRST * groups; i < n; i += groups)
        add_weighed(v, s.weight[i], *(const float4 *)(o + (size_t)i * L));
    *(float4 *)(s.sum + 4 * t) = v;
    __syncthreads();
    cluster_wait();
    for (uint32_t i = t; i < quads * blocks; i += THREADS) { /* neighbouring threads: the same values, to one block each */
        const uint32_t c = i / blocks, at = self * (L / blocks) + 4 * c;
        float4 all = make_float4(0, 0, 0, 0);
        for (uint32_t g = 0; g < groups; g++) {
            const float4 x = *(const float4 *)(s.sum + 4 * (g * quads + c));
            all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
        }
        send(at_block(s.mixed + at / 32 * F32_STRIDE + at % 32, i % blocks), all, at_block(&s.mixture, i % blocks));
    }
    receive(&s.mixture);
    float acc = unit_values<KRN_Q8_0>(vb[0], sub, s.mixed, 0.0f);
    acc = warp_sum(unit_values<KRN_Q8_0>(vb[1], sub + 8, s.mixed, acc), 8);
    if (sub == 0) {
        s.result[t / 8] = acc;
        a.o[(size_t)h * a.v + out] = acc;
    }
    __syncthreads();
    if (a.q8 != nullptr && t < 32)
        q8_block32(s.result[t], a.q8, a.heads * a.v, h * a.v + self * 32, t);
}

/* As far as the number of keys does not matter. */
static bool takes_shape(const struct kcu_mla *a)
{
    int device, major = 0; /* clusters exist from compute capability 9 on */
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9 && !a->apart && a->b.n <= NEAR_ROWS && a->l == L && a->r == R && a->cache_type == KCU_CACHE_F16 &&
           (a->sel == NULL || a->b.max_keys <= a->top_k) && a->k_b.type == KRN_Q8_0 && a->v_b.type == KRN_Q8_0 && a->nope % 32 == 0 &&
           a->nope <= MAX_NOPE && a->v % 32 == 0 && a->v <= MAX_V;
}

bool mla_join_takes(const struct kcu_mla *a)
{
    const uint32_t blocks = a->v / 32;
    return !a->fixed && a->b.n == 1 && takes_shape(a) && a->half == NULL && blocks > 1 && (blocks & (blocks - 1)) == 0;
}

cudaError_t mla_join(const struct kcu_launch *l, const struct kcu_mla *a, const struct parts &p)
{
    return launch(l, join_kernel, dim3(a->v / 32, a->heads), dim3(THREADS), 0, a->v / 32, *a, p);
}

bool mla_near_takes(const struct kcu_mla *a)
{
    return a->b.max_keys <= NEAR_KEYS && takes_shape(a);
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
    return a->b.n == 1 && a->heads > 0 && a->rotate && !kcu_mla_on_cores(a) && takes_shape(a) && kcu_latent_linear_takes(z, q_b) &&
           q_b->rows == a->heads * (a->nope + R) && z->q_width <= MAX_QUERY && z->l == L && z->r == R && z->kv_col % 4 == 0 && z->q_col % 4 == 0 &&
           sizeof(query_room) + query_weights(a, q_b) <= MAX_QUERY_BYTES;
}

static cudaError_t query_far(const struct kcu_launch *l, const struct kcu_mla *a, const struct kcu_latent *z, const struct kcu_mat *q_b)
{
    const near_query p = {*z, *q_b, lanes_for(q_b->type, q_b->k, true), (uint32_t)query_at(0)};
    cudaError_t e = cudaFuncSetAttribute(absorbed_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(sizeof(room) + MAX_QUERY_BYTES));
    if (e == cudaSuccess)
        e = launch(l, absorbed_kernel, dim3(BLOCKS, a->heads), dim3(THREADS), query_bytes(0, query_weights(a, q_b)), BLOCKS, *a, p, l->stamp);
    return e == cudaSuccess ? mla_attend(l, a) : e;
}

extern "C" cudaError_t kcu_mla_query(const struct kcu_launch *l, const struct kcu_mla *a, const struct kcu_latent *z, const struct kcu_mat *q_b)
{
    if (a->b.max_keys > NEAR_KEYS)
        return query_far(l, a, z, q_b);
    const uint32_t cap = (a->b.max_keys + 31) / 32 * 32;
    const near_query p = {*z, *q_b, lanes_for(q_b->type, q_b->k, true), (uint32_t)query_at(cap)};
    const size_t weights = query_weights(a, q_b);
    cudaError_t e = cudaFuncSetAttribute(near_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)query_bytes(NEAR_KEYS, weights));
    if (e != cudaSuccess)
        return e;
    return launch(l, near_kernel<true>, dim3(BLOCKS, a->heads), dim3(THREADS), query_bytes(cap, weights), BLOCKS, *a, p, cap, l->stamp);
}
