/* tui_snapshot.c: the panels in a file, as text or as JSON. Works in panels, in a plain console and without either. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/tui.h"

#define ROWS 50
#define COLS 160 /* of a snapshot where there is no screen */

static enum rs_result write_file(const char *path, const char *text, size_t len, struct rs_error *err)
{
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return fail_set(err, RS_EIO, "%s: %s", path, strerror(errno));
    bool good = fwrite(text, 1, len, f) == len;
    if (fclose(f) != 0 || !good)
        return fail_set(err, RS_EIO, "%s: %s", path, strerror(errno));
    return RS_OK;
}

/* null where there is no such figure */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *integer(uint64_t x)
{
    return x == UINT64_MAX ? json_null() : json_integer((json_int_t)x);
}

static json_t *rank_json(const struct rs_rank_snapshot *r, unsigned i)
{
    json_t *o = json_object();
    json_object_set_new(o, "rank", json_integer((json_int_t)i));
    json_object_set_new(o, "bytes_weights", integer(r->bytes_weights));
    json_object_set_new(o, "bytes_cache", integer(r->bytes_cache));
    json_object_set_new(o, "bytes_buffers", integer(r->bytes_buffers));
    json_object_set_new(o, "mem_used", integer(r->mem_used));
    json_object_set_new(o, "mem_total", integer(r->mem_total));
    json_object_set_new(o, "busy_us", number((double)r->busy_us));
    json_object_set_new(o, "wait_us", number((double)r->ar_wait_us));
    json_object_set_new(o, "transfer_us", number((double)r->ar_transfer_us));
    json_object_set_new(o, "wait_share", number(tui_data_wait_share(r)));
    json_object_set_new(o, "allreduce_p50_us", number((double)r->ar_p50_us));
    json_object_set_new(o, "allreduce_p99_us", number((double)r->ar_p99_us));
    json_object_set_new(o, "allreduces", integer(r->ar_count));
    json_object_set_new(o, "gpu_util", number((double)r->gpu_util));
    json_object_set_new(o, "gpu_temp_c", number((double)r->gpu_temp_c));
    json_object_set_new(o, "gpu_power_w", number((double)r->gpu_power_w));
    return o;
}

static json_t *figures(const struct rs_snapshot *s)
{
    json_t *o = json_object(), *ranks = json_array();
    int slow = tui_data_slowest(s);
    json_object_set_new(o, "step", integer(s->step));
    json_object_set_new(o, "mode", json_string(s->mode == 1 ? "graph" : "eager"));
    json_object_set_new(o, "simulated", json_boolean(s->simulated != 0));
    json_object_set_new(o, "generation", integer(s->generation));
    json_object_set_new(o, "step_p50_us", number((double)s->step_p50_us));
    json_object_set_new(o, "step_p99_us", number((double)s->step_p99_us));
    json_object_set_new(o, "tok_per_s", number((double)s->tok_per_s));
    json_object_set_new(o, "tokens", integer(s->tokens_total));
    json_object_set_new(o, "allreduces_per_step", json_integer((json_int_t)s->allreduces_per_step));
    json_object_set_new(o, "slowest_rank", slow >= 0 ? json_integer(slow) : json_null());
    for (uint32_t i = 0; i < s->n_ranks && i < RS_MAX_RANKS; i++)
        json_array_append_new(ranks, rank_json(&s->rank[i], i));
    json_object_set_new(o, "ranks", ranks);
    return o;
}

static enum rs_result snapshot_json(struct con *con, const char *path, struct rs_error *err)
{
    static const char *const methods[] = {"stats", "allreduce", "patch.list"};
    struct rs_snapshot s;
    json_t *root = json_object();
    json_object_set_new(root, "rankscope_snapshot", json_integer(1));
    json_object_set_new(root, "model", js_or_null(con->info, "model.name"));
    json_object_set_new(root, "state", js_or_null(con->info, "state"));
    json_object_set_new(root, "figures", con->engine != NULL && rs_snapshot_read(con->engine, &s) ? figures(&s) : json_null());
    enum rs_result r = RS_OK;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && r == RS_OK; i++) {
        json_t *reply;
        r = con_request(con, methods[i], NULL, &reply, err);
        if (r == RS_OK)
            json_object_set_new(root, methods[i], reply);
    }
    if (r == RS_OK) {
        char *text = js_dump(root, JSON_INDENT(2));
        struct buf b = {0};
        buf_printf(&b, "%s\n", text);
        r = write_file(path, b.text, b.len, err);
        buf_fini(&b);
        free(text);
    }
    json_decref(root);
    return r;
}

/* Ask for everything that the panels in sight show, and wait for it. */
static void fetch(struct tui *t)
{
    static const struct {
        enum tui_ask what;
        const char *method;
    } asks[] = {{TUI_ASK_STATS, "stats"}, {TUI_ASK_ALLREDUCE, "allreduce"}, {TUI_ASK_LEDGER, "ledger"}, {TUI_ASK_PATCHES, "patch.list"}};
    uint64_t next;
    tui_data_tick(&t->data, tui_now_us(t), &next);
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        json_t *reply;
        if (con_request(t->con, asks[i].method, NULL, &reply, NULL) != RS_OK)
            continue;
        json_decref(t->data.asked[asks[i].what].reply);
        t->data.asked[asks[i].what].reply = reply;
    }
}

static void draw(struct tui *t, int rows, int cols, struct buf *out)
{
    struct grid kept = t->grid;
    struct tui_layout layout = t->layout;
    int y, x;
    t->grid = (struct grid){.ascii = t->ascii};
    grid_resize(&t->grid, rows, cols);
    tui_draw(t, &y, &x);
    grid_save(&t->grid, false, out);
    grid_fini(&t->grid);
    t->grid = kept;
    t->layout = layout;
}

enum rs_result tui_snapshot(struct con *con, const char *path, struct rs_error *err)
{
    size_t len = strlen(path);
    if (len > 5 && strcmp(path + len - 5, ".json") == 0)
        return snapshot_json(con, path, err);
    struct tui *t = con->tui;
    int rows = ROWS, cols = COLS;
    bool own = t == NULL;
    if (own)
        t = tui_new(con, &(struct tui_options){.theme = &tui_themes[0], .read_only = true, .layout = "all"});
    else if (t->screen != NULL)
        t->screen->size(t->screen, &rows, &cols);
    fetch(t);
    struct buf b = {0};
    draw(t, rows, cols, &b);
    if (own)
        tui_free(t);
    enum rs_result r = write_file(path, b.text, b.len, err);
    buf_fini(&b);
    return r;
}
