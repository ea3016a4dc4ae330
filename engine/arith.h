/* What the products of ops are made in: what choices ask for, and what a backend did. A reference rounds as the op did, and the ledger says it.
 * Control thread, between steps. */
#ifndef RANKSCOPE_ENGINE_ARITH_H
#define RANKSCOPE_ENGINE_ARITH_H

#include "engine/backend.h"

/* By the choice and the types of the weights alone. */
enum op_arith arith_wanted(const struct program *p, const struct op *o, const struct choice *ch, uint32_t rank);

/* Of the last step of program p; choices: those that it ran under. */
enum op_arith arith_used(struct backend *b, const struct program *p, const struct op *o, const struct choice *choices, uint32_t rank);

/* Name, or NULL for ARITH_NONE. */
const char *arith_name(enum op_arith a);

#endif
