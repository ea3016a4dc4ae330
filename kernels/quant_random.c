/* Made-up weights: random codes, scales that give them about the wanted deviation. */
#include <math.h>

#include "kernels/quant_impl.h"

static uint64_t next(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static const struct krn_quant_scales layouts[KRN_TYPE_MAX] = {
    [KRN_Q4_0] = {0, -1, 4.6f, 0},        [KRN_Q4_1] = {0, 2, 4.6f, -7.5f},   [KRN_Q5_0] = {0, -1, 9.2f, 0},      [KRN_Q5_1] = {0, 2, 9.2f, -15.5f},
    [KRN_Q8_0] = {0, -1, 74, 0},          [KRN_IQ4_NL] = {0, -1, 67, 0},      [KRN_Q2_K] = {80, 82, 13.9f, 1.5f}, [KRN_Q3_K] = {108, -1, 43, 0},
    [KRN_Q4_K] = {0, 2, 258, 7.5f},       [KRN_Q5_K] = {0, 2, 527, 15.5f},    [KRN_Q6_K] = {208, -1, 1366, 0},    [KRN_IQ4_XS] = {0, -1, 1245, 0},
    [KRN_IQ2_XXS] = {0, -1, 50, 0},       [KRN_IQ2_XS] = {0, -1, 50, 0},      [KRN_IQ2_S] = {0, -1, 50, 0},       [KRN_IQ3_XXS] = {0, -1, 138, 0},
    [KRN_IQ3_S] = {0, -1, 157, 0},        [KRN_IQ1_S] = {0, -1, 7.6f, 0},     [KRN_TQ1_0] = {52, -1, 0.8f, 0},    [KRN_TQ2_0] = {64, -1, 0.7f, 0},
    [KRN_IQ1_M] = {-1, -1, 7.6f, 0},      [KRN_MXFP4] = {-1, -1, 5.85f, 0},
};

struct krn_quant_scales krn_quant_scales(uint32_t type)
{
    return layouts[type];
}

static void put_half(uint8_t *p, float x)
{
    uint16_t h = krn_f32_to_f16(x);
    memcpy(p, &h, sizeof h);
}

static void set_scales(uint32_t type, uint8_t *p, float scale)
{
    const struct krn_quant_scales *l = &layouts[type];
    if (type == KRN_MXFP4) {
        p[0] = (uint8_t)(128 + (int)rintf(log2f(scale / l->deviation)));
    } else if (type == KRN_IQ1_M) { /* spread over the upper four bits of four words */
        uint16_t h = krn_f32_to_f16(scale / l->deviation);
        for (int i = 0; i < 4; i++)
            p[49 + 2 * i] = (uint8_t)((p[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
    } else {
        for (int i = 0; type == KRN_TQ2_0 && i < 64; i++) /* 3 is no code: 1 */
            p[i] &= (uint8_t) ~((p[i] & p[i] >> 1 & 0x55) << 1);
        put_half(p + l->d, scale / l->deviation);
        if (l->m >= 0)
            put_half(p + l->m, scale / l->deviation * l->ratio);
    }
}

static float uniform(uint64_t *seed, float scale)
{
    return ((float)(next(seed) >> 40) * 0x1p-23f - 1) * 1.73f * scale;
}

void krn_quant_random(uint32_t type, uint64_t *seed, float scale, void *dst, size_t n)
{
    const struct krn_type_info *info = krn_type_info(type);
    uint8_t *p = dst;
    if (!info->quantised) {
        for (size_t i = 0; i < n; i++, p += info->block_bytes) {
            float x = uniform(seed, scale);
            uint16_t h = type == KRN_F16 ? krn_f32_to_f16(x) : krn_f32_to_bf16(x);
            memcpy(p, type == KRN_F32 ? (const void *)&x : &h, info->block_bytes);
        }
        return;
    }
    size_t bytes = krn_row_bytes(type, n), i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t v = next(seed);
        memcpy(p + i, &v, 8);
    }
    for (uint64_t v = next(seed); i < bytes; i++, v >>= 8)
        p[i] = (uint8_t)v;
    for (i = 0; i < bytes; i += info->block_bytes)
        set_scales(type, p + i, scale);
}
