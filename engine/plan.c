/* The program of a model, op by op. Read plan_layer() as the model's definition; everything above it is bookkeeping. */
#include "engine/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "kernels/type.h"

struct builder {
    const struct hparams *hp;
    const struct weights *w;
    const struct shard_plan *shard;
    struct program *p;
    uint32_t cap_ops, cap_views;
    int layer;
};

/* How a weight is cut for a rank. */
struct cut {
    struct shard_range rows, cols, mats;
};

static struct cut whole(const struct weight *w)
{
    return (struct cut){{0, w->rows}, {0, w->k}, {0, w->n_mats}};
}

static struct op *add_op(struct builder *b, enum op_kind kind, const char *site_fmt, ...) __attribute__((format(printf, 3, 4)));

static struct op *add_op(struct builder *b, enum op_kind kind, const char *site_fmt, ...)
{
    struct op *o = &b->p->ops[b->p->n_ops]; /* capacity is counted beforehand, see plan_build */
    memset(o, 0, sizeof *o);
    o->kind = kind;
    o->layer = (int16_t)b->layer;
    o->index = (uint16_t)b->p->n_ops++;
    size_t n = b->layer >= 0 ? (size_t)snprintf(o->site, sizeof o->site, "blk.%d.", b->layer) : 0;
    if (b->layer < 0 && b->p->which == PLAN_NEXTN) /* no two ops of a model have one name */
        n = (size_t)snprintf(o->site, sizeof o->site, "nextn.");
    va_list ap;
    va_start(ap, site_fmt);
    vsnprintf(o->site + n, sizeof o->site - n, site_fmt, ap);
    va_end(ap);
    if (kind == OP_ALLREDUCE)
        b->p->n_allreduces++;
    return o;
}

static struct op_ref ref(enum op_buf buf, enum op_layout layout)
{
    return (struct op_ref){.buf = (uint8_t)buf, .layout = (uint8_t)layout};
}

static struct op_ref part(enum op_buf buf, enum op_layout layout, uint32_t col, uint32_t width)
{
    return (struct op_ref){.buf = (uint8_t)buf, .layout = (uint8_t)layout, .col = col, .width = width};
}

/* Add weight w to op o; cut says which slice rank r holds. */
static void add_weight(struct builder *b, struct op *o, const struct weight *w, struct cut (*cut)(struct builder *, const struct weight *, uint32_t rank))
{
    struct program *p = b->p;
    uint16_t v = (uint16_t)p->n_views++;
    o->w[o->n_w++] = v;
    const struct krn_type_info *ti = w->data != NULL ? krn_type_info(w->type) : NULL;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        struct op_view *view = &p->views[(size_t)r * b->cap_views + v];
        memset(view, 0, sizeof *view);
        if (ti == NULL)
            continue;
        struct cut c = cut != NULL ? cut(b, w, r) : whole(w);
        view->tensor = w->name;
        view->type = w->type;
        view->stride = w->row_bytes;
        view->mat_stride = w->mat_bytes;
        view->rows = c.rows.to - c.rows.from;
        view->k = c.cols.to - c.cols.from;
        view->n_mats = c.mats.to - c.mats.from;
        view->row0 = c.rows.from;
        view->col0 = c.cols.from;
        view->mat0 = c.mats.from;
        view->data = w->data + c.mats.from * w->mat_bytes + c.rows.from * w->row_bytes + (size_t)c.cols.from / ti->block_elems * ti->block_bytes;
        if (view->k == 0 || view->n_mats == 0)
            view->rows = 0;
    }
}

static const struct shard_layer *here(struct builder *b, uint32_t rank)
{
    return shard_of(b->shard, (uint32_t)b->layer, rank);
}

static struct cut by_head_rows(struct builder *b, const struct weight *w, uint32_t r)
{
    struct cut c = whole(w);
    uint32_t per = w->rows / b->hp->n_heads;
    c.rows = (struct shard_range){here(b, r)->heads.from * per, here(b, r)->heads.to * per};
    return c;
}

static struct cut by_head_cols(struct builder *b, const struct weight *w, uint32_t r)
{
    struct cut c = whole(w);
    uint32_t per = w->k / b->hp->n_heads;
    c.cols = (struct shard_range){here(b, r)->heads.from * per, here(b, r)->heads.to * per};
    return c;
}

static struct cut by_head_mats(struct builder *b, const struct weight *w, uint32_t r)
{
    struct cut c = whole(w);
    c.mats = here(b, r)->heads;
    return c;
}

static struct cut by_ff_rows(struct builder *b, const struct weight *w, uint32_t r)
{
    struct cut c = whole(w);
    c.rows = b->w->layers[b->layer].moe ? here(b, r)->shared : here(b, r)->ff;
    return c;
}

static struct cut by_ff_cols(struct builder *b, const struct weight *w, uint32_t r)
{
    struct cut c = whole(w);
    c.cols = b->w->layers[b->layer].moe ? here(b, r)->shared : here(b, r)->ff;
    return c;
}

static struct cut by_expert_rows(struct builder *b, const struct weight *w, uint32_t r)
{
    return (struct cut){here(b, r)->ff_exp, {0, w->k}, here(b, r)->experts};
}

static struct cut by_expert_cols(struct builder *b, const struct weight *w, uint32_t r)
{
    return (struct cut){{0, w->rows}, here(b, r)->ff_exp, here(b, r)->experts};
}

static struct cut by_vocab_rows(struct builder *b, const struct weight *w, uint32_t r)
{
    struct cut c = whole(w);
    c.rows = b->shard->vocab[r];
    return c;
}

/* A fused op's slots, and the order in which their tensors stand in the file. */
static void add_slots(struct builder *b, struct op *o, const struct weight *slot0, const struct weight *slot1,
                      struct cut (*cut)(struct builder *, const struct weight *, uint32_t))
{
    add_weight(b, o, slot0, cut);
    add_weight(b, o, slot1, cut);
    bool swapped = slot0->t != NULL && slot1->t != NULL && slot1->t->ordinal < slot0->t->ordinal;
    o->file_slot[0] = swapped ? 1 : 0;
    o->file_slot[1] = swapped ? 0 : 1;
}

static void add_norm(struct builder *b, const char *site, struct op_ref in, struct op_ref out, const struct weight *w)
{
    struct op *o = add_op(b, OP_RMSNORM, "%s", site);
    o->in[0] = in;
    o->out[0] = out;
    add_weight(b, o, w, NULL);
}

static struct op *add_linear(struct builder *b, const char *site, struct op_ref in, struct op_ref out, const struct weight *w,
                             struct cut (*cut)(struct builder *, const struct weight *, uint32_t))
{
    struct op *o = add_op(b, OP_LINEAR, "%s", site);
    o->in[0] = in;
    o->out[0] = out;
    add_weight(b, o, w, cut);
    return o;
}

/* Sum BUF_A over the ranks and add it to the residual stream. */
static void add_reduce(struct builder *b, const char *where)
{
    struct op *o = add_op(b, OP_ALLREDUCE, "%s.allreduce", where);
    o->in[0] = ref(BUF_A, OP_PARTIAL);
    o->out[0] = ref(BUF_A, OP_REPLICATED);
    o = add_op(b, OP_ADD, "%s.residual", where);
    o->in[0] = ref(BUF_A, OP_REPLICATED);
    o->out[0] = ref(BUF_X, OP_REPLICATED);
}

/* Shared layers reuse the selection that the last full layer left in BUF_ISEL. */
static void plan_indexer(struct builder *b, const struct weight *w)
{
    const struct hparams *hp = b->hp;
    if (!b->p->sparse || !hp->index_full[b->layer])
        return;
    add_linear(b, "attn.index.q", ref(BUF_QR, OP_REPLICATED), ref(BUF_IQ, OP_REPLICATED), &w[W_INDEX_Q_B], NULL);
    struct op *o = add_op(b, OP_INDEX_Q, "attn.index.q_rope");
    o->in[0] = o->out[0] = ref(BUF_IQ, OP_REPLICATED);
    add_linear(b, "attn.index.k", ref(BUF_H, OP_REPLICATED), ref(BUF_IK, OP_REPLICATED), &w[W_INDEX_K], NULL);
    o = add_op(b, OP_INDEX_STORE, "attn.index.store");
    o->in[0] = o->out[0] = ref(BUF_IK, OP_REPLICATED);
    add_weight(b, o, &w[W_INDEX_K_NORM], NULL);
    add_weight(b, o, &w[W_INDEX_K_NORM_B], NULL);
    add_linear(b, "attn.index.weights", ref(BUF_H, OP_REPLICATED), ref(BUF_IW, OP_REPLICATED), &w[W_INDEX_PROJ], NULL);
    o = add_op(b, OP_INDEX_SCORES, "attn.index.scores");
    o->in[0] = ref(BUF_IQ, OP_REPLICATED);
    o->in[1] = ref(BUF_IW, OP_REPLICATED);
    o->out[0] = ref(BUF_ISCORE, OP_REPLICATED);
    o = add_op(b, OP_INDEX_TOPK, "attn.index.topk");
    o->in[0] = ref(BUF_ISCORE, OP_REPLICATED);
    o->out[0] = ref(BUF_ISEL, OP_REPLICATED);
}

static void plan_attention(struct builder *b, const struct weight *w)
{
    const struct hparams *hp = b->hp;
    uint32_t kv = hp->kv_lora + hp->rope;
    add_norm(b, "attn.norm", ref(BUF_X, OP_REPLICATED), ref(BUF_H, OP_REPLICATED), &w[W_ATTN_NORM]);
    struct op *o = add_op(b, OP_QKV_A, "attn.qkv_a");
    o->in[0] = ref(BUF_H, OP_REPLICATED);
    o->out[0] = ref(BUF_Z, OP_REPLICATED);
    add_slots(b, o, &w[W_Q_A], &w[W_KV_A], NULL);
    if (hp->q_lora != 0) {
        add_norm(b, "attn.q_norm", part(BUF_Z, OP_REPLICATED, 0, hp->q_lora), ref(BUF_QR, OP_REPLICATED), &w[W_Q_A_NORM]);
        add_linear(b, "attn.q_b", ref(BUF_QR, OP_REPLICATED), ref(BUF_Q, OP_SHARDED), &w[W_Q_B], by_head_rows);
    } else {
        add_linear(b, "attn.q", ref(BUF_H, OP_REPLICATED), ref(BUF_Q, OP_SHARDED), &w[W_Q], by_head_rows);
    }
    o = add_op(b, OP_ROPE_Q, "attn.q_rope");
    o->in[0] = o->out[0] = ref(BUF_Q, OP_SHARDED);
    o = add_op(b, OP_KV_STORE, "attn.kv_store");
    o->in[0] = o->out[0] = part(BUF_Z, OP_REPLICATED, hp->q_lora, kv);
    add_weight(b, o, &w[W_KV_A_NORM], NULL);
    plan_indexer(b, w);
    o = add_op(b, OP_MLA, "attn.mla");
    o->in[0] = ref(BUF_Q, OP_SHARDED);
    o->out[0] = ref(BUF_O, OP_SHARDED);
    if (b->p->sparse)
        o->in[1] = ref(BUF_ISEL, OP_REPLICATED);
    add_weight(b, o, &w[W_K_B], by_head_mats);
    add_weight(b, o, &w[W_V_B], by_head_mats);
    add_linear(b, "attn.out", ref(BUF_O, OP_SHARDED), ref(BUF_A, OP_PARTIAL), &w[W_ATTN_OUT], by_head_cols);
    add_reduce(b, "attn");
}

static void plan_gated(struct builder *b, const char *where, const struct weight *gate, const struct weight *up, const struct weight *down, bool accumulate)
{
    struct op *o = add_op(b, OP_GATE_UP, "%s.gate_up", where);
    o->in[0] = ref(BUF_H, OP_REPLICATED);
    o->out[0] = ref(BUF_GU, OP_SHARDED);
    add_slots(b, o, gate, up, by_ff_rows);
    o = add_op(b, OP_SILU_MUL, "%s.act", where);
    o->in[0] = ref(BUF_GU, OP_SHARDED);
    o->out[0] = ref(BUF_ACT, OP_SHARDED);
    char site[OP_SITE_MAX];
    snprintf(site, sizeof site, "%s.down", where);
    o = add_linear(b, site, ref(BUF_ACT, OP_SHARDED), ref(BUF_A, OP_PARTIAL), down, by_ff_cols);
    o->accumulate = accumulate;
}

static void plan_moe(struct builder *b, const struct weight *w)
{
    struct op *o = add_op(b, OP_ROUTER, "ffn.router");
    o->in[0] = ref(BUF_H, OP_REPLICATED);
    o->out[0] = ref(BUF_ROUTER, OP_REPLICATED);
    o->out[1] = ref(BUF_CHOICE, OP_REPLICATED);
    add_weight(b, o, &w[W_ROUTER], NULL);
    add_weight(b, o, &w[W_ROUTER_BIAS], NULL);
    o = add_op(b, OP_MOE_GATE_UP, "ffn.exps.gate_up");
    o->in[0] = ref(BUF_H, OP_REPLICATED);
    o->in[1] = ref(BUF_CHOICE, OP_REPLICATED);
    o->out[0] = ref(BUF_MGU, OP_SHARDED);
    o->per_pair = true;
    add_slots(b, o, &w[W_GATE_EXPS], &w[W_UP_EXPS], by_expert_rows);
    o = add_op(b, OP_MOE_SILU_MUL, "ffn.exps.act");
    o->in[0] = ref(BUF_MGU, OP_SHARDED);
    o->out[0] = ref(BUF_MACT, OP_SHARDED);
    o->per_pair = true;
    o = add_op(b, OP_MOE_DOWN, "ffn.exps.down");
    o->in[0] = ref(BUF_MACT, OP_SHARDED);
    o->in[1] = ref(BUF_CHOICE, OP_REPLICATED);
    o->out[0] = ref(BUF_A, OP_PARTIAL);
    add_weight(b, o, &w[W_DOWN_EXPS], by_expert_cols);
    if (w[W_GATE_SHEXP].data != NULL)
        plan_gated(b, "ffn.shexp", &w[W_GATE_SHEXP], &w[W_UP_SHEXP], &w[W_DOWN_SHEXP], true);
}

static void plan_layer(struct builder *b, uint32_t layer)
{
    const struct layer_weights *lw = &b->w->layers[layer];
    b->layer = (int)layer;
    plan_attention(b, lw->w);
    add_norm(b, "ffn.norm", ref(BUF_X, OP_REPLICATED), ref(BUF_H, OP_REPLICATED), &lw->w[W_FFN_NORM]);
    if (lw->moe)
        plan_moe(b, lw->w);
    else
        plan_gated(b, "ffn", &lw->w[W_FFN_GATE], &lw->w[W_FFN_UP], &lw->w[W_FFN_DOWN], false);
    add_reduce(b, "ffn");
    b->layer = -1;
}

static void plan_embed(struct builder *b, const struct weight *embed, enum op_buf to)
{
    struct op *o = add_op(b, OP_EMBED, "embed");
    o->out[0] = ref(to, OP_PARTIAL);
    add_weight(b, o, embed, by_vocab_rows);
    o = add_op(b, OP_ALLREDUCE, "embed.allreduce");
    o->in[0] = ref(to, OP_PARTIAL);
    o->out[0] = ref(to, OP_REPLICATED);
}

static void plan_output(struct builder *b, const struct weight *norm, const struct weight *head)
{
    struct op *o = add_op(b, OP_PICK_ROWS, "output.rows");
    o->in[0] = ref(BUF_X, OP_REPLICATED);
    o->out[0] = ref(BUF_Y, OP_REPLICATED);
    add_norm(b, "output.norm", ref(BUF_Y, OP_REPLICATED), ref(BUF_Y, OP_REPLICATED), norm);
    add_linear(b, "output.head", ref(BUF_Y, OP_REPLICATED), ref(BUF_LOGITS, OP_SHARDED), head, by_vocab_rows);
    o = add_op(b, OP_GATHER, "output.gather");
    o->in[0] = ref(BUF_LOGITS, OP_SHARDED);
    o->out[0] = ref(BUF_FULL, OP_REPLICATED);
}

/* The NextN block: x = eh_proj [enorm(embedding) ; hnorm(hidden)], one decoder layer, head. Replicated projection: one all-reduce fewer. */
static void plan_nextn(struct builder *b, uint32_t layer)
{
    const struct layer_weights *lw = &b->w->layers[layer];
    uint32_t e = b->hp->n_embd;
    const struct weight *last = lw->w[W_HEAD_NORM].data != NULL ? &lw->w[W_HEAD_NORM] : &b->w->output_norm;
    struct op *o = add_op(b, OP_HIDDEN, "hidden"); /* first of all: BUF_X still holds what the step before left there */
    o->in[0] = ref(BUF_X, OP_REPLICATED);
    o->out[0] = ref(BUF_HID, OP_REPLICATED);
    add_weight(b, o, &b->w->output_norm, NULL);
    add_weight(b, o, last, NULL);
    plan_embed(b, lw->w[W_EMBED].data != NULL ? &lw->w[W_EMBED] : &b->w->embed, BUF_E);
    b->layer = (int)layer;
    add_norm(b, "nextn.enorm", ref(BUF_E, OP_REPLICATED), part(BUF_CAT, OP_REPLICATED, 0, e), &lw->w[W_ENORM]);
    add_norm(b, "nextn.hnorm", ref(BUF_HID, OP_REPLICATED), part(BUF_CAT, OP_REPLICATED, e, e), &lw->w[W_HNORM]);
    add_linear(b, "nextn.eh_proj", ref(BUF_CAT, OP_REPLICATED), ref(BUF_X, OP_REPLICATED), &lw->w[W_EH_PROJ], NULL);
    plan_layer(b, layer);
    plan_output(b, last, lw->w[W_HEAD].data != NULL ? &lw->w[W_HEAD] : &b->w->output);
}

static void plan_widths(struct program *p)
{
    const struct hparams *hp = p->hp;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        uint32_t ff = 0, ffx = 0, heads = 0;
        for (uint32_t i = 0; i < p->shard->n_layers; i++) {
            const struct shard_layer *s = shard_of(p->shard, i, r);
            uint32_t f = s->ff.to - s->ff.from, g = s->shared.to - s->shared.from, x = s->ff_exp.to - s->ff_exp.from, h = s->heads.to - s->heads.from;
            ff = f > ff ? f : ff;
            ff = g > ff ? g : ff;
            ffx = x > ffx ? x : ffx;
            heads = h > heads ? h : heads;
        }
        const struct { enum op_buf b; uint32_t n; } t[] = {
            {BUF_X, hp->n_embd}, {BUF_H, hp->n_embd}, {BUF_Z, hp->q_lora + hp->kv_lora + hp->rope}, {BUF_QR, hp->q_lora},
            {BUF_Q, heads * hp->k_mla}, {BUF_O, heads * hp->v_head}, {BUF_A, hp->n_embd}, {BUF_GU, 2 * ff}, {BUF_ACT, ff},
            {BUF_ROUTER, hp->n_experts}, {BUF_CHOICE, 2 * hp->n_used}, {BUF_MGU, 2 * ffx}, {BUF_MACT, ffx},
            {BUF_IQ, hp->index_heads * hp->index_dim}, {BUF_IK, hp->index_dim}, {BUF_IW, hp->index_heads},
            {BUF_ISCORE, p->sparse ? p->max_keys : 0}, {BUF_ISEL, p->sparse ? hp->index_topk + 1 : 0}, {BUF_E, hp->n_nextn ? hp->n_embd : 0}, {BUF_HID, hp->n_nextn ? hp->n_embd : 0},
            {BUF_CAT, hp->n_nextn ? 2 * hp->n_embd : 0}, {BUF_Y, hp->n_embd},
            {BUF_LOGITS, p->shard->vocab[r].to - p->shard->vocab[r].from}, {BUF_FULL, hp->vocab},
        };
        for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
            p->width[t[i].b][r] = t[i].n;
    }
}

enum rs_result plan_build(const struct hparams *hp, const struct weights *w, const struct shard_plan *shard, enum plan_which which, uint32_t max_keys,
                          struct program *out, struct rs_error *err)
{
    enum { OPS_PER_LAYER = 40, VIEWS_PER_LAYER = 40 }; /* more than any layer has */
    memset(out, 0, sizeof *out);
    struct builder b = {.hp = hp, .w = w, .shard = shard, .p = out, .layer = -1};
    uint32_t layers = which == PLAN_MAIN ? hp->n_layers : 1;
    b.cap_ops = 16 + layers * OPS_PER_LAYER;
    b.cap_views = 16 + layers * VIEWS_PER_LAYER;
    out->which = which;
    out->max_keys = max_keys;
    out->sparse = which == PLAN_MAIN && hp->index_heads != 0 && hp->q_lora != 0 && max_keys > hp->index_topk && w->layers[0].w[W_INDEX_K].data != NULL;
    out->n_ranks = shard->n_ranks;
    out->hp = hp;
    out->shard = shard;
    out->ops = calloc(b.cap_ops, sizeof *out->ops);
    out->views = calloc((size_t)b.cap_views * out->n_ranks, sizeof *out->views);
    if (out->ops == NULL || out->views == NULL) {
        plan_free(out);
        return error_set(err, RS_ENOMEM, "out of memory for the program");
    }
    if (which == PLAN_MAIN) {
        plan_embed(&b, &w->embed, BUF_X);
        for (uint32_t i = 0; i < hp->n_layers; i++)
            plan_layer(&b, i);
        plan_output(&b, &w->output_norm, &w->output);
    } else {
        plan_nextn(&b, hp->n_layers);
    }
    plan_widths(out);
    for (uint32_t r = 1; r < out->n_ranks; r++) /* close the gap between capacity and count */
        memmove(&out->views[(size_t)r * out->n_views], &out->views[(size_t)r * b.cap_views], out->n_views * sizeof *out->views);
    return RS_OK;
}

void plan_free(struct program *p)
{
    free(p->ops);
    free(p->views);
    memset(p, 0, sizeof *p);
}

uint32_t plan_ref_width(const struct program *p, const struct op *o, const struct op_ref *r, uint32_t rank)
{
    if (r->buf == BUF_NONE || r->width != 0 || o->layer < 0)
        return r->buf == BUF_NONE ? 0 : r->width != 0 ? r->width : p->width[r->buf][rank];
    const struct shard_layer *s = shard_of(p->shard, (uint32_t)o->layer, rank);
    uint32_t ff = s->ff.to - s->ff.from + s->shared.to - s->shared.from, exp = s->ff_exp.to - s->ff_exp.from; /* one of ff and shared is empty */
    uint32_t heads = s->heads.to - s->heads.from;
    switch (r->buf) {
    case BUF_Q: return heads * p->hp->k_mla;
    case BUF_O: return heads * p->hp->v_head;
    case BUF_GU: return 2 * ff;
    case BUF_ACT: return ff;
    case BUF_MGU: return 2 * exp;
    case BUF_MACT: return exp;
    default: return p->width[r->buf][rank];
    }
}

const struct op *plan_find(const struct program *p, const char *site)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (strcmp(p->ops[i].site, site) == 0)
            return &p->ops[i];
    return NULL;
}

bool plan_glob(const char *glob, const char *site)
{
    const char *star = NULL, *back = NULL;
    while (*site != '\0') {
        if (*glob == '*') {
            star = glob++;
            back = site;
        } else if (*glob == '?' || *glob == *site) {
            glob++;
            site++;
        } else if (star != NULL) {
            glob = star + 1;
            site = ++back;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return *glob == '\0';
}
