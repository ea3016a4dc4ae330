/* Weights of quantised types as operands of f16 tensor cores: how rows travel in steps of K, and how a lane makes two or four f16 of its codes. */
#ifndef RANKSCOPE_KERNELS_CUDA_STEPS_CUH
#define RANKSCOPE_KERNELS_CUDA_STEPS_CUH

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/tensor.cuh"

static __device__ __forceinline__ uint32_t word(const uint8_t *p)
{
    return *(const uint32_t *)p;
}

static __device__ __forceinline__ uint32_t pack(float a, float b)
{
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

/* Weights are multiplied by this on their way to f16, so that scales of small ones keep their bits. */
static const float UP = 64.0f;

/* Bytes (0 or 1 of `half`) of four codes to two f16: as 1024 + code, less `zero` (1024 and the format's), times the scale, less the minimum. */
template <bool MIN> static __device__ __forceinline__ void pair_up(uint32_t codes, uint32_t zero, uint32_t a, uint32_t b, uint32_t h[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t x = __byte_perm(codes, 0x64646464u, i ? 0x4342 : 0x4140);
        const __half2 q = __hsub2(*(const __half2 *)&x, *(const __half2 *)&zero), s = *(const __half2 *)&a, m = *(const __half2 *)&b;
        const __half2 w = MIN ? __hfma2(q, s, m) : __hmul2(q, s);
        h[i] = *(const uint32_t *)&w;
    }
}

/* One of two f16 twice: a way to say it that costs nothing where it is an operand of theirs. */
static __device__ __forceinline__ uint32_t both(uint32_t packed, int high)
{
    const __half2 h = *(const __half2 *)&packed, x = high ? __high2half2(h) : __low2half2(h);
    return *(const uint32_t *)&x;
}

static __device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b)
{
    const __half2 x = __hsub2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&x;
}

static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b)
{
    const __half2 x = __hmul2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&x;
}

static __device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c)
{
    const __half2 x = __hfma2(*(const __half2 *)&a, *(const __half2 *)&b, *(const __half2 *)&c);
    return *(const uint32_t *)&x;
}

/* x & a | b in one instruction: of two constants in the code it would make two. */
static __device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(a), "r"(b));
    return y;
}

/* Two bytes of a word as f16: 0 or 1 of `half`, each 1024 more than it is. */
static __device__ __forceinline__ uint32_t bytes_1024(uint32_t x, int half)
{
    return __byte_perm(x, 0x64646464u, half ? 0x4342 : 0x4140);
}

/* How a format's rows are cut into steps of BK: a row of a step takes STRIDE bytes of shared memory (an odd multiple of 16, so that eight rows meet no bank
 * twice), brought by PIECES copies. Units are 64 weights. scales(): of a unit, four f16 in two words. raw: what a lane needs of a unit of one row, words j
 * and j + 4 of every 32 codes. halves(): group g of 32 as operands: two f16 each for columns 4j, 4j + 2, 16 + 4j, 16 + 4j + 2. unit(): both groups, by scales
 * from unit_scales(). */
template <int T, int BK> struct steps;

template <int BK> struct steps<KRN_Q8_0, BK> {
    enum { STRIDE = BK + 16, PIECES = BK / 16 + 1 };
    struct raw {
        uint32_t w[4];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t k, uint32_t k0, uint32_t piece)
    {
        if (piece < BK / 16)
            copy_async<16>(to + 16 * piece, row + k0 + 16 * piece);
        else
            copy_async<BK / 16>(to + BK, row + k + k0 / 16);
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *r, uint32_t, uint32_t u)
    {
        const uint32_t d = word(r + BK + 4 * u); /* 64 times a half: no rounding */
        return make_uint2(pack(UP * half_of(d & 0xffff), UP * half_of(d >> 16)), 0);
    }
    static __device__ __forceinline__ void load(const uint8_t *r, uint32_t, uint32_t u, uint32_t j, raw &x)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x.w[i] = word(r + 64 * u + 16 * i + 4 * j) ^ 0x80808080u;
    }
    static __device__ __forceinline__ void halves(const raw &x, int g, const uint2 &s, uint32_t h[4])
    {
        pair_up<false>(x.w[2 * g], 0x64806480u, both(s.x, g), 0, h);
        pair_up<false>(x.w[2 * g + 1], 0x64806480u, both(s.x, g), 0, h + 2);
    }
    static __device__ __forceinline__ uint2 unit_scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        return scales(r, k0, u);
    }
    static __device__ __forceinline__ void unit(const raw &x, const uint2 &s, uint32_t h[2][4])
    {
        halves(x, 0, s, h[0]);
        halves(x, 1, s, h[1]);
    }
};

/* Q4_K and Q5_K: header, upper bits, then the half bytes that the step is about. Codes are taken from their middle, which makes what is left of the minimum
 * small: rounded to f16, code times scale and minimum would be several times the weight that is their difference. */
template <int BK, int BLOCK, int HEAD, bool FIFTH> struct k_steps {
    enum { STRIDE = HEAD + BK / 2, PIECES = STRIDE / 16, MIDDLE = FIFTH ? 16 : 8 };
    struct raw {
        uint32_t w[2], h[FIFTH ? 2 : 1];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t, uint32_t k0, uint32_t piece)
    {
        const uint8_t *p = row + (size_t)(k0 / 256) * BLOCK + 16 * piece;
        copy_async<16>(to + 16 * piece, piece < HEAD / 16 ? p : p + k0 % 256 / 2);
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        float a[2], b[2];
        k_scales(*(const uint4 *)r, k0 % 256 / 64 + u, a, b);
        return make_uint2(pack(UP * a[0], UP * a[1]), pack(UP * (MIDDLE * a[0] - b[0]), UP * (MIDDLE * a[1] - b[1])));
    }
    static __device__ __forceinline__ void load(const uint8_t *r, uint32_t k0, uint32_t u, uint32_t j, raw &x)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x.w[i] = word(r + HEAD + 32 * u + 16 * i + 4 * j);
            if (FIFTH)
                x.h[FIFTH ? i : 0] = word(r + 16 + 16 * i + 4 * j) >> 2 * (k0 % 256 / 64 + u);
        }
    }
    static __device__ __forceinline__ void halves(const raw &x, int g, const uint2 &s, uint32_t h[4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t c = x.w[i] >> 4 * g & LOW4;
            if (FIFTH)
                c |= (x.h[FIFTH ? i : 0] >> g & 0x01010101u) << 4;
            pair_up<true>(c, 0x64006400u + MIDDLE * 0x10001u, both(s.x, g), both(s.y, g), h + 2 * i);
        }
    }
    /* Four scales and four minima of a half of the block are a word each. Upper half bytes are taken as they lie, 16 times the code, their scale a 16th. */
    static __device__ __forceinline__ uint2 unit_scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        const uint4 b = *(const uint4 *)r;
        const uint32_t at = k0 % 256 / 64 + u, pick = at % 2 ? 0x4342 : 0x4140;
        const uint32_t sc = at / 2 ? (b.w & LOW4) | (b.y >> 2 & 0x30303030u) : b.y & 0x3f3f3f3fu,
                       mn = at / 2 ? (b.w >> 4 & LOW4) | (b.z >> 2 & 0x30303030u) : b.z & 0x3f3f3f3fu;
        const uint32_t d = mul2(both(b.x, 0), FIFTH ? 0x54005400u : 0x44005400u), least = mul2(both(b.x, 1), 0xd400d400u); /* 64 or 4, -64 */
        const uint32_t a = mul2(sub2(__byte_perm(sc, 0x64646464u, pick), 0x64006400u), d);
        return make_uint2(a, fma2(sub2(__byte_perm(mn, 0x64646464u, pick), 0x64006400u), least, mul2(a, FIFTH ? 0x4c004c00u : 0x58004800u))); /* 16; 8, 128 */
    }
    static __device__ __forceinline__ void unit(const raw &x, const uint2 &s, uint32_t h[2][4])
    {
        if constexpr (FIFTH) {
            halves(x, 0, s, h[0]);
            halves(x, 1, s, h[1]);
        } else
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = and_or(x.w[i], LOW4, 0x80808080u);
#pragma unroll
            for (int c = 0; c < 2; c++) { /* l: 1152 + the lower code, so that both come out less their middle */
                const uint32_t l = bytes_1024(low, c), all = bytes_1024(x.w[i], c);
                h[0][2 * i + c] = fma2(sub2(l, 0x64886488u), both(s.x, 0), both(s.y, 0));
                h[1][2 * i + c] = fma2(sub2(all, l), both(s.x, 1), both(s.y, 1));
            }
        }
    }
};
template <int BK> struct steps<KRN_Q4_K, BK> : k_steps<BK, 144, 16, false> {
};
template <int BK> struct steps<KRN_Q5_K, BK> : k_steps<BK, 176, 48, true> {
};

template <int BK> struct steps<KRN_Q6_K, BK> { /* planes: nibbles, upper two bits, scales, d */
    enum { HIGH = BK / 2, SCALES = HIGH + BK / 4, D = SCALES + BK / 16, STRIDE = (D + 4 + 15) / 32 * 32 + 16, PIECES = BK / 32 + BK / 64 + 2 };
    struct raw {
        uint32_t n[2], h[2];
    };
    static __device__ __forceinline__ void fetch(uint8_t *to, const uint8_t *row, uint32_t k, uint32_t k0, uint32_t piece)
    {
        const uint8_t *scales = row + k / 2 + k / 4;
        if (piece < BK / 32)
            copy_async<16>(to + 16 * piece, row + k0 / 2 + 16 * piece);
        else if (piece < BK / 32 + BK / 64)
            copy_async<16>(to + 16 * piece, row + k / 2 + k0 / 4 + 16 * (piece - BK / 32));
        else if (piece == BK / 32 + BK / 64)
            copy_async<BK / 16>(to + SCALES, scales + k0 / 16);
        else /* the word that d lies in */
            copy_async<4>(to + D, scales + k / 16 + k0 / 512 * 4);
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        const uint32_t s = word(r + SCALES + 4 * u);
        const float d = UP * half_of(word(r + D) >> (k0 & 256) / 16 & 0xffff);
        return make_uint2(pack(d * (float)(int8_t)(s & 255), d * (float)(int8_t)(s >> 8 & 255)),
                          pack(d * (float)(int8_t)(s >> 16 & 255), d * (float)(int8_t)(s >> 24)));
    }
    static __device__ __forceinline__ void load(const uint8_t *r, uint32_t, uint32_t u, uint32_t j, raw &x)
    {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            x.n[g] = word(r + 32 * u + 16 * g + 4 * j);
            x.h[g] = word(r + HIGH + 16 * u + 8 * g + 4 * (j & 1)) >> 2 * (j >> 1); /* words j and j + 4 */
        }
    }
    static __device__ __forceinline__ void halves(const raw &x, int g, const uint2 &s, uint32_t h[4])
    {
        const uint32_t a = g ? s.y : s.x;
        pair_up<false>((x.n[g] & LOW4) | (x.h[g] & 0x03030303u) << 4, 0x64206420u, both(a, 0), 0, h);
        pair_up<false>((x.n[g] >> 4 & LOW4) | (x.h[g] >> 4 & 0x03030303u) << 4, 0x64206420u, both(a, 1), 0, h + 2);
    }
    static __device__ __forceinline__ uint2 unit_scales(const uint8_t *r, uint32_t k0, uint32_t u)
    {
        return scales(r, k0, u);
    }
    static __device__ __forceinline__ void unit(const raw &x, const uint2 &s, uint32_t h[2][4])
    {
        halves(x, 0, s, h[0]);
        halves(x, 1, s, h[1]);
    }
};

#endif
