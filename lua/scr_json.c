#include "config.h"

#include "lua/scr_json.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <lauxlib.h>

enum { MAX_DEPTH = 64 };

static void push(lua_State *L, const json_t *v, int depth)
{
    const char *key;
    json_t *e;
    size_t i;
    if (depth > MAX_DEPTH)
        luaL_error(L, "JSON is nested deeper than %d", MAX_DEPTH);
    luaL_checkstack(L, 4, "JSON");
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        lua_createtable(L, 0, (int)json_object_size(v));
        json_object_foreach((json_t *)(uintptr_t)v, key, e) {
            if (json_is_null(e))
                continue;
            push(L, e, depth + 1);
            lua_setfield(L, -2, key);
        }
        break;
    case JSON_ARRAY:
        lua_createtable(L, (int)json_array_size(v), 0);
        json_array_foreach((json_t *)(uintptr_t)v, i, e) {
            push(L, e, depth + 1);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
        break;
    case JSON_STRING: lua_pushlstring(L, json_string_value(v), json_string_length(v)); break;
    case JSON_INTEGER: lua_pushinteger(L, json_integer_value(v)); break;
    case JSON_REAL: lua_pushnumber(L, json_real_value(v)); break;
    case JSON_TRUE: lua_pushboolean(L, 1); break;
    case JSON_FALSE: lua_pushboolean(L, 0); break;
    case JSON_NULL: lua_pushlightuserdata(L, NULL); break;
    }
}

void scr_json_push(lua_State *L, const json_t *v)
{
    push(L, v, 0);
}

/* What went wrong while a value was converted; nothing raises while JSON is held. */
struct trouble {
    const char *what; /* NULL: nothing */
};

static json_t *value(lua_State *L, int idx, int depth, struct trouble *t);

static bool is_array(lua_State *L, int idx, lua_Integer *n)
{
    lua_Integer count = 0;
    *n = (lua_Integer)lua_rawlen(L, idx);
    lua_pushnil(L);
    while (lua_next(L, idx) != 0) {
        count++;
        lua_pop(L, 1);
    }
    if (*n == 0 && count == 0) {
        bool marked = false;
        if (lua_getmetatable(L, idx)) {
            luaL_getmetatable(L, "rs.array");
            marked = lua_rawequal(L, -1, -2);
            lua_pop(L, 2);
        }
        return marked;
    }
    return *n > 0 && count == *n;
}

static json_t *table_value(lua_State *L, int idx, int depth, struct trouble *t)
{
    lua_Integer n;
    if (is_array(L, idx, &n)) {
        json_t *a = json_array();
        for (lua_Integer i = 1; i <= n && t->what == NULL; i++) {
            lua_rawgeti(L, idx, i);
            json_array_append_new(a, value(L, lua_gettop(L), depth + 1, t));
            lua_pop(L, 1);
        }
        return a;
    }
    json_t *o = json_object();
    lua_pushnil(L);
    while (t->what == NULL && lua_next(L, idx) != 0) {
        if (lua_type(L, -2) != LUA_TSTRING) {
            t->what = "a table has both names and numbers as keys, or holes";
            lua_pop(L, 2);
            break;
        }
        json_object_set_new(o, lua_tostring(L, -2), value(L, lua_gettop(L), depth + 1, t));
        lua_pop(L, 1);
    }
    return o;
}

static json_t *value(lua_State *L, int idx, int depth, struct trouble *t)
{
    size_t len;
    const char *s;
    double d;
    if (depth > MAX_DEPTH || !lua_checkstack(L, 6)) {
        t->what = "a table is nested too deep, or contains itself";
        return json_null();
    }
    switch (lua_type(L, idx)) {
    case LUA_TNIL: return json_null();
    case LUA_TLIGHTUSERDATA: return json_null();
    case LUA_TBOOLEAN: return json_boolean(lua_toboolean(L, idx));
    case LUA_TNUMBER:
        if (lua_isinteger(L, idx))
            return json_integer(lua_tointeger(L, idx));
        d = lua_tonumber(L, idx);
        if (isfinite(d))
            return json_real(d);
        t->what = "a number is not finite";
        return json_null();
    case LUA_TSTRING: {
        s = lua_tolstring(L, idx, &len);
        json_t *v = json_stringn(s, len);
        if (v == NULL)
            t->what = "a string is not UTF-8";
        return v != NULL ? v : json_null();
    }
    case LUA_TTABLE: return table_value(L, idx, depth, t);
    default: t->what = lua_typename(L, lua_type(L, idx)); return json_null();
    }
}

json_t *scr_json_value(lua_State *L, int idx)
{
    struct trouble t = {NULL};
    json_t *v = value(L, lua_absindex(L, idx), 0, &t);
    if (t.what != NULL) {
        json_decref(v);
        luaL_error(L, "cannot be sent to the engine: %s", t.what);
    }
    return v;
}

static int push_protected(lua_State *L)
{
    const json_t *v = lua_touserdata(L, 1);
    push(L, v, 0);
    return 1;
}

void scr_json_decode(lua_State *L, const char *text, size_t len)
{
    json_error_t e;
    json_t *v = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (v == NULL)
        luaL_error(L, "not JSON: %s", e.text);
    lua_pushcfunction(L, push_protected); /* so that v is freed whatever happens */
    lua_pushlightuserdata(L, v);
    int status = lua_pcall(L, 1, 1, 0);
    json_decref(v);
    if (status != LUA_OK)
        lua_error(L);
}
