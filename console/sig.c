#include "config.h"

#include "console/sig.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

static int s_fd = -1;
static int s_terminal = -1;
static bool s_paste; /* the terminal knows bracketed paste */
static struct termios s_kept;
static char s_escape[256]; /* leaves a full-screen display; empty: there is none */

static void our_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGWINCH);
    sigaddset(set, SIGTSTP);
}

bool sig_init(void)
{
    sigset_t set;
    our_set(&set);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is an error of write(), not the end of the program */
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return false;
    s_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return s_fd >= 0;
}

int sig_fd(void)
{
    return s_fd;
}

unsigned sig_take(void)
{
    struct signalfd_siginfo info;
    unsigned bits = 0;
    while (read(s_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        switch (info.ssi_signo) {
        case SIGINT: bits |= SIG_BIT_INT; break;
        case SIGTERM: bits |= SIG_BIT_TERM; break;
        case SIGHUP: bits |= SIG_BIT_HUP; break;
        case SIGWINCH: bits |= SIG_BIT_WINCH; break;
        case SIGTSTP: bits |= SIG_BIT_TSTP; break;
        default: break;
        }
    }
    return bits;
}

void sig_child(void)
{
    sigset_t set;
    our_set(&set);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Async-signal-safe: tcsetattr() and write() are. The sequence ends bracketed paste, which readline switches on. */
void sig_restore_terminal(void)
{
    if (s_terminal < 0)
        return;
    static const char paste_off[] = "\033[?2004l";
    if (s_paste) {
        ssize_t unused = write(s_terminal, paste_off, sizeof paste_off - 1);
        (void)unused;
    }
    if (s_escape[0] != '\0') {
        ssize_t unused = write(s_terminal, s_escape, strlen(s_escape));
        (void)unused;
    }
    tcsetattr(s_terminal, TCSANOW, &s_kept);
    s_terminal = -1;
}

void sig_keep_escape(const char *bytes)
{
    size_t n = bytes != NULL ? strlen(bytes) : 0;
    n = n < sizeof s_escape ? n : sizeof s_escape - 1;
    s_escape[0] = '\0'; /* a crash in between must not see half of it */
    if (n > 0)
        memcpy(s_escape + 1, bytes + 1, n - 1);
    s_escape[n] = '\0';
    if (n > 0)
        s_escape[0] = bytes[0];
}

static void crashed(int signo)
{
    sig_restore_terminal();
    signal(signo, SIG_DFL);
    raise(signo);
}

void sig_keep_terminal(int fd)
{
    static bool s_registered;
    if (tcgetattr(fd, &s_kept) != 0)
        return;
    const char *term = getenv("TERM");
    s_paste = term != NULL && *term != '\0' && strcmp(term, "dumb") != 0;
    s_terminal = fd;
    if (s_registered)
        return;
    s_registered = true;
    atexit(sig_restore_terminal);
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGQUIT};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) {
        struct sigaction old;
        /* A sanitizer that is already there keeps its handler: its report is worth more than the terminal. */
        if (sigaction(crashes[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL && !(old.sa_flags & SA_SIGINFO))
            signal(crashes[i], crashed);
    }
}

void sig_stop(void)
{
    /* SIGSTOP, because SIGTSTP is blocked and stays so; the shell sees a stopped job either way. */
    kill(getpid(), SIGSTOP);
}

_Noreturn void sig_die(int signo)
{
    sigset_t set;
    sig_restore_terminal();
    signal(signo, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, signo);
    raise(signo);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    _exit(128 + signo);
}
