/* tui_config.c: the operator's file $XDG_CONFIG_HOME/rankscope/config: one command of the console a line, without its slash. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/out.h"
#include "console/paths.h"
#include "console/rcmd.h"
#include "console/text.h"
#include "console/tui.h"

/* The commands that may stand there: they are about the console itself, not about a model. */
static const struct {
    const char *name, *option; /* of the command line, which counts more */
} s_allowed[] = {{"bind", NULL}, {"set", NULL}, {"theme", "theme"}, {"layout", "layout"}};

/* Keep only what goes wrong: a binding that works needs no word at every start. */
static void drop(struct out *o, enum out_role role, const char *text, size_t len)
{
    (void)o;
    (void)role;
    (void)text;
    (void)len;
}

static void no_progress(struct out *o, const char *line)
{
    (void)o;
    (void)line;
}

static enum rs_result run_line(struct tui *t, char *line, const struct opt_values *v, struct rs_error *err)
{
    size_t n = strcspn(line, " \t"), bad;
    const char *args = line + n + strspn(line + n, " \t");
    line[n] = '\0';
    for (size_t i = 0; i < sizeof s_allowed / sizeof s_allowed[0]; i++) {
        if (strcmp(s_allowed[i].name, line) != 0)
            continue;
        if (s_allowed[i].option != NULL && opt_set(v, s_allowed[i].option))
            return RS_OK;
        const struct rcmd_entry *e = rcmd_find(line, err);
        if (strcmp(line, "set") == 0 && strncmp(args, "mouse", 5) != 0)
            return fail_set(err, RS_EUSAGE, "only the mouse is set here; engines are started with --set");
        if (!text_valid(args, strlen(args), &bad))
            return fail_set(err, RS_EUSAGE, "not UTF-8 text");
        return *args == '\0' ? rcmd_usage(e, err) : e->exec(e, t->con, args, err);
    }
    return fail_set(err, RS_EUSAGE, "'%s' is not one of bind, layout, set, theme", line);
}

void tui_config_read(struct tui *t, const struct opt_values *v)
{
    struct out quiet = {.write = drop, .progress = no_progress}, *out = t->con->out;
    char *path = paths_config("config"), *line = NULL;
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    size_t cap = 0;
    ssize_t len;
    if (f == NULL && path != NULL && errno != ENOENT)
        out_error(out, "%s: %s", path, strerror(errno));
    for (int n = 1; f != NULL && (len = getline(&line, &cap, f)) >= 0; n++) {
        struct rs_error err = {0};
        char *text = line + strspn(line, " \t");
        text[strcspn(text, "\r\n")] = '\0';
        for (size_t end = strlen(text); end > 0 && strchr(" \t", text[end - 1]) != NULL; end--)
            text[end - 1] = '\0';
        if (*text == '\0' || *text == '#')
            continue;
        t->con->out = &quiet;
        enum rs_result r = run_line(t, text, v, &err);
        t->con->out = out;
        if (r != RS_OK)
            out_error(out, "%s:%d: %s", path, n, err.msg);
    }
    free(line);
    free(path);
    if (f != NULL)
        fclose(f);
}
