/* Files that are written: quantize, synth; files in older forms; what the audit says of files that something is wrong with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "engine/gguf_write.h"
#include "kernels/quant.h"
#include "tests/engine_client.h"
#include "tests/tap.h"

static char work[1024];

static const char *in_work(const char *name)
{
    snprintf(work, sizeof work, "%s", tap_scratch(name));
    return work;
}

enum change { SAME, NO_GATING, LEGACY_EXPERTS, FUSED_GATE_UP, TWIN_ROWS, BROKEN_SCALE, NO_HEAD, ONE_MORE };

static bool ends(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Describe (data false) or write tensor t under a change; may be several tensors or none. */
static void put_tensor(struct gguf_writer *w, const struct gguf *g, const struct gguf_tensor *t, enum change c, bool data)
{
    struct rs_error err;
    uint64_t ne[4];
    char name[96];
    int layer;
    memcpy(ne, t->ne, sizeof ne);
    if (c == NO_HEAD && strcmp(t->name, "output.weight") == 0)
        return;
    bool expert = sscanf(t->name, "blk.%d.", &layer) == 1 && (ends(t->name, "ffn_gate_exps.weight") || ends(t->name, "ffn_up_exps.weight") || ends(t->name, "ffn_down_exps.weight"));
    if (c == LEGACY_EXPERTS && expert) {
        const char *stem = ends(t->name, "gate_exps.weight") ? "gate" : ends(t->name, "up_exps.weight") ? "up" : "down";
        for (uint64_t i = 0; i < ne[2]; i++) {
            snprintf(name, sizeof name, "blk.%d.ffn_%s.%llu.weight", layer, stem, (unsigned long long)i);
            if (data)
                gguf_write_data(w, t->data + i * (t->bytes / ne[2]), t->bytes / ne[2], &err);
            else
                gguf_write_tensor(w, name, t->type, 2, ne);
        }
        return;
    }
    if (c == FUSED_GATE_UP && expert && !ends(t->name, "down_exps.weight")) {
        if (ends(t->name, "up_exps.weight"))
            return; /* stands with the gate */
        snprintf(name, sizeof name, "blk.%d.ffn_up_exps.weight", layer);
        const struct gguf_tensor *up = gguf_find_tensor(g, name);
        snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", layer);
        size_t each = t->bytes / ne[2];
        ne[1] *= 2;
        if (!data)
            gguf_write_tensor(w, name, t->type, 3, ne);
        for (uint64_t i = 0; data && i < ne[2]; i++) {
            gguf_write_data(w, t->data + i * each, each, &err);
            gguf_write_data(w, up->data + i * each, each, &err);
        }
        return;
    }
    if (!data) {
        gguf_write_tensor(w, t->name, t->type, t->n_dims, ne);
        return;
    }
    uint8_t *copy = malloc(t->bytes);
    memcpy(copy, t->data, t->bytes);
    if (c == TWIN_ROWS && strcmp(t->name, "output.weight") == 0)
        memcpy(copy + t->bytes / 2, copy, t->bytes / 2);
    if (c == BROKEN_SCALE && ends(t->name, "blk.1.attn_output.weight"))
        memcpy(copy + 5 * 34, "\x00\x7e", 2); /* block 5's half becomes NaN */
    gguf_write_data(w, copy, t->bytes, &err);
    free(copy);
}

static bool rewrite(const char *from, const char *to, enum change c)
{
    struct rs_error err;
    struct gguf *g;
    struct gguf_writer *w;
    if (gguf_open(from, &g, &err) != RS_OK || gguf_write_open(to, &w, &err) != RS_OK) {
        tap_diag("%s", err.msg);
        return false;
    }
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        struct gguf_kv kv = gguf_kv_at(g, i);
        if (!(c == NO_GATING && ends(kv.key, ".expert_gating_func")))
            gguf_write_kv(w, &kv);
    }
    static const uint64_t NE[4] = {4, 1, 1, 1};
    for (int data = 0; data < 2; data++) {
        for (size_t i = 0; i < gguf_n_tensors(g); i++)
            put_tensor(w, g, gguf_tensor_at(g, i), c, data);
        if (c == ONE_MORE && data == 0)
            gguf_write_tensor(w, "blk.1.left_over", KRN_F32, 1, NE);
        else if (c == ONE_MORE)
            gguf_write_data(w, "0123456789abcdef", 16, &err);
    }
    enum rs_result rc = gguf_write_finish(w, &err);
    if (rc != RS_OK)
        tap_diag("%s", err.msg);
    gguf_close(g);
    return rc == RS_OK;
}

static bool same_file(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    bool same = f != NULL && g != NULL;
    for (int x = 0; same && x != EOF;) {
        x = getc(f);
        same = x == getc(g);
    }
    if (f != NULL)
        fclose(f);
    if (g != NULL)
        fclose(g);
    return same;
}

static json_t *audit(struct rs_engine *e, const char *path, int ranks, bool check)
{
    return ec_call(e, "audit", "{\"path\":\"%s\",\"ranks\":%d,\"check\":%s}", path, ranks, check ? "true" : "false");
}

static bool warns(const json_t *audit_reply, const char *text)
{
    const json_t *list = json_object_get(audit_reply, "warnings");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strstr(json_string_value(json_array_get(list, i)), text) != NULL)
            return true;
    return false;
}

/* Defaults that change the text; *gating: one of them is the gating function. */
static int defaults_that_matter(const json_t *audit_reply, bool *gating)
{
    int n = 0;
    const json_t *list = json_object_get(audit_reply, "defaults");
    *gating = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *d = json_array_get(list, i);
        n += json_is_true(json_object_get(d, "matters"));
        *gating |= strcmp(json_string_value(json_object_get(d, "key")), "expert_gating_func") == 0;
    }
    return n;
}

static const json_t *plan_of(const json_t *audit_reply, const char *tensor)
{
    const json_t *list = json_object_get(audit_reply, "plan");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(list, i), "tensor")), tensor) == 0)
            return json_array_get(list, i);
    return NULL;
}

static long long weights_on(const json_t *audit_reply, size_t rank)
{
    return json_integer_value(json_object_get(json_array_get(json_object_get(audit_reply, "ranks"), rank), "bytes_weights"));
}

static void test_audit(struct rs_engine *e)
{
    char shipped[1024];
    bool gating;
    snprintf(shipped, sizeof shipped, "%s", tap_source("models/tiny-glm5-q4.gguf"));
    json_t *o = audit(e, shipped, 4, true);
    tap_eq_int(defaults_that_matter(o, &gating), 0, "shipped model: nothing is defaulted that matters");
    tap_ok(!warns(o, "equal slices") && !warns(o, "NaN"), "shipped model: no equal slices, no broken scales");
    tap_ok(json_number_value(json_object_get(json_object_get(o, "fits"), "cache_tokens")) > 0, "what fits into this machine is said");
    tap_ok(plan_of(o, "blk.6.nextn.eh_proj.weight") != NULL, "the NextN block is dealt too");
    json_decref(o);
    o = ec_call(e, "audit", "{\"path\":\"%s\",\"ranks\":4,\"gpus\":2,\"gpu_memory\":2.02}", shipped);
    const json_t *gpus = json_object_get(json_object_get(o, "fits"), "gpus"), *held = json_object_get(gpus, "weights");
    tap_ok(json_is_true(json_object_get(gpus, "fits")) && json_array_size(held) == 2 &&
               json_integer_value(json_array_get(held, 0)) == weights_on(o, 0) + weights_on(o, 1) && json_integer_value(json_object_get(gpus, "cache_tokens")) > 0,
           "four ranks on two described GPUs: two each, and it fits");
    json_decref(o);
    o = ec_call(e, "audit", "{\"path\":\"%s\",\"ranks\":4,\"gpus\":2,\"gpu_memory\":2.001}", shipped);
    gpus = json_object_get(json_object_get(o, "fits"), "gpus");
    tap_ok(json_is_false(json_object_get(gpus, "fits")) && json_integer_value(json_object_get(gpus, "missing")) > 0 && warns(o, "do not fit 2 GPUs"),
           "on smaller ones it does not, and the audit warns");
    json_decref(o);

    const char *path = in_work("no-gating.gguf");
    rewrite(shipped, path, NO_GATING);
    o = audit(e, path, 1, false);
    int n = defaults_that_matter(o, &gating);
    tap_ok(n == 1 && gating, "without its gating key: one default that matters, the gating function");
    json_decref(o);

    path = in_work("twins.gguf");
    rewrite(shipped, path, TWIN_ROWS);
    o = audit(e, path, 2, false);
    tap_ok(warns(o, "ranks 0 and 1 hold equal slices of output.weight"), "equal slices of a sharded tensor are named");
    json_decref(o);

    path = in_work("tied.gguf");
    rewrite(shipped, path, NO_HEAD);
    o = audit(e, path, 1, false);
    tap_ok(warns(o, "output.weight is missing: token_embd.weight serves as the head"), "a tied head is named");
    json_decref(o);
    rewrite(shipped, path, ONE_MORE);
    o = audit(e, path, 1, false);
    tap_ok(warns(o, "1 tensors are in the file but used by nothing, the first is blk.1.left_over"), "a tensor that nothing uses is named");
    json_decref(o);

    path = in_work("broken.gguf");
    rewrite(shipped, path, BROKEN_SCALE);
    o = audit(e, path, 1, true);
    tap_ok(warns(o, "blk.1.attn_output.weight: 1 blocks have a scale that is NaN or infinite, the first is block 5"), "a broken scale is named");
    json_decref(o);
    o = audit(e, path, 1, false);
    tap_ok(!warns(o, "NaN"), "without check the weights are not read");
    json_decref(o);
}

static float *logits(struct rs_engine *e, const char *path, int ranks, size_t *n)
{
    float *x;
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ranks\":%d}", path, ranks));
    json_decref(ec_blob(e, "forward", json_pack("{s:[i,i,i,i,i,i],s:s}", "ids", 5, 80, 7, 200, 31, 64, "logits", "all"), &x, n));
    return x;
}

static void test_forms(struct rs_engine *e)
{
    static const char *const NAMES[] = {"v3", "dsa"};
    for (int i = 0; i < 2; i++) {
        char fixture[1024], name[64];
        size_t n, m;
        snprintf(name, sizeof name, "tests/golden/fixture-%s.gguf", NAMES[i]);
        snprintf(fixture, sizeof fixture, "%s", tap_source(name));
        const char *path = in_work("form.gguf");
        for (enum change c = LEGACY_EXPERTS; c <= FUSED_GATE_UP; c++)
            for (int ranks = 1; ranks <= 2; ranks++) {
                float *want = logits(e, fixture, ranks, &n);
                bool ok = rewrite(fixture, path, c);
                float *x = ok ? logits(e, path, ranks, &m) : NULL;
                tap_ok(ok && n == m && memcmp(x, want, n * sizeof *x) == 0, "%s, %d ranks: %s compute the same bits", NAMES[i], ranks,
                       c == LEGACY_EXPERTS ? "a tensor for each expert" : "gate and up in one tensor");
                free(want);
                free(x);
            }
    }
}

static double long_nll(struct rs_engine *e, const char *path, json_t *ids)
{
    float *x;
    size_t n;
    json_decref(ec_call(e, "open", "{\"path\":\"%s\",\"ctx\":2048}", path));
    json_t *o = ec_blob(e, "forward", json_pack("{s:O,s:s}", "ids", ids, "logits", "none"), &x, &n);
    double nll = json_number_value(json_object_get(o, "nll"));
    json_decref(o);
    free(x);
    return nll;
}

static void test_quantize(struct rs_engine *e)
{
    static const struct { const char *type; double most; } T[] = {{"Q8_0", 1.005}, {"Q6_K", 1.03}, {"Q5_K", 1.1}, {"q4_k", 1.4}};
    json_t *golden = json_load_file(tap_source("tests/golden/golden-tiny.json"), 0, NULL), *ids = json_object_get(golden, "long_ids");
    char shipped[1024], msg[512], other[1024];
    snprintf(shipped, sizeof shipped, "%s", tap_source("models/tiny-glm5-q4.gguf"));
    double base = long_nll(e, shipped, ids);
    const char *path = in_work("quantized.gguf");
    for (size_t i = 0; i < sizeof T / sizeof T[0]; i++) {
        json_t *o = ec_call(e, "quantize", "{\"in\":\"%s\",\"out\":\"%s\",\"type\":\"%s\"}", shipped, path, T[i].type);
        double nll = long_nll(e, path, ids);
        tap_ok(nll / base < T[i].most && nll / base > 0.9, "%s: %lld tensors changed, long text %.4f nats a token against %.4f", T[i].type,
               (long long)json_integer_value(json_object_get(o, "changed")), nll, base);
        json_decref(o);
    }
    snprintf(other, sizeof other, "%s", tap_scratch("again.gguf"));
    json_decref(ec_call(e, "quantize", "{\"in\":\"%s\",\"out\":\"%s\",\"recipe\":\"# nothing\\n\"}", path, other));
    tap_ok(same_file(path, other), "a recipe without rules copies byte by byte");
    json_decref(ec_call(e, "quantize", "{\"in\":\"%s\",\"out\":\"%s\",\"recipe\":\"blk.2.* Q6_K # one layer\\nblk.2.attn_k_b* F16\"}", shipped, other));
    struct gguf *g;
    struct rs_error err;
    if (tap_ok(gguf_open(other, &g, &err) == RS_OK, "the file of a recipe opens")) {
        tap_ok(gguf_find_tensor(g, "blk.2.attn_output.weight")->type == KRN_Q6_K && gguf_find_tensor(g, "blk.2.attn_k_b.weight")->type == KRN_F16 &&
                   gguf_find_tensor(g, "blk.2.attn_q_b.weight")->type == KRN_Q8_0 && gguf_find_tensor(g, "blk.2.ffn_gate_inp.weight")->type == KRN_F32 &&
                   gguf_find_tensor(g, "blk.1.attn_output.weight")->type == KRN_Q8_0,
               "rules, the last match counts; rows of 128 fall back; the router stays");
        gguf_close(g);
    }
    tap_ok(ec_fails(e, msg, "quantize", "{\"in\":\"%s\",\"out\":\"%s\",\"type\":\"IQ2_XXS\"}", shipped, path) == RS_EUSAGE, "no encoder: %s", msg);
    tap_ok(strstr(msg, "Q8_0 Q2_K") != NULL && strstr(msg, "IQ1_S") == NULL, "the types that there are encoders for are listed");
    tap_ok(ec_fails(e, msg, "quantize", "{\"in\":\"%s\",\"out\":\"/nowhere/x.gguf\",\"type\":\"Q8_0\"}", shipped) == RS_EIO, "no such folder: %s", msg);
    tap_ok(ec_fails(e, msg, "quantize", "{\"in\":\"%s\",\"out\":\"%s\",\"recipe\":\"one two three\"}", shipped, path) == RS_EUSAGE, "a bad line: %s", msg);
    json_decref(golden);
}

static long long share(const json_t *plan, size_t rank)
{
    const json_t *r = json_array_get(json_object_get(plan, "ranks"), rank);
    return json_integer_value(json_object_get(r, "to")) - json_integer_value(json_object_get(r, "from"));
}

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return n > 0;
}

static void test_synth(struct rs_engine *e)
{
    char msg[512];
    size_t n;
    const char *path = in_work("synth.gguf");
    json_decref(ec_call(e, "synth", "{\"arch\":\"glm-4.7-flash\",\"layers\":2,\"experts\":8,\"vocab\":512,\"out\":\"%s\"}", path));
    json_t *o = audit(e, path, 8, true);
    const json_t *heads = plan_of(o, "blk.0.attn_k_b.weight");
    tap_ok(share(heads, 0) == 3 && share(heads, 3) == 3 && share(heads, 4) == 2 && share(heads, 7) == 2, "20 heads on 8 ranks: 3 3 3 3 2 2 2 2");
    tap_ok(!warns(o, "equal slices") && !warns(o, "NaN"), "made-up weights: no equal slices, no broken scales");
    json_decref(o);
    float *a = logits(e, path, 8, &n);
    tap_ok(all_finite(a, n), "it runs on 8 ranks");
    float *b = logits(e, path, 1, &n);
    tap_ok(ec_rel_f(a, b, n) < 0.05, "and on 1, with about the same result (%.3f)", ec_rel_f(a, b, n));
    free(a);
    free(b);
    static const char *const TYPES[] = {"IQ2_XXS", "IQ3_XXS", "IQ2_S", "IQ1_M", "MXFP4", "TQ2_0"};
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        json_decref(ec_call(e, "synth", "{\"arch\":\"deepseek-v2-lite\",\"layers\":2,\"experts\":6,\"vocab\":512,\"out\":\"%s\",\"recipe\":\"*exps* %s\"}", path, TYPES[i]));
        a = logits(e, path, 2, &n);
        tap_ok(all_finite(a, n), "experts of %s load and run", TYPES[i]);
        free(a);
    }
    tap_ok(ec_fails(e, msg, "synth", "{\"arch\":\"gpt-2\",\"out\":\"%s\"}", path) == RS_ENOTFOUND, "an unknown shape: %s", msg);
    tap_ok(ec_fails(e, msg, "synth", "{\"arch\":\"glm-5\",\"layers\":90,\"out\":\"%s\"}", path) == RS_EUSAGE, "too many layers: %s", msg);
    if (getenv("RANKSCOPE_LONG") == NULL) {
        tap_skip(1, "glm-5 takes 2 GB: RANKSCOPE_LONG is not set");
    } else {
        json_decref(ec_call(e, "synth", "{\"arch\":\"glm-5\",\"layers\":4,\"experts\":8,\"vocab\":512,\"out\":\"%s\"}", path));
        o = audit(e, path, 8, false);
        const json_t *gate = plan_of(o, "blk.3.ffn_gate_exps.weight"), *down = plan_of(o, "blk.3.ffn_down_exps.weight");
        tap_ok(share(gate, 0) == 256 && share(gate, 7) == 256 && share(down, 5) == 256, "glm-5 on 8 ranks: 256 rows and columns of every expert each");
        json_decref(o);
    }
    unlink(path);
}

static const char IDS[] = "[5,80,7,200,31,64]";

static float *forward(struct rs_engine *e, size_t *n)
{
    float *x;
    json_decref(ec_blob(e, "forward", json_pack("{s:o,s:s}", "ids", json_loads(IDS, 0, NULL), "logits", "all"), &x, n));
    return x;
}

/* A load that is given up while it runs: what was open answers as before. */
static void test_cancel(struct rs_engine *e)
{
    struct rs_error err;
    struct rs_event ev;
    uint32_t load, cancel;
    size_t n, m;
    json_decref(ec_call(e, "open", "{\"synthetic\":\"glm-4.7-flash\",\"layers\":2,\"experts\":8,\"vocab\":512}"));
    float *before = forward(e, &n);
    json_t *o = ec_call(e, "load.cancel", "{}");
    tap_ok(json_is_false(json_object_get(o, "cancelled")), "nothing is loading: nothing is cancelled");
    json_decref(o);
    rs_send(e, "open", "{\"synthetic\":\"glm-4.7-flash\",\"layers\":2,\"experts\":8}", &load, &err);
    rs_send(e, "load.cancel", NULL, &cancel, &err);
    enum rs_result loaded = RS_OK, cancelled = RS_EINTERNAL;
    char why[200] = "";
    while (cancelled == RS_EINTERNAL && rs_next(e, 60000, &ev, &err) == RS_OK) {
        if (ev.type == RS_EVENT_REPLY && ev.id == load) {
            loaded = ev.status;
            snprintf(why, sizeof why, "%s", ev.json);
        }
        if (ev.type == RS_EVENT_REPLY && ev.id == cancel)
            cancelled = ev.status;
    }
    tap_eq_int(loaded, RS_ECANCELLED, "a load is given up: %s", why);
    tap_eq_int(cancelled, RS_OK, "and the wish for that answered");
    float *after = forward(e, &m);
    tap_ok(n == m && memcmp(before, after, n * sizeof *after) == 0, "what was open computes the same as before");
    free(before);
    free(after);
    json_decref(ec_call(e, "set", "{\"ranks\":4}"));
    tap_ok(true, "and can be dealt to other ranks");
}

/* Models without a file: whole, over ranks, one rank alone. */
static void test_synthetic(struct rs_engine *e)
{
    static const char *const ARCHS[] = {"glm-4.7-flash", "deepseek-v2-lite", "glm-5"};
    struct rs_snapshot s = {0};
    char msg[512];
    size_t n, m;
    for (size_t i = 0; i < sizeof ARCHS / sizeof ARCHS[0]; i++) {
        char spec[200];
        snprintf(spec, sizeof spec, "\"synthetic\":\"%s\",\"layers\":%d,\"experts\":8,\"vocab\":512,\"recipe\":\"*attn_output* Q5_K\"", ARCHS[i], i == 2 ? 4 : 2);
        json_decref(ec_call(e, "open", "{%s}", spec));
        float *one = forward(e, &n);
        json_decref(ec_call(e, "set", "{\"ranks\":8}"));
        float *eight = forward(e, &m);
        tap_ok(n == m && all_finite(one, n) && ec_rel_f(eight, one, n) < 0.05, "%s without a file: 1 and 8 ranks agree (%.3f)", ARCHS[i], ec_rel_f(eight, one, n));
        json_decref(ec_call(e, "open", "{%s}", spec));
        free(eight);
        eight = forward(e, &m);
        tap_ok(memcmp(one, eight, n * sizeof *one) == 0, "%s: opened again, the same weights", ARCHS[i]);
        json_t *plan = ec_call(e, "audit", "{%s,\"ranks\":8}", spec);
        const json_t *out = plan_of(plan, "blk.1.attn_output.weight");
        tap_ok(out != NULL && strcmp(json_string_value(json_object_get(out, "type")), "Q5_K") == 0, "%s: types by recipe", ARCHS[i]);
        for (int rank = 0; rank < 8; rank += 5) {
            json_decref(ec_call(e, "open", "{%s,\"rank\":\"%d/8\"}", spec, rank));
            free(eight);
            eight = forward(e, &m);
            json_decref(ec_call(e, "ping", "{}")); /* the engine has been round once more, and has told its figures */
            rs_snapshot_read(e, &s);
            tap_ok(m == n && all_finite(eight, m) && eight[rank * 64 + 3] != 0 && eight[(rank + 1) % 8 * 64 + 3] == 0, "%s, rank %d of 8 alone: its part of the logits", ARCHS[i], rank);
            tap_eq_int((long long)s.rank[0].bytes_weights, weights_on(plan, (size_t)rank), "%s, rank %d: the weights that the audit says", ARCHS[i], rank);
        }
        json_decref(plan);
        free(one);
        free(eight);
    }
    tap_ok(ec_fails(e, msg, "set", "{\"ranks\":2}") == RS_EUSAGE, "one rank alone stays one: %s", msg);
    tap_ok(ec_fails(e, msg, "open", "{\"synthetic\":\"glm-5\",\"layers\":2,\"rank\":\"8/8\"}") == RS_EUSAGE, "no such rank: %s", msg);
    tap_ok(ec_fails(e, msg, "open", "{\"synthetic\":\"gpt-2\"}") == RS_ENOTFOUND, "no such shape: %s", msg);
    tap_ok(ec_fails(e, msg, "open", "{\"path\":\"x\",\"layers\":2}") == RS_EUSAGE, "layers of a file: %s", msg);
    tap_ok(ec_fails(e, msg, "open", "{\"synthetic\":\"glm-5\",\"recipe\":\"* F32\"}") == RS_ENOMEM, "more than there is memory: %s", msg);
}

int main(void)
{
    struct rs_engine *e = ec_open();
    test_audit(e);
    test_forms(e);
    test_quantize(e);
    test_synth(e);
    test_cancel(e);
    test_synthetic(e);
    rs_engine_close(e);
    return tap_done();
}
