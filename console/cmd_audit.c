/* cmd_audit.c: what is in a model file and how it would be dealt to ranks. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/paths.h"
#include "console/view.h"

static const struct opt s_options[] = {
    {.name = "model", .letter = 'm', .type = OPT_FILE, .arg = "FILE", .help = "the same as naming FILE"},
    {.name = "ranks", .type = OPT_INT, .arg = "N", .min = 1, .max = RS_MAX_RANKS, .help = "deal the tensors to N ranks"},
    {.name = "synthetic", .type = OPT_CHOICE, .choices = "glm-5|glm-4.7-flash", .help = "the shapes of a known model, without a file"},
    {.name = "layers", .type = OPT_INT, .arg = "N", .min = 1, .max = 512, .help = "synthetic: only the first N layers"},
    {.name = "split", .type = OPT_CHOICE, .choices = "tp|ep", .help = "deal experts by slices of each (tp) or whole (ep)"},
    {.name = "verbose", .letter = 'v', .type = OPT_FLAG, .help = "every tensor with its range on every rank, instead of groups of layers"},
    {.name = "check", .type = OPT_FLAG, .help = "read all weights: scales that are not finite, hashes of whole slices"},
    {.name = "json", .type = OPT_FLAG, .help = "print the engine's JSON"},
    {.name = "workers", .type = OPT_INT, .arg = "N", .min = 1, .max = 4096, .help = "CPU threads"},
    {.name = "isa", .type = OPT_CHOICE, .choices = "portable|avx2|avx512", .help = "vector instructions to use"},
    {0},
};

static enum rs_result make_request(const struct opt_values *v, json_t **args, struct rs_error *err)
{
    char *shipped = NULL;
    const char *synthetic = opt_string(v, "synthetic", NULL);
    const char *path = v->n_args > 0 ? v->args[0] : opt_string(v, "model", NULL);
    if (synthetic != NULL && path != NULL)
        return fail_set(err, RS_EUSAGE, "either FILE or --synthetic");
    if (path == NULL && synthetic == NULL)
        path = shipped = paths_shipped_model();
    if (path == NULL && synthetic == NULL)
        return fail_set(err, RS_EUSAGE, "which FILE?");
    json_t *o = json_object();
    json_object_set_new(o, synthetic != NULL ? "synthetic" : "path", synthetic != NULL ? json_string(synthetic) : js_text(path, strlen(path)));
    json_object_set_new(o, "ranks", json_integer(opt_int(v, "ranks", synthetic != NULL ? 8 : con_default_ranks(path))));
    if (opt_set(v, "layers"))
        json_object_set_new(o, "layers", json_integer(opt_int(v, "layers", 0)));
    if (opt_set(v, "split"))
        json_object_set_new(o, "split", json_string(opt_string(v, "split", "tp")));
    if (opt_set(v, "check"))
        json_object_set_new(o, "check", json_true());
    free(shipped);
    *args = o;
    return RS_OK;
}

static enum exit_status exec_audit(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    json_t *args = NULL, *reply;
    if (v->n_args > 0 && opt_set(v, "model"))
        return cmd_usage(self, "name the file once");
    if (make_request(v, &args, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum exit_status status = oneshot_start_bare(&s, self, v);
    if (status != EXIT_OK) {
        json_decref(args);
        return status;
    }
    if (con_request(&s.con, "audit", args, &reply, &err) != RS_OK)
        return oneshot_fail(&s, &err);
    if (opt_set(v, "json")) {
        char *text = js_dump(reply, JSON_INDENT(1));
        puts(text);
        free(text);
    } else {
        view_audit(s.con.out, reply, opt_set(v, "verbose"));
    }
    json_decref(reply);
    return oneshot_end(&s, EXIT_OK);
}

const struct cmd_entry cmd_audit_entry = {
    .name = "audit",
    .args = "[FILE]",
    .summary = "say what a model file holds and how it is dealt to ranks",
    .help = "Reads the head of a model file, loads nothing, and prints: what it is, which values are missing in it and what is taken "
            "instead, the fused "
            "weights with their order in the file and in the computation, which part of every tensor goes to which rank, the memory of "
            "each rank and "
            "the all-reduces of a step.",
    .tables = {s_options},
    .max_args = 1,
    .exec = exec_audit,
};
