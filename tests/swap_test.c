/* A hundred implementations swapped during one long answer at 8 ranks: no token is lost or changed, and the pause at a swap is printed. The swaps are
 * between implementations (one of them in Lua) that compute the same bits for a generated token, so the answer must be the one without swaps, token for token; that each of
 * them really took place shows in the ledger. Run it with ThreadSanitizer too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lua/scr_op.h"
#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>Tell me a story about a cat.<|assistant|></think>','special':true"
#define LONG "'text':'[gMASK]<sop><|user|>Tell me, please, as exactly and as shortly as you can, and in one full sentence of English, what is the capital of " \
    "France?<|assistant|></think>','special':true"

enum { TOKENS = 640, EVERY = 6, SWAPS = 100 };
static int s_tokens = TOKENS, s_swaps = SWAPS; /* fewer in the short form */

/* A sum of two is the same in double, rounded once. */
#define ADD_LUA "return {name = \"add-lua\", kind = \"add\", help = \"y + x\", run = function(call)\n" \
    "for i = 1, call.rows do\nlocal x, y = call.x:row(i), call.y:row(i)\nfor j = 1, #x do y[j] = y[j] + x[j] end\ncall.y:set(i, y)\nend\nend}\n"

static const struct { const char *slot, *impl, *kind, *runs; } SWAP[] = {
    {"qkv_a", "split", "qkv_a", "split"}, {"user", "add-lua", "add", "add-lua"}, {"mla", "absorbed", "mla", "absorbed"},
    {"qkv_a", "fused", "qkv_a", "fused"}, {"user", "off", "add", "rows"}, {"mla", "auto", "mla", "auto"}};
enum { N_SWAP = sizeof SWAP / sizeof SWAP[0] };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    int at = (int)(q * n);
    return n == 0 ? 0 : v[at < n ? at : n - 1];
}

/* Does the ledger say that every op of this kind ran this implementation? */
static bool ran(struct rs_engine *e, const char *kind, const char *impl)
{
    json_t *l = talk(e, "ledger", "{}"), *ops = talk_at(l, "ops");
    size_t of_kind = 0, good = 0;
    for (size_t i = 0; i < json_array_size(ops); i++)
        if (strcmp(talk_str(json_array_get(ops, i), "kind"), kind) == 0) {
            of_kind++;
            good += strcmp(talk_str(json_array_get(ops, i), "impl"), impl) == 0;
        }
    json_decref(l);
    return of_kind > 0 && good == of_kind;
}

static double clock_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Pauses: for each swap in the journal the time between the tokens around it, less the usual time between two tokens, microseconds. */
static void print_pauses(struct rs_engine *e, const char *mode, const uint64_t *at, int n, double *took)
{
    static double gap[TOKENS], pause[SWAPS];
    json_t *l = talk(e, "patch.list", "{}"), *journal = talk_at(l, "journal");
    size_t n_journal = json_array_size(journal), first = n_journal - (size_t)s_swaps;
    int n_pauses = 0;
    double offset = clock_us(CLOCK_REALTIME) - clock_us(CLOCK_MONOTONIC); /* the journal has the time of day, tokens have the engine's clock */
    for (int i = 1; i < n; i++)
        gap[i - 1] = (double)(at[i] - at[i - 1]);
    double usual = quantile(gap, n - 1, 0.5);
    for (size_t k = first; k < n_journal; k++) {
        double t = talk_num(json_array_get(journal, k), "time_us") - offset;
        for (int i = 1; i < n; i++)
            if ((double)at[i - 1] <= t && t < (double)at[i])
                pause[n_pauses++] = (double)(at[i] - at[i - 1]) - usual;
    }
    json_decref(l);
    tap_ok(n_pauses > s_swaps * 9 / 10, "%s: %d of %d swaps fell between two tokens of the answer", mode, n_pauses, s_swaps);
    tap_diag("%s: pause at a swap, beyond the usual %.0f us from token to token: median %.0f us, 90 %% below %.0f us, worst %.0f us; of it the swap itself: median %.0f us, "
             "worst %.0f us", mode, usual, quantile(pause, n_pauses, 0.5), quantile(pause, n_pauses, 0.9), quantile(pause, n_pauses, 1), quantile(took, s_swaps, 0.5) * 1e3,
             quantile(took, s_swaps, 1) * 1e3);
}

static void test_swaps(struct rs_engine *e, const char *mode)
{
    static int32_t plain[TOKENS + 8], got[TOKENS + 8];
    static uint64_t at[TOKENS];
    static double took[SWAPS];
    size_t n_plain;
    int n = 0, swaps = 0, took_place = 0;
    bool done = false;
    struct rs_event ev;
    struct rs_error err;
    json_decref(talk(e, "set", "{'mode':'%s'}", mode));
    json_decref(talk_generate(e, PROMPT, s_tokens, plain, s_tokens + 8, &n_plain));
    json_decref(talk(e, "submit", "{%s,'temp':0,'max_tokens':%d,'ignore_eos':true}", PROMPT, s_tokens));
    while (!done && rs_next(e, 60000, &ev, &err) == RS_OK && ev.type != RS_EVENT_LOST) {
        done = ev.type == RS_EVENT_DONE;
        if (ev.type != RS_EVENT_TOKEN || ev.token < 0)
            continue;
        if (n < s_tokens) {
            got[n] = ev.token;
            at[n] = ev.time_us;
        }
        n++;
        if (n % EVERY == EVERY / 2 && swaps > took_place) /* half way to the next, so that looking does not lengthen the pause */
            took_place += ran(e, SWAP[(swaps - 1) % N_SWAP].kind, SWAP[(swaps - 1) % N_SWAP].runs);
        if (n % EVERY != 0 || swaps == s_swaps)
            continue;
        json_t *r = talk(e, "patch.set", "{'slot':'%s','impl':'%s'}", SWAP[swaps % N_SWAP].slot, SWAP[swaps % N_SWAP].impl);
        took[swaps++] = talk_num(r, "took_ms");
        json_decref(r);
    }
    tap_ok(done && n == s_tokens && n_plain == (size_t)s_tokens, "%s: %d swaps, %d of %d tokens", mode, swaps, n, s_tokens);
    tap_ok(memcmp(plain, got, sizeof *plain * (size_t)s_tokens) == 0, "%s: every token is the one without swaps", mode);
    tap_ok(swaps == s_swaps && took_place == s_swaps, "%s: all of %d swaps ran", mode, took_place);
    print_pauses(e, mode, at, n < s_tokens ? n : s_tokens, took);
    json_decref(talk(e, "patch.reset", "{}"));
}

/* What the cache holds of a question was computed by the ops of then: after a swap nobody may find it. */
static void test_cache(struct rs_engine *e)
{
    static const char *const CHANGE[][2] = {{"patch.set", "{'slot':'slot_order','impl':'file'}"}, {"patch.revert", "{}"}, {"set", "{'numerics':'fast'}"},
                                            {"set", "{'numerics':'invariant'}"}};
    int32_t plain[32], got[32];
    size_t n, m = 0;
    json_decref(talk_generate(e, LONG, 32, plain, 32, &n));
    json_t *r = talk_generate(e, LONG, 32, got, 32, &m);
    tap_ok(talk_num(r, "cached_tokens") == 32, "a question that was asked before is found in the cache");
    json_decref(r);
    for (int i = 0; i < 4; i++) {
        json_decref(talk(e, CHANGE[i][0], "%s", CHANGE[i][1]));
        r = talk_generate(e, LONG, 32, got, 32, &m);
        tap_ok(talk_num(r, "cached_tokens") == 0, "not after %s %s", CHANGE[i][0], CHANGE[i][1]);
        bool same = n == m && memcmp(plain, got, n * sizeof *plain) == 0;
        if (i != 2)
            tap_ok(same == (i != 0), i == 0 ? "slots in file order change the answer" : "and taken back the answer is the old one");
        json_decref(r);
    }
}

int main(void)
{
    if (tap_short()) {
        s_tokens = 100;
        s_swaps = 12;
    }
    struct rs_engine *e = talk_open_hosted(MODEL, "\"ranks\":8", scr_op_host());
    json_decref(talk(e, "patch.load", "{'path':'%s'}", talk_file("add.lua", ADD_LUA)));
    test_swaps(e, "graph");
    test_swaps(e, "eager");
    test_cache(e);
    rs_engine_close(e);
    return tap_done();
}
