/* rcmd_lua.h: the console's Lua state: commands that are written in Lua, names for completion. The state is made when it is first needed. */
#ifndef RANKSCOPE_CONSOLE_RCMD_LUA_H
#define RANKSCOPE_CONSOLE_RCMD_LUA_H

#include "console/con.h"

/* Run the operator's init.lua if there is one. */
void rcmd_lua_start(struct con *con);

/* "=EXPR" and /lua. */
enum rs_result rcmd_lua_eval(struct con *con, const char *code, struct rs_error *err);

/* Call commands[function](args) of lua/commands.lua. */
enum rs_result rcmd_lua_call(struct con *con, const char *function, const char *args, struct rs_error *err);

/* A command that a script has added. */
bool rcmd_lua_has(struct con *con, const char *name);
enum rs_result rcmd_lua_command(struct con *con, const char *name, const char *args, struct rs_error *err);

/* Offer what may follow at the end of text; nothing of a script is called. */
void rcmd_lua_complete(struct con *con, const char *text, scr_word_fn each, void *ctx);

#endif
