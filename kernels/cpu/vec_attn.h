/* The f32 kernels of attention, absorbed and expanded. Included by vec_body.h, in whose vectors they are written. See vec.h for contracts. */
#ifndef RANKSCOPE_KERNELS_CPU_VEC_ATTN_H
#define RANKSCOPE_KERNELS_CPU_VEC_ATTN_H

static inline const uint8_t *page_row(const struct krn_pages *p, uint32_t pos)
{
    return p->base + (size_t)p->table[pos / p->block] * p->block_stride + (size_t)(pos % p->block) * p->row_bytes;
}

/* Scores to probabilities in place, without the division: returns the sum. m must be the maximum. */
static float softmax_sum(float *s, uint32_t n, float m)
{
    vf acc = {0}, vm = v_set(m);
    uint32_t i = 0;
    float tail = 0;
    for (; i + VL <= n; i += VL) {
        vf e = v_exp(v_load(s + i) - vm);
        v_store(s + i, e);
        acc += e;
    }
    if (i < n) {
        float t[VL];
        for (uint32_t j = 0; j < VL; j++)
            t[j] = i + j < n ? s[i + j] : -INFINITY;
        v_store(t, v_exp(v_load(t) - vm));
        for (uint32_t j = 0; i + j < n; j++) {
            s[i + j] = t[j];
            tail += t[j];
        }
    }
    return v_sum(acc) + tail;
}

/* The largest of n values, -INFINITY if there is none; NaN does not count. */
static float largest_of(const float *s, uint32_t n)
{
    vf top = v_set(-INFINITY);
    float m;
    uint32_t i = 0;
    for (; i + VL <= n; i += VL)
        top = v_max(v_load(s + i), top);
    m = v_hmax(top);
    for (; i < n; i++)
        m = s[i] > m ? s[i] : m;
    return m;
}

/* Rows of a cache one after the other: all of them, or those of a selection. */
struct walk {
    const struct krn_pages *p;
    const int32_t *sel;
    const uint8_t *row;
    uint32_t next, left; /* position or index of the next row; rows of the block at hand that follow */
};

static inline struct walk walk_start(const struct krn_pages *p, const int32_t *sel)
{
    return (struct walk){.p = p, .sel = sel};
}

static inline const uint8_t *walk_row(struct walk *w)
{
    if (w->sel != NULL)
        return page_row(w->p, (uint32_t)w->sel[w->next++]);
    if (w->left == 0) {
        w->row = page_row(w->p, w->next);
        w->left = w->p->block;
        w->next += w->p->block;
    } else {
        w->row += w->p->row_bytes;
    }
    w->left--;
    return w->row;
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define UNROLL4 _Pragma("GCC unroll 4")

enum { SCORE_KEYS = VL == 16 ? 4 : 2 }; /* keys that share a load of the query; times four heads: what the registers hold */

#if VL == 16
/* What v_sum() gives for each of 16 vectors, by the same additions, four vectors of a head to a quarter: heads 0, 2, 1, 3. */
ALWAYS_INLINE __m512 sums_of(const vf v[4][4])
{
    __m512 a[8], b[4], c[2];
    UNROLL4 for (int h = 0; h < 2; h++)
        UNROLL4 for (int x = 0; x < 4; x++)
            a[4 * h + x] = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)v[h][x], (__m512)v[h + 2][x], 0x44),
                                         _mm512_shuffle_f32x4((__m512)v[h][x], (__m512)v[h + 2][x], 0xEE));
    UNROLL4 for (int x = 0; x < 4; x++)
        b[x] = _mm512_add_ps(_mm512_shuffle_f32x4(a[x], a[4 + x], 0x88), _mm512_shuffle_f32x4(a[x], a[4 + x], 0xDD));
    UNROLL4 for (int x = 0; x < 2; x++)
        c[x] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * x], b[2 * x + 1], 0x44), _mm512_shuffle_ps(b[2 * x], b[2 * x + 1], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xDD));
}
#endif

/* Dot products of `keys` cached rows with nh queries, scaled; keys, nh and type are constants. With many sequences a cache does not stay in the
 * processor's: the rows that come next (NULL: none) are fetched meanwhile. */
ALWAYS_INLINE void score_keys(const struct krn_attn_absorbed *a, const float *const q[4], const uint8_t *const row[SCORE_KEYS],
                              const uint8_t *const next[SCORE_KEYS], float *const s[4], uint32_t j, const uint32_t keys, const uint32_t nh,
                              const enum krn_cache_type type)
{
    uint32_t d = a->l + a->r, i = 0;
    vf acc[4][SCORE_KEYS] = {{{0}}};
    for (; i + VL <= d; i += VL) {
        vf k[SCORE_KEYS];
        if (next != NULL && i * krn_cache_elem_bytes(type) % 64 == 0)
            UNROLL4 for (uint32_t x = 0; x < keys; x++)
                __builtin_prefetch(next[x] + i * krn_cache_elem_bytes(type));
        UNROLL4 for (uint32_t x = 0; x < keys; x++)
            k[x] = v_load_cache(type, row[x], i);
        UNROLL4 for (uint32_t h = 0; h < nh; h++) {
            vf v = v_load(q[h] + i);
            UNROLL4 for (uint32_t x = 0; x < keys; x++)
                acc[h][x] = v_fma(k[x], v, acc[h][x]);
        }
    }
#if VL == 16
    if (nh == 4 && keys == 4 && i == d) {
        __m512 sums = _mm512_mul_ps(sums_of(acc), _mm512_set1_ps(a->scale));
        _mm_storeu_ps(s[0] + j, _mm512_castps512_ps128(sums));
        _mm_storeu_ps(s[2] + j, _mm512_extractf32x4_ps(sums, 1));
        _mm_storeu_ps(s[1] + j, _mm512_extractf32x4_ps(sums, 2));
        _mm_storeu_ps(s[3] + j, _mm512_extractf32x4_ps(sums, 3));
        return;
    }
#endif
    UNROLL4 for (uint32_t h = 0; h < nh; h++)
        UNROLL4 for (uint32_t x = 0; x < keys; x++) {
            float tail = 0;
            for (uint32_t t = i; t < d; t++)
                tail += load_one(type, row[x], t) * q[h][t];
            s[h][j + x] = (v_sum(acc[h][x]) + tail) * a->scale;
        }
}

/* Columns i.. of the latent mixture of nh heads. */
ALWAYS_INLINE void mix_latents(const struct krn_attn_absorbed *a, float *const s[4], const float *inv, uint32_t h0, uint32_t i, uint32_t n,
                               uint32_t n_next, const uint32_t nh, const enum krn_cache_type type)
{
    struct walk w = walk_start(&a->kv, a->sel), ahead = walk_start(&a->next, NULL);
    const size_t lines = (size_t)(a->l + a->r) * krn_cache_elem_bytes(type) / 64, pieces = (size_t)a->l * (n_next != 0 ? a->parts : 1);
    const size_t at = (size_t)a->l * a->part + i, fetch0 = lines * at / pieces * 64, fetch1 = lines * (at + 4 * VL) / pieces * 64;
    vf acc[4][4] = {{{0}}};
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *row = walk_row(&w);
        vf c[4];
        if (j < n_next) { /* this pass's share of each row */
            const uint8_t *r = walk_row(&ahead);
            for (size_t x = fetch0; x < fetch1; x += 64)
                __builtin_prefetch(r + x, 0, 2);
        }
        UNROLL4 for (uint32_t x = 0; x < 4; x++)
            c[x] = v_load_cache(type, row, i + x * VL);
        UNROLL4 for (uint32_t h = 0; h < nh; h++) {
            vf p = v_set(s[h][j]);
            UNROLL4 for (uint32_t x = 0; x < 4; x++)
                acc[h][x] = v_fma(p, c[x], acc[h][x]);
        }
    }
    UNROLL4 for (uint32_t h = 0; h < nh; h++)
        UNROLL4 for (uint32_t x = 0; x < 4; x++)
            v_store(a->out + (size_t)(h0 + h) * a->l + i + x * VL, acc[h][x] * v_set(inv[h]));
}

/* Heads h0 .. h0 + nh - 1 over every key: scores, softmax, latent mixture. l and r are multiples of 16 in every known model; the scalar tails
 * serve the rest. */
ALWAYS_INLINE void absorbed_heads(const struct krn_attn_absorbed *a, uint32_t h0, uint32_t n, const uint32_t nh, const enum krn_cache_type type)
{
    uint32_t d = a->l + a->r, j = 0, i = 0;
    size_t pitch = ((size_t)n + 15) & ~(size_t)15;
    const float *q[4];
    float *s[4], inv[4];
    const uint8_t *row[SCORE_KEYS], *next[SCORE_KEYS];
    struct walk w = walk_start(&a->kv, a->sel);
    for (uint32_t h = 0; h < nh; h++) {
        q[h] = a->q + (size_t)(h0 + h) * d;
        s[h] = a->scores + h * pitch;
    }
    for (uint32_t x = 0; x < SCORE_KEYS && x < n; x++)
        next[x] = walk_row(&w);
    for (; j + SCORE_KEYS <= n; j += SCORE_KEYS) {
        uint32_t after = n - j - SCORE_KEYS;
        memcpy(row, next, sizeof row);
        for (uint32_t x = 0; x < SCORE_KEYS && x < after; x++)
            next[x] = walk_row(&w);
        score_keys(a, q, row, after >= SCORE_KEYS ? next : NULL, s, j, SCORE_KEYS, nh, type);
    }
    for (uint32_t x = 0; j < n; j++, x++)
        score_keys(a, q, next + x, NULL, s, j, 1, nh, type);
    for (uint32_t h = 0; h < nh; h++)
        inv[h] = 1.0f / softmax_sum(s[h], n, largest_of(s[h], n));
    for (; i + 4 * VL <= a->l; i += 4 * VL)
        mix_latents(a, s, inv, h0, i, n, h0 == 0 ? a->n_next : 0, nh, type);
    for (; i < a->l; i++)
        for (uint32_t h = 0; h < nh; h++) {
            float o = 0;
            for (j = 0; j < n; j++)
                o += s[h][j] * load_one(type, page_row(&a->kv, a->sel != NULL ? (uint32_t)a->sel[j] : j), i);
            a->out[(size_t)(h0 + h) * a->l + i] = o * inv[h];
        }
}

#define ABSORBED(type)                                                                                                                     \
    static void absorbed_##type(const struct krn_attn_absorbed *a, uint32_t h0, uint32_t nh, uint32_t n)                                   \
    {                                                                                                                                      \
        switch (nh) {                                                                                                                      \
        case 1: absorbed_heads(a, h0, n, 1, KRN_CACHE_##type); break;                                                                      \
        case 2: absorbed_heads(a, h0, n, 2, KRN_CACHE_##type); break;                                                                      \
        case 3: absorbed_heads(a, h0, n, 3, KRN_CACHE_##type); break;                                                                      \
        default: absorbed_heads(a, h0, n, 4, KRN_CACHE_##type); break;                                                                     \
        }                                                                                                                                  \
    }
ABSORBED(F32)
ABSORBED(F16)
ABSORBED(BF16)

static void attn_absorbed(const struct krn_attn_absorbed *a)
{
    uint32_t n = a->sel != NULL ? a->n_sel : a->n_keys;
    for (uint32_t h = 0; h < a->n_heads; h += 4) {
        uint32_t nh = a->n_heads - h < 4 ? a->n_heads - h : 4;
        switch (a->kv.type) {
        case KRN_CACHE_F32: absorbed_F32(a, h, nh, n); break;
        case KRN_CACHE_F16: absorbed_F16(a, h, nh, n); break;
        case KRN_CACHE_BF16: absorbed_BF16(a, h, nh, n); break;
        }
    }
}

/* out[KRN_KEY_TILE][n] = c[KRN_KEY_TILE][l] * b[l][n]; every element sums over l in order, so tiles do not matter. */
static void tile_times_b(const float *c, uint32_t l, const float *b, uint32_t n, float *out)
{
    for (uint32_t t = 0; t < KRN_KEY_TILE; t += 4) {
        const float *c0 = c + (size_t)t * l, *c1 = c0 + l, *c2 = c1 + l, *c3 = c2 + l;
        uint32_t j = 0;
        for (; j + 2 * VL <= n; j += 2 * VL) {
            vf a00 = {0}, a01 = {0}, a10 = {0}, a11 = {0}, a20 = {0}, a21 = {0}, a30 = {0}, a31 = {0};
            for (uint32_t i = 0; i < l; i++) {
                vf b0 = v_load(b + (size_t)i * n + j), b1 = v_load(b + (size_t)i * n + j + VL);
                a00 = v_fma(v_set(c0[i]), b0, a00), a01 = v_fma(v_set(c0[i]), b1, a01);
                a10 = v_fma(v_set(c1[i]), b0, a10), a11 = v_fma(v_set(c1[i]), b1, a11);
                a20 = v_fma(v_set(c2[i]), b0, a20), a21 = v_fma(v_set(c2[i]), b1, a21);
                a30 = v_fma(v_set(c3[i]), b0, a30), a31 = v_fma(v_set(c3[i]), b1, a31);
            }
            float *o = out + (size_t)t * n + j;
            v_store(o, a00), v_store(o + VL, a01);
            v_store(o + n, a10), v_store(o + n + VL, a11);
            v_store(o + 2 * (size_t)n, a20), v_store(o + 2 * (size_t)n + VL, a21);
            v_store(o + 3 * (size_t)n, a30), v_store(o + 3 * (size_t)n + VL, a31);
        }
        for (; j < n; j++)
            for (uint32_t u = 0; u < 4; u++) {
                float s = 0;
                for (uint32_t i = 0; i < l; i++)
                    s += c[(size_t)(t + u) * l + i] * b[(size_t)i * n + j];
                out[(size_t)(t + u) * n + j] = s;
            }
    }
}

static void attn_expand(const struct krn_attn_expand *a)
{
    uint32_t n = a->nope + a->v, dim = a->nope + a->r;
    float *c = a->tmp, *pe = c + (size_t)KRN_KEY_TILE * a->l, *kv = pe + (size_t)KRN_KEY_TILE * a->r;
    for (uint32_t t = a->key0; t < a->key1; t += KRN_KEY_TILE) {
        uint32_t m = a->key1 - t < KRN_KEY_TILE ? a->key1 - t : KRN_KEY_TILE;
        for (uint32_t i = 0; i < KRN_KEY_TILE; i++) {
            if (i >= m) {
                memset(c + (size_t)i * a->l, 0, a->l * sizeof *c);
                memset(pe + (size_t)i * a->r, 0, a->r * sizeof *pe);
                continue;
            }
            const uint8_t *row = page_row(&a->kv, t + i);
            load(a->kv.type, row, c + (size_t)i * a->l, a->l);
            load(a->kv.type, row + a->l * krn_cache_elem_bytes(a->kv.type), pe + (size_t)i * a->r, a->r);
        }
        tile_times_b(c, a->l, a->b, n, kv);
        float *keys = a->keys + (size_t)t * dim;
        for (uint32_t i = 0; i < KRN_KEY_TILE; i++) {
            for (uint32_t d = 0; d < a->nope; d++)
                keys[(size_t)d * KRN_KEY_TILE + i] = kv[(size_t)i * n + d];
            for (uint32_t d = 0; d < a->r; d++)
                keys[(size_t)(a->nope + d) * KRN_KEY_TILE + i] = pe[(size_t)i * a->r + d];
            if (i < m)
                memcpy(a->values + (size_t)(t + i) * a->v, kv + (size_t)i * n + a->nope, a->v * sizeof(float));
        }
    }
}

/* Scores of up to eight rows against one tile of keys. */
static void tile_scores(const struct krn_attn_expanded *a, uint32_t row, uint32_t nr, const float *tile, float *s, size_t pitch)
{
    enum { PARTS = KRN_KEY_TILE / VL };
    vf acc[8][PARTS];
    memset(acc, 0, sizeof acc);
    const float *q[8];
    for (uint32_t i = 0; i < 8; i++)
        q[i] = a->q + (size_t)(row + (i < nr ? i : 0)) * a->q_stride;
    for (uint32_t d = 0; d < a->dim; d++)
        for (uint32_t p = 0; p < PARTS; p++) {
            vf k = v_load(tile + (size_t)d * KRN_KEY_TILE + p * VL);
            for (uint32_t i = 0; i < 8; i++)
                acc[i][p] = v_fma(k, v_set(q[i][d]), acc[i][p]);
        }
    for (uint32_t i = 0; i < nr; i++)
        for (uint32_t p = 0; p < PARTS; p++)
            v_store(s + i * pitch + p * VL, acc[i][p] * v_set(a->scale));
}

/* Drop the scores of keys that a row may not see; returns the maximum of those it may. */
static float mask_row(const struct krn_attn_expanded *a, uint32_t row, float *s, uint32_t n_keys)
{
    uint32_t own = a->pos0 + row + 1;
    for (uint32_t t = own; t < n_keys; t++)
        s[t] = -INFINITY;
    if (a->sel != NULL && a->sel[row] != NULL) {
        const int32_t *sel = a->sel[row];
        uint32_t n = a->n_sel[row], next = 0;
        for (uint32_t t = 0; t < own; t++) {
            if (next < n && sel[next] == (int32_t)t)
                next++;
            else
                s[t] = -INFINITY;
        }
    }
    return largest_of(s, own);
}

static void mix_values(const struct krn_attn_expanded *a, uint32_t row, uint32_t nr, uint32_t n_keys, const float *s, size_t pitch, const float *inv)
{
    uint32_t j = 0;
    for (; j + 2 * VL <= a->v; j += 2 * VL) {
        vf acc[8][2];
        memset(acc, 0, sizeof acc);
        for (uint32_t t = 0; t < n_keys; t++) {
            vf v0 = v_load(a->values + (size_t)t * a->v + j), v1 = v_load(a->values + (size_t)t * a->v + j + VL);
            for (uint32_t i = 0; i < 8; i++) {
                vf p = v_set(s[i * pitch + t]);
                acc[i][0] = v_fma(p, v0, acc[i][0]);
                acc[i][1] = v_fma(p, v1, acc[i][1]);
            }
        }
        for (uint32_t i = 0; i < nr; i++) {
            float *o = a->out + (size_t)(row + i) * a->out_stride + j;
            v_store(o, acc[i][0] * v_set(inv[i]));
            v_store(o + VL, acc[i][1] * v_set(inv[i]));
        }
    }
    for (; j < a->v; j++)
        for (uint32_t i = 0; i < nr; i++) {
            float o = 0;
            for (uint32_t t = 0; t < n_keys; t++)
                o += s[i * pitch + t] * a->values[(size_t)t * a->v + j];
            a->out[(size_t)(row + i) * a->out_stride + j] = o * inv[i];
        }
}

/* A row's sums run over its keys in order; keys beyond its own position add exact zeros, so grouping rows by eight changes no bit. */
static void attn_expanded(const struct krn_attn_expanded *a)
{
    for (uint32_t row = 0; row < a->n_rows; row += 8) {
        uint32_t nr = a->n_rows - row < 8 ? a->n_rows - row : 8, n_keys = a->pos0 + row + nr;
        size_t pitch = ((size_t)(a->pos0 + a->n_rows) + KRN_KEY_TILE - 1) / KRN_KEY_TILE * KRN_KEY_TILE;
        float inv[8];
        for (uint32_t t = 0; t < n_keys; t += KRN_KEY_TILE)
            tile_scores(a, row, nr, a->keys + (size_t)t * a->dim, a->scores + t, pitch);
        for (uint32_t i = 0; i < nr; i++) {
            float *s = a->scores + i * pitch;
            float m = mask_row(a, row + i, s, n_keys);
            uint32_t own = a->pos0 + row + i + 1;
            inv[i] = 1.0f / softmax_sum(s, own, m);
            memset(s + own, 0, (n_keys - own) * sizeof *s);
        }
        for (uint32_t i = nr; i < 8; i++)
            memset(a->scores + i * pitch, 0, n_keys * sizeof(float));
        mix_values(a, row, nr, n_keys, a->scores, pitch, inv);
    }
}

#endif
