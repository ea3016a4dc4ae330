/* Products of many rows by the asynchronous tensor cores of compute capability 9.0 with both operands as f16 in shared memory: weights have
 * been brought to that form before (unpack.cu). One thread has tiles brought by bulk tensor copies, two warpgroups do nothing but multiply and
 * store. Blocks stay and take one tile of results after another, copies run ahead into the next. Sums run along K in one order: the bits are
 * those of gemm.cu; but where there are few tiles and a row's result may depend on how it is computed, the blocks of a cluster share K, and
 * their sums are added in order. */
#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

enum {
    BK = 64,
    GROUPS = 2,
    WORKERS = 128 * GROUPS,
    THREADS = WORKERS + 128, /* registers are dealt out to whole warpgroups */
    OWN_REGS = 240,
    COPY_REGS = 24,
    MOST = 8,
    MAX_SHARE = 4,
    PANEL = 16 << 20 /* weights that stay in the second-level cache beside all else */
};

/* How warpgroups do a tile: together; each its own, one multiplies while the other stores; or together, with blocks that share K. */
enum half_way { TOGETHER, ALONE, SHARED };

/* A tile: ROWS rows of activations x N of weights, MT times 64 rows of a warpgroup. */
template <int MT, int N_, half_way WAY_> struct half_shape {
    static constexpr half_way WAY = WAY_;
    enum {
        N = N_,
        M = MT,
        OWN = 64 * MT,
        TURNS = WAY == ALONE ? GROUPS : 1,
        ROWS = OWN * GROUPS / TURNS,
        READERS = WORKERS / 32 / TURNS, /* warps that use a step */
        X_BYTES = ROWS * 128,
        BYTES = X_BYTES + N * 128,
        FIT = 226 * 1024 / BYTES,
        STEPS = FIT > MOST ? MOST : FIT,
        PUTS = N / 8 * MT, /* of a thread, four results each */
        AT_ONCE = N * MT > 256 ? 4 : N % 128 == 0 ? 8 : 6 /* of them, where results are added to what is there */
    };
    static_assert(STEPS >= 3 && ROWS <= 256 && N / 16 % AT_ONCE == 0, "what fits");
    static_assert(WAY != SHARED || PUTS * WORKERS * 16 <= STEPS * BYTES, "room for results");
};

struct half_task {
    CUtensorMap x, w[2];
    float *y[2];
    size_t y_pitch;
    const float *scale;
    uint32_t n, k, rows[2];
    uint32_t first, wide, high; /* tiles: of the first weight, of both, of rows */
    uint32_t panel;             /* tiles of weights that are gone through for all rows before the next */
    uint32_t share;             /* blocks that share K */
    bool accumulate, aligned;
    bool early; /* weights depend on nobody */
};

#ifdef HAVE_WGMMA
struct half_barriers {
    uint64_t full[MOST], empty[MOST], turn[GROUPS];
};

/* Where one is in a ring of N. */
template <int N> struct half_ring {
    uint32_t at, round;
    __device__ __forceinline__ void next()
    {
        round += at + 1 == N;
        at = at + 1 == N ? 0 : at + 1;
    }
    __device__ __forceinline__ void skip(uint32_t n)
    {
        const uint32_t to = at + n;
        round += to / N;
        at = to % N;
    }
};

struct half_tile {
    uint32_t row0, col0, second;
};

template <class S> static __device__ __forceinline__ half_tile tile_of(const half_task &t, uint32_t i)
{
    const uint32_t p = i / (t.panel * t.high), rest = i - p * t.panel * t.high, left = t.wide - p * t.panel,
                   cols = left < t.panel ? left : t.panel, col = p * t.panel + rest % cols, second = col >= t.first;
    return {rest / cols * S::ROWS, (col - (second ? t.first : 0)) * S::N, second};
}

/* Steps of K that this block does. */
static __device__ __forceinline__ uint32_t step_from(const half_task &t, uint32_t part)
{
    return t.k / BK * part / t.share;
}

/* What one thread does: all of every step, as far ahead as there is room; of weights that depend on nobody the first before anything is
 * waited for. */
template <class S> static __device__ __forceinline__ void bring(const half_task &t, uint8_t *room, half_barriers &b)
{
    const uint32_t part = blockIdx.x % t.share, from = step_from(t, part), to = step_from(t, part + 1), steps = to - from,
                   early = !t.early ? 0 : steps < S::STEPS ? steps : S::STEPS;
    uint32_t i = blockIdx.x / t.share;
    half_tile tile = tile_of<S>(t, i);
    for (uint32_t s = 0; s < early; s++) {
        barrier_expect(&b.full[s], S::BYTES);
        bring_box(room + s * S::BYTES + S::X_BYTES, &t.w[tile.second], (from + s) * BK, tile.col0, &b.full[s]);
    }
    pdl_wait();
    for (uint32_t s = 0; s < early; s++)
        bring_box(room + s * S::BYTES, &t.x, (from + s) * BK, tile.row0, &b.full[s]);
    half_ring<S::STEPS> r = {0, 0};
    r.skip(early);
    for (uint32_t s = from + early; i < t.wide * t.high; s = from) {
        for (; s < to; s++) {
            uint8_t *x = room + r.at * S::BYTES;
            if (r.round != 0)
                barrier_wait(&b.empty[r.at], (r.round - 1) & 1);
            barrier_expect(&b.full[r.at], S::BYTES);
            bring_box(x, &t.x, s * BK, tile.row0, &b.full[r.at]);
            bring_box(x + S::X_BYTES, &t.w[tile.second], s * BK, tile.col0, &b.full[r.at]);
            r.next();
        }
        i += gridDim.x / t.share;
        tile = tile_of<S>(t, i);
    }
}

/* Where four neighbouring results of a thread go; left: columns from there to the end. */
struct half_line {
    float *y;
    int32_t left;
    float scale;
};

template <class S> static __device__ __forceinline__ half_line line_of(const half_task &t, const half_tile &tile, uint32_t row)
{
    const uint32_t col = tile.col0 + threadIdx.x % 4 * 4;
    const float scale = t.scale[row] * (1.0f / UP); /* powers of two */
    return {(tile.second ? t.y[1] : t.y[0]) + row * t.y_pitch + col, (int32_t)((tile.second ? t.rows[1] : t.rows[0]) - col), scale};
}

/* Four results, 16 c columns further; old: what is there, where they are added to that and all is aligned. */
static __device__ __forceinline__ void put_four(const half_task &t, const half_line &l, int32_t c, float4 v, float4 old)
{
    float f[4] = {v.x * l.scale, v.y * l.scale, v.z * l.scale, v.w * l.scale};
    float *y = l.y + 16 * c;
    if (t.aligned) {
        if (t.accumulate)
            f[0] = old.x + f[0], f[1] = old.y + f[1], f[2] = old.z + f[2], f[3] = old.w + f[3];
        if (16 * c < l.left)
            *(float4 *)y = make_float4(f[0], f[1], f[2], f[3]);
    } else {
        for (int32_t i = 0; i < 4; i++)
            if (16 * c + i < l.left)
                y[i] = t.accumulate ? y[i] + f[i] : f[i];
    }
}

static __device__ __forceinline__ float4 there(const half_task &t, const half_line &l, int32_t c)
{
    return t.accumulate && t.aligned && 16 * c < l.left ? *(const float4 *)(l.y + 16 * c) : make_float4(0, 0, 0, 0);
}

template <class S> static __device__ __forceinline__ void leave(const half_task &t, const half_tile &tile, const float (&acc)[S::M][S::N / 2])
{
    const uint32_t row0 = tile.row0 + (S::WAY == ALONE ? 0 : threadIdx.x / 128 * S::OWN) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t row = row0 + m * 64 + h * 8;
            if (row >= t.n)
                continue;
            const half_line l = line_of<S>(t, tile, row);
#pragma unroll
            for (int c0 = 0; c0 < S::N / 16; c0 += S::AT_ONCE) {
                float4 old[S::AT_ONCE];
#pragma unroll
                for (int c = 0; c < S::AT_ONCE; c++)
                    old[c] = there(t, l, c0 + c);
#pragma unroll
                for (int c = 0; c < S::AT_ONCE; c++) {
                    const float *v = acc[m] + 8 * (c0 + c) + 2 * h;
                    put_four(t, l, c0 + c, make_float4(v[0], v[1], v[4], v[5]), old[c]);
                }
            }
        }
}

/* Blocks share K: each adds up a part of the results of all, in order. */
template <class S> static __device__ __forceinline__ void join(const half_task &t, const half_tile &tile, float4 *room, const float (&acc)[S::M][S::N / 2])
{
    enum { EACH = S::N / 8 /* of 64 rows */ };
    const uint32_t part = blockIdx.x % t.share, row0 = tile.row0 + threadIdx.x / 128 * S::OWN + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float4 *mine = room + threadIdx.x;
    group_sync<1, WORKERS>(); /* all steps have been used */
#pragma unroll
    for (uint32_t put = 0; put < S::PUTS; put++) {
        const float *v = acc[put / EACH] + put % EACH / 2 * 8 + put % 2 * 2;
        mine[put * WORKERS] = make_float4(v[0], v[1], v[4], v[5]);
    }
    cluster_meet();
#pragma unroll 4
    for (uint32_t put = S::PUTS * part / t.share; put < S::PUTS * (part + 1) / t.share; put++) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t b = 0; b < MAX_SHARE; b++)
            if (b < t.share) {
                const float4 v = fetch_four_from(at_block(mine + put * WORKERS, b));
                sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
            }
        const uint32_t row = row0 + put / EACH * 64 + put % 2 * 8, c = put % EACH / 2;
        if (row < t.n) {
            const half_line l = line_of<S>(t, tile, row);
            put_four(t, l, (int32_t)c, sum, there(t, l, (int32_t)c));
        }
    }
    cluster_meet(); /* nobody leaves while others read */
}

/* What a warpgroup does. Where each has its own tiles it multiplies when the other has seen all of its steps come: only then do parities say
 * which round is meant. */
template <class S> static __device__ __forceinline__ void work(const half_task &t, uint8_t *room, half_barriers &b)
{
    const uint32_t group = threadIdx.x / 128, lane = threadIdx.x % 32, part = blockIdx.x % t.share, each = gridDim.x / t.share,
                   steps = step_from(t, part + 1) - step_from(t, part);
    half_ring<S::STEPS> r = {0, 0};
    uint32_t i = blockIdx.x / t.share, turn = 0;
    if (S::WAY == ALONE) {
        i += group * each;
        r.skip(group * steps);
    }
    for (; i < t.wide * t.high; i += S::TURNS * each, turn++) {
        float acc[S::M][S::N / 2];
        uint32_t before = 0;
        if (S::WAY == ALONE && turn + group != 0)
            barrier_wait(&b.turn[group], (turn + group - 1) & 1);
#pragma unroll 1
        for (uint32_t s = 0; s < steps; s++) {
            const uint8_t *x = room + r.at * S::BYTES;
            barrier_wait(&b.full[r.at], r.round & 1);
            if (S::WAY == ALONE && s + 1 == steps && threadIdx.x % 128 == 0)
                barrier_arrive(&b.turn[1 - group]);
            const uint64_t a = wgmma_tile(x + (S::WAY == ALONE ? 0 : group * (S::OWN * 128))), w = wgmma_tile(x + S::X_BYTES);
            wgmma_fence();
#pragma unroll
            for (uint32_t c = 0; c < BK / 16; c++)
#pragma unroll
                for (int m = 0; m < S::M; m++)
                    wgmma_tiles<S::N>(acc[m], a + 2 * c + m * (64 * 128 / 16), w + 2 * c, s + c);
            wgmma_commit();
            if (s != 0) {
                wgmma_wait<1>();
                if (lane == 0)
                    barrier_arrive(&b.empty[before]);
            }
            before = r.at;
            r.next();
        }
        wgmma_wait<0>();
        if (lane == 0)
            barrier_arrive(&b.empty[before]);
        if (S::WAY == ALONE)
            r.skip((S::TURNS - 1) * steps);
        if constexpr (S::WAY == SHARED)
            join<S>(t, tile_of<S>(t, i), (float4 *)room, acc);
        else
            leave<S>(t, tile_of<S>(t, i), acc);
    }
}
#endif

template <class S> static __global__ void __launch_bounds__(THREADS, 1) half_kernel(const __grid_constant__ half_task t, uint64_t *at)
{
#ifdef HAVE_WGMMA
    extern __shared__ uint8_t dynamic[];
    __shared__ half_barriers b;
    uint8_t *room = dynamic + (1024 - smem_of(dynamic) % 1024) % 1024;
    if (threadIdx.x < S::STEPS) {
        barrier_init(&b.full[threadIdx.x], 1);
        barrier_init(&b.empty[threadIdx.x], S::READERS);
    }
    if (threadIdx.x < GROUPS)
        barrier_init(&b.turn[threadIdx.x], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    pdl_release();
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        if (threadIdx.x == WORKERS)
            bring<S>(t, room, b);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
        pdl_wait();
        stamp(at);
        work<S>(t, room, b);
    }
#endif
}

/* Boxes of 64 columns of so many rows, swizzled as wgmma takes them. What lies outside comes as zeros. */
static cudaError_t describe(PFN_cuTensorMapEncodeTiled_v12000 make, const void *p, uint32_t k, uint32_t rows, size_t pitch, uint32_t box_rows,
                            CUtensorMap *map)
{
    const cuuint64_t size[] = {k, rows}, stride[] = {2 * pitch};
    const cuuint32_t box[] = {BK, box_rows}, each[] = {1, 1};
    return make(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)p, size, stride, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

template <class S> static cudaError_t start(const struct kcu_launch *l, const struct gemm *g, uint32_t share)
{
    const bool both = g->second.w != NULL;
    const uint32_t first = (g->m.rows + S::N - 1) / S::N, wide = first + (both ? (g->second.rows + S::N - 1) / S::N : 0),
                   high = (g->n + S::ROWS - 1) / S::ROWS, sms = multiprocessors(), most = share > 1 || wide * high < sms ? wide * high : sms,
                   fit = PANEL / (g->m.k * S::N);
    const size_t bytes = S::STEPS * S::BYTES + 1024;
    struct half_task t = {.y = {g->y, both ? g->second_y : g->y},
                          .y_pitch = g->y_pitch,
                          .scale = g->h_scale,
                          .n = g->n,
                          .k = g->m.k,
                          .rows = {g->m.rows, both ? g->second.rows : 0},
                          .first = first,
                          .wide = wide,
                          .high = high,
                          .panel = fit < 1 ? 1 : fit < wide ? fit : wide,
                          .share = share,
                          .accumulate = g->accumulate,
                          .aligned = g->m.rows % 4 == 0 && g->y_pitch % 4 == 0 && (size_t)g->y % 16 == 0 &&
                                     (!both || (g->second.rows % 4 == 0 && (size_t)g->second_y % 16 == 0)),
                          .early = g->kept};
    PFN_cuTensorMapEncodeTiled_v12000 make;
    cudaError_t e = box_maker(&make);
    if (e == cudaSuccess)
        e = describe(make, g->h, g->m.k, g->n, g->h_pitch, S::ROWS, &t.x);
    if (e == cudaSuccess)
        e = describe(make, g->m.half, g->m.k, gemm_half_rows(g->m.rows), g->m.k, S::N, &t.w[0]);
    if (e == cudaSuccess && both)
        e = describe(make, g->second.half, g->m.k, gemm_half_rows(g->second.rows), g->m.k, S::N, &t.w[1]);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(half_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e : launch(l, half_kernel<S>, dim3(most * share), dim3(THREADS), bytes, share, t, l->stamp);
}

bool gemm_half_takes(const struct gemm *g)
{
    return g->tiles == NULL && g->m.k % BK == 0 && g->h_pitch % 8 == 0 && (size_t)g->h % 16 == 0 && gemm_wide_here();
}

/* Shapes of a tile. */
enum { SHAPES = 7, SHARED_UP_TO = 512 /* rows: more have the same bits in any company */, POWER_FROM = 1024 };
static const struct {
    uint32_t rows, cols;
    enum half_way way;
} SHAPE[SHAPES] = {{128, 256, TOGETHER}, {128, 192, TOGETHER}, {128, 128, TOGETHER}, {128, 128, ALONE},
                   {128, 192, ALONE},    {192, 128, ALONE},    {128, 128, SHARED}};

/* Cycles as measured: steps of K, and storing a tile; SHARED: of fewer blocks at a time, and to join. What is brought counts a little, but of
 * many rows, where the card's power limits all, as much as it takes of that. */
static uint64_t cycles(const struct gemm *g, uint32_t n, uint32_t i, uint32_t share)
{
    static const uint32_t slots[MAX_SHARE + 1] = {1, 132, 130, 108, 96};
    const uint32_t c = SHAPE[i].cols, r = SHAPE[i].rows, steps = (g->m.k / BK + share - 1) / share,
                   wide = (g->m.rows + c - 1) / c + (g->second.w != NULL ? (g->second.rows + c - 1) / c : 0),
                   bring = n > POWER_FROM ? 2 * (r + c) : (r + c) / 2;
    const uint64_t rounds = ((uint64_t)wide * ((n + r - 1) / r) * share + slots[share] - 1) / slots[share],
                   multiply = (uint64_t)steps * (r * c * 11 / 320 + bring),
                   store = 2500 + r * c / 7 * (g->accumulate ? 2 : 1) + (share > 1 ? 4000 : 0), both = (multiply + store) / 2;
    return SHAPE[i].way == ALONE ? rounds * (multiply > both ? multiply : both) + store : rounds * (multiply + store);
}

/* Where bits depend on it, by a power of two of rows. */
static uint32_t best_shape(const struct kcu_launch *l, const struct gemm *g, uint32_t *share)
{
    const uint32_t p = power_above(g->n), most = l->fixed || p > SHARED_UP_TO ? 1 : MAX_SHARE, n = most > 1 ? p : g->n;
    uint64_t least = UINT64_MAX;
    uint32_t best = 0;
    for (uint32_t i = 0; i < SHAPES; i++)
        for (uint32_t s = 1 + (SHAPE[i].way == SHARED); s <= (SHAPE[i].way == SHARED ? most : 1) && (s == 1 || g->m.k / BK / s >= 4); s++) {
            const uint64_t cost = cycles(g, n, i, s);
            if (cost < least) {
                least = cost;
                best = i;
                *share = s;
            }
        }
    return best;
}

cudaError_t gemm_half_run(const struct kcu_launch *l, const struct gemm *g)
{
    uint32_t share = 1;
    switch (best_shape(l, g, &share)) {
    case 0: return start<half_shape<1, 256, TOGETHER>>(l, g, share);
    case 1: return start<half_shape<1, 192, TOGETHER>>(l, g, share);
    case 2: return start<half_shape<1, 128, TOGETHER>>(l, g, share);
    case 3: return start<half_shape<2, 128, ALONE>>(l, g, share);
    case 4: return start<half_shape<2, 192, ALONE>>(l, g, share);
    case 5: return start<half_shape<3, 128, ALONE>>(l, g, share);
    default: return start<half_shape<1, 128, SHARED>>(l, g, share);
    }
}
