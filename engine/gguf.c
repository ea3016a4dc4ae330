/* Opening a model: map the file, find its shards, check what concerns several tensors or files (names, overlaps, split keys). */
#include "engine/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gguf_int.h"

static enum rs_result map_file(struct gguf_file *f, struct rs_error *err)
{
    const char *shown = gguf_short_path(f->path);
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* non-blocking: a FIFO must not hang us */
    if (fd < 0)
        return error_set(err, RS_EIO, "%s: cannot open: %s", shown, strerror(errno));
    struct stat st;
    enum rs_result r = RS_OK;
    if (fstat(fd, &st) != 0)
        r = error_set(err, RS_EIO, "%s: cannot stat: %s", shown, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        r = error_set(err, RS_EIO, "%s: not a regular file", shown);
    else if (st.st_size == 0)
        r = gguf_bad(f, err, RS_EFORMAT, 0, "not a GGUF file: it is empty");
    if (r == RS_OK) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            r = error_set(err, RS_EIO, "%s: cannot map %lld bytes: %s", shown, (long long)st.st_size, strerror(errno));
        } else {
            f->map = p;
            f->size = (uint64_t)st.st_size;
        }
    }
    close(fd);
    return r;
}

/* Append one file, or the bytes at map; takes ownership of path and map, also on failure. */
static enum rs_result add_file(struct gguf *g, char *path, const uint8_t *map, uint64_t bytes, struct rs_error *err)
{
    if (path == NULL) {
        if (map != NULL)
            munmap((void *)(uintptr_t)map, bytes);
        return error_set(err, RS_ENOMEM, "out of memory while opening a model");
    }
    if (g->n_files == g->cap_files) {
        uint32_t cap = g->cap_files == 0 ? 1 : g->cap_files * 2;
        struct gguf_file *p = realloc(g->files, cap * sizeof *p);
        if (p == NULL) {
            free(path);
            if (map != NULL)
                munmap((void *)(uintptr_t)map, bytes);
            return error_set(err, RS_ENOMEM, "out of memory while opening a model");
        }
        g->files = p;
        g->cap_files = cap;
    }
    struct gguf_file *f = &g->files[g->n_files++];
    memset(f, 0, sizeof *f);
    f->path = path;
    f->map = map;
    f->size = bytes;
    enum rs_result r = map != NULL ? RS_OK : map_file(f, err);
    return r == RS_OK ? gguf_parse_scan(f, err) : r;
}

static void drop_files(struct gguf *g)
{
    for (uint32_t i = 0; i < g->n_files; i++) {
        if (g->files[i].map != NULL)
            munmap((void *)(uintptr_t)g->files[i].map, g->files[i].size);
        free(g->files[i].path);
    }
    g->n_files = 0;
}

static void shard_suffix(char out[32], uint32_t no, uint32_t count)
{
    snprintf(out, 32, "-%05u-of-%05u.gguf", (no + 1) % 100000, count % 100000);
}

/* The given file says that it is shard `no` of `count`: check that its name agrees, so that siblings can be derived, and open all. */
static enum rs_result open_shards(struct gguf *g, const char *path, struct rs_error *err)
{
    uint32_t no = g->files[0].split_no, count = g->files[0].split_count;
    char suffix[32];
    shard_suffix(suffix, no, count);
    size_t n = strlen(path), sn = strlen(suffix);
    if (no >= count)
        return error_set(err, RS_EFORMAT, "%s: key \"split.no\" is %u, but \"split.count\" is %u", gguf_short_path(path), no, count);
    if (n < sn || strcmp(path + n - sn, suffix) != 0)
        return error_set(err, RS_EFORMAT, "%s: it is shard %u of %u, but its name does not end in %s, so the others cannot be found",
                         gguf_short_path(path), no + 1, count, suffix);
    drop_files(g);
    for (uint32_t i = 0; i < count; i++) {
        char *sib = strdup(path);
        shard_suffix(suffix, i, count);
        if (sib != NULL)
            memcpy(sib + n - sn, suffix, sn);
        enum rs_result r = add_file(g, sib, NULL, 0, err);
        if (r != RS_OK)
            return r;
        const struct gguf_file *f = &g->files[i];
        if (f->split_no != i || f->split_count != count)
            return error_set(err, RS_EFORMAT, "%s: its keys say shard %u of %u, its name says shard %u of %u", gguf_short_path(f->path),
                             f->split_no + 1, f->split_count, i + 1, count);
    }
    return RS_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(struct gguf_slot *const *)a)->key, (*(struct gguf_slot *const *)b)->key);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct gguf_tensor *const *)a)->name, (*(struct gguf_tensor *const *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a, *y = *(struct gguf_tensor *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Sort the index over the keys of one file and refuse duplicates. */
static enum rs_result index_keys(const struct gguf_file *f, struct gguf_slot *kv, struct gguf_slot **index, struct rs_error *err)
{
    for (uint64_t i = 0; i < f->n_kv; i++)
        index[i] = &kv[i];
    qsort(index, f->n_kv, sizeof *index, by_key);
    for (uint64_t i = 1; i < f->n_kv; i++)
        if (strcmp(index[i - 1]->key, index[i]->key) == 0)
            return gguf_bad(f, err, RS_EFORMAT, (uint64_t)(index[i]->at - f->map), "key \"%.80s\" appears twice", index[i]->key);
    return RS_OK;
}

/* Keys of the shards after the first: checked, then forgotten; the first shard speaks for the model. */
static enum rs_result check_shard_keys(const struct gguf_file *f, struct rs_error *err)
{
    struct gguf_slot *kv = calloc(f->n_kv + 1, sizeof *kv), **index = calloc(f->n_kv + 1, sizeof *index);
    char *text = malloc(f->key_text + 1), *t = text;
    enum rs_result r = RS_ENOMEM;
    if (kv == NULL || index == NULL || text == NULL) {
        error_set(err, r, "%s: out of memory", gguf_short_path(f->path));
    } else {
        gguf_parse_keys(f, kv, &t);
        r = index_keys(f, kv, index, err);
    }
    free(kv);
    free(index);
    free(text);
    return r;
}

static enum rs_result allocate(struct gguf *g, struct rs_error *err)
{
    uint64_t text = g->files[0].key_text;
    g->n_tensors = 0;
    for (uint32_t i = 0; i < g->n_files; i++) {
        g->n_tensors += g->files[i].n_tensors;
        text += g->files[i].name_text;
    }
    if (g->n_tensors > UINT32_MAX)
        return error_set(err, RS_EFORMAT, "%s: more than 2^32 tensors", gguf_short_path(g->files[0].path));
    g->kv = calloc(g->files[0].n_kv + 1, sizeof *g->kv);
    g->kv_by_key = calloc(g->files[0].n_kv + 1, sizeof *g->kv_by_key);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    g->by_name = calloc(g->n_tensors + 1, sizeof *g->by_name);
    g->text = malloc(text + 1);
    if (g->kv == NULL || g->kv_by_key == NULL || g->tensors == NULL || g->by_name == NULL || g->text == NULL)
        return error_set(err, RS_ENOMEM, "%s: out of memory for %llu tensors", gguf_short_path(g->files[0].path),
                         (unsigned long long)g->n_tensors);
    return RS_OK;
}

/* Checks over all tensors: no two share bytes, no two share a name. Leaves by_name sorted by name. */
static enum rs_result index_tensors(struct gguf *g, struct rs_error *err)
{
    for (uint64_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, by_place);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        if (a->file == b->file && b->offset - a->offset < a->bytes)
            return gguf_bad(&g->files[b->file], err, RS_EFORMAT, b->offset, "tensor \"%s\" overlaps tensor \"%s\"", b->name, a->name);
    }
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, by_name);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        if (strcmp(a->name, b->name) == 0)
            return gguf_bad(&g->files[b->file], err, RS_EFORMAT, b->offset, "tensor \"%s\" appears twice", b->name);
    }
    return RS_OK;
}

static enum rs_result load(struct gguf *g, struct rs_error *err)
{
    enum rs_result r = allocate(g, err);
    if (r != RS_OK)
        return r;
    char *text = g->text;
    gguf_parse_keys(&g->files[0], g->kv, &text);
    if ((r = index_keys(&g->files[0], g->kv, g->kv_by_key, err)) != RS_OK)
        return r;
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_files; i++) {
        const struct gguf_file *f = &g->files[i];
        if (i > 0 && (r = check_shard_keys(f, err)) != RS_OK)
            return r;
        if ((r = gguf_parse_tensors(f, i, (uint32_t)n, g->tensors + n, &text, err)) != RS_OK)
            return r;
        n += f->n_tensors;
    }
    int64_t want = g->files[0].split_tensors;
    if (g->n_files > 1 && want >= 0 && (uint64_t)want != n)
        return error_set(err, RS_EFORMAT, "%s: key \"split.tensors.count\" is %lld, but the %u shards have %llu tensors",
                         gguf_short_path(g->files[0].path), (long long)want, g->n_files, (unsigned long long)n);
    return index_tensors(g, err);
}

enum rs_result gguf_open(const char *path, struct gguf **out, struct rs_error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (g == NULL)
        return error_set(err, RS_ENOMEM, "out of memory while opening a model");
    enum rs_result r = add_file(g, strdup(path), NULL, 0, err);
    if (r == RS_OK && g->files[0].split_count > 1)
        r = open_shards(g, path, err);
    if (r == RS_OK)
        r = load(g, err);
    if (r != RS_OK) {
        gguf_close(g);
        return r;
    }
    *out = g;
    return RS_OK;
}

enum rs_result gguf_open_map(const char *name, uint8_t *map, uint64_t bytes, struct gguf **out, struct rs_error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (g == NULL) {
        munmap(map, bytes);
        return error_set(err, RS_ENOMEM, "out of memory while opening a model");
    }
    enum rs_result r = add_file(g, strdup(name), map, bytes, err);
    if (r == RS_OK)
        r = load(g, err);
    if (r != RS_OK) {
        gguf_close(g);
        return r;
    }
    *out = g;
    return RS_OK;
}

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    drop_files(g);
    free(g->files);
    free(g->kv);
    free(g->kv_by_key);
    free(g->tensors);
    free(g->by_name);
    free(g->text);
    free(g);
}

uint32_t gguf_n_files(const struct gguf *g)
{
    return g->n_files;
}

const char *gguf_path(const struct gguf *g, uint32_t file)
{
    return g->files[file].path;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_files; i++)
        n += g->files[i].size;
    return n;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->files[0].version;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct gguf_tensor probe = {.name = name}, *p = &probe;
    struct gguf_tensor **hit = bsearch(&p, g->by_name, g->n_tensors, sizeof *g->by_name, by_name);
    return hit == NULL ? NULL : *hit;
}

size_t gguf_n_kv(const struct gguf *g)
{
    return g->files[0].n_kv;
}

struct gguf_kv gguf_kv_at(const struct gguf *g, size_t i)
{
    return gguf_slot_kv(&g->kv[i]);
}

bool gguf_find_kv(const struct gguf *g, const char *key, struct gguf_kv *out)
{
    struct gguf_slot probe = {key, NULL}, *p = &probe;
    struct gguf_slot **hit = bsearch(&p, g->kv_by_key, g->files[0].n_kv, sizeof *g->kv_by_key, by_key);
    if (hit != NULL)
        *out = gguf_slot_kv(*hit);
    return hit != NULL;
}
