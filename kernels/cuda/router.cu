/* The router: one block per expert makes a logit; one warp of the block that finishes last chooses. */
#include "kernels/cuda/dot.cuh"

enum { THREADS = 256, MAX_EXPERTS = 512 };

/* Groups that do not make it leave the race: a group's score is the sum of its two best. At most 32 groups, one thread each. */
static __device__ void limit_groups(const struct kcu_route &a, float *s, float *score)
{
    const uint32_t per = a.n_experts / a.n_groups, g = threadIdx.x;
    float m1 = -INFINITY, m2 = -INFINITY;
    if (g < a.n_groups) {
        for (uint32_t i = 0; i < per; i++) {
            const float v = s[g * per + i];
            if (v > m1)
                m2 = m1, m1 = v;
            else if (v > m2)
                m2 = v;
        }
        score[g] = per > 1 ? m1 + m2 : m1;
    }
    __syncthreads();
    uint32_t better = 0; /* groups that come before this one; ties go to the lower index */
    for (uint32_t o = 0; g < a.n_groups && o < a.n_groups; o++)
        better += score[o] > score[g] || (score[o] == score[g] && o < g);
    if (g < a.n_groups && better >= a.n_groups_used)
        for (uint32_t i = 0; i < per; i++)
            s[g * per + i] = -INFINITY;
    __syncthreads();
}

static __device__ float block_reduce(float v, bool max, float *tmp)
{
    v = max ? warp_max(v, 32) : warp_sum(v, 32);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = v;
    __syncthreads();
    v = tmp[0];
    for (int i = 1; i < THREADS / 32; i++)
        v = max ? fmaxf(v, tmp[i]) : v + tmp[i];
    __syncthreads();
    return v;
}

/* The block of the row's last expert. An expert's place is the number of experts that come before it: no rounds of maxima. */
static __device__ void choose(const struct kcu_route &a, uint32_t row, float *s, float *p, float *tmp)
{
    __shared__ float weight[32];
    const uint32_t n = a.n_experts;
    float *out = a.p + row * a.p_pitch, m = -INFINITY, z = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        p[i] = __ldcg(out + i); /* written by other blocks */
        m = fmaxf(m, p[i]);
    }
    if (!a.sigmoid) {
        m = block_reduce(m, true, tmp);
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            p[i] = expf(p[i] - m);
            z += p[i];
        }
        z = block_reduce(z, false, tmp);
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        p[i] = a.sigmoid ? 1.0f / (1.0f + expf(-p[i])) : p[i] / z;
        out[i] = p[i];
        s[i] = p[i] + (a.bias != nullptr ? a.bias[i] : 0.0f);
    }
    __syncthreads();
    if (a.n_groups > 1 && a.n_groups_used < a.n_groups)
        limit_groups(a, s, weight);
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const float v = s[i];
        uint32_t place = 0, o = 0;
        for (; o + 4 <= n; o += 4) { /* four at a time: the scores lie in shared memory */
            const float4 w = *(const float4 *)(s + o);
            place += w.x > v || (w.x == v && o < i);
            place += w.y > v || (w.y == v && o + 1 < i);
            place += w.z > v || (w.z == v && o + 2 < i);
            place += w.w > v || (w.w == v && o + 3 < i);
        }
        for (; o < n; o++)
            place += s[o] > v || (s[o] == v && o < i);
        if (place < a.n_used) {
            a.ids[row * a.pitch + place] = (int32_t)i;
            weight[place] = p[i];
        }
    }
    __syncthreads();
    float sum = 0;
    for (uint32_t k = 0; k < a.n_used; k++)
        sum += weight[k];
    const float f = a.norm ? a.scale / (sum > 1e-20f ? sum : 1e-20f) : a.scale;
    if (threadIdx.x < a.n_used)
        a.weights[row * a.pitch + threadIdx.x] = weight[threadIdx.x] * f;
}

template <int T> static __global__ void __launch_bounds__(THREADS) route_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    __shared__ float part[THREADS / 32], p[MAX_EXPERTS];
    __shared__ __align__(16) float s[MAX_EXPERTS];
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
        choose(a, row, s, p, part);
}

extern "C" cudaError_t kcu_route(const struct kcu_launch *l, const struct kcu_route *a)
{
    if (a->n == 0)
        return cudaSuccess;
    if (a->n_experts > MAX_EXPERTS || a->n_used > 32 || a->n_used > a->n_experts || a->n_groups > 32)
        return cudaErrorInvalidValue;
    const dim3 grid(a->n_experts, a->n);
    if (a->gate.type != KRN_F32)
        return launch(l, route_kernel<ANY_TYPE>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
    return launch(l, route_kernel<KRN_F32>, grid, dim3(THREADS), 0, 0, *a, l->stamp);
}
