/* What an operator has armed: taps and watchpoints by site, resolved to observers of the loaded program, and their flight recorder.
 *
 * Specifications name sites by glob and outlive models and layouts; observers belong to one runtime and are made anew for each. Arming and
 * disarming happen between steps and bump the generation, so graphs are captured again with the observers as nodes. The control thread owns it. */
#ifndef RANKSCOPE_ENGINE_OBSERVE_H
#define RANKSCOPE_ENGINE_OBSERVE_H

#include <jansson.h>

#include "engine/probe.h"
#include "engine/rankscope.h"
#include "engine/runtime.h"

struct engine;

enum observe_cond { OBSERVE_NONE, OBSERVE_NAN, OBSERVE_INF, OBSERVE_ALLZERO, OBSERVE_CONSTANT, OBSERVE_ABSMAX, OBSERVE_DRIFT, OBSERVE_RANKDIFF };

/* The first time that a condition held. */
struct observe_hit {
    uint64_t step, count;   /* count 0: never */
    uint16_t op, rank;
    char site[OP_SITE_MAX];
    struct probe_stats stats;
    double value;           /* what was compared: absmax, drift; else 0 */
};

struct observe_spec {
    struct observe_spec *next; /* in order of arming */
    uint32_t id;
    char glob[OP_SITE_MAX];
    int rank;                  /* -1: all */
    uint8_t index;             /* which output */
    uint8_t bits;
    uint32_t n_values;
    enum observe_cond cond;    /* OBSERVE_NONE: a tap */
    double limit;
    bool stop;                 /* watch: hold the engine; else only say so */
    bool gone;                 /* taken away while the engine was held: counts no more, is freed before the next step */
    struct observe_hit hit;
};

/* What a recorded step was. */
struct observe_step {
    uint64_t step;             /* 0: empty slot */
    uint32_t rows, pos;        /* pos of the last row */
    bool prompt;
};

/* A condition at an op. */
struct observe_bind {
    struct observe_spec *spec;
    const struct probe_obs *obs;
};

struct observe {
    struct observe_spec *specs;
    uint32_t next_id;
    /* of the present runtime */
    struct probe_set set;      /* all observers; n_obs 0: nothing is armed */
    struct probe_set main_set, next_set; /* those of the main stack and of the NextN block, for the step that runs */
    struct probe_obs *obs;     /* owned; set.obs */
    uint32_t n_binds;
    struct observe_bind *binds; /* owned; by op */
    uint32_t n_ranks;
    struct observe_step steps[PROBE_STEPS];
    uint64_t bytes;
    struct observe_hit found;  /* why observe_check() said stop the last time */
    bool any_gone;             /* some specification is gone */
};

/* Add a specification and rearm. Errors: RS_ENOTFOUND (no site matches), RS_EUSAGE (rankdiff on sites that are not replicated; too much memory),
 * RS_ENOMEM; then nothing has changed. *n_sites: how many ops it observes. */
enum rs_result observe_add(struct engine *e, const struct observe_spec *spec, uint32_t *id, uint32_t *n_sites, struct rs_error *err);
/* Remove by id (0: all that match glob; NULL: everything), of taps or of watchpoints. Returns how many. While the engine is held within a step
 * observers stay where they are until that step is over. */
uint32_t observe_remove(struct engine *e, bool watches, uint32_t id, const char *glob);
/* The program has changed: resolve again. Sites that no longer exist are without observers until they do. */
void observe_rebind(struct engine *e);
void observe_close(struct engine *e);

/* The set for the next step, with its slot of the recorder claimed; NULL when nothing is armed. Allocates nothing. */
struct probe_set *observe_begin(struct engine *e, bool prompt);
/* The same for the NextN step after that, which shares its slot: of several the last one stays. */
const struct probe_set *observe_next(struct engine *e);
/* How many ops there are that could be observed. */
uint32_t observe_n_ops(const struct engine *e);
/* Ops [from, to) of the step have run: evaluate their watchpoints, count and remember hits, log. Returns the first that asks to stop, or NULL. */
struct observe_spec *observe_check(struct engine *e, uint32_t from, uint32_t to);

/* Does any watchpoint ask to stop? */
bool observe_may_stop(const struct engine *e);
bool observe_matches(const struct observe_spec *s, const struct op *o);
const char *observe_cond_name(enum observe_cond c);
json_t *observe_stats_json(const struct probe_stats *s);
json_t *observe_hit_json(const struct observe_spec *s);
/* The earliest trouble that the recorder or a watchpoint holds: {"step","site","op","rank","reason","stats"}, or null. */
json_t *observe_first_bad(const struct engine *e);

#endif
