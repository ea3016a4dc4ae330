/* Drills: faults that only the numbers show. Each must be found where it is, by replay or by the check of the cache, and nothing healthy be blamed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drills/drill.h"
#include "tests/talk.h"
#include "tests/tap.h"

#define IDS "'ids':[1,5,9,13,17,21,25,29,33,37,41,45,49,53,57,61,2,6,10,14,18,22,26,30,34,38,42]"
enum { N = 24 };

/* Do the guilty ones, in any number, all lie at the site? */
static void judge(json_t *r, const struct drill_fault *f)
{
    json_t *g = talk_at(r, "guilty");
    size_t right = 0, n = json_array_size(g);
    for (size_t i = 0; i < n; i++)
        right += strstr(talk_str(json_array_get(g, i), "site"), f->site) != NULL;
    const char *also = strcmp(f->name, "rope-halves") == 0 || strcmp(f->name, "epsilon") == 0 ? "kv_store" : "?"; /* keys are rotated and normed there */
    for (size_t i = 0; i < n; i++)
        right += strstr(talk_str(json_array_get(g, i), "site"), f->site) == NULL && strstr(talk_str(json_array_get(g, i), "site"), also) != NULL;
    tap_ok(n > 0 && right == n, "%s (%s): %zu outputs are guilty, %zu of them at %s", f->name, f->what, n, right, f->site);
    if (right != n)
        tap_diag("first: %s %s", talk_str(r, "first.site"), talk_str(r, "first.what"));
}

static struct rs_engine *open_for(const struct drill_fault *f, bool fast)
{
    bool dsa = strcmp(f->needs, "dsa") == 0;
    return talk_open(dsa ? "tests/golden/fixture-dsa.gguf" : "models/tiny-glm5-q4.gguf",
                     fast ? "\"ranks\":4,\"mode\":\"graph\",\"numerics\":\"fast\"" : "\"ranks\":4,\"mode\":\"graph\"");
}

/* Nothing that the engine keeps about itself may tell: patches, journal, hyper-parameters, ledger. */
static void check_traces(struct rs_engine *e, const struct drill_fault *f)
{
    json_t *p = talk(e, "patch.list", "{}"), *h = talk(e, "hparams.check", "{}"), *i = talk(e, "info", "{}");
    tap_ok(json_array_size(talk_at(p, "journal")) == 0 && talk_num(h, "wrong") == 0 && json_object_size(talk_at(i, "state.patches")) == 0, "%s: leaves no trace", f->name);
    json_decref(p);
    json_decref(h);
    json_decref(i);
}

static void drill(const struct drill_fault *f, bool fast)
{
    setenv("RANKSCOPE_DRILL", f->name, 1);
    struct rs_engine *e = open_for(f, fast);
    check_traces(e, f);
    if (strcmp(f->site, "cache") != 0) {
        json_t *r = talk(e, "replay", "{%s,'decode':3}", IDS);
        judge(r, f);
        json_decref(r);
    } else {
        int32_t tok[N];
        size_t n;
        json_t *s = talk(e, "session.new", "{}");
        json_decref(talk_generate(e, IDS ",'session':1", N, tok, N, &n));
        json_t *r = talk(e, "rewind", "{'session':%d,'n':4}", (int)talk_num(s, "session"));
        char *ids = json_dumps(talk_at(r, "ids"), JSON_COMPACT), args[2000];
        snprintf(args, sizeof args, "'ids':%s,'session':1", ids);
        json_decref(talk_generate(e, args, N, tok, N, &n));
        json_t *c = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
        tap_ok(talk_num(c, "bad") > 0, "%s%s (%s): %g of %g cache rows are wrong, the first at position %g", f->name, fast ? ", fast numerics" : "", f->what, talk_num(c, "bad"), talk_num(c, "rows"),
               talk_num(c, "first.pos"));
        free(ids);
        json_decref(c);
        json_decref(r);
        json_decref(s);
    }
    rs_engine_close(e);
    unsetenv("RANKSCOPE_DRILL");
}

/* The same program without a fault. */
static void clean(void)
{
    static const char *const MODELS[] = {"models/tiny-glm5-q4.gguf", "tests/golden/fixture-dsa.gguf"};
    for (size_t i = 0; i < 2; i++) {
        struct rs_engine *e = talk_open(MODELS[i], "\"ranks\":4,\"mode\":\"graph\"");
        json_t *r = talk(e, "replay", "{%s,'decode':3}", IDS);
        tap_eq_int((long long)talk_num(r, "out_of_tolerance"), 0, "without a fault nothing is blamed: %s", MODELS[i]);
        json_decref(r);
        rs_engine_close(e);
    }
}

int main(void)
{
    clean();
    for (size_t i = 0; i < DRILL_COUNT; i++)
        for (int fast = 0; fast < (strcmp(DRILLS[i].site, "cache") == 0 ? 2 : 1); fast++)
            drill(&DRILLS[i], fast == 1);
    return tap_done();
}
