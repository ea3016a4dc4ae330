/* Quantised formats turned so that a vector holds the same four codes of each of LANES rows. Included by matmul_avx2.c and matmul_avx512.c
 * after their matmul_avx*.h, whose names this is written in.
 *
 * One function per format, always inlined, does the work for both users: with `cols` 0 the codes go to a panel in memory, else they are multiplied
 * on the spot with so many columns and the integer sums of each 16 codes go to `dots`. Scales and minima go to a and b in either case. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_SIMD_UNPACK_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_SIMD_UNPACK_H

/* Where a chunk of LANES rows goes. */
struct sink {
    uint8_t (*q)[PANEL_ROWS][4]; /* without columns: the rows' place in the first vector of a panel's codes */
    float (*a)[PANEL_ROWS];      /* by group */
    float (*b)[PANEL_ROWS];
    const int8_t *x[KRN_FEW];   /* each column's activations of the chunk */
    vint (*dots)[CHUNK_K / 16];  /* by column: sums of 16 codes each */
};

/* 16 codes of each row, as 4 vectors; slot counts 16-code units of the chunk. */
INLINE void emit(const struct sink *s, const int cols, int slot, const vint t[4], const unsigned code_bits)
{
    if (cols == 0)
        UNROLL(4) for (int i = 0; i < 4; i++)
            v_store(s->q[4 * slot + i], t[i]);
    else
        UNROLL(4) for (int c = 0; c < cols; c++)
            s->dots[c][slot] = v_dot16(t, s->x[c] + 16 * slot, code_bits);
}

INLINE void set_a(const struct sink *s, size_t group, vflt a)
{
    f_store(s->a[group], a);
}

INLINE void set_b(const struct sink *s, size_t group, vflt b)
{
    f_store(s->b[group], b);
}

#include "kernels/cpu/matmul_simd_split.h"

/* ---- small pieces ---- */

/* (v >> shift) & mask in every byte; mask has no more than 8 - shift bits. */
INLINE vint field(vint v, unsigned shift, int mask)
{
    return v_and(shift == 0 ? v : v_srl16(v, shift), v_bytes(mask));
}

/* Byte i of each word as a float. */
INLINE vflt byte_of(vint v, unsigned i)
{
    return v_float(i == 3 ? v_srl32(v, 24) : v_and(v_srl32(v, 8 * i), v_words(255)));
}

INLINE vflt signed_byte_of(vint v, unsigned i)
{
    return v_float(v_sra32(i == 3 ? v : v_sll32(v, 24 - 8 * i), 24));
}

/* Words of a packed chunk, beginning with byte `at` of a row's own. */
INLINE vint packed_word(struct krn_rows rows, size_t at)
{
    return v_load(rows.w + at * PANEL_ROWS + rows.lane * sizeof(uint32_t));
}

/* 16 bytes of each row that begin at `at`, as 4 vectors of words. */
INLINE void words16(struct krn_rows rows, size_t at, vint t[4])
{
    if (!rows.packed)
        turn16(rows, at, t);
    else
        UNROLL(4) for (size_t i = 0; i < 4; i++)
            t[i] = packed_word(rows, at + 4 * i);
}

INLINE void words32(struct krn_rows rows, size_t at, vint t[8])
{
    if (!rows.packed)
        turn32(rows, at, t);
    else
        UNROLL(8) for (size_t i = 0; i < 8; i++)
            t[i] = packed_word(rows, at + 4 * i);
}

/* Numbers of each row. Copied by the integer side, which otherwise has little to do; volatile keeps the compiler from building vectors of them,
 * which costs the shuffle unit. */
INLINE void gather16(struct krn_rows rows, size_t at, volatile uint16_t h[LANES])
{
    UNROLL(16) for (size_t r = 0; r < LANES; r++) {
        uint16_t v;
        memcpy(&v, rows.w + at + r * rows.stride, sizeof v);
        h[r] = v;
    }
}

INLINE void gather32(struct krn_rows rows, size_t at, volatile uint32_t h[LANES])
{
    UNROLL(16) for (size_t r = 0; r < LANES; r++) {
        uint32_t v;
        memcpy(&v, rows.w + at + r * rows.stride, sizeof v);
        h[r] = v;
    }
}

/* ---- formats of 32 weights ---- */

enum { MAX_GROUPS32 = CHUNK_K / 32 };

/* Formats that begin with a half, which packed blocks have apart: `bytes` of a block in either form, and where its codes begin. */
INLINE size_t block_of(struct krn_rows rows, size_t bytes)
{
    return rows.packed ? bytes - 2 : bytes;
}

INLINE size_t codes_of(struct krn_rows rows)
{
    return rows.packed ? 0 : 2;
}

/* Scales of the groups, `bytes` apart where they are not packed. */
INLINE void small_scales(struct krn_rows rows, size_t bytes, size_t groups, uint16_t h[][LANES])
{
    if (!rows.packed)
        for (size_t g = 0; g < groups; g++)
            gather16(rows, g * bytes, h[g]);
}

/* Set them, from h or from where they lie. */
INLINE void set_small_scales(struct krn_rows rows, size_t bytes, size_t groups, uint16_t h[][LANES], const struct sink *s)
{
    const uint16_t *packed = (const uint16_t *)(const void *)(rows.w + groups * (bytes - 2) * PANEL_ROWS) + rows.lane;
    for (size_t g = 0; g < groups; g++)
        set_a(s, g, f_halves(rows.packed ? packed + g * PANEL_ROWS : h[g]));
}

/* A word of each row. */
INLINE void word_of(struct krn_rows rows, size_t at, uint32_t h[LANES])
{
    if (rows.packed)
        v_store(h, packed_word(rows, at));
    else
        gather32(rows, at, h);
}

INLINE void unpack_q8_0(struct krn_rows rows, size_t n, const struct sink *s, const int cols)
{
    _Alignas(32) uint16_t h[MAX_GROUPS32][LANES];
    small_scales(rows, 34, n / 32, h);
    for (size_t g = 0; g < n / 32; g++) {
        vint t[8];
        words32(rows, block_of(rows, 34) * g + codes_of(rows), t);
        UNROLL(8) for (int i = 0; i < 8; i++)
            t[i] = v_code_of_int8(t[i]);
        emit(s, cols, 2 * g, t, 8);
        emit(s, cols, 2 * g + 1, t + 4, 8);
    }
    set_small_scales(rows, 34, n / 32, h, s);
}

/* Low nibbles of 16 bytes are one slot, high nibbles the next. */
INLINE void emit_nibbles(const struct sink *s, const int cols, int slot, const vint t[4], const vint *table)
{
    vint low[4], high[4];
    UNROLL(4) for (int i = 0; i < 4; i++) {
        low[i] = field(t[i], 0, 15);
        high[i] = field(t[i], 4, 15);
        if (table != NULL) {
            low[i] = v_lookup(*table, low[i]);
            high[i] = v_lookup(*table, high[i]);
        }
    }
    emit(s, cols, slot, low, table != NULL ? 8 : 4);
    emit(s, cols, slot + 1, high, table != NULL ? 8 : 4);
}

INLINE vint iq4_table(void)
{
    static const uint8_t values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}; /* plus 128 */
    return v_sub8(v_table(values), v_bytes(128 - SIGNED_BIAS));
}

/* Q4_0, IQ4_NL: half, nibbles. */
INLINE void unpack_q4_0(struct krn_rows rows, size_t n, const struct sink *s, const int cols, const vint *table)
{
    _Alignas(32) uint16_t h[MAX_GROUPS32][LANES];
    small_scales(rows, 18, n / 32, h);
    for (size_t g = 0; g < n / 32; g++) {
        vint t[4];
        words16(rows, block_of(rows, 18) * g + codes_of(rows), t);
        emit_nibbles(s, cols, 2 * g, t, table);
    }
    set_small_scales(rows, 18, n / 32, h, s);
}

/* Q4_1: two halves, nibbles. */
INLINE void unpack_q4_1(struct krn_rows rows, size_t n, const struct sink *s, const int cols)
{
    _Alignas(64) uint32_t h[MAX_GROUPS32][LANES];
    for (size_t g = 0; g < n / 32; g++)
        word_of(rows, 20 * g, h[g]);
    for (size_t g = 0; g < n / 32; g++) {
        vint t[4];
        words16(rows, 20 * g + 4, t);
        emit_nibbles(s, cols, 2 * g, t, NULL);
    }
    for (size_t g = 0; g < n / 32; g++) {
        vint dm = v_load(h[g]);
        set_a(s, g, f_half_of(dm, 0));
        set_b(s, g, f_negative(f_half_of(dm, 16)));
    }
}

/* Codes t of slot `upper` with their fifth bits: bit 16 * upper + j of the row's word is that of code j. */
INLINE void add_fifth_bits(vint high, int upper, vint t[4])
{
    UNROLL(4) for (int i = 0; i < 4; i++) {
        vint mask = v_words(i % 2 == 0 ? 0x08040201 : (int32_t)0x80402010);
        t[i] = v_or(t[i], v_where(v_spread(high, 2 * upper + i / 2), mask, 16));
    }
}

/* Q5_0: half, 32 bits, nibbles. Q5_1: another half in front of the bits. */
INLINE void unpack_q5(struct krn_rows rows, size_t n, const struct sink *s, const int cols, const bool minima)
{
    _Alignas(64) uint32_t bits[MAX_GROUPS32][LANES], dm[MAX_GROUPS32][LANES];
    const size_t step = minima ? 24 : 22;
    for (size_t g = 0; g < n / 32; g++) {
        word_of(rows, step * g, dm[g]);
        word_of(rows, step * g + step - 20, bits[g]);
    }
    for (size_t g = 0; g < n / 32; g++) {
        vint t[4], low[4], high[4], fifth = v_load(bits[g]);
        words16(rows, step * g + step - 16, t);
        UNROLL(4) for (int i = 0; i < 4; i++) {
            low[i] = field(t[i], 0, 15);
            high[i] = field(t[i], 4, 15);
        }
        add_fifth_bits(fifth, 0, low);
        add_fifth_bits(fifth, 1, high);
        emit(s, cols, 2 * g, low, 5);
        emit(s, cols, 2 * g + 1, high, 5);
    }
    for (size_t g = 0; g < n / 32; g++) {
        vint v = v_load(dm[g]);
        set_a(s, g, f_half_of(v, 0));
        if (minima)
            set_b(s, g, f_negative(f_half_of(v, 16)));
    }
}

/* ---- formats of 256 weights ---- */

INLINE void q4_k_scales(struct krn_rows rows, const struct sink *s)
{
    vint h[4];
    words16(rows, 0, h);
    vflt d = f_half_of(h[0], 0), dmin = f_half_of(h[0], 16);
    vint sc[2] = {field(h[1], 0, 63), v_or(field(h[3], 0, 15), field(h[1], 2, 0x30))};
    vint mn[2] = {field(h[2], 0, 63), v_or(field(h[3], 4, 15), field(h[2], 2, 0x30))};
    UNROLL(8) for (int g = 0; g < 8; g++) {
        set_a(s, g, f_mul(d, byte_of(sc[g / 4], g % 4)));
        set_b(s, g, f_mul(dmin, byte_of(mn[g / 4], g % 4)));
    }
}

INLINE void unpack_q4_k(struct krn_rows rows, const struct sink *s, const int cols)
{
    q4_k_scales(rows, s);
    UNROLL(4) for (int c = 0; c < 4; c++) {
        vint t[8], low[8], high[8];
        words32(rows, 16 + 32 * c, t);
        UNROLL(8) for (int i = 0; i < 8; i++) {
            low[i] = field(t[i], 0, 15);
            high[i] = field(t[i], 4, 15);
        }
        emit(s, cols, 4 * c, low, 4);
        emit(s, cols, 4 * c + 1, low + 4, 4);
        emit(s, cols, 4 * c + 2, high, 4);
        emit(s, cols, 4 * c + 3, high + 4, 4);
    }
}

/* (codes & 15) | (bit `bit` of plane) << 4 */
INLINE vint fifth_from_plane(vint code, vint plane, int bit)
{
    vint moved = bit < 4 ? v_sll16(plane, 4 - bit) : bit == 4 ? plane : v_srl16(plane, bit - 4);
    return v_and_or(code, v_bytes(15), v_and(moved, v_bytes(16)));
}

INLINE void unpack_q5_k(struct krn_rows rows, const struct sink *s, const int cols)
{
    vint plane[8];
    q4_k_scales(rows, s);
    words32(rows, 16, plane);
    UNROLL(4) for (int c = 0; c < 4; c++) {
        vint t[8], low[8], high[8];
        words32(rows, 48 + 32 * c, t);
        UNROLL(8) for (int i = 0; i < 8; i++) {
            low[i] = fifth_from_plane(t[i], plane[i], 2 * c);
            high[i] = fifth_from_plane(v_srl16(t[i], 4), plane[i], 2 * c + 1);
        }
        emit(s, cols, 4 * c, low, 5);
        emit(s, cols, 4 * c + 1, low + 4, 5);
        emit(s, cols, 4 * c + 2, high, 5);
        emit(s, cols, 4 * c + 3, high + 4, 5);
    }
}

/* (low & 15) | (high & 0x30) */
INLINE vint join6(vint low, vint high)
{
    return v_and_or(low, v_bytes(15), v_and(high, v_bytes(0x30)));
}

INLINE void unpack_q6_k(struct krn_rows rows, const struct sink *s, const int cols)
{
    _Alignas(32) uint16_t h[LANES];
    vint sc[4];
    if (!rows.packed)
        gather16(rows, 208, h);
    UNROLL(2) for (int n = 0; n < 2; n++) {
        vint l0[8], l1[8], hi[8];
        words32(rows, 64 * n, l0);
        words32(rows, 64 * n + 32, l1);
        words32(rows, 128 + 32 * n, hi);
        UNROLL(2) for (int half = 0; half < 2; half++) {
            vint v[4][4];
            UNROLL(4) for (int i = 0; i < 4; i++) {
                vint a = l0[4 * half + i], b = l1[4 * half + i], c = hi[4 * half + i];
                v[0][i] = join6(a, v_sll16(c, 4));
                v[1][i] = join6(b, v_sll16(c, 2));
                v[2][i] = join6(v_srl16(a, 4), c);
                v[3][i] = join6(v_srl16(b, 4), v_srl16(c, 2));
            }
            UNROLL(4) for (int i = 0; i < 4; i++)
                emit(s, cols, 8 * n + 2 * i + half, v[i], 6);
        }
    }
    words16(rows, 192, sc);
    vflt d = f_halves(rows.packed ? (const uint16_t *)(const void *)(rows.w + 208 * PANEL_ROWS) + rows.lane : h);
    UNROLL(16) for (int g = 0; g < 16; g++)
        set_a(s, g, f_mul(d, signed_byte_of(sc[g / 4], g % 4)));
}

INLINE void unpack_q2_k(struct krn_rows rows, const struct sink *s, const int cols)
{
    _Alignas(64) uint32_t dm[LANES];
    vint sc[4];
    word_of(rows, 80, dm);
    UNROLL(2) for (int n = 0; n < 2; n++) {
        vint t[8], v[8];
        words32(rows, 16 + 32 * n, t);
        UNROLL(4) for (int j = 0; j < 4; j++) {
            UNROLL(8) for (int i = 0; i < 8; i++)
                v[i] = field(t[i], 2 * j, 3);
            emit(s, cols, 8 * n + 2 * j, v, 2);
            emit(s, cols, 8 * n + 2 * j + 1, v + 4, 2);
        }
    }
    words16(rows, 0, sc);
    vflt d = f_half_of(v_load(dm), 0), dmin = f_half_of(v_load(dm), 16);
    UNROLL(4) for (int i = 0; i < 4; i++) {
        vint low = field(sc[i], 0, 15), high = field(sc[i], 4, 15);
        UNROLL(4) for (int j = 0; j < 4; j++) {
            set_a(s, 4 * i + j, f_mul(d, byte_of(low, j)));
            set_b(s, 4 * i + j, f_mul(dmin, byte_of(high, j)));
        }
    }
}

/* The upper half of each lane of v in front of the lower half of the same lane of w. */
INLINE vint straddle(vint v, vint w)
{
    return v_or(v_srl32(v, 16), v_sll32(w, 16));
}

INLINE void unpack_q3_k(struct krn_rows rows, const struct sink *s, const int cols)
{
    vint plane[8], tail[4];
    words32(rows, 0, plane);
    UNROLL(2) for (int n = 0; n < 2; n++) {
        vint t[8], v[8];
        words32(rows, 32 + 32 * n, t);
        UNROLL(4) for (int j = 0; j < 4; j++) {
            const int bit = 4 * n + j;
            UNROLL(8) for (int i = 0; i < 8; i++) {
                vint moved = bit < 2 ? v_sll16(plane[i], 2 - bit) : v_srl16(plane[i], bit - 2);
                v[i] = v_or(field(t[i], 2 * j, 3), v_and(moved, v_bytes(4)));
            }
            emit(s, cols, 8 * n + 2 * j, v, 3);
            emit(s, cols, 8 * n + 2 * j + 1, v + 4, 3);
        }
    }
    words16(rows, 94, tail); /* the last 16 bytes: two codes, 12 scale bytes, the half */
    vint s0 = straddle(tail[0], tail[1]), s1 = straddle(tail[1], tail[2]), s2 = straddle(tail[2], tail[3]);
    vflt d = f_half_of(tail[3], 16);
    vint sc[4] = {
        join6(s0, v_sll16(s2, 4)),
        join6(s1, v_sll16(s2, 2)),
        join6(v_srl16(s0, 4), s2),
        join6(v_srl16(s1, 4), v_srl16(s2, 2)),
    };
    UNROLL(16) for (int g = 0; g < 16; g++)
        set_a(s, g, f_mul(d, signed_byte_of(v_sub8(sc[g / 4], v_bytes(32)), g % 4)));
}

INLINE void unpack_iq4_xs(struct krn_rows rows, const struct sink *s, const int cols)
{
    vint head[4], table = iq4_table();
    words16(rows, 0, head);
    vflt d = f_half_of(head[0], 0);
    UNROLL(8) for (unsigned g = 0; g < 8; g++) {
        vint low = v_and(v_srl32(head[1], 4 * g), v_words(15));
        vint high = v_and(v_srl32(head[0], 16 + 2 * g), v_words(3));
        vint scale = v_sub32(v_or(low, v_sll32(high, 4)), v_words(32));
        set_a(s, g, f_mul(d, v_float(scale)));
    }
    UNROLL(4) for (int c = 0; c < 4; c++) {
        vint t[8];
        words32(rows, 8 + 32 * c, t);
        emit_nibbles(s, cols, 4 * c, t, &table);
        emit_nibbles(s, cols, 4 * c + 2, t + 4, &table);
    }
}

/* n weights of K of a panel. */
INLINE void unpack_type(const uint32_t type, struct krn_rows rows, size_t n, const struct sink *s, const int cols)
{
    if (n > CHUNK_K)
        __builtin_unreachable();
    vint table = iq4_table();
    switch (type) {
    case KRN_Q8_0: unpack_q8_0(rows, n, s, cols); break;
    case KRN_Q4_0: unpack_q4_0(rows, n, s, cols, NULL); break;
    case KRN_IQ4_NL: unpack_q4_0(rows, n, s, cols, &table); break;
    case KRN_Q4_1: unpack_q4_1(rows, n, s, cols); break;
    case KRN_Q5_0: unpack_q5(rows, n, s, cols, false); break;
    case KRN_Q5_1: unpack_q5(rows, n, s, cols, true); break;
    case KRN_Q2_K: unpack_q2_k(rows, s, cols); break;
    case KRN_Q3_K: unpack_q3_k(rows, s, cols); break;
    case KRN_Q4_K: unpack_q4_k(rows, s, cols); break;
    case KRN_Q5_K: unpack_q5_k(rows, s, cols); break;
    case KRN_Q6_K: unpack_q6_k(rows, s, cols); break;
    case KRN_IQ4_XS: unpack_iq4_xs(rows, s, cols); break;
    default: unpack_split(type, rows.w, rows.stride, n, s, cols); break;
    }
}

#endif
