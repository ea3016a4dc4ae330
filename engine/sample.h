/* From logits to a token; from a row of them, or from what a device says of a row that it keeps.
 *
 * Order: logit bias, penalties, temperature (0: take the largest, ties to the lowest id), top_k, typical_p, top_p, min_p, draw. Each sequence has its
 * own generator, so a seed gives the same text whatever else runs. No allocation: scratch is the caller's. */
#ifndef RANKSCOPE_ENGINE_SAMPLE_H
#define RANKSCOPE_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/vec.h"

#define SAMPLE_MAX_BIAS 64

struct sample_params {
    float temp, top_p, min_p, typical_p;        /* temp 0: greedy; top_p 1, min_p 0, typical_p 1: off */
    uint32_t top_k;                             /* 0: off */
    float repeat_penalty;                       /* 1: off; divides positive logits of seen tokens, multiplies negative ones */
    float frequency_penalty, presence_penalty;  /* 0: off; subtracted per occurrence, and once */
    uint32_t penalty_last_n;                    /* how far penalties look back; 0: off */
    uint64_t seed;
    uint32_t n_bias;
    struct { int32_t token; float value; } bias[SAMPLE_MAX_BIAS];
};

struct sample_rng { uint64_t s[2]; };

/* One candidate: sorted by value, largest first. */
struct sample_item { float logit, p; int32_t id; };

struct sample_scratch {
    float *logits;              /* [vocab] */
    struct sample_item *items;  /* [vocab] */
    struct sample_item *list;   /* [vocab] for a row that a device looked at; or NULL */
    const struct krn_cpu_vec *vec; /* NULL: plain C */
};

/* The n most likely of a row of logits, best first, ties to the lowest id; p is left alone. Returns how many there are: NaN does not count. */
uint32_t sample_top(const float *logits, uint32_t vocab, uint32_t n, struct sample_item *out);

/* Numbers about the distribution that the token was taken from, for the health verdict. */
struct sample_info {
    float entropy;   /* nats, of softmax(logits) before any sampling setting */
    float varentropy; /* variance of -log p under that distribution, nats squared */
    float logprob;   /* of the chosen token there */
    float top_gap;   /* largest logit minus second largest */
    int nonfinite;   /* logits that are NaN or infinite */
    int constant;    /* 1: all logits are equal */
};

/* A row of logits that lies elsewhere: its figures, and all of its finite values that are not below `floor`, in any order. */
struct sample_row {
    struct krn_logits figures;
    int32_t likeliest;        /* the first of the largest */
    float z_temp;             /* sum of exp((x - top) / temperature) over all; right to 1e-5 of itself */
    float floor;              /* -INFINITY: the list is the whole row */
    uint32_t n;
    struct sample_item *list; /* logit and id */
};

/* Two parts of one row become one, in a; a's tokens come before b's. a's list has room for both. temp: of z_temp, 0: none is wanted. */
void sample_row_join(struct sample_row *a, const struct sample_row *b, float temp);

void sample_defaults(struct sample_params *p);
void sample_seed(struct sample_rng *r, uint64_t seed);
/* Do tokens come from the distribution that the logits stand for, or from one that was bent further away from it? */
bool sample_honest(const struct sample_params *p);
/* history: the sequence's tokens so far (n of them). Returns the token's id. NaN counts as minus infinity; if nothing is finite, id 0. */
int32_t sample_token(const struct sample_params *p, struct sample_rng *r, const float *logits, uint32_t vocab, const int32_t *history, uint32_t n,
                     struct sample_scratch *scratch, struct sample_info *info);

/* How long a list of candidates these settings ask for; 0: none. false: they need the whole row. */
bool sample_lists(const struct sample_params *p, uint32_t *n);
/* The token that sample_token() would return, with its logit, where the list proves which one that is; else false, and r has not moved. */
bool sample_listed(const struct sample_params *p, struct sample_rng *r, const struct sample_row *row, struct sample_scratch *scratch, int32_t *id,
                   float *logit, struct sample_info *info);
/* As sample_top(), for n that the list reaches. */
uint32_t sample_top_listed(const struct sample_row *row, uint32_t n, struct sample_item *out);

#endif
