/* The products of gemm.cu by the asynchronous tensor cores of compute capability 9.0. A warpgroup makes 64 weight rows x up to 128 rows of activations: its
 * warps turn weights into operands in registers while the products of those before are under way, and read no activations themselves. Where a product has few
 * blocks, the warpgroups of a block or the blocks of a cluster share K; their sums are added in order at the end. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"
#include "kernels/cuda/wgmma.cuh"

/* TILE: rows of activations at most, SIDE: warpgroups beside each other, SHARE: along K, UNITS: of 64 weights a step of a warpgroup, BLOCKS: per multiprocessor. */
template <int FORM> struct shape;
template <> struct shape<FORM_FEW> {
    enum { TILE = 32, SIDE = 2, SHARE = 1, UNITS = 4, BLOCKS = 2 };
};
template <> struct shape<FORM_FEW_WIDE> {
    enum { TILE = 32, SIDE = 4, SHARE = 1, UNITS = 4, BLOCKS = 1 };
};
template <> struct shape<FORM_FEW_SHARED> {
    enum { TILE = 32, SIDE = 1, SHARE = 4, UNITS = 1, BLOCKS = 1 };
};
template <> struct shape<FORM_SHARED> {
    enum { TILE = 64, SIDE = 1, SHARE = 4, UNITS = 1, BLOCKS = 1 };
};
template <> struct shape<FORM_MANY> {
    enum { TILE = 128, SIDE = 4, SHARE = 1, UNITS = 2, BLOCKS = 1 };
};

enum { MAX_SHARE = 8, MOST = 6 /* steps */ };

/* Shared memory: steps in turn, of each the warpgroups' parts along K: activations, in tiles of 64 columns, then weights. */
template <int T, int FORM, int U> struct place_of {
    typedef shape<FORM> H;
    typedef steps<T, 64 * U> S;
    enum {
        UNITS = U,
        BK = 64 * U,
        TEAM = H::SIDE * 128, /* threads that share a part */
        THREADS = TEAM * H::SHARE,
        ROWS = H::SIDE * 64,
        TILE_BYTES = H::TILE * 128,
        X_BYTES = U * TILE_BYTES,
        PART = (X_BYTES + ROWS * S::STRIDE + 1023) / 1024 * 1024,
        BYTES = H::SHARE * PART,
        FIT = (227 * 1024 / H::BLOCKS - 3 * 1024) / BYTES,
        N = FIT > MOST ? MOST : FIT,
        SUMS = (H::SHARE - 1) * ROWS * H::TILE * 4
    };
};

/* A step in use and steps on their way must have room: else shorter steps. */
template <int T, int FORM> struct place : place_of<T, FORM, place_of<T, FORM, shape<FORM>::UNITS>::N >= 3 ? shape<FORM>::UNITS : 2> {
    static_assert(place::N >= 3, "room for three steps");
    static_assert(place::SUMS <= place::N * place::BYTES && shape<FORM>::TILE / 2 * 4 * place::THREADS <= place::N * place::BYTES, "room for the parts' sums");
};

struct async_task {
    const uint8_t *w;
    size_t pitch;
    uint32_t rows, row0, count;
    const int32_t *in_row, *out_row; /* shared memory */
    float *y;
};

#ifdef HAVE_WGMMA
/* Whatever this was made of, it is not to be made again in every step. */
template <class P> static __device__ __forceinline__ void keep(P *&p)
{
    asm("" : "+l"(p));
}

/* What a thread brings of every step: pieces of two weight rows, every fourth one, and a piece of up to four rows of activations. */
template <int T, int FORM, int N> struct fetcher {
    typedef place<T, FORM> G;
    enum { QUADS = G::TEAM / 4, PER = G::BK / 8, LINES = G::TEAM / PER, TURNS = (N + LINES - 1) / LINES };
    const uint8_t *w[G::ROWS / QUADS];
    const __half *x[TURNS];
    uint32_t to_w, to_x, piece;

    __device__ __forceinline__ void weights_of(const async_task &t)
    {
        const uint32_t i = threadIdx.x % G::TEAM, row = t.row0 + i / 4;
        piece = i % 4;
        to_w = G::X_BYTES + i / 4 * G::S::STRIDE;
#pragma unroll
        for (uint32_t r = 0; r < G::ROWS / QUADS; r++) {
            w[r] = t.w + (size_t)(row + r * QUADS < t.rows ? row + r * QUADS : t.rows - 1) * t.pitch;
            keep(w[r]);
        }
    }
    __device__ __forceinline__ void rows_of(const gemm &g, const async_task &t)
    {
        const uint32_t i = threadIdx.x % G::TEAM, r = i / PER, c = i % PER;
        to_x = c / 8 * G::TILE_BYTES + wgmma_place(r, c % 8);
#pragma unroll
        for (uint32_t k = 0; k < TURNS; k++) {
            x[k] = g.h + (size_t)t.in_row[r + k * LINES < N ? r + k * LINES : 0] * g.h_pitch + 8 * c;
            keep(x[k]);
        }
    }
    __device__ __forceinline__ void bring_weights(uint32_t k, uint32_t k0, uint8_t *part) const
    {
#pragma unroll
        for (uint32_t r = 0; r < G::ROWS / QUADS; r++)
#pragma unroll
            for (uint32_t i = 0; i < (G::S::PIECES + 3) / 4; i++)
                if (4 * i + 3 < G::S::PIECES || 4 * i + piece < G::S::PIECES)
                    G::S::fetch(part + to_w + r * QUADS * G::S::STRIDE, w[r], k, k0, 4 * i + piece);
    }
    __device__ __forceinline__ void bring_rows(uint32_t k0, uint8_t *part) const
    {
        static_assert(LINES % 8 == 0, "the same place within eight rows");
#pragma unroll
        for (uint32_t k = 0; k < TURNS; k++)
            if (N % LINES == 0 || threadIdx.x % G::TEAM / PER + k * LINES < N)
                copy_async<16>(part + to_x + k * LINES * 128, x[k] + k0);
    }
};

/* This warpgroup's part of a step, of the first one without `add`. */
template <int T, int FORM, int N> static __device__ __forceinline__ void multiply(const uint8_t *part, uint32_t k0, bool add, float acc[N / 2])
{
    typedef place<T, FORM> G;
    typedef typename G::S S;
    const uint32_t warp = threadIdx.x / 32 % 4, side = threadIdx.x / 128 % G::H::SIDE, lane = threadIdx.x % 32, j = lane % 4;
    const uint8_t *a0 = part + G::X_BYTES + (side * 64 + warp * 16 + lane / 4) * S::STRIDE, *mine = a0 + j % 2 * 8 * S::STRIDE;
    const uint32_t b = wgmma_tile(part);
    uint2 own = make_uint2(0, 0);
#pragma unroll
    for (int u = 0; u < G::UNITS; u++) {
        if (u % 2 == 0) /* two rows' scales of two units, one for each lane of the quad */
            own = S::unit_scales(mine, k0, u + (G::UNITS > 1 ? j / 2 : 0));
        uint32_t h[2][2][4]; /* row, group */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            typename S::raw x;
            uint2 s;
            S::load(a0 + i * 8 * S::STRIDE, k0, u, j, x);
            s.x = __shfl_sync(0xffffffffu, own.x, u % 2 * 2 + i, 4);
            s.y = __shfl_sync(0xffffffffu, own.y, u % 2 * 2 + i, 4);
            S::unit(x, s, h[i]);
        }
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int group = s / 2, at = s % 2 * 2;
            const uint32_t a[4] = {h[0][group][at], h[1][group][at], h[0][group][at + 1], h[1][group][at + 1]};
            wgmma<N>(acc, a, b + u * (G::TILE_BYTES / 16) + 2 * s, u + s != 0 || add);
        }
        wgmma_commit();
        if (u + 1 < G::UNITS)
            wgmma_wait<1>(); /* the operands of the unit before have been read */
        else
            wgmma_wait<0>(); /* the assembler does not keep operands apart over the end of a loop */
    }
}

/* Add up the parts along K, in order; the first one has the sums. */
template <int T, int FORM, int N> static __device__ __forceinline__ bool add_parts(float *room, float acc[N / 2])
{
    typedef place<T, FORM> G;
    const uint32_t part = threadIdx.x / G::TEAM;
    float *mine = room + threadIdx.x % G::TEAM;
    __syncthreads(); /* the last step has been used */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if (part != 0)
            mine[((part - 1) * (N / 2) + i) * G::TEAM] = acc[i];
    __syncthreads();
    if (part != 0)
        return false;
#pragma unroll
    for (int p = 0; p < G::H::SHARE - 1; p++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] += mine[(p * (N / 2) + i) * G::TEAM];
    return true;
}

/* Value v of this thread's N / 2, to its place. */
static __device__ __forceinline__ void put_value(const gemm &g, const async_task &t, uint32_t row0, uint32_t v, float x)
{
    const uint32_t col = v / 4 * 8 + threadIdx.x % 4 * 2 + v % 2, row = row0 + v % 4 / 2 * 8;
    if (col >= t.count || row >= t.rows)
        return;
    float *y = t.y + (size_t)t.out_row[col] * g.y_pitch + row;
    x *= g.h_scale[t.in_row[col]] * (1.0f / UP); /* powers of two */
    *y = g.accumulate ? *y + x : x;
}

/* Blocks of a cluster share K: each adds up a part of the values of all, in order, and puts it. */
template <int N> static __device__ __forceinline__ void join_blocks(const gemm &g, const async_task &t, uint32_t row0, float *room, const float acc[N / 2])
{
    const uint32_t each = N / 2 / g.share, first = blockIdx.x % g.share * each;
    float *mine = room + threadIdx.x;
    __syncthreads(); /* the last step has been used */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        mine[i * blockDim.x] = acc[i];
    cluster_meet();
    for (uint32_t v = first; v < first + each; v++) {
        float part[MAX_SHARE], sum = 0;
#pragma unroll
        for (uint32_t b = 0; b < MAX_SHARE; b++)
            part[b] = b < g.share ? fetch_from(at_block(mine + v * blockDim.x, b)) : 0;
#pragma unroll
        for (uint32_t b = 0; b < MAX_SHARE; b++)
            sum += part[b];
        put_value(g, t, row0, v, sum);
    }
    cluster_meet(); /* nobody leaves while others read */
}

template <int T, int FORM, int N>
static __device__ __forceinline__ void run(const gemm &g, const async_task &t, uint8_t *room)
{
    typedef place<T, FORM> G;
    enum { BK = G::BK, SHARE = G::H::SHARE };
    const uint32_t team = SHARE > 1 ? threadIdx.x / G::TEAM : 0, first = blockIdx.x % g.share * SHARE + team, stride = SHARE * g.share, pieces = g.m.k / BK,
                   n = (pieces + stride - 1) / stride;
    uint8_t *mine = room + team * G::PART;
    float acc[N / 2]; /* the first product fills it: zeros of ours would keep the products from running by themselves */
    fetcher<T, FORM, N> f;
    f.weights_of(t);
    f.rows_of(g, t);
#pragma unroll
    for (uint32_t s = 0; s < G::N - 2; s++) {
        const uint32_t k = s * stride + first;
        if (k < pieces) {
            if (g.tiles != nullptr)
                f.bring_weights(g.m.k, k * BK, mine + s * G::BYTES);
            f.bring_rows(k * BK, mine + s * G::BYTES);
        }
        copies_commit();
    }
    uint32_t use = 0, fill = G::N - 2;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        copies_wait<G::N - 3>();
        wgmma_written();
        __syncthreads(); /* step i is there for all, and all have done with step i - 1 */
        const uint32_t next = (i + G::N - 2) * stride + first, k = i * stride + first;
        if (next < pieces) {
            f.bring_weights(g.m.k, next * BK, mine + fill * G::BYTES);
            f.bring_rows(next * BK, mine + fill * G::BYTES);
        }
        copies_commit();
        if (k < pieces)
            multiply<T, FORM, N>(mine + use * G::BYTES, k * BK, i != 0, acc);
        use = use + 1 == G::N ? 0 : use + 1;
        fill = fill + 1 == G::N ? 0 : fill + 1;
    }
    const uint32_t row0 = t.row0 + threadIdx.x % G::TEAM / 32 * 16 + threadIdx.x % 32 / 4;
    if (SHARE == 1 && g.share > 1) {
        join_blocks<N>(g, t, row0, (float *)room, acc);
        return;
    }
    if constexpr (SHARE > 1)
        if (!add_parts<T, FORM, N>((float *)room, acc))
            return;
#pragma unroll
    for (int v = 0; v < N / 2; v++)
        put_value(g, t, row0, v, acc[v]);
}
#endif

template <int T, int FORM>
static __global__ void __launch_bounds__(place<T, FORM>::THREADS, shape<FORM>::BLOCKS)
    async_kernel(const __grid_constant__ gemm g, uint32_t per, uint64_t *at)
{
#ifdef HAVE_WGMMA
    typedef place<T, FORM> G;
    extern __shared__ uint8_t dynamic[];
    __shared__ int32_t in_row[G::H::TILE], out_row[G::H::TILE];
    uint8_t *room = dynamic + (1024 - smem_of(dynamic) % 1024) % 1024;
    const uint32_t blocks = (g.m.rows + G::ROWS - 1) / G::ROWS;
    const uint32_t x = blockIdx.x / g.share;
    const bool second = x >= blocks;
    const struct kcu_mat &m = second ? g.second : g.m;
    async_task t = {m.w, m.pitch, m.rows, (x - (second ? blocks : 0)) * G::ROWS, 0, in_row, out_row, second ? g.second_y : g.y};
    pdl_release();
    if (g.tiles == nullptr) { /* weights depend on nobody */
        fetcher<T, FORM, 16> f;
        f.weights_of(t);
        for (uint32_t s = 0; s < G::N - 2; s++) {
            const uint32_t team = threadIdx.x / G::TEAM, k = (s * g.share + blockIdx.x % g.share) * G::H::SHARE + team;
            if (k < g.m.k / G::BK)
                f.bring_weights(g.m.k, k * G::BK, room + s * G::BYTES + team * G::PART);
        }
    }
    pdl_wait();
    stamp(at);
    uint32_t first = blockIdx.y * per;
    t.count = g.n - first < per ? g.n - first : per;
    if (g.tiles != nullptr) {
        if ((int32_t)blockIdx.y >= g.tiles[0])
            return;
        t.w += (uint32_t)g.tiles[1 + 3 * blockIdx.y] * m.mat_pitch;
        first = (uint32_t)g.tiles[2 + 3 * blockIdx.y];
        t.count = (uint32_t)g.tiles[3 + 3 * blockIdx.y];
    }
    for (uint32_t i = threadIdx.x; i < G::H::TILE; i += G::THREADS) { /* rows past the end repeat the last: computed, never stored */
        const uint32_t e = first + (i < t.count ? i : t.count - 1);
        in_row[i] = g.from != nullptr ? g.from[e] : (int32_t)e;
        out_row[i] = g.to != nullptr ? g.to[e] : (int32_t)e;
    }
    __syncthreads();
    if (t.count <= 16 && G::H::TILE <= 32)
        run<T, FORM, 16>(g, t, room);
    else if (t.count <= 32 || G::H::TILE <= 32)
        run<T, FORM, 32>(g, t, room);
    else if constexpr (G::H::TILE > 32) {
        if (t.count <= 64 || G::H::TILE == 64)
            run<T, FORM, 64>(g, t, room);
        else if constexpr (G::H::TILE > 64) {
            if (t.count <= 96)
                run<T, FORM, 96>(g, t, room);
            else
                run<T, FORM, 128>(g, t, room);
        }
    }
#endif
}

template <int T, int FORM> static cudaError_t start(const struct kcu_launch *l, const gemm &g, uint32_t tiles, uint32_t per)
{
    typedef place<T, FORM> G;
    const size_t bytes = G::N * G::BYTES + 1024;
    const uint32_t blocks = (g.m.rows + G::ROWS - 1) / G::ROWS + (g.second.w != nullptr ? (g.second.rows + G::ROWS - 1) / G::ROWS : 0);
    cudaError_t e = cudaFuncSetAttribute(async_kernel<T, FORM>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e : launch(l, async_kernel<T, FORM>, dim3(blocks * g.share, tiles), dim3(G::THREADS), bytes, g.share, g, per, l->stamp);
}

template <int FORM> static cudaError_t start_type(const struct kcu_launch *l, const gemm &g, uint32_t tiles, uint32_t per)
{
    switch (g.m.type) {
    case KRN_Q8_0: return start<KRN_Q8_0, FORM>(l, g, tiles, per);
    case KRN_Q4_K: return start<KRN_Q4_K, FORM>(l, g, tiles, per);
    case KRN_Q5_K: return start<KRN_Q5_K, FORM>(l, g, tiles, per);
    case KRN_Q6_K: return start<KRN_Q6_K, FORM>(l, g, tiles, per);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t gemm_async_run(const struct kcu_launch *l, const struct gemm *g, const struct gemm_how *how, uint32_t tiles)
{
    const uint32_t per = how->per;
    struct gemm s = *g;
    s.share = how->share;
    g = &s;
    switch (how->form) {
    case FORM_FEW: return start_type<FORM_FEW>(l, *g, tiles, per);
    case FORM_FEW_WIDE: return start_type<FORM_FEW_WIDE>(l, *g, tiles, per);
    case FORM_FEW_SHARED: return start_type<FORM_FEW_SHARED>(l, *g, tiles, per);
    case FORM_SHARED: return start_type<FORM_SHARED>(l, *g, tiles, per);
    default: return start_type<FORM_MANY>(l, *g, tiles, per);
    }
}

/* Is the code for 9.0 there? PTX of other capabilities, compiled for this device, does not have it. */
bool gemm_async_here(void)
{
    struct cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, async_kernel<KRN_Q8_0, FORM_FEW>) == cudaSuccess && a.binaryVersion == 90 && a.ptxVersion == 90;
}

static float rounds(uint32_t blocks, uint32_t slots)
{
    return (float)((blocks + slots - 1) / slots);
}

/* Microseconds, roughly, as measured on an H200: a step of 256 weight rows and 128 of K takes by itself what it takes, and a block has a beginning and an end. */
static float us_wide(const struct kcu_mat *m, uint32_t p, uint32_t share)
{
    const uint32_t tile = p <= 32 ? 32 : 128, blocks = (m->rows + 255) / 256 * ((p + tile - 1) / tile) * share,
                   slots = share == 1 ? 132 : share == 2 ? 128 : share == 4 ? 112 : 104;
    const float step = p <= 32 ? 1.8f : p <= 64 ? 2.1f : 3.6f;
    return rounds(blocks, slots) * ((float)(m->k / 128 / share) * step + 4.5f) + (share > 1 ? 1.0f : 0.0f);
}

static float us_shared(const struct kcu_mat *m, uint32_t p)
{
    const uint32_t tile = p <= 32 ? 32 : 64;
    return rounds((m->rows + 63) / 64 * ((p + tile - 1) / tile), 132) * ((float)m->k / 256 * (p <= 32 ? 0.95f : 1.2f) + 4.5f);
}

bool gemm_async_takes(uint32_t n, const struct kcu_mat *m)
{
    const uint32_t p = power_above(n);
    return m->k % 64 == 0 && m->k / 64 >= shape<FORM_SHARED>::SHARE /* no part of K is empty */
           && !(p > 64 && (uint64_t)m->rows * p >= 16u << 20); /* where many blocks follow each other gemm.cu is faster */
}

struct gemm_how gemm_async_how(uint32_t n, const struct kcu_mat *m)
{
    const uint32_t p = power_above(n), few = p <= 16 ? 16 : 32;
    struct gemm_how best = p <= 32 ? gemm_how{FORM_FEW_SHARED, few, 1} : gemm_how{FORM_SHARED, 64, 1};
    float least = us_shared(m, p);
    for (uint32_t share = 1; share <= MAX_SHARE && m->k % 256 == 0 && m->k / 256 >= share; share *= 2)
        if (us_wide(m, p, share) < least) {
            least = us_wide(m, p, share);
            best = p <= 32 ? gemm_how{FORM_FEW_WIDE, few, share} : gemm_how{FORM_MANY, 128, share};
        }
    return best;
}
