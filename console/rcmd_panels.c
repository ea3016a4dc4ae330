/* rcmd_panels.c: /snapshot, /layout, /theme: the panels. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "console/table.h"
#include "console/tui.h"

static enum rs_result exec_snapshot(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0')
        return rcmd_usage(self, err);
    char *path = paths_expand(args);
    enum rs_result r = tui_snapshot(con, path, err);
    if (r == RS_OK)
        out_printf(con->out, OUT_NOTE, "snapshot: written to %s\n", path);
    free(path);
    return r;
}

const struct rcmd_entry rcmd_snapshot_entry = {
    .name = "snapshot",
    .group = RCMD_CONSOLE,
    .args = "FILE",
    .summary = "write the panels to a file",
    .help =
        "Writes the panels as text, with the figures as they are now. When the name of the file ends in .json, the figures alone as JSON.",
    .complete = RCMD_COMPLETE_FILE,
    .exec = exec_snapshot,
};

static void list_arrangements(struct con *con)
{
    struct table *t = table_new("name|+1arrangement|+what it shows");
    for (size_t i = 0; tui_presets[i].name != NULL; i++) {
        table_cell(t, "%s", tui_presets[i].name);
        table_cell(t, "%s", tui_presets[i].spec);
        table_cell(t, "%s", tui_presets[i].help);
    }
    char *all = tui_kept_arrangements();
    for (char *line = all, *next; *line != '\0'; line = next) {
        size_t n = strcspn(line, "\n"), name = strcspn(line, " \n");
        next = line + n + (line[n] == '\n');
        if (name >= n)
            continue;
        table_cell(t, "%.*s", (int)name, line);
        table_cell(t, "%.*s", (int)(n - name - 1), line + name + 1);
        table_cell(t, "kept");
    }
    free(all);
    table_print(t, con->out);
    if (con->tui == NULL)
        return;
    struct buf b = {0};
    tui_tree_print(&con->tui->tree, &b);
    out_printf(con->out, OUT_TEXT, "now: %s\n", b.text);
    buf_fini(&b);
}

static enum rs_result exec_layout(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    if (*args == '\0') {
        list_arrangements(con);
        return RS_OK;
    }
    if (con->tui == NULL)
        return fail_set(err, RS_ESTATE, "there are no panels here");
    if (strncmp(args, "save ", 5) == 0) {
        enum rs_result r = tui_keep_arrangement(con->tui, args + 5 + strspn(args + 5, " "), err);
        if (r == RS_OK)
            out_printf(con->out, OUT_NOTE, "layout: kept as %s\n", con->tui->preset_name);
        return r;
    }
    return tui_arrange(con->tui, args, err);
}

const struct rcmd_entry rcmd_layout_entry = {
    .name = "layout",
    .group = RCMD_CONSOLE,
    .lists = true,
    .args = "[NAME|ARRANGEMENT|save NAME]",
    .summary = "which panels stand where",
    .help =
        "Without an argument: the arrangements that have a name. An arrangement is written with / for one above the other, | for side by "
        "side, brackets, and *N for a share: (chat*3/ranks)*2|(step/log). The panels are chat, ranks, allreduce, step, ops, patches, "
        "log, requests, notebook and those of scripts. 'save NAME' keeps the present one.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "desk|watch|patch|ops|serve|chat|all|save",
    .exec = exec_layout,
};

static enum rs_result exec_theme(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    if (*args == '\0') {
        for (size_t i = 0; tui_themes[i].name != NULL; i++)
            out_printf(con->out, OUT_TEXT, "%s%s: %s\n", tui_themes[i].name,
                       con->tui != NULL && con->tui->theme == &tui_themes[i] ? " (now)" : "", tui_themes[i].help);
        return RS_OK;
    }
    return con->tui != NULL ? tui_set_theme(con->tui, args, err) : fail_set(err, RS_ESTATE, "there are no panels here");
}

const struct rcmd_entry rcmd_theme_entry = {
    .name = "theme",
    .group = RCMD_CONSOLE,
    .args = "[NAME]",
    .summary = "show or change the colours of the panels",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "default|light|contrast|mono",
    .exec = exec_theme,
};
