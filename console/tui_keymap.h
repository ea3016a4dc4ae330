/* tui_keymap.h: which key does what where: one table, from which the help overlay and the hint line are made too. */
#ifndef RANKSCOPE_CONSOLE_TUI_KEYMAP_H
#define RANKSCOPE_CONSOLE_TUI_KEYMAP_H

#include "console/tui_key.h"

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
    TUI_IN_TEXT = TUI_IN_CHAT | TUI_IN_LOG,
    TUI_IN_LIST = TUI_IN_RANKS | TUI_IN_OPS | TUI_IN_PATCHES | TUI_IN_STEP,
    TUI_IN_PANEL = TUI_IN_TEXT | TUI_IN_LIST | TUI_IN_ALLREDUCE,
    TUI_IN_PROMPT = 256,
    TUI_ANYWHERE = TUI_IN_PANEL | TUI_IN_PROMPT,
};

enum tui_action {
    TUI_DO_NOTHING,
    TUI_DO_HELP,
    TUI_DO_CLOSE,
    TUI_DO_TOGGLE,
    TUI_DO_PROMPT,
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
    TUI_DO_OPEN_OP,
    TUI_DO_TAP,
    TUI_DO_SORT,
    TUI_DO_FILTER,
    TUI_DO_OTHER_IMPL, /* arg: -1, 1 */
    TUI_DO_SWAP,
    TUI_DO_REVERT,
};

struct tui_binding {
    unsigned where;  /* tui_context bits */
    const char *key; /* as tui_key_parse() knows it */
    enum tui_action action;
    int arg;
    const char *help; /* NULL: another key for the row above; not listed by itself */
    const char *hint; /* a word for the hint line; NULL: none */
};

/* Ends with a NULL key. */
extern const struct tui_binding tui_keymap[];

/* What the key does there; NULL: nothing. */
const struct tui_binding *tui_keymap_find(unsigned where, const struct tui_key *k);

/* "where" in words, for help. */
const char *tui_keymap_where(unsigned where);

#endif
