/* The engine's end of the sockets. The control thread owns it: it accepts, reads requests, queues frames and sends what the sockets take, and
 * never waits for a client. A client whose queue is full is dropped; its conversations stay. */
#ifndef RANKSCOPE_ENGINE_SERVER_H
#define RANKSCOPE_ENGINE_SERVER_H

#include <jansson.h>
#include <stddef.h>

#include "engine/rankscope.h"
#include "engine/wire.h"

struct engine;
struct server;

#define SERVER_MAX_CLIENTS 31

/* listen_fd: -1 for none (an engine inside a process). first: a connected socket that is there from the start, or -1; when it closes and there is
 * no listening socket, the engine stops. */
enum rs_result server_open(struct engine *e, int listen_fd, int first, struct server **out, struct rs_error *err);
void server_close(struct server *s);

/* Look at all sockets; wait up to timeout_ms for something to happen (0: do not wait). Carries out complete requests. */
void server_poll(struct server *s, int timeout_ms);

/* During a step: carries out those requests that only ask for a new stream, as far as they have come and stand before any other one of their client. Does not
 * wait. Whether there may be more. */
bool server_admit(struct server *s);

/* Whether a request of that method waits behind the one of this client that is being carried out; nothing is taken, and nothing carried out. For the control thread inside of a long
 * request, which may be asked to give it up. */
bool server_foresees(const struct server *s, int slot, const char *method);
/* The same of any client. */
bool server_foresees_any(const struct server *s, const char *method);

/* Send what is queued. Called after every step. */
void server_flush(struct server *s);

/* Queue a token for every client in `subscribers`. Allocates nothing. */
void server_token(struct server *s, uint32_t subscribers, uint32_t stream, int32_t token, uint32_t flags, const char *text, size_t len,
                  const void *blob, size_t blob_len);
/* Queue an event with a JSON text for one client slot (-1: all). Not during a step. */
void server_event(struct server *s, int slot, enum rs_event_type type, enum rs_result status, uint32_t id, const char *json, const void *blob, size_t blob_len);
void server_event_mask(struct server *s, uint32_t mask, enum rs_event_type type, uint32_t id, const char *json);

/* What a client says of itself. serves: it may submit, and cancel what it submitted, without being in control. */
void server_introduce(struct server *s, int slot, const char *name, bool serves);
const char *server_client_name(const struct server *s, int slot); /* "": it did not say; valid until the client leaves */
bool server_serves(const struct server *s, int slot);

bool server_in_control(const struct server *s, int slot);
/* Make slot the client in control if nobody is, or if `take`; otherwise it waits for it. Returns whether it is now. When the client in control leaves or gives it
 * up, the one that has waited longest is. Whoever gets control without having asked just now, or loses it, is told by a LOG event. */
bool server_take_control(struct server *s, int slot, bool take);
/* No longer be in control, nor wait for it. */
void server_give_control(struct server *s, int slot);
/* The slot in control, or -1; *waiting gets how many wait for it. */
int server_control(const struct server *s, int *waiting);
void server_stop(struct server *s);
/* Every client reads what was sent and then that the engine is gone. */
void server_hang_up(struct server *s);
bool server_stopping(const struct server *s);

#endif
