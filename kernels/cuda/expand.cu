/* Expanded attention: keys and values of a head made from the latents, K = k_b^T c and V = v_b c, then ordinary attention, all in f32. What attention
 * means, computed as it is written down: slower than the absorbed form, and nothing of its algebra is taken on trust.
 *
 * A block has one head, up to 64 rows and one split of the keys. Rows of one sequence share what is made from the latents; a row's splits, and the order
 * of its sums within one, depend on the number of its own keys alone, so its result does not depend on what else is in the batch. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/values.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    PER_WARP = 8, /* rows of a warp */
    ROWS = WARPS * PER_WARP,
    KEYS = 32, /* made at a time: one per lane */
    MAX_COLS = 2 * THREADS,
    MAX_HEAD = 256,
    QUADS = MAX_HEAD / 128, /* of a value's columns, per lane */
    SLAB_ROWS = 64,         /* rows of a launch: bounds the scratch */
    SPLITS = 16,
    SHORTEST = 64,
};

struct expand {
    const float *b; /* [head][l4][nope + v]: k_b and v_b side by side, latent-major, as f32; rows past l are zero */
    float *o, *ml;  /* [row - row0][head][split][v] mixtures, not normalised, and [..][2]: maximum, sum */
    uint32_t row0, rows, splits, per /* rows of a block */, l4, wide, tall; /* floats of a key, of the tile */
};

static __host__ __device__ inline uint32_t four(uint32_t n)
{
    return (n + 3) & ~3u;
}

static __host__ __device__ inline uint32_t length_of(uint32_t keys)
{
    uint32_t n = SHORTEST;
    while (keys > n * SPLITS)
        n *= 2;
    return n;
}

/* ---- the heads' matrices ---- */

/* A warp per row: those of k_b, zeros up to l4, those of v_b. blockIdx.y: head. */
static __global__ void __launch_bounds__(THREADS) matrix_kernel(const __grid_constant__ struct kcu_mla a, const struct expand x, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t i = blockIdx.x * WARPS + threadIdx.x / 32, h = blockIdx.y, cols = a.nope + a.v;
    float *b = (float *)x.b + (size_t)h * x.l4 * cols;
    if (i >= x.l4 + a.v)
        return;
    if (i >= a.l && i < x.l4) {
        for (uint32_t j = threadIdx.x % 32; j < cols; j += 32)
            b[(size_t)i * cols + j] = 0;
        return;
    }
    const bool key = i < a.l;
    const struct kcu_mat &m = key ? a.k_b : a.v_b;
    const uint32_t row = key ? i : i - x.l4;
    const uint8_t *w = m.w + h * m.mat_pitch + (size_t)row * m.pitch;
    values_of(m.type, w, m.k, threadIdx.x % 32, 32, key ? b + (size_t)i * cols : b + a.nope + row, key ? 1 : cols);
}

/* ---- attention ---- */

/* Rows [row, row + n) of one sequence that see all keys up to their own; of a row that selects, that row alone. */
struct run {
    uint32_t row, n, keys, k0, k1;
    const int32_t *sel;
};

static __device__ __forceinline__ run find_run(const struct kcu_mla &a, uint32_t row, uint32_t end)
{
    run r;
    const int32_t *other;
    r.row = row;
    r.n = 1;
    r.keys = keys_of(a, row, &r.sel);
    const uint32_t len = length_of(r.keys);
    while (r.sel == nullptr && row + r.n < end) {
        const uint32_t next = row + r.n, keys = keys_of(a, next, &other);
        if (other != nullptr || a.b.table[next] != a.b.table[row] || keys < r.keys || length_of(keys) != len)
            break;
        r.keys = keys;
        r.n++;
    }
    r.k0 = blockIdx.x * len;
    r.k1 = r.k0 + len < r.keys ? r.k0 + len : r.keys;
    return r;
}

/* Cached row of key t + j of the run; past its end any valid one. */
template <class T> static __device__ __forceinline__ const T *cached(const struct kcu_mla &a, const run &r, uint32_t t, uint32_t j)
{
    const uint32_t k = t + j < r.k1 ? t + j : r.k1 - 1;
    return (const T *)a.cache + page_row(a.b, r.row, r.sel != nullptr ? (uint32_t)r.sel[k] : k) * (a.l + a.r);
}

/* The latents of a tile of keys into shared memory, [key][l4]. */
template <class T> static __device__ __forceinline__ void load_latents(const struct kcu_mla &a, const expand &x, const run &r, uint32_t t, float *tile)
{
    for (uint32_t j = threadIdx.x / 32; j < KEYS; j += WARPS) {
        const T *c = cached<T>(a, r, t, j);
        for (uint32_t i = 2 * (threadIdx.x % 32); i < x.l4; i += 64)
            *(float2 *)(tile + j * x.l4 + i) = i < a.l ? pair_of(c + i) : make_float2(0, 0);
    }
}

/* Two neighbouring columns of all keys of the tile, sums along the latent in order. */
static __device__ __forceinline__ void make_columns(const expand &x, const float *b, uint32_t cols, const float *tile, float2 out[KEYS])
{
    const uint32_t col = 2 * threadIdx.x < cols ? 2 * threadIdx.x : 0;
    float2 w[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        w[q] = *(const float2 *)(b + (size_t)q * cols + col);
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        out[j] = make_float2(0, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < x.l4; i += 4) {
        float2 next[4];
        const uint32_t ahead = i + 4 < x.l4 ? i + 4 : i;
#pragma unroll
        for (int q = 0; q < 4; q++)
            next[q] = *(const float2 *)(b + (size_t)(ahead + q) * cols + col);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float4 c = *(const float4 *)(tile + j * x.l4 + i);
            out[j].x = fmaf(c.w, w[3].x, fmaf(c.z, w[2].x, fmaf(c.y, w[1].x, fmaf(c.x, w[0].x, out[j].x))));
            out[j].y = fmaf(c.w, w[3].y, fmaf(c.z, w[2].y, fmaf(c.y, w[1].y, fmaf(c.x, w[0].y, out[j].y))));
        }
#pragma unroll
        for (int q = 0; q < 4; q++)
            w[q] = next[q];
    }
}

/* Latents to keys [key][wide] and, behind them, values [key][v], in the same place. All threads call. */
template <class T>
static __device__ __forceinline__ void make_tile(const struct kcu_mla &a, const expand &x, const float *b, const run &r, uint32_t t, float *tile)
{
    const uint32_t cols = a.nope + a.v, dim = a.nope + a.r, col = 2 * threadIdx.x;
    float2 made[KEYS];
    __syncthreads(); /* the tile before has been used */
    load_latents<T>(a, x, r, t, tile);
    __syncthreads();
    make_columns(x, b, cols, tile, made);
    __syncthreads();
    float *values = tile + KEYS * x.wide;
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        if (col < a.nope)
            *(float2 *)(tile + j * x.wide + col) = made[j];
        else if (col < cols)
            *(float2 *)(values + j * a.v + col - a.nope) = made[j];
    for (uint32_t j = threadIdx.x / 32; j < KEYS; j += WARPS) {
        const T *pe = cached<T>(a, r, t, j) + a.l;
        for (uint32_t i = threadIdx.x % 32; i < four(dim) - a.nope; i += 32)
            tile[j * x.wide + a.nope + i] = i < a.r ? one_of(pe + i) : 0;
    }
    __syncthreads();
}

/* What a warp keeps of its rows: those at warp, warp + WARPS, ... of the run. The lane's columns of the mixture are 4 * lane + 128 * c. */
struct mine {
    uint32_t n;
    uint32_t own[PER_WARP]; /* keys that are seen */
    float top[PER_WARP], sum[PER_WARP];
    float4 o[PER_WARP][QUADS];
};

/* Scores of the lane's key for the warp's rows, to probabilities p; mixtures so far shrink by what the maximum has grown. */
static __device__ __forceinline__ void weigh(const struct kcu_mla &a, const expand &x, const float *q, const float *tile, uint32_t t, mine &m, float p[PER_WARP])
{
    const uint32_t lane = threadIdx.x % 32, dim = four(a.nope + a.r);
    const float *key = tile + lane * x.wide;
    q += threadIdx.x / 32 * dim;
#pragma unroll
    for (int i = 0; i < PER_WARP; i++)
        p[i] = 0;
    for (uint32_t d = 0; d < dim; d += 4) {
        const float4 k = *(const float4 *)(key + d);
#pragma unroll
        for (int i = 0; i < PER_WARP; i++)
            if (i < (int)m.n) {
                const float4 v = *(const float4 *)(q + i * WARPS * dim + d);
                p[i] = fmaf(k.w, v.w, fmaf(k.z, v.z, fmaf(k.y, v.y, fmaf(k.x, v.x, p[i]))));
            }
    }
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        if (i >= (int)m.n || t >= m.own[i]) { /* this row sees none of them */
            p[i] = 0;
            continue;
        }
        const float s = t + lane < m.own[i] ? p[i] * a.scale : -INFINITY, top = fmaxf(m.top[i], warp_max(s, 32)), g = expf(m.top[i] - top);
        p[i] = expf(s - top);
        m.sum[i] = m.sum[i] * g + warp_sum(p[i], 32);
        m.top[i] = top;
#pragma unroll
        for (int c = 0; c < QUADS; c++)
            m.o[i][c].x *= g, m.o[i][c].y *= g, m.o[i][c].z *= g, m.o[i][c].w *= g;
    }
}

static __device__ __forceinline__ void mix(const struct kcu_mla &a, const float *values, const float p[PER_WARP], mine &m)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 4
    for (int j = 0; j < KEYS; j++) {
        float4 v[QUADS];
#pragma unroll
        for (int c = 0; c < QUADS; c++)
            v[c] = 4 * lane + 128 * c < a.v ? *(const float4 *)(values + j * a.v + 4 * lane + 128 * c) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < PER_WARP; i++)
            if (i < (int)m.n) {
                const float w = __shfl_sync(0xffffffffu, p[i], j);
#pragma unroll
                for (int c = 0; c < QUADS; c++) {
                    m.o[i][c].x = fmaf(w, v[c].x, m.o[i][c].x), m.o[i][c].y = fmaf(w, v[c].y, m.o[i][c].y);
                    m.o[i][c].z = fmaf(w, v[c].z, m.o[i][c].z), m.o[i][c].w = fmaf(w, v[c].w, m.o[i][c].w);
                }
            }
    }
}

static __device__ __forceinline__ void leave(const struct kcu_mla &a, const expand &x, const run &r, const mine &m)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        if (i >= (int)m.n || r.k0 >= m.own[i])
            continue;
        const uint32_t row = r.row + threadIdx.x / 32 + i * WARPS;
        const size_t at = ((size_t)(row - x.row0) * a.heads + blockIdx.y) * x.splits + blockIdx.x;
#pragma unroll
        for (int c = 0; c < QUADS; c++)
            if (4 * lane + 128 * c < a.v)
                *(float4 *)(x.o + at * a.v + 4 * lane + 128 * c) = m.o[i][c];
        if (lane == 0)
            *(float2 *)(x.ml + 2 * at) = make_float2(m.top[i], m.sum[i]);
    }
}

/* blockIdx: split, head, rows. */
template <int C>
static __global__ void __launch_bounds__(THREADS, 1) expand_kernel(const __grid_constant__ struct kcu_mla a, const __grid_constant__ struct expand x)
{
    typedef typename cache_elem<C>::t T;
    extern __shared__ __align__(16) float shared[]; /* the tile, queries */
    pdl_release();
    pdl_wait();
    const uint32_t h = blockIdx.y, dim = a.nope + a.r, from = x.row0 + blockIdx.z * x.per, last = x.row0 + x.rows,
                   end = from + x.per < last ? from + x.per : last;
    const float *b = x.b + (size_t)h * x.l4 * (a.nope + a.v);
    float *q = shared + x.tall;
    for (run r = {from, 0}; r.row + r.n < end;) {
        r = find_run(a, r.row + r.n, end);
        if (r.k0 >= r.keys)
            continue;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < r.n * four(dim); i += THREADS)
            q[i] = i % four(dim) < dim ? a.q[(r.row + i / four(dim)) * a.q_pitch + (size_t)h * dim + i % four(dim)] : 0;
        mine m;
        const uint32_t warp = threadIdx.x / 32;
        m.n = r.n > warp ? (r.n - warp + WARPS - 1) / WARPS : 0;
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            m.own[i] = i >= (int)m.n ? 0 : r.sel != nullptr ? r.k1 : (uint32_t)a.b.pos[r.row + warp + i * WARPS] + 1;
            if (m.own[i] > r.k1)
                m.own[i] = r.k1;
            m.top[i] = -INFINITY;
            m.sum[i] = 0;
#pragma unroll
            for (int c = 0; c < QUADS; c++)
                m.o[i][c] = make_float4(0, 0, 0, 0);
        }
        for (uint32_t t = r.k0; t < r.k1; t += KEYS) {
            float p[PER_WARP];
            make_tile<T>(a, x, b, r, t, shared);
            weigh(a, x, q, shared, t, m, p);
            mix(a, shared + KEYS * x.wide, p, m);
        }
        leave(a, x, r, m);
    }
}

/* A block per head and row: the splits together. */
static __global__ void __launch_bounds__(MAX_HEAD) together_kernel(const __grid_constant__ struct kcu_mla a, const __grid_constant__ struct expand x)
{
    pdl_release();
    pdl_wait();
    const int32_t *sel;
    const uint32_t h = blockIdx.x, row = x.row0 + blockIdx.y, d = threadIdx.x, keys = keys_of(a, row, &sel), len = length_of(keys),
                   n = (keys + len - 1) / len;
    const size_t at = ((size_t)blockIdx.y * a.heads + h) * x.splits;
    float top = -INFINITY, z = 0, v = 0;
    for (uint32_t s = 0; s < n; s++)
        top = fmaxf(top, x.ml[2 * (at + s)]);
    for (uint32_t s = 0; s < n; s++) {
        const float w = expf(x.ml[2 * (at + s)] - top);
        z = fmaf(w, x.ml[2 * (at + s) + 1], z);
        if (d < a.v)
            v = fmaf(w, x.o[(at + s) * a.v + d], v);
    }
    v /= z;
    if (d >= a.v)
        return;
    a.o[row * a.o_pitch + (size_t)h * a.v + d] = v;
    if (a.q8 != nullptr) /* then v is a multiple of 32: whole warps are here */
        q8_block32(v, a.q8 + row * a.q8_pitch, a.heads * a.v, h * a.v + d / 32 * 32, d % 32);
}

/* ---- the host's side ---- */

static uint32_t splits_for(uint32_t max_keys)
{
    const uint32_t n = (max_keys + SHORTEST - 1) / SHORTEST;
    return n < SPLITS ? n : SPLITS;
}

/* Floats of a key in the tile: eight lanes that read 16 bytes of neighbouring keys meet no bank twice. */
static uint32_t key_pitch(uint32_t dim)
{
    const uint32_t n = four(dim) / 4;
    return 4 * (n + 1 + n % 2);
}

extern "C" bool kcu_mla_expands(uint32_t nope, uint32_t l, uint32_t r, uint32_t v)
{
    return v % 4 == 0 && v <= MAX_HEAD && nope % 4 == 0 && nope + v <= MAX_COLS && l % 2 == 0 && l <= 1024 && r % 2 == 0 && nope + r <= 512;
}

extern "C" size_t kcu_mla_expanded_scratch(uint32_t rows, uint32_t heads, uint32_t nope, uint32_t l, uint32_t v, uint32_t max_keys)
{
    const size_t slab = rows < SLAB_ROWS ? rows : SLAB_ROWS;
    return ((size_t)heads * four(l) * (nope + v) + slab * heads * splits_for(max_keys) * (v + 2)) * sizeof(float);
}

static uint32_t slabs(uint32_t rows)
{
    return (rows + SLAB_ROWS - 1) / SLAB_ROWS;
}

extern "C" uint32_t kcu_mla_expanded_kernels(const struct kcu_mla *a)
{
    return 1 + a->rotate + 2 * slabs(a->b.n);
}

/* Rows of a block: all that share a sequence where there are prompts, as far as shared memory reaches; else each its own block. */
static cudaError_t cut_rows(const struct kcu_mla *a, struct expand *x, size_t *bytes)
{
    int device, most = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    x->per = a->b.prompt_tiles != 0 ? ROWS : 1;
    do
        *bytes = (x->tall + (size_t)x->per * four(a->nope + a->r)) * sizeof(float);
    while (*bytes > (size_t)most && (x->per /= 2) > 0);
    return e != cudaSuccess ? e : x->per == 0 ? cudaErrorInvalidValue : cudaSuccess;
}

template <int C> static cudaError_t attend(const struct kcu_launch *l, const struct kcu_mla *a, const struct expand &x, size_t bytes)
{
    cudaError_t e = cudaFuncSetAttribute(expand_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const dim3 grid(x.splits, a->heads, (x.rows + x.per - 1) / x.per);
    return e != cudaSuccess ? e : launch(l, expand_kernel<C>, grid, dim3(THREADS), bytes, 0, *a, x);
}

static cudaError_t some_rows(const struct kcu_launch *l, const struct kcu_mla *a, const struct expand &x, size_t bytes)
{
    cudaError_t e = a->cache_type == KCU_CACHE_F32   ? attend<KCU_CACHE_F32>(l, a, x, bytes)
                    : a->cache_type == KCU_CACHE_F16 ? attend<KCU_CACHE_F16>(l, a, x, bytes)
                                                     : attend<KCU_CACHE_BF16>(l, a, x, bytes);
    return e != cudaSuccess ? e : launch(l, together_kernel, dim3(a->heads, x.rows), dim3((a->v + 31) / 32 * 32), 0, 0, *a, x);
}

extern "C" cudaError_t kcu_mla_expanded(const struct kcu_launch *l, const struct kcu_mla *a)
{
    struct kcu_launch next = *l;
    struct expand x = {};
    size_t bytes;
    if (a->b.n == 0 || a->heads == 0)
        return cudaSuccess;
    if (!kcu_mla_expands(a->nope, a->l, a->r, a->v))
        return cudaErrorInvalidValue;
    const uint32_t cols = a->nope + a->v, slab = a->b.n < SLAB_ROWS ? a->b.n : SLAB_ROWS;
    x.l4 = four(a->l);
    x.wide = key_pitch(a->nope + a->r);
    x.tall = KEYS * (x.l4 > x.wide + a->v ? x.l4 : x.wide + a->v);
    x.splits = splits_for(a->b.max_keys);
    x.b = (float *)a->scratch;
    x.o = (float *)a->scratch + (size_t)a->heads * x.l4 * cols;
    x.ml = x.o + (size_t)slab * a->heads * x.splits * a->v;
    cudaError_t e = cut_rows(a, &x, &bytes);
    if (e == cudaSuccess && a->rotate) {
        e = kcu_rope_q(l, &a->b, &a->rope, a->q, a->q_pitch, a->heads, a->nope + a->r, a->nope, true);
        next.stamp = NULL;
    }
    if (e == cudaSuccess)
        e = launch(&next, matrix_kernel, dim3((x.l4 + a->v + WARPS - 1) / WARPS, a->heads), dim3(THREADS), 0, 0, *a, x, next.stamp);
    for (uint32_t row = 0; row < a->b.n && e == cudaSuccess; row += slab) {
        x.row0 = row;
        x.rows = a->b.n - row < slab ? a->b.n - row : slab;
        e = some_rows(&next, a, x, bytes);
    }
    return e;
}
