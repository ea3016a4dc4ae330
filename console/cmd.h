/* cmd.h: the subcommands of the command line, one file each (cmd_*.c), listed in cmd.c.
 *
 * To add one: write cmd_NAME.c with one struct cmd_entry, and name it in cmd.c. --help, the manual page and completion follow. */
#ifndef RANKSCOPE_CONSOLE_CMD_H
#define RANKSCOPE_CONSOLE_CMD_H

#include <stdio.h>

#include "console/con.h"
#include "console/fail.h"
#include "console/opt.h"
#include "console/out.h"

struct cmd_entry {
    const char *name;
    const char *args;                         /* what follows the options, for the usage line; "" when nothing does */
    const char *summary;                      /* one line, lower case, no full stop */
    const char *help;                         /* one or more paragraphs, separated by an empty line */
    const struct opt *tables[OPT_MAX_TABLES]; /* ends with NULL; --help is added */
    size_t min_args, max_args;
    bool hidden; /* not listed: for tools, not for people */
    enum exit_status (*exec)(const struct cmd_entry *self, const struct opt_values *v);
};

/* All of them, NULL-terminated. */
extern const struct cmd_entry *const cmd_table[];

/* What runs when no subcommand is named. */
extern const struct cmd_entry cmd_repl_entry;

const struct cmd_entry *cmd_find(const char *name);

/* Parse the options and run. argv[0] is the subcommand's name. */
enum exit_status cmd_run(const struct cmd_entry *e, int argc, char **argv);

/* --help of one subcommand, and of the program. */
void cmd_help(const struct cmd_entry *e, FILE *f);
void cmd_help_all(FILE *f);

/* Text broken into lines of at most `columns`, each after `indent` spaces; an empty line separates paragraphs. */
void cmd_wrap(FILE *f, const char *text, int indent, int columns);

/* "--ranks N" and the like, as --help shows an option; caller frees. */
char *cmd_option_name(const struct opt *o);

/* "rankscope NAME: ..." on stderr; returns EXIT_USAGE or the status that err's code stands for. */
enum exit_status cmd_usage(const struct cmd_entry *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
enum exit_status cmd_fail(const struct cmd_entry *e, const struct rs_error *err);

/* Flush stdout; a write that failed turns status into EXIT_COMMAND with a message. A closed pipe gets no message. */
enum exit_status cmd_flush(const struct cmd_entry *e, enum exit_status status);

/* Read all of a file, "-" for stdin, as UTF-8 text without NUL; caller frees. Ctrl-C while waiting gives RS_ECANCELLED. */
enum rs_result cmd_read_text(const char *path, char **text, struct rs_error *err);

/* Numbers separated by commas or spaces; caller frees *ids. */
enum rs_result cmd_parse_ids(const char *text, json_t **ids, struct rs_error *err);

#endif
