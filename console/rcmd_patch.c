/* rcmd_patch.c: /patch: which implementation an operation uses. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/fail.h"
#include "console/js.h"
#include "console/paths.h"
#include "console/rcmd_list.h"
#include "console/setting.h"
#include "console/units.h"
#include "console/view.h"
#include "engine/rankscope.h"

static enum rs_result show_slot(struct con *con, const json_t *slots, const char *name, struct rs_error *err)
{
    struct rs_near near;
    char hint[80];
    rs_near_init(&near, name, strlen(name));
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const json_t *s = json_array_get(slots, i);
        if (strcmp(js_str(s, "slot", ""), name) == 0) {
            view_slot(con->out, s);
            return RS_OK;
        }
        rs_near_try(&near, js_str(s, "slot", ""));
    }
    return fail_set(err, RS_EUSAGE, "there is no patch slot '%s'%s; /patch list shows them", name, rs_near_hint(&near, "", hint, sizeof hint));
}

/* All slots, or the one of that name. */
static enum rs_result list(struct con *con, const char *name, struct rs_error *err)
{
    json_t *reply;
    enum rs_result r = con_request(con, "patch.list", NULL, &reply, err);
    if (r != RS_OK)
        return r;
    if (*name == '\0')
        view_patches(con->out, reply);
    else
        r = show_slot(con, json_object_get(reply, "slots"), name, err);
    json_decref(reply);
    return r;
}

/* The engine's journal says what a change really did: a preset sets several slots. Entries after generation `since` are shown; returns how
 * many there were. */
static size_t show_journal(struct con *con, json_int_t since)
{
    json_t *reply;
    size_t shown = 0;
    if (con_request(con, "patch.list", NULL, &reply, NULL) != RS_OK)
        return 0;
    const json_t *journal = json_object_get(reply, "journal");
    for (size_t i = 0; i < json_array_size(journal); i++) {
        const json_t *e = json_array_get(journal, i);
        if (js_int(e, "generation", 0) <= since)
            continue;
        const char *glob = js_str(e, "glob", "*");
        const char *slot = js_str(e, "slot", "?"), *from = js_str(e, "from", "-");
        if (strcmp(slot, "revert") == 0 || strcmp(slot, "reset") == 0) {
            out_printf(con->out, OUT_NOTE, "patches: %s to %s\n", slot, js_str(e, "to", "?"));
            shown++;
            continue;
        }
        bool everywhere = strcmp(glob, "*") == 0;
        char *what = xasprintf("patch %s%s%s", slot, everywhere ? "" : " at ", everywhere ? "" : glob);
        rcmd_changed(con, what, from, js_str(e, "to", "?"), js_num(e, "took_ms", NAN));
        free(what);
        shown++;
    }
    json_decref(reply);
    return shown;
}

/* Send a request that changes the table (args consumed) and tell what became of it. */
static enum rs_result change(struct con *con, const char *method, json_t *args, struct rs_error *err)
{
    json_int_t before = js_int(con->info, "state.generation", 0);
    json_t *reply;
    double start = rcmd_ms();
    enum rs_result r = con_request(con, method, args, &reply, err);
    if (r != RS_OK)
        return r;
    double ms = js_num(reply, "took_ms", rcmd_ms() - start);
    json_int_t after = js_int(reply, "generation", before);
    char *cost = xstrdup(js_str(reply, "cost", "swap"));
    json_decref(reply);
    if (show_journal(con, before) == 0) {
        char from[32], to[32];
        snprintf(from, sizeof from, "%lld", (long long)before);
        snprintf(to, sizeof to, "%lld", (long long)after);
        rcmd_changed(con, "patch generation", from, to, ms);
    } else {
        char took[32];
        out_printf(con->out, OUT_NOTE, "generation %lld, %s, %s in all\n", (long long)after, cost, units_us(took, ms * 1e3));
    }
    free(cost);
    return con_refresh(con, err);
}

/* A patch that moves or reads weights takes its time; who types it should know before it begins. */
static void announce_cost(struct con *con, const struct setting_patch *p)
{
    json_t *args = json_pack("{s:s, s:s, s:b}", "slot", p->slot, "impl", p->impl, "dry", 1), *reply;
    if (p->site[0] != '\0')
        json_object_set_new(args, "site", json_string(p->site));
    if (con_request(con, "patch.set", args, &reply, NULL) != RS_OK)
        return; /* the real request says what is wrong */
    const char *cost = js_str(reply, "cost", "");
    if (strcmp(cost, "reshard") == 0)
        out_printf(con->out, OUT_NOTE, "%s=%s: weights move between ranks\n", p->slot, p->impl);
    else if (strcmp(cost, "reload") == 0)
        out_printf(con->out, OUT_NOTE, "%s=%s: weights are read again\n", p->slot, p->impl);
    json_decref(reply);
}

/* "SLOT=IMPL", "SLOT=IMPL@SITES" or "SLOT=IMPL @SITES" */
static enum rs_result set(struct con *con, const char *text, struct rs_error *err)
{
    struct buf joined = {0};
    for (const char *p = text; *p != '\0'; p++) {
        const char *next = p + strspn(p, " \t");
        if (next == p || (joined.len > 0 && strchr("=@", joined.text[joined.len - 1]) == NULL && strchr("=@", *next) == NULL))
            buf_char(&joined, *p);
    }
    struct setting_patch p;
    enum rs_result r = setting_parse_patch(joined.text != NULL ? joined.text : "", &p, err);
    buf_fini(&joined);
    if (r != RS_OK)
        return r;
    announce_cost(con, &p);
    json_t *args = json_pack("{s:s, s:s}", "slot", p.slot, "impl", p.impl);
    if (p.site[0] != '\0')
        json_object_set_new(args, "site", json_string(p.site));
    return change(con, "patch.set", args, err);
}

static enum rs_result revert(struct con *con, const char *text, struct rs_error *err)
{
    json_t *args = json_object();
    if (*text != '\0') {
        char *end;
        errno = 0;
        long to = strtol(text, &end, 10);
        if (errno != 0 || *end != '\0' || to < 0) {
            json_decref(args);
            return fail_set(err, RS_EUSAGE, "'%s' is not a generation", text);
        }
        json_object_set_new(args, "to", json_integer(to));
    }
    return change(con, "patch.revert", args, err);
}

/* The reply comes when the file is compiled and tested; the engine runs on meanwhile. */
static enum rs_result load(struct con *con, const char *typed, struct rs_error *err)
{
    char *path = paths_file(typed), took[32];
    json_t *reply, *args = json_pack("{s:o}", "path", js_text(path, strlen(path)));
    enum rs_result r = con_request(con, "patch.load", args, &reply, err);
    free(path);
    if (r != RS_OK)
        return r;
    out_printf(con->out, OUT_NOTE, "%s: for ops of kind %s, %s; self-test off by %.2g at most; %s. /patch set user=%s uses it\n",
               js_str(reply, "name", "?"), js_str(reply, "kind", "?"), js_str(reply, "help", ""), js_num(reply, "selftest_worst", NAN),
               units_us(took, js_num(reply, "staged_ms", NAN) * 1e3), js_str(reply, "name", "?"));
    json_decref(reply);
    return RS_OK;
}

static void show_distance(struct con *con, const json_t *s)
{
    if (js_num(s, "compared", 0) <= 0)
        return;
    out_printf(con->out, OUT_NOTE, "  %.0f comparisons: apart by %.2g at most (relative L2; %s, rank %lld, step %lld), %.2g on average; %.2g ms a step\n",
               js_num(s, "compared", 0), js_num(s, "worst", INFINITY), js_str(s, "worst_site", "?"), (long long)js_int(s, "worst_rank", 0),
               (long long)js_int(s, "worst_step", 0), js_num(s, "mean", INFINITY), js_num(s, "ms_per_step", NAN));
    if (js_num(s, "other_experts", 0) > 0)
        out_printf(con->out, OUT_NOTE, "  other experts for %.0f rows\n", js_num(s, "other_experts", 0));
    const json_t *ops = json_object_get(s, "ops");
    for (size_t i = 0; i < json_array_size(ops) && i < 5; i++)
        out_printf(con->out, OUT_NOTE, "  %-32s %10.2g at most, %10.2g on average\n", js_str(json_array_get(ops, i), "site", "?"),
                   js_num(json_array_get(ops, i), "worst", INFINITY), js_num(json_array_get(ops, i), "mean", INFINITY));
}

/* "", "stop", or "NAME[@SITES] [STEPS]" */
static enum rs_result shadow(struct con *con, const char *text, struct rs_error *err)
{
    char name[64], sites[64] = "*";
    int steps = 64, end = 0;
    const bool begin = *text != '\0' && strcmp(text, "stop") != 0;
    json_t *reply, *args = NULL;
    if (begin) {
        bool ok = sscanf(text, "%63[^@ \t]%n", name, &end) == 1;
        text += ok ? end : 0;
        if (ok && *text == '@') {
            ok = sscanf(text, "@%63s%n", sites, &end) == 1;
            text += ok ? end : 0;
        }
        end = 0;
        if (ok && sscanf(text, "%d%n", &steps, &end) == 1)
            text += end;
        if (!ok || text[strspn(text, " \t")] != '\0')
            return fail_set(err, RS_EUSAGE, "/patch shadow: NAME[@SITES] [STEPS] or stop expected");
        args = json_pack("{s:s, s:s, s:i}", "impl", name, "site", sites, "steps", steps);
    }
    enum rs_result r = con_request(con, begin ? "patch.live" : *text != '\0' ? "patch.live.stop" : "patch.live.get", args, &reply, err);
    if (r != RS_OK)
        return r;
    const json_t *s = json_object_get(reply, "shadow");
    if (!json_is_object(s))
        out_printf(con->out, OUT_NOTE, "nothing was shadowed; /patch shadow NAME[@SITES] [STEPS] begins\n");
    else if (begin)
        out_printf(con->out, OUT_NOTE, "%s runs beside what is used at %s in the next %lld steps; /patch shadow says how far they are apart\n", js_str(s, "impl", "?"),
                   js_str(s, "site", "?"), (long long)js_int(s, "wanted", 0));
    else
        out_printf(con->out, OUT_NOTE, "shadow of %s (%s) at %s: %lld of %lld steps, %s\n", js_str(s, "impl", "?"), js_str(s, "kind", "?"), js_str(s, "site", "?"),
                   (long long)js_int(s, "steps", 0), (long long)js_int(s, "wanted", 0), json_is_true(json_object_get(s, "running")) ? "running" : js_str(s, "ended", "?"));
    show_distance(con, s);
    json_decref(reply);
    return RS_OK;
}

static enum rs_result promote(struct con *con, const char *text, struct rs_error *err)
{
    json_t *args = json_object();
    if (*text != '\0') {
        char *end;
        double limit = strtod(text, &end);
        if (*end != '\0' || !(limit >= 0)) {
            json_decref(args);
            return fail_set(err, RS_EUSAGE, "'%s' is no distance", text);
        }
        json_object_set_new(args, "limit", json_real(limit));
    }
    return change(con, "patch.promote", args, err);
}

static enum rs_result exec_patch(const struct rcmd_entry *self, struct con *con, const char *args, struct rs_error *err)
{
    size_t n = strcspn(args, " \t");
    const char *rest = args + n + strspn(args + n, " \t");
    if (n == 0 || (n == 4 && strncmp(args, "list", 4) == 0))
        return list(con, n == 0 ? "" : rest, err);
    if (n == 3 && strncmp(args, "set", 3) == 0 && *rest != '\0')
        return set(con, rest, err);
    if (n == 6 && strncmp(args, "revert", 6) == 0)
        return revert(con, rest, err);
    if (n == 5 && strncmp(args, "reset", 5) == 0 && *rest == '\0')
        return change(con, "patch.reset", NULL, err);
    if (n == 4 && strncmp(args, "load", 4) == 0 && *rest != '\0')
        return load(con, rest, err);
    if (n == 6 && strncmp(args, "shadow", 6) == 0)
        return shadow(con, rest, err);
    if (n == 7 && strncmp(args, "promote", 7) == 0)
        return promote(con, rest, err);
    if (strchr(args, '=') != NULL && strncmp(args, "set ", 4) != 0)
        return set(con, args, err);
    return rcmd_usage(self, err);
}

const struct rcmd_entry rcmd_patch_entry = {
    .name = "patch",
    .group = RCMD_MODEL,
    .lists = true,
    .args = "[list [SLOT] | set SLOT=IMPL [@SITES] | load FILE | shadow [NAME[@SITES] [STEPS] | stop] | promote [LIMIT] | revert [GENERATION] | reset]",
    .summary = "show or change which implementation an operation uses",
    .help = "list shows every slot with what it uses now, what it could use and what a change costs, or one slot in full. set changes one slot, everywhere or "
            "at the sites "
            "that match the pattern SITES (blk.3.*); the word set may be left out. revert goes one generation back, or to GENERATION. "
            "reset puts every "
            "slot on its default. load compiles a patch from a C file, or on GPUs from one in CUDA C (.cu), or reads one in Lua (.lua), tests it in a process of "
            "its own and makes "
            "it known to the slot user, for ops of its own kind; any kind can be replaced but pick_rows, hidden and, in CUDA C, allreduce. scripts/patches has "
            "examples. shadow lets a loaded patch compute beside what is used, in the next STEPS steps of "
            "whatever runs (64), and says how far they are apart; promote puts it in, unless that is more than LIMIT. A change takes effect between two "
            "steps, on all ranks at once.",
    .complete = RCMD_COMPLETE_PATCH,
    .exec = exec_patch,
};
