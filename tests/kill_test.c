/* Clients and engines killed at random moments of an answer, and engines that are asked to end. Nothing of a conversation may be lost, nothing may
 * stay behind: no socket that cannot be used again, no shared memory, no descriptors. 20 rounds each; RANKSCOPE_LONG makes it 100. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/now.h"
#include "tests/engine_client.h"
#include "tests/tap.h"

#define NAME "killed"
#define PROMPT                                                                                                                                  \
    "\"segments\":[{\"text\":\"[gMASK]<sop><|user|>\",\"special\":true},{\"text\":\"Tell me a story about a cat.\"},"                           \
    "{\"text\":\"<|assistant|></think>\",\"special\":true}],\"max_tokens\":150,\"ignore_eos\":true"

static char *s_want;         /* what the answer must be: greedy, invariant, so the same every time */
static double s_answer_us;   /* how long it takes */

static unsigned below(unsigned n)
{
    unsigned x;
    return n != 0 && getrandom(&x, sizeof x, 0) == (ssize_t)sizeof x ? x % n : 0;
}

static void sleep_us(unsigned us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

/* Entries of a folder whose name contains `part`. */
static int count_entries(const char *path, const char *part)
{
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *f; d != NULL && (f = readdir(d)) != NULL;)
        n += f->d_name[0] != '.' && strstr(f->d_name, part) != NULL;
    if (d != NULL)
        closedir(d);
    return n;
}

static int fds_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    return count_entries(path, "");
}

static int sockets(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rankscope", getenv("XDG_RUNTIME_DIR"));
    return count_entries(path, "");
}

/* An engine process; returns when clients can connect. -1: it did not start. */
static pid_t start_engine(void)
{
    char prog[4096], ready[16], byte;
    int fd[2];
    const char *build = getenv("abs_builddir");
    snprintf(prog, sizeof prog, "%s/rankscope", build != NULL ? build : ".");
    if (pipe(fd) != 0)
        return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* no test leaves an engine behind */
        snprintf(ready, sizeof ready, "%d", fd[1]);
        close(fd[0]);
        execl(prog, "rankscope", "engine", "--name", NAME, "--workers", "1", "--ready-fd", ready, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    bool up = pid > 0 && read(fd[0], &byte, 1) == 1;
    close(fd[0]);
    return up ? pid : -1;
}

static struct rs_engine *reach(void)
{
    struct rs_engine *e;
    struct rs_error err;
    if (rs_engine_connect(NAME, &e, &err) != RS_OK) {
        tap_diag("connect: %s", err.msg);
        return NULL;
    }
    json_decref(ec_call(e, "hello", "{\"protocol\":%d,\"client\":\"test\",\"control\":true}", RS_PROTOCOL));
    return e;
}

static void open_model(struct rs_engine *e)
{
    json_decref(ec_call(e, "open", "{\"path\":\"%s\"}", tap_source("models/tiny-glm5-q4.gguf")));
}

static uint32_t number(json_t *reply, const char *key)
{
    uint32_t n = (uint32_t)json_integer_value(json_object_get(reply, key));
    json_decref(reply);
    return n;
}

/* The text of a stream from `text` on, whose beginning the caller has; NULL when it does not end. Caller frees. */
static char *follow(struct rs_engine *e, uint32_t stream, const char *begin)
{
    size_t n = strlen(begin);
    char *text = malloc(n + 65536);
    memcpy(text, begin, n);
    for (;;) {
        struct rs_event ev;
        struct rs_error err;
        if (rs_next(e, 60000, &ev, &err) != RS_OK || ev.type == RS_EVENT_LOST) {
            free(text);
            return NULL;
        }
        if (ev.type == RS_EVENT_TOKEN && ev.id == stream && n + ev.text_len < 65536) {
            memcpy(text + n, ev.text, ev.text_len);
            n += ev.text_len;
        }
        if (ev.type == RS_EVENT_DONE && ev.id == stream)
            break;
    }
    text[n] = '\0';
    return text;
}

static char *answer(struct rs_engine *e)
{
    uint32_t stream = number(ec_call(e, "submit", "{" PROMPT "}"), "stream");
    return follow(e, stream, "");
}

/* ---- clients --------------------------------------------------------------------------------------------------------------------------- */

/* The client that will be killed: it asks, says so, and reads what comes. */
static _Noreturn void doomed_client(int said)
{
    struct rs_engine *e = reach();
    struct rs_event ev;
    if (e == NULL)
        _exit(1);
    uint32_t session = number(ec_call(e, "session.new", "{\"data\":{\"asked\":\"a story\"}}"), "session");
    ec_call(e, "submit", "{\"session\":%u," PROMPT "}", session);
    if (write(said, &session, sizeof session) != (ssize_t)sizeof session)
        _exit(1);
    while (rs_next(e, 60000, &ev, NULL) == RS_OK && ev.type != RS_EVENT_LOST)
        ;
    _exit(1);
}

/* One round; true when the conversation is all there afterwards. */
static bool kill_client(unsigned us)
{
    uint32_t session = 0;
    int fd[2], status;
    if (pipe(fd) != 0)
        return false;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        doomed_client(fd[1]);
    close(fd[1]);
    bool ok = read(fd[0], &session, sizeof session) == (ssize_t)sizeof session;
    close(fd[0]);
    sleep_us(us);
    kill(pid, SIGKILL);
    ok = waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && ok;
    struct rs_engine *e = ok ? reach() : NULL;
    if (e == NULL)
        return false;
    json_t *s = ec_call(e, "session.get", "{\"session\":%u}", session);
    const char *asked = json_string_value(json_object_get(json_object_get(s, "data"), "asked"));
    uint32_t stream = (uint32_t)json_integer_value(json_object_get(s, "stream"));
    ok = asked != NULL && strcmp(asked, "a story") == 0 && stream != 0;
    json_decref(s);
    if (ok) {
        json_t *got = ec_call(e, "stream.get", "{\"stream\":%u,\"follow\":true}", stream);
        const char *begin = json_string_value(json_object_get(got, "text"));
        char *text = json_is_object(json_object_get(got, "done")) ? strdup(begin) : follow(e, stream, begin);
        ok = text != NULL && strcmp(text, s_want) == 0;
        if (!ok)
            tap_diag("after %u us: %s", us, text != NULL ? text : "the stream does not end");
        free(text);
        json_decref(got);
    }
    json_decref(ec_call(e, "session.drop", "{\"session\":%u}", session));
    rs_engine_close(e);
    return ok;
}

static void clients(int rounds)
{
    int bad = 0, fds = 0;
    pid_t pid = start_engine();
    struct rs_engine *e = pid > 0 ? reach() : NULL;
    if (!tap_ok(e != NULL, "an engine runs"))
        return;
    open_model(e);
    s_want = answer(e);
    uint64_t t0 = now_us();
    char *again = answer(e);
    s_answer_us = (double)(now_us() - t0);
    tap_ok(s_want != NULL && strlen(s_want) > 300, "the answer is long");
    tap_eq_str(again, s_want, "and the same every time");
    free(again);
    rs_engine_close(e);
    for (int i = 0; i < rounds; i++) {
        bad += !kill_client(below((unsigned)s_answer_us));
        if (i == 0)
            fds = fds_of(pid);
    }
    tap_eq_int(bad, 0, "%d clients killed mid-answer: another one gets all of it", rounds);
    for (int i = 0; i < 6000 && fds_of(pid) > fds; i++) /* it closes them when it hears of the end */
        sleep_us(10000);
    tap_ok(fds > 0 && fds_of(pid) <= fds, "the engine holds no more descriptors than after the first (%d, %d)", fds, fds_of(pid));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- engines --------------------------------------------------------------------------------------------------------------------------- */

/* Does the client hear that the engine is gone? Once as an event, and then from every call. */
static bool hears_of_it(struct rs_engine *e)
{
    struct rs_event ev = {.type = RS_EVENT_LOG};
    struct rs_error err;
    enum rs_result rc = RS_OK;
    while (rc == RS_OK && ev.type != RS_EVENT_LOST)
        rc = rs_next(e, 60000, &ev, &err);
    return rc == RS_OK && ev.status == RS_EENGINE && rs_request(e, "ping", NULL, 1000, NULL, &err) == RS_EENGINE && rs_next(e, 0, &ev, &err) == RS_EENGINE;
}

static bool kill_engine(unsigned us)
{
    pid_t pid = start_engine();
    struct rs_engine *e = pid > 0 ? reach() : NULL;
    if (e == NULL)
        return false;
    open_model(e);
    json_decref(ec_call(e, "submit", "{" PROMPT "}"));
    sleep_us(us);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    bool ok = hears_of_it(e);
    rs_engine_close(e);
    return ok;
}

/* The engine is killed while a request waits for its reply. */
static void kill_loading(void)
{
    struct rs_error err = {.msg = ""};
    char args[4096];
    pid_t pid = start_engine();
    struct rs_engine *e = pid > 0 ? reach() : NULL;
    if (!tap_ok(e != NULL, "an engine to be killed while it loads"))
        return;
    fflush(stdout);
    pid_t killer = fork();
    if (killer == 0) {
        sleep_us(2000);
        kill(pid, SIGKILL);
        _exit(0);
    }
    enum rs_result rc = RS_OK;
    snprintf(args, sizeof args, "{\"path\":\"%s\"}", tap_source("models/tiny-glm5-q4.gguf"));
    while (rc == RS_OK)
        rc = rs_request(e, "open", args, 10000, NULL, &err);
    tap_ok(rc == RS_EENGINE, "the request ends with an error: %s", err.msg);
    waitpid(killer, NULL, 0);
    waitpid(pid, NULL, 0);
    rs_engine_close(e);
}

static void engines(int rounds)
{
    int bad = 0, fds = fds_of(getpid()), maps;
    for (int i = 0; i < rounds; i++)
        bad += !kill_engine(below((unsigned)s_answer_us));
    tap_eq_int(bad, 0, "%d engines killed mid-answer: the client hears of it and the name can be used again", rounds);
    kill_loading();
    pid_t pid = start_engine();
    struct rs_engine *e = pid > 0 ? reach() : NULL;
    if (!tap_ok(e != NULL, "another engine takes the place"))
        return;
    open_model(e);
    char *text = answer(e);
    tap_eq_str(text, s_want, "the conversation, asked again, is the same");
    free(text);
    rs_engine_close(e);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    for (maps = 0; f != NULL && fgets(line, sizeof line, f) != NULL;)
        maps += strstr(line, "memfd:rankscope") != NULL;
    if (f != NULL)
        fclose(f);
    tap_eq_int(maps, 0, "no snapshot page of a dead engine is mapped");
    tap_eq_int(fds_of(getpid()), fds, "no descriptor of a dead engine is open");
}

/* ---- asking an engine to end ------------------------------------------------------------------------------------------------------------ */

/* Wait up to a minute for a process to end by itself; its status, or -1. */
static int ended(pid_t pid)
{
    int status;
    for (int i = 0; i < 6000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        sleep_us(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return -1;
}

static void asked(int sig, bool busy)
{
    const char *name = sig == SIGTERM ? "SIGTERM" : "SIGINT";
    int status = -1;
    pid_t pid = start_engine();
    struct rs_engine *e = pid > 0 ? reach() : NULL; /* in control: the signal must not need that */
    if (!tap_ok(e != NULL, "%s: an engine runs", name))
        return;
    open_model(e);
    if (busy)
        json_decref(ec_call(e, "submit", "{" PROMPT ",\"max_tokens\":1500}"));
    kill(pid, SIGHUP);
    json_decref(ec_call(e, "ping", "{}"));
    tap_ok(waitpid(pid, &status, WNOHANG) == 0, "SIGHUP does not end an engine");
    kill(pid, sig);
    tap_ok(hears_of_it(e), "%s%s: the client hears of it", name, busy ? " mid-answer" : "");
    status = ended(pid);
    tap_ok(status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s%s: the engine ends with status 0", name, busy ? " mid-answer" : "");
    tap_eq_int(sockets(), 0, "%s: its socket is gone", name);
    rs_engine_close(e);
}

/* A logout removes the user's runtime folder: nobody reaches the engine then, and a signal must still end it. */
static void unreachable(void)
{
    char dir[3000], aside[3100];
    pid_t pid = start_engine();
    snprintf(dir, sizeof dir, "%s/rankscope", getenv("XDG_RUNTIME_DIR"));
    snprintf(aside, sizeof aside, "%s.aside", dir);
    const bool moved = pid > 0 && rename(dir, aside) == 0 && kill(pid, SIGTERM) == 0;
    const int status = moved ? ended(pid) : -1;
    tap_ok(status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "SIGTERM ends an engine whose socket is gone");
    rename(aside, dir);
    char *list = NULL;
    tap_ok(rs_engine_list(&list, NULL) == RS_OK && sockets() == 0, "and listing removes what it left");
    free(list);
}

/* A socket's address holds 107 bytes: engines in a deeper folder must be reached all the same, and only those of that folder. */
static void deep(void)
{
    char *base = strdup(getenv("XDG_RUNTIME_DIR")), path[3000];
    size_t n = (size_t)snprintf(path, sizeof path, "%s", base);
    for (int i = 0; i < 4; i++) {
        n += (size_t)snprintf(path + n, sizeof path - n, "/%s", "a-folder-with-a-name-of-forty-characters");
        mkdir(path, 0700);
    }
    pid_t near = start_engine();
    setenv("XDG_RUNTIME_DIR", path, 1);
    struct rs_error err;
    char *list = NULL;
    tap_ok(rs_engine_list(&list, &err) == RS_OK && strcmp(list, "[]") == 0, "a deep folder: engines of another one are not listed");
    free(list);
    list = NULL;
    pid_t pid = start_engine();
    int fds = fds_of(getpid());
    struct rs_engine *e = near > 0 && pid > 0 ? reach() : NULL;
    tap_ok(e != NULL, "an engine there is reached");
    tap_ok(rs_engine_list(&list, &err) == RS_OK && strstr(list, path) != NULL && strstr(list, NAME) != NULL, "and listed");
    rs_engine_close(e);
    tap_eq_int(fds_of(getpid()), fds, "no descriptor is left");
    free(list);
    bool end = near > 0 && kill(near, SIGTERM) == 0 && ended(near) >= 0;
    end = pid > 0 && kill(pid, SIGTERM) == 0 && ended(pid) >= 0 && end;
    tap_ok(end, "both end");
    tap_eq_int(sockets(), 0, "the socket there is gone");
    setenv("XDG_RUNTIME_DIR", base, 1);
    free(base);
}

int main(void)
{
    int rounds = getenv("RANKSCOPE_LONG") != NULL ? 100 : 20, shm = count_entries("/dev/shm", "rankscope");
    struct rs_error err;
    char *list;
    signal(SIGPIPE, SIG_DFL); /* as in any program: the library must not depend on it being ignored */
    clients(rounds);
    if (s_want == NULL)
        return tap_done();
    engines(rounds);
    tap_ok(rs_engine_list(&list, &err) == RS_OK && strcmp(list, "[]") == 0, "no engine is listed");
    free(list);
    tap_eq_int(sockets(), 0, "listing removed the dead socket");
    asked(SIGTERM, true);
    asked(SIGTERM, false);
    unreachable();
    asked(SIGINT, true);
    deep();
    tap_eq_int(count_entries("/dev/shm", "rankscope"), shm, "no shared memory is left");
    free(s_want);
    return tap_done();
}
