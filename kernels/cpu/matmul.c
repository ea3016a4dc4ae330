/* Choosing a version by the processor, and the loops around panels and chunks that all versions share. */
#include "config.h"

#include "kernels/cpu/matmul.h"

#include <string.h>
#ifdef HAVE_X86
#include <cpuid.h>
#endif

#include "kernels/cpu/matmul_impl.h"

/* ---- choice ---- */

#ifdef HAVE_X86
/* F16C is asked of the processor itself: not every compiler has a name for it below. */
static bool has_f16c(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

const struct krn_cpu_matmul *krn_cpu_matmul(enum krn_isa isa)
{
    if (isa == KRN_ISA_PORTABLE)
        return krn_matmul_portable();
#ifdef HAVE_X86
    /* The compiler's run-time check includes the operating system's support for the registers. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return NULL;
    if (isa == KRN_ISA_AVX2)
        return krn_matmul_avx2();
    if (isa == KRN_ISA_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        return krn_matmul_avx512();
#endif
    return NULL;
}

enum krn_isa krn_cpu_best(void)
{
    enum krn_isa isa = (enum krn_isa)(KRN_ISA_COUNT - 1);
    while (krn_cpu_matmul(isa) == NULL)
        isa = (enum krn_isa)(isa - 1);
    return isa;
}

/* ---- packed weights ---- */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Where a block has its two-byte scale, if that is what keeps the rest from being whole words; -1 else. */
static int apart(uint32_t type)
{
    return type == KRN_Q8_0 || type == KRN_Q4_0 || type == KRN_IQ4_NL ? 0 : type == KRN_Q6_K ? 208 : -1;
}

/* A chunk is: every word of every block, 16 rows wide, in the order of the file but without the scales that stand apart; then those. */
size_t krn_packed_chunk_bytes(uint32_t type, size_t n)
{
    const struct krn_type_info *info = krn_type_info(type);
    size_t blocks = n / info->block_elems, half = apart(type) >= 0 ? sizeof(uint16_t) : 0;
    return blocks * (info->block_bytes - half) * PANEL_ROWS + (blocks * half * PANEL_ROWS + 63) / 64 * 64;
}

static size_t packed_panel_bytes(uint32_t type, size_t k)
{
    return k / CHUNK_K * krn_packed_chunk_bytes(type, CHUNK_K) + (k % CHUNK_K != 0 ? krn_packed_chunk_bytes(type, k % CHUNK_K) : 0);
}

size_t krn_packed_bytes(uint32_t type, size_t rows, size_t k)
{
    const struct krn_type_info *info = krn_type_info(type);
    if (type == KRN_IQ1_M) /* whole words, but taken apart by krn_quant_split(), which reads rows as they are in the file */
        return 0;
    if (!info->quantised || k == 0 || (info->block_bytes % sizeof(uint32_t) != 0 && apart(type) < 0))
        return 0;
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS * packed_panel_bytes(type, k);
}

static void pack_block(uint32_t type, const uint8_t *block, size_t lane, uint8_t *words, uint8_t *half)
{
    size_t bytes = krn_type_info(type)->block_bytes;
    int at = apart(type);
    for (size_t i = 0; i < bytes;) {
        if ((int)i == at) {
            memcpy(half + lane * sizeof(uint16_t), block + i, sizeof(uint16_t));
            i += sizeof(uint16_t);
            continue;
        }
        memcpy(words + lane * sizeof(uint32_t), block + i, sizeof(uint32_t));
        words += PANEL_ROWS * sizeof(uint32_t);
        i += sizeof(uint32_t);
    }
}

void krn_pack(uint32_t type, const uint8_t *w, size_t w_stride, size_t rows, size_t k, uint8_t *out)
{
    const struct krn_type_info *info = krn_type_info(type);
    size_t half = apart(type) >= 0 ? sizeof(uint16_t) : 0, block_bytes = (info->block_bytes - half) * PANEL_ROWS;
    memset(out, 0, krn_packed_bytes(type, rows, k)); /* rows beyond the last */
    for (size_t row = 0; row < rows; row += PANEL_ROWS)
        for (size_t at = 0; at < k; at += CHUNK_K) {
            size_t blocks = min_size(CHUNK_K, k - at) / info->block_elems;
            for (size_t r = 0; r < min_size(PANEL_ROWS, rows - row); r++)
                for (size_t b = 0; b < blocks; b++)
                    pack_block(type, w + (row + r) * w_stride + krn_row_bytes(type, at) + b * info->block_bytes, r, out + b * block_bytes,
                               out + blocks * block_bytes + b * half * PANEL_ROWS);
            out += krn_packed_chunk_bytes(type, min_size(CHUNK_K, k - at));
        }
}

/* ---- driver ---- */

enum { PREFETCH_COLS = 32 };
enum { SHORT_K = 64, SHORT_COLS = 8 }; /* of so short rows so many columns are multiplied without panels: filling those would take longer */

/* One call of the driver: some columns of a matmul. */
struct job {
    const struct krn_matmul *m;
    const struct krn_panel_ops *ops;
    struct krn_quant_form form; /* of quantised weights */
    size_t chunk_bytes;         /* of a whole chunk in a row of weights */
    size_t packed_bytes;        /* of a whole packed chunk, */
    size_t panel_bytes;         /* and of a packed panel */
    size_t col, n_cols;         /* the columns at hand */
    const uint8_t *x[BLOCK_COLS];
};

static void load_panel(const struct job *job, struct krn_rows rows, size_t n, void *panel, bool f32)
{
    if (f32)
        job->ops->unpack_f32(job->m->type, rows, n, panel);
    else
        job->ops->unpack(job->m->type, rows, n, panel);
}

/* A panel of fewer than 16 rows: unpackers read 16, so the rows move to a place where there are 16. */
__attribute__((noinline)) static void load_part_panel(const struct job *job, struct krn_rows rows, size_t n_rows, size_t n, void *panel,
                                                      bool f32)
{
    _Alignas(64) uint8_t copy[PANEL_ROWS][CHUNK_K * sizeof(float)];
    size_t bytes = krn_row_bytes(job->m->type, n);
    for (size_t r = 0; r < PANEL_ROWS; r++)
        if (r < n_rows)
            memcpy(copy[r], rows.w + r * rows.stride, bytes);
        else
            memset(copy[r], 0, bytes);
    load_panel(job, (struct krn_rows){.w = copy[0], .stride = sizeof copy[0]}, n, panel, f32);
}

/* With few columns the weights are what takes time; ask for those of the next block while this one is multiplied. Inline, because the
 * compiler takes a function that only prefetches for one without effect, and drops the call. */
static inline __attribute__((always_inline)) void prefetch(const struct job *job, size_t row, size_t k)
{
    const struct krn_matmul *m = job->m;
    if (m->n_cols > PREFETCH_COLS || row + PANEL_ROWS > m->row1)
        return;
    const uint8_t *w = m->w + row * m->w_stride + k / CHUNK_K * job->chunk_bytes;
    for (size_t r = 0; r < PANEL_ROWS; r++)
        for (size_t at = 0; at < job->chunk_bytes; at += 64)
            __builtin_prefetch(w + r * m->w_stride + at, 0, 2);
}

/* Unpack the chunk at k of the panel that starts at row; n_rows <= PANEL_ROWS of it count. */
static void load(const struct job *job, size_t row, size_t n_rows, size_t k, size_t n, void *panel, bool f32)
{
    const struct krn_matmul *m = job->m;
    if (m->packed != NULL && !f32) { /* its last panel is whole: no part panels */
        const uint8_t *p = krn_packed_panel(m, row, job->panel_bytes) + k / CHUNK_K * job->packed_bytes;
        for (size_t at = 0; at < job->packed_bytes && m->n_cols <= PREFETCH_COLS; at += 64)
            __builtin_prefetch(p + BLOCK_PANELS * job->panel_bytes + at, 0, 2);
        job->ops->unpack_packed(m->type, p, n, panel);
        return;
    }
    prefetch(job, row + BLOCK_ROWS, k);
    struct krn_rows rows = {.w = m->w + row * m->w_stride + k / CHUNK_K * job->chunk_bytes, .stride = m->w_stride};
    if (n_rows == PANEL_ROWS)
        load_panel(job, rows, n, panel, f32);
    else
        load_part_panel(job, rows, n_rows, n, panel, f32);
}

static float *output(const struct krn_matmul *m, size_t col)
{
    return m->y + (m->y_index != NULL ? (size_t)m->y_index[col] : col) * m->y_stride;
}

static void store(const struct job *job, size_t row, size_t n_rows, const struct krn_sums *sums)
{
    const struct krn_matmul *m = job->m;
    for (size_t j = 0; j < job->n_cols; j++) {
        const float *restrict from = sums->v[j];
        float *restrict to = output(m, job->col + j) + row;
        float scale = m->col_scale != NULL ? m->col_scale[job->col + j] : 1.0f;
        if (m->accumulate)
            for (size_t r = 0; r < n_rows; r++)
                to[r] += from[r] * scale;
        else
            for (size_t r = 0; r < n_rows; r++)
                to[r] = from[r] * scale;
    }
}

/* Results go to as many places as there are columns, far apart and often at distances that are powers of two; ask for them while the products are
 * made. Into the second-level cache: the first has too few ways for such distances. */
static inline __attribute__((always_inline)) void prefetch_output(const struct job *job, size_t row, size_t n_rows)
{
    for (size_t j = 0; j < job->n_cols; j++)
        for (size_t r = 0; r < n_rows; r += 16)
            __builtin_prefetch(output(job->m, job->col + j) + row + r, 0, 2);
}

/* Rows row..row+n_rows-1, at most BLOCK_ROWS, times the columns at hand. */
static void block_q8(const struct job *job, size_t row, size_t n_rows)
{
    struct krn_panel panels[BLOCK_PANELS];
    struct krn_sums sums;
    size_t k_end = job->m->k, n_panels = n_rows > PANEL_ROWS ? 2 : 1;
    memset(&sums, 0, job->n_cols * sizeof sums.v[0]);
    prefetch_output(job, row, n_rows);
    for (size_t k = 0; k < k_end; k += CHUNK_K) {
        size_t n = min_size(CHUNK_K, k_end - k);
        for (size_t p = 0; p < n_panels; p++)
            load(job, row + p * PANEL_ROWS, min_size(PANEL_ROWS, n_rows - p * PANEL_ROWS), k, n, &panels[p], false);
        job->ops->tile_q8(job->form, panels, n_panels, n, job->x, k, krn_q8_blocks_offset(k_end) + k / 32 * sizeof(struct krn_q8_block),
                          job->n_cols, &sums);
    }
    store(job, row, n_rows, &sums);
}

/* One panel at a time: as floats, two of them would not leave room for anything else in the first-level cache. */
static void block_f32(const struct job *job, size_t row, size_t n_rows)
{
    struct krn_panel packed;
    struct krn_panel_f32 panel;
    struct krn_sums sums;
    size_t k_end = job->m->k;
    bool quantised = krn_type_info(job->m->type)->quantised;
    memset(&sums, 0, job->n_cols * sizeof sums.v[0]);
    for (size_t k = 0; k < k_end; k += CHUNK_K) {
        size_t n = min_size(CHUNK_K, k_end - k);
        for (size_t r = 0; r < n_rows; r += PANEL_ROWS) {
            size_t count = min_size(PANEL_ROWS, n_rows - r);
            load(job, row + r, count, k, n, quantised ? (void *)&packed : (void *)&panel, !quantised);
            if (quantised && job->n_cols == 1 && job->ops->column_f32 != NULL) {
                job->ops->column_f32(job->form, &packed, n, (const float *)job->x[0] + k, &sums.v[0][r]);
                continue;
            }
            if (quantised)
                job->ops->expand(job->form, &packed, n, &panel);
            job->ops->tile_f32(&panel, n, job->x, k, job->n_cols, &sums, r);
        }
    }
    store(job, row, n_rows, &sums);
}

static void set_columns(struct job *job, size_t col)
{
    const struct krn_matmul *m = job->m;
    job->col = col;
    job->n_cols = min_size(BLOCK_COLS, m->n_cols - col);
    for (size_t j = 0; j < job->n_cols; j++)
        job->x[j] = m->x + (m->x_index != NULL ? (size_t)m->x_index[col + j] : col + j) * m->x_stride;
}

static void drive(struct job *job, void (*block)(const struct job *job, size_t row, size_t n_rows), size_t row)
{
    const struct krn_matmul *m = job->m;
    job->chunk_bytes = krn_row_bytes(m->type, CHUNK_K);
    if (m->packed != NULL) {
        job->packed_bytes = krn_packed_chunk_bytes(m->type, CHUNK_K);
        job->panel_bytes = packed_panel_bytes(m->type, m->k);
    }
    for (size_t col = 0; col < m->n_cols; col += BLOCK_COLS) {
        set_columns(job, col);
        for (size_t r = row; r < m->row1; r += BLOCK_ROWS)
            block(job, r, min_size(BLOCK_ROWS, m->row1 - r));
    }
}

/* Whole panels of rows [row, end) times the columns at hand, a few at a time. false: nothing was done. */
static bool few_columns(const struct job *job, size_t row, size_t end)
{
    const struct krn_matmul *m = job->m;
    for (size_t c = 0; c < job->n_cols; c += KRN_FEW) {
        struct krn_few few = {.n = (int)min_size(KRN_FEW, job->n_cols - c)};
        for (size_t i = 0; i < (size_t)few.n; i++) {
            few.x[i] = job->x[c + i];
            few.y[i] = output(m, c + i);
            few.scale[i] = m->col_scale != NULL ? m->col_scale[c + i] : 1.0f;
        }
        if (!job->ops->few_q8(m, row, end, &few))
            return false; /* the type says so, at the first ones already */
    }
    return true;
}

void krn_matmul_drive_q8(const struct krn_matmul *whole, const struct krn_panel_ops *ops)
{
    struct krn_matmul copy = *whole;
    const struct krn_matmul *m = &copy;
    if (copy.row0 % PANEL_ROWS != 0 || ops->unpack_packed == NULL)
        copy.packed = NULL;
    struct job job = {.m = m, .ops = ops, .form = krn_quant_form(m->type)};
    size_t row = m->row0, most = m->k <= SHORT_K && m->packed != NULL ? SHORT_COLS : KRN_FEW;
    if (m->n_cols != 0 && m->n_cols <= most && ops->few_q8 != NULL && m->row0 < m->row1) {
        size_t end = row + (m->row1 - m->row0) / PANEL_ROWS * PANEL_ROWS;
        set_columns(&job, 0);
        if (few_columns(&job, row, end))
            row = end;
    }
    if (row < m->row1)
        drive(&job, block_q8, row);
}

void krn_matmul_drive_f32(const struct krn_matmul *m, const struct krn_panel_ops *ops)
{
    struct job job = {.m = m, .ops = ops};
    if (krn_type_info(m->type)->quantised)
        job.form = krn_quant_form(m->type);
    drive(&job, block_f32, m->row0);
}
