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

static __device__ __forceinline__ uint32_t both(uint32_t packed, int high)
{
    return __byte_perm(packed, 0, high ? 0x3232 : 0x1010);
}

/* How a format's rows are cut into steps of BK: a row of a step takes STRIDE bytes of shared memory (an odd multiple of 16, so that eight rows meet no bank
 * twice), brought by PIECES copies. Units are 64 weights. scales(): of a unit, four f16 in two words. raw: what a lane needs of a unit of one row, words j
 * and j + 4 of every 32 codes. halves(): group g of 32 as operands: two f16 each for columns 4j, 4j + 2, 16 + 4j, 16 + 4j + 2. */
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
};

#endif
