/* tui_lists.c: the panels with rows to choose from: ops and patches. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/tui.h"
#include "console/units.h"

/* ---- ops ----------------------------------------------------------------------------------------------------------------------------- */

struct row {
    const json_t *op;
    const char *site, *kind;
    double us; /* of the slowest rank */
    size_t at; /* in the program */
};

static int compare(const void *a, const void *b, void *ctx)
{
    const struct row *x = a, *y = b;
    enum tui_ops_order order = *(const enum tui_ops_order *)ctx;
    int c = 0;
    if (order == TUI_BY_TIME)
        c = x->us > y->us ? -1 : x->us < y->us;
    else if (order == TUI_BY_SITE)
        c = strcmp(x->site, y->site);
    else if (order == TUI_BY_KIND)
        c = strcmp(x->kind, y->kind);
    return c != 0 ? c : x->at < y->at ? -1 : x->at > y->at;
}

static bool passes(const struct tui *t, const json_t *op)
{
    static const char *const keys[] = {"site", "kind", "impl", "why"};
    if (t->filter[0] == '\0')
        return true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *text = js_str(op, keys[i], "");
        if (tui_match(text, strlen(text), 0, t->filter) >= 0)
            return true;
    }
    return false;
}

/* The rows of the ledger that pass the filter, in order; caller frees. *total: time of the whole step. */
static struct row *rows_of(const struct tui *t, size_t *n, double *total)
{
    const json_t *ops = js_at(tui_data_last(&t->data, TUI_ASK_LEDGER), "ops");
    struct row *rows = xcalloc(json_array_size(ops), sizeof *rows);
    *n = 0;
    *total = 0;
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *op = json_array_get(ops, i);
        double us = tui_op_us(op);
        *total += isfinite(us) ? us : 0;
        if (passes(t, op))
            rows[(*n)++] = (struct row){op, js_str(op, "site", "?"), js_str(op, "kind", "?"), us, i};
    }
    enum tui_ops_order order = t->order;
    qsort_r(rows, *n, sizeof *rows, compare, &order);
    return rows;
}

const json_t *tui_selected_op(struct tui *t)
{
    size_t n;
    double total;
    struct row *rows = rows_of(t, &n, &total);
    int i = t->lists[TUI_OPS].selected;
    const json_t *op = i >= 0 && (size_t)i < n ? rows[i].op : NULL;
    free(rows);
    return op;
}

static void op_row(struct tui *t, const struct row *o, double total, int y, struct grid_rect r, int site_w)
{
    struct grid *g = &t->grid;
    const char *why = js_str(o->op, "why", "");
    bool plain = strcmp(why, "default") == 0, in = js_bool(o->op, "in_graph", false), can = js_bool(o->op, "capturable", true);
    int x = r.x;
    char us[32];
    bool held = strcmp(js_str(t->con->stopped, "site", ""), o->site) == 0;
    if (held)
        grid_char(g, y, x, ROLE_BAD, '>');
    else if (tui_op_break(t, o->site) != NULL)
        grid_char(g, y, x, ROLE_WARN, 'B');
    if (tui_op_tap(t, o->site) != NULL)
        grid_char(g, y, x + 1, ROLE_CHANGED, 'T');
    x += 3;
    char *site = text_one_line(o->site), *impl = text_one_line(js_str(o->op, "impl", "?"));
    grid_str(g, y, x, site_w - 1, ROLE_TEXT, site);
    x += site_w;
    if (r.w >= 72)
        grid_str(g, y, x, 13, ROLE_DIM, o->kind);
    x += r.w >= 72 ? 14 : 0;
    grid_str(g, y, x, 9, plain ? ROLE_TEXT : ROLE_CHANGED, impl);
    x += 10;
    if (isfinite(o->us))
        units_us(us, o->us);
    else
        snprintf(us, sizeof us, "N/A");
    grid_str(g, y, x + 9 - (int)strlen(us), 9, isfinite(o->us) ? ROLE_TEXT : ROLE_ABSENT, us);
    x += 10;
    if (r.w >= 58 && total > 0)
        tui_draw_number(t, y, x, 6, ROLE_TEXT, 100 * o->us / total, 1, "%");
    x += r.w >= 58 ? 7 : 0;
    if (r.w >= 84)
        grid_str(g, y, x, 9, plain ? ROLE_DIM : ROLE_CHANGED, why);
    x += r.w >= 84 ? 10 : 0;
    if (r.w >= 96)
        grid_str(g, y, x, 12, in ? ROLE_DIM : can ? ROLE_TEXT : ROLE_WARN, in ? "in graph" : can ? "eager" : "no capture");
    free(site);
    free(impl);
}

void tui_draw_ops(struct tui *t, struct grid_rect r)
{
    static const char *const orders[] = {"in program order", "by time", "by site", "by kind"};
    const json_t *ledger = tui_data_last(&t->data, TUI_ASK_LEDGER);
    struct tui_list *l = &t->lists[TUI_OPS];
    size_t n;
    double total;
    if (ledger == NULL || json_array_size(js_at(ledger, "ops")) == 0) {
        grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM, ledger == NULL && t->data.have ? "..." : "no step has run yet"); /* it was asked for just now */
        l->n = 0;
        return;
    }
    struct row *rows = rows_of(t, &n, &total);
    int fixed = 23 + (r.w >= 72 ? 14 : 0) + (r.w >= 58 ? 7 : 0) + (r.w >= 84 ? 10 : 0) + (r.w >= 96 ? 12 : 0), site_w = r.w - fixed;
    char sum[32];
    grid_printf(&t->grid, r.y, r.x, r.w, ROLE_HEAD, "step %lld, %s, %zu ops %s%s%s: %s", (long long)js_int(ledger, "step", 0),
                js_str(ledger, "mode", "?"), n, orders[t->order], t->filter[0] != '\0' ? ", with " : "", t->filter, units_us(sum, total));
    for (size_t i = 0; t->find_held && i < n; i++)
        if (strcmp(rows[i].site, js_str(t->con->stopped, "site", "")) == 0)
            l->selected = (int)i;
    t->find_held = false;
    tui_list_fit(l, (int)n, r.h - 1);
    for (int i = 0; i < r.h - 1 && l->top + i < (int)n; i++) {
        op_row(t, &rows[l->top + i], total, r.y + 1 + i, r, site_w);
        if (t->focus == TUI_OPS && l->top + i == l->selected)
            grid_flag(&t->grid, r.y + 1 + i, r.x, r.w, GRID_SELECTED);
    }
    free(rows);
}

/* ---- patches ------------------------------------------------------------------------------------------------------------------------- */

static const char *impl_name(const json_t *e)
{
    return json_is_string(e) ? json_string_value(e) : js_str(e, "name", "?");
}

/* Index of the implementation that Enter would choose; -1: there is no other. */
static int candidate(const struct tui *t, const json_t *slot)
{
    const json_t *impls = json_object_get(slot, "impls");
    const char *now = js_str(slot, "current", "");
    int n = (int)json_array_size(impls), at = 0;
    for (int i = 0; i < n; i++)
        if (strcmp(impl_name(json_array_get(impls, (size_t)i)), now) == 0)
            at = i;
    if (n < 2)
        return -1;
    int k = (at + t->candidate) % n;
    k = k < 0 ? k + n : k;
    return k == at ? (k + 1) % n : k;
}

bool tui_selected_patch(struct tui *t, const char **slot, const char **from, const char **to)
{
    const json_t *slots = js_at(tui_data_last(&t->data, TUI_ASK_PATCHES), "slots");
    const json_t *s = json_array_get(slots, (size_t)t->lists[TUI_PATCHES].selected);
    int k = s != NULL ? candidate(t, s) : -1;
    if (k < 0)
        return false;
    *slot = js_str(s, "slot", "");
    *from = js_str(s, "current", "");
    *to = impl_name(json_array_get(json_object_get(s, "impls"), (size_t)k));
    return true;
}

/* Returns the columns used, 0 when it does not fit. */
static int impl_cell(struct tui *t, const json_t *impl, bool is_now, bool is_next, bool changed, int y, int x, int end)
{
    const char *name = impl_name(impl), *around = is_now ? "[]" : is_next ? "><" : "  ";
    uint8_t role = is_now ? (changed ? ROLE_CHANGED : ROLE_GOOD) : is_next ? ROLE_KEY : ROLE_DIM;
    char *text = xasprintf("%c%s%s%c", around[0], name, js_bool(impl, "capturable", true) ? "" : "!", around[1]);
    int n = grid_columns(text, strlen(text), t->ascii);
    n = x + n <= end ? grid_str(&t->grid, y, x, n, role, text) : 0;
    free(text);
    return n;
}

static void slot_row(struct tui *t, const json_t *s, bool selected, int y, struct grid_rect r)
{
    struct grid *g = &t->grid;
    const char *now = js_str(s, "current", "?"), *def = js_str(s, "default", "?");
    const json_t *impls = json_object_get(s, "impls");
    bool changed = strcmp(now, def) != 0 || json_array_size(json_object_get(s, "sites")) > 0;
    int x = r.x, k = selected ? candidate(t, s) : -1, end = r.x + r.w - (r.w >= 60 ? 11 : 0);
    grid_char(g, y, x, changed ? ROLE_CHANGED : ROLE_TEXT, changed ? '*' : ' ');
    grid_str(g, y, x + 1, 15, changed ? ROLE_CHANGED : ROLE_TEXT, js_str(s, "slot", "?"));
    x += 17;
    /* [now], then >what Enter would choose<, then the others: the first two must be in sight. */
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < json_array_size(impls); i++) {
            const json_t *e = json_array_get(impls, i);
            bool is_now = strcmp(impl_name(e), now) == 0, is_next = !is_now && (int)i == k;
            if (pass == (is_now ? 0 : is_next ? 1 : 2))
                x += impl_cell(t, e, is_now, is_next, changed, y, x, end);
        }
    if (r.w >= 60)
        grid_str(g, y, end + 1, 10, ROLE_DIM, js_str(s, "cost", ""));
    if (selected)
        grid_flag(g, y, r.x, r.w, GRID_SELECTED);
}

static void journal_row(struct tui *t, const json_t *e, int y, struct grid_rect r)
{
    const char *glob = js_str(e, "glob", "*");
    bool all = strcmp(glob, "*") == 0;
    grid_printf(&t->grid, y, r.x, r.w, ROLE_DIM, "%4lld %s%s%s: %s -> %s (%.1f ms, %s)", (long long)js_int(e, "generation", 0),
                js_str(e, "slot", "?"), all ? "" : " at ", all ? "" : glob, js_str(e, "from", "?"), js_str(e, "to", "?"),
                js_num(e, "took_ms", 0), js_str(e, "by", "?"));
}

void tui_draw_patches(struct tui *t, struct grid_rect r)
{
    const json_t *reply = tui_data_last(&t->data, TUI_ASK_PATCHES), *slots = js_at(reply, "slots"), *journal = js_at(reply, "journal");
    struct tui_list *l = &t->lists[TUI_PATCHES];
    int n = (int)json_array_size(slots), entries = (int)json_array_size(journal);
    if (n == 0) {
        grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM, "no patch slots");
        l->n = 0;
        return;
    }
    grid_printf(&t->grid, r.y, r.x, r.w, ROLE_HEAD, "generation %lld; [now], * away from default, ! no capture",
                (long long)js_int(reply, "generation", 0));
    int rows = r.h - 1 < n ? r.h - 1 : n, spare = r.h - 1 - rows;
    tui_list_fit(l, n, rows);
    for (int i = 0; i < rows; i++)
        slot_row(t, json_array_get(slots, (size_t)(l->top + i)), t->focus == TUI_PATCHES && l->top + i == l->selected, r.y + 1 + i, r);
    if (spare < 2 || entries == 0)
        return;
    grid_str(&t->grid, r.y + 1 + rows, r.x, r.w, ROLE_HEAD, "journal, the newest first");
    for (int i = 0; i < spare - 1 && i < entries; i++)
        journal_row(t, json_array_get(journal, (size_t)(entries - 1 - i)), r.y + 2 + rows + i, r);
}
