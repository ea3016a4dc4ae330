/* See model.h. */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* FNV over every tensor's description and the first and last 64 bytes of its data: cheap on a file of hundreds of gigabytes, and another
 * quantisation or another training run changes it. */
static void fingerprint(struct model *m)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        size_t n = t->bytes < 64 ? (size_t)t->bytes : 64;
        h = mix(h, t->name, strlen(t->name));
        h = mix(h, &t->type, sizeof t->type);
        h = mix(h, t->ne, sizeof t->ne);
        h = mix(h, t->data, n);
        h = mix(h, t->data + t->bytes - n, n);
    }
    snprintf(m->hash, sizeof m->hash, "%016llx", (unsigned long long)h);
}

/* The rest, once m->gguf is open. rc: whether that went well. */
static enum rs_result finish(struct model *m, enum rs_result rc, struct model **out, struct rs_error *err)
{
    bool found;
    if (rc == RS_OK)
        rc = hparams_read(m->gguf, &m->hp, err);
    if (rc == RS_OK)
        rc = weights_bind(m->gguf, &m->hp, &m->w, err);
    if (rc == RS_OK)
        rc = vocab_open(m->gguf, &m->vocab, err);
    if (rc == RS_OK)
        rc = gguf_dup_str(m->gguf, "general.name", &m->name, &found, err);
    if (rc == RS_OK)
        rc = gguf_dup_str(m->gguf, "tokenizer.chat_template", &m->chat_template, &found, err);
    if (rc == RS_OK && vocab_size(m->vocab) > m->hp.vocab)
        rc = error_set(err, RS_EFORMAT, "%s: %u tokens, but token_embd.weight has only %u rows", m->path, vocab_size(m->vocab), m->hp.vocab);
    if (rc != RS_OK) {
        model_close(m);
        return rc;
    }
    fingerprint(m);
    *out = m;
    return RS_OK;
}

static struct model *begin(const char *path)
{
    struct model *m = calloc(1, sizeof *m);
    if (m != NULL && (m->path = strdup(path)) == NULL) {
        free(m);
        return NULL;
    }
    return m;
}

enum rs_result model_open(const char *path, struct model **out, struct rs_error *err)
{
    struct model *m = begin(path);
    if (m == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the model");
    return finish(m, gguf_open(path, &m->gguf, err), out, err);
}

/* Whoever reads a figure of one rank alone is to know it. */
static enum rs_result rename_slice(struct model *m, struct model **out, struct rs_error *err)
{
    char name[128];
    snprintf(name, sizeof name, "%s, rank %u of %u", m->name, m->slice, m->slice_of);
    char *s = m->slice_of != 0 ? strdup(name) : m->name;
    if (s == NULL) {
        model_close(m);
        return error_set(err, RS_ENOMEM, "out of memory for the model");
    }
    if (s != m->name)
        free(m->name);
    m->name = s;
    *out = m;
    return RS_OK;
}

enum rs_result model_make(const struct synth_spec *spec, struct model **out, struct rs_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "synthetic:%s", spec->shape->name);
    struct model *m = begin(name);
    if (m == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the model");
    m->made_up = true;
    m->slice = spec->of > 1 ? spec->rank : 0;
    m->slice_of = spec->of > 1 ? spec->of : 0;
    enum rs_result rc = finish(m, synth_open(spec, &m->gguf, err), &m, err);
    return rc == RS_OK ? rename_slice(m, out, err) : rc;
}

void model_close(struct model *m)
{
    if (m == NULL)
        return;
    vocab_close(m->vocab);
    weights_free(&m->w);
    gguf_close(m->gguf);
    free(m->name);
    free(m->chat_template);
    free(m->path);
    free(m);
}
