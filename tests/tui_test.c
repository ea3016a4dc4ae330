/* The pure parts of the panels: grid, layout, wrapping and scrolling, keys, plots. */
#include "config.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/tui_keymap.h"
#include "console/tui_layout.h"
#include "console/tui_plot.h"
#include "console/tui_text.h"
#include "tests/tap.h"

/* ---- grid ---------------------------------------------------------------------------------------------------------------------------- */

static char *shown(const struct grid *g)
{
    struct buf b = {0};
    grid_save(g, false, &b);
    return buf_take(&b);
}

static void test_grid(void)
{
    struct grid g = {0};
    grid_resize(&g, 2, 10);
    tap_eq_int(grid_str(&g, 0, 0, 10, 0, "a\033[2Jb"), 7, "ESC takes two columns");
    char *s = shown(&g);
    tap_eq_str(s, "a^[[2Jb\n\n", "and shows as ^[");
    free(s);
    grid_resize(&g, 2, 10);
    grid_str(&g, 0, 0, 10, 0, "\x7f\x01\xc2\x9b\xff");
    s = shown(&g);
    tap_eq_str(s, "^?^A^[\xef\xbf\xbd\n\n", "DEL, C1 and bytes that are no UTF-8");
    free(s);
    grid_resize(&g, 2, 10);
    tap_eq_int(grid_str(&g, 0, 7, 3, 0, "日本"), 2, "a wide character that would be cut is left out");
    grid_str(&g, 1, 9, 5, 0, "日");
    grid_str(&g, 0, 8, 1, 0, "x");
    s = shown(&g);
    tap_eq_str(s, "        x\n\n", "half a wide character does not stay");
    free(s);
    grid_resize(&g, 1, 10);
    grid_str(&g, 0, 0, 10, 0, "e\xcc\x81\xe2\x80\xae!");
    s = shown(&g);
    tap_eq_str(s, "e\xcc\x81!\n", "an accent stays, a change of direction does not");
    free(s);
    g.ascii = true;
    grid_resize(&g, 1, 10);
    grid_str(&g, 0, 0, 10, 0, "é日x");
    s = shown(&g);
    tap_eq_str(s, "??x\n", "ASCII only");
    free(s);
    grid_str(&g, 5, 5, 10, 0, "outside");
    grid_str(&g, 0, -3, 20, 0, "left of it");
    tap_ok(true, "writing outside does nothing");
    grid_fini(&g);
}

/* ---- layout -------------------------------------------------------------------------------------------------------------------------- */

static bool within(struct grid_rect r, struct grid_rect all)
{
    return r.h > 0 && r.w > 0 && r.y >= all.y && r.x >= all.x && r.y + r.h <= all.y + all.h && r.x + r.w <= all.x + all.w;
}

static bool apart(struct grid_rect a, struct grid_rect b)
{
    return a.y + a.h <= b.y || b.y + b.h <= a.y || a.x + a.w <= b.x || b.x + b.w <= a.x;
}

/* What must hold for every layout; NULL, or what does not. */
static const char *broken(const struct tui_layout *l, int rows, int cols, bool prompt)
{
    struct grid_rect screen = {0, 0, rows, cols};
    int shown = 0, area = 0;
    if (!within(l->status, screen) || !within(l->hint, screen) || !within(l->area, screen))
        return "status, hint or area outside";
    if (prompt && (!within(l->prompt, screen) || l->prompt.h < TUI_PROMPT_ROWS + 1 || !apart(l->prompt, l->area)))
        return "the prompt has too few rows";
    for (int i = 0; i < TUI_PANELS; i++) {
        if (!l->shown[i])
            continue;
        shown++;
        area += l->panel[i].h * l->panel[i].w;
        if (!within(l->panel[i], l->area) || !within(l->inner[i], l->panel[i]))
            return "a panel outside its place";
        if (!apart(l->panel[i], l->prompt) && prompt)
            return "a panel over the prompt";
        for (int k = 0; k < i; k++)
            if (l->shown[k] && !apart(l->panel[i], l->panel[k]))
                return "panels overlap";
    }
    if (shown == 0)
        return "no panel";
    return area == l->area.h * l->area.w ? NULL : "a gap between panels";
}

static void sweep(const char *name, const struct tui_tree *t, int zoom)
{
    int bad = 0, tried = 0;
    for (int rows = TUI_LOOK_ROWS; rows <= 100; rows++)
        for (int cols = TUI_LOOK_COLS; cols <= 300; cols++)
            for (int prompt = 0; prompt <= (rows < TUI_MIN_ROWS || cols < TUI_MIN_COLS ? 0 : 40); prompt += 20) {
                struct tui_layout l;
                struct tui_layout_args a = {rows, cols, prompt, 9, zoom};
                tui_layout_compute(t, &a, &l);
                const char *why = l.too_small ? "too small" : broken(&l, rows, cols, prompt > 0);
                tried++;
                if (why != NULL && bad++ < 3)
                    tap_diag("%dx%d, prompt %d: %s", cols, rows, prompt, why);
            }
    tap_ok(bad == 0, "%s: %d layouts from 40x6 to 300x100, zoom %d", name, tried, zoom);
}

static void test_layout(void)
{
    struct tui_tree t;
    size_t bad;
    struct tui_layout l;
    for (int i = 0; tui_presets[i].name != NULL; i++) {
        tap_ok(tui_tree_parse(tui_presets[i].spec, &t, &bad), "preset %s is an arrangement", tui_presets[i].name);
        sweep(tui_presets[i].name, &t, -1);
        struct buf b = {0};
        tui_tree_print(&t, &b);
        tap_eq_str(b.text, tui_presets[i].spec, "and prints as it was written");
        buf_fini(&b);
    }
    sweep("zoomed", &t, TUI_STEP);
    tui_tree_parse(tui_presets[0].spec, &t, &bad);
    struct tui_layout_args a = {24, 80, 1, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.shown[TUI_CHAT] && l.shown[TUI_RANKS] && l.inner[TUI_RANKS].h >= 9, "80x24: chat, and 8 ranks under their heading");
    tap_eq_int(l.prompt.h, 4, "80x24: three rows of prompt under its rule");
    a = (struct tui_layout_args){20, 60, 1, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.inner[TUI_CHAT].h == 5 && l.inner[TUI_RANKS].h == 7, "60x20: some lines of chat before all ranks");
    a = (struct tui_layout_args){14, 80, 1, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.too_small, "14 rows are too few");
    a = (struct tui_layout_args){24, 59, 1, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.too_small, "59 columns are too few");
    a = (struct tui_layout_args){14, 59, 0, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(!l.too_small && l.shown[TUI_RANKS], "but not without a prompt");
    a = (struct tui_layout_args){5, 80, 0, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.too_small, "5 rows are too few for anything");
    tui_tree_parse(tui_presets[1].spec, &t, &bad);
    a = (struct tui_layout_args){24, 80, 0, 9, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.inner[TUI_RANKS].h >= 9 && l.inner[TUI_ALLREDUCE].h >= 10 && !l.shown[TUI_LOG], "80x24, who watches: 8 ranks in both panels, and no log");
    a = (struct tui_layout_args){24, 80, 0, 33, -1};
    tui_layout_compute(&t, &a, &l);
    tap_ok(l.shown[TUI_LOG] || !l.shown[TUI_STEP], "the log does not go where 32 ranks find no room even so");
    static const char *const wrong[] = {"",       "chat|",  "chat/chat", "(chat", "chat)",
                                        "chat*0", "chat*x", "nothing",   "chats", "((((((((((chat))))))))))"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        tap_ok(!tui_tree_parse(wrong[i], &t, &bad), "no arrangement: '%s'", wrong[i]);
    tui_tree_parse("chat/ranks|log", &t, &bad);
    tap_ok(tui_tree_weigh(&t, TUI_LOG, 2) && !tui_tree_weigh(&t, TUI_OPS, 2), "a panel grows if it is there");
    struct buf b = {0};
    tui_tree_print(&t, &b);
    tap_eq_str(b.text, "(chat/ranks)|log*2", "and its share is seen");
    buf_fini(&b);
}

/* ---- text ---------------------------------------------------------------------------------------------------------------------------- */

static void wrap_eq(const char *text, int width, const char *want)
{
    struct buf b = {0};
    size_t at = 0, next, len = strlen(text);
    do {
        size_t n = tui_wrap(text + at, len - at, width, false, &next);
        buf_add(&b, text + at, n);
        buf_char(&b, '|');
        at += next;
    } while (at < len);
    tap_eq_str(b.text, want, "'%s' in %d columns", text, width);
    buf_fini(&b);
}

static char *drawn(struct tui_text *t, int h, int w)
{
    struct grid g = {0};
    grid_resize(&g, h, w);
    tui_text_draw(t, &g, (struct grid_rect){0, 0, h, w}, 1);
    char *s = shown(&g);
    grid_fini(&g);
    return s;
}

static void draw_eq(struct tui_text *t, int h, int w, const char *want, const char *name)
{
    char *s = drawn(t, h, w);
    tap_eq_str(s, want, "%s", name);
    free(s);
}

static void add(struct tui_text *t, uint8_t role, const char *text)
{
    tui_text_add(t, role, text, strlen(text));
}

static void test_text(void)
{
    wrap_eq("one two three", 7, "one two|three|");
    wrap_eq("one two three", 8, "one two|three|");
    wrap_eq("onetwothree", 4, "onet|woth|ree|");
    wrap_eq("日本語", 5, "日本|語|");
    wrap_eq("日", 1, "日|");
    wrap_eq("", 5, "|");
    struct tui_text t;
    tui_text_init(&t, 50);
    draw_eq(&t, 2, 10, "\n\n", "nothing");
    add(&t, 0, "a\tb\nc\033[31md\n");
    draw_eq(&t, 3, 12, "a       b\nc^[[31md\n\n", "tabs become blanks, controls show");
    add(&t, 0, "one two three");
    draw_eq(&t, 3, 8, "c^[[31md\none two\nthree\n", "the end is in sight");
    for (int i = 0; i < 100; i++) {
        char line[16];
        snprintf(line, sizeof line, "\nline %d", i);
        add(&t, 0, line);
    }
    draw_eq(&t, 2, 20, "line 98\nline 99\n", "the newest lines");
    tap_eq_int((long long)t.n, 50, "the oldest lines went");
    tui_text_scroll(&t, -10);
    draw_eq(&t, 2, 30, "line 88\nline 89     -- more (PgDn) --\n", "scrolled");
    add(&t, 0, "\nnew\nnewer");
    draw_eq(&t, 2, 30, "line 88\nline 89     -- 2 new lines --\n", "it stays when lines come, and says how many");
    draw_eq(&t, 2, 40, "line 88\nline 89               -- 2 new lines --\n", "and when the window changes");
    tui_text_scroll(&t, 100);
    draw_eq(&t, 2, 20, "new\nnewer\n", "at the end it follows again");
    tap_ok(!t.scrolled, "and knows it");
    tui_text_home(&t);
    char *s = drawn(&t, 1, 30);
    tap_ok(strncmp(s, "line 52", 7) == 0, "the beginning");
    free(s);
    tap_eq_int((long long)tui_text_find(&t, "LINE 7"), 0, "a capital searches for capitals");
    tap_eq_int((long long)tui_text_find(&t, "line 7"), 10, "a search counts lines");
    s = drawn(&t, 3, 30);
    tap_ok(strstr(s, "line 79") != NULL, "and shows the last one: %s", s);
    free(s);
    tap_ok(tui_text_next(&t, -1), "the one before");
    s = drawn(&t, 1, 30);
    tap_ok(strstr(s, "line 78") != NULL, "which is shown: %s", s);
    free(s);
    tap_eq_int((long long)tui_text_find(&t, NULL), 0, "no more search");
    tui_text_fini(&t);

    tui_text_init(&t, 50);
    t.fold_role = 3;
    add(&t, 0, "question\n");
    add(&t, 3, "thought one\nthought two\n");
    add(&t, 0, "answer\n");
    t.fold = true;
    draw_eq(&t, 3, 40, "question\n(thinking: 2 lines folded)\nanswer\n", "thoughts fold");
    t.fold = false;
    draw_eq(&t, 4, 40, "question\nthought one\nthought two\nanswer\n", "and unfold");
    tui_text_fini(&t);
}

/* ---- keys ---------------------------------------------------------------------------------------------------------------------------- */

static void key_eq(const char *bytes, bool flush, const char *want)
{
    struct tui_decoder d = {0};
    struct buf b = {0};
    struct tui_key k;
    char name[24];
    tui_key_feed(&d, bytes, strlen(bytes));
    while (tui_key_next(&d, false, &k) || (flush && tui_key_next(&d, true, &k)))
        buf_printf(&b, "%s%s", b.len > 0 ? " " : "", tui_key_name(&k, name));
    tap_eq_str(b.len > 0 ? b.text : "", want, "keys of %zu bytes%s", strlen(bytes), flush ? ", no more to come" : "");
    buf_fini(&b);
    tui_key_fini(&d);
}

static void test_keys(void)
{
    key_eq("ab\r\t\x7f", false, "a b Enter Tab Backspace");
    key_eq("\x03\x18\x01", false, "C-c C-x C-a");
    key_eq("\033", false, "");
    key_eq("\033", true, "Escape");
    key_eq("\033x", false, "M-x");
    key_eq("\033[A\033OB\033[1;5C\033[Z", false, "Up Down C-Right S-Tab");
    key_eq("\033[24~\033OP\033[[A\033[15;2~", false, "F12 F1 F1 S-F5");
    key_eq("\033[", false, "");
    key_eq("\033[", true, "M-[");
    key_eq("\033[999;999;999;999;999z", false, "?");
    key_eq("é日", false, "é 日");
    key_eq("\xe6\x97", false, "");
    key_eq("\033[<65;10;5M\033[<0;10;5M\033[<0;10;5m\033[<2;10;5M", false, "wheel click ? ?");
    key_eq("\033[200~one\ntwo\033[31m\033[201~x", false, "paste x");
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++) {
        struct tui_decoder d = {0};
        struct tui_key want, got;
        char name[24];
        bool known = tui_key_parse(b->key, &want);
        tui_key_feed(&d, want.bytes, known ? want.n : 0);
        bool came = known && (tui_key_next(&d, false, &got) || tui_key_next(&d, true, &got));
        if (!came || got.code != want.code || got.mods != want.mods || strcmp(tui_key_name(&got, name), b->key) != 0)
            tap_ok(false, "key %s of the table comes back as itself", b->key);
        tui_key_fini(&d);
    }
    struct tui_decoder d = {0};
    struct tui_key k;
    static const char pasted[] = "\033[200~a\033[31mb\r\nc\x01\033[201~";
    for (size_t i = 0; i + 1 < sizeof pasted; i++) { /* byte by byte */
        tui_key_feed(&d, pasted + i, 1);
        if (tui_key_next(&d, false, &k))
            break;
    }
    tap_ok(k.code == TUI_KEY_PASTE, "a paste that comes byte by byte");
    tap_eq_str(d.paste.text, "a[31mb\n\nc", "without its control characters");
    tui_key_fini(&d);
    for (const struct tui_binding *b = tui_keymap; b->key != NULL; b++)
        for (const struct tui_binding *c = tui_keymap; c < b; c++)
            if (strcmp(b->key, c->key) == 0 && (b->where & ~c->where) == 0)
                tap_ok(false, "key %s is never reached in its second place", b->key);
    tap_ok(true, "no key is hidden by a row before it");
}

/* Any bytes at all: the decoder always gets through them. */
static void test_key_fuzz(void)
{
    struct tui_decoder d = {0};
    struct tui_key k;
    uint64_t x = 88172645463325252u;
    size_t keys = 0;
    for (int i = 0; i < 300000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        char c = x & 1 ? (char)(x >> 40) : "\033[O<;0129~M"[(x >> 40) % 11];
        while (tui_key_feed(&d, &c, 1) == 0) {
            if (!tui_key_next(&d, true, &k))
                break;
            keys++;
        }
        while (tui_key_next(&d, false, &k))
            keys++;
    }
    tap_ok(keys > 1000, "random bytes: %zu keys", keys);
    tui_key_fini(&d);
}

/* ---- plots --------------------------------------------------------------------------------------------------------------------------- */

static void test_plots(void)
{
    struct grid g = {0};
    grid_resize(&g, 1, 8);
    tui_plot_bar(&g, 0, 0, 8, 0, 0.5625, TUI_PLOT_BLOCK);
    char *s = shown(&g);
    tap_eq_str(s, "████▌\n", "a bar in eighths");
    free(s);
    grid_resize(&g, 1, 8);
    tui_plot_bar(&g, 0, 0, 8, 0, 7, TUI_PLOT_ASCII);
    s = shown(&g);
    tap_eq_str(s, "########\n", "never longer than its place");
    free(s);
    float v[] = {0, 1, 2, 3, NAN, 7};
    double lo = 0, hi = 0;
    tap_ok(tui_plot_range(v, 6, &lo, &hi) && lo == 0 && hi == 7, "the range leaves out what is no number");
    grid_resize(&g, 1, 8);
    tui_plot_spark(&g, 0, 0, 8, 0, v, 6, lo, hi, TUI_PLOT_BLOCK);
    s = shown(&g);
    tap_eq_str(s, "  ▁▂▃▄ █\n", "a sparkline, the newest at the right");
    free(s);
    grid_resize(&g, 1, 4);
    tui_plot_spark(&g, 0, 0, 4, 0, v, 6, lo, hi, TUI_PLOT_BRAILLE);
    s = shown(&g);
    tap_eq_str(s, " ⣀⣤⢸\n", "two values a column in braille");
    free(s);
    uint32_t bins[] = {0, 4, 2};
    grid_resize(&g, 2, 3);
    tui_plot_histogram(&g, (struct grid_rect){0, 0, 2, 3}, 0, bins, 3, TUI_PLOT_BLOCK);
    s = shown(&g);
    tap_eq_str(s, " █\n ██\n", "a histogram of two rows");
    free(s);
    grid_fini(&g);
}

int main(void)
{
    setlocale(LC_ALL, "");
    test_grid();
    test_layout();
    test_text();
    test_keys();
    test_key_fuzz();
    test_plots();
    return tap_done();
}
