/* scr_task.h: scripts as coroutines. Every script, line at the prompt and event handler is a task: a coroutine that gives way wherever it waits, so
 * that others run meanwhile and the screen stays alive. Tasks switch only there (and where a script calls coroutine.yield() itself), so a script
 * needs no locks. Where Lua cannot give way (inside table.sort or string.gsub, in a coroutine that the script made itself) waiting blocks the other
 * tasks; screen and Ctrl-C work all the same. Thread of the state. */
#ifndef RANKSCOPE_LUA_SCR_TASK_H
#define RANKSCOPE_LUA_SCR_TASK_H

#include <stdbool.h>

#include <lua.h>

#include "engine/rankscope.h"

struct scr_script;
struct scr_task;

struct scr_tasks {
    struct scr_task *first;   /* oldest first */
    struct scr_task *running; /* the innermost that is being resumed; NULL: none */
    unsigned n, next_id;
    unsigned long news;       /* counts what may end a wait: events read, tasks ended */
    bool reading;             /* this state reads events itself just now */
};

/* Make a task of the function on top of L with its n_args arguments, which are taken. Raises when memory is short. */
struct scr_task *scr_task_new(lua_State *L, int n_args);
/* Resume it until it waits or ends. How it ended: see scr_task_take(). */
void scr_task_resume(lua_State *L, struct scr_task *t);
bool scr_task_done(const struct scr_task *t);
/* What it left: its results, or the error value, on L's stack (n values); its traceback too when it failed and trace is not NULL (caller frees). The
 * task is gone after that. Returns the status of lua_resume(). */
int scr_task_take(lua_State *L, struct scr_task *t, int *n, char **trace);
/* Take one that nobody waits for; if it failed, that is printed. */
void scr_task_bury(lua_State *L, struct scr_task *t);
void scr_task_free(lua_State *L, struct scr_task *t); /* drop it wherever it stands */
struct scr_task *scr_task_find(struct scr_tasks *ts, unsigned id);
unsigned scr_task_id(const struct scr_task *t);

/* For C functions that wait, to be called in a loop around their condition:
 *     if (scr_task_can_yield(L)) return scr_task_yield(L, until, ctx, k);     k looks at the condition again
 *     scr_task_block(L, until);
 * Both return to the condition when something has happened, at `until` (seconds of the monotonic clock) at the latest, and raise when the operator
 * interrupts or the task is cancelled: scr_task_yield() on the next look, by scr_task_check(). */
bool scr_task_can_yield(lua_State *L);
int scr_task_yield(lua_State *L, double until, lua_KContext ctx, lua_KFunction k);
void scr_task_block(lua_State *L, double until);
void scr_task_check(lua_State *L);

/* Any task but t. */
struct scr_task *scr_task_other(struct scr_tasks *ts, const struct scr_task *t);
/* Set a hook on the coroutine of the task that runs. */
void scr_task_hook(struct scr_tasks *ts, lua_Hook hook, int mask, int count);

/* Is the task that runs to end? */
bool scr_task_cancelled(const struct scr_tasks *ts);
void scr_task_cancel(struct scr_tasks *ts, struct scr_task *t);

/* Resume every task that has something to do, once each, and report those that have failed through the host's print(). Protected. keep: this one's end
 * is its owner's business. */
void scr_task_turn(struct scr_script *s, struct scr_task *keep);
/* Read what engines have sent, waiting for it until `until` (in slices of 50 ms). Protected. */
void scr_task_read(struct scr_script *s, double until);
/* Seconds until a task wants to run: 0 now, negative: there is none. */
double scr_task_due(const struct scr_tasks *ts);

#endif
