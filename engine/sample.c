/* Sampling. See sample.h for the order of the steps. */
#include "engine/sample.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

void sample_defaults(struct sample_params *p)
{
    memset(p, 0, sizeof *p);
    p->top_p = 1;
    p->typical_p = 1;
    p->repeat_penalty = 1;
    p->penalty_last_n = 64;
}

bool sample_honest(const struct sample_params *p)
{
    return p->n_bias == 0 && p->repeat_penalty == 1 && p->frequency_penalty == 0 && p->presence_penalty == 0 && p->temp <= 1 && p->typical_p >= 1;
}

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void sample_seed(struct sample_rng *r, uint64_t seed)
{
    r->s[0] = splitmix(&seed);
    r->s[1] = splitmix(&seed);
}

/* xoroshiro128+, 53 bits to [0, 1). */
static double draw(struct sample_rng *r)
{
    uint64_t a = r->s[0], b = r->s[1], out = a + b;
    b ^= a;
    r->s[0] = (a << 24 | a >> 40) ^ b ^ b << 16;
    r->s[1] = b << 37 | b >> 27;
    return (double)(out >> 11) * 0x1p-53;
}

static int32_t largest(const float *x, uint32_t n)
{
    int32_t at = -1;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > (at < 0 ? -INFINITY : x[at])) /* false for NaN */
            at = (int32_t)i;
    return at < 0 ? 0 : at;
}

/* info->logprob lacks the token's logit, which the caller adds. */
static void tell(const struct krn_logits *l, struct sample_info *info)
{
    info->nonfinite = (int)l->nonfinite;
    info->constant = l->top == l->low;
    info->top_gap = l->top - l->second;
    double z = (double)l->tops + (double)l->z, w = (double)l->w / z, w2 = (double)l->w2 / z;
    info->entropy = l->tops > 0 ? (float)(log(z) - w) : 0;
    info->varentropy = l->tops > 0 ? (float)fmax(w2 - w * w, 0) : 0;
    info->logprob = l->tops > 0 ? (float)((double)-l->top - log(z)) : 0;
}

/* Returns the likeliest token: the first with the largest finite logit, 0 if none is finite. */
static int32_t describe(const struct krn_cpu_vec *vec, const float *x, uint32_t n, struct sample_info *info)
{
    struct krn_logits l;
    vec->describe(x, n, &l);
    tell(&l, info);
    int32_t at = 0;
    while (l.tops > 0 && x[at] != l.top)
        at++;
    return at;
}

static bool penalises(const struct sample_params *p)
{
    return p->repeat_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

/* Penalties on tokens seen in the last penalty_last_n. A token's first occurrence in the window carries its whole count, found by a look ahead: the
 * window is short. */
static void penalise(const struct sample_params *p, float *x, uint32_t vocab, const int32_t *h, uint32_t n)
{
    if (!penalises(p))
        return;
    uint32_t from = n > p->penalty_last_n ? n - p->penalty_last_n : 0;
    for (uint32_t i = from; i < n; i++) {
        uint32_t count = 0;
        bool first = true;
        if (h[i] < 0 || (uint32_t)h[i] >= vocab)
            continue;
        for (uint32_t j = from; j < n; j++) {
            count += h[j] == h[i];
            if (j < i && h[j] == h[i])
                first = false;
        }
        if (!first)
            continue;
        float *l = &x[h[i]];
        *l = *l > 0 ? *l / p->repeat_penalty : *l * p->repeat_penalty;
        *l -= (float)count * p->frequency_penalty + p->presence_penalty;
    }
}

/* Best first; ties to the lower id. */
static bool before(const struct sample_item *a, const struct sample_item *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Move the k first (in the order of before()) of n items to the front, unordered: quickselect. */
static void select_top(struct sample_item *v, uint32_t n, uint32_t k)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        struct sample_item pivot = v[lo + (hi - lo - 1) / 2]; /* never the last one: the halves would not shrink */
        uint32_t i = lo, j = hi - 1;
        for (;;) {
            while (before(&v[i], &pivot))
                i++;
            while (before(&pivot, &v[j]))
                j--;
            if (i >= j)
                break;
            struct sample_item t = v[i];
            v[i++] = v[j];
            v[j--] = t;
        }
        /* Before i: what goes before the pivot. Where i and j meet stands the pivot itself, and it is left out, so that every turn gains. */
        if (k <= i)
            hi = i;
        else
            lo = j + 1;
        if (k == hi || k == lo)
            return;
    }
}

/* In place, without memory of its own (the C library's qsort may allocate). */
static void sort_items(struct sample_item *v, uint32_t n)
{
    while (n > 16) {
        select_top(v, n, n / 2);
        sort_items(v, n / 2);
        v += n / 2;
        n -= n / 2;
    }
    for (uint32_t i = 1; i < n; i++) {
        struct sample_item t = v[i];
        uint32_t j = i;
        for (; j > 0 && before(&t, &v[j - 1]); j--)
            v[j] = v[j - 1];
        v[j] = t;
    }
}

static double softmax(struct sample_item *v, uint32_t n)
{
    double z = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].p = expf(v[i].logit - v[0].logit);
        z += (double)v[i].p;
    }
    for (uint32_t i = 0; i < n; i++)
        v[i].p = (float)((double)v[i].p / z);
    return z;
}

/* Keep the tokens whose surprise is closest to the entropy until their mass reaches typical_p. */
static uint32_t typical(struct sample_item *v, uint32_t n, float mass)
{
    double h = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (v[i].p > 0)
            h -= (double)v[i].p * log((double)v[i].p);
    uint32_t kept = 0;
    while (kept < n && sum < (double)mass) {
        uint32_t best = kept;
        double least = INFINITY;
        for (uint32_t i = kept; i < n; i++) {
            double d = v[i].p > 0 ? fabs(-log((double)v[i].p) - h) : INFINITY;
            if (d < least) {
                least = d;
                best = i;
            }
        }
        struct sample_item t = v[kept];
        v[kept] = v[best];
        v[best] = t;
        sum += (double)v[kept++].p;
    }
    sort_items(v, kept);
    return kept;
}

static uint32_t nucleus(const struct sample_item *v, uint32_t n, float top_p)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)v[i].p;
        if (sum >= (double)top_p)
            return i + 1;
    }
    return n;
}

static int32_t pick(const struct sample_item *v, uint32_t n, struct sample_rng *r)
{
    double z = 0, u;
    for (uint32_t i = 0; i < n; i++)
        z += (double)v[i].p;
    u = draw(r) * z;
    for (uint32_t i = 0; i < n; i++) {
        u -= (double)v[i].p;
        if (u < 0)
            return v[i].id;
    }
    return v[n - 1].id;
}

/* One of the m candidates, which are best first: what is cut off, and the draw. */
static int32_t draw_one(const struct sample_params *p, struct sample_rng *r, struct sample_item *v, uint32_t m)
{
    softmax(v, m);
    if (p->typical_p < 1)
        m = typical(v, m, p->typical_p);
    if (p->top_p < 1)
        m = nucleus(v, m, p->top_p);
    if (p->min_p > 0) {
        uint32_t k = 1;
        while (k < m && v[k].p >= p->min_p * v[0].p)
            k++;
        m = k;
    }
    return pick(v, m, r);
}

/* Candidates, best first: at most `limit` of them, and none whose probability is below e^-30 of the best's: even a whole vocabulary of those
 * has no weight, and sorting it would cost more than a step of a small model. */
static uint32_t candidates(const float *x, uint32_t vocab, float temp, uint32_t limit, struct sample_item *v)
{
    uint32_t n = 0;
    float low = x[largest(x, vocab)] / temp - 30;
    for (uint32_t i = 0; i < vocab; i++)
        if (isfinite(x[i]) && x[i] / temp >= low)
            v[n++] = (struct sample_item){x[i] / temp, 0, (int32_t)i};
    if (limit != 0 && limit < n) {
        select_top(v, n, limit);
        n = limit;
    }
    sort_items(v, n);
    return n;
}

uint32_t sample_top(const float *logits, uint32_t vocab, uint32_t n, struct sample_item *out)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < vocab && n > 0; i++) {
        if (!(logits[i] >= -INFINITY) || (have == n && logits[i] <= out[n - 1].logit))
            continue;
        uint32_t j = have < n ? have++ : n - 1;
        for (; j > 0 && out[j - 1].logit < logits[i]; j--)
            out[j] = out[j - 1];
        out[j] = (struct sample_item){.logit = logits[i], .id = (int32_t)i};
    }
    return have;
}

int32_t sample_token(const struct sample_params *p, struct sample_rng *r, const float *logits, uint32_t vocab, const int32_t *history, uint32_t n,
                     struct sample_scratch *scratch, struct sample_info *info)
{
    const float *x = logits;
    int32_t id;
    int32_t likeliest = describe(scratch->vec != NULL ? scratch->vec : krn_cpu_vec(KRN_ISA_PORTABLE), logits, vocab, info);
    if (p->n_bias != 0 || penalises(p)) {
        memcpy(scratch->logits, logits, vocab * sizeof *logits);
        for (uint32_t i = 0; i < p->n_bias; i++)
            if ((uint32_t)p->bias[i].token < vocab)
                scratch->logits[p->bias[i].token] += p->bias[i].value;
        penalise(p, scratch->logits, vocab, history, n);
        x = scratch->logits;
    }
    if (p->temp <= 0) {
        id = x == logits && info->nonfinite == 0 ? likeliest : largest(x, vocab);
    } else {
        struct sample_item *v = scratch->items;
        uint32_t m = candidates(x, vocab, p->temp, p->top_k, v);
        id = m != 0 ? draw_one(p, r, v, m) : 0;
    }
    info->logprob += isfinite(logits[id]) ? logits[id] : 0;
    return id;
}

/* ---- from a list ---- */

/* SURE: how far the sum over all tokens, z, may be off, with room to spare; then a choice that comes out the same at both ends is the right one.
 * WIDE: logits over temperature, beyond which rounding them would take that room. */
#define SURE 1e-4
#define WIDE 256.0f

enum { LIST_ENOUGH = 256, LIST_MARGIN = 16, LIST_MOST = 512 };

bool sample_lists(const struct sample_params *p, uint32_t *n)
{
    *n = p->temp <= 0 ? 0 : p->top_k != 0 ? p->top_k + LIST_MARGIN : LIST_ENOUGH;
    return p->n_bias == 0 && !penalises(p) && (p->temp <= 0 || (p->typical_p >= 1 && p->top_k <= LIST_MOST));
}

/* How many of n candidates top_p keeps, *cut: fewer than there are tokens. false: too close to call. p of an item: its weight, where the best has 1. */
static bool nucleus_surely(const struct sample_item *v, uint32_t n, double goal, uint32_t *kept, bool *cut)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)v[i].p;
        if (sum >= goal * (1 + SURE)) {
            *kept = i + 1;
            *cut = true;
            return true;
        }
        if (sum > goal * (1 - SURE))
            return false;
    }
    return true;
}

static bool min_p_surely(const struct sample_item *v, uint32_t n, double least, uint32_t *kept, bool *cut)
{
    for (uint32_t k = 1; k < n; k++) {
        double p = (double)v[k].p;
        if (p >= least * (1 + SURE))
            continue;
        if (p > least * (1 - SURE))
            return false;
        *kept = k;
        *cut = true;
        return true;
    }
    return true;
}

/* draw_one() where only the n first candidates are known, and z. What the draw is among weighs `least` to `most`. */
static bool draw_surely(const struct sample_params *p, struct sample_rng *r, struct sample_item *v, uint32_t n, double z, int32_t *id)
{
    struct sample_rng next = *r;
    double least = z, most = z, sum = 0, u;
    uint32_t m = n;
    bool cut = false;
    for (uint32_t i = 0; i < n; i++)
        v[i].p = expf(v[i].logit - v[0].logit);
    if (p->top_p < 1 && !nucleus_surely(v, n, (double)p->top_p * z, &m, &cut))
        return false;
    if (p->min_p > 0 && !min_p_surely(v, m, (double)p->min_p, &m, &cut))
        return false;
    if (!cut && p->min_p > 0) /* it cuts further down */
        return false;
    if (!cut && p->top_p < 1) { /* so does top_p, where the sum passes it */
        least = z * (double)p->top_p;
        most = least + (double)v[n - 1].p;
    }
    for (uint32_t i = 0; i < m && cut; i++)
        least = most = (i == 0 ? 0 : most) + (double)v[i].p;
    u = draw(&next);
    for (uint32_t i = 0; i < m; i++) {
        sum += (double)v[i].p;
        if (sum > (u + SURE) * most) {
            *id = v[i].id;
            *r = next;
            return true;
        }
        if (sum > (u - SURE) * least)
            return false;
    }
    return false;
}

/* Of temperature above 0. */
static bool draw_listed(const struct sample_params *p, struct sample_rng *r, const struct sample_row *row, struct sample_item *v, int32_t *id)
{
    float top = row->figures.top / p->temp, low = top - 30, under = row->floor / p->temp; /* as candidates() has it; what is not listed is below */
    uint32_t m = 0;
    if (!(fabsf(top) < WIDE))
        return false;
    for (uint32_t i = 0; i < row->n; i++)
        if (row->list[i].logit / p->temp >= low)
            v[m++] = (struct sample_item){row->list[i].logit / p->temp, 0, row->list[i].id};
    sort_items(v, m);
    bool all = under < low, enough = p->top_k != 0 && p->top_k <= m && (all || v[p->top_k - 1].logit > under);
    if (m == 0)
        return false;
    if (all || enough) {
        *id = draw_one(p, r, v, enough ? p->top_k : m);
        return true;
    }
    return p->top_k == 0 && draw_surely(p, r, v, m, (double)row->z_temp, id);
}

bool sample_listed(const struct sample_params *p, struct sample_rng *r, const struct sample_row *row, struct sample_scratch *scratch, int32_t *id,
                   float *logit, struct sample_info *info)
{
    uint32_t n;
    if (!sample_lists(p, &n) || row->figures.nonfinite != 0)
        return false;
    if (p->temp <= 0)
        *id = row->likeliest;
    else if (!draw_listed(p, r, row, scratch->items, id))
        return false;
    *logit = row->figures.top;
    for (uint32_t i = 0; i < row->n && *id != row->likeliest; i++)
        if (row->list[i].id == *id)
            *logit = row->list[i].logit;
    tell(&row->figures, info);
    info->logprob += *logit;
    return true;
}

uint32_t sample_top_listed(const struct sample_row *row, uint32_t n, struct sample_item *out)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < row->n && n > 0; i++) {
        const struct sample_item *x = &row->list[i];
        if (have == n && !before(x, &out[n - 1]))
            continue;
        uint32_t j = have < n ? have++ : n - 1;
        for (; j > 0 && before(x, &out[j - 1]); j--)
            out[j] = out[j - 1];
        out[j] = *x;
    }
    return have;
}

/* Sums of a part, relative to a top that none of its values exceeds; see tell() for what they leave out. */
static void add_part(const struct sample_row *r, double top, double temp, double sum[4])
{
    const struct krn_logits *f = &r->figures;
    if (f->tops == 0)
        return;
    const double d = (double)f->top - top, s = exp(d), all = (double)f->z + (d < 0 ? (double)f->tops : 0);
    sum[0] += s * all;
    sum[1] += s * ((double)f->w + d * all);
    sum[2] += s * ((double)f->w2 + 2 * d * (double)f->w + d * d * all);
    sum[3] += temp > 0 ? (double)r->z_temp * exp(d / temp) : 0;
}

void sample_row_join(struct sample_row *a, const struct sample_row *b, float temp)
{
    const struct krn_logits x = a->figures, y = b->figures;
    struct krn_logits *f = &a->figures;
    double sum[4] = {0};
    f->top = fmaxf(x.top, y.top);
    f->second = fmaxf(fminf(x.top, y.top), fmaxf(x.second, y.second));
    f->low = fminf(x.low, y.low);
    f->tops = x.top > y.top ? x.tops : y.top > x.top ? y.tops : x.tops + y.tops;
    f->nonfinite += y.nonfinite;
    add_part(&(struct sample_row){.figures = x, .z_temp = a->z_temp}, (double)f->top, (double)temp, sum);
    add_part(b, (double)f->top, (double)temp, sum);
    f->z = (float)sum[0];
    f->w = (float)sum[1];
    f->w2 = (float)sum[2];
    a->z_temp = (float)sum[3];
    a->likeliest = y.tops != 0 && (x.tops == 0 || y.top > x.top) ? b->likeliest : a->likeliest;
    a->floor = fmaxf(a->floor, b->floor);
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->list[i].logit >= a->floor)
            a->list[n++] = a->list[i];
    for (uint32_t i = 0; i < b->n; i++)
        if (b->list[i].logit >= a->floor)
            a->list[n++] = b->list[i];
    a->n = n;
}
