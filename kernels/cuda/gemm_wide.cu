/* Products of many rows by the asynchronous tensor cores of compute capability 9.0. A block makes 192 weight rows x up to 192 rows of
 * activations: what limits it is what the second-level cache can deliver. Three warpgroups multiply, each 64 weight rows: its warps turn
 * weights into operands in registers while earlier products are under way. Four more warps bring steps of K into shared memory. Sums run
 * along K in one order: the bits are those of gemm.cu. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

enum {
    BK = 64,
    ROWS = 192,
    TILE = GEMM_WIDE_ROWS,
    WORKERS = ROWS / 64 * 128,
    COPIERS = 128,
    THREADS = WORKERS + COPIERS,
    X_BYTES = TILE * 128,
    PAD = 20, /* floats between activation rows on their way out */
    OWN_REGS = 144, /* of a register file of 64 K, with the copying warps' */
    COPY_REGS = 72
};

/* Shared memory: steps in turn, of each activations, then weights. */
template <int T> struct room {
    typedef steps<T, BK> S;
    enum { BYTES = (X_BYTES + ROWS * S::STRIDE + 1023) / 1024 * 1024, FIT = 222 * 1024 / BYTES, N = FIT > 6 ? 6 : FIT };
    static_assert(N >= 4, "steps that the copying warps have under way");
    static_assert(WORKERS / 32 * TILE * PAD * 4 <= N * BYTES, "room for results");
};

/* What a block is about. pitch: in units of 16 bytes. */
struct wide_task {
    const uint8_t *w;
    uint32_t rows, pitch, row0, count;
    const __half *x;
    float *y;
    const int32_t *in_row, *out_row; /* shared memory */
    const float *scale;
};

#ifdef HAVE_WGMMA
/* Where the pieces of a step of a row lie: those of 16 bytes, in the order of struct steps, and those of 4, with their places there. */
template <int T> struct pieces;
template <> struct pieces<KRN_Q8_0> {
    enum { LARGE = 4, SMALL = 1 };
    static __device__ __forceinline__ uint32_t large(uint32_t, uint32_t k0, uint32_t i)
    {
        return k0 + 16 * i;
    }
    static __device__ __forceinline__ uint32_t small(uint32_t k, uint32_t k0, uint32_t)
    {
        return k + k0 / 16;
    }
    static __device__ __forceinline__ uint32_t small_to(uint32_t)
    {
        return BK;
    }
};
template <int BLOCK, int HEAD> struct k_pieces {
    enum { LARGE = HEAD / 16 + 2, SMALL = 0 };
    static __device__ __forceinline__ uint32_t large(uint32_t, uint32_t k0, uint32_t i)
    {
        return k0 / 256 * BLOCK + 16 * i + (i < HEAD / 16 ? 0 : k0 % 256 / 2);
    }
    static __device__ __forceinline__ uint32_t small(uint32_t, uint32_t, uint32_t)
    {
        return 0;
    }
    static __device__ __forceinline__ uint32_t small_to(uint32_t)
    {
        return 0;
    }
};
template <> struct pieces<KRN_Q4_K> : k_pieces<144, 16> {
};
template <> struct pieces<KRN_Q5_K> : k_pieces<176, 48> {
};
template <> struct pieces<KRN_Q6_K> {
    enum { LARGE = 3, SMALL = 2 };
    static __device__ __forceinline__ uint32_t large(uint32_t k, uint32_t k0, uint32_t i)
    {
        return i < 2 ? k0 / 2 + 16 * i : k / 2 + k0 / 4;
    }
    static __device__ __forceinline__ uint32_t small(uint32_t k, uint32_t k0, uint32_t i)
    {
        return k / 2 + k / 4 + (i == 0 ? k0 / 16 : k / 16 + k0 / 512 * 4);
    }
    static __device__ __forceinline__ uint32_t small_to(uint32_t i)
    {
        return (i == 0 ? steps<KRN_Q6_K, BK>::SCALES : steps<KRN_Q6_K, BK>::D);
    }
};

struct barriers {
    uint64_t full[6], empty[6];
};

/* What the copying threads do: all of every step, as far ahead as there is room. Weight rows past the end repeat the last. */
template <int T, int N> static __device__ __forceinline__ void bring(const gemm &g, const wide_task &t, uint8_t *smem, barriers &b)
{
    typedef room<T> R;
    typedef pieces<T> P;
    enum { LARGE = ROWS * P::LARGE, SMALL = ROWS * P::SMALL, NL = (LARGE + COPIERS - 1) / COPIERS, NS = (SMALL + COPIERS - 1) / COPIERS, NX = N * 8 / COPIERS };
    const uint32_t n = g.m.k / BK, me = threadIdx.x - WORKERS, rows = t.rows - t.row0, to_x = wgmma_place(me / 8, me % 8);
    const uint8_t *w0 = t.w + (size_t)t.row0 * t.pitch;
    uint32_t large[NL], small[NS > 0 ? NS : 1], x[NX]; /* where what this thread brings begins: bytes, and units of 16 */
#pragma unroll
    for (int i = 0; i < NL; i++) {
        const uint32_t r = (me + i * COPIERS) / P::LARGE;
        large[i] = (r < rows ? r : rows - 1) * t.pitch;
    }
#pragma unroll
    for (int i = 0; i < NS; i++) {
        const uint32_t r = (me + i * COPIERS) % ROWS;
        small[i] = (r < rows ? r : rows - 1) * t.pitch;
    }
#pragma unroll
    for (int i = 0; i < NX; i++)
        x[i] = (uint32_t)t.in_row[me / 8 + i * (COPIERS / 8)] * (uint32_t)(g.h_pitch / 8) + me % 8;
    uint32_t at = 0, round = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *to = smem + at * R::BYTES, *w = to + X_BYTES;
        const uint32_t k0 = i * BK;
        if (round != 0)
            barrier_wait(&b.empty[at], (round - 1) & 1);
#pragma unroll
        for (int c = 0; c < NX; c++)
            copy_async<16>(to + to_x + c * (COPIERS / 8 * 128), (const uint8_t *)t.x + 2 * k0 + (size_t)x[c] * 16);
#pragma unroll
        for (int c = 0; c < NL; c++) {
            const uint32_t j = me + c * COPIERS, p = j % P::LARGE;
            if (LARGE % COPIERS == 0 || j < LARGE)
                copy_async<16>(w + j / P::LARGE * R::S::STRIDE + 16 * p, w0 + large[c] + P::large(g.m.k, k0, p));
        }
#pragma unroll
        for (int c = 0; c < NS; c++) {
            const uint32_t j = me + c * COPIERS, p = j / ROWS;
            if (SMALL % COPIERS == 0 || j < SMALL)
                copy_async<4>(w + j % ROWS * R::S::STRIDE + P::small_to(p), w0 + small[c] + P::small(g.m.k, k0, p));
        }
        barrier_arrive_copied(&b.full[at]);
        round += at + 1 == R::N;
        at = at + 1 == R::N ? 0 : at + 1;
    }
}

/* Half a step of this warpgroup: two products. Operands of the half before have been read when this returns; these may still be. */
template <int T, int N>
static __device__ __forceinline__ void multiply(const typename steps<T, BK>::raw raw[2], const uint2 s[2], int half, uint64_t b, uint32_t more, float acc[N / 2])
{
    uint32_t h[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
        steps<T, BK>::halves(raw[i], half, s[i], h[i]);
    wgmma_fence();
#pragma unroll
    for (int at = 0; at < 4; at += 2) {
        const uint32_t a[4] = {h[0][at], h[1][at], h[0][at + 1], h[1][at + 1]};
        wgmma<N>(acc, a, b + 4 * half + at, more + half + at);
    }
    wgmma_commit();
    wgmma_wait<1>();
}

template <int T, int N> static __device__ __forceinline__ void work(const gemm &g, uint8_t *smem, barriers &b, float acc[N / 2])
{
    typedef room<T> R;
    typedef steps<T, BK> S;
    const uint32_t n = g.m.k / BK, lane = threadIdx.x % 32, j = lane % 4, row = threadIdx.x / 32 * 16 + lane / 4;
    uint32_t at = 0, parity = 0, before = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *x = smem + at * R::BYTES, *w = x + X_BYTES + row * S::STRIDE;
        barrier_wait(&b.full[at], parity);
        wgmma_written(); /* by copies, and seen by this thread */
        const uint2 own = S::scales(w + j % 2 * 8 * S::STRIDE, i * BK, 0); /* of one row: the quad shares the work */
        typename S::raw raw[2];
        uint2 s[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            S::load(w + r * 8 * S::STRIDE, i * BK, 0, j, raw[r]);
            s[r].x = __shfl_sync(0xffffffffu, own.x, r, 4);
            s[r].y = __shfl_sync(0xffffffffu, own.y, r, 4);
        }
        const uint64_t tile = wgmma_tile(x);
        multiply<T, N>(raw, s, 0, tile, i, acc);
        if (i != 0 && lane == 0)
            barrier_arrive(&b.empty[before]); /* the step before is done with */
        multiply<T, N>(raw, s, 1, tile, i, acc);
        before = at;
        parity ^= at + 1 == R::N;
        at = at + 1 == R::N ? 0 : at + 1;
    }
    wgmma_wait<0>();
}

/* Four neighbouring results of an activation row. */
static __device__ __forceinline__ void put_four(const gemm &g, const wide_task &t, uint32_t col, uint32_t row, float4 v, bool aligned)
{
    const float scale = t.scale[col];
    const size_t at = (size_t)t.out_row[col] * g.y_pitch + row;
    float f[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
    float *y = t.y + at;
    if (aligned) {
        if (g.accumulate) {
            const float4 o = *(const float4 *)y;
            f[0] = o.x + f[0], f[1] = o.y + f[1], f[2] = o.z + f[2], f[3] = o.w + f[3];
        }
        *(float4 *)y = make_float4(f[0], f[1], f[2], f[3]);
    } else {
        for (uint32_t i = 0; i < 4 && row + i < t.rows; i++)
            y[i] = g.accumulate ? y[i] + f[i] : f[i];
    }
}

template <int N> static __device__ __forceinline__ void leave(const gemm &g, const wide_task &t, uint8_t *smem, const float acc[N / 2])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = t.row0 + warp * 16 + lane % 4 * 4;
    float *mine = (float *)smem + warp * (N * PAD);
    const bool aligned = t.rows % 4 == 0 && g.y_pitch % 4 == 0 && (size_t)t.y % 16 == 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        mine[(i / 4 * 8 + lane % 4 * 2 + i % 2) * PAD + lane / 4 + i / 2 % 2 * 8] = acc[i];
    __syncwarp();
#pragma unroll 4
    for (uint32_t col = lane / 4; col < N; col += 8)
        if (col < t.count && row < t.rows)
            put_four(g, t, col, row, *(const float4 *)(mine + col * PAD + lane % 4 * 4), aligned);
}

template <int T, int N> static __device__ __forceinline__ void run(const gemm &g, const wide_task &t, uint8_t *smem, barriers &b)
{
    float acc[N / 2];
    work<T, N>(g, smem, b, acc);
    group_sync<1, WORKERS>(); /* for all who work */
    leave<N>(g, t, smem, acc);
}
#endif

/* blockIdx: weight rows (of the second matrix behind those of the first), rows of activations. */
template <int T> static __global__ void __launch_bounds__(THREADS, 1) wide_kernel(const __grid_constant__ gemm g, uint32_t per, uint64_t *at)
{
#ifdef HAVE_WGMMA
    extern __shared__ uint8_t dynamic[];
    __shared__ int32_t in_row[TILE], out_row[TILE];
    __shared__ float scale[TILE];
    __shared__ barriers bars;
    uint8_t *smem = dynamic + (1024 - smem_of(dynamic) % 1024) % 1024;
    const uint32_t blocks = (g.m.rows + ROWS - 1) / ROWS;
    const bool second = blockIdx.x >= blocks;
    const struct kcu_mat &m = second ? g.second : g.m;
    wide_task t = {m.w, m.rows, (uint32_t)m.pitch, (blockIdx.x - (second ? blocks : 0)) * ROWS, 0, g.h, second ? g.second_y : g.y, in_row, out_row, scale};
    if (threadIdx.x < 6) {
        barrier_init(&bars.full[threadIdx.x], COPIERS);
        barrier_init(&bars.empty[threadIdx.x], WORKERS / 32);
    }
    pdl_release();
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
    if (threadIdx.x < TILE) { /* rows past the end repeat the last: computed, never stored */
        const uint32_t e = first + (threadIdx.x < t.count ? threadIdx.x : t.count - 1);
        in_row[threadIdx.x] = g.from != nullptr ? g.from[e] : (int32_t)e;
        out_row[threadIdx.x] = g.to != nullptr ? g.to[e] : (int32_t)e;
        scale[threadIdx.x] = g.h_scale[in_row[threadIdx.x]] * (1.0f / UP); /* powers of two */
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        if (t.count <= 64)
            bring<T, 64>(g, t, smem, bars);
        else if (t.count <= 96)
            bring<T, 96>(g, t, smem, bars);
        else if (t.count <= 128)
            bring<T, 128>(g, t, smem, bars);
        else if (t.count <= 160)
            bring<T, 160>(g, t, smem, bars);
        else
            bring<T, 192>(g, t, smem, bars);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
        if (t.count <= 64)
            run<T, 64>(g, t, smem, bars);
        else if (t.count <= 96)
            run<T, 96>(g, t, smem, bars);
        else if (t.count <= 128)
            run<T, 128>(g, t, smem, bars);
        else if (t.count <= 160)
            run<T, 160>(g, t, smem, bars);
        else
            run<T, 192>(g, t, smem, bars);
    }
#endif
}

template <int T> static cudaError_t start(const struct kcu_launch *l, const gemm &g, uint32_t per, uint32_t tiles)
{
    typedef room<T> R;
    const size_t bytes = R::N * R::BYTES + 1024;
    const uint32_t blocks = (g.m.rows + ROWS - 1) / ROWS + (g.second.w != NULL ? (g.second.rows + ROWS - 1) / ROWS : 0);
    cudaError_t e = cudaFuncSetAttribute(wide_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e : launch(l, wide_kernel<T>, dim3(blocks, tiles), dim3(THREADS), bytes, 0, g, per, l->stamp);
}

/* Is the code for 9.0 there? PTX of other capabilities, compiled for this device, does not have it. */
bool gemm_wide_here(void)
{
    struct cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, wide_kernel<KRN_Q8_0>) == cudaSuccess && a.binaryVersion == 90 && a.ptxVersion == 90;
}

/* The fewest cycles in rounds of blocks, as measured: of a step of K, and at the beginning and the end. */
uint32_t gemm_wide_rows(uint32_t n, const struct kcu_mat *m)
{
    const uint32_t sizes[] = {64, 96, 128, 160, 192}, blocks = (m->rows + ROWS - 1) / ROWS;
    uint64_t best = UINT64_MAX;
    uint32_t per = 0;
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const uint64_t rounds = ((uint64_t)blocks * ((n + sizes[i] - 1) / sizes[i]) + 131) / 132;
        const uint64_t cost = rounds * (m->k / BK * (6 * sizes[i] + 1000) + 16000);
        if (cost < best) {
            best = cost;
            per = sizes[i];
        }
    }
    return per;
}

cudaError_t gemm_wide_run(const struct kcu_launch *l, const struct gemm *g, uint32_t per, uint32_t tiles)
{
    switch (g->m.type) {
    case KRN_Q8_0: return start<KRN_Q8_0>(l, *g, per, tiles);
    case KRN_Q4_K: return start<KRN_Q4_K>(l, *g, per, tiles);
    case KRN_Q5_K: return start<KRN_Q5_K>(l, *g, per, tiles);
    case KRN_Q6_K: return start<KRN_Q6_K>(l, *g, per, tiles);
    default: return cudaErrorInvalidValue;
    }
}
