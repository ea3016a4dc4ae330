/* See comm.h. */
#include "engine/comm.h"

bool comm_run(struct comm *c, struct comm_move *m, uint32_t n)
{
    if (!c->failed && c->ops->move(c, m, n, &c->why) != RS_OK)
        c->failed = true;
    return !c->failed;
}

void comm_close(struct comm *c)
{
    if (c != NULL)
        c->ops->close(c);
}
