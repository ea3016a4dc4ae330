/* tui_text.h: lines of text that came one after the other, and a view on them: wrapping, scrolling, searching.
 *
 * The store is bounded: the oldest lines go. What is added is neutralised (grid.h draws no control character) and tabs become blanks. Wrapping
 * happens when it is drawn, so a window that changes its size loses nothing; the place that is looked at stays. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_TUI_TEXT_H
#define RANKSCOPE_CONSOLE_TUI_TEXT_H

#include "console/grid.h"

struct tui_line;

struct tui_text {
    struct tui_line *lines; /* a ring */
    size_t cap, first, n;
    uint64_t first_id; /* of the oldest line; the next has the next number */
    bool open;         /* the last line has no newline yet */
    uint8_t fold_role; /* lines of this role fold; 0: none do */

    /* the view */
    bool fold;
    bool scrolled;   /* away from the end; otherwise it follows what comes */
    uint64_t top_id; /* when scrolled: the line at the top, and which of its rows */
    int top_row;
    uint64_t left_id; /* the next line's number when the end was left */
    int h, w;         /* as drawn last */
    bool ascii;
    char *pattern; /* searched for; NULL: nothing */
};

/* At most max_lines are kept. */
void tui_text_init(struct tui_text *t, size_t max_lines);
void tui_text_fini(struct tui_text *t);
void tui_text_clear(struct tui_text *t);

void tui_text_add(struct tui_text *t, uint8_t role, const char *text, size_t len);

/* What comes next begins a line. */
void tui_text_fresh(struct tui_text *t);

/* Draw it into r of g. marker is the role of the line that tells about unseen lines. */
void tui_text_draw(struct tui_text *t, struct grid *g, struct grid_rect r, uint8_t marker);

/* Rows down (or up, if negative); both use the size of the last drawing. */
void tui_text_scroll(struct tui_text *t, int rows);
void tui_text_home(struct tui_text *t);
void tui_text_end(struct tui_text *t);

/* Look for text (NULL or empty: stop looking). Letters match both cases unless the pattern has a capital. Returns how many lines match; the
 * view goes to the nearest one above its end. */
size_t tui_text_find(struct tui_text *t, const char *pattern);

/* To the next match below (or above, if direction is negative); false: there is none. */
bool tui_text_next(struct tui_text *t, int direction);

/* Append all text from line number `from` on. Returns the number that the next line will have. */
uint64_t tui_text_dump(const struct tui_text *t, uint64_t from, struct buf *out);

/* ---- pure parts -------------------------------------------------------------------------------------------------------------------- */

/* The first row of text at a width: returns its bytes, *next is where the next row begins. Breaks at a blank where there is one. */
size_t tui_wrap(const char *text, size_t len, int width, bool ascii, size_t *next);

/* Where pattern stands in text, from offset `from` on; -1: nowhere. */
long tui_match(const char *text, size_t len, size_t from, const char *pattern);

#endif
