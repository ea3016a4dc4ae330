/* Products of experts with few rows each by the asynchronous tensor cores of compute capability 9.0: weights of Q4_K and Q5_K. Blocks stay and take one piece
 * of work after another: 256 weight rows x a tile of activations. One thread has weights brought as they lie in memory, 256 of every row at once, by copies of
 * boxes of 128 rows; three warps bring activations, 128 columns at a time; both run ahead into the next piece of work. Four warpgroups multiply, each 64 weight
 * rows: a warp's first eight are of one half of the 256, its last eight of the other, so that where the halves are gate and up a thread has both values of an
 * activation. Sums run along K in one order: a row's bits do not depend on its tile. */
#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    TILE = GEMM_EXPERTS_ROWS,
    HALF = 128,
    ROWS = 2 * HALF,
    WORKERS = ROWS * 2,
    COPIERS = 96, /* of activations; another warp has weights brought */
    THREADS = WORKERS + 32 + COPIERS,
    KW = 256, /* columns of a box of weights */
    KX = 64,  /* of a swizzled tile of activations, of which two come together */
    X_TILE = TILE * 128,
    X_BYTES = 2 * X_TILE,
    NX = 4, /* of these in shared memory: those of two boxes */
    OWN_REGS = 112, /* of what the block gets, 96 for every thread */
    COPY_REGS = 32,
    MOST_W = 4
};

/* Shared memory: boxes of weights, two halves each, then activations. Rows of a box lie an odd multiple of 16 bytes apart. */
template <int T> struct room {
    typedef steps<T, KW> S;
    enum {
        HALF_BYTES = HALF * S::STRIDE,
        W_BYTES = 2 * HALF_BYTES,
        FIT = (224 * 1024 - NX * X_BYTES) / W_BYTES,
        NW = FIT > MOST_W ? MOST_W : FIT
    };
    static_assert(W_BYTES % 1024 == 0 && NW >= 2, "activations are aligned to their swizzle; a box is used while another one comes");
};

struct experts {
    CUtensorMap map[2]; /* of the halves' weights: bytes of a row, rows, experts */
    const int32_t *tiles, *from, *to;
    const __half *h;
    size_t h_pitch;
    const float *h_scale;
    float *y[2]; /* of the halves: results, or NULL */
    size_t y_pitch;
    float *act; /* or NULL: silu(first) * second */
    size_t act_pitch;
    uint32_t rows, k, blocks; /* of a half's weight, of both, pieces of work of a tile */
    uint32_t step, second0;   /* weight rows from piece to piece, where the second half begins */
};

#ifdef HAVE_WGMMA
struct task {
    uint32_t expert, row0, first, count;
};

static __device__ __forceinline__ task task_of(const experts &p, uint32_t i)
{
    const int32_t *t = p.tiles + 1 + 3 * (i / p.blocks);
    return {(uint32_t)t[0], i % p.blocks * p.step, (uint32_t)t[1], (uint32_t)t[2]};
}

struct barriers {
    uint64_t w_full[MOST_W], w_empty[MOST_W], x_full[NX], x_empty[NX], lists[2], read[2];
    uint32_t sixes;
};

/* Of two tiles in turn: how many rows, from which weight row on; where results go and what they are multiplied by. */
struct lists {
    uint32_t count[2], row0[2];
    int32_t out_row[2][TILE];
    float scale[2][TILE];
};

/* Where one is in a ring of N. */
template <int N> struct ring {
    uint32_t at, round; /* of the latter the lowest bit counts, and whether it is 0 */
    __device__ __forceinline__ void next()
    {
        round += at + 1 == N;
        at = at + 1 == N ? 0 : at + 1;
    }
};

/* Weights, by one thread, as far ahead as there is room. What of a box lies past the last row comes as zeros. */
template <int T> static __device__ __forceinline__ void bring_weights(const experts &p, uint32_t n, uint8_t *smem, barriers &b)
{
    typedef room<T> R;
    ring<R::NW> w = {0, 0};
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const task t = task_of(p, i);
        for (uint32_t byte = 0; byte < p.k / KW * R::S::STRIDE; byte += R::S::STRIDE) {
            uint8_t *to = smem + w.at * R::W_BYTES;
            if (w.round != 0)
                barrier_wait(&b.w_empty[w.at], (w.round - 1) & 1);
            barrier_expect(&b.w_full[w.at], R::W_BYTES);
            bring_box(to, &p.map[0], byte, t.row0, t.expert, &b.w_full[w.at]);
            bring_box(to + R::HALF_BYTES, &p.map[1], byte, t.row0 + p.second0, t.expert, &b.w_full[w.at]);
            w.next();
        }
    }
}

/* Activations, and where results go. Rows past the end of a tile repeat its last: computed, never stored. Where all of K fits into the ring one would be
 * several pieces ahead: a list is written again only when all have read the one before the last. */
template <int T> static __device__ __forceinline__ void bring_rows(const experts &p, uint32_t n, uint8_t *smem, barriers &b, lists &l)
{
    typedef room<T> R;
    enum { LINES = COPIERS / 8, TURNS = (TILE + LINES - 1) / LINES };
    static_assert(LINES % 8 == 4, "every other turn has its pieces four further within eight");
    const uint32_t me = threadIdx.x - WORKERS - 32, line = me / 8, to_x = R::NW * R::W_BYTES + wgmma_place(line, me % 8);
    ring<NX> x = {0, 0};
    uint32_t piece = 0;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x, piece++) {
        const task t = task_of(p, i);
        const uint32_t rows = (t.count + 15) / 16 * 16, turn = piece % 2;
        if (piece >= 2)
            barrier_wait(&b.read[turn], (piece / 2 - 1) & 1);
        if (me == 0) {
            l.count[turn] = t.count;
            l.row0[turn] = t.row0;
        }
        for (uint32_t r = me; r < t.count; r += COPIERS) {
            l.out_row[turn][r] = p.to[t.first + r];
            l.scale[turn][r] = p.h_scale[p.from[t.first + r]] * (1.0f / UP); /* powers of two */
        }
        barrier_arrive(&b.lists[turn]);
        uint32_t in[TURNS];
#pragma unroll
        for (uint32_t c = 0; c < TURNS; c++) {
            const uint32_t r = line + c * LINES;
            in[c] = (uint32_t)p.from[t.first + (r < t.count ? r : t.count - 1)] * (uint32_t)(p.h_pitch / 8) + me % 8;
        }
        const uint8_t *h = (const uint8_t *)p.h;
        for (uint32_t k = 0; k < p.k; k += 2 * KX, h += 4 * KX) {
            uint8_t *to = smem + to_x + x.at * X_BYTES, *other = (uint8_t *)((size_t)to ^ 64);
            if (x.round != 0)
                barrier_wait(&b.x_empty[x.at], (x.round - 1) & 1);
#pragma unroll
            for (uint32_t c = 0; c < TURNS; c++)
                if (line + c * LINES < rows) {
                    const uint8_t *from = h + (size_t)in[c] * 16;
#pragma unroll
                    for (uint32_t j = 0; j < 2; j++)
                        copy_async<16>((c % 2 ? other : to) + c * (LINES * 128) + j * X_TILE, from + j * 2 * KX);
                }
            barrier_arrive_copied(&b.x_full[x.at]);
            x.next();
        }
    }
}

/* What a lane needs of 64 columns of its two weight rows. */
struct lane_words {
    uint32_t w[2][2];
};

template <int T> static __device__ __forceinline__ lane_words words_of(const uint8_t *a0, uint32_t u)
{
    typedef room<T> R;
    enum { HEAD = R::S::STRIDE - KW / 2 };
    lane_words x;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            x.w[r][i] = word(a0 + r * R::HALF_BYTES + HEAD + 32 * u + 16 * i + 4 * (threadIdx.x % 4));
    return x;
}

/* 64 columns of this warp's 16 weight rows times the tile, in two groups of products. After the last of a box nothing is under way. */
template <int T, int N>
static __device__ __forceinline__ void multiply(const lane_words &c, const uint2 s[2], uint32_t u, uint32_t x, uint32_t more, const uint32_t high[2][2], uint32_t sixes,
                                                float acc[N / 2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t h[2][2][2]; /* row, group */
#pragma unroll
        for (int r = 0; r < 2; r++)
            operands<T>(c.w[r][i], fifths(high[r][i], u), s[r], sixes, h[r]);
        wgmma_fence();
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const uint32_t a[4] = {h[0][g][0], h[1][g][0], h[0][g][1], h[1][g][1]};
            wgmma<N>(acc, a, x + 4 * g + 2 * i, u + i + g != 0 ? 1 : more);
        }
        wgmma_commit();
        if (u + 1 == KW / KX && i == 1)
            wgmma_wait<0>(); /* the assembler does not keep operands apart over the end of a loop */
        else
            wgmma_wait<1>(); /* the operands of the group before have been read */
    }
}

template <int T, int N>
static __device__ __forceinline__ void work(const experts &p, const uint8_t *smem, barriers &b, uint32_t sixes, ring<room<T>::NW> &w, uint32_t &boxes,
                                            float acc[N / 2])
{
    typedef room<T> R;
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 8 + lane / 4;
#pragma unroll 1
    for (uint32_t kb = 0; kb < p.k / KW; kb++, boxes++) {
        const uint8_t *a0 = smem + w.at * R::W_BYTES + row * R::S::STRIDE, *mine = a0 + lane % 2 * R::HALF_BYTES;
        const uint32_t x0 = boxes % 2 * 2, tile = wgmma_tile(smem + R::NW * R::W_BYTES) + x0 * (X_BYTES / 16);
        uint32_t high[2][2] = {};
        barrier_wait(&b.w_full[w.at], w.round & 1);
        lane_words now = words_of<T>(a0, 0);
        const uint2 own[2] = {scales_of<T>(*(const uint4 *)mine, lane % 4 / 2), scales_of<T>(*(const uint4 *)mine, 2 + lane % 4 / 2)}; /* of two units a lane of the quad */
#pragma unroll
        for (int i = 0; i < 4 && T == KRN_Q5_K; i++)
            high[i / 2][i % 2] = word(a0 + i / 2 * R::HALF_BYTES + 16 + i % 2 * 16 + 4 * (lane % 4));
#pragma unroll
        for (uint32_t u = 0; u < KW / KX; u++) {
            uint2 s[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                s[r].x = __shfl_sync(0xffffffffu, own[u / 2].x, u % 2 * 2 + r, 4);
                s[r].y = __shfl_sync(0xffffffffu, own[u / 2].y, u % 2 * 2 + r, 4);
            }
            const lane_words c = now;
            if (u + 1 < KW / KX)
                now = words_of<T>(a0, u + 1);
            if (u % 2 == 0) {
                barrier_wait(&b.x_full[x0 + u / 2], boxes / 2 & 1);
                wgmma_written(); /* by copies, and seen by this thread */
            }
            multiply<T, N>(c, s, u, tile + (u / 2 * X_BYTES + u % 2 * X_TILE) / 16, kb, high, sixes, acc);
            if (lane == 0 && u == 2)
                barrier_arrive(&b.x_empty[x0]); /* the products before this half step's are over */
        }
        __syncwarp(); /* all lanes have read their weights */
        if (lane == 0) {
            barrier_arrive(&b.x_empty[x0 + 1]);
            barrier_arrive(&b.w_empty[w.at]);
        }
        w.next();
    }
}

template <int T, int N>
static __device__ __forceinline__ void run(const experts &p, const uint8_t *smem, barriers &b, const lists &l, uint32_t turn, uint32_t sixes,
                                           ring<room<T>::NW> &w, uint32_t &boxes)
{
    float acc[N / 2] = {}; /* without a beginning they would be kept from piece to piece, those of all sizes */
    work<T, N>(p, smem, b, sixes, w, boxes, acc);
    const uint32_t count = l.count[turn], lane = threadIdx.x % 32, row0 = l.row0[turn] + threadIdx.x / 32 * 8 + lane / 4, row1 = row0 + p.second0;
    const bool in0 = row0 < p.rows, in1 = row1 < p.rows, acts = p.act != nullptr && in0;
#pragma unroll
    for (int v = 0; v < N / 2; v += 4)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t col = v / 4 * 8 + lane % 4 * 2 + c;
            if (col >= count)
                continue;
            const size_t out = (size_t)l.out_row[turn][col];
            const float scale = l.scale[turn][col], first = acc[v + c] * scale, second = acc[v + 2 + c] * scale;
            if (acts)
                p.act[out * p.act_pitch + row0] = silu(first) * second;
            if (in0 && p.y[0] != nullptr)
                p.y[0][out * p.y_pitch + row0] = first;
            if (in1 && p.y[1] != nullptr)
                p.y[1][out * p.y_pitch + row1] = second;
        }
    __syncwarp();
    if (lane == 0)
        barrier_arrive(&b.read[turn]);
}

/* The smallest product that takes all rows of the tile. */
template <int T, int N>
static __device__ __forceinline__ void run_of(const experts &p, const uint8_t *smem, barriers &b, const lists &l, uint32_t turn, uint32_t sixes,
                                              ring<room<T>::NW> &w, uint32_t &boxes)
{
    if constexpr (N < TILE)
        if (l.count[turn] > N)
            return run_of<T, N + 16>(p, smem, b, l, turn, sixes, w, boxes);
    run<T, N>(p, smem, b, l, turn, sixes, w, boxes);
}
#endif

template <int T> static __global__ void __launch_bounds__(THREADS, 1) experts_kernel(const __grid_constant__ experts p, uint64_t *at)
{
#ifdef HAVE_WGMMA
    typedef room<T> R;
    extern __shared__ uint8_t dynamic[];
    __shared__ lists l;
    __shared__ barriers b;
    uint8_t *smem = dynamic + (1024 - smem_of(dynamic) % 1024) % 1024;
    if (threadIdx.x < NX) {
        barrier_init(&b.x_full[threadIdx.x], COPIERS);
        barrier_init(&b.x_empty[threadIdx.x], WORKERS / 32);
    }
    if (threadIdx.x < R::NW) {
        barrier_init(&b.w_full[threadIdx.x], 1);
        barrier_init(&b.w_empty[threadIdx.x], WORKERS / 32);
    }
    if (threadIdx.x < 2) {
        barrier_init(&b.lists[threadIdx.x], COPIERS);
        barrier_init(&b.read[threadIdx.x], WORKERS / 32);
    }
    if (threadIdx.x == 0)
        b.sixes = 0x64646464u;
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* for bulk copies */
    pdl_release();
    pdl_wait();
    stamp(at);
    __syncthreads();
    const uint32_t n = (uint32_t)p.tiles[0] * p.blocks;
    if (blockIdx.x >= n)
        return;
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        if (threadIdx.x == WORKERS)
            bring_weights<T>(p, n, smem, b);
        else if (threadIdx.x >= WORKERS + 32)
            bring_rows<T>(p, n, smem, b, l);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
    ring<R::NW> w = {0, 0};
    const uint32_t sixes = *(const volatile uint32_t *)&b.sixes;
    uint32_t piece = 0, boxes = 0;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x, piece++) {
        barrier_wait(&b.lists[piece % 2], piece / 2 & 1);
        run_of<T, 16>(p, smem, b, l, piece % 2, sixes, w, boxes);
    }
#endif
}

template <int T> static cudaError_t describe(PFN_cuTensorMapEncodeTiled_v12000 make, const struct kcu_mat *m, CUtensorMap *map)
{
    const cuuint64_t size[] = {m->pitch, m->rows, m->n_mats}, stride[] = {m->pitch, m->mat_pitch};
    const cuuint32_t box[] = {room<T>::S::STRIDE, HALF, 1}, each[] = {1, 1, 1};
    return make(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)m->w, size, stride, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

template <int T> static cudaError_t start(const struct kcu_launch *l, const struct gemm *g, float *act, size_t act_pitch, uint32_t tiles)
{
    typedef room<T> R;
    const bool both = g->second.w != NULL;
    const size_t bytes = R::NW * R::W_BYTES + NX * X_BYTES + 1024;
    const uint32_t step = both ? HALF : ROWS, blocks = (g->m.rows + step - 1) / step, pieces = blocks * tiles, sms = multiprocessors();
    experts p = {.tiles = g->tiles,
                 .from = g->from,
                 .to = g->to,
                 .h = g->h,
                 .h_pitch = g->h_pitch,
                 .h_scale = g->h_scale,
                 .y = {g->y, both ? g->second_y : g->y},
                 .y_pitch = g->y_pitch,
                 .act = act,
                 .act_pitch = act_pitch,
                 .rows = g->m.rows,
                 .k = g->m.k,
                 .blocks = blocks,
                 .step = step,
                 .second0 = both ? 0u : HALF};
    PFN_cuTensorMapEncodeTiled_v12000 make;
    cudaError_t e = box_maker(&make);
    if (e == cudaSuccess)
        e = describe<T>(make, &g->m, &p.map[0]);
    if (e == cudaSuccess)
        e = describe<T>(make, both ? &g->second : &g->m, &p.map[1]);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(experts_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e : launch(l, experts_kernel<T>, dim3(pieces < sms ? pieces : sms), dim3(THREADS), bytes, 0, p, l->stamp);
}

bool gemm_experts_takes(const struct kcu_mat *m)
{
    struct cudaFuncAttributes a;
    return (m->type == KRN_Q4_K || m->type == KRN_Q5_K) && m->k % KW == 0 && cudaFuncGetAttributes(&a, experts_kernel<KRN_Q4_K>) == cudaSuccess &&
           a.binaryVersion == 90 && a.ptxVersion == 90;
}

cudaError_t gemm_experts_run(const struct kcu_launch *l, const struct gemm *g, float *act, size_t act_pitch, uint32_t tiles)
{
    switch (g->m.type) {
    case KRN_Q4_K: return start<KRN_Q4_K>(l, g, act, act_pitch, tiles);
    case KRN_Q5_K: return start<KRN_Q5_K>(l, g, act, act_pitch, tiles);
    default: return cudaErrorInvalidValue;
    }
}
