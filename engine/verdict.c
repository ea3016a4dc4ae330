/* See verdict.h. */
#include "engine/verdict.h"

#include "engine/engine.h"

void verdict_json(const struct engine *e, const struct seq *s, json_t *o)
{
    (void)e;
    const struct health *h = &s->health;
    json_object_set_new(o, "verdict", json_null());
    json_object_set_new(o, "reason", json_null());
    if (h->n == 0)
        return;
    json_object_set_new(o, "health", json_pack("{s:i,s:f,s:f,s:f,s:i,s:i}", "tokens", (int)h->n, "entropy_mean", h->entropy / h->n, "entropy_max",
                                               (double)h->entropy_max, "logprob_mean", h->logprob / h->n, "nonfinite_steps", (int)h->nonfinite,
                                               "constant_steps", (int)h->constant));
}
