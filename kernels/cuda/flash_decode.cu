/* Attention of generated rows by the asynchronous tensor cores of compute capability 9.0: as flash.cu's, for many rows of up to 32 heads. A row's few
 * queries are the columns of its products and 64 keys, then 64 values of the latents, their rows, so that nothing is padded to 64 queries. What limits is
 * how fast keys can come: each of the two warpgroups that work is about a row of its own, with keys and copying warps of its own, and while one
 * works the other's keys are on their way. */
#include "kernels/cuda/flash.cuh"
#include "kernels/cuda/wgmma_few.cuh"
#include "kernels/cuda/wgmma_wide.cuh"

enum { KEYS = FLASH_KEYS, D = FLASH_D, L = FLASH_L, TILE = KEYS * 128 /* 64 keys' 64 columns */, TILES = D / 64, GROUPS = 2 };
enum { WORKERS = GROUPS * 128, COPIERS = 128 /* of a group */, THREADS = WORKERS + GROUPS * COPIERS, OWN_REGS = 208, COPY_REGS = 48 };

/* Keys k0 to k1 of a row; slot: its place in the list, from row0 on. k1 0: there is no more. */
struct stretch {
    uint32_t row, slot, split, k0, k1;
};

template <int N> struct decode_shared {
    uint8_t k[GROUPS][TILES * TILE], q[GROUPS][TILES * N * 128], p[GROUPS][N * 128];
    float red[GROUPS][4][N]; /* by warps: maxima, in the end sums */
    stretch now[GROUPS];
    uint64_t full[GROUPS], empty[GROUPS];
};

#ifdef HAVE_WGMMA
/* The next stretch from `item` on that has keys; items: splits of rows, dealt to all groups of the launch in turns. */
static __device__ __forceinline__ stretch find_stretch(const flash_args &a, uint32_t &item)
{
    const uint32_t listed = (uint32_t)a.b.lists[2], left = listed > a.row0 ? listed - a.row0 : 0, all = (left < a.rows ? left : a.rows) * a.splits;
    stretch t = {};
    for (; item < all; item += gridDim.x * GROUPS) {
        t.slot = item / a.splits;
        t.split = item % a.splits;
        t.row = (uint32_t)a.b.tables[a.b.lists[3] + a.row0 + t.slot];
        const uint32_t keys = (uint32_t)a.b.pos[t.row] + 1;
        t.k0 = t.split * a.split_keys;
        t.k1 = t.k0 + a.split_keys < keys ? t.k0 + a.split_keys : keys;
        if (t.k0 < t.k1)
            break;
    }
    if (item >= all)
        t.k0 = t.k1 = 0;
    item += gridDim.x * GROUPS;
    return t;
}

/* Where this thread's four of the keys from `at` on lie; behind the last one it again. */
static __device__ __forceinline__ void find_keys(const flash_args &a, const stretch &t, uint32_t at, uint32_t me, const uint8_t *row[4])
{
    const int32_t *table = a.b.tables + a.b.table[t.row];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t key = at + me / 8 + 16 * i, j = key < t.k1 ? key : t.k1 - 1;
        row[i] = a.cache + ((size_t)table[j / a.b.block] * a.b.block + j % a.b.block) * (2 * D) + me % 8 * 16;
    }
}

/* Eight threads bring 128 bytes of a row, a group's 16 rows. Behind the last head it again: computed, never stored. */
template <int N> static __device__ __forceinline__ void bring_queries(const flash_args &a, uint32_t row, uint32_t me, uint8_t *to)
{
#pragma unroll 1
    for (uint32_t q = me / 8; q < N; q += COPIERS / 8) {
        const uint8_t *from = (const uint8_t *)(a.q + ((size_t)row * a.heads + (q < a.heads ? q : a.heads - 1)) * D) + me % 8 * 16;
        uint8_t *mine = to + wgmma_place(q, me % 8);
#pragma unroll
        for (int c = 0; c < TILES; c++)
            copy_async<16>(mine + c * (N * 128), from + c * 128);
    }
}

/* What a group's copying threads do. Where the next keys lie is looked up while these are on their way. */
template <int N> static __device__ __forceinline__ void bring(const flash_args &a, decode_shared<N> &s, uint32_t group, uint32_t me)
{
    uint32_t item = blockIdx.x * GROUPS + group, n = 0;
    stretch t = find_stretch(a, item);
    uint8_t *to = s.k[group] + wgmma_place(me / 8, me % 8);
    const uint8_t *row[4];
    if (t.k1 != 0)
        find_keys(a, t, t.k0, me, row);
    while (t.k1 != 0) {
        for (uint32_t k = t.k0; k < t.k1; k += KEYS, n++) {
            if (n != 0)
                barrier_wait(&s.empty[group], (n - 1) & 1);
            if (k == t.k0)
                bring_queries<N>(a, t.row, me, s.q[group]);
#pragma unroll
            for (int c = 0; c < TILES; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    copy_async<16>(to + c * TILE + i * (16 * 128), row[i] + c * 128);
            if (me == 0) {
                s.now[group] = t;
                barrier_arrive(&s.full[group]);
            }
            barrier_arrive_copied(&s.full[group]);
            if (k + KEYS < t.k1)
                find_keys(a, t, k + KEYS, me, row);
        }
        t = find_stretch(a, item);
        if (t.k1 != 0)
            find_keys(a, t, t.k0, me, row);
    }
    if (n != 0)
        barrier_wait(&s.empty[group], (n - 1) & 1);
    if (me == 0) {
        s.now[group] = t;
        barrier_arrive(&s.full[group]);
    }
    barrier_arrive_copied(&s.full[group]);
}

static __device__ __forceinline__ void group_meet(uint32_t group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/* Of 64 keys and N queries: a lane has keys lane / 4 + 8 i of its warp's 16, queries 8 n + lane % 4 * 2 + j at [4 n + 2 i + j]. */
template <int N> static __device__ __forceinline__ void scores(const uint8_t *q, const uint8_t *k, float c[N / 2])
{
    const uint64_t a = wgmma_tile(k), b = wgmma_tile(q);
    float d[N / 2];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++) /* two sums side by side: none waits for the one before */
        wgmma_few<N>(i % 2 ? d : c, a + i / 4 * (TILE / 16) + i % 4 * 2, b + i / 4 * (N * 128 / 16) + i % 4 * 2, i > 1);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        c[i] += d[i];
}

/* What a lane keeps of its queries 8 n + lane % 4 * 2 + j at [2 n + j]; the sum is over its own keys. */
template <int N> struct decode_state {
    float top[N / 4], sum[N / 4], grow[N / 4];
};

/* Over lanes that have the same queries. */
template <class F> static __device__ __forceinline__ float over_keys(float x, F both)
{
#pragma unroll
    for (int o = 4; o < 32; o *= 2)
        x = both(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

/* Scores to probabilities in s.p, a row for every query, and what earlier sums have to be multiplied by. left: keys that there are. */
template <int N> static __device__ __forceinline__ void soften(decode_shared<N> &s, uint32_t group, uint32_t left, float c[N / 2], decode_state<N> &st)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, key = warp * 16 + lane / 4, col = lane % 4 * 2;
    float m[N / 4];
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        float &x = c[n / 2 * 4 + n % 2], &y = c[n / 2 * 4 + n % 2 + 2];
        x = key < left ? x : -INFINITY;
        y = key + 8 < left ? y : -INFINITY;
        m[n] = over_keys(fmaxf(x, y), [](float u, float v) { return fmaxf(u, v); });
    }
    if (lane < 4)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            *(float2 *)&s.red[group][warp][8 * n + col] = make_float2(m[2 * n], m[2 * n + 1]);
    group_meet(group);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        float2 u = make_float2(st.top[2 * n], st.top[2 * n + 1]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float2 v = *(const float2 *)&s.red[group][w][8 * n + col];
            u = make_float2(fmaxf(u.x, v.x), fmaxf(u.y, v.y));
        }
        m[2 * n] = u.x;
        m[2 * n + 1] = u.y;
    }
#pragma unroll
    for (int n = 0; n < N / 4; n++) { /* a stretch begins with a key that is seen, so the maximum is finite */
        st.grow[n] = exp2f(st.top[n] - m[n]);
        st.top[n] = m[n];
        float z = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const __half p = __float2half_rn(exp2f(c[n / 2 * 4 + n % 2 + 2 * i] - m[n]));
            z += __half2float(p); /* what is summed is what is multiplied */
            *(__half *)(s.p[group] + wgmma_place(n / 2 * 8 + col + n % 2, warp * 2 + i) + lane / 4 * 2) = p;
        }
        st.sum[n] = st.sum[n] * st.grow[n] + z;
    }
    wgmma_written();
    group_meet(group);
}

/* Of 512 values of the latents and N queries: a lane's as of 64 keys, in eight parts. */
template <int N> static __device__ __forceinline__ void mix_latents(const uint8_t *p, const uint8_t *k, float o[L / 64][N / 2], bool more, const decode_state<N> &st)
{
    const uint64_t a = wgmma_tile_across(k, TILE), b = wgmma_tile(p);
    bool grew = false;
#pragma unroll
    for (int n = 0; n < N / 4; n++)
        grew |= st.grow[n] != 1;
    if (more && __any_sync(0xffffffffu, grew))
#pragma unroll
        for (int m = 0; m < L / 64; m++)
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                o[m][i] *= st.grow[i / 4 * 2 + i % 2];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
        for (int m = 0; m < L / 64; m++)
            wgmma_few_across<N>(o[m], a + m * (TILE / 16) + i * (16 * 128 / 16), b + i * 2, i != 0 || more);
    wgmma_commit();
    wgmma_wait<0>();
}

static __device__ __forceinline__ uint32_t turned(__half2 x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(*(const uint32_t *)&x));
    return y;
}

/* Sums over all keys. */
template <int N> static __device__ __forceinline__ void settle(decode_shared<N> &s, uint32_t group, decode_state<N> &st)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, col = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        const float z = over_keys(st.sum[n], [](float u, float v) { return u + v; });
        if (lane < 4)
            s.red[group][warp][n / 2 * 8 + col + n % 2] = z;
    }
    group_meet(group);
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        const uint32_t q = n / 2 * 8 + col + n % 2;
        st.sum[n] = (s.red[group][0][q] + s.red[group][1][q]) + (s.red[group][2][q] + s.red[group][3][q]);
    }
    group_meet(group); /* maxima of the next row come there */
}

/* In the order of kcu_halve(), as flash_async.cu does it, once eight latents of eight queries have been turned around: then a lane has query lane / 4. */
template <int N> static __device__ __forceinline__ void leave(const flash_args &a, const stretch &t, const float o[L / 64][N / 2], const decode_state<N> &st)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const bool second = lane & 2;
    float scale[N / 4];
#pragma unroll
    for (int n = 0; n < N / 4; n++)
        scale[n] = 1.0f / st.sum[n];
    __half *to = a.mix + ((size_t)t.row * a.heads + lane / 4) * L + warp * 16 + lane % 2 * 8 + lane / 2 % 2 * 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const bool on = 8 * n + lane / 4 < a.heads;
#pragma unroll
        for (int m = 0; m < L / 64; m++) {
            const float *v = o[m] + 4 * n;
            const uint32_t x = turned(__floats2half2_rn(v[0] * scale[2 * n], v[1] * scale[2 * n + 1])),
                           y = turned(__floats2half2_rn(v[2] * scale[2 * n], v[3] * scale[2 * n + 1])),
                           got = __shfl_xor_sync(0xffffffffu, second ? x : y, 2);
            if (on)
                *(uint2 *)(to + (size_t)(8 * n) * L + m * 64) = second ? make_uint2(got, y) : make_uint2(x, got);
        }
    }
}

/* A split's part, as flash_join_kernel() wants it. */
template <int N> static __device__ __forceinline__ void leave_part(const flash_args &a, const stretch &t, const float o[L / 64][N / 2], const decode_state<N> &st)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        const uint32_t h = n / 2 * 8 + lane % 4 * 2 + n % 2;
        const size_t at = ((size_t)t.slot * a.heads + h) * a.splits + t.split;
        float *to = a.part + at * L + warp * 16 + lane / 4;
        if (h >= a.heads)
            continue;
#pragma unroll
        for (int m = 0; m < L / 64; m++) {
            to[m * 64] = o[m][n / 2 * 4 + n % 2];
            to[m * 64 + 8] = o[m][n / 2 * 4 + n % 2 + 2];
        }
        if (warp == 0 && lane < 4)
            *(float2 *)(a.part + (size_t)a.rows * a.heads * a.splits * L + 2 * at) = make_float2(st.top[n], st.sum[n]);
    }
}

/* Read by a warp's first lane alone: that also says for the warp when what it says may be written over. */
static __device__ __forceinline__ stretch first_lanes(const stretch &now)
{
    stretch t = {};
    if (threadIdx.x % 32 == 0)
        t = now;
    t.row = __shfl_sync(0xffffffffu, t.row, 0);
    t.slot = __shfl_sync(0xffffffffu, t.slot, 0);
    t.split = __shfl_sync(0xffffffffu, t.split, 0);
    t.k0 = __shfl_sync(0xffffffffu, t.k0, 0);
    t.k1 = __shfl_sync(0xffffffffu, t.k1, 0);
    return t;
}

template <int N> static __device__ __forceinline__ void work(const flash_args &a, decode_shared<N> &s, uint32_t group)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t n = 0;;) {
        barrier_wait(&s.full[group], n & 1);
        const stretch t = first_lanes(s.now[group]);
        if (t.k1 == 0)
            return;
        decode_state<N> st;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            st.top[i] = -INFINITY;
            st.sum[i] = 0;
        }
        float o[L / 64][N / 2];
        for (uint32_t k = t.k0; k < t.k1; k += KEYS, n++) {
            float c[N / 2];
            if (k != t.k0)
                barrier_wait(&s.full[group], n & 1);
            wgmma_written(); /* by copies, and seen by this thread */
            scores<N>(s.q[group], s.k[group], c);
            soften<N>(s, group, t.k1 - k, c, st);
            mix_latents<N>(s.p[group], s.k[group], o, k != t.k0, st);
            if (lane == 0)
                barrier_arrive(&s.empty[group]);
        }
        settle<N>(s, group, st);
        if (a.splits == 1)
            leave<N>(a, t, o, st);
        else
            leave_part<N>(a, t, o, st);
    }
}
#endif

/* A block for every multiprocessor. N: columns, at least the heads. */
template <int N> static __global__ void __launch_bounds__(THREADS, 1) flash_decode_kernel(const __grid_constant__ flash_args a, uint64_t *at)
{
#ifdef HAVE_WGMMA
    extern __shared__ uint8_t dynamic[];
    decode_shared<N> &s = *(decode_shared<N> *)(dynamic + (1024 - smem_of(dynamic) % 1024) % 1024);
    const uint32_t group = threadIdx.x / 128 % GROUPS;
    if (threadIdx.x < GROUPS) {
        barrier_init(&s.full[threadIdx.x], COPIERS + 1);
        barrier_init(&s.empty[threadIdx.x], 128 / 32);
    }
    pdl_release();
    pdl_wait();
    stamp(at);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGS));
        bring<N>(a, s, group, threadIdx.x % COPIERS);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)OWN_REGS));
        work<N>(a, s, group);
    }
#endif
}

template <int N> static cudaError_t start(const struct kcu_launch *l, const struct flash_args *a)
{
    static_assert(sizeof(decode_shared<N>) + 1024 <= 227 * 1024, "fits");
    cudaError_t e = cudaFuncSetAttribute(flash_decode_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(decode_shared<N>) + 1024);
    const uint32_t blocks = (a->rows * a->splits + GROUPS - 1) / GROUPS, room = multiprocessors();
    return e != cudaSuccess
               ? e
               : launch(l, flash_decode_kernel<N>, dim3(blocks < room ? blocks : room), dim3(THREADS), sizeof(decode_shared<N>) + 1024, 0, *a, l->stamp);
}

bool flash_decode_takes(const struct flash_args *a)
{
    return a->heads <= 32 && a->sel == NULL && a->halves && a->split_keys != 0;
}

cudaError_t flash_decode(const struct kcu_launch *l, const struct flash_args *a)
{
    return a->heads <= 8 ? start<8>(l, a) : a->heads <= 16 ? start<16>(l, a) : a->heads <= 24 ? start<24>(l, a) : start<32>(l, a);
}
