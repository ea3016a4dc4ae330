/* http_logprobs.h: log-probabilities of an answer's tokens, in the forms that OpenAI's two endpoints have for them.
 *
 * The engine sends ids and numbers with each token; the text of a token comes from the vocabulary, fetched once. Entries wait until the text that
 * they belong to goes out: a stop string may still take it back. The bridge's thread. */
#ifndef RANKSCOPE_CONSOLE_HTTP_LOGPROBS_H
#define RANKSCOPE_CONSOLE_HTTP_LOGPROBS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "console/con.h"

/* The bytes of every token. */
struct http_pieces {
    uint32_t *start;   /* [n + 1] offsets into bytes, which lie behind them */
    const char *bytes;
    size_t n;
};

enum rs_result http_pieces_open(struct con *con, struct http_pieces *out, struct rs_error *err);
/* From a reply to "pieces"; false: it makes no sense. */
bool http_pieces_copy(struct http_pieces *out, size_t n, const void *blob, size_t len);
void http_pieces_close(struct http_pieces *p);
/* The bytes of a token, not NUL-terminated; none for an id that there is not. Valid as long as p. */
const char *http_piece(const struct http_pieces *p, long long id, size_t *len);

struct http_logprob {
    int32_t id;
    float logprob;
};

/* Tokens of one part of an answer: [n][1 + top], the token itself and then the likeliest ones (id -1: there is none). */
struct http_logprob_list {
    struct http_logprob *v;
    size_t n, cap, next;  /* next: the first one that has not gone out */
    size_t start, chars;  /* where it begins in the text: bytes, characters */
};

/* Of one answer. */
struct http_logprobs {
    struct http_logprob_list text, thought;
    size_t shown;         /* bytes of text that went out */
};

/* A token came with the event's blob, for a request with so many likeliest ones. */
void http_logprobs_add(struct http_logprobs *l, int top, const struct rs_event *ev);
void http_logprobs_fini(struct http_logprobs *l);

/* Those whose text has gone out and that were not taken yet; last: all up to `limit` bytes of text. New reference, null when there are none. */
json_t *http_logprobs_chat(struct http_logprobs *l, int top, const struct http_pieces *p, bool last, size_t limit);
json_t *http_logprobs_completion(struct http_logprobs *l, int top, const struct http_pieces *p, bool last, size_t limit);

#endif
