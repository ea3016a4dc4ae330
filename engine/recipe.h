/* Which type each weight of a file to be written gets. Pure; any thread. */
#ifndef RANKSCOPE_ENGINE_RECIPE_H
#define RANKSCOPE_ENGINE_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/rankscope.h"

enum { RECIPE_MAX_RULES = 64 };

struct recipe {
    uint32_t n;
    struct { char glob[64]; uint32_t type; } rule[RECIPE_MAX_RULES];
};

/* Text with one rule a line, "GLOB TYPE"; '#' begins a comment. The last rule whose glob matches a tensor's name counts. must_encode: only types
 * that weights can be turned into. Errors: RS_EUSAGE naming the line. */
enum rs_result recipe_parse(const char *text, bool must_encode, struct recipe *out, struct rs_error *err);

/* The type for a tensor that has type `now`: `now` where no rule matches, and for what stays as it is: vectors, the router, the indexer's head
 * weights. Rows that the wanted type's block does not divide get the nearest type that fits: a 32-block type of the next larger size, or F16. */
uint32_t recipe_type(const struct recipe *r, const char *name, uint32_t n_dims, const uint64_t ne[4], uint32_t now);

/* A type by its name in any case; false: there is none that computes. */
bool recipe_type_named(const char *name, uint32_t *type);
/* Names of the types that there are, or of those that weights can be turned into, with blanks between; returns buf. */
const char *recipe_types(bool must_encode, char *buf, size_t size);

#endif
