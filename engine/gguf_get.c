/* Typed access to the keys of a model: no value is read through a type that was not checked first. */
#include "engine/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf_int.h"

const char *gguf_type_name(uint32_t type)
{
    static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64"};
    return type < sizeof names / sizeof *names ? names[type] : "?";
}

static bool is_int(uint32_t type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

static enum rs_result wrong(const struct gguf *g, struct rs_error *err, const struct gguf_kv *kv, const char *why)
{
    const struct gguf_file *f = &g->files[0];
    return gguf_bad(f, err, RS_EFORMAT, (uint64_t)(kv->data - f->map), "key \"%.80s\" (%s%s%s) %s", kv->key, gguf_type_name(kv->type),
                    kv->type == GGUF_ARRAY ? " of " : "", kv->type == GGUF_ARRAY ? gguf_type_name(kv->elem_type) : "", why);
}

/* Look a key up. *absent tells that the caller is done: either the key is optional (RS_OK) or it is missed (RS_EFORMAT). */
static enum rs_result look(const struct gguf *g, const char *key, struct gguf_kv *kv, bool *found, bool *absent, struct rs_error *err)
{
    bool have = gguf_find_kv(g, key, kv);
    *absent = !have;
    if (found != NULL)
        *found = have;
    if (!have && found == NULL)
        return error_set(err, RS_EFORMAT, "%s: key \"%.80s\" is missing", gguf_short_path(g->files[0].path), key);
    return RS_OK;
}

/* An integer of any stored type; u64 above INT64_MAX saturates, which every range check above this refuses. */
static int64_t int_at(uint32_t type, const uint8_t *p)
{
    /* clang-format off */
    switch (type) {
    case GGUF_U8: case GGUF_BOOL: return p[0];
    case GGUF_I8: return (int8_t)p[0];
    case GGUF_U16: return gguf_ld16(p);
    case GGUF_I16: return (int16_t)gguf_ld16(p);
    case GGUF_U32: return gguf_ld32(p);
    case GGUF_I32: return (int32_t)gguf_ld32(p);
    case GGUF_I64: return (int64_t)gguf_ld64(p);
    default: {
        uint64_t u = gguf_ld64(p);
        return u > INT64_MAX ? INT64_MAX : (int64_t)u;
    }
    }
    /* clang-format on */
}

static double float_at(uint32_t type, const uint8_t *p)
{
    if (type == GGUF_F64) {
        uint64_t u = gguf_ld64(p);
        double d;
        memcpy(&d, &u, sizeof d);
        return d;
    }
    uint32_t u = gguf_ld32(p);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static enum rs_result get_int(const struct gguf *g, const char *key, int64_t least, int64_t most, int64_t *out, bool *found, struct rs_error *err)
{
    struct gguf_kv kv;
    bool absent;
    enum rs_result r = look(g, key, &kv, found, &absent, err);
    if (absent)
        return r;
    if (!is_int(kv.type))
        return wrong(g, err, &kv, "should be an integer");
    int64_t x = int_at(kv.type, kv.data);
    if ((kv.type == GGUF_U64 && gguf_ld64(kv.data) > INT64_MAX) || x < least || x > most)
        return wrong(g, err, &kv, "is out of range");
    *out = x;
    return RS_OK;
}

enum rs_result gguf_get_i64(const struct gguf *g, const char *key, int64_t *out, bool *found, struct rs_error *err)
{
    return get_int(g, key, INT64_MIN, INT64_MAX, out, found, err);
}

enum rs_result gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, bool *found, struct rs_error *err)
{
    int64_t x = -1;
    enum rs_result r = get_int(g, key, 0, UINT32_MAX, &x, found, err);
    if (x >= 0)
        *out = (uint32_t)x;
    return r;
}

enum rs_result gguf_get_f32(const struct gguf *g, const char *key, float *out, bool *found, struct rs_error *err)
{
    struct gguf_kv kv;
    bool absent;
    enum rs_result r = look(g, key, &kv, found, &absent, err);
    if (absent)
        return r;
    if (kv.type != GGUF_F32 && kv.type != GGUF_F64)
        return wrong(g, err, &kv, "should be f32");
    float x = (float)float_at(kv.type, kv.data);
    if (!isfinite(x))
        return wrong(g, err, &kv, "is not a finite number");
    *out = x;
    return RS_OK;
}

enum rs_result gguf_get_bool(const struct gguf *g, const char *key, bool *out, bool *found, struct rs_error *err)
{
    struct gguf_kv kv;
    bool absent;
    enum rs_result r = look(g, key, &kv, found, &absent, err);
    if (absent)
        return r;
    if (kv.type != GGUF_BOOL)
        return wrong(g, err, &kv, "should be bool");
    *out = kv.data[0] != 0;
    return RS_OK;
}

enum rs_result gguf_get_str(const struct gguf *g, const char *key, const char **s, size_t *len, bool *found, struct rs_error *err)
{
    struct gguf_kv kv;
    bool absent;
    enum rs_result r = look(g, key, &kv, found, &absent, err);
    if (absent)
        return r;
    if (kv.type != GGUF_STR)
        return wrong(g, err, &kv, "should be a string");
    *len = gguf_ld64(kv.data);
    *s = (const char *)kv.data + 8;
    return RS_OK;
}

enum rs_result gguf_dup_str(const struct gguf *g, const char *key, char **out, bool *found, struct rs_error *err)
{
    const char *s = NULL;
    size_t len = 0;
    enum rs_result r = gguf_get_str(g, key, &s, &len, found, err);
    if (r != RS_OK || s == NULL)
        return r;
    if (memchr(s, '\0', len) != NULL)
        return error_set(err, RS_EFORMAT, "%s: key \"%.80s\" has a NUL inside", gguf_short_path(g->files[0].path), key);
    char *copy = malloc(len + 1);
    if (copy == NULL)
        return error_set(err, RS_ENOMEM, "out of memory for key \"%.80s\"", key);
    memcpy(copy, s, len);
    copy[len] = '\0';
    *out = copy;
    return RS_OK;
}

enum rs_result gguf_get_array(const struct gguf *g, const char *key, enum gguf_want want, struct gguf_array *out, bool *found,
                              struct rs_error *err)
{
    static const char *const should[] = {"should be an array of integers", "should be an array of f32", "should be an array of bool",
                                         "should be an array of strings"};
    struct gguf_kv kv;
    bool absent;
    enum rs_result r = look(g, key, &kv, found, &absent, err);
    if (absent)
        return r;
    uint32_t e = kv.elem_type;
    bool fits = (want == GGUF_WANT_INT && is_int(e)) || (want == GGUF_WANT_F32 && e == GGUF_F32) ||
                (want == GGUF_WANT_BOOL && e == GGUF_BOOL) || (want == GGUF_WANT_STR && e == GGUF_STR);
    if (kv.type != GGUF_ARRAY || !fits)
        return wrong(g, err, &kv, should[want]);
    *out = (struct gguf_array){e, kv.count, kv.data, 0, kv.data};
    return RS_OK;
}

enum rs_result gguf_get_u32s(const struct gguf *g, const char *key, uint32_t *out, size_t n, bool *found, struct rs_error *err)
{
    struct gguf_kv kv;
    bool absent;
    enum rs_result r = look(g, key, &kv, found, &absent, err);
    if (absent)
        return r;
    if (!is_int(kv.elem_type))
        return wrong(g, err, &kv, "should be an integer or an array of integers");
    if (kv.type == GGUF_ARRAY && kv.count != n)
        return wrong(g, err, &kv, "does not have one entry per layer");
    const struct gguf_array a = {kv.elem_type, kv.count, kv.data, 0, kv.data};
    for (size_t i = 0; i < kv.count; i++) {
        int64_t x = gguf_array_i64(&a, i);
        if (x < 0 || x > UINT32_MAX)
            return wrong(g, err, &kv, "is out of range");
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)gguf_array_i64(&a, kv.type == GGUF_ARRAY ? i : 0);
    return RS_OK;
}

const char *gguf_array_str(struct gguf_array *a, uint64_t i, size_t *len)
{
    if (i < a->at) {
        a->at = 0;
        a->pos = a->data;
    }
    for (; a->at < i; a->at++)
        a->pos += 8 + gguf_ld64(a->pos);
    *len = gguf_ld64(a->pos);
    return (const char *)a->pos + 8;
}

int64_t gguf_array_i64(const struct gguf_array *a, uint64_t i)
{
    return int_at(a->elem_type, a->data + i * gguf_type_size(a->elem_type));
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
    return (float)float_at(a->elem_type, a->data + i * gguf_type_size(a->elem_type));
}

/* snprintf at the end of what is there; n counts the bytes a large enough buffer would hold. */
static size_t add(char *buf, size_t cap, size_t n, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++, n++)
        if (n + 1 < cap)
            buf[n] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
    if (cap > 0)
        buf[n < cap ? n : cap - 1] = '\0';
    return n;
}

static size_t add_one(char *buf, size_t cap, size_t n, uint32_t type, const uint8_t *p)
{
    enum { MAX = 60 };
    char num[40];
    if (type == GGUF_STR) {
        uint64_t len = gguf_ld64(p);
        n = add(buf, cap, n, (const char *)p + 8, len < MAX ? len : MAX);
        return len > MAX ? add(buf, cap, n, "...", 3) : n;
    }
    if (type == GGUF_BOOL)
        snprintf(num, sizeof num, "%s", p[0] ? "true" : "false");
    else if (type == GGUF_F32 || type == GGUF_F64)
        snprintf(num, sizeof num, "%.9g", float_at(type, p));
    else if (type == GGUF_U64)
        snprintf(num, sizeof num, "%llu", (unsigned long long)gguf_ld64(p));
    else
        snprintf(num, sizeof num, "%lld", (long long)int_at(type, p));
    return add(buf, cap, n, num, strlen(num));
}

size_t gguf_print_value(const struct gguf_kv *kv, char *buf, size_t cap)
{
    enum { MAX = 6 };
    size_t n = 0;
    if (cap > 0)
        buf[0] = '\0';
    if (kv->type != GGUF_ARRAY)
        return add_one(buf, cap, n, kv->type, kv->data);
    char head[48];
    snprintf(head, sizeof head, "%llu %s: ", (unsigned long long)kv->count, gguf_type_name(kv->elem_type));
    n = add(buf, cap, n, head, strlen(head));
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; i < kv->count && i < MAX; i++) {
        if (i > 0)
            n = add(buf, cap, n, " ", 1);
        n = add_one(buf, cap, n, kv->elem_type, p);
        p += kv->elem_type == GGUF_STR ? 8 + gguf_ld64(p) : gguf_type_size(kv->elem_type);
    }
    return kv->count > MAX ? add(buf, cap, n, " ...", 4) : n;
}
