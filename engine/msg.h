/* Requests: the table of methods and what carries them out. Everything here runs on the control thread, between steps. */
#ifndef RANKSCOPE_ENGINE_MSG_H
#define RANKSCOPE_ENGINE_MSG_H

#include <jansson.h>

#include "engine/args.h"
#include "engine/rankscope.h"

struct engine;

struct msg {
    int slot;          /* client */
    uint32_t id;       /* request */
    const void *blob;  /* that came with it */
    size_t blob_len;
    json_t *reply;     /* object to fill */
    void *out;         /* blob of the reply, malloc'd; freed after it was sent */
    size_t out_len;
    bool deferred;     /* the reply comes later, by msg_reply() */
};

struct msg_method {
    const char *name;
    bool control;      /* only the client in control may */
    enum rs_result (*run)(struct engine *e, struct msg *m, struct args *a, struct rs_error *err);
};

/* text: method, NUL, JSON object. The reply is queued before this returns. */
void msg_handle(struct engine *e, int slot, uint32_t id, const char *text, size_t len, const void *blob, size_t blob_len);
/* Send m's reply, which is taken. rc other than RS_OK: err instead, which says why; the reply may be NULL. failures: engine_json_failures() before
 * anything of the reply was made. */
void msg_reply(struct engine *e, const struct msg *m, enum rs_result rc, unsigned long failures, const struct rs_error *err);
/* served: what it has submitted was for others that only it can reach, and ends. */
void msg_client_gone(struct engine *e, int slot, bool served);

struct loading;

/* A load begins: who asked for what the engine is carrying out is told how it goes, and may cancel it. */
struct loading *msg_loading_begin(struct engine *e);

/* Tables of methods, ended by a NULL name, one per file. */
extern const struct msg_method MSG_MODEL[], MSG_PATCH[], MSG_GEN[], MSG_SESSION[], MSG_LOAD[], MSG_LOADING[], MSG_OBSERVE[], MSG_HEALTH[], MSG_AUDIT[];
extern const struct msg_method MSG_PROBE[], MSG_BREAK[], MSG_DIFF[], MSG_REPLAY[], MSG_CACHE[], MSG_LOOK[], MSG_STAGE[];
extern const struct msg_method MSG_MAKE[], MSG_WEIGHTS[], MSG_DEVICES[];

#endif
