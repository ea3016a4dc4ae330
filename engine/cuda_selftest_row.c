/* Self-tests of what is special for one row: kernels that begin with what would be a launch of its own give the same bits as the launches apart. */
#include "engine/cuda_check.h"

enum { WIDTH = 512, ROWS = 72, LOCAL = 6, USED = 4, FF = 512, OUT = 132 };

static double differ(const void *a, const void *b, size_t bytes)
{
    double n = 0;
    for (size_t i = 0; i < bytes / 4; i++)
        n += memcmp((const uint8_t *)a + 4 * i, (const uint8_t *)b + 4 * i, 4) != 0;
    return n;
}

/* A residual stream and its norm: by a launch apart into .h and .q8, and as a product takes it. */
struct stream {
    float *x;
    struct kcu_join apart;
    struct kcu_norm pre;
};

static struct stream make_stream(struct check *t)
{
    struct stream s = {.x = randoms(t, WIDTH)};
    float *w = randoms(t, WIDTH), *x = device(t, s.x, WIDTH * 4), *dw = device(t, w, WIDTH * 4);
    const size_t q8 = krn_q8_row_bytes(WIDTH);
    s.apart = (struct kcu_join){.n_local = 1,
                                .part = {x},
                                .h = {device(t, NULL, WIDTH * 4)},
                                .q8 = {device(t, NULL, q8)},
                                .part_pitch = WIDTH,
                                .h_pitch = WIDTH,
                                .q8_pitch = q8,
                                .w = dw,
                                .n = 1,
                                .width = WIDTH,
                                .eps = 1e-5f,
                                .n_ranks = 1,
                                .n_gpus = 1};
    s.pre = (struct kcu_norm){.x = x, .w = dw, .h = device(t, NULL, WIDTH * 4), .q8 = device(t, NULL, q8), .n = WIDTH, .eps = 1e-5f};
    if (t->rc == RS_OK)
        good(t, kcu_join(&t->l, &s.apart), "norm");
    return s;
}

/* The norm before a product, and the product added to the residual stream. */
static void check_product(struct check *t, uint32_t type)
{
    struct made m = matrix(t, type, ROWS, WIDTH, 1);
    struct stream s = make_stream(t);
    float *before = randoms(t, ROWS), *sum = device(t, before, ROWS * 4), *y0 = device(t, NULL, ROWS * 4), *y1 = device(t, NULL, ROWS * 4);
    struct kcu_linear apart = {.n_mats = 1,
                               .m = {m.m},
                               .in = {.x = s.apart.h[0], .pitch = WIDTH, .q8 = s.apart.q8[0]},
                               .n = 1,
                               .y = y0,
                               .y_pitch = ROWS},
                      one = apart;
    one.in = (struct kcu_rows_in){.x = NULL};
    one.pre = s.pre;
    one.y = y1;
    one.x = sum;
    one.x_pitch = ROWS;
    if (t->rc != RS_OK || !good(t, kcu_linear(&t->l, &apart), "product"))
        return;
    if (!kcu_norm_linear_takes(&one) || !good(t, kcu_linear(&t->l, &one), "product with its norm"))
        return;
    const float *a = fetch(t, y0, ROWS * 4), *b = fetch(t, y1, ROWS * 4), *x = fetch(t, sum, ROWS * 4);
    double wrong = differ(a, b, ROWS * 4);
    for (uint32_t i = 0; i < ROWS; i++)
        wrong += x[i] != before[i] + a[i];
    wrong += differ(fetch(t, s.apart.h[0], WIDTH * 4), fetch(t, s.pre.h, WIDTH * 4), WIDTH * 4);
    wrong += differ(fetch(t, s.apart.q8[0], WIDTH), fetch(t, s.pre.q8, WIDTH), WIDTH);
    result(t, wrong, 0, "norm, product, residual in one, %s", krn_type_info(type)->name);
    release(t);
}

struct outcome {
    const float *p, *choice, *act, *y;
};

/* Router, gated projections, down projections of one row; apart: one launch each and the choice by the router. */
static struct outcome run_experts(struct check *t, struct kcu_route r, struct kcu_gated g, struct kcu_gated sh, struct kcu_down d,
                                  bool apart)
{
    float *choice = device(t, NULL, 2 * USED * 4);
    const size_t q8 = krn_q8_row_bytes(FF);
    struct outcome o = {NULL, NULL, NULL, NULL};
    r.p = device(t, NULL, r.n_experts * 4);
    r.ids = (int32_t *)(void *)choice;
    r.weights = choice + USED;
    g.ids = d.ids = r.ids;
    d.weights = r.weights;
    g.gu = device(t, NULL, USED * 2 * FF * 4);
    g.act = device(t, NULL, USED * FF * 4);
    g.q8 = device(t, NULL, USED * q8);
    sh.gu = device(t, NULL, 2 * FF * 4);
    sh.act = device(t, NULL, FF * 4);
    sh.q8 = device(t, NULL, q8);
    d.act = (struct kcu_rows_in){.x = g.act, .pitch = FF, .q8 = g.q8, .q8_pitch = q8};
    d.shared_act = (struct kcu_rows_in){.x = sh.act, .pitch = FF, .q8 = sh.q8, .q8_pitch = q8};
    d.y = device(t, NULL, OUT * 4);
    if (t->rc == RS_OK)
        good(t, cudaMemsetAsync(g.act, 0, USED * FF * 4, t->l.stream), "clear"); /* other ranks' experts stay as they are */
    d.choose = apart ? NULL : &r;
    d.n_experts = apart ? 0 : r.n_experts; /* apart: as if all were here, whatever is chosen */
    if (t->rc == RS_OK && good(t, apart ? kcu_route(&t->l, &r) : kcu_logits(&t->l, &r), "router") &&
        good(t, kcu_gated(&t->l, &g, &sh, d.choose), "gated") && good(t, kcu_down(&t->l, &d), "down")) {
        o.p = fetch(t, r.p, r.n_experts * 4);
        o.choice = fetch(t, choice, 2 * USED * 4);
        o.act = fetch(t, g.act, USED * FF * 4);
        o.y = fetch(t, d.y, OUT * 4);
    }
    return o;
}

/* experts: of all ranks, LOCAL of which are here. */
static void check_choice(struct check *t, uint32_t experts, bool sigmoid, bool norm)
{
    struct made gate = matrix(t, KRN_F32, experts, WIDTH, 1), eg = matrix(t, KRN_Q4_K, FF, WIDTH, LOCAL),
                eu = matrix(t, KRN_Q4_K, FF, WIDTH, LOCAL), sg = matrix(t, KRN_Q8_0, FF, WIDTH, 1), su = matrix(t, KRN_Q8_0, FF, WIDTH, 1),
                ed = matrix(t, KRN_Q5_K, OUT, FF, LOCAL), sd = matrix(t, KRN_Q8_0, OUT, FF, 1);
    struct stream s = make_stream(t);
    float *bias = randoms(t, experts);
    const uint32_t zero = 0, first = 0;
    for (uint32_t e = first; e < first + 2; e++) /* some of the chosen are here */
        bias[e] += 4;
    struct kcu_route r = {.gate = gate.m,
                          .bias = device(t, bias, experts * 4),
                          .x = s.apart.h[0],
                          .x_pitch = WIDTH,
                          .n = 1,
                          .n_experts = experts,
                          .n_used = USED,
                          .n_groups = 1,
                          .n_groups_used = 1,
                          .sigmoid = sigmoid,
                          .norm = true,
                          .scale = 2.5f,
                          .p_pitch = experts,
                          .pitch = 2 * USED,
                          .arrived = device(t, &zero, 4),
                          .logits = device(t, NULL, experts * 4)};
    const struct kcu_rows_in in = {.x = s.apart.h[0], .pitch = WIDTH, .q8 = s.apart.q8[0], .q8_pitch = krn_q8_row_bytes(WIDTH)};
    const struct kcu_gated g = {.gate = eg.m,
                                .up = eu.m,
                                .in = in,
                                .n = 1,
                                .n_used = USED,
                                .ids_pitch = 2 * USED,
                                .expert0 = first,
                                .gu_pitch = 2 * FF,
                                .act_pitch = FF,
                                .q8_pitch = krn_q8_row_bytes(FF)},
                           sh = {.gate = sg.m,
                                 .up = su.m,
                                 .in = in,
                                 .n = 1,
                                 .n_used = 1,
                                 .gu_pitch = 2 * FF,
                                 .act_pitch = FF,
                                 .q8_pitch = krn_q8_row_bytes(FF)};
    const struct kcu_down d = {
        .down = ed.m, .shared = sd.m, .n = 1, .n_used = USED, .expert0 = first, .ids_pitch = 2 * USED, .y_pitch = OUT, .width = OUT};
    const struct outcome a = run_experts(t, r, g, sh, d, true);
    if (norm)
        r.pre = s.pre;
    if (a.y == NULL || !kcu_logits_takes(&r))
        return;
    const struct outcome b = run_experts(t, r, g, sh, d, false);
    if (b.y == NULL)
        return;
    result(t, differ(a.p, b.p, experts * 4) + differ(a.choice, b.choice, 2 * USED * 4), 0, "choice on the way, %u experts, %s%s", experts,
           sigmoid ? "sigmoid" : "softmax", norm ? ", norm" : "");
    result(t, differ(a.act, b.act, USED * FF * 4) + differ(a.y, b.y, OUT * 4), 0, "its experts, %u of %u here", LOCAL, experts);
    release(t);
}

void cuda_selftest_row(struct check *t)
{
    check_product(t, KRN_Q8_0);
    check_product(t, KRN_Q5_K);
    check_choice(t, LOCAL, true, true);
    if (t->small)
        return;
    check_choice(t, LOCAL, false, false);
    check_choice(t, 64, true, true);
    check_choice(t, 256, true, false);
}
