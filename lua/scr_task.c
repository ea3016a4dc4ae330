#include "config.h"

#include "lua/scr_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>

#include "lua/scr_core.h"
#include "lua/scr_script.h"

enum { SLICE_MS = 50 };
#define MAX_TASKS 1000

struct scr_task {
    struct scr_task *next;
    lua_State *co;
    int ref;            /* keeps the coroutine */
    unsigned id;
    int n;              /* arguments for the first resume, then what was left */
    int status;         /* of the last resume */
    bool done, cancelled, waits;
    unsigned long seen; /* news when it began to wait */
    double until;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct scr_task *scr_task_new(lua_State *L, int n_args)
{
    struct scr_tasks *ts = scr_script_tasks(L);
    if (ts->n >= MAX_TASKS)
        luaL_error(L, "more than %d tasks", MAX_TASKS);
    struct scr_task *t = calloc(1, sizeof *t);
    if (t == NULL)
        luaL_error(L, "out of memory");
    int fn = lua_gettop(L) - n_args;
    t->co = lua_newthread(L); /* a failure here loses t; the state is at its end then */
    scr_script_watch(t->co);
    lua_insert(L, fn);
    luaL_checkstack(t->co, n_args + 1, "arguments");
    lua_xmove(L, t->co, n_args + 1);
    t->ref = luaL_ref(L, LUA_REGISTRYINDEX);
    t->n = n_args;
    t->id = ++ts->next_id;
    struct scr_task **at = &ts->first;
    while (*at != NULL)
        at = &(*at)->next;
    *at = t;
    ts->n++;
    return t;
}

void scr_task_free(lua_State *L, struct scr_task *t)
{
    struct scr_tasks *ts = scr_script_tasks(L);
    struct scr_task **at = &ts->first;
    while (*at != NULL && *at != t)
        at = &(*at)->next;
    if (*at != NULL)
        *at = t->next;
    ts->n--;
    luaL_unref(L, LUA_REGISTRYINDEX, t->ref);
    free(t);
}

void scr_task_resume(lua_State *L, struct scr_task *t)
{
    struct scr_tasks *ts = scr_script_tasks(L);
    struct scr_task *outer = ts->running;
    int n = 0;
    t->waits = false;
    ts->running = t;
    t->status = lua_resume(t->co, L, t->n, &n);
    ts->running = outer;
    t->n = n;
    if (t->status == LUA_YIELD) { /* who yields by himself only gives way */
        lua_pop(t->co, n);
        t->n = 0;
        return;
    }
    t->done = true;
    ts->news++;
}

bool scr_task_done(const struct scr_task *t)
{
    return t->done;
}

unsigned scr_task_id(const struct scr_task *t)
{
    return t->id;
}

struct scr_task *scr_task_find(struct scr_tasks *ts, unsigned id)
{
    struct scr_task *t = ts->first;
    while (t != NULL && t->id != id)
        t = t->next;
    return t;
}

/* "usage: ..." is about what was typed: where in the script that was found says nothing. */
static bool about_usage(lua_State *co)
{
    const char *text = lua_type(co, -1) == LUA_TSTRING ? lua_tostring(co, -1) : NULL;
    return text != NULL && strncmp(text, "usage: ", strlen("usage: ")) == 0;
}

int scr_task_take(lua_State *L, struct scr_task *t, int *n, char **trace)
{
    int status = t->status;
    *n = status == LUA_OK ? t->n : 1;
    luaL_checkstack(L, *n + 1, "results");
    if (status != LUA_OK && trace != NULL && !about_usage(t->co)) {
        luaL_traceback(L, t->co, NULL, 0);
        const char *s = lua_tostring(L, -1);
        *trace = s != NULL ? strdup(s) : NULL;
        lua_pop(L, 1);
    }
    lua_xmove(t->co, L, *n);
    scr_task_free(L, t);
    return status;
}

/* ---- waiting -------------------------------------------------------------------------------------------------------------------------- */

bool scr_task_can_yield(lua_State *L)
{
    const struct scr_tasks *ts = scr_script_tasks(L);
    return ts->running != NULL && ts->running->co == L && lua_isyieldable(L);
}

int scr_task_yield(lua_State *L, double until, lua_KContext ctx, lua_KFunction k)
{
    struct scr_tasks *ts = scr_script_tasks(L);
    ts->running->waits = true;
    ts->running->until = until;
    ts->running->seen = ts->news;
    return lua_yieldk(L, 0, ctx, k);
}

void scr_task_check(lua_State *L)
{
    if (scr_script_interrupted(L))
        luaL_error(L, scr_task_cancelled(scr_script_tasks(L)) ? "cancelled" : "interrupted");
}

void scr_task_block(lua_State *L, double until)
{
    double left = until - now_s();
    scr_task_check(L);
    if (left > 0)
        scr_core_read(L, left * 1000 < SLICE_MS ? (int)(left * 1000) + 1 : SLICE_MS, false);
    scr_task_check(L);
}

struct scr_task *scr_task_other(struct scr_tasks *ts, const struct scr_task *t)
{
    return ts->first == t ? ts->first->next : ts->first;
}

void scr_task_hook(struct scr_tasks *ts, lua_Hook hook, int mask, int count)
{
    if (ts->running != NULL)
        lua_sethook(ts->running->co, hook, mask, count);
}

bool scr_task_cancelled(const struct scr_tasks *ts)
{
    return ts->running != NULL && ts->running->cancelled;
}

void scr_task_cancel(struct scr_tasks *ts, struct scr_task *t)
{
    t->cancelled = true;
    ts->news++;
}

/* ---- the scheduler -------------------------------------------------------------------------------------------------------------------- */

static bool ready(const struct scr_tasks *ts, const struct scr_task *t, bool stopped, double now)
{
    return !t->done && (!t->waits || t->cancelled || stopped || t->seen != ts->news || now >= t->until);
}

double scr_task_due(const struct scr_tasks *ts)
{
    double now = now_s(), due = -1;
    for (const struct scr_task *t = ts->first; t != NULL; t = t->next) {
        double d = ready(ts, t, false, now) ? 0 : t->until - now;
        if (!t->done && (due < 0 || d < due))
            due = d;
    }
    return due;
}

/* A task of nobody has ended: what went wrong is said. Runs protected. */
static int bury(lua_State *L)
{
    struct scr_task *t = lua_touserdata(L, 1);
    const struct scr_host *h = scr_script_host(L);
    char head[40], *trace = NULL;
    int n;
    snprintf(head, sizeof head, "task %u: ", t->id);
    bool cancelled = t->cancelled;
    if (scr_task_take(L, t, &n, &trace) != LUA_OK && !cancelled) {
        lua_pushstring(L, head);
        lua_insert(L, -2);
        luaL_tolstring(L, -1, NULL);
        lua_remove(L, -2);
        lua_pushliteral(L, "\n");
        lua_concat(L, 3);
        size_t len;
        const char *s = lua_tolstring(L, -1, &len);
        if (h->print != NULL)
            h->print(h->ctx, s, len);
        else
            fwrite(s, 1, len, stderr);
    }
    free(trace);
    return 0;
}

void scr_task_bury(lua_State *L, struct scr_task *t)
{
    lua_pushcfunction(L, bury);
    lua_pushlightuserdata(L, t);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK)
        lua_pop(L, 1);
}

void scr_task_turn(struct scr_script *s, struct scr_task *keep)
{
    lua_State *L = scr_script_state(s);
    struct scr_tasks *ts = scr_script_tasks(L);
    unsigned last = ts->next_id; /* those that come meanwhile have run already */
    double now = now_s();        /* one for all: of two tasks the one that began to wait first goes on first */
    for (unsigned id = 0;;) {
        struct scr_task *t = ts->first;
        while (t != NULL && t->id <= id) /* the list may have changed under the one before */
            t = t->next;
        if (t == NULL || t->id > last)
            return;
        id = t->id;
        if (ready(ts, t, scr_script_stopped(s) && t == keep, now))
            scr_task_resume(L, t);
        if (!t->done || t == keep)
            continue;
        scr_task_bury(L, t);
    }
}

static int read_protected(lua_State *L)
{
    scr_core_read(L, (int)lua_tointeger(L, 1), false);
    return 0;
}

void scr_task_read(struct scr_script *s, double until)
{
    lua_State *L = scr_script_state(s);
    double left = (until - now_s()) * 1000;
    lua_pushcfunction(L, read_protected);
    lua_pushinteger(L, left <= 0 ? 0 : left < SLICE_MS ? (int)left + 1 : SLICE_MS);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK)
        lua_pop(L, 1);
}
