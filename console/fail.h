/* fail.h: errors of the console in the engine's terms, and what they mean for the exit status. Any thread. */
#ifndef RANKSCOPE_CONSOLE_FAIL_H
#define RANKSCOPE_CONSOLE_FAIL_H

#include "engine/rankscope.h"

enum exit_status {
    EXIT_OK = 0,
    EXIT_COMMAND = 1,     /* the command failed */
    EXIT_USAGE = 2,       /* the command line makes no sense */
    EXIT_ENGINE = 3,      /* model or engine failed */
    EXIT_COMPARISON = 4,  /* a comparison came out unequal */
    EXIT_INTERRUPT = 130, /* Ctrl-C */
};

/* Fill *err (may be NULL) with one printable line and return code. */
enum rs_result fail_set(struct rs_error *err, enum rs_result code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The exit status of a one-shot command that ended in r. */
enum exit_status fail_status(enum rs_result r);

#endif
