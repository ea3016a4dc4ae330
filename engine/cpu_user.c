/* CPU: implementations loaded from files. What a call says about an op, in the words of patch_api.h. */
#include <stdio.h>

#include "engine/cpu.h"
#include "engine/patch.h"
#include "engine/patch_host.h"
#include "kernels/quant.h"
#include "kernels/type.h"

/* The sum of a rank that is alone with a stand-in for its peers: they have no summands that a patch could add. */
static bool stood_in(const struct cpu *c, const struct op *op)
{
    return op->kind == OP_ALLREDUCE && c->n_ranks == 1 && c->lim.peers > 1;
}

static uint32_t user_phases(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    if (stood_in(c, op))
        return CPU_ALLREDUCE.phases(c, op, ch, bucket);
    if (op->kind == OP_ROUTER)
        return cpu_router_is_large(c, bucket) ? 2 : 1; /* as the built-in one: readers look for its tables in one of two places */
    if (op->kind == OP_ALLREDUCE)
        return (c->n_ranks > 1) + (ch->delay_rank >= 0 && (uint32_t)ch->delay_rank < c->n_ranks);
    return 1;
}

static struct rankscope_tensor tensor(const struct cpu_call *k, const struct op_ref *r, uint32_t rows)
{
    if (r->buf == BUF_NONE)
        return (struct rankscope_tensor){.data = NULL};
    return (struct rankscope_tensor){.data = cpu_at(k, r, 0), .stride = k->prog->width[r->buf][k->rank], .rows = rows,
                                     .width = plan_ref_width(k->prog, k->op, r, k->rank)};
}

static struct rankscope_weight weight(const struct op_view *v)
{
    if (v->rows == 0)
        return (struct rankscope_weight){.rows = 0};
    return (struct rankscope_weight){.type = v->type, .rows = v->rows, .k = v->k, .data = v->data, .stride = v->stride, .n_mats = v->n_mats,
                                     .mat_stride = v->mat_stride, .bytes_per_256 = krn_row_bytes(v->type, 256), .dequant = krn_dequant_row};
}

/* Ops of the indexer have its cache, its heads and its sort of rotation. */
static bool of_indexer(const struct op *op)
{
    return op->kind == OP_INDEX_Q || op->kind == OP_INDEX_STORE || op->kind == OP_INDEX_SCORES || op->kind == OP_INDEX_TOPK;
}

static uint8_t *cache_row(const struct cpu_user_call *u, uint32_t row, uint32_t pos)
{
    const struct cpu *c = u->c;
    const int32_t block = u->b->segs[u->b->seg[row]].table[pos / c->lim.block];
    const size_t at = (size_t)block * c->lim.block + pos % c->lim.block;
    return of_indexer(u->op) ? c->rank[u->rank].ik[u->op->layer] + at * c->ik_row_bytes : c->rank[u->rank].kv[u->op->layer] + at * c->kv_row_bytes;
}

static void cache_get(const struct rankscope_call *call, uint32_t row, uint32_t pos, float *to)
{
    const struct cpu_user_call *u = call->cache;
    u->c->vec->load(u->c->lim.cache, cache_row(u, row, pos), to, rankscope_cache_width(call));
}

static void cache_put(const struct rankscope_call *call, uint32_t row, const float *from)
{
    const struct cpu_user_call *u = call->cache;
    size_t width = rankscope_cache_width(call);
    if (u->put != NULL)
        memcpy(u->put + row * width, from, width * sizeof *from);
    else
        u->c->vec->store(u->c->lim.cache, from, cache_row(u, row, (uint32_t)u->b->pos[row]), width);
}

/* As the built-in attention decides (cpu_attn.c). */
static const int32_t *selected(const struct rankscope_call *call, uint32_t row, uint32_t *n)
{
    const struct cpu_user_call *u = call->cache;
    if (u->sel == NULL || (uint32_t)u->b->pos[row] + 1 <= u->c->hp->index_topk)
        return NULL;
    const int32_t *sel = (const int32_t *)(const void *)(u->sel + row * u->sel_stride);
    if (sel[0] <= 0)
        return NULL;
    *n = (uint32_t)sel[0];
    return sel + 1;
}

void cpu_user_begin(struct cpu_user_call *u, const struct cpu *c, const struct program *p, const struct op *op, const struct batch *b, uint32_t rank)
{
    const struct hparams *hp = c->hp;
    *u = (struct cpu_user_call){.c = c, .op = op, .b = b, .rank = rank};
    u->call = (struct rankscope_call){.size = sizeof u->call, .layer = op->layer, .site = op->site, .rank = rank, .n_ranks = c->n_ranks, .hi = 1, .of = 1,
                                      .accumulate = op->accumulate, .eps = hp->eps, .head_dim = hp->k_mla, .rope_dim = hp->rope, .cos = c->rope_cos,
                                      .sin = c->rope_sin, .pos = b->pos, .kv_lora = hp->kv_lora, .v_head = hp->v_head, .scale = hp->kq_scale, .cache = u,
                                      .cache_get = cache_get, .cache_put = cache_put, .selected = selected};
    for (uint32_t s = 0; s < 2 && s < op->n_w; s++)
        u->call.w[s] = weight(plan_view(p, rank, op->w[s]));
    if (op->kind == OP_QKV_A && u->call.w[0].rows == 0) { /* one slot: it is the first */
        u->call.w[0] = u->call.w[1];
        u->call.w[1] = (struct rankscope_weight){.rows = 0};
    }
    if (op->layer >= 0) {
        const struct shard_range h = shard_of(c->shard, (uint32_t)op->layer, rank)->heads;
        u->call.n_heads = h.to - h.from;
    }
    if (of_indexer(op)) {
        u->call.kv_lora = 0;
        u->call.head_dim = hp->index_dim;
        u->call.n_heads = hp->index_heads;
        u->call.scale = 1.0f / __builtin_sqrtf((float)hp->index_heads * (float)hp->index_dim);
        u->call.interleaved = hp->index_interleaved;
        u->call.top_k = hp->index_topk;
        u->call.eps = op->kind == OP_INDEX_STORE ? 1e-6f : hp->eps; /* the models' own; no key carries it */
    }
    if (op->kind == OP_EMBED) {
        u->call.tokens = b->token;
        u->call.first_token = plan_view(p, rank, op->w[0])->row0;
    }
    if (op->kind == OP_ROUTER)
        u->call.router = (struct rankscope_router){.n_experts = hp->n_experts, .n_used = hp->n_used, .n_groups = hp->n_groups, .n_groups_used = hp->n_groups_used,
                                                   .sigmoid = hp->gating == HP_GATING_SIGMOID, .normalise = hp->expert_norm, .scale = hp->expert_scale};
}

void cpu_user_experts(struct cpu_user_call *u, const struct cpu_routing *r)
{
    const struct shard_range ex = shard_of(u->c->shard, (uint32_t)u->op->layer, u->rank)->experts;
    u->call.experts = (struct rankscope_experts){.n = ex.to - ex.from, .n_pairs = r->n_pairs, .group = r->group, .row = r->pair_row, .weight = r->pair_weight};
}

void cpu_user_gather(struct cpu_user_call *u)
{
    u->call.out[0].data += u->c->shard->vocab[u->rank].from;
    u->call.out[0].width = u->call.in[0].width;
}

bool cpu_user_empty(const struct op *op, const struct rankscope_call *c)
{
    return c->out[0].rows == 0 || c->out[0].width == 0 || (c->in[0].width == 0 && op->in[0].buf != BUF_NONE) || (op->n_w != 0 && c->w[0].rows + c->w[1].rows == 0);
}

/* Nothing is called for an empty shard; a partial sum still needs its zeros. */
static void fill_empty(const struct cpu_call *k, const struct rankscope_call *c)
{
    if (k->op->out[0].layout == OP_PARTIAL && !k->op->accumulate && cpu_alone(k))
        for (uint32_t i = 0; i < c->out[0].rows; i++)
            memset(c->out[0].data + i * c->out[0].stride, 0, c->out[0].width * sizeof(float));
}

/* What a failed patch leaves behind is never used: the step is computed again without it (exec_step). Its other calls of the step are passed over. */
static void call_hosted(const struct cpu_call *k, const struct patch_user *u, const struct rankscope_call *c)
{
    char why[320];
    int none = PATCH_SOUND;
    if (atomic_load_explicit(&u->fault->state, memory_order_relaxed) != PATCH_SOUND || u->host->run(u->hosted, k->worker, c, why, sizeof why))
        return;
    if (!atomic_compare_exchange_strong(&u->fault->state, &none, PATCH_FAILING))
        return;
    snprintf(u->fault->why, sizeof u->fault->why, "%.39s at %.39s, rank %u: %s", u->name, c->site, c->rank, why);
    atomic_store_explicit(&u->fault->state, PATCH_FAILED, memory_order_release);
    atomic_store_explicit(&k->c->failed, u, memory_order_release);
}

/* This call's share of the op. A hosted patch computes a rank's whole share in one call. all: every worker needs all of it. */
static void run_share(const struct cpu_call *k, struct rankscope_call *c, bool all)
{
    const struct patch_user *u = (const struct patch_user *)k->choice->impl; /* impl is its first member */
    bool whole = all || u->host != NULL;
    if (k->lo == k->hi || (whole && !all && !cpu_alone(k)))
        return;
    c->lo = whole ? 0 : k->lo;
    c->hi = whole ? 1 : k->hi;
    c->of = whole ? 1 : k->of;
    if (u->host != NULL)
        call_hosted(k, u, c);
    else
        u->api->run(c);
}

/* All ranks' elements are shared out over all ranks' workers; a hosted patch adds all of them up in one call. */
static void run_allreduce(const struct cpu_call *k, struct rankscope_call *c)
{
    const struct patch_user *u = (const struct patch_user *)k->choice->impl;
    float *ranks[RS_MAX_RANKS];
    if (k->phase + 1 < k->n_phases || k->c->n_ranks == 1) {
        cpu_delay(k);
        return;
    }
    for (uint32_t r = 0; r < k->c->n_ranks; r++)
        ranks[r] = k->c->rank[r].buf[k->op->out[0].buf] + k->op->out[0].col;
    c->ranks = ranks;
    c->out[0].width = c->in[0].width = cpu_width(k, &k->op->in[0]);
    if (u->host != NULL) {
        if (k->rank == 0 && cpu_alone(k) && k->lo < k->hi)
            call_hosted(k, u, c);
        return;
    }
    c->lo = k->rank * k->of + k->lo;
    c->hi = k->rank * k->of + k->hi;
    c->of = k->c->n_ranks * k->of;
    if (c->lo < c->hi)
        u->api->run(c);
}

/* The tables of (row, expert) pairs are made here from what was chosen. */
static void run_router(const struct cpu_call *k, struct rankscope_call *c)
{
    float *choice = cpu_at(k, &k->op->out[1], 0);
    c->router.ids = (int32_t *)(void *)choice;
    c->router.weights = choice + c->router.n_used;
    c->router.stride = k->prog->width[k->op->out[1].buf][k->rank];
    if (k->n_phases == 2) {
        if (k->phase == 0)
            run_share(k, c, false);
        else if (cpu_alone(k))
            cpu_group_pairs(k);
        return;
    }
    if (!k->local && !cpu_alone(k))
        return;
    run_share(k, c, true);
    cpu_group_pairs(k);
}

static void run_user(const struct cpu_call *k)
{
    struct cpu_user_call u;
    if (stood_in(k->c, k->op)) {
        CPU_ALLREDUCE.run(k);
        return;
    }
    const bool own = k->local && k->c->local[k->worker].buf[k->op->out[0].buf] != NULL; /* every worker needs all of it */
    const bool experts = k->op->kind == OP_MOE_GATE_UP || k->op->kind == OP_MOE_DOWN;
    const uint32_t rows = k->op->per_pair ? cpu_routing(k)->n_pairs : cpu_rows(k);
    cpu_user_begin(&u, k->c, k->prog, k->op, k->b, k->rank);
    for (int i = 0; i < 2; i++)
        u.call.in[i] = tensor(k, &k->op->in[i], rows);
    if (experts) { /* from rows to pairs, or back */
        cpu_user_experts(&u, cpu_routing(k));
        u.call.in[0].rows = k->op->per_pair ? cpu_rows(k) : u.call.experts.n_pairs;
        u.call.in[1] = (struct rankscope_tensor){.data = NULL};
    }
    u.call.out[0] = tensor(k, &k->op->out[0], rows);
    if (k->op->kind == OP_MLA && k->op->in[1].buf == BUF_ISEL && !k->choice->dense) {
        u.sel = u.call.in[1].data;
        u.sel_stride = u.call.in[1].stride;
    }
    if (k->op->kind == OP_MLA)
        u.call.in[1] = (struct rankscope_tensor){.data = NULL};
    if (k->op->kind == OP_GATHER)
        cpu_user_gather(&u);
    if (k->op->kind == OP_ALLREDUCE)
        run_allreduce(k, &u.call);
    else if (k->op->kind == OP_ROUTER)
        run_router(k, &u.call);
    else if (cpu_user_empty(k->op, &u.call))
        fill_empty(k, &u.call);
    else
        run_share(k, &u.call, own);
    cpu_publish(k, &k->op->out[0], rows);
    if (k->op->kind == OP_ROUTER)
        cpu_publish(k, &k->op->out[1], rows);
}

const struct cpu_launch CPU_USER = {user_phases, run_user};
