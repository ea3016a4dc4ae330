/* Times of steps, ops and collectives. The control thread feeds it after every step; nothing allocates after timing_open().
 *
 * A simulated rank's clock is the sum of its own work. At a collective every rank has arrived when its clock says so; the collective starts when the
 * last one has, and each rank then moves its data: arrival, wait and transfer are derived from that clock. A device has a clock: there a rank waits
 * until the last one has arrived, and what remains until it has the sum is the transfer. */
#ifndef RANKSCOPE_ENGINE_TIMING_H
#define RANKSCOPE_ENGINE_TIMING_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/rankscope.h"

struct timing;

/* p: whose steps will be told of. */
enum rs_result timing_open(const struct program *p, struct timing **out, struct rs_error *err);
void timing_close(struct timing *t); /* NULL is allowed */

struct timing_step {
    const struct choice *choices; /* [op]: who is late on purpose; NULL: nobody */
    const float *op_us;   /* [op][rank] */
    const struct backend_reduce *reduces; /* [op][rank] by the devices' clocks; NULL: ranks are simulated */
    double wall_us;
    bool graph;
    bool decode;          /* every row was a generated one */
    uint32_t rows;
};

/* What one step's collectives cost, for whoever keeps figures per sequence. */
struct timing_ar {
    uint32_t count;
    float mean_us, p99_us, share; /* wait + transfer; share of the step on the slowest rank's clock */
};

void timing_step(struct timing *t, const struct timing_step *s);
struct timing_ar timing_last(const struct timing *t);

/* Whether the last step was a graph: one that could stop at a breakpoint was none, whatever the mode. False before the first. */
bool timing_was_graph(const struct timing *t);
/* All-reduce figures over the recent window. */
struct timing_ar timing_recent(struct timing *t);
void timing_fill(const struct timing *t, struct rs_snapshot *out);

json_t *timing_stats_json(const struct timing *t);
/* All-reduces in graph or eager mode: per rank figures, and histograms over the same buckets (bounds_us: their upper ends). */
json_t *timing_allreduce_json(const struct timing *t, bool graph);
/* Was the last step a replay of a graph? */
bool timing_mode(const struct timing *t);
void timing_reset(struct timing *t);

#endif
