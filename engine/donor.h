/* Tensors of the loaded model taken from other files, while it runs: slot "weights" of the patch table.
 *
 * A donor is another model file, mapped when it is first named and kept until the model is closed. Which tensor comes from which donor is what the
 * patch table says, by glob over tensor names; types may differ, shapes may not. The control thread owns everything here. */
#ifndef RANKSCOPE_ENGINE_DONOR_H
#define RANKSCOPE_ENGINE_DONOR_H

#include <jansson.h>

#include "engine/gguf.h"
#include "engine/patch.h"

struct engine;
struct model;

struct donor {
    char name[PATCH_DONOR_NAME]; /* of the file, without folder and ending; a number behind it where that is taken */
    char *path;                  /* owned; absolute */
    struct gguf *gguf;
    long long size, mtime_ns;    /* of its first file, to notice that it was written anew */
};

/* The donor of a path, opened if it is not there yet. Errors: those of gguf_open; RS_ESTATE (too many). */
enum rs_result donor_open(struct engine *e, const char *path, const struct donor **out, struct rs_error *err);
/* Let go of donors opened since there were n, which no table names. */
void donor_close_last(struct engine *e, uint32_t n);
/* The model is about to be closed: let all donors go, and take what names them out of the patch table. */
void donor_close_all(struct engine *e);

/* Where a tensor of the model's own file comes from under a table: what the last entry that matches says. RS_ENOTFOUND: the donor lacks it or is gone. */
enum rs_result donor_source(const struct model *m, const struct patch_table *t, const struct gguf_tensor *own, const struct gguf_tensor **out,
                            struct rs_error *err);

/* A change of tables that may change where tensors come from. */
struct donor_change;

/* Work out which tensors `next` takes from elsewhere than the present table and bind them; *out NULL: none. Errors, with nothing changed:
 * RS_ENOTFOUND (a donor lacks a tensor or is gone), RS_EFORMAT (shape), RS_EUNSUPPORTED (type; a tensor that was taken apart when the model was
 * loaded). */
enum rs_result donor_begin(struct engine *e, const struct patch_table *next, struct donor_change **out, struct rs_error *err);
/* Would a model of the weights as they are bound now be dealt to ranks as the loaded one is, and can its backend take single tensors anew? */
bool donor_fits(struct engine *e);
/* Have programs and backend use what is bound, in place. On failure nothing has changed but the binding. */
enum rs_result donor_swap(struct engine *e, struct rs_error *err);
/* Keep (true) or take back (false) the binding; frees the change. NULL is allowed. */
void donor_end(struct engine *e, struct donor_change *c, bool keep);

/* Every tensor whose name matches: {"name","type","bytes","from" (donor or null),"file_type"}; of a donor's also "same": are its
 * bytes the file's own? */
json_t *donor_tensors_json(const struct engine *e, const char *glob);
json_t *donor_list_json(const struct engine *e);

#endif
