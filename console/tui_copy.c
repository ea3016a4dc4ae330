/* tui_copy.c: choosing a part of a text with keys. Rows are those of the last drawing; every place is held inside of the text, whose oldest lines may
 * have gone since. */
#include "config.h"

#include <ctype.h>
#include <string.h>

#include "console/text.h"
#include "console/tui_text.h"

/* Bytes of the character at `at`; 0 at the end. */
static size_t next_char(const char *text, size_t len, size_t at)
{
    unsigned cp;
    int n = at < len ? text_utf8((const unsigned char *)text + at, len - at, &cp) : 0;
    return n > 0 ? (size_t)n : at < len;
}

static size_t char_before(const char *text, size_t at)
{
    size_t n = at > 0;
    while (n < at && ((unsigned char)text[at - n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Put a place inside of the text that there is. */
static struct tui_place inside(const struct tui_text *t, struct tui_place p)
{
    size_t len;
    if (t->n == 0)
        return (struct tui_place){t->first_id, 0};
    if (p.id < t->first_id)
        return (struct tui_place){t->first_id, 0};
    if (p.id >= t->first_id + t->n)
        p.id = t->first_id + t->n - 1;
    tui_text_line(t, p.id, &len);
    p.at = p.at < len ? p.at : len;
    return p;
}

/* The row of its line that a place stands in, and where that row begins and ends. */
static int row_of(const struct tui_text *t, struct tui_place p, size_t *from, size_t *len)
{
    size_t n, at = 0, next = 0;
    const char *text = tui_text_line(t, p.id, &n);
    for (int row = 0;; row++) {
        *len = tui_wrap(text + at, n - at, t->w, t->ascii, &next);
        *from = at;
        if (at + next >= n || p.at < at + next)
            return row;
        at += next;
    }
}

static int rows_of(const struct tui_text *t, uint64_t id)
{
    size_t n, from, len;
    tui_text_line(t, id, &n);
    return 1 + row_of(t, (struct tui_place){id, n}, &from, &len);
}

static int column_of(const struct tui_text *t, struct tui_place p)
{
    size_t n, from, len;
    const char *text = tui_text_line(t, p.id, &n);
    row_of(t, p, &from, &len);
    return grid_columns(text + from, p.at - from, t->ascii);
}

/* The place in the given row of a line that is nearest to a column. */
static struct tui_place place_at(const struct tui_text *t, uint64_t id, int row, int column)
{
    size_t n, at = 0, next = 0;
    const char *text = tui_text_line(t, id, &n);
    size_t len = tui_wrap(text, n, t->w, t->ascii, &next);
    for (int i = 0; i < row && at + next < n; i++) {
        at += next;
        len = tui_wrap(text + at, n - at, t->w, t->ascii, &next);
    }
    size_t end = at + len;
    for (int used = 0; at < end;) {
        size_t k = next_char(text, n, at);
        used += grid_columns(text + at, k, t->ascii);
        if (used > column)
            break;
        at += k;
    }
    return (struct tui_place){id, at};
}

/* Rows from the top of the view down to place p; negative: above it. At most a screen beyond the view. */
static int rows_below_top(const struct tui_text *t, struct tui_place p)
{
    size_t from, len;
    int rows = row_of(t, p, &from, &len) - t->top_row;
    for (uint64_t id = t->top_id; id < p.id && rows <= 2 * t->h; id++)
        rows += rows_of(t, id);
    return p.id < t->top_id ? -1 : rows;
}

/* Bring the cursor in sight, by as few rows as possible. */
static void show_cursor(struct tui_text *t)
{
    struct tui_place p = t->copy.cursor;
    size_t from, len;
    int below = rows_below_top(t, p), row = row_of(t, p, &from, &len);
    if (below >= 0 && below < t->h)
        return;
    t->top_id = p.id;
    t->top_row = row;
    if (below >= 0)
        tui_text_scroll(t, -(t->h - 1));
    t->scrolled = true;
}

static void go(struct tui_text *t, struct tui_place p, bool keep_goal)
{
    struct tui_copy *c = &t->copy;
    c->cursor = inside(t, p);
    if (!keep_goal)
        c->goal = column_of(t, c->cursor);
    show_cursor(t);
}

bool tui_copy_begin(struct tui_text *t)
{
    if (t->n == 0)
        return false;
    /* Without a move the view stays: its top is what was drawn last. */
    tui_text_scroll(t, 0);
    t->scrolled = true;
    t->copy = (struct tui_copy){.on = true, .y = -1};
    struct tui_place p = {t->top_id, 0};
    int rows = -t->top_row;
    while (p.id + 1 < t->first_id + t->n && rows + rows_of(t, p.id) < t->h)
        rows += rows_of(t, p.id++);
    go(t, p, false);
    return true;
}

void tui_copy_end(struct tui_text *t)
{
    t->copy.on = false;
    tui_text_scroll(t, 0);
}

void tui_copy_rows(struct tui_text *t, int rows)
{
    struct tui_place p = inside(t, t->copy.cursor);
    size_t from, len;
    int row = row_of(t, p, &from, &len) + rows;
    uint64_t end = t->first_id + t->n;
    while (row < 0 && p.id > t->first_id)
        row += rows_of(t, --p.id);
    while (p.id + 1 < end && row >= rows_of(t, p.id))
        row -= rows_of(t, p.id++);
    int last = rows_of(t, p.id) - 1;
    go(t, place_at(t, p.id, row < 0 ? 0 : row > last ? last : row, t->copy.goal), true);
}

/* One character on or back, over the ends of lines; false at the end of everything. */
static bool step(const struct tui_text *t, struct tui_place *p, int direction)
{
    size_t len;
    const char *text = tui_text_line(t, p->id, &len);
    if (direction > 0 && p->at < len) {
        p->at += next_char(text, len, p->at);
    } else if (direction > 0 && p->id + 1 < t->first_id + t->n) {
        p->id++;
        p->at = 0;
    } else if (direction < 0 && p->at > 0) {
        p->at -= char_before(text, p->at);
    } else if (direction < 0 && p->id > t->first_id) {
        tui_text_line(t, --p->id, &p->at);
    } else {
        return false;
    }
    return true;
}

void tui_copy_chars(struct tui_text *t, int n)
{
    struct tui_place p = inside(t, t->copy.cursor);
    for (int i = 0; i < (n < 0 ? -n : n); i++)
        step(t, &p, n);
    go(t, p, false);
}

/* Whether a word begins there: what is not a blank, after a blank or the beginning of a line. */
static bool word_begins(const struct tui_text *t, struct tui_place p)
{
    size_t len;
    const char *text = tui_text_line(t, p.id, &len);
    return p.at < len && !isspace((unsigned char)text[p.at]) && (p.at == 0 || isspace((unsigned char)text[p.at - 1]));
}

void tui_copy_words(struct tui_text *t, int n)
{
    struct tui_place p = inside(t, t->copy.cursor);
    for (int i = 0; i < (n < 0 ? -n : n); i++)
        while (step(t, &p, n) && !word_begins(t, p))
            ;
    go(t, p, false);
}

void tui_copy_edge(struct tui_text *t, int side)
{
    struct tui_place p = inside(t, t->copy.cursor);
    p.at = side < 0 ? 0 : SIZE_MAX;
    go(t, p, false);
}

void tui_copy_far(struct tui_text *t, int side)
{
    go(t, (struct tui_place){side < 0 ? t->first_id : t->first_id + t->n - 1, 0}, false);
}

void tui_copy_found(struct tui_text *t)
{
    size_t len;
    const char *text = tui_text_line(t, t->found_id, &len);
    long at = text != NULL && t->pattern != NULL ? tui_match(text, len, 0, t->pattern) : -1;
    if (at >= 0)
        go(t, (struct tui_place){t->found_id, (size_t)at}, false);
}

void tui_copy_mark(struct tui_text *t, bool lines)
{
    struct tui_copy *c = &t->copy;
    c->marked = !c->marked || c->lines != lines;
    c->lines = lines;
    c->mark = c->cursor;
}

static bool before(struct tui_place a, struct tui_place b)
{
    return a.id < b.id || (a.id == b.id && a.at < b.at);
}

bool tui_copy_range(const struct tui_text *t, uint64_t id, size_t len, size_t *from, size_t *to)
{
    const struct tui_copy *c = &t->copy;
    struct tui_place a = before(c->mark, c->cursor) ? c->mark : c->cursor, b = before(c->mark, c->cursor) ? c->cursor : c->mark;
    if (!c->marked || id < a.id || id > b.id)
        return false;
    size_t n;
    const char *text = tui_text_line(t, b.id, &n);
    size_t last = text != NULL ? b.at + next_char(text, n, b.at) : 0; /* the character under the cursor belongs to it */
    *from = id == a.id && !c->lines ? a.at : 0;
    *to = id == b.id && !c->lines ? last : len;
    *from = *from < len ? *from : len;
    *to = *to < len ? *to : len;
    return true;
}

void tui_copy_take(const struct tui_text *t, struct buf *out)
{
    struct tui_text view = *t; /* to choose the cursor's line without touching anything */
    if (!view.copy.marked)
        tui_copy_mark(&view, true);
    uint64_t a = view.copy.mark.id, b = view.copy.cursor.id, first = a < b ? a : b, last = a < b ? b : a;
    for (uint64_t id = first; id <= last; id++) {
        size_t len, from, to;
        const char *text = tui_text_line(&view, id, &len);
        if (text == NULL || !tui_copy_range(&view, id, len, &from, &to))
            continue;
        buf_add(out, text + from, to - from);
        if (id < last || view.copy.lines)
            buf_char(out, '\n');
    }
}
