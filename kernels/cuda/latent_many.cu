/* Norms of q_a and of the latents, rotation and cache rows for many rows, with the bits of attn.cu's: a warp for each half of a row, so that nothing waits for a
 * block and many rows are under way at once. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/halve.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, MIN_ROWS = 64, MAX_L = 512, FEW = 8, MANY = 16 /* quads of a lane */ };

/* A row in the registers of a warp: lane t has its quads t, t + 32, ... */
template <int Q> struct warp_row {
    float4 v[Q];

    __device__ __forceinline__ void load(const float *x, uint32_t n)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < Q; i++)
            v[i] = lane + 32 * i < n / 4 ? *((const float4 *)x + lane + 32 * i) : make_float4(0, 0, 0, 0);
    }

    /* Its factor: sums of 32 neighbours, then lane t those at t, t + 32, ... */
    __device__ __forceinline__ float factor(uint32_t n, float eps) const
    {
        const uint32_t lane = threadIdx.x % 32;
        float s = 0;
#pragma unroll
        for (int i = 0; i < Q; i++) {
            float sq = square_of(v[i]);
            for (int o = 1; o < 8; o *= 2)
                sq += __shfl_xor_sync(0xffffffffu, sq, o);
            const float unit = __shfl_sync(0xffffffffu, sq, lane % 4 * 8); /* unit 4 i + lane % 4 */
            if (lane / 4 == i % 8 && 4 * i + lane % 4 < (n / 4 + 7) / 8)
                s += unit;
        }
        return 1.0f / sqrtf(warp_sum(s, 32) / (float)n + eps);
    }

    __device__ __forceinline__ void scale(const float *w, uint32_t n, float f)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const float4 u = lane + 32 * i < n / 4 ? *((const float4 *)w + lane + 32 * i) : make_float4(0, 0, 0, 0);
            v[i] = make_float4(v[i].x * f * u.x, v[i].y * f * u.y, v[i].z * f * u.z, v[i].w * f * u.w);
        }
    }

    __device__ __forceinline__ void store(float *to, uint32_t n) const
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < Q; i++)
            if (lane + 32 * i < n / 4)
                *((float4 *)to + lane + 32 * i) = v[i];
    }
};

template <int Q> static __device__ __forceinline__ void norm_query(const struct kcu_latent &a, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32;
    warp_row<Q> x;
    x.load(a.z + row * a.z_pitch + a.q_col, a.q_width);
    x.scale(a.q_norm, a.q_width, x.factor(a.q_width, a.eps));
    x.store(a.qr + row * a.qr_pitch, a.q_width);
    if (a.half == nullptr)
        return;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Q; i++)
        most = largest(x.v[i], most);
    const float f = factor_of(__reduce_max_sync(0xffffffffu, most));
    if (lane == 0)
        a.half_scale[row] = 1.0f / f;
#pragma unroll
    for (int i = 0; i < Q; i++)
        if (lane + 32 * i < a.q_width / 4)
            put_halves(x.v[i], f, (__half *)a.half + row * a.half_pitch, 4 * (lane + 32 * i));
}

template <class T> static __device__ __forceinline__ void put_quad(T *to, const float4 &v)
{
    __align__(16) T q[4];
    put(q, v.x), put(q + 1, v.y), put(q + 2, v.z), put(q + 3, v.w);
    if (sizeof(T) == 2)
        *(uint2 *)to = *(const uint2 *)q;
    else
        *(uint4 *)to = *(const uint4 *)q;
}

template <int C> static __device__ __forceinline__ void store_latent(const struct kcu_latent &a, uint32_t row)
{
    typedef typename cache_elem<C>::t T;
    enum { Q = MAX_L / 128 };
    const uint32_t lane = threadIdx.x % 32, pos = (uint32_t)a.b.pos[row], half = a.r / 2;
    float *c = a.z + row * a.z_pitch + a.kv_col;
    T *dst = (T *)a.cache + page_row(a.b, row, pos) * (a.l + a.r);
    warp_row<Q> x;
    x.load(c, a.l);
    for (uint32_t i = lane; i < half; i += 32) {
        float u = c[a.l + 2 * i], v = c[a.l + 2 * i + 1];
        rotate(&u, &v, a.rope.cos[(size_t)pos * half + i], a.rope.sin[(size_t)pos * half + i]);
        c[a.l + 2 * i] = u;
        c[a.l + 2 * i + 1] = v;
        put(dst + a.l + 2 * i, u);
        put(dst + a.l + 2 * i + 1, v);
    }
    x.scale(a.kv_norm, a.l, x.factor(a.l, a.eps));
    x.store(c, a.l);
#pragma unroll
    for (int i = 0; i < Q; i++)
        if (lane + 32 * i < a.l / 4)
            put_quad(dst + 4 * (lane + 32 * i), x.v[i]);
}

/* Query parts of all rows first, then latents. */
template <int Q, int C> static __global__ void __launch_bounds__(THREADS, Q == FEW ? 4 : 2) latent_warps_kernel(const __grid_constant__ struct kcu_latent a, uint64_t *at)
{
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t i = blockIdx.x * WARPS + threadIdx.x / 32, queries = a.q_width != 0 ? a.b.n : 0;
    if (i < queries)
        norm_query<Q>(a, i);
    else if (a.store && i - queries < a.b.n)
        store_latent<C>(a, i - queries);
}

bool latent_many_takes(const struct kcu_latent *a)
{
    return a->b.n >= MIN_ROWS && a->q8 == NULL && a->q_width <= MANY * 128 && a->q_width % 4 == 0 && a->q_col % 4 == 0 && a->z_pitch % 4 == 0 &&
           (a->q_width == 0 || a->qr_pitch % 4 == 0) && (!a->store || (a->l <= MAX_L && a->l % 4 == 0 && a->r % 4 == 0 && a->kv_col % 4 == 0));
}

template <int Q> static cudaError_t start(const struct kcu_launch *l, const struct kcu_latent *a)
{
    const uint32_t halves = (a->q_width != 0) + a->store;
    const dim3 grid((a->b.n * halves + WARPS - 1) / WARPS);
    switch (a->cache_type) {
    case KCU_CACHE_F32: return launch(l, latent_warps_kernel<Q, KCU_CACHE_F32>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
    case KCU_CACHE_F16: return launch(l, latent_warps_kernel<Q, KCU_CACHE_F16>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
    default: return launch(l, latent_warps_kernel<Q, KCU_CACHE_BF16>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
    }
}

cudaError_t latent_many(const struct kcu_launch *l, const struct kcu_latent *a)
{
    return a->q_width <= FEW * 128 ? start<FEW>(l, a) : start<MANY>(l, a);
}
