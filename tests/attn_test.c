/* kernels/cpu/vec_attn*.h: absorbed attention of every instruction set against sums in double, and heads together against heads alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/vec.h"
#include "tests/tap.h"

enum { BLOCK = 16, MOST_KEYS = 300, MOST_D = 640, HEADS = KRN_I16_HEADS };

struct problem {
    struct krn_attn_absorbed a;
    float cache[MOST_KEYS][MOST_D], q[HEADS * MOST_D], want[HEADS * MOST_D], got[HEADS * MOST_D]; /* q and the last two: packed for a.l + a.r and a.l */
    uint16_t pages[(MOST_KEYS / BLOCK + 1) * BLOCK * MOST_D];
    int32_t table[MOST_KEYS / BLOCK + 1], sel[MOST_KEYS];
    float *scratch;
};

static uint64_t seed = 11;

static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 6; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(seed >> 40) * 0x1p-24f;
    }
    return (sum - 3) * 1.41f;
}

/* Rows whose latents are small beside their position part, as real ones are, with an outlier in some; blocks in reverse order. */
static void make(struct problem *p, uint32_t l, uint32_t r, uint32_t n, uint32_t heads)
{
    const uint32_t d = l + r, blocks = (n + BLOCK - 1) / BLOCK;
    const struct krn_cpu_vec *vec = krn_cpu_vec(KRN_ISA_PORTABLE);
    p->a = (struct krn_attn_absorbed){.kv = {.base = (const uint8_t *)p->pages, .table = p->table, .block_stride = BLOCK * d * 2, .row_bytes = d * 2,
                                             .block = BLOCK, .type = KRN_CACHE_F16},
                                      .l = l, .r = r, .n_heads = heads, .n_keys = n, .scale = 0.1f, .q = p->q, .out = p->got, .scores = p->scratch};
    for (uint32_t b = 0; b < blocks; b++)
        p->table[b] = (int32_t)(blocks - 1 - b);
    for (uint32_t t = 0; t < n; t++) {
        uint16_t *row = p->pages + ((size_t)p->table[t / BLOCK] * BLOCK + t % BLOCK) * d;
        for (uint32_t i = 0; i < d; i++)
            p->cache[t][i] = random_normal() * (i < l ? (i == t % 7 && t % 3 == 0 ? 0.5f : 0.03f) : 3.0f);
        vec->store(KRN_CACHE_F16, p->cache[t], row, d);
        vec->load(KRN_CACHE_F16, row, p->cache[t], d);
    }
    for (uint32_t i = 0; i < heads * d; i++)
        p->q[i] = random_normal() * (i % d < l ? 3.0f : 0.2f);
}

static void want(struct problem *p)
{
    const struct krn_attn_absorbed *a = &p->a;
    const uint32_t d = a->l + a->r, n = a->sel != NULL ? a->n_sel : a->n_keys;
    for (uint32_t h = 0; h < a->n_heads; h++) {
        double s[MOST_KEYS], top = -INFINITY, sum = 0;
        for (uint32_t j = 0; j < n; j++) {
            const float *row = p->cache[a->sel != NULL ? a->sel[j] : (int32_t)j];
            s[j] = 0;
            for (uint32_t i = 0; i < d; i++)
                s[j] += (double)p->q[h * d + i] * (double)row[i];
            s[j] *= (double)a->scale;
            top = fmax(top, s[j]);
        }
        for (uint32_t j = 0; j < n; j++)
            sum += s[j] = exp(s[j] - top);
        for (uint32_t i = 0; i < a->l; i++) {
            double x = 0;
            for (uint32_t j = 0; j < n; j++)
                x += s[j] / sum * (double)p->cache[a->sel != NULL ? a->sel[j] : (int32_t)j][i];
            p->want[h * a->l + i] = (float)x;
        }
    }
}

/* Relative L2 of the worst head. */
static double error_of(const struct problem *p)
{
    double worst = 0;
    for (uint32_t h = 0; h < p->a.n_heads; h++) {
        double d = 0, n = 0;
        for (uint32_t i = 0; i < p->a.l; i++) {
            const double x = (double)p->want[h * p->a.l + i], y = (double)p->got[h * p->a.l + i];
            d += (x - y) * (x - y);
            n += x * x;
        }
        worst = fmax(worst, sqrt(d / n));
    }
    return worst;
}

/* f32: sums of 576 terms and the exponential keep 1e-5. Integers: the largest of a row is 8 to 20 times its mean, so a latent is rounded by 1e-4 to
 * 2e-4 of the mean and a score by less; 5e-4 is what attention has of the 1e-3 that an f16 cache may cost. */
static void check(struct problem *p, void (*run)(const struct krn_attn_absorbed *), double tolerance, const char *name)
{
    static const uint32_t keys[] = {1, 2, 3, 4, 5, 15, 16, 63, 64, 65, 101, 128, 300};
    double worst = 0;
    bool same = true;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        for (uint32_t heads = 1; heads <= HEADS; heads++) {
            make(p, heads % 2 != 0 ? 512 : 64, heads % 3 != 0 ? 64 : 32, keys[k], heads);
            if (k % 2 != 0) { /* the sparse form: every other key */
                for (uint32_t j = 0; j < keys[k]; j += 2)
                    p->sel[p->a.n_sel++] = (int32_t)j;
                p->a.sel = p->sel;
            }
            want(p);
            run(&p->a);
            worst = fmax(worst, error_of(p));
            memcpy(p->want, p->got, sizeof p->got);
            for (uint32_t h = 0; h < heads; h++) {
                struct krn_attn_absorbed one = p->a;
                one.n_heads = 1;
                one.q += (size_t)h * (one.l + one.r);
                one.out += (size_t)h * one.l;
                run(&one);
            }
            same = same && memcmp(p->want, p->got, sizeof p->got) == 0;
        }
    tap_near(worst, 0, tolerance, "%s: within %g of sums in double (%.1e)", name, tolerance, worst);
    tap_ok(same, "%s: a head alone gives the same bits", name);
}

static bool all_nan(const struct problem *p, uint32_t h)
{
    bool all = true;
    for (uint32_t i = 0; i < p->a.l; i++)
        all = all && isnan(p->got[h * p->a.l + i]);
    return all;
}

/* What is not finite must not vanish in integers. */
static void check_nan(struct problem *p, void (*run)(const struct krn_attn_absorbed *))
{
    const uint16_t inf = 0x7C00;
    make(p, 512, 64, 70, HEADS);
    p->q[3 * 576 + 570] = NAN;
    run(&p->a);
    tap_ok(all_nan(p, 3) && isfinite(p->got[2 * 512]) && isfinite(p->got[4 * 512]), "integers: NaN in a head's query is in its result alone");
    make(p, 512, 64, 70, HEADS);
    p->pages[((size_t)p->table[1] * BLOCK + 3) * 576 + 5] = inf;
    run(&p->a);
    tap_ok(all_nan(p, 0) && all_nan(p, 7), "integers: a cached infinity makes every head NaN");
    make(p, 512, 64, 70, HEADS);
    memset(p->pages, 0, sizeof p->pages);
    run(&p->a);
    tap_ok(p->got[0] == 0.0f && p->got[8 * 512 - 1] == 0.0f, "integers: rows of zeros give zero");
}

int main(void)
{
    static struct problem p;
    const struct krn_cpu_vec *vec;
    static const char *const names[] = {"portable", "avx2", "avx512"};
    p.scratch = aligned_alloc(64, (krn_attn_i16_bytes(MOST_D) + 63) / 64 * 64);
    if (p.scratch == NULL)
        return 1;
    memset(p.scratch, 0, krn_attn_i16_bytes(MOST_D));
    for (int isa = KRN_ISA_PORTABLE; isa <= KRN_ISA_AVX512; isa++)
        if ((vec = krn_cpu_vec((enum krn_isa)isa)) != NULL)
            check(&p, vec->attn_absorbed, 1e-5, names[isa]);
        else
            tap_skip(2, "no %s", names[isa]);
    vec = krn_cpu_vec(KRN_ISA_AVX512);
    if (vec != NULL) {
        check(&p, vec->attn_absorbed_i16, 5e-4, "integers");
        check_nan(&p, vec->attn_absorbed_i16);
    } else {
        tap_skip(5, "no avx512");
    }
    free(p.scratch);
    return tap_done();
}
