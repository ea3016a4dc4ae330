/* Building the program of a model for a shard plan. */
#ifndef RANKSCOPE_ENGINE_PLAN_H
#define RANKSCOPE_ENGINE_PLAN_H

#include "engine/hparams.h"
#include "engine/op.h"
#include "engine/shard.h"
#include "engine/weights.h"

enum plan_which {
    PLAN_MAIN,   /* the main stack, tokens in, logits out */
    PLAN_NEXTN,  /* one NextN block: token and hidden state in, logits out */
};

struct program {
    enum plan_which which;
    uint32_t n_ops, n_views, n_ranks, n_allreduces, max_keys;
    bool sparse;            /* indexer ops are part of it */
    struct op *ops;         /* [n_ops], owned */
    struct op_view *views;  /* [n_ranks][n_views], owned */
    uint32_t width[BUF_COUNT][RS_MAX_RANKS]; /* f32 values per row of a buffer on a rank; BUF_MGU and BUF_MACT: per pair */
    /* [n_layers][n_ranks] head ranges and the like stand in the shard plan, which outlives the program */
    const struct hparams *hp;
    const struct shard_plan *shard;
};

/* Build. max_keys is the longest sequence that will run: the indexer is part of the program only if it exceeds top_k, since up to there every
 * row attends to everything. hp, w and shard must outlive the program. Errors: RS_ENOMEM. The result is immutable; any thread may read it. */
enum rs_result plan_build(const struct hparams *hp, const struct weights *w, const struct shard_plan *shard, enum plan_which which, uint32_t max_keys,
                          struct program *out, struct rs_error *err);
void plan_free(struct program *p);

static inline const struct op_view *plan_view(const struct program *p, uint32_t rank, uint32_t index)
{
    return &p->views[(size_t)rank * p->n_views + index];
}

/* Values per row of an op's input or output that mean something on a rank; less than the buffer's width where a layer uses less of it. */
uint32_t plan_ref_width(const struct program *p, const struct op *o, const struct op_ref *r, uint32_t rank);

/* First op whose site equals `site`, or NULL. */
const struct op *plan_find(const struct program *p, const char *site);

/* Does `site` match `glob` ('*' any run, '?' one character; no other magic)? Also matches a kind name. */
bool plan_glob(const char *glob, const char *site);

#endif
