/* The router for many rows: logits as tiles of rows and experts in f32, then the choices, a block each. The warps of a block share K; what a warp adds up, and
 * the order in which the warps' sums are added, depends on K alone, so a logit has the same bits whatever the number of rows. */
#include "kernels/cuda/router.cuh"
#include "kernels/cuda/tensor.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, ROWS = 16, EXPERTS = 16, PART = 32, BK = WARPS * PART, STRIDE = BK + 4, STAGES = 3, CHOOSERS = 64 };
enum { MY_ROWS = 4, MY_EXPERTS = 2 }; /* of a lane: rows lane / 8 + 4 i, experts lane % 8 + 8 j */

struct tile {
    float x[ROWS][STRIDE], w[EXPERTS][STRIDE];
};

/* One step of the block's rows and experts, zeros behind the end of K; rows past the last repeat it. */
static __device__ __forceinline__ void fetch(const struct kcu_route &a, uint32_t row0, uint32_t e0, uint32_t k0, tile &to)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < (ROWS + EXPERTS) * (BK / 4); i += THREADS) {
        const uint32_t r = i / (BK / 4), c = i % (BK / 4) * 4, row = row0 + r, e = e0 + r - ROWS;
        const float *from = r < ROWS ? a.x + (row < a.n ? row : a.n - 1) * a.x_pitch
                                     : (const float *)(a.gate.w + (size_t)(e < a.n_experts ? e : a.n_experts - 1) * a.gate.pitch);
        float *at = r < ROWS ? &to.x[r][c] : &to.w[r - ROWS][c];
        if (k0 + c < a.gate.k)
            copy_async<16>(at, from + k0 + c);
        else
            *(float4 *)at = make_float4(0, 0, 0, 0);
    }
}

static __global__ void __launch_bounds__(THREADS, 2) logits_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    extern __shared__ __align__(16) uint8_t room[];
    tile *tiles = (tile *)room;
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row0 = blockIdx.y * ROWS, e0 = blockIdx.x * EXPERTS, warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 8, e = lane % 8,
                   n = (a.gate.k + BK - 1) / BK;
    float acc[MY_ROWS][MY_EXPERTS] = {};
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n)
            fetch(a, row0, e0, s * BK, tiles[s]);
        copies_commit();
    }
    for (uint32_t s = 0; s < n; s++) {
        const tile &now = tiles[s % STAGES];
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < n)
            fetch(a, row0, e0, (s + STAGES - 1) * BK, tiles[(s + STAGES - 1) % STAGES]);
        copies_commit();
#pragma unroll
        for (uint32_t k = warp * PART; k < warp * PART + PART; k += 4) {
            float4 x[MY_ROWS], w[MY_EXPERTS];
#pragma unroll
            for (int i = 0; i < MY_ROWS; i++)
                x[i] = *(const float4 *)&now.x[r + 4 * i][k];
#pragma unroll
            for (int j = 0; j < MY_EXPERTS; j++)
                w[j] = *(const float4 *)&now.w[e + 8 * j][k];
#pragma unroll
            for (int i = 0; i < MY_ROWS; i++)
#pragma unroll
                for (int j = 0; j < MY_EXPERTS; j++) {
                    float v = acc[i][j];
                    v = fmaf(w[j].x, x[i].x, v), v = fmaf(w[j].y, x[i].y, v);
                    acc[i][j] = fmaf(w[j].w, x[i].w, fmaf(w[j].z, x[i].z, v));
                }
        }
    }
    float(*part)[ROWS * EXPERTS] = (float(*)[ROWS * EXPERTS])room;
    copies_wait<0>();
    __syncthreads(); /* the tiles have been used */
#pragma unroll
    for (int i = 0; i < MY_ROWS; i++)
#pragma unroll
        for (int j = 0; j < MY_EXPERTS; j++)
            part[warp][(r + 4 * i) * EXPERTS + e + 8 * j] = acc[i][j];
    __syncthreads();
    const uint32_t row = row0 + threadIdx.x / EXPERTS, expert = e0 + threadIdx.x % EXPERTS;
    float sum = part[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        sum += part[i][threadIdx.x];
    if (row < a.n && expert < a.n_experts)
        a.p[row * a.p_pitch + expert] = sum;
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
    static_assert(ROWS * EXPERTS == THREADS, "a thread adds up one logit");
    if (a->n == 0)
        return cudaSuccess;
    if (a->n_experts > MAX_EXPERTS || a->n_used > MAX_USED || a->n_used > a->n_experts || a->n_groups > 32)
        return cudaErrorInvalidValue;
    struct kcu_launch next = *l;
    cudaError_t e = cudaFuncSetAttribute(logits_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * sizeof(tile));
    if (e == cudaSuccess)
        e = launch(l, logits_kernel, dim3((a->n_experts + EXPERTS - 1) / EXPERTS, (a->n + ROWS - 1) / ROWS), dim3(THREADS), STAGES * sizeof(tile), 0, *a,
                   l->stamp);
    next.stamp = NULL;
    return e == cudaSuccess ? launch(&next, choose_kernel, dim3(a->n), dim3(CHOOSERS), 0, 0, *a) : e;
}
