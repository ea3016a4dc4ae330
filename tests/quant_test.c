/* kernels/type.c, kernels/quant*.c: geometry, 16-bit floats, every block format against its formula, the encoder's error, int8 activations. */
#include "kernels/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"

static uint64_t seed = 1;

static uint32_t random_u32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) ^ (uint32_t)(seed >> 20);
}

static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)(random_u32() >> 8) * 0x1p-24f;
    return sum - 6;
}

static const uint32_t quantised_types[] = {KRN_Q4_0, KRN_Q4_1, KRN_Q5_0, KRN_Q5_1, KRN_Q8_0,   KRN_Q2_K,
                                           KRN_Q3_K, KRN_Q4_K, KRN_Q5_K, KRN_Q6_K, KRN_IQ4_NL, KRN_IQ4_XS};
enum { QUANTISED = sizeof quantised_types / sizeof quantised_types[0] };

/* ---- geometry ---- */

static void test_types(void)
{
    static const struct {
        uint32_t type;
        const char *name;
        unsigned elems, bytes;
    } known[] = {
        {0, "F32", 1, 4},       {1, "F16", 1, 2},       {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},     {6, "Q5_0", 32, 22},
        {7, "Q5_1", 32, 24},    {8, "Q8_0", 32, 34},    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},  {12, "Q4_K", 256, 144},
        {13, "Q5_K", 256, 176}, {14, "Q6_K", 256, 210}, {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98},
        {19, "IQ1_S", 256, 50}, {20, "IQ4_NL", 32, 18}, {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},  {23, "IQ4_XS", 256, 136},
        {29, "IQ1_M", 256, 56}, {30, "BF16", 1, 2},     {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},  {39, "MXFP4", 32, 17},
    };
    size_t next = 0;
    for (uint32_t t = 0; t < 300; t++) {
        const struct krn_type_info *info = krn_type_info(t);
        if (next == sizeof known / sizeof known[0] || known[next].type != t) {
            if (info != NULL)
                tap_ok(false, "type %u should be unknown, is %s", (unsigned)t, info->name);
            continue;
        }
        tap_ok(info != NULL && strcmp(info->name, known[next].name) == 0 && info->block_elems == known[next].elems &&
                   info->block_bytes == known[next].bytes && info->quantised == (known[next].elems > 1),
               "type %u is %s, %u weights in %u bytes", (unsigned)t, known[next].name, known[next].elems, known[next].bytes);
        next++;
    }
    tap_ok(krn_type_info(UINT32_MAX) == NULL, "the largest number is no type");
    tap_eq_int((long long)krn_row_bytes(KRN_Q5_K, 6144), 4224, "a row of 6144 Q5_K weights has 4224 bytes");
    tap_eq_int((long long)krn_row_bytes(KRN_Q8_0, 192), 204, "a row of 192 Q8_0 weights has 204 bytes");
}

/* ---- 16-bit floats ---- */

static double half_value(unsigned h)
{
    unsigned e = h >> 10 & 31, m = h & 1023;
    double mag = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, (int)e - 25);
    return h & 0x8000 ? -mag : mag;
}

/* Nearest half of a finite float, ties to even, by walking the ordered list of positive halves. */
static unsigned half_nearest(float f)
{
    double x = fabs((double)f);
    unsigned low = 0, high = 0x7c00; /* the last stands for infinity and sits at 65536 */
    while (high - low > 1) {
        unsigned mid = (low + high) / 2;
        if (half_value(mid) <= x)
            low = mid;
        else
            high = mid;
    }
    double below = x - half_value(low), above = (high == 0x7c00 ? 65536.0 : half_value(high)) - x;
    unsigned h = below < above || (below == above && low % 2 == 0) ? low : high;
    return h | (signbit(f) ? 0x8000u : 0);
}

static void test_half(void)
{
    int wrong = 0, back = 0;
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = krn_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            bool nan = (h & 0x3ff) != 0;
            wrong += nan ? !isnan(f) : !isinf(f) || (f < 0) != (h >> 15 != 0);
            back += nan ? (krn_f32_to_f16(f) & 0x7fff) <= 0x7c00 : krn_f32_to_f16(f) != h;
            continue;
        }
        wrong += (double)f != half_value(h) || (signbit(f) != 0) != (h >> 15 != 0);
        back += krn_f32_to_f16(f) != h;
    }
    tap_eq_int(wrong, 0, "every half has its value");
    tap_eq_int(back, 0, "every half survives float and back");

    wrong = 0;
    for (int i = 0; i < 200000; i++) {
        float f = krn_f32_from_bits((random_u32() & 0x807fffffu) | (96 + random_u32() % 50) << 23);
        if (i % 4 == 0)
            f = (float)half_value(random_u32() % 0x7bff);
        if (i % 4 == 1) { /* exactly between two halves */
            unsigned h = random_u32() % 0x7bff;
            f = (float)((half_value(h) + half_value(h + 1)) / 2);
        }
        wrong += krn_f32_to_f16(f) != half_nearest(f);
    }
    tap_eq_int(wrong, 0, "floats round to the nearest half, ties to even");
    tap_eq_int(krn_f32_to_f16(65519.996f), 0x7bff, "just below 65520 is the largest half");
    tap_eq_int(krn_f32_to_f16(-65520.0f), 0xfc00, "-65520 is minus infinity");
    tap_eq_int(krn_f32_to_f16(0x1p-25f), 0, "half of the smallest subnormal rounds to zero");
    tap_eq_int(krn_f32_to_f16(0x1.000002p-25f), 1, "a little more rounds up");
    tap_ok(isnan(krn_f16_to_f32(krn_f32_to_f16(NAN))), "NaN stays NaN");
}

static void test_bf16(void)
{
    int wrong = 0;
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = krn_bf16_to_f32((uint16_t)h);
        wrong += isnan(f) ? (krn_f32_to_bf16(f) & 0x7fff) <= 0x7f80 : krn_f32_to_bf16(f) != h;
    }
    tap_eq_int(wrong, 0, "every bfloat16 survives float and back");
    tap_eq_int(krn_f32_to_bf16(krn_f32_from_bits(0x3f808000u)), 0x3f80, "a tie goes to the even side, down");
    tap_eq_int(krn_f32_to_bf16(krn_f32_from_bits(0x3f818000u)), 0x3f82, "a tie goes to the even side, up");
    tap_eq_int(krn_f32_to_bf16(krn_f32_from_bits(0x3f808001u)), 0x3f81, "just above a tie goes up");
    tap_eq_int(krn_f32_to_bf16(3.4e38f), 0x7f80, "a float above the largest bfloat16 becomes infinity");
}

/* ---- formats: weight i of a block straight from the format's description ---- */

static float half_at(const uint8_t *p)
{
    return (float)half_value(p[0] | (unsigned)p[1] << 8);
}

static int nibble(const uint8_t *q, int i) /* of 32 weights in 16 bytes */
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

static int fifth_bit(const uint8_t *p, int i)
{
    return (p[i / 8] >> i % 8 & 1) << 4;
}

static int iq4(int code)
{
    static const int table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return table[code];
}

static int k_scale(const uint8_t *s, int j)
{
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}

static int k_min(const uint8_t *s, int j)
{
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

static int k_nibble(const uint8_t *q, int i)
{
    int byte = q[i / 64 * 32 + i % 32];
    return i % 64 < 32 ? byte & 15 : byte >> 4;
}

static int q3_scale(const uint8_t *s, int k)
{
    int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
    return (low | (s[8 + k % 4] >> 2 * (k / 4) & 3) << 4) - 32;
}

static float formula_32(uint32_t type, const uint8_t *p, int i)
{
    switch (type) {
    case KRN_Q4_0: return (float)(nibble(p + 2, i) - 8) * half_at(p);
    case KRN_Q4_1: return (float)nibble(p + 4, i) * half_at(p) + half_at(p + 2);
    case KRN_Q5_0: return (float)((nibble(p + 6, i) | fifth_bit(p + 2, i)) - 16) * half_at(p);
    case KRN_Q5_1: return (float)(nibble(p + 8, i) | fifth_bit(p + 4, i)) * half_at(p) + half_at(p + 2);
    case KRN_Q8_0: return (float)(int8_t)p[2 + i] * half_at(p);
    default: return half_at(p) * (float)iq4(nibble(p + 2, i));
    }
}

static float formula_256(uint32_t type, const uint8_t *p, int i)
{
    int g = i / 16, two = 2 * (i / 32 % 4), sub = i / 32;
    switch (type) {
    case KRN_Q2_K: {
        int q = p[16 + i / 128 * 32 + i % 32] >> two & 3;
        return half_at(p + 80) * (float)(p[g] & 15) * (float)q - half_at(p + 82) * (float)(p[g] >> 4);
    }
    case KRN_Q3_K: {
        int q = (p[32 + i / 128 * 32 + i % 32] >> two & 3) - (p[i % 32] >> sub & 1 ? 0 : 4);
        return half_at(p + 108) * (float)q3_scale(p + 96, g) * (float)q;
    }
    case KRN_Q4_K: return half_at(p) * (float)k_scale(p + 4, sub) * (float)k_nibble(p + 16, i) - half_at(p + 2) * (float)k_min(p + 4, sub);
    case KRN_Q5_K: {
        int q = k_nibble(p + 48, i) + 16 * (p[16 + i % 32] >> sub & 1);
        return half_at(p) * (float)k_scale(p + 4, sub) * (float)q - half_at(p + 2) * (float)k_min(p + 4, sub);
    }
    case KRN_Q6_K: {
        const uint8_t *low = p + 64 * (i / 128) + i % 64;
        int high = p[128 + 32 * (i / 128) + i % 32] >> two & 3;
        int q = (i % 128 < 64 ? *low & 15 : *low >> 4) | high << 4;
        return half_at(p + 208) * (float)(int8_t)p[192 + g] * (float)(q - 32);
    }
    default: {
        int scale = (p[4 + sub / 2] >> 4 * (sub % 2) & 15) | ((p[2] | p[3] << 8) >> 2 * sub & 3) << 4;
        return half_at(p) * (float)(scale - 32) * (float)iq4(nibble(p + 8 + 16 * sub, i % 32));
    }
    }
}

/* Byte offsets of the halves in a block; -1: none. */
static void half_offsets(uint32_t type, int *d, int *m)
{
    *d = type == KRN_Q2_K ? 80 : type == KRN_Q3_K ? 108 : type == KRN_Q6_K ? 208 : 0;
    *m = type == KRN_Q2_K ? 82 : type == KRN_Q4_1 || type == KRN_Q5_1 || type == KRN_Q4_K || type == KRN_Q5_K ? 2 : -1;
}

static void random_block(uint32_t type, uint8_t *p)
{
    int d, m;
    half_offsets(type, &d, &m);
    for (int i = 0; i < krn_type_info(type)->block_bytes; i++)
        p[i] = (uint8_t)random_u32();
    for (int i = 0; i < 2; i++) {
        int at = i == 0 ? d : m;
        if (at >= 0 && (p[at + 1] & 0x7c) == 0x7c) /* infinity or NaN */
            p[at + 1] ^= 0x40;
    }
}

static void test_formats(void)
{
    enum { BLOCKS = 300 };
    for (int t = 0; t < QUANTISED; t++) {
        uint32_t type = quantised_types[t];
        const struct krn_type_info *info = krn_type_info(type);
        size_t n = (size_t)BLOCKS * info->block_elems, bytes = krn_row_bytes(type, n), wrong = 0;
        uint8_t *row = malloc(bytes);
        float *got = malloc(n * sizeof *got);
        for (size_t b = 0; b < BLOCKS; b++)
            random_block(type, row + b * info->block_bytes);
        krn_dequant_row(type, row, got, n);
        for (size_t i = 0; i < n; i++) {
            const uint8_t *p = row + i / info->block_elems * info->block_bytes;
            int j = (int)(i % info->block_elems);
            float want = info->block_elems == 32 ? formula_32(type, p, j) : formula_256(type, p, j);
            wrong += memcmp(&want, &got[i], sizeof want) != 0;
        }
        tap_eq_int((long long)wrong, 0, "%s: %d random blocks have the values of the formula", info->name, BLOCKS);
        free(row);
        free(got);
    }
}

/* ---- encoder ---- */

/* Largest acceptable relative error (rms error / rms value) for normally distributed weights; what rounding to that many levels leaves. */
static const struct {
    uint32_t type;
    double error;
} bounds[] = {{KRN_F32, 0},       {KRN_F16, 3e-4},      {KRN_BF16, 2.5e-3},   {KRN_Q8_0, 6e-3},   {KRN_Q6_K, 1.9e-2},
              {KRN_Q5_K, 3.7e-2}, {KRN_Q5_1, 3.9e-2},   {KRN_Q5_0, 4.4e-2},   {KRN_Q4_K, 7.5e-2}, {KRN_Q4_1, 8e-2},
              {KRN_Q4_0, 8.9e-2}, {KRN_IQ4_XS, 7.5e-2}, {KRN_IQ4_NL, 7.5e-2}, {KRN_Q3_K, 1.6e-1}, {KRN_Q2_K, 3e-1}};

static void test_encoder(void)
{
    enum { N = 256 * 64 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint8_t *row = malloc(N * sizeof *x + 16);
    for (int i = 0; i < N; i++)
        x[i] = random_normal() * 0.02f;
    for (size_t t = 0; t < sizeof bounds / sizeof bounds[0]; t++) {
        uint32_t type = bounds[t].type;
        size_t bytes = krn_row_bytes(type, N);
        memset(row, 0xA5, N * sizeof *x + 16);
        krn_quant_row(type, x, row, N);
        krn_dequant_row(type, row, y, N);
        double error = 0, norm = 0;
        for (int i = 0; i < N; i++) {
            error += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
            norm += (double)x[i] * (double)x[i];
        }
        error = sqrt(error / norm);
        int spilt = 0;
        for (int i = 0; i < 16; i++)
            spilt += row[bytes + (size_t)i] != 0xA5;
        tap_ok(error <= bounds[t].error && spilt == 0, "%s: encoding a normal distribution loses %.4f, at most %.4f",
               krn_type_info(type)->name, error, bounds[t].error);
    }
    memset(x, 0, N * sizeof *x);
    int nonzero = 0;
    for (size_t t = 0; t < sizeof bounds / sizeof bounds[0]; t++) {
        krn_quant_row(bounds[t].type, x, row, N);
        krn_dequant_row(bounds[t].type, row, y, N);
        for (int i = 0; i < N; i++)
            nonzero += y[i] != 0;
    }
    tap_eq_int(nonzero, 0, "zeros stay zeros in every format");
    free(x);
    free(y);
    free(row);
}

/* ---- int8 activations ---- */

static void test_q8(void)
{
    enum { K = 96 };
    _Alignas(64) uint8_t row[512];
    float x[K], back[K];
    tap_eq_int((long long)krn_q8_row_bytes(K), 128 + 64, "a row of 96 values has 192 bytes");
    for (int i = 0; i < K; i++)
        x[i] = random_normal();
    x[5] = -127.0f * 0.25f; /* amax of block 0: d = 0.25, quotients are exact */
    x[6] = 0.375f;          /* 1.5 */
    x[7] = 0.625f;          /* 2.5 */
    memset(x + 32, 0, 32 * sizeof x[0]);
    krn_q8_quant_row(x, row, K);
    const int8_t *q = (const int8_t *)row;
    const struct krn_q8_block *b = (const struct krn_q8_block *)(row + krn_q8_blocks_offset(K));
    tap_ok(q[5] == -127 && q[6] == 2 && q[7] == 2 && b[0].d == 0.25f, "values are rounded to even multiples of amax / 127");
    tap_ok(b[1].d == 0 && b[1].neg_sum == 0 && q[40] == 0, "a block of zeros");
    krn_q8_dequant_row(row, back, K);
    int wrong = 0;
    for (int i = 0; i < K; i++)
        wrong += !(fabsf(back[i] - x[i]) <= b[i / 32].d * 0.5001f);
    tap_eq_int(wrong, 0, "each value is within half a step");
    for (int j = 0; j < 3; j++) {
        int low = 0, all = 0;
        for (int i = 0; i < 32; i++) {
            all += q[32 * j + i];
            low += i < 16 ? q[32 * j + i] : 0;
        }
        wrong += b[j].neg_sum != -all || b[j].neg_sum_low != -low || b[j].s != b[j].d * (float)all;
    }
    tap_eq_int(wrong, 0, "the sums of a block are those of its values");
    x[33] = INFINITY;
    x[70] = NAN;
    krn_q8_quant_row(x, row, K);
    tap_ok(isnan(b[1].d) && isnan(b[2].d) && b[0].d == 0.25f, "an infinity or a NaN makes its block NaN, and no other");
    for (int i = 0; i < K; i++)
        x[i] = i % 2 == 0 ? 1e-38f : -1e-44f;
    krn_q8_quant_row(x, row, K);
    tap_ok(b[0].d == 0 && q[0] == 0, "magnitudes near the end of the float range count as zero");
}

/* ---- made-up blocks ---- */

static void test_random(void)
{
    enum { N = 256 * 64 };
    static float y[N];
    static uint8_t row[N * sizeof(float)];
    for (uint32_t type = 0; type < KRN_TYPE_MAX; type++) {
        if (krn_type_info(type) == NULL)
            continue;
        uint64_t blocks = 9;
        double sum = 0, squares = 0;
        krn_quant_random(type, &blocks, 0.03125f, row, N);
        krn_dequant_row(type, row, y, N);
        for (int i = 0; i < N; i++) {
            sum += (double)y[i];
            squares += (double)y[i] * (double)y[i];
        }
        double mean = sum / N, deviation = sqrt(squares / N - mean * mean) / 0.03125;
        tap_ok(deviation > 0.7 && deviation < 1.4 && fabs(mean) < 0.01, "%s: made-up weights have deviation %.2f of what was asked, mean %.4f",
               krn_type_info(type)->name, deviation, mean);
    }
}

int main(void)
{
    test_types();
    test_half();
    test_bf16();
    test_formats();
    test_encoder();
    test_random();
    test_q8();
    return tap_done();
}
