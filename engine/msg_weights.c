/* Methods about weights that come from other files. */
#include "engine/donor.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"

static enum rs_result msg_list(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *glob = "*";
    args_str(a, "tensors", &glob);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "tensors", donor_tensors_json(e, glob));
    json_object_set_new(m->reply, "donors", donor_list_json(e));
    return RS_OK;
}

static enum rs_result msg_load(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *glob = NULL, *path = NULL;
    const struct donor *d;
    args_need(a, args_str(a, "tensors", &glob), "tensors");
    args_need(a, args_str(a, "path", &path), "path");
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc != RS_OK)
        return rc;
    json_t *tensors = donor_tensors_json(e, glob);
    size_t n = json_array_size(tensors);
    json_decref(tensors);
    if (n == 0)
        return error_set(err, RS_ENOTFOUND, "no tensor matches '%.40s'", glob);
    uint32_t before = e->model->n_donors;
    const struct runtime *rt = e->rt;
    rc = donor_open(e, path, &d, err);
    if (rc == RS_OK)
        rc = msg_patch_apply(e, m, "weights", d->name, glob, err);
    if (rc != RS_OK) {
        donor_close_last(e, before);
        return rc;
    }
    json_object_set_new(m->reply, "donor", json_string(d->name));
    json_object_set_new(m->reply, "resharded", json_boolean(e->rt != rt));
    json_object_set_new(m->reply, "tensors", donor_tensors_json(e, glob));
    return RS_OK;
}

const struct msg_method MSG_WEIGHTS[] = {{"weights.list", false, msg_list}, {"weights.load", true, msg_load}, {NULL, false, NULL}};
