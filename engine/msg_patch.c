/* Methods about patches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/donor.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/patch_api.h"
#include "engine/server.h"

static json_t *slot_json(const struct engine *e, uint32_t id)
{
    const struct patch_slot *p = patch_slot(id);
    json_t *kinds = json_array(), *impls = json_array(), *sites = json_array();
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (p->kinds >> k & 1)
            json_array_append_new(kinds, json_string(op_kind_name((enum op_kind)k)));
    size_t n;
    const struct op_impl *table = runtime_impls(e->rt != NULL ? e->rt->cfg.backend : BACKEND_CPU, &n);
    for (int i = 0; i < PATCH_MAX_IMPLS && p->impls[i].name != NULL; i++) {
        bool capturable = true;
        for (size_t j = 0; j < n; j++)
            if ((p->kinds >> table[j].kind & 1) && strcmp(table[j].name, p->impls[i].name) == 0)
                capturable = !table[j].not_capturable;
        json_array_append_new(impls, json_pack("{s:s,s:b,s:s}", "name", p->impls[i].name, "capturable", capturable, "help", p->impls[i].help));
    }
    for (uint32_t i = 0; id == SLOT_USER && i < e->patches.registry->n; i++)
        json_array_append_new(impls, json_pack("{s:s,s:b,s:s,s:s,s:s}", "name", e->patches.registry->user[i].name, "capturable", 1, "help",
                                               e->patches.registry->user[i].help, "op_kind", op_kind_name(e->patches.registry->user[i].impl.kind), "file",
                                               e->patches.registry->user[i].file));
    for (uint32_t i = 0; id == SLOT_WEIGHTS && e->model != NULL && i < e->model->n_donors; i++)
        json_array_append_new(impls, json_pack("{s:s,s:b,s:s}", "name", e->model->donor[i].name, "capturable", 1, "help", e->model->donor[i].path));
    for (uint32_t i = 0; i < e->patches.now.n; i++)
        if (e->patches.now.entry[i].slot == id)
            json_array_append_new(sites, json_pack("{s:s,s:s}", "glob", e->patches.now.entry[i].glob, "impl", e->patches.now.entry[i].impl));
    return json_pack("{s:s,s:o,s:s,s:s,s:s,s:o,s:o,s:s}", "slot", p->name, "op_kinds", kinds, "cost", patch_cost_name(p->cost), "default", patch_default(&e->patches.now, id),
                     "current", patch_current(&e->patches.now, id), "sites", sites, "impls", impls, "help", p->help);
}

static json_t *journal_json(const struct patch_store *s)
{
    json_t *a = json_array();
    uint32_t n = s->n_journal < PATCH_MAX_HISTORY ? s->n_journal : PATCH_MAX_HISTORY;
    for (uint32_t i = s->n_journal - n; i < s->n_journal; i++) {
        const struct patch_journal *j = &s->journal[i % PATCH_MAX_HISTORY];
        json_array_append_new(a, json_pack("{s:I,s:s,s:s,s:s,s:s,s:I,s:s,s:f}", "generation", (json_int_t)j->generation, "slot", j->slot, "glob", j->glob, "from",
                                           j->from, "to", j->to, "time_us", (json_int_t)j->time_us, "by", j->by, "took_ms", (double)j->took_ms));
    }
    return a;
}

static enum rs_result msg_patch_list(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_t *slots = json_array();
    for (uint32_t i = 0; patch_slot(i) != NULL; i++)
        json_array_append_new(slots, slot_json(e, i));
    json_object_set_new(m->reply, "slots", slots);
    json_object_set_new(m->reply, "generation", json_integer((json_int_t)e->patches.now.generation));
    json_object_set_new(m->reply, "journal", journal_json(&e->patches));
    return rc;
}

/* Try `next` against the loaded model; on success it becomes current. On failure nothing has changed. */
static enum rs_result apply(struct engine *e, struct msg *m, const struct patch_table *next, const char *slot, const char *glob, const char *to,
                            struct rs_error *err)
{
    uint64_t t0 = now_us();
    enum patch_cost cost = patch_difference(&e->patches.now, next);
    enum rs_result rc = RS_OK;
    if (e->rt != NULL) {
        size_t n;
        const struct op_impl *impls = runtime_impls(e->rt->cfg.backend, &n);
        struct choice *trial = calloc(e->rt->prog.n_ops, sizeof *trial);
        rc = trial == NULL ? error_set(err, RS_ENOMEM, "out of memory for op choices") : patch_resolve(next, &e->rt->prog, impls, n, trial, err);
        if (rc == RS_OK)
            rc = msg_check_capturable(e, trial, e->graph, e->guard, err);
        free(trial);
        if (rc == RS_OK)
            rc = engine_repatch(e, next, err);
    }
    if (rc != RS_OK)
        return rc;
    double took = (double)(now_us() - t0) / 1e3;
    patch_commit(&e->patches, next, slot, glob, to, "client", (float)took);
    json_object_set_new(m->reply, "generation", json_integer((json_int_t)e->patches.now.generation));
    json_object_set_new(m->reply, "cost", json_string(patch_cost_name(cost)));
    json_object_set_new(m->reply, "took_ms", json_real(took));
    engine_announce(e);
    return RS_OK;
}

enum rs_result msg_patch_apply(struct engine *e, struct msg *m, const char *slot, const char *impl, const char *site, struct rs_error *err)
{
    struct patch_table next;
    enum patch_cost cost;
    enum rs_result rc = patch_plan(&e->patches, slot, impl, site, &next, &cost, err);
    return rc == RS_OK ? apply(e, m, &next, slot, site, impl, err) : rc;
}

/* Does the pattern match anything that the slot is about: sites of ops, or names of tensors? */
static bool any_site(const struct engine *e, const char *slot, const char *glob)
{
    if (strcmp(slot, "weights") == 0) {
        json_t *tensors = donor_tensors_json(e, glob);
        size_t n = json_array_size(tensors);
        json_decref(tensors);
        return n != 0;
    }
    for (uint32_t i = 0; i < e->rt->prog.n_ops; i++)
        if (plan_glob(glob, e->rt->prog.ops[i].site))
            return true;
    for (uint32_t i = 0; i < e->rt->nextn.n_ops; i++)
        if (plan_glob(glob, e->rt->nextn.ops[i].site))
            return true;
    return false;
}

/* Is there an op that the loaded implementation would take over? */
static bool any_op(const struct engine *e, const struct patch_user *u, const char *glob)
{
    const struct program *const p[] = {&e->rt->prog, &e->rt->nextn};
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < p[k]->n_ops; i++)
            if (p[k]->ops[i].kind == u->impl.kind && plan_glob(glob, p[k]->ops[i].site))
                return true;
    return false;
}

static enum rs_result msg_patch_set(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *slot = NULL, *impl = NULL, *site = NULL;
    bool dry = false;
    struct patch_table next;
    enum patch_cost cost;
    args_need(a, args_str(a, "slot", &slot), "slot");
    args_need(a, args_str(a, "impl", &impl), "impl");
    args_str(a, "site", &site);
    args_bool(a, "dry", &dry);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = patch_plan(&e->patches, slot, impl, site, &next, &cost, err);
    if (rc != RS_OK)
        return rc;
    if (site != NULL && e->rt != NULL && !any_site(e, slot, site))
        return strcmp(slot, "weights") == 0 ? error_set(err, RS_ENOTFOUND, "no tensor matches '%.40s'", site)
                                            : runtime_no_site(e->rt, runtime_n_ops(e->rt), site, err);
    const struct patch_user *u = strcmp(slot, "user") == 0 ? patch_find_user(e->patches.registry, impl) : NULL;
    if (u != NULL && e->rt != NULL && !any_op(e, u, site != NULL ? site : "*"))
        return error_set(err, RS_ENOTFOUND, "%s is for ops of kind %s, and there is none at '%.40s'", u->name, op_kind_name(u->impl.kind), site != NULL ? site : "*");
    if (!dry)
        return apply(e, m, &next, slot, site, impl, err);
    json_object_set_new(m->reply, "generation", json_integer((json_int_t)e->patches.now.generation));
    json_object_set_new(m->reply, "cost", json_string(patch_cost_name(cost)));
    json_object_set_new(m->reply, "took_ms", json_real(0));
    return RS_OK;
}

static enum rs_result msg_patch_revert(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    long long to = 0;
    struct patch_table past;
    args_int(a, "to", 1, INT64_MAX, &to);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = patch_past(&e->patches, (uint64_t)to, &past, err);
    char what[32];
    if (rc != RS_OK)
        return rc;
    snprintf(what, sizeof what, "generation %llu", (unsigned long long)past.generation);
    return apply(e, m, &past, "revert", NULL, what, err);
}

static enum rs_result msg_patch_reset(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    struct patch_table none = {.n = 0, .reg = e->patches.registry, .gpus = e->patches.now.gpus, .hosts = e->patches.now.hosts};
    enum rs_result rc = args_end(a);
    return rc == RS_OK ? apply(e, m, &none, "reset", NULL, "default", err) : rc;
}

const struct msg_method MSG_PATCH[] = {
    {"patch.list", false, msg_patch_list}, {"patch.set", true, msg_patch_set}, {"patch.revert", true, msg_patch_revert},
    {"patch.reset", true, msg_patch_reset}, {NULL, false, NULL},
};
