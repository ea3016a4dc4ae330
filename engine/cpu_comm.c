/* CPU: collectives. Rank r sums one part of the vector over all ranks and writes it to every rank, so each element is added once, in one order,
 * and every rank ends with the same bits. */
#include <time.h>

#include "engine/cpu.h"

static uint32_t allreduce_phases(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    (void)op, (void)bucket;
    if (c->n_ranks == 1)
        return ch->delay_rank == 0 ? 1 : 0;
    return ch->delay_rank >= 0 && (uint32_t)ch->delay_rank < c->n_ranks ? 2 : 1;
}

/* The patch delay=RANK:us: this rank is busy for so long before it arrives. Most of it is slept through, because other ranks share its core. */
static void be_late(float us)
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

static void run_allreduce(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    if (k->phase + 1 < k->n_phases || c->n_ranks == 1) {
        if ((int)k->rank == k->choice->delay_rank && cpu_alone(k))
            be_late(k->choice->delay_us);
        return;
    }
    const float *src[RS_MAX_RANKS];
    float *dst[RS_MAX_RANKS];
    for (uint32_t r = 0; r < c->n_ranks; r++)
        src[r] = dst[r] = c->rank[r].buf[k->op->in[0].buf];
    size_t n = (size_t)k->b->n_rows * cpu_width(k, &k->op->in[0]), units = (n + 15) / 16;
    size_t a = units * k->rank / c->n_ranks, z = units * (k->rank + 1) / c->n_ranks; /* this rank's part */
    size_t from = (a + (z - a) * k->lo / k->of) * 16, to = (a + (z - a) * k->hi / k->of) * 16;
    to = to < n ? to : n;
    if (from < to)
        c->vec->reduce(src, dst, c->n_ranks, c->n_ranks, from, to, k->choice->tree, k->choice->bf16);
}

const struct cpu_launch CPU_ALLREDUCE = {allreduce_phases, run_allreduce};
