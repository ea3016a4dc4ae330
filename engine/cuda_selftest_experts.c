/* Self-test of products of experts with few rows each, in blocks that stay (gemm_experts.cu): so many pieces of work that every block has several, and so
 * little of K that whoever brings data is pieces ahead of whoever works. */
#include "engine/cuda_check.h"

enum { USED = 2, FIRST = 5, EVERY = 61 /* outputs apart that are computed again */ };

/* Experts of a row, and weights that nobody asks for. Few: the first one, which has pairs of all rows, and another, which for some rows is on another rank.
 * Many: two of all but the last three, which have none. */
static int32_t *choices(struct check *t, uint32_t n, uint32_t experts)
{
    int32_t *ids = host(t, (size_t)n * 2 * USED * 4);
    memset(ids, 0, (size_t)n * 2 * USED * 4);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < USED; j++)
            ids[i * 2 * USED + j] = FIRST + (int32_t)(experts > 8 ? (i * 7 + i / 64 + j * 11) % (experts - 3) : j * (1 + i % experts));
    return ids;
}

/* Every pair's own activations by its expert's weight, as a down projection does it. The kernel runs twice: a race hardly leaves the same bits behind. */
static void check_pieces(struct check *t, uint32_t type, uint32_t experts, uint32_t n, uint32_t rows, uint32_t k)
{
    const struct made w = matrix(t, type, rows, k, experts);
    const uint32_t pairs = n * USED;
    const size_t values = (size_t)pairs * rows;
    const float *x = randoms(t, (size_t)pairs * k);
    const int32_t *choice = choices(t, n, experts), *ids = device(t, choice, (size_t)pairs * 2 * 4);
    const struct kcu_grouped g = {.n_mats = 1, .m = {w.m}, .in = halved(t, device(t, x, (size_t)pairs * k * 4), pairs, k), .per_pair = true, .boxes = true,
                                  .n = n, .n_used = USED, .plan = device(t, NULL, kcu_group_words(n, USED, experts) * 4),
                                  .y = device(t, NULL, values * 4), .y_pitch = rows};
    if (t->rc == RS_OK && good(t, kcu_group(&t->l, ids, 2 * USED, n, USED, FIRST, experts, true, g.plan), "group") &&
        good(t, kcu_gemm_grouped(&t->l, &g), "experts")) {
        const float *y = fetch(t, g.y, values * 4);
        good(t, kcu_poison(&t->l, g.y, values * 4), "poison");
        const float *again = good(t, kcu_gemm_grouped(&t->l, &g), "experts") ? fetch(t, g.y, values * 4) : y;
        double *want = host(t, (values / EVERY + 1) * sizeof *want);
        float *mine = host(t, (values / EVERY + 1) * sizeof *mine);
        size_t m = 0;
        for (size_t i = 0; i < values && t->rc == RS_OK; i += EVERY) {
            const size_t p = i / rows;
            const uint32_t e = (uint32_t)(choice[p / USED * 2 * USED + p % USED] - FIRST);
            mine[m] = y[i];
            if (e < experts)
                want[m++] = dot(w.w + (e * rows + i % rows) * k, x + p * k, k);
        }
        result(t, distance(mine, want, m), 1e-3, "pieces of %u experts, %s, %u rows, %u x %u", experts, krn_type_info(type)->name, n, rows, k);
        result(t, memcmp(y, again, values * 4) != 0, 0, "the same bits again, %u experts, %s, %u rows, %u x %u", experts, krn_type_info(type)->name, n, rows, k);
    }
    release(t);
}

/* Gate and up together, with the activation. */
static void check_pair(struct check *t, uint32_t type, uint32_t experts, uint32_t n, uint32_t rows, uint32_t k)
{
    const struct made gate = matrix(t, type, rows, k, experts), up = matrix(t, type, rows, k, experts);
    const size_t values = (size_t)n * USED * rows;
    const float *x = randoms(t, (size_t)n * k);
    const int32_t *choice = choices(t, n, experts), *ids = device(t, choice, (size_t)n * 2 * USED * 4);
    const struct kcu_grouped g = {.n_mats = 2, .m = {gate.m, up.m}, .col = {0, rows}, .in = halved(t, device(t, x, (size_t)n * k * 4), n, k), .boxes = true,
                                  .n = n, .n_used = USED, .plan = device(t, NULL, kcu_group_words(n, USED, experts) * 4),
                                  .act = device(t, NULL, values * 4), .act_pitch = rows};
    if (t->rc == RS_OK && kcu_grouped_acts(&g) && good(t, kcu_group(&t->l, ids, 2 * USED, n, USED, FIRST, experts, true, g.plan), "group") &&
        good(t, kcu_gemm_grouped(&t->l, &g), "experts")) {
        double *want = host(t, values * sizeof *want);
        float *mine = host(t, values * sizeof *mine);
        const size_t m = gated(&gate, &up, x, choice, n, USED, FIRST, fetch(t, g.act, values * 4), want, mine);
        result(t, distance(mine, want, m), 1e-3, "gate and up of %u experts, %s, %u rows, %u x %u", experts, krn_type_info(type)->name, n,
               rows, k);
    }
    release(t);
}

void cuda_selftest_experts(struct check *t)
{
    static const uint32_t types[] = {KRN_Q4_K, KRN_Q5_K};
    t->l.fixed = false;
    t->made_up = true;
    for (int i = 0; i < 2 && t->rc == RS_OK; i++) {
        const uint32_t type = types[i];
        const struct made w = matrix(t, type, 256, 256, 3);
        const bool here = kcu_grouped_boxes(&t->l, &w.m, 32, USED);
        release(t);
        if (!here)
            continue;
        check_pieces(t, type, 3, 70, 300, 256);
        check_pair(t, type, 3, 70, 72, 256);
        check_pieces(t, type, 3, 20, 40, 2048); /* room is used again */
        if (t->small)
            continue;
        check_pieces(t, type, 3, 1024, 8000, 256); /* on 132 multiprocessors about ten pieces a block, of 96 rows */
        check_pieces(t, type, 8, 256, 12000, 256);
        check_pieces(t, type, 3, 1000, 4000, 512);
        check_pieces(t, type, 3, 40, 30000, 256); /* of 16 to 48 rows */
        check_pieces(t, type, 64, 1024, 1900, 256); /* the last 256 weight rows: less than half */
        check_pieces(t, type, 32, 300, 2000, 512);
        check_pair(t, type, 64, 600, 200, 256);
        check_pair(t, type, 64, 257, 200, 512);
    }
    t->made_up = false;
}
