#include "config.h"

#include "lua/scr_script.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "lua/scr_core.h"
#include "lua/scr_state.h"
#include "lua/scr_task.h"

#define HOOK_STEP 5000 /* instructions between two looks at the interrupt flag */

struct scr_script {
    lua_State *L;
    struct scr_host host;
    bool stopped; /* an interrupt is being raised */
    struct scr_tasks tasks;
    void *handles; /* of scr_core.c */
    bool attending; /* a task of the program is waited for: the others have their turns meanwhile */
    double shield_until; /* what tidies up runs undisturbed until then, seconds of the monotonic clock; 0: it does not run */
};

#define SHIELD_SECONDS 60 /* after that an interrupt counts even there */

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct scr_script *script_of(lua_State *L)
{
    return *(struct scr_script **)lua_getextraspace(L);
}

lua_State *scr_script_state(struct scr_script *s)
{
    return s->L;
}

const struct scr_host *scr_script_host(lua_State *L)
{
    return &script_of(L)->host;
}

static void hook(lua_State *L, lua_Debug *ar);

struct scr_tasks *scr_script_tasks(lua_State *L)
{
    return &script_of(L)->tasks;
}

void **scr_script_handles(lua_State *L)
{
    return &script_of(L)->handles;
}

void scr_script_watch(lua_State *co)
{
    lua_sethook(co, hook, LUA_MASKCOUNT, HOOK_STEP);
}

bool scr_script_stopped(const struct scr_script *s)
{
    return s->stopped;
}

static bool shielded(const struct scr_script *s)
{
    return s->shield_until > 0 && clock_s() < s->shield_until;
}

static void look_at_operator(struct scr_script *s)
{
    if (!s->stopped && !shielded(s) && s->host.interrupted != NULL && s->host.interrupted(s->host.ctx))
        s->stopped = true;
}

/* Once it is true every further line raises, so that a pcall() in the script cannot swallow it: in the coroutine that runs, and in its task's. */
bool scr_script_interrupted(lua_State *L)
{
    struct scr_script *s = script_of(L);
    if (shielded(s))
        return false;
    look_at_operator(s);
    bool stop = s->stopped || scr_task_cancelled(&s->tasks);
    if (stop) {
        lua_sethook(L, hook, LUA_MASKLINE | LUA_MASKCOUNT, 1);
        scr_task_hook(&s->tasks, hook, LUA_MASKLINE | LUA_MASKCOUNT, 1);
    }
    return stop;
}

static int finally_k(lua_State *L, int status, lua_KContext ctx)
{
    struct scr_script *s = script_of(L);
    (void)ctx;
    double outer = s->shield_until;
    if (outer == 0)
        s->shield_until = clock_s() + SHIELD_SECONDS;
    lua_sethook(L, hook, LUA_MASKCOUNT, HOOK_STEP); /* not line by line: tidying up is to end within its time */
    lua_pushvalue(L, 2);
    int tidied = lua_pcall(L, 0, 0, 0);
    s->shield_until = outer;
    if (status != LUA_OK && status != LUA_YIELD) {
        lua_settop(L, 3); /* what fn raised matters more */
        return lua_error(L);
    }
    return tidied == LUA_OK ? lua_gettop(L) - 2 : lua_error(L);
}

int scr_script_finally(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_pushvalue(L, 1);
    lua_insert(L, 3); /* fn, tidy, fn, arguments */
    return finally_k(L, lua_pcallk(L, lua_gettop(L) - 3, LUA_MULTRET, 0, 0, finally_k), 0);
}

/* Coroutines inherit the hook, because it is set before any of them is made. */
static void hook(lua_State *L, lua_Debug *ar)
{
    struct scr_script *s = script_of(L);
    (void)ar;
    scr_task_check(L);
    if (s->host.pump != NULL)
        s->host.pump(s->host.ctx);
}

static int l_print(lua_State *L)
{
    struct scr_script *s = script_of(L);
    int n = lua_gettop(L);
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (int i = 1; i <= n; i++) {
        luaL_tolstring(L, i, NULL);
        luaL_addvalue(&b);
        if (i < n)
            luaL_addchar(&b, '\t');
    }
    luaL_addchar(&b, '\n');
    luaL_pushresult(&b);
    size_t len;
    const char *text = lua_tolstring(L, -1, &len);
    if (s->host.print != NULL)
        s->host.print(s->host.ctx, text, len);
    else
        fwrite(text, 1, len, stdout);
    return 0;
}

/* io.write() goes where print() goes. */
static int l_write(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    int n = lua_gettop(L);
    for (int i = 1; i <= n; i++) {
        size_t len;
        const char *text = luaL_checklstring(L, i, &len);
        if (h->print != NULL)
            h->print(h->ctx, text, len);
        else
            fwrite(text, 1, len, stdout);
    }
    return 0;
}

/* Runs protected. Upvalues none; arguments: the script, the folder. */
static int fill(lua_State *L)
{
    const char *folder = lua_touserdata(L, 2);
    luaL_openlibs(L);
    lua_pushcfunction(L, l_print);
    lua_setglobal(L, "print");
    lua_getglobal(L, "io");
    lua_pushcfunction(L, l_write);
    lua_setfield(L, -2, "write");
    lua_pop(L, 1);
    lua_getglobal(L, "package");
    lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", folder, folder);
    lua_getfield(L, -2, "path");
    lua_concat(L, 2);
    lua_setfield(L, -2, "path");
    lua_pop(L, 1);
    luaL_requiref(L, "rs.core", scr_core_open, 0);
    lua_pop(L, 1);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "rs");
    lua_call(L, 1, 1);
    lua_setglobal(L, "rs");
    return 0;
}

static int as_text(lua_State *L)
{
    luaL_tolstring(L, 1, NULL);
    return 1;
}

/* The message with a traceback behind it; error objects keep what they say of themselves, if they can. */
static int with_traceback(lua_State *L)
{
    lua_pushcfunction(L, as_text);
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK) {
        lua_pop(L, 1);
        lua_pushfstring(L, "(an error that cannot be printed: a %s)", luaL_typename(L, 1));
    }
    luaL_traceback(L, L, lua_tostring(L, -1), 1);
    return 1;
}

/* What lua_pcall left on the stack as err and *trace. */
static enum rs_result report(struct scr_script *s, int status, char **trace, struct rs_error *err)
{
    if (trace != NULL)
        *trace = NULL;
    if (status == LUA_OK)
        return RS_OK;
    const char *text = lua_tostring(s->L, -1), *nl = text != NULL ? strchr(text, '\n') : NULL;
    if (trace != NULL && nl != NULL)
        *trace = strdup(nl + 1);
    enum rs_result rc = status == LUA_ERRMEM ? RS_ENOMEM : s->stopped ? RS_ECANCELLED : RS_EFORMAT;
    scr_state_error(err, rc, "%.*s", text != NULL ? (int)(nl != NULL ? nl - text : (long)strlen(text)) : 10, text != NULL ? text : "no message");
    lua_settop(s->L, 0);
    return rc;
}

enum rs_result scr_script_open(const struct scr_host *host, const char *lua_folder, struct scr_script **out, struct rs_error *err)
{
    struct scr_script *s = calloc(1, sizeof *s);
    if (s == NULL || (s->L = luaL_newstate()) == NULL) {
        free(s);
        return scr_state_error(err, RS_ENOMEM, "out of memory for a Lua state");
    }
    s->host = *host;
    *(struct scr_script **)lua_getextraspace(s->L) = s;
    lua_sethook(s->L, hook, LUA_MASKCOUNT, HOOK_STEP);
    lua_pushcfunction(s->L, with_traceback);
    lua_pushcfunction(s->L, fill);
    lua_pushlightuserdata(s->L, s);
    lua_pushlightuserdata(s->L, (void *)(uintptr_t)lua_folder);
    enum rs_result rc = report(s, lua_pcall(s->L, 2, 0, 1), NULL, err);
    if (rc != RS_OK) {
        scr_script_close(s);
        return rc;
    }
    lua_settop(s->L, 0);
    *out = s;
    return RS_OK;
}

void scr_script_close(struct scr_script *s)
{
    if (s == NULL)
        return;
    while (s->tasks.first != NULL)
        scr_task_free(s->L, s->tasks.first);
    lua_close(s->L);
    free(s);
}

static int new_task(lua_State *L)
{
    lua_pushlightuserdata(L, scr_task_new(L, lua_gettop(L) - 1));
    return 1;
}

/* Arguments: the task, where the traceback goes. Leaves its results, or its error as text. */
static int end_task(lua_State *L)
{
    struct scr_task *t = lua_touserdata(L, 1);
    int *status = lua_touserdata(L, 2), n;
    *status = scr_task_take(L, t, &n, lua_touserdata(L, 3));
    if (*status == LUA_OK)
        return n;
    lua_pushcfunction(L, as_text);
    lua_insert(L, -2);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK) {
        lua_pop(L, 1);
        lua_pushliteral(L, "(an error that cannot be printed)");
    }
    return 1;
}

static int read_own(lua_State *L)
{
    scr_core_read(L, 0, true);
    return 0;
}

static int offer(lua_State *L)
{
    scr_core_offer(L, lua_touserdata(L, 1));
    return 0;
}

/* Turn after turn until the task has ended, and every other one where the host gives them no turns later. */
static void attend(struct scr_script *s, struct scr_task *t)
{
    bool outer = s->attending;
    s->attending = true;
    scr_task_resume(s->L, t);
    while (!scr_task_done(t) || (!s->host.turns && s->tasks.n > 1 && !s->stopped)) {
        bool before = s->stopped;
        double due = scr_task_due(&s->tasks), now = clock_s();
        look_at_operator(s);
        if (s->stopped == before)
            scr_task_read(s, due < 0 || due > 1 ? now + 1 : now + due);
        scr_task_turn(s, t);
    }
    s->attending = outer;
}

/* Run the function on top of the stack as a task, as a fresh start: an old interrupt is forgotten. Others have their turns meanwhile. */
static enum rs_result run(struct scr_script *s, int n_args, int n_results, char **trace, struct rs_error *err)
{
    int at = lua_gettop(s->L) - n_args, status = LUA_OK;
    char *where = NULL;
    s->stopped = false;
    lua_pushcfunction(s->L, new_task);
    lua_insert(s->L, at);
    enum rs_result rc = report(s, lua_pcall(s->L, n_args + 1, 1, 0), trace, err);
    if (rc != RS_OK)
        return rc;
    struct scr_task *t = lua_touserdata(s->L, -1);
    lua_pop(s->L, 1);
    attend(s, t);
    while (!s->host.turns && s->tasks.first != NULL && s->tasks.n > 1) /* interrupted: nobody will ever resume them */
        scr_task_free(s->L, scr_task_other(&s->tasks, t));
    lua_pushcfunction(s->L, end_task);
    lua_pushlightuserdata(s->L, t);
    lua_pushlightuserdata(s->L, &status);
    lua_pushlightuserdata(s->L, &where);
    int ended = lua_pcall(s->L, 3, LUA_MULTRET, 0);
    rc = report(s, ended != LUA_OK ? ended : status, NULL, err);
    if (trace != NULL)
        *trace = where;
    else
        free(where);
    if (rc == RS_OK && s->stopped && !s->host.turns) { /* it was another task that went on */
        lua_settop(s->L, 0);
        return scr_state_error(err, RS_ECANCELLED, "interrupted");
    }
    if (rc == RS_OK && n_results == 0)
        lua_settop(s->L, at - 1);
    return rc;
}

double scr_script_turn(struct scr_script *s)
{
    if (s->tasks.first == NULL || s->tasks.running != NULL || s->attending)
        return -1;
    lua_pushcfunction(s->L, read_own);
    if (lua_pcall(s->L, 0, 0, 0) != LUA_OK)
        lua_pop(s->L, 1);
    s->stopped = false;
    scr_task_turn(s, NULL);
    s->stopped = false;
    double due = scr_task_due(&s->tasks);
    return due > 0.05 && scr_core_owns(s->L) ? 0.05 : due;
}

void scr_script_part(struct scr_script *s)
{
    scr_core_part(s->L);
}

void scr_script_event(struct scr_script *s, const struct rs_event *ev)
{
    if (s->tasks.reading || s->tasks.first == NULL) /* it comes from here; nobody waits for any */
        return;
    lua_pushcfunction(s->L, offer);
    lua_pushlightuserdata(s->L, (void *)(uintptr_t)ev);
    if (lua_pcall(s->L, 1, 0, 0) != LUA_OK)
        lua_pop(s->L, 1);
}

enum rs_result scr_script_file(struct scr_script *s, const char *path, int argc, char **argv, char **trace, struct rs_error *err)
{
    lua_settop(s->L, 0);
    lua_createtable(s->L, argc, 1);
    lua_pushstring(s->L, path);
    lua_rawseti(s->L, -2, 0);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(s->L, argv[i]);
        lua_rawseti(s->L, -2, i + 1);
    }
    lua_setglobal(s->L, "arg");
    enum rs_result rc = report(s, luaL_loadfilex(s->L, path, "t"), trace, err);
    if (rc != RS_OK)
        return rc;
    for (int i = 0; i < argc; i++)
        lua_pushstring(s->L, argv[i]);
    rc = run(s, argc, 0, trace, err);
    lua_settop(s->L, 0);
    return rc;
}

enum rs_result scr_script_code(struct scr_script *s, const char *code, const char *name, char **trace, struct rs_error *err)
{
    lua_settop(s->L, 0);
    lua_pushfstring(s->L, "return %s", code);
    lua_pushfstring(s->L, "=%s", name);
    int status = luaL_loadbufferx(s->L, lua_tostring(s->L, 1), strlen(lua_tostring(s->L, 1)), lua_tostring(s->L, 2), "t");
    if (status != LUA_OK) { /* no expression: a statement */
        lua_pop(s->L, 1);
        status = luaL_loadbufferx(s->L, code, strlen(code), lua_tostring(s->L, 2), "t");
    }
    enum rs_result rc = report(s, status, trace, err);
    if (rc != RS_OK)
        return rc;
    lua_remove(s->L, 1);
    lua_remove(s->L, 1);
    rc = run(s, 0, LUA_MULTRET, trace, err);
    while (lua_gettop(s->L) > 1 && lua_isnil(s->L, -1)) /* "reply, blob" of what has no blob */
        lua_pop(s->L, 1);
    int n = lua_gettop(s->L);
    if (rc == RS_OK && n > 0) { /* rs.pretty(values...) prints */
        lua_getglobal(s->L, "rs");
        lua_getfield(s->L, -1, "show");
        lua_remove(s->L, -2);
        lua_insert(s->L, 1);
        rc = run(s, n, 0, trace, err);
    }
    lua_settop(s->L, 0);
    return rc;
}

enum rs_result scr_script_call(struct scr_script *s, const char *module, const char *function, const char *arg, char **trace, struct rs_error *err)
{
    static const char CODE[] = "local m, f, a = ...; return require(m)[f](a)";
    lua_settop(s->L, 0);
    enum rs_result rc = report(s, luaL_loadbufferx(s->L, CODE, sizeof CODE - 1, "=console", "t"), trace, err);
    if (rc != RS_OK)
        return rc;
    lua_pushstring(s->L, module);
    lua_pushstring(s->L, function);
    lua_pushstring(s->L, arg);
    rc = run(s, 3, 0, trace, err);
    lua_settop(s->L, 0);
    return rc;
}

enum rs_result scr_script_start(struct scr_script *s, const char *path, unsigned *id, struct rs_error *err)
{
    lua_settop(s->L, 0);
    lua_newtable(s->L);
    lua_pushstring(s->L, path);
    lua_rawseti(s->L, -2, 0);
    lua_setglobal(s->L, "arg");
    enum rs_result rc = report(s, luaL_loadfilex(s->L, path, "t"), NULL, err);
    if (rc == RS_OK) {
        lua_pushcfunction(s->L, new_task);
        lua_insert(s->L, 1);
        rc = report(s, lua_pcall(s->L, 1, 1, 0), NULL, err);
    }
    if (rc == RS_OK)
        *id = scr_task_id(lua_touserdata(s->L, -1));
    lua_settop(s->L, 0);
    return rc;
}
