/* Tokens to text, and to those who read along. Only the control thread calls. Where a device computes the next step by itself, tokens on which that step does not depend
 * are delivered meanwhile: they wait in the engine's list, and whoever looks at a sequence's text or ends it empties the list first. */
#ifndef RANKSCOPE_ENGINE_DELIVER_H
#define RANKSCOPE_ENGINE_DELIVER_H

#include "engine/sample.h"
#include "engine/seq.h"

struct engine;

/* A token that has been taken, but not been delivered: the tokens known before it, those among them that were generated. */
struct deliver_late {
    struct seq *s;
    int32_t id;
    uint32_t n, n_out;
    struct sample_info info;
};

/* Append a token's text and pass on what may be shown. Returns the reason to stop, or SEQ_STOP_NONE. Allocates nothing. */
enum seq_stop deliver_token(struct engine *e, struct seq *s, int32_t id);
/* What was held back: half a character, the beginning of a stop string. */
void deliver_rest(struct engine *e, struct seq *s);

/* Before the token is appended to a sequence without stop strings and log-probabilities; at most one token of each wanted row. Its place in the sequence's health is
 * kept as well. */
void deliver_later(struct engine *e, struct seq *s, int32_t id, const struct sample_info *info);
/* Everything that waits. */
void deliver_pending(struct engine *e);

#endif
