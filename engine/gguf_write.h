/* Writing a GGUF file: keys and tensor descriptions first, then the tensors' bytes in the same order.
 *
 * The file grows beside its place, as PATH.part, and takes its name when it is complete; what was there before stays until then. One thread.
 * Running out of memory while keys are added is kept and reported by the next call that can fail. */
#ifndef RANKSCOPE_ENGINE_GGUF_WRITE_H
#define RANKSCOPE_ENGINE_GGUF_WRITE_H

#include "engine/gguf.h"

struct gguf_writer;

enum { GGUF_WRITE_ALIGN = 32 }; /* of tensors; the format's default, so no key says it */

/* path NULL: nothing is written, only gguf_write_map() ends it. */
enum rs_result gguf_write_open(const char *path, struct gguf_writer **out, struct rs_error *err);
/* Give up: the unfinished file goes. NULL is allowed. */
void gguf_write_abort(struct gguf_writer *w);

void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_write_f32(struct gguf_writer *w, const char *key, float v);
void gguf_write_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_write_str(struct gguf_writer *w, const char *key, const char *v);
/* An array's head; gguf_write_raw() adds its elements, strings each as length (u64) and bytes. */
void gguf_write_array(struct gguf_writer *w, const char *key, uint32_t elem_type, uint64_t count);
void gguf_write_raw(struct gguf_writer *w, const void *p, size_t n);
/* A key as another file has it. */
void gguf_write_kv(struct gguf_writer *w, const struct gguf_kv *kv);

/* ne[0] is a multiple of the type's block. */
void gguf_write_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t ne[4]);

/* Bytes of the next tensors, in any pieces that do not cross the end of one. */
enum rs_result gguf_write_data(struct gguf_writer *w, const void *p, size_t n, struct rs_error *err);

/* All bytes are there: name the file. Ends the writer in any case. RS_EINTERNAL when bytes are missing. */
enum rs_result gguf_write_finish(struct gguf_writer *w, struct rs_error *err);

/* Instead of a file: memory as long as the file would be, the head at its front. The rest reads as zeros, may be written, and takes memory page by
 * page as that happens. For gguf_open_map(). Ends the writer in any case. Errors: RS_ENOMEM. */
enum rs_result gguf_write_map(struct gguf_writer *w, uint8_t **map, uint64_t *bytes, struct rs_error *err);

#endif
