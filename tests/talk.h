/* Tests that talk to an engine inside this process: requests as formatted JSON, replies as jansson objects, nothing hidden. A request that fails
 * unexpectedly is a failed test; the caller gets an empty object. */
#ifndef RANKSCOPE_TESTS_TALK_H
#define RANKSCOPE_TESTS_TALK_H

#include <jansson.h>

#include "engine/rankscope.h"

#define TALK_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* An engine with two workers and a model of the source tree ("models/x.gguf") open. extra: more members for "open", such as "\"ranks\":4". */
struct rs_engine *talk_open(const char *model, const char *extra);
/* The same with a host for patches in Lua; `rankscope` of the build tests them. */
struct rs_engine *talk_open_hosted(const char *model, const char *extra, const struct rs_patch_host *host);
/* The name of a file in the test's scratch folder that holds this text; valid until the next call. */
const char *talk_file(const char *name, const char *text);
/* The reply to a request; caller decrefs. Single quotes in fmt become double quotes. */
json_t *talk(struct rs_engine *e, const char *method, const char *fmt, ...) TALK_PRINTF(3, 4);
/* The same with the reply's blob; caller frees it. */
json_t *talk_blob(struct rs_engine *e, void **blob, size_t *len, const char *method, const char *fmt, ...) TALK_PRINTF(5, 6);
/* The error code of a request that must fail; msg (may be NULL) receives the message, valid until the next call. */
enum rs_result talk_error(struct rs_engine *e, const char **msg, const char *method, const char *fmt, ...) TALK_PRINTF(4, 5);
/* Wait for the next event of a type; its JSON (caller decrefs), or NULL after ten seconds without one. Others are thrown away. */
json_t *talk_wait(struct rs_engine *e, enum rs_event_type type);
/* Submit ids or text and read tokens until done: their ids into tok[cap]; the DONE object, caller decrefs. */
json_t *talk_generate(struct rs_engine *e, const char *prompt, int max_tokens, int32_t *tok, size_t cap, size_t *n);

/* Walk into objects and arrays: "a.b.0.c". NULL when it is not there; borrowed. */
json_t *talk_at(json_t *o, const char *path);
double talk_num(json_t *o, const char *path); /* NAN */
const char *talk_str(json_t *o, const char *path); /* "" */

#endif
