/* serving.h: an HTTP server beside a console. It has a thread, a connection to the engine and a session (struct con) of its own; the console goes on
 * as without it. Requests that it hands in run beside the conversation. Thread of the user interface. */
#ifndef RANKSCOPE_CONSOLE_SERVING_H
#define RANKSCOPE_CONSOLE_SERVING_H

#include "console/con.h"
#include "console/opt.h"

struct serving;

/* Serve the engine of con, which must be a process of its own, under the options of http_table. */
enum rs_result serving_start(const struct con *con, const struct opt_values *v, struct serving **out, struct rs_error *err);
const char *serving_address(const struct serving *s); /* valid as long as s */
/* Let running requests finish and end; returns at once. */
void serving_end(struct serving *s);
/* It has ended; err says why if it failed. */
bool serving_over(const struct serving *s, struct rs_error *err);
/* End at once if it has not, and free. NULL is allowed. */
void serving_free(struct serving *s);

#endif
