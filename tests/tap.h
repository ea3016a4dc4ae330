/* A small TAP library for tests in C. One test program is one main() that calls the functions below and ends in `return tap_done();`.
 *
 * The exit status is 0 once the plan ran, whether or not tests failed: failures are in the output, and a program that also exits non-zero
 * would be counted twice. A program that dies or leaves early prints no plan, which the harness reports as an error. One thread. */
#ifndef RANKSCOPE_TESTS_TAP_H
#define RANKSCOPE_TESTS_TAP_H

#include <stdbool.h>
#include <stddef.h>

#define TAP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* Announce n tests in advance. Without it tap_done() prints the plan, which then cannot notice a test that never ran. */
void tap_plan(unsigned n);

/* Leave: the whole program cannot run here. Does not return. */
_Noreturn void tap_skip_all(const char *why, ...) TAP_PRINTF(1, 2);

/* Count n tests as skipped. why names what is missing. */
void tap_skip(unsigned n, const char *why, ...) TAP_PRINTF(2, 3);

/* A line for the reader, "# ..." in the output. */
void tap_diag(const char *fmt, ...) TAP_PRINTF(1, 2);

/* Each of these is one test: its printf-formatted name comes last. They print what they got when they fail, and return whether they passed. */
#define tap_ok(pass, ...) tap_ok_at(__FILE__, __LINE__, (pass), __VA_ARGS__)
#define tap_eq_int(got, want, ...) tap_eq_int_at(__FILE__, __LINE__, (got), (want), __VA_ARGS__)
#define tap_eq_str(got, want, ...) tap_eq_str_at(__FILE__, __LINE__, (got), (want), __VA_ARGS__)
#define tap_eq_mem(got, want, n, ...) tap_eq_mem_at(__FILE__, __LINE__, (got), (want), (n), __VA_ARGS__)
/* |got - want| <= tolerance; not-a-number never passes. */
#define tap_near(got, want, tolerance, ...) tap_near_at(__FILE__, __LINE__, (got), (want), (tolerance), __VA_ARGS__)

bool tap_ok_at(const char *file, int line, bool pass, const char *fmt, ...) TAP_PRINTF(4, 5);
bool tap_eq_int_at(const char *file, int line, long long got, long long want, const char *fmt, ...) TAP_PRINTF(5, 6);
bool tap_eq_str_at(const char *file, int line, const char *got, const char *want, const char *fmt, ...) TAP_PRINTF(5, 6);
bool tap_eq_mem_at(const char *file, int line, const void *got, const void *want, size_t n, const char *fmt, ...) TAP_PRINTF(6, 7);
bool tap_near_at(const char *file, int line, double got, double want, double tolerance, const char *fmt, ...) TAP_PRINTF(6, 7);

/* Whether RANKSCOPE_SHORT asks for a short form, for tools under which a program is some fifty times slower (ThreadSanitizer): every kind of thing
 * still happens, over fewer tokens, prompts and swaps. */
bool tap_short(void);

/* End of the program: main returns its value. */
int tap_done(void);

/* The path of a file of the source tree, such as "tests/golden/x.json", in a buffer that the next call overwrites. */
const char *tap_source(const char *path);

/* A path below this test's own scratch directory, in a buffer that the next call overwrites. */
const char *tap_scratch(const char *name);

#endif
