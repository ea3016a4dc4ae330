/* See loading.h. */
#include "engine/loading.h"

#include <stddef.h>

#include "engine/error.h"

void loading_expect(struct loading *l, uint64_t bytes)
{
    if (l != NULL)
        atomic_fetch_add(&l->total, bytes);
}

bool loading_add(struct loading *l, uint64_t bytes)
{
    if (l == NULL)
        return true;
    atomic_fetch_add(&l->done, bytes);
    return !atomic_load(&l->stop);
}

void loading_look(struct loading *l)
{
    if (l != NULL)
        l->look(l->arg, l);
}

enum rs_result loading_stopped(const struct loading *l, struct rs_error *err)
{
    return l == NULL || !atomic_load(&l->stop) ? RS_OK : error_set(err, RS_ECANCELLED, "loading was cancelled; what was open is as it was");
}
