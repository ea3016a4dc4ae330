/* TAP output. Every line is flushed at once, so that a crash loses nothing. */
#include "tests/tap.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned s_planned;
static unsigned s_run;
static unsigned s_failed;

/* A name must stay on one line, and '#' would start a TAP directive. */
static void print_name(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

static void print_name(const char *fmt, va_list ap)
{
    char name[512];
    vsnprintf(name, sizeof name, fmt, ap);
    for (char *p = name; *p != '\0'; p++)
        if (*p == '#' || *p == '\n' || *p == '\r')
            *p = '.';
    fputs(name, stdout);
}

static bool result(const char *file, int line, bool pass, const char *fmt, va_list ap) __attribute__((format(printf, 4, 0)));

static bool result(const char *file, int line, bool pass, const char *fmt, va_list ap)
{
    s_run++;
    printf("%sok %u - ", pass ? "" : "not ", s_run);
    print_name(fmt, ap);
    putchar('\n');
    if (!pass) {
        s_failed++;
        printf("# failed at %s:%d\n", file, line);
    }
    fflush(stdout);
    return pass;
}

void tap_plan(unsigned n)
{
    s_planned = n;
    printf("1..%u\n", n);
    fflush(stdout);
}

void tap_skip_all(const char *why, ...)
{
    va_list ap;
    va_start(ap, why);
    fputs("1..0 # SKIP ", stdout);
    print_name(why, ap);
    putchar('\n');
    va_end(ap);
    exit(0);
}

void tap_skip(unsigned n, const char *why, ...)
{
    for (unsigned i = 0; i < n; i++) {
        va_list ap;
        va_start(ap, why);
        s_run++;
        printf("ok %u # SKIP ", s_run);
        print_name(why, ap);
        putchar('\n');
        va_end(ap);
    }
    fflush(stdout);
}

void tap_diag(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("# ", stdout);
    print_name(fmt, ap);
    putchar('\n');
    fflush(stdout);
    va_end(ap);
}

bool tap_ok_at(const char *file, int line, bool pass, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    result(file, line, pass, fmt, ap);
    va_end(ap);
    return pass;
}

bool tap_eq_int_at(const char *file, int line, long long got, long long want, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bool pass = result(file, line, got == want, fmt, ap);
    va_end(ap);
    if (!pass)
        tap_diag("got %lld, want %lld", got, want);
    return pass;
}

bool tap_eq_str_at(const char *file, int line, const char *got, const char *want, const char *fmt, ...)
{
    bool same = got == want || (got != NULL && want != NULL && strcmp(got, want) == 0);
    va_list ap;
    va_start(ap, fmt);
    result(file, line, same, fmt, ap);
    va_end(ap);
    if (!same) {
        tap_diag("got  %s", got != NULL ? got : "(null)");
        tap_diag("want %s", want != NULL ? want : "(null)");
    }
    return same;
}

bool tap_eq_mem_at(const char *file, int line, const void *got, const void *want, size_t n, const char *fmt, ...)
{
    const unsigned char *g = got;
    const unsigned char *w = want;
    size_t at = 0;
    while (at < n && g[at] == w[at])
        at++;
    va_list ap;
    va_start(ap, fmt);
    bool pass = result(file, line, at == n, fmt, ap);
    va_end(ap);
    if (!pass)
        tap_diag("byte %zu of %zu: got 0x%02x, want 0x%02x", at, n, g[at], w[at]);
    return pass;
}

bool tap_near_at(const char *file, int line, double got, double want, double tolerance, const char *fmt, ...)
{
    double off = got > want ? got - want : want - got;
    va_list ap;
    va_start(ap, fmt);
    bool pass = result(file, line, off <= tolerance, fmt, ap);
    va_end(ap);
    if (!pass)
        tap_diag("got %.9g, want %.9g within %.3g, off by %.3g", got, want, tolerance, off);
    return pass;
}

int tap_done(void)
{
    if (s_planned == 0)
        printf("1..%u\n", s_run);
    else if (s_planned != s_run)
        tap_diag("planned %u tests, ran %u", s_planned, s_run);
    if (s_failed != 0)
        tap_diag("%u of %u tests failed", s_failed, s_run);
    fflush(stdout);
    return 0;
}

static const char *join(char *buf, size_t size, const char *dir_variable, const char *path)
{
    const char *dir = getenv(dir_variable);
    int n = snprintf(buf, size, "%s/%s", dir != NULL ? dir : ".", path);
    if (n < 0 || (size_t)n >= size) {
        fprintf(stderr, "path too long: %s/%s\n", dir != NULL ? dir : ".", path);
        exit(99);
    }
    return buf;
}

bool tap_short(void)
{
    return getenv("RANKSCOPE_SHORT") != NULL;
}

const char *tap_source(const char *path)
{
    static char s_buf[PATH_MAX];
    return join(s_buf, sizeof s_buf, "abs_srcdir", path);
}

const char *tap_scratch(const char *name)
{
    static char s_buf[PATH_MAX];
    return join(s_buf, sizeof s_buf, "TEST_SCRATCH", name);
}
