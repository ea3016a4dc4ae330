#include "config.h"

#include "lua/scr_notebook.h"

#include <lauxlib.h>
#include <sqlite3.h>

#define DB "rs.db"

struct db {
    sqlite3 *h;
};

static int db_close(lua_State *L)
{
    struct db *d = luaL_checkudata(L, 1, DB);
    sqlite3_close_v2(d->h); /* NULL is allowed */
    d->h = NULL;
    return 0;
}

int scr_notebook_new(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    struct db *d = lua_newuserdatauv(L, sizeof *d, 0);
    d->h = NULL;
    luaL_setmetatable(L, DB);
    if (sqlite3_open(path, &d->h) != SQLITE_OK)
        return luaL_error(L, "notebook %s: %s", path, d->h != NULL ? sqlite3_errmsg(d->h) : "out of memory");
    sqlite3_busy_timeout(d->h, 5000);
    return 1;
}

static void bind(lua_State *L, sqlite3_stmt *st, int i, int idx)
{
    size_t len;
    switch (lua_type(L, idx)) {
    case LUA_TNIL: sqlite3_bind_null(st, i); break;
    case LUA_TBOOLEAN: sqlite3_bind_int(st, i, lua_toboolean(L, idx)); break;
    case LUA_TNUMBER:
        if (lua_isinteger(L, idx))
            sqlite3_bind_int64(st, i, lua_tointeger(L, idx));
        else
            sqlite3_bind_double(st, i, lua_tonumber(L, idx));
        break;
    case LUA_TSTRING: {
        const char *s = lua_tolstring(L, idx, &len);
        sqlite3_bind_text(st, i, s, (int)len, SQLITE_TRANSIENT);
        break;
    }
    default: break; /* checked before */
    }
}

static void push_column(lua_State *L, sqlite3_stmt *st, int i)
{
    switch (sqlite3_column_type(st, i)) {
    case SQLITE_INTEGER: lua_pushinteger(L, sqlite3_column_int64(st, i)); break;
    case SQLITE_FLOAT: lua_pushnumber(L, sqlite3_column_double(st, i)); break;
    case SQLITE_NULL: lua_pushnil(L); break;
    default: lua_pushlstring(L, (const char *)sqlite3_column_text(st, i), (size_t)sqlite3_column_bytes(st, i)); break;
    }
}

static int db_run(lua_State *L)
{
    struct db *d = luaL_checkudata(L, 1, DB);
    const char *sql = luaL_checkstring(L, 2);
    sqlite3_stmt *st;
    int n = lua_gettop(L), rc;
    if (d->h == NULL)
        return luaL_error(L, "the notebook is closed");
    for (int i = 3; i <= n; i++) {
        int t = lua_type(L, i);
        luaL_argcheck(L, t == LUA_TNIL || t == LUA_TBOOLEAN || t == LUA_TNUMBER || t == LUA_TSTRING, i, "cannot be stored");
    }
    if (sqlite3_prepare_v2(d->h, sql, -1, &st, NULL) != SQLITE_OK)
        return luaL_error(L, "notebook: %s", sqlite3_errmsg(d->h));
    for (int i = 3; i <= n; i++)
        bind(L, st, i - 2, i);
    lua_newtable(L);
    for (lua_Integer row = 1; (rc = sqlite3_step(st)) == SQLITE_ROW; row++) {
        lua_newtable(L);
        for (int c = 0; c < sqlite3_column_count(st); c++) {
            push_column(L, st, c);
            lua_setfield(L, -2, sqlite3_column_name(st, c));
        }
        lua_rawseti(L, -2, row);
    }
    sqlite3_finalize(st);
    return rc == SQLITE_DONE ? 1 : luaL_error(L, "notebook: %s", sqlite3_errmsg(d->h));
}

void scr_notebook_types(lua_State *L)
{
    static const luaL_Reg methods[] = {{"run", db_run}, {"close", db_close}, {NULL, NULL}};
    luaL_newmetatable(L, DB);
    lua_pushcfunction(L, db_close);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, db_close);
    lua_setfield(L, -2, "__close");
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
