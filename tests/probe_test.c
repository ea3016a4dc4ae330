/* Taps, watchpoints, breakpoints and tensors, through the public API. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|>','special':true"
enum { TOKENS = 24 };

static void reset(struct rs_engine *e)
{
    json_decref(talk(e, "probe.untap", "{}"));
    json_decref(talk(e, "probe.unwatch", "{}"));
    json_decref(talk(e, "break.del", "{}"));
}

/* Tokens with every site of the model tapped must be those without, and the step must still be a graph. */
static void test_identical(const char *extra, const char *name)
{
    struct rs_engine *e = talk_open(MODEL, extra);
    int32_t plain[TOKENS], tapped[TOKENS];
    size_t n, m;
    json_decref(talk_generate(e, PROMPT, TOKENS, plain, TOKENS, &n));
    json_t *t = talk(e, "probe.tap", "{'site':'*','what':'values','n':4}");
    tap_ok(talk_num(t, "sites") > 50, "%s: a glob taps %g sites", name, talk_num(t, "sites"));
    json_decref(t);
    json_t *done = talk_generate(e, PROMPT, TOKENS, tapped, TOKENS, &m);
    tap_ok(n == m && n > 5 && memcmp(plain, tapped, n * sizeof *plain) == 0, "%s: %zu tokens are the same with taps on", name, n);
    json_decref(done);
    json_t *info = talk(e, "info", "{}");
    tap_ok(!json_is_true(talk_at(info, "state.armed")), "%s: taps do not force eager steps", name);
    json_decref(info);
    reset(e);
    rs_engine_close(e);
}

static void test_records(struct rs_engine *e)
{
    int32_t tok[TOKENS];
    size_t n;
    json_decref(talk(e, "probe.tap", "{'site':'blk.?.attn.*'}"));
    json_decref(talk_generate(e, PROMPT, TOKENS, tok, TOKENS, &n));
    json_t *r = talk(e, "probe.read", "{'site':'blk.1.attn.norm','steps':5}");
    tap_eq_int((long long)json_array_size(talk_at(r, "sites.0.records")), 5, "five recorded steps");
    tap_ok(talk_num(r, "sites.0.records.4.step") == talk_num(r, "sites.0.records.0.step") + 4, "they are consecutive");
    tap_ok(talk_num(r, "sites.0.records.4.pos") == talk_num(r, "sites.0.records.0.pos") + 4, "a token each");
    tap_ok(json_is_true(talk_at(r, "sites.0.records.4.ranks_agree")), "a replicated tensor is the same on all ranks");
    tap_eq_int((long long)json_array_size(talk_at(r, "sites.0.records.4.ranks")), 4, "seen on four ranks");
    tap_ok(talk_num(r, "sites.0.records.4.whole.rms") > 0, "its rms is positive");
    json_decref(r);
    r = talk(e, "probe.read", "{'site':'blk.1.attn.mla','steps':1}");
    double parts = 0;
    for (size_t i = 0; i < 4; i++)
        parts += json_number_value(json_object_get(json_array_get(talk_at(r, "sites.0.records.0.ranks"), i), "n"));
    tap_ok(parts > 0 && talk_num(r, "sites.0.records.0.whole.n") == parts, "the parts of a sharded tensor add up to the whole");
    json_decref(r);
    r = talk(e, "probe.read", "{'site':'blk.1.attn.out'}");
    tap_ok(json_is_null(talk_at(r, "sites.0.records.0.whole")), "a partial sum has no whole in statistics");
    json_decref(r);
    reset(e);
}

static void test_copies(struct rs_engine *e)
{
    int32_t tok[4];
    size_t n, la = 0, lb = 0;
    void *a, *b;
    json_decref(talk(e, "probe.tap", "{'site':'blk.2.attn.out','what':'copy'}"));
    json_decref(talk(e, "probe.tap", "{'site':'blk.2.attn.allreduce','what':'copy'}"));
    json_decref(talk_generate(e, PROMPT, 3, tok, 4, &n));
    json_t *x = talk_blob(e, &a, &la, "probe.read", "{'site':'blk.2.attn.out','what':'copy'}");
    json_t *y = talk_blob(e, &b, &lb, "probe.read", "{'site':'blk.2.attn.allreduce','what':'copy'}");
    double d = 0, s = 0, min = INFINITY;
    for (size_t i = 0; i < la / sizeof(float) && la == lb; i++) {
        double p = (double)((float *)a)[i], q = (double)((float *)b)[i];
        d += (p - q) * (p - q);
        s += q * q;
        min = p < min ? p : min;
    }
    tap_ok(la == lb && la > 0 && s > 0 && sqrt(d / s) < 1e-6, "partial sums, added, are what the all-reduce left (%.2g)", sqrt(d / s));
    tap_near(talk_num(x, "stats.min"), min, 0, "statistics are of the data that comes with them");
    json_decref(x);
    json_decref(y);
    free(a);
    free(b);
    x = talk_blob(e, &a, &la, "probe.read", "{'site':'blk.2.attn.out','what':'copy','rank':1}");
    tap_ok(la == lb && a != NULL, "one rank's summand");
    json_decref(x);
    free(a);
    reset(e);
}

static void test_watches(struct rs_engine *e)
{
    int32_t tok[TOKENS];
    size_t n;
    const char *msg;
    json_decref(talk(e, "probe.watch", "{'cond':'nan'}"));
    json_decref(talk(e, "probe.watch", "{'cond':'rankdiff'}"));
    json_decref(talk(e, "probe.watch", "{'site':'blk.*.residual','cond':'constant'}"));
    json_decref(talk_generate(e, PROMPT, TOKENS, tok, TOKENS, &n));
    json_t *l = talk(e, "probe.list", "{}");
    for (int i = 0; i < 3; i++) {
        char path[40];
        snprintf(path, sizeof path, "watches.%d.hits", i);
        tap_eq_int((long long)talk_num(l, path), 0, "a clean model trips no watch (%d)", i);
    }
    tap_ok(json_is_null(talk_at(l, "first_bad")), "nothing is bad");
    json_decref(l);
    json_decref(talk(e, "probe.unwatch", "{}"));

    json_t *w = talk(e, "probe.watch", "{'site':'blk.2.ffn.norm','cond':'absmax>0'}");
    json_decref(talk_generate(e, PROMPT, 2, tok, TOKENS, &n));
    l = talk(e, "probe.list", "{}");
    tap_eq_str(talk_str(l, "watches.0.first.site"), "blk.2.ffn.norm", "a hit names its site");
    tap_ok(talk_num(l, "watches.0.first.value") > 0, "and the value");
    json_decref(l);
    l = talk(e, "health", "{}");
    tap_eq_str(talk_str(l, "first_bad.site"), "blk.2.ffn.norm", "health points at it");
    json_decref(l);
    json_decref(w);
    json_decref(talk(e, "probe.unwatch", "{}"));

    json_decref(talk(e, "probe.watch", "{'site':'blk.1.ffn.norm','cond':'absmax>0','action':'stop'}"));
    json_t *sub = talk(e, "submit", "{%s,'temp':0,'max_tokens':4,'ignore_eos':true}", PROMPT);
    json_t *ev = talk_wait(e, RS_EVENT_STOPPED);
    tap_eq_str(talk_str(ev, "site"), "blk.1.ffn.norm", "a watch that stops says where");
    tap_ok(!json_is_true(talk_at(ev, "in_step")), "a graph is held after its step");
    char step[40];
    snprintf(step, sizeof step, ", step %.0f", talk_num(ev, "step"));
    tap_ok(strstr(talk_str(ev, "reason"), step) != NULL, "the stop and its reason name the same step: %s", talk_str(ev, "reason"));
    json_decref(ev);
    tap_eq_int(talk_error(e, &msg, "forward", "{'ids':[1,2,3]}"), RS_ESTATE, "no other step while it is held");
    tap_ok(strstr(msg, "continue") != NULL, "the message says what to do: %s", msg);
    json_decref(talk(e, "continue", "{}"));
    ev = talk_wait(e, RS_EVENT_STOPPED);
    tap_ok(ev != NULL, "the next step stops again");
    snprintf(step, sizeof step, ", step %.0f", talk_num(ev, "step"));
    tap_ok(strstr(talk_str(ev, "reason"), step) != NULL, "and tells of its own hit, not of the first: %s", talk_str(ev, "reason"));
    json_decref(ev);
    json_t *gone = talk(e, "probe.unwatch", "{}");
    tap_eq_int((int)talk_num(gone, "removed"), 1, "it can be taken away while it holds the engine");
    json_decref(gone);
    json_t *rest = talk(e, "probe.list", "{}");
    tap_eq_int((int)json_array_size(talk_at(rest, "watches")), 0, "and is no longer listed");
    json_decref(rest);
    json_decref(talk(e, "continue", "{}"));
    ev = talk_wait(e, RS_EVENT_DONE);
    tap_eq_str(talk_str(ev, "stop"), "length", "the stream ends as if nothing had happened");
    json_decref(ev);
    json_decref(sub);
    reset(e);
}

static json_t *submit_and_stop(struct rs_engine *e, json_t **sub)
{
    *sub = talk(e, "submit", "{%s,'temp':0,'max_tokens':6,'ignore_eos':true}", PROMPT);
    return talk_wait(e, RS_EVENT_STOPPED);
}

static void test_breaks(struct rs_engine *e)
{
    json_t *sub, *ev, *t;
    size_t len = 0;
    void *blob;
    const char *msg;
    json_decref(talk(e, "break.add", "{'site':'blk.1.attn.mla','when':'before','cond':'!prompt && layer == 1'}"));
    t = talk(e, "info", "{}");
    tap_ok(json_is_true(talk_at(t, "state.armed")), "a breakpoint arms eager steps");
    json_decref(t);
    ev = submit_and_stop(e, &sub);
    tap_eq_str(talk_str(ev, "site"), "blk.1.attn.mla", "it stops at the site");
    tap_eq_str(talk_str(ev, "when"), "before", "before the op");
    tap_eq_int((long long)talk_num(ev, "rows"), 1, "at a generated token");
    json_decref(ev);
    t = talk_blob(e, &blob, &len, "tensor.read", "{'site':'blk.1.attn.mla','what':'in'}");
    tap_ok(len > 0 && talk_num(t, "shape.0") == 1 && talk_num(t, "stats.rms") > 0, "its input can be read: %g values", talk_num(t, "shape.1"));
    json_decref(t);
    free(blob);
    tap_eq_int(talk_error(e, &msg, "tensor.read", "{'site':'blk.1.attn.mla'}"), RS_ESTATE, "its output is not there yet");
    tap_eq_int(talk_error(e, &msg, "tensor.read", "{'site':'blk.0.ffn.norm'}"), RS_ESTATE, "an older output has been overwritten");
    tap_ok(strstr(msg, "overwritten by blk.1.attn.norm") != NULL, "by whom: %s", msg);
    json_decref(talk(e, "step", "{}"));
    ev = talk_wait(e, RS_EVENT_STOPPED);
    tap_ok(strcmp(talk_str(ev, "site"), "blk.1.attn.mla") == 0 && strcmp(talk_str(ev, "when"), "after") == 0, "step runs the op");
    json_decref(ev);
    t = talk_blob(e, &blob, &len, "tensor.read", "{'site':'blk.1.attn.mla','what':'in'}");
    tap_ok(len > 0 && talk_num(t, "stats.rms") > 0, "its input can still be read: nothing has overwritten it");
    json_decref(t);
    free(blob);
    json_decref(talk(e, "step", "{'n':2}"));
    ev = talk_wait(e, RS_EVENT_STOPPED);
    tap_eq_str(talk_str(ev, "site"), "blk.1.attn.allreduce", "step 2 runs two more");
    json_decref(ev);
    json_decref(talk(e, "next", "{}"));
    ev = talk_wait(e, RS_EVENT_STOPPED);
    tap_eq_str(talk_str(ev, "site"), "blk.2.attn.norm", "next goes to the next layer");
    json_decref(ev);
    tap_eq_int(talk_error(e, &msg, "probe.tap", "{'site':'*'}"), RS_ESTATE, "nothing is armed in the middle of a step");
    json_decref(talk(e, "cancel", "{'stream':%d}", (int)talk_num(sub, "stream")));
    json_decref(talk(e, "break.del", "{}"));
    json_decref(talk(e, "continue", "{}"));
    ev = talk_wait(e, RS_EVENT_DONE);
    tap_eq_str(talk_str(ev, "stop"), "cancelled", "a cancelled stream ends with the step");
    json_decref(ev);
    json_decref(sub);
    reset(e);
}

/* Overwriting the residual stream changes what comes out; writing back what is there does not. */
static void test_write(struct rs_engine *e)
{
    int32_t plain[6], tok[6];
    size_t n, m, len = 0;
    void *blob;
    json_decref(talk_generate(e, PROMPT, 6, plain, 6, &n));
    for (int zero = 0; zero < 2; zero++) {
        json_t *sub, *ev;
        json_decref(talk(e, "break.add", "{'site':'blk.2.ffn.residual','cond':'pos0 == 0'}"));
        ev = submit_and_stop(e, &sub);
        if (ev == NULL) { /* the prompt's rows may be in the cache: then the step begins later */
            json_decref(sub);
            continue;
        }
        json_decref(ev);
        m = 0;
        if (zero) {
            ev = talk(e, "tensor.write", "{'site':'blk.2.ffn.residual','value':0}");
            tap_ok(talk_num(ev, "written") > 0, "%g values overwritten", talk_num(ev, "written"));
            json_decref(ev);
        } else {
            struct rs_error err;
            char *reply = NULL;
            ev = talk_blob(e, &blob, &len, "tensor.read", "{'site':'blk.2.ffn.residual','rank':1}");
            tap_ok(rs_request(e, "tensor.write", "{\"site\":\"blk.2.ffn.residual\",\"rank\":1}", 10000, &reply, &err) == RS_EUSAGE, "a write needs a value or a blob");
            json_decref(ev);
            free(blob);
            free(reply);
        }
        json_decref(talk(e, "break.del", "{}"));
        json_decref(talk(e, "continue", "{}"));
        struct rs_event x;
        struct rs_error err;
        while (rs_next(e, 10000, &x, &err) == RS_OK && x.type != RS_EVENT_DONE)
            if (x.type == RS_EVENT_TOKEN && x.token >= 0 && m < 6)
                tok[m++] = x.token;
        bool same = m == n && memcmp(tok, plain, n * sizeof *tok) == 0;
        tap_ok(same == !zero, zero ? "zeros in the residual stream change the answer" : "stopping and looking change nothing");
        json_decref(sub);
    }
    reset(e);
}

static void test_errors(struct rs_engine *e)
{
    static const struct { const char *method, *args; enum rs_result want; } CASES[] = {
        {"probe.tap", "{'site':'blk.99.*'}", RS_ENOTFOUND},
        {"probe.tap", "{}", RS_EUSAGE},
        {"probe.tap", "{'site':'*','what':'everything'}", RS_EUSAGE},
        {"probe.tap", "{'site':'*','rank':4}", RS_EUSAGE},
        {"probe.tap", "{'site':'blk.0.attn.norm','out':1}", RS_EUSAGE},
        {"probe.tap", "{'site':'blk.0.attn.norm.and.much.more.than.fits.into.a.site'}", RS_EUSAGE},
        {"probe.watch", "{'cond':'nun'}", RS_EUSAGE},
        {"probe.watch", "{'cond':'absmax'}", RS_EUSAGE},
        {"probe.watch", "{'cond':'absmax>big'}", RS_EUSAGE},
        {"probe.watch", "{'cond':'nan > 3'}", RS_EUSAGE},
        {"probe.watch", "{'cond':'nan','action':'explode'}", RS_EUSAGE},
        {"probe.watch", "{'site':'blk.0.attn.out','cond':'rankdiff'}", RS_EUSAGE},
        {"probe.untap", "{'id':77}", RS_ENOTFOUND},
        {"probe.read", "{'site':'blk.0.attn.norm'}", RS_ENOTFOUND},
        {"break.add", "{'site':'blk.0.attn.mla','cond':'pos >'}", RS_EUSAGE},
        {"break.add", "{'site':'blk.0.attn.mla','cond':'(pos'}", RS_EUSAGE},
        {"break.add", "{'site':'blk.0.attn.mla','cond':'speed > 3'}", RS_EUSAGE},
        {"break.add", "{'site':'blk.0.attn.mla','cond':'pos pos'}", RS_EUSAGE},
        {"break.add", "{'site':'blk.0.attn.mla','when':'during'}", RS_EUSAGE},
        {"break.add", "{'site':'nowhere'}", RS_ENOTFOUND},
        {"break.del", "{'id':5}", RS_ENOTFOUND},
        {"continue", "{}", RS_ESTATE},
        {"step", "{}", RS_ESTATE},
        {"tensor.write", "{'site':'blk.0.attn.norm','value':1}", RS_ESTATE},
        {"tensor.read", "{'site':'blk.0.attn.norm'}", RS_ESTATE},
        {"tensor.read", "{'buffer':'nothing'}", RS_ENOTFOUND},
        {"tensor.read", "{'buffer':'logits_full','rows':[3,2]}", RS_EUSAGE},
        {"tensor.read", "{'buffer':'logits_full','cols':[0,100000000]}", RS_EUSAGE},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        tap_eq_int(talk_error(e, NULL, CASES[i].method, "%s", CASES[i].args), CASES[i].want, "%s %s is refused", CASES[i].method, CASES[i].args);
}

/* A tap outlives a new layout of the ranks. */
static void test_relayout(struct rs_engine *e)
{
    int32_t tok[4];
    size_t n;
    json_decref(talk(e, "probe.tap", "{'site':'blk.1.attn.mla'}"));
    json_decref(talk(e, "set", "{'ranks':2}"));
    json_decref(talk_generate(e, PROMPT, 3, tok, 4, &n));
    json_t *r = talk(e, "probe.read", "{'site':'blk.1.attn.mla'}");
    tap_eq_int((long long)json_array_size(talk_at(r, "sites.0.records.0.ranks")), 2, "taps follow to two ranks");
    json_decref(r);
    reset(e);
}

int main(void)
{
    test_identical("\"ranks\":4,\"mode\":\"graph\"", "graph, 4 ranks");
    test_identical("\"ranks\":1,\"mode\":\"eager\"", "eager, 1 rank");
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":4,\"mode\":\"graph\"");
    test_records(e);
    test_copies(e);
    test_watches(e);
    test_breaks(e);
    test_write(e);
    test_errors(e);
    test_relayout(e);
    rs_engine_close(e);
    return tap_done();
}
