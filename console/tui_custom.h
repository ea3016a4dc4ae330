/* tui_custom.h: panels whose text comes from a script: rs.panel in Lua, or any other part of the console.
 *
 * A panel has a name, by which arrangements know it ("/layout chat*3/(ranks|mine)", "/layout mine"), a title and lines of text. Text comes by
 * tui_custom_text() whenever there is some, or from a function that is asked for it while the panel is in sight. The panel scrolls, keeps its
 * place, and is among the places of keys as "custom". It may be added before there are panels (from init.lua). State of the process, as the
 * keyboard is: there is one screen. Thread of the user interface only. */
#ifndef RANKSCOPE_CONSOLE_TUI_CUSTOM_H
#define RANKSCOPE_CONSOLE_TUI_CUSTOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/rankscope.h"

#define TUI_CUSTOMS 9 /* at most so many at a time; the first is the console's own notebook */

struct con;
struct grid;
struct grid_rect;

/* New text for the panel, lines ended by newlines; heap, the caller frees. NULL: leave what is there. rows and cols: the panel's size now. Called
 * from the console's loop, never while something is drawn: it may ask the engine. It should take a few milliseconds at most. */
typedef char *(*tui_custom_fn)(struct con *con, void *ctx, int rows, int cols);

struct tui_custom {
    const char *name;  /* letters, digits and '-', a letter first; not the name of another panel */
    const char *title; /* NULL: the name */
    tui_custom_fn fn;  /* NULL: text only comes by tui_custom_text() */
    void *ctx;
    void (*drop)(void *ctx); /* called once when the panel goes or is added anew; may be NULL */
    unsigned every_ms;       /* how often fn is asked while the panel is in sight, 100 at least; 0: 1000 */
};

/* Add a panel, or give the one of that name another title and function. Strings are copied. RS_EUSAGE: no name for a panel; RS_ESTATE: there are
 * TUI_CUSTOMS already. On failure ctx is not dropped. */
enum rs_result tui_custom_add(const struct tui_custom *c, struct rs_error *err);

/* Replace a panel's text. A byte that cannot be shown is shown as a mark, control characters as ^X; a line longer than the panel wraps.
 * RS_ENOTFOUND: there is no such panel. */
enum rs_result tui_custom_text(const char *name, const char *text, size_t len, struct rs_error *err);

/* Take a panel away. RS_ENOTFOUND: there is none. */
enum rs_result tui_custom_remove(const char *name, struct rs_error *err);

/* Take all away (at the end of the process, before the state that their functions need goes). */
void tui_custom_clear(void);

/* ---- for the panels -------------------------------------------------------------------------------------------------------------------- */

/* Of the i-th place; NULL: it is free. */
const char *tui_custom_name(int i);
const char *tui_custom_title(int i);

/* Who fills the notebook, the first place. */
void tui_custom_notebook(tui_custom_fn fn, unsigned every_ms);

/* Draw it, from *top on (which is put in range); returns how many rows there are. */
int tui_custom_draw(int i, struct grid *g, const struct grid_rect *r, int *top);

/* When a panel that is in sight wants to be asked; UINT64_MAX: never. */
uint64_t tui_custom_due(int i);

/* Ask it. */
void tui_custom_ask(int i, struct con *con, uint64_t now_us, int rows, int cols);

#endif
