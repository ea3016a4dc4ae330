/* kernels/cpu/matmul*.c: every type on every instruction set, against sums in double and against itself.
 *
 * What is promised to the bit is compared to the bit: the value of one (row, column) must not change with the shape of the call, nor with the
 * instruction set. */
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "tests/tap.h"

enum { MAX_ROWS = 80, MAX_COLS = 140, MAX_K = 1536 };

static uint64_t seed = 7;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 32) * n >> 32);
}

static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)random_below(1u << 20) * 0x1p-20f;
    return (sum - 3) * 1.41f;
}

/* A matrix, activations in both forms, and room for results. */
struct problem {
    const struct krn_type_info *info;
    struct krn_matmul m; /* all rows, all columns */
    bool q8;
    float *x;
    uint8_t *x_q8;
    float *w_values;
};

static void *must(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

/* n weights of any type: these values, or random blocks where nothing encodes the type. */
static void make_row(uint32_t type, const float *values, void *row, size_t n)
{
    static uint64_t blocks = 3;
    if (krn_type_info(type)->encodes)
        krn_quant_row(type, values, row, n);
    else
        krn_quant_random(type, &blocks, 0.05f, row, n);
}

static struct problem problem_new(uint32_t type, bool q8, size_t k, size_t rows, size_t cols)
{
    struct problem p = {.info = krn_type_info(type), .q8 = q8};
    size_t row_bytes = krn_row_bytes(type, k), q8_bytes = krn_q8_row_bytes(k);
    uint8_t *w = must(malloc(rows * row_bytes));
    p.w_values = must(malloc(rows * k * sizeof *p.w_values));
    p.x = must(malloc(cols * k * sizeof *p.x));
    p.x_q8 = must(aligned_alloc(64, cols * q8_bytes + 64));
    for (size_t i = 0; i < rows * k; i++)
        p.w_values[i] = random_normal() * 0.05f;
    for (size_t i = 0; i < cols * k; i++)
        p.x[i] = random_normal();
    for (size_t r = 0; r < rows; r++) {
        make_row(type, p.w_values + r * k, w + r * row_bytes, k);
        krn_dequant_row(type, w + r * row_bytes, p.w_values + r * k, k);
    }
    for (size_t j = 0; q8 && j < cols; j++) {
        krn_q8_quant_row(p.x + j * k, p.x_q8 + j * q8_bytes, k);
        krn_q8_dequant_row(p.x_q8 + j * q8_bytes, p.x + j * k, k);
    }
    p.m = (struct krn_matmul){.type = type, .w = w, .w_stride = row_bytes, .k = k, .row1 = rows, .n_cols = cols, .y_stride = rows};
    p.m.x = q8 ? p.x_q8 : (const uint8_t *)p.x;
    p.m.x_stride = q8 ? q8_bytes : k * sizeof(float);
    return p;
}

static void problem_free(struct problem *p)
{
    free((void *)p->m.w);
    free(p->w_values);
    free(p->x);
    free(p->x_q8);
}

static void multiply(const struct krn_cpu_matmul *isa, const struct problem *p, const struct krn_matmul *m)
{
    (p->q8 ? isa->q8 : isa->f32)(m);
}

static const char *poison_bytes = "\xA5\x5A\xFF\x7F"; /* a NaN that no kernel produces */

static void poison(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(&y[i], poison_bytes, sizeof *y);
}

static bool poisoned(const float *y)
{
    return memcmp(y, poison_bytes, sizeof *y) == 0;
}

/* Everything at once: y[col * rows + row]. */
static float *whole(const struct krn_cpu_matmul *isa, const struct problem *p)
{
    struct krn_matmul m = p->m;
    float *y = must(malloc(m.row1 * m.n_cols * sizeof *y));
    poison(y, m.row1 * m.n_cols);
    m.y = y;
    multiply(isa, p, &m);
    return y;
}

/* ---- values ---- */

/* The largest error, in units of the sum of magnitudes: rounding of an f32 sum. */
static double worst_error(const struct problem *p, const float *y)
{
    double worst = 0;
    for (size_t j = 0; j < p->m.n_cols; j++)
        for (size_t r = 0; r < p->m.row1; r++) {
            double sum = 0, size = 1e-30;
            for (size_t k = 0; k < p->m.k; k++) {
                double product = (double)p->w_values[r * p->m.k + k] * (double)p->x[j * p->m.k + k];
                sum += product;
                size += fabs(product);
            }
            double error = fabs((double)y[j * p->m.row1 + r] - sum) / size;
            worst = error <= worst ? worst : error; /* a NaN becomes the worst */
        }
    return worst;
}

/* ---- invariance ---- */

/* One random part of the problem in another shape: it must repeat the bits of `want` and touch nothing else. Returns the number of faults. */
static int part_faults(const struct krn_cpu_matmul *isa, const struct problem *p, const float *want)
{
    static float y[(MAX_COLS + 1) * (MAX_ROWS + 3)];
    static int32_t x_index[MAX_COLS], y_index[MAX_COLS + 1];
    struct krn_matmul m = p->m;
    size_t rows = p->m.row1, cols = p->m.n_cols, slots = cols + 1, stride = rows + 3;
    m.row0 = random_below((uint32_t)rows);
    m.row1 = m.row0 + 1 + random_below((uint32_t)(rows - m.row0));
    m.n_cols = random_below(2) ? 1 + random_below((uint32_t)(cols < 9 ? cols : 9)) : 1 + random_below((uint32_t)cols);
    for (size_t j = 0; j < slots; j++) { /* a random order of the places */
        size_t other = random_below((uint32_t)j + 1);
        y_index[j] = y_index[other];
        y_index[other] = (int32_t)j;
    }
    for (size_t j = 0; j < m.n_cols; j++)
        x_index[j] = (int32_t)random_below((uint32_t)cols); /* the same activations may come twice */
    m.x_index = x_index;
    m.y_index = y_index;
    m.y_stride = stride;
    m.y = y;
    poison(y, slots * stride);
    multiply(isa, p, &m);
    int faults = 0;
    for (size_t j = 0; j < m.n_cols; j++)
        for (size_t r = m.row0; r < m.row1; r++) {
            float *got = &y[(size_t)y_index[j] * stride + r];
            faults += memcmp(got, &want[(size_t)x_index[j] * rows + r], sizeof *got) != 0;
            poison(got, 1);
        }
    for (size_t i = 0; i < slots * stride; i++)
        faults += !poisoned(&y[i]);
    return faults;
}

/* accumulate and col_scale on top of `want`: two roundings, product and sum. */
static int epilogue_faults(const struct krn_cpu_matmul *isa, const struct problem *p, const float *want)
{
    size_t rows = p->m.row1, cols = p->m.n_cols;
    float *y = must(malloc(rows * cols * sizeof *y)), scale[MAX_COLS];
    int faults = 0;
    for (int mode = 1; mode < 4; mode++) {
        struct krn_matmul m = p->m;
        m.y = y;
        m.accumulate = mode & 1;
        m.col_scale = mode & 2 ? scale : NULL;
        for (size_t j = 0; j < cols; j++)
            scale[j] = random_normal();
        for (size_t i = 0; i < rows * cols; i++)
            y[i] = (float)i * 0.37f;
        multiply(isa, p, &m);
        for (size_t i = 0; i < rows * cols; i++) {
            float product = mode & 2 ? want[i] * scale[i / rows] : want[i];
            float expected = mode & 1 ? (float)i * 0.37f + product : product;
            faults += memcmp(&y[i], &expected, sizeof expected) != 0;
        }
    }
    free(y);
    return faults;
}

/* Columns that write to one place add up in the order of the call. */
static int same_place_faults(const struct krn_cpu_matmul *isa, const struct problem *p, const float *want)
{
    size_t rows = p->m.row1, cols = p->m.n_cols;
    float *y = must(calloc(rows, sizeof *y));
    int32_t *index = must(calloc(cols, sizeof *index));
    struct krn_matmul m = p->m;
    m.y = y;
    m.y_index = index;
    m.accumulate = true;
    multiply(isa, p, &m);
    int faults = 0;
    for (size_t r = 0; r < rows; r++) {
        float sum = 0;
        for (size_t j = 0; j < cols; j++)
            sum += want[j * rows + r];
        faults += memcmp(&sum, &y[r], sizeof sum) != 0;
    }
    free(y);
    free(index);
    return faults;
}

/* ---- memory ---- */

/* Pages with an inaccessible one on either side. */
struct fenced {
    uint8_t *map, *start;
    size_t map_bytes, bytes;
};

static struct fenced fenced_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    struct fenced f = {.map_bytes = inner + 2 * page, .bytes = inner};
    f.map = mmap(NULL, f.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f.map == MAP_FAILED || mprotect(f.map + page, inner, PROT_READ | PROT_WRITE) != 0)
        abort();
    f.start = f.map + page;
    return f;
}

/* Weights and activations that end at the end of a page, then weights that begin a page; reading one byte further kills the test. */
static int fence_faults(const struct krn_cpu_matmul *isa, const struct problem *p, const float *want)
{
    size_t rows = p->m.row1, cols = p->m.n_cols, w_bytes = rows * p->m.w_stride, x_bytes = cols * p->m.x_stride;
    struct fenced w = fenced_new(w_bytes), x = fenced_new(x_bytes), y = fenced_new(rows * cols * sizeof(float));
    int faults = 0;
    for (int at_end = 1; at_end >= 0; at_end--)
        for (size_t n = 1; n <= cols; n = n == 1 && cols > 1 ? cols : cols + 1) {
            struct krn_matmul m = p->m;
            uint8_t *w_at = w.start + (at_end ? w.bytes - w_bytes : 0), *x_at = x.start + x.bytes - x_bytes;
            memcpy(w_at, p->m.w, w_bytes);
            memcpy(x_at, p->m.x, x_bytes);
            m.w = w_at;
            m.x = x_at + (cols - n) * m.x_stride;
            m.n_cols = n;
            m.y = (float *)(y.start + y.bytes) - rows * n;
            multiply(isa, p, &m);
            faults += memcmp(m.y, want + (cols - n) * rows, rows * n * sizeof(float)) != 0;
        }
    munmap(w.map, w.map_bytes);
    munmap(x.map, x.map_bytes);
    munmap(y.map, y.map_bytes);
    return faults;
}

/* The same weights with a gap between rows, as a slice of columns has. */
static int stride_faults(const struct krn_cpu_matmul *isa, const struct problem *p, const float *want)
{
    size_t rows = p->m.row1, packed = p->m.w_stride, stride = packed + 2 * p->info->block_bytes;
    uint8_t *w = must(malloc(rows * stride));
    struct problem q = *p;
    memset(w, 0xFF, rows * stride);
    for (size_t r = 0; r < rows; r++)
        memcpy(w + r * stride + p->info->block_bytes, p->m.w + r * packed, packed);
    q.m.w = w + p->info->block_bytes;
    q.m.w_stride = stride;
    float *y = whole(isa, &q);
    int faults = memcmp(y, want, rows * p->m.n_cols * sizeof *y) != 0;
    free(y);
    free(w);
    return faults;
}

/* Packed weights: the same bits, from whatever multiple of 16 rows on; and from any other row, where they do not serve. The file's form is
 * out of reach where it must not be read. */
static int packed_faults(const struct krn_cpu_matmul *isa, const struct problem *p, const float *want)
{
    size_t rows = p->m.row1, cols = p->m.n_cols, bytes = krn_packed_bytes(p->m.type, rows, p->m.k);
    uint8_t *packed = must(aligned_alloc(64, bytes + 64));
    float *y = must(malloc(rows * cols * sizeof *y));
    struct krn_matmul m = p->m;
    int faults = 0;
    memset(packed, 0xFF, bytes + 64);
    krn_pack(m.type, m.w, m.w_stride, rows, m.k, packed);
    faults += packed[bytes] != 0xFF || packed[bytes + 63] != 0xFF;
    m.packed = packed;
    m.y = y;
    for (size_t n = 1; n <= cols; n = n < 9 ? n + 1 : n == cols ? cols + 1 : cols)
        for (size_t row = 0; row < rows; row += row % 2 == 0 && row + 16 < rows ? 16 : 9) {
            m.n_cols = n;
            m.row0 = row;
            m.w = isa->reads_packed && row % 16 == 0 ? NULL : p->m.w;
            poison(y, rows * cols);
            multiply(isa, p, &m);
            for (size_t j = 0; j < n; j++) {
                faults += memcmp(&y[j * rows + row], &want[j * rows + row], (rows - row) * sizeof *y) != 0;
                for (size_t r = 0; r < row; r++)
                    faults += !poisoned(&y[j * rows + r]);
            }
        }
    free(packed);
    free(y);
    return faults;
}

/* ---- tests ---- */

static const uint32_t all_types[] = {KRN_F32,  KRN_F16,  KRN_BF16, KRN_Q4_0, KRN_Q4_1, KRN_Q5_0,   KRN_Q5_1,  KRN_Q8_0,
                                     KRN_Q2_K, KRN_Q3_K, KRN_Q4_K, KRN_Q5_K, KRN_Q6_K, KRN_IQ4_NL, KRN_IQ4_XS,
                                     KRN_IQ2_XXS, KRN_IQ2_XS, KRN_IQ2_S, KRN_IQ3_XXS, KRN_IQ3_S, KRN_IQ1_S, KRN_IQ1_M, KRN_TQ1_0, KRN_TQ2_0, KRN_MXFP4};

static const struct {
    size_t k, rows, cols; /* k in blocks of 32 where the type allows, else rounded up to 256 */
} shapes[] = {{256, 64, 13}, {512, 33, 7}, {1536, 16, 70}, {32, 5, 3}, {352, 77, 140}, {768, 48, 2}, {96, 1, 1}, {32, 80, 12}, {64, 50, 9}};

static size_t fitting_k(const struct krn_type_info *info, size_t k, bool odd)
{
    if (info->block_elems == 256)
        return (k + 255) / 256 * 256;
    return info->block_elems == 1 && odd ? k - 19 : k; /* unquantised weights: any k */
}

static void test_type(const struct krn_cpu_matmul *isa, uint32_t type, bool q8)
{
    const struct krn_type_info *info = krn_type_info(type);
    const struct krn_cpu_matmul *portable = krn_cpu_matmul(KRN_ISA_PORTABLE);
    int differs = 0, parts = 0, epilogue = 0, memory = 0, packed = 0;
    bool packs = q8 && krn_packed_bytes(type, 16, 256) != 0;
    double worst = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        struct problem p = problem_new(type, q8, fitting_k(info, shapes[s].k, s % 2 != 0), shapes[s].rows, shapes[s].cols);
        float *y = whole(isa, &p), *reference = whole(portable, &p);
        const double error = worst_error(&p, y);
        worst = error <= worst ? worst : error;
        differs += memcmp(y, reference, p.m.row1 * p.m.n_cols * sizeof *y) != 0;
        for (int i = 0; i < 12; i++)
            parts += part_faults(isa, &p, y);
        epilogue += epilogue_faults(isa, &p, y) + same_place_faults(isa, &p, y);
        memory += fence_faults(isa, &p, y) + stride_faults(isa, &p, y);
        packed += packs ? packed_faults(isa, &p, y) : 0;
        free(y);
        free(reference);
        problem_free(&p);
    }
    const char *path = q8 ? "int8" : "f32";
    tap_ok(worst < 4e-7, "%s %s %s: sums are right to %.1e of their terms", isa->name, info->name, path, worst);
    tap_eq_int(parts, 0, "%s %s %s: any rows, columns and places give the same bits", isa->name, info->name, path);
    tap_eq_int(epilogue, 0, "%s %s %s: scale and accumulate", isa->name, info->name, path);
    tap_eq_int(memory, 0, "%s %s %s: neither reads past the ends nor depends on the stride", isa->name, info->name, path);
    if (packs)
        tap_eq_int(packed, 0, "%s %s: packed weights give the same bits", isa->name, info->name);
    if (isa != portable)
        tap_eq_int(differs, 0, "%s %s %s: the bits of the portable version", isa->name, info->name, path);
}

static void test_rows(const struct krn_cpu_matmul *isa)
{
    enum { K = 1024 + 160 };
    static float x[K];
    static _Alignas(64) uint8_t a[4 * K], b[4 * K];
    int faults = 0;
    for (int round = 0; round < 50; round++) {
        size_t k = 32 * (1 + random_below(K / 32));
        for (size_t i = 0; i < k; i++)
            x[i] = round == 0 ? 0 : random_normal() * exp2f((float)random_below(140) - 100);
        if (round % 5 == 4)
            x[random_below((uint32_t)k)] = round % 2 ? NAN : -INFINITY;
        if (round % 5 == 3) /* halves: ties in the rounding */
            for (size_t i = 0; i < k; i++)
                x[i] = i % 32 == 0 ? 127 : (float)random_below(400) * 0.5f - 100;
        memset(a, 0x11, sizeof a);
        memset(b, 0x11, sizeof b);
        krn_q8_quant_row(x, a, k);
        isa->quantise_row(x, b, k);
        size_t offset = krn_q8_blocks_offset(k), end = krn_q8_row_bytes(k);
        faults += memcmp(a, b, k) != 0 || memcmp(a + offset, b + offset, k / 32 * sizeof(struct krn_q8_block)) != 0;
        faults += memcmp(a + end, b + end, sizeof a - end) != 0;
    }
    tap_eq_int(faults, 0, "%s: activations are quantised to the same bits", isa->name);

    enum { N = 256 * 5 };
    static float values[N], want[N + 1], got[N + 1];
    static uint8_t row[N * sizeof(float)];
    faults = 0;
    for (size_t t = 0; t < sizeof all_types / sizeof all_types[0]; t++) {
        size_t n = krn_type_info(all_types[t])->block_elems == 1 ? N - 3 : N;
        for (size_t i = 0; i < N; i++)
            values[i] = random_normal();
        make_row(all_types[t], values, row, n);
        poison(want, N + 1);
        poison(got, N + 1);
        krn_dequant_row(all_types[t], row, want, n);
        isa->dequant(all_types[t], row, got, n);
        faults += memcmp(want, got, sizeof want) != 0;
    }
    tap_eq_int(faults, 0, "%s: weights are dequantised to the same bits", isa->name);
}

static void test_empty(const struct krn_cpu_matmul *isa)
{
    struct problem p = problem_new(KRN_Q8_0, true, 64, 16, 2);
    float y[32];
    int touched = 0;
    poison(y, 32);
    for (int i = 0; i < 2; i++) {
        struct krn_matmul m = p.m;
        m.y = y;
        if (i == 0)
            m.row0 = m.row1;
        else
            m.n_cols = 0;
        isa->q8(&m);
    }
    for (int i = 0; i < 32; i++)
        touched += !poisoned(&y[i]);
    tap_eq_int(touched, 0, "%s: no rows or no columns: nothing is written", isa->name);
    problem_free(&p);
}

int main(void)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    enum { CASES = 25 + 22, PACKED = 10, PER_ISA = 5 * CASES + PACKED + 3 };
    int plan = 1 - CASES; /* the portable version is not compared with itself */
    for (int i = 0; i < KRN_ISA_COUNT; i++)
        plan += krn_cpu_matmul((enum krn_isa)i) != NULL ? PER_ISA : 1;
    tap_plan((unsigned)plan);
    for (int i = 0; i < KRN_ISA_COUNT; i++) {
        const struct krn_cpu_matmul *isa = krn_cpu_matmul((enum krn_isa)i);
        if (isa == NULL) {
            tap_skip(1, "%s: not in this build or not on this processor", names[i]);
            continue;
        }
        for (size_t t = 0; t < sizeof all_types / sizeof all_types[0]; t++) {
            if (krn_type_info(all_types[t])->quantised)
                test_type(isa, all_types[t], true);
            test_type(isa, all_types[t], false);
        }
        test_rows(isa);
        test_empty(isa);
    }
    const struct krn_cpu_matmul *best = krn_cpu_matmul(krn_cpu_best());
    tap_ok(best != NULL && best->isa == krn_cpu_best(), "the best version is %s", best != NULL ? best->name : "missing");
    return tap_done();
}
