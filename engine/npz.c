/* See npz.h. Zip: local headers with data, then a central directory, then its end record; sizes of 4 GiB and more are not written, and are read only
 * where zip64 extra fields give them. Everything in the file is distrusted. */
#include "engine/npz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/error.h"

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, MAX_MEMBERS = 1 << 20 };

struct member {
    char *name;
    uint64_t offset, size; /* of the local header; of the stored data */
    uint16_t method;
};

struct npz {
    char *path;
    const uint8_t *map;
    size_t size, n;
    struct member *m;
};

static uint16_t u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t u32(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }
static uint64_t u64(const uint8_t *p) { return (uint64_t)u32(p) | (uint64_t)u32(p + 4) << 32; }

static const uint8_t *find_end(const struct npz *z)
{
    for (size_t back = 22; back <= z->size && back <= 22 + 65535; back++)
        if (u32(z->map + z->size - back) == END)
            return z->map + z->size - back;
    return NULL;
}

/* 64-bit sizes of a central entry, in the order in which its 32-bit fields are full. */
static void zip64(const uint8_t *extra, size_t n, uint64_t *usize, uint64_t *csize, uint64_t *offset)
{
    for (size_t at = 0; at + 4 <= n;) {
        size_t len = u16(extra + at + 2);
        if (at + 4 + len > n)
            return;
        if (u16(extra + at) == 1) {
            const uint8_t *p = extra + at + 4, *end = p + len;
            uint64_t *fields[] = {usize, csize, offset};
            for (int i = 0; i < 3; i++)
                if (*fields[i] == UINT32_MAX && p + 8 <= end) {
                    *fields[i] = u64(p);
                    p += 8;
                }
        }
        at += 4 + len;
    }
}

static enum rs_result read_directory(struct npz *z, struct rs_error *err)
{
    const uint8_t *end = z->size >= 22 ? find_end(z) : NULL;
    if (end == NULL)
        return error_set(err, RS_EFORMAT, "%s: not an .npz file (no zip directory)", z->path);
    uint64_t n = u16(end + 10), at = u32(end + 16);
    z->m = calloc(n + 1, sizeof *z->m);
    if (z->m == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for the directory of %s", z->path);
    for (uint64_t i = 0; i < n; i++) {
        if (at > z->size || z->size - at < 46 || u32(z->map + at) != CENTRAL)
            return error_set(err, RS_EFORMAT, "%s: entry %llu of the zip directory is damaged", z->path, (unsigned long long)i);
        const uint8_t *p = z->map + at;
        size_t name = u16(p + 28), extra = u16(p + 30), comment = u16(p + 32);
        uint64_t csize = u32(p + 20), usize = u32(p + 24), offset = u32(p + 42);
        if (z->size - at - 46 < name + extra + comment)
            return error_set(err, RS_EFORMAT, "%s: entry %llu of the zip directory is cut off", z->path, (unsigned long long)i);
        zip64(p + 46 + name, extra, &usize, &csize, &offset);
        size_t keep = name > 4 && memcmp(p + 46 + name - 4, ".npy", 4) == 0 ? name - 4 : name;
        z->m[z->n].name = strndup((const char *)p + 46, keep);
        if (z->m[z->n].name == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for the directory of %s", z->path);
        z->m[z->n].offset = offset;
        z->m[z->n].size = csize;
        z->m[z->n++].method = u16(p + 10);
        at += 46 + name + extra + comment;
    }
    return RS_OK;
}

enum rs_result npz_open(const char *path, struct npz **out, struct rs_error *err)
{
    struct npz *z = calloc(1, sizeof *z);
    struct stat st;
    if (z == NULL || (z->path = strdup(path)) == NULL) {
        free(z);
        return error_set(err, RS_ENOMEM, "out of memory for %s", path);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum rs_result rc = fd < 0 || fstat(fd, &st) != 0 ? error_set(err, RS_EIO, "%s: cannot open: %s", path, strerror(errno)) : RS_OK;
    if (rc == RS_OK && !S_ISREG(st.st_mode))
        rc = error_set(err, RS_EIO, "%s: not a regular file", path);
    if (rc == RS_OK && st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = error_set(err, RS_EIO, "%s: cannot map: %s", path, strerror(errno));
        else {
            z->map = p;
            z->size = (size_t)st.st_size;
        }
    }
    if (fd >= 0)
        close(fd);
    if (rc == RS_OK)
        rc = read_directory(z, err);
    if (rc != RS_OK) {
        npz_close(z);
        return rc;
    }
    *out = z;
    return RS_OK;
}

void npz_close(struct npz *z)
{
    if (z == NULL)
        return;
    for (size_t i = 0; i < z->n; i++)
        free(z->m[i].name);
    free(z->m);
    if (z->map != NULL)
        munmap((void *)z->map, z->size);
    free(z->path);
    free(z);
}

size_t npz_count(const struct npz *z) { return z->n; }
const char *npz_name(const struct npz *z, size_t i) { return z->m[i].name; }

/* What follows 'key': in a header such as {'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), } */
static const char *value_of(const char *header, const char *key)
{
    const char *p = strstr(header, key);
    return p != NULL && (p = strchr(p, ':')) != NULL ? p + 1 + strspn(p + 1, " ") : NULL;
}

static size_t type_bytes(const char *t)
{
    static const char *const KNOWN[] = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"};
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        if (strcmp(KNOWN[i], t) == 0 && strcmp(t, "f2") != 0)
            return (size_t)(t[1] - '0');
    return 0;
}

static enum rs_result parse_header(const struct npz *z, const char *name, const char *h, struct npz_array *a, struct rs_error *err)
{
    const char *d = value_of(h, "'descr'"), *order = value_of(h, "'fortran_order'"), *shape = value_of(h, "'shape'");
    if (d == NULL || order == NULL || shape == NULL || *d != '\'' || strlen(d) < 5 || *shape != '(')
        return error_set(err, RS_EFORMAT, "%s: %s has a damaged header", z->path, name);
    memcpy(a->type, d + 2, 2);
    a->type[2] = '\0';
    if ((d[1] != '<' && d[1] != '|') || d[4] != '\'' || type_bytes(a->type) == 0)
        return error_set(err, RS_EUNSUPPORTED, "%s: %s has elements of type %.5s, which is not read", z->path, name, d);
    if (strncmp(order, "False", 5) != 0)
        return error_set(err, RS_EUNSUPPORTED, "%s: %s is stored column by column", z->path, name);
    a->n = 1;
    for (const char *p = shape + 1; *p != ')';) {
        char *end;
        unsigned long long v = strtoull(p, &end, 10);
        if (end == p || a->n_dims == 4 || v > (1ull << 40) || (v != 0 && a->n > SIZE_MAX / v))
            return error_set(err, RS_EFORMAT, "%s: %s has a damaged shape, or more than 4 dimensions", z->path, name);
        a->dim[a->n_dims++] = v;
        a->n *= (size_t)v;
        p = end + strspn(end, ", ");
    }
    return RS_OK;
}

static enum rs_result parse_member(const struct npz *z, const struct member *m, struct npz_array *out, struct rs_error *err)
{
    struct npz_array a = {.n_dims = 0};
    char header[1024];
    if (m->method != 0)
        return error_set(err, RS_EUNSUPPORTED, "%s: %s is compressed; write it with numpy.savez", z->path, m->name);
    if (m->offset > z->size || z->size - m->offset < 30 || u32(z->map + m->offset) != LOCAL)
        return error_set(err, RS_EFORMAT, "%s: %s lies outside of the file", z->path, m->name);
    const uint8_t *p = z->map + m->offset;
    uint64_t data = m->offset + 30 + u16(p + 26) + u16(p + 28);
    if (data > z->size || m->size > z->size - data || m->size < 12)
        return error_set(err, RS_EFORMAT, "%s: %s is cut off", z->path, m->name);
    p = z->map + data;
    size_t head = memcmp(p, "\x93NUMPY", 6) != 0 ? 0 : p[6] == 1 ? 10u + u16(p + 8) : 12u + (size_t)u32(p + 8), start = p[6] == 1 ? 10 : 12;
    if (head == 0 || head > m->size || head - start >= sizeof header)
        return error_set(err, RS_EFORMAT, "%s: %s is not an array", z->path, m->name);
    memcpy(header, p + start, head - start);
    header[head - start] = '\0';
    enum rs_result rc = parse_header(z, m->name, header, &a, err);
    if (rc != RS_OK)
        return rc;
    if (a.n > (m->size - head) / type_bytes(a.type))
        return error_set(err, RS_EFORMAT, "%s: %s has fewer values than its shape says", z->path, m->name);
    a.data = p + head;
    *out = a;
    return RS_OK;
}

enum rs_result npz_get(const struct npz *z, const char *name, struct npz_array *out, struct rs_error *err)
{
    for (size_t i = 0; i < z->n; i++)
        if (strcmp(z->m[i].name, name) == 0)
            return parse_member(z, &z->m[i], out, err);
    return error_set(err, RS_ENOTFOUND, "%s: no array '%.60s'", z->path, name);
}

double npz_at(const struct npz_array *a, size_t i)
{
    size_t w = (size_t)(a->type[1] - '0');
    const uint8_t *p = a->data + i * w;
    union { uint64_t u; double d; int64_t i; } x = {.u = 0};
    union { uint32_t u; float f; int32_t i; } y = {.u = 0};
    if (w == 8)
        memcpy(&x, p, 8);
    else
        memcpy(&y, p, w);
    switch (a->type[0]) {
    case 'f': return w == 8 ? x.d : (double)y.f;
    case 'i': return w == 8 ? (double)x.i : w == 4 ? y.i : w == 2 ? (int16_t)y.u : (int8_t)y.u;
    default: return w == 8 ? (double)x.u : y.u;
    }
}

/* ---- writing ---- */

struct entry {
    char name[64];
    uint32_t crc, size, offset;
};

struct npz_writer {
    FILE *f;
    char *path, *part; /* the name it will have; the name it has */
    struct entry *e;
    size_t n, cap;
    uint64_t at;
    uint32_t crc_table[256];
    bool failed;
};

enum rs_result npz_create(const char *path, struct npz_writer **out, struct rs_error *err)
{
    struct npz_writer *w = calloc(1, sizeof *w);
    if (w == NULL || (w->path = strdup(path)) == NULL || asprintf(&w->part, "%s.part", path) < 0) {
        npz_abandon(w);
        return error_set(err, RS_ENOMEM, "out of memory for %s", path);
    }
    w->f = fopen(w->part, "wbe");
    if (w->f == NULL) {
        enum rs_result rc = error_set(err, RS_EIO, "%s: cannot write: %s", w->part, strerror(errno));
        npz_abandon(w);
        return rc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        w->crc_table[i] = c;
    }
    *out = w;
    return RS_OK;
}

static uint32_t crc(const struct npz_writer *w, uint32_t c, const void *data, size_t n)
{
    const uint8_t *p = data;
    c = ~c;
    for (size_t i = 0; i < n; i++)
        c = w->crc_table[(c ^ p[i]) & 255] ^ c >> 8;
    return ~c;
}

static void put(struct npz_writer *w, const void *data, size_t n)
{
    w->failed |= n != 0 && fwrite(data, 1, n, w->f) != n;
    w->at += n;
}

static void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)v, p[1] = (uint8_t)(v >> 8); }
static void put32(uint8_t *p, uint32_t v) { put16(p, v), put16(p + 2, v >> 16); }

/* What a local header and a central entry have in common. */
static void describe(uint8_t *p, const struct entry *e)
{
    put16(p, 20);                  /* version needed */
    put16(p + 8, 33);              /* date: 1 January 1980, so that equal contents make equal files */
    put32(p + 10, e->crc);
    put32(p + 14, e->size);
    put32(p + 18, e->size);
    put16(p + 22, (uint32_t)strlen(e->name));
}

static enum rs_result add(struct npz_writer *w, const char *name, const char *descr, const char *shape, const void *data, uint64_t bytes, struct rs_error *err)
{
    struct entry e = {.offset = (uint32_t)w->at};
    char header[256];
    uint8_t magic[10] = "\x93NUMPY\x01", local[30] = {0};
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    size_t pad = (64 - (sizeof magic + (size_t)n + 1) % 64) % 64;
    memset(header + n, ' ', pad);
    header[(size_t)n + pad] = '\n';
    size_t head = (size_t)n + pad + 1;
    if (w->at + bytes > UINT32_MAX - 65536)
        return error_set(err, RS_EUSAGE, "%s: an archive of 4 GiB and more is not written; name fewer sites", w->path);
    if (w->n == w->cap) {
        size_t cap = w->cap != 0 ? 2 * w->cap : 256;
        struct entry *p = realloc(w->e, cap * sizeof *p);
        if (p == NULL)
            return error_set(err, RS_ENOMEM, "out of memory for %s", w->path);
        w->e = p;
        w->cap = cap;
    }
    snprintf(e.name, sizeof e.name, "%s.npy", name);
    put16(magic + 8, (uint32_t)head);
    e.crc = crc(w, crc(w, crc(w, 0, magic, sizeof magic), header, head), data, bytes);
    e.size = (uint32_t)(sizeof magic + head + bytes);
    put32(local, LOCAL);
    describe(local + 4, &e);
    put(w, local, sizeof local);
    put(w, e.name, strlen(e.name));
    put(w, magic, sizeof magic);
    put(w, header, head);
    put(w, data, bytes);
    w->e[w->n++] = e;
    return RS_OK;
}

enum rs_result npz_add_f32(struct npz_writer *w, const char *name, const float *data, uint64_t rows, uint64_t cols, struct rs_error *err)
{
    char shape[64];
    snprintf(shape, sizeof shape, "%llu, %llu", (unsigned long long)rows, (unsigned long long)cols);
    return add(w, name, "<f4", shape, data, rows * cols * sizeof *data, err);
}

enum rs_result npz_add_i32(struct npz_writer *w, const char *name, const int32_t *data, uint64_t n, struct rs_error *err)
{
    char shape[64];
    snprintf(shape, sizeof shape, "%llu,", (unsigned long long)n);
    return add(w, name, "<i4", shape, data, n * sizeof *data, err);
}

void npz_abandon(struct npz_writer *w)
{
    if (w == NULL)
        return;
    if (w->f != NULL) {
        fclose(w->f);
        unlink(w->part);
    }
    free(w->path);
    free(w->part);
    free(w->e);
    free(w);
}

enum rs_result npz_finish(struct npz_writer *w, struct rs_error *err)
{
    uint64_t start = w->at;
    uint8_t end[22] = {0};
    for (size_t i = 0; i < w->n; i++) {
        uint8_t c[46] = {0};
        put32(c, CENTRAL);
        put16(c + 4, 20);
        describe(c + 6, &w->e[i]);
        put32(c + 42, w->e[i].offset);
        put(w, c, sizeof c);
        put(w, w->e[i].name, strlen(w->e[i].name));
    }
    put32(end, END);
    put16(end + 8, (uint32_t)w->n);
    put16(end + 10, (uint32_t)w->n);
    put32(end + 12, (uint32_t)(w->at - start));
    put32(end + 16, (uint32_t)start);
    put(w, end, sizeof end);
    bool bad = w->failed || w->n > 65535 || fflush(w->f) != 0 || rename(w->part, w->path) != 0;
    enum rs_result rc = bad ? error_set(err, RS_EIO, "%s: cannot write: %s", w->path, strerror(errno)) : RS_OK;
    if (!bad) {
        fclose(w->f);
        w->f = NULL;
    }
    npz_abandon(w);
    return rc;
}
