/* Method audit: what was read, what was assumed, who holds what. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/audit_check.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/synth.h"
#include "kernels/type.h"

static json_t *file_json(const struct model *m)
{
    if (m->gguf == NULL) /* synthetic: shapes without a file */
        return json_pack("{s:s,s:i,s:I,s:I,s:s,s:I,s:s}", "path", m->path, "files", 0, "bytes", (json_int_t)m->w.file_bytes, "tensors", (json_int_t)0, "arch",
                         m->hp.arch_name, "params", (json_int_t)m->w.n_params, "hash", m->hash);
    return json_pack("{s:s,s:i,s:I,s:I,s:s,s:I,s:s}", "path", m->path, "files", (int)gguf_n_files(m->gguf), "bytes", (json_int_t)gguf_file_bytes(m->gguf), "tensors",
                     (json_int_t)gguf_n_tensors(m->gguf), "arch", m->hp.arch_name, "params", (json_int_t)m->w.n_params, "hash", m->hash);
}

static json_t *defaults_json(const struct hparams *hp)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < hp->n_defaults; i++)
        json_array_append_new(a, json_pack("{s:s,s:s,s:s,s:b}", "key", hp->defaults[i].key, "value", hp->defaults[i].value, "meaning", hp->defaults[i].meaning,
                                           "matters", hp->defaults[i].matters));
    return a;
}

static json_t *slots_json(const struct program *p)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *o = &p->ops[i];
        json_t *list = json_array();
        if (o->kind != OP_QKV_A && o->kind != OP_GATE_UP && o->kind != OP_MOE_GATE_UP) {
            json_decref(list);
            continue;
        }
        for (uint32_t s = 0; s < o->n_w; s++) {
            const struct op_view *v = plan_view(p, 0, o->w[s]);
            if (v->tensor != NULL)
                json_array_append_new(list, json_pack("{s:i,s:s,s:s,s:i}", "slot", (int)s, "tensor", v->tensor, "type", krn_type_info(v->type)->name, "file_order",
                                                      o->file_slot[0] == s ? 0 : 1));
        }
        json_array_append_new(a, json_pack("{s:s,s:o,s:b}", "site", o->site, "slots", list, "file_order_differs", o->file_slot[0] != 0));
    }
    return a;
}

/* How a view was cut, by comparing it with its whole tensor. */
static const char *split_of(const struct weight *w, const struct program *p, uint32_t index, bool heads)
{
    bool rows = false, cols = false, mats = false;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        const struct op_view *v = plan_view(p, r, index);
        rows |= v->rows != w->rows;
        cols |= v->k != w->k;
        mats |= v->n_mats != w->n_mats;
    }
    return mats ? (heads ? "heads" : "experts") : cols ? "cols" : rows ? "rows" : "replicated";
}

static const struct weight *weight_of(const struct model *m, const char *name, const struct op *o)
{
    if (o->layer >= 0) {
        const struct layer_weights *lw = &m->w.layers[o->layer];
        for (int i = 0; i < W_LAYER_COUNT; i++)
            if (lw->w[i].data != NULL && strcmp(lw->w[i].name, name) == 0)
                return &lw->w[i];
    }
    if (strcmp(m->w.embed.name, name) == 0)
        return &m->w.embed;
    return strcmp(m->w.output.name, name) == 0 ? &m->w.output : &m->w.output_norm;
}

static void add_warning(json_t *list, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add_warning(json_t *list, const char *fmt, ...)
{
    char s[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s, sizeof s, fmt, ap);
    va_end(ap);
    json_array_append_new(list, json_string(s));
}

/* Hashes of what the ranks hold of a weight, and a warning where two hold the same. */
static json_t *hashes_json(const struct program *p, uint32_t view, const char *name, bool sharded, bool all, json_t *warnings)
{
    uint64_t hash[RS_MAX_RANKS];
    uint32_t r, s;
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_ranks; i++) {
        char text[20];
        hash[i] = i > 0 && !sharded ? hash[0] : audit_hash(plan_view(p, i, view), !all);
        snprintf(text, sizeof text, "%016llx", (unsigned long long)hash[i]);
        json_array_append_new(list, hash[i] != 0 ? json_string(text) : json_null());
    }
    if (sharded && audit_same(p, view, hash, &r, &s))
        add_warning(warnings, "ranks %u and %u hold equal slices of %s", r, s, name);
    return list;
}

static json_t *plan_json(const struct model *m, const struct program *p, bool all, json_t *warnings)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *o = &p->ops[i];
        for (uint32_t s = 0; s < o->n_w; s++) {
            const struct op_view *v = plan_view(p, 0, o->w[s]);
            if (v->tensor == NULL)
                continue;
            const struct weight *w = weight_of(m, v->tensor, o);
            const char *split = split_of(w, p, o->w[s], o->kind == OP_MLA);
            json_t *ranks = json_array();
            for (uint32_t r = 0; r < p->n_ranks; r++) {
                const struct op_view *x = plan_view(p, r, o->w[s]);
                uint32_t from = strcmp(split, "cols") == 0 ? x->col0 : strcmp(split, "rows") == 0 ? x->row0 : x->mat0;
                uint32_t n = strcmp(split, "cols") == 0 ? x->k : strcmp(split, "rows") == 0 ? x->rows : x->n_mats;
                json_array_append_new(ranks, json_pack("{s:i,s:I,s:I}", "rank", (int)r, "from", (json_int_t)from, "to", (json_int_t)(from + n)));
            }
            json_t *hashes = m->gguf == NULL ? json_array() /* no data to hash */
                                             : hashes_json(p, o->w[s], v->tensor, strcmp(split, "replicated") != 0, all, warnings);
            char name[96]; /* synthetic tensors carry their role alone */
            snprintf(name, sizeof name, m->gguf == NULL && o->layer >= 0 ? "blk.%2$d.%1$s.weight" : "%1$s", v->tensor, o->layer);
            json_array_append_new(a, json_pack("{s:s,s:s,s:[I,I,I],s:s,s:o,s:o}", "tensor", name, "type", krn_type_info(w->type)->name, "shape", (json_int_t)w->k,
                                               (json_int_t)w->rows, (json_int_t)w->n_mats, "split", split, "ranks", ranks, "hashes", hashes));
        }
    }
    return a;
}

static json_t *ranks_json(const struct model *m, const struct program *p, enum krn_cache_type cache)
{
    json_t *a = json_array();
    uint64_t per_token = (uint64_t)(m->hp.kv_lora + m->hp.rope) * krn_cache_elem_bytes(cache) * m->hp.n_layers;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < p->n_views; i++) {
            const struct op_view *v = plan_view(p, r, i);
            bytes += v->rows != 0 ? (uint64_t)krn_row_bytes(v->type, v->k) * v->rows * v->n_mats : 0;
        }
        json_array_append_new(a, json_pack("{s:i,s:I,s:I}", "rank", (int)r, "bytes_weights", (json_int_t)bytes, "bytes_cache_per_token", (json_int_t)per_token));
    }
    return a;
}

/* What this machine holds: all ranks of a CPU backend share its memory, and the weights are there once. */
static json_t *fits_json(const struct model *m, const json_t *ranks, json_t *warnings)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), weights = (double)m->w.file_bytes + (double)m->w.owned_bytes;
    double per_token = (double)json_integer_value(json_object_get(json_array_get(ranks, 0), "bytes_cache_per_token")) * (double)json_array_size(ranks);
    double left = memory - weights;
    if (left < 0)
        add_warning(warnings, "the weights (%.1f GB) are larger than this machine's memory (%.1f GB)", weights / 1e9, memory / 1e9);
    return json_pack("{s:I,s:I,s:I}", "memory", (json_int_t)memory, "weights", (json_int_t)weights, "cache_tokens", (json_int_t)(left > 0 ? left / per_token : 0));
}

/* Every block of every tensor: scales that are no numbers come from broken conversions and turn whole rows into NaN. */
static void check_scales(const struct model *m, json_t *warnings)
{
    for (size_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        uint64_t first = 0, n = audit_broken(t, &first);
        if (n != 0)
            add_warning(warnings, "%s: %llu blocks have a scale that is NaN or infinite, the first is block %llu", t->name, (unsigned long long)n,
                        (unsigned long long)first);
    }
}

static void fill_warnings(json_t *a, const struct model *m, const struct shard_plan *shard)
{
    size_t unused = 0;
    const char *first = NULL;
    for (size_t i = 0; m->gguf != NULL && i < gguf_n_tensors(m->gguf); i++)
        if (!m->w.used[i]) {
            first = first == NULL ? gguf_tensor_at(m->gguf, i)->name : first;
            unused++;
        }
    if (unused != 0)
        add_warning(a, "%zu tensors are in the file but used by nothing, the first is %s", unused, first);
    if (m->w.tied)
        add_warning(a, "output.weight is missing: token_embd.weight serves as the head");
    if (m->hp.legacy_kv_b)
        add_warning(a, "attn_kv_b was taken apart at load: %llu bytes of f32", (unsigned long long)m->w.owned_bytes);
    for (size_t i = 0; m->vocab != NULL && vocab_note(m->vocab, i) != NULL; i++)
        add_warning(a, "%s", vocab_note(m->vocab, i));
    if (m->hp.n_experts != 0)
        add_warning(a, "experts are split %s: %s", shard->split[shard->n_layers - 1] == SHARD_EP ? "whole (ep)" : "inside (tp)", shard->split_why);
}

static enum rs_result audit(const struct model *m, uint32_t ranks, enum shard_split split, enum krn_cache_type cache, bool check, json_t *o, struct rs_error *err)
{
    struct shard_plan shard = {0};
    struct program p = {0};
    enum rs_result rc = shard_make(&m->hp, &m->w, ranks, split, &shard, err);
    if (rc == RS_OK)
        rc = plan_build(&m->hp, &m->w, &shard, PLAN_MAIN, m->hp.context, &p, err);
    if (rc == RS_OK) {
        json_object_set_new(o, "file", file_json(m));
        json_object_set_new(o, "defaults", defaults_json(&m->hp));
        json_object_set_new(o, "slots", slots_json(&p));
        json_object_set_new(o, "allreduce", json_pack("{s:s,s:i,s:i}", "formula", "2 x layers + 1", "layers", (int)m->hp.n_layers, "per_step",
                                                      (int)hparams_allreduces(&m->hp)));
        json_t *warnings = json_array(), *holds = ranks_json(m, &p, cache);
        json_object_set_new(o, "plan", plan_json(m, &p, check, warnings));
        json_object_set_new(o, "ranks", holds);
        json_object_set_new(o, "fits", fits_json(m, holds, warnings));
        fill_warnings(warnings, m, &shard);
        if (check)
            check_scales(m, warnings);
        json_object_set_new(o, "checked", json_boolean(check));
        json_object_set_new(o, "warnings", warnings);
    }
    plan_free(&p);
    shard_free(&shard);
    return rc;
}

/* A known model by name, shapes only: how would it be dealt? */
static enum rs_result synthetic(const char *name, uint32_t layers, struct model **out, struct rs_error *err)
{
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL || (m->path = strdup(name)) == NULL) {
        free(m);
        return error_set(err, RS_ENOMEM, "out of memory for a model");
    }
    enum rs_result rc = synth_make(name, layers, &m->hp, &m->w, err);
    if (rc != RS_OK) {
        model_close(m);
        return rc;
    }
    *out = m;
    return RS_OK;
}

static enum rs_result msg_audit(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *path = NULL, *split = "auto", *synth = NULL;
    uint32_t layers = 0, ranks = e->rt != NULL ? e->rt->cfg.ranks : 1;
    bool check = false;
    args_str(a, "path", &path);
    args_str(a, "split", &split);
    args_u32(a, "ranks", 1, RS_MAX_RANKS, &ranks);
    args_bool(a, "check", &check);
    args_str(a, "synthetic", &synth);
    args_u32(a, "layers", 1, HP_MAX_LAYERS, &layers);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    if (synth != NULL && (path != NULL || check))
        return error_set(err, RS_EUSAGE, "audit: a synthetic model has no file and no data to check");
    if (path == NULL && synth == NULL && e->model == NULL)
        return error_set(err, RS_ESTATE, "audit: no model is open and no path was given");
    enum shard_split s = strcmp(split, "tp") == 0 ? SHARD_TP : strcmp(split, "ep") == 0 ? SHARD_EP : SHARD_AUTO;
    if (s == SHARD_AUTO && strcmp(split, "auto") != 0)
        return error_set(err, RS_EUSAGE, "audit: split must be auto, tp or ep, not '%.20s'", split);
    struct model *other = NULL;
    if (path != NULL)
        rc = model_open(path, &other, err);
    else if (synth != NULL)
        rc = synthetic(synth, layers, &other, err);
    if (rc == RS_OK)
        rc = audit(other != NULL ? other : e->model, ranks, s, e->rt != NULL ? e->rt->cfg.cache : KRN_CACHE_F16, check, m->reply, err);
    model_close(other);
    return rc;
}

const struct msg_method MSG_AUDIT[] = {{"audit", false, msg_audit}, {NULL, false, NULL}};
