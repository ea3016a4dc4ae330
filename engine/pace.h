/* How many threads carry the workers of a step.
 *
 * A step is dozens of short parts, each of which ends when its last thread is done. While other programs use the cores, some thread is always
 * waiting for one, and two threads can be ten times slower than one. Nothing tells beforehand, so it is tried: when threads wait for each other
 * much of the time, a few steps run on half of the threads, and what took less time goes on. More threads than at present are tried again now and
 * then, seldomer each time that they lose. The caller gives the times; nothing here looks at a clock. */
#ifndef RANKSCOPE_ENGINE_PACE_H
#define RANKSCOPE_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Of steps that are alike: same program, number of rows, mode. Zeroed before the first call. */
struct pace {
    unsigned n;          /* threads that carry such steps; 0: not begun */
    unsigned trial;      /* threads under trial, or 0 */
    uint32_t steps, trial_steps;
    double us, waited_us; /* sums over `steps`; halved now and then */
    double trial_us;      /* sum over trial_steps */
    double clock_us;      /* run by such steps so far */
    double next_us;       /* of clock_us: when another number may be tried */
    double interval_us;
};

/* Threads for the next step, of at most `most`. */
unsigned pace_threads(struct pace *p, unsigned most);

/* That step took us microseconds, in which its threads waited waited_us for each other, all together. */
void pace_note(struct pace *p, unsigned most, double us, double waited_us);

#endif
