/* cmd_completion.c: completion for bash, made from the tables that the program itself uses. docs/bash/rankscope is its output. */
#include "config.h"

#include <string.h>

#include "console/cmd_list.h"
#include "console/opt.h"

static void option_names(const struct cmd_entry *e)
{
    for (size_t i = 0; i < OPT_MAX_TABLES && e->tables[i] != NULL; i++)
        for (const struct opt *o = e->tables[i]; o->name != NULL; o++)
            if (!opt_in_front(e->tables, i, o->name))
                printf(" --%s", o->name);
    fputs(" --help", stdout);
}

/* The words of a choice with blanks between them. */
static void choice_words(const char *choices)
{
    for (const char *p = choices; *p != '\0'; p++)
        putchar(*p == '|' ? ' ' : *p);
}

/* A subcommand gives an option that it shares other choices. */
static bool is_special(const struct cmd_entry *e, size_t table, const struct opt *o)
{
    return opt_behind(e->tables, OPT_MAX_TABLES, table, o->name);
}

static bool first_of_its_name(size_t entry, size_t table, const struct opt *o)
{
    for (size_t e = 0; e <= entry; e++)
        for (size_t i = 0; i < OPT_MAX_TABLES && cmd_table[e]->tables[i] != NULL; i++)
            for (const struct opt *p = cmd_table[e]->tables[i]; p->name != NULL; p++) {
                if (e == entry && i == table && p == o)
                    return true;
                if (strcmp(p->name, o->name) == 0 && !is_special(cmd_table[e], i, p))
                    return false;
            }
    return true;
}

static void special_choices(const char *name)
{
    for (size_t e = 0; cmd_table[e] != NULL; e++)
        for (size_t i = 0; i < OPT_MAX_TABLES && cmd_table[e]->tables[i] != NULL; i++)
            for (const struct opt *o = cmd_table[e]->tables[i]; o->name != NULL; o++)
                if (strcmp(o->name, name) == 0 && o->type == OPT_CHOICE && is_special(cmd_table[e], i, o)) {
                    printf("; [[ $command == %s ]] && words='", cmd_table[e]->name);
                    choice_words(o->choices);
                    putchar('\'');
                }
}

/* What may follow an option is the same in every subcommand, but for special choices. */
static void option_value(const struct opt *o)
{
    if (o->type == OPT_FLAG)
        return;
    if (o->letter != 0)
        printf("        -%c | --%s) ", o->letter, o->name);
    else
        printf("        --%s) ", o->name);
    if (o->type == OPT_CHOICE) {
        fputs("words='", stdout);
        choice_words(o->choices);
        putchar('\'');
        special_choices(o->name);
        fputs(" ;;\n", stdout);
    } else {
        fputs(o->type == OPT_FILE ? "files=yes ;;\n" : "return ;;\n", stdout);
    }
}

static const char s_head[] = "# rankscope: completion for bash, made by \"rankscope dump-completion\".\n"
                             "_rankscope()\n"
                             "{\n"
                             "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=repl words='' files=''\n"
                             "    COMPREPLY=()\n";

static const char s_tail[] = "    if [[ -n $files ]]; then\n"
                             "        compopt -o filenames 2>/dev/null\n"
                             "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                             "    fi\n"
                             "    mapfile -O ${#COMPREPLY[@]} -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                             "}\n"
                             "complete -F _rankscope rankscope\n";

static enum exit_status exec_completion(const struct cmd_entry *self, const struct opt_values *v)
{
    (void)self;
    (void)v;
    fputs(s_head, stdout);
    fputs("    case ${COMP_WORDS[1]} in\n        ", stdout);
    for (size_t i = 0, n = 0; cmd_table[i] != NULL; i++)
        if (!cmd_table[i]->hidden)
            printf("%s%s", n++ > 0 ? " | " : "", cmd_table[i]->name);
    fputs(") [[ $COMP_CWORD -gt 1 ]] && command=${COMP_WORDS[1]} ;;\n    esac\n    case $prev in\n", stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        for (size_t k = 0; k < OPT_MAX_TABLES && cmd_table[i]->tables[k] != NULL; k++)
            for (const struct opt *o = cmd_table[i]->tables[k]; o->name != NULL; o++)
                if (!is_special(cmd_table[i], k, o) && first_of_its_name(i, k, o))
                    option_value(o);
    fputs("        *)\n            files=yes\n            case $command in\n", stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++) {
        if (cmd_table[i]->hidden)
            continue;
        printf("                %s) words='", cmd_table[i]->name);
        option_names(cmd_table[i]);
        fputs("' ;;\n", stdout);
    }
    fputs("            esac\n            [[ $COMP_CWORD -eq 1 ]] && words+=' ", stdout);
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        if (!cmd_table[i]->hidden)
            printf(" %s", cmd_table[i]->name);
    fputs("'\n            [[ $cur == -* ]] && files=''\n            ;;\n    esac\n", stdout);
    fputs(s_tail, stdout);
    return EXIT_OK;
}

const struct cmd_entry cmd_completion_entry = {
    .name = "dump-completion",
    .args = "",
    .summary = "print completion for bash",
    .help = "Prints completion rules for bash.",
    .hidden = true,
    .exec = exec_completion,
};
