/* See baseline.h. */
#include "engine/baseline.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

static bool figure(const json_t *o, const char *what, const char *which, double *out)
{
    const json_t *v = json_object_get(json_object_get(o, what), which);
    *out = json_number_value(v);
    return json_is_number(v);
}

enum rs_result baseline_read(const json_t *o, const char *hash, struct baseline *out, struct rs_error *err)
{
    struct baseline b = {.there = true, .answers = json_number_value(json_object_get(o, "answers"))};
    const char *of = json_string_value(json_object_get(json_object_get(o, "model"), "hash"));
    if (of == NULL || json_integer_value(json_object_get(o, "version")) != 1 || !figure(o, "entropy_mean", "p95", &b.entropy_p95) ||
        !figure(o, "entropy_mean", "p99.5", &b.entropy_high) || !figure(o, "gap_mean", "p0.5", &b.gap_low) || !(b.entropy_p95 >= 0) ||
        !(b.entropy_high >= b.entropy_p95) || !(b.gap_low >= 0) || !(b.answers >= 1))
        return error_set(err, RS_EFORMAT, "this is no health baseline of version 1");
    if (strcmp(of, hash) != 0)
        return error_set(err, RS_ESTATE, "this baseline is for the model with hash %.40s, the open one has %s", of, hash);
    *out = b;
    return RS_OK;
}

static bool load(const char *path, const char *hash, struct baseline *out)
{
    json_t *o = json_load_file(path, 0, NULL);
    bool ok = o != NULL && baseline_read(o, hash, out, NULL) == RS_OK;
    json_decref(o);
    return ok;
}

void baseline_find(const char *model_path, const char *hash, struct baseline *out)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char path[PATH_MAX];
    int n = -1;
    *out = (struct baseline){.there = false};
    if (xdg != NULL && xdg[0] == '/')
        n = snprintf(path, sizeof path, "%s/rankscope/health-%s.json", xdg, hash);
    else if (home != NULL && home[0] == '/')
        n = snprintf(path, sizeof path, "%s/.local/state/rankscope/health-%s.json", home, hash);
    if (n > 0 && (size_t)n < sizeof path && load(path, hash, out))
        return;
    size_t len = strlen(model_path);
    if (len > 5 && strcmp(model_path + len - 5, ".gguf") == 0)
        len -= 5;
    n = snprintf(path, sizeof path, "%.*s.health.json", (int)len, model_path);
    if (n > 0 && (size_t)n < sizeof path)
        load(path, hash, out);
}
