/* Method audit: what was read, what was assumed, who holds what. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/audit_check.h"
#include "engine/audit_fit.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "kernels/type.h"

static json_t *file_json(const struct model *m)
{
    return json_pack("{s:s,s:i,s:I,s:I,s:s,s:I,s:s}", "path", m->path, "files", m->made_up ? 0 : (int)gguf_n_files(m->gguf), "bytes", (json_int_t)gguf_file_bytes(m->gguf), "tensors",
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

static void add_slots(json_t *a, const struct program *p)
{
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

/* Slices whose rows begin or end inside of a quantisation block. */
static uint32_t count_cut(const struct program *p, uint32_t view)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        const struct op_view *v = plan_view(p, r, view);
        uint32_t block = krn_type_info(v->type)->block_elems;
        n += v->rows != 0 && (v->col0 % block != 0 || v->k % block != 0);
    }
    return n;
}

/* Does an op of the same layer, or the op itself, use this slice before? It lies in memory once. */
static bool listed_before(const struct program *p, uint32_t op, uint32_t weight)
{
    const struct op_view *v = plan_view(p, 0, p->ops[op].w[weight]);
    for (uint32_t i = 0; i <= op; i++)
        for (uint32_t s = 0; p->ops[i].layer == p->ops[op].layer && s < (i < op ? p->ops[i].n_w : weight); s++) {
            const struct op_view *u = plan_view(p, 0, p->ops[i].w[s]);
            if (u->tensor != NULL && strcmp(u->tensor, v->tensor) == 0 && u->row0 == v->row0 && u->col0 == v->col0 && u->mat0 == v->mat0 && u->rows == v->rows &&
                u->k == v->k && u->n_mats == v->n_mats)
                return true;
        }
    return false;
}

/* borrows_from: a program whose slices are not listed again, or NULL. */
static void add_plan(json_t *a, const struct model *m, const struct program *p, const struct program *borrows_from, bool all, uint32_t *cut, json_t *warnings)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct op *o = &p->ops[i];
        for (uint32_t s = 0; s < o->n_w; s++) {
            const struct op_view *v = plan_view(p, 0, o->w[s]);
            if (v->tensor == NULL || listed_before(p, i, s) || (borrows_from != NULL && audit_is_borrowed(borrows_from, v, 0)))
                continue;
            *cut += count_cut(p, o->w[s]);
            const struct weight *w = weight_of(m, v->tensor, o);
            const char *split = split_of(w, p, o->w[s], o->kind == OP_MLA);
            json_t *ranks = json_array();
            for (uint32_t r = 0; r < p->n_ranks; r++) {
                const struct op_view *x = plan_view(p, r, o->w[s]);
                uint32_t from = strcmp(split, "cols") == 0 ? x->col0 : strcmp(split, "rows") == 0 ? x->row0 : x->mat0;
                uint32_t n = strcmp(split, "cols") == 0 ? x->k : strcmp(split, "rows") == 0 ? x->rows : x->n_mats;
                json_array_append_new(ranks, json_pack("{s:i,s:I,s:I}", "rank", (int)r, "from", (json_int_t)from, "to", (json_int_t)(from + n)));
            }
            json_t *hashes = m->made_up && !m->filled ? json_array() /* no data to hash */
                                             : hashes_json(p, o->w[s], v->tensor, strcmp(split, "replicated") != 0, all, warnings);
            json_array_append_new(a, json_pack("{s:s,s:s,s:[I,I,I],s:s,s:o,s:o}", "tensor", v->tensor, "type", krn_type_info(w->type)->name, "shape", (json_int_t)w->k,
                                               (json_int_t)w->rows, (json_int_t)w->n_mats, "split", split, "ranks", ranks, "hashes", hashes));
        }
    }
}

static void fit_warnings(const json_t *fits, json_t *warnings)
{
    const json_t *gpus = json_object_get(fits, "gpus");
    double memory = json_number_value(json_object_get(fits, "memory")), weights = json_number_value(json_object_get(fits, "weights"));
    if (weights > memory)
        add_warning(warnings, "the weights (%.1f GB) are larger than this machine's memory (%.1f GB)", weights / 1e9, memory / 1e9);
    if (json_is_object(gpus) && json_is_false(json_object_get(gpus, "fits")))
        add_warning(warnings, "the weights do not fit %lld GPUs of %.1f GB: %.1f GB are missing on the fullest",
                    (long long)json_integer_value(json_object_get(gpus, "used")), json_number_value(json_object_get(gpus, "memory")) / 1e9,
                    json_number_value(json_object_get(gpus, "missing")) / 1e9);
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
    for (size_t i = 0; i < gguf_n_tensors(m->gguf); i++)
        if (!m->w.used[i]) {
            first = first == NULL ? gguf_tensor_at(m->gguf, i)->name : first;
            unused++;
        }
    for (uint32_t i = 0; i < m->hp.n_defaults; i++)
        if (m->hp.defaults[i].matters)
            add_warning(a, "%s is not in the file and changes what is computed: taken as %s, %s", m->hp.defaults[i].key, m->hp.defaults[i].value, m->hp.defaults[i].meaning);
    if (unused != 0)
        add_warning(a, "%zu tensors are in the file but used by nothing, the first is %s", unused, first);
    if (m->w.tied)
        add_warning(a, "output.weight is missing: token_embd.weight serves as the head");
    if (m->hp.legacy_kv_b)
        add_warning(a, "attn_kv_b was taken apart at load: %llu bytes of f32", (unsigned long long)m->w.owned_bytes);
    for (size_t i = 0; vocab_note(m->vocab, i) != NULL; i++)
        add_warning(a, "%s", vocab_note(m->vocab, i));
    if (m->hp.n_experts != 0)
        add_warning(a, "experts are split %s: %s", shard->split[shard->n_layers - 1] == SHARD_EP ? "whole (ep)" : "inside (tp)", shard->split_why);
}

struct question {
    uint32_t ranks;
    enum shard_split split;
    enum krn_cache_type cache;
    bool check;
    struct audit_gpus gpus;
};

static void fill(const struct model *m, const struct question *q, const struct shard_plan *shard, const struct program *p, const struct program *next, json_t *o)
{
    json_t *warnings = json_array(), *slots = json_array(), *plan = json_array(), *holds = audit_ranks(m, p, next, q->cache), *fits = audit_fits(m, holds, &q->gpus);
    uint32_t cut = 0;
    add_slots(slots, p);
    add_plan(plan, m, p, NULL, q->check, &cut, warnings);
    if (next != NULL) {
        add_slots(slots, next);
        add_plan(plan, m, next, p, q->check, &cut, warnings);
    }
    json_object_set_new(o, "file", file_json(m));
    json_object_set_new(o, "defaults", defaults_json(&m->hp));
    json_object_set_new(o, "slots", slots);
    json_object_set_new(o, "allreduce", json_pack("{s:s,s:i,s:i}", "formula", "2 x layers + 1", "layers", (int)m->hp.n_layers, "per_step",
                                                  (int)hparams_allreduces(&m->hp)));
    json_object_set_new(o, "plan", plan);
    json_object_set_new(o, "cut_blocks", json_integer(cut));
    json_object_set_new(o, "ranks", holds);
    json_object_set_new(o, "fits", fits);
    fit_warnings(fits, warnings);
    fill_warnings(warnings, m, shard);
    if (cut != 0)
        add_warning(warnings, "%u slices begin or end inside of a quantisation block", cut);
    if (q->check)
        check_scales(m, warnings);
    json_object_set_new(o, "checked", json_boolean(q->check));
    json_object_set_new(o, "warnings", warnings);
}

static enum rs_result audit(const struct model *m, const struct question *q, json_t *o, struct rs_error *err)
{
    struct shard_plan shard = {0};
    struct program p = {0}, next = {0};
    const bool nextn = m->hp.n_nextn != 0;
    enum rs_result rc = shard_make(&m->hp, &m->w, q->ranks, q->split, &shard, err);
    if (rc == RS_OK)
        rc = plan_build(&m->hp, &m->w, &shard, PLAN_MAIN, m->hp.context, &p, err);
    if (rc == RS_OK && nextn)
        rc = plan_build(&m->hp, &m->w, &shard, PLAN_NEXTN, m->hp.context, &next, err);
    if (rc == RS_OK)
        fill(m, q, &shard, &p, nextn ? &next : NULL, o);
    plan_free(&next);
    plan_free(&p);
    shard_free(&shard);
    return rc;
}

static enum rs_result msg_audit(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *path = NULL, *split = "auto";
    struct synth_spec made;
    struct question q = {.ranks = e->rt != NULL ? e->rt->cfg.ranks : 1, .cache = e->rt != NULL ? e->rt->cfg.cache : KRN_CACHE_F16};
    float gib = 0;
    args_str(a, "path", &path);
    args_str(a, "split", &split);
    args_u32(a, "ranks", 1, RS_MAX_RANKS, &q.ranks);
    args_bool(a, "check", &q.check);
    args_u32(a, "gpus", 1, RS_MAX_RANKS, &q.gpus.n);
    args_f32(a, "gpu_memory", 0.001, 1e6, &gib);
    bool synth = msg_read_synthetic(a, &made);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    if (synth && (path != NULL || q.check))
        return error_set(err, RS_EUSAGE, "a synthetic model has no file and no data to check");
    if (path == NULL && !synth && e->model == NULL)
        return error_set(err, RS_ESTATE, "no model is open and no path was given");
    q.gpus.memory = (uint64_t)((double)gib * 0x1p30);
    q.split = strcmp(split, "tp") == 0 ? SHARD_TP : strcmp(split, "ep") == 0 ? SHARD_EP : SHARD_AUTO;
    if (q.split == SHARD_AUTO && strcmp(split, "auto") != 0)
        return error_set(err, RS_EUSAGE, "split must be auto, tp or ep, not '%.20s'", split);
    struct model *other = NULL;
    if (path != NULL)
        rc = model_open(path, &other, err);
    else if (synth)
        rc = model_make(&made, &other, err);
    if (rc == RS_OK)
        rc = audit(other != NULL ? other : e->model, &q, m->reply, err);
    model_close(other);
    return rc;
}

const struct msg_method MSG_AUDIT[] = {{"audit", false, msg_audit}, {NULL, false, NULL}};
