#include "config.h"

#include "console/repl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/chat.h"
#include "console/js.h"
#include "console/line.h"
#include "console/rcmd.h"
#include "console/sig.h"
#include "console/tui.h"

#define PROMPT "> "
#define MAX_LINE (1u << 20) /* bytes of one line in batch mode */

/* ---- at a terminal ------------------------------------------------------------------------------------------------------------------- */

struct repl {
    struct out out; /* stands in front of the session's own: takes the prompt away before something is printed over it */
    struct out *inner;
    bool input;  /* standard input has something */
    bool toggle; /* panels are wanted */
};

static void repl_write(struct out *o, enum out_role role, const char *text, size_t len)
{
    struct repl *r = (struct repl *)o;
    line_hide();
    r->inner->write(r->inner, role, text, len);
}

static void repl_progress(struct out *o, const char *text)
{
    struct repl *r = (struct repl *)o;
    if (!line_active())
        r->inner->progress(r->inner, text);
}

static size_t repl_columns(struct out *o)
{
    return out_columns(((struct repl *)o)->inner);
}

/* What signals mean here. Ctrl-C is handed up; what concerns only the terminal is done at once. */
static unsigned take_signals(struct con *con)
{
    unsigned bits = sig_take(), wake = 0;
    if (bits & SIG_BIT_WINCH)
        line_resize();
    if (bits & SIG_BIT_TSTP) {
        line_suspend();
        sig_stop();
        line_resume();
    }
    if (bits & SIG_BIT_INT)
        wake |= CON_WAKE_INTERRUPT;
    if (bits & (SIG_BIT_TERM | SIG_BIT_HUP)) {
        con->end_signal = bits & SIG_BIT_TERM ? SIGTERM : SIGHUP;
        wake |= CON_WAKE_END;
    }
    return wake;
}

/* Keys while a command runs: only those that lead to the panels mean something now, the others wait for the prompt. */
static unsigned take_keys(struct con *con)
{
    enum line_status s = line_watch();
    if (s == LINE_TOGGLE)
        tui_switch(con->tui, true);
    if (s == LINE_EOF)
        con->end_signal = SIGHUP;
    return s == LINE_EOF ? CON_WAKE_END : 0;
}

/* con_wait_fn: as con_wait_plain(), and standard input. */
static unsigned repl_wait(struct con *con, void *ctx, int timeout_ms)
{
    struct repl *r = ctx;
    bool watch = !line_active() && con->tui != NULL, kept = line_active() && line_has_kept();
    struct pollfd p[3] = {
        {.fd = sig_fd(), .events = POLLIN},
        {.fd = -1},
        {.fd = STDIN_FILENO, .events = line_active() || watch ? POLLIN : 0},
    };
    con_poll(con, p, 3, 1, kept ? 0 : timeout_ms);
    unsigned wake = 0;
    r->input = kept || (!watch && p[2].revents & POLLIN);
    if (p[1].revents != 0)
        wake |= CON_WAKE_ENGINE;
    if (p[0].revents != 0)
        wake |= take_signals(con);
    if (watch && p[2].revents & POLLIN) {
        wake |= take_keys(con);
    } else if (p[2].revents & (POLLHUP | POLLERR | POLLNVAL) && !r->input) {
        /* The terminal is gone; SIGHUP does not come to everyone. */
        con->end_signal = SIGHUP;
        wake |= CON_WAKE_END;
    }
    return wake;
}

/* One turn of the loop: false when it is over. */
static bool turn(struct con *con, struct repl *r)
{
    chat_catch_up(con);
    line_prompt(PROMPT);
    unsigned wake = con_pump(con, -1);
    if (wake & CON_WAKE_END)
        return false;
    if (wake & CON_WAKE_INTERRUPT) {
        line_clear();
        chat_interrupted(con);
    }
    line_show();
    if (!r->input)
        return true;
    r->input = false;
    enum line_status s = line_feed();
    if (s == LINE_TOGGLE) {
        line_aside();
        r->toggle = true;
    }
    if (s == LINE_EOF || s == LINE_TOGGLE)
        return false;
    if (s == LINE_MORE)
        return true;
    char *line = line_take();
    if (con->tui != NULL)
        tui_typed(con->tui, line);
    rcmd_line(con, line);
    free(line);
    if (con->tui != NULL && tui_took_over(con->tui)) {
        r->toggle = true;
        return false;
    }
    return !con->quit && con->end_signal == 0;
}

static void begin(struct con *con, struct repl *r)
{
    *r = (struct repl){.out = {.write = repl_write, .progress = repl_progress, .terminal = true, .columns = repl_columns}, .inner = con->out};
    con->out = &r->out;
    con->wait = repl_wait;
    con->wait_ctx = r;
    con->patient = true;
    con->answer.show = con->answer.show_thinking = true;
}

static void end(struct con *con, struct repl *r)
{
    con->out = r->inner;
    con->wait = con_wait_plain;
    con->wait_ctx = NULL;
}

void repl_during(struct con *con)
{
    static struct repl s_during; /* no prompt stands, so there is nothing to take away or to feed */
    con->wait = repl_wait;
    con->wait_ctx = &s_during;
}

void repl_attach(struct con *con, json_int_t session)
{
    struct repl r;
    struct rs_error err = {0};
    begin(con, &r);
    if (chat_attach(con, session, &err) != RS_OK)
        out_error(con->out, "%s", err.msg);
    end(con, &r);
}

bool repl_run(struct con *con)
{
    struct repl r;
    begin(con, &r);
    while (con->end_signal == 0 && turn(con, &r))
        ;
    end(con, &r);
    return r.toggle;
}

/* ---- from a pipe --------------------------------------------------------------------------------------------------------------------- */

/* Wait for input or a signal; false when a signal says to stop. Events of the engine are handled meanwhile. */
static bool batch_wait(struct con *con, int fd)
{
    for (;;) {
        bool engine = con->engine != NULL && !con->lost;
        if (engine && rs_pending(con->engine))
            con_pump(con, 0);
        struct pollfd p[3] = {
            {.fd = fd, .events = POLLIN},
            {.fd = sig_fd(), .events = POLLIN},
            {.fd = engine ? rs_fd(con->engine) : -1, .events = POLLIN},
        };
        if (poll(p, 3, con_turn(con, -1)) < 0)
            continue;
        if (p[1].revents != 0 || p[2].revents != 0) {
            if (con_pump(con, 0) & (CON_WAKE_INTERRUPT | CON_WAKE_END))
                return false;
        }
        if (p[0].revents != 0)
            return true;
    }
}

/* Run one line; false when it was the last. */
static bool batch_line(struct con *con, const char *line, enum exit_status *status)
{
    const char *word = line + strspn(line, " \t");
    bool chat = line[0] != '=' && (word[0] != '/' || word[1] == '/');
    if (!rcmd_line(con, line)) {
        *status = con->lost ? EXIT_ENGINE : EXIT_COMMAND;
        return false;
    }
    if (con->end_signal != 0 || (chat && strcmp(js_str(con->answer.done, "stop", ""), "cancelled") == 0)) {
        *status = EXIT_INTERRUPT;
        return false;
    }
    return !con->quit;
}

/* Run the whole lines of b and keep the rest; false when one was the last. */
static bool batch_lines(struct con *con, struct buf *b, enum exit_status *status)
{
    size_t from = 0;
    bool on = true;
    for (char *end; on && (end = memchr(b->text + from, '\n', b->len - from)) != NULL;) {
        char *line = b->text + from;
        *end = '\0';
        from = (size_t)(end - b->text) + 1;
        if (end > line && end[-1] == '\r')
            end[-1] = '\0';
        if (strlen(line) + 1 < (size_t)(b->text + from - line) - 1) {
            con->errors++;
            out_error(con->out, "a line holds a NUL byte");
            *status = EXIT_COMMAND;
            return false;
        }
        on = batch_line(con, line, status);
    }
    memmove(b->text, b->text + from, b->len - from);
    b->len -= from;
    return on;
}

enum exit_status repl_batch(struct con *con, int fd, json_int_t session)
{
    struct buf b = {0};
    enum exit_status status = EXIT_OK;
    char piece[65536];
    con->answer.show = true;
    struct rs_error err = {0};
    if (session != 0 && chat_attach(con, session, &err) != RS_OK) {
        out_error(con->out, "%s", err.msg);
        return EXIT_COMMAND;
    }
    for (;;) {
        if (!batch_wait(con, fd)) {
            status = EXIT_INTERRUPT;
            break;
        }
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0) {
            out_error(con->out, "cannot read standard input: %s", strerror(errno));
            status = EXIT_COMMAND;
            break;
        }
        if (n == 0) {
            buf_add(&b, "", 0);
            if (b.len > 0)
                buf_char(&b, '\n'); /* the last line may lack its newline */
            batch_lines(con, &b, &status);
            break;
        }
        buf_add(&b, piece, (size_t)n);
        if (!batch_lines(con, &b, &status))
            break;
        if (b.len > MAX_LINE) {
            out_error(con->out, "a line is longer than 1 MiB");
            status = EXIT_COMMAND;
            break;
        }
    }
    buf_fini(&b);
    return status;
}
