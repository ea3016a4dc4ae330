/* rcmd_sampling.c: /system, /think, /temp and its like: what goes along with the next message. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/rcmd_list.h"
#include "console/sampling.h"

static enum rs_result exec_system(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    (void)self;
    (void)err;
    const char *was = con->conv.system != NULL ? con->conv.system : "(none)";
    if (*args == '\0') {
        char *line = text_one_line(was);
        out_printf(con->out, OUT_TEXT, "system: %s\n", line);
        free(line);
        return RS_OK;
    }
    bool none = strcmp(args, "none") == 0;
    rcmd_changed(con, "system", was, none ? "(none)" : args, NAN);
    free(con->conv.system);
    con->conv.system = none ? NULL : xstrdup(args);
    return RS_OK;
}

const struct rcmd_entry rcmd_system_entry = {
    .name = "system",
    .group = RCMD_CHAT,
    .args = "[TEXT | none]",
    .summary = "show or set the system message",
    .help = "Sets the system message of this conversation, from the next message on.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "none",
    .exec = exec_system,
};

static enum rs_result exec_think(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    static const char *const words[] = {"default", "on", "off"};
    if (*args == '\0') {
        out_printf(con->out, OUT_TEXT, "think: %s\n", words[con->think]);
        return RS_OK;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(args, words[i]) != 0)
            continue;
        rcmd_changed(con, "think", words[con->think], words[i], NAN);
        con->think = (enum con_think)i;
        return RS_OK;
    }
    return rcmd_usage(self, err);
}

const struct rcmd_entry rcmd_think_entry = {
    .name = "think",
    .group = RCMD_CHAT,
    .args = "[on|off|default]",
    .summary = "whether the model thinks before it answers",
    .help = "on and off ask for it or against it; default leaves it to the model's template.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "on|off|default",
    .exec = exec_think,
};

static enum rs_result exec_sampling(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    const struct opt *row = sampling_find(self->name);
    char *was = sampling_get(con->sampling, row);
    enum rs_result r = RS_OK;
    if (*args == '\0') {
        out_printf(con->out, OUT_TEXT, "%s: %s (%s)\n", self->name, was, row->help);
    } else {
        r = sampling_set(con->sampling, row, args, err);
        if (r == RS_OK) {
            char *now = sampling_get(con->sampling, row);
            rcmd_changed(con, self->name, was, now, NAN);
            free(now);
        }
    }
    free(was);
    return r;
}

#define SAMPLING_ENTRY(NAME, SUMMARY)                                                                                                      \
    const struct rcmd_entry rcmd_##NAME##_entry = {                                                                                        \
        .name = #NAME,                                                                                                                     \
        .group = RCMD_CHAT,                                                                                                                \
        .args = "[N | default]",                                                                                                           \
        .summary = SUMMARY,                                                                                                                \
        .complete = RCMD_COMPLETE_WORDS,                                                                                                   \
        .words = "default",                                                                                                                \
        .exec = exec_sampling,                                                                                                             \
    }

SAMPLING_ENTRY(temp, "temperature; 0 always takes the likeliest token");
SAMPLING_ENTRY(top_k, "choose among the N likeliest tokens");
SAMPLING_ENTRY(top_p, "choose among the likeliest that share N of the probability");
SAMPLING_ENTRY(min_p, "leave out tokens less likely than N times the likeliest one");
SAMPLING_ENTRY(seed, "seed of the random numbers");
SAMPLING_ENTRY(max, "end an answer after N tokens");
