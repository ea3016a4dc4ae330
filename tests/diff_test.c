/* diff and dump: two configurations, or one and a saved reference, op by op. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/npz.h"
#include "tests/elsewhere.h"
#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|>','special':true"
#define F32 "'patches':{'matmul':'f32','cache':'f32'}"

/* Ops that a diff found out of tolerance, with the first one's site and the largest distance of all. */
static int out_of(json_t *d, const char **first, double *worst)
{
    *first = talk_str(d, "first.site");
    *worst = 0;
    for (size_t i = 0; i < json_array_size(talk_at(d, "ops")); i++)
        *worst = fmax(*worst, json_number_value(json_object_get(json_array_get(talk_at(d, "ops"), i), "rel_l2")));
    return (int)talk_num(d, "out_of_tolerance");
}

static void expect_same(struct rs_engine *e, double tolerance, const char *name, const char *a, const char *b)
{
    const char *first;
    double worst;
    json_t *d = talk(e, "diff", "{%s,'decode':3,'a':{%s},'b':{%s}}", PROMPT, a, b);
    int n = out_of(d, &first, &worst);
    tap_ok(n == 0 && talk_num(d, "compared") > 200 && talk_num(d, "tolerance") == tolerance, "%s: %g tensors within %g, worst %.2g%s%s", name,
           talk_num(d, "compared"), talk_num(d, "tolerance"), worst, n ? ", first off: " : "", first);
    json_decref(d);
}

static void expect_first(struct rs_engine *e, const char *site, const char *name, const char *a, const char *b)
{
    const char *first;
    double worst;
    json_t *d = talk(e, "diff", "{%s,'a':{%s},'b':{%s}}", PROMPT, a, b);
    int n = out_of(d, &first, &worst);
    tap_ok(n > 0, "%s: %d tensors differ", name, n);
    tap_eq_str(first, site, "%s: the first is named", name);
    json_decref(d);
}

static void test_configurations(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":4,\"mode\":\"graph\"");
    expect_same(e, 0, "eager and graph", "'mode':'eager'", "'mode':'graph'");
    expect_same(e, 0, "a second runtime of the same configuration", "'isa':'portable'", "'isa':'portable'");
    expect_same(e, 1e-4, "1 rank and 8", "'ranks':1," F32, "'ranks':8," F32);
    expect_same(e, 1e-4, "3 ranks and 5", "'ranks':3," F32, "'ranks':5," F32);
    expect_same(e, 1e-4, "experts whole and cut", "'ranks':4,'patches':{'matmul':'f32','cache':'f32','moe.split':'ep'}",
                "'ranks':4,'patches':{'matmul':'f32','cache':'f32','moe.split':'tp'}");
    expect_same(e, 1e-4, "absorbed and expanded", "'patches':{'matmul':'f32','cache':'f32','mla':'absorbed'}", "'patches':{'matmul':'f32','cache':'f32','mla':'expanded'}");
    expect_same(e, 0, "expanded, eager and graph", "'mode':'eager','patches':{'mla':'expanded'}", "'mode':'graph','patches':{'mla':'expanded'}");
    expect_same(e, 1e-4, "absorbed and direct in eager mode", "'mode':'eager','patches':{'matmul':'f32','cache':'f32','mla':'absorbed'}",
                "'mode':'eager','patches':{'matmul':'f32','cache':'f32','mla':'direct'}");
    expect_same(e, 6e-2, "int8 and f32", "'mode':'eager'", F32);
    expect_first(e, "blk.0.attn.qkv_a", "slots in file order", "'patches':{'slot_order':'file'}", "");
    expect_first(e, "blk.2.attn.qkv_a", "one site's slots in file order", "'patches':{'slot_order@blk.2.attn.*':'file'}", "");
    json_t *i = talk(e, "info", "{}");
    tap_ok(talk_num(i, "state.ranks") == 4 && strcmp(talk_str(i, "state.mode"), "graph") == 0 &&
               json_object_size(talk_at(i, "state.patches")) == (elsewhere_cuda() ? 1 : 0), /* the test's own allreduce.dtype */
           "a diff leaves the engine as it was");
    json_decref(i);
    rs_engine_close(e);
}

/* More tokens than fit in a step: the comparison starts from one side's cache. */
static void test_long(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":2,\"batch_tokens\":16,\"max_seqs\":16");
    char ids[1024] = "";
    for (int i = 0; i < 70; i++)
        snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", i ? "," : "", 100 + i * 7 % 900);
    for (int own = 0; own < 2; own++) {
        json_t *d = talk(e, "diff", "{'ids':[%s],'decode':3,'cache':'%s','a':{'ranks':2," F32 "},'b':{'ranks':1," F32 "}}", ids, own ? "own" : "same");
        tap_ok(talk_num(d, "out_of_tolerance") == 0 && talk_num(d, "rows") == 6, "five chunks with %s cache: the last %g rows agree", own ? "its own" : "the same",
               talk_num(d, "rows"));
        json_decref(d);
    }
    rs_engine_close(e);
}

static void test_dump(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":4");
    char path[512];
    struct npz *z = NULL;
    struct npz_array a;
    struct rs_error err;
    snprintf(path, sizeof path, "%s", tap_scratch("own.npz"));
    json_t *d = talk(e, "dump", "{%s,'path':'%s'}", PROMPT, path);
    tap_ok(talk_num(d, "arrays") > 100, "%g arrays saved", talk_num(d, "arrays"));
    json_decref(d);
    tap_ok(npz_open(path, &z, &err) == RS_OK && npz_get(z, "blk.1.attn.norm", &a, &err) == RS_OK && a.n_dims == 2, "the archive can be read");
    npz_close(z);
    d = talk(e, "diff", "{'b':{'file':'%s'},'tolerance':0}", path);
    tap_ok(talk_num(d, "out_of_tolerance") == 0 && talk_num(d, "compared") > 100, "the same configuration again gives the same bits");
    json_decref(d);
    d = talk(e, "diff", "{'a':{'patches':{'slot_order@blk.1.attn.qkv_a':'file'}},'b':{'file':'%s'}}", path);
    tap_eq_str(talk_str(d, "first.site"), "blk.1.attn.qkv_a", "a changed one does not, from here on");
    json_decref(d);
    rs_engine_close(e);
}

/* scripts/reference.py in float64, on every kind of model. */
static void test_reference(const char *name, unsigned ranks)
{
    char model[200], cmd[2000], npz[512], extra[100];
    snprintf(model, sizeof model, "tests/golden/fixture-%s.gguf", name);
    snprintf(npz, sizeof npz, "%s", tap_scratch("reference.npz"));
    snprintf(cmd, sizeof cmd, "python3 -c 'import numpy, gguf' 2>/dev/null && python3 '%s/scripts/reference.py' '%s/%s' "
             "1,5,9,13,17,21,25,29,33,37,41,45,49,53,57,61,2,6,10,14,18,22,26,30,34,38,42,46,50,54 --dump '%s' >/dev/null", getenv("abs_srcdir"), getenv("abs_srcdir"), model, npz);
    if (system("python3 -c 'import numpy, gguf' 2>/dev/null") != 0) {
        tap_skip(2, "python3 with numpy and gguf is missing");
        return;
    }
    tap_ok(system(cmd) == 0, "%s: the reference runs", name);
    snprintf(extra, sizeof extra, "\"ranks\":%u", ranks);
    struct rs_engine *e = talk_open(model, extra);
    const char *first;
    double worst;
    json_t *d = talk(e, "diff", "{'a':{'patches':{'matmul':'f32','cache':'f32'}},'b':{'file':'%s'}}", npz);
    int n = out_of(d, &first, &worst);
    tap_ok(n == 0 && talk_num(d, "compared") >= 20 && talk_num(d, "tolerance") == 1e-4, "%s, %u ranks: %g arrays within %g, worst %.2g %s", name, ranks,
           talk_num(d, "compared"), talk_num(d, "tolerance"), worst, first);
    json_decref(d);
    rs_engine_close(e);
}

static void test_errors(void)
{
    static const struct { const char *method, *args; enum rs_result want; } CASES[] = {
        {"diff", "{'a':{}}", RS_EUSAGE},
        {"diff", "{'ids':[]}", RS_EUSAGE},
        {"diff", "{'ids':[1],'a':{'ranks':0}}", RS_EUSAGE},
        {"diff", "{'ids':[1],'a':{'mood':'graph'}}", RS_EUSAGE},
        {"diff", "{'ids':[1],'a':{'patches':{'nothing':'f32'}}}", RS_ENOTFOUND},
        {"diff", "{'ids':[1],'a':{'isa':'mmx'}}", RS_EUSAGE},
        {"diff", "{'ids':[1],'b':{'backend':'abacus'}}", RS_EUNSUPPORTED},
        {"diff", "{'ids':[1],'b':{'file':'/nowhere.npz'}}", RS_EIO},
        {"diff", "{'ids':[1],'a':{'file':'/nowhere.npz'}}", RS_EUSAGE},
        {"diff", "{'ids':[1],'b':{'patches':{'mla':'direct'}}}", RS_ESTATE},
        {"dump", "{'ids':[1]}", RS_EUSAGE},
        {"dump", "{'ids':[1],'path':'/nowhere/x.npz'}", RS_EIO},
    };
    struct rs_engine *e = talk_open(MODEL, "\"mode\":\"graph\"");
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        tap_eq_int(talk_error(e, NULL, CASES[i].method, "%s", CASES[i].args), CASES[i].want, "%s %s is refused", CASES[i].method, CASES[i].args);
    rs_engine_close(e);
}

/* A good archive, cut short and with every byte of its structure changed: refused or read, never worse. */
static void test_damage(void)
{
    struct npz_writer *w;
    struct rs_error err;
    const float x[6] = {1, 2, 3, 4, 5, 6};
    char good[512], bad[512];
    snprintf(good, sizeof good, "%s", tap_scratch("good.npz"));
    snprintf(bad, sizeof bad, "%s", tap_scratch("bad.npz"));
    tap_ok(npz_create(good, &w, &err) == RS_OK && npz_add_f32(w, "x", x, 2, 3, &err) == RS_OK && npz_finish(w, &err) == RS_OK, "an archive is written");
    static uint8_t data[4096], copy[4096];
    FILE *f = fopen(good, "rb");
    size_t n = f != NULL ? fread(data, 1, sizeof data, f) : 0, read = 0, refused = 0;
    if (f != NULL)
        fclose(f);
    for (size_t i = 0; i < 2 * n; i++) {
        struct npz *z;
        struct npz_array a;
        memcpy(copy, data, n);
        if (i >= n)
            copy[i - n] ^= 0xff;
        f = fopen(bad, "wb");
        fwrite(copy, 1, i < n ? i : n, f);
        fclose(f);
        bool ok = npz_open(bad, &z, &err) == RS_OK;
        if (ok) {
            bool got = npz_get(z, "x", &a, &err) == RS_OK;
            for (size_t k = 0; got && k < a.n; k++)
                read += npz_at(&a, k) != 1234.5;
            refused += !got;
            npz_close(z);
        } else {
            refused++;
        }
    }
    tap_ok(n > 100 && refused > n && read > 0, "%zu damaged archives refused, the others read", refused);
}

int main(void)
{
    test_configurations();
    test_long();
    test_dump();
    test_reference("dsa", 2);
    test_reference("dsa-shared", 3);
    test_reference("v3", 4);
    test_reference("v32", 2);
    test_reference("flash", 5);
    test_reference("v2lite", 2);
    test_errors();
    test_damage();
    return tap_done();
}
