/* heads_run() by the asynchronous tensor cores of compute capability 9.0. There are few weights and many rows, so a block keeps its part of one head's matrix in shared
 * memory, as f16, and rows pass by: four warps bring them, tile after tile, and two warpgroups take turns with the tiles. What limits it is what memory can deliver. */
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/tiles.cuh"

enum { ROWS = 64 /* of a tile */, PIECE = ROWS * 128 /* of a tile: 64 columns */, WORKERS = 256, COPIERS = 128, THREADS = WORKERS + COPIERS, MOST = 8 };
enum { LARGE = 256, SMALL = 128, LARGE_K = 192, MAX_K = 512 /* weight rows of a block, and what K they have room for */ };

/* blockIdx.x: head, part of its matrix, share of the rows; the last goes fastest. */
struct heads_task {
    uint32_t head, col0, first, step, tiles; /* tiles first, first + step, ... below `tiles`; the second warpgroup's begin in the middle of a step */
};

struct ring {
    uint64_t full[2][MOST], empty[2][MOST];
};

#ifdef HAVE_WGMMA
/* The weight row for row `at` of a tile. order: results lie as kcu_halve() puts them. */
static __device__ __forceinline__ uint32_t weight_row(uint32_t at, bool order)
{
    const uint32_t place = tile_row(at);
    return order ? (place & ~15u) + (place & 7) / 2 * 4 + (place & 8) / 4 + place % 2 : place;
}

template <int N> static __device__ __forceinline__ void bring_weights(const heads_gemm &g, const heads_task &t, uint8_t *to)
{
    const uint32_t per = g.m.k / 16;
    const uint8_t *w = g.m.w + t.head * g.m.mat_pitch + (size_t)t.col0 * g.m.pitch;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < N * per; i += THREADS) {
        const uint32_t at = i / per, u = i % per;
        const uint8_t *row = w + (size_t)weight_row(at, g.order) * g.m.pitch;
        tile_weights(to + u / 4 * (N * 128), at, u % 4, ld16<EARLY>(row + 16 * u), *(const uint16_t *)(row + g.m.k + u / 2 * 2));
    }
}

/* What the copying threads do: 64 columns of a tile at a time, as far ahead as there is room. Rows past the end repeat the last. */
static __device__ __forceinline__ void bring(const heads_gemm &g, const heads_task &t, uint8_t *room, uint32_t slots, ring &r)
{
    const uint32_t me = threadIdx.x - WORKERS, pieces = g.m.k / 64, to = wgmma_place(me / 8, me % 8);
    const __half *x = (const __half *)g.x + t.head * g.x_head + me % 8 * 8;
    uint32_t slot[2] = {0, 0}, round[2] = {0, 0};
    for (uint32_t step = t.first;; step += t.step) {
#pragma unroll
        for (uint32_t group = 0; group < 2; group++) {
            const uint32_t tile = step + group * (t.step / 2);
            if (tile >= t.tiles)
                continue;
            const __half *row[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t at = tile * ROWS + me / 8 + 16 * i;
                row[i] = x + (size_t)(at < g.n ? at : g.n - 1) * g.x_pitch;
            }
            for (uint32_t k = 0; k < pieces; k++) {
                uint8_t *p = room + (group * slots + slot[group]) * PIECE + to;
                if (round[group] != 0)
                    barrier_wait(&r.empty[group][slot[group]], (round[group] - 1) & 1);
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    copy_async<16>(p + i * (16 * 128), row[i] + k * 64);
                barrier_arrive_copied(&r.full[group][slot[group]]);
                round[group] += slot[group] + 1 == slots;
                slot[group] = slot[group] + 1 == slots ? 0 : slot[group] + 1;
            }
        }
        if (step + t.step >= t.tiles)
            return;
    }
}

template <int N> static __device__ __forceinline__ void leave(const heads_gemm &g, const heads_task &t, uint32_t tile, const float acc[N / 2])
{
    const uint32_t lane = threadIdx.x % 32, row0 = tile * ROWS + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const float scale = g.scale * (1.0f / UP);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = row0 + 8 * i;
        if (row >= g.n)
            continue;
        const size_t at = row * g.y_pitch + t.head * g.y_head + t.col0 + lane % 4 * 8;
#pragma unroll
        for (uint32_t b = 0; b < N / 32; b++) {
            float v[8];
#pragma unroll
            for (uint32_t e = 0; e < 8; e++)
                v[e] = acc[16 * b + e / 2 * 4 + 2 * i + e % 2] * scale;
            if (!g.y_half) {
                *(float4 *)((float *)g.y + at + 32 * b) = make_float4(v[0], v[1], v[2], v[3]);
                *(float4 *)((float *)g.y + at + 32 * b + 4) = make_float4(v[4], v[5], v[6], v[7]);
                continue;
            }
            __half2 h[4];
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) { /* whatever happens, they stay finite */
                const float u = fminf(fmaxf(v[2 * e], -65504.0f), 65504.0f), w = fminf(fmaxf(v[2 * e + 1], -65504.0f), 65504.0f);
                h[e] = __floats2half2_rn(u, w);
            }
            *(uint4 *)((__half *)g.y + at + 32 * b) = *(const uint4 *)h;
        }
        if (g.factors != nullptr && t.head + t.col0 == 0 && lane % 4 == 0)
            g.factors[row] = 1.0f / g.scale;
    }
}

template <int N>
static __device__ __forceinline__ void work(const heads_gemm &g, const heads_task &t, const uint8_t *weights, const uint8_t *room, uint32_t slots, ring &r)
{
    const uint32_t group = threadIdx.x / 128, lane = threadIdx.x % 32, pieces = g.m.k / 64;
    const uint64_t b = wgmma_tile(weights);
    uint32_t slot = 0, before = 0, parity = 0;
    for (uint32_t tile = t.first + group * (t.step / 2); tile < t.tiles; tile += t.step) {
        float acc[N / 2];
        for (uint32_t k = 0; k < pieces; k++) {
            barrier_wait(&r.full[group][slot], parity);
            wgmma_written(); /* by copies, and seen by this thread */
            const uint64_t a = wgmma_tile(room + (group * slots + slot) * PIECE), w = b + k * (N * 128 / 16);
            wgmma_fence();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                wgmma_tiles<N>(acc, a + 2 * i, w + 2 * i, k + i);
            wgmma_commit();
            if (k != 0) {
                wgmma_wait<1>();
                if (lane == 0)
                    barrier_arrive(&r.empty[group][before]);
            }
            before = slot;
            parity ^= slot + 1 == slots;
            slot = slot + 1 == slots ? 0 : slot + 1;
        }
        wgmma_wait<0>();
        if (lane == 0)
            barrier_arrive(&r.empty[group][before]);
        leave<N>(g, t, tile, acc);
    }
}
#endif

template <int N>
static __global__ void __launch_bounds__(THREADS, 1) heads_async_kernel(const __grid_constant__ heads_gemm g, uint32_t shares, uint32_t slots, uint64_t *at)
{
#ifdef HAVE_WGMMA
    extern __shared__ uint8_t dynamic[];
    __shared__ ring r;
    uint8_t *weights = dynamic + (1024 - smem_of(dynamic) % 1024) % 1024, *room = weights + g.m.k / 64 * (N * 128);
    const uint32_t unit = blockIdx.x / shares, parts = g.m.rows / N;
    const heads_task t = {unit / parts, unit % parts * N, blockIdx.x % shares, 2 * shares, (g.n + ROWS - 1) / ROWS};
    pdl_release();
    if (threadIdx.x < 2 * MOST) {
        barrier_init(&r.full[0][threadIdx.x], COPIERS);
        barrier_init(&r.empty[0][threadIdx.x], WORKERS / 2 / 32);
    }
    bring_weights<N>(g, t, weights); /* which depend on nobody */
    wgmma_written();
    pdl_wait();
    stamp(at);
    __syncthreads();
    if (threadIdx.x >= WORKERS)
        bring(g, t, room, slots, r);
    else
        work<N>(g, t, weights, room, slots, r);
#endif
}

bool heads_async_takes(const struct kcu_mat *m)
{
    return m->type == KRN_Q8_0 && m->k % 64 == 0 && m->k <= MAX_K && m->rows % (m->k <= LARGE_K ? LARGE : SMALL) == 0 && gemm_wide_here();
}

template <int N> static cudaError_t start(const struct kcu_launch *l, const struct heads_gemm *g)
{
    const uint32_t units = g->m.n_mats * (g->m.rows / N), tiles = (g->n + ROWS - 1) / ROWS, fit = multiprocessors() / units, most = (tiles + 1) / 2,
                   shares = fit < 1 ? 1 : fit > most ? most : fit, weights = g->m.k / 64 * N * 128, free = (227 * 1024 - 1024 - 512 - weights) / (2 * PIECE),
                   slots = free > MOST ? MOST : free;
    const size_t bytes = weights + slots * 2 * PIECE + 1024;
    cudaError_t e = cudaFuncSetAttribute(heads_async_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e : launch(l, heads_async_kernel<N>, dim3(units * shares), dim3(THREADS), bytes, 0, *g, shares, slots, l->stamp);
}

cudaError_t heads_async_run(const struct kcu_launch *l, const struct heads_gemm *g)
{
    return g->m.k <= LARGE_K ? start<LARGE>(l, g) : start<SMALL>(l, g);
}
