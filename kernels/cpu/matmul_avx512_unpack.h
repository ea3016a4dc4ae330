/* AVX-512: 16 rows of any quantised format, turned so that a vector holds the same four codes of each row. Only matmul_avx512.c includes this.
 *
 * One function per format, always inlined, does the work for both users: with `pack` the codes go to a panel in memory, else they are multiplied
 * on the spot with one column and the integer sums of each 16 codes go to `dots`. Scales and minima go to a and b in either case. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_AVX512_UNPACK_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_AVX512_UNPACK_H

#include <immintrin.h>

#include "kernels/cpu/matmul_impl.h"

#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(n) PRAGMA(GCC unroll n)

struct sink {
    struct krn_panel *p; /* with pack: codes, a and b; else: a and b */
    const int8_t *x;     /* without pack: the chunk's activations */
    __m512i *dots;       /* without pack: sums of 16 codes each */
};

/* 16 codes of 16 rows, as 4 vectors; slot counts 16-code units of the chunk. */
INLINE void emit(const struct sink *s, const bool pack, int slot, const __m512i t[4])
{
    if (pack) {
        UNROLL(4) for (int i = 0; i < 4; i++)
            _mm512_store_si512(s->p->q[4 * slot + i], t[i]);
        return;
    }
    __m512i dot = _mm512_setzero_si512();
    UNROLL(4) for (int i = 0; i < 4; i++) {
        int32_t x;
        memcpy(&x, s->x + 16 * slot + 4 * i, sizeof x);
        dot = _mm512_dpbusd_epi32(dot, t[i], _mm512_set1_epi32(x));
    }
    s->dots[slot] = dot;
}

INLINE void set_a(const struct sink *s, int group, __m512 a)
{
    _mm512_store_ps(s->p->a[group], a);
}

INLINE void set_b(const struct sink *s, int group, __m512 b)
{
    _mm512_store_ps(s->p->b[group], b);
}

/* ---- turning ---- */

INLINE __m128i load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Lanes of 16 bytes from rows i, i + 4, i + 8, i + 12. */
INLINE __m512i lanes4(const uint8_t *p, size_t stride)
{
    __m512i v = _mm512_castsi128_si512(load16(p));
    v = _mm512_inserti32x4(v, load16(p + 4 * stride), 1);
    v = _mm512_inserti32x4(v, load16(p + 8 * stride), 2);
    return _mm512_inserti32x4(v, load16(p + 12 * stride), 3);
}

/* Within each 128-bit lane, a 4 x 4 matrix of words: rows r[0..3] to columns t[0..3]. */
INLINE void turn4(const __m512i r[4], __m512i t[4])
{
    __m512i u0 = _mm512_unpacklo_epi32(r[0], r[1]), u1 = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i u2 = _mm512_unpacklo_epi32(r[2], r[3]), u3 = _mm512_unpackhi_epi32(r[2], r[3]);
    t[0] = _mm512_unpacklo_epi64(u0, u2);
    t[1] = _mm512_unpackhi_epi64(u0, u2);
    t[2] = _mm512_unpacklo_epi64(u1, u3);
    t[3] = _mm512_unpackhi_epi64(u1, u3);
}

/* 16 bytes of 16 rows: t[i] has word i of row r in its lane r. */
INLINE void turn16(struct krn_rows rows, size_t at, __m512i t[4])
{
    const uint8_t *p = rows.w + at;
    __m512i r[4];
    UNROLL(4) for (size_t i = 0; i < 4; i++)
        r[i] = lanes4(p + i * rows.stride, rows.stride);
    turn4(r, t);
}

/* 32 bytes of 16 rows: t[0..7]. */
INLINE void turn32(struct krn_rows rows, size_t at, __m512i t[8])
{
    const uint8_t *p = rows.w + at;
    __m512i low[4], high[4];
    UNROLL(4) for (size_t i = 0; i < 4; i++) {
        const uint8_t *q = p + i * rows.stride;
        __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(load32(q)), load32(q + 4 * rows.stride), 1);
        __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(load32(q + 8 * rows.stride)), load32(q + 12 * rows.stride), 1);
        low[i] = _mm512_shuffle_i64x2(a, b, 0x88);
        high[i] = _mm512_shuffle_i64x2(a, b, 0xDD);
    }
    turn4(low, t);
    turn4(high, t + 4);
}

/* ---- small pieces ---- */

#define A_AND_C_OR_B 0xEC /* truth table for ternarylogic */

INLINE __m512i bytes(int value)
{
    return _mm512_set1_epi8((char)value);
}

/* (v >> shift) & mask in every byte; mask has no more than 8 - shift bits. */
INLINE __m512i field(__m512i v, unsigned shift, int mask)
{
    return _mm512_and_si512(shift == 0 ? v : _mm512_srli_epi16(v, shift), bytes(mask));
}

/* The half in the low (or, shifted, high) 16 bits of each lane. */
INLINE __m512 half_of(__m512i v, unsigned shift)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, shift)));
}

/* Byte i of each lane, unsigned, as a float. */
INLINE __m512 byte_of(__m512i v, unsigned i)
{
    return _mm512_cvtepi32_ps(i == 3 ? _mm512_srli_epi32(v, 24) : _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255)));
}

INLINE __m512 signed_byte_of(__m512i v, unsigned i)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(i == 3 ? v : _mm512_slli_epi32(v, 24 - 8 * i), 24));
}

/* Halves of 16 rows. Copied by the integer side, which otherwise has little to do; volatile keeps the compiler from building vectors of them,
 * which costs the shuffle unit. */
INLINE void gather16(struct krn_rows rows, size_t at, volatile uint16_t h[16])
{
    UNROLL(16) for (size_t r = 0; r < 16; r++) {
        uint16_t v;
        memcpy(&v, rows.w + at + r * rows.stride, sizeof v);
        h[r] = v;
    }
}

INLINE void gather32(struct krn_rows rows, size_t at, volatile uint32_t h[16])
{
    UNROLL(16) for (size_t r = 0; r < 16; r++) {
        uint32_t v;
        memcpy(&v, rows.w + at + r * rows.stride, sizeof v);
        h[r] = v;
    }
}

INLINE __m512 halves(const uint16_t h[16])
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h));
}

/* ---- formats of 32 weights ---- */

enum { MAX_GROUPS32 = CHUNK_K / 32 };

/* Scales lie `step` bytes apart. */
INLINE void small_scales(struct krn_rows rows, size_t step, size_t groups, uint16_t h[][16])
{
    for (size_t g = 0; g < groups; g++)
        gather16(rows, g * step, h[g]);
}

INLINE void unpack_q8_0(struct krn_rows rows, size_t n, const struct sink *s, const bool pack)
{
    _Alignas(32) uint16_t h[MAX_GROUPS32][16];
    small_scales(rows, 34, n / 32, h);
    for (size_t g = 0; g < n / 32; g++) {
        __m512i t[8];
        turn32(rows, 34 * g + 2, t);
        UNROLL(8) for (int i = 0; i < 8; i++)
            t[i] = _mm512_xor_si512(t[i], bytes(0x80));
        emit(s, pack, 2 * (int)g, t);
        emit(s, pack, 2 * (int)g + 1, t + 4);
    }
    for (size_t g = 0; g < n / 32; g++)
        set_a(s, (int)g, halves(h[g]));
}

/* Low nibbles of 16 bytes are one slot, high nibbles the next. */
INLINE void emit_nibbles(const struct sink *s, const bool pack, int slot, const __m512i t[4], const __m512i *table)
{
    __m512i low[4], high[4];
    UNROLL(4) for (int i = 0; i < 4; i++) {
        low[i] = field(t[i], 0, 15);
        high[i] = field(t[i], 4, 15);
        if (table != NULL) {
            low[i] = _mm512_shuffle_epi8(*table, low[i]);
            high[i] = _mm512_shuffle_epi8(*table, high[i]);
        }
    }
    emit(s, pack, slot, low);
    emit(s, pack, slot + 1, high);
}

INLINE __m512i iq4_table(void)
{
    return _mm512_broadcast_i32x4(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153, (char)166, (char)181, (char)197,
                                                (char)217, (char)241));
}

/* Q4_0, IQ4_NL: half, nibbles. */
INLINE void unpack_q4_0(struct krn_rows rows, size_t n, const struct sink *s, const bool pack, const __m512i *table)
{
    _Alignas(32) uint16_t h[MAX_GROUPS32][16];
    small_scales(rows, 18, n / 32, h);
    for (size_t g = 0; g < n / 32; g++) {
        __m512i t[4];
        turn16(rows, 18 * g + 2, t);
        emit_nibbles(s, pack, 2 * (int)g, t, table);
    }
    for (size_t g = 0; g < n / 32; g++)
        set_a(s, (int)g, halves(h[g]));
}

/* Q4_1: two halves, nibbles. */
INLINE void unpack_q4_1(struct krn_rows rows, size_t n, const struct sink *s, const bool pack)
{
    _Alignas(64) uint32_t h[MAX_GROUPS32][16];
    for (size_t g = 0; g < n / 32; g++)
        gather32(rows, 20 * g, h[g]);
    for (size_t g = 0; g < n / 32; g++) {
        __m512i t[4];
        turn16(rows, 20 * g + 4, t);
        emit_nibbles(s, pack, 2 * (int)g, t, NULL);
    }
    for (size_t g = 0; g < n / 32; g++) {
        __m512i dm = _mm512_load_si512(h[g]);
        set_a(s, (int)g, half_of(dm, 0));
        set_b(s, (int)g, _mm512_xor_ps(half_of(dm, 16), _mm512_set1_ps(-0.0f)));
    }
}

/* Codes t of slot `upper` with their fifth bits: bit 16 * upper + j of the row's word is that of code j. */
INLINE void add_fifth_bits(__m512i high, int upper, __m512i t[4])
{
    UNROLL(4) for (int i = 0; i < 4; i++) {
        __m512i byte = _mm512_shuffle_epi8(high, _mm512_add_epi8(_mm512_set4_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0), bytes(2 * upper + i / 2)));
        __mmask64 set = _mm512_test_epi8_mask(byte, _mm512_set1_epi32(i % 2 == 0 ? 0x08040201 : (int)0x80402010));
        t[i] = _mm512_or_si512(t[i], _mm512_maskz_mov_epi8(set, bytes(16)));
    }
}

/* Q5_0: half, 32 bits, nibbles. Q5_1: another half in front of the bits. */
INLINE void unpack_q5(struct krn_rows rows, size_t n, const struct sink *s, const bool pack, const bool minima)
{
    _Alignas(64) uint32_t bits[MAX_GROUPS32][16], dm[MAX_GROUPS32][16];
    const size_t step = minima ? 24 : 22;
    for (size_t g = 0; g < n / 32; g++) {
        gather32(rows, step * g, dm[g]);
        gather32(rows, step * g + step - 20, bits[g]);
    }
    for (size_t g = 0; g < n / 32; g++) {
        __m512i t[4], low[4], high[4], fifth = _mm512_load_si512(bits[g]);
        turn16(rows, step * g + step - 16, t);
        UNROLL(4) for (int i = 0; i < 4; i++) {
            low[i] = field(t[i], 0, 15);
            high[i] = field(t[i], 4, 15);
        }
        add_fifth_bits(fifth, 0, low);
        add_fifth_bits(fifth, 1, high);
        emit(s, pack, 2 * (int)g, low);
        emit(s, pack, 2 * (int)g + 1, high);
    }
    for (size_t g = 0; g < n / 32; g++) {
        __m512i v = _mm512_load_si512(dm[g]);
        set_a(s, (int)g, half_of(v, 0));
        if (minima)
            set_b(s, (int)g, _mm512_xor_ps(half_of(v, 16), _mm512_set1_ps(-0.0f)));
    }
}

/* ---- formats of 256 weights ---- */

INLINE void q4_k_scales(struct krn_rows rows, const struct sink *s)
{
    __m512i h[4];
    turn16(rows, 0, h);
    __m512 d = half_of(h[0], 0), dmin = half_of(h[0], 16);
    __m512i sc[2] = {field(h[1], 0, 63), _mm512_or_si512(field(h[3], 0, 15), field(h[1], 2, 0x30))};
    __m512i mn[2] = {field(h[2], 0, 63), _mm512_or_si512(field(h[3], 4, 15), field(h[2], 2, 0x30))};
    UNROLL(8) for (int g = 0; g < 8; g++) {
        set_a(s, g, _mm512_mul_ps(d, byte_of(sc[g / 4], (unsigned)g % 4)));
        set_b(s, g, _mm512_mul_ps(dmin, byte_of(mn[g / 4], (unsigned)g % 4)));
    }
}

INLINE void unpack_q4_k(struct krn_rows rows, const struct sink *s, const bool pack)
{
    q4_k_scales(rows, s);
    UNROLL(4) for (int c = 0; c < 4; c++) {
        __m512i t[8], low[8], high[8];
        turn32(rows, 16 + 32 * (size_t)c, t);
        UNROLL(8) for (int i = 0; i < 8; i++) {
            low[i] = field(t[i], 0, 15);
            high[i] = field(t[i], 4, 15);
        }
        emit(s, pack, 4 * c, low);
        emit(s, pack, 4 * c + 1, low + 4);
        emit(s, pack, 4 * c + 2, high);
        emit(s, pack, 4 * c + 3, high + 4);
    }
}

/* (codes & 15) | (bit `bit` of plane) << 4 */
INLINE __m512i fifth_from_plane(__m512i code, __m512i plane, int bit)
{
    __m512i moved = bit < 4 ? _mm512_slli_epi16(plane, (unsigned)(4 - bit)) : bit == 4 ? plane : _mm512_srli_epi16(plane, (unsigned)(bit - 4));
    return _mm512_ternarylogic_epi32(code, _mm512_and_si512(moved, bytes(16)), bytes(15), A_AND_C_OR_B);
}

INLINE void unpack_q5_k(struct krn_rows rows, const struct sink *s, const bool pack)
{
    __m512i plane[8];
    q4_k_scales(rows, s);
    turn32(rows, 16, plane);
    UNROLL(4) for (int c = 0; c < 4; c++) {
        __m512i t[8], low[8], high[8];
        turn32(rows, 48 + 32 * (size_t)c, t);
        UNROLL(8) for (int i = 0; i < 8; i++) {
            low[i] = fifth_from_plane(t[i], plane[i], 2 * c);
            high[i] = fifth_from_plane(_mm512_srli_epi16(t[i], 4), plane[i], 2 * c + 1);
        }
        emit(s, pack, 4 * c, low);
        emit(s, pack, 4 * c + 1, low + 4);
        emit(s, pack, 4 * c + 2, high);
        emit(s, pack, 4 * c + 3, high + 4);
    }
}

/* (low & 15) | (high & 0x30) */
INLINE __m512i join6(__m512i low, __m512i high)
{
    return _mm512_ternarylogic_epi32(low, _mm512_and_si512(high, bytes(0x30)), bytes(15), A_AND_C_OR_B);
}

INLINE void unpack_q6_k(struct krn_rows rows, const struct sink *s, const bool pack)
{
    _Alignas(32) uint16_t h[16];
    __m512i sc[4];
    gather16(rows, 208, h);
    UNROLL(2) for (int n = 0; n < 2; n++) {
        __m512i l0[8], l1[8], hi[8];
        turn32(rows, 64 * (size_t)n, l0);
        turn32(rows, 64 * (size_t)n + 32, l1);
        turn32(rows, 128 + 32 * (size_t)n, hi);
        UNROLL(2) for (int half = 0; half < 2; half++) {
            __m512i v[4][4];
            UNROLL(4) for (int i = 0; i < 4; i++) {
                __m512i a = l0[4 * half + i], b = l1[4 * half + i], c = hi[4 * half + i];
                v[0][i] = join6(a, _mm512_slli_epi16(c, 4));
                v[1][i] = join6(b, _mm512_slli_epi16(c, 2));
                v[2][i] = join6(_mm512_srli_epi16(a, 4), c);
                v[3][i] = join6(_mm512_srli_epi16(b, 4), _mm512_srli_epi16(c, 2));
            }
            UNROLL(4) for (int i = 0; i < 4; i++)
                emit(s, pack, 8 * n + 2 * i + half, v[i]);
        }
    }
    turn16(rows, 192, sc);
    __m512 d = halves(h);
    UNROLL(16) for (int g = 0; g < 16; g++)
        set_a(s, g, _mm512_mul_ps(d, signed_byte_of(sc[g / 4], (unsigned)g % 4)));
}

INLINE void unpack_q2_k(struct krn_rows rows, const struct sink *s, const bool pack)
{
    _Alignas(64) uint32_t dm[16];
    __m512i sc[4];
    gather32(rows, 80, dm);
    UNROLL(2) for (int n = 0; n < 2; n++) {
        __m512i t[8], v[8];
        turn32(rows, 16 + 32 * (size_t)n, t);
        UNROLL(4) for (int j = 0; j < 4; j++) {
            UNROLL(8) for (int i = 0; i < 8; i++)
                v[i] = field(t[i], 2 * (unsigned)j, 3);
            emit(s, pack, 8 * n + 2 * j, v);
            emit(s, pack, 8 * n + 2 * j + 1, v + 4);
        }
    }
    turn16(rows, 0, sc);
    __m512 d = half_of(_mm512_load_si512(dm), 0), dmin = half_of(_mm512_load_si512(dm), 16);
    UNROLL(4) for (int i = 0; i < 4; i++) {
        __m512i low = field(sc[i], 0, 15), high = field(sc[i], 4, 15);
        UNROLL(4) for (int j = 0; j < 4; j++) {
            set_a(s, 4 * i + j, _mm512_mul_ps(d, byte_of(low, (unsigned)j)));
            set_b(s, 4 * i + j, _mm512_mul_ps(dmin, byte_of(high, (unsigned)j)));
        }
    }
}

/* The upper half of each lane of v in front of the lower half of the same lane of w. */
INLINE __m512i straddle(__m512i v, __m512i w)
{
    return _mm512_or_si512(_mm512_srli_epi32(v, 16), _mm512_slli_epi32(w, 16));
}

INLINE void unpack_q3_k(struct krn_rows rows, const struct sink *s, const bool pack)
{
    __m512i plane[8], tail[4];
    turn32(rows, 0, plane);
    UNROLL(2) for (int n = 0; n < 2; n++) {
        __m512i t[8], v[8];
        turn32(rows, 32 + 32 * (size_t)n, t);
        UNROLL(4) for (int j = 0; j < 4; j++) {
            const int bit = 4 * n + j;
            UNROLL(8) for (int i = 0; i < 8; i++) {
                __m512i moved = bit < 2 ? _mm512_slli_epi16(plane[i], (unsigned)(2 - bit)) : _mm512_srli_epi16(plane[i], (unsigned)(bit - 2));
                v[i] = _mm512_or_si512(field(t[i], 2 * (unsigned)j, 3), _mm512_and_si512(moved, bytes(4)));
            }
            emit(s, pack, 8 * n + 2 * j, v);
            emit(s, pack, 8 * n + 2 * j + 1, v + 4);
        }
    }
    turn16(rows, 94, tail); /* the last 16 bytes: two codes, 12 scale bytes, the half */
    __m512i s0 = straddle(tail[0], tail[1]), s1 = straddle(tail[1], tail[2]), s2 = straddle(tail[2], tail[3]);
    __m512 d = half_of(tail[3], 16);
    __m512i sc[4] = {
        join6(s0, _mm512_slli_epi16(s2, 4)),
        join6(s1, _mm512_slli_epi16(s2, 2)),
        join6(_mm512_srli_epi16(s0, 4), s2),
        join6(_mm512_srli_epi16(s1, 4), _mm512_srli_epi16(s2, 2)),
    };
    UNROLL(16) for (int g = 0; g < 16; g++)
        set_a(s, g, _mm512_mul_ps(d, signed_byte_of(_mm512_sub_epi8(sc[g / 4], bytes(32)), (unsigned)g % 4)));
}

INLINE void unpack_iq4_xs(struct krn_rows rows, const struct sink *s, const bool pack)
{
    __m512i head[4], table = iq4_table();
    turn16(rows, 0, head);
    __m512 d = half_of(head[0], 0);
    UNROLL(8) for (unsigned g = 0; g < 8; g++) {
        __m512i low = _mm512_and_si512(_mm512_srli_epi32(head[1], 4 * g), _mm512_set1_epi32(15));
        __m512i high = _mm512_and_si512(_mm512_srli_epi32(head[0], 16 + 2 * g), _mm512_set1_epi32(3));
        __m512i scale = _mm512_sub_epi32(_mm512_or_si512(low, _mm512_slli_epi32(high, 4)), _mm512_set1_epi32(32));
        set_a(s, (int)g, _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
    }
    UNROLL(4) for (int c = 0; c < 4; c++) {
        __m512i t[8];
        turn32(rows, 8 + 32 * (size_t)c, t);
        emit_nibbles(s, pack, 4 * c, t, &table);
        emit_nibbles(s, pack, 4 * c + 2, t + 4, &table);
    }
}

/* n weights of K of a panel. */
INLINE void unpack_type(const uint32_t type, struct krn_rows rows, size_t n, const struct sink *s, const bool pack)
{
    if (n > CHUNK_K)
        __builtin_unreachable();
    __m512i table = iq4_table();
    switch (type) {
    case KRN_Q8_0: unpack_q8_0(rows, n, s, pack); break;
    case KRN_Q4_0: unpack_q4_0(rows, n, s, pack, NULL); break;
    case KRN_IQ4_NL: unpack_q4_0(rows, n, s, pack, &table); break;
    case KRN_Q4_1: unpack_q4_1(rows, n, s, pack); break;
    case KRN_Q5_0: unpack_q5(rows, n, s, pack, false); break;
    case KRN_Q5_1: unpack_q5(rows, n, s, pack, true); break;
    case KRN_Q2_K: unpack_q2_k(rows, s, pack); break;
    case KRN_Q3_K: unpack_q3_k(rows, s, pack); break;
    case KRN_Q4_K: unpack_q4_k(rows, s, pack); break;
    case KRN_Q5_K: unpack_q5_k(rows, s, pack); break;
    case KRN_Q6_K: unpack_q6_k(rows, s, pack); break;
    case KRN_IQ4_XS: unpack_iq4_xs(rows, s, pack); break;
    default: break;
    }
}

#endif
