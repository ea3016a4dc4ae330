#include "config.h"

#include "lua/scr_core.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>

#include "engine/rankscope.h"
#include "lua/scr_json.h"
#include "lua/scr_op.h"
#include "lua/scr_notebook.h"
#include "lua/scr_script.h"
#include "lua/scr_state.h"
#include "lua/scr_task.h"

#define HANDLE "rs.engine"
#define MAX_QUEUE 65536 /* events */
#define HANDLES "rs.handles" /* in the registry: struct handle * -> its userdata, weak */
enum { MAX_HANDLES = 32, READ_AT_ONCE = 256 };

/* A handle on an engine. borrowed: the console's own, which a script must not close. */
struct handle {
    struct handle *next;     /* in the list of the script */
    struct rs_engine *e;
    bool borrowed;
    bool gone;               /* err says why nothing can be read any more */
    struct rs_error err;
    unsigned long seen;      /* events that were queued so far */
    lua_Integer first, last; /* of the queue in user value 1: (first, last] */
    enum rs_event_type newest; /* of the queue */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct rs_engine *check(lua_State *L)
{
    struct handle *h = luaL_checkudata(L, 1, HANDLE);
    if (h->e == NULL)
        luaL_error(L, "the engine is closed");
    return h->e;
}

/* Raise {code=, msg=} with a __tostring, the engine's own words. */
static int raise(lua_State *L, const struct rs_error *err)
{
    lua_createtable(L, 0, 3);
    lua_pushstring(L, rs_result_name(err->code));
    lua_setfield(L, -2, "code");
    lua_pushstring(L, err->msg);
    lua_setfield(L, -2, "msg");
    luaL_where(L, 2);
    lua_setfield(L, -2, "where");
    luaL_setmetatable(L, "rs.error");
    return lua_error(L);
}

static int error_tostring(lua_State *L)
{
    lua_getfield(L, 1, "where");
    lua_getfield(L, 1, "msg");
    luaL_tolstring(L, -2, NULL);
    luaL_tolstring(L, -2, NULL);
    lua_concat(L, 2);
    return 1;
}

/* User value 1: the queue; 2: replies that somebody waits for, by id: true, or {status, json, blob}. */
static struct handle *new_handle(lua_State *L)
{
    void **list = scr_script_handles(L);
    int n = 0;
    for (struct handle *x = *list; x != NULL; x = x->next)
        n++;
    if (n >= MAX_HANDLES)
        luaL_error(L, "more than %d engines", MAX_HANDLES);
    struct handle *h = lua_newuserdatauv(L, sizeof *h, 2);
    *h = (struct handle){.e = NULL};
    lua_newtable(L);
    lua_setiuservalue(L, -2, 1);
    lua_newtable(L);
    lua_setiuservalue(L, -2, 2);
    lua_getfield(L, LUA_REGISTRYINDEX, HANDLES);
    lua_pushvalue(L, -2);
    lua_rawsetp(L, -2, h);
    lua_pop(L, 1);
    luaL_setmetatable(L, HANDLE);
    h->next = *list;
    *list = h;
    return h;
}

/* core.local_engine{workers=, isa=} */
static int core_local(lua_State *L)
{
    struct rs_local_params p = {.host = scr_op_host(), .json_failures = scr_script_host(L)->json_failures};
    struct rs_error err;
    if (lua_istable(L, 1)) {
        lua_getfield(L, 1, "workers");
        p.workers = (unsigned)luaL_optinteger(L, -1, 0);
        lua_getfield(L, 1, "isa");
        p.isa = luaL_optstring(L, -1, NULL);
    }
    struct handle *h = new_handle(L);
    if (rs_engine_local(&p, &h->e, &err) != RS_OK)
        return raise(L, &err);
    return 1;
}

/* core.connect(name or nil) */
static int core_connect(lua_State *L)
{
    const char *name = luaL_optstring(L, 1, NULL);
    struct rs_error err;
    struct handle *h = new_handle(L);
    if (rs_engine_connect(name, &h->e, &err) != RS_OK)
        return raise(L, &err);
    return 1;
}

/* core.host_engine(): the console's engine, or nil */
static int core_host(lua_State *L)
{
    const struct scr_host *host = scr_script_host(L);
    struct rs_engine *e = host->engine != NULL ? host->engine(host->ctx) : NULL;
    if (e == NULL)
        return 0;
    struct handle *h = new_handle(L);
    h->e = e;
    h->borrowed = true;
    return 1;
}

/* core.table(heads, cells) -> was there a place for a table? cells: strings, row by row */
static int core_table(lua_State *L)
{
    const struct scr_host *host = scr_script_host(L);
    const char *heads = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    size_t n = lua_rawlen(L, 2);
    if (host->table == NULL) {
        lua_pushboolean(L, 0);
        return 1;
    }
    const char **cells = lua_newuserdatauv(L, (n + 1) * sizeof *cells, 0);
    for (size_t i = 0; i < n; i++) {
        if (lua_rawgeti(L, 2, (lua_Integer)i + 1) != LUA_TSTRING)
            return luaL_error(L, "cell %d is a %s, not a string", (int)i + 1, luaL_typename(L, -1));
        cells[i] = lua_tostring(L, -1);
        lua_pop(L, 1); /* the table holds it */
    }
    if (!host->table(host->ctx, heads, cells, n))
        return luaL_error(L, "%d cells make no table of these columns", (int)n);
    lua_pushboolean(L, 1);
    return 1;
}

static int handle_close(lua_State *L)
{
    struct handle *h = luaL_checkudata(L, 1, HANDLE);
    void **list = scr_script_handles(L);
    for (struct handle *x = *list, *before = NULL; x != NULL; before = x, x = x->next)
        if (x == h) {
            if (before != NULL)
                before->next = h->next;
            else
                *list = h->next;
            break;
        }
    if (h->e != NULL && !h->borrowed)
        rs_engine_close(h->e);
    h->e = NULL;
    return 0;
}

static int handle_tostring(lua_State *L)
{
    const struct handle *h = luaL_checkudata(L, 1, HANDLE);
    lua_pushstring(L, h->e == NULL ? "engine (closed)" : h->borrowed ? "engine (the console's)" : "engine");
    return 1;
}

/* Arguments as a JSON text on the Lua stack, so that an error later cannot leak it. */
static const char *args_text(lua_State *L, int idx)
{
    if (lua_isnoneornil(L, idx))
        return NULL;
    luaL_checktype(L, idx, LUA_TTABLE);
    json_t *v = scr_json_value(L, idx);
    char *s = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    if (s == NULL)
        luaL_error(L, "out of memory");
    lua_pushstring(L, s);
    free(s);
    return lua_tostring(L, -1);
}

static const char *const TYPES[RS_EVENT_COUNT] = {"reply", "token", "done", "progress", "state", "stopped", "log", "lost"};

/* An event as a table. */
static void push_event(lua_State *L, const struct rs_event *ev)
{
    lua_createtable(L, 0, 6);
    lua_pushstring(L, (unsigned)ev->type < RS_EVENT_COUNT ? TYPES[ev->type] : "?");
    lua_setfield(L, -2, "type");
    lua_pushinteger(L, ev->id);
    lua_setfield(L, -2, "id");
    lua_pushinteger(L, (lua_Integer)ev->time_us);
    lua_setfield(L, -2, "time_us");
    if (ev->type == RS_EVENT_TOKEN) {
        lua_pushinteger(L, ev->token);
        lua_setfield(L, -2, "token");
        lua_pushboolean(L, (ev->flags & RS_TOKEN_THINKING) != 0);
        lua_setfield(L, -2, "thinking");
        lua_pushlstring(L, ev->text, ev->text_len);
        lua_setfield(L, -2, "text");
    }
    if (ev->json != NULL) {
        scr_json_decode(L, ev->json, strlen(ev->json));
        lua_setfield(L, -2, "data");
    }
    if (ev->blob != NULL) {
        lua_pushlstring(L, ev->blob, ev->blob_len);
        lua_setfield(L, -2, "blob");
    }
}

/* Events that came while a reply was waited for: queue[first .. last] in the handle's user value, oldest first. Nobody may ever ask for them, so the
 * oldest goes when there are too many; of states and progress only the newest counts. */
static void queue_event(lua_State *L, int at, struct handle *h, const struct rs_event *ev)
{
    bool again = (ev->type == RS_EVENT_STATE || ev->type == RS_EVENT_PROGRESS) && h->first != h->last && h->newest == ev->type;
    lua_getiuservalue(L, at, 1);
    push_event(L, ev);
    lua_rawseti(L, -2, again ? h->last : ++h->last);
    h->newest = ev->type;
    if (h->last - h->first >= MAX_QUEUE) {
        lua_pushnil(L);
        lua_rawseti(L, -2, ++h->first);
    }
    lua_pop(L, 1);
}

/* The oldest of the queue; false: it is empty and nothing was pushed. */
static bool unqueue_event(lua_State *L, struct handle *h)
{
    if (h->first == h->last)
        return false;
    lua_getiuservalue(L, 1, 1);
    lua_rawgeti(L, -1, ++h->first);
    lua_pushnil(L);
    lua_rawseti(L, -3, h->first);
    lua_remove(L, -2);
    return true;
}

/* A reply: kept if somebody waits for it. */
static void keep_reply(lua_State *L, int at, const struct rs_event *ev)
{
    lua_getiuservalue(L, at, 2);
    if (lua_rawgeti(L, -1, ev->id) != LUA_TNIL) {
        lua_createtable(L, 3, 0);
        lua_pushinteger(L, ev->status);
        lua_rawseti(L, -2, 1);
        if (ev->json != NULL) {
            lua_pushstring(L, ev->json);
            lua_rawseti(L, -2, 2);
        }
        if (ev->blob != NULL) {
            lua_pushlstring(L, ev->blob, ev->blob_len);
            lua_rawseti(L, -2, 3);
        }
        lua_rawseti(L, -3, ev->id);
    }
    lua_pop(L, 2);
}

static void take(lua_State *L, struct handle *h, const struct rs_event *ev)
{
    lua_getfield(L, LUA_REGISTRYINDEX, HANDLES);
    lua_rawgetp(L, -1, h);
    if (ev->type == RS_EVENT_REPLY) {
        keep_reply(L, lua_gettop(L), ev);
    } else {
        queue_event(L, lua_gettop(L), h, ev);
        h->seen++;
    }
    scr_script_tasks(L)->news++;
    lua_pop(L, 2);
}

/* What has come from one engine; the console sees what comes from its own. */
static bool drain(lua_State *L, struct handle *h)
{
    const struct scr_host *host = scr_script_host(L);
    struct scr_tasks *ts = scr_script_tasks(L);
    struct rs_event ev;
    for (int i = 0; i < READ_AT_ONCE && h->e != NULL && !h->gone; i++) {
        enum rs_result rc = rs_next(h->e, 0, &ev, &h->err);
        if (rc == RS_ETIMEOUT)
            return i > 0;
        if (rc != RS_OK) {
            h->gone = true;
            ts->news++;
            return true;
        }
        if (h->borrowed && host->event != NULL) { /* replies too: panels ask beside a script */
            ts->reading = true;
            host->event(host->ctx, &ev);
            ts->reading = false;
        }
        take(L, h, &ev);
    }
    return true;
}

void scr_core_read(lua_State *L, int timeout_ms, bool own)
{
    struct pollfd p[MAX_HANDLES];
    nfds_t n = 0;
    bool got = false;
    luaL_checkstack(L, 20, NULL);
    for (int pass = 0; pass < 2 && !got; pass++) {
        for (struct handle *h = *scr_script_handles(L); h != NULL; h = h->next)
            if (h->e != NULL && !h->gone && !(own && h->borrowed))
                got |= drain(L, h);
        if (got || pass == 1 || timeout_ms <= 0)
            return;
        for (struct handle *h = *scr_script_handles(L); h != NULL && n < MAX_HANDLES; h = h->next)
            if (h->e != NULL && !h->gone && !(own && h->borrowed))
                p[n++] = (struct pollfd){.fd = rs_fd(h->e), .events = POLLIN};
        poll(p, n, timeout_ms);
    }
}

void scr_core_offer(lua_State *L, const struct rs_event *ev)
{
    for (struct handle *h = *scr_script_handles(L); h != NULL; h = h->next)
        if (h->e != NULL && h->borrowed)
            take(L, h, ev);
}

void scr_core_part(lua_State *L)
{
    for (struct handle *h = *scr_script_handles(L); h != NULL; h = h->next)
        if (h->borrowed)
            h->e = NULL;
}

bool scr_core_owns(lua_State *L)
{
    for (struct handle *h = *scr_script_handles(L); h != NULL; h = h->next)
        if (h->e != NULL && !h->borrowed)
            return true;
    return false;
}

/* A failed request in the engine's own words. */
static int raise_reply(lua_State *L, enum rs_result status, const char *json)
{
    struct rs_error err = {.code = status};
    json_t *v = json != NULL ? json_loads(json, 0, NULL) : NULL;
    const char *msg = json_string_value(json_object_get(json_object_get(v, "error"), "message"));
    scr_state_error(&err, status, "%s", msg != NULL ? msg : rs_result_name(status));
    json_decref(v);
    return raise(L, &err);
}

/* A number of seconds to wait, as a moment; huge and negative ones are for ever. */
static double deadline(lua_State *L, int idx)
{
    double s = luaL_optnumber(L, idx, 600);
    return now_s() + (s >= 0 && s < 1e9 ? s : 1e9);
}

/* Waits for the reply. On the stack: 1 the handle, 2 the method, 5 the id, 6 until when. */
static int call_k(lua_State *L, int status, lua_KContext ctx)
{
    (void)status, (void)ctx;
    lua_Integer id = lua_tointeger(L, 5);
    double until = lua_tonumber(L, 6);
    for (;;) {
        struct handle *h = lua_touserdata(L, 1);
        (void)check(L);
        scr_task_check(L);
        lua_settop(L, 6);
        lua_getiuservalue(L, 1, 2);
        if (lua_rawgeti(L, -1, id) == LUA_TTABLE) {
            lua_pushnil(L);
            lua_rawseti(L, -3, id);
            break;
        }
        if (h->gone)
            return raise(L, &h->err);
        if (now_s() >= until)
            return luaL_error(L, "%s: no reply in time", lua_tostring(L, 2));
        if (scr_task_can_yield(L))
            return scr_task_yield(L, until, 0, call_k);
        scr_task_block(L, until);
    }
    lua_rawgeti(L, 8, 1);
    lua_rawgeti(L, 8, 2);
    const char *json = lua_tostring(L, -1);
    enum rs_result rc = (enum rs_result)lua_tointeger(L, -2);
    if (rc != RS_OK)
        return raise_reply(L, rc, json);
    if (json != NULL)
        scr_json_decode(L, json, strlen(json));
    else
        lua_newtable(L);
    lua_rawgeti(L, 8, 3);
    return 2;
}

/* h:call(method, args, timeout_s) -> reply, blob */
static int handle_call(lua_State *L)
{
    struct rs_engine *e = check(L);
    const char *method = luaL_checkstring(L, 2);
    double until = deadline(L, 4);
    lua_settop(L, 4);
    const char *args = args_text(L, 3);
    struct rs_error err;
    uint32_t id;
    if (rs_send(e, method, args, &id, &err) != RS_OK)
        return raise(L, &err);
    lua_settop(L, 4);
    lua_pushinteger(L, id);
    lua_pushnumber(L, until);
    lua_getiuservalue(L, 1, 2);
    lua_pushboolean(L, 1);
    lua_rawseti(L, -2, id);
    return call_k(L, LUA_OK, 0);
}

/* On the stack: 1 the handle, 3 until when; ctx: events that had been queued when the wait began. */
static int next_k(lua_State *L, int status, lua_KContext ctx)
{
    (void)status;
    double until = lua_tonumber(L, 3);
    for (;;) {
        struct handle *h = lua_touserdata(L, 1);
        (void)check(L);
        scr_task_check(L);
        lua_settop(L, 3);
        if (unqueue_event(L, h))
            return 1;
        if (h->gone)
            return raise(L, &h->err);
        if (now_s() >= until || h->seen != (unsigned long)ctx) /* another task has taken what came: it may concern this one */
            return 0;
        if (scr_task_can_yield(L))
            return scr_task_yield(L, until, ctx, next_k);
        scr_task_block(L, until);
    }
}

/* h:next(timeout_s) -> event table, or nil: none in time, or another task took it. Raises when the operator interrupts. */
static int handle_next(lua_State *L)
{
    (void)check(L);
    const struct handle *h = lua_touserdata(L, 1);
    double until = deadline(L, 2);
    lua_settop(L, 2);
    lua_pushnumber(L, until);
    return next_k(L, LUA_OK, (lua_KContext)h->seen);
}

/* The range (offset, n) of arguments arg and arg + 1 within `whole` floats; without n, to the end. */
static lua_Integer floats_range(lua_State *L, int arg, lua_Integer whole, lua_Integer *n)
{
    lua_Integer at = luaL_optinteger(L, arg, 0);
    luaL_argcheck(L, at >= 0 && at <= whole, arg, "outside of the blob");
    *n = luaL_optinteger(L, arg + 1, whole - at);
    luaL_argcheck(L, *n >= 0 && *n <= whole - at, arg + 1, "outside of the blob");
    return at;
}

/* core.floats(blob, offset, n): an array of numbers out of raw f32; offset in floats, from 0 */
static int core_floats(lua_State *L)
{
    size_t len;
    const char *s = luaL_checklstring(L, 1, &len);
    lua_Integer n, at = floats_range(L, 2, (lua_Integer)(len / 4), &n);
    lua_createtable(L, (int)n, 0);
    for (lua_Integer i = 0; i < n; i++) {
        float f;
        memcpy(&f, s + (at + i) * 4, 4);
        lua_pushnumber(L, (lua_Number)f);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* core.kl(a, b, offset, n): KL divergence in nats of softmax(a) against softmax(b), over raw f32 */
static int core_kl(lua_State *L)
{
    size_t la, lb;
    const char *a = luaL_checklstring(L, 1, &la), *b = luaL_checklstring(L, 2, &lb);
    lua_Integer n, at = floats_range(L, 3, (lua_Integer)((la < lb ? la : lb) / 4), &n);
    luaL_argcheck(L, n > 0, 4, "nothing to compare");
    double ma = -INFINITY, mb = -INFINITY, za = 0, zb = 0, kl = 0;
    float x, y;
    for (int pass = 0; pass < 3; pass++)
        for (lua_Integer i = 0; i < n; i++) {
            memcpy(&x, a + (at + i) * 4, 4);
            memcpy(&y, b + (at + i) * 4, 4);
            if (pass == 0) {
                ma = fmax(ma, (double)x);
                mb = fmax(mb, (double)y);
            } else if (pass == 1) {
                za += exp((double)x - ma);
                zb += exp((double)y - mb);
            } else {
                double lp = (double)x - ma - log(za), lq = (double)y - mb - log(zb);
                kl += exp(lp) * (lp - lq);
            }
        }
    lua_pushnumber(L, kl);
    return 1;
}

static int core_now(lua_State *L)
{
    lua_pushnumber(L, now_s());
    return 1;
}

static int core_decode(lua_State *L)
{
    size_t len;
    const char *s = luaL_checklstring(L, 1, &len);
    scr_json_decode(L, s, len);
    return 1;
}

static int core_encode(lua_State *L)
{
    luaL_checkany(L, 1);
    json_t *v = scr_json_value(L, 1);
    char *s = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    json_decref(v);
    if (s == NULL)
        return luaL_error(L, "out of memory");
    lua_pushstring(L, s);
    free(s);
    return 1;
}

/* On the stack: 1 until when, 2 whether any news ends it; ctx: the news when it began. */
static int pause_k(lua_State *L, int status, lua_KContext ctx)
{
    (void)status;
    double until = lua_tonumber(L, 1);
    for (;;) {
        scr_task_check(L);
        if (now_s() >= until || (lua_toboolean(L, 2) && scr_script_tasks(L)->news != (unsigned long)ctx))
            return 0;
        if (scr_task_can_yield(L))
            return scr_task_yield(L, until, ctx, pause_k);
        scr_task_block(L, until);
    }
}

static int pause(lua_State *L, bool news)
{
    double until = now_s() + luaL_checknumber(L, 1);
    lua_settop(L, 0);
    lua_pushnumber(L, until);
    lua_pushboolean(L, news);
    return pause_k(L, LUA_OK, (lua_KContext)scr_script_tasks(L)->news);
}

static int core_sleep(lua_State *L)
{
    return pause(L, false);
}

/* core.pause(seconds): wait until something has happened, so long at most */
static int core_pause(lua_State *L)
{
    return pause(L, true);
}

/* core.spawn(fn, ...) -> id: runs at once, up to where it first waits */
static int core_spawn(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    struct scr_task *t = scr_task_new(L, lua_gettop(L) - 1);
    lua_pushinteger(L, scr_task_id(t));
    scr_task_resume(L, t);
    if (scr_task_done(t))
        scr_task_bury(L, t);
    return 1;
}

/* core.cancel(id) -> was there such a task? */
static int core_cancel(lua_State *L)
{
    struct scr_tasks *ts = scr_script_tasks(L);
    struct scr_task *t = scr_task_find(ts, (unsigned)luaL_checkinteger(L, 1));
    if (t != NULL)
        scr_task_cancel(ts, t);
    lua_pushboolean(L, t != NULL);
    return 1;
}

/* core.running(id) */
static int core_running(lua_State *L)
{
    struct scr_task *t = scr_task_find(scr_script_tasks(L), (unsigned)luaL_checkinteger(L, 1));
    lua_pushboolean(L, t != NULL && !scr_task_done(t));
    return 1;
}

/* ---- what a console offers ------------------------------------------------------------------------------------------------------------ */

static int no_console(lua_State *L)
{
    struct rs_error err;
    scr_state_error(&err, RS_ESTATE, "there is no console here");
    return raise(L, &err);
}

/* core.key(key, place, action, id, help) */
static int core_key(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    struct rs_error err;
    const char *key = luaL_checkstring(L, 1), *place = luaL_optstring(L, 2, NULL), *action = luaL_optstring(L, 3, NULL), *help = luaL_optstring(L, 5, NULL);
    unsigned id = (unsigned)luaL_optinteger(L, 4, 0);
    if (h->key == NULL)
        return no_console(L);
    return h->key(h->ctx, key, place, action, id, help, &err) == RS_OK ? 0 : raise(L, &err);
}

/* core.unkey(key, place) */
static int core_unkey(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    struct rs_error err;
    const char *key = luaL_checkstring(L, 1), *place = luaL_optstring(L, 2, NULL);
    if (h->unkey == NULL)
        return no_console(L);
    return h->unkey(h->ctx, key, place, &err) == RS_OK ? 0 : raise(L, &err);
}

/* core.panel(name, title) */
static int core_panel(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    struct rs_error err;
    const char *name = luaL_checkstring(L, 1), *title = luaL_optstring(L, 2, NULL);
    if (h->panel == NULL)
        return no_console(L);
    return h->panel(h->ctx, name, title, &err) == RS_OK ? 0 : raise(L, &err);
}

/* core.panel_text(name, text) */
static int core_panel_text(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    struct rs_error err;
    size_t len;
    const char *name = luaL_checkstring(L, 1), *text = luaL_checklstring(L, 2, &len);
    if (h->panel_text == NULL)
        return no_console(L);
    return h->panel_text(h->ctx, name, text, len, &err) == RS_OK ? 0 : raise(L, &err);
}

/* core.reserved(name): is it one of the console's own commands? */
static int core_reserved(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    lua_pushboolean(L, h->reserved != NULL && h->reserved(h->ctx, luaL_checkstring(L, 1)));
    return 1;
}

static int core_default_model(lua_State *L)
{
    const struct scr_host *h = scr_script_host(L);
    lua_pushstring(L, h->default_model);
    return 1;
}

/* core.path(name [, made]) -> what an operator means by the name of a file, for an engine that may live in another folder: absolute if it is there or is to be
 * made. What is no text, or names nothing, stays what it is. */
static int core_path(lua_State *L)
{
    bool made = lua_toboolean(L, 2);
    lua_settop(L, 1);
    if (lua_type(L, 1) != LUA_TSTRING)
        return 1;
    const char *name = lua_tostring(L, 1), *home = getenv("HOME");
    if (name[0] == '~' && name[1] == '/' && home != NULL) {
        lua_pushfstring(L, "%s%s", home, name + 1);
        return 1;
    }
    char *real = realpath(name, NULL), *here = real != NULL || made ? realpath(".", NULL) : NULL;
    if (name[0] != '/' && name[0] != '\0' && here != NULL)
        lua_pushfstring(L, "%s/%s", here, name);
    free(real);
    free(here);
    return 1;
}

int scr_core_open(lua_State *L)
{
    static const luaL_Reg methods[] = {{"call", handle_call}, {"next", handle_next}, {"close", handle_close}, {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", handle_close}, {"__close", handle_close}, {"__tostring", handle_tostring}, {NULL, NULL}};
    static const luaL_Reg functions[] = {
        {"local_engine", core_local}, {"connect", core_connect}, {"host_engine", core_host}, {"table", core_table}, {"floats", core_floats}, {"kl", core_kl},
        {"now", core_now}, {"sleep", core_sleep}, {"pause", core_pause}, {"spawn", core_spawn}, {"cancel", core_cancel}, {"running", core_running}, {"json_decode", core_decode}, {"json_encode", core_encode},
        {"default_model", core_default_model}, {"path", core_path}, {"reserved", core_reserved}, {"key", core_key}, {"unkey", core_unkey},
        {"panel", core_panel}, {"panel_text", core_panel_text}, {"op_methods", scr_op_methods}, {"finally", scr_script_finally}, {"notebook", scr_notebook_new}, {NULL, NULL},
    };
    lua_newtable(L);
    lua_createtable(L, 0, 1);
    lua_pushliteral(L, "v");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, HANDLES);
    luaL_newmetatable(L, "rs.array");
    lua_pop(L, 1);
    luaL_newmetatable(L, "rs.error");
    lua_pushcfunction(L, error_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
    luaL_newmetatable(L, HANDLE);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    scr_notebook_types(L);
    luaL_newlib(L, functions);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, SCR_COMMANDS);
    lua_setfield(L, -2, "commands");
    lua_pushlightuserdata(L, NULL);
    lua_setfield(L, -2, "null");
    luaL_getmetatable(L, "rs.array");
    lua_setfield(L, -2, "array_type");
    luaL_getmetatable(L, "rs.error");
    lua_setfield(L, -2, "error_type");
    return 1;
}
