/* Speed of the CPU matmul; not a test. matmul_bench [ISA [TYPE [K [ROWS [KILOBYTES]]]]], "all" for any. One thread.
 *
 * GB/s counts bytes of weights, GMAC/s multiply-adds. The weights cycle through several matrices, 12 MB together if nothing
 * else is said, so that they come from the last-level cache as they do in a decode step. Each figure is the best of several runs of about 20 ms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/matmul.h"
#include "kernels/quant.h"

enum { MAX_COLS = 512 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* others may use the processor too */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct bench {
    const struct krn_cpu_matmul *isa;
    struct krn_matmul m;
    size_t matrix_bytes, matrices, packed_bytes;
    uint8_t *weights, *packed;
};

/* Seconds per call. */
static double measure(const struct bench *b, void (*multiply)(const struct krn_matmul *))
{
    double best = INFINITY;
    size_t calls = 1, next = 0;
    for (int run = 0; run < 8; run++) {
        double start = now(), seconds;
        for (size_t i = 0; i < calls; i++) {
            struct krn_matmul m = b->m;
            m.w = b->weights + next * b->matrix_bytes;
            m.packed = b->packed != NULL ? b->packed + next * b->packed_bytes : NULL;
            next = (next + 1) % b->matrices;
            multiply(&m);
        }
        seconds = now() - start;
        if (seconds < 0.01) {
            calls = seconds < 1e-4 ? calls * 100 : (size_t)((double)calls * 0.02 / seconds) + 1;
            run--;
            continue;
        }
        best = fmin(best, seconds / (double)calls);
    }
    return best;
}

static void pack(struct bench *b, uint32_t type, size_t k, size_t rows)
{
    b->packed_bytes = krn_packed_bytes(type, rows, k);
    b->packed = aligned_alloc(64, b->matrices * b->packed_bytes);
    if (b->packed == NULL)
        abort();
    for (size_t i = 0; i < b->matrices; i++)
        krn_pack(type, b->weights + i * b->matrix_bytes, krn_row_bytes(type, k), rows, k, b->packed + i * b->packed_bytes);
}

static void bench_type(const struct krn_cpu_matmul *isa, uint32_t type, size_t k, size_t rows, size_t kilobytes)
{
    static const size_t columns[] = {1, 2, 4, 8, 32, 128, 512};
    const struct krn_type_info *info = krn_type_info(type);
    struct bench b = {.isa = isa, .matrix_bytes = rows * krn_row_bytes(type, k)};
    b.matrices = (kilobytes << 10) / b.matrix_bytes + 1;
    b.weights = malloc(b.matrices * b.matrix_bytes);
    float *x = malloc(MAX_COLS * k * sizeof *x), *y = malloc(MAX_COLS * rows * sizeof *y);
    uint8_t *q8 = aligned_alloc(64, MAX_COLS * krn_q8_row_bytes(k));
    if (b.weights == NULL || x == NULL || y == NULL || q8 == NULL)
        abort();
    for (size_t i = 0; i < MAX_COLS * k; i++)
        x[i] = sinf((float)i);
    uint64_t seed = 1;
    for (size_t r = 0; r < rows; r++)
        krn_quant_random(type, &seed, 0.02f, b.weights + r * krn_row_bytes(type, k), k);
    for (size_t i = 1; i < b.matrices; i++)
        memcpy(b.weights + i * b.matrix_bytes, b.weights, b.matrix_bytes);
    for (size_t j = 0; j < MAX_COLS; j++)
        isa->quantise_row(x + j * k, q8 + j * krn_q8_row_bytes(k), k);
    /* path 0: int8, 1: f32, 2: int8 from packed weights */
    for (int path = info->quantised ? 0 : 1; path < (isa->reads_packed && krn_packed_bytes(type, rows, k) != 0 ? 3 : 2); path++) {
        bool f32 = path == 1;
        if (path == 2)
            pack(&b, type, k, rows);
        printf("%-8s %-6s %-6s k %5zu rows %5zu ", isa->name, info->name, f32 ? "f32" : path == 2 ? "packed" : "int8", k, rows);
        for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
            b.m = (struct krn_matmul){
                .type = type, .w_stride = krn_row_bytes(type, k), .k = k, .row1 = rows, .n_cols = columns[c], .y = y, .y_stride = rows};
            b.m.x = f32 ? (const uint8_t *)x : q8;
            b.m.x_stride = f32 ? k * sizeof *x : krn_q8_row_bytes(k);
            double seconds = measure(&b, f32 ? isa->f32 : isa->q8);
            double gmacs = (double)(rows * k * columns[c]) / seconds * 1e-9;
            if (c == 0)
                printf("| 1: %5.1f GB/s %5.1f GMAC/s", (double)b.matrix_bytes / seconds * 1e-9, gmacs);
            else
                printf(" | %zu: %5.1f", columns[c], gmacs);
            fflush(stdout);
        }
        printf("\n");
    }
    free(b.packed);
    free(b.weights);
    free(x);
    free(y);
    free(q8);
}

int main(int argc, char **argv)
{
    const char *isa_name = argc > 1 ? argv[1] : "all", *type_name = argc > 2 ? argv[2] : "all";
    size_t k = argc > 3 ? strtoul(argv[3], NULL, 10) : 512, rows = argc > 4 ? strtoul(argv[4], NULL, 10) : 1024;
    size_t kilobytes = argc > 5 ? strtoul(argv[5], NULL, 10) : 12 << 10;
    for (int i = 0; i < KRN_ISA_COUNT; i++) {
        const struct krn_cpu_matmul *isa = krn_cpu_matmul((enum krn_isa)i);
        if (isa == NULL || (strcmp(isa_name, "all") != 0 && strcmp(isa_name, isa->name) != 0))
            continue;
        for (uint32_t t = 0; t < KRN_TYPE_MAX; t++) {
            const struct krn_type_info *info = krn_type_info(t);
            if (info != NULL && info->computes && k % info->block_elems == 0 &&
                (strcmp(type_name, "all") == 0 || strcmp(type_name, info->name) == 0))
                bench_type(isa, t, k, rows, kilobytes);
        }
    }
    return 0;
}
