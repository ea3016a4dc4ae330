/* Vectors of 16 rows: AVX-512 VNNI under the names that matmul_simd*.h use. Only matmul_avx512.c includes this. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_AVX512_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/matmul_impl.h"

#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(n) PRAGMA(GCC unroll n)

typedef __m512i vint; /* LANES words, or their bytes */
typedef __m512 vflt;
enum { LANES = 16 };

INLINE vint v_load(const void *p) { return _mm512_load_si512(p); }
INLINE void v_store(void *p, vint v) { _mm512_store_si512(p, v); }
INLINE vint v_bytes(int value) { return _mm512_set1_epi8((char)value); }
INLINE vint v_words(int32_t value) { return _mm512_set1_epi32(value); }
INLINE vint v_zero(void) { return _mm512_setzero_si512(); }
INLINE vint v_and(vint a, vint b) { return _mm512_and_si512(a, b); }
INLINE vint v_or(vint a, vint b) { return _mm512_or_si512(a, b); }
INLINE vint v_add32(vint a, vint b) { return _mm512_add_epi32(a, b); }
INLINE vint v_sub32(vint a, vint b) { return _mm512_sub_epi32(a, b); }
INLINE vint v_sub8(vint a, vint b) { return _mm512_sub_epi8(a, b); }
INLINE vint v_sll16(vint a, unsigned n) { return _mm512_slli_epi16(a, n); }
INLINE vint v_srl16(vint a, unsigned n) { return _mm512_srli_epi16(a, n); }
INLINE vint v_sll32(vint a, unsigned n) { return _mm512_slli_epi32(a, n); }
INLINE vint v_srl32(vint a, unsigned n) { return _mm512_srli_epi32(a, n); }
INLINE vint v_sra32(vint a, unsigned n) { return _mm512_srai_epi32(a, n); }
/* (a & mask) | b */
INLINE vint v_and_or(vint a, vint mask, vint b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xEA); }
/* In each 16 bytes, the bytes of table at the places idx. */
INLINE vint v_lookup(vint table, vint idx) { return _mm512_shuffle_epi8(table, idx); }
INLINE vint v_table(const uint8_t t[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t)); }
INLINE vflt v_float(vint v) { return _mm512_cvtepi32_ps(v); }
INLINE vflt v_as_float(vint v) { return _mm512_castsi512_ps(v); }

INLINE vflt f_load(const float *p) { return _mm512_load_ps(p); }
INLINE vflt f_loadu(const float *p) { return _mm512_loadu_ps(p); }
INLINE void f_store(float *p, vflt v) { _mm512_store_ps(p, v); }
INLINE void f_storeu(float *p, vflt v) { _mm512_storeu_ps(p, v); }
INLINE vflt f_all(float x) { return _mm512_set1_ps(x); }
INLINE vflt f_add(vflt a, vflt b) { return _mm512_add_ps(a, b); }
INLINE vflt f_sub(vflt a, vflt b) { return _mm512_sub_ps(a, b); }
INLINE vflt f_mul(vflt a, vflt b) { return _mm512_mul_ps(a, b); }
INLINE vflt f_fma(vflt a, vflt b, vflt c) { return _mm512_fmadd_ps(a, b, c); }
/* c - a * b, rounded once */
INLINE vflt f_fnma(vflt a, vflt b, vflt c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE vflt f_negative(vflt a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }

/* LANES halves in memory. */
INLINE vflt f_halves(const uint16_t *h) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)h)); }
/* The half in the 16 bits from `shift` on of each word. */
INLINE vflt f_half_of(vint v, unsigned shift) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, shift))); }

/* Bytes `value` where the byte of bits has a bit of the same byte of mask. */
INLINE vint v_where(vint bits, vint mask, int value) { return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(bits, mask), v_bytes(value)); }
/* Byte n of each word, n constant, in all four of its bytes. */
INLINE vint v_spread(vint v, int n)
{
    return _mm512_shuffle_epi8(v, _mm512_add_epi8(_mm512_set4_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0), v_bytes(n)));
}

/* ---- codes ---- */

/* Codes of Q8_0 and of the IQ4 formats are signed in the file; here they are taken with 128 added, for VNNI multiplies unsigned by signed. */
INLINE vint v_code_of_int8(vint v) { return _mm512_xor_si512(v, v_bytes(0x80)); }
enum { SIGNED_BIAS = 128 };

/* Words: sums of 16 codes (4 to a vector, in t[0..3]) times 16 activations, without any zero point. */
INLINE vint v_dot16(const vint t[4], const int8_t *x, const unsigned code_bits)
{
    (void)code_bits;
    vint dot = v_zero();
    UNROLL(4) for (int i = 0; i < 4; i++) {
        int32_t word;
        memcpy(&word, x + 4 * i, sizeof word);
        dot = _mm512_dpbusd_epi32(dot, t[i], v_words(word));
    }
    return dot;
}

/* ---- turning ---- */

INLINE __m128i load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* 16 bytes each of rows i, i + 4, i + 8, i + 12. */
INLINE vint lanes4(const uint8_t *p, size_t stride)
{
    vint v = _mm512_castsi128_si512(load16(p));
    v = _mm512_inserti32x4(v, load16(p + 4 * stride), 1);
    v = _mm512_inserti32x4(v, load16(p + 8 * stride), 2);
    return _mm512_inserti32x4(v, load16(p + 12 * stride), 3);
}

/* Within each 128-bit lane, a 4 x 4 matrix of words: rows r[0..3] to columns t[0..3]. */
INLINE void turn4(const vint r[4], vint t[4])
{
    vint u0 = _mm512_unpacklo_epi32(r[0], r[1]), u1 = _mm512_unpackhi_epi32(r[0], r[1]);
    vint u2 = _mm512_unpacklo_epi32(r[2], r[3]), u3 = _mm512_unpackhi_epi32(r[2], r[3]);
    t[0] = _mm512_unpacklo_epi64(u0, u2);
    t[1] = _mm512_unpackhi_epi64(u0, u2);
    t[2] = _mm512_unpacklo_epi64(u1, u3);
    t[3] = _mm512_unpackhi_epi64(u1, u3);
}

/* 16 bytes of LANES rows: t[i] has word i of row r in its word r. */
INLINE void turn16(struct krn_rows rows, size_t at, vint t[4])
{
    const uint8_t *p = rows.w + at;
    vint r[4];
    UNROLL(4) for (size_t i = 0; i < 4; i++)
        r[i] = lanes4(p + i * rows.stride, rows.stride);
    turn4(r, t);
}

/* 32 bytes of LANES rows: t[0..7]. */
INLINE void turn32(struct krn_rows rows, size_t at, vint t[8])
{
    const uint8_t *p = rows.w + at;
    vint low[4], high[4];
    UNROLL(4) for (size_t i = 0; i < 4; i++) {
        const uint8_t *q = p + i * rows.stride;
        vint a = _mm512_inserti64x4(_mm512_castsi256_si512(load32(q)), load32(q + 4 * rows.stride), 1);
        vint b = _mm512_inserti64x4(_mm512_castsi256_si512(load32(q + 8 * rows.stride)), load32(q + 12 * rows.stride), 1);
        low[i] = _mm512_shuffle_i64x2(a, b, 0x88);
        high[i] = _mm512_shuffle_i64x2(a, b, 0xDD);
    }
    turn4(low, t);
    turn4(high, t + 4);
}

/* ---- activations ---- */

/* Bits of the largest magnitude of 32 floats. As integers, magnitudes order as floats do, and a NaN is larger than everything. */
INLINE uint32_t q8_magnitude(const float *x)
{
    vint a = v_and(_mm512_loadu_si512(x), v_words(0x7fffffff)), b = v_and(_mm512_loadu_si512(x + 16), v_words(0x7fffffff));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

/* 32 floats times `inverse`, rounded to nearest even; the sum of all and of the first 16. */
INLINE void q8_round(const float *x, float inverse, int8_t *q, int32_t *sum_low, int32_t *sum)
{
    vint a = _mm512_cvtps_epi32(f_mul(f_loadu(x), f_all(inverse))), b = _mm512_cvtps_epi32(f_mul(f_loadu(x + 16), f_all(inverse)));
    _mm_store_si128((__m128i *)q, _mm512_cvtepi32_epi8(a));
    _mm_store_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(b));
    *sum_low = _mm512_reduce_add_epi32(a);
    *sum = *sum_low + _mm512_reduce_add_epi32(b);
}

INLINE vint q8_merge(vint a, vint b, const bool maximum)
{
    return maximum ? _mm512_max_epu32(a, b) : _mm512_add_epi32(a, b);
}

/* The maximum, or sum, of the 16 words of each of four vectors: word i is that of v[i]. */
INLINE __m128i q8_across(const vint v[4], const bool maximum)
{
    vint a = q8_merge(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]), maximum);
    vint b = q8_merge(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]), maximum);
    vint c = q8_merge(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), maximum);
    c = q8_merge(c, _mm512_shuffle_i64x2(c, c, 0x4E), maximum);
    return _mm512_castsi512_si128(q8_merge(c, _mm512_shuffle_i64x2(c, c, 0xB1), maximum));
}

/* Four blocks of activations together, which shares the divisions and most of the horizontal work. False, and nothing done, if one of them
 * is odd. */
INLINE bool q8_four(const float *x, int8_t *q, struct krn_q8_block *blocks)
{
    vint max[4], low[4], high[4];
    UNROLL(4) for (int i = 0; i < 4; i++) {
        vint a = v_and(_mm512_loadu_si512(x + 32 * i), v_words(0x7fffffff)), b = v_and(_mm512_loadu_si512(x + 32 * i + 16), v_words(0x7fffffff));
        max[i] = _mm512_max_epu32(a, b);
    }
    __m128i amax_bits = q8_across(max, true);
    if (_mm_cmp_epu32_mask(amax_bits, _mm_set1_epi32((int32_t)KRN_Q8_INFINITE), _MM_CMPINT_NLT) != 0 ||
        _mm_cmp_epu32_mask(amax_bits, _mm_set1_epi32((int32_t)KRN_Q8_TINY), _MM_CMPINT_LT) != 0)
        return false;
    __m128 amax = _mm_castsi128_ps(amax_bits), d = _mm_div_ps(amax, _mm_set1_ps(127.0f));
    vflt inverse = _mm512_broadcast_f32x4(_mm_div_ps(_mm_set1_ps(127.0f), amax));
    UNROLL(4) for (int i = 0; i < 4; i++) {
        vflt scale = _mm512_permutexvar_ps(v_words(i), inverse);
        low[i] = _mm512_cvtps_epi32(f_mul(f_loadu(x + 32 * i), scale));
        high[i] = _mm512_cvtps_epi32(f_mul(f_loadu(x + 32 * i + 16), scale));
        _mm_store_si128((__m128i *)(q + 32 * i), _mm512_cvtepi32_epi8(low[i]));
        _mm_store_si128((__m128i *)(q + 32 * i + 16), _mm512_cvtepi32_epi8(high[i]));
    }
    __m128i sum_low = q8_across(low, false), sum = _mm_add_epi32(sum_low, q8_across(high, false));
    __m128 rows[4] = {d, _mm_mul_ps(d, _mm_cvtepi32_ps(sum)), _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), sum)),
                      _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), sum_low))};
    _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
    UNROLL(4) for (int i = 0; i < 4; i++)
        _mm_storeu_ps((float *)&blocks[i], rows[i]); /* the four fields, in order */
    return true;
}

#endif
