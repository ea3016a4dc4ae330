/* See seq.h. */
#include "engine/seq.h"

#include <stdlib.h>

void seq_free(struct seq *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->n_stops; i++)
        free(s->stops[i]);
    free(s->tok);
    free(s->kind);
    free(s->table);
    free(s->text);
    free(s->thought);
    free(s->logprobs);
    free(s->done);
    free(s);
}

const char *seq_stop_name(enum seq_stop s)
{
    static const char *const NAMES[] = {"none", "eos", "length", "stop", "cancelled", "error"};
    return NAMES[s];
}
