/* The faults that can be planted: RANKSCOPE_DRILL=name in the environment of a program that is built with them. */
#ifndef RANKSCOPE_TESTS_DRILLS_DRILL_H
#define RANKSCOPE_TESTS_DRILLS_DRILL_H

#include <stddef.h>

struct drill_fault {
    const char *name;
    const char *site;  /* where a finder must point: part of a site name, or "cache" (only cache.check shows it) */
    const char *what;  /* one line for the score */
    const char *needs; /* "" or "graph", "ranks", "dsa", "reuse": without it the fault does nothing */
};

extern const struct drill_fault DRILLS[];
extern const size_t DRILL_COUNT;

#endif
