#include "config.h"

#include "console/tui_text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/text.h"

#define MAX_LINE 4096 /* bytes; a longer line goes on in another one, so that no line is dear to wrap */

struct tui_run {
    uint32_t at;
    uint8_t role;
};

struct tui_line {
    char *text;
    uint32_t len, cap;
    struct tui_run *runs;
    uint32_t n_runs;
    int column;               /* where the next character goes, for tabs */
    int wrap_cols, wrap_rows; /* rows at that width; 0: not known */
};

/* ---- pure parts ---------------------------------------------------------------------------------------------------------------------- */

size_t tui_wrap(const char *text, size_t len, int width, bool ascii, size_t *next)
{
    size_t i = 0, blank = 0;
    int used = 0;
    bool have_blank = false;
    while (i < len) {
        unsigned cp = 0;
        int n = text_utf8((const unsigned char *)text + i, len - i, &cp);
        if (n <= 0)
            n = 1;
        int w = grid_columns(text + i, (size_t)n, ascii);
        if (used + w > width && used > 0) {
            if (cp == ' ') { /* the blank itself falls at the end */
                *next = i + 1;
                return i;
            }
            if (have_blank) {
                *next = blank + 1;
                return blank;
            }
            *next = i;
            return i;
        }
        if (cp == ' ') {
            blank = i;
            have_blank = i > 0;
        }
        used += w;
        i += (size_t)n;
    }
    *next = len;
    return len;
}

long tui_match(const char *text, size_t len, size_t from, const char *pattern)
{
    size_t n = strlen(pattern);
    bool exact = false;
    for (const char *p = pattern; *p != '\0'; p++)
        exact = exact || isupper((unsigned char)*p);
    for (size_t i = from; n > 0 && i + n <= len; i++) {
        size_t k = 0;
        while (k < n && (exact ? text[i + k] == pattern[k] : tolower((unsigned char)text[i + k]) == tolower((unsigned char)pattern[k])))
            k++;
        if (k == n)
            return (long)i;
    }
    return -1;
}

/* ---- the store ----------------------------------------------------------------------------------------------------------------------- */

void tui_text_init(struct tui_text *t, size_t max_lines)
{
    *t = (struct tui_text){.lines = xcalloc(max_lines, sizeof(struct tui_line)), .cap = max_lines, .h = 1, .w = 1};
}

static struct tui_line *line_at(const struct tui_text *t, size_t i)
{
    return &t->lines[(t->first + i) % t->cap];
}

static void free_line(struct tui_line *l)
{
    free(l->text);
    free(l->runs);
    *l = (struct tui_line){0};
}

void tui_text_clear(struct tui_text *t)
{
    for (size_t i = 0; i < t->n; i++)
        free_line(line_at(t, i));
    t->first_id += t->n;
    t->n = t->first = 0;
    t->open = t->scrolled = false;
}

void tui_text_fini(struct tui_text *t)
{
    tui_text_clear(t);
    free(t->lines);
    free(t->pattern);
    *t = (struct tui_text){0};
}

static struct tui_line *new_line(struct tui_text *t)
{
    if (t->n == t->cap) {
        free_line(line_at(t, 0));
        t->first = (t->first + 1) % t->cap;
        t->first_id++;
        t->n--;
    }
    struct tui_line *l = line_at(t, t->n++);
    *l = (struct tui_line){0};
    t->open = true;
    return l;
}

static void put(struct tui_line *l, uint8_t role, const char *bytes, size_t n)
{
    if (l->n_runs == 0 || l->runs[l->n_runs - 1].role != role) {
        l->runs = xreallocarray(l->runs, l->n_runs + 1, sizeof *l->runs);
        l->runs[l->n_runs++] = (struct tui_run){l->len, role};
    }
    if (l->len + n + 1 > l->cap) {
        l->cap = l->cap == 0 ? 96 : 2 * l->cap + (uint32_t)n;
        l->text = xreallocarray(l->text, l->cap, 1);
    }
    memcpy(l->text + l->len, bytes, n);
    l->len += (uint32_t)n;
    l->text[l->len] = '\0';
    l->wrap_cols = 0;
}

/* One character, made harmless. Returns the bytes used of `bytes`. */
static size_t put_char(struct tui_line *l, uint8_t role, const char *bytes, size_t len)
{
    unsigned cp = 0;
    int n = text_utf8((const unsigned char *)bytes, len, &cp);
    if (n <= 0) {
        put(l, role, "\xef\xbf\xbd", 3);
        l->column++;
        return 1;
    }
    if (cp == '\t') {
        static const char blanks[] = "        ";
        size_t k = 8 - (size_t)l->column % 8;
        put(l, role, blanks, k);
        l->column += (int)k;
    } else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
        char shown[2] = {'^', cp < 0x80 ? (char)(cp ^ 0x40) : '['};
        put(l, role, shown, 2);
        l->column += 2;
    } else {
        put(l, role, bytes, (size_t)n);
        l->column += grid_columns(bytes, (size_t)n, false);
    }
    return (size_t)n;
}

void tui_text_add(struct tui_text *t, uint8_t role, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        struct tui_line *l = t->open ? line_at(t, t->n - 1) : NULL;
        if (l != NULL && l->len >= MAX_LINE && text[i] != '\n')
            l = NULL;
        if (l == NULL)
            l = new_line(t);
        if (text[i] == '\n') {
            t->open = false;
            i++;
            continue;
        }
        i += put_char(l, role, text + i, len - i);
    }
}

void tui_text_fresh(struct tui_text *t)
{
    t->open = false;
}

uint64_t tui_text_dump(const struct tui_text *t, uint64_t from, struct buf *out)
{
    for (size_t i = from > t->first_id ? (size_t)(from - t->first_id) : 0; i < t->n; i++) {
        const struct tui_line *l = line_at(t, i);
        buf_add(out, l->text != NULL ? l->text : "", l->len);
        buf_char(out, '\n');
    }
    return t->first_id + t->n;
}

const char *tui_text_line(const struct tui_text *t, uint64_t id, size_t *len)
{
    *len = 0;
    if (id < t->first_id || id >= t->first_id + t->n)
        return NULL;
    const struct tui_line *l = line_at(t, (size_t)(id - t->first_id));
    *len = l->len;
    return l->text != NULL ? l->text : "";
}

/* ---- the view ------------------------------------------------------------------------------------------------------------------------ */

static const char *text_of(const struct tui_line *l)
{
    return l->text != NULL ? l->text : "";
}

static bool folds(const struct tui_text *t, size_t i)
{
    const struct tui_line *l = line_at(t, i);
    return t->fold && !t->copy.on && t->fold_role != 0 && l->n_runs == 1 && l->runs[0].role == t->fold_role;
}

static bool folds_away(const struct tui_text *t, size_t i)
{
    return folds(t, i) && i > 0 && folds(t, i - 1);
}

static int rows_of(const struct tui_text *t, size_t i)
{
    struct tui_line *l = line_at(t, i);
    if (folds(t, i))
        return folds_away(t, i) ? 0 : 1;
    if (l->wrap_cols == t->w)
        return l->wrap_rows;
    size_t at = 0, next;
    int rows = 0;
    do {
        tui_wrap(text_of(l) + at, l->len - at, t->w, t->ascii, &next);
        at += next;
        rows++;
    } while (at < l->len);
    l->wrap_cols = t->w;
    l->wrap_rows = rows;
    return rows;
}

/* The line and row at the top when the end is at the bottom. */
static void find_end(const struct tui_text *t, size_t *line, int *row)
{
    int left = t->h;
    size_t i = t->n;
    while (i > 0 && left > 0)
        left -= rows_of(t, --i);
    *line = i;
    *row = left < 0 ? -left : 0;
}

static void find_top(struct tui_text *t, size_t *line, int *row)
{
    size_t end_line;
    int end_row;
    find_end(t, &end_line, &end_row);
    if (t->scrolled && t->top_id < t->first_id) {
        t->top_id = t->first_id;
        t->top_row = 0;
    }
    *line = t->scrolled ? (size_t)(t->top_id - t->first_id) : end_line;
    *row = t->scrolled ? t->top_row : end_row;
    if (!t->scrolled)
        return;
    if (*line >= t->n || *line > end_line || (*line == end_line && *row >= end_row)) {
        t->scrolled = t->copy.on; /* a larger window shows the end again */
        t->top_id = t->first_id + end_line;
        t->top_row = end_row;
        *line = end_line;
        *row = end_row;
    } else if (*row > 0 && *row >= rows_of(t, *line)) {
        *row = rows_of(t, *line) > 0 ? rows_of(t, *line) - 1 : 0;
    }
}

static uint8_t role_at(const struct tui_line *l, size_t at, size_t *until)
{
    uint8_t role = 0;
    *until = l->len;
    for (uint32_t r = 0; r < l->n_runs; r++) {
        if (l->runs[r].at > at) {
            *until = l->runs[r].at;
            break;
        }
        role = l->runs[r].role;
    }
    return role;
}

static void draw_row(const struct tui_text *t, struct grid *g, const struct tui_line *l, size_t from, size_t len, int y, int x, int w)
{
    int used = 0;
    for (size_t at = from; at < from + len;) {
        size_t until;
        uint8_t role = role_at(l, at, &until);
        if (until > from + len)
            until = from + len;
        used += grid_text(g, y, x + used, w - used, role, l->text + at, until - at);
        at = until;
    }
    if (t->pattern == NULL)
        return;
    for (long m = tui_match(l->text, from + len, from, t->pattern); m >= 0;
         m = tui_match(l->text, from + len, (size_t)m + strlen(t->pattern), t->pattern))
        grid_flag(g, y, x + grid_columns(l->text + from, (size_t)m - from, t->ascii),
                  grid_columns(t->pattern, strlen(t->pattern), t->ascii), GRID_MATCH);
}

/* The chosen part of a row, and the cursor. A chosen line without text shows one cell. */
static void draw_copy(struct tui_text *t, struct grid *g, size_t i, size_t from, size_t len, bool last, int y, int x)
{
    const struct tui_line *l = line_at(t, i);
    struct tui_copy *c = &t->copy;
    uint64_t id = t->first_id + i;
    size_t a, b;
    if (tui_copy_range(t, id, l->len, &a, &b) && a <= from + len && b >= from) {
        a = a > from ? a : from;
        b = b < from + len ? b : from + len;
        int at = grid_columns(text_of(l) + from, a - from, t->ascii), n = grid_columns(text_of(l) + a, b - a, t->ascii);
        if (n > 0 || l->len == 0)
            grid_flag(g, y, x + at, n > 0 ? n : 1, GRID_SELECTED);
    }
    if (c->cursor.id == id && c->cursor.at >= from && (c->cursor.at < from + len || last)) {
        c->y = y;
        c->x = x + grid_columns(text_of(l) + from, c->cursor.at - from, t->ascii);
        c->x = c->x < x + t->w ? c->x : x + t->w - 1;
    }
}

static void draw_fold(const struct tui_text *t, struct grid *g, size_t i, int y, int x, int w)
{
    size_t n = 1;
    while (i + n < t->n && folds(t, i + n))
        n++;
    grid_printf(g, y, x, w, t->fold_role, "(thinking: %zu lines folded)", n);
}

static void draw_marker(const struct tui_text *t, struct grid *g, struct grid_rect r, uint8_t role)
{
    uint64_t end = t->first_id + t->n;
    char text[64];
    if (end > t->left_id)
        snprintf(text, sizeof text, " -- %llu new lines -- ", (unsigned long long)(end - t->left_id));
    else
        snprintf(text, sizeof text, " -- more (PgDn) -- ");
    int n = (int)strlen(text);
    if (n < r.w)
        grid_str(g, r.y + r.h - 1, r.x + r.w - n, n, role, text);
}

void tui_text_draw(struct tui_text *t, struct grid *g, struct grid_rect r, uint8_t marker)
{
    size_t i;
    int skip, y = 0;
    if (r.h < 1 || r.w < 1)
        return;
    t->h = r.h;
    t->w = r.w;
    t->ascii = g->ascii;
    t->copy.y = -1;
    find_top(t, &i, &skip);
    for (; i < t->n && y < r.h; i++) {
        const struct tui_line *l = line_at(t, i);
        if (folds(t, i)) {
            if (!folds_away(t, i))
                draw_fold(t, g, i, r.y + y++, r.x, r.w);
            continue;
        }
        size_t at = 0, next;
        do {
            size_t len = tui_wrap(text_of(l) + at, l->len - at, r.w, t->ascii, &next);
            if (skip > 0)
                skip--;
            else if (y < r.h) {
                draw_row(t, g, l, at, len, r.y + y, r.x, r.w);
                if (t->copy.on)
                    draw_copy(t, g, i, at, len, at + next >= l->len, r.y + y, r.x);
                y++;
            }
            at += next;
        } while (at < l->len && y < r.h);
        skip = 0;
    }
    if (t->scrolled && !t->copy.on)
        draw_marker(t, g, r, marker);
}

void tui_text_scroll(struct tui_text *t, int rows)
{
    size_t i;
    int row;
    if (t->n == 0)
        return;
    find_top(t, &i, &row);
    if (!t->scrolled)
        t->left_id = t->first_id + t->n;
    row += rows;
    while (row < 0 && i > 0)
        row += rows_of(t, --i);
    if (row < 0)
        row = 0;
    while (i + 1 < t->n && row >= rows_of(t, i))
        row -= rows_of(t, i++);
    t->top_id = t->first_id + i;
    t->top_row = row;
    t->scrolled = true;
    find_top(t, &i, &row); /* the end ends it */
}

void tui_text_from(struct tui_text *t, uint64_t id)
{
    int rows = 0;
    size_t i = id > t->first_id ? (size_t)(id - t->first_id) : 0;
    for (size_t k = i; k < t->n && rows <= t->h; k++)
        rows += rows_of(t, k);
    if (rows <= t->h)
        return;
    t->left_id = t->first_id + t->n;
    t->top_id = t->first_id + i;
    t->top_row = 0;
    t->scrolled = true;
}

void tui_text_home(struct tui_text *t)
{
    if (!t->scrolled)
        t->left_id = t->first_id + t->n;
    t->scrolled = true;
    t->top_id = t->first_id;
    t->top_row = 0;
}

void tui_text_end(struct tui_text *t)
{
    t->scrolled = false;
}

/* ---- searching ----------------------------------------------------------------------------------------------------------------------- */

static bool matches(const struct tui_text *t, size_t i)
{
    const struct tui_line *l = line_at(t, i);
    return l->len > 0 && tui_match(l->text, l->len, 0, t->pattern) >= 0;
}

/* Bring line i to the middle of the view. */
static void show_line(struct tui_text *t, size_t i)
{
    if (!t->scrolled)
        t->left_id = t->first_id + t->n;
    t->scrolled = true;
    t->found_id = t->top_id = t->first_id + i;
    t->top_row = 0;
    tui_text_scroll(t, -(t->h / 2));
}

bool tui_text_next(struct tui_text *t, int direction)
{
    size_t i;
    int row;
    if (t->pattern == NULL || t->n == 0)
        return false;
    find_top(t, &i, &row);
    /* The middle of the view is where the last find left it. */
    int rows = -row;
    while (i + 1 < t->n && rows + rows_of(t, i) <= t->h / 2)
        rows += rows_of(t, i++);
    for (size_t k = 1; k <= t->n; k++) {
        size_t j = direction > 0 ? (i + k) % t->n : (i + t->n - k % t->n) % t->n;
        if (matches(t, j)) {
            show_line(t, j);
            return true;
        }
    }
    return false;
}

size_t tui_text_find(struct tui_text *t, const char *pattern)
{
    size_t found = 0, last = 0;
    free(t->pattern);
    t->pattern = pattern != NULL && *pattern != '\0' ? xstrdup(pattern) : NULL;
    for (size_t i = 0; t->pattern != NULL && i < t->n; i++) {
        if (!matches(t, i))
            continue;
        found++;
        last = i;
    }
    if (found > 0)
        show_line(t, last);
    return found;
}
