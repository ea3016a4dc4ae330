/* Codes of Q4_K and Q5_K as operands of f16 tensor cores in the fewest instructions. */
#ifndef RANKSCOPE_KERNELS_CUDA_CODES_CUH
#define RANKSCOPE_KERNELS_CUDA_CODES_CUH

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/steps.cuh"

/* Two bytes of a word as f16, each 1024 more than it is. sixes: 0x64646464 that the compiler does not know: of two constants in an instruction it moves one into
 * a register each time. */
static __device__ __forceinline__ uint32_t spread(uint32_t x, int half, uint32_t sixes)
{
    return half ? __byte_perm(x, sixes, 0x4342) : __byte_perm(x, sixes, 0x4140);
}

/* Of Q5_K, a word of fifth bits turned so that those of unit u's lower codes are bits 4 of its bytes and those of its upper ones bits 5. */
static __device__ __forceinline__ uint32_t fifths(uint32_t high, uint32_t u)
{
    return __funnelshift_l(high, high, 4 - 2 * u);
}

/* Four codes of each of a unit's two groups of 32. Scales as of scales_of(), upper half bytes being taken as they lie, 16 times the code. */
template <int T>
static __device__ __forceinline__ void operands(uint32_t w, uint32_t fifth, const uint2 &s, uint32_t sixes, uint32_t h[2][2])
{
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if constexpr (T == KRN_Q4_K) { /* l: 1152 + the lower code, so that both come out less their middle */
            const uint32_t l = spread(and_or(w, LOW4, 0x80808080u), c, sixes), all = spread(w, c, sixes);
            h[0][c] = fma2(sub2(l, 0x64886488u), both(s.x, 0), both(s.y, 0));
            h[1][c] = fma2(sub2(all, l), both(s.x, 1), both(s.y, 1));
        } else { /* the fifth bit of the upper code goes above its byte */
            const uint32_t low = and_or(fifth, 0x10101010u, w & LOW4), above = and_or(fifth >> 5, 0x01010101u, sixes),
                           l = spread(low, c, sixes), all = __byte_perm(w & 0xf0f0f0f0u, above, c ? 0x7362 : 0x5140);
            h[0][c] = fma2(sub2(l, 0x64106410u), both(s.x, 0), both(s.y, 0));
            h[1][c] = fma2(sub2(all, 0x65006500u), both(s.x, 1), both(s.y, 1));
        }
    }
}

/* Scales and minima of unit u of a block with header b. */
template <int T> static __device__ __forceinline__ uint2 scales_of(const uint4 &b, uint32_t u)
{
    const uint32_t pick = u % 2 ? 0x4342 : 0x4140;
    const uint32_t sc = u / 2 ? (b.w & LOW4) | (b.y >> 2 & 0x30303030u) : b.y & 0x3f3f3f3fu,
                   mn = u / 2 ? (b.w >> 4 & LOW4) | (b.z >> 2 & 0x30303030u) : b.z & 0x3f3f3f3fu;
    const uint32_t d = mul2(both(b.x, 0), 0x44005400u), least = mul2(both(b.x, 1), 0xd400d400u); /* 64 and 4, -64 */
    const uint32_t a = mul2(sub2(__byte_perm(sc, 0x64646464u, pick), 0x64006400u), d);
    return make_uint2(a, fma2(sub2(__byte_perm(mn, 0x64646464u, pick), 0x64006400u), least,
                              mul2(a, T == KRN_Q5_K ? 0x5c004c00u : 0x58004800u))); /* 16, 256; 8, 128 */
}

#endif
