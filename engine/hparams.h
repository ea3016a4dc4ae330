/* Hyper-parameters of a model: read from GGUF metadata, checked, defaults named.
 *
 * Everything here is immutable after hparams_read(). Symbols as in docs/design.md: L = kv_lora, N = nope, R = rope, V = v_head. Any thread. */
#ifndef RANKSCOPE_ENGINE_HPARAMS_H
#define RANKSCOPE_ENGINE_HPARAMS_H

#include "engine/gguf.h"
#include "engine/rankscope.h"

#define HP_MAX_LAYERS 512
#define HP_MAX_EXPERTS 512
#define HP_MAX_USED 64
#define HP_MAX_DEFAULTS 32

enum hp_arch { HP_GLM_DSA, HP_DEEPSEEK2, HP_DEEPSEEK32, HP_ARCH_COUNT };
enum hp_gating { HP_GATING_SOFTMAX = 1, HP_GATING_SIGMOID = 2 };

/* A key that the file lacks: what was taken instead and what that means for the output ("audit" prints these). */
struct hp_default {
    const char *key;     /* without the architecture's prefix; static */
    char value[32];
    const char *meaning; /* static */
    bool matters;        /* a wrong guess here changes the text, quietly */
};

struct hparams {
    enum hp_arch arch;
    char arch_name[32];
    uint32_t n_layers;      /* main stack, without NextN blocks */
    uint32_t n_nextn;
    uint32_t context;       /* trained context */
    uint32_t n_embd, n_ff, n_heads, vocab;
    uint32_t q_lora;        /* 0: "lite", q comes straight from the hidden state */
    uint32_t kv_lora, rope, nope, v_head;
    uint32_t k_mla;         /* nope + rope */
    bool legacy_kv_b;       /* attn_kv_b in place of attn_k_b and attn_v_b */
    uint32_t n_experts, n_used, n_shared, n_ff_exp, n_dense; /* n_dense: leading layers without experts */
    uint32_t n_groups, n_groups_used;
    enum hp_gating gating;
    float expert_scale;
    bool expert_norm;
    float eps;
    /* RoPE and YaRN (engine-level formula: docs/design.md) */
    double rope_base, yarn_factor, yarn_log_mul, yarn_beta_fast, yarn_beta_slow, yarn_ext, yarn_attn;
    uint32_t yarn_context;  /* 0: no YaRN */
    float kq_scale;         /* m^2 / sqrt(k_mla) */
    float rope_mag;         /* factor on cos and sin; 1 for every known model */
    /* DSA indexer; heads 0: none */
    uint32_t index_heads, index_dim, index_topk;
    bool index_interleaved;
    bool index_full[HP_MAX_LAYERS];
    const char *index_rule; /* where index_full comes from; static */

    uint32_t n_defaults;
    struct hp_default defaults[HP_MAX_DEFAULTS];
};

/* Read and check. Errors: RS_EFORMAT naming the key, RS_EUNSUPPORTED for an architecture or a gating function that is not computed. */
enum rs_result hparams_read(const struct gguf *g, struct hparams *out, struct rs_error *err);

/* RoPE frequency (radians per position) of pair i, YaRN applied. Source of the formula: YaRN paper, as GGUF engines apply it. */
double hparams_rope_freq(const struct hparams *hp, uint32_t pair);

/* All-reduces of one decode step: two per layer (attention output, FFN output) and one for the vocabulary-parallel embedding. */
static inline uint32_t hparams_allreduces(const struct hparams *hp) { return 2 * hp->n_layers + 1; }

#endif
