/* The router of some rows in one launch: a cluster of eight blocks has a tile of rows and all of up to 64 experts, each block one of the eight sums that make a logit.
 * It sends the others their rows' sums, adds up those of its own rows and makes the choice, a warp for each. */
#include "kernels/cuda/route_parts.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/router.cuh"
#include "kernels/cuda/tensor.cuh"

enum { PARTS = ROUTE_PARTS, PART = ROUTE_PART, EXPERTS = 64, THREADS = 128, SHARED = 227 * 1024 };
enum { FEW = 16, MANY = 32, MANY_FROM = 512, MOST = 512 /* rows; for more the tiles of route_many.cu are faster */ };

/* A row's or an expert's values in shared memory; odd in units of 16 bytes: no bank conflicts. */
static __host__ __device__ __forceinline__ uint32_t stride_of(uint32_t k)
{
    return (k + PARTS * PART - 1) / (PARTS * PART) * PART + 4;
}

template <int ROWS> struct parts_room {
    float sum[PARTS][ROWS / PARTS][EXPERTS]; /* of this block's rows, by the block that sent it */
    float mine[ROWS][EXPERTS];
    uint64_t inbox;
};

/* This block's values of turns from `first` to below `to` of 256 values each, zeros behind the end of K. Rows past the last repeat it. */
static __device__ __forceinline__ void fetch(const float *from, size_t pitch, uint32_t rows, uint32_t last, uint32_t k, uint32_t first, uint32_t to, float *at, uint32_t stride)
{
    const uint32_t part = blockIdx.x % PARTS;
    for (uint32_t i = threadIdx.x; i < rows * (to - first) * (PART / 4); i += THREADS) {
        const uint32_t c = i % (PART / 4) * 4, row = i / (PART / 4) % rows, turn = first + i / (PART / 4) / rows, col = turn * (PARTS * PART) + part * PART + c;
        float *put = at + row * stride + turn * PART + c;
        if (col < k)
            copy_async<16>(put, from + (row < last ? row : last) * pitch + col);
        else
            *(float4 *)put = make_float4(0, 0, 0, 0);
    }
}

/* A warp: the choice of one row from its logits, expert lane + 32 j at x[j]; the bits of choose(). */
static __device__ __forceinline__ void choose_row(const struct kcu_route &a, uint32_t row, const float x[2])
{
    const uint32_t lane = threadIdx.x % 32, n = a.n_experts;
    float p[2], m = -INFINITY, z = 0, sum = 0, weight = 0;
    uint32_t key[2];
    int32_t id = 0;
    if (!a.sigmoid) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            m = lane + 32 * j < n ? fmaxf(m, x[j]) : m;
        m = warp_max(m, 32);
#pragma unroll
        for (int j = 0; j < 2; j++)
            z += lane + 32 * j < n ? expf(x[j] - m) : 0;
        z = warp_sum(z, 32);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t e = lane + 32 * j;
        const bool on = e < n;
        p[j] = a.sigmoid ? 1.0f / (1.0f + expf(-x[j])) : expf(x[j] - m) / z;
        key[j] = on ? sortable(p[j] + (a.bias != nullptr ? a.bias[e] : 0.0f)) : 0;
        if (on)
            a.p[row * a.p_pitch + e] = p[j];
    }
    for (uint32_t k = 0; k < a.n_used; k++) {
        const uint32_t top = __reduce_max_sync(0xffffffffu, max(key[0], key[1])), at = key[0] == top ? lane : key[1] == top ? lane + 32 : UINT32_MAX,
                       e = __reduce_min_sync(0xffffffffu, at);
        const float w = __shfl_sync(0xffffffffu, e < 32 ? p[0] : p[1], e % 32);
        key[0] = lane == e ? 0 : key[0];
        key[1] = lane + 32 == e ? 0 : key[1];
        sum += w;
        if (lane == k)
            weight = w, id = (int32_t)e;
    }
    const float f = a.norm ? a.scale / (sum > 1e-20f ? sum : 1e-20f) : a.scale;
    if (lane < a.n_used) {
        a.ids[row * a.pitch + lane] = id;
        a.weights[row * a.pitch + lane] = weight * f;
    }
}

/* Warps lie WR along rows, the others along experts. A lane has rows lane / 8 + 4 i, experts lane % 8 + 8 j of its warp's. */
template <int ROWS> static __global__ void __launch_bounds__(THREADS) route_parts_kernel(const __grid_constant__ struct kcu_route a, uint64_t *at)
{
    enum { WR = ROWS / 16, WE = THREADS / 32 / WR, MINE = EXPERTS / WE / 8 };
    extern __shared__ __align__(16) uint8_t dynamic[];
    parts_room<ROWS> &s = *(parts_room<ROWS> *)dynamic;
    const uint32_t k = a.gate.k, stride = stride_of(k), turns = (k + PARTS * PART - 1) / (PARTS * PART), half = (turns + 1) / 2, part = blockIdx.x % PARTS,
                   row0 = blockIdx.x / PARTS * ROWS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *xs = (float *)(dynamic + (sizeof s + 15) / 16 * 16), *ws = xs + ROWS * stride;
    pdl_release();
    if (threadIdx.x == 0)
        inbox_make(&s.inbox);
    __syncwarp(); /* without a branch the first is an instruction of the warp and the second one of a lane: compute-sanitizer takes them for a race */
    if (threadIdx.x == 0)
        inbox_expect(&s.inbox, sizeof s.sum);
    cluster_arrive();
    fetch((const float *)a.gate.w, a.gate.pitch / sizeof(float), EXPERTS, a.n_experts - 1, k, 0, turns, ws, stride); /* which depend on nobody */
    pdl_wait();
    stamp(at);
    const float *x = a.x + (size_t)row0 * a.x_pitch;
    fetch(x, a.x_pitch, ROWS, a.n - row0 - 1, k, 0, half, xs, stride);
    copies_commit();
    fetch(x, a.x_pitch, ROWS, a.n - row0 - 1, k, half, turns, xs, stride);
    copies_commit();
    const float *px = xs + (warp % WR * 16 + lane / 8) * stride, *pw = ws + (warp / WR * (EXPERTS / WE) + lane % 8) * stride;
    float acc[4][MINE] = {};
    for (uint32_t h = 0; h < 2; h++) {
        if (h == 0)
            copies_wait<1>();
        else
            copies_wait<0>();
        __syncthreads();
        const uint32_t to = (h == 0 ? half : turns) * PART;
#pragma unroll 4
        for (uint32_t c = h == 0 ? 0 : half * PART; c < to; c += 4) {
            float4 u[4], w[MINE];
#pragma unroll
            for (int i = 0; i < 4; i++)
                u[i] = *(const float4 *)(px + 4 * i * stride + c);
#pragma unroll
            for (int j = 0; j < MINE; j++)
                w[j] = *(const float4 *)(pw + 8 * j * stride + c);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < MINE; j++) {
                    float v = acc[i][j];
                    v = fmaf(w[j].x, u[i].x, v), v = fmaf(w[j].y, u[i].y, v);
                    acc[i][j] = fmaf(w[j].w, u[i].w, fmaf(w[j].z, u[i].z, v));
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < MINE; j++)
            s.mine[warp % WR * 16 + lane / 8 + 4 * i][warp / WR * (EXPERTS / WE) + lane % 8 + 8 * j] = acc[i][j];
    __syncthreads();
    cluster_wait(); /* all have their inbox */
    for (uint32_t i = threadIdx.x; i < ROWS * (EXPERTS / 4); i += THREADS) {
        const uint32_t row = i / (EXPERTS / 4), e = i % (EXPERTS / 4) * 4, to = row / (ROWS / PARTS);
        send(at_block(&s.sum[part][row % (ROWS / PARTS)][e], to), *(const float4 *)&s.mine[row][e], at_block(&s.inbox, to));
    }
    receive(&s.inbox);
    const uint32_t row = row0 + part * (ROWS / PARTS) + warp;
    if (warp >= ROWS / PARTS || row >= a.n)
        return;
    float v[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        v[j] = s.sum[0][warp][lane + 32 * j];
#pragma unroll
        for (int i = 1; i < PARTS; i++)
            v[j] += s.sum[i][warp][lane + 32 * j];
    }
    choose_row(a, row, v);
}

static size_t bytes_for(uint32_t rows, uint32_t k)
{
    const size_t room = rows == FEW ? sizeof(parts_room<FEW>) : sizeof(parts_room<MANY>);
    return (room + 15) / 16 * 16 + (size_t)(rows + EXPERTS) * stride_of(k) * sizeof(float);
}

bool route_parts_takes(const struct kcu_route *a)
{
    int device, major = 0;
    return !a->fixed && a->n <= MOST && a->n_experts <= EXPERTS && (a->n_groups <= 1 || a->n_groups_used >= a->n_groups) && bytes_for(MANY, a->gate.k) <= SHARED &&
           cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

template <int ROWS> static cudaError_t start(const struct kcu_launch *l, const struct kcu_route *a)
{
    const size_t bytes = bytes_for(ROWS, a->gate.k);
    cudaError_t e = cudaFuncSetAttribute(route_parts_kernel<ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e
                            : launch(l, route_parts_kernel<ROWS>, dim3((a->n + ROWS - 1) / ROWS * PARTS), dim3(THREADS), bytes, PARTS, *a, l->stamp);
}

cudaError_t route_parts(const struct kcu_launch *l, const struct kcu_route *a)
{
    return a->n < MANY_FROM ? start<FEW>(l, a) : start<MANY>(l, a);
}
