/* tui_panels.c: the panels of figures: ranks, all-reduces, steps. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"
#include "console/tui.h"
#include "console/units.h"

static double known(uint64_t x)
{
    return x == UINT64_MAX ? NAN : (double)x;
}

static void no_model(struct tui *t, struct grid_rect r)
{
    grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM, t->con->lost ? "the engine is gone; /restart" : "no model is open");
}

/* ---- ranks --------------------------------------------------------------------------------------------------------------------------- */

static void cell_bytes(struct tui *t, int y, int x, int w, double bytes)
{
    char text[32];
    units_bytes(text, bytes);
    if (!isfinite(bytes))
        snprintf(text, sizeof text, "N/A");
    int n = (int)strlen(text);
    grid_str(&t->grid, y, x + w - n, n, isfinite(bytes) ? ROLE_TEXT : ROLE_ABSENT, text);
}

/* Columns of the ranks panel in the order of their worth; each is there if the width has room for all before it. */
enum rank_column { COL_RANK, COL_P50, COL_P99, COL_WAIT, COL_MEM, COL_SPARK, COL_UTIL, COL_TEMP, COL_POWER, COL_BAR, RANK_COLUMNS };

static const struct {
    const char *head;
    int width;
} s_rank_columns[RANK_COLUMNS] = {
    [COL_RANK] = {"rank", 5},         [COL_MEM] = {"memory", 9},  [COL_UTIL] = {"util", 6},
    [COL_TEMP] = {"temp", 6},         [COL_POWER] = {"power", 7}, [COL_P50] = {"p50 us", 8},
    [COL_P99] = {"p99 us", 8},        [COL_WAIT] = {"wait", 7},   [COL_BAR] = {"busy | wait | transfer", 28},
    [COL_SPARK] = {"all-reduce", 14},
};

/* How the columns stand from left to right. */
static const enum rank_column s_rank_order[RANK_COLUMNS] = {COL_RANK, COL_MEM, COL_UTIL, COL_TEMP, COL_POWER,
                                                            COL_P50,  COL_P99, COL_WAIT, COL_BAR,  COL_SPARK};

static int rank_widths(int w, int width[RANK_COLUMNS])
{
    int used = 8; /* for the mark of the slowest */
    for (int i = 0; i < RANK_COLUMNS; i++) {
        width[i] = used + s_rank_columns[i].width <= w ? s_rank_columns[i].width : 0;
        used += width[i];
    }
    if (width[COL_SPARK] > 0 && w > used) /* the rest is history */
        width[COL_SPARK] += w - used;
    return used;
}

static void rank_bar(struct tui *t, const struct rs_rank_snapshot *r, int y, int x, int w)
{
    double all = r->busy_us + r->ar_wait_us + r->ar_transfer_us;
    if (!(all > 0)) {
        grid_str(&t->grid, y, x, w, ROLE_ABSENT, "N/A");
        return;
    }
    /* Three kinds of fill, so that it reads without colour. */
    uint32_t busy = t->ascii ? '=' : 0x2588, wait = t->ascii ? '.' : 0x2591, transfer = t->ascii ? '>' : 0x2592;
    int b = (int)(r->busy_us / all * w + 0.5), wt = (int)((r->busy_us + r->ar_wait_us) / all * w + 0.5);
    for (int i = 0; i < w; i++)
        grid_char(&t->grid, y, x + i, i < b ? ROLE_BUSY : i < wt ? ROLE_WAIT : ROLE_TRANSFER, i < b ? busy : i < wt ? wait : transfer);
}

/* A figure of the snapshot, or where the engine leaves it out there, of its last reply about all-reduces. */
static double or_asked(const struct tui *t, float x, uint32_t rank, const char *key)
{
    const json_t *ranks = js_at(tui_data_last(&t->data, TUI_ASK_ALLREDUCE), "ranks");
    return isfinite(x) ? (double)x : js_num(json_array_get(ranks, rank), key, NAN);
}

static void rank_cell(struct tui *t, enum rank_column c, uint32_t i, int y, int x, int w, double lo, double hi)
{
    const struct rs_rank_snapshot *r = &t->data.snap.rank[i];
    const struct tui_series *s = &t->data.allreduce_us[i];
    double mem = known(r->mem_used);
    if (!isfinite(mem))
        mem = known(r->bytes_weights) + known(r->bytes_cache) + known(r->bytes_buffers);
    switch (c) {
    case COL_RANK: grid_printf(&t->grid, y, x, w, ROLE_TEXT, "%4u", i); break;
    case COL_MEM: cell_bytes(t, y, x, w, mem); break;
    case COL_UTIL: tui_draw_number(t, y, x, w, ROLE_TEXT, (double)r->gpu_util, 0, "%"); break;
    case COL_TEMP: tui_draw_number(t, y, x, w, ROLE_TEXT, (double)r->gpu_temp_c, 0, "C"); break;
    case COL_POWER: tui_draw_number(t, y, x, w, ROLE_TEXT, (double)r->gpu_power_w, 0, "W"); break;
    case COL_P50: tui_draw_number(t, y, x, w, ROLE_TEXT, or_asked(t, r->ar_p50_us, i, "p50_us"), 1, ""); break;
    case COL_P99: tui_draw_number(t, y, x, w, ROLE_TEXT, or_asked(t, r->ar_p99_us, i, "p99_us"), 1, ""); break;
    case COL_WAIT: tui_draw_number(t, y, x, w, ROLE_TEXT, 100 * tui_data_wait_share(r), 1, "%"); break;
    case COL_BAR: rank_bar(t, r, y, x + 2, w - 2); break;
    case COL_SPARK: tui_plot_spark(&t->grid, y, x + 2, w - 2, ROLE_GRAPH, s->v, s->n, lo, hi, t->plots); break;
    case RANK_COLUMNS: break;
    }
}

static void ranks_head(struct tui *t, struct grid_rect r, const int width[RANK_COLUMNS], double lo, double hi)
{
    int x = r.x;
    for (int i = 0; i < RANK_COLUMNS; i++) {
        enum rank_column c = s_rank_order[i];
        int w = width[c];
        char head[64];
        if (w == 0)
            continue;
        snprintf(head, sizeof head, "%s", s_rank_columns[c].head);
        if (c == COL_SPARK && isfinite(hi) && w > 38)
            snprintf(head, sizeof head, "all-reduce mean, %.1f to %.1f us", lo, hi);
        int n = (int)strlen(head);
        bool left = c == COL_SPARK || c == COL_BAR;
        grid_str(&t->grid, r.y, left || n > w ? x + 2 : x + w - n, left ? w - 2 : n, ROLE_HEAD, head);
        x += w;
    }
}

void tui_draw_ranks(struct tui *t, struct grid_rect r)
{
    const struct rs_snapshot *s = &t->data.snap;
    struct tui_list *l = &t->lists[TUI_RANKS];
    int width[RANK_COLUMNS], slow = tui_data_slowest(s);
    double lo = INFINITY, hi = -INFINITY;
    if (!t->data.have) {
        no_model(t, r);
        return;
    }
    rank_widths(r.w, width);
    for (uint32_t i = 0; i < s->n_ranks; i++) {
        double a, b;
        if (tui_plot_range(t->data.allreduce_us[i].v, t->data.allreduce_us[i].n, &a, &b)) {
            lo = a < lo ? a : lo;
            hi = b > hi ? b : hi;
        }
    }
    ranks_head(t, r, width, lo, hi);
    tui_list_fit(l, (int)s->n_ranks, r.h - 1);
    for (int row = 0; row < r.h - 1 && l->top + row < (int)s->n_ranks; row++) {
        int i = l->top + row, y = r.y + 1 + row, x = r.x;
        for (int k = 0; k < RANK_COLUMNS; k++) {
            enum rank_column c = s_rank_order[k];
            if (width[c] > 0)
                rank_cell(t, c, (uint32_t)i, y, x, width[c], lo, hi);
            x += width[c];
        }
        if (i == slow)
            grid_str(&t->grid, y, x + 1, 7, ROLE_WARN, "slowest");
        if (t->focus == TUI_RANKS && i == l->selected)
            grid_flag(&t->grid, y, r.x, r.w, GRID_SELECTED);
    }
}

/* ---- all-reduces --------------------------------------------------------------------------------------------------------------------- */

/* Columns by worth, as above. What a reply leaves out is N/A. */
static const struct {
    const char *head, *key;
    int width, digits;
    const char *unit;
} s_ar_columns[] = {
    {"p50 us", "p50_us", 9, 1, ""},
    {"p99 us", "p99_us", 9, 1, ""},
    {"wait us", "wait_mean_us", 9, 1, ""},
    {"transf us", "transfer_mean_us", 11, 1, ""},
    {"busbw GB/s", "busbw_gbs", 12, 2, ""},
    {"skew", "skew", 8, 1, "%"},
    {"algbw GB/s", "algbw_gbs", 12, 2, ""},
    {"count", "count", 9, 0, ""},
    {"wait p99", "wait_p99_us", 10, 1, ""},
    {"mean us", "mean_us", 9, 1, ""},
};

#define AR_COLUMNS (int)(sizeof s_ar_columns / sizeof s_ar_columns[0])

static const char *current_impl(const struct tui *t, const char *slot)
{
    const json_t *slots = js_at(tui_data_last(&t->data, TUI_ASK_PATCHES), "slots");
    for (size_t i = 0; i < json_array_size(slots); i++)
        if (strcmp(js_str(json_array_get(slots, i), "slot", ""), slot) == 0)
            return js_str(json_array_get(slots, i), "current", NULL);
    return NULL;
}

static void ar_summary(struct tui *t, struct grid_rect r)
{
    const struct rs_snapshot *s = &t->data.snap;
    double row = js_num(tui_data_last(&t->data, TUI_ASK_ALLREDUCE), "bytes_per_row", NAN);
    double share = 0, all = 0;
    char bytes[32];
    struct buf b = {0};
    for (uint32_t i = 0; i < s->n_ranks; i++) {
        share += s->rank[i].ar_wait_us + s->rank[i].ar_transfer_us;
        all += s->rank[i].busy_us + s->rank[i].ar_wait_us + s->rank[i].ar_transfer_us;
    }
    buf_printf(&b, "%u a step", s->allreduces_per_step);
    if (all > 0)
        buf_printf(&b, ", %.1f %% of it", 100 * share / all);
    if (s->simulated) /* before what a narrow panel cuts off */
        buf_str(&b, ", simulated");
    const char *impl = current_impl(t, "allreduce"), *dtype = current_impl(t, "allreduce.dtype");
    if (impl != NULL)
        buf_printf(&b, ", %s", impl);
    if (dtype != NULL)
        buf_printf(&b, " %s", dtype);
    if (isfinite(row))
        buf_printf(&b, ", %s a row", units_bytes(bytes, row));
    grid_str(&t->grid, r.y, r.x, r.w, ROLE_TEXT, b.text);
    buf_fini(&b);
}

/* The range of the engine's buckets that any rank has something in, so that the histogram spends its columns there. */
static void used_buckets(const json_t *ranks, int n, int *from, int *to)
{
    *from = n;
    *to = 0;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        const json_t *h = json_object_get(json_array_get(ranks, r), "histogram");
        for (int i = 0; i < n; i++)
            if (json_integer_value(json_array_get(h, (size_t)i)) > 0) {
                *from = i < *from ? i : *from;
                *to = i + 1 > *to ? i + 1 : *to;
            }
    }
}

/* A time in as few characters as make sense: "0.1us", "37ms". */
static void short_us(char buf[32], double us)
{
    bool ms = us >= 999.5;
    snprintf(buf, 32, "%.*g%s", us >= 99.5 && !ms ? 3 : us < 1 ? 1 : 2, ms ? us / 1e3 : us, ms ? "ms" : "us");
}

/* The ends of the axis, of infinity "more"; never cut in the middle of a number. */
static void ar_axis(struct tui *t, struct grid_rect r, double low, double high)
{
    char head[96], begin[32], end[32];
    units_us(begin, low);
    if (isfinite(high))
        units_us(end, high);
    else
        snprintf(end, sizeof end, "more");
    snprintf(head, sizeof head, "%s..%s, log", begin, end);
    if ((int)strlen(head) > r.w)
        snprintf(head, sizeof head, "%s..%s", begin, end);
    if ((int)strlen(head) > r.w) {
        short_us(begin, low);
        if (isfinite(high))
            short_us(end, high);
        snprintf(head, sizeof head, "%s..%s", begin, end);
    }
    if ((int)strlen(head) <= r.w)
        grid_str(&t->grid, r.y, r.x, r.w, ROLE_HEAD, head);
}

/* All-reduces of the recent window by their time, a row (or several) a rank. Buckets are eighths of a power of two: the axis is logarithmic. */
static void ar_histograms(struct tui *t, struct grid_rect r, int row_h, int shown)
{
    const json_t *reply = tui_data_last(&t->data, TUI_ASK_ALLREDUCE), *ranks = js_at(reply, "ranks"), *bounds = js_at(reply, "bounds_us");
    int n = (int)json_array_size(bounds), from, to;
    used_buckets(ranks, n, &from, &to);
    if (from >= to) {
        grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM, reply != NULL ? "no step yet" : "");
        return;
    }
    /* Narrow panels put several buckets into one column, wide ones give each bucket several. */
    int per = (to - from + r.w - 1) / r.w, each = per > 1 ? 1 : r.w / (to - from);
    double low = from > 0 ? json_number_value(json_array_get(bounds, (size_t)from - 1)) : 0;
    const json_t *high = json_array_get(bounds, (size_t)to - 1);
    ar_axis(t, r, low, json_is_number(high) ? json_number_value(high) : INFINITY);
    for (size_t i = 0; i < json_array_size(ranks) && (int)i < shown; i++) {
        const json_t *h = json_object_get(json_array_get(ranks, i), "histogram");
        struct grid_rect one = {r.y + 1 + (int)i * row_h, r.x, row_h, r.w};
        int columns = 0;
        uint32_t wide[512];
        for (int k = from; k < to; k += per) {
            uint32_t sum = 0;
            for (int b = k; b < k + per && b < to; b++)
                sum += (uint32_t)json_integer_value(json_array_get(h, (size_t)b));
            for (int c = 0; c < each && columns < 512; c++)
                wide[columns++] = sum;
        }
        tui_plot_histogram(&t->grid, one, ROLE_GRAPH, wide, columns, t->plots);
    }
}

/* What a column says of a rank: a member of the reply, or how much of an all-reduce is waiting for the slowest rank to arrive. */
static double ar_value(const json_t *rank, const char *key)
{
    return strcmp(key, "skew") == 0 ? 100 * js_num(rank, "wait_mean_us", NAN) / js_num(rank, "mean_us", NAN) : js_num(rank, key, NAN);
}

void tui_draw_allreduce(struct tui *t, struct grid_rect r)
{
    const json_t *ranks = js_at(tui_data_last(&t->data, TUI_ASK_ALLREDUCE), "ranks");
    int n = (int)t->data.snap.n_ranks, x = r.x + 5, columns = 0;
    if (!t->data.have) {
        no_model(t, r);
        return;
    }
    ar_summary(t, r);
    int hist = r.w >= 100 ? r.w / 3 : r.w / 4, left = r.w - 5 - hist - 1;
    while (columns < AR_COLUMNS && left >= s_ar_columns[columns].width)
        left -= s_ar_columns[columns++].width;
    hist += left;
    int row_h = n > 0 && (r.h - 2) / n > 1 ? (r.h - 2) / n : 1;
    row_h = row_h > 3 ? 3 : row_h;
    const int shown = 2 + n * row_h <= r.h ? n : r.h > 3 ? r.h - 3 : 0; /* one line says that there are more */
    grid_str(&t->grid, r.y + 1, r.x, 4, ROLE_HEAD, "rank");
    for (int c = 0; c < columns; c++) {
        int w = s_ar_columns[c].width;
        grid_str(&t->grid, r.y + 1, x + w - (int)strlen(s_ar_columns[c].head), w, ROLE_HEAD, s_ar_columns[c].head);
        for (int i = 0; i < shown; i++) {
            double v = ar_value(json_array_get(ranks, (size_t)i), s_ar_columns[c].key);
            tui_draw_number(t, r.y + 2 + i * row_h + row_h - 1, x, w, ROLE_TEXT, v, s_ar_columns[c].digits, s_ar_columns[c].unit);
        }
        x += w;
    }
    for (int i = 0; i < shown; i++)
        grid_printf(&t->grid, r.y + 2 + i * row_h + row_h - 1, r.x, 4, ROLE_TEXT, "%4d", i);
    ar_histograms(t, (struct grid_rect){r.y + 1, x + 1, r.h - 1, hist}, row_h, shown);
    if (shown < n)
        grid_printf(&t->grid, r.y + r.h - 1, r.x, r.w, ROLE_DIM, "and %d more rank%s: zoom, or /allreduce", n - shown, n - shown == 1 ? "" : "s");
}

/* ---- steps --------------------------------------------------------------------------------------------------------------------------- */

struct kind {
    const char *name;
    double us[2];
};

static int by_us(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    double p = fmax(x->us[0], x->us[1]), q = fmax(y->us[0], y->us[1]);
    return p > q ? -1 : p < q ? 1 : strcmp(x->name, y->name);
}

static double kind_us(const json_t *mode, const char *name)
{
    double us = js_num(json_object_get(js_at(mode, "by_kind"), name), "us", NAN);
    return isfinite(us) ? us : 0;
}

/* Kinds of op of both modes, the dearest first; caller frees. */
static struct kind *kinds_of(const json_t *modes[2], size_t *n)
{
    size_t most = json_object_size(js_at(modes[0], "by_kind")) + json_object_size(js_at(modes[1], "by_kind"));
    struct kind *k = xcalloc(most, sizeof *k);
    *n = 0;
    for (int m = 0; m < 2; m++) {
        const char *name;
        json_t *v;
        json_object_foreach(js_at(modes[m], "by_kind"), name, v)
        {
            (void)v;
            bool there = false;
            for (size_t i = 0; i < *n; i++)
                there = there || strcmp(k[i].name, name) == 0;
            if (!there)
                k[(*n)++] = (struct kind){name, {kind_us(modes[0], name), kind_us(modes[1], name)}};
        }
    }
    qsort(k, *n, sizeof *k, by_us);
    return k;
}

static int step_line(struct tui *t, struct grid_rect r, int y, const char *what, const json_t *s)
{
    if (js_num(s, "steps", 0) < 1 || y >= r.h)
        return y;
    char mean[32], p50[32], p99[32];
    units_us(p50, js_num(s, "p50_us", NAN));
    units_us(p99, js_num(s, "p99_us", NAN));
    int w = grid_printf(&t->grid, r.y + y, r.x, r.w, ROLE_TEXT, "%-12s %9s %9s", what, p50, p99);
    if (r.w >= 64)
        grid_printf(&t->grid, r.y + y, r.x + w, r.w - w, ROLE_TEXT, " %9s %8lld steps", units_us(mean, js_num(s, "mean_us", NAN)),
                    (long long)js_int(s, "steps", 0));
    return y + 1;
}

static int step_kinds(struct tui *t, struct grid_rect r, int y, const json_t *modes[2], int rows)
{
    size_t n;
    struct kind *k = kinds_of(modes, &n);
    bool both = js_num(modes[0], "steps", 0) >= 1 && js_num(modes[1], "steps", 0) >= 1;
    int m = js_num(modes[1], "steps", 0) >= 1 ? 1 : 0, number = both ? 22 : 11, bar = r.w - 15 - number - 1;
    double most = n > 0 ? fmax(k[0].us[0], k[0].us[1]) : 0;
    if (n > 0 && y < r.h) {
        grid_str(&t->grid, r.y + y, r.x, 14, ROLE_HEAD, "kind of op");
        grid_str(&t->grid, r.y + y, r.x + 15, number, ROLE_HEAD, both ? "      eager      graph" : m == 1 ? "      graph" : "      eager");
        if (bar >= 31) /* why they do not add up to the time of a step */
            grid_str(&t->grid, r.y + y, r.x + 15 + number + 1, bar, ROLE_DIM, t->data.snap.simulated ? "slowest rank, virtual, no waits" : "slowest rank, no waits");
        y++;
    }
    size_t shown = n;
    if ((int)n > rows) /* the last line says how many are out of sight */
        shown = rows > 1 ? (size_t)rows - 1 : 0;
    for (size_t i = 0; i < shown && y < r.h; i++, y++) {
        char us[32];
        grid_str(&t->grid, r.y + y, r.x, 14, ROLE_TEXT, k[i].name);
        for (int c = both ? 0 : m; c < 2 && c <= (both ? 1 : m); c++) {
            units_us(us, k[i].us[c] > 0 ? k[i].us[c] : NAN);
            int at = r.x + 15 + (both ? 11 * c : 0) + 11 - (int)strlen(us);
            grid_str(&t->grid, r.y + y, at, 11, ROLE_TEXT, us);
        }
        if (bar > 4 && most > 0)
            tui_plot_bar(&t->grid, r.y + y, r.x + 15 + number + 1, bar, ROLE_BUSY, fmax(k[i].us[0], k[i].us[1]) / most,
                         t->ascii ? TUI_PLOT_ASCII : t->plots);
    }
    if (shown < n && y < r.h)
        grid_printf(&t->grid, r.y + y++, r.x, r.w, ROLE_DIM, "and %zu more: zoom, or /stats", n - shown);
    free(k);
    return y;
}

/* Time by layer as a row of columns, the layers from left to right. */
static void step_layers(struct tui *t, struct grid_rect r, int y, const json_t *mode)
{
    const json_t *layers = js_at(mode, "by_layer");
    float v[TUI_SERIES];
    int n = (int)json_array_size(layers);
    double lo, hi;
    n = n > TUI_SERIES ? TUI_SERIES : n;
    for (int i = 0; i < n; i++)
        v[i] = (float)json_number_value(json_array_get(layers, (size_t)i));
    if (n == 0 || !tui_plot_range(v, n, &lo, &hi) || y + 1 >= r.h)
        return;
    char a[32], b[32];
    grid_printf(&t->grid, r.y + y, r.x, r.w, ROLE_HEAD, "by layer, 0 to %d: %s to %s", n - 1, units_us(a, lo), units_us(b, hi));
    int w = n < r.w ? n : r.w, each = n < r.w ? (r.w / n > 6 ? 6 : r.w / n) : 1;
    float wide[TUI_SERIES];
    int m = 0;
    for (int i = 0; i < w; i++)
        for (int c = 0; c < each && m < TUI_SERIES; c++)
            wide[m++] = v[i];
    tui_plot_spark(&t->grid, r.y + y + 1, r.x, m < r.w ? m : r.w, ROLE_GRAPH, wide, m, 0, hi, t->ascii ? TUI_PLOT_ASCII : TUI_PLOT_BLOCK);
}

static double most(const struct tui_series *s)
{
    double x = 0;
    for (int i = 0; i < s->n; i++)
        x = s->v[i] > x ? (double)s->v[i] : x;
    return x;
}

void tui_draw_step(struct tui *t, struct grid_rect r)
{
    const json_t *stats = tui_data_last(&t->data, TUI_ASK_STATS), *decode = js_at(stats, "decode");
    const json_t *modes[2] = {js_at(decode, "eager"), js_at(decode, "graph")};
    if (!t->data.have) {
        no_model(t, r);
        return;
    }
    int y = 1;
    grid_str(&t->grid, r.y, r.x, r.w, ROLE_HEAD,
             r.w >= 64 ? "time a step         p50       p99      mean" : "time a step         p50       p99");
    y = step_line(t, r, y, "decode graph", modes[1]);
    y = step_line(t, r, y, "decode eager", modes[0]);
    y = step_line(t, r, y, "prompt graph", js_at(stats, "prompt.graph"));
    if (r.h >= 12)
        y = step_line(t, r, y, "prompt eager", js_at(stats, "prompt.eager"));
    if (y == 1) {
        grid_fill(&t->grid, (struct grid_rect){r.y, r.x, 1, r.w}, ROLE_TEXT);
        grid_str(&t->grid, r.y, r.x, r.w, ROLE_DIM, "no step has run yet");
        return;
    }
    double lo, hi;
    if (r.h >= 10 && tui_plot_range(t->data.tok_per_s.v, t->data.tok_per_s.n, &lo, &hi)) {
        int w = grid_printf(&t->grid, r.y + y, r.x, r.w, ROLE_HEAD, "tokens/s up to %.0f ", most(&t->data.tok_per_s));
        tui_plot_spark(&t->grid, r.y + y, r.x + w, r.w - w, ROLE_GRAPH, t->data.tok_per_s.v, t->data.tok_per_s.n, lo, hi, t->plots);
        y++;
    }
    const json_t *last = js_num(modes[1], "steps", 0) >= 1 ? modes[1] : modes[0];
    bool layers = r.h - y >= 7 && json_array_size(js_at(last, "by_layer")) > 0;
    y = step_kinds(t, r, y, modes, layers ? r.h - y - 3 : r.h - y - 1);
    if (layers)
        step_layers(t, r, y, last);
}
