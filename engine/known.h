/* What models of this family are known to use: a second opinion on the hyper-parameters in use. Facts are from the models' published configurations. */
#ifndef RANKSCOPE_ENGINE_KNOWN_H
#define RANKSCOPE_ENGINE_KNOWN_H

#include <jansson.h>

#include "engine/hparams.h"

/* Replace what the file says by what is known of a model of this shape. */
void known_apply(struct hparams *hp);
/* Facts that concern a model of hp's shape: [{"key","used","known","ok","of"}]. */
json_t *known_check(const struct hparams *hp, uint32_t *n_wrong);
/* The name of the model that has this shape, or NULL. */
const char *known_model(const struct hparams *hp);

#endif
