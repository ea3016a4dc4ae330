/* Binding tensors to roles. The table of roles says name, shape and when a tensor is needed; the code checks. */
#include "engine/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "kernels/quant.h"
#include "kernels/type.h"

enum need { ALWAYS, OPTIONAL, F32_ALWAYS, F32_OPTIONAL };

struct role {
    enum layer_role role;
    const char *name;
    enum need need;
    uint32_t k, rows, n_mats;
};

struct binder {
    const struct gguf *g;
    struct hparams *hp;
    struct weights *out;
    struct rs_error *err;
};

static enum rs_result check_type(const struct binder *b, const struct gguf_tensor *t, bool f32_only)
{
    const struct krn_type_info *ti = krn_type_info(t->type);
    if (ti == NULL || !ti->computes)
        return error_set(b->err, RS_EUNSUPPORTED, "%s: tensor %s has type %s, which this build does not compute", gguf_path(b->g, t->file), t->name,
                         ti != NULL ? ti->name : "?");
    if (f32_only && t->type != KRN_F32)
        return error_set(b->err, RS_EFORMAT, "%s: tensor %s has type %s, expected F32", gguf_path(b->g, t->file), t->name, ti->name);
    return RS_OK;
}

static void fill(struct weight *w, const struct gguf_tensor *t, uint32_t k, uint32_t rows, uint32_t n_mats)
{
    w->t = t;
    w->name = t->name;
    w->type = t->type;
    w->k = k;
    w->rows = rows;
    w->n_mats = n_mats;
    w->row_bytes = krn_row_bytes(t->type, k);
    w->mat_bytes = w->row_bytes * rows;
    w->data = t->data;
}

/* Bind tensor `name` as n_mats matrices of rows x k. Trailing dimensions may be folded ([k, rows*n_mats] holds the same bytes). */
static enum rs_result bind(struct binder *b, struct weight *w, const char *name, enum need need, uint32_t k, uint32_t rows, uint32_t n_mats)
{
    const struct gguf_tensor *t = gguf_find_tensor(b->g, name);
    if (t == NULL) {
        if (need == OPTIONAL || need == F32_OPTIONAL)
            return RS_OK;
        return error_set(b->err, RS_EFORMAT, "%s: tensor %s is missing", gguf_path(b->g, 0), name);
    }
    enum rs_result rc = check_type(b, t, need == F32_ALWAYS || need == F32_OPTIONAL);
    if (rc != RS_OK)
        return rc;
    uint64_t others = t->ne[1] * t->ne[2] * t->ne[3]; /* gguf_open has checked that the product fits */
    bool vector_as_column = rows == 1 && n_mats == 1 && t->ne[0] * others == k;
    if (!(t->ne[0] == k && others == (uint64_t)rows * n_mats && (n_mats == 1 || t->ne[1] == rows || t->ne[2] == 1)) && !vector_as_column)
        return error_set(b->err, RS_EFORMAT, "%s: tensor %s has shape [%llu, %llu, %llu], expected [%u, %u, %u]", gguf_path(b->g, t->file), name,
                         (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2], k, rows, n_mats);
    fill(w, t, k, rows, n_mats);
    w->f32_only = need == F32_ALWAYS || need == F32_OPTIONAL;
    b->out->used[t->ordinal] = true;
    b->out->n_params += (uint64_t)k * rows * n_mats;
    return RS_OK;
}

/* Experts' gate and up may stand in one tensor, gate rows first: two weights over the same bytes. */
static enum rs_result bind_fused_gate_up(struct binder *b, struct layer_weights *lw, const char *name)
{
    const struct hparams *hp = b->hp;
    struct weight both = {0};
    enum rs_result rc = bind(b, &both, name, ALWAYS, hp->n_embd, 2 * hp->n_ff_exp, hp->n_experts);
    if (rc != RS_OK)
        return rc;
    both.rows = hp->n_ff_exp;
    lw->w[W_GATE_EXPS] = both;
    lw->w[W_UP_EXPS] = both;
    lw->w[W_UP_EXPS].data += both.row_bytes * hp->n_ff_exp;
    return RS_OK;
}

enum { OWNED_PER_LAYER = 4 }; /* one for attn_kv_b, three for experts */

/* Files from before experts stood in one tensor: blk.N.ffn_gate.E.weight and the like. Their bytes are copied together, for experts must lie at
 * even distances. stem: "ffn_gate". */
static enum rs_result bind_legacy_experts(struct binder *b, struct weight *w, uint32_t layer, const char *stem, uint32_t k, uint32_t rows)
{
    char name[80];
    struct weight one = {0};
    uint8_t *all = NULL;
    const uint32_t n = b->hp->n_experts;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t type = one.type;
        snprintf(name, sizeof name, "blk.%u.%s.%u.weight", layer, stem, i);
        enum rs_result rc = bind(b, &one, name, ALWAYS, k, rows, 1);
        if (rc == RS_OK && i > 0 && one.type != type)
            rc = error_set(b->err, RS_EFORMAT, "%s: tensor %s has another type than the experts before it", gguf_path(b->g, 0), name);
        if (rc == RS_OK && all == NULL && (all = malloc(one.mat_bytes * n)) == NULL)
            rc = error_set(b->err, RS_ENOMEM, "out of memory: %zu bytes to join the experts of layer %u", one.mat_bytes * n, layer);
        if (rc != RS_OK) {
            free(all);
            return rc;
        }
        memcpy(all + i * one.mat_bytes, one.data, one.mat_bytes);
    }
    b->out->owned[b->out->n_owned++] = all;
    b->out->owned_bytes += one.mat_bytes * n;
    *w = one;
    w->n_mats = n;
    w->data = all;
    return RS_OK;
}

/* attn_kv_b holds, per head, nope rows of K and v rows of V over the latent. V's rows serve as they are; K is needed the other way round
 * (latent x nope), which a block format cannot express by moving bytes, so it becomes f32. */
static enum rs_result split_kv_b(struct binder *b, struct layer_weights *lw)
{
    const struct hparams *hp = b->hp;
    struct weight *kv = &lw->w[W_KV_B], *kb = &lw->w[W_K_B], *vb = &lw->w[W_V_B];
    size_t per_head = (size_t)hp->nope * hp->kv_lora, bytes = per_head * hp->n_heads * sizeof(float);
    float *dst = malloc(bytes), *row = malloc(hp->kv_lora * sizeof(float));
    if (dst == NULL || row == NULL) {
        free(dst);
        free(row);
        return error_set(b->err, RS_ENOMEM, "out of memory: %zu bytes for the K part of %s", bytes, kv->name);
    }
    for (uint32_t h = 0; h < hp->n_heads; h++)
        for (uint32_t d = 0; d < hp->nope; d++) {
            krn_dequant_row(kv->type, kv->data + ((size_t)h * (hp->nope + hp->v_head) + d) * kv->row_bytes, row, hp->kv_lora);
            for (uint32_t c = 0; c < hp->kv_lora; c++)
                dst[h * per_head + (size_t)c * hp->nope + d] = row[c];
        }
    free(row);
    b->out->owned[b->out->n_owned++] = dst;
    b->out->owned_bytes += bytes;
    *kb = (struct weight){.name = kv->name, .type = KRN_F32, .k = hp->nope, .rows = hp->kv_lora, .n_mats = hp->n_heads,
                          .row_bytes = hp->nope * sizeof(float), .mat_bytes = per_head * sizeof(float), .data = (const uint8_t *)dst};
    *vb = *kv;
    vb->rows = hp->v_head;
    vb->n_mats = hp->n_heads;
    vb->mat_bytes = (size_t)(hp->nope + hp->v_head) * kv->row_bytes;
    vb->data = kv->data + hp->nope * kv->row_bytes;
    return RS_OK;
}

static enum rs_result bind_table(struct binder *b, struct layer_weights *lw, uint32_t layer, const struct role *t, size_t n)
{
    char name[80];
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", layer, t[i].name);
        enum rs_result rc = bind(b, &lw->w[t[i].role], name, t[i].need, t[i].k, t[i].rows, t[i].n_mats);
        if (rc != RS_OK)
            return rc;
    }
    return RS_OK;
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static enum rs_result bind_attention(struct binder *b, struct layer_weights *lw, uint32_t i)
{
    const struct hparams *hp = b->hp;
    uint32_t e = hp->n_embd, l = hp->kv_lora, h = hp->n_heads, qd = h * hp->k_mla;
    const struct role common[] = {
        {W_ATTN_NORM, "attn_norm.weight", F32_ALWAYS, e, 1, 1},
        {W_KV_A, "attn_kv_a_mqa.weight", ALWAYS, e, l + hp->rope, 1},
        {W_KV_A_NORM, "attn_kv_a_norm.weight", F32_ALWAYS, l, 1, 1},
        {W_ATTN_OUT, "attn_output.weight", ALWAYS, h * hp->v_head, e, 1},
        {W_FFN_NORM, "ffn_norm.weight", F32_ALWAYS, e, 1, 1},
        {W_K_B, "attn_k_b.weight", OPTIONAL, hp->nope, l, h},
        {W_V_B, "attn_v_b.weight", OPTIONAL, l, hp->v_head, h},
        {W_KV_B, "attn_kv_b.weight", OPTIONAL, l, h * (hp->nope + hp->v_head), 1},
    };
    const struct role lora[] = {
        {W_Q_A, "attn_q_a.weight", ALWAYS, e, hp->q_lora, 1},
        {W_Q_A_NORM, "attn_q_a_norm.weight", F32_ALWAYS, hp->q_lora, 1, 1},
        {W_Q_B, "attn_q_b.weight", ALWAYS, hp->q_lora, qd, 1},
    };
    const struct role lite[] = {{W_Q, "attn_q.weight", ALWAYS, e, qd, 1}};
    const struct role index[] = {
        {W_INDEX_Q_B, "indexer.attn_q_b.weight", OPTIONAL, hp->q_lora, hp->index_heads * hp->index_dim, 1},
        {W_INDEX_K, "indexer.attn_k.weight", OPTIONAL, e, hp->index_dim, 1},
        {W_INDEX_K_NORM, "indexer.k_norm.weight", F32_OPTIONAL, hp->index_dim, 1, 1},
        {W_INDEX_K_NORM_B, "indexer.k_norm.bias", F32_OPTIONAL, hp->index_dim, 1, 1},
        {W_INDEX_PROJ, "indexer.proj.weight", OPTIONAL, e, hp->index_heads, 1},
    };
    enum rs_result rc = bind_table(b, lw, i, common, COUNT(common));
    if (rc == RS_OK)
        rc = hp->q_lora != 0 ? bind_table(b, lw, i, lora, COUNT(lora)) : bind_table(b, lw, i, lite, COUNT(lite));
    if (rc == RS_OK && hp->index_heads != 0 && hp->q_lora != 0)
        rc = bind_table(b, lw, i, index, COUNT(index));
    if (rc != RS_OK || (lw->w[W_K_B].data != NULL && lw->w[W_V_B].data != NULL))
        return rc;
    if (lw->w[W_KV_B].data == NULL)
        return error_set(b->err, RS_EFORMAT, "%s: layer %u has neither attn_k_b and attn_v_b nor attn_kv_b", gguf_path(b->g, 0), i);
    hp = b->hp;
    b->hp->legacy_kv_b = true;
    return split_kv_b(b, lw);
}

/* Three forms: one tensor each, gate and up in one, one tensor per expert. apart: the roles gate, up, down. */
static enum rs_result bind_experts(struct binder *b, struct layer_weights *lw, uint32_t i, const struct role apart[3])
{
    static const char *const STEMS[3] = {"ffn_gate", "ffn_up", "ffn_down"};
    char name[80];
    snprintf(name, sizeof name, "blk.%u.ffn_gate.0.weight", i);
    if (gguf_find_tensor(b->g, name) != NULL) {
        enum rs_result rc = RS_OK;
        for (int t = 0; t < 3 && rc == RS_OK; t++)
            rc = bind_legacy_experts(b, &lw->w[apart[t].role], i, STEMS[t], apart[t].k, apart[t].rows);
        return rc;
    }
    snprintf(name, sizeof name, "blk.%u.ffn_gate_up_exps.weight", i);
    if (gguf_find_tensor(b->g, name) == NULL)
        return bind_table(b, lw, i, apart, 3);
    enum rs_result rc = bind_fused_gate_up(b, lw, name);
    return rc == RS_OK ? bind_table(b, lw, i, apart + 2, 1) : rc;
}

static enum rs_result bind_ffn(struct binder *b, struct layer_weights *lw, uint32_t i)
{
    const struct hparams *hp = b->hp;
    uint32_t e = hp->n_embd, f = hp->n_ff, x = hp->n_ff_exp, n = hp->n_experts, s = hp->n_shared * x;
    const struct role dense[] = {
        {W_FFN_GATE, "ffn_gate.weight", ALWAYS, e, f, 1}, {W_FFN_UP, "ffn_up.weight", ALWAYS, e, f, 1}, {W_FFN_DOWN, "ffn_down.weight", ALWAYS, f, e, 1}};
    const struct role moe[] = {{W_ROUTER, "ffn_gate_inp.weight", ALWAYS, e, n, 1}, {W_ROUTER_BIAS, "exp_probs_b.bias", F32_OPTIONAL, n, 1, 1}};
    const struct role apart[] = {
        {W_GATE_EXPS, "ffn_gate_exps.weight", ALWAYS, e, x, n}, {W_UP_EXPS, "ffn_up_exps.weight", ALWAYS, e, x, n}, {W_DOWN_EXPS, "ffn_down_exps.weight", ALWAYS, x, e, n}};
    const struct role shared[] = {{W_GATE_SHEXP, "ffn_gate_shexp.weight", ALWAYS, e, s, 1},
                                  {W_UP_SHEXP, "ffn_up_shexp.weight", ALWAYS, e, s, 1},
                                  {W_DOWN_SHEXP, "ffn_down_shexp.weight", ALWAYS, s, e, 1}};
    char name[80];
    if (i < hp->n_dense)
        return bind_table(b, lw, i, dense, COUNT(dense));
    lw->moe = true;
    enum rs_result rc = bind_table(b, lw, i, moe, COUNT(moe));
    if (rc == RS_OK && lw->w[W_ROUTER_BIAS].data == NULL) { /* some converters left the suffix out */
        snprintf(name, sizeof name, "blk.%u.exp_probs_b", i);
        rc = bind(b, &lw->w[W_ROUTER_BIAS], name, F32_OPTIONAL, n, 1, 1);
    }
    if (rc == RS_OK)
        rc = bind_experts(b, lw, i, apart);
    if (rc == RS_OK && hp->n_shared != 0)
        rc = bind_table(b, lw, i, shared, COUNT(shared));
    return rc;
}

static enum rs_result bind_nextn(struct binder *b, struct layer_weights *lw, uint32_t i)
{
    const struct hparams *hp = b->hp;
    uint32_t e = hp->n_embd;
    const struct role t[] = {
        {W_EH_PROJ, "nextn.eh_proj.weight", ALWAYS, 2 * e, e, 1}, {W_ENORM, "nextn.enorm.weight", F32_ALWAYS, e, 1, 1},
        {W_HNORM, "nextn.hnorm.weight", F32_ALWAYS, e, 1, 1},     {W_HEAD_NORM, "nextn.shared_head_norm.weight", F32_OPTIONAL, e, 1, 1},
        {W_EMBED, "nextn.embed_tokens.weight", OPTIONAL, e, hp->vocab, 1}, {W_HEAD, "nextn.shared_head_head.weight", OPTIONAL, e, hp->vocab, 1}};
    return bind_table(b, lw, i, t, COUNT(t));
}

static enum rs_result bind_global(struct binder *b)
{
    struct weights *o = b->out;
    const struct gguf_tensor *t = gguf_find_tensor(b->g, "token_embd.weight");
    if (t == NULL)
        return error_set(b->err, RS_EFORMAT, "%s: tensor token_embd.weight is missing", gguf_path(b->g, 0));
    if (t->ne[1] > INT32_MAX)
        return error_set(b->err, RS_EFORMAT, "%s: tensor token_embd.weight has too many rows", gguf_path(b->g, 0));
    b->hp->vocab = (uint32_t)t->ne[1];
    enum rs_result rc = bind(b, &o->embed, "token_embd.weight", ALWAYS, b->hp->n_embd, b->hp->vocab, 1);
    if (rc == RS_OK)
        rc = bind(b, &o->output_norm, "output_norm.weight", F32_ALWAYS, b->hp->n_embd, 1, 1);
    if (rc == RS_OK)
        rc = bind(b, &o->output, "output.weight", OPTIONAL, b->hp->n_embd, b->hp->vocab, 1);
    if (rc == RS_OK && o->output.data == NULL) {
        o->tied = true;
        o->output = o->embed;
    }
    return rc;
}

enum rs_result weights_bind(const struct gguf *g, struct hparams *hp, struct weights *out, struct rs_error *err)
{
    memset(out, 0, sizeof *out);
    struct binder b = {.g = g, .hp = hp, .out = out, .err = err};
    out->n_layers = hp->n_layers + hp->n_nextn;
    out->layers = calloc(out->n_layers, sizeof *out->layers);
    out->owned = calloc(out->n_layers * OWNED_PER_LAYER, sizeof *out->owned);
    out->used = calloc(gguf_n_tensors(g) + 1, sizeof *out->used);
    if (out->layers == NULL || out->owned == NULL || out->used == NULL) {
        weights_free(out);
        return error_set(err, RS_ENOMEM, "out of memory for the list of weights");
    }
    out->file_bytes = gguf_file_bytes(g);
    enum rs_result rc = bind_global(&b);
    for (uint32_t i = 0; i < out->n_layers && rc == RS_OK; i++) {
        rc = bind_attention(&b, &out->layers[i], i);
        if (rc == RS_OK)
            rc = bind_ffn(&b, &out->layers[i], i);
        if (rc == RS_OK && i >= hp->n_layers)
            rc = bind_nextn(&b, &out->layers[i], i);
    }
    if (rc != RS_OK)
        weights_free(out);
    return rc;
}

void weights_free(struct weights *w)
{
    for (uint32_t i = 0; i < w->n_owned; i++)
        free(w->owned[i]);
    free(w->owned);
    free(w->layers);
    free(w->used);
    memset(w, 0, sizeof *w);
}

uint32_t weights_count(const struct weights *w)
{
    return 3 + w->n_layers * W_LAYER_COUNT;
}

struct weight *weights_at(struct weights *w, uint32_t i)
{
    struct weight *const GLOBAL[] = {&w->embed, &w->output_norm, &w->output};
    return i < 3 ? GLOBAL[i] : &w->layers[(i - 3) / W_LAYER_COUNT].w[(i - 3) % W_LAYER_COUNT];
}
