/* daemon.h: engines as processes of their own: starting one, finding one.
 *
 * An engine process outlives the console that started it: it has its own session, no terminal, and its messages go to a log file in the
 * user's state folder. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_DAEMON_H
#define RANKSCOPE_CONSOLE_DAEMON_H

#include "console/con.h"

#define DAEMON_NAME_MAX 32

/* Start `rankscope engine` under a name that no running engine has, and connect con to it. name gets it. RS_ECANCELLED: interrupted while
 * it started. RS_EENGINE: it did not start; the message is the last line of its log. */
enum rs_result daemon_start(struct con *con, const struct rs_local_params *params, char name[DAEMON_NAME_MAX], struct rs_error *err);

/* Do these words start all engine processes at once, as an MPI launcher does? NULL: no. */
bool daemon_is_job(const char *launch);

/* Connect con to a running engine (NULL: the only one) and say hello. *in_control (may be NULL): whether this client may change things. */
enum rs_result daemon_connect(struct con *con, const char *name, bool *in_control, struct rs_error *err);

/* Have the engine process that con is connected to end, and wait until it is gone (at most 10 s: then it is left alone). con has no engine
 * that answers afterwards. */
enum rs_result daemon_stop(struct con *con, struct rs_error *err);

/* The engines of this user, a JSON array as rs_engine_list() has it; new reference. */
enum rs_result daemon_list(json_t **list, struct rs_error *err);

/* Whether this is a name that an engine may have: letters, digits, '-', '_' and '.', not first a '.' or '-'. */
bool daemon_name_ok(const char *name);

#endif
