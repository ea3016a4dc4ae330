#include "config.h"

#include "console/opt.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/text.h"
#include "engine/rankscope.h"

static size_t count_rows(const struct opt *const *tables)
{
    size_t n = 0;
    for (; *tables != NULL; tables++)
        for (const struct opt *o = *tables; o->name != NULL; o++)
            n++;
    return n;
}

static struct opt_value *by_name(const struct opt_values *v, const char *name, size_t len)
{
    for (size_t i = 0; i < v->n; i++)
        if (strlen(v->values[i].opt->name) == len && memcmp(v->values[i].opt->name, name, len) == 0)
            return &v->values[i];
    return NULL;
}

static struct opt_value *by_letter(const struct opt_values *v, char letter)
{
    for (size_t i = 0; i < v->n; i++)
        if (v->values[i].opt->letter == letter)
            return &v->values[i];
    return NULL;
}

static bool has_name(const struct opt *table, const char *name)
{
    while (table->name != NULL && strcmp(table->name, name) != 0)
        table++;
    return table->name != NULL;
}

bool opt_in_front(const struct opt *const *tables, size_t k, const char *name)
{
    for (size_t i = 0; i < k; i++)
        if (has_name(tables[i], name))
            return true;
    return false;
}

bool opt_behind(const struct opt *const *tables, size_t n, size_t k, const char *name)
{
    for (size_t i = k + 1; i < n && tables[i] != NULL; i++)
        if (has_name(tables[i], name))
            return true;
    return false;
}

bool opt_is_choice(const char *choices, const char *word)
{
    size_t len = strlen(word);
    for (const char *c = choices; len > 0 && *c != '\0';) {
        size_t n = strcspn(c, "|");
        if (n == len && memcmp(c, word, n) == 0)
            return true;
        c += n + (c[n] == '|');
    }
    return false;
}

/* Check and store one value. */
static bool take(struct opt_value *v, const char *text, char *msg, size_t msg_size)
{
    const struct opt *o = v->opt;
    char *end;
    switch (o->type) {
    case OPT_INT:
    case OPT_FLOAT:
        errno = 0;
        v->number = o->type == OPT_INT ? (double)strtol(text, &end, 10) : strtod(text, &end);
        if (*text == '\0' || *end != '\0' || errno != 0 || !isfinite(v->number)) {
            snprintf(msg, msg_size, "--%s wants %s, not '%s'", o->name, o->type == OPT_INT ? "a whole number" : "a number", text);
            return false;
        }
        if (v->number < o->min || v->number > o->max) {
            snprintf(msg, msg_size, "--%s goes from %.10g to %.10g, not %s", o->name, o->min, o->max, text);
            return false;
        }
        break;
    case OPT_CHOICE:
        if (!opt_is_choice(o->choices, text)) {
            snprintf(msg, msg_size, "--%s is one of %s, not '%s'", o->name, o->choices, text);
            return false;
        }
        break;
    case OPT_LIST:
        v->list = xreallocarray(v->list, v->n_list + 1, sizeof *v->list);
        v->list[v->n_list++] = text;
        break;
    case OPT_FLAG:
    case OPT_STRING:
    case OPT_FILE: break;
    }
    v->set = true;
    v->text = text;
    return true;
}

/* "--name", "--name=value" or "--name value" at argv[*i]. */
static bool take_long(struct opt_values *v, int argc, char **argv, int *i, char *msg, size_t msg_size)
{
    const char *name = argv[*i] + 2;
    size_t len = strcspn(name, "=");
    struct opt_value *value = by_name(v, name, len);
    if (value == NULL) {
        char hint[80];
        struct rs_near near;
        rs_near_init(&near, name, len);
        for (size_t k = 0; k < v->n; k++)
            rs_near_try(&near, v->values[k].opt->name);
        snprintf(msg, msg_size, "unknown option --%.*s%s", (int)len, name, rs_near_hint(&near, "--", hint, sizeof hint));
        return false;
    }
    const char *text = name[len] == '=' ? name + len + 1 : NULL;
    if (value->opt->type == OPT_FLAG) {
        if (text != NULL) {
            snprintf(msg, msg_size, "--%s takes no value", value->opt->name);
            return false;
        }
        text = "";
    } else if (text == NULL) {
        if (*i + 1 == argc) {
            snprintf(msg, msg_size, "--%s wants a value (%s)", value->opt->name, value->opt->arg);
            return false;
        }
        text = argv[++*i];
    }
    return take(value, text, msg, msg_size);
}

/* "-abc", "-mVALUE" or "-m VALUE" at argv[*i]. */
static bool take_short(struct opt_values *v, int argc, char **argv, int *i, char *msg, size_t msg_size)
{
    for (const char *c = argv[*i] + 1; *c != '\0'; c++) {
        struct opt_value *value = by_letter(v, *c);
        if (value == NULL) {
            snprintf(msg, msg_size, "unknown option -%c", *c);
            return false;
        }
        if (value->opt->type == OPT_FLAG) {
            value->set = true;
            continue;
        }
        if (c[1] == '\0' && *i + 1 == argc) {
            snprintf(msg, msg_size, "-%c wants a value (%s)", *c, value->opt->arg);
            return false;
        }
        return take(value, c[1] != '\0' ? c + 1 : argv[++*i], msg, msg_size);
    }
    return true;
}

bool opt_parse(const struct opt *const *tables, int argc, char **argv, bool first_arg_ends, struct opt_values *out, char *msg,
               size_t msg_size)
{
    size_t n = count_rows(tables);
    struct opt_values v = {.values = xcalloc(n, sizeof *v.values), .n = n, .args = xcalloc((size_t)argc + 1, sizeof *v.args)};
    size_t k = 0;
    for (; *tables != NULL; tables++)
        for (const struct opt *o = *tables; o->name != NULL; o++)
            v.values[k++].opt = o;
    bool good = true, ended = false;
    for (int i = 1; i < argc && good; i++) {
        if (ended || argv[i][0] != '-' || argv[i][1] == '\0') {
            v.args[v.n_args++] = argv[i];
            ended = ended || first_arg_ends;
        } else if (strcmp(argv[i], "--") == 0) {
            ended = true;
        } else if (argv[i][1] == '-') {
            good = take_long(&v, argc, argv, &i, msg, msg_size);
        } else {
            good = take_short(&v, argc, argv, &i, msg, msg_size);
        }
    }
    if (!good) {
        char *line = text_one_line(msg);
        snprintf(msg, msg_size, "%s", line);
        free(line);
        opt_fini(&v);
        return false;
    }
    *out = v;
    return true;
}

const struct opt *opt_named(const struct opt *const *tables, size_t n, const char *arg)
{
    const bool is_long = arg[0] == '-' && arg[1] == '-';
    const char *name = arg + (is_long ? 2 : 1);
    const size_t len = strcspn(name, "=");
    if (arg[0] != '-' || len == 0)
        return NULL;
    for (size_t k = 0; k < n && tables[k] != NULL; k++)
        for (const struct opt *o = tables[k]; o->name != NULL; o++)
            if (is_long ? strlen(o->name) == len && memcmp(o->name, name, len) == 0 : o->letter == *name)
                return o;
    return NULL;
}

void opt_fini(struct opt_values *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->values[i].list);
    free(v->values);
    free(v->args);
    *v = (struct opt_values){0};
}

static const struct opt_value *find(const struct opt_values *v, const char *name)
{
    const struct opt_value *value = by_name(v, name, strlen(name));
    assert(value != NULL);
    return value;
}

bool opt_set(const struct opt_values *v, const char *name)
{
    return find(v, name)->set;
}

const char *opt_string(const struct opt_values *v, const char *name, const char *def)
{
    const struct opt_value *value = find(v, name);
    return value->set ? value->text : def;
}

long opt_int(const struct opt_values *v, const char *name, long def)
{
    const struct opt_value *value = find(v, name);
    return value->set ? (long)value->number : def;
}

double opt_float(const struct opt_values *v, const char *name, double def)
{
    const struct opt_value *value = find(v, name);
    return value->set ? value->number : def;
}

size_t opt_list(const struct opt_values *v, const char *name, const char *const **list)
{
    const struct opt_value *value = find(v, name);
    *list = value->list;
    return value->n_list;
}
