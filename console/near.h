/* near.h: which name was meant by a word that is none.
 *
 * For error messages only: the nearest of the names that were tried, or nothing when none is near. No state but the caller's; any thread. */
#ifndef RANKSCOPE_CONSOLE_NEAR_H
#define RANKSCOPE_CONSOLE_NEAR_H

#include <stddef.h>

struct near {
    const char *word; /* the caller's, as is what best points to */
    size_t len;
    const char *best;
    unsigned cost;
};

/* Begin with the first len bytes of word. */
void near_init(struct near *n, const char *word, size_t len);

/* Try one name: of two equally near the first stays. */
void near_try(struct near *n, const char *name);

/* How the nearest name is offered, " (did you mean PREFIXname?)", or "" when none is near; buf is the caller's and is returned. */
const char *near_hint(const struct near *n, const char *prefix, char *buf, size_t size);

#endif
