/* See pace.h. */
#include "engine/pace.h"

enum { MIN_STEPS = 8, WARM_STEPS = 2, TRIAL_STEPS = 3, HOPELESS = 20, WINDOW_US = 20000, INTERVAL_MIN_US = 20000, INTERVAL_MAX_US = 500000, LONG_US = 20000 };

/* Threads that wait more than this part of their time may be better off as fewer: what counts is the sum, so one thread of eight that is late makes
 * seven wait. */
static const double WAITED_MUCH = 0.3;
/* A trial has to win by this much, or chance would decide. */
static const double WIN = 0.95;

static void begin(struct pace *p, unsigned n)
{
    p->n = n;
    p->trial = 0;
    p->steps = 0;
    p->us = p->waited_us = 0;
    p->interval_us = INTERVAL_MIN_US;
    p->next_us = p->clock_us + p->interval_us;
}

/* What to try next, or 0. */
static unsigned candidate(const struct pace *p, unsigned most)
{
    bool fewer = p->n > 1 && p->steps >= MIN_STEPS && p->waited_us > WAITED_MUCH * p->us * p->n;
    if (fewer)
        return (p->n + 1) / 2;
    return p->n < most ? (p->n * 2 < most ? p->n * 2 : most) : 0;
}

unsigned pace_threads(struct pace *p, unsigned most)
{
    if (p->n == 0 || p->n > most)
        begin(p, most);
    if (p->trial == 0 && p->steps != 0 && p->clock_us >= p->next_us && (p->trial = candidate(p, most)) != 0) {
        p->trial_steps = 0;
        p->trial_us = 0;
    }
    return p->trial != 0 ? p->trial : p->n;
}

static void give_up(struct pace *p)
{
    p->trial = 0;
    p->interval_us = p->interval_us * 2 < INTERVAL_MAX_US ? p->interval_us * 2 : INTERVAL_MAX_US;
    p->next_us = p->clock_us + p->interval_us;
}

/* A step of the trial. The first ones do not count: they wake sleeping threads and find their caches cold. */
static void try(struct pace *p, double us)
{
    const double usual = p->us / p->steps;
    p->trial_steps++;
    if (p->trial_steps <= WARM_STEPS && us < LONG_US) {
        if (us > HOPELESS * usual)
            give_up(p);
        return;
    }
    p->trial_us += us;
    const uint32_t counted = p->trial_steps > WARM_STEPS ? p->trial_steps - WARM_STEPS : p->trial_steps;
    if (counted < TRIAL_STEPS && p->trial_us < LONG_US && p->trial_us < TRIAL_STEPS * usual)
        return; /* neither long enough nor lost already */
    if (p->trial_us / counted < WIN * usual)
        begin(p, p->trial);
    else
        give_up(p);
}

void pace_note(struct pace *p, unsigned most, double us, double waited_us)
{
    if (p->n == 0 || most == 1)
        return;
    p->clock_us += us;
    if (p->trial != 0) {
        try(p, us);
        return;
    }
    if (p->us > WINDOW_US && p->steps >= 2 * MIN_STEPS) {
        p->us -= p->us / p->steps * (p->steps / 2);
        p->waited_us /= 2;
        p->steps -= p->steps / 2;
    }
    p->steps++;
    p->us += us;
    p->waited_us += waited_us;
}
