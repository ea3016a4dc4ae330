/* tui_mouse.c: clicks and turns of the wheel. */
#include "config.h"

#include "console/tui.h"

#define WHEEL_ROWS 3

static bool hits(struct grid_rect r, int y, int x)
{
    return y >= r.y && y < r.y + r.h && x >= r.x && x < r.x + r.w;
}

/* The panel there; -2: none. */
static int panel_at(const struct tui *t, int y, int x)
{
    for (int i = 0; i < TUI_PANELS; i++)
        if (t->layout.shown[i] && hits(t->layout.panel[i], y, x))
            return i;
    return hits(t->layout.prompt, y, x) ? TUI_PROMPT : -2;
}

/* A word of the hint line does what its key does. */
static void click_hint(struct tui *t, int x)
{
    for (int i = 0; i < t->n_hints; i++)
        if (x >= t->hints[i].from && x < t->hints[i].to) {
            tui_input_act(t, t->hints[i].b);
            return;
        }
}

/* A row is selected by the first click and opened by the next one, where rows can be opened. */
static void click_row(struct tui *t, int panel, int y)
{
    struct tui_list *l = &t->lists[panel];
    const struct grid_rect *r = &t->layout.inner[panel];
    int first = r->y + (panel == TUI_REQUESTS ? 2 : 1), row = l->top + y - first; /* below the titles */
    if ((panel != TUI_OPS && panel != TUI_PATCHES && panel != TUI_RANKS && panel != TUI_REQUESTS) || y < first || row >= l->n || y - first >= l->h)
        return;
    bool again = t->focus == panel && l->selected == row;
    l->selected = row;
    t->candidate = 1;
    if (panel == TUI_REQUESTS)
        tui_select_request(t);
    if (again && panel == TUI_OPS)
        tui_op_open(t);
}

void tui_mouse_key(struct tui *t, const struct tui_key *k)
{
    int panel = panel_at(t, k->y, k->x);
    if (k->code == TUI_KEY_WHEEL) {
        if (t->overlay != TUI_OVERLAY_NONE || panel >= TUI_PROMPT)
            tui_input_scroll(t, panel, WHEEL_ROWS * k->arg);
        return;
    }
    if (hits(t->layout.hint, k->y, k->x)) {
        click_hint(t, k->x);
    } else if (t->overlay != TUI_OVERLAY_NONE) {
        t->overlay = TUI_OVERLAY_NONE; /* a click beside a window or on it puts it away */
    } else if (panel >= TUI_PROMPT) {
        if (panel >= 0)
            click_row(t, panel, k->y);
        tui_input_focus(t, panel);
    }
}
