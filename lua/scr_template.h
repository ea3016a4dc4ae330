/* scr_template.h: chat templates in Lua.
 *
 * A template turns a conversation into the text that the model was trained on. Each is a Lua file of lua/templates/; init.lua there chooses
 * one by what the model file's own template contains. They run in a Lua state of their own that can reach no file, no process and no clock,
 * with a bound on instructions and memory: a template may come from anywhere. One thread per template. */
#ifndef RANKSCOPE_LUA_SCR_TEMPLATE_H
#define RANKSCOPE_LUA_SCR_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/rankscope.h"

struct scr_template;

struct scr_message {
    const char *role; /* "system", "user", "assistant", "tool" */
    const char *content;
    const char *thinking; /* what the assistant thought before it; or NULL */
};

enum scr_think { SCR_THINK_DEFAULT, SCR_THINK_ON, SCR_THINK_OFF };

/* What templates are chosen by; any member may be NULL. */
struct scr_template_hint {
    const char *source; /* the chat template inside the model file */
    const char *arch, *pre;
    long context; /* tokens that the model was trained for; 0: unknown */
};

/* A piece of rendered text. Only special pieces may become control tokens: what a person typed never does. */
struct scr_segment {
    char *text;
    size_t len;
    bool special;
};

struct scr_rendered {
    struct scr_segment *segments;
    size_t n;
    bool thinking; /* the text ends inside a thought */
};

/* Choose one of those that come with the program. folder is the one that holds templates/. RS_ENOTFOUND: none fits the model. */
enum rs_result scr_template_choose(const char *folder, const struct scr_template_hint *hint, struct scr_template **out,
                                   struct rs_error *err);

/* Load one file, which may require what is in folder. Errors name file and line. */
enum rs_result scr_template_load(const char *folder, const char *file, const struct scr_template_hint *hint, struct scr_template **out,
                                 struct rs_error *err);

/* The name that the template gives itself, or its file name; belongs to the template. */
const char *scr_template_name(const struct scr_template *t);

/* Render. The result is the caller's: scr_rendered_fini(). Errors name file and line. */
enum rs_result scr_template_render(struct scr_template *t, const struct scr_message *messages, size_t n, enum scr_think think,
                                   struct scr_rendered *out, struct rs_error *err);

void scr_rendered_fini(struct scr_rendered *r);
void scr_template_free(struct scr_template *t); /* NULL is allowed */

#endif
