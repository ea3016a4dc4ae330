/* Methods about breakpoints and tensors: break.add, break.del, break.list, step, next, continue, where, tensor.read, tensor.write. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/tensor.h"

static enum rs_result msg_add(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct brk b = {.id = 0};
    const char *when = "after", *cond = "";
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    if (!e->rt->backend->ops->inspects)
        return error_set(err, RS_EUNSUPPORTED, "the %s backend cannot stop inside a step", e->rt->backend->ops->name);
    msg_read_site(a, true, NULL, b.glob);
    args_str(a, "when", &when);
    args_str(a, "cond", &cond);
    msg_read_rank(e, a, &b.rank);
    rc = args_end(a);
    if (rc == RS_OK && strcmp(when, "before") != 0 && strcmp(when, "after") != 0)
        rc = error_set(err, RS_EUSAGE, "a breakpoint is before or after an op, not '%.20s'", when);
    if (rc == RS_OK && strlen(cond) >= sizeof b.text)
        rc = error_set(err, RS_EUSAGE, "a condition has at most %zu characters", sizeof b.text - 1);
    if (rc == RS_OK)
        rc = pred_compile(cond, &b.cond, err);
    uint32_t sites = 0;
    for (uint32_t i = 0; rc == RS_OK && i < e->rt->prog.n_ops; i++)
        sites += plan_glob(b.glob, e->rt->prog.ops[i].site);
    if (rc == RS_OK && sites == 0)
        rc = runtime_no_site(e->rt, e->rt->prog.n_ops, b.glob, err);
    if (rc == RS_OK)
        rc = brk_room(e, err);
    if (rc != RS_OK)
        return rc;
    struct brk *n = malloc(sizeof *n), **at = &e->brk.list;
    if (n == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a breakpoint");
    b.after = when[0] == 'a';
    b.id = ++e->brk.next_id;
    snprintf(b.text, sizeof b.text, "%s", cond);
    *n = b;
    while (*at != NULL)
        at = &(*at)->next;
    *at = n;
    json_object_set_new(m->reply, "id", json_integer(b.id));
    json_object_set_new(m->reply, "sites", json_integer(sites));
    engine_announce(e);
    return RS_OK;
}

static enum rs_result msg_del(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t id = 0, n = 0;
    bool by_id = args_u32(a, "id", 1, UINT32_MAX, &id);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    for (struct brk **at = &e->brk.list; *at != NULL;) {
        struct brk *b = *at;
        if (by_id && b->id != id) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free(b);
        n++;
    }
    if (by_id && n == 0)
        return error_set(err, RS_ENOTFOUND, "there is no breakpoint %u", id);
    json_object_set_new(m->reply, "removed", json_integer(n));
    engine_announce(e);
    return RS_OK;
}

static enum rs_result msg_list(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_t *list = json_array();
    for (const struct brk *b = e->brk.list; b != NULL; b = b->next) {
        json_t *o = json_pack("{s:i,s:s,s:s,s:s,s:I}", "id", (int)b->id, "site", b->glob, "when", b->after ? "after" : "before", "cond", b->text, "hits",
                              (json_int_t)b->hits);
        json_object_set_new(o, "rank", b->rank < 0 ? json_string("all") : json_integer(b->rank));
        json_array_append_new(list, o);
    }
    json_object_set_new(m->reply, "breaks", list);
    json_object_set_new(m->reply, "armed", json_boolean(brk_armed(e)));
    json_object_set_new(m->reply, "stopped", brk_where_json(e));
    return rc;
}

static enum rs_result go(struct engine *e, struct args *a, enum brk_go how, struct rs_error *err)
{
    uint32_t n = 1;
    if (how == BRK_STEP)
        args_u32(a, "n", 1, 1u << 20, &n);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK && !brk_holding(e))
        rc = error_set(err, RS_ESTATE, "the engine is not stopped");
    if (rc == RS_OK) {
        e->brk.go = how;
        e->brk.steps_left = n;
    }
    return rc;
}

static enum rs_result msg_step(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)m;
    return go(e, a, BRK_STEP, err);
}

static enum rs_result msg_next(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)m;
    return go(e, a, BRK_NEXT, err);
}

static enum rs_result msg_continue(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)m;
    return go(e, a, BRK_RUN, err);
}

static enum rs_result msg_where(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_object_set_new(m->reply, "stopped", brk_where_json(e));
    return rc;
}

/* ---- tensors ---- */

/* What a request names: an op's input or output, or a buffer by name, and a part of it. */
struct want {
    struct op whole;         /* a stand-in op where only a buffer is named */
    const struct op *op;
    struct op_ref ref;
    const char *name;
    int rank;
    uint32_t row[2], col[2]; /* [from, to); to UINT32_MAX: the end */
};

static void read_range(struct args *a, const char *key, uint32_t out[2])
{
    json_t *v;
    out[0] = 0;
    out[1] = UINT32_MAX;
    if (!args_array(a, key, &v))
        return;
    json_t *x = json_array_get(v, 0), *y = json_array_get(v, 1);
    if (json_array_size(v) == 2 && json_is_integer(x) && json_is_integer(y) && json_integer_value(x) >= 0 && json_integer_value(y) > json_integer_value(x) &&
        json_integer_value(y) < UINT32_MAX) {
        out[0] = (uint32_t)json_integer_value(x);
        out[1] = (uint32_t)json_integer_value(y);
    } else if (a->rc == RS_OK) {
        a->rc = error_set(a->err, RS_EUSAGE, "%s must be [from, to] with from < to", key);
    }
}

/* Does the buffer still hold what the site wrote, or what it is about to read? */
static enum rs_result check_fresh(const struct engine *e, const struct op *op, const struct op_ref *r, bool input, struct rs_error *err)
{
    const struct brk_state *s = &e->brk;
    uint32_t done = brk_holding(e) && s->in_walk ? s->op->index + (s->after ? 1u : 0u) : e->rt->prog.n_ops;
    const struct op *w = tensor_writer(&e->rt->prog, (enum op_buf)r->buf, done);
    if (w == (input ? tensor_writer(&e->rt->prog, (enum op_buf)r->buf, op->index) : op))
        return RS_OK;
    if (!input && done <= op->index)
        return error_set(err, RS_ESTATE, "%s has not run yet in this step", op->site);
    return error_set(err, RS_ESTATE, "%s: its %s has been overwritten by %s (break there, or tap it with what=copy)", op->site, input ? "input" : "output",
                     w != NULL ? w->site : "nothing");
}

static enum rs_result find_want(struct engine *e, struct args *a, struct want *w, struct rs_error *err)
{
    const char *site = NULL, *buffer = NULL, *what = "out";
    uint32_t index = 0;
    bool by_site = args_str(a, "site", &site), by_buffer = args_str(a, "buffer", &buffer);
    args_str(a, "what", &what);
    args_u32(a, "index", 0, OP_MAX_IN - 1, &index);
    msg_read_rank(e, a, &w->rank);
    read_range(a, "rows", w->row);
    read_range(a, "cols", w->col);
    if (a->rc == RS_OK && by_site == by_buffer)
        a->rc = error_set(err, RS_EUSAGE, "give site or buffer");
    if (a->rc == RS_OK && strcmp(what, "in") != 0 && strcmp(what, "out") != 0)
        a->rc = error_set(err, RS_EUSAGE, "'what' must be in or out, not '%.20s'", what);
    if (a->rc != RS_OK)
        return a->rc;
    if (by_site) {
        bool input = what[0] == 'i';
        w->op = plan_find(&e->rt->prog, site);
        w->name = site;
        if (w->op == NULL)
            return runtime_no_site(e->rt, e->rt->prog.n_ops, site, err);
        if (!input && index >= OP_MAX_OUT)
            return error_set(err, RS_EUSAGE, "%s has no output %u", site, index);
        w->ref = input ? w->op->in[index] : w->op->out[index];
        if (w->ref.buf == BUF_NONE)
            return error_set(err, RS_EUSAGE, "%s has no %s %u", site, what, index);
        return check_fresh(e, w->op, &w->ref, input, err);
    }
    uint32_t done = brk_holding(e) && e->brk.in_walk ? e->brk.op->index + (e->brk.after ? 1u : 0u) : e->rt->prog.n_ops;
    w->name = buffer;
    for (int b = 1; b < BUF_COUNT; b++)
        if (strcmp(op_buf_name((enum op_buf)b), buffer) == 0) {
            w->op = tensor_writer(&e->rt->prog, (enum op_buf)b, done); /* the layout and the layer's widths are its writer's */
            if (w->op == NULL)
                return error_set(err, RS_ESTATE, "nothing has written buffer %s in this step", buffer);
            for (int k = 0; k < OP_MAX_OUT; k++)
                if (w->op->out[k].buf == b)
                    w->ref = w->op->out[k];
            w->ref.col = w->ref.width = 0; /* all of it */
            return RS_OK;
        }
    return error_set(err, RS_ENOTFOUND, "no buffer '%.20s' (program lists them)", buffer);
}

static enum rs_result cut_range(const char *what, uint32_t range[2], uint32_t n, struct rs_error *err)
{
    range[1] = range[1] == UINT32_MAX ? n : range[1];
    return range[0] <= range[1] && range[1] <= n ? RS_OK : error_set(err, RS_EUSAGE, "%s %u to %u are outside of the tensor's %u", what, range[0], range[1], n);
}

static enum rs_result fetch(struct engine *e, const struct want *w, struct tensor *out, struct rs_error *err)
{
    if (w->rank >= 0)
        return tensor_read(e->rt, &e->batch, w->op, &w->ref, (uint32_t)w->rank, out, err);
    struct tensor part[RS_MAX_RANKS] = {{.data = NULL}};
    enum rs_result rc = RS_OK;
    for (uint32_t r = 0; r < e->rt->cfg.ranks && rc == RS_OK; r++)
        rc = tensor_read(e->rt, &e->batch, w->op, &w->ref, r, &part[r], err);
    if (rc == RS_OK)
        rc = tensor_join(&e->rt->prog, w->op, &w->ref, part, out, err);
    for (uint32_t r = 0; r < e->rt->cfg.ranks; r++)
        tensor_free(&part[r]);
    return rc;
}

static const char *layout_name(uint8_t l)
{
    static const char *const NAMES[] = {"replicated", "sharded", "partial"};
    return NAMES[l];
}

static enum rs_result msg_tensor_read(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct want w = {.op = NULL};
    struct tensor t = {.data = NULL};
    enum rs_result rc = msg_need_model(e, err);
    if (rc == RS_OK && e->steps == 0 && !e->brk.in_walk)
        rc = error_set(err, RS_ESTATE, "no step has run yet");
    if (rc == RS_OK)
        rc = find_want(e, a, &w, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK)
        rc = fetch(e, &w, &t, err);
    if (rc == RS_OK)
        rc = cut_range("rows", w.row, t.rows, err);
    if (rc == RS_OK)
        rc = cut_range("columns", w.col, t.width, err);
    if (rc != RS_OK) {
        tensor_free(&t);
        return rc;
    }
    struct tensor part = {.rows = w.row[1] - w.row[0], .width = w.col[1] - w.col[0], .data = t.data};
    for (uint32_t i = 0; i < part.rows; i++) /* moves to the front of the same memory, never over what is still to be moved */
        memmove(part.data + (size_t)i * part.width, t.data + (size_t)(i + w.row[0]) * t.width + w.col[0], part.width * sizeof(float));
    struct probe_stats s = tensor_stats_of(&part);
    json_object_set_new(m->reply, "name", json_string(w.name));
    json_object_set_new(m->reply, "site", json_string(w.op->site));
    json_object_set_new(m->reply, "buffer", json_string(op_buf_name((enum op_buf)w.ref.buf)));
    json_object_set_new(m->reply, "layout", json_string(layout_name(w.ref.layout)));
    json_object_set_new(m->reply, "of", json_pack("[i,i]", (int)t.rows, (int)t.width));
    json_object_set_new(m->reply, "shape", json_pack("[i,i]", (int)part.rows, (int)part.width));
    json_object_set_new(m->reply, "stats", observe_stats_json(&s));
    m->out = t.data;
    m->out_len = (size_t)part.rows * part.width * sizeof(float);
    return RS_OK;
}

/* One value of the whole tensor, or of a rank's part, to where it lies. */
static enum rs_result put_value(struct engine *e, const struct want *w, uint32_t row, uint32_t col, float x, struct rs_error *err)
{
    struct backend *b = e->rt->backend;
    enum op_buf buf = (enum op_buf)w->ref.buf;
    uint32_t n = e->rt->cfg.ranks, rank = 0, at = col;
    if (w->rank >= 0)
        return b->ops->write(b, (uint32_t)w->rank, buf, row, w->ref.col + col, 1, &x, err);
    if (w->ref.layout == OP_SHARDED) {
        tensor_place(&e->rt->prog, w->op, &w->ref, col, &rank, &at);
        return b->ops->write(b, rank, buf, row, w->ref.col + at, 1, &x, err);
    }
    enum rs_result rc = RS_OK;
    const float zero = 0;
    for (uint32_t r = 0; r < n && rc == RS_OK; r++) /* a partial sum: all of it on rank 0, nothing on the others */
        rc = b->ops->write(b, r, buf, row, w->ref.col + col, 1, w->ref.layout == OP_PARTIAL && r > 0 ? &zero : &x, err);
    return rc;
}

/* "value": a number, or in words what JSON has no number for. */
static bool write_value(struct args *a, float *value)
{
    static const struct {
        const char *name;
        float x;
    } WORDS[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    const char *word = json_string_value(json_object_get(a->obj, "value"));
    for (size_t i = 0; word != NULL && i < sizeof WORDS / sizeof WORDS[0]; i++)
        if (strcmp(word, WORDS[i].name) == 0) {
            *value = WORDS[i].x;
            return args_str(a, "value", &word);
        }
    return args_f32(a, "value", -INFINITY, INFINITY, value);
}

static enum rs_result msg_tensor_write(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct want w = {.op = NULL};
    float value = 0;
    enum rs_result rc = msg_need_model(e, err);
    if (rc == RS_OK && !(brk_holding(e) && e->brk.in_walk))
        rc = error_set(err, RS_ESTATE, "the engine is not stopped inside a step, and every step writes its buffers anew: set a breakpoint");
    if (rc != RS_OK)
        return rc;
    rc = find_want(e, a, &w, err);
    bool scalar = write_value(a, &value);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    uint32_t rows = tensor_rows(e->rt, &e->batch, (enum op_buf)w.ref.buf, w.rank >= 0 ? (uint32_t)w.rank : 0), width = 0;
    for (uint32_t r = 0; r < e->rt->cfg.ranks; r++)
        if (w.rank >= 0 ? (uint32_t)w.rank == r : w.ref.layout == OP_SHARDED || r == 0)
            width += plan_ref_width(&e->rt->prog, w.op, &w.ref, r);
    if (w.ref.buf == BUF_ISEL || w.ref.buf == BUF_CHOICE || ((w.ref.buf == BUF_MGU || w.ref.buf == BUF_MACT) && w.rank < 0))
        return error_set(err, RS_EUSAGE, "%s is written rank by rank, and not where it holds indices", op_buf_name((enum op_buf)w.ref.buf));
    rc = cut_range("rows", w.row, rows, err);
    if (rc == RS_OK)
        rc = cut_range("columns", w.col, width, err);
    size_t n = (size_t)(w.row[1] - w.row[0]) * (w.col[1] - w.col[0]);
    if (rc == RS_OK && scalar == (m->blob_len != 0))
        rc = error_set(err, RS_EUSAGE, "give either value or a blob of f32");
    if (rc == RS_OK && !scalar && m->blob_len != n * sizeof(float))
        rc = error_set(err, RS_EUSAGE, "the blob has %zu bytes, %zu floats are named", m->blob_len, n);
    for (size_t i = 0; i < n && rc == RS_OK; i++) {
        float x = value;
        if (!scalar)
            memcpy(&x, (const uint8_t *)m->blob + i * sizeof x, sizeof x);
        rc = put_value(e, &w, w.row[0] + (uint32_t)(i / (w.col[1] - w.col[0])), w.col[0] + (uint32_t)(i % (w.col[1] - w.col[0])), x, err);
    }
    json_object_set_new(m->reply, "written", json_integer((json_int_t)n));
    return rc;
}

const struct msg_method MSG_BREAK[] = {
    {"break.add", true, msg_add}, {"break.del", true, msg_del}, {"break.list", false, msg_list}, {"step", true, msg_step}, {"next", true, msg_next},
    {"continue", true, msg_continue}, {"where", false, msg_where}, {"tensor.read", false, msg_tensor_read}, {"tensor.write", true, msg_tensor_write},
    {NULL, false, NULL},
};
