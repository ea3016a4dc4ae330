/* rankscope.h: the one public header of the engine.
 *
 * What an engine is. An engine holds one loaded model, its ranks, its cache and its conversations, and runs them on a control thread of its
 * own. You never touch it directly: you hold a *handle*, send it *requests* (a method name with JSON arguments) and read *events* (replies,
 * tokens, progress, stops). The handle is the same whether the engine lives in this process or at the other end of a Unix socket; nothing
 * above this header knows which. docs/protocol.md lists every method with its arguments and replies.
 *
 * Threads. One handle belongs to one thread at a time. Several handles, also on the same engine, may be used from several threads.
 * Requests are carried out between two steps of the engine; while one is being carried out the engine computes nothing, while a step runs no
 * request is looked at. A step never waits for a client: a client that does not read loses its connection when its queue is full, never a token
 * of its conversation, because conversations are kept in the engine and can be read again (session.get).
 *
 * Memory. Text and blobs inside an rs_event belong to the handle and stay valid until the next rs_next() or rs_request() on it. Strings that
 * rs_request() hands out are the caller's: free() them. */
#ifndef RANKSCOPE_H
#define RANKSCOPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RS_PROTOCOL 1 /* changes when a frame or a method changes its meaning; checked in the handshake */

enum rs_result {
    RS_OK = 0,
    RS_EUSAGE = -1,       /* the caller's arguments are off */
    RS_ENOMEM = -2,       /* out of memory; what was there before is untouched */
    RS_EIO = -3,          /* the operating system said no */
    RS_EFORMAT = -4,      /* a file is not what it claims to be */
    RS_EUNSUPPORTED = -5, /* well-formed, but not something this build computes */
    RS_ESTATE = -6,       /* not now: no model, wrong mode, not in control */
    RS_ENOTFOUND = -7,
    RS_ECANCELLED = -8,
    RS_ETIMEOUT = -9,
    RS_EENGINE = -10,     /* the engine process is gone or a device failed */
    RS_EINTERNAL = -11,
};

struct rs_error {
    enum rs_result code;
    char msg[512]; /* one line, no newline, safe to print */
};

/* A short English name for r; static storage. Any thread. */
const char *rs_result_name(enum rs_result r);

/* ---- handles ------------------------------------------------------------------------------------------------------------------------ */

struct rs_engine;

struct rs_patch_host; /* engine/patch_host.h */

struct rs_local_params {
    unsigned workers;    /* CPU worker threads; 0: one per core */
    const char *isa;     /* NULL: the best this CPU has; "portable", "avx2", "avx512" for tests and comparisons */
    const struct rs_patch_host *host; /* runs patches in another language; NULL: none. Constant */
    /* "a,b": ranks are dealt to an engine process on each of these hosts. The first is this one, by an address that the others reach it at. NULL: one
     * process. launch: the words that start a process on another host, in which {host} and {command} (or its {args} alone) are
     * replaced; NULL: ssh, or srun in a Slurm job. */
    const char *hosts, *launch;
    unsigned host_timeout; /* seconds of silence after which a host is lost; 0: 15 */
    bool mpi;              /* rs_engine_serve: an MPI launcher has started this process beside others, each of which is one of the hosts */
    /* How many allocations of the JSON library have failed in this process so far (who gives it json_set_alloc_funcs() can count them). A message while
     * which some failed may lack a member, so an error is sent in its place. Any thread calls it; NULL: that is not noticed. */
    unsigned long (*json_failures)(void);
};

/* Start an engine inside this process (one-shot commands, tests). params may be NULL. The engine has no model yet: send "open".
 * Errors: RS_ENOMEM, RS_EIO, RS_EUSAGE (unknown isa, or one that this CPU lacks). */
enum rs_result rs_engine_local(const struct rs_local_params *params, struct rs_engine **out, struct rs_error *err);

/* Connect to a running engine by name (looked up in the runtime folder, NULL: the only one) or by socket path (contains a '/').
 * Errors: RS_ENOTFOUND (none of that name), RS_ESTATE (several run and no name was given; protocol differs), RS_EIO. */
enum rs_result rs_engine_connect(const char *name, struct rs_engine **out, struct rs_error *err);

/* Run an engine in the calling process, serving the socket of that name until it is told to stop ("rankscope engine"). Returns when stopped.
 * ready_fd, unless -1, receives one byte when the socket accepts connections, and is closed. */
enum rs_result rs_engine_serve(const char *name, const struct rs_local_params *params, int ready_fd, struct rs_error *err);

/* Be an engine process on another host: run steps for the first one, which listens at `at` ("INDEX@HOST:PORT"). Reads the secret that they share from
 * standard input. Returns when the first one has gone or said so; a process of its own, since it may be stuck in a device then. */
enum rs_result rs_engine_follow(const char *at, const struct rs_local_params *params, struct rs_error *err);

/* Names of the engines that run for this user, as a JSON array of {"name","pid","socket","model","ranks","since"}; caller frees. */
enum rs_result rs_engine_list(char **json, struct rs_error *err);

/* What "rankscope stage-cuda" does, for patch.load: compile a patch in CUDA C (folder `include` holds engine/patch_cuda.h), test it on a GPU, leave
 * the module in `folder`. In a process of its own, since a patch that runs wild loses the device. *worst: its largest relative error. */
enum rs_result rs_stage_cuda(const char *file, const char *include, const char *folder, double *worst, struct rs_error *err);

/* What "rankscope stage-lua" does: read a patch that `host` runs (called `name` in messages) and test it. In a process of its own, as above. */
enum rs_result rs_stage_hosted(const struct rs_patch_host *host, const char *file, const char *name, double *worst, struct rs_error *err);

/* Let go. A local engine stops (its running work is abandoned); a remote one goes on without this client. NULL is allowed. */
void rs_engine_close(struct rs_engine *e);

/* ---- requests and events -------------------------------------------------------------------------------------------------------------- */

enum rs_event_type {
    RS_EVENT_REPLY,    /* answer to a request: id, status, json (result, or {"error":...}), blob */
    RS_EVENT_TOKEN,    /* one token of a stream: id (stream), token, flags, text (whole UTF-8 characters that became ready; may be empty); if
                        * log-probabilities were asked for, blob: pairs of int32_t id and float, its own and then those of the likeliest */
    RS_EVENT_DONE,     /* a stream ended: id, json {"stop","prompt_tokens","tokens","prompt_ms","decode_ms","tok_per_s",...} */
    RS_EVENT_PROGRESS, /* long work: id (request), json {"what","done","total","bytes_per_s","seconds_left"} */
    RS_EVENT_STATE,    /* something that a status line shows has changed: json, the same object as method "info" returns under "state" */
    RS_EVENT_STOPPED,  /* a breakpoint or watchpoint holds the engine: json {"reason","site","rank","step",...} */
    RS_EVENT_LOG,      /* json {"level","text","time_us"} */
    RS_EVENT_LOST,     /* the engine is gone; json {"reason","last"}: every further call returns RS_EENGINE */
    RS_EVENT_COUNT,
};

enum rs_token_flag {
    RS_TOKEN_THINKING = 1, /* inside the thinking part */
    RS_TOKEN_SPECIAL = 2,  /* a control token (only streams that asked for them get its text) */
};

struct rs_event {
    enum rs_event_type type;
    uint32_t id;
    enum rs_result status;
    int32_t token;
    uint32_t flags;         /* rs_token_flag */
    uint64_t time_us;       /* engine's monotonic clock when the event came into being */
    const char *text;       /* TOKEN */
    size_t text_len;
    const char *json;       /* NUL-terminated, or NULL */
    const void *blob;       /* raw bytes that json describes (tensors), or NULL */
    size_t blob_len;
};

/* Send a request and return at once; *id names the reply. args is a JSON object or NULL. RS_EENGINE when the engine is gone. */
enum rs_result rs_send(struct rs_engine *e, const char *method, const char *args, uint32_t *id, struct rs_error *err);

/* Send a request and wait for its reply; events that arrive meanwhile are kept for rs_next(). On success *reply (may be NULL) is the JSON
 * result, which the caller frees. On failure err holds the engine's own message and the code it gave. timeout_ms -1 waits for ever. */
enum rs_result rs_request(struct rs_engine *e, const char *method, const char *args, int timeout_ms, char **reply, struct rs_error *err);

/* As rs_request, and hands out the reply's blob too (caller frees; NULL and 0 when there is none). */
enum rs_result rs_request_blob(struct rs_engine *e, const char *method, const char *args, int timeout_ms, char **reply, void **blob,
                               size_t *blob_len, struct rs_error *err);

/* The next event. timeout_ms 0 polls, -1 waits. RS_ETIMEOUT when there is none in time. */
enum rs_result rs_next(struct rs_engine *e, int timeout_ms, struct rs_event *out, struct rs_error *err);

/* A file descriptor that is readable when rs_next(e, 0, ...) may have something (for poll). Owned by the handle. Events that were already
 * read from it and kept by rs_request() do not make it readable: call rs_pending() before polling. */
int rs_fd(const struct rs_engine *e);
bool rs_pending(const struct rs_engine *e);

/* 0, or microseconds: tokens come so fast that being woken for each takes more of the engine's cores than sending them. Who polls rs_fd() should then
 * leave it out for so long and call rs_next(e, 0, ...) afterwards. Calls that wait do it by themselves. */
unsigned rs_nap_us(const struct rs_engine *e);

/* ---- snapshots -------------------------------------------------------------------------------------------------------------------------- */

#define RS_MAX_RANKS 64

/* What a monitoring panel needs, written by the engine after every step and read without locks. Times in microseconds, on a simulated rank
 * its virtual clock. NAN in a float and UINT64_MAX in an integer mean "not known here" (shown as N/A), never 0. */
struct rs_rank_snapshot {
    uint64_t bytes_weights, bytes_cache, bytes_buffers;
    float busy_us;                 /* own work in the last step */
    float ar_wait_us, ar_transfer_us; /* last step: sums over its all-reduces of waiting for the slowest rank, and of moving data */
    float ar_p50_us, ar_p99_us;    /* wait + transfer of single all-reduces over the recent window */
    float gpu_util, gpu_temp_c, gpu_power_w;
    uint64_t mem_used, mem_total;
    uint64_t ar_count;             /* all-reduces since the model was opened */
};

struct rs_snapshot {
    uint32_t version, n_ranks;
    uint64_t step;                 /* steps since the model was opened */
    uint64_t time_us;              /* engine clock of this snapshot */
    uint32_t mode;                 /* 0 eager, 1 graph */
    uint32_t simulated;            /* 1: the ranks share CPUs and their times are virtual */
    uint32_t rows;                 /* rows of the last step */
    uint32_t running, waiting;     /* sequences */
    uint32_t ops_per_step, allreduces_per_step;
    float step_us;                 /* wall time of the last step */
    float step_p50_us, step_p99_us;
    float tok_per_s;               /* generated tokens per second over the last second of steps that generate */
    uint64_t tokens_total, generation;
    uint32_t cache_blocks_used, cache_blocks_total;
    struct rs_rank_snapshot rank[RS_MAX_RANKS];
};

/* Copy the newest snapshot. false: no model is open yet. Lock-free; any thread, also while another uses the handle. */
bool rs_snapshot_read(const struct rs_engine *e, struct rs_snapshot *out);

/* ---- messages ---------------------------------------------------------------------------------------------------------------------------- */

/* Which name was meant by a word that is none: the nearest of the names that were tried, or nothing when none is near. No state but the caller's;
 * any thread. */
struct rs_near {
    const char *word; /* the caller's, as is what best points to */
    size_t len;
    const char *best;
    unsigned cost;
};

/* Begin with the first len bytes of word. */
void rs_near_init(struct rs_near *n, const char *word, size_t len);

/* Try one name: of two equally near the first stays. */
void rs_near_try(struct rs_near *n, const char *name);

/* How the nearest name is offered, " (did you mean PREFIXname?)", or "" when none is near; buf is the caller's and is returned. */
const char *rs_near_hint(const struct rs_near *n, const char *prefix, char *buf, size_t size);

#endif
