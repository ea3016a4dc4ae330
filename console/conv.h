/* conv.h: a conversation, and its file.
 *
 * A conversation is the list of what was said, plus an optional system message. In files and in the engine's session store it is JSON
 * with a version, so that a later program reads what an earlier one wrote. Thread of the user interface; a struct conv owns its strings. */
#ifndef RANKSCOPE_CONSOLE_CONV_H
#define RANKSCOPE_CONSOLE_CONV_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/rankscope.h"

enum conv_role { CONV_USER, CONV_ASSISTANT };

struct conv_message {
    enum conv_role role;
    char *text;
    char *thinking; /* assistant only; NULL when there was none */
    bool cut;       /* assistant only: stopped before its end */
};

struct conv {
    char *system; /* or NULL */
    struct conv_message *messages;
    size_t n;
};

/* Add a message; text and thinking (may be NULL) are copied. */
void conv_add(struct conv *c, enum conv_role role, const char *text, const char *thinking, bool cut);

/* Drop the last message; nothing happens when there is none. */
void conv_drop_last(struct conv *c);

/* Drop all messages; the system message stays. */
void conv_clear(struct conv *c);
void conv_fini(struct conv *c);

/* {"rankscope_conversation":1,"system","messages":[{"role","content","thinking","cut"}]}; new reference. */
json_t *conv_to_json(const struct conv *c);

/* Fill *out (zero-initialised) from that object. RS_EFORMAT names the member that is wrong and leaves *out empty. */
enum rs_result conv_from_json(const json_t *json, struct conv *out, struct rs_error *err);

/* Write root to path: into a temporary file beside it first, which then takes its name. When anything fails, a full disk too, the old file
 * is untouched and the temporary one is gone. */
enum rs_result conv_save(const char *path, const json_t *root, struct rs_error *err);

/* Read a file that conv_save wrote; the caller gets the whole object. Files over 64 MiB are refused. */
enum rs_result conv_load(const char *path, json_t **root, struct rs_error *err);

#endif
