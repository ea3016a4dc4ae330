/* Products of experts with few rows each by the asynchronous tensor cores of compute capability 9.0: weights of Q4_K and Q5_K. Blocks stay and take one piece
 * of work after another: 256 weight rows x a tile of activations. Two warps bring weights as they lie in memory, 256 of every row at once, two bring
 * activations, 64 columns at a time; both run ahead into the next piece of work. Four warpgroups multiply, each 64 weight rows: a warp's first eight are of
 * one half of the 256, its last eight of the other, so that where the halves are gate and up a thread has both values of an activation. Sums run along K in
 * one order: a row's bits do not depend on its tile. */
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/steps.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    TILE = GEMM_EXPERTS_ROWS,
    HALF = 128,
    ROWS = 2 * HALF,
    WORKERS = ROWS * 2,
    COPIERS = 64, /* of weights, a warp for each half, and as many of activations */
    THREADS = WORKERS + 2 * COPIERS,
    KW = 256, /* columns of a box of weights */
    KX = 64,  /* of a step of activations */
    X_BYTES = TILE * 128,
    OWN_REGS = 112, /* of what the block gets, 96 for every thread */
    COPY_REGS = 32,
    MOST_W = 4,
    MOST_X = 8
};

/* Shared memory: boxes of weights, two halves each, then steps of activations. Rows of a box lie an odd multiple of 16 bytes apart. */
template <int T> struct room {
    typedef steps<T, KW> S;
    enum {
        HALF_BYTES = HALF * S::STRIDE,
        W_BYTES = 2 * HALF_BYTES,
        ALL = 223 * 1024,
        FIT_W = (ALL - 6 * X_BYTES) / W_BYTES,
        NW = FIT_W > MOST_W ? MOST_W : FIT_W,
        FIT_X = (ALL - NW * W_BYTES) / X_BYTES,
        NX = FIT_X > MOST_X ? MOST_X : FIT_X
    };
    static_assert(W_BYTES % 1024 == 0 && NW >= 2 && NX >= 4, "activations are aligned to their swizzle; room for some steps");
};

struct experts {
    const uint8_t *w[2]; /* of the halves */
    size_t pitch, mat_pitch;
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
    uint64_t w_full[MOST_W], w_empty[MOST_W], x_full[MOST_X], x_empty[MOST_X], lists[2], read[2];
};

/* Of two tiles in turn: where rows of results go and what they are multiplied by. */
struct lists {
    uint32_t in[2][TILE]; /* where activations begin, in units of 16 bytes */
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

/* Weights of a half, by a warp, as far ahead as there is room. Rows past the end are not brought: nothing of them is stored. */
template <int T> static __device__ __forceinline__ void bring_weights(const experts &p, uint32_t n, uint8_t *smem, barriers &b)
{
    typedef room<T> R;
    enum { PIECES = R::S::STRIDE / 16, PER = 32 / PIECES, TURNS = (HALF + PER - 1) / PER };
    const uint32_t half = (threadIdx.x - WORKERS) / 32, lane = threadIdx.x % 32, r0 = lane < PER * PIECES ? lane / PIECES : HALF;
    ring<R::NW> w = {0, 0};
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const task t = task_of(p, i);
        const uint32_t row0 = t.row0 + half * p.second0;
        const int32_t rows = (int32_t)(row0 < p.rows ? (p.rows - row0 < HALF ? p.rows - row0 : HALF) : 0) - (int32_t)r0; /* from this lane's first on */
        const uint8_t *from = p.w[half] + t.expert * p.mat_pitch + (row0 + r0) * p.pitch + lane % PIECES * 16;
        for (uint32_t kb = 0; kb < p.k / KW; kb++, from += R::S::STRIDE) {
            uint8_t *to = smem + w.at * R::W_BYTES + half * R::HALF_BYTES + lane * 16;
            const uint8_t *at = from;
            if (w.round != 0)
                barrier_wait(&b.w_empty[w.at], (w.round - 1) & 1);
#pragma unroll 8
            for (int32_t c = 0; c < TURNS; c++, at += PER * p.pitch)
                if (c * PER < rows)
                    copy_async<16>(to + c * (PER * R::S::STRIDE), at);
            barrier_arrive_copied(&b.w_full[w.at]);
            w.next();
        }
    }
}

/* Activations, and where results go. Rows past the end of a tile repeat its last: computed, never stored. Where all of K fits into the ring one would be
 * several pieces ahead: a list is written again only when all have read the one before the last. */
template <int T> static __device__ __forceinline__ void bring_rows(const experts &p, uint32_t n, uint8_t *smem, barriers &b, lists &l)
{
    typedef room<T> R;
    enum { LINES = COPIERS / 8 };
    static_assert(LINES == 8, "the same place within eight rows");
    const uint32_t me = threadIdx.x - WORKERS - COPIERS, to_x = R::NW * R::W_BYTES + wgmma_place(me / 8, me % 8);
    ring<R::NX> x = {0, 0};
    uint32_t piece = 0;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x, piece++) {
        const task t = task_of(p, i);
        const uint32_t rows = (t.count + 15) / 16 * 16, turn = piece % 2;
        if (piece >= 2)
            barrier_wait(&b.read[turn], (piece / 2 - 1) & 1);
        for (uint32_t r = me; r < rows; r += COPIERS) {
            const uint32_t e = t.first + (r < t.count ? r : t.count - 1);
            l.in[turn][r] = (uint32_t)p.from[e] * (uint32_t)(p.h_pitch / 8);
            l.out_row[turn][r] = p.to[e];
            l.scale[turn][r] = p.h_scale[p.from[e]] * (1.0f / UP); /* powers of two */
        }
        barrier_arrive(&b.lists[turn]);
        group_sync<1, COPIERS>();
        const uint32_t *in = l.in[turn] + me / 8;
        const uint8_t *h = (const uint8_t *)p.h + me % 8 * 16;
        for (uint32_t k = 0; k < p.k; k += KX, h += 2 * KX) {
            if (x.round != 0)
                barrier_wait(&b.x_empty[x.at], (x.round - 1) & 1);
            uint8_t *to = smem + to_x + x.at * X_BYTES;
#pragma unroll 4
            for (uint32_t r = 0; r < rows; r += 2 * LINES) {
                copy_async<16>(to + r * 128, h + (size_t)in[r] * 16);
                copy_async<16>(to + (r + LINES) * 128, h + (size_t)in[r + LINES] * 16);
            }
            barrier_arrive_copied(&b.x_full[x.at]);
            x.next();
        }
    }
}

/* Half of a lane's 64 columns of a weight row as operands: four codes of each group of 32. Scales as of steps<T>::unit_scales(), upper half bytes being taken
 * as they lie, 16 times the code. high: of Q5_K, the word of fifth bits. */
template <int T> static __device__ __forceinline__ void operands(uint32_t w, uint32_t high, uint32_t u, const uint2 &s, uint32_t h[2][2])
{
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if constexpr (T == KRN_Q4_K) { /* l: 1152 + the lower code, so that both come out less their middle */
            const uint32_t l = bytes_1024(and_or(w, LOW4, 0x80808080u), c), all = bytes_1024(w, c);
            h[0][c] = fma2(sub2(l, 0x64886488u), both(s.x, 0), both(s.y, 0));
            h[1][c] = fma2(sub2(all, l), both(s.x, 1), both(s.y, 1));
        } else { /* the fifth bit of the upper code goes above its byte */
            const uint32_t fifth = u < 2 ? high << (4 - 2 * u) : high >> (2 * u - 4), low = and_or(fifth, 0x10101010u, w & LOW4),
                           above = and_or(high >> (2 * u + 1), 0x01010101u, 0x64646464u),
                           l = bytes_1024(low, c), all = __byte_perm(w & 0xf0f0f0f0u, above, c ? 0x7362 : 0x5140);
            h[0][c] = fma2(sub2(l, 0x64106410u), both(s.x, 0), both(s.y, 0));
            h[1][c] = fma2(sub2(all, 0x65006500u), both(s.x, 1), both(s.y, 1));
        }
    }
}

/* Scales and minima of unit u, lane's own. */
template <int T> static __device__ __forceinline__ uint2 scales_of(const uint8_t *r, uint32_t u)
{
    const uint4 b = *(const uint4 *)r;
    const uint32_t pick = u % 2 ? 0x4342 : 0x4140;
    const uint32_t sc = u / 2 ? (b.w & LOW4) | (b.y >> 2 & 0x30303030u) : b.y & 0x3f3f3f3fu,
                   mn = u / 2 ? (b.w >> 4 & LOW4) | (b.z >> 2 & 0x30303030u) : b.z & 0x3f3f3f3fu;
    const uint32_t d = mul2(both(b.x, 0), 0x44005400u), least = mul2(both(b.x, 1), 0xd400d400u); /* 64 and 4, -64 */
    const uint32_t a = mul2(sub2(__byte_perm(sc, 0x64646464u, pick), 0x64006400u), d);
    return make_uint2(a, fma2(sub2(__byte_perm(mn, 0x64646464u, pick), 0x64006400u), least, mul2(a, T == KRN_Q5_K ? 0x5c004c00u : 0x58004800u))); /* 16, 256; 8, 128 */
}

/* 64 columns of this warp's 16 weight rows times the tile, in two groups of products. After the last of a box nothing is under way. */
template <int T, int N>
static __device__ __forceinline__ void multiply(const uint8_t *a0, const uint8_t *mine, uint32_t u, uint32_t x, uint32_t more, const uint32_t high[2][2],
                                                uint2 &own, float acc[N / 2])
{
    typedef room<T> R;
    typedef typename R::S S;
    enum { HEAD = S::STRIDE - KW / 2 };
    const uint32_t j = threadIdx.x % 4;
    if (u % 2 == 0) /* two rows' scales of two units, one for each lane of the quad */
        own = scales_of<T>(mine, u + j / 2);
    uint2 s[2];
    uint32_t w[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            w[r][i] = word(a0 + r * R::HALF_BYTES + HEAD + 32 * u + 16 * i + 4 * j);
        s[r].x = __shfl_sync(0xffffffffu, own.x, u % 2 * 2 + r, 4);
        s[r].y = __shfl_sync(0xffffffffu, own.y, u % 2 * 2 + r, 4);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t h[2][2][2]; /* row, group */
#pragma unroll
        for (int r = 0; r < 2; r++)
            operands<T>(w[r][i], high[r][i], u, s[r], h[r]);
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
static __device__ __forceinline__ void work(const experts &p, const uint8_t *smem, barriers &b, ring<room<T>::NW> &w, ring<room<T>::NX> &x, float acc[N / 2])
{
    typedef room<T> R;
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 8 + lane / 4;
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t kb = 0; kb < p.k / KW; kb++) {
        const uint8_t *a0 = smem + w.at * R::W_BYTES + row * R::S::STRIDE, *mine = a0 + lane % 2 * R::HALF_BYTES;
        uint2 own = make_uint2(0, 0);
        uint32_t high[2][2] = {};
        barrier_wait(&b.w_full[w.at], w.round & 1);
#pragma unroll
        for (int i = 0; i < 4 && T == KRN_Q5_K; i++)
            high[i / 2][i % 2] = word(a0 + i / 2 * R::HALF_BYTES + 16 + i % 2 * 16 + 4 * (lane % 4));
#pragma unroll
        for (uint32_t u = 0; u < KW / KX; u++) {
            barrier_wait(&b.x_full[x.at], x.round & 1);
            wgmma_written(); /* by copies, and seen by this thread */
            multiply<T, N>(a0, mine, u, wgmma_tile(smem + R::NW * R::W_BYTES + x.at * X_BYTES), kb, high, own, acc);
            if (lane == 0) {
                if (u != 0)
                    barrier_arrive(&b.x_empty[before]);
                if (u + 1 == KW / KX) {
                    barrier_arrive(&b.x_empty[x.at]);
                    barrier_arrive(&b.w_empty[w.at]);
                }
            }
            before = x.at;
            x.next();
        }
        w.next();
    }
}

template <int T, int N>
static __device__ __forceinline__ void run(const experts &p, uint32_t i, const uint8_t *smem, barriers &b, const lists &l, uint32_t piece, ring<room<T>::NW> &w,
                                           ring<room<T>::NX> &x)
{
    float acc[N / 2] = {}; /* without a beginning they would be kept from piece to piece, those of all sizes */
    work<T, N>(p, smem, b, w, x, acc);
    const uint32_t turn = piece % 2;
    barrier_wait(&b.lists[turn], piece / 2 & 1);
    const task t = task_of(p, i); /* again: registers are short meanwhile */
    const uint32_t lane = threadIdx.x % 32, row0 = t.row0 + threadIdx.x / 32 * 8 + lane / 4, row1 = row0 + p.second0;
    const bool in0 = row0 < p.rows, in1 = row1 < p.rows, acts = p.act != nullptr && in0;
#pragma unroll
    for (int v = 0; v < N / 2; v += 4)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t col = v / 4 * 8 + lane % 4 * 2 + c;
            if (col >= t.count)
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
#endif

template <int T> static __global__ void __launch_bounds__(THREADS, 1) experts_kernel(const __grid_constant__ experts p, uint64_t *at)
{
#ifdef HAVE_WGMMA
    typedef room<T> R;
    extern __shared__ uint8_t dynamic[];
    __shared__ lists l;
    __shared__ barriers b;
    uint8_t *smem = dynamic + (1024 - smem_of(dynamic) % 1024) % 1024;
    if (threadIdx.x < R::NX) {
        barrier_init(&b.x_full[threadIdx.x], COPIERS);
        barrier_init(&b.x_empty[threadIdx.x], WORKERS / 32);
    }
    if (threadIdx.x < R::NW) {
        barrier_init(&b.w_full[threadIdx.x], COPIERS);
        barrier_init(&b.w_empty[threadIdx.x], WORKERS / 32);
    }
    if (threadIdx.x < 2) {
        barrier_init(&b.lists[threadIdx.x], COPIERS);
        barrier_init(&b.read[threadIdx.x], WORKERS / 32);
    }
    pdl_release();
    pdl_wait();
    stamp(at);
    __syncthreads();
    const uint32_t n = (uint32_t)p.tiles[0] * p.blocks;
    if (blockIdx.x >= n)
        return;
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        if (threadIdx.x >= WORKERS + COPIERS)
            bring_rows<T>(p, n, smem, b, l);
        else
            bring_weights<T>(p, n, smem, b);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
    ring<R::NW> w = {0, 0};
    ring<R::NX> x = {0, 0};
    uint32_t piece = 0;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x, piece++) {
        const uint32_t c = (task_of(p, i).count + 15) / 16;
        if (c <= 1)
            run<T, 16>(p, i, smem, b, l, piece, w, x);
        else if (c == 2)
            run<T, 32>(p, i, smem, b, l, piece, w, x);
        else if (c == 3)
            run<T, 48>(p, i, smem, b, l, piece, w, x);
        else if (c == 4)
            run<T, 64>(p, i, smem, b, l, piece, w, x);
        else if (c == 5)
            run<T, 80>(p, i, smem, b, l, piece, w, x);
        else
            run<T, 96>(p, i, smem, b, l, piece, w, x);
    }
#endif
}

template <int T> static cudaError_t start(const struct kcu_launch *l, const struct gemm *g, float *act, size_t act_pitch, uint32_t tiles)
{
    typedef room<T> R;
    const bool both = g->second.w != NULL;
    const size_t bytes = R::NW * R::W_BYTES + R::NX * X_BYTES + 1024;
    const uint32_t step = both ? HALF : ROWS, blocks = (g->m.rows + step - 1) / step, pieces = blocks * tiles, sms = multiprocessors();
    const experts p = {.w = {g->m.w, both ? g->second.w : g->m.w},
                 .pitch = g->m.pitch,
                 .mat_pitch = g->m.mat_pitch,
                 .tiles = g->tiles,
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
    cudaError_t e = cudaFuncSetAttribute(experts_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
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
