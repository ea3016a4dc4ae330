/* rcmd_conv.c: /new, /retry, /rewind, /fork, /branch, /save, /open: the conversation. */
#include "config.h"

#include <errno.h>
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
    .group = RCMD_CHAT,
    .args = "",
    .summary = "begin a new conversation",
    .help = "Begins a new conversation. The system message and the settings stay.",
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
    .group = RCMD_CHAT,
    .args = "",
    .summary = "have the last message answered again",
    .help = "Answers the last message again, with the settings, mode and patches of now. The answer that was there is replaced.",
    .exec = exec_retry,
};

static bool tokens(const char *text, json_int_t *n)
{
    char *end;
    errno = 0;
    *n = strtoll(text, &end, 10);
    return *text != '\0' && *end == '\0' && errno == 0 && *n >= 0;
}

static enum rs_result exec_rewind(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    json_int_t n;
    return tokens(args, &n) ? chat_rewind(con, n, false, err) : rcmd_usage(self, err);
}

const struct rcmd_entry rcmd_rewind_entry = {
    .name = "rewind",
    .group = RCMD_CHAT,
    .args = "N",
    .summary = "take back the answer's last N tokens and go on from there",
    .help = "The answer goes on with the settings, mode and patches of now; what is in the cache of the part that stays is used again. Nothing else changed, the "
            "same tokens come again.",
    .exec = exec_rewind,
};

static enum rs_result exec_fork(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    json_int_t n;
    return tokens(args, &n) ? chat_rewind(con, n, true, err) : rcmd_usage(self, err);
}

const struct rcmd_entry rcmd_fork_entry = {
    .name = "fork",
    .group = RCMD_CHAT,
    .args = "N",
    .summary = "as /rewind, in a branch: the conversation as it was stays",
    .help = "A copy of the conversation without the last N tokens goes on; /branch leads back to the other one.",
    .exec = exec_fork,
};

/* One conversation: how many messages, and the last one of the person, by which it is known again. */
static void show_branch(struct con *con, json_int_t id)
{
    json_t *reply = NULL;
    const char *asked = "";
    size_t n = 0;
    if (con_request(con, "session.get", json_pack("{s:I}", "session", id), &reply, NULL) == RS_OK) {
        const json_t *messages = json_object_get(json_object_get(reply, "data"), "messages");
        n = json_array_size(messages);
        for (size_t i = 0; i < n; i++)
            if (strcmp(js_str(json_array_get(messages, i), "role", ""), "user") == 0)
                asked = js_str(json_array_get(messages, i), "content", "");
    }
    char *line = text_one_line(asked);
    size_t used, columns = 50, len = text_fit(line, columns, &used);
    out_printf(con->out, OUT_TEXT, "%3lld%s  %zu message%s%s%.*s%s\n", (long long)id, id == con->session ? " (this one)" : "", n, n == 1 ? "" : "s",
               *line != '\0' ? ": " : "", (int)len, line, line[len] != '\0' ? ".." : "");
    free(line);
    json_decref(reply);
}

static enum rs_result list_branches(struct con *con, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = con_request(con, "session.list", NULL, &reply, err);
    if (r != RS_OK)
        return r;
    const json_t *list = json_object_get(reply, "sessions");
    for (size_t i = json_array_size(list); i-- > 0;) {
        const json_t *s = json_array_get(list, i);
        show_branch(con, js_int(s, "session", 0));
    }
    if (json_array_size(list) == 0)
        out_str(con->out, OUT_NOTE, "there are no conversations yet\n");
    json_decref(reply);
    return RS_OK;
}

static enum rs_result exec_branch(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    json_int_t id;
    if (args[0] == '\0')
        return list_branches(con, err);
    if (!tokens(args, &id))
        return rcmd_usage(self, err);
    const json_int_t was = con->session;
    enum rs_result r = was != 0 ? chat_keep(con, err) : RS_OK;
    if (r != RS_OK)
        return r;
    con->session = 0; /* it stays in the engine */
    r = chat_attach(con, id, err);
    if (r != RS_OK && con->session == 0)
        con->session = was;
    return r;
}

const struct rcmd_entry rcmd_branch_entry = {
    .name = "branch",
    .group = RCMD_CHAT,
    .lists = true,
    .args = "[N]",
    .summary = "list the conversations of the engine, or go on with one",
    .exec = exec_branch,
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
    .group = RCMD_CHAT,
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
    .group = RCMD_CHAT,
    .args = "FILE",
    .summary = "go on with a conversation that was saved",
    .help = "Reads a file that /save wrote and goes on with its conversation, system message and settings. When the file is no good "
            "nothing changes.",
    .complete = RCMD_COMPLETE_FILE,
    .exec = exec_open,
};
