/* The engine: opening, closing, the control thread, loading and laying out models. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/comm.h"
#include "engine/donor.h"
#include "engine/error.h"
#include "engine/hosts.h"
#include "engine/msg.h"
#include "engine/now.h"
#include "engine/server.h"
#include "engine/shadow.h"
#include "engine/stage.h"

enum { GPU_ROWS = 2048 }; /* of a step where nobody says: with fewer a GPU is not busy while it reads a prompt */

static enum rs_result choose_isa(const char *name, enum krn_isa *out, struct rs_error *err)
{
    static const char *const NAMES[KRN_ISA_COUNT] = {"portable", "avx2", "avx512"};
    *out = krn_cpu_best();
    if (name == NULL)
        return RS_OK;
    for (int i = 0; i < KRN_ISA_COUNT; i++)
        if (strcmp(NAMES[i], name) == 0) {
            if (krn_cpu_vec((enum krn_isa)i) == NULL || krn_cpu_matmul((enum krn_isa)i) == NULL)
                return error_set(err, RS_EUSAGE, "this processor or build has no %s kernels", name);
            *out = (enum krn_isa)i;
            return RS_OK;
        }
    return error_set(err, RS_EUSAGE, "no instruction set '%.20s'; there are portable, avx2, avx512", name);
}

enum rs_result engine_open(const struct rs_local_params *params, const char *name, int listen_fd, int first, struct comm *comm, struct engine **out,
                           struct rs_error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (e == NULL) {
        comm_close(comm);
        return error_set(err, RS_ENOMEM, "out of memory for the engine");
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->workers = params != NULL && params->workers != 0 ? params->workers : cores > 0 ? (unsigned)cores : 1;
    e->host = params != NULL ? params->host : NULL;
    e->json_failures = params != NULL ? params->json_failures : NULL;
    e->page_fd = -1;
    e->graph = e->guard = true;
    e->next_stream = e->next_session = 1;
    enum rs_result rc = choose_isa(params != NULL ? params->isa : NULL, &e->isa, err);
    if (rc == RS_OK)
        rc = patch_open(&e->patches, err);
    if (rc == RS_OK && (comm != NULL || (params != NULL && params->hosts != NULL)))
        rc = hosts_open(params, comm, e->isa, &e->hosts, err);
    else
        comm_close(comm);
    if (rc == RS_OK)
        rc = pool_open(e->workers, &e->pool, err);
    if (rc == RS_OK)
        rc = snapshot_create(&e->page, &e->page_fd, err);
    if (rc == RS_OK)
        rc = server_open(e, listen_fd, first, &e->server, err);
    if (rc != RS_OK) {
        engine_close(e);
        return rc;
    }
    *out = e;
    return RS_OK;
}

unsigned long engine_json_failures(const struct engine *e)
{
    return e->json_failures != NULL ? e->json_failures() : 0;
}

char *engine_json_text(const struct engine *e, const json_t *o, unsigned long failures)
{
    char *s = json_dumps(o, JSON_COMPACT);
    if (engine_json_failures(e) == failures)
        return s;
    free(s);
    return NULL;
}

static void drop_sequences(struct engine *e)
{
    while (e->seqs != NULL) {
        struct seq *s = e->seqs;
        e->seqs = s->next;
        seq_free(s);
    }
    e->seqs_last = NULL;
    e->wait = e->done = (struct seq_queue){0};
    e->n_run = e->n_in_batch = e->n_late = 0;
    e->starved = NULL;
}

void engine_unload(struct engine *e)
{
    while (e->n_run > 0)
        step_finish(e, e->run[e->n_run - 1], SEQ_STOP_CANCELLED);
    while (e->wait.first != NULL)
        step_finish(e, e->wait.first, SEQ_STOP_CANCELLED);
    drop_sequences(e);
    sched_free_arrays(e);
    shadow_stop(e, "the model was closed");
    timing_close(e->timing);
    e->timing = NULL;
    runtime_close(e->rt);
    e->rt = NULL;
    observe_rebind(e);
    donor_close_all(e);
    model_close(e->model);
    e->model = NULL;
}

void engine_close(struct engine *e)
{
    if (e == NULL)
        return;
    server_close(e->server);
    drop_sequences(e);
    while (e->sessions != NULL) {
        struct session *x = e->sessions;
        e->sessions = x->next;
        free(x->data);
        free(x->tok);
        free(x->kind);
        free(x);
    }
    stage_close(e);
    sched_free_arrays(e);
    timing_close(e->timing);
    shadow_close(e);
    runtime_close(e->rt);
    hosts_close(e->hosts);
    observe_close(e);
    brk_close(e);
    donor_close_all(e);
    model_close(e->model);
    pool_close(e->pool);
    patch_close(&e->patches);
    snapshot_unmap(e->page);
    if (e->page_fd >= 0)
        close(e->page_fd);
    free(e);
}

const struct snapshot_page *engine_page(const struct engine *e)
{
    return e->page;
}

void engine_run(struct engine *e)
{
    enum { HOSTS_POLL_MS = 500 }; /* an idle engine notices so soon that a host is gone */
    struct rs_error err;
    while (!server_stopping(e->server)) {
        bool work = sched_build(e);
        if (work)
            step_run(e);
        else
            step_idle(e);
        stage_poll(e);
        server_poll(e->server, work ? 0 : e->stage != NULL ? STAGE_POLL_MS : e->hosts != NULL ? HOSTS_POLL_MS : -1);
        if (!work && e->hosts != NULL && hosts_look(e->hosts, &err) != RS_OK && e->dead[0] == '\0')
            step_die(e, err.msg);
    }
    server_flush(e->server);
    if (e->dead[0] != '\0') /* clients in the same process have no other way to see that it has ended */
        server_hang_up(e->server);
}

bool engine_simulated(const struct engine *e)
{
    return e->rt == NULL || e->rt->cfg.backend == BACKEND_CPU;
}

struct runtime_config engine_default_config(const struct model *m)
{
    uint32_t ctx = m->hp.context < 8192 ? m->hp.context : 8192;
    return (struct runtime_config){.ranks = 1, .split = SHARD_AUTO, .cache = KRN_CACHE_F16, .ctx = ctx, .max_seqs = 256, .batch_tokens = 512, .max_logits = 256};
}

void engine_layout(const struct patch_table *t, struct runtime_config *cfg)
{
    const char *split = patch_current(t, SLOT_MOE_SPLIT), *cache = patch_current(t, SLOT_CACHE);
    cfg->split = strcmp(split, "tp") == 0 ? SHARD_TP : strcmp(split, "ep") == 0 ? SHARD_EP : SHARD_AUTO;
    cfg->cache = strcmp(cache, "f32") == 0 ? KRN_CACHE_F32 : strcmp(cache, "bf16") == 0 ? KRN_CACHE_BF16 : KRN_CACHE_F16;
}

/* Put a new runtime in place of the old one; everything that was computed under the old one is void. */
static enum rs_result adopt(struct engine *e, struct runtime *rt, struct rs_error *err)
{
    struct timing *t = NULL;
    enum rs_result rc = timing_open(&rt->prog, &t, err);
    struct runtime *old = e->rt;
    if (rc == RS_OK) {
        e->rt = rt;
        rc = sched_arrays(e, err);
    }
    if (rc != RS_OK) {
        e->rt = old;
        timing_close(t);
        runtime_close(rt);
        return rc;
    }
    sched_restart(e);
    timing_close(e->timing);
    e->timing = t;
    shadow_stop(e, "the model was laid out anew");
    runtime_close(old);
    observe_rebind(e);
    return RS_OK;
}

enum rs_result engine_load(struct engine *e, struct model *m, const struct runtime_config *want, struct rs_error *err)
{
    struct runtime *rt = NULL;
    struct runtime_config cfg = engine_default_config(m);
    cfg.backend = want->backend;
    cfg.gpus = want->gpus;
    cfg.n_listed = want->n_listed;
    memcpy(cfg.device, want->device, sizeof cfg.device);
    cfg.hosts = e->hosts;
    cfg.ranks = want->ranks != 0 ? want->ranks : e->hosts != NULL ? hosts_count(e->hosts) : cfg.ranks;
    cfg.ctx = want->ctx != 0 ? want->ctx : cfg.ctx;
    cfg.max_seqs = want->max_seqs != 0 ? want->max_seqs : cfg.max_seqs;
    cfg.batch_tokens = want->batch_tokens != 0 ? want->batch_tokens : cfg.backend == BACKEND_CUDA ? GPU_ROWS : cfg.batch_tokens;
    if (cfg.batch_tokens < cfg.max_seqs)
        cfg.max_seqs = cfg.batch_tokens;
    cfg.max_logits = cfg.max_seqs > 64 ? cfg.max_seqs : 64;
    engine_layout(&e->patches.now, &cfg);
    cfg.loading = msg_loading_begin(e);
    enum rs_result rc = runtime_open(m, &cfg, &e->patches.now, e->pool, e->isa, &rt, err);
    if (rc != RS_OK) {
        model_close(m);
        return rc;
    }
    struct timing *t = NULL;
    rc = timing_open(&rt->prog, &t, err);
    if (rc != RS_OK) {
        runtime_close(rt);
        model_close(m);
        return rc;
    }
    engine_unload(e);
    e->counts = (struct sched_counts){0};
    e->model = m;
    baseline_find(m->path, m->hash, &e->baseline);
    e->rt = rt;
    e->timing = t;
    spec_reset(e);
    rc = sched_arrays(e, err);
    if (rc != RS_OK)
        engine_unload(e);
    else
        observe_rebind(e);
    return rc;
}

enum rs_result engine_relayout(struct engine *e, const struct runtime_config *cfg, const struct patch_table *patches, struct rs_error *err)
{
    struct runtime *rt;
    struct runtime_config c = *cfg;
    engine_layout(patches, &c);
    c.loading = msg_loading_begin(e);
    enum rs_result rc = runtime_open(e->model, &c, patches, e->pool, e->isa, &rt, err);
    return rc == RS_OK ? adopt(e, rt, err) : rc;
}

/* New choices over the same layout, and other weights if there are any. */
static enum rs_result repatch_in_place(struct engine *e, const struct patch_table *next, bool weights, struct rs_error *err)
{
    enum rs_result rc = runtime_resolve(e->rt, next, err);
    struct rs_error again;
    if (rc != RS_OK)
        return rc;
    if (weights && (rc = donor_swap(e, err)) != RS_OK) {
        (void)runtime_resolve(e->rt, &e->patches.now, &again);
        return rc;
    }
    e->rt->backend->ops->retire(e->rt->backend, e->patches.now.generation + 1);
    if (patch_changes_values(&e->patches.now, next))
        kv_renew(&e->rt->kv);
    return RS_OK;
}

bool engine_drop_failed(struct engine *e)
{
    struct patch_table next = e->patches.now;
    struct rs_error err;
    char name[40], why[480], to[32];
    uint64_t t0 = now_us();
    if (patch_take_failed(&e->patches, &next, name, why) == 0 || engine_repatch(e, &next, &err) != RS_OK)
        return false;
    snprintf(to, sizeof to, "without %.23s", name);
    patch_commit(&e->patches, &next, "user", NULL, to, "engine", (float)(now_us() - t0) / 1e3f);
    engine_log(e, "error", "patch %s was taken out: %s", name, why);
    engine_announce(e);
    return true;
}

enum rs_result engine_repatch(struct engine *e, const struct patch_table *next, struct rs_error *err)
{
    struct donor_change *weights;
    if (e->rt == NULL)
        return RS_OK;
    enum rs_result rc = donor_begin(e, next, &weights, err);
    if (rc != RS_OK)
        return rc;
    if (patch_difference(&e->patches.now, next) == PATCH_RESHARD || (weights != NULL && !donor_fits(e)))
        rc = engine_relayout(e, &e->rt->cfg, next, err);
    else
        rc = repatch_in_place(e, next, weights != NULL, err);
    donor_end(e, weights, rc == RS_OK);
    return rc;
}
