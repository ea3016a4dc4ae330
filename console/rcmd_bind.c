/* rcmd_bind.c: /bind: keys of the panels. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/rcmd_list.h"
#include "console/table.h"
#include "console/text.h"
#include "console/tui_keymap.h"

static void take_action(void *ctx, const char *name, const char *help)
{
    table_cell(ctx, "%s", name);
    table_cell(ctx, "%s", help);
}

static void list(struct con *con)
{
    const struct tui_binding *b;
    struct table *t = table_new("action|+what it does");
    tui_keymap_actions(take_action, t);
    take_action(t, "/COMMAND", "run a command, as if it were typed");
    take_action(t, "=LUA", "run Lua");
    table_print(t, con->out);
    if (tui_keymap_added(0) == NULL) {
        out_str(con->out, OUT_TEXT, "No key is bound but to what F1 lists.\n");
        return;
    }
    t = table_new("key|1place|+what it does");
    for (size_t i = 0; (b = tui_keymap_added(i)) != NULL; i++) {
        char *help = text_one_line(b->help);
        table_cell(t, "%s", b->key);
        table_cell(t, "%s", tui_keymap_where(b->where));
        table_cell(t, "%s", help);
        free(help);
    }
    table_print(t, con->out);
}

/* The next word of *at, which moves behind it; caller frees. */
static char *word(const char **at)
{
    size_t n = strcspn(*at, " \t");
    char *w = xstrndup(*at, n);
    *at += n;
    *at += strspn(*at, " \t");
    return w;
}

static void tell(struct con *con, const char *key, const char *action, const struct buf *was)
{
    out_printf(con->out, OUT_NOTE, "%s: %s\n", key, action);
    for (const char *line = was->text; line != NULL && *line != '\0';) {
        size_t n = strcspn(line, "\n");
        out_printf(con->out, OUT_NOTE, "  it was: %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

static enum rs_result exec_bind(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0') {
        list(con);
        return RS_OK;
    }
    char *key = word(&args), *place = NULL;
    if (strcmp(key, "in") == 0 && *args != '\0') {
        free(key);
        place = word(&args);
        key = word(&args);
    }
    struct buf was = {0};
    enum rs_result r;
    if (*key == '\0' || *args == '\0') {
        r = rcmd_usage(self, err);
    } else if (strcmp(args, "default") == 0) {
        r = tui_keymap_remove(key, place, err);
        if (r == RS_OK)
            tell(con, key, "as the program has it", &was);
    } else {
        r = tui_keymap_add(&(struct tui_bind){.key = key, .place = place, .action = args}, &was, err);
        if (r == RS_OK)
            tell(con, key, args, &was);
    }
    buf_fini(&was);
    free(key);
    free(place);
    return r;
}

const struct rcmd_entry rcmd_bind_entry = {
    .name = "bind",
    .group = RCMD_CONSOLE,
    .lists = true,
    .args = "[[in PLACE] KEY ACTION]",
    .summary = "say what a key of the panels does",
    .help = "KEY is written F5, C-t (with Ctrl), M-d (with Alt), S-Tab, PageUp, Space or x. ACTION is one of those that /bind alone lists, a command "
            "(/bind F5 /stats), Lua (/bind C-t =rs.mode()), none, or default for what the program has. PLACE: anywhere, panels, input, window, or a panel; "
            "a key that types a character means something in panels only. What the key did before is told. To bind keys in every console, write the "
            "lines without their slash into the file config in the folder $XDG_CONFIG_HOME/rankscope.",
    .exec = exec_bind,
};
