/* What a healthy answer of one model looks like: figures from many answers, kept in a file by the model's hash. `rankscope calibrate` makes it.
 * The control thread owns it. */
#ifndef RANKSCOPE_ENGINE_BASELINE_H
#define RANKSCOPE_ENGINE_BASELINE_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/rankscope.h"

/* Figures are means over the tokens of one answer; the bounds hold 199 of 200 answers. */
struct baseline {
    bool there;
    double answers;
    double entropy_p95, entropy_high; /* nats: 95 % and 99.5 % of the answers are below */
    double gap_low;                   /* logits: 99.5 % of the answers are above */
};

/* Take the figures from the object; RS_EFORMAT when it is none, RS_ESTATE when it belongs to a model with another hash. *out only on success. */
enum rs_result baseline_read(const json_t *o, const char *hash, struct baseline *out, struct rs_error *err);

/* Look for the file: the user's state folder ($XDG_STATE_HOME/rankscope/health-HASH.json), then MODEL.health.json beside the model ("x.gguf":
 * "x.health.json"). None, or none that fits, leaves *out empty: a model without a baseline works. */
void baseline_find(const char *model_path, const char *hash, struct baseline *out);

#endif
