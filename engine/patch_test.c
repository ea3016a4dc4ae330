/* See patch_test.h. Every kind has a function that lays out its call and computes what should come out. */
#include "engine/patch_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, WIDTH = 96, OUT = 64, HEADS = 3, HEAD = 32, ROPE = 16, NOPE = HEAD - ROPE, POSITIONS = 40, GUARD = 64 };
enum { LORA = 48, LATENT = LORA + ROPE, V_HEAD = 24, EXPERTS = 16, USED = 4, RANKS = 3, MAX_WIDTH = 2 * OUT, AREAS = 3 };
enum { HERE = 3, PAIRS = 7, FIRST = 20, VOCAB = HEADS * OUT, CELLS = PAIRS * MAX_WIDTH }; /* experts of a rank, their pairs; tokens of a rank */

static const float MARK = 123456.0f; /* around outputs */
static const int32_t POS[ROWS] = {0, 1, 7, 20, 39};
static const int32_t GROUP[HERE + 1] = {0, 3, 3, PAIRS}, PAIR_ROW[PAIRS] = {0, 2, 4, 0, 1, 2, 4}; /* an expert without rows, a row without experts */
static const float PAIR_WEIGHT[PAIRS] = {0.5f, 1.25f, 0.75f, 2.0f, 0.25f, 1.0f, 1.5f};
static const int32_t TOKENS[ROWS] = {FIRST + 7, 3, FIRST, FIRST + VOCAB - 1, FIRST + VOCAB}; /* two are another rank's */
static const int32_t CHOSEN[] = {0, 5, 6, 19, 20}; /* the positions that row 3 looks at where a selection is made */

/* Memory that the op writes, with marks on both sides. */
struct area {
    float before[CELLS], cell[GUARD + CELLS + GUARD];
    double want[CELLS];
    uint32_t n; /* cells that are in use */
};

struct test {
    const char *kind;
    uint32_t variant;
    float in[PAIRS * WIDTH], w[2][HEADS * OUT * WIDTH], cos[POSITIONS * ROPE / 2], sin[POSITIONS * ROPE / 2];
    float cached[ROWS][POSITIONS][LATENT];
    struct area area[AREAS];
    float stored[ROWS * LATENT];  /* what cache_put was given */
    uint32_t n_stored[ROWS];
    double want_stored[ROWS * LATENT];
    bool sparse;                  /* selected() lists something */
    const char *misuse;           /* a function was called with a row or position that there is not */
    float *ranks[RANKS];
    struct rankscope_call call;
};

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void copy_f32(uint32_t type, const void *src, float *dst, size_t n)
{
    (void)type;
    memcpy(dst, src, n * sizeof *dst);
}

static bool is(const struct test *t, const char *kind)
{
    return strcmp(t->kind, kind) == 0;
}

static float *out(struct test *t, int area)
{
    return t->area[area].cell + GUARD;
}

static struct rankscope_weight weight(struct test *t, int s, uint32_t mats, uint32_t rows, uint32_t k)
{
    return (struct rankscope_weight){0, rows, k, (const uint8_t *)t->w[s], k * sizeof(float), 256 * sizeof(float), copy_f32, mats, (size_t)rows * k * sizeof(float)};
}

/* in (NULL: in place) of in_width to area 0 of out_width. */
static void lay(struct test *t, float *in, uint32_t in_width, uint32_t out_width)
{
    t->area[0].n = ROWS * out_width;
    t->call.out[0] = (struct rankscope_tensor){out(t, 0), out_width, ROWS, out_width};
    t->call.in[0] = in != NULL ? (struct rankscope_tensor){in, in_width, ROWS, in_width} : t->call.out[0];
}

/* ---- the cache ---- */

static void cache_get(const struct rankscope_call *c, uint32_t row, uint32_t pos, float *to)
{
    struct test *t = (struct test *)(uintptr_t)c->cache;
    if (row >= ROWS || pos > (uint32_t)POS[row])
        t->misuse = "it reads the cache where nothing is";
    else
        memcpy(to, t->cached[row][pos], sizeof t->cached[row][pos]);
}

static void cache_put(const struct rankscope_call *c, uint32_t row, const float *from)
{
    struct test *t = (struct test *)(uintptr_t)c->cache;
    if (row >= ROWS) {
        t->misuse = "it writes a row to the cache that there is not";
        return;
    }
    memcpy(t->stored + row * LATENT, from, LATENT * sizeof *from);
    t->n_stored[row]++;
}

static const int32_t *selected(const struct rankscope_call *c, uint32_t row, uint32_t *n)
{
    const struct test *t = c->cache;
    if (!t->sparse || row != 3)
        return NULL;
    *n = sizeof CHOSEN / sizeof CHOSEN[0];
    return CHOSEN;
}

/* ---- what should come out ---- */

static void expect_rmsnorm(struct test *t)
{
    lay(t, t->in, WIDTH, WIDTH);
    t->call.w[0] = weight(t, 0, 1, 1, WIDTH);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *x = t->in + i * WIDTH;
        double sq = 0;
        for (uint32_t k = 0; k < WIDTH; k++)
            sq += (double)x[k] * (double)x[k] / WIDTH;
        for (uint32_t j = 0; j < WIDTH; j++)
            t->area[0].want[i * WIDTH + j] = (double)x[j] / sqrt(sq + 1e-5) * (double)t->w[0][j];
    }
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double s = 0;
    for (uint32_t k = 0; k < n; k++)
        s += (double)a[k] * (double)b[k];
    return s;
}

/* linear (variant 1: accumulating), qkv_a, gate_up (two slots; qkv_a variant 1: one slot) */
static void expect_linear(struct test *t)
{
    bool linear = is(t, "linear");
    uint32_t width = linear || t->variant == 1 ? OUT : 2 * OUT;
    lay(t, t->in, WIDTH, width);
    t->call.accumulate = linear && t->variant == 1;
    t->call.w[0] = weight(t, 0, 1, OUT, WIDTH);
    if (width != OUT)
        t->call.w[1] = weight(t, 1, 1, OUT, WIDTH);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < width; j++)
            t->area[0].want[i * width + j] = dot(t->in + i * WIDTH, t->w[j / OUT] + (size_t)(j % OUT) * WIDTH, WIDTH) +
                                             (t->call.accumulate ? (double)t->area[0].before[i * width + j] : 0);
}

static void expect_silu_mul(struct test *t)
{
    lay(t, t->in, WIDTH, WIDTH / 2);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < WIDTH / 2; j++) {
            double g = (double)t->in[i * WIDTH + j], up = (double)t->in[i * WIDTH + WIDTH / 2 + j];
            t->area[0].want[i * (WIDTH / 2) + j] = g / (1 + exp(-g)) * up;
        }
}

static void expect_add(struct test *t)
{
    lay(t, t->in, WIDTH, WIDTH);
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        t->area[0].want[i] = (double)t->area[0].before[i] + (double)t->in[i];
}

static void rotate(const struct test *t, const float *x, int32_t pos, double *y)
{
    for (uint32_t p = 0; p < ROPE / 2; p++) {
        double c = (double)t->cos[pos * (ROPE / 2) + (int32_t)p], s = (double)t->sin[pos * (ROPE / 2) + (int32_t)p];
        double a = (double)x[2 * p], b = (double)x[2 * p + 1];
        y[2 * p] = a * c - b * s;
        y[2 * p + 1] = b * c + a * s;
    }
}

static void expect_rope(struct test *t)
{
    lay(t, NULL, 0, HEADS * HEAD);
    t->call.n_heads = HEADS;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t h = 0; h < HEADS; h++) {
            const float *x = t->area[0].before + (i * HEADS + h) * HEAD;
            double *y = t->area[0].want + (i * HEADS + h) * HEAD;
            for (uint32_t j = 0; j < NOPE; j++)
                y[j] = (double)x[j];
            rotate(t, x + NOPE, POS[i], y + NOPE);
        }
}

static void expect_kv_store(struct test *t)
{
    lay(t, NULL, 0, LATENT);
    t->call.w[0] = weight(t, 0, 1, 1, LORA);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *x = t->area[0].before + i * LATENT;
        double *y = t->area[0].want + i * LATENT, sq = dot(x, x, LORA) / LORA;
        for (uint32_t j = 0; j < LORA; j++)
            y[j] = (double)x[j] / sqrt(sq + 1e-5) * (double)t->w[0][j];
        rotate(t, x + LORA, POS[i], y + LORA);
        memcpy(t->want_stored + i * LATENT, y, LATENT * sizeof *y);
    }
}

/* One head of one row: keys and values made from the latents, plainly. */
static void attend(const struct test *t, uint32_t i, uint32_t h, double *y)
{
    const float *q = t->in + (i * HEADS + h) * HEAD, *kb = t->w[0] + h * LORA * NOPE, *vb = t->w[1] + h * V_HEAD * LORA;
    uint32_t n = t->sparse && i == 3 ? sizeof CHOSEN / sizeof CHOSEN[0] : (uint32_t)POS[i] + 1;
    double score[POSITIONS], top = -INFINITY, sum = 0, mix[LORA] = {0};
    for (uint32_t k = 0; k < n; k++) {
        const float *row = t->cached[i][t->sparse && i == 3 ? CHOSEN[k] : (int32_t)k];
        score[k] = dot(q + NOPE, row + LORA, ROPE);
        for (uint32_t l = 0; l < LORA; l++)
            score[k] += dot(q, kb + l * NOPE, NOPE) * (double)row[l];
        score[k] *= (double)t->call.scale;
        top = score[k] > top ? score[k] : top;
    }
    for (uint32_t k = 0; k < n; k++) {
        score[k] = exp(score[k] - top);
        sum += score[k];
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t l = 0; l < LORA; l++)
            mix[l] += score[k] / sum * (double)t->cached[i][t->sparse && i == 3 ? CHOSEN[k] : (int32_t)k][l];
    for (uint32_t v = 0; v < V_HEAD; v++) {
        y[v] = 0;
        for (uint32_t l = 0; l < LORA; l++)
            y[v] += (double)vb[v * LORA + l] * mix[l];
    }
}

/* Variant 1: one row looks at selected positions alone. */
static void expect_mla(struct test *t)
{
    lay(t, t->in, HEADS * HEAD, HEADS * V_HEAD);
    t->sparse = t->variant == 1;
    t->call.n_heads = HEADS;
    t->call.w[0] = weight(t, 0, HEADS, LORA, NOPE);
    t->call.w[1] = weight(t, 1, HEADS, V_HEAD, LORA);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t h = 0; h < HEADS; h++)
            attend(t, i, h, t->area[0].want + (i * HEADS + h) * V_HEAD);
}

/* A group is worth the sum of its two best. Where none is to be left out all stay. */
static void keep_groups(const struct rankscope_router *r, double *s)
{
    uint32_t per = r->n_experts / r->n_groups;
    double worth[EXPERTS];
    for (uint32_t g = 0; g < r->n_groups; g++) {
        double a = -INFINITY, b = -INFINITY;
        for (uint32_t i = g * per; i < (g + 1) * per; i++) {
            b = s[i] > a ? a : s[i] > b ? s[i] : b;
            a = s[i] > a ? s[i] : a;
        }
        worth[g] = a + b;
    }
    for (uint32_t g = 0; g < r->n_groups; g++) {
        uint32_t better = 0;
        for (uint32_t k = 0; k < r->n_groups; k++)
            better += worth[k] > worth[g] || (!(worth[k] < worth[g]) && k < g);
        for (uint32_t i = g * per; i < (g + 1) * per && better >= r->n_groups_used; i++)
            s[i] = -INFINITY;
    }
}

static void route(struct test *t, uint32_t i, double *p, double *dense)
{
    const struct rankscope_router *r = &t->call.router;
    double z = 0, sum = 0, s[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        double x = dot(t->in + i * WIDTH, t->w[0] + e * WIDTH, WIDTH);
        p[e] = r->sigmoid ? 1 / (1 + exp(-x)) : exp(x);
        z += p[e];
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        p[e] /= r->sigmoid ? 1 : z;
        s[e] = p[e] + (t->call.w[1].rows != 0 ? (double)t->w[1][e] : 0);
        dense[e] = 0;
    }
    if (r->n_groups_used < r->n_groups)
        keep_groups(r, s);
    for (uint32_t k = 0; k < USED; k++) {
        uint32_t at = 0;
        for (uint32_t e = 1; e < EXPERTS; e++)
            at = s[e] > s[at] ? e : at;
        s[at] = -INFINITY;
        dense[at] = p[at];
        sum += p[at];
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        dense[e] *= (double)r->scale / (r->normalise ? sum : 1);
}

/* Variants: sigmoid with a bias, groups and normalised weights; softmax without. Area 1 is the choice as the engine keeps it, area 2 what it means: a
 * weight for every expert (filled in by read_choice). */
static void expect_router(struct test *t)
{
    bool full = t->variant == 0;
    lay(t, t->in, WIDTH, EXPERTS);
    t->area[1].n = ROWS * 2 * USED;
    t->area[2].n = ROWS * EXPERTS;
    t->call.w[0] = weight(t, 0, 1, EXPERTS, WIDTH);
    if (full)
        t->call.w[1] = weight(t, 1, 1, 1, EXPERTS);
    t->call.router = (struct rankscope_router){.n_experts = EXPERTS, .n_used = USED, .n_groups = 4, .n_groups_used = full ? 2 : 4, .sigmoid = full, .normalise = full,
                                               .scale = full ? 2.5f : 1.0f, .ids = (int32_t *)(void *)out(t, 1), .weights = out(t, 1) + USED, .stride = 2 * USED};
    for (uint32_t i = 0; i < ROWS; i++)
        route(t, i, t->area[0].want + i * EXPERTS, t->area[2].want + i * EXPERTS);
}

static const char *read_choice(struct test *t)
{
    const struct rankscope_router *r = &t->call.router;
    for (uint32_t i = 0; i < ROWS; i++) {
        float *dense = out(t, 2) + i * EXPERTS;
        memset(dense, 0, EXPERTS * sizeof *dense);
        for (uint32_t k = 0; k < USED; k++) {
            int32_t e = r->ids[i * r->stride + k];
            if (e < 0 || e >= EXPERTS)
                return "it chooses experts that there are not";
            for (uint32_t j = 0; j < k; j++)
                if (r->ids[i * r->stride + j] == e)
                    return "it chooses an expert twice";
            dense[e] = r->weights[i * r->stride + k];
        }
    }
    return NULL;
}

static void expect_embed(struct test *t)
{
    lay(t, NULL, 0, WIDTH);
    t->call.in[0] = (struct rankscope_tensor){.data = NULL};
    t->call.w[0] = weight(t, 0, 1, VOCAB, WIDTH);
    t->call.tokens = TOKENS;
    t->call.first_token = FIRST;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < WIDTH; j++) {
            int32_t r = TOKENS[i] - FIRST;
            t->area[0].want[i * WIDTH + j] = r >= 0 && r < VOCAB ? (double)t->w[0][r * WIDTH + (int32_t)j] : 0;
        }
}

static uint32_t expert_of(uint32_t pair)
{
    uint32_t e = 0;
    while ((int32_t)pair >= GROUP[e + 1])
        e++;
    return e;
}

static void lay_experts(struct test *t)
{
    t->call.experts = (struct rankscope_experts){HERE, PAIRS, GROUP, PAIR_ROW, PAIR_WEIGHT};
    t->call.w[0] = weight(t, 0, HERE, OUT, WIDTH);
}

static void expect_moe_gate_up(struct test *t)
{
    lay(t, t->in, WIDTH, 2 * OUT);
    lay_experts(t);
    t->call.w[1] = weight(t, 1, HERE, OUT, WIDTH);
    t->call.out[0].rows = PAIRS;
    t->area[0].n = PAIRS * 2 * OUT;
    for (uint32_t p = 0; p < PAIRS; p++)
        for (uint32_t j = 0; j < 2 * OUT; j++)
            t->area[0].want[p * 2 * OUT + j] = dot(t->in + PAIR_ROW[p] * WIDTH, t->w[j / OUT] + (expert_of(p) * OUT + j % OUT) * WIDTH, WIDTH);
}

static void expect_moe_down(struct test *t)
{
    lay(t, t->in, WIDTH, OUT);
    lay_experts(t);
    t->call.in[0].rows = PAIRS;
    for (uint32_t p = 0; p < PAIRS; p++)
        for (uint32_t j = 0; j < OUT; j++)
            t->area[0].want[(uint32_t)PAIR_ROW[p] * OUT + j] += (double)PAIR_WEIGHT[p] * dot(t->in + p * WIDTH, t->w[0] + (expert_of(p) * OUT + j) * WIDTH, WIDTH);
}

static void expect_allreduce(struct test *t)
{
    lay(t, NULL, 0, WIDTH);
    t->call.n_ranks = RANKS;
    t->call.ranks = t->ranks;
    for (int r = 0; r < RANKS; r++) {
        t->ranks[r] = out(t, r);
        t->area[r].n = ROWS * WIDTH;
        for (uint32_t i = 0; i < ROWS * WIDTH; i++) {
            t->area[r].want[i] = 0;
            for (int k = 0; k < RANKS; k++)
                t->area[r].want[i] += (double)t->area[k].before[i];
        }
    }
}

static const struct {
    const char *name;
    uint32_t variants;
    void (*expect)(struct test *t);
} KINDS[] = {{"rmsnorm", 1, expect_rmsnorm}, {"linear", 2, expect_linear}, {"qkv_a", 2, expect_linear}, {"gate_up", 1, expect_linear},
             {"silu_mul", 1, expect_silu_mul}, {"moe_silu_mul", 1, expect_silu_mul}, {"add", 1, expect_add}, {"rope", 1, expect_rope},
             {"kv_store", 1, expect_kv_store}, {"mla", 2, expect_mla}, {"router", 2, expect_router}, {"allreduce", 1, expect_allreduce},
             {"embed", 1, expect_embed}, {"moe_gate_up", 1, expect_moe_gate_up}, {"moe_down", 1, expect_moe_down}};

/* ---- running ---- */

static double distance(const float *got, const double *want, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += want[i] * want[i];
    }
    return sqrt(d / all);
}

static const char *outside(const struct test *t)
{
    for (int a = 0; a < AREAS; a++) {
        const struct area *x = &t->area[a];
        for (uint32_t i = 0; i < GUARD + CELLS + GUARD; i++)
            if ((i < GUARD || i >= GUARD + x->n) && (x->cell[i] < MARK || x->cell[i] > MARK))
                return "it writes outside of its output";
    }
    for (uint32_t i = 0; i < ROWS && is(t, "kv_store"); i++)
        if (t->n_stored[i] != 1)
            return "it does not write each row to the cache once";
    return NULL;
}

static void fill(struct test *t, uint32_t seed)
{
    uint32_t state = seed;
    for (int a = 0; a < AREAS; a++)
        for (uint32_t i = 0; i < CELLS; i++)
            t->area[a].before[i] = noise(&state);
    for (size_t i = 0; i < sizeof t->in / sizeof t->in[0]; i++)
        t->in[i] = noise(&state);
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < sizeof t->w[s] / sizeof t->w[s][0]; i++)
            t->w[s][i] = noise(&state);
    for (size_t i = 0; i < sizeof t->cached / sizeof(float); i++)
        (&t->cached[0][0][0])[i] = noise(&state);
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < ROPE / 2; i++) {
            t->cos[p * (ROPE / 2) + i] = (float)cos(p * pow(10000, -2.0 * i / ROPE));
            t->sin[p * (ROPE / 2) + i] = (float)sin(p * pow(10000, -2.0 * i / ROPE));
        }
}

/* One variant of a kind in `of` shares. The result's relative L2 distance, or NAN with a line in say. */
static double run_variant(struct test *t, int kind, uint32_t variant, uint32_t of, patch_test_fn run, void *arg, char *say, size_t cap)
{
    const char *wrong;
    double worst = 0;
    memset(t, 0, sizeof *t);
    fill(t, 7 + of + variant);
    t->kind = KINDS[kind].name;
    t->variant = variant;
    t->call = (struct rankscope_call){.size = sizeof t->call, .layer = 1, .site = "selftest", .n_ranks = 1, .eps = 1e-5f, .head_dim = HEAD, .rope_dim = ROPE,
                                      .cos = t->cos, .sin = t->sin, .pos = POS, .kv_lora = LORA, .v_head = V_HEAD, .scale = 0.25f, .cache = t,
                                      .cache_get = cache_get, .cache_put = cache_put, .selected = selected};
    KINDS[kind].expect(t);
    for (int a = 0; a < AREAS; a++) {
        for (uint32_t i = 0; i < GUARD + CELLS + GUARD; i++)
            t->area[a].cell[i] = MARK;
        memcpy(out(t, a), t->area[a].before, t->area[a].n * sizeof(float));
    }
    for (uint32_t lo = of; lo-- > 0;) { /* any order */
        t->call.lo = lo;
        t->call.hi = lo + 1;
        t->call.of = of;
        if (!run(arg, &t->call, say, cap))
            return NAN;
    }
    wrong = t->misuse != NULL ? t->misuse : outside(t);
    if (wrong == NULL && is(t, "router"))
        wrong = read_choice(t);
    if (wrong != NULL) {
        snprintf(say, cap, "%s", wrong);
        return NAN;
    }
    for (int a = 0; a < AREAS; a++) {
        double d = t->area[a].n == 0 || (a == 1 && is(t, "router")) ? 0 : distance(out(t, a), t->area[a].want, t->area[a].n);
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (is(t, "kv_store")) {
        double d = distance(t->stored, t->want_stored, ROWS * LATENT);
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (isnan(worst))
        snprintf(say, cap, "its result is not a number");
    return worst;
}

bool patch_test(const struct rankscope_patch_v1 *patch, patch_test_fn run, void *arg, bool shares, double *worst, char *say, size_t cap)
{
    int kind = 0;
    if (patch->abi != RANKSCOPE_PATCH_ABI || patch->size != sizeof *patch || patch->call_size != sizeof(struct rankscope_call)) {
        snprintf(say, cap, "it was written for another interface");
        return false;
    }
    while (kind < (int)(sizeof KINDS / sizeof KINDS[0]) && strcmp(KINDS[kind].name, patch->kind) != 0)
        kind++;
    if (kind == (int)(sizeof KINDS / sizeof KINDS[0])) {
        int at = snprintf(say, cap, "kind '%.40s' is none of", patch->kind);
        for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0] && at > 0 && (size_t)at < cap; i++)
            at += snprintf(say + at, cap - (size_t)at, "%s %s", i > 0 ? "," : "", KINDS[i].name);
        return false;
    }
    struct test *t = malloc(sizeof *t);
    bool right = t != NULL;
    *worst = 0;
    if (t == NULL)
        snprintf(say, cap, "out of memory");
    for (uint32_t of = 1; of <= (shares ? 7u : 1u) && right; of += 2)
        for (uint32_t v = 0; v < KINDS[kind].variants && right; v++) {
            double d = run_variant(t, kind, v, of, run, arg, say, cap);
            right = d <= 1e-4;
            *worst = d > *worst ? d : *worst;
            if (d > 1e-4)
                snprintf(say, cap, "its result is wrong: relative L2 %.2g against the reference (%s, variant %u, %u shares)", d, KINDS[kind].name, v, of);
        }
    free(t);
    return right;
}
