/* See delta.h. */
#include "engine/delta.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Are the first n values of both rows the same set? */
static bool same_set(const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t in_a = 0, in_b = 0;
        for (uint32_t j = 0; j < n; j++) {
            in_a += a[j] == b[i];
            in_b += b[j] == b[i];
        }
        if (in_a != in_b)
            return false;
    }
    return true;
}

void delta_compare(const struct tensor *a, const struct tensor *b, uint32_t n_sets, const bool *skip, bool *forked, struct delta *out)
{
    struct delta d = {.comparable = a->rows == b->rows && a->width == b->width};
    double diff = 0, norm = 0;
    for (uint32_t i = 0; i < a->rows && d.comparable; i++) {
        const float *x = a->data + (size_t)i * a->width, *y = b->data + (size_t)i * b->width;
        uint32_t from = n_sets <= a->width ? n_sets : a->width;
        if (skip != NULL && skip[i])
            continue;
        if (from != 0 && !same_set(x, y, from)) {
            d.sets_differ++;
            if (forked != NULL)
                forked[i] = true;
            continue;
        }
        for (uint32_t j = from; j < a->width; j++) {
            bool fx = isfinite(x[j]), fy = isfinite(y[j]);
            d.bad_a += !fx;
            d.bad_b += !fy;
            d.different += bits(x[j]) != bits(y[j]) && !(isnan(x[j]) && isnan(y[j])) && x[j] != y[j];
            if (!fx || !fy)
                continue;
            double e = fabs((double)x[j] - (double)y[j]);
            diff += e * e;
            norm += (double)y[j] * (double)y[j];
            if (e > d.max_abs) {
                d.max_abs = e;
                d.row = i;
                d.col = j;
                d.a = (double)x[j];
                d.b = (double)y[j];
            }
        }
    }
    d.n = (uint64_t)a->rows * a->width;
    d.rel = norm > 0 ? sqrt(diff / norm) : diff > 0 ? 1 : 0;
    *out = d;
}

bool delta_within(const struct delta *d, double tolerance)
{
    if (!d->comparable || d->bad_a != d->bad_b || d->sets_differ != 0)
        return false;
    return tolerance == 0 ? d->different == 0 : d->rel <= tolerance;
}

json_t *delta_json(const struct delta *d)
{
    return json_pack("{s:b,s:f,s:f,s:[i,i],s:f,s:f,s:I,s:I,s:I,s:I,s:I}", "comparable", d->comparable, "rel_l2", d->rel, "max_abs", d->max_abs, "at", (int)d->row, (int)d->col,
                     "a", d->a, "b", d->b, "n", (json_int_t)d->n, "different", (json_int_t)d->different, "not_finite_a", (json_int_t)d->bad_a, "not_finite_b",
                     (json_int_t)d->bad_b, "sets_differ", (json_int_t)d->sets_differ);
}

static bool has(const struct npz *z, const char *name)
{
    for (size_t i = 0; i < npz_count(z); i++)
        if (strcmp(npz_name(z, i), name) == 0)
            return true;
    return false;
}

static void add(const struct npz *z, struct delta_name out[4], uint32_t *n, struct delta_name x)
{
    if (*n < 4 && has(z, x.name))
        out[(*n)++] = x;
}

uint32_t delta_names(const struct npz *z, const struct program *p, const struct op *o, struct delta_name out[4])
{
    /* What scripts/reference.py calls what comes out of a site of a layer. */
    static const struct { const char *site, *name; uint32_t out; bool latent, pe, scores, sets; } TABLE[] = {
        {"attn.norm", "attn_norm", 0, false, false, false, false},       {"attn.mla", "attn_mix", 0, false, false, false, false},
        {"attn.allreduce", "attn_out", 0, false, false, false, false},   {"ffn.norm", "ffn_norm", 0, false, false, false, false},
        {"ffn.allreduce", "ffn_out", 0, false, false, false, false},     {"ffn.residual", "out", 0, false, false, false, false},
        {"attn.kv_store", "kv_latent", 0, true, false, false, false},    {"attn.kv_store", "k_pe", 0, false, true, false, false},
        {"ffn.router", "experts", 1, false, false, false, true},         {"attn.index.scores", "index_scores", 0, false, false, true, false},
    };
    const struct hparams *hp = p->hp;
    uint32_t n = 0;
    struct delta_name own = {.out = 0};
    snprintf(own.name, sizeof own.name, "%s", o->site);
    add(z, out, &n, own);
    if (n == 0 && o->kind == OP_GATHER) {
        snprintf(own.name, sizeof own.name, "logits");
        add(z, out, &n, own);
    }
    for (size_t i = 0; n == 0 ? i < sizeof TABLE / sizeof TABLE[0] : i < sizeof TABLE / sizeof TABLE[0] && strcmp(out[0].name, o->site) != 0; i++) {
        char site[OP_SITE_MAX];
        struct delta_name x = {.out = TABLE[i].out, .scores = TABLE[i].scores, .sets = TABLE[i].sets};
        snprintf(site, sizeof site, "blk.%d.%s", o->layer, TABLE[i].site);
        if (strcmp(site, o->site) != 0)
            continue;
        x.col = TABLE[i].pe ? hp->kv_lora : 0;
        x.width = TABLE[i].latent ? hp->kv_lora : TABLE[i].pe ? hp->rope : TABLE[i].sets ? hp->n_used : 0;
        snprintf(x.name, sizeof x.name, "blk.%d.%s", o->layer, TABLE[i].name);
        add(z, out, &n, x);
    }
    return n;
}

enum rs_result delta_load(const struct npz *z, const struct delta_name *n, uint32_t pos0, uint32_t rows, struct tensor *out, struct rs_error *err)
{
    struct npz_array a;
    enum rs_result rc = npz_get(z, n->name, &a, err);
    if (rc != RS_OK)
        return rc;
    uint64_t have = a.n_dims >= 2 ? a.dim[0] : 1, width = have != 0 ? a.n / have : 0, first = pos0;
    if (have < (uint64_t)pos0 + rows) { /* only the last rows were kept */
        if (have < rows && have != 1)
            return error_set(err, RS_EFORMAT, "%s has %llu rows, %u are compared", n->name, (unsigned long long)have, pos0 + rows);
        first = have > rows ? have - rows : 0;
        rows = have < rows ? (uint32_t)have : rows;
    }
    if (width == 0 || width > UINT32_MAX)
        return error_set(err, RS_EFORMAT, "%s has no columns", n->name);
    struct tensor t = {.rows = rows, .width = (uint32_t)width, .data = malloc(((size_t)rows * width + 1) * sizeof(float))};
    if (t.data == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %s", n->name);
    for (size_t i = 0; i < (size_t)rows * width; i++)
        t.data[i] = (float)npz_at(&a, (size_t)(first * width) + i);
    *out = t;
    return RS_OK;
}
