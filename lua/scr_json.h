/* scr_json.h: JSON values as Lua values and back. One thread per state. */
#ifndef RANKSCOPE_LUA_SCR_JSON_H
#define RANKSCOPE_LUA_SCR_JSON_H

#include <jansson.h>
#include <lua.h>

/* Push a value. Objects and arrays become tables, null inside an array becomes rs.null (light userdata NULL) so that positions hold, null in an
 * object is left out, as Lua has it. Raises on memory errors and on nesting deeper than 64. */
void scr_json_push(lua_State *L, const json_t *v);

/* The value at idx as JSON, a new reference. A table with keys 1..n is an array, an empty one is an object unless its metatable is rs.array.
 * Raises, naming the place, for functions, cycles, mixed keys, numbers that JSON cannot hold. */
json_t *scr_json_value(lua_State *L, int idx);

/* Parse text and push; raises on errors. */
void scr_json_decode(lua_State *L, const char *text, size_t len);

#endif
