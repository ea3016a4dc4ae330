/* The router: one block per expert, or pair of them, makes its logit. The choice is made by the block that finishes last, or, for a lone row, left to whoever needs it. */
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/router.cuh"

enum { THREADS = 256 };

template <int T> static __global__ void __launch_bounds__(THREADS) route_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    __shared__ float part[THREADS / 32];
    __shared__ __align__(16) choice_room room;
    __shared__ bool last;
    pdl_release();
    const uint32_t row = blockIdx.y, e = blockIdx.x;
    float acc[1] = {0};
    stamp_early(at);
    dot_type<T, false, 1>(a.gate.type, a.gate.w + (size_t)e * a.gate.pitch, true, a.gate.k, threadIdx.x, THREADS, a.x + row * a.x_pitch, 0,
                          nullptr, 0, 1, acc);
    const float v = warp_sum(acc[0], 32);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = part[0];
        for (int i = 1; i < THREADS / 32; i++)
            sum += part[i];
        a.p[row * a.p_pitch + e] = sum;
        __threadfence();
        last = atomicAdd(a.arrived + row, 1) == gridDim.x - 1;
        if (last)
            a.arrived[row] = 0;
        __threadfence();
    }
    __syncthreads();
    if (last)
        choose(a, row, true, room);
}

/* A lone row. NORM: of the residual stream, normed here; one block more writes the norm and its int8 form. A thread has U units of eight values, as in
 * dot_f32. P: experts of a block; where a row is long, fewer blocks that read it are faster. */
template <int U, bool NORM, int P>
static __global__ void __launch_bounds__(THREADS) logits_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    static_assert(!NORM || P == 1, "the writer is a block of its own");
    __shared__ float part[P][THREADS / 32], unit[U * THREADS / 4];
    typedef norm_row<1, THREADS> norm;
    pdl_release();
    const uint32_t e0 = blockIdx.x * P, units = a.gate.k / 8, tag = threadIdx.x < P ? tag_of(a.words) : 0;
    const bool writer = NORM && e0 == a.n_experts;
    plain_f32::raw g[P][U], w[U];
    float4 v[U][2];
#pragma unroll
    for (int i = 0; i < U; i++) {
        const uint32_t u = threadIdx.x + i * THREADS;
        if (u >= units)
            continue;
#pragma unroll
        for (int p = 0; p < P; p++)
            if (e0 + p < a.n_experts)
                plain_f32::fetch<EARLY>(a.gate.w + (size_t)(e0 + p) * a.gate.pitch, 0, u, g[p][i]);
        if (NORM)
            plain_f32::fetch<EARLY>((const uint8_t *)a.pre.w, 0, u, w[i]);
    }
    pdl_wait();
    stamp(at);
#pragma unroll
    for (int i = 0; i < U; i++) {
        const uint32_t u = threadIdx.x + i * THREADS;
        for (int j = 0; j < 2; j++)
            v[i][j] = u < units ? *((const float4 *)(NORM ? a.pre.x : a.x) + 2 * u + j) : make_float4(0, 0, 0, 0);
    }
    float t = 1;
    if (NORM) {
#pragma unroll
        for (int i = 0; i < U; i++) {
            float sq[2];
            for (int j = 0; j < 2; j++)
                sq[j] = square_of(v[i][j]);
            float s = sq[0] + sq[1];
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            if (threadIdx.x % 4 == 0)
                unit[(threadIdx.x + i * THREADS) / 4] = s;
        }
        __syncthreads();
        t = norm::norm_factor(unit, a.pre.n, a.pre.eps);
    }
    if (writer) {
        for (uint32_t quad = threadIdx.x; quad < (a.pre.n / 4 + 31) / 32 * 32; quad += THREADS) {
            const bool on = quad < a.pre.n / 4;
            const float4 x = on ? *((const float4 *)a.pre.x + quad) : make_float4(0, 0, 0, 0),
                         y = on ? __ldg((const float4 *)a.pre.w + quad) : make_float4(0, 0, 0, 0);
            const float h[4] = {x.x * t * y.x, x.y * t * y.y, x.z * t * y.z, x.w * t * y.w};
            if (on)
                *((float4 *)a.pre.h + quad) = make_float4(h[0], h[1], h[2], h[3]);
            q8_block8(h, a.pre.q8, a.pre.n, quad * 4, on);
        }
        return;
    }
    float acc[P] = {};
#pragma unroll
    for (int i = 0; i < U; i++) {
        if (threadIdx.x + i * THREADS >= units)
            continue;
        float wg[8], wn[8] = {};
        if (NORM)
            plain_f32::values(w[i], 0, wn);
        const float x[8] = {v[i][0].x, v[i][0].y, v[i][0].z, v[i][0].w, v[i][1].x, v[i][1].y, v[i][1].z, v[i][1].w};
#pragma unroll
        for (int p = 0; p < P; p++) {
            plain_f32::values(g[p][i], 0, wg);
#pragma unroll
            for (int j = 0; j < 8; j++)
                acc[p] = fmaf(wg[j], NORM ? x[j] * t * wn[j] : x[j], acc[p]);
        }
    }
#pragma unroll
    for (int p = 0; p < P; p++) {
        acc[p] = warp_sum(acc[p], 32);
        if (threadIdx.x % 32 == 0)
            part[p][threadIdx.x / 32] = acc[p];
    }
    __syncthreads();
    if (threadIdx.x >= P || e0 + threadIdx.x >= a.n_experts)
        return;
    float sum = part[threadIdx.x][0];
    for (int i = 1; i < THREADS / 32; i++)
        sum += part[threadIdx.x][i];
    pass(a.words.at + e0 + threadIdx.x, __float_as_uint(sum), tag);
}

static __global__ void __launch_bounds__(THREADS) choose_kernel(const __grid_constant__ struct kcu_route a)
{
    __shared__ __align__(16) choice_room room;
    pdl_wait();
    pdl_release();
    const uint32_t tag = tag_of(a.words);
    choose_passed(a, tag, await_logit(a, tag), true, room);
}

static bool in_range(const struct kcu_route *a)
{
    return a->n_experts <= MAX_EXPERTS && a->n_used <= MAX_USED && a->n_used <= a->n_experts && a->n_groups <= 32;
}

extern "C" cudaError_t kcu_route(const struct kcu_launch *l, const struct kcu_route *a)
{
    if (a->n == 0)
        return cudaSuccess;
    if (!in_range(a))
        return cudaErrorInvalidValue;
    const dim3 grid(a->n_experts, a->n);
    if (a->gate.type != KRN_F32)
        return launch(l, route_kernel<ANY_TYPE>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
    return launch(l, route_kernel<KRN_F32>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
}

extern "C" bool kcu_logits_takes(const struct kcu_route *a)
{
    return a->n == 1 && in_range(a) && a->gate.type == KRN_F32 && a->gate.k % 32 == 0 && a->gate.k <= 3 * 8 * THREADS &&
           a->words.at != NULL &&
           (a->pre.x == NULL || (a->gate.k == a->pre.n && a->pre.q8 != NULL && a->pre.n <= 8 * THREADS)); /* longer: a launch of its own */
}

extern "C" cudaError_t kcu_logits(const struct kcu_launch *l, const struct kcu_route *a)
{
    enum { PAIR = 2 };
    if (a->pre.x != NULL)
        return launch(l, logits_kernel<1, true, 1>, dim3(a->n_experts + 1), dim3(THREADS), 0, 0, *a, l->stamp);
    if (a->gate.k <= 8 * THREADS)
        return launch(l, logits_kernel<1, false, 1>, dim3(a->n_experts), dim3(THREADS), 0, 0, *a, l->stamp);
    divide_alike(logits_kernel<3, false, PAIR>);
    return launch(l, logits_kernel<3, false, PAIR>, dim3((a->n_experts + PAIR - 1) / PAIR), dim3(THREADS), 0, 0, *a, l->stamp);
}

extern "C" cudaError_t kcu_choose(const struct kcu_launch *l, const struct kcu_route *a)
{
    return launch(l, choose_kernel, dim3(1), dim3(THREADS), 0, 0, *a);
}
