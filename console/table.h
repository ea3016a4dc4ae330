/* table.h: text in columns. Cells are copied; widths are terminal columns. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_TABLE_H
#define RANKSCOPE_CONSOLE_TABLE_H

#include "console/out.h"

#define TABLE_MAX_COLUMNS 16

struct table {
    size_t columns;
    bool right[TABLE_MAX_COLUMNS]; /* numbers stand at the right */
    char **cells;                  /* the titles, then row by row */
    size_t n_cells;
};

/* heads: column titles separated by '|'; one that begins with '>' is right-aligned. */
struct table *table_new(const char *heads);

/* Fill the next cell, row by row. Control characters become visible. */
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Print it, indented by two, and free it. A table without rows prints nothing. */
void table_print(struct table *t, struct out *o);

/* Free it unprinted; NULL is allowed. */
void table_free(struct table *t);

#endif
