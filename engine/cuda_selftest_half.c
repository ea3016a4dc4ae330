/* Self-tests of products of many rows whose weights are brought to f16 first: the bits of the kernels that do so on their way, which are
 * compared with the reference. */
#include "engine/cuda_check.h"

struct shape {
    uint32_t type, other; /* of the weights */
    uint32_t rows, second; /* second 0: one weight */
    uint32_t k, n;
    uint32_t gap; /* columns of the results beside those of the weights: the first and the rest */
    bool accumulate, loose; /* loose: a row's result may depend on the number of rows, as far as it follows powers of two */
    uint32_t pieces; /* that the room is too small by; 0: the weights are there as f16 */
};

/* Results of what l says, from where they all begin alike. */
static const float *results(struct check *t, struct kcu_linear *l, const float *begin, size_t bytes)
{
    float *y = device(t, begin, bytes);
    l->y = y;
    return t->rc == RS_OK && good(t, kcu_gemm(&t->l, l), "gemm") ? fetch(t, y, bytes) : NULL;
}

static void keep(struct check *t, uint32_t n, struct kcu_mat *m)
{
    if (m->w == NULL)
        return;
    uint16_t *half = device(t, NULL, kcu_unpacked(n, m) * sizeof *half);
    m->half = t->rc == RS_OK && good(t, kcu_unpack(&t->l, m, half), "unpack") ? half : NULL;
}

static double differ(const float *a, const float *b, size_t n)
{
    double wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += memcmp(a + i, b + i, sizeof *a) != 0;
    return wrong;
}

/* The distance of the worst row. What nobody writes has the same bits, which may be no number. */
static double apart(const float *got, const float *want, uint32_t n, uint32_t width)
{
    double far = 0;
    for (uint32_t r = 0; r < n; r++) {
        double off = 0, sum = 0;
        for (uint32_t c = 0; c < width; c++) {
            const double a = (double)got[(size_t)r * width + c], b = (double)want[(size_t)r * width + c];
            if (differ(got + (size_t)r * width + c, want + (size_t)r * width + c, 1) == 0 && isnan(a))
                continue;
            off += (a - b) * (a - b);
            sum += b * b;
        }
        const double d = sqrt(off / sum);
        far = d <= far ? far : d; /* NaN stays */
    }
    return far;
}

static void check_half(struct check *t, const struct shape *s)
{
    const uint32_t width = s->rows + s->second + s->gap, part = s->loose ? s->n / 2 + 9 : 37, first = s->n / 4;
    const size_t bytes = (size_t)s->n * width * sizeof(float);
    const size_t n_room = kcu_gemm_room(s->n < 1024 ? 1024 : s->n, s->k, s->rows, s->second) / (s->pieces != 0 ? s->pieces : 1);
    if (n_room == 0)
        return; /* not on this device */
    struct made a = matrix(t, s->type, s->rows, s->k, 1), b = {.m = {.w = NULL}};
    if (s->second != 0)
        b = matrix(t, s->other, s->second, s->k, 1);
    float *x = randoms(t, (size_t)s->n * s->k), *begin = s->accumulate ? randoms(t, (size_t)s->n * width) : NULL;
    for (size_t i = 0; i < (size_t)s->n * s->k; i++)
        x[i] *= i / s->k % 5 == 3 ? 1e7f : i / s->k % 5 == 4 ? 1e-7f : 1;
    struct kcu_linear l = {.n_mats = s->second != 0 ? 2 : 1,
                           .m = {a.m, b.m},
                           .col = {s->gap / 2, s->gap / 2 + s->rows},
                           .in = halved(t, device(t, x, (size_t)s->n * s->k * sizeof *x), s->n, s->k),
                           .n = s->n,
                           .y_pitch = width,
                           .accumulate = s->accumulate};
    t->l.fixed = true;
    const uint32_t kernels = kcu_gemm_kernels(&t->l, &l);
    const float *want = results(t, &l, begin, bytes);
    if (s->pieces == 0) {
        keep(t, s->n, &l.m[0]);
        keep(t, s->n, &l.m[1]);
    } else {
        l.room = device(t, NULL, n_room * sizeof *l.room);
        l.n_room = n_room;
    }
    t->l.fixed = !s->loose;
    const bool used = s->pieces == 0 || kcu_gemm_kernels(&t->l, &l) > kernels;
    const float *got = results(t, &l, begin, bytes);
    struct kcu_linear few = l;
    few.n = part;
    few.in.h += (size_t)first * s->k;
    few.in.h_scale += first;
    const float *alone = results(t, &few, begin != NULL ? begin + (size_t)first * width : NULL, (size_t)part * width * sizeof(float));
    if (t->rc == RS_OK && s->loose) /* f32 sums in another order */
        result(t, apart(got, want, s->n, width), 1e-5, "weights as f16, K shared, %u and %u x %u, %u rows", s->rows, s->second, s->k, s->n);
    const double wrong = t->rc != RS_OK ? 0 : !used + (s->loose ? 0 : differ(got, want, (size_t)s->n * width)) +
                                                  differ(alone, got + (size_t)first * width, (size_t)part * width);
    result(t, wrong, 0, "weights as f16%s, %s %u and %u x %u, %u rows%s", s->pieces != 0 ? " first" : "", krn_type_info(s->type)->name, s->rows,
           s->second, s->k, s->n, s->accumulate ? ", added" : "");
    release(t);
}

void cuda_selftest_half(struct check *t)
{
    static const struct shape SMALL[] = {
        {KRN_Q8_0, KRN_Q8_0, 40, 20, 64, 520, 3, false, false, 1},
        {KRN_Q4_K, KRN_Q4_K, 36, 0, 256, 513, 0, true, false, 1},
        {KRN_Q5_K, KRN_Q5_K, 20, 0, 256, 513, 0, false, false, 1},
        {KRN_Q6_K, KRN_Q6_K, 20, 4, 256, 513, 4, false, false, 1},
        {KRN_Q8_0, KRN_Q8_0, 600, 20, 256, 513, 4, false, false, 0},
        {KRN_Q8_0, KRN_Q8_0, 100, 20, 1024, 120, 4, true, true, 0},
    };
    static const struct shape ALL[] = {
        {KRN_Q8_0, KRN_Q8_0, 1024, 0, 192, 1024, 0, false, false, 1},  /* whole tiles */
        {KRN_Q8_0, KRN_Q8_0, 1000, 0, 320, 1027, 0, true, false, 1},   /* edges both ways */
        {KRN_Q8_0, KRN_Q8_0, 768, 576, 512, 1500, 0, false, false, 1}, /* a tile with both weights */
        {KRN_Q8_0, KRN_Q8_0, 103, 45, 64, 1100, 3, false, false, 1},   /* one step of K; nothing is aligned */
        {KRN_Q8_0, KRN_Q8_0, 600, 0, 1024, 2100, 0, false, false, 3},  /* piece by piece */
        {KRN_Q8_0, KRN_Q8_0, 300, 200, 256, 700, 8, true, false, 2},   /* one weight after the other, in pieces */
        {KRN_Q4_K, KRN_Q4_K, 1536, 0, 512, 1056, 0, false, false, 1},
        {KRN_Q4_K, KRN_Q8_0, 333, 260, 1024, 1100, 0, false, false, 1}, /* of two types */
        {KRN_Q5_K, KRN_Q5_K, 300, 44, 512, 1056, 4, true, false, 1},
        {KRN_Q6_K, KRN_Q6_K, 1100, 4, 512, 2049, 0, false, false, 1},
        {KRN_Q6_K, KRN_Q6_K, 100, 0, 256, 5000, 0, true, false, 1},
        {KRN_Q8_0, KRN_Q8_0, 2048, 0, 128, 8192, 0, true, false, 0}, /* more tiles than blocks, few steps */
        {KRN_Q8_0, KRN_Q8_0, 1500, 1500, 192, 3000, 0, false, false, 0},
        {KRN_Q4_K, KRN_Q6_K, 130, 1111, 256, 2050, 3, false, false, 0},
        {KRN_Q5_K, KRN_Q5_K, 700, 0, 256, 260, 0, false, false, 0},
        {KRN_Q8_0, KRN_Q8_0, 600, 200, 1280, 500, 0, false, true, 0},
        {KRN_Q8_0, KRN_Q8_0, 301, 0, 2048, 250, 3, true, true, 0},
        {KRN_Q4_K, KRN_Q6_K, 256, 130, 1024, 128, 0, true, true, 0},
    };
    for (size_t i = 0; i < (t->small ? sizeof SMALL / sizeof *SMALL : sizeof ALL / sizeof *ALL) && t->rc == RS_OK; i++)
        check_half(t, t->small ? &SMALL[i] : &ALL[i]);
}
