/* main.c: the program's entry: signals, locale, and which subcommand is meant. */
#include "config.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/cmd.h"
#include "console/cmd_list.h"
#include "console/js.h"
#include "console/script.h"
#include "console/sig.h"
#include "console/text.h"
#include "engine/rankscope.h"

/* A word that is no subcommand was meant to be one: a first argument that is no file either (also " and no file of that name"), or that of help. */
static int unknown(const char *word, const char *also)
{
    char *line = text_one_line(word), hint[80];
    struct rs_near near;
    rs_near_init(&near, word, strlen(word));
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        if (!cmd_table[i]->hidden && cmd_table[i] != &cmd_repl_entry)
            rs_near_try(&near, cmd_table[i]->name);
    fprintf(stderr, "rankscope: there is no command '%s'%s%s; see rankscope --help\n", line, also,
        rs_near_hint(&near, "", hint, sizeof hint));
    free(line);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : "";
    js_count_failures();
    setlocale(LC_ALL, "");
    setlocale(LC_NUMERIC, "C"); /* numbers are for programs too */
    if (!sig_init()) {
        fprintf(stderr, "rankscope: cannot set up signals: %s\n", strerror(errno));
        return EXIT_COMMAND;
    }
    if (strcmp(first, "--version") == 0 || strcmp(first, "-V") == 0)
        return cmd_run(&cmd_version_entry, 1, argv);
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || (strcmp(first, "help") == 0 && argc == 2)) {
        cmd_help_all(stdout);
        return cmd_flush(&cmd_repl_entry, EXIT_OK);
    }
    if (strcmp(first, "help") == 0 && argc == 3) {
        const struct cmd_entry *about = cmd_find(argv[2]);
        if (about == NULL)
            return unknown(argv[2], "");
        cmd_help(about, stdout);
        return cmd_flush(about, EXIT_OK);
    }
    size_t n = strlen(first);
    if (strcmp(first, "-e") == 0 && argc == 3)
        return script_run(NULL, argv[2], 0, NULL);
    if (strcmp(first, "-e") == 0) {
        fputs("rankscope: -e wants one value (CODE), and nothing else\n", stderr);
        return EXIT_USAGE;
    }
    if (n > 4 && strcmp(first + n - 4, ".lua") == 0)
        return script_run(first, NULL, argc - 2, argv + 2);
    const struct cmd_entry *e = cmd_find(first);
    if (e != NULL)
        return cmd_run(e, argc - 1, argv + 1);
    bool file = first[0] == '\0' || first[0] == '-' || strchr(first, '/') != NULL || access(first, F_OK) == 0 ||
                (n > 5 && strcmp(first + n - 5, ".gguf") == 0);
    if (!file)
        return unknown(first, " and no file of that name");
    return cmd_run(&cmd_repl_entry, argc, argv);
}
