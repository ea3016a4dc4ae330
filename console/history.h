/* history.h: the lines that were typed, kept in a file of the user (mode 0600).
 *
 * One entry a line, with backslash and newline escaped. The file is appended to line by line, so that several consoles share it and a crash
 * loses nothing, and is cut to its cap when it is read. Failing to read or write it is never an error: the console goes on without.
 * Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_HISTORY_H
#define RANKSCOPE_CONSOLE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

#define HISTORY_MAX 1000       /* entries */
#define HISTORY_MAX_LINE 65536 /* bytes of one entry; longer ones are not kept */

struct history {
    char *file;   /* NULL: not kept on disk */
    char **lines; /* the oldest first */
    size_t n;
};

/* Read the file (path is copied; NULL: none). */
void history_open(struct history *h, const char *path);

/* Add a line, in memory and in the file. Left out: empty lines, lines that begin with a space (that is how one keeps a secret), and a line
 * like the one before. An older entry of the same text goes. Returns whether it was kept. */
bool history_add(struct history *h, const char *line);

void history_close(struct history *h);

#endif
