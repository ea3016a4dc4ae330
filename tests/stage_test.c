/* Patches from C files: the examples load and compute the same, bad ones change nothing, swaps lose no token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|>','special':true"

#define HEAD "#include \"engine/patch_api.h\"\n"
#define TAIL(name, kind) "const struct rankscope_patch_v1 rankscope_patch = {RANKSCOPE_PATCH_ABI, sizeof rankscope_patch, sizeof(struct rankscope_call), \"" name "\", \"" kind "\", \"x\", run};\n"
#define ADD_LOOP(what) "static void run(const struct rankscope_call *c) { size_t f, t; rankscope_share(c, c->in[0].rows, 1, &f, &t);\n" \
    "for (size_t i = f; i < t; i++) for (uint32_t j = 0; j < c->in[0].width; j++) " what "; }\n"

static const char *write_patch(const char *text)
{
    static char path[512];
    snprintf(path, sizeof path, "%s", tap_scratch("patch.c"));
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return path;
}

static void test_bad(struct rs_engine *e)
{
    static const struct { const char *name, *text, *says; } CASES[] = {
        {"does not compile", HEAD "static void run(const struct rankscope_call *c) { c->nothing; }\n" TAIL("a", "add"), "does not compile"},
        {"exports nothing", HEAD "int x;\n", "does not export"},
        {"wrong result", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j] -= c->in[0].data[i * c->in[0].stride + j]") TAIL("a", "add"), "wrong"},
        {"writes outside", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j + 96] = 0") TAIL("a", "add"), "outside"},
        {"not a number", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j] = 0.0f / 0.0f") TAIL("a", "add"), "not a number"},
        {"crashes", HEAD "static void run(const struct rankscope_call *c) { *(volatile int *)8 = (int)c->lo; }\n" TAIL("a", "add"), "signal 11"},
        {"aborts", HEAD "#include <stdlib.h>\nstatic void run(const struct rankscope_call *c) { (void)c; abort(); }\n" TAIL("a", "add"), "signal 6"},
        {"unknown kind", HEAD "static void run(const struct rankscope_call *c) { (void)c; }\n" TAIL("a", "mla"), "no op kind"},
        {"another interface", HEAD "static void run(const struct rankscope_call *c) { (void)c; }\nconst struct rankscope_patch_v1 rankscope_patch = {99, 1, 1, \"a\", \"add\", \"x\", run};\n", "interface"},
        {"a bad name", HEAD ADD_LOOP("c->out[0].data[i * c->out[0].stride + j] += c->in[0].data[i * c->in[0].stride + j]") TAIL("a b;c", "add"), "name"},
    };
    const char *msg;
    json_t *before = talk(e, "patch.list", "{}");
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        enum rs_result rc = talk_error(e, &msg, "patch.load", "{'path':'%s','activate':true}", write_patch(CASES[i].text));
        tap_ok(rc == RS_EFORMAT && strstr(msg, CASES[i].says) != NULL, "%s: %s", CASES[i].name, msg);
    }
    json_t *after = talk(e, "patch.list", "{}");
    tap_ok(json_equal(before, after), "nothing has changed");
    json_decref(before);
    json_decref(after);
    tap_eq_int(talk_error(e, NULL, "patch.load", "{'path':'/nowhere.c'}"), RS_EIO, "a missing file");
    tap_eq_int(talk_error(e, NULL, "patch.load", "{}"), RS_EUSAGE, "no file");
    tap_eq_int(talk_error(e, NULL, "patch.set", "{'slot':'user','impl':'never-loaded'}"), RS_ENOTFOUND, "an implementation that was never loaded");
    tap_eq_int(talk_error(e, NULL, "patch.shadow", "{'impl':'never-loaded','ids':[1]}"), RS_ENOTFOUND, "nor can it be shadowed");
}

static void test_examples(struct rs_engine *e)
{
    int32_t plain[20], with[20];
    size_t n, m;
    char path[512];
    json_decref(talk_generate(e, PROMPT, 20, plain, 20, &n));
    static const char *const NAMES[] = {"rmsnorm-plain", "linear-plain"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "scripts/patches/%s.c", NAMES[i]);
        json_t *r = talk(e, "patch.load", "{'path':'%s'}", tap_source(path));
        tap_eq_str(talk_str(r, "name"), NAMES[i], "%s is loaded, self-test %.2g, %.0f ms", NAMES[i], talk_num(r, "selftest_worst"), talk_num(r, "staged_ms"));
        json_decref(r);
        r = talk(e, "patch.shadow", "{%s,'impl':'%s'}", PROMPT, NAMES[i]);
        double limit = i == 0 ? 1e-6 : 3e-2; /* the built-in projection rounds activations to int8, the plain one does not */
        tap_ok(talk_num(r, "compared") > 20 && talk_num(r, "worst") < limit, "%s in the shadow of the built-in: %g comparisons, worst %.2g at %s", NAMES[i],
               talk_num(r, "compared"), talk_num(r, "worst"), talk_str(r, "worst_site"));
        json_decref(r);
        json_decref(talk(e, "patch.set", "{'slot':'user','impl':'%s'}", NAMES[i]));
    }
    json_decref(talk_generate(e, PROMPT, 20, with, 20, &m));
    json_t *l = talk(e, "ledger", "{}");
    size_t users = 0;
    for (size_t i = 0; i < json_array_size(talk_at(l, "ops")); i++)
        users += strstr(talk_str(json_array_get(talk_at(l, "ops"), i), "impl"), "-plain") != NULL;
    tap_ok(users > 30, "the ledger names them at %zu ops", users);
    json_decref(l);
    tap_ok(n == m && memcmp(plain, with, n * sizeof *plain) == 0, "the answer is the same");
    l = talk(e, "replay", "{%s}", PROMPT);
    tap_eq_int((long long)talk_num(l, "out_of_tolerance"), 0, "the reference agrees with them");
    json_decref(l);
    l = talk(e, "diff", "{%s,'decode':2,'tolerance':0,'a':{'mode':'eager'},'b':{'mode':'graph'}}", PROMPT);
    tap_eq_int((long long)talk_num(l, "out_of_tolerance"), 0, "eager and graph agree to the bit with them");
    json_decref(l);
    json_t *again = talk(e, "patch.load", "{'path':'%s','activate':true,'site':'blk.1.*'}", tap_source("scripts/patches/rmsnorm-plain.c"));
    tap_eq_str(talk_str(again, "name"), "rmsnorm-plain.2", "a name that is taken gets a number");
    json_decref(again);
    json_decref(talk(e, "patch.revert", "{}"));
    json_decref(talk(e, "patch.reset", "{}"));
    l = talk(e, "info", "{}");
    tap_eq_int((long long)json_object_size(talk_at(l, "state.patches")), 0, "all can be taken back");
    json_decref(l);
}

/* While a stream runs, in every layout of the work: no token is lost. */
static void test_swaps(struct rs_engine *e)
{
    static const int RANKS[] = {1, 2, 8};
    for (size_t k = 0; k < 3; k++) {
        struct rs_event ev;
        struct rs_error err;
        int tokens = 0, swaps = 0;
        bool done = false;
        json_decref(talk(e, "set", "{'ranks':%d}", RANKS[k]));
        json_decref(talk(e, "submit", "{%s,'temp':0,'max_tokens':300,'ignore_eos':true}", PROMPT));
        while (!done && rs_next(e, 60000, &ev, &err) == RS_OK) {
            done = ev.type == RS_EVENT_DONE;
            tokens += ev.type == RS_EVENT_TOKEN && ev.token >= 0;
            if (ev.type == RS_EVENT_TOKEN && tokens % 10 == 0) {
                json_decref(talk(e, "patch.set", "{'slot':'user','impl':'%s'}", swaps % 2 ? "off" : "rmsnorm-plain"));
                swaps++;
            }
        }
        tap_ok(done && tokens == 300 && swaps > 10, "%d ranks: %d swaps, %d tokens", RANKS[k], swaps, tokens);
        json_decref(talk(e, "patch.reset", "{}"));
    }
}

int main(void)
{
    if (system("${CC:-cc} --version >/dev/null 2>&1") != 0)
        tap_skip_all("no C compiler");
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":4,\"mode\":\"graph\"");
    test_bad(e);
    test_examples(e);
    test_swaps(e);
    rs_engine_close(e);
    return tap_done();
}
