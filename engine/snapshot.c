/* See snapshot.h. The payload is copied word by word with relaxed atomics, so that a torn read is a retry and not undefined behaviour. */
#include "engine/snapshot.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/error.h"

enum { WORDS = (sizeof(struct rs_snapshot) + 7) / 8 };

struct snapshot_page {
    atomic_ullong seq; /* odd while being written; 0: never written */
    atomic_ullong word[WORDS];
};

enum rs_result snapshot_create(struct snapshot_page **out, int *fd, struct rs_error *err)
{
    int f = memfd_create("rankscope", MFD_CLOEXEC);
    if (f < 0 || ftruncate(f, sizeof(struct snapshot_page)) != 0) {
        enum rs_result rc = error_set(err, RS_EIO, "cannot make the snapshot page: %s", strerror(errno));
        if (f >= 0)
            close(f);
        return rc;
    }
    void *p = mmap(NULL, sizeof(struct snapshot_page), PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (p == MAP_FAILED) {
        close(f);
        return error_set(err, RS_ENOMEM, "cannot map the snapshot page: %s", strerror(errno));
    }
    *out = p;
    *fd = f;
    return RS_OK;
}

enum rs_result snapshot_map(int fd, const struct snapshot_page **out, struct rs_error *err)
{
    void *p = mmap(NULL, sizeof(struct snapshot_page), PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return error_set(err, RS_EIO, "cannot map the engine's snapshot page: %s", strerror(errno));
    *out = p;
    return RS_OK;
}

void snapshot_unmap(const struct snapshot_page *p)
{
    if (p != NULL)
        munmap((void *)(uintptr_t)p, sizeof *p);
}

void snapshot_write(struct snapshot_page *p, const struct rs_snapshot *s)
{
    uint64_t w[WORDS] = {0};
    memcpy(w, s, sizeof *s);
    unsigned long long n = atomic_load_explicit(&p->seq, memory_order_relaxed);
    atomic_store_explicit(&p->seq, n + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < WORDS; i++)
        atomic_store_explicit(&p->word[i], w[i], memory_order_relaxed);
    atomic_store_explicit(&p->seq, n + 2, memory_order_release);
}

bool snapshot_read(const struct snapshot_page *p, struct rs_snapshot *out)
{
    uint64_t w[WORDS];
    struct snapshot_page *q = (struct snapshot_page *)(uintptr_t)p; /* atomics want a pointer to non-const; nothing is written */
    for (int tries = 0; tries < 3; tries++) {
        unsigned long long a = atomic_load_explicit(&q->seq, memory_order_acquire);
        if (a == 0)
            return false;
        for (int i = 0; i < WORDS; i++)
            w[i] = atomic_load_explicit(&q->word[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if ((a & 1) == 0 && atomic_load_explicit(&q->seq, memory_order_relaxed) == a) {
            memcpy(out, w, sizeof *out);
            return true;
        }
    }
    return false;
}
