/* Many rows at once on f16 tensor cores, sums in f32. A block makes 64 or 128 weight rows x up to 32 or 128 rows of activations. Weights travel as they lie in memory,
 * asynchronously and several steps ahead, into shared memory; every warp turns its own rows from there straight into operands. Activations come as f16
 * with a power of two per row (kcu_halve()), in an order within 16 that makes four neighbouring codes of a weight row one lane's. Products are summed in the
 * order of K by one chain of instructions: an element has the same bits whatever the number of rows and however they are cut into tiles. */
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/tensor.cuh"

static __device__ __forceinline__ uint32_t word(const uint8_t *p)
{
    return *(const uint32_t *)p;
}

static __device__ __forceinline__ uint32_t pack(float a, float b)
{
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

/* Weights are multiplied by this on their way to f16, so that scales of small ones keep their bits. */
static const float UP = 64.0f;

/* Bytes (0 or 1 of `half`) of four codes to two f16: as 1024 + code, less `zero` (1024 and the format's), times the scale, less the minimum. */
template <bool MIN> static __device__ __forceinline__ void pair_up(uint32_t codes, uint32_t zero, uint32_t a, uint32_t b, uint32_t h[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t x = __byte_perm(codes, 0x64646464u, i ? 0x4342 : 0x4140);
        const __half2 q = __hsub2(*(const __half2 *)&x, *(const __half2 *)&zero), s = *(const __half2 *)&a, m = *(const __half2 *)&b;
        const __half2 w = MIN ? __hfma2(q, s, m) : __hmul2(q, s);
        h[i] = *(const uint32_t *)&w;
    }
}

static __device__ __forceinline__ uint32_t both(uint32_t packed, int high)
{
    return __byte_perm(packed, 0, high ? 0x3232 : 0x1010);
}

/* How a format's rows are cut into steps of BK: a row of a step takes STRIDE bytes of shared memory (an odd multiple of 16, so that eight rows meet no bank
 * twice), brought by PIECES copies. Units are 64 weights. scales(): of a unit, four f16 in two words. raw: what a lane needs of a unit of one row, words j
 * and j + 4 of every 32 codes. halves(): group g of 32 as operands: two f16 each for columns 4j, 4j + 2, 16 + 4j, 16 + 4j + 2. */
template <int T, int BK> struct steps;

template <int BK> struct steps<KRN_Q8_0, BK> {
    enum { STRIDE = BK + 16, PIECES = BK / 16 + 1 };
    struct raw {
        uint32_t w[4];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t k, uint32_t k0, uint32_t piece)
    {
        if (piece < BK / 16)
            copy_async<16>(to + 16 * piece, row + k0 + 16 * piece);
        else
            copy_async<BK / 16>(to + BK, row + k + k0 / 16);
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *r, uint32_t, uint32_t u)
    {
        const uint32_t d = word(r + BK + 4 * u); /* 64 times a half: no rounding */
        return make_uint2(pack(UP * half_of(d & 0xffff), UP * half_of(d >> 16)), 0);
    }
    static __device__ __forceinline__ void load(const uint8_t *r, uint32_t, uint32_t u, uint32_t j, raw &x)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x.w[i] = word(r + 64 * u + 16 * i + 4 * j) ^ 0x80808080u;
    }
    static __device__ __forceinline__ void halves(const raw &x, int g, const uint2 &s, uint32_t h[4])
    {
        pair_up<false>(x.w[2 * g], 0x64806480u, both(s.x, g), 0, h);
        pair_up<false>(x.w[2 * g + 1], 0x64806480u, both(s.x, g), 0, h + 2);
    }
};

/* Q4_K and Q5_K: header, upper bits, then the half bytes that the step is about. Codes are taken from their middle, which makes what is left of the minimum
 * small: rounded to f16, code times scale and minimum would be several times the weight that is their difference. */
template <int BK, int BLOCK, int HEAD, bool FIFTH> struct k_steps {
    enum { STRIDE = HEAD + BK / 2, PIECES = STRIDE / 16, MIDDLE = FIFTH ? 16 : 8 };
    struct raw {
        uint32_t w[2], h[FIFTH ? 2 : 1];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t, uint32_t k0, uint32_t piece)
    {
        const uint8_t *p = row + (size_t)(k0 / 256) * BLOCK + 16 * piece;
        copy_async<16>(to + 16 * piece, piece < HEAD / 16 ? p : p + k0 % 256 / 2);
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        float a[2], b[2];
        k_scales(*(const uint4 *)r, k0 % 256 / 64 + u, a, b);
        return make_uint2(pack(UP * a[0], UP * a[1]), pack(UP * (MIDDLE * a[0] - b[0]), UP * (MIDDLE * a[1] - b[1])));
    }
    static __device__ __forceinline__ void load(const uint8_t *r, uint32_t k0, uint32_t u, uint32_t j, raw &x)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x.w[i] = word(r + HEAD + 32 * u + 16 * i + 4 * j);
            if (FIFTH)
                x.h[FIFTH ? i : 0] = word(r + 16 + 16 * i + 4 * j) >> 2 * (k0 % 256 / 64 + u);
        }
    }
    static __device__ __forceinline__ void halves(const raw &x, int g, const uint2 &s, uint32_t h[4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t c = x.w[i] >> 4 * g & LOW4;
            if (FIFTH)
                c |= (x.h[FIFTH ? i : 0] >> g & 0x01010101u) << 4;
            pair_up<true>(c, 0x64006400u + MIDDLE * 0x10001u, both(s.x, g), both(s.y, g), h + 2 * i);
        }
    }
};
template <int BK> struct steps<KRN_Q4_K, BK> : k_steps<BK, 144, 16, false> {
};
template <int BK> struct steps<KRN_Q5_K, BK> : k_steps<BK, 176, 48, true> {
};

template <int BK> struct steps<KRN_Q6_K, BK> { /* planes: nibbles, upper two bits, scales, d */
    enum { HIGH = BK / 2, SCALES = HIGH + BK / 4, D = SCALES + BK / 16, STRIDE = (D + 4 + 15) / 32 * 32 + 16, PIECES = BK / 32 + BK / 64 + 2 };
    struct raw {
        uint32_t n[2], h[2];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t k, uint32_t k0, uint32_t piece)
    {
        const uint8_t *scales = row + k / 2 + k / 4;
        if (piece < BK / 32)
            copy_async<16>(to + 16 * piece, row + k0 / 2 + 16 * piece);
        else if (piece < BK / 32 + BK / 64)
            copy_async<16>(to + 16 * piece, row + k / 2 + k0 / 4 + 16 * (piece - BK / 32));
        else if (piece == BK / 32 + BK / 64)
            copy_async<BK / 16>(to + SCALES, scales + k0 / 16);
        else /* the word that d lies in */
            copy_async<4>(to + D, scales + k / 16 + k0 / 512 * 4);
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        const uint32_t s = word(r + SCALES + 4 * u);
        const float d = UP * half_of(word(r + D) >> (k0 & 256) / 16 & 0xffff);
        return make_uint2(pack(d * (float)(int8_t)(s & 255), d * (float)(int8_t)(s >> 8 & 255)),
                          pack(d * (float)(int8_t)(s >> 16 & 255), d * (float)(int8_t)(s >> 24)));
    }
    static __device__ __forceinline__ void load(const uint8_t *r, uint32_t, uint32_t u, uint32_t j, raw &x)
    {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            x.n[g] = word(r + 32 * u + 16 * g + 4 * j);
            x.h[g] = word(r + HIGH + 16 * u + 8 * g + 4 * (j & 1)) >> 2 * (j >> 1); /* words j and j + 4 */
        }
    }
    static __device__ __forceinline__ void halves(const raw &x, int g, const uint2 &s, uint32_t h[4])
    {
        const uint32_t a = g ? s.y : s.x;
        pair_up<false>((x.n[g] & LOW4) | (x.h[g] & 0x03030303u) << 4, 0x64206420u, both(a, 0), 0, h);
        pair_up<false>((x.n[g] >> 4 & LOW4) | (x.h[g] >> 4 & 0x03030303u) << 4, 0x64206420u, both(a, 1), 0, h + 2);
    }
};

/* The shapes of a block. MT: groups of 16 weight rows of a warp, WN: warps that share the rows of activations among them, BLOCKS: per multiprocessor. The deep
 * one is for few blocks: nobody else hides the time that its steps are on their way. */
template <int SHAPE> struct shape;
template <> struct shape<GEMM_LARGE> {
    enum { TILE = GEMM_LARGE_ROWS, BK = 64, WARPS = 8, MT = 2, WN = 2, BLOCKS = 2 };
};
template <> struct shape<GEMM_SMALL> {
    enum { TILE = GEMM_SMALL_ROWS, BK = 128, WARPS = 4, MT = 1, WN = 1, BLOCKS = 4 };
};
template <> struct shape<GEMM_DEEP> {
    enum { TILE = GEMM_SMALL_ROWS, BK = 128, WARPS = 4, MT = 1, WN = 1, BLOCKS = 2 };
};

/* Shared memory of a step: weights, then activations. */
template <int T, int SHAPE> struct stage {
    typedef shape<SHAPE> H;
    typedef steps<T, H::BK> S;
    enum {
        THREADS = H::WARPS * 32,
        BM = H::WARPS / H::WN * H::MT * 16,
        B_STRIDE = 2 * H::BK + 16,
        A_BYTES = BM * S::STRIDE,
        BYTES = A_BYTES + H::TILE * B_STRIDE,
        FIT = (228 * 1024 / H::BLOCKS - 3 * 1024) / BYTES,
        N = FIT > 6 ? 6 : FIT
    };
    static_assert(N >= 2, "room for a step in use and one on its way");
};

/* What a block is about. */
struct place {
    const uint8_t *w;
    uint32_t row0, count;
    const int32_t *in_row, *out_row; /* shared memory */
};

template <int T, int SHAPE> static __device__ __forceinline__ void fetch_weights(const gemm &g, const place &p, uint32_t k0, uint8_t *to)
{
    typedef stage<T, SHAPE> G;
    typedef typename G::S S;
    enum { WORK = G::BM * S::PIECES };
#pragma unroll
    for (int i = 0; i < (WORK + G::THREADS - 1) / G::THREADS; i++) {
        const uint32_t j = threadIdx.x + i * G::THREADS, r = j / S::PIECES, row = p.row0 + r;
        if (WORK % G::THREADS == 0 || j < WORK)
            S::fetch(to + r * S::STRIDE, p.w + (size_t)(row < g.m.rows ? row : g.m.rows - 1) * g.m.pitch, g.m.k, k0, j % S::PIECES);
    }
}

template <int T, int SHAPE, int ROWS>
static __device__ __forceinline__ void fetch_rows(const gemm &g, const place &p, uint32_t k0, uint8_t *to)
{
    typedef stage<T, SHAPE> G;
    enum { PER = G::H::BK / 8, WORK = ROWS * PER };
    static_assert(WORK % G::THREADS == 0, "whole rounds");
#pragma unroll
    for (int i = 0; i < WORK / G::THREADS; i++) {
        const uint32_t j = threadIdx.x + i * G::THREADS, t = j / PER, c = j % PER;
        copy_async<16>(to + G::A_BYTES + t * G::B_STRIDE + 16 * c, g.h + (size_t)p.in_row[t] * g.h_pitch + k0 + 8 * c);
    }
}

/* NP: pairs of eight rows of activations of this warp. */
template <int T, int SHAPE, int NP>
static __device__ __forceinline__ void multiply(const uint8_t *smem, uint32_t k0, float acc[shape<SHAPE>::MT][2 * NP][4])
{
    typedef stage<T, SHAPE> G;
    typedef typename G::S S;
    enum { MT = G::H::MT };
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, j = lane % 4;
    const uint8_t *a0 = smem + (warp / G::H::WN * MT * 16 + lane / 4) * S::STRIDE, *mine = a0 + (MT == 2 ? j : j % 2) * 8 * S::STRIDE;
    const uint8_t *b0 = smem + G::A_BYTES + (warp % G::H::WN * NP * 16 + lane / 16 * 8 + lane % 8) * G::B_STRIDE + lane / 8 % 2 * 16;
#pragma unroll
    for (int u = 0; u < G::H::BK / 64; u++) {
        const uint2 own = S::scales(mine, k0, u); /* of one row: the quad shares the work */
        typename S::raw x[2 * MT];
        uint2 s[2 * MT];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            S::load(a0 + i * 8 * S::STRIDE, k0, u, j, x[i]);
            s[i].x = __shfl_sync(0xffffffffu, own.x, i, 4);
            s[i].y = __shfl_sync(0xffffffffu, own.y, i, 4);
        }
#pragma unroll
        for (int g = 0; g < 2; g++) {
            uint32_t h[2 * MT][4];
#pragma unroll
            for (int i = 0; i < 2 * MT; i++)
                S::halves(x[i], g, s[i], h[i]);
#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int n = 0; n < NP; n++) {
                    uint32_t b[4]; /* two tiles of eight rows */
                    ldmatrix4(b, b0 + n * 16 * G::B_STRIDE + (u * 4 + g * 2 + step) * 32);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        const uint32_t a[4] = {h[2 * m][2 * step], h[2 * m + 1][2 * step], h[2 * m][2 * step + 1], h[2 * m + 1][2 * step + 1]};
                        mma_f16(acc[m][2 * n], a, b[0], b[1]);
                        mma_f16(acc[m][2 * n + 1], a, b[2], b[3]);
                    }
                }
        }
    }
}

template <int T, int SHAPE, int NP> static __device__ __forceinline__ void block(const gemm &g, const place &p, uint8_t *smem)
{
    typedef stage<T, SHAPE> G;
    enum { MT = G::H::MT, BK = G::H::BK, ROWS = NP * G::H::WN * 16 };
    const uint32_t n = g.m.k / BK;
    float acc[MT][2 * NP][4] = {};
#pragma unroll
    for (uint32_t s = 0; s < G::N - 1; s++) {
        if (s < n) {
            fetch_weights<T, SHAPE>(g, p, s * BK, smem + s * G::BYTES);
            fetch_rows<T, SHAPE, ROWS>(g, p, s * BK, smem + s * G::BYTES);
        }
        copies_commit();
    }
    uint32_t use = 0, fill = G::N - 1;
    for (uint32_t i = 0; i < n; i++) {
        copies_wait<G::N - 2>();
        __syncthreads(); /* step i is there for all, and step i - 1 has been used by all */
        if (i + G::N - 1 < n) {
            fetch_weights<T, SHAPE>(g, p, (i + G::N - 1) * BK, smem + fill * G::BYTES);
            fetch_rows<T, SHAPE, ROWS>(g, p, (i + G::N - 1) * BK, smem + fill * G::BYTES);
        }
        copies_commit();
        multiply<T, SHAPE, NP>(smem + use * G::BYTES, i * BK, acc);
        use = use + 1 == G::N ? 0 : use + 1;
        fill = fill + 1 == G::N ? 0 : fill + 1;
    }
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = p.row0 + warp / G::H::WN * MT * 16 + lane / 4,
                   col0 = warp % G::H::WN * NP * 16 + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < 2 * NP; t++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t col = col0 + t * 8 + c;
            if (col >= p.count)
                continue;
            const float scale = g.h_scale[p.in_row[col]] * (1.0f / UP); /* powers of two */
            float *y = g.y + (size_t)p.out_row[col] * g.y_pitch;
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                const uint32_t r = row + 8 * i;
                const float v = acc[i / 2][t][2 * (i % 2) + c] * scale;
                if (r < g.m.rows)
                    y[r] = g.accumulate ? y[r] + v : v;
            }
        }
}

template <int T, int SHAPE>
static __global__ void __launch_bounds__(shape<SHAPE>::WARPS * 32, shape<SHAPE>::BLOCKS)
    gemm_kernel(const __grid_constant__ gemm g, uint32_t per, uint64_t *at)
{
    typedef stage<T, SHAPE> G;
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ int32_t in_row[G::H::TILE], out_row[G::H::TILE];
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
    for (uint32_t i = threadIdx.x; i < G::H::TILE; i += G::THREADS) { /* rows past the end repeat the last: computed, never stored */
        const uint32_t e = first + (i < count ? i : count - 1);
        in_row[i] = g.from != nullptr ? g.from[e] : (int32_t)e;
        out_row[i] = g.to != nullptr ? g.to[e] : (int32_t)e;
    }
    __syncthreads();
    const place p = {g.m.w + mat * g.m.mat_pitch, blockIdx.x * G::BM, count, in_row, out_row};
    if constexpr (SHAPE != GEMM_LARGE) {
        if (count <= 16)
            block<T, SHAPE, 1>(g, p, smem);
        else
            block<T, SHAPE, 2>(g, p, smem);
    } else {
        if (count <= 32)
            block<T, SHAPE, 1>(g, p, smem);
        else if (count <= 64)
            block<T, SHAPE, 2>(g, p, smem);
        else if (count <= 96)
            block<T, SHAPE, 3>(g, p, smem);
        else
            block<T, SHAPE, 4>(g, p, smem);
    }
}

template <int T, int SHAPE> static cudaError_t start(const struct kcu_launch *l, const gemm &g, uint32_t tiles, uint32_t per)
{
    typedef stage<T, SHAPE> G;
    cudaError_t e = cudaFuncSetAttribute(gemm_kernel<T, SHAPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, G::N * G::BYTES);
    return e != cudaSuccess
               ? e
               : launch(l, gemm_kernel<T, SHAPE>, dim3((g.m.rows + G::BM - 1) / G::BM, tiles), dim3(G::THREADS), G::N * G::BYTES, 0, g, per, l->stamp);
}

template <int SHAPE> static cudaError_t start_type(const struct kcu_launch *l, const gemm &g, uint32_t tiles, uint32_t per)
{
    switch (g.m.type) {
    case KRN_Q8_0: return start<KRN_Q8_0, SHAPE>(l, g, tiles, per);
    case KRN_Q4_K: return start<KRN_Q4_K, SHAPE>(l, g, tiles, per);
    case KRN_Q5_K: return start<KRN_Q5_K, SHAPE>(l, g, tiles, per);
    case KRN_Q6_K: return start<KRN_Q6_K, SHAPE>(l, g, tiles, per);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t gemm_run(const struct kcu_launch *l, const struct gemm *g, enum gemm_shape shape, uint32_t per, uint32_t tiles)
{
    switch (shape) {
    case GEMM_SMALL: return start_type<GEMM_SMALL>(l, *g, tiles, per);
    case GEMM_DEEP: return start_type<GEMM_DEEP>(l, *g, tiles, per);
    default: return start_type<GEMM_LARGE>(l, *g, tiles, per);
    }
}

/* Rows of activations per block such that the device is busy: the large shape where it has a block for every multiprocessor, else small ones. */
static uint32_t rows_per_block(uint32_t n, const struct kcu_mat *m, enum gemm_shape *how)
{
    const uint32_t large = (m->rows + 127) / 128, small = (m->rows + 63) / 64;
    *how = GEMM_LARGE;
    for (uint32_t per = GEMM_LARGE_ROWS; per >= 64; per /= 2)
        if (n > per / 2 && large * ((n + per - 1) / per) >= 128)
            return per;
    if (m->k % shape<GEMM_DEEP>::BK != 0)
        return n < GEMM_LARGE_ROWS ? (n + 31) / 32 * 32 : GEMM_LARGE_ROWS;
    *how = small * ((n + 31) / 32) > 4 * 132 ? GEMM_SMALL : GEMM_DEEP;
    return n > 16 && small * ((n + 31) / 32) >= 256 ? 32 : 16;
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
        enum gemm_shape how;
        const uint32_t per = rows_per_block(a->n, &a->m[i], &how);
        const gemm g = {.m = a->m[i],
                        .h = (const __half *)a->in.h,
                        .h_pitch = a->in.h_pitch,
                        .h_scale = a->in.h_scale,
                        .y = a->y + a->col[i],
                        .y_pitch = a->y_pitch,
                        .n = a->n,
                        .accumulate = a->accumulate};
        cudaError_t e = gemm_run(&next, &g, how, per, (a->n + per - 1) / per);
        if (e != cudaSuccess)
            return e;
        next.stamp = NULL;
    }
    return cudaSuccess;
}
