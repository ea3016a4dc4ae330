/* tui_op.c: an op, opened: what it reads and writes on which rank, how long it takes, what a tap has seen, and, while the engine is stopped, the
 * values themselves. */
#include "config.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/tui.h"
#include "console/units.h"

double tui_op_us(const json_t *op)
{
    const json_t *us = json_object_get(op, "us");
    double most = NAN;
    for (size_t i = 0; i < json_array_size(us); i++) {
        const json_t *v = json_array_get(us, i);
        if (json_is_number(v) && !(json_number_value(v) <= most))
            most = json_number_value(v);
    }
    return most;
}

struct sheet {
    struct tui *t;
    struct grid_rect r;
    int row;
};

static void sheet_line(struct sheet *s, uint8_t role, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void sheet_line(struct sheet *s, uint8_t role, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap);
    va_end(ap);
    int y = s->row++ - s->t->overlay_top;
    if (y >= 0 && y < s->r.h)
        grid_str(&s->t->grid, s->r.y + y, s->r.x, s->r.w, role, text);
    free(text);
}

/* "4 per rank", or each rank's where they differ; caller frees. */
static char *widths(const json_t *w)
{
    struct buf b = {0};
    bool same = true;
    if (json_is_number(w))
        return xasprintf("%.0f", json_number_value(w));
    for (size_t i = 1; i < json_array_size(w); i++)
        same = same && json_number_value(json_array_get(w, i)) == json_number_value(json_array_get(w, 0));
    if (same && json_array_size(w) > 0)
        return xasprintf("%.0f on each rank", json_number_value(json_array_get(w, 0)));
    for (size_t i = 0; i < json_array_size(w); i++)
        buf_printf(&b, "%s%.0f", i > 0 ? ", " : "", json_number_value(json_array_get(w, i)));
    return buf_take(&b);
}

static void sheet_refs(struct sheet *s, const char *title, const json_t *refs)
{
    if (json_array_size(refs) == 0)
        return;
    sheet_line(s, ROLE_HEAD, "%s", title);
    for (size_t i = 0; i < json_array_size(refs); i++) {
        const json_t *f = json_array_get(refs, i);
        char *w = widths(json_object_get(f, "width"));
        sheet_line(s, ROLE_TEXT, "  %-14s %-11s width %s", js_str(f, "buffer", "?"), js_str(f, "layout", "?"), w);
        free(w);
    }
}

static void sheet_ranks(struct sheet *s, const json_t *op)
{
    const json_t *us = json_object_get(op, "us");
    double most = tui_op_us(op);
    if (json_array_size(us) == 0)
        return;
    sheet_line(s, ROLE_HEAD, "time by rank in the last step");
    for (size_t i = 0; i < json_array_size(us); i++) {
        double v = json_is_number(json_array_get(us, i)) ? json_number_value(json_array_get(us, i)) : NAN;
        char text[32];
        int y = s->r.y + s->row - s->t->overlay_top;
        bool seen = s->row >= s->t->overlay_top && y < s->r.y + s->r.h;
        sheet_line(s, isfinite(v) ? ROLE_TEXT : ROLE_ABSENT, "  %4zu %12s", i, isfinite(v) ? units_us(text, v) : "N/A");
        if (seen && isfinite(v) && most > 0 && s->r.w > 40)
            tui_plot_bar(&s->t->grid, y, s->r.x + 21, s->r.w - 24, ROLE_BUSY, v / most, s->t->ascii ? TUI_PLOT_ASCII : s->t->plots);
    }
}

static const json_t *find_site_in(const json_t *list, const char *site)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(js_str(json_array_get(list, i), "site", ""), site) == 0)
            return json_array_get(list, i);
    return NULL;
}

static const char *sheet_number(char buf[32], double x)
{
    snprintf(buf, 32, isfinite(x) ? "%.4g" : "N/A", x);
    return buf;
}

static void sheet_record(struct sheet *s, const char *who, int width, const json_t *o)
{
    char text[6][32];
    sheet_line(s, ROLE_TEXT, "  %-*s %11s %11s %11s %7s %7s %7s", width, who, sheet_number(text[0], js_num(o, "absmax", NAN)),
               sheet_number(text[1], js_num(o, "mean", NAN)), sheet_number(text[2], js_num(o, "rms", NAN)),
               sheet_number(text[3], js_num(o, "zeros", NAN)), sheet_number(text[4], js_num(o, "nan", NAN)),
               sheet_number(text[5], js_num(o, "inf", NAN)));
}

/* ---- values where the engine is stopped ------------------------------------------------------------------------------------------------------ */

static void sheet_values(struct sheet *s, const char *what, const json_t *values)
{
    struct buf b = {0};
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        if (json_is_number(v))
            buf_printf(&b, " %.4g", json_number_value(v));
        else
            buf_printf(&b, " %s", json_string_value(v));
    }
    if (b.len > 0)
        sheet_line(s, ROLE_TEXT, "  %s%s", what, b.text);
    buf_fini(&b);
}

static void sheet_tensors(struct sheet *s, const json_t *op)
{
    const struct tui_tensors *k = &s->t->tensors;
    const json_t *stop = s->t->con->stopped;
    size_t inputs = json_array_size(json_object_get(op, "in"));
    if (stop == NULL || json_array_size(k->seen) == 0)
        return;
    sheet_line(s, ROLE_HEAD, "last row, as it is now (stopped %s %s)", js_str(stop, "when", "at"), js_str(stop, "site", "?"));
    sheet_line(s, ROLE_HEAD, "  %-14s %11s %11s %11s %7s %7s %7s", "", "absmax", "mean", "rms", "zeros", "nan", "inf");
    for (size_t i = 0; i < json_array_size(k->seen); i++) {
        const json_t *o = json_array_get(k->seen, i), *f = json_array_get(json_object_get(op, i < inputs ? "in" : "out"), i < inputs ? i : i - inputs);
        char *name = xasprintf("%s %s", i < inputs ? "in" : "out", js_str(f, "buffer", "?"));
        if (json_object_get(o, "error") != NULL) {
            const char *why = js_str(o, "error", ""), *colon = strstr(why, ": ");
            why = colon != NULL ? colon + 2 : why;
            sheet_line(s, ROLE_ABSENT, "  %-14s N/A: %.*s", name, (int)(strstr(why, " (") != NULL ? strstr(why, " (") - why : (long)strlen(why)), why);
        } else {
            sheet_record(s, name, 14, json_object_get(o, "stats"));
            sheet_values(s, "               begins", json_object_get(o, "values"));
        }
        free(name);
    }
}

/* What a tap has seen in the last step: statistics of each rank, the first values of the last row. */
static void sheet_tap(struct sheet *s)
{
    const struct tui *t = s->t;
    const json_t *site = find_site_in(js_at(tui_data_last(&t->data, TUI_ASK_PROBE), "sites"), t->op_site);
    const json_t *records = json_object_get(site, "records"), *last = json_array_get(records, 0), *ranks = json_object_get(last, "ranks");
    if (site == NULL) {
        sheet_line(s, ROLE_DIM, "t observes its output: statistics and values of every step");
        return;
    }
    if (json_array_size(ranks) == 0) {
        sheet_line(s, ROLE_HEAD, "tapped; no step has run since");
        return;
    }
    const json_t *agree = json_object_get(last, "ranks_agree");
    bool apart = json_is_false(agree);
    sheet_line(s, apart ? ROLE_BAD : ROLE_HEAD, "output in step %lld, %lld rows%s", (long long)js_int(last, "step", 0),
               (long long)js_int(last, "rows", 0),
               apart                 ? ": RANKS DISAGREE"
               : json_is_true(agree) ? ", all ranks hold the same"
                                     : "");
    sheet_line(s, ROLE_HEAD, "  %-6s %11s %11s %11s %7s %7s %7s", "rank", "absmax", "mean", "rms", "zeros", "nan", "inf");
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *r = json_array_get(ranks, i);
        char who[16];
        snprintf(who, sizeof who, "%lld", (long long)js_int(r, "rank", (json_int_t)i));
        sheet_record(s, who, 6, r);
    }
    if (json_is_object(json_object_get(last, "whole")))
        sheet_record(s, "whole", 6, json_object_get(last, "whole"));
    /* Where all ranks hold the same, one stands for all. */
    for (size_t i = 0; i < (json_is_true(agree) ? 1 : json_array_size(ranks)); i++) {
        const json_t *r = json_array_get(ranks, i);
        char *what = xasprintf("rank %lld begins", (long long)js_int(r, "rank", (json_int_t)i));
        sheet_values(s, what, json_object_get(r, "values"));
        free(what);
    }
}

static const json_t *find_site(const json_t *reply, const char *site)
{
    return find_site_in(js_at(reply, "ops"), site);
}

void tui_draw_op(struct tui *t, struct grid_rect r)
{
    const json_t *run = find_site(tui_data_last(&t->data, TUI_ASK_LEDGER), t->op_site),
                 *op = find_site(tui_data_last(&t->data, TUI_ASK_PROGRAM), t->op_site);
    struct sheet s = {t, r, 0};
    const char *arith = js_str(run, "arith", NULL);
    sheet_line(&s, ROLE_TEXT, "%s, implementation %s (%s)%s%s, %s", js_str(run, "kind", "?"), js_str(run, "impl", "?"), js_str(run, "why", "?"),
               arith != NULL ? ", products in " : "", arith != NULL ? arith : "",
               js_bool(run, "in_graph", false)    ? "in the graph"
               : js_bool(run, "capturable", true) ? "launched by itself"
                                                  : "cannot be captured");
    const json_t *absorbed = js_at(run, "absorbed");
    for (size_t i = 0; i < json_array_size(absorbed); i++)
        sheet_line(&s, ROLE_TEXT, "absorbs %s", json_string_value(json_array_get(absorbed, i)));
    if (op == NULL) {
        const char *error = t->data.asked[TUI_ASK_PROGRAM].error;
        sheet_line(&s, ROLE_DIM, "%s", error != NULL ? error : "asking the engine for its inputs and outputs");
    }
    sheet_refs(&s, "inputs", json_object_get(op, "in"));
    sheet_refs(&s, "outputs", json_object_get(op, "out"));
    const json_t *weights = js_at(op, "weights");
    if (json_array_size(weights) > 0)
        sheet_line(&s, ROLE_HEAD, "weights");
    for (size_t i = 0; i < json_array_size(weights); i++)
        sheet_line(&s, ROLE_TEXT, "  %s", json_string_value(json_array_get(weights, i)));
    sheet_tensors(&s, op);
    sheet_tap(&s);
    sheet_ranks(&s, run);
    t->overlay_rows = s.row > r.h ? s.row - r.h : 0;
}

/* ---- asking ------------------------------------------------------------------------------------------------------------------------------ */

void tui_op_show(struct tui *t, const char *site)
{
    bool open = t->overlay == TUI_OVERLAY_OP;
    if (open && strcmp(t->op_site, site) == 0)
        return;
    snprintf(t->op_site, sizeof t->op_site, "%s", site);
    t->overlay = TUI_OVERLAY_OP;
    t->overlay_top = open ? t->overlay_top : 0; /* who steps looks at the same part of each op */
    t->tapping = false;
    json_decref(t->data.asked[TUI_ASK_PROBE].reply);
    t->data.asked[TUI_ASK_PROBE].reply = NULL;
    t->data.asked[TUI_ASK_PROBE].next_us = 0;
    t->data.asked[TUI_ASK_PROGRAM].next_us = 0;
    t->next_tick_us = 0;
}

void tui_op_open(struct tui *t)
{
    const json_t *op = tui_selected_op(t);
    if (op != NULL)
        tui_op_show(t, js_str(op, "site", ""));
}

/* Its inputs and outputs. */
static void ask_program(struct tui *t, uint64_t now_us)
{
    struct tui_asked *a = &t->data.asked[TUI_ASK_PROGRAM];
    if (a->id == 0 && a->next_us == 0 && tui_data_ask(&t->data, TUI_ASK_PROGRAM, "program", json_pack("{s:s}", "site", t->op_site), now_us))
        a->next_us = UINT64_MAX;
}

/* What a tap on the op has seen, twice a second while there are taps at all. */
static void ask_tap(struct tui *t, uint64_t now_us)
{
    struct tui_asked *a = &t->data.asked[TUI_ASK_PROBE];
    bool taps = t->tapping || js_int(t->con->info, "state.taps", 0) > 0;
    if (taps && a->id == 0 && now_us >= a->next_us && tui_data_ask(&t->data, TUI_ASK_PROBE, "probe.read", json_pack("{s:s}", "site", t->op_site), now_us))
        a->next_us = now_us + 500000;
}

/* Its inputs and outputs, one after the other, each time that the engine has stopped somewhere else. Of the last row only: a prompt of thousands of rows
 * would be tens of megabytes. */
static void ask_tensors(struct tui *t, uint64_t now_us)
{
    const json_t *stop = t->con->stopped, *op = find_site(tui_data_last(&t->data, TUI_ASK_PROGRAM), t->op_site);
    struct tui_tensors *k = &t->tensors;
    size_t inputs = json_array_size(json_object_get(op, "in")), outputs = json_array_size(json_object_get(op, "out"));
    char at[sizeof k->at];
    snprintf(at, sizeof at, "%.80s %lld %.80s %s", t->op_site, (long long)js_int(stop, "step", 0), js_str(stop, "site", ""), js_str(stop, "when", ""));
    if (strcmp(at, k->at) != 0) {
        snprintf(k->at, sizeof k->at, "%s", at);
        json_decref(k->seen);
        k->seen = json_array();
        k->asked = 0;
        t->dirty = true;
    }
    json_int_t rows = js_int(stop, "rows", 1);
    if (op == NULL || t->data.asked[TUI_ASK_TENSOR].id != 0 || k->asked >= inputs + outputs)
        return;
    bool input = k->asked < inputs;
    json_t *args = json_pack("{s:s, s:s, s:i, s:[I, I]}", "site", t->op_site, "what", input ? "in" : "out", "index",
                             (int)(input ? k->asked : k->asked - inputs), "rows", rows - 1, rows);
    k->asked += tui_data_ask(&t->data, TUI_ASK_TENSOR, "tensor.read", args, now_us);
}

void tui_op_take_tensor(struct tui *t)
{
    const struct tui_asked *a = &t->data.asked[TUI_ASK_TENSOR];
    struct tui_tensors *k = &t->tensors;
    if (json_array_size(k->seen) >= k->asked) /* of a place that was left meanwhile */
        return;
    if (a->error != NULL)
        json_array_append_new(k->seen, json_pack("{s:s}", "error", a->error));
    else
        json_array_append(k->seen, a->reply);
    t->next_tick_us = 0;
}

void tui_op_ask(struct tui *t, uint64_t now_us)
{
    if (t->overlay != TUI_OVERLAY_OP)
        return;
    ask_program(t, now_us);
    ask_tap(t, now_us);
    if (t->con->stopped != NULL)
        ask_tensors(t, now_us);
}

/* ---- breakpoints and taps ------------------------------------------------------------------------------------------------------------------- */

/* The entry whose glob covers the site; one that names it exactly counts more. */
static const json_t *covers(const json_t *list, const char *site)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        const char *glob = js_str(o, "site", "");
        if (strcmp(glob, site) == 0)
            return o;
        if (fnmatch(glob, site, 0) == 0)
            found = o;
    }
    return found;
}

const json_t *tui_op_break(const struct tui *t, const char *site)
{
    return covers(js_at(tui_data_last(&t->data, TUI_ASK_BREAKS), "breaks"), site);
}

const json_t *tui_op_tap(const struct tui *t, const char *site)
{
    return covers(js_at(tui_data_last(&t->data, TUI_ASK_TAPS), "taps"), site);
}
