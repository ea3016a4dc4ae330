/* sig.h: signals as events, and a terminal that is always given back.
 *
 * sig_init() blocks SIGINT, SIGTERM, SIGHUP, SIGWINCH and SIGTSTP in the calling thread, and so in every thread made later: call it first.
 * They are then read from a descriptor that fits into poll(). SIGPIPE is ignored: a closed pipe is a write error. Static state: there is
 * one set of signals and one terminal. User-interface thread only. */
#ifndef RANKSCOPE_CONSOLE_SIG_H
#define RANKSCOPE_CONSOLE_SIG_H

#include <stdbool.h>

enum sig_bit {
    SIG_BIT_INT = 1,
    SIG_BIT_TERM = 2,
    SIG_BIT_HUP = 4,
    SIG_BIT_WINCH = 8,
    SIG_BIT_TSTP = 16,
};

/* false: the descriptor could not be made (errno). */
bool sig_init(void);
int sig_fd(void);

/* The signals that came since the last call, as a set of bits. */
unsigned sig_take(void);

/* Give the signals back to a child that is about to exec. */
void sig_child(void);

/* Remember how the terminal on fd is set now, and set it so again on every way out: exit(), a crash, or sig_restore_terminal(). */
void sig_keep_terminal(int fd);
void sig_restore_terminal(void);

/* What to write to the terminal before its settings go back, on every way out; copied (up to 255 bytes). NULL: nothing. */
void sig_keep_escape(const char *bytes);

/* Stop this process as Ctrl-Z does (restore the terminal first); returns when it is continued. */
void sig_stop(void);

/* End this process by that signal, after the terminal was restored, so that the parent sees what it was. Does not return. */
_Noreturn void sig_die(int signo);

#endif
