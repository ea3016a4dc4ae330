/* A sequence: tokens, where their cache rows lie, how to go on, what came out. The engine's control thread owns all of them. Everything that a
 * decode step appends to is allocated when the sequence is made. */
#ifndef RANKSCOPE_ENGINE_SEQ_H
#define RANKSCOPE_ENGINE_SEQ_H

#include <jansson.h>

#include "engine/health.h"
#include "engine/kv.h"
#include "engine/sample.h"
#include "engine/vocab.h"

enum seq_state { SEQ_WAITING, SEQ_RUNNING, SEQ_DONE };
enum seq_stop { SEQ_STOP_NONE, SEQ_STOP_EOS, SEQ_STOP_LENGTH, SEQ_STOP_STRING, SEQ_STOP_CANCELLED, SEQ_STOP_ERROR };

#define SEQ_MAX_STOPS 16
#define SEQ_MAX_LOGPROBS 20

struct seq {
    struct seq *next, *prev;      /* all sequences of the engine, oldest first */
    struct seq *q_next, *q_prev;  /* the queue of its state: waiting or done */
    uint32_t id, session;         /* session 0: none */
    enum seq_state state;
    enum seq_stop stop;
    int32_t *tok;                 /* [cap] */
    uint8_t *kind;                /* [cap] enum batch_kind of each token's row */
    uint32_t n, cap, n_prompt;
    uint32_t n_cached;            /* rows whose cache is valid */
    uint32_t n_reused;            /* of the prompt, found in the cache */
    uint32_t n_out, max_out;
    uint32_t n_draft;             /* guesses that stand in tok after the n known ones; the next step verifies them */
    int32_t *table;               /* [cap / block + 1] */
    uint32_t n_table, n_hashed;   /* blocks held; blocks already published (their chain's hash is `hash`) */
    uint64_t hash;
    bool grew;                    /* went through the batch of the step that runs */
    uint32_t n_batch;             /* with so many rows */
    struct sample_params sp;
    struct sample_rng rng;
    struct vocab_stream stream;
    char *text, *thought;         /* decoded so far, without control tokens unless special; [text_cap] each */
    size_t n_text, n_thought, text_cap;
    size_t n_sent;                /* bytes of text handed to clients (stop strings hold some back) */
    char *stops[SEQ_MAX_STOPS];
    uint32_t n_stops;
    bool thinking, special, ignore_eos;
    bool reuse;                   /* its beginning may be taken from the cache */
    uint32_t subscribers;         /* bit per client slot */
    int owner;                    /* slot of the client that submitted it; -1: it has left */
    char client[24];              /* as it called itself */
    bool unwanted;                /* cancelled while its step is held */
    uint64_t t_submit, t_start, t_first, t_last; /* monotonic us */
    double prompt_us, decode_us;
    uint32_t preempted;
    struct health health;
    uint32_t n_logprobs;          /* 0: none are kept; else per token its own and those of the n_logprobs - 1 likeliest */
    struct seq_logprob { int32_t id; float logprob; } *logprobs; /* [max_out * n_logprobs]; id -1: there is none */
    char error[512];
    char *done;                   /* DONE object, once state is SEQ_DONE */
    /* all-reduce figures of this sequence's decode steps */
    double ar_us, step_us;
    uint32_t steps;
    /* speculation: decode steps that verified drafts, drafts, those that were right, time in the NextN block */
    uint32_t spec_steps, spec_drafted, spec_accepted;
    double draft_us;
};

void seq_free(struct seq *s); /* NULL is allowed; blocks must have been dropped */
const char *seq_stop_name(enum seq_stop s);

#endif
