/* What kernels say of rows of logits, against the rows themselves: figures as the CPU finds them, lists that leave nothing out, and tokens that are those
 * which the whole row would give. Rows are random, or of the kinds that go wrong. */
#include "engine/cuda_check.h"
#include "engine/sample.h"

enum row_kind { NORMAL, FLAT, TIES, TIES_BELOW, PEAK, EQUAL, ZEROS, HUGE_RANGE, DENORMAL, ONE_NAN, ONE_INF, MASKED, ALL_NAN, ROW_KINDS };
enum { EACH = 3, ROWS = EACH * ROW_KINDS, WANT = 200, DRAWS = 60 };

static void make_row(struct check *t, enum row_kind kind, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = 3 * rnd(t);
    const uint32_t a = (uint32_t)(t->seed >> 33) % n, b = (uint32_t)(t->seed >> 13) % n;
    for (uint32_t i = 0; i < n && kind != NORMAL; i++)
        switch (kind) {
        case FLAT: x[i] *= 0.05f; break;
        case TIES: x[i] = i == a || i == b || i == n - 1 ? 20 : x[i]; break;
        case TIES_BELOW: x[i] = i == a ? 12 : i % 4 == 0 ? 11 : x[i]; break; /* more than a list takes, where the row is long */
        case PEAK: x[i] = i == a ? 60 : x[i]; break;
        case EQUAL: x[i] = -2.5f; break;
        case ZEROS: x[i] = i == a || i == b ? (i % 2 == 0 ? 0.0f : -0.0f) : -1 - fabsf(x[i]); break;
        case HUGE_RANGE: x[i] = i == a ? 3e38f : i == b ? -3e38f : x[i]; break;
        case DENORMAL: x[i] *= 1e-40f; break;
        case ONE_NAN: x[i] = i == a ? NAN : x[i]; break;
        case ONE_INF: x[i] = i == a ? INFINITY : x[i]; break;
        case MASKED: x[i] = i % 7 != 3 ? -INFINITY : x[i]; break;
        case ALL_NAN: x[i] = NAN; break;
        default: break;
        }
}

static double off(float got, double want)
{
    const double most = fmax(fabs(want), 1e-3);
    return fabs((double)got - want) / most;
}

/* Figures: those that are values of the row must be equal. */
static void compare(const struct kcu_top *got, const float *x, uint32_t n, int32_t id0, double temp, double *wrong, double *error)
{
    struct krn_logits w;
    krn_cpu_vec(KRN_ISA_PORTABLE)->describe(x, n, &w);
    double zt = 0;
    int32_t at = -1;
    for (uint32_t i = n; i-- > 0 && w.tops != 0;)
        at = x[i] == w.top ? (int32_t)i + id0 : at;
    *wrong += got->at != at;
    *wrong += got->nonfinite != w.nonfinite;
    if (at < 0)
        return;
    for (uint32_t i = 0; i < n && temp > 0; i++)
        zt += isfinite(x[i]) ? exp(((double)x[i] - (double)w.top) / temp) : 0;
    *wrong += got->top != w.top;
    *wrong += got->second != w.second;
    *wrong += got->low != w.low;
    *wrong += got->tops != w.tops;
    const double e[] = {off(got->z, w.z), off(got->w, w.w), off(got->w2, w.w2), off(got->zt, zt)};
    for (int i = 0; i < 4; i++)
        *error = e[i] <= *error ? *error : e[i]; /* NaN stays */
}

/* A list holds exactly what is not below its floor; it is as long as was asked for, unless what is left lies out of reach or would be too many. */
static double wrong_list(const struct kcu_top *got, const struct kcu_likely *l, const float *x, uint32_t n, int32_t id0, float temp)
{
    uint32_t above = 0, reach = 0;
    double wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        above += x[i] >= got->floor;
        reach += x[i] >= got->top - 32 * fmaxf(temp, 1);
    }
    if (got->nonfinite != 0 || got->at < 0)
        return got->n != 0;
    wrong += above != got->n || got->n > KCU_LIST;
    for (uint32_t i = 0; i < got->n && wrong == 0; i++) {
        const uint32_t k = (uint32_t)(l[i].id - id0);
        wrong += k >= n || memcmp(&x[k], &l[i].x, sizeof l[i].x) != 0 || !(l[i].x >= got->floor);
        for (uint32_t j = 0; j < i; j++)
            wrong += l[j].id == l[i].id;
    }
    if (got->n < WANT && got->n < reach) { /* it stopped before a crowd */
        uint32_t crowd = 0;
        float below = -INFINITY; /* the first value that is not listed, and what lies within a bucket or two of it */
        for (uint32_t i = 0; i < n; i++)
            below = x[i] < got->floor && x[i] > below ? x[i] : below;
        for (uint32_t i = 0; i < n; i++)
            crowd += x[i] >= below - 64 * fmaxf(temp, 1) / 2048;
        wrong += crowd <= KCU_LIST;
    }
    return wrong;
}

static struct sample_params settings(struct check *t, unsigned i, float temp)
{
    struct sample_params p;
    sample_defaults(&p);
    (void)rnd(t);
    p.temp = temp;
    p.seed = t->seed;
    p.top_k = i % 3 == 1 ? 1 + i * 7 % 150 : 0;
    p.top_p = i % 4 == 1 ? 0.9f : i % 4 == 2 ? 0.5f : 1;
    p.min_p = i % 5 == 1 ? 0.05f : 0;
    return p;
}

/* Draws from the list and from the row. tried, proven: of normal rows, where a list should nearly always do. */
static double wrong_tokens(struct check *t, enum row_kind kind, const struct kcu_top *got, const struct kcu_likely *l, const float *x, uint32_t n,
                           struct sample_scratch *s, float temp, unsigned *tried, unsigned *proven)
{
    struct sample_row row = {.figures = {.top = got->top, .second = got->second, .low = got->low, .tops = got->tops, .nonfinite = got->nonfinite,
                                         .z = got->z, .w = got->w, .w2 = got->w2},
                             .likeliest = got->at, .z_temp = got->zt, .floor = got->floor, .n = got->n, .list = s->list};
    double wrong = 0;
    for (uint32_t i = 0; i < got->n; i++)
        s->list[i] = (struct sample_item){.logit = l[i].x, .id = l[i].id};
    for (unsigned i = 0; i < DRAWS; i++) {
        const struct sample_params p = settings(t, i, temp);
        struct sample_rng a, b;
        struct sample_info ia, ib;
        int32_t id;
        float logit;
        sample_seed(&a, p.seed);
        b = a;
        const int32_t want = sample_token(&p, &a, x, n, NULL, 0, s, &ia);
        const bool sure = sample_listed(&p, &b, &row, s, &id, &logit, &ib);
        *tried += kind == NORMAL;
        *proven += kind == NORMAL && sure;
        if (!sure)
            continue;
        wrong += id != want || logit != x[want] || memcmp(&a, &b, sizeof a) != 0;
        wrong += !(fabsf(ia.entropy - ib.entropy) <= 1e-4f) || !(fabsf(ia.logprob - ib.logprob) <= 1e-4f * fmaxf(1, fabsf(ia.logprob)));
    }
    return wrong;
}

static void check_rows_of(struct check *t, uint32_t width, int32_t id0)
{
    static const float TEMPS[EACH] = {0, 1, 0.6f};
    const uint32_t pitch = width + 3;
    float *x = host(t, (size_t)ROWS * pitch * sizeof *x), temp[ROWS];
    uint32_t list[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        make_row(t, (enum row_kind)(i / EACH), x + (size_t)i * pitch, width);
        temp[i] = TEMPS[i % EACH];
        list[i] = i % EACH == 0 ? 0 : WANT;
    }
    const uint32_t none[ROWS] = {0};
    const struct kcu_likeliest a = {.x = device(t, x, (size_t)ROWS * pitch * sizeof *x), .pitch = pitch, .width = width, .n = ROWS, .id0 = id0,
                                    .temp = device(t, temp, sizeof temp), .list = device(t, list, sizeof list),
                                    .parts = device(t, NULL, ROWS * kcu_likeliest_parts(width) * sizeof(struct kcu_top)),
                                    .arrived = device(t, none, sizeof none), .out = device(t, NULL, ROWS * sizeof(struct kcu_top)),
                                    .likely = device(t, NULL, (size_t)ROWS * KCU_LIST * sizeof(struct kcu_likely))};
    if (t->rc != RS_OK || !good(t, kcu_likeliest(&t->l, &a), "likeliest"))
        return;
    const struct kcu_top *top = fetch(t, a.out, ROWS * sizeof *top);
    const struct kcu_likely *likely = fetch(t, a.likely, (size_t)ROWS * KCU_LIST * sizeof *likely);
    const uint32_t *arrived = fetch(t, a.arrived, sizeof none);
    struct sample_scratch s = {.items = host(t, width * sizeof *s.items), .list = host(t, KCU_LIST * sizeof *s.list)};
    double figures = 0, error = 0, lists = 0, tokens = 0;
    unsigned tried = 0, proven = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *row = x + (size_t)i * pitch;
        compare(&top[i], row, width, id0, (double)temp[i], &figures, &error);
        figures += arrived[i] != 0;
        if (list[i] == 0) {
            lists += top[i].n != 0 || top[i].floor != INFINITY;
            continue;
        }
        lists += wrong_list(&top[i], likely + (size_t)i * KCU_LIST, row, width, id0, temp[i]);
        if (id0 == 0 && t->rc == RS_OK)
            tokens += wrong_tokens(t, (enum row_kind)(i / EACH), &top[i], likely + (size_t)i * KCU_LIST, row, width, &s, temp[i], &tried, &proven);
    }
    result(t, figures, 0, "logits: the largest, %u columns", width);
    result(t, error, 2e-5, "logits: sums, %u columns", width);
    result(t, lists, 0, "logits: lists, %u columns", width);
    if (id0 == 0) {
        result(t, tokens, 0, "logits: tokens from lists, %u columns", width);
        result(t, tried > 0 ? 1 - (double)proven / tried : 0, 0.35, "logits: draws that no list settles, %u columns", width);
    }
    release(t);
}

void cuda_selftest_token(struct check *t)
{
    check_rows_of(t, 20011, 0);
    check_rows_of(t, 4096, 0);
    check_rows_of(t, 150, 0);
    check_rows_of(t, 33333, 12345);
}
