/* Methods about the model and the engine itself: hello, open, close, info, set, stop, ping. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#ifdef HAVE_CUDA
#include "engine/cuda_backend.h"
#endif
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/hosts.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/server.h"
#include "kernels/type.h"

static enum rs_result msg_hello(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t protocol = 0;
    const char *client = "";
    bool control = false, take = false, serve = false;
    args_need(a, args_u32(a, "protocol", 0, UINT32_MAX, &protocol), "protocol");
    args_str(a, "client", &client);
    args_bool(a, "control", &control);
    args_bool(a, "take", &take);
    args_bool(a, "serve", &serve);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    if (protocol != RS_PROTOCOL)
        return error_set(err, RS_ESTATE, "engine %s speaks protocol %d, this client %u: restart the engine or use the same version", e->name, RS_PROTOCOL, protocol);
    server_introduce(e->server, m->slot, client, serve);
    bool in_control = control || take ? server_take_control(e->server, m->slot, take) : false;
    json_object_set_new(m->reply, "protocol", json_integer(RS_PROTOCOL));
    json_object_set_new(m->reply, "version", json_string(PACKAGE_VERSION));
    json_object_set_new(m->reply, "name", json_string(e->name));
    json_object_set_new(m->reply, "pid", json_integer(getpid()));
    json_object_set_new(m->reply, "in_control", json_boolean(in_control));
    return RS_OK;
}

static enum rs_result msg_control(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    bool take = false, give = false;
    int waiting;
    args_bool(a, "take", &take);
    args_bool(a, "give", &give);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    if (take && give)
        return error_set(err, RS_EUSAGE, "control is either taken or given up");
    if (take)
        server_take_control(e->server, m->slot, true);
    if (give)
        server_give_control(e->server, m->slot);
    int holder = server_control(e->server, &waiting);
    json_object_set_new(m->reply, "in_control", json_boolean(holder == m->slot));
    json_object_set_new(m->reply, "client", holder >= 0 ? json_string(server_client_name(e->server, holder)) : json_null());
    json_object_set_new(m->reply, "waiting", json_integer(waiting));
    return RS_OK;
}

static json_t *types_json(const struct model *m)
{
    json_t *o = json_object();
    for (size_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const char *name = krn_type_info(gguf_tensor_at(m->gguf, i)->type)->name;
        json_object_set_new(o, name, json_integer(json_integer_value(json_object_get(o, name)) + 1));
    }
    return o;
}

static json_t *model_json(const struct model *m)
{
    const struct hparams *hp = &m->hp;
    json_t *o = json_object();
    json_object_set_new(o, "path", json_string(m->path));
    json_object_set_new(o, "name", m->name != NULL ? json_string(m->name) : json_null());
    json_object_set_new(o, "arch", json_string(hp->arch_name));
    json_object_set_new(o, "hash", json_string(m->hash));
    json_object_set_new(o, "params", json_integer((json_int_t)m->w.n_params));
    json_object_set_new(o, "bytes", json_integer((json_int_t)m->w.file_bytes));
    const struct { const char *key; uint32_t v; } n[] = {{"layers", hp->n_layers}, {"nextn", hp->n_nextn}, {"n_embd", hp->n_embd}, {"vocab", hp->vocab},
        {"context", hp->context}, {"heads", hp->n_heads}, {"experts", hp->n_experts}, {"experts_used", hp->n_used}, {"index_topk", hp->index_topk}};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        json_object_set_new(o, n[i].key, json_integer(n[i].v));
    json_object_set_new(o, "slice", m->slice_of != 0 ? json_pack("{s:i,s:i}", "rank", (int)m->slice, "of", (int)m->slice_of) : json_null());
    json_object_set_new(o, "template", m->chat_template != NULL ? json_string(m->chat_template) : json_null());
    json_object_set_new(o, "pre", json_string(vocab_pre_name(m->vocab)));
    json_object_set_new(o, "bos", json_integer(vocab_bos(m->vocab)));
    json_object_set_new(o, "adds_bos", json_boolean(vocab_adds_bos(m->vocab)));
    json_object_set_new(o, "types", types_json(m));
    return o;
}

static json_t *hosts_json(const struct engine *e)
{
    json_t *list = e->hosts != NULL ? json_array() : json_null();
    for (uint32_t h = 0; e->hosts != NULL && h < hosts_count(e->hosts); h++) {
        uint32_t from, to;
        hosts_ranks_of(e->hosts, h, &from, &to);
        json_array_append_new(list, json_pack("{s:s,s:i,s:[i,i]}", "host", hosts_name(e->hosts, h), "pid", (int)hosts_pid(e->hosts, h), "ranks", (int)from, (int)to));
    }
    return list;
}

static void fill_info(const struct engine *e, json_t *o)
{
    json_object_set_new(o, "model", e->model != NULL ? model_json(e->model) : json_null());
    json_object_set_new(o, "backend", json_string(e->rt != NULL && e->rt->cfg.backend == BACKEND_CUDA ? "cuda" : "cpu"));
    json_object_set_new(o, "workers", json_integer(e->workers));
    json_object_set_new(o, "isa", json_string(krn_cpu_matmul(e->isa)->name));
    json_object_set_new(o, "simulated", json_boolean(engine_simulated(e)));
    json_object_set_new(o, "hosts", hosts_json(e));
    json_object_set_new(o, "state", engine_state_json(e));
}

static enum rs_result msg_info(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        fill_info(e, m->reply);
    return rc;
}

static bool parse_mode(struct args *a, bool *graph)
{
    const char *s;
    if (!args_str(a, "mode", &s))
        return false;
    if (strcmp(s, "graph") != 0 && strcmp(s, "eager") != 0) {
        a->rc = error_set(a->err, RS_EUSAGE, "mode must be graph or eager, not '%.20s'", s);
        return false;
    }
    *graph = s[0] == 'g';
    return true;
}

static void parse_backend(struct args *a, enum backend_kind *out)
{
    const char *s;
    if (!args_str(a, "backend", &s))
        return;
    if (strcmp(s, "cpu") != 0 && strcmp(s, "cuda") != 0) {
        a->rc = error_set(a->err, RS_EUSAGE, "backend must be cpu or cuda, not '%.20s'", s);
        return;
    }
    *out = s[1] == 'u' ? BACKEND_CUDA : BACKEND_CPU;
}

/* How many, or which: a number or an array of device numbers. */
static void parse_gpus(struct args *a, struct runtime_config *cfg)
{
    json_t *v;
    if (!args_any(a, "gpus", &v))
        return;
    if (json_is_integer(v) && json_integer_value(v) >= 1 && json_integer_value(v) <= RUNTIME_MAX_GPUS) {
        cfg->gpus = (uint32_t)json_integer_value(v);
        return;
    }
    size_t n = json_array_size(v);
    bool ok = n >= 1 && n <= RUNTIME_MAX_GPUS;
    for (size_t i = 0; i < n && ok; i++) {
        json_int_t d = json_is_integer(json_array_get(v, i)) ? json_integer_value(json_array_get(v, i)) : -1;
        ok = d >= 0 && d < 256;
        for (size_t k = 0; k < i && ok; k++)
            ok = cfg->device[k] != d;
        cfg->device[i] = (uint8_t)d;
    }
    cfg->n_listed = (uint32_t)n;
    if (!ok && a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "gpus must be a number of devices, 1 to %d, or a list of different device numbers", RUNTIME_MAX_GPUS);
}

static bool parse_numerics(struct args *a, bool *fast)
{
    const char *s;
    if (!args_str(a, "numerics", &s))
        return false;
    if (strcmp(s, "fast") != 0 && strcmp(s, "invariant") != 0) {
        a->rc = error_set(a->err, RS_EUSAGE, "numerics must be invariant or fast, not '%.20s'", s);
        return false;
    }
    *fast = s[0] == 'f';
    return true;
}

/* Patches given with "open": {"mla": "absorbed", "matmul@*.out": "f32"}. Applied before the model is laid out, so nothing is done twice. */
static enum rs_result plan_patches(struct engine *e, json_t *obj, struct rs_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach(obj, key, v) {
        char slot[64];
        const char *at = strchr(key, '@');
        size_t n = at != NULL ? (size_t)(at - key) : strlen(key);
        struct patch_table next;
        enum patch_cost cost;
        if (n >= sizeof slot || !json_is_string(v))
            return error_set(err, RS_EUSAGE, "patches: '%.40s' must be SLOT or SLOT@SITE with a string", key);
        memcpy(slot, key, n);
        slot[n] = '\0';
        enum rs_result rc = patch_plan(&e->patches, slot, json_string_value(v), at != NULL ? at + 1 : NULL, &next, &cost, err);
        if (rc != RS_OK)
            return rc;
        patch_commit(&e->patches, &next, slot, at != NULL ? at + 1 : NULL, json_string_value(v), "open", 0);
    }
    return RS_OK;
}

/* In graph mode an implementation that cannot be captured is refused before anything runs. */
enum rs_result msg_check_capturable(const struct engine *e, const struct choice *ch, bool graph, bool guard, struct rs_error *err)
{
    if (!graph || !guard || e->rt == NULL)
        return RS_OK;
    for (uint32_t i = 0; i < e->rt->prog.n_ops; i++)
        if (ch[i].impl->not_capturable)
            return error_set(err, RS_ESTATE, "op %s: %s=%s cannot be captured in a graph (use eager mode, another implementation, or graph.guard=off)",
                             e->rt->prog.ops[i].site, op_kind_name(e->rt->prog.ops[i].kind), ch[i].impl->name);
    return RS_OK;
}

/* What allreduce=auto will do with this model. */
static void tell_sweep(struct engine *e)
{
    struct backend *b = e->rt->backend;
    const struct backend_sweep *s = b->ops->sweep != NULL ? b->ops->sweep(b) : NULL;
    char from[2][40];
    if (s == NULL || s->n == 0)
        return;
    for (int i = 0; i < 2; i++)
        if (s->from_rows[i] == 0)
            snprintf(from[i], sizeof from[i], "never");
        else
            snprintf(from[i], sizeof from[i], "from %u rows on", s->from_rows[i]);
    engine_log(e, "info", "allreduce=auto: two-shot %s with payload bf16, %s with f32, else flat (%u reduces timed, %.0f ms)", from[1], from[0], 2 * s->n, s->took_ms);
}

static enum rs_result msg_open(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *path = NULL;
    struct runtime_config cfg = {0};
    bool graph = e->graph, fast = e->fast, guard = e->guard;
    uint32_t spec = 0;
    json_t *patches = NULL;
    struct synth_spec made;
    struct model *model = NULL;
    bool synthetic = msg_read_synthetic(a, &made);
    args_need(a, args_str(a, "path", &path) || synthetic, "path (or synthetic)");
    args_u32(a, "ranks", 1, RS_MAX_RANKS, &cfg.ranks);
    parse_backend(a, &cfg.backend);
    parse_gpus(a, &cfg);
    args_u32(a, "ctx", 16, 1u << 24, &cfg.ctx);
    args_u32(a, "max_seqs", 1, 4096, &cfg.max_seqs);
    args_u32(a, "batch_tokens", 1, 1u << 16, &cfg.batch_tokens);
    args_u32(a, "spec", 0, SPEC_MAX, &spec);
    parse_mode(a, &graph);
    fast |= cfg.backend == BACKEND_CUDA; /* there a lone sequence is several times slower with kernels that do not care for its company */
    parse_numerics(a, &fast);
    args_bool(a, "graph_guard", &guard);
    args_object(a, "patches", &patches);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    if (synthetic && path != NULL)
        return error_set(err, RS_EUSAGE, "a model is a path or synthetic, not both");
    rc = synthetic ? model_make(&made, &model, err) : model_open(path, &model, err);
    if (rc != RS_OK)
        return rc;
    struct patch_table before = e->patches.now;
    e->patches.now.gpus = cfg.backend == BACKEND_CUDA;
    e->patches.now.hosts = e->hosts != NULL;
    if (patches != NULL)
        rc = plan_patches(e, patches, err);
    if (rc == RS_OK)
        rc = engine_load(e, model, &cfg, err);
    else
        model_close(model);
    if (rc == RS_OK)
        spec_want(e, spec);
    if (rc == RS_OK)
        rc = msg_check_capturable(e, e->rt->choices, graph, guard, err);
    if (rc != RS_OK) {
        uint64_t g = e->patches.now.generation;
        e->patches.now = before; /* as if nothing had been asked; the generation only ever grows */
        e->patches.now.generation = g + 1;
        if (e->patches.registry->n_donors == 0)
            patch_drop(&e->patches.now, SLOT_WEIGHTS);
        return rc;
    }
    e->graph = graph;
    e->fast = fast;
    e->guard = guard;
    fill_info(e, m->reply);
    engine_announce(e);
    tell_sweep(e);
    return RS_OK;
}

static enum rs_result msg_close(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)m, (void)err;
    enum rs_result rc = args_end(a);
    if (rc == RS_OK) {
        engine_unload(e);
        engine_announce(e);
    }
    return rc;
}

static enum rs_result msg_set(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    bool graph = e->graph, fast = e->fast, guard = e->guard;
    uint32_t ranks = 0, spec = e->spec.n;
    uint64_t t0 = now_us();
    parse_mode(a, &graph);
    parse_numerics(a, &fast);
    args_bool(a, "graph_guard", &guard);
    args_u32(a, "ranks", 1, RS_MAX_RANKS, &ranks);
    args_u32(a, "spec", 0, SPEC_MAX, &spec);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK && e->rt != NULL)
        rc = msg_check_capturable(e, e->rt->choices, graph, guard, err);
    if (rc == RS_OK && ranks != 0) {
        if (e->rt == NULL)
            return error_set(err, RS_ESTATE, "no model is open");
        struct runtime_config cfg = e->rt->cfg;
        cfg.ranks = ranks;
        if (ranks != e->rt->cfg.ranks && (rc = engine_relayout(e, &cfg, &e->patches.now, err)) == RS_OK)
            tell_sweep(e);
    }
    if (rc == RS_OK)
        rc = spec_set(e, spec, err);
    if (rc != RS_OK)
        return rc;
    if (fast != e->fast && e->rt != NULL)
        kv_renew(&e->rt->kv);
    e->graph = graph;
    e->fast = fast;
    e->guard = guard;
    json_t *state = engine_state_json(e);
    json_object_update(m->reply, state);
    json_decref(state);
    json_object_set_new(m->reply, "took_ms", json_real((double)(now_us() - t0) / 1e3));
    engine_announce(e);
    return RS_OK;
}

static enum rs_result msg_stop(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)m, (void)err;
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        server_stop(e->server);
    return rc;
}

static enum rs_result msg_ping(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)e, (void)err;
    enum rs_result rc = args_end(a);
    json_object_set_new(m->reply, "time_us", json_integer((json_int_t)now_us()));
    return rc;
}

const struct msg_method MSG_MODEL[] = {
    {"hello", false, msg_hello}, {"control", false, msg_control}, {"open", true, msg_open}, {"close", true, msg_close}, {"info", false, msg_info},
    {"set", true, msg_set},      {"stop", true, msg_stop}, {"ping", false, msg_ping},  {NULL, false, NULL},
};
