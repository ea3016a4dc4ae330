/* cmd_man.c: the manual page, made from the tables that the program itself uses. docs/rankscope.1 is its output. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/oneshot.h"
#include "console/rcmd.h"
#include "console/sampling.h"

/* Text for roff: a backslash, a hyphen that is to stay one, and a line that begins with a dot or an apostrophe need care. */
static void put(const char *text)
{
    bool start = true;
    for (const char *p = text; *p != '\0'; p++) {
        if (start && (*p == '.' || *p == '\''))
            fputs("\\&", stdout);
        if (*p == '\\')
            fputs("\\e", stdout);
        else if (*p == '-')
            fputs("\\-", stdout);
        else
            putchar(*p);
        start = *p == '\n';
    }
}

/* Paragraphs separated by an empty line. */
static void paragraphs(const char *text)
{
    for (const char *end; (end = strstr(text, "\n\n")) != NULL; text = end + 2) {
        char *part = xstrndup(text, (size_t)(end - text));
        put(part);
        fputs("\n.PP\n", stdout);
        free(part);
    }
    put(text);
    putchar('\n');
}

static void option(const struct opt *o)
{
    char *name = cmd_option_name(o);
    fputs(".TP\n.B ", stdout);
    put(name);
    putchar('\n');
    put(o->help);
    putchar('\n');
    free(name);
}

/* Tables that several subcommands share are described once. */
static void options(const struct cmd_entry *e, const struct opt *const *shared, const char *const *titles)
{
    for (size_t i = 0; i < OPT_MAX_TABLES && e->tables[i] != NULL; i++) {
        size_t k = 0;
        while (shared[k] != NULL && shared[k] != e->tables[i])
            k++;
        if (shared[k] != NULL) {
            fputs(".PP\nAlso the ", stdout);
            put(titles[k]);
            fputs(".\n", stdout);
            continue;
        }
        for (const struct opt *o = e->tables[i]; o->name != NULL; o++)
            option(o);
    }
}

static void shared_table(const char *title, const struct opt *table)
{
    fputs(".SS ", stdout);
    put(title);
    putchar('\n');
    for (const struct opt *o = table; o->name != NULL; o++)
        option(o);
}

static void console_command(const struct rcmd_entry *e)
{
    fputs(".TP\n.B /", stdout);
    put(e->name);
    if (*e->args != '\0') {
        putchar(' ');
        put(e->args);
    }
    putchar('\n');
    put(e->help != NULL ? e->help : e->summary);
    fputs(e->help != NULL ? "\n" : ".\n", stdout);
    if (e->also != NULL)
        printf("Short: %s.\n", e->also);
}

static void console_commands(void)
{
    fputs(".SH CONSOLE COMMANDS\n", stdout);
    put("In the console a line that begins with a slash is a command. A name may be cut short as long as it stays unambiguous.");
    putchar('\n');
    for (const struct rcmd_group *g = rcmd_groups; g->name != NULL; g++) {
        fputs(".SS ", stdout);
        put(g->name);
        fputs(": ", stdout);
        put(g->summary);
        putchar('\n');
        for (size_t i = 0; rcmd_table[i] != NULL; i++)
            if (rcmd_table[i]->group == g->about)
                console_command(rcmd_table[i]);
    }
}

static const char s_files[] =
    ".SH ENVIRONMENT\n"
    ".TP\n.B RANKSCOPE_DATADIR\nThe folder that holds models/ and lua/, instead of the installed one.\n"
    ".TP\n.B NO_COLOR\nWhen set and not empty there are no colours. There are none either when TERM is dumb or output is no terminal.\n"
    ".SH FILES\n"
    ".TP\n.I $XDG_STATE_HOME/rankscope/history\nThe lines typed at the prompt (~/.local/state when the variable is not set). A line that "
    "begins with a\n"
    "space is not kept.\n"
    ".TP\n.I $XDG_STATE_HOME/rankscope/notebook.db\nClaims, hypotheses, tasks and experiments.\n"
    ".TP\n.I $XDG_STATE_HOME/rankscope/layouts\nArrangements that /layout save has kept.\n"
    ".TP\n.I $XDG_CONFIG_HOME/rankscope/config\nLines for every console (~/.config when the variable is not set): bind, set, theme, layout.\n"
    ".TP\n.I $XDG_CONFIG_HOME/rankscope/init.lua\nLua that runs when the console starts.\n"
    ".SH EXIT STATUS\n"
    "0 ok, 1 the command failed, 2 wrong usage, 3 model or engine failed, 4 a comparison failed, 130 interrupted.\n";

static enum exit_status exec_man(const struct cmd_entry *self, const struct opt_values *v)
{
    const struct opt *const shared[] = {sampling_table, oneshot_table, NULL};
    static const char *const titles[] = {"sampling options", "model options"};
    (void)self;
    (void)v;
    fputs(".TH RANKSCOPE 1\n.SH NAME\nrankscope \\- run a GGUF model tensor\\-parallel, and see and change how it is computed\n"
          ".SH SYNOPSIS\n.B rankscope\n.RI [ options ]\n.RI [ MODEL.gguf ]\n.br\n.B rankscope\n.I command\n.RI [ options ]\n.RI [ "
          "arguments ]\n.br\n.B rankscope\n.I SCRIPT.lua\n.RI [ arguments ]\n.br\n.B rankscope \\-e\n.I CODE\n"
          ".SH COMMANDS\n",
          stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++) {
        const struct cmd_entry *e = cmd_table[i];
        if (e->hidden)
            continue;
        bool repl = e == &cmd_repl_entry;
        printf(".SS rankscope%s%s", repl ? "" : " ", repl ? "" : e->name);
        if (*e->args != '\0') {
            putchar(' ');
            put(e->args);
        }
        putchar('\n');
        paragraphs(e->help);
        options(e, shared, titles);
    }
    fputs(".SS rankscope SCRIPT.lua, rankscope \\-e CODE\n"
          "Runs a Lua script, or a line of Lua whose values are printed. The module rs (docs/lua.md) opens models and drives them; rs.connect() uses an\n"
          "engine that runs. Arguments are in the table arg.\n",
          stdout);
    fputs(".SH OPTIONS OF SEVERAL COMMANDS\n", stdout);
    shared_table("Model options", oneshot_table);
    shared_table("Sampling options", sampling_table);
    console_commands();
    fputs(s_files, stdout);
    return EXIT_OK;
}

const struct cmd_entry cmd_man_entry = {
    .name = "dump-man",
    .args = "",
    .summary = "print the manual page",
    .help = "Prints the manual page as roff.",
    .hidden = true,
    .exec = exec_man,
};
