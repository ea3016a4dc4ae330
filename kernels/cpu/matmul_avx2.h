/* Vectors of 8 rows, half a panel: AVX2 under the names that matmul_simd*.h use. Only matmul_avx2.c includes this. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_AVX2_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/matmul_impl.h"

#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(n) PRAGMA(GCC unroll n)

typedef __m256i vint; /* LANES words, or their bytes */
typedef __m256 vflt;
enum { LANES = 8 };

INLINE vint v_load(const void *p) { return _mm256_load_si256(p); }
INLINE void v_store(void *p, vint v) { _mm256_store_si256(p, v); }
INLINE vint v_bytes(int value) { return _mm256_set1_epi8((char)value); }
INLINE vint v_words(int32_t value) { return _mm256_set1_epi32(value); }
INLINE vint v_zero(void) { return _mm256_setzero_si256(); }
INLINE vint v_and(vint a, vint b) { return _mm256_and_si256(a, b); }
INLINE vint v_or(vint a, vint b) { return _mm256_or_si256(a, b); }
INLINE vint v_add32(vint a, vint b) { return _mm256_add_epi32(a, b); }
INLINE vint v_sub32(vint a, vint b) { return _mm256_sub_epi32(a, b); }
INLINE vint v_sub8(vint a, vint b) { return _mm256_sub_epi8(a, b); }
INLINE vint v_sll16(vint a, unsigned n) { return _mm256_slli_epi16(a, (int)n); }
INLINE vint v_srl16(vint a, unsigned n) { return _mm256_srli_epi16(a, (int)n); }
INLINE vint v_sll32(vint a, unsigned n) { return _mm256_slli_epi32(a, (int)n); }
INLINE vint v_srl32(vint a, unsigned n) { return _mm256_srli_epi32(a, (int)n); }
INLINE vint v_sra32(vint a, unsigned n) { return _mm256_srai_epi32(a, (int)n); }
/* (a & mask) | b */
INLINE vint v_and_or(vint a, vint mask, vint b) { return v_or(v_and(a, mask), b); }
/* In each 16 bytes, the bytes of table at the places idx. */
INLINE vint v_lookup(vint table, vint idx) { return _mm256_shuffle_epi8(table, idx); }
INLINE vint v_table(const uint8_t t[16]) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t)); }
INLINE vflt v_float(vint v) { return _mm256_cvtepi32_ps(v); }
INLINE vflt v_as_float(vint v) { return _mm256_castsi256_ps(v); }

INLINE vflt f_load(const float *p) { return _mm256_load_ps(p); }
INLINE vflt f_loadu(const float *p) { return _mm256_loadu_ps(p); }
INLINE void f_store(float *p, vflt v) { _mm256_store_ps(p, v); }
INLINE void f_storeu(float *p, vflt v) { _mm256_storeu_ps(p, v); }
INLINE vflt f_all(float x) { return _mm256_set1_ps(x); }
INLINE vflt f_add(vflt a, vflt b) { return _mm256_add_ps(a, b); }
INLINE vflt f_sub(vflt a, vflt b) { return _mm256_sub_ps(a, b); }
INLINE vflt f_mul(vflt a, vflt b) { return _mm256_mul_ps(a, b); }
INLINE vflt f_fma(vflt a, vflt b, vflt c) { return _mm256_fmadd_ps(a, b, c); }
/* c - a * b, rounded once */
INLINE vflt f_fnma(vflt a, vflt b, vflt c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vflt f_negative(vflt a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

/* LANES halves in memory. */
INLINE vflt f_halves(const uint16_t *h) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h)); }
/* The half in the 16 bits from `shift` on of each word. */
INLINE vflt f_half_of(vint v, unsigned shift)
{
    vint low = v_and(v_srl32(v, shift), v_words(0xFFFF));
    vint packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

/* Bytes `value` where the byte of bits has the one bit that the same byte of mask has. */
INLINE vint v_where(vint bits, vint mask, int value) { return v_and(_mm256_cmpeq_epi8(v_and(bits, mask), mask), v_bytes(value)); }
/* Byte n of each word, n constant, in all four of its bytes. */
INLINE vint v_spread(vint v, int n)
{
    const vint words = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(words, v_bytes(n)));
}

/* ---- codes ---- */

/* Codes of Q8_0 and of the IQ4 formats stay signed: an 8-bit code plus 128 would overflow the 16-bit sums of pairs. */
INLINE vint v_code_of_int8(vint v) { return v; }
enum { SIGNED_BIAS = 0 };

/* 16-bit sums of pairs of products. Unsigned codes have at most 6 bits; 8-bit codes are signed, and lend their sign to the activations. */
INLINE vint v_pairs(vint code, vint x, const unsigned code_bits)
{
    if (code_bits == 8)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
    return _mm256_maddubs_epi16(code, x);
}

/* How many results of v_pairs fit into 16 bits: 2 * 127 * (2^bits - 1) each, 2 * 127 * 128 with 8 bits. */
INLINE int v_pairs_run(const unsigned code_bits)
{
    return code_bits == 8 ? 1 : code_bits == 6 ? 2 : 4;
}

INLINE vint v_add16(vint a, vint b) { return _mm256_add_epi16(a, b); }
INLINE vint v_widen(vint pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* Words: sums of 16 codes (4 to a vector, in t[0..3]) times 16 activations, without any zero point. */
INLINE vint v_dot16(const vint t[4], const int8_t *x, const unsigned code_bits)
{
    vint p[4];
    UNROLL(4) for (int i = 0; i < 4; i++) {
        int32_t word;
        memcpy(&word, x + 4 * i, sizeof word);
        p[i] = v_pairs(t[i], v_words(word), code_bits);
    }
    if (v_pairs_run(code_bits) == 4)
        return v_widen(v_add16(v_add16(p[0], p[1]), v_add16(p[2], p[3])));
    if (v_pairs_run(code_bits) == 2)
        return v_add32(v_widen(v_add16(p[0], p[1])), v_widen(v_add16(p[2], p[3])));
    return v_add32(v_add32(v_widen(p[0]), v_widen(p[1])), v_add32(v_widen(p[2]), v_widen(p[3])));
}

/* ---- turning ---- */

INLINE vint two_rows(const uint8_t *p, const uint8_t *q)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)), _mm_loadu_si128((const __m128i *)q), 1);
}

/* 16 bytes of LANES rows: t[i] has word i of row r in its word r. */
INLINE void turn16(struct krn_rows rows, size_t at, vint t[4])
{
    const uint8_t *p = rows.w + at;
    vint r[4];
    UNROLL(4) for (size_t i = 0; i < 4; i++)
        r[i] = two_rows(p + i * rows.stride, p + (i + 4) * rows.stride);
    vint u0 = _mm256_unpacklo_epi32(r[0], r[1]), u1 = _mm256_unpackhi_epi32(r[0], r[1]);
    vint u2 = _mm256_unpacklo_epi32(r[2], r[3]), u3 = _mm256_unpackhi_epi32(r[2], r[3]);
    t[0] = _mm256_unpacklo_epi64(u0, u2);
    t[1] = _mm256_unpackhi_epi64(u0, u2);
    t[2] = _mm256_unpacklo_epi64(u1, u3);
    t[3] = _mm256_unpackhi_epi64(u1, u3);
}

/* 32 bytes of LANES rows: t[0..7]. */
INLINE void turn32(struct krn_rows rows, size_t at, vint t[8])
{
    turn16(rows, at, t);
    turn16(rows, at + 16, t + 4);
}

/* ---- activations ---- */

/* Bits of the largest magnitude of 32 floats. As integers, magnitudes order as floats do, and a NaN is larger than everything. */
INLINE uint32_t q8_magnitude(const float *x)
{
    vint max = v_zero();
    UNROLL(4) for (int i = 0; i < 4; i++)
        max = _mm256_max_epu32(max, v_and(_mm256_loadu_si256((const __m256i *)(x + 8 * i)), v_words(0x7fffffff)));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

INLINE int32_t v_total(vint v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* 32 floats times `inverse`, rounded to nearest even; the sum of all and of the first 16. */
INLINE void q8_round(const float *x, float inverse, int8_t *q, int32_t *sum_low, int32_t *sum)
{
    vint v[4];
    UNROLL(4) for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(f_mul(f_loadu(x + 8 * i), f_all(inverse)));
    vint bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    v_store(q, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    *sum_low = v_total(v_add32(v[0], v[1]));
    *sum = *sum_low + v_total(v_add32(v[2], v[3]));
}

#endif
