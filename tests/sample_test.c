/* Sampling: which tokens can be drawn, and how often. */
#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>

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

int main(void)
{
    tap_plan(7);
    test_top_k();
    test_equal_logits();
    test_frequencies();
    test_cuts();
    return tap_done();
}
