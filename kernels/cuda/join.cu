/* The end of every sub-layer in one kernel: sum over ranks, residual, norm, int8 form.
 *
 * Across GPUs the sum is one-shot: every GPU pushes its ranks' summands as packets {data, epoch, data, epoch} straight into the others' receive
 * buffers, two of them by parity of the epoch, and each thread polls exactly the packets that it needs: no flags apart, no barrier. A buffer is free
 * again when a peer's packets of the next epoch arrive, since the peer sends those after having read all of the previous ones. Sums run in order
 * of rank on every GPU (or all as a tree), so all hold the same bits. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/halve.cuh"
#include "kernels/cuda/reduce.cuh"

static __device__ __forceinline__ void st_packet(uint4 *p, uint32_t a, uint32_t b, uint32_t e)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(e), "r"(b), "r"(e) : "memory");
}

/* Wait for a packet of epoch e. A peer that stays away sets the fault, and from then on nobody waits. */
static __device__ __forceinline__ uint4 peek(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

/* v is what a first look at p found. */
static __device__ __forceinline__ uint2 ld_packet(uint4 v, const uint4 *p, uint32_t e, uint32_t from, const struct kcu_join &a)
{
    uint32_t spins = 0;
    uint64_t t0 = 0;
    for (;; v = peek(p)) {
        if (v.y == e && v.w == e)
            return make_uint2(v.x, v.z);
        if ((++spins & 4095) != 0)
            continue;
        if (*(volatile uint32_t *)a.fault != 0)
            return make_uint2(0, 0);
        if (t0 == 0)
            t0 = now_ns();
        else if (now_ns() - t0 > a.timeout_ns)
            *(volatile uint32_t *)a.fault = (a.ordinal + 1) | from << 24;
    }
}

/* Summands as they come, in order of rank, to their sum: one after the other, or pairs, then pairs of pairs, and so on; at the end what is over. */
template <bool TREE> struct adder {
    float4 sum;
    __device__ __forceinline__ void add(uint32_t r, float4 v)
    {
        sum = r == 0 ? v : sum + v;
    }
    __device__ __forceinline__ float4 total(uint32_t)
    {
        return sum;
    }
};
template <> struct adder<true> {
    float4 part[7]; /* of 1, 2, 4 ... ranks; KCU_MAX_RANKS are 64 */
    __device__ __forceinline__ void add(uint32_t r, float4 v)
    {
        uint32_t i = 0;
        for (; (r >> i & 1) != 0; i++)
            v = part[i] + v;
        part[i] = v;
    }
    __device__ __forceinline__ float4 total(uint32_t n)
    {
        uint32_t i = __ffs((int)n) - 1;
        float4 v = part[i];
        while (n >> ++i != 0)
            if ((n >> i & 1) != 0)
                v = part[i] + v;
        return v;
    }
};

/* Sum of one quad over all ranks. */
template <bool TREE> static __device__ __forceinline__ float4 reduce_quad(const struct kcu_join &a, uint32_t row, uint32_t quad, bool on)
{
    adder<TREE> sum;
    if (!on)
        return make_float4(0, 0, 0, 0);
    const size_t at = row * a.part_pitch + (size_t)quad * 4, packet = ((size_t)row * (a.width / 4) + quad) * (a.bf16 ? 1 : 2);
    const uint32_t e = a.n_gpus > 1 ? *(volatile const uint32_t *)a.epoch + a.ordinal : 0;
    const size_t half = (size_t)(e & 1) * a.n_ranks * a.slot_packets;
    for (uint32_t i = 0; a.n_gpus > 1 && i < a.n_local; i++) {
        const float4 v = *(const float4 *)(a.part[i] + at);
        for (uint32_t g = 0; g < a.n_gpus; g++) {
            if (g == (a.stand_in ? a.rank0 : a.gpu))
                continue;
            uint4 *to = a.recv[a.stand_in ? a.gpu : g] + half + (size_t)(a.stand_in ? g : a.rank0 + i) * a.slot_packets + packet;
            if (a.bf16) {
                st_packet(to, bf16_bits(v.x) | bf16_bits(v.y) << 16, bf16_bits(v.z) | bf16_bits(v.w) << 16, e);
            } else {
                st_packet(to, __float_as_uint(v.x), __float_as_uint(v.y), e);
                st_packet(to + 1, __float_as_uint(v.z), __float_as_uint(v.w), e);
            }
        }
    }
    enum { AT_ONCE = 8 }; /* ranks whose packets are looked at together: one latency instead of one each */
    for (uint32_t r0 = 0; r0 < a.n_ranks; r0 += AT_ONCE) {
        uint4 look[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (r0 + i < a.n_ranks && a.gpu_of[r0 + i] != a.gpu)
                look[i] = peek(a.recv[a.gpu] + half + (size_t)(r0 + i) * a.slot_packets + packet);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t r = r0 + i;
            float4 v;
            if (r >= a.n_ranks)
                break;
            if (a.gpu_of[r] == a.gpu) {
                v = *(const float4 *)(a.part[r - a.rank0] + at);
                if (a.bf16)
                    v = bf16_round(v);
            } else {
                const uint4 *p = a.recv[a.gpu] + half + (size_t)r * a.slot_packets + packet;
                const uint2 d = ld_packet(look[i], p, e, r, a);
                if (a.bf16) {
                    v = make_float4(__uint_as_float(d.x << 16), __uint_as_float(d.x & 0xffff0000u), __uint_as_float(d.y << 16),
                                    __uint_as_float(d.y & 0xffff0000u));
                } else {
                    const uint2 f = ld_packet(peek(p + 1), p + 1, e, r, a);
                    v = make_float4(__uint_as_float(d.x), __uint_as_float(d.y), __uint_as_float(f.x), __uint_as_float(f.y));
                }
            }
            sum.add(r, v);
        }
    }
    return sum.total(a.n_ranks);
}

/* blockIdx.y: row. Q quads per thread, the threads of a cluster's blocks in one line; eight neighbouring lanes are one 32-value block. The residual
 * comes while packets go. BLOCKS: of the cluster (Q is 1, one rank here); packets leave faster from several multiprocessors, and every block has all
 * units' sums of squares sent to it. kcu_join() launches clusters where there are any. */
enum { MAX_UNITS = 512 };

template <int Q, int T, int BLOCKS, bool TREE>
static __global__ void __launch_bounds__(T, 1) join_kernel(const __grid_constant__ struct kcu_join a, uint64_t *at)
{
    __shared__ float unit[MAX_UNITS]; /* sums of squares of the row's 32-value units */
    __shared__ __align__(8) uint64_t barrier;
    pdl_release();
    const uint32_t quads = a.width / 4, row = blockIdx.y, lane = threadIdx.x % 32, units = (quads + 7) / 8, line = gridDim.x * blockDim.x;
    const uint32_t self = blockIdx.x * blockDim.x + threadIdx.x;
    const bool first = (self | blockIdx.y) == 0;
    float4 w[Q], x[Q], sum[Q];
    if (BLOCKS > 1) {
        if (threadIdx.x == 0)
            inbox_init(&barrier, units * sizeof(float));
        cluster_arrive();
    }
#pragma unroll
    for (int i = 0; i < Q; i++) {
        const uint32_t quad = i * line + self;
        w[i] = a.w != nullptr && quad < quads ? ld16f((const float4 *)a.w + quad) : make_float4(0, 0, 0, 0);
    }
    pdl_wait();
    if (a.reduce && a.delay_ns != 0 && a.delay_rank >= (int32_t)a.rank0 && a.delay_rank < (int32_t)(a.rank0 + a.n_local))
        for (const uint64_t t0 = now_ns(); now_ns() - t0 < a.delay_ns;)
            ;
    stamp(at); /* who is late on purpose arrives late */
#pragma unroll
    for (int i = 0; i < Q; i++) {
        const uint32_t quad = i * line + self;
        x[i] = a.x[0] != nullptr && quad < quads ? *((const float4 *)(a.x[0] + row * a.x_pitch) + quad) : make_float4(0, 0, 0, 0);
        sum[i] = make_float4(0, 0, 0, 0);
    }
    if (a.reduce) {
#pragma unroll
        for (int i = 0; i < Q; i++)
            sum[i] = reduce_quad<TREE>(a, row, i * line + self, i * line + self < quads);
    }
    if (BLOCKS > 1)
        cluster_wait();
    if (a.ready != nullptr && first)
        *(volatile uint64_t *)a.ready = now_ns();
    for (uint32_t r = 0; r < a.n_local; r++) {
        float4 v[Q];
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const uint32_t quad = i * line + self;
            v[i] = make_float4(0, 0, 0, 0);
            if (quad >= quads)
                continue;
            const float4 *part = (const float4 *)(a.part[r] + row * a.part_pitch) + quad;
            v[i] = a.reduce ? sum[i] : *part;
            if (a.x[r] != nullptr)
                v[i] = (r == 0 ? x[i] : *((const float4 *)(a.x[r] + row * a.x_pitch) + quad)) + v[i];
        }
        float t = 1;
        if (a.w != nullptr) {
            if (r > 0) /* the previous rank's sums have been read */
                __syncthreads();
#pragma unroll
            for (int i = 0; i < Q; i++) {
                const uint32_t quad = i * line + self;
                float sq = square_of(v[i]);
                for (int o = 1; o < 8; o *= 2)
                    sq += __shfl_xor_sync(0xffffffffu, sq, o);
                if (BLOCKS > 1) { /* all eight lanes hold it: each sends it to one block */
                    static_assert(BLOCKS == 1 || BLOCKS == 8, "a lane per block");
                    if (quad / 8 < units)
                        send(at_block(unit + quad / 8, lane % 8), sq, at_block(&barrier, lane % 8));
                } else if (lane % 8 == 0) {
                    unit[quad / 8] = sq;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < Q; i++) { /* results that nobody waits for, while the sums travel */
            const uint32_t quad = i * line + self;
            if (quad >= quads)
                continue;
            if (a.reduce)
                *((float4 *)(a.part[r] + row * a.part_pitch) + quad) = sum[i];
            if (a.x[r] != nullptr)
                *((float4 *)(a.x[r] + row * a.x_pitch) + quad) = v[i];
        }
        if (a.w == nullptr)
            continue;
        if (BLOCKS > 1)
            receive(&barrier);
        else
            __syncthreads();
        float s = 0; /* every warp adds all units, in one order */
        for (uint32_t u = lane; u < units; u += 32)
            s += unit[u];
        t = 1.0f / sqrtf(warp_sum(s, 32) / (float)a.width + a.eps);
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const uint32_t quad = i * line + self;
            const float h[4] = {v[i].x * t * w[i].x, v[i].y * t * w[i].y, v[i].z * t * w[i].z, v[i].w * t * w[i].w};
            if (quad < quads)
                *((float4 *)(a.h[r] + row * a.h_pitch) + quad) = make_float4(h[0], h[1], h[2], h[3]);
            if (a.q8[r] != nullptr)
                q8_block8(h, a.q8[r] + row * a.q8_pitch, a.width, quad * 4, quad < quads);
        }
    }
    if (a.done != nullptr && first)
        *(volatile uint64_t *)a.done = now_ns();
}

/* Without a reduce, the same bits: few registers, so that many rows are under way at once. blockIdx: rank, row. */
template <int Q, int T> static __global__ void __launch_bounds__(T, T == 512 ? 3 : 1) plain_kernel(const __grid_constant__ struct kcu_join a, uint64_t *at)
{
    __shared__ float unit[MAX_UNITS];
    pdl_release();
    const uint32_t quads = a.width / 4, r = blockIdx.x, row = blockIdx.y, lane = threadIdx.x % 32, units = (quads + 7) / 8;
    float *part = a.part[r] + row * a.part_pitch, *x = a.x[r] != nullptr ? a.x[r] + row * a.x_pitch : nullptr;
    float4 v[Q];
    pdl_wait();
    stamp(at);
#pragma unroll
    for (int i = 0; i < Q; i++) {
        const uint32_t quad = i * blockDim.x + threadIdx.x;
        v[i] = quad < quads ? *((const float4 *)part + quad) : make_float4(0, 0, 0, 0);
        if (x != nullptr && quad < quads) {
            v[i] = *((const float4 *)x + quad) + v[i];
            *((float4 *)x + quad) = v[i];
        }
    }
    if (a.w == nullptr)
        return;
#pragma unroll
    for (int i = 0; i < Q; i++) {
        float sq = square_of(v[i]);
        for (int o = 1; o < 8; o *= 2)
            sq += __shfl_xor_sync(0xffffffffu, sq, o);
        if (lane % 8 == 0)
            unit[(i * blockDim.x + threadIdx.x) / 8] = sq;
    }
    __syncthreads();
    float s = 0; /* every warp adds all units, in one order */
    for (uint32_t u = lane; u < units; u += 32)
        s += unit[u];
    const float t = 1.0f / sqrtf(warp_sum(s, 32) / (float)a.width + a.eps);
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Q; i++) {
        const uint32_t quad = i * blockDim.x + threadIdx.x;
        const float4 w = quad < quads ? ld16f((const float4 *)a.w + quad) : make_float4(0, 0, 0, 0);
        v[i] = make_float4(v[i].x * t * w.x, v[i].y * t * w.y, v[i].z * t * w.z, v[i].w * t * w.w);
        most = largest(v[i], most);
        if (quad < quads)
            *((float4 *)(a.h[r] + row * a.h_pitch) + quad) = v[i];
        if (a.q8[r] != nullptr) {
            const float h[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
            q8_block8(h, a.q8[r] + row * a.q8_pitch, a.width, quad * 4, quad < quads);
        }
    }
    if (a.half == nullptr)
        return;
    const float f = factor_of(block_max(most));
    if (threadIdx.x == 0)
        a.half_scale[row] = 1.0f / f;
#pragma unroll
    for (int i = 0; i < Q; i++)
        if (i * blockDim.x + threadIdx.x < quads)
            put_halves(v[i], f, (__half *)a.half + row * a.half_pitch, 4 * (i * blockDim.x + threadIdx.x));
}

template <int Q, int T> static cudaError_t plain(const struct kcu_launch *l, const struct kcu_join *a, uint32_t threads)
{
    return launch(l, plain_kernel<Q, T>, dim3(a->n_local, a->n), dim3((threads + 31) / 32 * 32), 0, 0, *a, l->stamp);
}

template <int Q, int T, int BLOCKS> static cudaError_t join(const struct kcu_launch *l, const struct kcu_join *a, uint32_t threads)
{
    const dim3 grid(BLOCKS, a->n), block((threads + 31) / 32 * 32);
    if (BLOCKS > 1)
        divide_alike(join_kernel<Q, T, BLOCKS, false>);
    if (a->reduce && a->tree)
        return launch(l, join_kernel<Q, T, BLOCKS, true>, grid, block, 0, BLOCKS, *a, l->stamp);
    return launch(l, join_kernel<Q, T, BLOCKS, false>, grid, block, 0, BLOCKS, *a, l->stamp);
}

extern "C" cudaError_t kcu_join(const struct kcu_launch *l, const struct kcu_join *a)
{
    const uint32_t quads = a->width / 4;
    if (a->n == 0 || quads == 0)
        return cudaSuccess;
    if (quads > 4096 || (a->half != NULL && (a->reduce || a->n_local != 1 || a->width % 16 != 0)))
        return cudaErrorInvalidValue;
    if (!a->reduce && a->ready == NULL && a->done == NULL)
        return quads <= 512 ? plain<1, 512>(l, a, quads) : quads <= 1536 ? plain<2, 768>(l, a, (quads + 1) / 2) : plain<4, 1024>(l, a, (quads + 3) / 4);
    int device, major = 0;
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (a->reduce && a->n_gpus > 1 && quads > 512 && a->n <= 8 && a->n_local == 1 && major >= 9)
        return join<1, 512, 8>(l, a, (quads + 7) / 8);
    if (quads <= 512)
        return join<1, 512, 1>(l, a, quads);
    if (quads <= 1536)
        return join<2, 768, 1>(l, a, (quads + 1) / 2);
    return join<4, 1024, 1>(l, a, (quads + 3) / 4);
}
