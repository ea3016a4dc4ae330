/* What a patch in CUDA C takes weights apart with; patch_cuda.h includes it. Rows lie as the engine keeps them on a GPU: as in the file, but for Q8_0 and
 * Q6_K, whose blocks are taken apart into planes. Rows begin at multiples of 16 bytes. */
#ifndef RANKSCOPE_ENGINE_PATCH_VALUES_CUH
#define RANKSCOPE_ENGINE_PATCH_VALUES_CUH

static __device__ inline float rankscope_f16(unsigned bits)
{
    float x;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(bits));
    return x;
}

static __device__ inline float rankscope_bf16(unsigned bits)
{
    return __uint_as_float(bits << 16);
}

static __device__ inline unsigned rankscope_u16(const unsigned char *p)
{
    return *(const unsigned short *)p;
}

/* 16 bytes at p (two at a time: blocks are even, no more): low nibbles to v[0 .. 15], high ones to v[16 .. 31]. */
static __device__ inline void rankscope_nibbles(const unsigned char *p, float v[32])
{
    for (unsigned i = 0; i < 16; i += 2) {
        const unsigned two = rankscope_u16(p + i);
        v[i] = (float)(two & 15);
        v[i + 1] = (float)(two >> 8 & 15);
        v[16 + i] = (float)(two >> 4 & 15);
        v[17 + i] = (float)(two >> 12);
    }
}

/* Blocks of 32: d, perhaps m, perhaps fifth bits, codes. weight = d * (code - zero) + m */
static __device__ inline void rankscope_block32(const unsigned char *p, bool has_m, bool fifth, float zero, float v[32])
{
    const unsigned char *bits = p + (has_m ? 4 : 2);
    const float d = rankscope_f16(rankscope_u16(p)), m = has_m ? rankscope_f16(rankscope_u16(p + 2)) : 0;
    const unsigned high = fifth ? rankscope_u16(bits) | rankscope_u16(bits + 2) << 16 : 0;
    rankscope_nibbles(bits + (fifth ? 4 : 0), v);
    for (unsigned i = 0; i < 32; i++)
        v[i] = d * (v[i] + (float)((high >> i & 1) * 16) - zero) + m;
}

/* The values of IQ4_NL and IQ4_XS. */
static __device__ inline void rankscope_iq4(const unsigned char *p, float d, float v[32])
{
    const signed char table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    rankscope_nibbles(p, v);
    for (unsigned i = 0; i < 32; i++)
        v[i] = d * (float)table[(int)v[i]];
}

static __device__ inline void rankscope_iq4_xs(const unsigned char *block, unsigned g, float v[32])
{
    const unsigned scale = (block[4 + g / 2] >> g % 2 * 4 & 15) | (rankscope_u16(block + 2) >> 2 * g & 3) << 4;
    rankscope_iq4(block + 8 + 16 * g, rankscope_f16(rankscope_u16(block)) * ((float)scale - 32), v);
}

/* Q8_0 here: a plane of k codes, then one of scales. */
static __device__ inline void rankscope_q8_0(const unsigned char *row, unsigned k, unsigned u, float v[32])
{
    const float d = rankscope_f16(rankscope_u16(row + k + 2 * u));
    const int4 *q = (const int4 *)(row + 32 * u);
    for (unsigned i = 0; i < 2; i++) {
        const int w[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
        for (unsigned j = 0; j < 16; j++)
            v[16 * i + j] = d * (float)(signed char)(w[j / 4] >> 8 * (j % 4));
    }
}

/* ---- blocks of 256, of which g is the group of 32 ---- */

static __device__ inline void rankscope_q2_k(const unsigned char *block, unsigned g, float v[32])
{
    const float d = rankscope_f16(rankscope_u16(block + 80)), dmin = rankscope_f16(rankscope_u16(block + 82));
    for (unsigned i = 0; i < 32; i++) {
        const unsigned s = block[2 * g + i / 16];
        v[i] = d * (float)(s & 15) * (float)(block[16 + g / 4 * 32 + i] >> 2 * (g % 4) & 3) - dmin * (float)(s >> 4);
    }
}

static __device__ inline void rankscope_q3_k(const unsigned char *block, unsigned g, float v[32])
{
    const float d = rankscope_f16(rankscope_u16(block + 108));
    for (unsigned i = 0; i < 32; i++) {
        const unsigned s = 2 * g + i / 16, low = block[96 + s % 8] >> s / 8 * 4 & 15, scale = low | (block[104 + s % 4] >> 2 * (s / 4) & 3) << 4;
        const unsigned code = (block[32 + g / 4 * 32 + i] >> 2 * (g % 4) & 3) | (block[i] >> g & 1) << 2;
        v[i] = d * ((float)scale - 32) * ((float)code - 4);
    }
}

/* Q4_K: d and dmin, 12 bytes of scales and minima, 128 of codes. Q5_K: the same with 32 bytes of fifth bits before the codes. */
static __device__ inline void rankscope_q45_k(const unsigned char *block, bool fifth, unsigned g, float v[32])
{
    const unsigned char *s = block + 4;
    const unsigned a = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | (s[g - 4] >> 6) << 4, b = g < 4 ? s[g + 4] & 63u : s[g + 4] >> 4 | (s[g] >> 6) << 4;
    const float scale = rankscope_f16(rankscope_u16(block)) * (float)a, min = rankscope_f16(rankscope_u16(block + 2)) * (float)b;
    const uint4 *q = (const uint4 *)(block + (fifth ? 48 : 16) + g / 2 * 32), *h = (const uint4 *)(block + 16);
    for (unsigned i = 0; i < 2; i++) {
        const unsigned w[4] = {q[i].x, q[i].y, q[i].z, q[i].w}, f[4] = {h[i].x, h[i].y, h[i].z, h[i].w};
        for (unsigned j = 0; j < 16; j++) {
            const unsigned high = fifth ? (f[j / 4] >> (8 * (j % 4) + g) & 1) * 16 : 0;
            v[16 * i + j] = scale * (float)((w[j / 4] >> (8 * (j % 4) + g % 2 * 4) & 15) + high) - min;
        }
    }
}

/* Q6_K here: planes of four bits, of two more, of scales, of d. */
static __device__ inline void rankscope_q6_k(const unsigned char *row, unsigned k, unsigned u, float v[32])
{
    const uint4 n = *(const uint4 *)(row + 16 * u);
    const uint2 h = *(const uint2 *)(row + k / 2 + 8 * u);
    const signed char *s = (const signed char *)row + k / 2 + k / 4 + 2 * u;
    const float d = rankscope_f16(rankscope_u16(row + k / 2 + k / 4 + k / 16 + 2 * (u / 8)));
    const unsigned w[4] = {n.x, n.y, n.z, n.w};
    for (unsigned i = 0; i < 32; i++) {
        const unsigned low = w[i % 16 / 4] >> (8 * (i % 4) + i / 16 * 4) & 15, two = (i / 4 % 2 ? h.y : h.x) >> (8 * (i % 4) + 2 * (i / 8)) & 3;
        v[i] = d * (float)s[i / 16] * ((float)(low | two << 4) - 32);
    }
}

/* Values [32 u, 32 u + 32) of a row that is not quantised; zeros past its end. */
static __device__ inline void rankscope_plain(const unsigned char *row, unsigned type, unsigned k, unsigned u, float v[32])
{
    for (unsigned i = 0; i < 32; i++) {
        const unsigned at = 32 * u + i;
        if (type == 0)
            v[i] = at < k ? ((const float *)row)[at] : 0;
        else
            v[i] = at >= k ? 0 : type == 1 ? rankscope_f16(((const unsigned short *)row)[at]) : rankscope_bf16(((const unsigned short *)row)[at]);
    }
}

/* Weights [at, at + 32) of a row, at a multiple of 32; zeros past its end. NaN for a type that is not here. */
static __device__ inline void rankscope_values(const rankscope_cuda_matrix &m, unsigned mat, unsigned row, unsigned at, float v[32])
{
    const unsigned char *p = m.data + mat * m.mat_stride + row * m.stride;
    const unsigned u = at / 32, g = u % 8, block = u / 8;
    switch (m.type) {
    case 0:
    case 1:
    case 30: rankscope_plain(p, m.type, m.k, u, v); return;
    case 2: rankscope_block32(p + 18 * u, false, false, 8, v); return;
    case 3: rankscope_block32(p + 20 * u, true, false, 0, v); return;
    case 6: rankscope_block32(p + 22 * u, false, true, 16, v); return;
    case 7: rankscope_block32(p + 24 * u, true, true, 0, v); return;
    case 8: rankscope_q8_0(p, m.k, u, v); return;
    case 10: rankscope_q2_k(p + 84 * block, g, v); return;
    case 11: rankscope_q3_k(p + 110 * block, g, v); return;
    case 12: rankscope_q45_k(p + 144 * block, false, g, v); return;
    case 13: rankscope_q45_k(p + 176 * block, true, g, v); return;
    case 14: rankscope_q6_k(p, m.k, u, v); return;
    case 20: rankscope_iq4(p + 18 * u + 2, rankscope_f16(rankscope_u16(p + 18 * u)), v); return;
    case 23: rankscope_iq4_xs(p + 136 * block, g, v); return;
    default:
        for (unsigned i = 0; i < 32; i++)
            v[i] = __uint_as_float(0x7fc00000u);
    }
}

/* The product of 32 weights and n values. */
static __device__ inline float rankscope_dot32(const float v[32], const float *x, unsigned n)
{
    float sum = 0;
    if (n < 32 || (unsigned long long)x % 16 != 0) {
        for (unsigned i = 0; i < 32; i++)
            sum += i < n ? v[i] * x[i] : 0;
        return sum;
    }
    for (unsigned i = 0; i < 8; i++) {
        const float4 a = ((const float4 *)x)[i];
        sum += v[4 * i] * a.x + v[4 * i + 1] * a.y + v[4 * i + 2] * a.z + v[4 * i + 3] * a.w;
    }
    return sum;
}

/* The product of a row of weights and x, by a warp: all 32 lanes call and get it. */
static __device__ inline float rankscope_dot(const rankscope_cuda_matrix &m, unsigned mat, unsigned row, const float *x)
{
    float v[32], sum = 0;
    for (unsigned at = threadIdx.x % 32 * 32; at < m.k; at += 1024) {
        rankscope_values(m, mat, row, at, v);
        sum += rankscope_dot32(v, x + at, m.k - at);
    }
    for (unsigned lane = 16; lane > 0; lane /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    return sum;
}

#endif
