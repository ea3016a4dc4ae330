/* scr_core.h: the C part of the module rs: engine handles, JSON, time. The Lua part is lua/rs.lua. */
#ifndef RANKSCOPE_LUA_SCR_CORE_H
#define RANKSCOPE_LUA_SCR_CORE_H

#include <stdbool.h>

#include <lua.h>

struct scr_host;
struct scr_script;

#define SCR_COMMANDS "rs.commands" /* in the registry: commands that scripts added, name -> {fn=, help=}; Lua sees it as core.commands */

/* luaopen function of "rs.core". */
int scr_core_open(lua_State *L);

/* scr_script.c: the host of the state L belongs to, and whether its operator wants it to stop. */
const struct scr_host *scr_script_host(lua_State *L);
bool scr_script_interrupted(lua_State *L);
/* core.finally(fn, tidy, ...) -> what fn(...) gives. tidy() runs whatever happens, an interrupt of the operator included, and undisturbed by one for a
 * minute; then what fn raised goes on. */
int scr_script_finally(lua_State *L);
lua_State *scr_script_state(struct scr_script *s);

#endif
