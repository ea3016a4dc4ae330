/* See comm.h: MPI, opened when it is first needed, so that the program runs where there is none. Open MPI's handles are addresses of objects in its
 * library, which are looked up as functions are. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdlib.h>

#include "engine/comm.h"
#include "engine/error.h"

#ifdef HAVE_MPI
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/now.h"

enum { MAX_MOVES = 4 * RS_MAX_RANKS, SPIN_US = 200 };
#define MAX_PIECE ((size_t)1 << 30) /* MPI counts in int */

struct mpi {
    struct comm base;
    __typeof__(&MPI_Init_thread) init;
    __typeof__(&MPI_Finalize) finalize;
    __typeof__(&MPI_Comm_size) size;
    __typeof__(&MPI_Comm_rank) rank;
    __typeof__(&MPI_Comm_set_errhandler) set_errhandler;
    __typeof__(&MPI_Error_string) error_string;
    __typeof__(&MPI_Get_processor_name) processor_name;
    __typeof__(&MPI_Bcast) bcast;
    __typeof__(&MPI_Allgather) allgather;
    __typeof__(&MPI_Isend) isend;
    __typeof__(&MPI_Irecv) irecv;
    __typeof__(&MPI_Testall) testall;
    MPI_Comm world;
    MPI_Datatype byte;
    MPI_Errhandler errors_return;
    MPI_Request request[MAX_MOVES];
};

static bool bind_all(struct mpi *m, void *h)
{
    const struct { const char *name; void *to; } t[] = {
        {"MPI_Init_thread", &m->init}, {"MPI_Finalize", &m->finalize}, {"MPI_Comm_size", &m->size}, {"MPI_Comm_rank", &m->rank},
        {"MPI_Comm_set_errhandler", &m->set_errhandler}, {"MPI_Error_string", &m->error_string}, {"MPI_Get_processor_name", &m->processor_name},
        {"MPI_Bcast", &m->bcast}, {"MPI_Allgather", &m->allgather}, {"MPI_Isend", &m->isend}, {"MPI_Irecv", &m->irecv},
        {"MPI_Testall", &m->testall}, {"ompi_mpi_comm_world", &m->world}, {"ompi_mpi_byte", &m->byte},
        {"ompi_mpi_errors_return", &m->errors_return},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        void *p = dlsym(h, t[i].name);
        if (p == NULL)
            return false;
        memcpy(t[i].to, &p, sizeof p);
    }
    return true;
}

static enum rs_result fail(const struct mpi *m, int e, const char *what, struct rs_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    m->error_string(e, text, &len);
    return error_set(err, RS_EENGINE, "MPI, %s: %s", what, text);
}

/* Start all pieces of the moves; *n_requests of them. */
static enum rs_result start(struct mpi *p, struct comm_move *m, uint32_t n, int *n_requests, struct rs_error *err)
{
    *n_requests = 0;
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < m[i].bytes;) {
            const size_t k = m[i].bytes - at < MAX_PIECE ? m[i].bytes - at : MAX_PIECE;
            char *data = (char *)m[i].data + at;
            if (*n_requests == MAX_MOVES)
                return error_set(err, RS_EINTERNAL, "too many messages at once");
            MPI_Request *r = &p->request[(*n_requests)++];
            int e = m[i].send ? p->isend(data, (int)k, p->byte, (int)m[i].host, 0, p->world, r)
                              : p->irecv(data, (int)k, p->byte, (int)m[i].host, 0, p->world, r);
            if (e != MPI_SUCCESS)
                return fail(p, e, m[i].send ? "sending" : "receiving", err);
            at += k;
        }
    return RS_OK;
}

/* Messages last microseconds, so it spins a little before it lets others have the core. */
static enum rs_result wait_all(struct mpi *p, int n, struct rs_error *err)
{
    const uint64_t t0 = now_us();
    uint64_t looked = t0;
    for (int done = 0; !done;) {
        int e = p->testall(n, p->request, &done, MPI_STATUSES_IGNORE);
        if (e != MPI_SUCCESS)
            return fail(p, e, "waiting", err);
        uint64_t now = now_us();
        if (!done && now - t0 > SPIN_US)
            sched_yield();
        if (done || now - looked < COMM_LOOK_MS * 1000u || p->base.look == NULL)
            continue;
        looked = now;
        enum rs_result rc = p->base.look(p->base.look_arg, err);
        if (rc != RS_OK)
            return rc;
    }
    return RS_OK;
}

static enum rs_result mpi_move(struct comm *c, struct comm_move *m, uint32_t n, struct rs_error *err)
{
    struct mpi *p = (struct mpi *)c;
    while (n > 0) { /* logits of many rows are more moves than fit at once; what two processes move matches in order, wherever each cuts its list */
        const uint32_t k = n < MAX_MOVES ? n : MAX_MOVES;
        int requests;
        enum rs_result rc = start(p, m, k, &requests, err);
        if (rc == RS_OK)
            rc = wait_all(p, requests, err);
        if (rc != RS_OK)
            return rc;
        m += k;
        n -= k;
    }
    return RS_OK;
}

/* After a failure MPI would wait for those that are gone; the launcher sees to them. */
static void mpi_close(struct comm *c)
{
    struct mpi *p = (struct mpi *)c;
    if (!c->failed)
        p->finalize();
    free(p);
}

static const struct comm_ops MPI_OPS = {"mpi", mpi_move, mpi_close};

enum rs_result comm_mpi_open(struct comm **out, struct rs_error *err)
{
    static const char *const NAMES[] = {"libmpi.so.40", "libmpi.so"};
    void *h = NULL;
    int got, n, me, len, e;
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0] && h == NULL; i++)
        h = dlopen(NAMES[i], RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE); /* its own modules look for its symbols */
    if (h == NULL)
        return error_set(err, RS_EUNSUPPORTED, "Open MPI cannot be loaded: %s", dlerror());
    struct mpi *p = calloc(1, sizeof *p);
    if (p == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for MPI");
    if (!bind_all(p, h)) {
        free(p);
        return error_set(err, RS_EUNSUPPORTED, "the MPI library here lacks functions that are used: it must be Open MPI");
    }
    p->base.ops = &MPI_OPS;
    char name[MPI_MAX_PROCESSOR_NAME] = "", mine[LINK_ADDRESS] = "";
    /* Steps move data from whichever worker runs the op, one at a time. */
    if ((e = p->init(NULL, NULL, MPI_THREAD_SERIALIZED, &got)) == MPI_SUCCESS && (e = p->set_errhandler(p->world, p->errors_return)) == MPI_SUCCESS &&
        (e = p->size(p->world, &n)) == MPI_SUCCESS && (e = p->rank(p->world, &me)) == MPI_SUCCESS)
        e = p->processor_name(name, &len);
    enum rs_result rc = e != MPI_SUCCESS ? fail(p, e, "at its start", err) : RS_OK;
    if (rc == RS_OK && got < MPI_THREAD_SERIALIZED)
        rc = error_set(err, RS_EUNSUPPORTED, "this MPI library serves one thread only");
    if (rc == RS_OK && n > COMM_MAX_HOSTS)
        rc = error_set(err, RS_EUSAGE, "%d processes were started; at most %d can join", n, COMM_MAX_HOSTS);
    if (rc == RS_OK) {
        p->base.n_hosts = (uint32_t)n;
        p->base.host = (uint32_t)me;
        snprintf(mine, sizeof mine, "%.*s", (int)sizeof mine - 1, name);
        e = p->allgather(mine, sizeof mine, p->byte, p->base.name, sizeof mine, p->byte, p->world);
        rc = e != MPI_SUCCESS ? fail(p, e, "telling names", err) : RS_OK;
    }
    if (rc != RS_OK) {
        free(p);
        return rc;
    }
    *out = &p->base;
    return RS_OK;
}

enum rs_result comm_mpi_share(struct comm *c, void *data, size_t bytes, struct rs_error *err)
{
    struct mpi *p = (struct mpi *)c;
    int e = p->bcast(data, (int)bytes, p->byte, 0, p->world);
    return e == MPI_SUCCESS ? RS_OK : fail(p, e, "sharing", err);
}

#else

enum rs_result comm_mpi_open(struct comm **out, struct rs_error *err)
{
    (void)out;
    return error_set(err, RS_EUNSUPPORTED, "this build has no MPI: configure it --with-mpi");
}

enum rs_result comm_mpi_share(struct comm *c, void *data, size_t bytes, struct rs_error *err)
{
    (void)c, (void)data, (void)bytes;
    return error_set(err, RS_EUNSUPPORTED, "this build has no MPI");
}

#endif
