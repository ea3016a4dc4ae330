/* CPU: attention. The cache holds latent rows [c | k_pe]. Two forms compute the same thing:
 *
 *   absorbed   the query is carried into the latent space (q_abs = k_b^T q_nope), scores are dot products with cached rows, the mixture of
 *              latents is carried out again through v_b. Cheap per query row: the form for generated tokens.
 *   expanded   keys and values of a head are made from the latents once, then shared by all query rows of the chunk. Cheap per row only when
 *              there are many rows: the form for prompts.
 *
 * A row's result depends on its own position and kind alone (fixed order over keys), never on the batch around it. */
#include <string.h>

#include "engine/arith.h"
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

/* y_i = matrix `mat` of a weight times x_i, for n rows; strides in floats. q8: room for n quantised rows. */
static void multiply_head(const struct cpu_call *k, uint32_t slot, uint32_t mat, const float *x, size_t x_stride, uint32_t n, uint8_t *q8, float *y,
                          size_t y_stride)
{
    const struct op_view *v = plan_view(k->prog, k->rank, k->op->w[slot]);
    struct krn_matmul m = {.type = v->type, .w = v->data + mat * v->mat_stride, .packed = cpu_packed(k, slot, mat), .w_stride = v->stride, .k = v->k,
                           .row0 = 0, .row1 = v->rows, .n_cols = n, .y = y, .y_stride = y_stride};
    if (cpu_int8(k->choice, v)) {
        m.x = q8;
        m.x_stride = krn_q8_row_bytes(v->k);
        for (uint32_t i = 0; i < n; i++)
            k->c->mm->quantise_row(x + i * x_stride, q8 + i * m.x_stride, v->k);
        k->c->mm->q8(&m);
    } else {
        m.x = (const uint8_t *)x;
        m.x_stride = x_stride * sizeof *x;
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

enum { HEADS_TOGETHER = 4, ROWS_TOGETHER = 8, TOGETHER_BYTES = 320 << 10 };

/* With fewer heads the conversion of cached rows to integers costs more than the products save. Whether this worker has them all does not matter:
 * results must not depend on how work is shared out. */
static bool in_integers(const struct cpu_call *k)
{
    const struct cpu *c = k->c;
    const struct shard_range heads = shard_of(c->shard, (uint32_t)k->op->layer, k->rank)->heads;
    return c->vec->attn_absorbed_i16 != NULL && c->lim.cache == KRN_CACHE_F16 && heads.to - heads.from >= KRN_I16_HEADS &&
           c->hp->kv_lora % KRN_I16_UNIT == 0 && c->hp->rope % KRN_I16_UNIT == 0 && arith_wanted(k->prog, k->op, k->choice, k->rank) == ARITH_INT8;
}

static uint32_t heads_together(const struct cpu_call *k)
{
    return in_integers(k) ? KRN_I16_HEADS : HEADS_TOGETHER;
}

/* Absorbed rows that a worker takes together: the two matrices of a head are then read once for all of them. What lies between stays within the
 * second-level cache, beside the rows of one sequence. */
static uint32_t rows_together(const struct hparams *hp)
{
    size_t n = TOGETHER_BYTES / (hp->n_heads * (size_t)(2 * hp->kv_lora + hp->rope) * sizeof(float));
    return n < 1 ? 1 : n > ROWS_TOGETHER ? ROWS_TOGETHER : (uint32_t)n;
}

struct absorb_scratch {
    float *q, *latent, *scores; /* [row][head][l + r], [row][head][l], [HEADS_TOGETHER][keys] or what integers need */
    uint8_t *q8;                /* one vector of each row */
};

static size_t lay_absorb(const struct hparams *hp, uint32_t n_keys, uint8_t *base, struct absorb_scratch *s)
{
    const size_t longest = hp->kv_lora > hp->nope ? hp->kv_lora : hp->nope, keys = ((size_t)n_keys + 15) / 16 * 16, n = rows_together(hp);
    const size_t q = n * hp->n_heads * (hp->kv_lora + hp->rope) * sizeof(float), latent = n * hp->n_heads * hp->kv_lora * sizeof(float);
    size_t at = 0;
    s->q = (float *)(void *)base;
    at += (q + 63) / 64 * 64;
    s->latent = (float *)(void *)(base + at);
    at += (latent + 63) / 64 * 64;
    s->q8 = base + at;
    at += n * krn_q8_row_bytes((longest + 31) / 32 * 32);
    at = (at + 63) / 64 * 64;
    s->scores = (float *)(void *)(base + at);
    const size_t scores = HEADS_TOGETHER * keys * sizeof(float), integers = krn_attn_i16_bytes(hp->kv_lora + hp->rope);
    return at + (scores > integers ? scores : integers);
}

/* An absorbed row, and the segment after its own if it is the last of its own; else NULL. */
struct absorb_row {
    size_t row;
    const struct batch_seg *next;
};

/* Heads h0 .. h0 + nh - 1 of n rows. */
static void absorbed_rows(const struct cpu_call *k, const struct absorb_row *rows, uint32_t n, uint32_t h0, uint32_t nh)
{
    const struct hparams *hp = k->c->hp;
    const size_t l = hp->kv_lora, d = l + hp->rope, in_stride = k->prog->width[BUF_Q][k->rank], out_stride = k->prog->width[BUF_O][k->rank];
    const float *in = cpu_at(k, &k->op->in[0], rows[0].row);
    float *out = cpu_at(k, &k->op->out[0], rows[0].row);
    const uint32_t together = heads_together(k);
    struct absorb_scratch s;
    lay_absorb(hp, 0, k->c->scratch[k->worker], &s);
    for (uint32_t h = 0; h < nh; h++) {
        const float *qh = in + (size_t)(h0 + h) * hp->k_mla;
        multiply_head(k, 0, h0 + h, qh, in_stride, n, s.q8, s.q + h * d, nh * d);
        for (uint32_t i = 0; i < n; i++)
            memcpy(s.q + (i * nh + h) * d + l, qh + i * in_stride + hp->nope, hp->rope * sizeof(float));
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < nh; h += together) {
            struct krn_attn_absorbed a = {.kv = pages(k, seg_of(k->b, rows[i].row)->table), .l = hp->kv_lora, .r = hp->rope,
                                          .n_heads = nh - h < together ? nh - h : together, .n_keys = (uint32_t)k->b->pos[rows[i].row] + 1,
                                          .scale = hp->kq_scale, .q = s.q + (i * nh + h) * d, .out = s.latent + (i * nh + h) * l, .scores = s.scores};
            a.sel = selection(k, rows[i].row, &a.n_sel);
            if (rows[i].next != NULL) {
                a.next = pages(k, rows[i].next->table);
                a.n_next = rows[i].next->pos0 + 1;
                a.part = h / together;
                a.parts = (nh + together - 1) / together;
            }
            (together == KRN_I16_HEADS ? k->c->vec->attn_absorbed_i16 : k->c->vec->attn_absorbed)(&a);
        }
    for (uint32_t h = 0; h < nh; h++)
        multiply_head(k, 1, h0 + h, s.latent + h * l, nh * l, n, s.q8, out + (size_t)(h0 + h) * hp->v_head, out_stride);
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

/* new_head: its matrix is not yet in the scratch, where it stays for the next segments. */
static void expanded_item(const struct cpu_call *k, const struct batch_seg *g, uint32_t h, bool new_head)
{
    const struct hparams *hp = k->c->hp;
    struct expand_scratch s;
    uint32_t n_keys = g->pos0 + g->n_rows;
    lay_expand(k->c, n_keys, k->c->scratch[k->worker], &s);
    if (new_head)
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

/* The first segment of the form wanted, from g on; n_segs if there is none. */
static uint32_t next_seg(const struct batch *b, uint32_t g, enum form form, bool expanded)
{
    while (g < b->n_segs && is_expanded(&b->segs[g], form) != expanded)
        g++;
    return g;
}

static uint32_t next_absorbed(const struct batch *b, uint32_t g, enum form form)
{
    return next_seg(b, g, form, false);
}

static size_t count_rows(const struct batch *b, enum form form)
{
    size_t n = 0;
    for (uint32_t g = next_absorbed(b, 0, form); g < b->n_segs; g = next_absorbed(b, g + 1, form))
        n += b->segs[g].n_rows;
    return n;
}

/* Absorbed rows one after the other. */
struct absorb_walk {
    const struct batch *b;
    enum form form;
    uint32_t seg, at; /* the next row: `at` of segment `seg` */
};

static void skip_rows(struct absorb_walk *w, size_t n)
{
    for (w->seg = next_absorbed(w->b, w->seg, w->form); w->seg < w->b->n_segs && n >= w->b->segs[w->seg].n_rows - w->at;
         w->seg = next_absorbed(w->b, w->seg + 1, w->form)) {
        n -= w->b->segs[w->seg].n_rows - w->at;
        w->at = 0;
    }
    w->at += (uint32_t)n;
}

/* The next rows, at most n and side by side in the buffers; returns how many. */
static uint32_t take_rows(struct absorb_walk w, uint32_t n, struct absorb_row *out)
{
    uint32_t got = 0;
    while (got < n && w.seg < w.b->n_segs) {
        const struct batch_seg *g = &w.b->segs[w.seg];
        if (got > 0 && out[got - 1].row + 1 != g->row0 + w.at)
            break;
        out[got] = (struct absorb_row){.row = g->row0 + w.at};
        if (++w.at == g->n_rows) {
            w.seg = next_absorbed(w.b, w.seg + 1, w.form);
            w.at = 0;
            out[got].next = w.seg < w.b->n_segs ? &w.b->segs[w.seg] : NULL;
        }
        got++;
    }
    return got;
}

/* What an absorbed row costs for a head, in keys: the keys it looks at, and the products with its two matrices. */
static uint64_t row_work(const struct cpu_call *k, size_t row)
{
    const struct hparams *hp = k->c->hp;
    uint64_t keys = (uint64_t)k->b->pos[row] + 1, matrices = (uint64_t)(hp->nope + hp->v_head) * hp->kv_lora / (2 * hp->kv_lora + hp->rope);
    if (k->op->in[1].buf == BUF_ISEL && !k->choice->dense && keys > hp->index_topk)
        keys = hp->index_topk;
    return keys + matrices;
}

static uint64_t all_work(const struct cpu_call *k, enum form form)
{
    uint64_t sum = 0;
    for (uint32_t g = next_absorbed(k->b, 0, form); g < k->b->n_segs; g = next_absorbed(k->b, g + 1, form))
        for (uint32_t i = 0; i < k->b->segs[g].n_rows; i++)
            sum += row_work(k, k->b->segs[g].row0 + i);
    return sum;
}

/* Where a share begins: the items before it make up part / of of the work, as nearly as whole items can. Sequences of a batch may be of very different
 * lengths, and a step waits for whoever has most to do. A function of what all workers know alike. */
static size_t share_begins(const struct cpu_call *k, enum form form, uint32_t groups, uint64_t work, uint32_t part)
{
    const uint64_t wanted = work * groups * part / k->of;
    uint64_t before = 0;
    size_t items = 0;
    for (uint32_t g = next_absorbed(k->b, 0, form); g < k->b->n_segs; g = next_absorbed(k->b, g + 1, form))
        for (uint32_t i = 0; i < k->b->segs[g].n_rows; i++) {
            const uint64_t each = row_work(k, k->b->segs[g].row0 + i);
            if (before + each * groups > wanted)
                return items + (size_t)((2 * (wanted - before) + each) / (2 * each));
            before += each * groups;
            items += groups;
        }
    return items;
}

/* An item is a few heads of a row: four or eight, or fewer where rows are so few that workers would have nothing to do. */
static void run_absorbed(const struct cpu_call *k, enum form form, uint32_t heads)
{
    struct absorb_walk w = {.b = k->b, .form = form};
    const size_t n_rows = count_rows(k->b, form);
    uint32_t per = (heads + k->c->n_workers - 1) / k->c->n_workers, most = rows_together(k->c->hp);
    const uint32_t together = heads_together(k);
    per = per > together || n_rows >= (size_t)k->c->n_workers * ROWS_TOGETHER ? together : per < 1 ? 1 : per;
    const uint32_t groups = (heads + per - 1) / per;
    const uint64_t work = k->hi - k->lo < k->of ? all_work(k, form) : 0;
    size_t at = k->lo == 0 ? 0 : share_begins(k, form, groups, work, k->lo);
    const size_t to = k->hi == k->of ? n_rows * groups : share_begins(k, form, groups, work, k->hi);
    skip_rows(&w, at / groups);
    while (at < to) {
        struct absorb_row rows[ROWS_TOGETHER];
        const uint32_t g0 = (uint32_t)(at % groups), left = to - at < groups - g0 ? (uint32_t)(to - at) : groups - g0;
        const size_t whole = g0 == 0 ? (to - at) / groups : 0; /* the first and the last row may be shared with other workers */
        const uint32_t n = take_rows(w, whole < 1 ? 1 : whole < most ? (uint32_t)whole : most, rows), h0 = g0 * per;
        const uint32_t h1 = (g0 + left) * per < heads ? (g0 + left) * per : heads;
        absorbed_rows(k, rows, n, h0, h1 - h0);
        at += (size_t)n * left;
        if (g0 + left == groups)
            skip_rows(&w, n);
    }
}

/* An item is a head of a segment, head after head: what is made of a head's weights serves all segments. */
static void run_expanded(const struct cpu_call *k, enum form form, uint32_t heads)
{
    size_t segs = 0, from, to;
    for (uint32_t g = next_seg(k->b, 0, form, true); g < k->b->n_segs; g = next_seg(k->b, g + 1, form, true))
        segs++;
    cpu_cut(k, segs * heads, 1, &from, &to);
    for (size_t at = from; at < to;) {
        size_t nth = 0, skip = at % segs;
        const uint32_t h = (uint32_t)(at / segs);
        for (uint32_t g = next_seg(k->b, 0, form, true); g < k->b->n_segs && at < to; g = next_seg(k->b, g + 1, form, true))
            if (nth++ >= skip) {
                expanded_item(k, &k->b->segs[g], h, nth == skip + 1);
                at++;
            }
    }
}

/* Each form is shared out evenly by itself. */
static void run_mla(const struct cpu_call *k, enum form form)
{
    const struct shard_layer *s = shard_of(k->c->shard, (uint32_t)k->op->layer, k->rank);
    const uint32_t heads = s->heads.to - s->heads.from;
    if (heads == 0)
        return;
    run_expanded(k, form, heads);
    run_absorbed(k, form, heads);
}

static void run_mla_auto(const struct cpu_call *k) { run_mla(k, FORM_AUTO); }
static void run_mla_absorbed(const struct cpu_call *k) { run_mla(k, FORM_ABSORBED); }
static void run_mla_expanded(const struct cpu_call *k) { run_mla(k, FORM_EXPANDED); }

size_t cpu_attn_scratch(const struct cpu *c, uint32_t n_keys, bool expanded)
{
    struct absorb_scratch as;
    struct expand_scratch es;
    size_t a = lay_absorb(c->hp, n_keys, NULL, &as), e = expanded ? lay_expand(c, n_keys, NULL, &es) : 0;
    return a > e ? a : e;
}

const struct cpu_launch CPU_KV_STORE = {one_phase, run_kv_store}, CPU_MLA_AUTO = {one_phase, run_mla_auto}, CPU_MLA_ABSORBED = {one_phase, run_mla_absorbed},
                        CPU_MLA_EXPANDED = {one_phase, run_mla_expanded};
