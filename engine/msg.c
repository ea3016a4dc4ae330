/* Dispatch of requests. */
#include "engine/msg.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/server.h"
#include "engine/stage.h"

/* One a line, so that what is added side by side can be merged. */
static const struct msg_method *const TABLES[] = {
    MSG_MODEL,
    MSG_DEVICES,
    MSG_PATCH,
    MSG_GEN,
    MSG_SESSION,
    MSG_LOAD,
    MSG_LOADING,
    MSG_OBSERVE,
    MSG_HEALTH,
    MSG_AUDIT,
    MSG_MAKE,
    MSG_PROBE,
    MSG_BREAK,
    MSG_DIFF,
    MSG_REPLAY,
    MSG_CACHE,
    MSG_LOOK,
    MSG_STAGE,
    MSG_WEIGHTS,
};

static const struct msg_method *find(const char *name)
{
    for (size_t t = 0; t < sizeof TABLES / sizeof TABLES[0]; t++)
        for (const struct msg_method *m = TABLES[t]; m->name != NULL; m++)
            if (strcmp(m->name, name) == 0)
                return m;
    return NULL;
}

static bool may_serve(const char *method)
{
    return strcmp(method, "submit") == 0 || strcmp(method, "cancel") == 0;
}

/* What looks into the memory of other hosts' ranks during a step, or brings code or weights that they do not have. */
static bool needs_one_host(const char *method)
{
    static const char *const NAMES[] = {"probe.tap", "probe.watch", "break.add", "tensor.read", "tensor.write", "diff", "dump", "replay", "experts",
                                        "lens", "cache.check", "patch.load", "patch.shadow", "patch.live", "patch.promote", "weights.load"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (strcmp(NAMES[i], method) == 0)
            return true;
    return false;
}

static enum rs_result carry_out(struct engine *e, struct msg *m, const char *text, size_t len, struct rs_error *err)
{
    const char *nul = memchr(text, '\0', len);
    if (nul == NULL)
        return error_set(err, RS_EUSAGE, "malformed request");
    const struct msg_method *method = find(text);
    if (method == NULL)
        return error_set(err, RS_ENOTFOUND, "no method '%.40s'", text);
    bool queues = strcmp(method->name, "submit") == 0 && server_serves(e->server, m->slot); /* what it hands in waits, as it would for its turn */
    if (brk_holding(e) && !brk_allows(method->name) && !queues)
        return error_set(err, RS_ESTATE, "the engine is stopped (%s): continue first", e->brk.reason);
    if (method->control && !server_in_control(e->server, m->slot) && !(may_serve(method->name) && server_serves(e->server, m->slot))) {
        int waiting;
        return error_set(err, RS_ESTATE, "another client (%s) is in control of this engine", server_client_name(e->server, server_control(e->server, &waiting)));
    }
    if (e->hosts != NULL && needs_one_host(method->name))
        return error_set(err, RS_EUNSUPPORTED, "not while ranks are on several hosts; open the model on one");
    size_t n = len - (size_t)(nul + 1 - text);
    const unsigned long failures = engine_json_failures(e);
    json_error_t je;
    json_t *args = n == 0 ? json_object() : json_loadb(nul + 1, n, 0, &je);
    /* Where memory ran out the reader may say anything, or leave a character out of a string. */
    if (engine_json_failures(e) != failures || (args == NULL && (n == 0 || json_error_code(&je) == json_error_out_of_memory))) {
        json_decref(args);
        return error_set(err, RS_ENOMEM, "out of memory for the arguments");
    }
    if (!json_is_object(args)) {
        json_decref(args);
        return error_set(err, RS_EUSAGE, "arguments are not a JSON object");
    }
    struct args a;
    args_begin(&a, args, err);
    e->asked.slot = m->slot;
    e->asked.id = m->id;
    enum rs_result rc = method->run(e, m, &a, err);
    json_decref(args);
    return rc;
}

/* What is sent where even an error is too much. */
#define NO_MEMORY "{\"error\":{\"code\":\"out of memory\",\"message\":\"out of memory for a reply\"}}"

void msg_reply(struct engine *e, const struct msg *m, enum rs_result rc, unsigned long failures, const struct rs_error *err)
{
    struct rs_error lost;
    char *s = rc == RS_OK ? engine_json_text(e, m->reply, failures) : NULL;
    if (rc == RS_OK && s == NULL) {
        rc = error_set(&lost, RS_ENOMEM, "it was carried out, but memory ran out for the reply");
        err = &lost;
    }
    if (rc != RS_OK) {
        json_t *o = json_pack("{s:{s:s,s:s}}", "error", "code", rs_result_name(rc), "message", err->msg);
        s = json_dumps(o, JSON_COMPACT);
        json_decref(o);
    }
    server_event(e->server, m->slot, RS_EVENT_REPLY, s != NULL ? rc : RS_ENOMEM, m->id, s != NULL ? s : NO_MEMORY, rc == RS_OK ? m->out : NULL,
                 rc == RS_OK ? m->out_len : 0);
    free(s);
    json_decref(m->reply);
}

void msg_handle(struct engine *e, int slot, uint32_t id, const char *text, size_t len, const void *blob, size_t blob_len)
{
    const unsigned long failures = engine_json_failures(e);
    struct msg m = {.slot = slot, .id = id, .blob = blob, .blob_len = blob_len, .reply = json_object()};
    struct rs_error err = {.code = RS_EINTERNAL, .msg = "no reason given"};
    enum rs_result rc = m.reply == NULL ? error_set(&err, RS_ENOMEM, "out of memory for a reply") : carry_out(e, &m, text, len, &err);
    if (rc == RS_OK && m.deferred)
        json_decref(m.reply);
    else
        msg_reply(e, &m, rc, failures, &err);
    free(m.out);
}

/* The oldest one that this client has submitted and that has not ended. */
static struct seq *running_of(struct engine *e, int slot)
{
    struct seq *s = e->seqs;
    while (s != NULL && (s->owner != slot || s->state == SEQ_DONE || s->unwanted))
        s = s->next;
    return s;
}

void msg_client_gone(struct engine *e, int slot, bool served)
{
    stage_client_gone(e, slot);
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        s->subscribers &= ~(1u << slot);
    for (struct seq *s; served && (s = running_of(e, slot)) != NULL;)
        step_cancel(e, s);
    for (struct seq *s = e->seqs; s != NULL; s = s->next)
        s->owner = s->owner == slot ? -1 : s->owner; /* the slot may get another client */
}
