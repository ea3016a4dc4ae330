/* Methods about verdicts: health, health.baseline. */
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/observe.h"

static enum rs_result msg_health(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    uint32_t id = 0;
    bool given = args_u32(a, "stream", 1, UINT32_MAX, &id);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    const struct seq *found = NULL;
    for (const struct seq *s = e->seqs; s != NULL; s = s->next)
        if (s->state == SEQ_DONE && (given ? s->id == id : found == NULL || s->t_last >= found->t_last))
            found = s;
    if (found == NULL)
        return given ? error_set(err, RS_ENOTFOUND, "there is no finished stream %u", id) : error_set(err, RS_ESTATE, "nothing has been answered yet");
    json_t *done = json_loads(found->done, JSON_ALLOW_NUL, NULL);
    json_object_set_new(m->reply, "stream", json_integer(found->id));
    const char *const keys[] = {"verdict", "reason", "health"};
    for (int i = 0; i < 3; i++) {
        json_t *v = json_object_get(done, keys[i]);
        json_object_set(m->reply, keys[i], v != NULL ? v : json_null());
    }
    json_decref(done);
    json_object_set_new(m->reply, "first_bad", observe_first_bad(e));
    return RS_OK;
}

static enum rs_result msg_baseline(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    json_t *o = NULL;
    bool given = args_object(a, "baseline", &o);
    enum rs_result rc = args_end(a);
    if (rc == RS_OK)
        rc = msg_need_model(e, err);
    if (rc == RS_OK && given)
        rc = baseline_read(o, e->model->hash, &e->baseline, err);
    if (rc != RS_OK)
        return rc;
    const struct baseline *b = &e->baseline;
    json_object_set_new(m->reply, "baseline", !b->there ? json_null()
                        : json_pack("{s:f,s:f,s:f,s:f}", "answers", b->answers, "entropy_p95", b->entropy_p95, "entropy_high", b->entropy_high, "gap_low", b->gap_low));
    return RS_OK;
}

const struct msg_method MSG_HEALTH[] = {{"health", false, msg_health}, {"health.baseline", true, msg_baseline}, {NULL, false, NULL}};
