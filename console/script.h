/* script.h: running Lua from the command line and from the prompt. */
#ifndef RANKSCOPE_CONSOLE_SCRIPT_H
#define RANKSCOPE_CONSOLE_SCRIPT_H

#include "console/fail.h"

/* Run a file, or code when file is NULL, in a state of its own; what goes wrong is on stderr with file and line. */
enum exit_status script_run(const char *file, const char *code, int argc, char **argv);

#endif
