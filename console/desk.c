#include "config.h"

#include "console/desk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/chat.h"
#include "console/complete.h"
#include "console/line.h"
#include "console/repl.h"
#include "console/tui.h"

#define UNSEEN_LINES 500 /* of the chat panel, to show when the plain console comes back */

bool desk_terminal(void)
{
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

const char *desk_check(const struct opt_values *v)
{
    static char s_msg[600];
    struct tui_options o;
    return tui_options(v, false, &o, s_msg, sizeof s_msg) ? NULL : s_msg;
}

static void complete(void *ctx, const char *line, size_t point, struct complete *out)
{
    complete_line(ctx, line, point, out);
}

static bool open_panels(struct tui *t)
{
    const char *why;
    fflush(stdout);
    struct tui_screen *screen = tui_curses_open(t->theme, &why);
    if (screen == NULL) {
        out_printf(t->con->out, OUT_WARN, "no panels: %s\n", why);
        return false;
    }
    tui_enter(t, screen);
    return true;
}

static void close_panels(struct tui *t)
{
    struct tui_screen *screen = t->screen;
    tui_leave(t);
    tui_curses_close(screen);
    /* What was said in the panels is what stands before the prompt, and what the terminal keeps at the end. */
    char *text = tui_unseen(t, UNSEEN_LINES);
    if (!t->read_only)
        fputs(text, stdout);
    fflush(stdout);
    free(text);
}

/* The tui's way to change sides while a command runs. */
static bool change(struct tui *t, bool panels)
{
    if (panels)
        return open_panels(t);
    close_panels(t);
    return true;
}

/* Panels at this terminal; true: to go on as a plain console, be it because there can be no panels. */
static bool panels(struct tui *t)
{
    if (t->screen == NULL && !open_panels(t))
        return true;
    bool plain = tui_run(t);
    if (t->screen != NULL)
        close_panels(t);
    return plain;
}

static enum exit_status at_terminal(struct con *con, struct tui *t, json_int_t session, bool plain)
{
    const char *term = getenv("TERM");
    bool dumb = term == NULL || *term == '\0' || strcmp(term, "dumb") == 0, again = true;
    plain = plain || dumb;
    line_open(complete, con);
    t->desk = t->read_only || dumb ? NULL : change;
    t->attach = plain ? 0 : session;
    if (plain && session != 0)
        repl_attach(con, session);
    while (again && con->end_signal == 0) {
        if (plain || dumb) {
            again = repl_run(con);
            plain = false;
            if (again && dumb)
                out_str(con->out, OUT_NOTE, "this terminal can only show lines\n");
        } else {
            again = panels(t);
            plain = true;
        }
    }
    line_close();
    return con->lost ? EXIT_ENGINE : EXIT_OK;
}

static enum exit_status without_terminal(struct con *con, struct tui *t, json_int_t session, const struct opt_values *v)
{
    struct tui_script *script;
    char msg[600];
    if (!tui_script_open(opt_string(v, "screen", ""), opt_string(v, "keys", NULL), &script, msg, sizeof msg)) {
        fprintf(stderr, "rankscope: %s\n", msg);
        return EXIT_USAGE;
    }
    line_open(complete, con);
    t->script = script;
    t->attach = session;
    tui_enter(t, tui_script_screen(script));
    tui_run(t);
    tui_leave(t);
    line_close();
    bool failed = tui_script_failed(script);
    tui_script_close(script);
    t->script = NULL;
    return failed ? EXIT_COMMAND : con->lost ? EXIT_ENGINE : EXIT_OK;
}

enum exit_status desk_run(struct con *con, json_int_t session, bool read_only, const struct opt_values *v)
{
    struct tui_options o;
    char msg[600];
    bool headless = opt_set(v, "screen");
    if (!headless && !desk_terminal())
        return repl_batch(con, STDIN_FILENO, session);
    if (!tui_options(v, read_only, &o, msg, sizeof msg))
        return EXIT_USAGE;
    struct tui *t = tui_new(con, &o);
    tui_config_read(t, v);
    enum exit_status status = headless ? without_terminal(con, t, session, v) : at_terminal(con, t, session, opt_set(v, "plain"));
    tui_free(t);
    tui_keymap_clear();
    tui_custom_clear();
    return status;
}
