/* The shard plan. See shard.h. */
#include "engine/shard.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "kernels/type.h"

struct shard_range shard_deal(uint32_t total, uint32_t unit, uint32_t n_ranks, uint32_t rank)
{
    uint32_t n = (total + unit - 1) / unit, base = n / n_ranks, more = n % n_ranks;
    uint32_t first = rank * base + (rank < more ? rank : more), count = base + (rank < more);
    uint64_t from = (uint64_t)first * unit, to = (uint64_t)(first + count) * unit;
    return (struct shard_range){from < total ? (uint32_t)from : total, to < total ? (uint32_t)to : total};
}

static uint32_t block_of(const struct weight *w)
{
    return w->data != NULL ? krn_type_info(w->type)->block_elems : 1;
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* Heads per unit such that a cut between units never cuts a block of attn_output's rows. */
static uint32_t head_unit(const struct weight *attn_out, uint32_t v_head)
{
    uint32_t block = block_of(attn_out);
    return block / gcd(block, v_head);
}

static enum shard_split choose_split(const struct hparams *hp, const struct layer_weights *lw, uint32_t n, enum shard_split wish, const char **why)
{
    uint32_t units = hp->n_ff_exp / block_of(&lw->w[W_DOWN_EXPS]);
    if (wish != SHARD_AUTO) {
        *why = "asked for";
        return wish;
    }
    if (n == 1 || units % n == 0) {
        *why = "every expert divides into whole blocks";
        return SHARD_TP;
    }
    if (hp->n_experts >= n) {
        *why = "a cut inside an expert would be uneven or cut a block: experts go whole";
        return SHARD_EP;
    }
    *why = "fewer experts than ranks: uneven cut on whole blocks";
    return SHARD_TP;
}

enum rs_result shard_make(const struct hparams *hp, const struct weights *w, uint32_t n, enum shard_split split, struct shard_plan *out,
                          struct rs_error *err)
{
    memset(out, 0, sizeof *out);
    if (n < 1 || n > RS_MAX_RANKS)
        return error_set(err, RS_EUSAGE, "ranks must be 1 to %d, not %u", RS_MAX_RANKS, n);
    out->layer = calloc((size_t)w->n_layers * n, sizeof *out->layer);
    if (out->layer == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the shard plan");
    out->n_ranks = n;
    out->n_layers = w->n_layers;
    out->split_why = "no experts";
    for (uint32_t r = 0; r < n; r++)
        out->vocab[r] = shard_deal(hp->vocab, 1, n, r);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const struct layer_weights *lw = &w->layers[i];
        if (lw->moe)
            out->split[i] = choose_split(hp, lw, n, split, &out->split_why);
        for (uint32_t r = 0; r < n; r++) {
            struct shard_layer *s = &out->layer[(size_t)i * n + r];
            s->heads = shard_deal(hp->n_heads, head_unit(&lw->w[W_ATTN_OUT], hp->v_head), n, r);
            if (!lw->moe) {
                s->ff = shard_deal(hp->n_ff, block_of(&lw->w[W_FFN_DOWN]), n, r);
                continue;
            }
            s->shared = shard_deal(hp->n_shared * hp->n_ff_exp, block_of(&lw->w[W_DOWN_SHEXP]), n, r);
            bool ep = out->split[i] == SHARD_EP;
            s->experts = ep ? shard_deal(hp->n_experts, 1, n, r) : (struct shard_range){0, hp->n_experts};
            s->ff_exp = ep ? (struct shard_range){0, hp->n_ff_exp} : shard_deal(hp->n_ff_exp, block_of(&lw->w[W_DOWN_EXPS]), n, r);
        }
    }
    return RS_OK;
}

void shard_free(struct shard_plan *p)
{
    free(p->layer);
    memset(p, 0, sizeof *p);
}

void shard_block(struct shard_plan *p, uint32_t from, uint32_t to)
{
    const uint32_t n = to - from;
    for (uint32_t i = 0; i < p->n_layers; i++)
        for (uint32_t r = 0; r < n; r++)
            p->layer[(size_t)i * n + r] = p->layer[(size_t)i * p->n_ranks + from + r]; /* reads ahead of what it writes */
    for (uint32_t r = 0; r < n; r++)
        p->vocab[r] = p->vocab[from + r];
    p->n_ranks = n;
}
