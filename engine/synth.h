/* Models without a file: the shapes of a known model, made-up weights where somebody computes with them. The CPU fills memory here, a backend with
 * memory of its own makes the weights there. The engine's control thread calls everything; filling uses its workers. */
#ifndef RANKSCOPE_ENGINE_SYNTH_H
#define RANKSCOPE_ENGINE_SYNTH_H

#include "engine/loading.h"
#include "engine/plan.h"
#include "engine/pool.h"
#include "engine/shape.h"

struct synth_spec {
    const struct shape *shape;
    struct shape_options options; /* options.recipe: NULL or &recipe, set by whoever uses the spec (a copy moves it) */
    struct recipe recipe;         /* n 0: none */
    uint32_t rank, of;            /* of > 1: only this rank's slice of a model dealt to so many */
};

/* Weights whose memory belongs to nobody else. */
struct synth_memory {
    uint8_t *p; /* NULL: none */
    size_t n;
};

/* The model's head; see shape_open(). Errors: RS_EUSAGE, RS_ENOMEM. */
enum rs_result synth_open(const struct synth_spec *s, struct gguf **out, struct rs_error *err);

/* Make all weights of g, in place. RS_ENOMEM, before anything is touched, if this machine has not that much memory left. */
enum rs_result synth_fill(const struct gguf *g, struct pool *pool, struct loading *loading, struct rs_error *err);

/* Make the weights that one-rank programs over g look at (next may be NULL), close together in memory of their own, and point the programs at it.
 * Errors as above. */
enum rs_result synth_fill_slice(const struct gguf *g, struct program *main_prog, struct program *next, struct pool *pool, struct loading *loading,
                                struct synth_memory *out, struct rs_error *err);
void synth_free(struct synth_memory *m);

#endif
