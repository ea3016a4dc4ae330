/* Choosing a part of a text to copy. */
#include "config.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "console/tui_text.h"
#include "tests/tap.h"

static void draw(struct tui_text *t, int h, int w, struct buf *out)
{
    struct grid g = {0};
    grid_resize(&g, h, w);
    tui_text_draw(t, &g, (struct grid_rect){0, 0, h, w}, 0);
    buf_clear(out);
    grid_save(&g, true, out);
    grid_fini(&g);
}

static void takes(const struct tui_text *t, const char *want, const char *name)
{
    struct buf b = {0};
    tui_copy_take(t, &b);
    tap_eq_str(b.text != NULL ? b.text : "", want, "%s", name);
    buf_fini(&b);
}

static void fill(struct tui_text *t)
{
    static const char text[] = "first line\nsecond 日本 line that wraps\n\nlast";
    tui_text_init(t, 100);
    tui_text_add(t, 0, text, sizeof text - 1);
}

static void test_moves(void)
{
    struct tui_text t;
    struct buf b = {0};
    fill(&t);
    draw(&t, 4, 12, &b); /* rows: "first line", "second 日本", "line that", "wraps", "", "last": the last four are in sight */
    tap_ok(tui_copy_begin(&t), "choosing begins");
    draw(&t, 4, 12, &b);
    tap_ok(t.copy.y == 3 && t.copy.x == 0, "in the last row in sight");
    takes(&t, "last\n", "without a mark it is the line of the cursor");
    tui_copy_rows(&t, -2);
    draw(&t, 4, 12, &b);
    tap_ok(t.copy.y == 1, "up, over an empty line");
    tui_copy_rows(&t, -2);
    draw(&t, 4, 12, &b);
    tap_ok(t.copy.y == 0 && strncmp(b.text, "second", 6) == 0, "up out of sight: the view follows by one row");
    tui_copy_words(&t, 1);
    tui_copy_mark(&t, false);
    tui_copy_chars(&t, 3);
    takes(&t, "日本 l", "characters, the last one too, over a wrap");
    draw(&t, 4, 12, &b);
    tap_ok(strstr(b.text, "--\n       ####") != NULL && strstr(b.text, "\n#") != NULL, "they are marked");
    tui_copy_rows(&t, 1);
    tui_copy_edge(&t, 1);
    takes(&t, "日本 line that wraps", "to the end of the line");
    tui_copy_chars(&t, 1);
    tui_copy_chars(&t, 1);
    takes(&t, "日本 line that wraps\n\nl", "over lines");
    tui_copy_far(&t, -1);
    takes(&t, "first line\nsecond 日", "backwards");
    tui_copy_mark(&t, true);
    tui_copy_rows(&t, 1);
    takes(&t, "first line\nsecond 日本 line that wraps\n", "whole lines");
    tui_copy_mark(&t, true);
    tap_ok(!t.copy.marked, "the same key again gives the part up");
    tui_copy_rows(&t, 1000);
    takes(&t, "last\n", "far down is the end");
    tui_copy_rows(&t, -1000);
    takes(&t, "first line\n", "far up the beginning");
    tui_copy_words(&t, -5);
    takes(&t, "first line\n", "and nothing before it");
    tui_text_find(&t, "wraps");
    tui_copy_found(&t);
    tui_copy_mark(&t, false);
    tui_copy_edge(&t, 1);
    takes(&t, "wraps", "from what was searched for");
    tui_copy_end(&t);
    draw(&t, 4, 12, &b);
    tap_ok(strchr(strstr(b.text, "--"), '#') == NULL, "at its end nothing is marked");
    buf_fini(&b);
    tui_text_fini(&t);
}

/* Text comes and goes meanwhile: nothing moves, and no place is ever outside. */
static void test_stream(void)
{
    struct tui_text t;
    struct buf b = {0}, got = {0};
    unsigned seed = 1;
    bool inside = true;
    tui_text_init(&t, 30);
    tui_text_add(&t, 0, "one\ntwo\nthree\n", 14);
    draw(&t, 2, 20, &b);
    tui_copy_begin(&t);
    draw(&t, 2, 20, &b);
    for (int i = 0; i < 5; i++)
        tui_text_add(&t, 0, "more\n", 5);
    struct buf after = {0};
    draw(&t, 2, 20, &after);
    tap_eq_str(after.text, b.text, "what comes does not move the view");
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1103515245u + 12345u;
        int n = (int)(seed >> 16) % 9 - 4;
        switch (seed >> 28) {
        case 0: tui_text_add(&t, 0, "a 日本 line\n", 14); break;
        case 1: tui_text_add(&t, 0, "\n\n", 2); break;
        case 2: tui_copy_rows(&t, n); break;
        case 3: tui_copy_chars(&t, n); break;
        case 4: tui_copy_words(&t, n); break;
        case 5: tui_copy_edge(&t, n < 0 ? -1 : 1); break;
        case 6: tui_copy_far(&t, n < 0 ? -1 : 1); break;
        case 7: tui_copy_mark(&t, n < 0); break;
        case 8: tui_text_scroll(&t, n); break;
        case 9: tui_text_add(&t, 0, "no end ", 7); break;
        default: draw(&t, 1 + (int)(seed >> 8) % 5, 1 + (int)(seed >> 12) % 30, &b); break;
        }
        buf_clear(&got);
        tui_copy_take(&t, &got);
        size_t len;
        const char *text = tui_text_line(&t, t.copy.cursor.id, &len);
        inside = inside && (text == NULL || t.copy.cursor.at <= len) && (got.text == NULL || strlen(got.text) == got.len);
    }
    tap_ok(inside, "20,000 random moves while lines come and go");
    tui_text_clear(&t);
    tui_copy_rows(&t, -1);
    tap_ok(!tui_copy_begin(&t), "of no text nothing can be chosen");
    buf_fini(&b);
    buf_fini(&got);
    buf_fini(&after);
    tui_text_fini(&t);
}

int main(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    test_moves();
    test_stream();
    return tap_done();
}
