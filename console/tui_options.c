/* tui_options.c: themes, arrangements and options by name, and the arrangements that a person keeps. */
#include "config.h"

#include <errno.h>
#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/paths.h"
#include "console/tui.h"

#define MAX_SPEC 400

const struct opt tui_table[] = {
    {.name = "plain", .type = OPT_FLAG, .help = "a console of lines instead of panels; F12 changes between the two"},
    {.name = "theme", .type = OPT_CHOICE, .choices = "default|light|contrast|mono", .help = "colours of the panels"},
    {.name = "ascii", .type = OPT_FLAG, .help = "draw with ASCII characters only"},
    {.name = "plots", .type = OPT_CHOICE, .choices = "braille|block|ascii", .help = "what plots are made of"},
    {.name = "layout",
     .type = OPT_STRING,
     .arg = "NAME",
     .help = "which panels stand where: desk, watch, patch, ops, serve, chat, all, a kept name, or a text such as chat*3/ranks"},
    {.name = "screen", .type = OPT_STRING, .arg = "WxH", .help = "panels of that size without a terminal, for scripts and tests; what is done there is said by --keys"},
    {.name = "keys", .type = OPT_FILE, .arg = "FILE", .help = "with --screen: keys and steps, one a line"},
    {.name = "fake-time", .type = OPT_FLAG, .help = "with --screen: time passes only where the steps say so"},
    {0},
};

bool tui_options(const struct opt_values *v, bool read_only, struct tui_options *out, char *msg, size_t msg_size)
{
    const char *no_color = getenv("NO_COLOR"), *plots = opt_string(v, "plots", NULL), *layout = opt_string(v, "layout", NULL);
    bool mono = no_color != NULL && *no_color != '\0', unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    struct rs_error err;
    *out = (struct tui_options){.read_only = read_only, .layout = layout};
    out->theme = tui_theme_find(opt_string(v, "theme", mono ? "mono" : "default"));
    out->ascii = opt_set(v, "ascii") || !unicode;
    out->plots = out->ascii || (plots != NULL && strcmp(plots, "ascii") == 0) ? TUI_PLOT_ASCII
                 : plots != NULL && strcmp(plots, "block") == 0               ? TUI_PLOT_BLOCK
                                                                              : TUI_PLOT_BRAILLE;
    out->fake_time = opt_set(v, "fake-time");
    if ((opt_set(v, "keys") || out->fake_time) && !opt_set(v, "screen")) {
        snprintf(msg, msg_size, "--keys and --fake-time go with --screen");
        return false;
    }
    struct tui probe = {.con = NULL};
    if (layout != NULL && tui_arrange(&probe, layout, &err) != RS_OK) {
        snprintf(msg, msg_size, "%s", err.msg);
        return false;
    }
    return true;
}

static enum rs_result no_theme(const char *name, struct rs_error *err)
{
    struct buf names = {0};
    for (size_t i = 0; tui_themes[i].name != NULL; i++)
        buf_printf(&names, "%s%s", i > 0 ? ", " : "", tui_themes[i].name);
    enum rs_result r = fail_set(err, RS_EUSAGE, "there is no theme '%s', but: %s", name, names.text);
    buf_fini(&names);
    return r;
}

enum rs_result tui_set_theme(struct tui *t, const char *name, struct rs_error *err)
{
    const struct tui_theme *theme = tui_theme_find(name);
    if (theme == NULL)
        return no_theme(name, err);
    t->theme = theme;
    t->dirty = t->repaint = true;
    if (t->screen != NULL)
        t->screen->theme(t->screen, theme);
    return RS_OK;
}

void tui_set_mouse(struct tui *t, bool on)
{
    t->mouse = on;
    if (t->screen != NULL)
        t->screen->mouse(t->screen, on);
}

/* ---- arrangements -------------------------------------------------------------------------------------------------------------------- */

char *tui_kept_arrangements(void)
{
    char *path = paths_state("layouts"), line[MAX_SPEC + 64];
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    struct buf b = {0};
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        buf_str(&b, line);
    if (f != NULL)
        fclose(f);
    free(path);
    return buf_take(&b);
}

/* The text that is kept under a name; caller frees; NULL: none. The last one counts. */
static char *kept(const char *name)
{
    char *all = tui_kept_arrangements(), *found = NULL;
    size_t len = strlen(name);
    for (char *line = all; *line != '\0';) {
        size_t n = strcspn(line, "\n");
        if (n > len && strncmp(line, name, len) == 0 && line[len] == ' ') {
            free(found);
            found = xstrndup(line + len + 1, n - len - 1);
        }
        line += n + (line[n] == '\n');
    }
    free(all);
    return found;
}

/* A word that is the name of no arrangement. */
static enum rs_result no_arrangement(const char *name, struct rs_error *err)
{
    struct buf names = {0};
    struct rs_near near;
    char hint[80];
    rs_near_init(&near, name, strlen(name));
    for (int i = 0; tui_presets[i].name != NULL; i++) {
        buf_printf(&names, "%s, ", tui_presets[i].name);
        rs_near_try(&near, tui_presets[i].name);
    }
    enum rs_result r = fail_set(err, RS_EUSAGE, "there is no arrangement '%s'%s; there are %sor one's own, such as chat*3/ranks", name, rs_near_hint(&near, "", hint, sizeof hint),
                                names.text);
    buf_fini(&names);
    return r;
}

enum rs_result tui_arrange(struct tui *t, const char *name, struct rs_error *err)
{
    char *spec = kept(name);
    size_t bad = 0;
    int preset = -1;
    for (int i = 0; spec == NULL && tui_presets[i].name != NULL; i++)
        if (strcmp(tui_presets[i].name, name) == 0) {
            preset = i;
            spec = xstrdup(tui_presets[i].spec);
        }
    bool named = spec != NULL;
    if (!named)
        spec = xstrdup(name);
    bool good = strlen(spec) <= MAX_SPEC && tui_tree_parse(spec, &t->tree, &bad);
    free(spec);
    if (!good && strpbrk(name, "/|*()") == NULL)
        return no_arrangement(name, err);
    if (!good)
        return fail_set(err, RS_EUSAGE, "'%s' is an arrangement up to column %zu and makes no sense from there on; panels are called as in their titles (chat, allreduce)", name, bad);
    t->preset = preset;
    snprintf(t->preset_name, sizeof t->preset_name, "%s", named ? name : "own");
    t->zoom = -1;
    t->dirty = t->repaint = true;
    return RS_OK;
}

enum rs_result tui_keep_arrangement(struct tui *t, const char *name, struct rs_error *err)
{
    size_t n = strlen(name);
    if (n == 0 || n > 30 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != n)
        return fail_set(err, RS_EUSAGE, "a name has letters, digits, - and _, not '%s'", name);
    char *path = paths_state("layouts");
    FILE *f = path != NULL ? fopen(path, "a") : NULL;
    struct buf b = {0};
    tui_tree_print(&t->tree, &b);
    bool good = f != NULL && fprintf(f, "%s %s\n", name, b.text) > 0;
    if ((f != NULL && fclose(f) != 0) || !good) {
        enum rs_result r = fail_set(err, RS_EIO, "%s: %s", path != NULL ? path : "no folder for settings", strerror(errno));
        free(path);
        buf_fini(&b);
        return r;
    }
    snprintf(t->preset_name, sizeof t->preset_name, "%s", name);
    free(path);
    buf_fini(&b);
    return RS_OK;
}
