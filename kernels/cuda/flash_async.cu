/* Attention of prompt rows by the asynchronous tensor cores of compute capability 9.0: as flash.cu, 64 absorbed queries against tiles of 64
 * keys, but queries, keys and probabilities are read by the tensor cores themselves. Two warpgroups work: of the scores, each has half of
 * the keys; of the mixtures, half of the latent's values. Four more warps bring the next keys meanwhile. */
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

enum { KEYS = FLASH_KEYS, D = FLASH_D, L = FLASH_L, QUERIES = 64, TILE = 64 * 128 /* 64 rows of 64 columns */, TILES = D / 64 };
enum { WORKERS = 256, COPIERS = 128, THREADS = WORKERS + COPIERS, OWN_REGS = 232, COPY_REGS = 40 };

struct async_tile {
    uint32_t row0, n, heads, h0, keys;
};

struct async_shared {
    uint8_t q[TILES * TILE], k[2][TILES * TILE], p[TILE];
    float top[2][QUERIES], sum[2][QUERIES];
    uint32_t key[2][KEYS];
    async_tile tile[2];
    uint64_t full[2], empty[2], q_full, q_empty;
};

#ifdef HAVE_WGMMA
/* The tiles of a block, one after the other. Tiles lie in order of their length: going there and back over the blocks gives all about the same. */
struct walk {
    uint32_t all, groups, round, item;
    __device__ __forceinline__ explicit walk(const flash_args &a)
    {
        groups = (a.heads + QUERIES - 1) / QUERIES;
        all = (uint32_t)a.b.lists[0] * groups;
        round = 0;
        item = blockIdx.x;
    }
    __device__ __forceinline__ bool more() const
    {
        return item < all;
    }
    __device__ __forceinline__ void next()
    {
        round++;
        item = round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
    __device__ __forceinline__ async_tile tile(const flash_args &a) const
    {
        const int32_t *at = a.b.tables + a.b.lists[1] + 2 * (item / groups);
        async_tile t;
        t.row0 = (uint32_t)at[0];
        t.n = (uint32_t)at[1];
        t.keys = (uint32_t)a.b.pos[t.row0 + t.n - 1] + 1;
        t.h0 = item % groups * QUERIES;
        t.heads = a.heads - t.h0 < QUERIES ? a.heads - t.h0 : QUERIES;
        return t;
    }
};

static __device__ __forceinline__ uint32_t cache_row(const flash_args &a, const async_tile &t, uint32_t i)
{
    return (uint32_t)page_row(a.b, t.row0, i < t.keys ? i : t.keys - 1); /* past the end any valid one */
}

/* Eight threads bring 128 bytes of a row, all of them 16 rows; four times that, for every 64 columns. Nothing but the rows' addresses is computed: few threads copy, and
 * what they do in between is what work waits for. */
static __device__ __forceinline__ void bring_rows(const uint8_t *const row[4], uint8_t *to)
{
    const uint32_t me = threadIdx.x - WORKERS;
    uint8_t *mine = to + wgmma_place(me / 8, me % 8);
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            copy_async<16>(mine + c * TILE + i * (16 * 128), row[i] + c * 128);
}

/* Queries of a tile lie together: it has one row, or all heads. Behind its last one that is repeated: computed, never stored. */
static __device__ __forceinline__ void bring_queries(const flash_args &a, const async_tile &t, uint8_t *to)
{
    const uint32_t me = threadIdx.x - WORKERS, last = t.n * t.heads - 1;
    const uint8_t *from = (const uint8_t *)(a.q + ((size_t)t.row0 * a.heads + t.h0) * D) + me % 8 * 16, *row[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t q = me / 8 + 16 * i;
        row[i] = from + (q < last ? q : last) * (2 * D);
    }
    bring_rows(row, to);
}

/* What the copying threads do: keys, a tile ahead of those who work, and queries once the scores before have been made; where the next keys lie
 * is looked up meanwhile. */
static __device__ __forceinline__ void bring(const flash_args &a, async_shared &s)
{
    const uint32_t me = threadIdx.x - WORKERS;
    walk w(a);
    if (!w.more())
        return;
    async_tile t = w.tile(a);
    if (me < KEYS)
        s.key[0][me] = cache_row(a, t, me);
    group_sync<2, COPIERS>();
    for (uint32_t n = 0, item = 0;; item++) {
        w.next();
        const bool more = w.more();
        const async_tile then = more ? w.tile(a) : t;
        for (uint32_t i = 0; i * KEYS < t.keys; i++, n++) {
            const uint32_t now = n & 1;
            if (n >= 2)
                barrier_wait(&s.empty[now], (n / 2 - 1) & 1);
            const uint8_t *row[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                row[j] = a.cache + (size_t)s.key[now][me / 8 + 16 * j] * (2 * D) + me % 8 * 16;
            bring_rows(row, s.k[now]);
            barrier_arrive_copied(&s.full[now]);
            if (i == 0) {
                if (item != 0)
                    barrier_wait(&s.q_empty, (item - 1) & 1);
                bring_queries(a, t, s.q);
                if (me == 0) {
                    s.tile[item & 1] = t;
                    barrier_arrive(&s.q_full);
                }
                barrier_arrive_copied(&s.q_full);
            }
            const bool here = (i + 1) * KEYS < t.keys;
            if (me < KEYS && (here || more))
                s.key[now ^ 1][me] = cache_row(a, here ? t : then, here ? (i + 1) * KEYS + me : me);
            group_sync<2, COPIERS>();
        }
        if (!more)
            return;
        t = then;
    }
}

/* What a lane keeps of its two queries; the sum is over its own keys. */
struct async_state {
    int32_t own[2]; /* last key that is seen */
    float top[2], sum[2];
};

/* Scores to probabilities in s.p, and what earlier sums have to be multiplied by. */
static __device__ __forceinline__ void soften(async_shared &s, uint32_t k0, float c[16], async_state &st, float grow[2])
{
    const uint32_t lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 % 4 * 16 + lane / 4, col0 = group * 32 + lane % 4 * 2;
    float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int q = i / 2 % 2;
        if ((int32_t)(k0 + col0 + i / 4 * 8 + i % 2) > st.own[q])
            c[i] = -INFINITY;
        m[q] = fmaxf(m[q], c[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], 1));
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xffffffffu, m[i], 2));
        if (lane % 4 == 0)
            s.top[group][row + 8 * i] = m[i];
    }
    group_sync<1, WORKERS>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m[i] = fmaxf(fmaxf(m[i], s.top[group ^ 1][row + 8 * i]), st.top[i]);
        const float base = m[i] == -INFINITY ? 0 : m[i]; /* nothing seen yet: everything becomes 0 */
        grow[i] = exp2f(st.top[i] - base);
        st.top[i] = m[i];
        float z = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const __half2 p = __floats2half2_rn(exp2f(c[4 * n + 2 * i] - base), exp2f(c[4 * n + 2 * i + 1] - base));
            z += __low2float(p) + __high2float(p); /* what is summed is what is multiplied */
            *(__half2 *)(s.p + wgmma_place(row + 8 * i, group * 4 + n) + lane % 4 * 4) = p;
        }
        st.sum[i] = st.sum[i] * grow[i] + z;
    }
}

static __device__ __forceinline__ void scores(const async_shared &s, const uint8_t *k, float c[16])
{
    const uint64_t a = wgmma_tile(s.q), b = wgmma_tile(k + threadIdx.x / 128 * (32 * 128));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wgmma_tiles<32>(c, a + i / 4 * (TILE / 16) + i % 4 * 2, b + i / 4 * (TILE / 16) + i % 4 * 2, i);
    wgmma_commit();
    wgmma_wait<0>();
}

static __device__ __forceinline__ void mix_latents(const async_shared &s, const uint8_t *k, float o[L / 4], bool more)
{
    const uint64_t a = wgmma_tile(s.p), b = wgmma_tile_across(k + threadIdx.x / 128 * (4 * TILE), TILE);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        wgmma_across<L / 2>(o, a + i * 2, b + i * (16 * 128 / 16), i != 0 || more);
    wgmma_commit();
    wgmma_wait<0>();
}

/* In the order of kcu_halve(): of 16 values a lane has two pairs, which with those of its neighbour but one make two neighbouring pairs. */
static __device__ __forceinline__ void leave(const flash_args &a, const async_tile &t, async_shared &s, const float o[L / 4], async_state &st)
{
    const uint32_t lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const bool second = lane & 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        st.sum[i] += __shfl_xor_sync(0xffffffffu, st.sum[i], 1);
        st.sum[i] += __shfl_xor_sync(0xffffffffu, st.sum[i], 2);
        if (lane % 4 == 0)
            s.sum[group][row + 8 * i] = st.sum[i];
    }
    group_sync<1, WORKERS>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t q = row + 8 * i;
        const bool on = q < t.n * t.heads;
        const float scale = 1.0f / (s.sum[0][q] + s.sum[1][q]);
        __half *to = a.mix + ((size_t)t.row0 * a.heads + t.h0 + q) * L + group * (L / 2) + lane % 2 * 8 + lane / 2 % 2 * 4;
#pragma unroll
        for (int n = 0; n < L / 32; n++) {
            const __half2 x = __floats2half2_rn(o[8 * n + 2 * i] * scale, o[8 * n + 2 * i + 1] * scale),
                          y = __floats2half2_rn(o[8 * n + 4 + 2 * i] * scale, o[8 * n + 5 + 2 * i] * scale), own = second ? y : x, give = second ? x : y;
            const __half2 got = __shfl_xor_sync(0xffffffffu, give, 2);
            const __half2 v[2] = {second ? got : own, second ? own : got};
            if (on)
                *(uint2 *)(to + 16 * n) = *(const uint2 *)v;
        }
    }
}

static __device__ __forceinline__ void work(const flash_args &a, async_shared &s)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n = 0, item = 0;
    for (walk w(a); w.more(); w.next(), item++) {
        barrier_wait(&s.q_full, item & 1);
        const async_tile t = s.tile[item & 1];
        const uint32_t last = t.n * t.heads - 1;
        async_state st = {{0, 0}, {-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t q = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * i, row = (q < last ? q : last) / t.heads;
            st.own[i] = t.keys < t.n ? 0 : (int32_t)(t.keys - t.n + row); /* rows are neighbours, but padded ones all at position 0 */
        }
        float o[L / 4];
        for (uint32_t i = 0; i * KEYS < t.keys; i++, n++) {
            const uint8_t *k = s.k[n & 1];
            float c[16], grow[2];
            barrier_wait(&s.full[n & 1], n / 2 & 1);
            wgmma_written(); /* by copies, and seen by this thread */
            scores(s, k, c);
            if ((i + 1) * KEYS >= t.keys && lane == 0)
                barrier_arrive(&s.q_empty);
            soften(s, i * KEYS, c, st, grow);
            if (i != 0 && __any_sync(0xffffffffu, grow[0] != 1 || grow[1] != 1))
#pragma unroll
                for (int j = 0; j < L / 4; j++)
                    o[j] *= grow[j / 2 % 2];
            wgmma_written();
            group_sync<1, WORKERS>();
            mix_latents(s, k, o, i != 0);
            if (lane == 0)
                barrier_arrive(&s.empty[n & 1]);
        }
        leave(a, t, s, o, st);
    }
}
#endif

/* A block for every multiprocessor: while it is about one tile, it brings the next. */
static __global__ void __launch_bounds__(THREADS, 1) flash_async_kernel(const __grid_constant__ flash_args a, uint64_t *at)
{
#ifdef HAVE_WGMMA
    extern __shared__ uint8_t dynamic[];
    async_shared &s = *(async_shared *)(dynamic + (1024 - smem_of(dynamic) % 1024) % 1024);
    if (threadIdx.x < 2) {
        barrier_init(&s.full[threadIdx.x], COPIERS);
        barrier_init(&s.empty[threadIdx.x], WORKERS / 32);
    } else if (threadIdx.x == 2) {
        barrier_init(&s.q_full, COPIERS + 1);
        barrier_init(&s.q_empty, WORKERS / 32);
    }
    pdl_release();
    pdl_wait();
    stamp(at);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        bring(a, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
        work(a, s);
    }
#endif
}

cudaError_t flash_async_prompt(const struct kcu_launch *l, const struct flash_args *a, uint32_t tiles)
{
    static_assert(sizeof(async_shared) + 1024 <= 227 * 1024, "fits");
    cudaError_t e = cudaFuncSetAttribute(flash_async_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(async_shared) + 1024);
    const uint32_t items = tiles * ((a->heads + QUERIES - 1) / QUERIES), room = multiprocessors();
    return e != cudaSuccess
               ? e
               : launch(l, flash_async_kernel, dim3(items < room ? items : room), dim3(THREADS), sizeof(async_shared) + 1024, 0, *a, l->stamp);
}
