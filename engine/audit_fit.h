/* What an audit says about memory: bytes of each rank, and whether they fit this machine and its GPUs. Pure but for asking the machine. */
#ifndef RANKSCOPE_ENGINE_AUDIT_FIT_H
#define RANKSCOPE_ENGINE_AUDIT_FIT_H

#include <jansson.h>

#include "engine/model.h"
#include "engine/plan.h"
#include "kernels/cpu/vec.h"

/* Devices that a question is about. */
struct audit_gpus {
    uint32_t n;      /* 0: as many as there are */
    uint64_t memory; /* bytes of each; 0: what those have that are there */
};

/* Does program b's view look at a slice that program a's rank holds already (embedding and head, which the NextN block borrows)? */
bool audit_is_borrowed(const struct program *a, const struct op_view *v, uint32_t rank);

/* [{"rank","bytes_weights","bytes_cache_per_token"}]; next: the NextN block's program or NULL. New reference. */
json_t *audit_ranks(const struct model *m, const struct program *main_prog, const struct program *next, enum krn_cache_type cache);

/* "fits" of the reply: the machine's memory, and "gpus" or null. ranks: of audit_ranks(). New reference. */
json_t *audit_fits(const struct model *m, const json_t *ranks, const struct audit_gpus *gpus);

#endif
