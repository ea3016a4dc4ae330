/* How far two tensors are apart, and what a saved reference calls an op's output. Pure; any thread. */
#ifndef RANKSCOPE_ENGINE_DELTA_H
#define RANKSCOPE_ENGINE_DELTA_H

#include <jansson.h>

#include "engine/npz.h"
#include "engine/plan.h"
#include "engine/tensor.h"

struct delta {
    bool comparable;         /* same shape */
    uint64_t n, different;   /* values; those that are not the same bits (two NaNs count as the same) */
    uint64_t sets_differ;    /* rows whose sets of ids are not the same */
    uint64_t bad_a, bad_b;   /* values that are not finite */
    double rel, max_abs;     /* relative L2, against b; over values that are finite in both */
    uint32_t row, col;       /* of max_abs */
    double a, b;             /* there */
};

/* sets: rows of n_sets ids are compared as sets (an order of equal scores says nothing), the rest by value. */
/* skip: rows that are left out, or NULL. forked: NULL, or marks (adds to) rows whose sets are not the same. */
void delta_compare(const struct tensor *a, const struct tensor *b, uint32_t n_sets, const bool *skip, bool *forked, struct delta *out);
/* Within a tolerance of relative L2: comparable, the same sets, as many values finite, rel <= tolerance; tolerance 0: no different value. */
bool delta_within(const struct delta *d, double tolerance);
json_t *delta_json(const struct delta *d);

/* A reference's array for a part of an op's output: columns [col, col + width) of out[out], width 0: all. */
struct delta_name {
    char name[64];
    uint32_t out, col, width;
    bool scores;             /* compare only entries that are finite in the reference and present here */
    bool sets;
};

/* Names under which the archive holds op o, at most 4: its site, or the reference script's names. Returns how many there are. */
uint32_t delta_names(const struct npz *z, const struct program *p, const struct op *o, struct delta_name out[4]);
/* The rows of the captured step, rows [pos0, pos0 + rows) of the array, as a tensor; an array with fewer rows holds the last ones. */
enum rs_result delta_load(const struct npz *z, const struct delta_name *n, uint32_t pos0, uint32_t rows, struct tensor *out, struct rs_error *err);

#endif
