/* buf.h: a string that grows, and allocation that does not fail.
 *
 * The console gives up when memory for a line of text cannot be had: x*() and buf_*() print one line and exit with status 1 then. Memory for
 * models never comes from here. Any thread; a struct buf belongs to one thread at a time. */
#ifndef RANKSCOPE_CONSOLE_BUF_H
#define RANKSCOPE_CONSOLE_BUF_H

#include <stdarg.h>
#include <stddef.h>

/* Never NULL; the caller frees with free(). There is no xmalloc() or xrealloc() here: readline has its own, which ours would replace. */
void *xcalloc(size_t n, size_t size);
void *xreallocarray(void *p, size_t n, size_t size);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *xvasprintf(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

/* Zero-initialise it ({0}); text is NULL while nothing was added, afterwards always ends in a NUL that len does not count. */
struct buf {
    char *text;
    size_t len, cap;
};

void buf_add(struct buf *b, const char *text, size_t len);
void buf_str(struct buf *b, const char *text);
void buf_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Empty it and keep the memory. */
void buf_clear(struct buf *b);

/* Free it and make it usable again. */
void buf_fini(struct buf *b);

/* Hand its text over (never NULL; caller frees) and leave it empty. */
char *buf_take(struct buf *b);

#endif
