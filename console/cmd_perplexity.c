/* cmd_perplexity.c: how well the model predicts a text. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"

static const struct opt s_options[] = {
    {.name = "ids", .type = OPT_STRING, .arg = "LIST", .help = "token ids, separated by commas or spaces"},
    {.name = "file", .letter = 'f', .type = OPT_FILE, .arg = "FILE", .help = "a text file; - reads standard input"},
    {.name = "window",
     .type = OPT_INT,
     .arg = "N",
     .min = 2,
     .max = 1e9,
     .help = "tokens that are run together; without it as many as the model's context has"},
    {.name = "json", .type = OPT_FLAG, .help = "print one JSON object: nll, perplexity, tokens, windows"},
    {0},
};

struct total {
    double nll;             /* sum over predicted tokens, natural logarithm */
    size_t tokens, windows; /* predicted tokens: the first of a window is not predicted */
};

static enum rs_result get_ids(struct con *con, const struct opt_values *v, const char *text, json_t **ids, struct rs_error *err)
{
    if (text == NULL)
        return cmd_parse_ids(opt_string(v, "ids", ""), ids, err);
    json_t *reply;
    enum rs_result r = con_request(con, "encode", json_pack("{s:s}", "text", text), &reply, err);
    if (r != RS_OK)
        return r;
    *ids = js_or_null(reply, "ids");
    json_decref(reply);
    return RS_OK;
}

static enum rs_result run_window(struct con *con, const json_t *ids, size_t from, size_t n, struct total *t, struct rs_error *err)
{
    json_t *part = json_array(), *reply;
    for (size_t i = 0; i < n; i++)
        json_array_append(part, json_array_get(ids, from + i));
    json_t *args = json_pack("{s:o, s:s}", "ids", part, "logits", "none");
    enum rs_result r = con_request(con, "forward", args, &reply, err);
    if (r != RS_OK)
        return r;
    double nll = js_num(reply, "nll", NAN);
    json_decref(reply);
    t->nll += nll * (double)(n - 1);
    t->tokens += n - 1;
    t->windows++;
    return RS_OK;
}

static enum rs_result run(struct con *con, const struct opt_values *v, const json_t *ids, struct total *t, struct rs_error *err)
{
    size_t n = json_array_size(ids);
    size_t window = (size_t)opt_int(v, "window", (long)js_int(con->info, "model.context", 2048));
    if (n < 2)
        return fail_set(err, RS_EUSAGE, "at least two tokens are needed, there %s %zu", n == 1 ? "is" : "are", n);
    if (window < 2)
        window = 2048;
    for (size_t from = 0; from + 1 < n; from += window) {
        enum rs_result r = run_window(con, ids, from, n - from < window ? n - from : window, t, err);
        if (r != RS_OK)
            return r;
        if (con->out->terminal && n > window) {
            char *line = xasprintf("%zu of %zu tokens", from + window < n ? from + window : n, n);
            con->out->progress(con->out, line);
            free(line);
        }
    }
    con->out->progress(con->out, NULL);
    return RS_OK;
}

static void print_total(const struct total *t, bool json)
{
    double nll = t->nll / (double)t->tokens;
    if (!json) {
        printf("nll %.6f\nperplexity %.4f\ntokens %zu\n", nll, exp(nll), t->tokens);
        return;
    }
    /* A result that is not finite has no JSON number: null. */
    json_t *o = json_object();
    json_object_set_new(o, "nll", isfinite(nll) ? json_real(nll) : json_null());
    json_object_set_new(o, "perplexity", isfinite(exp(nll)) ? json_real(exp(nll)) : json_null());
    json_object_set_new(o, "tokens", json_integer((json_int_t)t->tokens));
    json_object_set_new(o, "windows", json_integer((json_int_t)t->windows));
    char *text = js_dump(o, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(o);
}

static enum exit_status exec_perplexity(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    struct total t = {0};
    json_t *ids = NULL;
    char *text = NULL;
    if (opt_set(v, "ids") == opt_set(v, "file"))
        return cmd_usage(self, "give either --ids LIST or --file FILE");
    if (opt_set(v, "file") && cmd_read_text(opt_string(v, "file", "-"), &text, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum exit_status status = oneshot_start(&s, self, v, NULL);
    if (status != EXIT_OK) {
        free(text);
        return status;
    }
    enum rs_result r = get_ids(&s.con, v, text, &ids, &err);
    free(text);
    if (r == RS_OK)
        r = run(&s.con, v, ids, &t, &err);
    json_decref(ids);
    if (r != RS_OK)
        return oneshot_fail(&s, &err);
    print_total(&t, opt_set(v, "json"));
    return oneshot_end(&s, EXIT_OK);
}

const struct cmd_entry cmd_perplexity_entry = {
    .name = "perplexity",
    .args = "",
    .summary = "say how well the model predicts a text",
    .help = "Prints the mean negative log-likelihood of the tokens (natural logarithm; the first token of a window is not predicted), the "
            "perplexity, "
            "which is its exponential, and how many tokens were predicted. A text longer than the window is cut into windows that know "
            "nothing of "
            "each other.",
    .tables = {s_options, oneshot_table},
    .max_args = 0,
    .exec = exec_perplexity,
};
