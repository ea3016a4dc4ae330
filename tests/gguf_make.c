/* Small GGUF files for tests; written from the format's description, not with the reader's code. */
#include "tests/gguf_make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gm_free(struct gm *m)
{
    free(m->p);
    memset(m, 0, sizeof *m);
}

void gm_raw(struct gm *m, const void *p, size_t n)
{
    if (m->n + n > m->cap) {
        m->cap = 2 * (m->n + n) + 1024;
        m->p = realloc(m->p, m->cap);
        if (m->p == NULL)
            abort();
    }
    memcpy(m->p + m->n, p, n);
    m->n += n;
}

void gm_zero(struct gm *m, size_t n)
{
    while (n-- > 0)
        gm_u8(m, 0);
}

void gm_pad(struct gm *m, size_t align)
{
    while (m->n % align != 0)
        gm_u8(m, 0);
}

static void little_endian(struct gm *m, uint64_t x, uint32_t bytes)
{
    uint8_t b[8];
    if (bytes >= 4 && m->n_marks < GM_MAX_MARKS) {
        m->mark[m->n_marks].at = (uint32_t)m->n;
        m->mark[m->n_marks++].bytes = bytes;
    }
    for (uint32_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)(x >> 8 * i);
    gm_raw(m, b, bytes);
}

void gm_u8(struct gm *m, uint8_t x)
{
    gm_raw(m, &x, 1);
}

void gm_u16(struct gm *m, uint16_t x)
{
    little_endian(m, x, 2);
}

void gm_u32(struct gm *m, uint32_t x)
{
    little_endian(m, x, 4);
}

void gm_u64(struct gm *m, uint64_t x)
{
    little_endian(m, x, 8);
}

void gm_str(struct gm *m, const char *s)
{
    gm_u64(m, strlen(s));
    gm_raw(m, s, strlen(s));
}

void gm_head(struct gm *m, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    gm_raw(m, "GGUF", 4);
    gm_u32(m, version);
    gm_u64(m, n_tensors);
    gm_u64(m, n_kv);
}

void gm_key(struct gm *m, const char *key, uint32_t type)
{
    gm_str(m, key);
    gm_u32(m, type);
}

void gm_kv_u32(struct gm *m, const char *key, uint32_t x)
{
    gm_key(m, key, 4);
    gm_u32(m, x);
}

void gm_kv_u16(struct gm *m, const char *key, uint16_t x)
{
    gm_key(m, key, 2);
    gm_u16(m, x);
}

void gm_kv_bool(struct gm *m, const char *key, uint8_t x)
{
    gm_key(m, key, 7);
    gm_u8(m, x);
}

void gm_kv_str(struct gm *m, const char *key, const char *s)
{
    gm_key(m, key, 8);
    gm_str(m, s);
}

void gm_array(struct gm *m, const char *key, uint32_t elem, uint64_t count)
{
    gm_key(m, key, 9);
    gm_u32(m, elem);
    gm_u64(m, count);
}

void gm_tensor(struct gm *m, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    gm_str(m, name);
    gm_u32(m, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gm_u64(m, ne[i]);
    gm_u32(m, type);
    gm_u64(m, offset);
}

bool gm_save(const struct gm *m, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        return false;
    bool ok = m->n == 0 || fwrite(m->p, 1, m->n, f) == m->n;
    return fclose(f) == 0 && ok;
}

/* The 256 bytes as characters: printable ones are themselves, the others follow from U+0100, in order. */
static void byte_tokens(struct gm *m)
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool self = (b > 32 && b < 127) || (b > 160 && b != 173);
        uint32_t cp = self ? b : next++;
        char s[3] = {(char)cp, '\0', '\0'};
        if (cp > 127) {
            s[0] = (char)(0xC0 | cp >> 6);
            s[1] = (char)(0x80 | (cp & 63));
        }
        gm_str(m, s);
    }
}

void gm_vocab(struct gm *m, const char *pre)
{
    static const char *const made[] = {"he", "ll", "hell", "hello", "\xC4\xA0w", "llo", "\xC4\xA0whole"};
    static const char *const special[] = {"<|endoftext|>", "<|user|>", "<|assistant|>", "<think>", "[PAD0]"};
    static const uint32_t special_type[] = {3, 3, 3, 4, 5};
    static const char *const merges[GM_MERGES] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "ll o"};
    gm_kv_str(m, "tokenizer.ggml.model", "gpt2");
    gm_kv_str(m, "tokenizer.ggml.pre", pre);
    gm_array(m, "tokenizer.ggml.tokens", 8, GM_VOCAB_SIZE);
    byte_tokens(m);
    for (int i = 0; i < 7; i++)
        gm_str(m, made[i]);
    for (int i = 0; i < 5; i++)
        gm_str(m, special[i]);
    gm_array(m, "tokenizer.ggml.token_type", 5, GM_VOCAB_SIZE);
    for (int i = 0; i < GM_EOS; i++)
        gm_u32(m, 1);
    for (int i = 0; i < 5; i++)
        gm_u32(m, special_type[i]);
    gm_array(m, "tokenizer.ggml.merges", 8, GM_MERGES);
    for (int i = 0; i < GM_MERGES; i++)
        gm_str(m, merges[i]);
    gm_kv_u32(m, "tokenizer.ggml.eos_token_id", GM_EOS);
    gm_kv_u32(m, "tokenizer.ggml.eot_token_id", GM_USER);
    gm_kv_u32(m, "tokenizer.ggml.bos_token_id", GM_EOS);
    gm_kv_u32(m, "tokenizer.ggml.padding_token_id", GM_EOS);
    gm_kv_bool(m, "tokenizer.ggml.add_bos_token", 0);
    gm_kv_str(m, "tokenizer.chat_template", "{{ messages }}");
}
