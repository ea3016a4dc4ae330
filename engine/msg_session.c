/* Methods about conversations. The engine keeps a client's JSON and says which stream belongs to it. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"

static struct session **find(struct engine *e, uint32_t id)
{
    struct session **at = &e->sessions;
    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* The session that "session" names, or NULL with a->rc set. */
static struct session *need(struct engine *e, struct args *a)
{
    uint32_t id = 0;
    args_need(a, args_u32(a, "session", 1, UINT32_MAX, &id), "session");
    struct session *x = a->rc == RS_OK ? *find(e, id) : NULL;
    if (a->rc == RS_OK && x == NULL)
        a->rc = error_set(a->err, RS_ENOTFOUND, "there is no session %u", id);
    return x;
}

static enum rs_result put_data(struct session *x, json_t *data, struct rs_error *err)
{
    char *s = json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY);
    if (s == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a conversation");
    free(x->data);
    x->data = s;
    return RS_OK;
}

static enum rs_result msg_new(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    json_t *data = NULL;
    args_any(a, "data", &data);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    struct session *x = calloc(1, sizeof *x);
    if (x == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for a conversation");
    if (data != NULL && (rc = put_data(x, data, err)) != RS_OK) {
        free(x);
        return rc;
    }
    x->id = e->next_session++;
    x->next = e->sessions;
    e->sessions = x;
    json_object_set_new(m->reply, "session", json_integer(x->id));
    return RS_OK;
}

static enum rs_result msg_put(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    json_t *data = NULL;
    (void)m;
    struct session *x = need(e, a);
    args_need(a, args_any(a, "data", &data), "data");
    enum rs_result rc = args_end(a);
    return rc == RS_OK ? put_data(x, data, err) : rc;
}

static bool running(const struct engine *e, uint32_t stream)
{
    for (const struct seq *s = e->seqs; s != NULL; s = s->next)
        if (s->id == stream)
            return s->state != SEQ_DONE;
    return false;
}

static enum rs_result msg_get(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    struct session *x = need(e, a);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    json_t *data = x->data != NULL ? json_loads(x->data, JSON_DECODE_ANY, NULL) : NULL;
    json_object_set_new(m->reply, "session", json_integer(x->id));
    json_object_set_new(m->reply, "data", data != NULL ? data : json_null());
    json_object_set_new(m->reply, "stream", x->stream != 0 ? json_integer(x->stream) : json_null());
    json_object_set_new(m->reply, "running", json_boolean(running(e, x->stream)));
    return RS_OK;
}

static enum rs_result msg_list(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_t *list = json_array();
    for (struct session *x = e->sessions; x != NULL; x = x->next) {
        json_t *o = json_pack("{s:i,s:b,s:I}", "session", (int)x->id, "running", running(e, x->stream), "bytes",
                              (json_int_t)(x->data != NULL ? strlen(x->data) : 0));
        json_object_set_new(o, "stream", x->stream != 0 ? json_integer(x->stream) : json_null());
        json_array_append_new(list, o);
    }
    json_object_set_new(m->reply, "sessions", list);
    return rc;
}

static enum rs_result msg_drop(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)m, (void)err;
    struct session *x = need(e, a);
    enum rs_result rc = args_end(a);
    if (rc != RS_OK)
        return rc;
    *find(e, x->id) = x->next;
    free(x->data);
    free(x->tok);
    free(x->kind);
    free(x);
    return RS_OK;
}

const struct msg_method MSG_SESSION[] = {
    {"session.new", true, msg_new}, {"session.put", true, msg_put},   {"session.get", false, msg_get},
    {"session.list", false, msg_list}, {"session.drop", true, msg_drop}, {NULL, false, NULL},
};
