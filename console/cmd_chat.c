/* cmd_chat.c: one question, one answer. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/sampling.h"
#include "console/text.h"

static const struct opt s_options[] = {
    {.name = "prompt", .letter = 'p', .type = OPT_STRING, .arg = "TEXT", .help = "what to ask; - reads it from standard input"},
    {.name = "system", .letter = 's', .type = OPT_STRING, .arg = "TEXT", .help = "system message"},
    {.name = "think", .type = OPT_FLAG, .help = "let the model think first; without --think and --no-think the model's template decides"},
    {.name = "no-think", .type = OPT_FLAG, .help = "have it answer at once"},
    {.name = "chat-template", .type = OPT_FILE, .arg = "FILE.lua", .help = "use this template instead of the one that fits the model"},
    {.name = "raw",
     .type = OPT_FLAG,
     .help = "feed the text without a template; special tokens in it are recognised, those that are generated are left out"},
    {.name = "stats", .type = OPT_FLAG, .help = "print times and all-reduce numbers to standard error"},
    {.name = "json", .type = OPT_FLAG, .help = "print one JSON object instead of the text"},
    {0},
};

static void take_options(struct con *con, const struct opt_values *v)
{
    const char *system = opt_string(v, "system", NULL), *file = opt_string(v, "chat-template", NULL);
    con->conv.system = system != NULL ? xstrdup(system) : NULL;
    con->template_file = file != NULL ? xstrdup(file) : NULL;
    con->think = opt_set(v, "think") ? CON_THINK_ON : opt_set(v, "no-think") ? CON_THINK_OFF : CON_THINK_DEFAULT;
    con->answer.show = !opt_set(v, "json");
}

/* The words may come from a pipe, so they are read before a model is loaded for them. */
static enum rs_result read_prompt(const struct opt_values *v, char **prompt, struct rs_error *err)
{
    const char *given = opt_string(v, "prompt", v->n_args > 0 ? v->args[0] : NULL), *system = opt_string(v, "system", "");
    size_t bad;
    if (!text_valid(system, strlen(system), &bad))
        return fail_set(err, RS_EUSAGE, "the system message is not UTF-8 text");
    if (given == NULL)
        return fail_set(err, RS_EUSAGE, "say what to ask, as an argument or with -p TEXT");
    if (strcmp(given, "-") == 0)
        return cmd_read_text("-", prompt, err);
    if (!text_valid(given, strlen(given), &bad))
        return fail_set(err, RS_EUSAGE, "the prompt is not UTF-8 text");
    *prompt = xstrdup(given);
    return RS_OK;
}

static enum rs_result ask(struct con *con, const char *prompt, bool raw, struct rs_error *err)
{
    enum rs_result r;
    if (raw) {
        r = chat_start_raw(con, prompt, err);
    } else {
        conv_add(&con->conv, CONV_USER, prompt, NULL, false);
        r = chat_start(con, err);
    }
    return r == RS_OK ? chat_wait(con, err) : r;
}

static void report(struct oneshot *s, const struct opt_values *v)
{
    if (opt_set(v, "json")) {
        json_t *result = chat_result(&s->con);
        char *text = js_dump(result, JSON_COMPACT);
        out_printf(s->con.out, OUT_TEXT, "%s\n", text);
        free(text);
        json_decref(result);
    }
    chat_outcome(&s->con);
    if (opt_set(v, "stats")) {
        char *line = chat_numbers(&s->con);
        out_printf(s->con.out, OUT_NOTE, "%s\n", line);
        free(line);
    }
}

static enum exit_status exec_chat(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    char *prompt;
    if (opt_set(v, "think") && opt_set(v, "no-think"))
        return cmd_usage(self, "--think and --no-think exclude each other");
    if (opt_set(v, "prompt") && v->n_args > 0)
        return cmd_usage(self, "say once what to ask: '%s' or -p", v->args[0]);
    if (opt_set(v, "raw") && (opt_set(v, "system") || opt_set(v, "think") || opt_set(v, "no-think") || opt_set(v, "chat-template")))
        return cmd_usage(self, "--raw uses no template: it goes without --system, --think, --no-think and --chat-template");
    json_t *sampling = json_object();
    enum rs_result r = sampling_from_options(sampling, v, &err);
    if (r == RS_OK)
        r = read_prompt(v, &prompt, &err);
    if (r != RS_OK) {
        json_decref(sampling);
        return cmd_fail(self, &err);
    }
    enum exit_status status = oneshot_start(&s, self, v, NULL);
    if (status != EXIT_OK) {
        json_decref(sampling);
        free(prompt);
        return status;
    }
    json_decref(s.con.sampling);
    s.con.sampling = sampling;
    take_options(&s.con, v);
    r = ask(&s.con, prompt, opt_set(v, "raw"), &err);
    free(prompt);
    if (r != RS_OK)
        return oneshot_fail(&s, &err);
    report(&s, v);
    bool cancelled = strcmp(js_str(s.con.answer.done, "stop", ""), "cancelled") == 0;
    return oneshot_end(&s, cancelled ? EXIT_INTERRUPT : EXIT_OK);
}

const struct cmd_entry cmd_chat_entry = {
    .name = "chat",
    .args = "[TEXT]",
    .summary = "ask one question and print the answer",
    .help =
        "Asks one question, TEXT or that of --prompt (- reads it from standard input), and prints the answer, and nothing but the answer, to standard output. Everything else goes to standard error. "
        "Control characters that the model produces are shown as ^[ and the like.\n\n"
        "With --json the object has the keys text, thinking, stop (eos, length, stop or cancelled), prompt_tokens, tokens, prompt_ms, "
        "decode_ms, tok_per_s, mode, ranks, patches, verdict, reason and allreduce (per_step, mean_us, p99_us, share).",
    .tables = {s_options, sampling_table, oneshot_table},
    .max_args = 1,
    .exec = exec_chat,
};
