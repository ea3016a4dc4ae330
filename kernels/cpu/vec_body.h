/* The f32 kernels, written once with vectors of VL floats. Included by vec_*.c, which define VL and KRN_NAME. See vec.h for contracts. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/vec.h"
#include "kernels/quant.h"

#if defined(__x86_64__) && VL > 4
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4), aligned(4), may_alias));

static inline vf v_load(const float *p) { return *(const vf *)p; }
static inline void v_store(float *p, vf v) { *(vf *)p = v; }
static inline vf v_set(float x) { return x - (vf){0}; }

static inline vf v_fma(vf a, vf b, vf c)
{
#if VL == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline vf v_max(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vf r;
    for (int i = 0; i < VL; i++)
        r[i] = a[i] > b[i] ? a[i] : b[i];
    return r;
#endif
}

/* Sum of the lanes by halving: a fixed order. */
static inline float v_sum(vf a)
{
#if VL == 16
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)a), _mm512_extractf32x8_ps((__m512)a, 1));
#elif VL == 8
    __m256 half = (__m256)a;
#endif
#if VL >= 8
    __m128 v = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
#else
    float t[VL];
    v_store(t, a);
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] += t[i + w];
    return t[0];
#endif
}

static inline float v_hmax(vf a)
{
    float t[VL], m;
    v_store(t, a);
    m = t[0];
    for (int i = 1; i < VL; i++)
        m = t[i] > m ? t[i] : m;
    return m;
}

/* e^x to about 1 ulp: x = n ln2 + r, a polynomial of degree 6 for e^r, n added to the exponent. Below -87 the result is 0, above 88 it stays
 * finite: callers pass differences to a maximum or saturating arguments. */
static inline vf v_exp(vf x)
{
    const vf lo = v_set(-87.0f), hi = v_set(88.0f);
    vi tiny = x < lo;
    x = v_max(x, lo);
    vi big = x > hi;
    x = (vf)(((vi)x & ~big) | ((vi)hi & big));
    vf t = x * v_set(1.44269504089f) + v_set(12582912.0f);
    vi n = (vi)t - (vi)v_set(12582912.0f);
    vf k = t - v_set(12582912.0f);
    vf r = v_fma(k, v_set(-0.693359375f), x);
    r = v_fma(k, v_set(2.12194440e-4f), r);
    vf p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, r * r, r + v_set(1.0f));
    vf e = (vf)((vi)p + (n << 23));
    return (vf)((vi)e & ~tiny);
}

static inline vf v_load_cache(enum krn_cache_type t, const uint8_t *src, size_t i)
{
    if (t == KRN_CACHE_F32)
        return v_load((const float *)(const void *)src + i);
#if VL == 16
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i));
    return t == KRN_CACHE_F16 ? (vf)_mm512_cvtph_ps(h) : (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#elif VL == 8
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
    return t == KRN_CACHE_F16 ? (vf)_mm256_cvtph_ps(h) : (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
#else
    vf r;
    for (int j = 0; j < VL; j++) {
        uint16_t h;
        memcpy(&h, src + 2 * (i + (size_t)j), 2);
        r[j] = t == KRN_CACHE_F16 ? krn_f16_to_f32(h) : krn_bf16_to_f32(h);
    }
    return r;
#endif
}

static inline float load_one(enum krn_cache_type t, const uint8_t *src, size_t i)
{
    uint16_t h;
    if (t == KRN_CACHE_F32) {
        float f;
        memcpy(&f, src + 4 * i, 4);
        return f;
    }
    memcpy(&h, src + 2 * i, 2);
    return t == KRN_CACHE_F16 ? krn_f16_to_f32(h) : krn_bf16_to_f32(h);
}

static void rmsnorm(const float *x, const float *w, float eps, float *y, size_t n)
{
    vf acc = {0};
    float tail = 0;
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        acc = v_fma(v_load(x + i), v_load(x + i), acc);
    for (; i < n; i++)
        tail += x[i] * x[i];
    float s = 1.0f / sqrtf((v_sum(acc) + tail) / (float)n + eps);
    vf vs = v_set(s);
    for (i = 0; i + VL <= n; i += VL)
        v_store(y + i, v_load(x + i) * vs * v_load(w + i));
    for (; i < n; i++)
        y[i] = x[i] * s * w[i];
}

static void layernorm(const float *x, const float *w, const float *b, float eps, float *y, size_t n)
{
    double mean = 0, var = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean);
    float s = (float)(1.0 / sqrt(var / (double)n + eps)), m = (float)mean;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - m) * s * w[i] + (b != NULL ? b[i] : 0.0f);
}

static void rope(float *x, const float *c, const float *s, size_t n, bool interleaved)
{
    for (size_t i = 0; i < n; i++) {
        float *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? a + 1 : a + n;
        float u = *a, v = *b;
        *a = u * c[i] - v * s[i];
        *b = u * s[i] + v * c[i];
    }
}

static inline vf v_silu(vf g)
{
    return g / (v_set(1.0f) + v_exp(-g));
}

static void silu_mul(const float *gate, const float *up, float *y, size_t n)
{
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(y + i, v_silu(v_load(gate + i)) * v_load(up + i));
    if (i < n) { /* the tail through the same arithmetic, padded */
        float g[VL] = {0}, u[VL] = {0}, r[VL];
        memcpy(g, gate + i, (n - i) * sizeof *g);
        memcpy(u, up + i, (n - i) * sizeof *u);
        v_store(r, v_silu(v_load(g)) * v_load(u));
        memcpy(y + i, r, (n - i) * sizeof *r);
    }
}

static void add(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void store(enum krn_cache_type t, const float *x, void *dst, size_t n)
{
    if (t == KRN_CACHE_F32) {
        memcpy(dst, x, n * sizeof *x);
        return;
    }
    uint16_t *h = dst;
    size_t i = 0;
#if VL == 16
    if (t == KRN_CACHE_F16)
        for (; i + 16 <= n; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(h + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#elif VL == 8
    if (t == KRN_CACHE_F16)
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((__m128i *)(void *)(h + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        h[i] = t == KRN_CACHE_F16 ? krn_f32_to_f16(x[i]) : krn_f32_to_bf16(x[i]);
}

static void load(enum krn_cache_type t, const void *src, float *y, size_t n)
{
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(y + i, v_load_cache(t, src, i));
    for (; i < n; i++)
        y[i] = load_one(t, src, i);
}

static inline float round_bf16(float x, bool bf16)
{
    return bf16 ? krn_bf16_to_f32(krn_f32_to_bf16(x)) : x;
}

static void reduce(const float *const *src, float *const *dst, size_t n_src, size_t n_dst, size_t from, size_t to, bool tree, bool bf16)
{
    enum { CHUNK = 64 };
    float part[64][CHUNK]; /* n_src <= 64 */
    for (size_t i = from; i < to; i += CHUNK) {
        size_t m = to - i < CHUNK ? to - i : CHUNK;
        for (size_t s = 0; s < n_src; s++)
            for (size_t j = 0; j < m; j++)
                part[s][j] = round_bf16(src[s][i + j], bf16);
        if (tree) {
            for (size_t step = 1; step < n_src; step *= 2)
                for (size_t s = 0; s + step < n_src; s += 2 * step)
                    for (size_t j = 0; j < m; j++)
                        part[s][j] += part[s + step][j];
        } else {
            for (size_t s = 1; s < n_src; s++)
                for (size_t j = 0; j < m; j++)
                    part[0][j] += part[s][j];
        }
        for (size_t d = 0; d < n_dst; d++)
            memcpy(dst[d] + i, part[0], m * sizeof(float));
    }
}

#include "kernels/cpu/vec_attn.h"
#if VL == 16
#include "kernels/cpu/vec_attn_i16.h"
#endif

static void index_scores(const struct krn_pages *k, const float *q, const float *w, uint32_t n_heads, uint32_t dim, uint32_t n_keys, float scale,
                         float *scores)
{
    for (uint32_t t = 0; t < n_keys; t++) {
        const uint8_t *row = page_row(k, t);
        float total = 0;
        for (uint32_t h = 0; h < n_heads; h++) {
            vf acc = {0};
            float tail = 0;
            uint32_t i = 0;
            for (; i + VL <= dim; i += VL)
                acc = v_fma(v_load_cache(k->type, row, i), v_load(q + (size_t)h * dim + i), acc);
            for (; i < dim; i++)
                tail += load_one(k->type, row, i) * q[(size_t)h * dim + i];
            float dot = v_sum(acc) + tail;
            total += w[h] * (dot > 0 ? dot : 0);
        }
        scores[t] = total * scale;
    }
}

/* Finite lanes of x. */
static inline vi v_finite(vf x)
{
    const vi exponent = (vi){0} + 0x7f800000;
    return ((vi)x & exponent) != exponent;
}

static inline vf v_pick(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* Largest, second largest and smallest of the lanes' own. */
static void merge_lanes(vf top, vf second, vf low, struct krn_logits *out)
{
    float a[2 * VL], l[VL];
    v_store(a, top);
    v_store(a + VL, second);
    v_store(l, low);
    out->top = out->second = -INFINITY;
    out->low = INFINITY;
    for (int i = 0; i < 2 * VL; i++) {
        if (a[i] > out->top) {
            out->second = out->top;
            out->top = a[i];
        } else if (a[i] > out->second) {
            out->second = a[i];
        }
        if (i < VL && l[i] < out->low)
            out->low = l[i];
    }
}

/* VL values from i on; what is beyond the end is not finite. */
static inline vf v_load_part(const float *x, size_t i, size_t n)
{
    float t[VL];
    if (i + VL <= n)
        return v_load(x + i);
    for (size_t j = 0; j < VL; j++)
        t[j] = i + j < n ? x[i + j] : -INFINITY;
    return v_load(t);
}

static void describe(const float *x, size_t n, struct krn_logits *out)
{
    const vf none = v_set(-INFINITY);
    vf top = none, second = none, low = v_set(INFINITY), z = {0}, w = {0}, w2 = {0};
    vi odd = {0}, tops = {0};
    for (size_t i = 0; i < n; i += VL) {
        vf v = v_load_part(x, i, n);
        vi ok = v_finite(v);
        odd += ~ok;
        low = v_pick(ok & (v < low), v, low);
        v = v_pick(ok, v, none);
        second = v_max(second, v_pick(v < top, v, top));
        top = v_max(top, v);
    }
    merge_lanes(top, second, low, out);
    vf m = v_set(out->top);
    for (size_t i = 0; i < n; i += VL) {
        vf v = v_load_part(x, i, n);
        vi ok = v_finite(v);
        vf d = v_pick(ok, v - m, v_set(-100.0f));
        vi is_top = d == v_set(0.0f);
        vf e = (vf)((vi)v_exp(d) & ~is_top); /* those are counted: what is added to 1 would lose its digits */
        tops -= is_top;
        z += e;
        w += e * d;
        w2 += e * d * d;
    }
    int32_t count[VL], bad[VL];
    memcpy(count, &tops, sizeof count);
    memcpy(bad, &odd, sizeof bad);
    out->tops = out->nonfinite = 0;
    for (int i = 0; i < VL; i++) {
        out->tops += (uint32_t)count[i];
        out->nonfinite += (uint32_t)-bad[i];
    }
    out->nonfinite -= (uint32_t)((n + VL - 1) / VL * VL - n);
    out->z = v_sum(z);
    out->w = v_sum(w);
    out->w2 = v_sum(w2);
}

static void gate_scores(const struct krn_route *a)
{
    uint32_t n = a->n_experts;
    if (a->sigmoid) {
        for (uint32_t i = 0; i < n; i++)
            a->p[i] = 1.0f / (1.0f + expf(-a->logits[i]));
        return;
    }
    float m = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        m = a->logits[i] > m ? a->logits[i] : m;
    for (uint32_t i = 0; i < n; i++) {
        a->p[i] = expf(a->logits[i] - m);
        sum += a->p[i];
    }
    for (uint32_t i = 0; i < n; i++)
        a->p[i] /= sum;
}

/* Keep the n_groups_used groups whose two best scores sum highest; the experts of the others leave the race. */
static void limit_groups(const struct krn_route *a, float *s)
{
    uint32_t per = a->n_experts / a->n_groups;
    float best[512];
    for (uint32_t g = 0; g < a->n_groups; g++) {
        float m1 = -INFINITY, m2 = -INFINITY;
        for (uint32_t i = 0; i < per; i++) {
            float v = s[g * per + i];
            if (v > m1) {
                m2 = m1;
                m1 = v;
            } else if (v > m2) {
                m2 = v;
            }
        }
        best[g] = per > 1 ? m1 + m2 : m1;
    }
    bool keep[512] = {false};
    for (uint32_t k = 0; k < a->n_groups_used; k++) {
        uint32_t at = a->n_groups;
        for (uint32_t g = 0; g < a->n_groups; g++)
            if (!keep[g] && (at == a->n_groups || best[g] > best[at]))
                at = g;
        keep[at] = true;
    }
    for (uint32_t i = 0; i < a->n_experts; i++)
        if (!keep[i / per])
            s[i] = -INFINITY;
}

static void route(const struct krn_route *a)
{
    float s[512]; /* n_experts <= 512: checked when the model is read */
    gate_scores(a);
    for (uint32_t i = 0; i < a->n_experts; i++)
        s[i] = a->p[i] + (a->bias != NULL ? a->bias[i] : 0.0f);
    if (a->n_groups > 1 && a->n_groups_used < a->n_groups)
        limit_groups(a, s);
    float sum = 0;
    bool taken[512] = {false};
    for (uint32_t k = 0; k < a->n_used; k++) {
        uint32_t at = a->n_experts;
        for (uint32_t i = 0; i < a->n_experts; i++)
            if (!taken[i] && (at == a->n_experts || s[i] > s[at]))
                at = i;
        taken[at] = true;
        a->ids[k] = (int32_t)at;
        a->weights[k] = a->p[at];
        sum += a->p[at];
    }
    float f = a->norm ? a->scale / (sum > 1e-20f ? sum : 1e-20f) : a->scale;
    for (uint32_t k = 0; k < a->n_used; k++)
        a->weights[k] *= f;
}

const struct krn_cpu_vec KRN_NAME;
const struct krn_cpu_vec KRN_NAME = {
    .isa = KRN_THIS_ISA, .rmsnorm = rmsnorm, .layernorm = layernorm, .rope = rope, .silu_mul = silu_mul, .add = add, .store = store, .load = load,
    .reduce = reduce, .attn_absorbed = attn_absorbed, .attn_expand = attn_expand, .attn_expanded = attn_expanded, .index_scores = index_scores,
    .route = route, .describe = describe,
#if VL == 16
    .attn_absorbed_i16 = attn_absorbed_i16,
#endif
};
