/* See verdict.h.
 *
 * Certain signs come first (logits that are no numbers, white space only, loops), then the distribution that tokens came from. A model that
 * computes something wrong is not sure of itself: the entropy of its distributions goes up and the gap between its two best candidates goes down,
 * whatever the sampling settings, since both are taken before those. How much is normal depends on the model, so a baseline says; without
 * one only what no working model does counts. */
#include "engine/verdict.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "engine/engine.h"

struct finding {
    enum verdict verdict;
    char *reason; /* [256] */
};

/* Keep the worst; the first of equals. */
static __attribute__((format(printf, 3, 4))) void find(struct finding *f, enum verdict v, const char *fmt, ...)
{
    va_list ap;
    if (v <= f->verdict)
        return;
    f->verdict = v;
    va_start(ap, fmt);
    vsnprintf(f->reason, 256, fmt, ap);
    va_end(ap);
}

static void look_at_logits(const struct health *h, struct finding *f)
{
    if (h->nonfinite != 0)
        find(f, VERDICT_GARBAGE, "logits were not finite at %u of %u tokens", h->nonfinite, h->n);
    if (h->constant != 0)
        find(f, VERDICT_GARBAGE, "all logits were equal at %u of %u tokens", h->constant, h->n);
}

static void look_at_output(const struct health *h, struct finding *f)
{
    if (h->bytes >= 8 && h->blank == h->bytes)
        find(f, VERDICT_GARBAGE, "nothing but white space: %u bytes of it", h->blank);
    else if (h->bytes >= 64 && h->blank > h->bytes * 0.8)
        find(f, VERDICT_SUSPECT, "%u of %u bytes are white space", h->blank, h->bytes);
    if (h->loop_run >= 16 && h->loop_run >= 3 * h->loop_period) {
        enum verdict v = h->loop_run >= 48 && h->loop_run >= 8 * h->loop_period ? VERDICT_GARBAGE : VERDICT_SUSPECT;
        if (h->loop_period == 1)
            find(f, v, "the same token %u times in a row", h->loop_run + 1);
        else
            find(f, v, "the same %u tokens over and over, %u tokens long", h->loop_period, h->loop_run + h->loop_period);
    }
    if (h->invalid > 1 && h->invalid * 20 > h->bytes)
        find(f, VERDICT_GARBAGE, "bytes that are no UTF-8: %u in %u bytes of text", h->invalid, h->bytes);
    else if (h->invalid != 0)
        find(f, VERDICT_SUSPECT, "bytes that are no UTF-8: %u in %u bytes of text", h->invalid, h->bytes);
}

/* Tokens that honest sampling would hardly ever take: the sampler or the random numbers are wrong, not the model. The difference between a
 * token's surprise and the entropy has mean 0, but a long tail, hence the margin of 25 nats. */
static void look_at_sampling(const struct health *h, struct finding *f)
{
    if (h->odd == 0 && h->excess > 25 + 4 * sqrt(h->variance))
        find(f, VERDICT_SUSPECT, "tokens were taken that are too unlikely: %.0f nats of surprise, %.0f expected", h->excess + h->entropy, h->entropy);
}

static void look_at_distribution(const struct health *h, const struct baseline *b, uint32_t vocab, struct finding *f)
{
    double entropy = h->entropy / h->n, gap = h->gap / h->n;
    if (!b->there) {
        double most = log(vocab);
        if (entropy > 0.6 * most)
            find(f, VERDICT_GARBAGE, "entropy %.2f nats a token, %.2f is pure chance (general rule: no baseline for this model)", entropy, most);
        else if (entropy > 0.4 * most)
            find(f, VERDICT_SUSPECT, "entropy %.2f nats a token, %.2f is pure chance (general rule: no baseline for this model)", entropy, most);
        return;
    }
    bool flat = gap < 0.9 * b->gap_low, unsure = entropy > b->entropy_p95, wild = entropy > 1.25 * b->entropy_high;
    enum verdict v = (flat && unsure) || entropy > 2 * b->entropy_high ? VERDICT_GARBAGE : VERDICT_SUSPECT;
    if (flat || wild)
        find(f, v, "entropy %.2f nats a token where %.2f is usual at most, top gap %.1f where %.1f is usual at least (%.0f healthy answers)", entropy,
             b->entropy_high, gap, b->gap_low, b->answers);
}

enum verdict verdict_of(const struct health *h, uint32_t tokens, const struct baseline *b, uint32_t vocab, char reason[256])
{
    struct finding f = {.verdict = h->n != 0 ? VERDICT_OK : VERDICT_NONE, .reason = reason};
    reason[0] = '\0';
    if (h->n == 0)
        return f.verdict;
    look_at_logits(h, &f);
    look_at_output(h, &f);
    look_at_distribution(h, b, vocab, &f);
    look_at_sampling(h, &f);
    if (f.verdict == VERDICT_OK && !b->there)
        snprintf(reason, 256, "by general rules: no baseline for this model");
    if (f.verdict == VERDICT_GARBAGE && tokens < VERDICT_SHORT)
        f.verdict = VERDICT_SUSPECT;
    return f.verdict;
}

const char *verdict_name(enum verdict v)
{
    static const char *const NAMES[] = {NULL, "ok", "suspect", "garbage"};
    return NAMES[v];
}

static void set_number(json_t *o, const char *key, double x)
{
    json_object_set_new(o, key, isfinite(x) ? json_real(x) : json_null());
}

/* The numbers behind a verdict. */
static json_t *numbers(const struct health *h, const struct baseline *b)
{
    const double n = h->n;
    const struct { const char *key; uint32_t v; } whole[] = {
        {"tokens", h->n}, {"nonfinite_steps", h->nonfinite}, {"constant_steps", h->constant}, {"loop_tokens", h->loop_run},
        {"loop_period", h->loop_period}, {"bytes", h->bytes}, {"blank_bytes", h->blank}, {"invalid_utf8", h->invalid}};
    const struct { const char *key; double v; } real[] = {
        {"entropy_mean", h->entropy / n}, {"entropy_max", (double)h->entropy_max}, {"logprob_mean", h->logprob / n},
        {"surprise_mean", h->odd == 0 ? h->excess / n : NAN}, {"gap_mean", h->gap / n}, {"gap_min", (double)h->gap_min},
        {"entropy_limit", b->there ? b->entropy_high : NAN}, {"gap_limit", b->there ? b->gap_low : NAN}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        json_object_set_new(o, whole[i].key, json_integer(whole[i].v));
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++)
        set_number(o, real[i].key, real[i].v);
    return o;
}

void verdict_json(const struct engine *e, const struct seq *s, json_t *o)
{
    const struct health *h = &s->health;
    char reason[256];
    const char *name = verdict_name(verdict_of(h, s->n_out, &e->baseline, e->model->hp.vocab, reason));
    json_object_set_new(o, "verdict", name != NULL ? json_string(name) : json_null());
    json_object_set_new(o, "reason", reason[0] != '\0' ? json_string(reason) : json_null());
    json_object_set_new(o, "health", h->n != 0 ? numbers(h, &e->baseline) : json_null());
}
