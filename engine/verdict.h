/* The verdict on an answer: ok, suspect or garbage, with the reason and the numbers behind it. */
#ifndef RANKSCOPE_ENGINE_VERDICT_H
#define RANKSCOPE_ENGINE_VERDICT_H

#include <jansson.h>

#include "engine/baseline.h"
#include "engine/health.h"

enum verdict { VERDICT_NONE, VERDICT_OK, VERDICT_SUSPECT, VERDICT_GARBAGE };

/* Answers of fewer tokens say too little to be called garbage. */
enum { VERDICT_SHORT = 8 };

/* Judge an answer of `tokens` tokens. vocab: tokens there are. reason: one line, what was seen and what is normal; "" for ok by a baseline. VERDICT_NONE: nothing to judge by. */
enum verdict verdict_of(const struct health *h, uint32_t tokens, const struct baseline *b, uint32_t vocab, char reason[256]);
const char *verdict_name(enum verdict v); /* NULL for VERDICT_NONE */

struct engine;
struct seq;

/* Sets "verdict", "reason" and "health" (the numbers) in o; null where there is nothing to judge by. */
void verdict_json(const struct engine *e, const struct seq *s, json_t *o);

#endif
