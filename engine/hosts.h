/* The engine processes of several hosts, as the first of them sees the others: starting them, joining them, telling them what to do, noticing when one
 * is gone. The first process holds the clients, the vocabulary and the scheduler; the others run steps (follow.c). The control thread owns it.
 *
 * A host that is lost is lost for good: the parts of the model and the cache that it held are gone, and so is the meaning of every collective. All
 * later calls fail with the same message, and the engine ends as it does when a device fails. */
#ifndef RANKSCOPE_ENGINE_HOSTS_H
#define RANKSCOPE_ENGINE_HOSTS_H

#include <stdbool.h>

#include "engine/comm.h"
#include "engine/link.h"
#include "engine/rankscope.h"
#include "kernels/cpu/matmul.h"

struct hosts;

/* params->hosts names them, this machine first, or comm joins processes that a launcher started already (taken over, also on failure; else NULL). */
enum rs_result hosts_open(const struct rs_local_params *params, struct comm *comm, enum krn_isa isa, struct hosts **out, struct rs_error *err);
/* Ends the other processes and waits for them, a few seconds at most. NULL is allowed. */
void hosts_close(struct hosts *h);

uint32_t hosts_count(const struct hosts *h);
const char *hosts_name(const struct hosts *h, uint32_t host);
uint32_t hosts_pid(const struct hosts *h, uint32_t host);
struct comm *hosts_comm(struct hosts *h);
/* "b (ranks 2 to 3)" is who messages speak of from now on. first: as in backend_span; NULL: no ranks. */
void hosts_ranks(struct hosts *h, const uint32_t *first);
/* The host of a rank, and the ranks of a host: [*from, *to). */
uint32_t hosts_of_rank(const struct hosts *h, uint32_t rank);
void hosts_ranks_of(const struct hosts *h, uint32_t host, uint32_t *from, uint32_t *to);
/* A number for a new runtime. */
uint32_t hosts_new_id(struct hosts *h);

/* Send to one host, or to all others (host 0). */
enum rs_result hosts_tell(struct hosts *h, uint32_t host, uint16_t type, uint32_t id, const void *data, size_t len, struct rs_error *err);
/* The next answer of a host; its failure is the result, and its message names the host. The data is valid until the next answer of that host. */
enum rs_result hosts_answer(struct hosts *h, uint32_t host, struct link_msg *out, struct rs_error *err);
/* An answer without data from every other host; the first failure counts, all are waited for. */
enum rs_result hosts_answers(struct hosts *h, struct rs_error *err);
/* Are all there? Does not wait. */
enum rs_result hosts_look(struct hosts *h, struct rs_error *err);
/* Nothing can be computed together any more; err says why. */
void hosts_lose(struct hosts *h, const struct rs_error *err);
bool hosts_lost(const struct hosts *h);

#endif
