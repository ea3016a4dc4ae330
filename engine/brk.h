/* Breakpoints: holding the engine inside a step.
 *
 * A breakpoint names ops by glob, a side (before or after the op), a condition and perhaps a rank. While one is armed, steps of streams run eager
 * (a graph cannot stop). A stop happens on the control thread inside the walk; from there it goes on serving messages, of which only those that
 * change nothing of the step are carried out, until it is told to go on. The control thread owns all of it. */
#ifndef RANKSCOPE_ENGINE_BRK_H
#define RANKSCOPE_ENGINE_BRK_H

#include <jansson.h>

#include "engine/op.h"
#include "engine/pred.h"
#include "engine/rankscope.h"

struct engine;
struct observe_spec;

struct brk {
    struct brk *next;
    uint32_t id;
    char glob[OP_SITE_MAX];
    bool after;
    int rank;          /* whose statistics the condition is about; -1: any rank */
    char text[160];    /* of the condition */
    struct pred cond;
    uint64_t hits;
};

enum brk_go { BRK_RUN, BRK_HOLD, BRK_STEP, BRK_NEXT };

struct brk_state {
    struct brk *list;         /* in order of arming */
    float *row;               /* scratch for conditions: the widest row there is; made when something is armed */
    uint32_t next_id;
    enum brk_go go;
    uint32_t steps_left;      /* BRK_STEP: ops to go */
    int next_from;            /* BRK_NEXT: the layer to leave */
    /* while held */
    const struct op *op;      /* NULL: the step is over */
    bool after, in_walk;
    uint32_t rank;
    char reason[160];
    uint64_t held_us;         /* of the step that runs: how long it was held */
    uint32_t n_unwanted;      /* sequences in the held step that are to be cancelled when it is over */
};

void brk_close(struct engine *e);
/* Make room for what conditions look at in the present runtime. RS_ENOMEM. */
enum rs_result brk_room(struct engine *e, struct rs_error *err);
/* Must the next step of streams be walked, so that it can be held? */
bool brk_armed(const struct engine *e);
bool brk_holding(const struct engine *e);
/* May this method be carried out while the engine is held? */
bool brk_allows(const char *method);
/* The backend's hook; arg is the engine. */
void brk_hook(void *arg, const struct op *op, bool after);
/* A watchpoint asks to stop once the step is over (graph mode). */
void brk_hold_after_step(struct engine *e, const struct observe_spec *watch);
/* {"site","op","when","rank","step","reason",...}, or null. */
json_t *brk_where_json(const struct engine *e);

#endif
