/* repl.h: the plain console: lines in, text out. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_REPL_H
#define RANKSCOPE_CONSOLE_REPL_H

#include "console/con.h"
#include "console/fail.h"

/* A person at a terminal. con->out must be an out_stdio on stdout. session: a conversation of the engine to go on with, or 0. Returns when
 * they quit or a signal ends the process. */
enum exit_status repl_terminal(struct con *con, json_int_t session);

/* Lines from a file or pipe: no prompt; the first one that fails is the last. */
enum exit_status repl_batch(struct con *con, int fd, json_int_t session);

#endif
