/* The tensor cores' asynchronous products of compute capability 9.0: c += a b, 64 x 16 times 16 x N, by the four warps of a warpgroup. a: in registers, warp w's
 * rows 16 w on, laid out as for mma_f16(). b: in shared memory, N rows of 64 f16 = 128 bytes, swizzled (wgmma_place()); aligned to 1024 bytes. c: quads
 * of every eight columns as for mma_f16(); without `add` the product alone. Between a fence and a commit lies a group; registers of a group may be touched once it has been waited for. */
#ifndef RANKSCOPE_KERNELS_CUDA_WGMMA_CUH
#define RANKSCOPE_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/wgmma_group.cuh"

/* Of a tile, the lower word of its description; 16 columns further is 2 more. */
static __device__ __forceinline__ uint32_t wgmma_tile(const void *p)
{
    return (smem_of(p) >> 4 & 0x3fff) | 1u << 16;
}

#ifdef HAVE_WGMMA
template <int N> static __device__ __forceinline__ void wgmma(float *c, const uint32_t a[4], uint32_t b, uint32_t add);

#define QUAD(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
template <> __device__ __forceinline__ void wgmma<16>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %13, 0; mov.b64 d, {%12, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7"
                 "}, {%8,%9,%10,%11}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<32>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %21, 0; mov.b64 d, {%20, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, {%16,%17,%18,%19}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<48>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %29, 0; mov.b64 d, {%28, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23"
                 "}, {%24,%25,%26,%27}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<64>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %37, 0; mov.b64 d, {%36, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<80>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %45, 0; mov.b64 d, {%44, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39"
                 "}, {%40,%41,%42,%43}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28),
                   QUAD(32), QUAD(36)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<96>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %53, 0; mov.b64 d, {%52, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
                 "}, {%48,%49,%50,%51}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28),
                   QUAD(32), QUAD(36), QUAD(40), QUAD(44)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<128>(float *c, const uint32_t a[4], uint32_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; .reg .b64 d; setp.ne.u32 p, %69, 0; mov.b64 d, {%68, 0x40000040}; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, d, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28),
                   QUAD(32), QUAD(36), QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
#undef QUAD
#endif

#endif
