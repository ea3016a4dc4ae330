/* What should come out of every kind of patch, in plain loops over doubles: the meaning of the kinds in patch_api.h. */
#include "engine/patch_test_int.h"

#include <math.h>
#include <string.h>

const int32_t PATCH_TEST_POS[ROWS] = {0, 1, 7, 20, 39}, PATCH_TEST_CHOSEN[5] = {0, 5, 6, 19, 20};
static const int32_t GROUP[HERE + 1] = {0, 3, 3, PAIRS}, PAIR_ROW[PAIRS] = {0, 2, 4, 0, 1, 2, 4}; /* an expert without rows, a row without experts */
static const float PAIR_WEIGHT[PAIRS] = {0.5f, 1.25f, 0.75f, 2.0f, 0.25f, 1.0f, 1.5f};
static const int32_t TOKENS[ROWS] = {FIRST + 7, 3, FIRST, FIRST + VOCAB - 1, FIRST + VOCAB}; /* two are another rank's */

static bool is(const struct test *t, const char *kind)
{
    return strcmp(t->kind, kind) == 0;
}

static void copy_f32(uint32_t type, const void *src, float *dst, size_t n)
{
    (void)type;
    memcpy(dst, src, n * sizeof *dst);
}

/* A vector, or a matrix that stays f32. */
static struct rankscope_weight plain(struct test *t, int s, uint32_t mats, uint32_t rows, uint32_t k)
{
    const size_t row = k * sizeof(float);
    return (struct rankscope_weight){0, rows, k, (const uint8_t *)t->w[s], row, 256 * sizeof(float), copy_f32, mats, rows * row};
}

/* A matrix in the form of the test, where its rows are whole blocks; what it is rounded to is what counts. */
static struct rankscope_weight weight(struct test *t, int s, uint32_t mats, uint32_t rows, uint32_t k)
{
    const struct patch_test_forms *f = t->forms;
    if (t->form.type == 0 || k % 256 != 0)
        return plain(t, s, mats, rows, k);
    const size_t bytes = f->row_bytes(t->form.type, k);
    for (size_t i = 0; i < (size_t)mats * rows; i++) {
        f->encode(t->form.type, t->w[s] + i * k, t->packed[s] + i * bytes, k);
        f->decode(t->form.type, t->packed[s] + i * bytes, t->w[s] + i * k, k);
    }
    return (struct rankscope_weight){t->form.type, rows, k, t->packed[s], bytes, f->row_bytes(t->form.type, 256), f->decode, mats, (size_t)rows * bytes};
}

/* in (NULL: in place) of in_width to area 0 of out_width. */
static void lay(struct test *t, float *in, uint32_t in_width, uint32_t out_width)
{
    t->area[0].n = ROWS * out_width;
    t->reads = in == NULL;
    t->call.out[0] = (struct rankscope_tensor){patch_test_out(t, 0), out_width, ROWS, out_width};
    t->call.in[0] = in != NULL ? (struct rankscope_tensor){in, in_width, ROWS, in_width} : t->call.out[0];
}

static void expect_rmsnorm(struct test *t)
{
    lay(t, t->in, t->form.width, t->form.width);
    t->call.w[0] = plain(t, 0, 1, 1, t->form.width);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *x = t->in + i * t->form.width;
        double sq = 0;
        for (uint32_t k = 0; k < t->form.width; k++)
            sq += (double)x[k] * (double)x[k] / t->form.width;
        for (uint32_t j = 0; j < t->form.width; j++)
            t->area[0].want[i * t->form.width + j] = (double)x[j] / sqrt(sq + 1e-5) * (double)t->w[0][j];
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
    uint32_t width = linear || t->variant == 1 ? t->form.out : 2 * t->form.out;
    lay(t, t->in, t->form.width, width);
    t->reads = linear && t->variant == 1;
    t->call.accumulate = t->reads;
    t->call.w[0] = weight(t, 0, 1, t->form.out, t->form.width);
    if (width != t->form.out)
        t->call.w[1] = weight(t, 1, 1, t->form.out, t->form.width);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < width; j++)
            t->area[0].want[i * width + j] = dot(t->in + i * t->form.width, t->w[j / t->form.out] + (size_t)(j % t->form.out) * t->form.width, t->form.width) +
                                             (t->call.accumulate ? (double)t->area[0].before[i * width + j] : 0);
}

static void expect_silu_mul(struct test *t)
{
    lay(t, t->in, t->form.width, t->form.width / 2);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < t->form.width / 2; j++) {
            double g = (double)t->in[i * t->form.width + j], up = (double)t->in[i * t->form.width + t->form.width / 2 + j];
            t->area[0].want[i * (t->form.width / 2) + j] = g / (1 + exp(-g)) * up;
        }
}

static void expect_add(struct test *t)
{
    lay(t, t->in, t->form.width, t->form.width);
    t->reads = true;
    for (uint32_t i = 0; i < ROWS * t->form.width; i++)
        t->area[0].want[i] = (double)t->area[0].before[i] + (double)t->in[i];
}

/* ROPE values by the angles of a position: neighbours together, or (apart) those that are ROPE / 2 apart. */
static void turn(const struct test *t, const double *x, int32_t pos, bool apart, double *y)
{
    for (uint32_t p = 0; p < ROPE / 2; p++) {
        const uint32_t i = apart ? p : 2 * p, j = apart ? p + ROPE / 2 : 2 * p + 1;
        double c = (double)t->cos[pos * (ROPE / 2) + (int32_t)p], s = (double)t->sin[pos * (ROPE / 2) + (int32_t)p];
        double a = x[i], b = x[j];
        y[i] = a * c - b * s;
        y[j] = b * c + a * s;
    }
}

static void rotate(const struct test *t, const float *x, int32_t pos, double *y)
{
    double from[ROPE];
    for (uint32_t j = 0; j < ROPE; j++)
        from[j] = (double)x[j];
    turn(t, from, pos, false, y);
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
            rotate(t, x + NOPE, PATCH_TEST_POS[i], y + NOPE);
        }
}

static void expect_kv_store(struct test *t)
{
    lay(t, NULL, 0, LATENT);
    t->cache_width = LATENT;
    t->call.w[0] = plain(t, 0, 1, 1, LORA);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *x = t->area[0].before + i * LATENT;
        double *y = t->area[0].want + i * LATENT, sq = dot(x, x, LORA) / LORA;
        for (uint32_t j = 0; j < LORA; j++)
            y[j] = (double)x[j] / sqrt(sq + 1e-5) * (double)t->w[0][j];
        rotate(t, x + LORA, PATCH_TEST_POS[i], y + LORA);
        memcpy(t->want_stored + i * LATENT, y, LATENT * sizeof *y);
    }
}

/* One head of one row: keys and values made from the latents, plainly. */
static void attend(const struct test *t, uint32_t i, uint32_t h, double *y)
{
    const float *q = t->in + (i * HEADS + h) * HEAD, *kb = t->w[0] + h * LORA * NOPE, *vb = t->w[1] + h * V_HEAD * LORA;
    uint32_t n = t->sparse && i == 3 ? sizeof PATCH_TEST_CHOSEN / sizeof PATCH_TEST_CHOSEN[0] : (uint32_t)PATCH_TEST_POS[i] + 1;
    double score[POSITIONS], top = -INFINITY, sum = 0, mix[LORA] = {0};
    for (uint32_t k = 0; k < n; k++) {
        const float *row = t->cached[i][t->sparse && i == 3 ? PATCH_TEST_CHOSEN[k] : (int32_t)k];
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
            mix[l] += score[k] / sum * (double)t->cached[i][t->sparse && i == 3 ? PATCH_TEST_CHOSEN[k] : (int32_t)k][l];
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
    double worth[MAX_EXPERTS];
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
    double z = 0, sum = 0, s[MAX_EXPERTS];
    for (uint32_t e = 0; e < t->form.experts; e++) {
        double x = dot(t->in + i * t->form.width, t->w[0] + e * t->form.width, t->form.width);
        p[e] = r->sigmoid ? 1 / (1 + exp(-x)) : exp(x);
        z += p[e];
    }
    for (uint32_t e = 0; e < t->form.experts; e++) {
        p[e] /= r->sigmoid ? 1 : z;
        s[e] = p[e] + (t->call.w[1].rows != 0 ? (double)t->w[1][e] : 0);
        dense[e] = 0;
    }
    if (r->n_groups_used < r->n_groups)
        keep_groups(r, s);
    for (uint32_t k = 0; k < USED; k++) {
        uint32_t at = 0;
        for (uint32_t e = 1; e < t->form.experts; e++)
            at = s[e] > s[at] ? e : at;
        s[at] = -INFINITY;
        dense[at] = p[at];
        sum += p[at];
    }
    for (uint32_t e = 0; e < t->form.experts; e++)
        dense[e] *= (double)r->scale / (r->normalise ? sum : 1);
}

/* Variants: sigmoid with a bias, groups and normalised weights; softmax without. Area 1 is the choice as the engine keeps it, area 2 what it means: a
 * weight for every expert (filled in by read_choice). */
static void expect_router(struct test *t)
{
    bool full = t->variant == 0;
    lay(t, t->in, t->form.width, t->form.experts);
    t->area[1].n = ROWS * 2 * USED;
    t->area[2].n = ROWS * t->form.experts;
    for (uint32_t i = 0; i < t->area[1].n; i++)
        t->area[1].want[i] = NAN; /* in any order: read_choice() */
    t->call.w[0] = weight(t, 0, 1, t->form.experts, t->form.width);
    if (full)
        t->call.w[1] = plain(t, 1, 1, 1, t->form.experts);
    float *choice = patch_test_out(t, 1);
    t->call.router = (struct rankscope_router){.n_experts = t->form.experts, .n_used = USED, .n_groups = 4, .n_groups_used = full ? 2 : 4, .sigmoid = full,
                                               .normalise = full, .scale = full ? 2.5f : 1.0f, .ids = (int32_t *)(void *)choice, .weights = choice + USED,
                                               .stride = 2 * USED};
    for (uint32_t i = 0; i < ROWS; i++)
        route(t, i, t->area[0].want + i * t->form.experts, t->area[2].want + i * t->form.experts);
}

static const char *read_choice(struct test *t)
{
    const struct rankscope_router *r = &t->call.router;
    for (uint32_t i = 0; i < ROWS; i++) {
        float *dense = patch_test_out(t, 2) + i * t->form.experts;
        memset(dense, 0, t->form.experts * sizeof *dense);
        for (uint32_t k = 0; k < USED; k++) {
            int32_t e = r->ids[i * r->stride + k];
            if (e < 0 || e >= (int32_t)t->form.experts)
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
    lay(t, NULL, 0, t->form.width);
    t->reads = false;
    t->call.in[0] = (struct rankscope_tensor){.data = NULL};
    t->call.w[0] = weight(t, 0, 1, VOCAB, t->form.width);
    t->call.tokens = TOKENS;
    t->call.first_token = FIRST;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < t->form.width; j++) {
            const uint32_t r = (uint32_t)(TOKENS[i] - FIRST); /* those before it wrap around */
            t->area[0].want[i * t->form.width + j] = r < VOCAB ? (double)t->w[0][r * t->form.width + j] : 0;
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
    t->call.w[0] = weight(t, 0, HERE, t->form.out, t->form.width);
}

static void expect_moe_gate_up(struct test *t)
{
    lay(t, t->in, t->form.width, 2 * t->form.out);
    lay_experts(t);
    t->call.w[1] = weight(t, 1, HERE, t->form.out, t->form.width);
    t->call.out[0].rows = PAIRS;
    t->area[0].n = PAIRS * 2 * t->form.out;
    for (uint32_t p = 0; p < PAIRS; p++)
        for (uint32_t j = 0; j < 2 * t->form.out; j++)
            t->area[0].want[p * 2 * t->form.out + j] = dot(t->in + (uint32_t)PAIR_ROW[p] * t->form.width,
                                                           t->w[j / t->form.out] + (expert_of(p) * t->form.out + j % t->form.out) * t->form.width, t->form.width);
}

static void expect_moe_down(struct test *t)
{
    lay(t, t->in, t->form.width, t->form.out);
    lay_experts(t);
    t->call.in[0].rows = PAIRS;
    for (uint32_t p = 0; p < PAIRS; p++)
        for (uint32_t j = 0; j < t->form.out; j++)
            t->area[0].want[(uint32_t)PAIR_ROW[p] * t->form.out + j] +=
                (double)PAIR_WEIGHT[p] * dot(t->in + p * t->form.width, t->w[0] + (expert_of(p) * t->form.out + j) * t->form.width, t->form.width);
}

static void expect_allreduce(struct test *t)
{
    lay(t, NULL, 0, t->form.width);
    t->call.n_ranks = RANKS;
    t->call.ranks = t->ranks;
    for (int r = 0; r < RANKS; r++) {
        t->ranks[r] = patch_test_out(t, r);
        t->area[r].n = ROWS * t->form.width;
        for (uint32_t i = 0; i < ROWS * t->form.width; i++) {
            t->area[r].want[i] = 0;
            for (int k = 0; k < RANKS; k++)
                t->area[r].want[i] += (double)t->area[k].before[i];
        }
    }
}

static void expect_index_q(struct test *t)
{
    lay(t, NULL, 0, INDEX_HEADS * INDEX_DIM);
    t->call.n_heads = INDEX_HEADS;
    t->call.head_dim = INDEX_DIM;
    t->call.interleaved = t->variant == 0;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t h = 0; h < INDEX_HEADS; h++) {
            double x[INDEX_DIM], *y = t->area[0].want + (i * INDEX_HEADS + h) * INDEX_DIM;
            for (uint32_t j = 0; j < INDEX_DIM; j++)
                x[j] = y[j] = (double)t->area[0].before[(i * INDEX_HEADS + h) * INDEX_DIM + j];
            turn(t, x, PATCH_TEST_POS[i], t->variant != 0, y);
        }
}

/* Variant 1: without a bias, and the other rotation. */
static void expect_index_store(struct test *t)
{
    lay(t, NULL, 0, INDEX_DIM);
    t->cache_width = t->call.head_dim = INDEX_DIM;
    t->call.interleaved = t->variant == 0;
    t->call.w[0] = plain(t, 0, 1, 1, INDEX_DIM);
    if (t->variant == 0)
        t->call.w[1] = plain(t, 1, 1, 1, INDEX_DIM);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *x = t->area[0].before + i * INDEX_DIM;
        double mean = 0, var = 0, z[INDEX_DIM], *y = t->area[0].want + i * INDEX_DIM;
        for (uint32_t j = 0; j < INDEX_DIM; j++)
            mean += (double)x[j] / INDEX_DIM;
        for (uint32_t j = 0; j < INDEX_DIM; j++)
            var += ((double)x[j] - mean) * ((double)x[j] - mean) / INDEX_DIM;
        for (uint32_t j = 0; j < INDEX_DIM; j++)
            z[j] = y[j] = ((double)x[j] - mean) / sqrt(var + 1e-5) * (double)t->w[0][j] + (t->variant == 0 ? (double)t->w[1][j] : 0);
        turn(t, z, PATCH_TEST_POS[i], t->variant != 0, y);
        memcpy(t->want_stored + i * INDEX_DIM, y, INDEX_DIM * sizeof *y);
    }
}

static void expect_index_scores(struct test *t)
{
    lay(t, t->in, INDEX_HEADS * INDEX_DIM, POSITIONS);
    float *heads = t->in + ROWS * INDEX_HEADS * INDEX_DIM;
    t->call.in[1] = (struct rankscope_tensor){heads, INDEX_HEADS, ROWS, INDEX_HEADS};
    t->call.n_heads = INDEX_HEADS;
    t->call.head_dim = INDEX_DIM;
    t->call.top_k = TOP_K;
    for (int32_t i = 0; i < ROWS; i++)
        for (int32_t pos = 0; pos < POSITIONS; pos++) {
            double *y = &t->area[0].want[i * POSITIONS + pos];
            *y = PATCH_TEST_POS[i] < TOP_K || pos > PATCH_TEST_POS[i] ? NAN : 0;
            for (int32_t h = 0; h < INDEX_HEADS; h++) {
                const double d = dot(t->in + (i * INDEX_HEADS + h) * INDEX_DIM, t->cached[i][pos], INDEX_DIM);
                *y += (double)t->call.scale * (double)heads[i * INDEX_HEADS + h] * (d > 0 ? d : 0);
            }
        }
}

static void expect_index_topk(struct test *t)
{
    lay(t, t->in, POSITIONS, TOP_K + 1);
    t->call.top_k = TOP_K;
    for (int32_t i = 0; i < ROWS; i++) {
        double *y = t->area[0].want + i * (TOP_K + 1);
        const float *score = t->in + i * POSITIONS;
        uint32_t n = 0;
        for (int32_t j = 0; j <= TOP_K; j++)
            y[j] = NAN;
        for (int32_t j = 0; j <= PATCH_TEST_POS[i]; j++) {
            uint32_t better = 0;
            for (int32_t k = 0; k <= PATCH_TEST_POS[i]; k++)
                better += score[k] > score[j] || (k < j && !(score[k] < score[j]));
            if (PATCH_TEST_POS[i] >= TOP_K && better < TOP_K)
                y[++n] = j;
        }
        y[0] = PATCH_TEST_POS[i] < TOP_K ? -1 : TOP_K;
    }
}

/* Counts and positions as numbers. */
static const char *read_selection(struct test *t)
{
    float *y = patch_test_out(t, 0);
    for (uint32_t i = 0; i < ROWS * (TOP_K + 1); i++) {
        int32_t n;
        memcpy(&n, y + i, sizeof n);
        y[i] = patch_test_is_poison(y[i]) ? y[i] : (float)n;
    }
    return NULL;
}

/* Logits of other ranks stand on both sides of this one's. */
static void expect_gather(struct test *t)
{
    const uint32_t own = t->form.out, width = own + 2 * BESIDE;
    lay(t, t->in, own, width);
    t->reads = true;
    t->call.out[0].data += BESIDE;
    t->call.out[0].width = own;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < width; j++) {
            float *x = &t->area[0].before[i * width + j];
            const bool mine = j >= BESIDE && j < BESIDE + own;
            *x = mine ? patch_test_poison() : *x;
            t->area[0].want[i * width + j] = mine ? (double)t->in[i * own + j - BESIDE] : (double)*x;
        }
}

const struct patch_test_kind PATCH_TEST_KINDS[] = {
    {"rmsnorm", 1, expect_rmsnorm, NULL}, {"linear", 2, expect_linear, NULL}, {"qkv_a", 2, expect_linear, NULL}, {"gate_up", 1, expect_linear, NULL},
    {"silu_mul", 1, expect_silu_mul, NULL}, {"moe_silu_mul", 1, expect_silu_mul, NULL}, {"add", 1, expect_add, NULL}, {"rope", 1, expect_rope, NULL},
    {"kv_store", 1, expect_kv_store, NULL}, {"mla", 2, expect_mla, NULL}, {"index_q", 2, expect_index_q, NULL},
    {"index_store", 2, expect_index_store, NULL}, {"index_scores", 1, expect_index_scores, NULL}, {"index_topk", 1, expect_index_topk, read_selection},
    {"router", 2, expect_router, read_choice}, {"allreduce", 1, expect_allreduce, NULL}, {"embed", 1, expect_embed, NULL},
    {"moe_gate_up", 1, expect_moe_gate_up, NULL}, {"moe_down", 1, expect_moe_down, NULL}, {"gather", 1, expect_gather, NULL}};
const int PATCH_TEST_N_KINDS = sizeof PATCH_TEST_KINDS / sizeof PATCH_TEST_KINDS[0];
