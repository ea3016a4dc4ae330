/* cmd_engine.c: the engine as a process of its own. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "console/cmd_list.h"
#include "console/daemon.h"
#include "console/js.h"
#include "console/sig.h"
#include "lua/scr_op.h"

static const struct opt s_options[] = {
    {.name = "name", .letter = 'n', .type = OPT_STRING, .arg = "NAME", .help = "what the engine is called; without it, 0"},
    {.name = "workers", .type = OPT_INT, .arg = "N", .min = 1, .max = 4096, .help = "CPU threads; without it one for each core"},
    {.name = "isa", .type = OPT_CHOICE, .choices = "portable|avx2|avx512", .help = "vector instructions to use"},
    {.name = "hosts", .type = OPT_STRING, .arg = "A,B", .help = "deal ranks to an engine process on each of these hosts, this one first"},
    {.name = "launch",
     .type = OPT_STRING,
     .arg = "WORDS",
     .help = "how to start {command} on {host}; without it ssh, or srun in a Slurm job"},
    {.name = "host-timeout", .type = OPT_INT, .arg = "S", .min = 1, .max = 86400, .help = "seconds of silence after which a host is lost; without it 15"},
    {.name = "follow", .type = OPT_STRING, .arg = "I@HOST:PORT", .help = "be an engine process on another host; what started this one gives it a secret"},
    {.name = "mpi", .type = OPT_FLAG, .help = "an MPI launcher has started this process beside others: each is one of the hosts"},
    {.name = "ready-fd",
     .type = OPT_INT,
     .arg = "FD",
     .min = 3,
     .max = 1e6,
     .help = "write a byte to this descriptor once clients can connect"},
    {.name = "ready-file", .type = OPT_STRING, .arg = "FIFO", .help = "the same through a FIFO, which a launcher cannot lose"},
    {0},
};

enum { STOP_MS = 10000 };

/* SIGTERM and Ctrl-C ask the engine to stop as any client does, so that it closes what it has open. SIGHUP is ignored: surviving a lost
 * terminal is what an engine is for. */
static void *watch_signals(void *arg)
{
    const char *name = arg;
    for (;;) {
        struct pollfd p = {.fd = sig_fd(), .events = POLLIN};
        unsigned bits = poll(&p, 1, -1) > 0 ? sig_take() & (SIG_BIT_INT | SIG_BIT_TERM) : 0;
        if (bits == 0)
            continue;
        struct rs_engine *e;
        if (rs_engine_connect(name, &e, NULL) != RS_OK) /* nobody can ask it any more: its socket went with the user's runtime folder, say */
            sig_die(bits & SIG_BIT_TERM ? SIGTERM : SIGINT);
        char hello[96]; /* whoever is in control: a signal is not asked for leave */
        snprintf(hello, sizeof hello, "{\"protocol\":%d,\"client\":\"signal\",\"take\":true}", RS_PROTOCOL);
        if (rs_request(e, "hello", hello, STOP_MS, NULL, NULL) == RS_OK)
            rs_request(e, "stop", NULL, STOP_MS, NULL, NULL);
        rs_engine_close(e);
    }
    return NULL;
}

static enum exit_status exec_engine(const struct cmd_entry *self, const struct opt_values *v)
{
    struct rs_error err = {0};
    struct rs_local_params params = {.workers = (unsigned)opt_int(v, "workers", 0),
                                     .isa = opt_string(v, "isa", NULL),
                                     .host = scr_op_host(),
                                     .json_failures = js_failures,
                                     .hosts = opt_string(v, "hosts", NULL),
                                     .launch = opt_string(v, "launch", NULL),
                                     .host_timeout = (unsigned)opt_int(v, "host-timeout", 0),
                                     .mpi = opt_set(v, "mpi")};
    if (opt_set(v, "follow"))
        return rs_engine_follow(opt_string(v, "follow", ""), &params, &err) == RS_OK ? EXIT_OK : cmd_fail(self, &err);
    const char *name = opt_string(v, "name", "0");
    pthread_t watcher;
    if (!daemon_name_ok(name))
        return cmd_usage(self, "'%s' is no name for an engine: letters, digits, '-', '_' and '.', at most %d", name, DAEMON_NAME_MAX - 1);
    int e = pthread_create(&watcher, NULL, watch_signals, (void *)name);
    if (e != 0) {
        fail_set(&err, RS_EIO, "cannot start a thread: %s", strerror(e));
        return cmd_fail(self, &err);
    }
    pthread_detach(watcher);
    int ready = (int)opt_int(v, "ready-fd", -1);
    if (opt_set(v, "ready-file")) /* not there on another host, where nobody waits */
        ready = open(opt_string(v, "ready-file", ""), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (rs_engine_serve(name, &params, ready, &err) != RS_OK)
        return cmd_fail(self, &err);
    return EXIT_OK;
}

const struct cmd_entry cmd_engine_entry = {
    .name = "engine",
    .args = "",
    .summary = "run an engine that consoles connect to",
    .help = "Runs an engine in this process until it is told to stop (rankscope stop, SIGTERM). It listens on a socket in the user's "
            "runtime folder "
            "that nobody else may open, and goes on when consoles come and go. The console starts one by itself.",
    .tables = {s_options},
    .max_args = 0,
    .exec = exec_engine,
};
