/* The worker pool: every worker does every part once, parts do not overlap, however many threads carry them, also with more threads than cores. The
 * pace: which number of threads it settles on, by times that are made up. */
#include <stdatomic.h>
#include <string.h>

#include "engine/pace.h"
#include "engine/pool.h"
#include "tests/tap.h"

enum { PARTS = 40, MOST = 9 };

struct count {
    atomic_uint done;                  /* shares of all parts so far */
    unsigned n;
    unsigned times[MOST][PARTS];
    unsigned thread[MOST];             /* of the worker in the current walk */
    atomic_uint early, threads;
};

static _Thread_local unsigned s_thread; /* 0: not yet seen in this walk */

static void share(void *arg, unsigned worker, unsigned part)
{
    struct count *c = arg;
    if (part == 0) {
        if (worker == 0 || s_thread == 0)
            s_thread = 1 + atomic_fetch_add(&c->threads, 1);
        c->thread[worker] = s_thread;
    }
    if (atomic_load(&c->done) / c->n < part) /* someone is still in the part before */
        atomic_fetch_add(&c->early, 1);
    c->times[worker][part]++;
    atomic_fetch_add(&c->done, 1);
    if (part + 1 == PARTS)
        s_thread = 0;
}

static void check_walks(unsigned n)
{
    struct pool *p;
    struct rs_error err;
    static struct count c;
    unsigned wrong = 0, early = 0, threads_off = 0;
    if (!tap_ok(pool_open(n, &p, &err) == RS_OK, "a pool of %u", n))
        return;
    for (unsigned i = 0; i < 300; i++) {
        unsigned threads = 1 + i % n;
        memset(&c, 0, sizeof c);
        c.n = n;
        pool_walk(p, share, &c, PARTS, threads);
        for (unsigned w = 0; w < n; w++)
            for (unsigned k = 0; k < PARTS; k++)
                wrong += c.times[w][k] != 1;
        early += atomic_load(&c.early);
        for (unsigned w = threads; w < n; w++) /* a thread carries every threads-th worker */
            threads_off += c.thread[w] != c.thread[w - threads];
    }
    tap_eq_int(wrong, 0, "%u workers: each share is done once", n);
    tap_eq_int(early, 0, "%u workers: no part begins before the one before is done", n);
    tap_eq_int(threads_off, 0, "%u workers: as many threads as were asked for", n);
    pool_close(p);
}

static void add_one(void *arg, unsigned worker)
{
    ((unsigned *)arg)[worker * 16]++;
}

static void check_run(void)
{
    struct pool *p;
    struct rs_error err;
    unsigned times[16 * 4] = {0}, wrong = 0;
    tap_ok(pool_open(0, &p, &err) == RS_EUSAGE && pool_open(POOL_MAX + 1, &p, &err) == RS_EUSAGE, "sizes that no pool has are refused");
    if (!tap_ok(pool_open(4, &p, &err) == RS_OK, "a pool of 4"))
        return;
    for (int i = 0; i < 1000; i++)
        pool_run(p, add_one, times);
    for (int w = 0; w < 4; w++)
        wrong += times[16 * w] != 1000;
    tap_eq_int(wrong, 0, "pool_run calls each worker once");
    pool_close(p);
}

/* Steps on a machine where t threads need us[t] microseconds, of which each waits the part waited[t]. Returns on how many threads most of the last
 * hundred ran. */
static unsigned settle(struct pace *p, unsigned most, const double *us, const double *waited, unsigned steps)
{
    unsigned last[MOST + 1] = {0}, best = 0;
    for (unsigned i = 0; i < steps; i++) {
        unsigned t = pace_threads(p, most);
        pace_note(p, most, us[t], us[t] * waited[t] * t);
        if (i + 100 >= steps)
            last[t]++;
    }
    for (unsigned t = 1; t <= most; t++)
        best = last[t] > last[best] ? t : best;
    return best;
}

static void check_pace(void)
{
    static const double quiet[MOST + 1] = {0, 550, 220, 0, 130, 0, 0, 0, 90}, quiet_wait[MOST + 1] = {0, 0, 0.05, 0, 0.1, 0, 0, 0, 0.2};
    static const double busy[MOST + 1] = {0, 600, 3700}, busy_wait[MOST + 1] = {0, 0, 0.5};
    static const double shared[MOST + 1] = {0, 550, 400}, shared_wait[MOST + 1] = {0, 0, 0.5};
    static const double half[MOST + 1] = {0, 550, 300, 0, 200, 0, 0, 0, 900}, half_wait[MOST + 1] = {0, 0, 0.1, 0, 0.2, 0, 0, 0, 0.8};
    static const double chunk[MOST + 1] = {0, 80000, 90000}, chunk_wait[MOST + 1] = {0, 0, 0.5};
    struct pace p = {0};
    tap_eq_int(settle(&p, 2, quiet, quiet_wait, 5000), 2, "a quiet machine: both threads");
    tap_eq_int(settle(&p, 2, busy, busy_wait, 300), 1, "others use the cores: one thread, within 300 steps");
    tap_eq_int(settle(&p, 2, busy, busy_wait, 20000), 1, "for as long as they do");
    double lost = p.clock_us;
    settle(&p, 2, busy, busy_wait, 10000);
    lost = (p.clock_us - lost) / (10000 * busy[1]) - 1;
    tap_ok(lost >= 0 && lost < 0.02, "then looking whether two are faster again costs %.1f %%, under 2", lost * 100);
    tap_eq_int(settle(&p, 2, quiet, quiet_wait, 4000), 2, "when they are gone: both again");
    settle(&p, 2, busy, busy_wait, 20000);
    for (unsigned i = 0, cold = 0; i < 8000; i++) { /* quiet again, but the first two steps of a trial wake a thread */
        unsigned n = pace_threads(&p, 2);
        cold = n == 2 ? cold + 1 : 0;
        pace_note(&p, 2, cold == 1 ? 4 * quiet[1] : cold == 2 ? 2 * quiet[1] : quiet[n], 0);
    }
    tap_eq_int(pace_threads(&p, 2), 2, "a slow start of a trial is not held against it");
    p = (struct pace){0};
    tap_eq_int(settle(&p, 2, shared, shared_wait, 10000), 2, "threads that wait, but win: both");
    tap_eq_int(settle(&p, 8, half, half_wait, 3000), 4, "of eight threads with four cores left: four");
    tap_eq_int(settle(&p, 8, quiet, quiet_wait, 10000), 8, "then all eight");
    p = (struct pace){0};
    tap_eq_int(settle(&p, 2, chunk, chunk_wait, 7), 2, "a few long steps decide nothing");
    p = (struct pace){0};
    tap_eq_int(settle(&p, 1, busy, busy_wait, 1000), 1, "a pool of one has no choice");
}

int main(void)
{
    check_walks(1);
    check_walks(2);
    check_walks(3);
    check_walks(8);
    check_run();
    check_pace();
    return tap_done();
}
