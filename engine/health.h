/* Judging an output without a reference. Accumulates while a sequence generates; allocates nothing. The control thread owns it.
 *
 * What is watched: the distribution that each token came from (entropy, how the chosen token's surprise compares with what that distribution leads
 * to expect, the gap at the top, logits that are not finite or all equal) and the output itself (one token over and over, white space over and over,
 * a group of tokens that repeats, bytes that are no UTF-8). */
#ifndef RANKSCOPE_ENGINE_HEALTH_H
#define RANKSCOPE_ENGINE_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sample.h"

enum { HEALTH_PERIODS = 32 }; /* longest group of tokens whose repetition is noticed */

struct health {
    uint32_t n;                        /* tokens seen, the one that ended the answer included */
    double entropy, entropy2, logprob; /* sums over tokens; entropy2 of squares */
    double excess, variance;           /* sums of -logprob - entropy, and of what that difference's variance is under honest sampling */
    double gap;                        /* sum of the top gaps */
    float entropy_max, gap_min;
    uint32_t nonfinite, constant;      /* steps with such logits */
    uint32_t odd;                      /* tokens picked by other rules than temperature and cutting: then `excess` says nothing */
    uint32_t period_run[HEALTH_PERIODS]; /* [p - 1] how many tokens in a row equal the one p before */
    uint32_t loop_run, loop_period;    /* the longest repetition: tokens that only repeat, size of the group that they repeat */
    uint32_t bytes, blank;             /* of text; of white space among them */
    uint32_t invalid;                  /* U+FFFD in the text: what bytes that are no UTF-8 are shown as */
    uint8_t fffd;                      /* bytes of a U+FFFD seen at the end of the text so far */
};

void health_reset(struct health *h);
/* history: the n_history tokens before `token`, prompt included; n_out of them were generated. honest: chosen by temperature, top_k and the like
 * alone, at a temperature of at most 1. */
void health_token(struct health *h, int32_t token, const int32_t *history, uint32_t n_history, uint32_t n_out, const struct sample_info *info, bool honest);
/* A piece of the answer's text, in order, as it was decoded. */
void health_text(struct health *h, const char *text, size_t n);

#endif
