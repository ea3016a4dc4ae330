/* The verdict on an answer, as JSON. */
#ifndef RANKSCOPE_ENGINE_VERDICT_H
#define RANKSCOPE_ENGINE_VERDICT_H

#include <jansson.h>

struct engine;
struct seq;

/* Sets "verdict", "reason" and "health" in o; null where there is nothing to judge by. */
void verdict_json(const struct engine *e, const struct seq *s, json_t *o);

#endif
