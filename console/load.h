/* load.h: many requests at once on one engine, and what came of them.
 *
 * The requests go through the public calls, as any client's would; times of tokens are the engine's own, taken when a token came into being, so
 * that this side may fetch events in batches and leave the processors to the engine. One thread, the one that has the handle. */
#ifndef RANKSCOPE_CONSOLE_LOAD_H
#define RANKSCOPE_CONSOLE_LOAD_H

#include <jansson.h>

#include "console/con.h"

struct load_prompt {
    char *ids;        /* "[1,2,3]" */
    size_t n;         /* tokens */
    int32_t *alone;   /* what the model answers when it does nothing else: n_alone tokens; NULL: not known */
    size_t n_alone;
};

struct load_spec {
    struct load_prompt *prompts; /* request i takes prompt i modulo n_prompts */
    size_t n_prompts, n_requests, concurrency;
    long output;                 /* tokens to generate, always as many */
    double rate;                 /* requests per second, at random intervals; 0: as soon as one ends the next one starts */
    bool reuse;                  /* prompts may be found in the cache */
    const char *label;           /* for the progress line */
};

struct load_request {
    uint64_t submit_us, first_us, last_us, done_us; /* 0: has not happened */
    uint64_t *token_us;          /* [n_tokens] */
    int32_t *tokens;
    size_t n_tokens, cap;
    uint32_t stream, preempted, cached;
    bool done, identical, compared;
    size_t differs_at;           /* first token that is not the one of the answer alone */
    char *text, *error;          /* error: NULL when it went well */
};

struct load_result {
    size_t n, concurrency;
    struct load_request *requests; /* [n] */
    double seconds;
    size_t completed, failed, identical, compared, input_tokens, output_tokens, cached_tokens;
    size_t peak_in_flight, peak_running;
    double steps, step_ms, decode_rows, prompt_rows, preemptions; /* of the engine, meanwhile */
    double peak_cache;           /* share of blocks that were held at most */
    size_t held_after;           /* blocks still held when all had ended */
};

/* Run spec; *out is the caller's, load_result_fini(). RS_ECANCELLED: interrupted. A request that fails counts as failed and is no error. */
enum rs_result load_run(struct con *con, const struct load_spec *spec, struct load_result *out, struct rs_error *err);

/* Answer every prompt alone, one after the other, and keep the tokens. */
enum rs_result load_alone(struct con *con, struct load_spec *spec, struct rs_error *err);

void load_result_fini(struct load_result *r);
void load_prompts_free(struct load_prompt *p, size_t n);

/* n prompts of `tokens` random tokens each. */
struct load_prompt *load_random_prompts(struct con *con, size_t n, size_t tokens);
/* One prompt a line, as text without control tokens. */
enum rs_result load_file_prompts(struct con *con, const char *path, struct load_prompt **out, size_t *n, struct rs_error *err);

/* ---- numbers (load_stat.c) -------------------------------------------------------------------------------------------------------------- */

struct load_stat {
    double mean, p50, p99, std; /* NAN when there is nothing to take them of */
};

struct load_summary {
    struct load_stat ttft, tpot, itl, e2el; /* milliseconds */
    double output_rate, total_rate, request_rate, user_rate, peak_rate; /* per second; user_rate: mean over requests of 1 / TPOT */
    double steady_rate; /* output tokens per second while as many generate as ever did: what is left out is time in which some read their prompts or
                         * have ended already. NAN: there is no such time, or not enough for two tokens of each */
    double step_ms, batch;                  /* per step: wall time, rows of generated tokens */
};

void load_summarise(const struct load_result *r, struct load_summary *s);

/* One object with the keys of `vllm bench serve` and our own; new reference. */
json_t *load_json(const struct con *con, const struct load_spec *spec, const struct load_result *r, const struct load_summary *s);

#endif
