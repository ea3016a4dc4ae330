/* table.h: text in columns. Cells are copied; widths are terminal columns. Thread of the user interface.
 *
 * Where the place that a table is printed to is narrower (out_columns()), columns that may be shortened are, or sentences go on in the next line, then the
 * least important ones are left out, and a line below says which. What has no width, a file or a pipe, gets everything. */
#ifndef RANKSCOPE_CONSOLE_TABLE_H
#define RANKSCOPE_CONSOLE_TABLE_H

#include "console/out.h"

#define TABLE_MAX_COLUMNS 16

struct table {
    size_t columns;
    bool right[TABLE_MAX_COLUMNS];            /* numbers stand at the right */
    bool shorten[TABLE_MAX_COLUMNS];          /* text that is cut before something is left out */
    bool wraps[TABLE_MAX_COLUMNS];            /* sentences: what has no room goes on below */
    unsigned char leaves[TABLE_MAX_COLUMNS];  /* 1: left out first, and so on; 0: never */
    size_t keys;                              /* 0, or see table_fold() */
    char **cells;                             /* the titles, then row by row */
    size_t n_cells;
};

/* heads: column titles separated by '|'. What stands before a title: '>' puts it at the right, '~' lets it be shortened, '+' wraps its cells, a digit
 * says when it is left out ('1' first); a column without one stays. */
struct table *table_new(const char *heads);

/* Where there is no room for all columns, leave none out but go on below with those that do not fit; the first `keys` columns are repeated there. For figures that
 * nobody can ask for again. */
void table_fold(struct table *t, size_t keys);

/* Fill the next cell, row by row. Control characters become visible. */
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Print it, indented by two, and free it. A table without rows prints nothing. */
void table_print(struct table *t, struct out *o);

/* Free it unprinted; NULL is allowed. */
void table_free(struct table *t);

#endif
