/* tui.h: the console as panels: state, and what its files offer each other.
 *
 * A struct tui stands on a session (struct con) and a screen (struct tui_screen: a terminal through curses, or none at all). It lives as long
 * as the session, in panels or not: what is written to its struct out is kept for the chat panel either way. One loop, in tui_wait(), serves
 * keys, signals, the engine, what libraries print, and timers; commands run inside tui_run() and wait in that same loop, so keys and frames
 * go on while they do. Thread of the user interface only. */
#ifndef RANKSCOPE_CONSOLE_TUI_H
#define RANKSCOPE_CONSOLE_TUI_H

#include "console/con.h"
#include "console/grid.h"
#include "console/opt.h"
#include "console/tui_data.h"
#include "console/tui_key.h"
#include "console/tui_keymap.h"
#include "console/tui_layout.h"
#include "console/tui_plot.h"
#include "console/tui_text.h"
#include "console/tui_theme.h"

#define TUI_PROMPT (-1)     /* focus: the line of input */
#define TUI_FRAME_US 33333  /* at most 30 frames a second */
#define TUI_ESCAPE_US 50000 /* a lone escape byte is the key after that long */
#define TUI_HINTS 16
#define TUI_MAX_WAITING 64  /* lines that were typed ahead */

/* Where a grid goes and where bytes come from. */
struct tui_screen {
    void (*size)(struct tui_screen *s, int *rows, int *cols);
    /* y < 0: no cursor. all: what the screen shows cannot be relied on. */
    void (*show)(struct tui_screen *s, const struct grid *g, int y, int x, bool all);
    void (*suspend)(struct tui_screen *s); /* give the terminal back, and take it again */
    void (*resume)(struct tui_screen *s);
    void (*send)(struct tui_screen *s, const char *bytes, size_t n);    /* to the terminal itself, between frames */
    void (*theme)(struct tui_screen *s, const struct tui_theme *theme); /* another one from the next frame on */
    void (*mouse)(struct tui_screen *s, bool on);                       /* whether clicks and wheel turns come as keys */
    int keys;                                                           /* descriptor to read keys from; -1: none */
    int prints;                                                         /* descriptor with what was printed behind our back; -1: none */
};

enum tui_overlay { TUI_OVERLAY_NONE, TUI_OVERLAY_HELP, TUI_OVERLAY_OP, TUI_OVERLAY_MATCHES };
enum tui_asking { TUI_ASKING_NOTHING, TUI_ASKING_SEARCH, TUI_ASKING_FILTER };
enum tui_ops_order { TUI_BY_PROGRAM, TUI_BY_TIME, TUI_BY_SITE, TUI_BY_KIND, TUI_OPS_ORDERS };

/* A list with a selected row. */
struct tui_list {
    int selected, top, n, h;
};

/* A word in the hint line that can be clicked at. */
struct tui_hint {
    const struct tui_binding *b;
    int from, to; /* columns */
};

/* The tensors of the op that is open, as they are where the engine is stopped. */
struct tui_tensors {
    char at[200];   /* the place that they are of: op that is open, step, op that holds, before or after */
    json_t *seen;   /* array of replies, or of {"error"}; in the order of asking */
    size_t asked;   /* inputs and outputs that were asked for so far */
};

struct tui_script;

struct tui {
    struct out out;    /* first: the session writes here */
    struct out *plain; /* and then here too, while there are no panels; NULL: nowhere */
    struct con *con;
    struct tui_screen *screen; /* NULL while there are no panels */
    struct tui_script *script; /* headless: where keys come from; or NULL */
    const struct tui_theme *theme;
    enum tui_plot_style plots;
    bool ascii, read_only, fake_time, mouse;

    struct tui_tree tree;
    int preset; /* of tui_presets; -1: an arrangement of its own */
    char preset_name[32];
    int zoom, focus, last_panel;
    struct tui_layout layout;
    struct grid grid;

    struct tui_text chat, log;
    struct tui_data data;
    struct tui_list lists[TUI_PANELS];
    json_int_t request, stopping; /* Requests: the stream that is selected, wherever it moves to; the one that was stopped last; 0: none */
    enum tui_ops_order order;
    char filter[64];
    int candidate;       /* patches: the implementation that Enter would choose, counted from the current one */
    uint64_t plain_from; /* chat lines from here on were not on the plain terminal */

    struct tui_hint hints[TUI_HINTS]; /* as drawn last */
    int n_hints;

    enum tui_overlay overlay;
    int overlay_top, overlay_rows; /* rows: of what could be scrolled */
    char op_site[160];             /* TUI_OVERLAY_OP */
    bool tapping;                  /* its tap was asked for here */
    struct tui_tensors tensors;    /* what it reads and writes, while the engine is stopped */
    bool find_held;                /* bring the op that the engine is stopped at in sight */
    char **matches;
    size_t n_matches;
    enum tui_asking asking;
    char asked[64]; /* what is being typed for it */
    char message[160];
    bool message_bad;
    uint64_t message_until_us;
    char *progress;
    bool said_looks;   /* that another client is in control was said when the panels opened first */
    json_int_t attach; /* a conversation of the engine to go on with, when the panels open; 0: none */
    bool answering;    /* what was written to the chat last is an answer */
    char action[192];  /* what the change that was sent is called */
    struct text_filter prints_filter;
    struct buf clip; /* the part that was copied last */

    struct tui_decoder keys;
    bool prefix_cx, in_line;
    struct tui_job waiting[TUI_MAX_WAITING]; /* what to run, the oldest first; lines are ours */
    size_t n_waiting;
    int running; /* depth of commands that run: 1, or 2 inside an answer */
    bool frozen, dirty, repaint, toggle, quit, interrupt, prompt_hidden;
    con_wait_fn plain_wait; /* what waited before the panels opened */
    void *plain_wait_ctx;
    bool (*desk)(struct tui *t, bool panels); /* open or close the panels at the terminal; NULL: this one has only panels */
    bool model_lost; /* it was said that the engine is gone */
    uint64_t fake_us, last_frame_us, next_tick_us, last_byte_us, last_interrupt_us;
    uint64_t key_us;                 /* when the first key came that no frame shows yet; 0: none */
    uint64_t frames, slowest_key_us; /* for soak tests */
    uint32_t key_ms[64];             /* keys by the time to their frame, in steps of 2 ms; the last holds all above */
};

struct tui_options {
    const struct tui_theme *theme;
    enum tui_plot_style plots;
    bool ascii, read_only, fake_time;
    const char *layout; /* name or arrangement; NULL: "desk" */
};

/* --theme, --ascii, --layout, --plots, --plain, and for tests --screen, --keys, --fake-time. */
extern const struct opt tui_table[];

/* Read them, NO_COLOR and the locale. False: a message is in msg. */
bool tui_options(const struct opt_values *v, bool read_only, struct tui_options *out, char *msg, size_t msg_size);

/* Run the operator's file config. Options of the command line (v) count more. What is wrong is told and stops nothing. */
void tui_config_read(struct tui *t, const struct opt_values *v);

/* A front end for con; con->out and con->tui are it from now on, until tui_free(). */
struct tui *tui_new(struct con *con, const struct tui_options *o);
void tui_free(struct tui *t);

/* Begin and end to show panels on this screen. line_open() was called. */
void tui_enter(struct tui *t, struct tui_screen *screen);
void tui_leave(struct tui *t);

/* Serve panels that were entered until the person leaves them; true: to go on as a plain console. They may have been left already then: the keys for
 * that work while a command runs, which goes on in the plain console. */
bool tui_run(struct tui *t);

/* Open (or close) panels at once, while a command runs. What it writes goes there from now on, and what it waits for is waited for there. */
void tui_switch(struct tui *t, bool panels);

/* A line that was entered at the plain prompt, for the chat panel. */
void tui_typed(struct tui *t, const char *line);

/* A command of the plain console has ended; true: there are panels by now, which are to go on. */
bool tui_took_over(struct tui *t);

uint64_t tui_now_us(const struct tui *t);

/* Lines of the chat panel that the plain terminal did not see, at most `most` of them; caller frees. */
char *tui_unseen(struct tui *t, size_t most);

/* A line for the log panel; level as in log events. */
void tui_log(struct tui *t, const char *level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A line above the prompt that goes away by itself. */
void tui_say(struct tui *t, bool bad, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Choose a theme by name. RS_EUSAGE: there is none of that name. */
enum rs_result tui_set_theme(struct tui *t, const char *name, struct rs_error *err);

/* Take clicks and wheel turns from the terminal, or leave them to its own selection. */
void tui_set_mouse(struct tui *t, bool on);

/* Choose an arrangement by preset or saved name, or by its text. RS_EUSAGE: neither. */
enum rs_result tui_arrange(struct tui *t, const char *name, struct rs_error *err);

/* Offer text to the terminal's clipboard (OSC 52: it works over any connection). What is too long for terminals is cut, and said so. */
void tui_clip(struct tui *t, const char *text, size_t len);

/* Keep the present arrangement under a name. */
enum rs_result tui_keep_arrangement(struct tui *t, const char *name, struct rs_error *err);

/* Names and arrangements that were kept, one "NAME TEXT" a line; caller frees. */
char *tui_kept_arrangements(void);

/* Panels as text (or JSON, when the name ends in .json) to a file. RS_EIO and so on. */
enum rs_result tui_snapshot(struct con *con, const char *path, struct rs_error *err);

/* ---- tui_draw.c, tui_panels.c, tui_lists.c: drawing into t->grid ---------------------------------------------------------------------- */

/* Everything; returns where the cursor is to stand, y < 0: nowhere. */
void tui_draw(struct tui *t, int *y, int *x);

void tui_draw_ranks(struct tui *t, struct grid_rect r);
void tui_draw_allreduce(struct tui *t, struct grid_rect r);
void tui_draw_step(struct tui *t, struct grid_rect r);
void tui_draw_ops(struct tui *t, struct grid_rect r);
void tui_draw_patches(struct tui *t, struct grid_rect r);
void tui_draw_requests(struct tui *t, struct grid_rect r);

/* ---- tui_op.c: an op, opened ------------------------------------------------------------------------------------------------------------- */

void tui_draw_op(struct tui *t, struct grid_rect r);

/* Open the op that is selected, or the one at a site. */
void tui_op_open(struct tui *t);
void tui_op_show(struct tui *t, const char *site);

/* Ask for what the open op shows and nobody else asks for. Called at each tick. */
void tui_op_ask(struct tui *t, uint64_t now_us);

/* The reply to TUI_ASK_TENSOR came. */
void tui_op_take_tensor(struct tui *t);

/* Time of an op on its slowest rank, in microseconds; NAN: not known. */
double tui_op_us(const json_t *op);

/* The breakpoint (or tap) that covers a site, the one set at this very site before others; NULL: none. Borrowed from the last reply. */
const json_t *tui_op_break(const struct tui *t, const char *site);
const json_t *tui_op_tap(const struct tui *t, const char *site);

/* "N/A" in the role for that, or the number; always `w` columns, at the right. */
void tui_draw_number(struct tui *t, int y, int x, int w, uint8_t role, double value, int digits, const char *unit);

/* Keep the selected row of a list of n rows in sight of h rows. */
void tui_list_fit(struct tui_list *l, int n, int h);

/* The op that is selected; NULL: none. Borrowed from the last ledger. */
const json_t *tui_selected_op(struct tui *t);

/* The stream that is selected in Requests, 0: none. *gone: the one that was selected has ended (or is out of sight), this one is in its place. */
json_int_t tui_selected_request(struct tui *t, bool *gone);

/* The row was chosen by a person: the selection follows what stands there. */
void tui_select_request(struct tui *t);

/* tui_requests.c: the notebook's text: claims that no longer hold or were made under other patches first. A tui_custom_fn. */
char *tui_notebook(struct con *con, void *ctx, int rows, int cols);

/* The patch slot that is selected and the implementation that Enter would choose; false: none. */
bool tui_selected_patch(struct tui *t, const char **slot, const char **from, const char **to);

/* Where keys go now: tui_context bits. below: as if no window lay over the panels. */
unsigned tui_context(const struct tui *t, bool below);

/* ---- tui_input.c: keys ------------------------------------------------------------------------------------------------------------------ */

void tui_input_key(struct tui *t, const struct tui_key *k);

/* tui_mouse.c: a click or a turn of the wheel; what it hit decides. */
void tui_mouse_key(struct tui *t, const struct tui_key *k);

/* For the mouse: focus a panel (or TUI_PROMPT), scroll one, do what a key does. */
void tui_input_focus(struct tui *t, int panel);
void tui_input_scroll(struct tui *t, int panel, int rows);
void tui_input_act(struct tui *t, const struct tui_binding *b);

/* Bytes that came; decodes and acts. */
void tui_input_bytes(struct tui *t, const char *bytes, size_t n);

/* Time passed: a lone escape becomes a key. Returns when to call again, 0: never. */
uint64_t tui_input_tick(struct tui *t, uint64_t now_us);

/* ---- tui_script.c: headless -------------------------------------------------------------------------------------------------------------- */

enum tui_script_state { TUI_SCRIPT_STEP, TUI_SCRIPT_WAIT, TUI_SCRIPT_END };

/* A screen of that size and the steps of a file ("-": none). False: a message is in msg. */
bool tui_script_open(const char *size, const char *path, struct tui_script **out, char *msg, size_t msg_size);
void tui_script_close(struct tui_script *s);
struct tui_screen *tui_script_screen(struct tui_script *s);

/* Whether a step failed; the message went to stderr. */
bool tui_script_failed(const struct tui_script *s);

/* Do the next step. TUI_SCRIPT_WAIT: it needs *wait_us more of time or events. */
enum tui_script_state tui_script_step(struct tui_script *s, struct tui *t, bool idle, uint64_t *wait_us);

/* ---- tui_curses.c -------------------------------------------------------------------------------------------------------------------------- */

/* Take the terminal on stdin and stdout; NULL: it cannot show panels (*why says so). What is printed to stdout and stderr comes out of
 * screen->prints from now on. */
struct tui_screen *tui_curses_open(const struct tui_theme *theme, const char **why);
void tui_curses_close(struct tui_screen *s);

#endif
