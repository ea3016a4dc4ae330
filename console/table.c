#include "config.h"

#include "console/table.h"

#include <assert.h>
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/text.h"

#define GAP 2    /* columns before each cell */
#define LEAST 12 /* columns that a shortened cell keeps; its title keeps all */
#define WRAP 30  /* a column of sentences gets no narrower than this before others are left out */
#define LAST 10  /* behind all digits: a column that is never left out is shortened last */

/* How the columns are shown at a width. */
struct fit {
    size_t width[TABLE_MAX_COLUMNS];
    bool shown[TABLE_MAX_COLUMNS], cut[TABLE_MAX_COLUMNS], empty[TABLE_MAX_COLUMNS];
};

struct table *table_new(const char *heads)
{
    struct table *t = xcalloc(1, sizeof *t);
    while (*heads != '\0') {
        assert(t->columns < TABLE_MAX_COLUMNS);
        for (; *heads == '>' || *heads == '~' || *heads == '+' || isdigit((unsigned char)*heads); heads++) {
            if (*heads == '>')
                t->right[t->columns] = true;
            else if (*heads == '~')
                t->shorten[t->columns] = true;
            else if (*heads == '+')
                t->wraps[t->columns] = true;
            else
                t->leaves[t->columns] = (unsigned char)(*heads - '0');
        }
        size_t n = strcspn(heads, "|");
        t->cells = xreallocarray(t->cells, t->columns + 1, sizeof *t->cells);
        t->cells[t->columns++] = xstrndup(heads, n);
        heads += n + (heads[n] == '|');
    }
    t->n_cells = t->columns;
    return t;
}

void table_fold(struct table *t, size_t keys)
{
    t->keys = keys;
}

void table_cell(struct table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    t->cells = xreallocarray(t->cells, t->n_cells + 1, sizeof *t->cells);
    t->cells[t->n_cells++] = text_one_line(text);
    free(text);
}

/* ---- what fits ----------------------------------------------------------------------------------------------------------------------- */

static size_t sum_of(const struct table *t, const struct fit *f)
{
    size_t sum = 0;
    for (size_t c = 0; c < t->columns; c++)
        sum += f->shown[c] ? GAP + f->width[c] : 0;
    return sum;
}

/* Columns that a cell of column c may lose. */
static size_t spare(const struct table *t, const struct fit *f, size_t c)
{
    size_t title = text_columns(t->cells[c]), least = t->wraps[c] ? WRAP : LEAST;
    least = title > least ? title : least;
    return f->shown[c] && (t->shorten[c] || t->wraps[c]) && f->width[c] > least ? f->width[c] - least : 0;
}

/* The column that is to be left out next; SIZE_MAX: none may be. */
static size_t next_out(const struct table *t, const struct fit *f)
{
    size_t next = SIZE_MAX;
    for (size_t c = 0; c < t->columns; c++)
        if (f->shown[c] && t->leaves[c] != 0 && (next == SIZE_MAX || t->leaves[c] < t->leaves[next]))
            next = c;
    return next;
}

static void cut(struct fit *f, size_t c, size_t by, size_t *excess)
{
    by = by < *excess ? by : *excess;
    f->width[c] -= by;
    f->cut[c] = f->cut[c] || by > 0;
    *excess -= by;
}

/* Columns that say nothing in any row go first, and nobody misses them. */
static void drop_empty(const struct table *t, struct fit *f)
{
    for (size_t c = 0; c < t->columns; c++) {
        bool empty = t->leaves[c] != 0;
        for (size_t i = t->columns + c; i < t->n_cells && empty; i += t->columns)
            empty = t->cells[i][0] == '\0';
        f->shown[c] = f->shown[c] && !empty;
        f->empty[c] = empty;
    }
}

/* Make the table as narrow as `columns`: shorten if that is enough, else leave something out and try again. Where nothing is left that may go,
 * the columns at the right lose what is too much, so that no row wraps. */
static void fit_into(const struct table *t, size_t columns, struct fit *f)
{
    size_t sum, room, out;
    for (;;) {
        sum = sum_of(t, f);
        room = 0;
        if (sum <= columns)
            return;
        for (size_t c = 0; c < t->columns; c++)
            room += spare(t, f, c);
        if (room >= sum - columns || (out = next_out(t, f)) == SIZE_MAX)
            break;
        f->shown[out] = false;
    }
    size_t excess = sum - columns;
    for (unsigned turn = 1; turn <= LAST; turn++)
        for (size_t c = t->columns; c-- > 0;)
            if ((t->leaves[c] != 0 ? t->leaves[c] : LAST) == turn)
                cut(f, c, spare(t, f, c), &excess);
    for (size_t c = t->columns; c-- > 0;)
        cut(f, c, f->shown[c] && f->width[c] > 1 ? f->width[c] - 1 : 0, &excess);
}

/* ---- printing ------------------------------------------------------------------------------------------------------------------------ */

/* The bytes of text that one line of `columns` takes, up to a space where there is one, and the columns that they have. */
static size_t one_line(const char *text, size_t columns, size_t *used)
{
    size_t n = text_fit(text, columns, used), end = n;
    if (n == 0) /* a wide character in one column: it has to go somewhere */
        return text_fit(text, 2, used);
    while (end > 0 && text[n] != '\0' && text[end] != ' ')
        end--;
    char *line = xstrndup(text, end > 0 ? end : n);
    *used = text_columns(line);
    free(line);
    return end > 0 ? end : n;
}

/* A cell, or what goes on in this line of it; returns what is left for the next one. */
static const char *print_cell(const struct table *t, size_t c, const char *text, const struct fit *f, struct buf *b)
{
    size_t n = strlen(text), used = text_columns(text);
    bool over = used > f->width[c], dots = over && f->width[c] > 2 && !t->wraps[c];
    const char *left = text + n;
    if (over && t->wraps[c]) {
        n = one_line(text, f->width[c], &used);
        left = text + n + strspn(text + n, " ");
    } else if (over) {
        n = text_fit(text, f->width[c] - (dots ? 2 : 0), &used);
    }
    used += dots ? 2 : 0;
    size_t pad = used < f->width[c] ? f->width[c] - used : 0;
    buf_printf(b, "%*s", GAP, "");
    if (t->right[c])
        buf_printf(b, "%*s", (int)pad, "");
    buf_add(b, text, n);
    buf_str(b, dots ? ".." : "");
    if (!t->right[c])
        buf_printf(b, "%*s", (int)pad, "");
    return left;
}

/* One row, which takes several lines where cells wrap. Nothing is padded after the last column that has text. */
static void print_row(const struct table *t, size_t row, const struct fit *f, struct out *o)
{
    const char *left[TABLE_MAX_COLUMNS];
    for (size_t c = 0; c < t->columns; c++)
        left[c] = t->cells[row * t->columns + c];
    for (bool more = true; more;) {
        struct buf b = {0};
        more = false;
        for (size_t c = 0; c < t->columns; c++) {
            if (!f->shown[c])
                continue;
            left[c] = print_cell(t, c, left[c], f, &b);
            more = more || *left[c] != '\0';
        }
        while (b.len > 0 && b.text[b.len - 1] == ' ')
            b.text[--b.len] = '\0';
        buf_char(&b, '\n');
        out_write(o, row == 0 ? OUT_HEADING : OUT_TEXT, b.text, b.len);
        buf_fini(&b);
    }
}

static void print_rows(const struct table *t, const struct fit *f, struct out *o)
{
    for (size_t row = 0; row < t->n_cells / t->columns; row++)
        print_row(t, row, f, o);
}

static void name(struct buf *b, const char *title, const char *first)
{
    buf_printf(b, "%s%s", b->len > 0 ? ", " : first, title);
}

/* What the room did not allow, in one line. */
static void say_missing(const struct table *t, const struct fit *f, size_t columns, struct out *o)
{
    struct buf out = {0}, shorter = {0};
    for (size_t c = 0; c < t->columns; c++) {
        if (!f->shown[c] && !f->empty[c])
            name(&out, t->cells[c], "without ");
        else if (f->shown[c] && f->cut[c] && !t->wraps[c])
            name(&shorter, t->cells[c], "shortened: ");
    }
    if (out.len > 0 || shorter.len > 0)
        out_printf(o, OUT_THINKING, "  (%zu columns here: %s%s%s)\n", columns, out.len > 0 ? out.text : "", out.len > 0 && shorter.len > 0 ? "; " : "",
                   shorter.len > 0 ? shorter.text : "");
    buf_fini(&out);
    buf_fini(&shorter);
}

/* All columns, in as many parts below each other as it takes. */
static void print_folded(const struct table *t, const struct fit *all, size_t columns, struct out *o)
{
    for (size_t c = t->keys; c < t->columns;) {
        struct fit f = *all;
        size_t from = c;
        for (size_t k = t->keys; k < t->columns; k++)
            f.shown[k] = false;
        for (; c < t->columns; c++) {
            f.shown[c] = true;
            if (c > from && sum_of(t, &f) > columns) {
                f.shown[c] = false;
                break;
            }
        }
        fit_into(t, columns, &f);
        if (from > t->keys)
            out_str(o, OUT_TEXT, "\n");
        print_rows(t, &f, o);
    }
}

void table_print(struct table *t, struct out *o)
{
    struct fit f = {0};
    size_t columns = out_columns(o);
    assert(t->n_cells % t->columns == 0);
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t c = i % t->columns, w = text_columns(t->cells[i]);
        f.shown[c] = true;
        if (w > f.width[c])
            f.width[c] = w;
    }
    if (t->n_cells == t->columns) {
        /* no rows */
    } else if (columns == 0 || sum_of(t, &f) <= columns) {
        print_rows(t, &f, o);
    } else if (t->keys > 0) {
        print_folded(t, &f, columns, o);
    } else {
        drop_empty(t, &f);
        fit_into(t, columns, &f);
        print_rows(t, &f, o);
        say_missing(t, &f, columns, o);
    }
    table_free(t);
}

void table_free(struct table *t)
{
    for (size_t i = 0; t != NULL && i < t->n_cells; i++)
        free(t->cells[i]);
    if (t != NULL)
        free(t->cells);
    free(t);
}
