/* The DSA indexer: which earlier positions a row may attend to. Rows with no more keys than top_k attend to all, so nothing is computed for them. */
#include "kernels/cuda/common.cuh"

template <int C> static __global__ void __launch_bounds__(128) store_kernel(const __grid_constant__ struct kcu_index_store a, uint64_t *at)
{
    typedef typename cache_elem<C>::t T;
    __shared__ float tmp[4];
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.x;
    float *x = a.x + row * a.pitch, s = 0;
    for (uint32_t i = threadIdx.x; i < a.dim; i += 128)
        s += x[i];
    s = warp_sum(s, 32);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = s;
    __syncthreads();
    const float mean = (tmp[0] + tmp[1] + tmp[2] + tmp[3]) / (float)a.dim;
    __syncthreads();
    s = 0;
    for (uint32_t i = threadIdx.x; i < a.dim; i += 128)
        s += (x[i] - mean) * (x[i] - mean);
    s = warp_sum(s, 32);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = s;
    __syncthreads();
    const float scale =
        1.0f / sqrtf((tmp[0] + tmp[1] + tmp[2] + tmp[3]) / (float)a.dim + 1e-6f); /* the models' own epsilon; no key carries it */
    for (uint32_t i = threadIdx.x; i < a.dim; i += 128)
        x[i] = (x[i] - mean) * scale * a.w[i] + (a.bias != nullptr ? a.bias[i] : 0.0f);
    __syncthreads();
    const uint32_t pos = (uint32_t)a.b.pos[row];
    for (uint32_t p = threadIdx.x; p < a.rope.half; p += 128) { /* an indexer head holds its rotated part first */
        float *u = a.interleaved ? x + 2 * p : x + p, *v = a.interleaved ? u + 1 : u + a.rope.half;
        const float co = a.rope.cos[(size_t)pos * a.rope.half + p], si = a.rope.sin[(size_t)pos * a.rope.half + p], c = *u, d = *v;
        *u = __fsub_rn(__fmul_rn(c, co), __fmul_rn(d, si));
        *v = __fadd_rn(__fmul_rn(c, si), __fmul_rn(d, co));
    }
    __syncthreads();
    T *dst = (T *)a.cache + page_row(a.b, row, pos) * a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += 128)
        put(dst + i, x[i]);
}

extern "C" cudaError_t kcu_index_store(const struct kcu_launch *l, const struct kcu_index_store *a)
{
    if (a->b.n == 0)
        return cudaSuccess;
    switch (a->cache_type) {
    case KCU_CACHE_F32: return launch(l, store_kernel<KCU_CACHE_F32>, dim3(a->b.n), dim3(128), 0, 0, *a, l->stamp);
    case KCU_CACHE_F16: return launch(l, store_kernel<KCU_CACHE_F16>, dim3(a->b.n), dim3(128), 0, 0, *a, l->stamp);
    default: return launch(l, store_kernel<KCU_CACHE_BF16>, dim3(a->b.n), dim3(128), 0, 0, *a, l->stamp);
    }
}

/* One thread per key; the queries of the row in shared memory. */
template <int C>
static __global__ void __launch_bounds__(128) scores_kernel(const __grid_constant__ struct kcu_index a, float scale, uint64_t *at)
{
    typedef typename cache_elem<C>::t T;
    extern __shared__ float q[]; /* [heads][dim], then [heads] weights */
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.y, keys = (uint32_t)a.b.pos[row] + 1, t = blockIdx.x * 128 + threadIdx.x;
    if (keys <= a.top_k || blockIdx.x * 128 >= keys)
        return;
    for (uint32_t i = threadIdx.x; i < a.heads * a.dim; i += 128)
        q[i] = a.q[row * a.q_pitch + i];
    for (uint32_t i = threadIdx.x; i < a.heads; i += 128)
        q[a.heads * a.dim + i] = a.w[row * a.w_pitch + i];
    __syncthreads();
    if (t >= keys)
        return;
    const T *k = (const T *)a.cache + page_row(a.b, row, t) * a.dim;
    float total = 0;
    for (uint32_t h = 0; h < a.heads; h++) {
        float dot = 0;
        for (uint32_t i = 0; i < a.dim; i += 2) {
            const float2 v = pair_of(k + i), u = *(const float2 *)(q + h * a.dim + i);
            dot = fmaf(v.y, u.y, fmaf(v.x, u.x, dot));
        }
        total += q[a.heads * a.dim + h] * (dot > 0 ? dot : 0);
    }
    a.score[row * a.score_pitch + t] = total * scale;
}

extern "C" cudaError_t kcu_index_scores(const struct kcu_launch *l, const struct kcu_index *a)
{
    if (a->b.n == 0)
        return cudaSuccess;
    const float scale = 1.0f / sqrtf((float)a->heads * (float)a->dim);
    const size_t smem = (size_t)a->heads * (a->dim + 1) * sizeof(float);
    const dim3 grid((a->b.max_keys + 127) / 128, a->b.n);
    if (smem > 48 * 1024)
        return cudaErrorInvalidValue;
    switch (a->cache_type) {
    case KCU_CACHE_F32: return launch(l, scores_kernel<KCU_CACHE_F32>, grid, dim3(128), smem, 0, *a, scale, l->stamp);
    case KCU_CACHE_F16: return launch(l, scores_kernel<KCU_CACHE_F16>, grid, dim3(128), smem, 0, *a, scale, l->stamp);
    default: return launch(l, scores_kernel<KCU_CACHE_BF16>, grid, dim3(128), smem, 0, *a, scale, l->stamp);
    }
}

/* Floats as integers of the same order; -0 counts as 0. */
static __device__ __forceinline__ uint32_t ordered(float f)
{
    const uint32_t u = __float_as_uint(f == 0 ? 0.0f : f);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* One block per row: radix select of the k-th largest score, then a walk in order of position. */
static __global__ void __launch_bounds__(1024) topk_kernel(const __grid_constant__ struct kcu_index a, uint64_t *at)
{
    __shared__ uint32_t bins[256], prefix, want, warp_above[32], warp_equal[32], done_above, done_equal;
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row = blockIdx.x, keys = (uint32_t)a.b.pos[row] + 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t *sel = a.sel + row * a.sel_pitch;
    const float *score = a.score + row * a.score_pitch;
    if (keys <= a.top_k) {
        if (threadIdx.x == 0)
            sel[0] = -1;
        return;
    }
    if (threadIdx.x == 0) {
        prefix = 0;
        want = a.top_k; /* how many of the keys that share the prefix are taken */
        done_above = done_equal = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256)
            bins[threadIdx.x] = 0;
        __syncthreads();
        const uint32_t p = prefix, mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        for (uint32_t i = threadIdx.x; i < keys; i += 1024) {
            const uint32_t u = ordered(score[i]);
            if ((u & mask) == p)
                atomicAdd(&bins[u >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t b = 255, left = want;
            while (bins[b] < left)
                left -= bins[b--];
            prefix = p | b << shift;
            want = left;
        }
        __syncthreads();
    }
    const uint32_t cut = prefix, equals = want;
    for (uint32_t base = 0; base < keys; base += 1024) {
        const uint32_t i = base + threadIdx.x, u = i < keys ? ordered(score[i]) : 0;
        const bool above = i < keys && u > cut, equal = i < keys && u == cut;
        const uint32_t ba = __ballot_sync(0xffffffffu, above), be = __ballot_sync(0xffffffffu, equal), below = (1u << lane) - 1;
        if (lane == 0) {
            warp_above[warp] = __popc(ba);
            warp_equal[warp] = __popc(be);
        }
        __syncthreads();
        uint32_t n_above = done_above + __popc(ba & below), n_equal = done_equal + __popc(be & below);
        for (uint32_t w = 0; w < warp; w++) {
            n_above += warp_above[w];
            n_equal += warp_equal[w];
        }
        if (above || (equal && n_equal < equals))
            sel[1 + n_above + (n_equal < equals ? n_equal : equals)] = (int32_t)i;
        __syncthreads();
        if (threadIdx.x == 1023) {
            done_above = n_above + above;
            done_equal = n_equal + equal;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        sel[0] = (int32_t)a.top_k;
}

extern "C" cudaError_t kcu_index_topk(const struct kcu_launch *l, const struct kcu_index *a)
{
    return a->b.n == 0 ? cudaSuccess : launch(l, topk_kernel, dim3(a->b.n), dim3(1024), 0, 0, *a, l->stamp);
}
