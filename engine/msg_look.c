/* Methods that look into an answer and branch it: lens, experts, rewind, fork. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/capture.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"

enum { MAX_TOP = 50 };

/* ---- lens ---- */

struct lens {
    struct engine *e;
    const struct krn_cpu_matmul *mm;
    const struct weight *head;
    uint32_t rows;
    const float *x; /* [rows][n_embd], normed */
    float *logits;  /* [rows][vocab] */
};

static void lens_worker(void *arg, unsigned worker)
{
    const struct lens *l = arg;
    size_t n = l->head->rows, units = (n + 31) / 32, w = pool_size(l->e->pool), from = units * worker / w * 32, to = units * (worker + 1) / w * 32;
    struct krn_matmul m = {.type = l->head->type, .w = l->head->data, .w_stride = l->head->row_bytes, .k = l->head->k, .row0 = from, .row1 = to < n ? to : n,
                           .x = (const uint8_t *)l->x, .x_stride = l->head->k * sizeof(float), .n_cols = l->rows, .y = l->logits, .y_stride = n};
    if (from < n)
        l->mm->f32(&m);
}

static json_t *piece_json(const struct engine *e, int32_t id)
{
    size_t len;
    const char *p = vocab_piece(e->model->vocab, id, &len);
    json_t *text = p != NULL ? json_stringn(p, len) : NULL; /* NULL also for half a character */
    return text != NULL ? text : json_null();
}

/* The likeliest tokens of a row of logits with their probabilities; the row is spent. */
static json_t *top_json(const struct engine *e, float *x, uint32_t n, uint32_t k, double *entropy)
{
    double most = -INFINITY, sum = 0, h = 0;
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - most);
    for (uint32_t i = 0; i < n; i++) {
        double p = exp((double)x[i] - most) / sum;
        h -= p > 0 ? p * log(p) : 0;
    }
    *entropy = h;
    for (uint32_t r = 0; r < k && r < n; r++) {
        uint32_t at = 0;
        for (uint32_t i = 1; i < n; i++)
            if (x[i] > x[at])
                at = i;
        double p = exp((double)x[at] - most) / sum;
        json_array_append_new(list, json_pack("{s:i,s:o,s:o}", "id", (int)at, "piece", piece_json(e, (int32_t)at), "p", isfinite(p) ? json_real(p) : json_null()));
        x[at] = -INFINITY;
    }
    return list;
}

/* The ops after which the residual stream is looked at: the embedding's sum and every layer's last addition. */
static bool is_state(const struct op *o)
{
    return (o->kind == OP_ALLREDUCE && o->layer < 0 && o->out[0].buf == BUF_X) || (o->kind == OP_ADD && strstr(o->site, ".ffn.") != NULL);
}

static enum rs_result lens_rows(struct engine *e, const struct capture *c, uint32_t k, json_t *out, struct rs_error *err)
{
    const struct model *m = e->model;
    const struct krn_cpu_vec *vec = krn_cpu_vec(e->isa);
    uint32_t width = m->hp.n_embd, states = m->hp.n_layers + 1, rows = 0;
    struct lens l = {.e = e, .mm = krn_cpu_matmul(e->isa), .head = &m->w.output};
    float *x = malloc((size_t)states * width * sizeof *x);
    enum rs_result rc = RS_OK;
    l.logits = malloc((size_t)states * m->w.output.rows * sizeof *l.logits);
    if (x == NULL || l.logits == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for %u states", states);
    for (uint32_t i = 0; i < c->rt->prog.n_ops && rc == RS_OK; i++) {
        const struct op *o = &c->rt->prog.ops[i];
        struct tensor t = {.data = NULL};
        if (!is_state(o) || rows == states)
            continue;
        rc = capture_tensor(c, o, false, 0, -1, &t, err);
        if (rc == RS_OK && t.rows != 0)
            vec->rmsnorm(t.data, (const float *)(const void *)m->w.output_norm.data, m->hp.eps, x + (size_t)rows++ * width, width);
        tensor_free(&t);
    }
    l.rows = rows;
    l.x = x;
    if (rc == RS_OK)
        pool_run(e->pool, lens_worker, &l);
    for (uint32_t r = 0; r < rows && rc == RS_OK; r++) {
        double entropy;
        json_t *top = top_json(e, l.logits + (size_t)r * m->w.output.rows, m->hp.vocab, k, &entropy);
        json_array_append_new(out, json_pack("{s:i,s:o,s:o}", "layer", (int)r - 1, "top", top, "entropy", isfinite(entropy) ? json_real(entropy) : json_null()));
    }
    free(x);
    free(l.logits);
    return rc;
}

/* Everything up to the last token, then the last one alone, observed. */
static enum rs_result run_last(struct engine *e, struct capture *c, const int32_t *ids, uint32_t n, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    for (uint32_t at = 0, to; at < n - 1 && rc == RS_OK; at = to) {
        to = n - 1 - at < capture_chunk(e) ? n - 1 : at + capture_chunk(e);
        rc = capture_step(c, ids, at, to, BATCH_PROMPT, false, err);
    }
    return rc == RS_OK ? capture_step(c, ids, n - 1, n, BATCH_PROMPT, true, err) : rc;
}

static enum rs_result read_tokens(struct engine *e, struct args *a, int32_t **ids, uint32_t *n, struct rs_error *err)
{
    size_t count = 0;
    enum rs_result rc = a->rc == RS_OK ? msg_read_ids(e, a, ids, &count, err) : a->rc;
    if (rc == RS_OK && (count == 0 || count > e->model->hp.context))
        rc = error_set(err, RS_EUSAGE, "%zu tokens, expected 1 to %u", count, e->model->hp.context);
    *n = (uint32_t)count;
    return rc;
}

static enum rs_result msg_lens(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct capture_config cfg;
    struct capture c;
    int32_t *ids = NULL;
    uint32_t n, k = 5;
    json_t *config = NULL;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    args_u32(a, "top", 1, MAX_TOP, &k);
    args_object(a, "config", &config);
    rc = read_tokens(e, a, &ids, &n, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK)
        rc = capture_config(e, config, &cfg, err);
    if (rc == RS_OK)
        rc = capture_open(e, &cfg, "*", 0, n, 1, &c, err); /* one row of every site is little */
    if (rc == RS_OK) {
        json_t *list = json_array();
        rc = run_last(e, &c, ids, n, err);
        if (rc == RS_OK)
            rc = lens_rows(e, &c, k, list, err);
        json_object_set_new(m->reply, "layers", list);
        json_object_set_new(m->reply, "next", rc == RS_OK ? json_integer(capture_next(&c)) : json_null());
        capture_close(&c);
    }
    free(ids);
    return rc;
}

/* ---- experts ---- */

/* Rows of choices of one layer: how often each expert was taken, and what the last row took. */
static json_t *layer_json(const struct hparams *hp, const struct op *o, const struct tensor *t)
{
    uint32_t count[HP_MAX_EXPERTS] = {0}, used = t->width / 2, taken = 0, most = 0;
    json_t *counts = json_array(), *last = json_array();
    double entropy = 0, total = (double)t->rows * used;
    for (uint32_t i = 0; i < t->rows; i++)
        for (uint32_t k = 0; k < used; k++) {
            float id = t->data[(size_t)i * t->width + k];
            if (id >= 0 && id < (float)hp->n_experts)
                count[(uint32_t)id]++;
        }
    for (uint32_t x = 0; x < hp->n_experts; x++) {
        json_array_append_new(counts, json_integer(count[x]));
        taken += count[x] != 0;
        most = count[x] > most ? count[x] : most;
        entropy -= count[x] != 0 ? count[x] / total * log(count[x] / total) : 0;
    }
    for (uint32_t k = 0; k < used && t->rows != 0; k++) {
        const float *row = t->data + (size_t)(t->rows - 1) * t->width;
        json_array_append_new(last, json_pack("{s:i,s:f}", "expert", (int)row[k], "weight", (double)row[used + k]));
    }
    /* balance 1: every expert equally often; 0: one alone. */
    return json_pack("{s:i,s:s,s:i,s:o,s:o,s:i,s:f,s:f}", "layer", (int)o->layer, "site", o->site, "rows", (int)t->rows, "counts", counts, "last", last, "taken",
                     (int)taken, "largest_share", total > 0 ? most / total : 0.0, "balance", hp->n_experts > 1 ? entropy / log(hp->n_experts) : 1.0);
}

/* From taps of the last step. */
static enum rs_result tapped_experts(struct engine *e, json_t *list, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    for (uint32_t i = 0; i < e->observe.set.n_obs && rc == RS_OK; i++) {
        const struct probe_obs *x = &e->observe.obs[i];
        const struct op *o = runtime_op(e->rt, x->op);
        struct tensor t = {.data = NULL};
        uint32_t rank = 0;
        if (o->kind != OP_ROUTER || x->index != 1 || x->copied == NULL)
            continue;
        while ((x->ranks >> rank & 1) == 0)
            rank++;
        rc = tensor_copied(BUF_CHOICE, &x->copied[rank], &t, err);
        if (rc == RS_OK && t.rows != 0)
            json_array_append_new(list, layer_json(&e->model->hp, o, &t));
        tensor_free(&t);
    }
    if (rc == RS_OK && json_array_size(list) == 0)
        rc = error_set(err, RS_ESTATE, "no router is tapped with copies of its output 1, or no step has run since; or give tokens");
    return rc;
}

static enum rs_result computed_experts(struct engine *e, const int32_t *ids, uint32_t n, json_t *list, struct rs_error *err)
{
    struct capture_config cfg;
    struct capture c;
    uint32_t chunk = capture_chunk(e), last = (n - 1) / chunk * chunk;
    enum rs_result rc = capture_config(e, NULL, &cfg, err);
    if (rc == RS_OK)
        rc = capture_open(e, &cfg, "*.router", 0, n, n - last, &c, err);
    if (rc != RS_OK)
        return rc;
    for (uint32_t at = 0; at < last && rc == RS_OK; at += chunk)
        rc = capture_step(&c, ids, at, at + chunk, BATCH_PROMPT, false, err);
    if (rc == RS_OK)
        rc = capture_step(&c, ids, last, n, BATCH_PROMPT, true, err);
    for (uint32_t i = 0; i < c.rt->prog.n_ops && rc == RS_OK; i++) {
        struct tensor t = {.data = NULL};
        if (c.rt->prog.ops[i].kind != OP_ROUTER)
            continue;
        rc = capture_tensor(&c, &c.rt->prog.ops[i], false, 1, 0, &t, err);
        if (rc == RS_OK)
            json_array_append_new(list, layer_json(&e->model->hp, &c.rt->prog.ops[i], &t));
        tensor_free(&t);
    }
    capture_close(&c);
    return rc;
}

static enum rs_result msg_experts(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    bool given = json_object_size(a->obj) != 0;
    if (given)
        rc = read_tokens(e, a, &ids, &n, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK && e->model->hp.n_experts == 0)
        rc = error_set(err, RS_EUNSUPPORTED, "this model has no experts");
    json_t *list = json_array();
    if (rc == RS_OK)
        rc = given ? computed_experts(e, ids, n, list, err) : tapped_experts(e, list, err);
    json_object_set_new(m->reply, "layers", list);
    json_object_set_new(m->reply, "experts", json_integer(e->model->hp.n_experts));
    json_object_set_new(m->reply, "used", json_integer(e->model->hp.n_used));
    free(ids);
    return rc;
}

/* ---- rewind, fork ---- */

static enum rs_result need_session(struct engine *e, struct args *a, struct session **out, struct rs_error *err)
{
    uint32_t id = 0;
    args_need(a, args_u32(a, "session", 1, UINT32_MAX, &id), "session");
    if (a->rc != RS_OK)
        return a->rc;
    for (struct session *x = e->sessions; x != NULL; x = x->next) {
        if (x->id != id)
            continue;
        for (const struct seq *s = e->seqs; s != NULL; s = s->next)
            if (s->id == x->stream && s->state != SEQ_DONE)
                return error_set(err, RS_ESTATE, "stream %u of this session is running; cancel it first", s->id);
        *out = x;
        return RS_OK;
    }
    return error_set(err, RS_ENOTFOUND, "there is no session %u", id);
}

/* How many tokens to keep: "n" dropped from the end, or "to" kept. */
static enum rs_result read_keep(struct args *a, const struct session *x, uint32_t *keep, struct rs_error *err)
{
    uint32_t n = 0, to = 0;
    bool by_n = args_u32(a, "n", 0, UINT32_MAX, &n), by_to = args_u32(a, "to", 0, UINT32_MAX, &to);
    if (a->rc == RS_OK && by_n && by_to)
        a->rc = error_set(err, RS_EUSAGE, "give n (to drop) or to (to keep), not both");
    if (a->rc == RS_OK && (n > x->n || (by_to && to > x->n)))
        a->rc = error_set(err, RS_EUSAGE, "the conversation has %u tokens", x->n);
    *keep = by_to ? to : x->n - n;
    return a->rc;
}

static void ids_to_reply(struct msg *m, const struct session *x, uint32_t keep, uint32_t dropped)
{
    json_t *ids = json_array();
    for (uint32_t i = 0; i < keep; i++)
        json_array_append_new(ids, json_integer(x->tok[i]));
    json_object_set_new(m->reply, "session", json_integer(x->id));
    json_object_set_new(m->reply, "ids", ids);
    json_object_set_new(m->reply, "tokens", json_integer(keep));
    json_object_set_new(m->reply, "dropped", json_integer(dropped));
}

static enum rs_result msg_rewind(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct session *x = NULL;
    uint32_t keep = 0;
    enum rs_result rc = need_session(e, a, &x, err);
    if (rc == RS_OK)
        rc = read_keep(a, x, &keep, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    uint32_t dropped = x->n - keep;
    x->n = keep; /* the kinds of the rows that stay are kept: the same tokens again are computed the same way */
    ids_to_reply(m, x, keep, dropped);
    return RS_OK;
}

static enum rs_result msg_fork(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct session *x = NULL, *f;
    uint32_t keep = 0;
    enum rs_result rc = need_session(e, a, &x, err);
    if (rc == RS_OK)
        rc = read_keep(a, x, &keep, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    f = calloc(1, sizeof *f);
    if (f != NULL) {
        f->data = x->data != NULL ? strdup(x->data) : NULL;
        f->tok = malloc((keep + 1) * sizeof *f->tok);
        f->kind = malloc(keep + 1);
    }
    if (f == NULL || f->tok == NULL || f->kind == NULL || (x->data != NULL && f->data == NULL)) {
        if (f != NULL) {
            free(f->data);
            free(f->tok);
            free(f->kind);
            free(f);
        }
        return error_set(err, RS_ENOMEM, "out of memory for a conversation");
    }
    if (keep != 0) {
        memcpy(f->tok, x->tok, keep * sizeof *f->tok);
        memcpy(f->kind, x->kind, keep);
    }
    f->n = keep;
    f->id = e->next_session++;
    f->next = e->sessions;
    e->sessions = f;
    ids_to_reply(m, f, keep, x->n - keep);
    return RS_OK;
}

const struct msg_method MSG_LOOK[] = {
    {"lens", true, msg_lens}, {"experts", true, msg_experts}, {"rewind", true, msg_rewind}, {"fork", true, msg_fork}, {NULL, false, NULL},
};
