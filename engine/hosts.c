/* See hosts.h. */
#include "engine/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "engine/error.h"
#include "engine/now.h"
#include "engine/share.h"

enum { START_MS = 60000, HELLO_MS = 5000, STEP_MS = 50, SILENCE_S = 15, END_MS = 5000, MAX_WORDS = 64 };

struct host {
    char name[LINK_ADDRESS];   /* as it was given */
    char address[LINK_ADDRESS]; /* without a user's name */
    struct link link;
    pid_t child;               /* what launched it: 0: nothing */
    int log;                   /* a memory file with what that said, or -1 */
    uint32_t pid, isa, port;
    uint32_t from, to;         /* ranks */
};

struct hosts {
    uint32_t n, silence_s, next_id;
    struct host host[COMM_MAX_HOSTS]; /* [0] is this process */
    struct comm *comm;
    char secret[LINK_SECRET];
    int listen_fd;
    uint16_t port;
    bool mpi, lost;
    struct rs_error why;
};

/* ---- words ---- */

/* "host b (ranks 2 to 3)" */
static const char *who(const struct hosts *h, uint32_t host, char buf[LINK_ADDRESS + 48])
{
    const struct host *x = &h->host[host];
    if (x->to == x->from)
        snprintf(buf, LINK_ADDRESS + 48, "host %s", x->name);
    else if (x->to == x->from + 1)
        snprintf(buf, LINK_ADDRESS + 48, "host %s (rank %u)", x->name, x->from);
    else
        snprintf(buf, LINK_ADDRESS + 48, "host %s (ranks %u to %u)", x->name, x->from, x->to - 1);
    return buf;
}

/* The last line that a launched process wrote, or "". */
static void last_words(const struct host *x, char out[200])
{
    char text[1024];
    out[0] = '\0';
    off_t end = x->log >= 0 ? lseek(x->log, 0, SEEK_END) : 0;
    off_t from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t n = end > 0 ? pread(x->log, text, (size_t)(end - from), from) : 0;
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        n--;
    if (n <= 0)
        return;
    text[n] = '\0';
    const char *line = strrchr(text, '\n');
    snprintf(out, 200, "%.199s", line != NULL ? line + 1 : text);
}

void hosts_lose(struct hosts *h, const struct rs_error *err)
{
    if (h->lost)
        return;
    h->lost = true;
    h->why = *err;
    h->why.code = RS_EENGINE;
}

/* A connection ended: wait a moment for what its process may have said last. */
static enum rs_result lose_host(struct hosts *h, uint32_t host, enum rs_result how, struct rs_error *err)
{
    struct rs_error e;
    struct host *x = &h->host[host];
    char name[LINK_ADDRESS + 48], said[200] = "";
    int status;
    if (how == RS_ETIMEOUT) {
        error_set(&e, RS_EENGINE, "%s has been silent for %u s: it hangs, or cannot be reached", who(h, host, name), h->silence_s);
    } else {
        for (int ms = 0; x->child > 0 && ms < 500; ms += STEP_MS) {
            if (waitpid(x->child, &status, WNOHANG) == x->child) {
                x->child = 0;
                break;
            }
            poll(NULL, 0, STEP_MS);
        }
        last_words(x, said);
        error_set(&e, RS_EENGINE, "%s is gone%s%s", who(h, host, name), said[0] != '\0' ? ": " : "", said);
    }
    hosts_lose(h, &e);
    return error_set(err, h->why.code, "%s", h->why.msg);
}

/* ---- launching ---- */

/* Is this the word that the command stands for, or its arguments alone, behind another program? *from: the first word of it. */
static bool is_command(const char *p, size_t len, size_t *from)
{
    *from = len == 6 ? 1 : 0;
    return (len == 9 && strncmp(p, "{command}", 9) == 0) || (len == 6 && strncmp(p, "{args}", 6) == 0);
}

/* The words of the template with what stands for {host} and {command} in place of these; `store` holds them. False: too many, or no command. */
static bool make_words(const char *template, const char *host, const char *const *command, char *store, size_t size, char *words[MAX_WORDS])
{
    size_t n = 0, at = 0, from;
    bool whole = false;
    for (const char *p = template; *(p += strspn(p, " \t")) != '\0';) {
        size_t len = strcspn(p, " \t");
        if (is_command(p, len, &from)) {
            for (size_t i = from; command[i] != NULL && n + 1 < MAX_WORDS; i++)
                words[n++] = (char *)(uintptr_t)command[i];
            whole = true;
            p += len;
            continue;
        }
        if (n + 1 >= MAX_WORDS)
            return false;
        words[n++] = store + at;
        for (size_t i = 0; i < len;) {
            bool here = len - i >= 6 && strncmp(p + i, "{host}", 6) == 0;
            size_t k = here ? strlen(host) : 1;
            if (at + k + 1 > size)
                return false;
            memcpy(store + at, here ? host : p + i, k);
            at += k;
            i += here ? 6 : 1;
        }
        store[at++] = '\0';
        p += len;
    }
    words[n] = NULL;
    return whole;
}

/* Start one process with the secret on its standard input. */
static enum rs_result spawn(struct hosts *h, struct host *x, char *const words[], struct rs_error *err)
{
    int in[2];
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    x->log = memfd_create("host", MFD_CLOEXEC);
    if (x->log < 0 || pipe2(in, O_CLOEXEC) != 0)
        return error_set(err, RS_EIO, "cannot start an engine on host %s: %s", x->name, strerror(errno));
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&attr);
    /* A group of its own: Ctrl-C at the terminal is for this process, which tells the others. */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawn_file_actions_adddup2(&fa, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&fa, x->log, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&fa, x->log, STDERR_FILENO);
    int e = posix_spawnp(&x->child, words[0], &fa, &attr, words, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&attr);
    char hex[2 * LINK_SECRET + 2];
    for (size_t i = 0; i < LINK_SECRET; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)h->secret[i]);
    memcpy(hex + 2 * LINK_SECRET, "\n", 2);
    if (e == 0 && write(in[1], hex, sizeof hex - 1) < 0) { /* a pipe takes as much at once; if it is not read, nobody will connect */
    }
    close(in[0]); /* only now: a pipe that nobody can read any more would end this process by SIGPIPE */
    close(in[1]);
    if (e == 0)
        return RS_OK;
    x->child = 0;
    return error_set(err, RS_EIO, "cannot start an engine on host %s: %s: %s", x->name, words[0], strerror(e));
}

static enum rs_result launch(struct hosts *h, const struct rs_local_params *p, struct rs_error *err)
{
    char self[PATH_MAX], at[LINK_ADDRESS + 32], workers[16], store[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *template = p->launch;
    if (template == NULL)
        template = getenv("SLURM_JOB_ID") != NULL ? "srun --overlap --nodes=1 --ntasks=1 --nodelist={host} {command}" : "ssh -o BatchMode=yes {host} {command}";
    if (n <= 0)
        return error_set(err, RS_EIO, "cannot tell where this program lies: %s", strerror(errno));
    self[n] = '\0';
    snprintf(workers, sizeof workers, "%u", p->workers);
    for (uint32_t i = 1; i < h->n; i++) {
        char *words[MAX_WORDS];
        const char *command[8] = {self, "engine", "--follow", at};
        if (p->workers != 0) {
            command[4] = "--workers";
            command[5] = workers;
        }
        snprintf(at, sizeof at, "%u@%s:%u", i, h->host[0].address, h->port);
        if (!make_words(template, h->host[i].name, command, store, sizeof store, words))
            return error_set(err, RS_EUSAGE, "launch: '%.200s' must hold {command} as a word, or a program and {args}, and not too many others", template);
        enum rs_result rc = spawn(h, &h->host[i], words, err);
        if (rc != RS_OK)
            return rc;
    }
    return RS_OK;
}

/* ---- joining ---- */

/* Letters, digits and what else stands in host and user names and addresses; not first a '-', which a launcher would take for an option. */
static bool name_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && strchr(".-_@:", s[i]) == NULL)
            return false;
    return n > 0 && n < LINK_ADDRESS && s[0] != '-';
}

static enum rs_result read_names(struct hosts *h, const char *list, struct rs_error *err)
{
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        if (!name_ok(p, n))
            return error_set(err, RS_EUSAGE, "hosts: '%.100s' is no list of host names with commas", list);
        if (h->n == COMM_MAX_HOSTS)
            return error_set(err, RS_EUSAGE, "hosts: at most %d", COMM_MAX_HOSTS);
        struct host *x = &h->host[h->n++];
        const char *at = memchr(p, '@', n), *address = at != NULL ? at + 1 : p;
        snprintf(x->name, sizeof x->name, "%.*s", (int)n, p);
        snprintf(x->address, sizeof x->address, "%.*s", (int)(p + n - address), address);
        p += n;
        if (*p == '\0')
            break;
    }
    if (h->n < 2)
        return error_set(err, RS_EUSAGE, "hosts: name two or more, this one first");
    if (!link_is_here(h->host[0].address))
        return error_set(err, RS_EUSAGE, "hosts: %s is not this machine, and the first host must be: name it as the others reach it", h->host[0].address);
    return RS_OK;
}

static enum rs_result check_hello(const struct hosts *h, const struct share_hello *m, uint32_t isa, struct rs_error *err)
{
    const char *name = h->host[m->index].name;
    if (strncmp(m->version, PACKAGE_VERSION, sizeof m->version) != 0 || m->sizes != share_sizes())
        return error_set(err, RS_ESTATE, "host %s runs rankscope %.40s, this one %s: all hosts need the same build", name, m->version, PACKAGE_VERSION);
    if (m->isa < isa) /* what all ranks compute for themselves must be the same to the bit, or they choose different experts */
        return error_set(err, RS_EUNSUPPORTED, "host %s has no %s instructions, which this one computes with: start with --isa %s", name,
                         krn_cpu_matmul((enum krn_isa)isa)->name, m->isa == KRN_ISA_AVX2 ? "avx2" : "portable");
    return RS_OK;
}

/* A connection, of one of ours or of anybody. */
static enum rs_result greet(struct hosts *h, int fd, enum krn_isa isa, struct rs_error *err)
{
    struct link l;
    struct link_msg m;
    struct share_hello hello;
    link_tune(fd);
    enum rs_result rc = link_open(&l, fd, err);
    if (rc != RS_OK) {
        close(fd);
        return rc;
    }
    bool ours = link_next(&l, HELLO_MS, &m, NULL) == RS_OK && m.type == SHARE_HELLO && m.len == sizeof hello;
    if (ours)
        memcpy(&hello, m.data, sizeof hello);
    ours = ours && memcmp(hello.secret, h->secret, LINK_SECRET) == 0 && hello.index > 0 && hello.index < h->n && h->host[hello.index].link.fd < 0;
    rc = ours ? check_hello(h, &hello, (uint32_t)isa, err) : RS_OK;
    if (!ours || rc != RS_OK) {
        if (rc != RS_OK && err != NULL)
            (void)link_send(&l, SHARE_ANSWER, 0, rc, err->msg, strlen(err->msg), NULL);
        link_close(&l);
        return rc;
    }
    struct host *x = &h->host[hello.index];
    x->link = l;
    x->pid = hello.pid;
    x->isa = hello.isa;
    x->port = hello.port;
    return RS_OK;
}

/* A launcher that ends before its engine has connected has failed. */
static enum rs_result check_launchers(struct hosts *h, struct rs_error *err)
{
    for (uint32_t i = 1; i < h->n; i++) {
        struct host *x = &h->host[i];
        char said[200];
        int status;
        if (x->link.fd >= 0 || x->child <= 0 || waitpid(x->child, &status, WNOHANG) != x->child)
            continue;
        x->child = 0;
        last_words(x, said);
        return error_set(err, RS_EENGINE, "no engine started on host %s: %s", x->name, said[0] != '\0' ? said : "its launcher ended without a word");
    }
    return RS_OK;
}

static uint32_t missing(const struct hosts *h)
{
    for (uint32_t i = 1; i < h->n; i++)
        if (h->host[i].link.fd < 0)
            return i;
    return 0;
}

static enum rs_result gather(struct hosts *h, enum krn_isa isa, struct rs_error *err)
{
    const uint64_t deadline = now_us() + START_MS * 1000ull;
    enum rs_result rc = RS_OK;
    while (rc == RS_OK && missing(h) != 0) {
        struct pollfd p = {.fd = h->listen_fd, .events = POLLIN};
        if (poll(&p, 1, STEP_MS) == 1) {
            int fd = accept4(h->listen_fd, NULL, NULL, SOCK_CLOEXEC);
            rc = fd >= 0 ? greet(h, fd, isa, err) : RS_OK;
            continue;
        }
        rc = check_launchers(h, err);
        if (rc == RS_OK && now_us() > deadline)
            rc = error_set(err, RS_ETIMEOUT, "no engine on host %s has connected to %s, port %u, in %d s", h->host[missing(h)].name, h->host[0].address,
                           h->port, START_MS / 1000);
    }
    return rc;
}

/* Everybody learns who the others are and joins them. */
static enum rs_result join(struct hosts *h, enum krn_isa isa, struct rs_error *err)
{
    struct share_welcome w = {.n_hosts = h->n, .isa = (uint32_t)isa, .mpi = h->mpi};
    for (uint32_t i = 0; i < h->n; i++) {
        memcpy(w.peers.address[i], h->host[i].address, LINK_ADDRESS);
        w.peers.port[i] = i == 0 ? h->port : (uint16_t)h->host[i].port;
    }
    enum rs_result rc = RS_OK;
    for (uint32_t i = 1; i < h->n && rc == RS_OK; i++)
        rc = hosts_tell(h, i, SHARE_WELCOME, 0, &w, sizeof w, err);
    if (rc == RS_OK && !h->mpi)
        rc = comm_tcp_open(h->n, 0, &w.peers, h->listen_fd, h->secret, START_MS, &h->comm, err);
    if (rc == RS_OK)
        rc = hosts_answers(h, err);
    for (uint32_t i = 0; i < h->n && rc == RS_OK; i++)
        memcpy(h->comm->name[i], h->host[i].name, LINK_ADDRESS);
    return rc;
}

static enum rs_result look(void *arg, struct rs_error *err)
{
    return hosts_look(arg, err);
}

/* Where the first process listens, for those that an MPI launcher has started. */
static enum rs_result share_address(struct hosts *h, struct comm *comm, struct rs_error *err)
{
    struct share_call call = {.port = h->port};
    h->mpi = true;
    h->comm = comm;
    h->n = comm->n_hosts;
    for (uint32_t i = 0; i < h->n; i++) {
        memcpy(h->host[i].name, comm->name[i], LINK_ADDRESS);
        memcpy(h->host[i].address, comm->name[i], LINK_ADDRESS);
    }
    memcpy(call.address, h->host[0].address, LINK_ADDRESS);
    memcpy(call.secret, h->secret, LINK_SECRET);
    return comm_mpi_share(comm, &call, sizeof call, err);
}

enum rs_result hosts_open(const struct rs_local_params *params, struct comm *comm, enum krn_isa isa, struct hosts **out, struct rs_error *err)
{
    struct hosts *h = calloc(1, sizeof *h);
    enum rs_result rc = RS_OK;
    if (h == NULL) {
        comm_close(comm);
        return error_set(err, RS_ENOMEM, "out of memory for hosts");
    }
    h->listen_fd = -1;
    h->comm = comm;
    h->silence_s = params->host_timeout != 0 ? params->host_timeout : SILENCE_S;
    for (uint32_t i = 0; i < COMM_MAX_HOSTS; i++) {
        h->host[i].link.fd = -1;
        h->host[i].log = -1;
    }
    if (getrandom(h->secret, sizeof h->secret, 0) != (ssize_t)sizeof h->secret)
        rc = error_set(err, RS_EIO, "no random numbers: %s", strerror(errno));
    if (rc == RS_OK && comm == NULL)
        rc = read_names(h, params->hosts, err);
    if (rc == RS_OK)
        rc = link_listen(comm == NULL && strcmp(h->host[0].address, "localhost") == 0, &h->listen_fd, &h->port, err);
    if (rc == RS_OK)
        rc = comm != NULL ? share_address(h, comm, err) : launch(h, params, err);
    if (rc == RS_OK)
        rc = gather(h, isa, err);
    if (rc == RS_OK)
        rc = join(h, isa, err);
    if (rc != RS_OK) {
        hosts_close(h);
        return rc;
    }
    close(h->listen_fd);
    h->listen_fd = -1;
    h->comm->look = look;
    h->comm->look_arg = h;
    *out = h;
    return RS_OK;
}

/* Launchers end when what they launched does; one that does not is ended. */
static void reap(struct hosts *h)
{
    for (int ms = 0, left = 1; left != 0 && ms < END_MS; ms += STEP_MS / 5) {
        left = 0;
        for (uint32_t i = 1; i < h->n; i++) {
            if (h->host[i].child > 0 && waitpid(h->host[i].child, NULL, WNOHANG) != 0)
                h->host[i].child = 0;
            left += h->host[i].child > 0;
        }
        if (left != 0)
            poll(NULL, 0, STEP_MS / 5);
    }
    for (uint32_t i = 1; i < h->n; i++)
        if (h->host[i].child > 0) {
            kill(-h->host[i].child, SIGKILL);
            waitpid(h->host[i].child, NULL, 0);
        }
}

void hosts_close(struct hosts *h)
{
    if (h == NULL)
        return;
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    for (uint32_t i = 1; i < h->n; i++)
        if (h->host[i].link.fd >= 0) {
            (void)link_send(&h->host[i].link, SHARE_BYE, 0, RS_OK, NULL, 0, NULL);
            link_close(&h->host[i].link);
        }
    if (h->comm != NULL && h->lost)
        h->comm->failed = true;
    comm_close(h->comm);
    reap(h);
    for (uint32_t i = 1; i < h->n; i++)
        if (h->host[i].log >= 0)
            close(h->host[i].log);
    free(h);
}

/* ---- talking ---- */

uint32_t hosts_count(const struct hosts *h)
{
    return h->n;
}

const char *hosts_name(const struct hosts *h, uint32_t host)
{
    return h->host[host].name;
}

uint32_t hosts_pid(const struct hosts *h, uint32_t host)
{
    return host == 0 ? (uint32_t)getpid() : h->host[host].pid;
}

struct comm *hosts_comm(struct hosts *h)
{
    return h->comm;
}

void hosts_ranks(struct hosts *h, const uint32_t *first)
{
    for (uint32_t i = 0; i < h->n; i++) {
        h->host[i].from = first != NULL ? first[i] : 0;
        h->host[i].to = first != NULL ? first[i + 1] : 0;
    }
}

uint32_t hosts_of_rank(const struct hosts *h, uint32_t rank)
{
    uint32_t i = 0;
    while (i + 1 < h->n && rank >= h->host[i].to)
        i++;
    return i;
}

void hosts_ranks_of(const struct hosts *h, uint32_t host, uint32_t *from, uint32_t *to)
{
    *from = h->host[host].from;
    *to = h->host[host].to;
}

uint32_t hosts_new_id(struct hosts *h)
{
    return ++h->next_id;
}

bool hosts_lost(const struct hosts *h)
{
    return h->lost;
}

static enum rs_result lost_already(const struct hosts *h, struct rs_error *err)
{
    return error_set(err, h->why.code, "%s", h->why.msg);
}

enum rs_result hosts_tell(struct hosts *h, uint32_t host, uint16_t type, uint32_t id, const void *data, size_t len, struct rs_error *err)
{
    if (h->lost)
        return lost_already(h, err);
    for (uint32_t i = host != 0 ? host : 1; i < (host != 0 ? host + 1 : h->n); i++) {
        enum rs_result rc = link_send(&h->host[i].link, type, id, RS_OK, data, len, NULL);
        if (rc != RS_OK)
            return lose_host(h, i, rc, err);
    }
    return RS_OK;
}

static bool silent(const struct hosts *h, const struct host *x)
{
    return now_us() - x->link.heard_us > (uint64_t)h->silence_s * 1000000;
}

enum rs_result hosts_answer(struct hosts *h, uint32_t host, struct link_msg *out, struct rs_error *err)
{
    struct host *x = &h->host[host];
    char name[LINK_ADDRESS + 48];
    while (!h->lost) {
        enum rs_result rc = link_next(&x->link, COMM_LOOK_MS, out, NULL);
        if (rc == RS_ETIMEOUT && !silent(h, x))
            continue;
        if (rc != RS_OK)
            return lose_host(h, host, rc, err);
        if (out->status != RS_OK)
            return error_set(err, out->status, "%s: %.*s", who(h, host, name), (int)out->len, (const char *)out->data);
        return RS_OK;
    }
    return lost_already(h, err);
}

enum rs_result hosts_answers(struct hosts *h, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    for (uint32_t i = 1; i < h->n; i++) {
        struct link_msg m;
        enum rs_result r = hosts_answer(h, i, &m, rc == RS_OK ? err : NULL);
        rc = rc == RS_OK ? r : rc;
    }
    return rc;
}

enum rs_result hosts_look(struct hosts *h, struct rs_error *err)
{
    char name[LINK_ADDRESS + 48];
    if (h->lost)
        return lost_already(h, err);
    for (uint32_t i = 1; i < h->n; i++) {
        struct host *x = &h->host[i];
        struct link_msg m;
        enum rs_result rc = link_next(&x->link, 0, &m, NULL);
        if (rc == RS_OK)
            link_unread(&x->link);
        if (rc == RS_OK && m.status != RS_OK) /* it gave up in a step */
            return error_set(err, m.status, "%s: %.*s", who(h, i, name), (int)m.len, (const char *)m.data);
        if (rc == RS_OK || (rc == RS_ETIMEOUT && !silent(h, x)))
            continue;
        return lose_host(h, i, rc, err);
    }
    return RS_OK;
}
