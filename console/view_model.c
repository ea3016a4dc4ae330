/* view_model.c: the open model, and the patch table. */
#include "config.h"

#include "console/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "console/buf.h"
#include "console/js.h"
#include "console/table.h"
#include "console/text.h"
#include "console/units.h"

static void line(struct out *o, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void line(struct out *o, const char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = xvasprintf(fmt, ap), *clean = text_one_line(text);
    va_end(ap);
    out_printf(o, OUT_TEXT, "  %-10s %s\n", name, clean);
    free(clean);
    free(text);
}

/* "mla=direct, moe.split=ep", or "none"; caller frees. */
static char *patch_list(const json_t *patches)
{
    struct buf b = {0};
    const char *slot;
    json_t *impl;
    json_object_foreach((json_t *)patches, slot, impl)
        buf_printf(&b, "%s%s=%s", b.len > 0 ? ", " : "", slot, json_is_string(impl) ? json_string_value(impl) : "?");
    if (b.len == 0)
        buf_str(&b, "none");
    return buf_take(&b);
}

static void view_state(struct out *o, const json_t *info)
{
    const json_t *s = json_object_get(info, "state");
    char *patches = patch_list(json_object_get(s, "patches"));
    line(o, "ranks", "%lld%s", (long long)js_int(s, "ranks", 0), js_bool(info, "simulated", false) ? " (simulated)" : "");
    line(o, "mode", "%s%s", js_str(s, "mode", "n/a"), js_bool(s, "armed", false) ? ", armed steps run eager" : "");
    line(o, "numerics", "%s, graph.guard %s", js_str(s, "numerics", "n/a"), js_bool(s, "graph_guard", true) ? "on" : "off");
    line(o, "patches", "%s (generation %lld)", patches, (long long)js_int(s, "generation", 0));
    line(o, "cache", "%lld of %lld tokens", (long long)js_int(s, "ctx_used", 0), (long long)js_int(s, "ctx_total", 0));
    line(o, "backend", "%s, %lld workers, %s", js_str(info, "backend", "n/a"), (long long)js_int(info, "workers", 0),
         js_str(info, "isa", "n/a"));
    free(patches);
}

void view_info(struct out *o, const json_t *info)
{
    const json_t *m = json_object_get(info, "model");
    if (!json_is_object(m)) {
        out_str(o, OUT_TEXT, "no model is open\n");
        return;
    }
    char params[32], bytes[32];
    struct buf types = {0};
    const char *type;
    json_t *n;
    json_object_foreach(json_object_get(m, "types"), type, n)
        buf_printf(&types, "%s%s %lld", types.len > 0 ? ", " : "", type, (long long)json_integer_value(n));
    line(o, "model", "%s (%s)", js_str(m, "name", "unnamed"), js_str(m, "path", "?"));
    if (js_int(m, "slice.of", 0) != 0)
        line(o, "slice", "rank %lld of %lld alone; its all-reduces meet a stand-in", (long long)js_int(m, "slice.rank", 0), (long long)js_int(m, "slice.of", 0));
    line(o, "arch", "%s, %s parameters, %s", js_str(m, "arch", "n/a"), units_count(params, js_num(m, "params", NAN)),
         units_bytes(bytes, js_num(m, "bytes", NAN)));
    line(o, "shape", "%lld layers, width %lld, %lld heads, %lld of %lld experts, vocabulary %lld",
         (long long)js_int(m, "layers", 0), (long long)js_int(m, "n_embd", 0), (long long)js_int(m, "heads", 0),
         (long long)js_int(m, "experts_used", 0), (long long)js_int(m, "experts", 0), (long long)js_int(m, "vocab", 0));
    line(o, "context", "%lld tokens", (long long)js_int(m, "context", 0));
    line(o, "tensors", "%s", types.text != NULL ? types.text : "n/a");
    buf_fini(&types);
    view_state(o, info);
}

/* "absorbed*, expanded, direct!": the default has a star, what graphs cannot capture an exclamation mark. Caller frees. */
static char *impl_list(const json_t *slot)
{
    const json_t *impls = json_object_get(slot, "impls");
    const char *def = js_str(slot, "default", "");
    struct buf b = {0};
    for (size_t i = 0; i < json_array_size(impls); i++) {
        const json_t *e = json_array_get(impls, i);
        const char *name = json_is_string(e) ? json_string_value(e) : js_str(e, "name", "?");
        buf_printf(&b, "%s%s%s%s", i > 0 ? ", " : "", name, strcmp(name, def) == 0 ? "*" : "", js_bool(e, "capturable", true) ? "" : "!");
    }
    return buf_take(&b);
}

/* "direct; expanded at blk.3.*"; caller frees. */
static char *current(const json_t *slot)
{
    const json_t *sites = json_object_get(slot, "sites");
    struct buf b = {0};
    const char *everywhere = js_str(slot, "current", "n/a");
    buf_str(&b, everywhere);
    for (size_t i = 0; i < json_array_size(sites); i++) {
        const json_t *e = json_array_get(sites, i);
        const char *impl = js_str(e, "impl", "?"), *glob = js_str(e, "glob", "?");
        if (strcmp(glob, "*") != 0)
            buf_printf(&b, "; %s at %s", impl, glob);
        else if (strcmp(impl, everywhere) != 0) /* slot user: one for each kind of op */
            buf_printf(&b, "; %s", impl);
    }
    return buf_take(&b);
}

void view_patches(struct out *o, const json_t *list)
{
    const json_t *slots = json_object_get(list, "slots");
    struct table *t = table_new("slot|~now|~3implementations|2cost|~1what it is");
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const json_t *s = json_array_get(slots, i);
        char *impls = impl_list(s), *now = current(s);
        table_cell(t, "%s", js_str(s, "slot", "?"));
        table_cell(t, "%s", now);
        table_cell(t, "%s", impls);
        table_cell(t, "%s", js_str(s, "cost", "n/a"));
        table_cell(t, "%s", js_str(s, "help", ""));
        free(impls);
        free(now);
    }
    table_print(t, o);
    out_printf(o, OUT_TEXT, "  generation %lld; * is the default, ! cannot be captured in a graph\n",
               (long long)js_int(list, "generation", 0));
}

void view_slot(struct out *o, const json_t *slot)
{
    const json_t *impls = json_object_get(slot, "impls"), *kinds = json_object_get(slot, "op_kinds");
    char *now = current(slot), *help = text_one_line(js_str(slot, "help", ""));
    struct buf b = {0};
    for (size_t i = 0; i < json_array_size(kinds); i++)
        buf_printf(&b, "%s%s", i > 0 ? ", " : "", json_string_value(json_array_get(kinds, i)));
    line(o, js_str(slot, "slot", "?"), "%s", help);
    line(o, "now", "%s", now);
    line(o, "cost", "%s", js_str(slot, "cost", "n/a"));
    if (b.len > 0)
        line(o, "ops", "%s", b.text);
    struct table *t = table_new("implementation|1in graphs|+what it is");
    for (size_t i = 0; i < json_array_size(impls); i++) {
        const json_t *e = json_array_get(impls, i);
        const char *name = json_is_string(e) ? json_string_value(e) : js_str(e, "name", "?");
        table_cell(t, "%s%s", name, strcmp(name, js_str(slot, "default", "")) == 0 ? " (default)" : "");
        table_cell(t, "%s", js_bool(e, "capturable", true) ? "yes" : "no");
        table_cell(t, "%s", js_str(e, "help", ""));
    }
    table_print(t, o);
    buf_fini(&b);
    free(now);
    free(help);
}
