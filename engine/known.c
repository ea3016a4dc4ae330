/* See known.h. */
#include "engine/known.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum type { U32, F32, F64, BOOL, GATING };

static const struct key {
    const char *name;
    enum type type;
    size_t at;
} KEYS[] = {
    {"attention.layer_norm_rms_epsilon", F32, offsetof(struct hparams, eps)},
    {"rope.freq_base", F64, offsetof(struct hparams, rope_base)},
    {"rope.scaling.factor", F64, offsetof(struct hparams, yarn_factor)},
    {"rope.scaling.yarn_log_multiplier", F64, offsetof(struct hparams, yarn_log_mul)},
    {"rope.scaling.original_context_length", U32, offsetof(struct hparams, yarn_context)},
    {"expert_gating_func", GATING, offsetof(struct hparams, gating)},
    {"expert_weights_norm", BOOL, offsetof(struct hparams, expert_norm)},
    {"expert_weights_scale", F32, offsetof(struct hparams, expert_scale)},
    {"expert_used_count", U32, offsetof(struct hparams, n_used)},
    {"expert_group_count", U32, offsetof(struct hparams, n_groups)},
    {"expert_group_used_count", U32, offsetof(struct hparams, n_groups_used)},
    {"leading_dense_block_count", U32, offsetof(struct hparams, n_dense)},
    {"attention.indexer.top_k", U32, offsetof(struct hparams, index_topk)},
    {"indexer rotates neighbours", BOOL, offsetof(struct hparams, index_interleaved)},
};
enum { EPS, BASE, FACTOR, LOG_MUL, YARN_CTX, GATE, NORM, SCALE, USED, GROUPS, GROUPS_USED, DENSE, TOP_K, NEIGHBOURS, N_KEYS };

/* A model is recognised by its shape; layers 0: any model of the architecture. NAN: nothing is known. */
static const struct model {
    const char *name;
    enum hp_arch arch;
    uint32_t n_embd, n_layers, n_experts, context;
    double v[N_KEYS];
} MODELS[] = {
    {"GLM-5.2", HP_GLM_DSA, 6144, 78, 256, 1048576, {1e-5, 8e6, NAN, NAN, 0, 2, 1, 2.5, 8, 1, 1, 3, 2048, 1}},
    {"GLM-5, GLM-5.1", HP_GLM_DSA, 6144, 78, 256, 202752, {1e-5, 1e6, NAN, NAN, 0, 2, 1, 2.5, 8, 1, 1, 3, 2048, 1}},
    {"the model that rankscope ships", HP_GLM_DSA, 256, 6, 16, 2048, {1e-5, 1e6, NAN, NAN, 0, 2, 1, 2.5, 4, 1, 1, 1, 2048, 1}},
    {"GLM-4.7-Flash", HP_DEEPSEEK2, 2048, 47, 64, 202752, {1e-5, 1e6, NAN, NAN, 0, 2, 1, 1.8, 4, 1, 1, 1, NAN, NAN}},
    {"DeepSeek-V3, R1, V3.1", HP_DEEPSEEK2, 7168, 61, 256, 163840, {1e-6, 1e4, 40, 0.1, 4096, 2, 1, 2.5, 8, 8, 4, 3, NAN, NAN}},
    {"DeepSeek-V3.2", HP_DEEPSEEK32, 7168, 61, 256, 163840, {1e-6, 1e4, 40, 0.1, 4096, 2, 1, 2.5, 8, 8, 4, 3, 2048, 0}},
    {"Kimi-K2", HP_DEEPSEEK2, 7168, 61, 384, 0, {NAN, 5e4, NAN, NAN, 4096, 2, 1, 2.827, 8, 1, 1, 1, NAN, NAN}},
    {"DeepSeek-V2", HP_DEEPSEEK2, 5120, 60, 160, 0, {1e-6, 1e4, 40, NAN, 4096, 1, 0, 16, 6, 8, 3, 1, NAN, NAN}},
    {"DeepSeek-V2-Lite", HP_DEEPSEEK2, 2048, 27, 64, 163840, {1e-6, 1e4, 40, 0.0707, 4096, 1, 0, 1, 6, 1, 1, 1, NAN, NAN}},
    {"every glm-dsa model", HP_GLM_DSA, 0, 0, 0, 0, {1e-5, NAN, NAN, NAN, NAN, 2, 1, NAN, NAN, NAN, NAN, NAN, NAN, 1}},
    {"every deepseek32 model", HP_DEEPSEEK32, 0, 0, 0, 0, {NAN, NAN, NAN, NAN, NAN, 2, 1, NAN, NAN, NAN, NAN, NAN, NAN, 0}},
};

static const struct model *find(const struct hparams *hp)
{
    for (size_t i = 0; i < sizeof MODELS / sizeof MODELS[0]; i++) {
        const struct model *m = &MODELS[i];
        if (m->arch == hp->arch && (m->n_layers == 0 || (m->n_embd == hp->n_embd && m->n_layers == hp->n_layers && m->n_experts == hp->n_experts &&
                                                         (m->context == 0 || m->context == hp->context))))
            return m;
    }
    return NULL;
}

static double get(const struct hparams *hp, const struct key *k)
{
    const char *p = (const char *)hp + k->at;
    uint32_t u;
    float f;
    double d;
    bool b;
    enum hp_gating g;
    switch (k->type) {
    case U32: memcpy(&u, p, sizeof u); return u;
    case F32: memcpy(&f, p, sizeof f); return (double)f;
    case F64: memcpy(&d, p, sizeof d); return d;
    case BOOL: memcpy(&b, p, sizeof b); return b;
    case GATING: memcpy(&g, p, sizeof g); return g;
    }
    return NAN;
}

static void set(struct hparams *hp, const struct key *k, double v)
{
    char *p = (char *)hp + k->at;
    uint32_t u = (uint32_t)v;
    float f = (float)v;
    bool b = v != 0;
    enum hp_gating g = (enum hp_gating)u;
    switch (k->type) {
    case U32: memcpy(p, &u, sizeof u); break;
    case F32: memcpy(p, &f, sizeof f); break;
    case F64: memcpy(p, &v, sizeof v); break;
    case BOOL: memcpy(p, &b, sizeof b); break;
    case GATING: memcpy(p, &g, sizeof g); break;
    }
}

/* Keys that do not concern a model: experts where it has none, stretching where it does not stretch. */
static bool concerns(const struct hparams *hp, size_t k, double known)
{
    if (isnan(known) || (k >= GATE && k <= DENSE && hp->n_experts == 0))
        return false;
    return !(k == TOP_K || k == NEIGHBOURS) || hp->index_heads != 0;
}

static bool agree(double a, double b)
{
    return fabs(a - b) <= 1e-4 * fmax(fabs(a), fabs(b)); /* files carry f32, some of them rounded constants */
}

void known_apply(struct hparams *hp)
{
    const struct model *m = find(hp);
    for (size_t k = 0; m != NULL && k < N_KEYS; k++)
        if (concerns(hp, k, m->v[k]) && !agree(get(hp, &KEYS[k]), m->v[k]))
            set(hp, &KEYS[k], m->v[k]);
    if (m == NULL)
        return;
    double mul = hp->yarn_context != 0 ? 1 + hp->yarn_log_mul * log(hp->yarn_factor) : 1; /* follows from the above */
    hp->kq_scale = (float)(mul * mul / sqrt((double)hp->k_mla));
}

json_t *known_check(const struct hparams *hp, uint32_t *n_wrong)
{
    const struct model *m = find(hp);
    json_t *list = json_array();
    *n_wrong = 0;
    for (size_t k = 0; m != NULL && k < N_KEYS; k++) {
        if (!concerns(hp, k, m->v[k]))
            continue;
        double used = get(hp, &KEYS[k]);
        bool ok = agree(used, m->v[k]);
        *n_wrong += !ok;
        json_array_append_new(list, json_pack("{s:s,s:f,s:f,s:b,s:s}", "key", KEYS[k].name, "used", used, "known", m->v[k], "ok", ok, "of", m->name));
    }
    return list;
}

const char *known_model(const struct hparams *hp)
{
    const struct model *m = find(hp);
    return m != NULL ? m->name : NULL;
}
