/* Requests of any method with arguments that nobody would send, on an engine that runs: each is answered, by what was asked for or by one clear line,
 * and in the end the engine gives the answer that it gave before.
 *
 *   msg_mutate [REQUESTS [SEED [show]]]     600 requests (RANKSCOPE_LONG=1: 20000) of seed 1, which are always the same; show: each before it is sent */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"
#include "tests/tap.h"

#define MODEL "models/tiny-glm5-q4.gguf"
#define PROMPT "'text':'[gMASK]<sop><|user|>What is the capital of France?<|assistant|></think>','special':true"

/* What a method takes. Methods that write files, stop the engine or open other models are left out. */
static const struct { const char *method, *keys; } METHODS[] = {
    {"control", "take give"}, {"load.cancel", ""}, {"info", ""}, {"devices", ""}, {"set", "mode ranks numerics graph_guard spec"}, {"audit", "ranks split gpus gpu_memory path"},
    {"patch.list", ""}, {"patch.set", "slot impl site dry"}, {"patch.revert", "to"}, {"patch.reset", ""}, {"weights.load", "tensors path"},
    {"weights.list", "tensors"}, {"patch.shadow", "impl ids text site steps"}, {"patch.live", "impl site steps"}, {"patch.live.get", ""}, {"patch.live.stop", ""},
    {"patch.promote", "limit"}, {"submit", "ids text segments session temp top_k top_p min_p typical_p repeat_penalty frequency_penalty presence_penalty "
     "penalty_last_n logit_bias seed max_tokens stop special thinking ignore_eos reuse logprobs"}, {"submit", "ids max_tokens"}, {"cancel", "stream"},
    {"stream.get", "stream follow"}, {"encode", "text segments special"}, {"decode", "ids special"}, {"pieces", ""}, {"forward", "ids logits layers"},
    {"load", ""}, {"requests", "limit"}, {"session.new", "data"}, {"session.put", "session data"}, {"session.get", "session"}, {"session.list", ""},
    {"session.drop", "session"}, {"stats", "reset"}, {"allreduce", "mode"}, {"ledger", "limit"}, {"program", "site"}, {"health", "stream"},
    {"health.baseline", "baseline"}, {"probe.tap", "site what n rank out"}, {"probe.untap", "id site"}, {"probe.watch", "cond site action rank out"},
    {"probe.unwatch", "id site"}, {"probe.list", ""}, {"probe.read", "site steps what rank"}, {"lens", "ids text top config"}, {"experts", "ids text"},
    {"rewind", "session n to"}, {"fork", "session n to"}, {"break.add", "site when cond rank"}, {"break.del", "id"}, {"break.list", ""}, {"step", "n"}, {"next", ""},
    {"continue", ""}, {"where", ""}, {"tensor.read", "site buffer what index rank rows cols"}, {"tensor.write", "site buffer what index rank rows cols value"},
    {"diff", "a b ids text site tolerance decode cache"}, {"replay", "ids text site config decode tolerance"}, {"hparams.check", ""},
    {"cache.check", "session tolerance"}, {"nothing.of.that.name", "ids"}, {"ping", ""}, {"hello", "client"}};
enum { N_METHODS = sizeof METHODS / sizeof METHODS[0] };

static const char *const ANYTHING[] = {"null", "true", "false", "0", "1", "2", "-1", "7", "63", "64", "65", "1024", "2147483647", "2147483648", "-2147483649", "4294967295",
    "4294967296", "9223372036854775807", "-9223372036854775808", "0.5", "-0.5", "1e9", "1e38", "1e308", "-1e308", "\"\"", "\"x\"", "\"*\"", "\"blk.*\"", "\"all\"",
    "\"\\u0000\"", "\"\\ud83d\\ude00\"", "\"%s%n\"", "[]", "{}", "[1,2,3]", "[0]", "[-1]", "[null]", "[[1]]", "[1e9,2]", "[5,3]", "{\"a\":1}", "{\"1\":2}", "{\"5\":1e300}",
    "[{\"text\":\"a\"}]", "[{\"text\":1}]", "[\"stop\"]", "[\"\",\"\"]", "\"../../etc/passwd\"", "\"((((((((((((((((((((1))))))))))))))))))))\"", "\"1+\""};

/* What is right for some key, so that requests get past the first check. */
static const struct { const char *key, *value; } RIGHT[] = {
    {"mode", "\"graph\""}, {"mode", "\"eager\""}, {"ranks", "3"}, {"ranks", "8"}, {"numerics", "\"fast\""}, {"numerics", "\"invariant\""}, {"spec", "2"}, {"spec", "0"},
    {"split", "\"ep\""}, {"slot", "\"mla\""}, {"slot", "\"qkv_a\""}, {"slot", "\"slot_order\""}, {"slot", "\"allreduce\""}, {"slot", "\"matmul\""}, {"slot", "\"delay\""},
    {"slot", "\"cache\""}, {"slot", "\"moe.split\""}, {"slot", "\"user\""}, {"impl", "\"absorbed\""}, {"impl", "\"split\""}, {"impl", "\"file\""}, {"impl", "\"tree\""},
    {"impl", "\"f32\""}, {"impl", "\"off\""}, {"impl", "\"0:10\""}, {"impl", "\"ep\""}, {"site", "\"blk.1.*\""}, {"site", "\"blk.3.ffn.norm\""}, {"site", "\"output.norm\""},
    {"site", "\"blk.4.ffn.router\""}, {"site", "\"blk.2.mla\""}, {"tensors", "\"blk.3.*\""}, {"ids", "[1,2,3,4,5,6,7]"}, {"ids", "[100,200]"}, {"text", "\"What is 2 + 2?\""},
    {"segments", "[{\"text\":\"Hello\",\"special\":true}]"}, {"max_tokens", "6"}, {"max_tokens", "20"}, {"what", "\"stats\""}, {"what", "\"copy\""}, {"what", "\"values\""},
    {"what", "\"hash\""}, {"what", "\"in\""}, {"what", "\"out\""}, {"rank", "0"}, {"rank", "\"all\""}, {"cond", "\"nan\""}, {"cond", "\"absmax>1\""}, {"cond", "\"drift>0.1\""},
    {"cond", "\"step>2 && rms<3\""}, {"cond", "\"rankdiff\""}, {"cond", "\"1+\""}, {"cond", "\"rms > (2\""}, {"cond", "\"absmax>\""}, {"action", "\"log\""}, {"action", "\"stop\""}, {"when", "\"before\""}, {"when", "\"after\""}, {"session", "1"}, {"session", "2"},
    {"stream", "1"}, {"stream", "5"}, {"n", "3"}, {"to", "1"}, {"rows", "[0,1]"}, {"cols", "[0,8]"}, {"value", "\"nan\""}, {"value", "0.25"}, {"a", "{\"mode\":\"eager\"}"},
    {"b", "{\"mode\":\"graph\"}"}, {"b", "{\"patches\":{\"mla\":\"absorbed\"}}"}, {"config", "{\"ranks\":2}"}, {"config", "{\"mode\":\"eager\"}"}, {"cache", "\"same\""}, {"decode", "1"},
    {"logits", "\"last\""}, {"logits", "\"all\""}, {"layers", "true"}, {"temp", "0"}, {"temp", "1"}, {"seed", "5"}, {"stop", "[\"Paris\"]"}, {"steps", "4"}, {"buffer", "\"x\""},
    {"data", "{\"x\":1}"}, {"baseline", "{\"answers\":100,\"entropy_p95\":1,\"entropy_high\":0.1,\"gap_low\":0.1}"}, {"path", "\"/nowhere\""}, {"path", "\"/dev/null\""}};
enum { N_RIGHT = sizeof RIGHT / sizeof RIGHT[0], N_ANYTHING = sizeof ANYTHING / sizeof ANYTHING[0] };

static uint32_t below(uint64_t *s, uint32_t n)
{
    uint64_t x = *s += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) >> 33) % n;
}

static const char *value(uint64_t *s, const char *key, size_t len)
{
    const char *found = NULL;
    uint32_t seen = 0;
    for (int i = 0; i < N_RIGHT; i++)
        if (strlen(RIGHT[i].key) == len && strncmp(RIGHT[i].key, key, len) == 0 && below(s, ++seen) == 0)
            found = RIGHT[i].value;
    return found != NULL && below(s, 4) != 0 ? found : ANYTHING[below(s, N_ANYTHING)];
}

/* Some of the keys, each with something. */
static void make_args(uint64_t *s, const char *keys, char *out, size_t cap)
{
    size_t n = 1, many = below(s, 3); /* 0: each key is likely */
    out[0] = '{';
    while (*keys != '\0') {
        size_t len = strcspn(keys, " ");
        if (below(s, many == 0 ? 8 : 3) < (many == 0 ? 7 : 1))
            n += (size_t)snprintf(out + n, cap - n, "%s\"%.*s\":%s", n > 1 ? "," : "", (int)len, keys, value(s, keys, len));
        keys += len + (keys[len] == ' ');
    }
    snprintf(out + n, cap - n, "}");
}

/* One line that says something, without control characters; nothing goes unanswered or is the engine's own mistake. */
static bool clear_line(enum rs_result rc, const char *msg)
{
    bool good = rc < RS_OK && rc > RS_ETIMEOUT && strlen(msg) > 3 && strcmp(msg, "no reason given") != 0;
    for (const char *p = msg; *p != '\0'; p++)
        good = good && ((unsigned char)*p >= 32 && *p != 127);
    return good;
}

static void drain(struct rs_engine *e)
{
    struct rs_event ev;
    struct rs_error err;
    while (rs_next(e, 0, &ev, &err) == RS_OK && ev.type != RS_EVENT_LOST)
        ;
}

/* Nothing of what was set stays. */
static void undo(struct rs_engine *e)
{
    static const char *const ALL[][2] = {{"break.del", "{}"}, {"continue", "{}"}, {"probe.untap", "{}"}, {"probe.unwatch", "{}"}, {"patch.live.stop", "{}"}, {"patch.reset", "{}"},
                                         {"set", "{'mode':'graph','ranks':2,'numerics':'invariant','spec':0,'graph_guard':true}"}};
    char *reply;
    struct rs_error err;
    for (size_t i = 0; i < sizeof ALL / sizeof ALL[0]; i++)
        talk_error(e, NULL, ALL[i][0], "%s", ALL[i][1]);
    for (uint32_t id = 1; id < 3000; id++) { /* whatever still answers */
        char args[32];
        reply = NULL;
        snprintf(args, sizeof args, "{\"stream\":%u}", id);
        rs_request(e, "cancel", args, 60000, &reply, &err);
        free(reply);
        drain(e);
    }
}

int main(int argc, char **argv)
{
    const unsigned long usual = getenv("RANKSCOPE_LONG") != NULL ? 20000 : tap_short() ? 200 : 600;
    unsigned long requests = argc > 1 ? strtoul(argv[1], NULL, 10) : usual, good = 0, unclear = 0, silent = 0;
    uint64_t s = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static char args[8192];
    int32_t before[12], after[12];
    size_t n, m = 0;
    struct rs_engine *e = talk_open(MODEL, "\"ranks\":2,\"mode\":\"graph\",\"ctx\":1024,\"max_seqs\":4");
    json_decref(talk_generate(e, PROMPT, 12, before, 12, &n));
    for (unsigned long i = 0; i < requests; i++) {
        struct rs_error err = {.msg = ""};
        char *reply = NULL;
        void *blob = NULL;
        size_t len = 0;
        uint32_t k = below(&s, N_METHODS);
        make_args(&s, METHODS[k].keys, args, sizeof args);
        if (argc > 3)
            tap_diag("%lu: %s %s", i, METHODS[k].method, args);
        enum rs_result rc = rs_request_blob(e, METHODS[k].method, args, 60000, &reply, &blob, &len, &err);
        if (rc == RS_OK) {
            json_t *o = json_loads(reply != NULL ? reply : "", JSON_ALLOW_NUL, NULL);
            silent += !json_is_object(o);
            json_decref(o);
            good++;
        } else if (!clear_line(rc, err.msg)) {
            unclear++;
            tap_diag("%s %s: result %d, message \"%s\"", METHODS[k].method, args, (int)rc, err.msg);
        }
        free(reply);
        free(blob);
        drain(e);
    }
    tap_ok(requests < 100 || (good > requests / 10 && good < requests), "of %lu requests %lu are carried out, the others refused", requests, good);
    tap_eq_int((long long)silent, 0, "what is carried out has a reply");
    tap_eq_int((long long)unclear, 0, "every refusal is one clear line");
    undo(e);
    json_decref(talk_generate(e, PROMPT, 12, after, 12, &m));
    tap_ok(n == m && memcmp(before, after, n * sizeof *before) == 0, "the engine answers as before");
    rs_engine_close(e);
    return tap_done();
}
