/* See cuda_selftest.h. Kernels for many rows: cuda_selftest_many.c. */
#include "engine/cuda_check.h"

/* Two matrices side by side. few: by tensor cores, with operands in f16. */
static void check_linear(struct check *t, uint32_t type, bool int8, bool few, uint32_t n, uint32_t rows, uint32_t k)
{
    struct made a = matrix(t, type, rows, k, 1), b = matrix(t, few ? type : KRN_Q8_0, 40, k, 1);
    struct acts x = activations(t, n, k, int8);
    const uint32_t width = rows + 40;
    struct kcu_linear l = {.n_mats = 2,
                           .m = {a.m, b.m},
                           .col = {0, rows},
                           .in = x.in,
                           .n = n,
                           .y_pitch = width,
                           .y = device(t, NULL, (size_t)n * width * sizeof(float))};
    t->l.fixed = !few;
    const bool ran = t->rc == RS_OK && good(t, kcu_linear(&t->l, &l), "linear");
    t->l.fixed = false;
    if (!ran)
        return;
    const float *got = fetch(t, l.y, (size_t)n * width * sizeof(float));
    double *want = host(t, (size_t)n * width * sizeof *want);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < width; r++)
            want[(size_t)i * width + r] =
                r < rows ? dot(a.w + (size_t)r * k, x.x + (size_t)i * k, k) : dot(b.w + (size_t)(r - rows) * k, x.x + (size_t)i * k, k);
    result(t, distance(got, want, (size_t)n * width), few ? 1e-3 : 1e-5, "linear %s %s%s %u x %u, %u rows", krn_type_info(type)->name, int8 ? "int8" : "f32",
           few ? ", few," : "", rows, k, n);
    release(t);
}

static void check_few(struct check *t)
{
    static const uint32_t types[] = {KRN_Q8_0, KRN_Q4_K, KRN_Q5_K}, n[] = {3, 8, 9, 16};
    check_linear(t, KRN_Q8_0, true, true, 3, 33, 96); /* fewer units of K than lanes */
    for (int i = 0; i < 3; i++)
        for (int j = t->small ? 1 : 0; j < (t->small ? 3 : 4); j++)
            check_linear(t, types[i], true, true, n[j], 33, t->small ? 512 : j % 2 != 0 ? 2560 : 768);
}

static void check_rows(struct check *t, uint32_t type, uint32_t k)
{
    struct made a = matrix(t, type, 9, k, 1);
    const int32_t ids[4] = {12, 5, 13, 99}; /* rows 7, 0, 8, and one outside */
    const int32_t *d = device(t, ids, sizeof ids);
    float *y = device(t, NULL, 4 * (size_t)k * sizeof *y);
    if (t->rc != RS_OK || !good(t, kcu_rows(&t->l, &a.m, d, 4, 5, y, k, k), "rows"))
        return;
    const float *got = fetch(t, y, 4 * (size_t)k * sizeof *y);
    double wrong = 0;
    for (uint32_t i = 0; i < k; i++)
        wrong += (got[i] != a.w[7 * k + i]) + (got[k + i] != a.w[i]) + (got[2 * k + i] != a.w[8 * k + i]) + (got[3 * k + i] != 0);
    result(t, wrong, 0, "dequantise %s, k=%u", krn_type_info(type)->name, k);
    release(t);
}

/* Types of the experts' weights and of the shared one's up projection, and shapes. */
struct moe {
    uint32_t gate, up, down, shared_up, n, experts, used, k, ff, out;
    double limit;
};

/* Experts and a shared expert: gated projections, then down, against double. c->limit is that of one product. With operands in f16 that is what
 * rounding leaves, and of the gated ones two are multiplied, whose roundings have nothing to do with each other: there it is the root of two of it. */
static void check_moe(struct check *t, const struct moe *c, bool int8)
{
    const double gated_error = t->l.fixed ? 1 : 1.41421356;
    const uint32_t E = c->experts, USED = c->used, K = c->k, FF = c->ff, OUT = c->out, n = c->n;
    struct made gate = matrix(t, c->gate, FF, K, E), up = matrix(t, c->up, FF, K, E), sg = matrix(t, KRN_Q8_0, 96, K, 1),
                su = matrix(t, c->shared_up, 96, K, 1);
    struct made down = matrix(t, c->down, OUT, FF, E), sd = matrix(t, KRN_Q8_0, OUT, 96, 1);
    struct acts x = activations(t, n, K, int8);
    int32_t *choice = host(t, (size_t)n * 2 * USED * sizeof *choice);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < USED; j++) { /* expert E is somewhere else */
            const float weight = fabsf(rnd(t)) + 0.1f;
            choice[i * 2 * USED + j] = (int32_t)((i + 5 * j + 2) % (E + 1)) + 10;
            memcpy(&choice[i * 2 * USED + USED + j], &weight, 4);
        }
    const int32_t *ids = device(t, choice, (size_t)n * 2 * USED * sizeof *choice);
    const size_t q8p = krn_q8_row_bytes(FF), q8s = krn_q8_row_bytes(96);
    struct kcu_gated g = {.gate = gate.m,
                          .up = up.m,
                          .in = x.in,
                          .n = n,
                          .n_used = USED,
                          .ids = ids,
                          .ids_pitch = 2 * USED,
                          .expert0 = 10,
                          .gu = device(t, NULL, (size_t)n * USED * 2 * FF * 4),
                          .gu_pitch = 2 * FF,
                          .act = device(t, NULL, (size_t)n * USED * FF * 4),
                          .act_pitch = FF,
                          .q8 = int8 ? device(t, NULL, n * USED * q8p) : NULL,
                          .q8_pitch = q8p};
    struct kcu_gated s = {.gate = sg.m,
                          .up = su.m,
                          .in = x.in,
                          .n = n,
                          .n_used = 1,
                          .gu = device(t, NULL, (size_t)n * 192 * 4),
                          .gu_pitch = 192,
                          .act = device(t, NULL, (size_t)n * 96 * 4),
                          .act_pitch = 96,
                          .q8 = int8 ? device(t, NULL, n * q8s) : NULL,
                          .q8_pitch = q8s};
    if (t->rc != RS_OK || !good(t, kcu_gated(&t->l, &g, &s, NULL), "gated"))
        return;
    const float *act = fetch(t, g.act, (size_t)n * USED * FF * 4), *sact = fetch(t, s.act, (size_t)n * 96 * 4);
    double *want = host(t, (size_t)n * USED * FF * sizeof *want);
    float *mine = host(t, (size_t)n * USED * FF * sizeof *mine);
    const size_t m = gated(&gate, &up, x.x, choice, n, USED, 10, act, want, mine);
    result(t, distance(mine, want, m), c->limit * gated_error, "gated %s %s, %u rows, %u x %u", krn_type_info(c->gate)->name, int8 ? "int8" : "f32", n, FF, K);
    struct kcu_down d = {.down = down.m,
                         .act = {.x = g.act, .pitch = FF, .q8 = g.q8, .q8_pitch = q8p},
                         .shared = sd.m,
                         .shared_act = {.x = s.act, .pitch = 96, .q8 = s.q8, .q8_pitch = q8s},
                         .n = n,
                         .n_used = USED,
                         .expert0 = 10,
                         .ids = ids,
                         .weights = (const float *)(const void *)ids + USED,
                         .ids_pitch = 2 * USED,
                         .y = device(t, NULL, (size_t)n * OUT * 4),
                         .y_pitch = OUT,
                         .width = OUT};
    if (t->rc != RS_OK || !good(t, kcu_down(&t->l, &d), "down"))
        return;
    const float *y = fetch(t, d.y, (size_t)n * OUT * 4);
    float *v = host(t, FF * sizeof *v), weight;
    uint8_t *q = host(t, q8p);
    memset(want, 0, (size_t)n * OUT * sizeof *want);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= USED; j++) {
            const int32_t e = j < USED ? choice[i * 2 * USED + j] - 10 : 0;
            const uint32_t ff = j < USED ? FF : 96;
            if (e >= (int32_t)E)
                continue;
            memcpy(v, j < USED ? act + (size_t)(i * USED + j) * FF : sact + i * 96, ff * sizeof *v);
            if (int8) {
                krn_q8_quant_row(v, q, ff);
                krn_q8_dequant_row(q, v, ff);
            }
            memcpy(&weight, &choice[i * 2 * USED + USED + (j < USED ? j : 0)], 4);
            for (uint32_t r = 0; r < OUT; r++)
                want[i * OUT + r] +=
                    j < USED ? (double)weight * dot(down.w + ((size_t)e * OUT + r) * FF, v, FF) : dot(sd.w + (size_t)r * 96, v, 96);
        }
    result(t, distance(y, want, (size_t)n * OUT), c->limit, "down %s %s, %u rows, %u x %u", krn_type_info(c->down)->name, int8 ? "int8" : "f32", n, OUT, FF);
    release(t);
}

static void check_experts(struct check *t)
{
    static const struct moe any[] = {{KRN_Q4_K, KRN_Q4_K, KRN_Q5_K, KRN_Q6_K, 1, 6, 3, 512, 256, 100, 2e-5},
                                     {KRN_Q5_K, KRN_Q4_K, KRN_Q6_K, KRN_Q6_K, 4, 6, 3, 512, 256, 100, 2e-5},
                                     {KRN_Q8_0, KRN_Q4_K, KRN_Q4_K, KRN_Q6_K, 3, 6, 3, 512, 256, 100, 2e-5},
                                     {KRN_IQ2_XXS, KRN_Q4_K, KRN_IQ3_S, KRN_Q6_K, 1, 6, 3, 512, 256, 100, 2e-5},
                                     {KRN_MXFP4, KRN_Q4_K, KRN_IQ1_M, KRN_Q6_K, 4, 6, 3, 512, 256, 100, 2e-5}},
        /* rows that share their experts' weights: operands are f16 (experts_few.cu). The last ones: more rows of an expert than it takes at a time */
        few[] = {{KRN_Q4_K, KRN_Q4_K, KRN_Q5_K, KRN_Q8_0, 8, 6, 3, 512, 256, 100, 1e-3},
                 {KRN_Q5_K, KRN_Q5_K, KRN_Q4_K, KRN_Q8_0, 5, 6, 3, 256, 512, 40, 1e-3},
                 {KRN_Q4_K, KRN_Q4_K, KRN_Q4_K, KRN_Q8_0, 9, 6, 3, 256, 256, 50, 1e-3},
                 {KRN_Q5_K, KRN_Q5_K, KRN_Q5_K, KRN_Q8_0, 16, 3, 2, 256, 1024, 33, 1e-3},
                 {KRN_Q4_K, KRN_Q4_K, KRN_Q5_K, KRN_Q8_0, 16, 20, 4, 2048, 512, 300, 1e-3}};
    enum { ANY = sizeof any / sizeof any[0], FEW = sizeof few / sizeof few[0] };
    for (int int8 = 0; int8 < 2; int8++)
        for (int i = 0; i < ANY; i++) {
            t->l.fixed = true; /* nobody shares */
            check_moe(t, &any[i], int8 != 0);
            t->l.fixed = false;
        }
    for (int i = 0; i < FEW - t->small; i++) {
        t->made_up = few[i].experts > 6;
        check_moe(t, &few[i], true);
        t->made_up = false;
    }
}

/* Residual + norm, with int8 form, for widths that one block and a cluster serve. */
static void check_join(struct check *t, uint32_t n, uint32_t width)
{
    float *a = randoms(t, (size_t)n * width), *x = randoms(t, (size_t)n * width), *w = randoms(t, width);
    const size_t bytes = (size_t)n * width * sizeof(float), q8p = krn_q8_row_bytes(width);
    struct kcu_join j = {.n_local = 1,
                         .part = {device(t, a, bytes)},
                         .x = {device(t, x, bytes)},
                         .h = {device(t, NULL, bytes)},
                         .q8 = {device(t, NULL, n * q8p)},
                         .part_pitch = width,
                         .x_pitch = width,
                         .h_pitch = width,
                         .q8_pitch = q8p,
                         .w = device(t, w, width * sizeof(float)),
                         .n = n,
                         .width = width,
                         .eps = 1e-5f,
                         .n_ranks = 1,
                         .n_gpus = 1};
    if (t->rc != RS_OK || !good(t, kcu_join(&t->l, &j), "join"))
        return;
    const float *h = fetch(t, j.h[0], bytes), *gx = fetch(t, j.x[0], bytes);
    const uint8_t *q8 = fetch(t, j.q8[0], n * q8p);
    double *want = host(t, (size_t)n * width * sizeof *want), wrong = 0;
    uint8_t *q = host(t, q8p);
    for (uint32_t i = 0; i < n; i++) {
        double s = 0;
        for (uint32_t k = 0; k < width; k++) {
            const float v = x[(size_t)i * width + k] + a[(size_t)i * width + k];
            wrong += gx[(size_t)i * width + k] != v;
            want[(size_t)i * width + k] = v;
            s += (double)v * v;
        }
        for (uint32_t k = 0; k < width; k++)
            want[(size_t)i * width + k] *= w[k] / sqrt(s / width + 1e-5);
        krn_q8_quant_row(h + (size_t)i * width, q, width);
        wrong += memcmp(q, q8 + i * q8p, width) != 0;
        wrong += memcmp(q + krn_q8_blocks_offset(width), q8 + i * q8p + krn_q8_blocks_offset(width),
                        width / 32 * sizeof(struct krn_q8_block)) != 0;
    }
    result(t, distance(h, want, (size_t)n * width), 1e-6, "residual + norm, %u x %u", n, width);
    result(t, wrong, 0, "its residual and int8 form, %u x %u", n, width);
    release(t);
}

static void check_route(struct check *t, uint32_t experts, uint32_t used, uint32_t groups, uint32_t groups_used, bool sigmoid)
{
    enum { N = 5 };
    struct routing r = routing(t, N, 256, experts, used, groups, groups_used, sigmoid);
    uint32_t zero[N] = {0};
    double wrong, far;
    r.a.arrived = device(t, zero, sizeof zero);
    for (int again = 0; again < 2; again++) /* twice: counters must be zero again */
        if (t->rc != RS_OK || !good(t, kcu_route(&t->l, &r.a), "route"))
            return;
    routed(t, &r, fetch(t, r.a.ids, N * 2 * used * 4), &wrong, &far);
    result(t, wrong, 0, "router's choice, %u of %u, groups %u of %u, %s", used, experts, groups_used, groups,
           sigmoid ? "sigmoid" : "softmax");
    result(t, far, 1e-4, "router's weights, %u of %u", used, experts);
    release(t);
}

/* Top-k of indexer scores with many ties. */
static void check_topk(struct check *t, uint32_t keys, uint32_t k)
{
    float *score = host(t, keys * 4);
    int32_t *want = host(t, (k + 1) * 4), pos = (int32_t)keys - 1;
    for (uint32_t i = 0; i < keys; i++)
        score[i] = floorf(rnd(t) * 8) / 4;
    struct kcu_index a = {.b = {.pos = device(t, &pos, 4), .n = 1, .max_keys = keys, .block = 16},
                          .top_k = k,
                          .score = device(t, score, keys * 4),
                          .score_pitch = keys,
                          .sel = device(t, NULL, (k + 1) * 4),
                          .sel_pitch = k + 1};
    if (t->rc != RS_OK || !good(t, kcu_index_topk(&t->l, &a), "top-k"))
        return;
    const int32_t *got = fetch(t, a.sel, (k + 1) * 4);
    krn_select_topk(score, keys, k, want + 1);
    want[0] = (int32_t)k;
    double wrong = 0;
    for (uint32_t i = 0; i <= k; i++)
        wrong += got[i] != want[i];
    result(t, wrong, 0, "top %u of %u with ties", k, keys);
    release(t);
}

/* Rows whose int8 form is not that of their values. */
static double wrong_codes(struct check *t, const uint8_t *q8, const float *x, uint32_t n, uint32_t width)
{
    const size_t pitch = krn_q8_row_bytes(width), blocks = krn_q8_blocks_offset(width);
    uint8_t *q = host(t, pitch);
    double wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        krn_q8_quant_row(x + (size_t)i * width, q, width);
        wrong += memcmp(q, q8 + i * pitch, width) != 0 || memcmp(q + blocks, q8 + i * pitch + blocks, width / 32 * sizeof(struct krn_q8_block)) != 0;
    }
    return wrong;
}

/* Absorbed and expanded attention over a paged cache: heads and keys such that groups and splits are ragged. */
static void check_mla(struct check *t, enum krn_cache_type cache, uint32_t heads, uint32_t keys, uint32_t n, uint32_t l, uint32_t r)
{
    enum { NOPE = 64, V = 64, BLOCK = 16 };
    const uint32_t d = l + r, blocks = (keys + BLOCK - 1) / BLOCK;
    const size_t elem = krn_cache_elem_bytes(cache);
    struct made kb = matrix(t, KRN_Q8_0, l, NOPE, heads), vb = matrix(t, KRN_Q8_0, V, l, heads);
    const struct krn_cpu_vec *vec = krn_cpu_vec(KRN_ISA_PORTABLE);
    float *kv = randoms(t, (size_t)blocks * BLOCK * d), *q = randoms(t, (size_t)n * heads * (NOPE + r));
    uint8_t *store = host(t, (size_t)(blocks + 1) * BLOCK * d * elem);
    int32_t *table = host(t, blocks * 4), *pos = host(t, n * 4), *offset = host(t, n * 4);
    for (uint32_t b = 0; b < blocks; b++) {
        table[b] = (int32_t)(blocks - b);
        for (uint32_t i = 0; i < BLOCK; i++)
            vec->store(cache, kv + (size_t)(b * BLOCK + i) * d, store + ((size_t)table[b] * BLOCK + i) * d * elem, d);
    }
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = (int32_t)(keys - 1 - i * (keys / (n + 1)));
        offset[i] = 0;
    }
    struct kcu_mla a = {.b = {.pos = device(t, pos, n * 4),
                              .table = device(t, offset, n * 4),
                              .tables = device(t, table, blocks * 4),
                              .n = n,
                              .max_keys = keys,
                              .block = BLOCK},
                        .rope = {.half = r / 2},
                        .q = device(t, q, (size_t)n * heads * (NOPE + r) * 4),
                        .q_pitch = heads * (NOPE + r),
                        .heads = heads,
                        .nope = NOPE,
                        .l = l,
                        .r = r,
                        .v = V,
                        .k_b = kb.m,
                        .v_b = vb.m,
                        .cache = device(t, store, (size_t)(blocks + 1) * BLOCK * d * elem),
                        .cache_type = (enum kcu_cache)cache,
                        .scale = 0.1f,
                        .o = device(t, NULL, (size_t)n * heads * V * 4),
                        .o_pitch = heads * V,
                        .q8 = device(t, NULL, n * krn_q8_row_bytes(heads * V)),
                        .q8_pitch = krn_q8_row_bytes(heads * V),
                        .scratch = device(t, NULL, kcu_mla_scratch(n, heads, l, r, keys))};
    if (t->rc != RS_OK || !good(t, kcu_mla(&t->l, &a), "attention"))
        return;
    const float *got = fetch(t, a.o, (size_t)n * heads * V * 4);
    double *want = host(t, (size_t)n * heads * V * sizeof *want);
    float *qa = host(t, d * 4), *mix = host(t, l * 4), *scores = host(t, ((size_t)keys + 16) * 16);
    struct krn_attn_absorbed c = {
        .kv = {.base = store, .table = table, .block_stride = BLOCK * d * elem, .row_bytes = d * elem, .block = BLOCK, .type = cache},
        .l = l,
        .r = r,
        .n_heads = 1,
        .scale = 0.1f,
        .q = qa,
        .out = mix,
        .scores = scores};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < heads; h++) {
            const float *qh = q + ((size_t)i * heads + h) * (NOPE + r);
            for (uint32_t j = 0; j < l; j++)
                qa[j] = (float)dot(kb.w + ((size_t)h * l + j) * NOPE, qh, NOPE);
            memcpy(qa + l, qh + NOPE, r * 4);
            c.n_keys = (uint32_t)pos[i] + 1;
            vec->attn_absorbed(&c);
            for (uint32_t v = 0; v < V; v++)
                want[((size_t)i * heads + h) * V + v] = dot(vb.w + ((size_t)h * V + v) * l, mix, l);
        }
    result(t, distance(got, want, (size_t)n * heads * V), 1e-5, "attention %u+%u, %u heads, %u keys, %u rows, cache %d", l, r,
           heads, keys, n, (int)cache);
    const size_t q8_bytes = n * krn_q8_row_bytes(heads * V);
    a.o = device(t, NULL, (size_t)n * heads * V * 4);
    a.q8 = device(t, NULL, q8_bytes);
    a.scratch = device(t, NULL, kcu_mla_expanded_scratch(n, heads, NOPE, l, V, keys));
    if (t->rc != RS_OK || !good(t, kcu_mla_expanded(&t->l, &a), "expanded attention"))
        return;
    got = fetch(t, a.o, (size_t)n * heads * V * 4);
    result(t, distance(got, want, (size_t)n * heads * V), 1e-5, "expanded %u+%u, %u heads, %u keys, %u rows, cache %d", l, r, heads, keys, n,
           (int)cache);
    result(t, wrong_codes(t, fetch(t, a.q8, q8_bytes), got, n, heads * V), 0, "its int8 form, %u heads, %u keys", heads, keys);
    release(t);
}

/* Weights made up on the device, seen through the kernel that looks rows up: about the deviation that was asked for, about centred, not all alike. */
static void check_random(struct check *t, uint32_t type)
{
    enum { ROWS = 64, K = 1024 };
    const float sigma = 0.0625f;
    const size_t pitch = kcu_pitch(type, K);
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++)
        ids[i] = i;
    uint8_t *w = device(t, NULL, ROWS * pitch);
    const int32_t *d = device(t, ids, sizeof ids);
    const struct kcu_mat m = {.w = w, .type = type, .rows = ROWS, .k = K, .n_mats = 1, .pitch = pitch, .mat_pitch = ROWS * pitch};
    float *y = device(t, NULL, (size_t)ROWS * K * sizeof *y);
    if (t->rc != RS_OK || !good(t, kcu_random(&t->l, type, K, ROWS, sigma, 0, 77, w), "random") ||
        !good(t, kcu_rows(&t->l, &m, d, ROWS, 0, y, K, K), "rows"))
        return;
    const float *got = fetch(t, y, (size_t)ROWS * K * sizeof *y);
    double sum = 0, sq = 0;
    for (size_t i = 0; i < (size_t)ROWS * K; i++) {
        sum += (double)got[i];
        sq += (double)got[i] * (double)got[i];
    }
    const double n = (double)ROWS * K, mean = sum / n, deviation = sqrt(sq / n - mean * mean);
    result(t, fabs(log2(deviation / (double)sigma)), 0.5, "made up %s: deviation %.3g of %.3g wanted", krn_type_info(type)->name, deviation, (double)sigma);
    result(t, fabs(mean) / (double)sigma, 0.2, "made up %s: centred", krn_type_info(type)->name);
    release(t);
}

enum rs_result cuda_selftest(int dev, bool small, void (*report)(void *arg, const struct cuda_check *c), void *arg, struct rs_error *err)
{
    struct check t = {.l = {.pdl = true}, .report = report, .arg = arg, .err = err, .seed = 20, .small = small};
    const uint32_t rows = small ? 33 : 101, k = small ? 256 : 768;
    if (!good(&t, cudaSetDevice(dev), "device") || !good(&t, cudaStreamCreateWithFlags(&t.l.stream, cudaStreamNonBlocking), "stream"))
        return t.rc;
    for (uint32_t type = 0; type < KRN_TYPE_MAX && t.rc == RS_OK; type++) {
        if (krn_type_info(type) == NULL || !krn_type_info(type)->computes)
            continue;
        check_rows(&t, type, small ? 256 : 512);
        check_random(&t, type);
        for (uint32_t n = 1; n <= 9; n += n == 1 ? 2 : 3) { /* 1, 3, 6, 9 */
            if (small && n != 1 && n != 6)
                continue;
            check_linear(&t, type, false, false, n, rows, k);
            if (krn_type_info(type)->quantised)
                check_linear(&t, type, true, false, n, rows, k);
        }
    }
    check_linear(&t, KRN_Q8_0, true, false, 1, 33, 96);
    if (!small)
        check_linear(&t, KRN_Q8_0, true, false, 2, 33, 5120);
    check_few(&t);
    check_experts(&t);
    check_join(&t, 1, 2048);
    check_join(&t, 3, 6144);
    if (!small)
        check_join(&t, 20, 6144);
    check_join(&t, 9, 256);
    check_route(&t, 64, 4, 1, 1, true);
    check_route(&t, 256, 8, 8, 4, true);
    check_route(&t, 256, 8, 1, 1, true);
    check_route(&t, 160, 4, 1, 1, false);
    check_route(&t, 300, 6, 1, 1, false);
    check_topk(&t, small ? 1000 : 5000, small ? 300 : 2048);
    check_topk(&t, 100, 16);
    check_mla(&t, KRN_CACHE_F16, 5, 100, 3, 512, 64);
    check_mla(&t, KRN_CACHE_F32, 4, small ? 130 : 2500, 2, 512, 64);
    check_mla(&t, KRN_CACHE_BF16, 3, 33, 1, 128, 32);
    check_mla(&t, KRN_CACHE_F16, 4, 37, 1, 512, 64);
    check_mla(&t, KRN_CACHE_F16, 5, 777, 1, 512, 64);
    if (!small) {
        check_mla(&t, KRN_CACHE_F16, 3, 500, 1, 512, 64);
        check_mla(&t, KRN_CACHE_F16, 9, 2500, 1, 512, 64);
    }
    cuda_selftest_row(&t);
    cuda_selftest_experts(&t);
    cuda_selftest_half(&t);
    cuda_selftest_many(&t);
    cuda_selftest_token(&t);
    release(&t);
    (void)cudaStreamDestroy(t.l.stream);
    return t.rc;
}
