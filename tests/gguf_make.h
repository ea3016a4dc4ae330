/* Small GGUF files, good and bad, built byte by byte. One thread; running out of memory ends the test program. */
#ifndef RANKSCOPE_TESTS_GGUF_MAKE_H
#define RANKSCOPE_TESTS_GGUF_MAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GM_MAX_MARKS = 4096 };

struct gm {
    uint8_t *p;
    size_t n, cap;
    /* where numbers stand that a reader must not trust: counts, lengths, types, dims, offsets; bytes 4 or 8 */
    struct {
        uint32_t at, bytes;
    } mark[GM_MAX_MARKS];
    size_t n_marks;
};

void gm_free(struct gm *m); /* and zero */
void gm_raw(struct gm *m, const void *p, size_t n);
void gm_zero(struct gm *m, size_t n);
void gm_pad(struct gm *m, size_t align); /* zeros up to a multiple of align */
void gm_u8(struct gm *m, uint8_t x);
void gm_u16(struct gm *m, uint16_t x);
void gm_u32(struct gm *m, uint32_t x);
void gm_u64(struct gm *m, uint64_t x);
void gm_str(struct gm *m, const char *s);
void gm_head(struct gm *m, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void gm_key(struct gm *m, const char *key, uint32_t type); /* the value is to follow */
void gm_kv_u32(struct gm *m, const char *key, uint32_t x);
void gm_kv_u16(struct gm *m, const char *key, uint16_t x);
void gm_kv_bool(struct gm *m, const char *key, uint8_t x);
void gm_kv_str(struct gm *m, const char *key, const char *s);
void gm_array(struct gm *m, const char *key, uint32_t elem, uint64_t count); /* the elements are to follow */
/* ne holds n_dims entries. */
void gm_tensor(struct gm *m, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset);
bool gm_save(const struct gm *m, const char *path);

/* The keys of a vocabulary: 256 byte tokens, then merges, then special tokens. */
/* clang-format off */
enum {
    GM_VOCAB_KEYS = 11, /* how many keys gm_vocab() writes */
    GM_MERGES = 6,
    GM_HE = 256, GM_LL, GM_HELL, GM_HELLO, GM_SPACE_W, GM_LLO, 
    GM_WHOLE, /* "he" "ll" "hell" "hello" " w" "llo" and " whole", which no merge makes */
    GM_EOS, GM_USER, GM_ASSISTANT, GM_THINK, GM_UNUSED, GM_VOCAB_SIZE,
};
/* clang-format on */
void gm_vocab(struct gm *m, const char *pre);

#endif
