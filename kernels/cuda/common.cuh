/* What all kernels share: launching, waiting for the predecessor, stamps, small vector loads. */
#ifndef RANKSCOPE_KERNELS_CUDA_COMMON_CUH
#define RANKSCOPE_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"
#include "kernels/quant.h"

static __device__ __forceinline__ uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* krn_q8_blocks_offset for the device. */
static __host__ __device__ __forceinline__ size_t q8_offset(size_t k)
{
    return (k + 63) & ~(size_t)63;
}

/* Let the next kernel start (it waits for this one before it touches anything but weights), then wait for the previous one. */
static __device__ __forceinline__ void pdl_release()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Bring bytes (p and their number multiples of 16) into the cache; one thread calls. A hint: older devices do without. */
static __device__ __forceinline__ void prefetch(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
    (void)p, (void)bytes;
#endif
}

static __device__ __forceinline__ void stamp(uint64_t *p)
{
    if (p != nullptr && (threadIdx.x | threadIdx.y | blockIdx.x | blockIdx.y | blockIdx.z) == 0)
        *(volatile uint64_t *)p = now_ns();
}

/* Weights. EARLY: loaded before pdl_wait(). That is spelled out, since the assembler moves read-only loads (.nc, __ldg) to after a griddepcontrol.wait
 * that follows them, and nothing would be on its way while a kernel waits. LATE: the compiler may arrange them. STAGED: from shared memory. */
enum load_how { LATE, EARLY, STAGED };

template <load_how HOW = LATE> static __device__ __forceinline__ uint4 ld16(const void *p)
{
    if (HOW == STAGED)
        return *(const uint4 *)p;
    if (HOW == LATE)
        return __ldg((const uint4 *)p);
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(__cvta_generic_to_global(p)));
    return v;
}
template <load_how HOW = LATE> static __device__ __forceinline__ uint2 ld8(const void *p)
{
    if (HOW == STAGED)
        return *(const uint2 *)p;
    if (HOW == LATE)
        return __ldg((const uint2 *)p);
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(__cvta_generic_to_global(p)));
    return v;
}
template <load_how HOW = LATE> static __device__ __forceinline__ uint32_t ld4(const void *p)
{
    if (HOW == STAGED)
        return *(const uint32_t *)p;
    if (HOW == LATE)
        return __ldg((const unsigned int *)p);
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)));
    return v;
}
template <load_how HOW = LATE> static __device__ __forceinline__ uint32_t ld2(const void *p)
{
    if (HOW == STAGED)
        return *(const uint16_t *)p;
    if (HOW == LATE)
        return __ldg((const unsigned short *)p);
    uint16_t v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(__cvta_generic_to_global(p)));
    return v;
}
/* Weights of norms, early. */
static __device__ __forceinline__ float4 ld16f(const void *p)
{
    const uint4 v = ld16<EARLY>(p);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

static __device__ __forceinline__ float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

static __device__ __forceinline__ float warp_sum(float v, uint32_t lanes)
{
    for (uint32_t o = lanes / 2; o > 0; o /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

static __device__ __forceinline__ float warp_max(float v, uint32_t lanes)
{
    for (uint32_t o = lanes / 2; o > 0; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* Of four values; spelled out, since every kernel that norms a row must round alike. */
static __device__ __forceinline__ float square_of(float4 v)
{
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, __fmul_rn(v.x, v.x))));
}

static __device__ __forceinline__ float silu(float g)
{
    return g / (1.0f + __expf(-g));
}

/* One element of a 32-value block to int8, as krn_q8_quant_row does it. max_bits: the largest magnitude of the block as bits. */
static __device__ __forceinline__ int q8_code(float x, uint32_t max_bits)
{
    if (max_bits >= KRN_Q8_INFINITE || max_bits < KRN_Q8_TINY)
        return 0;
    return __float2int_rn(__fmul_rn(x, __fdiv_rn(127.0f, __uint_as_float(max_bits))));
}

static __device__ __forceinline__ float q8_scale(uint32_t max_bits)
{
    return max_bits >= KRN_Q8_INFINITE ? __uint_as_float(0x7fc00000u)
           : max_bits < KRN_Q8_TINY    ? 0.0f
                                       : __fdiv_rn(__uint_as_float(max_bits), 127.0f);
}

/* Eight neighbouring lanes hold four values each of one 32-value block: codes to *q (each lane its four), the block by the first of the eight. All
 * lanes of the warp call; `on` says who writes. */
static __device__ __forceinline__ void q8_block8_to(const float v[4], uint32_t *codes, krn_q8_block *block, bool on)
{
    uint32_t m = 0;
    for (int i = 0; i < 4; i++)
        m = max(m, __float_as_uint(v[i]) & 0x7fffffffu);
    for (int o = 1; o < 8; o *= 2)
        m = max(m, __shfl_xor_sync(0xffffffffu, m, o));
    int q[4], sum = 0;
    for (int i = 0; i < 4; i++) {
        q[i] = q8_code(v[i], m);
        sum += q[i];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2); /* of 16 values: lanes 0 to 3, or 4 to 7 */
    int other = __shfl_xor_sync(0xffffffffu, sum, 4);
    if (!on)
        return;
    *codes = (uint32_t)(q[0] & 255) | (uint32_t)(q[1] & 255) << 8 | (uint32_t)(q[2] & 255) << 16 | (uint32_t)(q[3] & 255) << 24;
    if (threadIdx.x % 8 == 0) {
        float d = q8_scale(m);
        *(float4 *)block = make_float4(d, d * (float)(sum + other), __int_as_float(-(sum + other)), __int_as_float(-sum));
    }
}

/* The same into a row of the int8 form, at column col of this lane. */
static __device__ __forceinline__ void q8_block8(const float v[4], uint8_t *row, uint32_t width, uint32_t col, bool on)
{
    q8_block8_to(v, (uint32_t *)(row + col), (krn_q8_block *)(row + q8_offset(width)) + col / 32, on);
}

/* One warp holds one value per lane of a 32-value block. */
static __device__ __forceinline__ void q8_block32(float v, uint8_t *row, uint32_t width, uint32_t col0, uint32_t lane)
{
    uint32_t m = __float_as_uint(v) & 0x7fffffffu;
    for (int o = 1; o < 32; o *= 2)
        m = max(m, __shfl_xor_sync(0xffffffffu, m, o));
    int q = q8_code(v, m), low = q, all;
    for (int o = 1; o < 16; o *= 2)
        low += __shfl_xor_sync(0xffffffffu, low, o);
    all = low + __shfl_xor_sync(0xffffffffu, low, 16);
    row[col0 + lane] = (uint8_t)q;
    if (lane == 0) {
        float d = q8_scale(m);
        krn_q8_block *b = (krn_q8_block *)(row + q8_offset(width)) + col0 / 32;
        *(float4 *)b = make_float4(d, d * (float)all, __int_as_float(-all), __int_as_float(-low));
    }
}

template <int C> struct cache_elem;
template <> struct cache_elem<KCU_CACHE_F32> {
    typedef float t;
};
template <> struct cache_elem<KCU_CACHE_F16> {
    typedef __half t;
};
template <> struct cache_elem<KCU_CACHE_BF16> {
    typedef __nv_bfloat16 t;
};

static __device__ __forceinline__ float2 pair_of(const float *p)
{
    return *(const float2 *)p;
}
static __device__ __forceinline__ float2 pair_of(const __half *p)
{
    return __half22float2(*(const __half2 *)p);
}
static __device__ __forceinline__ float2 pair_of(const __nv_bfloat16 *p)
{
    return __bfloat1622float2(*(const __nv_bfloat162 *)p);
}
static __device__ __forceinline__ float one_of(const float *p)
{
    return *p;
}
static __device__ __forceinline__ float one_of(const __half *p)
{
    return __half2float(*p);
}
static __device__ __forceinline__ float one_of(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
static __device__ __forceinline__ void put(float *p, float v)
{
    *p = v;
}
static __device__ __forceinline__ void put(__half *p, float v)
{
    *p = __float2half_rn(v);
}
static __device__ __forceinline__ void put(__nv_bfloat16 *p, float v)
{
    *p = __float2bfloat16_rn(v);
}

static __device__ __forceinline__ size_t page_row(const kcu_batch &b, uint32_t row, uint32_t pos)
{
    return (size_t)b.tables[b.table[row] + (int32_t)(pos / b.block)] * b.block + pos % b.block;
}

static inline uint32_t multiprocessors()
{
    int device, n = 0;
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return (uint32_t)n;
}

/* Decisions about a number of rows follow powers of two, as the buckets of captured steps do: a step eager and in a graph takes the same kernels. */
static inline uint32_t power_above(uint32_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Launch with the attributes that kcu_launch asks for. cluster 0: none. */
template <class K, class... A>
static cudaError_t launch(const kcu_launch *l, K kernel, dim3 grid, dim3 block, size_t smem, unsigned cluster, A... args)
{
    cudaLaunchConfig_t cfg = {};
    cudaLaunchAttribute at[2];
    unsigned n = 0;
    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = smem;
    cfg.stream = l->stream;
    if (l->pdl) {
        at[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        at[n].id = cudaLaunchAttributeClusterDimension;
        at[n].val.clusterDim.x = cluster;
        at[n].val.clusterDim.y = 1;
        at[n++].val.clusterDim.z = 1;
    }
    cfg.attrs = at;
    cfg.numAttrs = n;
    return cudaLaunchKernelEx(&cfg, kernel, args...);
}

#endif
