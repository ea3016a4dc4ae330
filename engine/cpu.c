/* The CPU backend: buffers, caches, the table of implementations. */
#include "engine/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/error.h"
#include "engine/exec.h"
#include "kernels/quant.h"

const struct op_impl CPU_IMPLS[] = {
    {OP_EMBED, "lookup", false, &CPU_EMBED, "rows of this rank's part of the vocabulary, zero for other tokens"},
    {OP_ALLREDUCE, "flat", false, &CPU_ALLREDUCE, "add ranks 0, 1, 2 ... in order"},
    {OP_ALLREDUCE, "tree", false, &CPU_ALLREDUCE, "add pairs, then pairs of pairs"},
    {OP_RMSNORM, "rows", false, &CPU_RMSNORM, "one worker per row"},
    {OP_QKV_A, "fused", false, &CPU_QKV_FUSED, "q_a and kv_a in one pass, joined by slot (or as slot_order says)"},
    {OP_QKV_A, "split", false, &CPU_QKV_SPLIT, "two projections one after the other: no slots to mix up"},
    {OP_LINEAR, "rows", false, &CPU_LINEAR, "weight rows shared out over the workers"},
    {OP_ROPE_Q, "rows", false, &CPU_ROPE_Q, "interleaved pairs"},
    {OP_KV_STORE, "rows", false, &CPU_KV_STORE, "norm, rotate, store"},
    {OP_MLA, "auto", false, &CPU_MLA_AUTO, "prompt rows expanded, generated rows absorbed"},
    {OP_MLA, "absorbed", false, &CPU_MLA_ABSORBED, "scores in the latent space, for every row"},
    {OP_MLA, "expanded", false, &CPU_MLA_EXPANDED, "keys and values made from the latents, for every row"},
    {OP_MLA, "direct", true, &CPU_MLA_ABSORBED, "computes on the spot, outside the recorder: right in eager mode, stale in a graph"},
    {OP_INDEX_Q, "rows", false, &CPU_INDEX_Q, "rotate the indexer's queries"},
    {OP_INDEX_STORE, "rows", false, &CPU_INDEX_STORE, "norm, rotate, store the indexer's key"},
    {OP_INDEX_SCORES, "rows", false, &CPU_INDEX_SCORES, "weighted sum over heads of relu(q . k)"},
    {OP_INDEX_TOPK, "heap", false, &CPU_INDEX_TOPK, "the top_k positions, ties to the lower index"},
    {OP_ADD, "rows", false, &CPU_ADD, "residual"},
    {OP_GATE_UP, "fused", false, &CPU_GATE_UP, "gate and up in one pass, joined by slot (or as slot_order says)"},
    {OP_SILU_MUL, "rows", false, &CPU_SILU_MUL, "silu(gate) * up"},
    {OP_ROUTER, "topk", false, &CPU_ROUTER, "scores, selection, grouping by expert"},
    {OP_MOE_GATE_UP, "grouped", false, &CPU_MOE_GATE_UP, "each chosen expert's weights read once for all its rows"},
    {OP_MOE_SILU_MUL, "rows", false, &CPU_MOE_SILU_MUL, "silu(gate) * up per pair"},
    {OP_MOE_DOWN, "grouped", false, &CPU_MOE_DOWN, "weighted sum over a row's experts, in ascending order of expert"},
    {OP_PICK_ROWS, "copy", false, &CPU_PICK_ROWS, "rows that want logits"},
    {OP_HIDDEN, "normed", false, &CPU_HIDDEN_NORMED, "after the last norm"},
    {OP_HIDDEN, "raw", false, &CPU_HIDDEN_RAW, "before the last norm"},
    {OP_GATHER, "copy", false, &CPU_GATHER, "concatenate the ranks' parts of the vocabulary"},
};
const size_t CPU_N_IMPLS = sizeof CPU_IMPLS / sizeof CPU_IMPLS[0];

const struct op_impl *backend_cpu_impls(size_t *n)
{
    *n = CPU_N_IMPLS;
    return CPU_IMPLS;
}

/* Zeroed, page aligned, on huge pages where the kernel has them: caches and buffers are walked with large strides. */
void *cpu_big_alloc(size_t bytes)
{
    size_t page = bytes >= (2u << 20) ? 2u << 20 : 64;
    void *p = aligned_alloc(page, (bytes + page - 1) / page * page);
    if (p == NULL)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (page > 64)
        madvise(p, bytes, MADV_HUGEPAGE);
#endif
    memset(p, 0, bytes);
    return p;
}

enum { LAZY_BORDER = 64, LAZY_PAGE = 2 << 20 };

/* The address that calloc() gave stands before the memory: calloc() knows which pages are zero already, and leaves them alone. */
void *cpu_lazy_alloc(size_t bytes)
{
    const size_t border = bytes >= LAZY_PAGE ? LAZY_PAGE : LAZY_BORDER;
    uint8_t *own = calloc(1, bytes + border + sizeof own);
    if (own == NULL)
        return NULL;
    uint8_t *p = own + sizeof own;
    p += (border - (uintptr_t)p % border) % border;
#ifdef MADV_HUGEPAGE
    if (border == LAZY_PAGE)
        madvise(p, bytes / LAZY_PAGE * LAZY_PAGE, MADV_HUGEPAGE);
#endif
    memcpy(p - sizeof own, &own, sizeof own);
    return p;
}

void cpu_lazy_free(void *p)
{
    void *own = NULL;
    if (p != NULL)
        memcpy(&own, (uint8_t *)p - sizeof own, sizeof own);
    free(own);
}

static size_t buf_rows(const struct cpu *c, enum op_buf b)
{
    switch (b) {
    case BUF_Y: case BUF_LOGITS: case BUF_FULL: return c->lim.max_logits;
    case BUF_MGU: case BUF_MACT: return (size_t)c->lim.max_rows * c->hp->n_used;
    default: return c->lim.max_rows;
    }
}

static uint32_t buf_width(const struct cpu *c, enum op_buf b, uint32_t r)
{
    uint32_t w = 0;
    for (int i = 0; i < 2; i++)
        if (c->prog[i] != NULL && c->prog[i]->width[b][r] > w)
            w = c->prog[i]->width[b][r];
    return w;
}

static bool alloc_buffers(struct cpu *c, uint32_t r)
{
    for (int b = 1; b < BUF_COUNT; b++) {
        size_t bytes = buf_rows(c, (enum op_buf)b) * buf_width(c, (enum op_buf)b, r) * sizeof(float);
        if (bytes == 0)
            continue;
        if (b == BUF_FULL && r > 0) { /* one buffer for all: the gather is for the host */
            c->rank[r].buf[b] = c->rank[0].buf[b];
            continue;
        }
        c->rank[r].buf[b] = cpu_lazy_alloc(bytes);
        if (c->rank[r].buf[b] == NULL)
            return false;
        c->bytes_buffers += r == 0 ? bytes : 0;
    }
    return true;
}

static size_t shared_q8_bytes(const struct cpu *c)
{
    size_t most = 0;
    for (int which = 0; which < 2; which++)
        for (uint32_t r = 0; c->prog[which] != NULL && r < c->n_ranks; r++)
            for (uint32_t i = 0; i < c->prog[which]->n_ops; i++) {
                const struct op *o = &c->prog[which]->ops[i];
                for (uint32_t s = 0; s < o->n_w; s++) {
                    size_t k = plan_view(c->prog[which], r, o->w[s])->k;
                    size_t rows = o->kind == OP_MOE_DOWN ? (size_t)c->lim.max_rows * c->hp->n_used : c->lim.max_rows;
                    size_t bytes = rows * krn_q8_row_bytes((k + 31) / 32 * 32);
                    most = bytes > most ? bytes : most;
                }
            }
    return most;
}

static bool alloc_cache(struct cpu *c, uint32_t r)
{
    uint32_t layers = c->hp->n_layers + c->hp->n_nextn;
    size_t rows = (size_t)c->lim.n_blocks * c->lim.block;
    c->rank[r].kv = calloc(layers, sizeof *c->rank[r].kv);
    c->rank[r].ik = calloc(layers, sizeof *c->rank[r].ik);
    if (c->rank[r].kv == NULL || c->rank[r].ik == NULL)
        return false;
    for (uint32_t i = 0; i < layers; i++) {
        c->rank[r].kv[i] = cpu_lazy_alloc(rows * c->kv_row_bytes);
        if (c->rank[r].kv[i] == NULL)
            return false;
        c->bytes_cache += r == 0 ? rows * c->kv_row_bytes : 0;
        if (c->ik_row_bytes == 0 || !c->hp->index_full[i])
            continue;
        c->rank[r].ik[i] = cpu_lazy_alloc(rows * c->ik_row_bytes);
        if (c->rank[r].ik[i] == NULL)
            return false;
        c->bytes_cache += r == 0 ? rows * c->ik_row_bytes : 0;
    }
    return true;
}

/* Counted once: a snapshot asks after every step. */
static uint64_t weight_bytes(const struct program *p, uint32_t rank)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_views; i++) {
        const struct op_view *v = plan_view(p, rank, i);
        if (v->rows != 0)
            bytes += (uint64_t)krn_row_bytes(v->type, v->k) * v->rows * v->n_mats;
    }
    return bytes;
}

static bool alloc_rank(struct cpu *c, uint32_t r, size_t q8_bytes)
{
    struct cpu_rank *k = &c->rank[r];
    size_t pairs = (size_t)c->lim.max_rows * (c->hp->n_used ? c->hp->n_used : 1);
    k->bytes_weights = weight_bytes(c->prog[0], r);
    k->q8 = cpu_lazy_alloc(q8_bytes != 0 ? q8_bytes : 64);
    c->bytes_buffers += r == 0 ? q8_bytes : 0;
    if (c->hp->n_used != 0 && cpu_sharing(c, CPU_PAIR_ROWS) == CPU_SHARE_CUT) {
        const size_t bytes = (size_t)CPU_PAIR_ROWS * c->hp->n_used * c->hp->n_embd * sizeof(float);
        k->pair_out = cpu_lazy_alloc(bytes);
        c->bytes_buffers += r == 0 ? bytes : 0;
        if (k->pair_out == NULL)
            return false;
    }
    return k->q8 != NULL && cpu_routing_alloc(&k->routing, c->hp->n_experts, pairs) && alloc_buffers(c, r) && alloc_cache(c, r);
}

static bool fill_rope(struct cpu *c)
{
    uint32_t half = c->hp->rope / 2;
    size_t n = (size_t)c->lim.max_keys * half;
    c->rope_cos = malloc(n * sizeof *c->rope_cos);
    c->rope_sin = malloc(n * sizeof *c->rope_sin);
    if (c->rope_cos == NULL || c->rope_sin == NULL)
        return false;
    for (uint32_t i = 0; i < half; i++) {
        double f = hparams_rope_freq(c->hp, i);
        for (size_t p = 0; p < c->lim.max_keys; p++) {
            c->rope_cos[p * half + i] = (float)(cos((double)p * f) * (double)c->hp->rope_mag);
            c->rope_sin[p * half + i] = (float)(sin((double)p * f) * (double)c->hp->rope_mag);
        }
    }
    return true;
}

/* What the rows of so many more lie in does not stay in the processor's caches from one op to the next. */
enum { PIECE_ROWS = 512 };

static bool alloc_piece(struct cpu *c)
{
    struct batch *p = &c->piece;
    if (c->lim.max_rows <= PIECE_ROWS)
        return true;
    p->cap = p->cap_segs = p->cap_logits = PIECE_ROWS;
    p->seg = calloc(PIECE_ROWS, sizeof *p->seg);
    p->segs = calloc(PIECE_ROWS, sizeof *p->segs);
    p->logit_row = calloc(PIECE_ROWS, sizeof *p->logit_row);
    return p->seg != NULL && p->segs != NULL && p->logit_row != NULL;
}

static void free_piece(struct cpu *c)
{
    free(c->piece.seg);
    free(c->piece.segs);
    free(c->piece.logit_row);
}

static void cpu_close(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    if (c == NULL)
        return;
    exec_close(c->exec);
    for (uint32_t r = 0; r < c->n_ranks && c->rank != NULL; r++) {
        struct cpu_rank *k = &c->rank[r];
        for (int i = 0; i < BUF_COUNT; i++)
            if (i != BUF_FULL || r == 0)
                cpu_lazy_free(k->buf[i]);
        for (uint32_t i = 0; i < c->hp->n_layers + c->hp->n_nextn; i++) {
            if (k->kv != NULL)
                cpu_lazy_free(k->kv[i]);
            if (k->ik != NULL)
                cpu_lazy_free(k->ik[i]);
        }
        free(k->kv);
        free(k->ik);
        cpu_lazy_free(k->q8);
        cpu_lazy_free(k->pair_out);
        cpu_routing_free(&k->routing);
    }
    for (uint32_t w = 0; w < c->n_workers && c->scratch != NULL; w++)
        free(c->scratch[w]);
    free_piece(c);
    cpu_pack_free(c);
    cpu_local_close(c);
    cpu_stand_in_close(c);
    cpu_far_close(c);
    free(c->scratch);
    free(c->rank);
    free(c->rope_cos);
    free(c->rope_sin);
    free(c);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------------- */

/* Rows [from, to) of b, whose first wanted row is the `wanted`th. */
static void cut_piece(struct batch *p, const struct batch *b, uint32_t from, uint32_t to, uint32_t wanted)
{
    p->token = b->token + from;
    p->pos = b->pos + from;
    p->n_rows = to - from;
    p->n_segs = p->n_logits = 0;
    p->max_keys = b->max_keys;
    for (p->bucket = 1; p->bucket < p->n_rows; p->bucket *= 2)
        ;
    for (uint32_t i = from; i < to; p->n_segs++) {
        struct batch_seg *g = &p->segs[p->n_segs];
        *g = b->segs[b->seg[i]];
        const uint32_t end = g->row0 + g->n_rows < to ? g->row0 + g->n_rows : to;
        g->pos0 += i - g->row0;
        g->row0 = i - from;
        g->n_rows = end - i;
        for (; i < end; i++)
            p->seg[i - from] = (int32_t)p->n_segs;
    }
    for (; wanted < b->n_logits && (uint32_t)b->logit_row[wanted] < to; wanted++)
        p->logit_row[p->n_logits++] = b->logit_row[wanted] - (int32_t)from;
}

static void move_logits(struct cpu *c, ptrdiff_t rows)
{
    for (uint32_t r = 0; r < c->n_ranks; r++)
        c->rank[r].buf[BUF_FULL] += rows * (ptrdiff_t)c->hp->vocab;
}

/* One piece through all ops, then the next: a row needs others only for the keys of its own sequence's earlier rows, which are there by then. */
static enum rs_result step_pieces(struct cpu *c, const struct backend_step *s, struct rs_error *err)
{
    struct backend_step part = *s;
    enum rs_result rc = RS_OK;
    uint32_t wanted = 0;
    part.batch = &c->piece;
    for (uint32_t at = 0; at < s->batch->n_rows && rc == RS_OK; at += PIECE_ROWS) {
        const uint32_t left = s->batch->n_rows - at;
        cut_piece(&c->piece, s->batch, at, at + (left < PIECE_ROWS ? left : PIECE_ROWS), wanted);
        move_logits(c, wanted);
        rc = exec_step(c->exec, &part, at != 0, err);
        move_logits(c, -(ptrdiff_t)wanted);
        wanted += c->piece.n_logits;
    }
    return rc;
}

static enum rs_result cpu_step(struct backend *b, const struct backend_step *s, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    const bool elsewhere = c->part != NULL; /* ranks on other hosts cut nothing either */
    const bool whole = s->whole || s->probes != NULL || s->hook != NULL || s->prog != c->prog[0] || elsewhere;
    return whole || s->batch->n_rows <= PIECE_ROWS ? exec_step(c->exec, s, false, err) : step_pieces(c, s, err);
}


static enum rs_result cpu_reserve(struct backend *b, uint32_t n_keys, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    if (n_keys <= c->keys_reserved)
        return RS_OK;
    uint32_t want = 256;
    while (want < n_keys)
        want *= 2;
    size_t attn = cpu_attn_scratch(c, want, true), linear = cpu_linear_scratch(c), bytes = attn > linear ? attn : linear;
    if (bytes > c->scratch_bytes) {
        for (uint32_t w = 0; w < c->n_workers; w++) {
            uint8_t *p = cpu_big_alloc(bytes);
            if (p == NULL)
                return error_set(err, RS_ENOMEM, "out of memory: %zu bytes of scratch for sequences of %u tokens", bytes, want);
            free(c->scratch[w]);
            c->scratch[w] = p;
        }
        c->scratch_bytes = bytes;
    }
    c->keys_reserved = want;
    return RS_OK;
}

static const float *cpu_logits(struct backend *b, uint32_t i)
{
    struct cpu *c = (struct cpu *)b;
    return c->rank[0].buf[BUF_FULL] + (size_t)i * c->hp->vocab;
}

static enum rs_result check_span(const struct cpu *c, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, struct rs_error *err)
{
    if (rank >= c->n_ranks || buf <= BUF_NONE || buf >= BUF_COUNT || c->rank[rank].buf[buf] == NULL)
        return error_set(err, RS_EUSAGE, "no buffer %s on rank %u", op_buf_name(buf), rank);
    if (row >= buf_rows(c, buf) || (uint64_t)col + n > buf_width(c, buf, rank))
        return error_set(err, RS_EUSAGE, "row %u, columns %u to %u are outside of buffer %s", row, col, col + n, op_buf_name(buf));
    return RS_OK;
}

static enum rs_result cpu_read(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, float *dst, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    enum rs_result rc = check_span(c, rank, buf, row, col, n, err);
    if (rc == RS_OK)
        memcpy(dst, c->rank[rank].buf[buf] + (size_t)row * buf_width(c, buf, rank) + col, n * sizeof *dst);
    return rc;
}

static enum rs_result cpu_write(struct backend *b, uint32_t rank, enum op_buf buf, uint32_t row, uint32_t col, uint32_t n, const float *src, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    enum rs_result rc = check_span(c, rank, buf, row, col, n, err);
    if (rc == RS_OK)
        memcpy(c->rank[rank].buf[buf] + (size_t)row * buf_width(c, buf, rank) + col, src, n * sizeof *src);
    return rc;
}

static enum rs_result cpu_copy_block(struct backend *b, int32_t from, int32_t to, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    (void)err;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        for (uint32_t i = 0; i < c->hp->n_layers + c->hp->n_nextn; i++) {
            size_t n = c->lim.block * c->kv_row_bytes, m = c->lim.block * c->ik_row_bytes;
            memcpy(c->rank[r].kv[i] + (size_t)to * n, c->rank[r].kv[i] + (size_t)from * n, n);
            if (c->rank[r].ik[i] != NULL)
                memcpy(c->rank[r].ik[i] + (size_t)to * m, c->rank[r].ik[i] + (size_t)from * m, m);
        }
    return RS_OK;
}

static enum rs_result cache_block(const struct cpu *c, uint32_t rank, uint32_t layer, bool index, int32_t block, uint8_t **at, size_t *n, struct rs_error *err)
{
    if (rank >= c->n_ranks || layer >= c->hp->n_layers + c->hp->n_nextn || block < 0 || (uint32_t)block >= c->lim.n_blocks)
        return error_set(err, RS_EUSAGE, "no cache block %d of layer %u on rank %u", block, layer, rank);
    uint8_t *pool = index ? c->rank[rank].ik[layer] : c->rank[rank].kv[layer];
    if (pool == NULL)
        return error_set(err, RS_EUSAGE, "layer %u has no indexer of its own", layer);
    *at = pool + (size_t)block * c->lim.block * (index ? c->ik_row_bytes : c->kv_row_bytes);
    *n = (size_t)c->lim.block * (index ? c->hp->index_dim : c->hp->kv_lora + c->hp->rope); /* rows are packed, so a block is one vector */
    return RS_OK;
}

static enum rs_result cpu_cache_get(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, float *dst, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    uint8_t *at = NULL;
    size_t n = 0;
    enum rs_result rc = cache_block(c, rank, layer, index, block, &at, &n, err);
    if (rc == RS_OK)
        c->vec->load(c->lim.cache, at, dst, n);
    return rc;
}

static enum rs_result cpu_cache_put(struct backend *b, uint32_t rank, uint32_t layer, bool index, int32_t block, const float *src, struct rs_error *err)
{
    struct cpu *c = (struct cpu *)b;
    uint8_t *at = NULL;
    size_t n = 0;
    enum rs_result rc = cache_block(c, rank, layer, index, block, &at, &n, err);
    if (rc == RS_OK)
        c->vec->store(c->lim.cache, src, at, n);
    return rc;
}

static uint32_t cpu_pairs(struct backend *b, uint32_t rank)
{
    return ((struct cpu *)b)->rank[rank].routing.n_pairs;
}

static const float *cpu_op_us(struct backend *b, uint32_t *n_ops)
{
    return exec_op_us(((struct cpu *)b)->exec, 0, n_ops);
}

static const float *cpu_next_us(struct backend *b, uint32_t *n_ops)
{
    return exec_op_us(((struct cpu *)b)->exec, 1, n_ops);
}

static void cpu_memory(struct backend *b, uint32_t rank, uint64_t *weights, uint64_t *cache, uint64_t *buffers)
{
    struct cpu *c = (struct cpu *)b;
    *weights = c->rank[rank].bytes_weights;
    *cache = c->bytes_cache;
    *buffers = c->bytes_buffers + c->bytes_packed / c->n_ranks;
}

static uint32_t cpu_graphs(struct backend *b, struct backend_graph *out, uint32_t cap)
{
    return exec_graphs(((struct cpu *)b)->exec, out, cap);
}

static void cpu_reweigh(struct backend *b, const struct program *p, uint32_t view)
{
    struct cpu *c = (struct cpu *)b;
    cpu_repack(c, p, view);
    for (uint32_t r = 0; r < c->n_ranks; r++)
        c->rank[r].bytes_weights = weight_bytes(c->prog[0], r);
}

static void cpu_retire(struct backend *b, uint64_t generation)
{
    exec_retire(((struct cpu *)b)->exec, generation);
}

static const struct backend_ops CPU_OPS = {
    .name = "cpu", .inspects = true, .inspects_next = true, .close = cpu_close, .step = cpu_step, .reserve = cpu_reserve, .logits = cpu_logits, .read = cpu_read, .write = cpu_write,
    .copy_block = cpu_copy_block, .cache_get = cpu_cache_get, .cache_put = cpu_cache_put, .pairs = cpu_pairs, .op_us = cpu_op_us, .next_us = cpu_next_us, .memory = cpu_memory, .reweigh = cpu_reweigh, .retire = cpu_retire, .graphs = cpu_graphs,
};

enum rs_result backend_cpu_open(const struct hparams *hp, const struct weights *w, const struct shard_plan *shard, const struct program *main_prog,
                                const struct program *nextn, const struct backend_limits *lim, struct pool *pool, enum krn_isa isa,
                                struct backend **out, struct rs_error *err)
{
    struct cpu *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the CPU backend");
    c->base.ops = &CPU_OPS;
    c->hp = hp;
    c->w = w;
    c->shard = shard;
    c->prog[0] = main_prog;
    c->prog[1] = nextn;
    c->pool = pool;
    c->mm = krn_cpu_matmul(isa);
    c->vec = krn_cpu_vec(isa);
    c->lim = *lim;
    c->n_ranks = shard->n_ranks;
    c->n_workers = pool_size(pool);
    c->kv_row_bytes = (hp->kv_lora + hp->rope) * krn_cache_elem_bytes(lim->cache);
    c->ik_row_bytes = hp->index_heads != 0 ? hp->index_dim * krn_cache_elem_bytes(lim->cache) : 0;
    c->rank = calloc(c->n_ranks, sizeof *c->rank);
    c->scratch = calloc(c->n_workers, sizeof *c->scratch);
    bool ok = c->rank != NULL && c->scratch != NULL && c->mm != NULL && c->vec != NULL && fill_rope(c) && alloc_piece(c);
    size_t q8 = ok ? shared_q8_bytes(c) : 0;
    for (uint32_t r = 0; r < c->n_ranks && ok; r++)
        ok = alloc_rank(c, r, q8);
    if (!ok) {
        cpu_close(&c->base);
        return error_set(err, RS_ENOMEM, "out of memory: cache of %u tokens and buffers for %u ranks", lim->n_blocks * lim->block, shard->n_ranks);
    }
    enum rs_result rc = exec_open(c, &c->exec, err);
    if (rc == RS_OK)
        rc = cpu_pack(c, err);
    if (rc == RS_OK)
        rc = cpu_local_open(c, err);
    if (rc == RS_OK)
        rc = cpu_stand_in_open(c, err);
    if (rc == RS_OK)
        rc = cpu_far_open(c, err);
    if (rc == RS_OK)
        rc = cpu_reserve(&c->base, 256, err);
    if (rc != RS_OK) {
        cpu_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return RS_OK;
}
