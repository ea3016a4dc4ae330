#include "config.h"

#include "console/out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "console/buf.h"
#include "console/text.h"

/* Select-graphic-rendition parameters by role; NULL: as the terminal has it. */
static const char *const s_colours[OUT_COUNT] = {
    [OUT_HEADING] = "1", [OUT_THINKING] = "2", [OUT_NOTE] = "36", [OUT_WARN] = "33",
    [OUT_ERROR] = "31",  [OUT_GOOD] = "32",    [OUT_BAD] = "31",
};

static int s_failed;

void out_write(struct out *o, enum out_role role, const char *text, size_t len)
{
    if (len > 0)
        o->write(o, role, text, len);
}

void out_str(struct out *o, enum out_role role, const char *text)
{
    out_write(o, role, text, strlen(text));
}

void out_vprintf(struct out *o, enum out_role role, const char *fmt, va_list ap)
{
    char *text = xvasprintf(fmt, ap);
    out_str(o, role, text);
    free(text);
}

void out_printf(struct out *o, enum out_role role, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    out_vprintf(o, role, fmt, ap);
    va_end(ap);
}

void out_error(struct out *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    char *line = text_one_line(text);
    out_printf(o, OUT_ERROR, "error: %s\n", line);
    free(line);
    free(text);
}

size_t out_columns(struct out *o)
{
    return o->columns != NULL ? o->columns(o) : 0;
}

bool out_colour_ok(int fd)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && (no == NULL || *no == '\0') && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0;
}

static void stdio_progress(struct out *base, const char *line)
{
    struct out_stdio *o = (struct out_stdio *)base;
    if (!base->terminal)
        return;
    if (o->progressed)
        fputs("\r\033[K", o->side);
    o->progressed = line != NULL;
    if (line != NULL)
        fputs(line, o->side);
    fflush(o->side);
}

static void stdio_write(struct out *base, enum out_role role, const char *text, size_t len)
{
    struct out_stdio *o = (struct out_stdio *)base;
    if (o->progressed)
        stdio_progress(base, NULL);
    bool side = (role == OUT_NOTE && !o->notes_on_data) || role == OUT_WARN || role == OUT_ERROR;
    FILE *f = side ? o->side : o->data;
    bool answer = role == OUT_ANSWER || role == OUT_THINKING;
    if (o->answering && !answer && f == o->data && text[0] != '\n') /* what comes between the words of an answer has a line of its own */
        fputc('\n', f);
    if (f == o->data)
        o->answering = answer && text[len - 1] != '\n';
    /* A newline alone needs no colour, and where one ends a text the colour ends before it: no terminal then paints the next line. */
    bool newline = text[len - 1] == '\n';
    const char *colour = newline && len == 1 ? NULL : (side ? o->colour_side : o->colour_data) ? s_colours[role] : NULL;
    if (colour != NULL)
        fprintf(f, "\033[%sm", colour);
    fwrite(text, 1, colour != NULL && newline ? len - 1 : len, f);
    if (colour != NULL)
        fputs(newline ? "\033[m\n" : "\033[m", f);
    errno = 0;
    if (fflush(f) != 0 && s_failed == 0)
        s_failed = errno;
}

static size_t stdio_columns(struct out *base)
{
    struct winsize size;
    int fd = fileno(((struct out_stdio *)base)->data);
    return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int out_stdio_failed(void)
{
    return s_failed;
}

void out_stdio_init(struct out_stdio *o, FILE *data, FILE *side)
{
    const char *term = getenv("TERM");
    bool dumb = term == NULL || strcmp(term, "dumb") == 0;
    *o = (struct out_stdio){
        .out = {.write = stdio_write, .progress = stdio_progress, .terminal = isatty(fileno(side)) && !dumb, .columns = stdio_columns},
        .data = data,
        .side = side,
        .colour_data = out_colour_ok(fileno(data)),
        .colour_side = out_colour_ok(fileno(side)),
    };
}
