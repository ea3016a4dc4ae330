/* Methods about patches from C files: patch.load, patch.shadow. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/capture.h"
#include "engine/cpu.h"
#include "engine/delta.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/patch_api.h"
#include "engine/stage.h"

static enum rs_result msg_load(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct stage_request r = {.slot = m->slot, .id = m->id};
    args_need(a, args_str(a, "path", &r.path), "path");
    args_bool(a, "activate", &r.activate);
    msg_read_site(a, false, NULL, r.site);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK && e->rt != NULL && stage_is_cuda(r.path) != (e->rt->cfg.backend == BACKEND_CUDA))
        rc = error_set(err, RS_EUNSUPPORTED, "patch.load: %s", e->rt->cfg.backend == BACKEND_CUDA
                                                                 ? "the CUDA backend takes files in CUDA C, whose names end in .cu"
                                                                 : "files in CUDA C are for the CUDA backend");
    if (rc == RS_OK)
        rc = stage_start(e, &r, err);
    m->deferred = rc == RS_OK;
    return rc;
}

/* ---- shadow ---- */

struct shadow {
    struct engine *e;
    const struct patch_user *user;
    struct capture c;
    json_t *ops;
    double worst;
    char worst_site[OP_SITE_MAX];
    uint32_t compared;
};

static struct rankscope_tensor as_tensor(const struct tensor *t)
{
    return (struct rankscope_tensor){.data = t->data, .stride = t->width, .rows = t->rows, .width = t->width};
}

/* The loaded implementation on one rank's captured inputs; in place where the op is. */
static enum rs_result run_on(const struct shadow *s, const struct op *o, uint32_t rank, struct tensor *in, struct tensor *out)
{
    const struct cpu *cpu = (const struct cpu *)s->c.rt->backend;
    const struct hparams *hp = &s->e->model->hp;
    struct rankscope_call c = {.size = sizeof c, .layer = o->layer, .site = o->site, .rank = rank, .n_ranks = s->c.rt->cfg.ranks, .hi = 1, .of = 1,
                               .accumulate = o->accumulate, .eps = hp->eps, .head_dim = hp->k_mla, .rope_dim = hp->rope, .cos = cpu->rope_cos, .sin = cpu->rope_sin,
                               .pos = s->e->batch.pos};
    c.in[0] = as_tensor(o->kind == OP_ROPE_Q ? out : in);
    c.out[0] = as_tensor(out);
    for (uint32_t k = 0; k < 2 && k < o->n_w; k++)
        c.w[k] = cpu_user_weight(plan_view(&s->c.rt->prog, rank, o->w[k]));
    if (o->kind == OP_QKV_A && c.w[0].rows == 0) {
        c.w[0] = c.w[1];
        c.w[1] = (struct rankscope_weight){.rows = 0};
    }
    if (out->rows != 0 && out->width != 0 && in->width != 0 && (o->n_w == 0 || c.w[0].rows + c.w[1].rows != 0))
        s->user->api->run(&c);
    return RS_OK;
}

static enum rs_result shadow_rank(struct shadow *s, const struct op *o, uint32_t rank, struct delta *d, struct rs_error *err)
{
    struct tensor in = {.data = NULL}, was = {.data = NULL}, out = {.data = NULL};
    bool adds = o->accumulate || o->kind == OP_ADD;
    enum rs_result rc = capture_tensor(&s->c, o, true, 0, (int)rank, &in, err);
    if (rc == RS_OK)
        rc = capture_tensor(&s->c, o, false, 0, (int)rank, &was, err);
    if (rc == RS_OK) /* memory of the right size, holding what the op finds there */
        rc = capture_tensor(&s->c, o, adds || o->kind == OP_ROPE_Q, adds ? OP_MAX_IN : 0, (int)rank, &out, err);
    if (rc == RS_OK && !adds && o->kind != OP_ROPE_Q)
        memset(out.data, 0, (size_t)out.rows * out.width * sizeof(float));
    if (rc == RS_OK)
        rc = run_on(s, o, rank, &in, &out);
    if (rc == RS_OK)
        delta_compare(&out, &was, 0, NULL, NULL, d);
    tensor_free(&in);
    tensor_free(&was);
    tensor_free(&out);
    return rc;
}

static enum rs_result shadow_step(struct shadow *s, const char *phase, const char *glob, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    for (uint32_t i = 0; i < s->c.rt->prog.n_ops && rc == RS_OK; i++) {
        const struct op *o = &s->c.rt->prog.ops[i];
        struct delta worst = {.comparable = true};
        if (o->kind != s->user->impl.kind || !plan_glob(glob, o->site))
            continue;
        for (uint32_t r = 0; r < s->c.rt->cfg.ranks && rc == RS_OK; r++) {
            struct delta d;
            rc = shadow_rank(s, o, r, &d, err);
            if (rc == RS_OK && (d.rel >= worst.rel || !d.comparable || d.bad_a != d.bad_b))
                worst = d;
        }
        if (rc != RS_OK)
            break;
        json_t *j = delta_json(&worst);
        json_object_set_new(j, "site", json_string(o->site));
        json_object_set_new(j, "phase", json_string(phase));
        json_array_append_new(s->ops, j);
        s->compared++;
        double rel = worst.comparable && worst.bad_a == worst.bad_b ? worst.rel : INFINITY;
        if (rel >= s->worst) {
            s->worst = rel;
            snprintf(s->worst_site, sizeof s->worst_site, "%s", o->site);
        }
    }
    return rc;
}

static enum rs_result run_shadow(struct shadow *s, int32_t *ids, uint32_t n, uint32_t steps, const char *glob, struct rs_error *err)
{
    enum rs_result rc = capture_step(&s->c, ids, 0, n, BATCH_PROMPT, true, err);
    if (rc == RS_OK)
        rc = shadow_step(s, "prompt", glob, err);
    for (uint32_t i = 0; i < steps && rc == RS_OK; i++) {
        ids[n + i] = capture_next(&s->c);
        rc = capture_step(&s->c, ids, n + i, n + i + 1, BATCH_GENERATED, true, err);
        if (rc == RS_OK)
            rc = shadow_step(s, "decode", glob, err);
    }
    return rc;
}

static enum rs_result msg_shadow(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct shadow s = {.e = e};
    struct capture_config cfg;
    const char *impl = "";
    char glob[OP_SITE_MAX];
    int32_t *ids = NULL, *room;
    size_t n = 0;
    uint32_t steps = 4;
    enum rs_result rc = msg_need_model(e, "patch.shadow", err);
    if (rc != RS_OK)
        return rc;
    args_need(a, args_str(a, "impl", &impl), "impl");
    msg_read_site(a, false, "*", glob);
    args_u32(a, "steps", 0, 64, &steps);
    rc = a->rc == RS_OK ? msg_read_ids(e, a, &ids, &n, err) : a->rc;
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK && (n == 0 || n > capture_chunk(e) || n + steps > e->model->hp.context))
        rc = error_set(err, RS_EUSAGE, "patch.shadow: %zu tokens, expected 1 to %u", n, capture_chunk(e));
    s.user = patch_find_user(e->patches.registry, impl);
    if (rc == RS_OK && e->rt->cfg.backend != BACKEND_CPU)
        rc = error_set(err, RS_EUNSUPPORTED, "patch.shadow runs on the CPU backend only");
    if (rc == RS_OK && s.user == NULL)
        rc = error_set(err, RS_ENOTFOUND, "patch.shadow: no loaded implementation '%.40s' (patch.load)", impl);
    if (rc == RS_OK && (room = realloc(ids, (n + steps + 1) * sizeof *ids)) != NULL)
        ids = room;
    else if (rc == RS_OK)
        rc = error_set(err, RS_ENOMEM, "patch.shadow: out of memory");
    if (rc == RS_OK)
        rc = capture_config(e, "patch.shadow", NULL, &cfg, err);
    if (rc == RS_OK)
        rc = capture_open(e, &cfg, glob, CAPTURE_INPUTS, (uint32_t)n + steps, (uint32_t)n, &s.c, err);
    if (rc == RS_OK) {
        s.ops = json_array();
        rc = run_shadow(&s, ids, (uint32_t)n, steps, glob, err);
        capture_close(&s.c);
    }
    free(ids);
    if (rc == RS_OK && s.compared == 0)
        rc = error_set(err, RS_ENOTFOUND, "patch.shadow: no op of kind %s at '%s'", s.user->api->kind, glob);
    if (rc != RS_OK) {
        json_decref(s.ops);
        return rc;
    }
    json_object_set_new(m->reply, "impl", json_string(s.user->name));
    json_object_set_new(m->reply, "kind", json_string(s.user->api->kind));
    json_object_set_new(m->reply, "steps", json_integer(steps + 1));
    json_object_set_new(m->reply, "compared", json_integer(s.compared));
    json_object_set_new(m->reply, "worst", isfinite(s.worst) ? json_real(s.worst) : json_null());
    json_object_set_new(m->reply, "worst_site", json_string(s.worst_site));
    json_object_set_new(m->reply, "ops", s.ops);
    return RS_OK;
}

const struct msg_method MSG_STAGE[] = {{"patch.load", true, msg_load}, {"patch.shadow", true, msg_shadow}, {NULL, false, NULL}};
