/* See health.h. */
#include "engine/health.h"

#include <string.h>

void health_reset(struct health *h)
{
    memset(h, 0, sizeof *h);
}

void health_token(struct health *h, int32_t token, const struct sample_info *info)
{
    (void)token;
    h->n++;
    h->entropy += (double)info->entropy;
    h->logprob += (double)info->logprob;
    if (info->entropy > h->entropy_max)
        h->entropy_max = info->entropy;
    h->nonfinite += info->nonfinite != 0;
    h->constant += info->constant != 0;
}
