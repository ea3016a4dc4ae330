/* view_audit.c: what a model file is and how it is dealt to ranks.
 *
 * A big model has thousands of tensors that repeat layer by layer. Rows that differ in nothing but the layer are shown once, with the
 * layers they stand for; verbose shows each with its exact range on every rank. */
#include "config.h"

#include "console/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/js.h"
#include "console/layers.h"
#include "console/table.h"
#include "console/text.h"
#include "console/units.h"

/* How much each rank gets: "32 each", or "3,3,2" with repeats as "3 x 2"; caller frees. */
static char *shares(const json_t *entry)
{
    const json_t *ranks = json_object_get(entry, "ranks");
    size_t n = json_array_size(ranks);
    struct buf b = {0};
    for (size_t i = 0; i < n;) {
        const json_t *r = json_array_get(ranks, i);
        json_int_t size = js_int(r, "to", 0) - js_int(r, "from", 0);
        size_t k = i + 1;
        while (k < n && js_int(json_array_get(ranks, k), "to", 0) - js_int(json_array_get(ranks, k), "from", 0) == size)
            k++;
        if (k - i == n)
            buf_printf(&b, n == 1 ? "%lld" : "%lld each", (long long)size);
        else
            buf_printf(&b, k - i == 1 ? "%s%lld" : "%s%lld (%zu times)", i > 0 ? ", " : "", (long long)size, k - i);
        i = k;
    }
    return buf_take(&b);
}

static char *shape(const json_t *entry)
{
    const json_t *dims = json_object_get(entry, "shape");
    struct buf b = {0};
    size_t n = json_array_size(dims);
    while (n > 1 && json_integer_value(json_array_get(dims, n - 1)) == 1)
        n--;
    for (size_t i = 0; i < n; i++)
        buf_printf(&b, "%s%lld", i > 0 ? " x " : "", (long long)json_integer_value(json_array_get(dims, i)));
    return buf_take(&b);
}

static void plan_row(struct table *t, struct layers_group *g)
{
    const json_t *e = g->first;
    bool replicated = strcmp(js_str(e, "split", ""), "replicated") == 0;
    char *layers = layers_ranges(g), *dims = shape(e), *share = replicated ? xstrdup("all on each") : shares(e);
    table_cell(t, "%s", g->pattern);
    table_cell(t, "%s", layers);
    table_cell(t, "%s", js_str(e, "type", "n/a"));
    table_cell(t, "%s", dims);
    table_cell(t, "%s", js_str(e, "split", "n/a"));
    table_cell(t, "%s", share);
    table_cell(t, "%s", js_str(e, "note", ""));
    free(layers);
    free(dims);
    free(share);
}

static void view_plan(struct out *o, const json_t *plan)
{
    struct layers gs = {0};
    for (size_t i = 0; i < json_array_size(plan); i++) {
        const json_t *e = json_array_get(plan, i);
        char *ranks = json_dumps(json_object_get(e, "ranks"), JSON_COMPACT | JSON_ENCODE_ANY), *dims = shape(e);
        char *key = xasprintf("%s %s %s %s %s", js_str(e, "type", ""), dims, js_str(e, "split", ""), js_str(e, "note", ""),
                              ranks != NULL ? ranks : "");
        layers_add(&gs, e, js_str(e, "tensor", "?"), key, 0);
        free(ranks);
        free(dims);
    }
    if (gs.n > 0)
        out_str(o, OUT_HEADING, "\nhow the tensors are dealt\n");
    struct table *t = table_new("tensor|~3layers|4type|2shape|5split|1per rank|~note");
    for (size_t i = 0; i < gs.n; i++)
        plan_row(t, &gs.groups[i]);
    table_print(t, o);
    layers_fini(&gs);
}

/* Every tensor, and on every rank the range that it holds. */
static void view_plan_verbose(struct out *o, const json_t *plan)
{
    if (json_array_size(plan) > 0)
        out_str(o, OUT_HEADING, "\nhow the tensors are dealt (rank: from-to)\n");
    struct table *t = table_new("tensor|2type|1shape|3split|~ranks|~note");
    for (size_t i = 0; i < json_array_size(plan); i++) {
        const json_t *e = json_array_get(plan, i), *ranks = json_object_get(e, "ranks");
        char *dims = shape(e);
        struct buf b = {0};
        for (size_t k = 0; k < json_array_size(ranks); k++) {
            const json_t *r = json_array_get(ranks, k);
            buf_printf(&b, "%s%lld: %lld-%lld", k > 0 ? ", " : "", (long long)js_int(r, "rank", (json_int_t)k),
                       (long long)js_int(r, "from", 0), (long long)js_int(r, "to", 0));
        }
        table_cell(t, "%s", js_str(e, "tensor", "?"));
        table_cell(t, "%s", js_str(e, "type", "n/a"));
        table_cell(t, "%s", dims);
        table_cell(t, "%s", js_str(e, "split", "n/a"));
        table_cell(t, "%s", b.text != NULL ? b.text : "");
        table_cell(t, "%s", js_str(e, "note", ""));
        buf_fini(&b);
        free(dims);
    }
    table_print(t, o);
}

static void view_file(struct out *o, const json_t *file)
{
    const char *key;
    json_t *value;
    struct table *t = table_new("file|~value");
    json_object_foreach((json_t *)file, key, value)
    {
        char *text = json_is_string(value) ? xstrdup(json_string_value(value)) : js_dump(value, JSON_COMPACT);
        char size[32];
        if (strcmp(key, "bytes") == 0 && json_is_number(value)) {
            free(text);
            text = xasprintf("%s", units_bytes(size, json_number_value(value)));
        }
        /* A chat template is a page of text; here it is enough that there is one. */
        if (strcmp(key, "template") == 0 && json_is_string(value)) {
            free(text);
            text = xasprintf("%zu bytes", json_string_length(value));
        }
        table_cell(t, "%s", key);
        table_cell(t, "%s", text);
        free(text);
    }
    table_print(t, o);
}

static void view_defaults(struct out *o, const json_t *list)
{
    if (json_array_size(list) > 0)
        out_str(o, OUT_HEADING, "\nnot in the file, so taken as\n");
    struct table *t = table_new("key|~value|2matters|~1meaning");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i), *v = json_object_get(e, "value");
        char *value = json_is_string(v) ? xstrdup(json_string_value(v)) : js_dump(v, JSON_COMPACT);
        table_cell(t, "%s", js_str(e, "key", "?"));
        table_cell(t, "%s", value);
        table_cell(t, "%s", js_bool(e, "matters", false) ? "YES" : "no");
        table_cell(t, "%s", js_str(e, "meaning", ""));
        free(value);
    }
    table_print(t, o);
}

/* "q_a: attn_q_a (Q8_0, 2nd in the file)": what each slot of a fused weight takes, layers left out. Caller frees. */
static char *slot_text(const json_t *entry)
{
    const json_t *slots = json_object_get(entry, "slots");
    struct buf b = {0};
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const json_t *s = json_array_get(slots, i), *name = json_object_get(s, "slot");
        char *pattern;
        layers_split(js_str(s, "tensor", "?"), &pattern);
        if (json_is_integer(name))
            buf_printf(&b, "%s%lld: ", i > 0 ? ", " : "", (long long)json_integer_value(name));
        else
            buf_printf(&b, "%s%s: ", i > 0 ? ", " : "", json_is_string(name) ? json_string_value(name) : "?");
        buf_printf(&b, "%s %s, file position %lld", pattern, js_str(s, "type", "n/a"), (long long)js_int(s, "file_order", -1));
        free(pattern);
    }
    return buf_take(&b);
}

static void view_slots(struct out *o, const json_t *list)
{
    struct layers gs = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        layers_add(&gs, e, js_str(e, "site", "?"), slot_text(e), 0);
    }
    if (gs.n > 0)
        out_str(o, OUT_HEADING, "\nfused weights\n");
    struct table *t = table_new("site|~1layers|order in the file|~slots");
    for (size_t i = 0; i < gs.n; i++) {
        char *layers = layers_ranges(&gs.groups[i]), *slots = slot_text(gs.groups[i].first);
        table_cell(t, "%s", gs.groups[i].pattern);
        table_cell(t, "%s", layers);
        table_cell(t, "%s", js_bool(gs.groups[i].first, "file_order_differs", false) ? "DIFFERS" : "same");
        table_cell(t, "%s", slots);
        free(layers);
        free(slots);
    }
    table_print(t, o);
    layers_fini(&gs);
}

/* The GPUs that are there, or those that were described. */
static void view_gpus(struct out *o, const json_t *g)
{
    char memory[32], weights[32], missing[32], tokens[32];
    double most = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(g, "weights")); i++)
        most = fmax(most, json_number_value(json_array_get(json_object_get(g, "weights"), i)));
    long long used = js_int(g, "used", 0);
    out_printf(o, OUT_TEXT, "  %lld GPU%s of %s%s: %s of weights on the fullest", used, used == 1 ? "" : "s", units_bytes(memory, js_num(g, "memory", NAN)),
               strcmp(js_str(g, "source", ""), "present") == 0 ? " here" : "", units_bytes(weights, most));
    if (js_bool(g, "fits", false))
        out_printf(o, OUT_TEXT, ", and room for the cache of %s tokens\n", units_count(tokens, js_num(g, "cache_tokens", NAN)));
    else
        out_printf(o, OUT_TEXT, ", %s too much; %lld or more such GPUs are needed\n", units_bytes(missing, js_num(g, "missing", NAN)), (long long)js_int(g, "needed", 0));
}

/* Ranks that hold the same are one row. */
static void view_fits(struct out *o, const json_t *fits)
{
    char memory[32], weights[32], tokens[32];
    if (fits == NULL)
        return;
    out_printf(o, OUT_TEXT, "  this machine has %s; the file takes %s of it, and the rest holds the cache of %s tokens on all ranks\n",
               units_bytes(memory, js_num(fits, "memory", NAN)), units_bytes(weights, js_num(fits, "weights", NAN)),
               units_count(tokens, js_num(fits, "cache_tokens", NAN)));
    if (json_is_object(json_object_get(fits, "gpus")))
        view_gpus(o, json_object_get(fits, "gpus"));
}

static void view_ranks(struct out *o, const json_t *list)
{
    size_t n = json_array_size(list);
    if (n > 0)
        out_str(o, OUT_HEADING, "\nmemory\n");
    struct table *t = table_new("rank|>weights|>cache per token");
    for (size_t i = 0; i < n;) {
        const json_t *e = json_array_get(list, i);
        double weights = js_num(e, "bytes_weights", NAN), cache = js_num(e, "bytes_cache_per_token", NAN);
        size_t k = i;
        while (k + 1 < n && js_num(json_array_get(list, k + 1), "bytes_weights", NAN) == weights &&
               js_num(json_array_get(list, k + 1), "bytes_cache_per_token", NAN) == cache)
            k++;
        char w[32], c[32];
        if (k > i)
            table_cell(t, "%zu-%zu, each", i, k);
        else
            table_cell(t, "%zu", i);
        table_cell(t, "%s", units_bytes(w, weights));
        table_cell(t, "%s", units_bytes(c, cache));
        i = k + 1;
    }
    table_print(t, o);
}

void view_audit(struct out *o, const json_t *audit, bool verbose)
{
    view_file(o, json_object_get(audit, "file"));
    view_defaults(o, json_object_get(audit, "defaults"));
    view_slots(o, json_object_get(audit, "slots"));
    const json_t *plan = json_object_get(audit, "plan");
    if (verbose)
        view_plan_verbose(o, plan);
    else
        view_plan(o, plan);
    if (js_int(audit, "cut_blocks", -1) == 0)
        out_str(o, OUT_TEXT, "  no quantisation block is cut\n");
    view_ranks(o, json_object_get(audit, "ranks"));
    view_fits(o, json_object_get(audit, "fits"));
    const json_t *ar = json_object_get(audit, "allreduce");
    if (ar != NULL) {
        char n[32];
        out_str(o, OUT_HEADING, "\nall-reduces\n");
        out_printf(o, OUT_TEXT, "  %s = %s a step\n", js_str(ar, "formula", "n/a"), units_num(n, js_num(ar, "per_step", NAN), 0));
    }
    const json_t *warnings = json_object_get(audit, "warnings");
    if (json_array_size(warnings) > 0)
        out_str(o, OUT_HEADING, "\nwarnings\n");
    for (size_t i = 0; i < json_array_size(warnings); i++) {
        const char *text = json_string_value(json_array_get(warnings, i));
        char *line = text_one_line(text != NULL ? text : "");
        out_printf(o, OUT_BAD, "  %s\n", line);
        free(line);
    }
}
