/* tui_curses.c: a grid on a terminal. The one file that knows curses: it writes cells that changed and lets curses find the shortest way to
 * bring them to the screen. Keys are not its business: it never calls getch(), which would refresh behind our back. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define NCURSES_WIDECHAR 1
#include <curses.h>

#include "console/sig.h"
#include "console/tui.h"

#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"
#define MOUSE_ON "\033[?1000h\033[?1006h"
#define MOUSE_OFF "\033[?1006l\033[?1000l"

struct curses_screen {
    struct tui_screen screen;
    const struct tui_theme *theme;
    SCREEN *term;
    FILE *tty;       /* where curses writes: the real standard output */
    int out, err;    /* the real descriptors 1 and 2, while pipes stand in for them */
    struct grid old; /* what was written last */
    attr_t attr[ROLE_COUNT];
    short pair[ROLE_COUNT], selected_pair[ROLE_COUNT], match_pair;
    bool bare;  /* the terminal has no colours */
    bool mouse; /* it tells about clicks */
};

/* ---- looks --------------------------------------------------------------------------------------------------------------------------- */

static attr_t attributes(uint8_t a)
{
    return (a & TUI_BOLD ? A_BOLD : 0) | (a & TUI_DIM ? A_DIM : 0) | (a & TUI_REVERSE ? A_REVERSE : 0) |
           (a & TUI_UNDERLINE ? A_UNDERLINE : 0);
}

static short make_pair(short *n, int fg, int bg)
{
    if (fg < 0 && bg < 0)
        return 0;
    for (short i = 1; i < *n; i++) {
        short f, b;
        if (pair_content(i, &f, &b) == OK && f == fg && b == bg)
            return i;
    }
    if (*n >= COLOR_PAIRS || init_pair(*n, (short)fg, (short)bg) != OK)
        return 0;
    return (*n)++;
}

static void set_theme(struct curses_screen *s, const struct tui_theme *theme)
{
    bool many = COLORS >= 256;
    short n = 1;
    s->theme = theme;
    for (int i = 0; i < ROLE_COUNT; i++) {
        const struct tui_look *l = &theme->look[i], *sel = &theme->selected;
        bool colours = theme->colours && !s->bare;
        int fg = many ? l->fg : l->fg8, bg = many ? l->bg : l->bg8;
        s->attr[i] = attributes(l->attr);
        s->pair[i] = colours ? make_pair(&n, fg, bg) : 0;
        s->selected_pair[i] = colours && many && sel->bg >= 0 ? make_pair(&n, sel->fg >= 0 ? sel->fg : fg, sel->bg) : s->pair[i];
        /* Dim means something only beside colours that do not say it already. */
        if (colours && many && l->fg >= 0)
            s->attr[i] &= ~(attr_t)A_DIM;
    }
    const struct tui_look *m = &theme->match;
    s->match_pair = theme->colours && !s->bare ? make_pair(&n, many ? m->fg : m->fg8, many ? m->bg : m->bg8) : 0;
}

static void curses_theme(struct tui_screen *screen, const struct tui_theme *theme)
{
    struct curses_screen *s = (struct curses_screen *)screen;
    set_theme(s, theme);
    grid_fini(&s->old);
}

/* ---- drawing ------------------------------------------------------------------------------------------------------------------------- */

static void put_cell(const struct curses_screen *s, const struct grid_cell *c, int y, int x)
{
    wchar_t text[3] = {(wchar_t)c->cp, (wchar_t)c->mark, 0};
    attr_t attr = s->attr[c->role];
    short pair = s->pair[c->role];
    cchar_t cc;
    if (c->flags & GRID_SELECTED) {
        pair = s->selected_pair[c->role];
        if (s->theme->selected.bg < 0 || pair == s->pair[c->role])
            attr |= attributes(s->theme->selected.attr);
    }
    if (c->flags & GRID_MATCH) {
        pair = s->match_pair;
        attr |= attributes(s->theme->match.attr) | (pair == 0 ? A_REVERSE : 0);
    }
    if (setcchar(&cc, text, attr, pair, NULL) == OK)
        mvadd_wch(y, x, &cc);
}

static bool same(const struct grid_cell *a, const struct grid_cell *b)
{
    return a->cp == b->cp && a->mark == b->mark && a->role == b->role && a->flags == b->flags && a->width == b->width;
}

static void curses_show(struct tui_screen *screen, const struct grid *g, int y, int x, bool all)
{
    struct curses_screen *s = (struct curses_screen *)screen;
    int rows, cols;
    getmaxyx(stdscr, rows, cols);
    if (rows != g->rows || cols != g->cols) {
        resize_term(g->rows, g->cols);
        all = true;
    }
    if (all || s->old.rows != g->rows || s->old.cols != g->cols) {
        grid_resize(&s->old, g->rows, g->cols);
        clearok(curscr, TRUE);
        erase();
        all = true;
    }
    for (int i = 0; i < g->rows; i++) {
        size_t at = (size_t)i * (size_t)g->cols;
        for (int k = 0; k < g->cols; k++) {
            const struct grid_cell *c = &g->cells[at + (size_t)k];
            bool goes_on = k + 1 < g->cols && c->width == 2 && !same(c + 1, &s->old.cells[at + (size_t)k + 1]);
            if (c->width > 0 && (all || goes_on || !same(c, &s->old.cells[at + (size_t)k])))
                put_cell(s, c, i, k);
        }
    }
    memcpy(s->old.cells, g->cells, (size_t)g->rows * (size_t)g->cols * sizeof *g->cells);
    if (y >= 0)
        move(y, x);
    curs_set(y >= 0);
    wnoutrefresh(stdscr);
    doupdate();
}

static void curses_size(struct tui_screen *screen, int *rows, int *cols)
{
    struct winsize ws;
    (void)screen;
    bool known = ioctl(STDIN_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_row > 0 && ws.ws_col > 0;
    *rows = known ? ws.ws_row : 24;
    *cols = known ? ws.ws_col : 80;
}

/* ---- the terminal -------------------------------------------------------------------------------------------------------------------- */

static void write_tty(struct curses_screen *s, const char *bytes, size_t n)
{
    fflush(s->tty);
    while (n > 0) {
        ssize_t k = write(fileno(s->tty), bytes, n);
        if (k < 0 && errno != EINTR)
            return;
        if (k > 0) {
            bytes += k;
            n -= (size_t)k;
        }
    }
}

static void curses_send(struct tui_screen *screen, const char *bytes, size_t n)
{
    write_tty((struct curses_screen *)screen, bytes, n);
}

static void curses_mouse(struct tui_screen *screen, bool on)
{
    struct curses_screen *s = (struct curses_screen *)screen;
    if (on != s->mouse)
        write_tty(s, on ? MOUSE_ON : MOUSE_OFF, on ? sizeof MOUSE_ON - 1 : sizeof MOUSE_OFF - 1);
    s->mouse = on;
}

/* Keys one by one and without echo; Ctrl-C and Ctrl-Z as signals, Ctrl-S and Ctrl-Q as keys. */
static void set_modes(void)
{
    struct termios t;
    cbreak();
    noecho();
    nonl();
    if (tcgetattr(STDIN_FILENO, &t) == 0) {
        t.c_iflag &= ~(tcflag_t)(IXON | ICRNL | INLCR);
        tcsetattr(STDIN_FILENO, TCSANOW, &t);
    }
}

static void add_string(char *to, size_t size, const char *s)
{
    if (s != NULL && s != (const char *)-1 && strlen(to) + strlen(s) < size)
        strcat(to, s);
}

/* What leaves the display on the way out of a crash, from the terminal's own description. */
static void keep_escape(void)
{
    char bytes[256] = MOUSE_OFF PASTE_OFF;
    add_string(bytes, sizeof bytes, tigetstr("sgr0"));
    add_string(bytes, sizeof bytes, tigetstr("cnorm"));
    add_string(bytes, sizeof bytes, tigetstr("rmcup"));
    add_string(bytes, sizeof bytes, "\r\n");
    /* Padding ("$<5>") is for terminals of another age; it must not be shown. */
    for (char *p; (p = strstr(bytes, "$<")) != NULL;) {
        char *end = strchr(p, '>');
        if (end == NULL)
            break;
        memmove(p, end + 1, strlen(end + 1) + 1);
    }
    sig_keep_escape(bytes);
}

/* A pipe in place of descriptors 1 and 2. */
static bool capture(struct curses_screen *s)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) != 0)
        return false;
    fflush(stdout);
    fflush(stderr);
    dup2(p[1], STDOUT_FILENO);
    dup2(p[1], STDERR_FILENO);
    close(p[1]);
    fcntl(p[0], F_SETFL, O_NONBLOCK);
    s->screen.prints = p[0];
    return true;
}

static void release(struct curses_screen *s)
{
    fflush(stdout);
    fflush(stderr);
    dup2(s->out, STDOUT_FILENO);
    dup2(s->err, STDERR_FILENO);
}

static void curses_suspend(struct tui_screen *screen)
{
    struct curses_screen *s = (struct curses_screen *)screen;
    write_tty(s, PASTE_OFF, sizeof PASTE_OFF - 1);
    if (s->mouse)
        write_tty(s, MOUSE_OFF, sizeof MOUSE_OFF - 1);
    curs_set(1);
    endwin();
}

static void curses_resume(struct tui_screen *screen)
{
    struct curses_screen *s = (struct curses_screen *)screen;
    reset_prog_mode();
    set_modes();
    write_tty(s, PASTE_ON, sizeof PASTE_ON - 1);
    if (s->mouse)
        write_tty(s, MOUSE_ON, sizeof MOUSE_ON - 1);
    grid_fini(&s->old);
}

static struct tui_screen *give_up(struct curses_screen *s)
{
    if (s->tty != NULL)
        fclose(s->tty);
    if (s->out >= 0)
        close(s->out);
    if (s->err >= 0)
        close(s->err);
    free(s);
    return NULL;
}

struct tui_screen *tui_curses_open(const struct tui_theme *theme, const char **why)
{
    struct curses_screen *s = xcalloc(1, sizeof *s);
    s->screen = (struct tui_screen){curses_size, curses_show, curses_suspend, curses_resume, curses_send, curses_theme, curses_mouse, STDIN_FILENO, -1};
    s->out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    s->err = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    int tty = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    s->tty = tty >= 0 ? fdopen(tty, "w") : NULL;
    *why = "the terminal cannot be opened twice";
    if (s->out < 0 || s->err < 0 || s->tty == NULL)
        return give_up(s);
    use_tioctl(TRUE);
    s->term = newterm(NULL, s->tty, stdin);
    *why = "this kind of terminal is not known here";
    if (s->term == NULL)
        return give_up(s);
    s->bare = !has_colors() || start_color() != OK || use_default_colors() != OK;
    set_modes();
    leaveok(stdscr, FALSE);
    scrollok(stdscr, FALSE);
    set_theme(s, theme);
    keep_escape();
    write_tty(s, PASTE_ON, sizeof PASTE_ON - 1);
    if (!capture(s))
        s->screen.prints = -1;
    return &s->screen;
}

void tui_curses_close(struct tui_screen *screen)
{
    struct curses_screen *s = (struct curses_screen *)screen;
    if (s == NULL)
        return;
    curses_suspend(screen);
    sig_keep_escape(NULL);
    delscreen(s->term);
    release(s);
    if (s->screen.prints >= 0)
        close(s->screen.prints);
    grid_fini(&s->old);
    give_up(s);
}
