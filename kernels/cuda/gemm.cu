/* Many rows at once on f16 tensor cores, sums in f32. A block makes 64 or 128 weight rows x up to 32 or 128 rows of activations. Weights travel as they lie in memory,
 * asynchronously and several steps ahead, into shared memory; every warp turns its own rows from there straight into operands. Activations come as f16
 * with a power of two per row (kcu_halve()), in an order within 16 that makes four neighbouring codes of a weight row one lane's. Products are summed in the
 * order of K by one chain of instructions: an element has the same bits whatever the number of rows and however they are cut into tiles. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"

enum {
    GEMM_WIDE_FROM = 1024,
    GEMM_WIDE_SIZE = 16 << 20, /* or rows times weight rows */
    GEMM_KEPT_FROM = 64,       /* for weights that are there as f16 */
    GEMM_HALF_FROM = 512,      /* rows that are worth it to unpack them first */
    GEMM_HALF_ROOM = 16 << 20  /* values that stay in the second-level cache from there to the product */
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

/* Wide tiles, wherever there are rows enough, of either sort, since bits do not depend on it. */
static bool wide(const struct kcu_linear *a)
{
    const uint32_t p = power_above(a->n);
    return (p >= GEMM_WIDE_FROM || (p > 64 && (uint64_t)a->m[0].rows * p >= GEMM_WIDE_SIZE)) && gemm_wide_here();
}

/* May both weights go in one launch? */
static bool together(const struct kcu_launch *l, const struct kcu_linear *a)
{
    return a->n_mats == 2 && a->m[0].w != NULL && a->m[1].w != NULL && a->m[0].type == a->m[1].type && a->m[0].k == a->m[1].k &&
           (wide(a) || (!l->fixed && gemm_async_takes(a->n, &a->m[0]) && gemm_async_here()));
}

static struct gemm of_mat(const struct kcu_linear *a, uint32_t i)
{
    return {.m = a->m[i],
            .h = (const __half *)a->in.h,
            .h_pitch = a->in.h_pitch,
            .h_scale = a->in.h_scale,
            .y = a->y + a->col[i],
            .y_pitch = a->y_pitch,
            .n = a->n,
            .accumulate = a->accumulate};
}

/* What is multiplied from f16: weights that are there so (kept), or that go through the room, so many rows at a time; 0: nothing. both: two in
 * one launch. */
struct by_half {
    uint32_t rows;
    bool kept, both;
};

static by_half halves_of(const struct kcu_linear *a)
{
    const uint32_t k = a->m[a->m[0].w == NULL && a->n_mats == 2].k, p = power_above(a->n);
    const bool two = a->n_mats == 2 && a->m[0].w != NULL && a->m[1].w != NULL;
    bool kept = true;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        const struct gemm g = of_mat(a, i);
        if (g.m.w != NULL && (p < GEMM_KEPT_FROM || g.m.k != k || !gemm_half_takes(&g)))
            return {0, false, false};
        kept = kept && (g.m.w == NULL || g.m.half != NULL);
    }
    if (kept)
        return {UINT32_MAX / 2, true, two};
    if (a->room == NULL || p < GEMM_HALF_FROM)
        return {0, false, false};
    const uint32_t rows = (uint32_t)(a->n_room / k > UINT32_MAX / 2 ? UINT32_MAX / 2 : a->n_room / k) / 16 * 16;
    return {rows, false, two && gemm_half_rows(a->m[0].rows) + gemm_half_rows(a->m[1].rows) <= rows};
}

extern "C" size_t kcu_gemm_room(uint32_t n, uint32_t k, uint32_t rows, uint32_t second)
{
    const size_t all = (size_t)k * (gemm_half_rows(rows) + gemm_half_rows(second));
    return power_above(n) < GEMM_HALF_FROM || !gemm_wide_here() ? 0 : all < GEMM_HALF_ROOM ? all : GEMM_HALF_ROOM;
}

extern "C" size_t kcu_unpacked(uint32_t n, const struct kcu_mat *m)
{
    return power_above(n) < GEMM_KEPT_FROM || m->n_mats != 1 || !kcu_gemm_takes(m) || !gemm_wide_here() ? 0 : (size_t)gemm_half_rows(m->rows) * m->k;
}

extern "C" uint32_t kcu_gemm_kernels(const struct kcu_launch *l, const struct kcu_linear *a)
{
    const by_half h = halves_of(a);
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_mats; i++)
        if (a->m[i].w != NULL)
            n += h.rows == 0 || h.kept ? 1 : 2 * ((a->m[i].rows + h.rows - 1) / h.rows);
    return h.both ? (h.kept ? 1 : 3) : h.rows == 0 && together(l, a) ? 1 : n;
}

/* Weights to f16 where they are not there so, then the product; where there is not room for all, piece by piece. */
static cudaError_t run_half(const struct kcu_launch *l, const struct kcu_linear *a, const by_half &how)
{
    struct kcu_launch next = *l;
    for (uint32_t i = 0; i < a->n_mats; i++) {
        struct gemm g = of_mat(a, i);
        if (g.m.w == NULL)
            continue;
        const uint32_t rows = g.m.rows;
        for (uint32_t row = 0; row < rows; row += how.rows) {
            cudaError_t e = cudaSuccess;
            g.m.w = a->m[i].w + row * a->m[i].pitch;
            g.m.rows = rows - row < how.rows ? rows - row : how.rows;
            g.y = a->y + a->col[i] + row;
            g.kept = how.kept;
            if (how.both) {
                g.second = a->m[1];
                g.second_y = a->y + a->col[1];
            }
            if (!how.kept) {
                g.m.half = a->room;
                e = kcu_unpack(&next, &g.m, a->room);
                next.stamp = NULL;
            }
            if (e == cudaSuccess && !how.kept && how.both) {
                uint16_t *behind = a->room + (size_t)gemm_half_rows(rows) * g.m.k;
                g.second.half = behind;
                e = kcu_unpack(&next, &g.second, behind);
            }
            if (e == cudaSuccess)
                e = gemm_half_run(&next, &g);
            next.stamp = NULL;
            if (e != cudaSuccess || how.both)
                return e;
        }
    }
    return cudaSuccess;
}

extern "C" cudaError_t kcu_gemm(const struct kcu_launch *l, const struct kcu_linear *a)
{
    const by_half half = halves_of(a);
    if (half.rows != 0 && a->n != 0)
        return run_half(l, a, half);
    const bool large = wide(a), here = !large && !l->fixed && gemm_async_here(), both = together(l, a);
    struct kcu_launch next = *l;
    for (uint32_t i = 0; i < a->n_mats && a->n != 0; i++) {
        if (a->m[i].w == NULL)
            continue;
        struct gemm g = of_mat(a, i);
        const bool async = here && gemm_async_takes(a->n, &a->m[i]);
        enum gemm_shape how = GEMM_LARGE;
        if (both) {
            g.second = a->m[1];
            g.second_y = a->y + a->col[1];
        }
        cudaError_t e;
        if (large) {
            const uint32_t per = gemm_wide_rows(a->n, &a->m[i]);
            e = gemm_wide_run(&next, &g, per, (a->n + per - 1) / per);
        } else if (async) {
            struct kcu_mat all = a->m[i];
            all.rows += both ? a->m[1].rows : 0;
            const struct gemm_how best = gemm_async_how(a->n, &all);
            e = gemm_async_run(&next, &g, &best, (a->n + best.per - 1) / best.per);
        } else {
            const uint32_t per = rows_per_block(a->n, &a->m[i], &how);
            e = gemm_run(&next, &g, how, per, (a->n + per - 1) / per);
        }
        if (e != cudaSuccess || both)
            return e;
        next.stamp = NULL;
    }
    return cudaSuccess;
}
