/* cmd_logits.c: the numbers of one forward pass, for comparisons. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"

static const struct opt s_options[] = {
    {.name = "ids", .type = OPT_STRING, .arg = "LIST", .help = "token ids, separated by commas or spaces"},
    {.name = "all-logits", .type = OPT_FLAG, .help = "add the logits of every position under the key logits"},
    {0},
};

/* The rows that a blob of floats holds: where they start and how wide they are, as the reply describes them. */
struct rows {
    const float *at;
    size_t rows, width;
};

static enum rs_result find_rows(const json_t *reply, const char *what, size_t width, const void *blob, size_t blob_len, struct rows *out,
                                struct rs_error *err)
{
    const json_t *o = json_object_get(reply, what);
    json_int_t rows = js_int(o, "rows", -1), offset = js_int(o, "offset", -1);
    size_t floats = blob_len / sizeof(float);
    if (rows < 0 || offset < 0 || width == 0 || (size_t)offset > floats || (size_t)rows > (floats - (size_t)offset) / width)
        return fail_set(err, RS_EINTERNAL, "the engine's reply does not hold the %s that it promises", what);
    *out = (struct rows){.at = (const float *)blob + offset, .rows = (size_t)rows, .width = width};
    return RS_OK;
}

/* 9 significant digits give every float back exactly. Not-a-number and infinity have no JSON form: null. */
static void print_row(const struct rows *r, size_t i)
{
    const float *x = r->at + i * r->width;
    putchar('[');
    for (size_t k = 0; k < r->width; k++) {
        if (k > 0)
            putchar(',');
        if (x[k] - x[k] == 0)
            printf("%.9g", (double)x[k]);
        else
            fputs("null", stdout);
    }
    putchar(']');
}

static void print_rows(const char *key, const struct rows *r)
{
    printf(",\"%s\":[", key);
    for (size_t i = 0; i < r->rows; i++) {
        if (i > 0)
            putchar(',');
        print_row(r, i);
    }
    putchar(']');
}

static enum rs_result print_reply(const json_t *reply, const void *blob, size_t blob_len, bool all, struct rs_error *err)
{
    struct rows logits, layers;
    enum rs_result r = find_rows(reply, "logits", (size_t)js_int(reply, "vocab", 0), blob, blob_len, &logits, err);
    if (r == RS_OK)
        r = find_rows(reply, "layers", (size_t)js_int(reply, "layers.width", 0), blob, blob_len, &layers, err);
    if (r == RS_OK && logits.rows == 0)
        r = fail_set(err, RS_EINTERNAL, "the engine's reply has no logits");
    if (r != RS_OK)
        return r;
    char *argmax = js_dump(json_object_get(reply, "argmax_each"), JSON_COMPACT);
    printf("{\"argmax_each\":%s,\"last_logits\":", argmax);
    free(argmax);
    print_row(&logits, logits.rows - 1);
    print_rows("layer_last", &layers);
    if (all)
        print_rows("logits", &logits);
    puts("}");
    return RS_OK;
}

static enum exit_status exec_logits(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    json_t *ids, *reply;
    void *blob;
    size_t blob_len;
    bool all = opt_set(v, "all-logits");
    if (!opt_set(v, "ids"))
        return cmd_usage(self, "name the tokens with --ids LIST");
    if (cmd_parse_ids(opt_string(v, "ids", ""), &ids, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum exit_status status = oneshot_start(&s, self, v, NULL);
    if (status != EXIT_OK) {
        json_decref(ids);
        return status;
    }
    json_t *args = json_pack("{s:o, s:s, s:b}", "ids", ids, "logits", all ? "all" : "last", "layers", 1);
    if (con_request_blob(&s.con, "forward", args, &reply, &blob, &blob_len, &err) != RS_OK)
        return oneshot_fail(&s, &err);
    enum rs_result r = print_reply(reply, blob, blob_len, all, &err);
    free(blob);
    json_decref(reply);
    if (r != RS_OK)
        return oneshot_fail(&s, &err);
    return oneshot_end(&s, EXIT_OK);
}

const struct cmd_entry cmd_logits_entry = {
    .name = "logits",
    .args = "",
    .summary = "print logits and layer states of one forward pass",
    .help =
        "Runs the tokens once and prints JSON: argmax_each (the likeliest next token at every position), last_logits (at the last "
        "position) and "
        "layer_last: the residual stream at the last position, first the embedding, then the state after each layer but the last, then the "
        "state after the output norm. Numbers that are not finite are null.",
    .tables = {s_options, oneshot_table},
    .max_args = 0,
    .exec = exec_logits,
};
