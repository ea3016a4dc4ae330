/* Block formats taken apart: the one portable decoder per format. Dequantisation and the portable matmul are built on it. */
#include "kernels/quant_impl.h"

/* The values that the 16 codes of IQ4_NL and IQ4_XS stand for, plus 128. */
static const uint8_t iq4_values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* ---- formats of 32 weights; code j is the low nibble of byte j, code 16 + j its high nibble ---- */

static void split_q4_0(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    a[0] = quant_half_at(p);
    for (int j = 0; j < 16; j++) {
        q[j] = p[2 + j] & 15;
        q[16 + j] = p[2 + j] >> 4;
    }
}

static void split_q4_1(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    split_q4_0(p + 2, q, b, NULL);
    a[0] = quant_half_at(p);
    b[0] = -quant_half_at(p + 2);
}

/* The fifth bits of 32 codes, as the bits of one word. */
static void add_fifth_bits(const uint8_t *p, uint8_t *q)
{
    uint32_t high;
    memcpy(&high, p, sizeof high);
    for (int j = 0; j < 32; j++)
        q[j] |= (uint8_t)((high >> j & 1) << 4);
}

static void split_q5_0(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    split_q4_0(p + 4, q, a, b);
    add_fifth_bits(p + 2, q);
    a[0] = quant_half_at(p);
}

static void split_q5_1(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    split_q4_0(p + 6, q, a, NULL);
    add_fifth_bits(p + 4, q);
    a[0] = quant_half_at(p);
    b[0] = -quant_half_at(p + 2);
}

static void split_q8_0(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    a[0] = quant_half_at(p);
    for (int j = 0; j < 32; j++)
        q[j] = p[2 + j] ^ 0x80;
}

static void split_iq4_nl(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    split_q4_0(p, q, a, b);
    for (int j = 0; j < 32; j++)
        q[j] = iq4_values[q[j]];
}

/* ---- formats of 256 weights ---- */

/* Two bits per weight: code 128n + 32j + l sits in byte 32n + l at bit 2j. */
static void two_bit_codes(const uint8_t *p, uint8_t *q)
{
    for (int n = 0; n < 2; n++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                q[128 * n + 32 * j + l] = p[32 * n + l] >> 2 * j & 3;
}

static void split_q2_k(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    float d = quant_half_at(p + 80), dmin = quant_half_at(p + 82);
    for (int g = 0; g < 16; g++) {
        a[g] = d * (float)(p[g] & 15);
        b[g] = dmin * (float)(p[g] >> 4);
    }
    two_bit_codes(p + 16, q);
}

static void split_q3_k(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    const uint8_t *scales = p + 96;
    float d = quant_half_at(p + 108);
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        int high = scales[8 + g % 4] >> 2 * (g / 4) & 3;
        a[g] = d * (float)((low | high << 4) - 32);
    }
    two_bit_codes(p + 32, q);
    for (int i = 0; i < 256; i++)
        q[i] |= (uint8_t)((p[i % 32] >> i / 32 & 1) << 2);
}

/* The eight 6-bit scales and minima of Q4_K and Q5_K, with the two halves in front of them. */
static void k_scales(const uint8_t *p, float *a, float *b)
{
    float d = quant_half_at(p), dmin = quant_half_at(p + 2);
    const uint8_t *s = p + 4;
    for (int j = 0; j < 4; j++) {
        a[j] = d * (float)(s[j] & 63);
        b[j] = dmin * (float)(s[j + 4] & 63);
        a[j + 4] = d * (float)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        b[j + 4] = dmin * (float)(s[j + 8] >> 4 | (s[j + 4] >> 6) << 4);
    }
}

/* Four bits per weight: codes 64i + l and 64i + 32 + l share byte 32i + l. */
static void k_nibbles(const uint8_t *p, uint8_t *q)
{
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++) {
            q[64 * i + l] = p[32 * i + l] & 15;
            q[64 * i + 32 + l] = p[32 * i + l] >> 4;
        }
}

static void split_q4_k(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    k_scales(p, a, b);
    k_nibbles(p + 16, q);
}

static void split_q5_k(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    k_scales(p, a, b);
    k_nibbles(p + 48, q);
    for (int i = 0; i < 256; i++)
        q[i] |= (uint8_t)((p[16 + i % 32] >> i / 32 & 1) << 4);
}

static void split_q6_k(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p + 208);
    for (int g = 0; g < 16; g++)
        a[g] = d * (float)(int8_t)p[192 + g];
    for (int n = 0; n < 2; n++) {
        const uint8_t *low = p + 64 * n, *high = p + 128 + 32 * n;
        for (int l = 0; l < 32; l++) {
            uint8_t *to = q + 128 * n + l;
            to[0] = (uint8_t)((low[l] & 15) | (high[l] & 3) << 4);
            to[32] = (uint8_t)((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4);
            to[64] = (uint8_t)(low[l] >> 4 | (high[l] >> 4 & 3) << 4);
            to[96] = (uint8_t)(low[l + 32] >> 4 | high[l] >> 6 << 4);
        }
    }
}

static void split_iq4_xs(const uint8_t *p, uint8_t *q, float *a, float *b)
{
    (void)b;
    float d = quant_half_at(p);
    uint16_t high;
    memcpy(&high, p + 2, sizeof high);
    for (int g = 0; g < 8; g++) {
        int scale = (p[4 + g / 2] >> 4 * (g % 2) & 15) | (high >> 2 * g & 3) << 4;
        a[g] = d * (float)(scale - 32);
        for (int j = 0; j < 16; j++) {
            uint8_t byte = p[8 + 16 * g + j];
            q[32 * g + j] = iq4_values[byte & 15];
            q[32 * g + 16 + j] = iq4_values[byte >> 4];
        }
    }
}

/* ---- by type ---- */

struct format {
    struct krn_quant_form form;
    void (*split)(const uint8_t *block, uint8_t *q, float *a, float *b);
};

static const struct format formats[KRN_TYPE_MAX] = {
    [KRN_Q4_0] = {{32, 3, false}, split_q4_0}, [KRN_Q4_1] = {{32, 0, true}, split_q4_1},  [KRN_Q5_0] = {{32, 4, false}, split_q5_0},
    [KRN_Q5_1] = {{32, 0, true}, split_q5_1},  [KRN_Q8_0] = {{32, 7, false}, split_q8_0}, [KRN_IQ4_NL] = {{32, 7, false}, split_iq4_nl},
    [KRN_Q2_K] = {{16, 0, true}, split_q2_k},  [KRN_Q3_K] = {{16, 2, false}, split_q3_k}, [KRN_Q4_K] = {{32, 0, true}, split_q4_k},
    [KRN_Q5_K] = {{32, 0, true}, split_q5_k},  [KRN_Q6_K] = {{16, 5, false}, split_q6_k}, [KRN_IQ4_XS] = {{32, 7, false}, split_iq4_xs},
    [KRN_IQ2_XXS] = {{32, 7, false}, quant_split_iq2_xxs}, [KRN_IQ2_XS] = {{16, 7, false}, quant_split_iq2_xs},
    [KRN_IQ2_S] = {{16, 7, false}, quant_split_iq2_s},     [KRN_IQ3_XXS] = {{32, 7, false}, quant_split_iq3_xxs},
    [KRN_IQ3_S] = {{32, 7, false}, quant_split_iq3_s},     [KRN_IQ1_S] = {{32, 7, false}, quant_split_iq1_s},
    [KRN_IQ1_M] = {{16, 7, false}, quant_split_iq1_m},     [KRN_MXFP4] = {{32, 4, false}, quant_split_mxfp4},
    [KRN_TQ1_0] = {{32, 0, false}, quant_split_tq1_0},     [KRN_TQ2_0] = {{32, 0, false}, quant_split_tq2_0},
};

struct krn_quant_form krn_quant_form(uint32_t type)
{
    return formats[type].form;
}

void krn_quant_split(uint32_t type, const void *src, size_t n, uint8_t *q, float *a, float *b)
{
    const struct krn_type_info *info = krn_type_info(type);
    const struct format *f = &formats[type];
    const uint8_t *p = src;
    size_t groups = (size_t)info->block_elems / f->form.group;
    for (size_t i = 0; i < n; i += info->block_elems) {
        f->split(p, q, a, b);
        p += info->block_bytes;
        q += info->block_elems;
        a += groups;
        if (f->form.minima)
            b += groups;
    }
}

/* One group; a function of its own so that the compiler makes vectors of it. */
static inline void dequant_group(struct krn_quant_form form, const uint8_t *q, float a, float b, float *dst, int n)
{
    int zero = 1 << form.zero_shift;
    if (form.minima)
        for (int i = 0; i < n; i++)
            dst[i] = a * (float)q[i] - b;
    else
        for (int i = 0; i < n; i++)
            dst[i] = a * (float)(q[i] - zero);
}

static void dequant_quantised(uint32_t type, const uint8_t *src, float *dst, size_t n)
{
    const struct krn_type_info *info = krn_type_info(type);
    const struct format *f = &formats[type];
    uint8_t q[256];
    float a[16], b[16] = {0};
    for (size_t i = 0; i < n; i += info->block_elems, src += info->block_bytes) {
        f->split(src, q, a, b);
        for (size_t j = 0; j < info->block_elems; j += f->form.group) {
            size_t g = j / f->form.group;
            if (f->form.group == 32)
                dequant_group(f->form, q + j, a[g], b[g], dst + i + j, 32);
            else
                dequant_group(f->form, q + j, a[g], b[g], dst + i + j, 16);
        }
    }
}

void krn_dequant_row(uint32_t type, const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    uint16_t h;
    switch (type) {
    case KRN_F32: memcpy(dst, src, n * sizeof *dst); return;
    case KRN_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = quant_half_at(p + 2 * i);
        return;
    case KRN_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, sizeof h);
            dst[i] = krn_bf16_to_f32(h);
        }
        return;
    default: dequant_quantised(type, p, dst, n);
    }
}

/* ---- int8 activations ---- */

void krn_q8_odd_block(uint32_t max_bits, int8_t *q, struct krn_q8_block *block)
{
    float d = max_bits >= KRN_Q8_INFINITE ? krn_f32_from_bits(0x7fc00000u) : 0.0f;
    memset(q, 0, 32);
    *block = (struct krn_q8_block){.d = d, .s = d};
}

/* rintf() for |x| < 2^22, without a call: the sum has no room for a fraction. */
static inline float nearest_even(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

static void q8_quant_block(const float *x, int8_t *q, struct krn_q8_block *block)
{
    /* Compared as integers, magnitudes order as floats do, and a NaN is larger than everything. */
    uint32_t max = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t mag = krn_f32_bits(x[i]) & 0x7fffffffu;
        max = mag > max ? mag : max;
    }
    if (max >= KRN_Q8_INFINITE || max < KRN_Q8_TINY) {
        krn_q8_odd_block(max, q, block);
        return;
    }
    float amax = krn_f32_from_bits(max), inverse = 127.0f / amax;
    int32_t low = 0, high = 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)nearest_even(x[i] * inverse);
        q[16 + i] = (int8_t)nearest_even(x[16 + i] * inverse);
        low += q[i];
        high += q[16 + i];
    }
    float d = amax / 127.0f;
    *block = (struct krn_q8_block){.d = d, .s = d * (float)(low + high), .neg_sum = -(low + high), .neg_sum_low = -low};
}

void krn_q8_quant_row(const float *x, void *q8, size_t k)
{
    int8_t *q = q8;
    struct krn_q8_block *blocks = (struct krn_q8_block *)(q + krn_q8_blocks_offset(k));
    for (size_t i = 0; i < k; i += 32)
        q8_quant_block(x + i, q + i, &blocks[i / 32]);
}

void krn_q8_dequant_row(const void *q8, float *x, size_t k)
{
    const int8_t *q = q8;
    const struct krn_q8_block *blocks = (const struct krn_q8_block *)(q + krn_q8_blocks_offset(k));
    for (size_t i = 0; i < k; i++)
        x[i] = blocks[i / 32].d * (float)q[i];
}
