#include "config.h"

#include "console/tui_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/js.h"

#define VALUES 8 /* of a tensor, to show */

/* How often each is asked for while it is wanted. The ledger of a large model is hundreds of kilobytes. */
static const struct {
    const char *method;
    unsigned every_ms; /* 0: only on request */
} s_asks[TUI_ASKS] = {
    [TUI_ASK_STATS] = {"stats", 500},    [TUI_ASK_ALLREDUCE] = {"allreduce", 500},
    [TUI_ASK_LEDGER] = {"ledger", 1000}, [TUI_ASK_PATCHES] = {"patch.list", 2000},
    [TUI_ASK_PROGRAM] = {"program", 0},  [TUI_ASK_PROBE] = {"probe.read", 0},
    [TUI_ASK_BREAKS] = {"break.list", 1000}, [TUI_ASK_TAPS] = {"probe.list", 1000},
    [TUI_ASK_REQUESTS] = {"requests", 500},
    [TUI_ASK_TENSOR] = {"tensor.read", 0},   [TUI_ASK_ACTION] = {NULL, 0},
};

void tui_data_init(struct tui_data *d, struct con *con)
{
    *d = (struct tui_data){.con = con, .seen_generation = UINT64_MAX, .requests = TUI_REQUESTS_LEAST};
}

void tui_data_fini(struct tui_data *d)
{
    for (int i = 0; i < TUI_ASKS; i++) {
        json_decref(d->asked[i].reply);
        free(d->asked[i].error);
    }
    *d = (struct tui_data){0};
}

void tui_data_reset(struct tui_data *d)
{
    d->tok_per_s.n = d->step_ms.n = 0;
    for (int r = 0; r < RS_MAX_RANKS; r++)
        d->allreduce_us[r].n = 0;
}

static void push(struct tui_series *s, double x)
{
    if (s->n == TUI_SERIES) {
        memmove(s->v, s->v + 1, (TUI_SERIES - 1) * sizeof s->v[0]);
        s->n--;
    }
    s->v[s->n++] = (float)x;
}

/* Mean time of an all-reduce of the last step on rank r. */
static double allreduce_us(const struct rs_snapshot *s, uint32_t r)
{
    return s->allreduces_per_step > 0 ? (s->rank[r].ar_wait_us + s->rank[r].ar_transfer_us) / (double)s->allreduces_per_step : NAN;
}

int tui_data_slowest(const struct rs_snapshot *s)
{
    int most = -1;
    double least = INFINITY;
    for (uint32_t r = 0; r < s->n_ranks && r < RS_MAX_RANKS; r++) {
        double x = s->rank[r].busy_us;
        if (!isfinite(x))
            return -1;
        least = x < least ? x : least;
        if (most < 0 || x > s->rank[most].busy_us)
            most = (int)r;
    }
    return most >= 0 && s->n_ranks > 1 && s->rank[most].busy_us > 1.02 * least ? most : -1;
}

double tui_data_wait_share(const struct rs_rank_snapshot *r)
{
    double all = r->busy_us + r->ar_wait_us + r->ar_transfer_us;
    return all > 0 ? r->ar_wait_us / all : NAN;
}

static void take_sample(struct tui_data *d)
{
    const struct rs_snapshot *s = &d->snap;
    bool idle = s->running == 0;
    push(&d->tok_per_s, idle ? NAN : s->tok_per_s);
    push(&d->step_ms, idle ? NAN : s->step_us / 1e3);
    for (uint32_t r = 0; r < s->n_ranks; r++)
        push(&d->allreduce_us[r], idle ? NAN : allreduce_us(s, r));
}

bool tui_data_ask(struct tui_data *d, enum tui_ask what, const char *method, json_t *args, uint64_t now_us)
{
    struct tui_asked *a = &d->asked[what];
    struct con *con = d->con;
    bool sent = false;
    if (a->id == 0 && con->engine != NULL && !con->lost) {
        char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
        sent = rs_send(con->engine, method, text, &a->id, NULL) == RS_OK;
        free(text);
        a->sent_us = now_us;
        if (!sent)
            a->id = 0;
    }
    json_decref(args);
    return sent;
}

static json_t *ask_args(const struct tui_data *d, enum tui_ask what)
{
    return what == TUI_ASK_REQUESTS ? json_pack("{s:i}", "limit", d->requests) : NULL;
}

bool tui_data_tick(struct tui_data *d, uint64_t now_us, uint64_t *next_us)
{
    struct con *con = d->con;
    uint64_t step = d->snap.step, ranks = d->snap.n_ranks;
    bool changed = false;
    *next_us = now_us + TUI_SAMPLE_MS * 1000;
    if (con->engine != d->engine) { /* started anew: what was asked of the old one stays unanswered */
        d->engine = con->engine;
        for (int i = 0; i < TUI_ASKS; i++)
            d->asked[i].id = 0, d->asked[i].next_us = 0;
    }
    if (con->engine == NULL || con->lost || !rs_snapshot_read(con->engine, &d->snap)) {
        changed = d->have;
        d->have = false;
        return changed;
    }
    if (d->snap.n_ranks > RS_MAX_RANKS)
        d->snap.n_ranks = RS_MAX_RANKS;
    changed = !d->have || d->snap.step != step;
    d->have = true;
    if (d->snap.n_ranks != ranks || d->snap.step < step)
        tui_data_reset(d);
    if (now_us >= d->next_sample_us) {
        take_sample(d);
        d->next_sample_us = now_us + TUI_SAMPLE_MS * 1000;
        changed = true;
    }
    if (d->snap.generation != d->seen_generation) {
        d->seen_generation = d->snap.generation;
        for (int i = 0; i < TUI_ASKS; i++)
            d->asked[i].next_us = 0;
    }
    for (int i = 0; i < TUI_ASKS; i++) {
        struct tui_asked *a = &d->asked[i];
        bool first = i == TUI_ASK_PATCHES && a->next_us == 0; /* completion and the status line want it too */
        if (s_asks[i].every_ms == 0 || !(d->wanted[i] || first))
            continue;
        if (a->id == 0 && now_us >= a->next_us && tui_data_ask(d, (enum tui_ask)i, s_asks[i].method, ask_args(d, (enum tui_ask)i), now_us))
            a->next_us = now_us + s_asks[i].every_ms * 1000;
        else if (a->id == 0 && a->next_us > now_us && a->next_us < *next_us)
            *next_us = a->next_us;
    }
    if (d->next_sample_us < *next_us)
        *next_us = d->next_sample_us;
    return changed;
}

/* The first values of a tensor that came along. */
static json_t *with_values(json_t *reply, const struct rs_event *ev)
{
    json_t *o = json_copy(reply), *values = json_array();
    for (size_t i = 0; i < VALUES && (i + 1) * sizeof(float) <= ev->blob_len; i++) {
        float x;
        memcpy(&x, (const char *)ev->blob + i * sizeof x, sizeof x);
        json_array_append_new(values, isfinite(x) ? json_real((double)x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"));
    }
    json_object_set_new(o, "values", values);
    return o;
}

enum tui_ask tui_data_reply(struct tui_data *d, const struct rs_event *ev, const json_t *json)
{
    for (int i = 0; i < TUI_ASKS; i++) {
        struct tui_asked *a = &d->asked[i];
        if (a->id == 0 || a->id != ev->id)
            continue;
        a->id = 0;
        free(a->error);
        a->error = NULL;
        if (ev->status == RS_OK) {
            json_decref(a->reply);
            a->reply = ev->blob_len > 0 ? with_values((json_t *)json, ev) : json_incref((json_t *)json);
        } else {
            a->error = xstrdup(js_str(json, "error.message", rs_result_name(ev->status)));
        }
        return (enum tui_ask)i;
    }
    return TUI_ASKS;
}

bool tui_data_waiting(const struct tui_data *d)
{
    for (int i = 0; i < TUI_ASKS; i++)
        if (d->asked[i].id != 0)
            return !d->con->lost;
    return false;
}

const json_t *tui_data_last(const struct tui_data *d, enum tui_ask what)
{
    return d->asked[what].reply;
}
