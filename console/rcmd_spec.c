/* rcmd_spec.c: /spec: drafts by the NextN block. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/opt.h"
#include "console/rcmd_list.h"
#include "console/setting.h"
#include "console/view.h"

static const char *drafts_name(long long n, char buf[24])
{
    if (n == 0)
        return "off";
    snprintf(buf, 24, "%lld", n);
    return buf;
}

static enum rs_result exec_spec(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    json_t *reply;
    char was[24], now[24];
    if (*args == '\0') {
        enum rs_result r = con_request(con, "stats", json_object(), &reply, err);
        if (r != RS_OK)
            return r;
        out_printf(con->out, OUT_TEXT, "drafts per step: %s\n", drafts_name(js_int(reply, "spec.drafts", 0), now));
        view_spec(con->out, json_object_get(reply, "spec"));
        json_decref(reply);
        return RS_OK;
    }
    if (!opt_is_choice(self->words, args))
        return fail_set(err, RS_EUSAGE, "drafts per step are one of %s, not '%s'", self->words, args);
    long long before = js_int(con->info, "state.spec", 0);
    json_t *o = json_object();
    json_object_set_new(o, "spec", setting_value(setting_find("spec"), args));
    enum rs_result r = con_request(con, "set", o, &reply, err);
    if (r != RS_OK)
        return r;
    double ms = js_num(reply, "took_ms", NAN);
    long long after = js_int(reply, "spec", 0);
    if (con->info != NULL) {
        json_object_del(reply, "took_ms");
        json_object_set(con->info, "state", reply);
    }
    json_decref(reply);
    rcmd_changed(con, "spec", drafts_name(before, was), drafts_name(after, now), ms);
    return RS_OK;
}

const struct rcmd_entry rcmd_spec_entry = {
    .name = "spec",
    .group = RCMD_MODEL,
    .args = "[off|N]",
    .summary = "show or change how many tokens are drafted for each step",
    .help = "The model's NextN block drafts up to 8 tokens and the next step verifies them all at once. The text stays what it is without "
            "drafts. Without an argument the acceptance of drafts and the time of steps are shown.",
    .complete = RCMD_COMPLETE_WORDS,
    .words = "off|1|2|3|4|5|6|7|8",
    .exec = exec_spec,
};
