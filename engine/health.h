/* Judging an output without a reference. Accumulates while a sequence generates; allocates nothing. */
#ifndef RANKSCOPE_ENGINE_HEALTH_H
#define RANKSCOPE_ENGINE_HEALTH_H

#include <stdint.h>

#include "engine/sample.h"

struct health {
    uint32_t n;              /* tokens seen */
    double entropy, logprob; /* sums */
    float entropy_max;
    uint32_t nonfinite, constant; /* steps with such logits */
};

void health_reset(struct health *h);
void health_token(struct health *h, int32_t token, const struct sample_info *info);

#endif
