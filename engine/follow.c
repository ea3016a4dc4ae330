/* See follow.h. */
#include "engine/follow.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "engine/error.h"
#include "engine/pool.h"
#include "engine/share.h"

/* BEAT_MS: how often the first process hears that this one lives. STUCK_S: a process that cannot end, because a device or MPI waits for others that
 * are gone, is ended by an alarm so long after the first process has gone. */
enum { BEAT_MS = 1000, STUCK_S = 10, CONNECT_MS = 20000, WELCOME_MS = 90000, SECRET_MS = 20000 };

/* A runtime of the first process, as far as it is here. */
struct far {
    struct far *next;
    uint32_t id;
    struct model *m;
    struct share *share;
    struct batch batch;
    struct share_tables tables;
};

struct follower {
    struct comm *comm;
    struct link link;
    struct pool *pool;
    enum krn_isa isa;
    struct far *far;
    struct share_buf out;
    pthread_t beat;
    int quit[2]; /* a pipe: its end stops the beats */
};

static void free_far(struct far *f)
{
    share_close(f->share);
    model_close(f->m);
    batch_free(&f->batch);
    free(f->tables.from);
    free(f->tables.p);
    free(f);
}

static struct far *find(const struct follower *f, uint32_t id)
{
    struct far *x = f->far;
    while (x != NULL && x->id != id)
        x = x->next;
    return x;
}

/* ---- what is asked ---- */

static bool alloc_batch(struct far *x, const struct backend_limits *lim)
{
    x->tables.from = calloc(lim->max_rows, sizeof *x->tables.from);
    return batch_alloc(&x->batch, lim->max_rows, lim->max_logits, BATCH_ALSO_WANT) && x->tables.from != NULL;
}

static enum rs_result open_far(struct follower *f, const struct link_msg *m, struct rs_error *err)
{
    struct share_open_msg o;
    if (m->len <= sizeof o || m->data[m->len - 1] != '\0')
        return error_set(err, RS_EINTERNAL, "a malformed request arrived from the first host");
    memcpy(&o, m->data, sizeof o);
    const char *path = (const char *)m->data + sizeof o;
    struct far *x = calloc(1, sizeof *x);
    if (x == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a model");
    x->id = m->id;
    enum rs_result rc = model_open(path, &x->m, err);
    if (rc == RS_OK && strncmp(x->m->hash, o.hash, sizeof o.hash) != 0)
        rc = error_set(err, RS_EFORMAT, "%.200s is another model than on the first host (%s, not %.16s)", path, x->m->hash, o.hash);
    if (rc == RS_OK && !alloc_batch(x, &o.lim))
        rc = error_set(err, RS_ENOMEM, "out of memory for batches");
    if (rc == RS_OK)
        rc = share_open(x->m, &o.cfg, &o.lim, f->comm, o.first, f->pool, f->isa, &x->share, err);
    if (rc != RS_OK) {
        free_far(x);
        return rc;
    }
    x->next = f->far;
    f->far = x;
    return RS_OK;
}

static void close_far(struct follower *f, uint32_t id)
{
    for (struct far **at = &f->far; *at != NULL; at = &(*at)->next)
        if ((*at)->id == id) {
            struct far *x = *at;
            *at = x->next;
            free_far(x);
            return;
        }
}

static bool put_seen(struct share_buf *out, struct backend *b, uint32_t rank)
{
    struct rs_rank_snapshot o = {.gpu_util = __builtin_nanf(""), .gpu_temp_c = __builtin_nanf(""), .gpu_power_w = __builtin_nanf(""),
                                 .mem_used = UINT64_MAX, .mem_total = UINT64_MAX};
    b->ops->memory(b, rank, &o.bytes_weights, &o.bytes_cache, &o.bytes_buffers);
    if (b->ops->device != NULL)
        b->ops->device(b, rank, &o);
    return share_put(out, &o, sizeof o);
}

static bool put_row(struct share_buf *out, struct share *s, uint32_t row)
{
    struct share_row r = {.row = row, .says.list = s->list};
    if (!s->backend->ops->likeliest(s->backend, row, &r.says)) /* its figures would be of no use */
        r.says = (struct sample_row){.figures.nonfinite = UINT32_MAX};
    r.says.list = NULL;
    return share_put(out, &r, sizeof r) && share_put(out, s->list, r.says.n * sizeof *s->list);
}

/* See struct share_report. */
static bool report(struct follower *f, struct share *s, uint32_t which, const struct batch *batch)
{
    struct backend *b = s->backend;
    uint32_t n = s->prog[which].n_ops, n_timed = 0;
    const float *us = which == 0 ? b->ops->op_us(b, &n_timed) : b->ops->next_us != NULL ? b->ops->next_us(b, &n_timed) : NULL;
    const struct backend_reduce *reduces = which == 0 && b->ops->reduces != NULL ? b->ops->reduces(b) : NULL;
    struct share_report h = {.n_ops = n, .n_ranks = s->n_ranks, .with_reduces = reduces != NULL};
    static const float NONE[1] = {0};
    f->out.n = 0;
    for (uint32_t i = 0; i < batch->n_logits; i++)
        h.n_rows += share_away(s, batch, i);
    bool ok = share_put(&f->out, &h, sizeof h);
    for (uint32_t i = 0; i < n * s->n_ranks && us == NULL && ok; i++)
        ok = share_put(&f->out, NONE, sizeof NONE);
    ok = ok && (us == NULL || share_put(&f->out, us, (size_t)n * s->n_ranks * sizeof *us)) && share_put(&f->out, s->span.move_us, n * sizeof *s->span.move_us);
    for (uint32_t r = 0; r < s->n_ranks && ok; r++)
        ok = put_seen(&f->out, b, r);
    ok = ok && (reduces == NULL || share_put(&f->out, reduces, (size_t)n * s->n_ranks * sizeof *reduces));
    for (uint32_t i = 0; i < batch->n_logits && ok; i++)
        ok = !share_away(s, batch, i) || put_row(&f->out, s, i);
    return ok;
}

static enum rs_result step(struct follower *f, struct far *x, const struct link_msg *m, struct rs_error *err)
{
    struct backend_step st;
    uint32_t which;
    enum rs_result rc = share_unpack_step(x->share, m->data, m->len, &x->batch, &x->tables, &which, &st, err);
    if (rc == RS_OK)
        rc = share_step(x->share, which, &st, NULL, err);
    if (rc == RS_OK && !report(f, x->share, which, &x->batch))
        rc = error_set(err, RS_ENOMEM, "out of memory for a report");
    return rc;
}

static enum rs_result prepare(struct share *s, const struct link_msg *m, struct rs_error *err)
{
    uint32_t which;
    enum rs_result rc = share_unpack_choices(s, m->data, m->len, &which, err);
    if (rc != RS_OK || s->backend->ops->prepare == NULL)
        return rc;
    return s->backend->ops->prepare(s->backend, &s->prog[which], s->choices[which], err);
}

static enum rs_result at(struct follower *f, struct far *far, const struct link_msg *m, struct rs_error *err)
{
    struct share *s = far->share;
    struct backend *b = s->backend;
    struct share_at q;
    if (m->len < sizeof q)
        return error_set(err, RS_EINTERNAL, "a malformed question arrived from the first host");
    memcpy(&q, m->data, sizeof q);
    const size_t given = m->len - sizeof q, block = (size_t)RUNTIME_BLOCK * (q.index ? s->prog[0].hp->index_dim : s->prog[0].hp->kv_lora + s->prog[0].hp->rope);
    const struct shard_range part = share_part(s, f->comm->host);
    const size_t n = q.what == SHARE_CACHE_GET || q.what == SHARE_CACHE_PUT ? block : q.what == SHARE_LOGITS ? part.to - part.from : q.n;
    const bool puts = q.what == SHARE_WRITE || q.what == SHARE_CACHE_PUT;
    if (given != (puts ? n * sizeof(float) : 0) || q.rank >= s->n_ranks || (q.what == SHARE_LOGITS && q.row >= far->batch.n_logits))
        return error_set(err, RS_EINTERNAL, "a malformed question arrived from the first host");
    float *x = malloc(n * sizeof *x + 1);
    if (x == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for %zu values", n);
    if (puts)
        memcpy(x, m->data + sizeof q, given);
    enum rs_result rc = RS_OK;
    uint32_t pairs = 0;
    switch (q.what) {
    case SHARE_READ: rc = b->ops->read(b, q.rank, (enum op_buf)q.buf, q.row, q.col, q.n, x, err); break;
    case SHARE_WRITE: rc = b->ops->write(b, q.rank, (enum op_buf)q.buf, q.row, q.col, q.n, x, err); break;
    case SHARE_CACHE_GET: rc = b->ops->cache_get(b, q.rank, q.layer, q.index != 0, q.block, x, err); break;
    case SHARE_CACHE_PUT: rc = b->ops->cache_put(b, q.rank, q.layer, q.index != 0, q.block, x, err); break;
    case SHARE_LOGITS: memcpy(x, b->ops->logits(b, q.row) + part.from, n * sizeof *x); break;
    case SHARE_PAIRS: pairs = b->ops->pairs != NULL ? b->ops->pairs(b, q.rank) : 0; break;
    }
    bool ok = q.what == SHARE_PAIRS ? share_put(&f->out, &pairs, sizeof pairs) : puts || share_put(&f->out, x, n * sizeof *x);
    free(x);
    return rc != RS_OK || ok ? rc : error_set(err, RS_ENOMEM, "out of memory for an answer");
}

static enum rs_result number(const struct link_msg *m, void *to, size_t n, struct rs_error *err)
{
    if (m->len != n)
        return error_set(err, RS_EINTERNAL, "a malformed request arrived from the first host");
    memcpy(to, m->data, n);
    return RS_OK;
}

/* f->out gets what the answer holds. */
static enum rs_result carry_out(struct follower *f, const struct link_msg *m, struct rs_error *err)
{
    struct far *x = find(f, m->id);
    struct backend *b = x != NULL ? x->share->backend : NULL;
    uint32_t keys = 0;
    uint64_t generation = 0;
    enum rs_result rc;
    f->out.n = 0;
    if (m->type == SHARE_OPEN)
        return open_far(f, m, err);
    if (m->type == SHARE_CLOSE) {
        close_far(f, m->id);
        return RS_OK;
    }
    if (x == NULL)
        return error_set(err, RS_EINTERNAL, "no runtime %u is open here", m->id);
    switch (m->type) {
    case SHARE_STEP: return step(f, x, m, err);
    case SHARE_PREPARE: return prepare(x->share, m, err);
    case SHARE_AT: return at(f, x, m, err);
    case SHARE_RESERVE: rc = number(m, &keys, sizeof keys, err); return rc != RS_OK ? rc : b->ops->reserve(b, keys, err);
    case SHARE_RETIRE:
        rc = number(m, &generation, sizeof generation, err);
        if (rc == RS_OK)
            b->ops->retire(b, generation);
        return rc;
    default: return error_set(err, RS_EINTERNAL, "unknown request %u from the first host", m->type);
    }
}

/* ---- joining, and the loop ---- */

static void *beat(void *arg)
{
    struct follower *f = arg;
    struct pollfd p = {.fd = f->quit[0], .events = POLLIN};
    while (poll(&p, 1, BEAT_MS) <= 0)
        if (link_send(&f->link, LINK_BEAT, 0, RS_OK, NULL, 0, NULL) != RS_OK) {
            alarm(STUCK_S);
            break;
        }
    return NULL;
}

/* The first host is not there any more: what waits for its data need not wait. */
static enum rs_result look(void *arg, struct rs_error *err)
{
    struct follower *f = arg;
    struct link_msg m;
    enum rs_result rc = link_next(&f->link, 0, &m, NULL);
    if (rc == RS_OK)
        link_unread(&f->link);
    if (rc == RS_EIO || (rc == RS_OK && m.type == SHARE_BYE))
        return error_set(err, RS_EENGINE, "the first host is gone");
    return RS_OK;
}

static enum rs_result loop(struct follower *f, struct rs_error *err)
{
    for (;;) {
        struct link_msg m;
        struct rs_error why = {.msg = ""};
        if (link_next(&f->link, -1, &m, NULL) != RS_OK)
            return error_set(err, RS_EENGINE, "the first host is gone");
        if (m.type == SHARE_BYE)
            return RS_OK;
        enum rs_result rc = carry_out(f, &m, &why);
        const void *data = rc == RS_OK ? (const void *)f->out.p : why.msg;
        if (link_send(&f->link, SHARE_ANSWER, m.id, rc, data, rc == RS_OK ? f->out.n : strlen(why.msg), NULL) != RS_OK)
            return error_set(err, RS_EENGINE, "the first host is gone");
    }
}

static enum rs_result welcome(struct follower *f, struct share_welcome *w, struct rs_error *err)
{
    struct link_msg m;
    enum rs_result rc = link_next(&f->link, WELCOME_MS, &m, err);
    if (rc != RS_OK)
        return error_set(err, RS_EENGINE, "the first host does not take this one in");
    if (m.type != SHARE_WELCOME || m.len != sizeof *w)
        return error_set(err, m.status != RS_OK ? m.status : RS_EINTERNAL, "%.*s", (int)m.len, (const char *)m.data);
    memcpy(w, m.data, sizeof *w);
    return RS_OK;
}

/* Join, run, leave. comm: of MPI, or NULL. */
static enum rs_result follow(struct comm *comm, const char *host, uint16_t port, uint32_t index, const char secret[LINK_SECRET],
                             const struct rs_local_params *params, struct rs_error *err)
{
    struct follower f = {.comm = comm, .link.fd = -1, .quit = {-1, -1}};
    struct share_hello hello = {.version = PACKAGE_VERSION, .sizes = share_sizes(), .index = index, .pid = (uint32_t)getpid(), .isa = krn_cpu_best()};
    struct share_welcome w = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int listen_fd = -1, fd = -1;
    uint16_t own = 0;
    memcpy(hello.secret, secret, LINK_SECRET);
    enum rs_result rc = link_connect(host, port, CONNECT_MS, &fd, err);
    if (rc == RS_OK)
        rc = link_open(&f.link, fd, err);
    if (rc == RS_OK && comm == NULL)
        rc = link_listen(strcmp(host, "localhost") == 0, &listen_fd, &own, err);
    hello.port = own;
    if (rc == RS_OK)
        rc = link_send(&f.link, SHARE_HELLO, 0, RS_OK, &hello, sizeof hello, err);
    if (rc == RS_OK)
        rc = welcome(&f, &w, err);
    if (rc == RS_OK && comm == NULL)
        rc = comm_tcp_open(w.n_hosts, index, &w.peers, listen_fd, secret, CONNECT_MS, &f.comm, err);
    if (listen_fd >= 0)
        close(listen_fd);
    if (rc == RS_OK)
        rc = pool_open(params->workers != 0 ? params->workers : cores > 0 ? (unsigned)cores : 1, &f.pool, err);
    if (rc == RS_OK && (pipe(f.quit) != 0 || pthread_create(&f.beat, NULL, beat, &f) != 0))
        rc = error_set(err, RS_EIO, "cannot start a thread: %s", strerror(errno));
    if (rc == RS_OK) {
        f.isa = (enum krn_isa)w.isa;
        f.comm->look = look;
        f.comm->look_arg = &f;
        for (uint32_t i = 0; i < w.n_hosts; i++)
            memcpy(f.comm->name[i], w.peers.address[i], LINK_ADDRESS);
        rc = link_send(&f.link, SHARE_ANSWER, 0, RS_OK, NULL, 0, err);
        rc = rc == RS_OK ? loop(&f, err) : rc;
        alarm(STUCK_S);
        close(f.quit[1]);
        pthread_join(f.beat, NULL);
        close(f.quit[0]);
    }
    while (f.far != NULL)
        close_far(&f, f.far->id);
    pool_close(f.pool);
    free(f.out.p);
    link_close(&f.link);
    comm_close(f.comm);
    alarm(0);
    return rc;
}

/* LINK_SECRET bytes as hexadecimal digits in one line. */
static enum rs_result read_secret(char secret[LINK_SECRET], struct rs_error *err)
{
    char hex[2 * LINK_SECRET];
    size_t n = 0;
    while (n < sizeof hex) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        ssize_t k = poll(&p, 1, SECRET_MS) > 0 ? read(STDIN_FILENO, hex + n, sizeof hex - n) : -1;
        if (k <= 0)
            return error_set(err, RS_EUSAGE, "no secret on standard input: a process of this kind is started by the first host's");
        n += (size_t)k;
    }
    for (size_t i = 0; i < LINK_SECRET; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'}, *end;
        secret[i] = (char)strtoul(digits, &end, 16);
        if (!isxdigit((unsigned char)digits[0]) || *end != '\0')
            return error_set(err, RS_EUSAGE, "what stands on standard input is no secret");
    }
    return RS_OK;
}

enum rs_result rs_engine_follow(const char *where, const struct rs_local_params *params, struct rs_error *err)
{
    char host[LINK_ADDRESS], secret[LINK_SECRET];
    char *end = NULL;
    unsigned long index = strtoul(where, &end, 10), port = 0;
    const char *name = end != NULL && *end == '@' ? end + 1 : "", *colon = strrchr(name, ':');
    size_t n = colon != NULL ? (size_t)(colon - name) : 0;
    if (n > 0)
        port = strtoul(colon + 1, &end, 10);
    if (n == 0 || n >= sizeof host || index == 0 || index >= COMM_MAX_HOSTS || port == 0 || port > UINT16_MAX || *end != '\0')
        return error_set(err, RS_EUSAGE, "'%.60s' is not INDEX@HOST:PORT", where);
    snprintf(host, sizeof host, "%.*s", (int)n, name);
    enum rs_result rc = read_secret(secret, err);
    return rc != RS_OK ? rc : follow(NULL, host, (uint16_t)port, (uint32_t)index, secret, params, err);
}

enum rs_result follow_mpi(struct comm *comm, const struct rs_local_params *params, struct rs_error *err)
{
    struct share_call call;
    enum rs_result rc = comm_mpi_share(comm, &call, sizeof call, err);
    if (rc != RS_OK) {
        comm_close(comm);
        return rc;
    }
    return follow(comm, call.address, (uint16_t)call.port, comm->host, call.secret, params, err);
}
