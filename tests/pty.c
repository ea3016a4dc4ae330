/* pty.c: run a program at a terminal of its own, as a person would: for tests of the console.
 *
 *   pty SCRIPT COMMAND [ARGS...]
 *
 * SCRIPT is a file with one step a line; \n, \r, \t, \e, \xHH work in TEXT:
 *   expect TEXT     wait until TEXT has come since the last step that matched, at most 30 s
 *   absent TEXT     fail if TEXT came since the last step that matched
 *   send TEXT       type
 *   resize WxH      change the size of the terminal
 *   kill SIGNAL     send a signal by number
 *   pause MS        let time pass (for what leaves no trace to wait for)
 *   echo on|off     fail unless the terminal echoes, or does not
 *   restored        fail unless the terminal is set as it was before the program ran
 *   run COMMAND     run a shell command, which must succeed
 *   hangup          close the terminal
 *   exit STATUS     wait for the end; STATUS is a number, or 128 + N for signal N
 *
 * Exit status 0 when every step went well; otherwise 1, with the step and what the terminal got last on stderr. All that the terminal got
 * goes to stdout. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define MAX_OUTPUT (4u << 20)
#define WAIT_MS 30000

static char s_output[MAX_OUTPUT];
static size_t s_len, s_from; /* what the next expect looks at begins at s_from */
static int s_master = -1;
static pid_t s_child;
static struct termios s_before;
static bool s_waited;
static int s_status;

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Take what the program wrote; false when nothing came in time or the terminal is closed. */
static bool take(int timeout_ms)
{
    struct pollfd p = {.fd = s_master, .events = POLLIN};
    if (s_master < 0 || poll(&p, 1, timeout_ms) <= 0)
        return false;
    ssize_t n = read(s_master, s_output + s_len, MAX_OUTPUT - 1 - s_len);
    if (n <= 0)
        return false;
    for (ssize_t i = 0; i < n; i++) /* a NUL would end the search */
        if (s_output[s_len + (size_t)i] == '\0')
            s_output[s_len + (size_t)i] = '?';
    s_len += (size_t)n;
    s_output[s_len] = '\0';
    return true;
}

static size_t unescape(char *s)
{
    char *to = s;
    for (const char *p = s; *p != '\0'; p++) {
        unsigned x;
        if (*p != '\\' || p[1] == '\0') {
            *to++ = *p;
        } else if (p[1] == 'x' && sscanf(p + 2, "%2x", &x) == 1) {
            *to++ = (char)x;
            p += 3;
        } else {
            p++;
            *to++ = *p == 'n' ? '\n' : *p == 'r' ? '\r' : *p == 't' ? '\t' : *p == 'e' ? '\033' : *p;
        }
    }
    *to = '\0';
    return (size_t)(to - s);
}

static bool expect(const char *text)
{
    long end = now_ms() + WAIT_MS;
    for (;;) {
        char *at = strstr(s_output + s_from, text);
        if (at != NULL) {
            s_from = (size_t)(at - s_output) + strlen(text);
            return true;
        }
        long left = end - now_ms();
        if (left <= 0 || !take((int)left))
            return strstr(s_output + s_from, text) != NULL;
    }
}

static bool await_exit(int want)
{
    long end = now_ms() + WAIT_MS;
    while (!s_waited && now_ms() < end) {
        while (take(0))
            ;
        int status;
        if (waitpid(s_child, &status, WNOHANG) == s_child) {
            s_waited = true;
            s_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        } else {
            poll(NULL, 0, 5);
        }
    }
    while (take(0))
        ;
    if (!s_waited || s_status != want)
        fprintf(stderr, "exit status %d\n", s_waited ? s_status : -1);
    return s_waited && s_status == want;
}

/* The settings of the terminal are seen from its other end as well. */
static bool restored(void)
{
    struct termios t;
    return tcgetattr(s_master, &t) == 0 && t.c_iflag == s_before.c_iflag && t.c_oflag == s_before.c_oflag &&
           t.c_cflag == s_before.c_cflag && t.c_lflag == s_before.c_lflag && memcmp(t.c_cc, s_before.c_cc, sizeof t.c_cc) == 0;
}

static bool echoes(const char *want)
{
    long end = now_ms() + WAIT_MS;
    struct termios t;
    do {
        if (tcgetattr(s_master, &t) == 0 && ((t.c_lflag & ECHO) != 0) == (strcmp(want, "on") == 0))
            return true;
        take(5);
    } while (now_ms() < end);
    return false;
}

static bool step(char *line)
{
    char name[16];
    int n = 0;
    if (sscanf(line, "%15s%n", name, &n) != 1)
        return true;
    char *rest = line + n + (line[n] == ' ');
    if (strcmp(name, "exit") == 0)
        return await_exit(atoi(rest));
    if (strcmp(name, "run") == 0)
        return system(rest) == 0;
    size_t len = unescape(rest);
    if (strcmp(name, "expect") == 0)
        return expect(rest);
    if (strcmp(name, "absent") == 0)
        return strstr(s_output + s_from, rest) == NULL;
    if (strcmp(name, "send") == 0)
        return write(s_master, rest, len) == (ssize_t)len;
    if (strcmp(name, "kill") == 0)
        return kill(s_child, atoi(rest)) == 0;
    if (strcmp(name, "echo") == 0)
        return echoes(rest);
    if (strcmp(name, "restored") == 0)
        return restored();
    if (strcmp(name, "hangup") == 0) {
        close(s_master);
        s_master = -1;
        return true;
    }
    if (strcmp(name, "pause") == 0) {
        for (long end = now_ms() + atol(rest), left; (left = end - now_ms()) > 0;)
            take((int)left);
        return true;
    }
    unsigned w, h;
    if (strcmp(name, "resize") == 0 && sscanf(rest, "%ux%u", &w, &h) == 2) {
        struct winsize ws = {.ws_row = (unsigned short)h, .ws_col = (unsigned short)w};
        return ioctl(s_master, TIOCSWINSZ, &ws) == 0;
    }
    fprintf(stderr, "unknown step\n");
    return false;
}

static void start(char **argv)
{
    struct winsize ws = {.ws_row = 24, .ws_col = 80};
    s_child = forkpty(&s_master, NULL, NULL, &ws);
    if (s_child < 0) {
        perror("forkpty");
        exit(1);
    }
    if (s_child == 0) {
        /* The parent reads the settings before the program can change them. */
        raise(SIGSTOP);
        execvp(argv[0], argv);
        perror(argv[0]);
        _exit(127);
    }
    int status;
    waitpid(s_child, &status, WUNTRACED);
    tcgetattr(s_master, &s_before);
    kill(s_child, SIGCONT);
}

int main(int argc, char **argv)
{
    FILE *f = argc > 2 ? fopen(argv[1], "r") : NULL;
    if (f == NULL) {
        fprintf(stderr, "usage: pty SCRIPT COMMAND [ARGS...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    start(argv + 2);
    char *line = NULL;
    size_t cap = 0;
    bool good = true;
    for (ssize_t n; good && (n = getline(&line, &cap, f)) > 0;) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        char *copy = strdup(line);
        good = step(line);
        if (!good)
            fprintf(stderr, "failed: %s\nterminal since the last match:\n%s\n", copy, s_output + s_from);
        free(copy);
    }
    free(line);
    fclose(f);
    if (!s_waited) {
        kill(s_child, SIGKILL);
        waitpid(s_child, NULL, 0);
    }
    fwrite(s_output, 1, s_len, stdout);
    return !good;
}
