/* See batch.h. */
#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

bool batch_alloc(struct batch *b, uint32_t rows, uint32_t logits, unsigned also)
{
    memset(b, 0, sizeof *b);
    b->cap = b->cap_segs = rows;
    b->cap_logits = logits;
    b->token = calloc(rows, sizeof *b->token);
    b->pos = calloc(rows, sizeof *b->pos);
    b->seg = calloc(rows, sizeof *b->seg);
    b->segs = calloc(rows, sizeof *b->segs);
    b->logit_row = calloc(logits, sizeof *b->logit_row);
    if ((also & BATCH_ALSO_WANT) != 0)
        b->want = calloc(logits, sizeof *b->want);
    if ((also & BATCH_ALSO_FROM) != 0)
        b->from = calloc(rows, sizeof *b->from);
    if (b->token != NULL && b->pos != NULL && b->seg != NULL && b->segs != NULL && b->logit_row != NULL &&
        (b->want != NULL || (also & BATCH_ALSO_WANT) == 0) && (b->from != NULL || (also & BATCH_ALSO_FROM) == 0))
        return true;
    batch_free(b);
    return false;
}

void batch_free(struct batch *b)
{
    free(b->token);
    free(b->pos);
    free(b->seg);
    free(b->segs);
    free(b->logit_row);
    free(b->want);
    free(b->from);
    memset(b, 0, sizeof *b);
}
