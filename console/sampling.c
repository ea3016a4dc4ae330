#include "config.h"

#include "console/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/fail.h"

const struct opt sampling_table[] = {
    {.name = "temp",
     .type = OPT_FLOAT,
     .arg = "T",
     .min = 0,
     .max = 100,
     .help = "temperature; 0, the default, always takes the likeliest token"},
    {.name = "top-k", .type = OPT_INT, .arg = "N", .min = 0, .max = 1e6, .help = "choose among the N likeliest tokens; 0: all"},
    {.name = "top-p",
     .type = OPT_FLOAT,
     .arg = "P",
     .min = 0,
     .max = 1,
     .help = "choose among the likeliest tokens that have P of the probability together"},
    {.name = "min-p",
     .type = OPT_FLOAT,
     .arg = "P",
     .min = 0,
     .max = 1,
     .help = "leave out tokens less likely than P times the likeliest one"},
    {.name = "typical-p", .type = OPT_FLOAT, .arg = "P", .min = 0, .max = 1, .help = "locally typical sampling with mass P"},
    {.name = "repeat-penalty",
     .type = OPT_FLOAT,
     .arg = "X",
     .min = 0,
     .max = 100,
     .help = "divide the logits of recent tokens by X; 1: off"},
    {.name = "frequency-penalty",
     .type = OPT_FLOAT,
     .arg = "X",
     .min = -100,
     .max = 100,
     .help = "take X off a logit for every recent use of its token"},
    {.name = "presence-penalty",
     .type = OPT_FLOAT,
     .arg = "X",
     .min = -100,
     .max = 100,
     .help = "take X off the logits of tokens used recently"},
    {.name = "penalty-last-n", .type = OPT_INT, .arg = "N", .min = -1, .max = 1e6, .help = "how many tokens count as recent; -1: all"},
    {.name = "logit-bias", .type = OPT_LIST, .arg = "ID=X", .help = "add X to the logit of token ID; may be repeated"},
    {.name = "stop", .type = OPT_LIST, .arg = "TEXT", .help = "end the answer before TEXT; may be repeated"},
    {.name = "seed", .type = OPT_INT, .arg = "N", .min = 0, .max = 9007199254740991.0, .help = "seed of the random numbers"},
    {.name = "max", .type = OPT_INT, .arg = "N", .min = 1, .max = 1e9, .help = "end the answer after N tokens"},
    {.name = "ignore-eos", .type = OPT_FLAG, .help = "go on where the model would end its answer"},
    {0},
};

const char *sampling_key(const struct opt *row, char *buf, size_t size)
{
    snprintf(buf, size, "%s", strcmp(row->name, "max") == 0 ? "max_tokens" : row->name);
    for (char *p = buf; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    return buf;
}

const struct opt *sampling_find(const char *command)
{
    for (const struct opt *row = sampling_table; row->name != NULL; row++) {
        char name[64];
        snprintf(name, sizeof name, "%s", row->name);
        for (char *p = name; *p != '\0'; p++)
            if (*p == '-')
                *p = '_';
        if (strcmp(name, command) == 0)
            return row;
    }
    return NULL;
}

static enum rs_result add_bias(json_t *obj, const char *text, struct rs_error *err)
{
    char *end, *end2;
    errno = 0;
    long id = strtol(text, &end, 10);
    double x = *end == '=' ? strtod(end + 1, &end2) : NAN;
    if (end == text || *end != '=' || end2 == end + 1 || *end2 != '\0' || errno != 0 || id < 0 || !isfinite(x))
        return fail_set(err, RS_EUSAGE, "--logit-bias wants ID=NUMBER, not '%s'", text);
    json_t *bias = json_object_get(obj, "logit_bias");
    if (bias == NULL) {
        bias = json_object();
        json_object_set_new(obj, "logit_bias", bias);
    }
    char key[32];
    snprintf(key, sizeof key, "%ld", id);
    json_object_set_new(bias, key, json_real(x));
    return RS_OK;
}

static enum rs_result add_list(json_t *obj, const struct opt *row, const struct opt_values *v, struct rs_error *err)
{
    const char *const *list;
    size_t n = opt_list(v, row->name, &list);
    if (strcmp(row->name, "logit-bias") == 0) {
        for (size_t i = 0; i < n; i++) {
            enum rs_result r = add_bias(obj, list[i], err);
            if (r != RS_OK)
                return r;
        }
        return RS_OK;
    }
    json_t *texts = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *text = json_string(list[i]);
        if (text == NULL) {
            json_decref(texts);
            return fail_set(err, RS_EUSAGE, "--%s is not UTF-8 text", row->name);
        }
        json_array_append_new(texts, text);
    }
    json_object_set_new(obj, row->name, texts);
    return RS_OK;
}

enum rs_result sampling_from_options(json_t *obj, const struct opt_values *v, struct rs_error *err)
{
    json_object_set_new(obj, "temp", json_real(0));
    for (const struct opt *row = sampling_table; row->name != NULL; row++) {
        char key[64];
        if (!opt_set(v, row->name))
            continue;
        sampling_key(row, key, sizeof key);
        enum rs_result r = RS_OK;
        if (row->type == OPT_LIST)
            r = add_list(obj, row, v, err);
        else if (row->type == OPT_FLAG)
            json_object_set_new(obj, key, json_true());
        else if (row->type == OPT_INT)
            json_object_set_new(obj, key, json_integer(opt_int(v, row->name, 0)));
        else
            json_object_set_new(obj, key, json_real(opt_float(v, row->name, 0)));
        if (r != RS_OK)
            return r;
    }
    return RS_OK;
}

enum rs_result sampling_from_json(json_t *obj, const json_t *saved, struct rs_error *err)
{
    json_object_set_new(obj, "temp", json_real(0));
    for (const struct opt *row = sampling_table; row->name != NULL; row++) {
        char key[64];
        json_t *v = json_object_get(saved, sampling_key(row, key, sizeof key));
        if (v == NULL)
            continue;
        bool good = row->type == OPT_FLAG   ? json_is_boolean(v)
                    : row->type == OPT_LIST ? strcmp(key, "stop") == 0 ? json_is_array(v) : json_is_object(v)
                    : row->type == OPT_INT && !json_is_integer(v)
                        ? false
                        : json_is_number(v) && json_number_value(v) >= row->min && json_number_value(v) <= row->max;
        if (!good)
            return fail_set(err, RS_EFORMAT, "sampling.%s has no value that is allowed there", key);
        json_object_set(obj, key, v);
    }
    return RS_OK;
}

enum rs_result sampling_set(json_t *obj, const struct opt *row, const char *text, struct rs_error *err)
{
    char key[64];
    sampling_key(row, key, sizeof key);
    if (strcmp(text, "default") == 0) {
        if (strcmp(key, "temp") == 0)
            json_object_set_new(obj, key, json_real(0));
        else
            json_object_del(obj, key);
        return RS_OK;
    }
    char *end;
    errno = 0;
    double x = row->type == OPT_INT ? (double)strtol(text, &end, 10) : strtod(text, &end);
    if (*text == '\0' || *end != '\0' || errno != 0 || !isfinite(x) || x < row->min || x > row->max)
        return fail_set(err, RS_EUSAGE, row->type == OPT_INT ? "%s wants a whole number from %.0f to %.0f, or default; not '%s'"
                                                             : "%s wants a number from %.10g to %.10g, or default; not '%s'",
                        key, row->min, row->max, text);
    json_object_set_new(obj, key, row->type == OPT_INT ? json_integer((json_int_t)x) : json_real(x));
    return RS_OK;
}

char *sampling_get(const json_t *obj, const struct opt *row)
{
    char key[64];
    const json_t *v = json_object_get(obj, sampling_key(row, key, sizeof key));
    return json_is_number(v) ? xasprintf(row->type == OPT_INT ? "%.0f" : "%.10g", json_number_value(v)) : xstrdup("default");
}
