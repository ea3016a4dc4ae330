/* The end of every sub-layer in one kernel: sum over ranks, residual, norm, int8 form.
 *
 * Across GPUs the sum is one-shot: every GPU pushes its ranks' summands as packets {data, epoch, data, epoch} straight into the others' receive
 * buffers, two of them by parity of the epoch, and each thread polls exactly the packets that it needs: no flags apart, no barrier. A buffer is free
 * again when a peer's packets of the next epoch arrive, since the peer sends those after having read all of the previous ones. Sums run in order
 * of rank on every GPU, so all hold the same bits. */
#include <cooperative_groups.h>

#include "kernels/cuda/common.cuh"

namespace cg = cooperative_groups;

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
static __device__ __forceinline__ uint2 ld_packet(uint4 v, const uint4 *p, uint32_t e, const struct kcu_join &a)
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
            *(volatile uint32_t *)a.fault = a.ordinal + 1;
    }
}

static __device__ __forceinline__ uint32_t bf16_bits(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
static __device__ __forceinline__ float bf16_round(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}
static __device__ __forceinline__ float4 bf16_round(float4 v)
{
    return make_float4(bf16_round(v.x), bf16_round(v.y), bf16_round(v.z), bf16_round(v.w));
}
static __device__ __forceinline__ float4 operator+(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Sum of one quad over all ranks. */
static __device__ __forceinline__ float4 reduce_quad(const struct kcu_join &a, uint32_t row, uint32_t quad, bool on)
{
    float4 sum = make_float4(0, 0, 0, 0);
    if (!on)
        return sum;
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
                const uint2 d = ld_packet(look[i], p, e, a);
                if (a.bf16) {
                    v = make_float4(__uint_as_float(d.x << 16), __uint_as_float(d.x & 0xffff0000u), __uint_as_float(d.y << 16),
                                    __uint_as_float(d.y & 0xffff0000u));
                } else {
                    const uint2 f = ld_packet(peek(p + 1), p + 1, e, a);
                    v = make_float4(__uint_as_float(d.x), __uint_as_float(d.y), __uint_as_float(f.x), __uint_as_float(f.y));
                }
            }
            sum = r == 0 ? v : sum + v;
        }
    }
    return sum;
}

/* blockIdx.y: row. Thread t of block b in the cluster has quad b * per + t. blockDim is a multiple of 32, so that eight lanes are one 32-value block. */
template <bool CLUSTER>
static __global__ void __launch_bounds__(1024, 1) join_kernel(const __grid_constant__ struct kcu_join a, uint32_t per, uint64_t *at)
{
    __shared__ float unit[128]; /* sums of squares of this block's 32-value units */
    __shared__ float total;
    pdl_release();
    const uint32_t quads = a.width / 4, row = blockIdx.y, quad = blockIdx.x * per + threadIdx.x, lane = threadIdx.x % 32;
    const bool on = threadIdx.x < per && quad < quads, first = (threadIdx.x | blockIdx.x | blockIdx.y) == 0;
    float4 w = make_float4(0, 0, 0, 0);
    if (a.w != nullptr && on)
        w = __ldg((const float4 *)a.w + quad);
    pdl_wait();
    stamp(at);
    if (a.reduce && a.delay_ns != 0 && a.delay_rank >= (int32_t)a.rank0 && a.delay_rank < (int32_t)(a.rank0 + a.n_local))
        for (const uint64_t t0 = now_ns(); now_ns() - t0 < a.delay_ns;)
            ;
    float4 sum;
    if (a.reduce)
        sum = reduce_quad(a, row, quad, on);
    if (a.ready != nullptr && first)
        *(volatile uint64_t *)a.ready = now_ns();
    for (uint32_t i = 0; i < a.n_local; i++) {
        float4 v = sum;
        if (on) {
            float4 *part = (float4 *)(a.part[i] + row * a.part_pitch) + quad;
            if (a.reduce)
                *part = v;
            else
                v = *part;
            if (a.x[i] != nullptr) {
                float4 *x = (float4 *)(a.x[i] + row * a.x_pitch) + quad;
                v = *x + v;
                *x = v;
            }
        } else {
            v = make_float4(0, 0, 0, 0);
        }
        if (a.w == nullptr)
            continue;
        float sq = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        for (int o = 1; o < 8; o *= 2)
            sq += __shfl_xor_sync(0xffffffffu, sq, o);
        if (i > 0) { /* the previous rank's sums have been read */
            if (CLUSTER)
                cg::this_cluster().sync();
            else
                __syncthreads();
        }
        if (lane % 8 == 0 && threadIdx.x / 8 < 128)
            unit[threadIdx.x / 8] = sq;
        if (CLUSTER)
            cg::this_cluster().sync();
        else
            __syncthreads();
        if (threadIdx.x < 32) { /* all units in one order, whatever the number of blocks */
            const uint32_t units = (quads + 7) / 8, per_block = per / 8;
            float s = 0;
            for (uint32_t u = lane; u < units; u += 32) {
                const float *from = unit;
                if (CLUSTER)
                    from = cg::this_cluster().map_shared_rank(unit, u / per_block);
                s += from[CLUSTER ? u % per_block : u];
            }
            s = warp_sum(s, 32);
            if (lane == 0)
                total = 1.0f / sqrtf(s / (float)a.width + a.eps);
        }
        __syncthreads();
        const float t = total;
        const float h[4] = {v.x * t * w.x, v.y * t * w.y, v.z * t * w.z, v.w * t * w.w};
        if (on)
            *((float4 *)(a.h[i] + row * a.h_pitch) + quad) = make_float4(h[0], h[1], h[2], h[3]);
        if (a.q8[i] != nullptr)
            q8_block8(h, a.q8[i] + row * a.q8_pitch, a.width, quad * 4, on);
    }
    if (a.done != nullptr && first)
        *(volatile uint64_t *)a.done = now_ns();
    if (CLUSTER && a.w != nullptr)
        cg::this_cluster().sync(); /* nobody leaves while others read its sums */
}

extern "C" cudaError_t kcu_join(const struct kcu_launch *l, const struct kcu_join *a)
{
    const uint32_t quads = a->width / 4, units = (quads + 7) / 8;
    if (a->n == 0 || quads == 0)
        return cudaSuccess;
    const uint32_t least = (quads + 1023) / 1024;
    uint32_t blocks = a->blocks != 0               ? a->blocks
                      : a->reduce && a->n_gpus > 1 ? a->n_gpus > 2 ? 8 : 4
                                                   : 1; /* packets go out faster from several multiprocessors */
    blocks = blocks > least ? blocks : least;
    blocks = blocks > units ? units : blocks;
    while (blocks & (blocks - 1)) /* cluster sizes are powers of two here */
        blocks++;
    uint32_t per = (units + blocks - 1) / blocks * 8;
    if (blocks > 8 || per > 1024)
        return cudaErrorInvalidValue;
    if (blocks > 1)
        return launch(l, join_kernel<true>, dim3(blocks, a->n), dim3((per + 31) / 32 * 32), 0, blocks, *a, per, l->stamp);
    return launch(l, join_kernel<false>, dim3(1, a->n), dim3((per + 31) / 32 * 32), 0, 0, *a, per, l->stamp);
}
