/* scr_state.h: Lua states for code that may come from anywhere.
 *
 * Such a state has the base, string, table, math and utf8 libraries less everything that reaches files, other code or the process; it stops
 * with an error after a bounded number of instructions and a bounded amount of memory. `require "a.b"` finds a/b.lua or a/b/init.lua in
 * one folder only.
 * One thread per state. */
#ifndef RANKSCOPE_LUA_SCR_STATE_H
#define RANKSCOPE_LUA_SCR_STATE_H

#include <lua.h>

#include "engine/rankscope.h"

struct scr_limits {
    size_t memory;              /* bytes that the state may hold at once */
    unsigned long instructions; /* VM instructions per scr_state_do() */
};

/* A sandboxed state whose require() searches `folder` (copied; NULL: no require). NULL when memory is short. */
lua_State *scr_state_new(const struct scr_limits *limits, const char *folder);
void scr_state_free(lua_State *L); /* NULL is allowed */

/* Change the number of instructions of every later scr_state_do(). */
void scr_state_limit(lua_State *L, unsigned long instructions);

/* Call fn with one light userdata. Whatever it raises, memory running out included, becomes an error in err: RS_ENOMEM, or RS_EFORMAT with
 * Lua's message, which names file and line. All work with a state happens inside such a call, because outside of one an error ends the
 * process. fn returns no values. */
enum rs_result scr_state_do(lua_State *L, lua_CFunction fn, void *arg, struct rs_error *err);

/* For use inside scr_state_do(): load a file (text only, no precompiled code) and leave its function on the stack, or raise. */
void scr_state_load(lua_State *L, const char *file);

/* Fill err with one printable line. */
enum rs_result scr_state_error(struct rs_error *err, enum rs_result code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
