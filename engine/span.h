/* A backend whose ranks are on several hosts: what the engine sees of them. It runs this process's share itself and tells the other hosts to run
 * theirs; ranks are numbered over all. */
#ifndef RANKSCOPE_ENGINE_SPAN_H
#define RANKSCOPE_ENGINE_SPAN_H

#include "engine/backend.h"
#include "engine/model.h"
#include "engine/runtime.h"

/* main_prog and nextn are of all ranks; only their op lists are looked at. Opens the same file on every host. */
enum rs_result span_open(struct model *m, const struct runtime_config *cfg, const struct program *main_prog, const struct program *nextn,
                         const struct backend_limits *lim, struct pool *pool, enum krn_isa isa, struct backend **out, struct rs_error *err);

#endif
