/* Weight formats on the device: a unit is W consecutive weights of a row that one lane handles. fetch() loads it (memory only, so that several can
 * be in flight), unpack() makes W / 4 words of four signed codes each, in order of K, with NS scales (and minima): weight = a * (code - ZERO), or
 * a * code - b with MIN. Every scale covers W / NS weights. */
#ifndef RANKSCOPE_KERNELS_CUDA_FORMATS_CUH
#define RANKSCOPE_KERNELS_CUDA_FORMATS_CUH

#include "kernels/cuda/common.cuh"

#define KRN_GRID static __device__ const
#include "kernels/quant_grid.c"

template <int T> struct fmt;

#define LOW4 0x0f0f0f0fu

template <load_how HOW> static __device__ __forceinline__ uint32_t ld4of2(const uint8_t *p)
{
    return ld2<HOW>(p) | ld2<HOW>(p + 2) << 16;
}

/* Nibble words to codes: low nibbles are weights 0 to 15, high ones 16 to 31. */
static __device__ __forceinline__ void nibbles(const uint32_t n[4], int q[8])
{
    for (int j = 0; j < 4; j++) {
        q[j] = (int)(n[j] & LOW4);
        q[4 + j] = (int)(n[j] >> 4 & LOW4);
    }
}

/* Bits 0 to 3 of x to bit 4 of four bytes. */
static __device__ __forceinline__ int spread_fifth(uint32_t x)
{
    return (int)(((x & 15) * 0x00204081u & 0x01010101u) << 4);
}

template <> struct fmt<KRN_Q8_0> { /* plane of codes, plane of scales */
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    struct raw {
        uint4 v[2];
        uint32_t d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t k, uint32_t u, raw &r)
    {
        const uint32_t first = HOW == STAGED ? u / 4 % 2 * 16 : 0; /* neighbouring lanes meet no bank twice */
        const uint4 a = ld16<HOW>(row + (size_t)u * 32 + first), b = ld16<HOW>(row + (size_t)u * 32 + (16 - first));
        r.v[0] = first != 0 ? b : a;
        r.v[1] = first != 0 ? a : b;
        r.d = ld2<HOW>(row + k + (size_t)u * 2);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        q[0] = (int)r.v[0].x, q[1] = (int)r.v[0].y, q[2] = (int)r.v[0].z, q[3] = (int)r.v[0].w;
        q[4] = (int)r.v[1].x, q[5] = (int)r.v[1].y, q[6] = (int)r.v[1].z, q[7] = (int)r.v[1].w;
        a[0] = half_of(r.d);
    }
};

/* The two scales and minima of groups 2c and 2c+1 of a Q4_K or Q5_K block with header h. */
static __device__ __forceinline__ void k_scales(const uint4 &h, uint32_t c, float a[2], float b[2])
{
    uint32_t sh = (c & 1) * 16, y = h.y >> sh, z = h.z >> sh, w = h.w >> sh, sc, m;
    if ((c & 2) == 0) {
        sc = y & 0x3f3fu;
        m = z & 0x3f3fu;
    } else {
        sc = (w & 0x0f0fu) | (y >> 2 & 0x3030u);
        m = (w >> 4 & 0x0f0fu) | (z >> 2 & 0x3030u);
    }
    float d = half_of(h.x & 0xffff), dmin = half_of(h.x >> 16);
    a[0] = d * (float)(sc & 255);
    a[1] = d * (float)(sc >> 8 & 255);
    b[0] = dmin * (float)(m & 255);
    b[1] = dmin * (float)(m >> 8 & 255);
}

template <> struct fmt<KRN_Q4_K> { /* as in the file: 144 bytes */
    enum { W = 64, NS = 2, ZERO = 0, MIN = 1 };
    struct raw {
        uint4 h, v[2];
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 4) * 144;
        r.h = ld16<HOW>(p);
        r.v[0] = ld16<HOW>(p + 16 + (u % 4) * 32);
        r.v[1] = ld16<HOW>(p + 32 + (u % 4) * 32);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[16], float a[2], float b[2])
    {
        const uint32_t w[8] = {r.v[0].x, r.v[0].y, r.v[0].z, r.v[0].w, r.v[1].x, r.v[1].y, r.v[1].z, r.v[1].w};
        for (int i = 0; i < 8; i++) {
            q[i] = (int)(w[i] & LOW4);
            q[8 + i] = (int)(w[i] >> 4 & LOW4);
        }
        k_scales(r.h, u % 4, a, b);
    }
};

template <> struct fmt<KRN_Q5_K> { /* as in the file: 176 bytes */
    enum { W = 64, NS = 2, ZERO = 0, MIN = 1 };
    struct raw {
        uint4 h, hi[2], v[2];
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 4) * 176;
        r.h = ld16<HOW>(p);
        r.hi[0] = ld16<HOW>(p + 16);
        r.hi[1] = ld16<HOW>(p + 32);
        r.v[0] = ld16<HOW>(p + 48 + (u % 4) * 32);
        r.v[1] = ld16<HOW>(p + 64 + (u % 4) * 32);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[16], float a[2], float b[2])
    {
        const uint32_t w[8] = {r.v[0].x, r.v[0].y, r.v[0].z, r.v[0].w, r.v[1].x, r.v[1].y, r.v[1].z, r.v[1].w};
        const uint32_t h[8] = {r.hi[0].x, r.hi[0].y, r.hi[0].z, r.hi[0].w, r.hi[1].x, r.hi[1].y, r.hi[1].z, r.hi[1].w};
        uint32_t s = 2 * (u % 4);
        for (int i = 0; i < 8; i++) {
            q[i] = (int)((w[i] & LOW4) | (h[i] >> s & 0x01010101u) << 4);
            q[8 + i] = (int)((w[i] >> 4 & LOW4) | (h[i] >> (s + 1) & 0x01010101u) << 4);
        }
        k_scales(r.h, u % 4, a, b);
    }
};

template <> struct fmt<KRN_Q6_K> { /* planes: nibbles, upper two bits, scales, d */
    enum { W = 32, NS = 2, ZERO = 32, MIN = 0 };
    struct raw {
        uint4 n;
        uint2 h;
        uint32_t s, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t k, uint32_t u, raw &r)
    {
        r.n = ld16<HOW>(row + (size_t)u * 16);
        r.h = ld8<HOW>(row + k / 2 + (size_t)u * 8);
        r.s = ld2<HOW>(row + k / 2 + k / 4 + (size_t)u * 2);
        r.d = ld2<HOW>(row + k / 2 + k / 4 + k / 16 + (size_t)(u / 8) * 2);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[2], float *)
    {
        const uint32_t n[4] = {r.n.x, r.n.y, r.n.z, r.n.w}, h[2] = {r.h.x, r.h.y};
        nibbles(n, q);
        for (int j = 0; j < 8; j++)
            q[j] |= (int)((h[j & 1] >> 2 * (j >> 1) & 0x03030303u) << 4);
        float d = half_of(r.d);
        a[0] = d * (float)(int8_t)(r.s & 255);
        a[1] = d * (float)(int8_t)(r.s >> 8);
    }
};

template <> struct fmt<KRN_Q4_0> {
    enum { W = 32, NS = 1, ZERO = 8, MIN = 0 };
    struct raw {
        uint32_t n[4], d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)u * 18;
        r.d = ld2<HOW>(p);
        for (int i = 0; i < 4; i++)
            r.n[i] = ld4of2<HOW>(p + 2 + 4 * i);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        nibbles(r.n, q);
        a[0] = half_of(r.d);
    }
};

template <> struct fmt<KRN_Q4_1> {
    enum { W = 32, NS = 1, ZERO = 0, MIN = 1 };
    struct raw {
        uint32_t n[4], dm;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)u * 20;
        r.dm = ld4<HOW>(p);
        for (int i = 0; i < 4; i++)
            r.n[i] = ld4<HOW>(p + 4 + 4 * i);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float b[1])
    {
        nibbles(r.n, q);
        a[0] = half_of(r.dm & 0xffff);
        b[0] = -half_of(r.dm >> 16);
    }
};

template <> struct fmt<KRN_Q5_0> {
    enum { W = 32, NS = 1, ZERO = 16, MIN = 0 };
    struct raw {
        uint32_t n[4], h, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)u * 22;
        r.d = ld2<HOW>(p);
        r.h = ld4of2<HOW>(p + 2);
        for (int i = 0; i < 4; i++)
            r.n[i] = ld4of2<HOW>(p + 6 + 4 * i);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        nibbles(r.n, q);
        for (int j = 0; j < 8; j++)
            q[j] |= spread_fifth(r.h >> 4 * j);
        a[0] = half_of(r.d);
    }
};

template <> struct fmt<KRN_Q5_1> {
    enum { W = 32, NS = 1, ZERO = 0, MIN = 1 };
    struct raw {
        uint32_t n[4], h, dm;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)u * 24;
        r.dm = ld4<HOW>(p);
        r.h = ld4<HOW>(p + 4);
        for (int i = 0; i < 4; i++)
            r.n[i] = ld4<HOW>(p + 8 + 4 * i);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float b[1])
    {
        nibbles(r.n, q);
        for (int j = 0; j < 8; j++)
            q[j] |= spread_fifth(r.h >> 4 * j);
        a[0] = half_of(r.dm & 0xffff);
        b[0] = -half_of(r.dm >> 16);
    }
};

/* Four nibbles in four bytes to four of 16 values, which come four to a word. */
static __device__ __forceinline__ int look_up(uint32_t n, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3)
{
    uint32_t x = (n | n >> 4) & 0x00ff00ffu;
    x = (x | x >> 8) & 0xffffu;
    uint32_t lo = __byte_perm(t0, t1, x & 0x7777u), hi = __byte_perm(t2, t3, x & 0x7777u);
    return (int)__byte_perm(lo, hi, 0x3210u + ((x & 0x8888u) >> 1));
}

/* The values of IQ4_NL and IQ4_XS: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113. */
static __device__ __forceinline__ int iq4(uint32_t n)
{
    return look_up(n, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
}

template <> struct fmt<KRN_IQ4_NL> {
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    typedef fmt<KRN_Q4_0>::raw raw;
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t k, uint32_t u, raw &r)
    {
        fmt<KRN_Q4_0>::fetch<HOW>(row, k, u, r);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        nibbles(r.n, q);
        for (int j = 0; j < 8; j++)
            q[j] = iq4((uint32_t)q[j]);
        a[0] = half_of(r.d);
    }
};

template <> struct fmt<KRN_IQ4_XS> {
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    struct raw {
        uint32_t n[4], dh, s;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 136;
        r.dh = ld4<HOW>(p);
        r.s = ld4<HOW>(p + 4);
        for (int i = 0; i < 4; i++)
            r.n[i] = ld4<HOW>(p + 8 + 16 * (u % 8) + 4 * i);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[1], float *)
    {
        uint32_t g = u % 8;
        nibbles(r.n, q);
        for (int j = 0; j < 8; j++)
            q[j] = iq4((uint32_t)q[j]);
        int scale = (int)((r.s >> 4 * g & 15) | (r.dh >> 16 >> 2 * g & 3) << 4);
        a[0] = half_of(r.dh & 0xffff) * (float)(scale - 32);
    }
};

template <> struct fmt<KRN_Q2_K> {
    enum { W = 32, NS = 2, ZERO = 0, MIN = 1 };
    struct raw {
        uint32_t v[8], s, dm;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 84;
        for (int i = 0; i < 8; i++)
            r.v[i] = ld4<HOW>(p + 16 + 32 * (u % 8 / 4) + 4 * i);
        r.s = ld2<HOW>(p + 2 * (u % 8));
        r.dm = ld4<HOW>(p + 80);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[2], float b[2])
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)(r.v[i] >> 2 * (u % 4) & 0x03030303u);
        float d = half_of(r.dm & 0xffff), dmin = half_of(r.dm >> 16);
        for (int i = 0; i < 2; i++) {
            a[i] = d * (float)(r.s >> 8 * i & 15);
            b[i] = dmin * (float)(r.s >> (8 * i + 4) & 15);
        }
    }
};

template <> struct fmt<KRN_Q3_K> {
    enum { W = 32, NS = 2, ZERO = 4, MIN = 0 };
    struct raw {
        uint32_t v[8], h[8], low, high, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 110;
        uint32_t g = 2 * (u % 8); /* even: both groups' scales are neighbours */
        for (int i = 0; i < 8; i++) {
            r.v[i] = ld4of2<HOW>(p + 32 + 32 * (u % 8 / 4) + 4 * i);
            r.h[i] = ld4of2<HOW>(p + 4 * i);
        }
        r.low = ld2<HOW>(p + 96 + g % 8);
        r.high = ld2<HOW>(p + 104 + g % 4);
        r.d = ld2<HOW>(p + 108);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[2], float *)
    {
        uint32_t g = 2 * (u % 8);
        for (int i = 0; i < 8; i++)
            q[i] = (int)((r.v[i] >> 2 * (u % 4) & 0x03030303u) | (r.h[i] >> u % 8 & 0x01010101u) << 2);
        float d = half_of(r.d);
        for (int i = 0; i < 2; i++) {
            uint32_t low = r.low >> 8 * i & 255, high = r.high >> 8 * i & 255;
            low = g < 8 ? low & 15 : low >> 4;
            a[i] = d * (float)((int)(low | (high >> 2 * (g / 4) & 3) << 4) - 32);
        }
    }
};

/* ---- fewer than four bits, and MXFP4: general kernels alone compute with these, `compact` keeps their code short ---- */

static __device__ __forceinline__ uint32_t byte_of(uint32_t x, int i)
{
    return x >> 8 * i & 255;
}

/* Byte i of a row, which begins at an even address. */
template <load_how HOW> static __device__ __forceinline__ uint32_t ld1(const uint8_t *row, size_t i)
{
    return ld2<HOW>(row + (i & ~(size_t)1)) >> 8 * (i & 1) & 255;
}

/* Four magnitudes, negative where bits 0 to 3 say so. */
static __device__ __forceinline__ int with_signs(uint32_t m, uint32_t bits)
{
    const uint32_t negative = ((bits & 15) * 0x00204081u & 0x01010101u) * 255;
    return (int)__vsub4(m ^ negative, negative);
}

/* Eight of them. */
static __device__ __forceinline__ void eight(uint64_t m, uint32_t bits, int q[2])
{
    q[0] = with_signs((uint32_t)m, bits);
    q[1] = with_signs((uint32_t)(m >> 32), bits >> 4);
}

/* Seven stored signs; the eighth makes their number even. */
static __device__ __forceinline__ uint32_t even_signs(uint32_t seven)
{
    return seven | (uint32_t)(__popc(seven) & 1) << 7;
}

/* Eight weights of a ternary grid: 8 t - 1 or 8 t + 1, where the grid has t + 1. */
static __device__ __forceinline__ void ternary(uint32_t index, bool minus, int q[2])
{
    const uint64_t t = __ldg((const unsigned long long *)krn_grid_iq1 + index) * 8;
    const uint32_t off = minus ? 0x09090909u : 0x07070707u;
    q[0] = (int)__vsub4((uint32_t)t, off);
    q[1] = (int)__vsub4((uint32_t)(t >> 32), off);
}

static __device__ __forceinline__ uint64_t grid8(const uint64_t *grid, uint32_t i)
{
    return __ldg((const unsigned long long *)grid + i);
}
static __device__ __forceinline__ uint64_t grid4x2(const uint32_t *grid, uint32_t i, uint32_t j)
{
    return __ldg(grid + i) | (uint64_t)__ldg(grid + j) << 32;
}

template <> struct fmt<KRN_IQ2_XXS> { /* 66 bytes: d; per 32 four indices, a word of signs and scale */
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t i, s, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 66;
        r.d = ld2<HOW>(p);
        r.i = ld4of2<HOW>(p + 2 + 8 * (u % 8));
        r.s = ld4of2<HOW>(p + 6 + 8 * (u % 8));
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        for (int l = 0; l < 4; l++)
            eight(grid8(krn_grid_iq2_xxs, byte_of(r.i, l)), even_signs(r.s >> 7 * l & 127), q + 2 * l);
        a[0] = half_of(r.d) * (0.5f + (float)(r.s >> 28)) * 0.25f;
    }
};

template <> struct fmt<KRN_IQ2_XS> { /* 74 bytes: d, 32 words of index and signs, scales of 16 */
    enum { W = 32, NS = 2, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t v[2], s, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 74;
        r.d = ld2<HOW>(p);
        for (int i = 0; i < 2; i++)
            r.v[i] = ld4of2<HOW>(p + 2 + 8 * (u % 8) + 4 * i);
        r.s = ld1<HOW>(p, 66 + u % 8);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[2], float *)
    {
        for (int l = 0; l < 4; l++) {
            const uint32_t v = r.v[l / 2] >> 16 * (l % 2) & 0xffffu;
            eight(grid8(krn_grid_iq2_xs, v & 511), even_signs(v >> 9), q + 2 * l);
        }
        for (int i = 0; i < 2; i++)
            a[i] = half_of(r.d) * (0.5f + (float)(r.s >> 4 * i & 15)) * 0.25f;
    }
};

template <> struct fmt<KRN_IQ2_S> { /* 82 bytes: d, indices, signs, upper bits of indices, scales of 16 */
    enum { W = 32, NS = 2, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t i, signs, high, s, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 82;
        r.d = ld2<HOW>(p);
        r.i = ld4of2<HOW>(p + 2 + 4 * (u % 8));
        r.signs = ld4of2<HOW>(p + 34 + 4 * (u % 8));
        r.high = ld1<HOW>(p, 66 + u % 8);
        r.s = ld1<HOW>(p, 74 + u % 8);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[2], float *)
    {
        for (int l = 0; l < 4; l++)
            eight(grid8(krn_grid_iq2_s, byte_of(r.i, l) | (r.high >> 2 * l & 3) << 8), byte_of(r.signs, l), q + 2 * l);
        for (int i = 0; i < 2; i++)
            a[i] = half_of(r.d) * (0.5f + (float)(r.s >> 4 * i & 15)) * 0.25f;
    }
};

template <> struct fmt<KRN_IQ3_XXS> { /* 98 bytes: d, indices of four weights, words of signs and scale */
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t i[2], s, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 98;
        r.d = ld2<HOW>(p);
        for (int i = 0; i < 2; i++)
            r.i[i] = ld4of2<HOW>(p + 2 + 8 * (u % 8) + 4 * i);
        r.s = ld4of2<HOW>(p + 66 + 4 * (u % 8));
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        for (int l = 0; l < 4; l++) {
            const uint32_t two = r.i[l / 2] >> 16 * (l % 2);
            eight(grid4x2(krn_grid_iq3_xxs, two & 255, two >> 8 & 255), even_signs(r.s >> 7 * l & 127), q + 2 * l);
        }
        a[0] = half_of(r.d) * (0.5f + (float)(r.s >> 28)) * 0.5f;
    }
};

template <> struct fmt<KRN_IQ3_S> { /* 110 bytes: d, indices of four weights, their upper bits, signs, scales */
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t i[2], signs, high, s, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 110;
        r.d = ld2<HOW>(p);
        for (int i = 0; i < 2; i++)
            r.i[i] = ld4of2<HOW>(p + 2 + 8 * (u % 8) + 4 * i);
        r.high = ld1<HOW>(p, 66 + u % 8);
        r.signs = ld4of2<HOW>(p + 74 + 4 * (u % 8));
        r.s = ld1<HOW>(p, 106 + u % 8 / 2);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[1], float *)
    {
        for (int l = 0; l < 4; l++) {
            const uint32_t two = r.i[l / 2] >> 16 * (l % 2), high = r.high >> 2 * l;
            eight(grid4x2(krn_grid_iq3_s, (two & 255) | (high & 1) << 8, (two >> 8 & 255) | (high & 2) << 7), byte_of(r.signs, l), q + 2 * l);
        }
        a[0] = half_of(r.d) * (float)(1 + 2 * (r.s >> 4 * (u & 1) & 15));
    }
};

template <> struct fmt<KRN_IQ1_S> { /* 50 bytes: d, indices, words of their upper bits, scale and sign */
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t i, h, d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 50;
        r.d = ld2<HOW>(p);
        r.i = ld4of2<HOW>(p + 2 + 4 * (u % 8));
        r.h = ld2<HOW>(p + 34 + 2 * (u % 8));
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        for (int l = 0; l < 4; l++)
            ternary(byte_of(r.i, l) | (r.h >> 3 * l & 7) << 8, (r.h & 0x8000u) != 0, q + 2 * l);
        a[0] = half_of(r.d) * (float)(2 * (r.h >> 12 & 7) + 1) * 0.125f;
    }
};

template <> struct fmt<KRN_IQ1_M> { /* 56 bytes: indices, their upper bits with signs, scales of 16 with d in their upper bits */
    enum { W = 32, NS = 2, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t i, h, s[2];
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 56;
        r.i = ld4<HOW>(p + 4 * (u % 8));
        r.h = ld2<HOW>(p + 32 + 2 * (u % 8));
        for (int i = 0; i < 2; i++)
            r.s[i] = ld4<HOW>(p + 48 + 4 * i);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[2], float *)
    {
        const float d = half_of((r.s[0] >> 12 & 15) | (r.s[0] >> 24 & 0xf0) | (r.s[1] >> 4 & 0xf00) | (r.s[1] >> 16 & 0xf000));
        const uint32_t g = 2 * (u % 8), scales = r.s[g / 8] >> 16 * (g / 4 % 2);
        for (int l = 0; l < 4; l++)
            ternary(byte_of(r.i, l) | (r.h >> 4 * l & 7) << 8, (r.h >> 4 * l & 8) != 0, q + 2 * l);
        for (uint32_t i = 0; i < 2; i++)
            a[i] = d * (float)(2 * (scales >> 3 * ((g + i) % 4) & 7) + 1) * 0.125f;
    }
};

template <> struct fmt<KRN_TQ1_0> { /* 54 bytes: five digits a byte, 32, then 16, then (four digits) 4 bytes wide; d */
    enum { W = 32, NS = 1, ZERO = 1, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t v[8], d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 54, *from = p + (u % 8 < 5 ? 0 : 32);
        for (int i = 0; i < 8; i++)
            r.v[i] = i < 5 || u % 8 < 5 ? ld4of2<HOW>(from + 4 * i) : 0; /* beyond the first 32 bytes lie 16, 4 and d */
        r.d = ld2<HOW>(p + 52);
    }
    /* Digit n of the four bytes of x, each of them its value times 256 / 243. power: 3^n. */
    static __device__ __forceinline__ int digit(uint32_t x, uint32_t power)
    {
        uint32_t w = 0;
        for (int i = 0; i < 4; i++)
            w |= ((byte_of(x, i) * power & 255) * 3 >> 8) << 8 * i;
        return (int)w;
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[1], float *)
    {
        const uint32_t g = u % 8, first = g < 5 ? g : 2 * (g - 5); /* the digit of the first 16 weights */
        const uint32_t power = first == 0 ? 1 : first == 1 ? 3 : first == 2 ? 9 : first == 3 ? 27 : 81;
        for (int j = 0; j < 4; j++) {
            q[j] = digit(r.v[j], power);
            q[4 + j] = g < 5 ? digit(r.v[4 + j], power) : g < 7 ? digit(r.v[j], 3 * power) : digit(r.v[4], j == 0 ? 1 : j == 1 ? 3 : j == 2 ? 9 : 27);
        }
        a[0] = half_of(r.d);
    }
};

template <> struct fmt<KRN_TQ2_0> { /* 66 bytes: two bits a weight, d */
    enum { W = 32, NS = 1, ZERO = 1, MIN = 0 };
    typedef void compact;
    struct raw {
        uint32_t v[8], d;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        const uint8_t *p = row + (size_t)(u / 8) * 66;
        for (int i = 0; i < 8; i++)
            r.v[i] = ld4of2<HOW>(p + 32 * (u % 8 / 4) + 4 * i);
        r.d = ld2<HOW>(p + 64);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t u, int q[8], float a[1], float *)
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)(r.v[i] >> 2 * (u % 4) & 0x03030303u);
        a[0] = half_of(r.d);
    }
};

template <> struct fmt<KRN_MXFP4> { /* plane of nibbles, plane of exponents */
    enum { W = 32, NS = 1, ZERO = 0, MIN = 0 };
    typedef void compact;
    struct raw {
        uint4 n;
        uint32_t e;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t k, uint32_t u, raw &r)
    {
        r.n = ld16<HOW>(row + (size_t)u * 16);
        r.e = ld1<HOW>(row, k / 2 + u);
    }
    static __device__ __forceinline__ void unpack(const raw &r, uint32_t, int q[8], float a[1], float *)
    {
        const uint32_t n[4] = {r.n.x, r.n.y, r.n.z, r.n.w};
        nibbles(n, q);
        for (int j = 0; j < 8; j++) /* doubles of 0 .5 1 1.5 2 3 4 6 and their negatives */
            q[j] = look_up((uint32_t)q[j], 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
        a[0] = __uint_as_float(r.e < 2 ? 0x00200000u << r.e : (r.e - 1) << 23);
    }
};

/* Units that a lane keeps on their way. */
template <class F, class = void> struct in_flight {
    enum { N = F::W == 64 ? 2 : 4 };
};
template <class F> struct in_flight<F, typename F::compact> {
    enum { N = 1 };
};

/* Unquantised formats: eight values a unit. */
struct plain_f32 {
    enum { W = 8 };
    struct raw {
        uint4 v[2];
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        r.v[0] = ld16<HOW>(row + (size_t)u * 32);
        r.v[1] = ld16<HOW>(row + (size_t)u * 32 + 16);
    }
    static __device__ __forceinline__ void values(const raw &r, uint32_t, float w[8])
    {
        const uint32_t b[8] = {r.v[0].x, r.v[0].y, r.v[0].z, r.v[0].w, r.v[1].x, r.v[1].y, r.v[1].z, r.v[1].w};
        for (int i = 0; i < 8; i++)
            w[i] = __uint_as_float(b[i]);
    }
    static __device__ __forceinline__ float one(const uint8_t *row, uint32_t i)
    {
        return ((const float *)row)[i];
    }
};

template <bool BF16> struct plain_16 {
    enum { W = 8 };
    struct raw {
        uint4 v;
    };
    template <load_how HOW = LATE> static __device__ __forceinline__ void fetch(const uint8_t *row, uint32_t, uint32_t u, raw &r)
    {
        r.v = ld16<HOW>(row + (size_t)u * 16);
    }
    static __device__ __forceinline__ void values(const raw &r, uint32_t, float w[8])
    {
        const uint32_t b[4] = {r.v.x, r.v.y, r.v.z, r.v.w};
        for (int i = 0; i < 4; i++) {
            w[2 * i] = BF16 ? __uint_as_float(b[i] << 16) : half_of(b[i] & 0xffff);
            w[2 * i + 1] = BF16 ? __uint_as_float(b[i] & 0xffff0000u) : half_of(b[i] >> 16);
        }
    }
    static __device__ __forceinline__ float one(const uint8_t *row, uint32_t i)
    {
        const uint32_t b = ((const uint16_t *)row)[i];
        return BF16 ? __uint_as_float(b << 16) : half_of(b);
    }
};

/* A quantised format as values. The products are rounded before the difference, as krn_dequant_row does. */
template <int T> struct as_values : fmt<T> {
    typedef fmt<T> F;
    static __device__ __forceinline__ void values(const typename F::raw &r, uint32_t u, float w[F::W])
    {
        int q[F::W / 4];
        float a[F::NS], b[F::NS];
        F::unpack(r, u, q, a, b);
#pragma unroll
        for (int i = 0; i < F::W; i++) {
            int c = (int)(int8_t)(q[i / 4] >> 8 * (i % 4));
            w[i] = F::MIN ? __fsub_rn(__fmul_rn(a[i / (F::W / F::NS)], (float)c), b[i / (F::W / F::NS)])
                          : a[i / (F::W / F::NS)] * (float)(c - F::ZERO);
        }
    }
};

/* Rows of k weights need not be whole units where a unit is not a block. */
template <class V> static __device__ __forceinline__ float tail_value(const uint8_t *, uint32_t)
{
    return 0;
}
template <> __device__ __forceinline__ float tail_value<plain_f32>(const uint8_t *row, uint32_t i)
{
    return plain_f32::one(row, i);
}
template <> __device__ __forceinline__ float tail_value<plain_16<false>>(const uint8_t *row, uint32_t i)
{
    return plain_16<false>::one(row, i);
}
template <> __device__ __forceinline__ float tail_value<plain_16<true>>(const uint8_t *row, uint32_t i)
{
    return plain_16<true>::one(row, i);
}

/* X(type) of all quantised types; of the compact ones. */
#define KCU_EACH_COMPACT(X)                                                                                                                \
    X(KRN_IQ2_XXS)                                                                                                                         \
    X(KRN_IQ2_XS) X(KRN_IQ2_S) X(KRN_IQ3_XXS) X(KRN_IQ3_S) X(KRN_IQ1_S) X(KRN_IQ1_M) X(KRN_TQ1_0) X(KRN_TQ2_0) X(KRN_MXFP4)
#define KCU_EACH_QUANT(X)                                                                                                                  \
    X(KRN_Q8_0)                                                                                                                            \
    X(KRN_Q4_K) X(KRN_Q5_K) X(KRN_Q6_K) X(KRN_Q4_0) X(KRN_Q4_1) X(KRN_Q5_0) X(KRN_Q5_1) X(KRN_IQ4_NL) X(KRN_IQ4_XS) X(KRN_Q2_K)            \
    X(KRN_Q3_K) KCU_EACH_COMPACT(X)

static __host__ __device__ inline bool is_quant(uint32_t type)
{
    return type != KRN_F32 && type != KRN_F16 && type != KRN_BF16;
}

static __host__ __device__ inline bool is_compact(uint32_t type)
{
#define X(T) || type == T
    return false KCU_EACH_COMPACT(X);
#undef X
}

/* Weights per unit of a type. */
static __host__ __device__ inline uint32_t unit_of(uint32_t type)
{
    return !is_quant(type) ? 8 : type == KRN_Q4_K || type == KRN_Q5_K ? 64 : 32;
}

#endif
