/* Models without a file: the shapes of a known model and no data. A backend that is told so fills the weights itself. */
#ifndef RANKSCOPE_ENGINE_SYNTH_H
#define RANKSCOPE_ENGINE_SYNTH_H

#include "engine/hparams.h"
#include "engine/weights.h"

/* Names: those of shape.h. n_layers 0: all of them; else that many, the leading dense ones first. Weight types as published quantisations have
 * them (experts Q4_K and Q5_K, the rest Q8_0). weight.data are addresses that differ from each other and must not be read. Errors: RS_ENOTFOUND,
 * RS_ENOMEM, RS_EUSAGE. weights_free() frees. */
enum rs_result synth_make(const char *name, uint32_t n_layers, struct hparams *hp, struct weights *w, struct rs_error *err);

#endif
