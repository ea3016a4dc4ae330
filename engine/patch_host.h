/* Patches in another language than C. Who starts an engine may give it a host (rs_local_params) that reads files of that language and computes ops
 * with them; the engine itself knows no such language. The room lua/ has one for Lua (lua/scr_op.h). This header and what it includes are all
 * that a host sees of the engine.
 *
 * A hosted patch works on copies: what it writes reaches the call's tensors, cache and choices only when run() has succeeded, so that a step whose
 * patch failed can be computed again without it. */
#ifndef RANKSCOPE_ENGINE_PATCH_HOST_H
#define RANKSCOPE_ENGINE_PATCH_HOST_H

#include "engine/patch_api.h"
#include "engine/rankscope.h"

struct rs_patch_host {
    const char *suffix; /* of its files, ".lua" */
    /* Read `file`, which messages call `name`, and make it ready for calls by n_threads threads. *patch: its name, kind and help, valid until close();
     * run is NULL. Any thread. Errors: RS_EIO, RS_ENOMEM, RS_EFORMAT (message with file and line). */
    enum rs_result (*open)(const char *file, const char *name, unsigned n_threads, void **out, struct rankscope_patch_v1 *patch, struct rs_error *err);
    /* The whole of a call (its share is everything). Calls of one `thread` number do not overlap; those of different numbers may. Bounded in time. false:
     * it failed, nothing was written, and why says where and what. */
    bool (*run)(void *hosted, unsigned thread, const struct rankscope_call *call, char *why, size_t cap);
    void (*close)(void *hosted);
};

#endif
