/* See comm.h. */
#include "engine/comm.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

bool comm_run(struct comm *c, struct comm_move *m, uint32_t n)
{
    if (!c->failed && c->ops->move(c, m, n, &c->why) != RS_OK) {
        const size_t at = strlen(c->why.msg);
        if (c->where != NULL)
            snprintf(c->why.msg + at, sizeof c->why.msg - at, ", in %s", c->where);
        c->failed = true;
    }
    return !c->failed;
}

void comm_close(struct comm *c)
{
    if (c != NULL)
        c->ops->close(c);
}

/* The patch delay=RANK:us: a rank is busy for so long before it arrives. Most of it is slept through, because other ranks share its core. */
void comm_be_late(float us)
{
    enum { SPIN_NS = 100000 };
    struct timespec end, t;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int64_t ns = end.tv_nsec + (int64_t)((double)us * 1e3);
    end.tv_sec += ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    ns = (int64_t)((double)us * 1e3) - SPIN_NS;
    if (ns > 0)
        nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
    do
        clock_gettime(CLOCK_MONOTONIC, &t);
    while (t.tv_sec < end.tv_sec || (t.tv_sec == end.tv_sec && t.tv_nsec < end.tv_nsec));
}
