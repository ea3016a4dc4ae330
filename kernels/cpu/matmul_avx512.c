/* The matmul with AVX-512 VNNI: a lane is a row of weights. Registers: 32, so a tile is 2 panels x 4 columns of integer and float sums. */
#include "kernels/cpu/matmul_avx512_unpack.h"

/* ---- int8: tiles ---- */

enum { TILE_COLS = 4 };

static void unpack(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel *p)
{
    struct sink s = {.p = p};
    unpack_type(type, rows, n, &s, true);
}

/* What a tile call is about; see krn_panel_ops. */
struct tile {
    const struct krn_panel *p;
    size_t n;
    const uint8_t *const *x;
    size_t offset, blocks;
    struct krn_sums *sums;
    unsigned zero_shift;
};

INLINE int32_t word_at(const uint8_t *p)
{
    int32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Start of the integer sum of a group that is `upper` or lower half of a block, or all of it. */
INLINE __m512i zero_points(const struct krn_q8_block *block, const int group, const int upper, const bool minima, unsigned shift)
{
    if (minima)
        return _mm512_setzero_si512();
    int32_t neg = group == 32 ? block->neg_sum : upper ? block->neg_sum - block->neg_sum_low : block->neg_sum_low;
    return _mm512_set1_epi32((int32_t)((uint32_t)neg << shift));
}

INLINE float scaled_sum(const struct krn_q8_block *block, const int group, const int upper)
{
    if (group == 32)
        return block->s;
    return block->d * (float)(upper ? block->neg_sum_low - block->neg_sum : -block->neg_sum_low);
}

/* Columns j.. of a tile call; panels, cols, group and minima are constants. */
INLINE void tile_columns(const struct tile *t, size_t j, const int panels, const int cols, const int group, const bool minima)
{
    __m512 sum[BLOCK_PANELS][TILE_COLS];
    UNROLL(4) for (int c = 0; c < cols; c++)
        UNROLL(2) for (int p = 0; p < panels; p++)
            sum[p][c] = _mm512_load_ps(&t->sums->v[j + (size_t)c][p * PANEL_ROWS]);
    for (size_t k = 0; k < t->n; k += (size_t)group) {
        __m512i dot[BLOCK_PANELS][TILE_COLS];
        const struct krn_q8_block *block[TILE_COLS];
        const int upper = group == 16 && k % 32 != 0;
        UNROLL(4) for (int c = 0; c < cols; c++) {
            block[c] = (const struct krn_q8_block *)(t->x[j + (size_t)c] + t->blocks) + k / 32;
            UNROLL(2) for (int p = 0; p < panels; p++)
                dot[p][c] = zero_points(block[c], group, upper, minima, t->zero_shift);
        }
        UNROLL(8) for (int i = 0; i < group / 4; i++)
            UNROLL(4) for (int c = 0; c < cols; c++) {
                __m512i x = _mm512_set1_epi32(word_at(t->x[j + (size_t)c] + t->offset + k + 4 * (size_t)i));
                UNROLL(2) for (int p = 0; p < panels; p++)
                    dot[p][c] = _mm512_dpbusd_epi32(dot[p][c], _mm512_load_si512(t->p[p].q[k / 4 + (size_t)i]), x);
            }
        UNROLL(4) for (int c = 0; c < cols; c++)
            UNROLL(2) for (int p = 0; p < panels; p++) {
                __m512 scale = _mm512_mul_ps(_mm512_load_ps(t->p[p].a[k / (size_t)group]), _mm512_set1_ps(block[c]->d));
                sum[p][c] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[p][c]), sum[p][c]);
                if (minima)
                    sum[p][c] = _mm512_fnmadd_ps(_mm512_load_ps(t->p[p].b[k / (size_t)group]),
                                                 _mm512_set1_ps(scaled_sum(block[c], group, upper)), sum[p][c]);
            }
    }
    UNROLL(4) for (int c = 0; c < cols; c++)
        UNROLL(2) for (int p = 0; p < panels; p++)
            _mm512_store_ps(&t->sums->v[j + (size_t)c][p * PANEL_ROWS], sum[p][c]);
}

INLINE void tile_all(const struct tile *t, size_t n_cols, const int panels, const int group, const bool minima)
{
    size_t j = 0;
    for (; j + TILE_COLS <= n_cols; j += TILE_COLS)
        tile_columns(t, j, panels, TILE_COLS, group, minima);
    switch (n_cols - j) {
    case 3: tile_columns(t, j, panels, 3, group, minima); break;
    case 2: tile_columns(t, j, panels, 2, group, minima); break;
    case 1: tile_columns(t, j, panels, 1, group, minima); break;
    default: break;
    }
}

#define TILE_VARIANT(panels, group, minima)                                                                                                \
    static void tile_##panels##_##group##_##minima(const struct tile *t, size_t n_cols)                                                    \
    {                                                                                                                                      \
        tile_all(t, n_cols, panels, group, minima);                                                                                        \
    }
TILE_VARIANT(1, 16, 0)
TILE_VARIANT(1, 16, 1)
TILE_VARIANT(1, 32, 0)
TILE_VARIANT(1, 32, 1)
TILE_VARIANT(2, 16, 0)
TILE_VARIANT(2, 16, 1)
TILE_VARIANT(2, 32, 0)
TILE_VARIANT(2, 32, 1)

static void (*const tile_variants[2][2][2])(const struct tile *t, size_t n_cols) = {
    {{tile_1_16_0, tile_1_16_1}, {tile_1_32_0, tile_1_32_1}},
    {{tile_2_16_0, tile_2_16_1}, {tile_2_32_0, tile_2_32_1}},
};

static void tile_q8(struct krn_quant_form form, const struct krn_panel *p, size_t panels, size_t n, const uint8_t *const *x, size_t offset,
                    size_t blocks, size_t n_cols, struct krn_sums *sums)
{
    struct tile t = {.p = p, .n = n, .x = x, .offset = offset, .blocks = blocks, .sums = sums, .zero_shift = form.zero_shift};
    tile_variants[panels - 1][form.group == 32][form.minima](&t, n_cols);
}

/* ---- int8: one column ---- */

/* Add a chunk's groups to the sums of a panel. */
INLINE __m512 add_groups(__m512 sum, const struct krn_panel *p, const __m512i *dots, const struct krn_q8_block *block, size_t n, const int group,
                         const bool minima, const unsigned shift)
{
    for (size_t k = 0; k < n; k += (size_t)group) {
        const int upper = group == 16 && k % 32 != 0;
        const struct krn_q8_block *b = &block[k / 32];
        __m512i dot = dots[k / 16];
        if (group == 32)
            dot = _mm512_add_epi32(dot, dots[k / 16 + 1]);
        if (!minima)
            dot = _mm512_add_epi32(dot, zero_points(b, group, upper, minima, shift));
        __m512 scale = _mm512_mul_ps(_mm512_load_ps(p->a[k / (size_t)group]), _mm512_set1_ps(b->d));
        sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), sum);
        if (minima)
            sum = _mm512_fnmadd_ps(_mm512_load_ps(p->b[k / (size_t)group]), _mm512_set1_ps(scaled_sum(b, group, upper)), sum);
    }
    return sum;
}

/* Runs AHEAD chunks in front of the multiplication and asks for the weights there: hardware does not follow 16 rows at once. */
struct scout {
    struct krn_rows rows;
    size_t row, k;
};

enum { AHEAD = 3 };

INLINE void scout_step(struct scout *s, size_t chunk_bytes, const struct krn_matmul *m, size_t end, const bool fetch)
{
    if (s->row >= end)
        return;
    if (fetch)
        UNROLL(4) for (size_t r = 0; r < PANEL_ROWS; r++)
            for (size_t at = 0; at < chunk_bytes; at += 64)
                _mm_prefetch(s->rows.w + r * s->rows.stride + at, _MM_HINT_T1);
    s->k += CHUNK_K;
    s->rows.w += chunk_bytes;
    if (s->k >= m->k) {
        s->k = 0;
        s->row += PANEL_ROWS;
        s->rows.w = m->w + s->row * m->w_stride;
    }
}

INLINE void gemv_type(const struct krn_matmul *m, size_t row, size_t end, const uint8_t *x, float *y, float scale, const uint32_t type,
                      const int group, const bool minima, const unsigned shift)
{
    struct krn_panel p;
    __m512i dots[CHUNK_K / 16];
    const struct krn_q8_block *blocks = (const struct krn_q8_block *)(x + krn_q8_blocks_offset(m->k));
    const size_t chunk_bytes = krn_row_bytes(type, CHUNK_K);
    struct scout scout = {.rows = {m->w + row * m->w_stride, m->w_stride}, .row = row};
    for (int i = 0; i < AHEAD; i++)
        scout_step(&scout, chunk_bytes, m, end, false);
    for (; row < end; row += PANEL_ROWS) {
        __m512 sum = _mm512_setzero_ps();
        struct krn_rows rows = {m->w + row * m->w_stride, m->w_stride};
        for (size_t k = 0; k < m->k; k += CHUNK_K) {
            size_t n = m->k - k < CHUNK_K ? m->k - k : CHUNK_K;
            struct sink s = {.p = &p, .x = (const int8_t *)x + k, .dots = dots};
            scout_step(&scout, chunk_bytes, m, end, true);
            unpack_type(type, rows, n, &s, false);
            sum = add_groups(sum, &p, dots, blocks + k / 32, n, group, minima, shift);
            rows.w += chunk_bytes;
        }
        sum = _mm512_mul_ps(sum, _mm512_set1_ps(scale));
        if (m->accumulate)
            sum = _mm512_add_ps(_mm512_loadu_ps(y + row), sum);
        _mm512_storeu_ps(y + row, sum);
    }
}

#define GEMV(type, group, minima, shift)                                                                                                   \
    static void gemv_##type(const struct krn_matmul *m, size_t row, size_t end, const uint8_t *x, float *y, float scale)                   \
    {                                                                                                                                      \
        gemv_type(m, row, end, x, y, scale, KRN_##type, group, minima, shift);                                                             \
    }
GEMV(Q4_0, 32, false, 3)
GEMV(Q4_1, 32, true, 0)
GEMV(Q5_0, 32, false, 4)
GEMV(Q5_1, 32, true, 0)
GEMV(Q8_0, 32, false, 7)
GEMV(IQ4_NL, 32, false, 7)
GEMV(Q2_K, 16, true, 0)
GEMV(Q3_K, 16, false, 2)
GEMV(Q4_K, 32, true, 0)
GEMV(Q5_K, 32, true, 0)
GEMV(Q6_K, 16, false, 5)
GEMV(IQ4_XS, 32, false, 7)

static void gemv_q8(const struct krn_matmul *m, size_t row, size_t end, const uint8_t *x, float *y, float scale)
{
    static void (*const by_type[KRN_TYPE_MAX])(const struct krn_matmul *, size_t, size_t, const uint8_t *, float *, float) = {
        [KRN_Q4_0] = gemv_Q4_0, [KRN_Q4_1] = gemv_Q4_1, [KRN_Q5_0] = gemv_Q5_0,     [KRN_Q5_1] = gemv_Q5_1,
        [KRN_Q8_0] = gemv_Q8_0, [KRN_Q2_K] = gemv_Q2_K, [KRN_Q3_K] = gemv_Q3_K,     [KRN_Q4_K] = gemv_Q4_K,
        [KRN_Q5_K] = gemv_Q5_K, [KRN_Q6_K] = gemv_Q6_K, [KRN_IQ4_NL] = gemv_IQ4_NL, [KRN_IQ4_XS] = gemv_IQ4_XS,
    };
    by_type[m->type](m, row, end, x, y, scale);
}

/* ---- floats ---- */

/* 32 bytes of 16 rows, of which only `bytes` exist; the rest reads as zero. */
static void turn_tail(struct krn_rows rows, size_t at, size_t bytes_left, __m512i t[8])
{
    _Alignas(64) uint8_t copy[PANEL_ROWS][32] = {{0}};
    for (size_t r = 0; r < PANEL_ROWS; r++)
        memcpy(copy[r], rows.w + at + r * rows.stride, bytes_left);
    turn32((struct krn_rows){copy[0], sizeof copy[0]}, 0, t);
}

static void unpack_f32(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel_f32 *p)
{
    const size_t size = type == KRN_F32 ? sizeof(float) : sizeof(uint16_t), step = 32 / size;
    for (size_t k = 0; k < n; k += step) {
        __m512i t[8];
        if (n - k >= step)
            turn32(rows, k * size, t);
        else
            turn_tail(rows, k * size, (n - k) * size, t);
        for (int i = 0; i < 8; i++) {
            if (type == KRN_F32) {
                _mm512_store_si512(p->w[k + (size_t)i], t[i]);
                continue;
            }
            float *w = p->w[k + 2 * (size_t)i];
            if (type == KRN_F16) {
                _mm512_store_ps(w, half_of(t[i], 0));
                _mm512_store_ps(w + PANEL_ROWS, half_of(t[i], 16));
            } else {
                _mm512_store_si512(w, _mm512_slli_epi32(t[i], 16));
                _mm512_store_si512(w + PANEL_ROWS, _mm512_and_si512(t[i], _mm512_set1_epi32((int)0xFFFF0000)));
            }
        }
    }
}

static void expand(struct krn_quant_form form, const struct krn_panel *p, size_t n, struct krn_panel_f32 *w)
{
    const __m512i zero = _mm512_set1_epi32(form.minima ? 0 : 1 << form.zero_shift), low = _mm512_set1_epi32(255);
    for (size_t g = 0; g < n / form.group; g++) {
        __m512 a = _mm512_load_ps(p->a[g]), b = form.minima ? _mm512_load_ps(p->b[g]) : _mm512_setzero_ps();
        for (size_t k = g * form.group; k < (g + 1) * form.group; k += 4) {
            __m512i q = _mm512_load_si512(p->q[k / 4]);
            UNROLL(4) for (unsigned i = 0; i < 4; i++) {
                __m512i code = _mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32(q, 8 * i), low), zero);
                __m512 v = _mm512_mul_ps(a, _mm512_cvtepi32_ps(code));
                _mm512_store_ps(w->w[k + i], form.minima ? _mm512_sub_ps(v, b) : v);
            }
        }
    }
}

enum { F32_COLS = 6 };

/* One panel times columns j.. (a constant number). */
INLINE void tile_f32_columns(const struct krn_panel_f32 *p, size_t n, const uint8_t *const *x, size_t offset, size_t j, const int cols,
                             struct krn_sums *sums, size_t lane)
{
    __m512 chain[F32_COLS][4];
    const float *f[F32_COLS];
    UNROLL(6) for (int c = 0; c < cols; c++) {
        f[c] = (const float *)x[j + (size_t)c] + offset;
        UNROLL(4) for (int i = 0; i < 4; i++)
            chain[c][i] = _mm512_setzero_ps();
    }
    size_t k = 0;
    for (; k + 4 <= n; k += 4)
        UNROLL(4) for (size_t i = 0; i < 4; i++) {
            __m512 w = _mm512_load_ps(p->w[k + i]);
            UNROLL(6) for (int c = 0; c < cols; c++)
                chain[c][i] = _mm512_fmadd_ps(w, _mm512_set1_ps(f[c][k + i]), chain[c][i]);
        }
    UNROLL(3) for (size_t i = 0; i < 3; i++)
        if (k + i < n)
            UNROLL(6) for (int c = 0; c < cols; c++)
                chain[c][i] = _mm512_fmadd_ps(_mm512_load_ps(p->w[k + i]), _mm512_set1_ps(f[c][k + i]), chain[c][i]);
    UNROLL(6) for (int c = 0; c < cols; c++) {
        float *sum = &sums->v[j + (size_t)c][lane];
        __m512 total = _mm512_add_ps(_mm512_add_ps(chain[c][0], chain[c][1]), _mm512_add_ps(chain[c][2], chain[c][3]));
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), total));
    }
}

static void tile_f32(const struct krn_panel_f32 *p, size_t panels, size_t n, const uint8_t *const *x, size_t offset, size_t n_cols,
                     struct krn_sums *sums)
{
    for (size_t i = 0; i < panels; i++, p++) {
        size_t j = 0, lane = i * PANEL_ROWS;
        for (; j + F32_COLS <= n_cols; j += F32_COLS)
            tile_f32_columns(p, n, x, offset, j, F32_COLS, sums, lane);
        switch (n_cols - j) {
        case 5: tile_f32_columns(p, n, x, offset, j, 5, sums, lane); break;
        case 4: tile_f32_columns(p, n, x, offset, j, 4, sums, lane); break;
        case 3: tile_f32_columns(p, n, x, offset, j, 3, sums, lane); break;
        case 2: tile_f32_columns(p, n, x, offset, j, 2, sums, lane); break;
        case 1: tile_f32_columns(p, n, x, offset, j, 1, sums, lane); break;
        default: break;
        }
    }
}

/* ---- activations ---- */

static void quantise_row(const float *x, void *q8, size_t k)
{
    int8_t *q = q8;
    struct krn_q8_block *blocks = (struct krn_q8_block *)(q + krn_q8_blocks_offset(k));
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (size_t i = 0; i < k; i += 32) {
        __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
        __m512i mags = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude), _mm512_and_si512(_mm512_castps_si512(high), magnitude));
        uint32_t max = _mm512_reduce_max_epu32(mags);
        if (max >= KRN_Q8_INFINITE || max < KRN_Q8_TINY) {
            krn_q8_odd_block(max, q + i, &blocks[i / 32]);
            continue;
        }
        float amax = krn_f32_from_bits(max);
        __m512 inverse = _mm512_set1_ps(127.0f / amax);
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)), b = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        _mm_store_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(a));
        _mm_store_si128((__m128i *)(q + i + 16), _mm512_cvtepi32_epi8(b));
        int32_t sum_low = _mm512_reduce_add_epi32(a), sum = sum_low + _mm512_reduce_add_epi32(b);
        float d = amax / 127.0f;
        blocks[i / 32] = (struct krn_q8_block){.d = d, .s = d * (float)sum, .neg_sum = -sum, .neg_sum_low = -sum_low};
    }
}

/* ---- table ---- */

static const struct krn_panel_ops ops = {
    .unpack = unpack, .tile_q8 = tile_q8, .unpack_f32 = unpack_f32, .expand = expand, .tile_f32 = tile_f32, .gemv_q8 = gemv_q8,
};

static void avx512_q8(const struct krn_matmul *m)
{
    krn_matmul_drive_q8(m, &ops);
}

static void avx512_f32(const struct krn_matmul *m)
{
    krn_matmul_drive_f32(m, &ops);
}

static const struct krn_cpu_matmul avx512 = {
    .name = "avx512",
    .isa = KRN_ISA_AVX512,
    .quantise_row = quantise_row,
    .q8 = avx512_q8,
    .f32 = avx512_f32,
    .dequant = krn_dequant_row,
};

const struct krn_cpu_matmul *krn_matmul_avx512(void)
{
    return &avx512;
}
