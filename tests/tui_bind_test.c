/* Keys that persons bind, and panels of scripts. */
#include "config.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/grid.h"
#include "console/tui_custom.h"
#include "console/tui_keymap.h"
#include "console/tui_layout.h"
#include "tests/tap.h"

static int s_dropped;

static void count_drop(void *ctx)
{
    (void)ctx;
    s_dropped++;
}

static void nothing(struct con *con, void *ctx)
{
    (void)con;
    (void)ctx;
}

static const struct tui_binding *find(unsigned where, const char *name)
{
    struct tui_key k;
    return tui_key_parse(name, &k) ? tui_keymap_find(where, &k) : NULL;
}

static enum tui_action action(unsigned where, const char *name)
{
    const struct tui_binding *b = find(where, name);
    return b != NULL ? b->action : TUI_DO_NOTHING;
}

static const struct tui_binding *row(const char *key, unsigned where)
{
    const struct tui_binding *b = tui_keymap;
    while (b->key != NULL && (strcmp(b->key, key) != 0 || b->where != where))
        b++;
    return b;
}

static enum rs_result bind(const char *key, const char *place, const char *what, struct buf *was)
{
    struct rs_error err = {0};
    buf_clear(was);
    return tui_keymap_add(&(struct tui_bind){.key = key, .place = place, .action = what}, was, &err);
}

static void refused(const char *key, const char *place, const char *what, const char *says)
{
    struct rs_error err = {0};
    enum rs_result r = tui_keymap_add(&(struct tui_bind){.key = key, .place = place, .action = what}, NULL, &err);
    tap_ok(r == RS_EUSAGE && strstr(err.msg, says) != NULL, "%s: %s", key, says);
    if (r != RS_EUSAGE || strstr(err.msg, says) == NULL)
        tap_diag("%d %s", (int)r, err.msg);
}

static void test_bind(void)
{
    struct buf was = {0};
    struct rs_error err;
    tap_eq_int(bind("F2", NULL, "zoom", &was), RS_OK, "a key gets another action");
    tap_eq_str(was.text, "next arrangement (everywhere)\n", "and what it did before is told");
    tap_eq_int(action(TUI_IN_CHAT, "F2"), TUI_DO_ZOOM, "it does that in panels");
    tap_eq_int(action(TUI_IN_PROMPT, "F2"), TUI_DO_ZOOM, "and in the line of input");
    tap_ok(!tui_keymap_holds(row("F2", TUI_ANYWHERE)), "the program's row means nothing any more");
    tap_eq_int(bind("F2", NULL, "/stats", &was), RS_OK, "bound again");
    tap_ok(was.text != NULL && strncmp(was.text, "the panel alone, and back (everywhere)\n", 39) == 0, "the binding before is told");
    tap_eq_str(tui_keymap_job(find(TUI_IN_OPS, "F2")).line, "/stats", "a command line");
    tap_ok(tui_keymap_added(0) != NULL && tui_keymap_added(1) == NULL, "it took the place of the one before");
    tap_eq_int(tui_keymap_remove("F2", NULL, &err), RS_OK, "taken away");
    tap_eq_int(action(TUI_IN_CHAT, "F2"), TUI_DO_PRESET, "the program's meaning is back");
    tap_ok(tui_keymap_holds(row("F2", TUI_ANYWHERE)), "and its row");
    tap_eq_int(tui_keymap_remove("F2", NULL, &err), RS_ENOTFOUND, "there is nothing more to take away");

    tap_eq_int(bind("u", NULL, "freeze", &was), RS_OK, "a character");
    tap_eq_str(was.text != NULL ? was.text : "", "", "that did nothing before");
    tap_eq_int(action(TUI_IN_STEP, "u"), TUI_DO_FREEZE, "means something in panels");
    tap_ok(find(TUI_IN_PROMPT, "u") == NULL, "and can still be typed");
    tap_eq_int(bind("u", "ops", "none", &was), RS_OK, "nothing in one panel");
    tap_eq_int(action(TUI_IN_OPS, "u"), TUI_DO_NOTHING, "there it does nothing");
    tap_eq_int(action(TUI_IN_LOG, "u"), TUI_DO_FREEZE, "elsewhere what it did");
    tap_eq_int(bind("C-m", "chat", "panel ops", &was), RS_OK, "C-m");
    tap_ok(find(TUI_IN_CHAT, "Enter") != NULL && find(TUI_IN_CHAT, "Enter")->arg == TUI_OPS + 1, "is Enter");
    tui_keymap_clear();
    tap_ok(tui_keymap_added(0) == NULL, "all cleared");

    refused("F99", NULL, "zoom", "there is no key");
    refused("", NULL, "zoom", "there is no key");
    refused("C-c", NULL, "zoom", "cannot be bound");
    refused("x", "input", "zoom", "needed to type");
    refused("Enter", "anywhere", "zoom", "needed to type");
    refused("F5", "kitchen", "zoom", "there is no place");
    refused("F5", NULL, "fly", "there is no action");
    refused("F5", NULL, "panel fly", "there is no panel");
    refused("F5", NULL, NULL, "nothing to bind");
    refused("F5", NULL, "/a\nb", "one line");
    tap_ok(tui_keymap_added(0) == NULL, "what is refused changes nothing");

    s_dropped = 0;
    struct tui_bind fn = {.key = "F6", .fn = nothing, .ctx = &s_dropped, .drop = count_drop, .live = true, .help = "mine"};
    tap_eq_int(tui_keymap_add(&fn, NULL, &err), RS_OK, "a function");
    struct tui_job job = tui_keymap_job(find(TUI_IN_LOG, "F6"));
    tap_ok(job.fn == nothing && job.ctx == &s_dropped && job.live && job.line == NULL, "comes back");
    tap_eq_int(tui_keymap_add(&fn, NULL, &err), RS_OK, "bound anew");
    tap_eq_int(s_dropped, 1, "the one before is dropped");
    tui_keymap_clear();
    tap_eq_int(s_dropped, 2, "and this one at the end");
    buf_fini(&was);
}

static char *lines(struct con *con, void *ctx, int rows, int cols)
{
    (void)con;
    ++*(int *)ctx;
    return xasprintf("%dx%d\nsecond", cols, rows);
}

static void test_custom(void)
{
    struct rs_error err;
    int asked = 0, top = 0;
    struct tui_custom c = {.name = "mine", .title = "My \033panel", .fn = lines, .ctx = &asked, .drop = count_drop, .every_ms = 200};
    s_dropped = 0;
    tap_eq_int(tui_custom_add(&c, &err), RS_OK, "a panel of a script");
    int i = tui_panel_find("mine") - TUI_CUSTOM;
    tap_ok(i >= 0 && i < TUI_CUSTOMS, "is known by its name");
    tap_eq_str(tui_panel_title(TUI_CUSTOM + i), "My ^[panel", "its title is harmless");
    tap_eq_int((long)tui_custom_due(i), 0, "it wants to be asked at once");
    tui_custom_ask(i, NULL, 1000000, 5, 20);
    tap_eq_int(asked, 1, "is asked");
    tap_eq_int((long)tui_custom_due(i), 1200000, "and again after its time");
    struct grid g = {0};
    grid_resize(&g, 4, 20);
    tap_eq_int(tui_custom_draw(i, &g, &(struct grid_rect){0, 0, 4, 20}, &top), 2, "two rows");
    struct buf b = {0};
    grid_save(&g, false, &b);
    tap_eq_str(b.text, "20x5\nsecond\n\n\n", "are drawn");
    buf_fini(&b);
    static const char text[] = "one\ntwo long words here\n\033[2Jthree\n\xff";
    tap_eq_int(tui_custom_text("mine", text, sizeof text - 1, &err), RS_OK, "text comes by itself");
    grid_resize(&g, 3, 10);
    top = 99;
    tap_eq_int(tui_custom_draw(i, &g, &(struct grid_rect){0, 0, 3, 10}, &top), 5, "a long line wraps");
    tap_eq_int(top, 2, "it is not scrolled past its end");
    grid_save(&g, false, &b);
    tap_eq_str(b.text, "words here\n^[[2Jthree\n\xef\xbf\xbd\n", "and is harmless");
    buf_fini(&b);
    grid_fini(&g);

    struct tui_tree t;
    size_t bad;
    tap_ok(tui_tree_parse("chat/(ranks|mine)", &t, &bad), "it can stand in an arrangement");
    tui_tree_print(&t, &b);
    tap_eq_str(b.text, "chat/(ranks|mine)", "and is printed");
    buf_fini(&b);
    tap_ok(!tui_tree_parse("chat/min", &t, &bad) && !tui_tree_parse("mines", &t, &bad), "by its whole name only");
    tap_eq_int(tui_custom_add(&(struct tui_custom){.name = "ops"}, &err), RS_EUSAGE, "names of the program are taken");
    tap_eq_int(tui_custom_add(&(struct tui_custom){.name = "a b"}, &err), RS_EUSAGE, "a blank is no part of a name");
    tap_eq_int(tui_custom_add(&(struct tui_custom){.name = "mine", .title = "Other"}, &err), RS_OK, "added anew");
    tap_eq_int(s_dropped, 1, "what it had is dropped");
    tap_ok(tui_custom_due(i) == UINT64_MAX, "without a function it is never asked");
    for (int k = 2; k < TUI_CUSTOMS; k++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", k);
        if (tui_custom_add(&(struct tui_custom){.name = name}, &err) != RS_OK)
            tap_ok(false, "panel %s", name);
    }
    tap_eq_int(tui_custom_add(&(struct tui_custom){.name = "more"}, &err), RS_ESTATE, "only so many");
    tap_eq_int(tui_custom_remove("mine", &err), RS_OK, "taken away");
    tap_ok(tui_panel_find("mine") < 0 && !tui_tree_parse("mine", &t, &bad), "it is gone");
    tap_eq_int(tui_custom_remove("mine", &err), RS_ENOTFOUND, "once");
    tap_eq_int(tui_custom_text("mine", "x", 1, &err), RS_ENOTFOUND, "its text too");
    tui_custom_clear();
    tap_ok(tui_panel_find("p2") < 0, "all cleared");
}

int main(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    test_bind();
    test_custom();
    return tap_done();
}
