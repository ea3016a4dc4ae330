/* Engines as processes: where their sockets lie, serving one, finding and reaching them.
 *
 * NAME.sock in the runtime folder (mode 0700) is the engine's socket, mode 0600. Right after a connection is accepted the engine sends one byte
 * with the snapshot page's descriptor; everything after that are frames. A socket file whose engine is gone refuses connections; listing removes it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/client.h"
#include "engine/comm.h"
#include "engine/connect.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/follow.h"
#include "engine/rankscope.h"
#include "engine/snapshot.h"

enum { SOCKET_PATH = 1024, RUNTIME_DIR = SOCKET_PATH - 32 }; /* bytes; in a folder comes NAME.sock~ */

/* $XDG_RUNTIME_DIR/rankscope, or /tmp/rankscope-UID; made if it is missing, refused if it is not ours alone. */
static enum rs_result runtime_dir(char out[RUNTIME_DIR], struct rs_error *err)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    int n = xdg != NULL && xdg[0] == '/' ? snprintf(out, RUNTIME_DIR, "%s/rankscope", xdg)
                                         : snprintf(out, RUNTIME_DIR, "/tmp/rankscope-%u", (unsigned)getuid());
    if (n >= RUNTIME_DIR)
        return error_set(err, RS_EIO, "XDG_RUNTIME_DIR is too long: %s", xdg);
    if (mkdir(out, 0700) != 0 && errno != EEXIST)
        return error_set(err, RS_EIO, "cannot make %s: %s", out, strerror(errno));
    if (lstat(out, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid() || (st.st_mode & 077) != 0)
        return error_set(err, RS_EIO, "%s is not a private folder of this user", out);
    return RS_OK;
}

static bool good_name(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > 20 || s[0] == '.')
        return false;
    for (; *s != '\0'; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || strchr("-_.", *s) != NULL))
            return false;
    return true;
}

/* Where the socket of an engine lies: of a name in the runtime folder; a path stays one. */
static enum rs_result socket_path(const char *name, char out[SOCKET_PATH], struct rs_error *err)
{
    char dir[RUNTIME_DIR];
    enum rs_result rc;
    if (strchr(name, '/') != NULL) {
        if (strlen(name) >= SOCKET_PATH - 1)
            return error_set(err, RS_EUSAGE, "socket path is too long: %s", name);
        strcpy(out, name);
        return RS_OK;
    }
    if (!good_name(name))
        return error_set(err, RS_EUSAGE, "an engine's name is 1 to 20 letters, digits, '-', '_' or '.', not '%.30s'", name);
    if ((rc = runtime_dir(dir, err)) != RS_OK)
        return rc;
    snprintf(out, SOCKET_PATH, "%s/%s.sock", dir, name);
    return RS_OK;
}

/* An address holds 107 bytes. A longer path goes by a descriptor of its folder, which the caller closes when the address has been used; else -1. */
static bool address_of(const char *path, struct sockaddr_un *a, int *folder)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    *folder = -1;
    if (strlen(path) < sizeof a->sun_path) {
        strcpy(a->sun_path, path);
        return true;
    }
    const char *base = strrchr(path, '/');
    char dir[SOCKET_PATH];
    snprintf(dir, sizeof dir, "%.*s", (int)(base - path), path);
    if ((*folder = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        return false;
    if (snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d%s", *folder, base) < (int)sizeof a->sun_path)
        return true;
    close(*folder);
    *folder = -1;
    errno = ENAMETOOLONG;
    return false;
}

/* A new socket, bound (and not blocking) or connected; -1 with errno. */
static int socket_at(const char *path, bool bound)
{
    struct sockaddr_un a;
    int folder, fd;
    if (!address_of(path, &a, &folder))
        return -1;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (bound ? SOCK_NONBLOCK : 0), 0);
    bool ok = fd >= 0 && (bound ? bind(fd, (struct sockaddr *)&a, sizeof a) : connect(fd, (struct sockaddr *)&a, sizeof a)) == 0;
    int e = errno;
    if (folder >= 0)
        close(folder);
    if (!ok && fd >= 0)
        close(fd);
    errno = e;
    return ok ? fd : -1;
}

static int try_connect(const char *path)
{
    return socket_at(path, false);
}

bool connect_send_page(int fd, int page_fd)
{
    char byte = 'r', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &page_fd, sizeof page_fd);
    return sendmsg(fd, &m, MSG_NOSIGNAL) == 1;
}

static int receive_page(int fd)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n;
    int page = -1;
    do
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n == 1 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(&page, CMSG_DATA(c), sizeof page);
    return page;
}

static enum rs_result handle_of(int fd, const char *name, struct rs_engine **out, struct rs_error *err)
{
    const struct snapshot_page *page = NULL;
    struct timeval patience = {.tv_sec = 600}; /* a busy engine answers between two steps, a loading one afterwards */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int page_fd = receive_page(fd);
    patience.tv_sec = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (page_fd < 0) {
        close(fd);
        return error_set(err, RS_EENGINE, "engine %s does not answer as one", name);
    }
    enum rs_result rc = snapshot_map(page_fd, &page, err);
    close(page_fd);
    struct rs_engine *e = rc == RS_OK ? client_new(fd) : NULL;
    if (e == NULL) {
        close(fd);
        snapshot_unmap(page);
        return rc != RS_OK ? rc : error_set(err, RS_ENOMEM, "out of memory for an engine handle");
    }
    client_set_page(e, page);
    *out = e;
    return RS_OK;
}

/* Call fn for every NAME.sock that accepts a connection; dead ones are removed. */
static enum rs_result each_engine(void (*fn)(void *arg, const char *name, const char *path, int fd), void *arg, struct rs_error *err)
{
    char dir[RUNTIME_DIR];
    enum rs_result rc = runtime_dir(dir, err);
    DIR *d = rc == RS_OK ? opendir(dir) : NULL;
    if (rc != RS_OK)
        return rc;
    if (d == NULL)
        return error_set(err, RS_EIO, "cannot read %s: %s", dir, strerror(errno));
    for (struct dirent *f; (f = readdir(d)) != NULL;) {
        char name[64], path[SOCKET_PATH];
        size_t n = strlen(f->d_name);
        if (n < 6 || n > 25 || strcmp(f->d_name + n - 5, ".sock") != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - 5), f->d_name);
        if (socket_path(name, path, NULL) != RS_OK)
            continue;
        int fd = try_connect(path);
        if (fd < 0) {
            if (errno == ECONNREFUSED)
                unlink(path);
            continue;
        }
        fn(arg, name, path, fd);
    }
    closedir(d);
    return RS_OK;
}

struct only {
    char name[64], names[200]; /* the last one, and all, "0, 1" */
    int n;
};

static void count_one(void *arg, const char *name, const char *path, int fd)
{
    struct only *o = arg;
    (void)path;
    close(fd);
    snprintf(o->name, sizeof o->name, "%s", name);
    size_t len = strlen(o->names);
    snprintf(o->names + len, sizeof o->names - len, "%s%s", o->n > 0 ? ", " : "", name);
    o->n++;
}

enum rs_result rs_engine_connect(const char *name, struct rs_engine **out, struct rs_error *err)
{
    char path[SOCKET_PATH];
    struct only o = {.n = 0};
    enum rs_result rc;
    if (name == NULL) {
        if ((rc = each_engine(count_one, &o, err)) != RS_OK)
            return rc;
        if (o.n == 0)
            return error_set(err, RS_ENOTFOUND, "no engine runs");
        if (o.n > 1)
            return error_set(err, RS_ESTATE, "%d engines run: say which, %s (rankscope ps tells more of them)", o.n, o.names);
        name = o.name;
    }
    if ((rc = socket_path(name, path, err)) != RS_OK)
        return rc;
    int fd = try_connect(path);
    if (fd < 0)
        return errno == ENOENT || errno == ECONNREFUSED ? error_set(err, RS_ENOTFOUND, "no engine %s runs (rankscope ps lists those that do)", name)
                                                        : error_set(err, RS_ENOTFOUND, "no engine %s: %s", name, strerror(errno));
    return handle_of(fd, name, out, err);
}

static void describe_one(void *arg, const char *name, const char *path, int fd)
{
    json_t *list = arg, *o = json_pack("{s:s,s:s}", "name", name, "socket", path);
    struct rs_engine *e = NULL;
    char *reply = NULL;
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
        json_object_set_new(o, "pid", json_integer(peer.pid));
    json_object_set_new(o, "model", json_null());
    json_object_set_new(o, "ranks", json_null());
    if (handle_of(fd, name, &e, NULL) == RS_OK && rs_request(e, "info", NULL, 1000, &reply, NULL) == RS_OK) {
        json_t *info = json_loads(reply, 0, NULL), *model = json_object_get(json_object_get(info, "model"), "path");
        json_t *ranks = json_object_get(json_object_get(info, "state"), "ranks");
        if (model != NULL)
            json_object_set(o, "model", model);
        if (ranks != NULL)
            json_object_set(o, "ranks", ranks);
        json_decref(info);
    }
    struct stat st;
    if (stat(path, &st) == 0)
        json_object_set_new(o, "since", json_integer((json_int_t)st.st_mtime));
    free(reply);
    rs_engine_close(e);
    json_array_append_new(list, o);
}

enum rs_result rs_engine_list(char **json, struct rs_error *err)
{
    json_t *list = json_array();
    enum rs_result rc = each_engine(describe_one, list, err);
    char *s = rc == RS_OK ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    if (rc == RS_OK && s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the list of engines");
    *json = s;
    return rc;
}

/* Bind under a temporary name and move it into place, so that a socket that can be seen can be connected to. */
static enum rs_result listen_at(const char *name, char path[SOCKET_PATH], int *out, struct rs_error *err)
{
    char tmp[SOCKET_PATH + 1];
    enum rs_result rc = socket_path(name, path, err);
    if (rc != RS_OK)
        return rc;
    int fd = try_connect(path);
    if (fd >= 0) {
        close(fd);
        return error_set(err, RS_ESTATE, "an engine named %s is running already", name);
    }
    snprintf(tmp, sizeof tmp, "%s~", path);
    unlink(tmp);
    mode_t old = umask(0177);
    fd = socket_at(tmp, true);
    umask(old);
    if (fd < 0 || listen(fd, 16) != 0 || rename(tmp, path) != 0) {
        rc = error_set(err, RS_EIO, "cannot listen at %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *out = fd;
    return RS_OK;
}

enum rs_result rs_engine_serve(const char *name, const struct rs_local_params *params, int ready_fd, struct rs_error *err)
{
    char path[SOCKET_PATH];
    struct engine *e;
    struct comm *comm = NULL;
    int fd = -1;
    enum rs_result rc = params != NULL && params->mpi ? comm_mpi_open(&comm, err) : RS_OK;
    if (rc != RS_OK)
        return rc;
    if (comm != NULL && comm->host != 0)
        return follow_mpi(comm, params, err);
    if ((rc = listen_at(name, path, &fd, err)) != RS_OK) {
        if (comm != NULL) /* the others wait to be called, not for an orderly end */
            comm->failed = true;
        comm_close(comm);
        return rc;
    }
    rc = engine_open(params, name, fd, -1, comm, &e, err);
    if (rc == RS_OK) {
        if (ready_fd >= 0) {
            ssize_t n = write(ready_fd, "r", 1); /* if nobody reads it, nobody waits for it */
            (void)n;
            close(ready_fd);
        }
        engine_run(e);
        if (e->dead[0] != '\0')
            rc = error_set(err, RS_EENGINE, "%s", e->dead);
        engine_close(e);
    }
    unlink(path);
    close(fd);
    return rc;
}
