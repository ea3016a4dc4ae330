/* What several files of methods share. */
#ifndef RANKSCOPE_ENGINE_MSG_UTIL_H
#define RANKSCOPE_ENGINE_MSG_UTIL_H

#include "engine/engine.h"
#include "engine/msg.h"
#include "engine/synth.h"

/* RS_ESTATE naming the op if `ch` holds an implementation that graph mode must refuse. */
enum rs_result msg_check_capturable(const struct engine *e, const struct choice *ch, bool graph, bool guard, struct rs_error *err);
/* Make slot=impl at a site (NULL: all) current, as patch.set does, and fill m->reply. */
enum rs_result msg_patch_apply(struct engine *e, struct msg *m, const char *slot, const char *impl, const char *site, struct rs_error *err);
/* RS_ESTATE unless a model is open. */
enum rs_result msg_need_model(const struct engine *e, struct rs_error *err);
/* "rank": a number or "all" (-1, also when absent). The model must be open. false with a->rc set when it is off. */
bool msg_read_rank(struct engine *e, struct args *a, int *rank);
/* "site", a glob; preset (may be NULL) where it is absent. Returns whether it was given. */
bool msg_read_site(struct args *a, bool needed, const char *preset, char out[OP_SITE_MAX]);
/* "segments" or "text" (+ "special") or "ids" of a request as token ids; caller frees. */
enum rs_result msg_read_ids(struct engine *e, struct args *a, int32_t **ids, size_t *n, struct rs_error *err);
/* "synthetic" with "layers", "experts", "vocab", "rank" ("R/N"), "recipe": a model without a file. Returns whether the first was given; those after it
 * need it. false with a->rc set when something is off. */
bool msg_read_synthetic(struct args *a, struct synth_spec *out);

#endif
