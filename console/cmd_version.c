/* cmd_version.c */
#include "config.h"

#include "console/cmd_list.h"

static enum exit_status exec_version(const struct cmd_entry *self, const struct opt_values *v)
{
    (void)self;
    (void)v;
    printf("rankscope %s\n", PACKAGE_VERSION);
    return EXIT_OK;
}

const struct cmd_entry cmd_version_entry = {
    .name = "version",
    .args = "",
    .summary = "say which version this is",
    .help = "Prints the version of the program.",
    .exec = exec_version,
};
