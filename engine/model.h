/* A loaded model: file, hyper-parameters, weights, vocabulary. Immutable after model_open() but for `filled` and for weights that donor.c binds to
 * other files between two steps; any thread may read the rest. */
#ifndef RANKSCOPE_ENGINE_MODEL_H
#define RANKSCOPE_ENGINE_MODEL_H

#include "engine/donor.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/synth.h"
#include "engine/vocab.h"
#include "engine/weights.h"

struct model {
    char *path;
    struct gguf *gguf;
    struct hparams hp;
    struct weights w;
    struct vocab *vocab;
    char *name, *chat_template; /* NULL when the file has none */
    bool made_up, filled;       /* without a file; filled: its weights have been made, by the first CPU backend that needs all of them */
    uint32_t slice, slice_of;   /* made up, slice_of > 1: only this rank of so many is ever computed */
    uint32_t n_donors;
    struct donor donor[PATCH_MAX_DONORS]; /* other files that weights were taken from */
    char hash[17];              /* of names, shapes, types and a sample of the data: the key for baselines and claims */
};

enum rs_result model_open(const char *path, struct model **out, struct rs_error *err);
/* One without a file. */
enum rs_result model_make(const struct synth_spec *spec, struct model **out, struct rs_error *err);
void model_close(struct model *m); /* NULL is allowed */

#endif
