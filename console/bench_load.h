/* bench_load.h: `rankscope bench --concurrency`: many requests at once. */
#ifndef RANKSCOPE_CONSOLE_BENCH_LOAD_H
#define RANKSCOPE_CONSOLE_BENCH_LOAD_H

#include "console/cmd.h"

/* Options that only this benchmark has; --json and those of oneshot.h come from the subcommand. */
extern const struct opt bench_load_table[];

/* Run it; --concurrency is set. */
enum exit_status bench_load_run(const struct cmd_entry *self, const struct opt_values *v);

#endif
