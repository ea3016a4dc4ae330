/* Every head's own matrix times many rows, on f16 tensor cores: queries into the latent space, mixtures of latents out of it. Weights of any type are
 * turned into f16 as they enter shared memory. A block: 64 weight rows of one head, BT rows. */
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/tensor.cuh"

enum { THREADS = 256, BW = 64, BK = 64, STRIDE = BK + 8, SPLIT_ROWS = 16 };

template <class V> static __device__ __forceinline__ void weights_as(const struct kcu_mat &m, const uint8_t *w, uint32_t row0, uint32_t k0, __half (*to)[STRIDE])
{
    enum { PER = BK / V::W }; /* units of a row in a step */
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < BW * PER; i += THREADS) {
        const uint32_t r = i / PER, u = i % PER, row = row0 + r, k = k0 + u * V::W;
        __half *p = &to[r][u * V::W];
        if (k >= m.k) {
            for (int j = 0; j < V::W; j += 2)
                *(__half2 *)(p + j) = __floats2half2_rn(0, 0);
            continue;
        }
        typename V::raw raw;
        float v[V::W];
        V::fetch(w + (size_t)(row < m.rows ? row : m.rows - 1) * m.pitch, m.k, k / V::W, raw);
        V::values(raw, k / V::W, v);
#pragma unroll
        for (int j = 0; j < V::W; j += 8) {
            __half2 h[4];
            for (int c = 0; c < 4; c++)
                h[c] = __floats2half2_rn(v[j + 2 * c], v[j + 2 * c + 1]);
            *(uint4 *)(p + j) = *(const uint4 *)h;
        }
    }
}

static __device__ __noinline__ void weights_any(const struct kcu_mat &m, const uint8_t *w, uint32_t row0, uint32_t k0, __half (*to)[STRIDE])
{
    switch (m.type) {
    case KRN_F32: weights_as<plain_f32>(m, w, row0, k0, to); break;
    case KRN_F16: weights_as<plain_16<false>>(m, w, row0, k0, to); break;
    case KRN_BF16: weights_as<plain_16<true>>(m, w, row0, k0, to); break;
#define X(T)                                                                                                                               \
    case T: weights_as<as_values<T>>(m, w, row0, k0, to); break;
        KCU_EACH_QUANT(X)
#undef X
    default: break;
    }
}

/* What a thread holds of the next step's activations: eight values per piece. */
template <bool HALF, int BT> struct piece {
    enum { N = BT * BK / 8 / THREADS };
    uint4 v[N][HALF ? 1 : 2];
    __device__ __forceinline__ void fetch(const heads_gemm &g, uint32_t head, uint32_t row0, uint32_t k0)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t j = threadIdx.x + i * THREADS, row = row0 + j / (BK / 8), k = k0 + j % (BK / 8) * 8;
            const bool on = row < g.n && k < g.m.k;
            const size_t at = (size_t)row * g.x_pitch + head * g.x_head + k;
#pragma unroll
            for (int c = 0; c < (HALF ? 1 : 2); c++)
                v[i][c] = !on ? make_uint4(0, 0, 0, 0) : HALF ? *(const uint4 *)((const __half *)g.x + at) : *(const uint4 *)((const float *)g.x + at + 4 * c);
        }
    }
    __device__ __forceinline__ void store(__half (*to)[STRIDE]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t j = threadIdx.x + i * THREADS;
            uint4 h = v[i][0];
            if (!HALF) {
                const float4 a = *(const float4 *)&v[i][0], b = *(const float4 *)&v[i][HALF ? 0 : 1];
                const __half2 p[4] = {__floats2half2_rn(a.x, a.y), __floats2half2_rn(a.z, a.w), __floats2half2_rn(b.x, b.y), __floats2half2_rn(b.z, b.w)};
                h = *(const uint4 *)p;
            }
            *(uint4 *)&to[j / (BK / 8)][j % (BK / 8) * 8] = h;
        }
    }
};

/* Queries to f16 in the order of kcu_halve(), and pe. blockIdx: rows, head. */
static __global__ void __launch_bounds__(THREADS)
    split_kernel(const float *x, size_t x_pitch, size_t x_head, uint32_t width, uint32_t n, __half *y, const __grid_constant__ heads_pe pe, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t h = blockIdx.y, row0 = blockIdx.x * SPLIT_ROWS, rows = n - row0 < SPLIT_ROWS ? n - row0 : SPLIT_ROWS, per = width / 4;
    for (uint32_t i = threadIdx.x; i < rows * per; i += THREADS) {
        const uint32_t row = row0 + i / per, c = i % per * 4;
        const float4 v = *(const float4 *)(x + row * x_pitch + h * x_head + c);
        __half *to = y + ((size_t)row * gridDim.y + h) * width;
        *(__half2 *)(to + flash_place(c, true)) = __floats2half2_rn(v.x, v.y);
        *(__half2 *)(to + flash_place(c + 2, true)) = __floats2half2_rn(v.z, v.w);
    }
    rotated(pe, h, row0, rows, THREADS);
}

cudaError_t heads_split(const struct kcu_launch *l, const float *x, size_t x_pitch, size_t x_head, uint32_t width, uint32_t n, __half *y, const struct heads_pe *pe)
{
    return launch(l, split_kernel, dim3((n + SPLIT_ROWS - 1) / SPLIT_ROWS, pe->heads), dim3(THREADS), 0, 0, x, x_pitch, x_head, width, n, y, *pe, l->stamp);
}

/* blockIdx: weight rows (and one more: pe), head, rows. T: the weights' type, or -1. */
template <int T, bool XHALF, bool YHALF, int BT>
static __global__ void __launch_bounds__(THREADS, BT == 128 ? 2 : 3)
    heads_kernel(const __grid_constant__ heads_gemm g, const __grid_constant__ heads_pe pe, uint64_t *at)
{
    __shared__ __align__(16) __half a[BT][STRIDE], b[BW][STRIDE];
    enum { WT = BT == 128 ? 4 : 2, WW = 8 / WT, MT = BT / 16 / WT, NT = BW / 8 / WW }; /* warps along rows and weights, tiles of a warp */
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t h = blockIdx.y, row0 = blockIdx.z * BT, w0 = blockIdx.x * BW;
    if (w0 >= g.m.rows) {
        rotated(pe, h, row0, g.n - row0 < BT ? g.n - row0 : BT, THREADS);
        return;
    }
    const uint8_t *w = g.m.w + h * g.m.mat_pitch;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, wt = warp % WT * MT * 16, ww = warp / WT * NT * 8;
    float acc[MT][NT][4] = {};
    piece<XHALF, BT> x;
    x.fetch(g, h, row0, 0);
    for (uint32_t k0 = 0; k0 < g.m.k; k0 += BK) {
        x.store(a);
        if constexpr (T >= 0)
            weights_as<as_values<T>>(g.m, w, w0, k0, b);
        else
            weights_any(g.m, w, w0, k0, b);
        __syncthreads();
        if (k0 + BK < g.m.k)
            x.fetch(g, h, row0, k0 + BK);
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            uint32_t p[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                ldmatrix4(p[m], &a[wt + m * 16 + lane % 16][kk + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                uint32_t q[4];
                ldmatrix4(q, &b[ww + n * 8 + lane / 16 * 8 + lane % 8][kk + lane / 8 % 2 * 8]);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma_f16(acc[m][n], p[m], q[0], q[1]);
                    mma_f16(acc[m][n + 1], p[m], q[2], q[3]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t row = row0 + wt + m * 16 + lane / 4 + 8 * i, col = w0 + ww + n * 8 + lane % 4 * 2;
                const float u = acc[m][n][2 * i] * g.scale, v = acc[m][n][2 * i + 1] * g.scale;
                if (row >= g.n || col >= g.m.rows)
                    continue;
                const size_t o = (size_t)row * g.y_pitch + h * g.y_head + col;
                if (YHALF)
                    *(__half2 *)((__half *)g.y + o) = __floats2half2_rn(u, v);
                else
                    *(float2 *)((float *)g.y + o) = make_float2(u, v);
            }
}

template <int T, int BT> static cudaError_t start(const struct kcu_launch *l, const heads_gemm *g, const heads_pe *pe)
{
    const dim3 grid((g->m.rows + BW - 1) / BW + (pe != NULL), g->m.n_mats, (g->n + BT - 1) / BT);
    const heads_pe none = {};
    if (g->x_half && g->y_half)
        return launch(l, heads_kernel<T, true, true, BT>, grid, dim3(THREADS), 0, 0, *g, pe != NULL ? *pe : none, l->stamp);
    if (g->x_half)
        return launch(l, heads_kernel<T, true, false, BT>, grid, dim3(THREADS), 0, 0, *g, pe != NULL ? *pe : none, l->stamp);
    return g->y_half ? launch(l, heads_kernel<T, false, true, BT>, grid, dim3(THREADS), 0, 0, *g, pe != NULL ? *pe : none, l->stamp)
                     : cudaErrorInvalidValue;
}

cudaError_t heads_run(const struct kcu_launch *l, const struct heads_gemm *g, const struct heads_pe *pe)
{
    if (heads_few_takes(l, g))
        return heads_few(l, g, pe);
    if (g->m.type == KRN_Q8_0)
        return g->n <= 32 ? start<KRN_Q8_0, 32>(l, g, pe) : start<KRN_Q8_0, 128>(l, g, pe);
    return g->n <= 32 ? start<-1, 32>(l, g, pe) : start<-1, 128>(l, g, pe);
}
