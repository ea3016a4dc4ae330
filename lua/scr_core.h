/* scr_core.h: the C part of the module rs: engine handles, JSON, time. The Lua part is lua/rs.lua. */
#ifndef RANKSCOPE_LUA_SCR_CORE_H
#define RANKSCOPE_LUA_SCR_CORE_H

#include <stdbool.h>

#include <lua.h>

struct rs_event;
struct scr_host;
struct scr_script;

#define SCR_COMMANDS "rs.commands" /* in the registry: commands that scripts added, name -> {fn=, help=}; Lua sees it as core.commands */

/* Read what engines have sent into queues, waiting for it so long at most; own: leave the console's engine to the console. May raise. */
void scr_core_read(lua_State *L, int timeout_ms, bool own);
/* An event that the console has read from its engine. May raise. */
void scr_core_offer(lua_State *L, const struct rs_event *ev);
/* Let go of the console's engine, which is about to be closed: handles on it are closed. */
void scr_core_part(lua_State *L);
/* Is there an engine that only this state reads from? */
bool scr_core_owns(lua_State *L);

/* luaopen function of "rs.core". */
int scr_core_open(lua_State *L);

/* scr_script.c: the host of the state L belongs to, and whether its operator wants it to stop. */
const struct scr_host *scr_script_host(lua_State *L);
bool scr_script_interrupted(lua_State *L);
/* core.finally(fn, tidy, ...) -> what fn(...) gives. tidy() runs whatever happens, an interrupt of the operator included, and undisturbed by one for a
 * minute; then what fn raised goes on. */
int scr_script_finally(lua_State *L);
/* The tasks of the state, its list of engine handles, the interrupt hook for a new coroutine, and whether an interrupt is being raised. */
struct scr_tasks *scr_script_tasks(lua_State *L);
void **scr_script_handles(lua_State *L);
void scr_script_watch(lua_State *co);
bool scr_script_stopped(const struct scr_script *s);
lua_State *scr_script_state(struct scr_script *s);

#endif
