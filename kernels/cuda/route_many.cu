/* The router for many rows: logits as tiles of rows and experts in f32, then the choices, a block each. The warps of a block share K; what a warp adds up, and
 * the order in which the warps' sums are added, depends on K alone, so a logit has the same bits whatever the number of rows. */
#include "kernels/cuda/route_parts.cuh"
#include "kernels/cuda/router.cuh"
#include "kernels/cuda/tensor.cuh"

enum { WARPS = ROUTE_PARTS, THREADS = WARPS * 32, PART = ROUTE_PART, STAGES = 3, CHOOSERS = 64 };
enum { FEW = 16, MANY = 32, MANY_FROM = 2048 /* rows: then blocks are enough, and what limits is what they read */ };
enum { LARGE = 64, LARGE_FROM = 8192 /* then multiplications limit */ };

/* SIDE rows and as many experts, of K a warp's PIECE values side by side. A lane has rows lane / 8 + 4 i, experts lane % 8 + 8 j. */
template <int SIDE> struct tile {
    enum { PIECE = SIDE == LARGE ? PART / 2 : PART, BK = WARPS * PIECE, STRIDE = BK + 4 };
    float x[SIDE][STRIDE], w[SIDE][STRIDE];
};

/* One step of the block's rows and experts, zeros behind the end of K; rows past the last repeat it. */
template <int SIDE> static __device__ __forceinline__ void fetch(const struct kcu_route &a, uint32_t row0, uint32_t e0, uint32_t step, tile<SIDE> &to)
{
    enum { PIECE = tile<SIDE>::PIECE, BK = tile<SIDE>::BK, STEPS = PART / PIECE };
    const uint32_t k0 = step / STEPS * (WARPS * PART) + step % STEPS * PIECE;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < 2 * SIDE * (BK / 4); i += THREADS) {
        const uint32_t r = i / (BK / 4), c = i % (BK / 4) * 4, row = row0 + r, e = e0 + r - SIDE, k = k0 + c / PIECE * PART + c % PIECE;
        const float *from = r < SIDE ? a.x + (row < a.n ? row : a.n - 1) * a.x_pitch
                                     : (const float *)(a.gate.w + (size_t)(e < a.n_experts ? e : a.n_experts - 1) * a.gate.pitch);
        float *at = r < SIDE ? &to.x[r][c] : &to.w[r - SIDE][c];
        if (k < a.gate.k)
            copy_async<16>(at, from + k);
        else
            *(float4 *)at = make_float4(0, 0, 0, 0);
    }
}

template <int SIDE> static __global__ void __launch_bounds__(THREADS, SIDE < MANY ? 2 : 1) logits_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    enum { MY_ROWS = SIDE / 4, MY_EXPERTS = SIDE / 8, PIECE = tile<SIDE>::PIECE, UNROLL = SIDE == LARGE ? 1 : PIECE / 4 };
    extern __shared__ __align__(16) uint8_t room[];
    tile<SIDE> *tiles = (tile<SIDE> *)room;
    pdl_release();
    pdl_wait();
    stamp(at);
    const uint32_t row0 = blockIdx.y * SIDE, e0 = blockIdx.x * SIDE, warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 8, e = lane % 8,
                   n = (a.gate.k + WARPS * PART - 1) / (WARPS * PART) * (PART / PIECE);
    float acc[MY_ROWS][MY_EXPERTS] = {};
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n)
            fetch(a, row0, e0, s, tiles[s]);
        copies_commit();
    }
    for (uint32_t s = 0; s < n; s++) {
        const tile<SIDE> &now = tiles[s % STAGES];
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < n)
            fetch(a, row0, e0, s + STAGES - 1, tiles[(s + STAGES - 1) % STAGES]);
        copies_commit();
#pragma unroll UNROLL
        for (uint32_t k = warp * PIECE; k < warp * PIECE + PIECE; k += 4) {
            float4 w[MY_EXPERTS];
#pragma unroll
            for (int j = 0; j < MY_EXPERTS; j++)
                w[j] = *(const float4 *)&now.w[e + 8 * j][k];
#pragma unroll
            for (int i = 0; i < MY_ROWS; i++) {
                const float4 x = *(const float4 *)&now.x[r + 4 * i][k];
#pragma unroll
                for (int j = 0; j < MY_EXPERTS; j++) {
                    float v = acc[i][j];
                    v = fmaf(w[j].x, x.x, v), v = fmaf(w[j].y, x.y, v);
                    acc[i][j] = fmaf(w[j].w, x.w, fmaf(w[j].z, x.z, v));
                }
            }
        }
    }
    float(*part)[SIDE * SIDE] = (float(*)[SIDE * SIDE])room;
    copies_wait<0>();
    __syncthreads(); /* the tiles have been used */
#pragma unroll
    for (int i = 0; i < MY_ROWS; i++)
#pragma unroll
        for (int j = 0; j < MY_EXPERTS; j++)
            part[warp][(r + 4 * i) * SIDE + e + 8 * j] = acc[i][j];
    __syncthreads();
#pragma unroll
    for (uint32_t v = threadIdx.x; v < SIDE * SIDE; v += THREADS) {
        const uint32_t row = row0 + v / SIDE, expert = e0 + v % SIDE;
        float sum = part[0][v];
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            sum += part[i][v];
        if (row < a.n && expert < a.n_experts)
            a.p[row * a.p_pitch + expert] = sum;
    }
}

static __global__ void __launch_bounds__(CHOOSERS) choose_kernel(const __grid_constant__ struct kcu_route a)
{
    __shared__ __align__(16) choice_room room;
    pdl_release();
    pdl_wait();
    choose(a, blockIdx.x, true, room);
}

extern "C" bool kcu_route_many_takes(const struct kcu_route *a)
{
    return a->gate.type == KRN_F32 && a->gate.k % 4 == 0 && a->x_pitch % 4 == 0;
}

extern "C" uint32_t kcu_route_many_kernels(const struct kcu_route *a)
{
    return route_parts_takes(a) ? 1 : 2;
}

template <int SIDE> static cudaError_t logits(const struct kcu_launch *l, const struct kcu_route *a)
{
    static_assert(WARPS * SIDE * SIDE * sizeof(float) <= STAGES * sizeof(tile<SIDE>), "room for the warps' parts");
    cudaError_t e = cudaFuncSetAttribute(logits_kernel<SIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * sizeof(tile<SIDE>));
    return e != cudaSuccess ? e
                            : launch(l, logits_kernel<SIDE>, dim3((a->n_experts + SIDE - 1) / SIDE, (a->n + SIDE - 1) / SIDE), dim3(THREADS),
                                     STAGES * sizeof(tile<SIDE>), 0, *a, l->stamp);
}

extern "C" cudaError_t kcu_route_many(const struct kcu_launch *l, const struct kcu_route *a)
{
    if (a->n == 0)
        return cudaSuccess;
    if (a->n_experts > MAX_EXPERTS || a->n_used > MAX_USED || a->n_used > a->n_experts || a->n_groups > 32)
        return cudaErrorInvalidValue;
    if (route_parts_takes(a))
        return route_parts(l, a);
    struct kcu_launch next = *l;
    const uint32_t n = power_above(a->n);
    cudaError_t e = n >= LARGE_FROM ? logits<LARGE>(l, a) : n >= MANY_FROM ? logits<MANY>(l, a) : logits<FEW>(l, a);
    next.stamp = NULL;
    return e == cudaSuccess ? launch(&next, choose_kernel, dim3(a->n), dim3(CHOOSERS), 0, 0, *a) : e;
}
