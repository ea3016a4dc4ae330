#include "config.h"

#include "console/line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <readline/history.h>
#include <readline/readline.h>

#include "console/buf.h"
#include "console/history.h"
#include "console/paths.h"
#include "console/sig.h"

static line_complete_fn s_complete;
static void *s_ctx;
static struct history s_history;
static struct termios s_normal; /* as it was when the program started */
static char *s_prompt;
static char *s_line;
static char *s_carried; /* text that stood at the prompt when sides were changed */
static int s_carried_point;
static bool s_active, s_hidden, s_ready, s_eof, s_toggle;
static bool s_tty; /* there is a terminal to take care of */

/* Typed ahead, read while no prompt stood */
static struct buf s_kept;
static size_t s_kept_at;

/* Under panels */
static bool s_panels;
static struct buf s_typed; /* bytes for readline, from s_typed_at on */
static size_t s_typed_at;
static bool s_starved; /* readline asked for more than there was: its end of file is none */
static FILE *s_nowhere;
static line_matches_fn s_matches;

/* ---- completion ---------------------------------------------------------------------------------------------------------------------- */

/* readline frees the array and its words with free(). The first word is what all have in common. */
static char **attempt(const char *text, int start, int end)
{
    struct complete c;
    (void)text;
    (void)start;
    rl_attempted_completion_over = 1; /* no file names behind our back */
    s_complete(s_ctx, rl_line_buffer, (size_t)end, &c);
    if (c.n == 0)
        return NULL;
    char **words = xcalloc(c.n + 2, sizeof *words);
    size_t common = strlen(c.words[0]);
    for (size_t i = 1; i < c.n; i++) {
        size_t k = 0;
        while (k < common && c.words[i][k] == c.words[0][k])
            k++;
        common = k;
    }
    /* Not half a character. */
    while (c.n > 1 && common > 0 && ((unsigned char)c.words[0][common] & 0xc0) == 0x80)
        common--;
    words[0] = xstrndup(c.words[0], common);
    for (size_t i = 0; c.n > 1 && i < c.n; i++)
        words[i + 1] = xstrdup(c.words[i]);
    bool goes_on = c.n == 1 && common > 0 && strchr("=/.", c.words[0][common - 1]) != NULL;
    rl_completion_append_character = goes_on ? '\0' : ' ';
    complete_fini(&c);
    return words;
}

/* ---- typed ahead ---------------------------------------------------------------------------------------------------------------------- */

#define MOST_KEPT 65536u /* bytes; beyond that the kernel keeps what is typed */

bool line_has_kept(void)
{
    return s_kept_at < s_kept.len;
}

size_t line_kept(char *to, size_t size)
{
    size_t n = s_kept.len - s_kept_at;
    n = n < size ? n : size;
    if (n > 0)
        memcpy(to, s_kept.text + s_kept_at, n);
    s_kept_at += n;
    return n;
}

static int kept_byte(FILE *f)
{
    return line_has_kept() ? (unsigned char)s_kept.text[s_kept_at++] : rl_getc(f);
}

/* Take a sequence out of what is kept; false: it is not there. */
static bool take_out(const char *keys)
{
    size_t n = strlen(keys);
    for (size_t i = s_kept_at; i + n <= s_kept.len; i++) {
        if (memcmp(s_kept.text + i, keys, n) != 0)
            continue;
        memmove(s_kept.text + i, s_kept.text + i + n, s_kept.len - i - n);
        s_kept.len -= n;
        return true;
    }
    return false;
}

enum line_status line_watch(void)
{
    char bytes[4096];
    if (s_kept.len - s_kept_at >= MOST_KEPT)
        return LINE_MORE;
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n <= 0)
        return n < 0 && (errno == EINTR || errno == EAGAIN) ? LINE_MORE : LINE_EOF;
    if (s_kept_at == s_kept.len)
        s_kept_at = s_kept.len = 0;
    buf_add(&s_kept, bytes, (size_t)n);
    return take_out("\033[24~") || take_out("\030\001") ? LINE_TOGGLE : LINE_MORE;
}

/* ---- the terminal -------------------------------------------------------------------------------------------------------------------- */

/* No echo and no line editing by the kernel, but Ctrl-C and Ctrl-Z still are signals. */
static void busy_terminal(void)
{
    if (!s_tty)
        return;
    struct termios t = s_normal;
    t.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

static void set_size(void)
{
    struct winsize ws;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_row > 0 && ws.ws_col > 0)
        rl_set_screen_size(ws.ws_row, ws.ws_col);
}

/* Called by readline from inside line_feed(). It only keeps the line: commands run from the caller's loop. */
static void on_line(char *line)
{
    if (!s_panels) {
        rl_callback_handler_remove();
        s_active = false;
    }
    s_ready = line != NULL;
    s_eof = line == NULL;
    s_line = line;
}

static int toggle(int count, int key)
{
    (void)count;
    (void)key;
    s_toggle = true;
    return 0;
}

static void load_history(void)
{
    char *path = paths_state("history");
    history_open(&s_history, path);
    free(path);
    using_history();
    for (size_t i = 0; i < s_history.n; i++)
        add_history(s_history.lines[i]);
    stifle_history(HISTORY_MAX);
}

void line_open(line_complete_fn complete, void *ctx)
{
    s_complete = complete;
    s_ctx = ctx;
    s_tty = tcgetattr(STDIN_FILENO, &s_normal) == 0;
    sig_keep_terminal(STDIN_FILENO);
    rl_readline_name = "rankscope";
    rl_catch_signals = 0;
    rl_catch_sigwinch = 0;
    rl_change_environment = 0;
    rl_attempted_completion_function = attempt;
    rl_completer_word_break_characters = " \t";
    rl_completer_quote_characters = "";
    rl_getc_function = kept_byte;
    rl_initialize();
    /* Nobody gets into vi mode by accident: searching there crashes readline 8.2 after an undo. Who wants it has it in inputrc. */
    rl_unbind_function_in_map(rl_vi_editing_mode, emacs_meta_keymap);
    rl_bind_keyseq("\\e[24~", toggle);
    rl_bind_keyseq("\\C-x\\C-a", toggle);
    load_history();
    busy_terminal();
}

void line_close(void)
{
    if (s_panels)
        line_panels_leave();
    if (s_active) {
        rl_callback_handler_remove();
        putchar('\n');
        fflush(stdout);
    }
    s_active = false;
    sig_restore_terminal();
    history_close(&s_history);
    free(s_prompt);
    free(s_line);
    free(s_carried);
    s_prompt = s_line = s_carried = NULL;
    buf_fini(&s_typed);
    buf_fini(&s_kept);
    s_kept_at = 0;
}

/* Put back what stood at the prompt before sides were changed. */
static void carry_on(void)
{
    if (s_carried == NULL)
        return;
    rl_replace_line(s_carried, 1);
    rl_point = s_carried_point;
    free(s_carried);
    s_carried = NULL;
}

static void carry_off(void)
{
    free(s_carried);
    s_carried = rl_end > 0 ? xstrdup(rl_line_buffer) : NULL;
    s_carried_point = rl_point;
}

void line_aside(void)
{
    if (!s_active)
        return;
    line_hide();
    carry_off();
    rl_callback_handler_remove();
    s_active = false;
    busy_terminal();
}

void line_prompt(const char *prompt)
{
    if (s_active)
        return;
    free(s_prompt);
    s_prompt = xstrdup(prompt);
    s_ready = s_eof = s_hidden = false;
    s_active = true;
    /* readline saves the settings it finds and puts them back: these must not be the silent ones. */
    tcsetattr(STDIN_FILENO, TCSADRAIN, &s_normal);
    set_size();
    rl_callback_handler_install(s_prompt, on_line);
    if (s_carried != NULL) {
        carry_on();
        rl_redisplay();
    }
}

bool line_active(void)
{
    return s_active;
}

/* A line that was entered goes into the history, there and here. */
static void remember(void)
{
    if (!history_add(&s_history, s_line))
        return;
    /* The same text further up goes, as it went in our list. */
    for (int i = history_length - 1; i >= 0; i--) {
        HIST_ENTRY *e = history_get(history_base + i);
        if (e == NULL || strcmp(e->line, s_line) != 0)
            continue;
        HIST_ENTRY *old = remove_history(i);
        free_history_entry(old);
    }
    add_history(s_line);
    using_history(); /* going back begins at the new end */
}

enum line_status line_feed(void)
{
    if (!s_active)
        return LINE_MORE;
    rl_callback_read_char();
    if (s_toggle) {
        s_toggle = false;
        return LINE_TOGGLE;
    }
    if (s_active)
        return LINE_MORE;
    busy_terminal();
    if (s_eof) {
        putchar('\n');
        fflush(stdout);
        return LINE_EOF;
    }
    remember();
    return LINE_READY;
}

char *line_take(void)
{
    char *line = s_line;
    s_line = NULL;
    s_ready = false;
    return line;
}

void line_clear(void)
{
    if (!s_active)
        return;
    s_typed_at = s_typed.len;
    /* An incremental search or half a key sequence must not survive, nor the place in the history that a search had found. */
    rl_callback_sigcleanup();
    rl_free_line_state();
    rl_replace_line("", 0);
    rl_point = rl_mark = 0;
    using_history();
    if (s_panels)
        return;
    fputs("^C\n", stdout);
    rl_on_new_line();
    rl_redisplay();
}

void line_hide(void)
{
    if (!s_active || s_hidden || s_panels)
        return;
    s_hidden = true;
    rl_clear_visible_line();
    fflush(stdout);
}

void line_show(void)
{
    if (!s_active || !s_hidden || s_panels)
        return;
    s_hidden = false;
    rl_on_new_line();
    rl_redisplay();
}

void line_resize(void)
{
    set_size();
    if (s_active && !s_hidden && !s_panels) {
        rl_clear_visible_line();
        rl_forced_update_display();
    }
}

void line_suspend(void)
{
    if (s_active)
        rl_deprep_terminal();
    tcsetattr(STDIN_FILENO, TCSADRAIN, &s_normal);
}

void line_resume(void)
{
    if (!s_active) {
        busy_terminal();
        return;
    }
    rl_prep_terminal(1);
    rl_on_new_line();
    rl_forced_update_display();
}

/* ---- under panels -------------------------------------------------------------------------------------------------------------------- */

static int typed_byte(FILE *unused)
{
    (void)unused;
    if (s_typed_at < s_typed.len)
        return (unsigned char)s_typed.text[s_typed_at++];
    s_starved = true;
    return EOF;
}

static int typed_available(void)
{
    return s_typed_at < s_typed.len;
}

static void no_display(void)
{
}

/* matches[0] is what all have in common. */
static void hand_matches(char **matches, int n, int longest)
{
    (void)longest;
    if (s_matches != NULL)
        s_matches(s_ctx, (const char *const *)matches + 1, (size_t)n);
}

void line_panels_enter(const char *prompt, line_matches_fn matches)
{
    if (s_panels)
        return;
    line_aside();
    if (s_nowhere == NULL)
        s_nowhere = fopen("/dev/null", "w");
    s_panels = s_active = true;
    s_matches = matches;
    s_hidden = s_ready = s_eof = s_toggle = false;
    rl_prep_term_function = NULL;
    rl_deprep_term_function = NULL;
    rl_getc_function = typed_byte;
    rl_input_available_hook = typed_available;
    rl_redisplay_function = no_display;
    rl_completion_display_matches_hook = hand_matches;
    rl_outstream = s_nowhere;
    free(s_prompt);
    s_prompt = xstrdup(prompt);
    rl_callback_handler_install(s_prompt, on_line);
    carry_on();
}

void line_panels_leave(void)
{
    if (!s_panels)
        return;
    rl_callback_sigcleanup();
    carry_off();
    rl_callback_handler_remove();
    s_panels = s_active = false;
    rl_prep_term_function = rl_prep_terminal;
    rl_deprep_term_function = rl_deprep_terminal;
    rl_getc_function = kept_byte;
    rl_input_available_hook = NULL;
    rl_redisplay_function = rl_redisplay;
    rl_completion_display_matches_hook = NULL;
    rl_outstream = stdout;
    buf_clear(&s_typed);
    s_typed_at = 0;
    busy_terminal();
}

/* A key that ends a search in the history would be carried out by readline calling itself, which crashes it (8.2) when the key begins a
 * sequence, as Ctrl-X does. So the search ends here first; what it found stays on the line. */
static void end_search(unsigned char next)
{
    static const unsigned char search_keys[] = {'\a', '\b', '\n', '\r', '\022', '\023', '\026', '\027', '\031', '\177'};
    if (!RL_ISSTATE(RL_STATE_ISEARCH) || (next >= 0x20 && next != 0x7f))
        return;
    if (memchr(search_keys, next, sizeof search_keys) == NULL)
        line_escape();
}

enum line_status line_push(const char *bytes, size_t n)
{
    if (s_typed_at == s_typed.len) {
        buf_clear(&s_typed);
        s_typed_at = 0;
    }
    buf_add(&s_typed, bytes, n);
    while (s_typed_at < s_typed.len) {
        s_starved = false;
        end_search((unsigned char)s_typed.text[s_typed_at]);
        rl_callback_read_char();
        if (s_toggle) {
            s_toggle = false;
            return LINE_TOGGLE;
        }
        if (s_ready) {
            s_ready = false;
            remember();
            return LINE_READY;
        }
        if (s_eof && !s_starved)
            return LINE_EOF;
        s_eof = false;
    }
    return LINE_MORE;
}

void line_insert(const char *text)
{
    if (s_active)
        rl_insert_text(text);
}

const char *line_text(size_t *point)
{
    *point = s_active ? (size_t)rl_point : 0;
    return s_active ? rl_line_buffer : "";
}

const char *line_prefix(void)
{
    return rl_display_prompt != NULL ? rl_display_prompt : "";
}

bool line_half_key(void)
{
    return RL_ISSTATE(RL_STATE_MULTIKEY | RL_STATE_ISEARCH | RL_STATE_NSEARCH);
}

void line_escape(void)
{
    rl_callback_sigcleanup();
    RL_UNSETSTATE(RL_STATE_MULTIKEY);
    rl_set_prompt(s_prompt);
}
