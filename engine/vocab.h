/* The vocabulary of a model: byte-level BPE with the pre-tokenizers that GLM-5, DeepSeek and Kimi files name.
 *
 * A struct vocab is immutable after vocab_open() and independent of the struct gguf that it was read from; any thread may use it.
 * Encoding allocates its scratch per call. Decoding through struct vocab_stream allocates nothing.
 *
 * Trust: text is encoded in segments, and each says whether control tokens in it are commands (what a template supplies) or just
 * characters (what a person or client typed). Nothing is merged across a segment boundary, and byte-pair merging can never end in a
 * control token, so typed text cannot forge one. User-defined tokens carry no control meaning and match in both kinds of segment. */
#ifndef RANKSCOPE_ENGINE_VOCAB_H
#define RANKSCOPE_ENGINE_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/gguf.h"
#include "engine/rankscope.h"

struct vocab;

/* On success *out belongs to the caller. RS_EFORMAT: keys missing, of the wrong type or contradictory. RS_EUNSUPPORTED: a tokenizer
 * model or pre-tokenizer that is not known; the message names the known ones. */
enum rs_result vocab_open(const struct gguf *g, struct vocab **out, struct rs_error *err);
void vocab_close(struct vocab *v); /* NULL is allowed */

uint32_t vocab_size(const struct vocab *v);
/* The bytes that a token stands for (special tokens: their text), not NUL-terminated; a normal token may hold part of a character.
 * NULL for an id out of range. */
const char *vocab_piece(const struct vocab *v, int32_t id, size_t *len);
bool vocab_is_special(const struct vocab *v, int32_t id);    /* control, unknown or unused: not part of an answer's text */
bool vocab_is_eog(const struct vocab *v, int32_t id);        /* generation ends here; the token is not printed */
int32_t vocab_find(const struct vocab *v, const char *text); /* the token whose bytes are exactly text, or -1 */

int32_t vocab_bos(const struct vocab *v); /* these three: -1 when the file names none */
int32_t vocab_eos(const struct vocab *v);
int32_t vocab_eot(const struct vocab *v);
bool vocab_adds_bos(const struct vocab *v); /* the file wants BOS before raw text; vocab_encode() never adds it, templates write it */
const char *vocab_pre_name(const struct vocab *v);

/* Things that were odd but not fatal, one line each, for a listing; NULL at the end. */
const char *vocab_note(const struct vocab *v, size_t i);

struct vocab_segment {
    const char *text;
    size_t len;
    bool special; /* control tokens in text are meant as such */
};

/* Tokens of n_seg segments, one after the other. On success the caller frees *ids (never NULL, also when *n_ids is 0). Bytes that are not
 * UTF-8 are kept: decoding gives back the same bytes. */
enum rs_result vocab_encode(const struct vocab *v, const struct vocab_segment *seg, size_t n_seg, int32_t **ids, size_t *n_ids,
                            struct rs_error *err);

/* Where the pre-tokenizer called `pre` cuts text: *ends gets the end offset of every piece. The caller frees *ends. For tests and for
 * showing how a text is cut. */
enum rs_result vocab_pre_split(const char *pre, const char *text, size_t len, size_t **ends, size_t *n_ends, struct rs_error *err);

/* Streaming decoder: tokens in, whole UTF-8 characters out. The caller owns the struct, zeroed at the start of an answer. */
struct vocab_stream {
    uint8_t hold[8]; /* an unfinished character */
    uint8_t n_hold;  /* 0..3 */
};

/* Room that one vocab_stream_put() can need, in bytes. */
size_t vocab_stream_bound(const struct vocab *v);
/* Write the characters that token id completes to out; returns how many bytes. cap must be at least vocab_stream_bound(): less writes
 * and consumes nothing and returns SIZE_MAX. Bytes that cannot become a character turn into U+FFFD. Special tokens are left out unless
 * with_special; ids out of range are left out. No allocation: usable inside a decode step. */
size_t vocab_stream_put(const struct vocab *v, struct vocab_stream *s, int32_t id, bool with_special, char *out, size_t cap);
/* End of the answer: a held unfinished character becomes U+FFFD. cap of 3 is enough. */
size_t vocab_stream_flush(struct vocab_stream *s, char *out, size_t cap);

#endif
