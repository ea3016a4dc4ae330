/* Shadow runs: a loaded implementation computes what ops have computed, from the same inputs, after the fact, and the distance of the two is kept.
 *
 * shadow_op() does that for one op of a step that has just run with observers that kept the op's inputs and outputs. A live shadow arms such observers
 * itself (in graph mode they are nodes of the graph) in the steps of whatever runs, conversations and served sequences alike; what the step made is
 * what is used. It ends after so many steps, when the layout changes, or when its implementation fails. Control thread, between steps. */
#ifndef RANKSCOPE_ENGINE_SHADOW_H
#define RANKSCOPE_ENGINE_SHADOW_H

#include <jansson.h>

#include "engine/delta.h"
#include "engine/patch.h"
#include "engine/probe.h"
#include "engine/runtime.h"

struct engine;
struct shadow;

/* A step that has run, and what was kept of it. */
struct shadow_step {
    const struct runtime *rt;      /* on the CPU */
    const struct choice *choices;
    const struct batch *batch;
    const struct probe_obs *obs;
    uint32_t n_obs;
};

struct shadow_finding {
    struct delta delta;  /* of the rank and output that are furthest apart */
    double rel;          /* its relative L2; INFINITY: not comparable, or not finite in one of the two */
    uint32_t rank;
    uint32_t rows;       /* rows that were compared; 0: the op had nothing to do, or (experts) had more rows than were kept */
    uint64_t other_sets; /* router: rows with other experts */
};

/* Errors: RS_ENOMEM, RS_EFORMAT (a hosted implementation failed: why). */
enum rs_result shadow_op(const struct shadow_step *s, const struct patch_user *user, const struct op *o, struct shadow_finding *out, struct rs_error *err);

/* Begin a live one in place of what there was. Errors: RS_ENOTFOUND (no op of its kind there), RS_EUSAGE (too much to keep), RS_ENOMEM. */
enum rs_result shadow_start(struct engine *e, const struct patch_user *user, const char *glob, uint32_t steps, struct rs_error *err);
/* Does one run? Then its observers, with those of *set, go into *set. Before a step. */
bool shadow_observe(struct engine *e, struct probe_set *set);
/* A step has run with them: compare. */
void shadow_look(struct engine *e);
/* The runtime goes (its graphs with it), or nobody wants it any more. Its findings stay. why: static. */
void shadow_stop(struct engine *e, const char *why);
/* What it has found so far, or null. */
json_t *shadow_json(const struct engine *e);
/* Of the last live one: NULL where there was none. */
const struct patch_user *shadow_user(const struct engine *e, const char **glob, double *worst, uint64_t *compared);
void shadow_close(struct engine *e);

#endif
