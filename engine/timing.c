/* See timing.h. */
#include "engine/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

enum { WINDOW = 1024, AR_WINDOW = 4096 };

/* The last values of a quantity; percentiles are taken by sorting a copy when somebody asks. */
struct ring {
    float v[WINDOW];
    uint32_t n; /* values ever put */
};

struct rank_times {
    float ar[AR_WINDOW];    /* wait + transfer of single all-reduces */
    float wait[AR_WINDOW];
    uint32_t n;
    double busy_us, wait_us, transfer_us; /* of the last step */
    double sum_wait, sum_transfer;
    uint64_t count;
};

struct mode_times {
    struct ring wall;
    uint64_t steps, rows;
    double total_us;
    double kind_us[OP_KIND_COUNT]; /* on the slowest rank of each op */
    double *layer_us;
};

struct timing {
    uint32_t n_ranks, n_layers, n_ops;
    struct rank_times *rank;      /* [n_ranks] */
    struct mode_times mode[2][2]; /* [graph][decode] */
    struct timing_ar last;
    double step_us;
    uint64_t bytes_per_row;       /* of one all-reduce */
};

enum rs_result timing_open(const struct program *p, struct timing **out, struct rs_error *err)
{
    struct timing *t = calloc(1, sizeof *t);
    bool ok = t != NULL;
    if (ok) {
        t->n_ranks = p->n_ranks;
        t->n_layers = p->hp->n_layers;
        t->bytes_per_row = (uint64_t)p->hp->n_embd * sizeof(float);
        t->rank = calloc(t->n_ranks, sizeof *t->rank);
        ok = t->rank != NULL;
        for (int i = 0; i < 4 && ok; i++)
            ok = (t->mode[i / 2][i % 2].layer_us = calloc(t->n_layers + 1, sizeof(double))) != NULL;
    }
    if (!ok) {
        timing_close(t);
        return error_set(err, RS_ENOMEM, "out of memory for timings");
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
    free(t->rank);
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
    memset(t->rank, 0, t->n_ranks * sizeof *t->rank);
}

void timing_step(struct timing *t, const struct timing_step *s)
{
    uint32_t n = t->n_ranks, count = 0;
    double clock[RS_MAX_RANKS] = {0}, ar_sum = 0;
    struct mode_times *m = &t->mode[s->graph][s->decode];
    for (uint32_t r = 0; r < n; r++)
        t->rank[r].busy_us = t->rank[r].wait_us = t->rank[r].transfer_us = 0;
    for (uint32_t i = 0; i < s->prog->n_ops; i++) {
        const struct op *op = &s->prog->ops[i];
        const float *us = s->op_us + (size_t)i * n;
        double slowest = 0, ready = 0;
        for (uint32_t r = 0; r < n; r++)
            slowest = (double)us[r] > slowest ? (double)us[r] : slowest;
        if (op->kind == OP_ALLREDUCE) {
            for (uint32_t r = 0; r < n; r++)
                ready = clock[r] > ready ? clock[r] : ready;
            for (uint32_t r = 0; r < n; r++) {
                struct rank_times *k = &t->rank[r];
                double wait = ready - clock[r];
                k->wait[k->n % AR_WINDOW] = (float)wait;
                k->ar[k->n++ % AR_WINDOW] = (float)(wait + (double)us[r]);
                k->wait_us += wait;
                k->transfer_us += (double)us[r];
                k->count++;
                clock[r] = ready + (double)us[r];
                ar_sum += wait + (double)us[r];
            }
            count++;
        } else {
            for (uint32_t r = 0; r < n; r++) {
                clock[r] += (double)us[r];
                t->rank[r].busy_us += (double)us[r];
            }
        }
        m->kind_us[op->kind] += slowest;
        m->layer_us[op->layer >= 0 && (uint32_t)op->layer < t->n_layers ? (uint32_t)op->layer : t->n_layers] += slowest;
    }
    double end = 0;
    for (uint32_t r = 0; r < n; r++) {
        end = clock[r] > end ? clock[r] : end;
        t->rank[r].sum_wait += t->rank[r].wait_us;
        t->rank[r].sum_transfer += t->rank[r].transfer_us;
    }
    t->last = (struct timing_ar){.count = count, .mean_us = count ? (float)(ar_sum / count / n) : 0, .share = end > 0 ? (float)(ar_sum / n / end) : 0};
    t->step_us = s->wall_us;
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

struct timing_ar timing_last(const struct timing *t)
{
    return t->last;
}

struct timing_ar timing_recent(const struct timing *t)
{
    static const uint32_t MOST = 512;
    struct timing_ar a = t->last;
    float tmp[512 * 4];
    uint32_t m = 0;
    double sum = 0;
    for (uint32_t r = 0; r < t->n_ranks && m < 2048; r++) { /* a sample over the ranks is enough for a percentile */
        const struct rank_times *k = &t->rank[r];
        uint32_t have = k->n < AR_WINDOW ? k->n : AR_WINDOW, take = have < MOST ? have : MOST;
        for (uint32_t i = 0; i < take && m < 2048; i++, m++)
            sum += (double)(tmp[m] = k->ar[(k->n - 1 - i) % AR_WINDOW]);
    }
    if (m == 0)
        return a;
    qsort(tmp, m, sizeof *tmp, by_value);
    a.mean_us = (float)(sum / m);
    a.p99_us = tmp[(uint32_t)(0.99 * (m - 1) + 0.5)];
    return a;
}

void timing_fill(const struct timing *t, struct rs_snapshot *out)
{
    out->step_us = (float)t->step_us;
    out->step_p50_us = out->step_p99_us = NAN;
    for (uint32_t r = 0; r < t->n_ranks && r < RS_MAX_RANKS; r++) {
        const struct rank_times *k = &t->rank[r];
        struct rs_rank_snapshot *o = &out->rank[r];
        o->busy_us = (float)k->busy_us;
        o->ar_wait_us = (float)k->wait_us;
        o->ar_transfer_us = (float)k->transfer_us;
        o->ar_count = k->count;
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

json_t *timing_allreduce_json(const struct timing *t)
{
    float tmp[AR_WINDOW];
    json_t *ranks = json_array();
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct rank_times *k = &t->rank[r];
        double us = k->count ? (k->sum_wait + k->sum_transfer) / (double)k->count : NAN;
        double algbw = us > 0 ? (double)t->bytes_per_row / us / 1e3 : NAN; /* GB/s = bytes / us / 1000 */
        json_array_append_new(
            ranks, json_pack("{s:i,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "rank", (int)r, "count", (json_int_t)k->count, "p50_us",
                             number((double)quantile(k->ar, k->n, AR_WINDOW, 0.5, tmp)), "p99_us", number((double)quantile(k->ar, k->n, AR_WINDOW, 0.99, tmp)),
                             "mean_us", number(us), "wait_mean_us", number(k->count ? k->sum_wait / (double)k->count : NAN), "wait_p99_us",
                             number((double)quantile(k->wait, k->n, AR_WINDOW, 0.99, tmp)), "transfer_mean_us",
                             number(k->count ? k->sum_transfer / (double)k->count : NAN), "algbw_gbs", number(algbw), "busbw_gbs",
                             number(t->n_ranks > 1 ? algbw * 2 * (t->n_ranks - 1) / t->n_ranks : NAN)));
    }
    return json_pack("{s:b,s:i,s:I,s:o}", "simulated", 1, "per_step", (int)t->last.count, "bytes_per_row", (json_int_t)t->bytes_per_row, "ranks", ranks);
}
