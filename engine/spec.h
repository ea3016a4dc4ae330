/* Speculation: the NextN block guesses tokens, the next step of the main stack verifies them all at once.
 *
 * Whatever is guessed, the text is what it would be without guesses: every token is sampled from the main stack's own logits, and a guess only
 * decides whether the row behind it was worth computing. Under numerics=invariant that holds to the bit.
 *
 * A NextN row at position t is made from the hidden state of position t and the token at t + 1, and lies in the NextN layer of the same cache
 * blocks as everything else of position t. After every step of the main stack the rows whose next token is known go through the block, prompts
 * included; the last row of a sequence gives the first draft, each draft's own row the next one. The engine's control thread owns all of it. */
#ifndef RANKSCOPE_ENGINE_SPEC_H
#define RANKSCOPE_ENGINE_SPEC_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/rankscope.h"

struct engine;
struct seq;
struct runtime_config;

#define SPEC_MAX 8

struct spec {
    uint32_t n;                  /* drafts per step and sequence that were asked for; 0: off */
    struct batch batch;          /* of NextN steps; arrays of the runtime's limits */
    struct seq **seq;            /* [cap_logits] sequence of each wanted row */
    uint64_t steps, tokens;      /* steps that verified, per sequence, and what came out of them */
    uint64_t drafted[SPEC_MAX], accepted[SPEC_MAX]; /* by place in the row of drafts */
    double target_us, draft_us;
    uint64_t target_steps, draft_steps;
    /* Acceptance of first drafts over about the last 64, and the best that it ever was: a collapse is an early sign that something computes wrongly. */
    double recent, best;
    uint64_t watched;
    bool alarm, told;            /* told: clients have been */
    bool crowded;                /* no drafts, because the sequences that run fill what a step may verify */
    uint64_t times_crowded;
};

bool spec_arrays(struct spec *p, const struct runtime_config *cfg); /* false: out of memory */
void spec_free_arrays(struct spec *p);

/* Change the number of drafts. Turning it on forgets caches that lack NextN rows: running sequences are computed again. Errors: RS_ESTATE (no
 * model, or one without a NextN block). */
enum rs_result spec_set(struct engine *e, uint32_t n, struct rs_error *err);
/* The same; where that is not possible it is off, and clients are told why. */
void spec_want(struct engine *e, uint32_t n);
/* Forget all figures; another model was opened. Off if that has no NextN block. */
void spec_reset(struct engine *e);

/* A step of the main stack took so long. */
void spec_target(struct engine *e, double us);
/* A step's rows of s held `drafts` drafts, of which the first `right` were. */
void spec_verified(struct engine *e, struct seq *s, uint32_t drafts, uint32_t right);
/* Make drafts for the sequences of the step that has just ended. A failure switches speculation off and says so. Allocates nothing. */
void spec_draft(struct engine *e);

json_t *spec_seq_json(const struct engine *e, const struct seq *s); /* null when no step of s verified anything */
json_t *spec_stats_json(const struct engine *e);                          /* "spec" of method stats */

#endif
