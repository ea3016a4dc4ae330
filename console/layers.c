#include "config.h"

#include "console/layers.h"

#include <stdlib.h>
#include <string.h>

#include "console/buf.h"

long layers_split(const char *name, char **pattern)
{
    char *end;
    if (strncmp(name, "blk.", 4) == 0 && name[4] >= '0' && name[4] <= '9') {
        long layer = strtol(name + 4, &end, 10);
        if (*end == '.' && layer >= 0) {
            *pattern = xasprintf("blk.*%s", end);
            return layer;
        }
    }
    *pattern = xstrdup(name);
    return -1;
}

static void add_layer(struct layers_group *g, long layer)
{
    g->layers = xreallocarray(g->layers, g->n + 1, sizeof *g->layers);
    g->layers[g->n++] = layer;
}

struct layers_group *layers_add(struct layers *l, const json_t *entry, const char *name, char *key, double value)
{
    char *pattern;
    long layer = layers_split(name, &pattern);
    char *full = xasprintf("%s\n%s", pattern, key);
    free(key);
    for (size_t i = 0; i < l->n; i++) {
        if (layer >= 0 && strcmp(l->groups[i].key, full) == 0) {
            add_layer(&l->groups[i], layer);
            l->groups[i].sum += value;
            free(pattern);
            free(full);
            return &l->groups[i];
        }
    }
    l->groups = xreallocarray(l->groups, l->n + 1, sizeof *l->groups);
    struct layers_group *g = &l->groups[l->n++];
    *g = (struct layers_group){.key = full, .pattern = pattern, .first = entry, .sum = value};
    if (layer >= 0)
        add_layer(g, layer);
    return g;
}

static int by_number(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return x < y ? -1 : x > y;
}

char *layers_ranges(struct layers_group *g)
{
    struct buf b = {0};
    if (g->n > 0)
        qsort(g->layers, g->n, sizeof *g->layers, by_number);
    for (size_t i = 0; i < g->n;) {
        size_t k = i;
        while (k + 1 < g->n && g->layers[k + 1] == g->layers[k] + 1)
            k++;
        buf_printf(&b, "%s%ld", i > 0 ? "," : "", g->layers[i]);
        if (k > i)
            buf_printf(&b, "-%ld", g->layers[k]);
        i = k + 1;
    }
    return buf_take(&b);
}

void layers_fini(struct layers *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->groups[i].key);
        free(l->groups[i].pattern);
        free(l->groups[i].layers);
    }
    free(l->groups);
    *l = (struct layers){0};
}
