/* MLA over the latent cache, absorbed: q_abs = k_b^T q_nope, scores against cached rows [c | k_pe], the mixture of latents carried out through v_b.
 *
 * A row's keys are cut into splits whose length depends on the number of its keys alone, so its result does not depend on what else is in the batch. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/halve.cuh"
#include "kernels/cuda/norm.cuh"

enum { HEADS = 4, MAX_L = 512, SLAB = 32 /* rows at a time: bounds the scratch */, LATENT_THREADS = 512 };

/* ---- latent: norm of q_a, norm + rotation + store of the latent ---- */

static __device__ float block_rms(const float *x, uint32_t n, float eps, float *unit)
{
    __shared__ float result;
    const uint32_t quads = n / 4, rounds = (quads + blockDim.x - 1) / blockDim.x;
    for (uint32_t i = 0; i < rounds; i++) {
        const uint32_t q = i * blockDim.x + threadIdx.x;
        const float4 v = q < quads ? *((const float4 *)x + q) : make_float4(0, 0, 0, 0);
        float s = square_of(v);
        for (int o = 1; o < 8; o *= 2)
            s += __shfl_xor_sync(0xffffffffu, s, o);
        if (threadIdx.x % 8 == 0 && q < quads)
            unit[q / 8] = s;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float s = 0;
        for (uint32_t u = threadIdx.x; u < (quads + 7) / 8; u += 32)
            s += unit[u];
        s = warp_sum(s, 32);
        if (threadIdx.x == 0)
            result = 1.0f / sqrtf(s / (float)n + eps);
    }
    __syncthreads();
    return result;
}

template <int C> static __device__ void store_latent(const struct kcu_latent &a, uint32_t row, float *unit)
{
    typedef typename cache_elem<C>::t T;
    float *z = a.z + row * a.z_pitch;
    float *c = z + a.kv_col;
    const uint32_t pos = (uint32_t)a.b.pos[row], half = a.r / 2;
    T *dst = (T *)a.cache + page_row(a.b, row, pos) * (a.l + a.r);
    const float s = block_rms(c, a.l, a.eps, unit);
    for (uint32_t i = threadIdx.x; i < a.l; i += blockDim.x) {
        const float v = c[i] * s * a.kv_norm[i];
        c[i] = v;
        put(dst + i, v);
    }
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        const float u = c[a.l + 2 * i], v = c[a.l + 2 * i + 1], co = a.rope.cos[(size_t)pos * half + i],
                    si = a.rope.sin[(size_t)pos * half + i];
        const float x = __fsub_rn(__fmul_rn(u, co), __fmul_rn(v, si)), y = __fadd_rn(__fmul_rn(u, si), __fmul_rn(v, co));
        c[a.l + 2 * i] = x;
        c[a.l + 2 * i + 1] = y;
        put(dst + a.l + 2 * i, x);
        put(dst + a.l + 2 * i + 1, y);
    }
}

template <int C> static __global__ void __launch_bounds__(LATENT_THREADS) latent_kernel(const __grid_constant__ struct kcu_latent a, uint64_t *at)
{
    __shared__ float unit[512];
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.y;
    float *z = a.z + row * a.z_pitch;
    if (blockIdx.x == 0 && a.q_width != 0) {
        const float *x = z + a.q_col;
        const float s = block_rms(x, a.q_width, a.eps, unit);
        for (uint32_t base = 0; base < a.q_width; base += 4 * blockDim.x) {
            const uint32_t col = base + 4 * threadIdx.x;
            float h[4] = {0, 0, 0, 0};
            if (col < a.q_width) {
                const float4 v = *(const float4 *)(x + col), w = *(const float4 *)(a.q_norm + col);
                h[0] = v.x * s * w.x, h[1] = v.y * s * w.y, h[2] = v.z * s * w.z, h[3] = v.w * s * w.w;
                *(float4 *)(a.qr + row * a.qr_pitch + col) = make_float4(h[0], h[1], h[2], h[3]);
            }
            if (a.q8 != nullptr)
                q8_block8(h, a.q8 + row * a.q8_pitch, a.q_width, col, col < a.q_width);
            if (a.half != nullptr) { /* then this is the only round */
                const float4 v = make_float4(h[0], h[1], h[2], h[3]);
                const float f = factor_of(block_max(largest(v, 0)));
                if (threadIdx.x == 0)
                    a.half_scale[row] = 1.0f / f;
                if (col < a.q_width)
                    put_halves(v, f, (__half *)a.half + row * a.half_pitch, col);
            }
        }
        return;
    }
    store_latent<C>(a, row, unit);
}

extern "C" cudaError_t kcu_latent(const struct kcu_launch *l, const struct kcu_latent *a)
{
    const bool q = a->q_width != 0;
    if (a->b.n == 0 || (!q && !a->store))
        return cudaSuccess;
    if (a->q_width > 16384 || a->l > 16384 || (a->half != NULL && (a->q_width > KCU_LATENT_HALVES || a->q_width % 16 != 0)))
        return cudaErrorInvalidValue;
    if (latent_many_takes(a))
        return latent_many(l, a);
    const dim3 grid(q && a->store ? 2 : 1, a->b.n), block(a->q_width <= 2 * LATENT_THREADS ? LATENT_THREADS / 2 : LATENT_THREADS); /* as few as make one round: more rows at once */
    static_assert(KCU_LATENT_HALVES == 4 * LATENT_THREADS, "one round");
    switch (a->cache_type) {
    case KCU_CACHE_F32: return launch(l, latent_kernel<KCU_CACHE_F32>, grid, block, 0, 0, *a, l->stamp);
    case KCU_CACHE_F16: return launch(l, latent_kernel<KCU_CACHE_F16>, grid, block, 0, 0, *a, l->stamp);
    default: return launch(l, latent_kernel<KCU_CACHE_BF16>, grid, block, 0, 0, *a, l->stamp);
    }
}

/* One row: the norm of q_a and its int8 form made by every block of the projection that follows, in shared memory; one block more stores the latent.
 * Block 0 writes what the two ops alone would have written. */
enum { MAX_Q = 2048, ROW_THREADS = 256 };

static __global__ void __launch_bounds__(ROW_THREADS)
    latent_linear_kernel(const __grid_constant__ struct kcu_latent a, const struct kcu_mat m, float *y, uint32_t lpr, uint64_t *at)
{
    typedef fmt<KRN_Q8_0> F;
    __shared__ __align__(16) uint8_t xs[MAX_Q / 32 * 48];
    __shared__ float unit[MAX_Q / 32];
    pdl_release();
    if (blockIdx.x == gridDim.x - 1) {
        pdl_wait();
        store_latent<KCU_CACHE_F16>(a, 0, unit);
        return;
    }
    const uint32_t r = blockIdx.x * (ROW_THREADS / lpr) + threadIdx.x / lpr, sub = threadIdx.x % lpr;
    const bool on = r < m.rows;
    const float acc = dot_staged<F, 4>(m.w + (size_t)(on ? r : 0) * m.pitch, on, m.k, sub, lpr, xs, [&] {
        const struct kcu_norm q = {a.z + a.q_col, a.q_norm, a.qr, a.q8, a.q_width, a.eps};
        norm_row<MAX_Q / 4 / ROW_THREADS, ROW_THREADS> norm;
        norm.start(q);
        pdl_wait();
        stamp(at);
        norm.stage<F>(q, norm.factor(q, unit), xs, blockIdx.x == 0);
        __syncthreads();
    });
    const float v = warp_sum(acc, lpr);
    if (on && sub == 0)
        y[r] = v;
}

extern "C" bool kcu_latent_linear_takes(const struct kcu_latent *a, const struct kcu_mat *m)
{
    return a->b.n == 1 && a->cache_type == KCU_CACHE_F16 && a->q_width <= MAX_Q && a->q_width % 32 == 0 && a->q8 != NULL && a->store &&
           a->l <= MAX_Q && m->w != NULL && m->type == KRN_Q8_0 && m->k == a->q_width;
}

extern "C" cudaError_t kcu_latent_linear(const struct kcu_launch *l, const struct kcu_latent *a, const struct kcu_mat *m, float *y)
{
    const uint32_t lpr = lanes_for(m->type, m->k, true), per = ROW_THREADS / lpr;
    divide_alike(latent_linear_kernel);
    return launch(l, latent_linear_kernel, dim3((m->rows + per - 1) / per + 1), dim3(ROW_THREADS), 0, 0, *a, *m, y, lpr, l->stamp);
}

/* ---- rotation of queries ---- */

static __global__ void rope_kernel(const struct kcu_batch b, const struct kcu_rope rope, float *q, size_t pitch, uint32_t heads,
                                   uint32_t head_dim, uint32_t offset, bool interleaved, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, h = i / rope.half, p = i % rope.half;
    if (h >= heads)
        return;
    float *x = q + blockIdx.y * pitch + (size_t)h * head_dim + offset;
    const size_t angle = (size_t)b.pos[blockIdx.y] * rope.half + p;
    rotate(interleaved ? x + 2 * p : x + p, interleaved ? x + 2 * p + 1 : x + p + rope.half, rope.cos[angle], rope.sin[angle]);
}

extern "C" cudaError_t kcu_rope_q(const struct kcu_launch *l, const struct kcu_batch *b, const struct kcu_rope *rope, float *q,
                                  size_t pitch, uint32_t heads, uint32_t head_dim, uint32_t offset, bool interleaved)
{
    if (b->n == 0 || heads == 0)
        return cudaSuccess;
    return launch(l, rope_kernel, dim3((heads * rope->half + 127) / 128, b->n), dim3(128), 0, 0, *b, *rope, q, pitch, heads, head_dim,
                  offset, interleaved, l->stamp);
}

/* ---- attention ---- */

template <int W>
static __global__ void __launch_bounds__(256)
    absorb_kernel(const __grid_constant__ struct kcu_mla a, const struct parts p, uint32_t lpr, uint64_t *at)
{
    __shared__ __align__(16) float xs[MAX_L / 32 * F32_STRIDE];
    pdl_release();
    const uint32_t h = blockIdx.y, row = p.row0 + blockIdx.z, i = blockIdx.x * (256 / lpr) + threadIdx.x / lpr, sub = threadIdx.x % lpr;
    const bool on = i < a.l;
    float *q = a.q + row * a.q_pitch + (size_t)h * (a.nope + a.r), *out = p.q + ((size_t)blockIdx.z * a.heads + h) * (a.l + a.r),
          acc[1] = {0};
    const uint8_t *w = a.k_b.w + h * a.k_b.mat_pitch + (size_t)(on ? i : 0) * a.k_b.pitch;
    if constexpr (W == KRN_Q8_0) {
        acc[0] = dot_values<W, 1>(w, on, a.nope, sub, lpr, xs, [&] {
            pdl_wait();
            stamp(at);
            for (uint32_t j = threadIdx.x; j < a.nope; j += 256)
                xs[j / 32 * F32_STRIDE + j % 32] = q[j];
            __syncthreads();
        });
    } else {
        stamp_early(at);
        dot_type<W, false, 1>(a.k_b.type, w, on, a.k_b.k, sub, lpr, q, 0, nullptr, 0, 1, acc);
    }
    const float v = warp_sum(acc[0], lpr);
    if (on && sub == 0)
        out[i] = v;
    if (blockIdx.x != 0)
        return;
    float *pe = q + a.nope;
    for (uint32_t j = threadIdx.x; j < a.r / 2; j += blockDim.x) {
        const size_t angle = (size_t)a.b.pos[row] * a.rope.half + j;
        if (a.rotate)
            rotate(pe + 2 * j, pe + 2 * j + 1, a.rope.cos[angle], a.rope.sin[angle]);
        out[a.l + 2 * j] = pe[2 * j];
        out[a.l + 2 * j + 1] = pe[2 * j + 1];
    }
}

/* blockIdx: split, group of heads, row. D: l + r where it is known, so that loops unroll; 0: any. Scores: a warp has two keys of a tile. Mixture: one
 * half of the threads has the first 16 keys of a tile, the other the rest; the halves meet at the end. */
enum { SPLIT_THREADS = 512, WARP_KEYS = TILE / (SPLIT_THREADS / 32) };

template <int C, int D>
static __global__ void __launch_bounds__(SPLIT_THREADS) split_kernel(const __grid_constant__ struct kcu_mla a, const struct parts p)
{
    typedef typename cache_elem<C>::t T;
    extern __shared__ float qs[]; /* [HEADS][d], afterwards the second half's mixtures */
    __shared__ const T *key[TILE];
    __shared__ float prob[HEADS][TILE], grow[HEADS], top[HEADS], sum[HEADS];
    pdl_release();
    pdl_wait();
    const int32_t *sel;
    const uint32_t row = p.row0 + blockIdx.z, keys = keys_of(a, row, &sel), len = split_length(keys), k0 = blockIdx.x * len,
                   k1 = k0 + len < keys ? k0 + len : keys;
    if (k0 >= keys)
        return;
    const uint32_t d = D != 0 ? D : a.l + a.r, h0 = blockIdx.y * HEADS, nh = a.heads - h0 < HEADS ? a.heads - h0 : HEADS,
                   warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t dim = 2 * (threadIdx.x % 256), second = threadIdx.x / 256;
    const float *q = p.q + ((size_t)blockIdx.z * a.heads + h0) * d;
    for (uint32_t i = threadIdx.x; i < HEADS * d; i += SPLIT_THREADS)
        qs[i] = i < nh * d ? q[i] * a.scale : 0;
    if (threadIdx.x < HEADS) {
        top[threadIdx.x] = -INFINITY;
        sum[threadIdx.x] = 0;
    }
    float acc[HEADS][2] = {};
    for (uint32_t t = k0; t < k1; t += TILE) {
        const uint32_t n = k1 - t < TILE ? k1 - t : TILE;
        if (t != k0)
            __syncthreads();
        if (threadIdx.x < TILE) { /* past the end: any valid row, its probability is zero */
            const uint32_t j = t + (threadIdx.x < n ? threadIdx.x : 0);
            key[threadIdx.x] = (const T *)a.cache + page_row(a.b, row, sel != nullptr ? (uint32_t)sel[j] : j) * d;
        }
        __syncthreads();
        float s[WARP_KEYS][HEADS] = {};
#pragma unroll 9
        for (uint32_t i = 2 * lane; i < d; i += 64) {
            float2 k[WARP_KEYS];
#pragma unroll
            for (int j = 0; j < WARP_KEYS; j++)
                k[j] = pair_of(key[warp * WARP_KEYS + j] + i);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float2 v = *(const float2 *)(qs + h * d + i);
#pragma unroll
                for (int j = 0; j < WARP_KEYS; j++)
                    s[j][h] = fmaf(k[j].y, v.y, fmaf(k[j].x, v.x, s[j][h]));
            }
        }
#pragma unroll
        for (int j = 0; j < WARP_KEYS; j++)
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float v = warp_sum(s[j][h], 32);
                if (lane == 0)
                    prob[h][warp * WARP_KEYS + j] = warp * WARP_KEYS + j < n ? v : -INFINITY;
            }
        __syncthreads();
        if (warp < HEADS) {
            const float v = prob[warp][lane], m = fmaxf(top[warp], warp_max(v, 32)), e = expf(v - m), z = warp_sum(e, 32);
            prob[warp][lane] = e;
            __syncwarp();
            if (lane == 0) {
                const float g = expf(top[warp] - m);
                grow[warp] = g;
                sum[warp] = sum[warp] * g + z;
                top[warp] = m;
            }
        }
        __syncthreads();
        if (dim >= a.l)
            continue;
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            acc[h][0] *= grow[h], acc[h][1] *= grow[h];
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) {
            const uint32_t j = second * (TILE / 2) + i;
            const float2 v = pair_of(key[j] + dim);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                acc[h][0] = fmaf(prob[h][j], v.x, acc[h][0]);
                acc[h][1] = fmaf(prob[h][j], v.y, acc[h][1]);
            }
        }
    }
    __syncthreads(); /* qs has served */
    if (second == 1 && dim < a.l)
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            *(float2 *)(qs + h * a.l + dim) = make_float2(acc[h][0], acc[h][1]);
    __syncthreads();
    if (second == 1)
        return;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const size_t at = ((size_t)blockIdx.z * a.heads + h0 + h) * p.splits + blockIdx.x;
        if ((uint32_t)h >= nh)
            continue;
        if (dim < a.l) {
            const float2 o = *(const float2 *)(qs + h * a.l + dim);
            *(float2 *)(p.o + at * a.l + dim) = make_float2(acc[h][0] + o.x, acc[h][1] + o.y);
        }
        if (threadIdx.x == 0) {
            p.ml[2 * at] = top[h];
            p.ml[2 * at + 1] = sum[h];
        }
    }
}

/* Join the splits of one head of one row: the mixture of latents to `mixed`, element i at place(i). All threads of the block call. */
template <class P>
static __device__ __forceinline__ void join_splits(const struct kcu_mla &a, const struct parts &p, uint32_t h, uint32_t row, float *weight,
                                                   float *mixed, P place)
{
    const int32_t *sel;
    const uint32_t keys = keys_of(a, row, &sel), len = split_length(keys), n = (keys + len - 1) / len;
    const size_t at = ((size_t)blockIdx.z * a.heads + h) * p.splits;
    if (threadIdx.x < 32) {
        float m = -INFINITY, z = 0;
        for (uint32_t i = threadIdx.x; i < n; i += 32)
            m = fmaxf(m, p.ml[2 * (at + i)]);
        m = warp_max(m, 32);
        for (uint32_t i = threadIdx.x; i < n; i += 32) {
            weight[i] = expf(p.ml[2 * (at + i)] - m);
            z += weight[i] * p.ml[2 * (at + i) + 1];
        }
        z = 1.0f / warp_sum(z, 32);
        for (uint32_t i = threadIdx.x; i < n; i += 32)
            weight[i] *= z;
    }
    float v[2][8]; /* the first splits are on their way while the weights are made */
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int s = 0; s < 8; s++)
            v[j][s] = threadIdx.x + j * 256 < a.l && s < n ? p.o[(at + s) * a.l + threadIdx.x + j * 256] : 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t i = threadIdx.x + j * 256;
        if (i >= a.l)
            continue;
        float x = 0;
#pragma unroll
        for (int s = 0; s < 8; s++)
            if (s < n)
                x = fmaf(weight[s], v[j][s], x);
#pragma unroll 8
        for (uint32_t s = 8; s < n; s++)
            x = fmaf(weight[s], p.o[(at + s) * a.l + i], x);
        mixed[place(i)] = x;
    }
    __syncthreads();
}

/* Join the splits and carry the mixture out through v_b: 32 outputs of one head per block. */
template <int W> static __global__ void __launch_bounds__(256) output_kernel(const __grid_constant__ struct kcu_mla a, const struct parts p)
{
    __shared__ float weight[MAX_SPLITS], result[32];
    __shared__ __align__(16) float mixed[MAX_L / 32 * F32_STRIDE];
    pdl_release();
    const uint32_t h = blockIdx.y, row = p.row0 + blockIdx.z, r = blockIdx.x * 32 + threadIdx.x / 8, sub = threadIdx.x % 8;
    const bool on = r < a.v;
    const uint8_t *w = a.v_b.w + h * a.v_b.mat_pitch + (size_t)(on ? r : 0) * a.v_b.pitch;
    float acc[1] = {0};
    if constexpr (W == KRN_Q8_0) {
        acc[0] = dot_values<W, 2>(w, on, a.l, sub, 8, mixed, [&] {
            pdl_wait();
            join_splits(a, p, h, row, weight, mixed, [](uint32_t i) { return i / 32 * F32_STRIDE + i % 32; });
        });
    } else {
        pdl_wait();
        join_splits(a, p, h, row, weight, mixed, [](uint32_t i) { return i; });
        dot_type<W, false, 1>(a.v_b.type, w, on, a.v_b.k, sub, 8, mixed, 0, nullptr, 0, 1, acc);
    }
    const float v = warp_sum(acc[0], 8);
    if (sub == 0) {
        result[threadIdx.x / 8] = on ? v : 0;
        if (on)
            a.o[row * a.o_pitch + (size_t)h * a.v + r] = v;
    }
    if (a.q8 == nullptr)
        return;
    __syncthreads();
    if (threadIdx.x < 32)
        q8_block32(result[threadIdx.x], a.q8 + row * a.q8_pitch, a.heads * a.v, h * a.v + blockIdx.x * 32, threadIdx.x);
}

static uint32_t splits_for(uint32_t max_keys)
{
    const uint32_t len = split_length(max_keys);
    return max_keys <= TILE * MAX_SPLITS ? (max_keys + len - 1) / len : MAX_SPLITS;
}

extern "C" size_t kcu_mla_scratch(uint32_t rows, uint32_t heads, uint32_t l, uint32_t r, uint32_t max_keys)
{
    const size_t few = (size_t)(rows < SLAB ? rows : SLAB) * heads * (l + r + (size_t)splits_for(max_keys) * (l + 2)),
                 many = l + r == FLASH_D ? mla_batch_scratch(rows, heads, max_keys) : 0;
    return few * sizeof(float) > many ? few * sizeof(float) : many;
}

template <int C> static cudaError_t split(const struct kcu_launch *l, const struct kcu_mla *a, const struct parts &p, uint32_t rows)
{
    const uint32_t d = a->l + a->r;
    const dim3 grid(p.splits, (a->heads + HEADS - 1) / HEADS, rows);
    if (d == 576)
        return launch(l, split_kernel<C, 576>, grid, dim3(SPLIT_THREADS), HEADS * d * sizeof(float), 0, *a, p);
    return launch(l, split_kernel<C, 0>, grid, dim3(SPLIT_THREADS), HEADS * d * sizeof(float), 0, *a, p);
}

static bool all_q8_0(const struct kcu_mla *a)
{
    return a->k_b.type == KRN_Q8_0 && a->v_b.type == KRN_Q8_0 && a->nope <= MAX_L;
}

static struct parts parts_of(const struct kcu_mla *a, uint32_t row0, uint32_t rows)
{
    struct parts p = {};
    p.row0 = row0;
    p.splits = splits_for(a->b.max_keys);
    p.q = mla_absorbed(*a);
    p.o = p.q + (size_t)rows * a->heads * (a->l + a->r);
    p.ml = p.o + (size_t)rows * a->heads * p.splits * a->l;
    return p;
}

/* Rows whose queries are absorbed: attend, carry out. */
static cudaError_t attend(const struct kcu_launch *l, const struct kcu_mla *a, const struct parts &p, uint32_t rows)
{
    const bool lone = rows == 1 && mla_join_takes(a);
    cudaError_t e = lone && a->sel == NULL           ? mla_lone(l, a, p)
                    : a->cache_type == KCU_CACHE_F32 ? split<KCU_CACHE_F32>(l, a, p, rows)
                    : a->cache_type == KCU_CACHE_F16 ? split<KCU_CACHE_F16>(l, a, p, rows)
                                                     : split<KCU_CACHE_BF16>(l, a, p, rows);
    if (e != cudaSuccess)
        return e;
    if (lone)
        return mla_join(l, a, p);
    return launch(l, all_q8_0(a) ? output_kernel<KRN_Q8_0> : output_kernel<ANY_TYPE>, dim3((a->v + 31) / 32, a->heads, rows), dim3(256), 0, 0, *a,
                  p);
}

cudaError_t mla_attend(const struct kcu_launch *l, const struct kcu_mla *a)
{
    return attend(l, a, parts_of(a, 0, 1), 1);
}

/* Rows [row0, row0 + rows): absorb, attend, carry out. */
static cudaError_t slab(const struct kcu_launch *l, uint64_t *stamp, const struct kcu_mla *a, uint32_t row0, uint32_t rows)
{
    const uint32_t lpr = lanes_for(a->k_b.type, a->k_b.k, false), per = 256 / lpr;
    const struct parts p = parts_of(a, row0, rows);
    cudaError_t e = launch(l, all_q8_0(a) ? absorb_kernel<KRN_Q8_0> : absorb_kernel<ANY_TYPE>, dim3((a->l + per - 1) / per, a->heads, rows),
                           dim3(256), 0, 0, *a, p, lpr, stamp);
    return e == cudaSuccess ? attend(l, a, p, rows) : e;
}

extern "C" uint32_t kcu_mla_kernels(const struct kcu_mla *a)
{
    return !mla_batch_takes(a) && mla_near_takes(a) ? 1 : 3 * ((a->b.n + SLAB - 1) / SLAB);
}

extern "C" cudaError_t kcu_mla(const struct kcu_launch *l, const struct kcu_mla *a)
{
    if (a->b.n == 0 || a->heads == 0)
        return cudaSuccess;
    if (a->l > MAX_L || a->l % 2 != 0 || a->r % 2 != 0)
        return cudaErrorInvalidValue;
    if (mla_batch_takes(a))
        return mla_batch(l, a);
    if (mla_near_takes(a))
        return mla_near(l, a);
    for (uint32_t row = 0; row < a->b.n; row += SLAB) {
        cudaError_t e = slab(l, row == 0 ? l->stamp : NULL, a, row, a->b.n - row < SLAB ? a->b.n - row : SLAB);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}
