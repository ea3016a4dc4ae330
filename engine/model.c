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

enum rs_result model_open(const char *path, struct model **out, struct rs_error *err)
{
    bool found;
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL || (m->path = strdup(path)) == NULL) {
        free(m);
        return error_set(err, RS_ENOMEM, "out of memory for the model");
    }
    enum rs_result rc = gguf_open(path, &m->gguf, err);
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
        rc = error_set(err, RS_EFORMAT, "%s: %u tokens, but token_embd.weight has only %u rows", path, vocab_size(m->vocab), m->hp.vocab);
    if (rc != RS_OK) {
        model_close(m);
        return rc;
    }
    fingerprint(m);
    *out = m;
    return RS_OK;
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
