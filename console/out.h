/* out.h: where the console's text goes.
 *
 * Commands never print. They hand text with a *role* to a struct out; the front end behind it (plain stream here, panels elsewhere) decides
 * how a role looks. Text from a model or a file must have been through text.h first. One thread, the user interface's. */
#ifndef RANKSCOPE_CONSOLE_OUT_H
#define RANKSCOPE_CONSOLE_OUT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum out_role {
    OUT_TEXT,     /* what a command was asked for */
    OUT_HEADING,  /* over a table or a group */
    OUT_ANSWER,   /* the model's answer */
    OUT_THINKING, /* the model's thinking part */
    OUT_NOTE,     /* what changed, what was done */
    OUT_WARN,
    OUT_ERROR,
    OUT_GOOD, /* a verdict or state that needs no look */
    OUT_BAD,
    OUT_COUNT,
};

struct out {
    void (*write)(struct out *o, enum out_role role, const char *text, size_t len);
    void (*progress)(struct out *o, const char *line); /* a line that the next one replaces; NULL: take it away */
    bool terminal;                                     /* a person is watching: progress lines make sense */
    size_t (*columns)(struct out *o);                  /* how wide what is written is shown; NULL or 0: it has no width (a file, a pipe) */
};

void out_write(struct out *o, enum out_role role, const char *text, size_t len);
void out_str(struct out *o, enum out_role role, const char *text);
void out_printf(struct out *o, enum out_role role, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void out_vprintf(struct out *o, enum out_role role, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));

/* How wide text is shown now, in terminal columns; 0: without a limit. */
size_t out_columns(struct out *o);

/* "error: ..." as one whole line, with whatever controls the text holds made visible. */
void out_error(struct out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A struct out on two streams. Answers and text go to `data`, notes, warnings, errors and progress to `side`; where both are the same
 * stream, a terminal, they stay in order. Colours appear on a stream that is a terminal, unless NO_COLOR is set and not empty or TERM is
 * dumb or unset. */
struct out_stdio {
    struct out out;
    FILE *data, *side;
    bool colour_data, colour_side;
    bool notes_on_data; /* OUT_NOTE goes to data: what commands did is what was asked for (batch mode) */
    bool progressed;    /* a progress line stands on side */
    bool answering;     /* the last line on data is of the model's and not at its end */
};

void out_stdio_init(struct out_stdio *o, FILE *data, FILE *side);

/* errno of the first write to a struct out_stdio that failed; 0: none did. */
int out_stdio_failed(void);

/* Whether colours may be used on this file descriptor. */
bool out_colour_ok(int fd);

#endif
