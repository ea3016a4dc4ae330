/* tui_text.h: lines of text that came one after the other, and a view on them: wrapping, scrolling, searching.
 *
 * The store is bounded: the oldest lines go. What is added is neutralised (grid.h draws no control character) and tabs become blanks. Wrapping
 * happens when it is drawn, so a window that changes its size loses nothing; the place that is looked at stays. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_TUI_TEXT_H
#define RANKSCOPE_CONSOLE_TUI_TEXT_H

#include "console/grid.h"

struct tui_line;

/* A place in the text: line by number, byte in it. */
struct tui_place {
    uint64_t id;
    size_t at;
};

/* Choosing a part to copy, as in tmux's copy mode. */
struct tui_copy {
    bool on;
    struct tui_place cursor, mark;
    bool marked, lines; /* from mark to cursor, or the whole lines of both */
    int goal;           /* the column that moving up and down keeps */
    int y, x;           /* where the cursor was drawn; y < 0: it is not in sight */
};

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
    uint64_t found_id; /* the line that was found last */
    struct tui_copy copy;
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
/* If what begins with line id is more than fits, have that line at the top instead of the end at the bottom. */
void tui_text_from(struct tui_text *t, uint64_t id);
void tui_text_home(struct tui_text *t);
void tui_text_end(struct tui_text *t);

/* Look for text (NULL or empty: stop looking). Letters match both cases unless the pattern has a capital. Returns how many lines match; the
 * view goes to the nearest one above its end. */
size_t tui_text_find(struct tui_text *t, const char *pattern);

/* To the next match below (or above, if direction is negative); false: there is none. */
bool tui_text_next(struct tui_text *t, int direction);

/* Append all text from line number `from` on. Returns the number that the next line will have. */
uint64_t tui_text_dump(const struct tui_text *t, uint64_t from, struct buf *out);

/* The text of a line; NULL: it is not there (any more). Valid until the next change. */
const char *tui_text_line(const struct tui_text *t, uint64_t id, size_t *len);

/* ---- tui_copy.c: choosing a part ------------------------------------------------------------------------------------------------------- */

/* The cursor appears in the last row in sight; the view stands still from now on. False: there is no text. */
bool tui_copy_begin(struct tui_text *t);
void tui_copy_end(struct tui_text *t);

/* Move by rows as they are wrapped now, by characters, by words, or to the beginning (-1) or end (1) of the line or of everything. */
void tui_copy_rows(struct tui_text *t, int rows);
void tui_copy_chars(struct tui_text *t, int n);
void tui_copy_words(struct tui_text *t, int n);
void tui_copy_edge(struct tui_text *t, int side);
void tui_copy_far(struct tui_text *t, int side);

/* To the line that was found last. */
void tui_copy_found(struct tui_text *t);

/* The part begins at the cursor (or is given up, if it did already); lines: it is made of whole lines. */
void tui_copy_mark(struct tui_text *t, bool lines);

/* What is chosen: the part, or without one the line of the cursor. */
void tui_copy_take(const struct tui_text *t, struct buf *out);

/* The bytes of line id that are chosen: false if none are. */
bool tui_copy_range(const struct tui_text *t, uint64_t id, size_t len, size_t *from, size_t *to);

/* ---- pure parts -------------------------------------------------------------------------------------------------------------------- */

/* The first row of text at a width: returns its bytes, *next is where the next row begins. Breaks at a blank where there is one. */
size_t tui_wrap(const char *text, size_t len, int width, bool ascii, size_t *next);

/* Where pattern stands in text, from offset `from` on; -1: nowhere. */
long tui_match(const char *text, size_t len, size_t from, const char *pattern);

#endif
