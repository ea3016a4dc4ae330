/* cmd_quantize.c: quantize and synth: commands that write model files. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/units.h"

static const struct opt s_quantize[] = {
    {.name = "type", .letter = 't', .type = OPT_STRING, .arg = "T", .help = "one type for all matrices: Q8_0, Q6_K, Q5_K, Q4_K, ..."},
    {.name = "recipe", .type = OPT_FILE, .arg = "FILE", .help = "lines \"GLOB TYPE\" for tensor names, the last match counts; other tensors stay as they are"},
    {.name = "workers", .type = OPT_INT, .arg = "N", .min = 1, .max = 256, .help = "CPU threads"},
    {.name = "isa", .type = OPT_CHOICE, .choices = "portable|avx2|avx512", .help = "vector instructions to use"},
    {0},
};

static const struct opt s_synth[] = {
    {.name = "arch", .type = OPT_CHOICE, .choices = ONESHOT_SHAPES, .help = "whose shapes"},
    {.name = "output", .letter = 'o', .type = OPT_FILE, .arg = "FILE", .help = "the file to write"},
    {.name = "layers", .type = OPT_INT, .arg = "N", .min = 1, .max = 512, .help = "only the first N layers"},
    {.name = "experts", .type = OPT_INT, .arg = "N", .min = 1, .max = 512, .help = "only N experts in a layer"},
    {.name = "vocab", .type = OPT_INT, .arg = "N", .min = 512, .max = 1e6, .help = "only N tokens"},
    {.name = "type", .letter = 't', .type = OPT_STRING, .arg = "T", .help = "one type for all matrices"},
    {.name = "recipe", .type = OPT_FILE, .arg = "FILE", .help = "lines \"GLOB TYPE\" for tensor names, the last match counts"},
    {.name = "seed", .type = OPT_INT, .arg = "N", .min = 0, .max = 1e15, .help = "seed of the random weights"},
    {.name = "workers", .type = OPT_INT, .arg = "N", .min = 1, .max = 256, .help = "CPU threads"},
    {.name = "isa", .type = OPT_CHOICE, .choices = "portable|avx2|avx512", .help = "vector instructions to use"},
    {0},
};

static enum rs_result add_types(const struct opt_values *v, json_t *args, struct rs_error *err)
{
    if (opt_set(v, "type"))
        json_object_set_new(args, "type", js_text(opt_string(v, "type", ""), strlen(opt_string(v, "type", ""))));
    return oneshot_recipe(v, args, err);
}

/* Ask an engine without a model; args is consumed. */
static enum exit_status run(const struct cmd_entry *self, const struct opt_values *v, const char *method, json_t *args, struct oneshot *s, json_t **reply)
{
    struct rs_error err = {0};
    if (add_types(v, args, &err) != RS_OK) {
        json_decref(args);
        return cmd_fail(self, &err);
    }
    enum exit_status status = oneshot_start_bare(s, self, v);
    if (status != EXIT_OK) {
        json_decref(args);
        return status;
    }
    if (con_request(&s->con, method, args, reply, &err) != RS_OK)
        return oneshot_fail(s, &err);
    return EXIT_OK;
}

static enum exit_status exec_quantize(const struct cmd_entry *self, const struct opt_values *v)
{
    struct oneshot s;
    json_t *reply;
    char in[32], out[32];
    if (opt_set(v, "type") == opt_set(v, "recipe"))
        return cmd_usage(self, "give --type or --recipe");
    json_t *args = json_object();
    json_object_set_new(args, "in", js_text(v->args[0], strlen(v->args[0])));
    json_object_set_new(args, "out", js_text(v->args[1], strlen(v->args[1])));
    enum exit_status status = run(self, v, "quantize", args, &s, &reply);
    if (status != EXIT_OK)
        return status;
    out_printf(s.con.out, OUT_NOTE, "%lld of %lld tensors changed, %s became %s (%.1f s)\n", (long long)js_int(reply, "changed", 0),
               (long long)js_int(reply, "tensors", 0), units_bytes(in, js_num(reply, "bytes_in", 0)), units_bytes(out, js_num(reply, "bytes_out", 0)),
               js_num(reply, "took_ms", 0) / 1e3);
    json_decref(reply);
    return oneshot_end(&s, EXIT_OK);
}

const struct cmd_entry cmd_quantize_entry = {
    .name = "quantize",
    .args = "IN OUT",
    .summary = "write a model file anew with other weight types",
    .help = "Keys, tensors and their order stay; matrices get the type that --type or a line of the recipe says. Vectors, routers and the indexer's head "
            "weights stay as they are, and rows that a type's block does not divide get the nearest type that fits. The file grows as OUT.part and gets its "
            "name when it is complete.",
    .tables = {s_quantize},
    .min_args = 2,
    .max_args = 2,
    .exec = exec_quantize,
};

static enum exit_status exec_synth(const struct cmd_entry *self, const struct opt_values *v)
{
    static const char *const numbers[] = {"layers", "experts", "vocab", "seed"};
    struct oneshot s;
    json_t *reply;
    if (!opt_set(v, "arch") || !opt_set(v, "output"))
        return cmd_usage(self, "which --arch, and -o FILE?");
    if (opt_set(v, "type") && opt_set(v, "recipe"))
        return cmd_usage(self, "give --type or --recipe, not both");
    json_t *args = json_object();
    json_object_set_new(args, "arch", json_string(opt_string(v, "arch", "")));
    json_object_set_new(args, "out", js_text(opt_string(v, "output", ""), strlen(opt_string(v, "output", ""))));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (opt_set(v, numbers[i]))
            json_object_set_new(args, numbers[i], json_integer(opt_int(v, numbers[i], 0)));
    enum exit_status status = run(self, v, "synth", args, &s, &reply);
    if (status != EXIT_OK)
        return status;
    out_printf(s.con.out, OUT_NOTE, "%s: random weights in the shapes of %s (%.1f s)\n", opt_string(v, "output", ""), opt_string(v, "arch", ""),
               js_num(reply, "took_ms", 0) / 1e3);
    json_decref(reply);
    return oneshot_end(&s, EXIT_OK);
}

const struct cmd_entry cmd_synth_entry = {
    .name = "synth",
    .args = "",
    .summary = "write a model of a known shape with random weights",
    .help = "For work on loading, shapes and speed: the tensors are as large and typed as those of the published model, the numbers mean nothing. Without "
            "--type and --recipe experts are Q4_K and Q5_K and other matrices Q8_0, as published quantisations have them. The file grows as FILE.part and "
            "gets its name when it is complete.",
    .tables = {s_synth},
    .exec = exec_synth,
};
