/* lens, experts, rewind, fork. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|>','special':true"
enum { LAYERS = 6, N = 30 };

static void test_lens(struct rs_engine *e)
{
    json_t *l = talk(e, "lens", "{%s,'top':3,'config':{'patches':{'matmul':'f32'}}}", PROMPT);
    json_t *f = talk(e, "forward", "{%s}", PROMPT);
    tap_eq_int((long long)json_array_size(talk_at(l, "layers")), LAYERS + 1, "the embedding and every layer");
    tap_eq_int((long long)talk_num(l, "layers.0.layer"), -1, "the first is the embedding");
    tap_eq_int((long long)talk_num(l, "layers.6.top.0.id"), (long long)talk_num(l, "next"), "the last layer's likeliest token is the model's own");
    char path[60];
    snprintf(path, sizeof path, "argmax_each.%zu", json_array_size(talk_at(f, "argmax_each")) - 1);
    tap_eq_int((long long)talk_num(l, "next"), (long long)talk_num(f, path), "which is what forward says");
    tap_eq_int((long long)json_array_size(talk_at(l, "layers.3.top")), 3, "three tokens each");
    tap_ok(talk_num(l, "layers.6.top.0.p") >= talk_num(l, "layers.6.top.1.p") && talk_num(l, "layers.6.top.0.p") <= 1, "by falling probability");
    tap_ok(talk_num(l, "layers.0.entropy") > talk_num(l, "layers.6.entropy"), "the answer gets clearer: %.2f nats, then %.2f", talk_num(l, "layers.0.entropy"),
           talk_num(l, "layers.6.entropy"));
    json_decref(l);
    json_decref(f);
}

static void test_experts(struct rs_engine *e)
{
    json_t *x = talk(e, "experts", "{%s}", PROMPT);
    long long total = 0;
    tap_eq_int((long long)json_array_size(talk_at(x, "layers")), LAYERS - 1, "every layer with experts");
    for (size_t i = 0; i < json_array_size(talk_at(x, "layers.0.counts")); i++)
        total += json_integer_value(json_array_get(talk_at(x, "layers.0.counts"), i));
    tap_ok(total > 0 && total == (long long)(talk_num(x, "layers.0.rows") * talk_num(x, "used")), "every row has %g experts", talk_num(x, "used"));
    double sum = 0;
    for (size_t i = 0; i < json_array_size(talk_at(x, "layers.2.last")); i++)
        sum += json_number_value(json_object_get(json_array_get(talk_at(x, "layers.2.last"), i), "weight"));
    tap_near(sum, 2.5, 1e-5, "the weights of a row add up to the model's scale");
    tap_ok(talk_num(x, "layers.0.balance") > 0 && talk_num(x, "layers.0.balance") <= 1, "balance %.2f", talk_num(x, "layers.0.balance"));
    json_decref(x);
    tap_eq_int(talk_error(e, NULL, "experts", "{}"), RS_ESTATE, "without taps there is nothing to read");
    json_decref(talk(e, "probe.tap", "{'site':'*.router','out':1,'what':'copy'}"));
    int32_t tok[4];
    size_t n;
    json_decref(talk_generate(e, PROMPT, 3, tok, 4, &n));
    x = talk(e, "experts", "{}");
    tap_ok(json_array_size(talk_at(x, "layers")) == LAYERS - 1 && talk_num(x, "layers.0.rows") == 1, "taps show the last step's");
    json_decref(x);
    json_decref(talk(e, "probe.untap", "{}"));
}

/* "ids" of a reply as text for a request, with the session. */
static char *ids_of(json_t *r, char *out, size_t cap)
{
    char *ids = json_dumps(talk_at(r, "ids"), JSON_COMPACT);
    snprintf(out, cap, "'ids':%s,'session':%d", ids, (int)talk_num(r, "session"));
    free(ids);
    return out;
}

static void test_branches(struct rs_engine *e)
{
    int32_t first[N], again[N], forked[N];
    size_t n, m, k;
    static char args[8192];
    json_t *s = talk(e, "session.new", "{'data':{'x':1}}");
    snprintf(args, sizeof args, PROMPT ",'session':%d", (int)talk_num(s, "session"));
    json_decref(talk_generate(e, args, N, first, N, &n));
    json_t *f = talk(e, "fork", "{'session':%d,'n':20}", (int)talk_num(s, "session"));
    json_t *r = talk(e, "rewind", "{'session':%d,'n':10}", (int)talk_num(s, "session"));
    tap_eq_int((long long)talk_num(r, "dropped"), 10, "ten tokens dropped");
    json_decref(talk_generate(e, ids_of(r, args, sizeof args), 10, again, N, &m));
    tap_ok(m == 10 && memcmp(again, first + N - 10, sizeof again[0] * 10) == 0, "the same continuation after a rewind");
    json_decref(talk_generate(e, ids_of(f, args, sizeof args), 20, forked, N, &k));
    tap_ok(k == 20 && memcmp(forked, first + N - 20, sizeof forked[0] * 20) == 0, "and in the fork");
    json_t *c = talk(e, "cache.check", "{'session':%d}", (int)talk_num(s, "session"));
    tap_ok(talk_num(c, "tokens") > 0 && talk_num(c, "worst") == 0, "the rewound conversation's cache is right to the bit");
    json_decref(c);
    c = talk(e, "session.get", "{'session':%d}", (int)talk_num(f, "session"));
    tap_ok(talk_num(c, "data.x") == 1, "a fork has the client's data");
    json_decref(c);
    tap_eq_int(talk_error(e, NULL, "rewind", "{'session':%d,'n':100000}", (int)talk_num(s, "session")), RS_EUSAGE, "more than there is");
    tap_eq_int(talk_error(e, NULL, "rewind", "{'session':%d,'n':1,'to':1}", (int)talk_num(s, "session")), RS_EUSAGE, "two ways at once");
    tap_eq_int(talk_error(e, NULL, "fork", "{'session':4711}"), RS_ENOTFOUND, "no such session");
    json_t *run = talk(e, "submit", "{%s,'session':%d,'max_tokens':400,'ignore_eos':true}", PROMPT, (int)talk_num(s, "session"));
    tap_eq_int(talk_error(e, NULL, "rewind", "{'session':%d,'n':1}", (int)talk_num(s, "session")), RS_ESTATE, "not while it runs");
    json_decref(talk(e, "cancel", "{'stream':%d}", (int)talk_num(run, "stream")));
    json_decref(run);
    json_decref(f);
    json_decref(r);
    json_decref(s);
}

int main(void)
{
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":4,\"mode\":\"graph\"");
    test_lens(e);
    test_experts(e);
    test_branches(e);
    rs_engine_close(e);
    return tap_done();
}
