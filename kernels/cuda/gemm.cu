/* Many rows at once: int8 tensor cores with the formats' own scales. A block makes 128 weight rows x up to 128 rows of activations, a warp 16 weight
 * rows of that. Weights travel as they lie in memory, asynchronously and several steps ahead, into shared memory; every warp unpacks its own rows
 * from there straight into operands. Integer products of one scale group are exact, and a * d * product (- b * s) is added in f32 in the order of K:
 * an element of the result has the same bits whatever the number of rows and however they are cut into tiles. */
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/tensor.cuh"

enum { BM = 128, THREADS = 256, MAX_SMEM = 227 * 512 - 1024 /* two blocks per multiprocessor */ };

static __device__ __forceinline__ uint32_t word(const uint8_t *p)
{
    return *(const uint32_t *)p;
}

/* How a format's rows are cut into steps of K: a row of a step takes STRIDE bytes of shared memory (an odd multiple of 16, so that eight rows meet no
 * bank twice), brought by PIECES copies. A unit of UNIT weights has groups of 32 weights or two of 16 (SPLIT). load() reads what a lane needs of a unit for
 * its two rows; codes() makes group g's operand: words j and j + 4 of both rows. */
template <int T> struct steps;

template <> struct steps<KRN_Q8_0> {
    enum { BK = 64, STRIDE = 80, PIECES = 5, UNIT = 32, SPLIT = 0, MIN = 0 };
    struct unit {
        uint32_t w[4];
        float a[2][1], b[2][1];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t k, uint32_t k0, uint32_t piece)
    {
        if (piece < 4)
            copy_async<16>(to + 16 * piece, row + k0 + 16 * piece);
        else
            copy_async<4>(to + 64, row + k + k0 / 16);
    }
    static __device__ __forceinline__ void load(const uint8_t *r0, const uint8_t *r1, uint32_t, uint32_t u, uint32_t j, unit &x)
    {
        x.w[0] = word(r0 + 32 * u + 4 * j), x.w[1] = word(r1 + 32 * u + 4 * j);
        x.w[2] = word(r0 + 32 * u + 4 * j + 16), x.w[3] = word(r1 + 32 * u + 4 * j + 16);
        x.a[0][0] = half_of(*(const uint16_t *)(r0 + 64 + 2 * u));
        x.a[1][0] = half_of(*(const uint16_t *)(r1 + 64 + 2 * u));
    }
    static __device__ __forceinline__ void codes(const unit &x, int, uint32_t a[4])
    {
        for (int i = 0; i < 4; i++)
            a[i] = x.w[i];
    }
};

template <> struct steps<KRN_Q4_K> {
    enum { BK = 128, STRIDE = 80, PIECES = 5, UNIT = 64, SPLIT = 0, MIN = 1 };
    struct unit {
        uint32_t w[4];
        float a[2][2], b[2][2];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t, uint32_t k0, uint32_t piece)
    {
        const uint8_t *p = row + (size_t)(k0 / 256) * 144; /* header, then the half of the codes that this step is about */
        copy_async<16>(to + 16 * piece, piece == 0 ? p : p + (k0 & 128) / 2 + 16 * piece);
    }
    static __device__ __forceinline__ void load(const uint8_t *r0, const uint8_t *r1, uint32_t k0, uint32_t u, uint32_t j, unit &x)
    {
        const uint32_t at = 16 + 32 * u + 4 * j, c = (k0 & 128) / 64 + u;
        x.w[0] = word(r0 + at), x.w[1] = word(r1 + at), x.w[2] = word(r0 + at + 16), x.w[3] = word(r1 + at + 16);
        k_scales(*(const uint4 *)r0, c, x.a[0], x.b[0]);
        k_scales(*(const uint4 *)r1, c, x.a[1], x.b[1]);
    }
    static __device__ __forceinline__ void codes(const unit &x, int g, uint32_t a[4])
    {
        for (int i = 0; i < 4; i++)
            a[i] = x.w[i] >> 4 * g & LOW4;
    }
};

template <> struct steps<KRN_Q5_K> {
    enum { BK = 128, STRIDE = 112, PIECES = 7, UNIT = 64, SPLIT = 0, MIN = 1 };
    struct unit {
        uint32_t w[4], h[4];
        float a[2][2], b[2][2];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t, uint32_t k0, uint32_t piece)
    {
        const uint8_t *p = row + (size_t)(k0 / 256) * 176;
        copy_async<16>(to + 16 * piece, piece < 3 ? p + 16 * piece : p + (k0 & 128) / 2 + 16 * piece);
    }
    static __device__ __forceinline__ void load(const uint8_t *r0, const uint8_t *r1, uint32_t k0, uint32_t u, uint32_t j, unit &x)
    {
        const uint32_t at = 48 + 32 * u + 4 * j, hi = 16 + 4 * j, c = (k0 & 128) / 64 + u;
        x.w[0] = word(r0 + at), x.w[1] = word(r1 + at), x.w[2] = word(r0 + at + 16), x.w[3] = word(r1 + at + 16);
        x.h[0] = word(r0 + hi) >> 2 * c, x.h[1] = word(r1 + hi) >> 2 * c, x.h[2] = word(r0 + hi + 16) >> 2 * c,
        x.h[3] = word(r1 + hi + 16) >> 2 * c;
        k_scales(*(const uint4 *)r0, c, x.a[0], x.b[0]);
        k_scales(*(const uint4 *)r1, c, x.a[1], x.b[1]);
    }
    static __device__ __forceinline__ void codes(const unit &x, int g, uint32_t a[4])
    {
        for (int i = 0; i < 4; i++)
            a[i] = (x.w[i] >> 4 * g & LOW4) | (x.h[i] >> g & 0x01010101u) << 4;
    }
};

template <> struct steps<KRN_Q6_K> { /* planes: nibbles, upper two bits, scales, d */
    enum { BK = 128, STRIDE = 112, PIECES = 8, UNIT = 32, SPLIT = 1, MIN = 0 };
    struct unit {
        uint32_t n[2], h[4];
        float a[2][2], b[2][2];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t k, uint32_t k0, uint32_t piece)
    {
        const uint8_t *scales = row + k / 2 + k / 4;
        if (piece < 4)
            copy_async<16>(to + 16 * piece, row + k0 / 2 + 16 * piece);
        else if (piece < 6)
            copy_async<16>(to + 16 * piece, row + k / 2 + k0 / 4 + 16 * (piece - 4));
        else if (piece == 6)
            copy_async<8>(to + 96, scales + k0 / 16);
        else /* the word that d lies in */
            copy_async<4>(to + 104, scales + k / 16 + k0 / 512 * 4);
    }
    static __device__ __forceinline__ void row(const uint8_t *r, uint32_t k0, uint32_t u, uint32_t j, uint32_t i, unit &x)
    {
        const uint32_t s = *(const uint16_t *)(r + 96 + 2 * u);
        const float d = half_of(word(r + 104) >> (k0 & 256) / 16 & 0xffff);
        x.n[i] = word(r + 16 * u + 4 * j);
        x.h[i] = word(r + 64 + 8 * u + 4 * (j & 1)) >> 2 * (j >> 1); /* words j and j + 4 */
        x.a[i][0] = d * (float)(int8_t)(s & 255);
        x.a[i][1] = d * (float)(int8_t)(s >> 8);
    }
    static __device__ __forceinline__ void load(const uint8_t *r0, const uint8_t *r1, uint32_t k0, uint32_t u, uint32_t j, unit &x)
    {
        row(r0, k0, u, j, 0, x);
        row(r1, k0, u, j, 1, x);
    }
    static __device__ __forceinline__ void codes(const unit &x, int, uint32_t a[4])
    {
        for (int i = 0; i < 2; i++) {
            const uint32_t low = (x.n[i] & LOW4) | (x.h[i] & 0x03030303u) << 4, high = (x.n[i] >> 4 & LOW4) | (x.h[i] >> 4 & 0x03030303u) << 4;
            a[i] = ((low | 0x80808080u) - 0x20202020u) ^ 0x80808080u; /* every byte less 32 */
            a[2 + i] = ((high | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
        }
    }
};

/* Shared memory of a step: weights, then codes of the activations, then their (d, s) by group of 32 and row. */
template <int T, int TILE> struct stage {
    typedef steps<T> S;
    enum {
        B_STRIDE = S::BK + 16,
        A_BYTES = BM * S::STRIDE,
        B_BYTES = TILE * B_STRIDE,
        D_BYTES = TILE * (S::BK / 32) * 8,
        BYTES = A_BYTES + B_BYTES + D_BYTES,
        FIT = (TILE == GEMM_LARGE ? (int)MAX_SMEM : 227 * 1024 / 3 - 1024) / BYTES,
        N = FIT > 6 ? 6 : FIT
    };
    static_assert(N >= 2, "room for a step in use and one on its way");
};

/* Sums start at the bits of 1.5 * 2^23, so that bits of the result, read as a float, are that plus the product: no conversion. Products of 32 codes are
 * far below 2^22. */
static const int MAGIC = 0x4b400000;

static __device__ __forceinline__ void mma32(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    int i[4];
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(i[0]), "=r"(i[1]), "=r"(i[2]), "=r"(i[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(MAGIC));
    for (int j = 0; j < 4; j++)
        c[j] = __int_as_float(i[j]) - 12582912.0f;
}

static __device__ __forceinline__ void mma16(float c[4], uint32_t a0, uint32_t a1, uint32_t b0)
{
    int i[4];
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(i[0]), "=r"(i[1]), "=r"(i[2]), "=r"(i[3])
        : "r"(a0), "r"(a1), "r"(b0), "r"(MAGIC));
    for (int j = 0; j < 4; j++)
        c[j] = __int_as_float(i[j]) - 12582912.0f;
}

/* One group of 32 of K for eight rows of activations. d: (d, s) of this lane's two. */
template <class S>
static __device__ __forceinline__ void group32(const typename S::unit &x, int g, const uint32_t a[4], uint32_t b0, uint32_t b1, const float4 &d,
                                               float o[4])
{
    float c[4];
    if (S::SPLIT) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mma16(c, a[2 * h], a[2 * h + 1], h ? b1 : b0);
            o[0] = fmaf(x.a[0][h] * d.x, c[0], o[0]);
            o[1] = fmaf(x.a[0][h] * d.z, c[1], o[1]);
            o[2] = fmaf(x.a[1][h] * d.x, c[2], o[2]);
            o[3] = fmaf(x.a[1][h] * d.z, c[3], o[3]);
        }
        return;
    }
    mma32(c, a, b0, b1);
    o[0] = fmaf(x.a[0][g] * d.x, c[0], o[0]);
    o[1] = fmaf(x.a[0][g] * d.z, c[1], o[1]);
    o[2] = fmaf(x.a[1][g] * d.x, c[2], o[2]);
    o[3] = fmaf(x.a[1][g] * d.z, c[3], o[3]);
    if (S::MIN) {
        o[0] = fmaf(-x.b[0][g], d.y, o[0]);
        o[1] = fmaf(-x.b[0][g], d.w, o[1]);
        o[2] = fmaf(-x.b[1][g], d.y, o[2]);
        o[3] = fmaf(-x.b[1][g], d.w, o[3]);
    }
}

/* What a block is about. */
struct place {
    const uint8_t *w;
    uint32_t row0, count;
    const int32_t *in_row, *out_row; /* shared memory */
};

template <int T> static __device__ __forceinline__ void fetch_weights(const gemm &g, const place &p, uint32_t k0, uint8_t *to)
{
    typedef steps<T> S;
    enum { WORK = BM * S::PIECES };
#pragma unroll
    for (int i = 0; i < (WORK + THREADS - 1) / THREADS; i++) {
        const uint32_t j = threadIdx.x + i * THREADS, r = j / S::PIECES, row = p.row0 + r;
        if (WORK % THREADS == 0 || j < WORK)
            S::fetch(to + r * S::STRIDE, p.w + (size_t)(row < g.m.rows ? row : g.m.rows - 1) * g.m.pitch, g.m.k, k0, j % S::PIECES);
    }
}

/* P pairs of eight rows of activations. */
template <int T, int TILE, int P>
static __device__ __forceinline__ void fetch_rows(const gemm &g, const place &p, uint32_t k0, uint8_t *to)
{
    typedef steps<T> S;
    typedef stage<T, TILE> G;
    enum { PER = S::BK / 16, WORK = 16 * P * PER, SCALES = 16 * P * (S::BK / 32) };
    const size_t off = q8_offset(g.m.k);
#pragma unroll
    for (int i = 0; i < (WORK + THREADS - 1) / THREADS; i++) {
        const uint32_t j = threadIdx.x + i * THREADS, t = j / PER, c = j % PER;
        if (WORK % THREADS == 0 || j < WORK)
            copy_async<16>(to + G::A_BYTES + t * G::B_STRIDE + 16 * c, g.q8 + (size_t)p.in_row[t] * g.q8_pitch + k0 + 16 * c);
    }
#pragma unroll
    for (int i = 0; i < (SCALES + THREADS - 1) / THREADS; i++) {
        const uint32_t j = threadIdx.x + i * THREADS, t = j / (S::BK / 32), c = j % (S::BK / 32);
        if (SCALES % THREADS == 0 || j < SCALES)
            copy_async<8>(to + G::A_BYTES + G::B_BYTES + (c * TILE + t) * 8,
                          g.q8 + (size_t)p.in_row[t] * g.q8_pitch + off + ((size_t)k0 / 32 + c) * 16);
    }
}

template <int T, int TILE, int P>
static __device__ __forceinline__ void multiply(const gemm &g, const place &p, uint8_t *smem, uint32_t k0, float acc[2 * P][4])
{
    typedef steps<T> S;
    typedef stage<T, TILE> G;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, j = lane % 4;
    const uint8_t *r0 = smem + (warp * 16 + lane / 4) * S::STRIDE, *r1 = r0 + 8 * S::STRIDE;
    const uint8_t *b0 = smem + G::A_BYTES + ((lane / 16) * 8 + lane % 8) * G::B_STRIDE + 16 * (lane / 8 % 2);
    const uint8_t *d0 = smem + G::A_BYTES + G::B_BYTES + 16 * j;
    enum { UNROLL = S::UNIT == 32 && !S::SPLIT ? S::BK / S::UNIT : 1 }; /* more would cost registers */
#pragma unroll UNROLL
    for (int u = 0; u < S::BK / S::UNIT; u++) {
        typename S::unit x;
        S::load(r0, r1, k0, u, j, x);
#pragma unroll
        for (int h = 0; h < S::UNIT / 32; h++) {
            const int kk = u * (S::UNIT / 32) + h;
            uint32_t a[4];
            S::codes(x, h, a);
#pragma unroll
            for (int n = 0; n < P; n++) {
                uint32_t b[4]; /* two tiles of eight rows */
                ldmatrix4(b, b0 + n * 16 * G::B_STRIDE + 32 * kk);
                const float4 da = *(const float4 *)(d0 + (kk * TILE + n * 16) * 8), db = *(const float4 *)(d0 + (kk * TILE + n * 16 + 8) * 8);
                group32<S>(x, h, a, b[0], b[1], da, acc[2 * n]);
                group32<S>(x, h, a, b[2], b[3], db, acc[2 * n + 1]);
            }
        }
    }
}

template <int T, int TILE, int P> static __device__ __forceinline__ void block(const gemm &g, const place &p, uint8_t *smem)
{
    typedef steps<T> S;
    typedef stage<T, TILE> G;
    const uint32_t n = g.m.k / S::BK;
    float acc[2 * P][4] = {};
#pragma unroll
    for (uint32_t s = 0; s < G::N - 1; s++) {
        if (s < n) {
            fetch_weights<T>(g, p, s * S::BK, smem + s * G::BYTES);
            fetch_rows<T, TILE, P>(g, p, s * S::BK, smem + s * G::BYTES);
        }
        copies_commit();
    }
    uint32_t use = 0, fill = G::N - 1;
    for (uint32_t i = 0; i < n; i++) {
        copies_wait<G::N - 2>();
        __syncthreads(); /* step i is there for all, and step i - 1 has been used by all */
        if (i + G::N - 1 < n) {
            fetch_weights<T>(g, p, (i + G::N - 1) * S::BK, smem + fill * G::BYTES);
            fetch_rows<T, TILE, P>(g, p, (i + G::N - 1) * S::BK, smem + fill * G::BYTES);
        }
        copies_commit();
        multiply<T, TILE, P>(g, p, smem + use * G::BYTES, i * S::BK, acc);
        use = use + 1 == G::N ? 0 : use + 1;
        fill = fill + 1 == G::N ? 0 : fill + 1;
    }
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = p.row0 + warp * 16 + lane / 4;
#pragma unroll
    for (int t = 0; t < 2 * P; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t col = t * 8 + lane % 4 * 2 + i % 2, r = row + i / 2 * 8;
            if (col < p.count && r < g.m.rows) {
                float *y = g.y + (size_t)p.out_row[col] * g.y_pitch + r;
                *y = g.accumulate ? *y + acc[t][i] : acc[t][i];
            }
        }
}

template <int T, int TILE>
static __global__ void __launch_bounds__(THREADS, TILE == GEMM_LARGE ? 2 : 3)
    gemm_kernel(const __grid_constant__ gemm g, uint32_t per, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ int32_t in_row[TILE], out_row[TILE];
    pdl_release();
    pdl_wait();
    stamp(at);
    uint32_t mat = 0, first = blockIdx.y * per, count = g.n - first < per ? g.n - first : per;
    if (g.tiles != nullptr) {
        if ((int32_t)blockIdx.y >= g.tiles[0])
            return;
        mat = (uint32_t)g.tiles[1 + 3 * blockIdx.y];
        first = (uint32_t)g.tiles[2 + 3 * blockIdx.y];
        count = (uint32_t)g.tiles[3 + 3 * blockIdx.y];
    }
    for (uint32_t i = threadIdx.x; i < TILE; i += THREADS) { /* rows past the end repeat the last: computed, never stored */
        const uint32_t e = first + (i < count ? i : count - 1);
        in_row[i] = g.from != nullptr ? g.from[e] : (int32_t)e;
        out_row[i] = g.to != nullptr ? g.to[e] : (int32_t)e;
    }
    __syncthreads();
    const place p = {g.m.w + mat * g.m.mat_pitch, blockIdx.x * BM, count, in_row, out_row};
    if (count <= 16)
        block<T, TILE, 1>(g, p, smem);
    else if (count <= 32)
        block<T, TILE, 2>(g, p, smem);
    else if constexpr (TILE > 32) {
        if (count <= 64)
            block<T, TILE, 4>(g, p, smem);
        else if (count <= 96)
            block<T, TILE, 6>(g, p, smem);
        else
            block<T, TILE, 8>(g, p, smem);
    }
}

template <int T, int TILE> static cudaError_t start(const struct kcu_launch *l, const gemm &g, dim3 grid, uint32_t per)
{
    typedef stage<T, TILE> G;
    cudaError_t e = cudaFuncSetAttribute(gemm_kernel<T, TILE>, cudaFuncAttributeMaxDynamicSharedMemorySize, G::N * G::BYTES);
    return e != cudaSuccess ? e : launch(l, gemm_kernel<T, TILE>, grid, dim3(THREADS), G::N * G::BYTES, 0, g, per, l->stamp);
}

template <int TILE> static cudaError_t start_type(const struct kcu_launch *l, const gemm &g, dim3 grid, uint32_t per)
{
    switch (g.m.type) {
    case KRN_Q8_0: return start<KRN_Q8_0, TILE>(l, g, grid, per);
    case KRN_Q4_K: return start<KRN_Q4_K, TILE>(l, g, grid, per);
    case KRN_Q5_K: return start<KRN_Q5_K, TILE>(l, g, grid, per);
    case KRN_Q6_K: return start<KRN_Q6_K, TILE>(l, g, grid, per);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t gemm_run(const struct kcu_launch *l, const struct gemm *g, uint32_t tile, uint32_t per, uint32_t tiles)
{
    const dim3 grid((g->m.rows + BM - 1) / BM, tiles);
    return tile == GEMM_LARGE ? start_type<GEMM_LARGE>(l, *g, grid, per) : start_type<GEMM_SMALL>(l, *g, grid, per);
}

/* The largest tile that leaves every multiprocessor a block, 16 at least. */
static uint32_t rows_per_block(uint32_t n, uint32_t weight_rows)
{
    const uint32_t across = (weight_rows + BM - 1) / BM;
    uint32_t per = GEMM_LARGE;
    while (per > 16 && (n <= per / 2 || across * ((n + per - 1) / per) < 128))
        per /= 2;
    return per;
}

uint32_t gemm_tile(uint32_t n, uint32_t weight_rows)
{
    return rows_per_block(n, weight_rows) <= GEMM_SMALL ? GEMM_SMALL : GEMM_LARGE;
}

extern "C" bool kcu_gemm_takes(const struct kcu_mat *m)
{
    return m->w != NULL && m->k % (m->type == KRN_Q8_0 ? 64 : 256) == 0 &&
           (m->type == KRN_Q8_0 || m->type == KRN_Q4_K || m->type == KRN_Q5_K || m->type == KRN_Q6_K);
}

extern "C" cudaError_t kcu_gemm(const struct kcu_launch *l, const struct kcu_linear *a)
{
    struct kcu_launch next = *l;
    for (uint32_t i = 0; i < a->n_mats && a->n != 0; i++) {
        if (a->m[i].w == NULL)
            continue;
        const uint32_t per = rows_per_block(a->n, a->m[i].rows);
        const gemm g = {.m = a->m[i],
                        .q8 = a->in.q8,
                        .q8_pitch = a->in.q8_pitch,
                        .y = a->y + a->col[i],
                        .y_pitch = a->y_pitch,
                        .n = a->n,
                        .accumulate = a->accumulate};
        cudaError_t e = gemm_run(&next, &g, gemm_tile(a->n, a->m[i].rows), per, (a->n + per - 1) / per);
        if (e != cudaSuccess)
            return e;
        next.stamp = NULL;
    }
    return cudaSuccess;
}
