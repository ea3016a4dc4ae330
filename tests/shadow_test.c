/* Shadows of live traffic: what is used is what was used before, sequences that are served together are all seen, distances are those that a run on a
 * prompt of its own finds, and what was seen can be put in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua/scr_op.h"
#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"

enum { STREAMS = 5, TOKENS = 40 };
static const char *const PROMPTS[STREAMS] = {"What is the capital of France?", "Tell me a story about a cat.", "What is 23 + 45?", "Count from 17 to 25.", "Hello"};

/* The norm with an error of one in a thousand in one layer. */
#define OFF "return {name = 'norm-off', kind = 'rmsnorm', help = 'a little off in one layer', run = function(call)\n" \
    "local w = call.w[1]:row(1)\nfor i = 1, call.rows do\nlocal x, sum = call.x:row(i), 0\nfor j = 1, #x do sum = sum + x[j] * x[j] end\n" \
    "local f = 1 / math.sqrt(sum / #x + call.eps)\nif call.site == 'blk.3.ffn.norm' then f = f * 1.001 end\n" \
    "for j = 1, #x do x[j] = x[j] * f * w[j] end\ncall.y:set(i, x)\nend\nend}\n"
#define FAILS "return {name = 'norm-fails', kind = 'rmsnorm', help = 'fails', run = function(call)\nif call.layer == 2 then error('no') end\n" \
    "local w = call.w[1]:row(1)\nfor i = 1, call.rows do\nlocal x, sum = call.x:row(i), 0\nfor j = 1, #x do sum = sum + x[j] * x[j] end\n" \
    "local f = 1 / math.sqrt(sum / #x + call.eps)\nfor j = 1, #x do x[j] = x[j] * f * w[j] end\ncall.y:set(i, x)\nend\nend}\n"

static int n_tokens(void)
{
    return tap_short() ? 16 : TOKENS;
}

/* All prompts at once; tokens by stream. false: one ended otherwise than it should. */
static bool serve(struct rs_engine *e, int32_t out[STREAMS][TOKENS])
{
    uint32_t id[STREAMS];
    int n[STREAMS] = {0}, done = 0;
    struct rs_event ev;
    struct rs_error err;
    for (int i = 0; i < STREAMS; i++) {
        json_t *o = talk(e, "submit", "{'text':'[gMASK]<sop><|user|>%s<|assistant|>','special':true,'temp':0,'max_tokens':%d,'ignore_eos':true,'reuse':false}", PROMPTS[i],
                         n_tokens());
        id[i] = (uint32_t)talk_num(o, "stream");
        json_decref(o);
    }
    while (done < STREAMS && rs_next(e, 60000, &ev, &err) == RS_OK)
        for (int i = 0; i < STREAMS; i++) {
            if (ev.type == RS_EVENT_TOKEN && ev.id == id[i] && ev.token >= 0 && n[i] < n_tokens())
                out[i][n[i]++] = ev.token;
            done += ev.type == RS_EVENT_DONE && ev.id == id[i];
        }
    for (int i = 0; i < STREAMS; i++)
        done -= n[i] != n_tokens();
    return done == STREAMS;
}

static void load(struct rs_engine *e, const char *path)
{
    json_decref(talk(e, "patch.load", "{'path':'%s'}", path));
}

static void test_kinds(struct rs_engine *e, const char *mode, int32_t plain[STREAMS][TOKENS])
{
    static const struct { const char *name; double limit; } IMPLS[] = {{"rmsnorm-lua", 1e-6}, {"mla-plain", 3e-2}, {"kv_store-plain", 1e-3}, {"router-plain", 1e-5},
                                                                         {"allreduce-exact", 1e-6}, {"linear-plain", 3e-2},
                                                                         {"moe_gate_up-plain", 3e-2}, {"moe_down-plain", 3e-2}};
    int32_t got[STREAMS][TOKENS] = {0};
    const int steps = tap_short() ? 10 : 30;
    for (size_t i = 0; i < sizeof IMPLS / sizeof IMPLS[0]; i++) {
        json_decref(talk(e, "patch.live", "{'impl':'%s','steps':%d}", IMPLS[i].name, steps));
        bool ok = serve(e, got);
        json_t *r = talk(e, "patch.live.get", "{}");
        tap_ok(ok && memcmp(plain, got, sizeof got) == 0, "%s: %d answers in the shadow of %s are as without", mode, STREAMS, IMPLS[i].name);
        tap_ok(json_is_false(talk_at(r, "shadow.running")) && talk_num(r, "shadow.steps") == steps && talk_num(r, "shadow.compared") > 3 * steps, "%s: %g comparisons in %g steps, %s",
               mode, talk_num(r, "shadow.compared"), talk_num(r, "shadow.steps"), talk_str(r, "shadow.ended"));
        tap_ok(talk_num(r, "shadow.worst") < IMPLS[i].limit && talk_num(r, "shadow.worst") >= 0 && talk_num(r, "shadow.mean") <= talk_num(r, "shadow.worst"),
               "%s: apart by %.2g at most (%s), %.2g on average; %.2g ms a step", mode, talk_num(r, "shadow.worst"), talk_str(r, "shadow.worst_site"),
               talk_num(r, "shadow.mean"), talk_num(r, "shadow.ms_per_step"));
        json_decref(r);
    }
}

/* A step of more rows than a shadow of other ops keeps: pairs of experts are ordered over all of it. */
static void test_prompt(struct rs_engine *e, const char *name)
{
    char text[400] = "'text':'";
    int32_t out[4];
    size_t n;
    while (strlen(text) < sizeof text - 16)
        strcat(text, "a cat ");
    strcat(text, "'");
    json_decref(talk(e, "patch.live", "{'impl':'%s','steps':1}", name));
    json_decref(talk_generate(e, text, 4, out, 4, &n));
    json_t *r = talk(e, "patch.live.get", "{}");
    tap_ok(talk_num(r, "shadow.steps") == 1 && talk_num(r, "shadow.compared") == 5 && talk_num(r, "shadow.worst") < 3e-2,
           "%s beside a long prompt: %g ops of experts compared, apart by %.2g at most", name, talk_num(r, "shadow.compared"), talk_num(r, "shadow.worst"));
    json_decref(r);
}

static void test_drift(struct rs_engine *e)
{
    const char *msg;
    int32_t got[STREAMS][TOKENS];
    json_decref(talk(e, "probe.tap", "{'site':'blk.3.ffn.norm','what':'copy'}")); /* at the same op */
    json_decref(talk(e, "patch.live", "{'impl':'norm-off','steps':1000}"));
    tap_ok(serve(e, got), "a shadow beside a tap");
    json_decref(talk(e, "probe.tap", "{'site':'blk.*.mla'}")); /* and one that is armed meanwhile */
    tap_ok(serve(e, got), "and another");
    json_t *r = talk(e, "probe.read", "{'site':'blk.*','steps':1}");
    tap_ok(json_array_size(talk_at(r, "sites")) == 8 && talk_num(r, "sites.0.records.0.ranks.0.n") > 0 && talk_num(r, "sites.6.records.0.ranks.0.n") > 0, "the taps see what they saw: %zu sites, %g values",
           json_array_size(talk_at(r, "sites")), talk_num(r, "sites.0.records.0.ranks.0.n"));
    json_decref(r);
    r = talk(e, "patch.live.get", "{}");
    double worst = talk_num(r, "shadow.worst");
    tap_ok(json_is_true(talk_at(r, "shadow.running")) && worst > 0.9e-3 && worst < 1.1e-3 && strcmp(talk_str(r, "shadow.worst_site"), "blk.3.ffn.norm") == 0,
           "an error of 1e-3 is found where it is: %.3g at %s", worst, talk_str(r, "shadow.worst_site"));
    tap_ok(strcmp(talk_str(r, "shadow.ops.0.site"), "blk.3.ffn.norm") == 0 && talk_num(r, "shadow.ops.1.worst") < 1e-6, "and the others are clean: %.2g",
           talk_num(r, "shadow.ops.1.worst"));
    json_decref(r);
    enum rs_result rc = talk_error(e, &msg, "patch.promote", "{'limit':1e-4}");
    tap_ok(rc == RS_ESTATE && strstr(msg, "apart") != NULL, "it is not put in against a limit: %s", msg);
    json_decref(talk(e, "patch.live.stop", "{}"));
    json_decref(talk(e, "probe.untap", "{}"));
}

static void test_promote(struct rs_engine *e)
{
    int32_t got[STREAMS][TOKENS];
    json_decref(talk(e, "patch.live", "{'impl':'rmsnorm-lua','site':'blk.1.*','steps':5}"));
    tap_ok(serve(e, got), "a shadow of one layer");
    json_t *r = talk(e, "patch.promote", "{'limit':1e-5}");
    tap_eq_str(talk_str(r, "site"), "blk.1.*", "it is put in where it was seen");
    json_decref(r);
    json_decref(talk(e, "patch.live", "{'impl':'rmsnorm-lua','site':'blk.1.*','steps':5}"));
    tap_ok(serve(e, got), "answers with it");
    r = talk(e, "patch.live.get", "{}");
    tap_eq_str(talk_str(r, "shadow.ended"), "it was put in", "what is in use has no shadow");
    json_decref(r);
    json_decref(talk(e, "patch.revert", "{}"));
}

static void test_ends(struct rs_engine *e)
{
    int32_t got[STREAMS][TOKENS];
    json_decref(talk(e, "patch.live", "{'impl':'norm-fails','steps':1000}"));
    tap_ok(serve(e, got), "a shadow that fails harms nobody");
    json_t *r = talk(e, "patch.live.get", "{}");
    tap_ok(json_is_false(talk_at(r, "shadow.running")) && strstr(talk_str(r, "shadow.ended"), "fails.lua:2: no") != NULL, "it says why: %s", talk_str(r, "shadow.ended"));
    json_decref(r);
    json_decref(talk(e, "patch.live", "{'impl':'rmsnorm-lua','steps':1000}"));
    json_decref(talk(e, "set", "{'ranks':2}"));
    r = talk(e, "patch.live.get", "{}");
    tap_eq_str(talk_str(r, "shadow.ended"), "the model was laid out anew", "another layout ends it");
    json_decref(r);
    tap_ok(serve(e, got), "and answers go on");
    json_decref(talk(e, "patch.live", "{'impl':'rmsnorm-lua','steps':1000}"));
    json_decref(talk(e, "close", "{}"));
    r = talk(e, "patch.live.get", "{}");
    tap_eq_str(talk_str(r, "shadow.ended"), "the model was closed", "so does closing the model");
    json_decref(r);
}

int main(void)
{
    static const char *const FILES[] = {"mla-plain.c", "kv_store-plain.c", "router-plain.c", "allreduce-exact.c", "linear-plain.c", "rmsnorm.lua", "moe_gate_up-plain.c", "moe_down-plain.c"};
    static const char *const MODES[] = {"graph", "eager"};
    int32_t plain[STREAMS][TOKENS] = {0};
    char path[256];
    if (system("${CC:-cc} --version >/dev/null 2>&1") != 0)
        tap_skip_all("no C compiler");
    struct rs_engine *e = talk_open_hosted(MODEL, "\"ranks\":4,\"mode\":\"graph\"", scr_op_host());
    json_t *r = talk(e, "patch.live.get", "{}");
    tap_ok(json_is_null(talk_at(r, "shadow")), "there is none at first");
    json_decref(r);
    tap_eq_int(talk_error(e, NULL, "patch.promote", "{}"), RS_ESTATE, "nothing to put in");
    tap_eq_int(talk_error(e, NULL, "patch.live", "{'impl':'never-loaded'}"), RS_ENOTFOUND, "nothing of that name");
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) {
        snprintf(path, sizeof path, "scripts/patches/%s", FILES[i]);
        load(e, tap_source(path));
    }
    load(e, talk_file("off.lua", OFF));
    load(e, talk_file("fails.lua", FAILS));
    tap_eq_int(talk_error(e, NULL, "patch.live", "{'impl':'rmsnorm-lua','site':'blk.77.*'}"), RS_ENOTFOUND, "no such site");
    for (int m = 0; m < 2; m++) {
        json_decref(talk(e, "set", "{'mode':'%s'}", MODES[m]));
        tap_ok(serve(e, plain), "%s: %d answers at once", MODES[m], STREAMS);
        test_kinds(e, MODES[m], plain);
    }
    test_prompt(e, "moe_gate_up-plain");
    test_prompt(e, "moe_down-plain");
    test_drift(e);
    test_promote(e);
    test_ends(e);
    rs_engine_close(e);
    return tap_done();
}
