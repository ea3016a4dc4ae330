#include "config.h"

#include "lua/scr_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>

#include "engine/rankscope.h"
#include "lua/scr_json.h"
#include "lua/scr_notebook.h"
#include "lua/scr_script.h"
#include "lua/scr_state.h"

#define HANDLE "rs.engine"
#define MAX_QUEUE 65536 /* events */

/* A handle on an engine. borrowed: the console's own, which a script must not close. */
struct handle {
    struct rs_engine *e;
    bool borrowed;
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

static struct handle *new_handle(lua_State *L)
{
    struct handle *h = lua_newuserdatauv(L, sizeof *h, 1);
    *h = (struct handle){.e = NULL};
    lua_newtable(L);
    lua_setiuservalue(L, -2, 1);
    luaL_setmetatable(L, HANDLE);
    return h;
}

/* core.local_engine{workers=, isa=} */
static int core_local(lua_State *L)
{
    struct rs_local_params p = {0, NULL};
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

static int handle_close(lua_State *L)
{
    struct handle *h = luaL_checkudata(L, 1, HANDLE);
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
static void queue_event(lua_State *L, struct handle *h, const struct rs_event *ev)
{
    bool again = (ev->type == RS_EVENT_STATE || ev->type == RS_EVENT_PROGRESS) && h->first != h->last && h->newest == ev->type;
    lua_getiuservalue(L, 1, 1);
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

/* Wait for the next event in slices, so that the operator can interrupt; false when none came in time. */
static bool wait_event(lua_State *L, struct handle *h, double until, struct rs_event *ev)
{
    const struct scr_host *host = scr_script_host(L);
    struct rs_error err;
    for (;;) {
        double left = until - now_s();
        if (scr_script_interrupted(L))
            luaL_error(L, "interrupted");
        enum rs_result rc = rs_next(h->e, left <= 0 ? 0 : left < 0.05 ? (int)(left * 1000) + 1 : 50, ev, &err);
        if (rc == RS_OK) {
            if (h->borrowed && host->event != NULL && ev->type != RS_EVENT_REPLY)
                host->event(host->ctx, ev);
            return true;
        }
        if (rc != RS_ETIMEOUT)
            raise(L, &err);
        if (left <= 0)
            return false;
    }
}

/* A failed request in the engine's own words. */
static int raise_reply(lua_State *L, const struct rs_event *ev)
{
    struct rs_error err = {.code = ev->status};
    json_t *v = ev->json != NULL ? json_loads(ev->json, 0, NULL) : NULL;
    const char *msg = json_string_value(json_object_get(json_object_get(v, "error"), "message"));
    scr_state_error(&err, ev->status, "%s", msg != NULL ? msg : rs_result_name(ev->status));
    json_decref(v);
    return raise(L, &err);
}

/* A number of seconds to wait, as a moment; huge and negative ones are for ever. */
static double deadline(lua_State *L, int idx)
{
    double s = luaL_optnumber(L, idx, 600);
    return now_s() + (s >= 0 && s < 1e9 ? s : 1e9);
}

/* h:call(method, args, timeout_s) -> reply, blob */
static int handle_call(lua_State *L)
{
    struct rs_engine *e = check(L);
    struct handle *h = lua_touserdata(L, 1);
    const char *method = luaL_checkstring(L, 2);
    double until = deadline(L, 4);
    const char *args = args_text(L, 3);
    struct rs_error err;
    struct rs_event ev;
    uint32_t id;
    if (rs_send(e, method, args, &id, &err) != RS_OK)
        return raise(L, &err);
    for (;;) {
        if (!wait_event(L, h, until, &ev))
            return luaL_error(L, "%s: no reply in time", method);
        if (ev.type == RS_EVENT_LOST)
            return luaL_error(L, "the engine is gone");
        if (ev.type == RS_EVENT_REPLY && ev.id == id)
            break;
        if (ev.type != RS_EVENT_REPLY) /* else: an answer that nobody waits for any more */
            queue_event(L, h, &ev);
    }
    if (ev.status != RS_OK)
        return raise_reply(L, &ev);
    if (ev.json != NULL)
        scr_json_decode(L, ev.json, strlen(ev.json));
    else
        lua_newtable(L);
    if (ev.blob != NULL)
        lua_pushlstring(L, ev.blob, ev.blob_len);
    else
        lua_pushnil(L);
    return 2;
}

/* h:next(timeout_s) -> event table, or nil when there was none. Raises when the operator interrupts. */
static int handle_next(lua_State *L)
{
    (void)check(L);
    struct handle *h = lua_touserdata(L, 1);
    double until = deadline(L, 2);
    struct rs_event ev;
    if (unqueue_event(L, h))
        return 1;
    do {
        if (!wait_event(L, h, until, &ev))
            return 0;
    } while (ev.type == RS_EVENT_REPLY);
    push_event(L, &ev);
    return 1;
}

/* core.floats(blob, offset, n): an array of numbers out of raw f32; offset in floats, from 0 */
static int core_floats(lua_State *L)
{
    size_t len;
    const char *s = luaL_checklstring(L, 1, &len);
    lua_Integer at = luaL_optinteger(L, 2, 0), n = luaL_optinteger(L, 3, (lua_Integer)(len / 4) - at);
    luaL_argcheck(L, at >= 0 && n >= 0 && (size_t)(at + n) * 4 <= len, 2, "outside of the blob");
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
    lua_Integer at = luaL_optinteger(L, 3, 0), n = luaL_optinteger(L, 4, (lua_Integer)(la / 4) - at);
    luaL_argcheck(L, at >= 0 && n > 0 && (size_t)(at + n) * 4 <= la && (size_t)(at + n) * 4 <= lb, 3, "outside of the blobs");
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

static int core_sleep(lua_State *L)
{
    double until = now_s() + luaL_checknumber(L, 1);
    for (double left; (left = until - now_s()) > 0;) {
        if (scr_script_interrupted(L))
            return luaL_error(L, "interrupted");
        struct timespec t = {0, left > 0.05 ? 50000000 : (long)(left * 1e9)};
        nanosleep(&t, NULL);
    }
    return 0;
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

int scr_core_open(lua_State *L)
{
    static const luaL_Reg methods[] = {{"call", handle_call}, {"next", handle_next}, {"close", handle_close}, {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", handle_close}, {"__close", handle_close}, {"__tostring", handle_tostring}, {NULL, NULL}};
    static const luaL_Reg functions[] = {
        {"local_engine", core_local}, {"connect", core_connect}, {"host_engine", core_host}, {"floats", core_floats}, {"kl", core_kl},
        {"now", core_now}, {"sleep", core_sleep}, {"json_decode", core_decode}, {"json_encode", core_encode},
        {"default_model", core_default_model}, {"reserved", core_reserved}, {"finally", scr_script_finally}, {"notebook", scr_notebook_new}, {NULL, NULL},
    };
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
