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

/* Tiles of neighbouring rows, those with the most keys first: they take longest. */
static uint32_t cut(int32_t *to, uint32_t row0, uint32_t n, uint32_t per)
{
    uint32_t tiles = 0;
    for (uint32_t i = (n + per - 1) / per * per; i > 0; i -= per, tiles++) {
        const uint32_t first = i - per;
        to[2 * tiles] = (int32_t)(row0 + first);
        to[2 * tiles + 1] = (int32_t)(n - first < per ? n - first : per);
    }
    return tiles;
}

uint32_t cuda_lists_fill(const struct cuda *c, const struct batch *b, uint32_t rows, int32_t *header, int32_t *tables, uint32_t at)
{
    const bool generated = (cuda_lists_sorts(b) & CUDA_GENERATED) != 0;
    uint32_t tiles = 0, n = 0;
    int32_t *to = tables + at;
    for (uint32_t g = 0; g < b->n_segs; g++)
        if (b->segs[g].kind == BATCH_PROMPT)
            tiles += cut(to + 2 * tiles, b->segs[g].row0, b->segs[g].n_rows, c->tile_rows);
    if (!generated && rows > b->n_rows) /* padded rows: of the sort that there is, all at position 0 */
        tiles += cut(to + 2 * tiles, b->n_rows, rows - b->n_rows, c->tile_rows);
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
