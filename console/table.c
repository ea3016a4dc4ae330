#include "config.h"

#include "console/table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/text.h"

struct table *table_new(const char *heads)
{
    struct table *t = xcalloc(1, sizeof *t);
    while (*heads != '\0') {
        assert(t->columns < TABLE_MAX_COLUMNS);
        t->right[t->columns] = *heads == '>';
        heads += *heads == '>';
        size_t n = strcspn(heads, "|");
        t->cells = xreallocarray(t->cells, t->columns + 1, sizeof *t->cells);
        t->cells[t->columns++] = xstrndup(heads, n);
        heads += n + (heads[n] == '|');
    }
    t->n_cells = t->columns;
    return t;
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

/* One row. Nothing is padded after the last column that has text. */
static void print_row(const struct table *t, size_t row, const size_t *widths, struct out *o)
{
    struct buf b = {0};
    for (size_t c = 0; c < t->columns; c++) {
        const char *text = t->cells[row * t->columns + c];
        size_t pad = widths[c] - text_columns(text);
        buf_str(&b, "  ");
        if (t->right[c])
            buf_printf(&b, "%*s%s", (int)pad, "", text);
        else
            buf_printf(&b, "%s%*s", text, (int)pad, "");
    }
    while (b.len > 0 && b.text[b.len - 1] == ' ')
        b.text[--b.len] = '\0';
    buf_char(&b, '\n');
    out_write(o, row == 0 ? OUT_HEADING : OUT_TEXT, b.text, b.len);
    buf_fini(&b);
}

void table_print(struct table *t, struct out *o)
{
    size_t widths[TABLE_MAX_COLUMNS] = {0};
    assert(t->n_cells % t->columns == 0);
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t w = text_columns(t->cells[i]);
        if (w > widths[i % t->columns])
            widths[i % t->columns] = w;
    }
    for (size_t row = 0; t->n_cells > t->columns && row < t->n_cells / t->columns; row++)
        print_row(t, row, widths, o);
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
