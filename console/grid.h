/* grid.h: a screen as data: cells with a character, a role and a width.
 *
 * Everything that the panels show is drawn into a grid; one file (tui_curses.c) brings a grid to a terminal, and tests compare grids as text.
 * Writing is clipped by columns, so no call can go outside; control characters never become cells: they show as ^X. Roles are small numbers
 * that the grid does not interpret. No state but the caller's; any thread. */
#ifndef RANKSCOPE_CONSOLE_GRID_H
#define RANKSCOPE_CONSOLE_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "console/buf.h"

enum grid_flag {
    GRID_SELECTED = 1, /* the row or cell that keys act on */
    GRID_MATCH = 2,    /* found by a search */
};

struct grid_cell {
    uint32_t cp;   /* 0: the right half of the wide character before it */
    uint32_t mark; /* a combining character on top of it, or 0 */
    uint8_t role, width, flags;
};

struct grid {
    int rows, cols;
    bool ascii; /* characters outside ASCII become '?' */
    struct grid_cell *cells;
};

struct grid_rect {
    int y, x, h, w;
};

/* Make it that size, all blanks of role 0. Works on {0} too. */
void grid_resize(struct grid *g, int rows, int cols);
void grid_fini(struct grid *g);

/* Blank a part of it. */
void grid_fill(struct grid *g, struct grid_rect r, uint8_t role);

/* One character; whatever lies outside is dropped. Returns the columns that it takes. */
int grid_char(struct grid *g, int y, int x, uint8_t role, uint32_t cp);

/* UTF-8 text from column x on, at most `columns` of them; returns how many were used. A wide character that would be cut is left out. */
int grid_text(struct grid *g, int y, int x, int columns, uint8_t role, const char *text, size_t len);
int grid_str(struct grid *g, int y, int x, int columns, uint8_t role, const char *text);
int grid_printf(struct grid *g, int y, int x, int columns, uint8_t role, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* Add flags to the cells of a row. */
void grid_flag(struct grid *g, int y, int x, int columns, uint8_t flags);

/* Columns of one character: 0, 1 or 2; -1: it is not for printing. */
int grid_width(uint32_t cp);

/* Columns that grid_text() would use for the whole text. */
int grid_columns(const char *text, size_t len, bool ascii);

/* Append cp as UTF-8. */
void grid_utf8(struct buf *out, uint32_t cp);

/* The grid as text: one line a row, blanks at the end cut. With roles, a second block of the same size follows after a line "--": one
 * character a cell (a blank for role 0, then a-z and A-Z by number; # selected, * found). */
void grid_save(const struct grid *g, bool roles, struct buf *out);

#endif
