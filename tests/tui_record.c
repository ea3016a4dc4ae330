/* tui_record: run the shipped model and write what its engine says about itself as a script for the fake engine, so that screens of the
 * panels can be compared: tests/tui_record >tests/golden-screens/engine.script. Figures depend on the machine, hence recorded. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/talk.h"

/* A tenth of a microsecond is as fine as anything is shown. */
static void round_all(json_t *v)
{
    const char *key;
    json_t *m;
    size_t i;
    if (json_is_real(v))
        json_real_set(v, fabs(json_real_value(v)) < 10 ? round(json_real_value(v) * 1e4) / 1e4 : round(json_real_value(v) * 10) / 10);
    json_object_foreach(v, key, m) round_all(m);
    json_array_foreach(v, i, m) round_all(m);
}

static void record(struct rs_engine *e, const char *method, const char *args)
{
    json_t *reply = talk(e, method, "%s", args);
    round_all(reply);
    char *text = json_dumps(reply, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("reply %s %s\n", method, text);
    free(text);
    json_decref(reply);
}

int main(void)
{
    static const char *const methods[] = {"stats", "allreduce", "ledger"};
    int32_t tok[64];
    size_t n;
    struct rs_snapshot s;
    struct rs_engine *e = talk_open("models/tiny-glm5-q4.gguf", "\"ranks\":8,\"mode\":\"eager\"");
    json_decref(talk_generate(e, "'segments':[{'text':'Once upon a time'}]", 30, tok, 64, &n));
    json_decref(talk(e, "set", "{'mode':'graph'}"));
    json_decref(talk_generate(e, "'segments':[{'text':'Once upon a time'}]", 60, tok, 64, &n));
    printf("# What an engine with the shipped model on 8 simulated ranks said; written by tests/tui_record.\n");
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        record(e, methods[i], "{}");
    record(e, "program", "{'site':'blk.0.attn.qkv_a'}");
    json_t *ar = talk(e, "allreduce", "{}");
    for (uint32_t r = 0; rs_snapshot_read(e, &s) && r < s.n_ranks; r++) {
        char p50[32], p99[32];
        snprintf(p50, sizeof p50, "ranks.%u.p50_us", r);
        snprintf(p99, sizeof p99, "ranks.%u.p99_us", r);
        printf("rank %u busy %.1f\nrank %u wait %.1f\nrank %u transfer %.1f\n", r, (double)s.rank[r].busy_us, r,
               (double)s.rank[r].ar_wait_us, r, (double)s.rank[r].ar_transfer_us);
        printf("rank %u p50 %.1f\nrank %u p99 %.1f\n", r, talk_num(ar, p50), r, talk_num(ar, p99));
    }
    json_decref(ar);
    rs_engine_close(e);
    return 0;
}
