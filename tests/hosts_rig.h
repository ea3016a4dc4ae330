/* What tests with ranks on several hosts share. All hosts are this machine. */
#ifndef RANKSCOPE_TESTS_HOSTS_RIG_H
#define RANKSCOPE_TESTS_HOSTS_RIG_H

#include <sys/types.h>

#include "engine/rankscope.h"

/* What starts the other hosts' processes, with more of their environment (NAME=VALUE ...); valid until the next call. */
const char *hosts_launcher(const char *more);
enum rs_result hosts_try(const char *hosts, const char *launch, unsigned timeout_s, struct rs_engine **out, struct rs_error *err);
/* Processes that were started so and run: how many, at most 8; left: those that still do when they have had time to end. */
int hosts_followers(pid_t out[8]);
int hosts_left(void);

/* Checks what becomes of an answer when one of several hosts gets a signal in the middle of it: the model is opened with `more` ("" or ,"name":value
 * ...), and the answer's error must say `part`. */
struct hosts_loss {
    int sig;
    const char *what, *part, *hosts, *model, *more;
    const char *env; /* of the other processes; NULL: nothing more */
};
void hosts_signalled(const struct hosts_loss *l);

#endif
