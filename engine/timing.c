/* See timing.h. */
#include "engine/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/hist.h"

enum { WINDOW = 1024, AR_WINDOW = 4096 };

/* The last values of a quantity; exact percentiles are taken by sorting a copy when somebody asks. */
struct ring {
    float v[WINDOW];
    uint32_t n; /* values ever put */
};

/* All-reduces of one rank in one mode. */
struct rank_times {
    struct hist ar, wait; /* ar: wait + transfer */
    double sum_wait, sum_transfer, sum_bytes;
    uint64_t count;
};

struct mode_times {
    struct ring wall;
    uint64_t steps, rows;
    double total_us;
    double kind_us[OP_KIND_COUNT]; /* on the slowest rank of each op */
    double *layer_us;
};

/* What a step's account needs of an op: the ops themselves fill a cache. */
struct place {
    uint8_t kind;
    uint16_t layer; /* outside the layers: the number of these */
};

struct timing {
    uint32_t n_ranks, n_layers, n_embd, n_ops;
    struct place *place;          /* [n_ops] */
    struct rank_times *rank[2];   /* [graph][n_ranks] */
    struct mode_times mode[2][2]; /* [graph][decode] */
    struct hist step[2];          /* wall time of decode steps, by mode, for the snapshot */
    struct hist scratch;          /* for merging */
    struct rank_step *last_step;  /* [n_ranks] */
    struct timing_ar last;
    double step_us;
    bool graph;                   /* mode of the last step */
    uint64_t bytes_per_row;       /* of one all-reduce */
};

/* The last step of one rank. */
struct rank_step {
    double clock, busy_us, wait_us, transfer_us;
};

enum rs_result timing_open(const struct program *p, struct timing **out, struct rs_error *err)
{
    struct timing *t = calloc(1, sizeof *t);
    bool ok = t != NULL;
    if (ok) {
        t->n_ranks = p->n_ranks;
        t->n_layers = p->hp->n_layers;
        t->n_embd = p->hp->n_embd;
        t->bytes_per_row = (uint64_t)p->hp->n_embd * sizeof(float);
        t->last_step = calloc(t->n_ranks, sizeof *t->last_step);
        t->n_ops = p->n_ops;
        t->place = calloc(p->n_ops, sizeof *t->place);
        ok = t->last_step != NULL && t->place != NULL;
        for (uint32_t i = 0; i < p->n_ops && ok; i++) {
            const int layer = p->ops[i].layer;
            t->place[i] = (struct place){(uint8_t)p->ops[i].kind, (uint16_t)(layer >= 0 && (uint32_t)layer < t->n_layers ? (uint32_t)layer : t->n_layers)};
        }
        for (int g = 0; g < 2 && ok; g++)
            ok = (t->rank[g] = calloc(t->n_ranks, sizeof **t->rank)) != NULL;
        for (int i = 0; i < 4 && ok; i++)
            ok = (t->mode[i / 2][i % 2].layer_us = calloc(t->n_layers + 1, sizeof(double))) != NULL;
    }
    if (!ok) {
        timing_close(t);
        return error_set(err, RS_ENOMEM, "out of memory for timings");
    }
    for (int g = 0; g < 2; g++) {
        t->step[g].window = WINDOW;
        for (uint32_t r = 0; r < t->n_ranks; r++)
            t->rank[g][r].ar.window = t->rank[g][r].wait.window = AR_WINDOW;
    }
    *out = t;
    return RS_OK;
}

void timing_close(struct timing *t)
{
    if (t == NULL)
        return;
    for (int i = 0; i < 4; i++)
        free(t->mode[i / 2][i % 2].layer_us);
    for (int g = 0; g < 2; g++)
        free(t->rank[g]);
    free(t->last_step);
    free(t->place);
    free(t);
}

void timing_reset(struct timing *t)
{
    for (int i = 0; i < 4; i++) {
        struct mode_times *m = &t->mode[i / 2][i % 2];
        double *layers = m->layer_us;
        memset(layers, 0, (t->n_layers + 1) * sizeof *layers);
        memset(m, 0, sizeof *m);
        m->layer_us = layers;
    }
    for (int g = 0; g < 2; g++) {
        hist_reset(&t->step[g]);
        for (uint32_t r = 0; r < t->n_ranks; r++) {
            struct rank_times *k = &t->rank[g][r];
            hist_reset(&k->ar);
            hist_reset(&k->wait);
            k->sum_wait = k->sum_transfer = k->sum_bytes = 0;
            k->count = 0;
        }
    }
}

/* Of the time that a rank spent in an all-reduce, the part before it arrived: what the patch delay makes it late by, and what the operating
 * system adds to that, which is all that it took longer than the slowest of the others. */
static double lateness(const struct choice *c, uint32_t rank, const float *us, uint32_t n)
{
    double mine = (double)us[rank], slowest = 0, late;
    if (c == NULL || c->delay_rank < 0 || (uint32_t)c->delay_rank != rank)
        return 0;
    for (uint32_t r = 0; r < n; r++)
        slowest = r != rank && (double)us[r] > slowest ? (double)us[r] : slowest;
    late = mine - slowest > (double)c->delay_us ? mine - slowest : (double)c->delay_us;
    return late < mine ? late : mine;
}

static double count_rank(struct timing *t, const struct timing_step *s, uint32_t rank, double wait, double transfer, uint32_t bytes)
{
    struct rank_step *k = &t->last_step[rank];
    struct rank_times *m = &t->rank[s->graph][rank];
    hist_add(&m->wait, wait);
    hist_add(&m->ar, wait + transfer);
    m->sum_wait += wait;
    m->sum_transfer += transfer;
    m->sum_bytes += (double)bytes * (double)t->n_embd * (double)s->rows;
    m->count++;
    k->wait_us += wait;
    k->transfer_us += transfer;
    return wait + transfer;
}

/* The same by the devices' clocks. Returns 0 if the collective did not run (a single rank). */
static double measured(struct timing *t, const struct timing_step *s, const struct backend_reduce *r, uint32_t bytes)
{
    double last = 0, sum = 0;
    for (uint32_t i = 0; i < t->n_ranks; i++) {
        if (r[i].ready <= 0)
            return 0;
        last = i == 0 || r[i].arrive > last ? r[i].arrive : last;
    }
    for (uint32_t i = 0; i < t->n_ranks; i++) {
        double all = r[i].ready - r[i].arrive, wait = last - r[i].arrive;
        wait = wait < all ? wait : all; /* clocks agree to a fraction of a microsecond only */
        sum += count_rank(t, s, i, wait, all - wait, bytes);
        t->last_step[i].clock += all;
    }
    return sum;
}

/* A collective: it starts when the last rank has arrived. Returns wait and transfer, summed over ranks. */
static double collective(struct timing *t, const struct timing_step *s, const struct choice *c, const float *us, uint32_t bytes)
{
    double ready = 0, sum = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        struct rank_step *k = &t->last_step[r];
        double late = lateness(c, r, us, t->n_ranks);
        k->clock += late;
        k->busy_us += late;
        ready = k->clock > ready ? k->clock : ready;
    }
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        struct rank_step *k = &t->last_step[r];
        double transfer = (double)us[r] - lateness(c, r, us, t->n_ranks);
        sum += count_rank(t, s, r, ready - k->clock, transfer, bytes);
        k->clock = ready + transfer;
    }
    return sum;
}

void timing_step(struct timing *t, const struct timing_step *s)
{
    uint32_t n = t->n_ranks, count = 0;
    double ar_sum = 0, end = 0;
    struct mode_times *m = &t->mode[s->graph][s->decode];
    memset(t->last_step, 0, n * sizeof *t->last_step);
    for (uint32_t i = 0; i < t->n_ops; i++) {
        const struct place at = t->place[i];
        const float *us = s->op_us + (size_t)i * n;
        double slowest = 0;
        for (uint32_t r = 0; r < n; r++)
            slowest = (double)us[r] > slowest ? (double)us[r] : slowest;
        if (slowest <= 0 && at.kind != OP_ALLREDUCE) /* part of another one's launch */
            continue;
        if (at.kind == OP_ALLREDUCE) {
            const struct choice *c = s->choices != NULL ? &s->choices[i] : NULL;
            uint32_t bytes = c != NULL && c->bf16 ? 2 : 4;
            t->bytes_per_row = (uint64_t)t->n_embd * bytes;
            ar_sum += s->reduces != NULL ? measured(t, s, s->reduces + (size_t)i * n, bytes) : collective(t, s, c, us, bytes);
            count++;
        } else {
            for (uint32_t r = 0; r < n; r++) {
                t->last_step[r].clock += (double)us[r];
                t->last_step[r].busy_us += (double)us[r];
            }
        }
        m->kind_us[at.kind] += slowest;
        m->layer_us[at.layer] += slowest;
    }
    for (uint32_t r = 0; r < n; r++)
        end = t->last_step[r].clock > end ? t->last_step[r].clock : end;
    t->last = (struct timing_ar){.count = count, .mean_us = count ? (float)(ar_sum / count / n) : 0, .share = end > 0 ? (float)(ar_sum / n / end) : 0};
    t->step_us = s->wall_us;
    t->graph = s->graph;
    if (s->decode)
        hist_add(&t->step[s->graph], s->wall_us);
    m->wall.v[m->wall.n++ % WINDOW] = (float)s->wall_us;
    m->steps++;
    m->rows += s->rows;
    m->total_us += s->wall_us;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* q-quantile of the last min(n, cap) values; NAN when there are none. tmp holds cap floats. */
static float quantile(const float *v, uint32_t n, uint32_t cap, double q, float *tmp)
{
    uint32_t m = n < cap ? n : cap;
    if (m == 0)
        return NAN;
    memcpy(tmp, v, m * sizeof *v);
    qsort(tmp, m, sizeof *tmp, by_value);
    uint32_t i = (uint32_t)(q * (m - 1) + 0.5);
    return tmp[i];
}

bool timing_was_graph(const struct timing *t)
{
    return t->graph;
}

struct timing_ar timing_last(const struct timing *t)
{
    return t->last;
}

struct timing_ar timing_recent(struct timing *t)
{
    struct timing_ar a = t->last;
    double sum = 0;
    uint64_t count = 0;
    hist_reset(&t->scratch);
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct rank_times *k = &t->rank[t->graph][r];
        hist_merge(&t->scratch, &k->ar);
        sum += k->sum_wait + k->sum_transfer;
        count += k->count;
    }
    if (count == 0)
        return a;
    a.mean_us = (float)(sum / (double)count);
    a.p99_us = hist_quantile(&t->scratch, 0.99);
    return a;
}

void timing_fill(const struct timing *t, struct rs_snapshot *out)
{
    out->step_us = (float)t->step_us;
    out->step_p50_us = hist_quantile(&t->step[t->graph], 0.5);
    out->step_p99_us = hist_quantile(&t->step[t->graph], 0.99);
    for (uint32_t r = 0; r < t->n_ranks && r < RS_MAX_RANKS; r++) {
        const struct rank_step *k = &t->last_step[r];
        const struct rank_times *m = &t->rank[t->graph][r];
        struct rs_rank_snapshot *o = &out->rank[r];
        o->busy_us = (float)k->busy_us;
        o->ar_wait_us = (float)k->wait_us;
        o->ar_transfer_us = (float)k->transfer_us;
        o->ar_p50_us = hist_quantile(&m->ar, 0.5);
        o->ar_p99_us = hist_quantile(&m->ar, 0.99);
        o->ar_count = t->rank[0][r].count + t->rank[1][r].count;
    }
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *mode_json(const struct timing *t, const struct mode_times *m)
{
    float tmp[WINDOW];
    json_t *kinds = json_object(), *layers = json_array();
    double total = 0;
    for (int k = 0; k < OP_KIND_COUNT; k++)
        total += m->kind_us[k];
    for (int k = 0; k < OP_KIND_COUNT && m->steps; k++)
        if (m->kind_us[k] > 0)
            json_object_set_new(kinds, op_kind_name((enum op_kind)k),
                                json_pack("{s:f,s:f}", "us", m->kind_us[k] / (double)m->steps, "share", m->kind_us[k] / total));
    for (uint32_t i = 0; i < t->n_layers && m->steps; i++)
        json_array_append_new(layers, json_real(m->layer_us[i] / (double)m->steps));
    return json_pack("{s:I,s:I,s:o,s:o,s:o,s:o,s:o}", "steps", (json_int_t)m->steps, "rows", (json_int_t)m->rows, "p50_us",
                     number((double)quantile(m->wall.v, m->wall.n, WINDOW, 0.5, tmp)), "p99_us", number((double)quantile(m->wall.v, m->wall.n, WINDOW, 0.99, tmp)),
                     "mean_us", number(m->steps ? m->total_us / (double)m->steps : NAN), "by_kind", kinds, "by_layer", layers);
}

json_t *timing_stats_json(const struct timing *t)
{
    return json_pack("{s:{s:o,s:o},s:{s:o,s:o}}", "decode", "eager", mode_json(t, &t->mode[0][1]), "graph", mode_json(t, &t->mode[1][1]), "prompt",
                     "eager", mode_json(t, &t->mode[0][0]), "graph", mode_json(t, &t->mode[1][0]));
}

/* The counts of buckets lo .. hi. */
static json_t *buckets(const struct hist *h, uint32_t lo, uint32_t hi)
{
    json_t *a = json_array();
    for (uint32_t i = lo; i <= hi; i++)
        json_array_append_new(a, json_integer(hist_at(h, i)));
    return a;
}

static json_t *rank_json(const struct timing *t, uint32_t r, const struct rank_times *k, uint32_t lo, uint32_t hi)
{
    double n = (double)k->count, sum = k->sum_wait + k->sum_transfer;
    double algbw = sum > 0 ? k->sum_bytes / sum / 1e3 : NAN; /* GB/s = bytes / us / 1000 */
    json_t *o = json_pack("{s:i,s:I}", "rank", (int)r, "count", (json_int_t)k->count);
    json_object_set_new(o, "mean_us", number(k->count ? sum / n : NAN));
    json_object_set_new(o, "p50_us", number((double)hist_quantile(&k->ar, 0.5)));
    json_object_set_new(o, "p99_us", number((double)hist_quantile(&k->ar, 0.99)));
    json_object_set_new(o, "wait_mean_us", number(k->count ? k->sum_wait / n : NAN));
    json_object_set_new(o, "wait_p50_us", number((double)hist_quantile(&k->wait, 0.5)));
    json_object_set_new(o, "wait_p99_us", number((double)hist_quantile(&k->wait, 0.99)));
    json_object_set_new(o, "transfer_mean_us", number(k->count ? k->sum_transfer / n : NAN));
    json_object_set_new(o, "algbw_gbs", number(algbw));
    json_object_set_new(o, "busbw_gbs", number(t->n_ranks > 1 ? algbw * 2 * (t->n_ranks - 1) / t->n_ranks : NAN));
    json_object_set_new(o, "histogram", buckets(&k->ar, lo, hi));
    json_object_set_new(o, "wait_histogram", buckets(&k->wait, lo, hi));
    return o;
}

json_t *timing_allreduce_json(const struct timing *t, bool graph)
{
    const struct rank_times *k = t->rank[graph];
    json_t *ranks = json_array(), *bounds = json_array();
    uint32_t lo = HIST_BUCKETS, hi = 0;
    for (uint32_t r = 0; r < t->n_ranks; r++)
        for (uint32_t i = 0; i < HIST_BUCKETS; i++)
            if (hist_at(&k[r].ar, i) + hist_at(&k[r].wait, i) != 0) {
                lo = i < lo ? i : lo;
                hi = i > hi ? i : hi;
            }
    for (uint32_t i = lo; i <= hi; i++)
        json_array_append_new(bounds, number(hist_bound(i)));
    for (uint32_t r = 0; r < t->n_ranks; r++)
        json_array_append_new(ranks, rank_json(t, r, &k[r], lo, hi));
    json_t *o = json_pack("{s:b,s:s,s:i,s:I}", "simulated", 1, "mode", graph ? "graph" : "eager", "per_step", (int)t->last.count, "bytes_per_row",
                          (json_int_t)t->bytes_per_row);
    json_object_set_new(o, "bounds_us", bounds);
    json_object_set_new(o, "ranks", ranks);
    return o;
}

bool timing_mode(const struct timing *t)
{
    return t->graph;
}
