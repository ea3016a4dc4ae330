/* See capture.h. */
#include "engine/capture.h"

#include <stdlib.h>
#include <string.h>

#include "engine/args.h"
#include "engine/arith.h"
#include "engine/engine.h"
#include "engine/error.h"

static const uint64_t MAX_BYTES = 2ull << 30;

/* ---- configurations ---- */

static enum rs_result change_patches(json_t *obj, struct patch_table *t, struct rs_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach(obj, key, v) {
        struct patch_store now = {.now = *t};
        char slot[64];
        const char *at = strchr(key, '@');
        size_t n = at != NULL ? (size_t)(at - key) : strlen(key);
        enum patch_cost cost;
        if (n >= sizeof slot || !json_is_string(v))
            return error_set(err, RS_EUSAGE, "patches: '%.40s' must be SLOT or SLOT@SITE with a string", key);
        memcpy(slot, key, n);
        slot[n] = '\0';
        enum rs_result rc = patch_plan(&now, slot, json_string_value(v), at != NULL ? at + 1 : NULL, t, &cost, err);
        if (rc != RS_OK)
            return rc;
    }
    return RS_OK;
}

static bool one_of(struct args *a, const char *key, const char *first, const char *second, bool *is_first)
{
    const char *s;
    if (!args_str(a, key, &s))
        return false;
    *is_first = strcmp(s, first) == 0;
    if (!*is_first && strcmp(s, second) != 0 && a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "%s must be %s or %s, not '%.20s'", key, first, second, s);
    return true;
}

static void read_isa(struct args *a, enum krn_isa *isa)
{
    const char *s;
    if (!args_str(a, "isa", &s))
        return;
    for (int i = 0; i < KRN_ISA_COUNT; i++)
        if (krn_cpu_matmul((enum krn_isa)i) != NULL && strcmp(krn_cpu_matmul((enum krn_isa)i)->name, s) == 0) {
            *isa = (enum krn_isa)i;
            return;
        }
    if (a->rc == RS_OK)
        a->rc = error_set(a->err, RS_EUSAGE, "no instruction set '%.20s' here", s);
}

enum rs_result capture_config(struct engine *e, json_t *obj, struct capture_config *out, struct rs_error *err)
{
    struct args a;
    struct capture_config c = {.patches = e->patches.now, .rt = e->rt->cfg, .isa = e->isa, .graph = e->graph, .guard = e->guard, .fast = e->fast};
    json_t *patches = NULL, *none = json_object();
    const char *backend = e->rt->backend->ops->name;
    bool reset = false;
    args_begin(&a, obj != NULL ? obj : none, err);
    one_of(&a, "mode", "graph", "eager", &c.graph);
    one_of(&a, "numerics", "fast", "invariant", &c.fast);
    args_bool(&a, "graph_guard", &c.guard);
    args_u32(&a, "ranks", 1, RS_MAX_RANKS, &c.rt.ranks);
    args_bool(&a, "reset", &reset);
    args_str(&a, "backend", &backend);
    read_isa(&a, &c.isa);
    args_object(&a, "patches", &patches);
    enum rs_result rc = args_end(&a);
    for (uint32_t s = 0; reset && s < SLOT_COUNT; s++)
        if (s != SLOT_WEIGHTS) /* they are what they are on both sides */
            patch_drop(&c.patches, s);
    if (strcmp(backend, "cpu") == 0)
        c.rt.backend = BACKEND_CPU, c.patches.gpus = false;
    else if (rc == RS_OK && strcmp(backend, e->rt->backend->ops->name) != 0)
        rc = error_set(err, RS_EUNSUPPORTED, "backend '%.20s' is neither cpu nor what this engine runs on (%s)", backend, e->rt->backend->ops->name);
    if (rc == RS_OK && patches != NULL)
        rc = change_patches(patches, &c.patches, err);
    if (rc == RS_OK && !patch_same(&c.patches, &e->patches.now, SLOT_WEIGHTS))
        rc = error_set(err, RS_EUNSUPPORTED, "both sides have the weights that are loaded now; dump one side to a file and compare with that");
    json_decref(none);
    if (rc != RS_OK)
        return rc;
    engine_layout(&c.patches, &c.rt);
    *out = c;
    return RS_OK;
}

json_t *capture_config_json(const struct engine *e, const struct capture_config *c)
{
    json_t *p = json_object();
    for (uint32_t i = 0; i < c->patches.n; i++) {
        char key[96];
        const struct patch_entry *x = &c->patches.entry[i];
        bool all = strcmp(x->glob, "*") == 0;
        snprintf(key, sizeof key, "%s%s%s", patch_slot(x->slot)->name, all ? "" : "@", all ? "" : x->glob);
        json_object_set_new(p, key, json_string(x->impl));
    }
    return json_pack("{s:s,s:i,s:s,s:s,s:s,s:o}", "mode", c->graph ? "graph" : "eager", "ranks", (int)c->rt.ranks, "numerics", c->fast ? "fast" : "invariant", "isa",
                     krn_cpu_matmul(c->isa)->name, "backend", c->rt.backend == BACKEND_CPU ? "cpu" : e->rt->backend->ops->name, "patches", p);
}

/* ---- running ---- */

static bool same_layout(const struct engine *e, const struct capture_config *c)
{
    const struct runtime_config *a = &e->rt->cfg, *b = &c->rt;
    return a->ranks == b->ranks && a->split == b->split && a->cache == b->cache && a->backend == b->backend && c->isa == e->isa;
}

static uint64_t rows_of(const struct capture *c, enum op_buf b, uint32_t rows)
{
    return b == BUF_MGU || b == BUF_MACT ? (uint64_t)rows * c->rt->prog.hp->n_used : rows;
}

static enum rs_result add_obs(struct capture *c, const struct op *o, bool before, uint8_t index, uint32_t rows, uint64_t *bytes, struct rs_error *err)
{
    const struct op_ref *r = probe_ref(o, before, index);
    struct probe_obs *x = &c->obs[c->n_obs];
    uint32_t n = c->rt->cfg.ranks;
    *x = (struct probe_obs){.op = o->index, .before = before, .index = index, .bits = PROBE_COPY, .copied = calloc(n, sizeof *x->copied)};
    if (x->copied == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a capture");
    c->n_obs++;
    for (uint32_t k = 0; k < n; k++) {
        if (k > 0 && r->buf == BUF_FULL)
            break; /* one buffer for all ranks */
        size_t cap = (size_t)(rows_of(c, (enum op_buf)r->buf, rows) * plan_ref_width(&c->rt->prog, o, r, k));
        *bytes += cap * sizeof(float);
        if (*bytes > MAX_BYTES)
            return error_set(err, RS_EUSAGE, "to keep these sites would take more than %llu MiB: name fewer, or use a shorter prompt", (unsigned long long)(MAX_BYTES >> 20));
        x->copied[k] = (struct probe_copied){.data = malloc((cap + 1) * sizeof(float)), .cap = cap};
        if (x->copied[k].data == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for a capture");
        x->ranks |= 1ull << k;
    }
    return RS_OK;
}

static enum rs_result plan_obs(struct capture *c, const char *glob, uint32_t rows, struct rs_error *err)
{
    uint64_t bytes = 0;
    const struct program *p = &c->rt->prog;
    enum rs_result rc = RS_OK;
    c->obs = calloc((size_t)p->n_ops * (OP_MAX_IN + OP_MAX_OUT + 1) + 1, sizeof *c->obs);
    if (c->obs == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a capture");
    for (uint32_t i = 0; i < p->n_ops && rc == RS_OK; i++) {
        const struct op *o = &p->ops[i];
        if (!plan_glob(glob, o->site))
            continue;
        for (uint8_t k = 0; k < OP_MAX_IN && c->inputs && rc == RS_OK; k++)
            if (o->in[k].buf != BUF_NONE)
                rc = add_obs(c, o, true, k, rows, &bytes, err);
        if (c->inputs && rc == RS_OK && (o->accumulate || o->kind == OP_ADD)) /* what it adds to */
            rc = add_obs(c, o, true, OP_MAX_IN, rows, &bytes, err);
        for (uint8_t k = 0; k < OP_MAX_OUT && rc == RS_OK; k++)
            if (o->out[k].buf != BUF_NONE)
                rc = add_obs(c, o, false, k, rows, &bytes, err);
    }
    return rc;
}

enum rs_result capture_open(struct engine *e, const struct capture_config *cfg, const char *glob, unsigned flags, uint32_t n_tokens, uint32_t rows,
                            struct capture *out, struct rs_error *err)
{
    struct capture c = {.e = e, .cfg = *cfg, .inputs = (flags & CAPTURE_INPUTS) != 0, .cap_table = (n_tokens + RUNTIME_BLOCK - 1) / RUNTIME_BLOCK};
    size_t n_impls;
    const struct op_impl *impls = runtime_impls(cfg->rt.backend, &n_impls);
    enum rs_result rc = RS_OK;
    if (same_layout(e, cfg)) {
        c.rt = e->rt;
    } else {
        rc = runtime_open(e->model, &cfg->rt, &cfg->patches, e->pool, cfg->isa, &c.rt, err);
        if (rc != RS_OK)
            return rc;
        c.own = true;
    }
    if (!c.rt->backend->ops->inspects)
        rc = error_set(err, RS_EUNSUPPORTED, "the %s backend cannot keep what its ops write; give backend=cpu", c.rt->backend->ops->name);
    c.generation = e->patches.now.generation + 1; /* and the next: steps without and with observers are different graphs */
    e->patches.now.generation += 2;
    c.choices = calloc(c.rt->prog.n_ops, sizeof *c.choices);
    c.table = calloc(c.cap_table + 1, sizeof *c.table);
    c.logits = calloc(c.rt->prog.hp->vocab, sizeof *c.logits);
    c.arith = calloc((size_t)c.rt->prog.n_ops * cfg->rt.ranks, sizeof *c.arith);
    if (rc == RS_OK && (c.choices == NULL || c.table == NULL || c.logits == NULL || c.arith == NULL))
        rc = error_set(err, RS_ENOMEM, "out of memory for a capture");
    if (rc == RS_OK)
        rc = patch_resolve(&cfg->patches, &c.rt->prog, impls, n_impls, c.choices, err);
    while (rc == RS_OK && c.n_table < c.cap_table) {
        int32_t b = kv_alloc(&c.rt->kv);
        if (b < 0)
            rc = error_set(err, RS_ESTATE, "%u tokens do not fit in the cache (%u of %u blocks are free)", n_tokens, kv_available(&c.rt->kv), c.rt->kv.n_blocks - 1);
        else
            c.table[c.n_table++] = b;
    }
    if (rc == RS_OK && glob != NULL)
        rc = plan_obs(&c, glob, rows, err);
    if (rc != RS_OK) {
        capture_close(&c);
        return rc;
    }
    *out = c;
    return RS_OK;
}

void capture_close(struct capture *c)
{
    if (c->rt != NULL) { /* graphs point into c->obs: they go first */
        c->e->patches.now.generation++;
        c->rt->backend->ops->retire(c->rt->backend, c->e->patches.now.generation);
        for (uint32_t i = 0; i < c->n_table; i++)
            kv_drop(&c->rt->kv, c->table[i]);
    }
    for (uint32_t i = 0; i < c->n_obs; i++) {
        for (uint32_t r = 0; r < c->rt->cfg.ranks; r++)
            free(c->obs[i].copied[r].data);
        free(c->obs[i].copied);
    }
    if (c->own)
        runtime_close(c->rt);
    free(c->obs);
    free(c->arith);
    free(c->logits);
    free(c->table);
    free(c->choices);
    memset(c, 0, sizeof *c);
}

uint32_t capture_chunk(const struct engine *e)
{
    return e->batch.cap < e->batch.cap_logits ? e->batch.cap : e->batch.cap_logits;
}

enum rs_result capture_step(struct capture *c, const int32_t *ids, uint32_t from, uint32_t to, enum batch_kind kind, bool keep, struct rs_error *err)
{
    struct batch *b = &c->e->batch;
    uint32_t m = to - from;
    b->segs[0] = (struct batch_seg){.row0 = 0, .n_rows = m, .pos0 = from, .kind = kind, .table = c->table};
    b->n_segs = 1;
    b->n_rows = b->n_logits = m;
    b->wants = false;
    b->max_keys = to;
    for (b->bucket = 1; b->bucket < m; b->bucket *= 2)
        ;
    b->bucket = b->bucket < b->cap ? b->bucket : b->cap;
    for (uint32_t i = 0; i < m; i++) {
        b->token[i] = ids[from + i];
        b->pos[i] = (int32_t)(from + i);
        b->seg[i] = 0;
        b->logit_row[i] = (int32_t)i;
    }
    struct backend *k = c->rt->backend;
    enum rs_result rc = k->ops->reserve(k, b->max_keys, err);
    struct probe_set set = {.n_obs = c->n_obs, .obs = c->obs};
    if (rc != RS_OK)
        return rc;
    struct backend_step st = {.prog = &c->rt->prog, .choices = c->choices, .batch = b, .probes = keep && c->n_obs != 0 ? &set : NULL,
                              .generation = c->generation + keep, .graph = c->cfg.graph, .graph_guard = c->cfg.guard, .fast = c->cfg.fast};
    rc = k->ops->step(k, &st, err);
    if (rc != RS_OK)
        engine_drop_failed(c->e);
    if (rc == RS_OK) /* another capture may run on the same buffers */
        memcpy(c->logits, k->ops->logits(k, m - 1), c->rt->prog.hp->vocab * sizeof *c->logits);
    for (uint32_t i = 0; i < c->rt->prog.n_ops && rc == RS_OK && keep; i++)
        for (uint32_t r = 0; r < c->rt->prog.n_ranks; r++)
            c->arith[(size_t)i * c->rt->prog.n_ranks + r] = (uint8_t)arith_used(k, &c->rt->prog, &c->rt->prog.ops[i], c->choices, r);
    c->pos0 = from;
    c->rows = m;
    return rc;
}

enum rs_result capture_copy_cache(const struct capture *from, const struct capture *to, uint32_t n, struct rs_error *err)
{
    const struct hparams *hp = from->rt->prog.hp;
    struct backend *a = from->rt->backend, *b = to->rt->backend;
    size_t kv = hp->kv_lora + hp->rope, widest = kv > hp->index_dim ? kv : hp->index_dim;
    float *row = malloc(widest * RUNTIME_BLOCK * sizeof *row);
    enum rs_result rc = row == NULL ? error_set(err, RS_ENOMEM, "out of memory for a cache block") : RS_OK;
    for (uint32_t layer = 0; layer < hp->n_layers; layer++)
        for (uint32_t i = 0; i * RUNTIME_BLOCK < n && rc == RS_OK; i++)
            for (int index = 0; index < (hp->index_heads != 0 && hp->index_full[layer] ? 2 : 1) && rc == RS_OK; index++) {
                rc = a->ops->cache_get(a, 0, layer, index == 1, from->table[i], row, err); /* latents are the same on every rank */
                for (uint32_t r = 0; r < to->rt->cfg.ranks && rc == RS_OK; r++)
                    rc = b->ops->cache_put(b, r, layer, index == 1, to->table[i], row, err);
            }
    free(row);
    return rc;
}

/* ---- reading ---- */

const struct probe_copied *capture_part(const struct capture *c, const struct op *o, bool before, uint32_t index, uint32_t rank)
{
    for (uint32_t i = 0; i < c->n_obs; i++)
        if (c->obs[i].op == o->index && c->obs[i].before == before && c->obs[i].index == index)
            return (c->obs[i].ranks >> rank & 1) ? &c->obs[i].copied[rank] : NULL;
    return NULL;
}

/* Rows of the indexer are as long as there are keys: what lies behind is of older batches. */
static void blank_unused(const struct capture *c, enum op_buf buf, struct tensor *t)
{
    if (buf != BUF_ISCORE && buf != BUF_ISEL)
        return;
    for (uint32_t i = 0; i < t->rows; i++) {
        float *row = t->data + (size_t)i * t->width;
        uint32_t keys = c->pos0 + i + 1, used = 0;
        if (buf == BUF_ISCORE)
            used = keys <= c->rt->prog.hp->index_topk ? 0 : keys;
        else
            used = row[0] > 0 ? (uint32_t)row[0] + 1 : 1;
        for (uint32_t j = used < t->width ? used : t->width; j < t->width; j++)
            row[j] = 0;
    }
}

enum rs_result capture_tensor(const struct capture *c, const struct op *o, bool before, uint32_t index, int rank, struct tensor *out, struct rs_error *err)
{
    const struct op_ref *r = probe_ref(o, before, index);
    struct tensor part[RS_MAX_RANKS] = {{.data = NULL}}, t = {.data = NULL};
    static const struct probe_copied NOTHING = {.rows = 0};
    enum rs_result rc = RS_OK;
    for (uint32_t k = 0; k < c->rt->cfg.ranks && rc == RS_OK; k++) {
        const struct probe_copied *p = capture_part(c, o, before, index, k);
        if (rank < 0 || (uint32_t)rank == k)
            rc = tensor_copied((enum op_buf)r->buf, p != NULL ? p : &NOTHING, &part[k], err);
    }
    if (rc == RS_OK && rank < 0)
        rc = tensor_join(&c->rt->prog, o, r, part, &t, err);
    else if (rc == RS_OK) {
        t = part[rank];
        part[rank].data = NULL;
    }
    for (uint32_t k = 0; k < c->rt->cfg.ranks; k++)
        tensor_free(&part[k]);
    if (rc != RS_OK)
        return rc;
    blank_unused(c, (enum op_buf)r->buf, &t);
    *out = t;
    return RS_OK;
}

enum op_arith capture_arith(const struct capture *c, const struct op *o, uint32_t rank)
{
    return (enum op_arith)c->arith[(size_t)o->index * c->rt->prog.n_ranks + rank];
}

int32_t capture_next(const struct capture *c)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < c->rt->prog.hp->vocab; i++)
        if (c->logits[i] > c->logits[at])
            at = i;
    return (int32_t)at;
}
