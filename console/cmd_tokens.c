/* cmd_tokens.c: text to token ids and back. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/text.h"

static const struct opt s_options[] = {
    {.name = "back", .type = OPT_STRING, .arg = "IDS", .help = "print the text of these token ids (separated by commas or spaces)"},
    {.name = "no-special",
     .type = OPT_FLAG,
     .help = "take special tokens in TEXT for plain characters, as in what a person types; with --back, leave them out"},
    {.name = "pieces", .type = OPT_FLAG, .help = "one token a line: its id and its text"},
    {.name = "json", .type = OPT_FLAG, .help = "print one JSON object: ids and pieces, or text"},
    {0},
};

static void print_ids(const json_t *reply, bool pieces)
{
    const json_t *ids = json_object_get(reply, "ids"), *texts = json_object_get(reply, "pieces");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        const char *piece = json_string_value(json_array_get(texts, i));
        if (!pieces) {
            printf("%s%lld", i == 0 ? "" : " ", (long long)id);
            continue;
        }
        char *line = text_one_line(piece != NULL ? piece : "(part of a character)");
        printf("%8lld  %s\n", (long long)id, line);
        free(line);
    }
    if (!pieces)
        putchar('\n');
}

/* Into a file or pipe the text goes as it is, to the byte; a terminal gets the safe form and a newline. */
static void print_text(const json_t *reply)
{
    const json_t *v = json_object_get(reply, "text");
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    size_t len = json_is_string(v) ? json_string_length(v) : 0;
    if (!isatty(STDOUT_FILENO)) {
        fwrite(text, 1, len, stdout);
        return;
    }
    struct text_filter f = {0};
    struct buf b = {0};
    text_clean(&f, text, len, &b);
    text_clean_end(&f, &b);
    buf_char(&b, '\n');
    fputs(b.text, stdout);
    buf_fini(&b);
}

static enum rs_result make_request(const struct opt_values *v, json_t **args, struct rs_error *err)
{
    json_t *ids = NULL;
    char *text = NULL;
    enum rs_result r;
    if (opt_set(v, "back")) {
        r = cmd_parse_ids(opt_string(v, "back", ""), &ids, err);
        if (r != RS_OK)
            return r;
        *args = json_pack("{s:o}", "ids", ids);
    } else {
        size_t bad;
        if (strcmp(v->args[0], "-") == 0) {
            r = cmd_read_text("-", &text, err);
            if (r != RS_OK)
                return r;
        } else if (!text_valid(v->args[0], strlen(v->args[0]), &bad)) {
            return fail_set(err, RS_EUSAGE, "TEXT is not UTF-8");
        }
        *args = json_pack("{s:s}", "text", text != NULL ? text : v->args[0]);
        free(text);
    }
    json_object_set_new(*args, "special", json_boolean(!opt_set(v, "no-special")));
    return RS_OK;
}

static enum exit_status exec_tokens(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    json_t *args = NULL, *reply;
    bool back = opt_set(v, "back");
    if (back == (v->n_args == 1))
        return cmd_usage(self, "give either TEXT or --back IDS");
    if (make_request(v, &args, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum exit_status status = oneshot_start(&s, self, v, NULL);
    if (status != EXIT_OK) {
        json_decref(args);
        return status;
    }
    if (con_request(&s.con, back ? "decode" : "encode", args, &reply, &err) != RS_OK)
        return oneshot_fail(&s, &err);
    if (opt_set(v, "json")) {
        char *text = js_dump(reply, JSON_COMPACT);
        puts(text);
        free(text);
    } else if (back) {
        print_text(reply);
    } else {
        print_ids(reply, opt_set(v, "pieces"));
    }
    json_decref(reply);
    return oneshot_end(&s, EXIT_OK);
}

const struct cmd_entry cmd_tokens_entry = {
    .name = "tokens",
    .args = "[TEXT]",
    .summary = "turn text into token ids, or ids into text",
    .help = "Prints the token ids of TEXT (- reads it from standard input), separated by spaces. With --back it prints the text of ids "
            "instead; into "
            "a file or pipe exactly that text, without a newline after it.",
    .tables = {s_options, oneshot_table},
    .max_args = 1,
    .exec = exec_tokens,
};
