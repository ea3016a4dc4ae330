/* An engine process on another host than the first: it has no clients and no vocabulary of its own, and runs what the first one tells it to. */
#ifndef RANKSCOPE_ENGINE_FOLLOW_H
#define RANKSCOPE_ENGINE_FOLLOW_H

#include "engine/comm.h"
#include "engine/rankscope.h"

/* One of the processes that an MPI launcher has started; comm is taken over. See rs_engine_follow(). */
enum rs_result follow_mpi(struct comm *comm, const struct rs_local_params *params, struct rs_error *err);

#endif
