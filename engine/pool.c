/* Persistent CPU workers. Two words are shared: `job` counts runs (workers wait for it to change), `arrived`/`phase` make the barrier. Waiting
 * spins first, because steps follow each other within microseconds, and then sleeps on a futex, because cores may be fewer than threads. */
#include "engine/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/error.h"

enum { SPINS_BARRIER = 2000, SPINS_JOB = 4000 };

struct pool {
    unsigned n;
    unsigned started; /* threads that exist besides the caller */
    pthread_t *threads;
    pool_fn fn; /* written before job changes */
    void *arg;
    bool stop;
    _Alignas(64) atomic_uint job;
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint phase;
    _Alignas(64) atomic_uint sleepers;
};

struct start {
    struct pool *pool;
    unsigned worker;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void wait_change(struct pool *p, atomic_uint *word, unsigned old, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == old)
        syscall(SYS_futex, (unsigned *)word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void wake(struct pool *p, atomic_uint *word)
{
    if (atomic_load(&p->sleepers) != 0)
        syscall(SYS_futex, (unsigned *)word, FUTEX_WAKE_PRIVATE, p->n, NULL, NULL, 0);
}

void pool_barrier(struct pool *p)
{
    unsigned ph = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (p->n == 1)
        return;
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store(&p->phase, ph + 1);
        wake(p, &p->phase);
    } else {
        wait_change(p, &p->phase, ph, SPINS_BARRIER);
    }
}

static void *worker_main(void *arg)
{
    struct start s = *(struct start *)arg;
    struct pool *p = s.pool;
    unsigned seen = 0;
    free(arg);
    for (;;) {
        wait_change(p, &p->job, seen, SPINS_JOB);
        seen++;
        if (p->stop)
            return NULL;
        p->fn(p->arg, s.worker);
        pool_barrier(p);
    }
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    atomic_fetch_add(&p->job, 1);
    wake(p, &p->job);
    fn(arg, 0);
    pool_barrier(p);
}

/* Signals belong to the program's own threads. */
static int start_thread(struct pool *p, unsigned worker)
{
    struct start *s = malloc(sizeof *s);
    if (s == NULL)
        return ENOMEM;
    *s = (struct start){p, worker};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&p->threads[worker - 1], NULL, worker_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        free(s);
    return rc;
}

enum rs_result pool_open(unsigned n, struct pool **out, struct rs_error *err)
{
    if (n < 1 || n > 256)
        return error_set(err, RS_EUSAGE, "workers must be 1 to 256, not %u", n);
    struct pool *p = aligned_alloc(64, sizeof *p);
    if (p == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the worker pool");
    *p = (struct pool){.n = n};
    p->threads = calloc(n, sizeof *p->threads);
    if (p->threads == NULL) {
        free(p);
        return error_set(err, RS_ENOMEM, "out of memory for the worker pool");
    }
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
    atomic_fetch_add(&p->job, 1);
    syscall(SYS_futex, (unsigned *)&p->job, FUTEX_WAKE_PRIVATE, p->n, NULL, NULL, 0);
    for (unsigned w = 0; w < p->started; w++)
        pthread_join(p->threads[w], NULL);
    free(p->threads);
    free(p);
}

unsigned pool_size(const struct pool *p)
{
    return p->n;
}
