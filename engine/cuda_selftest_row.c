/* Self-tests of what is special for one row: kernels that begin with what would be a launch of its own give the same bits as the launches apart. */
#include "engine/cuda_check.h"
#include "kernels/cuda/head.h"

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

/* Euclidean distance of what two kernels made of the same, relative. */
static double apart(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    const double rel = sqrt(d / s);
    return isnan(rel) ? INFINITY : rel; /* fmax() would drop a NaN */
}

/* A weight whose blocks would be a few too many to be resident together takes other shapes for a lone row; one row as the first of two does not. */
static void check_whole(struct check *t, uint32_t rows, uint32_t k)
{
    struct kcu_mat m = {.type = KRN_Q8_0, .rows = rows, .k = k, .n_mats = 1, .pitch = kcu_pitch(KRN_Q8_0, k)};
    const size_t q8 = krn_q8_row_bytes(k);
    uint8_t *w = device(t, NULL, rows * m.pitch), *xq = device(t, NULL, 2 * q8);
    struct kcu_rows_in in = {.x = device(t, randoms(t, 2 * k), 2 * k * 4), .pitch = k, .q8 = xq, .q8_pitch = q8};
    float *y1 = device(t, NULL, rows * 4), *y2 = device(t, NULL, 2 * rows * 4);
    m.w = w;
    struct kcu_linear a = {.n_mats = 1, .m = {m}, .in = in, .n = 1, .y = y1, .y_pitch = rows};
    if (t->rc != RS_OK || !good(t, kcu_random(&t->l, m.type, k, rows, 0.02f, 0, 7, w), "weights") ||
        !good(t, kcu_quantise(&t->l, &in, 2, k, xq), "int8") || !good(t, kcu_linear(&t->l, &a), "product"))
        return;
    a.n = 2;
    a.y = y2;
    t->l.fixed = true; /* else two rows are few rows, which tensor cores take */
    const bool ran = good(t, kcu_linear(&t->l, &a), "product of two rows");
    t->l.fixed = false;
    if (ran)
        result(t, apart(fetch(t, y1, rows * 4), fetch(t, y2, rows * 4), rows), 1e-5, "one row of %u x %u, all weights at once", rows, k);
    release(t);
}

/* A head has the bits of the product, and leaves them in host memory too. */
static void check_head(struct check *t, uint32_t rows, uint32_t k)
{
    struct kcu_mat m = {.type = KRN_Q8_0, .rows = rows, .k = k, .n_mats = 1, .pitch = kcu_pitch(KRN_Q8_0, k)};
    const size_t bytes = rows * sizeof(float), q8 = krn_q8_row_bytes(k);
    uint8_t *w = device(t, NULL, rows * m.pitch), *xq = device(t, NULL, q8);
    struct kcu_rows_in in = {.x = device(t, randoms(t, k), k * 4), .pitch = k, .q8 = xq, .q8_pitch = q8};
    float *y[2] = {device(t, NULL, bytes), device(t, NULL, bytes)}, *beside = NULL;
    m.w = w;
    struct kcu_linear a = {.n_mats = 1, .m = {m}, .in = in, .n = 1, .y = y[0], .y_pitch = rows};
    if (!good(t, cudaHostAlloc((void **)&beside, bytes + 4, cudaHostAllocMapped), "pinned memory"))
        return;
    memset(beside, 0xff, bytes + 4);
    bool ran = good(t, kcu_random(&t->l, m.type, k, rows, 0.02f, 0, 7, w), "weights") && good(t, kcu_quantise(&t->l, &in, 1, k, xq), "int8") &&
               good(t, kcu_linear(&t->l, &a), "product");
    a.y = y[1];
    ran = ran && good(t, kcu_head(&t->l, &a, beside), "head");
    if (ran) {
        const float *want = fetch(t, y[0], bytes), *got = fetch(t, y[1], bytes);
        result(t, differ(want, got, bytes) + differ(want, beside, bytes) + !isnan(beside[rows]), 0, "head of %u x %u", rows, k);
    }
    (void)cudaFreeHost(beside);
    release(t);
}

/* Room for a router's words, full of another op's, which nobody may take. */
static struct kcu_words other_words(struct check *t, uint32_t experts)
{
    const size_t n = experts + 2 * USED;
    const uint32_t step = 4096, tag = 7;
    uint64_t *w = host(t, n * sizeof *w);
    for (size_t i = 0; i < n; i++)
        w[i] = (uint64_t)(step + tag - 1) << 32 | i % 2;
    return (struct kcu_words){device(t, w, n * sizeof *w), device(t, &step, sizeof step), tag};
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
                          .words = other_words(t, experts)};
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

/* Experts whose slices are small: the kernels for them differ from the others in the order of sums alone. */
static void check_slices(struct check *t, uint32_t up_type, uint32_t down_type, uint32_t width, uint32_t ff)
{
    enum { EXPERTS = 5 };
    const size_t q8 = krn_q8_row_bytes(ff), in8 = krn_q8_row_bytes(width);
    const uint32_t zero = 0;
    struct made gate = matrix(t, KRN_F32, EXPERTS, width, 1), eg = matrix(t, up_type, ff, width, EXPERTS),
                eu = matrix(t, up_type, ff, width, EXPERTS), sg = matrix(t, KRN_Q8_0, ff, width, 1), su = matrix(t, KRN_Q8_0, ff, width, 1),
                ed = matrix(t, down_type, OUT, ff, EXPERTS), sd = matrix(t, KRN_Q8_0, OUT, ff, 1);
    float *x = device(t, randoms(t, width), width * 4), *choice = device(t, NULL, 2 * USED * 4), *res = randoms(t, OUT);
    struct kcu_rows_in in = {.x = x, .pitch = width, .q8_pitch = in8};
    uint8_t *xq = device(t, NULL, in8), *eq = device(t, NULL, USED * q8), *sq = device(t, NULL, q8);
    struct kcu_route r = {.gate = gate.m, .x = x, .x_pitch = width, .n = 1, .n_experts = EXPERTS, .n_used = USED, .n_groups = 1, .n_groups_used = 1,
                          .sigmoid = true, .norm = true, .scale = 2.5f, .p = device(t, NULL, EXPERTS * 4), .p_pitch = EXPERTS,
                          .ids = (int32_t *)(void *)choice, .weights = choice + USED, .pitch = 2 * USED, .arrived = device(t, &zero, 4),
                          .words = other_words(t, EXPERTS)};
    struct kcu_gated g[2], sh[2];
    struct kcu_down d[2];
    if (t->rc != RS_OK || !good(t, kcu_quantise(&t->l, &in, 1, width, xq), "int8"))
        return;
    in.q8 = xq;
    for (int i = 0; i < 2; i++) { /* 0: with an int8 form between the two; 1: without */
        g[i] = (struct kcu_gated){.gate = eg.m, .up = eu.m, .in = in, .n = 1, .n_used = USED, .ids = r.ids, .ids_pitch = 2 * USED, .gu_pitch = 2 * ff,
                                  .gu = device(t, NULL, USED * 2 * ff * 4), .act = device(t, NULL, USED * ff * 4), .act_pitch = ff,
                                  .q8 = i == 0 ? eq : NULL, .q8_pitch = q8};
        sh[i] = (struct kcu_gated){.gate = sg.m, .up = su.m, .in = in, .n = 1, .n_used = 1, .gu = device(t, NULL, 2 * ff * 4), .gu_pitch = 2 * ff,
                                   .act = device(t, NULL, ff * 4), .act_pitch = ff, .q8 = i == 0 ? sq : NULL, .q8_pitch = q8};
        d[i] = (struct kcu_down){.down = ed.m, .shared = sd.m, .n = 1, .n_used = USED, .n_experts = EXPERTS, .ids = r.ids, .weights = r.weights,
                                 .ids_pitch = 2 * USED, .y = device(t, NULL, OUT * 4), .y_pitch = OUT, .width = OUT, .x = device(t, res, OUT * 4),
                                 .x_pitch = OUT, .act = {.x = g[i].act, .pitch = ff, .q8 = g[i].q8, .q8_pitch = q8},
                                 .shared_act = {.x = sh[i].act, .pitch = ff, .q8 = sh[i].q8, .q8_pitch = q8}};
    }
    d[1].choose = &r;
    if (!kcu_gated_leaves_int8(&g[1], &sh[1], &r) || !kcu_down_makes_int8(&d[1])) {
        release(t); /* an older device */
        return;
    }
    d[1].makes_int8 = true;
    if (!good(t, kcu_logits(&t->l, &r), "router") || !good(t, kcu_gated(&t->l, &g[1], &sh[1], &r), "slices") ||
        !good(t, kcu_down(&t->l, &d[1]), "slices down") || !good(t, kcu_gated(&t->l, &g[0], &sh[0], NULL), "gated") ||
        !good(t, kcu_quantise(&t->l, &d[1].act, USED, ff, eq), "int8") || !good(t, kcu_quantise(&t->l, &d[1].shared_act, 1, ff, sq), "int8") ||
        !good(t, kcu_down(&t->l, &d[0]), "down"))
        return;
    const float *gu = fetch(t, g[1].gu, USED * 2 * ff * 4), *act = fetch(t, g[1].act, USED * ff * 4), *mine = fetch(t, sh[1].act, ff * 4);
    double worst = fmax(apart(gu, fetch(t, g[0].gu, USED * 2 * ff * 4), USED * 2 * ff), apart(act, fetch(t, g[0].act, USED * ff * 4), USED * ff));
    worst = fmax(worst, apart(mine, fetch(t, sh[0].act, ff * 4), ff));
    result(t, worst, 1e-5, "slices of experts, %s, %u x %u", krn_type_info(up_type)->name, ff, width);
    worst = fmax(apart(fetch(t, d[1].y, OUT * 4), fetch(t, d[0].y, OUT * 4), OUT), apart(fetch(t, d[1].x, OUT * 4), fetch(t, d[0].x, OUT * 4), OUT));
    result(t, worst, 1e-5, "their down projections, %s, %u x %u", krn_type_info(down_type)->name, OUT, ff);
    release(t);
}

/* What a launch of attention leaves, with what comes before it. */
struct attended {
    const float *q, *qr, *o;
    const uint8_t *qr8, *o8;
    const uint16_t *cache;
};

/* One row's query, newest key and attention: by launches apart, and by one. */
static void check_query(struct check *t, uint32_t heads, uint32_t nope, uint32_t k, uint32_t keys)
{
    enum { L = 512, R = 64, D = L + R, V = 64, BLOCK = 16 };
    const uint32_t blocks = (keys + BLOCK - 1) / BLOCK, width = heads * (nope + R), zero = 0, last = keys - 1;
    const size_t k8 = krn_q8_row_bytes(k), o8 = krn_q8_row_bytes(heads * V), cached = (size_t)(blocks + 1) * BLOCK * D;
    struct made qb = matrix(t, KRN_Q8_0, width, k, 1), kb = matrix(t, KRN_Q8_0, L, nope, heads), vb = matrix(t, KRN_Q8_0, V, L, heads);
    const struct krn_cpu_vec *vec = krn_cpu_vec(KRN_ISA_PORTABLE);
    float *z = randoms(t, k + D), *angle = randoms(t, (size_t)keys * R / 2), *kv = randoms(t, cached);
    uint16_t *store = host(t, cached * 2);
    int32_t *table = host(t, blocks * 4);
    vec->store(KRN_CACHE_F16, kv, (uint8_t *)store, (uint32_t)cached);
    for (uint32_t b = 0; b < blocks; b++)
        table[b] = (int32_t)(blocks - b);
    struct attended got[2];
    struct kcu_latent a = {.b = {.pos = device(t, &last, 4), .table = device(t, &zero, 4), .tables = device(t, table, blocks * 4), .n = 1,
                                 .max_keys = keys, .block = BLOCK},
                           .rope = {.cos = device(t, angle, (size_t)keys * R / 2 * 4), .sin = device(t, angle, (size_t)keys * R / 2 * 4), .half = R / 2},
                           .z_pitch = k + D, .q_width = k, .q_norm = device(t, randoms(t, k), k * 4), .qr_pitch = k, .q8_pitch = k8, .store = true,
                           .kv_col = k, .l = L, .r = R, .kv_norm = device(t, randoms(t, L), L * 4), .eps = 1e-5f, .cache_type = KCU_CACHE_F16};
    struct kcu_mla m = {.b = a.b, .rope = a.rope, .rotate = true, .q_pitch = width, .heads = heads, .nope = nope, .l = L, .r = R, .v = V, .k_b = kb.m,
                        .v_b = vb.m, .cache_type = KCU_CACHE_F16, .scale = 0.1f, .o_pitch = heads * V, .q8_pitch = o8,
                        .scratch = device(t, NULL, kcu_mla_scratch(1, heads, L, R, keys))};
    for (int i = 0; i < 2; i++) {
        a.z = device(t, z, (k + D) * 4);
        a.qr = device(t, NULL, k * 4);
        a.q8 = device(t, NULL, k8);
        a.cache = device(t, store, cached * 2);
        m.cache = a.cache;
        m.q = device(t, NULL, width * 4);
        m.o = device(t, NULL, heads * V * 4);
        m.q8 = device(t, NULL, o8);
        if (t->rc != RS_OK)
            return;
        const bool takes = kcu_mla_query_takes(&m, &a, &qb.m);
        if (i == 1 && !takes)
            break; /* an older device */
        if (!good(t, i == 1 ? kcu_mla_query(&t->l, &m, &a, &qb.m) : kcu_latent_linear(&t->l, &a, &qb.m, m.q), "query") ||
            (i == 0 && !good(t, kcu_mla(&t->l, &m), "attention")))
            return;
        got[i] = (struct attended){fetch(t, m.q, width * 4), fetch(t, a.qr, k * 4), fetch(t, m.o, heads * V * 4), fetch(t, a.q8, k8),
                                   fetch(t, m.q8, o8), fetch(t, a.cache, cached * 2)};
        if (i == 1) {
            const double wrong = differ(got[0].q, got[1].q, width * 4) + differ(got[0].qr, got[1].qr, k * 4) +
                                 differ(got[0].o, got[1].o, heads * V * 4) + differ(got[0].qr8, got[1].qr8, k8) +
                                 differ(got[0].o8, got[1].o8, o8) + differ(got[0].cache, got[1].cache, cached * 2);
            result(t, wrong, 0, "query, newest key, attention in one, %u heads of %u, %u keys", heads, nope, keys);
        }
    }
    release(t);
}

/* Norms of q_a and of the latents, rotation and cache rows: of many rows at once as of each alone. The last value of a row is large in some, others are zeros. */
static void check_latents(struct check *t, uint32_t n, uint32_t k, enum kcu_cache type)
{
    enum { L = 512, R = 64, D = L + R, BLOCK = 16 };
    const uint32_t keys = 3 * n, blocks = (keys + BLOCK - 1) / BLOCK, pitch = k + D;
    const size_t cached = (size_t)blocks * BLOCK * D * (type == KCU_CACHE_F32 ? 4 : 2);
    float *z = randoms(t, (size_t)n * pitch), *angle = randoms(t, (size_t)keys * R / 2);
    int32_t *pos = host(t, n * 4), *offset = host(t, n * 4), *table = host(t, blocks * 4);
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = (int32_t)(i * 37 % n * 3 + i % 3);
        offset[i] = 0;
        for (uint32_t j = 0; j < pitch; j++)
            z[(size_t)i * pitch + j] *= i % 5 == 3 ? 0 : i % 5 == 2 && j == k - 1 ? 1e6f : 1;
    }
    for (uint32_t b = 0; b < blocks; b++)
        table[b] = (int32_t)(blocks - b - 1);
    const struct kcu_latent both = {.b = {.pos = device(t, pos, n * 4), .table = device(t, offset, n * 4), .tables = device(t, table, blocks * 4), .n = n,
                                          .max_keys = keys, .block = BLOCK},
                                    .rope = {.cos = device(t, angle, (size_t)keys * R / 2 * 4), .sin = device(t, angle, (size_t)keys * R / 2 * 4), .half = R / 2},
                                    .z_pitch = pitch, .q_width = k, .q_norm = device(t, randoms(t, k), k * 4), .qr_pitch = k, .half_pitch = k, .store = true,
                                    .kv_col = k, .l = L, .r = R, .kv_norm = device(t, randoms(t, L), L * 4), .eps = 1e-5f, .cache_type = type};
    struct kcu_latent a[2] = {both, both};
    for (int i = 0; i < 2; i++) {
        a[i].z = device(t, z, (size_t)n * pitch * 4);
        a[i].qr = device(t, NULL, (size_t)n * k * 4);
        a[i].half = device(t, NULL, (size_t)n * k * 2);
        a[i].half_scale = device(t, NULL, n * 4);
        a[i].cache = device(t, NULL, cached);
    }
    if (t->rc != RS_OK || !good(t, kcu_latent(&t->l, &a[0]), "latents"))
        return;
    for (uint32_t i = 0; i < n; i++) {
        struct kcu_latent one = a[1];
        one.b.n = 1;
        one.b.pos += i;
        one.b.table += i;
        one.z += (size_t)i * pitch;
        one.qr += (size_t)i * k;
        one.half += (size_t)i * k;
        one.half_scale += i;
        if (!good(t, kcu_latent(&t->l, &one), "a latent"))
            return;
    }
    const double wrong = differ(fetch(t, a[0].z, (size_t)n * pitch * 4), fetch(t, a[1].z, (size_t)n * pitch * 4), (size_t)n * pitch * 4) +
                         differ(fetch(t, a[0].qr, (size_t)n * k * 4), fetch(t, a[1].qr, (size_t)n * k * 4), (size_t)n * k * 4) +
                         differ(fetch(t, a[0].half, (size_t)n * k * 2), fetch(t, a[1].half, (size_t)n * k * 2), (size_t)n * k * 2) +
                         differ(fetch(t, a[0].half_scale, n * 4), fetch(t, a[1].half_scale, n * 4), n * 4) +
                         differ(fetch(t, a[0].cache, cached), fetch(t, a[1].cache, cached), cached);
    result(t, wrong, 0, "latents of %u rows have the bits of each alone, q_a of %u", n, k);
    release(t);
}

void cuda_selftest_row(struct check *t)
{
    check_latents(t, 70, 768, KCU_CACHE_F16);
    check_query(t, 3, 192, 1024, 150);
    check_query(t, 5, 64, 768, 33);
    check_query(t, 2, 192, 768, 300);
    check_query(t, 3, 64, 768, 601);
    check_slices(t, KRN_Q4_K, KRN_Q5_K, 2304, 256);
    check_slices(t, KRN_Q5_K, KRN_Q6_K, 1024, 256);
    check_slices(t, KRN_Q6_K, KRN_Q4_K, 512, 512);

    check_whole(t, 2624, 6144);
    check_whole(t, 6143, 2048);
    check_head(t, 101, 2048);
    check_head(t, 333, 6144);
    check_product(t, KRN_Q8_0);
    check_product(t, KRN_Q5_K);
    check_choice(t, LOCAL, true, true);
    check_choice(t, 64, true, true); /* most experts elsewhere */
    if (t->small)
        return;
    check_head(t, 160001, 2048); /* several stores a warp */
    check_head(t, 19360, 6144);
    check_query(t, 20, 192, 768, 512);
    check_query(t, 20, 192, 768, 385);
    check_query(t, 20, 192, 768, 1100);
    check_query(t, 20, 192, 768, 3000);
    check_latents(t, 200, 1536, KCU_CACHE_BF16);
    check_latents(t, 65, 80, KCU_CACHE_F32);
    check_choice(t, LOCAL, false, false);
    check_choice(t, 256, true, false);
}
