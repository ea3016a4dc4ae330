/* sampling.h: how tokens are chosen: one table for the options of `chat`, the commands /temp and so on, and the submit request. */
#ifndef RANKSCOPE_CONSOLE_SAMPLING_H
#define RANKSCOPE_CONSOLE_SAMPLING_H

#include <jansson.h>

#include "console/opt.h"
#include "engine/rankscope.h"

/* The rows; the submit key of a row is its name with '_' for '-', except "max", which is max_tokens. */
extern const struct opt sampling_table[];

/* Put every option that was given into obj, and temp=0 where none was. RS_EUSAGE: a logit bias that is none. */
enum rs_result sampling_from_options(json_t *obj, const struct opt_values *v, struct rs_error *err);

/* Take over what a saved conversation has. RS_EFORMAT names a value that is of the wrong type or out of its range; the rest is left out. */
enum rs_result sampling_from_json(json_t *obj, const json_t *saved, struct rs_error *err);

/* The row that a command such as "top_k" sets, or NULL. */
const struct opt *sampling_find(const char *command);

/* Its submit key, in a buffer of the caller. */
const char *sampling_key(const struct opt *row, char *buf, size_t size);

/* Set a row from text ("default" unsets it). RS_EUSAGE says what would be right; obj is unchanged then. */
enum rs_result sampling_set(json_t *obj, const struct opt *row, const char *text, struct rs_error *err);

/* What is set, as text ("default" when nothing is); caller frees. */
char *sampling_get(const json_t *obj, const struct opt *row);

#endif
