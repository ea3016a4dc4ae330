/* What the vector versions of the matmul do alike: the matrix-vector product, float weights, activations. Included by matmul_avx2.c and
 * matmul_avx512.c after their matmul_avx*.h, whose names this is written in. */
#ifndef RANKSCOPE_KERNELS_CPU_MATMUL_SIMD_H
#define RANKSCOPE_KERNELS_CPU_MATMUL_SIMD_H

#include "kernels/cpu/matmul_simd_unpack.h"

/* The part of a panel's chunk that starts at row `lane`. */
INLINE struct sink sink_at(struct krn_panel *p, size_t lane)
{
    return (struct sink){
        .q = (uint8_t(*)[PANEL_ROWS][4])p->q[0][lane],
        .a = (float(*)[PANEL_ROWS]) & p->a[0][lane],
        .b = (float(*)[PANEL_ROWS]) & p->b[0][lane],
    };
}

static void unpack(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel *p)
{
    for (size_t lane = 0; lane < PANEL_ROWS; lane += LANES) {
        struct sink s = sink_at(p, lane);
        unpack_type(type, rows, n, &s, 0);
        rows.w += LANES * rows.stride;
    }
}

/* Types that krn_packed_bytes() has no form for do not come here. */
static void unpack_packed(uint32_t type, const uint8_t *w, size_t n, struct krn_panel *p)
{
    for (size_t lane = 0; lane < PANEL_ROWS; lane += LANES) {
        struct sink s = sink_at(p, lane);
        unpack_type(type, (struct krn_rows){.w = w, .packed = true, .lane = lane}, n, &s, 0);
    }
}

/* Start of the integer sum of a group: all of a block of activations, or its lower or upper half. */
INLINE vint zero_points(const struct krn_q8_block *block, const int group, const int upper, const unsigned shift)
{
    int32_t neg = group == 32 ? block->neg_sum : upper ? block->neg_sum - block->neg_sum_low : block->neg_sum_low;
    return v_words((int32_t)((uint32_t)neg << shift));
}

INLINE float scaled_sum(const struct krn_q8_block *block, const int group, const int upper)
{
    if (group == 32)
        return block->s;
    return block->d * (float)(upper ? block->neg_sum_low - block->neg_sum : -block->neg_sum_low);
}

/* Whether codes are offset from zero in this instruction set. */
INLINE bool has_zero_point(const bool minima, const unsigned shift)
{
    return !minima && !(shift == 7 && SIGNED_BIAS == 0);
}

/* ---- one column ---- */

/* Add a chunk's groups of column `col` to the sums of LANES rows. */
INLINE vflt add_groups(vflt sum, const struct sink *s, const int col, const struct krn_q8_block *block, size_t n, const int group, const bool minima,
                       const unsigned shift)
{
    for (size_t k = 0; k < n; k += (size_t)group) {
        const int upper = group == 16 && k % 32 != 0;
        const struct krn_q8_block *b = &block[k / 32];
        vint dot = s->dots[col][k / 16];
        if (group == 32)
            dot = v_add32(dot, s->dots[col][k / 16 + 1]);
        if (has_zero_point(minima, shift))
            dot = v_add32(dot, zero_points(b, group, upper, shift));
        vflt scale = f_mul(f_load(s->a[k / (size_t)group]), f_all(b->d));
        sum = f_fma(scale, v_float(dot), sum);
        if (minima)
            sum = f_fnma(f_load(s->b[k / (size_t)group]), f_all(scaled_sum(b, group, upper)), sum);
    }
    return sum;
}

/* Runs AHEAD chunks in front of the multiplication and asks for the weights there: hardware does not follow so many rows at once. */
struct scout {
    const struct krn_matmul *m;
    const uint8_t *w;
    size_t row, end, k;
};

enum { AHEAD = 3 * PANEL_ROWS / LANES };

INLINE void scout_step(struct scout *s, size_t chunk_bytes, const bool fetch)
{
    if (s->row >= s->end)
        return;
    if (fetch)
        for (size_t r = 0; r < LANES; r++)
            for (size_t at = 0; at < chunk_bytes; at += 64)
                _mm_prefetch(s->w + r * s->m->w_stride + at, _MM_HINT_T1);
    s->k += CHUNK_K;
    s->w += chunk_bytes;
    if (s->k >= s->m->k) {
        s->k = 0;
        s->row += LANES;
        s->w = s->m->w + s->row * s->m->w_stride;
    }
}

INLINE void gemv_type(const struct krn_matmul *m, size_t row, size_t end, const uint8_t *x, float *y, float scale, const uint32_t type,
                      const int group, const bool minima, const unsigned shift)
{
    struct krn_panel p;
    vint dots[1][CHUNK_K / 16];
    struct sink s = sink_at(&p, 0);
    const struct krn_q8_block *blocks = (const struct krn_q8_block *)(x + krn_q8_blocks_offset(m->k));
    const size_t chunk_bytes = krn_row_bytes(type, CHUNK_K);
    struct scout scout = {.m = m, .w = m->w + row * m->w_stride, .row = row, .end = end};
    s.dots = dots;
    for (int i = 0; i < AHEAD; i++)
        scout_step(&scout, chunk_bytes, false);
    for (; row < end; row += LANES) {
        vflt sum = f_all(0);
        struct krn_rows rows = {.w = m->w + row * m->w_stride, .stride = m->w_stride};
        for (size_t k = 0; k < m->k; k += CHUNK_K) {
            size_t n = m->k - k < CHUNK_K ? m->k - k : CHUNK_K;
            s.x[0] = (const int8_t *)x + k;
            scout_step(&scout, chunk_bytes, true);
            unpack_type(type, rows, n, &s, 1);
            sum = add_groups(sum, &s, 0, blocks + k / 32, n, group, minima, shift);
            rows.w += chunk_bytes;
        }
        sum = f_mul(sum, f_all(scale));
        if (m->accumulate)
            sum = f_add(f_loadu(y + row), sum);
        f_storeu(y + row, sum);
    }
}

enum { PACKED_AHEAD = 4096 }; /* bytes between what is multiplied and what is asked for */

/* As gemv_type, from packed weights and for `cols` columns: weights are unpacked once for all of them. */
INLINE void gemv_packed_type(const struct krn_matmul *m, size_t row, size_t end, const struct krn_few *few, const int cols, const uint32_t type,
                             const int group, const bool minima, const unsigned shift)
{
    struct krn_panel p;
    vint dots[KRN_FEW][CHUNK_K / 16];
    struct sink s = sink_at(&p, 0);
    const size_t blocks = krn_q8_blocks_offset(m->k);
    const size_t whole = krn_packed_chunk_bytes(type, CHUNK_K), rest = m->k % CHUNK_K != 0 ? krn_packed_chunk_bytes(type, m->k % CHUNK_K) : 0;
    const uint8_t *w = krn_packed_panel(m, row, m->k / CHUNK_K * whole + rest);
    s.dots = dots;
    for (; row < end; row += PANEL_ROWS) {
        vflt sum[KRN_FEW][PANEL_ROWS / LANES];
        UNROLL(4) for (int c = 0; c < cols; c++)
            for (size_t i = 0; i < PANEL_ROWS / LANES; i++)
                sum[c][i] = f_all(0);
        for (size_t k = 0; k < m->k; k += CHUNK_K) {
            size_t n = m->k - k < CHUNK_K ? m->k - k : CHUNK_K, bytes = n == CHUNK_K ? whole : rest;
            UNROLL(4) for (int c = 0; c < cols; c++)
                s.x[c] = (const int8_t *)few->x[c] + k;
            for (size_t at = 0; at < bytes; at += 64)
                _mm_prefetch(w + PACKED_AHEAD + at, _MM_HINT_T0);
            for (size_t i = 0; i < PANEL_ROWS / LANES; i++) {
                unpack_type(type, (struct krn_rows){.w = w, .packed = true, .lane = i * LANES}, n, &s, cols);
                UNROLL(4) for (int c = 0; c < cols; c++)
                    sum[c][i] = add_groups(sum[c][i], &s, c, (const struct krn_q8_block *)(few->x[c] + blocks) + k / 32, n, group, minima, shift);
            }
            w += bytes;
        }
        UNROLL(4) for (int c = 0; c < cols; c++)
            for (size_t i = 0; i < PANEL_ROWS / LANES; i++) {
                float *to = few->y[c] + row + i * LANES;
                vflt v = f_mul(sum[c][i], f_all(few->scale[c]));
                f_storeu(to, m->accumulate ? f_add(f_loadu(to), v) : v);
            }
    }
}

/* The types that most weights have get code for every number of columns; for others more columns than one go through panels. */
#define GEMV(type, group, minima, shift)                                                                                                   \
    static void gemv_##type(const struct krn_matmul *m, size_t row, size_t end, const struct krn_few *f)                                  \
    {                                                                                                                                      \
        if (m->packed != NULL)                                                                                                             \
            gemv_packed_type(m, row, end, f, 1, KRN_##type, group, minima, shift);                                                         \
        else                                                                                                                               \
            gemv_type(m, row, end, f->x[0], f->y[0], f->scale[0], KRN_##type, group, minima, shift);                                       \
    }
#define GEMV_FEW(type, group, minima, shift)                                                                                               \
    GEMV(type, group, minima, shift)                                                                                                       \
    static void few_##type(const struct krn_matmul *m, size_t row, size_t end, const struct krn_few *f)                                   \
    {                                                                                                                                      \
        if (f->n == 2)                                                                                                                     \
            gemv_packed_type(m, row, end, f, 2, KRN_##type, group, minima, shift);                                                         \
        else if (f->n == 3)                                                                                                                \
            gemv_packed_type(m, row, end, f, 3, KRN_##type, group, minima, shift);                                                         \
        else                                                                                                                               \
            gemv_packed_type(m, row, end, f, 4, KRN_##type, group, minima, shift);                                                         \
    }
GEMV(Q4_0, 32, false, 3)
GEMV(Q4_1, 32, true, 0)
GEMV(Q5_0, 32, false, 4)
GEMV(Q5_1, 32, true, 0)
GEMV_FEW(Q8_0, 32, false, 7)
GEMV(IQ4_NL, 32, false, 7)
GEMV(Q2_K, 16, true, 0)
GEMV(Q3_K, 16, false, 2)
GEMV_FEW(Q4_K, 32, true, 0)
GEMV_FEW(Q5_K, 32, true, 0)
GEMV_FEW(Q6_K, 16, false, 5)
GEMV(IQ4_XS, 32, false, 7)

static void gemv_split(const struct krn_matmul *m, size_t row, size_t end, const struct krn_few *f)
{
    const struct krn_quant_form form = krn_quant_form(m->type);
    if (form.group == 32)
        gemv_type(m, row, end, f->x[0], f->y[0], f->scale[0], m->type, 32, false, form.zero_shift);
    else
        gemv_type(m, row, end, f->x[0], f->y[0], f->scale[0], m->type, 16, false, form.zero_shift);
}

static bool few_q8(const struct krn_matmul *m, size_t row, size_t end, const struct krn_few *f)
{
    static void (*const one[KRN_TYPE_MAX])(const struct krn_matmul *, size_t, size_t, const struct krn_few *) = {
        [KRN_Q4_0] = gemv_Q4_0, [KRN_Q4_1] = gemv_Q4_1, [KRN_Q5_0] = gemv_Q5_0,     [KRN_Q5_1] = gemv_Q5_1,
        [KRN_Q8_0] = gemv_Q8_0, [KRN_Q2_K] = gemv_Q2_K, [KRN_Q3_K] = gemv_Q3_K,     [KRN_Q4_K] = gemv_Q4_K,
        [KRN_Q5_K] = gemv_Q5_K, [KRN_Q6_K] = gemv_Q6_K, [KRN_IQ4_NL] = gemv_IQ4_NL, [KRN_IQ4_XS] = gemv_IQ4_XS,
    };
    static void (*const some[KRN_TYPE_MAX])(const struct krn_matmul *, size_t, size_t, const struct krn_few *) = {
        [KRN_Q8_0] = few_Q8_0, [KRN_Q4_K] = few_Q4_K, [KRN_Q5_K] = few_Q5_K, [KRN_Q6_K] = few_Q6_K,
    };
    if (f->n > 1 && (m->packed == NULL || some[m->type] == NULL))
        return false;
    if (f->n > 1)
        some[m->type](m, row, end, f);
    else if (one[m->type] != NULL)
        one[m->type](m, row, end, f);
    else
        gemv_split(m, row, end, f);
    return true;
}

/* ---- floats ---- */

/* 32 bytes of LANES rows, of which only the first few exist; the rest reads as zero. */
static void turn_tail(struct krn_rows rows, size_t at, size_t bytes_left, vint t[8])
{
    _Alignas(64) uint8_t copy[LANES][32] = {{0}};
    for (size_t r = 0; r < LANES; r++)
        memcpy(copy[r], rows.w + at + r * rows.stride, bytes_left);
    turn32((struct krn_rows){.w = copy[0], .stride = sizeof copy[0]}, 0, t);
}

INLINE void unpack_floats(const uint32_t type, struct krn_rows rows, size_t n, struct krn_panel_f32 *p, size_t lane)
{
    const size_t size = type == KRN_F32 ? sizeof(float) : sizeof(uint16_t), step = 32 / size;
    for (size_t k = 0; k < n; k += step) {
        vint t[8];
        if (n - k >= step)
            turn32(rows, k * size, t);
        else
            turn_tail(rows, k * size, (n - k) * size, t);
        UNROLL(8) for (size_t i = 0; i < 8; i++) {
            if (type == KRN_F32) {
                v_store(&p->w[k + i][lane], t[i]);
            } else if (type == KRN_F16) {
                f_store(&p->w[k + 2 * i][lane], f_half_of(t[i], 0));
                f_store(&p->w[k + 2 * i + 1][lane], f_half_of(t[i], 16));
            } else {
                v_store(&p->w[k + 2 * i][lane], v_sll32(t[i], 16));
                v_store(&p->w[k + 2 * i + 1][lane], v_and(t[i], v_words((int32_t)0xFFFF0000)));
            }
        }
    }
}

static void unpack_f32(uint32_t type, struct krn_rows rows, size_t n, struct krn_panel_f32 *p)
{
    for (size_t lane = 0; lane < PANEL_ROWS; lane += LANES) {
        switch (type) {
        case KRN_F32: unpack_floats(KRN_F32, rows, n, p, lane); break;
        case KRN_F16: unpack_floats(KRN_F16, rows, n, p, lane); break;
        default: unpack_floats(KRN_BF16, rows, n, p, lane); break;
        }
        rows.w += LANES * rows.stride;
    }
}

/* Weight i of each four codes as a float; the product is rounded before the minimum comes off, as when the format is dequantised. */
INLINE vflt weight_of(vint codes, const unsigned i, vflt a, vflt b, const bool minima)
{
    return minima ? f_sub(f_mul(a, byte_of(codes, i)), b) : f_mul(a, signed_byte_of(codes, i));
}

/* Codes k.. of LANES rows, without their zero point. */
INLINE vint codes_at(const struct krn_panel *p, size_t k, size_t lane, const bool minima, vint zero)
{
    vint codes = v_load(p->q[k / 4][lane]);
    return minima ? codes : v_sub8(codes, zero);
}

INLINE void expand_form(const struct krn_panel *p, size_t n, const size_t group, const bool minima, vint zero, struct krn_panel_f32 *w)
{
    for (size_t g = 0; g < n / group; g++)
        for (size_t lane = 0; lane < PANEL_ROWS; lane += LANES) {
            vflt a = f_load(&p->a[g][lane]), b = minima ? f_load(&p->b[g][lane]) : a;
            for (size_t k = g * group; k < (g + 1) * group; k += 4) {
                vint codes = codes_at(p, k, lane, minima, zero);
                UNROLL(4) for (unsigned i = 0; i < 4; i++)
                    f_store(&w->w[k + i][lane], weight_of(codes, i, a, b, minima));
            }
        }
}

/* One column straight from the codes: writing the weights down first pays from the second column on. */
INLINE void column_form(const struct krn_panel *p, size_t n, const size_t group, const bool minima, vint zero, const float *x, float *sums)
{
    for (size_t lane = 0; lane < PANEL_ROWS; lane += LANES) {
        vflt chain[4] = {f_all(0), f_all(0), f_all(0), f_all(0)};
        for (size_t g = 0; g < n / group; g++) {
            vflt a = f_load(&p->a[g][lane]), b = minima ? f_load(&p->b[g][lane]) : a;
            for (size_t k = g * group; k < (g + 1) * group; k += 4) {
                vint codes = codes_at(p, k, lane, minima, zero);
                UNROLL(4) for (unsigned i = 0; i < 4; i++)
                    chain[i] = f_fma(weight_of(codes, i, a, b, minima), f_all(x[k + i]), chain[i]);
            }
        }
        vflt total = f_add(f_add(chain[0], chain[1]), f_add(chain[2], chain[3]));
        f_store(sums + lane, f_add(f_load(sums + lane), total));
    }
}

/* The zero point of the codes in a panel, in every byte. */
INLINE vint zero_of(struct krn_quant_form form)
{
    return v_bytes(has_zero_point(form.minima, form.zero_shift) ? 1 << form.zero_shift : 0);
}

static void expand(struct krn_quant_form form, const struct krn_panel *p, size_t n, struct krn_panel_f32 *w)
{
    const vint zero = zero_of(form);
    if (form.minima && form.group == 32)
        expand_form(p, n, 32, true, zero, w);
    else if (form.minima)
        expand_form(p, n, 16, true, zero, w);
    else if (form.group == 32)
        expand_form(p, n, 32, false, zero, w);
    else
        expand_form(p, n, 16, false, zero, w);
}

static void column_f32(struct krn_quant_form form, const struct krn_panel *p, size_t n, const float *x, float *sums)
{
    const vint zero = zero_of(form);
    if (form.minima && form.group == 32)
        column_form(p, n, 32, true, zero, x, sums);
    else if (form.minima)
        column_form(p, n, 16, true, zero, x, sums);
    else if (form.group == 32)
        column_form(p, n, 32, false, zero, x, sums);
    else
        column_form(p, n, 16, false, zero, x, sums);
}

enum { F32_COLS = LANES == 16 ? 6 : 3 }; /* times four chains: what the registers hold */

/* LANES rows from `lane` of a panel on times columns j.. (a constant number). */
INLINE void tile_f32_columns(const struct krn_panel_f32 *p, size_t lane, size_t n, const uint8_t *const *x, size_t offset, size_t j,
                             const int cols, float (*sums)[BLOCK_ROWS])
{
    vflt chain[F32_COLS][4];
    const float *f[F32_COLS];
    UNROLL(6) for (int c = 0; c < cols; c++) {
        f[c] = (const float *)x[j + (size_t)c] + offset;
        UNROLL(4) for (int i = 0; i < 4; i++)
            chain[c][i] = f_all(0);
    }
    size_t k = 0;
    for (; k + 4 <= n; k += 4)
        UNROLL(4) for (size_t i = 0; i < 4; i++) {
            vflt w = f_load(&p->w[k + i][lane]);
            UNROLL(6) for (int c = 0; c < cols; c++)
                chain[c][i] = f_fma(w, f_all(f[c][k + i]), chain[c][i]);
        }
    UNROLL(3) for (size_t i = 0; i < 3; i++)
        if (k + i < n)
            UNROLL(6) for (int c = 0; c < cols; c++)
                chain[c][i] = f_fma(f_load(&p->w[k + i][lane]), f_all(f[c][k + i]), chain[c][i]);
    UNROLL(6) for (int c = 0; c < cols; c++) {
        vflt total = f_add(f_add(chain[c][0], chain[c][1]), f_add(chain[c][2], chain[c][3]));
        f_store(sums[j + (size_t)c], f_add(f_load(sums[j + (size_t)c]), total));
    }
}

static void tile_f32(const struct krn_panel_f32 *p, size_t n, const uint8_t *const *x, size_t offset, size_t n_cols, struct krn_sums *sums,
                     size_t row)
{
    for (size_t lane = 0; lane < PANEL_ROWS; lane += LANES) {
        float(*to)[BLOCK_ROWS] = (float(*)[BLOCK_ROWS]) & sums->v[0][row + lane];
        size_t j = 0;
        for (; j + F32_COLS <= n_cols; j += F32_COLS)
            tile_f32_columns(p, lane, n, x, offset, j, F32_COLS, to);
        switch (n_cols - j) {
#if defined __AVX512F__
        case 5: tile_f32_columns(p, lane, n, x, offset, j, 5, to); break;
        case 4: tile_f32_columns(p, lane, n, x, offset, j, 4, to); break;
        case 3: tile_f32_columns(p, lane, n, x, offset, j, 3, to); break;
#endif
        case 2: tile_f32_columns(p, lane, n, x, offset, j, 2, to); break;
        case 1: tile_f32_columns(p, lane, n, x, offset, j, 1, to); break;
        default: break;
        }
    }
}

/* Rows of halves by vector; for the rest the portable version has vectors enough. */
static void dequant(uint32_t type, const void *src, float *dst, size_t n)
{
    const uint16_t *h = src;
    size_t whole = type == KRN_F16 ? n / LANES * LANES : 0;
    for (size_t i = 0; i < whole; i += LANES)
        f_storeu(dst + i, f_halves(h + i));
    krn_dequant_row(type, h + whole, dst + whole, n - whole);
}

/* ---- activations ---- */

/* As krn_q8_quant_row, for n values whose row has its blocks elsewhere. */
INLINE void quantise_blocks(const float *x, int8_t *q, struct krn_q8_block *blocks, size_t n)
{
    for (size_t i = 0; i < n; i += 32) {
        uint32_t max = q8_magnitude(x + i);
        if (max >= KRN_Q8_INFINITE || max < KRN_Q8_TINY) {
            krn_q8_odd_block(max, q + i, &blocks[i / 32]);
            continue;
        }
        int32_t sum, sum_low;
        float amax = krn_f32_from_bits(max), d = amax / 127.0f;
        q8_round(x + i, 127.0f / amax, q + i, &sum_low, &sum);
        blocks[i / 32] = (struct krn_q8_block){.d = d, .s = d * (float)sum, .neg_sum = -sum, .neg_sum_low = -sum_low};
    }
}

#endif
