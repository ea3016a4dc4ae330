#include "config.h"

#include "console/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void no_memory(void)
{
    fputs("rankscope: out of memory\n", stderr);
    exit(1);
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (p == NULL)
        no_memory();
    return p;
}

void *xreallocarray(void *p, size_t n, size_t size)
{
    void *q = reallocarray(p, n ? n : 1, size);
    if (q == NULL)
        no_memory();
    return q;
}

char *xstrndup(const char *s, size_t n)
{
    char *p = xcalloc(n + 1, 1);
    memcpy(p, s, n);
    return p;
}

char *xstrdup(const char *s)
{
    return xstrndup(s, strlen(s));
}

char *xvasprintf(const char *fmt, va_list ap)
{
    char *text;
    if (vasprintf(&text, fmt, ap) < 0)
        no_memory();
    return text;
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    return text;
}

void buf_add(struct buf *b, const char *text, size_t len)
{
    if (len > SIZE_MAX / 2 - b->len)
        no_memory();
    if (b->text == NULL || b->len + len + 1 > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < b->len + len + 1)
            cap *= 2;
        b->text = xreallocarray(b->text, cap, 1);
        b->cap = cap;
    }
    if (len > 0)
        memcpy(b->text + b->len, text, len);
    b->len += len;
    b->text[b->len] = '\0';
}

void buf_str(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    buf_str(b, text);
    free(text);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->text != NULL)
        b->text[0] = '\0';
}

void buf_fini(struct buf *b)
{
    free(b->text);
    *b = (struct buf){0};
}

char *buf_take(struct buf *b)
{
    if (b->text == NULL)
        buf_add(b, "", 0);
    char *text = b->text;
    *b = (struct buf){0};
    return text;
}
