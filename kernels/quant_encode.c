/* Floats to blocks. Each group's scale (and minimum) is searched around the obvious value for the least squared error; then the scales of a
 * 256-block are themselves rounded, and the codes chosen again for the scales as stored. */
#include "kernels/quant.h"

#include <math.h>

enum { SEARCH_STEPS = 9, SEARCH_TRIES = 2 * SEARCH_STEPS + 1 };

static void put_half(uint8_t *p, uint16_t h)
{
    memcpy(p, &h, sizeof h);
}

static float clampf(float x, float low, float high)
{
    return x > low ? (x < high ? x : high) : low; /* a NaN becomes low */
}

static int nearest(float x, int low, int high)
{
    return (int)clampf(rintf(x), (float)low, (float)high);
}

/* The value of largest magnitude, with its sign. */
static float peak_of(const float *x, int n)
{
    float peak = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(peak))
            peak = x[i];
    return peak;
}

static float inverse(float x)
{
    return x != 0 ? 1 / x : 0;
}

/* ---- one group ---- */

/* IQ4 codes: what they stand for. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static int iq4_nearest(float x)
{
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(x - (float)iq4_values[i]) < fabsf(x - (float)iq4_values[best]))
            best = i;
    return best;
}

/* The integers that a code can stand for: low..high, or the IQ4 table. */
struct levels {
    int low, high;
    bool iq4;
};

static float level_nearest(const struct levels *l, float x)
{
    return l->iq4 ? (float)iq4_values[iq4_nearest(x)] : (float)nearest(x, l->low, l->high);
}

/* The scale a for which some choice of levels q makes a * q closest to x. */
static float fit_scale(const struct levels *l, const float *x, int n)
{
    float peak = peak_of(x, n), best_scale = 0, best_gain = -1;
    if (fabsf(peak) < 1e-30f)
        return 0;
    for (int try = 0; try < 2 * SEARCH_TRIES; try++) {
        float end = (float)(try % 2 != 0 ? l->high : l->low);
        float inv = end * (1 + (float)(try / 2 - SEARCH_STEPS) * 0.02f) / peak;
        float xq = 0, qq = 0;
        for (int i = 0; i < n; i++) {
            float q = level_nearest(l, x[i] * inv);
            xq += x[i] * q;
            qq += q * q;
        }
        if (qq > 0 && xq * xq > best_gain * qq) { /* error = sum of x^2 - xq^2 / qq */
            best_gain = xq * xq / qq;
            best_scale = xq / qq;
        }
    }
    return best_scale;
}

struct affine {
    float a, b;
};

/* a > 0 and b for which some choice of q in 0..high makes a * q - b closest to x; with nonneg, b >= 0. */
static struct affine fit_affine(int high, bool nonneg, const float *x, int n)
{
    float low = x[0], top = x[0], sum = 0, best_error = INFINITY;
    for (int i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        top = fmaxf(top, x[i]);
        sum += x[i];
    }
    if (nonneg)
        low = fminf(low, 0);
    if (top - low < 1e-30f)
        return (struct affine){0, -low};
    struct affine best = {(top - low) / (float)high, -low};
    for (int try = 0; try < SEARCH_TRIES; try++) {
        float inv = (float)high * (1 + (float)(try - SEARCH_STEPS) * 0.03f) / (top - low);
        float q[32], sq = 0, sqq = 0, sxq = 0;
        for (int i = 0; i < n; i++) {
            q[i] = (float)nearest((x[i] - low) * inv, 0, high);
            sq += q[i];
            sqq += q[i] * q[i];
            sxq += x[i] * q[i];
        }
        float det = (float)n * sqq - sq * sq;
        if (det <= 0)
            continue;
        struct affine f = {.a = ((float)n * sxq - sum * sq) / det};
        f.b = (f.a * sq - sum) / (float)n;
        if (nonneg && f.b < 0)
            f = (struct affine){sxq / sqq, 0};
        float error = 0;
        for (int i = 0; i < n; i++)
            error += (x[i] - f.a * q[i] + f.b) * (x[i] - f.a * q[i] + f.b);
        if (f.a > 0 && error < best_error) {
            best_error = error;
            best = f;
        }
    }
    return best;
}

/* Codes of n values for a group as stored: w = a * q - b. */
static void codes(const float *x, int n, float a, float b, int zero, int high, uint8_t *q)
{
    float inv = inverse(a);
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)nearest((x[i] + b) * inv + (float)zero, 0, high);
}

/* ---- blocks of 32 ---- */

static void put_nibbles(const uint8_t *q, uint8_t *p)
{
    for (int j = 0; j < 16; j++)
        p[j] = (uint8_t)((q[j] & 15) | (q[16 + j] & 15) << 4);
}

static void put_fifth_bits(const uint8_t *q, uint8_t *p)
{
    uint32_t high = 0;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)(q[j] >> 4) << j;
    memcpy(p, &high, sizeof high);
}

static void quant_q8_0(const float *x, uint8_t *p)
{
    uint16_t d = krn_f32_to_f16(fabsf(peak_of(x, 32)) / 127);
    float inv = inverse(krn_f16_to_f32(d));
    put_half(p, d);
    for (int j = 0; j < 32; j++)
        p[2 + j] = (uint8_t)(int8_t)nearest(x[j] * inv, -127, 127);
}

/* Q4_0, Q5_0. */
static void quant_scaled(const float *x, uint8_t *p, int bits)
{
    int half = 1 << (bits - 1);
    struct levels l = {-half, half - 1, false};
    uint16_t d = krn_f32_to_f16(fit_scale(&l, x, 32));
    uint8_t q[32];
    codes(x, 32, krn_f16_to_f32(d), 0, half, 2 * half - 1, q);
    put_half(p, d);
    p += 2;
    if (bits == 5) {
        put_fifth_bits(q, p);
        p += 4;
    }
    put_nibbles(q, p);
}

/* Q4_1, Q5_1. */
static void quant_affine(const float *x, uint8_t *p, int bits)
{
    int high = (1 << bits) - 1;
    struct affine f = fit_affine(high, false, x, 32);
    uint16_t d = krn_f32_to_f16(f.a), m = krn_f32_to_f16(-f.b);
    uint8_t q[32];
    codes(x, 32, krn_f16_to_f32(d), -krn_f16_to_f32(m), 0, high, q);
    put_half(p, d);
    put_half(p + 2, m);
    p += 4;
    if (bits == 5) {
        put_fifth_bits(q, p);
        p += 4;
    }
    put_nibbles(q, p);
}

static void iq4_codes(const float *x, float a, uint8_t *p)
{
    uint8_t q[32];
    float inv = inverse(a);
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)iq4_nearest(x[j] * inv);
    put_nibbles(q, p);
}

static const struct levels iq4_levels = {-127, 113, true};

static void quant_iq4_nl(const float *x, uint8_t *p)
{
    uint16_t d = krn_f32_to_f16(fit_scale(&iq4_levels, x, 32));
    put_half(p, d);
    iq4_codes(x, krn_f16_to_f32(d), p + 2);
}

/* ---- blocks of 256 ---- */

/* Round the scales of a block to integers low..high (low < 0 < high, or low 0) times a common half, and replace them by the product. */
static uint16_t common_scale(float *a, int n, int low, int high, int *scales)
{
    float peak = peak_of(a, n);
    uint16_t d = krn_f32_to_f16(low < 0 ? peak / (float)low : peak / (float)high);
    float inv = inverse(krn_f16_to_f32(d));
    for (int g = 0; g < n; g++) {
        scales[g] = nearest(a[g] * inv, low, high);
        a[g] = krn_f16_to_f32(d) * (float)scales[g];
    }
    return d;
}

/* Fill q[256] for groups with minima; returns through d, dmin, sc, mn what has to be stored. */
struct affine_block {
    uint16_t d, dmin;
    int sc[16], mn[16];
    uint8_t q[256];
};

static void fit_affine_block(const float *x, int group, int bits, int scale_high, struct affine_block *out)
{
    float a[16], b[16];
    int groups = 256 / group, high = (1 << bits) - 1;
    for (int g = 0; g < groups; g++) {
        struct affine f = fit_affine(high, true, x + g * group, group);
        a[g] = f.a;
        b[g] = f.b;
    }
    out->d = common_scale(a, groups, 0, scale_high, out->sc);
    out->dmin = common_scale(b, groups, 0, scale_high, out->mn);
    for (int g = 0; g < groups; g++)
        codes(x + g * group, group, a[g], b[g], 0, high, out->q + g * group);
}

static void put_two_bits(const uint8_t *q, uint8_t *p)
{
    for (int n = 0; n < 2; n++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *c = q + 128 * n + l;
            p[32 * n + l] = (uint8_t)((c[0] & 3) | (c[32] & 3) << 2 | (c[64] & 3) << 4 | (c[96] & 3) << 6);
        }
}

static void quant_q2_k(const float *x, uint8_t *p)
{
    struct affine_block f;
    fit_affine_block(x, 16, 2, 15, &f);
    for (int g = 0; g < 16; g++)
        p[g] = (uint8_t)(f.sc[g] | f.mn[g] << 4);
    put_two_bits(f.q, p + 16);
    put_half(p + 80, f.d);
    put_half(p + 82, f.dmin);
}

/* Bit i/32 of byte i%32, for the bits `bit` of 256 codes: the high bits of Q3_K and Q5_K. */
static void put_bit_planes(const uint8_t *q, int bit, uint8_t *p)
{
    memset(p, 0, 32);
    for (int i = 0; i < 256; i++)
        p[i % 32] |= (uint8_t)((q[i] >> bit & 1) << i / 32);
}

static void quant_q4_k_q5_k(const float *x, uint8_t *p, int bits)
{
    struct affine_block f;
    fit_affine_block(x, 32, bits, 63, &f);
    put_half(p, f.d);
    put_half(p + 2, f.dmin);
    for (int j = 0; j < 4; j++) {
        p[4 + j] = (uint8_t)(f.sc[j] | (f.sc[j + 4] >> 4) << 6);
        p[8 + j] = (uint8_t)(f.mn[j] | (f.mn[j + 4] >> 4) << 6);
        p[12 + j] = (uint8_t)((f.sc[j + 4] & 15) | (f.mn[j + 4] & 15) << 4);
    }
    p += 16;
    if (bits == 5) {
        put_bit_planes(f.q, 4, p);
        p += 32;
    }
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++)
            p[32 * i + l] = (uint8_t)((f.q[64 * i + l] & 15) | (f.q[64 * i + 32 + l] & 15) << 4);
}

/* Scales of groups without minima; returns the common factor. */
static uint16_t fit_scaled_block(const float *x, const struct levels *l, int group, int low, int high, int *scales, float *a)
{
    for (int g = 0; g < 256 / group; g++)
        a[g] = fit_scale(l, x + g * group, group);
    return common_scale(a, 256 / group, low, high, scales);
}

static void quant_q3_k(const float *x, uint8_t *p)
{
    struct levels l = {-4, 3, false};
    int sc[16];
    float a[16];
    uint8_t q[256];
    uint16_t d = fit_scaled_block(x, &l, 16, -32, 31, sc, a);
    memset(p + 96, 0, 12);
    for (int g = 0; g < 16; g++) {
        unsigned s = (unsigned)(sc[g] + 32);
        p[96 + g % 8] |= (uint8_t)((s & 15) << 4 * (g / 8));
        p[104 + g % 4] |= (uint8_t)(s >> 4 << 2 * (g / 4));
        codes(x + 16 * g, 16, a[g], 0, 4, 7, q + 16 * g);
    }
    put_bit_planes(q, 2, p);
    put_two_bits(q, p + 32);
    put_half(p + 108, d);
}

static void quant_q6_k(const float *x, uint8_t *p)
{
    struct levels l = {-32, 31, false};
    int sc[16];
    float a[16];
    uint8_t q[256];
    uint16_t d = fit_scaled_block(x, &l, 16, -128, 127, sc, a);
    for (int g = 0; g < 16; g++) {
        p[192 + g] = (uint8_t)(int8_t)sc[g];
        codes(x + 16 * g, 16, a[g], 0, 32, 63, q + 16 * g);
    }
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 32; i++) {
            const uint8_t *c = q + 128 * n + i;
            p[64 * n + i] = (uint8_t)((c[0] & 15) | (c[64] & 15) << 4);
            p[64 * n + 32 + i] = (uint8_t)((c[32] & 15) | (c[96] & 15) << 4);
            p[128 + 32 * n + i] = (uint8_t)(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
        }
    put_half(p + 208, d);
}

static void quant_iq4_xs(const float *x, uint8_t *p)
{
    int sc[8];
    float a[8];
    uint16_t d = fit_scaled_block(x, &iq4_levels, 32, -32, 31, sc, a), high = 0;
    memset(p + 4, 0, 4);
    for (int g = 0; g < 8; g++) {
        unsigned s = (unsigned)(sc[g] + 32);
        p[4 + g / 2] |= (uint8_t)((s & 15) << 4 * (g % 2));
        high |= (uint16_t)(s >> 4 << 2 * g);
        iq4_codes(x + 32 * g, a[g], p + 8 + 16 * g);
    }
    put_half(p, d);
    put_half(p + 2, high);
}

/* ---- by type ---- */

static void quant_block(uint32_t type, const float *x, uint8_t *p)
{
    switch (type) {
    case KRN_F32: memcpy(p, x, sizeof *x); break;
    case KRN_F16: put_half(p, krn_f32_to_f16(*x)); break;
    case KRN_BF16: put_half(p, krn_f32_to_bf16(*x)); break;
    case KRN_Q8_0: quant_q8_0(x, p); break;
    case KRN_Q4_0: quant_scaled(x, p, 4); break;
    case KRN_Q4_1: quant_affine(x, p, 4); break;
    case KRN_Q5_0: quant_scaled(x, p, 5); break;
    case KRN_Q5_1: quant_affine(x, p, 5); break;
    case KRN_IQ4_NL: quant_iq4_nl(x, p); break;
    case KRN_Q2_K: quant_q2_k(x, p); break;
    case KRN_Q3_K: quant_q3_k(x, p); break;
    case KRN_Q4_K: quant_q4_k_q5_k(x, p, 4); break;
    case KRN_Q5_K: quant_q4_k_q5_k(x, p, 5); break;
    case KRN_Q6_K: quant_q6_k(x, p); break;
    case KRN_IQ4_XS: quant_iq4_xs(x, p); break;
    default: break;
    }
}

void krn_quant_row(uint32_t type, const float *src, void *dst, size_t n)
{
    const struct krn_type_info *info = krn_type_info(type);
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += info->block_elems, p += info->block_bytes)
        quant_block(type, src + i, p);
}
