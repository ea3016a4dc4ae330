/* http_api.h: what a client of the HTTP server asks for, read from its JSON and checked.
 *
 * Pure functions of the body; any thread. A client's words are data: they become text segments in which no control token is recognised, and
 * never reach a command or a script. Fields that are not known are passed over, as clients send many; fields that would change the answer and
 * cannot be honoured are refused. */
#ifndef RANKSCOPE_CONSOLE_HTTP_API_H
#define RANKSCOPE_CONSOLE_HTTP_API_H

#include <jansson.h>
#include <stdbool.h>

#include "console/buf.h"
#include "console/con.h"

enum { API_MAX_CHOICES = 64, API_MAX_STOPS = 16, API_MAX_LOGPROBS = 20 };

enum api_kind { API_CHAT, API_COMPLETION, API_TOKENIZE, API_DETOKENIZE };

/* An answer other than 200, as OpenAI's clients read it. */
struct api_error {
    int status;        /* HTTP */
    const char *type;  /* static: "invalid_request_error" ... */
    const char *code;  /* static, or NULL */
    char param[48];    /* the field that is wrong, or "" */
    char message[512];
};

struct api_request {
    enum api_kind kind;
    bool stream, usage, usage_each;   /* SSE; a last chunk with the usage; usage in every chunk */
    long n;                           /* answers to each prompt */
    int logprobs;                     /* -1: none; else how many of the likeliest tokens beside each */
    bool echo;                        /* completion: the prompt first */
    enum con_think think;
    char *model;                      /* as the client named it; NULL: it did not */
    json_t *submit;                   /* arguments of method "submit" but for the prompt */
    json_t *messages;                 /* chat: [{"role","content","thinking"(may be missing)}] of strings */
    json_t *prompts;                  /* completion: array of strings and arrays of ids */
    json_t *engine;                   /* tokenize, detokenize: arguments of "encode", "decode" */
    bool seeded;
    json_int_t seed;
};

/* true: *out is filled; api_free() it. false: *e says what is wrong, *out is empty. */
bool api_parse(enum api_kind kind, const char *body, size_t len, struct api_request *out, struct api_error *e);
void api_free(struct api_request *r);

void api_error_set(struct api_error *e, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* {"error":{"message","type","param","code"}}; caller frees. */
char *api_error_json(const struct api_error *e);

/* What an error of the engine is over HTTP. */
void api_error_engine(struct api_error *e, enum rs_result code, const char *message);

#endif
