/* repl.h: the plain console: lines in, text out. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_REPL_H
#define RANKSCOPE_CONSOLE_REPL_H

#include <stdbool.h>

#include "console/con.h"
#include "console/fail.h"

/* A person at a terminal, line_open() was called: until they quit, a signal ends the process, or they ask for panels (true). */
bool repl_run(struct con *con);

/* Go on with a conversation of the engine as the plain console does: show it, follow an answer that runs. */
void repl_attach(struct con *con, json_int_t session);

/* Lines from a file or pipe: no prompt; the first one that fails is the last. */
enum exit_status repl_batch(struct con *con, int fd, json_int_t session);

/* Serve signals, the engine and the keys that lead to the panels, while a command goes on that began in panels: con->wait from now on. */
void repl_during(struct con *con);

#endif
