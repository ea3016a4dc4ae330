/* Methods about patches from files: patch.load, and what compares them with what they would replace. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/capture.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/patch_host.h"
#include "engine/shadow.h"
#include "engine/stage.h"

static enum rs_result msg_load(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct stage_request r = {.slot = m->slot, .id = m->id};
    args_need(a, args_str(a, "path", &r.path), "path");
    args_bool(a, "activate", &r.activate);
    msg_read_site(a, false, NULL, r.site);
    enum rs_result rc = args_end(a);
    const enum stage_language language = rc == RS_OK ? stage_language(e, r.path) : STAGE_UNKNOWN;
    if (rc == RS_OK && language == STAGE_UNKNOWN)
        rc = error_set(err, RS_EUNSUPPORTED, "%.200s: a name that ends in .c, .cu%s%s expected", r.path, e->host != NULL ? " or " : "",
                       e->host != NULL ? e->host->suffix : "");
    if (rc == RS_OK && e->rt != NULL && (language == STAGE_CUDA) != (e->rt->cfg.backend == BACKEND_CUDA))
        rc = error_set(err, RS_EUNSUPPORTED, "%.200s: %s", r.path, language == STAGE_CUDA
                                                                 ? "files in CUDA C are for the CUDA backend"
                                                                 : "it would run on the CPU backend only; the CUDA backend takes files in CUDA C, whose names end in .cu");
    if (rc == RS_OK)
        rc = stage_start(e, &r, err);
    m->deferred = rc == RS_OK;
    return rc;
}

/* ---- shadow ---- */

/* A loaded implementation on a prompt of its own. */
struct trial {
    struct engine *e;
    const struct patch_user *user;
    struct capture c;
    json_t *ops;
    double worst;
    char worst_site[OP_SITE_MAX];
    uint32_t compared;
};

static enum rs_result look(struct trial *t, const char *phase, const char *glob, struct rs_error *err)
{
    const struct shadow_step step = {.rt = t->c.rt, .choices = t->c.choices, .batch = &t->e->batch, .obs = t->c.obs, .n_obs = t->c.n_obs};
    for (uint32_t i = 0; i < t->c.rt->prog.n_ops; i++) {
        const struct op *o = &t->c.rt->prog.ops[i];
        struct shadow_finding f;
        if (o->kind != t->user->impl.kind || !plan_glob(glob, o->site))
            continue;
        enum rs_result rc = shadow_op(&step, t->user, o, &f, err);
        if (rc != RS_OK)
            return rc;
        json_t *j = delta_json(&f.delta);
        json_object_set_new(j, "site", json_string(o->site));
        json_object_set_new(j, "phase", json_string(phase));
        json_array_append_new(t->ops, j);
        t->compared++;
        if (f.rel >= t->worst) {
            t->worst = f.rel;
            snprintf(t->worst_site, sizeof t->worst_site, "%s", o->site);
        }
    }
    return RS_OK;
}

static enum rs_result run_trial(struct trial *t, int32_t *ids, uint32_t n, uint32_t steps, const char *glob, struct rs_error *err)
{
    enum rs_result rc = capture_step(&t->c, ids, 0, n, BATCH_PROMPT, true, err);
    if (rc == RS_OK)
        rc = look(t, "prompt", glob, err);
    for (uint32_t i = 0; i < steps && rc == RS_OK; i++) {
        ids[n + i] = capture_next(&t->c);
        rc = capture_step(&t->c, ids, n + i, n + i + 1, BATCH_GENERATED, true, err);
        if (rc == RS_OK)
            rc = look(t, "decode", glob, err);
    }
    return rc;
}

/* impl, and the backend that it needs. */
static enum rs_result find_user(struct engine *e, const char *impl, const struct patch_user **out, struct rs_error *err)
{
    if (e->rt->cfg.backend != BACKEND_CPU)
        return error_set(err, RS_EUNSUPPORTED, "patch.shadow runs on the CPU backend only");
    *out = patch_find_user(e->patches.registry, impl);
    if (*out == NULL)
        return error_set(err, RS_ENOTFOUND, "no implementation '%.40s' was loaded", impl);
    return (*out)->gpus ? error_set(err, RS_EUNSUPPORTED, "%s is for GPUs", (*out)->name) : RS_OK;
}

static enum rs_result msg_shadow(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct trial t = {.e = e};
    struct capture_config cfg;
    const char *impl = "";
    char glob[OP_SITE_MAX];
    int32_t *ids = NULL, *room;
    size_t n = 0;
    uint32_t steps = 4;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    args_need(a, args_str(a, "impl", &impl), "impl");
    msg_read_site(a, false, "*", glob);
    args_u32(a, "steps", 0, 64, &steps);
    rc = a->rc == RS_OK ? msg_read_ids(e, a, &ids, &n, err) : a->rc;
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK && (n == 0 || n > capture_chunk(e) || n + steps > e->model->hp.context))
        rc = error_set(err, RS_EUSAGE, "%zu tokens, expected 1 to %u", n, capture_chunk(e));
    if (rc == RS_OK)
        rc = find_user(e, impl, &t.user, err);
    if (rc == RS_OK && (room = realloc(ids, (n + steps + 1) * sizeof *ids)) != NULL)
        ids = room;
    else if (rc == RS_OK)
        rc = error_set(err, RS_ENOMEM, "out of memory");
    if (rc == RS_OK)
        rc = capture_config(e, NULL, &cfg, err);
    if (rc == RS_OK)
        rc = capture_open(e, &cfg, glob, CAPTURE_INPUTS, (uint32_t)n + steps, (uint32_t)n, &t.c, err);
    if (rc == RS_OK) {
        t.ops = json_array();
        rc = run_trial(&t, ids, (uint32_t)n, steps, glob, err);
        capture_close(&t.c);
    }
    free(ids);
    if (rc == RS_OK && t.compared == 0)
        rc = error_set(err, RS_ENOTFOUND, "no op of kind %s at '%s'", op_kind_name(t.user->impl.kind), glob);
    if (rc != RS_OK) {
        json_decref(t.ops);
        return rc;
    }
    json_object_set_new(m->reply, "impl", json_string(t.user->name));
    json_object_set_new(m->reply, "kind", json_string(op_kind_name(t.user->impl.kind)));
    json_object_set_new(m->reply, "steps", json_integer(steps + 1));
    json_object_set_new(m->reply, "compared", json_integer(t.compared));
    json_object_set_new(m->reply, "worst", isfinite(t.worst) ? json_real(t.worst) : json_null());
    json_object_set_new(m->reply, "worst_site", json_string(t.worst_site));
    json_object_set_new(m->reply, "ops", t.ops);
    return RS_OK;
}

static enum rs_result msg_live(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *impl = "";
    char glob[OP_SITE_MAX];
    uint32_t steps = 64;
    const struct patch_user *user = NULL;
    enum rs_result rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    args_need(a, args_str(a, "impl", &impl), "impl");
    msg_read_site(a, false, "*", glob);
    args_u32(a, "steps", 1, 1000000, &steps);
    rc = args_end(a);
    if (rc == RS_OK)
        rc = find_user(e, impl, &user, err);
    if (rc == RS_OK)
        rc = shadow_start(e, user, glob, steps, err);
    if (rc == RS_OK)
        json_object_set_new(m->reply, "shadow", shadow_json(e));
    return rc;
}

static enum rs_result msg_live_get(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_object_set_new(m->reply, "shadow", shadow_json(e));
    return rc;
}

static enum rs_result msg_live_stop(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        shadow_stop(e, "it was stopped");
    json_object_set_new(m->reply, "shadow", shadow_json(e));
    return rc;
}

/* Make the shadowed implementation current where it was shadowed. */
static enum rs_result msg_promote(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *glob;
    double worst;
    uint64_t compared;
    float limit = INFINITY;
    args_f32(a, "limit", 0, 1e6f, &limit);
    enum rs_result rc = args_end(a);
    const struct patch_user *user = shadow_user(e, &glob, &worst, &compared);
    if (rc == RS_OK && (user == NULL || compared == 0))
        rc = error_set(err, RS_ESTATE, "%s", user == NULL ? "nothing was shadowed" : "nothing has been compared yet");
    if (rc == RS_OK && worst > (double)limit)
        rc = error_set(err, RS_ESTATE, "%s is apart by %.2g, more than %.2g", user->name, worst, (double)limit);
    if (rc == RS_OK)
        rc = msg_patch_apply(e, m, "user", user->name, glob, err);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "impl", json_string(user->name));
    json_object_set_new(m->reply, "site", json_string(glob));
    json_object_set_new(m->reply, "worst", isfinite(worst) ? json_real(worst) : json_null());
    return RS_OK;
}

const struct msg_method MSG_STAGE[] = {{"patch.load", true, msg_load}, {"patch.shadow", true, msg_shadow}, {"patch.live", true, msg_live},
                                       {"patch.live.get", false, msg_live_get}, {"patch.live.stop", true, msg_live_stop}, {"patch.promote", true, msg_promote},
                                       {NULL, false, NULL}};
