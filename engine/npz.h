/* Archives of numpy arrays (.npz: a zip file of .npy members), read and written without a library. Only stored members are read: numpy.savez writes
 * those, numpy.savez_compressed does not. Any thread, one archive per thread. */
#ifndef RANKSCOPE_ENGINE_NPZ_H
#define RANKSCOPE_ENGINE_NPZ_H

#include <stddef.h>
#include <stdint.h>

#include "engine/rankscope.h"

struct npz;        /* an archive that is read: a mapped file */
struct npz_writer;

struct npz_array {
    uint32_t n_dims;
    uint64_t dim[4];
    size_t n;          /* product */
    char type[4];      /* "f4", "f8", "i4", "i8" and the like, little endian or one byte */
    const uint8_t *data;
};

/* Errors: RS_EIO, RS_EFORMAT naming the file and what is off. */
enum rs_result npz_open(const char *path, struct npz **out, struct rs_error *err);
void npz_close(struct npz *z);
size_t npz_count(const struct npz *z);
/* Name of member i without ".npy"; valid while open. */
const char *npz_name(const struct npz *z, size_t i);
/* RS_ENOTFOUND: no such member (err may be NULL); RS_EUNSUPPORTED: compressed, big endian, Fortran order, an unknown type. */
enum rs_result npz_get(const struct npz *z, const char *name, struct npz_array *out, struct rs_error *err);
/* Element i as a number. */
double npz_at(const struct npz_array *a, size_t i);

/* The archive appears under its name when it is complete (npz_finish), never half written. */
enum rs_result npz_create(const char *path, struct npz_writer **out, struct rs_error *err);
enum rs_result npz_add_f32(struct npz_writer *w, const char *name, const float *data, uint64_t rows, uint64_t cols, struct rs_error *err);
enum rs_result npz_add_i32(struct npz_writer *w, const char *name, const int32_t *data, uint64_t n, struct rs_error *err);
enum rs_result npz_finish(struct npz_writer *w, struct rs_error *err); /* frees w, also on failure */
void npz_abandon(struct npz_writer *w);

#endif
