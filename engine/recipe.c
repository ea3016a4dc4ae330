/* See recipe.h. */
#include "engine/recipe.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/error.h"
#include "engine/plan.h"
#include "kernels/type.h"

bool recipe_type_named(const char *name, uint32_t *type)
{
    for (uint32_t t = 0; t < KRN_TYPE_MAX; t++) {
        const struct krn_type_info *info = krn_type_info(t);
        if (info != NULL && info->computes && strcasecmp(info->name, name) == 0) {
            *type = t;
            return true;
        }
    }
    return false;
}

const char *recipe_types(bool must_encode, char *buf, size_t size)
{
    size_t at = 0;
    buf[0] = '\0';
    for (uint32_t t = 0; t < KRN_TYPE_MAX && at < size; t++) {
        const struct krn_type_info *info = krn_type_info(t);
        if (info != NULL && (must_encode ? info->encodes : info->computes))
            at += (size_t)snprintf(buf + at, size - at, "%s%s", at != 0 ? " " : "", info->name);
    }
    return buf;
}

static enum rs_result parse_line(const char *line, int number, bool must_encode, struct recipe *r, struct rs_error *err)
{
    char glob[64], type[32], more[2], all[256];
    int n = sscanf(line, "%63s %31s %1s", glob, type, more);
    if (n <= 0)
        return RS_OK;
    uint32_t t;
    if (n != 2)
        return error_set(err, RS_EUSAGE, "recipe, line %d: not 'GLOB TYPE'", number);
    if (!recipe_type_named(type, &t) || (must_encode && !krn_type_info(t)->encodes))
        return error_set(err, RS_EUSAGE, "recipe, line %d: %s is no type that weights can be %s: %s", number, type, must_encode ? "turned into" : "made of",
                         recipe_types(must_encode, all, sizeof all));
    if (r->n == RECIPE_MAX_RULES)
        return error_set(err, RS_EUSAGE, "recipe, line %d: more than %d rules", number, RECIPE_MAX_RULES);
    snprintf(r->rule[r->n].glob, sizeof r->rule[0].glob, "%s", glob);
    r->rule[r->n++].type = t;
    return RS_OK;
}

enum rs_result recipe_parse(const char *text, bool must_encode, struct recipe *out, struct rs_error *err)
{
    enum rs_result rc = RS_OK;
    out->n = 0;
    for (int number = 1; *text != '\0' && rc == RS_OK; number++) {
        char line[256];
        size_t len = strcspn(text, "\n"), code = strcspn(text, "#\n");
        if (code >= sizeof line)
            return error_set(err, RS_EUSAGE, "recipe, line %d: longer than %zu characters", number, sizeof line - 1);
        memcpy(line, text, code);
        line[code] = '\0';
        rc = parse_line(line, number, must_encode, out, err);
        text += len + (text[len] == '\n');
    }
    return rc;
}

/* For rows that are no whole number of 256-blocks; the same choices as llama-quantize. */
static uint32_t fit(uint32_t type, uint64_t k)
{
    const struct krn_type_info *info = krn_type_info(type);
    if (k % info->block_elems == 0)
        return type;
    if (k % 32 != 0)
        return KRN_F16;
    switch (type) {
    case KRN_Q4_K: return KRN_Q5_0;
    case KRN_Q5_K: return KRN_Q5_1;
    case KRN_Q6_K: return KRN_Q8_0;
    case KRN_TQ1_0: case KRN_TQ2_0: return KRN_Q4_0;
    default: return KRN_IQ4_NL;
    }
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

uint32_t recipe_type(const struct recipe *r, const char *name, uint32_t n_dims, const uint64_t ne[4], uint32_t now)
{
    bool vector = n_dims < 2 || (ne[1] == 1 && (n_dims < 3 || ne[2] == 1));
    if (vector || ends_with(name, "ffn_gate_inp.weight") || ends_with(name, "indexer.proj.weight"))
        return now;
    for (uint32_t i = r->n; i-- > 0;)
        if (plan_glob(r->rule[i].glob, name))
            return fit(r->rule[i].type, ne[0]);
    return now;
}
