/* See synth.h. */
#include "engine/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/shape.h"
#include "kernels/type.h"

struct maker {
    uintptr_t at; /* the next made-up address */
    uint64_t params, bytes;
};

static struct weight tensor(struct maker *m, const char *name, uint32_t type, uint32_t k, uint32_t rows, uint32_t mats)
{
    struct weight w = {.name = name, .type = type, .k = k, .rows = rows, .n_mats = mats, .row_bytes = krn_row_bytes(type, k)};
    w.mat_bytes = w.row_bytes * rows;
    w.data = (const uint8_t *)m->at; /* never read */
    m->at += (w.mat_bytes * mats + 4095) / 4096 * 4096;
    m->params += (uint64_t)k * rows * mats;
    m->bytes += w.mat_bytes * mats;
    return w;
}

/* Rows that are no whole number of 256-blocks. */
static uint32_t expert_type(uint32_t type, uint32_t k)
{
    return k % 256 == 0 ? type : KRN_Q8_0;
}

static void fill_layer(struct maker *m, const struct hparams *hp, uint32_t layer, struct layer_weights *lw)
{
    struct weight *w = lw->w;
    const uint32_t e = hp->n_embd, heads = hp->n_heads;
    lw->moe = layer >= hp->n_dense;
    w[W_ATTN_NORM] = tensor(m, "attn_norm", KRN_F32, e, 1, 1);
    if (hp->q_lora != 0) {
        w[W_Q_A] = tensor(m, "attn_q_a", KRN_Q8_0, e, hp->q_lora, 1);
        w[W_Q_A_NORM] = tensor(m, "attn_q_a_norm", KRN_F32, hp->q_lora, 1, 1);
        w[W_Q_B] = tensor(m, "attn_q_b", KRN_Q8_0, hp->q_lora, heads * hp->k_mla, 1);
    } else {
        w[W_Q] = tensor(m, "attn_q", KRN_Q8_0, e, heads * hp->k_mla, 1);
    }
    w[W_KV_A] = tensor(m, "attn_kv_a_mqa", KRN_Q8_0, e, hp->kv_lora + hp->rope, 1);
    w[W_KV_A_NORM] = tensor(m, "attn_kv_a_norm", KRN_F32, hp->kv_lora, 1, 1);
    w[W_K_B] = tensor(m, "attn_k_b", KRN_Q8_0, hp->nope, hp->kv_lora, heads);
    w[W_V_B] = tensor(m, "attn_v_b", KRN_Q8_0, hp->kv_lora, hp->v_head, heads);
    w[W_ATTN_OUT] = tensor(m, "attn_output", KRN_Q8_0, heads * hp->v_head, e, 1);
    if (hp->index_heads != 0) {
        w[W_INDEX_Q_B] = tensor(m, "indexer.attn_q_b", KRN_Q8_0, hp->q_lora, hp->index_heads * hp->index_dim, 1);
        w[W_INDEX_K] = tensor(m, "indexer.attn_k", KRN_Q8_0, e, hp->index_dim, 1);
        w[W_INDEX_K_NORM] = tensor(m, "indexer.k_norm", KRN_F32, hp->index_dim, 1, 1);
        w[W_INDEX_K_NORM_B] = tensor(m, "indexer.k_norm.bias", KRN_F32, hp->index_dim, 1, 1);
        w[W_INDEX_PROJ] = tensor(m, "indexer.proj", KRN_Q8_0, e, hp->index_heads, 1);
    }
    w[W_FFN_NORM] = tensor(m, "ffn_norm", KRN_F32, e, 1, 1);
    if (!lw->moe) {
        w[W_FFN_GATE] = tensor(m, "ffn_gate", KRN_Q8_0, e, hp->n_ff, 1);
        w[W_FFN_UP] = tensor(m, "ffn_up", KRN_Q8_0, e, hp->n_ff, 1);
        w[W_FFN_DOWN] = tensor(m, "ffn_down", KRN_Q8_0, hp->n_ff, e, 1);
        return;
    }
    w[W_ROUTER] = tensor(m, "ffn_gate_inp", KRN_F32, e, hp->n_experts, 1);
    w[W_ROUTER_BIAS] = tensor(m, "exp_probs_b", KRN_F32, hp->n_experts, 1, 1);
    w[W_GATE_EXPS] = tensor(m, "ffn_gate_exps", expert_type(KRN_Q4_K, e), e, hp->n_ff_exp, hp->n_experts);
    w[W_UP_EXPS] = tensor(m, "ffn_up_exps", expert_type(KRN_Q4_K, e), e, hp->n_ff_exp, hp->n_experts);
    w[W_DOWN_EXPS] = tensor(m, "ffn_down_exps", expert_type(KRN_Q5_K, hp->n_ff_exp), hp->n_ff_exp, e, hp->n_experts);
    w[W_GATE_SHEXP] = tensor(m, "ffn_gate_shexp", KRN_Q8_0, e, hp->n_shared * hp->n_ff_exp, 1);
    w[W_UP_SHEXP] = tensor(m, "ffn_up_shexp", KRN_Q8_0, e, hp->n_shared * hp->n_ff_exp, 1);
    w[W_DOWN_SHEXP] = tensor(m, "ffn_down_shexp", KRN_Q8_0, hp->n_shared * hp->n_ff_exp, e, 1);
}

static void fill_hparams(const struct shape *s, uint32_t n_layers, struct hparams *hp)
{
    static const char *const ARCHS[] = {[HP_GLM_DSA] = "glm-dsa", [HP_DEEPSEEK2] = "deepseek2", [HP_DEEPSEEK32] = "deepseek32"};
    memset(hp, 0, sizeof *hp);
    hp->arch = s->arch;
    snprintf(hp->arch_name, sizeof hp->arch_name, "%s", ARCHS[s->arch]);
    hp->n_layers = n_layers;
    hp->context = s->context;
    hp->n_embd = s->embd;
    hp->n_ff = s->ff;
    hp->n_heads = s->heads;
    hp->vocab = s->vocab;
    hp->q_lora = s->q_lora;
    hp->kv_lora = SHAPE_KV_LORA;
    hp->rope = SHAPE_ROPE;
    hp->nope = s->nope;
    hp->v_head = s->v_head;
    hp->k_mla = s->nope + SHAPE_ROPE;
    hp->n_experts = s->experts;
    hp->n_used = s->used;
    hp->n_shared = s->shared;
    hp->n_ff_exp = s->ff_exp;
    hp->n_dense = s->dense < n_layers ? s->dense : n_layers;
    hp->n_groups = s->groups;
    hp->n_groups_used = s->groups_used;
    hp->gating = s->sigmoid ? HP_GATING_SIGMOID : HP_GATING_SOFTMAX;
    hp->expert_scale = s->expert_scale;
    hp->expert_norm = s->norm;
    hp->eps = s->eps;
    hp->rope_base = (double)s->rope_base;
    hp->rope_mag = 1;
    hp->yarn_factor = 1;
    double m = 1;
    if (s->yarn_log_mul > 0) {
        hp->yarn_factor = 40;
        hp->yarn_context = 4096;
        hp->yarn_log_mul = (double)s->yarn_log_mul;
        hp->yarn_beta_fast = 32;
        hp->yarn_beta_slow = hp->yarn_ext = hp->yarn_attn = 1;
        m += hp->yarn_log_mul * log(hp->yarn_factor);
    }
    hp->kq_scale = (float)(m * m / sqrt((double)hp->k_mla));
    if (s->index_heads == 0)
        return;
    hp->index_heads = s->index_heads;
    hp->index_dim = SHAPE_INDEX_DIM;
    hp->index_topk = SHAPE_TOP_K;
    hp->index_interleaved = true;
    bool shares = s->context >= 1048576; /* the rule of hparams_read() */
    for (uint32_t i = 0; i < HP_MAX_LAYERS; i++)
        hp->index_full[i] = !shares || i < 2 || i % 4 == 2;
    hp->index_rule = shares ? "context of 1M tokens: the GLM-5.2 pattern" : "every layer has its own";
}

enum rs_result synth_make(const char *name, uint32_t n_layers, struct hparams *hp, struct weights *w, struct rs_error *err)
{
    const struct shape *s = shape_find(name);
    if (s == NULL)
        return error_set(err, RS_ENOTFOUND, "no synthetic model '%.40s'; there are: glm-5, glm-5.2, glm-4.7-flash, deepseek-v3, deepseek-v2-lite", name);
    if (n_layers > s->layers)
        return error_set(err, RS_EUSAGE, "%s has %u layers, not %u", name, s->layers, n_layers);
    struct maker m = {.at = (uintptr_t)1 << 20};
    memset(w, 0, sizeof *w);
    fill_hparams(s, n_layers != 0 ? n_layers : s->layers, hp);
    w->layers = calloc(hp->n_layers, sizeof *w->layers);
    if (w->layers == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a synthetic model");
    w->n_layers = hp->n_layers;
    w->embed = tensor(&m, "token_embd", KRN_Q8_0, hp->n_embd, hp->vocab, 1);
    for (uint32_t i = 0; i < hp->n_layers; i++)
        fill_layer(&m, hp, i, &w->layers[i]);
    w->output_norm = tensor(&m, "output_norm", KRN_F32, hp->n_embd, 1, 1);
    w->output = tensor(&m, "output", KRN_Q8_0, hp->n_embd, hp->vocab, 1);
    w->n_params = m.params;
    w->file_bytes = m.bytes;
    return RS_OK;
}
