/* How far the loading of weights is, and the wish to stop it. Threads that load add what they have done and ask whether to go on; the control thread
 * looks now and then: it tells who asked, and hears whether they still want it. What was open before stays open when a load is given up. */
#ifndef RANKSCOPE_ENGINE_LOADING_H
#define RANKSCOPE_ENGINE_LOADING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/rankscope.h"

struct loading {
    _Atomic uint64_t done, total; /* bytes; any thread */
    atomic_bool stop;             /* any thread */
    void (*look)(void *arg, struct loading *l); /* constant; called by the control thread only */
    void *arg;
};

/* All take NULL: nobody looks, and nothing stops it. */

/* So many bytes more are to come. */
void loading_expect(struct loading *l, uint64_t bytes);

/* So many are there. False: give up, with loading_stopped()'s error. */
bool loading_add(struct loading *l, uint64_t bytes);

/* For the control thread, several times a second. */
void loading_look(struct loading *l);

/* RS_OK, or RS_ECANCELLED with the message. */
enum rs_result loading_stopped(const struct loading *l, struct rs_error *err);

#endif
