#include "config.h"

#include "lua/scr_state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lualib.h>

#define HOOK_STEP 10000 /* instructions between two looks at the budget */

/* Hangs behind the state's allocator, so that it is there from the first allocation to the last. */
struct scr_box {
    struct scr_limits limits;
    size_t used;
    unsigned long left; /* instructions of the running call */
    char *folder;
};

static void *box_alloc(void *ud, void *p, size_t old, size_t size)
{
    struct scr_box *box = ud;
    if (p == NULL)
        old = 0; /* then it holds a kind of object, not a size */
    if (size == 0) {
        free(p);
        box->used -= old;
        return NULL;
    }
    if (size > old && size - old > box->limits.memory - box->used)
        return NULL;
    void *q = realloc(p, size);
    if (q != NULL)
        box->used += size - old;
    return q;
}

static struct scr_box *box_of(lua_State *L)
{
    void *ud;
    lua_getallocf(L, &ud);
    return ud;
}

/* Once the budget is spent every further line raises again, so that a pcall() inside the script cannot swallow it. */
static void budget_hook(lua_State *L, lua_Debug *ar)
{
    struct scr_box *box = box_of(L);
    (void)ar;
    if (box->left > HOOK_STEP) {
        box->left -= HOOK_STEP;
        return;
    }
    box->left = 0;
    lua_sethook(L, budget_hook, LUA_MASKLINE | LUA_MASKCOUNT, 1);
    luaL_where(L, 0); /* in a hook, level 0 is what runs now */
    lua_pushfstring(L, "%sruns too long (more than %d million instructions)", lua_tostring(L, -1),
                    (int)(box->limits.instructions / 1000000));
    lua_error(L);
}

/* Runs no bytecode: a crafted chunk could break out of the state. */
static int load_text(lua_State *L, const char *file)
{
    return luaL_loadfilex(L, file, "t");
}

/* "a.b" becomes "a/b"; anything that could leave the folder is refused. */
static bool module_path(const char *name, char *path, size_t size)
{
    size_t n = strlen(name);
    if (n == 0 || n >= size || name[0] == '.' || name[n - 1] == '.' || strstr(name, "..") != NULL)
        return false;
    for (size_t i = 0; i <= n; i++) {
        bool good = name[i] == '\0' || name[i] == '.' || name[i] == '_' || name[i] == '-' || (name[i] >= '0' && name[i] <= '9') ||
                    (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z');
        if (!good)
            return false;
        path[i] = name[i] == '.' ? '/' : name[i];
    }
    return true;
}

/* require(name): runs the file once and keeps what it returned. Upvalue 1: the table of what was loaded. */
static int box_require(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    struct scr_box *box = box_of(L);
    char path[128];
    if (!module_path(name, path, sizeof path))
        return luaL_error(L, "'%s' is no module name", name);
    if (lua_getfield(L, lua_upvalueindex(1), name) != LUA_TNIL)
        return 1;
    lua_pushfstring(L, "%s/%s.lua", box->folder, path);
    int status = load_text(L, lua_tostring(L, -1));
    if (status == LUA_ERRFILE) {
        lua_pushfstring(L, "%s/%s/init.lua", box->folder, path);
        status = load_text(L, lua_tostring(L, -1));
    }
    if (status == LUA_ERRFILE)
        return luaL_error(L, "there is no module '%s' in %s", name, box->folder);
    if (status != LUA_OK)
        return lua_error(L);
    lua_call(L, 0, 1);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_pushboolean(L, 1);
    }
    lua_pushvalue(L, -1);
    lua_setfield(L, lua_upvalueindex(1), name);
    return 1;
}

/* Runs protected, because it allocates. */
static int box_fill(lua_State *L)
{
    static const luaL_Reg libraries[] = {
        {LUA_GNAME, luaopen_base},       {LUA_STRLIBNAME, luaopen_string}, {LUA_TABLIBNAME, luaopen_table},
        {LUA_MATHLIBNAME, luaopen_math}, {LUA_UTF8LIBNAME, luaopen_utf8},  {NULL, NULL},
    };
    static const char *const removed[] = {"dofile", "loadfile", "load", "print", "collectgarbage", "warn", NULL};
    for (const luaL_Reg *lib = libraries; lib->func != NULL; lib++) {
        luaL_requiref(L, lib->name, lib->func, 1);
        lua_pop(L, 1);
    }
    for (size_t i = 0; removed[i] != NULL; i++) {
        lua_pushnil(L);
        lua_setglobal(L, removed[i]);
    }
    lua_getglobal(L, LUA_STRLIBNAME);
    lua_pushnil(L);
    lua_setfield(L, -2, "dump");
    lua_pop(L, 1);
    if (box_of(L)->folder != NULL) {
        lua_newtable(L);
        lua_pushcclosure(L, box_require, 1);
        lua_setglobal(L, "require");
    }
    return 0;
}

lua_State *scr_state_new(const struct scr_limits *limits, const char *folder)
{
    struct scr_box *box = calloc(1, sizeof *box);
    if (box == NULL)
        return NULL;
    box->limits = *limits;
    box->folder = folder != NULL ? strdup(folder) : NULL;
    lua_State *L = folder == NULL || box->folder != NULL ? lua_newstate(box_alloc, box) : NULL;
    if (L == NULL) {
        free(box->folder);
        free(box);
        return NULL;
    }
    /* Coroutines inherit the hook of the state that makes them, so it must be there before any script runs. */
    box->left = limits->instructions;
    lua_sethook(L, budget_hook, LUA_MASKCOUNT, HOOK_STEP);
    lua_pushcfunction(L, box_fill);
    if (lua_pcall(L, 0, 0, 0) != LUA_OK) {
        scr_state_free(L);
        return NULL;
    }
    return L;
}

void scr_state_free(lua_State *L)
{
    if (L == NULL)
        return;
    struct scr_box *box = box_of(L);
    lua_close(L);
    free(box->folder);
    free(box);
}

void scr_state_limit(lua_State *L, unsigned long instructions)
{
    box_of(L)->limits.instructions = instructions;
}

enum rs_result scr_state_error(struct rs_error *err, enum rs_result code, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    for (char *p = err->msg; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    return code;
}

/* Take the error value off the stack into err. */
static enum rs_result take_error(lua_State *L, int status, struct rs_error *err)
{
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is not a string";
    enum rs_result r =
        status == LUA_ERRMEM ? scr_state_error(err, RS_ENOMEM, "Lua: memory limit reached") : scr_state_error(err, RS_EFORMAT, "%s", text);
    lua_pop(L, 1);
    return r;
}

void scr_state_load(lua_State *L, const char *file)
{
    int status = load_text(L, file);
    if (status == LUA_ERRFILE)
        luaL_error(L, "cannot read %s: %s", file, strerror(errno));
    else if (status != LUA_OK)
        lua_error(L);
}

enum rs_result scr_state_do(lua_State *L, lua_CFunction fn, void *arg, struct rs_error *err)
{
    struct scr_box *box = box_of(L);
    box->left = box->limits.instructions;
    lua_sethook(L, budget_hook, LUA_MASKCOUNT, HOOK_STEP);
    /* Neither of these two allocates, and a C function may use 20 slots of the stack without asking. */
    lua_pushcfunction(L, fn);
    lua_pushlightuserdata(L, arg);
    int status = lua_pcall(L, 1, 0, 0);
    return status == LUA_OK ? RS_OK : take_error(L, status, err);
}
