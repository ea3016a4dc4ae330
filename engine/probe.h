/* Observers on op outputs. In graph mode an observer is a node of the graph, run where it stands, so what it sees is what the next op reads. */
#ifndef RANKSCOPE_ENGINE_PROBE_H
#define RANKSCOPE_ENGINE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/op.h"

/* A copy tap: after op `op`, copy `rows` rows of its first output on `rank` from row `row0` (counted from the end when from_end) into dst. */
struct probe_copy {
    uint16_t op;
    uint16_t rank;
    uint32_t row;      /* row of the batch; UINT32_MAX: the last one */
    float *dst;        /* width floats, owned by whoever armed it */
    uint32_t width;
};

struct probe_set {
    uint32_t n_copies;
    const struct probe_copy *copies; /* sorted by op */
};

#endif
