/* Results and errors of the engine.
 *
 * Every engine function that can fail returns enum rs_result (declared in rankscope.h). The first function that decides "this is an
 * error" fills the caller's struct rs_error through error_set() and returns the code; everybody above only passes the code on. Out
 * parameters are written on success only. Nothing in engine/ or kernels/ prints. Any thread. */
#ifndef RANKSCOPE_ENGINE_ERROR_H
#define RANKSCOPE_ENGINE_ERROR_H

#include "engine/rankscope.h"

/* Fill *err (which may be NULL) with code and a printf-formatted message of one line, and return code. Control bytes in the result are
 * replaced by '?', so that a name taken from a hostile file cannot drive the terminal. Does not allocate. */
enum rs_result error_set(struct rs_error *err, enum rs_result code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
