/* Weights taken from another file while the model is loaded: the result is, to the bit, that of a model which was opened with them; taken back, that of
 * before; answers that run meanwhile lose nothing; what is refused changes nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|></think>','special':true"

static char s_q8[512], s_q6[512];

static void write_copy(struct rs_engine *e, char *path, const char *name, const char *what)
{
    snprintf(path, 512, "%s", tap_scratch(name));
    json_decref(talk(e, "quantize", "{'in':'%s','out':'%s',%s}", tap_source(MODEL), path, what));
}

/* Logits of every row, to be freed. */
static void *logits(struct rs_engine *e, size_t *len)
{
    void *blob = NULL;
    json_decref(talk_blob(e, &blob, len, "forward", "{'ids':[250,251,300,400,500,600,700,800],'logits':'all'}"));
    return blob;
}

static bool same(void *a, size_t la, void *b, size_t lb)
{
    return a != NULL && b != NULL && la == lb && la > 0 && memcmp(a, b, la) == 0;
}

static void test_bits(struct rs_engine *e, int ranks, const char *mode, const char *donor, const char *what)
{
    size_t n_own, n_other, n;
    json_decref(talk(e, "open", "{'path':'%s','ranks':%d,'mode':'%s'}", donor, ranks, mode));
    void *other = logits(e, &n_other), *x;
    json_decref(talk(e, "open", "{'path':'%s','ranks':%d,'mode':'%s'}", tap_source(MODEL), ranks, mode));
    void *own = logits(e, &n_own);
    tap_ok(!same(own, n_own, other, n_other), "%d ranks, %s, %s: the files differ", ranks, mode, what);
    json_t *r = talk(e, "weights.load", "{'tensors':'*','path':'%s'}", donor);
    x = logits(e, &n);
    tap_ok(same(x, n, other, n_other), "%d ranks, %s, %s: all its weights make it that model (%s, %.0f ms)", ranks, mode, what,
           json_is_true(talk_at(r, "resharded")) ? "dealt anew" : "in place", talk_num(r, "took_ms"));
    free(x);
    json_decref(r);
    json_decref(talk(e, "patch.revert", "{}"));
    x = logits(e, &n);
    tap_ok(same(x, n, own, n_own), "%d ranks, %s, %s: taken back they are as before", ranks, mode, what);
    free(x);
    free(own);
    free(other);
}

/* One tensor: its type is said, the journal and the state know, and the reference agrees with what is computed. */
static void test_one(struct rs_engine *e)
{
    size_t n_own, n;
    json_decref(talk(e, "open", "{'path':'%s','ranks':2}", tap_source(MODEL)));
    void *own = logits(e, &n_own), *x;
    json_t *r = talk(e, "weights.load", "{'tensors':'blk.2.ffn_down*','path':'%s'}", s_q6);
    tap_eq_str(talk_str(r, "donor"), "q6", "a donor is named for its file");
    tap_eq_str(talk_str(r, "cost"), "reload", "what it costs");
    for (size_t i = 0; i < json_array_size(talk_at(r, "tensors")); i++) {
        json_t *t = json_array_get(talk_at(r, "tensors"), i);
        tap_ok(strcmp(talk_str(t, "type"), "Q6_K") == 0 && strcmp(talk_str(t, "from"), "q6") == 0, "%s: %s instead of %s", talk_str(t, "name"), talk_str(t, "type"),
               talk_str(t, "file_type"));
    }
    json_decref(r);
    x = logits(e, &n);
    tap_ok(!same(x, n, own, n_own), "it changes what is computed");
    free(x);
    r = talk(e, "replay", "{%s}", PROMPT);
    tap_eq_int((long long)talk_num(r, "out_of_tolerance"), 0, "every op is right by the reference with it");
    json_decref(r);
    r = talk(e, "info", "{}");
    json_t *patches = talk_at(r, "state.patches");
    tap_ok(json_object_get(patches, "weights@blk.2.ffn_down*") != NULL || json_object_get(patches, "weights") != NULL, "the state shows it");
    json_decref(r);
    r = talk(e, "weights.list", "{'tensors':'blk.1.*'}");
    tap_ok(json_array_size(talk_at(r, "tensors")) > 10 && json_is_null(talk_at(r, "tensors.0.from")), "others are the file's own");
    tap_eq_str(talk_str(r, "donors.0.name"), "q6", "donors are listed");
    json_decref(r);
    r = talk(e, "patch.list", "{}");
    json_t *journal = talk_at(r, "journal"), *last = json_array_get(journal, json_array_size(journal) - 1);
    tap_ok(strcmp(talk_str(last, "slot"), "weights") == 0 && strcmp(talk_str(last, "to"), "q6") == 0 && strcmp(talk_str(last, "glob"), "blk.2.ffn_down*") == 0,
           "the journal knows what came from where");
    json_decref(r);
    json_decref(talk(e, "set", "{'ranks':8}"));
    json_decref(talk(e, "set", "{'ranks':2}"));
    r = talk(e, "weights.list", "{'tensors':'blk.2.ffn_down*'}");
    tap_eq_str(talk_str(r, "tensors.0.from"), "q6", "another layout keeps it");
    json_decref(r);
    json_decref(talk(e, "patch.set", "{'slot':'weights','impl':'file','site':'blk.2.ffn_down_shexp*'}"));
    json_decref(talk(e, "patch.reset", "{}"));
    x = logits(e, &n);
    tap_ok(same(x, n, own, n_own), "reset brings the file's own back");
    free(x);
    free(own);
}

static void test_refused(struct rs_engine *e)
{
    const char *msg, *shape = tap_source("tests/golden/fixture-v3.gguf");
    char copy[512];
    snprintf(copy, sizeof copy, "%s", shape);
    size_t n_own, n;
    void *own = logits(e, &n_own), *x;
    json_t *before = talk(e, "patch.list", "{}"), *after;
    enum rs_result rc = talk_error(e, &msg, "weights.load", "{'tensors':'blk.1.attn_norm*','path':'%s'}", copy);
    tap_ok(rc == RS_EFORMAT && strstr(msg, "shape") != NULL, "another shape: %s", msg);
    tap_ok(talk_error(e, &msg, "weights.load", "{'tensors':'*','path':'%s'}", copy) != RS_OK, "a file of another model: %s", msg);
    tap_ok(talk_error(e, &msg, "weights.load", "{'tensors':'nothing*','path':'%s'}", s_q8) == RS_ENOTFOUND, "no such tensor: %s", msg);
    tap_ok(talk_error(e, &msg, "weights.load", "{'tensors':'*','path':'/nowhere.gguf'}") == RS_EIO, "no such file: %s", msg);
    tap_ok(talk_error(e, &msg, "weights.load", "{'tensors':'*','path':'%s'}", tap_source("README.md")) == RS_EFORMAT, "no model: %s", msg);
    tap_ok(talk_error(e, &msg, "patch.set", "{'slot':'weights','impl':'q9'}") == RS_ENOTFOUND, "a donor that was never named: %s", msg);
    tap_ok(talk_error(e, &msg, "weights.load", "{'path':'%s'}", s_q8) == RS_EUSAGE, "which tensors must be said");
    after = talk(e, "patch.list", "{}");
    tap_ok(json_equal(before, after), "nothing has changed");
    x = logits(e, &n);
    tap_ok(same(x, n, own, n_own), "not in what is computed either");
    json_decref(before);
    json_decref(after);
    free(x);
    free(own);
}

/* While an answer runs, at 8 ranks: no token is lost; after the last revert a question gets its old answer. */
static void test_live(struct rs_engine *e)
{
    struct rs_event ev;
    struct rs_error err;
    int32_t plain[32], got[32];
    size_t n, m;
    int tokens = 0, swaps = 0, in_place = 0;
    bool done = false;
    json_decref(talk(e, "open", "{'path':'%s','ranks':8}", tap_source(MODEL)));
    json_decref(talk_generate(e, PROMPT, 24, plain, 32, &n));
    json_decref(talk(e, "submit", "{%s,'temp':0,'max_tokens':200,'ignore_eos':true}", PROMPT));
    while (!done && rs_next(e, 60000, &ev, &err) == RS_OK) {
        done = ev.type == RS_EVENT_DONE;
        tokens += ev.type == RS_EVENT_TOKEN && ev.token >= 0;
        if (ev.type == RS_EVENT_TOKEN && tokens % 10 == 0) {
            json_t *r = swaps % 2 == 0 ? talk(e, "weights.load", "{'tensors':'blk.3.attn_q_b*','path':'%s'}", s_q8) : talk(e, "patch.revert", "{}");
            in_place += json_is_false(talk_at(r, "resharded"));
            json_decref(r);
            swaps++;
        }
    }
    tap_ok(done && tokens == 200 && swaps > 10, "8 ranks: weights swapped %d times in an answer of %d tokens", swaps, tokens);
    tap_ok(in_place > 0, "in place, between two steps");
    json_decref(talk(e, "patch.reset", "{}"));
    json_decref(talk_generate(e, PROMPT, 24, got, 32, &m));
    tap_ok(n == m && memcmp(plain, got, n * sizeof *plain) == 0, "afterwards a question has its old answer");
}

int main(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":1");
    write_copy(e, s_q8, "q8.gguf", "'type':'Q8_0'");
    write_copy(e, s_q6, "q6.gguf", "'type':'Q6_K'");
    test_bits(e, 1, "graph", s_q8, "Q8_0");
    test_bits(e, 2, "eager", s_q6, "Q6_K");
    test_bits(e, 8, "graph", s_q8, "Q8_0");
    test_bits(e, 8, "graph", s_q6, "Q6_K");
    test_one(e);
    test_refused(e);
    test_live(e);
    rs_engine_close(e);
    return tap_done();
}
