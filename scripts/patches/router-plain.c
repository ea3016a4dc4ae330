/* The router: scores in double, then the best experts one after the other. As good a place as any to try another rule of choice.
 *
 *     /patch load scripts/patches/router-plain.c
 *     /patch set user=router-plain */
#include <math.h>
#include <stdbool.h>

#include "engine/patch_api.h"

enum { MOST = 512, PIECE = 256 }; /* experts; values of a weight's row at a time */

static double dot(const struct rankscope_weight *w, uint32_t row, const float *x)
{
    float v[PIECE];
    double s = 0;
    for (uint32_t k = 0; k < w->k; k += PIECE) {
        uint32_t n = w->k - k < PIECE ? w->k - k : PIECE;
        w->dequant(w->type, w->data + row * w->stride + k / PIECE * w->bytes_per_256, v, n);
        for (uint32_t j = 0; j < n; j++)
            s += (double)v[j] * (double)x[k + j];
    }
    return s;
}

/* The gating function in place. */
static void gate(const struct rankscope_router *r, double *x)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < r->n_experts; e++)
        top = x[e] > top ? x[e] : top;
    for (uint32_t e = 0; e < r->n_experts; e++) {
        x[e] = r->sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e] - top);
        sum += x[e];
    }
    for (uint32_t e = 0; e < r->n_experts && !r->sigmoid; e++)
        x[e] /= sum;
}

/* Only experts of the best groups stay in the race: a group is worth its two best together. */
static void limit_groups(const struct rankscope_router *r, double *s)
{
    uint32_t per = r->n_experts / r->n_groups;
    double worth[MOST];
    for (uint32_t g = 0; g < r->n_groups; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * per; e < (g + 1) * per; e++) {
            second = s[e] > first ? first : s[e] > second ? s[e] : second;
            first = s[e] > first ? s[e] : first;
        }
        worth[g] = per > 1 ? first + second : first;
    }
    for (uint32_t g = 0; g < r->n_groups; g++) {
        uint32_t better = 0;
        for (uint32_t k = 0; k < r->n_groups; k++)
            better += worth[k] > worth[g] || (worth[k] == worth[g] && k < g);
        for (uint32_t e = g * per; e < (g + 1) * per && better >= r->n_groups_used; e++)
            s[e] = -INFINITY;
    }
}

static void choose(const struct rankscope_router *r, const double *score, double *s, int32_t *ids, float *weights)
{
    double sum = 0;
    bool taken[MOST] = {false};
    for (uint32_t k = 0; k < r->n_used; k++) {
        uint32_t at = MOST;
        for (uint32_t e = 0; e < r->n_experts; e++)
            if (!taken[e] && (at == MOST || s[e] > s[at])) /* of equal ones the first */
                at = e;
        taken[at] = true;
        ids[k] = (int32_t)at;
        sum += score[at];
    }
    for (uint32_t k = 0; k < r->n_used; k++)
        weights[k] = (float)(score[ids[k]] * (double)r->scale / (r->normalise ? sum : 1));
}

static void run(const struct rankscope_call *c)
{
    const struct rankscope_router *r = &c->router;
    size_t from, to;
    if (r->n_experts > MOST)
        return;
    rankscope_share(c, c->in[0].rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        double score[MOST], s[MOST];
        float bias[MOST] = {0};
        if (c->w[1].rows != 0)
            c->w[1].dequant(c->w[1].type, c->w[1].data, bias, r->n_experts);
        for (uint32_t e = 0; e < r->n_experts; e++)
            score[e] = dot(&c->w[0], e, c->in[0].data + i * c->in[0].stride);
        gate(r, score);
        for (uint32_t e = 0; e < r->n_experts; e++) {
            c->out[0].data[i * c->out[0].stride + e] = (float)score[e];
            s[e] = score[e] + (double)bias[e];
        }
        if (r->n_groups_used < r->n_groups)
            limit_groups(r, s);
        choose(r, score, s, r->ids + i * r->stride, r->weights + i * r->stride);
    }
}

const struct rankscope_patch_v1 rankscope_patch = {
    RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), "router-plain", "router", "scores in double, experts one after the other", run};
