/* Looking into and changing an engine that 256 sequences run on: swaps, taps, watchpoints, a breakpoint, cancelling. No sequence may be lost and no
 * token may change: everything done here computes the same bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"

enum { SEQS = 256, TOKENS = 24 };

struct answers {
    int32_t tok[SEQS][TOKENS];
    int n[SEQS];
    uint32_t stream[SEQS];
    char stop[SEQS][16];
    int ended, tokens, replies;
};

static const struct { const char *slot, *impl; } SWAP[] = {{"qkv_a", "split"}, {"mla", "absorbed"}, {"qkv_a", "fused"}, {"mla", "auto"}};

static char s_log[256]; /* the last LOG event's text */

static double load(struct rs_engine *e, const char *what)
{
    json_t *l = talk(e, "load", "{}");
    double v = talk_num(l, what);
    json_decref(l);
    return v;
}

static void submit(struct rs_engine *e, int i)
{
    struct rs_error err = {.msg = ""};
    char args[160];
    uint32_t id;
    snprintf(args, sizeof args, "{\"text\":\"Tell me about the number %d and\",\"max_tokens\":%d,\"ignore_eos\":true,\"temp\":0,\"reuse\":false}", i * 7 + 3,
             TOKENS);
    if (rs_send(e, "submit", args, &id, &err) != RS_OK)
        tap_ok(false, "submit: %s", err.msg);
}

/* All at once: the engine finds them together between two steps. */
static void begin(struct rs_engine *e, struct answers *a)
{
    *a = (struct answers){0};
    for (int i = 0; i < SEQS; i++)
        submit(e, i);
}

static int index_of(const struct answers *a, uint32_t stream)
{
    for (int i = 0; i < a->replies; i++)
        if (a->stream[i] == stream)
            return i;
    return -1;
}

/* Take one event; false when there is none. Its type is in *type. */
static bool take(struct rs_engine *e, struct answers *a, enum rs_event_type *type)
{
    struct rs_event ev;
    struct rs_error err;
    if (rs_next(e, 120000, &ev, &err) != RS_OK)
        return false;
    int i = ev.type == RS_EVENT_TOKEN || ev.type == RS_EVENT_DONE ? index_of(a, ev.id) : -1;
    *type = ev.type;
    if (ev.type == RS_EVENT_REPLY && a->replies < SEQS) { /* in the order of the requests, each before the first token of its stream */
        json_t *o = json_loads(ev.json, 0, NULL);
        a->stream[a->replies++] = (uint32_t)talk_num(o, "stream");
        json_decref(o);
    }
    if (ev.type == RS_EVENT_LOG) {
        json_t *o = json_loads(ev.json, 0, NULL);
        snprintf(s_log, sizeof s_log, "%s", talk_str(o, "text"));
        json_decref(o);
    }
    if (i >= 0 && ev.type == RS_EVENT_TOKEN && ev.token >= 0) {
        if (a->n[i] < TOKENS)
            a->tok[i][a->n[i]] = ev.token;
        a->n[i]++;
        a->tokens++;
    }
    if (i >= 0 && ev.type == RS_EVENT_DONE) {
        json_t *o = json_loads(ev.json, 0, NULL);
        snprintf(a->stop[i], sizeof a->stop[i], "%s", talk_str(o, "stop"));
        json_decref(o);
        a->ended++;
    }
    return ev.type != RS_EVENT_LOST;
}

static void finish(struct rs_engine *e, struct answers *a)
{
    enum rs_event_type type;
    while (a->ended < SEQS && take(e, a, &type))
        ;
}

/* How many of the sequences from `from` on are complete and have the same tokens. */
static int same(const struct answers *want, const struct answers *got, int from)
{
    int n = 0;
    for (int i = from; i < SEQS; i++)
        n += got->n[i] == TOKENS && strcmp(got->stop[i], "length") == 0 && memcmp(want->tok[i], got->tok[i], sizeof want->tok[i]) == 0;
    return n;
}

static void run_until(struct rs_engine *e, struct answers *a, int tokens)
{
    enum rs_event_type type;
    while (a->tokens < tokens && take(e, a, &type))
        ;
}

static void test_alone(struct rs_engine *e, const struct answers *want)
{
    struct answers *a = calloc(1, sizeof *a);
    int good = 0;
    for (int i = 0; i < SEQS; i += 51) {
        enum rs_event_type type;
        *a = (struct answers){0};
        submit(e, i);
        while (a->ended < 1 && take(e, a, &type))
            ;
        good += a->n[0] == TOKENS && memcmp(a->tok[0], want->tok[i], sizeof a->tok[0]) == 0;
    }
    tap_eq_int(good, (SEQS + 50) / 51, "answers of 256 at once are those that they have alone");
    free(a);
}

static void test_swaps(struct rs_engine *e, const struct answers *want, struct answers *a)
{
    int swaps = 0, full = 0;
    begin(e, a);
    for (int at = SEQS * 3; a->ended < SEQS && at <= SEQS * TOKENS; at += SEQS / 2) {
        run_until(e, a, at);
        full += load(e, "running") == SEQS;
        json_decref(talk(e, "patch.set", "{'slot':'%s','impl':'%s'}", SWAP[swaps % 4].slot, SWAP[swaps % 4].impl));
        swaps++;
    }
    finish(e, a);
    tap_ok(full >= 4, "%d swaps, %d of them with all %d sequences running", swaps, full, SEQS);
    tap_eq_int(same(want, a, 0), SEQS, "none is lost, every token is the one without swaps");
    json_decref(talk(e, "patch.reset", "{}"));
}

static void test_taps(struct rs_engine *e, const struct answers *want, struct answers *a)
{
    json_decref(talk(e, "probe.tap", "{'site':'blk.*.ffn.router'}"));
    json_decref(talk(e, "probe.watch", "{'cond':'nan'}"));
    begin(e, a);
    finish(e, a);
    tap_eq_int(same(want, a, 0), SEQS, "taps and watchpoints under load change nothing");
    json_t *r = talk(e, "probe.read", "{'site':'blk.3.ffn.router','steps':64}"), *rec = talk_at(r, "sites.0.records"), *l = talk(e, "ledger", "{'limit':1}");
    double most = 0;
    for (size_t i = 0; i < json_array_size(rec); i++)
        most = talk_num(json_array_get(rec, i), "rows") > most ? talk_num(json_array_get(rec, i), "rows") : most;
    tap_ok(most >= SEQS, "and have seen steps of %.0f rows", most);
    tap_eq_str(talk_str(l, "mode"), "graph", "which ran from graphs");
    json_decref(r);
    json_decref(l);
    json_decref(talk(e, "probe.untap", "{}"));
    json_decref(talk(e, "probe.unwatch", "{}"));
}

static void test_break(struct rs_engine *e, const struct answers *want, struct answers *a)
{
    enum { CANCEL = 80 };
    enum rs_event_type type = RS_EVENT_COUNT;
    begin(e, a);
    run_until(e, a, SEQS * 4);
    json_decref(talk(e, "break.add", "{'site':'blk.2.attn.mla'}"));
    while (type != RS_EVENT_STOPPED && take(e, a, &type))
        ;
    json_t *r = talk(e, "requests", "{'limit':1000}"), *q;
    size_t i, told = 0;
    json_array_foreach(talk_at(r, "requests"), i, q)
        told += strcmp(talk_str(q, "why"), "the engine is stopped (break 1)") == 0;
    tap_ok(told == SEQS && talk_num(r, "running") == SEQS, "a breakpoint holds the step; %zu of %d requests say why they wait", told, SEQS);
    json_decref(r);
    for (int k = 0; k < CANCEL; k++)
        json_decref(talk(e, "cancel", "{'stream':%u}", a->stream[k]));
    json_decref(talk(e, "break.del", "{}"));
    json_decref(talk(e, "continue", "{}"));
    finish(e, a);
    int cancelled = 0;
    for (int k = 0; k < CANCEL; k++)
        cancelled += strcmp(a->stop[k], "cancelled") == 0;
    tap_eq_int(cancelled, CANCEL, "those that were cancelled meanwhile end with the step");
    tap_eq_int(same(want, a, CANCEL), SEQS - CANCEL, "the others go on as if nothing had been");
}

/* Answers with drafts: few sequences get them, for many they stop with a word. */
static void test_drafts(struct rs_engine *e, const struct answers *want, struct answers *a)
{
    struct answers *few = calloc(1, sizeof *few);
    enum rs_event_type type;
    int good = 0;
    json_decref(talk(e, "set", "{'spec':3}"));
    for (int i = 0; i < 8; i++)
        submit(e, i);
    while (few->ended < 8 && take(e, few, &type))
        ;
    for (int i = 0; i < 8; i++)
        good += memcmp(want->tok[i], few->tok[i], sizeof want->tok[i]) == 0;
    json_t *s = talk(e, "stats", "{}");
    double drafted = talk_num(s, "spec.drafted");
    tap_ok(good == 8 && talk_num(s, "spec.accepted") > 0, "8 at once with drafts: the same tokens; %.0f of %.0f drafts were right", talk_num(s, "spec.accepted"), drafted);
    json_decref(s);
    s_log[0] = '\0';
    begin(e, a);
    run_until(e, a, SEQS * 4);
    s = talk(e, "stats", "{}");
    tap_ok(json_is_true(talk_at(s, "spec.crowded")) && strstr(s_log, "no drafts while") != NULL, "256 at once get none, with a word: %s", s_log);
    json_decref(s);
    finish(e, a);
    tap_eq_int(same(want, a, 0), SEQS, "and the same tokens");
    json_decref(talk(e, "set", "{'spec':0}"));
    free(few);
}

int main(void)
{
    struct answers *want = calloc(1, sizeof *want), *a = calloc(1, sizeof *a);
    struct rs_engine *e = talk_open(MODEL, "'ranks':1,'max_seqs':256,'batch_tokens':1024,'ctx':16384");
    begin(e, want);
    finish(e, want);
    tap_eq_int(same(want, want, 0), SEQS, "%d sequences at once", SEQS);
    test_alone(e, want);
    test_swaps(e, want, a);
    test_taps(e, want, a);
    test_break(e, want, a);
    test_drafts(e, want, a);
    tap_eq_int((long long)load(e, "cache.held"), 0, "in the end no block is held");
    rs_engine_close(e);
    free(want);
    free(a);
    return tap_done();
}
