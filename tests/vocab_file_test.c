/* engine/vocab*.c on small vocabularies made here: merges, token types, and vocabularies that must be refused. */
#include "engine/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gguf_make.h"
#include "tests/tap.h"

/* The vocabulary that m holds as a file; frees m. NULL and *err on failure. */
static struct vocab *open_made(struct gm *m, enum rs_result *r, struct rs_error *err)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    gm_save(m, tap_scratch("v.gguf"));
    gm_free(m);
    *r = gguf_open(tap_scratch("v.gguf"), &g, err);
    if (*r == RS_OK)
        *r = vocab_open(g, &v, err);
    gguf_close(g);
    return v;
}

static void make(struct gm *m, const char *pre)
{
    gm_head(m, 3, 0, GM_VOCAB_KEYS);
    gm_vocab(m, pre);
}

static struct vocab *good(const char *pre)
{
    struct gm m = {0};
    enum rs_result r;
    struct rs_error err = {0};
    make(&m, pre);
    struct vocab *v = open_made(&m, &r, &err);
    if (!tap_ok(v != NULL, "a vocabulary with %s opens", pre))
        tap_diag("%s", err.msg);
    return v;
}

static void encodes(const struct vocab *v, const char *text, bool special, const int32_t *want, size_t n_want, const char *name)
{
    const struct vocab_segment seg = {text, strlen(text), special};
    int32_t *ids = NULL;
    size_t n = 0;
    struct rs_error err = {0};
    vocab_encode(v, &seg, 1, &ids, &n, &err);
    if (!tap_ok(n == n_want && memcmp(ids, want, n * sizeof *ids) == 0, "%s", name))
        for (size_t i = 0; i < n; i++)
            tap_diag("got %d", (int)ids[i]);
    free(ids);
}

/* In the made vocabulary the token of a byte is the byte. */
#define B(c) ((int32_t)(unsigned char)(c))
#define ENCODES(v, text, special, name, ...)                                                                                               \
    encodes(v, text, special, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4, name)

static void test_merges(void)
{
    struct vocab *v = good("glm4");
    ENCODES(v, "hello", false, "merges by rank", GM_HELLO);
    ENCODES(v, "llo", false, "a merge of a merge", GM_LLO);
    ENCODES(v, "hellllo", false, "the leftmost of equal ranks first", GM_HELL, GM_LLO);
    ENCODES(v, "lll", false, "three of a kind", GM_LL, B('l'));
    ENCODES(v, "ohe", false, "bytes that do not merge", B('o'), GM_HE);
    ENCODES(v, "\xC3\xA9\xFF", false, "bytes without a merge", 0xC3, 0xA9, 0xFF);
    ENCODES(v, " whole", false, "glm4 takes a piece that is a token whole", GM_WHOLE);
    vocab_close(v);
    v = good("deepseek-v3");
    ENCODES(v, " whole", false, "deepseek-v3 merges it", GM_SPACE_W, B('h'), B('o'), B('l'), B('e'));
    vocab_close(v);
}

static void test_types(void)
{
    struct vocab *v = good("glm4");
    size_t len;
    ENCODES(v, "he<think>he", false, "a user-defined token is matched in typed text", GM_HE, GM_THINK, GM_HE);
    ENCODES(v, "he<|user|>", true, "a control token is matched in a template", GM_HE, GM_USER);
    ENCODES(v, "<|us", false, "half a control token is text", B('<'), B('|'), B('u'), B('s'));
    ENCODES(v, "[P", true, "an unused token is never matched", B('['), B('P'));
    tap_ok(vocab_find(v, "[PAD0]") == -1 && vocab_is_special(v, GM_UNUSED), "nor found, nor printed");
    tap_ok(vocab_find(v, "<think>") == GM_THINK && !vocab_is_special(v, GM_THINK), "a user-defined token is printed");
    tap_ok(vocab_is_eog(v, GM_EOS) && vocab_is_eog(v, GM_USER) && !vocab_is_eog(v, GM_ASSISTANT), "end tokens");
    tap_ok(memcmp(vocab_piece(v, GM_SPACE_W, &len), " w", 2) == 0 && len == 2, "a piece is bytes, not the file's alphabet");
    bool bytes = true;
    for (int32_t b = 0; b < 256; b++) {
        const char *p = vocab_piece(v, b, &len);
        bytes = bytes && len == 1 && (unsigned char)*p == b;
    }
    tap_ok(bytes, "each of the 256 byte tokens is its byte");
    tap_ok(vocab_note(v, 0) == NULL, "nothing odd to note");
    vocab_close(v);
}

/* ---- files that are refused ---- */

static uint8_t *find(struct gm *m, const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i + n <= m->n; i++)
        if (memcmp(m->p + i, s, n) == 0)
            return m->p + i;
    tap_ok(false, "the made file holds \"%s\"", s);
    return m->p;
}

/* Replace the first s by t of the same length, with the bytes before it that make it unique. */
static void swap(struct gm *m, const char *s, const char *t)
{
    memcpy(find(m, s), t, strlen(t));
}

/* Write the little-endian u32 x at `skip` bytes behind the name of a key. */
static void poke(struct gm *m, const char *key, size_t skip, uint32_t x)
{
    uint8_t *p = find(m, key) + strlen(key) + skip;
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

/* clang-format off */
static void r_model_missing(struct gm *m) { swap(m, "tokenizer.ggml.model", "tokenizer.ggml.modem"); }
static void r_model(struct gm *m) { swap(m, "gpt2", "spm2"); }
static void r_pre_missing(struct gm *m) { swap(m, "tokenizer.ggml.pre", "tokenizer.ggml.prx"); }
static void r_pre(struct gm *m) { swap(m, "glm4", "glm9"); }
static void r_tokens_missing(struct gm *m) { swap(m, "tokenizer.ggml.tokens", "tokenizer.ggml.tokenx"); }
static void r_types_missing(struct gm *m) { swap(m, "tokenizer.ggml.token_type", "tokenizer.ggml.token_typo"); }
static void r_types_f32(struct gm *m) { poke(m, "tokenizer.ggml.token_type", 4, 6); }
static void r_types_value(struct gm *m) { poke(m, "tokenizer.ggml.token_type", 16 + 4 * 17, 9); }
static void r_merges_missing(struct gm *m) { swap(m, "tokenizer.ggml.merges", "tokenizer.ggml.mergex"); }
static void r_merge_space(struct gm *m) { swap(m, "hell o", "hell_o"); }
static void r_merge_left(struct gm *m) { swap(m, "hell o", "hexl o"); }
static void r_merge_result(struct gm *m) { swap(m, "hell o", "hell x"); }
static void r_byte(struct gm *m) { poke(m, "tokenizer.ggml.token_type", 16 + 4 * 'A', 3); }
static void r_eos_type(struct gm *m) { poke(m, "tokenizer.ggml.eos_token_id", 0, 6); }

static const struct {
    const char *name;
    void (*spoil)(struct gm *);
    enum rs_result code;
    const char *part;
} s_refused[] = {
    {"no tokenizer.ggml.model", r_model_missing, RS_EFORMAT, "key \"tokenizer.ggml.model\" is missing"},
    {"another tokenizer model", r_model, RS_EUNSUPPORTED, "is \"spm2\"; only gpt2"},
    {"no tokenizer.ggml.pre", r_pre_missing, RS_EFORMAT, "key \"tokenizer.ggml.pre\" is missing"},
    {"an unknown pre-tokenizer", r_pre, RS_EUNSUPPORTED,
     "\"glm9\" is not known; the known ones are glm4, chatglm-bpe, deepseek-v3, deepseek-llm, kimi-k2"},
    {"no tokens", r_tokens_missing, RS_EFORMAT, "key \"tokenizer.ggml.tokens\" is missing"},
    {"no token types", r_types_missing, RS_EFORMAT, "key \"tokenizer.ggml.token_type\" is missing"},
    {"token types that are f32", r_types_f32, RS_EFORMAT, "token_type\" (array of f32) should be an array of integers"},
    {"a token type that does not exist", r_types_value, RS_EFORMAT, "token 17 has type 9"},
    {"no merges", r_merges_missing, RS_EFORMAT, "key \"tokenizer.ggml.merges\" is missing"},
    {"a merge of one part", r_merge_space, RS_EFORMAT, "entry 3 \"hell_o\" is not two parts"},
    {"a merge of an unknown part", r_merge_left, RS_EFORMAT, "entry 3 \"hexl o\": its left part is not an ordinary token"},
    {"a merge with an unknown result", r_merge_result, RS_EFORMAT, "entry 3 \"hell x\": its result is not an ordinary token"},
    {"a byte without a token", r_byte, RS_EFORMAT, "no token for byte 0x41"},
    {"an id that is f32", r_eos_type, RS_EFORMAT, "eos_token_id\" (f32) should be an integer"},
};

/* clang-format on */
static void test_refused(void)
{
    for (size_t i = 0; i < sizeof s_refused / sizeof *s_refused; i++) {
        struct gm m = {0};
        enum rs_result r;
        struct rs_error err = {0};
        make(&m, "glm4");
        s_refused[i].spoil(&m);
        struct vocab *v = open_made(&m, &r, &err);
        if (!tap_ok(v == NULL && r == s_refused[i].code && strstr(err.msg, s_refused[i].part) && strstr(err.msg, "v.gguf"), "%s",
                    s_refused[i].name))
            tap_diag("result %d, message \"%s\"", (int)r, err.msg);
        vocab_close(v);
    }
}

/* Odd but harmless: noted. */
static void test_notes(void)
{
    struct gm m = {0};
    enum rs_result r;
    struct rs_error err = {0};
    make(&m, "glm4");
    poke(&m, "tokenizer.ggml.eos_token_id", 4, 99999);
    struct vocab *v = open_made(&m, &r, &err);
    tap_ok(v != NULL && vocab_eos(v) == -1 && vocab_note(v, 0) != NULL && strstr(vocab_note(v, 0), "eos_token_id") != NULL,
           "an id outside the vocabulary is ignored and noted");
    tap_ok(v != NULL && vocab_is_eog(v, GM_EOS), "its text still ends an answer");
    vocab_close(v);
    make(&m, "glm4");
    poke(&m, "tokenizer.ggml.token_type", 16 + 4 * GM_HELLO, 3);
    v = open_made(&m, &r, &err);
    tap_ok(v != NULL && vocab_note(v, 0) != NULL, "a merge that would make a control token is noted");
    if (v != NULL)
        ENCODES(v, "hello", false, "and not used", GM_HELL, B('o'));
    vocab_close(v);
    make(&m, "glm4");
    swap(&m, "\xC4\xA0whole", "hellohe"); /* the length in front becomes 5, and two bytes go */
    find(&m, "hellohe")[-8] = 5;
    memmove(find(&m, "hellohe") + 5, find(&m, "hellohe") + 7, m.n - (size_t)(find(&m, "hellohe") + 7 - m.p));
    m.n -= 2;
    v = open_made(&m, &r, &err);
    tap_ok(v != NULL && vocab_find(v, "hello") == GM_HELLO && vocab_note(v, 0) != NULL,
           "of two tokens with one text the first is used, and it is noted");
    vocab_close(v);
}

int main(void)
{
    test_merges();
    test_types();
    test_refused();
    test_notes();
    return tap_done();
}
