/* The reference: what an op should have written, computed from its captured inputs in double precision, plainly, one value after the other.
 *
 * It rounds activations to int8 where the backend says that the op did, so that what remains is the order of sums; operands that the op rounded to f16
 * it takes as they are, and the tolerance knows. Otherwise it shares nothing with
 * what it checks: weights are taken from the file by the name that belongs to the site, hyper-parameters are read from the file
 * again (and replaced by what the model is known to use, see known.h), the shard plan is made again. Control thread; slow. */
#ifndef RANKSCOPE_ENGINE_REF_H
#define RANKSCOPE_ENGINE_REF_H

#include "engine/capture.h"
#include "engine/hparams.h"
#include "engine/shard.h"
#include "engine/weights.h"

struct ref {
    const struct model *m;             /* for its files */
    const struct patch_table *patches; /* which tensor comes from which */
    struct hparams hp;
    struct weights w;         /* of the file, bound anew: only the shard plan is made from it */
    struct shard_plan shard;
};

/* cfg: of the capture's runtime. m and patches must outlive it. */
enum rs_result ref_open(const struct model *m, const struct patch_table *patches, const struct runtime_config *cfg, struct ref *out, struct rs_error *err);
void ref_close(struct ref *r);

/* What output `index` of op o should hold on a rank after the captured step; out->rows 0: nothing to say. A router's choice comes as one column per
 * expert, the weight of those chosen. Errors: RS_ENOMEM, RS_ENOTFOUND (a tensor that the site needs), RS_EUNSUPPORTED. */
enum rs_result ref_op(const struct ref *r, const struct capture *c, const struct op *o, uint32_t index, uint32_t rank, struct tensor *out, struct rs_error *err);

/* Names of the tensors that belong to a site, slot by slot; returns how many. Without the layer's prefix where the model has none. */
uint32_t ref_tensors(const struct ref *r, const struct op *o, char names[4][80]);

/* The router's captured choice as ref_op gives it. */
enum rs_result ref_dense_choice(const struct ref *r, const struct tensor *choice, struct tensor *out, struct rs_error *err);

/* Were the products of op o with a weight of this type made with activations rounded to int8? */
bool ref_int8(const struct capture *c, const struct op *o, uint32_t rank, uint32_t type, uint64_t k);
/* Round rows as those products see them: per 32 values, to 127 steps of the largest. width is a multiple of 32. */
enum rs_result ref_round(struct tensor *x, struct rs_error *err);

/* ref_attn.c */
enum rs_result ref_mla(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err);
enum rs_result ref_index_scores(const struct ref *r, const struct capture *c, const struct op *o, uint32_t rank, struct tensor *out, struct rs_error *err);
/* The sequence's cache rows [0, n) of a layer on a rank, [n][width]. */
enum rs_result ref_cache(const struct capture *c, uint32_t rank, uint32_t layer, bool index, uint32_t n, struct tensor *out, struct rs_error *err);
/* Rotate `rope` values in place for a position. */
void ref_rotate(const struct hparams *hp, float *x, uint32_t pos, bool interleaved);
enum rs_result ref_make(uint32_t rows, uint32_t width, struct tensor *out, struct rs_error *err);
/* The tensor of a site by its name in the layer, "attn_k_b.weight"; NULL when the file has none. */
const struct gguf_tensor *ref_find(const struct ref *r, int layer, const char *name);
/* Row `row` of matrix `mat` as floats: ne[0] of them. */
void ref_row(const struct gguf_tensor *t, uint64_t mat, uint64_t row, float *out);

#endif
