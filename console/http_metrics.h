/* http_metrics.h: counters of the HTTP server as Prometheus reads them (text format 0.0.4): vLLM's names and llama-server's, so that dashboards made
 * for those work, and ours for what they do not tell. The bridge's thread. */
#ifndef RANKSCOPE_CONSOLE_HTTP_METRICS_H
#define RANKSCOPE_CONSOLE_HTTP_METRICS_H

#include <jansson.h>

#include "console/buf.h"
#include "engine/rankscope.h"

enum { METRICS_BUCKETS = 24 };

struct histogram {
    const double *bounds; /* ends with 0 */
    uint64_t count[METRICS_BUCKETS], n;
    double sum;
};

struct metrics {
    struct histogram ttft, itl, e2e, queue, prefill, decode, inference; /* seconds */
    struct histogram prompt, generated, asked;                          /* tokens of a request */
    uint64_t success[4];   /* by finish: stop, length, abort, error */
    uint64_t prompt_tokens, generated_tokens, cached_tokens;
    double prompt_seconds, decode_seconds;
    uint64_t verdicts[4];  /* ok, suspect, garbage, other */
    uint64_t nonfinite;    /* logits */
    unsigned longest;      /* tokens of the longest sequence */
    unsigned patches;      /* away from their default */
};

void metrics_init(struct metrics *m);
void histogram_add(struct histogram *h, double v);

/* A request ended; done: the engine's DONE object; times in seconds, NAN where there is none. */
void metrics_done(struct metrics *m, const json_t *done, double ttft, double e2e, long asked);

struct metrics_input {
    const char *model;
    const json_t *load, *allreduce, *info; /* replies of those methods; NULL: not there */
    const struct rs_snapshot *snapshot;    /* NULL: none */
    size_t waiting_here;
    const uint64_t *refused;               /* [5] */
};

/* The whole text; caller frees. */
char *metrics_text(const struct metrics *m, const struct metrics_input *in);

#endif
