/* desk.h: the front end for a session: panels or plain lines at a terminal, panels without one, or a script of lines. User-interface thread. */
#ifndef RANKSCOPE_CONSOLE_DESK_H
#define RANKSCOPE_CONSOLE_DESK_H

#include "console/con.h"
#include "console/fail.h"
#include "console/opt.h"

/* Whether a person sits there: standard input and output are terminals. */
bool desk_terminal(void);

/* Check the options of tui_table; NULL, or what is wrong with them (static storage). */
const char *desk_check(const struct opt_values *v);

/* Serve con until its end. v holds the options of tui_table; session: a conversation of the engine to go on with, or 0; read_only: look at the
 * engine and change nothing. con->out is the struct out_stdio of this process. */
enum exit_status desk_run(struct con *con, json_int_t session, bool read_only, const struct opt_values *v);

#endif
