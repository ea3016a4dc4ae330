#include "config.h"

#include "console/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/sig.h"

#define MAX_NAMES 100
#define STOP_MS 10000
#define MAX_ARGS 64
#define STOP_STEP_MS 5

bool daemon_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < DAEMON_NAME_MAX && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}

enum rs_result daemon_list(json_t **list, struct rs_error *err)
{
    char *text;
    enum rs_result r = rs_engine_list(&text, err);
    if (r != RS_OK)
        return r;
    *list = js_parse(text);
    free(text);
    if (json_is_array(*list))
        return RS_OK;
    json_decref(*list);
    return fail_set(err, RS_EINTERNAL, "the list of engines is no list");
}

/* The smallest number that no engine has as its name. */
static enum rs_result free_name(char name[DAEMON_NAME_MAX], struct rs_error *err)
{
    json_t *list;
    enum rs_result r = daemon_list(&list, err);
    if (r != RS_OK)
        return r;
    for (int n = 0; n < MAX_NAMES; n++) {
        bool taken = false;
        snprintf(name, DAEMON_NAME_MAX, "%d", n);
        for (size_t i = 0; i < json_array_size(list); i++)
            taken = taken || strcmp(js_str(json_array_get(list, i), "name", ""), name) == 0;
        if (!taken) {
            json_decref(list);
            return RS_OK;
        }
    }
    json_decref(list);
    return fail_set(err, RS_ESTATE, "%d engines are running already; stop some with rankscope stop NAME", MAX_NAMES);
}

/* In the grandchild: become the engine. Only async-signal-safe calls and those that are safe in a process of one thread: the console has
 * no other thread while it starts an engine. */
static _Noreturn void become_engine(const char *const argv[], int log, bool job)
{
    char self[4096];
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(log >= 0 ? log : null, STDERR_FILENO);
    }
    if (job) {
        execvp(argv[0], (char *const *)argv);
        fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    /* By its real path, so that process lists show a name; if that is gone (an update), what runs now is still to be had. */
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = '\0';
        execv(self, (char *const *)argv);
    }
    execv("/proc/self/exe", (char *const *)argv);
    fprintf(stderr, "rankscope engine: cannot run the program: %s\n", strerror(errno));
    _exit(127);
}

/* Two forks: the engine becomes a child of init at once, so that nobody has to wait for it. It writes a byte to ready when it is up. */
static enum rs_result launch(const char *const argv[], int log, int ready, bool job, struct rs_error *err)
{
    pid_t pid = fork();
    if (pid < 0)
        return fail_set(err, RS_EIO, "cannot start the engine: %s", strerror(errno));
    if (pid == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        sig_child();
        if (fcntl(ready, F_SETFD, 0) != 0)
            _exit(127);
        become_engine(argv, log, job);
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return RS_OK;
}

/* The last line of a log, for a message; caller frees. */
static char *last_line(const char *path)
{
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    char *line = NULL, *last = xstrdup("it says nothing");
    size_t cap = 0;
    for (ssize_t n; f != NULL && (n = getline(&line, &cap, f)) > 0;) {
        if (line[n - 1] == '\n')
            line[--n] = '\0';
        if (n == 0)
            continue;
        free(last);
        last = text_one_line(line);
    }
    free(line);
    if (f != NULL)
        fclose(f);
    return last;
}

/* Wait for the byte that says that the engine is up. fifo: where it comes, and fd only closes when the launcher ends; -1: it comes from fd. */
static enum rs_result wait_ready(struct con *con, int fd, int fifo, const char *log, struct rs_error *err)
{
    for (;;) {
        struct pollfd p[3] = {{.fd = fd, .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}, {.fd = fifo, .events = POLLIN}};
        char up;
        if (poll(p, 3, -1) < 0)
            continue;
        if (fifo >= 0 && (p[2].revents & POLLIN) && read(fifo, &up, 1) == 1)
            return RS_OK;
        /* con has no engine yet, so this looks at the signals alone. */
        if (p[1].revents != 0 && con->wait(con, con->wait_ctx, 0) & (CON_WAKE_INTERRUPT | CON_WAKE_END))
            return fail_set(err, RS_ECANCELLED, "interrupted");
        if (p[0].revents == 0) {
            if (p[2].revents != 0) /* a process opened it and ended; its launcher follows */
                poll(NULL, 0, STOP_STEP_MS);
            continue;
        }
        char byte;
        if (read(fd, &byte, 1) == 1)
            return RS_OK;
        char *why = last_line(log);
        fail_set(err, RS_EENGINE, "the engine did not start: %s", why);
        free(why);
        return RS_EENGINE;
    }
}

bool daemon_is_job(const char *launch)
{
    return launch != NULL && strstr(launch, "{host}") == NULL;
}

/* The arguments of `rankscope engine`; the numbers are written into the buffers. ready: a descriptor, or the path of a FIFO for a job. */
static void make_args(const struct rs_local_params *params, const char *name, const char *ready, char numbers[2][16], const char *argv[MAX_ARGS])
{
    const bool job = params != NULL && daemon_is_job(params->launch);
    size_t n = 0;
    argv[n++] = "rankscope";
    argv[n++] = "engine";
    argv[n++] = "--name";
    argv[n++] = name;
    argv[n++] = job ? "--ready-file" : "--ready-fd";
    argv[n++] = ready;
    if (params != NULL && params->workers > 0) {
        snprintf(numbers[0], 16, "%u", params->workers);
        argv[n++] = "--workers";
        argv[n++] = numbers[0];
    }
    if (params != NULL && params->isa != NULL) {
        argv[n++] = "--isa";
        argv[n++] = params->isa;
    }
    if (params != NULL && params->hosts != NULL && !job) {
        argv[n++] = "--hosts";
        argv[n++] = params->hosts;
    }
    if (params != NULL && params->launch != NULL && !job) {
        argv[n++] = "--launch";
        argv[n++] = params->launch;
    }
    if (params != NULL && params->host_timeout > 0) {
        snprintf(numbers[1], 16, "%u", params->host_timeout);
        argv[n++] = "--host-timeout";
        argv[n++] = numbers[1];
    }
    if (job)
        argv[n++] = "--mpi";
    argv[n] = NULL;
}

/* The words of a launcher, with the command in place of {command} or at the end. words, a copy of the launcher's, is cut up,
 * and argv points into it. */
static bool make_job(char *words, const char *self, const char *const args[], const char *argv[MAX_ARGS])
{
    size_t n = 0;
    bool placed = false;
    for (char *save, *word = strtok_r(words, " \t", &save); word != NULL || !placed; word = word != NULL ? strtok_r(NULL, " \t", &save) : NULL) {
        if (word != NULL && strcmp(word, "{command}") != 0) {
            if (n + 1 >= MAX_ARGS)
                return false;
            argv[n++] = word;
            continue;
        }
        for (size_t i = 0; args[i] != NULL; i++) {
            if (n + 1 >= MAX_ARGS)
                return false;
            argv[n++] = i == 0 ? self : args[i];
        }
        placed = true;
        if (word == NULL)
            break;
    }
    argv[n] = NULL;
    return n > 0;
}

/* Start what argv says and wait until the engine is up. */
static enum rs_result start(struct con *con, const char *const argv[], int log, const char *log_path, int pipe_fd[2], int fifo, bool job, struct rs_error *err)
{
    fflush(NULL);
    enum rs_result r = launch(argv, log, pipe_fd[1], job, err);
    close(pipe_fd[1]);
    if (r == RS_OK)
        r = wait_ready(con, pipe_fd[0], fifo, log_path, err);
    close(pipe_fd[0]);
    return r;
}

/* An MPI launcher and, through it, all engine processes; the first of them is the engine. */
static enum rs_result start_job(struct con *con, const struct rs_local_params *params, const char *name, int log, const char *log_path, int pipe_fd[2],
                                struct rs_error *err)
{
    char file[DAEMON_NAME_MAX + 16], numbers[2][16], self[4096];
    const char *args[MAX_ARGS], *argv[MAX_ARGS];
    char *words = xstrdup(params->launch);
    enum rs_result r;
    snprintf(file, sizeof file, "engine-%s.up", name);
    char *path = paths_state(file);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    if (path != NULL)
        unlink(path);
    int fifo = path != NULL && mkfifo(path, 0600) == 0 ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (n > 0 && fifo >= 0)
        make_args(params, name, path, numbers, args);
    if (n <= 0 || fifo < 0)
        r = fail_set(err, RS_EIO, "cannot start the engine: %s", strerror(errno));
    else if (!make_job(words, self, args, argv))
        r = fail_set(err, RS_EUSAGE, "--launch %s: too many words", params->launch);
    else
        r = RS_OK;
    if (r == RS_OK) {
        r = start(con, argv, log, log_path, pipe_fd, fifo, true, err);
    } else {
        close(pipe_fd[0]);
        close(pipe_fd[1]);
    }
    if (fifo >= 0)
        close(fifo);
    if (path != NULL)
        unlink(path);
    free(words);
    free(path);
    return r;
}

enum rs_result daemon_start(struct con *con, const struct rs_local_params *params, char name[DAEMON_NAME_MAX], struct rs_error *err)
{
    char ready[16], numbers[2][16], file[DAEMON_NAME_MAX + 16];
    const char *argv[MAX_ARGS];
    int pipe_fd[2];
    enum rs_result r = free_name(name, err);
    if (r != RS_OK)
        return r;
    snprintf(file, sizeof file, "engine-%s.log", name);
    char *log_path = paths_state(file);
    int log = log_path != NULL ? open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (pipe2(pipe_fd, O_CLOEXEC) != 0) {
        r = fail_set(err, RS_EIO, "cannot start the engine: %s", strerror(errno));
    } else if (params != NULL && daemon_is_job(params->launch)) {
        r = start_job(con, params, name, log, log_path, pipe_fd, err);
    } else {
        snprintf(ready, sizeof ready, "%d", pipe_fd[1]);
        make_args(params, name, ready, numbers, argv);
        r = start(con, argv, log, log_path, pipe_fd, -1, false, err);
    }
    if (log >= 0)
        close(log);
    free(log_path);
    return r == RS_OK ? daemon_connect(con, name, NULL, err) : r;
}

enum rs_result daemon_connect(struct con *con, const char *name, bool *in_control, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = rs_engine_connect(name, &con->engine, err);
    if (r != RS_OK)
        return r;
    con->lost = false;
    r = con_hello(con, &reply, err);
    if (r != RS_OK)
        return r;
    con->remote = true;
    free(con->engine_name);
    con->engine_name = xstrdup(js_str(reply, "name", name != NULL ? name : "?"));
    if (in_control != NULL)
        *in_control = js_bool(reply, "in_control", true);
    json_decref(reply);
    return RS_OK;
}

static bool listed(const char *name)
{
    json_t *list;
    bool found = false;
    if (daemon_list(&list, NULL) != RS_OK)
        return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        found = found || strcmp(js_str(json_array_get(list, i), "name", ""), name) == 0;
    json_decref(list);
    return found;
}

enum rs_result daemon_stop(struct con *con, struct rs_error *err)
{
    struct rs_event ev;
    enum rs_result r = con_request(con, "stop", NULL, NULL, err);
    if (r != RS_OK)
        return r;
    /* The reply comes before the end: first the connection closes, then the name is given up. */
    while (rs_next(con->engine, STOP_MS, &ev, NULL) == RS_OK)
        ;
    con->lost = true;
    for (int ms = 0; ms < STOP_MS && listed(con->engine_name); ms += STOP_STEP_MS)
        poll(NULL, 0, STOP_STEP_MS);
    return RS_OK;
}
