/* Modes toggled and patches swapped again and again while an answer runs: every token must be there and be the same as without. 60 of each;
 * RANKSCOPE_LONG makes it 1,000. soak_test [BACKEND [RANKS [GPUS]]] runs it on other devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine_client.h"
#include "tests/tap.h"

enum { TOKENS = 300, MAX_ANSWERS = 400 };

#define PROMPT                                                                                                                                  \
    "{\"segments\":[{\"text\":\"[gMASK]<sop><|user|>\",\"special\":true},{\"text\":\"Tell me a story about a cat.\"},"                          \
    "{\"text\":\"<|assistant|></think>\",\"special\":true}],\"max_tokens\":300,\"temp\":0,\"ignore_eos\":true}"

struct soak {
    struct rs_engine *e;
    int32_t want[TOKENS], got[TOKENS];
    uint32_t n_want, n_got, stream;
    bool done;
    unsigned disturbed; /* requests that were carried out while an answer ran */
};

/* What has come by now: tokens and the end of the answer. */
static void drain(struct soak *s, int wait_ms)
{
    struct rs_event ev;
    struct rs_error err;
    while (rs_next(s->e, wait_ms, &ev, &err) == RS_OK) {
        if (ev.type == RS_EVENT_TOKEN && ev.id == s->stream && ev.token >= 0 && s->n_got < TOKENS)
            s->got[s->n_got++] = ev.token;
        if (ev.type == RS_EVENT_DONE && ev.id == s->stream) {
            json_t *done = json_loads(ev.json, 0, NULL);
            const char *why = json_string_value(json_object_get(done, "error"));
            if (why != NULL)
                tap_diag("the answer ended by an error: %s", why);
            json_decref(done);
            s->done = true;
        }
        if (s->done || ev.type == RS_EVENT_LOST)
            break;
        wait_ms = 0;
    }
}

static void begin(struct soak *s)
{
    json_t *r = ec_call(s->e, "submit", "%s", PROMPT);
    s->stream = (uint32_t)json_integer_value(json_object_get(r, "stream"));
    s->n_got = 0;
    s->done = false;
    json_decref(r);
}

static void toggle_mode(struct soak *s, unsigned i)
{
    json_decref(ec_call(s->e, "set", "{\"mode\":\"%s\"}", i % 2 == 0 ? "eager" : "graph"));
}

/* Two ways of the same projections: swapped for all layers, or for some of them. */
static void swap_patch(struct soak *s, unsigned i)
{
    static const char *const SETS[] = {"{\"slot\":\"qkv_a\",\"impl\":\"split\"}", "{\"slot\":\"qkv_a\",\"impl\":\"fused\"}",
                                       "{\"slot\":\"qkv_a\",\"impl\":\"split\",\"site\":\"blk.1.*\"}", "{\"slot\":\"qkv_a\",\"impl\":\"fused\"}"};
    json_decref(ec_call(s->e, "patch.set", "%s", SETS[i % 4]));
}

static void both(struct soak *s, unsigned i)
{
    (i % 2 == 0 ? toggle_mode : swap_patch)(s, i / 2);
}

/* Answers until n requests fell into one. */
static void soak(struct soak *s, const char *what, unsigned n, void (*disturb)(struct soak *, unsigned))
{
    unsigned answers = 0, wrong = 0, asked = 0, lost = 0;
    s->disturbed = 0;
    while (s->disturbed < n && answers < MAX_ANSWERS) {
        begin(s);
        while (s->n_got == 0 && !s->done)
            drain(s, 1000);
        while (!s->done && s->disturbed < n) {
            uint32_t before = s->n_got;
            disturb(s, asked++);
            drain(s, 0);
            s->disturbed += !s->done;
            if (!s->done && s->n_got == before)
                drain(s, 1000); /* a token between two disturbances, so that each has something to disturb */
        }
        while (!s->done)
            drain(s, 10000);
        answers++;
        lost += s->n_want > s->n_got ? s->n_want - s->n_got : 0;
        wrong += s->n_got != s->n_want || memcmp(s->got, s->want, s->n_want * sizeof *s->want) != 0;
    }
    tap_ok(s->disturbed >= n, "%s: %u while answers ran (%u answers)", what, s->disturbed, answers);
    tap_ok(wrong == 0 && lost == 0, "%s: every answer is as undisturbed: %u of %u differ, %u tokens lost", what, wrong, answers, lost);
    json_decref(ec_call(s->e, "set", "{\"mode\":\"graph\"}"));
    json_decref(ec_call(s->e, "patch.reset", "{}"));
}

int main(int argc, char **argv)
{
    struct soak s = {.e = ec_open()};
    const char *backend = argc > 1 ? argv[1] : "cpu";
    unsigned ranks = argc > 2 ? (unsigned)atoi(argv[2]) : 2, gpus = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
    const unsigned n = getenv("RANKSCOPE_LONG") != NULL ? 1000 : 60;
    json_t *info = ec_call(s.e, "open", "{\"path\":\"%s\",\"ranks\":%u,\"backend\":\"%s\",\"gpus\":%u,\"mode\":\"graph\"}",
                           tap_source("models/tiny-glm5-q4.gguf"), ranks, backend, gpus);
    tap_eq_str(json_string_value(json_object_get(info, "backend")), backend, "the model is open on the %s backend, %u ranks", backend, ranks);
    json_decref(info);
    begin(&s);
    while (!s.done)
        drain(&s, 10000);
    s.n_want = s.n_got;
    memcpy(s.want, s.got, sizeof s.want);
    tap_eq_int(s.n_want, TOKENS, "the undisturbed answer has all its tokens");
    soak(&s, "mode toggles", n, toggle_mode);
    soak(&s, "patch swaps", n, swap_patch);
    soak(&s, "both in turns", n / 4, both);
    rs_engine_close(s.e);
    return tap_done();
}
