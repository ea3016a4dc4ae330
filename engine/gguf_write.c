/* See gguf_write.h. */
#include "engine/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/error.h"
#include "engine/gguf_int.h"
#include "kernels/type.h"

struct bytes {
    uint8_t *p;
    size_t n, cap;
};

struct gguf_writer {
    char *path, *part;
    FILE *f;
    struct bytes keys, infos;
    uint64_t n_keys, n_tensors, cap_tensors;
    uint64_t *size;        /* bytes of each tensor */
    uint64_t next_offset;  /* of the next tensor to be described, in the data section */
    uint64_t at, left;     /* tensor being written and what is missing of it */
    bool started, no_memory;
};

static void put(struct gguf_writer *w, struct bytes *b, const void *p, size_t n)
{
    if (w->no_memory)
        return;
    if (b->n + n > b->cap) {
        size_t cap = (b->n + n) * 2 + 256;
        uint8_t *q = realloc(b->p, cap);
        if (q == NULL) {
            w->no_memory = true;
            return;
        }
        b->p = q;
        b->cap = cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_u32(struct gguf_writer *w, struct bytes *b, uint32_t v)
{
    put(w, b, &v, sizeof v);
}

static void put_u64(struct gguf_writer *w, struct bytes *b, uint64_t v)
{
    put(w, b, &v, sizeof v);
}

static void put_str(struct gguf_writer *w, struct bytes *b, const char *s)
{
    put_u64(w, b, strlen(s));
    put(w, b, s, strlen(s));
}

static void free_writer(struct gguf_writer *w)
{
    if (w->f != NULL)
        fclose(w->f);
    free(w->path);
    free(w->part);
    free(w->keys.p);
    free(w->infos.p);
    free(w->size);
    free(w);
}

static enum rs_result failed(const struct gguf_writer *w, struct rs_error *err)
{
    return error_set(err, RS_EIO, "%s: cannot write: %s", gguf_short_path(w->part), strerror(errno));
}

enum rs_result gguf_write_open(const char *path, struct gguf_writer **out, struct rs_error *err)
{
    struct gguf_writer *w = calloc(1, sizeof *w);
    size_t len = path != NULL ? strlen(path) : 0;
    if (w == NULL || (path != NULL && ((w->path = strdup(path)) == NULL || (w->part = malloc(len + 6)) == NULL))) {
        gguf_write_abort(w);
        return error_set(err, RS_ENOMEM, "out of memory for a file to write");
    }
    if (path == NULL) {
        *out = w;
        return RS_OK;
    }
    memcpy(w->part, path, len);
    memcpy(w->part + len, ".part", 6);
    w->f = fopen(w->part, "wbe");
    if (w->f == NULL) {
        enum rs_result rc = failed(w, err);
        free_writer(w);
        return rc;
    }
    *out = w;
    return RS_OK;
}

void gguf_write_abort(struct gguf_writer *w)
{
    if (w == NULL)
        return;
    if (w->f != NULL)
        unlink(w->part);
    free_writer(w);
}

static void put_key(struct gguf_writer *w, const char *key, uint32_t type)
{
    put_str(w, &w->keys, key);
    put_u32(w, &w->keys, type);
    w->n_keys++;
}

void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, GGUF_U32);
    put_u32(w, &w->keys, v);
}

void gguf_write_f32(struct gguf_writer *w, const char *key, float v)
{
    put_key(w, key, GGUF_F32);
    put(w, &w->keys, &v, sizeof v);
}

void gguf_write_bool(struct gguf_writer *w, const char *key, bool v)
{
    uint8_t b = v;
    put_key(w, key, GGUF_BOOL);
    put(w, &w->keys, &b, 1);
}

void gguf_write_str(struct gguf_writer *w, const char *key, const char *v)
{
    put_key(w, key, GGUF_STR);
    put_str(w, &w->keys, v);
}

void gguf_write_array(struct gguf_writer *w, const char *key, uint32_t elem_type, uint64_t count)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(w, &w->keys, elem_type);
    put_u64(w, &w->keys, count);
}

void gguf_write_raw(struct gguf_writer *w, const void *p, size_t n)
{
    put(w, &w->keys, p, n);
}

void gguf_write_kv(struct gguf_writer *w, const struct gguf_kv *kv)
{
    const uint8_t *end = kv->data;
    if (kv->type == GGUF_ARRAY)
        gguf_write_array(w, kv->key, kv->elem_type, kv->count);
    else
        put_key(w, kv->key, kv->type);
    if (kv->elem_type != GGUF_STR)
        end += kv->count * gguf_type_size(kv->elem_type);
    for (uint64_t i = 0; kv->elem_type == GGUF_STR && i < kv->count; i++)
        end += 8 + gguf_ld64(end);
    put(w, &w->keys, kv->data, (size_t)(end - kv->data));
}

static uint64_t aligned(uint64_t n)
{
    return (n + GGUF_WRITE_ALIGN - 1) / GGUF_WRITE_ALIGN * GGUF_WRITE_ALIGN;
}

void gguf_write_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t ne[4])
{
    uint64_t bytes = krn_row_bytes(type, ne[0]);
    put_str(w, &w->infos, name);
    put_u32(w, &w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        put_u64(w, &w->infos, ne[i]);
        bytes *= i > 0 ? ne[i] : 1;
    }
    put_u32(w, &w->infos, type);
    put_u64(w, &w->infos, w->next_offset);
    if (w->n_tensors == w->cap_tensors) {
        w->cap_tensors = w->cap_tensors * 2 + 64;
        uint64_t *p = realloc(w->size, w->cap_tensors * sizeof *p);
        if (p == NULL) {
            w->no_memory = true;
            return;
        }
        w->size = p;
    }
    w->size[w->n_tensors++] = bytes;
    w->next_offset += aligned(bytes);
}

static bool out(struct gguf_writer *w, const void *p, size_t n)
{
    return n == 0 || fwrite(p, 1, n, w->f) == n;
}

static bool pad(struct gguf_writer *w, uint64_t n)
{
    static const uint8_t zeros[GGUF_WRITE_ALIGN];
    return out(w, zeros, (size_t)(aligned(n) - n));
}

struct head {
    char magic[4];
    uint32_t version;
    uint64_t n_tensors, n_keys;
};

static struct head make_head(const struct gguf_writer *w)
{
    return (struct head){{'G', 'G', 'U', 'F'}, 3, w->n_tensors, w->n_keys};
}

static enum rs_result start(struct gguf_writer *w, struct rs_error *err)
{
    struct head head = make_head(w);
    if (w->no_memory)
        return error_set(err, RS_ENOMEM, "out of memory for the head of %s", gguf_short_path(w->path));
    if (!out(w, &head, sizeof head) || !out(w, w->keys.p, w->keys.n) || !out(w, w->infos.p, w->infos.n) || !pad(w, sizeof head + w->keys.n + w->infos.n))
        return failed(w, err);
    w->started = true;
    w->left = w->n_tensors > 0 ? w->size[0] : 0;
    return RS_OK;
}

enum rs_result gguf_write_data(struct gguf_writer *w, const void *p, size_t n, struct rs_error *err)
{
    enum rs_result rc = w->started ? RS_OK : start(w, err);
    if (rc != RS_OK)
        return rc;
    if (w->at == w->n_tensors || n > w->left)
        return error_set(err, RS_EINTERNAL, "%s: more bytes than its tensors have", gguf_short_path(w->path));
    if (!out(w, p, n))
        return failed(w, err);
    w->left -= n;
    if (w->left != 0)
        return RS_OK;
    if (!pad(w, w->size[w->at]))
        return failed(w, err);
    w->at++;
    w->left = w->at < w->n_tensors ? w->size[w->at] : 0;
    return RS_OK;
}

enum rs_result gguf_write_finish(struct gguf_writer *w, struct rs_error *err)
{
    enum rs_result rc = w->started ? RS_OK : start(w, err);
    if (rc == RS_OK && w->at != w->n_tensors)
        rc = error_set(err, RS_EINTERNAL, "%s: bytes of tensors are missing", gguf_short_path(w->path));
    if (rc == RS_OK && fflush(w->f) != 0)
        rc = failed(w, err);
    if (rc == RS_OK && rename(w->part, w->path) != 0)
        rc = error_set(err, RS_EIO, "%s: cannot be renamed from %s: %s", gguf_short_path(w->path), gguf_short_path(w->part), strerror(errno));
    if (rc != RS_OK) {
        gguf_write_abort(w);
        return rc;
    }
    free_writer(w);
    return RS_OK;
}

enum rs_result gguf_write_map(struct gguf_writer *w, uint8_t **map, uint64_t *bytes, struct rs_error *err)
{
    struct head head = make_head(w);
    uint64_t n = aligned(sizeof head + w->keys.n + w->infos.n) + w->next_offset;
    uint8_t *p = w->no_memory ? MAP_FAILED : mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    enum rs_result rc = p != MAP_FAILED ? RS_OK : error_set(err, RS_ENOMEM, "%.1f GB of addresses for a model without a file are not to be had", (double)n / 1e9);
    if (rc == RS_OK) {
        memcpy(p, &head, sizeof head);
        memcpy(p + sizeof head, w->keys.p, w->keys.n);
        memcpy(p + sizeof head + w->keys.n, w->infos.p, w->infos.n);
        *map = p;
        *bytes = n;
    }
    free_writer(w);
    return rc;
}
