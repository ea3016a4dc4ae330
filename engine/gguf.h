/* GGUF files: one model = one file or a set of shards, mapped read-only and checked completely when opened.
 *
 * A struct gguf is immutable after gguf_open(): any thread may read it. Everything that a getter points to lives until gguf_close().
 * Keys and tensor names are NUL-terminated copies; string values stay in the mapping as (pointer, length), are not NUL-terminated and
 * may contain NUL (gguf_dup_str() makes a C string). Opening refuses a file that breaks any rule of the format, so readers need no
 * bounds checks of their own; the one thing that it cannot defend against is somebody shortening the file while it is mapped (SIGBUS).
 *
 * Failures: RS_EIO (cannot be opened or mapped), RS_EFORMAT (the file is not what it claims to be), RS_EUNSUPPORTED (well-formed, but a
 * version or type that this build does not read), RS_ENOMEM. The message is one line: file, offset, key or tensor, reason. */
#ifndef RANKSCOPE_ENGINE_GGUF_H
#define RANKSCOPE_ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/rankscope.h"

/* Value types; the numbers are the file format's own. */
/* clang-format off */
enum gguf_type {
    GGUF_U8 = 0, GGUF_I8 = 1, GGUF_U16 = 2, GGUF_I16 = 3, GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7,
    GGUF_STR = 8, GGUF_ARRAY = 9, GGUF_U64 = 10, GGUF_I64 = 11, GGUF_F64 = 12,
};
/* clang-format on */

struct gguf;

struct gguf_tensor {
    const char *name;
    uint32_t type;   /* enum krn_type; kernels for it may or may not exist */
    uint32_t n_dims; /* as stored, 1..4; missing dims are 1 in ne */
    uint64_t ne[4];  /* ne[0] is contiguous; all >= 1; ne[0] is a multiple of the type's block */
    const uint8_t *data;
    uint64_t bytes;
    uint64_t offset;  /* of data, absolute in its file */
    uint32_t file;    /* shard number */
    uint32_t ordinal; /* position over all shards in the order of their headers; equals the index of gguf_tensor_at() */
};

/* One key, by value. For a scalar or string, count is 1 and elem_type is type. */
struct gguf_kv {
    const char *key;
    uint32_t type, elem_type;
    uint64_t count;
    const uint8_t *data; /* first value, unaligned, little endian */
};

/* What a caller expects of an array's elements. */
enum gguf_want { GGUF_WANT_INT, GGUF_WANT_F32, GGUF_WANT_BOOL, GGUF_WANT_STR };

/* A view of an array value. Strings have no index in the file: `at` and `pos` remember where the last read stood, so reading in order is
 * linear. The caller owns the struct, so this is safe from any thread. */
struct gguf_array {
    uint32_t elem_type;
    uint64_t count;
    const uint8_t *data;
    uint64_t at;
    const uint8_t *pos;
};

/* path: a single file or any shard of a set (its siblings are found by name). On success *out belongs to the caller. */
enum rs_result gguf_open(const char *path, struct gguf **out, struct rs_error *err);
/* The same for bytes of gguf_write_map(), which belong to it from now on, also on failure. name: for messages. */
enum rs_result gguf_open_map(const char *name, uint8_t *map, uint64_t bytes, struct gguf **out, struct rs_error *err);
void gguf_close(struct gguf *g); /* NULL is allowed */

uint32_t gguf_n_files(const struct gguf *g);
const char *gguf_path(const struct gguf *g, uint32_t file);
uint64_t gguf_file_bytes(const struct gguf *g); /* over all shards */
uint32_t gguf_version(const struct gguf *g);    /* of the first shard: 2 or 3 */

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* NULL when absent; binary search */

/* Keys of the first shard, in file order. */
size_t gguf_n_kv(const struct gguf *g);
struct gguf_kv gguf_kv_at(const struct gguf *g, size_t i);
bool gguf_find_kv(const struct gguf *g, const char *key, struct gguf_kv *out);
const char *gguf_type_name(uint32_t type); /* "u32", "str", ...; "?" for a number that is none */

/* Print a value for a listing: one line, control bytes as '?', long strings and arrays cut with "..."; returns what snprintf would. */
size_t gguf_print_value(const struct gguf_kv *kv, char *buf, size_t cap);

/* Typed access. found may be NULL: then the key is required and its absence is RS_EFORMAT. Otherwise an absent key is RS_OK with *found =
 * false and *out untouched. A key of another type, or a number out of range, is RS_EFORMAT. */
enum rs_result gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, bool *found, struct rs_error *err); /* any integer */
enum rs_result gguf_get_i64(const struct gguf *g, const char *key, int64_t *out, bool *found, struct rs_error *err);  /* any integer */
enum rs_result gguf_get_f32(const struct gguf *g, const char *key, float *out, bool *found, struct rs_error *err); /* f32 or f64, finite */
enum rs_result gguf_get_bool(const struct gguf *g, const char *key, bool *out, bool *found, struct rs_error *err);
enum rs_result gguf_get_str(const struct gguf *g, const char *key, const char **s, size_t *len, bool *found, struct rs_error *err);
/* As gguf_get_str, but a NUL-terminated copy that the caller frees; a string with a NUL inside is RS_EFORMAT. */
enum rs_result gguf_dup_str(const struct gguf *g, const char *key, char **out, bool *found, struct rs_error *err);
enum rs_result gguf_get_array(const struct gguf *g, const char *key, enum gguf_want want, struct gguf_array *out, bool *found,
                              struct rs_error *err);
/* A per-layer number: a scalar (copied n times) or an integer array of exactly n. */
enum rs_result gguf_get_u32s(const struct gguf *g, const char *key, uint32_t *out, size_t n, bool *found, struct rs_error *err);

/* Elements. i < count; the element type is what gguf_get_array() was asked for. A u64 above INT64_MAX reads as INT64_MAX. */
const char *gguf_array_str(struct gguf_array *a, uint64_t i, size_t *len);
int64_t gguf_array_i64(const struct gguf_array *a, uint64_t i); /* integers and bool */
float gguf_array_f32(const struct gguf_array *a, uint64_t i);

#endif
