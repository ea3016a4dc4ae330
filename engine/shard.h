/* Which slice of which tensor belongs to which rank.
 *
 * A shard plan is a pure function of the weights, the number of ranks and the split of the experts. Splits are *deals*: the units (heads, rows,
 * whole quantisation blocks) are dealt out as evenly as they go, the first ranks getting one more; a rank may end up with nothing. Any thread. */
#ifndef RANKSCOPE_ENGINE_SHARD_H
#define RANKSCOPE_ENGINE_SHARD_H

#include "engine/hparams.h"
#include "engine/rankscope.h"
#include "engine/weights.h"

enum shard_split { SHARD_AUTO, SHARD_TP, SHARD_EP };

struct shard_range { uint32_t from, to; };

/* Per layer and rank. Columns of a down projection and rows of its gate and up are the same range. */
struct shard_layer {
    struct shard_range heads;
    struct shard_range ff;      /* dense layers: of n_ff */
    struct shard_range shared;  /* MoE layers: of n_shared * n_ff_exp */
    struct shard_range experts; /* MoE: matrices; all of them when split inside */
    struct shard_range ff_exp;  /* MoE: of n_ff_exp inside each expert; all when experts go whole */
};

struct shard_plan {
    uint32_t n_ranks, n_layers;
    enum shard_split split[HP_MAX_LAYERS]; /* per layer what was decided; SHARD_AUTO for dense layers */
    struct shard_layer *layer;             /* [n_layers][n_ranks] */
    struct shard_range vocab[RS_MAX_RANKS];
    const char *split_why;                 /* static: why the last MoE layer is split the way it is */
};

/* Deal n units of `unit` elements over n_ranks; the last unit may be short (total elements). */
struct shard_range shard_deal(uint32_t total, uint32_t unit, uint32_t n_ranks, uint32_t rank);

enum rs_result shard_make(const struct hparams *hp, const struct weights *w, uint32_t n_ranks, enum shard_split split, struct shard_plan *out,
                          struct rs_error *err);
void shard_free(struct shard_plan *p);

/* Keep the parts of ranks [from, to) alone, as ranks 0, 1 ...: the plan of a program that runs as some of several, the others being elsewhere. */
void shard_block(struct shard_plan *p, uint32_t from, uint32_t to);

static inline const struct shard_layer *shard_of(const struct shard_plan *p, uint32_t layer, uint32_t rank)
{
    return &p->layer[(size_t)layer * p->n_ranks + rank];
}

#endif
