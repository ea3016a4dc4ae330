/* The tensor cores' asynchronous products of compute capability 9.0, wide ones: c += a b, 64 x 16 times 16 x N, by the four warps of a
 * warpgroup; without `add` the product alone. a: in registers, warp w's rows 16 w on, laid out as for mma_f16(), or (wgmma_tiles(),
 * wgmma_across()) a tile in shared memory. b: in shared memory, N rows of 64 f16 = 128 bytes, swizzled (wgmma_place()), aligned to 1024
 * bytes. c: quads of every eight columns as for mma_f16(). Between a fence and a commit lies a group. Its registers may be touched once it
 * has been waited for; that holds for a as well, and over the end of a loop the assembler does not see to it: groups that may be under way
 * at the same time need their own registers. */
#ifndef RANKSCOPE_KERNELS_CUDA_WGMMA_WIDE_CUH
#define RANKSCOPE_KERNELS_CUDA_WGMMA_WIDE_CUH

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/wgmma_group.cuh"

/* Of a tile; 16 columns further is 2 more. */
static __device__ __forceinline__ uint64_t wgmma_tile(const void *p)
{
    return (uint64_t)(smem_of(p) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* Of a tile for wgmma_across(): b lies across, its columns side by side. 16 rows of 64 f16 = 128 bytes, swizzled; the tile with the next 64
 * columns is `step` bytes further, 16 rows further is 128 more. */
static __device__ __forceinline__ uint64_t wgmma_tile_across(const void *p, uint32_t step)
{
    return (uint64_t)(smem_of(p) >> 4 & 0x3fff) | (uint64_t)(step >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#ifdef HAVE_WGMMA
template <int N> static __device__ __forceinline__ void wgmma(float *c, const uint32_t a[4], uint64_t b, uint32_t add);

#define QUAD(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
template <> __device__ __forceinline__ void wgmma<64>(float *c, const uint32_t a[4], uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<96>(float *c, const uint32_t a[4], uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %53, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
                 "}, {%48,%49,%50,%51}, %52, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28),
                   QUAD(32), QUAD(36), QUAD(40), QUAD(44)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<128>(float *c, const uint32_t a[4], uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28),
                   QUAD(32), QUAD(36), QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<160>(float *c, const uint32_t a[4], uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %85, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
                 "}, {%80,%81,%82,%83}, %84, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60), QUAD(64), QUAD(68), QUAD(72), QUAD(76)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<192>(float *c, const uint32_t a[4], uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %101, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
                 "}, {%96,%97,%98,%99}, %100, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60), QUAD(64), QUAD(68), QUAD(72), QUAD(76),
                   QUAD(80), QUAD(84), QUAD(88), QUAD(92)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma<256>(float *c, const uint32_t a[4], uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, {%128,%129,%130,%131}, %132, p, 1, 1, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60), QUAD(64), QUAD(68), QUAD(72), QUAD(76),
                   QUAD(80), QUAD(84), QUAD(88), QUAD(92), QUAD(96), QUAD(100), QUAD(104), QUAD(108), QUAD(112), QUAD(116),
                   QUAD(120), QUAD(124)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* a: 64 rows, laid out as b's. */
template <int N> static __device__ __forceinline__ void wgmma_tiles(float *c, uint64_t a, uint64_t b, uint32_t add);
template <int N> static __device__ __forceinline__ void wgmma_across(float *c, uint64_t a, uint64_t b, uint32_t add);

template <> __device__ __forceinline__ void wgmma_tiles<32>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_tiles<128>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_tiles<192>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
                 "}, %96, %97, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60), QUAD(64), QUAD(68), QUAD(72), QUAD(76),
                   QUAD(80), QUAD(84), QUAD(88), QUAD(92)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_tiles<256>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, p, 1, 1, 0, 0; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60), QUAD(64), QUAD(68), QUAD(72), QUAD(76),
                   QUAD(80), QUAD(84), QUAD(88), QUAD(92), QUAD(96), QUAD(100), QUAD(104), QUAD(108), QUAD(112), QUAD(116),
                   QUAD(120), QUAD(124)
                 : "l"(a), "l"(b), "r"(add));
}

template <> __device__ __forceinline__ void wgmma_across<256>(float *c, uint64_t a, uint64_t b, uint32_t add)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, p, 1, 1, 0, 1; }"
                 : QUAD(0), QUAD(4), QUAD(8), QUAD(12), QUAD(16), QUAD(20), QUAD(24), QUAD(28), QUAD(32), QUAD(36),
                   QUAD(40), QUAD(44), QUAD(48), QUAD(52), QUAD(56), QUAD(60), QUAD(64), QUAD(68), QUAD(72), QUAD(76),
                   QUAD(80), QUAD(84), QUAD(88), QUAD(92), QUAD(96), QUAD(100), QUAD(104), QUAD(108), QUAD(112), QUAD(116),
                   QUAD(120), QUAD(124)
                 : "l"(a), "l"(b), "r"(add));
}
#undef QUAD
#endif

#endif
