/* text.h: text that comes from elsewhere, made safe to print.
 *
 * A model can produce any byte, also an escape sequence that would drive the terminal. Everything that was not written by us goes through
 * here before it reaches a terminal: control characters become visible (ESC as ^[, a C1 character as the ^[ and letter that it stands for),
 * bytes that are no UTF-8 become U+FFFD. No state but the caller's; any thread. */
#ifndef RANKSCOPE_CONSOLE_TEXT_H
#define RANKSCOPE_CONSOLE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "console/buf.h"

/* Carries a UTF-8 character that was cut between two pieces. Zero-initialise. */
struct text_filter {
    unsigned char held[4];
    unsigned n_held;
    bool after_cr; /* a CR was held back: it vanishes before LF and shows as ^M before anything else */
};

/* Append the safe form of text to out. Newline and tab stay. */
void text_clean(struct text_filter *f, const char *text, size_t len, struct buf *out);

/* The text has ended: what is held back comes out as U+FFFD. */
void text_clean_end(struct text_filter *f, struct buf *out);

/* The safe form of a whole string on one line (newline and tab shown as ^J and ^I); caller frees. */
char *text_one_line(const char *text);

/* The length of the UTF-8 character at s (1..4), 0 if the n bytes there only begin one, -1 if they are none. *cp gets the code point. */
int text_utf8(const unsigned char *s, size_t n, unsigned *cp);

/* Whether the text is UTF-8 without NUL; *bad gets the offset of the first byte that is not. */
bool text_valid(const char *text, size_t len, size_t *bad);

/* Columns that the text takes on a terminal, as the locale has it. */
size_t text_columns(const char *text);

/* The bytes of text that fit into so many columns; *used gets the columns that they take. */
size_t text_fit(const char *text, size_t columns, size_t *used);

#endif
