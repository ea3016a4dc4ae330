/* What happens beside the control thread's long loads: who asked is told how far it is, and may give it up by the method load.cancel. */
#include <stdlib.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/loading.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/server.h"

enum { TELL_US = 250000 };

static void tell(struct engine *e, const struct loading *l, uint64_t now)
{
    double done = (double)atomic_load(&l->done), total = (double)atomic_load(&l->total), rate = done * 1e6 / (double)(now - e->asked.began_us + 1);
    json_t *o = json_pack("{s:s,s:I,s:I,s:f,s:o}", "what", "load", "done", (json_int_t)done, "total", (json_int_t)total, "bytes_per_s", rate, "seconds_left",
                          rate > 0 ? json_real((total > done ? total - done : 0) / rate) : json_null());
    char *s = json_dumps(o, JSON_COMPACT);
    server_event(e->server, e->asked.slot, RS_EVENT_PROGRESS, RS_OK, e->asked.id, s, NULL, 0);
    server_flush(e->server);
    free(s);
    json_decref(o);
    e->asked.told_us = now;
}

static void look(void *arg, struct loading *l)
{
    struct engine *e = arg;
    uint64_t now = now_us();
    if (server_foresees(e->server, e->asked.slot, "load.cancel"))
        atomic_store(&l->stop, true);
    if (now - e->asked.told_us >= TELL_US)
        tell(e, l, now);
}

struct loading *msg_loading_begin(struct engine *e)
{
    e->loading = (struct loading){.look = look, .arg = e};
    e->asked.began_us = e->asked.told_us = now_us();
    return &e->loading;
}

/* It is carried out after the load that it ended, or that was over before it came. */
static enum rs_result msg_load_cancel(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    (void)err;
    enum rs_result rc = args_end(a);
    json_object_set_new(m->reply, "cancelled", json_boolean(atomic_load(&e->loading.stop)));
    return rc;
}

const struct msg_method MSG_LOADING[] = {{"load.cancel", false, msg_load_cancel}, {NULL, false, NULL}};
