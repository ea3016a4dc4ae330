/* CPU: attention. The cache holds latent rows [c | k_pe]. Two forms compute the same thing:
 *
 *   absorbed   the query is carried into the latent space (q_abs = k_b^T q_nope), scores are dot products with cached rows, the mixture of
 *              latents is carried out again through v_b. Cheap per query row: the form for generated tokens.
 *   expanded   keys and values of a head are made from the latents once, then shared by all query rows of the chunk. Cheap per row only when
 *              there are many rows: the form for prompts.
 *
 * A row's result depends on its own position and kind alone (fixed order over keys), never on the batch around it. */
#include <string.h>

#include "engine/cpu.h"
#include "kernels/quant.h"
#include "kernels/type.h"

static uint32_t one_phase(const struct cpu *c, const struct op *op, const struct choice *ch, uint32_t bucket)
{
    (void)c, (void)op, (void)ch, (void)bucket;
    return 1;
}

static const struct batch_seg *seg_of(const struct batch *b, size_t row)
{
    return &b->segs[b->seg[row]];
}

static void run_kv_store(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const struct hparams *hp = c->hp;
    const float *norm = (const float *)(const void *)plan_view(k->prog, k->rank, k->op->w[0])->data;
    size_t from, to;
    cpu_cut(k, k->b->n_rows, 1, &from, &to);
    for (size_t i = from; i < to; i++) {
        float *z = cpu_at(k, &k->op->in[0], i);
        uint32_t pos = (uint32_t)k->b->pos[i], half = hp->rope / 2;
        const int32_t block = seg_of(k->b, i)->table[pos / c->lim.block];
        uint8_t *dst = c->rank[k->rank].kv[k->op->layer] + ((size_t)block * c->lim.block + pos % c->lim.block) * c->kv_row_bytes;
        c->vec->rmsnorm(z, norm, hp->eps, z, hp->kv_lora);
        c->vec->rope(z + hp->kv_lora, c->rope_cos + (size_t)pos * half, c->rope_sin + (size_t)pos * half, half, true);
        c->vec->store(c->lim.cache, z, dst, hp->kv_lora + hp->rope);
    }
}

static struct krn_pages pages(const struct cpu_call *k, const int32_t *table)
{
    const struct cpu *c = k->c;
    return (struct krn_pages){.base = c->rank[k->rank].kv[k->op->layer], .table = table, .block_stride = c->lim.block * c->kv_row_bytes,
                              .row_bytes = c->kv_row_bytes, .block = c->lim.block, .type = c->lim.cache};
}

static void multiply_one(const struct cpu_call *k, uint32_t slot, uint32_t mat, const float *x, uint8_t *q8, float *y)
{
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[slot]);
    struct krn_matmul m = {.type = v->type, .w = v->data + mat * v->mat_stride, .packed = cpu_packed(k, slot, mat),
                           .w_stride = v->stride, .k = v->k, .row0 = 0, .row1 = v->rows, .n_cols = 1, .y = y};
    if (cpu_int8(k->choice, v)) {
        k->c->mm->quantise_row(x, q8, v->k);
        m.x = q8;
        k->c->mm->q8(&m);
    } else {
        m.x = (const uint8_t *)x;
        k->c->mm->f32(&m);
    }
}

/* Positions that row i may look at, or NULL for all (no indexer, dense, or too few keys to choose from). */
static const int32_t *selection(const struct cpu_call *k, size_t row, uint32_t *n)
{
    const struct op_ref *r = &k->op->in[1];
    if (r->buf != BUF_ISEL || k->choice->dense || (uint32_t)k->b->pos[row] + 1 <= k->c->hp->index_topk)
        return NULL;
    const int32_t *sel = (const int32_t *)(const void *)cpu_at(k, r, row);
    if (sel[0] <= 0)
        return NULL;
    *n = (uint32_t)sel[0];
    return sel + 1;
}

/* Scratch: [q: heads x (l + r)] [latent out: heads x l] [q8 of one vector] [scores: 4 x keys] */
static void absorbed_item(const struct cpu_call *k, size_t row, uint32_t h0, uint32_t nh, const struct batch_seg *next)
{
    const struct hparams *hp = k->c->hp;
    uint32_t d = hp->kv_lora + hp->rope;
    float *q = (float *)(void *)k->c->scratch[k->worker], *latent = q + (size_t)4 * d;
    uint8_t *q8 = (uint8_t *)(latent + (size_t)4 * hp->kv_lora);
    q8 += (64 - (uintptr_t)q8 % 64) % 64;
    size_t longest = hp->kv_lora > hp->nope ? hp->kv_lora : hp->nope;
    float *scores = (float *)(void *)(q8 + krn_q8_row_bytes((longest + 31) / 32 * 32));
    const float *in = cpu_at(k, &k->op->in[0], row);
    for (uint32_t h = 0; h < nh; h++) {
        const float *qh = in + (size_t)(h0 + h) * hp->k_mla;
        multiply_one(k, 0, h0 + h, qh, q8, q + (size_t)h * d);
        memcpy(q + (size_t)h * d + hp->kv_lora, qh + hp->nope, hp->rope * sizeof(float));
    }
    struct krn_attn_absorbed a = {.kv = pages(k, seg_of(k->b, row)->table), .l = hp->kv_lora, .r = hp->rope, .n_heads = nh,
                                  .n_keys = (uint32_t)k->b->pos[row] + 1, .scale = hp->kq_scale, .q = q, .out = latent, .scores = scores};
    a.sel = selection(k, row, &a.n_sel);
    if (next != NULL) {
        a.next = pages(k, next->table);
        a.n_next = next->pos0 + 1;
    }
    k->c->vec->attn_absorbed(&a);
    for (uint32_t h = 0; h < nh; h++)
        multiply_one(k, 1, h0 + h, latent + (size_t)h * hp->kv_lora, q8, cpu_at(k, &k->op->out[0], row) + (size_t)(h0 + h) * hp->v_head);
}

struct expand_scratch {
    float *b, *keys, *values, *tmp, *scores, *row;
    const int32_t **sel;
    uint32_t *n_sel;
};

static size_t lay_expand(const struct cpu *c, uint32_t n_keys, uint8_t *base, struct expand_scratch *s)
{
    const struct hparams *hp = c->hp;
    size_t keys = ((size_t)n_keys + KRN_KEY_TILE - 1) / KRN_KEY_TILE * KRN_KEY_TILE, n = hp->nope + hp->v_head, at = 0;
    const size_t sizes[] = {hp->kv_lora * n, keys * hp->k_mla, keys * hp->v_head, KRN_KEY_TILE * (hp->kv_lora + hp->rope + n), 8 * keys, hp->kv_lora};
    float **const parts[] = {&s->b, &s->keys, &s->values, &s->tmp, &s->scores, &s->row};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *parts[i] = (float *)(void *)(base + at);
        at += (sizes[i] * sizeof(float) + 63) / 64 * 64;
    }
    s->sel = (const int32_t **)(void *)(base + at);
    at += c->lim.max_rows * sizeof *s->sel;
    s->n_sel = (uint32_t *)(void *)(base + at);
    return at + c->lim.max_rows * sizeof *s->n_sel;
}

/* The head's k_b (latent x nope) and v_b (v x latent) side by side as f32, latent-major. */
static void head_matrix(const struct cpu_call *k, uint32_t h, const struct expand_scratch *s)
{
    const struct hparams *hp = k->c->hp;
    const struct op_view *kb = plan_view(k->prog, k->rank, k->op->w[0]), *vb = plan_view(k->prog, k->rank, k->op->w[1]);
    size_t n = hp->nope + hp->v_head;
    for (uint32_t c = 0; c < hp->kv_lora; c++)
        k->c->mm->dequant(kb->type, kb->data + h * kb->mat_stride + c * kb->stride, s->b + c * n, hp->nope);
    for (uint32_t j = 0; j < hp->v_head; j++) {
        k->c->mm->dequant(vb->type, vb->data + h * vb->mat_stride + j * vb->stride, s->row, hp->kv_lora);
        for (uint32_t c = 0; c < hp->kv_lora; c++)
            s->b[c * n + hp->nope + j] = s->row[c];
    }
}

static void expanded_item(const struct cpu_call *k, const struct batch_seg *g, uint32_t h)
{
    const struct hparams *hp = k->c->hp;
    struct expand_scratch s;
    uint32_t n_keys = g->pos0 + g->n_rows;
    lay_expand(k->c, n_keys, k->c->scratch[k->worker], &s);
    head_matrix(k, h, &s);
    struct krn_attn_expand e = {.kv = pages(k, g->table), .l = hp->kv_lora, .r = hp->rope, .nope = hp->nope, .v = hp->v_head, .key0 = 0, .key1 = n_keys,
                                .b = s.b, .keys = s.keys, .values = s.values, .tmp = s.tmp};
    k->c->vec->attn_expand(&e);
    struct krn_attn_expanded a = {.keys = s.keys, .values = s.values, .dim = hp->k_mla, .v = hp->v_head, .n_rows = g->n_rows, .pos0 = g->pos0,
                                  .q = cpu_at(k, &k->op->in[0], g->row0) + (size_t)h * hp->k_mla, .q_stride = k->prog->width[BUF_Q][k->rank],
                                  .out = cpu_at(k, &k->op->out[0], g->row0) + (size_t)h * hp->v_head, .out_stride = k->prog->width[BUF_O][k->rank],
                                  .scale = hp->kq_scale, .scores = s.scores};
    bool sparse = false;
    for (uint32_t i = 0; i < g->n_rows; i++) {
        s.sel[i] = selection(k, g->row0 + i, &s.n_sel[i]);
        sparse |= s.sel[i] != NULL;
    }
    if (sparse) {
        a.sel = s.sel;
        a.n_sel = s.n_sel;
    }
    k->c->vec->attn_expanded(&a);
}

enum form { FORM_AUTO, FORM_ABSORBED, FORM_EXPANDED };

static bool is_expanded(const struct batch_seg *g, enum form form)
{
    return form == FORM_EXPANDED || (form == FORM_AUTO && g->kind == BATCH_PROMPT);
}

/* The next segment of an absorbed form, or NULL. */
static const struct batch_seg *next_absorbed(const struct batch *b, uint32_t g, enum form form)
{
    while (++g < b->n_segs && is_expanded(&b->segs[g], form))
        ;
    return g < b->n_segs ? &b->segs[g] : NULL;
}

/* Items are cut by number: a head of an expanded segment is one, up to four heads of an absorbed row are one. */
static void run_mla(const struct cpu_call *k, enum form form)
{
    const struct shard_layer *s = shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank);
    uint32_t heads = s->heads.to - s->heads.from, per = (heads + k->c->n_workers - 1) / k->c->n_workers;
    per = per > 4 ? 4 : per < 1 ? 1 : per;
    uint32_t groups = (heads + per - 1) / per;
    for (int pass = 0; pass < 2 && heads != 0; pass++) { /* expanded items, then absorbed: each kind shared out evenly */
        size_t total = 0, from, to, at = 0;
        for (uint32_t g = 0; g < k->b->n_segs; g++)
            if (is_expanded(&k->b->segs[g], form) == (pass == 0))
                total += pass == 0 ? heads : (size_t)k->b->segs[g].n_rows * groups;
        cpu_cut(k, total, 1, &from, &to);
        for (uint32_t g = 0; g < k->b->n_segs && at < to; g++) {
            const struct batch_seg *seg = &k->b->segs[g];
            if (is_expanded(seg, form) != (pass == 0))
                continue;
            size_t n = pass == 0 ? heads : (size_t)seg->n_rows * groups;
            for (size_t i = from > at ? from - at : 0; i < n && at + i < to; i++) {
                if (pass == 0)
                    expanded_item(k, seg, (uint32_t)i);
                else
                    absorbed_item(k, seg->row0 + i / groups, (uint32_t)(i % groups) * per,
                                  heads - (uint32_t)(i % groups) * per < per ? heads - (uint32_t)(i % groups) * per : per,
                                  i % groups == 0 && i / groups + 1 == seg->n_rows ? next_absorbed(k->b, g, form) : NULL);
            }
            at += n;
        }
    }
}

static void run_mla_auto(const struct cpu_call *k) { run_mla(k, FORM_AUTO); }
static void run_mla_absorbed(const struct cpu_call *k) { run_mla(k, FORM_ABSORBED); }
static void run_mla_expanded(const struct cpu_call *k) { run_mla(k, FORM_EXPANDED); }

size_t cpu_attn_scratch(const struct cpu *c, uint32_t n_keys, bool expanded)
{
    const struct hparams *hp = c->hp;
    struct expand_scratch s;
    size_t longest = hp->kv_lora > hp->nope ? hp->kv_lora : hp->nope, keys = ((size_t)n_keys + 15) / 16 * 16;
    size_t absorbed = (4 * (size_t)(hp->kv_lora + hp->rope) + 4 * (size_t)hp->kv_lora + 4 * keys) * sizeof(float) + 64 + krn_q8_row_bytes((longest + 31) / 32 * 32);
    size_t e = expanded ? lay_expand(c, n_keys, NULL, &s) : 0;
    return absorbed > e ? absorbed : e;
}

const struct cpu_launch CPU_KV_STORE = {one_phase, run_kv_store}, CPU_MLA_AUTO = {one_phase, run_mla_auto}, CPU_MLA_ABSORBED = {one_phase, run_mla_absorbed},
                        CPU_MLA_EXPANDED = {one_phase, run_mla_expanded};
