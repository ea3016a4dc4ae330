/* The header of one GGUF file. Every number in it is hostile until checked: counts are compared with the bytes that are left before
 * anything is sized by them, sums are never formed where they could wrap, and nothing is allocated here at all. */
#include "engine/gguf_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/type.h"

enum {
    GGUF_MIN_KV = 13,     /* key length, type, and one byte of value; an empty key is refused later by name */
    GGUF_MIN_TENSOR = 24, /* name length, n_dims, type, offset */
    GGUF_MAX_NAME = 63,   /* bytes of a tensor name */
    GGUF_MAX_KEY = 65535,
    GGUF_MIN_ALIGN = 8, /* the format asks for a multiple of 8 */
    GGUF_DEFAULT_ALIGN = 32,
    GGUF_SHOWN = 80, /* bytes of a name that a message shows */
};
#define GGUF_MAX_STRING (UINT64_C(1) << 30)
#define GGUF_MAX_COUNT (UINT64_C(1) << 30)

struct cursor {
    const struct gguf_file *f;
    uint64_t pos; /* <= f->size always */
    struct rs_error *err;
};

struct span {
    const char *s;
    uint64_t len;
};

uint16_t gguf_ld16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

uint32_t gguf_ld32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t gguf_ld64(const uint8_t *p)
{
    return gguf_ld32(p) | (uint64_t)gguf_ld32(p + 4) << 32;
}

const char *gguf_short_path(const char *path)
{
    size_t n = strlen(path);
    return n > 200 ? path + n - 200 : path;
}

enum rs_result gguf_bad(const struct gguf_file *f, struct rs_error *err, enum rs_result code, uint64_t offset, const char *fmt, ...)
{
    char why[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return error_set(err, code, "%s: offset %llu: %s", gguf_short_path(f->path), (unsigned long long)offset, why);
}

size_t gguf_type_size(uint32_t type)
{
    /* clang-format off */
    switch (type) {
    case GGUF_U8: case GGUF_I8: case GGUF_BOOL: return 1;
    case GGUF_U16: case GGUF_I16: return 2;
    case GGUF_U32: case GGUF_I32: case GGUF_F32: return 4;
    case GGUF_U64: case GGUF_I64: case GGUF_F64: return 8;
    default: return 0;
    }
    /* clang-format on */
}

static int shown(struct span s)
{
    return s.len < GGUF_SHOWN ? (int)s.len : GGUF_SHOWN;
}

static uint64_t left(const struct cursor *c)
{
    return c->f->size - c->pos;
}

/* Take n bytes, or report that the file ends inside `what`. */
static const uint8_t *take(struct cursor *c, uint64_t n, const char *what, struct span who, enum rs_result *r)
{
    if (left(c) < n) {
        *r = gguf_bad(c->f, c->err, RS_EFORMAT, c->pos, "the file ends inside %s%s%.*s%s (%llu bytes left, %llu needed)", what,
                      who.len ? " \"" : "", shown(who), who.s ? who.s : "", who.len ? "\"" : "", (unsigned long long)left(c),
                      (unsigned long long)n);
        return NULL;
    }
    const uint8_t *p = c->f->map + c->pos;
    c->pos += n;
    return p;
}

static enum rs_result take_string(struct cursor *c, uint64_t max, const char *what, struct span who, struct span *out)
{
    enum rs_result r = RS_OK;
    uint64_t at = c->pos;
    const uint8_t *p = take(c, 8, what, who, &r);
    if (p == NULL)
        return r;
    uint64_t len = gguf_ld64(p);
    if (len > left(c) || len > max)
        return gguf_bad(c->f, c->err, RS_EFORMAT, at, "%s%s%.*s%s has a string of %llu bytes, but %s %llu", what, who.len ? " \"" : "",
                        shown(who), who.s ? who.s : "", who.len ? "\"" : "", (unsigned long long)len,
                        len > left(c) ? "the rest of the file has" : "the limit is", (unsigned long long)(len > left(c) ? left(c) : max));
    out->s = (const char *)c->f->map + c->pos;
    out->len = len;
    c->pos += len;
    return RS_OK;
}

static enum rs_result check_bools(struct cursor *c, struct span key, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return gguf_bad(c->f, c->err, RS_EFORMAT, (uint64_t)(p + i - c->f->map), "key \"%.*s\": %u is not a bool", shown(key), key.s,
                            p[i]);
    return RS_OK;
}

static enum rs_result skip_array(struct cursor *c, struct span key)
{
    enum rs_result r = RS_OK;
    uint64_t at = c->pos;
    const uint8_t *p = take(c, 12, "the array of key", key, &r);
    if (p == NULL)
        return r;
    uint32_t elem = gguf_ld32(p);
    uint64_t n = gguf_ld64(p + 4);
    if (elem == GGUF_ARRAY)
        return gguf_bad(c->f, c->err, RS_EUNSUPPORTED, at, "key \"%.*s\" is an array of arrays", shown(key), key.s);
    uint64_t size = elem == GGUF_STR ? 8 : gguf_type_size(elem);
    if (size == 0)
        return gguf_bad(c->f, c->err, RS_EFORMAT, at, "key \"%.*s\": no array element type has number %u", shown(key), key.s, elem);
    if (n > GGUF_MAX_COUNT || n > left(c) / size)
        return gguf_bad(c->f, c->err, RS_EFORMAT, at + 4, "key \"%.*s\": an array of %llu %s does not fit in the %llu bytes left",
                        shown(key), key.s, (unsigned long long)n, gguf_type_name(elem), (unsigned long long)left(c));
    if (elem == GGUF_STR) {
        struct span s;
        for (uint64_t i = 0; i < n && r == RS_OK; i++)
            r = take_string(c, GGUF_MAX_STRING, "the array of key", key, &s);
        return r;
    }
    p = take(c, n * size, "the array of key", key, &r);
    return p != NULL && elem == GGUF_BOOL ? check_bools(c, key, p, n) : r;
}

static enum rs_result skip_value(struct cursor *c, struct span key, uint32_t type, uint64_t type_at)
{
    enum rs_result r = RS_OK;
    if (type == GGUF_STR) {
        struct span s;
        return take_string(c, GGUF_MAX_STRING, "key", key, &s);
    }
    if (type == GGUF_ARRAY)
        return skip_array(c, key);
    size_t size = gguf_type_size(type);
    if (size == 0)
        return gguf_bad(c->f, c->err, RS_EFORMAT, type_at, "key \"%.*s\": no value type has number %u", shown(key), key.s, type);
    const uint8_t *p = take(c, size, "the value of key", key, &r);
    return p != NULL && type == GGUF_BOOL ? check_bools(c, key, p, 1) : r;
}

static bool is_key(struct span key, const char *name)
{
    return key.len == strlen(name) && memcmp(key.s, name, key.len) == 0;
}

/* The split.* keys: writers differ in the integer type. */
static enum rs_result split_number(struct cursor *c, struct span key, uint32_t type, const uint8_t *v, uint64_t max, int64_t *out)
{
    int64_t x = -1;
    /* clang-format off */
    switch (type) {
    case GGUF_U8: x = v[0]; break;
    case GGUF_I8: x = (int8_t)v[0]; break;
    case GGUF_U16: x = gguf_ld16(v); break;
    case GGUF_I16: x = (int16_t)gguf_ld16(v); break;
    case GGUF_U32: x = gguf_ld32(v); break;
    case GGUF_I32: x = (int32_t)gguf_ld32(v); break;
    case GGUF_U64: case GGUF_I64: x = (int64_t)gguf_ld64(v); break;
    default:
        return gguf_bad(c->f, c->err, RS_EFORMAT, (uint64_t)(v - c->f->map), "key \"%.*s\" is %s, not an integer", shown(key), key.s,
                        gguf_type_name(type));
    }
    /* clang-format on */
    if (x < 0 || (uint64_t)x > max)
        return gguf_bad(c->f, c->err, RS_EFORMAT, (uint64_t)(v - c->f->map), "key \"%.*s\" is out of range", shown(key), key.s);
    *out = x;
    return RS_OK;
}

/* Keys that the container itself needs. */
static enum rs_result note_key(struct cursor *c, struct gguf_file *f, struct span key, uint32_t type, const uint8_t *v)
{
    int64_t x = 0;
    enum rs_result r = RS_OK;
    if (is_key(key, "general.alignment")) {
        if (type != GGUF_U32)
            return gguf_bad(f, c->err, RS_EFORMAT, (uint64_t)(v - f->map), "key \"general.alignment\" is %s, not u32",
                            gguf_type_name(type));
        f->alignment = gguf_ld32(v);
        if (f->alignment < GGUF_MIN_ALIGN || (f->alignment & (f->alignment - 1)) != 0)
            return gguf_bad(f, c->err, RS_EFORMAT, (uint64_t)(v - f->map),
                            "key \"general.alignment\": %u is not a power of two of at least %d", f->alignment, GGUF_MIN_ALIGN);
    } else if (is_key(key, "split.no")) {
        if ((r = split_number(c, key, type, v, 65534, &x)) == RS_OK)
            f->split_no = (uint32_t)x;
    } else if (is_key(key, "split.count")) {
        if ((r = split_number(c, key, type, v, 65535, &x)) == RS_OK)
            f->split_count = x == 0 ? 1 : (uint32_t)x;
    } else if (is_key(key, "split.tensors.count")) {
        if ((r = split_number(c, key, type, v, INT32_MAX, &x)) == RS_OK)
            f->split_tensors = x;
    }
    return r;
}

/* The name of the i-th key or tensor: neither empty nor with a NUL inside. */
static enum rs_result take_name(struct cursor *c, struct gguf_file *f, const char *thing, uint64_t most, uint64_t i, struct span *out)
{
    const struct span nobody = {NULL, 0};
    const uint64_t at = c->pos;
    char what[40];
    snprintf(what, sizeof what, "the name of a %s", thing);
    enum rs_result r = take_string(c, most, what, nobody, out);
    if (r != RS_OK)
        return r;
    if (out->len != 0 && memchr(out->s, '\0', out->len) == NULL)
        return RS_OK;
    return gguf_bad(f, c->err, RS_EFORMAT, at, "%s number %llu %s", thing, (unsigned long long)i, out->len == 0 ? "has no name" : "has a NUL in its name");
}

static enum rs_result scan_keys(struct cursor *c, struct gguf_file *f)
{
    f->kv_at = c->pos;
    for (uint64_t i = 0; i < f->n_kv; i++) {
        struct span key = {NULL, 0};
        enum rs_result r = take_name(c, f, "key", GGUF_MAX_KEY, i, &key);
        if (r != RS_OK)
            return r;
        uint64_t type_at = c->pos;
        const uint8_t *p = take(c, 4, "key", key, &r);
        if (p == NULL)
            return r;
        uint32_t type = gguf_ld32(p);
        const uint8_t *value = f->map + c->pos;
        if ((r = skip_value(c, key, type, type_at)) != RS_OK || (r = note_key(c, f, key, type, value)) != RS_OK)
            return r;
        f->key_text += key.len + 1;
    }
    return RS_OK;
}

static enum rs_result scan_infos(struct cursor *c, struct gguf_file *f)
{
    f->infos_at = c->pos;
    for (uint64_t i = 0; i < f->n_tensors; i++) {
        struct span name = {NULL, 0};
        enum rs_result r = take_name(c, f, "tensor", GGUF_MAX_NAME, i, &name);
        if (r != RS_OK)
            return r;
        const uint8_t *p = take(c, 4, "tensor", name, &r);
        if (p == NULL)
            return r;
        uint32_t n_dims = gguf_ld32(p);
        if (n_dims < 1 || n_dims > 4)
            return gguf_bad(f, c->err, RS_EFORMAT, c->pos - 4, "tensor \"%.*s\" has %u dimensions, not 1 to 4", shown(name), name.s,
                            n_dims);
        if (take(c, n_dims * 8 + 12, "tensor", name, &r) == NULL)
            return r;
        f->name_text += name.len + 1;
    }
    return RS_OK;
}

static enum rs_result check_magic(const struct gguf_file *f, struct rs_error *err)
{
    static const uint8_t zero[4] = {0};
    if (f->size >= 4 && memcmp(f->map, "GGUF", 4) == 0)
        return RS_OK;
    const char *hint = "it does not begin with \"GGUF\"";
    if (f->size == 0)
        hint = "it is empty";
    else if (f->size >= 4 && memcmp(f->map, zero, 4) == 0)
        hint = "it begins with zeros, as an incomplete download does";
    else if (f->size >= 20 && memcmp(f->map, "version https://git-", 20) == 0)
        hint = "it is a Git LFS pointer, not the file that it points to";
    else if (f->map[0] == '<')
        hint = "it looks like a web page";
    return gguf_bad(f, err, RS_EFORMAT, 0, "not a GGUF file: %s", hint);
}

static enum rs_result scan_start(struct cursor *c, struct gguf_file *f)
{
    const struct span nobody = {NULL, 0};
    enum rs_result r = check_magic(f, c->err);
    if (r != RS_OK)
        return r;
    const uint8_t *p = take(c, 24, "its first 24 bytes", nobody, &r);
    if (p == NULL)
        return r;
    f->version = gguf_ld32(p + 4);
    if ((f->version & 0xffff) == 0 && f->version != 0)
        return gguf_bad(f, c->err, RS_EUNSUPPORTED, 4, "the file is big-endian");
    if (f->version < 2 || f->version > 3)
        return gguf_bad(f, c->err, RS_EUNSUPPORTED, 4, "GGUF version %u (versions 2 and 3 are read)", f->version);
    f->n_tensors = gguf_ld64(p + 8);
    f->n_kv = gguf_ld64(p + 16);
    if (f->n_tensors > left(c) / GGUF_MIN_TENSOR || f->n_tensors > UINT32_MAX)
        return gguf_bad(f, c->err, RS_EFORMAT, 8, "%llu tensors do not fit in the %llu bytes of the file", (unsigned long long)f->n_tensors,
                        (unsigned long long)f->size);
    if (f->n_kv > left(c) / GGUF_MIN_KV)
        return gguf_bad(f, c->err, RS_EFORMAT, 16, "%llu keys do not fit in the %llu bytes of the file", (unsigned long long)f->n_kv,
                        (unsigned long long)f->size);
    return RS_OK;
}

enum rs_result gguf_parse_scan(struct gguf_file *f, struct rs_error *err)
{
    struct cursor c = {f, 0, err};
    f->alignment = GGUF_DEFAULT_ALIGN;
    f->split_no = 0;
    f->split_count = 1;
    f->split_tensors = -1;
    f->key_text = f->name_text = 0;
    enum rs_result r = scan_start(&c, f);
    if (r != RS_OK || (r = scan_keys(&c, f)) != RS_OK || (r = scan_infos(&c, f)) != RS_OK)
        return r;
    /* size < 2^63 and alignment < 2^32, so this cannot wrap */
    f->data_start = (c.pos + f->alignment - 1) & ~(uint64_t)(f->alignment - 1);
    if (f->n_tensors > 0 && f->data_start > f->size)
        return gguf_bad(f, err, RS_EFORMAT, c.pos, "the file ends before its tensor data, which begins at %llu",
                        (unsigned long long)f->data_start);
    return RS_OK;
}

static char *copy_name(char **text, const uint8_t *s, uint64_t len)
{
    char *p = *text;
    memcpy(p, s, len);
    p[len] = '\0';
    *text = p + len + 1;
    return p;
}

void gguf_parse_keys(const struct gguf_file *f, struct gguf_slot *slots, char **text)
{
    struct cursor c = {f, f->kv_at, NULL};
    for (uint64_t i = 0; i < f->n_kv; i++) {
        const uint8_t *p = f->map + c.pos;
        uint64_t len = gguf_ld64(p);
        struct span key = {(const char *)p + 8, len};
        slots[i].key = copy_name(text, p + 8, len);
        slots[i].at = p + 8 + len;
        c.pos += 8 + len + 4;
        skip_value(&c, key, gguf_ld32(slots[i].at), 0); /* accepted by the first walk */
    }
}

struct gguf_kv gguf_slot_kv(const struct gguf_slot *s)
{
    struct gguf_kv kv = {s->key, gguf_ld32(s->at), 0, 1, s->at + 4};
    kv.elem_type = kv.type;
    if (kv.type == GGUF_ARRAY) {
        kv.elem_type = gguf_ld32(s->at + 4);
        kv.count = gguf_ld64(s->at + 8);
        kv.data = s->at + 16;
    }
    return kv;
}

/* Numbers that some writer has used and that cannot be read here; NULL when nobody is known to use the number. */
static const char *foreign_type(uint32_t type)
{
    if (type == 4 || type == 5 || (type >= 31 && type <= 33) || (type >= 36 && type <= 38))
        return "was removed from the format";
    if (type == 9 || type == 15)
        return "is for activations, not for files";
    if (type >= 24 && type <= 28)
        return "is an integer or f64 type, which no weight of these models has";
    if (type == 40)
        return "(NVFP4) is not supported";
    if (type < KRN_TYPE_MAX)
        return "is not supported";
    if ((type >= 97 && type <= 99) || (type >= 133 && type <= 160) || (type >= 200 && type <= 400))
        return "is private to a fork of llama.cpp";
    return NULL;
}

static enum rs_result check_type(const struct gguf_file *f, const struct gguf_tensor *t, uint64_t at, const struct krn_type_info **ti,
                                 struct rs_error *err)
{
    *ti = krn_type_info(t->type);
    if (*ti != NULL && (*ti)->block_elems != 0 && (*ti)->block_bytes != 0)
        return RS_OK;
    const char *why = foreign_type(t->type);
    if (why != NULL)
        return gguf_bad(f, err, RS_EUNSUPPORTED, at, "tensor \"%s\": weight type %u %s", t->name, t->type, why);
    return gguf_bad(f, err, RS_EFORMAT, at, "tensor \"%s\": no weight type has number %u", t->name, t->type);
}

static enum rs_result check_shape(const struct gguf_file *f, struct gguf_tensor *t, uint64_t at, const struct krn_type_info *ti,
                                  struct rs_error *err)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < 4; i++) {
        if (t->ne[i] == 0 || t->ne[i] > INT64_MAX)
            return gguf_bad(f, err, RS_EFORMAT, at, "tensor \"%s\": dimension %u is %lld", t->name, i, (long long)t->ne[i]);
        if (__builtin_mul_overflow(n, (int64_t)t->ne[i], &n))
            return gguf_bad(f, err, RS_EFORMAT, at, "tensor \"%s\": %llu x %llu x %llu x %llu elements overflow 63 bits", t->name,
                            (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                            (unsigned long long)t->ne[3]);
    }
    if (t->ne[0] % ti->block_elems != 0)
        return gguf_bad(f, err, RS_EFORMAT, at, "tensor \"%s\": a row of %llu elements is not a multiple of %s's block of %u", t->name,
                        (unsigned long long)t->ne[0], ti->name, ti->block_elems);
    if (__builtin_mul_overflow((uint64_t)n / ti->block_elems, (uint64_t)ti->block_bytes, &t->bytes))
        return gguf_bad(f, err, RS_EFORMAT, at, "tensor \"%s\": its size in bytes overflows 64 bits", t->name);
    return RS_OK;
}

static enum rs_result check_place(const struct gguf_file *f, struct gguf_tensor *t, uint64_t at, uint64_t off, struct rs_error *err)
{
    if (off % f->alignment != 0)
        return gguf_bad(f, err, RS_EFORMAT, at, "tensor \"%s\": data offset %llu is not a multiple of the alignment %u", t->name,
                        (unsigned long long)off, f->alignment);
    uint64_t avail = f->size - f->data_start;
    if (off > avail || t->bytes > avail - off)
        return gguf_bad(f, err, RS_EFORMAT, at,
                        "tensor \"%s\": %llu bytes at data offset %llu end outside the file (%llu bytes of data): incomplete or damaged",
                        t->name, (unsigned long long)t->bytes, (unsigned long long)off, (unsigned long long)avail);
    t->offset = f->data_start + off;
    t->data = f->map + t->offset;
    return RS_OK;
}

enum rs_result gguf_parse_tensors(const struct gguf_file *f, uint32_t file, uint32_t ordinal, struct gguf_tensor *t, char **text,
                                  struct rs_error *err)
{
    uint64_t pos = f->infos_at;
    for (uint64_t i = 0; i < f->n_tensors; i++, t++) {
        const uint8_t *p = f->map + pos;
        uint64_t len = gguf_ld64(p);
        t->name = copy_name(text, p + 8, len);
        t->file = file;
        t->ordinal = ordinal++;
        p += 8 + len;
        t->n_dims = gguf_ld32(p);
        for (uint32_t d = 0; d < 4; d++)
            t->ne[d] = d < t->n_dims ? gguf_ld64(p + 4 + 8 * d) : 1;
        p += 4 + 8 * t->n_dims;
        t->type = gguf_ld32(p);
        uint64_t type_at = (uint64_t)(p - f->map), dims_at = type_at - 8 * t->n_dims;
        const struct krn_type_info *ti = NULL;
        enum rs_result r = check_type(f, t, type_at, &ti, err);
        if (r != RS_OK || (r = check_shape(f, t, dims_at, ti, err)) != RS_OK)
            return r;
        if ((r = check_place(f, t, type_at + 4, gguf_ld64(p + 4), err)) != RS_OK)
            return r;
        pos = type_at + 12;
    }
    return RS_OK;
}
