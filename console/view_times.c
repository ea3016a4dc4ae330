/* view_times.c: what steps, all-reduces and ops took, and the verdict on the output. */
#include "config.h"

#include "console/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/js.h"
#include "console/layers.h"
#include "console/table.h"
#include "console/text.h"
#include "console/units.h"

static void cell_us(struct table *t, const json_t *o, const char *path)
{
    char buf[32];
    table_cell(t, "%s", units_us(buf, js_num(o, path, NAN)));
}

/* ---- steps --------------------------------------------------------------------------------------------------------------------------- */

struct kind {
    const char *name;
    double us, share;
};

static int by_us(const void *a, const void *b)
{
    double x = ((const struct kind *)a)->us, y = ((const struct kind *)b)->us;
    return x > y ? -1 : x < y;
}

/* The kinds of op in one mode, the dearest first. */
static void view_kinds(struct out *o, const char *title, const json_t *by_kind)
{
    size_t n = json_object_size(by_kind), i = 0;
    if (n == 0)
        return;
    struct kind *kinds = xcalloc(n, sizeof *kinds);
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)by_kind, name, v) kinds[i++] = (struct kind){name, js_num(v, "us", 0), js_num(v, "share", NAN)};
    qsort(kinds, n, sizeof *kinds, by_us);
    out_printf(o, OUT_HEADING, "\n%s, by kind of op: of the slowest rank at each, without waiting for it\n", title);
    struct table *t = table_new("kind|>time a step|>share");
    for (i = 0; i < n; i++) {
        char us[32], share[32];
        table_cell(t, "%s", kinds[i].name);
        table_cell(t, "%s", units_us(us, kinds[i].us));
        table_cell(t, "%s", units_percent(share, kinds[i].share));
    }
    table_print(t, o);
    free(kinds);
}

void view_stats(struct out *o, const json_t *stats)
{
    static const char *const parts[] = {"decode", "prompt"}, *const modes[] = {"eager", "graph"};
    struct table *t = table_new("steps|mode|>1number|>mean|>p50|>p99");
    for (size_t i = 0; i < 4; i++) {
        const json_t *s = json_object_get(json_object_get(stats, parts[i / 2]), modes[i % 2]);
        if (js_num(s, "steps", 0) < 1)
            continue;
        table_cell(t, "%s", parts[i / 2]);
        table_cell(t, "%s", modes[i % 2]);
        table_cell(t, "%lld", (long long)js_int(s, "steps", 0));
        cell_us(t, s, "mean_us");
        cell_us(t, s, "p50_us");
        cell_us(t, s, "p99_us");
    }
    bool none = t->n_cells == t->columns;
    table_print(t, o);
    if (none)
        out_str(o, OUT_TEXT, "no step has run yet\n");
    view_spec(o, json_object_get(stats, "spec"));
    for (size_t i = 0; i < 4; i++) {
        const json_t *s = json_object_get(json_object_get(stats, parts[i / 2]), modes[i % 2]);
        char *title = xasprintf("%s steps, %s%s", parts[i / 2], modes[i % 2], js_bool(stats, "simulated", false) ? " (simulated)" : "");
        view_kinds(o, title, json_object_get(s, "by_kind"));
        free(title);
    }
}

void view_spec(struct out *o, const json_t *spec)
{
    char a[32], t[32], d[32];
    if (js_num(spec, "steps", 0) < 1)
        return;
    out_printf(o, OUT_TEXT, "drafts: %s of %lld accepted (by place:", units_percent(a, js_num(spec, "acceptance", NAN)), (long long)js_int(spec, "drafted", 0));
    const json_t *places = json_object_get(spec, "acceptance_by_place");
    for (size_t i = 0; i < json_array_size(places); i++)
        out_printf(o, OUT_TEXT, " %s", units_percent(a, json_number_value(json_array_get(places, i))));
    out_printf(o, OUT_TEXT, "), %.2f tokens a step\n", js_num(spec, "tokens_per_step", NAN));
    out_printf(o, OUT_TEXT, "%s per step of the model, %s drafting for it\n", units_us(t, js_num(spec, "target_ms_per_step", NAN) * 1e3),
               units_us(d, js_num(spec, "draft_ms_per_step", NAN) * 1e3));
    if (js_bool(spec, "alarm", false))
        out_printf(o, OUT_BAD, "acceptance collapsed: %s of late, it was up to %s: something may compute wrongly\n",
                   units_percent(a, js_num(spec, "recent", NAN)), units_percent(t, js_num(spec, "best", NAN)));
}

/* ---- all-reduces --------------------------------------------------------------------------------------------------------------------- */

static void cell_pair(struct table *t, const json_t *o, const char *first, const char *second)
{
    char a[32], b[32];
    table_cell(t, "%s / %s", units_us(a, js_num(o, first, NAN)), units_us(b, js_num(o, second, NAN)));
}

void view_sweep(struct out *o, const json_t *choice)
{
    const json_t *sweep = json_object_get(choice, "sweep"), *from = json_object_get(choice, "two_shot_from_rows");
    static const char *const dtypes[] = {"f32", "bf16"};
    if (json_array_size(sweep) == 0)
        return;
    for (size_t i = 0; i < 2; i++) {
        const json_int_t rows = js_int(from, dtypes[i], 0);
        if (rows > 0)
            out_printf(o, OUT_TEXT, "allreduce=auto, payload %s: two-shot from %lld rows on\n", dtypes[i], (long long)rows);
        else
            out_printf(o, OUT_TEXT, "allreduce=auto, payload %s: always flat\n", dtypes[i]);
    }
    out_printf(o, OUT_TEXT, "measured when the model was opened, in %.0f ms; /patch set allreduce=flat and the like override it:\n", js_num(choice, "took_ms", NAN));
    struct table *t = table_new("payload|>rows|>bytes|>flat|>two-shot");
    for (size_t i = 0; i < json_array_size(sweep); i++) {
        const json_t *s = json_array_get(sweep, i);
        char bytes[32];
        table_cell(t, "%s", js_str(s, "dtype", "n/a"));
        table_cell(t, "%lld", (long long)js_int(s, "rows", 0));
        table_cell(t, "%s", units_bytes(bytes, js_num(s, "bytes", NAN)));
        cell_us(t, s, "flat_us");
        cell_us(t, s, "two_shot_us");
    }
    table_print(t, o);
}

void view_allreduce(struct out *o, const json_t *ar)
{
    const json_t *ranks = json_object_get(ar, "ranks");
    if (json_array_size(ranks) == 0 || js_int(json_array_get(ranks, 0), "count", 0) == 0) {
        out_str(o, OUT_TEXT, "no all-reduce has run yet\n");
        view_sweep(o, json_object_get(ar, "auto"));
        return;
    }
    char n[32], bytes[32];
    out_printf(o, OUT_HEADING, "%s a step, %s a row%s\n", units_num(n, js_num(ar, "per_step", NAN), 0),
               units_bytes(bytes, js_num(ar, "bytes_per_row", NAN)),
               js_bool(ar, "simulated", false) ? "; times are simulated (virtual clock)" : "");
    const bool hosts = json_object_get(json_array_get(ranks, 0), "host") != NULL;
    struct table *t = table_new(hosts ? ">rank|>2number|>time, mean|>5p50 / p99|>6wait, mean / p99|>4transfer, mean|>1algbw|>3busbw|~7host"
                                      : ">rank|>2number|>time, mean|>5p50 / p99|>6wait, mean / p99|>4transfer, mean|>1algbw|>3busbw");
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *r = json_array_get(ranks, i);
        char alg[32], bus[32];
        table_cell(t, "%lld", (long long)js_int(r, "rank", (json_int_t)i));
        table_cell(t, "%lld", (long long)js_int(r, "count", 0));
        cell_us(t, r, "mean_us");
        cell_pair(t, r, "p50_us", "p99_us");
        cell_pair(t, r, "wait_mean_us", "wait_p99_us");
        cell_us(t, r, "transfer_mean_us");
        table_cell(t, "%s GB/s", units_num(alg, js_num(r, "algbw_gbs", NAN), 2));
        table_cell(t, "%s GB/s", units_num(bus, js_num(r, "busbw_gbs", NAN), 2));
        if (hosts)
            table_cell(t, "%s", js_str(r, "host", "n/a"));
    }
    table_print(t, o);
    view_sweep(o, json_object_get(ar, "auto"));
}

/* ---- the ledger ---------------------------------------------------------------------------------------------------------------------- */

/* An op takes as long as its slowest rank. *bytes: what that one read, added; nothing where it is not known. */
static double op_us(const json_t *op, double *bytes)
{
    const json_t *us = json_object_get(op, "us");
    double most = 0;
    size_t slowest = 0;
    for (size_t i = 0; i < json_array_size(us); i++) {
        double x = json_number_value(json_array_get(us, i));
        slowest = x > most ? i : slowest;
        most = x > most ? x : most;
    }
    *bytes += json_number_value(json_array_get(json_object_get(op, "bytes"), slowest));
    return most;
}

/* "20.9 MB" and "2.35 TB/s"; nothing where nothing is known to be read, no rate where that took no time of its own. */
static void cells_read(struct table *t, double bytes, double us)
{
    char text[32], rate[32];
    table_cell(t, "%s", bytes > 0 ? units_bytes(text, bytes) : "");
    if (bytes > 0 && us > 0)
        table_cell(t, "%s/s", units_bytes(rate, bytes / us * 1e6));
    else
        table_cell(t, "%s", "");
}

/* Rows that differ in nothing but the layer are one, with the sum of their times. Returns whether there were any. */
static bool view_ops(struct out *o, const json_t *ops, const char *heading)
{
    struct layers l = {0};
    bool reads = false;
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *op = json_array_get(ops, i);
        double bytes = 0, us = op_us(op, &bytes);
        char *key = xasprintf("%s %s %s %s %s %d %d", js_str(op, "kind", ""), js_str(op, "impl", ""), js_str(op, "ran_as", ""), js_str(op, "arith", ""), js_str(op, "why", ""),
                              js_bool(op, "in_graph", false), js_bool(op, "capturable", true));
        layers_add(&l, op, js_str(op, "site", "?"), key, us)->bytes += bytes;
        reads |= bytes > 0;
    }
    if (l.n == 0)
        return false;
    out_str(o, OUT_HEADING, heading);
    struct table *t = table_new(reads ? "site|~6layers|2kind|~implementation|1products|4why|~3graph|>8time|>5reads|>7rate"
                                  : "site|~5layers|2kind|~implementation|1products|4why|~3graph|>6time");
    for (size_t i = 0; i < l.n; i++) {
        const json_t *op = l.groups[i].first;
        char us[32], *layers = layers_ranges(&l.groups[i]);
        table_cell(t, "%s", l.groups[i].pattern);
        table_cell(t, "%s", layers);
        table_cell(t, "%s", js_str(op, "kind", "n/a"));
        const char *impl = js_str(op, "impl", "n/a"), *ran_as = js_str(op, "ran_as", impl);
        if (strcmp(ran_as, impl) != 0)
            table_cell(t, "%s (%s)", impl, ran_as);
        else
            table_cell(t, "%s", impl);
        table_cell(t, "%s", js_str(op, "arith", "-"));
        table_cell(t, "%s", js_str(op, "why", "n/a"));
        table_cell(t, "%s", js_bool(op, "in_graph", false) ? "in" : js_bool(op, "capturable", true) ? "out" : "out, cannot be captured");
        table_cell(t, "%s", units_us(us, l.groups[i].sum));
        if (reads)
            cells_read(t, l.groups[i].bytes, l.groups[i].sum);
        free(layers);
    }
    table_print(t, o);
    layers_fini(&l);
    return true;
}

void view_ledger(struct out *o, const json_t *ledger)
{
    if (js_int(ledger, "step", 1) == 0) { /* ops without times */
        out_str(o, OUT_TEXT, "no step has run yet\n");
        return;
    }
    char *heading = xasprintf("step %lld, %s; time of the slowest rank%s\n", (long long)js_int(ledger, "step", 0), js_str(ledger, "mode", "n/a"),
                              js_bool(ledger, "simulated", false) ? " (simulated)" : "");
    if (!view_ops(o, json_object_get(ledger, "ops"), heading))
        out_str(o, OUT_TEXT, "no step has run yet\n");
    else if (js_int(ledger, "nextn_steps", 0) > 0)
        view_ops(o, json_object_get(ledger, "nextn"), "\nthe NextN block's last step, which made drafts\n");
    free(heading);
}

/* ---- health -------------------------------------------------------------------------------------------------------------------------- */

void view_health(struct out *o, const json_t *health)
{
    const char *verdict = js_str(health, "verdict", NULL), *key;
    json_t *v;
    if (verdict == NULL) {
        out_str(o, OUT_TEXT, "no verdict yet\n");
    } else {
        char *reason = text_one_line(js_str(health, "reason", ""));
        out_printf(o, strcmp(verdict, "ok") == 0 ? OUT_GOOD : OUT_BAD, "%s%s%s\n", verdict, *reason ? ": " : "", reason);
        free(reason);
    }
    struct table *t = table_new("measure|>value");
    json_object_foreach(json_object_get(health, "health"), key, v)
    {
        char *text = json_is_string(v)   ? xstrdup(json_string_value(v))
                     : json_is_number(v) ? xasprintf("%.4g", json_number_value(v))
                                         : js_dump(v, JSON_COMPACT);
        table_cell(t, "%s", key);
        table_cell(t, "%s", text);
        free(text);
    }
    table_print(t, o);
}
