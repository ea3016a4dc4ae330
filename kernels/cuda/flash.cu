/* Attention over an f16 cache on tensor cores: up to 64 absorbed queries (rows of one sequence times heads, which all see the same cached rows) against
 * tiles of 64 keys, online softmax in f32, probabilities rounded to f16. Tiles start at multiples of 64 of the row's own keys, and a tile that a
 * row does not see adds exactly nothing to it: a row's result does not depend on which rows share its block. */
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/tensor.cuh"

enum { KEYS = FLASH_KEYS, D = FLASH_D, L = FLASH_L, THREADS = 256, ROW_BYTES = D * 2, CHUNKS = ROW_BYTES / 16, P_STRIDE = KEYS + 8 };

/* MT: groups of 16 queries. Warps for scores: MT along queries, 8 / MT along keys. For mixtures: PM groups of queries each, which share what is loaded of
 * the latents, PW warps along queries, the others along the latent's values, PN groups of eight each. Rows of q and k are 1,152 bytes: pieces of 16 bytes are
 * swapped within 128 by the row's number, so that eight rows meet no bank twice. */
template <int MT> struct mixing {
    enum { PM = MT > 1 ? 2 : 1, PW = MT / PM, PN = L / 8 / (8 / PW) };
};
template <int MT> struct flash_shared {
    uint8_t q[MT * 16 * ROW_BYTES], k[2][KEYS * ROW_BYTES];
    __half p[MT * 16][P_STRIDE];
    float red[8 / MT][MT * 16], grow[MT * 16];
    uint32_t key[2][KEYS];
};

static __device__ __forceinline__ uint32_t swapped(uint32_t row, uint32_t chunk)
{
    return row * ROW_BYTES + ((chunk & ~7u) | ((chunk ^ row) & 7)) * 16;
}

/* What a block is about. */
struct tile {
    uint32_t row0, n, heads, h0, slot; /* rows, heads from h0 on; place in the scratch */
    uint32_t keys, k0, k1;
    const int32_t *sel;
};

template <int MT, bool PROMPT> static __device__ __forceinline__ bool find_tile(const flash_args &a, tile &t)
{
    const uint32_t i = a.row0 + blockIdx.x;
    t.sel = nullptr;
    t.n = 1;
    t.slot = blockIdx.x;
    if (PROMPT) {
        if (i >= (uint32_t)a.b.lists[0])
            return false;
        t.row0 = (uint32_t)a.b.tables[a.b.lists[1] + 2 * i];
        t.n = (uint32_t)a.b.tables[a.b.lists[1] + 2 * i + 1];
    } else if (a.sel != nullptr) {
        t.row0 = i;
    } else {
        if (i >= (uint32_t)a.b.lists[2])
            return false;
        t.row0 = (uint32_t)a.b.tables[a.b.lists[3] + i];
    }
    t.keys = (uint32_t)a.b.pos[t.row0 + t.n - 1] + 1;
    if (!PROMPT && a.sel != nullptr && t.keys > a.top_k && a.sel[t.row0 * a.sel_pitch] > 0) {
        t.sel = a.sel + t.row0 * a.sel_pitch + 1;
        t.keys = (uint32_t)t.sel[-1];
    }
    t.h0 = blockIdx.y * (MT * 16);
    t.heads = a.heads - t.h0 < MT * 16 ? a.heads - t.h0 : MT * 16;
    const uint32_t len = PROMPT ? t.keys : a.split_keys != 0 ? a.split_keys : flash_split_length(t.keys);
    t.k0 = blockIdx.z * len;
    t.k1 = t.k0 + len < t.keys ? t.k0 + len : t.keys;
    return t.k0 < t.keys;
}

/* Cache row of key i of the tile at t; past the end any valid one. */
static __device__ __forceinline__ uint32_t cache_row(const flash_args &a, const tile &t, uint32_t at, uint32_t i)
{
    const uint32_t j = at + i < t.k1 ? at + i : t.k1 - 1;
    return (uint32_t)page_row(a.b, t.row0, t.sel != nullptr ? (uint32_t)t.sel[j] : j);
}

/* Eight threads bring 128 bytes of a row, so that nothing but the rows' addresses is computed. */
static __device__ __forceinline__ void fetch_keys(const flash_args &a, const uint32_t *key, uint8_t *to)
{
    const uint32_t r = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < KEYS / (THREADS / 8); i++) {
        const uint8_t *from = a.cache + (size_t)key[r + i * (THREADS / 8)] * ROW_BYTES + 16 * c;
#pragma unroll
        for (int j = 0; j < CHUNKS / 8; j++)
            copy_async<16>(to + swapped(r, c) + i * (THREADS / 8) * ROW_BYTES + j * 128, from + j * 128);
    }
}

template <int MT> static __device__ __forceinline__ void fetch_queries(const flash_args &a, const tile &t, uint8_t *to)
{
    for (uint32_t j = threadIdx.x; j < MT * 16 * CHUNKS; j += THREADS) {
        const uint32_t i = j / CHUNKS, c = j % CHUNKS;
        if (i < t.n * t.heads)
            copy_async<16>(to + swapped(i, c), a.q + ((size_t)(t.row0 + i / t.heads) * a.heads + t.h0 + i % t.heads) * D + 8 * c);
        else
            *(uint4 *)(to + swapped(i, c)) = make_uint4(0, 0, 0, 0);
    }
}

/* Scores of 16 queries and MT groups of eight keys. Several sums side by side where the warp has few: one chain of 36 products would be waiting. */
template <int MT> static __device__ __forceinline__ void scores(const uint8_t *q, const uint8_t *k, uint32_t wm, uint32_t wn, float c[MT][4])
{
    enum { SETS = 4 / MT };
    const uint32_t lane = threadIdx.x % 32, qr = wm * 16 + lane % 16, qx = (qr & 7) ^ (lane / 16);
    const uint32_t kr = wn * 8 * MT + (MT == 1 ? lane % 8 : lane / 16 * 8 + lane % 8), kx = (kr & 7) ^ (MT == 1 ? lane / 8 : lane / 8 % 2);
    const uint8_t *q0 = q + qr * ROW_BYTES, *k0 = k + kr * ROW_BYTES;
    float s[SETS][MT][4] = {};
    uint32_t y[MT == 4 ? 2 : 1][4];
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t x[4];
        ldmatrix4(x, q0 + ((2 * kk & ~7) | ((2 * kk & 7) ^ qx)) * 16);
        if constexpr (MT == 1) {
            if (kk % 2 == 0)
                ldmatrix4(y[0], k0 + ((2 * kk & ~7) | ((2 * kk & 7) ^ kx)) * 16); /* two steps at once */
            mma_f16(s[kk % SETS][0], x, y[0][kk % 2 * 2], y[0][kk % 2 * 2 + 1]);
        } else {
#pragma unroll
            for (int n = 0; n < MT / 2; n++) {
                ldmatrix4(y[n], k0 + n * 16 * ROW_BYTES + ((2 * kk & ~7) | ((2 * kk & 7) ^ kx)) * 16);
                mma_f16(s[kk % SETS][2 * n], x, y[n][0], y[n][1]);
                mma_f16(s[kk % SETS][2 * n + 1], x, y[n][2], y[n][3]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < MT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[n][i] = s[0][n][i];
#pragma unroll
            for (int j = 1; j < SETS; j++)
                c[n][i] += s[j][n][i];
        }
}

/* What a lane keeps of its two queries. */
struct state {
    int32_t own[2]; /* last key that is seen */
    float top[2], sum[2];
};

/* Scores to probabilities in s.p, and what earlier sums have to be multiplied by to s.grow. */
template <int MT>
static __device__ __forceinline__ void soften(flash_shared<MT> &s, uint32_t wm, uint32_t wn, uint32_t t, float c[MT][4], state &st)
{
    enum { WN = 8 / MT };
    const uint32_t lane = threadIdx.x % 32, row = wm * 16 + lane / 4, col0 = wn * 8 * MT + lane % 4 * 2;
    float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < MT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((int32_t)(t + col0 + n * 8 + i % 2) > st.own[i / 2])
                c[n][i] = -INFINITY;
            m[i / 2] = fmaxf(m[i / 2], c[n][i]);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], 1));
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], 2));
        if (lane % 4 == 0)
            s.red[wn][row + 8 * i] = m[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int w = 0; w < WN; w++)
            m[i] = fmaxf(m[i], s.red[w][row + 8 * i]);
        m[i] = fmaxf(m[i], st.top[i]);
        const float base = m[i] == -INFINITY ? 0 : m[i]; /* nothing seen yet: everything becomes 0 */
        const float grow = exp2f(st.top[i] - base);
        if (wn == 0 && lane % 4 == 0)
            s.grow[row + 8 * i] = grow;
        st.top[i] = m[i];
        float z = 0;
#pragma unroll
        for (int n = 0; n < MT; n++) {
            const __half2 p = __floats2half2_rn(exp2f(c[n][2 * i] - base), exp2f(c[n][2 * i + 1] - base));
            z += __low2float(p) + __high2float(p); /* what is summed is what is multiplied */
            *(__half2 *)&s.p[row + 8 * i][col0 + n * 8] = p;
        }
        st.sum[i] = st.sum[i] * grow + z;
    }
    __syncthreads();
}

template <int MT>
static __device__ __forceinline__ void mix_latents(const flash_shared<MT> &s, const uint8_t *k, float o[mixing<MT>::PM][mixing<MT>::PN][4])
{
    typedef mixing<MT> X;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp % X::PW * X::PM * 16, x0 = lane % 8 ^ lane / 16;
    const uint8_t *v0 = k + (lane / 8 % 2 * 8 + lane % 8) * ROW_BYTES + warp / X::PW * X::PN * 16;
#pragma unroll
    for (int m = 0; m < X::PM; m++) {
        const float g0 = s.grow[row + m * 16 + lane / 4], g1 = s.grow[row + m * 16 + lane / 4 + 8];
        if (__any_sync(0xffffffffu, g0 != 1 || g1 != 1))
#pragma unroll
            for (int n = 0; n < X::PN; n++)
                o[m][n][0] *= g0, o[m][n][1] *= g0, o[m][n][2] *= g1, o[m][n][3] *= g1;
    }
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t x[X::PM][4];
#pragma unroll
        for (int m = 0; m < X::PM; m++)
            ldmatrix4(x[m], &s.p[row + m * 16 + lane % 16][kk * 16 + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < X::PN; n += 2) {
            uint32_t y[4];
            ldmatrix4_trans(y, v0 + kk * 16 * ROW_BYTES + ((n & ~7) | ((n & 7) ^ x0)) * 16);
#pragma unroll
            for (int m = 0; m < X::PM; m++) {
                mma_f16(o[m][n], x[m], y[0], y[1]);
                mma_f16(o[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Sums over the warps along keys, by query: sum to s.red[0], maximum to s.grow. */
template <int MT> static __device__ __forceinline__ void settle(flash_shared<MT> &s, uint32_t wm, uint32_t wn, state &st)
{
    const uint32_t lane = threadIdx.x % 32, row = wm * 16 + lane / 4;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        st.sum[i] += __shfl_xor_sync(0xffffffffu, st.sum[i], 1);
        st.sum[i] += __shfl_xor_sync(0xffffffffu, st.sum[i], 2);
        if (lane % 4 == 0)
            s.red[wn][row + 8 * i] = st.sum[i];
        if (lane % 4 == 0 && wn == 0)
            s.grow[row + 8 * i] = st.top[i];
    }
    __syncthreads();
    if (threadIdx.x < MT * 16) {
        float z = 0;
#pragma unroll
        for (int w = 0; w < 8 / MT; w++)
            z += s.red[w][threadIdx.x];
        s.red[0][threadIdx.x] = z;
    }
    __syncthreads();
}

template <int MT, bool PROMPT>
static __device__ __forceinline__ void leave(const flash_args &a, const tile &t, const flash_shared<MT> &s,
                                             const float o[mixing<MT>::PM][mixing<MT>::PN][4])
{
    typedef mixing<MT> X;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, col0 = warp / X::PW * X::PN * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * X::PM; i++) {
        const uint32_t q = warp % X::PW * X::PM * 16 + lane / 4 + 8 * i, h = t.h0 + q % t.heads;
        if (q >= t.n * t.heads)
            continue;
        if (PROMPT || a.splits == 1) {
            __half *to = a.mix + ((size_t)(t.row0 + q / t.heads) * a.heads + h) * L;
            const float scale = 1.0f / s.red[0][q];
#pragma unroll
            for (int n = 0; n < X::PN; n++)
                *(__half2 *)(to + flash_place(col0 + n * 8, a.halves)) = __floats2half2_rn(o[i / 2][n][i % 2 * 2] * scale, o[i / 2][n][i % 2 * 2 + 1] * scale);
            continue;
        }
        const size_t at = ((size_t)t.slot * a.heads + h) * a.splits + blockIdx.z;
        float *to = a.part + at * L + col0, *ml = a.part + (size_t)a.rows * a.heads * a.splits * L + 2 * at;
#pragma unroll
        for (int n = 0; n < X::PN; n++)
            *(float2 *)(to + n * 8) = make_float2(o[i / 2][n][i % 2 * 2], o[i / 2][n][i % 2 * 2 + 1]);
        if (col0 == 0)
            *(float2 *)ml = make_float2(s.grow[q], s.red[0][q]);
    }
}

/* blockIdx: tile, group of heads, split. */
template <int MT, bool PROMPT>
static __global__ void __launch_bounds__(THREADS, 1) flash_kernel(const __grid_constant__ flash_args a, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t raw_shared[];
    flash_shared<MT> &s = *(flash_shared<MT> *)raw_shared;
    pdl_release();
    pdl_wait();
    stamp(at);
    tile t;
    if (!find_tile<MT, PROMPT>(a, t))
        return;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % MT, wn = warp / MT;
    if (threadIdx.x < 2 * KEYS)
        s.key[threadIdx.x / KEYS][threadIdx.x % KEYS] = cache_row(a, t, t.k0, threadIdx.x);
    state st = {{-1, -1}, {-INFINITY, -INFINITY}, {0, 0}};
    for (int i = 0; i < 2; i++) {
        const uint32_t q = wm * 16 + lane / 4 + 8 * i;
        if (q < t.n * t.heads)
            st.own[i] = PROMPT ? a.b.pos[t.row0 + q / t.heads] : (int32_t)t.k1 - 1;
    }
    fetch_queries<MT>(a, t, s.q);
    __syncthreads();
    fetch_keys(a, s.key[0], s.k[0]);
    copies_commit();
    float o[mixing<MT>::PM][mixing<MT>::PN][4] = {};
    uint32_t now = 0;
    for (uint32_t k = t.k0; k < t.k1; k += KEYS, now ^= 1) {
        copies_wait<0>();
        __syncthreads(); /* these keys are there, and those before them have been used */
        if (k + KEYS < t.k1)
            fetch_keys(a, s.key[now ^ 1], s.k[now ^ 1]);
        copies_commit();
        const uint32_t later = threadIdx.x < KEYS && k + 2 * KEYS < t.k1 ? cache_row(a, t, k + 2 * KEYS, threadIdx.x) : 0;
        float c[MT][4];
        scores<MT>(s.q, s.k[now], wm, wn, c);
        soften<MT>(s, wm, wn, k, c, st);
        mix_latents<MT>(s, s.k[now], o);
        if (threadIdx.x < KEYS)
            s.key[now][threadIdx.x] = later;
    }
    settle<MT>(s, wm, wn, st);
    leave<MT, PROMPT>(a, t, s, o);
}

/* Splits of one head of one row: those parts that there are, weighted. */
static __global__ void __launch_bounds__(128) flash_join_kernel(const __grid_constant__ flash_args a)
{
    __shared__ float weight[64];
    pdl_release();
    pdl_wait();
    const uint32_t i = a.row0 + blockIdx.y, h = blockIdx.x;
    if (a.sel == nullptr && i >= (uint32_t)a.b.lists[2])
        return;
    const uint32_t row = a.sel != nullptr ? i : (uint32_t)a.b.tables[a.b.lists[3] + i];
    uint32_t keys = (uint32_t)a.b.pos[row] + 1;
    if (a.sel != nullptr && keys > a.top_k && a.sel[row * a.sel_pitch] > 0)
        keys = (uint32_t)a.sel[row * a.sel_pitch];
    const uint32_t len = a.split_keys != 0 ? a.split_keys : flash_split_length(keys), n = (keys + len - 1) / len;
    const size_t at = ((size_t)blockIdx.y * a.heads + h) * a.splits;
    const float *ml = a.part + (size_t)a.rows * a.heads * a.splits * L + 2 * at;
    if (threadIdx.x < 32) {
        float m = -INFINITY, z = 0;
        for (uint32_t s = threadIdx.x; s < n; s += 32)
            m = fmaxf(m, ml[2 * s]);
        m = warp_max(m, 32);
        for (uint32_t s = threadIdx.x; s < n; s += 32) {
            weight[s] = exp2f(ml[2 * s] - m);
            z += weight[s] * ml[2 * s + 1];
        }
        z = 1.0f / warp_sum(z, 32);
        for (uint32_t s = threadIdx.x; s < n; s += 32)
            weight[s] *= z;
    }
    __syncthreads();
    const uint32_t c = 4 * threadIdx.x;
    float4 x = make_float4(0, 0, 0, 0);
    for (uint32_t s = 0; s < n; s++) {
        const float4 v = *(const float4 *)(a.part + (at + s) * L + c);
        x.x = fmaf(weight[s], v.x, x.x), x.y = fmaf(weight[s], v.y, x.y), x.z = fmaf(weight[s], v.z, x.z), x.w = fmaf(weight[s], v.w, x.w);
    }
    __half *to = a.mix + ((size_t)row * a.heads + h) * L;
    *(__half2 *)(to + flash_place(c, a.halves)) = __floats2half2_rn(x.x, x.y);
    *(__half2 *)(to + flash_place(c + 2, a.halves)) = __floats2half2_rn(x.z, x.w);
}

template <int MT, bool PROMPT> static cudaError_t start(const struct kcu_launch *l, const flash_args *a, uint32_t tiles, uint32_t splits)
{
    static_assert(sizeof(flash_shared<MT>) <= 227 * 1024, "fits");
    cudaError_t e =
        cudaFuncSetAttribute(flash_kernel<MT, PROMPT>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(flash_shared<MT>));
    return e != cudaSuccess ? e
                            : launch(l, flash_kernel<MT, PROMPT>, dim3(tiles, (a->heads + MT * 16 - 1) / (MT * 16), splits), dim3(THREADS),
                                     sizeof(flash_shared<MT>), 0, *a, l->stamp);
}

cudaError_t flash_prompt(const struct kcu_launch *l, const struct flash_args *a, uint32_t tiles)
{
    return start<4, true>(l, a, tiles, 1);
}

cudaError_t flash_generated(const struct kcu_launch *l, const struct flash_args *a)
{
    cudaError_t e = flash_decode_takes(a) ? flash_decode(l, a)
                    : a->heads <= 16      ? start<1, false>(l, a, a->rows, a->splits)
                    : a->heads <= 32      ? start<2, false>(l, a, a->rows, a->splits)
                                          : start<4, false>(l, a, a->rows, a->splits);
    if (e != cudaSuccess || a->splits == 1)
        return e;
    return launch(l, flash_join_kernel, dim3(a->heads, a->rows), dim3(128), 0, 0, *a);
}
