/* cmd_calibrate.c: what healthy answers of a model look like, measured. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/chat.h"
#include "console/cmd_list.h"
#include "console/js.h"
#include "console/oneshot.h"
#include "console/paths.h"

static const struct opt s_options[] = {
    {.name = "output", .letter = 'o', .type = OPT_FILE, .arg = "FILE", .help = "where to write; without it, where the engine looks first: in the user's state folder"},
    {.name = "max", .type = OPT_INT, .arg = "N", .min = 8, .max = 1e6, .help = "end answers after N tokens; without it 256"},
    {0},
};

/* Numbers of the engine's verdict that make the baseline. */
static const char *const s_figures[] = {"entropy_mean", "gap_mean", "logprob_mean"};
enum { FIGURES = sizeof s_figures / sizeof s_figures[0] };

struct sample {
    double *v[FIGURES];
    size_t n, cap;
    json_int_t tokens;
};

static void sample_add(struct sample *s, const json_t *done)
{
    if (s->n == s->cap) {
        s->cap = s->cap != 0 ? s->cap * 2 : 256;
        for (int i = 0; i < FIGURES; i++)
            s->v[i] = xreallocarray(s->v[i], s->cap, sizeof(double));
    }
    const json_t *health = json_object_get(done, "health");
    for (int i = 0; i < FIGURES; i++)
        s->v[i][s->n] = js_num(health, s_figures[i], NAN);
    s->tokens += js_int(done, "tokens", 0);
    s->n++;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantiles of n values, which are sorted. */
static json_t *quantiles(double *v, size_t n)
{
    static const struct { const char *key; double q; } want[] = {{"p0.5", .005}, {"p5", .05}, {"p50", .5}, {"p95", .95}, {"p99.5", .995}};
    json_t *o = json_object();
    qsort(v, n, sizeof *v, by_value);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        json_object_set_new(o, want[i].key, json_real(v[(size_t)(want[i].q * (double)(n - 1) + .5)]));
    return o;
}

/* One question with one way to think and sample. What the engine itself takes for broken is no healthy answer. */
static enum rs_result ask(struct con *con, const char *question, enum con_think think, double temp, json_int_t seed, long max, struct sample *s,
                          struct rs_error *err)
{
    conv_clear(&con->conv);
    conv_add(&con->conv, CONV_USER, question, NULL, false);
    con->think = think;
    json_object_set_new(con->sampling, "temp", json_real(temp));
    json_object_set_new(con->sampling, "seed", json_integer(seed));
    json_object_set_new(con->sampling, "max_tokens", json_integer(max));
    enum rs_result r = chat_start(con, err);
    if (r == RS_OK)
        r = chat_wait(con, err);
    if (r != RS_OK)
        return r;
    const json_t *done = con->answer.done;
    if (strcmp(js_str(done, "stop", ""), "cancelled") == 0)
        return fail_set(err, RS_ECANCELLED, "interrupted");
    if (js_int(done, "health.nonfinite_steps", 0) != 0 || js_int(done, "health.constant_steps", 0) != 0)
        return fail_set(err, RS_ESTATE, "this model answers '%.40s' with logits that are not finite or all equal: there is nothing to calibrate", question);
    sample_add(s, done);
    return RS_OK;
}

static enum rs_result ask_all(struct con *con, char *text, long max, struct sample *s, struct rs_error *err)
{
    enum rs_result r = RS_OK;
    json_int_t seed = 0;
    size_t asked = 0;
    con->answer.show = false;
    for (char *line = text, *next; line != NULL && r == RS_OK; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        if (*line == '\0')
            continue;
        for (int way = 0; way < 4 && r == RS_OK; way++)
            r = ask(con, line, way & 1 ? CON_THINK_ON : CON_THINK_OFF, way & 2 ? 1 : 0, seed++, max, s, err);
        asked++;
        if (con->out->terminal) {
            char *progress = xasprintf("%zu questions, %zu answers", asked, s->n);
            con->out->progress(con->out, progress);
            free(progress);
        }
    }
    con->out->progress(con->out, NULL);
    if (r == RS_OK && s->n < 40)
        r = fail_set(err, RS_EUSAGE, "%zu questions are too few to say what is usual: give at least 10, better 100", asked);
    return r;
}

static json_t *to_json(const struct con *con, struct sample *s)
{
    static const char *const keys[] = {"name", "arch", "hash"};
    json_t *o = json_pack("{s:i, s:I, s:I}", "version", 1, "answers", (json_int_t)s->n, "tokens", s->tokens), *model = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set_new(model, keys[i], js_or_null(json_object_get(con->info, "model"), keys[i]));
    json_object_set_new(o, "model", model);
    for (int i = 0; i < FIGURES; i++)
        json_object_set_new(o, s_figures[i], quantiles(s->v[i], s->n));
    return o;
}

static enum rs_result save(struct con *con, const char *path, json_t *o, struct rs_error *err)
{
    char *name = xasprintf("health-%s.json", js_str(con->info, "model.hash", "")), *own = NULL;
    enum rs_result r;
    if (path == NULL)
        path = own = paths_state(name);
    r = path == NULL ? fail_set(err, RS_EIO, "there is no state folder to write to; name a file with -o") : conv_save(path, o, err);
    if (r == RS_OK)
        out_printf(con->out, OUT_NOTE, "%s: %lld answers, %lld tokens\n", path, (long long)js_int(o, "answers", 0), (long long)js_int(o, "tokens", 0));
    free(own);
    free(name);
    return r;
}

static enum exit_status exec_calibrate(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct oneshot s;
    struct sample sample = {.n = 0};
    char *text;
    if (cmd_read_text(v->args[0], &text, &err) != RS_OK)
        return cmd_fail(self, &err);
    enum exit_status status = oneshot_start(&s, self, v, NULL);
    if (status != EXIT_OK) {
        free(text);
        return status;
    }
    enum rs_result r = ask_all(&s.con, text, opt_int(v, "max", 256), &sample, &err);
    if (r == RS_OK) {
        json_t *o = to_json(&s.con, &sample);
        r = save(&s.con, opt_string(v, "output", NULL), o, &err);
        json_decref(o);
    }
    free(text);
    for (int i = 0; i < FIGURES; i++)
        free(sample.v[i]);
    return r == RS_OK ? oneshot_end(&s, EXIT_OK) : oneshot_fail(&s, &err);
}

const struct cmd_entry cmd_calibrate_entry = {
    .name = "calibrate",
    .args = "QUESTIONS",
    .summary = "measure what healthy answers of a model look like",
    .help = "Asks every question of the file QUESTIONS, one a line (- reads standard input), with and without thinking, at temperature 0 and 1, and "
            "keeps how sure the model was of its words: the baseline that verdicts on later answers go by. Do this once for a model and under a "
            "configuration that is known to be right, with at least 100 questions of the kind that it is asked.\n\n"
            "The engine looks for a baseline when it opens a model: in the user's state folder, then beside the model (x.gguf: x.health.json). "
            "Without one only what no working model does is called garbage.",
    .tables = {s_options, oneshot_table},
    .min_args = 1,
    .max_args = 1,
    .exec = exec_calibrate,
};
