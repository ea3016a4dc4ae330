/* Attention of prompt rows by the asynchronous tensor cores of compute capability 9.0: as flash.cu, 64 absorbed queries against tiles of 64
 * keys, but queries, keys and probabilities are read by the tensor cores themselves. Two warpgroups work: of the scores, each has half of
 * the keys; of the mixtures, half of the latent's values. Four more warps bring the next keys meanwhile. */
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

enum { KEYS = FLASH_KEYS, D = FLASH_D, L = FLASH_L, QUERIES = 64, CHUNKS = D / 8, TILE = 64 * 128 /* 64 rows of 64 columns */, TILES = D / 64 };
enum { WORKERS = 256, COPIERS = 128, THREADS = WORKERS + COPIERS, OWN_REGS = 232, COPY_REGS = 40 };

struct async_shared {
    uint8_t q[TILES * TILE], k[2][TILES * TILE], p[TILE];
    float red[2][QUERIES];
    uint32_t key[2][KEYS];
    uint64_t full[2], empty[2];
};

struct async_tile {
    uint32_t row0, n, heads, h0, keys;
};

#ifdef HAVE_WGMMA
static __device__ __forceinline__ uint32_t cache_row(const flash_args &a, const async_tile &t, uint32_t i)
{
    return (uint32_t)page_row(a.b, t.row0, i < t.keys ? i : t.keys - 1); /* past the end any valid one */
}

/* What the copying threads do: keys, a tile ahead of those who work; where the next ones lie is looked up meanwhile. */
static __device__ __forceinline__ void bring(const flash_args &a, const async_tile &t, async_shared &s)
{
    const uint32_t me = threadIdx.x - WORKERS;
    if (me < KEYS)
        s.key[0][me] = cache_row(a, t, me);
    group_sync<2, COPIERS>();
    for (uint32_t i = 0; i * KEYS < t.keys; i++) {
        const uint32_t now = i & 1;
        if (i >= 2)
            barrier_wait(&s.empty[now], (i / 2 - 1) & 1);
#pragma unroll 4
        for (uint32_t j = me; j < KEYS * CHUNKS; j += COPIERS) {
            const uint32_t r = j / CHUNKS, c = j % CHUNKS;
            copy_async<16>(s.k[now] + c / 8 * TILE + wgmma_place(r, c % 8), a.cache + (size_t)s.key[now][r] * (2 * D) + 16 * c);
        }
        barrier_arrive_copied(&s.full[now]);
        if (me < KEYS)
            s.key[now ^ 1][me] = cache_row(a, t, (i + 1) * KEYS + me);
        group_sync<2, COPIERS>();
    }
}

static __device__ __forceinline__ void fetch_queries(const flash_args &a, const async_tile &t, uint8_t *to)
{
    for (uint32_t j = threadIdx.x; j < QUERIES * CHUNKS; j += THREADS) {
        const uint32_t i = j / CHUNKS, c = j % CHUNKS;
        uint8_t *at = to + c / 8 * TILE + wgmma_place(i, c % 8);
        if (i < t.n * t.heads)
            copy_async<16>(at, a.q + ((size_t)(t.row0 + i / t.heads) * a.heads + t.h0 + i % t.heads) * D + 8 * c);
        else
            *(uint4 *)at = make_uint4(0, 0, 0, 0);
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
            s.red[group][row + 8 * i] = m[i];
    }
    group_sync<1, WORKERS>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m[i] = fmaxf(fmaxf(m[i], s.red[group ^ 1][row + 8 * i]), st.top[i]);
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

static __device__ __forceinline__ void leave(const flash_args &a, const async_tile &t, async_shared &s, const float o[L / 4], async_state &st)
{
    const uint32_t lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 % 4 * 16 + lane / 4, col0 = group * (L / 2) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        st.sum[i] += __shfl_xor_sync(0xffffffffu, st.sum[i], 1);
        st.sum[i] += __shfl_xor_sync(0xffffffffu, st.sum[i], 2);
        if (lane % 4 == 0)
            s.red[group][row + 8 * i] = st.sum[i];
    }
    group_sync<1, WORKERS>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t q = row + 8 * i;
        if (q >= t.n * t.heads)
            continue;
        __half *to = a.mix + ((size_t)(t.row0 + q / t.heads) * a.heads + t.h0 + q % t.heads) * L;
        const float scale = 1.0f / (s.red[0][q] + s.red[1][q]);
#pragma unroll
        for (int n = 0; n < L / 16; n++)
            *(__half2 *)(to + flash_place(col0 + n * 8, a.halves)) = __floats2half2_rn(o[4 * n + 2 * i] * scale, o[4 * n + 2 * i + 1] * scale);
    }
}

static __device__ __forceinline__ void work(const flash_args &a, const async_tile &t, async_shared &s)
{
    const uint32_t lane = threadIdx.x % 32;
    async_state st = {{-1, -1}, {-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t q = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * i;
        if (q < t.n * t.heads)
            st.own[i] = a.b.pos[t.row0 + q / t.heads];
    }
    float o[L / 4];
    for (uint32_t i = 0; i * KEYS < t.keys; i++) {
        const uint8_t *k = s.k[i & 1];
        float c[16], grow[2];
        barrier_wait(&s.full[i & 1], i / 2 & 1);
        wgmma_written(); /* by copies, and seen by this thread */
        scores(s, k, c);
        soften(s, i * KEYS, c, st, grow);
        if (i != 0 && __any_sync(0xffffffffu, grow[0] != 1 || grow[1] != 1))
#pragma unroll
            for (int j = 0; j < L / 4; j++)
                o[j] *= grow[j / 2 % 2];
        wgmma_written();
        group_sync<1, WORKERS>();
        mix_latents(s, k, o, i != 0);
        if (lane == 0)
            barrier_arrive(&s.empty[i & 1]);
    }
    group_sync<1, WORKERS>(); /* the maxima have been read */
    leave(a, t, s, o, st);
}
#endif

/* blockIdx: tile, group of heads. Tiles from the last one on: those with most keys first. */
static __global__ void __launch_bounds__(THREADS, 1) flash_async_kernel(const __grid_constant__ flash_args a, uint64_t *at)
{
#ifdef HAVE_WGMMA
    extern __shared__ uint8_t dynamic[];
    async_shared &s = *(async_shared *)(dynamic + (1024 - smem_of(dynamic) % 1024) % 1024);
    pdl_release();
    pdl_wait();
    stamp(at);
    if (blockIdx.x >= (uint32_t)a.b.lists[0])
        return;
    const uint32_t tile = (uint32_t)a.b.lists[0] - 1 - blockIdx.x;
    async_tile t;
    t.row0 = (uint32_t)a.b.tables[a.b.lists[1] + 2 * tile];
    t.n = (uint32_t)a.b.tables[a.b.lists[1] + 2 * tile + 1];
    t.keys = (uint32_t)a.b.pos[t.row0 + t.n - 1] + 1;
    t.h0 = blockIdx.y * QUERIES;
    t.heads = a.heads - t.h0 < QUERIES ? a.heads - t.h0 : QUERIES;
    if (threadIdx.x < 2) {
        barrier_init(&s.full[threadIdx.x], COPIERS);
        barrier_init(&s.empty[threadIdx.x], WORKERS / 32);
    }
    fetch_queries(a, t, s.q);
    copies_commit();
    copies_wait<0>();
    wgmma_written();
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        bring(a, t, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
        work(a, t, s);
    }
#endif
}

cudaError_t flash_async_prompt(const struct kcu_launch *l, const struct flash_args *a, uint32_t tiles)
{
    static_assert(sizeof(async_shared) + 1024 <= 227 * 1024, "fits");
    cudaError_t e = cudaFuncSetAttribute(flash_async_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(async_shared) + 1024);
    return e != cudaSuccess ? e
                            : launch(l, flash_async_kernel, dim3(tiles, (a->heads + QUERIES - 1) / QUERIES), dim3(THREADS),
                                     sizeof(async_shared) + 1024, 0, *a, l->stamp);
}
