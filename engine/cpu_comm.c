/* CPU: collectives. Rank r sums one part of the vector over all ranks and writes it to every rank, so each element is added once, in one order,
 * and every rank ends with the same bits. Of ranks on other hosts the summands are fetched first, not sums of theirs: then the order, and with it the
 * result, is the same to the bit however the ranks are dealt to hosts. */
#include <math.h>
#include <stdlib.h>

#include "engine/comm.h"
#include "engine/cpu.h"
#include "engine/error.h"
#include "engine/now.h"
#include "kernels/quant.h"

/* The number of the first rank that is here, among all. */
static uint32_t first_rank(const struct cpu *c)
{
    return c->lim.span != NULL ? c->lim.span->first[c->lim.span->comm->host] : 0;
}

static bool is_late(const struct cpu *c, const struct choice *ch)
{
    const int first = (int)first_rank(c);
    return ch->delay_rank >= first && ch->delay_rank < first + (int)c->n_ranks;
}

static uint32_t allreduce_phases(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    (void)op, (void)bucket;
    if (c->lim.span != NULL) /* be late, fetch, add */
        return is_late(c, ch) ? 3 : 2;
    if (c->n_ranks == 1 && c->lim.peers > 1)
        return ch->delay_rank == 0 ? 2 : 1;
    if (c->n_ranks == 1)
        return ch->delay_rank == 0 ? 1 : 0;
    return is_late(c, ch) ? 2 : 1;
}

void cpu_delay(const struct cpu_call *k)
{
    if ((int)(first_rank(k->c) + k->rank) == k->choice->delay_rank && cpu_alone(k))
        comm_be_late(k->choice->delay_us);
}

/* ---- peers that are not there ---- */

enum { STAND_IN_ROWS = 64, FLAG_WORDS = 16 }; /* longer messages go over the same memory again; a flag has a cache line */

enum rs_result cpu_stand_in_open(struct cpu *c, struct rs_error *err)
{
    if (c->lim.peers < 2)
        return RS_OK;
    c->stand_in_rows = c->lim.max_rows < STAND_IN_ROWS ? c->lim.max_rows : STAND_IN_ROWS;
    size_t n = (size_t)(c->lim.peers - 1) * c->stand_in_rows * c->hp->n_embd;
    c->stand_in = cpu_big_alloc(2 * n * sizeof *c->stand_in);
    c->arrived = cpu_big_alloc(c->lim.peers * FLAG_WORDS * sizeof *c->arrived);
    if (c->stand_in == NULL || c->arrived == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a stand-in for %u ranks", c->lim.peers - 1);
    uint64_t seed = c->lim.peer + 1; /* of the size that summands of N ranks have, so that what is computed looks like a whole model's */
    krn_quant_random(KRN_F32, &seed, 1 / sqrtf((float)c->lim.peers), c->stand_in, n);
    c->bytes_buffers += 2 * n * sizeof *c->stand_in;
    return RS_OK;
}

void cpu_stand_in_close(struct cpu *c)
{
    free(c->stand_in);
    free(c->arrived);
}

/* Values [from, to) of at most stand_in_rows rows. This rank sums its part of the vector over all and writes the sums to all; of the rest it gets the
 * sums that the others write: the bytes are those of a flat all-reduce, the numbers are not. */
static void stand_in_reduce(const struct cpu_call *k, float *own, size_t n, size_t from, size_t to)
{
    const struct cpu *c = k->c;
    const uint32_t peers = c->lim.peers, me = c->lim.peer;
    const size_t each = (size_t)c->stand_in_rows * c->hp->n_embd, mine = n * me / peers, end = n * (me + 1) / peers;
    const float *src[RS_MAX_RANKS];
    float *dst[RS_MAX_RANKS];
    for (uint32_t r = 0, at = 0; r < peers; r++) {
        src[r] = r == me ? own : c->stand_in + at * each;
        dst[r] = r == me ? own : c->stand_in + (peers - 1 + at) * each;
        at += r != me;
    }
    size_t a = from > mine ? from : mine, z = to < end ? to : end;
    if (a < z)
        c->vec->reduce(src, dst, peers, peers, a, z, k->choice->tree, k->choice->bf16);
    const float *got[2] = {own, src[me == 0 ? 1 : 0]};
    if (from < mine)
        c->vec->reduce(got, &own, 2, 1, from, to < mine ? to : mine, k->choice->tree, k->choice->bf16);
    if (to > end)
        c->vec->reduce(got, &own, 2, 1, from > end ? from : end, to, k->choice->tree, k->choice->bf16);
}

/* Tell the peers, and wait until they have told us, which the stand-in does at once. */
static void stand_in_signal(const struct cpu *c)
{
    for (uint32_t r = 0; r < c->lim.peers; r++)
        atomic_fetch_add_explicit(&c->arrived[r * FLAG_WORDS], 1, memory_order_release);
    for (uint32_t r = 0; r < c->lim.peers; r++)
        while (atomic_load_explicit(&c->arrived[r * FLAG_WORDS], memory_order_acquire) == 0)
            ;
}

static void run_stand_in(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const size_t width = cpu_width(k, &k->op->in[0]);
    if (cpu_alone(k))
        stand_in_signal(c);
    for (uint32_t row = 0; row < k->b->n_rows; row += c->stand_in_rows) {
        size_t rows = k->b->n_rows - row < c->stand_in_rows ? k->b->n_rows - row : c->stand_in_rows, from, to;
        cpu_cut(k, rows * width, 16, &from, &to);
        if (from < to)
            stand_in_reduce(k, cpu_at(k, &k->op->in[0], row), rows * width, from, to);
    }
}

/* ---- ranks on other hosts ---- */

enum rs_result cpu_far_open(struct cpu *c, struct rs_error *err)
{
    const struct backend_span *s = c->lim.span;
    if (s == NULL)
        return RS_OK;
    const size_t each = (size_t)c->lim.max_rows * c->hp->n_embd;
    const uint32_t first = first_rank(c);
    c->part = calloc(s->n_ranks, sizeof *c->part);
    c->far = cpu_big_alloc((s->n_ranks - c->n_ranks) * each * sizeof *c->far);
    if (c->part == NULL || c->far == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for what %u ranks on other hosts send", s->n_ranks - c->n_ranks);
    for (uint32_t r = 0, at = 0; r < s->n_ranks; r++)
        c->part[r] = r >= first && r < first + c->n_ranks ? NULL : c->far + at++ * each;
    c->bytes_buffers += (s->n_ranks - c->n_ranks) * each * sizeof *c->far / c->n_ranks;
    return RS_OK;
}

void cpu_far_close(struct cpu *c)
{
    free(c->part);
    free(c->far);
}

/* One worker alone: every host's summands to every other one. A failure stays in comm, and whoever runs the step sees it there. */
static void fetch(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const struct backend_span *s = c->lim.span;
    const uint32_t me = s->comm->host;
    const size_t bytes = (size_t)k->b->n_rows * cpu_width(k, &k->op->in[0]) * sizeof(float);
    struct comm_move m[2 * RS_MAX_RANKS];
    uint32_t n = 0;
    for (uint32_t h = 0; h < s->comm->n_hosts; h++) {
        for (uint32_t r = 0; r < c->n_ranks && h != me; r++)
            m[n++] = (struct comm_move){.host = h, .send = true, .data = c->rank[r].buf[k->op->in[0].buf], .bytes = bytes};
        for (uint32_t r = s->first[h]; r < s->first[h + 1] && h != me; r++)
            m[n++] = (struct comm_move){.host = h, .data = c->part[r], .bytes = bytes};
    }
    const uint64_t t0 = now_ns();
    s->comm->where = k->op->site;
    (void)comm_run(s->comm, m, n);
    s->comm->where = NULL;
    s->move_us[k->op->index] += (float)((double)(now_ns() - t0) / 1e3);
}

static void run_allreduce(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const struct backend_span *s = c->lim.span;
    if (s != NULL && k->phase + 2 == k->n_phases) {
        if (k->rank == 0 && cpu_alone(k))
            fetch(k);
        return;
    }
    if (s == NULL && c->n_ranks == 1 && c->lim.peers > 1 && k->phase + 1 == k->n_phases) {
        run_stand_in(k);
        return;
    }
    const uint32_t first = first_rank(c), all = s != NULL ? s->n_ranks : c->n_ranks;
    if (k->phase + 1 < k->n_phases || all == 1) {
        cpu_delay(k);
        return;
    }
    const float *src[RS_MAX_RANKS];
    float *dst[RS_MAX_RANKS];
    for (uint32_t r = 0; r < all; r++)
        src[r] = s != NULL ? c->part[r] : NULL;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        src[first + r] = dst[r] = c->rank[r].buf[k->op->in[0].buf];
    size_t n = (size_t)k->b->n_rows * cpu_width(k, &k->op->in[0]), units = (n + 15) / 16;
    size_t a = units * k->rank / c->n_ranks, z = units * (k->rank + 1) / c->n_ranks; /* this rank's part */
    size_t from = (a + (z - a) * k->lo / k->of) * 16, to = (a + (z - a) * k->hi / k->of) * 16;
    to = to < n ? to : n;
    if (from < to)
        c->vec->reduce(src, dst, all, c->n_ranks, from, to, k->choice->tree, k->choice->bf16);
}

const struct cpu_launch CPU_ALLREDUCE = {allreduce_phases, run_allreduce};
