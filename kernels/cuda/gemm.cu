/* Many rows at once: int8 tensor cores with the formats' own scales. A block makes 64 weight rows x 128 rows of activations in steps of 128 along
 * K; codes are unpacked into shared memory once per step and serve all 128. Integer products of one scale group are exact, and a * d * product
 * (- b * s) is added in f32 in the order of K: the same terms as the kernels for few rows, in another order. */
#include "kernels/cuda/formats.cuh"

enum { BM = 64, BN = 128, BK = 128, THREADS = 256, PAD = 16, STRIDE = BK + PAD };

struct gemm {
    struct kcu_mat m;
    const uint8_t *q8;
    size_t q8_pitch;
    float *y; /* output of activation row i, weight row r: y[i * y_pitch + r] */
    size_t y_pitch;
    uint32_t n;
    bool accumulate;
    const int32_t *tiles; /* grouped: [0] number of tiles; then per tile matrix, first entry, entries */
    const int32_t *from;  /* grouped: entry -> activation row */
    const int32_t *to;    /* grouped: entry -> output row */
};

struct shared {
    uint8_t a[BM][STRIDE], b[BN][STRIDE];
    float2 as[BM][8]; /* per scale group of this step: a, b */
    float2 bs[BN][4]; /* per 32 values: d, s */
};

static __device__ __forceinline__ void ldmatrix4(uint32_t r[4], const void *p)
{
    const uint32_t s = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(s));
}

static __device__ __forceinline__ void mma32(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

static __device__ __forceinline__ void mma16(int c[4], uint32_t a0, uint32_t a1, uint32_t b0)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0), "r"(0));
}

template <int T> static __global__ void __launch_bounds__(THREADS, 2) gemm_kernel(const __grid_constant__ gemm g, uint64_t *at)
{
    typedef fmt<T> F;
    extern __shared__ __align__(16) uint8_t raw_shared[];
    shared &s = *(shared *)raw_shared;
    __shared__ int32_t in_row[BN], out_row[BN];
    enum { UNITS = BK / F::W, A_WORK = BM * UNITS, GROUPS = BK / (F::W / F::NS), B_WORK = BN * (BK / 16) };
    pdl_release();
    pdl_wait();
    stamp(at);
    uint32_t mat = 0, first = blockIdx.y * BN, count = g.n - first < BN ? g.n - first : BN;
    if (g.tiles != nullptr) {
        if ((int32_t)blockIdx.y >= g.tiles[0])
            return;
        mat = (uint32_t)g.tiles[1 + 3 * blockIdx.y];
        first = (uint32_t)g.tiles[2 + 3 * blockIdx.y];
        count = (uint32_t)g.tiles[3 + 3 * blockIdx.y];
    }
    for (uint32_t i = threadIdx.x; i < BN; i += THREADS) { /* rows past the end repeat the last: computed, never stored */
        const uint32_t e = first + (i < count ? i : count - 1);
        in_row[i] = g.from != nullptr ? g.from[e] : (int32_t)e;
        out_row[i] = g.to != nullptr ? g.to[e] : (int32_t)e;
    }
    __syncthreads();
    const uint32_t k = g.m.k, row0 = blockIdx.x * BM, warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % 4 * 16,
                   wn = warp / 4 * 64;
    const uint8_t *w = g.m.w + mat * g.m.mat_pitch;
    const size_t off = q8_offset(k);
    float acc[8][4] = {};
    for (uint32_t k0 = 0; k0 < k; k0 += BK) {
        uint4 piece[B_WORK / THREADS];
#pragma unroll
        for (int i = 0; i < B_WORK / THREADS; i++) {
            const uint32_t j = threadIdx.x + i * THREADS, t = j / (BK / 16), p = j % (BK / 16);
            piece[i] = *(const uint4 *)(g.q8 + (size_t)in_row[t] * g.q8_pitch + k0 + 16 * p);
        }
        float2 scale[BN * 4 / THREADS];
#pragma unroll
        for (int i = 0; i < BN * 4 / THREADS; i++) {
            const uint32_t j = threadIdx.x + i * THREADS;
            scale[i] = *(const float2 *)(g.q8 + (size_t)in_row[j / 4] * g.q8_pitch + off + ((size_t)k0 / 32 + j % 4) * 16);
        }
        typename F::raw r[(A_WORK + THREADS - 1) / THREADS];
#pragma unroll
        for (int i = 0; i < (A_WORK + THREADS - 1) / THREADS; i++) {
            const uint32_t j = threadIdx.x + i * THREADS, row = row0 + j / UNITS;
            if (j < A_WORK)
                F::fetch(w + (size_t)(row < g.m.rows ? row : g.m.rows - 1) * g.m.pitch, k, k0 / F::W + j % UNITS, r[i]);
        }
        __syncthreads(); /* the previous step has been used */
#pragma unroll
        for (int i = 0; i < B_WORK / THREADS; i++) {
            const uint32_t j = threadIdx.x + i * THREADS;
            *(uint4 *)(s.b[j / (BK / 16)] + 16 * (j % (BK / 16))) = piece[i];
        }
#pragma unroll
        for (int i = 0; i < BN * 4 / THREADS; i++) {
            const uint32_t j = threadIdx.x + i * THREADS;
            s.bs[j / 4][j % 4] = scale[i];
        }
#pragma unroll
        for (int i = 0; i < (A_WORK + THREADS - 1) / THREADS; i++) {
            const uint32_t j = threadIdx.x + i * THREADS, row = j / UNITS, u = j % UNITS;
            if (j >= A_WORK)
                continue;
            int q[F::W / 4];
            float a[F::NS], b[F::NS];
            F::unpack(r[i], k0 / F::W + u, q, a, b);
#pragma unroll
            for (int c = 0; c < F::W / 16; c++) {
                uint4 v = make_uint4((uint32_t)q[4 * c], (uint32_t)q[4 * c + 1], (uint32_t)q[4 * c + 2], (uint32_t)q[4 * c + 3]);
                if (F::ZERO != 0) {
                    const uint32_t z = F::ZERO * 0x01010101u;
                    v = make_uint4(__vsub4(v.x, z), __vsub4(v.y, z), __vsub4(v.z, z), __vsub4(v.w, z));
                }
                *(uint4 *)(s.a[row] + u * F::W + 16 * c) = v;
            }
#pragma unroll
            for (int c = 0; c < F::NS; c++)
                s.as[row][u * F::NS + c] = make_float2(a[c], F::MIN ? b[c] : 0);
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BK / 32; kk++) {
            uint32_t a[4];
            ldmatrix4(a, s.a[wm + lane % 16] + 32 * kk + 16 * (lane / 16));
#pragma unroll
            for (int nt = 0; nt < 8; nt += 2) {
                uint32_t b[4]; /* two tiles of eight columns */
                ldmatrix4(b, s.b[wn + nt * 8 + (lane / 16) * 8 + lane % 8] + 32 * kk + 16 * (lane / 8 % 2));
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t col = wn + (nt + h) * 8 + lane % 4 * 2;
                    const float2 d0 = s.bs[col][kk], d1 = s.bs[col + 1][kk];
                    float *o = acc[nt + h];
                    int c[4];
                    if (F::W / F::NS == 32) {
                        const float2 s0 = s.as[wm + lane / 4][kk], s1 = s.as[wm + lane / 4 + 8][kk];
                        mma32(c, a, b[2 * h], b[2 * h + 1]);
                        o[0] = fmaf(s0.x * d0.x, (float)c[0], o[0]);
                        o[1] = fmaf(s0.x * d1.x, (float)c[1], o[1]);
                        o[2] = fmaf(s1.x * d0.x, (float)c[2], o[2]);
                        o[3] = fmaf(s1.x * d1.x, (float)c[3], o[3]);
                        if (F::MIN) {
                            o[0] = fmaf(-s0.y, d0.y, o[0]);
                            o[1] = fmaf(-s0.y, d1.y, o[1]);
                            o[2] = fmaf(-s1.y, d0.y, o[2]);
                            o[3] = fmaf(-s1.y, d1.y, o[3]);
                        }
                    } else {
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            const float2 s0 = s.as[wm + lane / 4][(2 * kk + half) % GROUPS],
                                         s1 = s.as[wm + lane / 4 + 8][(2 * kk + half) % GROUPS];
                            mma16(c, a[2 * half], a[2 * half + 1], b[2 * h + half]);
                            o[0] = fmaf(s0.x * d0.x, (float)c[0], o[0]);
                            o[1] = fmaf(s0.x * d1.x, (float)c[1], o[1]);
                            o[2] = fmaf(s1.x * d0.x, (float)c[2], o[2]);
                            o[3] = fmaf(s1.x * d1.x, (float)c[3], o[3]);
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int nt = 0; nt < 8; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t col = wn + nt * 8 + lane % 4 * 2 + i % 2, row = row0 + wm + lane / 4 + i / 2 * 8;
            if (col < count && row < g.m.rows) {
                float *y = g.y + (size_t)out_row[col] * g.y_pitch + row;
                *y = g.accumulate ? *y + acc[nt][i] : acc[nt][i];
            }
        }
}

static cudaError_t run(const struct kcu_launch *l, const gemm &g, uint32_t tiles)
{
    const dim3 grid((g.m.rows + BM - 1) / BM, tiles);
    void (*kernel)(const gemm, uint64_t *) = NULL;
    static_assert(sizeof(shared) <= 48 * 1024, "fits without asking");
    switch (g.m.type) {
    case KRN_Q8_0: kernel = gemm_kernel<KRN_Q8_0>; break;
    case KRN_Q4_K: kernel = gemm_kernel<KRN_Q4_K>; break;
    case KRN_Q5_K: kernel = gemm_kernel<KRN_Q5_K>; break;
    case KRN_Q6_K: kernel = gemm_kernel<KRN_Q6_K>; break;
    default: return cudaErrorInvalidValue;
    }
    return launch(l, kernel, grid, dim3(THREADS), sizeof(shared), 0, g, l->stamp);
}

extern "C" bool kcu_gemm_takes(const struct kcu_mat *m)
{
    return m->w != NULL && m->k % BK == 0 && (m->type == KRN_Q8_0 || m->type == KRN_Q4_K || m->type == KRN_Q5_K || m->type == KRN_Q6_K);
}

extern "C" cudaError_t kcu_gemm(const struct kcu_launch *l, const struct kcu_linear *a)
{
    struct kcu_launch next = *l;
    for (uint32_t i = 0; i < a->n_mats && a->n != 0; i++) {
        if (a->m[i].w == NULL)
            continue;
        gemm g = {};
        g.m = a->m[i];
        g.q8 = a->in.q8;
        g.q8_pitch = a->in.q8_pitch;
        g.y = a->y + a->col[i];
        g.y_pitch = a->y_pitch;
        g.n = a->n;
        g.accumulate = a->accumulate;
        cudaError_t e = run(&next, g, (a->n + BN - 1) / BN);
        if (e != cudaSuccess)
            return e;
        next.stamp = NULL;
    }
    return cudaSuccess;
}

/* ---- experts ---- */

/* Pairs grouped by expert, cut into tiles. plan: tiles ([0] and three words each), entries -> row, entries -> pair. One block. */
static __global__ void __launch_bounds__(1024)
    group_kernel(const int32_t *ids, size_t ids_pitch, uint32_t n, uint32_t n_used, uint32_t expert0, uint32_t n_experts, int32_t *tiles,
                 int32_t *from, int32_t *to, uint64_t *at)
{
    __shared__ int32_t count[512], start[512];
    pdl_release();
    pdl_wait();
    stamp(at);
    for (uint32_t e = threadIdx.x; e < n_experts; e += 1024)
        count[e] = 0;
    __syncthreads();
    const uint32_t pairs = n * n_used;
    for (uint32_t p = threadIdx.x; p < pairs; p += 1024) {
        const uint32_t e = (uint32_t)ids[p / n_used * ids_pitch + p % n_used] - expert0;
        if (e < n_experts)
            atomicAdd(&count[e], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t sum = 0, t = 0;
        for (uint32_t e = 0; e < n_experts; e++) {
            start[e] = sum;
            for (int32_t i = 0; i < count[e]; i += BN, t++) {
                tiles[1 + 3 * t] = (int32_t)e;
                tiles[2 + 3 * t] = sum + i;
                tiles[3 + 3 * t] = count[e] - i < BN ? count[e] - i : BN;
            }
            sum += count[e];
        }
        tiles[0] = t;
    }
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < pairs; p += 1024) {
        const uint32_t e = (uint32_t)ids[p / n_used * ids_pitch + p % n_used] - expert0;
        if (e >= n_experts)
            continue;
        const int32_t i = atomicAdd(&start[e], 1); /* the order inside an expert changes no result: entries do not meet */
        from[i] = (int32_t)(p / n_used);
        to[i] = (int32_t)p;
    }
}

extern "C" size_t kcu_group_words(uint32_t n, uint32_t n_used, uint32_t n_experts)
{
    const size_t pairs = (size_t)n * n_used;
    return 1 + 3 * (pairs / BN + n_experts + 1) + 2 * pairs;
}

/* Where the parts of a plan lie. */
static int32_t *plan_from(int32_t *plan, uint32_t n, uint32_t n_used, uint32_t n_experts)
{
    return plan + 1 + 3 * ((size_t)n * n_used / BN + n_experts + 1);
}

extern "C" cudaError_t kcu_group(const struct kcu_launch *l, const int32_t *ids, size_t ids_pitch, uint32_t n, uint32_t n_used,
                                 uint32_t expert0, uint32_t n_experts, int32_t *plan)
{
    int32_t *from = plan_from(plan, n, n_used, n_experts);
    if (n_experts > 512)
        return cudaErrorInvalidValue;
    return launch(l, group_kernel, dim3(1), dim3(1024), 0, 0, ids, ids_pitch, n, n_used, expert0, n_experts, plan, from,
                  from + (size_t)n * n_used, l->stamp);
}

extern "C" cudaError_t kcu_gemm_grouped(const struct kcu_launch *l, const struct kcu_mat *m, const uint8_t *q8, size_t q8_pitch,
                                        bool per_pair, uint32_t n, uint32_t n_used, int32_t *plan, float *y, size_t y_pitch)
{
    int32_t *from = plan_from(plan, n, n_used, m->n_mats);
    gemm g = {};
    g.m = *m;
    g.q8 = q8;
    g.q8_pitch = q8_pitch;
    g.y = y;
    g.y_pitch = y_pitch;
    g.tiles = plan;
    g.to = from + (size_t)n * n_used;
    g.from = per_pair ? g.to : from;
    return run(l, g, (uint32_t)((size_t)n * n_used / BN + m->n_mats + 1));
}

/* silu(gate) * up of every pair, and its int8 form: eight lanes per 32 values. Pairs of other ranks' experts hold rubbish, which nobody reads. */
static __global__ void act_kernel(const float *gu, size_t gu_pitch, uint32_t half, float *y, size_t y_pitch, uint8_t *q8, size_t q8_pitch,
                                  uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    const float *x = gu + blockIdx.x * gu_pitch;
    for (uint32_t base = 0; base < half; base += 4 * blockDim.x) {
        const uint32_t col = base + 4 * threadIdx.x;
        float v[4] = {0, 0, 0, 0};
        if (col < half) {
            const float4 a = *(const float4 *)(x + col), b = *(const float4 *)(x + half + col);
            v[0] = silu(a.x) * b.x, v[1] = silu(a.y) * b.y, v[2] = silu(a.z) * b.z, v[3] = silu(a.w) * b.w;
            *(float4 *)(y + blockIdx.x * y_pitch + col) = make_float4(v[0], v[1], v[2], v[3]);
        }
        q8_block8(v, q8 + blockIdx.x * q8_pitch, half, col, col < half);
    }
}

extern "C" cudaError_t kcu_act(const struct kcu_launch *l, const float *gu, size_t gu_pitch, uint32_t half, uint32_t n, float *y,
                               size_t y_pitch, uint8_t *q8, size_t q8_pitch)
{
    return n == 0 || half == 0 ? cudaSuccess
                               : launch(l, act_kernel, dim3(n), dim3(half >= 1024 ? 256 : 128), 0, 0, gu, gu_pitch, half, y, y_pitch, q8,
                                        q8_pitch, l->stamp);
}

/* y[row] = sum of weight * part[pair] over the row's experts, in ascending order of expert. */
static __global__ void combine_kernel(const float *part, size_t part_pitch, const int32_t *ids, const float *weights, size_t ids_pitch,
                                      uint32_t n_used, uint32_t expert0, uint32_t n_experts, float *y, size_t y_pitch, uint32_t width,
                                      uint64_t *at)
{
    __shared__ int32_t order[64];
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    const int32_t *e = ids + row * ids_pitch;
    if (threadIdx.x < n_used) {
        uint32_t o = 0;
        for (uint32_t i = 0; i < n_used; i++)
            o += e[i] < e[threadIdx.x];
        order[o] = (int32_t)threadIdx.x;
    }
    __syncthreads();
    if (col >= width)
        return;
    float sum = 0;
    for (uint32_t i = 0; i < n_used; i++) {
        const uint32_t s = (uint32_t)order[i];
        if ((uint32_t)e[s] - expert0 < n_experts)
            sum += weights[row * ids_pitch + s] * part[((size_t)row * n_used + s) * part_pitch + col];
    }
    y[row * y_pitch + col] = sum;
}

extern "C" cudaError_t kcu_combine(const struct kcu_launch *l, const float *part, size_t part_pitch, const struct kcu_down *d)
{
    return launch(l, combine_kernel, dim3((d->width + 255) / 256, d->n), dim3(256), 0, 0, part, part_pitch, d->ids, d->weights,
                  d->ids_pitch, d->n_used, d->expert0, d->down.n_mats, d->y, d->y_pitch, d->width, l->stamp);
}
