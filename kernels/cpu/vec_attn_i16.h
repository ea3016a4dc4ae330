/* Absorbed attention over an f16 cache in 16-bit integers: twice the multiply-adds of f32 in an instruction. Included by vec_body.h where vectors have
 * 16 floats. See vec.h for the contract.
 *
 * Latent and position part of a cached row become integers up to ROW_MOST with a scale for each, once for all heads; so do those of a head's query, and
 * so do its weights of 64 keys at a time, with the scales of the rows in them. Products and their sums are exact (no sum can pass 2^31), so only those
 * roundings differ from f32: of the largest of a row 1/30,000, of the largest of a query 1/8,900 with 512 latents, of the weights of 64 keys 1/65,000
 * of the largest, or 1/286,000 of their sum where that is more. */
#ifndef RANKSCOPE_KERNELS_CPU_VEC_ATTN_I16_H
#define RANKSCOPE_KERNELS_CPU_VEC_ATTN_I16_H

#define UNROLL8 _Pragma("GCC unroll 8")

enum { I16_KEYS = KRN_I16_KEYS, ROW_MOST = 15000, WEIGHT_MOST = 32767, WEIGHTS_MOST = INT32_MAX / ROW_MOST - I16_KEYS };

enum { PART_LATENT, PART_POSITION, PARTS };

/* A worker's scratch. */
struct i16 {
    int16_t *row, *q, *weight; /* [I16_KEYS][l + r]; [heads][l + r]; [heads][I16_KEYS] */
    float *row_scale, *score;  /* [PARTS][I16_KEYS]; [heads][I16_KEYS] */
    float q_scale[PARTS][KRN_I16_HEADS / 4][16]; /* four times that of heads 0, 2, 1, 3, as sums_of() puts them */
    float top[KRN_I16_HEADS], sum[KRN_I16_HEADS];   /* of each head's keys so far; sum is NaN from the start for a query that is not finite */
    float keep[KRN_I16_HEADS], unit[KRN_I16_HEADS]; /* what earlier keys' mixture is multiplied by, and these keys' sums */
};

static void i16_lay(struct i16 *s, void *scratch, uint32_t d)
{
    s->row = scratch;
    s->q = s->row + (size_t)I16_KEYS * d;
    s->weight = s->q + (size_t)KRN_I16_HEADS * d;
    s->row_scale = (float *)(void *)(s->weight + KRN_I16_HEADS * I16_KEYS);
    s->score = s->row_scale + PARTS * I16_KEYS;
}

/* sum + the products of two integers each of a and b. As an intrinsic, gcc 12 copies every accumulator of a loop to another register and back, and has too
 * few of those. */
ALWAYS_INLINE __m512i i16_dot(__m512i sum, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
    return sum;
}

/* 32 integers: a and b multiplied and rounded. The low bits of x + 1.5 * 2^23 are x's integer. */
ALWAYS_INLINE void i16_store(int16_t *to, vf a, vf b, vf factor)
{
    static const uint16_t EVEN[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    const vf shift = v_set(12582912.0f);
    __m512i x = (__m512i)v_fma(a, factor, shift), y = (__m512i)v_fma(b, factor, shift);
    _mm512_store_si512(to, _mm512_permutex2var_epi16(x, _mm512_loadu_si512(EVEN), y));
}

/* The largest magnitudes, as bits, of n halves: eight lanes of them. */
ALWAYS_INLINE __m128i i16_most(const uint8_t *row, uint32_t n)
{
    __m512i most = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 32)
        most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(row + 2 * i), _mm512_set1_epi16(0x7FFF)));
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
    return _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* Lane i: the largest of v[i]. */
ALWAYS_INLINE __m128i i16_across(const __m128i v[8])
{
    __m128i a[4], b[2];
    UNROLL4 for (int i = 0; i < 4; i++)
        a[i] = _mm_max_epu16(_mm_unpacklo_epi16(v[2 * i], v[2 * i + 1]), _mm_unpackhi_epi16(v[2 * i], v[2 * i + 1]));
    UNROLL4 for (int i = 0; i < 2; i++)
        b[i] = _mm_max_epu16(_mm_unpacklo_epi32(a[2 * i], a[2 * i + 1]), _mm_unpackhi_epi32(a[2 * i], a[2 * i + 1]));
    return _mm_max_epu16(_mm_unpacklo_epi64(b[0], b[1]), _mm_unpackhi_epi64(b[0], b[1]));
}

/* Four cached rows; their scales go to `scale`, NaN of a row that is not finite. */
ALWAYS_INLINE void i16_rows(const uint8_t *const row[4], uint32_t l, uint32_t r, int16_t *to, float *scale)
{
    __m128i most[8];
    _Alignas(32) float factor[8];
    UNROLL4 for (uint32_t x = 0; x < 4; x++) {
        most[x] = i16_most(row[x], l);
        most[4 + x] = i16_most(row[x] + 2 * l, r);
    }
    const __m128i bits = i16_across(most);
    const __m256 largest = _mm256_cvtph_ps(bits);
    const __mmask8 odd = _mm_cmpge_epu16_mask(bits, _mm_set1_epi16(0x7C00)), some = _mm_test_epi16_mask(bits, bits) & (__mmask8)~odd;
    _mm256_store_ps(factor, _mm256_maskz_div_ps(some, _mm256_set1_ps(ROW_MOST), largest));
    const __m256 unit = _mm256_mask_mov_ps(_mm256_mul_ps(largest, _mm256_set1_ps(1.0f / ROW_MOST)), odd, _mm256_set1_ps(NAN));
    const __m128 latent = _mm256_castps256_ps128(unit), position = _mm256_extractf128_ps(unit, 1);
    _mm_storeu_ps(scale, _mm_add_ps(latent, _mm_mul_ps(position, _mm_setzero_ps())));
    _mm_storeu_ps(scale + I16_KEYS, position);
    for (uint32_t x = 0; x < 4; x++) {
        const vf f = v_set(factor[x]), g = v_set(factor[4 + x]);
        for (uint32_t i = 0; i < l; i += 32, to += 32)
            i16_store(to, v_load_cache(KRN_CACHE_F16, row[x], i), v_load_cache(KRN_CACHE_F16, row[x], i + VL), f);
        for (uint32_t i = l; i < l + r; i += 32, to += 32)
            i16_store(to, v_load_cache(KRN_CACHE_F16, row[x], i), v_load_cache(KRN_CACHE_F16, row[x], i + VL), g);
    }
}

/* Products of two integers meet in a lane n / 16 times. Returns the scale, NaN if not all values are finite. */
static float i16_query(const float *q, uint32_t n, int16_t *to)
{
    const int32_t limit = INT32_MAX / (int32_t)(n / VL * ROW_MOST);
    const float most = (float)(limit < INT16_MAX ? limit : INT16_MAX);
    vf top = {0}, bad = {0};
    for (uint32_t i = 0; i < n; i += VL) {
        vf x = v_load(q + i);
        top = v_max((vf)((vi)x & INT32_MAX), top);
        bad += x * v_set(0);
    }
    const float largest = v_hmax(top);
    const vf factor = v_set(largest > 0 && largest < INFINITY ? most / largest : 0);
    for (uint32_t i = 0; i < n; i += 32)
        i16_store(to + i, v_load(q + i), v_load(q + i + VL), factor);
    return largest / most + v_sum(bad);
}

static void i16_queries(const struct krn_attn_absorbed *a, struct i16 *s)
{
    static const uint32_t QUARTER[4] = {0, 2, 1, 3};
    const uint32_t d = a->l + a->r;
    for (uint32_t h = 0; h < a->n_heads; h++) {
        const float *q = a->q + (size_t)h * d;
        int16_t *to = s->q + (size_t)h * d;
        const float scale[PARTS] = {a->scale * i16_query(q, a->l, to), a->scale * i16_query(q + a->l, a->r, to + a->l)};
        for (uint32_t part = 0; part < PARTS; part++)
            for (uint32_t x = 0; x < 4; x++)
                s->q_scale[part][h / 4][4 * QUARTER[h % 4] + x] = scale[part];
        s->top[h] = -INFINITY;
        s->sum[h] = (scale[PART_LATENT] + scale[PART_POSITION]) * 0;
    }
}

/* The sums of nh heads and four keys over n values. The rows that come next (NULL: none) are fetched meanwhile. */
ALWAYS_INLINE __m512 i16_products(const int16_t *row, const int16_t *q, uint32_t d, uint32_t n, const uint8_t *const next[4], const uint32_t nh)
{
    __m512i acc[4][4];
    vf sums[4][4];
    UNROLL4 for (uint32_t h = 0; h < 4; h++)
        UNROLL4 for (uint32_t x = 0; x < 4; x++)
            acc[h][x] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 32, row += 32) {
        __m512i k[4];
        if (next != NULL)
            UNROLL4 for (uint32_t x = 0; x < 4; x++)
                __builtin_prefetch(next[x] + 2 * i);
        UNROLL4 for (uint32_t x = 0; x < 4; x++)
            k[x] = _mm512_load_si512(row + d * x);
        UNROLL4 for (uint32_t h = 0; h < nh; h++) {
            const __m512i v = _mm512_load_si512(q + h * d + i);
            UNROLL4 for (uint32_t x = 0; x < 4; x++)
                acc[h][x] = i16_dot(acc[h][x], k[x], v);
        }
    }
    UNROLL4 for (uint32_t h = 0; h < 4; h++)
        UNROLL4 for (uint32_t x = 0; x < 4; x++)
            sums[h][x] = (vf)_mm512_cvtepi32_ps(acc[h][x]);
    return sums_of(sums);
}

/* Scores of four keys from j on with nh queries from h0 on. */
ALWAYS_INLINE void i16_scores(const struct krn_attn_absorbed *a, const struct i16 *s, uint32_t h0, uint32_t j, const uint8_t *const next[4], const uint32_t nh)
{
    const uint32_t d = a->l + a->r;
    const int16_t *row = s->row + (size_t)d * j, *q = s->q + (size_t)h0 * d;
    const __m512 latent = i16_products(row, q, d, a->l, next, nh), position = i16_products(row + a->l, q + a->l, d, a->r, NULL, nh);
    const __m512 k0 = _mm512_broadcast_f32x4(_mm_loadu_ps(s->row_scale + j)), k1 = _mm512_broadcast_f32x4(_mm_loadu_ps(s->row_scale + I16_KEYS + j));
    const __m512 u0 = _mm512_mul_ps(k0, _mm512_loadu_ps(s->q_scale[PART_LATENT][h0 / 4])), u1 = _mm512_mul_ps(k1, _mm512_loadu_ps(s->q_scale[PART_POSITION][h0 / 4]));
    const __m512 sums = _mm512_fmadd_ps(latent, u0, _mm512_mul_ps(position, u1));
    float *score = s->score + h0 * I16_KEYS + j;
    _mm_storeu_ps(score, _mm512_castps512_ps128(sums));
    if (nh > 1)
        _mm_storeu_ps(score + I16_KEYS, _mm512_extractf32x4_ps(sums, 2));
    if (nh > 2)
        _mm_storeu_ps(score + 2 * I16_KEYS, _mm512_extractf32x4_ps(sums, 1));
    if (nh > 3)
        _mm_storeu_ps(score + 3 * I16_KEYS, _mm512_extractf32x4_ps(sums, 3));
}

/* Weights of n keys for a head, relative to the largest of them. What is not finite makes the head's result NaN. */
static void i16_softmax(struct i16 *s, uint32_t h, uint32_t n)
{
    float *score = s->score + h * I16_KEYS;
    vf t[I16_KEYS / VL], sum = {0}, weights = {0}, most = {0};
    const uint32_t vectors = (n + VL - 1) / VL;
    for (uint32_t j = n; j < vectors * VL; j++)
        score[j] = -INFINITY;
    vf tops = v_load(score);
    for (uint32_t i = 1; i < vectors; i++)
        tops = v_max(v_load(score + i * VL), tops);
    const float top = _mm512_reduce_max_ps((__m512)tops), now = top > s->top[h] ? top : s->top[h];
    for (uint32_t i = 0; i < vectors; i++) {
        const vf e = v_exp(v_load(score + i * VL) - v_set(top));
        t[i] = e * v_load(s->row_scale + i * VL);
        sum += e;
        weights += t[i];
        most = v_max(t[i], most);
    }
    const float largest = _mm512_reduce_max_ps((__m512)most), total = v_sum(weights);
    const float one = (float)WEIGHT_MOST / largest, all = (float)WEIGHTS_MOST / total, factor = largest > 0 ? (one < all ? one : all) : 0;
    for (uint32_t i = 0; i < I16_KEYS / VL; i++)
        _mm256_store_si256((__m256i *)(void *)(s->weight + h * I16_KEYS + i * VL),
                           i < vectors ? _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)(t[i] * v_set(factor)))) : _mm256_setzero_si256());
    const vf e = v_exp((vf){s->top[h] - now, top - now});
    s->keep[h] = e[0];
    s->unit[h] = isnan(total) ? NAN : factor > 0 ? e[1] / factor : 0;
    s->sum[h] = s->sum[h] * e[0] + v_sum(sum) * e[1];
    s->top[h] = now;
}

/* 16 of every pair's sums are out of order: each 128 bits of lo hold four values, those of hi the next four. */
ALWAYS_INLINE void i16_add(float *out, __m512i lo, __m512i hi, float unit, float keep, bool first)
{
    static const int32_t FROM[2][16] = {{0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}, {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
    const __m512 x = _mm512_cvtepi32_ps(lo), y = _mm512_cvtepi32_ps(hi);
    UNROLL4 for (int i = 0; i < 2; i++) {
        const vf v = (vf)_mm512_permutex2var_ps(x, _mm512_loadu_si512(FROM[i]), y) * v_set(unit);
        v_store(out + i * VL, first ? v : v_fma(v_load(out + i * VL), v_set(keep), v));
    }
}

/* Adds n keys' mixture, of nh heads from h0 on, 32 columns at a time. n_ahead of the caller's next rows, from `ahead` on, are fetched meanwhile. */
ALWAYS_INLINE void i16_mix(const struct krn_attn_absorbed *a, const struct i16 *s, uint32_t h0, uint32_t n, struct walk ahead, uint32_t n_ahead,
                           bool first, const uint32_t nh)
{
    const uint32_t d = a->l + a->r;
    const size_t lines = (size_t)d * 2 / 64, pieces = (size_t)a->l * (n_ahead != 0 ? a->parts : 1);
    for (uint32_t i = 0; i < a->l; i += 32) {
        const size_t at = (size_t)a->l * a->part + i, fetch0 = lines * at / pieces * 64, fetch1 = lines * (at + 32) / pieces * 64;
        const uint32_t fetch = fetch0 < fetch1 ? n_ahead : 0;
        const int16_t *row = s->row + i, *weight = s->weight + h0 * I16_KEYS;
        struct walk next = ahead;
        __m512i acc[KRN_I16_HEADS][2];
        UNROLL8 for (uint32_t h = 0; h < nh; h++)
            acc[h][0] = acc[h][1] = _mm512_setzero_si512();
        for (uint32_t j = 0; j < n; j += 2, row += 2 * d) {
            const __m512i x = _mm512_load_si512(row), y = _mm512_load_si512(row + d);
            const __m512i lo = _mm512_unpacklo_epi16(x, y), hi = _mm512_unpackhi_epi16(x, y);
            for (uint32_t t = j; t < j + 2 && t < fetch; t++) {
                const uint8_t *r = walk_row(&next);
                for (size_t b = fetch0; b < fetch1; b += 64)
                    __builtin_prefetch(r + b, 0, 2);
            }
            UNROLL8 for (uint32_t h = 0; h < nh; h++) {
                const __m512i w = _mm512_broadcastd_epi32(_mm_loadu_si32(weight + h * I16_KEYS + j));
                acc[h][0] = i16_dot(acc[h][0], lo, w);
                acc[h][1] = i16_dot(acc[h][1], hi, w);
            }
        }
        UNROLL8 for (uint32_t h = 0; h < nh; h++)
            i16_add(a->out + (size_t)(h0 + h) * a->l + i, acc[h][0], acc[h][1], s->unit[h0 + h], s->keep[h0 + h], first);
    }
}

static void i16_scores_of(const struct krn_attn_absorbed *a, const struct i16 *s, uint32_t j, const uint8_t *const next[4])
{
    for (uint32_t h0 = 0; h0 < a->n_heads; h0 += 4, next = NULL)
        switch (a->n_heads - h0) {
        case 1: i16_scores(a, s, h0, j, next, 1); break;
        case 2: i16_scores(a, s, h0, j, next, 2); break;
        case 3: i16_scores(a, s, h0, j, next, 3); break;
        default: i16_scores(a, s, h0, j, next, 4); break;
        }
}

static void i16_mix_of(const struct krn_attn_absorbed *a, const struct i16 *s, uint32_t n, struct walk ahead, uint32_t n_ahead, bool first)
{
    const uint32_t nh = a->n_heads;
    if (nh == 8) {
        i16_mix(a, s, 0, n, ahead, n_ahead, first, 8);
        return;
    }
    for (uint32_t h0 = 0; h0 < nh; h0 += 4) {
        const uint32_t fetch = h0 == 0 ? n_ahead : 0;
        switch (nh - h0) {
        case 1: i16_mix(a, s, h0, n, ahead, fetch, first, 1); break;
        case 2: i16_mix(a, s, h0, n, ahead, fetch, first, 2); break;
        case 3: i16_mix(a, s, h0, n, ahead, fetch, first, 3); break;
        default: i16_mix(a, s, h0, n, ahead, fetch, first, 4); break;
        }
    }
}

/* Scores of n keys, whose rows come from w. */
static void i16_keys(const struct krn_attn_absorbed *a, const struct i16 *s, struct walk *w, uint32_t n)
{
    const uint32_t d = a->l + a->r;
    const uint8_t *row[I16_KEYS];
    for (uint32_t j = 0; j < n; j++)
        row[j] = walk_row(w);
    for (uint32_t j = 0; j < n; j += 4) {
        const uint8_t *four[4];
        for (uint32_t x = 0; x < 4; x++) /* the last row again where there is none */
            four[x] = row[j + x < n ? j + x : n - 1];
        i16_rows(four, a->l, a->r, s->row + (size_t)d * j, s->row_scale + j);
        i16_scores_of(a, s, j, j + 8 <= n ? row + j + 4 : NULL);
    }
}

static void attn_absorbed_i16(const struct krn_attn_absorbed *a)
{
    const uint32_t n = a->sel != NULL ? a->n_sel : a->n_keys;
    struct walk w = walk_start(&a->kv, a->sel), ahead = walk_start(&a->next, NULL);
    struct i16 s;
    i16_lay(&s, a->scores, a->l + a->r);
    i16_queries(a, &s);
    for (uint32_t from = 0; from < n; from += I16_KEYS) {
        const uint32_t keys = n - from < I16_KEYS ? n - from : I16_KEYS, after = a->n_next > from ? a->n_next - from : 0;
        memset(s.row_scale, 0, PARTS * I16_KEYS * sizeof *s.row_scale);
        i16_keys(a, &s, &w, keys);
        for (uint32_t h = 0; h < a->n_heads; h++)
            i16_softmax(&s, h, keys);
        i16_mix_of(a, &s, keys, ahead, after < keys ? after : keys, from == 0);
        for (uint32_t j = 0; j < keys && j < after; j++)
            walk_row(&ahead);
    }
    for (uint32_t h = 0; h < a->n_heads; h++) {
        const vf whole = v_set(1.0f / s.sum[h]);
        for (uint32_t i = 0; i < a->l; i += VL)
            v_store(a->out + (size_t)h * a->l + i, v_load(a->out + (size_t)h * a->l + i) * whole);
    }
}

#endif
