/* layers.h: rows that repeat layer by layer, put together.
 *
 * A model has thousands of tensors and ops that differ in nothing but the layer in their name. Entries with the same key, and the same name
 * once the layer is left out, become one group with the list of layers that it stands for. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_LAYERS_H
#define RANKSCOPE_CONSOLE_LAYERS_H

#include <jansson.h>
#include <stddef.h>

struct layers_group {
    char *key;
    char *pattern;       /* the name with '*' for the layer */
    const json_t *first; /* the entry that stands for all; borrowed */
    long *layers;
    size_t n;   /* layers in the list */
    double sum;   /* of the values given to layers_add() */
    double bytes; /* for the caller to add to; 0 to begin with */
};

/* Zero-initialise; layers_fini() frees. */
struct layers {
    struct layers_group *groups;
    size_t n;
};

/* "blk.17.attn_q.weight" is layer 17 of "blk.*.attn_q.weight"; other names have layer -1. Caller frees *pattern. */
long layers_split(const char *name, char **pattern);

/* Put an entry into its group; key is consumed. Entries without a layer are never put together. Returns the group, valid until the
 * next call. */
struct layers_group *layers_add(struct layers *l, const json_t *entry, const char *name, char *key, double value);

/* "0-2,5,7-77", "" without layers; caller frees. */
char *layers_ranges(struct layers_group *g);

void layers_fini(struct layers *l);

#endif
