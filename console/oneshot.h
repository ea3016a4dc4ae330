/* oneshot.h: what the one-shot subcommands share: the options that say which model and how, an engine in this process, and its end. */
#ifndef RANKSCOPE_CONSOLE_ONESHOT_H
#define RANKSCOPE_CONSOLE_ONESHOT_H

#include "console/cmd.h"

/* The shapes that the engine knows, as a choice. */
#define ONESHOT_SHAPES "glm-5|glm-5.2|glm-4.7-flash|deepseek-v3|deepseek-v2-lite"

/* -m, --synthetic and what belongs to it, --ranks, --mode, --patch, --set, --ctx, --workers, --isa, --hosts and what belongs to it. */
extern const struct opt oneshot_table[];

struct oneshot {
    const struct cmd_entry *entry;
    struct out_stdio out;
    struct con con;
};

/* The text of --recipe, if it was given, into args. */
enum rs_result oneshot_recipe(const struct opt_values *v, json_t *args, struct rs_error *err);

/* --synthetic, --layers, --recipe and, if the command opens the model, --rank into args as far as they were given. file: a file was named, which
 * excludes them. */
enum rs_result oneshot_synthetic(const struct opt_values *v, bool file, bool opens, json_t *args, struct rs_error *err);

/* The arguments of method "open" that these options stand for. path NULL: -m, else the shipped model. New reference in *args. */
enum rs_result oneshot_open_args(const struct opt_values *v, const char *path, json_t **args, struct rs_error *err);

/* Start an engine and open the model. Text goes to stdout, the rest to stderr. On failure the message is out and s needs no end. */
enum exit_status oneshot_start(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v, const char *path);

/* As oneshot_start, with the engine in a process of its own. */
enum exit_status oneshot_start_apart(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v, const char *path);

/* Start an engine without a model. */
enum exit_status oneshot_start_bare(struct oneshot *s, const struct cmd_entry *e, const struct opt_values *v);

/* Close, and give status back. After an interruption or a signal it does not return: the engine's work is dropped with the process. */
enum exit_status oneshot_end(struct oneshot *s, enum exit_status status);

/* Report err and end. */
enum exit_status oneshot_fail(struct oneshot *s, const struct rs_error *err);

#endif
