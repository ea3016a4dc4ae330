/* Formats of fewer than four bits taken apart: grids with signs (IQ1 to IQ3), ternary (TQ), and MXFP4.
 *
 * A weight of a grid format is scale * (+-magnitude). As a code it is 128 + (+-magnitude), 8 of which are made at once. In the IQ1 formats a
 * weight is scale * (t + d), t of -1, 0, 1 and d of +-1/8; scaled by a power of two it is (scale / 8) * (8t +- 1), the same float. */
#include "kernels/quant_grid.h"
#include "kernels/quant_impl.h"

#define BYTES(n) (0x0101010101010101u * (uint64_t)(n)) /* n in all eight bytes */

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static unsigned u16_at(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Byte j all ones where bit j of s is set; a constant. */
#define LONE(s) (BYTES((s) & 255) & 0x8040201008040201u) /* byte j keeps bit j alone */
#define MASK(s) ((((((LONE(s) & BYTES(0x7f)) + BYTES(0x7f)) | LONE(s)) & BYTES(0x80)) >> 7) * 255)
#define EVEN(s) MASK((s) | __builtin_parity(s) << 7)
#define FOUR(m, s) m(s), m((s) + 1), m((s) + 2), m((s) + 3)
#define SIXTEEN(m, s) FOUR(m, s), FOUR(m, (s) + 4), FOUR(m, (s) + 8), FOUR(m, (s) + 12)
#define SIXTY_FOUR(m, s) SIXTEEN(m, s), SIXTEEN(m, (s) + 16), SIXTEEN(m, (s) + 32), SIXTEEN(m, (s) + 48)

static const uint64_t sign_bytes[256] = {SIXTY_FOUR(MASK, 0), SIXTY_FOUR(MASK, 64), SIXTY_FOUR(MASK, 128), SIXTY_FOUR(MASK, 192)};
/* Seven stored signs; the eighth makes their number even. */
static const uint64_t even_sign_bytes[128] = {SIXTY_FOUR(EVEN, 0), SIXTY_FOUR(EVEN, 64)};

/* Eight codes of magnitudes below 128: 128 + m, less 2m where it is negative. No byte borrows or carries. */
static void put_signed(uint8_t *q, uint64_t magnitudes, uint64_t negative)
{
    uint64_t codes = BYTES(128) + magnitudes - ((magnitudes & negative) << 1);
    memcpy(q, &codes, sizeof codes);
}

/* ---- grids ---- */

void quant_split_iq2_xxs(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    for (int g = 0; g < 8; g++) {
        const uint8_t *idx = p + 2 + 8 * g;
        uint32_t s = u32_at(idx + 4);
        a[g] = d * (0.5f + (float)(s >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++)
            put_signed(q + 32 * g + 8 * l, krn_grid_iq2_xxs[idx[l]], even_sign_bytes[s >> 7 * l & 127]);
    }
}

void quant_split_iq2_xs(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    for (int g = 0; g < 16; g++) {
        a[g] = d * (0.5f + (float)(p[66 + g / 2] >> 4 * (g % 2) & 15)) * 0.25f;
        for (int l = 0; l < 2; l++) {
            unsigned v = u16_at(p + 2 + 4 * g + 2 * l);
            put_signed(q + 16 * g + 8 * l, krn_grid_iq2_xs[v & 511], even_sign_bytes[v >> 9]);
        }
    }
}

void quant_split_iq2_s(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    for (int g = 0; g < 16; g++)
        a[g] = d * (0.5f + (float)(p[74 + g / 2] >> 4 * (g % 2) & 15)) * 0.25f;
    for (int i = 0; i < 32; i++) {
        unsigned high = p[66 + i / 4] >> 2 * (i % 4) & 3;
        put_signed(q + 8 * i, krn_grid_iq2_s[p[2 + i] | high << 8], sign_bytes[p[34 + i]]);
    }
}

void quant_split_iq3_xxs(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    for (int g = 0; g < 8; g++) {
        uint32_t s = u32_at(p + 66 + 4 * g);
        a[g] = d * (0.5f + (float)(s >> 28)) * 0.5f;
        for (int l = 0; l < 4; l++) {
            const uint8_t *idx = p + 2 + 8 * g + 2 * l;
            put_signed(q + 32 * g + 8 * l, krn_grid_iq3_xxs[idx[0]] | (uint64_t)krn_grid_iq3_xxs[idx[1]] << 32, even_sign_bytes[s >> 7 * l & 127]);
        }
    }
}

void quant_split_iq3_s(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    for (int g = 0; g < 8; g++) {
        unsigned high = p[66 + g];
        a[g] = d * (float)(1 + 2 * (p[106 + g / 2] >> 4 * (g % 2) & 15));
        for (int l = 0; l < 4; l++) {
            const uint8_t *idx = p + 2 + 8 * g + 2 * l;
            uint64_t low = krn_grid_iq3_s[idx[0] | (high >> 2 * l & 1) << 8], up = krn_grid_iq3_s[idx[1] | (high >> (2 * l + 1) & 1) << 8];
            put_signed(q + 32 * g + 8 * l, low | up << 32, sign_bytes[p[74 + 4 * g + l]]);
        }
    }
}

/* Eight weights of a ternary grid, with the eighth to add or to take off. */
static void put_ternary(uint8_t *q, unsigned idx, bool minus)
{
    uint64_t codes = krn_grid_iq1[idx] * 8 + BYTES(minus ? 119 : 121); /* 128 + 8 (t - 1) -+ 1 */
    memcpy(q, &codes, sizeof codes);
}

void quant_split_iq1_s(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    for (int g = 0; g < 8; g++) {
        unsigned high = u16_at(p + 34 + 2 * g);
        a[g] = d * (float)(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (int l = 0; l < 4; l++)
            put_ternary(q + 32 * g + 8 * l, p[2 + 4 * g + l] | (high >> 3 * l & 7) << 8, (high & 0x8000) != 0);
    }
}

/* The half scale is spread over the upper four bits of four words of group scales. */
void quant_split_iq1_m(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    unsigned s[4];
    for (int i = 0; i < 4; i++)
        s[i] = u16_at(p + 48 + 2 * i);
    float d = krn_f16_to_f32((uint16_t)(s[0] >> 12 | (s[1] >> 8 & 0xf0) | (s[2] >> 4 & 0xf00) | (s[3] & 0xf000)));
    for (int g = 0; g < 16; g++)
        a[g] = d * (float)(2 * (s[g / 4] >> 3 * (g % 4) & 7) + 1) * 0.125f;
    for (int i = 0; i < 32; i++) {
        unsigned high = p[32 + i / 2] >> 4 * (i % 2);
        put_ternary(q + 8 * i, p[i] | (high & 7) << 8, (high & 8) != 0);
    }
}

/* ---- ternary, code 0, 1, 2 for -1, 0, 1 ---- */

/* Five ternary digits of a byte that holds their value times 256 / 243, rounded up: digit n is the whole part of three times the fraction that
 * n multiplications by three leave. */
static unsigned trit(uint8_t byte, unsigned power)
{
    return (uint8_t)(byte * power) * 3u >> 8;
}

void quant_split_tq1_0(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    static const unsigned powers[5] = {1, 3, 9, 27, 81};
    for (int g = 0; g < 8; g++)
        a[g] = quant_half_at(p + 52);
    for (int n = 0; n < 5; n++) {
        for (int l = 0; l < 32; l++)
            q[32 * n + l] = (uint8_t)trit(p[l], powers[n]);
        for (int l = 0; l < 16; l++)
            q[160 + 16 * n + l] = (uint8_t)trit(p[32 + l], powers[n]);
    }
    for (int n = 0; n < 4; n++)
        for (int l = 0; l < 4; l++)
            q[240 + 4 * n + l] = (uint8_t)trit(p[48 + l], powers[n]);
}

void quant_split_tq2_0(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    for (int g = 0; g < 8; g++)
        a[g] = quant_half_at(p + 64);
    for (int n = 0; n < 2; n++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                q[128 * n + 32 * j + l] = p[32 * n + l] >> 2 * j & 3;
}

/* ---- MXFP4: a power of two and 32 tiny floats, whose doubles are integers ---- */

void quant_split_mxfp4(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    static const uint8_t values[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4}; /* plus 16 */
    a[0] = krn_f32_from_bits(p[0] < 2 ? 0x00200000u << p[0] : (uint32_t)(p[0] - 1) << 23);
    for (int j = 0; j < 16; j++) {
        q[j] = values[p[1 + j] & 15];
        q[16 + j] = values[p[1 + j] >> 4];
    }
}
