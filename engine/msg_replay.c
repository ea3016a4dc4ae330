/* Methods that check against what should be: replay (every op against the reference on its own inputs), hparams.check. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arith.h"
#include "engine/capture.h"
#include "engine/delta.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/known.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/ref.h"
#include "kernels/type.h"

enum { MAX_DECODE = 16, MAX_PARTS = 2 };

struct replay {
    struct engine *e;
    struct ref ref;
    struct capture c;
    const char *phase;
    json_t *ops, *guilty;
    double asked;         /* tolerance for all; NAN: each op's own */
    uint32_t wrong;
};

/* How an op's output compares. Ranks have tolerances of their own: where they have slices of different widths their products may be made differently. */
struct finding {
    const char *name;     /* "cache", "choice", or NULL: the output itself */
    double tolerance[RS_MAX_RANKS], rel[RS_MAX_RANKS], part[MAX_PARTS]; /* worst: of those that were compared, the one that uses most of its tolerance */
    uint32_t n_parts, worst;
    bool tainted;         /* what it got was not finite already: it cannot be judged */
    struct delta delta;   /* of the worst rank */
    bool within, judged;  /* judged: some rank was compared */
};

/* What the order of sums alone may do on identical inputs: sums of a few thousand terms keep 1e-4 by far; what has no long sum is held tighter, so
 * that a wrong epsilon shows. Attention with int8 rounds a mixture that it has computed itself: where that lies between two steps, the reference may
 * take the other one, 1/127 of the largest of 32 values. Operands in f16 that the reference takes as they are have errors of up to 2^-11 of their own
 * size, 2^-12.8 in the mean square: a product of two has 2e-4 of itself, their sum as much of its norm where signs are mixed; 1e-3 is what the kernels'
 * own test holds them to. Wrong rows, scales, slices or positions are several per cent. */
static double tolerance_of(const struct capture *c, const struct op *o, uint32_t rank)
{
    const enum op_arith arith = capture_arith(c, o, rank);
    if (patch_is_user(c->cfg.patches.reg, c->choices[o->index].impl))
        return 1e-2; /* a loaded implementation may round activations as the built-in ones do */
    switch (o->kind) {
    case OP_EMBED: case OP_ADD: case OP_PICK_ROWS: case OP_GATHER: case OP_INDEX_TOPK: return 1e-6;
    case OP_RMSNORM: case OP_KV_STORE: case OP_INDEX_STORE: return 2e-6;
    case OP_ROPE_Q: case OP_INDEX_Q: case OP_SILU_MUL: case OP_MOE_SILU_MUL: case OP_ROUTER: return 1e-5;
    case OP_ALLREDUCE: return c->choices[o->index].bf16 ? 1e-2 : 1e-5;
    case OP_MLA: return arith == ARITH_INT8 ? 5e-3 : arith == ARITH_F16 ? 1e-3 : 1e-4;
    default: return arith == ARITH_F16 || arith == ARITH_INT8_F16 ? 1e-3 : 1e-4;
    }
}

static double cache_tolerance(enum krn_cache_type t)
{
    return t == KRN_CACHE_F32 ? 2e-6 : t == KRN_CACHE_F16 ? 1e-3 : 8e-3;
}

/* Relative L2 of columns [from, to). */
static double part_rel(const struct tensor *a, const struct tensor *b, uint32_t from, uint32_t to)
{
    double d = 0, n = 0;
    for (uint32_t i = 0; i < a->rows; i++)
        for (uint32_t j = from; j < to && j < a->width; j++) {
            double x = (double)a->data[(size_t)i * a->width + j], y = (double)b->data[(size_t)i * b->width + j];
            d += (x - y) * (x - y);
            n += y * y;
        }
    return n > 0 ? sqrt(d / n) : d > 0 ? 1 : 0;
}

static uint32_t slot_cut(const struct replay *r, const struct op *o, uint32_t width)
{
    if (o->kind == OP_GATE_UP || o->kind == OP_MOE_GATE_UP)
        return width / 2;
    return o->kind == OP_QKV_A && r->ref.hp.q_lora != 0 ? r->ref.hp.q_lora : 0;
}

/* One rank's output against the reference. */
static void fold(struct replay *r, const struct op *o, uint32_t rank, const struct tensor *got, const struct tensor *want, struct finding *f)
{
    struct delta d;
    delta_compare(got, want, 0, NULL, NULL, &d);
    bool within = delta_within(&d, f->tolerance[rank]), first = !f->judged;
    double rel = d.comparable && d.bad_a == d.bad_b ? d.rel : INFINITY;
    f->rel[rank] = rel;
    f->judged = true;
    uint32_t cut = f->name == NULL ? slot_cut(r, o, got->width) : 0;
    if (first || rel * f->tolerance[f->worst] > f->rel[f->worst] * f->tolerance[rank]) {
        f->worst = rank;
        f->delta = d;
        if (cut != 0 && d.comparable) {
            f->n_parts = 2;
            f->part[0] = part_rel(got, want, 0, cut);
            f->part[1] = part_rel(got, want, cut, got->width);
        }
    }
    f->within &= within;
}

static bool all_finite(const struct tensor *t)
{
    for (size_t i = 0; i < (size_t)t->rows * t->width; i++)
        if (!isfinite(t->data[i]))
            return false;
    return true;
}

/* Are the inputs of an op on a rank finite? */
static enum rs_result inputs_finite(const struct replay *r, const struct op *o, uint32_t rank, bool *out, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    *out = true;
    for (uint32_t k = 0; k < OP_MAX_IN && rc == RS_OK && o->in[k].buf != BUF_NONE; k++) {
        struct tensor t = {.data = NULL};
        rc = capture_tensor(&r->c, o, true, k, (int)rank, &t, err);
        *out &= rc != RS_OK || all_finite(&t);
        tensor_free(&t);
    }
    return rc;
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null(); /* null: not comparable, or not finite where it should be */
}

static void report(struct replay *r, const struct op *o, const struct finding *f)
{
    char names[4][80];
    uint32_t n = ref_tensors(&r->ref, o, names);
    json_t *j = delta_json(&f->delta), *ranks = json_array(), *tolerances = json_array(), *tensors = json_array();
    const char *arith = arith_name(capture_arith(&r->c, o, f->worst));
    for (uint32_t k = 0; k < r->c.rt->cfg.ranks; k++) {
        json_array_append_new(ranks, number(f->rel[k]));
        json_array_append_new(tolerances, json_real(f->tolerance[k]));
    }
    for (uint32_t k = 0; k < n; k++)
        json_array_append_new(tensors, json_string(names[k]));
    json_object_set_new(j, "rel_l2", number(f->rel[f->worst]));
    json_object_set_new(j, "site", json_string(o->site));
    json_object_set_new(j, "op", json_integer(o->index));
    json_object_set_new(j, "kind", json_string(op_kind_name(o->kind)));
    json_object_set_new(j, "impl", json_string(r->c.choices[o->index].impl->name));
    json_object_set_new(j, "phase", json_string(r->phase));
    json_object_set_new(j, "what", json_string(f->name != NULL ? f->name : "output"));
    json_object_set_new(j, "rank", json_integer(f->worst));
    json_object_set_new(j, "ranks", ranks);
    json_object_set_new(j, "tolerances", tolerances);
    json_object_set_new(j, "tensors", tensors);
    json_object_set_new(j, "arith", arith != NULL ? json_string(arith) : json_null());
    json_object_set_new(j, "tolerance", json_real(f->tolerance[f->worst]));
    json_object_set_new(j, "within", json_boolean(f->within));
    json_object_set_new(j, "tainted", json_boolean(f->tainted));
    if (f->n_parts == 2 && n >= 2)
        json_object_set_new(j, "slots", json_pack("[{s:s,s:f},{s:s,s:f}]", "tensor", names[0], "rel_l2", f->part[0], "tensor", names[1], "rel_l2", f->part[1]));
    r->wrong += !f->within;
    if (!f->within && json_array_size(r->guilty) < 256)
        json_array_append(r->guilty, j);
    json_array_append_new(r->ops, j);
}

/* tolerance NAN: each rank's own. */
static struct finding start(const struct replay *r, const struct op *o, const char *name, double tolerance)
{
    struct finding f = {.name = name, .within = true};
    for (uint32_t k = 0; k < r->c.rt->cfg.ranks; k++)
        f.tolerance[k] = !isnan(r->asked) ? r->asked : isnan(tolerance) ? tolerance_of(&r->c, o, k) : tolerance;
    return f;
}

/* A router's choice is compared as weights by expert. */
static enum rs_result check_output(struct replay *r, const struct op *o, uint32_t index, struct rs_error *err)
{
    bool choice = o->out[index].buf == BUF_CHOICE;
    struct finding f = start(r, o, choice ? "choice" : NULL, choice ? 1e-4 : NAN);
    enum rs_result rc = RS_OK;
    for (uint32_t k = 0; k < r->c.rt->cfg.ranks && rc == RS_OK; k++) {
        struct tensor got = {.data = NULL}, want = {.data = NULL}, dense = {.data = NULL};
        bool finite;
        if (o->out[index].buf == BUF_FULL && k > 0)
            break;
        rc = inputs_finite(r, o, k, &finite, err);
        if (rc == RS_OK)
            rc = ref_op(&r->ref, &r->c, o, index, k, &want, err);
        if (rc == RS_OK)
            rc = capture_tensor(&r->c, o, false, index, (int)k, &got, err);
        if (rc == RS_OK && choice)
            rc = ref_dense_choice(&r->ref, &got, &dense, err);
        if (rc == RS_OK && !(finite && all_finite(&want)))
            f.tainted = true;
        else if (rc == RS_OK && (want.rows != 0 || got.rows != 0) && want.width + got.width != 0)
            fold(r, o, k, choice ? &dense : &got, &want, &f);
        tensor_free(&got);
        tensor_free(&want);
        tensor_free(&dense);
    }
    if (rc == RS_OK)
        report(r, o, &f);
    return rc;
}

/* The rows that the step has put into the cache: they must be what the op left in its buffer, at the positions where readers look. */
static enum rs_result check_stored(struct replay *r, const struct op *o, struct rs_error *err)
{
    struct finding f = start(r, o, "cache", cache_tolerance(r->c.cfg.rt.cache));
    bool index = o->kind == OP_INDEX_STORE;
    enum rs_result rc = RS_OK;
    for (uint32_t k = 0; k < r->c.rt->cfg.ranks && rc == RS_OK; k++) {
        struct tensor want = {.data = NULL}, rows = {.data = NULL};
        rc = ref_op(&r->ref, &r->c, o, 0, k, &want, err);
        if (rc == RS_OK)
            rc = ref_cache(&r->c, k, (uint32_t)o->layer, index, r->c.pos0 + r->c.rows, &rows, err);
        if (rc == RS_OK) {
            memmove(rows.data, rows.data + (size_t)r->c.pos0 * rows.width, (size_t)r->c.rows * rows.width * sizeof(float));
            rows.rows = r->c.rows;
            if (all_finite(&want))
                fold(r, o, k, &rows, &want, &f);
            else
                f.tainted = true;
        }
        tensor_free(&want);
        tensor_free(&rows);
    }
    if (rc == RS_OK)
        report(r, o, &f);
    return rc;
}

static enum rs_result check_step(struct replay *r, const char *phase, const char *glob, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    r->phase = phase;
    for (uint32_t i = 0; i < r->c.rt->prog.n_ops && rc == RS_OK; i++) {
        const struct op *o = &r->c.rt->prog.ops[i];
        if (!plan_glob(glob, o->site))
            continue;
        for (uint32_t k = 0; k < OP_MAX_OUT && rc == RS_OK && o->out[k].buf != BUF_NONE; k++)
            rc = check_output(r, o, k, err);
        if (rc == RS_OK && (o->kind == OP_KV_STORE || o->kind == OP_INDEX_STORE))
            rc = check_stored(r, o, err);
    }
    return rc;
}

static enum rs_result run(struct replay *r, int32_t *ids, uint32_t n, uint32_t decode, const char *glob, struct rs_error *err)
{
    uint32_t chunk = capture_chunk(r->e), last = (n - 1) / chunk * chunk;
    enum rs_result rc = RS_OK;
    for (uint32_t at = 0; at < last && rc == RS_OK; at += chunk)
        rc = capture_step(&r->c, ids, at, at + chunk, BATCH_PROMPT, false, err);
    if (rc == RS_OK)
        rc = capture_step(&r->c, ids, last, n, BATCH_PROMPT, true, err);
    if (rc == RS_OK)
        rc = check_step(r, "prompt", glob, err);
    for (uint32_t i = 0; i < decode && rc == RS_OK; i++) {
        ids[n + i] = capture_next(&r->c);
        rc = capture_step(&r->c, ids, n + i, n + i + 1, BATCH_GENERATED, true, err);
    }
    if (rc == RS_OK && decode != 0)
        rc = check_step(r, "decode", glob, err);
    return rc;
}

/* The request's tokens with room for `more`; caller frees. */
static enum rs_result ids_with_room(struct engine *e, struct args *a, uint32_t more, int32_t **out, uint32_t *n, struct rs_error *err)
{
    int32_t *ids = NULL;
    size_t count = 0;
    enum rs_result rc = a->rc == RS_OK ? msg_read_ids(e, a, &ids, &count, err) : a->rc;
    if (rc == RS_OK && (count == 0 || count + more > e->model->hp.context))
        rc = error_set(err, RS_EUSAGE, "%zu tokens, expected 1 to %u", count, e->model->hp.context - more);
    int32_t *p = rc == RS_OK ? realloc(ids, (count + more + 1) * sizeof *p) : NULL;
    if (rc == RS_OK && p == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for the tokens");
    if (rc != RS_OK) {
        free(ids);
        return rc;
    }
    *out = p;
    *n = (uint32_t)count;
    return RS_OK;
}

static enum rs_result msg_replay(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct replay r = {.e = e, .asked = NAN};
    struct capture_config cfg;
    char glob[OP_SITE_MAX];
    int32_t *ids = NULL;
    uint32_t n = 0, decode = 2;
    float tolerance;
    json_t *config = NULL;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    msg_read_site(a, false, "*", glob);
    args_u32(a, "decode", 0, MAX_DECODE, &decode);
    args_object(a, "config", &config);
    if (args_f32(a, "tolerance", 0, 1e6, &tolerance))
        r.asked = (double)tolerance;
    rc = ids_with_room(e, a, decode, &ids, &n, err);
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK)
        rc = capture_config(e, config, &cfg, err);
    if (rc == RS_OK)
        rc = capture_open(e, &cfg, glob, CAPTURE_INPUTS, n + decode, n < capture_chunk(e) ? n : capture_chunk(e), &r.c, err);
    if (rc == RS_OK) {
        rc = ref_open(e->model, &e->patches.now, &r.c.rt->cfg, &r.ref, err);
        if (rc == RS_OK) {
            r.ops = json_array();
            r.guilty = json_array();
            rc = run(&r, ids, n, decode, glob, err);
            ref_close(&r.ref);
        }
        capture_close(&r.c);
    }
    free(ids);
    if (rc != RS_OK) {
        json_decref(r.ops);
        json_decref(r.guilty);
        return rc;
    }
    json_object_set_new(m->reply, "compared", json_integer((json_int_t)json_array_size(r.ops)));
    json_object_set_new(m->reply, "out_of_tolerance", json_integer(r.wrong));
    json_object_set(m->reply, "first", json_array_size(r.guilty) != 0 ? json_array_get(r.guilty, 0) : json_null());
    json_object_set_new(m->reply, "guilty", r.guilty);
    json_object_set_new(m->reply, "ops", r.ops);
    json_object_set_new(m->reply, "config", capture_config_json(e, &cfg));
    return RS_OK;
}

static enum rs_result msg_hparams(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t wrong = 0;
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    const struct hparams *hp = &e->model->hp;
    json_t *defaults = json_array();
    for (uint32_t i = 0; i < hp->n_defaults; i++)
        json_array_append_new(defaults, json_pack("{s:s,s:s,s:s,s:b}", "key", hp->defaults[i].key, "value", hp->defaults[i].value, "meaning",
                                                  hp->defaults[i].meaning, "matters", hp->defaults[i].matters));
    json_object_set_new(m->reply, "arch", json_string(hp->arch_name));
    json_object_set_new(m->reply, "model", known_model(hp) != NULL ? json_string(known_model(hp)) : json_null());
    json_object_set_new(m->reply, "facts", known_check(hp, &wrong));
    json_object_set_new(m->reply, "wrong", json_integer(wrong));
    json_object_set_new(m->reply, "defaults", defaults);
    return RS_OK;
}

const struct msg_method MSG_REPLAY[] = {
    {"replay", true, msg_replay}, {"hparams.check", false, msg_hparams}, {NULL, false, NULL},
};
