/* Patches in CUDA C: compiling and testing one in a process made for that, and loading what came out in the engine. Any build has these functions;
 * without CUDA they refuse. */
#ifndef RANKSCOPE_ENGINE_CUDA_USER_H
#define RANKSCOPE_ENGINE_CUDA_USER_H

#include "engine/impl.h"
#include "engine/plan.h"
#include "engine/rankscope.h"

struct cuda_user; /* a loaded module; never unloaded */

struct cuda_user_info {
    char name[32], help[128];
    enum op_kind kind;
};

#define CUDA_USER_MODULE "patch.cubin" /* in the temporary folder */

/* In the engine: load the module in `folder`. Errors: RS_EFORMAT (no patch), RS_EENGINE, RS_EUNSUPPORTED. */
enum rs_result cuda_user_load(const char *folder, struct cuda_user **out, struct cuda_user_info *info, struct rs_error *err);

/* Choices of the CUDA backend: can every op that was given to a patch be? Errors: RS_EUNSUPPORTED, which names the op. */
enum rs_result cuda_user_check(const struct program *p, const struct choice *choices, struct rs_error *err);

#endif
