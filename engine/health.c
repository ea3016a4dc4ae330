/* See health.h. */
#include "engine/health.h"

#include <math.h>
#include <string.h>

void health_reset(struct health *h)
{
    memset(h, 0, sizeof *h);
    h->gap_min = INFINITY;
}

/* How long the output has been repeating itself with each period. */
static void watch_loops(struct health *h, int32_t token, const int32_t *history, uint32_t n, uint32_t n_out)
{
    for (uint32_t p = 1; p <= HEALTH_PERIODS; p++) {
        uint32_t *run = &h->period_run[p - 1];
        if (p > n_out || history[n - p] != token) {
            *run = 0;
            continue;
        }
        ++*run;
        if (*run > h->loop_run) { /* multiples of a period come later and with shorter runs, so the smallest is kept */
            h->loop_run = *run;
            h->loop_period = p;
        }
    }
}

void health_token(struct health *h, int32_t token, const int32_t *history, uint32_t n_history, uint32_t n_out, const struct sample_info *info, bool honest)
{
    double e = (double)info->entropy, lp = (double)info->logprob;
    h->n++;
    h->entropy += e;
    h->entropy2 += e * e;
    h->logprob += lp;
    h->excess += -lp - e;
    h->variance += (double)info->varentropy;
    h->gap += (double)info->top_gap;
    if (info->entropy > h->entropy_max)
        h->entropy_max = info->entropy;
    if (info->top_gap < h->gap_min)
        h->gap_min = info->top_gap;
    h->nonfinite += info->nonfinite != 0;
    h->constant += info->constant != 0;
    h->odd += !honest;
    watch_loops(h, token, history, n_history, n_out);
}

void health_text(struct health *h, const char *text, size_t n)
{
    static const char FFFD[3] = {(char)0xEF, (char)0xBF, (char)0xBD};
    h->bytes += (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        h->blank += text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        h->fffd = text[i] == FFFD[h->fffd] ? (uint8_t)(h->fffd + 1) : text[i] == FFFD[0];
        if (h->fffd == 3) {
            h->invalid++;
            h->fffd = 0;
        }
    }
}
