#include "config.h"

#include "console/cmd.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/text.h"

#define HELP_COLUMNS 80
#define HELP_INDENT 26

const struct cmd_entry *const cmd_table[] = {
    &cmd_repl_entry, &cmd_chat_entry, &cmd_tokens_entry, &cmd_logits_entry, &cmd_perplexity_entry,
    &cmd_calibrate_entry, &cmd_bench_entry, &cmd_audit_entry, &cmd_quantize_entry, &cmd_synth_entry, &cmd_devices_entry, &cmd_engine_entry, &cmd_attach_entry,
    &cmd_top_entry, &cmd_ps_entry, &cmd_serve_entry, &cmd_stage_entry, &cmd_stage_lua_entry, &cmd_stop_entry, &cmd_version_entry, &cmd_man_entry,
    &cmd_completion_entry, NULL,
};

static const struct opt s_common[] = {
    {.name = "help", .letter = 'h', .type = OPT_FLAG, .help = "say how this is used"},
    {0},
};

const struct cmd_entry *cmd_find(const char *name)
{
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        if (strcmp(cmd_table[i]->name, name) == 0)
            return cmd_table[i];
    return NULL;
}

/* What a person typed to get the command: the console has no name of its own. Valid until the next call. */
static const char *title(const struct cmd_entry *e)
{
    static char s_title[64];
    bool repl = e == &cmd_repl_entry;
    snprintf(s_title, sizeof s_title, "rankscope%s%s", repl ? "" : " ", repl ? "" : e->name);
    return s_title;
}

enum exit_status cmd_usage(const struct cmd_entry *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    char *line = text_one_line(text);
    fprintf(stderr, "%s: %s (see %s --help)\n", title(e), line, title(e));
    free(line);
    free(text);
    return EXIT_USAGE;
}

enum exit_status cmd_fail(const struct cmd_entry *e, const struct rs_error *err)
{
    enum exit_status status = fail_status(err->code);
    fflush(stdout);
    if (status != EXIT_INTERRUPT) {
        char *line = text_one_line(err->msg);
        fprintf(stderr, "%s: %s\n", title(e), line);
        free(line);
    }
    return status;
}

enum exit_status cmd_flush(const struct cmd_entry *e, enum exit_status status)
{
    int failed = out_stdio_failed();
    errno = 0;
    if (fflush(stdout) != 0 && failed == 0)
        failed = errno;
    if (failed == 0)
        return status;
    if (failed != EPIPE)
        fprintf(stderr, "%s: cannot write the output: %s\n", title(e), strerror(failed));
    return status == EXIT_OK ? EXIT_COMMAND : status;
}

/* A command's name where the console's options stand: the command was meant. What follows an option may be its value. */
static const char *late_command(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const struct cmd_entry *e = argv[i - 1][0] != '-' ? cmd_find(argv[i]) : NULL;
        if (e != NULL && !e->hidden)
            return e->name;
    }
    return NULL;
}

/* The first option that none of the n tables has, where another command has it: which ones do, "rankscope chat, rankscope serve"; the caller's, or NULL. */
static char *owners(const struct opt *const *tables, size_t n, int argc, char **argv)
{
    int i = 1;
    while (i < argc && (argv[i][0] != '-' || argv[i][1] == '\0' || opt_named(tables, n, argv[i]) != NULL))
        i++;
    struct buf names = {0};
    for (size_t k = 0; i < argc && cmd_table[k] != NULL; k++)
        if (!cmd_table[k]->hidden && opt_named(cmd_table[k]->tables, OPT_MAX_TABLES, argv[i]) != NULL)
            buf_printf(&names, "%s%s", names.len > 0 ? ", " : "", title(cmd_table[k]));
    return names.text;
}

enum exit_status cmd_run(const struct cmd_entry *e, int argc, char **argv)
{
    const struct opt *tables[OPT_MAX_TABLES + 2] = {0};
    size_t n = 0;
    while (n < OPT_MAX_TABLES && e->tables[n] != NULL) {
        tables[n] = e->tables[n];
        n++;
    }
    tables[n] = s_common;
    struct opt_values v;
    char msg[512];
    if (!opt_parse(tables, argc, argv, false, &v, msg, sizeof msg)) {
        const char *late = e == &cmd_repl_entry ? late_command(argc, argv) : NULL;
        if (late != NULL)
            return cmd_usage(e, "%s; '%s' is a command, which comes before its options", msg, late);
        char *have = strncmp(msg, "unknown option", 14) == 0 ? owners(tables, n + 1, argc, argv) : NULL;
        enum exit_status wrong = have != NULL ? cmd_usage(e, "%s; it is an option of: %s", msg, have) : cmd_usage(e, "%s", msg);
        free(have);
        return wrong;
    }
    enum exit_status status;
    if (opt_set(&v, "help")) {
        cmd_help(e, stdout);
        status = EXIT_OK;
    } else if (v.n_args < e->min_args) {
        status = v.n_args == 0 ? cmd_usage(e, "%s is missing", e->args) : cmd_usage(e, "%s wanted, and there is only '%s'", e->args, v.args[0]);
    } else if (v.n_args > e->max_args) {
        status = cmd_usage(e, "one argument too many: '%s'", v.args[e->max_args]);
    } else {
        status = e->exec(e, &v);
    }
    opt_fini(&v);
    return cmd_flush(e, status);
}

/* ---- help ---------------------------------------------------------------------------------------------------------------------------- */

void cmd_wrap(FILE *f, const char *text, int indent, int columns)
{
    int at = 0;
    while (*text != '\0') {
        if (*text == '\n' || *text == ' ') {
            if (text[0] == '\n' && text[1] == '\n') {
                fputs("\n\n", f);
                at = 0;
            }
            text++;
            continue;
        }
        int n = (int)strcspn(text, " \n");
        if (at > 0 && at + 1 + n > columns) {
            fputc('\n', f);
            at = 0;
        }
        at += fprintf(f, "%*s%.*s", at == 0 ? indent : 1, "", n, text);
        text += n;
    }
    fputc('\n', f);
}

char *cmd_option_name(const struct opt *o)
{
    struct buf b = {0};
    if (o->letter != 0)
        buf_printf(&b, "-%c, ", o->letter);
    buf_printf(&b, "--%s", o->name);
    if (o->type != OPT_FLAG)
        buf_printf(&b, " %s", o->type == OPT_CHOICE ? o->choices : o->arg);
    return buf_take(&b);
}

/* The k-th of the tables, without what one before it has. */
static void help_options(const struct opt *const *tables, size_t k, FILE *f)
{
    for (const struct opt *o = tables[k]; o->name != NULL; o++) {
        if (opt_in_front(tables, k, o->name))
            continue;
        char *name = cmd_option_name(o);
        if (2 + strlen(name) + 2 <= HELP_INDENT) {
            fprintf(f, "  %-*s", HELP_INDENT - 2, name);
        } else {
            fprintf(f, "  %s\n%*s", name, HELP_INDENT, "");
        }
        /* The first line stands after the name, so it is wrapped without its indentation. */
        char *text = NULL;
        size_t size = 0;
        FILE *m = open_memstream(&text, &size);
        if (m != NULL) {
            cmd_wrap(m, o->help, HELP_INDENT, HELP_COLUMNS);
            fclose(m);
            fputs(text + HELP_INDENT, f);
        }
        free(text);
        free(name);
    }
}

void cmd_help(const struct cmd_entry *e, FILE *f)
{
    bool repl = e == &cmd_repl_entry;
    const struct opt *common = s_common;
    fprintf(f, "usage: rankscope %s%s[options]%s%s\n\n", repl ? "" : e->name, repl ? "" : " ", *e->args ? " " : "", e->args);
    cmd_wrap(f, e->help, 0, HELP_COLUMNS);
    fputs("\noptions:\n", f);
    for (size_t i = 0; i < OPT_MAX_TABLES && e->tables[i] != NULL; i++)
        help_options(e->tables, i, f);
    help_options(&common, 0, f);
}

void cmd_help_all(FILE *f)
{
    const struct opt *common = s_common;
    fputs("usage: rankscope [options] [MODEL.gguf]\n"
          "       rankscope COMMAND [options] [arguments]\n"
          "       rankscope SCRIPT.lua [arguments]\n"
          "       rankscope -e CODE\n\n",
          f);
    cmd_wrap(f,
             "Runs a GGUF model tensor-parallel and lets you see and change how it is computed. Without a command it starts the console on "
             "MODEL.gguf, or on the model that comes with it.",
             0, HELP_COLUMNS);
    fputs("\ncommands:\n", f);
    for (size_t i = 0; cmd_table[i] != NULL; i++)
        if (!cmd_table[i]->hidden && cmd_table[i] != &cmd_repl_entry)
            fprintf(f, "  %-14s%s\n", cmd_table[i]->name, cmd_table[i]->summary);
    fputs("\noptions:\n", f);
    for (size_t i = 0; i < OPT_MAX_TABLES && cmd_repl_entry.tables[i] != NULL; i++)
        help_options(cmd_repl_entry.tables, i, f);
    help_options(&common, 0, f);
    fputs("  -V, --version           say which version this is\n\n"
          "Exit status: 0 ok, 1 the command failed, 2 wrong usage, 3 model or engine\n"
          "failed, 4 a comparison failed, 130 interrupted.\n",
          f);
}
