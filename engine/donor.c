/* See donor.h. */
#include "engine/donor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "kernels/quant.h"
#include "kernels/type.h"

/* ---- files ---------------------------------------------------------------------------------------------------------------------------- */

static void name_of(const struct model *m, const char *path, char out[PATCH_DONOR_NAME])
{
    const char *base = strrchr(path, '/');
    char stem[PATCH_DONOR_NAME - 4];
    snprintf(stem, sizeof stem, "%.*s", (int)sizeof stem - 1, base != NULL ? base + 1 : path);
    char *dot = strstr(stem, ".gguf");
    if (dot != NULL)
        *dot = '\0';
    for (char *p = stem; *p != '\0'; p++) /* it is typed at prompts and stands in reports */
        if (strchr("=@, \t;:", *p) != NULL || (unsigned char)*p < ' ' || (unsigned char)*p > '~')
            *p = '_';
    snprintf(out, PATCH_DONOR_NAME, "%s", stem[0] != '\0' && strcmp(stem, "file") != 0 ? stem : "donor");
    for (unsigned v = 2;; v++) {
        bool taken = false;
        for (uint32_t i = 0; i < m->n_donors; i++)
            taken |= strcmp(m->donor[i].name, out) == 0;
        if (!taken)
            return;
        snprintf(out, PATCH_DONOR_NAME, "%s.%u", stem, v % 100);
    }
}

enum rs_result donor_open(struct engine *e, const char *path, const struct donor **out, struct rs_error *err)
{
    struct model *m = e->model;
    struct stat st;
    char *full = realpath(path, NULL);
    if (full == NULL || stat(full, &st) != 0) {
        const int why = errno;
        free(full);
        return error_set(err, RS_EIO, "%.300s: cannot open: %s", path, strerror(why));
    }
    long long mtime = (long long)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    for (uint32_t i = 0; i < m->n_donors; i++)
        if (strcmp(m->donor[i].path, full) == 0 && m->donor[i].size == (long long)st.st_size && m->donor[i].mtime_ns == mtime) {
            free(full);
            *out = &m->donor[i];
            return RS_OK;
        }
    if (m->n_donors == PATCH_MAX_DONORS) {
        free(full);
        return error_set(err, RS_ESTATE, "weights were taken from %d files already; open the model anew to let them go", PATCH_MAX_DONORS);
    }
    struct donor *d = &m->donor[m->n_donors];
    *d = (struct donor){.path = full, .size = (long long)st.st_size, .mtime_ns = mtime};
    enum rs_result rc = gguf_open(full, &d->gguf, err);
    if (rc != RS_OK) {
        free(full);
        return rc;
    }
    name_of(m, full, d->name);
    memcpy(e->patches.registry->donor[m->n_donors], d->name, sizeof d->name);
    e->patches.registry->n_donors = ++m->n_donors;
    *out = d;
    return RS_OK;
}

void donor_close_last(struct engine *e, uint32_t n)
{
    while (e->model->n_donors > n) {
        struct donor *d = &e->model->donor[--e->model->n_donors];
        gguf_close(d->gguf);
        free(d->path);
    }
    e->patches.registry->n_donors = n;
}

void donor_close_all(struct engine *e)
{
    struct patch_table next = e->patches.now;
    if (e->model == NULL)
        return;
    donor_close_last(e, 0);
    if (patch_drop(&next, SLOT_WEIGHTS))
        patch_commit(&e->patches, &next, "weights", NULL, "file", "close", 0);
}

/* ---- binding -------------------------------------------------------------------------------------------------------------------------- */

struct bound {
    struct weight *w, was;
};

struct donor_change {
    uint32_t n;
    struct bound *bound;
};

enum rs_result donor_source(const struct model *m, const struct patch_table *t, const struct gguf_tensor *own, const struct gguf_tensor **out,
                            struct rs_error *err)
{
    *out = own;
    for (uint32_t i = t->n; i-- > 0;) {
        const struct patch_entry *x = &t->entry[i];
        if (x->slot != SLOT_WEIGHTS || !plan_glob(x->glob, own->name))
            continue;
        if (strcmp(x->impl, "file") == 0)
            return RS_OK;
        for (uint32_t k = 0; k < m->n_donors; k++)
            if (strcmp(m->donor[k].name, x->impl) == 0) {
                *out = gguf_find_tensor(m->donor[k].gguf, own->name);
                return *out != NULL ? RS_OK : error_set(err, RS_ENOTFOUND, "%.200s has no tensor %s", m->donor[k].path, own->name);
            }
        return error_set(err, RS_ENOTFOUND, "the file behind weights=%s is no longer open", x->impl);
    }
    return RS_OK;
}

/* Point one weight at another tensor of the same shape. What lies inside the old tensor (gate and up in one, V within kv_b) keeps its place in rows. */
static enum rs_result rebind(struct donor_change *c, struct weight *w, const struct gguf_tensor *own, const struct gguf_tensor *from, struct rs_error *err)
{
    const struct krn_type_info *ti = krn_type_info(from->type);
    const uint8_t *base = w->t->data;
    if (memcmp(from->ne, own->ne, sizeof own->ne) != 0)
        return error_set(err, RS_EFORMAT, "%s has shape [%llu, %llu, %llu] there and [%llu, %llu, %llu] here", own->name, (unsigned long long)from->ne[0],
                         (unsigned long long)from->ne[1], (unsigned long long)from->ne[2], (unsigned long long)own->ne[0], (unsigned long long)own->ne[1],
                         (unsigned long long)own->ne[2]);
    if (ti == NULL || !ti->computes)
        return error_set(err, RS_EUNSUPPORTED, "%s has type %s there, which this build does not compute", own->name, ti != NULL ? ti->name : "?");
    if (w->f32_only && from->type != KRN_F32)
        return error_set(err, RS_EUNSUPPORTED, "%s must be F32, not %s", own->name, ti->name);
    if (w->data < base || w->data >= base + w->t->bytes)
        return error_set(err, RS_EUNSUPPORTED, "%s was taken apart or joined when the model was loaded; it cannot be replaced alone", own->name);
    c->bound[c->n++] = (struct bound){w, *w};
    size_t row = (size_t)(w->data - base) / w->row_bytes, rows_per_mat = w->mat_bytes / w->row_bytes;
    w->t = from;
    w->type = from->type;
    w->row_bytes = krn_row_bytes(from->type, w->k);
    w->mat_bytes = w->row_bytes * rows_per_mat;
    w->data = from->data + row * w->row_bytes;
    return RS_OK;
}

/* The tensor of the model's own file behind a weight; NULL: made when it was loaded. */
static const struct gguf_tensor *own_tensor(const struct engine *e, const struct weight *w)
{
    return w->data != NULL && w->t != NULL ? gguf_find_tensor(e->model->gguf, w->t->name) : NULL;
}

/* A legacy attn_kv_b: the K part was made at load time, so half of it would stay behind. */
static bool has_made_part(struct engine *e, const char *name)
{
    for (uint32_t i = 0; i < weights_count(&e->model->w); i++) {
        const struct weight *w = weights_at(&e->model->w, i);
        if (w->t == NULL && w->data != NULL && strcmp(w->name, name) == 0)
            return true;
    }
    return false;
}

enum rs_result donor_begin(struct engine *e, const struct patch_table *next, struct donor_change **out, struct rs_error *err)
{
    struct weights *w = &e->model->w;
    *out = NULL;
    if (patch_same(&e->patches.now, next, SLOT_WEIGHTS))
        return RS_OK;
    struct donor_change *c = calloc(1, sizeof *c);
    uint32_t cap = weights_count(w);
    if (c == NULL || (c->bound = calloc(cap, sizeof *c->bound)) == NULL) {
        free(c);
        return error_set(err, RS_ENOMEM, "out of memory for a change of weights");
    }
    enum rs_result rc = RS_OK;
    for (uint32_t i = 0; i < cap && rc == RS_OK; i++) {
        struct weight *x = weights_at(w, i);
        const struct gguf_tensor *own = own_tensor(e, x), *from;
        if (own == NULL)
            continue;
        rc = donor_source(e->model, next, own, &from, err);
        if (rc != RS_OK || from == x->t)
            continue;
        rc = has_made_part(e, own->name) ? error_set(err, RS_EUNSUPPORTED, "%s was taken apart when the model was loaded; it cannot be replaced alone", own->name)
                                         : rebind(c, x, own, from, err);
    }
    if (rc != RS_OK) {
        donor_end(e, c, false);
        return rc;
    }
    *out = c;
    return RS_OK;
}

void donor_end(struct engine *e, struct donor_change *c, bool keep)
{
    (void)e;
    if (c == NULL)
        return;
    while (c->n > 0 && !keep) {
        c->n--;
        *c->bound[c->n].w = c->bound[c->n].was;
    }
    free(c->bound);
    free(c);
}

/* ---- in place ------------------------------------------------------------------------------------------------------------------------- */

bool donor_fits(struct engine *e)
{
    const struct runtime *rt = e->rt;
    struct shard_plan p;
    struct rs_error err;
    if (rt->backend->ops->reweigh == NULL || shard_make(&e->model->hp, &e->model->w, rt->cfg.ranks, rt->cfg.split, &p, &err) != RS_OK)
        return false;
    bool same = memcmp(p.split, rt->shard.split, p.n_layers * sizeof *p.split) == 0 &&
                memcmp(p.layer, rt->shard.layer, (size_t)p.n_layers * p.n_ranks * sizeof *p.layer) == 0;
    shard_free(&p);
    return same;
}

static bool same_view(const struct op_view *a, const struct op_view *b)
{
    return a->data == b->data && a->type == b->type && a->stride == b->stride;
}

/* The same ops over the same cuts: only what views point at differs. */
static void take_views(struct engine *e, struct program *p, struct program *fresh)
{
    struct op_view *old = p->views;
    p->views = fresh->views;
    fresh->views = old;
    for (uint32_t v = 0; v < p->n_views; v++)
        for (uint32_t r = 0; r < p->n_ranks; r++)
            if (!same_view(plan_view(p, r, v), plan_view(fresh, r, v))) {
                e->rt->backend->ops->reweigh(e->rt->backend, p, v);
                break;
            }
}

enum rs_result donor_swap(struct engine *e, struct rs_error *err)
{
    struct runtime *rt = e->rt;
    struct program main_new = {0}, next_new = {0};
    enum rs_result rc = plan_build(&e->model->hp, &e->model->w, &rt->shard, PLAN_MAIN, rt->prog.max_keys, &main_new, err);
    if (rc == RS_OK && rt->has_nextn)
        rc = plan_build(&e->model->hp, &e->model->w, &rt->shard, PLAN_NEXTN, rt->nextn.max_keys, &next_new, err);
    if (rc == RS_OK) {
        take_views(e, &rt->prog, &main_new);
        if (rt->has_nextn)
            take_views(e, &rt->nextn, &next_new);
    }
    plan_free(&main_new);
    plan_free(&next_new);
    return rc;
}

/* ---- saying so ------------------------------------------------------------------------------------------------------------------------ */

static const char *type_name(uint32_t type)
{
    const struct krn_type_info *ti = krn_type_info(type);
    return ti != NULL ? ti->name : "?";
}

json_t *donor_tensors_json(const struct engine *e, const char *glob)
{
    json_t *list = json_array();
    struct model *m = e->model;
    const char *last = "";
    for (uint32_t i = 0; i < weights_count(&m->w); i++) {
        const struct weight *w = weights_at(&m->w, i);
        const struct gguf_tensor *own = own_tensor(e, w);
        if (own == NULL || !plan_glob(glob, own->name) || strcmp(last, own->name) == 0 || (i == 2 && m->w.tied))
            continue;
        last = own->name; /* gate and up in one tensor stand side by side */
        json_t *o = json_pack("{s:s,s:s,s:s,s:n,s:I}", "name", own->name, "type", type_name(w->type), "file_type", type_name(own->type), "from", "bytes",
                              (json_int_t)w->t->bytes);
        for (uint32_t k = 0; k < m->n_donors && w->t != own; k++)
            if (gguf_find_tensor(m->donor[k].gguf, own->name) == w->t) {
                json_object_set_new(o, "from", json_string(m->donor[k].name));
                json_object_set_new(o, "same", json_boolean(w->type == own->type && memcmp(w->t->data, own->data, own->bytes) == 0));
            }
        json_array_append_new(list, o);
    }
    return list;
}

json_t *donor_list_json(const struct engine *e)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < e->model->n_donors; i++)
        json_array_append_new(list, json_pack("{s:s,s:s}", "name", e->model->donor[i].name, "path", e->model->donor[i].path));
    return list;
}
