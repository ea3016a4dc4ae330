/* rcmd_observe.c: /stats, /allreduce, /ledger, /health, /audit: what the engine did. */
#include "config.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/fail.h"
#include "console/js.h"
#include "console/rcmd_list.h"
#include "console/view.h"

typedef void (*view_fn)(struct out *o, const json_t *reply);

static enum rs_result ask_and_view(struct con *con, const char *method, json_t *args, view_fn view, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = con_request(con, method, args, &reply, err);
    if (r != RS_OK)
        return r;
    view(con->out, reply);
    json_decref(reply);
    return RS_OK;
}

static enum rs_result exec_stats(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args != '\0' && strcmp(args, self->words) != 0)
        return rcmd_usage(self, err);
    if (*args != '\0') {
        enum rs_result r = con_request(con, "stats", json_pack("{s:b}", "reset", 1), NULL, err);
        if (r == RS_OK)
            out_str(con->out, OUT_NOTE, "stats: counting from here\n");
        return r;
    }
    if (con->answer.done != NULL) {
        char *line = chat_numbers(con);
        out_printf(con->out, OUT_TEXT, "last answer: %s\n\n", line);
        free(line);
    }
    return ask_and_view(con, "stats", NULL, view_stats, err);
}

const struct rcmd_entry rcmd_stats_entry = {
    .name = "stats",
    .group = RCMD_FIGURES,
    .lists = true,
    .args = "[reset]",
    .summary = "times of the last answer and of steps, by mode and kind of op",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "reset",
    .exec = exec_stats,
};

static enum rs_result exec_allreduce(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    return ask_and_view(con, "allreduce", NULL, view_allreduce, err);
}

const struct rcmd_entry rcmd_allreduce_entry = {
    .name = "allreduce",
    .group = RCMD_FIGURES,
    .lists = true,
    .args = "",
    .summary = "times and bandwidth of the all-reduces, by rank",
    .help = "Wait is how long a rank waited for the slowest one, transfer is the exchange itself, time is both. algbw is bytes divided by "
            "time, busbw "
            "is that times 2 (n - 1) / n for n ranks: what the links carry.",
    .exec = exec_allreduce,
};

/* Leave the ops whose site fits, or has this last name; returns how many. */
static size_t keep_sites(json_t *ops, const char *glob)
{
    for (size_t i = json_array_size(ops); i-- > 0;) {
        const char *site = js_str(json_array_get(ops, i), "site", ""), *dot = strrchr(site, '.');
        if (fnmatch(glob, site, 0) != 0 && (dot == NULL || strcmp(dot + 1, glob) != 0))
            json_array_remove(ops, i);
    }
    return json_array_size(ops);
}

static enum rs_result exec_ledger(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    char *end;
    errno = 0;
    const long n = strtol(args, &end, 10);
    if (*args == '\0')
        return ask_and_view(con, "ledger", NULL, view_ledger, err);
    if (*end == '\0' && errno == 0 && n >= 1)
        return ask_and_view(con, "ledger", json_pack("{s:I}", "limit", (json_int_t)n), view_ledger, err);
    json_t *reply;
    enum rs_result r = con_request(con, "ledger", NULL, &reply, err);
    if (r != RS_OK)
        return r;
    if (keep_sites(json_object_get(reply, "ops"), args) + keep_sites(json_object_get(reply, "nextn"), args) == 0)
        r = fail_set(err, RS_EUSAGE, "no op of the last step has a site like '%s' (blk.*.attn.norm, say; a number: so many ops)", args);
    else
        view_ledger(con->out, reply);
    json_decref(reply);
    return r;
}

const struct rcmd_entry rcmd_ledger_entry = {
    .name = "ledger",
    .group = RCMD_FIGURES,
    .lists = true,
    .args = "[N|SITES]",
    .summary = "what ran for each op of the last step, and why",
    .help = "Ops that differ in nothing but their layer are one line, with the sum of their times, of the weights and cache that they had to read "
            "(on a GPU with what their launch computed besides), and the rate of that. With N only the first N ops of the step "
            "are looked at, with SITES (blk.*.attn.norm, or a bare name: allreduce) those at sites like it.",
    .complete = RCMD_COMPLETE_SITES,
    .exec = exec_ledger,
};

static enum rs_result exec_health(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)args;
    return ask_and_view(con, "health", NULL, view_health, err);
}

const struct rcmd_entry rcmd_health_entry = {
    .name = "health",
    .group = RCMD_FIGURES,
    .lists = true,
    .args = "",
    .summary = "the verdict on the last output and the numbers behind it",
    .exec = exec_health,
};

static enum rs_result exec_audit(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    if (*args != '\0' && strcmp(args, self->words) != 0)
        return rcmd_usage(self, err);
    json_t *reply;
    enum rs_result r = con_request(con, "audit", NULL, &reply, err);
    if (r != RS_OK)
        return r;
    view_audit(con->out, reply, *args != '\0');
    json_decref(reply);
    return RS_OK;
}

const struct rcmd_entry rcmd_audit_entry = {
    .name = "audit",
    .group = RCMD_MODEL,
    .lists = true,
    .args = "[-v]",
    .summary = "how the model is dealt to ranks, what its file leaves out",
    .help = "With -v every tensor with its range on every rank, instead of groups of layers.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "-v",
    .exec = exec_audit,
};
