/* tui_layout.h: which panel stands where, as a pure function of the size of the screen and a preset.
 *
 * An arrangement is a tree of stacks ('/': one above the other) and rows ('|': side by side) of panels, written as text:
 *
 *     (chat*3/ranks)*3|(allreduce/step/log)*2
 *
 * "*N" is the share of what is left once everyone has the least it needs. What does not fit is left out in the order of
 * tui_layout_drop_order. No state but the names of scripts' panels, which belong to the thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_TUI_LAYOUT_H
#define RANKSCOPE_CONSOLE_TUI_LAYOUT_H

#include "console/buf.h"
#include "console/grid.h"
#include "console/tui_custom.h"

/* From TUI_CUSTOM on: panels of scripts, which are there or not. */
enum tui_panel {
    TUI_CHAT,
    TUI_RANKS,
    TUI_ALLREDUCE,
    TUI_STEP,
    TUI_OPS,
    TUI_PATCHES,
    TUI_LOG,
    TUI_REQUESTS,
    TUI_CUSTOM,
    TUI_NOTEBOOK = TUI_CUSTOM, /* text, as scripts' panels are, but always there */
    TUI_PANELS = TUI_CUSTOM + TUI_CUSTOMS,
};

#define TUI_NUMBERED (TUI_NOTEBOOK + 1) /* panels with a digit of their own: those before */

/* The smallest screen that shows anything but a request for more room. */
#define TUI_MIN_ROWS 15
#define TUI_MIN_COLS 60
#define TUI_LOOK_ROWS 6 /* without a prompt, for who only looks */
#define TUI_LOOK_COLS 40
#define TUI_PROMPT_ROWS 3 /* the prompt never has fewer */
#define TUI_MAX_NODES 32

/* As in arrangements ("allreduce"), and for people ("All-reduce"). NULL: a place for a script's panel that is free. */
const char *tui_panel_name(int panel);
const char *tui_panel_title(int panel);

/* -1: there is no panel of that name. */
int tui_panel_find(const char *name);

struct tui_preset {
    const char *name, *spec, *help;
};
extern const struct tui_preset tui_presets[]; /* ends with a NULL name */

enum tui_node_kind { TUI_LEAF, TUI_STACK, TUI_ROW };

struct tui_node {
    enum tui_node_kind kind;
    enum tui_panel panel; /* TUI_LEAF */
    double weight;
    int first, next; /* child and sibling by index; -1: none */
};

struct tui_tree {
    struct tui_node nodes[TUI_MAX_NODES];
    int n, root;
};

/* Read an arrangement. False: it makes no sense; *bad is the offset of what does not. A panel may appear once. */
bool tui_tree_parse(const char *spec, struct tui_tree *out, size_t *bad);
void tui_tree_print(const struct tui_tree *t, struct buf *out);

/* Multiply the share of a panel (and of the branch that holds it). False: it is not in the tree. */
bool tui_tree_weigh(struct tui_tree *t, enum tui_panel panel, double factor);

struct tui_layout_args {
    int rows, cols;
    int prompt_rows; /* lines that the input needs; 0: no prompt at all */
    int ranks;       /* lines that the ranks panel would like */
    int zoom;        /* a panel that has everything to itself, or -1 */
};

struct tui_layout {
    bool too_small;                              /* then nothing else is set */
    bool boxed;                                  /* panels have a line all around, not only a title line above and a line at the left */
    struct grid_rect status, prompt, hint, area; /* prompt: its rule and the lines of input below */
    bool shown[TUI_PANELS];
    struct grid_rect panel[TUI_PANELS]; /* with its frame */
    struct grid_rect inner[TUI_PANELS]; /* without */
};

/* Panels are left out in this order, the first one first; TUI_CHAT and the last one never. */
extern const enum tui_panel tui_layout_drop_order[TUI_PANELS];

void tui_layout_compute(const struct tui_tree *t, const struct tui_layout_args *args, struct tui_layout *out);

#endif
