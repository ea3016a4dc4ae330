/* See patch_test.h. */
#include "engine/patch_test_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float MARK = 123456.0f; /* around outputs */
static const uint32_t POISON = 0x7fc0deadu;

float patch_test_poison(void)
{
    float x;
    memcpy(&x, &POISON, sizeof x);
    return x;
}

bool patch_test_is_poison(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits == POISON;
}

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

/* ---- the cache ---- */

static void cache_get(const struct rankscope_call *c, uint32_t row, uint32_t pos, float *to)
{
    struct test *t = (struct test *)(uintptr_t)c->cache;
    if (row >= ROWS || pos > (uint32_t)PATCH_TEST_POS[row])
        t->misuse = "it reads the cache where nothing is";
    else
        memcpy(to, t->cached[row][pos], rankscope_cache_width(c) * sizeof *to);
}

static void cache_put(const struct rankscope_call *c, uint32_t row, const float *from)
{
    struct test *t = (struct test *)(uintptr_t)c->cache;
    if (row >= ROWS || t->cache_width == 0) {
        t->misuse = "it writes a row to the cache that there is not";
        return;
    }
    memcpy(t->stored + row * t->cache_width, from, t->cache_width * sizeof *from);
    t->n_stored[row]++;
}

static const int32_t *selected(const struct rankscope_call *c, uint32_t row, uint32_t *n)
{
    const struct test *t = c->cache;
    if (!t->sparse || row != 3)
        return NULL;
    *n = sizeof PATCH_TEST_CHOSEN / sizeof PATCH_TEST_CHOSEN[0];
    return PATCH_TEST_CHOSEN;
}

/* ---- running ---- */

static double distance(const float *got, const double *want, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]))
            continue;
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += want[i] * want[i];
    }
    return all > 0 ? sqrt(d / all) : d;
}

static const char *outside(const struct test *t)
{
    for (int a = 0; a < AREAS; a++) {
        const struct area *x = &t->area[a];
        for (uint32_t i = 0; i < GUARD + CELLS + GUARD; i++)
            if ((i < GUARD || i >= GUARD + x->n) && memcmp(&x->cell[i], &MARK, sizeof MARK) != 0)
                return "it writes outside of its output";
    }
    for (uint32_t i = 0; i < ROWS && t->cache_width != 0; i++)
        if (t->n_stored[i] != 1)
            return "it does not write each row to the cache once";
    return NULL;
}

static const char *left_out(const struct test *t)
{
    for (int a = 0; a < AREAS; a++)
        for (uint32_t i = 0; i < t->area[a].n; i++)
            if (!isnan(t->area[a].want[i]) && patch_test_is_poison(t->area[a].cell[GUARD + i]))
                return "its result is wrong: it leaves a part of its output as it was";
    return NULL;
}

static void fill(struct test *t, uint32_t seed)
{
    size_t rows = HERE * t->form.out; /* of the largest weight */
    uint32_t state = seed;
    rows = rows > VOCAB ? rows : VOCAB;
    rows = rows > t->form.experts ? rows : t->form.experts;
    for (int a = 0; a < AREAS; a++)
        for (uint32_t i = 0; i < CELLS; i++)
            t->area[a].before[i] = noise(&state);
    for (size_t i = 0; i < sizeof t->in / sizeof t->in[0]; i++)
        t->in[i] = noise(&state);
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < rows * t->form.width; i++)
            t->w[s][i] = noise(&state);
    for (size_t i = 0; i < sizeof t->cached / sizeof(float); i++)
        (&t->cached[0][0][0])[i] = noise(&state);
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < ROPE / 2; i++) {
            t->cos[p * (ROPE / 2) + i] = (float)cos(p * pow(10000, -2.0 * i / ROPE));
            t->sin[p * (ROPE / 2) + i] = (float)sin(p * pow(10000, -2.0 * i / ROPE));
        }
}

static void prepare(struct test *t, const struct patch_test_kind *kind, uint32_t variant, const struct patch_test_forms *forms, uint32_t form, uint32_t seed)
{
    const bool index = strncmp(kind->name, "index_", 6) == 0;
    memset(t, 0, offsetof(struct test, w));
    t->forms = forms;
    t->form = forms->form[form];
    fill(t, seed);
    t->kind = kind->name;
    t->variant = variant;
    t->call = (struct rankscope_call){.size = sizeof t->call, .layer = 1, .site = "selftest", .n_ranks = 1, .eps = 1e-5f, .head_dim = HEAD, .rope_dim = ROPE,
                                      .cos = t->cos, .sin = t->sin, .pos = PATCH_TEST_POS, .kv_lora = index ? 0 : LORA, .v_head = V_HEAD, .scale = 0.25f,
                                      .cache = t, .cache_get = cache_get, .cache_put = cache_put, .selected = selected};
    kind->expect(t);
    for (int a = 0; a < AREAS; a++) {
        for (uint32_t i = 0; i < GUARD + CELLS + GUARD; i++)
            t->area[a].cell[i] = MARK;
        for (uint32_t i = 0; i < t->area[a].n; i++)
            patch_test_out(t, a)[i] = t->reads ? t->area[a].before[i] : patch_test_poison();
    }
}

/* What was computed: its relative L2 distance, or NAN with a line in say. */
static double judge(struct test *t, const struct patch_test_kind *kind, char *say, size_t cap)
{
    double worst = 0;
    const char *wrong = t->misuse != NULL ? t->misuse : outside(t);
    if (wrong == NULL && kind->read != NULL)
        wrong = kind->read(t);
    if (wrong == NULL)
        wrong = left_out(t);
    if (wrong != NULL) {
        snprintf(say, cap, "%s", wrong);
        return NAN;
    }
    for (int a = 0; a < AREAS; a++) {
        double d = t->area[a].n == 0 ? 0 : distance(patch_test_out(t, a), t->area[a].want, t->area[a].n);
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (t->cache_width != 0) {
        double d = distance(t->stored, t->want_stored, ROWS * t->cache_width);
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (isnan(worst))
        snprintf(say, cap, "its result is not a number");
    return worst;
}

/* One variant of a kind in `of` shares, in any order. The result's relative L2 distance, or NAN with a line in say. */
static double run_variant(struct test *t, const struct patch_test_kind *kind, uint32_t of, patch_test_fn run, void *arg, char *say, size_t cap)
{
    for (uint32_t lo = of; lo-- > 0;) {
        t->call.lo = lo;
        t->call.hi = lo + 1;
        t->call.of = of;
        if (!run(arg, &t->call, say, cap))
            return NAN;
    }
    return judge(t, kind, say, cap);
}

static const struct patch_test_kind *find(const char *name, char *say, size_t cap)
{
    for (int i = 0; i < PATCH_TEST_N_KINDS; i++)
        if (strcmp(PATCH_TEST_KINDS[i].name, name) == 0)
            return &PATCH_TEST_KINDS[i];
    int at = snprintf(say, cap, "kind '%.40s' is none of", name);
    for (int i = 0; i < PATCH_TEST_N_KINDS && at > 0 && (size_t)at < cap; i++)
        at += snprintf(say + at, cap - (size_t)at, "%s %s", i > 0 ? "," : "", PATCH_TEST_KINDS[i].name);
    return NULL;
}

bool patch_test(const struct rankscope_patch_v1 *patch, patch_test_fn run, void *arg, bool shares, const struct patch_test_forms *forms, double *worst,
                char *say, size_t cap)
{
    static const struct patch_test_form PLAIN[] = {{"f32", 0, 96, 64, 16}};
    static const struct patch_test_forms ONE = {1, PLAIN, NULL, NULL, NULL};
    if (patch->abi != RANKSCOPE_PATCH_ABI || patch->size != sizeof *patch || patch->call_size != sizeof(struct rankscope_call)) {
        snprintf(say, cap, "it was written for another interface");
        return false;
    }
    const struct patch_test_kind *kind = find(patch->kind, say, cap);
    if (kind == NULL)
        return false;
    struct test *t = malloc(sizeof *t);
    bool right = t != NULL;
    *worst = 0;
    if (t == NULL)
        snprintf(say, cap, "out of memory");
    forms = forms != NULL ? forms : &ONE;
    for (uint32_t f = 0; f < forms->n && right; f++)
        for (uint32_t of = 1; of <= (shares ? 7u : 1u) && right; of += 2)
            for (uint32_t v = 0; v < kind->variants && right; v++) {
                prepare(t, kind, v, forms, f, 7 + of + v);
                double d = run_variant(t, kind, of, run, arg, say, cap);
                right = d <= 1e-4;
                *worst = d > *worst ? d : *worst;
                if (d > 1e-4)
                    snprintf(say, cap, "its result is wrong: relative L2 %.2g against the reference", d);
                if (d > 1e-4 || (!right && forms->n > 1)) {
                    const size_t at = strlen(say);
                    snprintf(say + at, cap - at, " (%s, variant %u, weights %s, width %u, %u shares)", kind->name, v, t->form.name, t->form.width, of);
                }
            }
    free(t);
    return right;
}
