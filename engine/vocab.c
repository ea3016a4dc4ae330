/* Reading a vocabulary out of a GGUF file, and looking tokens up. */
#include "engine/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/vocab_int.h"

/* The byte alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and up, in order. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp < 256 || cp >= 256 + 68)
        return -1;
    int k = (int)cp - 256; /* the k-th of 0..32, 127..160, 173 */
    return k <= 32 ? k : k <= 66 ? k - 33 + 127 : 173;
}

size_t vocab_unmap(const char *s, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        const uint8_t *p = (const uint8_t *)s + i;
        size_t bad;
        bool unfinished;
        size_t k = vocab_utf8(p, len - i, &bad, &unfinished);
        int b = k == 1 ? alphabet_byte(p[0]) : k == 2 ? alphabet_byte((p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu)) : -1;
        if (b < 0) {
            memcpy(out, s, len);
            return len;
        }
        out[n++] = (char)b;
        i += k;
    }
    return n;
}

static uint32_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325) ^ len;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)s[i]) * UINT64_C(0x100000001B3);
    h ^= h >> 32;
    return (uint32_t)(h * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static size_t piece_len(const struct vocab *v, uint32_t id)
{
    return v->at[id + 1] - v->at[id];
}

int32_t vocab_lookup(const struct vocab *v, const char *s, size_t len)
{
    for (uint32_t i = hash_bytes(s, len) & v->mask; v->slot[i] != 0; i = (i + 1) & v->mask) {
        uint32_t id = v->slot[i] - 1;
        if (piece_len(v, id) == len && memcmp(v->text + v->at[id], s, len) == 0)
            return (int32_t)id;
    }
    return -1;
}

static int compare_bytes(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, na < nb ? na : nb);
    return c != 0 ? c : (na > nb) - (na < nb);
}

int32_t vocab_find_special(const struct vocab *v, const char *s, size_t len)
{
    uint32_t lo = 0, hi = v->trusted.n;
    while (lo < hi) { /* the first that is not less: of several with one text the lowest id */
        uint32_t mid = lo + (hi - lo) / 2, id = (uint32_t)v->trusted.id[mid];
        if (compare_bytes(v->text + v->at[id], piece_len(v, id), s, len) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == v->trusted.n)
        return -1;
    uint32_t id = (uint32_t)v->trusted.id[lo];
    return compare_bytes(v->text + v->at[id], piece_len(v, id), s, len) == 0 ? (int32_t)id : -1;
}

void vocab_add_note(struct vocab *v, const char *what, const char *key)
{
    char line[sizeof *v->notes];
    snprintf(line, sizeof line, "%s: %s", key, what);
    for (uint32_t i = 0; i < v->n_notes; i++)
        if (strcmp(v->notes[i], line) == 0)
            return;
    if (v->n_notes < sizeof v->notes / sizeof *v->notes)
        memcpy(v->notes[v->n_notes++], line, sizeof line);
}

/* Token texts, in bytes. */
static enum rs_result read_tokens(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    struct gguf_array a;
    enum rs_result r = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_WANT_STR, &a, NULL, err);
    if (r != RS_OK)
        return r;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < a.count; i++) {
        size_t len;
        gguf_array_str(&a, i, &len);
        bytes += len;
    }
    if (a.count == 0 || a.count >= INT32_MAX || bytes >= UINT32_MAX)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.tokens\" has %llu tokens of %llu bytes", gguf_path(g, 0),
                         (unsigned long long)a.count, (unsigned long long)bytes);
    v->n = (uint32_t)a.count;
    v->text = malloc(bytes + 1);
    v->at = malloc(((size_t)v->n + 1) * sizeof *v->at);
    if (v->text == NULL || v->at == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %u tokens", v->n);
    uint32_t at = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        size_t len;
        const char *s = gguf_array_str(&a, i, &len);
        v->at[i] = at;
        if (v->type[i] == VOCAB_NORMAL || v->type[i] == VOCAB_BYTE) {
            len = vocab_unmap(s, len, v->text + at);
        } else {
            memcpy(v->text + at, s, len);
        }
        at += (uint32_t)len;
        if (len > v->longest)
            v->longest = (uint32_t)len;
    }
    v->at[v->n] = at;
    return RS_OK;
}

/* Types come first: they say how a token's text is written. Without them no control token could be told from text, so they are required. */
static enum rs_result read_types(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    struct gguf_array tokens, types, scores;
    bool found;
    enum rs_result r = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_WANT_STR, &tokens, NULL, err);
    if (r != RS_OK || (r = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_WANT_INT, &types, NULL, err)) != RS_OK)
        return r;
    if (types.elem_type != GGUF_I32 && types.elem_type != GGUF_U32)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.token_type\" is an array of %s, not of i32", gguf_path(g, 0),
                         gguf_type_name(types.elem_type));
    if (types.count < tokens.count)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.token_type\" has %llu entries for %llu tokens", gguf_path(g, 0),
                         (unsigned long long)types.count, (unsigned long long)tokens.count);
    if ((r = gguf_get_array(g, "tokenizer.ggml.scores", GGUF_WANT_F32, &scores, &found, err)) != RS_OK)
        return r;
    if (found && scores.count < tokens.count)
        return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.scores\" has %llu entries for %llu tokens", gguf_path(g, 0),
                         (unsigned long long)scores.count, (unsigned long long)tokens.count);
    v->type = malloc(tokens.count + 1);
    v->eog = calloc(tokens.count + 1, 1);
    if (v->type == NULL || v->eog == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %llu tokens", (unsigned long long)tokens.count);
    for (uint64_t i = 0; i < tokens.count; i++) {
        int64_t t = gguf_array_i64(&types, i);
        if (t < VOCAB_NORMAL || t > VOCAB_BYTE)
            return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.token_type\": token %llu has type %lld, which does not exist",
                             gguf_path(g, 0), (unsigned long long)i, (long long)t);
        v->type[i] = (uint8_t)t;
    }
    return RS_OK;
}

/* Hash of the tokens that merging may produce. Control, unknown and unused tokens are not in it: typed text must never become one.
 * Of several tokens with the same bytes the lowest id is found. */
static enum rs_result index_tokens(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    uint64_t cap = 16;
    while (cap < (uint64_t)v->n + v->n / 2)
        cap *= 2;
    v->slot = calloc(cap, sizeof *v->slot);
    if (v->slot == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %u tokens", v->n);
    v->mask = (uint32_t)(cap - 1);
    uint32_t twice = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *s = v->text + v->at[id];
        size_t len = piece_len(v, id);
        if ((v->type[id] != VOCAB_NORMAL && v->type[id] != VOCAB_BYTE && v->type[id] != VOCAB_USER) || len == 0)
            continue;
        if (vocab_lookup(v, s, len) >= 0) {
            twice++;
            continue;
        }
        uint32_t i = hash_bytes(s, len) & v->mask;
        while (v->slot[i] != 0)
            i = (i + 1) & v->mask;
        v->slot[i] = id + 1;
    }
    if (twice > 0)
        vocab_add_note(v, "some tokens have the same text; encoding uses the lowest id", "tokenizer.ggml.tokens");
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        v->byte_id[b] = vocab_lookup(v, &c, 1);
        if (v->byte_id[b] < 0)
            return error_set(err, RS_EFORMAT, "%s: key \"tokenizer.ggml.tokens\": no token for byte 0x%02x", gguf_path(g, 0), b);
    }
    return RS_OK;
}

static int compare_pieces(const void *a, const void *b, void *arg)
{
    const struct vocab *v = arg;
    uint32_t x = (uint32_t) * (const int32_t *)a, y = (uint32_t) * (const int32_t *)b;
    int c = compare_bytes(v->text + v->at[x], piece_len(v, x), v->text + v->at[y], piece_len(v, y));
    return c != 0 ? c : (x > y) - (x < y);
}

static enum rs_result index_special(struct vocab *v, struct vocab_special *set, bool trusted, struct rs_error *err)
{
    uint32_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (uint32_t id = 0; id < v->n; id++) {
            bool in = v->type[id] == VOCAB_USER || (trusted && (v->type[id] == VOCAB_CONTROL || v->type[id] == VOCAB_UNKNOWN));
            if (!in || piece_len(v, id) == 0)
                continue;
            if (pass == 1)
                set->id[n] = (int32_t)id;
            n++;
        }
        if (pass == 0 && (set->id = malloc((n + 1) * sizeof *set->id)) == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for special tokens");
    }
    set->n = n;
    qsort_r(set->id, n, sizeof *set->id, compare_pieces, v);
    return RS_OK;
}

/* A token id key: absent gives -1; an id outside the vocabulary is noted and ignored. */
static enum rs_result read_id(struct vocab *v, const struct gguf *g, const char *key, int32_t *out, struct rs_error *err)
{
    int64_t id = -1;
    bool found;
    enum rs_result r = gguf_get_i64(g, key, &id, &found, err);
    if (found && r == RS_OK && (id < 0 || id >= v->n)) {
        vocab_add_note(v, "not a token of this vocabulary, ignored", key);
        id = -1;
    }
    *out = (int32_t)id;
    return r;
}

/* Tokens at which an answer ends, by key and by text: files whose keys name the wrong one run on into a made-up user turn. */
static enum rs_result read_ends(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eom_token_id", "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
                                       "tokenizer.ggml.fim_sep_token_id"};
    /* clang-format off */
    static const char *const texts[] = {
        "<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<|end_of_text|>", "<end_of_turn>", "<|return|>", "<|call|>",
        "<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "</s>", "<|eom_id|>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>",
        "<PAD>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<|file_sep|>", "<|user|>", "<|observation|>"};
    /* clang-format on */
    enum { N_TEXTS = sizeof texts / sizeof *texts, N_GLM = 2 };
    int32_t id[6] = {-1, -1, -1, -1, v->eos, v->eot};
    for (int i = 0; i < 4; i++) {
        enum rs_result r = read_id(v, g, keys[i], &id[i], err);
        if (r != RS_OK)
            return r;
    }
    for (int i = 0; i < 6; i++)
        if (id[i] >= 0)
            v->eog[id[i]] = 1;
    uint32_t n = vocab_pre_is_glm(v->pre) ? N_TEXTS : N_TEXTS - N_GLM;
    for (uint32_t t = 0; t < n; t++) { /* an ordinary token that spells one of these (HTML's "</s>") is not an end */
        int32_t s = vocab_find_special(v, texts[t], strlen(texts[t]));
        if (s >= 0)
            v->eog[s] = 1;
    }
    return RS_OK;
}

static enum rs_result read_ids(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    bool found;
    enum rs_result r;
    if ((r = read_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos, err)) != RS_OK ||
        (r = read_id(v, g, "tokenizer.ggml.eos_token_id", &v->eos, err)) != RS_OK ||
        (r = read_id(v, g, "tokenizer.ggml.eot_token_id", &v->eot, err)) != RS_OK ||
        (r = gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &v->add_bos, &found, err)) != RS_OK)
        return r;
    if (v->add_bos && v->bos < 0) {
        vocab_add_note(v, "asks for a BOS token, but no key names one; ignored", "tokenizer.ggml.add_bos_token");
        v->add_bos = false;
    }
    return read_ends(v, g, err);
}

static enum rs_result read_model(struct vocab *v, const struct gguf *g, struct rs_error *err)
{
    const char *s;
    size_t len;
    enum rs_result r = gguf_get_str(g, "tokenizer.ggml.model", &s, &len, NULL, err);
    if (r != RS_OK)
        return r;
    if (len != 4 || memcmp(s, "gpt2", 4) != 0)
        return error_set(err, RS_EUNSUPPORTED, "%s: key \"tokenizer.ggml.model\" is \"%.*s\"; only gpt2 (byte-level BPE) is known",
                         gguf_path(g, 0), len < 60 ? (int)len : 60, s);
    if ((r = gguf_get_str(g, "tokenizer.ggml.pre", &s, &len, NULL, err)) != RS_OK)
        return r;
    struct rs_error why;
    r = vocab_pre_open(s, len, &v->pre, &why);
    return r == RS_OK ? r : error_set(err, r, "%s: key \"tokenizer.ggml.pre\": %s", gguf_path(g, 0), why.msg);
}

enum rs_result vocab_open(const struct gguf *g, struct vocab **out, struct rs_error *err)
{
    struct vocab *v = calloc(1, sizeof *v);
    if (v == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a vocabulary");
    enum rs_result r;
    if ((r = read_model(v, g, err)) != RS_OK || (r = read_types(v, g, err)) != RS_OK || (r = read_tokens(v, g, err)) != RS_OK ||
        (r = index_tokens(v, g, err)) != RS_OK || (r = index_special(v, &v->trusted, true, err)) != RS_OK ||
        (r = index_special(v, &v->typed, false, err)) != RS_OK || (r = vocab_bpe_open(v, g, err)) != RS_OK ||
        (r = read_ids(v, g, err)) != RS_OK) {
        vocab_close(v);
        return r;
    }
    *out = v;
    return RS_OK;
}

void vocab_close(struct vocab *v)
{
    if (v == NULL)
        return;
    vocab_pre_close(v->pre);
    vocab_bpe_close(&v->merges);
    free(v->trusted.id);
    free(v->typed.id);
    free(v->text);
    free(v->at);
    free(v->type);
    free(v->eog);
    free(v->slot);
    free(v);
}

uint32_t vocab_size(const struct vocab *v)
{
    return v->n;
}

const char *vocab_piece(const struct vocab *v, int32_t id, size_t *len)
{
    if (id < 0 || (uint32_t)id >= v->n)
        return NULL;
    *len = piece_len(v, (uint32_t)id);
    return v->text + v->at[id];
}

bool vocab_is_special(const struct vocab *v, int32_t id)
{
    if (id < 0 || (uint32_t)id >= v->n)
        return false;
    return v->type[id] == VOCAB_CONTROL || v->type[id] == VOCAB_UNKNOWN || v->type[id] == VOCAB_UNUSED;
}

bool vocab_is_eog(const struct vocab *v, int32_t id)
{
    return id >= 0 && (uint32_t)id < v->n && v->eog[id] != 0;
}

int32_t vocab_find(const struct vocab *v, const char *text)
{
    int32_t id = vocab_find_special(v, text, strlen(text));
    return id >= 0 ? id : vocab_lookup(v, text, strlen(text));
}

int32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}

int32_t vocab_eos(const struct vocab *v)
{
    return v->eos;
}

int32_t vocab_eot(const struct vocab *v)
{
    return v->eot;
}

bool vocab_adds_bos(const struct vocab *v)
{
    return v->add_bos;
}

const char *vocab_pre_name(const struct vocab *v)
{
    return vocab_pre_known_name(v->pre);
}

const char *vocab_note(const struct vocab *v, size_t i)
{
    return i < v->n_notes ? v->notes[i] : NULL;
}
