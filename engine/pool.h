/* Persistent CPU workers.
 *
 * Work is dealt to as many workers as the pool has, in parts that follow each other: pool_walk() makes every worker do part 0, then all of them
 * part 1, and so on. How many threads carry the workers is chosen walk by walk: with fewer threads than workers a thread does the shares of
 * several, one after the other, so that what is computed does not depend on it. Fewer are faster when other programs use the cores, because
 * a part ends when the last of its threads has had a core (engine/pace.h decides).
 *
 * The calling thread is thread 0. A thread that waits for the others spins for a while, because parts last microseconds, and then sleeps, because
 * cores may be fewer than threads; an idle engine costs nothing. One thread owns a pool; it alone starts walks. Nothing allocates after
 * pool_open(). */
#ifndef RANKSCOPE_ENGINE_POOL_H
#define RANKSCOPE_ENGINE_POOL_H

#include <stdint.h>

#include "engine/rankscope.h"

struct pool;

typedef void (*pool_fn)(void *arg, unsigned worker);
typedef void (*pool_part_fn)(void *arg, unsigned worker, unsigned part);

enum { POOL_MAX = 256 };

/* n: 1 to POOL_MAX. Errors: RS_ENOMEM, RS_EIO (threads). */
enum rs_result pool_open(unsigned n, struct pool **out, struct rs_error *err);
void pool_close(struct pool *p);
unsigned pool_size(const struct pool *p);

/* fn(arg, worker, part) for every worker and part, by n_threads threads (1 to pool_size()). */
void pool_walk(struct pool *p, pool_part_fn fn, void *arg, unsigned n_parts, unsigned n_threads);

/* fn(arg, worker) for every worker, each in a thread of its own. */
void pool_run(struct pool *p, pool_fn fn, void *arg);

/* Microseconds that threads have spent in longer waits for each other at the ends of parts, since pool_open(), all threads together. The owner's. */
double pool_waited_us(const struct pool *p);

#endif
