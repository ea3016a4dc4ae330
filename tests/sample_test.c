/* Sampling: which tokens can be drawn, and how often. */
#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"

enum { VOCAB = 2048, DRAWS = 20000 };

static float s_logits[VOCAB];
static struct sample_item s_items[VOCAB];
static float s_copy[VOCAB];
static struct sample_scratch s_scratch = {.logits = s_copy, .items = s_items};

static void fill(unsigned seed, float spread)
{
    srand(seed);
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = spread * (float)rand() / (float)RAND_MAX;
}

static int rank_of(int32_t id)
{
    int rank = 0;
    for (int i = 0; i < VOCAB; i++)
        rank += s_logits[i] > s_logits[id] || (s_logits[i] == s_logits[id] && i < id);
    return rank;
}

static int32_t draw(const struct sample_params *p, struct sample_rng *r)
{
    struct sample_info info;
    return sample_token(p, r, s_logits, VOCAB, NULL, 0, &s_scratch, &info);
}

/* Every size and shape of distribution ends, and top_k is obeyed. */
static void test_top_k(void)
{
    struct sample_params p;
    struct sample_rng r;
    int worst = 0;
    sample_defaults(&p);
    sample_seed(&r, 1);
    p.temp = 1;
    for (unsigned seed = 0; seed < 300; seed++) {
        fill(seed, seed % 3 == 0 ? 0.5f : seed % 3 == 1 ? 20 : 200);
        p.top_k = seed % 2 == 0 ? 0 : 1 + seed % 50;
        int32_t id = draw(&p, &r);
        if (p.top_k != 0 && rank_of(id) >= (int)p.top_k)
            worst++;
    }
    tap_eq_int(worst, 0, "whatever the distribution, a token is drawn, and of the top_k first");
}

static void test_equal_logits(void)
{
    struct sample_params p;
    struct sample_rng r;
    sample_defaults(&p);
    sample_seed(&r, 1);
    p.temp = 1;
    p.top_k = 3;
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = 1;
    int bad = 0;
    for (int i = 0; i < 100; i++)
        bad += draw(&p, &r) >= 3;
    tap_eq_int(bad, 0, "among equals the lowest ids are the first");
}

static void test_frequencies(void)
{
    struct sample_params p;
    struct sample_rng r;
    int count[3] = {0};
    sample_defaults(&p);
    sample_seed(&r, 42);
    p.temp = 2;
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = -INFINITY;
    const double share[3] = {0.6, 0.3, 0.1};
    for (int i = 0; i < 3; i++)
        s_logits[500 * i] = (float)(2 * log(share[i])); /* the temperature takes the 2 away */
    for (int i = 0; i < DRAWS; i++)
        count[draw(&p, &r) / 500]++;
    for (int i = 0; i < 3; i++)
        tap_near(count[i] / (double)DRAWS, share[i], 4 * sqrt(share[i] * (1 - share[i]) / DRAWS), "a token is drawn as often as its probability says");
}

static void test_cuts(void)
{
    struct sample_params p;
    struct sample_rng r;
    sample_defaults(&p);
    sample_seed(&r, 3);
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = -INFINITY;
    const double share[4] = {0.5, 0.3, 0.15, 0.05};
    for (int i = 0; i < 4; i++)
        s_logits[i] = (float)log(share[i]);
    p.temp = 1;
    p.top_p = 0.75f;
    int most = 0;
    for (int i = 0; i < 2000; i++) {
        int id = draw(&p, &r);
        most = id > most ? id : most;
    }
    tap_eq_int(most, 1, "top_p keeps the tokens that reach it together");
    p.top_p = 1;
    p.min_p = 0.2f;
    most = 0;
    for (int i = 0; i < 2000; i++) {
        int id = draw(&p, &r);
        most = id > most ? id : most;
    }
    tap_eq_int(most, 2, "min_p keeps those that have its share of the best one");
}

static int32_t draw_after(const struct sample_params *p, struct sample_rng *r, const int32_t *history, uint32_t n, struct sample_info *info)
{
    return sample_token(p, r, s_logits, VOCAB, history, n, &s_scratch, info);
}

/* Bias comes first, then penalties, then the greedy choice; each moves it. */
static void test_order(void)
{
    const int32_t history[] = {1, 2, 1, 1};
    struct sample_params p;
    struct sample_rng r;
    struct sample_info info;
    sample_defaults(&p);
    sample_seed(&r, 5);
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = -10;
    s_logits[1] = 4;
    s_logits[2] = 3;
    s_logits[3] = 2;
    s_logits[9] = -0.5f;
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 1, "greedy takes the largest");
    p.repeat_penalty = 1.9f; /* 4 becomes 2.1, 3 becomes 1.58 */
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 1, "a repeat penalty divides");
    p.repeat_penalty = 3; /* 1.33 and 1 */
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 3, "until another is larger");
    p.penalty_last_n = 1; /* sees only the last 1 */
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 2, "penalties look back so far and no further");
    p.repeat_penalty = 1;
    p.penalty_last_n = 64;
    p.frequency_penalty = 0.5f; /* three times off 1, once off 2: 2.5 each; ties to the lower id */
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 1, "a frequency penalty counts, and among equals the lower id wins");
    p.frequency_penalty = 0;
    p.presence_penalty = 2.5f; /* 1.5, 0.5 */
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 3, "a presence penalty does not count");
    p.presence_penalty = 0;
    p.repeat_penalty = 2;
    p.n_bias = 1;
    p.bias[0].token = 9;
    p.bias[0].value = 2.6f; /* 2.1: above 4 / 2 and 2 */
    tap_eq_int(draw_after(&p, &r, history, 4, &info), 9, "a bias adds to what penalties then divide");
    const int32_t seen[] = {9};
    p.bias[0].value = 5; /* 4.5, halved to 2.25: below 4 */
    tap_eq_int(draw_after(&p, &r, seen, 1, &info), 1, "the bias comes before the penalty");
    double z = 0;
    for (int i = 0; i < VOCAB; i++)
        z += exp((double)s_logits[i] - 4);
    tap_near((double)info.logprob, -log(z), 1e-5, "the log-probability is that of the plain logits");
}

static void test_typical(void)
{
    struct sample_params p;
    struct sample_rng r;
    int seen[5] = {0};
    const double share[5] = {0.8, 0.05, 0.05, 0.05, 0.05}; /* entropy 0.778: surprise 0.223 and 2.996; the first is the closest, then by id */
    sample_defaults(&p);
    sample_seed(&r, 8);
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = i < 5 ? (float)log(share[i]) : -INFINITY;
    p.temp = 1;
    p.typical_p = 0.83f;
    for (int i = 0; i < 3000; i++)
        seen[draw(&p, &r)]++;
    tap_ok(seen[0] > 0 && seen[1] > 0 && seen[2] == 0 && seen[3] == 0 && seen[4] == 0, "typical_p keeps the tokens whose surprise is closest to the entropy");
}

/* Chi-square of 64 tokens against the whole distribution, 63 degrees of freedom: 103.4 is passed once in a thousand times. */
static void test_chi_square(void)
{
    enum { N = 64, TIMES = 50000 };
    struct sample_params p;
    struct sample_rng r;
    double weight[N], z = 0, chi = 0;
    int count[N] = {0};
    sample_defaults(&p);
    sample_seed(&r, 77);
    for (int i = 0; i < VOCAB; i++)
        s_logits[i] = -INFINITY;
    for (int i = 0; i < N; i++) {
        s_logits[i * 31] = (float)(i % 7) * 0.4f;
        weight[i] = exp((double)s_logits[i * 31] / 1.3);
        z += weight[i];
    }
    p.temp = 1.3f;
    for (int i = 0; i < TIMES; i++)
        count[draw(&p, &r) / 31]++;
    for (int i = 0; i < N; i++) {
        double want = TIMES * weight[i] / z;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    tap_ok(chi < 103.4 && chi > 30, "64 tokens are drawn by their weights: chi-square %.1f with 63 degrees of freedom", chi);
}

static void test_seeds(void)
{
    struct sample_params p;
    struct sample_rng a, b, c;
    int same = 0, other = 0;
    sample_defaults(&p);
    p.temp = 1;
    fill(4, 3);
    sample_seed(&a, 10);
    sample_seed(&b, 10);
    sample_seed(&c, 11);
    for (int i = 0; i < 100; i++) {
        int32_t x = draw(&p, &a);
        same += x == draw(&p, &b);
        other += x == draw(&p, &c);
    }
    tap_ok(same == 100 && other < 20, "a seed is a sequence, another seed another");
}

static void test_top(void)
{
    struct sample_item top[5];
    fill(6, 10);
    s_logits[100] = s_logits[50] = 11;
    s_logits[7] = NAN;
    int wrong = 0;
    tap_eq_int(sample_top(s_logits, VOCAB, 5, top), 5, "the five likeliest");
    for (int i = 0; i < 5; i++)
        wrong += i < 2 ? top[i].id != (i == 0 ? 50 : 100) : top[i].logit > top[i - 1].logit;
    tap_eq_int(wrong, 0, "in order, ties to the lower id");
    s_logits[7] = 0;
}

/* What a device would say of s_logits: its n largest values and those equal to the last of them, the likeliest last; z off by as much as is allowed. */
static struct sample_row row_of(int n, float temp, double off, struct sample_item *list)
{
    struct sample_row row = {.floor = -INFINITY, .likeliest = -1, .list = list};
    double z = 0;
    krn_cpu_vec(KRN_ISA_PORTABLE)->describe(s_logits, VOCAB, &row.figures);
    for (int i = 0; i < VOCAB; i++) {
        if (n < VOCAB && rank_of(i) == n - 1)
            row.floor = s_logits[i];
        z += exp(((double)s_logits[i] - (double)row.figures.top) / (double)temp);
    }
    for (int i = VOCAB; i-- > 0;) {
        if (s_logits[i] >= row.floor)
            list[row.n++] = (struct sample_item){.logit = s_logits[i], .id = i};
        if (s_logits[i] == row.figures.top)
            row.likeliest = i;
    }
    row.z_temp = (float)(z * off);
    return row;
}

/* One row in many settings: how many draws the list settled, and how many of those otherwise than the row does. */
static int settle(int n, unsigned seed, double off, int *wrong, int *moved)
{
    static struct sample_item list[VOCAB];
    static const float temps[] = {0, 0.3f, 1, 1.7f};
    int settled = 0;
    for (unsigned i = 0; i < 4 * 24; i++) {
        struct sample_params p;
        struct sample_rng a, b, start;
        struct sample_info ia, ib;
        int32_t id;
        float logit;
        sample_defaults(&p);
        p.temp = temps[i % 4];
        p.top_k = i / 4 % 3 == 1 ? 1 + seed % 40 : 0;
        p.top_p = i / 12 % 4 == 1 ? 0.9f : i / 12 % 4 == 2 ? 0.4f : 1;
        p.min_p = i / 48 == 1 ? 0.1f : 0;
        struct sample_row row = row_of(n, p.temp > 0 ? p.temp : 1, off, list);
        sample_seed(&start, seed * 1000 + i);
        a = b = start;
        int32_t want = draw_after(&p, &a, NULL, 0, &ia);
        if (!sample_listed(&p, &b, &row, &s_scratch, &id, &logit, &ib)) {
            *moved += memcmp(&b, &start, sizeof b) != 0;
            continue;
        }
        settled++;
        *wrong += id != want || logit != s_logits[want] || memcmp(&a, &b, sizeof a) != 0 || memcmp(&ia, &ib, sizeof ia) != 0;
    }
    return settled;
}

static void test_listed(void)
{
    int settled = 0, wrong = 0, moved = 0, rows = 0, whole = 0;
    for (unsigned seed = 0; seed < 24; seed++) {
        fill(seed, seed % 3 == 0 ? 2 : seed % 3 == 1 ? 12 : 60);
        for (int i = 0; i < VOCAB && seed % 4 == 3; i++)
            s_logits[i] = floorf(s_logits[i]); /* many equals */
        settled += settle(50, seed, seed % 2 == 0 ? 1 + 1e-5 : 1 - 1e-5, &wrong, &moved);
        whole += settle(VOCAB, seed, 1, &wrong, &moved);
        rows += 4 * 24;
    }
    tap_eq_int(wrong, 0, "a list never gives another token than the row, with the same numbers about it");
    tap_eq_int(moved, 0, "where it cannot tell, no random number is used up");
    tap_eq_int(whole, rows, "a list of all tokens always can");
    tap_ok(settled > rows / 2 && settled < rows, "50 of 2,048 settled %d of %d draws", settled, rows);
    fill(3, 12);
    wrong = 0;
    for (unsigned seed = 0; seed < 20; seed++)
        settle(50, seed, 1.2, &wrong, &moved);
    tap_ok(wrong > 0, "and a wrong sum over all tokens would be seen here");
}

/* What a device says of its part of s_logits: the n largest of that and what equals the last of them. */
static struct sample_row part_of(int from, int to, int n, float temp, struct sample_item *list)
{
    struct sample_row row = {.floor = -INFINITY, .likeliest = 0, .list = list};
    double z = 0;
    krn_cpu_vec(KRN_ISA_PORTABLE)->describe(s_logits + from, (size_t)(to - from), &row.figures);
    for (int i = from; i < to; i++) {
        int above = 0;
        for (int k = from; k < to; k++)
            above += s_logits[k] > s_logits[i] || (s_logits[k] == s_logits[i] && k < i);
        if (above == n - 1 && n < to - from)
            row.floor = s_logits[i];
        if (isfinite(s_logits[i]))
            z += exp(((double)s_logits[i] - (double)row.figures.top) / (double)temp);
    }
    for (int i = to; i-- > from;) {
        if (s_logits[i] >= row.floor && isfinite(s_logits[i]))
            list[row.n++] = (struct sample_item){.logit = s_logits[i], .id = i};
        if (row.figures.tops != 0 && s_logits[i] == row.figures.top)
            row.likeliest = i;
    }
    row.z_temp = row.figures.tops != 0 ? (float)z : 0;
    return row;
}

static bool near(float a, float b)
{
    return a == b || fabsf(a - b) <= 1e-5f * fabsf(b);
}

/* Parts of a row, put together, say what the row says. */
static void test_join(void)
{
    static struct sample_item list[3][VOCAB];
    enum { USED = 400, FEW = 20 };
    static const int cut[][2] = {{1, 2}, {130, 131}, {133, 266}, {399, 399}};
    int wrong = 0, lists = 0;
    for (unsigned seed = 0; seed < 12; seed++) {
        fill(seed, seed % 3 == 0 ? 2 : seed % 3 == 1 ? 12 : 60);
        for (int i = 0; i < USED; i++)
            s_logits[i] = seed % 4 == 3 ? floorf(s_logits[i]) : seed == 5 && i >= 133 && i < 266 ? -INFINITY : s_logits[i];
        for (size_t c = 0; c < sizeof cut / sizeof cut[0]; c++) {
            const float temp = seed % 2 == 0 ? 0.7f : 1.3f;
            struct sample_row a = part_of(0, cut[c][0], FEW, temp, list[0]), b = part_of(cut[c][0], cut[c][1], FEW, temp, list[1]);
            struct sample_row end = part_of(cut[c][1], USED, FEW, temp, list[2]), want = part_of(0, USED, USED, temp, s_items);
            sample_row_join(&a, &b, temp);
            sample_row_join(&a, &end, temp);
            const struct krn_logits *f = &a.figures, *g = &want.figures;
            wrong += f->top != g->top || f->second != g->second || f->low != g->low || f->tops != g->tops || f->nonfinite != g->nonfinite ||
                     a.likeliest != want.likeliest || !near(f->z, g->z) || !near(f->w, g->w) || !near(f->w2, g->w2) || !near(a.z_temp, want.z_temp);
            uint32_t n = 0, found = 0;
            for (uint32_t i = 0; i < want.n; i++) {
                n += s_items[i].logit >= a.floor;
                for (uint32_t k = 0; k < a.n; k++)
                    found += a.list[k].id == s_items[i].id && a.list[k].logit == s_items[i].logit;
            }
            lists += found != n || a.n != n || n < 1;
        }
    }
    tap_eq_int(wrong, 0, "parts of a row have the figures of the row");
    tap_eq_int(lists, 0, "and list what is not below their floor, all of it, once");
}

static void test_lists(void)
{
    struct sample_params p;
    uint32_t n;
    sample_defaults(&p);
    tap_ok(sample_lists(&p, &n) && n == 0, "the largest needs no list");
    p.temp = 1;
    p.top_k = 40;
    tap_ok(sample_lists(&p, &n) && n > 40, "top_k needs a longer one");
    p.top_k = 5000;
    tap_ok(!sample_lists(&p, &n), "a very large one the row");
    p.top_k = 0;
    p.frequency_penalty = 1;
    tap_ok(!sample_lists(&p, &n), "as do penalties");
}

int main(void)
{
    tap_plan(32);
    test_listed();
    test_join();
    test_lists();
    test_order();
    test_typical();
    test_chi_square();
    test_seeds();
    test_top();
    test_top_k();
    test_equal_logits();
    test_frequencies();
    test_cuts();
    return tap_done();
}
