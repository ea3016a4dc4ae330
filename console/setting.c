#include "config.h"

#include "console/setting.h"

#include <string.h>

#include "console/buf.h"
#include "console/fail.h"
#include "console/opt.h"
#include "engine/rankscope.h"

const struct setting setting_table[] = {
    {"numerics", "numerics", "invariant|fast",
     "invariant: a row's result never depends on what else is in the batch; fast: kernels chosen by batch size"},
    {"graph.guard", "graph_guard", "on|off",
     "on: an implementation that a graph cannot capture is refused in graph mode; off: it is captured as it is"},
    {"spec", "spec", "off|1|2|3|4|5|6|7|8", "how many tokens the model's NextN block drafts for the next step to verify"},
    {0},
};

const struct setting *setting_find(const char *name)
{
    for (const struct setting *s = setting_table; s->name != NULL; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

json_t *setting_value(const struct setting *s, const char *word)
{
    if (!opt_is_choice(s->choices, word))
        return NULL;
    if (strcmp(s->choices, "on|off") == 0)
        return json_boolean(strcmp(word, "on") == 0);
    if (strncmp(s->choices, "off|1", 5) == 0)
        return json_integer(strcmp(word, "off") == 0 ? 0 : word[0] - '0');
    return json_string(word);
}

char *setting_word(const struct setting *s, const json_t *value)
{
    if (json_is_boolean(value))
        return xstrdup(json_is_true(value) ? "on" : "off");
    if (json_is_integer(value) && json_integer_value(value) == 0 && strncmp(s->choices, "off|", 4) == 0)
        return xstrdup("off");
    if (json_is_integer(value))
        return xasprintf("%lld", (long long)json_integer_value(value));
    return xstrdup(json_is_string(value) ? json_string_value(value) : "?");
}

static enum rs_result unknown(const char *name, struct rs_error *err)
{
    struct buf names = {0};
    struct rs_near near;
    char hint[80];
    rs_near_init(&near, name, strlen(name));
    for (const struct setting *s = setting_table; s->name != NULL; s++) {
        buf_printf(&names, "%s%s", s == setting_table ? "" : ", ", s->name);
        rs_near_try(&near, s->name);
    }
    enum rs_result r = fail_set(err, RS_EUSAGE, "there is no option '%s'%s; the options are %s", name, rs_near_hint(&near, "", hint, sizeof hint), names.text);
    buf_fini(&names);
    return r;
}

enum rs_result setting_add(json_t *args, const char *text, struct rs_error *err)
{
    char name[64];
    size_t n = strcspn(text, "=");
    if (n == 0 || n >= sizeof name)
        return fail_set(err, RS_EUSAGE, "'%s' is not NAME=VALUE", text);
    memcpy(name, text, n);
    name[n] = '\0';
    const struct setting *s = setting_find(name);
    if (s == NULL)
        return unknown(name, err);
    if (text[n] == '\0')
        return fail_set(err, RS_EUSAGE, "'%s' is not NAME=VALUE (%s=%s)", text, s->name, s->choices);
    json_t *value = setting_value(s, text + n + 1);
    if (value == NULL)
        return fail_set(err, RS_EUSAGE, "%s is one of %s, not '%s'", s->name, s->choices, text + n + 1);
    json_object_set_new(args, s->key, value);
    return RS_OK;
}

static bool copy_part(char *to, size_t size, const char *from, size_t n)
{
    if (n == 0 || n >= size)
        return false;
    memcpy(to, from, n);
    to[n] = '\0';
    return true;
}

enum rs_result setting_parse_patch(const char *text, struct setting_patch *out, struct rs_error *err)
{
    struct setting_patch p = {0};
    size_t slot = strcspn(text, "=");
    const char *impl = text + slot + (text[slot] == '=');
    size_t impl_len = strcspn(impl, "@");
    bool site = impl[impl_len] == '@';
    if (text[slot] != '=' || strpbrk(text, " \t") != NULL || !copy_part(p.slot, sizeof p.slot, text, slot) || !copy_part(p.impl, sizeof p.impl, impl, impl_len) ||
        (site && !copy_part(p.site, sizeof p.site, impl + impl_len + 1, strlen(impl + impl_len + 1))))
        return fail_set(err, RS_EUSAGE, "'%s' is not SLOT=IMPL or SLOT=IMPL@SITES", text);
    *out = p;
    return RS_OK;
}
