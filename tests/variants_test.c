/* The fixtures of tests/golden, one per variant of the family, against their references; sparse attention in its other forms, and its selections
 * against the oracle's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine_client.h"
#include "tests/tap.h"

static const char *const NAMES[] = {"dsa", "dsa-shared", "v32", "flash", "v3", "v2lite"};
enum { N_NAMES = 6, N_SPARSE = 3 };

#define F32 "\"matmul\":\"f32\",\"cache\":\"f32\""

static void open_fixture(struct rs_engine *e, const char *name, int ranks, const char *mode, int batch, const char *patches)
{
    json_decref(ec_call(e, "patch.reset", "{}"));
    char *file = strdup(tap_source("tests/golden/"));
    json_decref(ec_call(e, "open", "{\"path\":\"%s/fixture-%s.gguf\",\"ranks\":%d,\"mode\":\"%s\",\"batch_tokens\":%d,\"patches\":{%s}}", file, name, ranks, mode,
                        batch, patches));
    free(file);
}

/* Logits of all rows; states too where worst is given. *worst becomes the largest relative distance from the reference. */
static float *forward(struct rs_engine *e, const json_t *gold, size_t *vocab, double *worst)
{
    float *x;
    size_t n;
    const char *key;
    json_t *row, *states = json_object_get(gold, "layer_last");
    json_t *o = ec_blob(e, "forward", json_pack("{s:O,s:s,s:b}", "ids", json_object_get(gold, "ids"), "logits", "all", "layers", 1), &x, &n);
    json_t *l = json_object_get(o, "layers");
    long long width = json_integer_value(json_object_get(l, "width"));
    *vocab = (size_t)json_integer_value(json_object_get(o, "vocab"));
    *worst = 0;
    json_object_foreach(json_object_get(gold, "logits"), key, row)
        *worst = fmax(*worst, ec_rel(x + strtoul(key, NULL, 10) * *vocab, row));
    for (size_t k = 0; k < json_array_size(states); k++)
        *worst = fmax(*worst, ec_rel(x + json_integer_value(json_object_get(l, "offset")) + (long long)k * width, json_array_get(states, k)));
    json_decref(o);
    return x;
}

/* Rows whose best token is the reference's, where the two best of ours differ by more than what may come from rounding; *sure counts those. */
static long long same_argmax(const json_t *gold, const float *x, size_t vocab, long long *sure)
{
    json_t *want = json_object_get(gold, "argmax_each");
    long long same = 0;
    *sure = 0;
    for (size_t t = 0; t < json_array_size(want); t++) {
        const float *r = x + t * vocab;
        size_t best = 0;
        double second = -INFINITY, norm = 0;
        for (size_t i = 0; i < vocab; i++) {
            best = r[i] > r[best] ? i : best;
            norm += (double)r[i] * (double)r[i];
        }
        for (size_t i = 0; i < vocab; i++)
            second = i != best && (double)r[i] > second ? (double)r[i] : second;
        if ((double)r[best] - second < 1e-4 * sqrt(norm))
            continue;
        ++*sure;
        same += (long long)best == json_integer_value(json_array_get(want, t));
    }
    return same;
}

static void test_fixture(struct rs_engine *e, const char *name, const json_t *gold)
{
    static const int ranks[] = {1, 2, 4};
    for (int r = 0; r < 3; r++)
        for (int m = 0; m < 2; m++) {
            double worst;
            size_t vocab;
            long long sure;
            open_fixture(e, name, ranks[r], m == 0 ? "graph" : "eager", 512, F32);
            float *x = forward(e, gold, &vocab, &worst);
            tap_ok(worst <= 1e-4, "%s, %d ranks, %s: within 1e-4 (%.2e)", name, ranks[r], m == 0 ? "graph" : "eager", worst);
            long long same = same_argmax(gold, x, vocab, &sure);
            tap_ok(same == sure && sure > 40, "%s, %d ranks, %s: the best token of %lld sure positions", name, ranks[r], m == 0 ? "graph" : "eager", sure);
            free(x);
        }
}

/* The other ways to the same numbers: chunks of a prompt, generated rows; and the dense way to others. */
static void test_forms(struct rs_engine *e, const char *name, const json_t *gold)
{
    double worst, dense;
    size_t vocab;
    open_fixture(e, name, 1, "graph", 7, F32);
    float *chunks = forward(e, gold, &vocab, &worst);
    tap_ok(worst <= 1e-4, "%s: a prompt in chunks of 7 (%.2e)", name, worst);
    open_fixture(e, name, 2, "graph", 512, F32 ",\"mla\":\"absorbed\"");
    float *absorbed = forward(e, gold, &vocab, &worst);
    tap_ok(worst <= 1e-4, "%s: rows in the absorbed form (%.2e)", name, worst);
    open_fixture(e, name, 1, "graph", 512, F32 ",\"attention\":\"dense\"");
    float *all = forward(e, gold, &vocab, &dense);
    tap_ok(dense > 1e-2, "%s: attention=dense computes something else (%.2e)", name, dense);
    tap_ok(ec_rel_f(all, chunks, vocab * 16) < 1e-5, "%s: up to top_k keys dense and sparse are the same", name);
    free(chunks);
    free(absorbed);
    free(all);
}

/* What a tap on the selection sees, against the oracle. Rows of up to top_k keys select nothing: they see all. */
static void test_selections(struct rs_engine *e, const char *name, const json_t *gold, json_t *want, int ranks)
{
    const char *layer;
    json_t *rows;
    open_fixture(e, name, ranks, "graph", 512, F32);
    json_decref(ec_call(e, "probe.tap", "{\"site\":\"*.attn.index.topk\",\"what\":\"copy\"}"));
    double worst;
    size_t vocab, n;
    free(forward(e, gold, &vocab, &worst));
    json_object_foreach(want, layer, rows) {
        float *x;
        char site[64];
        int wrong = 0, compared = 0;
        snprintf(site, sizeof site, "blk.%s.attn.index.topk", layer);
        json_t *o = ec_blob(e, "probe.read", json_pack("{s:s,s:s,s:i}", "site", site, "what", "copy", "rank", ranks - 1), &x, &n);
        size_t width = (size_t)json_integer_value(json_object_get(o, "width")), got = (size_t)json_integer_value(json_object_get(o, "rows"));
        for (size_t t = 16; t < json_array_size(rows) && t < got; t++) {
            const float *sel = x + t * width; /* the reader makes floats of whole numbers */
            bool same = width == 17 && sel[0] == 16.0f;
            for (size_t i = 0; i < 16 && same; i++)
                same = (json_int_t)sel[1 + i] == json_integer_value(json_array_get(json_array_get(rows, t), i));
            wrong += !same;
            compared++;
        }
        tap_ok(wrong == 0 && compared == 32, "%s, %d ranks, layer %s: the oracle's selections in %d rows", name, ranks, layer, compared);
        json_decref(o);
        free(x);
    }
    json_decref(ec_call(e, "probe.untap", "{}"));
}

int main(void)
{
    struct rs_engine *e = ec_open();
    json_t *gold = json_load_file(tap_source("tests/golden/golden-variants.json"), 0, NULL);
    json_t *index = json_load_file(tap_source("tests/golden/golden-index.json"), 0, NULL);
    for (int i = 0; i < N_NAMES; i++) {
        const json_t *g = json_object_get(gold, NAMES[i]);
        test_fixture(e, NAMES[i], g);
        if (i >= N_SPARSE)
            continue;
        test_forms(e, NAMES[i], g);
        test_selections(e, NAMES[i], g, json_object_get(index, NAMES[i]), 1);
        test_selections(e, NAMES[i], g, json_object_get(index, NAMES[i]), 4);
    }
    json_decref(gold);
    json_decref(index);
    rs_engine_close(e);
    return tap_done();
}
