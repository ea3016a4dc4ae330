/* Loading a patch from a file while the engine runs. C: a child process compiles it, compiles its self-test with it and runs that; only then is the
 * shared object loaded here and registered. A file in CUDA C goes the same way: there the child is this program itself, with a device context of its
 * own, which a patch that runs wild takes along. A file in the language of the engine's host (patch_host.h): the child is this program too, and reads
 * the same copy that is read here afterwards. Until then, and whenever anything fails, nothing has changed. One at a time. Control thread. */
#ifndef RANKSCOPE_ENGINE_STAGE_H
#define RANKSCOPE_ENGINE_STAGE_H

#include "engine/op.h"
#include "engine/rankscope.h"

struct engine;

enum { STAGE_POLL_MS = 20, STAGE_SECONDS = 60 };

struct stage_request {
    int slot;             /* who is to have the reply: -1 nobody any more */
    uint32_t id;
    const char *path;
    bool activate;
    char site[OP_SITE_MAX];
};

/* By the end of its name. */
enum stage_language { STAGE_UNKNOWN, STAGE_C, STAGE_CUDA, STAGE_HOSTED };
enum stage_language stage_language(const struct engine *e, const char *path);
/* Errors: RS_EIO (file, temporary folder, no compiler), RS_ESTATE (one is being staged), RS_EUNSUPPORTED. The rest comes by msg_reply(). */
enum rs_result stage_start(struct engine *e, const struct stage_request *r, struct rs_error *err);
/* Has the child ended? Then finish. Called between steps; costs nothing when nothing is staged. */
void stage_poll(struct engine *e);
void stage_client_gone(struct engine *e, int slot);
void stage_close(struct engine *e);

#endif
