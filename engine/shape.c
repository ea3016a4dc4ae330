/* See shape.h. */
#include "engine/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "kernels/quant.h"

static const struct shape SHAPES[] = {
    {.name = "glm-5", .arch = HP_GLM_DSA, .layers = 78, .nextn = 1, .context = 202752, .embd = 6144, .ff = 12288, .heads = 64, .q_lora = 2048, .nope = 192,
     .v_head = 256, .vocab = 154880, .dense = 3, .experts = 256, .used = 8, .shared = 1, .ff_exp = 2048, .groups = 1, .groups_used = 1, .index_heads = 32,
     .rope_base = 1e6f, .eps = 1e-5f, .expert_scale = 2.5f, .sigmoid = true, .norm = true},
    {.name = "glm-5.2", .arch = HP_GLM_DSA, .layers = 78, .nextn = 1, .context = 1048576, .embd = 6144, .ff = 12288, .heads = 64, .q_lora = 2048, .nope = 192,
     .v_head = 256, .vocab = 154880, .dense = 3, .experts = 256, .used = 8, .shared = 1, .ff_exp = 2048, .groups = 1, .groups_used = 1, .index_heads = 32,
     .rope_base = 8e6f, .eps = 1e-5f, .expert_scale = 2.5f, .sigmoid = true, .norm = true},
    {.name = "glm-4.7-flash", .arch = HP_DEEPSEEK2, .layers = 47, .nextn = 1, .context = 202752, .embd = 2048, .ff = 10240, .heads = 20, .q_lora = 768,
     .nope = 192, .v_head = 256, .vocab = 154880, .dense = 1, .experts = 64, .used = 4, .shared = 1, .ff_exp = 1536, .groups = 1, .groups_used = 1,
     .rope_base = 1e6f, .eps = 1e-5f, .expert_scale = 1.8f, .sigmoid = true, .norm = true},
    {.name = "deepseek-v3", .arch = HP_DEEPSEEK2, .layers = 61, .context = 163840, .embd = 7168, .ff = 18432, .heads = 128, .q_lora = 1536, .nope = 128,
     .v_head = 128, .vocab = 129280, .dense = 3, .experts = 256, .used = 8, .shared = 1, .ff_exp = 2048, .groups = 8, .groups_used = 4, .rope_base = 1e4f,
     .yarn_log_mul = 0.1f, .eps = 1e-6f, .expert_scale = 2.5f, .sigmoid = true, .norm = true},
    {.name = "deepseek-v2-lite", .arch = HP_DEEPSEEK2, .layers = 27, .context = 163840, .embd = 2048, .ff = 10944, .heads = 16, .nope = 128, .v_head = 128,
     .vocab = 102400, .dense = 1, .experts = 64, .used = 6, .shared = 2, .ff_exp = 1408, .groups = 1, .groups_used = 1, .rope_base = 1e4f,
     .yarn_log_mul = 0.0707f, .eps = 1e-6f, .expert_scale = 1},
};

const char *shape_name(size_t i)
{
    return i < sizeof SHAPES / sizeof SHAPES[0] ? SHAPES[i].name : NULL;
}

const struct shape *shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++)
        if (strcmp(SHAPES[i].name, name) == 0)
            return &SHAPES[i];
    return NULL;
}

/* ---- keys ---- */

struct keys {
    struct gguf_writer *w;
    const char *arch;
};

static const char *full(const struct keys *k, const char *key, char name[128])
{
    snprintf(name, 128, "%s.%s", k->arch, key);
    return name;
}

static void u32(const struct keys *k, const char *key, uint32_t v)
{
    char name[128];
    gguf_write_u32(k->w, full(k, key, name), v);
}

static void f32(const struct keys *k, const char *key, float v)
{
    char name[128];
    gguf_write_f32(k->w, full(k, key, name), v);
}

/* A shape cut down. */
struct cut {
    uint32_t layers, nextn, experts, vocab;
};

static void write_keys(const struct keys *k, const struct shape *s, const struct cut *c)
{
    char name[128];
    const uint32_t layers = c->layers, experts = c->experts;
    gguf_write_str(k->w, "general.architecture", k->arch);
    snprintf(name, sizeof name, "%s, random weights", s->name);
    gguf_write_str(k->w, "general.name", name);
    u32(k, "block_count", layers + c->nextn);
    if (c->nextn != 0)
        u32(k, "nextn_predict_layers", c->nextn);
    u32(k, "context_length", s->context);
    u32(k, "embedding_length", s->embd);
    u32(k, "feed_forward_length", s->ff);
    u32(k, "attention.head_count", s->heads);
    u32(k, "attention.head_count_kv", 1);
    f32(k, "attention.layer_norm_rms_epsilon", s->eps);
    if (s->q_lora != 0)
        u32(k, "attention.q_lora_rank", s->q_lora);
    u32(k, "attention.kv_lora_rank", SHAPE_KV_LORA);
    u32(k, "attention.key_length", SHAPE_KV_LORA + SHAPE_ROPE);
    u32(k, "attention.value_length", SHAPE_KV_LORA);
    u32(k, "attention.key_length_mla", s->nope + SHAPE_ROPE);
    u32(k, "attention.value_length_mla", s->v_head);
    u32(k, "rope.dimension_count", SHAPE_ROPE);
    f32(k, "rope.freq_base", s->rope_base);
    if (s->yarn_log_mul > 0) {
        gguf_write_str(k->w, full(k, "rope.scaling.type", name), "yarn");
        f32(k, "rope.scaling.factor", 40);
        u32(k, "rope.scaling.original_context_length", 4096);
        f32(k, "rope.scaling.yarn_log_multiplier", s->yarn_log_mul);
    }
    u32(k, "expert_count", experts);
    u32(k, "expert_used_count", s->used < experts ? s->used : experts);
    u32(k, "expert_shared_count", s->shared);
    u32(k, "expert_feed_forward_length", s->ff_exp);
    f32(k, "expert_weights_scale", s->expert_scale);
    gguf_write_bool(k->w, full(k, "expert_weights_norm", name), s->norm);
    u32(k, "expert_gating_func", s->sigmoid ? HP_GATING_SIGMOID : HP_GATING_SOFTMAX);
    bool whole = experts == s->experts; /* groups divide that many */
    u32(k, "expert_group_count", whole ? s->groups : 1);
    u32(k, "expert_group_used_count", whole ? s->groups_used : 1);
    u32(k, "leading_dense_block_count", s->dense < layers ? s->dense : layers);
    u32(k, "vocab_size", c->vocab);
    if (s->index_heads != 0) {
        u32(k, "attention.indexer.head_count", s->index_heads);
        u32(k, "attention.indexer.key_length", SHAPE_INDEX_DIM);
        u32(k, "attention.indexer.top_k", SHAPE_TOP_K);
    }
}

/* ---- vocabulary ---- */

static const char *const SPECIAL[] = {"<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"};
enum { N_SPECIAL = sizeof SPECIAL / sizeof SPECIAL[0] };

/* The code point that stands for a byte in byte-level vocabularies: itself where it prints, else 256 and on. */
static unsigned byte_symbol(unsigned b)
{
    unsigned others = 256;
    for (unsigned i = 0; i < 256; i++) {
        bool prints = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == b)
            return prints ? b : others;
        others += !prints;
    }
    return 0;
}

static void put_text(struct gguf_writer *w, const char *s)
{
    uint64_t n = strlen(s);
    gguf_write_raw(w, &n, sizeof n);
    gguf_write_raw(w, s, n);
}

static void write_vocab(struct gguf_writer *w, uint32_t n)
{
    gguf_write_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_write_str(w, "tokenizer.ggml.pre", "glm4");
    gguf_write_array(w, "tokenizer.ggml.tokens", GGUF_STR, n);
    for (uint32_t i = 0; i < n; i++) {
        char s[24];
        unsigned c = i < 256 ? byte_symbol(i) : 0;
        if (i < 256 && c < 128)
            snprintf(s, sizeof s, "%c", (int)c);
        else if (i < 256)
            snprintf(s, sizeof s, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 63)));
        else if (i < 256 + N_SPECIAL)
            snprintf(s, sizeof s, "%s", SPECIAL[i - 256]);
        else
            snprintf(s, sizeof s, "[PAD%u]", i);
        put_text(w, s);
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (uint32_t i = 0; i < n; i++) {
        int32_t type = i < 256 ? 1 : i < 256 + N_SPECIAL ? 3 : 5; /* normal, control, unused */
        gguf_write_raw(w, &type, sizeof type);
    }
    gguf_write_array(w, "tokenizer.ggml.merges", GGUF_STR, 0);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 256);
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 257);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
}

/* ---- tensors ---- */

enum shape_fill shape_fill_of(const char *tensor)
{
    size_t n = strlen(tensor);
    if (n >= 5 && strcmp(tensor + n - 5, ".bias") == 0)
        return SHAPE_ZEROS;
    return strstr(tensor, "norm") != NULL ? SHAPE_ONES : SHAPE_RANDOM;
}

struct maker {
    struct gguf_writer *w;
    const struct shape_options *o;
    struct recipe recipe;
    bool writing; /* second pass: bytes instead of descriptions */
    uint8_t *pool;
    uint64_t seed, done, total;
    shape_progress progress;
    void *arg;
    enum rs_result rc;
    struct rs_error *err;
};

enum { POOL_BYTES = 8 << 20 };

static const char DEFAULT_TYPES[] = "*.weight Q8_0\n*ffn_gate_exps* Q4_K\n*ffn_up_exps* Q4_K\n*ffn_down_exps* Q5_K\n";

/* The weights of one tensor: as many as fit into the pool are made, and repeated. */
static void write_bytes(struct maker *m, const char *name, uint32_t type, const uint64_t ne[4])
{
    const struct krn_type_info *info = krn_type_info(type);
    const enum shape_fill fill = shape_fill_of(name);
    uint64_t n = ne[0] * ne[1] * ne[2], blocks = n / info->block_elems, fit = POOL_BYTES / info->block_bytes;
    size_t made = (size_t)(blocks < fit ? blocks : fit);
    if (fill == SHAPE_RANDOM)
        krn_quant_random(type, &m->seed, 1 / sqrtf((float)ne[0]), m->pool, made * info->block_elems);
    for (size_t i = 0; fill != SHAPE_RANDOM && i < made; i++)
        ((float *)(void *)m->pool)[i] = fill == SHAPE_ONES ? 1 : 0;
    for (uint64_t at = 0; at < blocks && m->rc == RS_OK;) {
        size_t from = at == 0 ? 0 : (size_t)(m->seed += 0x9e3779b97f4a7c15u) % made; /* elsewhere each time: no two slices are equal */
        size_t now = blocks - at < made - from ? (size_t)(blocks - at) : made - from;
        m->rc = gguf_write_data(m->w, m->pool + from * info->block_bytes, now * info->block_bytes, m->err);
        m->done += now * info->block_bytes;
        m->progress(m->arg, m->done, m->total);
        at += now;
    }
}

static void tensor(struct maker *m, int layer, const char *suffix, uint32_t type, uint64_t k, uint64_t rows, uint64_t mats)
{
    char name[80];
    uint64_t ne[4] = {k, rows, mats, 1};
    uint32_t n_dims = mats > 1 ? 3 : rows > 1 ? 2 : 1;
    if (m->rc != RS_OK)
        return;
    if (layer < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, suffix);
    type = recipe_type(&m->recipe, name, n_dims, ne, type);
    if (m->writing) {
        write_bytes(m, name, type, ne);
        return;
    }
    gguf_write_tensor(m->w, name, type, n_dims, ne);
    m->total += krn_row_bytes(type, k) * rows * mats;
}

static void matrix(struct maker *m, int layer, const char *suffix, uint64_t k, uint64_t rows, uint64_t mats)
{
    tensor(m, layer, suffix, KRN_F32, k, rows, mats);
}

static void norm(struct maker *m, int layer, const char *suffix, uint64_t n)
{
    tensor(m, layer, suffix, KRN_F32, n, 1, 1);
}

static void attention(struct maker *m, const struct shape *s, int i)
{
    uint64_t e = s->embd, h = s->heads, l = SHAPE_KV_LORA, k = s->nope + SHAPE_ROPE;
    tensor(m, i, "attn_k_b.weight", KRN_F32, s->nope, l, h);
    norm(m, i, "attn_kv_a_norm.weight", l);
    matrix(m, i, "attn_kv_a_mqa.weight", e, l + SHAPE_ROPE, 1);
    norm(m, i, "attn_norm.weight", e);
    matrix(m, i, "attn_output.weight", h * s->v_head, e, 1);
    if (s->q_lora != 0) {
        matrix(m, i, "attn_q_a.weight", e, s->q_lora, 1);
        norm(m, i, "attn_q_a_norm.weight", s->q_lora);
        matrix(m, i, "attn_q_b.weight", s->q_lora, h * k, 1);
    } else {
        matrix(m, i, "attn_q.weight", e, h * k, 1);
    }
    matrix(m, i, "attn_v_b.weight", l, s->v_head, h);
    if (s->index_heads == 0)
        return;
    matrix(m, i, "indexer.attn_k.weight", e, SHAPE_INDEX_DIM, 1);
    matrix(m, i, "indexer.attn_q_b.weight", s->q_lora, (uint64_t)s->index_heads * SHAPE_INDEX_DIM, 1);
    tensor(m, i, "indexer.k_norm.bias", KRN_F32, SHAPE_INDEX_DIM, 1, 1);
    norm(m, i, "indexer.k_norm.weight", SHAPE_INDEX_DIM);
    matrix(m, i, "indexer.proj.weight", e, s->index_heads, 1);
}

static void feed_forward(struct maker *m, const struct shape *s, int i, bool moe, uint32_t experts)
{
    uint64_t e = s->embd, x = s->ff_exp, shared = (uint64_t)s->shared * x;
    norm(m, i, "ffn_norm.weight", e);
    if (!moe) {
        matrix(m, i, "ffn_down.weight", s->ff, e, 1);
        matrix(m, i, "ffn_gate.weight", e, s->ff, 1);
        matrix(m, i, "ffn_up.weight", e, s->ff, 1);
        return;
    }
    if (s->sigmoid)
        tensor(m, i, "exp_probs_b.bias", KRN_F32, experts, 1, 1);
    matrix(m, i, "ffn_down_exps.weight", x, e, experts);
    matrix(m, i, "ffn_down_shexp.weight", shared, e, 1);
    matrix(m, i, "ffn_gate_exps.weight", e, x, experts);
    matrix(m, i, "ffn_gate_inp.weight", e, experts, 1);
    matrix(m, i, "ffn_gate_shexp.weight", e, shared, 1);
    matrix(m, i, "ffn_up_exps.weight", e, x, experts);
    matrix(m, i, "ffn_up_shexp.weight", e, shared, 1);
}

static void all_tensors(struct maker *m, const struct shape *s, const struct cut *c)
{
    matrix(m, -1, "token_embd.weight", s->embd, c->vocab, 1);
    norm(m, -1, "output_norm.weight", s->embd);
    matrix(m, -1, "output.weight", s->embd, c->vocab, 1);
    for (uint32_t i = 0; i < c->layers + c->nextn; i++) {
        attention(m, s, (int)i);
        feed_forward(m, s, (int)i, i >= s->dense, c->experts);
        if (i < c->layers)
            continue;
        matrix(m, (int)i, "nextn.eh_proj.weight", 2 * (uint64_t)s->embd, s->embd, 1);
        norm(m, (int)i, "nextn.enorm.weight", s->embd);
        norm(m, (int)i, "nextn.hnorm.weight", s->embd);
        norm(m, (int)i, "nextn.shared_head_norm.weight", s->embd);
    }
}

/* The head into m->w; what was cut, for the weights, into *c. On failure m->w is NULL or to be aborted. */
static enum rs_result describe(struct maker *m, const struct shape *s, const struct shape_options *o, const char *path, struct cut *c, struct rs_error *err)
{
    static const char *const ARCHS[] = {[HP_GLM_DSA] = "glm-dsa", [HP_DEEPSEEK2] = "deepseek2", [HP_DEEPSEEK32] = "deepseek32"};
    *c = (struct cut){.layers = o->layers != 0 ? o->layers : s->layers, .nextn = o->layers != 0 ? 0 : s->nextn,
                      .experts = o->experts != 0 ? o->experts : s->experts, .vocab = o->vocab != 0 ? o->vocab : s->vocab};
    *m = (struct maker){.o = o, .seed = o->seed, .rc = RS_OK, .err = err};
    if (c->layers > s->layers || c->experts > s->experts || c->vocab > s->vocab)
        return error_set(err, RS_EUSAGE, "%s has %u layers, %u experts and %u tokens", s->name, s->layers, s->experts, s->vocab);
    enum rs_result rc = recipe_parse(DEFAULT_TYPES, false, &m->recipe, err);
    for (uint32_t i = 0; rc == RS_OK && o->recipe != NULL && i < o->recipe->n; i++) {
        if (m->recipe.n == RECIPE_MAX_RULES)
            return error_set(err, RS_EUSAGE, "recipe: more than %d rules", RECIPE_MAX_RULES - 4);
        m->recipe.rule[m->recipe.n++] = o->recipe->rule[i];
    }
    if (rc == RS_OK)
        rc = gguf_write_open(path, &m->w, err);
    if (rc != RS_OK)
        return rc;
    struct keys k = {m->w, ARCHS[s->arch]};
    write_keys(&k, s, c);
    write_vocab(m->w, c->vocab);
    all_tensors(m, s, c);
    return m->rc;
}

enum rs_result shape_write(const struct shape *s, const struct shape_options *o, const char *path, shape_progress progress, void *arg, struct rs_error *err)
{
    struct maker m;
    struct cut c;
    enum rs_result rc = describe(&m, s, o, path, &c, err);
    m.progress = progress;
    m.arg = arg;
    if (rc == RS_OK && (m.pool = malloc(POOL_BYTES)) == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for made-up weights");
    if (rc == RS_OK) {
        m.writing = true;
        all_tensors(&m, s, &c);
        rc = m.rc;
    }
    free(m.pool);
    if (rc == RS_OK)
        return gguf_write_finish(m.w, err);
    gguf_write_abort(m.w);
    return rc;
}

enum rs_result shape_open(const struct shape *s, const struct shape_options *o, struct gguf **out, struct rs_error *err)
{
    struct maker m;
    struct cut c;
    uint8_t *map;
    uint64_t bytes;
    enum rs_result rc = describe(&m, s, o, NULL, &c, err);
    if (rc != RS_OK) {
        gguf_write_abort(m.w);
        return rc;
    }
    rc = gguf_write_map(m.w, &map, &bytes, err);
    return rc == RS_OK ? gguf_open_map(s->name, map, bytes, out, err) : rc;
}
