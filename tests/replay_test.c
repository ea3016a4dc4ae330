/* Every op against the reference on its own inputs: clean models are clean, a planted difference is found where it is and nowhere else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|>','special':true"
#define IDS "'ids':[1,5,9,13,17,21,25,29,33,37,41,45,49,53,57,61,2,6,10,14,18,22,26,30,34,38,42]"

static void expect_clean(struct rs_engine *e, const char *name, const char *args)
{
    json_t *r = talk(e, "replay", "{%s}", args);
    double worst = 0;
    for (size_t i = 0; i < json_array_size(talk_at(r, "ops")); i++) {
        json_t *o = json_array_get(talk_at(r, "ops"), i);
        worst = fmax(worst, json_number_value(json_object_get(o, "rel_l2")) / json_number_value(json_object_get(o, "tolerance")));
    }
    tap_ok(talk_num(r, "compared") > 80 && talk_num(r, "out_of_tolerance") == 0, "%s: %g outputs, the worst uses %.0f %% of its tolerance", name,
           talk_num(r, "compared"), 100 * worst);
    if (!json_is_null(talk_at(r, "first")))
        tap_diag("guilty: %s %s %g", talk_str(r, "first.site"), talk_str(r, "first.what"), talk_num(r, "first.rel_l2"));
    json_decref(r);
}

/* All guilty ones are `site` (or contain it), and there are some. */
static void expect_guilty(struct rs_engine *e, const char *site, const char *name, const char *args)
{
    json_t *r = talk(e, "replay", "{%s}", args), *g = talk_at(r, "guilty");
    size_t others = 0;
    for (size_t i = 0; i < json_array_size(g); i++)
        others += strstr(talk_str(json_array_get(g, i), "site"), site) == NULL;
    tap_ok(json_array_size(g) > 0 && others == 0, "%s: %zu outputs are wrong, all at %s", name, json_array_size(g), site);
    if (others != 0)
        tap_diag("first %s", talk_str(r, "first.site"));
    json_decref(r);
}

static void test_fixtures(void)
{
    static const struct { const char *name, *extra; } F[] = {
        {"dsa", "\"ranks\":2"}, {"dsa-shared", "\"ranks\":3"}, {"v3", "\"ranks\":4"}, {"v32", "\"ranks\":2"}, {"flash", "\"ranks\":4"}, {"v2lite", "\"ranks\":2"},
        {"kquant", "\"ranks\":4"}};
    for (size_t i = 0; i < sizeof F / sizeof F[0]; i++) {
        char path[100], name[100];
        snprintf(path, sizeof path, "tests/golden/fixture-%s.gguf", F[i].name);
        struct rs_engine *e = talk_open(path, F[i].extra);
        snprintf(name, sizeof name, "%s, f32", F[i].name);
        expect_clean(e, name, IDS ",'config':{'patches':{'matmul':'f32','cache':'f32'}}");
        snprintf(name, sizeof name, "%s, expanded", F[i].name);
        expect_clean(e, name, IDS ",'config':{'patches':{'matmul':'f32','cache':'f32','mla':'expanded'}}");
        snprintf(name, sizeof name, "%s, defaults", F[i].name);
        expect_clean(e, name, IDS);
        rs_engine_close(e);
    }
}

static void test_shipped(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":4,\"mode\":\"graph\"");
    expect_clean(e, "shipped model, graph, 4 ranks", PROMPT);
    expect_clean(e, "shipped model, graph, 1 rank", PROMPT ",'decode':3,'config':{'mode':'graph','ranks':1}");
    expect_clean(e, "shipped model, graph, 3 ranks", PROMPT ",'decode':3,'config':{'mode':'graph','ranks':3}");
    expect_clean(e, "shipped model, eager, 8 ranks", PROMPT ",'config':{'mode':'eager','ranks':8}");
    expect_clean(e, "shipped model, whole experts", PROMPT ",'config':{'patches':{'moe.split':'ep'}}");
    expect_clean(e, "shipped model, bf16 all-reduce and cache", PROMPT ",'config':{'patches':{'allreduce.dtype':'bf16','cache':'bf16'}}");
    expect_guilty(e, "attn.qkv_a", "slots in file order", PROMPT ",'config':{'patches':{'slot_order':'file'}}");
    expect_clean(e, "shipped model, expanded", PROMPT ",'config':{'patches':{'moe.split':'ep','mla':'expanded'}}");
    expect_clean(e, "shipped model, expanded, bf16 cache", PROMPT ",'decode':3,'config':{'mode':'graph','patches':{'mla':'expanded','cache':'bf16'}}");
    expect_guilty(e, "attn.mla", "an op left out of the graph", PROMPT ",'decode':3,'config':{'mode':'graph','graph_guard':false,'patches':{'mla':'direct'}}");
    expect_clean(e, "the same op in eager mode", PROMPT ",'decode':3,'config':{'mode':'eager','patches':{'mla':'direct'}}");
    json_t *r = talk(e, "replay", "{%s,'site':'blk.0.attn.qkv_a','config':{'patches':{'slot_order':'file'}}}", PROMPT);
    tap_eq_str(talk_str(r, "first.slots.1.tensor"), "blk.0.attn_kv_a_mqa.weight", "slots are named");
    tap_ok(talk_num(r, "first.slots.0.rel_l2") > 0.5 && talk_num(r, "first.slots.1.rel_l2") > 0.5, "and both are wrong");
    json_decref(r);
    r = talk(e, "hparams.check", "{}");
    tap_ok(talk_num(r, "wrong") == 0 && json_array_size(talk_at(r, "facts")) > 8, "%zu facts known of %s, none contradicted", json_array_size(talk_at(r, "facts")),
           talk_str(r, "model"));
    json_decref(r);
    static const struct { const char *method, *args; enum rs_result want; } CASES[] = {
        {"replay", "{}", RS_EUSAGE}, {"replay", "{'ids':[]}", RS_EUSAGE}, {"replay", "{'ids':[1],'decode':99}", RS_EUSAGE},
        {"replay", "{'ids':[1],'config':{'patches':{'mla':'direct'}}}", RS_ESTATE}, {"cache.check", "{'session':9}", RS_ENOTFOUND},
        {"hparams.check", "{'x':1}", RS_EUSAGE}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        tap_eq_int(talk_error(e, NULL, CASES[i].method, "%s", CASES[i].args), CASES[i].want, "%s %s is refused", CASES[i].method, CASES[i].args);
    rs_engine_close(e);
}

static void test_cache(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":2,\"mode\":\"graph\"");
    int32_t tok[64];
    size_t n;
    json_t *s = talk(e, "session.new", "{}");
    char args[300];
    snprintf(args, sizeof args, PROMPT ",'session':%d", (int)talk_num(s, "session"));
    json_decref(talk_generate(e, args, 40, tok, 64, &n));
    json_t *r = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
    tap_ok(talk_num(r, "tokens") >= 32 && talk_num(r, "bad") == 0 && talk_num(r, "worst") == 0, "the cache of %g tokens is what computing them again gives",
           talk_num(r, "tokens"));
    json_decref(r);
    json_decref(talk(e, "patch.set", "{'slot':'slot_order','impl':'file'}"));
    r = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
    tap_ok(talk_num(r, "tokens") == 0 && talk_num(r, "bad") == 0, "under another computation nothing of it counts");
    json_decref(r);
    json_decref(talk_generate(e, args, 40, tok, 64, &n));
    r = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
    tap_ok(talk_num(r, "tokens") >= 32 && talk_num(r, "bad") == 0, "and what is asked anew is computed anew: %g tokens", talk_num(r, "tokens"));
    json_decref(r);
    json_decref(s);
    rs_engine_close(e);
}

/* Fast numerics: rows of one conversation, each generated alone, are no worse than those of a run; and one that is wrong is still found. */
static void test_cache_fast(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":2,\"mode\":\"graph\",\"numerics\":\"fast\"");
    int32_t tok[128];
    size_t n;
    char args[300];
    json_t *s = talk(e, "session.new", "{}");
    snprintf(args, sizeof args, PROMPT ",'session':%d,'ignore_eos':true", (int)talk_num(s, "session"));
    json_decref(talk_generate(e, args, 100, tok, 128, &n));
    json_t *r = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
    tap_ok(talk_num(r, "tokens") >= 96 && talk_num(r, "bad") == 0, "fast numerics: %g of %g rows are wrong, %g agree only with being generated, the worst is %.2e off",
           talk_num(r, "bad"), talk_num(r, "rows"), talk_num(r, "alone"), talk_num(r, "worst"));
    json_decref(r);
    json_decref(s);
    s = talk(e, "session.new", "{}");
    snprintf(args, sizeof args, "{'text':'Once upon a time there was','session':%d,'ignore_eos':true,'max_tokens':60,'temp':0}", (int)talk_num(s, "session"));
    r = talk(e, "break.add", "{'site':'blk.3.attn.kv_store','when':'before','cond':'pos==40'}");
    json_decref(talk(e, "submit", "%s", args));
    json_decref(talk_wait(e, RS_EVENT_STOPPED));
    json_decref(talk(e, "tensor.write", "{'site':'blk.3.attn.kv_store','what':'in','cols':[0,128],'value':0}"));
    json_decref(talk(e, "break.del", "{'id':%d}", (int)talk_num(r, "id")));
    json_decref(talk(e, "continue", "{}"));
    json_decref(talk_wait(e, RS_EVENT_DONE));
    json_decref(r);
    r = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
    tap_ok(talk_num(r, "bad") > 0 && talk_num(r, "first.layer") == 3 && talk_num(r, "first.pos") == 40,
           "and a row that was tampered with is found where it is: layer %g, position %g, %.2e off", talk_num(r, "first.layer"), talk_num(r, "first.pos"), talk_num(r, "worst"));
    json_decref(r);
    json_decref(s);
    rs_engine_close(e);
}

int main(void)
{
    test_shipped();
    test_cache();
    test_cache_fast();
    test_fixtures();
    return tap_done();
}
