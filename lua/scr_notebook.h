/* scr_notebook.h: the notebook's file (SQLite) as a Lua object; what is in it is lua/notebook.lua's business. */
#ifndef RANKSCOPE_LUA_SCR_NOTEBOOK_H
#define RANKSCOPE_LUA_SCR_NOTEBOOK_H

#include <lua.h>

/* core.notebook(path) -> db; db:run(sql, ...) -> array of rows (tables by column name); db:close(). Parameters bind to ?: strings, numbers, booleans, nil.
 * Several processes may use one file: a busy one is waited for, up to 5 s. */
int scr_notebook_new(lua_State *L);
void scr_notebook_types(lua_State *L);

#endif
