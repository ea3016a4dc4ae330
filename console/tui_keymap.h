/* tui_keymap.h: which key does what where. The program's own bindings are one table; a person (/bind, "bind" in the file config) and scripts add
 * theirs in front of it. The help overlay and the hint line are made from both.
 *
 * For scripts: tui_keymap_add() binds a key to an action of the panels, to a command line, or to a function. It may be called before there are
 * panels (from init.lua) and at any time later; what is added lasts until it is taken away or the process ends. There is one keyboard, so this
 * is state of the process. Thread of the user interface only. */
#ifndef RANKSCOPE_CONSOLE_TUI_KEYMAP_H
#define RANKSCOPE_CONSOLE_TUI_KEYMAP_H

#include "console/buf.h"
#include "console/tui_key.h"
#include "engine/rankscope.h"

struct con;

/* Where a key means something. Looked up from the most special to the most general. */
enum tui_context {
    TUI_IN_OVERLAY = 1,
    TUI_IN_CHAT = 2,
    TUI_IN_LOG = 4,
    TUI_IN_RANKS = 8,
    TUI_IN_ALLREDUCE = 16,
    TUI_IN_STEP = 32,
    TUI_IN_OPS = 64,
    TUI_IN_PATCHES = 128,
    TUI_IN_PROMPT = 256,
    TUI_IN_CUSTOM = 512, /* panels of scripts */
    TUI_HELD = 1024,     /* beside another one: not in the line of input, and the engine is stopped */
    TUI_IN_OP = 2048,    /* beside TUI_IN_OVERLAY: the window is an op */
    TUI_IN_COPY = 4096,  /* beside Chat or Log: choosing what to copy */
    TUI_IN_REQUESTS = 8192,
    TUI_LOOKS = 16384,   /* beside a panel: this console only looks, and has no line of input */
    TUI_IN_TEXT = TUI_IN_CHAT | TUI_IN_LOG,
    TUI_IN_LIST = TUI_IN_RANKS | TUI_IN_OPS | TUI_IN_PATCHES | TUI_IN_STEP | TUI_IN_REQUESTS,
    TUI_IN_PANEL = TUI_IN_TEXT | TUI_IN_LIST | TUI_IN_ALLREDUCE | TUI_IN_CUSTOM,
    TUI_ANYWHERE = TUI_IN_PANEL | TUI_IN_PROMPT,
};

enum tui_action {
    TUI_DO_NOTHING,
    TUI_DO_HELP,
    TUI_DO_CLOSE,
    TUI_DO_TOGGLE,
    TUI_DO_PROMPT,
    TUI_DO_QUIT,
    TUI_DO_COMMAND,
    TUI_DO_PANELS,
    TUI_DO_NEXT_PANEL,
    TUI_DO_PREVIOUS_PANEL,
    TUI_DO_PANEL, /* arg: which, from 1 */
    TUI_DO_ZOOM,
    TUI_DO_PRESET,
    TUI_DO_GROW,
    TUI_DO_SHRINK,
    TUI_DO_FREEZE,
    TUI_DO_THEME,
    TUI_DO_PLOTS,
    TUI_DO_REPAINT,
    TUI_DO_MOVE, /* arg: rows */
    TUI_DO_PAGE, /* arg: -1, 1 */
    TUI_DO_HOME,
    TUI_DO_END,
    TUI_DO_SEARCH,
    TUI_DO_NEXT_MATCH,
    TUI_DO_PREVIOUS_MATCH,
    TUI_DO_FOLD,
    TUI_DO_COPY,
    TUI_DO_SELECT,
    TUI_DO_SELECT_CHAR, /* arg: -1, 1; as in the next two */
    TUI_DO_SELECT_WORD,
    TUI_DO_SELECT_EDGE,
    TUI_DO_SELECT_MARK, /* arg: 0 characters, 1 whole lines */
    TUI_DO_SELECT_TAKE,
    TUI_DO_SELECT_END,
    TUI_DO_OPEN_OP,
    TUI_DO_TAP,
    TUI_DO_SORT,
    TUI_DO_FILTER,
    TUI_DO_OTHER_IMPL, /* arg: -1, 1 */
    TUI_DO_SWAP,
    TUI_DO_REVERT,
    TUI_DO_BREAK,
    TUI_DO_STOP_REQUEST,
    TUI_DO_GO, /* arg: 0 one op, 1 to the next layer, 2 on */
    TUI_DO_LINE, /* a binding that was added: a command line or a function */
};

/* What a function that is bound to a key gets. It is called from the console's loop, never while something is drawn: it may ask the engine, wait,
 * write to con->out and run commands. While another command runs it waits for its end, unless the binding is live. */
typedef void (*tui_key_fn)(struct con *con, void *ctx);

struct tui_binding {
    unsigned where;  /* tui_context bits */
    const char *key; /* as tui_key_parse() knows it */
    enum tui_action action;
    int arg;
    const char *help; /* NULL: another key for the row above; not listed by itself */
    const char *hint; /* a word for the hint line; NULL: none */
};

/* What TUI_DO_LINE does. */
struct tui_job {
    char *line; /* as if it were typed: "/stats", "=rs.mode()"; NULL: call fn */
    tui_key_fn fn;
    void *ctx;
    bool live; /* fn may run in the middle of an answer, between two of its events (a line may when its command may) */
};

/* Ends with a NULL key. */
extern const struct tui_binding tui_keymap[];

/* What the key does there; NULL: nothing. Added bindings come first, the newest before the others. */
const struct tui_binding *tui_keymap_find(unsigned where, const struct tui_key *k);

/* Whether this row of tui_keymap still means something: no binding that was added has taken its key in all its places. */
bool tui_keymap_holds(const struct tui_binding *b);

/* "where" in words, for help ("in Chat"). */
const char *tui_keymap_where(unsigned where);

/* ---- what persons and scripts bind ----------------------------------------------------------------------------------------------------- */

/* A place by its name in bindings: anywhere, panels, input, window (help, an op), chat, log, text (chat and log), ranks, allreduce, step, ops,
 * patches, requests, custom (scripts' and the notebook), copy (choosing what to copy), op (a window of one), held (in panels while the engine is stopped). 0: there is none of that name. */
unsigned tui_keymap_place(const char *name);

struct tui_bind {
    const char *key;    /* "F5", "C-t", "M-d", "S-Tab", "Space", "x" */
    const char *place;  /* a name as above; NULL: anywhere, but panels for a key that types a character */
    const char *action; /* an action's name ("zoom", "panel ops"; tui_keymap_actions() lists them), "none" (the key then means nothing there), or a
                         * line to run: it begins with '/' or '='. NULL: call fn */
    tui_key_fn fn;
    void *ctx;
    void (*drop)(void *ctx); /* called once when the binding is taken away, replaced, or the process's bindings are cleared; may be NULL */
    bool live;               /* fn may run while an answer is under way */
    const char *help;        /* for the help overlay; NULL: the action's own, or the line */
};

/* Bind a key. All strings are copied. What the key meant there before is written to *was when that is not NULL (a buf that the caller owns, one
 * line a meaning: "zoom the panel, and back (everywhere)"); empty: nothing, or nothing but the program's default for typing. RS_EUSAGE: no such
 * key, place or action, or a key that cannot be bound (Ctrl-C, Ctrl-Z and Ctrl-D are signals of the terminal; a plain character in the line of
 * input would be missing when one types). On failure ctx is not dropped: it stays the caller's. */
enum rs_result tui_keymap_add(const struct tui_bind *b, struct buf *was, struct rs_error *err);

/* Take an added binding away; the program's own meaning is back. place NULL: in all places. RS_ENOTFOUND: none was added. */
enum rs_result tui_keymap_remove(const char *key, const char *place, struct rs_error *err);

/* What an added binding with the action TUI_DO_LINE does; the line is borrowed. */
struct tui_job tui_keymap_job(const struct tui_binding *b);

/* The i-th added binding, the newest first; NULL: there are no more. Valid until the next change. */
const struct tui_binding *tui_keymap_added(size_t i);

/* Drop all of them (at the end of the process, before the state that their functions need goes). */
void tui_keymap_clear(void);

/* Call each with every action that can be named, and what it does. */
void tui_keymap_actions(void (*each)(void *ctx, const char *name, const char *help), void *ctx);

#endif
