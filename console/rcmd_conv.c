/* rcmd_conv.c: /new, /retry, /save, /open: the conversation. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/fail.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "console/units.h"

static enum rs_result exec_new(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    (void)err;
    char *was = xasprintf("%zu messages", con->conv.n);
    conv_clear(&con->conv);
    chat_forget(con);
    rcmd_changed(con, "conversation", was, "new", NAN);
    free(was);
    return RS_OK;
}

const struct rcmd_entry rcmd_new_entry = {
    .name = "new",
    .args = "",
    .summary = "begin a new conversation",
    .help = "Begins a new conversation. The system message and the settings stay.",
    .changes = true,
    .exec = exec_new,
};

static enum rs_result exec_retry(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    return chat_again(con, err);
}

const struct rcmd_entry rcmd_retry_entry = {
    .name = "retry",
    .args = "",
    .summary = "have the last message answered again",
    .help = "Answers the last message again, with the settings, mode and patches of now. The answer that was there is replaced.",
    .changes = true,
    .exec = exec_retry,
};

static enum rs_result exec_save(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0')
        return rcmd_usage(self, err);
    char *path = paths_expand(args);
    json_t *root = chat_to_json(con);
    char took[32];
    double start = rcmd_ms();
    enum rs_result r = conv_save(path, root, err);
    if (r == RS_OK)
        out_printf(con->out, OUT_NOTE, "saved %zu messages (%s)\n", con->conv.n, units_us(took, (rcmd_ms() - start) * 1e3));
    json_decref(root);
    free(path);
    return r;
}

const struct rcmd_entry rcmd_save_entry = {
    .name = "save",
    .args = "FILE",
    .summary = "write the conversation to a file",
    .help = "Writes the conversation and its settings as JSON. A file of that name is replaced only once the new one is complete.",
    .complete = RCMD_COMPLETE_FILE,
    .exec = exec_save,
};

static enum rs_result exec_open(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args == '\0')
        return rcmd_usage(self, err);
    char *path = paths_expand(args);
    json_t *root;
    enum rs_result r = conv_load(path, &root, err);
    if (r == RS_OK) {
        r = chat_restore(con, root, err);
        if (r != RS_OK) {
            struct rs_error why = *err;
            fail_set(err, r, "%s: %s", path, why.msg);
        } else {
            const char *made = js_str(root, "model.hash", NULL), *here = js_str(con->info, "model.hash", NULL);
            out_printf(con->out, OUT_NOTE, "conversation: %zu messages from %s\n", con->conv.n, args);
            if (made != NULL && here != NULL && strcmp(made, here) != 0)
                out_printf(con->out, OUT_WARN, "it was held with another model (%s)\n", js_str(root, "model.name", "unnamed"));
        }
        json_decref(root);
    }
    free(path);
    return r;
}

const struct rcmd_entry rcmd_open_entry = {
    .name = "open",
    .args = "FILE",
    .summary = "go on with a conversation that was saved",
    .help = "Reads a file that /save wrote and goes on with its conversation, system message and settings. When the file is no good "
            "nothing changes.",
    .complete = RCMD_COMPLETE_FILE,
    .changes = true,
    .exec = exec_open,
};
