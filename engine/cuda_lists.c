/* The rows of a step by sort, for attention of many rows: tiles of prompt rows and rows that were generated. See kcu_batch. */
#include "engine/cuda.h"

uint32_t cuda_lists_sorts(const struct batch *b)
{
    uint32_t sorts = 0;
    for (uint32_t g = 0; g < b->n_segs; g++)
        sorts |= b->segs[g].kind == BATCH_PROMPT ? CUDA_PROMPT : CUDA_GENERATED;
    return sorts;
}

uint32_t cuda_lists_logits(const struct cuda *c, const struct backend_step *s)
{
    const struct batch *b = s->batch;
    uint32_t n = b->n_logits != 0;
    if (!s->graph)
        return b->n_logits;
    if (b->n_logits == b->n_rows && cuda_lists_sorts(b) == CUDA_GENERATED)
        n = b->bucket;
    while (n < b->n_logits)
        n *= 2;
    return n < c->lim.max_logits ? n : c->lim.max_logits;
}

uint32_t cuda_lists_tile_rows(const struct cuda *c)
{
    uint32_t heads = 1;
    for (uint32_t r = 0; r < c->n_ranks; r++)
        for (uint32_t l = 0; l < c->shard->n_layers; l++) {
            const struct shard_layer *s = shard_of(c->shard, l, r);
            heads = s->heads.to - s->heads.from > heads ? s->heads.to - s->heads.from : heads;
        }
    return kcu_mla_tile_rows(heads);
}

/* How many of a segment's tiles end before position `end`: the first ones. */
static uint32_t below(const struct batch_seg *g, uint32_t per, uint32_t end)
{
    return end <= g->pos0               ? 0
           : end - g->pos0 >= g->n_rows ? (g->n_rows + per - 1) / per
                                        : (end - g->pos0) / per;
}

/* Its tiles of neighbouring rows whose last position is from `from` to below `to`, the longest first. */
static uint32_t cut(int32_t *tile, const struct batch_seg *g, uint32_t per, uint32_t from, uint32_t to)
{
    uint32_t n = 0;
    for (uint32_t i = below(g, per, to); i > below(g, per, from); i--, n++) {
        const uint32_t first = (i - 1) * per, rest = g->n_rows - first;
        tile[2 * n] = (int32_t)(g->row0 + first);
        tile[2 * n + 1] = (int32_t)(rest < per ? rest : per);
    }
    return n;
}

enum { LEVELS = 16 };

/* Tiles of all prompts, those with the most keys first, by levels: they take longest, and blocks get about the same by going through them there and back. */
static uint32_t cut_all(int32_t *tile, const struct batch *b, uint32_t per)
{
    const uint32_t level = (b->max_keys / LEVELS / 64 + 1) * 64;
    uint32_t n = 0;
    for (uint32_t from = b->max_keys / level * level;; from -= level) {
        for (uint32_t g = 0; g < b->n_segs; g++)
            if (b->segs[g].kind == BATCH_PROMPT)
                n += cut(tile + 2 * n, &b->segs[g], per, from, from + level);
        if (from == 0)
            return n;
    }
}

uint32_t cuda_lists_fill(const struct cuda *c, const struct batch *b, uint32_t rows, int32_t *header, int32_t *tables, uint32_t at)
{
    const bool generated = (cuda_lists_sorts(b) & CUDA_GENERATED) != 0;
    uint32_t tiles = cut_all(tables + at, b, c->tile_rows), n = 0;
    if (!generated && rows > b->n_rows) { /* padded rows: of the sort that there is, all at position 0 */
        const struct batch_seg padding = {.row0 = b->n_rows, .n_rows = rows - b->n_rows};
        tiles += cut(tables + at + 2 * tiles, &padding, c->tile_rows, 0, padding.n_rows);
    }
    header[0] = (int32_t)tiles;
    header[1] = (int32_t)at;
    at += 2 * tiles;
    header[3] = (int32_t)at;
    for (uint32_t g = 0; g < b->n_segs; g++)
        if (b->segs[g].kind == BATCH_GENERATED)
            for (uint32_t i = 0; i < b->segs[g].n_rows; i++)
                tables[at + n++] = (int32_t)(b->segs[g].row0 + i);
    for (uint32_t i = b->n_rows; i < rows && generated; i++)
        tables[at + n++] = (int32_t)i;
    header[2] = (int32_t)n;
    return at + n;
}
