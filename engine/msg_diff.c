/* Methods that compare: diff (two configurations, or one and a saved reference), dump (save one). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/capture.h"
#include "engine/delta.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"

enum { DIFF_MAX_DECODE = 16 };

/* What is being compared. */
struct diff {
    struct capture_config cfg[2];
    struct capture arm[2];
    struct npz *file;       /* in place of the second arm */
    int32_t *ids;           /* room for one more */
    size_t n;
    double tolerance;
    const char *why;        /* the tolerance */
    uint32_t decode;        /* generated tokens; the last one is compared */
    bool own_cache;
    bool *forked;           /* [chunk] rows whose router has chosen otherwise although its scores agree: what follows differs for a good reason */
    uint32_t n_forked, rows;
    char fork_site[OP_SITE_MAX];
    char glob[OP_SITE_MAX];
};

static bool all_f32(const struct capture_config *c)
{
    return strcmp(patch_current(&c->patches, SLOT_MATMUL), "f32") == 0;
}

/* Do both compute the same sums in the same order? Then every bit must agree. */
static bool same_sums(const struct capture_config *a, const struct capture_config *b)
{
    bool same = a->rt.ranks == b->rt.ranks && a->rt.cache == b->rt.cache && a->rt.split == b->rt.split && a->fast == b->fast;
    for (uint32_t s = 0; s < SLOT_COUNT && same; s++)
        same = s == SLOT_DELAY || strcmp(patch_current(&a->patches, s), patch_current(&b->patches, s)) == 0;
    return same && a->patches.n == b->patches.n; /* site by site, they may still be the same: then 0 differs, and the tolerance is only wide */
}

static void choose_tolerance(struct diff *d)
{
    const struct capture_config *a = &d->cfg[0], *b = &d->cfg[1];
    bool f32 = all_f32(a) && (d->file != NULL || all_f32(b)), exact_cache = a->rt.cache == KRN_CACHE_F32 && (d->file != NULL || b->rt.cache == KRN_CACHE_F32);
    if (d->file == NULL && same_sums(a, b)) {
        d->tolerance = 0;
        d->why = "both compute the same sums in the same order: bits must agree";
    } else if (!f32) {
        d->tolerance = 6e-2;
        d->why = "activations are rounded to int8 (matmul=f32 on both sides compares more sharply)";
    } else {
        d->tolerance = exact_cache ? 1e-4 : 1e-3;
        d->why = exact_cache ? "all f32" : "f32, with a cache of 16 bits";
    }
}

static enum rs_result read_side(struct engine *e, struct args *a, const char *key, int side, struct diff *d, struct rs_error *err)
{
    json_t *obj = NULL;
    bool given = args_object(a, key, &obj);
    json_t *file = given ? json_object_get(obj, "file") : NULL;
    if (a->rc != RS_OK)
        return a->rc;
    if (file == NULL)
        return capture_config(e, obj, &d->cfg[side], err);
    if (side != 1 || !json_is_string(file) || json_object_size(obj) != 1)
        return error_set(err, RS_EUSAGE, "a file is the second side, as {\"file\": path} and nothing else");
    return npz_open(json_string_value(file), &d->file, err);
}

/* Tokens of the request, or those that the file was made from. */
static enum rs_result read_ids(struct engine *e, struct args *a, struct diff *d, struct rs_error *err)
{
    int32_t *ids = NULL;
    bool given = json_object_get(a->obj, "ids") != NULL || json_object_get(a->obj, "text") != NULL || json_object_get(a->obj, "segments") != NULL;
    struct npz_array saved;
    enum rs_result rc = RS_OK;
    if (given || d->file == NULL) {
        rc = msg_read_ids(e, a, &ids, &d->n, err);
    } else {
        rc = npz_get(d->file, "ids", &saved, NULL);
        if (rc != RS_OK)
            return error_set(err, RS_EUSAGE, "the file does not say which tokens it was made from; give ids");
        d->n = saved.n;
        ids = malloc((saved.n + 1) * sizeof *ids);
        for (size_t i = 0; ids != NULL && i < saved.n; i++) {
            double v = npz_at(&saved, i);
            ids[i] = v >= 0 && v < e->model->hp.vocab ? (int32_t)v : 0;
        }
    }
    if (rc != RS_OK)
        return rc;
    d->ids = malloc((d->n + DIFF_MAX_DECODE + 1) * sizeof *d->ids);
    if (d->ids != NULL && ids != NULL)
        memcpy(d->ids, ids, d->n * sizeof *ids);
    bool ok = d->ids != NULL && ids != NULL;
    free(ids);
    if (!ok)
        return error_set(err, RS_ENOMEM, "out of memory for the tokens");
    if (d->n == 0 || d->n + d->decode > e->model->hp.context)
        return error_set(err, RS_EUSAGE, "%zu tokens, expected 1 to %u", d->n, e->model->hp.context - d->decode);
    return RS_OK;
}

/* Everything before the last chunk, and then the last chunk with captures, on both sides. The cache that the last chunk starts from is the first
 * side's unless each is to have its own. */
static enum rs_result run_prompt(struct engine *e, struct diff *d, struct rs_error *err)
{
    uint32_t chunk = capture_chunk(e), n = (uint32_t)d->n, last = (n - 1) / chunk * chunk, sides = d->file != NULL ? 1 : 2;
    enum rs_result rc = RS_OK;
    for (uint32_t s = 0; s < sides && rc == RS_OK; s++) {
        if (s == 1 && !d->own_cache && last > 0) {
            rc = capture_copy_cache(&d->arm[0], &d->arm[1], last, err);
        } else {
            for (uint32_t at = 0; at < last && rc == RS_OK; at += chunk)
                rc = capture_step(&d->arm[s], d->ids, at, at + chunk, BATCH_PROMPT, false, err);
        }
        if (rc == RS_OK)
            rc = capture_step(&d->arm[s], d->ids, last, n, BATCH_PROMPT, true, err);
    }
    return rc;
}

static enum rs_result run_decode(struct diff *d, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    for (uint32_t n = (uint32_t)d->n; n < d->n + d->decode && rc == RS_OK; n++) { /* both sides get the first one's token */
        d->ids[n] = capture_next(&d->arm[0]);
        rc = d->own_cache ? RS_OK : capture_copy_cache(&d->arm[0], &d->arm[1], n, err);
        for (int s = 0; s < 2 && rc == RS_OK; s++)
            rc = capture_step(&d->arm[s], d->ids, n, n + 1, BATCH_GENERATED, true, err);
    }
    return rc;
}

/* One op, or one named part of it, to the list; the first that is out of tolerance to *first. */
static void note(const struct op *o, const char *phase, const char *name, const struct delta *x, bool within, json_t *list, json_t **first)
{
    json_t *j = delta_json(x);
    json_object_set_new(j, "site", json_string(o->site));
    json_object_set_new(j, "op", json_integer(o->index));
    json_object_set_new(j, "kind", json_string(op_kind_name(o->kind)));
    json_object_set_new(j, "phase", json_string(phase));
    json_object_set_new(j, "within", json_boolean(within));
    if (name != NULL)
        json_object_set_new(j, "name", json_string(name));
    if (!within && *first == NULL)
        *first = json_incref(j);
    json_array_append_new(list, j);
}

/* One output of an op on both sides. */
static enum rs_result compare_out(struct diff *d, const struct op *o, const struct op *q, uint32_t k, const char *phase, bool *scores_agree, json_t *list,
                                  json_t **first, struct rs_error *err)
{
    struct tensor a = {.data = NULL}, b = {.data = NULL};
    struct delta x;
    bool choice = o->out[k].buf == BUF_CHOICE, pairs = o->out[k].buf == BUF_MGU || o->out[k].buf == BUF_MACT;
    if (pairs && d->n_forked != 0)
        return RS_OK; /* other experts: the rows do not belong together */
    enum rs_result rc = capture_tensor(&d->arm[0], o, false, k, -1, &a, err);
    if (rc == RS_OK)
        rc = capture_tensor(&d->arm[1], q, false, k, -1, &b, err);
    if (rc == RS_OK) {
        bool near = choice && *scores_agree && d->tolerance > 0;
        delta_compare(&a, &b, choice ? d->arm[0].rt->prog.hp->n_used : 0, pairs ? NULL : d->forked, near ? d->forked : NULL, &x);
        bool within = delta_within(&x, d->tolerance);
        if (near && x.sets_differ != 0) { /* a near tie: said, counted, and not held against anybody */
            within = x.rel <= d->tolerance;
            if (d->n_forked == 0)
                snprintf(d->fork_site, sizeof d->fork_site, "%s", o->site);
            d->n_forked += (uint32_t)x.sets_differ;
        }
        *scores_agree = within;
        note(o, phase, choice ? "choice" : NULL, &x, within, list, first);
    }
    tensor_free(&a);
    tensor_free(&b);
    return rc;
}

/* A router's choice is compared as a set of experts besides its scores. */
static enum rs_result compare_ops(struct diff *d, const char *phase, json_t *list, json_t **first, struct rs_error *err)
{
    const struct program *p = &d->arm[0].rt->prog;
    enum rs_result rc = RS_OK;
    for (uint32_t i = 0; i < p->n_ops && rc == RS_OK; i++) {
        const struct op *o = &p->ops[i], *q = plan_find(&d->arm[1].rt->prog, o->site);
        bool scores_agree = true;
        for (uint32_t k = 0; k < OP_MAX_OUT && rc == RS_OK && q != NULL && plan_glob(d->glob, o->site) && o->out[k].buf != BUF_NONE; k++)
            rc = compare_out(d, o, q, k, phase, &scores_agree, list, first, err);
    }
    return rc;
}

/* Columns [col, col + width) of t, in place. */
static void cut_columns(struct tensor *t, uint32_t col, uint32_t width)
{
    if (width == 0 || col + width > t->width)
        return;
    for (uint32_t i = 0; i < t->rows; i++)
        memmove(t->data + (size_t)i * width, t->data + (size_t)i * t->width + col, width * sizeof(float));
    t->width = width;
}

/* Indexer scores: the reference has one for every pair of rows, -inf above the diagonal; here there are only those that mattered. */
static void match_scores(const struct diff *d, struct tensor *a, struct tensor *b)
{
    uint32_t width = a->width < b->width ? a->width : b->width;
    for (uint32_t i = 0; i < a->rows && i < b->rows; i++)
        for (uint32_t j = 0; j < b->width; j++) {
            bool used = d->arm[0].pos0 + i + 1 > d->arm[0].rt->prog.hp->index_topk && j <= d->arm[0].pos0 + i;
            if (!used)
                b->data[(size_t)i * b->width + j] = 0;
        }
    cut_columns(a, 0, width);
    cut_columns(b, 0, width);
}

static enum rs_result compare_file(struct diff *d, json_t *list, json_t **first, struct rs_error *err)
{
    const struct program *p = &d->arm[0].rt->prog;
    enum rs_result rc = RS_OK;
    for (uint32_t i = 0; i < p->n_ops && rc == RS_OK; i++) {
        const struct op *o = &p->ops[i];
        struct delta_name names[4];
        uint32_t n = plan_glob(d->glob, o->site) ? delta_names(d->file, p, o, names) : 0;
        for (uint32_t k = 0; k < n && rc == RS_OK; k++) {
            struct tensor a = {.data = NULL}, b = {.data = NULL};
            struct delta x;
            rc = capture_tensor(&d->arm[0], o, false, names[k].out, -1, &a, err);
            if (rc == RS_OK)
                rc = delta_load(d->file, &names[k], d->arm[0].pos0, a.rows, &b, err);
            if (rc == RS_OK) {
                cut_columns(&a, names[k].col, names[k].width);
                if (names[k].scores)
                    match_scores(d, &a, &b);
                if (b.rows < a.rows) { /* the file has only the last rows */
                    memmove(a.data, a.data + (size_t)(a.rows - b.rows) * a.width, (size_t)b.rows * a.width * sizeof(float));
                    a.rows = b.rows;
                }
                delta_compare(&a, &b, names[k].sets ? a.width : 0, NULL, NULL, &x);
                note(o, "prompt", names[k].name, &x, delta_within(&x, d->tolerance), list, first);
            }
            tensor_free(&a);
            tensor_free(&b);
        }
    }
    return rc == RS_OK && json_array_size(list) == 0 ? error_set(err, RS_ENOTFOUND, "the file has no array that belongs to a site of this model") : rc;
}

static json_t *logits_json(const struct diff *d, int32_t next[2])
{
    const float *a = d->arm[0].logits, *b = d->arm[1].logits;
    uint32_t n = d->arm[0].rt->prog.hp->vocab;
    double ma = -INFINITY, mb = -INFINITY, za = 0, zb = 0, kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        ma = fmax(ma, (double)a[i]);
        mb = fmax(mb, (double)b[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        za += exp((double)a[i] - ma);
        zb += exp((double)b[i] - mb);
    }
    for (uint32_t i = 0; i < n; i++) {
        double la = (double)a[i] - ma - log(za), lb = (double)b[i] - mb - log(zb);
        kl += exp(la) * (la - lb);
    }
    return json_pack("{s:i,s:i,s:o}", "next_a", next[0], "next_b", next[1], "kl", isfinite(kl) ? json_real(kl) : json_null());
}

static enum rs_result compare(struct engine *e, struct diff *d, json_t *reply, struct rs_error *err)
{
    json_t *list = json_array(), *first = NULL;
    enum rs_result rc = run_prompt(e, d, err);
    d->rows = d->arm[0].rows;
    if (rc == RS_OK && d->file != NULL) {
        rc = compare_file(d, list, &first, err);
    } else if (rc == RS_OK) {
        int32_t next[2] = {capture_next(&d->arm[0]), capture_next(&d->arm[1])};
        json_object_set_new(reply, "logits", logits_json(d, next));
        rc = compare_ops(d, "prompt", list, &first, err);
        if (rc == RS_OK && d->decode != 0) {
            uint32_t forked = d->n_forked;
            memset(d->forked, 0, d->rows * sizeof *d->forked); /* another row */
            d->n_forked = 0;
            rc = run_decode(d, err);
            if (rc == RS_OK)
                rc = compare_ops(d, "decode", list, &first, err);
            d->n_forked += forked;
        }
    }
    uint32_t out = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        out += json_is_false(json_object_get(json_array_get(list, i), "within"));
    json_object_set_new(reply, "first", first != NULL ? first : json_null());
    json_object_set_new(reply, "ops", list);
    json_object_set_new(reply, "compared", json_integer((json_int_t)json_array_size(list)));
    json_object_set_new(reply, "out_of_tolerance", json_integer(out));
    json_object_set_new(reply, "tolerance", json_real(d->tolerance));
    json_object_set_new(reply, "tolerance_why", json_string(d->why));
    json_object_set_new(reply, "rows", json_integer(d->rows));
    json_object_set_new(reply, "forked", d->n_forked != 0 ? json_pack("{s:i,s:s}", "rows", (int)d->n_forked, "site", d->fork_site) : json_null());
    json_object_set_new(reply, "a", capture_config_json(e, &d->cfg[0]));
    if (d->file == NULL)
        json_object_set_new(reply, "b", capture_config_json(e, &d->cfg[1]));
    return rc;
}

static enum rs_result open_arms(struct engine *e, struct diff *d, struct rs_error *err)
{
    uint32_t chunk = capture_chunk(e), rows = d->n < chunk ? (uint32_t)d->n : chunk;
    d->forked = calloc(rows + 1, sizeof *d->forked);
    if (d->forked == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a comparison");
    enum rs_result rc = capture_open(e, &d->cfg[0], d->glob, 0, (uint32_t)d->n + d->decode, rows, &d->arm[0], err);
    if (rc == RS_OK && d->file == NULL) {
        rc = capture_open(e, &d->cfg[1], d->glob, 0, (uint32_t)d->n + d->decode, rows, &d->arm[1], err);
        if (rc != RS_OK)
            capture_close(&d->arm[0]);
    }
    return rc;
}

static enum rs_result msg_diff(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct diff d = {.decode = 0, .why = "asked for"};
    const char *cache = "same";
    float tolerance = 0;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    msg_read_site(a, false, "*", d.glob);
    args_u32(a, "decode", 0, DIFF_MAX_DECODE, &d.decode);
    args_str(a, "cache", &cache);
    bool asked = args_f32(a, "tolerance", 0, 1e6, &tolerance);
    rc = a->rc == RS_OK ? read_side(e, a, "a", 0, &d, err) : a->rc;
    if (rc == RS_OK)
        rc = read_side(e, a, "b", 1, &d, err);
    if (rc == RS_OK)
        rc = read_ids(e, a, &d, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK && strcmp(cache, "same") != 0 && strcmp(cache, "own") != 0)
        rc = error_set(err, RS_EUSAGE, "cache must be same or own, not '%.20s'", cache);
    d.own_cache = cache[0] == 'o';
    if (rc == RS_OK && d.file != NULL && d.decode != 0)
        rc = error_set(err, RS_EUSAGE, "a saved reference has no decode step");
    if (rc == RS_OK) {
        choose_tolerance(&d);
        if (asked) {
            d.tolerance = (double)tolerance;
            d.why = "asked for";
        }
        rc = open_arms(e, &d, err);
    }
    if (rc == RS_OK) {
        rc = compare(e, &d, m->reply, err);
        capture_close(&d.arm[0]);
        if (d.file == NULL)
            capture_close(&d.arm[1]);
    }
    npz_close(d.file);
    free(d.forked);
    free(d.ids);
    return rc;
}

static enum rs_result save(struct diff *d, const char *path, uint32_t *count, struct rs_error *err)
{
    struct npz_writer *w = NULL;
    const struct capture *c = &d->arm[0];
    enum rs_result rc = npz_create(path, &w, err);
    if (rc != RS_OK)
        return rc;
    rc = npz_add_i32(w, "ids", d->ids, d->n, err);
    for (uint32_t i = 0; i < c->rt->prog.n_ops && rc == RS_OK; i++) {
        const struct op *o = &c->rt->prog.ops[i];
        struct tensor t = {.data = NULL};
        if (!plan_glob(d->glob, o->site))
            continue;
        rc = capture_tensor(c, o, false, 0, -1, &t, err);
        if (rc == RS_OK)
            rc = npz_add_f32(w, o->site, t.data, t.rows, t.width, err);
        tensor_free(&t);
        ++*count;
    }
    if (rc != RS_OK) {
        npz_abandon(w);
        return rc;
    }
    return npz_finish(w, err);
}

static enum rs_result msg_dump(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct diff d = {.decode = 0};
    const char *path = NULL;
    json_t *config = NULL;
    uint32_t count = 0;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    args_need(a, args_str(a, "path", &path), "path");
    msg_read_site(a, false, "*", d.glob);
    args_object(a, "config", &config);
    rc = a->rc == RS_OK ? capture_config(e, config, &d.cfg[0], err) : a->rc;
    if (rc == RS_OK)
        rc = read_ids(e, a, &d, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK && d.n > capture_chunk(e))
        rc = error_set(err, RS_EUSAGE, "%zu tokens; at most %u fit in the one step that is saved", d.n, capture_chunk(e));
    if (rc == RS_OK)
        rc = capture_open(e, &d.cfg[0], d.glob, 0, (uint32_t)d.n, (uint32_t)d.n, &d.arm[0], err);
    if (rc == RS_OK) {
        rc = capture_step(&d.arm[0], d.ids, 0, (uint32_t)d.n, BATCH_PROMPT, true, err);
        if (rc == RS_OK)
            rc = save(&d, path, &count, err);
        capture_close(&d.arm[0]);
    }
    free(d.ids);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "path", json_string(path));
    json_object_set_new(m->reply, "arrays", json_integer(count));
    json_object_set_new(m->reply, "tokens", json_integer((json_int_t)d.n));
    return RS_OK;
}

const struct msg_method MSG_DIFF[] = {{"diff", true, msg_diff}, {"dump", true, msg_dump}, {NULL, false, NULL}};
