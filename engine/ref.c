/* See ref.h. */
#include "engine/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/known.h"
#include "kernels/quant.h"
#include "kernels/type.h"

/* Where a site's weights are, and which slice of them a rank has. */
enum slice { WHOLE, HEAD_ROWS, HEAD_COLS, FF_ROWS, FF_COLS, SHARED_ROWS, SHARED_COLS, EXP_ROWS, EXP_COLS, VOCAB_ROWS };

static const struct site {
    const char *site; /* behind "blk.N.", or the whole site where there is no layer */
    const char *tensor[2];
    enum slice slice;
} SITES[] = {
    {"embed", {"token_embd.weight"}, VOCAB_ROWS},
    {"output.norm", {"output_norm.weight"}, WHOLE},
    {"output.head", {"output.weight"}, VOCAB_ROWS},
    {"attn.norm", {"attn_norm.weight"}, WHOLE},
    {"attn.qkv_a", {"attn_q_a.weight", "attn_kv_a_mqa.weight"}, WHOLE},
    {"attn.q_norm", {"attn_q_a_norm.weight"}, WHOLE},
    {"attn.q_b", {"attn_q_b.weight"}, HEAD_ROWS},
    {"attn.q", {"attn_q.weight"}, HEAD_ROWS},
    {"attn.kv_store", {"attn_kv_a_norm.weight"}, WHOLE},
    {"attn.index.q", {"indexer.attn_q_b.weight"}, WHOLE},
    {"attn.index.k", {"indexer.attn_k.weight"}, WHOLE},
    {"attn.index.store", {"indexer.k_norm.weight", "indexer.k_norm.bias"}, WHOLE},
    {"attn.index.weights", {"indexer.proj.weight"}, WHOLE},
    {"attn.mla", {"attn_k_b.weight", "attn_v_b.weight"}, WHOLE},
    {"attn.out", {"attn_output.weight"}, HEAD_COLS},
    {"ffn.norm", {"ffn_norm.weight"}, WHOLE},
    {"ffn.gate_up", {"ffn_gate.weight", "ffn_up.weight"}, FF_ROWS},
    {"ffn.down", {"ffn_down.weight"}, FF_COLS},
    {"ffn.router", {"ffn_gate_inp.weight", "exp_probs_b.bias"}, WHOLE},
    {"ffn.exps.gate_up", {"ffn_gate_exps.weight", "ffn_up_exps.weight"}, EXP_ROWS},
    {"ffn.exps.down", {"ffn_down_exps.weight"}, EXP_COLS},
    {"ffn.shexp.gate_up", {"ffn_gate_shexp.weight", "ffn_up_shexp.weight"}, SHARED_ROWS},
    {"ffn.shexp.down", {"ffn_down_shexp.weight"}, SHARED_COLS},
};

/* Tensors that come from other files may be cut elsewhere: their blocks count. */
static enum rs_result take_types(struct ref *r, struct rs_error *err)
{
    for (uint32_t i = 0; i < weights_count(&r->w); i++) {
        struct weight *w = weights_at(&r->w, i);
        const struct gguf_tensor *from;
        if (w->data == NULL || w->t == NULL)
            continue;
        enum rs_result rc = donor_source(r->m, r->patches, w->t, &from, err);
        if (rc != RS_OK)
            return rc;
        w->type = from->type;
    }
    return RS_OK;
}

enum rs_result ref_open(const struct model *m, const struct patch_table *patches, const struct runtime_config *cfg, struct ref *out, struct rs_error *err)
{
    struct ref r = {.m = m, .patches = patches};
    enum rs_result rc = hparams_read(m->gguf, &r.hp, err);
    if (rc == RS_OK)
        rc = weights_bind(m->gguf, &r.hp, &r.w, err);
    if (rc != RS_OK)
        return rc;
    known_apply(&r.hp);
    rc = take_types(&r, err);
    if (rc == RS_OK)
        rc = shard_make(&r.hp, &r.w, cfg->ranks, cfg->split, &r.shard, err);
    if (rc != RS_OK)
        weights_free(&r.w);
    else
        *out = r;
    return rc;
}

void ref_close(struct ref *r)
{
    shard_free(&r->shard);
    weights_free(&r->w);
}

enum rs_result ref_make(uint32_t rows, uint32_t width, struct tensor *out, struct rs_error *err)
{
    *out = (struct tensor){.rows = rows, .width = width, .data = calloc((size_t)rows * width + 1, sizeof(float))};
    return out->data != NULL ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for a reference of %u x %u", rows, width);
}

const struct gguf_tensor *ref_find(const struct ref *r, int layer, const char *name)
{
    char full[100];
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    const struct gguf_tensor *t = gguf_find_tensor(r->m->gguf, full), *from;
    struct rs_error err;
    if (t == NULL && strcmp(name, "output.weight") == 0)
        return ref_find(r, -1, "token_embd.weight");
    if (t == NULL && strcmp(name, "exp_probs_b.bias") == 0)
        return ref_find(r, layer, "exp_probs_b");
    return t != NULL && donor_source(r->m, r->patches, t, &from, &err) == RS_OK ? from : NULL;
}

void ref_row(const struct gguf_tensor *t, uint64_t mat, uint64_t row, float *out)
{
    krn_dequant_row(t->type, t->data + (mat * t->ne[1] + row) * krn_row_bytes(t->type, (size_t)t->ne[0]), out, (size_t)t->ne[0]);
}

static const struct site *site_of(const struct op *o)
{
    const char *name = o->site;
    if (o->layer >= 0 && (name = strchr(o->site + 4, '.')) != NULL)
        name++;
    for (size_t i = 0; i < sizeof SITES / sizeof SITES[0]; i++)
        if (name != NULL && strcmp(SITES[i].site, name) == 0)
            return &SITES[i];
    return NULL;
}

/* Slots of this op: a model without q-LoRA has no first one in qkv_a. */
static uint32_t slots_of(const struct ref *r, const struct op *o, const char *names[2])
{
    const struct site *s = site_of(o);
    uint32_t n = 0;
    for (int i = 0; s != NULL && i < 2 && s->tensor[i] != NULL; i++)
        if (ref_find(r, o->layer, s->tensor[i]) != NULL || (o->kind != OP_QKV_A && i == 0) || o->kind == OP_GATE_UP || o->kind == OP_MOE_GATE_UP)
            names[n++] = s->tensor[i];
    return n;
}

uint32_t ref_tensors(const struct ref *r, const struct op *o, char names[4][80])
{
    const char *s[2];
    uint32_t n = slots_of(r, o, s);
    for (uint32_t i = 0; i < n; i++) {
        if (o->layer >= 0)
            snprintf(names[i], 80, "blk.%d.%s", o->layer, s[i]);
        else
            snprintf(names[i], 80, "%s", s[i]);
    }
    return n;
}

/* A rectangle of a tensor. */
struct part {
    const struct gguf_tensor *t;
    uint32_t row0, rows, col0, cols;
};

/* Rows of a tensor that a rank has, in a site that is cut by rows. false: it is not. */
static bool cut_rows(const struct ref *r, const struct op *o, enum slice how, uint32_t rank, struct shard_range *out)
{
    const struct shard_layer none = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}, *s = o->layer >= 0 ? shard_of(&r->shard, (uint32_t)o->layer, rank) : &none;
    switch (how) {
    case HEAD_ROWS: *out = (struct shard_range){s->heads.from * r->hp.k_mla, s->heads.to * r->hp.k_mla}; return true;
    case FF_ROWS: *out = s->ff; return true;
    case SHARED_ROWS: *out = s->shared; return true;
    case EXP_ROWS: *out = s->ff_exp; return true;
    case VOCAB_ROWS: *out = r->shard.vocab[rank]; return true;
    default: return false;
    }
}

static bool cut_cols(const struct ref *r, const struct op *o, enum slice how, uint32_t rank, struct shard_range *out)
{
    const struct shard_layer none = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}, *s = o->layer >= 0 ? shard_of(&r->shard, (uint32_t)o->layer, rank) : &none;
    switch (how) {
    case HEAD_COLS: *out = (struct shard_range){s->heads.from * r->hp.v_head, s->heads.to * r->hp.v_head}; return true;
    case FF_COLS: *out = s->ff; return true;
    case SHARED_COLS: *out = s->shared; return true;
    case EXP_COLS: *out = s->ff_exp; return true;
    default: return false;
    }
}

static enum rs_result part_of(const struct ref *r, const struct op *o, const char *name, uint32_t rank, struct part *out, struct rs_error *err)
{
    const struct gguf_tensor *t = ref_find(r, o->layer, name);
    const struct site *s = site_of(o);
    uint32_t first = 0;
    if (t == NULL && o->kind == OP_MOE_GATE_UP) { /* both in one tensor, gate first */
        t = ref_find(r, o->layer, "ffn_gate_up_exps.weight");
        first = strstr(name, "_up_") != NULL ? r->hp.n_ff_exp : 0;
    }
    if (t == NULL || s == NULL)
        return error_set(err, RS_ENOTFOUND, "%s: the file has no tensor %s", o->site, name);
    struct shard_range rows = {0, (uint32_t)t->ne[1]}, cols = {0, (uint32_t)t->ne[0]};
    if (!cut_rows(r, o, s->slice, rank, &rows))
        cut_cols(r, o, s->slice, rank, &cols);
    *out = (struct part){t, first + rows.from, rows.to - rows.from, cols.from, cols.to - cols.from};
    return RS_OK;
}

bool ref_int8(const struct capture *c, const struct op *o, uint32_t rank, uint32_t type, uint64_t k)
{
    if (patch_is_user(c->cfg.patches.reg, c->choices[o->index].impl))
        return false; /* how it rounds is its own affair */
    return capture_arith(c, o, rank) >= ARITH_INT8 && krn_type_info(type)->quantised && k % 32 == 0;
}

enum rs_result ref_round(struct tensor *x, struct rs_error *err)
{
    void *q = aligned_alloc(64, krn_q8_row_bytes(x->width));
    if (q == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a quantised row");
    for (uint32_t i = 0; i < x->rows; i++) {
        krn_q8_quant_row(x->data + (size_t)i * x->width, q, x->width);
        krn_q8_dequant_row(q, x->data + (size_t)i * x->width, x->width);
    }
    free(q);
    return RS_OK;
}

/* The input as the op's products see it. Slots of one op may differ in type: those that are not quantised see the exact values. */
static enum rs_result seen(const struct capture *c, const struct op *o, uint32_t rank, const struct part *p, const struct tensor *x, struct tensor *out,
                           struct rs_error *err)
{
    enum rs_result rc = ref_make(x->rows, x->width, out, err);
    if (rc == RS_OK && x->rows != 0)
        memcpy(out->data, x->data, (size_t)x->rows * x->width * sizeof *x->data);
    if (rc == RS_OK && x->width == p->cols && x->width != 0 && ref_int8(c, o, rank, p->t->type, p->cols))
        rc = ref_round(out, err);
    return rc;
}

/* y[i][at + row] (+)= scale_i * part(mat) . x[i], over rows of x that rows[] lists (NULL: all n). */
static enum rs_result multiply(const struct part *p, uint64_t mat, const struct tensor *x, uint32_t n, const uint32_t *x_row, const uint32_t *y_row, const float *scale,
                               struct tensor *y, uint32_t at, struct rs_error *err)
{
    float *w = malloc((size_t)p->t->ne[0] * sizeof *w);
    if (w == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a row of weights");
    for (uint32_t j = 0; j < p->rows && n != 0; j++) {
        ref_row(p->t, mat, p->row0 + j, w);
        for (uint32_t i = 0; i < n; i++) {
            const float *v = x->data + (size_t)(x_row != NULL ? x_row[i] : i) * x->width;
            double s = 0;
            for (uint32_t k = 0; k < p->cols && k < x->width; k++)
                s += (double)w[p->col0 + k] * (double)v[k];
            float *dst = &y->data[(size_t)(y_row != NULL ? y_row[i] : i) * y->width + at + j];
            *dst = (float)((double)*dst + s * (scale != NULL ? (double)scale[i] : 1));
        }
    }
    free(w);
    return RS_OK;
}

static enum rs_result input(const struct capture *c, const struct op *o, uint32_t k, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    return capture_tensor(c, o, true, k, (int)rank, out, err);
}

/* Linear and fused projections: slots side by side. */
static enum rs_result linear(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const char *names[2];
    struct part p[2];
    struct tensor x = {.data = NULL}, y = {.data = NULL};
    uint32_t n = slots_of(r, o, names), width = 0, at = 0;
    enum rs_result rc = input(c, o, 0, rank, &x, err);
    for (uint32_t s = 0; s < n && rc == RS_OK; s++) {
        rc = part_of(r, o, names[s], rank, &p[s], err);
        width += rc == RS_OK ? p[s].rows : 0;
    }
    uint32_t rows = x.rows != 0 ? x.rows : c->rows;
    if (rc == RS_OK)
        rc = o->accumulate ? input(c, o, OP_MAX_IN, rank, &y, err) : ref_make(width != 0 ? rows : 0, width, &y, err);
    for (uint32_t s = 0; s < n && rc == RS_OK && x.rows != 0; s++) {
        struct tensor v = {.data = NULL};
        rc = seen(c, o, rank, &p[s], &x, &v, err);
        if (rc == RS_OK)
            rc = multiply(&p[s], 0, &v, v.rows, NULL, NULL, NULL, &y, at, err);
        at += p[s].rows;
        tensor_free(&v);
    }
    tensor_free(&x);
    if (rc != RS_OK)
        tensor_free(&y);
    else
        *out = y;
    return rc;
}

static enum rs_result norm(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const char *names[2];
    uint32_t n = slots_of(r, o, names), span = o->kind == OP_KV_STORE ? r->hp.kv_lora : 0;
    const struct gguf_tensor *t = n != 0 ? ref_find(r, o->layer, names[0]) : NULL, *b = n > 1 ? ref_find(r, o->layer, names[1]) : NULL;
    bool layer_norm = o->kind == OP_INDEX_STORE;
    if (t == NULL)
        return error_set(err, RS_ENOTFOUND, "%s: the file has no weights of this norm", o->site);
    enum rs_result rc = input(c, o, 0, rank, out, err);
    uint32_t width = span != 0 ? span : out->width;
    float *w = rc == RS_OK ? calloc(2 * (size_t)t->ne[0] + width, sizeof *w) : NULL;
    if (rc == RS_OK && w == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for a norm");
    if (rc != RS_OK)
        return rc;
    ref_row(t, 0, 0, w);
    if (b != NULL)
        ref_row(b, 0, 0, w + t->ne[0]);
    for (uint32_t i = 0; i < out->rows; i++) {
        float *x = out->data + (size_t)i * out->width;
        double mean = 0, sq = 0;
        for (uint32_t j = 0; j < width; j++)
            mean += layer_norm ? (double)x[j] / width : 0;
        for (uint32_t j = 0; j < width; j++)
            sq += ((double)x[j] - mean) * ((double)x[j] - mean) / width;
        double f = 1 / sqrt(sq + (layer_norm ? 1e-6 : (double)r->hp.eps));
        for (uint32_t j = 0; j < width; j++)
            x[j] = (float)(((double)x[j] - mean) * f * (double)w[j] + (double)w[t->ne[0] + j]);
    }
    free(w);
    return RS_OK;
}

static enum rs_result silu(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    (void)r;
    struct tensor x = {.data = NULL};
    enum rs_result rc = input(c, o, 0, rank, &x, err);
    if (rc == RS_OK)
        rc = ref_make(x.rows, x.width / 2, out, err);
    for (uint32_t i = 0; i < x.rows && rc == RS_OK; i++)
        for (uint32_t j = 0; j < x.width / 2; j++) {
            double g = (double)x.data[(size_t)i * x.width + j], u = (double)x.data[(size_t)i * x.width + x.width / 2 + j];
            out->data[(size_t)i * out->width + j] = (float)(g / (1 + exp(-g)) * u);
        }
    tensor_free(&x);
    return rc;
}

/* ---- experts ---- */

/* Scores, and the weight of each chosen expert in `dense` [n_experts]. */
static void choose(const struct hparams *hp, const double *p, const float *bias, float *dense)
{
    double s[HP_MAX_EXPERTS], group[HP_MAX_EXPERTS], sum = 0;
    uint32_t per = hp->n_experts / hp->n_groups, chosen[HP_MAX_USED];
    for (uint32_t i = 0; i < hp->n_experts; i++)
        s[i] = p[i] + (bias != NULL ? (double)bias[i] : 0);
    for (uint32_t g = 0; g < hp->n_groups; g++) { /* a group counts for its two best */
        group[g] = 0;
        for (uint32_t i = 0; i < per; i++) {
            uint32_t better = 0;
            for (uint32_t j = 0; j < per; j++)
                better += s[g * per + j] > s[g * per + i] || (s[g * per + j] == s[g * per + i] && j < i);
            group[g] += better < 2 ? s[g * per + i] : 0;
        }
    }
    for (uint32_t g = 0; g < hp->n_groups; g++) {
        uint32_t better = 0;
        for (uint32_t k = 0; k < hp->n_groups; k++)
            better += group[k] > group[g] || (group[k] == group[g] && k < g);
        for (uint32_t i = 0; i < per && better >= hp->n_groups_used; i++)
            s[g * per + i] = -INFINITY;
    }
    for (uint32_t k = 0; k < hp->n_used; k++) {
        chosen[k] = 0;
        for (uint32_t i = 1; i < hp->n_experts; i++)
            if (s[i] > s[chosen[k]])
                chosen[k] = i;
        s[chosen[k]] = -INFINITY;
        sum += p[chosen[k]];
    }
    memset(dense, 0, hp->n_experts * sizeof *dense);
    for (uint32_t k = 0; k < hp->n_used; k++)
        dense[chosen[k]] = (float)(p[chosen[k]] / (hp->expert_norm ? sum : 1) * (double)hp->expert_scale);
}

static enum rs_result router(const struct ref *r, const struct capture *c, const struct op *o, uint32_t index, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const struct hparams *hp = &r->hp;
    struct tensor x = {.data = NULL};
    struct part p;
    const struct gguf_tensor *bt = ref_find(r, o->layer, "exp_probs_b.bias");
    float bias[HP_MAX_EXPERTS];
    double prob[HP_MAX_EXPERTS];
    enum rs_result rc = input(c, o, 0, rank, &x, err);
    if (rc == RS_OK)
        rc = part_of(r, o, "ffn_gate_inp.weight", rank, &p, err);
    if (rc == RS_OK)
        rc = ref_make(x.rows, hp->n_experts, out, err);
    if (rc == RS_OK)
        rc = multiply(&p, 0, &x, x.rows, NULL, NULL, NULL, out, 0, err);
    if (rc == RS_OK && bt != NULL)
        ref_row(bt, 0, 0, bias);
    for (uint32_t i = 0; i < x.rows && rc == RS_OK; i++) {
        float *l = out->data + (size_t)i * out->width;
        double most = -INFINITY, sum = 0;
        for (uint32_t j = 0; j < hp->n_experts; j++)
            most = fmax(most, (double)l[j]);
        for (uint32_t j = 0; j < hp->n_experts; j++)
            sum += exp((double)l[j] - most);
        for (uint32_t j = 0; j < hp->n_experts; j++)
            prob[j] = hp->gating == HP_GATING_SIGMOID ? 1 / (1 + exp(-(double)l[j])) : exp((double)l[j] - most) / sum;
        for (uint32_t j = 0; j < hp->n_experts; j++)
            l[j] = (float)prob[j];
        if (index == 1)
            choose(hp, prob, bt != NULL ? bias : NULL, l);
    }
    tensor_free(&x);
    return rc;
}

enum rs_result ref_dense_choice(const struct ref *r, const struct tensor *choice, struct tensor *out, struct rs_error *err)
{
    enum rs_result rc = ref_make(choice->rows, r->hp.n_experts, out, err);
    uint32_t used = choice->width / 2;
    for (uint32_t i = 0; i < choice->rows && rc == RS_OK; i++)
        for (uint32_t k = 0; k < used; k++) {
            float id = choice->data[(size_t)i * choice->width + k];
            if (id >= 0 && id < (float)r->hp.n_experts)
                out->data[(size_t)i * out->width + (uint32_t)id] = choice->data[(size_t)i * choice->width + used + k];
        }
    return rc;
}

/* (row, expert) pairs of a rank, by expert, then by row. */
struct pairs {
    uint32_t n, *row, *expert, *self;
    float *weight;
};

static void free_pairs(struct pairs *p)
{
    free(p->row);
    free(p->expert);
    free(p->self);
    free(p->weight);
}

static enum rs_result find_pairs(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct pairs *out, struct rs_error *err)
{
    struct tensor choice = {.data = NULL}, dense = {.data = NULL};
    struct shard_range ex = shard_of(&r->shard, (uint32_t)o->layer, rank)->experts;
    struct pairs p = {.n = 0};
    enum rs_result rc = input(c, o, 1, rank, &choice, err);
    if (rc == RS_OK)
        rc = ref_dense_choice(r, &choice, &dense, err);
    size_t most = (size_t)choice.rows * (choice.width / 2) + 1;
    if (rc == RS_OK) {
        p = (struct pairs){.row = calloc(most, sizeof *p.row), .expert = calloc(most, sizeof *p.expert), .self = calloc(most, sizeof *p.self), .weight = calloc(most, sizeof *p.weight)};
        if (p.row == NULL || p.expert == NULL || p.self == NULL || p.weight == NULL)
            rc = error_set(err, RS_ENOMEM, "out of memory for pairs");
    }
    for (uint32_t e = ex.from; e < ex.to && rc == RS_OK; e++)
        for (uint32_t i = 0; i < choice.rows; i++) {
            bool chosen = false;
            for (uint32_t k = 0; k < choice.width / 2; k++)
                chosen |= choice.data[(size_t)i * choice.width + k] == (float)e;
            if (!chosen)
                continue;
            p.row[p.n] = i;
            p.expert[p.n] = e;
            p.self[p.n] = p.n;
            p.weight[p.n] = dense.data[(size_t)i * dense.width + e];
            p.n++;
        }
    tensor_free(&choice);
    tensor_free(&dense);
    if (rc != RS_OK)
        free_pairs(&p);
    else
        *out = p;
    return rc;
}

/* Gate and up (down false) from BUF_H to pairs, or down from pairs to rows. */
static enum rs_result experts(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, bool down, struct tensor *out, struct rs_error *err)
{
    struct pairs p = {.n = 0};
    struct tensor x = {.data = NULL}, y = {.data = NULL}, v[2] = {{.data = NULL}, {.data = NULL}};
    struct part part[2] = {{.rows = 0}, {.rows = 0}};
    const char *names[2];
    uint32_t n = slots_of(r, o, names), width = 0;
    enum rs_result rc = find_pairs(r, c, o, rank, &p, err);
    if (rc == RS_OK)
        rc = input(c, o, 0, rank, &x, err);
    for (uint32_t s = 0; s < n && rc == RS_OK; s++) {
        rc = part_of(r, o, names[s], rank, &part[s], err);
        width += rc == RS_OK ? part[s].rows : 0;
        if (rc == RS_OK)
            rc = seen(c, o, rank, &part[s], &x, &v[s], err);
    }
    if (rc == RS_OK)
        rc = ref_make(down ? c->rows : p.n, width, &y, err);
    for (uint32_t from = 0, to; from < p.n && rc == RS_OK; from = to) {
        for (to = from; to < p.n && p.expert[to] == p.expert[from]; to++)
            ;
        for (uint32_t s = 0, at = 0; s < n && rc == RS_OK; at += part[s].rows, s++)
            rc = multiply(&part[s], p.expert[from], &v[s], to - from, down ? p.self + from : p.row + from, down ? p.row + from : p.self + from,
                          down ? p.weight + from : NULL, &y, at, err);
    }
    tensor_free(&x);
    tensor_free(&v[0]);
    tensor_free(&v[1]);
    free_pairs(&p);
    if (rc != RS_OK)
        tensor_free(&y);
    else
        *out = y;
    return rc;
}

/* ---- the rest ---- */

static enum rs_result embed(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const struct gguf_tensor *t = ref_find(r, -1, "token_embd.weight");
    (void)o;
    if (t == NULL)
        return error_set(err, RS_ENOTFOUND, "the file has no token_embd.weight");
    enum rs_result rc = ref_make(c->rows, (uint32_t)t->ne[0], out, err);
    for (uint32_t i = 0; i < c->rows && rc == RS_OK; i++) {
        uint32_t id = (uint32_t)c->e->batch.token[i];
        if (id >= r->shard.vocab[rank].from && id < r->shard.vocab[rank].to)
            ref_row(t, 0, id, out->data + (size_t)i * out->width);
    }
    return rc;
}

static enum rs_result reduce(const struct capture *c, const struct op *o, struct tensor *out, struct rs_error *err)
{
    return capture_tensor(c, o, true, 0, -1, out, err); /* a partial tensor as a whole is its sum, added in double */
}

static enum rs_result add(const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    struct tensor x = {.data = NULL};
    enum rs_result rc = input(c, o, 0, rank, &x, err);
    if (rc == RS_OK)
        rc = input(c, o, OP_MAX_IN, rank, out, err);
    for (size_t i = 0; rc == RS_OK && i < (size_t)out->rows * out->width; i++)
        out->data[i] += x.data[i];
    tensor_free(&x);
    return rc;
}

/* Rotate parts of every row: `n` pieces, `stride` apart, the rotated part at `at`. */
static enum rs_result rotate(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, uint32_t stride, uint32_t at, bool interleaved,
                             struct tensor *out, struct rs_error *err)
{
    enum rs_result rc = input(c, o, 0, rank, out, err);
    for (uint32_t i = 0; rc == RS_OK && i < out->rows; i++)
        for (uint32_t j = at; j + r->hp.rope <= out->width; j += stride)
            ref_rotate(&r->hp, out->data + (size_t)i * out->width + j, c->pos0 + i, interleaved);
    return rc;
}

static enum rs_result then_rotate(const struct ref *r, const struct capture *c, uint32_t at, bool interleaved, enum rs_result rc, struct tensor *out)
{
    for (uint32_t i = 0; rc == RS_OK && i < out->rows; i++)
        ref_rotate(&r->hp, out->data + (size_t)i * out->width + at, c->pos0 + i, interleaved);
    return rc;
}

/* The captured scores' best positions; rows with no more keys than top_k select all, which is written as a count of -1. */
static enum rs_result topk(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    struct tensor s = {.data = NULL};
    uint32_t k = r->hp.index_topk;
    enum rs_result rc = input(c, o, 0, rank, &s, err);
    if (rc == RS_OK)
        rc = ref_make(s.rows, k + 1, out, err);
    for (uint32_t i = 0; i < s.rows && rc == RS_OK; i++) {
        uint32_t keys = c->pos0 + i + 1, n = 0;
        float *y = out->data + (size_t)i * out->width;
        y[0] = keys <= k ? -1 : (float)k;
        for (uint32_t a = 0; a < keys && keys > k; a++) {
            const float *x = s.data + (size_t)i * s.width;
            uint32_t better = 0;
            for (uint32_t b = 0; b < keys; b++)
                better += x[b] > x[a] || (x[b] == x[a] && b < a);
            if (better < k)
                y[1 + n++] = (float)a;
        }
    }
    tensor_free(&s);
    return rc;
}

static enum rs_result gather(const struct capture *c, const struct op *o, struct tensor *out, struct rs_error *err)
{
    return capture_tensor(c, o, true, 0, -1, out, err);
}

enum rs_result ref_op(const struct ref *r, const struct capture *c, const struct op *o, uint32_t index, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    *out = (struct tensor){.data = NULL};
    switch (o->kind) {
    case OP_EMBED: return embed(r, c, o, rank, out, err);
    case OP_ALLREDUCE: return reduce(c, o, out, err);
    case OP_RMSNORM: return norm(r, c, o, rank, out, err);
    case OP_QKV_A: case OP_LINEAR: case OP_GATE_UP: return linear(r, c, o, rank, out, err);
    case OP_ROPE_Q: return rotate(r, c, o, rank, r->hp.k_mla, r->hp.nope, true, out, err);
    case OP_KV_STORE: return then_rotate(r, c, r->hp.kv_lora, true, norm(r, c, o, rank, out, err), out);
    case OP_MLA: return ref_mla(r, c, o, rank, out, err);
    case OP_INDEX_Q: return rotate(r, c, o, rank, r->hp.index_dim, 0, r->hp.index_interleaved, out, err);
    case OP_INDEX_STORE: return then_rotate(r, c, 0, r->hp.index_interleaved, norm(r, c, o, rank, out, err), out);
    case OP_INDEX_SCORES: return ref_index_scores(r, c, o, rank, out, err);
    case OP_INDEX_TOPK: return topk(r, c, o, rank, out, err);
    case OP_ADD: return add(c, o, rank, out, err);
    case OP_SILU_MUL: case OP_MOE_SILU_MUL: return silu(r, c, o, rank, out, err);
    case OP_ROUTER: return router(r, c, o, index, rank, out, err);
    case OP_MOE_GATE_UP: return experts(r, c, o, rank, false, out, err);
    case OP_MOE_DOWN: return experts(r, c, o, rank, true, out, err);
    case OP_PICK_ROWS: return input(c, o, 0, rank, out, err); /* captured steps want every row */
    case OP_GATHER: return gather(c, o, out, err);
    case OP_HIDDEN: case OP_KIND_COUNT: break; /* NextN blocks are not captured */
    }
    return error_set(err, RS_EUNSUPPORTED, "%s: no reference for ops of kind %s", o->site, op_kind_name(o->kind));
}
