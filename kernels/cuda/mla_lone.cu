/* Attention of a lone row with many keys: a block has a split of the keys and eight heads, and multiplies on tensor cores.
 *
 * Keys are f16 as they lie in the cache. Queries and probabilities are f32: each goes as the sum of two f16, a value and what is left of it, which keeps 22
 * bits; queries after a power of two that brings a head's largest to about a thousand. So the results are those of f32 but for rounding, and the time is that
 * of a tile's way through the block: keys that no kernel just before writes are on their way before the predecessor has ended. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/tensor.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, HEADS = WARPS, L = 512, R = 64, D = L + R };
enum { PITCH = D + 8, PROB_PITCH = TILE + 8, PART_PITCH = HEADS + 1 /* no bank conflicts */ };
enum { QUARTERS = 4, STEPS = D / 16 / QUARTERS }; /* of K: a warp has 16 keys and a quarter */
enum { PIECES = D / 8 /* of a key, 16 bytes each */, DIMS = L / WARPS };

struct lone_room {
    __align__(16) __half key[TILE][PITCH];
    __align__(16) __half q[2][HEADS][PITCH];
    __half prob[2][HEADS][PROB_PITCH];
    float part[QUARTERS][TILE][PART_PITCH], grow[HEADS], unscale[HEADS];
};

/* A value as a sum of two. */
static __device__ __forceinline__ void in_two(float v, __half &high, __half &low)
{
    high = __float2half_rn(v);
    low = __float2half_rn(v - __half2float(high));
}

/* Start copies of a tile's keys; `newest`: of the newest one alone, else of all others. Behind the last key: the tile's first, which is a valid row. */
static __device__ __forceinline__ void copy_tile(lone_room &s, const struct kcu_mla &a, uint32_t t0, uint32_t n, uint32_t pos, bool newest)
{
    for (uint32_t i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        const uint32_t j = i / PIECES, c = i % PIECES * 8, k = t0 + (j < n ? j : 0);
        if ((k == pos) == newest)
            copy_async<16>(&s.key[j][c], (const __half *)a.cache + page_row(a.b, 0, k) * D + c);
    }
}

/* A warp: one head's query. */
static __device__ __forceinline__ void take_query(lone_room &s, const float *q, bool on, float scale)
{
    const uint32_t h = threadIdx.x / 32, lane = threadIdx.x % 32;
    float2 v[D / 64];
    float most = 0;
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        v[i] = on ? *(const float2 *)(q + 2 * lane + 64 * i) : make_float2(0, 0);
        v[i].x *= scale, v[i].y *= scale;
        most = fmaxf(most, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
    }
    const int e = (int)(__float_as_uint(warp_max(most, 32)) >> 23), up = min(max(264 - e, 1), 253); /* 2^10 over the largest, as an exponent's bits */
    const float f = __int_as_float(up << 23);
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        __half2 high, low;
        in_two(v[i].x * f, high.x, low.x);
        in_two(v[i].y * f, high.y, low.y);
        *(__half2 *)&s.q[0][h][2 * lane + 64 * i] = high;
        *(__half2 *)&s.q[1][h][2 * lane + 64 * i] = low;
    }
    if (lane == 0)
        s.unscale[h] = __int_as_float((254 - up) << 23);
}

/* This warp's share of the scores: 16 keys, a quarter of their values, all heads. */
static __device__ __forceinline__ void multiply_keys(lone_room &s)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, m0 = warp % 2 * 16, quarter = warp / 2, head = lane / 4, two = lane % 4 * 2;
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t k0 = (quarter * STEPS + i) * 16;
        uint32_t a[4];
        ldmatrix4(a, &s.key[m0 + lane / 8 % 2 * 8 + lane % 8][k0 + lane / 16 * 8]);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const __half *q = &s.q[part][head][k0 + two];
            mma_f16(c, a, *(const uint32_t *)q, *(const uint32_t *)(q + 8));
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s.part[quarter][m0 + lane / 4 + i / 2 * 8][two + i % 2] = c[i];
}

/* This warp's share of the mixtures: 64 values, all heads. */
static __device__ __forceinline__ void mix(const lone_room &s, float o[DIMS / 16][4])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4, two = lane % 4 * 2;
    const float grow[2] = {s.grow[two], s.grow[two + 1]};
#pragma unroll
    for (int i = 0; i < DIMS / 16; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[i][j] *= grow[j % 2];
#pragma unroll
        for (int k0 = 0; k0 < TILE; k0 += 16) {
            uint32_t a[4];
            ldmatrix4_trans(a, &s.key[k0 + lane / 16 * 8 + lane % 8][warp * DIMS + i * 16 + lane / 8 % 2 * 8]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const __half *p = &s.prob[part][head][k0 + two];
                mma_f16(o[i], a, *(const uint32_t *)p, *(const uint32_t *)(p + 8));
            }
        }
    }
}

static __global__ void __launch_bounds__(THREADS) lone_kernel(const __grid_constant__ struct kcu_mla a, const struct parts p)
{
    extern __shared__ __align__(16) uint8_t shared[];
    lone_room &s = *(lone_room *)shared;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, h0 = blockIdx.y * HEADS, h = h0 + warp;
    pdl_release();
    const uint32_t pos = (uint32_t)a.b.pos[0], keys = pos + 1, len = split_length(keys), k0 = blockIdx.x * len, k1 = k0 + len < keys ? k0 + len : keys;
    const bool some = k0 < keys;
    if (some)
        copy_tile(s, a, k0, k1 - k0 < TILE ? k1 - k0 : TILE, pos, false);
    pdl_wait();
    if (!some)
        return;
    copy_tile(s, a, k0, k1 - k0 < TILE ? k1 - k0 : TILE, pos, true);
    take_query(s, p.q + (size_t)h * D, h < a.heads, a.scale);
    float top = -INFINITY, sum = 0, o[DIMS / 16][4] = {};
    for (uint32_t t = k0; t < k1; t += TILE) {
        const uint32_t n = k1 - t < TILE ? k1 - t : TILE;
        if (t != k0) {
            __syncthreads();
            copy_tile(s, a, t, n, pos, false);
            copy_tile(s, a, t, n, pos, true);
        }
        copies_wait_all();
        __syncthreads();
        multiply_keys(s);
        __syncthreads();
        float v = 0;
#pragma unroll
        for (int i = 0; i < QUARTERS; i++)
            v += s.part[i][lane][warp];
        v = lane < n ? v * s.unscale[warp] : -INFINITY;
        const float m = fmaxf(top, warp_max(v, 32)), e = expf(v - m), g = expf(top - m);
        in_two(e, s.prob[0][warp][lane], s.prob[1][warp][lane]);
        if (lane == 0)
            s.grow[warp] = g;
        sum = sum * g + warp_sum(e, 32);
        top = m;
        __syncthreads();
        mix(s, o);
    }
    const uint32_t two = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DIMS / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (h0 + two + j % 2 < a.heads)
                p.o[((size_t)(h0 + two + j % 2) * p.splits + blockIdx.x) * L + warp * DIMS + i * 16 + lane / 4 + j / 2 * 8] = o[i][j];
    if (lane == 0 && h < a.heads) {
        p.ml[2 * ((size_t)h * p.splits + blockIdx.x)] = top;
        p.ml[2 * ((size_t)h * p.splits + blockIdx.x) + 1] = sum;
    }
}

cudaError_t mla_lone(const struct kcu_launch *l, const struct kcu_mla *a, const struct parts &p)
{
    cudaError_t e = cudaFuncSetAttribute(lone_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(lone_room));
    return e == cudaSuccess ? launch(l, lone_kernel, dim3(p.splits, (a->heads + HEADS - 1) / HEADS), dim3(THREADS), sizeof(lone_room), 0, *a, p) : e;
}
