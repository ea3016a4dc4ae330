/* No allocation, lock, log line or formatting in a decode step. This program brings its own malloc(), printf() and so on, which note every call that
 * a thread of the engine makes where it must not: between guard_enter() and guard_leave() at any time, and anywhere while sequences do nothing but
 * decode. The test's own thread is exempt: it is a client. */
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/guard.h"
#include "engine/pool.h"
#include "tests/engine_client.h"
#include "tests/tap.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    tap_skip_all("sanitizers bring a malloc of their own");
}
#else

enum { DEPTH = 24 };

static _Thread_local bool s_exempt;
static atomic_int s_step;   /* inside a guarded part */
static atomic_int s_steady; /* nothing but decoding goes on */
static atomic_int s_seen;   /* guarded parts that began while steady */
static atomic_int s_breaches;
static const char *s_what;  /* of the first breach */
static void *s_trace[DEPTH];
static int s_depth;

static void note(const char *what)
{
    if (s_exempt || (atomic_load(&s_step) == 0 && atomic_load(&s_steady) == 0))
        return;
    if (atomic_fetch_add(&s_breaches, 1) == 0) {
        s_exempt = true;
        s_what = what;
        s_depth = backtrace(s_trace, DEPTH);
        s_exempt = false;
    }
}

/* ---- what is forbidden ----------------------------------------------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t a, size_t n);
extern void __libc_free(void *p);

void *malloc(size_t n)
{
    note("malloc");
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    note("calloc");
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    note("realloc");
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t a, size_t n)
{
    note("aligned_alloc");
    return __libc_memalign(a, n);
}

int posix_memalign(void **p, size_t a, size_t n)
{
    note("posix_memalign");
    *p = __libc_memalign(a, n);
    return *p == NULL;
}

void free(void *p)
{
    if (p != NULL)
        note("free");
    __libc_free(p);
}

/* The rest is passed on to what the C library has; main() looks it up first. */
static struct {
    int (*vsnprintf)(char *, size_t, const char *, va_list);
    int (*vfprintf)(FILE *, const char *, va_list);
    int (*mutex_lock)(pthread_mutex_t *);
    int (*rwlock_rdlock)(pthread_rwlock_t *);
    int (*rwlock_wrlock)(pthread_rwlock_t *);
    int (*cond_wait)(pthread_cond_t *, pthread_mutex_t *);
    ssize_t (*write)(int, const void *, size_t);
} s_libc;

#define LOOK_UP(field, name) (*(void **)&s_libc.field = dlsym(RTLD_NEXT, name))

static void look_up(void)
{
    LOOK_UP(vsnprintf, "vsnprintf");
    LOOK_UP(vfprintf, "vfprintf");
    LOOK_UP(mutex_lock, "pthread_mutex_lock");
    LOOK_UP(rwlock_rdlock, "pthread_rwlock_rdlock");
    LOOK_UP(rwlock_wrlock, "pthread_rwlock_wrlock");
    LOOK_UP(cond_wait, "pthread_cond_wait");
    LOOK_UP(write, "write");
}

int vsnprintf(char *s, size_t n, const char *fmt, va_list ap)
{
    note("vsnprintf");
    return s_libc.vsnprintf(s, n, fmt, ap);
}

int snprintf(char *s, size_t n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    note("snprintf");
    int r = s_libc.vsnprintf(s, n, fmt, ap);
    va_end(ap);
    return r;
}

int vfprintf(FILE *f, const char *fmt, va_list ap)
{
    note("vfprintf");
    return s_libc.vfprintf(f, fmt, ap);
}

int fprintf(FILE *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    note("fprintf");
    int r = s_libc.vfprintf(f, fmt, ap);
    va_end(ap);
    return r;
}

int printf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    note("printf");
    int r = s_libc.vfprintf(stdout, fmt, ap);
    va_end(ap);
    return r;
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
    note("pthread_mutex_lock");
    return s_libc.mutex_lock != NULL ? s_libc.mutex_lock(m) : 0; /* the loader calls this before main() does, with one thread */
}

int pthread_rwlock_rdlock(pthread_rwlock_t *l)
{
    note("pthread_rwlock_rdlock");
    return s_libc.rwlock_rdlock != NULL ? s_libc.rwlock_rdlock(l) : 0;
}

int pthread_rwlock_wrlock(pthread_rwlock_t *l)
{
    note("pthread_rwlock_wrlock");
    return s_libc.rwlock_wrlock != NULL ? s_libc.rwlock_wrlock(l) : 0;
}

int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    note("pthread_cond_wait");
    return s_libc.cond_wait(c, m);
}

ssize_t write(int fd, const void *p, size_t n)
{
    note("write");
    return s_libc.write != NULL ? s_libc.write(fd, p, n) : -1;
}

void guard_enter(void)
{
    atomic_fetch_add(&s_step, 1);
    if (atomic_load(&s_steady) != 0)
        atomic_fetch_add(&s_seen, 1);
}

void guard_leave(void)
{
    atomic_fetch_sub(&s_step, 1);
}

/* ---- tests ----------------------------------------------------------------------------------------------------------------------------- */

static void clean(const char *name)
{
    int n = atomic_exchange(&s_breaches, 0);
    if (tap_ok(n == 0, "%s", name))
        return;
    tap_diag("%d breaches, the first by %s:", n, s_what);
    fflush(stdout);
    backtrace_symbols_fd(s_trace, s_depth, STDOUT_FILENO);
}

static void nothing(void *arg, unsigned worker)
{
    (void)arg, (void)worker;
}

/* The pointer passes through memory that the compiler must believe in, or it would leave the pair out. */
static void allocate(void)
{
    void *volatile p = malloc(1);
    free(p);
}

static void worker_allocates(void *arg, unsigned worker)
{
    (void)arg;
    if (worker == 1)
        allocate();
}

/* A guard that notices nothing would pass everything. */
static void guard_works(void)
{
    struct pool *p;
    struct rs_error err;
    char s[8];
    s_exempt = false;
    allocate();
    snprintf(s, sizeof s, "%d", 1);
    int outside = atomic_exchange(&s_breaches, 0);
    guard_enter();
    void *volatile x = malloc(1);
    snprintf(s, sizeof s, "%d", 2);
    guard_leave();
    int inside = atomic_exchange(&s_breaches, 0);
    free(x);
    s_exempt = true;
    bool ok = pool_open(2, &p, &err) == RS_OK;
    if (ok)
        pool_run(p, nothing, NULL); /* the thread has started */
    guard_enter();
    if (ok)
        pool_run(p, worker_allocates, NULL);
    guard_leave();
    int other = atomic_exchange(&s_breaches, 0);
    if (ok)
        pool_close(p);
    tap_eq_int(outside, 0, "outside a step everything is allowed");
    tap_eq_int(inside, 2, "inside a step malloc and snprintf are noticed");
    tap_eq_int(other, 2, "a worker's malloc and free are noticed");
}

/* Decode n_seqs sequences of 160 tokens; from when the last has 20 to when the first has 140 nothing else goes on. */
static void decode(struct rs_engine *e, int n_seqs, const char *sampling, const char *name)
{
    uint32_t id[8];
    int got[8] = {0}, done = 0, tokens = 0;
    for (int i = 0; i < n_seqs; i++) {
        json_t *o = ec_call(e, "submit", "{\"ids\":[%d,200,300,400,500],\"max_tokens\":160,\"ignore_eos\":true,%s}", 100 + i, sampling);
        id[i] = (uint32_t)json_integer_value(json_object_get(o, "stream"));
        json_decref(o);
    }
    while (done < n_seqs) {
        struct rs_event ev;
        struct rs_error err;
        int least = 1 << 20, most = 0;
        if (rs_next(e, 120000, &ev, &err) != RS_OK || ev.type == RS_EVENT_LOST) {
            tap_ok(false, "%s: the engine answers", name);
            return;
        }
        done += ev.type == RS_EVENT_DONE;
        for (int i = 0; i < n_seqs; i++) {
            got[i] += ev.type == RS_EVENT_TOKEN && ev.id == id[i];
            least = got[i] < least ? got[i] : least;
            most = got[i] > most ? got[i] : most;
        }
        tokens += ev.type == RS_EVENT_TOKEN;
        atomic_store(&s_steady, least >= 20 && most <= 140);
    }
    atomic_store(&s_steady, 0);
    int seen = atomic_exchange(&s_seen, 0);
    tap_ok(tokens >= 150 * n_seqs && seen >= 30, "%s: %d tokens, %d guarded parts watched", name, tokens, seen);
    clean(name);
}

static void run(int ranks, const char *mode, int drafts)
{
    char name[96];
    struct rs_engine *e = ec_open();
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":%d,\"mode\":\"%s\",\"spec\":%d}", tap_source("models/tiny-glm5-q4.gguf"), ranks, mode, drafts));
    snprintf(name, sizeof name, "%d ranks, %s, %d drafts, greedy", ranks, mode, drafts);
    decode(e, 1, "\"temp\":0", name);
    snprintf(name, sizeof name, "%d ranks, %s, %d drafts, three at once, sampled with penalties and stop strings", ranks, mode, drafts);
    decode(e, 3,
           "\"temp\":1,\"top_k\":40,\"top_p\":0.95,\"min_p\":0.01,\"typical_p\":0.9,\"repeat_penalty\":1.1,\"frequency_penalty\":0.1,\"logit_bias\":{\"5\":1},"
           "\"seed\":3,\"stop\":[\"never to be seen\"]",
           name);
    rs_engine_close(e);
}

int main(void)
{
    static const int RANKS[] = {1, 2, 8};
    void *warm[4];
    s_exempt = true;
    look_up();
    backtrace(warm, 4); /* loads what it needs now */
    guard_works();
    for (size_t i = 0; i < sizeof RANKS / sizeof RANKS[0]; i++) {
        run(RANKS[i], "graph", 0);
        run(RANKS[i], "eager", 0);
    }
    run(2, "graph", 2);
    run(2, "eager", 2);
    clean("after closing");
    return tap_done();
}
#endif
