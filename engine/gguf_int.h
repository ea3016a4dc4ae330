/* Private to gguf*.c. */
#ifndef RANKSCOPE_ENGINE_GGUF_INT_H
#define RANKSCOPE_ENGINE_GGUF_INT_H

#include "engine/error.h"
#include "engine/gguf.h"

/* One mapped file while its header is read and afterwards. */
struct gguf_file {
    char *path;         /* owned */
    const uint8_t *map; /* owned mapping of size bytes */
    uint64_t size;
    uint32_t version;
    uint32_t alignment;
    uint64_t n_kv, n_tensors;
    uint64_t kv_at, infos_at; /* offsets of the first key and the first tensor info */
    uint64_t data_start;
    uint64_t key_text, name_text;   /* bytes that NUL-terminated copies of all keys / tensor names take */
    uint32_t split_no, split_count; /* count 1 when the keys are absent */
    int64_t split_tensors;          /* -1 when absent */
};

/* A stored key is two pointers: headers can hold very many short keys, and the copy must not outgrow the file. */
struct gguf_slot {
    const char *key;
    const uint8_t *at; /* the value's type word */
};

struct gguf {
    struct gguf_file *files;
    uint32_t n_files, cap_files;
    struct gguf_slot *kv, **kv_by_key; /* of the first shard */
    struct gguf_tensor *tensors, **by_name;
    uint64_t n_tensors;
    char *text; /* keys and names */
};

/* Walk and check one file's header; fills the fields after size. No allocation. */
enum rs_result gguf_parse_scan(struct gguf_file *f, struct rs_error *err);
/* Second walk over a header that gguf_parse_scan() accepted: slots for the keys, copies of the names into *text (advanced). */
void gguf_parse_keys(const struct gguf_file *f, struct gguf_slot *slots, char **text);
/* Tensor infos of file number `file`, with types, sizes, bounds and alignment checked. */
enum rs_result gguf_parse_tensors(const struct gguf_file *f, uint32_t file, uint32_t ordinal, struct gguf_tensor *t, char **text,
                                  struct rs_error *err);

/* Fill err with "FILE: offset N: reason" and return code. */
enum rs_result gguf_bad(const struct gguf_file *f, struct rs_error *err, enum rs_result code, uint64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
const char *gguf_short_path(const char *path); /* the end of a long path, so that the reason still fits */

size_t gguf_type_size(uint32_t type); /* bytes of a fixed-size value; 0 for str, array and unknown numbers */
struct gguf_kv gguf_slot_kv(const struct gguf_slot *s);

/* Unaligned little-endian loads. */
uint16_t gguf_ld16(const uint8_t *p);
uint32_t gguf_ld32(const uint8_t *p);
uint64_t gguf_ld64(const uint8_t *p);

#endif
