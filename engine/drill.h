/* Fault points for drills. In an ordinary build there are none: the calls below are the launch itself and nothing. A test program that is built with
 * RANKSCOPE_DRILLS brings its own drill_run() and drill_step() (tests/drills/drill.c) and with them faults that no table of the engine knows of. */
#ifndef RANKSCOPE_ENGINE_DRILL_H
#define RANKSCOPE_ENGINE_DRILL_H

#include "engine/cpu.h"

#ifdef RANKSCOPE_DRILLS
/* A worker's share of an op on a rank. graph: of a replayed graph. */
void drill_run(const struct cpu_launch *l, const struct cpu_call *k, bool graph);
/* Before a step, on the control thread. */
void drill_step(struct cpu *c, const struct backend_step *s);
#else
static inline void drill_run(const struct cpu_launch *l, const struct cpu_call *k, bool graph)
{
    (void)graph;
    l->run(k);
}
static inline void drill_step(struct cpu *c, const struct backend_step *s)
{
    (void)c, (void)s;
}
#endif

#endif
