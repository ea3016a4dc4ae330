/* Self-tests of the kernels for many rows, on tensor cores: against the reference, and that a row's result does not depend on what else is there. */
#include "engine/cuda_check.h"

/* Where a column lies in the f16 form: see kcu_halve(). */
static uint32_t half_place(uint32_t col)
{
    return (col & ~15u) + (col & 15) / 4 * 2 + (col & 2) * 4 + col % 2;
}

/* Products of n rows, among them very small and very large ones, and, where that must hold, the same bits for rows on their own and in other company. */
static void check_gemm(struct check *t, uint32_t type, uint32_t n, uint32_t rows, uint32_t k, bool fixed)
{
    struct made a = matrix(t, type, rows, k, 1), b = matrix(t, KRN_Q8_0, 40, k, 1);
    const uint32_t width = rows + 40, pieces[] = {1, 15, 33, 140};
    const size_t bytes = (size_t)n * width * sizeof(float);
    float *x = randoms(t, (size_t)n * k);
    for (size_t i = 0; i < (size_t)n * k; i++)
        x[i] *= i / k % 5 == 3 ? 1e7f : i / k % 5 == 4 ? 1e-7f : 1;
    struct kcu_linear l = {.n_mats = 2,
                           .m = {a.m, b.m},
                           .col = {0, rows},
                           .in = halved(t, device(t, x, (size_t)n * k * sizeof *x), n, k),
                           .n = n,
                           .y_pitch = width,
                           .y = device(t, NULL, bytes)};
    t->l.fixed = fixed;
    if (t->rc != RS_OK || !good(t, kcu_gemm(&t->l, &l), "gemm"))
        return;
    const float *got = fetch(t, l.y, bytes);
    double *want = host(t, width * sizeof *want), wrong = 0, far = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < width; r++)
            want[r] = r < rows ? dot(a.w + (size_t)r * k, x + (size_t)i * k, k) : dot(b.w + (size_t)(r - rows) * k, x + (size_t)i * k, k);
        const double d = distance(got + (size_t)i * width, want, width);
        far = d <= far ? far : d; /* NaN stays */
    }
    result(t, far, 1e-3, "gemm %s %u x %u, worst of %u rows%s", krn_type_info(type)->name, rows, k, n, fixed ? ", fixed" : "");
    if (!fixed) {
        l.accumulate = true;
        const float *twice = good(t, kcu_gemm(&t->l, &l), "gemm") ? fetch(t, l.y, bytes) : got;
        for (size_t i = 0; i < (size_t)n * width; i++)
            wrong += !(twice[i] == 2 * got[i]);
        result(t, wrong, 0, "added to what was there, %s, %u rows", krn_type_info(type)->name, n);
        release(t);
        return;
    }
    struct kcu_linear piece = l;
    piece.y = device(t, NULL, bytes);
    for (uint32_t i = 0, p = 0; i < n; i += piece.n, p++) {
        piece.n = pieces[p % 4] < n - i ? pieces[p % 4] : n - i;
        struct kcu_linear at = piece;
        at.in = halved(t, l.in.x + (size_t)i * k, piece.n, k);
        at.y = piece.y + (size_t)i * width;
        if (t->rc != RS_OK || !good(t, kcu_gemm(&t->l, &at), "gemm"))
            return;
    }
    const float *again = fetch(t, piece.y, bytes);
    for (size_t i = 0; i < (size_t)n * width; i++)
        wrong += memcmp(got + i, again + i, sizeof *got) != 0;
    result(t, wrong, 0, "the same bits in pieces, %s, %u rows", krn_type_info(type)->name, n);
    release(t);
}

/* Does a kernel leave the f16 form of its result as kcu_halve() would make it? */
static void same_halves(struct check *t, const float *x, uint32_t n, uint32_t k, const uint16_t *half, const float *scale, const char *what)
{
    const struct kcu_rows_in want = halved(t, x, n, k);
    double wrong = 0;
    if (t->rc != RS_OK)
        return;
    const uint16_t *a = fetch(t, want.h, (size_t)n * k * 2), *b = fetch(t, half, (size_t)n * k * 2);
    for (size_t i = 0; i < (size_t)n * k; i++)
        wrong += a[i] != b[i];
    result(t, wrong + (memcmp(fetch(t, want.h_scale, n * 4), fetch(t, scale, n * 4), n * 4) != 0), 0, "%s leaves the f16 form, %u x %u", what, n, k);
}

/* A sum with its norm, and the norm of a latent query; rows of all sizes, zeros too. */
static void check_halves(struct check *t, uint32_t n, uint32_t k)
{
    float *x = randoms(t, (size_t)n * k);
    for (size_t i = 0; i < (size_t)n * k; i++)
        x[i] *= i / k % 5 == 3 ? 1e7f : i / k % 5 == 4 ? 1e-7f : i / k % 7 == 6 ? 0 : 1;
    float *w = device(t, randoms(t, k), k * 4), *h = device(t, NULL, (size_t)n * k * 4), *scale = device(t, NULL, n * 4);
    uint16_t *half = device(t, NULL, (size_t)n * k * 2);
    float *dev = device(t, x, (size_t)n * k * 4), *sum = device(t, x, (size_t)n * k * 4);
    const struct kcu_join j = {.n_local = 1, .part = {dev}, .x = {sum}, .h = {h}, .part_pitch = k, .x_pitch = k, .h_pitch = k, .w = w, .n = n, .width = k,
                               .eps = 1e-5f, .n_ranks = 1, .n_gpus = 1, .half = half, .half_pitch = k, .half_scale = scale};
    if (t->rc == RS_OK && good(t, kcu_join(&t->l, &j), "join"))
        same_halves(t, h, n, k, half, scale, "a norm");
    const struct kcu_latent z = {.b = {.n = n}, .z = dev, .z_pitch = k, .q_width = k, .q_norm = w, .qr = h, .qr_pitch = k, .eps = 1e-5f, .half = half,
                                 .half_pitch = k, .half_scale = scale, .cache_type = KCU_CACHE_F16};
    if (k <= KCU_LATENT_HALVES && t->rc == RS_OK && good(t, kcu_latent(&t->l, &z), "latent"))
        same_halves(t, h, n, k, half, scale, "a latent query's norm");
    release(t);
}

enum { EXPERTS = 6, USED = 3, K = 512, FF = 256, OUT = 132, FIRST = 10 };

struct moe {
    struct made gate, up, down;
    float *x;
    struct kcu_rows_in in;
    int32_t *choice;
    const int32_t *ids;
};

/* Gate and up that make the activation themselves: the same bits. Pairs that go to experts elsewhere are NaN. */
static void check_acts(struct check *t, struct kcu_grouped g, const float *want)
{
    const uint32_t pairs = g.n * USED;
    double wrong = 0;
    g.y = NULL;
    g.act = device(t, NULL, (size_t)pairs * FF * 4);
    g.act_pitch = FF;
    if (t->rc != RS_OK || !good(t, kcu_gemm_grouped(&t->l, &g), "gate, up and activation"))
        return;
    const float *got = fetch(t, g.act, (size_t)pairs * FF * 4);
    for (size_t i = 0; t->rc == RS_OK && i < (size_t)pairs * FF; i++)
        wrong += !isnan(want[i]) && memcmp(got + i, want + i, 4) != 0;
    result(t, wrong, 0, "gate and up make the activation, %u rows", g.n);
}

/* All of the experts' work for rows [row, row + n): y, and what the activations were. */
static const float *run_moe(struct check *t, const struct moe *m, uint32_t row, uint32_t n, const float **act)
{
    const uint32_t pairs = n * USED;
    const int32_t *ids = m->ids + (size_t)row * 2 * USED;
    const struct kcu_rows_in in = halved(t, m->in.x + (size_t)row * K, n, K);
    int32_t *plan = device(t, NULL, kcu_group_words(n, USED, EXPERTS) * 4);
    float *gu = device(t, NULL, (size_t)pairs * 2 * FF * 4), *a = device(t, NULL, (size_t)pairs * FF * 4),
          *part = device(t, NULL, (size_t)pairs * OUT * 4), *scale = device(t, NULL, pairs * 4);
    uint16_t *half = device(t, NULL, (size_t)pairs * FF * 2);
    const struct kcu_rows_in down = {.x = a, .pitch = FF, .h = half, .h_pitch = FF, .h_scale = scale};
    struct kcu_down d = {.down = m->down.m,
                         .n = n,
                         .n_used = USED,
                         .expert0 = FIRST,
                         .ids = ids,
                         .weights = (const float *)(const void *)ids + USED,
                         .ids_pitch = 2 * USED,
                         .y = device(t, NULL, (size_t)n * OUT * 4),
                         .y_pitch = OUT,
                         .width = OUT};
    const bool boxes = kcu_grouped_boxes(&t->l, &m->gate.m, n, USED) && kcu_grouped_boxes(&t->l, &m->up.m, n, USED) &&
                       kcu_grouped_boxes(&t->l, &m->down.m, n, USED);
    const struct kcu_grouped first = {.n_mats = 2, .m = {m->gate.m, m->up.m}, .col = {0, FF}, .in = in, .boxes = boxes, .n = n, .n_used = USED, .plan = plan,
                                      .y = gu, .y_pitch = 2 * FF},
                             last = {.n_mats = 1, .m = {m->down.m}, .in = down, .per_pair = true, .boxes = boxes, .n = n, .n_used = USED, .plan = plan,
                                     .y = part, .y_pitch = OUT};
    if (t->rc != RS_OK || !good(t, kcu_group(&t->l, ids, 2 * USED, n, USED, FIRST, EXPERTS, boxes, plan), "group") ||
        !good(t, kcu_gemm_grouped(&t->l, &first), "gate and up") ||
        !good(t, kcu_act(&t->l, gu, 2 * FF, FF, pairs, a, FF, half, FF, scale), "act") ||
        !good(t, kcu_gemm_grouped(&t->l, &last), "down") ||
        !good(t, kcu_combine(&t->l, part, OUT, &d), "combine"))
        return NULL;
    *act = fetch(t, a, (size_t)pairs * FF * 4);
    if (kcu_grouped_acts(&first))
        check_acts(t, first, *act);
    return fetch(t, d.y, (size_t)n * OUT * 4);
}

/* y of a row from the activations that the device made: what follows is compared on its own. */
static void want_down(const struct moe *m, const float *act, uint32_t row, double *want)
{
    float weight;
    memset(want, 0, OUT * sizeof *want);
    for (uint32_t j = 0; j < USED; j++) {
        const int32_t e = m->choice[row * 2 * USED + j] - FIRST;
        if (e >= EXPERTS)
            continue;
        const float *v = act + (size_t)(row * USED + j) * FF;
        memcpy(&weight, &m->choice[row * 2 * USED + USED + j], 4);
        for (uint32_t r = 0; r < OUT; r++)
            want[r] += (double)weight * dot(m->down.w + ((size_t)e * OUT + r) * FF, v, FF);
    }
}

/* skew: most rows want the same experts. */
static void check_grouped(struct check *t, uint32_t gate_type, uint32_t down_type, uint32_t n, bool skew, bool fixed)
{
    struct moe m = {.gate = matrix(t, gate_type, FF, K, EXPERTS),
                    .up = matrix(t, KRN_Q4_K, FF, K, EXPERTS),
                    .down = matrix(t, down_type, OUT, FF, EXPERTS),
                    .x = randoms(t, (size_t)n * K),
                    .choice = host(t, (size_t)n * 2 * USED * 4)};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < USED; j++) { /* expert EXPERTS is somewhere else */
            const float weight = fabsf(rnd(t)) + 0.1f;
            m.choice[i * 2 * USED + j] = (int32_t)((skew && i % 8 != 0 ? 2 * j : (i + 5 * j + 2) % (EXPERTS + 1))) + FIRST;
            memcpy(&m.choice[i * 2 * USED + USED + j], &weight, 4);
        }
    m.in.x = device(t, m.x, (size_t)n * K * 4);
    m.ids = device(t, m.choice, (size_t)n * 2 * USED * 4);
    t->l.fixed = fixed;
    const float *act = NULL, *one = NULL, *y = run_moe(t, &m, 0, n, &act), *alone = run_moe(t, &m, n - 1, 1, &one);
    if (y == NULL || alone == NULL)
        return;
    double *want = host(t, (size_t)n * USED * FF * sizeof *want), wrong = 0;
    float *mine = host(t, (size_t)n * USED * FF * sizeof *mine);
    const size_t k = gated(&m.gate, &m.up, m.x, m.choice, n, USED, FIRST, act, want, mine);
    result(t, distance(mine, want, k), 1e-3, "grouped gate and up %s, %u rows%s%s", krn_type_info(gate_type)->name, n, skew ? ", skewed" : "",
           fixed ? ", fixed" : "");
    for (uint32_t i = 0; i < n; i++)
        want_down(&m, act, i, want + (size_t)i * OUT);
    result(t, distance(y, want, (size_t)n * OUT), 1e-3, "grouped down %s, %u rows%s%s", krn_type_info(down_type)->name, n,
           skew ? ", skewed" : "", fixed ? ", fixed" : "");
    for (uint32_t r = 0; r < OUT; r++)
        wrong += memcmp(alone + r, y + (size_t)(n - 1) * OUT + r, 4) != 0;
    if (fixed)
        result(t, wrong, 0, "experts: a row alone has the same bits, of %u", n);
    release(t);
}

/* The router's choices for n rows, and the last row's alone. */
static void check_route_many(struct check *t, uint32_t n, uint32_t experts, uint32_t used, uint32_t groups, bool sigmoid)
{
    enum { WIDTH = 200 };
    struct routing r = routing(t, n, WIDTH, experts, used, groups, (groups + 1) / 2, sigmoid);
    double wrong, far;
    if (t->rc != RS_OK || !good(t, kcu_route_many(&t->l, &r.a), "route"))
        return;
    const int32_t *got = fetch(t, r.a.ids, (size_t)n * 2 * used * 4);
    struct kcu_route one = r.a;
    one.n = 1;
    one.x = r.a.x + (size_t)(n - 1) * WIDTH;
    if (t->rc != RS_OK || !good(t, kcu_route_many(&t->l, &one), "route"))
        return;
    const int32_t *alone = fetch(t, r.a.ids, 2 * (size_t)used * 4);
    routed(t, &r, got, &wrong, &far);
    result(t, wrong, 0, "router's choice of many, %u of %u, %u groups, %u rows", used, experts, groups, n);
    result(t, far, 1e-4, "router's weights of many, %u of %u, %u rows", used, experts, n);
    result(t, memcmp(alone, got + (size_t)(n - 1) * 2 * used, 2 * (size_t)used * 4) != 0, 0, "router: a row alone has the same bits, of %u", n);
    release(t);
}

/* ---- attention ---- */

enum { L = 512, R = 64, D = L + R, BLOCK = 16, SEQS = 6 };

enum form { FAST, FIXED, EXPANDED }; /* on tensor cores, the same with a fixed order of sums, made from the latents in f32 */

struct mla {
    uint32_t heads, nope, v, n_seqs, blocks, max_pos;
    struct made kb, vb;
    uint8_t *store;
    int32_t *table; /* [seq][blocks] */
    float *angle;   /* cosines, then sines */
    const void *dev_store, *dev_angle;
};

struct row {
    uint32_t seq, pos;
    bool prompt;
};

static struct mla make_mla(struct check *t, uint32_t heads, uint32_t nope, uint32_t n_seqs, uint32_t max_pos)
{
    struct mla m = {.heads = heads, .nope = nope, .v = nope == 192 ? 256 : 36, .n_seqs = n_seqs, .blocks = max_pos / BLOCK + 1, .max_pos = max_pos};
    const struct krn_cpu_vec *vec = krn_cpu_vec(KRN_ISA_PORTABLE);
    const size_t cells = (size_t)(n_seqs * m.blocks + 1) * BLOCK, bytes = cells * D * 2;
    m.kb = matrix(t, KRN_Q8_0, L, nope, heads);
    m.vb = matrix(t, heads < 20 && nope != 192 ? KRN_Q6_K : KRN_Q8_0, m.v, L, heads);
    float *kv = randoms(t, cells * D);
    m.store = host(t, bytes);
    for (size_t i = 0; i < cells; i++)
        vec->store(KRN_CACHE_F16, kv + i * D, m.store + i * D * 2, D);
    m.table = host(t, (size_t)n_seqs * m.blocks * 4);
    for (uint32_t s = 0; s < n_seqs; s++)
        for (uint32_t b = 0; b < m.blocks; b++)
            m.table[s * m.blocks + b] = (int32_t)((m.blocks - b - 1) * n_seqs + s + 1);
    m.angle = host(t, (size_t)(max_pos + 1) * R * 4);
    for (uint32_t i = 0; i < (max_pos + 1) * R / 2; i++) {
        const float a = rnd(t);
        m.angle[i] = cosf(a);
        m.angle[(max_pos + 1) * R / 2 + i] = sinf(a);
    }
    m.dev_store = device(t, m.store, bytes);
    m.dev_angle = device(t, m.angle, (size_t)(max_pos + 1) * R * 4);
    return m;
}

/* Scores of a standard deviation near 3, as models have them: a softmax of wider ones multiplies the rounding of operands. */
static float score_scale(const struct mla *m)
{
    return 3.0f / sqrtf((float)m->nope * L);
}

/* The step's variable part as the engine lays it out: positions, tables, lists. */
static struct kcu_batch make_batch(struct check *t, const struct mla *m, const struct row *row, uint32_t n)
{
    const uint32_t per = kcu_mla_tile_rows(m->heads), words = m->n_seqs * m->blocks;
    int32_t *pos = host(t, n * 4), *offset = host(t, n * 4), *tables = host(t, (words + 3 * n) * 4), header[4] = {0};
    uint32_t at = words, keys = 0;
    memcpy(tables, m->table, words * 4);
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = (int32_t)row[i].pos;
        offset[i] = (int32_t)(row[i].seq * m->blocks);
        keys = row[i].pos + 1 > keys ? row[i].pos + 1 : keys;
    }
    header[1] = (int32_t)at;
    for (uint32_t i = 0, k; i < n; i += k) {
        for (k = 1; row[i].prompt && k < per && i + k < n && row[i + k].prompt && row[i + k].seq == row[i].seq && row[i + k].pos == row[i].pos + k;)
            k++;
        if (!row[i].prompt)
            continue;
        tables[at++] = (int32_t)i;
        tables[at++] = (int32_t)k;
        header[0]++;
    }
    header[3] = (int32_t)at;
    for (uint32_t i = 0; i < n; i++)
        if (!row[i].prompt) {
            tables[at++] = (int32_t)i;
            header[2]++;
        }
    return (struct kcu_batch){.pos = device(t, pos, n * 4),
                              .table = device(t, offset, n * 4),
                              .tables = device(t, tables, (words + 3 * n) * 4),
                              .n = n,
                              .max_keys = keys,
                              .block = BLOCK,
                              .lists = device(t, header, sizeof header),
                              .prompt_tiles = (uint32_t)header[0],
                              .generated = (uint32_t)header[2]};
}

/* The same attention's f16 form, beside what it was as f32: o. */
static void check_mla_halves(struct check *t, const struct kcu_mla *with, const float *o)
{
    struct kcu_mla a = *with;
    const uint32_t n = a.b.n, width = a.heads * a.v;
    double wrong = 0;
    a.rotate = false; /* it has been done */
    a.half = device(t, NULL, (size_t)n * width * 2);
    a.half_pitch = width;
    a.half_scale = device(t, NULL, n * 4);
    if (t->rc != RS_OK || !good(t, kcu_mla(&t->l, &a), "attention"))
        return;
    const uint16_t *half = fetch(t, a.half, (size_t)n * width * 2);
    const float *scale = fetch(t, a.half_scale, n * 4);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < width; c++) {
            const float x = o[(size_t)i * width + c], y = krn_f16_to_f32(half[(size_t)i * width + half_place(c)]) * scale[i];
            wrong += !(fabsf(x - y) <= fabsf(x) * 0x1p-11f + 0x1p-24f * scale[i]);
        }
    result(t, wrong, 0, "attention's f16 form is its result rounded, %u rows", n);
}

/* Of few rows the int8 form comes along. */
static void check_mla_int8(struct check *t, const struct kcu_mla *a, const float *o)
{
    const uint32_t width = a->heads * a->v;
    const uint8_t *q8 = fetch(t, a->q8, a->b.n * a->q8_pitch);
    uint8_t *q = host(t, a->q8_pitch);
    double wrong = 0;
    for (uint32_t i = 0; i < a->b.n && t->rc == RS_OK; i++) {
        krn_q8_quant_row(o + (size_t)i * width, q, width);
        wrong += memcmp(q, q8 + i * a->q8_pitch, width) != 0;
        wrong += memcmp(q + krn_q8_blocks_offset(width), q8 + i * a->q8_pitch + krn_q8_blocks_offset(width), width / 32 * sizeof(struct krn_q8_block)) != 0;
    }
    result(t, wrong, 0, "attention's int8 form, %u rows", a->b.n);
}

/* Attention of the rows; q as the device leaves it in *rotated. */
static const float *run_mla(struct check *t, const struct mla *m, const struct row *row, uint32_t n, const float *q, enum form form,
                            const int32_t *sel, uint32_t top_k, const float **rotated)
{
    const uint32_t width = m->heads * (m->nope + R);
    float *dq = device(t, q, (size_t)n * width * 4);
    struct kcu_mla a = {.b = make_batch(t, m, row, n),
                        .rope = {.cos = m->dev_angle, .sin = (const float *)m->dev_angle + (size_t)(m->max_pos + 1) * R / 2, .half = R / 2},
                        .rotate = true,
                        .q = dq,
                        .q_pitch = width,
                        .heads = m->heads,
                        .nope = m->nope,
                        .l = L,
                        .r = R,
                        .v = m->v,
                        .k_b = m->kb.m,
                        .v_b = m->vb.m,
                        .cache = m->dev_store,
                        .cache_type = KCU_CACHE_F16,
                        .scale = score_scale(m),
                        .sel = sel != NULL ? device(t, sel, (size_t)n * (top_k + 1) * 4) : NULL,
                        .sel_pitch = top_k + 1,
                        .top_k = top_k,
                        .o = device(t, NULL, (size_t)n * m->heads * m->v * 4),
                        .o_pitch = m->heads * m->v,
                        .q8 = m->v % 32 == 0 ? device(t, NULL, n * krn_q8_row_bytes(m->heads * m->v)) : NULL,
                        .q8_pitch = krn_q8_row_bytes((m->heads * m->v + 31) / 32 * 32),
                        .many = true,
                        .fixed = form == FIXED};
    a.scratch = device(t, NULL, form == EXPANDED ? kcu_mla_expanded_scratch(n, m->heads, m->nope, L, m->v, a.b.max_keys)
                                                 : kcu_mla_scratch(n, m->heads, L, R, a.b.max_keys));
    if (t->rc == RS_OK && form != EXPANDED && !kcu_mla_on_cores(&a))
        result(t, 1, 0, "attention of %u rows is one for tensor cores", n);
    if (t->rc != RS_OK || !good(t, form == EXPANDED ? kcu_mla_expanded(&t->l, &a) : kcu_mla(&t->l, &a), "attention"))
        return NULL;
    *rotated = fetch(t, dq, (size_t)n * width * 4);
    const float *o = fetch(t, a.o, (size_t)n * m->heads * m->v * 4);
    if (form == FAST && kcu_mla_leaves_halves(&a))
        check_mla_halves(t, &a, o);
    if (form == FAST && a.q8 != NULL && kcu_mla_leaves_int8(&a))
        check_mla_int8(t, &a, o);
    return o;
}

static void want_mla(struct check *t, const struct mla *m, const struct row *row, uint32_t n, const float *q, const int32_t *sel,
                     uint32_t top_k, double *want)
{
    float *qa = host(t, D * 4), *mix = host(t, L * 4), *scores = host(t, ((size_t)m->max_pos + 32) * 16 * 4);
    struct krn_attn_absorbed c = {.kv = {.base = m->store, .block_stride = BLOCK * D * 2, .row_bytes = D * 2, .block = BLOCK, .type = KRN_CACHE_F16},
                                  .l = L,
                                  .r = R,
                                  .n_heads = 1,
                                  .scale = score_scale(m),
                                  .q = qa,
                                  .out = mix,
                                  .scores = scores};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < m->heads; h++) {
            const float *qh = q + ((size_t)i * m->heads + h) * (m->nope + R);
            for (uint32_t j = 0; j < L; j++)
                qa[j] = (float)dot(m->kb.w + ((size_t)h * L + j) * m->nope, qh, m->nope);
            memcpy(qa + L, qh + m->nope, R * 4);
            c.kv.table = m->table + (size_t)row[i].seq * m->blocks;
            c.n_keys = row[i].pos + 1;
            c.sel = NULL;
            if (sel != NULL && row[i].pos + 1 > top_k && sel[i * (top_k + 1)] > 0) {
                c.sel = sel + i * (top_k + 1) + 1;
                c.n_sel = (uint32_t)sel[i * (top_k + 1)];
            }
            krn_cpu_vec(KRN_ISA_PORTABLE)->attn_absorbed(&c);
            for (uint32_t v = 0; v < m->v; v++)
                want[((size_t)i * m->heads + h) * m->v + v] = dot(m->vb.w + ((size_t)h * m->v + v) * L, mix, L);
        }
}

/* Where generated row i stands: at ends of tiles and of cache blocks, at the end of a sequence, anywhere. */
static uint32_t single_at(uint32_t i, uint32_t last)
{
    static const uint32_t edge[] = {0, BLOCK - 2, BLOCK - 1, BLOCK, 62, 63, 64};
    const uint32_t at = i % 4 == 1 ? edge[i / 4 % (sizeof edge / sizeof edge[0])] : i % 3 == 0 ? last - i % last : i * 37 % last;
    return at < last ? at : last;
}

/* A prompt's chunk, a second one, and generated rows of other sequences in one step; then, where batches must not matter, each part on its own. */
static void check_mixed(struct check *t, uint32_t heads, uint32_t nope, uint32_t chunk, uint32_t singles, uint32_t last, enum form form)
{
    struct mla m = make_mla(t, heads, nope, SEQS, last + 4);
    const uint32_t n = chunk + (chunk != 0 ? 3 : 0) + singles, width = heads * (nope + R);
    struct row *row = host(t, n * sizeof *row);
    uint32_t k = 0;
    for (uint32_t i = 0; i < chunk; i++)
        row[k++] = (struct row){0, last - chunk + i, true};
    for (uint32_t i = 0; i < 3 && chunk != 0; i++)
        row[k++] = (struct row){1, i, true};
    for (uint32_t i = 0; i < singles; i++)
        row[k++] = (struct row){2 + i % (SEQS - 2), single_at(i, last), false};
    const float *q = randoms(t, (size_t)n * width), *rotated = NULL, *part = NULL;
    const float *got = run_mla(t, &m, row, n, q, form, NULL, 0, &rotated);
    if (got == NULL)
        return;
    double *want = host(t, (size_t)n * heads * m.v * sizeof *want), wrong = 0;
    want_mla(t, &m, row, n, rotated, NULL, 0, want);
    result(t, distance(got, want, (size_t)n * heads * m.v), form == EXPANDED ? 1e-5 : 1e-3, "attention of %u + %u rows, %u heads, %u keys%s",
           n - singles, singles, heads, last, form == FIXED ? ", fixed" : form == EXPANDED ? ", expanded" : "");
    const uint32_t from[] = {chunk / 3, n - singles, n - 1}, rows[] = {chunk - chunk / 3, singles, 1};
    for (int i = 0; i < 3 && form != FAST; i++) {
        if (rows[i] == 0)
            continue;
        const float *alone = run_mla(t, &m, row + from[i], rows[i], q + (size_t)from[i] * width, form, NULL, 0, &part);
        for (size_t j = 0; alone != NULL && j < (size_t)rows[i] * heads * m.v; j++)
            wrong += memcmp(alone + j, got + (size_t)from[i] * heads * m.v + j, 4) != 0;
    }
    if (form != FAST)
        result(t, wrong, 0, "the same bits in other company, %u heads, %u keys%s", heads, last, form == EXPANDED ? ", expanded" : "");
    release(t);
}

/* Rows that see chosen keys only, and some that see all of few. */
static void check_sparse(struct check *t, uint32_t heads, uint32_t top_k, uint32_t n, enum form form)
{
    struct mla m = make_mla(t, heads, 64, 2, 700);
    struct row *row = host(t, n * sizeof *row);
    int32_t *sel = host(t, (size_t)n * (top_k + 1) * 4);
    for (uint32_t i = 0; i < n; i++) {
        row[i] = (struct row){i % 2, i % 5 == 0 ? top_k / 2 : 690 - i, false};
        sel[i * (top_k + 1)] = i % 5 == 0 ? -1 : (int32_t)top_k;
        for (uint32_t j = 0; j < top_k; j++)
            sel[i * (top_k + 1) + 1 + j] = (int32_t)(j * 6 + i % 5);
    }
    const float *q = randoms(t, (size_t)n * heads * (64 + R)), *rotated = NULL, *got = run_mla(t, &m, row, n, q, form, sel, top_k, &rotated);
    if (got == NULL)
        return;
    double *want = host(t, (size_t)n * heads * m.v * sizeof *want);
    want_mla(t, &m, row, n, rotated, sel, top_k, want);
    result(t, distance(got, want, (size_t)n * heads * m.v), form == EXPANDED ? 1e-5 : 1e-3, "sparse attention, %u of 700 keys, %u heads, %u rows%s", top_k,
           heads, n, form == EXPANDED ? ", expanded" : "");
    release(t);
}

/* With and without a say on how a row is computed. */
static void check_products(struct check *t, bool fixed)
{
    const uint32_t types[] = {KRN_Q8_0, KRN_Q4_K, KRN_Q5_K, KRN_Q6_K};
    for (int i = 0; i < 4; i++)
        for (uint32_t n = 5; n < 400 && t->rc == RS_OK; n = n * 3 + 2) /* 5, 17, 53, 161 */
            if (!t->small || n == 17)
                check_gemm(t, types[i], n, t->small ? 40 : 300, t->small ? 256 : 768, fixed);
    for (int i = 0; i < 4 && !t->small; i++) /* wide tiles */
        check_gemm(t, types[i], 700, 500, 768, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q5_K, 9, false, fixed);
    if (t->small) {
        check_gemm(t, KRN_Q8_0, 140, 40, 192, fixed);
        check_gemm(t, KRN_Q8_0, 520, 40, 256, fixed); /* wide tiles */
        check_gemm(t, KRN_Q4_K, 520, 40, 256, fixed);
        check_grouped(t, KRN_Q5_K, KRN_Q6_K, 30, true, fixed);
        check_grouped(t, KRN_Q4_K, KRN_Q5_K, 60, true, fixed); /* by boxes, where that may be */
        return;
    }
    check_gemm(t, KRN_Q8_0, 300, 130, 192, fixed);
    check_gemm(t, KRN_Q4_K, 20, 17000, 256, fixed);
    check_gemm(t, KRN_Q8_0, 200, 17000, 256, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q8_0, 50, false, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q4_K, 20, false, fixed); /* by boxes, where that may be: tiles of 16, 32, 48, 64, 80, 96 and twice 64 rows */
    check_grouped(t, KRN_Q4_K, KRN_Q5_K, 70, false, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q5_K, 100, false, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q5_K, 60, true, fixed);
    check_grouped(t, KRN_Q5_K, KRN_Q5_K, 80, true, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q5_K, 100, true, fixed);
    check_grouped(t, KRN_Q4_K, KRN_Q5_K, 128, true, fixed);
    check_grouped(t, KRN_Q5_K, KRN_Q6_K, 60, true, fixed);
    check_grouped(t, KRN_Q8_0, KRN_Q8_0, 300, false, fixed);
    check_grouped(t, KRN_Q6_K, KRN_Q4_K, 400, true, fixed);
}

void cuda_selftest_many(struct check *t)
{
    check_products(t, true);
    check_products(t, false);
    check_halves(t, 21, 768);
    if (t->small) {
        check_mixed(t, 20, 192, 60, 9, 100, FAST);
        check_mixed(t, 8, 192, 0, 140, 70, FAST);
        check_route_many(t, 20, 64, 4, 1, true);
        check_mixed(t, 5, 64, 20, 0, 60, FAST);
        check_mixed(t, 3, 192, 0, 9, 70, FAST); /* few */
        check_mixed(t, 20, 64, 10, 9, 60, FAST);
        check_mixed(t, 20, 64, 40, 2, 60, FAST); /* asynchronous tensor cores */
        check_mixed(t, 16, 64, 9, 5, 150, FIXED);
        check_mixed(t, 5, 64, 70, 3, 150, EXPANDED);
        check_sparse(t, 8, 20, 16, FAST);
        check_sparse(t, 3, 20, 9, EXPANDED);
        return;
    }
    check_halves(t, 300, 2048);
    check_halves(t, 9, 6144);
    check_mixed(t, 20, 192, 0, 140, 200, FAST);
    check_route_many(t, 70, 64, 4, 1, true);
    check_route_many(t, 1100, 96, 8, 8, true); /* the large tiles */
    check_route_many(t, 4100, 96, 8, 8, true);
    check_route_many(t, 33, 300, 6, 1, false);
    check_route_many(t, 512, 60, 5, 1, false); /* in one launch, as those of 64 experts */
    check_route_many(t, 260, 64, 4, 1, true);
    check_mixed(t, 20, 192, 0, 8, 300, FAST); /* few */
    check_mixed(t, 20, 192, 6, 20, 150, FAST);
    check_mixed(t, 5, 64, 130, 0, 200, FAST);
    check_mixed(t, 20, 192, 40, 9, 150, FAST);
    check_mixed(t, 20, 192, 0, 40, 300, FAST);
    check_mixed(t, 20, 192, 300, 21, 400, FAST);
    check_mixed(t, 20, 192, 0, 300, 300, FAST); /* asynchronous tensor cores: more rows than there are places */
    check_mixed(t, 8, 192, 0, 540, 150, FAST);
    check_mixed(t, 12, 192, 0, 64, 1100, FAST); /* in splits, which not all rows have */
    check_mixed(t, 32, 192, 50, 64, 130, FAST);
    check_mixed(t, 64, 64, 9, 12, 330, FAST);
    check_mixed(t, 64, 128, 70, 0, 330, FAST);
    check_mixed(t, 100, 32, 0, 8, 150, FAST);
    check_mixed(t, 16, 64, 37, 11, 700, FIXED);
    check_mixed(t, 20, 64, 0, 5, 1200, FIXED);
    check_mixed(t, 5, 64, 130, 3, 200, EXPANDED);
    check_mixed(t, 3, 192, 40, 9, 1100, EXPANDED);
    check_mixed(t, 20, 64, 0, 5, 1200, EXPANDED);
    check_sparse(t, 8, 96, 16, FAST);
    check_sparse(t, 40, 100, 9, FAST);
    check_sparse(t, 8, 96, 16, EXPANDED);
}
