/* Reading hyper-parameters. Facts per architecture are data in two tables below; the rest is checking. */
#include "engine/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/error.h"

struct reader {
    const struct gguf *g;
    struct hparams *hp;
    struct rs_error *err;
    enum rs_result rc; /* first failure; later calls do nothing */
};

static const struct {
    const char *name;
    bool interleaved_index;
    enum hp_gating gating; /* when the key is missing and no selection bias says otherwise */
} ARCHS[HP_ARCH_COUNT] = {
    [HP_GLM_DSA] = {"glm-dsa", true, HP_GATING_SIGMOID},
    [HP_DEEPSEEK2] = {"deepseek2", true, HP_GATING_SOFTMAX},
    [HP_DEEPSEEK32] = {"deepseek32", false, HP_GATING_SIGMOID},
};

/* label, unless NULL, says what the number stands for. */
static void note_default(struct hparams *hp, const char *key, bool matters, const char *meaning, double value, const char *label)
{
    if (hp->n_defaults == HP_MAX_DEFAULTS)
        return;
    struct hp_default *d = &hp->defaults[hp->n_defaults++];
    d->key = key;
    d->meaning = meaning;
    d->matters = matters;
    if (label != NULL)
        snprintf(d->value, sizeof d->value, "%g (%s)", value, label);
    else
        snprintf(d->value, sizeof d->value, "%g", value);
}

static void full_key(const struct reader *r, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", r->hp->arch_name, key);
}

/* Read an unsigned key; when absent take dflt, and note it if meaning is not NULL. */
static uint32_t key_u32(struct reader *r, const char *key, uint32_t dflt, const char *meaning)
{
    char name[128];
    uint32_t v = dflt;
    bool found = false;
    if (r->rc != RS_OK)
        return dflt;
    full_key(r, key, name);
    r->rc = gguf_get_u32(r->g, name, &v, &found, r->err);
    if (r->rc == RS_OK && !found) {
        v = dflt;
        if (meaning != NULL)
            note_default(r->hp, key, true, meaning, dflt, NULL);
    }
    return v;
}

static uint32_t need_u32(struct reader *r, const char *key, uint32_t min, uint32_t max)
{
    char name[128];
    uint32_t v = 0;
    bool found = false;
    if (r->rc != RS_OK)
        return min;
    full_key(r, key, name);
    r->rc = gguf_get_u32(r->g, name, &v, &found, r->err);
    if (r->rc != RS_OK)
        return min;
    if (!found)
        r->rc = error_set(r->err, RS_EFORMAT, "%s: key %s is missing", gguf_path(r->g, 0), name);
    else if (v < min || v > max)
        r->rc = error_set(r->err, RS_EFORMAT, "%s: key %s is %u, expected %u to %u", gguf_path(r->g, 0), name, v, min, max);
    return r->rc == RS_OK ? v : min;
}

static double key_f32(struct reader *r, const char *key, double dflt, const char *meaning, bool *was_found)
{
    char name[128];
    float v = 0;
    bool found = false;
    if (r->rc != RS_OK)
        return dflt;
    full_key(r, key, name);
    r->rc = gguf_get_f32(r->g, name, &v, &found, r->err);
    if (r->rc == RS_OK && found && !isfinite(v))
        r->rc = error_set(r->err, RS_EFORMAT, "%s: key %s is not finite", gguf_path(r->g, 0), name);
    if (r->rc == RS_OK && !found && meaning != NULL)
        note_default(r->hp, key, true, meaning, dflt, NULL);
    if (was_found != NULL)
        *was_found = found;
    return found ? (double)v : dflt;
}

static enum rs_result bad(struct reader *r, const char *what)
{
    if (r->rc == RS_OK)
        r->rc = error_set(r->err, RS_EFORMAT, "%s: %s", gguf_path(r->g, 0), what);
    return r->rc;
}

static void read_arch(struct reader *r)
{
    const char *s = NULL;
    size_t len = 0;
    bool found = false;
    r->rc = gguf_get_str(r->g, "general.architecture", &s, &len, &found, r->err);
    if (r->rc != RS_OK)
        return;
    if (!found) {
        bad(r, "key general.architecture is missing");
        return;
    }
    for (int a = 0; a < HP_ARCH_COUNT; a++)
        if (len == strlen(ARCHS[a].name) && memcmp(s, ARCHS[a].name, len) == 0) {
            r->hp->arch = (enum hp_arch)a;
            snprintf(r->hp->arch_name, sizeof r->hp->arch_name, "%s", ARCHS[a].name);
            return;
        }
    r->rc = error_set(r->err, RS_EUNSUPPORTED, "%s: architecture '%.*s' is not one of glm-dsa, deepseek2, deepseek32", gguf_path(r->g, 0),
                      (int)(len > 40 ? 40 : len), s);
}

/* A per-layer key may be a scalar or an array; the family uses one value, so an array must be constant. */
static uint32_t need_uniform(struct reader *r, const char *key, uint32_t min, uint32_t max)
{
    char name[128];
    struct gguf_kv kv;
    uint32_t v[HP_MAX_LAYERS];
    if (r->rc != RS_OK)
        return min;
    full_key(r, key, name);
    if (!gguf_find_kv(r->g, name, &kv) || kv.type != GGUF_ARRAY)
        return need_u32(r, key, min, max);
    size_t n = r->hp->n_layers + r->hp->n_nextn;
    r->rc = gguf_get_u32s(r->g, name, v, n, NULL, r->err);
    for (size_t i = 1; i < n && r->rc == RS_OK; i++)
        if (v[i] != v[0])
            r->rc = error_set(r->err, RS_EUNSUPPORTED, "%s: key %s differs between layers", gguf_path(r->g, 0), name);
    if (r->rc == RS_OK && (v[0] < min || v[0] > max))
        r->rc = error_set(r->err, RS_EFORMAT, "%s: key %s is %u, expected %u to %u", gguf_path(r->g, 0), name, v[0], min, max);
    return r->rc == RS_OK ? v[0] : min;
}

static void read_attention(struct reader *r)
{
    struct hparams *hp = r->hp;
    hp->n_heads = need_uniform(r, "attention.head_count", 1, 4096);
    hp->kv_lora = need_u32(r, "attention.kv_lora_rank", 1, 1 << 16);
    hp->q_lora = key_u32(r, "attention.q_lora_rank", 0, NULL);
    hp->rope = need_u32(r, "rope.dimension_count", 2, 1 << 12);
    uint32_t k = key_u32(r, "attention.key_length_mla", 0, NULL), v = key_u32(r, "attention.value_length_mla", 0, NULL);
    hp->k_mla = k != 0 ? k : need_u32(r, "attention.key_length", 1, 1 << 16);
    hp->v_head = v != 0 ? v : need_u32(r, "attention.value_length", 1, 1 << 16);
    if (r->rc != RS_OK)
        return;
    if (hp->rope % 2 != 0 || hp->rope >= hp->k_mla) {
        bad(r, "rope.dimension_count must be even and below the key length");
        return;
    }
    hp->nope = hp->k_mla - hp->rope;
    if (hp->q_lora > (1u << 16) || hp->v_head > (1u << 16) || hp->k_mla > (1u << 16))
        bad(r, "attention sizes out of range");
    hp->eps = (float)key_f32(r, "attention.layer_norm_rms_epsilon", 1e-6, "epsilon of every RMSNorm; models of this family use 1e-5 or 1e-6", NULL);
    if (r->rc == RS_OK && !(hp->eps > 0 && hp->eps < 1))
        bad(r, "attention.layer_norm_rms_epsilon out of range");
}

static void read_rope(struct reader *r)
{
    struct hparams *hp = r->hp;
    hp->rope_base = key_f32(r, "rope.freq_base", 10000.0, "base of the rotary angles: 10000 for DeepSeek, 1e6 or 8e6 for GLM", NULL);
    hp->rope_mag = 1;
    hp->kq_scale = 1.0f / sqrtf((float)hp->k_mla);
    char name[128];
    const char *s = NULL;
    size_t len = 0;
    bool found = false;
    if (r->rc != RS_OK)
        return;
    if (!(hp->rope_base > 1)) {
        bad(r, "rope.freq_base must be above 1");
        return;
    }
    full_key(r, "rope.scaling.type", name);
    r->rc = gguf_get_str(r->g, name, &s, &len, &found, r->err);
    if (r->rc != RS_OK || !found || (len == 4 && memcmp(s, "none", 4) == 0))
        return;
    if (len != 4 || memcmp(s, "yarn", 4) != 0) {
        r->rc = error_set(r->err, RS_EUNSUPPORTED, "%s: RoPE scaling '%.*s' is not computed (only yarn)", gguf_path(r->g, 0), (int)(len > 20 ? 20 : len), s);
        return;
    }
    hp->yarn_factor = key_f32(r, "rope.scaling.factor", 1.0, "YaRN without a factor stretches nothing", NULL);
    hp->yarn_context = need_u32(r, "rope.scaling.original_context_length", 1, UINT32_MAX);
    hp->yarn_log_mul = key_f32(r, "rope.scaling.yarn_log_multiplier", 0.0, "attention scale is not raised for the longer context: output degrades", NULL);
    hp->yarn_ext = key_f32(r, "rope.scaling.yarn_ext_factor", 1.0, NULL, NULL);
    hp->yarn_attn = key_f32(r, "rope.scaling.yarn_attn_factor", 1.0, NULL, NULL);
    hp->yarn_beta_fast = key_f32(r, "rope.scaling.yarn_beta_fast", 32.0, NULL, NULL);
    hp->yarn_beta_slow = key_f32(r, "rope.scaling.yarn_beta_slow", 1.0, NULL, NULL);
    if (r->rc != RS_OK)
        return;
    if (!(hp->yarn_factor >= 1)) {
        bad(r, "rope.scaling.factor must be at least 1");
        return;
    }
    double m = 1 + hp->yarn_log_mul * log(hp->yarn_factor);
    hp->kq_scale = (float)(m * m / sqrt((double)hp->k_mla));
    hp->rope_mag = (float)hp->yarn_attn;
}

/* Does any MoE layer carry a selection bias? It exists only in models that route by sigmoid. */
static bool has_selection_bias(const struct gguf *g, const struct hparams *hp)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", hp->n_dense);
    if (gguf_find_tensor(g, name) != NULL)
        return true;
    snprintf(name, sizeof name, "blk.%u.exp_probs_b", hp->n_dense);
    return gguf_find_tensor(g, name) != NULL;
}

static void read_gating(struct reader *r)
{
    struct hparams *hp = r->hp;
    uint32_t g = key_u32(r, "expert_gating_func", 0, NULL);
    if (r->rc != RS_OK)
        return;
    if (g == HP_GATING_SOFTMAX || g == HP_GATING_SIGMOID) {
        hp->gating = (enum hp_gating)g;
        return;
    }
    if (g != 0) {
        r->rc = error_set(r->err, RS_EUNSUPPORTED, "%s: expert_gating_func %u is not computed (1 softmax, 2 sigmoid)", gguf_path(r->g, 0), g);
        return;
    }
    bool bias = has_selection_bias(r->g, hp);
    hp->gating = bias ? HP_GATING_SIGMOID : ARCHS[hp->arch].gating;
    const char *why = bias ? "routing by sigmoid, because the layers carry a selection bias"
                      : hp->gating == HP_GATING_SIGMOID ? "routing by sigmoid, the rule of this architecture"
                                                        : "routing by softmax, the rule of this architecture: fluent but wrong if the model was trained with sigmoid";
    note_default(hp, "expert_gating_func", true, why, hp->gating, hp->gating == HP_GATING_SIGMOID ? "sigmoid" : "softmax");
}

static void read_experts(struct reader *r)
{
    struct hparams *hp = r->hp;
    hp->n_experts = key_u32(r, "expert_count", 0, NULL);
    hp->n_dense = key_u32(r, "leading_dense_block_count", 0, NULL);
    if (r->rc != RS_OK)
        return;
    if (hp->n_experts == 0) {
        hp->n_dense = hp->n_layers;
        return;
    }
    if (hp->n_experts > HP_MAX_EXPERTS || hp->n_dense > hp->n_layers) {
        bad(r, "expert_count or leading_dense_block_count out of range");
        return;
    }
    hp->n_used = need_u32(r, "expert_used_count", 1, hp->n_experts < HP_MAX_USED ? hp->n_experts : HP_MAX_USED);
    hp->n_shared = key_u32(r, "expert_shared_count", 0, NULL);
    hp->n_ff_exp = need_u32(r, "expert_feed_forward_length", 1, 1 << 20);
    hp->n_groups = key_u32(r, "expert_group_count", 1, NULL);
    hp->n_groups_used = key_u32(r, "expert_group_used_count", 1, NULL);
    if (hp->n_groups == 0)
        hp->n_groups = 1;
    if (hp->n_groups_used == 0 || hp->n_groups_used > hp->n_groups)
        hp->n_groups_used = hp->n_groups;
    if (r->rc == RS_OK && (hp->n_experts % hp->n_groups != 0 || hp->n_shared > 64 ||
                           hp->n_experts / hp->n_groups * hp->n_groups_used < hp->n_used))
        bad(r, "expert groups do not fit the expert count");
    bool found = false;
    hp->expert_scale = (float)key_f32(r, "expert_weights_scale", 1.0, NULL, &found);
    if (!found)
        note_default(hp, "expert_weights_scale", hp->arch != HP_DEEPSEEK2 || hp->q_lora != 0, "routed experts are not scaled (GLM-5 and DeepSeek-V3 use 2.5)", 1, NULL);
    if (hp->expert_scale == 0)
        hp->expert_scale = 1;
    char name[128];
    full_key(r, "expert_weights_norm", name);
    if (r->rc == RS_OK)
        r->rc = gguf_get_bool(r->g, name, &hp->expert_norm, &found, r->err);
    if (r->rc == RS_OK && !found) {
        hp->expert_norm = false;
        note_default(hp, "expert_weights_norm", hp->q_lora != 0, "weights of the chosen experts are not normalised (DeepSeek-V2 alone was trained so)", 0, "false");
    }
    read_gating(r);
}

/* Which layers own an indexer: the key if there is one, else the rule by context length (GLM-5.2 shares, 5.0 and 5.1 do not). */
static void read_indexer(struct reader *r)
{
    struct hparams *hp = r->hp;
    if (hp->arch == HP_DEEPSEEK2)
        return;
    hp->index_heads = key_u32(r, "attention.indexer.head_count", 0, NULL);
    hp->index_dim = key_u32(r, "attention.indexer.key_length", 0, NULL);
    hp->index_topk = key_u32(r, "attention.indexer.top_k", 0, NULL);
    if (r->rc != RS_OK || hp->index_heads == 0)
        return;
    if (hp->index_heads > 1024 || hp->index_dim < hp->rope || hp->index_dim > 4096 || hp->index_topk == 0) {
        bad(r, "attention.indexer sizes out of range");
        return;
    }
    hp->index_interleaved = ARCHS[hp->arch].interleaved_index;
    char name[128];
    struct gguf_array a;
    bool found = false;
    full_key(r, "attention.indexer.types", name);
    r->rc = gguf_get_array(r->g, name, GGUF_WANT_BOOL, &a, &found, r->err);
    if (r->rc != RS_OK)
        return;
    if (found && a.count < hp->n_layers) {
        bad(r, "attention.indexer.types has fewer entries than layers");
        return;
    }
    bool by_context = hp->arch == HP_GLM_DSA && hp->context >= 1048576;
    hp->index_rule = found ? "attention.indexer.types" : by_context ? "context of 1M tokens: the GLM-5.2 pattern" : "every layer has its own";
    for (uint32_t i = 0; i < hp->n_layers + hp->n_nextn; i++)
        hp->index_full[i] = found && i < a.count ? gguf_array_i64(&a, i) != 0 : by_context ? i < 2 || i % 4 == 2 : true;
    if (!hp->index_full[0])
        bad(r, "attention.indexer.types: the first layer has nothing to share");
}

enum rs_result hparams_read(const struct gguf *g, struct hparams *out, struct rs_error *err)
{
    memset(out, 0, sizeof *out);
    struct reader r = {.g = g, .hp = out, .err = err, .rc = RS_OK};
    read_arch(&r);
    uint32_t blocks = need_u32(&r, "block_count", 1, HP_MAX_LAYERS);
    out->n_nextn = key_u32(&r, "nextn_predict_layers", 0, NULL);
    if (r.rc == RS_OK && out->n_nextn >= blocks)
        bad(&r, "nextn_predict_layers leaves no layer for the model");
    if (r.rc != RS_OK)
        return r.rc;
    out->n_layers = blocks - out->n_nextn;
    out->context = need_u32(&r, "context_length", 1, UINT32_MAX);
    out->n_embd = need_u32(&r, "embedding_length", 1, 1 << 17);
    out->n_ff = need_uniform(&r, "feed_forward_length", 1, 1 << 22);
    read_attention(&r);
    if (r.rc == RS_OK)
        read_rope(&r);
    read_experts(&r);
    read_indexer(&r);
    return r.rc;
}

double hparams_rope_freq(const struct hparams *hp, uint32_t pair)
{
    double f = pow(hp->rope_base, -2.0 * pair / hp->rope);
    if (hp->yarn_context == 0)
        return f;
    double log_base = 2 * log(hp->rope_base);
    double lo = floor(hp->rope * log(hp->yarn_context / (hp->yarn_beta_fast * 2 * M_PI)) / log_base);
    double hi = ceil(hp->rope * log(hp->yarn_context / (hp->yarn_beta_slow * 2 * M_PI)) / log_base);
    lo = fmax(0, lo);
    hi = fmin(hp->rope - 1, hi);
    double ramp = (pair - lo) / fmax(0.001, hi - lo);
    ramp = (1 - fmin(1, fmax(0, ramp))) * hp->yarn_ext;
    return f / hp->yarn_factor * (1 - ramp) + f * ramp;
}
