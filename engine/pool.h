/* Persistent CPU workers.
 *
 * pool_run() makes every worker call one function once; the calling thread is worker 0. Inside, pool_barrier() joins all of them. Between runs
 * the others spin for a few microseconds and then sleep, so that a step after a step finds them awake and an idle engine costs nothing. One
 * thread owns a pool; it alone calls pool_run(). Nothing here allocates after pool_open(). */
#ifndef RANKSCOPE_ENGINE_POOL_H
#define RANKSCOPE_ENGINE_POOL_H

#include "engine/rankscope.h"

struct pool;

typedef void (*pool_fn)(void *arg, unsigned worker);

/* n: 1 to 256. Errors: RS_ENOMEM, RS_EIO (threads). */
enum rs_result pool_open(unsigned n, struct pool **out, struct rs_error *err);
void pool_close(struct pool *p);
unsigned pool_size(const struct pool *p);
void pool_run(struct pool *p, pool_fn fn, void *arg);
void pool_barrier(struct pool *p);

#endif
