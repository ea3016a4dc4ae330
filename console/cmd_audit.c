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
    {.name = "synthetic", .type = OPT_CHOICE, .choices = ONESHOT_SHAPES, .help = "the shapes of a known model, without a file"},
    {.name = "layers", .type = OPT_INT, .arg = "N", .min = 1, .max = 512, .help = "synthetic: only the first N layers"},
    {.name = "recipe", .type = OPT_FILE, .arg = "FILE", .help = "synthetic: lines \"GLOB TYPE\" for tensor names, the last match counts"},
    {.name = "split", .type = OPT_CHOICE, .choices = "tp|ep", .help = "deal experts by slices of each (tp) or whole (ep)"},
    {.name = "gpus", .type = OPT_INT, .arg = "N", .min = 1, .max = RS_MAX_RANKS, .help = "say what fits on N GPUs; without it on those that are here"},
    {.name = "gpu-memory", .type = OPT_FLOAT, .arg = "GIB", .min = 0.001, .max = 1e6, .help = "of so much memory each; without it as much as those here have"},
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
    const char *path = v->n_args > 0 ? v->args[0] : opt_string(v, "model", NULL);
    json_t *o = json_object();
    enum rs_result r = oneshot_synthetic(v, path != NULL, false, o, err);
    bool synthetic = json_object_get(o, "synthetic") != NULL;
    if (r == RS_OK && path == NULL && !synthetic && (path = shipped = paths_shipped_model()) == NULL)
        r = fail_set(err, RS_EUSAGE, "which FILE?");
    if (r != RS_OK) {
        json_decref(o);
        return r;
    }
    if (!synthetic)
        json_object_set_new(o, "path", js_text(path, strlen(path)));
    json_object_set_new(o, "ranks", json_integer(opt_int(v, "ranks", synthetic ? 8 : con_default_ranks(path))));
    if (opt_set(v, "split"))
        json_object_set_new(o, "split", json_string(opt_string(v, "split", "tp")));
    if (opt_set(v, "gpus"))
        json_object_set_new(o, "gpus", json_integer(opt_int(v, "gpus", 0)));
    if (opt_set(v, "gpu-memory"))
        json_object_set_new(o, "gpu_memory", json_real(opt_float(v, "gpu-memory", 0)));
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
