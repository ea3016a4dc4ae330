/* See shadow.h. */
#include "engine/shadow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/now.h"
#include "engine/patch_host.h"

enum { ROWS = 16, MAX_LISTED = 64 }; /* rows of a step that a live shadow keeps; ops in its report */
/* Pairs are ordered by expert over the whole step: it is compared with all of its rows or not at all. So ops of experts keep more rows where that is cheap,
 * in memory and therefore in time. */
static const uint64_t MAX_BYTES = 1ull << 30, EXPERTS_BYTES = 64ull << 20;

struct found {
    double worst, sum;
    uint64_t n;
};

struct shadow {
    const struct patch_user *user;
    char glob[OP_SITE_MAX];
    struct runtime *rt;        /* NULL: it has ended */
    const char *why;           /* it ended; static */
    char failed[480];          /* it ended because of this; else "" */
    uint32_t rows;             /* of a step that are kept */
    uint32_t steps, wanted;
    uint64_t compared, other_sets;
    double worst, sum, us;     /* relative L2; time that it took */
    char worst_site[OP_SITE_MAX];
    uint32_t worst_rank;
    uint64_t worst_step;
    uint32_t n_ops;
    struct found *found;       /* [n_ops] */
    char (*site)[OP_SITE_MAX]; /* [n_ops]: they outlive the program */
    uint32_t n_obs;
    struct probe_obs *obs;
    uint64_t generation;       /* that `both` was made for */
    uint32_t n_both;
    struct probe_obs *both;    /* obs and what is tapped, by op */
};

/* ---- one op ---- */

static const struct probe_copied *kept(const struct shadow_step *s, const struct op *o, bool before, uint32_t index, uint32_t rank)
{
    static const struct probe_copied NOTHING = {.rows = 0};
    for (uint32_t i = 0; i < s->n_obs; i++) {
        const struct probe_obs *x = &s->obs[i];
        if (x->op == o->index && x->before == before && x->index == index && (x->bits & PROBE_COPY) != 0)
            return (x->ranks >> rank & 1) ? &x->copied[rank] : &NOTHING;
    }
    return &NOTHING;
}

static struct tensor as_tensor(const struct probe_copied *c)
{
    return (struct tensor){.rows = c->rows, .width = c->width, .data = c->data};
}

static struct rankscope_tensor words(const struct tensor *t)
{
    return (struct rankscope_tensor){.data = t->data, .stride = t->width, .rows = t->rows, .width = t->width};
}

static enum rs_result make(uint32_t rows, uint32_t width, struct tensor *out, struct rs_error *err)
{
    *out = (struct tensor){.rows = rows, .width = width, .data = calloc((size_t)rows * width + 1, sizeof *out->data)};
    return out->data != NULL ? RS_OK : error_set(err, RS_ENOMEM, "out of memory for a shadow");
}

static enum rs_result run(const struct patch_user *u, struct rankscope_call *c, struct rs_error *err)
{
    char why[320];
    if (u->host == NULL) {
        u->api->run(c);
        return RS_OK;
    }
    if (u->host->run(u->hosted, 0, c, why, sizeof why)) /* thread 0 is this one */
        return RS_OK;
    return error_set(err, RS_EFORMAT, "%s at %s, rank %u: %s", u->name, c->site, c->rank, why);
}

static void fold(struct shadow_finding *f, uint32_t rank, const struct tensor *new, const struct tensor *old)
{
    struct delta d;
    delta_compare(new, old, 0, NULL, NULL, &d);
    double rel = d.comparable && d.bad_a == d.bad_b ? d.rel : INFINITY;
    if (rel >= f->rel) {
        f->rel = rel;
        f->delta = d;
        f->rank = rank;
    }
}

/* A router's choice (ids, then weights, as in BUF_CHOICE) as one column per expert: the weight of those chosen. */
static enum rs_result dense(const struct tensor *choice, uint32_t n_experts, struct tensor *out, struct rs_error *err)
{
    const uint32_t used = choice->width / 2;
    enum rs_result rc = make(choice->rows, n_experts, out, err);
    for (uint32_t i = 0; i < choice->rows && rc == RS_OK; i++) {
        const float *row = choice->data + (size_t)i * choice->width;
        const int32_t *ids = (const int32_t *)(const void *)row;
        for (uint32_t k = 0; k < used; k++)
            if (ids[k] >= 0 && (uint32_t)ids[k] < n_experts)
                out->data[(size_t)i * n_experts + (uint32_t)ids[k]] = row[used + k];
    }
    return rc;
}

static uint64_t other_sets(const struct tensor *a, const struct tensor *b)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < a->rows && i < b->rows; i++) {
        bool other = false;
        for (uint32_t j = 0; j < a->width; j++)
            other |= (a->data[(size_t)i * a->width + j] != 0) != (b->data[(size_t)i * b->width + j] != 0);
        n += other;
    }
    return n;
}

static enum rs_result compare_choice(const struct shadow_step *s, const struct op *o, uint32_t rank, const struct tensor *new, struct shadow_finding *f,
                                     struct rs_error *err)
{
    const struct tensor old = as_tensor(kept(s, o, false, 1, rank));
    struct tensor a = {.data = NULL}, b = {.data = NULL};
    enum rs_result rc = dense(new, s->rt->prog.hp->n_experts, &a, err);
    if (rc == RS_OK)
        rc = dense(&old, s->rt->prog.hp->n_experts, &b, err);
    if (rc == RS_OK) {
        f->other_sets += rank == 0 ? other_sets(&a, &b) : 0;
        fold(f, rank, &a, &b);
    }
    tensor_free(&a);
    tensor_free(&b);
    return rc;
}

/* What would have gone to the cache, rounded as the cache rounds, against what did. */
static enum rs_result compare_stored(const struct cpu_user_call *u, struct tensor *new, struct shadow_finding *f, struct rs_error *err)
{
    struct tensor old;
    uint8_t *rounded = malloc(u->c->kv_row_bytes + u->c->ik_row_bytes + 1);
    enum rs_result rc = make(new->rows, new->width, &old, err);
    if (rc == RS_OK && rounded == NULL)
        rc = error_set(err, RS_ENOMEM, "out of memory for a shadow");
    for (uint32_t i = 0; i < new->rows && rc == RS_OK; i++) {
        float *row = new->data + (size_t)i * new->width;
        u->c->vec->store(u->c->lim.cache, row, rounded, new->width);
        u->c->vec->load(u->c->lim.cache, rounded, row, new->width);
        u->call.cache_get(&u->call, i, (uint32_t)u->b->pos[i], old.data + (size_t)i * old.width);
    }
    if (rc == RS_OK)
        fold(f, u->rank, new, &old);
    free(rounded);
    tensor_free(&old);
    return rc;
}

static bool in_place(const struct op *o)
{
    return o->kind == OP_ROPE_Q || o->kind == OP_KV_STORE || o->kind == OP_INDEX_Q || o->kind == OP_INDEX_STORE;
}

static bool stores(const struct op *o)
{
    return o->kind == OP_KV_STORE || o->kind == OP_INDEX_STORE;
}

/* What nobody looks at is as it was: scores beyond a row's own position, and all of a row of up to top_k; what follows a selection, which becomes numbers. */
static void settle(const struct shadow_step *s, const struct op *o, struct tensor *new, struct tensor *old)
{
    const uint32_t top_k = s->rt->prog.hp->index_topk;
    for (uint32_t i = 0; i < new->rows && (o->kind == OP_INDEX_SCORES || o->kind == OP_INDEX_TOPK); i++) {
        float *a = new->data + (size_t)i * new->width, *b = old->data + (size_t)i * old->width;
        const uint32_t keys = (uint32_t)s->batch->pos[i] + 1;
        uint32_t from = keys <= top_k ? 0 : keys;
        if (o->kind == OP_INDEX_TOPK) {
            int32_t *x = (int32_t *)(void *)a, *y = (int32_t *)(void *)b;
            from = keys <= top_k ? 1 : top_k + 1;
            for (uint32_t j = 0; j < from && j < new->width; j++) {
                a[j] = (float)x[j];
                b[j] = (float)y[j];
            }
        }
        for (uint32_t j = from; j < new->width; j++)
            a[j] = b[j] = 0;
    }
}

/* Memory of the output's size that holds what the op found there. */
static enum rs_result output_before(const struct shadow_step *s, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err)
{
    const struct probe_copied *was = kept(s, o, false, 0, rank), *from = NULL;
    enum rs_result rc = make(was->rows, was->width, out, err);
    if (in_place(o))
        from = kept(s, o, true, 0, rank);
    else if (o->accumulate || o->kind == OP_ADD)
        from = kept(s, o, true, OP_MAX_IN, rank);
    else if (o->kind == OP_GATHER)
        from = was; /* what other ranks have there is theirs */
    if (rc == RS_OK && from != NULL && from->rows > 0)
        memcpy(out->data, from->data, sizeof *out->data * out->rows * out->width);
    return rc;
}

/* The pairs of this rank's experts, made again from what was chosen. false in *all: not all rows of the step were kept. */
static enum rs_result group(const struct shadow_step *s, const struct op *o, uint32_t rank, struct cpu_routing *r, bool *all, struct rs_error *err)
{
    const struct hparams *hp = s->rt->prog.hp;
    const struct probe_copied *choice = kept(s, o, true, 1, rank);
    *all = choice->rows == s->batch->n_rows;
    if (!cpu_routing_alloc(r, hp->n_experts, (size_t)choice->rows * hp->n_used + 1))
        return error_set(err, RS_ENOMEM, "out of memory for a shadow");
    const struct cpu *c = (const struct cpu *)s->rt->backend;
    cpu_group_rows(choice->data, choice->width, choice->rows, hp->n_used, shard_of(c->shard, (uint32_t)o->layer, rank)->experts, r);
    const uint32_t in = kept(s, o, true, 0, rank)->rows, out = kept(s, o, false, 0, rank)->rows;
    *all = *all && (o->per_pair ? out : in) == r->n_pairs;
    return RS_OK;
}

static enum rs_result one_rank(const struct shadow_step *s, const struct patch_user *user, const struct op *o, uint32_t rank, struct shadow_finding *f,
                               struct rs_error *err)
{
    struct cpu_user_call u;
    struct cpu_routing pairs = {.group = NULL};
    bool all = true;
    struct tensor in = as_tensor(kept(s, o, true, 0, rank)), old = as_tensor(kept(s, o, false, 0, rank)), out = {.data = NULL}, side = {.data = NULL};
    const struct hparams *hp = s->rt->prog.hp;
    cpu_user_begin(&u, (const struct cpu *)s->rt->backend, &s->rt->prog, o, s->batch, rank);
    enum rs_result rc = output_before(s, o, rank, &out, err);
    u.call.in[0] = words(in_place(o) ? &out : &in);
    u.call.out[0] = words(&out);
    if (rc == RS_OK && o->kind == OP_GATHER) {
        cpu_user_gather(&u);
        for (uint32_t i = 0; i < out.rows; i++)
            memset(u.call.out[0].data + i * u.call.out[0].stride, 0, u.call.out[0].width * sizeof(float));
    }
    if (rc == RS_OK && o->kind == OP_INDEX_SCORES) {
        const struct tensor heads = as_tensor(kept(s, o, true, 1, rank));
        u.call.in[1] = words(&heads);
    }
    if (rc == RS_OK && (o->kind == OP_MOE_GATE_UP || o->kind == OP_MOE_DOWN)) {
        rc = group(s, o, rank, &pairs, &all, err);
        cpu_user_experts(&u, &pairs);
    }
    if (rc != RS_OK || !all || cpu_user_empty(o, &u.call))
        goto end;
    if (o->kind == OP_ROUTER)
        rc = make(out.rows, 2 * hp->n_used, &side, err);
    else if (stores(o))
        rc = make(out.rows, rankscope_cache_width(&u.call), &side, err);
    u.put = side.data;
    u.call.router.ids = (int32_t *)(void *)side.data;
    u.call.router.weights = side.data != NULL ? side.data + hp->n_used : NULL;
    u.call.router.stride = side.width;
    if (o->kind == OP_MLA && o->in[1].buf == BUF_ISEL && !s->choices[o->index].dense) {
        const struct probe_copied *sel = kept(s, o, true, 1, rank);
        u.sel = sel->data;
        u.sel_stride = sel->width;
    }
    if (rc == RS_OK)
        rc = run(user, &u.call, err);
    if (rc != RS_OK)
        goto end;
    f->rows = out.rows > f->rows ? out.rows : f->rows;
    settle(s, o, &out, &old);
    fold(f, rank, &out, &old);
    if (o->kind == OP_ROUTER)
        rc = compare_choice(s, o, rank, &side, f, err);
    else if (stores(o))
        rc = compare_stored(&u, &side, f, err);
end:
    cpu_routing_free(&pairs);
    tensor_free(&out);
    tensor_free(&side);
    return rc;
}

/* A sum over all ranks is computed once. */
static enum rs_result all_ranks(const struct shadow_step *s, const struct patch_user *user, const struct op *o, struct shadow_finding *f, struct rs_error *err)
{
    struct cpu_user_call u;
    struct tensor part[RS_MAX_RANKS] = {{.data = NULL}};
    float *ranks[RS_MAX_RANKS];
    const uint32_t n = s->rt->cfg.ranks;
    enum rs_result rc = RS_OK;
    for (uint32_t r = 0; r < n && rc == RS_OK; r++) {
        const struct probe_copied *in = kept(s, o, true, 0, r);
        rc = make(in->rows, in->width, &part[r], err);
        if (rc == RS_OK)
            memcpy(part[r].data, in->data, sizeof *in->data * in->rows * in->width);
        ranks[r] = part[r].data;
    }
    cpu_user_begin(&u, (const struct cpu *)s->rt->backend, &s->rt->prog, o, s->batch, 0);
    u.call.in[0] = u.call.out[0] = words(&part[0]);
    u.call.ranks = ranks;
    if (rc == RS_OK && n > 1 && part[0].rows != 0)
        rc = run(user, &u.call, err);
    for (uint32_t r = 0; r < n && rc == RS_OK && n > 1; r++) {
        const struct tensor old = as_tensor(kept(s, o, false, 0, r));
        f->rows = part[0].rows;
        fold(f, r, &part[r], &old);
    }
    for (uint32_t r = 0; r < n; r++)
        tensor_free(&part[r]);
    return rc;
}

enum rs_result shadow_op(const struct shadow_step *s, const struct patch_user *user, const struct op *o, struct shadow_finding *out, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    *out = (struct shadow_finding){.delta = {.comparable = true}};
    if (o->kind == OP_ALLREDUCE)
        return all_ranks(s, user, o, out, err);
    for (uint32_t r = 0; r < s->rt->cfg.ranks && rc == RS_OK; r++)
        rc = one_rank(s, user, o, r, out, err);
    return rc;
}

/* ---- live ---- */

static bool concerns(const struct shadow *s, const struct op *o)
{
    return o->kind == s->user->impl.kind && plan_glob(s->glob, o->site);
}

/* Rows of a buffer for a row of the batch. */
static uint64_t rows_each(const struct shadow *s, const struct op_ref *r)
{
    return r->buf == BUF_MGU || r->buf == BUF_MACT ? s->rt->prog.hp->n_used : 1;
}

static uint64_t row_bytes(const struct shadow *s, const struct op *o, const struct op_ref *r)
{
    uint64_t width = 0;
    for (uint32_t k = 0; k < s->rt->cfg.ranks && r->buf != BUF_NONE; k++)
        width += plan_ref_width(&s->rt->prog, o, r, k);
    return rows_each(s, r) * width * sizeof(float);
}

static uint32_t rows_kept(const struct shadow *s)
{
    const struct program *p = &s->rt->prog;
    uint64_t each = 0, rows = ROWS;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (concerns(s, &p->ops[i]) && (p->ops[i].kind == OP_MOE_GATE_UP || p->ops[i].kind == OP_MOE_DOWN))
            each += row_bytes(s, &p->ops[i], &p->ops[i].in[0]) + row_bytes(s, &p->ops[i], &p->ops[i].in[1]) + row_bytes(s, &p->ops[i], &p->ops[i].out[0]);
    if (each != 0 && EXPERTS_BYTES / each > rows)
        rows = EXPERTS_BYTES / each;
    return rows < s->rt->cfg.batch_tokens ? (uint32_t)rows : s->rt->cfg.batch_tokens;
}

static bool add(struct shadow *s, const struct op *o, bool before, uint8_t index, uint64_t *bytes)
{
    const struct op_ref *r = probe_ref(o, before, index);
    const uint32_t n = s->rt->cfg.ranks;
    const uint64_t rows = s->rows * rows_each(s, r);
    struct probe_obs *x = &s->obs[s->n_obs];
    *x = (struct probe_obs){.op = o->index, .before = before, .index = index, .bits = PROBE_COPY, .copied = calloc(n, sizeof *x->copied)};
    if (x->copied == NULL)
        return false;
    s->n_obs++;
    for (uint32_t k = 0; k < n; k++) {
        x->copied[k].cap = (size_t)(rows * plan_ref_width(&s->rt->prog, o, r, k));
        *bytes += x->copied[k].cap * sizeof(float);
        if (*bytes > MAX_BYTES)
            return true; /* the caller refuses */
        x->copied[k].data = malloc((x->copied[k].cap + 1) * sizeof(float));
        if (x->copied[k].data == NULL)
            return false;
        x->ranks |= 1ull << k;
    }
    return true;
}

/* Observers of one op, those before it first. */
static bool add_op(struct shadow *s, const struct op *o, uint64_t *bytes)
{
    bool ok = true;
    for (uint8_t k = 0; k < OP_MAX_IN && ok; k++)
        ok = o->in[k].buf == BUF_NONE || add(s, o, true, k, bytes);
    if (ok && (o->accumulate || o->kind == OP_ADD))
        ok = add(s, o, true, OP_MAX_IN, bytes);
    for (uint8_t k = 0; k < OP_MAX_OUT && ok; k++)
        ok = o->out[k].buf == BUF_NONE || add(s, o, false, k, bytes);
    return ok;
}

static void free_obs(struct shadow *s, uint32_t n_ranks)
{
    for (uint32_t i = 0; i < s->n_obs; i++) {
        for (uint32_t r = 0; r < n_ranks; r++)
            free(s->obs[i].copied[r].data);
        free(s->obs[i].copied);
    }
    free(s->obs);
    free(s->both);
    s->obs = s->both = NULL;
    s->n_obs = s->n_both = 0;
}

static void free_all(struct shadow *s)
{
    if (s == NULL)
        return;
    free(s->found);
    free(s->site);
    free(s);
}

/* Graphs with observers of before point at them: new ones are captured. */
static void renew_graphs(struct engine *e)
{
    e->patches.now.generation++;
    e->rt->backend->ops->retire(e->rt->backend, e->patches.now.generation);
}

enum rs_result shadow_start(struct engine *e, const struct patch_user *user, const char *glob, uint32_t steps, struct rs_error *err)
{
    const struct program *p = &e->rt->prog;
    struct shadow *s = calloc(1, sizeof *s);
    uint64_t bytes = 0;
    uint32_t sites = 0;
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a shadow");
    *s = (struct shadow){.user = user, .rt = e->rt, .wanted = steps, .n_ops = p->n_ops, .found = calloc(p->n_ops, sizeof *s->found),
                         .site = calloc(p->n_ops, sizeof *s->site), .obs = calloc((size_t)p->n_ops * (OP_MAX_IN + OP_MAX_OUT + 1) + 1, sizeof *s->obs)};
    snprintf(s->glob, sizeof s->glob, "%s", glob);
    s->rows = rows_kept(s);
    bool ok = s->found != NULL && s->site != NULL && s->obs != NULL;
    for (uint32_t i = 0; i < p->n_ops && ok && bytes <= MAX_BYTES; i++) {
        if (!concerns(s, &p->ops[i]))
            continue;
        sites++;
        memcpy(s->site[i], p->ops[i].site, sizeof s->site[i]);
        ok = add_op(s, &p->ops[i], &bytes);
    }
    enum rs_result rc = !ok ? error_set(err, RS_ENOMEM, "out of memory for a shadow")
                        : sites == 0 ? error_set(err, RS_ENOTFOUND, "no op of kind %s at '%s'", op_kind_name(user->impl.kind), glob)
                        : bytes > MAX_BYTES ? error_set(err, RS_EUSAGE, "keeping these sites would take more than %llu MiB; name fewer",
                                                        (unsigned long long)(MAX_BYTES >> 20)) : RS_OK;
    if (rc != RS_OK) {
        free_obs(s, e->rt->cfg.ranks);
        free_all(s);
        return rc;
    }
    shadow_stop(e, "another began");
    free_all(e->shadow);
    e->shadow = s;
    renew_graphs(e);
    return RS_OK;
}

/* The two lists by op, before an op what stands before it. false: no memory. */
static bool merge(struct shadow *s, const struct probe_set *taps)
{
    struct probe_obs *both = malloc((s->n_obs + taps->n_obs + 1) * sizeof *both);
    uint32_t n = 0, i = 0, k = 0;
    if (both == NULL)
        return false;
    while (i < s->n_obs || k < taps->n_obs) {
        const struct probe_obs *a = i < s->n_obs ? &s->obs[i] : NULL, *b = k < taps->n_obs ? &taps->obs[k] : NULL;
        bool first = b == NULL || (a != NULL && (a->op < b->op || (a->op == b->op && (a->before || !b->before))));
        both[n++] = first ? *a : *b;
        i += first;
        k += !first;
    }
    free(s->both); /* graphs of the generation that it was for are gone or never found again */
    s->both = both;
    s->n_both = n;
    return true;
}

bool shadow_observe(struct engine *e, struct probe_set *set)
{
    struct shadow *s = e->shadow;
    if (s == NULL || s->rt == NULL)
        return false;
    if (s->generation != e->patches.now.generation && !merge(s, set)) {
        shadow_stop(e, "out of memory");
        return false;
    }
    s->generation = e->patches.now.generation;
    set->obs = s->both;
    set->n_obs = s->n_both;
    return true;
}

static void note(struct engine *e, struct shadow *s, uint32_t op, const struct shadow_finding *f)
{
    struct found *x = &s->found[op];
    x->n++;
    x->sum += f->rel;
    x->worst = f->rel > x->worst ? f->rel : x->worst;
    s->sum += f->rel;
    s->compared++;
    s->other_sets += f->other_sets;
    if (s->compared == 1 || f->rel > s->worst) {
        s->worst = f->rel;
        s->worst_rank = f->rank;
        s->worst_step = e->steps;
        memcpy(s->worst_site, s->site[op], sizeof s->worst_site);
    }
}

static void tell(struct engine *e, const struct shadow *s)
{
    if (s->failed[0] != '\0')
        engine_log(e, "error", "shadow of %s ended: %s", s->user->name, s->failed);
    else if (s->compared == 0)
        engine_log(e, "info", "shadow of %s ended (%s) without a comparison", s->user->name, s->why);
    else
        engine_log(e, "info", "shadow of %s: %u steps, %llu comparisons, apart by %.2g at most (%s, rank %u, step %llu), %.2g on average; /patch promote puts it in",
                   s->user->name, s->steps, (unsigned long long)s->compared, s->worst, s->worst_site, s->worst_rank, (unsigned long long)s->worst_step,
                   s->sum / (double)s->compared);
}

void shadow_look(struct engine *e)
{
    struct shadow *s = e->shadow;
    struct shadow_finding f;
    struct rs_error err;
    uint32_t other = 0;
    if (s == NULL || s->rt == NULL)
        return;
    const struct shadow_step step = {.rt = s->rt, .choices = s->rt->choices, .batch = &e->batch, .obs = s->obs, .n_obs = s->n_obs};
    uint64_t t0 = now_us();
    for (uint32_t i = 0; i < s->n_ops; i++) {
        const struct op *o = &s->rt->prog.ops[i];
        if (!concerns(s, o) || s->rt->choices[i].impl == &s->user->impl)
            continue;
        other++;
        if (shadow_op(&step, s->user, o, &f, &err) != RS_OK) {
            snprintf(s->failed, sizeof s->failed, "%.479s", err.msg);
            shadow_stop(e, "it failed");
            return;
        }
        if (f.rows != 0)
            note(e, s, i, &f);
    }
    s->us += (double)(now_us() - t0);
    s->steps++;
    if (other == 0)
        shadow_stop(e, "it was put in");
    else if (s->steps >= s->wanted)
        shadow_stop(e, "all steps were seen");
}

void shadow_stop(struct engine *e, const char *why)
{
    struct shadow *s = e->shadow;
    if (s == NULL || s->rt == NULL)
        return;
    if (e->rt == s->rt)
        renew_graphs(e);
    free_obs(s, s->rt->cfg.ranks);
    s->rt = NULL;
    s->why = why;
    tell(e, s);
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* The ops that are furthest apart, furthest first. */
static json_t *ops_json(const struct shadow *s)
{
    json_t *list = json_array();
    double below = INFINITY;
    bool first = true;
    while (json_array_size(list) < MAX_LISTED) { /* by value, so that equal ones come together */
        double next = -1;
        for (uint32_t i = 0; i < s->n_ops; i++)
            if (s->found[i].n != 0 && (first || s->found[i].worst < below) && s->found[i].worst > next)
                next = s->found[i].worst;
        if (next < 0)
            break;
        for (uint32_t i = 0; i < s->n_ops && json_array_size(list) < MAX_LISTED; i++)
            if (s->found[i].n != 0 && !(s->found[i].worst < next) && !(s->found[i].worst > next))
                json_array_append_new(list, json_pack("{s:s,s:o,s:o,s:I}", "site", s->site[i], "worst", number(s->found[i].worst), "mean",
                                                      number(s->found[i].sum / (double)s->found[i].n), "compared", (json_int_t)s->found[i].n));
        below = next;
        first = false;
    }
    return list;
}

json_t *shadow_json(const struct engine *e)
{
    const struct shadow *s = e->shadow;
    if (s == NULL)
        return json_null();
    bool any = s->compared != 0;
    json_t *o = json_object();
    json_object_set_new(o, "impl", json_string(s->user->name));
    json_object_set_new(o, "kind", json_string(op_kind_name(s->user->impl.kind)));
    json_object_set_new(o, "site", json_string(s->glob));
    json_object_set_new(o, "running", json_boolean(s->rt != NULL));
    json_object_set_new(o, "ended", s->rt != NULL ? json_null() : json_string(s->failed[0] != '\0' ? s->failed : s->why));
    json_object_set_new(o, "steps", json_integer(s->steps));
    json_object_set_new(o, "wanted", json_integer(s->wanted));
    json_object_set_new(o, "compared", json_integer((json_int_t)s->compared));
    json_object_set_new(o, "worst", any ? number(s->worst) : json_null());
    json_object_set_new(o, "worst_site", any ? json_string(s->worst_site) : json_null());
    json_object_set_new(o, "worst_rank", any ? json_integer(s->worst_rank) : json_null());
    json_object_set_new(o, "worst_step", any ? json_integer((json_int_t)s->worst_step) : json_null());
    json_object_set_new(o, "mean", any ? number(s->sum / (double)s->compared) : json_null());
    json_object_set_new(o, "other_experts", json_integer((json_int_t)s->other_sets));
    json_object_set_new(o, "ms_per_step", s->steps != 0 ? json_real(s->us / 1e3 / s->steps) : json_null());
    json_object_set_new(o, "ops", ops_json(s));
    return o;
}

const struct patch_user *shadow_user(const struct engine *e, const char **glob, double *worst, uint64_t *compared)
{
    const struct shadow *s = e->shadow;
    if (s == NULL)
        return NULL;
    *glob = s->glob;
    *worst = s->worst;
    *compared = s->compared;
    return s->user;
}

void shadow_close(struct engine *e)
{
    if (e->shadow != NULL && e->shadow->rt != NULL)
        free_obs(e->shadow, e->shadow->rt->cfg.ranks);
    free_all(e->shadow);
    e->shadow = NULL;
}
