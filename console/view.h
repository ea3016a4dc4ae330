/* view.h: replies of the engine as text for people. Each view takes the JSON reply of one method and writes to a struct out; what a reply
 * leaves out is shown as n/a or not at all. Used by subcommands and by the commands of the console alike. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_VIEW_H
#define RANKSCOPE_CONSOLE_VIEW_H

#include <jansson.h>

#include "console/out.h"

void view_audit(struct out *o, const json_t *audit, bool verbose);
void view_info(struct out *o, const json_t *info);
void view_patches(struct out *o, const json_t *list);
/* One of the slots, with all its implementations. */
void view_slot(struct out *o, const json_t *slot);
void view_stats(struct out *o, const json_t *stats);
/* Figures of drafts, "spec" of method stats; nothing when none was verified. */
void view_spec(struct out *o, const json_t *spec);
void view_allreduce(struct out *o, const json_t *allreduce);
/* "auto" of that: what was measured, and what allreduce=auto makes of it; nothing where it is null. */
void view_sweep(struct out *o, const json_t *choice);
void view_ledger(struct out *o, const json_t *ledger);
void view_health(struct out *o, const json_t *health);

#endif
