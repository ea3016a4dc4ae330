/* setting.h: engine options (policies, not patches) and patches as people write them: NAME=VALUE, SLOT=IMPL[@SITES]. Any thread. */
#ifndef RANKSCOPE_CONSOLE_SETTING_H
#define RANKSCOPE_CONSOLE_SETTING_H

#include <jansson.h>

#include "engine/rankscope.h"

struct setting {
    const char *name;    /* as written: "graph.guard" */
    const char *key;     /* as the protocol has it: "graph_guard" */
    const char *choices; /* words separated by '|'; "on|off" travels as a boolean */
    const char *help;
};

/* Ends with a row whose name is NULL. */
extern const struct setting setting_table[];

const struct setting *setting_find(const char *name);

/* The JSON value of word, or NULL when it is none of the choices. New reference. */
json_t *setting_value(const struct setting *s, const char *word);

/* The word for a value that the engine has, as it would be written; caller frees. */
char *setting_word(const struct setting *s, const json_t *value);

/* Add "NAME=VALUE" to args under its protocol key. RS_EUSAGE says what would be right. */
enum rs_result setting_add(json_t *args, const char *text, struct rs_error *err);

/* "SLOT=IMPL" or "SLOT=IMPL@SITES". */
struct setting_patch {
    char slot[64], impl[64], site[128]; /* site "" when none was named */
};

enum rs_result setting_parse_patch(const char *text, struct setting_patch *out, struct rs_error *err);

#endif
