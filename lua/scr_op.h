/* scr_op.h: ops computed in Lua, inside the engine process (engine/patch_host.h). lua/op.lua describes what such a file looks like and sees.
 *
 * A patch has a state of its own for every thread number that calls it, so that no two threads meet in one. The states are sandboxed (scr_state.h): no
 * files, no other code, bounded memory, and a bounded number of instructions per call that grows with the size of the call. */
#ifndef RANKSCOPE_LUA_SCR_OP_H
#define RANKSCOPE_LUA_SCR_OP_H

#include <lua.h>

struct rs_patch_host;

/* For rs_local_params.host; static. */
const struct rs_patch_host *scr_op_host(void);

/* core.op_methods() -> what a call, a tensor and a weight offer besides fields: {"call:pos", "tensor:row", ...}. The reference is checked against it. */
int scr_op_methods(lua_State *L);

#endif
