/* Methods about many sequences at once: load (counters and cache), requests (what runs and waits). */

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/server.h"

static void set(json_t *o, const char *key, uint64_t v)
{
    json_object_set_new(o, key, json_integer((json_int_t)v));
}

enum { LIST_GRAPHS = 256 };

static json_t *graphs_json(const struct engine *e)
{
    struct backend_graph g[LIST_GRAPHS];
    uint32_t n = e->rt->backend->ops->graphs(e->rt->backend, g, LIST_GRAPHS);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n && i < LIST_GRAPHS; i++)
        json_array_append_new(list, json_pack("{s:I,s:I}", "rows", (json_int_t)g[i].rows, "bytes", (json_int_t)g[i].bytes));
    return list;
}

/* The share of a step's ops that run from a graph now. */
static double graph_coverage(const struct engine *e)
{
    uint32_t n = e->rt->prog.n_ops, in = 0;
    for (uint32_t i = 0; i < n; i++)
        in += !e->rt->choices[i].impl->not_capturable;
    return e->graph && !brk_armed(e) && n != 0 ? (double)in / n : 0;
}

static enum rs_result msg_load(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    const struct sched_counts *c = &e->counts;
    const struct kv *kv = &e->rt->kv;
    json_t *cache = json_object(), *o = m->reply;
    set(o, "running", e->n_run);
    set(o, "waiting", e->wait.n);
    set(o, "max_seqs", e->rt->cfg.max_seqs);
    set(o, "batch_tokens", e->rt->cfg.batch_tokens);
    set(o, "submitted", c->submitted);
    set(o, "preemptions", c->preemptions);
    set(o, "steps", c->steps);
    json_object_set_new(o, "step_ms", json_real(c->step_us / 1e3));
    set(o, "prompt_rows", c->prompt_rows);
    set(o, "decode_rows", c->decode_rows);
    set(o, "prompt_tokens", c->prompt_tokens);
    set(o, "cached_tokens", c->cached_tokens);
    set(o, "tokens", e->tokens);
    json_object_set_new(o, "tok_per_s", json_real(e->rate));
    set(cache, "block", kv->block);
    set(cache, "blocks", kv->n_blocks - 1);
    set(cache, "held", kv->n_held);
    set(cache, "idle", kv->n_idle);
    set(cache, "queried", kv->queries);
    set(cache, "found", kv->hits);
    json_object_set_new(o, "cache", cache);
    json_object_set_new(o, "graphs", graphs_json(e));
    json_object_set_new(o, "graph_coverage", json_real(graph_coverage(e)));
    return RS_OK;
}

static const char *phase(const struct seq *s)
{
    return s->state == SEQ_WAITING ? s->preempted != 0 ? "preempted" : "waiting" : s->n_out == 0 ? "prompt" : "decode";
}

static json_t *request_json(const struct engine *e, const struct seq *s, uint64_t now)
{
    json_t *o = json_object();
    char why[160];
    set(o, "stream", s->id);
    json_object_set_new(o, "phase", json_string(phase(s)));
    set(o, "prompt_tokens", s->n_prompt);
    set(o, "cached_tokens", s->n_reused);
    set(o, "computed", s->n_cached);
    set(o, "tokens", s->n_out);
    set(o, "max_tokens", s->max_out);
    set(o, "preempted", s->preempted);
    set(o, "age_ms", (now - s->t_submit) / 1000);
    json_object_set_new(o, "tok_per_s", s->n_out > 1 && s->t_last > s->t_first ? json_real((s->n_out - 1) * 1e6 / (double)(s->t_last - s->t_first)) : json_null());
    sched_why(e, s, why, sizeof why);
    json_object_set_new(o, "why", why[0] != '\0' ? json_string(why) : json_null());
    json_object_set_new(o, "client", json_string(s->client));
    return o;
}

static enum rs_result msg_requests(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t limit = 100;
    args_u32(a, "limit", 1, 100000, &limit);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    json_t *list = json_array();
    uint64_t now = now_us();
    for (uint32_t i = 0; i < e->n_run && json_array_size(list) < limit; i++)
        json_array_append_new(list, request_json(e, e->run[i], now));
    for (const struct seq *s = e->wait.first; s != NULL && json_array_size(list) < limit; s = s->q_next)
        json_array_append_new(list, request_json(e, s, now));
    json_object_set_new(m->reply, "requests", list);
    set(m->reply, "running", e->n_run);
    set(m->reply, "waiting", e->wait.n);
    return rc;
}

const struct msg_method MSG_LOAD[] = {{"load", false, msg_load}, {"requests", false, msg_requests}, {NULL, false, NULL}};
