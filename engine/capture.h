/* Running a batch under a configuration of its own and keeping what every op wrote (and read).
 *
 * A configuration is the current one with changes. Where only choices differ (patches, mode), the loaded runtime runs it; where the layout differs
 * (ranks, split, cache type, instruction set), a second runtime over the same weights is built and thrown away afterwards. Captures are made by
 * observers, in graph mode as nodes of the graph. Nothing of the engine changes but its generation. Control thread, between steps. */
#ifndef RANKSCOPE_ENGINE_CAPTURE_H
#define RANKSCOPE_ENGINE_CAPTURE_H

#include <jansson.h>

#include "engine/patch.h"
#include "engine/probe.h"
#include "engine/runtime.h"
#include "engine/tensor.h"

struct engine;

struct capture_config {
    struct patch_table patches;
    struct runtime_config rt;
    enum krn_isa isa;
    bool graph, guard, fast;
};

/* The current configuration with the changes in obj: {"mode","ranks","numerics","graph_guard","isa","backend","reset": bool,"patches":{slot or
 * slot@glob: impl}}. obj NULL: no change. Errors: RS_EUSAGE, RS_ENOTFOUND, RS_EUNSUPPORTED. */
enum rs_result capture_config(struct engine *e, json_t *obj, struct capture_config *out, struct rs_error *err);
json_t *capture_config_json(const struct engine *e, const struct capture_config *c);

struct capture {
    struct engine *e;
    struct capture_config cfg;
    struct runtime *rt;
    bool own;
    struct choice *choices;  /* [rt->prog.n_ops], owned */
    int32_t *table;          /* cache blocks of the one sequence */
    uint32_t n_table, cap_table;
    struct probe_obs *obs;
    uint32_t n_obs;
    bool inputs;
    uint64_t generation;     /* of graphs without observers; + 1: with. Steps of one capture replay one graph, as steps of a stream do */
    uint32_t pos0, rows;     /* of the captured step */
    float *logits;           /* [vocab] of the last row of the last step */
    uint8_t *arith;          /* [op][rank] what the captured step's products were made in: enum op_arith */
};

enum { CAPTURE_INPUTS = 1 };

/* n_tokens: the longest that the sequence will get. glob: sites to keep; rows: how many rows a captured step may have. Errors: RS_ENOMEM,
 * RS_ESTATE (no room in the cache), RS_EUSAGE (more than 2 GiB to keep). */
enum rs_result capture_open(struct engine *e, const struct capture_config *cfg, const char *glob, unsigned flags, uint32_t n_tokens, uint32_t rows,
                            struct capture *out, struct rs_error *err);
void capture_close(struct capture *c);

/* Rows of one step at most. */
uint32_t capture_chunk(const struct engine *e);
/* Run tokens [from, to) of ids as one step; keep: with the observers. Logits are wanted for every row. */
enum rs_result capture_step(struct capture *c, const int32_t *ids, uint32_t from, uint32_t to, enum batch_kind kind, bool keep, struct rs_error *err);
/* The cache rows of the first n tokens, from one sequence to the other. */
enum rs_result capture_copy_cache(const struct capture *from, const struct capture *to, uint32_t n, struct rs_error *err);

/* What was kept: NULL if nothing. before and index as in struct probe_obs. */
const struct probe_copied *capture_part(const struct capture *c, const struct op *o, bool before, uint32_t index, uint32_t rank);
/* One rank's part, or (rank < 0) the whole tensor; unused entries of indexer rows are zero. */
enum rs_result capture_tensor(const struct capture *c, const struct op *o, bool before, uint32_t index, int rank, struct tensor *out, struct rs_error *err);
/* What the op's products were made in on a rank, in the step that was kept last. */
enum op_arith capture_arith(const struct capture *c, const struct op *o, uint32_t rank);
/* The likeliest token after the last row of the last step; ties go to the lowest id. */
int32_t capture_next(const struct capture *c);

#endif
