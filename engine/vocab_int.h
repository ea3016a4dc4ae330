/* Private to vocab*.c. */
#ifndef RANKSCOPE_ENGINE_VOCAB_INT_H
#define RANKSCOPE_ENGINE_VOCAB_INT_H

#include "engine/error.h"
#include "engine/vocab.h"

/* Token types of the file format. */
/* clang-format off */
enum vocab_type {
    VOCAB_NORMAL = 1, VOCAB_UNKNOWN = 2, VOCAB_CONTROL = 3, VOCAB_USER = 4, VOCAB_UNUSED = 5, VOCAB_BYTE = 6,
};
/* clang-format on */

/* Pre-tokenizer: a chain of regular expressions (vocab_pre.c). Immutable, shared by threads. */
struct vocab_pre;

struct vocab_ends { /* a growing list of piece ends */
    size_t *end;
    size_t n, cap;
};

enum rs_result vocab_pre_open(const char *name, size_t name_len, struct vocab_pre **out, struct rs_error *err);
void vocab_pre_close(struct vocab_pre *p);
const char *vocab_pre_known_name(const struct vocab_pre *p);
bool vocab_pre_ignores_merges(const struct vocab_pre *p); /* a piece that is a token is taken whole, whatever merges would give */
bool vocab_pre_is_glm(const struct vocab_pre *p);
/* Replace the contents of `ends`. */
enum rs_result vocab_pre_run(const struct vocab_pre *p, const char *text, size_t len, struct vocab_ends *ends, struct rs_error *err);

/* Merges (vocab_bpe.c): rank = index. Open addressing over ranks, so that the table stays smaller than the file's own list. */
struct vocab_merges {
    uint32_t n;
    uint32_t *left, *right, *result; /* token ids */
    uint32_t *slot;                  /* rank + 1, 0 is free */
    uint32_t mask;
};

struct vocab_special { /* tokens that are matched as text, sorted by their bytes */
    int32_t *id;
    uint32_t n;
};

struct vocab {
    uint32_t n;
    char *text;     /* bytes of all tokens */
    uint32_t *at;   /* n + 1 offsets into text */
    uint8_t *type;  /* enum vocab_type */
    uint8_t *eog;   /* 1: ends generation */
    uint32_t *slot; /* hash of the tokens that merging may produce: id + 1, 0 is free */
    uint32_t mask;
    uint32_t longest; /* bytes of the longest token */
    int32_t byte_id[256];
    struct vocab_merges merges;
    struct vocab_special trusted, typed; /* matched in special segments; in all segments */
    struct vocab_pre *pre;
    int32_t bos, eos, eot;
    bool add_bos;
    char notes[8][200];
    uint32_t n_notes;
};

/* The mergeable token with exactly these bytes, or -1. */
int32_t vocab_lookup(const struct vocab *v, const char *s, size_t len);

/* The control, unknown or user-defined token with exactly these bytes, or -1. */
int32_t vocab_find_special(const struct vocab *v, const char *s, size_t len);
void vocab_add_note(struct vocab *v, const char *what, const char *key); /* both static or copied; once per text, a few at most */

/* Bytes of an ordinary token's text, which is written in the byte alphabet: fills out (room for len) and returns how many. Text with a
 * character outside the alphabet stands for itself. */
size_t vocab_unmap(const char *s, size_t len, char *out);

enum rs_result vocab_bpe_open(struct vocab *v, const struct gguf *g, struct rs_error *err); /* fills v->merges */
void vocab_bpe_close(struct vocab_merges *m);

/* Scratch and output of one encode call. */
struct vocab_work {
    int32_t *ids;
    size_t n_ids, cap_ids;
    struct bpe_symbol *sym;
    size_t cap_sym;
    struct bpe_pair *heap;
    size_t cap_heap;
};

bool vocab_work_reserve(struct vocab_work *w, size_t more); /* room for `more` ids; false: out of memory */
/* Append the tokens of one piece. False: out of memory. */
bool vocab_bpe_piece(const struct vocab *v, struct vocab_work *w, const char *s, size_t len);

/* Length of the UTF-8 character at p (n >= 1 bytes are there): 1..4. Otherwise 0 and *bad = how many bytes are wrong together: the longest
 * beginning of a character, at least 1; *unfinished says that more input could complete them. */
size_t vocab_utf8(const uint8_t *p, size_t n, size_t *bad, bool *unfinished);

#endif
