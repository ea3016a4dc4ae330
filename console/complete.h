/* complete.h: what could stand at the end of a line of input. Knows no readline. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_COMPLETE_H
#define RANKSCOPE_CONSOLE_COMPLETE_H

#include "console/con.h"

/* Candidates for the last word of a line; each is the whole word. One that ends in '=', '/' or '.' goes on. */
struct complete {
    char **words; /* sorted */
    size_t n;
};

/* Complete line[0 .. point-1]. May ask the engine for its patch slots and sites. Free with complete_fini(). */
void complete_line(struct con *con, const char *line, size_t point, struct complete *out);
void complete_fini(struct complete *c);

#endif
