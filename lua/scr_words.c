/* Looking into a state without running anything of it: names for completion, commands that scripts added. Part of scr_script.h. */
#include "config.h"

#include <ctype.h>
#include <string.h>

#include <lauxlib.h>

#include "lua/scr_core.h"
#include "lua/scr_script.h"

enum { MAX_STEPS = 16, MAX_META = 8 };

struct look {
    scr_word_fn each;
    void *ctx;
    const char *text;
    bool found;
};

/* ---- commands ---- */

/* Leaves the table of commands, or nothing and false. Runs protected. */
static bool commands_table(lua_State *L)
{
    return lua_getfield(L, LUA_REGISTRYINDEX, SCR_COMMANDS) == LUA_TTABLE;
}

static int list_commands(lua_State *L)
{
    struct look *k = lua_touserdata(L, 1);
    if (!commands_table(L))
        return 0;
    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
        if (lua_type(L, -2) == LUA_TSTRING && lua_istable(L, -1)) {
            lua_pushliteral(L, "help");
            lua_rawget(L, -2);
            const char *name = lua_tostring(L, -3);
            if (k->text == NULL)
                k->each(k->ctx, name, lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "");
            else
                k->found |= strcmp(name, k->text) == 0;
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    return 0;
}

static void look(struct scr_script *s, lua_CFunction fn, struct look *k)
{
    lua_State *L = scr_script_state(s);
    int top = lua_gettop(L);
    if (!lua_checkstack(L, 20))
        return;
    lua_pushcfunction(L, fn);
    lua_pushlightuserdata(L, k);
    (void)lua_pcall(L, 1, 0, 0); /* only memory can run out; then there is nothing to offer */
    lua_settop(L, top);
}

void scr_script_commands(struct scr_script *s, scr_word_fn each, void *ctx)
{
    struct look k = {.each = each, .ctx = ctx};
    look(s, list_commands, &k);
}

bool scr_script_has_command(struct scr_script *s, const char *name)
{
    struct look k = {.text = name};
    look(s, list_commands, &k);
    return k.found;
}

/* ---- completion ---- */

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Where the dotted expression that ends the text begins: "f(rs.pa" -> "rs.pa". */
static const char *expression(const char *text)
{
    const char *p = text + strlen(text);
    while (p > text && (word_char(p[-1]) || p[-1] == '.' || p[-1] == ':'))
        p--;
    return p;
}

/* Replace the value on top by its member, looking through tables of metatables' __index; false: there is none. */
static bool member(lua_State *L, const char *name, size_t len)
{
    for (int i = 0; i < MAX_META; i++) {
        if (lua_istable(L, -1)) {
            lua_pushlstring(L, name, len);
            if (lua_rawget(L, -2) != LUA_TNIL) {
                lua_remove(L, -2);
                return true;
            }
            lua_pop(L, 1);
        }
        if (!lua_getmetatable(L, -1))
            return false;
        lua_pushliteral(L, "__index");
        lua_rawget(L, -2);
        lua_replace(L, -3);
        lua_pop(L, 1);
    }
    return false;
}

/* Offer the names in the table on top, and in those behind it. `head`: what comes before a name. */
static void offer(lua_State *L, const struct look *k, const char *head, size_t head_len, const char *begin, bool methods)
{
    for (int i = 0; i < MAX_META; i++) {
        if (lua_istable(L, -1)) {
            lua_pushnil(L);
            while (lua_next(L, -2) != 0) {
                const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
                bool good = *name != '\0' && !isdigit((unsigned char)*name) && (!methods || lua_isfunction(L, -1));
                for (const char *p = name; good && *p != '\0'; p++)
                    good = word_char(*p);
                if (good && strncmp(name, begin, strlen(begin)) == 0 && (strncmp(name, "__", 2) != 0 || begin[0] == '_')) {
                    lua_pushlstring(L, head, head_len);
                    lua_pushfstring(L, "%s%s%s", lua_tostring(L, -1), name, lua_isfunction(L, -2) ? "(" : "");
                    k->each(k->ctx, lua_tostring(L, -1), NULL);
                    lua_pop(L, 2);
                }
                lua_pop(L, 1);
            }
        }
        if (!lua_getmetatable(L, -1))
            return;
        lua_pushliteral(L, "__index");
        lua_rawget(L, -2);
        lua_replace(L, -3);
        lua_pop(L, 1);
    }
}

static int complete(lua_State *L)
{
    const struct look *k = lua_touserdata(L, 1);
    const char *at = expression(k->text), *head = at;
    lua_pushglobaltable(L);
    for (int i = 0; i < MAX_STEPS; i++) {
        size_t n = strcspn(at, ".:");
        if (at[n] == '\0') {
            offer(L, k, head, (size_t)(at - head), at, at > head && at[-1] == ':');
            return 0;
        }
        if (n == 0 || !member(L, at, n))
            return 0;
        at += n + 1;
    }
    return 0;
}

void scr_script_complete(struct scr_script *s, const char *text, scr_word_fn each, void *ctx)
{
    struct look k = {.each = each, .ctx = ctx, .text = text};
    look(s, complete, &k);
}
