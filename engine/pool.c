/* Two words are shared: `job` names the current walk and how many threads take part in it (the others wait for it to change), `arrived` and
 * `phase` make the barrier between parts. */
#include "engine/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/error.h"
#include "engine/now.h"

/* Microseconds of spinning before a thread sleeps. Waking one takes 5 to 50, and a thread that sleeps invites the kernel to move its neighbour onto
 * this core, so a part may wait for long; a thread without work is quicker to go. */
enum { YIELD_AFTER = 50, SPIN_PART = 1000, SPIN_JOB = 300 };
enum { SPINS_SHORT = 64 }; /* looks before the clock is looked at, one or two microseconds */
enum { JOB_THREADS = 512 }; /* job = number of the walk * JOB_THREADS + threads that take part */

struct thread {
    _Alignas(64) atomic_uint asleep; /* waits for a job in the kernel */
    atomic_ullong waited_ns;         /* written by this thread only */
};

struct pool {
    unsigned n;
    unsigned started; /* threads that exist besides the caller */
    pthread_t *id;
    struct thread *thread; /* [n] */
    /* written by the owner before job changes, constant during a walk */
    pool_part_fn fn;
    void *arg;
    unsigned n_parts, n_threads;
    bool stop;
    _Alignas(64) atomic_uint job;
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint phase;
    _Alignas(64) atomic_uint sleepers; /* at the barrier */
};

struct start {
    struct pool *pool;
    unsigned me;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Wait for *word to change from `old`, at most for about max_us. Returns whether it has; *ns: how long it took if it took long. */
static bool spin(const atomic_uint *word, unsigned old, unsigned max_us, uint64_t *ns)
{
    uint64_t t0 = 0, now = 0;
    for (unsigned i = 1; atomic_load_explicit(word, memory_order_acquire) == old; i++) {
        relax();
        if (i % SPINS_SHORT != 0)
            continue;
        now = now_ns();
        if (t0 == 0)
            t0 = now;
        if (now - t0 > max_us * 1000ull)
            break;
        if (now - t0 > YIELD_AFTER * 1000ull)
            sched_yield();
    }
    *ns = t0 != 0 ? now_ns() - t0 : 0;
    return atomic_load_explicit(word, memory_order_acquire) != old;
}

/* Futex waits are for bits, so that threads that have no part in a walk sleep on. */
static unsigned bit(unsigned me)
{
    return 1u << (me < 31 ? me : 31);
}

static void sleep_on(atomic_uint *word, unsigned old, unsigned bits)
{
    while (atomic_load(word) == old)
        syscall(SYS_futex, (unsigned *)word, FUTEX_WAIT_BITSET_PRIVATE, old, NULL, NULL, bits);
}

static void wake(atomic_uint *word, unsigned bits)
{
    syscall(SYS_futex, (unsigned *)word, FUTEX_WAKE_BITSET_PRIVATE, POOL_MAX, NULL, NULL, bits);
}

static void note_wait(struct thread *t, uint64_t ns)
{
    if (ns != 0)
        atomic_store_explicit(&t->waited_ns, atomic_load_explicit(&t->waited_ns, memory_order_relaxed) + ns, memory_order_relaxed);
}

/* `last`: only the owner waits; the others go on to wait for the next job, and once they have arrived may look at nothing that it writes anew. */
static void barrier(struct pool *p, unsigned me, unsigned n_threads, bool last)
{
    unsigned ph = atomic_load_explicit(&p->phase, memory_order_relaxed);
    uint64_t ns, t0;
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == n_threads - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store(&p->phase, ph + 1);
        if (atomic_load(&p->sleepers) != 0)
            wake(&p->phase, FUTEX_BITSET_MATCH_ANY);
        return;
    }
    if (last && me != 0)
        return;
    if (!spin(&p->phase, ph, SPIN_PART, &ns)) {
        t0 = now_ns();
        atomic_fetch_add(&p->sleepers, 1);
        sleep_on(&p->phase, ph, FUTEX_BITSET_MATCH_ANY);
        atomic_fetch_sub(&p->sleepers, 1);
        ns += now_ns() - t0;
    }
    note_wait(&p->thread[me], ns);
}

static void walk(struct pool *p, unsigned me)
{
    const unsigned n_threads = p->n_threads, n_parts = p->n_parts;
    for (unsigned part = 0; part < n_parts; part++) {
        for (unsigned w = me; w < p->n; w += n_threads)
            p->fn(p->arg, w, part);
        if (n_threads > 1)
            barrier(p, me, n_threads, part + 1 == n_parts);
    }
}

static void *thread_main(void *arg)
{
    struct start s = *(struct start *)arg;
    struct pool *p = s.pool;
    struct thread *t = &p->thread[s.me];
    unsigned seen = 0;
    uint64_t ns;
    free(arg);
    for (;;) {
        if (!spin(&p->job, seen, SPIN_JOB, &ns)) {
            atomic_store(&t->asleep, 1);
            sleep_on(&p->job, seen, bit(s.me));
            atomic_store(&t->asleep, 0);
        }
        seen = atomic_load_explicit(&p->job, memory_order_acquire);
        if (s.me >= seen % JOB_THREADS)
            continue;
        if (p->stop)
            return NULL;
        walk(p, s.me);
    }
}

/* Start a job for the first n_threads threads. */
static void announce(struct pool *p, unsigned n_threads)
{
    unsigned bits = 0, number = atomic_load_explicit(&p->job, memory_order_relaxed) / JOB_THREADS + 1;
    atomic_store(&p->job, number * JOB_THREADS + n_threads);
    for (unsigned i = 1; i < n_threads; i++)
        if (atomic_load(&p->thread[i].asleep) != 0)
            bits |= bit(i);
    if (bits != 0)
        wake(&p->job, bits);
}

void pool_walk(struct pool *p, pool_part_fn fn, void *arg, unsigned n_parts, unsigned n_threads)
{
    p->fn = fn;
    p->arg = arg;
    p->n_parts = n_parts;
    p->n_threads = n_threads;
    if (n_threads > 1)
        announce(p, n_threads);
    walk(p, 0);
}

struct whole {
    pool_fn fn;
    void *arg;
};

static void call_whole(void *arg, unsigned worker, unsigned part)
{
    const struct whole *w = arg;
    (void)part;
    w->fn(w->arg, worker);
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    struct whole w = {fn, arg};
    pool_walk(p, call_whole, &w, 1, p->n);
}

double pool_waited_us(const struct pool *p)
{
    unsigned long long ns = 0;
    for (unsigned i = 0; i < p->n; i++)
        ns += atomic_load_explicit(&p->thread[i].waited_ns, memory_order_relaxed);
    return (double)ns / 1e3;
}

/* Signals belong to the program's own threads. */
static int start_thread(struct pool *p, unsigned me)
{
    struct start *s = malloc(sizeof *s);
    if (s == NULL)
        return ENOMEM;
    *s = (struct start){p, me};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&p->id[me - 1], NULL, thread_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        free(s);
    return rc;
}

enum rs_result pool_open(unsigned n, struct pool **out, struct rs_error *err)
{
    if (n < 1 || n > POOL_MAX)
        return error_set(err, RS_EUSAGE, "workers must be 1 to %d, not %u", POOL_MAX, n);
    struct pool *p = aligned_alloc(64, sizeof *p);
    if (p == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the worker pool");
    *p = (struct pool){.n = n, .id = calloc(n, sizeof *p->id), .thread = aligned_alloc(64, n * sizeof *p->thread)};
    if (p->id == NULL || p->thread == NULL) {
        pool_close(p);
        return error_set(err, RS_ENOMEM, "out of memory for the worker pool");
    }
    for (unsigned i = 0; i < n; i++)
        p->thread[i] = (struct thread){0};
    for (unsigned w = 1; w < n; w++) {
        int failed = start_thread(p, w);
        if (failed != 0) {
            pool_close(p);
            return failed == ENOMEM ? error_set(err, RS_ENOMEM, "out of memory for worker thread %u", w)
                                    : error_set(err, RS_EIO, "cannot start worker thread %u: %s", w, strerror(failed));
        }
        p->started++;
    }
    *out = p;
    return RS_OK;
}

void pool_close(struct pool *p)
{
    if (p == NULL)
        return;
    p->stop = true;
    if (p->started != 0)
        announce(p, p->started + 1);
    for (unsigned w = 0; w < p->started; w++)
        pthread_join(p->id[w], NULL);
    free(p->thread);
    free(p->id);
    free(p);
}

unsigned pool_size(const struct pool *p)
{
    return p->n;
}
