/* Methods that write model files: quantize, synth. They run on the control thread; nothing else happens meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/msg.h"
#include "engine/msg_util.h"
#include "engine/now.h"
#include "engine/quantise.h"
#include "engine/server.h"
#include "engine/shape.h"
#include "kernels/type.h"

struct watcher {
    struct engine *e;
    struct msg *m;
    const char *what;
    uint64_t t0, told;
};

/* A PROGRESS event to whoever asked, twice a second. */
static void progress(void *arg, uint64_t done, uint64_t total)
{
    struct watcher *w = arg;
    uint64_t now = now_us();
    if (now - w->told < 500000)
        return;
    w->told = now;
    double rate = (double)done * 1e6 / (double)(now - w->t0 + 1);
    json_t *o = json_pack("{s:s,s:I,s:I,s:f,s:f}", "what", w->what, "done", (json_int_t)done, "total", (json_int_t)total, "bytes_per_s", rate, "seconds_left",
                          (double)(total - done) / (rate + 1));
    char *s = json_dumps(o, JSON_COMPACT);
    server_event(w->e->server, w->m->slot, RS_EVENT_PROGRESS, RS_OK, w->m->id, s, NULL, 0);
    server_flush(w->e->server);
    free(s);
    json_decref(o);
}

/* "type": one type for all matrices, or "recipe": rules. Neither: *given is false. */
static enum rs_result read_recipe(struct args *a, bool must_encode, struct recipe *r, bool *given, struct rs_error *err)
{
    const char *type = NULL, *text = NULL;
    char rule[80], all[256];
    uint32_t t;
    bool by_type = args_str(a, "type", &type), by_text = args_str(a, "recipe", &text);
    *given = by_type || by_text;
    r->n = 0;
    if (!*given || a->rc != RS_OK)
        return a->rc;
    if (by_type && by_text)
        return error_set(err, RS_EUSAGE, "type or recipe, not both");
    if (by_type && (!recipe_type_named(type, &t) || (must_encode && !krn_type_info(t)->encodes)))
        return error_set(err, RS_EUSAGE, "weights cannot be %s type '%.20s', but: %s", must_encode ? "turned into" : "of", type,
                         recipe_types(must_encode, all, sizeof all));
    snprintf(rule, sizeof rule, "* %.20s", by_type ? type : "");
    return recipe_parse(by_type ? rule : text, must_encode, r, err);
}

static enum rs_result msg_quantize(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *in = NULL, *out = NULL;
    struct recipe r;
    struct quantise_report rep;
    struct gguf *g = NULL;
    struct watcher w = {e, m, "quantize", now_us(), 0};
    bool given = false;
    args_need(a, args_str(a, "in", &in), "in");
    args_need(a, args_str(a, "out", &out), "out");
    enum rs_result rc = read_recipe(a, true, &r, &given, err);
    args_need(a, given, "type (or recipe)");
    if (rc == RS_OK)
        rc = args_end(a);
    if (rc == RS_OK)
        rc = gguf_open(in, &g, err);
    for (size_t i = 0; rc == RS_OK && i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (!krn_type_info(t->type)->computes)
            rc = error_set(err, RS_EUNSUPPORTED, "%s: tensor %s has a type that cannot be read", in, t->name);
    }
    if (rc == RS_OK)
        rc = quantise_file(g, out, &r, e->pool, progress, &w, &rep, err);
    gguf_close(g);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "out", json_string(out));
    json_object_set_new(m->reply, "tensors", json_integer((json_int_t)rep.tensors));
    json_object_set_new(m->reply, "changed", json_integer((json_int_t)rep.changed));
    json_object_set_new(m->reply, "bytes_in", json_integer((json_int_t)rep.bytes_in));
    json_object_set_new(m->reply, "bytes_out", json_integer((json_int_t)rep.bytes_out));
    json_object_set_new(m->reply, "took_ms", json_real((double)(now_us() - w.t0) / 1e3));
    return RS_OK;
}

static enum rs_result no_shape(const char *arch, struct rs_error *err)
{
    char list[200] = "";
    for (size_t i = 0; shape_name(i) != NULL; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 0 ? ", " : "", shape_name(i));
    return error_set(err, RS_ENOTFOUND, "there is no shape '%.30s', but: %s", arch, list);
}

/* "R/N" */
static bool read_slice(const char *s, struct synth_spec *out)
{
    char *end;
    unsigned long r = strtoul(s, &end, 10), n = 0;
    if (*s >= '0' && *s <= '9' && *end == '/' && end[1] >= '1' && end[1] <= '9')
        n = strtoul(end + 1, &end, 10);
    if (n < 2 || n > RS_MAX_RANKS || r >= n || *end != '\0')
        return false;
    out->rank = (uint32_t)r;
    out->of = (uint32_t)n;
    return true;
}

bool msg_read_synthetic(struct args *a, struct synth_spec *out)
{
    const char *arch = NULL, *slice = NULL, *recipe = NULL;
    *out = (struct synth_spec){.options.seed = 1};
    bool given = args_str(a, "synthetic", &arch), more = args_u32(a, "layers", 1, HP_MAX_LAYERS, &out->options.layers);
    more |= args_u32(a, "experts", 1, HP_MAX_EXPERTS, &out->options.experts);
    more |= args_u32(a, "vocab", 512, UINT32_MAX, &out->options.vocab);
    more |= args_str(a, "rank", &slice);
    more |= args_str(a, "recipe", &recipe);
    if (a->rc != RS_OK || (!given && !more))
        return false;
    if (!given)
        a->rc = error_set(a->err, RS_EUSAGE, "layers, experts, vocab, rank and recipe belong to synthetic");
    else if ((out->shape = shape_find(arch)) == NULL)
        a->rc = no_shape(arch, a->err);
    else if (slice != NULL && !read_slice(slice, out))
        a->rc = error_set(a->err, RS_EUSAGE, "rank must be R/N, R from 0 and less than N, N from 2 to %d, not '%.20s'", RS_MAX_RANKS, slice);
    else if (recipe != NULL)
        a->rc = recipe_parse(recipe, false, &out->recipe, a->err);
    return a->rc == RS_OK;
}

static enum rs_result msg_synth(struct engine *e, struct msg *m, struct args *a, struct rs_error *err)
{
    const char *arch = NULL, *out = NULL;
    struct recipe r;
    bool given;
    long long seed = 1;
    struct shape_options o = {0};
    struct watcher w = {e, m, "synth", now_us(), 0};
    args_need(a, args_str(a, "arch", &arch), "arch");
    args_need(a, args_str(a, "out", &out), "out");
    args_u32(a, "layers", 1, HP_MAX_LAYERS, &o.layers);
    args_u32(a, "experts", 1, HP_MAX_EXPERTS, &o.experts);
    args_u32(a, "vocab", 512, UINT32_MAX, &o.vocab);
    args_int(a, "seed", INT64_MIN, INT64_MAX, &seed);
    enum rs_result rc = read_recipe(a, false, &r, &given, err);
    if (rc == RS_OK)
        rc = args_end(a);
    const struct shape *s = rc == RS_OK ? shape_find(arch) : NULL;
    if (rc == RS_OK && s == NULL)
        rc = no_shape(arch, err);
    o.recipe = given ? &r : NULL;
    o.seed = (uint64_t)seed;
    if (rc == RS_OK)
        rc = shape_write(s, &o, out, progress, &w, err);
    if (rc != RS_OK)
        return rc;
    json_object_set_new(m->reply, "out", json_string(out));
    json_object_set_new(m->reply, "took_ms", json_real((double)(now_us() - w.t0) / 1e3));
    return RS_OK;
}

const struct msg_method MSG_MAKE[] = {{"quantize", true, msg_quantize}, {"synth", true, msg_synth}, {NULL, false, NULL}};
