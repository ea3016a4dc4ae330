/* The router for many rows: logits as tiles of rows and experts in f32, then the choices, a block each. A logit is one chain of sums along K, whatever
 * the number of rows. */
#include "kernels/cuda/router.cuh"

enum { THREADS = 256, EXPERTS = 16, BK = 64, STRIDE = BK + 4, CHOOSERS = 64 };

/* A thread: one expert and RT rows, 16 apart. */
template <int RT> static __global__ void __launch_bounds__(THREADS) logits_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    __shared__ __align__(16) float x[16 * RT][STRIDE], w[EXPERTS][STRIDE];
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t k = a.gate.k, row0 = blockIdx.y * 16 * RT, e0 = blockIdx.x * EXPERTS, t = threadIdx.x, r = t / (BK / 4), c = t % (BK / 4) * 4;
    const uint32_t mine = t % EXPERTS, first = t / EXPERTS;
    const float *gate = (const float *)(a.gate.w + (size_t)(e0 + r < a.n_experts ? e0 + r : a.n_experts - 1) * a.gate.pitch);
    float acc[RT] = {};
    float4 nx[RT], nw;
    for (uint32_t k0 = 0;; k0 += BK) {
        if (k0 != 0) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < RT; i++)
                *(float4 *)&x[r + 16 * i][c] = nx[i];
            *(float4 *)&w[r][c] = nw;
            __syncthreads();
        }
        const bool more = k0 < k, here = k0 + c < k;
#pragma unroll
        for (int i = 0; i < RT && more; i++) {
            const uint32_t row = row0 + r + 16 * i < a.n ? row0 + r + 16 * i : a.n - 1;
            nx[i] = here ? *(const float4 *)(a.x + row * a.x_pitch + k0 + c) : make_float4(0, 0, 0, 0);
        }
        if (more)
            nw = here ? __ldg((const float4 *)(gate + k0 + c)) : make_float4(0, 0, 0, 0);
        if (k0 == 0)
            continue;
#pragma unroll 4
        for (int j = 0; j < BK; j += 4) {
            const float4 u = *(const float4 *)&w[mine][j];
#pragma unroll
            for (int i = 0; i < RT; i++) {
                const float4 v = *(const float4 *)&x[first + 16 * i][j];
                acc[i] = fmaf(u.x, v.x, acc[i]), acc[i] = fmaf(u.y, v.y, acc[i]), acc[i] = fmaf(u.z, v.z, acc[i]), acc[i] = fmaf(u.w, v.w, acc[i]);
            }
        }
        if (!more)
            break;
    }
#pragma unroll
    for (int i = 0; i < RT; i++) {
        const uint32_t row = row0 + first + 16 * i;
        if (row < a.n && e0 + mine < a.n_experts)
            a.p[row * a.p_pitch + e0 + mine] = acc[i];
    }
}

static __global__ void __launch_bounds__(CHOOSERS) choose_kernel(const __grid_constant__ struct kcu_route a)
{
    __shared__ __align__(16) choice_room room;
    pdl_release();
    pdl_wait();
    choose(a, blockIdx.x, a.p + blockIdx.x * a.p_pitch, true, room);
}

extern "C" bool kcu_route_many_takes(const struct kcu_route *a)
{
    return a->gate.type == KRN_F32 && a->gate.k % 4 == 0 && a->x_pitch % 4 == 0;
}

extern "C" cudaError_t kcu_route_many(const struct kcu_launch *l, const struct kcu_route *a)
{
    if (a->n == 0)
        return cudaSuccess;
    if (a->n_experts > MAX_EXPERTS || a->n_used > MAX_USED || a->n_used > a->n_experts || a->n_groups > 32)
        return cudaErrorInvalidValue;
    const uint32_t across = (a->n_experts + EXPERTS - 1) / EXPERTS;
    struct kcu_launch next = *l;
    cudaError_t e = a->n <= 512 ? launch(l, logits_kernel<1>, dim3(across, (a->n + 15) / 16), dim3(THREADS), 0, 0, *a, l->stamp)
                                : launch(l, logits_kernel<4>, dim3(across, (a->n + 63) / 64), dim3(THREADS), 0, 0, *a, l->stamp);
    next.stamp = NULL;
    return e == cudaSuccess ? launch(&next, choose_kernel, dim3(a->n), dim3(CHOOSERS), 0, 0, *a) : e;
}
